//! Claims events and runs their handlers, all in one transaction.
//!
//! # Why each event has its effect once
//!
//! - The claim and the effect are in one transaction, so both are committed or neither is.
//! - An event that another worker works on at the same moment is claimed there: the claim here
//!   waits for the end of that transaction, and is a duplicate if it was committed.
//! - Claims of several events go in one statement. If the handler of one of them fails, all of
//!   them are rolled back, and each gets a transaction of its own.

use std::error::Error as StdError;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use postrider::{Claim, Event, Sequence, WriteError};
use uuid::Uuid;

use crate::database::Database;
use crate::handlers::{HandlerError, Handlers, Rejected, Route};
use crate::metrics::Metrics;
use crate::tracing_context;

/// Longest error that is kept with a dead letter.
const ERROR_BYTES_MAX: usize = 4096;

/// How an event's version is found.
pub(crate) type VersionOf = Box<dyn Fn(&Event) -> Option<u64> + Send + Sync>;

/// What a consumer does with events.
pub(crate) struct Processor<D: Database> {
    pub(crate) consumer: String,
    pub(crate) database: D,
    pub(crate) handlers: Handlers<D::Tx>,
    pub(crate) version_of: Option<VersionOf>,
    pub(crate) refuses_gaps: bool,
    pub(crate) metrics: Arc<Metrics>,
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
    pub(crate) async fn process(&self, events: &[&Event]) -> Result<(), Failure> {
        let mut done = Done::default();
        let mut routed = Vec::with_capacity(events.len());
        for event in events {
            match self.handlers.route(event) {
                Route::Handle(handler) => routed.push((*event, handler)),
                Route::Skip => done.skipped += 1,
                Route::Bury(why) => {
                    let error = Rejected(why).into();
                    return Err(Failure { kind: FailureKind::Rejected, error });
                }
            }
        }
        if !routed.is_empty() {
            let mut tx = self.database.begin().await.map_err(Failure::database)?;
            let ids: Vec<Uuid> = routed.iter().map(|(event, _)| event.id()).collect();
            let claims = D::claim_all(&mut tx, &self.consumer, &ids).await;
            let claims = claims.map_err(Failure::database)?;
            for ((event, handler), claim) in routed.into_iter().zip(claims) {
                if claim == Claim::Duplicate {
                    done.duplicates += 1;
                    continue;
                }
                let sequence = self.sequence(&mut tx, event).await?;
                match sequence {
                    Some(Sequence::Stale { .. }) => {
                        done.stale += 1;
                        continue;
                    }
                    Some(Sequence::Gap { last }) => {
                        done.gaps += 1;
                        self.refuse_gap(event, last)?;
                    }
                    Some(Sequence::Next) | None => {}
                }
                let handling = handler(&mut tx, event, sequence);
                let handling = tracing_context::linked(event, &self.consumer, handling);
                let handled = AssertUnwindSafe(handling).catch_unwind().await;
                let handled = handled.unwrap_or_else(|panic| Err(panic_error(&*panic)));
                if let Err(error) = handled {
                    drop(tx);
                    return Err(self.failed(error).await);
                }
                done.handled += 1;
            }
            D::commit(tx).await.map_err(Failure::database)?;
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

    async fn sequence(&self, tx: &mut D::Tx, event: &Event) -> Result<Option<Sequence>, Failure> {
        let version = self.version_of.as_ref().and_then(|version_of| version_of(event));
        let Some(version) = version else { return Ok(None) };
        let advanced = D::advance(tx, &self.consumer, event.key(), version).await;
        advanced.map(Some).map_err(Failure::database)
    }

    fn refuse_gap(&self, event: &Event, last: u64) -> Result<(), Failure> {
        if !self.refuses_gaps {
            return Ok(());
        }
        let error = format!("events of {} are missing after version {last}", event.key()).into();
        Err(Failure { kind: FailureKind::Handler, error })
    }

    /// A handler that failed while its database is away has failed for that reason.
    async fn failed(&self, error: HandlerError) -> Failure {
        let kind = if error.is::<Rejected>() {
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
