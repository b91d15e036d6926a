//! The thread that owns the connection.
//!
//! SQLite blocks, so each source has one thread that does nothing else. The asynchronous side
//! sends [`Command`]s over a bounded channel and awaits the answers. An answer that nobody waits
//! for any more is not lost: for a read, the asynchronous side keeps the receiver (see
//! [`SqliteSource`](super::SqliteSource)); everything else is either written or not, whoever
//! listens.
//!
//! # When there is nothing to read
//!
//! `PRAGMA data_version` tells cheaply whether *another* connection has committed since the last
//! look. What this connection writes does not show there, so a settlement makes the next read a
//! real one. And a row that is set aside comes due without anybody writing, so the next such
//! time is remembered.
//!
//! When progress is kept in the rows and nothing is under way, an empty look starts over from
//! the first row, which the index on unpublished rows makes cheap. So a row is found, too, that
//! somebody gave a lower number or un-published by hand.

use std::time::{Duration, Instant};

use rusqlite::params;
use tokio::sync::{mpsc, oneshot};

use super::error::{Trouble, source_error};
use super::files::OpenFiles;
use super::lock::PipelineLock;
use super::progress;
use super::read::{self, Found, Origin};
use super::settle;
use super::store::Store;
use super::window::Window;
use crate::source::{
    BatchLimit, Record, Resume, Settled, Settlement, SourceError, SourceErrorKind, Verdict,
};
use crate::sources::Progress;

/// How many looks one read may take before it lets other commands in.
const LOOKS_MAX: usize = 16;
/// How often a cursor that only passes over rows is written down.
const PASS_EVERY: Duration = Duration::from_secs(1);
/// How often to start over if rows that do not match have to be passed over each time.
const START_OVER_EVERY: Duration = Duration::from_secs(30);

pub(super) type Answer<T> = oneshot::Sender<Result<T, SourceError>>;

/// What the asynchronous side can ask for.
#[derive(Debug)]
pub(super) enum Command {
    Resume(Answer<Resume>),
    Read(BatchLimit, Answer<Batch>),
    Settle(Vec<Settlement>, Answer<Settled>),
    Survived(Answer<()>),
    NoteTrouble(Option<String>, Answer<()>),
    Pending(Answer<bool>),
    GiveBack(Answer<()>),
    Close(Answer<()>),
}

/// The answer to a read.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) records: Vec<Record>,
    /// There may be more although there are no records: ask again at once.
    pub(super) more: bool,
    /// When something comes due, if there are no records.
    pub(super) next_due: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Worker {
    store: Store,
    /// What the configuration asks for.
    wanted: Progress,
    /// What is done now; another than `wanted` only while catching up.
    progress: Progress,
    catch_up_to: Option<i64>,
    window: Window,
    idle: Option<Idle>,
    /// This pass began at the first row and has found nothing yet.
    from_start: bool,
    started_over: Instant,
    /// The position in the database, and when it was last moved without a settlement.
    written: i64,
    passed: Instant,
    /// The start is counted.
    is_started: bool,
    lock: PipelineLock,
    files: OpenFiles,
}

/// Nothing was there at the last look.
#[derive(Debug)]
struct Idle {
    data_version: i64,
    next_due: Option<Instant>,
}

impl Worker {
    pub(super) fn new(
        store: Store,
        progress: Progress,
        lock: PipelineLock,
        files: OpenFiles,
    ) -> Self {
        Self {
            store,
            wanted: progress,
            progress,
            catch_up_to: None,
            window: Window::new(0),
            idle: None,
            from_start: true,
            started_over: Instant::now(),
            written: 0,
            passed: Instant::now(),
            is_started: false,
            lock,
            files,
        }
    }

