//! Checks of transactions that are open for long.
//!
//! They hold back vacuum, so that tables and their indexes grow; and a slot in the making waits
//! for them. They are named by process, role and application; never by their statement, which may
//! hold payloads.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::super::connection::Param;
use super::super::error::Trouble;
use super::{Exam, queries};
use crate::amounts::age;
use crate::diagnosis::{Finding, Fix};
use crate::sources::Mode;

impl Exam<'_> {
    pub(super) async fn activity(&mut self) {
        let open = self.open_transactions().await;
        self.note("transactions", open);
        let prepared = self.prepared_transactions().await;
        self.note("prepared-transactions", prepared);
    }

    async fn open_transactions(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "transactions";
        let limit = self.asked.open_for.as_secs_f64();
        let params: [Param<'_>; 1] = [(&limit, Type::FLOAT8)];
        let mut findings = Vec::new();
        for row in self.query(queries::OPEN_TRANSACTIONS, &params).await? {
            if !self.matters(row.try_get(5)?) {
                continue;
            }
            let pid: i32 = row.try_get(0)?;
            let (role, application): (String, String) = (row.try_get(1)?, row.try_get(2)?);
            let state: String = row.try_get(3)?;
            let open_for = shown(row.try_get(4)?);
            let found = format!(
                "a transaction is open for {open_for}: process {pid} of {role} ({application:?}) is \
                 {state}; it holds back vacuum, and a slot in the making"
            );
            let sql = format!("SELECT pg_terminate_backend({pid})");
            findings.push(Finding::warn(CHECK, found).about(pid.to_string()).with(Fix::sql(sql)));
        }
        if !self.facts.sees_all {
            let found = "this role does not see how long transactions of others are open";
            findings.push(Finding::skip(CHECK, found).with(self.let_see()));
        } else if findings.is_empty() {
            let limit = age(self.asked.open_for);
            findings.push(Finding::ok(CHECK, format!("no transaction is open for {limit}")));
        }
        Ok(findings)
    }

    async fn prepared_transactions(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "prepared-transactions";
        let limit = self.asked.open_for.as_secs_f64();
        let params: [Param<'_>; 1] = [(&limit, Type::FLOAT8)];
        let mut findings = Vec::new();
        for row in self.query(queries::PREPARED_TRANSACTIONS, &params).await? {
            if !self.matters(row.try_get(3)?) {
                continue;
            }
            let (name, owner): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let waits = shown(row.try_get(2)?);
            let found = format!(
                "the prepared transaction {name} of {owner} waits for {waits} to be committed; it \
                 holds back vacuum, and a slot in the making"
            );
            let fix = format!(
                "ask who prepared it; then COMMIT PREPARED {name} or ROLLBACK PREPARED {name}"
            );
            findings.push(Finding::warn(CHECK, found).about(name).with(Fix::advice(fix)));
        }
        if findings.is_empty() {
            findings.push(Finding::ok(CHECK, "none waits for long"));
        }
        Ok(findings)
    }

    /// Vacuum waits for transactions of its own database; a slot in the making for all.
    fn matters(&self, is_of_database: bool) -> bool {
        is_of_database || self.wanted.iter().any(|wanted| wanted.mode == Mode::Cdc)
    }
}

fn shown(seconds: f64) -> String {
    age(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
