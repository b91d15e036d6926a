//! What was found, as text and as JSON.

use postrider_relay::diagnosis::{Finding, Level};
use serde::Serialize;

use crate::error::CliError;
use crate::output::{Output, plain};

/// Everything that was found, and what was done about it.
#[derive(Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    /// What `--fix` has done.
    pub(super) mended: Vec<String>,
}

/// The report as JSON; people script against it.
#[derive(Serialize)]
struct ReportObject<'r> {
    ok: usize,
    warn: usize,
    fail: usize,
    skip: usize,
    checks: Vec<FindingObject<'r>>,
    mended: &'r [String],
}

#[derive(Serialize)]
struct FindingObject<'r> {
    check: &'static str,
    subject: Option<&'r str>,
    level: &'static str,
    found: &'r str,
    fix: Option<&'r str>,
    /// What the fix is: `sql`, `command` or `advice`.
    fix_kind: Option<&'static str>,
    /// Whether `--fix` does it.
    fixable: bool,
}

impl Report {
    pub(super) fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    pub(super) fn print(&self, output: Output) -> Result<(), CliError> {
        match output.is_json() {
            true => output.object(&self.to_object()),
            false => output.data(&self.to_text()),
        }
    }

    fn to_object(&self) -> ReportObject<'_> {
        ReportObject {
            ok: self.count(Level::Ok),
            warn: self.count(Level::Warn),
            fail: self.count(Level::Fail),
            skip: self.count(Level::Skip),
            checks: self.findings.iter().map(to_finding_object).collect(),
            mended: &self.mended,
        }
    }

    fn to_text(&self) -> String {
        let name = |finding: &Finding| match &finding.subject {
            Some(subject) => format!("{} {}", finding.check, plain(subject)),
            None => finding.check.to_owned(),
        };
        let names: Vec<String> = self.findings.iter().map(name).collect();
        let width = names.iter().map(|name| name.chars().count().min(NAME_MAX)).max().unwrap_or(0);
        let mut text = String::new();
        for (finding, name) in self.findings.iter().zip(&names) {
            let level = finding.level.as_str().to_uppercase();
            text.push_str(&format!("{level:4}  {name:width$}  {}\n", plain(&finding.found)));
            if let Some(fix) = &finding.fix {
                text.push_str(&format!("{:4}  {:width$}  fix: {}\n", "", "", plain(&fix.text)));
            }
        }
        let [ok, warn, fail, skip] =
            [Level::Ok, Level::Warn, Level::Fail, Level::Skip].map(|level| self.count(level));
        let checks = self.findings.len();
        text.push_str(&format!(
            "\n{checks} checks: {ok} ok, {warn} warnings, {fail} failed, {skip} skipped\n"
        ));
        text
    }
}

/// A longer name does not widen the column.
const NAME_MAX: usize = 32;

fn to_finding_object(finding: &Finding) -> FindingObject<'_> {
    let fix = finding.fix.as_ref();
    FindingObject {
        check: finding.check,
        subject: finding.subject.as_deref(),
        level: finding.level.as_str(),
        found: &finding.found,
        fix: fix.map(|fix| fix.text.as_str()),
        fix_kind: fix.map(|fix| fix.kind.as_str()),
        fixable: fix.is_some_and(|fix| fix.remedy.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use postrider_relay::diagnosis::Fix;

    use super::*;

    fn report() -> Report {
        let off = Finding::warn("autovacuum", "it is off").about("shop.outbox");
        let findings = vec![
            Finding::ok("fsync", "it is on"),
            off.with(Fix::sql("ALTER TABLE x")),
            Finding::fail("schema", "it has no tables").with(Fix::migrate("--from sqlite:a.db")),
        ];
        Report { findings, mended: Vec::new() }
    }

    #[test]
    fn the_json_has_a_fixed_form() {
        let json = serde_json::to_string(&report().to_object()).unwrap();
        assert_eq!(
            json,
            r#"{"ok":1,"warn":1,"fail":1,"skip":0,"checks":[{"check":"fsync","subject":null,"level":"ok","found":"it is on","fix":null,"fix_kind":null,"fixable":false},{"check":"autovacuum","subject":"shop.outbox","level":"warn","found":"it is off","fix":"ALTER TABLE x","fix_kind":"sql","fixable":false},{"check":"schema","subject":null,"level":"fail","found":"it has no tables","fix":"postrider migrate --from sqlite:a.db","fix_kind":"command","fixable":true}],"mended":[]}"#
        );
    }

    #[test]
    fn the_text_has_a_line_for_each_check_and_one_for_its_fix() {
        let expected = "\
OK    fsync                   it is on
WARN  autovacuum shop.outbox  it is off
                              fix: ALTER TABLE x
FAIL  schema                  it has no tables
                              fix: postrider migrate --from sqlite:a.db

3 checks: 1 ok, 1 warnings, 1 failed, 0 skipped
";
        assert_eq!(report().to_text(), expected);
    }
}
