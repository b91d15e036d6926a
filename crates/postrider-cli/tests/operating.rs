//! Single events, keys, pauses and replays from the command line.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use support::http::{address, wait_for};
use support::postgres::Postgres;
use support::{Fixture, Ran, wait_until};

const FROM: [&str; 2] = ["--from", "sqlite://app.db"];

fn run(fixture: &Fixture, args: &[&str]) -> Ran {
    fixture.run(&[args, &FROM].concat())
}

fn to(fixture: &Fixture, name: &str) -> String {
    format!("file://{}", fixture.path(name).display())
}

fn drain(fixture: &Fixture) {
    let to = to(fixture, "out.jsonl");
    run(fixture, &["relay", "--to", &to, "--drain"]).assert_code(0);
}

/// A database after a drain in which an event of order 1 was parked, with another behind it.
fn parked() -> (Fixture, String, String) {
    let fixture = Fixture::migrated();
    let bad = fixture.insert("1", "OrderPlaced", "this is not JSON");
    let behind = fixture.insert("1", "OrderPaid", "{}");
    fixture.insert("2", "OrderPlaced", "{}");
    drain(&fixture);
    (fixture, bad, behind)
}

#[test]
fn show_tells_the_life_of_an_event() {
    let (fixture, bad, behind) = parked();
    let shown = run(&fixture, &["show", &behind]).assert_code(0);
    let expected = format!("waits behind  1 of its key, first {bad}: parked since ");
    assert!(shown.stdout.contains(&expected), "{}", shown.stdout);
    assert!(shown.stdout.contains("state         queued since "), "{}", shown.stdout);
    assert!(!shown.stdout.contains("total"), "the payload was not asked for: {}", shown.stdout);
    let json = run(&fixture, &["show", &behind, "--json", "--payload"]).assert_code(0).stdout;
    assert!(json.contains(r#""payload":{"total": 1.50}"#), "{json}");
    assert!(json.contains(r#""pipelines":[{"pipeline":"default","state":"queued""#), "{json}");
    let missing = run(&fixture, &["show", "01900000-0000-7000-8000-000000000099"]).assert_code(1);
    missing.assert_talk(&["neither in the outbox nor set aside", "pruned", "rolled back"]);
}

/// Durable at what place: the broker is asked.
#[test]
fn show_finds_an_event_in_the_broker() {
    let (fixture, bad, _) = parked();
    let published = fixture.insert("3", "OrderPlaced", "{}");
    let config = format!(
        "[source]\nurl = \"sqlite://app.db\"\n[[pipeline]]\nname = \"default\"\n\
         sink = {{ url = \"{}\" }}\n",
        to(&fixture, "out.jsonl")
    );
    fixture.write("p.toml", config);
    let show = |id: &str, more: &[&str]| {
        let args = [&["show", id, "--in-broker", "--config", "p.toml"], more].concat();
        fixture.run(&args).assert_code(0).stdout
    };
    let before = show(&published, &[]);
    assert!(before.contains("not there     among 1 messages"), "{before}");
    drain(&fixture);
    drain(&fixture);
    let after = show(&published, &[]);
    assert!(after.contains("broker of     default\nkept at       outbox.event.Order "), "{after}");
    assert!(after.contains("state         settled at "), "{after}");
    let json: serde_json::Value = serde_json::from_str(&show(&published, &["--json"])).unwrap();
    let broker = &json["broker"];
    assert_eq!((&broker["looked_at"], &broker["looked_at_all"]), (&2.into(), &true.into()));
    assert_eq!(broker["kept"].as_array().unwrap().len(), 1, "{broker}");
    let parked = show(&bad, &[]);
    assert!(parked.contains("not there "), "{parked}");
    let args = ["show", &bad, "--in-broker"];
    run(&fixture, &args).assert_code(2).assert_talk(&["add --config FILE"]);
}

#[test]
fn tail_shows_and_follows_what_is_written() {
    let fixture = Fixture::migrated();
    run(&fixture, &["tail"]).assert_code(0).assert_talk(&["no events"]);
    for number in 1..=3 {
        fixture.insert(&number.to_string(), "OrderPlaced", "{}");
    }
    let paid = fixture.insert("1", "OrderPaid", "{}");
    let lines = run(&fixture, &["tail", "--limit", "2"]).assert_code(0).stdout;
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("Order/3  OrderPlaced  15 bytes"), "{lines:?}");
    assert!(lines[1].contains(&paid), "{lines:?}");
    for args in [["tail", "--type", "OrderPaid"], ["tail", "--since", "0s"]] {
        let count = usize::from(args[1] == "--type");
        let found = run(&fixture, &args).assert_code(0).stdout;
        assert_eq!(found.lines().count(), count, "{args:?}: {found}");
    }
    let out = std::fs::File::create(fixture.path("tail.jsonl")).unwrap();
    let args = ["tail", "-f", "--key", "Order/2", "--json", FROM[0], FROM[1]];
    let mut following = fixture.command(&args).stdout(out).spawn().unwrap();
    wait_until("the first event", || fixture.lines("tail.jsonl").len() == 1);
    fixture.insert("1", "OrderPaid", "{}");
    let second = fixture.insert("2", "OrderPaid", "{}");
    wait_until("the second event", || fixture.lines("tail.jsonl").len() == 2);
    let lines = fixture.lines("tail.jsonl");
    let start = format!(r#"{{"position":6,"event_id":"{second}","aggregate_type":"Order""#);
    assert!(lines[1].starts_with(&start), "{lines:?}");
    following.kill().unwrap();
    following.wait().unwrap();
}

#[test]
fn a_paused_pipeline_goes_on_without_a_restart() {
    let fixture = Fixture::migrated();
    let reason = ["pause", "--reason", "the warehouse burns"];
    run(&fixture, &reason).assert_code(0).assert_talk(&[
        "every pipeline is paused; relays notice within two seconds",
        "let it go on: postrider resume --from sqlite://app.db",
    ]);
    run(&fixture, &["pause"]).assert_code(0).assert_talk(&["is paused already"]);
    fixture.insert("1", "OrderPlaced", "{}");
    let to = to(&fixture, "out.jsonl");
    let mut relay = fixture.start(&["relay", FROM[0], FROM[1], "--to", &to]);
    relay.wait_for("paused by an operator");
    let status = run(&fixture, &["status"]).assert_code(0).stdout;
    assert!(
        status.contains("(the warehouse burns)\n      help: postrider resume --from "),
        "{status}"
    );
    let json = run(&fixture, &["status", "--json"]).assert_code(0).stdout;
    assert!(json.contains(r#","paused":{"since":""#), "{json}");
    assert!(fixture.lines("out.jsonl").is_empty());
    run(&fixture, &["resume"]).assert_code(0).assert_talk(&["every pipeline goes on; it was"]);
    relay.wait_for("resumed by an operator");
    wait_until("the event is published", || fixture.lines("out.jsonl").len() == 1);
    run(&fixture, &["pause", "--key", "Order/1"]).assert_code(0);
    run(&fixture, &["resume"]).assert_code(1).assert_talk(&[
        "error: no pipeline is paused",
        "the key Order/1 in every pipeline is still paused",
    ]);
    run(&fixture, &["resume", "--key", "Order/1", "--json"]).assert_code(0);
    relay.signal("TERM");
    assert!(relay.wait().success());
}

#[test]
fn a_paused_key_is_seen() {
    let fixture = Fixture::migrated();
    let id = fixture.insert("1", "OrderPlaced", "{}");
    let why = ["pause", "--key", "Order/1", "--reason", "a bad address"];
    run(&fixture, &why).assert_code(0);
    let (to, free) = (to(&fixture, "out.jsonl"), "127.0.0.1:0");
    let relay = fixture.start(&["relay", FROM[0], FROM[1], "--to", &to, "--listen", free]);
    let status = || run(&fixture, &["status", "--json"]).assert_code(0).stdout;
    wait_until("the key waits", || status().contains(r#""blocked_keys":1"#));
    let json = status();
    assert!(json.contains(r#""paused_keys":{"count":1,"first":["Order/1"]}"#), "{json}");
    let text = run(&fixture, &["status"]).assert_code(0).stdout;
    let expected =
        "WARN  default: 1 key is paused: Order/1\n      help: postrider resume --key Order/1 ";
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("will be tried again"), "{text}");
    let shown = run(&fixture, &["show", &id]).assert_code(0).stdout;
    assert!(shown.contains("paused        its key, since "), "{shown}");
    assert!(shown.contains(": a bad address\n"), "{shown}");
    let metrics = wait_for(address(&relay), "/metrics", |answer| {
        answer.sample("outbox_paused_keys{pipeline=\"default\"}") == Some(1.0)
    });
    assert_eq!(metrics.sample("outbox_blocked_keys{pipeline=\"default\"}"), Some(0.0));
    run(&fixture, &["pause", "--pipeline", "default"]).assert_code(0);
    wait_for(address(&relay), "/readyz", |answer| {
        answer.status == 200 && answer.body.contains(r#""state":"paused""#)
    });
}

#[test]
fn what_cannot_be_paused_or_resumed_is_told_why() {
    let fixture = Fixture::migrated();
    for name in ["", "*"] {
        run(&fixture, &["pause", "--pipeline", name])
            .assert_code(2)
            .assert_talk(&["leave it out to mean every pipeline"]);
    }
    run(&fixture, &["pause"]).assert_code(0);
    run(&fixture, &["pause", "--key", "Order/1"]).assert_code(0);
    run(&fixture, &["resume", "--pipeline", "default"]).assert_code(1).assert_talk(&[
        "error: every pipeline is paused, and not the pipeline default alone",
        "fix: let all of them go on: postrider resume --from sqlite://app.db",
    ]);
    let key = ["resume", "--pipeline", "default", "--key", "Order/1"];
    run(&fixture, &key).assert_code(1).assert_talk(&[
        "error: the key Order/1 in every pipeline is paused, and not the pipeline default alone",
        "fix: let all of them go on: postrider resume --key Order/1 --from sqlite://app.db",
    ]);
    run(&fixture, &["resume", "--key", "Order/2"])
        .assert_code(1)
        .assert_talk(&["error: the key Order/2 is paused in no pipeline"]);
    let odd = run(&fixture, &["pause", "--pipeline", "mails", "--json"]).assert_code(0).stdout;
    assert!(
        odd.contains(r#","warning":"no relay has run \"mails\" yet; known are: default""#),
        "{odd}"
    );
    let to = to(&fixture, "out.jsonl");
    let config = format!(
        "[source]\nurl = \"sqlite://app.db\"\n\
         [[pipeline]]\nname = \"orders\"\nprogress = \"cursor\"\nsink = {{ url = \"{to}\" }}\n\
         [[pipeline]]\nname = \"bills\"\nprogress = \"cursor\"\nsink = {{ url = \"{to}\" }}\n"
    );
    fixture.write("p.toml", config);
    let pause = |name: &str| fixture.run(&["pause", "--pipeline", name, "--config", "p.toml"]);
    pause("mails").assert_code(2).assert_talk(&[
        "error: p.toml has no pipeline mails",
        "fix: name one that it has: orders, bills",
    ]);
    pause("bills").assert_code(0);
    // What was paused before it left the configuration can go on.
    let resume = ["resume", "--pipeline", "mails", "--config", "p.toml"];
    fixture.run(&resume).assert_code(0).assert_talk(&["the pipeline mails goes on"]);
}

/// A relay that finds the event before it hears of the resume does not keep it for its 30 s.
#[test]
fn a_key_that_is_resumed_goes_on_within_seconds() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let sqlite = Fixture::migrated();
    let published = "SELECT outbox_publish('Order', '1', 'OrderPaid', '{}'::jsonb)";
    for (fixture, from, insert) in [
        (&sqlite, FROM[1], &(|| drop(sqlite.insert("1", "OrderPaid", "{}"))) as &dyn Fn()),
        (&postgres.fixture, &*postgres.url, &|| postgres.execute(published)),
    ] {
        let to = to(fixture, "out.jsonl");
        let mut relay = fixture.start(&["relay", "--from", from, "--to", &to]);
        let key = ["--key", "Order/1", "--from", from];
        for round in 1..=3 {
            fixture.run(&[&["pause"], &key[..]].concat()).assert_code(0);
            // What it says of the pipeline, it knows of the key, too.
            let other = ["pause", "--pipeline", "default", "--reason", "told", "--from", from];
            fixture.run(&other).assert_code(0);
            let told = || relay.stderr().matches("paused by an operator").count() == round;
            wait_until("the relay has heard of it", told);
            insert();
            let pipeline = ["resume", "--pipeline", "default", "--from", from];
            fixture.run(&pipeline).assert_code(0);
            wait_until("the key waits", || {
                let json = fixture.run(&["status", "--json", "--from", from]).assert_code(0).stdout;
                json.contains(r#""deferred":1,"#)
            });
            let resumed = std::time::Instant::now();
            fixture.run(&[&["resume"], &key[..]].concat()).assert_code(0);
            wait_until("it is published", || fixture.lines("out.jsonl").len() == round);
            assert!(resumed.elapsed().as_secs() < 10, "{:?}", resumed.elapsed());
        }
        relay.signal("TERM");
        assert!(relay.wait().success());
    }
}

#[test]
fn a_blocked_key_is_listed_and_released() {
    let (fixture, bad, _) = parked();
    let list = run(&fixture, &["keys", "blocked"]).assert_code(0).stdout;
    assert!(list.contains("Order/1") && list.contains(&bad), "{list}");
    let json = run(&fixture, &["keys", "blocked", "--json"]).assert_code(0).stdout;
    assert!(json.contains(r#""events":2,"first_event_id""#), "{json}");
    fixture.database().execute("UPDATE outbox_failures SET headers = '{}'", []).unwrap();
    run(&fixture, &["keys", "release", "Order/1"])
        .assert_code(0)
        .assert_talk(&["was a dead letter, and is tried again with fresh attempts"]);
    drain(&fixture);
    let lines = fixture.lines("out.jsonl");
    assert_eq!(lines.len(), 3);
    assert!(lines[1].contains("OrderPlaced") && lines[2].contains("OrderPaid"), "{lines:?}");
    run(&fixture, &["keys", "release", "Order/1"])
        .assert_code(1)
        .assert_talk(&["the key Order/1 waits for nothing"]);
    run(&fixture, &["keys", "blocked"]).assert_code(0).assert_talk(&["no key waits"]);
}

#[test]
fn a_replay_publishes_the_same_events_again() {
    let fixture = Fixture::migrated();
    let ids: Vec<String> =
        (1..=4).map(|order| fixture.insert(&order.to_string(), "OrderPlaced", "{}")).collect();
    fixture.insert("1", "OrderPaid", "{}");
    drain(&fixture);
    let again = to(&fixture, "again.jsonl");
    let args = ["replay", "--type", "OrderPlaced", "--to", &again];
    let dry = run(&fixture, &[&args[..], &["--dry-run", "--json"]].concat()).assert_code(0).stdout;
    assert!(dry.starts_with(r#"{"dry_run":true,"found":4,"#), "{dry}");
    run(&fixture, &args).assert_code(2).assert_talk(&["  fix: add --yes"]);
    assert!(fixture.lines("again.jsonl").is_empty());
    run(&fixture, &[&args[..], &["--yes", "--rate", "1000/s"]].concat())
        .assert_code(0)
        .assert_talk(&["published 4 of 4 events"]);
    let lines = fixture.lines("again.jsonl");
    assert_eq!(lines.len(), 4);
    for (line, id) in lines.iter().zip(&ids) {
        assert!(line.contains(id) && line.contains(r#""postrider-replay":"true""#), "{line}");
    }
    assert!(!fixture.read("out.jsonl").contains("postrider-replay"));
    let one = ["replay", "--aggregate", "Order/1", "--to", "stdout:", "--after", "1", "--yes"];
    let stdout = run(&fixture, &one).assert_code(0).stdout;
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    assert!(stdout.contains("OrderPaid"), "{stdout}");
    // The progress of the pipeline is what it was.
    let status = run(&fixture, &["status", "--json"]).assert_code(0).stdout;
    assert!(status.contains(r#""unpublished":0"#), "{status}");
}

#[test]
fn events_that_were_missed_are_found_and_given_back() {
    let fixture = Fixture::migrated();
    run(&fixture, &["reconcile"]).assert_code(0).assert_talk(&["nothing was missed"]);
    let first = fixture.insert("1", "OrderPlaced", "{}");
    fixture.insert("1", "OrderPaid", "{}");
    let old = "UPDATE outbox SET created_at = '2025-01-01T00:00:00.000Z'";
    fixture.database().execute_batch(old).unwrap();
    let backlog = run(&fixture, &["reconcile", "--publish"]).assert_code(7);
    backlog.assert_talk(&["2 unpublished: no relay has come to it", "0 events were given back"]);
    drain(&fixture);
    run(&fixture, &["reconcile"]).assert_code(0);

    // A mark that was lost, although later events were published.
    let lost = "UPDATE outbox SET published_at = NULL WHERE seq = 1";
    fixture.database().execute_batch(lost).unwrap();
    let json = run(&fixture, &["reconcile", "--json"]).assert_code(7).stdout;
    assert!(json.contains(r#""kind":"overtaken""#) && json.contains(&first), "{json}");
    assert!(json.ends_with("\"counts\":{\"overtaken\":1},\"given_back\":0}\n"), "{json}");
    // It stays where it is, in its place before others of its key, and a relay finds it.
    run(&fixture, &["reconcile", "--publish"])
        .assert_code(7)
        .assert_talk(&["1 overtaken: relays went past it", "0 events were given back"]);
    drain(&fixture);
    let lines = fixture.lines("out.jsonl");
    assert!(lines.len() == 3 && lines[2].contains(&first), "{lines:?}");
    run(&fixture, &["reconcile"]).assert_code(0);

    // A key that nothing would ever hand out.
    let (fixture, bad, _) = parked();
    let forget = "UPDATE outbox_failures SET state = 'queued', headers = '{}',
        set_aside_at = '2025-01-01T00:00:00.000000Z' WHERE state = 'parked'";
    fixture.database().execute_batch(forget).unwrap();
    let found = run(&fixture, &["reconcile", "--publish"]).assert_code(7);
    assert!(found.stdout.contains(&bad), "{}", found.stdout);
    drain(&fixture);
    assert_eq!(fixture.lines("out.jsonl").len(), 3);
    run(&fixture, &["reconcile"]).assert_code(0);
}

/// What its pipeline has yet to publish would overtake what stands before it.
#[test]
fn a_replay_into_a_pipelines_own_sink_keeps_its_order_and_its_pauses() {
    let fixture = Fixture::migrated();
    fixture.write(
        "postrider.toml",
        "[source]\nurl = \"sqlite://app.db\"\n[[pipeline]]\nname = \"orders\"\n\
         [pipeline.sink]\nurl = \"file:out.jsonl\"\n",
    );
    let config = |args: &[&str]| fixture.run(&[args, &["--config", "postrider.toml"]].concat());
    let published = fixture.insert("1", "OrderPlaced", "{}");
    config(&["relay", "--drain"]).assert_code(0);
    config(&["pause", "--pipeline", "orders"]).assert_code(0);
    let mut order = vec![published.clone(), published];
    order.extend((0..3).map(|_| fixture.insert("1", "OrderPaid", "{}")));
    let old = "UPDATE outbox SET created_at = '2025-01-01T00:00:00.000Z' WHERE seq BETWEEN 2 AND 3";
    fixture.database().execute_batch(old).unwrap();
    let replay = ["replay", "--since", "1h", "--yes"];
    config(&replay).assert_code(6).assert_talk(&[
        "the pipeline orders is paused since",
        "fix: postrider resume --pipeline orders --config postrider.toml",
    ]);
    config(&["resume", "--pipeline", "orders"]).assert_code(0);
    config(&replay).assert_code(0).assert_talk(&[
        "1 event that orders has not published left out: 1 not published yet",
        "published 1 of 1 event",
    ]);
    config(&["relay", "--drain"]).assert_code(0);
    let lines = fixture.lines("out.jsonl");
    assert_eq!(lines.len(), order.len(), "{lines:?}");
    assert!(lines.iter().zip(&order).all(|(line, id)| line.contains(id)), "{lines:?}");
    config(&["verify"]).assert_code(0);
}

/// What was published before the stop is not lost, and the rest can go on.
#[test]
fn a_replay_that_cannot_go_on_says_how_to() {
    let fixture = Fixture::migrated();
    let first = fixture.insert("1", "OrderPlaced", r#"{"tenant": "acme"}"#);
    let second = fixture.insert("2", "OrderPlaced", "{}");
    let again = to(&fixture, "again.jsonl");
    let args = ["replay", "--to", &again, "--topic", "{header.tenant}", "--yes"];
    let ran = run(&fixture, &args).assert_code(1);
    let expected = format!("the event {second} could not be published");
    assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    assert!(ran.stderr.contains("published 1 of 2 events"), "{}", ran.stderr);
    let talk = &ran.stderr;
    assert!(talk.contains("--after 1\n") && talk.contains("--after 2\n"), "{talk}");
    assert!(talk.contains("--topic '{header.tenant}' --until 20"), "the same end: {talk}");
    let lines = fixture.lines("again.jsonl");
    assert!(lines.len() == 1 && lines[0].contains(&first), "{lines:?}");
}

/// A relay that can never know what is paused would publish nothing, and look well.
#[test]
fn a_relay_that_may_not_see_pauses_ends_with_what_helps() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let Postgres { schema, url, fixture } = &postgres;
    let role = format!("{schema}_relay");
    postgres.execute(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'pass'; GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};
         REVOKE ALL ON outbox_pauses FROM {role}"
    ));
    let (_, host) = url.split_once('@').unwrap();
    let (from, to) = (format!("postgres://{role}:pass@{host}"), to(fixture, "out.jsonl"));
    let drain = ["relay", "--from", &from, "--to", &to, "--drain"];
    fixture.run(&drain).assert_code(3).assert_talk(&[
        "cannot look at what is paused",
        "permission denied for table outbox_pauses",
        "fix: GRANT SELECT ON \"outbox_pauses\" TO",
    ]);
    postgres.execute(&format!("GRANT SELECT ON outbox_pauses TO {role}"));
    fixture.run(&drain).assert_code(0);
}

/// What it knew holds on: nobody's events wait because one table cannot be read any more.
#[test]
fn a_running_relay_outlives_a_refused_look_at_pauses() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let Postgres { url, fixture, .. } = &postgres;
    let insert = |order: &str| {
        postgres.execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('Order', '{order}', 'OrderPlaced', '{{}}')"
        ));
    };
    let mut relay = fixture.start(&["relay", "--from", url, "--to", &to(fixture, "out.jsonl")]);
    insert("1");
    wait_until("the first event is there", || fixture.lines("out.jsonl").len() == 1);
    postgres.execute("DROP TABLE outbox_pauses");
    relay.wait_for("cannot look for what is paused");
    insert("2");
    wait_until("the second event is there", || fixture.lines("out.jsonl").len() == 2);
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(0), "{}", relay.stderr());
}
