//! Checks of rights: what the relay's role needs, and the role that writes events.

use postrider::schema::MIGRATIONS_TABLE;
use tokio_postgres::types::Type;

use super::super::connection::Param;
use super::super::error::Trouble;
use super::super::table::Table;
use super::{Exam, queries, text};
use crate::diagnosis::{Finding, Fix};
use crate::sources::Progress;

/// The writer of `postrider migrate roles`.
const WRITER_DEFAULT: &str = "postrider_writer";
/// Tables that the outboxes of a schema have in common.
const SHARED: [&str; 4] = ["inbox", "inbox_messages", "inbox_versions", MIGRATIONS_TABLE];
/// Those of them that are the consumer's alone.
const INBOX: [&str; 3] = ["inbox", "inbox_messages", "inbox_versions"];
/// What a writer of an outbox of our making gives.
const WRITTEN: [&str; 11] = [
    "id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "event_version",
    "payload",
    "content_type",
    "headers",
    "topic",
    "occurred_at",
    "deliver_after",
];

/// Rights on tables: the table, the right, and the column or nothing.
#[derive(Default)]
struct Needed {
    tables: Vec<String>,
    rights: Vec<String>,
    columns: Vec<String>,
}

impl Needed {
    fn add(&mut self, table: &str, right: &str, column: &str) {
        self.tables.push(table.to_owned());
        self.rights.push(right.to_owned());
        self.columns.push(column.to_owned());
    }
}

