//! How an outbox in PostgreSQL stands, in one snapshot. Every count has a limit, so that looking
//! never takes long.

use std::time::{Duration, SystemTime};

use postrider::schema::TableName;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::connection::{Connection, Param, Transaction};
use super::super::error::Trouble;
use super::super::queries::{AdminQueries, FEW_ROWS, ONE_SNAPSHOT, Shown, WRITTEN};
use crate::admin::{COUNT_MAX, LeaseStatus, OutboxStatus, PipelineStatus, SinkTrouble, Unmatched};
use crate::sources::{Progress, Shard};

const MAX: i64 = COUNT_MAX as i64;

/// How the outbox and its pipelines stand.
pub(super) async fn status(
    connection: &Connection,
    sql: &AdminQueries,
    outbox: &TableName,
) -> Result<OutboxStatus, Trouble> {
    let mut tx = connection.begin().await?;
    tx.batch(ONE_SNAPSHOT).await?;
    // Whatever the statistics say, looking goes by the indexes.
    tx.batch(FEW_ROWS).await?;
    let rows = tx.query(&sql.checkpoints, &[]).await?;
    let checkpoints = rows.iter().map(Checkpoint::read).collect::<Result<Vec<_>, _>>()?;
    let mut pipelines = Vec::new();
    for shards in checkpoints.chunk_by(|one, next| one.pipeline == next.pipeline) {
        pipelines.push(pipeline_status(&mut tx, sql, shards).await?);
    }
    if pipelines.is_empty() {
        pipelines.push(pipeline_status(&mut tx, sql, &[]).await?);
    }
    let unmatched = unmatched(&mut tx, sql, &checkpoints).await?;
    let written = written(&tx.query(WRITTEN, &[(&outbox.quoted(), Type::TEXT)]).await?)?;
    tx.commit().await?;
    let (database, table) = ("postgres", outbox.to_string());
    Ok(OutboxStatus { database, table, written, pipelines, unmatched })
}

/// Events that no pipeline matches. As long as it is not known of one what it matches, or one
/// matches everything, there are none.
async fn unmatched(
    tx: &mut Transaction<'_>,
    sql: &AdminQueries,
    checkpoints: &[Checkpoint],
) -> Result<Unmatched, Trouble> {
    let mut types = Vec::new();
    for checkpoint in checkpoints {
        match checkpoint.aggregate_types.as_deref().filter(|types| !types.is_empty()) {
            Some(matched) => types.extend_from_slice(matched),
            None => return Ok(Unmatched::default()),
        }
    }
    if types.is_empty() {
        return Ok(Unmatched::default());
    }
    let half = MAX / 2;
    let params: [Param<'_>; 2] = [(&half, Type::INT8), (&types, Type::TEXT_ARRAY)];
    let rows = tx.query(&sql.unmatched, &params).await?;
    let found = |row: &Row| {
        let count: i64 = row.try_get(1)?;
        Ok((row.try_get(0)?, u64::try_from(count).unwrap_or(0)))
    };
    let found = rows.iter().map(found).collect::<Result<Vec<_>, tokio_postgres::Error>>()?;
    Ok(Unmatched::of(found))
}

/// The progress of a pipeline in one shard.
pub(super) struct Checkpoint {
    pipeline: String,
    pub(super) progress: String,
    shard: Shard,
    settled_at: Option<SystemTime>,
    /// The first transaction that the base does not see, and those before it that it does not
    /// see either.
    base: (String, Vec<String>),
    /// The same of the tick, if one is under way.
    tick: Option<Tick>,
    beyond: String,
    trouble: Option<SinkTrouble>,
    /// What it matches, if that is known; none means all.
    aggregate_types: Option<Vec<String>>,
}

struct Tick {
    base: String,
    end: (String, Vec<String>),
    position: i64,
}

impl Checkpoint {
    pub(super) fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let number = |index: usize| {
            let number: i32 = row.try_get(index)?;
            Ok(u32::try_from(number).unwrap_or(0))
        };
        let is_open: bool = row.try_get(7)?;
        let tick = match is_open {
            true => Some(Tick {
                base: row.try_get(8)?,
                end: (row.try_get(9)?, row.try_get(10)?),
                position: row.try_get(11)?,
            }),
            false => None,
        };
        Ok(Self {
            pipeline: row.try_get(0)?,
            progress: row.try_get(1)?,
            shard: Shard { index: number(2)?, of: number(3)? },
            settled_at: row.try_get(4)?,
            base: (row.try_get(5)?, row.try_get(6)?),
            tick,
            beyond: row.try_get(12)?,
            trouble: trouble(row)?,
            aggregate_types: row.try_get(15)?,
        })
    }
}

/// What is wrong with the sink of a shard, if a relay has noted it.
fn trouble(row: &Row) -> Result<Option<SinkTrouble>, tokio_postgres::Error> {
    let (why, since): (Option<String>, Option<SystemTime>) = (row.try_get(13)?, row.try_get(14)?);
    Ok(why.zip(since).map(|(why, since)| SinkTrouble { why, since }))
}

