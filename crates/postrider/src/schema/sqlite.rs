//! The tables in SQLite.

use super::{MIGRATIONS_TABLE, Migration, TableName, literal, with_names};

#[cfg(feature = "rusqlite")]
mod rusqlite;
#[cfg(feature = "rusqlite")]
mod verify;

#[cfg(feature = "rusqlite")]
pub use rusqlite::{migrate, pending, status};
#[cfg(feature = "rusqlite")]
pub use verify::verify;

/// All migrations, in order.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "outbox",
        sql: include_str!("../../migrations/sqlite/0001_outbox.sql"),
    },
    Migration {
        version: 2,
        name: "trouble",
        sql: include_str!("../../migrations/sqlite/0002_trouble.sql"),
    },
    Migration {
        version: 3,
        name: "matching",
        sql: include_str!("../../migrations/sqlite/0003_matching.sql"),
    },
];

/// All migrations as one script for an empty database, for those who migrate with a tool of
/// their own. It leaves a database that `postrider migrate` takes for its own.
pub fn sql(outbox: &TableName) -> String {
    let mut script = ledger();
    for migration in MIGRATIONS {
        script.push_str(&step(migration, outbox));
    }
    script
}

/// The statement that makes the table of applied migrations, unless it exists.
fn ledger() -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {MIGRATIONS_TABLE} (
    outbox     TEXT NOT NULL,
    version    INTEGER NOT NULL,
    name       TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (outbox, version)
);

"
    )
}

/// One migration and the row that says it was applied.
fn step(migration: &Migration, outbox: &TableName) -> String {
    let Migration { version, name, .. } = migration;
    format!(
        "{}
INSERT INTO {MIGRATIONS_TABLE} (outbox, version, name) VALUES ({}, {version}, '{name}');
",
        with_names(migration.sql, outbox),
        literal(outbox.as_str()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_count_from_one_without_gaps() {
        let versions: Vec<u32> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..=MIGRATIONS.len() as u32).collect::<Vec<_>>());
    }
}
