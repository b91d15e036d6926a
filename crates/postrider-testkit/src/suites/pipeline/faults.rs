//! Faults at the seams of a pipeline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use postrider::Key;
use postrider_relay::sink::{Message, Sink, SinkCapabilities, SinkError};
use postrider_relay::source::{
    BatchLimit, Record, Resume, Settled, Settlement, Source, SourceCapabilities, SourceError,
};
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::suites::numbered;

/// The faults of a run. Clones are the same faults.
#[derive(Clone)]
pub(super) struct Faults {
    shared: Arc<Shared>,
    /// What the sink says about the largest body.
    pub(super) event_bytes_max: Option<usize>,
}

struct Shared {
    fate: Mutex<FateOf>,
    offers: Mutex<Vec<Offer>>,
    /// Calls until the fuse burns; `None` if it never does.
    fuse: Mutex<Option<usize>>,
    burnt: Notify,
}

type FateOf = Arc<dyn Fn(Offer) -> Fate + Send + Sync>;

/// A message that was handed to the sink.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// The number of its event.
    pub(super) number: u32,
    /// How often it was handed over, this time included.
    pub(super) time: usize,
    /// When.
    pub(super) at: Instant,
}

/// What becomes of a message.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// It goes to the real sink.
    Publish,
    /// It does not.
    Refuse(SinkError),
    /// It does not, and neither does whatever is in the call with it.
    RefuseCall(SinkError),
    /// It does, and the answer is this error.
    LoseAnswer(SinkError),
    /// It does, and there is no answer for it.
    ForgetAnswer,
    /// It does not, and the call never ends.
    Hang,
    /// The sink panics.
    Panic,
    /// The process dies.
    Kill,
}

impl Faults {
    /// None at all.
    pub(super) fn none() -> Self {
        Self::deciding(|_| Fate::Publish)
    }

    /// Faults by message.
    pub(super) fn deciding(fate: impl Fn(Offer) -> Fate + Send + Sync + 'static) -> Self {
        Self {
            shared: Arc::new(Shared {
                fate: Mutex::new(Arc::new(fate)),
                offers: Mutex::default(),
                fuse: Mutex::default(),
                burnt: Notify::new(),
            }),
            event_bytes_max: None,
        }
    }

    /// Changes them while the pipeline runs.
    pub(super) fn change(&self, fate: impl Fn(Offer) -> Fate + Send + Sync + 'static) {
        *lock(&self.shared.fate) = Arc::new(fate);
    }

    /// From now on nothing is wrong.
    pub(super) fn heal(&self) {
        self.change(|_| Fate::Publish);
    }

    /// Kills the relay at so many calls from now.
    pub(super) fn burn_at(&self, call: usize) {
        *lock(&self.shared.fuse) = Some(call);
    }

    /// Ends when the relay is to die.
    pub(super) async fn burnt(&self) {
        self.shared.burnt.notified().await;
        *lock(&self.shared.fuse) = None;
    }

    /// Everything that was handed to the sink.
    pub(super) fn offers(&self) -> Vec<Offer> {
        lock(&self.shared.offers).clone()
    }

    /// How often an event was handed to the sink.
    pub(super) fn times_offered(&self, number: u32) -> usize {
        let offers = lock(&self.shared.offers);
        offers.iter().filter(|offer| offer.number == number).count()
    }

    pub(super) fn over_source(&self, inner: Box<dyn Source>) -> Box<dyn Source> {
        Box::new(FaultySource { inner, faults: self.clone() })
    }

    pub(super) fn over_sink(&self, inner: Box<dyn Sink>) -> Box<dyn Sink> {
        Box::new(FaultySink { inner, faults: self.clone() })
    }

    /// A call: the one that burns the fuse never ends.
    async fn call(&self) {
        let left = {
            let mut fuse = lock(&self.shared.fuse);
            let left = *fuse;
            *fuse = left.map(|left| left.saturating_sub(1));
            left
        };
        match left {
            // It is dead and has only not noticed yet.
            Some(0) => std::future::pending().await,
            Some(1) => self.die().await,
            Some(_) | None => {}
        }
    }

    async fn die(&self) {
        self.shared.burnt.notify_one();
        std::future::pending().await
    }

