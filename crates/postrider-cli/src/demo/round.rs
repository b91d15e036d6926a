//! One round: the whole schedule, with the shop publishing in one way.

use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

use super::broker::{Arrival, Broker};
use super::consumer::Consumer;
use super::counts::Counts;
use super::process::{CONFIG, RelayProcess, ShopProcess};
use super::progress::Progress;
use super::schedule::{Fault, Request, Schedule};
use super::shop::{self, Reply};
use super::{DemoError, Way};

/// The consumer's database, in the directory of the round.
const CONSUMER_DATABASE: &str = "consumer.db";
/// The pause between two requests, in which the relay has a chance to keep up.
const PACE: Duration = Duration::from_millis(20);
/// Longest time for the relay to notice what it is meant to meet.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest time for the relay to publish what is left at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the schedule, with all that belongs to it in a directory of its own.
pub(crate) async fn run(
    way: Way,
    schedule: &Schedule,
    dir: &Path,
    progress: Progress,
) -> Result<Counts, DemoError> {
    std::fs::create_dir(dir)?;
    shop::create_database(&dir.join(shop::DATABASE), way)?;
    let consumer = Consumer::create(&dir.join(CONSUMER_DATABASE), way)?;
    let broker = Broker::start(schedule.broker_faults()).await?;
    let relay = match way {
        Way::Naive => None,
        Way::Postrider => {
            std::fs::write(dir.join(CONFIG), relay_config(&broker.url()))?;
            Some(RelayProcess::start(dir)?)
        }
    };
    let mut round = Round {
        way,
        dir,
        shop: ShopProcess::start(dir, way, &broker.url())?,
        relay,
        broker,
        consumer,
        progress,
    };
    round.play(schedule).await?;
    let arrivals = round.finish().await?;
    Counts::compare(&dir.join(shop::DATABASE), &arrivals, &dir.join(CONSUMER_DATABASE))
}

/// Short times, so that the demo is short; all else is the default.
fn relay_config(broker: &str) -> String {
    let database = shop::DATABASE;
    format!(
        r#"[source]
url = "sqlite:{database}"

[[pipeline]]
name = "orders"

[pipeline.sink]
url = "{broker}"
allow_private = true
timeout = "400ms"

[pipeline.retry]
initial = "50ms"
max = "1s"
"#
    )
}

struct Round<'a> {
    way: Way,
    dir: &'a Path,
    // The children come first: they are gone before the broker is.
    shop: ShopProcess,
    relay: Option<RelayProcess>,
    broker: Broker,
    consumer: Consumer,
    progress: Progress,
}

impl Round<'_> {
    async fn play(&mut self, schedule: &Schedule) -> Result<(), DemoError> {
        let mut outage = false;
        for request in &schedule.requests {
            self.progress.announce(request, outage);
            if request.outage != outage {
                self.change_outage(request.outage).await;
                outage = request.outage;
            }
            self.progress.show(request.number, self.broker.arrivals_count());
            let reply = self.shop.ask(request).await?;
            let expected = match request.fault {
                Some(Fault::CrashBeforeCommit | Fault::CrashAfterCommit) => Reply::Paused,
                Some(Fault::Rollback) => Reply::RolledBack,
                Some(Fault::NoAnswer | Fault::ServerError) | None => Reply::Committed,
            };
            if reply != expected {
                let number = request.number;
                return Err(format!("request {number} was {reply:?}, not {expected:?}").into());
            }
            if reply == Reply::Paused {
                self.crash(request).await?;
            }
            self.consumer.catch_up(&self.broker)?;
            sleep(PACE).await;
        }
        self.change_outage(false).await;
        Ok(())
    }

    async fn change_outage(&self, begins: bool) {
        // The naive shop meets it with its next request; the relay publishes at its own pace.
        if !begins && self.relay.is_some() {
            self.broker.wait_for_refusal(NOTICE_TIMEOUT).await;
        }
        self.broker.set_down(begins);
    }

    /// Kills what runs, at the worst moment, and starts it again.
    async fn crash(&mut self, request: &Request) -> Result<(), DemoError> {
        if let Some(relay) = self.relay.take() {
            if request.fault == Some(Fault::CrashAfterCommit) {
                self.broker.wait_for_request(request.number, NOTICE_TIMEOUT).await;
            }
            relay.kill().await?;
            self.relay = Some(RelayProcess::start(self.dir)?);
        }
        let shop = ShopProcess::start(self.dir, self.way, &self.broker.url())?;
        std::mem::replace(&mut self.shop, shop).kill().await?;
        Ok(())
    }

    /// Gives everything that is under way the time to arrive.
    async fn finish(mut self) -> Result<Vec<Arrival>, DemoError> {
        self.shop.finish().await?;
        if let Some(relay) = self.relay.take() {
            self.progress.wait("kill -9 relay; another one publishes what is left");
            relay.kill().await?;
            RelayProcess::start_drain(self.dir)?.wait(DRAIN_TIMEOUT).await?;
        }
        self.consumer.catch_up(&self.broker)?;
        Ok(self.broker.arrivals_from(0))
    }
}
