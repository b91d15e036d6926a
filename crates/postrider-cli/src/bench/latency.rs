//! How long an event takes from its commit until it is durable at the sink, under a steady load.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use postrider_relay::amounts::percentile;
use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::relay::RelayError;
use postrider_relay::scratch::ScratchWriter;
use postrider_relay::shutdown::{Shutdown, shutdown};
use postrider_relay::sink::{Message, Sink, SinkCapabilities, SinkError};
use postrider_relay::source::Source;
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::draining::interrupted;
use super::events::EventMaker;
use super::findings::rounded;
use crate::error::{CliError, Code};

/// Of so many events the first does not count: connections are made and plans are cached.
const WARM_UP: usize = 10;
/// How long the last events may take.
const ARRIVE_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What was found. People script against it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) events_per_second: f64,
    /// Those that were counted.
    pub(crate) events: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// `None` of fewer than a thousand events, where it would be one of the worst.
    pub(crate) p999_ms: Option<f64>,
}

/// When events became durable.
type Arrivals = Arc<Mutex<HashMap<Uuid, Instant>>>;

fn lock(arrivals: &Arrivals) -> MutexGuard<'_, HashMap<Uuid, Instant>> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes when events are durable at the sink behind it.
struct Watch {
    sink: Box<dyn Sink>,
    arrivals: Arrivals,
}

#[async_trait]
impl Sink for Watch {
    fn capabilities(&self) -> SinkCapabilities {
        self.sink.capabilities()
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        self.sink.check().await
    }

    fn follows_settlements(&self) -> bool {
        self.sink.follows_settlements()
    }

    fn settled(&self, delivered: &[Uuid], set_aside: &[Uuid]) {
        self.sink.settled(delivered, set_aside);
    }

    fn allow_until(&self, until: Option<Instant>) {
        self.sink.allow_until(until);
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let results = self.sink.publish(messages).await;
        let now = Instant::now();
        let mut arrivals = lock(&self.arrivals);
        for (message, result) in messages.iter().zip(&results) {
            if result.is_ok() {
                arrivals.entry(message.event.id()).or_insert(now);
            }
        }
        drop(arrivals);
        results
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        self.sink.close().await
    }
}

/// A steady load.
pub(crate) struct Load {
    pub(crate) events_per_second: f64,
    /// At most so many.
    pub(crate) events: u64,
    pub(crate) end: Instant,
    /// The user has enough.
    pub(crate) interrupt: Shutdown,
}

/// Writes events one by one, each when it is due, while a relay publishes them.
pub(crate) async fn measure(
    source: Box<dyn Source>,
    sink: Box<dyn Sink>,
    options: &Options,
    (writer, maker): (Box<dyn ScratchWriter>, &EventMaker),
    load: Load,
) -> Result<(Latency, u64), CliError> {
    let arrivals = Arrivals::default();
    let sink = Box::new(Watch { sink, arrivals: Arc::clone(&arrivals) });
    let (stop, shutdown) = shutdown();
    let running = Pipeline::new("bench", source, sink, options.clone()).run(shutdown);
    let writing = async {
        let committed = write(writer, maker, &load).await;
        if let Ok(committed) = &committed
            && !load.interrupt.is_requested()
        {
            let deadline = Instant::now() + ARRIVE_MAX;
            while lock(&arrivals).len() < committed.len() && Instant::now() < deadline {
                sleep(LOOK_EVERY).await;
            }
        }
        stop.stop();
        committed
    };
    let (ended, committed) = tokio::join!(running, writing);
    ended.map_err(|error| CliError::from(RelayError::Pipeline(error)))?;
    let committed = committed?;
    if load.interrupt.is_requested() {
        return Err(interrupted());
    }
    let arrivals = lock(&arrivals);
    let micros = committed.iter().map(|(id, at)| {
        // The relay may see a commit before its writer is told.
        arrivals.get(id).map(|arrived| arrived.saturating_duration_since(*at).as_micros() as u64)
    });
    let micros: Option<Vec<u64>> = micros.collect();
    let latency = micros.and_then(|micros| tell(&load, micros)).ok_or_else(|| {
        let what = "not all events of the steady load have arrived";
        CliError::new(Code::Failure, what).with_fix("look at the log for errors of the sink")
    })?;
    Ok((latency, committed.len() as u64))
}

/// Writes until it is time to stop. Answers when each event was committed.
async fn write(
    mut writer: Box<dyn ScratchWriter>,
    maker: &EventMaker,
    load: &Load,
) -> Result<Vec<(Uuid, Instant)>, CliError> {
    let interval = Duration::from_secs_f64(1.0 / load.events_per_second);
    let mut committed = Vec::new();
    let mut due = Instant::now();
    for number in 0..load.events {
        due += interval;
        if (due >= load.end && !committed.is_empty()) || load.interrupt.is_requested() {
            break;
        }
        sleep_until(due).await;
        let event = maker.event(number);
        writer.transact(maker.account(number), std::slice::from_ref(&event)).await?;
        committed.push((event.id(), Instant::now()));
    }
    Ok(committed)
}

/// What the times say; `None` of none.
fn tell(load: &Load, mut micros: Vec<u64>) -> Option<Latency> {
    micros.drain(..micros.len() / WARM_UP);
    micros.sort_unstable();
    let ms = |part: f64| percentile(&micros, part).map(|micros| rounded(micros as f64 / 1000.0));
    Some(Latency {
        events_per_second: rounded(load.events_per_second),
        events: micros.len() as u64,
        p50_ms: ms(0.5)?,
        p99_ms: ms(0.99)?,
        p999_ms: ms(0.999).filter(|_| micros.len() >= 1000),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_events_have_no_worst_thousandth() {
        let (_stop, interrupt) = shutdown();
        let load = Load { events_per_second: 10.0, events: 10_000, end: Instant::now(), interrupt };
        let many = tell(&load, (1..=2000).map(|number| number * 1000).collect()).unwrap();
        assert_eq!((many.events, many.p999_ms), (1800, Some(1999.0)), "the first do not count");
        let few = tell(&load, vec![1000; 20]).unwrap();
        assert_eq!((few.events, few.p50_ms, few.p999_ms), (18, 1.0, None));
        assert!(tell(&load, Vec::new()).is_none());
    }
}
