//! The outbox table as the database has it: which columns, of which types.
//!
//! The table may be one of somebody else's making, with other names and types. What it cannot
//! support is said when it is read (`catalog`), all of it at once and with the fix; from then on
//! a column is an expression, whatever it is called and made of.

mod catalog;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use postrider::schema::TableName;
use tokio_postgres::types::Type;

use super::row::ID_BYTES_MAX;
use crate::source::{NotPermitted, SourceError, SourceErrorKind};
use crate::sources::Progress;

pub(super) use self::catalog::read;

/// A column of an outbox table.
#[derive(Clone, Debug)]
struct Column {
    /// Its name, quoted.
    name: String,
    /// Its type, without domains; `UNKNOWN` for one that is not built in.
    ty: Type,
    /// There is an index that begins with it: on all rows, on unpublished ones.
    index: bool,
    unpublished_index: bool,
}

/// An outbox table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Schema and name, quoted.
    quoted: String,
    /// By our names.
    columns: BTreeMap<&'static str, Column>,
    /// Its names for our columns, where they are others.
    mapping: BTreeMap<String, String>,
    /// Who reads it.
    role: String,
    may_mark: bool,
    may_delete: bool,
}

/// Our names, what may be in them, and what stands for a column that a table does not have.
const COLUMNS: [(&str, Holds, Option<&str>); 15] = [
    ("aggregate_id", Holds::Name, None),
    ("aggregate_type", Holds::Name, None),
    ("content_type", Holds::Name, Some("'application/json'::text")),
    ("created_at", Holds::Time, Some("NULL::timestamptz")),
    ("deliver_after", Holds::Time, Some("NULL::timestamptz")),
    ("event_type", Holds::Name, None),
    ("event_version", Holds::Integer, Some("1")),
    ("headers", Holds::Json, Some("'{}'::text")),
    ("id", Holds::Id, None),
    // The same whenever it is read, so that an event is the same whenever it is published.
    ("occurred_at", Holds::Time, Some("'1970-01-01T00:00:00Z'::timestamptz")),
    ("payload", Holds::Payload, None),
    ("published_at", Holds::Time, Some("NULL::timestamptz")),
    ("seq", Holds::Integer, None),
    ("topic", Holds::Name, Some("NULL::text")),
    ("xid", Holds::Transaction, Some("NULL::xid8")),
];

/// What may be in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Id,
    Integer,
    Json,
    Name,
    Payload,
    Time,
    Transaction,
}

impl Table {
    /// Refuses a way of progress that the table cannot support, or that this role may not use.
    pub(super) fn refuse_unsuitable(
        &self,
        table: &TableName,
        progress: Progress,
    ) -> Result<(), SourceError> {
        let (quoted, role) = (&self.quoted, &self.role);
        let missing = match progress {
            Progress::Cursor => {
                Some(("xid", "mark or delete", "xid8 NOT NULL DEFAULT pg_current_xact_id()"))
            }
            Progress::Mark => Some(("published_at", "delete", "timestamptz")),
            Progress::Delete => None,
        };
        if let Some((needed, instead, definition)) =
            missing.filter(|(needed, ..)| !self.has(needed))
        {
            let message =
                format!("progress {progress} needs a column {needed}, and {table} has none");
            return Err(misconfigured(message).with_hint(format!(
                "add it (ALTER TABLE {quoted} ADD COLUMN {needed} {definition}), name it in \
                 [source.columns], or keep progress by {instead}"
            )));
        }
        let right = match progress {
            Progress::Mark if !self.may_mark => {
                format!("UPDATE ({})", self.name("published_at"))
            }
            Progress::Delete if !self.may_delete => "DELETE".to_owned(),
            Progress::Cursor | Progress::Delete | Progress::Mark => return Ok(()),
        };
        let message = format!("progress {progress} needs the right to {right} on {table}");
        Err(not_permitted(message).with_hint(format!("run GRANT {right} ON {quoted} TO {role}")))
    }

    /// Statements that make the indexes without which each look goes through the whole table.
    pub(super) fn missing_indexes(&self, progress: Progress) -> Vec<String> {
        let quoted = &self.quoted;
        let mut missing = Vec::new();
        let column = |name: &str| self.columns.get(name);
        if let Some(xid) = column("xid").filter(|xid| !xid.index) {
            missing.push(format!("CREATE INDEX ON {quoted} ({})", xid.name));
        }
        let published = column("published_at").filter(|_| progress != Progress::Delete);
        match (column("seq"), published) {
            (Some(seq), Some(published)) if !seq.unpublished_index => missing.push(format!(
                "CREATE INDEX ON {quoted} ({}) WHERE {} IS NULL",
                seq.name, published.name
            )),
            (Some(seq), None) if !seq.index && !seq.unpublished_index => {
                missing.push(format!("CREATE INDEX ON {quoted} ({})", seq.name));
            }
            _ => {}
        }
        missing
    }

    /// If events have something else than a UUID: what makes it unique.
    pub(super) fn derives_ids(&self) -> Option<String> {
        (self.ty("id") != Some(&Type::UUID)).then(|| self.quoted.clone())
    }

