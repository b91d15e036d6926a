//! Finds rows to hand out: first those set aside whose turn it is, then those that were given
//! back, then fresh ones.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::connection::{Param, is_so};
use super::error::Trouble;
use super::frontier::TickNumber;
use super::log::{Log, LogPosition};
use super::queries::{FEW_ROWS, IN_ORDER, column};
use super::row::{Decoded, SEQ_UNREADABLE};
use super::snapshot::{NotASnapshot, Snapshot};
use super::window::{Origin, Window};
use super::{FEW, Found, Looked, Shared, Way, lock, take};
use crate::source::{BatchLimit, Record, SourceError, SourceErrorKind};
use crate::sources::Progress;

/// How often to look for rows set aside that have come due, by time or by an operator.
const DUE_EVERY: Duration = Duration::from_millis(20);
/// The same while the log is read, which needs no looking.
const DUE_STREAMING_EVERY: Duration = Duration::from_millis(500);
/// How often to look for unpublished rows from the start, when there is nothing else to do: such
/// as were given an old transaction, or un-published, by hand.
const START_OVER_EVERY: Duration = Duration::from_secs(10);
/// The same if that may mean to pass over many rows that are not for this pipeline.
const START_OVER_FILTERED_EVERY: Duration = Duration::from_secs(600);

/// How many reads are careful after large rows were met.
const CAREFUL_READS: u32 = 16;

/// When to look for rows that were set aside. By default at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    look_at: Option<Instant>,
}

impl Due {
    fn is_now(self) -> bool {
        self.look_at.is_none_or(|look_at| look_at <= Instant::now())
    }
}

/// A transaction's number, as a parameter.
#[derive(Debug)]
pub(super) struct Xid(pub(super) u64);

impl Xid {
    pub(super) fn all(xids: &[u64]) -> Vec<Self> {
        xids.iter().map(|xid| Self(*xid)).collect()
    }
}

impl ToSql for Xid {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::XID8
    }

    to_sql_checked!();
}

/// How much to ask for.
#[derive(Clone, Copy, Debug)]
struct Ask {
    rows: i64,
    bytes: i64,
}

impl Ask {
    fn rows(self) -> usize {
        usize::try_from(self.rows).unwrap_or(0)
    }

    fn new(rows: usize, bytes: usize) -> Self {
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        Self { rows: number(rows), bytes: number(bytes) }
    }
}

/// Rows that one snapshot sees and another one does not, behind a number.
#[derive(Debug)]
struct Page {
    from: String,
    to: String,
    after: i64,
}

impl Page {
    fn new(from: &Snapshot, to: &Snapshot, after: i64) -> Self {
        Self { from: from.to_string(), to: to.to_string(), after }
    }
}

impl Shared {
    /// Records that were read and not handed out yet.
    pub(super) fn take_kept(&self, limit: BatchLimit) -> Option<Vec<Record>> {
        let mut window = self.window();
        let Found { kept, due, .. } = &mut *lock(&self.found);
        window.take_back(kept);
        if kept.is_empty() {
            return None;
        }
        let records = take(kept, limit);
        if !self.claims() && window.forget_returned(kept) {
            *due = Due::default();
        }
        Some(records)
    }

    /// Whether everything that was read is handed out, and there is more to read at once, or to
    /// wait for.
    pub(super) fn has_another_page(&self) -> bool {
        let is_reading = self.window().frontier.reading().is_some() || self.is_streaming();
        is_reading && lock(&self.found).kept.is_empty()
    }

    /// Whether fresh rows come from the log.
    pub(super) fn is_streaming(&self) -> bool {
        self.log.as_ref().is_some_and(Log::is_streaming)
    }

    /// Looks for rows and keeps what is found.
    pub(super) async fn look(&self, limit: BatchLimit) -> Result<Looked, Trouble> {
        let looked = match self.is_worth_it().await? {
            true => self.look_closely(limit).await?,
            false => Looked::Nothing,
        };
        lock(&self.found).was_nothing = looked == Looked::Nothing;
        Ok(looked)
    }

