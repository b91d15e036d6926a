//! `postrider status` and `postrider check`: why a pipeline is not green, for people and machines.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::Value;
use support::http::serve;
use support::postgres::Postgres;
use support::{Fixture, wait_until};

const FROM: [&str; 2] = ["--from", "sqlite:app.db"];
const OLD: &str = "UPDATE outbox SET created_at = '2020-01-31T12:00:00.000Z'";

fn status(fixture: &Fixture, args: &[&str]) -> Value {
    let ran = fixture.run(&[&["status", "--json"], args].concat()).assert_code(0);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// The codes of the reasons of the only pipeline.
fn codes(status: &Value) -> Vec<&str> {
    let reasons = status["pipelines"][0]["reasons"].as_array().unwrap();
    reasons.iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

#[test]
fn it_says_why_a_pipeline_is_not_green() {
    let fixture = Fixture::migrated();
    let green = status(&fixture, &FROM);
    assert_eq!((&green["verdict"], codes(&green)), (&"ok".into(), vec![]));
    fixture.insert("1", "OrderPaid", "{}");
    let waits = status(&fixture, &FROM);
    assert_eq!((&waits["verdict"], codes(&waits)), (&"warn".into(), vec!["never_run"]));
    let command = &waits["pipelines"][0]["reasons"][0]["command"];
    assert_eq!(command, "postrider relay --from sqlite:app.db --to URL");
    fixture.database().execute_batch(OLD).unwrap();
    let late = status(&fixture, &FROM);
    assert_eq!((&late["verdict"], codes(&late)), (&"fail".into(), vec!["never_run", "late"]));
    let text = fixture.run(&["status", FROM[0], FROM[1]]).assert_code(0).stdout;
    assert!(text.contains("\nFAIL  default: 1 event waits, the oldest for "), "{text}");

    fixture.insert("2", "OrderPaid", "this is not JSON");
    let drain = ["relay", FROM[0], FROM[1], "--to", "file:out.jsonl", "--drain"];
    fixture.run(&drain).assert_code(0);
    let parked = status(&fixture, &FROM);
    assert_eq!((&parked["verdict"], codes(&parked)), (&"warn".into(), vec!["parked"]));
}

#[test]
fn a_sink_that_refuses_everything_is_in_the_status() {
    let fixture = Fixture::migrated();
    for order in 0..20 {
        fixture.insert(&order.to_string(), "OrderPaid", "{}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let is_well = Arc::new(AtomicBool::new(false));
    let answers = is_well.clone();
    serve(listener, move |_| (if answers.load(Relaxed) { 204 } else { 403 }, Vec::new()));
    let config = format!(
        "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"hooks\"\n[pipeline.retry]\n\
         attempts = 100\ninitial = \"10ms\"\nmax = \"50ms\"\n[pipeline.sink]\nurl = \"{url}\"\n\
         allow_private = true\n"
    );
    fixture.write("p.toml", config);
    let mut relay = fixture.start(&["relay", "--config", "p.toml"]);
    wait_until("the reason is in the status", || {
        codes(&status(&fixture, &FROM)).contains(&"trouble")
    });
    relay.wait_for("the sink is in trouble; events wait, none is parked");
    let refused = status(&fixture, &FROM);
    let why = refused["pipelines"][0]["trouble"]["why"].as_str().unwrap();
    assert!(why.contains("answered 403"), "{why}");
    assert_eq!(refused["parked"], 0);
    let text = fixture.run(&["status", FROM[0], FROM[1]]).assert_code(0).stdout;
    assert!(text.contains("hooks: the sink has been in trouble for "), "{text}");
    assert!(text.contains("answered 403"), "{text}");
    is_well.store(true, Relaxed);
    wait_until("everything is delivered, and the reason is gone", || {
        let now = status(&fixture, &FROM);
        let pipeline = &now["pipelines"][0];
        pipeline["trouble"].is_null() && now["unpublished"] == 0 && pipeline["deferred"] == 0
    });
    relay.signal("TERM");
    assert!(relay.wait().success());
}

/// A sink that cannot even be opened is the trouble of now, not what another sink said before.
#[test]
fn a_sink_that_cannot_be_opened_is_in_the_status() {
    let redis = std::env::var("POSTRIDER_TEST_REDIS").expect("tests are run with cargo");
    let redis = redis.replace(":postrider@", ":wrong@");
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let fixture = Fixture::migrated();
    let outboxes = [(&fixture, FROM[1]), (&postgres.fixture, postgres.url.as_str())];
    for (fixture, url) in outboxes {
        let from = ["--from", url];
        let relay =
            |to: &str| fixture.run(&[&["relay"], &from[..], &["--to", to, "--drain"]].concat());
        let why = || status(fixture, &from)["pipelines"][0]["trouble"]["why"].clone();
        relay(&redis).assert_code(3);
        let password = why();
        assert!(password.as_str().is_some_and(|why| why.contains("WRONGPASS")), "{password}");
        relay("file:missing/out.jsonl").assert_code(3).assert_talk(&["mkdir -p missing"]);
        let folder = why();
        assert!(folder.as_str().is_some_and(|why| why.contains("mkdir -p missing")), "{folder}");
        relay("file:out.jsonl").assert_code(0);
        assert_eq!(why(), Value::Null);
    }
}

/// Waits until a counter of the outbox is more than zero, which comes a moment after the session
/// that counted; then checks a condition, and sets all counters back.
fn counters(postgres: &Postgres, waits_for: &str, expected: &str) {
    postgres.execute(&format!(
        "DO $$ DECLARE waited bigint; is_so boolean; BEGIN
           FOR n IN 1..1000 LOOP
             PERFORM pg_stat_clear_snapshot();
             SELECT {waits_for}, {expected} INTO waited, is_so FROM pg_stat_user_tables
               WHERE relid = 'outbox'::regclass;
             EXIT WHEN waited > 0;
             PERFORM pg_sleep(0.01);
           END LOOP;
           IF waited = 0 OR NOT is_so THEN
             RAISE EXCEPTION '% is %, and not {expected}', '{waits_for}', waited;
           END IF;
           PERFORM pg_stat_reset_single_table_counters('outbox'::regclass);
         END $$"
    ));
}

/// Whether the outbox was read as a whole by whoever looked last.
fn scans(postgres: &Postgres, expected: &str) {
    counters(postgres, "idx_scan + seq_scan", &format!("seq_scan {expected}"));
}

#[test]
fn looking_never_scans_the_outbox() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let from = ["--from", postgres.url.as_str()];
    let drain = |progress| {
        let to = ["--to", "file:out.jsonl", "--progress", progress, "--drain"];
        postgres.fixture.run(&[&["relay"], &from[..], &to].concat()).assert_code(0);
    };
    drain("cursor");
    postgres.execute(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
           SELECT gen_random_uuid(), 'Order', n::text, 'OrderPaid', '{}'
           FROM generate_series(1, 300000) AS n;
         ANALYZE outbox",
    );
    counters(&postgres, "n_tup_ins", "true");
    let capped = status(&postgres.fixture, &from);
    assert_eq!(capped["pipelines"][0]["unpublished_is_capped"], true);
    scans(&postgres, "= 0");

    postgres.execute(
        "UPDATE outbox_checkpoints SET progress = 'mark';
         UPDATE outbox SET published_at = now() WHERE seq % 100 > 0; ANALYZE outbox",
    );
    counters(&postgres, "n_tup_upd", "true");
    let some = status(&postgres.fixture, &from);
    assert_eq!(some["unpublished"], 3_000);
    scans(&postgres, "= 0");
    postgres.fixture.run(&[&["check", "lag", "--warn", "1h", "--crit", "2h"], &from[..]].concat());
    scans(&postgres, "= 0");
    // It would be seen.
    postgres.execute("DROP INDEX outbox_unpublished");
    status(&postgres.fixture, &from);
    scans(&postgres, "> 0");
}

/// A command whose lines are read.
struct Lines {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Lines {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn watching_shows_how_fast_things_move() {
    let fixture = Fixture::migrated();
    let watch = ["status", "--watch", "--every", "50ms", FROM[0], FROM[1]];
    let mut json = Lines::start(fixture.command(&[&watch[..], &["--json"]].concat()));
    let first: Value = serde_json::from_str(&json.next()).unwrap();
    assert!(first["pipelines"][0]["rates"].is_null(), "{first}");
    fixture.insert("1", "OrderPaid", "{}");
    wait_until("the backlog grows", || {
        let look: Value = serde_json::from_str(&json.next()).unwrap();
        let rates = &look["pipelines"][0]["rates"];
        rates["backlog_per_second"].as_f64().unwrap() > 0.0
            && rates["published_per_second"].as_f64() == Some(0.0)
    });
    fixture.database().execute_batch("UPDATE outbox SET published_at = created_at").unwrap();
    wait_until("it is published", || {
        let look: Value = serde_json::from_str(&json.next()).unwrap();
        look["pipelines"][0]["rates"]["published_per_second"].as_f64().unwrap() > 0.0
    });
    json.stop();

    let mut text = Lines::start(fixture.command(&watch));
    wait_until("a block comes after another", || text.next().contains("PUBLISHED/S  BACKLOG/S"));
    assert!(!text.next().contains('\u{1b}'), "nothing is redrawn where there is no terminal");
    text.stop();
    fixture.run(&["status", "--every", "1s", FROM[0], FROM[1]]).assert_code(2);
}

#[test]
fn limits_are_checked_as_nagios_has_it() {
    let fixture = Fixture::migrated();
    let check = |args: &[&str]| fixture.run(&[&["check"], args, &FROM].concat());
    let lag = ["lag", "--warn", "30s", "--crit", "1m"];
    let fine = check(&lag).assert_code(0);
    let line = "OUTBOX LAG OK - the oldest event waits for 0.0s | default=0.000s;30;60;0\n";
    assert_eq!((fine.stdout.as_str(), fine.stderr.as_str()), (line, ""));
    fixture.insert("1", "OrderPaid", "this is not JSON");
    fixture.database().execute_batch(OLD).unwrap();
    let late = check(&lag).assert_code(2).stdout;
    assert!(late.starts_with("OUTBOX LAG CRITICAL - the oldest event waits for "), "{late}");
    check(&["lag", "--warn", "30s", "--crit", "36500d"]).assert_code(1);
    check(&["lag", "--warn", "30s", "--crit", "1m", "--pipeline", "none"]).assert_code(3);

    let dlq = ["dlq", "--warn", "1", "--crit", "2"];
    check(&dlq).assert_code(0);
    let drain = ["relay", FROM[0], FROM[1], "--to", "file:out.jsonl", "--drain"];
    fixture.run(&drain).assert_code(0);
    let parked = check(&dlq).assert_code(1).stdout;
    assert_eq!(parked, "OUTBOX DLQ WARNING - 1 event is parked | default=1;1;2;0\n");
    let json = check(&["dlq", "--warn", "1", "--crit", "1", "--json"]).assert_code(2).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["state"], &json["exit_code"]), (&"CRITICAL".into(), &2.into()));
    for args in [["check", "lag", "--json"], ["--json", "check", "lag"]] {
        let ran = fixture.run(&args).assert_code(3);
        assert!(ran.stderr.contains(r#""exit_code":3"#), "{}", ran.stderr);
    }
    assert_eq!(json["pipelines"][0]["value"], 1.0);

    let slot = ["slot", "--warn", "1MiB", "--crit", "1GiB"];
    let none = check(&slot).assert_code(0).stdout;
    assert_eq!(none, "OUTBOX SLOT OK - no pipeline has a slot\n");
    let away = fixture.run(&[&["check"], &lag[..], &["--from", "sqlite:none.db"]].concat());
    let away = away.assert_code(3).stdout;
    assert!(away.starts_with("OUTBOX LAG UNKNOWN - sqlite:none.db does not exist"), "{away}");
    // Wrong use would be critical otherwise.
    fixture.run(&["check", "lag", "--warn", "x"]).assert_code(3);
    fixture.run(&["check", "lag", "--warn", "1s", "--crit", "2s"]).assert_code(3);
}

#[test]
fn a_slot_is_checked() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let Postgres { fixture, schema, url } = &postgres;
    fixture.run(&["slot", "create", schema, "--from", url]).assert_code(0);
    let check = |warn: &str, crit: &str| {
        fixture.run(&["check", "slot", "--warn", warn, "--crit", crit, "--from", url])
    };
    let line = check("0", "1000GiB").assert_code(1).stdout;
    assert!(line.starts_with("OUTBOX SLOT WARNING - "), "{line}");
    assert!(line.contains(&format!(" of the log are kept | {schema}=")), "{line}");
    check("999GiB", "1000GiB").assert_code(0);
    postgres.execute(&format!(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
         WHERE starts_with(slot_name, 'postrider_{schema}_')"
    ));
    let line = check("999GiB", "1000GiB").assert_code(2).stdout;
    assert!(line.contains("its slot is of no use, it is gone"), "{line}");
}
