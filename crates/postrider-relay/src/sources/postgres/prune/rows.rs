//! Finds and removes rows.
//!
//! Nothing says directly which rows are published and old: an index on `published_at` would cost
//! every mark more than the mark itself. But transactions are numbered in the order of time, and
//! there is an index on their numbers. So rows are looked through by it from the oldest on, a
//! window at a time. What is old comes first; behind a window without anything old there is
//! nothing to look for. A row that is left in front, because a pipeline still needs it, is passed
//! over, and after many of those the search ends, and goes on from there next time.
//!
//! A batch is one transaction under a lock that only one pruner has at a time. Rows are removed
//! by where they stand, and only in the version that was looked at: if somebody has changed a row
//! since (made it unpublished again, say), it stands elsewhere and stays. With an archive the
//! transaction takes several windows into one file, so that there are not too many of them.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::connection::Transaction;
use super::super::error::Trouble;
use super::super::partitions::Stretch;
use super::super::queries::{Order, pruning as column};
use super::archive::Archive;
use super::{Param, Run};
use crate::prune::archive::PAGE_BYTES_MAX;
use crate::prune::{
    BATCH_PAUSE, BATCH_ROWS_MAX, DRY_RUN_ROWS_MAX, FRUITLESS_ROWS_MAX, Left, Place, Pruned,
};

/// How far a search through rows has come.
struct Search {
    place: String,
    /// Rows that were looked at since one was removed.
    fruitless: usize,
    /// There is nothing old behind this place.
    is_at_end: bool,
}

impl Search {
    fn is_over(&self) -> bool {
        self.is_at_end || self.fruitless > FRUITLESS_ROWS_MAX
    }

    fn is_before(&self, Place(place): &Place) -> bool {
        number(&self.place) < number(place)
    }

    /// So many rows were removed: none, if somebody does not let them go.
    fn removed(&mut self, rows: u64) {
        if rows > 0 {
            self.fruitless = 0;
        }
    }
}

impl Run<'_> {
    /// Removes rows, one batch after the other.
    pub(super) async fn rows(&self, stretch: &Stretch, pruned: &mut Pruned) -> Result<(), Trouble> {
        let start = Order::of(&self.pruner.table).start;
        let start = self.options.from.as_ref().map_or(start, |Place(place)| place);
        let mut search = Search { place: start.to_owned(), fruitless: 0, is_at_end: false };
        while !search.is_over() {
            if self.shutdown.is_requested() {
                pruned.leave(Left::Stopped);
                return Ok(());
            }
            let is_free = match (self.options.dry_run, &self.options.archive) {
                (true, _) => self.look(stretch, &mut search, pruned).await?,
                (false, None) => self.batch(stretch, &mut search, pruned).await?,
                (false, Some(_)) => self.archived_batch(stretch, &mut search, pruned).await?,
            };
            if !is_free {
                pruned.leave(Left::Busy);
                return Ok(());
            }
            tokio::time::sleep(BATCH_PAUSE).await;
        }
        if search.place == start {
            // Somebody does not let the rows of this transaction go.
            search.place = after(start);
        }
        // Of several stretches it is the one that came least far.
        if !search.is_at_end && pruned.left_off.as_ref().is_none_or(|it| search.is_before(it)) {
            pruned.left_off = Some(Place(search.place));
        }
        Ok(())
    }

    /// Counts what would go.
    async fn look(
        &self,
        stretch: &Stretch,
        search: &mut Search,
        pruned: &mut Pruned,
    ) -> Result<bool, Trouble> {
        let limit = DRY_RUN_ROWS_MAX as i64;
        let params = window_params(&search.place, &limit, &self.cutoff, stretch);
        let rows = self.pruner.connection.query(&self.pruner.sql.window, &params).await?;
        let window = Window::read(&rows, None, self.options.unmatched, pruned)?;
        pruned.rows += window.going.len() as u64;
        pruned.at_least |= window.looked_at == DRY_RUN_ROWS_MAX;
        search.is_at_end = true;
        Ok(true)
    }

    /// Removes one window; false if somebody else prunes.
    async fn batch(
        &self,
        stretch: &Stretch,
        search: &mut Search,
        pruned: &mut Pruned,
    ) -> Result<bool, Trouble> {
        let mut tx = self.pruner.connection.begin().await?;
        if !self.lock(&mut tx).await? {
            tx.commit().await?;
            return Ok(false);
        }
        let going = self.window(&mut tx, stretch, search, None, pruned).await?;
        let removed = match going.is_empty() {
            true => 0,
            false => tx.execute(&self.pruner.sql.remove, &going.params(stretch)).await?,
        };
        tx.commit().await?;
        search.removed(removed);
        pruned.rows += removed;
        Ok(true)
    }

    /// Removes as many windows as fit into a file of the archive; false if somebody else prunes.
    async fn archived_batch(
        &self,
        stretch: &Stretch,
        search: &mut Search,
        pruned: &mut Pruned,
    ) -> Result<bool, Trouble> {
        let mut tx = self.pruner.connection.begin().await?;
        if !self.lock(&mut tx).await? {
            tx.commit().await?;
            return Ok(false);
        }
        let mut archive = Archive::default();
        let mut removed = 0;
        while !search.is_over() && !archive.is_full() {
            let going = self.window(&mut tx, stretch, search, Some(PAGE_BYTES_MAX), pruned).await?;
            if going.is_empty() {
                continue;
            }
            let rows = tx.query(&self.pruner.sql.take_out, &going.params(stretch)).await?;
            if !rows.is_empty() {
                search.removed(rows.len() as u64);
                removed += rows.len() as u64;
                archive = archive.write(self, &rows).await?;
            }
        }
        let file = archive.finish().await?;
        tx.commit().await?;
        pruned.rows += removed;
        pruned.archives.extend(file);
        Ok(true)
    }

    /// Finds the rows that go of the next window.
    async fn window(
        &self,
        tx: &mut Transaction<'_>,
        stretch: &Stretch,
        search: &mut Search,
        bytes_max: Option<usize>,
        pruned: &mut Pruned,
    ) -> Result<Going, Trouble> {
        let limit = BATCH_ROWS_MAX as i64;
        let params = window_params(&search.place, &limit, &self.cutoff, stretch);
        let rows = tx.query(&self.pruner.sql.window, &params).await?;
        let window = Window::read(&rows, bytes_max, self.options.unmatched, pruned)?;
        search.fruitless += window.looked_at;
        let is_full = window.is_cut || rows.len() == BATCH_ROWS_MAX;
        search.is_at_end = !is_full || !window.any_old;
        if let (Some(first), Some(last)) = (rows.first(), window.last) {
            let stuck = last == first.try_get::<_, &str>(column::PLACE)? && window.going.is_empty();
            // All of it is of one transaction, which may go on further: the rest waits.
            search.place = if stuck { after(&last) } else { last };
        }
        Ok(window.going)
    }
}

