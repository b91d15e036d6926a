//! Writes down what became of rows: one call, one transaction, and in the usual case one round
//! trip.
//!
//! A fresh row leaves the stream (it is marked, deleted, or the cursor moves past it) in the same
//! transaction in which it is copied to the rows set aside. So at any moment an event is in
//! exactly one of the two places. And every settlement holds the lease while it is written: a
//! relay that was taken over finds the epoch changed, and nothing is written. A row is named by
//! its number and its id: a number may have been given again to another event.
//!
//! *The first blocking row of a key that is set aside is either parked or due at some time.*
//! Whoever removes or changes a blocking row (a relay that settles, an operator) mends its key
//! in the same transaction. Two of them at the same time could each rely on a row that the other
//! removes, so they take turns (`lock_failures`).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use postrider::Key;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::Shared;
use super::connection::{Param, Transaction, is_so};
use super::error::Trouble;
use super::frontier::Position;
use super::ids::Ids;
use super::log::{Answer, Log, Mark, Stored};
use super::read::Xid;
use super::snapshot::Snapshot;
use super::window::{Origin, Settling, UnderWay};
use crate::source::{Settled, SourceError, SourceErrorKind, Verdict};
use crate::sources::Progress;

/// Longer than anybody waits, and still a time: a hundred years.
const DELAY_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Writes the settlements and the position that they lead to.
pub(super) async fn settle(
    shared: &Shared,
    settling: &[Settling],
    position: Option<&Position>,
) -> Result<Written, Trouble> {
    let looked_for = shared.log.as_ref().map_or(0, Log::looked_for);
    let is_cursor = shared.progress == Progress::Cursor;
    let mut plan = Plan { is_utf8: shared.is_utf8, is_cursor, looked_for, ..Plan::default() };
    for settling in settling {
        plan.add(settling);
    }
    if plan.is_nothing() && !settling.is_empty() && !shared.claims() {
        return Ok(Written::default());
    }
    if plan.is_plain() {
        let answer = leave_stream(shared, Writer::Alone, &plan, position).await?;
        return Ok(Written { answer, ..Written::default() });
    }
    let sql = &shared.writes;
    let mut tx = shared.settler.begin().await?;
    if !is_so(&tx.query(&sql.hold_lease, &shared.lease_params()).await?)? {
        return Err(shared.held.lost().into());
    }
    let pipeline = &shared.pipeline;
    tx.query(&sql.lock_failures, &[(pipeline, Type::TEXT)]).await?;
    if !plan.fresh.is_empty() {
        set_aside_fresh(shared, &mut tx, &plan).await?;
    }
    if !plan.again.is_empty() {
        let ids = Ids::new(&plan.again.ids, &Type::TEXT_ARRAY);
        plan.again.write(&mut tx, &sql.set_aside_again, pipeline, &ids).await?;
    }
    if !plan.forgotten.is_empty() {
        let params: [Param<'_>; 4] = [
            (pipeline, Type::TEXT),
            (&plan.forgotten, Type::INT8_ARRAY),
            (&shared.held.shard, Type::INT4),
            (&plan.forgotten_ids, Type::TEXT_ARRAY),
        ];
        let forget = match shared.progress {
            Progress::Mark => &sql.forget_marked,
            Progress::Cursor | Progress::Delete => &sql.forget,
        };
        tx.execute(forget, &params).await?;
    }
    let answer = leave_stream(shared, Writer::In(&mut tx), &plan, position).await?;
    if !plan.unclaimed.is_empty() && shared.claims() {
        let params: [Param<'_>; 4] = [
            (pipeline, Type::TEXT),
            (&plan.unclaimed, Type::INT8_ARRAY),
            (&shared.held.shard, Type::INT4),
            (&shared.held.epoch, Type::INT8),
        ];
        tx.execute(&sql.unclaim, &params).await?;
    }
    let unblocked = mend(&mut tx, &sql.mend, pipeline, &plan.touched).await?;
    tx.commit().await?;
    Ok(Written { settled: Settled { unblocked }, answer })
}

