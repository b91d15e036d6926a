use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use super::{Fixture, doctor};

const CONFIG: [&str; 2] = ["--config", "p.toml"];

fn write(fixture: &Fixture, mode: u32, text: &str) {
    fixture.write("p.toml", text);
    fs::set_permissions(fixture.path("p.toml"), Permissions::from_mode(mode)).unwrap();
}

#[test]
fn secrets_in_a_file_that_others_can_read_are_named() {
    let fixture = Fixture::migrated();
    let config = |secret: &str| {
        format!(
            "[source]\nurl = \"sqlite:app.db\"\n[prune]\nkeep = \"7d\"\n[[pipeline]]\nname = \"a\"\n\
             [pipeline.sink]\nurl = \"http://127.0.0.1:9/\"\nallow_private = true\nsigning_secrets = [\"{secret}\"]\n"
        )
    };
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    write(&fixture, 0o644, &config(secret));
    let found = doctor(&fixture, &CONFIG);
    found.is("config", "ok");
    assert!(found.is("config-permissions", "warn").contains("can be read by others (mode 644)"));
    assert!(found.is("config-secrets", "warn").contains("pipeline[0].sink.signing_secrets[0]"));
    assert!(!found.ran.stdout.contains(secret), "{}", found.ran.stdout);
    let fix = found.one("config-permissions")["fix"].as_str().unwrap();
    let command = std::process::Command::new("sh")
        .args(["-c", fix])
        .current_dir(fixture.path("."))
        .status()
        .unwrap();
    assert!(command.success(), "{fix}");
    doctor(&fixture, &CONFIG).is("config-permissions", "ok");

    fixture.write("secret", secret);
    write(&fixture, 0o644, &config("${file:secret}"));
    let found = doctor(&fixture, &CONFIG);
    found.is("config-permissions", "ok");
    found.is("config-secrets", "ok");
    assert!(found.is("sink", "fail").contains("127.0.0.1"), "nobody listens there");
    found.is("sink-encryption", "ok");
    found.is("retention", "ok");
}

#[test]
fn mistakes_are_findings_and_the_rest_waits_for_them() {
    let fixture = Fixture::migrated();
    write(&fixture, 0o600, "[source]\nurl = \"sqlite:app.db\"\ncolour = 1\n[[pipeline]]\n");
    let found = doctor(&fixture, &CONFIG);
    let mistakes = found.all("config");
    assert!(mistakes.len() > 1 && mistakes.iter().all(|found| found["level"] == "fail"));
    assert!(mistakes.iter().any(|found| found["found"].as_str().unwrap().contains("colour")));
    found.is("database", "skip");
    found.is("config-permissions", "ok");
    fixture.run(&["doctor", "--config", "none.toml"]).assert_code(3);
    fixture.run(&["doctor"]).assert_code(2).assert_talk(&["no database was named"]);
}

#[test]
fn sinks_say_what_is_wrong_with_them() {
    let fixture = Fixture::migrated();
    let sinks = "[[pipeline]]\nname = \"file\"\nprogress = \"cursor\"\nsink = { url = \"file:no/such/out\" }\n\
                 [[pipeline]]\nname = \"out\"\nprogress = \"cursor\"\nsink = { url = \"stdout:\" }\n\
                 [[pipeline]]\nname = \"new\"\nprogress = \"cursor\"\nsink = { url = \"file:out.jsonl\" }\n";
    write(&fixture, 0o600, &format!("[source]\nurl = \"sqlite:app.db\"\n{sinks}"));
    let found = doctor(&fixture, &CONFIG);
    let sink = |name: &str| {
        found.all("sink").into_iter().find(|found| found["subject"] == name).unwrap().clone()
    };
    assert_eq!(
        (sink("file")["level"].as_str(), sink("file")["fix"].as_str()),
        (Some("fail"), Some("mkdir -p no/such"))
    );
    assert_eq!(sink("out")["level"], "ok");
    assert_eq!(sink("new")["level"], "ok");
    assert!(!fixture.path("out.jsonl").exists(), "looking makes nothing");
    assert!(found.is("retention", "warn").contains("never removed"));
}

#[test]
fn a_pipeline_that_is_not_in_the_file_is_named() {
    let fixture = Fixture::migrated();
    fixture.run(&["relay", "--from", "sqlite:app.db", "--to", "stdout:", "--drain"]).assert_code(0);
    write(
        &fixture,
        0o600,
        "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"a\"\nsink = { url = \"stdout:\" }\n",
    );
    let found = doctor(&fixture, &CONFIG);
    let stray = found.all("pipeline").into_iter().find(|found| found["level"] == "warn").unwrap();
    assert_eq!(stray["subject"], "default");
    assert!(stray["found"].as_str().unwrap().contains("not in the configuration"));
}

/// Where topics are made of events, those of the newest events are asked about.
#[test]
fn a_topic_that_no_stream_takes_is_found() {
    let fixture = Fixture::migrated();
    let url = std::env::var("POSTRIDER_TEST_NATS").expect("tests are run with cargo");
    let topic = format!("doctor-{}.{{aggregate_id}}", std::process::id());
    let sink = format!("sink = {{ url = \"{url}\", topic = \"{topic}\" }}\n");
    let source = "[source]\nurl = \"sqlite:app.db\"\n";
    write(&fixture, 0o600, &format!("{source}[[pipeline]]\nname = \"a\"\n{sink}"));
    assert!(doctor(&fixture, &CONFIG).is("sink", "ok").contains("known once there are some"));
    fixture.insert("1", "OrderPaid", "{}");
    let found = doctor(&fixture, &CONFIG);
    let what = found.is("sink", "fail");
    assert!(what.contains("no stream takes the subject doctor-"), "{what}");
}

/// A relay could not even start.
#[test]
fn a_missing_column_is_a_failure() {
    let fixture = Fixture::migrated();
    let drop = "ALTER TABLE outbox_failures DROP COLUMN kind";
    fixture.database().execute_batch(drop).unwrap();
    let found = doctor(&fixture, &["--from", "sqlite:app.db"]);
    assert!(found.is("schema-drift", "fail").contains("column outbox_failures.kind is missing"));
}

#[test]
fn brokers_say_what_they_lack() {
    let fixture = Fixture::migrated();
    let server = |name: &str| std::env::var(name).expect("tests are run with cargo");
    let topic = format!("doctor-{}", std::process::id());
    let mut config = "[source]\nurl = \"sqlite:app.db\"\n".to_owned();
    for name in ["KAFKA", "NATS", "RABBITMQ", "REDIS"] {
        let url = server(&format!("POSTRIDER_TEST_{name}"));
        config.push_str(&format!(
            "[[pipeline]]\nname = \"{name}\"\nprogress = \"cursor\"\n\
             sink = {{ url = \"{url}\", topic = \"{topic}\" }}\n"
        ));
    }
    write(&fixture, 0o600, &config);
    let found = doctor(&fixture, &CONFIG);
    let sinks = found.all("sink");
    assert_eq!(sinks.len(), 4);
    for sink in sinks {
        assert_eq!(sink["level"], "fail", "{sink}");
        assert!(sink["found"].as_str().unwrap().contains("no "), "{sink}");
        assert!(sink["fix"].as_str().unwrap().contains(&topic), "{sink}");
    }
}
