//! A relay: runs all pipelines of a configuration, in this process, until it is told to stop.
//!
//! Pipelines are independent. Each connects on its own and keeps trying while its database or
//! sink is unavailable, so a relay can be started before them, or as a standby that takes over
//! when another relay lets go of the outbox. When one fails for good, the others go on, and the
//! failure is logged with what to do about it. The relay ends when all of them have, and hands the
//! failures to its caller.
//!
//! # Shards
//!
//! A pipeline with `shards = n` is run as `n` parts, each of which has a part of the keys, a lease,
//! a source, a sink and a share of the window of its own. So the parts of one pipeline can be with
//! several relays. A part whose lease was lost, or handed over to a relay that has fewer, stands
//! by: it tries to connect until the lease can be had again. A part that fails for good fails the
//! pipeline when it ends; the other parts go on until then.
//!
//! With [`drain`](crate::pipeline::Options::drain) a part ends once nothing is pending *and* it had
//! the lease to find that out: while another relay has it, it stands by.
//!
//! ```no_run
//! use postrider_relay::config::{Config, Environment};
//! use postrider_relay::{relay::Relay, shutdown::shutdown};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let text = std::fs::read_to_string("postrider.toml")?;
//! let config = Config::parse(&text, "postrider.toml", &Environment::of_process())?;
//! let (stop, shutdown) = shutdown();
//! let relay = tokio::spawn(Relay::new(config).run(shutdown));
//! // … the application's own work …
//! stop.stop();
//! for outcome in relay.await? {
//!     println!("{}: {:?}", outcome.name, outcome.result);
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tracing::{error, info};

use self::beside::{Beside, Upkeep};
use self::shard::ShardPlan;
use crate::config::{Config, PipelineConfig, SourceConfig};
use crate::failure::SinkError;
use crate::hint::Hint;
use crate::pauses::{Known, PauseWatch};
use crate::pipeline::decision::random_jitter;
use crate::pipeline::{Ordering, Pipeline, PipelineError, Totals};
use crate::reconcile;
use crate::reconcile::schedule::Net;
use crate::shutdown::{self, Shutdown};
use crate::source::SourceError;
use crate::telemetry::Telemetry;
use crate::telemetry::watched::Watched;

mod beside;
mod shard;
#[cfg(test)]
mod tests;

/// How long is waited at the end for what goes on beside the pipelines.
const BESIDE_GRACE: Duration = Duration::from_secs(2);

/// Pipelines that run side by side.
pub struct Relay {
    /// By which other relays know this one.
    name: String,
    plans: Vec<Plan>,
    hint: Hint,
    beside: Option<Box<Beside>>,
    telemetry: Arc<Telemetry>,
}

/// A pipeline that is yet to run.
enum Plan {
    /// It is connected when the relay starts.
    Configured(Box<(SourceConfig, PipelineConfig)>),
    Connected(Box<Pipeline>),
}

/// What a pipeline's shard does until its end.
type Part = BoxFuture<'static, Result<Totals, RelayError>>;
/// The same with what is known of it meanwhile.
type WatchedPart = (Arc<Watched>, Part);

/// What became of one pipeline.
#[derive(Debug)]
pub struct Outcome {
    /// The pipeline's name.
    pub name: String,
    /// What it has done, or why it ended before it was told to. Of several shards that failed it
    /// is the first.
    pub result: Result<Totals, RelayError>,
}

