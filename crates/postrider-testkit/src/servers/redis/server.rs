//! A private server.

use std::io::{Read as _, Write as _};
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
const SETTINGS: &str = "redis.conf";
const START_MAX: Duration = Duration::from_secs(30);

/// How a private server is to be.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More lines of the configuration; of two for one setting the last one counts.
    pub settings: Vec<String>,
    /// How it is encrypted. Without it there is no TLS.
    pub tls: Option<Tls>,
}

/// What clients of an encrypted server must have besides the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// A certificate of the authority.
    Certificate,
    /// Nothing.
    Password,
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
        let folder = Folder::new("redis");
        let certificates = options.tls.map(|_| Certificates::make(&folder));
        let mut server = Self { folder, process: None, port: free_port(), options, certificates };
        server.start_again().await;
        server
    }

    /// A replica of it. Without TLS.
    pub async fn replica(&self) -> Self {
        let settings = vec![
            format!("replicaof 127.0.0.1 {}", self.port),
            format!("masteruser {USER}"),
            format!("masterauth {PASSWORD}"),
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        Self::start(Options { settings, ..Options::default() }).await
    }

    /// Its URL, with the user and the password. With TLS the host is the name that its
    /// certificate is for.
    pub fn url(&self) -> String {
        match self.options.tls {
            None => format!("redis://{USER}:{PASSWORD}@127.0.0.1:{}", self.port),
            Some(_) => format!("rediss://{USER}:{PASSWORD}@localhost:{}", self.port),
        }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificates of a server with TLS.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("the server has TLS")
    }

    /// Kills it.
    pub async fn kill9(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.signal(Signal::KILL);
        process.end().await;
        self.process = None;
    }

    /// Stops it from doing anything, or lets it go on. Connections stay.
    pub fn pause(&mut self, is_on: bool) {
        let process = self.process.as_mut().expect("the server runs");
        process.signal(if is_on { Signal::STOP } else { Signal::CONT });
    }

    /// Starts it, after it has died, and waits until it has read its data.
    pub async fn start_again(&mut self) {
        self.configure();
        self.start_again_as_it_is().await;
    }

    /// The same, with the configuration that it may have written itself.
    pub async fn start_again_as_it_is(&mut self) {
        if self.process.as_mut().is_some_and(|process| !process.has_ended()) {
            return;
        }
        let configuration = self.folder.path().join(SETTINGS);
        let mut command = self.folder.command(program());
        command.arg(configuration);
        let process = self.process.insert(self.folder.spawn(command));
        let started = Instant::now();
        while !is_ready(self.port, self.options.tls.is_some()) {
            assert!(!process.has_ended(), "it does not start: {}", self.folder.log());
            assert!(started.elapsed() < START_MAX, "no start: {}", self.folder.log());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The folder stands in the command line, which the server writes itself.
    fn configure(&self) {
        let listen = match &self.certificates {
            None => format!("port {}", self.port),
            Some(certificates) => format!(
                "port 0\ntls-port {}\ntls-auth-clients {}\ntls-ca-cert-file {}\n\
                 tls-cert-file {}\ntls-key-file {}",
                self.port,
                if self.options.tls == Some(Tls::Certificate) { "yes" } else { "no" },
                certificates.authority.display(),
                certificates.server.display(),
                certificates.server_key.display()
            ),
        };
        let settings = &self.options.settings;
        let is_node = settings.iter().any(|line| line == "cluster-enabled yes");
        // Otherwise it takes its own port and 10 000, which may be somebody else's.
        let node = if is_node { format!("cluster-port {}", free_port()) } else { String::new() };
        let has_default = settings.iter().any(|line| line.starts_with("user default "));
        // It reads its file as that user, who needs all rights for it and yet cannot log in.
        let default = if has_default { "" } else { "user default off ~* &* +@all" };
        let text = format!(
            "bind 127.0.0.1\ndir {}\nproc-title-template \"{{config-file}}\"\n{listen}\n\
             appendonly yes\nappendfsync always\nsave \"\"\n{default}\n{node}\n\
             user {USER} on >{PASSWORD} ~* &* +@all\n{}\n",
            self.folder.path().display(),
            settings.join("\n")
        );
        self.folder.write(SETTINGS, &text);
    }
}

/// Whether a server is there and, if that can be asked without TLS, has read its data.
fn is_ready(port: u16, has_tls: bool) -> bool {
    let asked = || -> std::io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(("127.0.0.1", port))?;
        let mut said = Vec::new();
        if !has_tls {
            server.set_read_timeout(Some(Duration::from_secs(1)))?;
            server.write_all(format!("AUTH {USER} {PASSWORD}\r\nPING\r\nQUIT\r\n").as_bytes())?;
            server.read_to_end(&mut said)?;
        }
        Ok(said)
    };
    asked().is_ok_and(|said| has_tls || said.starts_with(b"+OK\r\n+PONG\r\n"))
}

fn program() -> PathBuf {
    let program = PathBuf::from("/usr/bin/redis-server");
    assert!(program.exists(), "no redis-server here: run `cargo xtask services up`");
    program
}
