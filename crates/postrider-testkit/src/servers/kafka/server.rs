//! Private brokers: one, or a cluster of several. Each is a controller, too.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::servers::certificates::Certificates;
use crate::servers::folder::{Folder, Process};
use crate::servers::free_port;

const START_MAX: Duration = Duration::from_secs(90);
/// Any will do.
const CLUSTER: &str = "cG9zdHJpZGVyLXRlc3RzLQ";
const SCRAM: &str = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
const PLAIN: &str = "org.apache.kafka.common.security.plain.PlainLoginModule required \
                     user_postrider=\"postrider\";";

/// How a private broker is to be.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Clients prove themselves by the password of `postrider`.
    pub password: bool,
    /// Clients come by TLS.
    pub tls: bool,
    /// Clients prove themselves by a certificate.
    pub client_certificate: bool,
    /// Nobody may do anything without a rule.
    pub rules: bool,
    /// More lines of `server.properties`.
    pub settings: Vec<String>,
}

/// A broker of its own. Dropped, it is killed and removed.
pub struct Server {
    // Dropped first, because its end is what the process waits for.
    folder: Folder,
    process: Option<Process>,
    port: u16,
    /// Where brokers, and tests, come without a password or TLS.
    internal_port: u16,
    options: Options,
    certificates: Option<Certificates>,
}

/// Where a broker is among others.
struct Seat {
    id: usize,
    port: u16,
    internal_port: u16,
    controller_port: u16,
}

impl Seat {
    fn take(id: usize) -> Self {
        let (port, internal_port, controller_port) = (free_port(), free_port(), free_port());
        Self { id, port, internal_port, controller_port }
    }
}

impl Server {
    /// Starts one alone.
    pub async fn start(options: Options) -> Self {
        let seats = [Seat::take(1)];
        let mut server = Self::make(&seats, 0, options).await;
        server.start_again().await;
        server.until_ready(1).await;
        server
    }

    /// Starts a cluster in which every partition has as many replicas as there are brokers, and
    /// is lost for writing without two of them.
    pub async fn start_cluster(count: usize) -> Vec<Self> {
        let seats: Vec<_> = (1..=count).map(Seat::take).collect();
        let mut servers = Vec::new();
        for index in 0..count {
            let options = Options {
                settings: vec![
                    format!("default.replication.factor={count}"),
                    "min.insync.replicas=2".to_owned(),
                ],
                ..Options::default()
            };
            servers.push(Self::make(&seats, index, options).await);
        }
        // None of them serves before most of them are there.
        for server in &mut servers {
            server.spawn();
        }
        for server in &mut servers {
            server.until_listening().await;
        }
        for server in &servers {
            server.until_ready(count).await;
        }
        servers
    }

