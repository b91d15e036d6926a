//! A source as cases use it: read so many events, settle them, die.

use std::time::Duration;

use postrider_relay::failure::{Failure, FailureKind};
use postrider_relay::source::{
    BatchLimit, Record, Resume, Settled, Settlement, Source, SourceError, SourceErrorKind, Verdict,
};

use tokio::time::Instant;

use super::{Connection, TestOutbox};
use crate::suites::numbered;
use crate::suites::waiting::{turns, within};

/// More than any case writes.
const EVENTS_MAX: usize = 10_000;
/// How long a read waits in vain before there is taken to be nothing.
const NOTHING_AFTER: Duration = Duration::from_millis(30);
/// After this time what is pending is not due yet.
const OVERDUE_AFTER: Duration = Duration::from_secs(2);

/// A source that is connected and has been told where it left off.
pub(super) struct Reader {
    pub(super) source: Box<dyn Source>,
    pub(super) resume: Resume,
}

impl Reader {
    /// Starts the pipeline of cases that need only one.
    pub(super) async fn start(outbox: &dyn TestOutbox) -> Self {
        Self::stand_by(outbox, Connection::default()).await
    }

    pub(super) async fn start_as(outbox: &dyn TestOutbox, pipeline: &str) -> Self {
        let connection = Connection { pipeline, ..Connection::default() };
        Self::stand_by(outbox, connection).await
    }

    /// Starts as a relay does: it tries again while the one before still has the outbox.
    pub(super) async fn stand_by(outbox: &dyn TestOutbox, connection: Connection<'_>) -> Self {
        let starting = async {
            loop {
                match Self::try_start(outbox, connection).await {
                    Err(error) if error.kind == SourceErrorKind::Held => turns(1).await,
                    started => return started.expect("the outbox can be read"),
                }
            }
        };
        within("standing by", starting).await
    }

    pub(super) async fn try_start(
        outbox: &dyn TestOutbox,
        connection: Connection<'_>,
    ) -> Result<Self, SourceError> {
        let source = outbox.connect(connection).await?;
        let resume = source.resume().await?;
        Ok(Self { source, resume })
    }

    /// The aggregate ids of the keys that were blocked at the start, in order.
    pub(super) fn blocked_at_start(&self) -> Vec<&str> {
        let mut ids: Vec<&str> =
            self.resume.blocked_keys.iter().map(|key| key.aggregate_id.as_str()).collect();
        ids.sort_unstable();
        ids
    }

    /// One batch of at most so many events, or none if nothing comes within the time.
    pub(super) async fn batch(&self, events: usize, wait: Duration) -> Vec<Record> {
        let limit = BatchLimit { events, bytes: usize::MAX, wait };
        within("a read", self.source.next_batch(limit)).await.expect("the source can be read")
    }

    /// So many records, in as many batches as they take.
    pub(super) async fn read(&self, count: usize) -> Vec<Record> {
        let mut records = Vec::new();
        let reading = async {
            while records.len() < count {
                let left = count - records.len();
                records.extend(self.batch(left, Duration::from_secs(5)).await);
            }
        };
        let what = format!("reading {count} events");
        within(&what, reading).await;
        records
    }

    /// Everything there is to read now.
    pub(super) async fn read_all(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let started = Instant::now();
        loop {
            let batch = self.batch(EVENTS_MAX, NOTHING_AFTER).await;
            // On a busy machine what is there may take a while to come.
            let may_come = async || {
                records.is_empty() && started.elapsed() < OVERDUE_AFTER && self.pending().await
            };
            if batch.is_empty() && !may_come().await {
                return records;
            }
            records.extend(batch);
        }
    }

    /// Fails if there is something to read.
    pub(super) async fn expect_nothing(&self, why: &str) {
        let batch = self.batch(EVENTS_MAX, NOTHING_AFTER).await;
        assert!(batch.is_empty(), "{why}, but there came {batch:?}");
    }

    pub(super) async fn settle(&self, settlements: &[(&Record, Verdict)]) -> Settled {
        let settlements: Vec<Settlement> = settlements
            .iter()
            .map(|(record, verdict)| Settlement { handle: record.handle, verdict: verdict.clone() })
            .collect();
        within("settling", self.source.settle(&settlements)).await.expect("events can be settled")
    }

    /// The same verdict for all.
    pub(super) async fn settle_all(&self, records: &[Record], verdict: &Verdict) -> Settled {
        let settlements: Vec<_> = records.iter().map(|record| (record, verdict.clone())).collect();
        self.settle(&settlements).await
    }

    pub(super) async fn deliver(&self, records: &[Record]) -> Settled {
        self.settle_all(records, &Verdict::Delivered).await
    }

    /// Delivers everything there is, batch by batch, and answers the numbers in that order.
    pub(super) async fn drain(&self) -> Vec<u32> {
        let mut delivered = Vec::new();
        let mut came_at = Instant::now();
        loop {
            let batch = self.batch(EVENTS_MAX, NOTHING_AFTER).await;
            // On a busy machine what is there may take a while to come.
            let is_over = async || came_at.elapsed() > OVERDUE_AFTER || !self.pending().await;
            if batch.is_empty() {
                if is_over().await {
                    return delivered;
                }
                continue;
            }
            delivered.extend(numbered::numbers(&batch));
            self.deliver(&batch).await;
            came_at = Instant::now();
        }
    }

    pub(super) async fn pending(&self) -> bool {
        self.source.pending().await.expect("the source can say whether something is pending")
    }

    /// Ends as a process does that is killed.
    pub(super) fn kill(self) {
        drop(self.source);
    }

    pub(super) async fn close(self) {
        self.source.close().await.expect("the source can be closed");
    }
}

pub(super) fn failure(attempts: u32) -> Failure {
    Failure { kind: FailureKind::Failed, message: "the sink did not like it".to_owned(), attempts }
}

pub(super) fn parked(attempts: u32) -> Verdict {
    Verdict::Parked { failure: failure(attempts), blocks: true }
}

pub(super) fn parked_aside() -> Verdict {
    Verdict::Parked { failure: failure(1), blocks: false }
}

pub(super) fn deferred(delay: Duration, attempts: u32) -> Verdict {
    Verdict::Deferred { delay, failure: Some(failure(attempts)), blocks: true }
}
