//! An outbox in PostgreSQL, read by polling or from the server's log.
//!
//! # Design
//!
//! - **Reading** (`read`) goes by snapshots, because numbers are given before transactions
//!   commit: a tick takes what the new snapshot sees and the last one did not, in the order of
//!   `seq`. A transaction that commits late is found whenever it does, and one that stays open
//!   holds nothing up. Writers that take turns on their aggregate get its events in their order:
//!   whoever sees the later one sees the earlier one too, and that has the smaller number.
//! - **The log** (`log`) tells of commits sooner and without polling. It leans on the same position
//!   as a cursor does, so that one can go on where the other left off.
//! - **Progress** is kept in the rows (`mark`, `delete`) or as a position (`cursor`, `frontier`).
//!   Changing from one to another is described in `checkpoint`.
//! - **Settling** (`settle`) is one statement in the usual case, and no transaction is held open
//!   while events are published.
//! - **Events set aside** wait in `<table>_failures`.
//! - **One relay per shard of the keys**: `lease`. Where nothing is kept in order, any number of
//!   relays claim rows instead.
//! - **A failover, or a restart of the server**, ends a source, because what it has in memory may
//!   be wrong there (`cluster`). The next one starts from what is written.
//! - **Waiting**: an empty read is repeated after 1 ms, then 2, 4 … up to 100 ms; a settlement or
//!   a hint ends the wait. After an empty read one small statement asks first whether there is
//!   anything.
//!
//! What is under way is known in memory only (`window`); everything that outlives the process is
//! in the database.
//!
//! # Cancelling
//!
//! What was asked for is carried out even if the future that asked is dropped. The answer of a
//! read is taken by the next call, and records beyond that call's limit are kept for the one
//! after.

mod admin;
mod audit;
mod checkpoint;
mod cluster;
mod connection;
mod diagnosis;
mod error;
mod frontier;
mod ids;
mod lease;
mod location;
mod log;
mod migrate;
mod open;
mod options;
mod partitions;
mod prune;
mod queries;
mod ranges;
mod read;
mod row;
mod scratch;
mod settle;
mod slots;
mod snapshot;
mod table;
mod tls;
mod window;

use std::collections::VecDeque;
use std::sync::atomic::{self, AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::types::{ToSql, Type};
use tracing::{debug, warn};

use self::checkpoint::{CheckpointQueries, Start, Started};
use self::connection::{Connection, Param, is_so};
use self::error::Trouble;
use self::frontier::Position;
use self::lease::Held;
use self::log::{Answer, IDLE_BYTES, Log, LogQueries, Tail};
use self::queries::{FEW_ROWS, IN_ORDER, Reads, Writes};
use self::read::{Due, Xid};
use self::row::Decoder;
use self::settle::Written;
use self::window::Window;
use super::Progress;
use super::room::Room;
use crate::hint::Hint;
use crate::source::{
    BatchLimit, Lease, Record, Resume, Settled, Settlement, Source, SourceCapabilities,
    SourceError, SourceErrorKind, Verdict,
};

pub use self::admin::PostgresAdmin;
pub use self::audit::PostgresAudit;
pub use self::diagnosis::PostgresDiagnosis;
pub use self::location::{InvalidLocation, Location};
pub use self::migrate::{migrate, set_replicated, status, verify};
pub use self::options::PostgresOptions;
pub use self::prune::PostgresPruner;
pub use self::scratch::PostgresScratch;
pub use self::slots::PostgresSlots;

/// The shortest pause after an empty read.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause after an empty read.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The shortest time from a read that found little to the next one, so that a steady trickle is
/// read a few at a time and not one by one.
const READ_EVERY: Duration = Duration::from_millis(4);
/// The same for settlements of little.
const SETTLE_EVERY: Duration = Duration::from_millis(4);
/// How long writing down a position may take that has moved by itself.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often to try to give a lease back while the server is away.
const GIVE_BACK_EVERY: Duration = Duration::from_millis(200);
/// How long to wait for what the log has already.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);
/// How much to read meanwhile of what has come due.
const CATCH_UP_BYTES: usize = 1 << 20;
/// Fewer rows than this are little.
const FEW: usize = 256;

/// Reads one outbox in PostgreSQL, or a shard of it, for one pipeline.
#[derive(Debug)]
pub struct PostgresSource {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
    /// A look that was begun: ahead of the next call, or by one that was given up.
    looking: tokio::sync::Mutex<Option<Look>>,
    last_read: Mutex<Option<Instant>>,
    last_settle: Mutex<Option<Instant>>,
    /// How long to wait after the next look that finds nothing.
    pause: Mutex<Duration>,
    hint: Hint,
    closed: bool,
}

type Look = JoinHandle<Result<Looked, Trouble>>;

/// What came of looking for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// There are records to hand out.
    Found,
    /// Nothing yet, but it is worth looking again at once.
    More,
    Nothing,
}

