//! An outbox in SQLite, read by polling.
//!
//! # Design
//!
//! A [`SqliteSource`] is two halves. The asynchronous one, here, never blocks: it passes commands
//! to a thread (`worker`) that owns the connection. What is under way is known in memory only
//! (`window`); everything that outlives the process is in the database, and is written by
//! settling (`settle`) and nowhere else.
//!
//! - **Reading** (`read`) never writes and never holds a transaction open while events are
//!   published. `seq` is in commit order, because SQLite has one writer at a time.
//! - **Progress** is kept in the rows (`mark`, `delete`) or as a position (`cursor`, `frontier`).
//!   Changing from one to another is described in `progress`.
//! - **Events set aside** wait in `<table>_failures`; `keys` keeps them from being forgotten.
//! - **One relay per pipeline**: `lock`.
//! - **Files that are moved or replaced** under a running relay: `files`.
//! - **Waiting**: an empty read is repeated after 1 ms, then 2, 4 … up to 250 ms, or when
//!   something comes due; a settlement that may have made something available ends the wait.
//!
//! # Cancelling
//!
//! A read that was asked for is carried out even if the future that asked is dropped. Its
//! answer is taken by the next call, and records beyond that call's limit are kept for the one
//! after.

mod admin;
mod diagnosis;
mod error;
mod files;
mod frontier;
mod keys;
mod location;
mod lock;
mod migrate;
mod open;
mod options;
mod progress;
mod prune;
mod published;
mod queries;
mod read;
mod row;
mod scratch;
mod settle;
mod store;
mod window;
mod worker;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::time::Instant;
use tracing::debug;

use self::files::{FileId, OpenFiles};
use self::lock::PipelineLock;
use self::queries::{CheckpointQueries, Queries};
use self::store::Store;
use self::worker::{Answer, Batch, Command, Worker};
use super::Progress;
use super::room::Room;
use crate::hint::Hint;
use crate::source::{
    BatchLimit, Record, Resume, Settled, Settlement, Source, SourceCapabilities, SourceError,
    SourceErrorKind, Verdict,
};

pub use self::admin::SqliteAdmin;
pub use self::diagnosis::SqliteDiagnosis;
pub use self::location::{InvalidLocation, Location};
pub use self::migrate::{migrate, status, verify};
pub use self::options::{BUSY_TIMEOUT, SqliteOptions};
pub use self::prune::SqlitePruner;
pub use self::scratch::SqliteScratch;

/// The shortest pause after an empty read.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause after an empty read.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Commands under way: a read, a settlement, and room for those that were given up.
const COMMANDS_MAX: usize = 16;

/// Reads one outbox in SQLite for one pipeline.
///
/// Dropping it waits until the thread has ended, which is at once unless the database is locked
/// just then.
#[derive(Debug)]
pub struct SqliteSource {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    reader: Mutex<Reader>,
    settled: Notify,
    hint: Hint,
    shared: bool,
}

/// What the reading half keeps from one call to the next.
#[derive(Debug, Default)]
struct Reader {
    asked: Option<oneshot::Receiver<Result<Batch, SourceError>>>,
    kept: VecDeque<Record>,
    /// Rows to give back before anything else is read.
    unwanted: Vec<Settlement>,
}

impl SqliteSource {
    /// Opens the database, checks its tables, and takes the pipeline for this relay.
    pub(super) async fn connect(options: SqliteOptions) -> Result<Self, SourceError> {
        let shared = options.progress == Progress::Cursor;
        let hint = options.hint.clone();
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (opened, is_open) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(format!("sqlite {}", options.pipeline))
            .spawn(move || match open_worker(options) {
                Ok(worker) => {
                    if opened.send(Ok(())).is_ok() {
                        worker.run(receiver);
                    }
                }
                Err(error) => drop(opened.send(Err(error))),
            })
            .map_err(|err| {
                SourceError::new(SourceErrorKind::Unavailable, "cannot start a thread for SQLite")
                    .with_source(err)
            })?;
        is_open.await.unwrap_or_else(|_| Err(worker_ended()))?;
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
            reader: Mutex::default(),
            settled: Notify::new(),
            hint,
            shared,
        })
    }

    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T, SourceError> {
        self.send(command).await?.await.unwrap_or_else(|_| Err(worker_ended()))
    }

    async fn send<T>(
        &self,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<oneshot::Receiver<Result<T, SourceError>>, SourceError> {
        let (answer, answered) = oneshot::channel();
        let commands = self.commands.as_ref().ok_or_else(worker_ended)?;
        commands.send(command(answer)).await.map_err(|_| worker_ended())?;
        Ok(answered)
    }

    /// Gives back rows that were set aside and are not among the first so many: they stand behind
    /// others of their key, which may fail once more. When it is their turn they are found again.
    async fn give_back(&self, reader: &mut Reader, fits: usize) -> Result<(), SourceError> {
        let Reader { kept, unwanted, .. } = reader;
        let mut index = 0;
        kept.retain(|record| {
            let is_kept = index < fits || !record.returned;
            index += 1;
            if !is_kept {
                unwanted.push(Settlement { handle: record.handle, verdict: Verdict::Released });
            }
            is_kept
        });
        if unwanted.is_empty() {
            return Ok(());
        }
        let commands = self.commands.as_ref().ok_or_else(worker_ended)?;
        let permit = commands.reserve().await.map_err(|_| worker_ended())?;
        // What is asked for after it is answered after it.
        let (answer, _) = oneshot::channel();
        permit.send(Command::Settle(std::mem::take(unwanted), answer));
        Ok(())
    }

    /// One answer of the thread, whether it was asked just now or by a call that was given up.
    async fn read(&self, reader: &mut Reader, limit: BatchLimit) -> Result<Batch, SourceError> {
        let asked = match &mut reader.asked {
            Some(asked) => asked,
            none => none.insert(self.send(|answer| Command::Read(limit, answer)).await?),
        };
        let answer = asked.await.unwrap_or_else(|_| Err(worker_ended()));
        reader.asked = None;
        answer
    }
}

