//! `postrider verify` against real brokers: it finds what was done to them behind the relay's back,
//! and nothing otherwise.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::sync::Arc;

use postrider::Event;
use postrider_relay::formats::{Encoding, Format};
use postrider_relay::sinks::SinkSpec;
use serde_json::Value;
use support::Fixture;
use support::postgres::Postgres;
use uuid::Uuid;

/// A broker, and what is told to the sink.
struct Broker {
    url: String,
    options: String,
    /// It does not store again what it has.
    deduplicates: bool,
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set"))
}

/// Verifies a faultless pipeline, then breaks it in every way.
fn exercise(broker: &Broker, format: Format) {
    let fixture = Fixture::migrated();
    let topic = format!("verify-{}", Uuid::now_v7().simple());
    let (url, options, format_name) = (&broker.url, &broker.options, format.as_str());
    let options = options.replace("TOPIC", &topic);
    fixture.write(
        "postrider.toml",
        format!(
            "[source]\nurl = \"sqlite://app.db\"\n[[pipeline]]\nname = \"orders\"\n[pipeline.sink]\n\
             url = \"{url}\"\ntopic = \"{topic}\"\nformat = \"{format_name}\"\n{options}"
        ),
    );
    let ids: Vec<String> = (0..30)
        .map(|number| fixture.insert(&format!("o{}", number % 3), "OrderPaid", "{}"))
        .collect();
    fixture.run(&["relay", "--config", "postrider.toml", "--drain"]).assert_code(0);
    let waiting = fixture.insert("o0", "OrderPaid", "{}");
    let report = verify(&fixture, 0);
    assert_eq!(report["clean"], true, "{report}");
    let counts = ["expected", "kept", "waiting", "foreign"].map(|name| report[name].clone());
    assert_eq!(counts, [31, 30, 1, 0].map(Value::from), "{report}");
    let shown = show(&fixture, &ids[29]);
    let kept = shown["kept"].as_array().unwrap();
    assert!(kept.len() == 1 && kept[0]["topic"] == topic, "{shown}");
    assert!(kept[0]["place"].as_str().is_some_and(|place| !place.is_empty()), "{shown}");
    let shown = show(&fixture, &waiting);
    assert_eq!((&shown["kept"], &shown["looked_at"]), (&Value::Array(vec![]), &30.into()));

    // Marked by somebody, and never sent.
    let settle = |id: &str| settle(&fixture, id);
    settle(&waiting);
    // Sent in the wrong order.
    let [first, second] = [1, 2].map(|_| fixture.insert("o9", "OrderPaid", "{}"));
    settle(&first);
    settle(&second);
    let ghost = Uuid::now_v7().to_string();
    let sent = [(&second, "o9"), (&first, "o9"), (&second, "o9"), (&ghost, "o9")];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (id, order) in sent {
        runtime.block_on(send(url, &options, &topic, format, id, order));
    }
    let report = verify(&fixture, 6);
    assert_eq!(report["clean"], false, "{report}");
    let ids = |kind: &str| -> Vec<String> {
        let examples = report[kind]["examples"].as_array().unwrap();
        let id = |example: &Value| example["event_id"].as_str().unwrap().to_owned();
        examples.iter().map(id).collect()
    };
    assert_eq!(ids("lost"), [waiting]);
    assert_eq!(ids("ghosts"), [ghost]);
    assert_eq!(ids("out_of_order"), [first]);
    let duplicated = if broker.deduplicates { vec![] } else { vec![second] };
    assert_eq!(ids("duplicated"), duplicated);

    let ran = fixture.run(&["verify", "--config", "postrider.toml"]).assert_code(6);
    assert!(ran.stdout.contains("         1  lost: published, and not there"), "{}", ran.stdout);
    ran.assert_talk(&["1 lost, 1 in no outbox, 1 out of order", "postrider replay"]);
}

/// Marks an event, as a relay would that has published it now.
fn settle(fixture: &Fixture, id: &str) {
    let settle = "UPDATE outbox SET published_at = strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'
         WHERE id = ?1";
    assert_eq!(fixture.database().execute(settle, [id]).unwrap(), 1);
}

/// A fixture whose pipeline `orders` goes to a file.
fn to_file() -> Fixture {
    let fixture = Fixture::migrated();
    fixture.write(
        "postrider.toml",
        "[source]\nurl = \"sqlite://app.db\"\n[[pipeline]]\nname = \"orders\"\n\
         [pipeline.sink]\nurl = \"file:events.jsonl\"\n",
    );
    fixture
}

