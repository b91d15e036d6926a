//! `postrider doctor`: trouble is made, found with its fix, mended by that fix, and found no more.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

#[path = "doctor/configuration.rs"]
mod configuration;
#[path = "doctor/postgres.rs"]
mod postgres;
#[path = "doctor/sqlite.rs"]
mod sqlite;
mod support;

use serde_json::Value;
use support::{Fixture, Ran};

const GUIDE: &str = include_str!("../../../docs/guides/doctor.md");

/// What the doctor has found.
struct Found {
    ran: Ran,
    checks: Vec<Value>,
}

impl Found {
    fn new(ran: Ran) -> Self {
        let report: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", ran.stdout, ran.stderr));
        let checks = report["checks"].as_array().unwrap().clone();
        for check in &checks {
            let listed = format!("| `{}` |", check["check"].as_str().unwrap());
            assert!(GUIDE.contains(&listed), "docs/guides/doctor.md does not explain {listed}");
        }
        let fails = checks.iter().filter(|check| check["level"] == "fail").count();
        assert_eq!(ran.code, if fails > 0 { 6 } else { 0 }, "{}", ran.stdout);
        Self { ran, checks }
    }

    /// The findings of a check.
    fn all(&self, check: &str) -> Vec<&Value> {
        self.checks.iter().filter(|found| found["check"] == check).collect()
    }

    /// The only finding of a check.
    #[track_caller]
    fn one(&self, check: &str) -> &Value {
        let found = self.all(check);
        assert_eq!(found.len(), 1, "{check}: {}", self.ran.stdout);
        found[0]
    }

    /// Checks the level of a check, and answers what it says.
    #[track_caller]
    fn is(&self, check: &str, level: &str) -> &str {
        let found = self.one(check);
        assert_eq!(found["level"], level, "{found}");
        found["found"].as_str().unwrap()
    }

    /// The SQL that mends a check.
    #[track_caller]
    fn sql(&self, check: &str) -> &str {
        let found = self.one(check);
        assert_eq!(found["fix_kind"], "sql", "{found}");
        found["fix"].as_str().unwrap()
    }
}

fn doctor(fixture: &Fixture, args: &[&str]) -> Found {
    Found::new(fixture.run(&[&["doctor", "--json"], args].concat()))
}
