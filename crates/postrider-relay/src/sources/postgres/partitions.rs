//! Drops and creates partitions of an outbox.
//!
//! A partition holds what was written in a stretch of time. It goes whole when that stretch is
//! past its retention, every pipeline has all of it behind it, and it is archived if that is asked
//! for. All of that is found out without a lock, as of one snapshot. Then the partition is locked,
//! for a moment, and dropped if the snapshot saw everything that is in it: so a transaction that
//! wrote to it long ago and commits only now loses nothing. A partition that cannot be locked in
//! time is tried again next time. (Dropping locks the outbox as well; where that takes too long,
//! the partition is emptied instead, and dropped later.)
//!
//! Rows that belong to no partition stand in the default one. They are the rows of the stretches
//! between partitions, before the first and after the last.

use std::fs;
use std::path::PathBuf;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::connection::{Param, Transaction};
use super::error::Trouble;
use super::prune::{Archive, PostgresPruner, Run, one};
use super::queries::{ONE_SNAPSHOT, SNAPSHOT, pruning as column};
use crate::prune::archive::PAGE_BYTES_MAX;
use crate::prune::{Left, Pruned};

/// How many blocks of a partition one statement looks at.
const BLOCKS_MAX: i64 = 1_024;
/// A snapshot in which no row is visible.
const SAW_NOTHING: &str = "1:1:";

/// A part of the outbox by the time of writing, in seconds from 1970; without an end it goes on
/// for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stretch {
    pub(super) since: Option<f64>,
    pub(super) until: Option<f64>,
}

#[derive(Debug)]
struct Partition {
    name: String,
    stretch: Stretch,
    /// All of it was written before the cutoff.
    is_old: bool,
}

/// Creates partitions ahead, and answers how many were missing.
pub(super) async fn add(pruner: &PostgresPruner) -> Result<u64, Trouble> {
    let rows = pruner.connection.query(&pruner.sql.add_partitions, &[]).await?;
    Ok(u64::try_from(one::<i32>(&rows)?).unwrap_or(0))
}

/// Drops what may go, and answers the stretches that have no partition and may hold old rows.
pub(super) async fn prune(run: &Run<'_>, pruned: &mut Pruned) -> Result<Vec<Stretch>, Trouble> {
    let cutoff = [(&run.cutoff as &(dyn ToSql + Sync), Type::TEXT)];
    let rows = run.pruner.connection.query(&run.pruner.sql.partitions, &cutoff).await?;
    let partitions = rows.iter().map(Partition::read).collect::<Result<Vec<_>, _>>()?;
    for partition in partitions.iter().filter(|partition| partition.is_old) {
        if run.shutdown.is_requested() {
            pruned.leave(Left::Stopped);
            break;
        }
        prune_one(run, partition, pruned).await?;
    }
    Ok(between(&partitions))
}

/// The stretches before, between and after partitions. What comes after one that is not old is
/// not old either.
fn between(partitions: &[Partition]) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut since = None;
    for Partition { stretch, is_old, .. } in partitions {
        if since != stretch.since {
            stretches.push(Stretch { since, until: stretch.since });
        }
        since = stretch.until;
        if !is_old {
            return stretches;
        }
    }
    stretches.push(Stretch { since, until: None });
    stretches
}

impl Partition {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let stretch = Stretch { since: row.try_get(1)?, until: row.try_get(2)? };
        Ok(Self { name: row.try_get(0)?, stretch, is_old: row.try_get(3)? })
    }
}