/// What was written, and what came with it.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) settled: Settled,
    /// While the log is read.
    pub(super) answer: Option<Answer>,
}

/// Makes the first blocking row of each key due if nothing else would ever hand it out. Answers
/// the keys that have none.
async fn mend(
    tx: &mut Transaction<'_>,
    sql: &str,
    pipeline: &String,
    keys: &BTreeSet<Key>,
) -> Result<Vec<Key>, Trouble> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let types: Vec<&str> = keys.iter().map(|key| key.aggregate_type.as_str()).collect();
    let ids: Vec<&str> = keys.iter().map(|key| key.aggregate_id.as_str()).collect();
    let params: [Param<'_>; 3] =
        [(pipeline, Type::TEXT), (&types, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)];
    let rows = tx.query(sql, &params).await?;
    let key =
        |row: &Row| Ok(Key { aggregate_type: row.try_get(0)?, aggregate_id: row.try_get(1)? });
    rows.iter().map(key).collect()
}

/// Who runs a statement.
enum Writer<'w, 'c> {
    /// It is a transaction of its own.
    Alone,
    In(&'w mut Transaction<'c>),
}

/// Fresh rows are done with.
async fn leave_stream(
    shared: &Shared,
    writer: Writer<'_, '_>,
    plan: &Plan<'_>,
    position: Option<&Position>,
) -> Result<Option<Answer>, Trouble> {
    let [pipeline, shard, epoch] = shared.lease_params();
    let query = async |sql: &str, params: &[Param<'_>]| match writer {
        Writer::Alone => shared.settler.query(sql, params).await,
        Writer::In(tx) => tx.query(sql, params).await,
    };
    let sql = match shared.progress {
        Progress::Cursor => {
            let Some(Position { base, tick, seq, seen, beyond, log }) = position else {
                return Ok(None);
            };
            let (base, tick, beyond) = (base.to_string(), tick.to_string(), beyond.to_text());
            let seen = seen.to_string();
            let lsn = log.as_ref().map(|log| log.lsn.to_string());
            let since = log.as_ref().and_then(|log| log.since.as_ref()).map(Snapshot::to_string);
            let sample = plan.sample.map(|(seq, _)| seq);
            let sample_xid = plan.sample.map(|(_, xid)| Xid(xid));
            let params: [Param<'_>; 13] = [
                pipeline,
                shard,
                epoch,
                (&base, Type::TEXT),
                (&tick, Type::TEXT),
                (seq, Type::INT8),
                (&seen, Type::TEXT),
                (&beyond, Type::TEXT),
                (&lsn, Type::TEXT),
                (&since, Type::TEXT),
                (&sample, Type::INT8),
                (&sample_xid, Type::XID8),
                (&plan.is_any_delivered, Type::BOOL),
            ];
            let rows = query(&shared.writes.advance, &params).await?;
            let row = rows.first().expect("EXISTS answers one row");
            return match (row.try_get(0)?, row.try_get(1)?) {
                (false, _) => Err(shared.held.lost().into()),
                (true, false) => {
                    Err(shared.checkpoints.checkpoint_is_gone(&shared.pipeline).into())
                }
                (true, true) if shared.log.is_none() => Ok(None),
                (true, true) => plan.answer(row).map(Some),
            };
        }
        Progress::Delete => &shared.writes.delete,
        Progress::Mark => &shared.writes.mark,
    };
    let rows = &plan.done;
    if rows.is_empty() {
        return Ok(None);
    }
    let ids = Ids::new(&plan.done_ids, &shared.writes.id_type);
    let params: [Param<'_>; 6] = [
        pipeline,
        shard,
        epoch,
        (rows, Type::INT8_ARRAY),
        (&plan.is_any_delivered, Type::BOOL),
        ids.param(),
    ];
    match is_so(&query(sql, &params).await?)? {
        true => Ok(None),
        false => Err(shared.held.lost().into()),
    }
}

