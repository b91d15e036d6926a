//! `postrider audit` from the command line: what it prints, how it ends, and what it refuses.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::fs::File;
use std::process::Stdio;

use serde_json::Value;
use support::postgres::Postgres;
use support::{Fixture, Running, wait_until};

const PAID: &str =
    "SELECT outbox_publish('Order', '1', 'OrderPaid', '{\"secret\":\"canary\"}'::jsonb)";

fn shop() -> Postgres {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    postgres.execute("CREATE TABLE orders (id bigint PRIMARY KEY, state text)");
    postgres.execute("CREATE TABLE payments (id bigint PRIMARY KEY)");
    postgres
}

/// Starts it, with what it prints in a file, and waits until it watches.
fn start(postgres: &Postgres, args: &[&str], out: &str) -> Running {
    let args = [&["audit", "--from", &postgres.url, "--tables", "orders,payments"], args].concat();
    let file = File::create(postgres.fixture.path(out)).unwrap();
    let mut command = postgres.fixture.command(&args);
    let audit = Running::new(command.stdout(file).stderr(Stdio::piped()).spawn().unwrap());
    wait_until("it watches", || {
        let begun = audit.stderr() + &postgres.fixture.read(out);
        begun.contains("watching ") || begun.contains("{\"watching\":")
    });
    audit
}

fn stop(audit: &mut Running) -> i32 {
    audit.signal("INT");
    audit.wait().code().unwrap()
}

#[test]
fn an_interrupt_ends_it_with_a_report_in_one_screen() {
    let postgres = shop();
    let schema = &postgres.schema;
    let mut audit = start(&postgres, &[], "report.txt");
    audit.wait_for(&format!("watching {schema}.orders, {schema}.payments and the events of"));
    audit.wait_for(", until it is interrupted");
    postgres.execute(&format!("BEGIN; INSERT INTO orders VALUES (1, 'canary'); {PAID}; COMMIT"));
    postgres.execute("UPDATE orders SET state = 'paid'");
    audit.wait_for(&format!("changed {schema}.orders: 1 update and wrote no event"));
    postgres.execute("UPDATE orders SET state = 'shipped'");
    postgres.execute(PAID);
    assert_eq!(stop(&mut audit), 7, "{}", audit.stderr());
    let report = postgres.fixture.read("report.txt");
    let lines: Vec<&str> = report.lines().collect();
    assert!(
        lines[0].starts_with("4 transactions changed the tables or wrote events in "),
        "{report}"
    );
    assert_eq!(lines[1], "2 transactions changed the tables and wrote no event");
    assert!(lines[2].starts_with("COUNT  CHANGED "), "{report}");
    assert!(lines[3].starts_with(&format!("2      {schema}.orders: 2 updates  ")), "{report}");
    assert_eq!(lines[4], "1 transaction wrote events and changed none of the tables");
    assert!(lines[6].starts_with("1      Order OrderPaid  "), "{report}");
    assert!(lines[6].contains("  Order/1  "), "{report}");
    assert_eq!(lines.len(), 7, "{report}");
    audit.wait_for(
        "error: 2 transactions changed the tables and wrote no event; 1 transaction wrote events \
         and changed none of the tables",
    );
    audit.wait_for("  fix: write the event in the transaction of the change");
    assert_eq!(audit.stderr().matches("and wrote no event; others").count(), 1);
    assert!(!(report + &audit.stderr()).contains("canary"));
}

#[test]
fn json_is_a_line_for_each_finding_and_a_summary() {
    let postgres = shop();
    let orders = format!("{}.orders", postgres.schema);
    let mut audit = start(&postgres, &["--json"], "findings.jsonl");
    postgres.execute("INSERT INTO orders VALUES (1, 'canary'), (2, 'canary')");
    postgres.execute("INSERT INTO orders VALUES (3, 'canary')");
    postgres.execute(PAID);
    assert_eq!(stop(&mut audit), 7, "{}", audit.stderr());
    let lines = postgres.fixture.lines("findings.jsonl");
    assert!(!lines.concat().contains("canary"), "{lines:?}");
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["finding"].as_str()).collect();
    assert_eq!(kinds, ["no_event", "no_event", "event_only"]);
    let watching = &lines[0]["watching"];
    assert_eq!(watching["tables"][0], orders.as_str());
    let first = &lines[1];
    let table = serde_json::json!([{
        "table": orders, "inserts": 2, "updates": 0, "deletes": 0, "truncates": 0
    }]);
    assert_eq!((&first["tables"], &first["events"]), (&table, &0.into()));
    assert!(first["xid"].is_u64() && first["lsn"].as_str().unwrap().contains('/'), "{first}");
    assert!(first["committed_at"].as_str().unwrap().ends_with('Z'), "{first}");
    let event = &lines[3]["first_events"][0];
    assert_eq!(event["event_type"], "OrderPaid");
    assert_eq!((&event["aggregate_type"], &event["aggregate_id"]), (&"Order".into(), &"1".into()));
    assert_eq!(event["event_id"].as_str().unwrap().len(), 36);
    let summary = &lines[4]["summary"];
    assert_eq!(
        (&summary["clean"], &summary["complete"], &summary["transactions"]),
        (&false.into(), &true.into(), &3.into())
    );
    let group = &summary["groups"][0];
    assert_eq!((&group["finding"], &group["count"]), (&"no_event".into(), &2.into()));
    assert_eq!(group["tables"][0]["inserts"], 3);
    assert_eq!((&group["first"]["xid"], &group["last"]["xid"]), (&first["xid"], &lines[2]["xid"]));
    let error: Value = serde_json::from_str(audit.stderr().lines().last().unwrap()).unwrap();
    assert_eq!(error["exit_code"], 7);
}

