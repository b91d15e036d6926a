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
//!
//! What the pipeline matches stands beside the position
//! ([`matching`](crate::sources::matching)): a cursor has passed, and not published, what was of
//! another type.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use postrider::Key;
use rusqlite::params;
use tracing::info;

use super::error::Trouble;
use super::frontier::{STRETCHES_MAX, Stretch, parse_beyond, with_rows};
use super::store::Store;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::matching::Matching;
use crate::sources::{Progress, StartAt};

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
pub(super) fn claim(store: &Store, progress: Progress, start: StartAt) -> Result<(), Trouble> {
    let tx = store.write()?;
    refuse_others(store, progress)?;
    let now = store.now()?.text;
    let types = store.types();
    let begin = match progress {
        Progress::Cursor => begin(store, types, start)?,
        Progress::Delete | Progress::Mark => Begin::default(),
    };
    let Begin { position, beyond, since, start } = begin;
    let sql = &store.checkpoints;
    let progress = progress.as_str();
    let params = params![store.pipeline, progress, now, types, position, beyond, since, start];
    store.execute(&sql.create, params)?;
    store.execute(&sql.adopt_types, params![store.pipeline, types])?;
    tx.commit()?;
    Ok(())
}

/// Where a new pipeline begins.
#[derive(Default)]
struct Begin {
    position: i64,
    beyond: String,
    /// What was there before.
    since: i64,
    start: Option<&'static str>,
}

fn begin(store: &Store, types: &str, start: StartAt) -> rusqlite::Result<Begin> {
    let last: i64 = store.one(&store.sql.max_seq, [], |row| row.get(0))?;
    match start {
        StartAt::Oldest => Ok(Begin::default()),
        StartAt::Now => Ok(Begin { position: last, since: last, ..Begin::default() }),
        StartAt::Unpublished => {
            let sql = &store.checkpoints;
            let first: Option<i64> = store.one(&sql.first_unpublished, [], |row| row.get(0))?;
            let position = first.map_or(last, |first| first - 1);
            let mut statement = store.conn.prepare(&sql.marked)?;
            let mut marked = statement.query(params![position, types, STRETCHES_MAX as i64])?;
            let mut beyond = String::new();
            while let Some(row) = marked.next()? {
                let (first, last): (i64, i64) = (row.get(0)?, row.get(1)?);
                let comma = if beyond.is_empty() { "" } else { "," };
                write!(beyond, "{comma}{first}-{last}").expect("a string takes everything");
            }
            Ok(Begin { position, beyond, since: position, start: Some(start.as_str()) })
        }
    }
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
    if progress == Progress::Cursor && store.companions.iter().any(|it| it == other) {
        let message = format!(
            "pipeline {pipeline:?} starts once pipeline {other:?} has changed from \
             {other_progress} to cursor"
        );
        return SourceError::new(SourceErrorKind::Unavailable, message);
    }
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
    let get = &store.checkpoints.get;
    let (recorded, position, beyond, matching) = store.one(get, [&store.pipeline], |row| {
        let (recorded, position, beyond): (String, i64, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let types: Option<String> = row.get(3)?;
        let types = types.and_then(|types| serde_json::from_str::<Vec<String>>(&types).ok());
        let formerly: String = row.get(4)?;
        Ok((recorded, position, beyond, Matching::new(types.unwrap_or_default(), &formerly)))
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
            let beyond = change_types(store, matching, position, stretches)?;
            return Ok(Start { progress: wanted, position, beyond, catch_up_to: None });
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
    // The rows say what is published, up to where the cursor will begin.
    set_types(store, &Matching::of(&store.type_names()))?;
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
        store.execute(&sql.mark_stretch, params![after, to, now, store.pipeline])?;
        after = to;
    }
    for stretch in beyond {
        let (after, to) = (stretch.first - 1, stretch.last);
        store.execute(&sql.mark_stretch, params![after, to, now, store.pipeline])?;
    }
    store.execute(&sql.mark_set_aside, params![store.pipeline, position, now])?;
    Ok(())
}

/// Matches what the configuration says from now on. What was read over of types that are new is set
/// aside, so that it is handed out in the order of its key: up to the position, and up to the last
/// row that is settled beyond it. Answers what is settled beyond the position now.
fn change_types(
    store: &Store,
    matching: Matching,
    position: i64,
    mut beyond: Vec<Stretch>,
) -> Result<Vec<Stretch>, Trouble> {
    let wanted = Matching::of(&store.type_names()).types;
    if matching.types == wanted {
        return Ok(beyond);
    }
    if matching.lacks(&wanted) {
        let mut taken_up = 0;
        let mut after: i64 = store.one(&store.checkpoints.before_first, [], |row| row.get(0))?;
        let last = beyond.last().map_or(position, |stretch| stretch.last);
        while after < last {
            let to = last.min(after.saturating_add(STRETCH));
            taken_up += take_up(store, after, to)?;
            after = to;
        }
        // Otherwise those between two stretches would be read once more.
        let mut statement = store.conn.prepare(&store.checkpoints.set_aside_between)?;
        let set_aside =
            statement.query_map(params![store.pipeline, position, last], |row| row.get(0))?;
        beyond = with_rows(beyond, set_aside.collect::<rusqlite::Result<Vec<i64>>>()?);
        let pipeline = &store.pipeline;
        info!(pipeline, taken_up, "events of types that are matched from now on are delivered");
    }
    let place = (position > 0).then(|| position.to_string());
    set_types(store, &matching.change(wanted, place.as_deref()))?;
    Ok(beyond)
}

/// Sets aside what was passed of a stretch and not published. Should the change be broken off, the
/// next start goes on with it.
fn take_up(store: &Store, after: i64, to: i64) -> Result<usize, Trouble> {
    let tx = store.write()?;
    let now = store.now()?.text;
    let mut keys = BTreeSet::new();
    let (mut taken_up, mut keyless) = (0, Vec::new());
    {
        let mut statement = store.conn.prepare_cached(&store.checkpoints.take_up)?;
        let params = params![store.pipeline, after, to, store.types(), now];
        let mut rows = statement.query(params)?;
        while let Some(row) = rows.next()? {
            taken_up += 1;
            let (seq, blocks): (i64, bool) = (row.get(0)?, row.get(3)?);
            match (row.get(1), row.get(2)) {
                _ if !blocks => {}
                (Ok(aggregate_type), Ok(aggregate_id)) => {
                    keys.insert(Key { aggregate_type, aggregate_id });
                }
                // A row that is no event: it is handed out to be parked.
                _ => keyless.push(seq),
            }
        }
    }
    for seq in keyless {
        store.execute(&store.sql.make_due, params![store.pipeline, seq, now])?;
    }
    store.keys().mend(keys, &now)?;
    tx.commit()?;
    Ok(taken_up)
}

fn set_types(store: &Store, matching: &Matching) -> Result<(), Trouble> {
    let now = store.now()?.text;
    let types = serde_json::Value::from_iter(matching.types.iter().cloned()).to_string();
    let sql = &store.checkpoints.set_types;
    store.execute(sql, params![store.pipeline, types, matching.formerly_text(), now])?;
    Ok(())
}
