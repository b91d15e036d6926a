//! Traces and logs go out by OTLP, over HTTP and in protobuf, if the environment asks for it.
//!
//! What is to go out stands in queues of OpenTelemetry's library, whose threads send it in
//! batches. A queue that is full drops what comes: a collector that is away costs no more than
//! that, and holds up the end of the process for [`FINISH_MAX`] at most.

mod collector;
mod settings;

use std::time::Duration;

use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _, Severity};
use opentelemetry::{KeyValue, global};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{SdkLogger, SdkLoggerProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;

use self::collector::Collector;
use self::settings::{Settings, Signal};
use crate::error::{CliError, Code};

/// Longest time for what is in the queues to go out at the end.
const FINISH_MAX: Duration = Duration::from_secs(3);
const SERVICE_NAME: &str = "service.name";
/// What the library calls a service to which nobody gave a name.
const NAMELESS: &str = "unknown_service";

/// What goes out, and how.
#[derive(Debug)]
pub(crate) struct Export {
    traces: Option<SdkTracerProvider>,
    logs: Option<SdkLoggerProvider>,
}

type Bridge = OpenTelemetryTracingBridge<SdkLoggerProvider, SdkLogger>;

impl Export {
    /// Exports nothing.
    pub(crate) fn none() -> Self {
        Self { traces: None, logs: None }
    }

    /// Starts what the environment asks for.
    pub(crate) fn start() -> Result<Self, CliError> {
        let Settings { traces, logs } = Settings::read(|name| std::env::var(name).ok())?;
        let resource = resource();
        let traces = traces.map(|signal| tracer_provider(&signal, &resource)).transpose()?;
        let logs = logs.map(|signal| logger_provider(&signal, &resource)).transpose()?;
        if let Some(traces) = &traces {
            global::set_tracer_provider(traces.clone());
            // Events carry their context as W3C Trace Context.
            global::set_text_map_propagator(TraceContextPropagator::new());
        }
        Ok(Self { traces, logs })
    }

    /// Takes part in the log.
    pub(crate) fn layer(&self) -> Option<Bridge> {
        self.logs.as_ref().map(OpenTelemetryTracingBridge::new)
    }

    /// Says why the command failed, which the log does not.
    pub(crate) fn failed(&self, error: &CliError) {
        let Some(logs) = &self.logs else { return };
        let logger = logs.logger("postrider");
        let mut record = logger.create_log_record();
        record.set_severity_number(Severity::Error);
        record.set_severity_text("ERROR");
        record.set_body(AnyValue::from(error.what.clone()));
        record.add_attribute("exit_code", i64::from(error.code.exit_code()));
        if !error.why.is_empty() {
            record.add_attribute("why", error.why.join("; "));
        }
        if let Some(fix) = &error.fix {
            record.add_attribute("fix", fix.clone());
        }
        logger.emit(record);
    }

    /// Sends what is left, as far as that is quickly done.
    pub(crate) fn finish(self) {
        let Self { traces, logs } = self;
        std::thread::scope(|scope| {
            if let Some(traces) = traces {
                scope.spawn(move || drop(traces.shutdown_with_timeout(FINISH_MAX)));
            }
            // Nobody is left to be told that it did not work, and it has been said.
            if let Some(logs) = logs {
                drop(logs.shutdown_with_timeout(FINISH_MAX));
            }
        });
    }
}

fn tracer_provider(signal: &Signal, resource: &Resource) -> Result<SdkTracerProvider, CliError> {
    let exporter = reaching(signal, SpanExporter::builder().with_http())?.build();
    let exporter = exporter.map_err(|error| cannot_start().caused_by(&error))?;
    let provider = SdkTracerProvider::builder().with_resource(resource.clone());
    Ok(provider.with_batch_exporter(exporter).build())
}

fn logger_provider(signal: &Signal, resource: &Resource) -> Result<SdkLoggerProvider, CliError> {
    let exporter = reaching(signal, LogExporter::builder().with_http())?.build();
    let exporter = exporter.map_err(|error| cannot_start().caused_by(&error))?;
    let provider = SdkLoggerProvider::builder().with_resource(resource.clone());
    Ok(provider.with_batch_exporter(exporter).build())
}

/// Says where an exporter sends to, and how. What else there is, it reads from the environment.
fn reaching<E: WithExportConfig + WithHttpConfig>(
    signal: &Signal,
    exporter: E,
) -> Result<E, CliError> {
    let collector = Collector::new(signal.what, signal.timeout);
    let collector = collector.map_err(|error| cannot_start().caused_by(&*error))?;
    Ok(exporter
        .with_http_client(collector)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(&signal.endpoint)
        .with_timeout(signal.timeout))
}

fn cannot_start() -> CliError {
    CliError::new(Code::Configuration, "cannot start the export of traces and logs")
        .with_fix("set OTEL_SDK_DISABLED=true to go without")
}

/// Who says all this. What the environment says comes first.
fn resource() -> Resource {
    let own = [
        KeyValue::new(SERVICE_NAME, "postrider"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("host.name", gethostname::gethostname().to_string_lossy().into_owned()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ];
    let given = Resource::builder().build();
    let is_given = |own: &KeyValue| {
        let value = given.get(&own.key);
        value.is_some_and(|value| !value.as_str().starts_with(NAMELESS))
    };
    let missing: Vec<KeyValue> = own.into_iter().filter(|own| !is_given(own)).collect();
    Resource::builder().with_attributes(missing).build()
}
