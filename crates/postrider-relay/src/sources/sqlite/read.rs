//! Finds the next rows: first what was set aside and is due, then what was released, then what
//! is fresh.
//!
//! SQLite has one writer at a time, so `seq` is in the order of commits, and a row that is seen
//! has no unseen row before it. Hence reading behind the last `seq` loses nothing, which in a
//! database with concurrent writers it would.
//!
//! Nothing is changed here, neither in the database nor in the [`Window`]: a read that fails
//! half way has not happened.

use std::time::Duration;

use rusqlite::params;

use super::row::{Decoded, decode};
use super::store::{Now, Store};
use super::window::Window;
use crate::source::BatchLimit;
use crate::sources::Progress;
use crate::sources::room::Room;

/// How far one look goes if it has to pass over rows that do not match.
const SCAN_ROWS_MAX: i64 = 50_000;

/// Where a row was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Fresh,
    Released,
    SetAside,
}

/// What one look found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) rows: Vec<(Origin, Decoded)>,
    /// Released rows that are no longer to be delivered.
    pub(super) gone: Vec<i64>,
    /// Fresh rows were read or passed over up to here.
    pub(super) read_to: i64,
    /// The look ended before the last row.
    pub(super) more: bool,
    pub(super) now: Now,
    /// When something that is set aside comes due.
    pub(super) next_due: Option<Duration>,
}

/// Looks for rows within the limit, fresh ones not beyond `up_to`.
pub(super) fn look(
    store: &Store,
    window: &Window,
    progress: Progress,
    up_to: i64,
    limit: BatchLimit,
) -> rusqlite::Result<Found> {
    let snapshot = store.read()?;
    let now = store.now()?;
    let mut look = Look { store, window, progress, room: Room::new(limit), rows: Vec::new() };
    let mut gone = Vec::new();
    let mut reach = Reach { read_to: window.position, more: false };
    if look.set_aside(&now)? && look.released(&mut gone)? {
        reach = look.fresh(up_to)?;
    }
    let next_due = if look.rows.is_empty() { look.next_due(&now)? } else { None };
    let rows = look.rows;
    snapshot.finish()?;
    Ok(Found { rows, gone, read_to: reach.read_to, more: reach.more, now, next_due })
}

struct Look<'a> {
    store: &'a Store,
    window: &'a Window,
    progress: Progress,
    room: Room,
    rows: Vec<(Origin, Decoded)>,
}

struct Reach {
    read_to: i64,
    more: bool,
}

impl Look<'_> {
    /// False if there is no room for the row.
    fn take(&mut self, origin: Origin, row: Decoded) -> bool {
        let bytes = row.event.as_ref().map_or(0, |event| event.size_bytes());
        let fits = self.room.take(bytes);
        if fits {
            self.rows.push((origin, row));
        }
        fits
    }

    /// Rows whose turn it is, each with what is queued right behind it. False if room ran out.
    fn set_aside(&mut self, now: &Now) -> rusqlite::Result<bool> {
        let Self { store, window, .. } = *self;
        // Rows under way are still in the table and take up places of the answer.
        let limit = sql_limit(self.room.events().saturating_add(window.returned()));
        let mut due = store.conn.prepare_cached(&store.sql.due)?;
        let mut due = due.query(params![store.pipeline, now.text, limit])?;
        while let Some(row) = due.next()? {
            let first: i64 = row.get(0)?;
            if window.has_returned(first) {
                continue;
            }
            if !self.take_set_aside(first)? {
                return Ok(false);
            }
            let key: (Option<String>, Option<String>) = (row.get(1)?, row.get(2)?);
            if let (Some(aggregate_type), Some(aggregate_id)) = key {
                let mut behind = store.conn.prepare_cached(&store.sql.behind)?;
                let mut behind = behind.query(params![
                    store.pipeline,
                    aggregate_type,
                    aggregate_id,
                    first,
                    now.text
                ])?;
                while let Some(row) = behind.next()? {
                    let (seq, may_follow): (i64, bool) = (row.get(0)?, row.get(1)?);
                    if !may_follow || window.has_returned(seq) {
                        break;
                    }
                    if !self.take_set_aside(seq)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(!self.room.is_full())
    }

    fn take_set_aside(&mut self, seq: i64) -> rusqlite::Result<bool> {
        if self.room.is_full() {
            return Ok(false);
        }
        let Self { store, .. } = *self;
        let place = params![store.pipeline, seq];
        let mut row = store.one(&store.sql.set_aside_row, place, decode)?;
        if row.event.is_err() {
            row = store.maybe(&store.sql.left_row, place, decode)?.unwrap_or(row);
        }
        Ok(self.take(Origin::SetAside, row))
    }

    /// Rows that were given back. False if room ran out.
    fn released(&mut self, gone: &mut Vec<i64>) -> rusqlite::Result<bool> {
        let sql = match self.progress {
            Progress::Cursor => &self.store.sql.row,
            Progress::Delete | Progress::Mark => &self.store.sql.unpublished_row,
        };
        for seq in &self.window.released {
            if self.room.is_full() {
                return Ok(false);
            }
            match self.store.maybe(sql, [seq], decode)? {
                Some(row) => {
                    if !self.take(Origin::Released, row) {
                        return Ok(false);
                    }
                }
                None => gone.push(*seq),
            }
        }
        Ok(!self.room.is_full())
    }

    fn fresh(&mut self, up_to: i64) -> rusqlite::Result<Reach> {
        let Self { store, window, progress, .. } = *self;
        let mut limit = self.room.events();
        if progress == Progress::Cursor {
            limit = limit.min(window.frontier.room());
        }
        let position = window.position;
        let mut reach = Reach { read_to: position, more: false };
        let last: i64 = store.one(&store.sql.max_seq, [], |row| row.get(0))?;
        let last = last.min(up_to);
        if last <= position || limit == 0 {
            return Ok(reach);
        }
        let scan_to = match store.matching {
            Some(_) => last.min(position.saturating_add(SCAN_ROWS_MAX)),
            None => last,
        };
        let sql = match progress {
            Progress::Cursor => &store.sql.rows,
            Progress::Delete | Progress::Mark => &store.sql.unpublished,
        };
        let mut statement = store.conn.prepare_cached(sql)?;
        let mut rows = statement.query(params![
            position,
            scan_to,
            sql_limit(limit),
            store.matching,
            store.pipeline
        ])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            seen += 1;
            let row = decode(row)?;
            let seq = row.seq;
            if !window.frontier.was_settled(seq) && !self.take(Origin::Fresh, row) {
                return Ok(reach);
            }
            reach.read_to = seq;
        }
        reach.more = true;
        if seen < limit {
            // Whatever else is there is not for this pipeline.
            reach.read_to = scan_to;
            reach.more = scan_to < last;
        }
        Ok(reach)
    }

    fn next_due(&self, now: &Now) -> rusqlite::Result<Option<Duration>> {
        let sql = &self.store.sql.next_due;
        let due: Option<String> =
            self.store.one(sql, params![self.store.pipeline, now.text], |row| row.get(0))?;
        // A time that cannot be read was written by hand; look again soon.
        Ok(due.map(|due| {
            postrider::timestamp::from_text(&due)
                .ok()
                .and_then(|due| due.duration_since(now.time).ok())
                .unwrap_or(Duration::from_secs(1))
        }))
    }
}

fn sql_limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
