//! NATS with JetStream, which keeps its streams in files.

use std::io::Read as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use super::postgres::{PASSWORD, USER};
use crate::commands::Failed;
use crate::service::{Place, Service, start_in_background};

const PORT: u16 = 54345;
const SETTINGS: &str = "nats.conf";

pub(super) struct Nats;

impl Service for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn port(&self) -> u16 {
        PORT
    }

    fn url(&self) -> String {
        format!("nats://{USER}:{PASSWORD}@127.0.0.1:{PORT}")
    }

    fn package(&self) -> &'static str {
        "nats-server"
    }

    fn is_installed(&self) -> bool {
        super::program("nats-server").is_some()
    }

    fn files(&self, place: &Place) -> Vec<(&'static str, String)> {
        let data = place.folder.join("data");
        let settings = format!(
            "\
authorization {{ user: {USER}, password: {PASSWORD} }}
jetstream {{ store_dir: '{}' }}
listen: 127.0.0.1:{PORT}
server_name: postrider
",
            data.display()
        );
        vec![(SETTINGS, settings)]
    }

    fn process(&self, place: &Place) -> (&'static str, PathBuf) {
        ("nats-server", place.folder.join(SETTINGS))
    }

    fn is_prepared(&self, _: &Place) -> bool {
        true
    }

    fn start(&self, place: &Place) -> Result<(), Failed> {
        let program = super::program("nats-server")
            .ok_or_else(|| Failed("no nats-server found".to_owned()))?;
        start_in_background(place, program, |start| {
            start.arg("--config").arg(place.folder.join(SETTINGS));
        })
    }

    /// It speaks first.
    fn answers(&self, _: &Place) -> bool {
        let said = || -> std::io::Result<[u8; 5]> {
            let mut server = TcpStream::connect(("127.0.0.1", PORT))?;
            server.set_read_timeout(Some(Duration::from_secs(1)))?;
            let mut said = [0; 5];
            server.read_exact(&mut said)?;
            Ok(said)
        };
        said().is_ok_and(|said| said == *b"INFO ")
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }
}
