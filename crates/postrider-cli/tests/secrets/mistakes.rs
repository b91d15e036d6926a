//! Configurations and command lines with mistakes in them, next to secrets.

use crate::canary::SECRET;
use crate::support::Fixture;
use crate::watch::Watch;

#[test]
fn a_wrong_configuration_is_not_quoted() {
    let watch = Watch::new(Fixture::migrated());
    let url = format!("postgres://u:{SECRET}@h/db");
    let sink = |line: &str| {
        format!(
            "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"a\"\n[pipeline.sink]\n{line}\n"
        )
    };
    for text in [
        // Not TOML.
        format!("[source]\nurl = {url}\n"),
        format!("[source]\nurl = \"{url}\n"),
        format!("[source]\nurl = \"{url}\" \"{SECRET}\"\n"),
        format!("[source]\npassword: {SECRET}\n"),
        // Of another kind, at another place, with another name.
        format!("[source]\nurl = [\"{url}\"]\n"),
        format!("[source]\nurl = {{ password = \"{SECRET}\" }}\n"),
        format!("[source]\nurls = \"{url}\"\n"),
        format!("[sources]\nurl = \"{url}\"\n"),
        format!("[source]\nurl = \"postgres://u:{SECRET}@h/db?sslmode={SECRET}\"\n"),
        format!("[source]\nurl = \"postgres://u:{SECRET}@h:{SECRET}/db\"\n"),
        format!("[source]\nurl = \"{SECRET}\"\n"),
        // Options of sinks.
        sink(&format!("url = \"http://h/{SECRET}\"\nsigning_secrets = \"{SECRET}\"")),
        sink(&format!("url = \"http://h/{SECRET}\"\nsigning_secrets = [\"whsec_{SECRET}\"]")),
        sink(&format!("url = \"http://h/{SECRET}\"\nsecret_headers = \"{SECRET}\"")),
        sink(&format!("url = \"http://h/{SECRET}\"\nsecret_headers = {{ a = \"{SECRET}\\n\" }}")),
        sink(&format!("url = \"http://h/{SECRET}\"\nsecret_header = {{ a = \"{SECRET}\" }}")),
        sink("url = \"stdout:\"\ntimeout = \"${env:PLANTED}\""),
        sink("url = \"stdout:\"\ntopic = \"{${env:PLANTED}}\""),
        sink(&format!("url = \"http://h/{SECRET}\"\nconcurrency = \"{SECRET}\"")),
        sink(&format!("url = \"http://u:{SECRET}@h:{SECRET}/\"")),
        sink(&format!("url = \"kafka://u:{SECRET}@h\"\npassword = 5\nusername = \"{SECRET}\"")),
        sink(&format!("url = \"kafka://u:{SECRET}@h?x={SECRET}\"")),
        sink(&format!("url = \"kafka://h\"\npassword = \"{SECRET}\"")),
        sink(&format!("url = \"kafka://h\"\nproperties = {{ acks = \"{SECRET}\" }}")),
        sink(&format!("url = \"amqp://u:{SECRET}@h/a/b/c\"\npasswort = \"{SECRET}\"")),
        sink(&format!("url = \"nats://{SECRET}@\"\npassword = [\"{SECRET}\"]")),
        sink(&format!("url = \"redis://:{SECRET}@h/{SECRET}\"")),
        sink(&format!("url = \"rediss://:{SECRET}@h\"\ntls = \"{SECRET}\"")),
        sink(&format!("url = \"foo://:{SECRET}@h\"")),
        sink("url = \"${env:PLANTED}\""),
        sink("url = \"kafka://u:${env:PLANTED}@h:x\""),
    ] {
        watch.fixture.write("p.toml", &text);
        for command in ["relay", "status", "doctor"] {
            let ran = watch.run(&[command, "--config", "p.toml"]);
            if command == "relay" {
                assert_eq!(ran.code, 3, "{text}\n{}", ran.stderr);
            }
        }
    }
}

#[test]
fn a_wrong_command_line_is_not_quoted() {
    let watch = Watch::new(Fixture::migrated());
    let url = format!("postgres://u:{SECRET}@h/db?password={SECRET}");
    let with_equals = format!("--form={url}");
    for args in [
        &["status", &url][..],
        &["status", "--form", &url],
        &["status", &with_equals],
        &["relay", "--from", &url, &url],
        &["check", &url],
    ] {
        for json in [&[][..], &["--json"]] {
            let ran = watch.run_once(&[args, json].concat());
            assert!(ran.code == 2 || args[0] == "check", "{args:?}: {}", ran.stderr);
            assert!(!ran.stderr.is_empty());
        }
    }
    let from = ["--from", "sqlite:app.db"];
    for to in [
        format!("http://u:{SECRET}@h:x/{SECRET}"),
        format!("kafka://u:{SECRET}@h?{SECRET}"),
        format!("file:{SECRET}?"),
        format!("u:{SECRET}@h"),
    ] {
        watch.run_once(&[&["relay"], &from[..], &["--to", &to, "--mode", "cdc"]].concat());
    }
}
