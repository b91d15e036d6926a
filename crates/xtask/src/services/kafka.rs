//! Apache Kafka: one broker that is its own controller.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::commands::Failed;
use crate::service::{Place, Service, failed, run_silently, start_in_background};

const PORT: u16 = 54340;
const CONTROLLER_PORT: u16 = 54347;
const VERSION: &str = "4.1.0";
/// Any will do, as long as it stays.
const CLUSTER: &str = "cG9zdHJpZGVyLXRlc3RzLQ";
const SETTINGS: &str = "server.properties";
/// A link beside the servers' folders by which tests find the program for brokers of their own.
const LIBRARIES: &str = "kafka-libraries";

pub(super) struct Kafka;

impl Service for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn port(&self) -> u16 {
        PORT
    }

    fn url(&self) -> String {
        format!("kafka://127.0.0.1:{PORT}")
    }

    /// The program itself comes from Maven's central repository.
    fn package(&self) -> &'static str {
        "default-jdk-headless"
    }

    fn is_installed(&self) -> bool {
        super::program("java").is_some()
    }

    fn files(&self, place: &Place) -> Vec<(&'static str, String)> {
        let data = place.folder.join("data");
        let data = data.display();
        let settings = format!(
            "\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{CONTROLLER_PORT}
listeners=PLAINTEXT://127.0.0.1:{PORT},CONTROLLER://127.0.0.1:{CONTROLLER_PORT}
advertised.listeners=PLAINTEXT://127.0.0.1:{PORT}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
"
        );
        let artifact = |name: &str| {
            format!(
                "<dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId>\
                 <version>{VERSION}</version></dependency>"
            )
        };
        let (broker, tools) = (artifact("kafka_2.13"), artifact("kafka-tools"));
        let project = format!(
            "<project><modelVersion>4.0.0</modelVersion><groupId>postrider</groupId>\
             <artifactId>kafka</artifactId><version>1</version>\
             <dependencies>{broker}{tools}</dependencies></project>\n"
        );
        vec![(SETTINGS, settings), ("pom.xml", project)]
    }

    fn process(&self, place: &Place) -> (&'static str, PathBuf) {
        ("java", place.folder.join(SETTINGS))
    }

    fn is_prepared(&self, place: &Place) -> bool {
        fetched(place).exists() && place.folder.join("data/meta.properties").exists()
    }

    fn start(&self, place: &Place) -> Result<(), Failed> {
        if !fetched(place).exists() {
            fetch(place)?;
        }
        link(place)?;
        let settings = place.folder.join(SETTINGS);
        let classes = libraries(place).join("*");
        if !place.folder.join("data/meta.properties").exists() {
            let mut format = place.command("java");
            format.arg("-cp").arg(&classes).args(["kafka.tools.StorageTool", "format"]);
            format.args(["-t", CLUSTER, "-c"]).arg(&settings);
            run_silently(&mut format)?;
        }
        start_in_background(place, "java", |start| {
            start.args(["-Xmx384m", "-cp"]).arg(&classes).arg("kafka.Kafka").arg(&settings);
        })
    }

    fn answers(&self, place: &Place) -> bool {
        let mut ask = place.command("kcat");
        ask.args(["-L", "-m", "2", "-b", &format!("127.0.0.1:{PORT}")]);
        ask.stdout(Stdio::null()).stderr(Stdio::null());
        ask.status().is_ok_and(|status| status.success())
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }
}

fn libraries(place: &Place) -> PathBuf {
    place.folder.join("libraries")
}

/// The last thing that is made when the program is fetched.
fn fetched(place: &Place) -> PathBuf {
    place.folder.join(format!("fetched-{VERSION}"))
}

fn fetch(place: &Place) -> Result<(), Failed> {
    let libraries = libraries(place);
    if libraries.exists() {
        fs::remove_dir_all(&libraries).map_err(|error| failed("remove", &libraries, &error))?;
    }
    let mut copy = Command::new("mvn");
    copy.args(["--batch-mode", "--quiet", "dependency:copy-dependencies"]);
    copy.args(["-DincludeScope=runtime", "-DoutputDirectory=libraries"]);
    copy.current_dir(&place.folder);
    run_silently(&mut copy)?;
    let fetched = fetched(place);
    fs::write(&fetched, "").map_err(|error| failed("write", &fetched, &error))
}

/// Points the link to this folder's libraries.
fn link(place: &Place) -> Result<(), Failed> {
    let link = super::built()?.join(LIBRARIES);
    let points_there = |link: &Path| fs::read_link(link).is_ok_and(|to| to == libraries(place));
    if points_there(&link) {
        return Ok(());
    }
    // It may not be there.
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(libraries(place), &link)
        .map_err(|error| failed("make", &link, &error))
}
