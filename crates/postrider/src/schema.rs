//! The tables: their names, and the migrations that make them.
//!
//! An outbox is one table with side tables named after it (`outbox_failures`,
//! `outbox_checkpoints`). Each change of them is a numbered [`Migration`]; which of them a
//! database has is written down in its table `postrider_migrations`.

use std::error::Error as StdError;
use std::fmt;

pub mod sqlite;

/// Longest name of an outbox table, in bytes. With the longest suffix of a side table or index
/// it still fits into the 63 bytes that PostgreSQL has for a name.
pub const TABLE_NAME_BYTES_MAX: usize = 40;

/// The table that says which migrations a database has.
pub const MIGRATIONS_TABLE: &str = "postrider_migrations";

/// The table of the inbox; one serves all outboxes of a database.
pub const INBOX_TABLE: &str = "inbox";

/// The name of an outbox table, or of one of its side tables. Defaults to `outbox`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName(String);

impl TableName {
    /// Checks the name of an outbox table. It may have any characters that a quoted name may
    /// have, but no schema before it.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidTableName> {
        let name = name.into();
        let reserved = [MIGRATIONS_TABLE, INBOX_TABLE];
        let problem = if name.is_empty() {
            "is empty; give it a name"
        } else if name.len() > TABLE_NAME_BYTES_MAX {
            "has more than 40 bytes; shorten it"
        } else if name.contains(|c: char| c.is_control()) {
            "contains a control character; remove it"
        } else if name.contains('.') {
            "contains a dot; name the table without its schema"
        } else if reserved.iter().any(|taken| name.eq_ignore_ascii_case(taken)) {
            "is taken by another table of postrider; choose another"
        } else {
            return Ok(Self(name));
        };
        Err(InvalidTableName { name, problem })
    }

    /// The name as it was given, for messages; never for SQL.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as SQL has it. Every name from outside goes through here.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0.replace('"', "\"\""))
    }

    /// The side table of events that were set aside.
    pub fn failures(&self) -> TableName {
        self.with_suffix("_failures")
    }

    /// The side table of the pipelines' progress.
    pub fn checkpoints(&self) -> TableName {
        self.with_suffix("_checkpoints")
    }

    fn with_suffix(&self, suffix: &str) -> TableName {
        TableName(format!("{}{suffix}", self.0))
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self("outbox".to_owned())
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a table cannot have that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table name {name:?} {problem}")]
pub struct InvalidTableName {
    name: String,
    problem: &'static str,
}

/// One change of the tables. Once released it never changes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its number; they count from 1 without gaps.
    pub version: u32,
    /// What it is about.
    pub name: &'static str,
    /// The SQL. `{outbox_x}` stands in it for the table's name with the suffix `_x`, quoted.
    sql: &'static str,
}

impl Migration {
    /// The SQL for an outbox of that name.
    pub fn sql(&self, outbox: &TableName) -> String {
        const OPENING: &str = "{outbox";
        let mut sql = String::with_capacity(self.sql.len());
        let mut rest = self.sql;
        while let Some((before, after)) = rest.split_once(OPENING) {
            let (suffix, after) = after.split_once('}').expect("a migration closes its braces");
            sql.push_str(before);
            sql.push_str(&outbox.with_suffix(suffix).quoted());
            rest = after;
        }
        sql.push_str(rest);
        sql
    }
}

/// Why the tables could not be migrated. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The database was migrated by a later version of postrider.
    #[error(
        "the schema of {table} is at version {found} and this build knows up to {known}; \
         upgrade postrider"
    )]
    Newer {
        /// The outbox table.
        table: TableName,
        /// The version that the database has.
        found: u32,
        /// The latest version known here.
        known: u32,
    },
    /// A migration failed.
    #[error("migration {version} of {table} failed; nothing was changed")]
    Migration {
        /// The outbox table.
        table: TableName,
        /// The migration's number.
        version: u32,
        /// What the database said.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The database failed otherwise.
    #[error("the schema could not be read or changed")]
    Database {
        /// What the database said.
        source: Box<dyn StdError + Send + Sync>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_quoted() {
        assert_eq!(TableName::default().quoted(), "\"outbox\"");
        let odd = TableName::new("my \"out\"box; DROP").unwrap();
        assert_eq!(odd.quoted(), "\"my \"\"out\"\"box; DROP\"");
        assert_eq!(odd.failures().as_str(), "my \"out\"box; DROP_failures");
        assert_eq!(TableName::default().checkpoints().to_string(), "outbox_checkpoints");
    }

    #[test]
    fn impossible_names_are_refused() {
        let long = "x".repeat(TABLE_NAME_BYTES_MAX + 1);
        let cases = [
            ("", "is empty"),
            (long.as_str(), "more than 40 bytes"),
            ("a\0b", "control character"),
            ("app.outbox", "without its schema"),
            ("Inbox", "taken by another table"),
        ];
        for (name, expected) in cases {
            let message = TableName::new(name).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} should contain {expected:?}");
        }
    }

    #[test]
    fn placeholders_take_the_suffix_into_the_quotes() {
        let migration = Migration { version: 1, name: "x", sql: "A {outbox} B {outbox_x} '{}'" };
        let table = TableName::new("a\"b").unwrap();
        assert_eq!(migration.sql(&table), "A \"a\"\"b\" B \"a\"\"b_x\" '{}'");
    }
}
