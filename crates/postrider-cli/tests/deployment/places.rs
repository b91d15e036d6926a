//! systemd, Docker and Kubernetes: what they run exists, and what they are told is true.

use std::process::Command;

use postrider_relay::config::{Config, Environment};
use serde_json::Value;

use crate::commands::assert_exists;
use crate::read;
use crate::support::Fixture;

const MANIFESTS: &str = "deploy/kubernetes/postrider.yaml";

/// The one document of this kind.
fn manifest(kind: &str) -> Value {
    let text = read(MANIFESTS);
    let documents = text.split("\n---\n").map(|document| {
        let document: Value = yaml_serde::from_str(document).expect("it is YAML");
        document
    });
    let mut found: Vec<Value> = documents.filter(|document| document["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

fn config() -> Config {
    let text = manifest("ConfigMap")["data"]["postrider.toml"].as_str().unwrap().to_owned();
    let env: Environment = [("DATABASE_URL", "postgres://relay@db/shop")].into_iter().collect();
    Config::parse(&text, "postrider.toml", &env).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn the_unit_runs_a_command_that_exists() {
    let unit = read("deploy/systemd/postrider.service");
    let value = |key: &str| {
        let mut lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        lines.next().unwrap_or_else(|| panic!("there is no {key}"))
    };
    let words: Vec<&str> = value("ExecStart").split_whitespace().collect();
    assert_eq!(words[0], "/usr/bin/postrider");
    assert_exists(&words[1..]);
    assert_eq!(value("Type"), "notify");
    let seconds = |key: &str| -> u64 { value(key).parse().unwrap() };
    let config = config();
    let options = &config.pipelines[0].options;
    assert!(seconds("TimeoutStopSec") > options.grace.as_secs());
    assert!(seconds("WatchdogSec") > options.stall_after.as_secs());
    assert!(
        seconds("WatchdogSec") > postrider_relay::telemetry::health::LOOP_STUCK_AFTER.as_secs()
    );
}

/// Where there is a systemd to ask.
#[test]
fn systemd_understands_the_unit() {
    let fixture = Fixture::new();
    let unit = read("deploy/systemd/postrider.service");
    let unit = unit.replace("/usr/bin/postrider", env!("CARGO_BIN_EXE_postrider"));
    fixture.write("postrider.service", unit);
    let verify = ["verify", "--man=no", "--recursive-errors=no"];
    let path = fixture.path("postrider.service");
    let Ok(ran) = Command::new("systemd-analyze").args(verify).arg(path).output() else {
        return;
    };
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success(), "{said}");
    assert!(!said.contains("postrider.service:"), "{said}");
}

#[test]
fn the_image_runs_a_command_that_exists() {
    let dockerfile = read("deploy/docker/Dockerfile");
    let words = |key: &str| -> Vec<String> {
        let mut lines = dockerfile.lines().filter_map(|line| line.strip_prefix(key));
        serde_json::from_str(lines.next().unwrap()).unwrap()
    };
    assert_eq!(words("ENTRYPOINT "), ["/usr/bin/postrider"]);
    let command = words("CMD ");
    assert_exists(&command.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(dockerfile.contains("\nUSER 65532:65532\n"), "it does not run as root");
    let toolchain = read("Cargo.toml");
    let version = toolchain.split_once("rust-version = \"").unwrap().1.split('"').next().unwrap();
    assert!(dockerfile.contains(&format!("FROM rust:{version}-")), "it builds with {version}");
}

#[test]
fn the_manifests_agree_with_each_other_and_with_the_relay() {
    let config = config();
    let listen = config.http.expect("there is [http]").listen;
    assert!(listen.ip().is_unspecified(), "a probe comes from outside");
    let port = Value::from(listen.port());

    let deployment = manifest("Deployment");
    let pod = &deployment["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    let args: Vec<&str> =
        container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_exists(&args);
    let mount = &container["volumeMounts"][0];
    let file = format!("{}/postrider.toml", mount["mountPath"].as_str().unwrap());
    assert!(args.contains(&file.as_str()), "{args:?}");
    let volume = &pod["spec"]["volumes"][0];
    assert_eq!(volume["name"], mount["name"]);
    assert_eq!(volume["configMap"]["name"], manifest("ConfigMap")["metadata"]["name"]);

    assert_eq!(container["ports"][0]["containerPort"], port);
    let name = &container["ports"][0]["name"];
    for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
        assert_eq!(container[probe]["httpGet"]["port"], *name);
    }
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"], listen.port().to_string());
    assert_eq!(annotations["prometheus.io/path"], "/metrics");
    let service = manifest("Service");
    assert_eq!(service["spec"]["ports"][0]["port"], port);
    assert_eq!(service["spec"]["ports"][0]["targetPort"], *name);

    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(config.pipelines.iter().all(|it| it.options.grace.as_secs() < grace));
    let labels = &pod["metadata"]["labels"];
    let budget = manifest("PodDisruptionBudget");
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], *labels);
    assert_eq!(budget["spec"]["selector"]["matchLabels"], *labels);
    assert_eq!(service["spec"]["selector"], *labels);
    let budget = budget["spec"]["maxUnavailable"].as_u64().unwrap();
    assert!(budget < deployment["spec"]["replicas"].as_u64().unwrap());
}

#[test]
fn the_pod_has_few_rights() {
    let deployment = manifest("Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["runAsUser"], 65532);
    assert_eq!(pod["automountServiceAccountToken"], false);
    let rights = &pod["containers"][0]["securityContext"];
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert_eq!(rights["allowPrivilegeEscalation"], false);
    assert_eq!(rights["capabilities"]["drop"][0], "ALL");
    // No password in a configuration that everybody can read.
    let text = manifest("ConfigMap")["data"]["postrider.toml"].as_str().unwrap().to_owned();
    assert!(text.contains("url = \"${env:DATABASE_URL}\""), "{text}");
}
