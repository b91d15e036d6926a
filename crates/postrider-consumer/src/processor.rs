//! Claims events and runs their handlers, all in one transaction.
//!
//! # Why each event has its effect once
//!
//! - The claim and the effect are in one transaction, so both are committed or neither is.
//! - An event that another worker works on at the same moment is claimed there: the claim here
//!   waits for the end of that transaction, and is a duplicate if it was committed.
//! - What fails, from the claim to the commit, while the database is there, has failed by the event
//!   and counts against it; nothing is tried for ever.
//! - Claims of several events go in one statement. If the handler of one of them fails, all of
//!   them are rolled back, and each gets a transaction of its own.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use postrider::{Claim, Event, Key, Sequence, WriteError};
use uuid::Uuid;

use crate::database::Database;
use crate::handlers::{HandlerError, Handlers, Rejected, Route};
use crate::metrics::Metrics;
use crate::tracing_context;

/// Longest error that is kept with a dead letter.
const ERROR_BYTES_MAX: usize = 4096;

/// How an event's version is found.
pub(crate) type VersionOf = Box<dyn Fn(&Event) -> Option<u64> + Send + Sync>;

/// An event that is to be handled.
#[derive(Clone, Copy)]
pub(crate) struct Due<'e> {
    pub(crate) event: &'e Event,
    /// It was dead, and somebody wants it to be handled: whatever its version is.
    pub(crate) is_revived: bool,
}

/// What a consumer does with events.
pub(crate) struct Processor<D: Database> {
    pub(crate) consumer: String,
    pub(crate) database: D,
    pub(crate) handlers: Handlers<D::Tx>,
    pub(crate) version_of: Option<VersionOf>,
    /// How long an event waits for those before it; `None` if it does not.
    pub(crate) gap_patience: Option<Duration>,
    /// What is no longer waited for.
    pub(crate) given_up: GivenUp,
    pub(crate) metrics: Arc<Metrics>,
}

/// The gaps that were waited for in vain: of each key the version after which events are missing.
/// What comes behind such a gap need not wait for it again.
#[derive(Default)]
pub(crate) struct GivenUp(Mutex<HashMap<Key, u64>>);

impl GivenUp {
    /// So many keys are kept in mind at most. Beyond that gaps are waited for again.
    const KEYS_MAX: usize = 10_000;

    pub(crate) fn contains(&self, key: &Key, last: u64) -> bool {
        let gaps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gaps.get(key) == Some(&last)
    }

    pub(crate) fn insert(&self, key: Key, last: u64) {
        let mut gaps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gaps.len() >= Self::KEYS_MAX && !gaps.contains_key(&key) {
            gaps.clear();
        }
        gaps.insert(key, last);
    }
}

/// Why a transaction was rolled back.
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) error: HandlerError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The database is away: it says nothing of the events.
    Database,
    /// The handler failed and is tried again.
    Handler,
    /// Events before it are missing: after this version of its key.
    Gap { last: u64 },
    /// No later attempt mends it.
    Rejected,
}

impl Failure {
    fn database(error: WriteError) -> Self {
        Self { kind: FailureKind::Database, error: error.into() }
    }
}

/// What one transaction has done.
#[derive(Default)]
struct Done {
    handled: usize,
    duplicates: usize,
    skipped: usize,
    stale: usize,
    gaps: usize,
}