impl Exam<'_> {
    pub(super) async fn rights(&mut self, table: Option<&Table>) {
        let Some(table) = table else {
            let found = "there is no table to have rights on";
            let checks = ["rights", "least-privilege", "writer-rights"];
            self.findings.extend(checks.map(|it| Finding::skip(it, found)));
            return;
        };
        let rights = self.relay_rights(table).await;
        self.note("rights", rights);
        let more = self.least_privilege().await;
        self.note("least-privilege", more);
        let writer = self.writer_rights(table).await;
        self.note("writer-rights", writer);
    }

    async fn relay_rights(&self, table: &Table) -> Result<Vec<Finding>, Trouble> {
        let outbox = self.outbox;
        let mut needed = Needed::default();
        let (name, by) = (outbox.quoted(), |it| self.wanted.iter().any(|one| one.progress == it));
        needed.add(&name, "SELECT", "");
        if by(Progress::Mark) && table.has("published_at") {
            needed.add(&name, "UPDATE", table.theirs("published_at"));
        }
        if by(Progress::Delete) || self.asked.prunes {
            needed.add(&name, "DELETE", "");
        }
        for beside in self.beside() {
            for right in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
                needed.add(&beside, right, "");
            }
        }
        needed.add(&outbox.messages().quoted(), "SELECT", "");
        needed.add(MIGRATIONS_TABLE, "SELECT", "");
        let role = unquoted(&self.facts.role);
        let missing = self.missing("rights", &role, &self.facts.role, &needed).await?;
        if !missing.is_empty() {
            return Ok(missing);
        }
        let found = format!("{} may do what a relay does", self.facts.role);
        Ok(vec![Finding::ok("rights", found)])
    }

    /// Whether the relay's role may do more than a relay does: whoever has its password may, too.
    async fn least_privilege(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "least-privilege";
        let (outbox, role) = (self.outbox, &self.facts.role);
        // That was said already, and includes everything.
        if self.facts.is_superuser {
            return Ok(Vec::new());
        }
        let mut own = self.tables();
        own.push(outbox.messages().quoted());
        own.extend(SHARED.map(str::to_owned));
        let params: [Param<'_>; 2] = [text(&own[0]), (&own, Type::TEXT_ARRAY)];
        let row = self.row(queries::MORE_RIGHTS, &params).await?;
        let (is_owner, others): (bool, i64) = (row.try_get(0)?, row.try_get(1)?);
        let fix = || Fix::command(format!("postrider migrate roles {}", self.asked.flags));
        let mut findings = Vec::new();
        if is_owner {
            let found =
                format!("{role} owns {outbox}: it can change and drop it, and needs far less");
            findings.push(Finding::warn(CHECK, found).with(fix()));
        }
        if others > 0 {
            let (tables, example): (_, String) =
                (if others == 1 { "table" } else { "tables" }, row.try_get(2)?);
            let found = format!(
                "{role} may change {others} {tables} that a relay never touches, such as {example}"
            );
            findings.push(Finding::warn(CHECK, found).with(fix()));
        }
        if findings.is_empty() {
            let found = format!("{role} may change nothing but the tables of the outbox");
            findings.push(Finding::ok(CHECK, found));
        }
        Ok(findings)
    }

    async fn writer_rights(&self, table: &Table) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "writer-rights";
        let writer = self.asked.writer.as_deref().unwrap_or(WRITER_DEFAULT);
        let row = self.row(queries::ROLE, &[text(&writer)]).await?;
        let (exists, quoted): (bool, String) = (row.try_get(0)?, row.try_get(1)?);
        if !exists && self.asked.writer.is_some() {
            let found = format!("there is no role {quoted}");
            let fix = format!("postrider migrate roles {}", self.asked.flags);
            return Ok(vec![Finding::fail(CHECK, found).with(Fix::command(fix))]);
        }
        if !exists {
            let found = "it is not known which role writes events";
            let fix = format!("postrider doctor --writer ROLE {}", self.asked.flags);
            return Ok(vec![Finding::skip(CHECK, found).with(Fix::command(fix))]);
        }
        let name = self.outbox.quoted();
        let mut findings = Vec::new();
        let usage = [text(&writer), text(&name)];
        for row in self.query(queries::MISSING_USAGE, &usage).await? {
            let schema: String = row.try_get(0)?;
            let found = format!("{quoted} may not use the schema {schema}");
            let sql = format!("GRANT USAGE ON SCHEMA {schema} TO {quoted}");
            findings.push(Finding::fail(CHECK, found).with(Fix::sql(sql)));
        }
        let mut needed = Needed::default();
        for column in WRITTEN.into_iter().filter(|column| table.has(column)) {
            needed.add(&name, "INSERT", table.theirs(column));
        }
        findings.extend(self.missing(CHECK, writer, &quoted, &needed).await?);
        findings.extend(self.writer_excess(writer, &quoted).await?);
        if findings.is_empty() {
            findings.push(Finding::ok(CHECK, format!("{quoted} may write events")));
        }
        Ok(findings)
    }

    /// What lets whoever publishes keep events of others from taking effect.
    async fn writer_excess(&self, writer: &str, quoted: &str) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "writer-rights";
        let outbox = self.outbox.quoted();
        let inbox: Vec<String> = INBOX.map(str::to_owned).to_vec();
        let params: [Param<'_>; 3] = [text(&writer), text(&outbox), (&inbox, Type::TEXT_ARRAY)];
        let row = self.row(queries::WRITER_EXCESS, &params).await?;
        let (reads_ids, claims): (bool, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
        let mut findings = Vec::new();
        if let Some(tables) = claims {
            let found = format!(
                "{quoted} may write {tables}: it can claim events for any consumer, and so keep \
                 them from taking effect; unless it consumes as well, take that from it"
            );
            let sql = format!("REVOKE ALL ON {tables} FROM {quoted}");
            findings.push(Finding::warn(CHECK, found).with(Fix::sql(sql)));
        }
        if reads_ids {
            let found = format!(
                "{quoted} may read {}: with the ids of others it can publish events that consumers \
                 take for theirs",
                self.outbox
            );
            let sql = format!("REVOKE SELECT ON {outbox} FROM {quoted}");
            findings.push(Finding::warn(CHECK, found).with(Fix::sql(sql)));
        }
        Ok(findings)
    }

    /// A finding for each table on which a role lacks a right. `quoted` is the role in SQL.
    async fn missing(
        &self,
        check: &'static str,
        role: &str,
        quoted: &str,
        needed: &Needed,
    ) -> Result<Vec<Finding>, Trouble> {
        let Needed { tables, rights, columns } = needed;
        let params: [Param<'_>; 4] = [
            text(&role),
            (tables, Type::TEXT_ARRAY),
            (rights, Type::TEXT_ARRAY),
            (columns, Type::TEXT_ARRAY),
        ];
        let rows = self.query(queries::MISSING_RIGHTS, &params).await?;
        let mut findings = Vec::new();
        for row in &rows {
            let (table, rights): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let found = format!("{quoted} lacks rights on {table}: {rights}");
            let sql = format!("GRANT {rights} ON {table} TO {quoted}");
            findings.push(Finding::fail(check, found).with(Fix::sql(sql)));
        }
        Ok(findings)
    }
}

/// The name behind a quoted one.
fn unquoted(name: &str) -> String {
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::unquoted;

    #[test]
    fn a_quoted_name_is_taken_apart() {
        assert_eq!(unquoted("shop"), "shop");
        assert_eq!(unquoted("\"My \"\"shop\"\"\""), "My \"shop\"");
    }
}
