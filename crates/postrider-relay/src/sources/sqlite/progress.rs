//! How a pipeline keeps its progress, and how it changes from one way to another.
//!
//! The way is written in the pipeline's checkpoint. `mark` and `delete` keep progress in the
//! rows, so an outbox has one such pipeline at most, and beside one that deletes there can be no
//! other at all: [`claim`] refuses what would lose events.
//!
//! Changing the way must neither lose nor repeat:
//!
//! - `mark` ↔ `delete`: both mean that a row which is there and not marked is to be published.
//! - `cursor` → `mark` or `delete`: the new way is written down first, so that no other pipeline
//!   can start to mark, and the position stays beside it. Then rows up to the position, and rows
//!   settled or set aside beyond it, are marked, a stretch at a time, and the position is
//!   cleared. A start
//!   that finds a position beside `mark` or `delete` goes on with that.
//! - `mark` or `delete` → `cursor`: rows are settled out of order, so no position says which are
//!   published. Therefore the pipeline goes on in the old way up to the row that is the last one
//!   now ([`Start::catch_up_to`]). Once all of those are done, that row is the position. As long
//!   as this takes, the checkpoint names the old way, so that no other pipeline can start to
//!   mark.

use rusqlite::params;

use super::error::Trouble;
use super::frontier::{Stretch, parse_beyond};
use super::store::Store;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::Progress;

/// How many numbers are marked in one transaction, so that writers get in between.
const STRETCH: i64 = 10_000;

/// Where a pipeline starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) progress: Progress,
    pub(super) position: i64,
    /// What is settled beyond the position.
    pub(super) beyond: Vec<Stretch>,
    /// Read up to here in this way, then change to a cursor.
    pub(super) catch_up_to: Option<i64>,
}

/// Enters the pipeline among those that read the outbox, unless it does not go with them.
pub(super) fn claim(store: &Store, progress: Progress) -> Result<(), Trouble> {
    let tx = store.write()?;
    refuse_others(store, progress)?;
    let now = store.now()?.text;
    let sql = &store.checkpoints.create;
    store.execute(sql, params![store.pipeline, progress.as_str(), now])?;
    tx.commit()?;
    Ok(())
}

fn refuse_others(store: &Store, progress: Progress) -> Result<(), Trouble> {
    for (name, other_progress) in others(store)? {
        if excludes(progress, &other_progress) {
            return Err(refusal(store, progress, &name, &other_progress).into());
        }
    }
    Ok(())
}

/// The other pipelines of the outbox, and how they keep their progress.
fn others(store: &Store) -> rusqlite::Result<Vec<(String, String)>> {
    let mut statement = store.conn.prepare_cached(&store.checkpoints.others)?;
    let others = statement.query_map([&store.pipeline], |row| Ok((row.get(0)?, row.get(1)?)))?;
    others.collect()
}

fn excludes(progress: Progress, other: &str) -> bool {
    let other_deletes = other == Progress::Delete.as_str();
    let other_marks = other == Progress::Mark.as_str();
    match progress {
        Progress::Cursor => other_deletes,
        Progress::Delete => true,
        Progress::Mark => other_deletes || other_marks,
    }
}

fn refusal(store: &Store, progress: Progress, other: &str, other_progress: &str) -> SourceError {
    let (pipeline, table) = (&store.pipeline, &store.table);
    let progress = progress.as_str();
    let message = format!(
        "pipeline {pipeline:?} cannot keep its progress by {progress}: \
         pipeline {other:?} reads {table} by {other_progress}"
    );
    SourceError::new(SourceErrorKind::Misconfigured, message).with_hint(format!(
        "write progress = \"cursor\" in both; if {other:?} is no longer used, \
         remove its row from {table}_checkpoints"
    ))
}

/// Finds out where to start, after changing the way of progress if need be.
pub(super) fn start(store: &Store, wanted: Progress) -> Result<Start, Trouble> {
    let (recorded, position, beyond): (String, i64, String) =
        store.one(&store.checkpoints.get, [&store.pipeline], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let stretches = parse_beyond(&beyond);
    let Some(recorded) = Progress::from_name(&recorded) else {
        let message = format!(
            "the checkpoint of pipeline {:?} says progress {recorded:?}, which is unknown here",
            store.pipeline
        );
        return Err(SourceError::new(SourceErrorKind::Unsafe, message)
            .with_hint("upgrade postrider, or undo what was changed by hand")
            .into());
    };
    if recorded == Progress::Cursor {
        store.check_position(position)?;
        if wanted == Progress::Cursor {
            return Ok(Start { progress: wanted, position, beyond: stretches, catch_up_to: None });
        }
        set(store, wanted, position, &beyond)?;
    }
    let is_behind = position > 0 || !stretches.is_empty();
    if is_behind {
        mark_behind(store, position, &stretches)?;
    }
    let catch_up_to = match (recorded, wanted) {
        (Progress::Delete | Progress::Mark, Progress::Cursor) => {
            Some(store.one(&store.sql.max_seq, [], |row| row.get(0))?)
        }
        _ => None,
    };
    let progress = if catch_up_to.is_some() { recorded } else { wanted };
    if is_behind || progress != recorded {
        set(store, progress, 0, "")?;
    }
    Ok(Start { progress, position: 0, beyond: Vec::new(), catch_up_to })
}

/// Writes down a way of progress, if it goes with those of the other pipelines.
pub(super) fn set(
    store: &Store,
    progress: Progress,
    position: i64,
    beyond: &str,
) -> Result<(), Trouble> {
    let tx = store.write()?;
    refuse_others(store, progress)?;
    let now = store.now()?.text;
    let sql = &store.checkpoints.set_progress;
    store.execute(sql, params![store.pipeline, progress.as_str(), position, beyond, now])?;
    tx.commit()?;
    Ok(())
}

/// Marks what a cursor has behind it.
fn mark_behind(store: &Store, position: i64, beyond: &[Stretch]) -> rusqlite::Result<()> {
    let now = store.now()?.text;
    let sql = &store.checkpoints;
    let first: Option<i64> = store.one(&sql.first_unpublished, [], |row| row.get(0))?;
    let mut after = first.map_or(position, |first| first - 1);
    while after < position {
        let to = position.min(after.saturating_add(STRETCH));
        store.execute(&sql.mark_stretch, params![after, to, now, store.matching])?;
        after = to;
    }
    for stretch in beyond {
        let (after, to) = (stretch.first - 1, stretch.last);
        store.execute(&sql.mark_stretch, params![after, to, now, store.matching])?;
    }
    store.execute(&sql.mark_set_aside, params![store.pipeline, position, now])?;
    Ok(())
}
