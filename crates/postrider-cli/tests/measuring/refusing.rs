//! What is refused before anything is written.

use std::net::TcpListener;

use crate::support::http::accept_all;
use crate::support::postgres::{Session, server};
use crate::{Database, Fixture, files, json, variable};

#[test]
fn a_role_that_may_not_make_a_schema_is_told_what_to_grant() {
    let database = Database::new();
    let role = format!("{}_reader", database.name);
    Session::new(&server()).execute(&format!("CREATE ROLE {role} LOGIN PASSWORD 'canary'"));
    let host = database.url.rsplit_once('@').unwrap().1;
    let before = database.catalog();
    for (args, fixes) in [
        (&[][..], vec![format!("GRANT CREATE ON DATABASE {} TO {role}", database.name)]),
        (&["--mode", "cdc"], vec![format!("ALTER ROLE {role} REPLICATION")]),
    ] {
        let url = format!("postgres://{role}:canary@{host}");
        let ran = database.fixture.run(&[&["bench", "--from", &url][..], args].concat());
        let ran = ran.assert_code(5);
        let ran = fixes.iter().fold(ran, |ran, fix| ran.assert_talk(&[fix]));
        assert!(!ran.stderr.contains("canary"), "{}", ran.stderr);
    }
    assert_eq!(database.catalog(), before);
    Session::new(&server()).execute(&format!("DROP ROLE {role}"));
}

#[test]
fn a_dry_run_says_what_it_would_do_and_does_nothing() {
    let database = Database::new();
    let before = database.catalog();
    let args = ["bench", "--from", &database.url, "--to", "redis://127.0.0.1:1", "--dry-run"];
    let ran = database.fixture.run(&args).assert_code(0);
    ran.assert_talk(&[
        &format!("database {}", database.name),
        "the schema postrider_bench_",
        "the stream postrider-bench-",
        "up to 20 000 events of 200 bytes: about 12.4 MiB in the database",
        "up to 30s",
        "nothing was changed",
    ]);
    let plan = json(&database.fixture.run(&[&args[..], &["--json"]].concat()).stdout);
    assert_eq!((&plan["rows"], &plan["seconds"]), (&20_000.into(), &30.into()));
    assert_eq!(database.catalog(), before);
}

#[test]
fn another_machine_is_asked_about() {
    let database = Database::new();
    let before = database.catalog();
    let args = ["bench", "--from", &database.url, "--to", "kafka://192.0.2.1:9092"];
    let ran = database.fixture.run(&args).assert_code(2);
    ran.assert_talk(&["this is not on this machine", "nobody can be asked here", "add --yes"]);
    assert_eq!(database.catalog(), before);
}

#[test]
fn an_endpoint_gets_events_only_if_that_is_said() {
    let fixture = Fixture::migrated();
    let before = files(&fixture);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/events", listener.local_addr().unwrap());
    accept_all(listener);
    let args = ["bench", "--from", "sqlite:app.db", "--to", &url, "--allow-private"];
    let args = [&args[..], &["--rows", "100", "--for", "60s", "--json"]].concat();
    let ran = fixture.run(&args).assert_code(6);
    ran.assert_talk(&["cannot be removed again", "--yes-send"]);
    let ran = fixture.run(&[&args[..], &["--yes-send"]].concat()).assert_code(0);
    assert_eq!(json(&ran.stdout)["publishing"]["drained_events"], 40);
    assert_eq!(files(&fixture), before);
    let ran = fixture.run(&["bench", "--from", "sqlite:app.db", "--to", "stdout:"]).assert_code(2);
    ran.assert_talk(&["stdout cannot be measured"]);
}

#[test]
fn a_pooler_is_refused_before_a_table_is_made() {
    let fixture = Fixture::new();
    let schemas = || {
        let sql =
            "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname, 'postrider_bench')";
        Session::new(&server()).texts(sql)
    };
    let before = schemas();
    let args = ["bench", "--from", &variable("POSTRIDER_TEST_PGBOUNCER"), "--rows", "100"];
    let ran = fixture.run(&args);
    assert!(ran.code != 0, "{}", ran.stderr);
    ran.assert_talk(&["give the URL of the server itself", "everything that was made is removed"]);
    assert_eq!(schemas(), before);
}

#[test]
fn limits_are_within_limits() {
    let fixture = Fixture::migrated();
    for wrong in [["--rows", "10"], ["--for", "1h"], ["--payload-bytes", "1"], ["--keys", "0"]] {
        let args = [&["bench", "--from", "sqlite:app.db"], &wrong[..]].concat();
        fixture.run(&args).assert_code(2).assert_talk(&[wrong[0]]);
    }
}
