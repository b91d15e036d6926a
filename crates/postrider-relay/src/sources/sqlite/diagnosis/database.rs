//! Checks of what is in the file.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use postrider::schema::TableName;
use rusqlite::{Connection, ErrorCode};

use super::super::Location;
use super::super::error::source_error;
use super::super::open::open;
use super::super::queries;
use crate::amounts::size;
use crate::diagnosis::{Finding, Fix};

/// How long a writer may keep another one waiting.
const WRITER_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time to look for damage.
const INTEGRITY_TIMEOUT: Duration = Duration::from_secs(5);
/// A log that is larger was not carried over for long.
const WAL_BYTES_MAX: u64 = 256 << 20;
/// Room that is not worth a word.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// All of them. `path` is the file's own, without symbolic links.
pub(super) fn checks(location: &Location, outbox: &TableName, path: &Path) -> Vec<Finding> {
    let conn = match open(location, outbox, WRITER_TIMEOUT) {
        Ok(conn) => conn,
        Err(error) => return vec![Finding::error("database", &error)],
    };
    let mut findings = Vec::new();
    let mut note = |check: &'static str, made: rusqlite::Result<Finding>| {
        findings.push(
            made.unwrap_or_else(|err| Finding::error(check, &source_error("make the check", err))),
        );
    };
    note("integrity", integrity(&conn));
    note("journal-mode", journal_mode(&conn));
    note("synchronous", synchronous(&conn));
    note("writers", writers(&conn));
    note("free-pages", free_pages(&conn));
    findings.push(log_size(path));
    findings
}

/// Looks for damage, but not for long.
fn integrity(conn: &Connection) -> rusqlite::Result<Finding> {
    const CHECK: &str = "integrity";
    let interrupt = conn.get_interrupt_handle();
    let (done, is_done) = mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if is_done
            .recv_timeout(INTEGRITY_TIMEOUT)
            .is_err_and(|err| err == mpsc::RecvTimeoutError::Timeout)
        {
            interrupt.interrupt();
        }
    });
    let said: rusqlite::Result<String> = conn.query_row(queries::QUICK_CHECK, [], |row| row.get(0));
    drop(done);
    // It has nothing left to do.
    let _ = guard.join();
    match said {
        Ok(said) if said == "ok" => Ok(Finding::ok(CHECK, "the file is not damaged")),
        Ok(said) => {
            let first = said.lines().next().unwrap_or_default();
            let fix = "stop all writers, then recover it (sqlite3 app.db .recover) or restore it";
            Ok(Finding::fail(CHECK, format!("the file is damaged: {first}")).with(Fix::advice(fix)))
        }
        Err(err) if err.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            let seconds = INTEGRITY_TIMEOUT.as_secs();
            let found = format!("the file is too large to be checked in {seconds} s");
            Ok(Finding::skip(CHECK, found).with(Fix::sql("PRAGMA quick_check")))
        }
        Err(err) => Err(err),
    }
}

fn journal_mode(conn: &Connection) -> rusqlite::Result<Finding> {
    const CHECK: &str = "journal-mode";
    let mode: String = conn.query_row(queries::JOURNAL_MODE, [], |row| row.get(0))?;
    Ok(match mode.as_str() {
        "wal" => Finding::ok(CHECK, "readers and writers do not wait for each other (wal)"),
        mode => {
            let found =
                format!("the journal mode is {mode}: readers and writers wait for each other");
            Finding::warn(CHECK, found).with(Fix::safe_sql("PRAGMA journal_mode = wal"))
        }
    })
}

/// It belongs to each connection: this is what one gets that does not choose.
fn synchronous(conn: &Connection) -> rusqlite::Result<Finding> {
    const CHECK: &str = "synchronous";
    let level: i64 = conn.query_row(queries::SYNCHRONOUS, [], |row| row.get(0))?;
    Ok(match level {
        0 => Finding::warn(CHECK, "connections do not sync: a power cut can damage the file")
            .with(Fix::advice("let writers run PRAGMA synchronous = full when they connect")),
        1 => Finding::warn(
            CHECK,
            "connections sync seldom by default: a power cut can take the last commits back",
        )
        .with(Fix::advice("let writers run PRAGMA synchronous = full when they connect")),
        _ => Finding::ok(CHECK, "a commit is on disk, unless a writer chose otherwise"),
    })
}

/// Whether the right to write can be had.
fn writers(conn: &Connection) -> rusqlite::Result<Finding> {
    const CHECK: &str = "writers";
    match conn.execute_batch(queries::TRY_WRITE) {
        Ok(()) => Ok(Finding::ok(CHECK, "nobody keeps the right to write")),
        Err(err) if err.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
            let seconds = WRITER_TIMEOUT.as_secs();
            let found =
                format!("a write transaction is open for {seconds} s and more: all others wait");
            let fix = "look for the program that has it open (fuser app.db), and let it commit";
            Ok(Finding::warn(CHECK, found).with(Fix::advice(fix)))
        }
        Err(err) => Err(err),
    }
}

fn free_pages(conn: &Connection) -> rusqlite::Result<Finding> {
    const CHECK: &str = "free-pages";
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let page = number(queries::PAGE_SIZE)?;
    let bytes = |pages: i64| u64::try_from(pages.saturating_mul(page)).unwrap_or(0);
    let (all, free) =
        (bytes(number(queries::PAGE_COUNT)?), bytes(number(queries::FREELIST_COUNT)?));
    let found = format!("{} of {} are free", size(free), size(all));
    Ok(match free > FREE_BYTES_MIN && free > all / 2 {
        false => Finding::ok(CHECK, found),
        // It takes the right to write for long, and as much space again.
        true => Finding::warn(CHECK, found).with(Fix::sql("VACUUM")),
    })
}

/// The write-ahead log beside the file.
fn log_size(path: &Path) -> Finding {
    const CHECK: &str = "wal-size";
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let bytes = std::fs::metadata(PathBuf::from(log)).map_or(0, |found| found.len());
    let found = format!("the write-ahead log has {}", size(bytes));
    match bytes > WAL_BYTES_MAX {
        false => Finding::ok(CHECK, found),
        true => {
            let found =
                format!("{found}: a reader that stays open keeps it from being carried over");
            Finding::warn(CHECK, found).with(Fix::sql("PRAGMA wal_checkpoint(TRUNCATE)"))
        }
    }
}
