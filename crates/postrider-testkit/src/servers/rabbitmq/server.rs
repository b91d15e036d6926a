//! A private server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::servers::certificates::Certificates;
use crate::servers::folder::{Folder, Process};
use crate::servers::free_port;

const USER: &str = "postrider";
const PASSWORD: &str = "postrider";
const START_MAX: Duration = Duration::from_secs(60);
/// Those in the search path insist on an account of their own.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";
/// The node's list of nodes (`epmd`) ends with the node, which the shell becomes. One of a node
/// that was just killed may still be there for a moment; without its own the node would start one
/// that stays.
const START: &str = "for _ in 1 2 3 4 5 6 7 8 9; do epmd -names || break; sleep 0.1; done; \
                     setpriv --pdeathsig KILL epmd & exec \"$0\"";
/// What a client of AMQP 0-9-1 begins with.
const GREETING: &[u8; 8] = b"AMQP\0\0\x09\x01";

/// How a private server is to be.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Plugins that it has.
    pub plugins: Vec<&'static str>,
    /// More lines of `rabbitmq.conf`.
    pub settings: Vec<String>,
    /// How it is encrypted. Without it there is no TLS.
    pub tls: Option<Tls>,
}

/// What clients of an encrypted server must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// A certificate of the authority. By the name in it they can log in, too.
    Certificate,
    /// A password.
    Password,
}

/// A server of its own, on ports of its own. Dropped, it is killed and removed.
pub struct Server {
    // Dropped first, because its end is what the process waits for.
    folder: Folder,
    process: Option<Process>,
    port: u16,
    node_port: u16,
    epmd_port: u16,
    options: Options,
    certificates: Option<Certificates>,
}

impl Server {
    /// Starts one.
    pub async fn start(options: Options) -> Self {
        let folder = Folder::new("rabbitmq");
        let certificates = options.tls.map(|_| Certificates::make(&folder));
        let [port, node_port, epmd_port] = [free_port(), free_port(), free_port()];
        let process = None;
        let mut server =
            Self { folder, process, port, node_port, epmd_port, options, certificates };
        server.start_again().await;
        server
    }

    /// Its URL, with the user and the password.
    pub fn url(&self) -> String {
        format!("{}://{USER}:{PASSWORD}@{}", self.scheme(), self.address())
    }

    /// `amqp` or `amqps`.
    pub fn scheme(&self) -> &'static str {
        if self.options.tls.is_some() { "amqps" } else { "amqp" }
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

    /// Runs `rabbitmqctl` and answers what it prints.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = self.command("rabbitmqctl");
        command.args(["--quiet", "--erlang-cookie", PASSWORD, "--node", "postrider@localhost"]);
        command.args(arguments);
        let output = tokio::process::Command::from(command).output().await;
        let output = output.expect("rabbitmqctl can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rabbitmqctl {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
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

    /// Starts it, after it was stopped or has died.
    pub async fn start_again(&mut self) {
        if self.process.as_mut().is_some_and(|process| !process.has_ended()) {
            return;
        }
        self.configure();
        let mut command = self.command("sh");
        command.args(["-c", START, &format!("{PROGRAMS}/rabbitmq-server")]);
        let at = |name: &str| self.folder.path().join(name);
        command
            .env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"))
            .env("RABBITMQ_DIST_PORT", self.node_port.to_string())
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"))
            .env("RABBITMQ_LOG_BASE", at("logs"))
            .env("RABBITMQ_MNESIA_BASE", at("data"))
            .env("RABBITMQ_NODENAME", "postrider@localhost");
        let local = "-kernel inet_dist_use_interface {127,0,0,1}";
        let arguments = format!("+S 2:2 -setcookie {PASSWORD} {local}");
        command.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", arguments);
        // Signals reach the server itself, and not a shell before it.
        command.env("RUNNING_UNDER_SYSTEMD", "true");
        let process = self.process.insert(self.folder.spawn(command));
        let started = Instant::now();
        while !answers(self.port, self.options.tls.is_some()) {
            assert!(!process.has_ended(), "it does not start: {}", self.folder.log());
            assert!(started.elapsed() < START_MAX, "no start: {}", self.folder.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// A command that finds this server and no other one.
    fn command(&self, program: &str) -> Command {
        let program = match program {
            "sh" => program.to_owned(),
            program => format!("{PROGRAMS}/{program}"),
        };
        let mut command = self.folder.command(program);
        command
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("HOME", self.folder.path())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null");
        command
    }

    fn configure(&self) {
        let plugins = self.options.plugins.join(",");
        self.folder.write("enabled_plugins", &format!("[{plugins}].\n"));
        let port = self.port;
        let listeners = match &self.certificates {
            None => format!("listeners.tcp.1 = 127.0.0.1:{port}\n"),
            Some(certificates) => {
                let is_needed = self.options.tls == Some(Tls::Certificate);
                let verify = if is_needed { "verify_peer" } else { "verify_none" };
                format!(
                    "\
listeners.tcp = none
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {}
ssl_options.certfile = {}
ssl_options.keyfile = {}
ssl_options.verify = {verify}
ssl_options.fail_if_no_peer_cert = {is_needed}
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
",
                    certificates.authority.display(),
                    certificates.server.display(),
                    certificates.server_key.display()
                )
            }
        };
        let settings = self.options.settings.join("\n");
        let text = format!(
            "\
default_pass = {PASSWORD}
default_user = {USER}
disk_free_limit.absolute = 50MB
loopback_users = none
raft.wal_max_size_bytes = 32000000
vm_memory_high_watermark.absolute = 512MiB
{listeners}{settings}
"
        );
        self.folder.write("rabbitmq.conf", &text);
    }
}

/// Whether a server answers its clients. It listens last of all, so with TLS that is enough.
fn answers(port: u16, is_tls: bool) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut server = TcpStream::connect(("127.0.0.1", port))?;
        if is_tls {
            return Ok(true);
        }
        server.set_read_timeout(Some(Duration::from_secs(1)))?;
        server.write_all(GREETING)?;
        let mut kind = [0];
        server.read_exact(&mut kind)?;
        // The first frame is a method.
        Ok(kind == [1])
    };
    ask().unwrap_or(false)
}
