//! What may be wrong with a SQLite database, and with an outbox in it.

mod database;
mod file;

use async_trait::async_trait;
use postrider::schema::{Drift, TableName};

use super::error::source_error;
use super::open::{existing_file, open};
use super::{BUSY_TIMEOUT, Location, SqliteAdmin, migrate};
use crate::admin::Admin as _;
use crate::diagnosis::{self, Asked, Diagnose, Finding, Fix, FixKind, Remedy};
use crate::source::{SourceError, SourceErrorKind};

/// Most differences that are listed.
const DIFFERENCES_MAX: usize = 5;

/// Examines one outbox in SQLite.
#[derive(Debug)]
pub struct SqliteDiagnosis {
    location: Location,
    outbox: TableName,
}

impl SqliteDiagnosis {
    /// An examination that has not begun; nothing is opened yet.
    pub fn new(location: Location, outbox: TableName) -> Self {
        Self { location, outbox }
    }

    async fn schema(&self, asked: &Asked) -> Vec<Finding> {
        let (location, outbox) = (&self.location, &self.outbox);
        let schema = match migrate::status(location.clone(), outbox.clone()).await {
            Err(error) => Finding::error("schema", &error),
            Ok(status) if status.pending.is_empty() => {
                let version = status.applied.last().map_or(0, |applied| applied.version);
                Finding::ok("schema", format!("{outbox} is at version {version}"))
            }
            Ok(status) => {
                let what =
                    if status.applied.is_empty() { "has no tables" } else { "is not up to date" };
                let pending = status.pending.len();
                Finding::fail("schema", format!("{outbox} {what}: {pending} to apply"))
                    .with(Fix::migrate(&asked.flags))
            }
        };
        vec![schema, self.drift(asked).await]
    }

    async fn drift(&self, asked: &Asked) -> Finding {
        const CHECK: &str = "schema-drift";
        let differences = match migrate::verify(self.location.clone(), self.outbox.clone()).await {
            Ok(differences) => differences,
            Err(error) => return Finding::error(CHECK, &error),
        };
        if !differences.is_empty() && differences.iter().all(|it| it.drift == Drift::Pending) {
            return Finding::skip(CHECK, "migrations are lacking: compare after them");
        }
        let drift: Vec<_> = differences.iter().filter(|it| it.drift != Drift::Pending).collect();
        if drift.is_empty() {
            return Finding::ok(CHECK, format!("{} is as its migrations make it", self.outbox));
        }
        let shown: Vec<String> =
            drift.iter().take(DIFFERENCES_MAX).map(ToString::to_string).collect();
        let index = format!("index {}_unpublished", self.outbox);
        let is_missing =
            drift.iter().any(|it| it.drift == Drift::Missing && it.object.contains(&index));
        let finding = match drift.iter().any(|it| it.is_fatal()) {
            true => Finding::fail(CHECK, shown.join("; ")),
            false => Finding::warn(CHECK, shown.join("; ")),
        };
        match is_missing {
            true => finding.with(Fix::safe_sql(format!(
                "CREATE INDEX \"{}_unpublished\" ON {} (seq) WHERE published_at IS NULL",
                self.outbox.as_str().replace('"', "\"\""),
                self.outbox.quoted()
            ))),
            false => {
                finding.with(Fix::command(format!("postrider migrate verify {}", asked.flags)))
            }
        }
    }

    async fn pipelines(&self, asked: &Asked) -> Vec<Finding> {
        let status = async {
            let admin = SqliteAdmin::connect(self.location.clone(), self.outbox.clone()).await?;
            admin.status().await
        };
        match status.await {
            Ok(status) => {
                let mut findings = diagnosis::pipelines(&status, asked);
                for wanted in asked.wanted(Some(&status)) {
                    findings.push(file::relay(&self.location, &self.outbox, &wanted.name));
                }
                findings
            }
            Err(error) => vec![Finding::error("pipeline", &error)],
        }
    }
}

#[async_trait]
impl Diagnose for SqliteDiagnosis {
    async fn findings(&self, asked: &Asked) -> Vec<Finding> {
        let path = match existing_file(&self.location, &self.outbox) {
            Ok(path) => path,
            Err(error) => {
                let is_missing = !self.location.path().exists();
                let finding = Finding::error("file", &error);
                return vec![match is_missing {
                    true => finding.with(Fix::migrate(&asked.flags)),
                    false => finding,
                }];
            }
        };
        let looked = path.clone();
        let mut findings = blocking("file", move || file::checks(&looked)).await;
        let (location, outbox) = (self.location.clone(), self.outbox.clone());
        findings.extend(
            blocking("database", move || database::checks(&location, &outbox, &path)).await,
        );
        findings.extend(self.schema(asked).await);
        findings.extend(self.pipelines(asked).await);
        findings
    }

    async fn mend(&self, fix: &Fix) -> Result<(), SourceError> {
        let (location, outbox) = (self.location.clone(), self.outbox.clone());
        match (fix.remedy, fix.kind) {
            (Some(Remedy::Migrate), _) => migrate::migrate(location, outbox).await.map(drop),
            (Some(Remedy::Run), FixKind::Sql) => {
                let sql = fix.text.clone();
                let run = tokio::task::spawn_blocking(move || {
                    let conn = open(&location, &outbox, BUSY_TIMEOUT)?;
                    conn.execute_batch(&sql).map_err(|err| source_error("mend it", err))
                });
                run.await.unwrap_or_else(|err| {
                    let message = "cannot mend it: it was broken off";
                    Err(SourceError::new(SourceErrorKind::Unavailable, message).with_source(err))
                })
            }
            _ => Err(SourceError::new(SourceErrorKind::Misconfigured, "that is left to you")),
        }
    }
}

/// Makes checks that wait for the disk.
async fn blocking(
    check: &'static str,
    checks: impl FnOnce() -> Vec<Finding> + Send + 'static,
) -> Vec<Finding> {
    let made = tokio::task::spawn_blocking(checks).await;
    made.unwrap_or_else(|_| vec![Finding::skip(check, "the check was broken off")])
}
