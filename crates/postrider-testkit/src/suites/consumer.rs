//! What a consumer must do with every broker: each event has its effect once, in the order of its
//! key, whoever crashes when.

mod crashes;
mod effects;
mod failures;
mod ledger;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::{Event, EventType, Outbox};
use postrider_consumer::{
    Consumer, ConsumerError, Counts, Metrics, Received, Redelivery, Retry, Subscription,
    SubscriptionError,
};
use postrider_relay::formats::Format;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use self::ledger::Ledger;
use super::Case;

/// The longest time for something that is to happen.
const DEADLINE: Duration = Duration::from_secs(90);

/// A topic, stream or queue that was made for one case.
#[async_trait]
pub trait TestTopic: Send + Sync {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Lets a group get what is published from now on.
    async fn add_group(&self, group: &str);

    /// Publishes an event in the format `payload`, as often as it is called.
    async fn publish(&self, events: &[Event]);

    /// Publishes what is no event.
    async fn publish_garbage(&self, body: &[u8]);

    /// Publishes by the relay's own sink.
    async fn relay(&self, event: Event, format: Format);

    /// Consumes as a member of a group.
    fn consume(&self, group: &str, work: Work) -> Consuming;
}

/// What a broker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A delivery that takes too long goes to somebody else, unless it is extended.
    pub has_visibility: bool,
    /// The relay publishes to it.
    pub is_relayed: bool,
    /// It tells for how long it may deliver an event again.
    pub knows_redelivery: bool,
    /// Several members of a group keep the order of a key: each has keys of its own.
    pub keeps_order_in_group: bool,
    /// What is published twice is delivered twice.
    pub repeats: bool,
}

/// A topic, and the database of its consumers.
pub struct Subject {
    /// The topic.
    pub topic: Box<dyn TestTopic>,
    /// What its consumers write to.
    pub ledger: Ledger,
}

/// What a handler does after it has written its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// It succeeds.
    Succeed,
    /// It fails with an error.
    Fail,
    /// It says that no attempt can succeed.
    Reject,
    /// It panics.
    Panic,
    /// It panics before it has begun to wait for anything.
    PanicAtOnce,
    /// It does not mind that a statement of its transaction has failed.
    Swallow,
    /// It breaks a constraint that is looked at when the transaction is committed.
    BreakLater,
    /// It never ends.
    Hang,
    /// It takes so long.
    Take(Duration),
}

/// How a consumer works in a case.
#[derive(Clone)]
pub struct Work {
    /// Its name.
    pub consumer: String,
    /// Its database.
    pub pool: PgPool,
    /// What its handler does with an event.
    pub act: Arc<dyn Fn(&Event) -> Act + Send + Sync>,
    /// When it is tried again.
    pub retry: Retry,
    /// How many events share a transaction.
    pub batch: usize,
    /// Acknowledgements are lost on their way.
    pub loses_acknowledgements: bool,
    /// For how long claims are kept.
    pub retention: Duration,
    /// Payments are handled by their numbers, and none before one that is missing.
    pub refuses_gaps: bool,
}

impl Work {
    /// Succeeds with everything.
    pub fn new(consumer: &str, ledger: &Ledger) -> Self {
        Self {
            consumer: consumer.to_owned(),
            pool: ledger.pool(),
            act: Arc::new(|_| Act::Succeed),
            retry: Retry {
                attempts_max: 4,
                pause_min: Duration::from_millis(10),
                pause_max: Duration::from_millis(40),
            },
            batch: 16,
            loses_acknowledgements: false,
            retention: Duration::MAX,
            refuses_gaps: false,
        }
    }

    /// Does this with events.
    pub fn acting(self, act: impl Fn(&Event) -> Act + Send + Sync + 'static) -> Self {
        Self { act: Arc::new(act), ..self }
    }
}

/// A payment: what events are about.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Paid {
    /// The account.
    pub account: String,
    /// Which one of the account it is, from 1.
    pub number: u32,
    /// How much.
    pub cents: i64,
}

impl EventType for Paid {
    const EVENT_TYPE: &'static str = "Paid";
}

impl Paid {
    /// The event.
    pub fn event(account: &str, number: u32, cents: i64) -> Event {
        let paid = Self { account: account.to_owned(), number, cents };
        let event = Event::builder("Account", account, "Paid").json(&paid).build();
        event.expect("the event is valid")
    }

    /// Which one of its account an event is.
    fn number_in(event: &Event) -> Option<u64> {
        let paid: Self = serde_json::from_slice(event.payload()).ok()?;
        Some(paid.number.into())
    }
}

/// A consumer at work. It crashes if this is dropped.
pub struct Consuming {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), ConsumerError>>,
    metrics: Arc<Metrics>,
}

