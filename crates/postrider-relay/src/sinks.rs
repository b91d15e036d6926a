//! The sinks of this build, and the registry that finds one by the scheme of its URL.
//!
//! A sink is a file and a folder of its name, behind a feature if it needs a client library, and
//! one arm in each `match` below. The [`memory`] sink has no URL: it is for programs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use self::option_reader::OptionReader;
use crate::readback::{Readback, Scope};
use crate::scratch::ScratchSink;
use crate::sink::{FailureKind, Sink, SinkError};
use crate::suggestion::nearest;

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod broker_account;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod broker_url;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod call_time;
pub mod file;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod header_names;
#[cfg(feature = "http")]
pub mod http;
pub(crate) mod json_lines;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
mod kept_ids;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod last_try;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
mod option_reader;
mod problem;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
pub mod stdout;
#[cfg(any(
    feature = "http",
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
mod tls;

pub use self::memory::MemorySink;
pub use self::problem::Problem;
#[cfg(any(
    feature = "http",
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
pub use self::tls::TlsOptions;
pub use crate::secret::Secret;

/// The schemes of the sinks of this build.
const SCHEMES: &[&str] = &[
    #[cfg(feature = "rabbitmq")]
    "amqp",
    #[cfg(feature = "rabbitmq")]
    "amqps",
    "file",
    #[cfg(feature = "http")]
    "http",
    #[cfg(feature = "https")]
    "https",
    #[cfg(feature = "kafka")]
    "kafka",
    #[cfg(feature = "nats")]
    "nats",
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "redis")]
    "rediss",
    "stdout",
];

/// Schemes that need a feature, with that feature.
const FEATURES: [(&str, &str); 8] = [
    ("amqp", "rabbitmq"),
    ("amqps", "rabbitmq"),
    ("http", "http"),
    ("https", "https"),
    ("kafka", "kafka"),
    ("nats", "nats"),
    ("redis", "redis"),
    ("rediss", "redis"),
];

/// Which sink to use, as the configuration has it.
#[derive(Clone, PartialEq)]
pub struct SinkSpec {
    /// Where events go: `stdout:`, `file:///path`, `file:relative/path`, `http://…`, `https://…`,
    /// `kafka://…`, `amqp://…`, `amqps://…`, `nats://…`, `redis://…` or `rediss://…`. It may hold
    /// secrets.
    pub url: String,
    /// The options of that sink. They may hold secrets.
    pub options: toml::Table,
    /// What the sink knows of the pipeline that it works for.
    pub pipeline: PipelineFacts,
}

/// What a sink knows of the pipeline that it works for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelineFacts {
    /// What the pipeline, or the shard of it, is called: `orders` or `orders/3`.
    pub name: String,
    /// The topic of all events, if its template names no field: a check looks for it.
    pub topic: Option<String>,
    /// The names of the headers that the configuration gives each event.
    pub header_names: Vec<String>,
    /// The longest time between the first try of an event and its last one.
    pub retry_horizon: Duration,
    /// The longest time of a call, after which it is given up and its events have failed. `None`
    /// if it is not known.
    pub call_timeout: Option<Duration>,
    /// Most events that are read and not settled: so many may come back after a crash.
    pub window_events: usize,
}

/// The options of one of the sinks.
#[allow(clippy::large_enum_variant, reason = "there is one of it, for a moment")]
enum SinkOptions {
    File(file::Options),
    #[cfg(feature = "http")]
    Http(http::Options),
    #[cfg(feature = "kafka")]
    Kafka(kafka::Options),
    #[cfg(feature = "nats")]
    Nats(nats::Options),
    #[cfg(feature = "rabbitmq")]
    RabbitMq(rabbitmq::Options),
    #[cfg(feature = "redis")]
    Redis(redis::Options),
    Stdout(stdout::Options),
}

