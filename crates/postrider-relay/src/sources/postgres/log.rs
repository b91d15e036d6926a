//! Reads the outbox from the server's log, which tells sooner than the table.
//!
//! # Design
//!
//! - **The table is the ground state.** Without a slot that can be relied on, rows are read from
//!   the table. Once all is read a slot is made, in the background, because that waits for open
//!   transactions. Then the table is read up to where the slot begins (`slot_snapshot` in the
//!   checkpoint), and from there on the log. So the first start, a change from polling, and a slot
//!   that was lost are one and the same.
//! - **Nothing comes twice** when the log takes over: the numbers that were read from the table
//!   and were committed after the slot began are known by asking for them.
//! - **A slot can be relied on** (`Slot::has_all_since`) if nobody has moved it beyond what the
//!   checkpoint says, and the publication is the one that it was. The checkpoint is always written
//!   before a position is confirmed.
//! - **A slot that is lost** ends the run; the next one reads the table. Events that only the log
//!   has cannot be found there: a pipeline that has met one refuses to go on without its slot.
//! - **The stream** is begun anew after trouble with the connection, where it was left.
//!
//! What was read and how far it is settled is in [`Tail`].

mod rows;
pub(super) mod slot;
mod tail;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use postrider_replication::pgoutput::{Message, decode};
use postrider_replication::{Batch, Flow, Frame, Lsn, PgOutput, Replication};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use self::rows::{LogRow, Logged, Mapping, PREFIX};
use self::slot::{WAL_END, WAL_FLUSHED};
use self::tail::{Start, Torn};
use super::connection::Connection;
use super::error::Trouble;
use super::frontier::Position;
use super::snapshot::Snapshot;
use super::table::Table;
use super::window::Origin;
use super::{Location, Shared, lock};
use crate::slots::SlotState;
use crate::source::{Record, SourceError, SourceErrorKind};

pub(super) use self::rows::Stored;
pub(super) use self::slot::{LogQueries, Names, cannot};
pub(super) use self::tail::{Mark, Place, Tail};

/// How long to wait after a slot could not be made, or was given up.
const MAKE_EVERY: Duration = Duration::from_secs(10);
/// The same if it kept too much of the log while it was being made: a transaction has been open
/// for long.
const MAKE_AGAIN: Duration = Duration::from_secs(600);
/// How much is received ahead, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// How long the server has to show the last confirmed position.
const CONFIRM_MAX: Duration = Duration::from_secs(5);
const CONFIRM_EVERY: Duration = Duration::from_millis(20);
/// An idle position is written down after so much more of the log.
pub(super) const IDLE_BYTES: u64 = 1 << 20;

/// Where to go on in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) lsn: Lsn,
    /// The table has to be read first, up to this.
    pub(super) since: Option<Snapshot>,
}

/// How a pipeline reads the log.
#[derive(Debug)]
pub(super) struct Log {
    sql: LogQueries,
    table: Table,
    location: Location,
    /// How the server shows the stream.
    application_name: String,
    /// A slot that keeps more of the log than this is given up.
    retained_bytes_max: u64,
    stage: Mutex<Stage>,
    /// What the checkpoint says of the publication.
    publication: Mutex<String>,
    replication: Mutex<Option<Arc<Replication>>>,
    stream: Mutex<Stream>,
    /// There are events that only the log has.
    log_only: AtomicBool,
    /// The slot was given up, and why.
    given_up: Mutex<Option<String>>,
}

/// What the stream has said so far.
#[derive(Debug, Default)]
struct Stream {
    /// How to read the rows of tables, by their numbers.
    mappings: HashMap<u32, Mapping>,
    /// What is here already of the transaction that comes.
    skip: Skip,
}

/// What is here already of a transaction.
#[derive(Debug)]
enum Skip {
    Rows(u64),
    All,
}

impl Default for Skip {
    fn default() -> Self {
        Self::Rows(0)
    }
}

