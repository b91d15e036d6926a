//! Sinks and the binary with brokers of a test's own: what a check must not change, what a missing
//! right must not leave behind, and what is learned anew from a broker that was started again.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::Event;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{FailureKind, Message, Sink, SinkError};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};
use serde_json::{Value, json};
use support::{Fixture, wait_until};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// A program that runs in a folder of its own, on a port of its own, and ends with the test.
struct Server {
    child: Child,
    program: &'static str,
    folder: TempDir,
    port: u16,
}

impl Server {
    fn start(program: &'static str, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let child = Self::spawn(program, folder.path(), port, settings);
        Self { child, program, folder, port }
    }

    fn spawn(program: &'static str, folder: &Path, port: u16, settings: &str) -> Child {
        fs::write(folder.join("settings"), settings).unwrap();
        let mut command = match program {
            "nats-server" => {
                let mut command = Command::new(path_of(program));
                command.args(["--config", "settings", "--addr", "127.0.0.1"]);
                command.args(["--port", &port.to_string()]);
                command
            }
            "rabbitmq-server" => rabbitmq(folder, port, settings),
            _ => {
                let mut command = Command::new(path_of(program));
                command.args(["settings", "--bind", "127.0.0.1", "--port", &port.to_string()]);
                command
            }
        };
        command.current_dir(folder);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        child
    }

    fn start_again(&mut self, settings: &str) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(self.program, self.folder.path(), self.port, settings);
    }

    fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(("127.0.0.1", self.port)).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A node with a list of nodes (`epmd`) of its own, which ends with it. Settings of the machine's
/// own node do not count.
fn rabbitmq(folder: &Path, port: u16, settings: &str) -> Command {
    let at = |name: &str| folder.join(name);
    let settings = format!("listeners.tcp.1 = 127.0.0.1:{port}\n{settings}\n");
    fs::write(at("rabbitmq.conf"), settings).unwrap();
    fs::write(at("enabled_plugins"), "[].\n").unwrap();
    let mut command = Command::new("sh");
    let node = "setpriv --pdeathsig KILL epmd & exec /usr/lib/rabbitmq/bin/rabbitmq-server";
    command.args(["-c", node]).env("HOME", folder);
    command.env("ERL_EPMD_ADDRESS", "127.0.0.1").env("ERL_EPMD_PORT", free_port().to_string());
    command.env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"));
    command.env("RABBITMQ_CONF_ENV_FILE", "/dev/null");
    command.env("RABBITMQ_DIST_PORT", free_port().to_string());
    command.env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"));
    command.env("RABBITMQ_LOG_BASE", at("logs")).env("RABBITMQ_MNESIA_BASE", at("data"));
    command.env("RABBITMQ_NODENAME", "test@localhost").env("RUNNING_UNDER_SYSTEMD", "true");
    let local = "-kernel inet_dist_use_interface {127,0,0,1}";
    command.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", local);
    command
}

/// A program in the search path, or where Debian keeps servers.
fn path_of(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.is_file()));
    found.unwrap_or_else(|| panic!("there is no {program}; run `cargo xtask services up`"))
}

/// A sink of a pipeline whose events all have one topic.
async fn sink(url: &str, topic: &str, options: &str) -> Box<dyn Sink> {
    let pipeline = PipelineFacts { topic: Some(topic.to_owned()), ..PipelineFacts::default() };
    let spec =
        SinkSpec { options: options.parse().unwrap(), pipeline, ..SinkSpec::new(url.to_owned()) };
    spec.connect().await.unwrap()
}

fn message(topic: &str, number: u32, bytes: usize) -> Message {
    let event = Event::builder("Order", number.to_string(), "OrderPaid").topic(topic);
    let event = event.payload(vec![b'x'; bytes], "text/plain").build().unwrap();
    Encoding::default().encode(Arc::new(event)).unwrap()
}

async fn publish(sink: &dyn Sink, message: &Message) -> Result<(), SinkError> {
    sink.publish(std::slice::from_ref(message)).await.remove(0)
}

#[track_caller]
fn assert_misconfigured<T: std::fmt::Debug>(result: Result<T, SinkError>, words: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind, FailureKind::Misconfigured, "{error}");
    assert!(error.message.contains(words), "{words:?} is not in {error}");
}

