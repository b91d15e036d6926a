//! Migrating over a rusqlite connection.

use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};

use super::{MIGRATIONS, ledger, step};
use crate::schema::postgres::Layout;
use crate::schema::{Applied, MIGRATIONS_TABLE, Migration, SchemaError, Status, TableName};
use crate::timestamp;

/// How often the change to write-ahead logging is tried while others use the database.
const WAL_ATTEMPTS_MAX: u32 = 10;

/// Brings the tables of an outbox up to date and gives back what was applied, in order.
///
/// All migrations are one transaction, so several processes may do this at once: one of them
/// migrates, the others wait for as long as their busy timeout and then find nothing to do.
/// Turns write-ahead logging on, so that readers and the writer do not block each other.
///
/// # Errors
///
/// Refuses a database that a later version of postrider migrated.
pub fn migrate(
    conn: &mut Connection,
    outbox: &TableName,
) -> Result<Vec<&'static Migration>, SchemaError> {
    let needed = !pending(conn, outbox)?.is_empty();
    use_write_ahead_log(conn)?;
    if !needed {
        return Ok(Vec::new());
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated since, so only what is seen under the lock counts.
    let pending = pending(&tx, outbox)?;
    tx.execute_batch(&ledger())?;
    for migration in &pending {
        tx.execute_batch(&step(migration, outbox)).map_err(|source| SchemaError::Migration {
            table: outbox.clone(),
            version: migration.version,
            source: without_sql(source).into(),
        })?;
    }
    tx.commit()?;
    Ok(pending)
}

/// The migrations that the tables of an outbox still lack, in order. Changes nothing.
///
/// # Errors
///
/// Refuses a database that a later version of postrider migrated.
pub fn pending(
    conn: &Connection,
    outbox: &TableName,
) -> Result<Vec<&'static Migration>, SchemaError> {
    let found = version(conn, outbox)?;
    let known = MIGRATIONS.last().map_or(0, |migration| migration.version);
    if found > known {
        return Err(SchemaError::Newer { table: outbox.clone(), found, known });
    }
    Ok(MIGRATIONS.iter().filter(|migration| migration.version > found).collect())
}

/// What was migrated, and when. Changes nothing.
///
/// # Errors
///
/// Refuses a database that a later version of postrider migrated.
pub fn status(conn: &Connection, outbox: &TableName) -> Result<Status, SchemaError> {
    let pending = pending(conn, outbox)?;
    let mut applied = Vec::new();
    if pending.len() < MIGRATIONS.len() {
        let sql = format!(
            "SELECT version, name, applied_at FROM {MIGRATIONS_TABLE} WHERE outbox = ?1 ORDER BY version"
        );
        let mut statement = conn.prepare(&sql)?;
        let mut rows = statement.query(params![outbox.as_str()])?;
        while let Some(row) = rows.next()? {
            let applied_at = timestamp::from_text(&row.get::<_, String>(2)?)
                .map_err(|source| SchemaError::Database { source: source.into() })?;
            applied.push(Applied { version: row.get(0)?, name: row.get(1)?, applied_at });
        }
    }
    let layout = (!applied.is_empty()).then_some(Layout::Plain);
    Ok(Status { layout, applied, pending })
}

fn version(conn: &Connection, outbox: &TableName) -> Result<u32, rusqlite::Error> {
    // Not `Connection::table_exists`: it looks at the schema as this connection last saw it.
    let exists = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)";
    if !conn.query_one(exists, params![MIGRATIONS_TABLE], |row| row.get(0))? {
        return Ok(0);
    }
    let sql = format!("SELECT coalesce(max(version), 0) FROM {MIGRATIONS_TABLE} WHERE outbox = ?1");
    conn.query_one(&sql, params![outbox.as_str()], |row| row.get(0))
}

/// The change needs the database for itself and does not wait for it by the busy timeout, so
/// after a refusal this waits its turn with an empty write transaction.
fn use_write_ahead_log(conn: &Connection) -> Result<(), rusqlite::Error> {
    for _ in 1..WAL_ATTEMPTS_MAX {
        match try_write_ahead_log(conn) {
            Err(err) if err.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                conn.execute_batch("BEGIN IMMEDIATE; ROLLBACK")?;
            }
            settled => return settled,
        }
    }
    try_write_ahead_log(conn)
}

fn try_write_ahead_log(conn: &Connection) -> Result<(), rusqlite::Error> {
    // The answer is the mode in force; a database in memory stays in its own.
    conn.query_one("PRAGMA journal_mode = WAL", [], |_| Ok(()))
}

/// The error without the statement, which is a whole migration here.
fn without_sql(err: rusqlite::Error) -> rusqlite::Error {
    match err {
        rusqlite::Error::SqlInputError { error, msg, .. } => {
            rusqlite::Error::SqliteFailure(error, Some(msg))
        }
        other => other,
    }
}

