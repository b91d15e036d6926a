//! Migrating over a tokio-postgres connection.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, IsolationLevel};

use super::{
    LOCK_KEY, Layout, Replicated, first_partitions, ledger, migrations, replicated_sql, step,
};
use crate::schema::{Applied, MIGRATIONS_TABLE, Migration, SchemaError, Status, TableName};

/// Brings the tables of an outbox up to date and gives back what was applied, in order.
///
/// `layout` is how a new outbox is laid out; `None` means as it is, and plain if it is new. All
/// migrations are one transaction, so several processes may do this at once: one of them
/// migrates, the others wait for it and then find nothing to do.
///
/// # Errors
///
/// Refuses a database that a later version of postrider migrated, and another layout than the
/// outbox has.
pub async fn migrate(
    client: &mut Client,
    outbox: &TableName,
    layout: Option<Layout>,
) -> Result<Vec<&'static Migration>, SchemaError> {
    let state = State::read(client, outbox).await?;
    if state.pending(outbox, layout)?.is_empty() {
        return Ok(Vec::new());
    }
    if layout == Some(Layout::Existing) && !exists(client, &outbox.quoted()).await? {
        return Err(SchemaError::NoTable { table: outbox.clone() });
    }
    // So that what another migrator has just committed is seen.
    let tx = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let tx = tx.start().await?;
    tx.batch_execute(&format!("SELECT pg_advisory_xact_lock({LOCK_KEY}); {STAY_IN_SCHEMA}"))
        .await?;
    let state = State::read(&tx, outbox).await?;
    let (layout, pending) = (state.layout_for(layout), state.pending(outbox, layout)?);
    tx.batch_execute(&ledger()).await?;
    for migration in &pending {
        let mut sql = step(migration, outbox, layout);
        if migration.version == 1 {
            sql.push_str(&first_partitions(outbox, layout));
        }
        tx.batch_execute(&sql).await.map_err(|source| SchemaError::Migration {
            table: outbox.clone(),
            version: migration.version,
            source: source.into(),
        })?;
    }
    tx.commit().await?;
    Ok(pending)
}

/// Changes what becomes of rows that logical replication brings into an outbox that was migrated.
///
/// # Errors
///
/// Refuses a table that is not of our making.
pub async fn set_replicated(
    client: &mut Client,
    outbox: &TableName,
    replicated: Replicated,
) -> Result<(), SchemaError> {
    let tx = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let tx = tx.start().await?;
    tx.batch_execute(&format!("SELECT pg_advisory_xact_lock({LOCK_KEY}); {STAY_IN_SCHEMA}"))
        .await?;
    let state = State::read(&tx, outbox).await?;
    if state.layout == Some(Layout::Existing) {
        return Err(SchemaError::NotOurs { table: outbox.clone() });
    }
    tx.batch_execute(&replicated_sql(outbox, replicated)).await?;
    Ok(tx.commit().await?)
}

/// The migrations that the tables of an outbox still lack, in order. Changes nothing.
///
/// # Errors
///
/// Refuses what [`migrate`] refuses.
pub async fn pending(
    client: &Client,
    outbox: &TableName,
    layout: Option<Layout>,
) -> Result<Vec<&'static Migration>, SchemaError> {
    State::read(client, outbox).await?.pending(outbox, layout)
}

/// What was migrated, and when. Changes nothing.
///
/// # Errors
///
/// Refuses a database that a later version of postrider migrated.
pub async fn status(client: &Client, outbox: &TableName) -> Result<Status, SchemaError> {
    let state = State::read(client, outbox).await?;
    let pending = state.pending(outbox, None)?;
    Ok(Status { layout: state.layout, applied: state.applied, pending })
}

/// Keeps names, to the end of the transaction, from meaning anything in another schema.
pub(super) const STAY_IN_SCHEMA: &str =
    "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)";

/// What the table of migrations says about an outbox.
pub(super) struct State {
    layout: Option<Layout>,
    pub(super) applied: Vec<Applied>,
}

impl State {
    pub(super) async fn read(
        client: &impl GenericClient,
        outbox: &TableName,
    ) -> Result<Self, SchemaError> {
        // In this schema, though there may be one of that name further along the path.
        let found = format!(
            "SELECT to_regclass(quote_ident(current_schema()) || '.{MIGRATIONS_TABLE}')::text"
        );
        let Some(ledger) = client.query_typed_one(&found, &[]).await?.get::<_, Option<String>>(0)
        else {
            return Ok(Self { layout: None, applied: Vec::new() });
        };
        let sql = format!(
            "SELECT version, name, applied_at, layout FROM {ledger} WHERE outbox = $1 ORDER BY version"
        );
        let rows = client.query_typed(&sql, &[(&outbox.as_str(), Type::TEXT)]).await?;
        let applied = rows.iter().map(|row| Applied {
            version: row.get::<_, i32>(0).unsigned_abs(),
            name: row.get(1),
            applied_at: row.get(2),
        });
        let layout = rows.first().and_then(|row| Layout::from_name(row.get(3)));
        Ok(Self { layout, applied: applied.collect() })
    }

    /// The layout that the outbox has or will have.
    pub(super) fn layout_for(&self, wanted: Option<Layout>) -> Layout {
        self.layout.or(wanted).unwrap_or_default()
    }

    pub(super) fn pending(
        &self,
        outbox: &TableName,
        wanted: Option<Layout>,
    ) -> Result<Vec<&'static Migration>, SchemaError> {
        let layout = self.layout_for(wanted);
        let all = migrations(layout);
        let known = all.last().map_or(0, |migration| migration.version);
        let found = self.applied.last().map_or(0, |applied| applied.version);
        // A layout that is not known comes from a later version, too.
        if found > known || (found > 0 && self.layout.is_none()) {
            return Err(SchemaError::Newer { table: outbox.clone(), found, known });
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != layout) {
            let (found, wanted) = (layout.to_string(), wanted.to_string());
            return Err(SchemaError::Layout { table: outbox.clone(), found, wanted });
        }
        Ok(all.iter().filter(|migration| migration.version > found).collect())
    }
}

async fn exists(client: &Client, name: &str) -> Result<bool, SchemaError> {
    let sql = "SELECT to_regclass($1) IS NOT NULL";
    Ok(client.query_typed_one(sql, &[(&name, Type::TEXT)]).await?.get(0))
}

impl From<tokio_postgres::Error> for SchemaError {
    fn from(source: tokio_postgres::Error) -> Self {
        SchemaError::Database { source: source.into() }
    }
}
