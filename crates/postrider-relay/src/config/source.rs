//! Reads `[source]` and the section below it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::section::{Given, Section};
use super::{SourceConfig, TableName};
use crate::secret::SecretUrl;
use crate::sources::SourceSpec;

/// The columns of an outbox that another table may have under other names.
const COLUMNS: [&str; 15] = [
    "aggregate_id",
    "aggregate_type",
    "content_type",
    "created_at",
    "deliver_after",
    "event_type",
    "event_version",
    "headers",
    "id",
    "occurred_at",
    "payload",
    "published_at",
    "seq",
    "topic",
    "xid",
];
/// Longest name of a column, in bytes, as in PostgreSQL.
const COLUMN_BYTES_MAX: usize = 63;
/// What a hint's address looks like.
const HINT_EXAMPLE: &str = "127.0.0.1:8788";

/// Reads the section of the source.
pub(super) fn read(root: &Section<'_>) -> Option<SourceConfig> {
    let example = "sqlite:///var/lib/app/app.db";
    let Some(section) = root.section("source", "[source]".into()) else {
        if !root.has("source") {
            let fix = format!("add [source] with url = \"{example}\"");
            root.report.add(&root.origin, "there is no [source]", fix);
        }
        return None;
    };
    let url = section.required_string("url", example);
    let table = match section.string("table") {
        None => Some(TableName::default()),
        Some(table) => TableName::new(&table.value.value)
            .map_err(|error| {
                let what = format!("`table` is not a table name: {error}");
                section.report.add(&table.origin, what, "write, for example, table = \"outbox\"");
            })
            .ok(),
    };
    let hint = read_hint(&section);
    let columns = read_columns(&section);
    let columns_at = section.origin_of("columns");
    section.finish();
    let url = url?;
    for problem in SourceSpec::new(&url.value.value).problems() {
        let (what, fix) = problem.split_once("; ").unwrap_or((&problem, "correct `url`"));
        root.report.add(&url.origin, what, fix);
    }
    let url = SecretUrl::from_reference(url.value.value, &url.value.written);
    let source = SourceConfig { url, table: table?, columns, hint };
    if source.is_sqlite() && !source.columns.is_empty() {
        let what = "[source.columns] is not available for sqlite: the table has to be our own";
        root.report.add(&columns_at, what, "remove the section");
    }
    Some(source)
}

/// Where the relay listens for hints.
fn read_hint(section: &Section<'_>) -> Option<SocketAddr> {
    let Given { value: text, origin } = section.string("hint")?;
    // Nobody could send to a port that is chosen anew at every start.
    let address = text.value.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    if address.is_none() {
        let what = format!("`hint` cannot be \"{}\"", text.written);
        let fix = format!("write an IP address of this host and a port: hint = \"{HINT_EXAMPLE}\"");
        section.report.add(&origin, what, fix);
    }
    address
}

/// The names that a table which is not of our making has for our columns.
fn read_columns(section: &Section<'_>) -> BTreeMap<String, String> {
    let mut columns = BTreeMap::new();
    let Some(inner) = section.section("columns", "[source.columns]".into()) else {
        return columns;
    };
    for ours in COLUMNS {
        let Some(Given { value: theirs, origin }) = inner.string(ours) else { continue };
        if theirs.value.is_empty() || theirs.value.len() > COLUMN_BYTES_MAX {
            let what = format!("`{ours}` is not the name of a column");
            let fix = format!("write the name in your table, of 1 to {COLUMN_BYTES_MAX} bytes");
            inner.report.add(&origin, what, fix);
        } else {
            columns.insert(ours.to_owned(), theirs.value);
        }
    }
    inner.finish();
    columns
}