async fn prune_one(
    run: &Run<'_>,
    partition: &Partition,
    pruned: &mut Pruned,
) -> Result<(), Trouble> {
    let Partition { name, stretch, .. } = partition;
    let connection = &run.pruner.connection;
    let [one_end, other_end] = stretch.params();
    let params = [one_end, other_end, (&run.needs.first_xid as _, Type::TEXT)];
    let rows = connection.query(&run.pruner.sql.needed, &params).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (mut seen, has_rows): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
    if let Some(pipeline) = row.try_get(2)? {
        pruned.leave(Left::Pipeline(pipeline));
        return Ok(());
    }
    if has_rows && run.needs.marks && published_lately(run, partition).await? {
        return Ok(());
    }
    let is_unmatched = has_rows && !run.needs.matches_all && !run.options.unmatched;
    if is_unmatched && holds_unmatched(run, partition).await? {
        pruned.leave(Left::Unmatched);
        return Ok(());
    }
    if run.options.dry_run {
        pruned.partitions.extend(has_rows.then(|| name.clone()));
        return Ok(());
    }
    let mut files = Vec::new();
    if has_rows && run.options.archive.is_some() {
        // What cannot be locked now would be archived in vain: with a snapshot that saw nothing,
        // a drop ends where it has the lock.
        if let Ok(Gone::Locked) = drop_one(run, name, &SAW_NOTHING.to_owned()).await {
            pruned.leave(Left::Locked(name.clone()));
            return Ok(());
        }
        match archive(run, partition).await? {
            Some(archived) => (seen, files) = archived,
            None => {
                pruned.leave(Left::Busy);
                return Ok(());
            }
        }
    }
    let gone = drop_one(run, name, &seen).await;
    if !matches!(gone, Ok(Gone::Dropped) | Err(Uncertain::AfterAll(_))) {
        // Nothing was removed on account of them, and they will be written again.
        for file in files.drain(..) {
            let _ = fs::remove_file(file);
        }
    }
    pruned.archives.append(&mut files);
    match gone {
        Ok(Gone::Dropped) if has_rows => pruned.partitions.push(name.clone()),
        Ok(Gone::Dropped | Gone::Changed) => {}
        Ok(Gone::Locked) => pruned.leave(Left::Locked(name.clone())),
        Ok(Gone::Busy) => pruned.leave(Left::Busy),
        Err(Uncertain::Before(trouble) | Uncertain::AfterAll(trouble)) => return Err(trouble),
    }
    Ok(())
}

impl Stretch {
    fn params(&self) -> [Param<'_>; 2] {
        [(&self.since, Type::FLOAT8), (&self.until, Type::FLOAT8)]
    }
}

/// Whether a row was published after the cutoff, although it was written long before.
async fn published_lately(run: &Run<'_>, partition: &Partition) -> Result<bool, Trouble> {
    let cutoff: Param<'_> = (&run.cutoff, Type::TEXT);
    exists(run, partition, &run.pruner.sql.published_after, Some(cutoff)).await
}

/// Whether there is a row that no pipeline has published.
async fn holds_unmatched(run: &Run<'_>, partition: &Partition) -> Result<bool, Trouble> {
    exists(run, partition, &run.pruner.sql.unmatched, None).await
}

/// Asks about a partition, some blocks at a time.
async fn exists(
    run: &Run<'_>,
    partition: &Partition,
    question: &str,
    more: Option<Param<'_>>,
) -> Result<bool, Trouble> {
    let Partition { name, stretch, .. } = partition;
    let (connection, sql) = (&run.pruner.connection, &run.pruner.sql);
    let blocks = one(&connection.query(&sql.blocks, &[(name, Type::TEXT)]).await?)?;
    let mut from = 0;
    while from < blocks {
        let (since, until) = (block(from), block(from + BLOCKS_MAX));
        let mut params: Vec<Param<'_>> = stretch.params().to_vec();
        params.extend([(&since as _, Type::TEXT), (&until as _, Type::TEXT)]);
        params.extend(more.clone());
        if one(&connection.query(question, &params).await?)? {
            return Ok(true);
        }
        from += BLOCKS_MAX;
    }
    Ok(false)
}

