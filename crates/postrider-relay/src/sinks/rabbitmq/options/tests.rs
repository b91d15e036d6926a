use super::*;

fn read(url: &str, text: &str) -> Options {
    let table = text.parse().unwrap();
    let mut reader = OptionReader::new(&table);
    let options = Options::read(url, &PipelineFacts::default(), &mut reader);
    let left = reader.finish("amqp");
    assert!(left.is_empty(), "{left:?}");
    options
}

fn problems(url: &str, text: &str) -> String {
    read(url, text).problems().iter().map(|problem| format!("{problem}\n")).collect()
}

fn checked(url: &str, text: &str) -> CheckedOptions {
    read(url, text).check().ok().unwrap()
}

#[test]
fn a_url_is_enough() {
    let options = checked("amqp://a,b:9", "");
    let servers: Vec<_> = options.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["a:5672", "b:9"]);
    assert_eq!((options.vhost.as_str(), options.user.as_str()), ("/", "guest"));
    assert_eq!(options.password.expose(), "guest");
    assert!(options.tls.is_none());
    let options = checked("AMQPS://u:p%40@h/a%2Fb", "");
    assert_eq!(options.servers[0].port, 5671);
    assert_eq!((options.vhost.as_str(), options.user.as_str()), ("a/b", "u"));
    assert_eq!(options.password.expose(), "p@");
    assert!(options.tls.is_some());
    for url in ["amqp://h/", "amqp://h/%2F"] {
        assert_eq!(checked(url, "").vhost, "/");
    }
}

#[test]
fn every_option_is_read() {
    let text = r#"
        confirm_timeout = "1s"
        connect_timeout = "2s"
        connections = 3
        create_missing = true
        event_bytes_max = 4
        exchange_type = "fanout"
        heartbeat = "5s"
        password = "p"
        username = "u"
    "#;
    let options = checked("amqp://h", text);
    let durations = (options.confirm_timeout.as_secs(), options.connect_timeout.as_secs());
    assert_eq!(durations, (1, 2));
    assert_eq!((options.connections, options.event_bytes_max), (3, 4));
    assert_eq!((options.heartbeat_seconds, options.create_missing), (5, true));
    assert_eq!((options.exchange_type.as_str(), options.user.as_str()), ("fanout", "u"));
    assert_eq!(options.password.expose(), "p");
    let text = r#"
        auth = "external"
        tls = { ca_file = "a", certificate_file = "b", key_file = "c" }
    "#;
    assert_eq!(checked("amqps://h", text).auth, Auth::External);
}

#[test]
fn mistakes_are_named_without_a_secret() {
    for (url, text, expected) in [
        ("amqp:canary", "", "url: has no // after the scheme; write amqp://host:5672"),
        ("amqp://u@h", "", "password: is missing"),
        ("amqp://h", "password = \"canary\"", "username: is missing"),
        ("amqp://u:canary@h", "username = \"u\"", "username: stands in the URL, too"),
        ("amqp://u:canary@h", "password = \"canary\"", "password: stands in the URL, too"),
        ("amqp://h", "tls = true", "tls: is given, and the URL is without TLS; write amqps"),
        ("amqps://h", "tls = { key_file = \"k\" }", "tls: has key_file and no certificate"),
        ("amqp://h", "heartbeat = \"0s\"", "heartbeat: must be whole seconds"),
        ("amqp://h", "heartbeat = \"1500ms\"", "heartbeat: must be whole seconds"),
        ("amqp://h", "connections = 0", "connections: must be more than zero"),
        ("amqp://h", "event_bytes_max = 0", "event_bytes_max: must be more than zero"),
        ("amqp://h", "exchange_type = \"x\"", "exchange_type: is for exchanges that are made"),
        ("amqp://h", "auth = \"external\"", "auth: is by a certificate, and there is none"),
        ("amqp://u:canary@h", "auth = \"external\"", "auth: is by a certificate, and there is"),
    ] {
        let found = problems(url, text);
        assert!(found.contains(expected), "{url} {text}: {found}");
        assert!(!found.contains("canary"), "{found}");
    }
}

/// G-06.
#[test]
fn a_call_leaves_time_to_notice_an_outage() {
    let problems = |url: &str, text: &str, seconds| {
        let mut options = read(url, text);
        options.pipeline.call_timeout = Some(Duration::from_secs(seconds));
        options.problems().iter().map(|problem| format!("{problem}\n")).collect::<String>()
    };
    assert_eq!(problems("amqp://a,b,c,d,e", "", 30), "");
    assert_eq!(problems("amqp://a", "", 1), "");
    let found = problems("amqp://a,b", "confirm_timeout = \"20s\"", 30);
    let expected = "confirm_timeout: leaves a call no time to notice an outage: connect_timeout \
                    for 2 servers (10s) and confirm_timeout (20s) together are 30s, and timeout is \
                    30s";
    assert!(found.starts_with(expected), "{found}");
    let found = problems("amqp://a", "connect_timeout = \"1m\"", 30);
    assert!(found.starts_with("connect_timeout: leaves a call no time"), "{found}");
    assert!(found.contains("set timeout = \"71s\" or more"), "{found}");
}

#[test]
fn unsafe_settings_are_refused_with_the_reason() {
    for (text, expected) in [
        ("confirms = false", "confirms: cannot be set: without confirmations events would be"),
        ("mandatory = false", "mandatory: cannot be set: events that no queue takes would be"),
        ("delivery_mode = 1", "delivery_mode: cannot be set: a restart of the server would"),
        ("exchange = \"x\"", "exchange: is called `topic` here; write topic = \"…\""),
        ("routing_key = \"x\"", "routing_key: is called `key` here; write key = \"…\""),
        ("queue = \"x\"", "write topic = \"amq.default\" and key = \"the queue\""),
        ("vhost = \"x\"", "vhost: is the path of the URL; write amqp://host/vhost"),
    ] {
        let found = problems("amqp://h", text);
        assert!(found.contains(expected), "{text}: {found}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let options = read("amqp://u:canary@h", "password = \"canary\"");
    assert!(!format!("{options:?}").contains("canary"));
}
