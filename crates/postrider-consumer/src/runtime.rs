//! Joins a subscription to the handlers.
//!
//! # Design
//!
//! One task owns the [lanes](lanes): it receives, hands batches to workers, and takes back what
//! they have done. Deliveries are acknowledged by a task of its own, after their transaction was
//! committed. A crash before the acknowledgement delivers them again, as duplicates; a crash
//! before the commit as new ones.
//!
//! - **Bounded**: what was received and is not done with is at most the window. A key whose handler
//!   fails keeps its later events in its lane until it succeeds or the event is a dead letter, so a
//!   poison event holds up its key, for a time that is bounded, and nothing else, unless so much
//!   comes of its key meanwhile that it fills the window.
//! - **A broker that is away** is asked again after a pause; a mistake that only somebody can mend
//!   ends the run.
//! - **A database that is away** counts against no event.
//! - **A stop**: nothing is received any more, work that has begun may end within the grace time,
//!   what has not begun is given back to the broker.

mod lanes;
mod work;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};
use tokio::time::{sleep, sleep_until, timeout_at};

use self::lanes::{Item, Lanes};
use self::work::{Ended, work};
use crate::consumer::{ConsumerError, Options};
use crate::database::Database;
use crate::decoding;
use crate::processor::Processor;
use crate::subscription::{Received, Subscription, SubscriptionError};

/// How long a broker that is away is left alone.
const BROKER_PAUSE: Duration = Duration::from_millis(500);
/// How long is waited at the end for the broker.
const CLOSE_GRACE: Duration = Duration::from_secs(3);
/// How often claims are looked through for old ones.
pub(crate) const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// Claims that are removed in one transaction.
pub(crate) const PRUNE_BATCH: u32 = 5_000;
/// The pause between looks at what the broker has given to others.
const LOST_EVERY: Duration = Duration::from_secs(1);

