//! Rows far over the limit, read by a relay that may not hold even one of them (G-07).

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::process::{Command, Stdio};

use support::postgres::Postgres;
use support::{Fixture, Ran, Running, wait_until};

/// What the process may have in memory, in bytes.
const LIMIT: u64 = 256 << 20;
/// What the payload of one row has.
const PAYLOAD: u64 = 300_000_000;

/// A command that is refused more memory than [`LIMIT`].
fn limited(fixture: &Fixture, args: &[&str]) -> Command {
    let program = fixture.command(args);
    let mut command = Command::new("prlimit");
    command.arg(format!("--data={LIMIT}")).arg(program.get_program()).args(program.get_args());
    command.current_dir(fixture.path("")).stdin(Stdio::null());
    command
}

fn relay(fixture: &Fixture, args: &[&str]) -> Ran {
    let args = [&["relay", "--to", "file:out.jsonl", "--drain"], args].concat();
    Ran::new(&args, limited(fixture, &args).output().unwrap())
}

/// The small event is in the file and the other one is parked.
fn assert_parked(fixture: &Fixture, from: &[&str]) {
    let lines = fixture.lines("out.jsonl");
    assert!(matches!(&lines[..], [line] if line.contains("\"Small\"")), "{lines:?}");
    let letters = fixture.run(&[&["dlq", "list"], from].concat()).assert_code(0);
    let expected = format!("payload has {PAYLOAD} bytes, the limit is 1048576");
    assert!(letters.stdout.contains(&expected), "{}", letters.stdout);
}

fn write(postgres: &Postgres) {
    postgres.execute(&format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('Order', '1', 'Large', convert_to(repeat('x', {PAYLOAD}), 'UTF8'));
         SELECT outbox_publish('Order', '2', 'Small', '{{}}')"
    ));
}

#[test]
fn polling_postgresql_holds_no_row_over_the_limit() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    write(&postgres);
    let from = ["--from", postgres.url.as_str()];
    relay(&postgres.fixture, &from).assert_code(0);
    assert_parked(&postgres.fixture, &from);
}

#[test]
fn the_log_is_read_without_holding_a_row_over_the_limit() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let Postgres { fixture, schema, url } = &postgres;
    let config = format!(
        "[source]\nurl = \"{url}\"\n[[pipeline]]\nname = \"{schema}\"\nmode = \"cdc\"\n\
         progress = \"cursor\"\nsink = {{ url = \"file:out.jsonl\" }}\n"
    );
    fixture.write("p.toml", config);
    let config = ["--config", "p.toml"];
    let mut command = limited(fixture, &[&["relay"][..], &config].concat());
    let mut relay =
        Running::new(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let session = postgres.session();
    wait_until("the log is read", || {
        let slots = format!(
            "SELECT slot_name::text FROM pg_replication_slots
             WHERE starts_with(slot_name, 'postrider_{schema}_') AND active"
        );
        !session.texts(&slots).is_empty()
    });
    write(&postgres);
    wait_until("the small event is there", || !fixture.lines("out.jsonl").is_empty());
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(0), "{}", relay.stderr());
    assert_parked(fixture, &config);
}

#[test]
fn sqlite_holds_no_row_over_the_limit() {
    let fixture = Fixture::migrated();
    let large = format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('01900000-0000-7000-8000-000000000900', 'Order', '1', 'Large', zeroblob({PAYLOAD}))"
    );
    fixture.database().execute(&large, []).unwrap();
    fixture.insert("2", "Small", "{}");
    let from = ["--from", "sqlite://app.db"];
    relay(&fixture, &from).assert_code(0);
    assert_parked(&fixture, &from);
}