    /// Serves commands until the source is closed or dropped.
    pub(super) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.blocking_recv() {
            // Whoever asked may be gone: then the answer is of no use to anybody.
            match command {
                Command::Resume(answer) => drop(answer.send(self.guarded(Self::resume))),
                Command::Read(limit, answer) => {
                    drop(answer.send(self.guarded(|worker| worker.read(limit))));
                }
                Command::Settle(settlements, answer) => {
                    drop(answer.send(self.guarded(|worker| worker.settle(&settlements))));
                }
                Command::Survived(answer) => drop(answer.send(self.guarded(Self::survived))),
                Command::NoteTrouble(trouble, answer) => {
                    let note = |worker: &mut Self| worker.note_trouble(trouble.as_deref());
                    drop(answer.send(self.guarded(note)));
                }
                Command::Pending(answer) => drop(answer.send(self.guarded(Self::pending))),
                Command::GiveBack(answer) => {
                    let given_back = self.not_started();
                    // The lock is given up before the caller hears that it is.
                    drop(self);
                    drop(answer.send(given_back));
                    return;
                }
                Command::Close(answer) => {
                    let closed = self.close();
                    // The lock is given up before the caller hears that it is.
                    drop(self);
                    drop(answer.send(closed));
                    return;
                }
            }
        }
    }

    /// Carries out a command if the open files are those at the path. What was done is not
    /// answered if another database has come there meanwhile; that the files are merely missing is
    /// told by the next command, because this one is done.
    fn guarded<T>(
        &mut self,
        command: impl FnOnce(&mut Self) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        self.check_files()?;
        let done = command(self);
        match self.check_files() {
            Err(error) if error.kind == SourceErrorKind::Lost => Err(error),
            _ => done,
        }
    }

    fn check_files(&self) -> Result<(), SourceError> {
        self.files.check()?;
        self.lock.check()
    }

    fn resume(&mut self) -> Result<Resume, SourceError> {
        self.try_resume().map_err(|trouble| trouble.while_doing("read the checkpoint"))
    }

    fn try_resume(&mut self) -> Result<Resume, Trouble> {
        let start = progress::start(&self.store, self.wanted)?;
        let now = self.store.now()?.text;
        let blocked_keys = self.store.keys().blocked()?;
        let started = &self.store.checkpoints.started;
        let (crashes, is_troubled) =
            self.store.one(started, params![self.store.pipeline, now], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        self.is_started = true;
        self.progress = start.progress;
        self.catch_up_to = start.catch_up_to;
        self.window = Window::new(start.position);
        self.window.frontier.settled_before(start.beyond);
        self.written = start.position;
        self.idle = None;
        self.from_start = true;
        Ok(Resume { blocked_keys, crashes, is_troubled })
    }

    fn read(&mut self, limit: BatchLimit) -> Result<Batch, SourceError> {
        self.try_read(limit).map_err(|trouble| trouble.while_doing("read the outbox"))
    }

    fn try_read(&mut self, limit: BatchLimit) -> Result<Batch, Trouble> {
        if let Some(batch) = self.still_idle()? {
            return Ok(batch);
        }
        for _ in 0..LOOKS_MAX {
            // Before the look, so that a commit during it is noticed.
            let data_version = self.store.data_version()?;
            let up_to = self.catch_up_to.unwrap_or(i64::MAX);
            let found = read::look(&self.store, &self.window, self.progress, up_to, limit)?;
            let (more, next_due) = (found.more, found.next_due);
            let records = self.hand_out(found);
            if !records.is_empty() {
                self.from_start = false;
                return Ok(Batch { records, ..Batch::default() });
            }
            if more || self.start_over() || self.caught_up()? {
                continue;
            }
            if self.progress == Progress::Cursor {
                self.store.check_position(self.window.position)?;
                self.write_passed()?;
            }
            self.from_start = false;
            let due_at = next_due.and_then(|due| Instant::now().checked_add(due));
            self.idle = Some(Idle { data_version, next_due: due_at });
            return Ok(Batch { next_due, ..Batch::default() });
        }
        Ok(Batch { more: true, ..Batch::default() })
    }

    /// An empty batch if nothing can have come since the last look.
    fn still_idle(&mut self) -> Result<Option<Batch>, Trouble> {
        let Some(idle) = &self.idle else {
            return Ok(None);
        };
        let next_due = idle.next_due.map(|due| due.saturating_duration_since(Instant::now()));
        let is_due = next_due.is_some_and(|due| due.is_zero());
        if is_due || self.store.data_version()? != idle.data_version {
            self.idle = None;
            return Ok(None);
        }
        self.write_passed()?;
        Ok(Some(Batch { next_due, ..Batch::default() }))
    }

    fn hand_out(&mut self, found: Found) -> Vec<Record> {
        let Found { rows, gone, read_to, now, .. } = found;
        for seq in gone {
            self.window.released.remove(&seq);
            self.window.frontier.set_settled(seq, true);
        }
        let mut records = Vec::with_capacity(rows.len());
        for (origin, row) in rows {
            let returned = origin == Origin::SetAside;
            let handle = self.window.hand_out(&row, returned);
            match origin {
                Origin::Fresh if self.progress == Progress::Cursor => {
                    self.window.frontier.hand_out(row.seq);
                }
                Origin::Released => drop(self.window.released.remove(&row.seq)),
                Origin::Fresh | Origin::SetAside => {}
            }
            let deliver_after = row.event.as_ref().ok().and_then(|event| event.deliver_after());
            let delay = deliver_after.and_then(|time| time.duration_since(now.time).ok());
            records.push(Record {
                handle,
                event: row.event,
                attempts: row.attempts,
                returned,
                delay: delay.filter(|delay| !delay.is_zero()),
            });
        }
        self.window.position = read_to;
        if self.progress == Progress::Cursor {
            self.window.frontier.pass(read_to);
        }
        records
    }

    /// Goes back to the first row, if that can find any.
    fn start_over(&mut self) -> bool {
        let in_rows = self.progress != Progress::Cursor;
        if !in_rows || self.from_start || !self.window.is_quiet() {
            return false;
        }
        let is_cheap = self.store.matching.is_none() || self.catch_up_to.is_some();
        if !is_cheap && self.started_over.elapsed() < START_OVER_EVERY {
            return false;
        }
        self.started_over = Instant::now();
        self.from_start = true;
        self.window.position = 0;
        true
    }

    /// Changes to a cursor once everything before it is done.
    fn caught_up(&mut self) -> Result<bool, Trouble> {
        let Some(last) = self.catch_up_to else {
            return Ok(false);
        };
        if !self.from_start || !self.window.is_quiet() {
            return Ok(false);
        }
        progress::set(&self.store, Progress::Cursor, last, "")?;
        self.progress = Progress::Cursor;
        self.catch_up_to = None;
        self.written = last;
        self.window.start_cursor(last);
        Ok(true)
    }

    /// Writes down that rows were passed over, now and then.
    fn write_passed(&mut self) -> rusqlite::Result<()> {
        let is_behind = self.window.frontier.position() > self.written;
        if self.progress == Progress::Cursor && is_behind && self.passed.elapsed() >= PASS_EVERY {
            self.pass()?;
        }
        Ok(())
    }

    fn pass(&mut self) -> rusqlite::Result<()> {
        let position = self.window.frontier.position();
        let now = self.store.now()?.text;
        let sql = &self.store.checkpoints.passed;
        self.store.execute(sql, params![self.store.pipeline, position, now])?;
        self.written = position;
        self.passed = Instant::now();
        Ok(())
    }

    fn settle(&mut self, settlements: &[Settlement]) -> Result<Settled, SourceError> {
        self.idle = None;
        let settling = self.window.take(settlements);
        let frontier = &self.window.frontier;
        let (position, beyond) = match self.progress {
            Progress::Cursor => (frontier.position(), frontier.beyond()),
            Progress::Delete | Progress::Mark => (0, String::new()),
        };
        match settle::settle(&self.store, self.progress, &settling, (position, beyond)) {
            Ok(settled) => {
                if settling.iter().any(|settling| settling.verdict != &Verdict::Released) {
                    self.written = position;
                }
                self.window.settled(settling);
                Ok(settled)
            }
            Err(trouble) => {
                self.window.put_back(settling);
                Err(trouble.while_doing("settle events"))
            }
        }
    }

    fn survived(&mut self) -> Result<(), SourceError> {
        self.try_survived().map_err(|err| source_error("write the checkpoint", err))
    }

    fn try_survived(&mut self) -> rusqlite::Result<()> {
        let now = self.store.now()?.text;
        let sql = &self.store.checkpoints.survived;
        self.store.execute(sql, params![self.store.pipeline, now])?;
        Ok(())
    }

    fn note_trouble(&mut self, trouble: Option<&str>) -> Result<(), SourceError> {
        let note = || {
            let now = self.store.now()?.text;
            let sql = &self.store.checkpoints.trouble;
            self.store.execute(sql, params![self.store.pipeline, trouble, now])
        };
        note().map(drop).map_err(|err| source_error("note the trouble of the sink", err))
    }

    /// Takes back that the start was counted, if it was.
    fn not_started(&mut self) -> Result<(), SourceError> {
        if !self.is_started {
            return Ok(());
        }
        let take_back = || {
            let now = self.store.now()?.text;
            let sql = &self.store.checkpoints.not_started;
            self.store.execute(sql, params![self.store.pipeline, now])
        };
        take_back().map(drop).map_err(|err| source_error("write the checkpoint", err))
    }

    fn pending(&mut self) -> Result<bool, SourceError> {
        self.try_pending().map_err(|err| source_error("read the outbox", err))
    }

    fn try_pending(&self) -> rusqlite::Result<bool> {
        let (store, sql) = (&self.store, &self.store.sql);
        let snapshot = store.read()?;
        let pending = match self.progress {
            Progress::Cursor if self.window.frontier.has_unsettled() => true,
            Progress::Cursor => store.one(
                &sql.rows_pending,
                params![self.window.position, store.matching, store.pipeline],
                |row| row.get(0),
            )?,
            Progress::Delete | Progress::Mark => store.one(
                &sql.unpublished_pending,
                params![store.matching, store.pipeline],
                |row| row.get(0),
            )?,
        };
        let pending =
            pending || store.one(&sql.set_aside_pending, [&store.pipeline], |row| row.get(0))?;
        snapshot.finish()?;
        Ok(pending)
    }

    fn close(&mut self) -> Result<(), SourceError> {
        let closed = self.try_survived().and_then(|()| match self.progress {
            Progress::Cursor if self.window.frontier.position() > self.written => self.pass(),
            _ => Ok(()),
        });
        closed.map_err(|err| source_error("write the checkpoint", err))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The connection closes after this, and SQLite may remove its log with it.
        self.lock.forget();
    }
}
