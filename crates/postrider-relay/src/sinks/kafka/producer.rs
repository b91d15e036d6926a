//! A producer of librdkafka, and whether it has trouble with its connections.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{
    BaseRecord, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::delivery::{Call, Delivery};
use super::facts::Limits;
use super::progress::Note;
use super::record::Record;
use super::trouble::Trouble;
use crate::sink::{FailureKind, SinkError};

/// How long it takes at most until a flush sees that nobody wants it any more.
const FLUSH_PART: Duration = Duration::from_millis(100);

/// For how long a broker that hung up is remembered: librdkafka tells the same trouble again only
/// after 30 s.
const HANG_UP_MEMORY: Duration = Duration::from_secs(60);

/// How long a flush goes on for which nobody waits.
const HURRY_MAX: Duration = Duration::from_secs(1);

/// A producer. Dropped, it throws away what it has not sent.
pub(super) struct Producer {
    /// Only the drop takes it.
    inner: Option<ThreadedProducer<Context>>,
    trouble: watch::Receiver<Option<Trouble>>,
    hung_up_at: Arc<Mutex<Option<Instant>>>,
    limits: Limits,
    linger: Duration,
}

impl Producer {
    /// Makes a producer; its connections come about in the background.
    pub(super) fn new(config: &ClientConfig, limits: Limits) -> Result<Self, SinkError> {
        let (sender, trouble) = watch::channel(None);
        let mut config = config.clone();
        config.set("message.max.bytes", limits.record_bytes.max(1000).to_string());
        config.set("batch.size", limits.batch_bytes.max(1).to_string());
        // Where a connection is closed, only the log says why.
        config.set_log_level(RDKafkaLogLevel::Info);
        let hung_up_at = Arc::default();
        let context = Context { trouble: sender, hung_up_at: Arc::clone(&hung_up_at) };
        let inner = config.create_with_context(context).map_err(not_made)?;
        let linger = config.get("linger.ms").and_then(|time| time.parse().ok());
        let linger = Duration::from_secs_f64(linger.unwrap_or(0.0) / 1000.0);
        Ok(Self { inner: Some(inner), trouble, hung_up_at, limits, linger })
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Queues a record. The call gets the answer, unless there is an error now.
    pub(super) fn send(
        &self,
        record: Record<'_>,
        call: Arc<Call>,
        index: usize,
    ) -> Result<(), KafkaError> {
        let delivery = Box::new(Delivery { call, index });
        let mut base = BaseRecord::with_opaque_to(record.topic, delivery).key(record.key);
        base = base.headers(record.headers);
        base.payload = record.value;
        base.partition = record.partition;
        self.inner().send(base).map_err(|(error, _)| error)
    }

    /// Queues the record of what a transaction publishes.
    pub(super) fn send_note(
        &self,
        topic: &str,
        note: &Note,
        call: Arc<Call>,
    ) -> Result<(), KafkaError> {
        let delivery = Box::new(Delivery { call, index: 0 });
        let record = BaseRecord::with_opaque_to(topic, delivery).key(&note.key);
        self.inner().send(record.payload(&note.value)).map_err(|(error, _)| error)
    }

    /// Sends what is queued without waiting for more.
    pub(super) fn hurry(self: &Arc<Self>) {
        let longest = self.linger.min(HURRY_MAX);
        if !longest.is_zero() {
            let producer = Arc::clone(self);
            drop(spawn_blocking(move || producer.flush(longest, || true)));
        }
    }

    /// Sends what is queued without waiting for more, until all of it has its answers, `is_wanted`
    /// no longer or the time is over. True if all of it has. Blocks.
    pub(super) fn flush(&self, longest: Duration, is_wanted: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        loop {
            let left = longest.saturating_sub(begun.elapsed());
            if postrider_librdkafka::flush(self.inner(), left.min(FLUSH_PART)) {
                return true;
            }
            if left.is_zero() || !is_wanted() {
                return false;
            }
        }
    }

    /// Waits until no thread that sends does so because of a flush that has ended. Everything
    /// queued has its answers. Blocks.
    pub(super) fn end_flush(&self) {
        // Each of them answers, between two looks at the queues, that nothing is under way that it
        // could throw away. At its next look it sees that the flush has ended.
        self.inner().purge(PurgeConfig::default().inflight());
    }

    /// Throws away what it has not sent, and does not wait for other answers. Blocks.
    pub(super) fn give_up(&self) {
        self.inner().purge(PurgeConfig::default().queue().inflight());
    }

    /// Ends what an earlier producer of this name has left, and keeps it from going on. Blocks.
    pub(super) fn init_transactions(&self, timeout: Duration) -> Result<(), KafkaError> {
        self.inner().init_transactions(timeout)
    }

    pub(super) fn begin_transaction(&self) -> Result<(), KafkaError> {
        self.inner().begin_transaction()
    }

    /// Blocks.
    pub(super) fn commit_transaction(&self, timeout: Duration) -> Result<(), KafkaError> {
        self.inner().commit_transaction(timeout)
    }

    /// Blocks.
    pub(super) fn abort_transaction(&self, timeout: Duration) -> Result<(), KafkaError> {
        self.inner().abort_transaction(timeout)
    }

    /// Whether it failed for good. One that was not let in says so only once in a while: only a
    /// new one finds out whether that was mended.
    pub(super) fn is_broken(&self) -> bool {
        let is_refused = self.trouble.borrow().as_ref().is_some_and(Trouble::is_refusal);
        is_refused || self.inner().client().fatal_error().is_some()
    }

    /// What is wrong with the connections, if anything is.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.trouble.borrow().clone()
    }

