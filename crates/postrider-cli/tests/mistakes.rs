//! Every kind of bad input, with its exit code and what is said about it.

mod support;

use support::Fixture;

const SINK: [&str; 2] = ["--to", "stdout:"];

fn relay(fixture: &Fixture, from: &str) -> support::Ran {
    fixture.run(&["relay", "--from", from, SINK[0], SINK[1], "--drain"])
}

#[test]
fn wrong_use_is_2() {
    let fixture = Fixture::new();
    for args in [
        ["relay", "--config", "p.toml", "--from", "sqlite://app.db"].as_slice(),
        &["relay", "--from", "sqlite://app.db"],
        &["relay"],
        &["relay", "--to", "stdout:"],
        &["migrate"],
        &["status"],
        &["status", "--config", "p.toml", "--table", "x"],
        &["dlq", "retry", "--from", "sqlite://app.db"],
        &["dlq", "retry", "--all", "some-id", "--from", "sqlite://app.db"],
        &["dlq", "list", "--key", "Order", "--from", "sqlite://app.db"],
        &["no-such-command"],
        &[],
    ] {
        fixture.run(args).assert_code(2);
    }
    let json = fixture.run(&["status", "--json"]).assert_code(2);
    assert!(json.stderr.starts_with(r#"{"error":""#), "{}", json.stderr);
    assert_eq!(json.stderr.lines().count(), 1);
}

#[test]
fn an_error_names_its_page() {
    let fixture = Fixture::new();
    let status = ["status", "--from", "postgres://nobody@127.0.0.1:1/shop"];
    let told = fixture.run(&status).assert_code(4);
    let told = told.assert_talk(&["error: cannot connect", "  more: postrider explain source_un"]);
    let command = told.stderr.lines().last().unwrap().rsplit_once("postrider ").unwrap().1;
    let page = fixture.run(&command.split(' ').collect::<Vec<_>>()).assert_code(0).stdout;
    assert!(page.starts_with("# source_unavailable\n\nExit code 4.\n"), "{page}");
    let json = fixture.run(&[&status[..], &["--json"]].concat()).assert_code(4).stderr;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["code"], &json["exit_code"]), (&"source_unavailable".into(), &4.into()));
    for (name, title) in [("rejected", "sink_rejected"), ("slot_wal", "SlotRetainedWalHigh")] {
        let page = fixture.run(&["explain", name]).assert_code(0).stdout;
        assert!(page.starts_with(&format!("# {title}\n")), "{page}");
    }
    let listed = fixture.run(&["explain"]).assert_code(0).stdout;
    assert!(listed.contains("\nsource_held "), "{listed}");
    fixture.run(&["explain", "rejectd"]).assert_code(2).assert_talk(&["'rejected'"]);
}

#[test]
fn a_malformed_configuration_is_3() {
    let fixture = Fixture::new();
    fixture.write("p.toml", "[source]\nurl = outbox\n");
    fixture.run(&["relay", "--config", "p.toml"]).assert_code(3).assert_talk(&[
        "error: the configuration has a problem",
        "p.toml:2:7: this is not valid TOML: ",
        "  2 | url = ***\n    |       ^\n",
    ]);
}

