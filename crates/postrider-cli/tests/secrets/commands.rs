//! Every command, over an outbox with everything in it.

use std::collections::BTreeSet;

use crate::canary::{CONTENTS, SECRET, found, headers, payload};
use crate::support::Fixture;
use crate::support::postgres::{Postgres, server};
use crate::watch::{Watch, shows_contents};
use crate::webhooks::{echo, sink};

const DELIVERED: &str = "01900000-0000-7000-8000-000000000200";
const PARKED: &str = "01900000-0000-7000-8000-000000000422";
const WAITING: &str = "01900000-0000-7000-8000-000000000201";
const CONFIG: [&str; 2] = ["--config", "p.toml"];

/// What is run with `--config`.
const COMMANDS: &[&[&str]] = &[
    &["migrate"],
    &["migrate", "--print"],
    &["migrate", "roles"],
    &["migrate", "status"],
    &["migrate", "verify"],
    &["relay", "--drain"],
    &["status"],
    &["doctor"],
    &["check", "lag", "--warn", "1s", "--crit", "2s"],
    &["check", "dlq", "--warn", "1", "--crit", "2"],
    &["check", "slot", "--warn", "1GiB", "--crit", "2GiB"],
    &["dlq", "list"],
    &["dlq", "list", "--by", "error"],
    &["dlq", "show", PARKED],
    &["dlq", "export"],
    &["dlq", "retry", "--all", "--dry-run"],
    &["dlq", "discard", "--all", "--dry-run"],
    &["tail"],
    &["tail", "--payload"],
    &["show", DELIVERED],
    &["show", PARKED],
    &["show", PARKED, "--payload"],
    &["show", WAITING],
    &["keys", "blocked"],
    &["keys", "release", "Order/422", "--pipeline", "none"],
    &["pause", "--reason", "a test"],
    &["status"],
    &["resume"],
    &["replay", "--since", "1d", "--dry-run"],
    &["replay", "--since", "1d", "--yes"],
    &["reconcile", "--older-than", "1s"],
    &["verify"],
    &["audit", "--tables", "inbox", "--for", "1s"],
    &["bench", "--dry-run"],
    &["prune", "--keep", "1m", "--dry-run"],
    &["slot", "show"],
    &["dlq", "retry", "--all", "--yes"],
];
/// Those that know of no outbox.
const ELSEWHERE: [&str; 6] = ["completions", "demo", "explain", "help", "init", "man"];

/// What makes the events, for a database that takes it: one delivered, one parked, one behind it.
fn rows(payload_of: impl Fn(u16) -> String) -> String {
    let rows = [(DELIVERED, "200", 200), (PARKED, "422", 422), (WAITING, "422", 200)];
    let row = |(id, order, status): (&str, &str, u16)| {
        let (payload, headers) = (payload_of(status), headers());
        format!("('{id}', 'Order', '{order}', 'OrderPlaced', {payload}, '{headers}')")
    };
    format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES {}",
        rows.map(row).join(", ")
    )
}

fn config(source: &str, pipeline: &str, sink: &str) -> String {
    format!(
        "[source]\nurl = \"{source}\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [[pipeline]]\nname = \"{pipeline}\"\n[pipeline.retry]\nattempts = 1\n{sink}"
    )
}

/// Runs them all, and sees to it that those that are asked for contents show them.
fn run_all(watch: &Watch) {
    for command in COMMANDS {
        let ran = watch.run(&[*command, &CONFIG].concat());
        let shows = found(ran.stdout.as_bytes(), CONTENTS).is_some();
        assert_eq!(
            shows,
            shows_contents(command),
            "postrider {command:?} said\n{}{}",
            ran.stdout,
            ran.stderr
        );
    }
    let relay = watch.start(&[&["relay"], &CONFIG[..]].concat());
    watch.look_and_stop(relay, "an event was not published");
    watch.search_exports();
}

#[test]
fn every_command_is_searched() {
    let help = Fixture::new().run(&["--help"]).assert_code(0).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let listed: BTreeSet<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    let searched = COMMANDS.iter().map(|command| command[0]).chain(ELSEWHERE);
    assert_eq!(listed, searched.collect(), "a command is not in COMMANDS");
}

