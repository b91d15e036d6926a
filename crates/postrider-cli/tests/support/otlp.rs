//! A collector of OpenTelemetry: takes OTLP over HTTP, in protobuf, and keeps all of it.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use super::http::{Request, serve};
use super::wait_until;

/// A collector that runs until the test is over.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
}

/// What has arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) spans: Vec<Span>,
    pub(crate) logs: Vec<LogRecord>,
    /// Who sent it, of each request.
    pub(crate) resources: Vec<Vec<KeyValue>>,
    /// The heads of all requests.
    pub(crate) heads: String,
    /// Everything, as bytes.
    pub(crate) bytes: Vec<u8>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let taken = Arc::<Mutex<Taken>>::default();
        let taking = taken.clone();
        serve(listener, move |request| (200, taking.lock().unwrap().take(request)));
        Self { address, taken }
    }

    /// The value of `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn taken(&self) -> Taken {
        self.taken.lock().unwrap().clone()
    }

    /// Waits until what has arrived is enough.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(&Taken) -> bool) -> Taken {
        wait_until(what, || condition(&self.taken.lock().unwrap()));
        self.taken()
    }
}

impl Taken {
    /// Takes a request; the answer says that all of it was taken.
    fn take(&mut self, request: &Request) -> Vec<u8> {
        self.heads.push_str(&request.head);
        let mut body = request.body.clone();
        if request.head.contains("content-encoding: gzip") {
            body.clear();
            GzDecoder::new(&*request.body).read_to_end(&mut body).unwrap();
        }
        if request.head.starts_with("post /v1/traces") {
            let traces = ExportTraceServiceRequest::decode(&*body).unwrap();
            for part in traces.resource_spans {
                self.resources.extend(part.resource.map(|resource| resource.attributes));
                self.spans.extend(part.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        } else {
            assert!(request.head.starts_with("post /v1/logs"), "{}", request.head);
            let logs = ExportLogsServiceRequest::decode(&*body).unwrap();
            for part in logs.resource_logs {
                self.resources.extend(part.resource.map(|resource| resource.attributes));
                self.logs.extend(part.scope_logs.into_iter().flat_map(|scope| scope.log_records));
            }
        }
        self.bytes.extend(body);
        Vec::new()
    }

    /// The log record with this text.
    #[track_caller]
    pub(crate) fn log(&self, text: &str) -> &LogRecord {
        let found = self.logs.iter().find(|record| shown(record.body.as_ref()).contains(text));
        found.unwrap_or_else(|| panic!("{text:?} is not among {:#?}", self.logs))
    }
}

/// The value of an attribute, as text; empty if there is none.
pub(crate) fn attribute(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    shown(found.and_then(|attribute| attribute.value.as_ref()))
}

/// A value, as text.
pub(crate) fn shown(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

/// An id in hexadecimal digits.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
