//! How a pipeline keeps its progress, and how it changes from one way to another.
//!
//! The way is written in the pipeline's checkpoint, one row for each shard. `mark` and `delete`
//! keep progress in the rows, so they belong to one pipeline per outbox: [`refuse_others`]
//! refuses what would lose events.
//!
//! A row that is marked is done, whichever the way. So changing the way must only see to what is
//! not marked:
//!
//! - `mark` ↔ `delete`: both mean that a row which is there and not marked is to be published.
//! - `mark` or `delete` → `cursor`: the cursor starts where nothing was seen.
//! - `cursor` → `mark` or `delete`: the new way is written down first, and the position stays
//!   beside it. Then rows behind the position are marked, a stretch at a time, and the position
//!   is cleared. A start that finds a position beside `mark` or `delete` goes on with that.
//!
//! A cursor's position is worth something in the database cluster where it was made, and
//! nowhere else: transactions of another one are numbered differently. So it is refused there.
//!
//! A position that was written before a failover is as good as ever. It relies on no transaction
//! beyond the last one of which a row was seen (`lasting` in `read`), and that one had committed
//! before the position was written. So a server that has the position has that transaction too,
//! and every one that the position takes for ended; and it never gives a number again that is not
//! beyond all that it has.

use postrider::schema::TableName;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tracing::warn;

use super::cluster::Origin;
use super::connection::{Connection, Param, Transaction, is_so};
use super::error::Trouble;
use super::frontier::Position;
use super::lease::Held;
use super::queries::of_shard;
use super::ranges::Ranges;
use super::snapshot::Snapshot;
use super::table::Table;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::{Progress, Shard};

/// How many rows are marked in one statement.
const STRETCH: i64 = 10_000;

/// The statements about checkpoints.
#[derive(Debug)]
pub(super) struct CheckpointQueries {
    table: String,
    /// `$1` pipeline: how the other pipelines keep their progress.
    others: String,
    /// `$1` pipeline, `$2` shard, `$3` shards, `$4` progress: a first checkpoint, unless there is
    /// one.
    create: String,
    /// `$1` pipeline, `$2` shards: how many shards there were, if they were another number, and
    /// whether a relay still reads one.
    other_shards: String,
    /// `$1` pipeline: progress and position of each shard.
    positions: String,
    /// `$1` pipeline, `$2` shard, `$3` shards, `$4` progress, then base, tick, position, seen,
    /// beyond, cluster: makes or changes a checkpoint.
    put: String,
    /// `$1` pipeline: whether there may be events that only its slot has.
    log_only: String,
    /// `$1` pipeline, `$2` shards: forgets the shards that there are no more.
    drop_shards: String,
    /// `$1` pipeline, `$2` shard: progress and position.
    get: String,
    /// `$1` pipeline, `$2` shard, `$3` progress.
    set_progress: String,
    /// `$1` pipeline, `$2` shard: there is nothing behind the position.
    clear: String,
    /// `$1` pipeline, `$2` shard, `$3` cluster: counts a start; answers how many there were before,
    /// and the number of the transaction.
    started: String,
    /// `$1` pipeline, `$2` shard, `$3` epoch: forgets the starts.
    survived: String,
    /// `$1` after, `$2` limit, `$3` types, `$4` base, `$5` tick, `$6` position, `$7` seen, `$8`
    /// beyond: marks what is behind a position, or deletes it where that cannot be marked; answers
    /// up to where.
    mark_behind: String,
    /// Whether there are rows that were written in another cluster.
    has_foreign: String,
    /// They become rows of this one. It takes rights that a relay needs for nothing else.
    adopt: String,
}