/// Why a pipeline of a relay ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The relay cannot listen for hints.
    #[error("cannot listen for hints at {address}: {source}")]
    Hint {
        /// Where it should.
        address: SocketAddr,
        /// What the system says.
        source: Arc<io::Error>,
    },
    /// The relay cannot serve its pages.
    #[error("cannot listen for HTTP at {address}: {source}")]
    Http {
        /// Where it should.
        address: SocketAddr,
        /// What the system says.
        source: Arc<io::Error>,
    },
    /// The outbox cannot be opened.
    #[error("cannot open the outbox: {0}")]
    Source(#[source] SourceError),
    /// The sink cannot be opened.
    #[error("cannot open the sink: {0}")]
    Sink(#[source] SinkError),
    /// It stopped while it ran.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// It panicked.
    #[error("the pipeline panicked; this is a bug in postrider")]
    Panicked,
}

impl RelayError {
    /// What the operator can do.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Hint { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Some(
                "another relay on this host may have the address: give each one of its own, and \
                 send the hint to all",
            ),
            Self::Hint { .. } => Some("write an address of this host: hint = \"127.0.0.1:8788\""),
            Self::Http { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Some(
                "another process has the address: give each relay one of its own, with `listen` \
                 in [http] or with --listen; port 0 takes one that is free",
            ),
            Self::Http { .. } => Some("write an address of this host: listen = \"127.0.0.1:8787\""),
            Self::Source(error) => error.hint.as_deref(),
            Self::Sink(_) => None,
            Self::Pipeline(error) => error.hint(),
            Self::Panicked => Some("report it, with the log"),
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.plans.iter().map(Plan::name)).finish()
    }
}

impl Relay {
    /// A relay with the pipelines of a configuration.
    pub fn new(config: Config) -> Self {
        let Config { source, pipelines, prune, reconcile, alarms, http } = config;
        // A drain is soon over, and leaves the outbox as such to a relay that stays.
        let stays = pipelines.iter().any(|pipeline| !pipeline.options.drain);
        let net = reconcile.map(|config| Net {
            source: source.clone(),
            config,
            aggregate_types: reconcile::aggregate_types(&pipelines),
        });
        let upkeep = stays.then_some(Upkeep { prune, net });
        let alarms = alarms.filter(|_| stays);
        let plan = |pipeline| Plan::Configured(Box::new((source.clone(), pipeline)));
        let plans = pipelines.into_iter().map(plan).collect();
        let beside = Some(Box::new(Beside { source, http, alarms, upkeep }));
        Self { beside, ..Self::with_plans(plans) }
    }

    /// A relay with pipelines that are connected already. One whose lease is handed over or lost
    /// ends: only its caller can connect it anew.
    pub fn of(pipelines: Vec<Pipeline>) -> Self {
        let plan = |pipeline: Pipeline| Plan::Connected(pipeline.into());
        Self::with_plans(pipelines.into_iter().map(plan).collect())
    }

    fn with_plans(plans: Vec<Plan>) -> Self {
        let telemetry = Arc::default();
        Self { name: own_name(), plans, hint: Hint::new(), beside: None, telemetry }
    }

    /// Lets the sources that this relay connects wait for a hint that somebody else has, too.
    #[must_use]
    pub fn with_hint(self, hint: Hint) -> Self {
        Self { hint, ..self }
    }

    /// The hint for which the sources that this relay connects wait: an application in the same
    /// process gives it after a commit.
    pub fn hint(&self) -> Hint {
        self.hint.clone()
    }

    /// What is known of the relay while it runs: metrics and probes, also without `[http]`.
    pub fn telemetry(&self) -> Arc<Telemetry> {
        self.telemetry.clone()
    }

    /// Runs all pipelines until each has ended, by a stop or by itself. Answers what became of
    /// each, in the order they were given.
    pub async fn run(self, shutdown: Shutdown) -> Vec<Outcome> {
        let Self { name, plans, hint, beside, telemetry } = self;
        let (stop_beside, until_stopped) = shutdown::shutdown();
        let (known, paused) = watch::channel(Known::default());
        let mut tasks = match beside {
            None => JoinSet::new(),
            Some(beside) => match beside.start(&hint, &telemetry, known, until_stopped).await {
                Ok(tasks) => tasks,
                Err(cannot) => {
                    let outcome =
                        |plan: &Plan| Outcome { name: plan.name(), result: Err(cannot.to_error()) };
                    return plans.iter().map(outcome).collect();
                }
            },
        };
        let names: Vec<String> = plans.iter().map(Plan::name).collect();
        let parts = |plan: Plan| {
            let pauses = PauseWatch::new(&plan.name(), paused.clone());
            (plan.name(), plan.into_parts(&names, &name, &hint, pauses, &shutdown))
        };
        let pipelines: Vec<_> = plans.into_iter().map(parts).collect();
        for (watched, _) in pipelines.iter().flat_map(|(_, parts)| parts) {
            telemetry.watch(watched);
        }
        let outcomes = run_side_by_side(pipelines).await;
        stop_beside.stop();
        let rest = async { while tasks.join_next().await.is_some() {} };
        // What then still is under way is one transaction, which happens or not.
        drop(tokio::time::timeout(BESIDE_GRACE, rest).await);
        outcomes
    }
}

