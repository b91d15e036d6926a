//! Checks of the tables: migrations, drift, and the indexes that reading needs.

use postrider::schema::{Difference, Drift};
use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::super::connection::Param;
use super::super::error::Trouble;
use super::super::migrate;
use super::super::queries::{FEW_ROWS, IN_ORDER};
use super::super::table::Table;
use super::{CHECK_TIMEOUT, Exam, queries, text, too_slow};
use crate::diagnosis::{Finding, Fix};
use crate::sources::Progress;

/// Most differences that are listed.
const DIFFERENCES_MAX: usize = 5;

impl Exam<'_> {
    pub(super) async fn schema(&mut self) {
        let schema = self.migrations().await;
        self.findings.push(schema);
        let drift = self.drift().await;
        self.findings.push(drift);
    }

    async fn migrations(&self) -> Finding {
        const CHECK: &str = "schema";
        let looking = migrate::status(self.location, self.outbox);
        match timeout(CHECK_TIMEOUT, looking).await.unwrap_or_else(|_| Err(too_slow())) {
            Err(error) => Finding::error(CHECK, &error),
            Ok(status) if status.pending.is_empty() => {
                let version = status.applied.last().map_or(0, |applied| applied.version);
                Finding::ok(CHECK, format!("{} is at version {version}", self.outbox))
            }
            Ok(status) => {
                let what =
                    if status.applied.is_empty() { "has no tables" } else { "is not up to date" };
                let pending = status.pending.len();
                let found = format!("{} {what}: {pending} to apply", self.outbox);
                Finding::fail(CHECK, found).with(Fix::migrate(&self.asked.flags))
            }
        }
    }

    async fn drift(&self) -> Finding {
        const CHECK: &str = "schema-drift";
        let facts = &self.facts;
        if !facts.may_create {
            let found =
                "comparing needs a schema, which is rolled back, and this role may make none";
            let sql = format!("GRANT CREATE ON DATABASE {} TO {}", facts.database, facts.role);
            return Finding::skip(CHECK, found).with(Fix::sql(sql));
        }
        let comparing = migrate::verify(self.location, self.outbox);
        let found = timeout(CHECK_TIMEOUT, comparing).await.unwrap_or_else(|_| Err(too_slow()));
        let differences = match found {
            Ok(differences) => differences,
            Err(error) => return Finding::error(CHECK, &error),
        };
        if !differences.is_empty() && differences.iter().all(|it| it.drift == Drift::Pending) {
            return Finding::skip(CHECK, "migrations are lacking: compare after them");
        }
        let mut drift = differences.iter().filter(|it| it.drift != Drift::Pending);
        let shown: Vec<String> =
            drift.by_ref().take(DIFFERENCES_MAX).map(ToString::to_string).collect();
        if shown.is_empty() {
            return Finding::ok(CHECK, format!("{} is as its migrations make it", self.outbox));
        }
        let more = match drift.count() {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let finding = match differences.iter().any(Difference::is_fatal) {
            true => Finding::fail,
            false => Finding::warn,
        };
        finding(CHECK, format!("{}{more}", shown.join("; ")))
            .with(Fix::command(format!("postrider migrate verify {}", self.asked.flags)))
    }

    /// What becomes of rows that logical replication brings from another server.
    pub(super) async fn replicated(&mut self) {
        let found = self.replicated_rows().await;
        self.note("replicated", found);
    }

    async fn replicated_rows(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "replicated";
        let quoted = self.outbox.quoted();
        let row = self.row(queries::REPLICATED, &[text(&quoted)]).await?;
        let (subscription, choice): (Option<String>, Option<String>) =
            (row.try_get(0)?, row.try_get(1)?);
        let outbox = self.outbox;
        let what = match choice.as_deref() {
            Some("ignore") => "rows that are replicated from another server are not kept",
            Some(_) => "rows that are replicated from another server are delivered from here",
            None => "rows that are replicated from another server keep its numbers",
        };
        Ok(vec![match subscription {
            None => Finding::ok(CHECK, format!("no subscription writes to {outbox}; {what}")),
            Some(name) if choice.is_some() => {
                Finding::ok(CHECK, format!("the subscription {name} writes to {outbox}; {what}"))
            }
            Some(name) => {
                let found = format!(
                    "the subscription {name} writes to {outbox}, which has no trigger for that: {what}"
                );
                let fix = "leave the outbox out of the publication, or give such rows a transaction and \
                     a number of this server by a trigger, as `postrider migrate --print` shows it";
                Finding::warn(CHECK, found).with(Fix::advice(fix))
            }
        }])
    }

    pub(super) async fn indexes(&mut self, table: &Table) {
        let indexes = self.needed_indexes(table).await;
        self.note("indexes", indexes);
        let plans = self.plans(table).await;
        self.note("plans", plans);
    }

    /// The indexes without which each look goes through the whole table.
    async fn needed_indexes(&self, table: &Table) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "indexes";
        let mut findings = Vec::new();
        let tables = self.tables();
        for row in self.query(queries::INVALID_INDEXES, &[(&tables, Type::TEXT_ARRAY)]).await? {
            let index: String = row.try_get(0)?;
            let found = format!("the index {index} is not valid, and nobody uses it");
            let sql = format!("REINDEX INDEX CONCURRENTLY {index}");
            findings.push(Finding::fail(CHECK, found).about(index).with(Fix::safe_sql(sql)));
        }
        let mut missing: Vec<String> = Vec::new();
        for wanted in &self.wanted {
            missing.extend(table.missing_indexes(wanted.progress));
        }
        missing.sort();
        missing.dedup();
        if !findings.is_empty() {
            // One of them may be the one that is missing.
            return Ok(findings);
        }
        let outbox = self.outbox.as_str();
        let names = ["unpublished", "xid"].map(|suffix| format!("{outbox}_{suffix}"));
        let (quoted, listed) = (table.quoted(), names.as_slice());
        let params: [Param<'_>; 2] = [text(&quoted), (&listed, Type::TEXT_ARRAY)];
        let row = self.row(queries::NAMES, &params).await?;
        let (is_parted, taken): (bool, Vec<String>) = (row.try_get(0)?, row.try_get(1)?);
        for statement in missing {
            let name = &names[usize::from(!statement.contains(" WHERE "))];
            let name = match taken.contains(name) {
                true => String::new(),
                false => format!("\"{}\" ", name.replace('"', "\"\"")),
            };
            let found = "an index is missing: each look goes through the whole table";
            let finding = Finding::fail(CHECK, found);
            findings.push(match is_parted {
                // A table in partitions cannot get one while it is written to.
                true => {
                    let sql = statement.replacen("INDEX ON", &format!("INDEX {name}ON"), 1);
                    finding.with(Fix::sql(sql))
                }
                false => {
                    let with_name = format!("INDEX CONCURRENTLY {name}ON");
                    finding.with(Fix::safe_sql(statement.replacen("INDEX ON", &with_name, 1)))
                }
            });
        }
        if findings.is_empty() {
            findings.push(Finding::ok(CHECK, "the indexes for reading are there, and valid"));
        }
        Ok(findings)
    }

    /// Whether the server goes by the indexes for what a relay reads.
    async fn plans(&self, table: &Table) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "plans";
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let mut reads = Vec::new();
        if self.wanted.iter().any(|wanted| wanted.progress != Progress::Cursor) || !table.has("xid")
        {
            let unpublished = match table.has("published_at") {
                true => format!("{} IS NULL", table.select("o", "published_at")),
                false => "true".to_owned(),
            };
            reads.push((
                IN_ORDER,
                format!("SELECT FROM {name} AS o WHERE {unpublished} ORDER BY {seq} LIMIT 100"),
            ));
        }
        if table.has("xid") {
            let xid = table.select("o", "xid");
            reads.push((
                FEW_ROWS,
                format!(
                    "SELECT FROM {name} AS o
                     WHERE {xid} >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 100"
                ),
            ));
        }
        for (settings, read) in reads {
            let settings = format!("{}; {settings}", queries::BOUNDED);
            let plan =
                self.connection.query_with(&settings, &format!("EXPLAIN {read}"), &[]).await?;
            for line in &plan {
                let line: &str = line.try_get(0)?;
                if line.contains("Seq Scan") {
                    let found = format!("reading goes through the whole table: {}", line.trim());
                    let fix = "make the indexes that the check `indexes` names, then run ANALYZE";
                    return Ok(vec![Finding::fail(CHECK, found).with(Fix::advice(fix))]);
                }
            }
        }
        Ok(vec![Finding::ok(CHECK, "reading goes by the indexes")])
    }
}