impl SinkSpec {
    /// A sink without options, for a pipeline of which nothing is known.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), options: toml::Table::new(), pipeline: PipelineFacts::default() }
    }

    /// Every mistake in the URL and the options, without any I/O.
    pub fn problems(&self) -> Vec<Problem> {
        self.read().err().unwrap_or_default()
    }

    /// Connects the sink.
    pub async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        let options = self.read().map_err(problem::misconfigured)?;
        Ok(match options {
            SinkOptions::File(options) => Box::new(options.connect().await?),
            #[cfg(feature = "http")]
            SinkOptions::Http(options) => Box::new(options.connect().await?),
            #[cfg(feature = "kafka")]
            SinkOptions::Kafka(options) => Box::new(options.connect().await?),
            #[cfg(feature = "nats")]
            SinkOptions::Nats(options) => Box::new(options.connect().await?),
            #[cfg(feature = "rabbitmq")]
            SinkOptions::RabbitMq(options) => Box::new(options.connect().await?),
            #[cfg(feature = "redis")]
            SinkOptions::Redis(options) => Box::new(options.connect().await?),
            SinkOptions::Stdout(options) => Box::new(options.connect().await?),
        })
    }

    /// The path, if it is a file.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        match self.read() {
            Ok(SinkOptions::File(file::Options { path })) => Some(path),
            _ => None,
        }
    }

    /// Whether what it has published can be [read back](Self::read_back).
    pub fn is_readable(&self) -> bool {
        match self.read() {
            Ok(SinkOptions::File(_)) => true,
            #[cfg(feature = "kafka")]
            Ok(SinkOptions::Kafka(_)) => true,
            #[cfg(feature = "nats")]
            Ok(SinkOptions::Nats(_)) => true,
            #[cfg(feature = "redis")]
            Ok(SinkOptions::Redis(_)) => true,
            _ => false,
        }
    }

    /// Begins to read back what it has published.
    ///
    /// # Errors
    ///
    /// The sink is none that can be read back, or cannot be reached, or none of the topics can be
    /// read. If only some of them cannot, the [others are](Readback::unreadable).
    pub async fn read_back(&self, scope: &Scope) -> Result<Box<dyn Readback>, SinkError> {
        let options = self.read().map_err(problem::misconfigured)?;
        let readback: Box<dyn Readback> = match options {
            SinkOptions::File(options) => Box::new(options.read_back(scope)?),
            #[cfg(feature = "kafka")]
            SinkOptions::Kafka(options) => Box::new(options.read_back(scope).await?),
            #[cfg(feature = "nats")]
            SinkOptions::Nats(options) => Box::new(options.read_back(scope).await?),
            #[cfg(feature = "redis")]
            SinkOptions::Redis(options) => Box::new(options.read_back(scope).await?),
            _ => {
                let scheme = self.url.split_once(':').map_or("", |(scheme, _)| scheme);
                let message = format!(
                    "what was published to {scheme} cannot be read back: it is gone once it was \
                     consumed; file, kafka, nats and redis can"
                );
                return Err(SinkError::new(FailureKind::Misconfigured, message));
            }
        };
        match readback.unreadable() {
            [first, rest @ ..] if rest.len() + 1 >= scope.topics.len() => Err(first.error.clone()),
            _ => Ok(readback),
        }
    }

    /// Scratch topics of the same broker, to measure with. `None` if nothing that is sent there can
    /// be removed again.
    pub fn scratch(&self) -> Result<Option<Box<dyn ScratchSink>>, SinkError> {
        Ok(match self.read().map_err(problem::misconfigured)? {
            SinkOptions::File(options) => Some(Box::new(options.scratch())),
            #[cfg(feature = "http")]
            SinkOptions::Http(_) => None,
            #[cfg(feature = "kafka")]
            SinkOptions::Kafka(options) => Some(Box::new(options.scratch())),
            #[cfg(feature = "nats")]
            SinkOptions::Nats(options) => Some(Box::new(options.scratch())),
            #[cfg(feature = "rabbitmq")]
            SinkOptions::RabbitMq(options) => Some(Box::new(options.scratch())),
            #[cfg(feature = "redis")]
            SinkOptions::Redis(options) => Some(Box::new(options.scratch())),
            SinkOptions::Stdout(_) => None,
        })
    }

    fn read(&self) -> Result<SinkOptions, Vec<Problem>> {
        let mut reader = OptionReader::new(&self.options);
        let (scheme, rest) = self.url.split_once(':').unwrap_or((&self.url, ""));
        let scheme = scheme.to_ascii_lowercase();
        let (options, mut problems) = match scheme.as_str() {
            "file" => {
                let path = file_path(&self.url, rest).map_err(|problem| vec![problem])?;
                let options = file::Options { path };
                let problems = options.problems();
                (SinkOptions::File(options), problems)
            }
            #[cfg(feature = "http")]
            "http" | "https" => {
                let options = http::Options::read(&self.url, &self.pipeline, &mut reader);
                let problems = options.problems();
                (SinkOptions::Http(options), problems)
            }
            #[cfg(feature = "kafka")]
            "kafka" => {
                let options = kafka::Options::read(&self.url, &self.pipeline, &mut reader);
                let problems = options.problems();
                (SinkOptions::Kafka(options), problems)
            }
            #[cfg(feature = "nats")]
            "nats" => {
                let options = nats::Options::read(&self.url, &self.pipeline, &mut reader);
                let problems = options.problems();
                (SinkOptions::Nats(options), problems)
            }
            #[cfg(feature = "rabbitmq")]
            "amqp" | "amqps" => {
                let options = rabbitmq::Options::read(&self.url, &self.pipeline, &mut reader);
                let problems = options.problems();
                (SinkOptions::RabbitMq(options), problems)
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" => {
                let options = redis::Options::read(&self.url, &self.pipeline, &mut reader);
                let problems = options.problems();
                (SinkOptions::Redis(options), problems)
            }
            "stdout" if rest.is_empty() || rest == "//" => {
                let options = stdout::Options::read(&mut reader);
                let problems = options.problems();
                (SinkOptions::Stdout(options), problems)
            }
            "stdout" => {
                let problem = Problem::new("url", "has something after the scheme");
                return Err(vec![problem.with_hint("write stdout:")]);
            }
            _ => return Err(vec![unknown_scheme(&scheme)]),
        };
        problems.extend(reader.finish(&scheme));
        if problems.is_empty() { Ok(options) } else { Err(problems) }
    }
}

