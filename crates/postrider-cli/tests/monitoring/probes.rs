//! `/livez` and `/readyz`, and the server that answers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use crate::support::http::{accept_all, address, get, request, wait_for};
use crate::support::{Fixture, wait_until};
use crate::{FROM, free_address, relay_to, relay_to_file};

#[test]
fn a_relay_is_ready_once_it_runs_and_ends_in_order() {
    let fixture = Fixture::migrated();
    let mut relay = relay_to_file(&fixture);
    let address = address(&relay);
    let ready = wait_for(address, "/readyz", |answer| answer.status == 200);
    assert_eq!(
        ready.body,
        "{\"ok\":true,\"pipelines\":[{\"pipeline\":\"default\",\"shard\":0,\"state\":\"idle\",\
         \"ok\":true}]}\n"
    );
    assert!(ready.head.contains("content-type: application/json"), "{ready:?}");
    assert_eq!(get(address, "/livez").status, 200);
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(0), "{}", relay.stderr());
    assert!(TcpStream::connect(address).is_err(), "the server has ended with the relay");
}

#[test]
fn there_are_three_pages_and_no_more() {
    let fixture = Fixture::migrated();
    let relay = relay_to_file(&fixture);
    let address = address(&relay);
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/metrics/../livez", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/anything", 404),
        ("HEAD", "/livez", 200),
        ("GET", "/metrics?x=1", 200),
    ] {
        assert_eq!(request(address, method, path).status, status, "{method} {path}");
    }
    assert_eq!(request(address, "HEAD", "/metrics").body, "");
}

