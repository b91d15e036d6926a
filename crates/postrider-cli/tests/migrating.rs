//! Making the tables, looking at them, and finding out that they have changed.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use support::postgres::Postgres;
use support::{Fixture, Ran};

const SQLITE: [&str; 2] = ["--from", "sqlite://app.db"];

#[test]
fn postgres_is_migrated_once() {
    let postgres = Postgres::new();
    let before = postgres.migrate(&["status", "--json"]).assert_code(0);
    assert_eq!(
        before.stdout,
        "{\"table\":\"outbox\",\"layout\":null,\"applied\":[],\"pending\":[{\"version\":1,\"name\":\"outbox\"},{\"version\":2,\"name\":\"trouble\"},{\"version\":3,\"name\":\"matching\"},{\"version\":4,\"name\":\"replicated\"},{\"version\":5,\"name\":\"rights\"}]}\n"
    );
    let talk = ["outbox, not there", "not yet"];
    let text = postgres.migrate(&["status"]).assert_code(0);
    assert!(talk.iter().all(|talk| text.stdout.contains(talk)), "{}", text.stdout);
    text.assert_talk(&["next: postrider migrate --from "]);
    postgres
        .migrate(&["verify"])
        .assert_code(6)
        .assert_talk(&["outbox is not as its migrations make it: 5 differences", "  fix: run `"]);

    let migrated = postgres.migrate(&["--json"]).assert_code(0);
    assert_eq!(
        migrated.stdout,
        "{\"table\":\"outbox\",\"applied\":[{\"version\":1,\"name\":\"outbox\"},{\"version\":2,\"name\":\"trouble\"},{\"version\":3,\"name\":\"matching\"},{\"version\":4,\"name\":\"replicated\"},{\"version\":5,\"name\":\"rights\"}]}\n"
    );
    postgres
        .migrate(&[])
        .assert_code(0)
        .assert_talk(&["outbox is up to date already\nnext: postrider relay --from "]);
    let after = postgres.migrate(&["status", "--json"]).assert_code(0);
    let start = r#"{"table":"outbox","layout":"plain","applied":[{"version":1,"name":"outbox","applied_at":"20"#;
    assert!(after.stdout.starts_with(start), "{}", after.stdout);
    assert!(after.stdout.ends_with("\"pending\":[]}\n"), "{}", after.stdout);
    assert!(!after.stderr.contains("next:"), "{}", after.stderr);
}

#[test]
fn drift_is_6_with_every_difference() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let clean = postgres.migrate(&["verify"]).assert_code(0);
    assert_eq!(clean.stdout, "");
    clean.assert_talk(&["outbox is as its migrations make it"]);
    let json = postgres.migrate(&["verify", "--json"]).assert_code(0);
    assert_eq!(json.stdout, "{\"table\":\"outbox\",\"differences\":[]}\n");

    postgres.execute("ALTER TABLE outbox DROP topic; ALTER TABLE outbox ADD tenant text");
    let drifted = postgres.migrate(&["verify"]).assert_code(6);
    assert_eq!(
        drifted.stdout,
        "column outbox.topic is missing\ncolumn outbox.tenant should not be there\n"
    );
    drifted.assert_talk(&[
        "error: outbox is not as its migrations make it: 2 differences",
        "  fix: undo what was changed by hand",
    ]);
    let json = postgres.migrate(&["verify", "--json"]).assert_code(6);
    assert_eq!(
        json.stdout,
        "{\"table\":\"outbox\",\"differences\":[{\"drift\":\"missing\",\"object\":\"column outbox.topic\",\"expected\":\"text\",\"found\":null},{\"drift\":\"extra\",\"object\":\"column outbox.tenant\",\"expected\":null,\"found\":\"text\"}]}\n"
    );
    assert!(json.stderr.contains("\"exit_code\":6"), "{}", json.stderr);
}

#[test]
fn the_printed_script_does_the_same() {
    for layout in [[].as_slice(), &["--partition", "6h"]] {
        let postgres = Postgres::new();
        let printed = postgres.migrate(&[layout, &["--print"]].concat()).assert_code(0);
        postgres.execute(&printed.stdout);
        postgres.migrate(layout).assert_code(0).assert_talk(&["up to date"]);
        postgres.migrate(&["verify"]).assert_code(0);
    }
}