    /// Whether a look can find anything. After one that found nothing that is asked first: there
    /// is mostly nothing again, and asking costs much less.
    async fn is_worth_it(&self) -> Result<bool, Trouble> {
        let seen = {
            let window = self.window();
            let (seen, found) = (window.frontier.seen(), lock(&self.found));
            let is_asked = self.way == Way::Ticks
                && self.log.is_none()
                && found.was_nothing
                && found.started_over.elapsed() < self.start_over_every()
                && window.released.is_empty()
                && window.frontier.reading().is_none()
                && !seen.is_nothing();
            if !is_asked {
                return Ok(true);
            }
            seen.clone()
        };
        let under_way = Xid::all(seen.under_way());
        let params: [Param<'_>; 3] = [
            (&self.pipeline, Type::TEXT),
            (&Xid(seen.xmax()), Type::XID8),
            (&under_way, Type::XID8_ARRAY),
        ];
        is_so(&self.reader.query(&self.reads.anything, &params).await?)
    }

    fn start_over_every(&self) -> Duration {
        match self.types {
            None => START_OVER_EVERY,
            Some(_) => START_OVER_FILTERED_EVERY,
        }
    }

    async fn look_closely(&self, limit: BatchLimit) -> Result<Looked, Trouble> {
        let mut ask = Ask::new(limit.events.max(1), limit.bytes);
        let is_due = lock(&self.found).due.is_now();
        if is_due {
            let records = self.look_for_due(ask).await?;
            let is_full = ask.take(&records);
            let mut found = lock(&self.found);
            // If there are some, there may be more.
            let every = if self.is_streaming() { DUE_STREAMING_EVERY } else { DUE_EVERY };
            let look_at = records.is_empty().then(|| Instant::now() + every);
            found.due = Due { look_at };
            found.kept.extend(records);
            if is_full {
                return Ok(Looked::Found);
            }
        }
        let records = self.look_for_released(ask).await?;
        let is_full = ask.take(&records);
        lock(&self.found).kept.extend(records);
        if is_full {
            return Ok(Looked::Found);
        }
        let records = self.look_for_unreadable(ask).await?;
        lock(&self.found).kept.extend(records);
        let records = match self.way {
            Way::Ticks if let Some(log) = &self.log => self.look_with_log(log, ask, limit).await?,
            Way::Ticks => self.look_in_tick(ask).await?,
            Way::Scan => self.scan(ask).await?,
            Way::Claims => self.claim(ask).await?,
        };
        let starts_over = {
            let mut found = lock(&self.found);
            found.kept.extend(records);
            if !found.kept.is_empty() {
                return Ok(Looked::Found);
            }
            let is_time = found.started_over.elapsed() >= self.start_over_every();
            if is_time {
                found.started_over = Instant::now();
            }
            is_time
        };
        if starts_over && self.start_over() {
            return Ok(Looked::More);
        }
        let window = self.window();
        // Without room the rest of the tick waits for settlements.
        let is_more = window.frontier.reading().is_some() && window.frontier.room() > 0;
        Ok(if is_more { Looked::More } else { Looked::Nothing })
    }

    /// Reads the log; or the table, as long as there is something to read there before.
    async fn look_with_log(
        &self,
        log: &Log,
        ask: Ask,
        limit: BatchLimit,
    ) -> Result<Vec<Record>, Trouble> {
        if log.is_making() {
            // Nothing is read from the table that comes behind the slot.
            self.step_to_log(log).await?;
        }
        if !log.is_streaming() && self.made().is_none() {
            let records = self.look_in_tick(ask).await?;
            if records.len() < FEW && self.window().frontier.reading().is_none() {
                self.step_to_log(log).await?;
            }
            if !records.is_empty() || self.made().is_none() {
                return Ok(records);
            }
        }
        if let Some((made, has_begun)) = self.made() {
            return self.look_up_to_slot(log, made, has_begun, ask).await;
        }
        let bytes = usize::try_from(ask.bytes).unwrap_or(0);
        let records = self.window().hand_out_again(ask.rows(), bytes);
        if !records.is_empty() {
            return Ok(records);
        }
        let wait = {
            let found = lock(&self.found);
            let due_in = found
                .due
                .look_at
                .filter(|_| found.kept.is_empty())
                .map(|look_at| look_at.saturating_duration_since(Instant::now()));
            limit.wait.min(due_in.unwrap_or_default())
        };
        self.look_in_log(log, wait).await
    }