#[test]
fn unknown_keys_are_3_with_a_suggestion() {
    let fixture = Fixture::new();
    fixture.run(&["init", "--path", "p.toml"]).assert_code(0);
    let text =
        fixture.read("p.toml").replace("progress =", "progess =").replace("table =", "tabel =");
    fixture.write("p.toml", text);
    let expected = [
        "error: the configuration has 2 problems",
        "unknown key `tabel` in [source]\n  fix: did you mean `table`?",
        "unknown key `progess` in [[pipeline]]\n  fix: did you mean `progress`?",
    ];
    fixture.run(&["relay", "--config", "p.toml"]).assert_code(3).assert_talk(&expected);
    let json = fixture.run(&["relay", "--config", "p.toml", "--json"]).assert_code(3);
    assert!(
        json.stderr.contains(r#""exit_code":3,"problems":[{"at":"p.toml:12:1","what":"#),
        "{}",
        json.stderr
    );
}

#[test]
fn a_missing_file_is_3() {
    let fixture = Fixture::new();
    fixture.run(&["relay", "--config", "none.toml"]).assert_code(3).assert_talk(&[
        "error: cannot read none.toml",
        "  why: No such file or directory",
        "  fix: write one to start from: postrider init --path none.toml",
    ]);
}

#[test]
fn unknown_schemes_are_3() {
    let fixture = Fixture::new();
    relay(&fixture, "foo://app.db").assert_code(3).assert_talk(&["--from: "]);
    let ran = fixture.run(&["relay", "--from", "sqlite://app.db", "--to", "foo://x"]);
    ran.assert_code(3).assert_talk(&["--to: "]);
    fixture.run(&["status", "--from", "foo://app.db"]).assert_code(3).assert_talk(&["--from: "]);
    fixture.run(&["migrate", "--from", "foo://app.db"]).assert_code(3).assert_talk(&["--from: "]);
}

#[test]
fn cdc_is_not_for_sqlite() {
    let fixture = Fixture::migrated();
    let args = ["relay", "--from", "sqlite://app.db", "--to", "stdout:", "--mode", "cdc"];
    fixture
        .run(&args)
        .assert_code(3)
        .assert_talk(&["--mode: mode \"cdc\" is not available for sqlite"]);
}

#[test]
fn a_database_without_tables_says_how_to_make_them() {
    let fixture = Fixture::new();
    fixture.write("empty.db", "");
    for ran in [
        relay(&fixture, "sqlite://empty.db"),
        fixture.run(&["status", "--from", "sqlite://empty.db"]),
        fixture.run(&["dlq", "list", "--from", "sqlite://empty.db"]),
    ] {
        ran.assert_code(3).assert_talk(&["error: ", "  fix: ", "postrider migrate --from"]);
    }
}

#[test]
fn what_makes_the_tables_names_the_table() {
    let fixture = Fixture::migrated();
    for database in ["app.db", "none.db"] {
        let from = format!("sqlite:{database}");
        let outbox = ["--from", &from, "--table", "events"];
        for command in [
            ["relay", "--to", "stdout:"].as_slice(),
            &["status"],
            &["dlq", "list"],
            &["dlq", "show", "some-id"],
            &["dlq", "retry", "--all"],
        ] {
            let fix = format!("  fix: run `postrider migrate --from {from} --table events`\n");
            fixture.run(&[command, &outbox].concat()).assert_code(3).assert_talk(&[&fix]);
        }
    }
}

#[test]
fn a_failure_is_told_once() {
    let fixture = Fixture::new();
    let ran = relay(&fixture, "sqlite://none.db").assert_code(3);
    assert_eq!(ran.stderr.matches("does not exist").count(), 1, "{}", ran.stderr);
    let from = ["relay", "--from", "sqlite://none.db"];
    let json = fixture.run(&[&from, &SINK[..], &["--log-format", "json"]].concat());
    let json = json.assert_code(3);
    assert_eq!(json.stderr.matches("does not exist").count(), 1, "{}", json.stderr);
    assert!(json.stderr.lines().all(|line| line.starts_with('{')), "{}", json.stderr);
}

#[test]
fn a_missing_database_is_not_made_by_looking() {
    let fixture = Fixture::new();
    for ran in [
        relay(&fixture, "sqlite://none.db"),
        fixture.run(&["status", "--from", "sqlite://none.db"]),
    ] {
        ran.assert_code(3)
            .assert_talk(&["none.db does not exist", "  fix: run `postrider migrate"]);
    }
    assert!(!fixture.path("none.db").exists());
}

#[test]
fn a_damaged_database_is_6() {
    let fixture = Fixture::new();
    fixture.write("app.db", "this is not a database, however long it is made to look".repeat(40));
    relay(&fixture, "sqlite://app.db").assert_code(6);
    fixture.run(&["status", "--from", "sqlite://app.db"]).assert_code(6);
    fixture.run(&["migrate", "--from", "sqlite://app.db"]).assert_code(6);
}

#[test]
fn secrets_are_not_shown() {
    let fixture = Fixture::new();
    for to in [
        "http://user:c4n4ry@127.0.0.1:1/?token=c4n4ry",
        "http://127.0.0.1:1/hooks/c4n4ry?token=c4n4ry",
    ] {
        let relay = ["relay", "--from", "sqlite://none.db", "--allow-private", "--to", to];
        let ran = fixture.run(&relay).assert_code(3);
        assert!(!ran.stderr.contains("c4n4ry"), "{}", ran.stderr);
    }
}

#[test]
fn a_misspelt_scheme_is_3_with_a_suggestion() {
    let fixture = Fixture::new();
    relay(&fixture, "postgress://user:c4n4ry@host/app").assert_code(3).assert_talk(&[
        "--from: no database is known by the scheme \"postgress\"",
        "  fix: did you mean postgres: ? write a URL such as postgres://user@host/database or sqlite:",
    ]);
}

#[test]
fn unknown_options_of_a_sink_are_3_with_what_it_has() {
    let fixture = Fixture::migrated();
    let config = "[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"a\"\n\
         [pipeline.sink]\nurl = \"stdout:\"\ntimout = \"3s\"\nzzz = 1\n";
    fixture.write("p.toml", config);
    let options = "cloudevents_source, format, headers, key, timeout, topic, url";
    fixture.run(&["relay", "--config", "p.toml"]).assert_code(3).assert_talk(&[
        "`timout`: unknown option of the stdout sink\n  fix: did you mean `timeout`?",
        &format!("`zzz`: unknown option of the stdout sink\n  fix: the options are {options}\n"),
    ]);
}
