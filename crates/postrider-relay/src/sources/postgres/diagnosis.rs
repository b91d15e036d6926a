//! What may be wrong with PostgreSQL, and with an outbox in it.
//!
//! Each check is a statement or two of its own, in a transaction that reads only and has a limit
//! of time. One that fails becomes a finding that says so, with the right that would have allowed
//! it if that was it.

mod activity;
mod certificate;
mod log;
mod rights;
mod server;
mod tables;
mod upkeep;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use postrider::schema::TableName;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::connection::{Connection, Params, client};
use super::error::Trouble;
use super::queries::diagnosis as queries;
use super::table::{self, Table};
use super::{Location, PostgresAdmin, migrate};
use crate::admin::{Admin as _, OutboxStatus};
use crate::diagnosis::{self, Asked, Diagnose, Finding, Fix, FixKind, Remedy, Wanted};
use crate::source::{SourceError, SourceErrorKind};

/// Longest time for a check of several statements.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Examines one outbox in PostgreSQL.
#[derive(Debug)]
pub struct PostgresDiagnosis {
    location: Location,
    outbox: TableName,
    /// The columns of a table that is not of our making: our name to its name.
    columns: BTreeMap<String, String>,
}

/// What the checks have in common.
struct Exam<'e> {
    connection: Connection,
    location: &'e Location,
    outbox: &'e TableName,
    asked: &'e Asked,
    facts: Facts,
    /// The pipelines that are to run.
    wanted: Vec<Wanted>,
    findings: Vec<Finding>,
}

/// What the server says of itself and of this role.
struct Facts {
    version: String,
    major: i32,
    is_replica: bool,
    /// Quoted.
    role: String,
    is_superuser: bool,
    may_replicate: bool,
    sees_all: bool,
    may_create: bool,
    /// Quoted.
    database: String,
}

impl PostgresDiagnosis {
    /// An examination that has not begun; nothing is connected yet.
    pub fn new(location: Location, outbox: TableName, columns: BTreeMap<String, String>) -> Self {
        Self { location, outbox, columns }
    }

    async fn status(&self) -> Result<OutboxStatus, SourceError> {
        let (outbox, columns) = (self.outbox.clone(), self.columns.clone());
        PostgresAdmin::connect(self.location.clone(), outbox, columns).await?.status().await
    }
}

#[async_trait]
impl Diagnose for PostgresDiagnosis {
    async fn findings(&self, asked: &Asked) -> Vec<Finding> {
        let connection = Connection::new(self.location.clone(), "doctor");
        let facts = match facts(&connection).await {
            Ok(facts) => facts,
            Err(trouble) => {
                let error = trouble.while_doing("connect");
                let rest = "nothing else of the database can be looked at without a connection";
                return vec![Finding::error("connection", &error), Finding::skip("database", rest)];
            }
        };
        let status = match timeout(CHECK_TIMEOUT, self.status()).await {
            Ok(status) => status,
            Err(_) => Err(too_slow()),
        };
        let wanted = asked.wanted(status.as_ref().ok());
        let found = format!("{} answers", self.location);
        let mut exam = Exam {
            connection,
            location: &self.location,
            outbox: &self.outbox,
            asked,
            facts,
            wanted,
            findings: vec![Finding::ok("connection", found)],
        };
        exam.server().await;
        exam.schema().await;
        let table = table::read(&exam.connection, &self.outbox, &self.columns).await;
        let table = exam.table(table);
        exam.rights(table.as_ref()).await;
        if let Some(table) = &table {
            exam.replicated().await;
            exam.indexes(table).await;
            exam.upkeep(table).await;
        }
        exam.activity().await;
        if let Some(table) = &table {
            exam.log(table).await;
        }
        match &status {
            Ok(status) => exam.findings.extend(diagnosis::pipelines(status, asked)),
            Err(error) => exam.findings.push(Finding::error("pipeline", error)),
        }
        exam.connection.close().await;
        exam.findings
    }

    async fn mend(&self, fix: &Fix) -> Result<(), SourceError> {
        match (fix.remedy, fix.kind) {
            (Some(Remedy::Migrate), _) => {
                migrate::migrate(&self.location, &self.outbox, None).await.map(drop)
            }
            (Some(Remedy::Run), FixKind::Sql) => {
                let doing = "mend it";
                let client = client(&self.location).await;
                // Making an index takes as long as it takes.
                let client = client.map_err(|trouble| trouble.while_doing(doing))?;
                let run = client.batch_execute(&fix.text).await;
                run.map_err(|error| Trouble::from(error).while_doing(doing))
            }
            _ => Err(SourceError::new(SourceErrorKind::Misconfigured, "that is left to you")),
        }
    }
}

