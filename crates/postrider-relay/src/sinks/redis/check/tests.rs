use std::time::Duration;

use super::*;
use crate::sinks::PipelineFacts;
use crate::sinks::redis::Options;

async fn sink(options: Options) -> RedisSink {
    options.connect().await.unwrap()
}

fn said(lines: &str, settings: &[(&str, &str)]) -> Facts {
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let mut answers = vec![text(lines), Value::Nil];
    answers
        .extend(settings.iter().map(|(name, value)| Value::Array(vec![text(name), text(value)])));
    facts(answers)
}

fn trimmed() -> Options {
    Options { maxlen: Some(1), ..Options::new("redis://h") }
}

const SAFE: &str = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nconnected_slaves:0\r\n\
                    aof_enabled:1\r\nmaxmemory:9\r\nmaxmemory_policy:noeviction\r\n";

#[tokio::test]
async fn each_caution_has_its_cause() {
    let safe = [("appendfsync", "always"), ("min-replicas-to-write", "0")];
    assert!(sink(trimmed()).await.cautions(&said(SAFE, &safe)).is_empty());
    // A server that tells nothing.
    assert!(sink(trimmed()).await.cautions(&said("", &[])).is_empty());
    let changed = |from: &str, to: &str| said(&SAFE.replace(from, to), &safe);
    for (facts, expected) in [
        (changed("aof_enabled:1", "aof_enabled:0"), "set appendonly yes"),
        (changed("noeviction", "allkeys-lru"), "throws streams away"),
        (changed("noeviction", "volatile-lru"), "forgets event ids"),
        (changed("connected_slaves:0", "connected_slaves:1"), "set wait_replicas = 1"),
        (said(SAFE, &[("appendfsync", "everysec")]), "the events of its last second"),
        (said(SAFE, &[("appendfsync", "no")]), "leaves it to the system"),
    ] {
        let cautions = sink(trimmed()).await.cautions(&facts);
        assert_eq!(cautions.len(), 1, "{cautions:?}");
        assert!(cautions[0].contains(expected), "{cautions:?}");
    }
}

#[tokio::test]
async fn what_one_thing_makes_up_for_is_no_caution() {
    let replicated = || Options { wait_replicas: 1, ..trimmed() };
    let facts = said(
        &SAFE.replace("connected_slaves:0", "connected_slaves:1"),
        &[("appendfsync", "everysec"), ("min-replicas-to-write", "0")],
    );
    assert!(sink(replicated()).await.cautions(&facts).is_empty());
    let unlimited = SAFE.replace("maxmemory:9", "maxmemory:0").replace("noeviction", "allkeys-lru");
    assert!(sink(trimmed()).await.cautions(&said(&unlimited, &[])).is_empty());
}

#[tokio::test]
async fn options_have_cautions_of_their_own() {
    let facts = said("", &[]);
    let cautions = sink(Options::new("redis://h")).await.cautions(&facts);
    assert!(cautions.concat().contains("streams grow for ever"), "{cautions:?}");
    let cautions = sink(Options { dedupe_events: 0, ..trimmed() }).await.cautions(&facts);
    assert!(cautions.concat().contains("dedupe_events is 0"), "{cautions:?}");
    let mut short = sink(Options { dedupe_window: Duration::from_secs(60), ..trimmed() }).await;
    let retry_horizon = Duration::from_secs(511);
    short.pipeline = PipelineFacts { retry_horizon, ..PipelineFacts::default() };
    let cautions = short.cautions(&facts);
    assert!(cautions.concat().contains("set dedupe_window = \"511s\""), "{cautions:?}");
}

#[tokio::test]
async fn a_server_that_cannot_be_used_is_an_error() {
    use FailureKind::{Misconfigured, Unavailable};
    let two = Options { wait_replicas: 2, ..trimmed() };
    for (options, line, kind, expected) in [
        (trimmed(), "cluster_enabled:1", Misconfigured, "a node of a cluster"),
        (trimmed(), "redis_version:6.0.16", Misconfigured, "Redis 6.2 or newer is needed"),
        (trimmed(), "role:slave", Unavailable, "is a replica"),
        (two, "connected_slaves:1", Unavailable, "wait_replicas is 2"),
    ] {
        let error = sink(options).await.look_at_server(&said(line, &[])).unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(expected), "{error}");
    }
    for line in ["", "redis_version:6.2.0", "redis_version:255.255.255", "redis_version:unstable"] {
        assert_eq!(sink(trimmed()).await.look_at_server(&said(line, &[])), Ok(()), "{line}");
    }
}

#[tokio::test]
async fn a_user_default_without_rights_is_found_where_it_matters() {
    for (lines, expected) in [
        ("redis_version:6.2.14\r\naof_enabled:1", false),
        ("redis_version:7.0.15\r\naof_enabled:1", true),
        ("redis_version:7.0.15\r\naof_enabled:0", false),
        ("redis_version:8.4.3\r\naof_enabled:1", true),
        ("redis_version:8.6.0\r\naof_enabled:1", false),
        ("", true),
    ] {
        assert_eq!(replays_by_rights(&said(lines, &[])), expected, "{lines}");
    }
    let sink = sink(trimmed()).await;
    assert_eq!(sink.look_at_replay(Some(Value::Okay)), Ok(None));
    let refused = Value::BulkString(b"This user has no permissions".to_vec());
    let error = sink.look_at_replay(Some(refused)).unwrap_err();
    assert_eq!(error.kind, FailureKind::Misconfigured);
    assert!(error.message.contains("`ACL SETUSER default off ~* &* +@all`"), "{error}");
    let unknown = sink.look_at_replay(Some(Value::Nil)).unwrap().unwrap();
    assert!(unknown.contains("which we may not look at"), "{unknown}");
}