#[test]
fn an_outbox_may_be_in_partitions() {
    let postgres = Postgres::new();
    let partition = ["--partition", "1d"];
    postgres
        .migrate(&partition)
        .assert_code(0)
        .assert_talk(&["outbox is ready\na relay adds partitions ahead"]);
    let status = postgres.migrate(&["status"]).assert_code(0);
    assert!(status.stdout.starts_with("outbox, partitioned 1d\n"), "{}", status.stdout);
    postgres.migrate(&[]).assert_code(0);
    postgres
        .migrate(&["--partition", "6h"])
        .assert_code(3)
        .assert_talk(&["outbox is partitioned 1d and cannot be made partitioned 6h"]);
    postgres
        .migrate(&["--partition", "5m"])
        .assert_code(2)
        .assert_talk(&["\"5m\" is not a width for partitions; write 1h to 24h, or 1d to 366d"]);
    Fixture::new()
        .run(&[&["migrate"], &partition[..], &SQLITE].concat())
        .assert_code(3)
        .assert_talk(&["SQLite has no partitions"]);
}

#[test]
fn roles_are_printed() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let prefix = &postgres.schema;
    let roles = postgres.migrate(&["roles", "--prefix", prefix]).assert_code(0);
    assert!(roles.stdout.contains(&format!("TO \"{prefix}_writer\";")), "{}", roles.stdout);
    postgres.execute(&roles.stdout);
    let json = postgres.migrate(&["roles", "--json"]).assert_code(0);
    assert!(json.stdout.starts_with("{\"table\":\"outbox\",\"sql\":\"-- Roles"), "{}", json.stdout);
    assert!(json.stdout.contains("postrider_reader"), "{}", json.stdout);
    postgres.migrate(&["roles", "--prefix", "pg_x"]).assert_code(2);
    Fixture::new()
        .run(&[&["migrate", "roles"], &SQLITE[..]].concat())
        .assert_code(3)
        .assert_talk(&["SQLite has no roles"]);
}

#[test]
fn a_table_that_is_there_stays() {
    let postgres = Postgres::new();
    postgres.execute("CREATE TABLE events (id bigint)");
    let table = ["--table", "events"];
    postgres.migrate(&table).assert_code(3).assert_talk(&[
        "error: migration 1 of events failed; nothing was changed",
        "  why: relation \"events\" already exists",
        "relay the table that is there with --existing",
    ]);
    postgres
        .migrate(&["--table", "none", "--existing"])
        .assert_code(3)
        .assert_talk(&["there is no table none"]);
    postgres.migrate(&[&table[..], &["--existing"]].concat()).assert_code(0);
    postgres.migrate(&[&["verify"], &table[..]].concat()).assert_code(0);
    postgres.migrate(&["--existing", "--partition", "1d"]).assert_code(2);
}

#[test]
fn columns_of_a_file_say_that_the_table_is_there() {
    let postgres = Postgres::new();
    postgres.execute("CREATE TABLE outbox (number bigint)");
    let fixture = &postgres.fixture;
    let url = &postgres.url;
    fixture.write(
        "p.toml",
        format!(
            "[source]\nurl = \"{url}\"\n[source.columns]\nseq = \"number\"\n\
             [[pipeline]]\nname = \"a\"\n[pipeline.sink]\nurl = \"stdout:\"\n"
        ),
    );
    fixture.run(&["migrate", "--config", "p.toml"]).assert_code(0);
    let status = fixture.run(&["migrate", "status", "--config", "p.toml"]).assert_code(0);
    assert!(status.stdout.starts_with("outbox, existing\n"), "{}", status.stdout);
}

#[test]
fn sqlite_is_looked_at_too() {
    let fixture = Fixture::new();
    let run = |command: &[&str]| fixture.run(&[&["migrate"], command, &SQLITE].concat());
    for command in ["status", "verify"] {
        run(&[command]).assert_code(3).assert_talk(&["app.db does not exist"]);
    }
    assert!(!fixture.path("app.db").exists());
    run(&[]).assert_code(0);
    let status = run(&["status"]).assert_code(0);
    assert!(status.stdout.starts_with("outbox, plain\n"), "{}", status.stdout);
    run(&["verify"]).assert_code(0).assert_talk(&["outbox is as its migrations make it"]);
    fixture.database().execute_batch("DROP INDEX outbox_unpublished").unwrap();
    let drifted = run(&["verify"]).assert_code(6);
    assert_eq!(drifted.stdout, "index outbox_unpublished is missing\n");
}