    /// Schema and name, quoted.
    pub(super) fn quoted(&self) -> &str {
        &self.quoted
    }

    /// Whether the table has a column, by our name.
    pub(super) fn has(&self, column: &str) -> bool {
        self.columns.contains_key(column)
    }

    /// Whether there is an index on all rows that begins with a column.
    pub(super) fn is_indexed(&self, column: &str) -> bool {
        self.columns.get(column).is_some_and(|column| column.index)
    }

    /// The type of a column that the table has, as [`select`](Self::select) answers it.
    pub(super) fn ty(&self, column: &str) -> Option<&Type> {
        self.columns.get(column).map(|column| &column.ty)
    }

    /// The name of a column that the table has, quoted.
    pub(super) fn name(&self, column: &str) -> &str {
        self.columns.get(column).map_or("NULL", |column| &column.name)
    }

    /// Its name for a column of ours, whether it has that or not.
    pub(super) fn theirs<'t>(&'t self, column: &'t str) -> &'t str {
        self.mapping.get(column).map_or(column, String::as_str)
    }

    /// A column of the row `alias`, or what stands for it.
    pub(super) fn select(&self, alias: &str, column: &str) -> String {
        match self.columns.get(column) {
            // To know a type that is not built in, the client would have to ask for it with
            // statements that have names.
            Some(Column { name, ty: Type::UNKNOWN, .. }) => format!("{alias}.{name}::text"),
            Some(Column { name, .. }) => format!("{alias}.{name}"),
            None => {
                let known = COLUMNS.iter().find(|(name, ..)| *name == column);
                known.and_then(|(.., instead)| *instead).unwrap_or("NULL").to_owned()
            }
        }
    }

    /// The same as text.
    pub(super) fn text(&self, alias: &str, column: &str) -> String {
        let selected = self.select(alias, column);
        match self.ty(column) {
            None | Some(&Type::TEXT | &Type::UNKNOWN) => selected,
            Some(_) => format!("{selected}::text"),
        }
    }

    /// The same as a time. One without a zone is taken for UTC.
    pub(super) fn time(&self, alias: &str, column: &str) -> String {
        let selected = self.select(alias, column);
        match self.ty(column) {
            Some(&Type::TIMESTAMP) => format!("({selected} AT TIME ZONE 'UTC')"),
            _ => selected,
        }
    }

    /// The time of now, for a column of times.
    pub(super) fn now(&self, column: &str) -> &'static str {
        match self.ty(column) {
            // By itself it would be the time of the session's zone.
            Some(&Type::TIMESTAMP) => "clock_timestamp() AT TIME ZONE 'UTC'",
            _ => "clock_timestamp()",
        }
    }

    /// How many bytes a column has, without loading more than needed to tell.
    pub(super) fn length(&self, alias: &str, column: &str) -> String {
        let selected = self.select(alias, column);
        match self.ty(column) {
            Some(&Type::BYTEA | &Type::TEXT) | None => format!("octet_length({selected})"),
            // What is small as it is stored is not compressed, and small as text too.
            Some(&Type::JSONB) => format!(
                "CASE WHEN pg_column_size({selected}) < 1900 THEN 0
                 ELSE octet_length({selected}::text) END"
            ),
            Some(_) => format!("octet_length({selected}::text)"),
        }
    }

    /// The id as `<table>_failures` has it: none if it is longer than an id may be.
    pub(super) fn copy_id(&self, alias: &str) -> String {
        let copy = self.copy(alias, "id");
        match self.has_short_ids() {
            true => copy,
            false => format!("CASE WHEN octet_length({copy}) <= {ID_BYTES_MAX} THEN {copy} END"),
        }
    }

    /// The id as it is read: of one that is too long, as much as tells that it is.
    pub(super) fn select_id(&self, alias: &str) -> String {
        let selected = self.select(alias, "id");
        match self.ty("id") {
            // What fills it up is part of what an id is derived from.
            Some(&Type::BPCHAR) => selected,
            _ if self.has_short_ids() => selected,
            _ => format!("left({selected}, {})", ID_BYTES_MAX + 1),
        }
    }

    fn has_short_ids(&self) -> bool {
        matches!(self.ty("id"), Some(&Type::UUID | &Type::INT2 | &Type::INT4 | &Type::INT8))
    }

    /// A column as `<table>_failures` has it.
    pub(super) fn copy(&self, alias: &str, column: &str) -> String {
        let selected = self.select(alias, column);
        match (column, self.ty(column)) {
            ("seq" | "event_version", _) => format!("{selected}::bigint"),
            ("payload", Some(&Type::BYTEA)) => selected,
            ("payload", _) => format!("convert_to({selected}::text, 'UTF8')"),
            ("occurred_at" | "created_at" | "deliver_after", _) => self.time(alias, column),
            _ => self.text(alias, column),
        }
    }
}

/// The role lacks a right.
fn not_permitted(message: String) -> SourceError {
    misconfigured(message.clone()).with_source(NotPermitted(message))
}

fn misconfigured(message: impl Into<String>) -> SourceError {
    SourceError::new(SourceErrorKind::Misconfigured, message)
}