fn drain(fixture: &Fixture) {
    fixture.run(&["relay", "--config", "postrider.toml", "--drain"]).assert_code(0);
}

/// Flags name the pipeline `default`, which never ran: nothing could be told from its progress.
#[test]
fn another_pipeline_than_the_one_that_ran_is_not_verified() {
    let fixture = to_file();
    fixture.insert("o1", "OrderPaid", "{}");
    let to = ["verify", "--from", "sqlite://app.db", "--to", "file:events.jsonl"];
    drain(&fixture);
    fixture.write("events.jsonl", "");
    fixture.run(&to).assert_code(2).assert_talk(&[
        "no relay has ever run the pipeline default here; there is: orders",
        "--pipeline NAME",
    ]);
    assert_eq!(verify(&fixture, 6)["lost"]["count"], 1);
    std::fs::remove_file(fixture.path("events.jsonl")).unwrap();
    let ran = fixture.run(&["verify", "--config", "postrider.toml"]).assert_code(3);
    ran.assert_talk(&["there is no file", "fix: check the path, or run the relay, which makes it"]);
}

#[test]
fn what_was_discarded_is_not_lost() {
    let fixture = to_file();
    fixture.insert("o1", "OrderPaid", "{}");
    let bad = fixture.insert("o2", "OrderPaid", "this is not JSON");
    drain(&fixture);
    // It could be published now.
    fixture.database().execute_batch("UPDATE outbox SET headers = '{}'").unwrap();
    let config = ["--config", "postrider.toml"];
    let discard = [&["dlq", "discard", &bad, "--yes"], &config[..]].concat();
    fixture.run(&discard).assert_code(0);
    let report = verify(&fixture, 0);
    assert_eq!((&report["lost"]["count"], &report["discarded"]), (&0.into(), &1.into()));
    let shown = fixture.run(&[&["show", &bad], &config[..]].concat()).assert_code(0);
    assert!(shown.stdout.contains("state         discarded at 20"), "{}", shown.stdout);
    let json = fixture.run(&[&["show", &bad, "--json"], &config[..]].concat()).assert_code(0);
    assert!(json.stdout.contains(r#""state":"discarded""#), "{}", json.stdout);
    let replay = [&["replay", "--since", "1h", "--yes", "--json"], &config[..]].concat();
    let replayed = fixture.run(&replay).assert_code(0).stdout;
    assert!(replayed.contains(r#""published":1,"#), "{replayed}");
    assert!(replayed.contains(r#""waiting":0,"set_aside":0,"discarded":1,"#), "{replayed}");
    assert!(!fixture.read("events.jsonl").contains(&bad));
    // It is known for as long as a published event stays.
    fixture.run(&[&["prune", "--keep", "0s", "--yes"], &config[..]].concat()).assert_code(0);
    fixture.run(&[&["show", &bad], &config[..]].concat()).assert_code(1);
}

/// An outbox of either database.
enum Outbox {
    Postgres(Postgres),
    Sqlite(Fixture),
}

impl Outbox {
    fn each() -> [Self; 2] {
        let postgres = Postgres::new();
        postgres.migrate(&[]).assert_code(0);
        [Self::Postgres(postgres), Self::Sqlite(Fixture::migrated())]
    }

    fn fixture(&self) -> &Fixture {
        match self {
            Self::Postgres(postgres) => &postgres.fixture,
            Self::Sqlite(fixture) => fixture,
        }
    }

    /// Writes an event, and gives back its id.
    fn write(&self, aggregate_type: &str) -> String {
        let id = Uuid::now_v7().to_string();
        let columns = "id, aggregate_type, aggregate_id, event_type, payload";
        let values = format!("'{id}', '{aggregate_type}', 'k', 'Happened', '1'");
        let insert = format!("INSERT INTO outbox ({columns}) VALUES ({values})");
        match self {
            Self::Postgres(postgres) => postgres.execute(&insert),
            Self::Sqlite(fixture) => drop(fixture.database().execute(&insert, []).unwrap()),
        }
        id
    }

    /// Runs pipelines, each with a file of its name, until nothing is left.
    fn drain(&self, pipelines: &[(&str, &str)]) {
        self.configure(pipelines);
        drain(self.fixture());
    }

    fn configure(&self, pipelines: &[(&str, &str)]) {
        let url = match self {
            Self::Postgres(postgres) => &postgres.url,
            Self::Sqlite(_) => "sqlite:app.db",
        };
        let mut config = format!("[source]\nurl = \"{url}\"\n");
        for (name, options) in pipelines {
            config.push_str(&format!(
                "[[pipeline]]\nname = \"{name}\"\n{options}\n[pipeline.sink]\n\
                 url = \"file:{name}.jsonl\"\n"
            ));
        }
        self.fixture().write("postrider.toml", config);
    }

    /// Verifies a pipeline: how many messages there are, how many events are lost, and how many it
    /// never published.
    fn verify(&self, pipeline: &str, code: i32) -> [Value; 3] {
        let args = ["verify", "--config", "postrider.toml", "--pipeline", pipeline, "--json"];
        let ran = self.fixture().run(&args).assert_code(code);
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        [&report["kept"], &report["lost"]["count"], &report["not_its_own"]].map(Clone::clone)
    }
}

#[test]
fn what_another_pipeline_published_is_not_lost() {
    for outbox in Outbox::each() {
        let fixture = outbox.fixture();
        let first = [(); 4].map(|()| outbox.write("Order"))[0].clone();
        outbox.drain(&[("p", "progress = \"mark\"")]);
        (0..3).for_each(|_| drop(outbox.write("Order")));
        let cursors = [
            ("p", "progress = \"cursor\""),
            ("r", "progress = \"cursor\"\nstart = \"unpublished\""),
            ("s", "progress = \"cursor\"\nstart = \"now\""),
        ];
        outbox.drain(&cursors);
        outbox.write("Order");
        outbox.drain(&cursors);
        assert_eq!(outbox.verify("p", 0), [8, 0, 0].map(Value::from));
        assert_eq!(outbox.verify("r", 0), [4, 0, 4].map(Value::from));
        assert_eq!(outbox.verify("s", 0), [1, 0, 7].map(Value::from));
        let show = ["show", &first, "--config", "postrider.toml"];
        let shown = fixture.run(&show).assert_code(0).stdout;
        assert_eq!(shown.matches("; this pipeline did not publish it").count(), 2, "{shown}");
        let shown = fixture.run(&[&show[..], &["--json"]].concat()).assert_code(0).stdout;
        assert_eq!(shown.matches(r#""not_its_own":true"#).count(), 2, "{shown}");
        // What it has published is.
        fixture.write("r.jsonl", "");
        assert_eq!(outbox.verify("r", 6), [0, 4, 4].map(Value::from));
    }
}

#[test]
fn a_type_that_was_added_is_not_lost_before_the_relay_starts() {
    for outbox in Outbox::each() {
        for aggregate_type in ["A", "B", "A", "B"] {
            outbox.write(aggregate_type);
        }
        let matching =
            |types| format!("progress = \"cursor\"\nmatch = {{ aggregate_type = {types} }}");
        outbox.drain(&[("p", &matching("[\"A\"]"))]);
        assert_eq!(outbox.verify("p", 0), [2, 0, 0].map(Value::from));
        let both = matching("[\"A\", \"B\"]");
        outbox.configure(&[("p", &both)]);
        assert_eq!(outbox.verify("p", 0), [2, 0, 2].map(Value::from));
        outbox.drain(&[("p", &both)]);
        assert_eq!(outbox.verify("p", 0), [4, 0, 0].map(Value::from));
    }
}

/// One event names a topic that cannot be used. It is parked, and the others are verified.
fn one_bad_topic(url: &str, options: &str, spoil: impl AsyncFn(&str)) {
    let fixture = Fixture::migrated();
    let topic = format!("verify-{}", Uuid::now_v7().simple());
    let configure = |options: &str| {
        let options = options.replace("TOPIC", &topic);
        fixture.write(
            "postrider.toml",
            format!(
                "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"orders\"\n\
                 [pipeline.retry]\nattempts = 1\n[pipeline.sink]\nurl = \"{url}\"\n\
                 topic = \"{topic}\"\n{options}"
            ),
        );
    };
    configure(&format!("create_missing = true\n{options}"));
    fixture.insert("o1", "OrderPaid", "{}");
    // Nothing is published yet, so there is no topic to read.
    let since = ["verify", "--config", "postrider.toml", "--since", "1h", "--json"];
    let ran = fixture.run(&since).assert_code(0);
    assert!(ran.stdout.contains(r#""waiting":1,"#), "{}", ran.stdout);
    drain(&fixture);
    configure(options);
    let wrong = format!("{topic}-wrong");
    tokio::runtime::Runtime::new().unwrap().block_on(spoil(&wrong));
    let bad = fixture.insert("o2", "OrderPaid", "{}");
    let choose = "UPDATE outbox SET topic = ?1 WHERE id = ?2";
    fixture.database().execute(choose, [&wrong, &bad]).unwrap();
    // Whether something is parked is in the exit code.
    fixture.run(&["relay", "--config", "postrider.toml", "--drain"]);
    let counts = |code| {
        let report = verify(&fixture, code);
        let names = ["expected", "kept", "waiting", "discarded"];
        (names.map(|name| report[name].clone()), report)
    };
    let (parked, report) = counts(0);
    assert_eq!(parked, [2, 1, 1, 0].map(Value::from), "{report}");
    let discard = ["dlq", "discard", &bad, "--yes", "--config", "postrider.toml"];
    fixture.run(&discard).assert_code(0);
    let (discarded, report) = counts(0);
    assert_eq!(discarded, [2, 1, 0, 1].map(Value::from), "{report}");

    // Published by somebody, to where it cannot be looked for.
    fixture.database().execute("DELETE FROM outbox_failures", []).unwrap();
    settle(&fixture, &bad);
    let (_, report) = counts(3);
    let unreadable = &report["unreadable"][0];
    assert_eq!((&unreadable["topic"], &unreadable["events"]), (&wrong.clone().into(), &1.into()));
    let others = (&report["kept"], &report["lost"]["count"], &report["clean"]);
    assert_eq!(others, (&1.into(), &0.into(), &false.into()), "{report}");
    let ran = fixture.run(&["verify", "--config", "postrider.toml"]).assert_code(3);
    assert!(
        ran.stdout.contains("         1  in topics that cannot be read back"),
        "{}",
        ran.stdout
    );
    ran.assert_talk(&[&wrong]);
}

#[test]
fn a_topic_of_kafka_that_is_missing_hides_no_other() {
    one_bad_topic(&server("POSTRIDER_TEST_KAFKA"), "", async |_: &str| {});
}

#[test]
fn a_subject_of_nats_without_a_stream_hides_no_other() {
    let options = "stream = \"TOPIC\"\nstream_subjects = [\"TOPIC\"]\n";
    one_bad_topic(&server("POSTRIDER_TEST_NATS"), options, async |_: &str| {});
}

#[test]
fn a_key_of_redis_that_is_no_stream_hides_no_other() {
    let url = server("POSTRIDER_TEST_REDIS");
    one_bad_topic(&url, "", async |key: &str| {
        let client = redis::Client::open(url.as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let set = redis::cmd("SET").arg(key).arg("text").arg("EX").arg(600).take();
        assert_eq!(set.query_async::<String>(&mut connection).await.unwrap(), "OK");
    });
}

/// What `show` says of the place of an event in the broker.
fn show(fixture: &Fixture, id: &str) -> Value {
    let args = ["show", id, "--in-broker", "--config", "postrider.toml", "--json"];
    let shown: Value = serde_json::from_str(&fixture.run(&args).assert_code(0).stdout).unwrap();
    shown["broker"].clone()
}

fn verify(fixture: &Fixture, code: i32) -> Value {
    let ran = fixture.run(&["verify", "--config", "postrider.toml", "--json"]).assert_code(code);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Publishes an event behind the relay's back.
async fn send(url: &str, options: &str, topic: &str, format: Format, id: &str, order: &str) {
    let event = Event::builder("Order", order, "OrderPaid").id(id.parse().unwrap()).topic(topic);
    let event = Arc::new(event.build().unwrap());
    let message = Encoding { format, ..Encoding::default() }.encode(event).unwrap();
    let spec = SinkSpec { options: options.parse().unwrap(), ..SinkSpec::new(url) };
    let sink = spec.connect().await.unwrap();
    for answer in sink.publish(&[message]).await {
        answer.unwrap();
    }
    sink.close().await.unwrap();
}

#[test]
fn a_file_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let url = format!("file://{}", path.display());
    exercise(&Broker { url, options: String::new(), deduplicates: false }, Format::Payload);
}

#[test]
fn kafka_is_verified_in_every_format() {
    let (url, options) = (server("POSTRIDER_TEST_KAFKA"), "create_missing = true\n".to_owned());
    let broker = Broker { url, options, deduplicates: false };
    Format::ALL.into_iter().for_each(|format| exercise(&broker, format));
}

#[test]
fn nats_is_verified() {
    let options = "create_missing = true\nstream = \"TOPIC\"\nstream_subjects = [\"TOPIC\"]\n";
    let (url, options) = (server("POSTRIDER_TEST_NATS"), options.to_owned());
    exercise(&Broker { url, options, deduplicates: true }, Format::CloudEvents);
}

#[test]
fn redis_is_verified_in_every_format() {
    let (url, options) = (server("POSTRIDER_TEST_REDIS"), "create_missing = true\n".to_owned());
    let broker = Broker { url, options, deduplicates: true };
    Format::ALL.into_iter().for_each(|format| exercise(&broker, format));
}

/// What a broker has lost is there again after a replay, although the broker remembers the ids of
/// what it took.
fn replay_what_is_lost(url: &str, options: &str, empty: impl AsyncFn(&str)) {
    let fixture = Fixture::migrated();
    let topic = format!("replay-{}", Uuid::now_v7().simple());
    let options = options.replace("TOPIC", &topic);
    fixture.write(
        "postrider.toml",
        format!(
            "[source]\nurl = \"sqlite://app.db\"\n[[pipeline]]\nname = \"orders\"\n[pipeline.sink]\n\
             url = \"{url}\"\ntopic = \"{topic}\"\n{options}"
        ),
    );
    let ids = [1, 2, 3].map(|number| fixture.insert(&format!("o{number}"), "OrderPaid", "{}"));
    drain(&fixture);
    assert_eq!(verify(&fixture, 0)["lost"]["count"], 0);
    tokio::runtime::Runtime::new().unwrap().block_on(empty(&topic));
    assert_eq!(verify(&fixture, 6)["lost"]["count"], 3);

    let replay = ["replay", "--config", "postrider.toml", "--yes"];
    let ran = fixture.run(&replay).assert_code(0);
    ran.assert_talk(&["published 3 of 3 events", "read back: 3 of 3 events are there"]);
    let report = verify(&fixture, 0);
    let counts = [&report["lost"]["count"], &report["kept"], &report["duplicated"]["count"]];
    assert_eq!(counts, [0, 3, 0], "{report}");
    // Consumers know it by its own id.
    let shown = show(&fixture, &ids[1]);
    assert_eq!(shown["kept"].as_array().unwrap().len(), 1, "{shown}");
    // The next replay is another one.
    let ran = fixture.run(&[&replay[..], &["--json"]].concat()).assert_code(0);
    assert!(ran.stdout.contains(r#""published":3,"read_back":3,"#), "{}", ran.stdout);
    assert_eq!(verify(&fixture, 0)["duplicated"]["count"], 3);
}

#[test]
fn a_replay_into_nats_is_there_although_its_ids_are_remembered() {
    let options = "create_missing = true\nstream = \"TOPIC\"\nstream_subjects = [\"TOPIC\"]\n";
    let url = server("POSTRIDER_TEST_NATS");
    replay_what_is_lost(&url, options, async |stream: &str| {
        let (user, address) = url.strip_prefix("nats://").unwrap().split_once('@').unwrap();
        let (user, password) = user.split_once(':').unwrap();
        let options = async_nats::ConnectOptions::new();
        let options = options.user_and_password(user.to_owned(), password.to_owned());
        let client = options.connect(address).await.unwrap();
        let stream = async_nats::jetstream::new(client).get_stream(stream).await.unwrap();
        assert_eq!(stream.purge().await.unwrap().purged, 3);
    });
}

#[test]
fn a_replay_into_redis_is_there_although_its_ids_are_remembered() {
    let url = server("POSTRIDER_TEST_REDIS");
    replay_what_is_lost(&url, "create_missing = true\n", async |stream: &str| {
        let client = redis::Client::open(url.as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let trim = redis::cmd("XTRIM").arg(stream).arg("MAXLEN").arg(0).take();
        assert_eq!(trim.query_async::<u32>(&mut connection).await, Ok(3));
    });
}

#[test]
fn what_cannot_be_verified_is_said() {
    let fixture = Fixture::migrated();
    fixture.insert("o1", "OrderPaid", "{}");
    let from = ["verify", "--from", "sqlite://app.db", "--to"];
    let http = [&from[..], &["http://localhost:1/", "--allow-private"]].concat();
    fixture
        .run(&http)
        .assert_code(3)
        .assert_talk(&["cannot be read back", "kafka, nats and redis"]);
    fixture.write(
        "postrider.toml",
        "[source]\nurl = \"sqlite://app.db\"\n[[pipeline]]\nname = \"orders\"\n\
         progress = \"delete\"\n[pipeline.sink]\nurl = \"file:events.jsonl\"\n",
    );
    let ran = fixture.run(&["verify", "--config", "postrider.toml"]).assert_code(3);
    ran.assert_talk(&["deletes what it has published", "progress = \"mark\""]);
}
