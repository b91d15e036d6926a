//! What a pipeline matches, beside its position: see [`matching`](crate::sources::matching).

use std::collections::BTreeSet;

use postrider::schema::TableName;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tracing::info;

use super::super::cluster::Origin;
use super::super::connection::{Connection, Param};
use super::super::error::Trouble;
use super::super::frontier::Position;
use super::super::queries::{
    FAILURE_COLUMNS, has_published, is_passed, lock_failures, mend, of_shard, sees,
};
use super::super::ranges::Ranges;
use super::super::snapshot::Snapshot;
use super::super::table::Table;
use super::{STRETCH, Start};
use crate::sources::Shard;
use crate::sources::matching::Matching;

/// The statements about what a pipeline matches.
#[derive(Debug)]
pub(super) struct TypeQueries {
    /// `$1` pipeline: nobody else changes what is set aside of it.
    lock_failures: String,
    /// `$1` pipeline, `$2` shard, `$3` after, `$4` limit, `$5` types, `$6` whether keys are kept in
    /// order: sets aside what the cursor has behind it of these types and has not published. While
    /// the log is read, that is everything there is: the position there says nothing about rows.
    /// Answers up to where, and the keys.
    take_up: String,
    /// See [`mend`].
    mend: String,
    /// `$1` pipeline, `$2` shard: the snapshot of now, numbers of rows that are set aside and not
    /// seen by the base, and the last of their transactions.
    taken_up: String,
    /// `$1` pipeline, `$2` shard, `$3` types, `$4` formerly, `$5` beyond, `$6` seen; what is NULL
    /// stays.
    put: String,
}