/// Asks Redis something whose answer is one line.
fn redis(server: &Server, command: &str) -> String {
    let mut stream = server.connect();
    stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(!line.starts_with('-'), "{command}: {line}");
    line.trim_end()[1..].to_owned()
}

const RIGHTS: &str = "~orders ~{orders}:postrider-* +eval +xadd +xtrim +time +smismember +sadd \
                      +scard +expire +unlink +rename +wait";

fn redis_server() -> Server {
    Server::start("redis-server", &format!("save \"\"\nuser relay on >secret {RIGHTS}\n"))
}

fn redis_url(server: &Server) -> String {
    format!("redis://relay:secret@127.0.0.1:{}", server.port)
}

/// G-04: what was appended without its id would be appended again by every retry.
#[tokio::test]
async fn a_right_that_redis_does_not_give_repeats_no_event() {
    let server = redis_server();
    let options = "create_missing = true\ndedupe_events = 3\nmaxlen = 1000";
    let sink = sink(&redis_url(&server), "orders", options).await;
    assert!(sink.check().await.is_ok());
    let rights =
        ["eval", "expire", "rename", "sadd", "scard", "smismember", "unlink", "xadd", "xtrim"];
    for right in rights {
        redis(&server, "FLUSHALL");
        redis(&server, &format!("ACL SETUSER relay -{right}"));
        assert_misconfigured(sink.check().await, "NOPERM");
        assert_eq!(redis(&server, "DBSIZE"), "0", "a check changes nothing");
        let messages: Vec<_> = (1..=4).map(|number| message("orders", number, 10)).collect();
        // Each is tried again after it has failed. Some rights are needed only now and then.
        for message in &messages {
            for _ in 0..2 {
                let published = publish(&*sink, message).await;
                if published.is_err() {
                    assert_misconfigured(published, "an administrator gives the right");
                }
            }
        }
        redis(&server, &format!("ACL SETUSER relay +{right}"));
        for message in &messages {
            assert_eq!(publish(&*sink, message).await, Ok(()), "{right}");
        }
        assert_eq!(redis(&server, "XLEN orders"), "4", "without {right}");
    }
}

#[tokio::test]
async fn a_stream_that_redis_has_not_leaves_nothing_behind() {
    let server = redis_server();
    let sink = sink(&redis_url(&server), "orders", "maxlen = 1000").await;
    assert_misconfigured(publish(&*sink, &message("orders", 1, 1)).await, "has no stream orders");
    assert_eq!(redis(&server, "DBSIZE"), "0");
}

#[tokio::test]
async fn a_check_finds_rights_that_plain_commands_and_waiting_need() {
    let server = redis_server();
    let plain = "create_missing = true\ndedupe_events = 0";
    let plain = sink(&redis_url(&server), "orders", plain).await;
    redis(&server, "ACL SETUSER relay -xadd");
    // Who may not ask cannot know.
    assert!(plain.check().await.is_ok());
    redis(&server, "ACL SETUSER relay +acl|dryrun");
    assert_misconfigured(plain.check().await, "NOPERM");
    redis(&server, "ACL SETUSER relay +xadd -wait");
    assert!(plain.check().await.is_ok());
    let waiting = sink(&redis_url(&server), "orders", "wait_replicas = 1").await;
    assert_misconfigured(waiting.check().await, "NOPERM");
}

#[test]
fn a_right_that_is_missing_is_3_with_the_command_that_gives_it() {
    let server = redis_server();
    redis(&server, "ACL SETUSER relay -sadd");
    redis(&server, "XGROUP CREATE orders billing 0 MKSTREAM");
    let fixture = Fixture::migrated();
    fixture.insert("1", "OrderPlaced", "{}");
    let url = redis_url(&server);
    fixture.write("p.toml", pipeline(&format!("url = \"{url}\"\ntopic = \"orders\"\nmaxlen = 9")));
    let drain = ["relay", "--config", "p.toml", "--drain"];
    fixture.run(&drain).assert_code(3).assert_talk(&["NOPERM", "may not use SADD", "+sadd"]);
    assert_eq!(redis(&server, "XLEN orders"), "0");
    redis(&server, "ACL SETUSER relay +sadd");
    fixture.run(&drain).assert_code(0).assert_talk(&["delivered 1 event"]);
    assert_eq!(redis(&server, "XLEN orders"), "1");
}