    fn offer(&self, message: &Message) -> Fate {
        let number = numbered::number(message.event.id());
        let offer = Offer { number, time: self.times_offered(number) + 1, at: Instant::now() };
        lock(&self.shared.offers).push(offer);
        let fate = Arc::clone(&*lock(&self.shared.fate));
        fate(offer)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct FaultySource {
    inner: Box<dyn Source>,
    faults: Faults,
}

#[async_trait]
impl Source for FaultySource {
    fn capabilities(&self) -> SourceCapabilities {
        self.inner.capabilities()
    }

    async fn resume(&self) -> Result<Resume, SourceError> {
        self.inner.resume().await
    }

    async fn next_batch(&self, limit: BatchLimit) -> Result<Vec<Record>, SourceError> {
        let batch = self.inner.next_batch(limit).await?;
        // How often nothing is found is a matter of time, not of calls.
        if !batch.is_empty() {
            self.faults.call().await;
        }
        Ok(batch)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, SourceError> {
        self.faults.call().await;
        let settled = self.inner.settle(settlements).await;
        self.faults.call().await;
        settled
    }

    async fn survived(&self) -> Result<(), SourceError> {
        self.inner.survived().await
    }

    async fn note_trouble(&self, trouble: Option<&str>) -> Result<(), SourceError> {
        self.inner.note_trouble(trouble).await
    }

    async fn pending(&self) -> Result<bool, SourceError> {
        self.inner.pending().await
    }

    async fn give_back(self: Box<Self>) {
        self.inner.give_back().await;
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        self.inner.close().await
    }
}

struct FaultySink {
    inner: Box<dyn Sink>,
    faults: Faults,
}

#[async_trait]
impl Sink for FaultySink {
    fn capabilities(&self) -> SinkCapabilities {
        let mut capabilities = self.inner.capabilities();
        if let Some(bytes) = self.faults.event_bytes_max {
            capabilities.event_bytes_max = bytes;
        }
        capabilities
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        self.inner.check().await
    }

    fn follows_settlements(&self) -> bool {
        self.inner.follows_settlements()
    }

    fn settled(&self, delivered: &[Uuid], set_aside: &[Uuid]) {
        self.inner.settled(delivered, set_aside);
    }

    fn allow_until(&self, until: Option<Instant>) {
        self.inner.allow_until(until);
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        self.faults.call().await;
        let fates = self.fates(messages);
        let to_blame = |fate: &Fate| match fate {
            Fate::RefuseCall(error) => Some(error.clone()),
            _ => None,
        };
        if let Some(error) = fates.iter().find_map(to_blame) {
            let in_company = messages.len() > 1;
            return vec![Err(error.with_company(in_company)); messages.len()];
        }
        let is_published =
            |fate: &Fate| matches!(fate, Fate::Publish | Fate::LoseAnswer(_) | Fate::ForgetAnswer);
        let published: Vec<_> = messages
            .iter()
            .zip(&fates)
            .filter(|(_, fate)| is_published(fate))
            .map(|(message, _)| message.clone())
            .collect();
        let answers = self.inner.publish(&published).await;
        self.faults.call().await;
        let mut answers = answers.into_iter();
        let mut results = Vec::new();
        for fate in fates {
            let answer = if is_published(&fate) { answers.next() } else { None };
            match fate {
                Fate::Publish => results.extend(answer),
                Fate::RefuseCall(_) => unreachable!("it is the answer to the whole call"),
                Fate::Refuse(error) | Fate::LoseAnswer(error) => results.push(Err(error)),
                Fate::ForgetAnswer => {}
                Fate::Hang => std::future::pending().await,
                Fate::Panic => panic!("a sink that panics, on purpose"),
                Fate::Kill => self.faults.die().await,
            }
        }
        results
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        self.inner.close().await
    }
}

impl FaultySink {
    /// What becomes of each message. After one of a key has failed, so does every later one.
    fn fates(&self, messages: &[Message]) -> Vec<Fate> {
        let mut failed: BTreeMap<&Key, Fate> = BTreeMap::new();
        let mut fates = Vec::new();
        for message in messages {
            let key = message.event.key();
            let fate = match failed.get(key) {
                Some(fate) => fate.clone(),
                None => self.faults.offer(message),
            };
            match &fate {
                Fate::Publish | Fate::ForgetAnswer | Fate::RefuseCall(_) => {}
                Fate::Refuse(error) | Fate::LoseAnswer(error) => {
                    failed.insert(key, Fate::Refuse(error.clone()));
                }
                Fate::Hang | Fate::Panic | Fate::Kill => {
                    failed.insert(key, fate.clone());
                }
            }
            fates.push(fate);
        }
        fates
    }
}