/// Why what the stream says cannot be taken in.
enum Unfit {
    Malformed(SourceError),
    /// The table was another one when it was written; what has changed.
    Changed(&'static str),
}

/// How far it is to the log.
#[derive(Debug)]
enum Stage {
    /// There is no slot. One is made once the table is read, but not before this.
    Table {
        make_at: Instant,
    },
    Making(Making),
    /// There is one, and the table has to be read up to where it begins; whether that has begun.
    Made(LogPosition, bool),
    Streaming,
}

/// Making ends with whoever waits for it.
#[derive(Debug)]
struct Making(JoinHandle<Result<LogPosition, SourceError>>);

impl Drop for Making {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What there is to do about the stage.
enum Step {
    Nothing,
    Make,
    Made(Result<LogPosition, SourceError>),
}

/// What the log says, in its order.
enum Item {
    Begin(Lsn),
    Row(Box<Logged>),
    /// A row that is not for this pipeline, and its transaction.
    Other(Option<u64>),
    Commit(Lsn),
    Idle(Lsn),
}

/// What a log is made of.
pub(super) struct LogOptions<'o> {
    pub(super) sql: LogQueries,
    pub(super) table: Table,
    pub(super) location: Location,
    pub(super) pipeline: &'o str,
    pub(super) retained_bytes_max: u64,
}

impl Log {
    pub(super) fn new(options: LogOptions<'_>) -> Self {
        let LogOptions { sql, table, location, pipeline, retained_bytes_max } = options;
        Self {
            sql,
            table,
            location,
            application_name: application_name(pipeline),
            retained_bytes_max,
            stage: Mutex::new(Stage::Table { make_at: Instant::now() }),
            publication: Mutex::default(),
            replication: Mutex::default(),
            stream: Mutex::default(),
            log_only: AtomicBool::new(false),
            given_up: Mutex::default(),
        }
    }

    /// Says at the start what would keep the log from being read.
    async fn check(&self, connection: &Connection) -> Result<(), Trouble> {
        self.sql.refuse_level(connection).await?;
        self.sql.refuse_generated(connection, &rows::columns(&self.table)).await?;
        slot::connect(&self.location, &self.application_name).await?;
        Ok(())
    }

    pub(super) fn is_streaming(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Streaming)
    }

    /// Whether there is a slot, or one in the making: it keeps the server's log.
    fn has_slot(&self) -> bool {
        !matches!(*lock(&self.stage), Stage::Table { .. })
    }

    /// Stops making a slot. Answers whether one was being made.
    fn stop_making(&self) -> bool {
        let stage = &mut *lock(&self.stage);
        let is_making = matches!(stage, Stage::Making(_));
        if is_making {
            *stage = Stage::Table { make_at: Instant::now() + MAKE_AGAIN };
        }
        is_making
    }

    /// An expression for settlements: which publication this is.
    pub(super) fn publication_id(&self) -> String {
        self.sql.publication_id()
    }

    /// The server need not keep what is before a position.
    pub(super) fn confirm(&self, position: &Position) {
        if let Some(LogPosition { lsn, since: None }) = &position.log
            && let Some(replication) = &*lock(&self.replication)
        {
            replication.confirm(*lsn);
        }
    }

    /// Ends the stream without a word, and stops making a slot.
    pub(super) fn let_go(&self) {
        *lock(&self.stage) = Stage::Table { make_at: Instant::now() };
        *lock(&self.replication) = None;
    }

    pub(super) fn refuse_given_up(&self) -> Result<(), SourceError> {
        match &*lock(&self.given_up) {
            None => Ok(()),
            Some(why) => Err(SourceError::new(SourceErrorKind::Lost, why.clone())),
        }
    }

    fn step(&self) -> Step {
        let mut stage = lock(&self.stage);
        match &mut *stage {
            Stage::Table { make_at } if *make_at <= Instant::now() => Step::Make,
            Stage::Table { .. } | Stage::Made(..) | Stage::Streaming => Step::Nothing,
            Stage::Making(making) if making.0.is_finished() => {
                let made = futures_util::FutureExt::now_or_never(&mut making.0);
                let failed = || {
                    let message = "making the slot has panicked";
                    Err(SourceError::new(SourceErrorKind::Unavailable, message))
                };
                let made = made.and_then(Result::ok).unwrap_or_else(failed);
                *stage = Stage::Table { make_at: Instant::now() + MAKE_EVERY };
                Step::Made(made)
            }
            Stage::Making(_) => Step::Nothing,
        }
    }
}