#[test]
fn nothing_of_postgresql_is_shown() {
    let postgres = Postgres::new();
    let Postgres { schema, .. } = &postgres;
    let role = format!("{schema}_relay");
    postgres.execute(&format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{SECRET}'"));
    let server = server();
    let address = server.rsplit('@').next().unwrap();
    let options = format!("options=-csearch_path%3D{schema}");
    let urls = [
        format!("postgres://{role}:{SECRET}@{address}?{options}"),
        format!("postgres://{role}@{address}?{options}&password={SECRET}"),
    ];
    let watch = Watch::new(Fixture::new());
    watch.run(&["migrate", "--from", &urls[0]]).assert_code(0);
    postgres.execute(&rows(|status| format!("convert_to('{}', 'UTF8')", payload(status))));
    watch.fixture.write("p.toml", config(&urls[1], schema, &sink(echo())));
    run_all(&watch);

    let file =
        format!("[pipeline.sink]\nurl = \"file://{}\"\n", watch.fixture.path("out").display());
    let log = config(&urls[0], &format!("{schema}\"\nmode = \"cdc"), &file);
    watch.fixture.write("p.toml", log);
    postgres.execute("DELETE FROM outbox_failures");
    for command in [&["relay", "--drain"][..], &["slot", "show"], &["doctor"], &["status"]] {
        watch.run(&[command, &CONFIG].concat()).assert_code(0);
    }
    watch.search_exports();

    for wrong in [
        format!("postgres://{role}:{SECRET}{SECRET}@{address}?{options}"),
        format!("postgres://nobody:{SECRET}@{address}?{options}&application_name={SECRET}"),
        format!("postgres://{role}:{SECRET}@no-such-host.invalid/shop?{options}"),
        format!("postgres://{role}:{SECRET}@127.0.0.1:1/shop?sslmode=require"),
    ] {
        for command in [&["status"][..], &["doctor"], &["migrate"], &["tail"]] {
            let ran = watch.run_once(&[command, &["--from", &wrong]].concat());
            assert_ne!(ran.code, 0, "{}", ran.stdout);
        }
    }
}

/// A trigger of the application's own says what it sees, and constraints quote rows.
#[test]
fn what_postgresql_says_of_a_row_is_not_shown() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    postgres.execute(&rows(|status| format!("convert_to('{}', 'UTF8')", payload(status))));
    let Postgres { schema, url, .. } = &postgres;
    let watch = Watch::new(Fixture::new());
    watch.fixture.write("p.toml", config(url, schema, &sink(echo())));
    for (make, drop) in [
        (
            "ALTER TABLE outbox_failures ADD CONSTRAINT no CHECK (event_type <> 'OrderPlaced')",
            "ALTER TABLE outbox_failures DROP CONSTRAINT no",
        ),
        (
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE EXCEPTION 'no: %', convert_from(NEW.payload, 'UTF8')
                 USING DETAIL = NEW.headers, HINT = NEW.headers; END $$;
             CREATE TRIGGER no BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION no()",
            "DROP FUNCTION no CASCADE",
        ),
    ] {
        postgres.execute(make);
        let ran = watch.run(&["relay", "--config", "p.toml", "--drain"]);
        assert_ne!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stderr.contains("SQLSTATE"), "{}", ran.stderr);
        postgres.execute(drop);
    }
    watch.search_exports();
}

#[test]
fn nothing_of_sqlite_is_shown() {
    let watch = Watch::new(Fixture::migrated());
    let rows = rows(|status| format!("CAST('{}' AS BLOB)", payload(status)));
    watch.fixture.database().execute_batch(&rows).unwrap();
    watch.fixture.write("p.toml", config("sqlite:app.db", "hooks", &sink(echo())));
    run_all(&watch);
}

/// Where contents are the data, they go to stdout, and nowhere else.
#[test]
fn contents_go_where_they_are_sent() {
    let watch = Watch::new(Fixture::migrated());
    let rows = rows(|status| format!("CAST('{}' AS BLOB)", payload(status)));
    watch.fixture.database().execute_batch(&rows).unwrap();
    let args = ["--from", "sqlite:app.db", "--to", "stdout:"];
    let ran = watch.run(&[&["relay"], &args[..], &["--drain"]].concat()).assert_code(0);
    assert!(found(ran.stdout.as_bytes(), CONTENTS).is_some(), "{}", ran.stdout);
    watch.search_exports();
}
