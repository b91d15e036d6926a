//! What a relay finds by itself: missed events, and what the log says about its outbox.

use serde_json::Value;

use crate::support::http::{address, wait_for};
use crate::support::{Fixture, Running, wait_until};

/// A configuration that looks for missed events every second.
fn configure(fixture: &Fixture, more: &str) {
    let out = fixture.path("out.jsonl");
    let config = format!(
        "[source]\nurl = \"sqlite://app.db\"\n\n[reconcile]\nevery = \"1s\"\nolder_than = \"1s\"\n\
         {more}\n[[pipeline]]\nname = \"orders\"\nsink = {{ url = \"file://{}\" }}\n",
        out.display()
    );
    fixture.write("p.toml", config);
}

/// An event that was parked, and then set right by hand in a way that no relay finds.
fn forgotten() -> (Fixture, String) {
    let fixture = Fixture::migrated();
    configure(&fixture, "");
    let id = fixture.insert("1", "OrderPlaced", "this is not JSON");
    fixture.run(&["relay", "--config", "p.toml", "--drain"]).assert_code(0);
    let database = fixture.database();
    let changed = database.execute(
        "UPDATE outbox_failures SET state = 'deferred', due_at = NULL, headers = '{}',
         set_aside_at = '2026-01-01T00:00:00.000000Z'",
        [],
    );
    assert_eq!(changed.unwrap(), 1);
    (fixture, id)
}

/// G-01: a relay finds by itself what nothing would hand out, and publishes it.
#[test]
fn a_relay_gives_back_what_was_forgotten() {
    let (fixture, id) = forgotten();
    configure(&fixture, "[http]\nlisten = \"127.0.0.1:0\"\n");
    let relay = fixture.start(&["relay", "--config", "p.toml"]);
    let address = address(&relay);
    let missed = "outbox_missed_events{pipeline=\"orders\",kind=\"forgotten\"}";
    let found = wait_for(address, "/metrics", |answer| answer.sample(missed) == Some(1.0));
    assert_eq!(found.sample("outbox_given_back_events_total"), Some(1.0), "{}", found.body);
    assert_eq!(found.sample("outbox_reconcile_failures_total"), Some(0.0));
    wait_until("it is published", || fixture.read("out.jsonl").contains(&id));
    // The next look finds nothing any more.
    wait_for(address, "/metrics", |answer| answer.sample(missed) == Some(0.0));
    let log = relay.stderr();
    let named = log.lines().find(|line| line.contains("an event was missed")).unwrap();
    assert!(named.contains(&id) && named.contains("forgotten"), "{named}");
    assert!(log.contains("gave missed events back"), "{log}");
}

/// The lines of the log that are about an alarm.
fn alarms(relay: &Running, name: &str) -> Vec<Value> {
    let log = relay.stderr();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["alarm"] == name).collect()
}

/// Also without a server for metrics.
#[test]
fn an_alarm_is_said_once() {
    let (fixture, id) = forgotten();
    configure(&fixture, "publish = false\n");
    fixture.insert("2", "OrderPlaced", "this is not JSON");
    let relay = fixture.start(&["relay", "--config", "p.toml", "--log-format", "json"]);
    wait_until("both are said", || {
        !alarms(&relay, "DeadLettersNotEmpty").is_empty()
            && !alarms(&relay, "EventsMissed").is_empty()
    });
    for name in ["DeadLettersNotEmpty", "EventsMissed"] {
        let said = alarms(&relay, name);
        assert_eq!(said.len(), 1, "{said:?}");
        let expected = serde_json::json!({
            "level": "WARN", "state": "begins", "pipeline": "orders", "value": 1, "limit": 0,
            "unit": "events",
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(said[0][field], *value, "{field} of {said:?}");
        }
    }
    let log = relay.stderr();
    let named = log.lines().filter(|line| line.contains("an event was missed"));
    assert_eq!(named.count(), 1, "{log}");
    assert!(!fixture.read("out.jsonl").contains(&id), "nobody asked for it");
}
