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
//! What the pipeline matches stands beside the position
//! ([`matching`](crate::sources::matching)): a cursor has passed, and not published, what was of
//! another type.
//!
//! A cursor's position is worth something in the database cluster where it was made, and
//! nowhere else: transactions of another one are numbered differently. So it is refused there.
//!
//! A position that was written before a failover is as good as ever. It relies on no transaction
//! beyond the last one of which a row was seen (`lasting` in `read`), and that one had committed
//! before the position was written. So a server that has the position has that transaction too,
//! and every one that the position takes for ended; and it never gives a number again that is not
//! beyond all that it has.

mod types;

use postrider::schema::TableName;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tracing::warn;

use super::cluster::Origin;
use super::connection::{Connection, Param, Transaction, is_so};
use super::error::Trouble;
use super::frontier::Position;
use super::lease::Held;
use super::queries::{SNAPSHOT, has_published, of_checkpoint, of_shard};
use super::ranges::Ranges;
use super::snapshot::Snapshot;
use super::table::Table;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::matching::Matching;
use crate::sources::{Progress, Shard, StartAt};

use self::types::TypeQueries;

/// How many rows are marked in one statement.
const STRETCH: i64 = 10_000;

/// The statements about checkpoints.
#[derive(Debug)]
pub(super) struct CheckpointQueries {
    table: String,
    /// Other pipelines of this relay, which are to become cursors.
    companions: Vec<String>,
    /// `$1` pipeline: how the other pipelines keep their progress.
    others: String,
    /// `$1` pipeline: whether it has no checkpoint.
    is_new: String,
    /// `$1` pipeline, `$2` first shard, `$3` last shard, `$4` shards, `$5` progress, `$6` types, `$7`
    /// start, `$8` where it begins: first checkpoints, unless there are some.
    create: String,
    /// `$1` pipeline, `$2` types: what it matches, if that was never written down.
    adopt_types: String,
    /// `$1` pipeline: another one that has not passed yet what it has marked.
    relies_on_marks: String,
    /// The last transaction of which there is a row.
    last_xid: String,
    /// `$1` after, `$2` limit: the last transaction of a stretch of rows.
    next_xid: String,
    /// `$1` after, `$2` up to: removes the marks of rows by their transaction.
    clear_marks: Option<String>,
    /// `$1` pipeline, `$2` shard: there are no more marks to be removed.
    marks_cleared: String,
    /// `$1` pipeline, `$2` shards: how many shards there were, if they were another number, and
    /// whether a relay still reads one.
    other_shards: String,
    /// `$1` pipeline: progress and position of each shard.
    positions: String,
    /// `$1` pipeline, `$2` shard, `$3` shards, `$4` progress, then base, tick, position, seen,
    /// beyond, cluster, aggregate types, formerly: makes or changes a checkpoint.
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
    /// the number of the transaction, and whether trouble is noted.
    started: String,
    /// `$1` pipeline, `$2` shard, `$3` epoch: takes the last start back.
    not_started: String,
    /// `$1` pipeline, `$2` shard, `$3` epoch, `$4` what is wrong with the sink.
    trouble: String,
    /// `$1` pipeline, `$2` shard, `$3` epoch: forgets the starts.
    survived: String,
    /// `$1` after, `$2` limit, `$3` pipeline: marks what a cursor has published, or deletes it where
    /// that cannot be marked; answers up to where.
    mark_behind: String,
    /// The first row that was written in another cluster: its number and its transaction.
    foreign: String,
    types: TypeQueries,
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
        let (aggregate_type, aggregate_id) =
            (table.text("o", "aggregate_type"), table.text("o", "aggregate_id"));
        let of_shard = of_shard(shard, &aggregate_type, &aggregate_id);
        let clear_marks = table.has("published_at").then(|| {
            let column = table.name("published_at");
            format!(
                "UPDATE {name} AS o SET {column} = NULL WHERE o.{column} IS NOT NULL
                 AND {xid} > $1::text::xid8 AND {xid} <= $2::text::xid8"
            )
        });
        let this = "pipeline = $1 AND shard = $2";
        let positions = format!(
            "SELECT progress, base::text, tick::text, position, seen::text, beyond::text, system_id,
               pg_snapshot_xmax(pg_current_snapshot())::text, aggregate_types, formerly::text,
               lsn IS NOT NULL, start
             FROM {checkpoints} WHERE pipeline = $1"
        );
        Self {
            table: outbox.to_string(),
            companions: Vec::new(),
            others: format!(
                "SELECT DISTINCT pipeline, progress FROM {checkpoints} WHERE pipeline <> $1
                 ORDER BY pipeline"
            ),
            is_new: format!("SELECT NOT EXISTS (SELECT FROM {checkpoints} WHERE pipeline = $1)"),
            create: format!(
                "INSERT INTO {checkpoints} (pipeline, shard, shards, progress, aggregate_types,
                   start, base, tick, seen, since)
                 SELECT $1, s.shard, $4, $5, $6, $7, b.base, b.base, b.base, b.base
                 FROM generate_series($2, $3) AS s (shard),
                   (SELECT $8::text::pg_snapshot) AS b (base)
                 ON CONFLICT DO NOTHING"
            ),
            adopt_types: format!(
                "UPDATE {checkpoints} SET aggregate_types = $2
                 WHERE pipeline = $1 AND aggregate_types IS NULL"
            ),
            relies_on_marks: match table.has("published_at") {
                true => format!(
                    "SELECT min(c.pipeline) FROM {checkpoints} AS c
                     WHERE c.pipeline <> $1 AND c.progress = 'cursor'
                     AND coalesce(pg_snapshot_xmax(c.base) <= '3'::xid8, true)
                     AND EXISTS (SELECT FROM {name} AS o WHERE o.{} IS NOT NULL)",
                    table.name("published_at")
                ),
                false => "SELECT NULL::text WHERE $1::text IS NULL".to_owned(),
            },
            last_xid: format!("SELECT {xid}::text FROM {name} AS o ORDER BY {xid} DESC LIMIT 1"),
            next_xid: format!(
                "SELECT max(n.xid::text::numeric)::text FROM (SELECT {xid} AS xid FROM {name} AS o
                 WHERE {xid} > $1::text::xid8 ORDER BY {xid} LIMIT $2) AS n"
            ),
            clear_marks,
            marks_cleared: format!("UPDATE {checkpoints} SET start = NULL WHERE {this}"),
            other_shards: format!(
                "SELECT c.shards, bool_or(l.expires_at > clock_timestamp()) IS TRUE
                 FROM {checkpoints} AS c LEFT JOIN {leases} AS l USING (pipeline, shard)
                 WHERE c.pipeline = $1 AND c.shards <> $2 GROUP BY c.shards"
            ),
            put: format!(
                "INSERT INTO {checkpoints} (pipeline, shard, shards, progress, base, tick,
                   position, seen, beyond, system_id, aggregate_types, formerly, since, start)
                 SELECT $1, $2, $3, $4, $5::text::pg_snapshot, $6::text::pg_snapshot, $7,
                   $8::text::pg_snapshot, $9::text::int8multirange, $10, $11, $12::text::jsonb,
                   min(c.since::text)::pg_snapshot, max(c.start)
                 FROM {checkpoints} AS c WHERE c.pipeline = $1
                 ON CONFLICT (pipeline, shard) DO UPDATE SET shards = excluded.shards,
                   base = excluded.base, tick = excluded.tick, position = excluded.position,
                   seen = excluded.seen, beyond = excluded.beyond, crashes = 0,
                   aggregate_types = excluded.aggregate_types, formerly = excluded.formerly"
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
                 beyond = '{{}}', lsn = NULL, slot_snapshot = NULL, formerly = '{{}}', since = NULL,
                 updated_at = clock_timestamp() WHERE {this}"
            ),
            started: format!(
                "UPDATE {checkpoints} SET crashes = crashes + 1, system_id = $3,
                 updated_at = clock_timestamp() WHERE {this}
                 RETURNING crashes - 1, pg_current_xact_id()::text, trouble IS NOT NULL"
            ),
            not_started: format!(
                "UPDATE {checkpoints} SET crashes = greatest(crashes - 1, 0),
                 updated_at = clock_timestamp() WHERE {this}
                 AND EXISTS (SELECT FROM {leases} WHERE {this} AND epoch = $3)"
            ),
            trouble: format!(
                "UPDATE {checkpoints} SET trouble = $4, trouble_since = CASE
                   WHEN $4 IS NOT NULL THEN coalesce(trouble_since, clock_timestamp()) END
                 WHERE {this} AND trouble IS DISTINCT FROM $4
                 AND EXISTS (SELECT FROM {leases} WHERE {this} AND epoch = $3)"
            ),
            survived: format!(
                "UPDATE {checkpoints} SET crashes = 0, updated_at = clock_timestamp() WHERE {this}
                 AND EXISTS (SELECT FROM {leases} WHERE {this} AND epoch = $3)"
            ),
            mark_behind: format!(
                "WITH behind AS MATERIALIZED (
                   SELECT {seq}::bigint AS seq FROM {name} AS o
                   WHERE {unpublished} AND {seq} > $1 AND {}{of_shard}
                   AND EXISTS (SELECT FROM {checkpoints} AS c WHERE c.pipeline = $3 AND {}
                     AND ({} OR {}))
                   ORDER BY {seq} LIMIT $2
                 ), done AS (
                   {done} WHERE {seq} = ANY(ARRAY(SELECT seq FROM behind)) AND {unpublished}
                 )
                 SELECT max(seq) FROM behind",
                origin.holds(),
                of_checkpoint(&aggregate_type, &aggregate_id),
                has_published(&format!("{seq}::bigint"), &xid, &aggregate_type),
                // Whoever begins now has nothing to do with what was there before.
                super::queries::sees("c.since", &xid)
            ),
            types: TypeQueries::new(table, outbox, shard, origin),
            foreign: format!(
                "SELECT {seq}::bigint, {xid}::text FROM {name} AS o
                 WHERE {xid} >= pg_snapshot_xmax(pg_current_snapshot()) ORDER BY {xid} LIMIT 1"
            ),
            adopt: format!(
                "UPDATE {name} AS o SET {} = pg_current_xact_id()
                 WHERE {xid} >= pg_snapshot_xmax(pg_current_snapshot())",
                table.name("xid")
            ),
        }
    }

    /// Waits for these pipelines, instead of refusing them, until they are cursors.
    pub(super) fn beside(self, companions: Vec<String>) -> Self {
        Self { companions, ..self }
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
    /// `shards` is 0 where relays read side by side. Answers whether their number was another one.
    pub(super) async fn enter(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &str,
        shards: i32,
        progress: Progress,
        types: Option<&[String]>,
    ) -> Result<bool, Trouble> {
        self.refuse_others(tx, pipeline, progress).await?;
        if types.is_some() {
            let adopted: [Param<'_>; 2] = [(&pipeline, Type::TEXT), (&types, Type::TEXT_ARRAY)];
            tx.execute(&self.adopt_types, &adopted).await?;
        }
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
            self.reshard(tx, pipeline, shards).await?;
            tx.execute(&self.drop_shards, &params).await?;
        }
        Ok(changed)
    }

    /// Goes on from what all shards have settled that there were.
    async fn reshard(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &str,
        shards: i32,
    ) -> Result<(), Trouble> {
        let rows = tx.query(&self.positions, &[(&pipeline, Type::TEXT)]).await?;
        let Some(first) = rows.first() else { return Ok(()) };
        let positions: Vec<_> = rows.iter().map(position).collect::<Result<_, _>>()?;
        let position =
            positions.into_iter().reduce(|one, other| Some(one?.merge(other?))).flatten();
        if position.is_some() && shards == 0 {
            // Relays that read side by side have no position.
            return self.mark_behind(Through::Transaction(tx), pipeline).await;
        }
        let matching = rows.iter().map(types::matching).collect::<Result<Vec<_>, _>>()?;
        let matching = types::of_all_shards(matching);
        let types: Vec<String> = matching.types.iter().cloned().collect();
        let formerly = matching.formerly_text();
        let (progress, cluster): (&str, Option<i64>) = (first.try_get(0)?, first.try_get(6)?);
        let snapshot =
            |of: fn(&Position) -> &Snapshot| position.as_ref().map(|p| of(p).to_string());
        let (base, tick) = (snapshot(|p| &p.base), snapshot(|p| &p.tick));
        let seen = snapshot(|p| &p.seen);
        let seq = position.as_ref().map_or(0, |position| position.seq);
        let beyond = position.map(|position| position.beyond).unwrap_or_default().to_text();
        for shard in 0..shards {
            let params: [Param<'_>; 12] = [
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
                (&types, Type::TEXT_ARRAY),
                (&formerly, Type::TEXT),
            ];
            tx.execute(&self.put, &params).await?;
        }
        Ok(())
    }

    /// Makes a checkpoint, unless there is one. A new pipeline gets those of all its shards at once:
    /// they begin together.
    pub(super) async fn create(
        &self,
        tx: &mut Transaction<'_>,
        first: First<'_>,
    ) -> Result<(), Trouble> {
        let First { pipeline, shard, shards, progress, types, start } = first;
        let is_new = is_so(&tx.query(&self.is_new, &[(&pipeline, Type::TEXT)]).await?)?;
        let (first, last) = if is_new && shards > 0 { (0, shards - 1) } else { (shard, shard) };
        let (mut begins, mut base) = (None, None);
        if is_new && progress == Progress::Cursor {
            match start {
                StartAt::Now => base = self.now(tx).await?.map(|now| now.to_string()),
                StartAt::Oldest => {
                    self.refuse_early(tx, pipeline).await?;
                    begins = self.clear_marks.as_ref().map(|_| StartAt::Oldest.as_str());
                }
                StartAt::Unpublished => {}
            }
        }
        let params: [Param<'_>; 8] = [
            (&pipeline, Type::TEXT),
            (&first, Type::INT4),
            (&last, Type::INT4),
            (&shards, Type::INT4),
            (&progress.as_str(), Type::TEXT),
            (&types, Type::TEXT_ARRAY),
            (&begins, Type::TEXT),
            (&base, Type::TEXT),
        ];
        tx.execute(&self.create, &params).await?;
        Ok(())
    }

    /// What is there now, as far as it stays in the past whatever happens to the server; `None` if
    /// there is nothing.
    async fn now(&self, tx: &mut Transaction<'_>) -> Result<Option<Snapshot>, Trouble> {
        let rows = tx.query(&self.last_xid, &[]).await?;
        let last: Option<String> = rows.first().map(|row| row.try_get(0)).transpose()?;
        let Some(last) = last.and_then(|last| last.parse::<u64>().ok()) else { return Ok(None) };
        let rows = tx.query(SNAPSHOT, &[]).await?;
        let now: Option<&str> = rows.first().map(|row| row.try_get(0)).transpose()?;
        let now: Option<Snapshot> = now.and_then(|now| now.parse().ok());
        Ok(now.map(|now| now.up_to(last.saturating_add(1))))
    }

    /// A pipeline that was changed to a cursor just now knows by the marks alone what it has
    /// published, until it has passed it.
    async fn refuse_early(&self, tx: &mut Transaction<'_>, pipeline: &str) -> Result<(), Trouble> {
        let rows = tx.query(&self.relies_on_marks, &[(&pipeline, Type::TEXT)]).await?;
        let other = rows.first().map(|row| row.try_get::<_, Option<String>>(0)).transpose()?;
        let Some(other) = other.flatten() else { return Ok(()) };
        let table = &self.table;
        let message = format!(
            "pipeline {pipeline:?} begins with the oldest row once pipeline {other:?} has passed \
             the rows that it marked as published"
        );
        Err(SourceError::new(SourceErrorKind::Unavailable, message)
            .with_hint(format!(
                "run {other:?} for a few seconds; if it is no longer used, remove its rows from \
                 {table}_checkpoints; or write start = \"unpublished\" or \"now\""
            ))
            .into())
    }

    /// Removes all marks, a stretch of transactions at a time.
    async fn clear_marks(&self, connection: &Connection) -> Result<(), Trouble> {
        let Some(clear_marks) = &self.clear_marks else { return Ok(()) };
        let mut after = "0".to_owned();
        loop {
            let params: [Param<'_>; 2] = [(&after, Type::TEXT), (&STRETCH, Type::INT8)];
            let rows = connection.query(&self.next_xid, &params).await?;
            let last: Option<Option<String>> =
                rows.first().map(|row| row.try_get(0)).transpose()?;
            let Some(last) = last.flatten() else { return Ok(()) };
            let params: [Param<'_>; 2] = [(&after, Type::TEXT), (&last, Type::TEXT)];
            connection.execute(clear_marks, &params).await?;
            after = last;
        }
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
                if progress == Progress::Cursor && self.companions.iter().any(|it| it == other) {
                    let message = format!(
                        "pipeline {pipeline:?} starts once pipeline {other:?} has changed from \
                         {other_progress} to cursor"
                    );
                    return Err(SourceError::new(SourceErrorKind::Unavailable, message).into());
                }
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
        let Start { pipeline, shard, wanted, cluster, .. } = start;
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
        if wanted == Progress::Cursor && row.try_get::<_, Option<&str>>(11)?.is_some() {
            self.clear_marks(connection).await?;
            connection.execute(&self.marks_cleared, &this).await?;
        }
        let has_log: bool = row.try_get(10)?;
        let matching = types::matching(row)?;
        let position = match (wanted, position) {
            (Progress::Cursor, position) => {
                let position = position.unwrap_or_else(Position::start);
                self.types.change(connection, &start, matching, position, has_log).await?
            }
            (Progress::Delete | Progress::Mark, position) => {
                if position.is_some() {
                    self.mark_behind(Through::Connection(connection), pipeline).await?;
                    connection.execute(&self.clear, &this).await?;
                }
                // The rows say what is published.
                self.types.put(connection, &start, &Matching::of(start.types), None).await?;
                Position::start()
            }
        };
        if start.adopts && self.foreign(connection).await?.is_some() {
            self.adopt(connection, pipeline).await?;
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
            is_troubled: row.try_get(2)?,
        })
    }

    /// The first row of a transaction that is still to come, if there is one: its number and its
    /// transaction.
    async fn foreign(&self, connection: &Connection) -> Result<Option<(i64, String)>, Trouble> {
        let rows = connection.query(&self.foreign, &[]).await?;
        rows.first().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }

    /// Makes rows of transactions that are still to come rows of now: they were copied from another
    /// server, or somebody chose their transaction. No position that was made here has them behind
    /// it, so they are published once from now on.
    pub(super) async fn adopt(
        &self,
        connection: &Connection,
        pipeline: &str,
    ) -> Result<(), Trouble> {
        let adopted = match connection.execute(&self.adopt, &[]).await {
            Err(trouble) if trouble.is(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                return Err(self.not_adopted(connection).await?.map_or(trouble, Into::into));
            }
            adopted => adopted?,
        };
        if adopted > 0 {
            warn!(pipeline, adopted, "found rows of a transaction that is still to come");
        }
        Ok(())
    }

    /// Names a row that would come again and again, and that the relay may not change.
    async fn not_adopted(&self, connection: &Connection) -> Result<Option<SourceError>, Trouble> {
        let Some((seq, xid)) = self.foreign(connection).await? else { return Ok(None) };
        let table = &self.table;
        let message = format!(
            "{table} has rows that were not written here: seq {seq} is of transaction {xid}, which \
             is still to come, and the relay may not change it"
        );
        Ok(Some(SourceError::new(SourceErrorKind::Unsafe, message).with_hint(format!(
            "let the relay's role change the column xid (GRANT UPDATE), or make them rows of now, \
             which publishes them unless published_at is set: UPDATE {table} SET xid = \
             pg_current_xact_id() WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())"
        ))))
    }

    /// Marks what a cursor has published.
    async fn mark_behind(
        &self,
        mut through: Through<'_, '_>,
        pipeline: &str,
    ) -> Result<(), Trouble> {
        let mut after = i64::MIN;
        loop {
            let params: [Param<'_>; 3] =
                [(&after, Type::INT8), (&STRETCH, Type::INT8), (&pipeline, Type::TEXT)];
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

    /// Takes back that this start was counted.
    pub(super) async fn not_started(
        &self,
        connection: &Connection,
        pipeline: &str,
        held: &Held,
    ) -> Result<(), Trouble> {
        let params: [Param<'_>; 3] =
            [(&pipeline, Type::TEXT), (&held.shard, Type::INT4), (&held.epoch, Type::INT8)];
        connection.execute(&self.not_started, &params).await?;
        Ok(())
    }

    /// Notes what is wrong with the sink.
    pub(super) async fn note_trouble(
        &self,
        connection: &Connection,
        pipeline: &str,
        held: &Held,
        trouble: Option<&str>,
    ) -> Result<(), Trouble> {
        let params: [Param<'_>; 4] = [
            (&pipeline, Type::TEXT),
            (&held.shard, Type::INT4),
            (&held.epoch, Type::INT8),
            (&trouble, Type::TEXT),
        ];
        connection.execute(&self.trouble, &params).await?;
        Ok(())
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
    /// What the configuration matches; none means all.
    pub(super) types: &'s [String],
    /// Keys are kept in order.
    pub(super) ordered: bool,
    /// Rows written in another cluster are to become rows of this one.
    pub(super) adopts: bool,
}

/// A first checkpoint.
#[derive(Clone, Copy)]
pub(super) struct First<'f> {
    pub(super) pipeline: &'f str,
    pub(super) shard: i32,
    pub(super) shards: i32,
    pub(super) progress: Progress,
    /// What it matches, if that is known; none means all.
    pub(super) types: Option<&'f [String]>,
    pub(super) start: StartAt,
}

/// How a pipeline starts.
pub(super) struct Started {
    pub(super) position: Position,
    /// How many starts there were before it that ended badly.
    pub(super) crashes: u32,
    /// The transaction that counted the start, which is committed.
    pub(super) xid: u64,
    /// Trouble of the sink is noted.
    pub(super) is_troubled: bool,
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