/// How the server shows a pipeline's stream.
pub(super) fn application_name(pipeline: &str) -> String {
    let name = super::connection::application_name(&format!("{pipeline} streams"));
    // The server cuts it off, too, and then it would not be recognized.
    name.chars().filter(char::is_ascii).take(63).collect()
}

impl Shared {
    /// Finds out where to go on: in the log, or in the table.
    pub(super) async fn resume_log(
        &self,
        log: &Log,
        position: &mut Position,
        xid: u64,
    ) -> Result<Option<Tail>, Trouble> {
        let (settler, pipeline) = (&self.settler, self.pipeline.as_str());
        log.check(settler).await?;
        let recorded = log.sql.get(settler, pipeline).await?;
        log.log_only.store(recorded.log_only, Ordering::Relaxed);
        let publication = log.sql.publication(settler).await?;
        let slot = log.sql.find(settler).await?;
        let state = recorded.state(slot.as_ref(), publication.as_deref());
        let is_of_use = matches!(state, SlotState::ReadsTable | SlotState::Streams);
        let Some(goes_on) = recorded.log.as_ref().filter(|_| is_of_use) else {
            let why = state.why_of_no_use().unwrap_or("there is none");
            let slot = &log.sql.names().slot;
            if recorded.log_only {
                return Err(log_only(pipeline, slot, why).into());
            }
            if recorded.log.is_some() {
                warn!(pipeline, slot, "the slot is of no use, {why}: the table is read instead");
            }
            log.sql.drop_slot(settler, &log.application_name, &self.held).await?;
            let publication = match publication {
                Some(publication) => publication,
                None => log.sql.make_publication(settler).await?,
            };
            log.sql.put(settler, (pipeline, &self.held), None, Some(&publication)).await?;
            *lock(&log.publication) = publication;
            position.log = None;
            return Ok(None);
        };
        *lock(&log.publication) = publication.unwrap_or_default();
        position.log = Some(goes_on.clone());
        if goes_on.since.is_some() {
            *lock(&log.stage) = Stage::Made(goes_on.clone(), false);
            return Ok(None);
        }
        let end = self.lsn(settler, WAL_END).await?;
        *lock(&log.stage) = Stage::Streaming;
        Ok(Some(Tail::new(Start {
            base: position.base.clone(),
            seen: position.seen.clone(),
            lsn: goes_on.lsn,
            lasting: self.lasting.load(Ordering::Relaxed),
            passed_over: position.beyond.clone(),
            end,
            xid,
        })))
    }

    /// A position in the log that a statement answers.
    async fn lsn(&self, connection: &Connection, sql: &str) -> Result<Lsn, Trouble> {
        let rows = connection.query(sql, &[]).await?;
        let lsn: Option<&str> = rows.first().map(|row| row.try_get(0)).transpose()?;
        lsn.and_then(|lsn| lsn.parse().ok()).ok_or_else(unreadable)
    }

    /// The table is read for now: what there is to do to get to the log.
    pub(super) async fn step_to_log(&self, log: &Log) -> Result<(), Trouble> {
        match log.step() {
            Step::Nothing => Ok(()),
            Step::Make => {
                let publication = lock(&log.publication).clone();
                let holder = (self.pipeline.as_str(), &self.held);
                // Whoever has lost the lease learns it here, and not by a slot of another relay.
                log.sql.put(&self.reader, holder, None, Some(&publication)).await?;
                // One of which nobody knows where it begins.
                log.sql.drop_slot(&self.reader, &log.application_name, &self.held).await?;
                let names = log.sql.names();
                let making = slot::make(
                    log.location.clone(),
                    log.application_name.clone(),
                    names.slot.clone(),
                );
                *lock(&log.stage) = Stage::Making(Making(tokio::spawn(making)));
                Ok(())
            }
            Step::Made(Ok(made)) => {
                let publication = lock(&log.publication).clone();
                let holder = (self.pipeline.as_str(), &self.held);
                let _writing = self.writing.lock().await;
                log.sql.put(&self.reader, holder, Some(&made), Some(&publication)).await?;
                let slot = &log.sql.names().slot;
                info!(pipeline = self.pipeline, slot, lsn = %made.lsn, "a slot was made");
                self.window().made = Some(made.clone());
                if let Some(written) = &mut *lock(&self.written) {
                    written.log = Some(made.clone());
                }
                *lock(&log.stage) = Stage::Made(made, false);
                Ok(())
            }
            Step::Made(Err(error)) => {
                let error = error.details();
                warn!(pipeline = self.pipeline, error, "there is no slot yet: the table is polled");
                Ok(())
            }
        }
    }

