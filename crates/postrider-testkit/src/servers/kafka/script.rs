//! Kafka's own programs, as people run them.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::server::libraries;

/// What the scripts of Kafka start.
const PROGRAMS: [(&str, &str); 6] = [
    ("kafka-acls.sh", "org.apache.kafka.tools.AclCommand"),
    ("kafka-configs.sh", "kafka.admin.ConfigCommand"),
    ("kafka-console-producer.sh", "org.apache.kafka.tools.ConsoleProducer"),
    ("kafka-dump-log.sh", "kafka.tools.DumpLogSegments"),
    ("kafka-log-dirs.sh", "org.apache.kafka.tools.LogDirsCommand"),
    ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
];

/// Runs a command as it would be typed, `kafka-topics.sh --list …`; the answer is what it prints.
pub async fn run_script(command: &str) -> String {
    run_script_with(command, "").await
}

/// The same, for a command that reads something.
pub async fn run_script_with(command: &str, input: &str) -> String {
    let mut words = command.split_whitespace();
    let script = words.next().expect("a command has a name");
    let program = PROGRAMS.iter().find(|(name, _)| *name == script);
    let (_, program) = program.unwrap_or_else(|| panic!("Kafka has no script {script}"));
    let mut java = Command::new("java");
    java.args(["-XX:TieredStopAtLevel=1", "-cp"]).arg(libraries().join("*"));
    java.arg(program).args(words);
    java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = java.kill_on_drop(true).spawn().expect("`java` can be run");
    let mut pipe = running.stdin.take().expect("it was asked for");
    pipe.write_all(input.as_bytes()).await.expect("it reads its input");
    drop(pipe);
    let output = running.wait_with_output().await.expect("it ends");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command}: {said}{complained}");
    said.into_owned()
}
