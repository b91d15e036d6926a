//! What happens to slots and publications, by the hands of others and by limits: the table is
//! read instead, and then the log again.

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::source::SourceErrorKind;
use postrider_relay::sources::SourceSpec;
use postrider_testkit::chaos::{Bank, cdc, until};
use postrider_testkit::servers::postgres::{Options, Server};
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::sleep;

use crate::{Line, Reader, SLOTS, again, slot_name, stubborn, until_streaming, write_elsewhere};

/// What somebody does, in two steps. `{slot}` and `{publication}` stand for their names.
type Harm = (&'static str, [&'static str; 2]);

const NOTHING: &str = "SELECT";
const DROP_SLOT: &str = "SELECT pg_drop_replication_slot('{slot}')";

const TO_SLOTS: [Harm; 6] = [
    ("dropped", [DROP_SLOT, NOTHING]),
    (
        "made anew at once",
        [
            "SELECT pg_drop_replication_slot('{slot}');
             SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
            NOTHING,
        ],
    ),
    (
        "made anew later",
        [DROP_SLOT, "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"],
    ),
    (
        "made anew for others",
        [DROP_SLOT, "SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"],
    ),
    (
        "read",
        [
            "SELECT count(*) FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL,
                 'proto_version', '1', 'publication_names', '{publication}')",
            NOTHING,
        ],
    ),
    ("moved", [NOTHING, "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"]),
];

const TO_PUBLICATIONS: [Harm; 5] = [
    ("dropped", ["DROP PUBLICATION {publication}", NOTHING]),
    (
        "made anew",
        [
            "DROP PUBLICATION {publication}",
            "CREATE PUBLICATION {publication} FOR TABLE outbox
                 WITH (publish = 'insert', publish_via_partition_root = true)",
        ],
    ),
    (
        "without the table for a while",
        [
            "ALTER PUBLICATION {publication} DROP TABLE outbox",
            "ALTER PUBLICATION {publication} ADD TABLE outbox",
        ],
    ),
    (
        "without inserts for a while",
        [
            "ALTER PUBLICATION {publication} SET (publish = 'update')",
            "ALTER PUBLICATION {publication} SET (publish = 'insert')",
        ],
    ),
    (
        "of half of the table",
        ["ALTER PUBLICATION {publication} SET TABLE outbox WHERE (seq > 1000000)", NOTHING],
    ),
];

/// The names of slot and publication in place of what stands for them.
async fn named(bank: &Bank, step: &str) -> String {
    let publication = bank.text("SELECT pubname::text FROM pg_publication").await;
    let step = step.replace("{slot}", &slot_name(bank).await);
    step.replace("{publication}", &publication.expect("there is a publication"))
}

/// F33: while no relay runs.
async fn is_healed_after_a_stop(steps: [&str; 2]) {
    let bank = Bank::fresh().await;
    let line = Line::start(&bank).await;
    bank.change_often(1, 10).await;
    bank.check(&line.target, 0).await;
    let [first, second] = [named(&bank, steps[0]).await, named(&bank, steps[1]).await];
    let meanwhile = async |bank: &Bank| {
        bank.change_often(2, 5).await;
        bank.run(&first).await;
        bank.change_often(3, 5).await;
        bank.run(&second).await;
        bank.change_often(4, 5).await;
    };
    let line = line.stopped(meanwhile).await;
    bank.check(&line.target, 0).await;
    until_streaming(&bank).await;
    assert_eq!(bank.number(SLOTS).await, 1);
    line.finish().await;
}

#[tokio::test]
async fn a_slot_that_others_have_had_is_healed() {
    for (what, steps) in TO_SLOTS {
        println!("{what}:");
        is_healed_after_a_stop(steps).await;
    }
}

#[tokio::test]
async fn a_publication_that_others_have_had_is_healed() {
    for (what, steps) in TO_PUBLICATIONS {
        println!("{what}:");
        is_healed_after_a_stop(steps).await;
    }
}