/// Writes all rows of a partition to the archive, as of one snapshot. Answers that and the files;
/// `None` if somebody else prunes.
async fn archive(
    run: &Run<'_>,
    partition: &Partition,
) -> Result<Option<(String, Vec<PathBuf>)>, Trouble> {
    let (connection, sql) = (&run.pruner.connection, &run.pruner.sql);
    let mut tx = connection.begin().await?;
    tx.batch(ONE_SNAPSHOT).await?;
    if !run.lock(&mut tx).await? {
        return Ok(None);
    }
    let seen = one(&tx.query(SNAPSHOT, &[]).await?)?;
    let blocks = one(&tx.query(&sql.blocks, &[(&partition.name, Type::TEXT)]).await?)?;
    let mut files = Vec::new();
    let mut archive = Archive::default();
    let mut from = 0;
    while from < blocks {
        let mut after = block(from);
        while let Some((rows, last)) = page(run, &mut tx, partition, &after, from).await? {
            archive = archive.write(run, &rows).await?;
            if archive.is_full() {
                files.extend(std::mem::take(&mut archive).finish().await?);
            }
            after = last;
        }
        from += BLOCKS_MAX;
    }
    files.extend(archive.finish().await?);
    tx.commit().await?;
    Ok(Some((seen, files)))
}

/// The next rows of some blocks, and the place of the last of them.
async fn page(
    run: &Run<'_>,
    tx: &mut Transaction<'_>,
    partition: &Partition,
    after: &String,
    from: i64,
) -> Result<Option<(Vec<Row>, String)>, Trouble> {
    let until = block(from + BLOCKS_MAX);
    let [one_end, other_end] = partition.stretch.params();
    let params: [Param<'_>; 5] = [
        one_end,
        other_end,
        (after, Type::TEXT),
        (&until, Type::TEXT),
        (&(PAGE_BYTES_MAX as i64), Type::INT8),
    ];
    let rows = tx.query(&run.pruner.sql.page, &params).await?;
    let last = rows.last().map(|row| row.try_get(column::PAGE_AT)).transpose()?;
    Ok(last.map(|last| (rows, last)))
}

/// The place before the first row of a block.
fn block(number: i64) -> String {
    format!("({number},0)")
}

enum Gone {
    Dropped,
    /// Something came to it since the snapshot, or somebody else dropped it.
    Changed,
    Locked,
    Busy,
}

/// An error, and whether the partition may be gone all the same.
enum Uncertain {
    Before(Trouble),
    AfterAll(Trouble),
}

async fn drop_one(run: &Run<'_>, name: &String, seen: &String) -> Result<Gone, Uncertain> {
    let mut tx = run.pruner.connection.begin().await.map_err(Uncertain::Before)?;
    if !run.lock(&mut tx).await.map_err(Uncertain::Before)? {
        return Ok(Gone::Busy);
    }
    let params: [Param<'_>; 3] =
        [(name, Type::TEXT), (seen, Type::TEXT), (&run.needs.marks, Type::BOOL)];
    let dropped = match tx.query(&run.pruner.sql.drop_partition, &params).await {
        Ok(rows) => one::<Option<bool>>(&rows).map_err(Uncertain::Before)?,
        Err(trouble) if trouble.is(&SqlState::LOCK_NOT_AVAILABLE) => return Ok(Gone::Locked),
        Err(trouble) if trouble.is(&SqlState::INVALID_PARAMETER_VALUE) => return Ok(Gone::Changed),
        Err(trouble) => return Err(Uncertain::Before(trouble)),
    };
    match dropped {
        None => Ok(Gone::Changed),
        Some(_) => {
            tx.commit().await.map_err(Uncertain::AfterAll)?;
            Ok(Gone::Dropped)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_partition_has_is_between_them() {
        let partition = |since: f64, until: f64, is_old| Partition {
            name: String::new(),
            stretch: Stretch { since: Some(since), until: Some(until) },
            is_old,
        };
        let stretch = |since, until| Stretch { since, until };
        assert_eq!(between(&[]), [stretch(None, None)]);
        let days = [partition(1.0, 2.0, true), partition(4.0, 5.0, true)];
        let expected =
            [stretch(None, Some(1.0)), stretch(Some(2.0), Some(4.0)), stretch(Some(5.0), None)];
        assert_eq!(between(&days), expected);
        let days = [partition(1.0, 2.0, true), partition(2.0, 3.0, false)];
        assert_eq!(between(&days), [stretch(None, Some(1.0))]);
    }
}
