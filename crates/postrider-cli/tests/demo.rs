//! The demo, run for real with few orders.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Fixture, wait_until};

const COUNTS: [&str; 7] =
    ["committed", "delivered", "lost", "ghost", "duplicated", "applied_twice", "out_of_order"];

/// Runs the demo and gives back the object of its last line.
fn run(fixture: &Fixture, seed: &str) -> Value {
    let args = ["demo", "--seed", seed, "--orders", "10", "--json"];
    let ran = fixture.run(&args).assert_code(0);
    let report: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    for way in ["naive", "postrider"] {
        assert!(COUNTS.iter().all(|name| report[way][name].is_u64()), "{report}");
    }
    report
}

fn assert_shows_the_point(report: &Value) {
    let (naive, postrider) = (&report["naive"], &report["postrider"]);
    let count = |counts: &Value, name: &str| counts[name].as_u64().unwrap();
    for name in ["lost", "ghost", "applied_twice", "out_of_order"] {
        assert_eq!(count(postrider, name), 0, "{report}");
    }
    assert!(count(postrider, "duplicated") > 0, "the inbox had nothing to do: {report}");
    for name in ["lost", "ghost", "duplicated", "applied_twice"] {
        assert!(count(naive, name) > 0, "nothing {name}: {report}");
    }
    for counts in [naive, postrider] {
        assert_eq!(count(counts, "committed"), 50, "{report}");
        let arrived_or_lost = count(counts, "delivered") + count(counts, "lost");
        assert_eq!(count(counts, "committed"), arrived_or_lost, "{report}");
    }
}

#[test]
fn losses_and_ghosts_without_an_outbox_and_none_with_it() {
    let fixture = Fixture::new();
    let reports = ["1", "2"].map(|seed| run(&fixture, seed));
    reports.iter().for_each(assert_shows_the_point);
    assert_ne!(reports[0]["troubles"], Value::Null);
    assert_eq!(reports[0]["seed"], 1);
}

#[test]
fn people_get_a_table_and_may_keep_the_databases() {
    let fixture = Fixture::new();
    let args = ["demo", "--seed", "3", "--orders", "8", "--keep", "kept"];
    let ran = fixture.run(&args).assert_code(0);
    assert!(ran.stdout.starts_with("events "), "{}", ran.stdout);
    assert!(ran.stdout.contains("\napplied twice "), "{}", ran.stdout);
    assert!(ran.stderr.contains("seed 3"), "{}", ran.stderr);
    assert!(fixture.path("kept/postrider/shop.db").exists());
    let again = fixture.run(&args).assert_code(1);
    assert!(again.stderr.contains("is there already"), "{}", again.stderr);
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let fixture = Fixture::new();
    let home = fixture.path("tmp");
    std::fs::create_dir(&home).unwrap();
    let entries = || std::fs::read_dir(&home).unwrap().count();
    let mut command = fixture.command(&["demo", "--seed", "4"]);
    let command = command.env("TMPDIR", &home).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    let mut talk = BufReader::new(demo.stderr.take().unwrap()).lines();
    assert!(talk.any(|line| line.unwrap().contains(", broker has ")), "no progress");
    assert_eq!(entries(), 1);
    let kill = Command::new("kill").args(["-s", "INT", &demo.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let mut status = None;
    wait_until("the demo ends", || {
        status = demo.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(1));
    assert!(talk.any(|line| line.unwrap().contains("the demo was interrupted")));
    assert_eq!(entries(), 0, "the directory is removed");
}