/// F33: while a relay runs. Whoever reads the slot is ended first, and comes back at once.
#[tokio::test]
async fn a_slot_is_healed_while_it_is_read() {
    for (what, steps) in TO_SLOTS {
        println!("{what}:");
        let bank = Bank::fresh().await;
        let line = Line::start(&bank).await;
        let writing = stubborn().start(&bank);
        sleep(Duration::from_millis(300)).await;
        let client = bank.connect().await;
        let [first, second] = [named(&bank, steps[0]).await, named(&bank, steps[1]).await];
        for step in [first, second] {
            until("it is done", || async {
                let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
                     WHERE active_pid IS NOT NULL AND database = current_database()";
                client.batch_execute(end).await.unwrap();
                // It may have been made anew by the relay before.
                let done = client.batch_execute(&step).await;
                done.is_ok() || step.contains("create") && bank.number(SLOTS).await == 1
            })
            .await;
        }
        sleep(Duration::from_millis(300)).await;
        until_streaming(&bank).await;
        sleep(Duration::from_millis(300)).await;
        writing.stop().await;
        line.finish_after(3).await;
    }
}

/// F33: while a relay runs.
#[tokio::test]
async fn a_publication_is_healed_while_it_is_read() {
    for (what, steps) in TO_PUBLICATIONS {
        println!("{what}:");
        let bank = Bank::fresh().await;
        let line = Line::start(&bank).await;
        let writing = stubborn().start(&bank);
        sleep(Duration::from_millis(300)).await;
        let [first, second] = [named(&bank, steps[0]).await, named(&bank, steps[1]).await];
        for step in [first, second] {
            // The relay may have made it anew in between.
            let _ = bank.connect().await.batch_execute(&step).await;
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_millis(300)).await;
        until_streaming(&bank).await;
        writing.stop().await;
        line.finish_after(3).await;
    }
}

/// PostgreSQL 17 hands such slots to its standbys.
#[tokio::test]
async fn a_slot_is_made_for_failover_where_the_server_has_that() {
    let bank = Bank::fresh().await;
    let line = Line::start(&bank).await;
    // Before that it is no column.
    let failover = "SELECT (to_jsonb(s) ->> 'failover')::text FROM pg_replication_slots AS s
         WHERE s.database = current_database()";
    let has_that = bank.number("SELECT current_setting('server_version_num')::bigint").await;
    let expected = (has_that >= 170_000).then_some("true");
    assert_eq!(bank.text(failover).await.as_deref(), expected);
    line.finish().await;
}

/// A pipeline that has delivered something, and whose slot is looked after every second.
async fn looked_after() -> (Arc<Bank>, Line) {
    let bank = Bank::fresh().await;
    let spec = SourceSpec { lease: Duration::from_secs(3), ..cdc(bank.url()) };
    let line = Line::start_with(&bank, spec).await;
    bank.change_often(1, 5).await;
    bank.check(&line.target, 0).await;
    (bank, line)
}

/// F33: what is behind a gap in the log does not arrive before what is in the gap.
#[tokio::test]
async fn a_gap_in_the_publication_reorders_nothing() {
    for (what, steps) in TO_PUBLICATIONS {
        println!("{what}:");
        let (bank, line) = looked_after().await;
        let [first, second] = [named(&bank, steps[0]).await, named(&bank, steps[1]).await];
        for step in [first, second] {
            // The relay may have made it anew in between.
            let _ = bank.connect().await.batch_execute(&step).await;
            bank.change_often(1, 1).await;
        }
        // What was under way when a gap was noticed comes again.
        line.finish_after(2).await;
    }
}

/// F33: a gap in the log is noticed even if nothing comes that would be settled.
#[tokio::test]
async fn a_publication_is_healed_while_nothing_is_written() {
    for (what, [step, _]) in TO_PUBLICATIONS {
        println!("{what}:");
        let (bank, line) = looked_after().await;
        bank.run(&named(&bank, step).await).await;
        bank.change_often(2, 1).await;
        // What was under way when the gap was noticed comes again.
        line.finish_after(1).await;
    }
}

