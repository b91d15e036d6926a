//! Prunes an outbox in SQLite.
//!
//! Rows are looked at in the order of `seq`, which is that of time, from the first one on. A batch
//! is one write transaction: it finds its rows, archives them if that is asked for, and removes
//! them. So no row can go that a relay made needed again in between. With an archive the
//! transaction lasts until the file is on disk, which is why a file has no more than one batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use postrider::schema::TableName;
use postrider::timestamp;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};

use super::admin::shown;
use super::error::Trouble;
use super::published::Published;
use super::queries::{self, PruneQueries};
use super::{Location, open};
use crate::prune::archive::{ArchiveFile, ArchivedRow, PAGE_BYTES_MAX};
use crate::prune::{
    BATCH_PAUSE, BATCH_ROWS_MAX, DRY_RUN_ROWS_MAX, FRUITLESS_ROWS_MAX, Left, Place, Prune,
    PruneOptions, Pruned,
};
use crate::shutdown::Shutdown;
use crate::source::SourceError;
use crate::sources::Progress;

/// Prunes one outbox in SQLite.
#[derive(Clone, Debug)]
pub struct SqlitePruner {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    location: Location,
    table: TableName,
    sql: PruneQueries,
}

impl SqlitePruner {
    /// Checks that the database is there and has the tables of an outbox.
    ///
    /// # Errors
    ///
    /// The same as those of [`SqliteOptions::connect`](super::SqliteOptions::connect).
    pub async fn connect(location: Location, table: TableName) -> Result<Self, SourceError> {
        let sql = PruneQueries::new(&table);
        let pruner = Self { shared: Arc::new(Shared { location, table, sql }) };
        pruner.run("open the outbox", |_, _| Ok(())).await?;
        Ok(pruner)
    }

