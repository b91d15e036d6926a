//! Endpoints that say everything they hear.

use std::net::{SocketAddr, TcpListener};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::canary::{CONTENTS, SECRET, payload};
use crate::support::Fixture;
use crate::support::http::serve;
use crate::watch::Watch;

/// An endpoint that answers each event with the status in its payload, and with all of the request.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, |request| {
        let body = String::from_utf8_lossy(&request.body);
        let status = body.split("\"answer\": ").nth(1).and_then(|rest| rest.get(..3));
        let status = status.and_then(|status| status.parse().ok()).unwrap_or(200);
        (status, format!("{}\n{body}", request.head).into_bytes())
    });
    address
}

/// A sink of HTTP with a secret wherever one can be.
pub(crate) fn sink(address: SocketAddr) -> String {
    let signing = STANDARD.encode(format!("{SECRET}{SECRET}"));
    format!(
        "[pipeline.sink]\nurl = \"http://{address}/hooks/{SECRET}?token={SECRET}\"\n\
         allow_private = true\nsecret_headers = {{ authorization = \"Bearer {SECRET}\" }}\n\
         signing_secrets = [\"whsec_{signing}\"]\nheaders = {{ x-token = \"{SECRET}\" }}\n"
    )
}

/// A configuration file over `app.db`, with one attempt for each event.
fn config(sink: &str) -> String {
    format!(
        "[source]\nurl = \"sqlite:app.db\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [[pipeline]]\nname = \"hooks\"\n[pipeline.retry]\nattempts = 1\n{sink}"
    )
}

fn insert(fixture: &Fixture, status: u16) {
    let sql = "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
               VALUES (?1, 'Order', ?2, 'OrderPlaced', ?3, ?4)";
    let id = format!("01900000-0000-7000-8000-{status:012}");
    let row = (id, status.to_string(), payload(status).into_bytes(), crate::canary::headers());
    fixture.database().execute(sql, row).unwrap();
}

#[test]
fn an_endpoint_that_echoes_is_not_quoted() {
    let watch = Watch::new(Fixture::migrated());
    let Watch { fixture, .. } = &watch;
    fixture.write("p.toml", config(&sink(echo())));
    for status in [200, 301, 400, 401, 403, 404, 410, 413, 422, 500] {
        insert(fixture, status);
        watch.run(&["relay", "--config", "p.toml", "--drain"]).assert_code(0);
    }
    let listed = watch.run(&["dlq", "list", "--config", "p.toml"]);
    for status in ["301", "401", "403", "422"] {
        let said = &listed.stdout;
        assert!(said.contains(status), "it is said what became of them: {said}");
    }
    watch.run(&["dlq", "list", "--by", "error", "--config", "p.toml"]);
    fixture.database().execute("DELETE FROM outbox WHERE published_at IS NULL", ()).unwrap();
    for status in [429, 503] {
        insert(fixture, status);
        let relay = watch.start(&["relay", "--config", "p.toml"]);
        watch.look_and_stop(relay, "an event was not published");
    }
    watch.search_exports();
}

#[test]
fn an_endpoint_that_is_none_is_not_told_with_its_secrets() {
    let watch = Watch::new(Fixture::migrated());
    let nonsense = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nonsense.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in nonsense.incoming().map_while(Result::ok) {
            let said = format!("SSH-2.0 {SECRET} {CONTENTS}\r\n\r\n");
            let _ = std::io::Write::write_all(&mut stream, said.as_bytes());
        }
    });
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let tls = sink(address).replace("http://", "https://");
    let unresolved = sink(gone).replace(&gone.to_string(), "no-such-host.invalid");
    for (number, sink) in (200..).zip([sink(address), sink(gone), unresolved]) {
        insert(&watch.fixture, number);
        watch.fixture.write("p.toml", config(&sink));
        watch.run(&["doctor", "--config", "p.toml"]);
        let relay = watch.start(&["relay", "--config", "p.toml"]);
        watch.look_and_stop(relay, "an event was not published");
    }
    watch.fixture.write("p.toml", config(&tls));
    watch.run(&["doctor", "--config", "p.toml"]);
    let ran = watch.run(&["relay", "--config", "p.toml"]);
    assert!(ran.stderr.contains("does not speak TLS"), "{}", ran.stderr);
    watch.search_exports();
}
