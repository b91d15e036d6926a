//! The tables of an audit, as the catalog has them, and what stands in its way.

use std::collections::HashMap;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::facts::Facts;
use super::publications::Existing;
use crate::audit::{NamedTable, Operation, Operations, Watch, WatchedTable};
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::connection::Connection;
use crate::sources::postgres::error::Trouble;
use crate::sources::postgres::queries::audit::{TABLE_NAMES, WATCHED_TABLE};
use crate::suggestion::nearest;

/// What the server is told to publish of a table whose rows cannot be told apart.
pub(super) const INSERTS: [Operation; 2] = [Operation::Insert, Operation::Truncate];

/// What is watched, and how it is published.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) outbox: Table,
    pub(super) tables: Vec<Table>,
    pub(super) watched: Vec<WatchedTable>,
    pub(super) notes: Vec<String>,
}

/// A relation, and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) oid: u32,
    /// Schema and name, quoted.
    pub(super) quoted: String,
    pub(super) kind: String,
    is_of_system: bool,
    pub(super) may_publish: bool,
    pub(super) owner: String,
    /// It and all that inherit from it.
    pub(super) tree: Vec<u32>,
    /// One of these that is not in the log.
    unlogged: Option<String>,
    /// One of these whose rows cannot be told apart.
    pub(super) unidentified: Option<String>,
}

/// Whose relation it is, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Outbox,
    /// The place in the list of tables.
    Table(usize),
}

/// Something that stands in the way, and what would mend it.
pub(super) struct Refusal {
    what: String,
    fix: String,
}

impl Refusal {
    pub(super) fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into() }
    }
}

/// All that stands in the way, at once.
fn refuse(refusals: &[Refusal]) -> Result<(), SourceError> {
    if refusals.is_empty() {
        return Ok(());
    }
    let join = |part: fn(&Refusal) -> &str| {
        let parts: Vec<&str> = refusals.iter().map(part).collect();
        parts.join("; ")
    };
    Err(SourceError::new(SourceErrorKind::Misconfigured, join(|it| &it.what))
        .with_hint(join(|it| &it.fix)))
}

impl Plan {
    /// Finds the tables and whatever stands in the way.
    pub(super) async fn make(
        connection: &Connection,
        outbox: &str,
        watch: &Watch,
    ) -> Result<Self, Trouble> {
        let facts = Facts::read(connection).await?;
        let mut refusals = facts.refusals();
        let outbox = find(connection, "", outbox).await?.ok_or_else(|| {
            let message = format!("the outbox {outbox} is gone");
            SourceError::new(SourceErrorKind::Misconfigured, message)
        })?;
        let mut tables: Vec<Table> = Vec::new();
        for named in &watch.tables {
            let schema = named.schema.as_deref().unwrap_or_default();
            match find(connection, schema, &named.name).await? {
                Some(table) => {
                    refusals.extend(table.refusal(&outbox, &tables));
                    tables.push(table);
                }
                None => refusals.push(not_found(connection, named).await?),
            }
        }
        // What follows is about tables that are all there.
        refuse(&refusals)?;
        let needs = || watch.tables.iter().map(|named| named.needs_event);
        let seen: Vec<Operations> = match watch.publications.as_slice() {
            [] => {
                refusals.extend(facts.publishing_refusal(&outbox, &tables));
                refusals.extend(tables.iter().zip(needs()).filter_map(unidentified_refusal));
                tables.iter().map(Table::published).collect()
            }
            names => {
                let existing = Existing::read(connection, names).await?;
                refusals.extend(existing.refusals(&outbox, &tables, needs()));
                tables.iter().map(|table| existing.operations_of(table)).collect()
            }
        };
        refuse(&refusals)?;
        let notes = tables.iter().zip(seen).filter_map(|(table, seen)| unseen(table, seen));
        let notes = notes.collect();
        let watched = tables
            .iter()
            .zip(needs())
            .map(|(table, needs_event)| WatchedTable { name: table.quoted.clone(), needs_event });
        Ok(Self { watched: watched.collect(), outbox, tables, notes })
    }

    /// Which relation is whose.
    pub(super) fn places(&self) -> HashMap<u32, Place> {
        let tables = self.tables.iter().enumerate();
        let mut places: HashMap<u32, Place> = tables
            .flat_map(|(index, table)| {
                table.tree.iter().map(move |oid| (*oid, Place::Table(index)))
            })
            .collect();
        places.extend(self.outbox.tree.iter().map(|oid| (*oid, Place::Outbox)));
        places
    }
}

