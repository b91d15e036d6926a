//! Brokers: the shared ones with what they keep, and passwords that are wrong; and two that have a
//! secret for a password.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::canary::{SECRET, headers, payload};
use crate::support::{Fixture, wait_until};
use crate::watch::Watch;

/// The variables with the URLs of the shared servers, and what a sink needs beside it.
const BROKERS: [(&str, &str); 4] = [
    ("KAFKA", ""),
    ("NATS", "stream = \"TOPIC\"\nstream_subjects = [\"TOPIC\"]\n"),
    ("RABBITMQ", "exchange_type = \"fanout\"\n"),
    ("REDIS", ""),
];

fn url_of(broker: &str) -> String {
    std::env::var(format!("POSTRIDER_TEST_{broker}")).expect("tests are run with cargo")
}

fn config(url: &str, topic: &str, options: &str) -> String {
    format!(
        "[source]\nurl = \"sqlite:app.db\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [[pipeline]]\nname = \"p\"\n[pipeline.retry]\nattempts = 1\n\
         [pipeline.sink]\nurl = \"{url}\"\ntopic = \"{topic}\"\n{}",
        options.replace("TOPIC", topic)
    )
}

/// An outbox with an event in it.
fn watched() -> Watch {
    let fixture = Fixture::migrated();
    let sql = "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
               VALUES ('01900000-0000-7000-8000-000000000001', 'Order', '1', 'OrderPlaced', ?1, ?2)";
    fixture.database().execute(sql, (payload(200).into_bytes(), headers())).unwrap();
    Watch::new(fixture)
}

fn topic(broker: &str) -> String {
    format!("secrets-{}-{}", broker.to_lowercase(), std::process::id())
}

#[test]
fn nothing_of_an_event_is_shown_on_its_way() {
    for (broker, options) in BROKERS {
        let watch = watched();
        let (topic, url) = (topic(broker), url_of(broker));
        let options = format!("{options}create_missing = true\n");
        watch.fixture.write("p.toml", config(&url, &topic, &options));
        let drain = ["relay", "--config", "p.toml", "--drain"];
        let drained = watch.run(&drain);
        if broker == "RABBITMQ" {
            // Nobody takes it there: it comes back.
            assert!(drained.stderr.contains("parked"), "{}", drained.stderr);
        } else {
            drained.assert_code(0).assert_talk(&["delivered 1 event"]);
            watch.run(&["verify", "--config", "p.toml"]);
        }
        watch.run(&["doctor", "--config", "p.toml"]);
        watch.search_exports();
    }
}

#[test]
fn a_password_that_is_refused_is_not_shown() {
    for (broker, options) in BROKERS {
        let watch = watched();
        let (scheme, rest) = url_of(broker).split_once("://").map(own).unwrap();
        let server = rest.rsplit('@').next().unwrap().to_owned();
        let kinds = match broker {
            "KAFKA" => ["sasl_mechanism = \"PLAIN\"\n", "sasl_mechanism = \"SCRAM-SHA-256\"\n"],
            _ => ["", ""],
        };
        for (url, kind) in [
            (format!("{scheme}://postrider:{SECRET}@{server}"), kinds[0]),
            (format!("{scheme}://{SECRET}:{SECRET}@{server}"), kinds[1]),
            (format!("{scheme}://postrider:{SECRET}@127.0.0.1:1"), kinds[0]),
        ] {
            let options = format!("{options}{kind}timeout = \"3s\"\n");
            watch.fixture.write("p.toml", config(&url, &topic(broker), &options));
            watch.run_once(&["doctor", "--config", "p.toml"]);
            let mut relay = watch.start(&["relay", "--config", "p.toml"]);
            wait_until("the relay says something of it", || {
                let said = relay.stderr();
                said.contains("WARN") || said.contains("error: ")
            });
            relay.signal("TERM");
            relay.wait();
            crate::watch::assert_nothing(broker, relay.stderr().as_bytes());
        }
    }
}

fn own((one, other): (&str, &str)) -> (String, String) {
    (one.to_owned(), other.to_owned())
}

/// A server that ends with the test.
struct Server {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Server {
    fn start(program: &str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(program);
        command.args(args).args(["--port", &port.to_string()]).current_dir(folder.path());
        command.env("PATH", "/usr/local/bin:/usr/bin:/usr/sbin:/bin").stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{program}: {error}"));
        wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { child, port, _folder: folder }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_password_that_is_right_is_not_shown() {
    let nats = ["-js", "-sd", "data", "--user", "relay", "--pass", SECRET];
    let redis = ["--requirepass", SECRET, "--save", "", "--bind", "127.0.0.1"];
    for (program, args, scheme, options) in [
        ("nats-server", &nats[..], "nats", BROKERS[1].1),
        ("redis-server", &redis, "redis", BROKERS[3].1),
    ] {
        let server = Server::start(program, args);
        let user = if scheme == "nats" { "relay" } else { "" };
        let url = format!("{scheme}://{user}:{SECRET}@127.0.0.1:{}", server.port);
        let watch = watched();
        let options = format!("{options}create_missing = true\n");
        watch.fixture.write("p.toml", config(&url, "orders", &options));
        watch.run(&["relay", "--config", "p.toml", "--drain"]).assert_code(0);
        watch.run(&["doctor", "--config", "p.toml"]);
        watch.run(&["verify", "--config", "p.toml"]);
        let relay = watch.start(&["relay", "--config", "p.toml"]);
        drop(server);
        watch.fixture.insert("2", "OrderPlaced", &headers());
        watch.look_and_stop(relay, "WARN");
        watch.search_exports();
    }
}