/// The status of the pipeline that these are the shards of; of one that never ran, if there are
/// none.
async fn pipeline_status(
    tx: &mut Transaction<'_>,
    sql: &AdminQueries,
    shards: &[Checkpoint],
) -> Result<PipelineStatus, Trouble> {
    let first = shards.first();
    let name = first.map_or("default", |first| &first.pipeline).to_owned();
    let progress = first.map(|first| first.progress.clone());
    let waiting = match progress.as_deref() == Some(Progress::Cursor.as_str()) {
        true => {
            let mut waiting = Waiting::default();
            for shard in shards {
                for row in ahead(tx, sql, shard, MAX, None).await? {
                    waiting.add(&Waiting::read(&[row])?);
                }
            }
            waiting
        }
        false => Waiting::read(&tx.query(&sql.unpublished, &[(&MAX, Type::INT8)]).await?)?,
    };
    let leases = tx.query(&sql.leases, &[(&name, Type::TEXT)]).await?;
    Ok(PipelineStatus {
        unpublished: waiting.count.min(COUNT_MAX),
        oldest_unpublished_age: waiting.age,
        parked: set_aside(tx, sql, &name, "parked").await?,
        queued: set_aside(tx, sql, &name, "queued").await?,
        deferred: set_aside(tx, sql, &name, "deferred").await?,
        blocked_keys: {
            let params: [Param<'_>; 2] = [(&MAX, Type::INT8), (&name, Type::TEXT)];
            count(&tx.query(&sql.blocked_keys, &params).await?)?
        },
        last_settled_at: shards.iter().filter_map(|shard| shard.settled_at).max(),
        trouble: shards
            .iter()
            .filter_map(|shard| shard.trouble.clone())
            .min_by_key(|trouble| trouble.since),
        leases: leases.iter().map(lease).collect::<Result<_, _>>()?,
        slot: None,
        paused: None,
        paused_keys: Default::default(),
        name,
        progress,
    })
}

/// What a cursor has before it in one shard, up to a limit: how much, in each of two parts; or, if
/// an age in microseconds is given, the events that are older.
pub(super) async fn ahead(
    tx: &mut Transaction<'_>,
    sql: &AdminQueries,
    checkpoint: &Checkpoint,
    limit: i64,
    older_than: Option<i64>,
) -> Result<Vec<Row>, Trouble> {
    let Checkpoint { pipeline, shard, base, tick, beyond, .. } = checkpoint;
    let shown = if older_than.is_some() { Shown::Events } else { Shown::Count };
    let age = older_than.as_ref().map(|age| -> Param<'_> { (age, Type::INT8) });
    let (unseen, under_way) = tick.as_ref().map_or(base, |tick| &tick.end);
    let position = tick.as_ref().map(|tick| tick.position);
    let of_all: [Param<'_>; 3] =
        [(&limit, Type::INT8), (pipeline, Type::TEXT), (beyond, Type::TEXT)];
    let mut params = of_all.to_vec();
    params.extend::<[Param<'_>; 3]>([
        (unseen, Type::TEXT),
        (under_way, Type::TEXT_ARRAY),
        (&position, Type::INT8),
    ]);
    params.extend(age.clone());
    let mut rows = tx.query(&sql.unseen(*shard, shown), &params).await?;
    if let Some(tick) = tick {
        let mut params = of_all.to_vec();
        params.extend::<[Param<'_>; 2]>([(&tick.base, Type::TEXT), (&tick.position, Type::INT8)]);
        params.extend(age);
        rows.extend(tx.query(&sql.after(*shard, shown), &params).await?);
    }
    Ok(rows)
}

/// Rows that wait to be published.
#[derive(Default)]
struct Waiting {
    count: u64,
    /// The age of the oldest.
    age: Option<Duration>,
}

impl Waiting {
    fn read(rows: &[Row]) -> Result<Self, tokio_postgres::Error> {
        let Some(row) = rows.first() else { return Ok(Self::default()) };
        let age: Option<i64> = row.try_get(1)?;
        Ok(Self { count: count(rows)?, age: age.map(micros) })
    }

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.age = self.age.max(other.age);
    }
}

async fn set_aside(
    tx: &mut Transaction<'_>,
    sql: &AdminQueries,
    pipeline: &String,
    state: &str,
) -> Result<u64, Trouble> {
    let params: [Param<'_>; 3] = [(&MAX, Type::INT8), (pipeline, Type::TEXT), (&state, Type::TEXT)];
    Ok(count(&tx.query(&sql.set_aside, &params).await?)?)
}

fn lease(row: &Row) -> Result<LeaseStatus, tokio_postgres::Error> {
    Ok(LeaseStatus {
        shard: u32::try_from(row.try_get::<_, i32>(0)?).unwrap_or(0),
        owner: row.try_get(1)?,
        epoch: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0),
        expires_in: micros(row.try_get(3)?),
    })
}

fn count(rows: &[Row]) -> Result<u64, tokio_postgres::Error> {
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

fn written(rows: &[Row]) -> Result<Option<u64>, tokio_postgres::Error> {
    let written: Option<i64> = rows.first().map_or(Ok(None), |row| row.try_get(0))?;
    Ok(written.and_then(|written| u64::try_from(written).ok()))
}

fn micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