    /// Whether brokers close connections that come about, maybe because of what is sent.
    fn is_hung_up_on(&self) -> bool {
        let at = *self.hung_up_at.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| at.elapsed() < HANG_UP_MEMORY)
    }

    /// An error of the messages of a transaction: of all of them together, if brokers hung up.
    pub(super) fn judged(&self, error: SinkError) -> SinkError {
        let is_hung_up = error.kind == FailureKind::Unavailable && self.is_hung_up_on();
        let in_company = error.in_company || is_hung_up;
        error.with_company(in_company)
    }

    /// Waits until the cluster does not let us in.
    pub(super) async fn refused(&self) -> Trouble {
        let mut trouble = self.trouble.clone();
        let refused = trouble.wait_for(|trouble| trouble.as_ref().is_some_and(Trouble::is_refusal));
        match refused.await.ok().and_then(|trouble| trouble.clone()) {
            Some(trouble) => trouble,
            None => std::future::pending().await,
        }
    }

    fn inner(&self) -> &ThreadedProducer<Context> {
        self.inner.as_ref().expect("only the drop takes it")
    }
}

impl Drop for Producer {
    /// Ending its threads takes a while, which must not be the caller's.
    fn drop(&mut self) {
        let inner = self.inner.take();
        // Without a thread it is the caller's after all.
        let _ = std::thread::Builder::new().name("kafka-close".into()).spawn(move || drop(inner));
    }
}

pub(super) fn not_made(error: KafkaError) -> SinkError {
    let message = format!("cannot make a client of Kafka: {error}");
    SinkError::new(FailureKind::Misconfigured, message)
}

/// What librdkafka calls back.
struct Context {
    trouble: watch::Sender<Option<Trouble>>,
    /// When a broker last hung up, unless none could be reached since.
    hung_up_at: Arc<Mutex<Option<Instant>>>,
}

impl Context {
    fn tell(&self, trouble: Trouble) {
        if trouble.is_hang_up || trouble.is_away() {
            let at = trouble.is_hang_up.then(Instant::now);
            *self.hung_up_at.lock().unwrap_or_else(PoisonError::into_inner) = at;
        }
        self.trouble.send_if_modified(|known| {
            let is_news = known.as_ref().is_none_or(|known| trouble.says_more_than(known));
            if is_news {
                *known = Some(trouble);
            }
            is_news
        });
    }
}

impl ClientContext for Context {
    /// What matters comes back with messages.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(?level, facility, message, "librdkafka");
        if facility == "FAIL" {
            self.tell(Trouble::logged(message));
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.tell(Trouble::new(code, reason));
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Delivery>;

    fn delivery(&self, result: &DeliveryResult<'_>, delivery: Box<Delivery>) {
        let undelivered = match result {
            Ok(_) => None,
            Err((error, _)) => Some(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
        };
        if undelivered.is_none() && self.trouble.borrow().is_some() {
            self.trouble.send_replace(None);
        }
        delivery.call.answer(delivery.index, undelivered);
    }
}
