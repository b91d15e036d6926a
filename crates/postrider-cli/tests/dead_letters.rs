//! Dead letters from the command line: found, looked at, retried, discarded.

mod support;

use support::Fixture;

const FROM: [&str; 2] = ["--from", "sqlite://app.db"];

/// A database after a drain in which one event of order 1 was parked, with another behind it.
fn parked() -> (Fixture, String, String) {
    let fixture = Fixture::migrated();
    let bad = fixture.insert("1", "OrderPlaced", "this is not JSON");
    let behind = fixture.insert("1", "OrderPaid", "{}");
    fixture.insert("2", "OrderPlaced", "{}");
    drain(&fixture).assert_talk(&[
        "1 event was parked; see: postrider dlq list --from sqlite://app.db",
        "delivered 1 event",
    ]);
    let lines = fixture.lines("out.jsonl");
    assert_eq!(lines.len(), 1, "{lines:?}");
    (fixture, bad, behind)
}

fn drain(fixture: &Fixture) -> support::Ran {
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    fixture.run(&["relay", FROM[0], FROM[1], "--to", &to, "--drain"]).assert_code(0)
}

fn dlq(fixture: &Fixture, args: &[&str]) -> support::Ran {
    fixture.run(&[&["dlq"], args, &FROM].concat())
}