/// What reading, settling and keeping the lease have in common.
#[derive(Debug)]
struct Shared {
    reader: Connection,
    settler: Connection,
    /// Keeps the lease. A settlement may have to wait for a lock, and the lease must not.
    keeper: Connection,
    reads: Reads,
    writes: Writes,
    checkpoints: CheckpointQueries,
    decoder: Decoder,
    held: Held,
    pipeline: String,
    table: String,
    types: Option<Vec<String>>,
    /// Keys are kept in order.
    ordered: bool,
    progress: Progress,
    way: Way,
    has_xid: bool,
    /// Transactions before this one stay in the past, whatever happens to the server.
    lasting: AtomicU64,
    /// The database can store every character.
    is_utf8: bool,
    window: Mutex<Window>,
    found: Mutex<Found>,
    /// The position that the database has, of a cursor.
    written: Mutex<Option<Position>>,
    /// Held from when a position is determined until it is written: it must not go back.
    writing: tokio::sync::Mutex<()>,
    /// Something may have been released, or come due.
    settled: Notify,
    /// How the log is read, unless the table is polled.
    log: Option<Log>,
    /// What a slot would be called that polling has no use for.
    slots: Option<LogQueries>,
    /// The start is counted.
    is_started: AtomicBool,
}

/// How fresh rows are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By snapshots.
    Ticks,
    /// By looking for what is unpublished and not under way: the table says nothing about
    /// transactions.
    Scan,
    /// By claiming them, beside other relays.
    Claims,
}

/// What reading keeps from one look to the next.
#[derive(Debug)]
struct Found {
    /// Records that are not handed out yet.
    kept: VecDeque<Record>,
    due: Due,
    /// The last look found nothing.
    was_nothing: bool,
    /// Reads that are still to be careful.
    careful: u32,
    /// When everything unpublished was last looked for from the start.
    started_over: Instant,
    /// When the row that stands in no tick was last looked for.
    looked_for_unreadable: Option<Instant>,
}

impl PostgresSource {
    /// Connects, checks the tables, and takes the pipeline, or a shard of it, for this relay.
    pub(super) async fn connect(options: PostgresOptions) -> Result<Self, SourceError> {
        let hint = options.hint.clone();
        let shared = Arc::new(open::open(options).await?);
        let keeper = tokio::spawn(keep_lease(Arc::clone(&shared)));
        Ok(Self {
            shared,
            keeper,
            looking: tokio::sync::Mutex::default(),
            last_read: Mutex::default(),
            last_settle: Mutex::default(),
            pause: Mutex::new(PAUSE_MIN),
            hint,
            closed: false,
        })
    }

    /// Waits until it is worth reading again, if the last read found little just now.
    async fn gather(&self, limit: BatchLimit) {
        if self.shared.is_streaming() {
            return;
        }
        let since = lock(&self.last_read).map_or(READ_EVERY, |last_read| last_read.elapsed());
        tokio::time::sleep(READ_EVERY.saturating_sub(since).min(limit.wait)).await;
    }

