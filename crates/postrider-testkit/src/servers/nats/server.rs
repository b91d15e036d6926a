//! A private server.

use std::io::Read as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::servers::certificates::Certificates;
use crate::servers::folder::{Folder, Process};
use crate::servers::free_port;

const USER: &str = "postrider";
const PASSWORD: &str = "postrider";
const START_MAX: Duration = Duration::from_secs(30);

/// How a private server is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who may do what, as in the server's configuration. By default the user `postrider` with
    /// the password `postrider` may do everything.
    pub authorization: String,
    /// Whether there is JetStream.
    pub has_jetstream: bool,
    /// More settings of JetStream, such as `domain: hub`.
    pub jetstream: Vec<String>,
    /// More lines of the configuration.
    pub settings: Vec<String>,
    /// How it is encrypted. Without it there is no TLS.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            authorization: format!("authorization {{ user: {USER}, password: {PASSWORD} }}"),
            has_jetstream: true,
            jetstream: Vec::new(),
            settings: Vec::new(),
            tls: None,
        }
    }
}

/// What clients of an encrypted server must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// A certificate of the authority, besides.
    Certificate,
    /// Nothing but what [`Options::authorization`] says.
    Server,
}

/// A server of its own, on a port of its own. Dropped, it is killed and removed.
pub struct Server {
    // Dropped first, because its end is what the process waits for.
    folder: Folder,
    process: Option<Process>,
    port: u16,
    options: Options,
    certificates: Option<Certificates>,
}

impl Server {
    /// Starts one.
    pub async fn start(options: Options) -> Self {
        let folder = Folder::new("nats");
        let certificates = options.tls.map(|_| Certificates::make(&folder));
        let mut server = Self { folder, process: None, port: free_port(), options, certificates };
        server.start_again().await;
        server
    }

    /// Starts three that are a cluster.
    pub async fn cluster() -> [Self; 3] {
        let routes = [free_port(), free_port(), free_port()];
        let routes_shown = routes.map(|port| format!("nats-route://127.0.0.1:{port}")).join(", ");
        let start = |(number, port): (usize, u16)| {
            let cluster = format!(
                "cluster {{ name: test, listen: 127.0.0.1:{port}, routes: [{routes_shown}] }}"
            );
            let settings = vec![format!("server_name: n{number}"), cluster];
            Self::start(Options { settings, ..Options::default() })
        };
        let [first, second, third] = routes;
        tokio::join!(start((1, first)), start((2, second)), start((3, third))).into()
    }

    /// Its URL, with the user and the password.
    pub fn url(&self) -> String {
        format!("nats://{USER}:{PASSWORD}@{}", self.address())
    }

    /// Its `host:port`. With TLS the host is the name that its certificate is for.
    pub fn address(&self) -> String {
        let host = if self.options.tls.is_some() { "localhost" } else { "127.0.0.1" };
        format!("{host}:{}", self.port)
    }

    /// The certificates of a server with TLS.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("the server has TLS")
    }

    /// Kills it.
    pub async fn kill9(&mut self) {
        self.end(Signal::KILL).await;
    }

    /// Stops it in an orderly way.
    pub async fn stop(&mut self) {
        self.end(Signal::TERM).await;
    }

    async fn end(&mut self, signal: Signal) {
        let Some(process) = &mut self.process else { return };
        process.signal(signal);
        process.end().await;
        self.process = None;
    }

    /// Changes how it is to be, from its next start on.
    pub fn change(&mut self, change: impl FnOnce(&mut Options)) {
        change(&mut self.options);
    }

    /// Makes it read its configuration again, changed in this way.
    pub async fn reload(&mut self, change: impl FnOnce(&mut Options)) {
        self.change(change);
        self.configure();
        self.process.as_mut().expect("the server runs").signal(Signal::HUP);
        let started = Instant::now();
        while !self.folder.log().contains("Reloaded server configuration") {
            assert!(started.elapsed() < START_MAX, "no reload: {}", self.folder.log());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Starts it, after it was stopped or has died.
    pub async fn start_again(&mut self) {
        if self.process.as_mut().is_some_and(|process| !process.has_ended()) {
            return;
        }
        let configuration = self.configure();
        let mut command = self.folder.command(program());
        command.arg("--config").arg(configuration);
        let process = self.process.insert(self.folder.spawn(command));
        let started = Instant::now();
        while !speaks(self.port) {
            assert!(!process.has_ended(), "it does not start: {}", self.folder.log());
            assert!(started.elapsed() < START_MAX, "no start: {}", self.folder.log());
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn configure(&self) -> PathBuf {
        let Options { authorization, has_jetstream, jetstream, settings, .. } = &self.options;
        let store = format!("store_dir: '{}'", self.folder.path().join("data").display());
        let jetstream: Vec<_> = [&store].into_iter().chain(jetstream).map(String::as_str).collect();
        let jetstream = has_jetstream.then(|| format!("jetstream {{ {} }}", jetstream.join(", ")));
        let tls = self.certificates.as_ref().map(|certificates| {
            let verify = self.options.tls == Some(Tls::Certificate);
            format!(
                "tls {{ ca_file: '{}', cert_file: '{}', key_file: '{}', verify: {verify} }}",
                certificates.authority.display(),
                certificates.server.display(),
                certificates.server_key.display()
            )
        });
        let listen = format!("listen: 127.0.0.1:{}", self.port);
        let lines = [Some(listen), Some(authorization.clone()), jetstream, tls];
        let lines: Vec<_> = lines.into_iter().flatten().chain(settings.iter().cloned()).collect();
        self.folder.write("nats.conf", &(lines.join("\n") + "\n"))
    }
}

/// Whether a server greets its clients.
fn speaks(port: u16) -> bool {
    let said = || -> std::io::Result<[u8; 5]> {
        let mut server = TcpStream::connect(("127.0.0.1", port))?;
        server.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut said = [0; 5];
        server.read_exact(&mut said)?;
        Ok(said)
    };
    said().is_ok_and(|said| said == *b"INFO ")
}

/// Where the server is. Set `POSTRIDER_TEST_NATS_SERVER` to use another one.
fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("POSTRIDER_TEST_NATS_SERVER") {
        return program.into();
    }
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];
    let mut programs = folders.iter().map(|folder| PathBuf::from(folder).join("nats-server"));
    let program = programs.find(|program| program.exists());
    program.expect("nats-server is installed: run `cargo xtask services up`")
}