#[test]
fn they_are_listed_and_shown() {
    let (fixture, bad, _) = parked();
    let list = dlq(&fixture, &["list"]).assert_code(0);
    assert!(list.stdout.contains(&bad) && list.stdout.contains("Order/1"), "{}", list.stdout);
    assert!(!list.stdout.contains("total"), "a list has no payloads: {}", list.stdout);
    let json = dlq(&fixture, &["list", "--json"]).assert_code(0);
    let start = format!(
        r#"{{"dead_letters":[{{"pipeline":"default","event_id":"{bad}","aggregate_type":"Order","aggregate_id":"1","event_type":"OrderPlaced","kind":""#
    );
    assert!(json.stdout.starts_with(&start), "{}", json.stdout);
    assert!(json.stdout.contains(r#""queued_behind":1}],"next":null}"#), "{}", json.stdout);

    let show = dlq(&fixture, &["show", &bad]).assert_code(0);
    assert!(show.stdout.contains("headers       this is not JSON\n"), "{}", show.stdout);
    assert!(
        show.stdout.ends_with("payload       15 bytes\n\n{\"total\": 1.50}\n"),
        "{}",
        show.stdout
    );
    let json = dlq(&fixture, &["show", &bad, "--json"]).assert_code(0);
    let end =
        r#""headers":"this is not JSON","payload_encoding":"json","payload":{"total": 1.50}}"#;
    assert!(json.stdout.trim_end().ends_with(end), "{}", json.stdout);
    dlq(&fixture, &["show", "none"]).assert_code(1).assert_talk(&["there is no dead letter none"]);

    let none = dlq(&fixture, &["list", "--key", "Order/2"]).assert_code(0);
    assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", "no dead letters\n"));
    let status = fixture.run(&["status", FROM[0], FROM[1]]).assert_code(0).stdout;
    let why = "WARN  default: 1 event is parked; 1 key is blocked, with 1 event behind\n      \
               help: postrider dlq list --pipeline default --from sqlite://app.db\n";
    assert!(status.ends_with(why), "{status}");
}

#[test]
fn a_retry_publishes_in_order() {
    let (fixture, bad, _) = parked();
    // Retrying what is still broken parks it again.
    dlq(&fixture, &["retry", &bad])
        .assert_code(0)
        .assert_talk(&["1 dead letter will be published"]);
    drain(&fixture).assert_talk(&["1 event was parked"]);
    fixture.database().execute("UPDATE outbox_failures SET headers = '{}'", []).unwrap();
    dlq(&fixture, &["retry", "--all", "--yes"]).assert_code(0);
    drain(&fixture).assert_talk(&["delivered 2 events"]);
    let lines = fixture.lines("out.jsonl");
    assert_eq!(lines.len(), 3);
    assert!(lines[1].contains("OrderPlaced") && lines[2].contains("OrderPaid"), "{lines:?}");
}

#[test]
fn a_discard_lets_the_key_go_on() {
    let (fixture, bad, behind) = parked();
    let dry = dlq(&fixture, &["discard", &bad, "--dry-run"]).assert_code(0);
    assert!(dry.stdout.contains(&bad), "{}", dry.stdout);
    assert_eq!(dry.stderr, "would discard 1 dead letter; nothing was changed\n");
    let json = dlq(&fixture, &["discard", &bad, "--yes", "--json"]).assert_code(0);
    assert_eq!(
        json.stdout,
        "{\"action\":\"discard\",\"dry_run\":false,\"count\":1,\"not_found\":[]}\n"
    );
    drain(&fixture).assert_talk(&["delivered 1 event"]);
    assert!(fixture.lines("out.jsonl")[1].contains(&behind));
}

#[test]
fn nobody_to_ask_is_2_and_changes_nothing() {
    let (fixture, bad, _) = parked();
    for args in [["discard", bad.as_str()].as_slice(), &["discard", "--all"], &["retry", "--all"]] {
        dlq(&fixture, args).assert_code(2).assert_talk(&["  fix: add --yes"]);
    }
    assert!(dlq(&fixture, &["list"]).stdout.contains(&bad));
}

#[test]
fn ids_that_are_not_there_are_told() {
    let (fixture, bad, _) = parked();
    for args in [["retry", "none"].as_slice(), &["retry", "none", "--dry-run"]] {
        let ran = dlq(&fixture, args).assert_code(1);
        let expected = "error: no dead letter has the id none\n  fix: list them: ";
        assert!(ran.stderr.starts_with(expected), "{}", ran.stderr);
    }
    dlq(&fixture, &["retry", &bad, "none"])
        .assert_code(7)
        .assert_talk(&["no dead letter has the id none", "1 dead letter will be published again"]);
}

#[test]
fn they_are_filtered_grouped_and_exported() {
    let fixture = Fixture::migrated();
    for order in 1..=3 {
        fixture.insert(&order.to_string(), "OrderPlaced", "this is not JSON");
    }
    fixture.insert("4", "OrderPaid", "[1]");
    drain(&fixture);
    let json = dlq(&fixture, &["list", "--by", "error", "--json"]).assert_code(0).stdout;
    assert!(json.contains(r#""count":4"#) && json.ends_with("\"total\":1}\n"), "{json}");
    let text = dlq(&fixture, &["list", "--by", "error"]).assert_code(0).stdout;
    assert!(text.starts_with("COUNT  FIRST") && text.contains("at column #"), "{text}");
    for (filter, count) in [
        (["--type", "OrderPaid"], 1),
        (["--kind", "rejected"], 4),
        (["--kind", "failed"], 0),
        (["--error", "JSON OBJECT"], 4),
        (["--since", "1h"], 4),
        (["--until", "1h"], 0),
    ] {
        let args = [&["retry", "--all", "--dry-run", "--json"][..], &filter].concat();
        let json = dlq(&fixture, &args).assert_code(0).stdout;
        assert!(json.contains(&format!(r#""count":{count},"#)), "{filter:?}: {json}");
    }
    dlq(&fixture, &["list", "--since", "yesterday"]).assert_code(2);

    let export = ["export", "--output", "dead.jsonl"];
    dlq(&fixture, &export).assert_code(0).assert_talk(&["wrote 4 dead letters to dead.jsonl"]);
    let lines = fixture.lines("dead.jsonl");
    assert_eq!(lines.len(), 4);
    assert!(lines[0].starts_with(r#"{"cursor":1,"pipeline":"default""#), "{lines:?}");
    assert!(lines[0].ends_with(r#""payload":{"total": 1.50}}"#), "{lines:?}");
    dlq(&fixture, &export).assert_code(1).assert_talk(&["cannot write dead.jsonl", "  fix: "]);
    dlq(&fixture, &[&export[..], &["--after", "3"]].concat()).assert_code(0);
    assert_eq!(fixture.lines("dead.jsonl").len(), 5);
    let stdout = dlq(&fixture, &["export", "--type", "OrderPaid"]).assert_code(0).stdout;
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
}

/// Whoever can write to the folder of an export could have it appended to a file of the operator.
#[cfg(unix)]
#[test]
fn an_export_follows_no_link_in_a_folder_that_others_can_write() {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let (fixture, _, _) = parked();
    let (shared, target) = (fixture.path("shared"), fixture.path("target.jsonl"));
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    fs::write(&target, "kept\n").unwrap();
    symlink(&target, shared.join("dead.jsonl")).unwrap();
    let export = ["export", "--output", "shared/dead.jsonl", "--after", "0"];
    let expected = ["cannot write shared/dead.jsonl", "symbolic link", "  fix: "];
    dlq(&fixture, &export).assert_code(5).assert_talk(&expected);
    assert_eq!(fixture.read("target.jsonl"), "kept\n");
    // Where nobody else can write, a link is the operator's own.
    symlink(&target, fixture.path("own.jsonl")).unwrap();
    dlq(&fixture, &["export", "--output", "own.jsonl", "--after", "0"]).assert_code(0);
    assert_eq!(fixture.lines("target.jsonl").len(), 2);
}

/// An event and a server choose what stands in the log and in errors.
#[test]
fn no_event_writes_a_line_of_the_log_or_turns_one() {
    let fixture = Fixture::migrated();
    fixture.insert("1\u{202e}7", "OrderPlaced", "this is not JSON");
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    let relay = [&["relay"], &FROM[..], &["--to", &to, "--drain"]].concat();
    for format in ["text", "json"] {
        let ran = fixture.run(&[&relay[..], &["--log-format", format]].concat());
        assert!(!ran.stderr.contains('\u{202e}'), "{format}: {}", ran.stderr);
        if format == "text" {
            dlq(&fixture, &["retry", "--all", "--yes"]).assert_code(0);
        }
    }
    for args in [["list"].as_slice(), &["list", "--json"], &["export"]] {
        let stdout = dlq(&fixture, args).assert_code(0).stdout;
        assert!(!stdout.contains('\u{202e}') && stdout.contains("202e"), "{args:?}: {stdout}");
    }
}

#[test]
fn a_database_that_stays_locked_is_4() {
    let (fixture, bad, _) = parked();
    let writer = fixture.database();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    dlq(&fixture, &["retry", &bad]).assert_code(4).assert_talk(&["error: ", "  fix: "]);
    writer.execute_batch("ROLLBACK").unwrap();
    dlq(&fixture, &["retry", &bad]).assert_code(0);
}

/// G-01: an outbox whose numbers begin anew has other events where discarded ones were.
#[test]
fn a_new_event_is_not_taken_for_one_that_was_discarded() {
    let fixture = Fixture::migrated();
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    let drain = || {
        let cursor = ["--progress", "cursor", "--to", &to, "--drain"];
        fixture.run(&[&["relay"], &FROM[..], &cursor].concat()).assert_code(0)
    };
    fixture.insert("1", "OrderPlaced", "this is not JSON");
    drain().assert_talk(&["1 event was parked"]);
    dlq(&fixture, &["discard", "--all", "--yes"]).assert_code(0);
    let anew = "DELETE FROM outbox; DELETE FROM sqlite_sequence; DELETE FROM outbox_checkpoints";
    fixture.database().execute_batch(anew).unwrap();
    fixture.insert("1", "OrderPlaced", "{}");
    let new = "01900000-0000-7000-8000-00000000beef";
    fixture.database().execute("UPDATE outbox SET id = ?1", [new]).unwrap();
    drain().assert_talk(&["delivered 1 event"]);
    let lines = fixture.lines("out.jsonl");
    assert!(lines.len() == 1 && lines[0].contains(new), "{lines:?}");
}
