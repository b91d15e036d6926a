//! Pipelines and relays in this process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider_relay::config::{Config, Environment};
use postrider_relay::pipeline::{Options, Pipeline, PipelineError, Status, Totals};
use postrider_relay::relay::{Outcome, Relay};
use postrider_relay::shutdown::{ShutdownHandle, shutdown};
use postrider_relay::sinks::SinkSpec;
use postrider_relay::source::{SourceError, SourceErrorKind};
use postrider_relay::sources::{Mode, Progress, SourceSpec};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{DEADLINE, Target};

/// The leases of relays that stand by are short, so that a test need not wait long for one to
/// run out.
const LEASE: Duration = Duration::from_secs(2);
const LONG_LEASE: Duration = Duration::from_secs(120);
const CONCURRENCY: usize = 8;

/// The outbox of a database, read by a relay of its own name. Its lease is long, so that it does
/// not run out on a machine that is busy with something else.
pub fn spec(url: &str, progress: Progress) -> SourceSpec {
    static RELAYS: AtomicU32 = AtomicU32::new(0);
    let relay = format!("relay {}", RELAYS.fetch_add(1, Ordering::Relaxed));
    SourceSpec { progress, lease: LONG_LEASE, relay, ..SourceSpec::new(url) }
}

/// The same, read from the log.
pub fn cdc(url: &str) -> SourceSpec {
    SourceSpec { mode: Mode::Cdc, ..spec(url, Progress::Cursor) }
}

/// A pipeline that runs in this process.
pub struct Running {
    stop: ShutdownHandle,
    task: JoinHandle<Result<Totals, PipelineError>>,
    status: watch::Receiver<Status>,
}

impl Running {
    /// Connects once and runs a pipeline with the default options.
    pub async fn start(spec: &SourceSpec, target: &Target) -> Self {
        Self::start_with(spec, target, Options::default()).await
    }

    /// The same with other options.
    pub async fn start_with(spec: &SourceSpec, target: &Target, options: Options) -> Self {
        let pipeline = pipeline(spec, target.url(), &options).await;
        let pipeline = pipeline.expect("the outbox can be opened");
        let status = pipeline.status();
        let (stop, shutdown) = shutdown();
        Self { stop, status, task: tokio::spawn(pipeline.run(shutdown)) }
    }

    /// The same, connected anew whenever the lease is lost, as a relay does.
    pub async fn start_lasting(spec: &SourceSpec, target: &Target, options: Options) -> Self {
        let (spec, url) = (spec.clone(), target.url());
        let first = pipeline(&spec, url.clone(), &options).await.expect("the outbox can be opened");
        let (told, status) = watch::channel(Status::default());
        let (stop, shutdown) = shutdown();
        let task = tokio::spawn(async move {
            let mut next: Result<_, SourceError> = Ok(first);
            loop {
                let ended = match next {
                    Ok(pipeline) => {
                        let mut status = pipeline.status();
                        let running = pipeline.run(shutdown.clone());
                        let telling = async {
                            while status.changed().await.is_ok() {
                                told.send_replace(status.borrow_and_update().clone());
                            }
                        };
                        tokio::join!(running, telling).0
                    }
                    Err(error) => Err(error.into()),
                };
                match ended {
                    Err(PipelineError::LeaseLost(_)) => {}
                    Err(PipelineError::Source(error)) if is_passing(&error) => {
                        let source_trouble = Some(error.to_string());
                        told.send_modify(|status| status.source_trouble = source_trouble);
                        sleep(Duration::from_millis(50)).await;
                    }
                    ended => return ended,
                }
                next = pipeline(&spec, url.clone(), &options).await;
            }
        });
        Self { stop, status, task }
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until it stands so.
    pub async fn until(&mut self, what: &str, condition: impl FnMut(&Status) -> bool) {
        let waited = timeout(DEADLINE, self.status.wait_for(condition)).await;
        let waited = waited.unwrap_or_else(|_| panic!("{what}: did not happen in time"));
        let waited = waited.map(drop);
        waited.unwrap_or_else(|_| panic!("{what}: the pipeline ended before"));
    }

    /// Stops it in order.
    pub async fn stop(self) -> Totals {
        self.stop.stop();
        self.ended().await.expect("a stop is orderly")
    }

    /// Waits until it ends by itself.
    pub async fn ended(self) -> Result<Totals, PipelineError> {
        let ended = timeout(DEADLINE, self.task).await;
        ended.expect("the pipeline ends in time").expect("it does not panic")
    }

    /// Ends it as a crash does.
    pub async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

async fn pipeline(
    spec: &SourceSpec,
    url: String,
    options: &Options,
) -> Result<Pipeline, SourceError> {
    let source = spec.connect().await?;
    let given = http_options().parse().expect("the options are TOML");
    let sink = SinkSpec { options: given, ..SinkSpec::new(url) };
    let sink = sink.connect().await.expect("the sink can be opened");
    let options = Options { ordering: spec.ordering, ..options.clone() };
    Ok(Pipeline::new(&spec.pipeline, source, sink, options))
}

/// The options of a sink that goes to a [`Target`].
fn http_options() -> String {
    format!("allow_private = true\nconcurrency = {CONCURRENCY}")
}

fn is_passing(error: &SourceError) -> bool {
    matches!(error.kind, SourceErrorKind::Held | SourceErrorKind::Unavailable)
}

/// One pipeline of a relay, as its configuration has it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The database.
    pub url: String,
    /// Where events go, for each pipeline by name.
    pub pipelines: Vec<(String, String)>,
    /// What else is said of the sinks, in TOML.
    pub sink_options: String,
    /// How events are read.
    pub mode: Mode,
    /// How progress is kept.
    pub progress: Progress,
    /// `key` or `none`.
    pub ordering: &'static str,
    /// Into how many shards the keys are divided.
    pub shards: u32,
    /// How long a lease runs.
    pub lease: Duration,
    /// Most events in a window.
    pub window: usize,
}

impl Setup {
    /// One pipeline of one shard with short leases.
    pub fn new(url: impl Into<String>, target: &Target, progress: Progress) -> Self {
        Self::to(target.url(), http_options(), url, progress)
    }

