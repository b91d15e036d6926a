//! For tests: an outbox in memory behind a lease that the test holds in its hands.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use postrider::Event;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::failure::SinkError;
use crate::sink::{Message, Sink, SinkCapabilities};
use crate::sinks::MemorySink;
use crate::source::{
    BatchLimit, Lease, Record, Resume, Settled, Settlement, Source, SourceCapabilities,
    SourceError, SourceErrorKind,
};
use crate::sources::memory::{MemoryOutbox, MemorySource};

/// An event of a key of its own.
pub(crate) fn event(id: &str) -> Event {
    Event::builder("Order", id, "OrderPlaced").build().unwrap()
}

/// The lease of a source, and what became of that source. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct LeaseHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    lease: Mutex<Lease>,
    /// How calls fail from now on.
    failure: watch::Sender<Option<SourceErrorKind>>,
    closed: AtomicBool,
}

impl LeaseHandle {
    /// A lease that cannot pass on, until it is set.
    pub(crate) fn new() -> Self {
        let (lease, failure) = (Mutex::default(), watch::Sender::new(None));
        Self { shared: Arc::new(Shared { lease, failure, closed: AtomicBool::new(false) }) }
    }

    /// Sets or renews the lease.
    pub(crate) fn until(&self, until: Instant) {
        self.shared.lease.lock().unwrap().until = Some(until);
    }

    /// Another relay asks for the lease.
    pub(crate) fn want(&self) {
        self.shared.lease.lock().unwrap().wanted = true;
    }

    /// Lets every call fail from now on, also those under way.
    pub(crate) fn fail(&self, kind: SourceErrorKind) {
        self.shared.failure.send_replace(Some(kind));
    }

    /// Whether the source was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Relaxed)
    }

    /// Connects to an outbox under this lease.
    pub(crate) fn connect(&self, outbox: &MemoryOutbox) -> Box<dyn Source> {
        Box::new(LeasedSource { inner: outbox.connect(), handle: self.clone() })
    }

    /// The answer to a call, or how calls fail.
    async fn unless_failed<T>(
        &self,
        call: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, SourceError> {
        let mut failure = self.shared.failure.subscribe();
        tokio::select! {
            biased;
            failed = failure.wait_for(Option::is_some) => {
                let kind = failed.unwrap().unwrap();
                Err(SourceError::new(kind, "no such luck"))
            }
            answer = call => answer,
        }
    }
}

struct LeasedSource {
    inner: MemorySource,
    handle: LeaseHandle,
}

#[async_trait]
impl Source for LeasedSource {
    fn capabilities(&self) -> SourceCapabilities {
        self.inner.capabilities()
    }

    async fn resume(&self) -> Result<Resume, SourceError> {
        self.handle.unless_failed(self.inner.resume()).await
    }

    async fn next_batch(&self, limit: BatchLimit) -> Result<Vec<Record>, SourceError> {
        self.handle.unless_failed(self.inner.next_batch(limit)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, SourceError> {
        self.handle.unless_failed(self.inner.settle(settlements)).await
    }

    async fn survived(&self) -> Result<(), SourceError> {
        self.handle.unless_failed(self.inner.survived()).await
    }

    async fn note_trouble(&self, trouble: Option<&str>) -> Result<(), SourceError> {
        self.handle.unless_failed(self.inner.note_trouble(trouble)).await
    }

    async fn pending(&self) -> Result<bool, SourceError> {
        self.handle.unless_failed(self.inner.pending()).await
    }

    fn lease(&self) -> Lease {
        *self.handle.shared.lease.lock().unwrap()
    }

    async fn give_back(self: Box<Self>) {
        Box::new(self.inner).give_back().await;
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        self.handle.shared.closed.store(true, Relaxed);
        Box::new(self.inner).close().await
    }
}

/// A sink that answers only when it is let go. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct HeldSink {
    /// Calls that were begun.
    begun: watch::Sender<usize>,
    dropped: Arc<AtomicUsize>,
    holds: watch::Sender<bool>,
}

impl HeldSink {
    pub(crate) fn new() -> Self {
        let (begun, holds) = (watch::Sender::new(0), watch::Sender::new(true));
        Self { begun, dropped: Arc::default(), holds }
    }

    /// Waits until so many calls were begun.
    pub(crate) async fn begun(&self, calls: usize) {
        self.begun.subscribe().wait_for(|begun| *begun >= calls).await.unwrap();
    }

    /// How many calls were begun.
    pub(crate) fn calls(&self) -> usize {
        *self.begun.borrow()
    }

    /// How many calls were dropped without an answer.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Relaxed)
    }

    /// Answers well, from now on.
    pub(crate) fn let_go(&self) {
        self.holds.send_replace(false);
    }
}

/// Counts a call that ends without an answer.
struct Unanswered<'s>(&'s HeldSink);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Relaxed);
    }
}

#[async_trait]
impl Sink for HeldSink {
    fn capabilities(&self) -> SinkCapabilities {
        // One event at a time, so that some are under way and some are not.
        SinkCapabilities { batch_events_max: 1, calls_max: 1, ..MemorySink::new().capabilities() }
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        self.begun.send_modify(|begun| *begun += 1);
        let unanswered = Unanswered(self);
        self.holds.subscribe().wait_for(|holds| !holds).await.unwrap();
        std::mem::forget(unanswered);
        vec![Ok(()); messages.len()]
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}
