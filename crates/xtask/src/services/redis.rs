//! Redis, which writes what it takes to a file.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use super::postgres::{PASSWORD, USER};
use crate::commands::Failed;
use crate::service::{Place, Service, start_in_background};

const PORT: u16 = 54346;
const SETTINGS: &str = "redis.conf";

pub(super) struct Redis;

impl Service for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn port(&self) -> u16 {
        PORT
    }

    fn url(&self) -> String {
        format!("redis://{USER}:{PASSWORD}@127.0.0.1:{PORT}")
    }

    fn package(&self) -> &'static str {
        "redis-server"
    }

    fn is_installed(&self) -> bool {
        super::program("redis-server").is_some() && super::program("redis-cli").is_some()
    }

    fn files(&self, place: &Place) -> Vec<(&'static str, String)> {
        // It writes its own command line, by which it must be found. It reads its file as the
        // user `default`, who needs all rights for that and yet cannot log in.
        let settings = format!(
            "\
appendfsync everysec
appendonly yes
bind 127.0.0.1
dir \"{}\"
port {PORT}
proc-title-template \"{{config-file}}\"
user default off ~* &* +@all
user {USER} on >{PASSWORD} ~* &* +@all
",
            place.folder.display()
        );
        vec![(SETTINGS, settings)]
    }

    fn process(&self, place: &Place) -> (&'static str, PathBuf) {
        ("redis-server", place.folder.join(SETTINGS))
    }

    fn is_prepared(&self, _: &Place) -> bool {
        true
    }

    fn start(&self, place: &Place) -> Result<(), Failed> {
        let program = super::program("redis-server")
            .ok_or_else(|| Failed("no redis-server found".to_owned()))?;
        start_in_background(place, program, |start| {
            start.arg(place.folder.join(SETTINGS));
        })
    }

    /// While it reads its file, it lets nobody in.
    fn answers(&self, _: &Place) -> bool {
        let asked = || -> std::io::Result<Vec<u8>> {
            let mut server = TcpStream::connect(("127.0.0.1", PORT))?;
            server.set_read_timeout(Some(Duration::from_secs(1)))?;
            server.write_all(format!("AUTH {USER} {PASSWORD}\r\nPING\r\nQUIT\r\n").as_bytes())?;
            let mut said = Vec::new();
            server.read_to_end(&mut said)?;
            Ok(said)
        };
        asked().is_ok_and(|said| said.starts_with(b"+OK\r\n+PONG\r\n"))
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }
}