/// An operator may make it while the relay does: that is waited out.
#[tokio::test]
async fn a_publication_that_somebody_makes_is_waited_for() {
    let bank = Bank::fresh().await;
    let line = Line::start(&bank).await;
    let (_, [drop_it, make_it]) = TO_PUBLICATIONS[1];
    let [drop_it, make_it] = [named(&bank, drop_it).await, named(&bank, make_it).await];
    let Line { target, spec, relay, .. } = line;
    relay.stop().await;
    bank.run(&drop_it).await;
    let somebody = bank.connect().await;
    somebody.batch_execute(&format!("BEGIN; {make_it}")).await.unwrap();
    let connecting = tokio::spawn({
        let spec = spec.clone();
        async move { Reader::connect(&spec).await.err() }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until("the relay waits", || async { bank.number(waits).await == 1 }).await;
    somebody.batch_execute("COMMIT").await.unwrap();
    let error = connecting.await.unwrap().expect("it was there before");
    assert_eq!(error.kind, SourceErrorKind::Unavailable, "{}", error.details());
    let relay = again(&bank, &spec, &target).await;
    bank.change_often(1, 5).await;
    bank.check(&target, 0).await;
    relay.stop().await;
}

/// Two pipelines may find at the same time that there is no publication.
#[tokio::test]
async fn a_publication_is_made_once() {
    for _ in 0..5 {
        let bank = Bank::fresh().await;
        let pipeline = |pipeline: &str| SourceSpec { pipeline: pipeline.into(), ..cdc(bank.url()) };
        let specs = ["one", "two", "three", "four"].map(pipeline);
        let connected = futures_util::future::join_all(specs.iter().map(Reader::connect)).await;
        for reader in connected {
            reader.unwrap_or_else(|error| panic!("{}", error.details())).close().await;
        }
        assert_eq!(bank.number("SELECT count(*) FROM pg_publication").await, 1);
    }
}

/// F33: the server gives the slot up, because its log would become too large.
#[tokio::test]
async fn a_slot_that_the_server_gives_up_is_healed() {
    let settings = ["max_slot_wal_keep_size = 1MB", "min_wal_size = 32MB", "max_wal_size = 32MB"];
    let settings = settings.map(str::to_owned).to_vec();
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let line = Line::start(&bank).await;
    bank.change_often(1, 10).await;
    bank.check(&line.target, 0).await;
    line.target.behave(Behaviour::Away).await;
    bank.change_often(1, 100).await;
    let before = bank.number("SELECT (lsn - '0/0')::bigint FROM outbox_checkpoints").await;
    let client = server.connect().await;
    let is_gone = format!(
        "SELECT count(*) FROM outbox_checkpoints AS c LEFT JOIN pg_replication_slots AS s ON true
         WHERE (c.lsn - '0/0')::bigint IS DISTINCT FROM {before} OR s.wal_status IS NULL
           OR s.wal_status = 'lost'"
    );
    until("the slot is given up", || async {
        write_elsewhere(&client, 2).await;
        client.batch_execute("SELECT pg_switch_wal()").await.unwrap();
        client.batch_execute("CHECKPOINT").await.unwrap();
        bank.number(&is_gone).await == 1
    })
    .await;
    bank.change_often(2, 100).await;
    line.target.behave(Behaviour::Well).await;
    line.finish_after(1).await;
}

/// F33: the relay does so before, to spare the server.
#[tokio::test]
async fn a_slot_that_keeps_too_much_is_given_up_and_made_again() {
    let server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let lease = Duration::from_secs(3);
    let spec = SourceSpec { max_retained_wal: 8 << 20, lease, ..cdc(bank.url()) };
    let line = Line::start_with(&bank, spec).await;
    bank.change_often(1, 10).await;
    bank.check(&line.target, 0).await;
    line.target.behave(Behaviour::Away).await;
    bank.change_often(1, 100).await;
    let before = bank.number("SELECT (lsn - '0/0')::bigint FROM outbox_checkpoints").await;
    write_elsewhere(&server.connect().await, 20).await;
    let is_gone = format!(
        "SELECT count(*) FROM outbox_checkpoints
         WHERE (lsn - '0/0')::bigint IS DISTINCT FROM {before}"
    );
    until("the slot is given up", || async { bank.number(&is_gone).await == 1 }).await;
    let kept = "SELECT count(*) FROM pg_replication_slots
         WHERE pg_current_wal_lsn() - restart_lsn > (16 << 20)";
    until("the log is free", || async { bank.number(kept).await == 0 }).await;
    bank.change_often(2, 100).await;
    line.target.behave(Behaviour::Well).await;
    line.finish_after(1).await;
}