impl fmt::Debug for SinkSpec {
    /// Shows the scheme and the names of the options: anything else may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.url.split_once(':').map_or("", |(scheme, _)| scheme);
        f.debug_struct("SinkSpec")
            .field("scheme", &scheme)
            .field("options", &self.options.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// The path of `file:relative/path`, taken as it stands, or of the URL `file:///path`.
fn file_path(url: &str, rest: &str) -> Result<PathBuf, Problem> {
    if !rest.starts_with("//") {
        return Ok(rest.into());
    }
    let hint = "write file:///path/to/events.jsonl or file:events.jsonl";
    let path = Url::parse(url)
        .ok()
        .filter(|url| url.query().is_none() && url.fragment().is_none())
        .and_then(|url| url.to_file_path().ok());
    path.ok_or_else(|| Problem::new("url", "is not the URL of a file").with_hint(hint))
}

fn unknown_scheme(scheme: &str) -> Problem {
    let known = SCHEMES.join(", ");
    if let Some((_, feature)) = FEATURES.iter().find(|(name, _)| *name == scheme) {
        let message = format!("{scheme} is not part of this build");
        return Problem::new("url", message)
            .with_hint(format!("build with `--features {feature}`; this build has {known}"));
    }
    // What is no scheme may be anything, even a secret: it is not shown.
    let is_word = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let message = if is_word && scheme.len() <= 12 {
        format!("there is no sink `{scheme}`")
    } else {
        "does not start with the name of a sink".to_owned()
    };
    Problem::new("url", message).with_hint(match nearest(scheme, SCHEMES.iter().copied()) {
        Some(near) => format!("did you mean {near}: ? This build has {known}"),
        None => format!("this build has {known}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureKind;

    fn spec(url: &str, options: &str) -> SinkSpec {
        SinkSpec { options: options.parse().unwrap(), ..SinkSpec::new(url) }
    }

    fn problems(url: &str, options: &str) -> String {
        let problems = spec(url, options).problems();
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }

    #[test]
    fn what_this_build_has_is_accepted() {
        for url in ["stdout:", "stdout://", "STDOUT:", "file:///tmp/a%20b.jsonl", "file:a/b.jsonl"]
        {
            assert_eq!(problems(url, ""), "", "{url}");
        }
        assert_eq!(
            file_path("file:///tmp/a%20b", "///tmp/a%20b").unwrap(),
            PathBuf::from("/tmp/a b")
        );
        assert_eq!(file_path("file:a%20b", "a%20b").unwrap(), PathBuf::from("a%20b"));
    }

    #[test]
    fn what_it_has_not_says_what_there_is() {
        let cases = [
            #[cfg(not(feature = "redis"))]
            (
                "rediss://u:canary@h",
                "rediss is not part of this build; build with `--features redis`",
            ),
            ("stdot:", "there is no sink `stdot`; did you mean stdout: ?"),
            ("memory:", "there is no sink `memory`; this build has "),
            ("", "does not start with the name of a sink"),
            ("canary-canary-canary", "does not start with the name of a sink"),
            ("stdout:x", "has something after the scheme; write stdout:"),
            ("file://host/a", "is not the URL of a file"),
            ("file:///a?b=canary", "is not the URL of a file"),
            ("file:", "names no file"),
            ("file:///", "names no file"),
        ];
        for (url, expected) in cases {
            let found = problems(url, "");
            assert!(found.contains(expected), "{url}: {found:?} should contain {expected:?}");
            assert!(!found.contains("canary"), "{found}");
        }
    }

    #[test]
    fn options_that_a_sink_does_not_have_are_named() {
        let found = problems("stdout:", "allow_private = true");
        assert!(found.contains("allow_private: unknown option of the stdout sink"), "{found}");
    }

    #[cfg(feature = "http")]
    #[test]
    fn all_mistakes_of_a_spec_come_at_once() {
        let found = problems("http://127.0.0.1/", "alow_private = true\nconcurrency = 0");
        assert!(found.contains("127.0.0.1 is a loopback address"), "{found}");
        assert!(found.contains("concurrency: must be more than zero"), "{found}");
        assert!(found.contains("did you mean `allow_private`?"), "{found}");
        assert_eq!(problems("http://127.0.0.1/", "allow_private = true"), "");
    }

    #[tokio::test]
    async fn a_spec_connects_its_sink() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}/events.jsonl", folder.path().display());
        let sink = spec(&url, "").connect().await.unwrap();
        assert_eq!(sink.capabilities().name, "file");
        let error = spec("file:", "x = 1").connect().await.err().unwrap();
        assert_eq!(error.kind, FailureKind::Misconfigured);
    }

    #[test]
    fn secrets_of_a_spec_are_not_printed() {
        let spec = spec("http://u:canary@h/?canary", "signing_secrets = \"canary\"");
        let shown = format!("{spec:?}");
        assert!(!shown.contains("canary"), "{shown}");
        assert!(shown.contains("http") && shown.contains("signing_secrets"), "{shown}");
    }
}
