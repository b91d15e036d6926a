//! The tables: their names, and the migrations that make them.
//!
//! An outbox is one table with side tables named after it (`outbox_failures`,
//! `outbox_checkpoints`, `outbox_pauses` and, in PostgreSQL, `outbox_leases`, `outbox_claims` and
//! `outbox_messages`). All outboxes share the inbox: `inbox`, `inbox_versions` and
//! `inbox_messages`. Each change of them is a numbered [`Migration`]; which of them a database
//! has is written down in its table `postrider_migrations`.

#[cfg(any(feature = "rusqlite", feature = "tokio-postgres"))]
mod comparison;
mod drift;
pub mod postgres;
pub mod sqlite;

use std::error::Error as StdError;
use std::fmt;
use std::time::SystemTime;

pub use drift::{Difference, Drift};

use postgres::Layout;

/// Longest name of an outbox table, in bytes. With the longest suffix of a side table or index
/// it still fits into the 63 bytes that PostgreSQL has for a name.
pub const TABLE_NAME_BYTES_MAX: usize = 40;

/// The table that says which migrations a database has.
pub const MIGRATIONS_TABLE: &str = "postrider_migrations";

/// The table of the inbox; one serves all outboxes of a database.
pub const INBOX_TABLE: &str = "inbox";

/// The table of the inbox's watermarks.
pub const INBOX_VERSIONS_TABLE: &str = "inbox_versions";

/// The table of the events that consumers keep.
pub const INBOX_MESSAGES_TABLE: &str = "inbox_messages";

/// The name of an outbox table, or of one of its side tables. Defaults to `outbox`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName(String);

impl TableName {
    /// Checks the name of an outbox table. It may have any characters that a quoted name may
    /// have, but no schema before it.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidTableName> {
        let name = name.into();
        let reserved = [MIGRATIONS_TABLE, INBOX_TABLE, INBOX_VERSIONS_TABLE, INBOX_MESSAGES_TABLE];
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

    /// The side table of what an operator has stopped.
    pub fn pauses(&self) -> TableName {
        self.with_suffix("_pauses")
    }

    /// The side table of who reads the outbox.
    pub fn leases(&self) -> TableName {
        self.with_suffix("_leases")
    }

    /// The side table of rows that a relay has claimed.
    pub fn claims(&self) -> TableName {
        self.with_suffix("_claims")
    }

    /// The side table that says whether there are events that only the log has.
    pub fn messages(&self) -> TableName {
        self.with_suffix("_messages")
    }

    /// The function that answers whether events are there.
    #[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
    pub(crate) fn written(&self) -> TableName {
        self.with_suffix("_written")
    }

    /// The function that writes an event to the log alone.
    #[cfg(any(feature = "diesel-async", feature = "sqlx-postgres", feature = "tokio-postgres"))]
    pub(crate) fn publish_message(&self) -> TableName {
        self.with_suffix("_publish_message")
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
    /// The SQL, with placeholders as [`with_names`] fills them in.
    sql: &'static str,
}

/// How the tables of an outbox stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// How the outbox table is laid out; `None` before the first migration.
    pub layout: Option<Layout>,
    /// The migrations that were applied, in order.
    pub applied: Vec<Applied>,
    /// The migrations that are lacking, in order.
    pub pending: Vec<&'static Migration>,
}

/// A migration that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its number.
    pub version: u32,
    /// What it was about.
    pub name: String,
    /// When, by the database's clock.
    pub applied_at: SystemTime,
}

/// Fills the names of an outbox's tables into SQL: for `{outbox_x}` the name with the suffix
/// `_x`, quoted; for `{'outbox_x'}` the same as a text.
fn with_names(template: &str, outbox: &TableName) -> String {
    let mut sql = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        sql.push_str(before);
        let closed =
            after.split_once('}').and_then(|(name, after)| Some((filled(name, outbox)?, after)));
        if let Some((name, after)) = closed {
            sql.push_str(&name);
            rest = after;
        } else {
            sql.push('{');
            rest = after;
        }
    }
    sql.push_str(rest);
    sql
}

/// What stands for a placeholder, if it is one.
fn filled(placeholder: &str, outbox: &TableName) -> Option<String> {
    let text = placeholder.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    let suffix = text.unwrap_or(placeholder).strip_prefix("outbox")?;
    let name = outbox.with_suffix(suffix);
    Some(if text.is_some() { postgres_literal(name.as_str()) } else { name.quoted() })
}

/// A text as SQL has it.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A text as PostgreSQL has it, whatever `standard_conforming_strings` is: where that is off, a
/// backslash escapes what follows it, also in a string without an `E`.
fn postgres_literal(text: &str) -> String {
    match text.contains('\\') {
        true => format!("E{}", literal(&text.replace('\\', r"\\"))),
        false => literal(text),
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
    /// The outbox has another layout than the one that was asked for.
    #[error(
        "{table} is {found} and cannot be made {wanted}; leave the layout out, or name another \
         table"
    )]
    Layout {
        /// The outbox table.
        table: TableName,
        /// The layout that it has.
        found: String,
        /// The layout that was asked for.
        wanted: String,
    },
    /// The table that is to be relayed as it is does not exist.
    #[error("there is no table {table}; name the one that has the events")]
    NoTable {
        /// The outbox table.
        table: TableName,
    },
    /// The table is not of our making, and stays as it is.
    #[error(
        "{table} was not made by migrations, which leave it as it is; make the trigger yourself"
    )]
    NotOurs {
        /// The outbox table.
        table: TableName,
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
            ("inbox_Versions", "taken by another table"),
            ("inbox_messages", "taken by another table"),
        ];
        for (name, expected) in cases {
            let message = TableName::new(name).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} should contain {expected:?}");
        }
    }

    #[test]
    fn placeholders_take_the_suffix_into_the_quotes() {
        let table = TableName::new("a\"b'{outbox}").unwrap();
        let sql = with_names("A {outbox} B {outbox_x} C {'outbox_y'} '{}' {\"a\": {", &table);
        let expected = "A \"a\"\"b'{outbox}\" B \"a\"\"b'{outbox}_x\" \
                        C 'a\"b''{outbox}_y' '{}' {\"a\": {";
        assert_eq!(sql, expected);
    }
}