    /// Reads the table up to where the slot begins, and no further: what came later is in the log,
    /// among events that only the log has.
    async fn look_up_to_slot(
        &self,
        log: &Log,
        made: LogPosition,
        has_begun: bool,
        ask: Ask,
    ) -> Result<Vec<Record>, Trouble> {
        let (page, seen, ask) = self.page(ask);
        if let Some(page) = page {
            if ask.rows == 0 {
                return Ok(Vec::new());
            }
            let records = self.read_page(ask, &page).await?;
            if !records.is_empty() || self.window().frontier.reading().is_some() {
                return Ok(records);
            }
        }
        if has_begun {
            self.begin_log(log, &made).await?;
            return Ok(Vec::new());
        }
        let since = Xid(self.lasting.load(Ordering::Relaxed));
        let rows = self.reader.query(&self.reads.now, &[(&since, Type::XID8)]).await?;
        let row = rows.first().expect("a select without a table answers one row");
        let now = self.snapshot(row.try_get(0)?)?;
        let slot = made.since.clone().unwrap_or_else(Snapshot::nothing);
        // Others may not see yet what the log has already, as long as a commit waits for a replica.
        if now.sees_all_of(&slot) {
            if self.lasting(now, row.try_get(1)?).is_none() {
                self.take_over_foreign_rows().await?;
                return Ok(Vec::new());
            }
            let to = seen.union(&slot).up_to(self.lasting.load(Ordering::Relaxed));
            self.window().frontier.open(to, i64::MIN);
            self.begin_last_tick(log, made);
        }
        Ok(Vec::new())
    }

    /// What is read and not handed out: records that could be delivered, and those whose time has
    /// not come.
    pub(super) fn kept(&self) -> (usize, usize) {
        let found = lock(&self.found);
        let is_delayed = |record: &&Record| record.delay.is_some() && !record.returned;
        let delayed = found.kept.iter().filter(is_delayed).count();
        (found.kept.len() - delayed, delayed)
    }
}

impl Ask {
    /// Takes what was found off what is asked for. Answers whether nothing is left.
    fn take(&mut self, records: &[Record]) -> bool {
        let found = Self::new(records.len(), records.iter().map(Record::size_bytes).sum());
        self.rows -= found.rows;
        self.bytes -= found.bytes;
        !records.is_empty() && (self.rows <= 0 || self.bytes <= 0)
    }
}

