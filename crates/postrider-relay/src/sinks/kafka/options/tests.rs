use super::*;

fn problems(options: &Options) -> String {
    options.problems().iter().map(|problem| format!("{problem}\n")).collect()
}

fn read(url: &str, text: &str) -> Options {
    let table = text.parse().unwrap();
    let mut reader = OptionReader::new(&table);
    let options = Options::read(url, &PipelineFacts::default(), &mut reader);
    let left = reader.finish("kafka");
    assert!(left.is_empty(), "{left:?}");
    options
}

fn setting(options: &Options, name: &str) -> Option<String> {
    options.check().ok().unwrap().config.get(name).map(str::to_owned)
}

#[test]
fn the_defaults_are_safe() {
    let options = Options::new("kafka://a,b:9093");
    assert_eq!(problems(&options), "");
    for (name, value) in [
        ("acks", "all"),
        ("bootstrap.servers", "a:9092,b:9093"),
        ("enable.idempotence", "true"),
        ("linger.ms", "2"),
        ("message.timeout.ms", "25000"),
        ("partitioner", "murmur2_random"),
        ("security.protocol", "plaintext"),
    ] {
        assert_eq!(setting(&options, name).as_deref(), Some(value), "{name}");
    }
}

#[test]
fn access_is_by_the_url_or_by_options() {
    let in_url = read("kafka://u:p%40@h", "tls = { ca_file = \"/ca.pem\" }");
    let in_options = read("kafka://h", "username = \"u\"\npassword = \"p@\"\ntls = true");
    for options in [&in_url, &in_options] {
        assert_eq!(problems(options), "");
        for (name, value) in [
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "u"),
            ("sasl.password", "p@"),
        ] {
            assert_eq!(setting(options, name).as_deref(), Some(value), "{name}");
        }
        assert!(!format!("{options:?}").contains("p@"));
    }
    assert_eq!(setting(&in_url, "ssl.ca.location").as_deref(), Some("/ca.pem"));
    let plain = read("kafka://u:p@h", "sasl_mechanism = \"PLAIN\"");
    assert_eq!(plain.check().ok().unwrap().cautions.len(), 1);
}

#[test]
fn each_shard_has_a_transactional_id_of_its_own() {
    for (name, given, expected) in [
        ("orders", "", "postrider/orders"),
        ("orders/3", "", "postrider/orders/3"),
        ("orders", "transactional_id = \"shop\"", "shop"),
        ("orders/3", "transactional_id = \"shop\"", "shop/3"),
    ] {
        let facts = PipelineFacts { name: name.to_owned(), ..PipelineFacts::default() };
        let options = Options {
            pipeline: facts,
            ..read("kafka://h", &format!("exactly_once = true\n{given}"))
        };
        assert_eq!(problems(&options), "");
        assert_eq!(options.exactly_once().unwrap().transactional_id, expected);
    }
    assert_eq!(read("kafka://h", "").exactly_once(), None);
}

#[test]
fn mistakes_are_named() {
    for (url, text, expected) in [
        ("kafka://", "", "url: names a server that is not host:port"),
        ("kafka://h/orders", "", "url: has a path; write the topic into `topic`"),
        ("kafka://u@h", "", "password: is missing"),
        ("kafka://u:canary@h", "password = \"canary\"", "password: stands in the URL, too"),
        ("kafka://h", "password = \"canary\"", "username: is missing"),
        ("kafka://h", "sasl_mechanism = \"PLAIN\"", "sasl_mechanism: is given without a user"),
        ("kafka://h", "partition = \"{nope}\"", "partition: unknown field `nope`"),
        ("kafka://h", "partitions = 3", "set create_missing = true, or remove it"),
        ("kafka://h", "create_missing = true\npartitions = 0", "partitions: must be more"),
        ("kafka://h", "tls = { key_file = \"/k\" }", "tls: has key_file and no certificate"),
        ("kafka://h", "transactional_id = \"x\"", "set exactly_once = true, or remove it"),
        ("kafka://h", "timeout = \"0s\"", "timeout: must be more than zero"),
        ("kafka://h", "client = { acks = 1 }", "client.acks: must be all"),
    ] {
        let found = problems(&read(url, text));
        assert!(found.contains(expected), "{url} {text}: {found}");
        assert!(!found.contains("canary"), "{found}");
    }
}

/// Whoever publishes under a transactional id ends what others do under it.
#[test]
fn a_transactional_id_is_for_one_relay_at_a_time() {
    use crate::config::{Config, Environment};
    let file = |ordering: &str, ids: [&str; 2]| {
        let pipeline = |(name, id): (&str, &str)| {
            format!(
                "[[pipeline]]\nname = \"{name}\"\nprogress = \"cursor\"\nordering = \"{ordering}\"\n\
                 [pipeline.sink]\nurl = \"kafka://h\"\nexactly_once = true\n{id}\n"
            )
        };
        let pipelines = ["orders", "bills"].into_iter().zip(ids).map(pipeline);
        let text = pipelines.fold("[source]\nurl = \"sqlite:a.db\"\n".to_owned(), |a, b| a + &b);
        let parsed = Config::parse(&text, "p.toml", &Environment::default());
        parsed.err().map(|problems| problems.to_string()).unwrap_or_default()
    };
    let shop = "transactional_id = \"shop\"";
    assert_eq!(file("key", ["", ""]), "");
    assert_eq!(file("key", [shop, ""]), "");
    let expected = "pipeline orders has the same transactional_id";
    for ids in [[shop, shop], ["", "transactional_id = \"postrider/orders\""]] {
        let found = file("key", ids);
        assert!(found.contains(expected), "{found}");
    }
    let found = file("none", ["", ""]);
    assert!(found.contains("exactly_once is for one relay at a time"), "{found}");
    assert!(found.contains("fix: write ordering = \"key\", or exactly_once = false"), "{found}");
}
