//! Opens a database file that must be there, and checks that its tables are as they should be.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use postrider::schema::TableName;
use rusqlite::{Connection, OpenFlags};

use super::error::{Trouble, not_migrated, source_error};
use super::files;
use super::queries;
use super::{BUSY_TIMEOUT, Location};
use crate::source::{SourceError, SourceErrorKind};

/// More than there are statements, so that each is prepared once.
const STATEMENTS_MAX: usize = 64;

/// The file's path without symbolic links. Fails if there is no such file: a relay that made a
/// missing database would wait for ever on an empty one.
pub(super) fn existing_file(
    location: &Location,
    outbox: &TableName,
) -> Result<PathBuf, SourceError> {
    let misconfigured =
        |what: &str| SourceError::new(SourceErrorKind::Misconfigured, format!("{location} {what}"));
    let found = fs::canonicalize(location.path()).and_then(|path| {
        let metadata = fs::metadata(&path)?;
        Ok((path, metadata))
    });
    match found {
        Ok((_, metadata)) if metadata.is_dir() => {
            Err(misconfigured("is a directory").with_hint("name the database file in it"))
        }
        Ok((path, _)) => Ok(path),
        Err(err) if err.kind() == ErrorKind::NotFound => {
            let what = format!("{location} does not exist");
            Err(not_migrated(location, outbox, what).with_source(err))
        }
        Err(err) => Err(misconfigured("cannot be opened")
            .with_hint("the relay needs to read and write the file and its directory")
            .with_source(err)),
    }
}

/// Opens an existing database for reading and writing.
pub(super) fn open(
    location: &Location,
    outbox: &TableName,
    busy_timeout: Duration,
) -> Result<Connection, SourceError> {
    let path = existing_file(location, outbox)?;
    files::refuse_mixture(location, &path)?;
    let doing = format!("open {location}");
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags).and_then(|conn| {
        conn.busy_timeout(busy_timeout)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        // SQLite falls back to reading only, without a word.
        let read_only = conn.is_readonly("main")?;
        Ok((conn, read_only))
    });
    let (conn, read_only) = opened.map_err(|err| source_error(&doing, err))?;
    if read_only {
        let message = format!("{location} can only be read");
        return Err(SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint("the relay needs to write to the file and to its directory"));
    }
    Ok(conn)
}

/// Opens the database for one piece of work, on a thread for blocking work, and closes it again:
/// an operator comes seldom, and nothing stays open that could hold a lock.
pub(super) async fn visit<T: Send + 'static>(
    location: Location,
    outbox: TableName,
    doing: &'static str,
    work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
) -> Result<T, SourceError> {
    let worked = tokio::task::spawn_blocking(move || {
        let conn = open(&location, &outbox, BUSY_TIMEOUT)?;
        check_tables(&conn, &location, &outbox)?;
        work(&conn).map_err(|trouble| trouble.while_doing(doing))
    });
    worked.await.unwrap_or_else(|err| {
        let message = format!("cannot {doing}: it was broken off");
        Err(SourceError::new(SourceErrorKind::Unavailable, message).with_source(err))
    })
}

/// Turns write-ahead logging on, so that the relay and the writers do not block each other.
pub(super) fn use_wal(conn: &Connection, location: &Location) -> Result<(), SourceError> {
    let mode: String = conn
        .query_one(queries::USE_WAL, [], |row| row.get(0))
        .and_then(|mode| conn.execute_batch(queries::SYNC_NORMAL).map(|()| mode))
        .and_then(|mode| conn.execute_batch(queries::CACHE_SIZE).map(|()| mode))
        .map_err(|err| source_error(&format!("turn on write-ahead logging of {location}"), err))?;
    if mode == "wal" {
        return Ok(());
    }
    let message = format!("{location} has journal mode {mode} and cannot change to wal");
    Err(SourceError::new(SourceErrorKind::Misconfigured, message)
        .with_hint("keep the database on a local file system"))
}

/// Checks that the tables have the columns that the statements use.
pub(super) fn check_tables(
    conn: &Connection,
    location: &Location,
    outbox: &TableName,
) -> Result<(), SourceError> {
    let event = &queries::EVENT_COLUMNS[..];
    let tables = [
        (outbox.clone(), [event, &queries::OUTBOX_COLUMNS].concat()),
        (outbox.failures(), [event, &queries::FAILURE_COLUMNS].concat()),
        (outbox.checkpoints(), queries::CHECKPOINT_COLUMNS.to_vec()),
        (outbox.pauses(), queries::PAUSE_COLUMNS.to_vec()),
    ];
    for (table, needed) in tables {
        let found = columns(conn, &table)
            .map_err(|err| source_error(&format!("read the schema of {location}"), err))?;
        if found.is_empty() {
            let what = format!("{location} has no table {table}");
            return Err(not_migrated(location, outbox, what));
        }
        let is_missing =
            |column: &&str| !found.iter().any(|name| name.eq_ignore_ascii_case(column));
        let missing: Vec<&str> = needed.into_iter().filter(is_missing).collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            let what = format!("the table {table} in {location} lacks the columns {missing}");
            return Err(not_migrated(location, outbox, what));
        }
    }
    Ok(())
}

fn columns(conn: &Connection, table: &TableName) -> rusqlite::Result<Vec<String>> {
    let mut statement = conn.prepare(queries::COLUMNS_OF)?;
    let names = statement.query_map([table.as_str()], |row| row.get(0))?;
    names.collect()
}