impl Exam<'_> {
    /// The rows that a statement answers, within a limit of time.
    async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Trouble> {
        self.connection.query_with(queries::BOUNDED, sql, params).await
    }

    /// The only row that a statement answers.
    async fn row(&self, sql: &str, params: Params<'_>) -> Result<Row, Trouble> {
        let mut rows = self.query(sql, params).await?;
        match rows.is_empty() {
            false => Ok(rows.swap_remove(0)),
            true => {
                let message = "the server answered without a row";
                Err(SourceError::new(SourceErrorKind::Unavailable, message).into())
            }
        }
    }

    /// Settings in their base units, by name. One that the server does not have is left out.
    async fn settings(&self, names: &[&str]) -> Result<BTreeMap<String, String>, Trouble> {
        let rows = self.query(queries::SETTINGS, &[(&names, Type::TEXT_ARRAY)]).await?;
        let pair = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.iter().map(pair).collect::<Result<_, tokio_postgres::Error>>().map_err(Into::into)
    }

    /// Keeps what a check has found, or that it could not be made.
    fn note(&mut self, check: &'static str, made: Result<Vec<Finding>, Trouble>) {
        match made {
            Ok(found) => self.findings.extend(found),
            Err(trouble) => {
                let is_denied = trouble.is(&SqlState::INSUFFICIENT_PRIVILEGE);
                let error = trouble.while_doing("make the check");
                let skipped =
                    Finding { level: diagnosis::Level::Skip, ..Finding::error(check, &error) };
                self.findings.push(match is_denied {
                    true => skipped.with(self.let_see()),
                    false => skipped,
                });
            }
        }
    }

    /// What would let this role see all there is to see of the server.
    fn let_see(&self) -> Fix {
        Fix::sql(format!("GRANT pg_monitor TO {}", self.facts.role))
    }

    /// The outbox and the tables beside it, quoted.
    fn tables(&self) -> Vec<String> {
        std::iter::once(self.outbox.quoted()).chain(self.beside()).collect()
    }

    /// The tables beside the outbox that a relay writes to, quoted.
    fn beside(&self) -> impl Iterator<Item = String> + use<> {
        let outbox = self.outbox;
        let names = [
            outbox.failures(),
            outbox.checkpoints(),
            outbox.leases(),
            outbox.claims(),
            outbox.pauses(),
        ];
        names.into_iter().map(|name| name.quoted())
    }

    /// Whether the table can be read; it is needed for the rest.
    fn table(&mut self, read: Result<Table, Trouble>) -> Option<Table> {
        const CHECK: &str = "table";
        match read {
            Ok(table) => {
                let found = format!("{} has what a relay needs", table.quoted());
                self.findings.push(Finding::ok(CHECK, found));
                Some(table)
            }
            Err(trouble) => {
                let error = trouble.while_doing("read the table");
                self.findings.push(Finding::error(CHECK, &error));
                None
            }
        }
    }
}

async fn facts(connection: &Connection) -> Result<Facts, Trouble> {
    let rows = connection.query_with(queries::BOUNDED, queries::FACTS, &[]).await?;
    let row = rows.first().ok_or_else(|| {
        SourceError::new(SourceErrorKind::Unavailable, "the server does not know this role")
    })?;
    Ok(Facts {
        version: row.try_get(0)?,
        major: row.try_get(1)?,
        is_replica: row.try_get(2)?,
        role: row.try_get(3)?,
        is_superuser: row.try_get(4)?,
        may_replicate: row.try_get(5)?,
        sees_all: row.try_get(6)?,
        may_create: row.try_get(7)?,
        database: row.try_get(8)?,
    })
}

fn too_slow() -> SourceError {
    let message = format!("no answer within {} s", CHECK_TIMEOUT.as_secs());
    SourceError::new(SourceErrorKind::Unavailable, message)
}

/// A parameter that is a text.
fn text(value: &(impl ToSql + Sync)) -> (&(dyn ToSql + Sync), Type) {
    (value, Type::TEXT)
}
