//! What is measured: which database, which sink, and how the relay reads.

use postrider_relay::config::{Config, Flags, PipelineConfig};
use postrider_relay::pipeline::Options;
use postrider_relay::scratch::{ScratchDatabase, ScratchSink};
use postrider_relay::secret::SecretUrl;
use postrider_relay::sinks::SinkSpec;
use postrider_relay::sources::{self, Mode, Progress};

use crate::commands::bench::BenchArgs;
use crate::error::{CliError, Code};
use crate::outbox;
use crate::route::RouteArgs;

/// Stands for a sink where none was named; nothing is sent there.
const NO_SINK: &str = "stdout:";

/// What is measured.
pub(crate) struct Target {
    pub(crate) database: Box<dyn ScratchDatabase>,
    pub(crate) database_url: SecretUrl,
    pub(crate) sink: Option<SinkTarget>,
    pub(crate) reading: Reading,
    pub(crate) options: Options,
    /// The flags that name the same, without secrets.
    pub(crate) flags: String,
}

/// Where events are published to.
pub(crate) struct SinkTarget {
    pub(crate) url: SecretUrl,
    pub(crate) way: SinkWay,
}

/// How events are published there.
pub(crate) enum SinkWay {
    /// To a topic that is made for it and removed.
    Scratch(Box<dyn ScratchSink>),
    /// To where it leads: what was sent stays sent.
    Sent(Box<SinkSpec>),
}

/// How the relay reads, and keeps its progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) mode: Mode,
    pub(crate) progress: Progress,
}

impl Reading {
    pub(crate) fn mode_name(self) -> &'static str {
        match self.mode {
            Mode::Poll => "poll",
            Mode::Cdc => "cdc",
        }
    }
}

impl Target {
    /// What the arguments name, without connecting to anything.
    pub(crate) fn find(args: &BenchArgs) -> Result<Self, CliError> {
        let (url, pipeline, flags) = match &args.config {
            Some(_) => {
                let (outbox, pipeline) = route(args).find()?;
                let name = crate::outbox::shell_word(&pipeline.name);
                let flags = format!("{} --pipeline {name}", outbox.flags);
                (outbox.source.url, pipeline, flags)
            }
            None => from_flags(args)?,
        };
        let PipelineConfig { mode, progress, options, sink, sink_url, .. } = pipeline;
        let sink = match args.config.is_some() || args.to.is_some() {
            true => Some(SinkTarget::find(sink, sink_url, args.yes_send)?),
            false => None,
        };
        Ok(Self {
            database: sources::scratch(url.expose())?,
            database_url: url,
            sink,
            reading: Reading { mode, progress },
            options,
            flags,
        })
    }

    /// Whether all of it is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        let sink = self.sink.as_ref().map(|sink| &sink.url);
        [Some(&self.database_url), sink].into_iter().flatten().all(|url| is_local(url.expose()))
    }
}

impl SinkTarget {
    fn find(spec: SinkSpec, url: SecretUrl, yes_send: bool) -> Result<Self, CliError> {
        let way = match spec.scratch()? {
            Some(scratch) => SinkWay::Scratch(scratch),
            None if url.expose().to_ascii_lowercase().starts_with("stdout:") => {
                let what = "stdout cannot be measured: its figures would be those of a terminal";
                let fix = "name another sink, or leave --to out to measure the database alone";
                return Err(CliError::new(Code::Usage, what).with_fix(fix));
            }
            None if yes_send => SinkWay::Sent(Box::new(spec)),
            None => {
                let what = format!("what is sent to {url} cannot be removed again");
                let fix = "add --yes-send to send it all the same, or leave the sink out";
                return Err(CliError::new(Code::Unsafe, what).with_fix(fix));
            }
        };
        Ok(Self { url, way })
    }
}

fn route(args: &BenchArgs) -> RouteArgs {
    RouteArgs {
        config: args.config.clone(),
        pipeline: args.pipeline.clone(),
        from: None,
        to: None,
        table: None,
        topic: None,
        format: None,
        allow_private: false,
    }
}

fn from_flags(args: &BenchArgs) -> Result<(SecretUrl, PipelineConfig, String), CliError> {
    let flags = Flags {
        from: args.from.clone(),
        to: Some(args.to.clone().unwrap_or_else(|| NO_SINK.to_owned())),
        mode: args.mode.clone(),
        progress: args.progress.clone(),
        allow_private: args.allow_private,
        ..Flags::default()
    };
    let config = Config::from_flags(&flags, &outbox::environment(&flags)?);
    let Config { source, pipelines, .. } = config.map_err(CliError::problems)?;
    let pipeline = pipelines.into_iter().next().expect("flags describe a pipeline");
    let to = args.to.as_ref().map(|_| match pipeline.sink_url.to_string() {
        shown if shown == pipeline.sink_url.expose() => {
            format!(" --to {}", outbox::shell_word(&shown))
        }
        _ => " --to \"$URL\"".to_owned(),
    });
    let flags = format!("{}{}", outbox::from_flags(&source), to.unwrap_or_default());
    Ok((source.url, pipeline, flags))
}

/// Whether a URL leads nowhere beyond this machine. In doubt it does.
fn is_local(url: &str) -> bool {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    if matches!(scheme.to_ascii_lowercase().as_str(), "file" | "sqlite") {
        return true;
    }
    let rest = rest.trim_start_matches('/');
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    // Parameters can name another host.
    if query.contains("host") {
        return false;
    }
    let authority = address.split('/').next().unwrap_or_default();
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    hosts.split(',').all(|host| {
        let name = match host.strip_prefix('[') {
            Some(address) => address.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        name == "localhost" || name == "::1" || is_loopback(name)
    })
}

fn is_loopback(name: &str) -> bool {
    name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn what_may_leave_this_machine_is_not_local() {
        for url in [
            "sqlite:app.db",
            "file:///tmp/x",
            "postgres://me:p@localhost/shop",
            "postgres://127.0.0.1:5432/shop?sslmode=disable",
            "postgres://[::1]:5432/shop",
            "kafka://127.0.0.1:9092,localhost:9093",
            "redis://127.0.0.1",
        ] {
            assert!(is_local(url), "{url}");
        }
        for url in [
            "postgres://db.example/shop",
            "postgres://127.0.0.1,10.0.0.1/shop",
            "postgres://localhost.evil.example/shop",
            "postgres://127.0.0.1@db.example/shop",
            "postgres://localhost/shop?host=db.example",
            "postgres:///shop?host=/run/postgresql",
            "kafka://localhost:9092,broker:9092",
            "https://example.com/127.0.0.1",
            "kafka:",
        ] {
            assert!(!is_local(url), "{url}");
        }
    }
}