/// Runs until it is told to stop, or cannot go on.
pub(crate) async fn run<D: Database, S: Subscription>(
    processor: Arc<Processor<D>>,
    subscription: Arc<S>,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ConsumerError> {
    let (acknowledge, acknowledged) = mpsc::unbounded_channel();
    // They end with this, also if nobody waits for it any longer.
    let (mut acknowledging, mut upkeep) = (JoinSet::new(), JoinSet::new());
    acknowledging.spawn(acknowledge_all(Arc::clone(&subscription), acknowledged));
    upkeep.spawn(prune(Arc::clone(&processor), options.retention));
    let mut running = Running {
        processor,
        subscription: Arc::clone(&subscription),
        options,
        lanes: Lanes::new(),
        workers: JoinSet::new(),
        at_work: HashMap::new(),
        upkeep,
        acknowledge,
    };
    let ended = running.until(shutdown).await;
    running.finish().await;
    // What is not acknowledged or given back comes again: a broker that is silent holds up no stop.
    let deadline = (Instant::now() + CLOSE_GRACE).into();
    let _ = timeout_at(deadline, running.give_back()).await;
    drop(running);
    let _ = timeout_at(deadline, acknowledging.join_next()).await;
    let _ = timeout_at(deadline, subscription.close()).await;
    ended
}

struct Running<D: Database, S: Subscription> {
    processor: Arc<Processor<D>>,
    subscription: Arc<S>,
    options: Options,
    lanes: Lanes<S::Handle>,
    workers: JoinSet<Vec<Ended<S::Handle>>>,
    /// What each worker works on, where the broker wants to hear of it.
    at_work: HashMap<task::Id, Vec<S::Handle>>,
    /// Tasks that nobody waits for.
    upkeep: JoinSet<()>,
    acknowledge: mpsc::UnboundedSender<Vec<S::Handle>>,
}

impl<D: Database, S: Subscription> Running<D, S> {
    async fn until(&mut self, shutdown: impl Future<Output = ()>) -> Result<(), ConsumerError> {
        let mut shutdown = pin!(shutdown);
        let subscription = Arc::clone(&self.subscription);
        let receive = |max: usize, pause: bool| {
            let subscription = Arc::clone(&subscription);
            Box::pin(async move {
                if pause {
                    sleep(BROKER_PAUSE).await;
                }
                subscription.receive(max).await
            })
        };
        let mut receiving = None;
        let mut is_away = false;
        let mut tick_at = Instant::now() + LOST_EVERY;
        let mut extended_at = Instant::now();
        loop {
            // It may be known only after the broker was reached.
            let extend_at =
                subscription.visibility().map(|visibility| extended_at + visibility / 3);
            self.lanes.wake(Instant::now());
            self.start();
            let room = self.options.window.saturating_sub(self.lanes.count());
            if receiving.is_none() && room > 0 {
                receiving = Some(receive(room, is_away));
            }
            let due = self.lanes.next_due().into_iter().chain([tick_at]).chain(extend_at).min();
            let due = due.expect("there is a tick");
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                Some(ended) = self.workers.join_next_with_id() => {
                    self.take_back(ended.map_err(ConsumerError::Worker)?);
                }
                received = async { receiving.as_mut().expect("it is looked at first").await },
                    if receiving.is_some() =>
                {
                    receiving = None;
                    is_away = self.take_in(received)?;
                }
                () = sleep_until(due.into()) => {
                    let now = Instant::now();
                    if now >= tick_at {
                        tick_at = now + LOST_EVERY;
                        let subscription = &self.subscription;
                        self.lanes.remove_if(|handle| subscription.is_lost(handle));
                    }
                    if extend_at.is_some_and(|at| now >= at) {
                        extended_at = now;
                        self.extend();
                    }
                }
            }
            self.processor.metrics.set_in_flight(self.lanes.count());
        }
    }

    /// Gives work to workers that are free.
    fn start(&mut self) {
        while self.workers.len() < self.options.concurrency && self.lanes.has_ready() {
            let batch = self.lanes.take(self.options.batch);
            let items = batch.iter().flat_map(|(_, items)| items);
            let at_work: Vec<_> = match self.subscription.visibility() {
                Some(_) => items.map(|item| item.handle.clone()).collect(),
                None => Vec::new(),
            };
            let (processor, retry) = (Arc::clone(&self.processor), self.options.retry);
            let worker = self.workers.spawn(async move { work(&processor, &retry, batch).await });
            self.at_work.insert(worker.id(), at_work);
        }
    }

    fn take_back(&mut self, (worker, ended): (task::Id, Vec<Ended<S::Handle>>)) {
        self.at_work.remove(&worker);
        let mut done = Vec::new();
        for Ended { key, done: of_key, left, again } in ended {
            self.lanes.put_back(key, of_key.len(), left, again);
            done.extend(of_key);
        }
        if !done.is_empty() {
            // Its receiver ends after this.
            let _ = self.acknowledge.send(done);
        }
    }

    /// Takes in what was received; answers whether the broker is away.
    fn take_in(
        &mut self,
        received: Result<Vec<Received<S::Handle>>, SubscriptionError>,
    ) -> Result<bool, ConsumerError> {
        let received = match received {
            Ok(received) => received,
            Err(error) if error.is_final => return Err(ConsumerError::Subscription(error)),
            Err(error) => {
                let (consumer, broker) = (&self.processor.consumer, self.subscription.name());
                let cause = error.source.as_ref().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(%consumer, broker, %error, cause, "nothing can be received; trying again");
                return Ok(true);
            }
        };
        self.processor.metrics.received(received.len());
        for Received { handle, incoming } in received {
            let (event, undecodable) = match decoding::decode(&incoming) {
                Ok(event) => (event, None),
                Err(error) => {
                    let why = format!("{error}, at {}", incoming.place);
                    (decoding::unknown(&incoming), Some(why))
                }
            };
            // A panic is met again where it counts.
            let version = self.processor.version(&event).unwrap_or_default();
            let (attempts, waits_since, is_revived) = (0, None, incoming.is_revived);
            self.lanes.push(Item {
                handle,
                event,
                attempts,
                undecodable,
                version,
                waits_since,
                is_revived,
            });
        }
        Ok(false)
    }

    /// Tells the broker what is still under way.
    fn extend(&mut self) {
        let at_work = self.at_work.values().flatten();
        let handles: Vec<_> = self.lanes.handles().chain(at_work).cloned().collect();
        let subscription = Arc::clone(&self.subscription);
        while self.upkeep.try_join_next().is_some() {}
        self.upkeep.spawn(async move {
            if let Err(error) = subscription.extend(&handles).await {
                tracing::warn!(broker = subscription.name(), %error, "what is worked on was not extended");
            }
        });
    }

    /// Lets work that has begun end.
    async fn finish(&mut self) {
        let deadline = (Instant::now() + self.options.grace).into();
        while let Ok(Some(ended)) = timeout_at(deadline, self.workers.join_next_with_id()).await {
            if let Ok(ended) = ended {
                self.take_back(ended);
            }
        }
        self.workers.abort_all();
    }

    /// Gives back what is not done with.
    async fn give_back(&mut self) {
        // All at once, so that those of one key come again in their order.
        let mut left: Vec<_> = self.at_work.drain().flat_map(|(_, handles)| handles).collect();
        left.extend(self.lanes.remove_if(|_| true));
        if let Err(error) = self.subscription.release(left).await {
            tracing::warn!(broker = self.subscription.name(), %error, "deliveries come again later");
        }
    }
}

/// Acknowledges what is done with, as much at once as there is.
async fn acknowledge_all<S: Subscription>(
    subscription: Arc<S>,
    mut done: mpsc::UnboundedReceiver<Vec<S::Handle>>,
) {
    while let Some(mut handles) = done.recv().await {
        while let Ok(more) = done.try_recv() {
            handles.extend(more);
        }
        // What is not acknowledged comes again, as a duplicate.
        if let Err(error) = subscription.acknowledge(handles).await {
            tracing::warn!(broker = subscription.name(), %error, "deliveries were not acknowledged");
        }
    }
}

/// Removes claims that are older than the retention, from time to time.
async fn prune<D: Database>(processor: Arc<Processor<D>>, retention: Duration) {
    loop {
        match prune_once(&processor, retention).await {
            Ok(removed) if removed >= u64::from(PRUNE_BATCH) => continue,
            Ok(_) => {}
            Err(error) => {
                let consumer = &processor.consumer;
                tracing::warn!(%consumer, %error, "old claims were not removed; trying again later");
            }
        }
        sleep(PRUNE_EVERY).await;
    }
}

/// Removes one batch of them; answers how many these were.
pub(crate) async fn prune_once<D: Database>(
    processor: &Processor<D>,
    retention: Duration,
) -> Result<u64, postrider::WriteError> {
    let mut tx = processor.database.begin().await?;
    let removed = D::prune(&mut tx, &processor.consumer, retention, PRUNE_BATCH).await?;
    D::commit(tx).await?;
    Ok(removed)
}
