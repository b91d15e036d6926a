//! Tells systemd how the relay gets on: the protocol of `sd_notify(3)`.
//!
//! systemd names a datagram socket in `NOTIFY_SOCKET`, and in `WATCHDOG_USEC` how long it waits
//! for a sign of life. `READY=1` is sent once every pipeline has connected or stands by, so that
//! what is ordered after the relay starts then. `WATCHDOG=1` is sent only while events move or
//! there is a known reason why they do not: a relay that hangs is ended and started again, and one
//! whose broker is away is not. Without the variables nothing is done.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use postrider_relay::shutdown::Shutdown;
use postrider_relay::telemetry::Telemetry;
use tokio::time::{MissedTickBehavior, interval};

/// How often is looked, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells systemd about a relay for as long as it is asked.
pub(crate) async fn tell(telemetry: Arc<Telemetry>, mut shutdown: Shutdown) -> Infallible {
    let Some(socket) = socket::Socket::from_environment() else { return pending().await };
    let watchdog = watchdog();
    // Three signs of life within the time: one may come late.
    let every = watchdog.map_or(LOOK_EVERY, |usec| (usec / 3).min(LOOK_EVERY));
    let mut ticks = interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut is_ready, mut told) = (false, String::new());
    loop {
        tokio::select! {
            () = shutdown.requested() => break,
            _ = ticks.tick() => {}
        }
        let status = status(&telemetry);
        if status != told {
            socket.send(&format!("STATUS={status}"));
            told = status;
        }
        if !is_ready && telemetry.is_set_up() {
            is_ready = true;
            socket.send("READY=1");
        }
        if watchdog.is_some() && telemetry.moving().ok {
            socket.send("WATCHDOG=1");
        }
    }
    socket.send("STOPPING=1\nSTATUS=finishing what is under way");
    loop {
        // The end has its own time limit, and a stop is no reason for the watchdog.
        ticks.tick().await;
        if watchdog.is_some() {
            socket.send("WATCHDOG=1");
        }
    }
}

/// How long systemd waits for a sign of life, if it does.
fn watchdog() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok();
    let is_ours = match variable("WATCHDOG_PID") {
        None => true,
        Some(pid) => pid == std::process::id().to_string(),
    };
    let micros = variable("WATCHDOG_USEC")?.parse().ok().filter(|micros| *micros > 0)?;
    is_ours.then(|| Duration::from_micros(micros))
}

/// One line about all pipelines.
fn status(telemetry: &Telemetry) -> String {
    let health = telemetry.ready();
    let (count, ready) =
        (health.pipelines.len(), health.pipelines.iter().filter(|it| it.ok).count());
    let mut line = format!("{ready} of {count} ready");
    if let Some(first) = health.pipelines.iter().find(|it| !it.ok) {
        line.push_str(&format!("; {}/{} is {}", first.pipeline, first.shard, first.state));
        if let Some(why) = &first.why {
            line.push_str(&format!(": {}", why.replace(char::is_control, " ")));
        }
    }
    line
}

#[cfg(unix)]
mod socket {
    use std::ffi::OsString;
    use std::io;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use tracing::warn;

    /// Where systemd listens.
    pub(super) struct Socket {
        socket: UnixDatagram,
        address: SocketAddr,
    }

    impl Socket {
        pub(super) fn from_environment() -> Option<Self> {
            let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty())?;
            let open = || {
                let socket = UnixDatagram::unbound()?;
                // Whoever does not read must not hold the relay up.
                socket.set_nonblocking(true)?;
                Ok::<_, io::Error>(Self { socket, address: address(&name)? })
            };
            let opened = open();
            opened.inspect_err(|error| warn!(%error, "NOTIFY_SOCKET cannot be used")).ok()
        }

        pub(super) fn send(&self, message: &str) {
            // Lost: the next one says the same.
            let _ = self.socket.send_to_addr(message.as_bytes(), &self.address);
        }
    }

    /// A path, or a name without a file that begins with `@`.
    fn address(name: &OsString) -> io::Result<SocketAddr> {
        match name.as_bytes().strip_prefix(b"@") {
            #[cfg(target_os = "linux")]
            Some(name) => {
                use std::os::linux::net::SocketAddrExt as _;
                SocketAddr::from_abstract_name(name)
            }
            _ => SocketAddr::from_pathname(name),
        }
    }
}

#[cfg(not(unix))]
mod socket {
    /// There is no systemd here.
    pub(super) struct Socket;

    impl Socket {
        pub(super) fn from_environment() -> Option<Self> {
            None
        }

        pub(super) fn send(&self, _: &str) {}
    }
}