impl TypeQueries {
    pub(super) fn new(table: &Table, outbox: &TableName, shard: Shard, origin: &Origin) -> Self {
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let (checkpoints, failures) = (outbox.checkpoints().quoted(), outbox.failures().quoted());
        let xid = table.select("o", "xid");
        let (aggregate_type, aggregate_id) =
            (table.text("o", "aggregate_type"), table.text("o", "aggregate_id"));
        let unpublished = match table.has("published_at") {
            true => format!("{} IS NULL", table.select("o", "published_at")),
            false => "true".to_owned(),
        };
        let number = format!("{seq}::bigint");
        let is_set_aside = format!(
            "f.pipeline = $1 AND f.seq = {number} AND f.id IS NOT DISTINCT FROM {}",
            table.copy("o", "id")
        );
        let copied: Vec<String> =
            FAILURE_COLUMNS.iter().map(|name| table.copy("o", name)).collect();
        let deliver_after = table.time("o", "deliver_after");
        let is_delayed =
            format!("(isfinite({deliver_after}) AND {deliver_after} > clock_timestamp()) IS TRUE");
        // Without a key there is nothing to wait for, and what is not due yet is not waited for.
        let blocks = format!(
            "$6 AND {aggregate_type} IS NOT NULL AND {aggregate_id} IS NOT NULL AND NOT {is_delayed}"
        );
        Self {
            lock_failures: lock_failures(outbox),
            take_up: format!(
                "WITH late AS MATERIALIZED (
                   SELECT {number} AS seq FROM {name} AS o, {checkpoints} AS c
                   WHERE c.pipeline = $1 AND c.shard = $2 AND {unpublished} AND {seq} > $3 AND {holds}
                   AND (cardinality($5::text[]) = 0 OR {aggregate_type} = ANY($5)){of_shard}
                   AND NOT coalesce(c.aggregate_types = '{{}}'
                     OR {aggregate_type} = ANY(c.aggregate_types), false)
                   AND (c.lsn IS NOT NULL OR {passed}) AND NOT {since} AND NOT {published}
                   AND NOT EXISTS (SELECT FROM {failures} AS f WHERE {is_set_aside})
                   ORDER BY {seq} LIMIT $4
                 ), copied AS (
                   INSERT INTO {failures} (pipeline, {columns}, state, blocks, due_at, attempts,
                     set_aside_at)
                   SELECT $1, {copied}, CASE WHEN {blocks} THEN 'queued' ELSE 'deferred' END, {blocks},
                     CASE WHEN {is_delayed} THEN {deliver_after}
                       WHEN NOT ({blocks}) THEN clock_timestamp() END, 0, clock_timestamp()
                   FROM {name} AS o WHERE {seq} = ANY(ARRAY(SELECT seq FROM late)) AND {unpublished}
                   RETURNING aggregate_type, aggregate_id, blocks
                 )
                 SELECT (SELECT max(seq) FROM late), array_agg(k.aggregate_type),
                   array_agg(k.aggregate_id)
                 FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM copied WHERE blocks) AS k",
                holds = origin.holds(),
                of_shard = of_shard(shard, &aggregate_type, &aggregate_id),
                passed = is_passed(&number, &xid),
                since = sees("c.since", &xid),
                published = has_published(&number, &xid, &aggregate_type),
                columns = FAILURE_COLUMNS.join(", "),
                copied = copied.join(", "),
            ),
            mend: mend(outbox),
            taken_up: format!(
                "SELECT pg_current_snapshot()::text, coalesce(array_agg(r.seq), '{{}}'),
                   max(r.xid::text::numeric)::text
                 FROM (SELECT {number} AS seq, {xid} AS xid FROM {name} AS o, {checkpoints} AS c,
                     {failures} AS f
                   WHERE c.pipeline = $1 AND c.shard = $2 AND {is_set_aside}
                   AND {xid} >= coalesce(pg_snapshot_xmin(c.base), '0'::xid8)
                   AND NOT {}) AS r",
                sees("c.base", &xid)
            ),
            put: format!(
                "UPDATE {checkpoints} SET aggregate_types = $3, formerly = $4::text::jsonb,
                   beyond = coalesce($5::text::int8multirange, beyond),
                   seen = coalesce($6::text::pg_snapshot, seen), updated_at = clock_timestamp()
                 WHERE pipeline = $1 AND shard = $2"
            ),
        }
    }

    /// Matches what the configuration says from now on. What the cursor has behind it of types that
    /// are new is set aside, so that it is handed out in the order of its key.
    pub(super) async fn change(
        &self,
        connection: &Connection,
        start: &Start<'_>,
        matching: Matching,
        mut position: Position,
        has_log: bool,
    ) -> Result<Position, Trouble> {
        let wanted = Matching::of(start.types).types;
        if matching.types == wanted {
            return Ok(position);
        }
        let mut beyond = None;
        if matching.lacks(&wanted) {
            let taken_up = self.take_up(connection, start).await?;
            let pipeline = start.pipeline;
            info!(pipeline, taken_up, "events of types that are matched from now on are delivered");
            if has_log {
                (position.beyond, position.seen) =
                    self.beyond(connection, start, &position).await?;
                beyond = Some((position.beyond.to_text(), position.seen.to_string()));
            }
        }
        let base = Some(position.base.to_string()).filter(|_| !position.base.is_nothing());
        let matching = matching.change(wanted, base.as_deref());
        self.put(connection, start, &matching, beyond).await?;
        Ok(position)
    }

    /// Writes down what is matched; and what is settled beyond the position, if that has changed.
    pub(super) async fn put(
        &self,
        connection: &Connection,
        start: &Start<'_>,
        matching: &Matching,
        beyond: Option<(String, String)>,
    ) -> Result<(), Trouble> {
        let types: Vec<&String> = matching.types.iter().collect();
        let formerly = matching.formerly_text();
        let (beyond, seen) = beyond.unzip();
        let params: [Param<'_>; 6] = [
            (&start.pipeline, Type::TEXT),
            (&start.shard, Type::INT4),
            (&types, Type::TEXT_ARRAY),
            (&formerly, Type::TEXT),
            (&beyond, Type::TEXT),
            (&seen, Type::TEXT),
        ];
        connection.execute(&self.put, &params).await?;
        Ok(())
    }

    /// Sets aside what is behind the cursor and not published, a stretch at a time. Answers how many
    /// stretches there were; should it be broken off, the next start goes on with it.
    async fn take_up(&self, connection: &Connection, start: &Start<'_>) -> Result<u64, Trouble> {
        let (mut after, mut stretches) = (i64::MIN, 0);
        loop {
            let mut tx = connection.begin().await?;
            tx.query(&self.lock_failures, &[(&start.pipeline, Type::TEXT)]).await?;
            let params: [Param<'_>; 6] = [
                (&start.pipeline, Type::TEXT),
                (&start.shard, Type::INT4),
                (&after, Type::INT8),
                (&STRETCH, Type::INT8),
                (&start.types, Type::TEXT_ARRAY),
                (&start.ordered, Type::BOOL),
            ];
            let rows = tx.query(&self.take_up, &params).await?;
            let row = rows.first().expect("an aggregate answers one row");
            let last: Option<i64> = row.try_get(0)?;
            let (types, ids): (Option<Vec<String>>, Option<Vec<String>>) =
                (row.try_get(1)?, row.try_get(2)?);
            if let (Some(types), Some(ids)) = (types, ids) {
                let keys: [Param<'_>; 3] = [
                    (&start.pipeline, Type::TEXT),
                    (&types, Type::TEXT_ARRAY),
                    (&ids, Type::TEXT_ARRAY),
                ];
                tx.query(&self.mend, &keys).await?;
            }
            tx.commit().await?;
            let Some(last) = last else { return Ok(stretches) };
            after = last;
            stretches += 1;
        }
    }

    /// What is settled beyond the position once rows are set aside that the base does not see: the
    /// log is not to hand them out again.
    async fn beyond(
        &self,
        connection: &Connection,
        start: &Start<'_>,
        position: &Position,
    ) -> Result<(Ranges, Snapshot), Trouble> {
        let this: [Param<'_>; 2] = [(&start.pipeline, Type::TEXT), (&start.shard, Type::INT4)];
        let rows = connection.query(&self.taken_up, &this).await?;
        let row = rows.first().expect("an aggregate answers one row");
        let now: Result<Snapshot, _> = row.try_get::<_, &str>(0)?.parse();
        let numbers: Vec<i64> = row.try_get(1)?;
        let last: Option<&str> = row.try_get(2)?;
        let last = last.and_then(|last| last.parse::<u64>().ok());
        let (Ok(now), Some(last)) = (now, last) else {
            return Ok((position.beyond.clone(), position.seen.clone()));
        };
        let now = now.up_to(last.saturating_add(1));
        Ok((Ranges::of(numbers).union(&position.beyond), position.seen.clone().union(&now)))
    }
}