impl CheckpointQueries {
    pub(super) fn new(table: &Table, outbox: &TableName, shard: Shard, origin: &Origin) -> Self {
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let checkpoints = outbox.checkpoints().quoted();
        let (leases, messages) = (outbox.leases().quoted(), outbox.messages().quoted());
        let xid = table.select("o", "xid");
        let (unpublished, done) = match table.has("published_at") {
            true => {
                let (column, now) = (table.name("published_at"), table.now("published_at"));
                (format!("o.{column} IS NULL"), format!("UPDATE {name} AS o SET {column} = {now}"))
            }
            false => ("true".to_owned(), format!("DELETE FROM {name} AS o")),
        };
        let aggregate_type = table.text("o", "aggregate_type");
        let of_shard = of_shard(shard, &aggregate_type, &table.text("o", "aggregate_id"));
        let snapshot = |parameter: &str| format!("(SELECT {parameter}::text::pg_snapshot)");
        let this = "pipeline = $1 AND shard = $2";
        let positions = format!(
            "SELECT progress, base::text, tick::text, position, seen::text, beyond::text, system_id,
               pg_snapshot_xmax(pg_current_snapshot())::text
             FROM {checkpoints} WHERE pipeline = $1"
        );
        Self {
            table: outbox.to_string(),
            others: format!(
                "SELECT DISTINCT pipeline, progress FROM {checkpoints} WHERE pipeline <> $1
                 ORDER BY pipeline"
            ),
            create: format!(
                "INSERT INTO {checkpoints} (pipeline, shard, shards, progress)
                 VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
            ),
            other_shards: format!(
                "SELECT c.shards, bool_or(l.expires_at > clock_timestamp()) IS TRUE
                 FROM {checkpoints} AS c LEFT JOIN {leases} AS l USING (pipeline, shard)
                 WHERE c.pipeline = $1 AND c.shards <> $2 GROUP BY c.shards"
            ),
            put: format!(
                "INSERT INTO {checkpoints} (pipeline, shard, shards, progress, base, tick,
                   position, seen, beyond, system_id)
                 VALUES ($1, $2, $3, $4, $5::text::pg_snapshot, $6::text::pg_snapshot, $7,
                   $8::text::pg_snapshot, $9::text::int8multirange, $10)
                 ON CONFLICT (pipeline, shard) DO UPDATE SET shards = excluded.shards,
                   base = excluded.base, tick = excluded.tick, position = excluded.position,
                   seen = excluded.seen, beyond = excluded.beyond, crashes = 0"
            ),
            log_only: format!(
                "SELECT EXISTS (SELECT FROM {checkpoints} WHERE pipeline = $1
                   AND (log_only OR lsn IS NOT NULL AND EXISTS (SELECT FROM {messages})))"
            ),
            drop_shards: format!("DELETE FROM {checkpoints} WHERE pipeline = $1 AND shard >= $2"),
            get: format!("{positions} AND shard = $2"),
            positions,
            set_progress: format!(
                "UPDATE {checkpoints} SET progress = $3, updated_at = clock_timestamp() WHERE {this}"
            ),
            clear: format!(
                "UPDATE {checkpoints} SET base = NULL, tick = NULL, position = 0, seen = NULL,
                 beyond = '{{}}', lsn = NULL, slot_snapshot = NULL, updated_at = clock_timestamp() WHERE {this}"
            ),
            started: format!(
                "UPDATE {checkpoints} SET crashes = crashes + 1, system_id = $3,
                 updated_at = clock_timestamp() WHERE {this}
                 RETURNING crashes - 1, pg_current_xact_id()::text"
            ),
            survived: format!(
                "UPDATE {checkpoints} SET crashes = 0, updated_at = clock_timestamp() WHERE {this}
                 AND EXISTS (SELECT FROM {leases} WHERE {this} AND epoch = $3)"
            ),
            mark_behind: format!(
                "WITH behind AS MATERIALIZED (
                   SELECT {seq}::bigint AS seq FROM {name} AS o
                   WHERE {unpublished} AND {seq} > $1 AND {}
                   AND ($3::text[] IS NULL OR {aggregate_type} = ANY($3)){of_shard}
                   AND (pg_visible_in_snapshot({xid}, {})
                     OR pg_visible_in_snapshot({xid}, {}) AND {seq} <= $6
                     OR pg_visible_in_snapshot({xid}, {})
                       AND {seq}::bigint <@ $8::text::int8multirange)
                   ORDER BY {seq} LIMIT $2
                 ), done AS (
                   {done} WHERE {seq} = ANY(ARRAY(SELECT seq FROM behind)) AND {unpublished}
                 )
                 SELECT max(seq) FROM behind",
                origin.holds(),
                snapshot("$4"),
                snapshot("$5"),
                snapshot("$7")
            ),
            has_foreign: format!(
                "SELECT EXISTS (SELECT FROM {name} AS o
                 WHERE {xid} >= pg_snapshot_xmax(pg_current_snapshot()))"
            ),
            adopt: format!(
                "UPDATE {name} AS o SET {} = pg_current_xact_id()
                 WHERE {xid} >= pg_snapshot_xmax(pg_current_snapshot())",
                table.name("xid")
            ),
        }
    }

    /// Whether there may be events that only a pipeline's slot has.
    pub(super) async fn is_log_only(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &str,
    ) -> Result<bool, Trouble> {
        is_so(&tx.query(&self.log_only, &[(&pipeline, Type::TEXT)]).await?)
    }

    /// Enters the pipeline among those that read the outbox, unless it does not go with them.
    /// `shards` is 0 where relays read side by side.
    pub(super) async fn enter(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &str,
        shards: i32,
        progress: Progress,
        types: Option<&[String]>,
    ) -> Result<(), Trouble> {
        self.refuse_others(tx, pipeline, progress).await?;
        let params: [Param<'_>; 2] = [(&pipeline, Type::TEXT), (&shards, Type::INT4)];
        let mut changed = false;
        for row in tx.query(&self.other_shards, &params).await? {
            let (before, is_read): (i32, bool) = (row.try_get(0)?, row.try_get(1)?);
            if is_read {
                return Err(other_shards(pipeline, before, shards).into());
            }
            let (before, now) = (in_words(before), in_words(shards));
            warn!(pipeline, before, now, "the number of shards was changed");
            changed = true;
        }
        if changed {
            self.reshard(tx, pipeline, shards, types).await?;
            tx.execute(&self.drop_shards, &params).await?;
        }
        Ok(())
    }

    /// Goes on from what all shards have settled that there were.
    async fn reshard(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &str,
        shards: i32,
        types: Option<&[String]>,
    ) -> Result<(), Trouble> {
        let rows = tx.query(&self.positions, &[(&pipeline, Type::TEXT)]).await?;
        let Some(first) = rows.first() else { return Ok(()) };
        let positions: Vec<_> = rows.iter().map(position).collect::<Result<_, _>>()?;
        let position =
            positions.into_iter().reduce(|one, other| Some(one?.merge(other?))).flatten();
        if let Some(position) = position.as_ref().filter(|_| shards == 0) {
            // Relays that read side by side have no position.
            return self.mark_behind(Through::Transaction(tx), position, types).await;
        }
        let (progress, cluster): (&str, Option<i64>) = (first.try_get(0)?, first.try_get(6)?);
        let snapshot =
            |of: fn(&Position) -> &Snapshot| position.as_ref().map(|p| of(p).to_string());
        let (base, tick) = (snapshot(|p| &p.base), snapshot(|p| &p.tick));
        let seen = snapshot(|p| &p.seen);
        let seq = position.as_ref().map_or(0, |position| position.seq);
        let beyond = position.map(|position| position.beyond).unwrap_or_default().to_text();
        for shard in 0..shards {
            let params: [Param<'_>; 10] = [
                (&pipeline, Type::TEXT),
                (&shard, Type::INT4),
                (&shards, Type::INT4),
                (&progress, Type::TEXT),
                (&base, Type::TEXT),
                (&tick, Type::TEXT),
                (&seq, Type::INT8),
                (&seen, Type::TEXT),
                (&beyond, Type::TEXT),
                (&cluster, Type::INT8),
            ];
            tx.execute(&self.put, &params).await?;
        }
        Ok(())
    }

    /// Makes a checkpoint, unless there is one.
    pub(super) async fn create(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &str,
        (shard, shards): (i32, i32),
        progress: Progress,
    ) -> Result<(), Trouble> {
        let params: [Param<'_>; 4] = [
            (&pipeline, Type::TEXT),
            (&shard, Type::INT4),
            (&shards, Type::INT4),
            (&progress.as_str(), Type::TEXT),
        ];
        tx.execute(&self.create, &params).await?;
        Ok(())
    }

    async fn refuse_others(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &str,
        progress: Progress,
    ) -> Result<(), Trouble> {
        for row in tx.query(&self.others, &[(&pipeline, Type::TEXT)]).await? {
            let (other, other_progress): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            if progress != Progress::Cursor || other_progress != Progress::Cursor.as_str() {
                let table = &self.table;
                let message = format!(
                    "pipeline {pipeline:?} cannot keep its progress by {progress}: \
                     pipeline {other:?} reads {table} by {other_progress}"
                );
                return Err(SourceError::new(SourceErrorKind::Misconfigured, message)
                    .with_hint(format!(
                        "write progress = \"cursor\" in both; if {other:?} is no longer used, \
                         remove its rows from {table}_checkpoints"
                    ))
                    .into());
            }
        }
        Ok(())
    }

    /// Finds out where to start, after changing the way of progress if need be, and counts the
    /// start.
    pub(super) async fn start(
        &self,
        connection: &Connection,
        start: Start<'_>,
    ) -> Result<Started, Trouble> {
        let Start { pipeline, shard, wanted, cluster, types, .. } = start;
        let this: [Param<'_>; 2] = [(&pipeline, Type::TEXT), (&shard, Type::INT4)];
        let rows = connection.query(&self.get, &this).await?;
        let row = rows.first().ok_or_else(|| self.checkpoint_is_gone(pipeline))?;
        let recorded: &str = row.try_get(0)?;
        let Some(recorded) = Progress::from_name(recorded) else {
            let message = format!(
                "the checkpoint of pipeline {pipeline:?} says progress {recorded:?}, which is \
                 unknown here"
            );
            return Err(SourceError::new(SourceErrorKind::Unsafe, message)
                .with_hint("upgrade postrider, or undo what was changed by hand")
                .into());
        };
        let position = position(row)?;
        if let Some(position) = &position {
            self.refuse_other_cluster(pipeline, cluster, position, row)?;
        }
        if recorded != wanted {
            let mut tx = connection.begin().await?;
            self.refuse_others(&mut tx, pipeline, wanted).await?;
            let progress = wanted.as_str();
            let set: [Param<'_>; 3] =
                [(&pipeline, Type::TEXT), (&shard, Type::INT4), (&progress, Type::TEXT)];
            tx.execute(&self.set_progress, &set).await?;
            tx.commit().await?;
        }
        let position = match (wanted, position) {
            (Progress::Cursor, position) => position.unwrap_or_else(Position::start),
            (Progress::Delete | Progress::Mark, None) => Position::start(),
            (Progress::Delete | Progress::Mark, Some(position)) => {
                self.mark_behind(Through::Connection(connection), &position, types).await?;
                connection.execute(&self.clear, &this).await?;
                Position::start()
            }
        };
        if start.adopts && self.has_foreign(connection).await? {
            let adopted = connection.execute(&self.adopt, &[]).await?;
            warn!(pipeline, adopted, "found rows that were written in another database cluster");
        }
        let params: [Param<'_>; 3] =
            [(&pipeline, Type::TEXT), (&shard, Type::INT4), (&cluster, Type::INT8)];
        let rows = connection.query(&self.started, &params).await?;
        let row = rows.first().ok_or_else(|| self.checkpoint_is_gone(pipeline))?;
        let crashes: i32 = row.try_get(0)?;
        Ok(Started {
            position,
            crashes: u32::try_from(crashes).unwrap_or(0),
            xid: row.try_get::<_, &str>(1)?.parse().unwrap_or(0),
        })
    }

    /// Whether there are rows that were written in another cluster.
    pub(super) async fn has_foreign(&self, connection: &Connection) -> Result<bool, Trouble> {
        is_so(&connection.query(&self.has_foreign, &[]).await?)
    }

    /// Marks what a cursor has behind it.
    async fn mark_behind(
        &self,
        mut through: Through<'_, '_>,
        position: &Position,
        types: Option<&[String]>,
    ) -> Result<(), Trouble> {
        let Position { base, tick, seq, seen, beyond, .. } = position;
        let (base, tick, beyond) = (base.to_string(), tick.to_string(), beyond.to_text());
        let seen = seen.to_string();
        let mut after = i64::MIN;
        loop {
            let params: [Param<'_>; 8] = [
                (&after, Type::INT8),
                (&STRETCH, Type::INT8),
                (&types, Type::TEXT_ARRAY),
                (&base, Type::TEXT),
                (&tick, Type::TEXT),
                (seq, Type::INT8),
                (&seen, Type::TEXT),
                (&beyond, Type::TEXT),
            ];
            let rows = match &mut through {
                Through::Connection(connection) => {
                    connection.query(&self.mark_behind, &params).await
                }
                Through::Transaction(tx) => tx.query(&self.mark_behind, &params).await,
            }?;
            match rows.first().map(|row| row.try_get::<_, Option<i64>>(0)).transpose()?.flatten() {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    /// Forgets earlier starts.
    pub(super) async fn survived(
        &self,
        connection: &Connection,
        pipeline: &str,
        held: &Held,
    ) -> Result<(), Trouble> {
        let params: [Param<'_>; 3] =
            [(&pipeline, Type::TEXT), (&held.shard, Type::INT4), (&held.epoch, Type::INT8)];
        connection.execute(&self.survived, &params).await?;
        Ok(())
    }

    fn refuse_other_cluster(
        &self,
        pipeline: &str,
        cluster: Option<i64>,
        position: &Position,
        row: &Row,
    ) -> Result<(), Trouble> {
        let recorded: Option<i64> = row.try_get(6)?;
        let now: u64 = row.try_get::<_, &str>(7)?.parse().unwrap_or(u64::MAX);
        let is_another =
            recorded.zip(cluster).is_some_and(|(recorded, cluster)| recorded != cluster);
        if !is_another && position.tick.xmax() <= now && position.base.xmax() <= now {
            return Ok(());
        }
        let table = &self.table;
        let message = format!(
            "the cursor of pipeline {pipeline:?} was made in another database cluster: it says \
             nothing about the rows here"
        );
        let name = pipeline.replace('\'', "''");
        Err(SourceError::new(SourceErrorKind::Unsafe, message)
            .with_hint(format!(
                "after pg_upgrade, which keeps transaction numbers: UPDATE {table}_checkpoints SET \
                 system_id = NULL WHERE pipeline = '{name}'; after a restore: DELETE FROM \
                 {table}_checkpoints WHERE pipeline = '{name}', which publishes everything that \
                 is in {table} again"
            ))
            .into())
    }

    /// Somebody removed the checkpoint while the pipeline ran.
    pub(super) fn checkpoint_is_gone(&self, pipeline: &str) -> SourceError {
        let table = &self.table;
        let message =
            format!("the checkpoint of pipeline {pipeline:?} was removed from {table}_checkpoints");
        SourceError::new(SourceErrorKind::Unsafe, message)
            .with_hint("start the relay again: it makes a new checkpoint")
    }
}

/// Who runs a statement several times.
enum Through<'t, 'c> {
    /// Each time in a transaction of its own, so that writers get in between.
    Connection(&'t Connection),
    Transaction(&'t mut Transaction<'c>),
}

/// What a start has to know.
#[derive(Clone, Copy)]
pub(super) struct Start<'s> {
    pub(super) pipeline: &'s str,
    pub(super) shard: i32,
    /// The way that the configuration asks for.
    pub(super) wanted: Progress,
    /// The database cluster, if it can be told.
    pub(super) cluster: Option<i64>,
    pub(super) types: Option<&'s [String]>,
    /// Rows written in another cluster are to become rows of this one.
    pub(super) adopts: bool,
}

/// How a pipeline starts.
pub(super) struct Started {
    pub(super) position: Position,
    /// How many starts there were before it that ended badly.
    pub(super) crashes: u32,
    /// The transaction that counted the start, which is committed.
    pub(super) xid: u64,
}

fn position(row: &Row) -> Result<Option<Position>, Trouble> {
    let snapshot = |index: usize| -> Result<Option<Snapshot>, Trouble> {
        let text: Option<&str> = row.try_get(index)?;
        let parsed = text.map(str::parse).transpose();
        parsed.map_err(|_| {
            let message = "the checkpoint holds a snapshot that cannot be read";
            SourceError::new(SourceErrorKind::Unsafe, message).into()
        })
    };
    let (Some(base), Some(tick)) = (snapshot(1)?, snapshot(2)?) else {
        return Ok(None);
    };
    let seen = snapshot(4)?.unwrap_or_else(|| tick.clone());
    // What cannot be read is left out: its events are repeated.
    let beyond = Ranges::from_text(row.try_get(5)?).unwrap_or_default();
    let seq = row.try_get(3)?;
    // What there is about the log is read where the log is.
    Ok(Some(Position { base, tick, seq, seen, beyond, log: None }))
}

/// A number of shards as the configuration has it.
fn in_words(shards: i32) -> String {
    match shards {
        0 => "ordering = \"none\"".to_owned(),
        shards => format!("shards = {shards}"),
    }
}

fn other_shards(pipeline: &str, before: i32, shards: i32) -> SourceError {
    let (before, shards) = (in_words(before), in_words(shards));
    let message =
        format!("relays still run pipeline {pipeline:?} with {before}, and this one has {shards}");
    SourceError::new(SourceErrorKind::Unavailable, message)
        .with_hint("stop those relays, or configure all of them alike")
}