/// Whoever connects and says nothing, or nonsense, is in nobody's way.
#[test]
fn bad_clients_do_not_hold_up_others() {
    let fixture = Fixture::migrated();
    let relay = relay_to_file(&fixture);
    let address = address(&relay);
    let _silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut nonsense = TcpStream::connect(address).unwrap();
    nonsense.write_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    nonsense.read_to_end(&mut answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    assert_eq!(get(address, "/livez").status, 200);
}

#[test]
fn an_outage_makes_a_relay_unready_and_not_dead() {
    let fixture = Fixture::migrated();
    let endpoint = free_address();
    let relay = relay_to(&fixture, &format!("http://{endpoint}/hook"));
    let address = address(&relay);
    fixture.insert("1", "OrderPlaced", "{}");
    let outage = wait_for(address, "/readyz", |answer| answer.body.contains("outage"));
    assert_eq!(outage.status, 503, "{outage:?}");
    let outage = outage.json();
    assert_eq!(outage["pipelines"][0]["ok"], false);
    let why = outage["pipelines"][0]["why"].as_str().unwrap();
    assert!(why.contains("connect"), "{why}");
    assert_eq!(get(address, "/livez").status, 200);
    let metrics = get(address, "/metrics");
    for (series, value) in [
        ("outbox_circuit_open{pipeline=\"default\"}", 1.0),
        ("outbox_sink_up{pipeline=\"default\"}", 0.0),
        ("outbox_source_up{pipeline=\"default\"}", 1.0),
        ("outbox_pipeline_ready{pipeline=\"default\"}", 0.0),
        ("outbox_pipeline_failed{pipeline=\"default\"}", 0.0),
        ("outbox_published_total{pipeline=\"default\"}", 0.0),
    ] {
        assert_eq!(metrics.sample(series), Some(value), "{series}\n{}", metrics.body);
    }
    let away = "outbox_publish_failures_total{pipeline=\"default\",kind=\"unavailable\"}";
    assert!(metrics.sample(away) >= Some(1.0), "{}", metrics.body);

    accept_all(TcpListener::bind(endpoint).unwrap());
    wait_for(address, "/readyz", |answer| answer.status == 200);
    let metrics = get(address, "/metrics");
    assert_eq!(metrics.sample("outbox_published_total{pipeline=\"default\"}"), Some(1.0));
    assert_eq!(metrics.sample("outbox_circuit_open{pipeline=\"default\"}"), Some(0.0));
    assert_eq!(metrics.sample("outbox_sink_up{pipeline=\"default\"}"), Some(1.0));
}

#[test]
fn a_pipeline_that_failed_is_named_and_the_other_goes_on() {
    let fixture = Fixture::migrated();
    let config = format!(
        "[source]\nurl = \"sqlite:app.db\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [[pipeline]]\nname = \"good\"\nprogress = \"cursor\"\nsink = {{ url = \"file://{}\" }}\n\
         [[pipeline]]\nname = \"bad\"\nprogress = \"cursor\"\n\
         sink = {{ url = \"file:///no/such/folder/out.jsonl\" }}\n",
        fixture.path("out.jsonl").display()
    );
    fixture.write("p.toml", config);
    let relay = fixture.start(&["relay", "--config", "p.toml"]);
    let address = address(&relay);
    let dead = wait_for(address, "/livez", |answer| answer.status == 503).json();
    let pipelines = dead["pipelines"].as_array().unwrap();
    assert_eq!((&pipelines[0]["pipeline"], &pipelines[0]["ok"]), (&"good".into(), &true.into()));
    assert_eq!(pipelines[1]["state"], "failed");
    let why = pipelines[1]["why"].as_str().unwrap();
    assert!(why.contains("/no/such/folder"), "{why}");
    fixture.insert("1", "OrderPlaced", "{}");
    wait_until("the other one publishes", || fixture.lines("out.jsonl").len() == 1);
    let metrics = get(address, "/metrics");
    assert_eq!(metrics.sample("outbox_pipeline_failed{pipeline=\"bad\"}"), Some(1.0));
    assert_eq!(metrics.sample("outbox_pipeline_failed{pipeline=\"good\"}"), Some(0.0));
}

#[test]
fn a_relay_that_waits_for_its_database_says_so() {
    let fixture = Fixture::new();
    // The server takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let from = format!("postgres://relay:c4n4ry@{}/shop", silent.local_addr().unwrap());
    drop(silent);
    let relay =
        fixture.start(&["relay", "--from", &from, "--to", "stdout:", "--listen", "127.0.0.1:0"]);
    let address = address(&relay);
    let waits = wait_for(address, "/readyz", |answer| answer.body.contains("waits for the source"));
    assert_eq!(waits.status, 503);
    assert_eq!(waits.json()["pipelines"][0]["state"], "connecting");
    assert_eq!(get(address, "/livez").status, 200);
    let metrics = wait_for(address, "/metrics", |answer| {
        answer.sample("outbox_sample_failures_total") >= Some(1.0)
    });
    assert_eq!(metrics.sample("outbox_source_up{pipeline=\"default\"}"), Some(0.0));
    assert_eq!(metrics.sample("outbox_unpublished_count{pipeline=\"default\"}"), None);
    let shown = format!("{}{}{}", waits.body, metrics.body, relay.stderr());
    assert!(!shown.contains("c4n4ry"), "{shown}");
}

#[test]
fn a_standby_is_ready_and_takes_over() {
    let fixture = Fixture::migrated();
    let held = "outbox_lease_held{pipeline=\"default\",shard=\"0\"}";
    let takeovers = "outbox_lease_takeovers_total{pipeline=\"default\",shard=\"0\"}";
    let mut first = relay_to_file(&fixture);
    wait_for(address(&first), "/readyz", |answer| answer.status == 200);
    let second = relay_to(&fixture, "file:second.jsonl");
    let standby = address(&second);
    let ready = wait_for(standby, "/readyz", |answer| answer.status == 200);
    assert_eq!(ready.json()["pipelines"][0]["state"], "standing_by", "{ready:?}");
    let metrics = get(standby, "/metrics");
    assert_eq!((metrics.sample(held), metrics.sample(takeovers)), (Some(0.0), Some(0.0)));
    assert_eq!(get(address(&first), "/metrics").sample(held), Some(1.0));
    first.signal("TERM");
    first.wait();
    wait_for(standby, "/metrics", |answer| answer.sample(held) == Some(1.0));
    assert_eq!(get(standby, "/metrics").sample(takeovers), Some(1.0));
}

#[test]
fn a_relay_that_stops_says_so_until_its_end() {
    let fixture = Fixture::migrated();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut relay = relay_to(&fixture, &format!("http://{}/", silent.local_addr().unwrap()));
    let address = address(&relay);
    fixture.insert("1", "OrderPlaced", "{}");
    let _under_way = first_request(&silent);
    relay.signal("TERM");
    let stops = wait_for(address, "/readyz", |answer| answer.body.contains("stopping"));
    assert_eq!(stops.status, 503);
    assert_eq!(get(address, "/livez").status, 200);
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(130));
}

/// The first connection that sends something; the relay looks whether anybody is there before.
fn first_request(listener: &TcpListener) -> TcpStream {
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        if stream.read(&mut [0]).unwrap() > 0 {
            return stream;
        }
    }
}

#[test]
fn an_address_in_use_is_a_clear_error() {
    let fixture = Fixture::migrated();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let args = [&["relay"], &FROM[..], &["--to", "stdout:", "--listen", &listen]].concat();
    fixture.run(&args).assert_code(3).assert_talk(&[
        &format!("error: cannot listen for HTTP at {listen}: "),
        "  fix: another process has the address: give each relay one of its own, with `listen` in \
         [http] or with --listen; port 0 takes one that is free",
    ]);
    let args = [&["relay"], &FROM[..], &["--to", "stdout:", "--listen", "192.0.2.1:8787"]].concat();
    fixture.run(&args).assert_code(3).assert_talk(&["  fix: write an address of this host"]);
    let args = [&["relay"], &FROM[..], &["--to", "stdout:", "--listen", "8787"]].concat();
    fixture.run(&args).assert_code(3).assert_talk(&["--listen: `listen` cannot be \"8787\""]);
}