    async fn run<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection, &Shared) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, SourceError> {
        let shared = Arc::clone(&self.shared);
        let (location, table) = (shared.location.clone(), shared.table.clone());
        open::visit(location, table, doing, move |conn| work(conn, &shared)).await
    }

    async fn prune_rows(
        &self,
        options: &PruneOptions,
        cutoff: &str,
        shutdown: &Shutdown,
    ) -> Result<Pruned, SourceError> {
        let mut pruned = Pruned::default();
        let from = options.from.as_ref().and_then(|Place(seq)| seq.parse().ok());
        let (mut after, mut fruitless, mut looked_at) = (from.unwrap_or(0), 0, 0);
        loop {
            if shutdown.is_requested() {
                pruned.leave(Left::Stopped);
                return Ok(pruned);
            }
            let (options, cutoff) = (options.clone(), cutoff.to_owned());
            let batch = self.run("prune the outbox", move |conn, shared| {
                batch(conn, shared, &options, &cutoff, after)
            });
            let batch = batch.await?;
            pruned.rows += batch.rows;
            pruned.archives.extend(batch.archive);
            batch.left.into_iter().for_each(|left| pruned.leave(left));
            fruitless = if batch.rows == 0 { fruitless + batch.looked_at } else { 0 };
            looked_at += batch.looked_at;
            let Some(last) = batch.last else { return Ok(pruned) };
            after = last;
            if fruitless >= FRUITLESS_ROWS_MAX && !batch.dry {
                return Ok(Pruned { left_off: Some(Place(after.to_string())), ..pruned });
            }
            if batch.dry && looked_at >= DRY_RUN_ROWS_MAX {
                return Ok(Pruned { at_least: true, ..pruned });
            }
            tokio::time::sleep(BATCH_PAUSE).await;
        }
    }

    /// That a dead letter was discarded is known for as long as a published event stays.
    async fn forget_discarded(&self, cutoff: &str, shutdown: &Shutdown) -> Result<(), SourceError> {
        while !shutdown.is_requested() {
            let cutoff = cutoff.to_owned();
            let forgotten = self.run("prune the outbox", move |conn, shared| {
                let params = params![cutoff, BATCH_ROWS_MAX as i64];
                Ok(conn.execute(&shared.sql.forget_discarded, params)?)
            });
            if forgotten.await? < BATCH_ROWS_MAX {
                break;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Prune for SqlitePruner {
    async fn upkeep(&self) -> Result<u64, SourceError> {
        Ok(0)
    }

    async fn prune(
        &self,
        options: &PruneOptions,
        shutdown: &Shutdown,
    ) -> Result<Pruned, SourceError> {
        let keep = options.keep;
        let cutoff = self.run("read the clock", move |conn, _| cutoff(conn, keep)).await?;
        let pruned = self.prune_rows(options, &cutoff, shutdown).await?;
        if !options.dry_run {
            self.forget_discarded(&cutoff, shutdown).await?;
        }
        Ok(pruned)
    }
}

/// What one batch did.
#[derive(Default)]
struct Batch {
    looked_at: usize,
    rows: u64,
    dry: bool,
    archive: Option<PathBuf>,
    left: Vec<Left>,
    /// Where to go on, unless this was the end.
    last: Option<i64>,
}

/// What is older than this is past its retention.
fn cutoff(conn: &Connection, keep: Duration) -> Result<String, Trouble> {
    let now: String = conn.query_row(queries::NOW, [], |row| row.get(0))?;
    let now = timestamp::from_text(&now).unwrap_or_else(|_| SystemTime::now());
    Ok(timestamp::to_text(now.checked_sub(keep).unwrap_or(SystemTime::UNIX_EPOCH)))
}

fn batch(
    conn: &Connection,
    shared: &Shared,
    options: &PruneOptions,
    cutoff: &str,
    after: i64,
) -> Result<Batch, Trouble> {
    let sql = &shared.sql;
    let behavior = match options.dry_run {
        true => TransactionBehavior::Deferred,
        false => TransactionBehavior::Immediate,
    };
    let tx = Transaction::new_unchecked(conn, behavior)?;
    let Some(needs) = Needs::read(&tx, sql, options.unmatched)? else {
        return Ok(Batch { left: vec![Left::NoPipeline], ..Batch::default() });
    };
    let bytes_max = options.archive.as_ref().map(|_| PAGE_BYTES_MAX);
    let found = Found::look(&tx, sql, &needs, cutoff, after, bytes_max)?;
    let mut batch = Batch {
        looked_at: found.looked_at,
        rows: found.going.len() as u64,
        dry: options.dry_run,
        archive: None,
        left: found.left,
        last: found.last,
    };
    if options.dry_run || found.going.is_empty() {
        return Ok(batch);
    }
    let numbers = serde_json::Value::from(found.going).to_string();
    if let Some(folder) = &options.archive {
        batch.archive = Some(archive(&tx, shared, folder, &numbers)?);
    }
    tx.execute(&sql.remove, [&numbers])?;
    tx.commit()?;
    Ok(batch)
}

/// Which rows the pipelines still need.
struct Needs {
    /// The pipeline that marks or removes rows, if there is one.
    marker: Option<String>,
    /// The pipeline whose cursor is furthest behind, and its position.
    slowest: Option<(String, i64)>,
    /// What each cursor has published of what is behind it.
    cursors: Vec<Published>,
    /// What no pipeline has published goes as well.
    unmatched: bool,
}

impl Needs {
    /// `None` if there is no pipeline.
    fn read(
        conn: &Connection,
        sql: &PruneQueries,
        unmatched: bool,
    ) -> rusqlite::Result<Option<Self>> {
        let mut statement = conn.prepare_cached(&sql.pipelines)?;
        let mut pipelines = statement.query([])?;
        let mut needs = Self { marker: None, slowest: None, cursors: Vec::new(), unmatched };
        while let Some(row) = pipelines.next()? {
            let (name, progress, position): (String, String, i64) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            if progress != Progress::Cursor.as_str() {
                needs.marker = Some(name);
                continue;
            }
            needs.cursors.push(Published::read(row, 3)?);
            if needs.slowest.as_ref().is_none_or(|(_, slowest)| position < *slowest) {
                needs.slowest = Some((name, position));
            }
        }
        let any = needs.marker.is_some() || needs.slowest.is_some();
        Ok(any.then_some(needs))
    }

    /// Why a row stays, if it does.
    fn of(&self, seq: i64, is_marked: bool, aggregate_type: &str) -> Option<Left> {
        if let Some(marker) = &self.marker
            && !is_marked
        {
            return Some(Left::Pipeline(marker.clone()));
        }
        if let Some((name, _)) = self.slowest.as_ref().filter(|(_, position)| seq > *position) {
            return Some(Left::Pipeline(name.clone()));
        }
        let is_published = || {
            let is_by = |it: &Published| it.is_known_to_match(seq, aggregate_type) == Some(true);
            is_marked || self.cursors.iter().any(is_by)
        };
        (!self.unmatched && !is_published()).then_some(Left::Unmatched)
    }
}

/// What a look at the next rows found.
#[derive(Default)]
struct Found {
    looked_at: usize,
    going: Vec<i64>,
    left: Vec<Left>,
    last: Option<i64>,
}

impl Found {
    fn look(
        conn: &Connection,
        sql: &PruneQueries,
        needs: &Needs,
        cutoff: &str,
        after: i64,
        bytes_max: Option<usize>,
    ) -> rusqlite::Result<Self> {
        let mut found = Self::default();
        let (mut bytes, mut last, mut any_old) = (0, None, false);
        let mut statement = conn.prepare_cached(&sql.window)?;
        let mut window = statement.query(params![after, BATCH_ROWS_MAX as i64, cutoff])?;
        while let Some(row) = window.next()? {
            let (seq, is_old, is_marked): (i64, bool, bool) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            found.looked_at += 1;
            last = Some(seq);
            any_old |= is_old;
            match needs.of(seq, is_marked, &shown(row, 4)?) {
                _ if !is_old => {}
                Some(left) => {
                    if !found.left.contains(&left) {
                        found.left.push(left);
                    }
                }
                None => {
                    found.going.push(seq);
                    bytes +=
                        usize::try_from(row.get::<_, Option<i64>>(3)?.unwrap_or(0)).unwrap_or(0);
                }
            }
            if bytes_max.is_some_and(|bytes_max| bytes >= bytes_max) {
                found.last = last;
                return Ok(found);
            }
        }
        // Numbers are in the order of time: behind a batch without an old row there is none.
        found.last = last.filter(|_| any_old && found.looked_at == BATCH_ROWS_MAX);
        Ok(found)
    }
}

fn archive(
    conn: &Connection,
    shared: &Shared,
    folder: &Path,
    numbers: &str,
) -> Result<PathBuf, Trouble> {
    let mut file = ArchiveFile::create(folder, shared.table.as_str())?;
    let mut statement = conn.prepare_cached(&shared.sql.rows)?;
    let rows: Vec<ArchivedRow> =
        statement.query_map([numbers], archived)?.collect::<rusqlite::Result<_>>()?;
    file.write(&rows)?;
    Ok(file.finish()?)
}

/// A row as it stands: any column may hold a value of any kind.
fn archived(row: &Row<'_>) -> rusqlite::Result<ArchivedRow> {
    let maybe = |index: usize| match row.get_ref(index)? {
        ValueRef::Null => Ok(None),
        _ => shown(row, index).map(Some),
    };
    Ok(ArchivedRow {
        seq: row.get(0)?,
        id: shown(row, 1)?,
        aggregate_type: shown(row, 2)?,
        aggregate_id: shown(row, 3)?,
        event_type: shown(row, 4)?,
        event_version: row.get(5).ok(),
        topic: maybe(6)?,
        headers: shown(row, 7)?,
        occurred_at: shown(row, 8)?,
        content_type: shown(row, 9)?,
        payload: match row.get_ref(10)? {
            ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
            _ => shown(row, 10)?.into_bytes(),
        },
        created_at: maybe(11)?,
        published_at: maybe(12)?,
    })
}
