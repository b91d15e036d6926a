//! RabbitMQ: one node, with the queues of tests in it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::commands::Failed;
use crate::service::{Place, Service, start_in_background};

const PORT: u16 = 54341;
/// Where `rabbitmqctl` finds the node.
const NODE_PORT: u16 = 54342;
/// Where it asks for that port.
const EPMD_PORT: u16 = 54343;
const USER: &str = "postrider";
const PASSWORD: &str = "postrider";
/// Not the one in the search path, which insists on an account of its own.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const SETTINGS: &str = "rabbitmq.conf";
const PLUGINS: &str = "enabled_plugins";
/// The node's list of nodes (`epmd`) ends with the node, which the shell becomes. One of a node
/// that was just killed may still be there for a moment; without its own the node would start one
/// that stays.
const START: &str = "for _ in 1 2 3 4 5 6 7 8 9; do epmd -names || break; sleep 0.1; done; \
                     setpriv --pdeathsig KILL epmd & exec \"$0\"";
/// What a client of AMQP 0-9-1 begins with.
const GREETING: &[u8; 8] = b"AMQP\0\0\x09\x01";
/// What the first frame of a server begins with: it is a method.
const METHOD: u8 = 1;

pub(super) struct RabbitMq;

impl Service for RabbitMq {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn port(&self) -> u16 {
        PORT
    }

    fn url(&self) -> String {
        format!("amqp://{USER}:{PASSWORD}@127.0.0.1:{PORT}")
    }

    fn package(&self) -> &'static str {
        "rabbitmq-server"
    }

    fn is_installed(&self) -> bool {
        Path::new(SERVER).exists()
    }

    fn files(&self, _: &Place) -> Vec<(&'static str, String)> {
        let settings = format!(
            "\
default_pass = {PASSWORD}
default_user = {USER}
disk_free_limit.absolute = 50MB
listeners.tcp.1 = 127.0.0.1:{PORT}
raft.wal_max_size_bytes = 32000000
vm_memory_high_watermark.absolute = 1GiB
"
        );
        vec![(SETTINGS, settings), (PLUGINS, "[].\n".to_owned())]
    }

    /// Erlang has the home folder of its account in its command line.
    fn process(&self, place: &Place) -> (&'static str, PathBuf) {
        ("beam.smp", place.folder.clone())
    }

    fn is_prepared(&self, _: &Place) -> bool {
        true
    }

    fn start(&self, place: &Place) -> Result<(), Failed> {
        let at = |name: &str| place.folder.join(name);
        start_in_background(place, "sh", |start| {
            start.args(["-c", START, SERVER]);
            start.env("HOME", &place.folder);
            start.env("ERL_EPMD_ADDRESS", "127.0.0.1").env("ERL_EPMD_PORT", EPMD_PORT.to_string());
            start.env("RABBITMQ_CONFIG_FILE", at(SETTINGS));
            // Those of the machine's own node.
            start.env("RABBITMQ_CONF_ENV_FILE", "/dev/null");
            start.env("RABBITMQ_DIST_PORT", NODE_PORT.to_string());
            start.env("RABBITMQ_ENABLED_PLUGINS_FILE", at(PLUGINS));
            start.env("RABBITMQ_LOG_BASE", at("logs")).env("RABBITMQ_MNESIA_BASE", at("data"));
            start.env("RABBITMQ_NODENAME", "postrider@localhost");
            let local = "-kernel inet_dist_use_interface {127,0,0,1}";
            let arguments = format!("+S 2:2 -setcookie {PASSWORD} {local}");
            start.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", arguments);
            // Signals reach the server itself, and not a shell before it.
            start.env("RUNNING_UNDER_SYSTEMD", "true");
        })
    }

    fn answers(&self, _: &Place) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", PORT))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(GREETING)?;
            let mut first = [0];
            stream.read_exact(&mut first)?;
            Ok::<_, std::io::Error>(first == [METHOD])
        };
        ask().unwrap_or(false)
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }
}