impl Plan {
    fn name(&self) -> String {
        match self {
            Self::Configured(configured) => configured.1.name.clone(),
            Self::Connected(pipeline) => pipeline.name().to_owned(),
        }
    }

    fn into_parts(
        self,
        companions: &[String],
        relay: &str,
        hint: &Hint,
        pauses: PauseWatch,
        shutdown: &Shutdown,
    ) -> Vec<WatchedPart> {
        let shutdown = shutdown.clone();
        match self {
            Self::Connected(pipeline) => {
                let watched = Watched::new(pipeline.name(), 0, pipeline.counters());
                watched.runs(pipeline.status());
                vec![(watched.into(), async move { Ok(pipeline.run(shutdown).await?) }.boxed())]
            }
            Self::Configured(configured) => {
                let (source, config) = *configured;
                log_start(&source, &config, relay);
                let shards =
                    ShardPlan::all(&source, &config, companions, relay, hint, &pauses).into_iter();
                let part =
                    |shard: ShardPlan| (shard.watched.clone(), shard.run(shutdown.clone()).boxed());
                shards.map(part).collect()
            }
        }
    }
}

/// Runs the parts of pipelines until each has ended.
async fn run_side_by_side(pipelines: Vec<(String, Vec<WatchedPart>)>) -> Vec<Outcome> {
    let mut tasks = JoinSet::new();
    let mut parts_by_task: HashMap<Id, (usize, Arc<Watched>)> = HashMap::new();
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (index, (name, parts)) in pipelines.into_iter().enumerate() {
        outcomes.push(Outcome { name, result: Ok(Totals::default()) });
        for (watched, part) in parts {
            parts_by_task.insert(tasks.spawn(part).id(), (index, watched));
        }
    }
    while let Some(ended) = tasks.join_next_with_id().await {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            Err(panic) => (panic.id(), Err(RelayError::Panicked)),
        };
        let (index, watched) = &parts_by_task[&id];
        watched.ended(&result);
        // The last failure is in the caller's hands at once: once is enough.
        outcomes[*index].add(result, tasks.is_empty());
    }
    outcomes
}

impl Outcome {
    /// Adds what became of one of the pipeline's parts, and logs its failure unless it is the last
    /// thing to happen.
    fn add(&mut self, result: Result<Totals, RelayError>, is_last: bool) {
        match (&mut self.result, result) {
            (Ok(totals), Ok(more)) => *totals += more,
            (Err(_), Ok(_)) => {}
            // What ails all shards is said once.
            (Err(first), Err(error)) if first.to_string() == error.to_string() => {}
            (first, Err(error)) => {
                if !is_last || first.is_err() {
                    let (pipeline, hint) = (&self.name, error.hint());
                    error!(pipeline, %error, hint, "the pipeline failed");
                }
                if first.is_ok() {
                    *first = Err(error);
                }
            }
        }
    }
}

fn log_start(source: &SourceConfig, config: &PipelineConfig, relay: &str) {
    info!(
        pipeline = config.name,
        source = %source.url,
        table = %source.table,
        sink = %config.sink_url,
        progress = config.progress.as_str(),
        ordering = match config.options.ordering {
            Ordering::Key => "key",
            Ordering::None => "none",
        },
        shards = config.shards,
        relay,
        "starting"
    );
}

/// A name that no other relay has, and that tells an operator where to look.
fn own_name() -> String {
    let host = gethostname::gethostname();
    // A process is not alone with its number: in a container it is 1.
    format!("{}-{}-{:08x}", host.to_string_lossy(), std::process::id(), random_jitter() as u32)
}