impl From<rusqlite::Error> for SchemaError {
    fn from(source: rusqlite::Error) -> Self {
        SchemaError::Database { source: without_sql(source).into() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn names(conn: &Connection) -> Vec<String> {
        let sql = "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY name";
        let mut statement = conn.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn migrating_is_idempotent() {
        let mut conn = Connection::open_in_memory().unwrap();
        let outbox = TableName::default();
        assert_eq!(pending(&conn, &outbox).unwrap().len(), MIGRATIONS.len());
        assert!(names(&conn).is_empty(), "looking changes nothing");
        assert_eq!(migrate(&mut conn, &outbox).unwrap().len(), MIGRATIONS.len());
        assert!(migrate(&mut conn, &outbox).unwrap().is_empty());
        let status = status(&conn, &outbox).unwrap();
        assert!(status.pending.is_empty());
        assert_eq!(status.layout, Some(Layout::Plain));
        assert_eq!(status.applied.len(), MIGRATIONS.len());
        assert_eq!(status.applied[0].name, "outbox");
    }

    #[test]
    fn each_outbox_has_tables_of_its_own_and_all_share_the_inbox() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, &TableName::default()).unwrap();
        migrate(&mut conn, &TableName::new("it's \"mine\"").unwrap()).unwrap();
        let expected = [
            "inbox",
            "inbox_messages",
            "inbox_messages_dead",
            "inbox_messages_due",
            "inbox_messages_key",
            "inbox_processed_at",
            "inbox_versions",
            "it's \"mine\"",
            "it's \"mine\"_checkpoints",
            "it's \"mine\"_failures",
            "it's \"mine\"_failures_due",
            "it's \"mine\"_failures_id",
            "it's \"mine\"_failures_key",
            "it's \"mine\"_pauses",
            "it's \"mine\"_unpublished",
            "outbox",
            "outbox_checkpoints",
            "outbox_failures",
            "outbox_failures_due",
            "outbox_failures_id",
            "outbox_failures_key",
            "outbox_pauses",
            "outbox_unpublished",
            "postrider_migrations",
        ];
        assert_eq!(names(&conn), expected);
    }

    #[test]
    fn a_consumer_has_a_name() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, &TableName::default()).unwrap();
        for (consumer, is_taken) in [("'billing'", true), ("''", false), ("NULL", false)] {
            for row in [
                format!("inbox (consumer, event_id) VALUES ({consumer}, 'x')"),
                format!("inbox_versions VALUES ({consumer}, 'Order', '42', 1)"),
            ] {
                let inserted = conn.execute(&format!("INSERT INTO {row}"), []);
                assert_eq!(inserted.is_ok(), is_taken, "{row}");
            }
        }
    }

    #[test]
    fn the_printed_script_leaves_nothing_pending() {
        let conn = Connection::open_in_memory().unwrap();
        let outbox = TableName::new("it's mine").unwrap();
        conn.execute_batch(&super::super::sql(&outbox)).unwrap();
        assert!(pending(&conn, &outbox).unwrap().is_empty());
    }

    #[test]
    fn a_newer_schema_is_refused() {
        let mut conn = Connection::open_in_memory().unwrap();
        let outbox = TableName::default();
        migrate(&mut conn, &outbox).unwrap();
        conn.execute("INSERT INTO postrider_migrations VALUES ('outbox', 99, 'x', '')", [])
            .unwrap();
        let message = migrate(&mut conn, &outbox).unwrap_err().to_string();
        assert_eq!(
            message,
            "the schema of outbox is at version 99 and this build knows up to 3; upgrade postrider"
        );
    }

    #[test]
    fn a_foreign_table_of_that_name_is_left_alone() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE outbox (x)").unwrap();
        let error = migrate(&mut conn, &TableName::default()).unwrap_err();
        assert_eq!(error.to_string(), "migration 1 of outbox failed; nothing was changed");
        assert_eq!(names(&conn), ["outbox"]);
    }

    #[test]
    fn several_may_migrate_at_once() {
        const MIGRATORS: usize = 4;
        for _ in 0..10 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("app.db");
            let start = Barrier::new(MIGRATORS);
            let applied: usize = std::thread::scope(|scope| {
                let migrators: Vec<_> = (0..MIGRATORS)
                    .map(|_| {
                        scope.spawn(|| {
                            let mut conn = Connection::open(&path).unwrap();
                            start.wait();
                            migrate(&mut conn, &TableName::default()).unwrap().len()
                        })
                    })
                    .collect();
                migrators.into_iter().map(|migrator| migrator.join().unwrap()).sum()
            });
            assert_eq!(applied, MIGRATIONS.len());
            let mode: String = Connection::open(&path)
                .unwrap()
                .query_one("PRAGMA journal_mode", [], |row| row.get(0))
                .unwrap();
            assert_eq!(mode, "wal");
        }
    }
}