    fn begin_look(&self, limit: BatchLimit) -> Look {
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move { shared.look(limit).await })
    }

    /// Looks for rows, or waits for the look that was begun.
    async fn look(&self, limit: BatchLimit) -> Result<Looked, Trouble> {
        let mut looking = self.looking.lock().await;
        let look = looking.get_or_insert_with(|| self.begin_look(limit));
        let looked = look.await;
        *looking = None;
        looked.unwrap_or_else(|_| Err(panicked()))
    }

    /// Reads the log up to where it ends now, unless there is something to deliver before: what
    /// was committed is in the log, but takes its time to come. Answers whether it was read.
    async fn catch_up(&self) -> Result<bool, Trouble> {
        let Some(end) = self.shared.end_of_log().await? else { return Ok(true) };
        let limit = BatchLimit { events: FEW, bytes: CATCH_UP_BYTES, wait: Duration::ZERO };
        // A look that waits does not see what has come due since it began.
        self.shared.settled.notify_one();
        if self.looking.lock().await.is_some() {
            self.look(limit).await?;
        }
        let started = Instant::now();
        loop {
            let left = CATCH_UP_MAX.saturating_sub(started.elapsed());
            let wait = if self.shared.is_behind(end) { left } else { Duration::ZERO };
            self.look(BatchLimit { wait, ..limit }).await?;
            let (is_behind, kept) = (self.shared.is_behind(end), self.shared.kept().0);
            if !is_behind || kept > 0 || left.is_zero() {
                return Ok(!is_behind);
            }
        }
    }

    /// Nobody waits for what is being looked for.
    async fn stop_looking(&self) {
        if let Some(look) = self.looking.lock().await.take() {
            look.abort();
            drop(look.await);
        }
    }

    /// Takes records that were found. If it is known that there are more, they are read while
    /// these are published.
    async fn take_found(&self, limit: BatchLimit) -> Result<Option<Vec<Record>>, Trouble> {
        let is_over = |look: &Look| look.is_finished();
        if self.looking.try_lock().is_ok_and(|looking| looking.as_ref().is_some_and(is_over)) {
            self.look(limit).await?;
        }
        let Some(records) = self.shared.take_kept(limit) else { return Ok(None) };
        if self.shared.has_another_page()
            && let Ok(mut looking) = self.looking.try_lock()
        {
            looking.get_or_insert_with(|| self.begin_look(limit));
        }
        *lock(&self.last_read) = (records.len() < FEW).then(Instant::now);
        *lock(&self.pause) = PAUSE_MIN;
        Ok(Some(records))
    }
}

#[async_trait]
impl Source for PostgresSource {
    fn capabilities(&self) -> SourceCapabilities {
        SourceCapabilities { name: "postgres", shared: self.shared.progress == Progress::Cursor }
    }

    async fn resume(&self) -> Result<Resume, SourceError> {
        let shared = &self.shared;
        shared.held.check()?;
        shared.resume().await.map_err(|trouble| trouble.while_doing("read the checkpoint"))
    }

    async fn next_batch(&self, limit: BatchLimit) -> Result<Vec<Record>, SourceError> {
        let started = Instant::now();
        loop {
            self.shared.check()?;
            let found = self.take_found(limit).await;
            if let Some(records) =
                found.map_err(|trouble| trouble.while_doing("read the outbox"))?
            {
                return Ok(records);
            }
            self.gather(limit).await;
            // From now on: a hint during the read may be about what the read does not see.
            let hinted = self.hint.given();
            let looked = self.look(limit).await;
            let looked = looked.map_err(|trouble| trouble.while_doing("read the outbox"))?;
            if looked != Looked::Nothing {
                continue;
            }
            let left = limit.wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                lock(&self.shared.found).due = Due::default();
                self.catch_up().await.map_err(|trouble| trouble.while_doing("read the outbox"))?;
                let kept = self.shared.take_kept(limit);
                return Ok(kept.unwrap_or_default());
            }
            if self.shared.is_streaming() {
                // The look has waited.
                continue;
            }
            let pause = *lock(&self.pause);
            tokio::select! {
                () = tokio::time::sleep(pause.min(left)) => {
                    *lock(&self.pause) = (pause * 2).min(PAUSE_MAX);
                }
                () = self.shared.settled.notified() => *lock(&self.pause) = PAUSE_MIN,
                () = hinted => *lock(&self.pause) = PAUSE_MIN,
            }
        }
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, SourceError> {
        let shared = &self.shared;
        shared.check()?;
        if settlements.len() < FEW {
            let since = lock(&self.last_settle).map_or(SETTLE_EVERY, |last| last.elapsed());
            tokio::time::sleep(SETTLE_EVERY.saturating_sub(since)).await;
        }
        *lock(&self.last_settle) = Some(Instant::now());
        let settled = {
            let (shared, settlements) = (Arc::clone(shared), settlements.to_vec());
            tokio::spawn(async move { shared.settle(&settlements).await }).await
        };
        let settled = settled.unwrap_or_else(|_| Err(panicked()));
        let settled = settled.map_err(|trouble| trouble.while_doing("settle events"))?;
        if settlements.iter().any(|settlement| settlement.verdict != Verdict::Delivered)
            || !settled.unblocked.is_empty()
        {
            lock(&shared.found).due = Due::default();
        }
        // Something may have been released, or come due.
        shared.settled.notify_one();
        Ok(settled)
    }