#[test]
fn what_is_asked_for_stands_first() {
    let fixture = Fixture::migrated();
    fixture.run(&[&["migrate", "--print", "status"], &SQLITE[..]].concat()).assert_code(2);
    fixture.run(&["migrate", "status"]).assert_code(2);
    fixture.run(&[&["migrate", "status", "--print"], &SQLITE[..]].concat()).assert_code(2);
}

#[test]
fn a_relay_that_does_not_prune_says_nothing_of_pruning() {
    let postgres = Postgres::new();
    postgres.migrate(&["--partition", "1d"]).assert_code(0);
    postgres.execute("DROP FUNCTION outbox_add_partitions");
    let relay = postgres.fixture.start(&["relay", "--from", &postgres.url, "--to", "stdout:"]);
    relay.wait_for("the outbox could not be looked after; trying again");
    relay.wait_for("cannot create partitions ahead");
    assert!(!relay.stderr().contains("pruned"), "{}", relay.stderr());
}

#[test]
fn a_role_that_may_not_read_is_told_once() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let prefix = &postgres.schema;
    let roles = postgres.migrate(&["roles", "--prefix", prefix]).assert_code(0);
    let user = format!("{prefix}_user");
    postgres.execute(&format!(
        "{} CREATE ROLE {user} LOGIN PASSWORD 'x'; GRANT \"{prefix}_writer\" TO {user}",
        roles.stdout
    ));
    let (_, address) = postgres.url.split_once('@').unwrap();
    let url = format!("postgres://{user}:x@{address}");
    for command in [
        ["relay", "--to", "stdout:", "--drain"].as_slice(),
        &["status"],
        &["prune", "--keep", "7d", "--dry-run"],
    ] {
        let ran = postgres.fixture.run(&[command, &["--from", &url]].concat()).assert_code(5);
        let fix = format!("  fix: run GRANT SELECT ON {prefix}.outbox TO {user}, or connect as");
        let what = format!("error: the role {user} may not read outbox");
        let ran = ran.assert_talk(&[&what, &fix, "`postrider migrate roles`"]);
        assert_eq!(ran.stderr.matches("may not read").count(), 1, "{}", ran.stderr);
    }
}

#[test]
fn commands_to_copy_hide_no_part_of_the_url() {
    let postgres = Postgres::new();
    let next = "relay --from \"$POSTRIDER_SOURCE__URL\" --to stdout:";
    let empty = postgres.fixture.run(&["status", "--from", &postgres.url]).assert_code(3);
    empty.assert_talk(&["run `postrider migrate --from \"$POSTRIDER_SOURCE__URL\"`"]);
    let migrated = postgres.migrate(&[]).assert_code(0).assert_talk(&[next]);
    assert!(!migrated.stderr.contains("***"), "{}", migrated.stderr);
}

/// A relay that misses a table says to migrate: that must not end with "up to date already".
#[test]
fn a_table_that_is_gone_is_named_with_the_sql_that_makes_it() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let is_anew = |ran: Ran, gone: &[&str]| {
        let (_, sql) = ran.stderr.split_once("by this SQL:\n").expect("the SQL is printed");
        let sql = sql.split_once("  more: ").map(|(sql, _)| sql.to_owned());
        ran.assert_code(6).assert_talk(gone);
        sql.expect("it ends with the page about it")
    };
    postgres.execute("DROP TABLE outbox_pauses, outbox_leases, outbox_failures");
    let sql = is_anew(
        postgres.migrate(&[]),
        &["outbox_failures, outbox_leases, outbox_pauses: gone, although the migration"],
    );
    postgres.execute(&sql);
    postgres.migrate(&["verify"]).assert_code(0);
    postgres.migrate(&[]).assert_code(0).assert_talk(&["is up to date already"]);

    let fixture = Fixture::migrated();
    let migrate = || fixture.run(&["migrate", SQLITE[0], SQLITE[1]]);
    fixture.database().execute_batch("DROP TABLE outbox_pauses").unwrap();
    fixture
        .run(&["relay", SQLITE[0], SQLITE[1], "--to", "stdout:", "--drain"])
        .assert_code(3)
        .assert_talk(&["has no table outbox_pauses", "fix: run `postrider migrate --from "]);
    let sql = is_anew(migrate(), &["outbox_pauses: gone, although the migration"]);
    fixture.database().execute_batch(&sql).unwrap();
    migrate().assert_code(0);
    fixture.run(&["migrate", "verify", SQLITE[0], SQLITE[1]]).assert_code(0);
}
