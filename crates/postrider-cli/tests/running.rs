//! A relay that goes on: signals, a standby, and pipelines that fail.

mod support;

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
#[cfg(feature = "full")]
use std::time::{Duration, Instant};

use support::{Fixture, wait_until};

fn relay_to(fixture: &Fixture, name: &str) -> Vec<String> {
    let to = format!("file://{}", fixture.path(name).display());
    ["relay", "--from", "sqlite://app.db", "--to", &to].map(str::to_owned).to_vec()
}

fn start(fixture: &Fixture, name: &str) -> support::Running {
    let args = relay_to(fixture, name);
    fixture.start(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn sigterm_and_sigint_end_it_gracefully() {
    for signal in ["TERM", "INT"] {
        let fixture = Fixture::migrated();
        let mut relay = start(&fixture, "out.jsonl");
        fixture.insert("1", "OrderPlaced", "{}");
        wait_until("the event is published", || fixture.lines("out.jsonl").len() == 1);
        relay.signal(signal);
        assert_eq!(relay.wait().code(), Some(0), "{}", relay.stderr());
        assert!(relay.stderr().contains("stopping"), "{}", relay.stderr());
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_others_can_read_or_change_is_warned_of() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::migrated();
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    fixture.write("secret", secret);
    let said = |mode: u32, secret: &str| {
        let config = format!(
            "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"a\"\n[pipeline.sink]\n\
             url = \"http://127.0.0.1:9/\"\nallow_private = true\nsigning_secrets = \"{secret}\"\n"
        );
        fixture.write("p.toml", config);
        set_permissions(fixture.path("p.toml"), Permissions::from_mode(mode)).unwrap();
        fixture.run(&["relay", "--config", "p.toml", "--drain"]).assert_code(0).stderr
    };
    let read = said(0o644, secret);
    assert!(
        read.contains("p.toml has a secret in it and can be read by others (mode 644)"),
        "{read}"
    );
    assert!(read.contains("chmod 600 p.toml") && !read.contains(secret), "{read}");
    let changed = said(0o620, "${file:secret}");
    assert!(changed.contains("p.toml can be changed by others (mode 620)"), "{changed}");
    for (mode, secret) in [(0o600, secret), (0o644, "${file:secret}")] {
        let silent = said(mode, secret);
        assert!(!silent.contains("others"), "{silent}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let fixture = Fixture::migrated();
    // An endpoint that takes connections and never answers keeps a call under way.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}/hook", silent.local_addr().unwrap());
    fixture.insert("1", "OrderPlaced", "{}");
    let args = ["relay", "--from", "sqlite://app.db", "--to", &to, "--allow-private"];
    let mut relay = fixture.start(&args);
    let _under_way = first_request(&silent);
    relay.signal("TERM");
    relay.wait_for("a second signal exits at once");
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(130), "{}", relay.stderr());
}

/// A broker that takes connections and says nothing keeps a thread of its client waiting, for half
/// of `timeout` and longer. Nothing can interrupt it, and the process must not wait for it.
#[cfg(feature = "full")]
#[test]
fn a_silent_broker_does_not_outlast_the_grace_time() {
    let fixture = Fixture::migrated();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"orders\"\ngrace = \"0s\"\n\
         stall_after = \"1s\"\n\
         sink = {{ url = \"kafka://{}\", topic = \"orders\", timeout = \"24s\" }}\n",
        silent.local_addr().unwrap()
    );
    fixture.write("p.toml", config);
    fixture.insert("1", "OrderPlaced", "{}");
    let mut relay = fixture.start(&["relay", "--config", "p.toml"]);
    relay.wait_for("the sink is not there yet");
    // By now a call is under way.
    relay.wait_for("no progress");
    let asked_at = Instant::now();
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(0), "{}", relay.stderr());
    assert!(asked_at.elapsed() < Duration::from_secs(8), "{:?}", asked_at.elapsed());
}

#[test]
fn a_drain_that_is_stopped_is_7_unless_nothing_is_left() {
    let fixture = Fixture::migrated();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}/hook", silent.local_addr().unwrap());
    let config = format!(
        "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"default\"\ngrace = \"0s\"\n\
         sink = {{ url = \"{to}\", allow_private = true }}\n"
    );
    fixture.write("p.toml", config);
    fixture.insert("1", "OrderPlaced", "{}");
    let mut relay = fixture.start(&["relay", "--config", "p.toml", "--drain"]);
    let _under_way = first_request(&silent);
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(7), "{}", relay.stderr());
    relay.wait_for("error: stopped before everything was delivered");

    // A standby, whose work another relay has done.
    let mut first = start(&fixture, "first.jsonl");
    wait_until("the first one publishes", || fixture.lines("first.jsonl").len() == 1);
    let args = relay_to(&fixture, "second.jsonl");
    let args: Vec<&str> = args.iter().map(String::as_str).chain(["--drain"]).collect();
    let mut second = fixture.start(&args);
    second.wait_for("standing by");
    first.signal("TERM");
    second.signal("TERM");
    assert_eq!(first.wait().code(), Some(0), "{}", first.stderr());
    assert_eq!(second.wait().code(), Some(0), "{}", second.stderr());
}

