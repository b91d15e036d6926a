use super::*;
use crate::sinks::SinkSpec;

fn problems(url: &str, options: &str) -> String {
    let spec = SinkSpec { options: options.parse().unwrap(), ..SinkSpec::new(url) };
    spec.problems().iter().map(|problem| format!("{problem}\n")).collect()
}

fn checked(url: &str, options: &str) -> CheckedOptions {
    let table = options.parse().unwrap();
    let mut reader = OptionReader::new(&table);
    let options = Options::read(url, &PipelineFacts::default(), &mut reader);
    options.check().unwrap()
}

#[test]
fn a_url_alone_is_enough() {
    let options = checked("redis://h", "");
    assert_eq!(options.login.server.to_string(), "h:6379");
    assert_eq!((options.login.database, options.login.tls), (0, None));
    assert_eq!(options.login.name, "postrider");
    assert!(!options.appending.creates);
    assert_eq!(options.appending.trim, Trim::Nothing);
}

#[test]
fn everything_can_be_said() {
    let options = r#"
        connect_timeout = "1s"
        create_missing = true
        dedupe_events = 7
        dedupe_window = "1h"
        event_bytes_max = 1000
        password = "secret"
        response_timeout = "2s"
        retention = "7d"
        tls = { ca_file = "ca.pem" }
        username = "relay"
        wait_replicas = 2
        wait_timeout = "3s"
    "#;
    assert_eq!(problems("redis://h:1/15", options), "");
    let checked = checked("redis://h:1/15", options);
    assert_eq!(checked.login.database, 15);
    assert_eq!(checked.login.user.as_deref(), Some("relay"));
    assert_eq!(checked.login.password.as_ref().map(Secret::expose), Some("secret"));
    assert_eq!(checked.login.response_timeout, Duration::from_secs(5));
    assert_eq!(checked.login.tls.unwrap().ca_file.unwrap(), std::path::Path::new("ca.pem"));
    let expected = Appending {
        creates: true,
        ids_max: 7,
        ids_seconds: 3600,
        trim: Trim::OlderThan(7 * 24 * 3_600_000),
    };
    assert_eq!(checked.appending, expected);
    assert_eq!((checked.wait_replicas, checked.event_bytes_max), (2, 1000));
}

#[test]
fn the_scheme_alone_turns_tls_on() {
    assert_eq!(checked("rediss://h", "").login.tls, Some(TlsOptions::default()));
    assert_eq!(checked("redis://h", "tls = true").login.tls, Some(TlsOptions::default()));
    let login = checked("REDISS://:secret@h/", "maxlen = 9");
    assert_eq!(login.appending.trim, Trim::Maxlen(9));
    assert_eq!((login.login.user, login.login.database), (None, 0));
}

#[test]
fn each_mistake_is_named_without_the_secret() {
    for (url, options, expected) in [
        ("redis://a:1,b", "", "url: names several servers, a:1,b:6379; name one: clusters"),
        ("redis://h/canary", "", "url: has a path that is not the number of a database"),
        ("redis://u:canary@h", "username = \"x\"", "username: is in the URL, too"),
        ("redis://:canary@h", "password = \"canary\"", "password: is in the URL, too"),
        ("redis://u@h", "", "username: is given without a password; add password"),
        ("redis://h", "maxlen = 1\nretention = \"1d\"", "retention: cannot be had together"),
        ("redis://h", "tls = { key_file = \"k\" }", "tls: has key_file and no certificate_file"),
        ("redis://h", "wait_timeout = \"0s\"", "wait_timeout: must be more than zero"),
        ("redis://h", "dedupe_window = \"500ms\"", "dedupe_window: must be more than zero"),
        ("redis://h", "maxlen = 0", "maxlen: must be more than zero"),
        ("redis://h", "event_bytes_max = 600000000", "event_bytes_max: is more than Redis takes"),
        ("redis://h", "stream = \"s\"", "stream: must be left out; the stream is the topic"),
        ("redis://h", "db = 1", "db: must be left out; write it at the end of the URL"),
        ("redis://h", "maxlem = 1", "did you mean `maxlen`?"),
    ] {
        let found = problems(url, options);
        assert!(found.contains(expected), "{url} {options}: {found:?}");
        assert_eq!(found.lines().count(), 1, "{found}");
        assert!(!found.contains("canary"), "{found}");
    }
    let options = Options { password: Some(Secret::new("canary")), ..Options::new("canary") };
    assert!(!format!("{options:?}").contains("canary"));
}

/// G-06.
#[test]
fn a_call_leaves_time_to_notice_an_outage() {
    let problems = |options: &str, seconds| {
        let call_timeout = Some(Duration::from_secs(seconds));
        let pipeline = PipelineFacts { call_timeout, ..PipelineFacts::default() };
        let options = options.parse().unwrap();
        let problems = SinkSpec { url: "redis://h".to_owned(), options, pipeline }.problems();
        problems.iter().map(|problem| format!("{problem}\n")).collect::<String>()
    };
    assert_eq!(problems("", 1), "");
    assert_eq!(problems("wait_replicas = 1", 2), "");
    assert_eq!(problems("response_timeout = \"24s\"", 30), "");
    let found = problems("response_timeout = \"24s\"\nwait_replicas = 1", 30);
    let expected = "response_timeout: leaves a call no time to notice an outage: connect_timeout \
                    (5s) and response_timeout (24s) and wait_timeout (1s) together are 30s, and \
                    timeout is 30s; make them shorter, or set timeout = \"31s\" or more\n";
    assert_eq!(found, expected);
    let found = problems("wait_replicas = 1\nwait_timeout = \"1m\"", 30);
    assert!(found.starts_with("wait_timeout: leaves a call no time"), "{found}");
}

#[test]
fn all_mistakes_come_at_once() {
    let found = problems("redis://a,b/x", "connect_timeout = \"0s\"\nmaxlen = 0\nqueue = \"q\"");
    assert_eq!(found.lines().count(), 5, "{found}");
}
