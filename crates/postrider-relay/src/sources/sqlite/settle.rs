//! Writes down what became of rows: one call, one transaction.
//!
//! A fresh row leaves the stream (it is marked, deleted, or the cursor moves past it) in the same
//! transaction in which it is copied to the rows set aside, byte for byte and with whatever
//! types its columns have. So at any moment an event is in exactly one of the two places.
//!
//! A row with a heavy column (see [`queries`](super::queries)) stays in the outbox, and is left out
//! of what is read for as long as it is set aside.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use postrider::{Key, timestamp};
use rusqlite::params;

use super::error::Trouble;
use super::keys::Keys;
use super::store::{Now, Store};
use super::window::{Settling, UnderWay};
use crate::failure::Failure;
use crate::source::{Settled, SourceError, SourceErrorKind, Verdict};
use crate::sources::Progress;

/// The last moment that text can say in every time zone.
const FAR_FUTURE: Duration = Duration::from_secs(253_402_207_200);

/// Writes the settlements and the position that they lead to.
pub(super) fn settle(
    store: &Store,
    progress: Progress,
    settling: &[Settling<'_>],
    (position, beyond): (i64, String),
) -> Result<Settled, Trouble> {
    if settling.iter().all(|settling| settling.verdict == &Verdict::Released) {
        return Ok(Settled::default());
    }
    let tx = store.write()?;
    let now = store.now()?;
    let settle = Settle { store, progress, now: &now };
    let mut touched = BTreeSet::new();
    let mut done = Vec::with_capacity(settling.len());
    for Settling { row, verdict, .. } in settling {
        if !row.returned && verdict != &&Verdict::Released {
            done.push(row.seq);
        }
        match verdict {
            Verdict::Released => {}
            Verdict::Delivered if !row.returned => {}
            Verdict::Delivered => {
                touched.extend(settle.keys().blocking_key(row.seq)?);
                let (sql, pipeline) = (&store.sql, &store.pipeline);
                match progress {
                    Progress::Cursor => 0,
                    Progress::Delete => {
                        store.execute(&sql.delete_left, params![row.seq, pipeline])?
                    }
                    Progress::Mark => {
                        store.execute(&sql.mark_again, params![row.seq, now.text, pipeline])?
                    }
                };
                store.execute(&sql.forget, params![pipeline, row.seq])?;
            }
            verdict => settle.put_aside(*row, verdict, &mut touched)?,
        }
    }
    settle.leave_stream(done)?;
    let unblocked = settle.keys().mend(touched, &now.text)?;
    let is_any_delivered = settling.iter().any(|it| it.verdict == &Verdict::Delivered);
    let checkpoint = params![store.pipeline, position, beyond, now.text, is_any_delivered];
    if store.execute(&store.checkpoints.settled, checkpoint)? == 0 {
        return Err(settle.checkpoint_is_gone().into());
    }
    tx.commit()?;
    Ok(Settled { unblocked })
}

struct Settle<'a> {
    store: &'a Store,
    progress: Progress,
    now: &'a Now,
}

