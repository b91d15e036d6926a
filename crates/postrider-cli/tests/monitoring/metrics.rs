//! `/metrics`: what is counted, and that alerts, dashboard and guide speak of what there is.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::relay_to_file;
use crate::support::Fixture;
use crate::support::http::{Answer, address, get, wait_for};
use crate::support::postgres::Postgres;

#[test]
fn events_are_counted_and_timed() {
    let fixture = Fixture::migrated();
    fixture.insert("1", "OrderPlaced", "this is not JSON");
    fixture.insert("1", "OrderPaid", "{}");
    let relay = relay_to_file(&fixture);
    let address = address(&relay);
    for order in ["2", "3", "4"] {
        fixture.insert(order, "OrderPlaced", "{}");
    }
    let metrics = wait_for(address, "/metrics", |answer| {
        answer.sample("outbox_published_total{pipeline=\"default\"}") == Some(3.0)
            && answer.sample("outbox_set_aside_total{pipeline=\"default\",verdict=\"queued\"}")
                == Some(1.0)
    });
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    for (series, value) in [
        ("outbox_set_aside_total{pipeline=\"default\",verdict=\"parked\"}", 1.0),
        ("outbox_end_to_end_seconds_count{pipeline=\"default\"}", 3.0),
        // The ids of the fixture are of 2024.
        ("outbox_end_to_end_seconds_bucket{pipeline=\"default\",le=\"3600\"}", 0.0),
        ("outbox_end_to_end_seconds_bucket{pipeline=\"default\",le=\"+Inf\"}", 3.0),
        ("outbox_publish_failures_total{pipeline=\"default\",kind=\"rejected\"}", 0.0),
        ("outbox_lease_held{pipeline=\"default\",shard=\"0\"}", 1.0),
        ("outbox_sample_failures_total", 0.0),
    ] {
        assert_eq!(metrics.sample(series), Some(value), "{series}\n{}", metrics.body);
    }
    let calls = metrics.sample("outbox_publish_duration_seconds_count{pipeline=\"default\"}");
    assert!(calls >= Some(1.0), "{}", metrics.body);
    // What only the database knows comes with the next look at it.
    wait_for(address, "/metrics", |answer| {
        ["outbox_parked_events", "outbox_queued_events", "outbox_blocked_keys"]
            .iter()
            .all(|name| answer.sample(&format!("{name}{{pipeline=\"default\"}}")) == Some(1.0))
    });
    let ready = get(address, "/readyz");
    assert_eq!(ready.status, 200, "one bad key is no reason: {ready:?}");
}

/// No key, id, payload, header or password (G-11).
#[test]
fn nothing_of_an_event_is_shown() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    postgres.execute(
        "SELECT outbox_publish('C4n4ryType', 'c4n4ry-id', 'C4n4ryPaid', '{\"c4n4ry\": 1}'::jsonb)",
    );
    let to = "http://127.0.0.1:9/c4n4ry?c4n4ry";
    let args = [
        "relay",
        "--from",
        &postgres.url,
        "--to",
        to,
        "--allow-private",
        "--listen",
        "127.0.0.1:0",
    ];
    let relay = postgres.fixture.start(&args);
    let address = address(&relay);
    let ready = wait_for(address, "/readyz", |answer| answer.body.contains("outage"));
    let metrics = wait_for(address, "/metrics", |answer| {
        answer.sample("outbox_unpublished_count{pipeline=\"default\"}") == Some(1.0)
    });
    for page in [&ready, &get(address, "/livez"), &metrics] {
        assert!(!page.body.to_lowercase().contains("c4n4ry"), "{}", page.body);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of metrics in a text, without what a histogram adds.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("outbox_"));
    words
        .map(|word| {
            let stem = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| word.strip_suffix(suffix))
                .filter(|stem| stem.ends_with("_seconds"));
            stem.unwrap_or(word).to_owned()
        })
        .collect()
}

/// The names of metrics that have a value.
fn given(metrics: &Answer) -> BTreeSet<String> {
    let samples: Vec<&str> = metrics.body.lines().filter(|line| !line.starts_with('#')).collect();
    names(&samples.join("\n"))
}

/// Of a relay that has all there is: it reads the log of PostgreSQL.
fn all_metrics() -> (BTreeSet<String>, String) {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let Postgres { fixture, schema, url } = &postgres;
    let config = format!(
        "[source]\nurl = \"{url}\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [reconcile]\nevery = \"1s\"\n[[pipeline]]\nname = \"{schema}\"\nmode = \"cdc\"\nsink = {{ url = \"file://{}\" }}\n",
        fixture.path("out.jsonl").display()
    );
    fixture.write("p.toml", config);
    fixture.run(&["slot", "create", "--config", "p.toml"]).assert_code(0);
    let mut relay = fixture.start(&["relay", "--config", "p.toml"]);
    let retained = format!("outbox_slot_retained_wal_bytes{{pipeline=\"{schema}\"}}");
    let metrics = wait_for(address(&relay), "/metrics", |answer| {
        answer.sample(&retained).is_some()
            && answer.body.contains("outbox_lease_held")
            && answer.body.contains("outbox_missed_events{")
    });
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(0), "{}", relay.stderr());
    (given(&metrics), metrics.body)
}

/// Prometheus' own program reads the page, and finds no fault with it but a name that people know.
fn assert_well_formed(page: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("`cargo xtask services up` installs promtool");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let said = String::from_utf8([said.stdout, said.stderr].concat()).unwrap();
    let faults: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(faults.len(), 1, "{said}");
    assert!(faults[0].starts_with("outbox_unpublished_count non-histogram"), "{said}");
}

#[test]
fn alerts_dashboard_and_guide_speak_of_metrics_that_exist() {
    let (exist, body) = all_metrics();
    for line in body.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(exist.contains(name), "{name} has no value in\n{body}");
    }
    assert_well_formed(&body);
    let rules: Value = yaml_serde::from_str(&read("deploy/prometheus/rules.yml")).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let alerts: String = rules.iter().map(|rule| rule["expr"].as_str().unwrap()).collect();
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/postrider.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(rules.len() > 10 && queries.len() > 20, "{} {}", rules.len(), queries.len());
    for (what, text) in [
        ("an alert", alerts),
        ("the dashboard", queries.join("\n")),
        ("a test of the alerts", read("deploy/prometheus/rules_test.yml")),
    ] {
        for name in names(&text) {
            assert!(exist.contains(&name), "{what} speaks of {name}, which does not exist");
        }
    }
    let shown = names(&queries.join("\n"));
    let guide = names(&read("docs/guides/monitoring.md"));
    for name in &exist {
        assert!(shown.contains(name), "{name} is not on the dashboard");
        assert!(guide.contains(name), "{name} is not in docs/guides/monitoring.md");
    }
    for name in guide {
        assert!(exist.contains(&name), "the guide speaks of {name}, which does not exist");
    }
}