fn pipeline(sink: &str) -> String {
    let source = "[source]\nurl = \"sqlite:app.db\"\n";
    format!("{source}[[pipeline]]\nname = \"orders\"\n[pipeline.sink]\n{sink}\n")
}

/// Asks JetStream something.
fn jetstream(server: &Server, what: &str, body: &Value) -> Value {
    let mut stream = server.connect();
    let body = body.to_string();
    let bytes = body.len();
    let request = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB $JS.API.{what} answer \
         {bytes}\r\n{body}\r\n"
    );
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "there is an answer");
        if let Some(head) = line.strip_prefix("MSG answer ") {
            let bytes = head.split_whitespace().last().unwrap().parse().unwrap();
            let mut answer = vec![0; bytes];
            stream.read_exact(&mut answer).unwrap();
            return serde_json::from_slice(&answer).unwrap();
        }
    }
}

fn streams(server: &Server) -> Value {
    jetstream(server, "STREAM.NAMES", &json!({}))["streams"].clone()
}

fn nats_server(max_payload: u32) -> Server {
    Server::start("nats-server", &nats_settings(max_payload))
}

fn nats_settings(max_payload: u32) -> String {
    format!("jetstream {{ store_dir: data }}\nmax_payload: {max_payload}\n")
}

fn nats_url(server: &Server) -> String {
    format!("nats://127.0.0.1:{}", server.port)
}

#[tokio::test]
async fn a_stream_of_nats_is_made_by_the_first_event_and_not_by_a_check() {
    let server = nats_server(100_000);
    let options = "create_missing = true\nstream = \"ORDERS\"";
    let orders = sink(&nats_url(&server), "orders.paid", options).await;
    assert_eq!(orders.check().await, Ok(Vec::new()));
    assert_eq!(streams(&server), Value::Null);
    assert_eq!(publish(&*orders, &message("orders.paid", 1, 1)).await, Ok(()));
    assert_eq!(streams(&server), json!(["ORDERS"]));
    assert!(orders.check().await.is_ok());
    // One that was deleted is made again by whoever connects and publishes.
    jetstream(&server, "STREAM.DELETE.ORDERS", &json!({}));
    let again = sink(&nats_url(&server), "orders.paid", options).await;
    assert_eq!(streams(&server), Value::Null);
    assert_eq!(publish(&*again, &message("orders.paid", 2, 1)).await, Ok(()));
    assert_eq!(streams(&server), json!(["ORDERS"]));
}

#[tokio::test]
async fn a_stream_of_nats_that_cannot_be_made_is_found_by_a_check() {
    let server = nats_server(100_000);
    let taken = json!({ "name": "ORDERS", "subjects": ["orders.>"] });
    assert_eq!(jetstream(&server, "STREAM.CREATE.ORDERS", &taken)["error"], Value::Null);
    let options = "create_missing = true\nstream = \"MORE\"\nstream_subjects = [\"orders.*\"]";
    let spec = SinkSpec { options: options.parse().unwrap(), ..SinkSpec::new(nats_url(&server)) };
    let more = spec.connect().await.unwrap();
    let words = "the stream MORE cannot be made: ORDERS takes orders.* already";
    assert_misconfigured(more.check().await, words);
    let published = publish(&*more, &message("orders.paid", 1, 1)).await;
    assert_misconfigured(published, "cannot make the stream MORE: subjects");
    assert_eq!(streams(&server), json!(["ORDERS"]));
}