#[test]
fn a_time_ends_it_and_nothing_found_is_0() {
    let postgres = shop();
    let config = format!("[source]\nurl = \"{}\"\n", postgres.url);
    let config = config + "[[pipeline]]\nname = \"p\"\nsink = { url = \"stdout:\" }\n";
    postgres.fixture.write("p.toml", config);
    let args = ["audit", "--config", "p.toml", "--tables", "orders:insert", "--for", "1s"];
    let ran = postgres.fixture.run(&args).assert_code(0).assert_talk(&[", for 1s\n"]);
    assert!(ran.stdout.contains("0 transactions changed the tables and wrote no event"));
    let ran = postgres.fixture.run(&[&args[..], &["--json"]].concat()).assert_code(0);
    let summary = ran.stdout.lines().last().unwrap();
    assert!(summary.starts_with("{\"summary\":{\"clean\":true,\"complete\":true,"), "{summary}");
    assert_eq!(ran.stderr, "");
}

#[test]
fn events_alone_can_be_allowed() {
    let postgres = shop();
    let mut audit = start(&postgres, &["--allow-event-only"], "report.txt");
    postgres.execute(PAID);
    assert_eq!(stop(&mut audit), 0, "{}", audit.stderr());
    assert!(postgres.fixture.read("report.txt").starts_with("1 transaction changed "));
}

#[test]
fn one_that_is_killed_keeps_nothing_of_the_servers_log() {
    let postgres = shop();
    let session = postgres.session();
    let publications = "SELECT FROM pg_publication_rel WHERE prrelid = 'orders'::regclass";
    let none = |what: &str| format!("DO $$ BEGIN ASSERT NOT EXISTS ({what}); END $$");
    let mut audit = start(&postgres, &[], "report.txt");
    assert!(session.try_execute(&none(publications)).is_err());
    // All slots whose publications have this table.
    let slots = "SELECT FROM pg_replication_slots AS s JOIN pg_publication AS p
         ON starts_with(p.pubname, s.slot_name) JOIN pg_publication_rel AS t ON t.prpubid = p.oid
         WHERE t.prrelid = 'orders'::regclass";
    assert!(session.try_execute(&none(slots)).is_err());
    audit.signal("KILL");
    assert!(!audit.wait().success());
    wait_until("its slot is gone", || session.try_execute(&none(slots)).is_ok());
    // What is left of it is removed by the next one.
    let mut audit = start(&postgres, &[], "report.txt");
    assert_eq!(stop(&mut audit), 0, "{}", audit.stderr());
    session.try_execute(&none(publications)).unwrap();
}

#[test]
fn what_cannot_be_audited_is_refused_with_what_can() {
    let postgres = shop();
    let fixture = Fixture::migrated();
    fixture
        .run(&["audit", "--from", "sqlite://app.db", "--tables", "orders"])
        .assert_code(3)
        .assert_talk(&[
            "SQLite has no log of its transactions",
            "  fix: PostgreSQL has: postrider audit",
        ]);
    fixture
        .run(&["audit", "--from", "mysql://me:canary@host/shop", "--tables", "orders"])
        .assert_code(3)
        .assert_talk(&["MySQL cannot be audited", "  fix: audit PostgreSQL: --from postgres://"]);
    fixture
        .run(&["audit", "--from", "sqlite://app.db"])
        .assert_code(2)
        .assert_talk(&["--tables <TABLES>"]);
    fixture
        .run(&["audit", "--from", "sqlite://app.db", "--tables", "orders:upsert"])
        .assert_code(2)
        .assert_talk(&["\"upsert\" is none of insert, update, delete, truncate"]);
    postgres
        .fixture
        .run(&["audit", "--from", &postgres.url, "--tables", "ordres"])
        .assert_code(3)
        .assert_talk(&[
            "has no table ordres",
            &format!("  fix: did you mean {}.orders?", postgres.schema),
        ]);
}