impl Shared {
    async fn look_for_due(&self, ask: Ask) -> Result<Vec<Record>, Trouble> {
        let Self { pipeline, held, .. } = self;
        let rows = if self.claims() {
            let params: [Param<'_>; 5] = [
                (&ask.rows, Type::INT8),
                (&ask.bytes, Type::INT8),
                (pipeline, Type::TEXT),
                (&held.shard, Type::INT4),
                (&held.epoch, Type::INT8),
            ];
            self.reader.query(&self.reads.claim_due, &params).await?
        } else {
            let under_way = self.window().set_aside();
            let params: [Param<'_>; 4] = [
                (&ask.rows, Type::INT8),
                (&ask.bytes, Type::INT8),
                (pipeline, Type::TEXT),
                (&under_way, Type::INT8_ARRAY),
            ];
            self.reader.query(&self.reads.due, &params).await?
        };
        let mut due = Vec::with_capacity(rows.len());
        for (row, decoded) in rows.iter().zip(self.decode(&rows)?) {
            let attempts: i32 = row.try_get(column::ATTEMPTS)?;
            let origin = Origin::SetAside { blocks: row.try_get(column::BLOCKS)? };
            due.push((decoded, u32::try_from(attempts).unwrap_or(0), origin));
        }
        let mut window = self.window();
        let mut records = Vec::with_capacity(due.len());
        let mut busy = HashSet::new();
        for (row, attempts, origin) in due {
            let is_behind = row.decoded.key().is_some_and(|key| busy.contains(key));
            if is_behind || window.is_busy(row.decoded.seq) {
                // And what comes behind it has to wait for it.
                busy.extend(row.decoded.key().cloned());
                continue;
            }
            records.push(Record { attempts, ..row.hand_out(&mut window, origin) });
        }
        Ok(records)
    }

    /// Looks for the row that stands in no tick, because its number has none before it.
    async fn look_for_unreadable(&self, ask: Ask) -> Result<Vec<Record>, Trouble> {
        if self.way != Way::Ticks || self.is_streaming() {
            return Ok(Vec::new());
        }
        {
            let looked_at = &mut lock(&self.found).looked_for_unreadable;
            if looked_at.is_some_and(|at| at.elapsed() < START_OVER_EVERY) {
                return Ok(Vec::new());
            }
            *looked_at = Some(Instant::now());
        }
        if self.window().fresh().contains(&SEQ_UNREADABLE) {
            return Ok(Vec::new());
        }
        let params: [Param<'_>; 4] = [
            (&ask.rows, Type::INT8),
            (&ask.bytes, Type::INT8),
            (&self.types, Type::TEXT_ARRAY),
            (&self.pipeline, Type::TEXT),
        ];
        let rows = self.reader.query_with(IN_ORDER, &self.reads.unreadable, &params).await?;
        self.take_unticked(&rows)
    }

    async fn look_for_released(&self, ask: Ask) -> Result<Vec<Record>, Trouble> {
        let wanted = usize::try_from(ask.rows).unwrap_or(0);
        let released: Vec<(i64, TickNumber)> = {
            let window = self.window();
            window.released.iter().take(wanted).map(|(seq, tick)| (*seq, *tick)).collect()
        };
        if released.is_empty() {
            return Ok(Vec::new());
        }
        let seqs: Vec<i64> = released.iter().map(|(seq, _)| *seq).collect();
        let params: [Param<'_>; 3] =
            [(&ask.rows, Type::INT8), (&ask.bytes, Type::INT8), (&seqs, Type::INT8_ARRAY)];
        let rows = self.reader.query(&self.reads.rows, &params).await?;
        let total: i64 =
            rows.first().map(|row| row.try_get(column::TOTAL)).transpose()?.unwrap_or(0);
        let is_all = usize::try_from(total).is_ok_and(|total| total == rows.len());
        let rows = self.decode(&rows)?;
        let mut window = self.window();
        let mut records = Vec::with_capacity(rows.len());
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let seq = row.decoded.seq;
            let Ok(index) = released.binary_search_by_key(&seq, |(seq, _)| *seq) else {
                continue;
            };
            window.released.remove(&seq);
            found.push(seq);
            records.push(row.hand_out(&mut window, Origin::Fresh(released[index].1)));
        }
        if is_all {
            // The others are no longer there to be delivered.
            for (seq, tick) in released {
                if found.binary_search(&seq).is_err() {
                    window.released.remove(&seq);
                    window.frontier.set_settled(tick, seq, true);
                }
            }
        }
        Ok(records)
    }

    /// Goes on with a tick, or begins a new one. If there is a row of a transaction that is still to
    /// come, nothing is made of what was read: the tick would have that row again and again.
    async fn look_in_tick(&self, ask: Ask) -> Result<Vec<Record>, Trouble> {
        match self.look_in_tick_of_now(ask).await? {
            Some(records) => Ok(records),
            None => {
                self.take_over_foreign_rows().await?;
                Ok(Vec::new())
            }
        }
    }