/// The topic is enough to know what the stream takes.
#[test]
fn a_stream_of_nats_for_one_topic_is_made_by_the_binary() {
    let server = nats_server(100_000);
    let fixture = Fixture::migrated();
    fixture.insert("1", "OrderPlaced", "{}");
    let sink = "topic = \"orders.placed\"\nstream = \"ORDERS\"\ncreate_missing = true";
    fixture.write("p.toml", pipeline(&format!("url = \"{}\"\n{sink}", nats_url(&server))));
    let drain = ["relay", "--config", "p.toml", "--drain"];
    fixture.run(&drain).assert_code(0).assert_talk(&["delivered 1 event"]);
    let info = jetstream(&server, "STREAM.INFO.ORDERS", &json!({}));
    assert_eq!(info["config"]["subjects"], json!(["orders.placed"]));
    assert_eq!(info["state"]["messages"], json!(1));
}

#[tokio::test]
async fn a_limit_of_nats_is_learned_anew_with_the_connection() {
    let mut server = nats_server(4000);
    let options = "create_missing = true\nstream = \"ORDERS\"";
    let sink = sink(&nats_url(&server), "orders", options).await;
    assert_eq!(sink.capabilities().event_bytes_max, 4000);
    let large = message("orders", 1, 10_000);
    assert_eq!(publish(&*sink, &large).await.unwrap_err().kind, FailureKind::Rejected);
    server.start_again(&nats_settings(100_000));
    let started = Instant::now();
    // JetStream may need a moment, and the end of the old connection to be noticed.
    while let Err(error) = publish(&*sink, &message("orders", 2, 1)).await {
        assert!(started.elapsed() < Duration::from_secs(30), "{error}");
    }
    assert_eq!(sink.capabilities().event_bytes_max, 100_000);
    assert_eq!(publish(&*sink, &large).await, Ok(()));
}

/// How long RabbitMQ may take to start on a machine that is busy with other tests.
const START_MAX: Duration = Duration::from_secs(180);

/// What an operator does about an event that was too large: raise the limit, start the server
/// anew, try the event again.
#[tokio::test]
async fn a_limit_of_rabbitmq_is_learned_anew_with_the_connection() {
    let mut server = Server::start("rabbitmq-server", "max_message_size = 4000");
    let url = format!("amqp://guest:guest@127.0.0.1:{}", server.port);
    let sink = sink(&url, "orders", "create_missing = true").await;
    let (large, small) = (message("orders", 1, 10_000), message("orders", 2, 1));
    let started = Instant::now();
    // It may listen before it answers. Nobody takes events from the exchange: they come back.
    while publish(&*sink, &small).await.unwrap_err().kind == FailureKind::Unavailable {
        assert!(started.elapsed() < START_MAX, "it does not start");
    }
    assert_eq!(publish(&*sink, &large).await.unwrap_err().kind, FailureKind::Rejected);
    assert_eq!(sink.capabilities().event_bytes_max, 4000);
    let known = publish(&*sink, &large).await.unwrap_err();
    assert!(known.message.contains("at most 4000 are sent"), "{known}");
    server.start_again("max_message_size = 100000");
    let started = Instant::now();
    while sink.capabilities().event_bytes_max == 4000 {
        assert!(started.elapsed() < START_MAX, "it is not forgotten");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    loop {
        let error = publish(&*sink, &large).await.unwrap_err();
        if error.kind == FailureKind::Failed {
            assert!(error.message.contains("no queue takes the routing key"), "{error}");
            break;
        }
        assert_eq!(error.kind, FailureKind::Unavailable, "{error}");
        assert!(started.elapsed() < START_MAX, "{error}");
    }
}

/// G-06: if each call tried for itself after the one before, the last would be given up.
#[tokio::test]
async fn calls_at_once_learn_together_that_a_broker_is_silent() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    for scheme in ["amqp", "redis"] {
        let url = format!("{scheme}://{address}");
        let sink: Arc<dyn Sink> = sink(&url, "orders", "connect_timeout = \"3s\"").await.into();
        let started = Instant::now();
        let mut calls = JoinSet::new();
        for number in 0..sink.capabilities().calls_max {
            let sink = Arc::clone(&sink);
            calls.spawn(async move { publish(&*sink, &message("orders", number as u32, 1)).await });
        }
        for answer in calls.join_all().await {
            assert_eq!(answer.unwrap_err().kind, FailureKind::Unavailable);
        }
        assert!(started.elapsed() < Duration::from_millis(5500), "{:?}", started.elapsed());
    }
}