    /// Where the slot begins, if the table has to be read up to there, and whether that has begun.
    pub(super) fn made(&self) -> Option<(LogPosition, bool)> {
        match &*lock(&self.log.as_ref()?.stage) {
            Stage::Made(made, has_begun) => Some((made.clone(), *has_begun)),
            _ => None,
        }
    }

    /// The table is read up to where the slot begins, for the last time.
    pub(super) fn begin_last_tick(&self, log: &Log, made: LogPosition) {
        *lock(&log.stage) = Stage::Made(made, true);
    }

    /// Goes over to the log: the table was read up to where the slot begins.
    pub(super) async fn begin_log(&self, log: &Log, made: &LogPosition) -> Result<(), Trouble> {
        let since = made.since.clone().unwrap_or_else(Snapshot::nothing);
        let seen = self.window().frontier.seen().clone();
        let numbers = log.sql.between(&self.reader, &since, &seen).await?;
        let end = self.lsn(&self.reader, WAL_END).await?;
        let mut window = self.window();
        window.tail = Some(Tail::new(Start {
            base: seen.clone(),
            seen,
            lsn: made.lsn,
            lasting: self.lasting.load(Ordering::Relaxed),
            passed_over: numbers.union(&window.passed_over),
            end,
            xid: 0,
        }));
        *lock(&log.stage) = Stage::Streaming;
        info!(pipeline = self.pipeline, "the log is read from now on");
        Ok(())
    }

    /// Takes what the log has, and waits for it if there is nothing.
    pub(super) async fn look_in_log(
        &self,
        log: &Log,
        wait: Duration,
    ) -> Result<Vec<Record>, Trouble> {
        let (read_to, room) = {
            let window = self.window();
            let tail = window.tail.as_ref().expect("there is a tail once the log is read");
            (tail.read_to(), tail.room())
        };
        if room == 0 {
            // The rest is settled before there is more.
            drop(timeout(wait, self.settled.notified()).await);
            return Ok(Vec::new());
        }
        let begun = lock(&log.replication).clone();
        let replication = match begun {
            Some(replication) => replication,
            None => self.stream(log, read_to).await?,
        };
        let batch = tokio::select! {
            biased;
            batch = replication.next() => batch,
            () = self.settled.notified() => return Ok(Vec::new()),
            () = tokio::time::sleep(wait) => return Ok(Vec::new()),
        };
        let batch = match batch {
            Ok(Some(batch)) => batch,
            Ok(None) => {
                *lock(&log.replication) = None;
                return Ok(Vec::new());
            }
            Err(error) => {
                *lock(&log.replication) = None;
                if slot::is_of_slot(&error) {
                    let why = format!("the server has given the slot up ({error})");
                    return Err(self.give_up(log, why).await);
                }
                return Err(passing(cannot("read the log", error)));
            }
        };
        let taken = match self.items(log, batch) {
            Ok(items) => self.take_items(log, items),
            Err(Unfit::Malformed(error)) => Err(error.into()),
            Err(Unfit::Changed(column)) => {
                let why = format!("the log has rows of before {column} was changed in the table");
                Err(self.give_up(log, why).await)
            }
        };
        if taken.is_err() {
            // What came is gone from the stream.
            *lock(&log.replication) = None;
        }
        taken
    }