    /// `None` if there is a row of a transaction that is still to come.
    async fn look_in_tick_of_now(&self, ask: Ask) -> Result<Option<Vec<Record>>, Trouble> {
        let (page, seen, ask) = self.page(ask);
        if ask.rows == 0 {
            return Ok(Some(Vec::new()));
        }
        if let Some(page) = page {
            let records = self.read_page(ask, &page).await?;
            if !records.is_empty() || self.window().frontier.reading().is_some() {
                return Ok(Some(records));
            }
        }
        if seen.is_nothing() {
            // It may be large, so it is read in pages from the start.
            let since = Xid(self.lasting.load(Ordering::Relaxed));
            let rows = self.reader.query(&self.reads.now, &[(&since, Type::XID8)]).await?;
            let row = rows.first().expect("a select without a table answers one row");
            let now = self.snapshot(row.try_get(0)?)?;
            let Some(now) = self.lasting(now, row.try_get(1)?) else { return Ok(None) };
            return self.begin_page(ask, &seen, now, i64::MIN).await.map(Some);
        }
        self.read_tick(ask, &seen).await
    }

    /// What is left of the tick that is being read, what was seen before, and how much to ask for.
    fn page(&self, ask: Ask) -> (Option<Page>, Snapshot, Ask) {
        let frontier = &self.window().frontier;
        let page = frontier.reading().map(|(from, to, after)| Page::new(from, to, after));
        let room = i64::try_from(frontier.room()).unwrap_or(i64::MAX);
        (page, frontier.seen().clone(), Ask { rows: ask.rows.min(room), ..ask })
    }

    /// Begins a tick that is read in pages.
    async fn begin_page(
        &self,
        ask: Ask,
        seen: &Snapshot,
        now: Snapshot,
        after: i64,
    ) -> Result<Vec<Record>, Trouble> {
        let page = Page::new(seen, &now, after);
        self.window().frontier.open(now, after);
        self.read_page(ask, &page).await
    }

    async fn read_page(&self, ask: Ask, page: &Page) -> Result<Vec<Record>, Trouble> {
        let params: [Param<'_>; 6] = [
            (&ask.rows, Type::INT8),
            (&ask.bytes, Type::INT8),
            (&self.types, Type::TEXT_ARRAY),
            (&page.after, Type::INT8),
            (&page.from, Type::TEXT),
            (&page.to, Type::TEXT),
        ];
        if !self.is_careful() {
            let rows = self.reader.query_with(IN_ORDER, &self.reads.small_page, &params).await?;
            if self.are_small(&rows)? {
                return self.take_in(&rows, rows.len() < ask.rows());
            }
        }
        let rows = self.reader.query_with(IN_ORDER, &self.reads.page, &params).await?;
        self.take_in(&rows, is_all(ask, &rows)?)
    }

    async fn read_tick(&self, ask: Ask, seen: &Snapshot) -> Result<Option<Vec<Record>>, Trouble> {
        let under_way = Xid::all(seen.under_way());
        let params: [Param<'_>; 5] = [
            (&ask.rows, Type::INT8),
            (&ask.bytes, Type::INT8),
            (&self.types, Type::TEXT_ARRAY),
            (&Xid(seen.xmax()), Type::XID8),
            (&under_way, Type::XID8_ARRAY),
        ];
        if !self.is_careful() {
            let mut rows =
                self.reader.query_with(FEW_ROWS, &self.reads.small_tick, &params).await?;
            let Some(now) = self.take_snapshot(&mut rows)? else { return Ok(None) };
            if rows.len() > ask.rows() {
                return self.begin_large_tick(ask, seen).await;
            }
            if self.are_small(&rows)? {
                self.window().frontier.open(now, i64::MIN);
                return self.take_in(&rows, rows.len() < ask.rows()).map(Some);
            }
        }
        let mut rows = self.reader.query_with(FEW_ROWS, &self.reads.tick, &params).await?;
        let Some(now) = self.take_snapshot(&mut rows)? else { return Ok(None) };
        if total(&rows)? > ask.rows() {
            return self.begin_large_tick(ask, seen).await;
        }
        self.window().frontier.open(now, i64::MIN);
        self.take_in(&rows, is_all(ask, &rows)?).map(Some)
    }