    async fn survived(&self) -> Result<(), SourceError> {
        let Shared { checkpoints, settler, pipeline, held, .. } = &*self.shared;
        let survived = checkpoints.survived(settler, pipeline, held).await;
        survived.map_err(|trouble| trouble.while_doing("write the checkpoint"))
    }

    async fn note_trouble(&self, trouble: Option<&str>) -> Result<(), SourceError> {
        let Shared { checkpoints, settler, pipeline, held, .. } = &*self.shared;
        let noted = checkpoints.note_trouble(settler, pipeline, held, trouble).await;
        noted.map_err(|trouble| trouble.while_doing("note the trouble of the sink"))
    }

    async fn pending(&self) -> Result<bool, SourceError> {
        self.shared.check()?;
        let caught_up = self.catch_up().await;
        if !caught_up.map_err(|trouble| trouble.while_doing("read the outbox"))? {
            return Ok(true);
        }
        self.shared.pending().await.map_err(|trouble| trouble.while_doing("read the outbox"))
    }

    fn lease(&self) -> Lease {
        self.shared.held.lease()
    }

    async fn give_back(mut self: Box<Self>) {
        self.keeper.abort();
        self.stop_looking().await;
        if let Some(log) = &self.shared.log {
            self.shared.end_stream(log).await;
        }
        self.shared.take_start_back().await;
        self.shared.give_back().await;
        self.closed = true;
    }

    async fn close(mut self: Box<Self>) -> Result<(), SourceError> {
        self.keeper.abort();
        self.stop_looking().await;
        let closed = async {
            let Shared { checkpoints, settler, pipeline, held, .. } = &*self.shared;
            self.shared.write_position().await?;
            if let Some(log) = &self.shared.log {
                // What was settled last is in the snapshot that this has answered.
                self.shared.write_position().await?;
                self.shared.end_stream(log).await;
            }
            checkpoints.survived(settler, pipeline, held).await?;
            held.release(settler).await
        };
        let closed = closed.await;
        self.closed = true;
        self.shared.reader.close().await;
        self.shared.settler.close().await;
        self.shared.keeper.close().await;
        closed.map_err(|trouble| trouble.while_doing("write the checkpoint"))
    }
}

impl Drop for PostgresSource {
    fn drop(&mut self) {
        self.keeper.abort();
        if let Some(look) = self.looking.get_mut().take() {
            look.abort();
        }
        if let Some(log) = &self.shared.log {
            log.let_go();
        }
        if !self.closed
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let shared = Arc::clone(&self.shared);
            runtime.spawn(async move { shared.give_back().await });
        }
    }
}

impl Shared {
    /// Whether rows are claimed beside other relays.
    fn claims(&self) -> bool {
        self.way == Way::Claims
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        lock(&self.window)
    }

    /// Pipeline, shard and epoch.
    fn lease_params(&self) -> [(&(dyn ToSql + Sync), Type); 3] {
        let Held { shard, epoch, .. } = &self.held;
        [(&self.pipeline, Type::TEXT), (shard, Type::INT4), (epoch, Type::INT8)]
    }

    /// Refuses to go on once the lease is lost, or the slot is.
    fn check(&self) -> Result<(), SourceError> {
        self.held.check()?;
        self.log.as_ref().map_or(Ok(()), Log::refuse_given_up)
    }

    /// Takes back that the start was counted, if it was.
    async fn take_start_back(&self) {
        if !self.is_started.load(atomic::Ordering::Relaxed) {
            return;
        }
        let Self { checkpoints, settler, pipeline, held, .. } = self;
        if let Err(trouble) = checkpoints.not_started(settler, pipeline, held).await {
            let error = trouble.while_doing("write the checkpoint");
            debug!(?error, "the start stays counted");
        }
    }