#[async_trait]
impl Source for SqliteSource {
    fn capabilities(&self) -> SourceCapabilities {
        SourceCapabilities { name: "sqlite", shared: self.shared }
    }

    async fn resume(&self) -> Result<Resume, SourceError> {
        self.ask(Command::Resume).await
    }

    async fn next_batch(&self, limit: BatchLimit) -> Result<Vec<Record>, SourceError> {
        let started = Instant::now();
        let mut reader = self.reader.lock().await;
        let mut pause = PAUSE_MIN;
        loop {
            if !reader.kept.is_empty() {
                let fits = fitting(&reader.kept, limit);
                self.give_back(&mut reader, fits).await?;
                return Ok(reader.kept.drain(..fits).collect());
            }
            // What is committed and hinted at while this read goes on, the next one finds.
            let hinted = self.hint.given();
            let batch = self.read(&mut reader, limit).await?;
            reader.kept.extend(batch.records);
            if !reader.kept.is_empty() || batch.more {
                continue;
            }
            let left = limit.wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            let until_due = batch.next_due.unwrap_or(PAUSE_MAX).max(PAUSE_MIN);
            tokio::select! {
                () = tokio::time::sleep(pause.min(until_due).min(left)) => {
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                () = self.settled.notified() => pause = PAUSE_MIN,
                () = hinted => pause = PAUSE_MIN,
            }
        }
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, SourceError> {
        let settlements = settlements.to_vec();
        let settled = self.ask(|answer| Command::Settle(settlements, answer)).await?;
        // Something may have been released, or come due.
        self.settled.notify_one();
        Ok(settled)
    }

    async fn survived(&self) -> Result<(), SourceError> {
        self.ask(Command::Survived).await
    }

    async fn note_trouble(&self, trouble: Option<&str>) -> Result<(), SourceError> {
        let trouble = trouble.map(str::to_owned);
        self.ask(|answer| Command::NoteTrouble(trouble, answer)).await
    }

    async fn pending(&self) -> Result<bool, SourceError> {
        self.ask(Command::Pending).await
    }

    async fn give_back(self: Box<Self>) {
        // A database that does not answer has ended more than this start.
        if let Err(error) = self.ask(Command::GiveBack).await {
            debug!(?error, "the start stays counted");
        }
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        self.ask(Command::Close).await
    }
}

impl Drop for SqliteSource {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            // It ends with its channel. A panic in it was reported to whoever asked.
            drop(thread.join());
        }
    }
}

/// How many of the first records the limit allows.
fn fitting(kept: &VecDeque<Record>, limit: BatchLimit) -> usize {
    let mut room = Room::new(limit);
    kept.iter().take_while(|record| room.take(record.size_bytes())).count()
}

fn open_worker(options: SqliteOptions) -> Result<Worker, SourceError> {
    let SqliteOptions { location, table, pipeline, progress, matching, busy_timeout, .. } = options;
    let (start, companions) = (options.start, options.companions);
    let database = open::existing_file(&location, &table)?;
    let found = FileId::at(&database);
    let conn = open::open(&location, &table, busy_timeout)?;
    open::check_tables(&conn, &location, &table)?;
    let lock = PipelineLock::take(&database, &table, &pipeline)?;
    open::use_wal(&conn, &location)?;
    let store = Store {
        conn,
        sql: Queries::new(&table, matching.is_some()),
        checkpoints: CheckpointQueries::new(&table),
        table: table.as_str().to_owned(),
        pipeline,
        matching: matching.map(|types| serde_json::Value::from(types).to_string()),
        companions,
    };
    progress::claim(&store, progress, start)
        .map_err(|trouble| trouble.while_doing("write the checkpoint"))?;
    let files = OpenFiles::opened(&location, &database, found)?;
    lock.note(files.ids)?;
    Ok(Worker::new(store, progress, lock, files))
}

fn worker_ended() -> SourceError {
    // Its thread panicked: asking again would never end.
    SourceError::new(SourceErrorKind::Unsafe, "the connection to SQLite has ended unexpectedly")
        .with_hint("start the relay again and report this, with the log")
}