/// The first connection on which something is sent: one that only looks whether the endpoint is
/// there sends nothing.
#[allow(clippy::unwrap_used, reason = "it is test code")]
fn first_request(listener: &TcpListener) -> TcpStream {
    loop {
        let (mut connection, _) = listener.accept().unwrap();
        if connection.read(&mut [0; 16]).unwrap_or(0) > 0 {
            return connection;
        }
    }
}

#[test]
fn a_second_relay_is_a_standby() {
    let fixture = Fixture::migrated();
    let mut first = start(&fixture, "first.jsonl");
    fixture.insert("1", "OrderPlaced", "{}");
    wait_until("the first one publishes", || fixture.lines("first.jsonl").len() == 1);
    let mut second = start(&fixture, "second.jsonl");
    second.wait_for("INFO standing by pipeline=\"default\" reason=\"another relay runs");
    fixture.insert("1", "OrderPaid", "{}");
    wait_until("the first one goes on", || fixture.lines("first.jsonl").len() == 2);

    first.signal("TERM");
    assert_eq!(first.wait().code(), Some(0), "{}", first.stderr());
    fixture.insert("1", "OrderShipped", "{}");
    wait_until("the second one takes over", || fixture.lines("second.jsonl").len() == 1);
    second.signal("TERM");
    assert_eq!(second.wait().code(), Some(0), "{}", second.stderr());
    assert_eq!(fixture.lines("first.jsonl").len(), 2);
    assert!(!second.stderr().contains("WARN"), "{}", second.stderr());
}

#[test]
fn a_standby_can_be_stopped() {
    let fixture = Fixture::migrated();
    let _first = start(&fixture, "first.jsonl");
    fixture.insert("1", "OrderPlaced", "{}");
    wait_until("the first one publishes", || fixture.lines("first.jsonl").len() == 1);
    let mut second = start(&fixture, "second.jsonl");
    second.wait_for("standing by");
    second.signal("TERM");
    assert_eq!(second.wait().code(), Some(0), "{}", second.stderr());
}

#[test]
fn one_pipeline_fails_and_the_other_goes_on() {
    let fixture = Fixture::migrated();
    let config = format!(
        r#"
        [source]
        url = "sqlite://app.db"
        [[pipeline]]
        name = "good"
        progress = "cursor"
        sink = {{ url = "file://{good}" }}
        [[pipeline]]
        name = "bad"
        progress = "cursor"
        sink = {{ url = "file:///no/such/directory/out.jsonl" }}
        "#,
        good = fixture.path("good.jsonl").display()
    );
    fixture.write("p.toml", config);
    fixture.insert("1", "OrderPlaced", "{}");
    fixture
        .run(&["relay", "--config", "p.toml", "--drain"])
        .assert_code(7)
        .assert_talk(&["error: 1 of 2 pipelines failed", "  why: bad: "]);
    assert_eq!(fixture.lines("good.jsonl").len(), 1);
}

#[test]
fn every_pipeline_that_fails_is_named() {
    let fixture = Fixture::migrated();
    let pipeline = |name: &str| {
        format!(
            "[[pipeline]]\nname = \"{name}\"\nprogress = \"cursor\"\n\
             sink = {{ url = \"file:///no/such/{name}/out.jsonl\" }}\n"
        )
    };
    let source = "[source]\nurl = \"sqlite:app.db\"\n";
    fixture.write("p.toml", [source, &pipeline("a"), &pipeline("b")].concat());
    fixture.run(&["relay", "--config", "p.toml", "--drain"]).assert_code(3).assert_talk(&[
        "error: 2 of 2 pipelines failed",
        "  why: a: ",
        "  why: b: ",
    ]);
}

#[test]
fn the_log_can_be_json_and_filtered() {
    let fixture = Fixture::migrated();
    let args = ["relay", "--from", "sqlite://app.db", "--to", "stdout:", "--drain"];
    let json = fixture.command(&args).args(["--log-format", "json"]).output().unwrap();
    let stderr = String::from_utf8(json.stderr).unwrap();
    assert!(stderr.contains(r#""message":"starting","pipeline":"default""#), "{stderr}");
    let quiet = fixture.command(&args).env("POSTRIDER_LOG", "off").output().unwrap();
    assert_eq!(String::from_utf8(quiet.stderr).unwrap(), "delivered 0 events\n");
}