impl Settle<'_> {
    fn keys(&self) -> Keys<'_> {
        self.store.keys()
    }

    /// Fresh rows are done with; those that follow each other in one statement.
    fn leave_stream(&self, mut rows: Vec<i64>) -> rusqlite::Result<()> {
        let sql = &self.store.sql;
        rows.sort_unstable();
        for run in rows.chunk_by(|seq, next| seq + 1 == *next) {
            let (first, last) = (run[0], run[run.len() - 1]);
            match self.progress {
                Progress::Cursor => return Ok(()),
                Progress::Delete => self.store.execute(&sql.delete, [first, last])?,
                Progress::Mark => {
                    self.store.execute(&sql.mark, params![first, last, self.now.text])?
                }
            };
        }
        Ok(())
    }

    /// Sets a row aside, or changes why it is. Adds its key to `touched` if it was blocking or
    /// is now.
    fn put_aside(
        &self,
        row: UnderWay,
        verdict: &Verdict,
        touched: &mut BTreeSet<Key>,
    ) -> Result<(), Trouble> {
        let aside = Aside::new(row, verdict, self.now);
        let (store, sql) = (self.store, &self.store.sql);
        let statement = match self.progress {
            _ if row.returned => &sql.set_aside_again,
            Progress::Cursor => &sql.set_aside,
            Progress::Delete | Progress::Mark => &sql.set_aside_unpublished,
        };
        touched.extend(self.keys().blocking_key(row.seq)?);
        let failure = aside.failure;
        let attempts = aside.attempts.or(failure.map(|failure| failure.attempts));
        let params = params![
            store.pipeline,
            row.seq,
            aside.state,
            aside.blocks,
            aside.due,
            attempts,
            failure.map(|failure| failure.kind.as_str()),
            failure.map(|failure| failure.message.as_str()),
            self.now.text,
        ];
        if row.returned {
            store.execute(statement, params)?;
        } else {
            let copied = store.maybe(statement, params, |_| Ok(()))?;
            let of_another = params![store.pipeline, row.seq];
            if copied.is_none() && store.one(&sql.is_another, of_another, |row| row.get(0))? {
                return Err(self.numbering_was_reset(row.seq).into());
            }
        }
        touched.extend(self.keys().blocking_key(row.seq)?);
        Ok(())
    }

    fn checkpoint_is_gone(&self) -> SourceError {
        let Store { pipeline, table, .. } = self.store;
        let message =
            format!("the checkpoint of pipeline {pipeline:?} was removed from {table}_checkpoints");
        SourceError::new(SourceErrorKind::Unsafe, message)
            .with_hint("start the relay again: it makes a new checkpoint")
    }

    fn numbering_was_reset(&self, seq: i64) -> SourceError {
        let table = &self.store.table;
        let message = format!(
            "event {seq} of {table} was set aside before with another id: \
             the numbering of {table} was reset"
        );
        SourceError::new(SourceErrorKind::Unsafe, message)
            .with_hint(format!(
            "discard the dead letters, remove what else {table}_failures has of the old numbering, and \
             start again"
        ))
    }
}

/// What a verdict says about a row that is set aside.
struct Aside<'v> {
    state: &'static str,
    blocks: bool,
    due: Option<String>,
    failure: Option<&'v Failure>,
    /// Counted without a failure.
    attempts: Option<u32>,
}

impl<'v> Aside<'v> {
    fn new(row: UnderWay, verdict: &'v Verdict, now: &Now) -> Self {
        let queued =
            Self { state: "queued", blocks: true, due: None, failure: None, attempts: None };
        let mut aside = match verdict {
            Verdict::Parked { failure, blocks } => {
                Self { state: "parked", blocks: *blocks, failure: Some(failure), ..queued }
            }
            Verdict::Deferred { delay, failure, blocks } => Self {
                state: "deferred",
                blocks: *blocks,
                due: Some(after(now, *delay)),
                failure: failure.as_ref(),
                attempts: None,
            },
            Verdict::Attempting { attempts, blocks } => Self {
                state: "deferred",
                blocks: *blocks,
                due: Some(now.text.clone()),
                failure: None,
                attempts: Some(*attempts),
            },
            Verdict::Queued | Verdict::Delivered | Verdict::Released => queued,
        };
        // What has no key blocks nothing and has nothing to wait for.
        if !row.keyed {
            aside.blocks = false;
            if aside.state == "queued" {
                aside.due = Some(now.text.clone());
            }
        }
        aside
    }
}

fn after(now: &Now, delay: Duration) -> String {
    let far = SystemTime::UNIX_EPOCH + FAR_FUTURE;
    timestamp::to_text(now.time.checked_add(delay).map_or(far, |time| time.min(far)))
}
