//! What one worker does with a batch.

use std::time::{Duration, Instant};

use postrider::{Claim, Key};

use super::lanes::{Batch, Item};
use crate::database::Database;
use crate::processor::{Due, Failure, FailureKind, Processor, told};
use crate::retry::Retry;

/// How long an event waits before it is looked whether those before it have come. If they come to
/// this consumer, it waits no longer.
const GAP_PAUSE: Duration = Duration::from_millis(500);
/// How long a database that is away is left alone.
const DATABASE_PAUSE: Duration = Duration::from_millis(500);

/// What became of the deliveries of one key.
pub(super) struct Ended<H> {
    pub(super) key: Key,
    /// To be acknowledged.
    pub(super) done: Vec<H>,
    /// To be tried again, in order.
    pub(super) left: Vec<Item<H>>,
    /// Not before then.
    pub(super) again: Option<Instant>,
}

/// Works on a batch: in one transaction, or in one for each delivery if that fails.
pub(super) async fn work<D: Database, H>(
    processor: &Processor<D>,
    retry: &Retry,
    batch: Batch<H>,
) -> Vec<Ended<H>> {
    let events: Vec<Due<'_>> = batch.iter().flat_map(|(_, items)| items).map(Item::due).collect();
    let is_decodable =
        batch.iter().flat_map(|(_, items)| items).all(|item| item.undecodable.is_none());
    if is_decodable && events.len() > 1 && processor.process(&events).await.is_ok() {
        let done = |(key, items): (Key, Vec<Item<H>>)| Ended {
            key,
            done: items.into_iter().map(|item| item.handle).collect(),
            left: Vec::new(),
            again: None,
        };
        return batch.into_iter().map(done).collect();
    }
    let mut ended = Vec::with_capacity(batch.len());
    for (key, items) in batch {
        ended.push(one_by_one(processor, retry, key, items).await);
    }
    ended
}

/// Works on the deliveries of one key, each in a transaction of its own, up to the first failure.
async fn one_by_one<D: Database, H>(
    processor: &Processor<D>,
    retry: &Retry,
    key: Key,
    items: Vec<Item<H>>,
) -> Ended<H> {
    let mut ended = Ended { key, done: Vec::new(), left: Vec::new(), again: None };
    let mut items = items.into_iter();
    while let Some(mut item) = items.next() {
        match one(processor, retry, &mut item).await {
            Ok(()) => ended.done.push(item.handle),
            Err(pause) => {
                ended.again = Some(Instant::now() + pause);
                ended.left = std::iter::once(item).chain(items).collect();
                break;
            }
        }
    }
    ended
}

/// Works on one delivery. The error is for how long to wait before the next attempt.
async fn one<D: Database, H>(
    processor: &Processor<D>,
    retry: &Retry,
    item: &mut Item<H>,
) -> Result<(), Duration> {
    let (consumer, id) = (&processor.consumer, item.event.id());
    let error = if let Some(why) = &item.undecodable {
        why.clone()
    } else {
        let Failure { kind, error } = match processor.process(&[item.due()]).await {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        let error = told(&*error);
        match kind {
            FailureKind::Database => {
                tracing::warn!(%consumer, %error, "the database is away; trying again");
                return Err(DATABASE_PAUSE);
            }
            FailureKind::Gap { last } => {
                if let Some(pause) = processor.waits_for_gap(item, last) {
                    return Err(pause);
                }
            }
            FailureKind::Handler => {
                item.attempts += 1;
                if item.attempts < retry.attempts_max {
                    processor.metrics.retries(1);
                    let (attempt, pause) = (item.attempts, retry.pause(item.attempts));
                    tracing::warn!(%consumer, %id, attempt, ?pause, %error, "the handler failed; trying again");
                    return Err(pause);
                }
            }
            FailureKind::Rejected => item.attempts += 1,
        }
        error
    };
    let buried = processor.bury(&item.event, &error, item.attempts).await;
    match buried {
        Ok(Claim::Duplicate) => Ok(()),
        Ok(Claim::First) => {
            let attempts = item.attempts;
            tracing::error!(%consumer, %id, attempts, %error, "the event became a dead letter");
            Ok(())
        }
        Err(error) => {
            let error = told(&error);
            tracing::warn!(%consumer, %id, %error, "the dead letter could not be kept; trying again");
            Err(DATABASE_PAUSE)
        }
    }
}

impl<H> Item<H> {
    fn due(&self) -> Due<'_> {
        Due { event: &self.event, is_revived: self.is_revived }
    }
}

impl<D: Database> Processor<D> {
    /// For how long an event before which others are missing is left alone; `None` if it has waited
    /// for long enough, or another one of its key has, for the same ones.
    fn waits_for_gap<H>(&self, item: &mut Item<H>, last: u64) -> Option<Duration> {
        if item.waits_since.is_none() {
            self.metrics.gaps(1);
        }
        let since = *item.waits_since.get_or_insert_with(Instant::now);
        let patience = self.gap_patience.unwrap_or_default();
        if since.elapsed() < patience && !self.given_up.contains(item.event.key(), last) {
            return Some(GAP_PAUSE.min(patience));
        }
        self.given_up.insert(item.event.key().clone(), last);
        None
    }
}
