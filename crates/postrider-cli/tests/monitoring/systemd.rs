//! The relay as a service of systemd, which is here a socket that the test reads.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Stdio;
use std::time::Duration;

use crate::FROM;
use crate::support::{Fixture, Running, wait_until};

/// What a relay tells, and the relay.
struct Service {
    fixture: Fixture,
    socket: UnixDatagram,
    relay: Running,
}

impl Service {
    fn start(socket: UnixDatagram, name: &str, to: &str, watchdog: Option<&str>) -> Self {
        let fixture = Fixture::migrated();
        let args = [&["relay"], &FROM[..], &crate::sink(to)].concat();
        let mut command = fixture.command(&args);
        command.env("NOTIFY_SOCKET", name);
        if let Some(micros) = watchdog {
            command.env("WATCHDOG_USEC", micros);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { fixture, socket, relay: Running::new(child) }
    }

    /// Waits for a message that begins so, and gives back all up to it.
    #[track_caller]
    fn hear_until(&self, start: &str) -> Vec<String> {
        let mut heard: Vec<String> = Vec::new();
        wait_until(&format!("{start} is told, after {heard:?}"), || {
            let mut message = [0; 4096];
            let length = self.socket.recv(&mut message).expect("something is told in time");
            heard.push(String::from_utf8(message[..length].to_vec()).unwrap());
            heard.last().is_some_and(|message| message.starts_with(start))
        });
        heard
    }
}

/// A socket with a path.
fn named() -> (tempfile::TempDir, UnixDatagram, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let name = path.display().to_string();
    (folder, socket, name)
}

#[test]
fn systemd_hears_of_the_start_of_progress_and_of_the_end() {
    let (_folder, socket, name) = named();
    let mut service = Service::start(socket, &name, "stdout:", Some("300000"));
    let start = service.hear_until("READY=1");
    assert!(start[0].starts_with("STATUS=0 of "), "{start:?}");
    if !start.iter().any(|message| message == "STATUS=1 of 1 ready") {
        service.hear_until("STATUS=1 of 1 ready");
    }
    service.hear_until("WATCHDOG=1");
    service.relay.signal("TERM");
    service.hear_until("STOPPING=1\nSTATUS=");
    assert_eq!(service.relay.wait().code(), Some(0), "{}", service.relay.stderr());
}

#[test]
fn a_socket_without_a_file_will_do() {
    let name = format!("postrider-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    let service = Service::start(socket, &format!("@{name}"), "stdout:", None);
    let start = service.hear_until("READY=1");
    assert!(start.iter().all(|message| !message.starts_with("WATCHDOG")), "{start:?}");
}

/// A restart would not mend the broker.
#[test]
fn an_outage_is_told_and_is_no_reason_for_the_watchdog() {
    let (_folder, socket, name) = named();
    let endpoint = crate::free_address();
    let to = format!("http://{endpoint}/hook");
    let service = Service::start(socket, &name, &to, Some("300000"));
    service.hear_until("READY=1");
    service.fixture.insert("1", "OrderPlaced", "{}");
    let told = service.hear_until("STATUS=0 of 1 ready; default/0 is outage: ");
    service.hear_until("WATCHDOG=1");
    drop(TcpListener::bind(endpoint));
    assert!(told.iter().any(|message| message == "WATCHDOG=1"), "{told:?}");
}

#[test]
fn no_progress_for_no_known_reason_is_one() {
    let (_folder, socket, name) = named();
    // It takes connections and never answers, so that nobody knows what is wrong.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}/hook", silent.local_addr().unwrap());
    let fixture = Fixture::migrated();
    fixture.insert("1", "OrderPlaced", "{}");
    let config = format!(
        "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"orders\"\n\
         stall_after = \"1s\"\n[pipeline.sink]\nurl = \"{to}\"\nallow_private = true\n\
         timeout = \"1h\"\n"
    );
    fixture.write("p.toml", config);
    let mut command = fixture.command(&["relay", "--config", "p.toml"]);
    command.env("NOTIFY_SOCKET", &name).env("WATCHDOG_USEC", "300000");
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let service = Service { fixture, socket, relay: Running::new(child) };
    service.hear_until("STATUS=0 of 1 ready; orders/0 is stalled: events wait, and none");
    // From now on there is silence: several signs of life would have come.
    service.socket.set_read_timeout(Some(Duration::from_millis(900))).unwrap();
    let next = service.socket.recv(&mut [0; 16]);
    assert!(next.is_err(), "{next:?}");
}