async fn set_aside_fresh(
    shared: &Shared,
    tx: &mut Transaction<'_>,
    plan: &Plan<'_>,
) -> Result<(), Trouble> {
    let (sql, fresh) = (&shared.writes, &plan.fresh);
    let ids = Ids::new(&fresh.ids, &sql.id_type);
    let mut copied = fresh.write(tx, &sql.set_aside, &shared.pipeline, &ids).await?;
    if copied.len() < fresh.seqs.len() && !plan.logged.is_empty() {
        copied.sort_unstable();
        let mut missing = plan.logged.clone();
        missing.retain(|(seq, _)| copied.binary_search(seq).is_err());
        copied.extend(set_aside_logged(shared, tx, fresh, &missing).await?);
    }
    if copied.len() == fresh.seqs.len() {
        return Ok(());
    }
    // Some are gone from the stream already: settled by a try whose answer was lost, or removed
    // by hand. But a row must not be left out because another one has its number.
    let params: [Param<'_>; 3] =
        [(&shared.pipeline, Type::TEXT), (&fresh.seqs, Type::INT8_ARRAY), ids.param()];
    if !is_so(&tx.query(&sql.is_another, &params).await?)? {
        return Ok(());
    }
    let table = &shared.table;
    let message = format!(
        "an event of {table} has the number of another one that is set aside: the numbering of \
         {table} was reset"
    );
    Err(SourceError::new(SourceErrorKind::Unsafe, message)
        .with_hint(format!(
            "discard the dead letters, remove what else {table}_failures has of the old numbering, and \
             start again"
        ))
        .into())
}

/// Sets aside events that only the log has.
async fn set_aside_logged(
    shared: &Shared,
    tx: &mut Transaction<'_>,
    fresh: &Aside,
    missing: &[(i64, &UnderWay)],
) -> Result<Vec<i64>, Trouble> {
    let mut aside = Aside::default();
    let mut stored = Vec::with_capacity(missing.len());
    let missing: HashMap<i64, &UnderWay> = missing.iter().copied().collect();
    for (index, seq) in fresh.seqs.iter().enumerate() {
        let Some(row) = missing.get(seq) else { continue };
        aside.copy(fresh, index);
        stored.push(match (&row.event, &row.raw) {
            (Ok(event), _) => Stored::of(event),
            (Err(_), Some(raw)) => Stored::clone(raw),
            (Err(_), None) => Stored::default(),
        });
    }
    if stored.is_empty() {
        return Ok(Vec::new());
    }
    macro_rules! column {
        ($name:ident) => {
            stored.iter().map(|stored| stored.$name.clone()).collect::<Vec<_>>()
        };
    }
    let (ids, versions, payloads) = (column!(id), column!(event_version), column!(payload));
    let (aggregate_types, aggregate_ids) = (column!(aggregate_type), column!(aggregate_id));
    let (event_types, content_types) = (column!(event_type), column!(content_type));
    let (headers, topics) = (column!(headers), column!(topic));
    let (occurred, deliver_after) = (column!(occurred_at), column!(deliver_after));
    let [one, two, three, four, five, six, seven, eight] = aside.params(&shared.pipeline);
    let params: [Param<'_>; 19] = [
        one,
        two,
        three,
        four,
        five,
        six,
        seven,
        eight,
        (&ids, Type::TEXT_ARRAY),
        (&aggregate_types, Type::TEXT_ARRAY),
        (&aggregate_ids, Type::TEXT_ARRAY),
        (&event_types, Type::TEXT_ARRAY),
        (&versions, Type::INT8_ARRAY),
        (&payloads, Type::BYTEA_ARRAY),
        (&content_types, Type::TEXT_ARRAY),
        (&headers, Type::TEXT_ARRAY),
        (&topics, Type::TEXT_ARRAY),
        (&occurred, Type::TIMESTAMPTZ_ARRAY),
        (&deliver_after, Type::TIMESTAMPTZ_ARRAY),
    ];
    numbers(&tx.query(&shared.writes.set_aside_logged, &params).await?)
}

fn numbers(rows: &[Row]) -> Result<Vec<i64>, Trouble> {
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// What is to be written.
#[derive(Default)]
struct Plan<'s> {
    is_utf8: bool,
    /// Rows of the log that are to be set aside.
    logged: Vec<(i64, &'s UnderWay)>,
    /// A row of the log that is settled and should be in the table, with its transaction. Not of
    /// this one, of which one was looked for: to find a row among a million takes long.
    sample: Option<(i64, u64)>,
    looked_for: u64,
    is_cursor: bool,
    /// Fresh rows that leave the stream, and their ids unless a cursor passes them.
    done: Vec<i64>,
    done_ids: Vec<Option<String>>,
    /// Fresh rows to set aside.
    fresh: Aside,
    /// Rows that are set aside once more.
    again: Aside,
    /// Rows that were set aside and are delivered, and their ids.
    forgotten: Vec<i64>,
    forgotten_ids: Vec<Option<String>>,
    is_any_delivered: bool,
    /// Rows whose claim ends.
    unclaimed: Vec<i64>,
    /// Keys of rows that blocked, or do now.
    touched: BTreeSet<Key>,
}

impl<'s> Plan<'s> {
    fn add(&mut self, Settling { row, verdict, .. }: &'s Settling) {
        let key = row.key();
        if !matches!(verdict, Verdict::Attempting { .. }) {
            self.unclaimed.push(row.seq);
        }
        if verdict == &Verdict::Released {
            return;
        }
        let blocked = match row.origin {
            Origin::Fresh(_) => {
                self.add_done(row);
                false
            }
            Origin::Logged { xid, .. } => {
                self.add_done(row);
                let xid = xid.filter(|xid| *xid != self.looked_for);
                self.sample = self.sample.or(xid.map(|xid| (row.seq, xid)));
                false
            }
            Origin::SetAside { blocks } => blocks,
        };
        let mut blocks = false;
        self.is_any_delivered |= verdict == &Verdict::Delivered;
        match (verdict, row.was_set_aside()) {
            (Verdict::Delivered, false) => {}
            (Verdict::Delivered, true) => {
                self.forgotten.push(row.seq);
                self.forgotten_ids.push(row.id());
            }
            (verdict, false) => {
                blocks = self.fresh.add(row, verdict, self.is_utf8);
                if let Origin::Logged { .. } = row.origin {
                    self.logged.push((row.seq, row));
                }
            }
            (verdict, true) => blocks = self.again.add(row, verdict, self.is_utf8),
        }
        if blocked || blocks {
            self.touched.extend(key.cloned());
        }
    }

    fn add_done(&mut self, row: &UnderWay) {
        self.done.push(row.seq);
        if !self.is_cursor {
            self.done_ids.push(row.id());
        }
    }

    /// What the statement that moves a cursor answers while the log is read.
    fn answer(&self, row: &Row) -> Result<Answer, Trouble> {
        let unreadable = || {
            let message = "the server answered with something that is no snapshot";
            SourceError::new(SourceErrorKind::Unsafe, message)
        };
        let snapshot = row.try_get::<_, &str>(2)?.parse().map_err(|_| unreadable())?;
        let lsn = row.try_get::<_, &str>(3)?.parse().map_err(|_| unreadable())?;
        let mark = Mark { snapshot, lsn };
        let is_gone = !row.try_get::<_, bool>(5)?;
        // Not if it is merely not visible yet.
        let looked_for = self.sample.map(|(_, xid)| xid).filter(|xid| mark.snapshot.sees(*xid));
        let is_log_only = is_gone && looked_for.is_some();
        Ok(Answer { mark, publication: row.try_get(4)?, looked_for, is_log_only })
    }

    /// Everything was released.
    fn is_nothing(&self) -> bool {
        self.is_plain_but_for_claims() && self.done.is_empty()
    }

    /// Nothing but fresh rows that were delivered.
    fn is_plain(&self) -> bool {
        self.is_plain_but_for_claims() && self.unclaimed.len() == self.done.len()
    }

    fn is_plain_but_for_claims(&self) -> bool {
        self.fresh.is_empty() && self.again.is_empty() && self.forgotten.is_empty()
    }
}

/// Rows to set aside, column by column.
#[derive(Default)]
struct Aside {
    seqs: Vec<i64>,
    ids: Vec<Option<String>>,
    states: Vec<&'static str>,
    blocks: Vec<bool>,
    /// Microseconds until it is due.
    delays: Vec<Option<i64>>,
    attempts: Vec<Option<i32>>,
    kinds: Vec<Option<&'static str>>,
    errors: Vec<Option<String>>,
}

impl Aside {
    fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Adds a row; answers whether it blocks its key.
    fn add(&mut self, row: &UnderWay, verdict: &Verdict, is_utf8: bool) -> bool {
        let (mut state, mut blocks, mut delay) = ("queued", true, None);
        let (mut failure, mut attempts) = (None, None);
        match verdict {
            Verdict::Parked { failure: why, blocks: does } => {
                (state, blocks, failure) = ("parked", *does, Some(why));
            }
            Verdict::Deferred { delay: pause, failure: why, blocks: does } => {
                (state, blocks, failure) = ("deferred", *does, why.as_ref());
                delay = Some(*pause);
            }
            Verdict::Attempting { attempts: tries, blocks: does } => {
                (state, blocks, attempts) = ("deferred", *does, Some(*tries));
                delay = Some(Duration::ZERO);
            }
            Verdict::Queued | Verdict::Delivered | Verdict::Released => {}
        }
        // What has no key blocks nothing and has nothing to wait for.
        if row.key().is_none() {
            blocks = false;
            if state == "queued" {
                delay = Some(Duration::ZERO);
            }
        }
        let attempts = attempts.or(failure.map(|failure| failure.attempts));
        self.seqs.push(row.seq);
        self.ids.push(row.id());
        self.states.push(state);
        self.blocks.push(blocks);
        self.delays.push(delay.map(micros));
        self.attempts.push(attempts.map(|attempts| i32::try_from(attempts).unwrap_or(i32::MAX)));
        self.kinds.push(failure.map(|failure| failure.kind.as_str()));
        self.errors.push(failure.map(|failure| storable(&failure.message, is_utf8)));
        blocks
    }

    /// Takes over a row of another one.
    fn copy(&mut self, other: &Self, index: usize) {
        self.seqs.push(other.seqs[index]);
        self.ids.push(other.ids[index].clone());
        self.states.push(other.states[index]);
        self.blocks.push(other.blocks[index]);
        self.delays.push(other.delays[index]);
        self.attempts.push(other.attempts[index]);
        self.kinds.push(other.kinds[index]);
        self.errors.push(other.errors[index].clone());
    }

    /// Runs the statement; answers the numbers that it gave back.
    async fn write(
        &self,
        tx: &mut Transaction<'_>,
        sql: &str,
        pipeline: &String,
        ids: &Ids,
    ) -> Result<Vec<i64>, Trouble> {
        let [one, two, three, four, five, six, seven, eight] = self.params(pipeline);
        let params = [one, two, three, four, five, six, seven, eight, ids.param()];
        numbers(&tx.query(sql, &params).await?)
    }

    fn params<'p>(&'p self, pipeline: &'p String) -> [Param<'p>; 8] {
        [
            (pipeline, Type::TEXT),
            (&self.seqs, Type::INT8_ARRAY),
            (&self.states, Type::TEXT_ARRAY),
            (&self.blocks, Type::BOOL_ARRAY),
            (&self.delays, Type::INT8_ARRAY),
            (&self.attempts, Type::INT4_ARRAY),
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.errors, Type::TEXT_ARRAY),
        ]
    }
}

/// What the database can store: PostgreSQL takes no NUL in a text, and one that is not in UTF-8
/// takes only the characters of its encoding.
fn storable(message: &str, is_utf8: bool) -> String {
    let mut storable = String::with_capacity(message.len());
    for char in message.chars() {
        match char {
            '\0' => storable.push('?'),
            char if is_utf8 || char.is_ascii() => storable.push(char),
            char => storable.extend(char.escape_unicode()),
        }
    }
    storable
}

fn micros(delay: Duration) -> i64 {
    i64::try_from(delay.min(DELAY_MAX).as_micros()).unwrap_or(i64::MAX)
}