impl Consuming {
    /// Starts one on a subscription.
    pub fn start<S: Subscription>(subscription: S, work: Work) -> Self {
        let (stop, stopped) = oneshot::channel();
        let Work { consumer: name, pool, act, retry, batch, .. } = work;
        let Work { loses_acknowledgements, retention, refuses_gaps, .. } = work;
        let subscription = Faulty { inner: subscription, loses_acknowledgements };
        let of_handler = name.clone();
        let mut consumer = Consumer::new(name, pool, subscription)
            .retry(retry)
            .batch(batch)
            .retention(retention)
            .concurrency(4)
            .on::<Paid>(move |tx, paid| {
                let (act, consumer) = (Arc::clone(&act), of_handler.clone());
                let act = act(&paid.event);
                assert_ne!(act, Act::PanicAtOnce, "the till was never there");
                Box::pin(async move {
                    ledger::apply(tx, &consumer, &paid.event, &paid.payload).await?;
                    let told = Event::builder("Receipt", &paid.account, "Receipt")
                        .header("of", paid.event.id().to_string())
                        .build()?;
                    Outbox::new().publish(tx, &told).await?;
                    match act {
                        Act::Succeed | Act::PanicAtOnce => Ok(()),
                        Act::Swallow => {
                            let _ = sqlx::query("SELECT 1 / 0").execute(&mut **tx).await;
                            Ok(())
                        }
                        Act::BreakLater => Ok(ledger::break_later(tx).await?),
                        Act::Fail => Err("the till is stuck".into()),
                        Act::Reject => {
                            Err(postrider_consumer::Rejected("no such account".to_owned()).into())
                        }
                        Act::Panic => panic!("the till is on fire"),
                        Act::Hang => std::future::pending().await,
                        Act::Take(time) => {
                            tokio::time::sleep(time).await;
                            Ok(())
                        }
                    }
                })
            });
        if refuses_gaps {
            consumer = consumer.versions_by(Paid::number_in).refuse_gaps(DEADLINE);
        }
        let metrics = consumer.metrics();
        let stopped = async { stopped.await.unwrap_or_default() };
        Self { stop: Some(stop), task: tokio::spawn(consumer.run(stopped)), metrics }
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.metrics.counts()
    }

    /// Stops it in an orderly way.
    pub async fn stop(mut self) -> Counts {
        let _ = self.stop.take().expect("it is stopped once").send(());
        let ended = tokio::time::timeout(DEADLINE, &mut self.task).await;
        let ended = ended.expect("it stops").expect("nothing panics");
        ended.expect("it has gone on until then");
        self.metrics.counts()
    }

    /// Waits until it has ended by itself.
    pub async fn ended(mut self) -> ConsumerError {
        let ended = tokio::time::timeout(DEADLINE, &mut self.task).await;
        ended.expect("it ends").expect("nothing panics").expect_err("it cannot go on")
    }

    /// Waits until its counts are so.
    pub async fn until(&self, what: &str, condition: impl Fn(&Counts) -> bool) {
        let started = std::time::Instant::now();
        loop {
            let counts = self.counts();
            if condition(&counts) {
                return;
            }
            assert!(!self.task.is_finished(), "{what}: the consumer has ended: {counts:?}");
            assert!(started.elapsed() < DEADLINE, "{what}: {counts:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Consuming {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A subscription that may lose acknowledgements.
struct Faulty<S> {
    inner: S,
    loses_acknowledgements: bool,
}

#[async_trait]
impl<S: Subscription> Subscription for Faulty<S> {
    type Handle = S::Handle;

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn visibility(&self) -> Option<Duration> {
        self.inner.visibility()
    }

    async fn redelivery(&self) -> Result<Redelivery, SubscriptionError> {
        self.inner.redelivery().await
    }

    async fn receive(&self, max: usize) -> Result<Vec<Received<S::Handle>>, SubscriptionError> {
        self.inner.receive(max).await
    }

    async fn acknowledge(&self, handles: Vec<S::Handle>) -> Result<(), SubscriptionError> {
        if self.loses_acknowledgements {
            return Ok(());
        }
        self.inner.acknowledge(handles).await
    }

    async fn release(&self, handles: Vec<S::Handle>) -> Result<(), SubscriptionError> {
        self.inner.release(handles).await
    }

    async fn extend(&self, handles: &[S::Handle]) -> Result<(), SubscriptionError> {
        self.inner.extend(handles).await
    }

    fn is_lost(&self, handle: &S::Handle) -> bool {
        self.inner.is_lost(handle)
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Every case.
pub fn cases() -> Vec<Case<Subject, Capabilities>> {
    let mut cases = effects::cases();
    cases.extend(crashes::cases());
    cases.extend(failures::cases());
    cases
}