    /// Begins the stream.
    async fn stream(&self, log: &Log, at: Lsn) -> Result<Arc<Replication>, Trouble> {
        // This also finds out that the server is another one, or was started anew.
        let slot = log.sql.find(&self.reader).await?;
        let written = lock(&self.written).as_ref().and_then(|position| position.log.clone());
        let has_all = slot.zip(written).is_some_and(|(slot, log)| slot.has_all_since(log.lsn));
        if !has_all {
            return Err(self.give_up(log, "the slot is gone, or was read by others".into()).await);
        }
        self.held.check_time()?;
        log.sql.free(&self.reader, &log.application_name, &self.held).await?;
        let streaming = slot::connect(&log.location, &log.application_name).await;
        let mut streaming = streaming.map_err(passing)?;
        let failed = |error| passing(cannot("read the log", error));
        let identity = streaming.identify_system().await.map_err(failed)?;
        if self.reader.origin().await?.is_not(identity.system_id, identity.timeline) {
            return Err(self.held.lost().into());
        }
        let output = PgOutput {
            publications: vec![log.sql.names().publication.clone()],
            binary: true,
            messages: true,
            origin_none: true,
            streaming: false,
        };
        let flow = Flow { buffer_bytes: BUFFER_BYTES, ..Flow::default() };
        let slot = &log.sql.names().slot;
        let replication = match streaming.start(slot, at, &output, flow).await {
            Ok(replication) => Arc::new(replication),
            Err(error) if slot::is_of_slot(&error) => {
                let why = format!("the slot cannot be read ({error})");
                return Err(self.give_up(log, why).await);
            }
            Err(error) => return Err(failed(error)),
        };
        *lock(&log.stream) = Stream::default();
        *lock(&log.replication) = Some(Arc::clone(&replication));
        debug!(pipeline = self.pipeline, %at, "the stream was begun");
        Ok(replication)
    }

    /// Reads what the stream says, before anything is noted about it.
    fn items(&self, log: &Log, batch: Batch) -> Result<Vec<Item>, Unfit> {
        let mut items = Vec::with_capacity(batch.len());
        let mappings = &mut lock(&log.stream).mappings;
        for frame in batch {
            let (sent_at_us, data) = match frame {
                Frame::Keepalive { wal_end } => {
                    items.push(Item::Idle(wal_end));
                    continue;
                }
                Frame::XLogData { sent_at_us, data, .. } => (sent_at_us, data),
            };
            let message = decode(data, false).map_err(|error| {
                let message = "the log has something that cannot be read";
                Unfit::Malformed(
                    SourceError::new(SourceErrorKind::Unsafe, message)
                        .with_source(error)
                        .with_hint("report this, with the version of the server"),
                )
            })?;
            match message {
                Message::Begin { final_lsn, .. } => items.push(Item::Begin(final_lsn)),
                Message::Commit { end_lsn, .. } => items.push(Item::Commit(end_lsn)),
                Message::Relation(relation) => {
                    let mapping = Mapping::new(&log.table, &relation).map_err(Unfit::Changed)?;
                    mappings.insert(relation.oid, mapping);
                }
                Message::Insert { relation, new, .. } => {
                    let mapping = mappings.get(&relation).ok_or(Unfit::Changed("the table"))?;
                    let row = mapping.row(&new);
                    items.push(self.item(&row, sent_at_us)?);
                }
                Message::Logical { transactional: true, prefix, content, .. }
                    if prefix == PREFIX =>
                {
                    items.push(self.message(log, &content, sent_at_us)?);
                }
                _ => {}
            }
        }
        Ok(items)
    }

    fn item(&self, row: &LogRow, sent_at_us: i64) -> Result<Item, Unfit> {
        if !row.is_for(self.types.as_deref()) {
            return Ok(Item::Other(row.xid()));
        }
        let read = row.read(&self.decoder, sent_at_us).ok_or(Unfit::Changed("seq"))?;
        Ok(Item::Row(Box::new(read)))
    }

    fn message(&self, log: &Log, content: &Bytes, sent_at_us: i64) -> Result<Item, Unfit> {
        match LogRow::of_message(content) {
            Some((outbox, row)) if outbox == log.sql.names().outbox => self.item(&row, sent_at_us),
            Some(_) => Ok(Item::Other(None)),
            None => {
                warn!(
                    pipeline = self.pipeline,
                    bytes = content.len(),
                    "a message in the log is not from outbox_publish_message, and passed over"
                );
                Ok(Item::Other(None))
            }
        }
    }