    /// Begins a tick that is read in pages: to sort all of its rows would take long.
    async fn begin_large_tick(
        &self,
        ask: Ask,
        seen: &Snapshot,
    ) -> Result<Option<Vec<Record>>, Trouble> {
        let under_way = Xid::all(seen.under_way());
        let params: [Param<'_>; 3] = [
            (&Xid(seen.xmax()), Type::XID8),
            (&under_way, Type::XID8_ARRAY),
            (&self.types, Type::TEXT_ARRAY),
        ];
        let rows = self.reader.query_with(FEW_ROWS, &self.reads.first, &params).await?;
        let row = rows.first().expect("a select without a table answers one row");
        let now = self.snapshot(row.try_get(0)?)?;
        let Some(now) = self.lasting(now, row.try_get(1)?) else { return Ok(None) };
        let after = row.try_get::<_, Option<i64>>(2)?.map_or(i64::MIN, |first| first - 1);
        self.begin_page(ask, seen, now, after).await.map(Some)
    }

    /// Takes the row with the snapshot out of an answer. `None` as [`lasting`](Self::lasting) says.
    fn take_snapshot(&self, rows: &mut Vec<Row>) -> Result<Option<Snapshot>, Trouble> {
        for (index, row) in rows.iter().enumerate() {
            if let Some(text) = row.try_get(column::SNAPSHOT)? {
                let now = self.snapshot(Some(text))?;
                let now = self.lasting(now, row.try_get(column::LAST_XID)?);
                rows.remove(index);
                return Ok(now);
            }
        }
        self.snapshot(None).map(Some)
    }

    /// Reads a snapshot. There is none if the server is on another timeline than the lease.
    fn snapshot(&self, text: Option<&str>) -> Result<Snapshot, Trouble> {
        let parsed = text.ok_or_else(|| self.held.lost())?.parse();
        parsed.map_err(|not: NotASnapshot| {
            SourceError::new(SourceErrorKind::Unsafe, not.to_string())
                .with_hint("report this, with the version of the server")
                .into()
        })
    }

    /// Whether large rows were met just now: then the next ones are read with care for their
    /// size from the start.
    fn is_careful(&self) -> bool {
        let careful = &mut lock(&self.found).careful;
        let is_careful = *careful > 0;
        *careful = careful.saturating_sub(1);
        is_careful
    }

