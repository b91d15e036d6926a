//! Slots from the command line: looked at, made before a relay runs, and dropped.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;
use support::postgres::Postgres;
use support::{Ran, Running, wait_until};

const CONFIG: [&str; 2] = ["--config", "p.toml"];
const PAID: &str = "SELECT outbox_publish_message('order', 'o-1', 'OrderPaid', '{}'::jsonb)";

/// An outbox whose pipeline reads the log. The pipeline is named as the schema, so that no two
/// tests have a slot in common.
fn outbox() -> Postgres {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    write_config(&postgres, "mode = \"cdc\"\nprogress = \"cursor\"\n");
    postgres
}

fn write_config(postgres: &Postgres, options: &str) {
    let Postgres { fixture, schema, url } = postgres;
    let out = fixture.path("out.jsonl");
    let config = format!(
        "[source]\nurl = \"{url}\"\n[[pipeline]]\nname = \"{schema}\"\n{options}\
         sink = {{ url = \"file://{}\" }}\n",
        out.display()
    );
    fixture.write("p.toml", config);
    // It has a password in it.
    fs::set_permissions(fixture.path("p.toml"), Permissions::from_mode(0o600)).unwrap();
}

fn slot(postgres: &Postgres, args: &[&str]) -> Ran {
    postgres.fixture.run(&[&["slot"], args, &CONFIG].concat())
}

/// The only slot that is shown.
fn shown(postgres: &Postgres) -> Value {
    let ran = slot(postgres, &["show", "--json"]).assert_code(0);
    let mut shown: Value = serde_json::from_str(&ran.stdout).unwrap();
    let slots = shown["slots"].as_array_mut().unwrap();
    assert_eq!(slots.len(), 1, "{}", ran.stdout);
    slots.remove(0)
}

fn start_relay(postgres: &Postgres) -> Running {
    postgres.fixture.start(&["relay", CONFIG[0], CONFIG[1]])
}

fn stop(relay: &mut Running) {
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(0), "{}", relay.stderr());
}

#[test]
fn a_relay_goes_on_with_a_slot_that_was_made_before() {
    let postgres = outbox();
    let schema = &postgres.schema;
    slot(&postgres, &["create"]).assert_code(0).assert_talk(&[
        &format!("made the slot postrider_{schema}_"),
        &format!(" is kept for pipeline {schema}\n"),
    ]);
    let made = shown(&postgres);
    assert_eq!(made["pipeline"], schema.as_str());
    assert_eq!(made["state"], "reads_table");
    assert_eq!(made["confirmed_flush_lsn"], made["checkpoint_lsn"]);
    assert!(made["retained_wal_bytes"].as_u64().is_some(), "{made}");
    postgres.execute(PAID);

    let mut relay = start_relay(&postgres);
    wait_until("the event is delivered", || postgres.fixture.lines("out.jsonl").len() == 1);
    wait_until("the log is read", || shown(&postgres)["state"] == "streams");
    let status = postgres.fixture.run(&["status", CONFIG[0], CONFIG[1]]).assert_code(0);
    let row = status.stdout.lines().last().unwrap();
    assert!(row.starts_with(&format!("{schema}  postrider_{schema}_")), "{}", status.stdout);
    assert!(row.contains("  streams  reserved  "), "{}", status.stdout);
    for change in [["create"].as_slice(), &["drop"], &["drop", "--yes"]] {
        slot(&postgres, change).assert_code(6).assert_talk(&[
            &format!("runs pipeline \"{schema}\", and its slot is in its hands"),
            "  fix: stop the relay first",
        ]);
    }
    stop(&mut relay);
    assert!(!relay.stderr().contains("WARN"), "{}", relay.stderr());
    let after = shown(&postgres);
    assert_eq!((&after["state"], &after["log_only"]), (&"streams".into(), &true.into()));
    assert_eq!(after["slot"], made["slot"]);
}

#[test]
fn a_slot_that_can_be_relied_on_stays() {
    let postgres = outbox();
    let first = slot(&postgres, &["create", "--json"]).assert_code(0).stdout;
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["created"], true);
    let second = slot(&postgres, &["create", "--json"]).assert_code(0).stdout;
    let second: Value = serde_json::from_str(&second).unwrap();
    assert_eq!(second["created"], false);
    assert_eq!((&second["slot"], &second["lsn"]), (&first["slot"], &first["lsn"]));
    slot(&postgres, &["create"]).assert_code(0).assert_talk(&["is there already"]);
}

#[test]
fn one_that_is_gone_is_told_and_made_anew() {
    let postgres = outbox();
    let mut relay = start_relay(&postgres);
    relay.wait_for("the log is read from now on");
    stop(&mut relay);
    let name = shown(&postgres)["slot"].as_str().unwrap().to_owned();
    postgres.execute(&format!("SELECT pg_drop_replication_slot('{name}')"));
    let told = format!("the slot of pipeline {} is of no use, it is gone", postgres.schema);
    let show = slot(&postgres, &["show"]).assert_code(0).assert_talk(&[&told]);
    assert!(show.stdout.contains(&format!("{name}  missing  ")), "{}", show.stdout);
    let status = postgres.fixture.run(&["status", CONFIG[0], CONFIG[1]]).assert_code(0);
    assert!(status.stdout.contains(&format!("{name}  missing  ")), "{}", status.stdout);
    assert!(status.stdout.contains("its slot is of no use, it is gone"), "{}", status.stdout);
    let json = postgres.fixture.run(&["status", CONFIG[0], CONFIG[1], "--json"]).assert_code(0);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let slot_of_status = &json["pipelines"][0]["slot"];
    assert_eq!(
        (&slot_of_status["state"], &slot_of_status["why"]),
        (&"missing".into(), &"it is gone".into())
    );

    slot(&postgres, &["create"]).assert_code(0).assert_talk(&["made the slot "]);
    assert_eq!(shown(&postgres)["state"], "reads_table");
}