    async fn make(seats: &[Seat], index: usize, options: Options) -> Self {
        let folder = Folder::new("kafka");
        let certificates = options.tls.then(|| Certificates::make(&folder));
        let seat = &seats[index];
        let settings = settings(&folder, seats, seat, &options, certificates.as_ref());
        folder.write("server.properties", &settings);
        let mut format = folder.command("java");
        format.args(["-XX:TieredStopAtLevel=1", "-cp"]).arg(libraries().join("*"));
        format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER]);
        format.args(["-c", "server.properties"]);
        if options.password {
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                let user = format!("{mechanism}=[name=postrider,password=postrider]");
                format.args(["--add-scram", &user]);
            }
        }
        folder.run(format).await;
        let (port, internal_port) = (seat.port, seat.internal_port);
        Self { folder, process: None, port, internal_port, options, certificates }
    }

    /// Where clients come.
    pub fn url(&self) -> String {
        let host = if self.options.tls { "localhost" } else { "127.0.0.1" };
        format!("kafka://{host}:{}", self.port)
    }

    /// The brokers, for whoever needs neither password nor TLS.
    pub fn internal(&self) -> String {
        format!("127.0.0.1:{}", self.internal_port)
    }

    /// The certificates of a broker with TLS.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("the broker has TLS")
    }

    /// Kills it.
    pub async fn kill9(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.signal(Signal::KILL);
        process.end().await;
        self.process = None;
    }

    /// Starts it, after it was killed. It takes a while until it serves.
    pub async fn start_again(&mut self) {
        self.spawn();
        self.until_listening().await;
    }

    fn spawn(&mut self) {
        if self.process.as_mut().is_some_and(|process| !process.has_ended()) {
            return;
        }
        let mut command = self.folder.command("java");
        command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp"]).arg(libraries().join("*"));
        command.arg("kafka.Kafka").arg(self.folder.path().join("server.properties"));
        self.process = Some(self.folder.spawn(command));
    }

    async fn until_listening(&mut self) {
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let has_ended = self.process.as_mut().is_none_or(Process::has_ended);
            assert!(!has_ended, "no start: {}", self.folder.log());
            assert!(started.elapsed() < START_MAX, "no start: {}", self.folder.log());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the cluster has so many brokers.
    pub async fn until_ready(&self, brokers: usize) {
        let internal = self.internal();
        let asked = tokio::task::spawn_blocking(move || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", internal);
            let client: BaseConsumer = config.create().expect("a client can be made");
            let deadline = Instant::now() + START_MAX;
            while Instant::now() < deadline {
                let metadata = client.fetch_metadata(None, Duration::from_secs(5));
                if metadata.is_ok_and(|metadata| metadata.brokers().len() == brokers) {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            false
        });
        assert!(asked.await.expect("nothing panics"), "no cluster: {}", self.folder.log());
    }
}

fn settings(
    folder: &Folder,
    seats: &[Seat],
    seat: &Seat,
    options: &Options,
    certificates: Option<&Certificates>,
) -> String {
    let Seat { id, port, internal_port, controller_port } = seat;
    let protocol = match (options.password, options.tls) {
        (false, false) => "PLAINTEXT",
        (false, true) => "SSL",
        (true, false) => "SASL_PLAINTEXT",
        (true, true) => "SASL_SSL",
    };
    let host = if options.tls { "localhost" } else { "127.0.0.1" };
    let voters = seats.iter().map(|seat| format!("{}@127.0.0.1:{}", seat.id, seat.controller_port));
    let voters = voters.collect::<Vec<_>>().join(",");
    let data = folder.path().join("data");
    let data = data.display();
    let replicas = seats.len();
    let mut lines = format!(
        "\
process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
listeners=CLIENT://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENT://{host}:{port},INTERNAL://127.0.0.1:{internal_port}
listener.security.protocol.map=CLIENT:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INTERNAL
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor={replicas}
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor={replicas}
controlled.shutdown.enable=false
broker.session.timeout.ms=3000
"
    );
    if options.password {
        lines.push_str(&format!(
            "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN
listener.name.client.scram-sha-256.sasl.jaas.config={SCRAM}
listener.name.client.scram-sha-512.sasl.jaas.config={SCRAM}
listener.name.client.plain.sasl.jaas.config={PLAIN}
"
        ));
    }
    if options.rules {
        lines.push_str(
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
",
        );
    }
    if let Some(certificates) = certificates {
        let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a file can be read");
        let own = format!("{}{}", read(&certificates.server_key), read(&certificates.server));
        let own = folder.write("server-and-key.pem", &own);
        let asked = if options.client_certificate { "required" } else { "none" };
        lines.push_str(&format!(
            "ssl.keystore.type=PEM
ssl.keystore.location={}
ssl.truststore.type=PEM
ssl.truststore.location={}
ssl.client.auth={asked}
",
            own.display(),
            certificates.authority.display()
        ));
    }
    lines + &options.settings.join("\n") + "\n"
}

/// Where Kafka's program is: the shared broker's.
pub(super) fn libraries() -> PathBuf {
    let hint = "run `cargo xtask services up`";
    let program = std::env::current_exe().expect("a test is a program");
    let link = program.ancestors().map(|folder| folder.join("services/kafka-libraries"));
    let link = link.filter(|link| link.exists()).find_map(|link| link.canonicalize().ok());
    link.unwrap_or_else(|| panic!("Kafka's program is not there: {hint}"))
}
