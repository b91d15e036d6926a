//! Scratch outboxes in SQLite: each a file of its own, in the folder of the database, so on the
//! same disk. The database itself is never opened.
//!
//! A claim is the lock of a file beside it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use postrider::schema::TableName;
use postrider::{Event, Outbox};
use rusqlite::{Connection, TransactionBehavior};
use tokio::task::spawn_blocking;

use super::error::source_error;
use super::open::existing_file;
use super::queries::scratch as sql;
use super::{BUSY_TIMEOUT, Location, SqliteOptions, migrate};
use crate::scratch::{Claim, Examined, ScratchDatabase, ScratchName, ScratchWriter};
use crate::source::{Source, SourceError, SourceErrorKind};
use crate::sources::{Mode, Progress};

/// Scratch outboxes beside one database.
#[derive(Debug)]
pub struct SqliteScratch {
    location: Location,
}

impl SqliteScratch {
    /// Nothing is looked at before the first call.
    pub fn new(location: Location) -> Self {
        Self { location }
    }

    /// The folder of the database, which must be there.
    fn folder(&self) -> Result<PathBuf, SourceError> {
        let database = existing_file(&self.location, &TableName::default())?;
        Ok(database.parent().unwrap_or(Path::new("/")).to_owned())
    }

    fn inside(&self, name: &ScratchName) -> Result<Location, SourceError> {
        Ok(Location::new(self.folder()?.join(format!("{}.db", name.as_str()))))
    }

    /// The files that were made for places, each with the name of its place.
    fn files(&self) -> Result<Vec<(ScratchName, PathBuf)>, SourceError> {
        let folder = self.folder()?;
        let listed = fs::read_dir(&folder).and_then(|entries| {
            let mut files = Vec::new();
            for entry in entries {
                let path = entry?.path();
                let file = path.file_name().and_then(|file| file.to_str());
                if let Some(name) = file.and_then(ScratchName::of) {
                    files.push((name, path));
                }
            }
            Ok(files)
        });
        listed.map_err(|error| file_error("look into the folder", &folder, error))
    }
}

fn file_error(doing: &str, path: &Path, error: io::Error) -> SourceError {
    let message = format!("cannot {doing} {}", path.display());
    SourceError::new(SourceErrorKind::Misconfigured, message)
        .with_hint("measuring needs to write to the folder of the database")
        .with_source(error)
}

/// Works on a thread for what blocks.
async fn block<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    spawn_blocking(work).await.unwrap_or_else(|error| {
        let message = "the work on the database was broken off";
        Err(SourceError::new(SourceErrorKind::Unavailable, message).with_source(error))
    })
}

fn open(location: &Location) -> Result<Connection, SourceError> {
    let opened = Connection::open(location.path()).and_then(|connection| {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.execute_batch(sql::SETTINGS)?;
        Ok(connection)
    });
    opened.map_err(|error| source_error(&format!("open {location}"), error))
}

#[async_trait]
impl ScratchDatabase for SqliteScratch {
    fn place(&self, name: &ScratchName) -> String {
        format!("the file {}.db", name.as_str())
    }

    async fn examine(&self, _mode: Mode) -> Result<Examined, SourceError> {
        let folder = self.folder()?;
        Ok(Examined {
            what: format!("SQLite {}, the folder {}", rusqlite::version(), folder.display()),
            writers: 1,
            missing: Vec::new(),
        })
    }

    async fn list(&self) -> Result<Vec<ScratchName>, SourceError> {
        // Files of the sink may lie in the same folder: those of a database end otherwise.
        let is_ours = |path: &Path| path.extension().is_none_or(|extension| extension != "jsonl");
        let files = self.files()?.into_iter().filter(|(_, path)| is_ours(path));
        let mut names: Vec<_> = files.map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn claim(&self, name: &ScratchName) -> Result<Option<Claim>, SourceError> {
        let path = self.folder()?.join(format!("{}.lock", name.as_str()));
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file: File = opened.map_err(|error| file_error("make", &path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Claim::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(file_error("lock", &path, error)),
        }
    }

    async fn make(&self, name: &ScratchName, accounts: u32) -> Result<(), SourceError> {
        let location = self.inside(name)?;
        migrate(location.clone(), TableName::default()).await?;
        block(move || {
            let connection = open(&location)?;
            let made = connection
                .execute_batch(sql::TABLES)
                .and_then(|()| connection.execute(sql::ADD_ACCOUNTS, [accounts]));
            made.map(drop).map_err(|error| source_error("make the tables to measure with", error))
        })
        .await
    }

    async fn remove(&self, name: &ScratchName) -> Result<(), SourceError> {
        let mut files = self.files()?;
        files.retain(|(of, _)| of == name);
        // The lock goes last: until then the place is found, and claimed.
        files.sort_by_key(|(_, path)| path.extension().is_some_and(|it| it == "lock"));
        for (_, path) in files {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(file_error("remove", &path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn writer(&self, name: &ScratchName) -> Result<Box<dyn ScratchWriter>, SourceError> {
        let location = self.inside(name)?;
        let connection = block(move || open(&location)).await?;
        let connection = Arc::new(Mutex::new(connection));
        Ok(Box::new(SqliteWriter { connection }))
    }

    async fn read_all(&self, name: &ScratchName) -> Result<u64, SourceError> {
        let location = self.inside(name)?;
        block(move || {
            let connection = open(&location)?;
            let read = || {
                let mut statement = connection.prepare(sql::COPY)?;
                let (mut rows, mut count) = (statement.query([])?, 0);
                while let Some(row) = rows.next()? {
                    for column in 0..row.as_ref().column_count() {
                        std::hint::black_box(row.get_ref(column)?);
                    }
                    count += 1;
                }
                Ok(count)
            };
            read().map_err(|error| source_error("read the outbox", error))
        })
        .await
    }

    async fn source(
        &self,
        name: &ScratchName,
        _mode: Mode,
        progress: Progress,
    ) -> Result<Box<dyn Source>, SourceError> {
        let defaults = SqliteOptions::new(self.inside(name)?);
        let options = SqliteOptions { progress, ..defaults };
        Ok(Box::new(options.connect().await?))
    }

    async fn is_streaming(&self, _name: &ScratchName) -> Result<bool, SourceError> {
        Ok(false)
    }
}

struct SqliteWriter {
    connection: Arc<Mutex<Connection>>,
}

#[async_trait]
impl ScratchWriter for SqliteWriter {
    async fn transact(&mut self, account: u32, events: &[Event]) -> Result<(), SourceError> {
        let (connection, events) = (Arc::clone(&self.connection), events.to_vec());
        block(move || {
            let doing = "write a transaction";
            let failed = |error| source_error(doing, error);
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let behavior = TransactionBehavior::Immediate;
            let mut transaction = connection.transaction_with_behavior(behavior).map_err(failed)?;
            for statement in [sql::CHANGE_BALANCE, sql::ADD_TO_LEDGER] {
                let mut statement = transaction.prepare_cached(statement).map_err(failed)?;
                statement.execute([account]).map_err(failed)?;
            }
            if !events.is_empty() {
                Outbox::new().publish_all(&mut transaction, &events).map_err(|error| {
                    let message = format!("cannot {doing}");
                    SourceError::new(SourceErrorKind::Unavailable, message).with_source(error)
                })?;
            }
            transaction.commit().map_err(failed)
        })
        .await
    }
}