#[test]
fn events_of_the_log_alone_are_not_let_go_of_without_a_word() {
    let postgres = outbox();
    slot(&postgres, &["create"]).assert_code(0);
    postgres.execute(PAID);
    let mut relay = start_relay(&postgres);
    wait_until("it is delivered", || postgres.fixture.lines("out.jsonl").len() == 1);
    stop(&mut relay);
    let name = shown(&postgres)["slot"].as_str().unwrap().to_owned();

    postgres.execute(&format!("SELECT pg_drop_replication_slot('{name}')"));
    let show = slot(&postgres, &["show"]).assert_code(0);
    let status = postgres.fixture.run(&["status", CONFIG[0], CONFIG[1]]).assert_code(0);
    for told in [show.stderr, status.stdout] {
        for part in ["relays refuse to go on", "postrider slot drop ", CONFIG[1]] {
            assert!(told.contains(part), "{told}");
        }
    }
    slot(&postgres, &["create"])
        .assert_code(6)
        .assert_talk(&["may have had events that are in no table", "it is gone"]);
    slot(&postgres, &["drop"]).assert_code(2).assert_talk(&[
        "may have had events that are in no table: those not delivered yet are lost with its slot",
        "  fix: let a relay deliver them first, or publish them again; then add --yes",
    ]);
    assert_eq!(shown(&postgres)["state"], "missing");
    slot(&postgres, &["drop", "--yes"]).assert_code(0).assert_talk(&[
        &format!("dropped the slot {name}: events that only the log had and that were not"),
        "the next relay reads the table",
    ]);
    let dropped = shown(&postgres);
    assert_eq!((&dropped["state"], &dropped["log_only"]), (&"none".into(), &false.into()));
    let status = postgres.fixture.run(&["status", CONFIG[0], CONFIG[1]]).assert_code(0);
    assert!(!status.stdout.contains("SLOT"), "{}", status.stdout);

    // The pipeline goes on as a new one does.
    postgres.execute("SELECT outbox_publish('order', 'o-2', 'OrderPlaced', '{}'::jsonb)");
    let mut relay = start_relay(&postgres);
    wait_until("the table is read", || postgres.fixture.lines("out.jsonl").len() == 2);
    stop(&mut relay);
}

#[test]
fn a_slot_is_dropped() {
    let postgres = outbox();
    slot(&postgres, &["drop"]).assert_code(0).assert_talk(&["has no slot\n"]);
    slot(&postgres, &["create"]).assert_code(0);
    slot(&postgres, &["drop"]).assert_code(2).assert_talk(&["may have had events"]);
    let dropped = slot(&postgres, &["drop", "--yes", "--json"]).assert_code(0);
    let dropped: Value = serde_json::from_str(&dropped.stdout).unwrap();
    assert_eq!((&dropped["dropped"], &dropped["log_only"]), (&true.into(), &true.into()));
    let after = shown(&postgres);
    assert_eq!((&after["state"], &after["checkpoint_lsn"]), (&"none".into(), &Value::Null));
    let again = slot(&postgres, &["drop", "--json"]).assert_code(0);
    assert!(again.stdout.contains("\"dropped\":false"), "{}", again.stdout);
}

#[test]
fn whoever_stops_waiting_leaves_nothing_behind() {
    let postgres = outbox();
    let writer = postgres.session();
    writer.execute("BEGIN; SELECT pg_current_xact_id()");
    let mut create = postgres.fixture.start(&["slot", "create", CONFIG[0], CONFIG[1]]);
    let list = || slot(&postgres, &["show", "--json"]).assert_code(0).stdout;
    wait_until("the slot is being made", || list().contains("\"state\":\"making\""));
    slot(&postgres, &["create"]).assert_code(6).assert_talk(&["postrider slot runs pipeline"]);
    create.signal("TERM");
    assert_eq!(create.wait().code(), Some(4), "{}", create.stderr());
    create.wait_for("error: stopped before the slot was made");
    writer.execute("ROLLBACK");
    assert_eq!(shown(&postgres)["state"], "none");
    slot(&postgres, &["create"]).assert_code(0);
}

#[test]
fn a_slot_that_nobody_would_read_is_not_made() {
    let postgres = outbox();
    slot(&postgres, &["create", "another"])
        .assert_code(3)
        .assert_talk(&["p.toml has no pipeline \"another\", and no relay would read the slot"]);
    slot(&postgres, &["show", "another"])
        .assert_code(1)
        .assert_talk(&["no pipeline \"another\" has read outbox", "  fix: list them: "]);
    slot(&postgres, &["show"]).assert_code(0).assert_talk(&["no pipeline has read the outbox\n"]);
    write_config(&postgres, "mode = \"poll\"\n");
    slot(&postgres, &["create"])
        .assert_code(3)
        .assert_talk(&["polls, and its relay would drop the slot", "  fix: write mode = \"cdc\""]);
    let config = postgres.fixture.read("p.toml").replace("mode", "progress = \"cursor\"\nmode");
    let more =
        "[[pipeline]]\nname = \"more\"\nprogress = \"cursor\"\nsink = { url = \"stdout:\" }\n";
    postgres.fixture.write("p.toml", config + more);
    slot(&postgres, &["drop"]).assert_code(2).assert_talk(&["p.toml has 2 pipelines", ", more\n"]);
}

#[test]
fn sqlite_has_none() {
    let fixture = support::Fixture::migrated();
    for command in ["show", "create", "drop"] {
        fixture
            .run(&["slot", command, "--from", "sqlite://app.db"])
            .assert_code(3)
            .assert_talk(&["error: SQLite has no replication slots"]);
    }
}
