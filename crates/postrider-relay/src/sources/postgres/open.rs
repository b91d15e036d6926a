//! Opens an outbox: connects, checks the tables and takes the lease.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

use super::checkpoint::{CheckpointQueries, First};
use super::connection::Connection;
use super::error::Trouble;
use super::frontier::Position;
use super::lease::{self, Claimant, LeaseQueries, Taken};
use super::log::{Log, LogOptions, LogQueries, Names, not_polled};
use super::queries::{IS_UTF8, Reads, Writes};
use super::read::Due;
use super::row::Decoder;
use super::window::Window;
use super::{Found, PostgresOptions, Shared, Way, table};
use crate::pipeline::Ordering;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::{Mode, Progress};

pub(super) async fn open(options: PostgresOptions) -> Result<Shared, SourceError> {
    let PostgresOptions { location, table: name, pipeline, progress, matching, .. } = options;
    let purposes = ["reads", "settles", "stays"].map(|does| format!("{pipeline} {does}"));
    let [reader, settler, keeper] =
        Connection::group(&location, purposes.each_ref().map(String::as_str));
    let shard = options.shard;
    let opened = async {
        let table = table::read(&settler, &name, &options.columns).await?;
        table.refuse_unsuitable(&name, progress)?;
        let is_utf8 = settler.query(IS_UTF8, &[]).await?;
        let is_utf8 = is_utf8.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false);
        let side_by_side = options.ordering == Ordering::None && progress != Progress::Cursor;
        let names = Names::new(location.database(), &table, &pipeline);
        let slots = LogQueries::new(&table, &name, names);
        let (log, slots) = match options.mode {
            Mode::Poll => (None, Some(slots)),
            Mode::Cdc => {
                slots.refuse_standbys(&settler).await?;
                let log = Log::new(LogOptions {
                    sql: slots,
                    table: table.clone(),
                    location: location.clone(),
                    pipeline: &pipeline,
                    retained_bytes_max: options.max_retained_wal,
                });
                (Some(log), None)
            }
        };
        let origin = settler.origin().await?;
        let checkpoints = CheckpointQueries::new(&table, &name, shard, &origin);
        let checkpoints = checkpoints.beside(options.companions);
        let types = Some(matching.as_deref().unwrap_or_default());
        let shards = if side_by_side { 0 } else { i32::try_from(shard.of).unwrap_or(i32::MAX) };
        let index = i32::try_from(shard.index).unwrap_or(i32::MAX);
        let claimant =
            Claimant { pipeline: pipeline.clone(), relay: options.relay, duration: options.lease };
        let mut tx = settler.begin().await?;
        let sql = LeaseQueries::new(&name, &origin);
        sql.lock(&mut tx).await?;
        if let Some(slots) = &slots
            && checkpoints.is_log_only(&mut tx, &pipeline).await?
        {
            return Err(not_polled(&pipeline, &slots.names().slot).into());
        }
        if checkpoints.enter(&mut tx, &pipeline, shards, progress, types).await? {
            sql.depose(&mut tx, &pipeline).await?;
        }
        let wanted = (!side_by_side).then_some(index);
        let held = match lease::take(&mut tx, sql, claimant, wanted).await? {
            Taken::Held(held) => *held,
            Taken::By(owner) => {
                tx.commit().await?;
                return Err(held_by_another(&pipeline, index, shards, owner).into());
            }
        };
        let (pipeline, start) = (pipeline.as_str(), options.start);
        let first = First { pipeline, shard: held.shard, shards, progress, types, start };
        checkpoints.create(&mut tx, first).await?;
        tx.commit().await?;
        // From here on the lease is held, and given back when the source is dropped.
        Ok((table, origin, checkpoints, held, side_by_side, is_utf8, log, slots))
    };
    let opened: Result<_, Trouble> = opened.await;
    let (table, origin, checkpoints, held, side_by_side, is_utf8, log, slots) =
        opened.map_err(|trouble| trouble.while_doing("open the outbox"))?;
    for index in table.missing_indexes(progress) {
        warn!(pipeline, index, "every look goes through the whole outbox; make this index");
    }
    let has_xid = table.has("xid");
    Ok(Shared {
        reads: Reads::new(&table, &name, shard, &origin),
        writes: Writes::new(&table, &name, &origin, log.as_ref()),
        checkpoints,
        decoder: Decoder { derives_ids: table.derives_ids() },
        is_utf8,
        held,
        pipeline,
        table: name.to_string(),
        types: matching,
        ordered: options.ordering == Ordering::Key,
        progress,
        way: match (side_by_side, has_xid) {
            (true, _) => Way::Claims,
            (false, true) => Way::Ticks,
            (false, false) => Way::Scan,
        },
        has_xid,
        lasting: AtomicU64::new(0),
        is_started: AtomicBool::new(false),
        window: Mutex::new(Window::new(Position::start(), None)),
        found: Mutex::new(Found {
            kept: VecDeque::new(),
            due: Due::default(),
            was_nothing: false,
            careful: 0,
            started_over: Instant::now(),
            looked_for_unreadable: None,
        }),
        written: Mutex::default(),
        writing: tokio::sync::Mutex::default(),
        settled: Notify::new(),
        log,
        slots,
        reader,
        settler,
        keeper,
    })
}

fn held_by_another(pipeline: &str, shard: i32, shards: i32, owner: Option<String>) -> SourceError {
    let part = if shards > 1 { format!(" (shard {shard})") } else { String::new() };
    let owner = owner.unwrap_or_else(|| "another relay".to_owned());
    let message = format!("{owner} runs pipeline {pipeline:?}{part}");
    SourceError::new(SourceErrorKind::Held, message)
}