    /// Whether all rows of an answer are small. If not, there is care from now on.
    fn are_small(&self, rows: &[Row]) -> Result<bool, Trouble> {
        for row in rows {
            if row.try_get::<_, i64>(column::TOTAL)? != 0 {
                lock(&self.found).careful = CAREFUL_READS;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What a snapshot says of transactions that stay in the past, given the last one of which it
    /// sees a row. After a crash the server gives numbers again that no record on its disk has.
    /// The numbers up to a transaction that is committed are not among them.
    ///
    /// `None` if that last one is still to come: then the row was not written here.
    fn lasting(&self, now: Snapshot, last: Option<&str>) -> Option<Snapshot> {
        let last = last.and_then(|last| last.parse::<u64>().ok());
        let after_last = last.map_or(0, |last| last.saturating_add(1));
        if after_last > now.xmax() {
            return None;
        }
        let before = self.lasting.fetch_max(after_last, Ordering::Relaxed);
        Some(now.up_to(before.max(after_last)))
    }

    /// Takes in rows of the tick that is being read.
    fn take_in(&self, rows: &[Row], is_read: bool) -> Result<Vec<Record>, Trouble> {
        let rows = self.decode(rows)?;
        let mut window = self.window();
        let mut records = Vec::with_capacity(rows.len());
        for row in rows {
            if let Some(tick) = window.frontier.row(row.decoded.seq) {
                records.push(row.hand_out(&mut window, Origin::Fresh(tick)));
            }
        }
        if is_read {
            window.frontier.end_tick();
        }
        Ok(records)
    }

    async fn scan(&self, ask: Ask) -> Result<Vec<Record>, Trouble> {
        let under_way = self.window().fresh();
        let params: [Param<'_>; 4] = [
            (&ask.rows, Type::INT8),
            (&ask.bytes, Type::INT8),
            (&self.types, Type::TEXT_ARRAY),
            (&under_way, Type::INT8_ARRAY),
        ];
        let rows = self.reader.query_with(IN_ORDER, &self.reads.scan, &params).await?;
        self.take_unticked(&rows)
    }

    async fn claim(&self, ask: Ask) -> Result<Vec<Record>, Trouble> {
        let params: [Param<'_>; 6] = [
            (&ask.rows, Type::INT8),
            (&ask.bytes, Type::INT8),
            (&self.types, Type::TEXT_ARRAY),
            (&self.pipeline, Type::TEXT),
            (&self.held.shard, Type::INT4),
            (&self.held.epoch, Type::INT8),
        ];
        let rows = self.reader.query_with(IN_ORDER, &self.reads.claim, &params).await?;
        self.take_unticked(&rows)
    }

    fn take_unticked(&self, rows: &[Row]) -> Result<Vec<Record>, Trouble> {
        let rows = self.decode(rows)?;
        let mut window = self.window();
        let hand_out = |row: Read| row.hand_out(&mut window, Origin::Fresh(TickNumber::NONE));
        Ok(rows.into_iter().map(hand_out).collect())
    }

    /// Begins again from the first unpublished row. Answers whether that can find any.
    fn start_over(&self) -> bool {
        let mut window = self.window();
        let can = self.way == Way::Ticks
            && self.progress != Progress::Cursor
            && window.is_quiet()
            && !window.frontier.seen().is_nothing();
        if can {
            window.start_over();
        }
        can
    }

    /// Decodes all rows of an answer, before anything is noted about one of them.
    fn decode(&self, rows: &[Row]) -> Result<Vec<Read>, Trouble> {
        let read = |row| {
            let delay: Option<i64> = Row::try_get(row, column::DELAY)?;
            let delay = delay.and_then(|micros| u64::try_from(micros).ok());
            let delay = delay.filter(|micros| *micros > 0).map(Duration::from_micros);
            Ok(Read { decoded: self.decoder.decode(row)?, delay })
        };
        rows.iter().map(read).collect()
    }
}

/// A row that was read and is not handed out yet.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) decoded: Decoded,
    pub(super) delay: Option<Duration>,
}

impl Read {
    pub(super) fn hand_out(mut self, window: &mut Window, origin: Origin) -> Record {
        Record {
            handle: window.hand_out(&mut self.decoded, self.delay, origin),
            event: self.decoded.event,
            attempts: 0,
            returned: matches!(origin, Origin::SetAside { .. }),
            delay: self.delay,
        }
    }
}

/// Whether an answer that is bounded in bytes has everything there is.
fn is_all(ask: Ask, rows: &[Row]) -> Result<bool, Trouble> {
    let total = total(rows)?;
    Ok(total < ask.rows() && total == rows.len())
}

/// How many rows there were for an answer that is bounded in bytes.
fn total(rows: &[Row]) -> Result<usize, Trouble> {
    let total: Option<i64> = rows.first().map(|row| row.try_get(column::TOTAL)).transpose()?;
    Ok(usize::try_from(total.unwrap_or(0)).unwrap_or(usize::MAX))
}