    /// Takes in what was read.
    fn take_items(&self, log: &Log, items: Vec<Item>) -> Result<Vec<Record>, Trouble> {
        let mut window = self.window();
        let mut records = Vec::with_capacity(items.len());
        let skip = &mut lock(&log.stream).skip;
        for item in items {
            let tail = window.tail.as_mut().expect("there is a tail once the log is read");
            match (item, &mut *skip) {
                (Item::Begin(commit), _) => {
                    let received = tail.begin(commit).map_err(|Torn| torn())?;
                    *skip = received.map_or(Skip::All, Skip::Rows);
                }
                (Item::Row(_) | Item::Other(_) | Item::Commit(_), Skip::All) => {}
                (Item::Row(_) | Item::Other(_), Skip::Rows(rows)) if *rows > 0 => *rows -= 1,
                (Item::Other(xid), _) => tail.pass_over(xid),
                (Item::Row(row), _) => {
                    if let Some(place) = tail.row(row.read.decoded.seq, row.xid) {
                        let origin = Origin::Logged { place, xid: row.xid };
                        records.push(row.read.hand_out(&mut window, origin));
                    }
                }
                (Item::Commit(end), _) => tail.commit(end),
                (Item::Idle(wal_end), _) => tail.idle(wal_end),
            }
        }
        Ok(records)
    }

    /// Gives up a slot that cannot be relied on, or that keeps too much. The run ends with it: the
    /// next one reads the table.
    async fn give_up(&self, log: &Log, why: String) -> Trouble {
        let (pipeline, slot) = (self.pipeline.as_str(), log.sql.names().slot.as_str());
        if log.log_only.load(Ordering::Relaxed) {
            return log_only(pipeline, slot, &why).into();
        }
        *lock(&log.given_up) = Some(format!("the slot {slot} was given up: {why}"));
        *lock(&log.replication) = None;
        let dropped = async {
            // Whoever has lost the lease finds the slot of another relay.
            let publication = lock(&log.publication).clone();
            log.sql.put(&self.reader, (pipeline, &self.held), None, Some(&publication)).await?;
            self.held.check_time()?;
            warn!(pipeline, slot, "the slot is given up, {why}: the table is read instead");
            log.sql.drop_slot(&self.reader, &log.application_name, &self.held).await
        };
        let dropped: Result<(), Trouble> = dropped.await;
        if let Err(trouble) = dropped {
            if trouble.is_lost() {
                return trouble;
            }
            // The next run finds it.
            let error = trouble.while_doing("drop the slot").details();
            warn!(pipeline, slot, error, "the slot could not be dropped");
        }
        let message = format!("the slot {slot} was given up: {why}");
        SourceError::new(SourceErrorKind::Lost, message).into()
    }

    /// Gives up a slot that keeps more of the server's log than it may.
    pub(super) async fn guard_wal(&self) -> Result<(), Trouble> {
        let Some(log) = self.log.as_ref().filter(|log| log.has_slot()) else { return Ok(()) };
        let Some(slot) = log.sql.find(&self.keeper).await? else { return Ok(()) };
        let retained = slot.retained_bytes.and_then(|bytes| u64::try_from(bytes).ok());
        let Some(retained) = retained.filter(|bytes| *bytes > log.retained_bytes_max) else {
            return Ok(());
        };
        let max = log.retained_bytes_max;
        let why = format!("it keeps {retained} bytes of the log, and max_retained_wal is {max}");
        if log.log_only.load(Ordering::Relaxed) {
            warn!(
                pipeline = self.pipeline,
                "{why}; it cannot be given up, because there are events that only the log has"
            );
            return Ok(());
        }
        if log.stop_making() {
            warn!(pipeline = self.pipeline, "no slot is made for a while: {why}");
            return log.sql.drop_slot(&self.keeper, &log.application_name, &self.held).await;
        }
        Err(self.give_up(log, why).await)
    }

    /// A settlement was written: what it has answered.
    pub(super) async fn note_answer(&self, log: &Log, answer: Answer) -> Result<(), Trouble> {
        if answer.publication.as_ref() != Some(&*lock(&log.publication)) {
            let why = "the publication was changed".to_owned();
            return Err(self.give_up(log, why).await);
        }
        if answer.is_log_only && !log.log_only.load(Ordering::Relaxed) {
            match log.sql.put_log_only(&self.settler, &self.pipeline).await {
                Ok(()) => log.log_only.store(true, Ordering::Relaxed),
                // The next settlement of such an event tries again.
                Err(trouble) => {
                    let error = trouble.while_doing("write the checkpoint").details();
                    warn!(pipeline = self.pipeline, error, "events in the log alone are not noted");
                }
            }
        }
        if let Some(tail) = &mut self.window().tail {
            tail.note(answer.mark);
        }
        Ok(())
    }

