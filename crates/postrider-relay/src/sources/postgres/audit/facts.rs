//! What the server and the role allow.

use super::publications::Publications;
use super::tables::{Refusal, Table};
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::connection::Connection;
use crate::sources::postgres::error::Trouble;
use crate::sources::postgres::queries::audit::AUDIT_FACTS;

/// How the publications are called that an owner has to make.
const ADVISED_NAME: &str = "postrider_audit";

/// What there is to know of the server and of this role.
pub(super) struct Facts {
    level: String,
    has_any_standby: bool,
    role: String,
    may_replicate: bool,
    database: String,
    may_create: bool,
}

impl Facts {
    pub(super) async fn read(connection: &Connection) -> Result<Self, Trouble> {
        let rows = connection.query(AUDIT_FACTS, &[]).await?;
        let row = rows.first().ok_or_else(|| {
            let message = "the server does not know who is connected";
            SourceError::new(SourceErrorKind::Unavailable, message)
        })?;
        Ok(Self {
            level: row.try_get(0)?,
            has_any_standby: row.try_get(1)?,
            role: row.try_get(2)?,
            may_replicate: row.try_get(3)?,
            database: row.try_get(4)?,
            may_create: row.try_get(5)?,
        })
    }

    /// What stands in the way of any audit.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        let (level, role) = (&self.level, &self.role);
        if level != "logical" {
            refusals.push(Refusal::new(
                format!("the log of the server cannot be read: wal_level is {level}"),
                "run ALTER SYSTEM SET wal_level = logical and restart the server",
            ));
        }
        if self.has_any_standby {
            refusals.push(Refusal::new(
                "synchronous_standby_names has a *, so that commits would wait for the audit",
                "name the standbys in synchronous_standby_names",
            ));
        }
        if !self.may_replicate {
            refusals.push(Refusal::new(
                format!("the role {role} may not read the log"),
                format!("run ALTER ROLE {role} REPLICATION"),
            ));
        }
        refusals
    }

    /// Whoever owns the tables can make what this role may not.
    pub(super) fn publishing_refusal(&self, outbox: &Table, tables: &[Table]) -> Option<Refusal> {
        let Self { role, database, .. } = self;
        let all = || tables.iter().chain([outbox]);
        let foreign: Vec<&str> =
            all().filter(|table| !table.may_publish).map(|table| table.quoted.as_str()).collect();
        if foreign.is_empty() && self.may_create {
            return None;
        }
        if foreign.is_empty() {
            return Some(Refusal::new(
                format!("the role {role} may not make a publication in {database}"),
                format!("run GRANT CREATE ON DATABASE {database} TO {role}"),
            ));
        }
        let owner = match all().all(|table| table.owner == outbox.owner) {
            true => &outbox.owner,
            false => "a superuser",
        };
        let publications = Publications::new(ADVISED_NAME, outbox, tables);
        let (names, statements) = (publications.names().join(","), publications.statements());
        Some(Refusal::new(
            format!(
                "the role {role} may not publish {}, which it does not own",
                foreign.join(", ")
            ),
            format!("let {owner} run {}; then add --publication {names}", statements.join("; ")),
        ))
    }
}