fn window_params<'p>(
    place: &'p String,
    limit: &'p i64,
    cutoff: &'p String,
    stretch: &'p Stretch,
) -> [Param<'p>; 5] {
    [
        (place, Type::TEXT),
        (limit, Type::INT8),
        (cutoff, Type::TEXT),
        (&stretch.since, Type::FLOAT8),
        (&stretch.until, Type::FLOAT8),
    ]
}

/// The place right after one.
fn after(place: &str) -> String {
    (number(place) + 1).to_string()
}

fn number(place: &str) -> i128 {
    place.parse().unwrap_or_default()
}

/// What a look at the next rows found.
#[derive(Default)]
struct Window {
    looked_at: usize,
    going: Going,
    any_old: bool,
    /// It was cut off where enough bytes were together.
    is_cut: bool,
    /// The place of the last row.
    last: Option<String>,
}

/// Rows that go: where they stand, and their numbers.
#[derive(Default)]
struct Going {
    at: Vec<String>,
    seqs: Vec<i64>,
}

impl Going {
    fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    fn len(&self) -> usize {
        self.seqs.len()
    }

    fn params<'p>(&'p self, stretch: &'p Stretch) -> [Param<'p>; 4] {
        [
            (&self.at, Type::TEXT_ARRAY),
            (&self.seqs, Type::INT8_ARRAY),
            (&stretch.since, Type::FLOAT8),
            (&stretch.until, Type::FLOAT8),
        ]
    }
}

impl Window {
    fn read(
        rows: &[Row],
        bytes_max: Option<usize>,
        unmatched: bool,
        pruned: &mut Pruned,
    ) -> Result<Self, tokio_postgres::Error> {
        let mut window = Self::default();
        let mut bytes = 0;
        for row in rows {
            if bytes_max.is_some_and(|bytes_max| bytes >= bytes_max) {
                window.is_cut = true;
                break;
            }
            window.looked_at += 1;
            window.last = Some(row.try_get(column::PLACE)?);
            let is_old: bool = row.try_get(column::IS_OLD)?;
            window.any_old |= is_old;
            match row.try_get::<_, Option<String>>(column::NEEDED_BY)? {
                _ if !is_old => {}
                Some(pipeline) => pruned.leave(Left::Pipeline(pipeline)),
                None if !unmatched && row.try_get(column::UNMATCHED)? => {
                    pruned.leave(Left::Unmatched);
                }
                None => {
                    window.going.at.push(row.try_get(column::AT)?);
                    window.going.seqs.push(row.try_get(column::SEQ)?);
                    let payload: Option<i64> = row.try_get(column::BYTES)?;
                    bytes += usize::try_from(payload.unwrap_or(0)).unwrap_or(0);
                }
            }
        }
        Ok(window)
    }
}
