//! From nothing to published events, as a newcomer does it.

mod support;

use support::Fixture;

#[test]
fn init_migrate_relay_status() {
    let fixture = Fixture::new();
    fixture.run(&["init"]).assert_code(0).assert_talk(&[
        "wrote postrider.toml",
        "  postrider migrate --config postrider.toml\n  postrider relay --config postrider.toml",
    ]);
    let migrated = fixture.run(&["migrate", "--config", "postrider.toml", "--json"]).assert_code(0);
    assert_eq!(
        migrated.stdout,
        "{\"table\":\"outbox\",\"applied\":[{\"version\":1,\"name\":\"outbox\"},{\"version\":2,\"name\":\"trouble\"},{\"version\":3,\"name\":\"matching\"}]}\n"
    );
    fixture.insert("1", "OrderPlaced", "{}");
    fixture.insert("1", "OrderPaid", r#"{"tenant": "acme"}"#);
    fixture.insert("2", "OrderPlaced", "{}");

    let status = fixture.run(&["status", "--from", "sqlite://app.db", "--json"]).assert_code(0);
    assert!(status.stdout.starts_with(
        r#"{"database":"sqlite","table":"outbox","unpublished":3,"unpublished_is_capped":false,"parked":0,"parked_is_capped":false,"pipelines":[{"name":"default","progress":null,"unpublished":3,"unpublished_is_capped":false,"oldest_unpublished_age_seconds":"#
    ), "{}", status.stdout);

    let to = format!("file://{}", fixture.path("out.jsonl").display());
    fixture
        .run(&["relay", "--from", "sqlite://app.db", "--to", &to, "--drain"])
        .assert_code(0)
        .assert_talk(&["delivered 3 events"]);
    let lines = fixture.lines("out.jsonl");
    assert_eq!(lines.len(), 3);
    assert!(lines[0].contains("OrderPlaced") && lines[1].contains("OrderPaid"), "{lines:?}");

    let status = fixture.run(&["status", "--from", "sqlite://app.db", "--json"]).assert_code(0);
    assert!(status.stdout.contains(r#""progress":"mark","unpublished":0,"#), "{}", status.stdout);
    let text = fixture.run(&["status", "--config", "postrider.toml"]).assert_code(0);
    assert!(text.stdout.contains("PIPELINE"), "{}", text.stdout);
}

#[test]
fn a_configuration_file_does_the_same() {
    let fixture = Fixture::migrated();
    fixture.run(&["init", "--path", "p.toml"]).assert_code(0);
    fixture.insert("1", "OrderPlaced", "{}");
    let ran = fixture.run(&["relay", "--config", "p.toml", "--drain"]).assert_code(0);
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    assert!(ran.stdout.contains("\"outbox.event.Order\""), "{}", ran.stdout);
    let start = "pipeline=\"orders\" source=sqlite://app.db table=outbox sink=stdout: progress=\"mark\" ordering=\"key\"";
    assert!(ran.stderr.contains(start), "{}", ran.stderr);
}

#[test]
fn stdout_belongs_to_the_events() {
    for to in ["stdout:", "stdout", "STDOUT:"] {
        let fixture = Fixture::migrated();
        fixture.insert("1", "OrderPlaced", "{}");
        let relay = ["relay", "--from", "sqlite://app.db", "--to", to, "--drain", "--json"];
        let ran = fixture.run(&relay).assert_code(0);
        assert_eq!(ran.stdout.lines().count(), 1, "{to}: {}", ran.stdout);
    }
}

#[test]
fn environment_variables_override_the_file() {
    let fixture = Fixture::migrated();
    fixture.run(&["init"]).assert_code(0);
    fixture.insert("1", "OrderPlaced", "{}");
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    let output = fixture
        .command(&["relay", "--config", "postrider.toml", "--drain", "--json"])
        .env("POSTRIDER_PIPELINE__ORDERS__SINK__URL", to)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "{\"pipelines\":[{\"name\":\"orders\",\"delivered\":1,\"parked\":0,\"deferred\":0,\"queued\":0,\"error\":null}]}\n"
    );
    assert_eq!(fixture.lines("out.jsonl").len(), 1);
}

#[test]
fn init_does_not_overwrite() {
    let fixture = Fixture::new();
    fixture.write("postrider.toml", "mine");
    fixture
        .run(&["init"])
        .assert_code(1)
        .assert_talk(&["error: postrider.toml already exists", "  fix: choose another --path"]);
    assert_eq!(fixture.read("postrider.toml"), "mine");
    fixture.run(&["init", "--force"]).assert_code(0);
    assert!(fixture.read("postrider.toml").contains("[source]"));
}

#[test]
fn migrate_prints_sql_and_can_be_repeated() {
    let fixture = Fixture::new();
    let printed = fixture.run(&["migrate", "--from", "sqlite://app.db", "--print"]).assert_code(0);
    assert!(printed.stdout.contains("CREATE TABLE \"outbox\""), "{}", printed.stdout);
    assert!(!fixture.path("app.db").exists());
    let again = ["migrate", "--from", "sqlite://app.db", "--table", "events"];
    fixture.run(&again).assert_code(0).assert_talk(&["applied 1 outbox"]);
    fixture.run(&again).assert_code(0).assert_talk(&["up to date"]);
}

#[test]
fn migrate_takes_database_and_table_from_a_file() {
    let fixture = Fixture::new();
    fixture.run(&["init"]).assert_code(0);
    let text = fixture.read("postrider.toml").replace("\"outbox\"", "\"events\"");
    fixture.write("postrider.toml", text);
    let migrate = ["migrate", "--config", "postrider.toml"];
    fixture
        .run(&migrate)
        .assert_code(0)
        .assert_talk(&["events is ready\nnext: postrider relay --config postrider.toml\n"]);
    fixture.run(&["relay", "--config", "postrider.toml", "--drain"]).assert_code(0);
    let both = [&migrate[..], &["--from", "sqlite://app.db"]].concat();
    fixture.run(&both).assert_code(2);
}

#[test]
fn a_variable_stands_in_for_from() {
    let fixture = Fixture::new();
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    let run = |args: &[&str]| {
        let output = fixture.command(args).env("POSTRIDER_SOURCE__URL", "sqlite://app.db").output();
        support::Ran::new(args, output.unwrap())
    };
    run(&["migrate"]).assert_code(0);
    fixture.insert("1", "OrderPlaced", "{}");
    run(&["relay", "--to", &to, "--drain"]).assert_code(0).assert_talk(&["delivered 1 event"]);
    run(&["status"]).assert_code(0);
    run(&["dlq", "list"]).assert_code(0);
    // What is given wins over it.
    run(&["status", "--from", "sqlite://none.db"]).assert_code(3);
    run(&["status", "--table", "events"])
        .assert_code(3)
        .assert_talk(&["`postrider migrate --from sqlite:app.db --table events`"]);
}

#[test]
fn completions_are_printed() {
    let fixture = Fixture::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = fixture.run(&["completions", shell]).assert_code(0);
        assert!(ran.stdout.contains("postrider"), "{shell}");
    }
}