    /// Whoever stands by need not wait for the lease to run out. A server that is away may be back
    /// before it runs out.
    async fn give_back(&self) {
        loop {
            let mut released = self.held.release(&self.settler).await;
            if released.as_ref().is_err_and(Trouble::is_lost) {
                // The new primary has the lease, too.
                released = self.held.release(&self.settler.to_any_server()).await;
            }
            let Err(trouble) = released else { return };
            let error = trouble.while_doing("give the lease back");
            if error.kind != SourceErrorKind::Unavailable || self.held.has_run_out() {
                debug!(?error, "the lease could not be given back and runs out");
                return;
            }
            tokio::time::sleep(GIVE_BACK_EVERY).await;
        }
    }

    async fn resume(&self) -> Result<Resume, Trouble> {
        let cluster = self.settler.origin().await?.cluster;
        let start = Start {
            pipeline: &self.pipeline,
            shard: self.held.shard,
            wanted: self.progress,
            cluster,
            types: self.types.as_deref().unwrap_or_default(),
            ordered: self.ordered,
            adopts: self.has_xid,
        };
        if let Some(slots) = &self.slots {
            self.leave_log(slots).await?;
        }
        let started = self.checkpoints.start(&self.settler, start).await?;
        let Started { mut position, crashes, xid, is_troubled } = started;
        self.is_started.store(true, atomic::Ordering::Relaxed);
        self.lasting.fetch_max(xid.max(position.tick.xmax()), atomic::Ordering::Relaxed);
        let tail = match &self.log {
            Some(log) => self.resume_log(log, &mut position, xid).await?,
            None => None,
        };
        let params = [(&self.pipeline as &(dyn ToSql + Sync), Type::TEXT)];
        let mut blocked_keys = Vec::new();
        for row in self.settler.query(&self.reads.blocked_keys, &params).await? {
            let (aggregate_type, aggregate_id) = (row.try_get(0)?, row.try_get(1)?);
            blocked_keys.push(postrider::Key { aggregate_type, aggregate_id });
        }
        *lock(&self.written) = Some(position.clone());
        *self.window() = Window::new(position, tail);
        Ok(Resume { blocked_keys, crashes, is_troubled })
    }