    /// The same with any sink, by its URL and its other options in TOML.
    pub fn to(
        sink: impl Into<String>,
        sink_options: impl Into<String>,
        url: impl Into<String>,
        progress: Progress,
    ) -> Self {
        Self {
            url: url.into(),
            pipelines: vec![("default".to_owned(), sink.into())],
            sink_options: sink_options.into(),
            mode: Mode::Poll,
            progress,
            ordering: "key",
            shards: 1,
            lease: LEASE,
            window: 1024,
        }
    }

    /// The text of the configuration.
    pub fn text(&self) -> String {
        let Self { url, sink_options, progress, ordering, shards, window, .. } = self;
        let lease = self.lease.as_millis();
        let mode = match self.mode {
            Mode::Cdc => "cdc",
            Mode::Poll => "poll",
        };
        let pipeline = |(name, sink): &(String, String)| {
            format!(
                "
[[pipeline]]
name = {name:?}
mode = {mode:?}
progress = \"{progress}\"
ordering = {ordering:?}
shards = {shards}
lease = \"{lease}ms\"
grace = \"5s\"
window = {{ events = {window} }}
retry = {{ initial = \"50ms\", max = \"1s\", attempts = 100 }}

[pipeline.sink]
url = {sink:?}
{sink_options}
"
            )
        };
        let pipelines: String = self.pipelines.iter().map(pipeline).collect();
        format!("[source]\nurl = {url:?}\n{pipelines}")
    }

    fn config(&self) -> Config {
        let config = Config::parse(&self.text(), "postrider.toml", &Environment::default());
        config.unwrap_or_else(|problems| panic!("{problems}"))
    }
}

/// A relay in this process, which stands by whenever it has to.
pub struct StandingBy {
    stop: ShutdownHandle,
    task: JoinHandle<Vec<Outcome>>,
}

impl StandingBy {
    /// Starts it. It connects when it can.
    pub fn start(setup: &Setup) -> Self {
        let (stop, shutdown) = shutdown();
        let task = tokio::spawn(Relay::new(setup.config()).run(shutdown));
        Self { stop, task }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Stops it. Answers what became of each pipeline.
    pub async fn stop(self) -> Vec<Outcome> {
        self.stop.stop();
        self.ended().await
    }

    /// Waits until all its pipelines have ended by themselves.
    pub async fn ended(self) -> Vec<Outcome> {
        let ended = timeout(DEADLINE, self.task).await;
        ended.expect("the relay ends in time").expect("it does not panic")
    }
}
