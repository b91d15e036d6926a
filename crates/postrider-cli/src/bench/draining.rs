//! What a relay carries: pipelines that run until nothing is pending, or until their time is over.

use std::time::Duration;

use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::relay::RelayError;
use postrider_relay::routing::{Route, Template};
use postrider_relay::scratch::{ScratchDatabase, ScratchName};
use postrider_relay::shutdown::{Shutdown, shutdown};
use postrider_relay::sink::Sink;
use postrider_relay::sinks::MemorySink;
use postrider_relay::source::Source;
use postrider_relay::sources::Mode;
use tokio::time::{Instant, sleep, sleep_until};

use super::target::Reading;
use super::writing::Measured;
use crate::error::{CliError, Code};

/// What is under way when the time is over has so long to end.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How pipelines behave: as configured, but to the scratch topic.
pub(crate) fn options(configured: &Options, name: &ScratchName) -> Options {
    let mut options = configured.clone();
    let topic = Template::parse(&name.topic()).expect("it has no field");
    // What else the route is made of may be lacking in these events.
    options.encoding.route = Route { topic, ..Route::default() };
    options.grace = GRACE;
    options
}

/// A sink that drops whatever comes.
pub(crate) fn nowhere() -> Box<dyn Sink> {
    Box::new(MemorySink::keeping(0))
}

/// When a drain is over.
pub(crate) struct Until {
    /// When so many events are durable.
    pub(crate) expected: u64,
    /// When its time is.
    pub(crate) end: Instant,
    /// When the user has enough. A pipeline is stopped in order even then: what it has under way
    /// must not arrive after the topic was removed.
    pub(crate) interrupt: Shutdown,
}

/// Publishes until nothing is pending, or until its time is over. All of it must have become
/// durable if it was not stopped.
pub(crate) async fn drain(
    source: Box<dyn Source>,
    sink: Box<dyn Sink>,
    options: &Options,
    until: Until,
) -> Result<Measured, CliError> {
    let Until { expected, end, mut interrupt } = until;
    let options = Options { drain: true, ..options.clone() };
    let (stop, shutdown) = shutdown();
    let started = Instant::now();
    let mut running = std::pin::pin!(Pipeline::new("bench", source, sink, options).run(shutdown));
    let mut is_late = false;
    let totals = tokio::select! {
        totals = &mut running => totals,
        () = sleep_until(end) => {
            is_late = true;
            stop.stop();
            running.await
        }
        () = interrupt.requested() => {
            stop.stop();
            drop(running.await);
            return Err(interrupted());
        }
    };
    let totals = totals.map_err(|error| CliError::from(RelayError::Pipeline(error)))?;
    let measured = Measured { count: totals.delivered, time: started.elapsed() };
    if totals.delivered == expected || (is_late && totals.delivered > 0 && totals.parked == 0) {
        return Ok(measured);
    }
    let what = format!("{} of {expected} events were published in time", totals.delivered);
    Err(CliError::new(Code::Failure, what)
        .with_fix("give it more time with --for, or fewer --rows; look at the log for errors"))
}

/// The user has enough.
pub(crate) fn interrupted() -> CliError {
    CliError::new(Code::Partial, "stopped before it was finished")
        .with_fix("run it again: there are no figures of a part")
}

/// Lets a relay get to the server's log, from where the next one goes on.
pub(crate) async fn begin_log(
    database: &dyn ScratchDatabase,
    name: &ScratchName,
    reading: Reading,
    end: Instant,
) -> Result<(), CliError> {
    if reading.mode != Mode::Cdc {
        return Ok(());
    }
    let source = database.source(name, reading.mode, reading.progress).await?;
    let (stop, shutdown) = shutdown();
    let running = Pipeline::new("bench", source, nowhere(), Options::default()).run(shutdown);
    let waiting = async {
        while !database.is_streaming(name).await? {
            if Instant::now() > end {
                let what = "the relay did not get to the server's log in time";
                return Err(CliError::new(Code::Failure, what).with_fix(
                    "look for transactions that stay open, in pg_stat_activity: a slot waits for \
                     them; or give it more time with --for",
                ));
            }
            sleep(LOOK_EVERY).await;
        }
        stop.stop();
        Ok(())
    };
    let (ended, waited) = tokio::join!(running, waiting);
    ended.map_err(|error| CliError::from(RelayError::Pipeline(error)))?;
    waited
}
