//! What machines see of a relay: the real binary, asked by HTTP and heard by a socket of systemd.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

#[path = "monitoring/alarms.rs"]
mod alarms;
#[path = "monitoring/metrics.rs"]
mod metrics;
#[path = "monitoring/probes.rs"]
mod probes;
#[cfg(target_os = "linux")]
#[path = "monitoring/systemd.rs"]
mod systemd;

use support::{Fixture, Running};

const FROM: [&str; 2] = ["--from", "sqlite://app.db"];
/// Any port that is free; the log says which.
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// A relay from `app.db`.
fn relay_to(fixture: &Fixture, to: &str) -> Running {
    fixture.start(&[&["relay"], &FROM[..], &LISTEN, &sink(to)].concat())
}

/// A relay from `app.db` to `out.jsonl`.
fn relay_to_file(fixture: &Fixture) -> Running {
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    relay_to(fixture, &to)
}

/// The flags for a sink.
fn sink(to: &str) -> Vec<&str> {
    match to.starts_with("http:") {
        true => vec!["--to", to, "--allow-private"],
        false => vec!["--to", to],
    }
}

/// An address of this host where nobody listens.
fn free_address() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
