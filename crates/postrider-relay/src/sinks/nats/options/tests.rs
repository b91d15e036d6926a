use super::*;
use crate::sinks::SinkSpec;

fn problems_of(url: &str, options: &str, topic: Option<&str>) -> String {
    let pipeline = PipelineFacts { topic: topic.map(str::to_owned), ..PipelineFacts::default() };
    let spec = SinkSpec { url: url.to_owned(), options: options.parse().unwrap(), pipeline };
    let problems = spec.problems();
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn problems(url: &str, options: &str) -> String {
    problems_of(url, options, None)
}

#[test]
fn every_way_to_say_who_one_is_works_alone() {
    for (url, options) in [
        ("nats://h", ""),
        ("NATS://h:1,[::1]:2/", ""),
        ("nats://user:pass@h", ""),
        ("nats://token@h", ""),
        ("nats://user@h", "password = \"p\""),
        ("nats://h", "username = \"u\"\npassword = \"p\""),
        ("nats://h", "token = \"t\""),
        ("nats://h", "nkey_seed = \"SU\""),
        ("nats://h", "credentials_file = \"/c\""),
        ("nats://h", "tls = true\ntls_first = true"),
    ] {
        assert_eq!(problems(url, options), "", "{url} {options}");
    }
}

#[test]
fn what_makes_no_sense_is_named_without_secrets() {
    for (url, options, expected) in [
        ("nats:h", "", "url: has no // after the scheme"),
        ("nats://h/canary", "", "url: has a path"),
        ("nats://u:canary@h", "password = \"canary\"", "password: is in the URL, too"),
        ("nats://u:canary@h", "username = \"x\"", "username: is in the URL, too"),
        ("nats://:canary@h", "", "password: is given without a user name"),
        ("nats://h", "username = \"x\"", "username: is given without a password"),
        ("nats://u:canary@h", "token = \"canary\"", "token: is another way to say who"),
        ("nats://h", "token = \"canary\"\nnkey_seed = \"canary\"", "nkey_seed: is another way"),
        ("nats://h", "ack_timeout = \"10ms\"", "ack_timeout: must be at least 100ms"),
        ("nats://h", "connect_timeout = \"0s\"", "connect_timeout: must be more than zero"),
        ("nats://h", "stream_replicas = 0", "stream_replicas: must be more than zero"),
        ("nats://h", "stream_subjects = [1]", "stream_subjects: must be a list of texts"),
        ("nats://h", "stream = \"a.b\"", "stream: may have letters, digits, - and _ only"),
        ("nats://h", "domain = \"\"", "domain: may have letters, digits, - and _ only"),
        ("nats://h", "inbox_prefix = \"a..b\"", "inbox_prefix: has nothing before, after"),
        ("nats://h", "tls_first = true", "tls_first: needs tls; set tls = true"),
        ("nats://h", "tls = { key_file = \"k\" }", "tls: has key_file and no certificate_file"),
    ] {
        let found = problems(url, options);
        assert!(found.contains(expected), "{found:?} should contain {expected:?}");
        assert_eq!(found.lines().count(), 1, "{found}");
        assert!(!found.contains("canary"), "{found}");
    }
}

#[test]
fn what_others_have_as_options_is_refused_with_the_reason() {
    for (options, expected) in [
        ("subject = \"a\"", "subject: is called `topic` here; write topic"),
        ("subjects = [\"a\"]", "subjects: is called `stream_subjects` here"),
        ("acks = false", "acks: cannot be set: without the confirmation of a stream"),
        ("jetstream = false", "jetstream: cannot be set: without the confirmation"),
        ("msg_id = false", "msg_id: is always the event's id"),
        ("max_reconnects = 3", "max_reconnects: is not needed"),
        ("steam = \"a\"", "did you mean `stream`?"),
    ] {
        let found = problems("nats://h", options);
        assert!(found.contains(expected), "{found:?} should contain {expected:?}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

#[test]
fn a_stream_can_be_made_only_if_it_is_known_what_it_takes() {
    let made = "create_missing = true\nstream = \"S\"";
    assert_eq!(problems_of("nats://h", made, Some("a.b")), "");
    assert_eq!(problems("nats://h", &format!("{made}\nstream_subjects = [\"a.>\"]")), "");
    let found = problems("nats://h", made);
    assert!(found.contains("create_missing: needs to know what the stream takes"), "{found}");
    let found = problems_of("nats://h", "create_missing = true", Some("a"));
    assert!(found.contains("create_missing: needs a name; set stream"), "{found}");
}

/// G-06.
#[test]
fn a_call_leaves_time_to_notice_an_outage() {
    let problems = |url: &str, options: &str, seconds| {
        let call_timeout = Some(Duration::from_secs(seconds));
        let pipeline = PipelineFacts { call_timeout, ..PipelineFacts::default() };
        let options = options.parse().unwrap();
        let problems = SinkSpec { url: url.to_owned(), options, pipeline }.problems();
        problems.iter().map(|problem| format!("{problem}\n")).collect::<String>()
    };
    assert_eq!(problems("nats://a,b,c,d,e", "", 30), "");
    assert_eq!(problems("nats://a", "", 1), "");
    assert_eq!(problems("nats://a", "ack_timeout = \"24s\"", 30), "");
    let found = problems("nats://a", "ack_timeout = \"25s\"", 30);
    let expected = "ack_timeout: leaves a call no time to notice an outage: connect_timeout (5s) \
                    and ack_timeout (25s) together are 30s, and timeout is 30s";
    assert!(found.starts_with(expected), "{found}");
    let found = problems("nats://a,b,c", "connect_timeout = \"9s\"", 30);
    let expected = "connect_timeout for 3 servers (27s) and ack_timeout (10s) together are 37s";
    assert!(found.contains(expected), "{found}");
}

#[test]
fn a_topic_that_would_park_every_event_is_a_mistake() {
    let found = problems_of("nats://h", "", Some("orders.*"));
    assert!(found.contains("topic: is no subject: it has a wildcard"), "{found}");
}

#[test]
fn secrets_are_not_printed() {
    let mut options = Options::new("nats://u:canary@h");
    options.token = Some(Secret::new("canary"));
    options.nkey_seed = Some(Secret::new("canary"));
    options.password = Some(Secret::new("canary"));
    assert!(!format!("{options:?}").contains("canary"));
}
