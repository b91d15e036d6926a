//! Pruning from the command line: looked at first, then done, with what was removed in an
//! archive.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::fs;

use support::Fixture;

const FROM: [&str; 2] = ["--from", "sqlite://app.db"];

/// A database with three events that were published long ago, and one that was just now.
fn published() -> Fixture {
    let fixture = Fixture::migrated();
    for order in ["1", "2", "3", "4"] {
        fixture.insert(order, "OrderPlaced", "{}");
    }
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    fixture.run(&["relay", FROM[0], FROM[1], "--to", &to, "--drain"]).assert_code(0);
    let database = fixture.database();
    let past = "2020-01-01T00:00:00.000000Z";
    let changed = database.execute("UPDATE outbox SET published_at = ?1 WHERE seq < 4", [past]);
    assert_eq!(changed, Ok(3));
    fixture
}

fn prune(fixture: &Fixture, args: &[&str]) -> support::Ran {
    fixture.run(&[&["prune"], args, &FROM].concat())
}

fn rows(fixture: &Fixture) -> i64 {
    let count = fixture.database().query_one("SELECT count(*) FROM outbox", [], |row| row.get(0));
    count.unwrap()
}

#[test]
fn what_is_past_its_retention_goes() {
    let fixture = published();
    prune(&fixture, &["--keep", "7d", "--yes"]).assert_code(0).assert_talk(&["removed 3 events\n"]);
    assert_eq!(rows(&fixture), 1);
    prune(&fixture, &["--keep", "7d", "--yes"])
        .assert_code(0)
        .assert_talk(&["nothing to remove\n"]);
}

#[test]
fn a_dry_run_only_looks() {
    let fixture = published();
    let talk = "would remove 3 events; nothing was changed\n";
    prune(&fixture, &["--keep", "7d", "--dry-run"]).assert_code(0).assert_talk(&[talk]);
    let json = prune(&fixture, &["--keep", "7d", "--dry-run", "--json"]).assert_code(0);
    assert_eq!(
        json.stdout,
        "{\"dry_run\":true,\"events\":3,\"events_is_capped\":false,\"partitions\":[],\
         \"archives\":[],\"left\":[]}\n"
    );
    assert_eq!(rows(&fixture), 4);
}

#[test]
fn nobody_to_ask_is_2_and_changes_nothing() {
    let fixture = published();
    let question = "remove 3 events for good? nobody can be asked here";
    let ran = prune(&fixture, &["--keep", "7d"]).assert_code(2);
    ran.assert_talk(&[question, "  fix: add --yes, or look first with --dry-run"]);
    assert_eq!(rows(&fixture), 4);
}

#[test]
fn the_archive_is_told() {
    let fixture = published();
    fs::create_dir(fixture.path("archive")).unwrap();
    let ran = prune(&fixture, &["--keep", "7d", "--archive", "archive", "--yes"]).assert_code(0);
    let path = ran.stdout.trim_end();
    assert!(path.starts_with("archive/outbox-") && path.ends_with("-1.jsonl.gz"), "{path}");
    assert!(fixture.path(path).exists());
    let missing = prune(&fixture, &["--keep", "0s", "--archive", "none", "--yes"]).assert_code(3);
    missing.assert_talk(&["error: cannot write to the archive none", "  fix: create the folder"]);
    assert_eq!(rows(&fixture), 1);
}

#[test]
fn whoever_holds_it_up_is_named() {
    let fixture = published();
    fixture
        .database()
        .execute(
            "INSERT INTO outbox_checkpoints (pipeline, progress, position, updated_at)
             VALUES ('audit', 'cursor', 1, '2026-01-01T00:00:00Z')",
            [],
        )
        .unwrap();
    let held = "pipeline \"audit\" has not published everything that is old enough\n";
    prune(&fixture, &["--keep", "7d", "--yes"])
        .assert_code(0)
        .assert_talk(&["removed 1 event\n", held]);
    let fresh = Fixture::migrated();
    fresh.insert("1", "OrderPlaced", "{}");
    let why = "nothing goes before a pipeline has read the outbox; run a relay\n";
    prune(&fresh, &["--keep", "0s", "--yes"]).assert_code(0).assert_talk(&[why]);
}

#[test]
fn retention_comes_from_the_file_or_a_flag() {
    let fixture = published();
    prune(&fixture, &["--yes"])
        .assert_code(2)
        .assert_talk(&["nothing says how long published events stay", "  fix: add --keep 7d"]);
    prune(&fixture, &["--keep", "7", "--yes"]).assert_code(2).assert_talk(&["12h or 7d"]);
    let config = "[source]\nurl = \"sqlite://app.db\"\n[[pipeline]]\nname = \"default\"\n\
                  [pipeline.sink]\nurl = \"stdout:\"\n[prune]\nkeep = \"7d\"\n";
    fixture.write("postrider.toml", config);
    fixture
        .run(&["prune", "--config", "postrider.toml", "--yes"])
        .assert_code(0)
        .assert_talk(&["removed 3 events\n"]);
}