/// What a checkpoint says that its pipeline matches.
pub(super) fn matching(row: &Row) -> Result<Matching, tokio_postgres::Error> {
    let types: Option<Vec<String>> = row.try_get(8)?;
    Ok(Matching::new(types.unwrap_or_default(), row.try_get(9)?))
}

/// What all shards match that there were. Where they differ, one was stopped before it had changed:
/// events are rather repeated than lost.
pub(super) fn of_all_shards(shards: Vec<Matching>) -> Matching {
    let same = |one: Matching, other: Matching| {
        let is_all = one.types.is_empty() && other.types.is_empty();
        let types: BTreeSet<String> = match (one.types.is_empty(), other.types.is_empty()) {
            (true, _) => other.types,
            (_, true) => one.types,
            _ => one.types.intersection(&other.types).cloned().collect(),
        };
        // None would mean all, and no event has an empty type.
        let types = if types.is_empty() && !is_all { [String::new()].into() } else { types };
        let mut formerly = one.formerly;
        formerly.retain(|name, place| {
            let Some(elsewhere) = other.formerly.get(name) else { return false };
            let (Ok(here), Ok(there)) = (place.parse::<Snapshot>(), elsewhere.parse::<Snapshot>())
            else {
                return false;
            };
            *place = here.intersection(&there).to_string();
            true
        });
        Matching { types, formerly }
    };
    shards.into_iter().reduce(same).unwrap_or_default()
}