    /// Where the log ends that is being read.
    pub(super) async fn end_of_log(&self) -> Result<Option<Lsn>, Trouble> {
        if !self.is_streaming() {
            return Ok(None);
        }
        self.lsn(&self.settler, WAL_FLUSHED).await.map(Some)
    }

    /// Whether the log was not read up to there.
    pub(super) fn is_behind(&self, end: Lsn) -> bool {
        self.window().tail.as_ref().is_some_and(|tail| tail.read_to() < end)
    }

    /// The pipeline is polled, and may have read the log before: its slot would keep the server's
    /// log for ever.
    pub(super) async fn leave_log(&self, slots: &LogQueries) -> Result<(), Trouble> {
        if self.held.shard != 0 {
            return Ok(());
        }
        let (settler, pipeline) = (&self.settler, self.pipeline.as_str());
        let recorded = slots.get(settler, pipeline).await?;
        let slot = &slots.names().slot;
        if recorded.log_only {
            let why = "mode is \"poll\"";
            return Err(log_only(pipeline, slot, why).into());
        }
        if slots.exists(settler).await? {
            match slots.drop_slot(settler, &application_name(pipeline), &self.held).await {
                Ok(()) => info!(pipeline, slot, "dropped the slot, which polling has no use for"),
                Err(trouble) => {
                    let error = trouble.while_doing("drop the slot").details();
                    warn!(
                        pipeline,
                        error,
                        "the slot {slot} keeps the server's log: SELECT \
                         pg_drop_replication_slot('{slot}')"
                    );
                }
            }
        }
        if recorded.log.is_some() {
            slots.put(settler, (pipeline, &self.held), None, None).await?;
        }
        Ok(())
    }

    /// Ends the stream. Answers once the server shows what was confirmed last.
    pub(super) async fn end_stream(&self, log: &Log) {
        let replication = lock(&log.replication).take();
        log.let_go();
        let Some(replication) = replication else { return };
        if let Some(replication) = Arc::into_inner(replication)
            && let Err(error) = replication.stop().await
        {
            let error = cannot("end the stream", error).details();
            warn!(pipeline = self.pipeline, error, "the end of the stream is not confirmed");
            return;
        }
        let written = lock(&self.written).as_ref().and_then(|position| position.log.clone());
        let Some(LogPosition { lsn, since: None }) = written else { return };
        let shown = async {
            loop {
                let slot = log.sql.find(&self.settler).await.ok().flatten();
                match slot.and_then(|slot| slot.confirmed) {
                    Some(confirmed) if confirmed < lsn => {
                        tokio::time::sleep(CONFIRM_EVERY).await;
                    }
                    _ => return,
                }
            }
        };
        if timeout(CONFIRM_MAX, shown).await.is_err() {
            warn!(pipeline = self.pipeline, %lsn, "the slot does not show the last position yet");
        }
    }
}

/// What a settlement answers besides.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) mark: Mark,
    /// Which publication there is.
    pub(super) publication: Option<String>,
    /// It settled an event that is not in the table.
    pub(super) is_log_only: bool,
}

/// What has worked before is taken to work again.
fn passing(mut error: SourceError) -> Trouble {
    if error.kind == SourceErrorKind::Misconfigured {
        error.kind = SourceErrorKind::Unavailable;
    }
    error.into()
}

fn torn() -> Trouble {
    let message = "the log went on in the middle of another transaction";
    SourceError::new(SourceErrorKind::Lost, message).into()
}

fn unreadable() -> Trouble {
    let message = "the server has a log without an end";
    SourceError::new(SourceErrorKind::Unsafe, message).into()
}

/// Why a pipeline cannot go on without its slot.
pub(super) fn log_only(pipeline: &str, slot: &str, why: &str) -> SourceError {
    let message = format!(
        "pipeline {pipeline:?} has had events that are in no table, and its slot {slot} cannot give \
         those that are left: {why}"
    );
    SourceError::new(SourceErrorKind::Unsafe, message).with_hint(format!(
        "publish what is missing again, and let go of the rest: postrider slot drop {pipeline}"
    ))
}
