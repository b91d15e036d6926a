//! `postrider bench` against real databases and brokers: it finds figures, keeps its limits, and
//! leaves nothing behind, however it ends.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

#[path = "measuring/brokers.rs"]
mod brokers;
#[path = "measuring/ending.rs"]
mod ending;
#[path = "measuring/figures.rs"]
mod figures;
#[path = "measuring/refusing.rs"]
mod refusing;

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use support::Fixture;
use support::postgres::{Session, server};

/// Everything in a database that has a name and could be left.
const CATALOG: &str = "
    SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'
    UNION ALL SELECT 'relation ' || oid::regclass FROM pg_class
      WHERE relnamespace::regnamespace::text !~ '^pg_(toast|temp)'
    UNION ALL SELECT 'function ' || oid::regprocedure FROM pg_proc
    UNION ALL SELECT 'publication ' || pubname FROM pg_publication
    UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots
      WHERE database = current_database()
    ORDER BY 1";

/// A database of a test's own, and a directory to run commands in.
struct Database {
    fixture: Fixture,
    name: String,
    url: String,
}

impl Database {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bench_{}_{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Session::new(&server()).execute(&format!("CREATE DATABASE {name}"));
        let url = format!("{}/{name}", server().rsplit_once('/').unwrap().0);
        Self { fixture: Fixture::new(), name, url }
    }

    fn session(&self) -> Session {
        Session::new(&self.url)
    }

    fn catalog(&self) -> Vec<String> {
        self.session().texts(CATALOG)
    }

    /// The scratch schemas that are there.
    fn schemas(&self) -> Vec<String> {
        let sql = "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname, 'postrider_')";
        self.session().texts(sql)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        Session::new(&server()).execute(&sql);
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// What is in the folder of a fixture.
fn files(fixture: &Fixture) -> Vec<String> {
    let entries = std::fs::read_dir(fixture.path(".")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
