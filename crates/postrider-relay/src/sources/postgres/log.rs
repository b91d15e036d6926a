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
//!   has cannot be found there: a pipeline that may have one refuses to go on without its slot.
//! - **The stream** is begun anew after trouble with the connection, where it was left.
//!
//! What was read and how far it is settled is in [`Tail`].

mod errors;
mod leave;
mod names;
mod publication;
mod queries;
mod refusals;
mod rows;
pub(super) mod slot;
mod stream;
mod tail;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_replication::{Lsn, Replication};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use self::queries::{WAL_END, WAL_FLUSHED};
use self::stream::Stream;
pub(super) use self::stream::VALUE_BYTES_MAX;
use self::tail::Start;
use super::connection::{self, Connection};
use super::error::Trouble;
use super::frontier::Position;
use super::snapshot::Snapshot;
use super::table::Table;
use super::{Location, Shared, lock};
use crate::slots::SlotState;
use crate::source::{SourceError, SourceErrorKind};

pub(super) use self::errors::{cannot, without_polling};
pub(super) use self::leave::{log_only, not_polled};
pub(super) use self::names::Names;
pub(super) use self::queries::LogQueries;
pub(super) use self::rows::{Stored, columns};
pub(super) use self::tail::{Mark, Place, Tail};

/// How long to wait after a slot could not be made, or was given up.
const MAKE_EVERY: Duration = Duration::from_secs(10);
/// The same if it kept too much of the log while it was being made: a transaction has been open
/// for long.
const MAKE_AGAIN: Duration = Duration::from_secs(600);
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
    /// The last transaction of which a row was looked for in the table.
    looked_for: AtomicU64,
    /// The slot was given up, and why.
    given_up: Mutex<Option<String>>,
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
            looked_for: AtomicU64::new(0),
            given_up: Mutex::default(),
        }
    }

    /// Says at the start what would keep the log from being read.
    async fn check(&self, connection: &Connection) -> Result<(), Trouble> {
        self.sql.refuse_level(connection).await?;
        self.sql.refuse_generated(connection, &rows::columns(&self.table)).await?;
        connection::streaming(&self.location, &self.application_name).await?;
        Ok(())
    }

    pub(super) fn is_streaming(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Streaming)
    }

    pub(super) fn looked_for(&self) -> u64 {
        self.looked_for.load(Ordering::Relaxed)
    }

    pub(super) fn is_making(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Making(_))
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

    /// A settlement was written: what it has answered.
    pub(super) async fn note_answer(&self, log: &Log, answer: Answer) -> Result<(), Trouble> {
        self.refuse_changed(log, answer.publication).await?;
        if let Some(xid) = answer.looked_for {
            log.looked_for.store(xid, Ordering::Relaxed);
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
}

/// What a settlement answers besides.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) mark: Mark,
    /// Which publication there is.
    pub(super) publication: Option<String>,
    /// A transaction of which a row was looked for in the table.
    pub(super) looked_for: Option<u64>,
    /// It was not there.
    pub(super) is_log_only: bool,
}

fn unreadable() -> Trouble {
    let message = "the server has a log without an end";
    SourceError::new(SourceErrorKind::Unsafe, message).into()
}
