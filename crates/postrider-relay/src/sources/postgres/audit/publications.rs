//! What of the tables is in the log's stream: publications of the audit's own, or those that are
//! there already.
//!
//! Those of its own are two: the outbox is published with its inserts alone, because what relays do
//! to its rows is of no interest; and so is a table whose rows cannot be told apart, because the
//! server would refuse its updates to everybody. While an audit runs, its stream's session holds a
//! lock on the name they share. So whoever is killed leaves publications that nobody holds, and the
//! next audit removes them.

use tokio_postgres::types::Type;

use super::tables::{INSERTS, Refusal, Table};
use crate::audit::{Operation, Operations};
use crate::source::SourceError;
use crate::sources::postgres::connection::Connection;
use crate::sources::postgres::error::Trouble;
use crate::sources::postgres::queries::audit::{LEFT_BEHIND, PUBLISHED, drop_publication, publish};

/// Publications to be made, by name.
#[derive(Debug)]
pub(super) struct Publications(Vec<(String, String)>);

impl Publications {
    /// Those of an audit; `name` is the start of theirs.
    pub(super) fn new(name: &str, outbox: &Table, tables: &[Table]) -> Self {
        let (whole, inserts): (Vec<&Table>, Vec<&Table>) =
            tables.iter().partition(|table| table.unidentified.is_none());
        let statement = |name: String, tables: &[&Table], operations: &[Operation]| {
            let tables: Vec<&str> = tables.iter().map(|table| table.quoted.as_str()).collect();
            let operations: Vec<&str> = operations.iter().map(|it| it.as_str()).collect();
            let statement = publish(&name, &tables, &operations.join(", "));
            (name, statement)
        };
        let inserts = [inserts.as_slice(), &[outbox]].concat();
        let mut made = vec![statement(format!("{name}_inserts"), &inserts, &INSERTS)];
        if !whole.is_empty() {
            made.push(statement(name.to_owned(), &whole, &Operation::ALL));
        }
        Self(made)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }

    /// What makes them.
    pub(super) fn statements(&self) -> Vec<&str> {
        self.0.iter().map(|(_, statement)| statement.as_str()).collect()
    }

    /// Makes all of them, or none.
    pub(super) async fn make(&self, connection: &Connection) -> Result<(), Trouble> {
        let mut tx = connection.begin().await?;
        for (_, statement) in &self.0 {
            tx.batch(statement).await?;
        }
        tx.commit().await
    }

    /// Removes those that there are.
    pub(super) async fn remove(&self, connection: &Connection) -> Result<(), SourceError> {
        let names = self.names();
        let removed = async {
            let mut tx = connection.begin().await?;
            for name in &names {
                tx.batch(&drop_publication(name)).await?;
            }
            tx.commit().await
        };
        removed.await.map_err(|trouble: Trouble| {
            let cause = trouble.while_doing("drop a publication");
            let message = format!("the publications {} were left behind", names.join(" and "));
            SourceError::new(cause.kind, message).with_source(cause).with_hint(format!(
                "the next audit removes them, or run DROP PUBLICATION IF EXISTS {}",
                names.join(", ")
            ))
        })
    }
}

/// Removes the publications of audits that were killed. Answers those that this role may not
/// remove.
pub(super) async fn sweep(connection: &Connection) -> Result<Vec<String>, Trouble> {
    let mut tx = connection.begin().await?;
    let mut kept = Vec::new();
    for row in tx.query(LEFT_BEHIND, &[]).await? {
        let (name, may_drop): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
        match may_drop {
            true => tx.batch(&drop_publication(&name)).await?,
            false => kept.push(name),
        }
    }
    tx.commit().await?;
    Ok(kept)
}

/// Publications that are there already.
pub(super) struct Existing {
    names: Vec<String>,
    found: Vec<Published>,
}

/// What one of them has.
struct Published {
    name: String,
    operations: Operations,
    /// Tables of which it has all rows.
    tables: Vec<u32>,
    /// Those of which it has some rows.
    filtered: Vec<u32>,
}

impl Existing {
    pub(super) async fn read(connection: &Connection, names: &[String]) -> Result<Self, Trouble> {
        let mut found = Vec::new();
        for row in connection.query(PUBLISHED, &[(&names, Type::TEXT_ARRAY)]).await? {
            let mut operations = Vec::new();
            for (place, operation) in Operation::ALL.into_iter().enumerate() {
                if row.try_get(1 + place)? {
                    operations.push(operation);
                }
            }
            found.push(Published {
                name: row.try_get(0)?,
                operations: operations.into_iter().collect(),
                tables: row.try_get(5)?,
                filtered: row.try_get(6)?,
            });
        }
        Ok(Self { names: names.to_vec(), found })
    }

    /// What of a table is published.
    pub(super) fn operations_of(&self, table: &Table) -> Operations {
        // Of a whole in partitions changes come by its own name, or not at all.
        let parts: &[u32] = if table.kind == "p" { &[table.oid] } else { &table.tree };
        let has_all = |it: &&Published| parts.iter().all(|part| it.tables.contains(part));
        self.found.iter().filter(has_all).flat_map(|it| it.operations.iter()).collect()
    }

    /// What they lack.
    pub(super) fn refusals(
        &self,
        outbox: &Table,
        tables: &[Table],
        needs: impl Iterator<Item = Operations>,
    ) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for name in &self.names {
            if !self.found.iter().any(|it| it.name == *name) {
                let what = format!("there is no publication {name}");
                refusals
                    .push(Refusal::new(what, "list those there are: SELECT * FROM pg_publication"));
            }
        }
        let of_outbox = [Operation::Insert].into_iter().collect();
        let wanted = tables.iter().zip(needs).chain([(outbox, of_outbox)]);
        for (table, needed) in wanted {
            refusals.extend(self.refusal(table, needed));
        }
        refusals
    }

    fn refusal(&self, table: &Table, needed: Operations) -> Option<Refusal> {
        let (quoted, names) = (&table.quoted, self.names.join(" and "));
        if self.found.iter().any(|it| it.filtered.contains(&table.oid)) {
            return Some(Refusal::new(
                format!("{names} leaves out rows of {quoted}, which would not be seen"),
                "publish the table without WHERE",
            ));
        }
        let missing = needed.without(self.operations_of(table));
        if missing.is_empty() {
            return None;
        }
        let missing: Vec<&str> = missing.iter().map(Operation::as_str).collect();
        let root = match table.kind.as_str() {
            "p" => " with publish_via_partition_root",
            _ => "",
        };
        Some(Refusal::new(
            format!("{names} does not publish {} of {quoted}{root}", missing.join(", ")),
            "let its owner add that, or leave --publication out",
        ))
    }
}
