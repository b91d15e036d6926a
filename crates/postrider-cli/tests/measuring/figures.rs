//! What is found, and within which limits.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::brokers::{Broker, Kafka, Nats, RabbitMq, Redis};
use crate::support::Fixture;
use crate::{Database, files, json, variable};

const ROWS: u64 = 600;

/// Runs it with few rows, and checks all that is found.
fn measure(fixture: &Fixture, args: &[&str]) -> Value {
    let rows = ROWS.to_string();
    let args = [&["bench", "--rows", &rows, "--for", "60s", "--json"], args].concat();
    let ran = fixture.run(&args).assert_code(0);
    let found = json(&ran.stdout);
    let positive = |place: &str| {
        let value = found.pointer(place).and_then(Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{place} of {found}");
    };
    for place in [
        "/writing/writers",
        "/writing/bare_transactions_per_second",
        "/writing/event_transactions_per_second",
        "/writing/event_of_bare",
        "/writing/batch_events_per_second",
        "/reading/copy_events_per_second",
        "/reading/drain_events_per_second",
        "/reading/drain_of_copy",
        "/latency/events_per_second",
        "/latency/p50_ms",
        "/latency/p99_ms",
        "/limit/relay_of_writing",
        "/seconds",
    ] {
        positive(place);
    }
    if args.contains(&"--to") {
        for place in ["alone_events_per_second", "drain_events_per_second", "drain_of_alone"] {
            positive(&format!("/publishing/{place}"));
        }
        // 60 with one transaction each, 240 of the backlog for nowhere: all of them arrived.
        assert_eq!(found["reading"]["drained_events"], 300, "{found}");
        assert_eq!(found["publishing"]["drained_events"], 240, "{found}");
    } else {
        assert_eq!(found["publishing"], Value::Null);
        assert_eq!(found["reading"]["drained_events"], 540, "{found}");
    }
    assert_eq!(found["events_written"], ROWS, "{found}");
    assert_eq!(found["latency"]["p999_ms"], Value::Null, "of 54 events there is none");
    found
}

/// From PostgreSQL to a broker: afterwards both are as before.
fn measure_to(broker: &dyn Broker, url: &str, args: &[&str]) -> Value {
    let database = Database::new();
    let before = database.catalog();
    let args = [&["--from", &database.url, "--to", url], args].concat();
    let found = measure(&database.fixture, &args);
    assert_eq!(database.catalog(), before);
    let name = found["name"].as_str().unwrap();
    assert!(name.starts_with("postrider_bench_"), "{name}");
    assert!(!broker.has(&name.replace('_', "-")), "{name} is left at {url}");
    found
}

#[test]
fn sqlite_to_a_file() {
    let fixture = Fixture::migrated();
    fixture.insert("o1", "OrderPaid", "{}");
    let before = files(&fixture);
    for progress in ["mark", "delete", "cursor"] {
        let args = ["--from", "sqlite:app.db", "--to", "file:out.jsonl", "--progress", progress];
        let found = measure(&fixture, &args);
        assert_eq!(
            (&found["progress"], &found["writing"]["writers"]),
            (&progress.into(), &1.into())
        );
        assert_eq!(files(&fixture), before);
    }
    let rows = fixture.database().query_one("SELECT count(*) FROM outbox", [], |row| row.get(0));
    assert_eq!(rows, Ok(1), "the outbox itself is not touched");
}

#[test]
fn postgres_alone() {
    let database = Database::new();
    let before = database.catalog();
    let url = format!("{}?options=-csearch_path%3Dpublic", database.url);
    let found = measure(&database.fixture, &["--from", &url]);
    assert_eq!((&found["mode"], &found["progress"]), (&"poll".into(), &"mark".into()));
    assert_eq!(found["limit"]["part"], "database");
    assert_eq!(database.catalog(), before);
}

#[test]
fn postgres_from_its_log_to_redis() {
    let args = ["--mode", "cdc"];
    let found = measure_to(&Redis, &variable("POSTRIDER_TEST_REDIS"), &args);
    assert_eq!((&found["mode"], &found["progress"]), (&"cdc".into(), &"cursor".into()));
}

#[test]
fn postgres_to_kafka() {
    measure_to(&Kafka, &variable("POSTRIDER_TEST_KAFKA"), &["--progress", "cursor"]);
}

#[test]
fn postgres_to_nats() {
    measure_to(&Nats, &variable("POSTRIDER_TEST_NATS"), &["--progress", "delete"]);
}

#[test]
fn postgres_to_rabbitmq() {
    measure_to(&RabbitMq, &variable("POSTRIDER_TEST_RABBITMQ"), &[]);
}

#[test]
fn a_pipeline_of_a_configuration_file_is_measured_without_its_topics() {
    let database = Database::new();
    let (url, broker) = (&database.url, variable("POSTRIDER_TEST_KAFKA"));
    database.fixture.write(
        "postrider.toml",
        format!(
            "[source]\nurl = \"{url}\"\n[[pipeline]]\nname = \"orders\"\nprogress = \"cursor\"\n\
             [pipeline.sink]\nurl = \"{broker}\"\ntopic = \"{{header.tenant}}.orders\"\n\
             key = \"{{header.tenant}}\"\nformat = \"cloudevents\"\nexactly_once = true\n"
        ),
    );
    let args = ["bench", "--config", "postrider.toml", "--rows", "200", "--for", "60s", "--json"];
    let found = json(&database.fixture.run(&args).assert_code(0).stdout);
    assert_eq!(found["progress"], "cursor");
    let topic = found["name"].as_str().unwrap().replace('_', "-");
    assert!(!Kafka.has(&topic) && !Kafka.has(&format!("{topic}-progress")));
}

#[test]
fn it_is_over_when_its_time_is() {
    let fixture = Fixture::migrated();
    let before = files(&fixture);
    let args = ["bench", "--from", "sqlite:app.db", "--rows", "1000000", "--for", "4s", "--json"];
    let started = Instant::now();
    let found = json(&fixture.run(&args).assert_code(0).stdout);
    // Each of the drains may have two seconds more to end what is under way.
    assert!(found["seconds"].as_f64().unwrap() < 12.0, "{found}");
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    assert!(found["events_written"].as_u64().unwrap() < 1_000_000, "{found}");
    assert_eq!(files(&fixture), before);
}