async fn find(connection: &Connection, schema: &str, name: &str) -> Result<Option<Table>, Trouble> {
    let rows =
        connection.query(WATCHED_TABLE, &[(&schema, Type::TEXT), (&name, Type::TEXT)]).await?;
    Ok(rows.first().map(Table::read).transpose()?)
}

impl Table {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            oid: row.try_get(0)?,
            quoted: row.try_get(1)?,
            kind: row.try_get(2)?,
            is_of_system: row.try_get(3)?,
            may_publish: row.try_get(4)?,
            owner: row.try_get(5)?,
            tree: row.try_get(6)?,
            unlogged: row.try_get(7)?,
            unidentified: row.try_get(8)?,
        })
    }

    /// What a publication of ours has of it.
    pub(super) fn published(&self) -> Operations {
        match self.unidentified {
            Some(_) => INSERTS.into_iter().collect(),
            None => Operations::ALL,
        }
    }

    /// Why it cannot be watched, beside those that were named before.
    fn refusal(&self, outbox: &Self, before: &[Self]) -> Option<Refusal> {
        let name = &self.quoted;
        let what = match self.kind.as_str() {
            "p" | "r" => None,
            "f" => Some("a foreign table, and its changes are in another server's log"),
            "m" | "v" => Some("a view, and only tables are in the log"),
            _ => Some("not a table"),
        };
        if let Some(what) = what {
            return Some(Refusal::new(format!("{name} is {what}"), "name tables alone"));
        }
        if self.is_of_system {
            return Some(Refusal::new(
                format!("{name} is the server's own, and not in the log"),
                "name tables of yours",
            ));
        }
        if let Some(unlogged) = &self.unlogged {
            return Some(Refusal::new(
                format!("{unlogged} is unlogged or temporary, and its changes are in no log"),
                format!("run ALTER TABLE {unlogged} SET LOGGED, or leave it out"),
            ));
        }
        if outbox.tree.contains(&self.oid) {
            return Some(Refusal::new(
                format!("{name} is the outbox itself, whose rows are the events"),
                "name the tables of your business",
            ));
        }
        let is_part = |it: &&Self| it.tree.contains(&self.oid) || self.tree.contains(&it.oid);
        let other = before.iter().find(is_part)?;
        if other.oid == self.oid {
            return Some(Refusal::new(format!("{name} is named twice"), "name it once"));
        }
        let what = format!("of {name} and {}, one is a part of the other", other.quoted);
        Some(Refusal::new(what, "name the whole, or its parts"))
    }
}

/// While such a table is published with its updates, the server refuses them to everybody.
fn unidentified_refusal((table, needs): (&Table, Operations)) -> Option<Refusal> {
    let unidentified = table.unidentified.as_ref()?;
    let changes: Operations = [Operation::Update, Operation::Delete].into_iter().collect();
    if needs.without(changes) == needs {
        return None;
    }
    Some(Refusal::new(
        format!(
            "the rows of {unidentified} have no identity for the log (no primary key that serves), \
             and the server would refuse all updates and deletes while they are published"
        ),
        format!(
            "add a primary key; or run ALTER TABLE {unidentified} REPLICA IDENTITY FULL; or watch \
             its inserts alone: --tables {}:insert",
            table.quoted
        ),
    ))
}

/// What is not seen of a table, because it is not published.
fn unseen(table: &Table, seen: Operations) -> Option<String> {
    let unseen = Operations::ALL.without(seen);
    if unseen.is_empty() {
        return None;
    }
    let names: Vec<&str> = unseen.iter().map(Operation::as_str).collect();
    Some(format!(
        "of {} no {} is seen, which is not published: an event beside such a change seems to be alone",
        table.quoted,
        names.join(" and no ")
    ))
}

async fn not_found(connection: &Connection, named: &NamedTable) -> Result<Refusal, Trouble> {
    let name = match &named.schema {
        Some(schema) => format!("{schema}.{}", named.name),
        None => named.name.clone(),
    };
    let mut known = Vec::new();
    for row in connection.query(TABLE_NAMES, &[]).await? {
        let (schema, table): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        known.push((schema, table));
    }
    let what = format!("{} has no table {name}", connection.location());
    // In another schema, or nearly.
    let elsewhere = known.iter().find(|(_, table)| *table == named.name);
    let near = || {
        let near = nearest(&named.name, known.iter().map(|(_, table)| table.as_str()))?;
        known.iter().find(|(_, table)| table == near)
    };
    Ok(match elsewhere.or_else(near) {
        Some((schema, table)) => Refusal::new(what, format!("did you mean {schema}.{table}?")),
        None => Refusal::new(what, "name tables as the database has them, such as public.orders"),
    })
}