impl<D: Database> Processor<D> {
    /// Handles events in one transaction, in the order given; afterwards all are done with.
    pub(crate) async fn process(&self, events: &[Due<'_>]) -> Result<(), Failure> {
        let mut done = Done::default();
        let mut routed = Vec::with_capacity(events.len());
        for due in events {
            match self.handlers.route(due.event) {
                Route::Handle(handler) => routed.push((*due, handler)),
                Route::Skip => done.skipped += 1,
                Route::Bury(why) => {
                    let error = Rejected(why).into();
                    return Err(Failure { kind: FailureKind::Rejected, error });
                }
            }
        }
        if !routed.is_empty() {
            let mut tx = self.database.begin().await.map_err(Failure::database)?;
            let ids: Vec<Uuid> = routed.iter().map(|(due, _)| due.event.id()).collect();
            let claims = match D::claim_all(&mut tx, &self.consumer, &ids).await {
                Ok(claims) => claims,
                Err(error) => return Err(self.failed(tx, error.into()).await),
            };
            for ((due, handler), claim) in routed.into_iter().zip(claims) {
                if claim == Claim::Duplicate {
                    done.duplicates += 1;
                    continue;
                }
                let sequence = match self.sequence(&mut tx, due.event).await {
                    Ok(sequence) => sequence,
                    Err(error) => return Err(self.failed(tx, error).await),
                };
                match sequence {
                    Some(Sequence::Stale { .. }) if !due.is_revived => {
                        done.stale += 1;
                        continue;
                    }
                    Some(Sequence::Gap { last }) => {
                        if self.gap_patience.is_some() && !due.is_revived {
                            return Err(gap(due.event, last));
                        }
                        done.gaps += 1;
                    }
                    Some(Sequence::Next | Sequence::Stale { .. }) | None => {}
                }
                // Code of the application runs before the first await, too.
                let handling = async {
                    let handling = handler(&mut tx, due.event, sequence);
                    tracing_context::linked(due.event, &self.consumer, handling).await
                };
                let handled = AssertUnwindSafe(handling).catch_unwind().await;
                let handled = handled.unwrap_or_else(|panic| Err(panic_error(&*panic)));
                if let Err(error) = handled {
                    return Err(self.failed(tx, error).await);
                }
                done.handled += 1;
            }
            // A constraint may be looked at no sooner.
            if let Err(error) = D::commit(tx).await {
                return Err(self.judged(error.into()).await);
            }
        }
        self.count(&done);
        Ok(())
    }

    /// Makes a dead letter of an event, unless its effect was committed since its handler failed:
    /// it could be revived and have its effect twice.
    pub(crate) async fn bury(
        &self,
        event: &Event,
        error: &str,
        attempts: u32,
    ) -> Result<Claim, WriteError> {
        let mut tx = self.database.begin().await?;
        let claims = D::claim_all(&mut tx, &self.consumer, &[event.id()]).await?;
        if claims.contains(&Claim::Duplicate) {
            self.metrics.duplicates(1);
            return Ok(Claim::Duplicate);
        }
        D::bury(&mut tx, &self.consumer, event, error, attempts).await?;
        D::commit(tx).await?;
        self.metrics.buried(1);
        Ok(Claim::First)
    }

    /// The version of an event, if it has one.
    pub(crate) fn version(&self, event: &Event) -> Result<Option<u64>, HandlerError> {
        let Some(version_of) = &self.version_of else { return Ok(None) };
        let found = std::panic::catch_unwind(AssertUnwindSafe(|| version_of(event)));
        found.map_err(|panic| panic_error(&*panic))
    }

    async fn sequence(
        &self,
        tx: &mut D::Tx,
        event: &Event,
    ) -> Result<Option<Sequence>, HandlerError> {
        let Some(version) = self.version(event)? else { return Ok(None) };
        Ok(Some(D::advance(tx, &self.consumer, event.key(), version).await?))
    }

    /// Ends a transaction that has failed, and judges why.
    async fn failed(&self, tx: D::Tx, error: HandlerError) -> Failure {
        drop(tx);
        self.judged(error).await
    }

    /// What has failed while the database is away has failed for that reason.
    async fn judged(&self, error: HandlerError) -> Failure {
        let is_invalid = matches!(error.downcast_ref::<WriteError>(), Some(WriteError::Invalid(_)));
        let kind = if error.is::<Rejected>() || is_invalid {
            FailureKind::Rejected
        } else if self.database.begin().await.is_err() {
            FailureKind::Database
        } else {
            FailureKind::Handler
        };
        Failure { kind, error }
    }

    fn count(&self, done: &Done) {
        self.metrics.handled(done.handled);
        self.metrics.duplicates(done.duplicates);
        self.metrics.skipped(done.skipped);
        self.metrics.stale(done.stale);
        self.metrics.gaps(done.gaps);
    }
}

fn gap(event: &Event, last: u64) -> Failure {
    let error = format!("events of {} are missing after version {last}", event.key()).into();
    Failure { kind: FailureKind::Gap { last }, error }
}

fn panic_error(panic: &(dyn std::any::Any + Send)) -> HandlerError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", text.unwrap_or("it does not say why")).into()
}

/// An error with its causes, no longer than is kept.
pub(crate) fn told(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some errors repeat what their cause says.
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
    text
}