    /// Makes rows of transactions that are still to come rows of now.
    async fn take_over_foreign_rows(&self) -> Result<(), Trouble> {
        self.checkpoints.adopt(&self.settler, &self.pipeline).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, Trouble> {
        let _writing = self.writing.lock().await;
        let (settling, position) = {
            let mut window = self.window();
            let settling = window.take(settlements);
            let is_cursor = self.progress == Progress::Cursor;
            (settling, is_cursor.then(|| window.position()))
        };
        match settle::settle(self, &settling, position.as_ref()).await {
            Ok(Written { settled, answer }) => {
                self.window().settled(settling);
                // Without an answer nothing was written.
                if self.log.is_none() || answer.is_some() {
                    self.wrote(position, answer).await?;
                }
                Ok(settled)
            }
            Err(trouble) => {
                self.window().put_back(settling);
                Err(trouble)
            }
        }
    }

    async fn pending(&self) -> Result<bool, Trouble> {
        let position = {
            let window = self.window();
            let (kept, delayed) = self.kept();
            if kept > 0 || window.unsettled() > delayed || window.under_way() > delayed {
                return Ok(true);
            }
            match self.progress {
                Progress::Cursor => window.position(),
                Progress::Delete | Progress::Mark => Position::start(),
            }
        };
        let Position { base, tick, seq, seen, beyond, .. } = position;
        let (xmax, under_way) = (Xid(base.xmax()), Xid::all(base.under_way()));
        let (base, tick, beyond) = (base.to_string(), tick.to_string(), beyond.to_text());
        let seen = seen.to_string();
        let params: [Param<'_>; 8] = [
            (&self.types, Type::TEXT_ARRAY),
            (&base, Type::TEXT),
            (&tick, Type::TEXT),
            (&seq, Type::INT8),
            (&seen, Type::TEXT),
            (&beyond, Type::TEXT),
            (&xmax, Type::XID8),
            (&under_way, Type::XID8_ARRAY),
        ];
        let settings = match self.progress {
            Progress::Cursor => FEW_ROWS,
            Progress::Delete | Progress::Mark => IN_ORDER,
        };
        // Without the number of a transaction there is nothing to be found by it.
        let params = if self.has_xid { &params[..] } else { &params[..1] };
        if is_so(&self.settler.query_with(settings, &self.reads.pending, params).await?)? {
            return Ok(true);
        }
        let pipeline = [(&self.pipeline as &(dyn ToSql + Sync), Type::TEXT)];
        is_so(&self.settler.query(&self.reads.set_aside_pending, &pipeline).await?)
    }

    /// Writes a cursor's position, if it has moved without a settlement. Before the start has
    /// succeeded there is none.
    async fn write_position(&self) -> Result<(), Trouble> {
        if self.progress != Progress::Cursor {
            return Ok(());
        }
        let _writing = self.writing.lock().await;
        let (position, is_base_old) = {
            let window = self.window();
            (window.position(), window.tail.as_ref().is_some_and(Tail::is_base_old))
        };
        let is_written = |written: &Position| !is_base_old && written.is_about(&position);
        if lock(&self.written).as_ref().is_none_or(is_written) {
            return Ok(());
        }
        let Written { answer, .. } = settle::settle(self, &[], Some(&position)).await?;
        self.window().trim();
        self.wrote(Some(position), answer).await
    }

    /// The position was written.
    async fn wrote(
        &self,
        position: Option<Position>,
        answer: Option<Answer>,
    ) -> Result<(), Trouble> {
        if let (Some(log), Some(position)) = (&self.log, &position) {
            log.confirm(position);
        }
        *lock(&self.written) = position;
        match (&self.log, answer) {
            (Some(log), Some(answer)) => self.note_answer(log, answer).await,
            _ => Ok(()),
        }
    }
}

impl Position {
    /// Whether another one says no more than this: some of the log in which there is nothing for
    /// the pipeline makes no difference.
    fn is_about(&self, other: &Self) -> bool {
        let is_near = match (&self.log, &other.log) {
            (Some(one), Some(other)) => {
                one.since == other.since && other.lsn.0.saturating_sub(one.lsn.0) < IDLE_BYTES
            }
            (one, other) => one == other,
        };
        let log = self.log.clone();
        is_near && *self == Self { log, ..other.clone() }
    }
}

impl Shared {
    /// Writes down how far a cursor has come over events that are not for it: whoever prunes
    /// waits for that.
    async fn note_position(&self) {
        if !self.window().is_quiet() {
            return;
        }
        // The lease must not wait for it.
        match timeout(NOTE_TIMEOUT, self.write_position()).await {
            Ok(Ok(())) => {}
            not_written => debug!(?not_written, "the position is written later"),
        }
    }
}

/// Renews the lease until it is lost or given back.
async fn keep_lease(shared: Arc<Shared>) {
    let mut every = tokio::time::interval(shared.held.renew_every());
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    every.tick().await;
    loop {
        every.tick().await;
        match shared.held.renew(&shared.keeper).await {
            Ok(true) => {
                shared.note_position().await;
                if let Err(trouble) = shared.guard_slot().await {
                    let error = trouble.while_doing("look after the slot").details();
                    debug!(pipeline = shared.pipeline, error, "the slot was not looked after");
                }
            }
            Ok(false) => return,
            Err(trouble) if trouble.is_lost() => {
                shared.held.lost();
                return;
            }
            Err(trouble) => {
                let error = trouble.while_doing("renew the lease").details();
                warn!(pipeline = shared.pipeline, error, "the lease runs out unless it is renewed");
                every.reset_after(shared.held.renew_every() / 5);
            }
        }
    }
}

fn panicked() -> Trouble {
    SourceError::new(SourceErrorKind::Unsafe, "the source has panicked")
        .with_hint("start the relay again and report this, with the log")
        .into()
}

/// Takes as many records as the limit allows.
fn take(kept: &mut VecDeque<Record>, limit: BatchLimit) -> Vec<Record> {
    let mut room = Room::new(limit);
    let fits = kept.iter().take_while(|record| room.take(record.size_bytes())).count();
    kept.drain(..fits).collect()
}

/// Nothing panics while these are held, and what they guard is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
