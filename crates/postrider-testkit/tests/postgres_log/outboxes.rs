//! Outboxes of all kinds: several pipelines, several outboxes, partitions, other encodings, and
//! tables of other types. What the log has is what the table has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postrider::schema::postgres::Layout;
use postrider_relay::source::{BatchLimit, Record, SourceErrorKind};
use postrider_relay::sources::{Mode, Progress, SourceSpec};
use postrider_testkit::chaos::{Bank, DEADLINE, Running, Target, cdc, spec, until};
use tokio::time::sleep;

use crate::{Line, Reader, SLOTS, STREAMS, options, stubborn};

/// Each has a slot of its own, and they begin at the same time.
#[tokio::test]
async fn pipelines_share_a_publication() {
    let bank = Bank::fresh().await;
    let names = ["one", "two", "three", "four"];
    let start = async |name: &str| {
        let spec = SourceSpec { pipeline: name.to_owned(), ..cdc(bank.url()) };
        let target = Target::start().await;
        let relay = Running::start_lasting(&spec, &target, options()).await;
        (target, relay)
    };
    let lines = futures_util::future::join_all(names.map(start)).await;
    until("all read the log", || async {
        for (_, relay) in &lines {
            assert!(!relay.has_ended(), "a pipeline has ended");
        }
        bank.number(STREAMS).await == 4
    })
    .await;
    let writing = stubborn().start(&bank);
    sleep(Duration::from_millis(300)).await;
    bank.run(
        "DO $$ BEGIN EXECUTE (SELECT 'DROP PUBLICATION ' || pubname FROM pg_publication); END $$",
    )
    .await;
    sleep(Duration::from_millis(300)).await;
    writing.stop().await;
    for (target, _) in &lines {
        bank.check(target, 8 * options().window.events_max).await;
    }
    bank.change_often(1, 5).await;
    until("all read the log again", || async { bank.number(STREAMS).await == 4 }).await;
    for (target, relay) in lines {
        bank.check(&target, 8 * options().window.events_max).await;
        relay.stop().await;
    }
    assert_eq!(bank.number(SLOTS).await, 4);
    assert_eq!(bank.number("SELECT count(*) FROM pg_publication").await, 1);
}

/// F65: two tenants in one database, with pipelines of the same name.
#[tokio::test]
async fn two_schemas_have_nothing_to_do_with_each_other() {
    let other = Bank::fresh().await;
    other.run("CREATE SCHEMA one; CREATE SCHEMA \"Two-2\"").await;
    let mut lines = Vec::new();
    for schema in ["one", "%22Two-2%22"] {
        let url = format!("{}?options=-csearch_path%3D{schema}", other.url());
        let bank = Arc::new(Bank::open(url.clone()).await);
        let (target, spec) = (Target::start().await, cdc(&url));
        let relay = Running::start_lasting(&spec, &target, options()).await;
        lines.push(Line { bank, target, spec, relay });
    }
    until("both read the log", || async { other.number(STREAMS).await == 2 }).await;
    let message = "DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('change'::regproc),
         'outbox_publish(', 'outbox_publish_message('); END $do$";
    for _ in 0..2 {
        let writing: Vec<_> = lines.iter().map(|line| stubborn().start(&line.bank)).collect();
        sleep(Duration::from_millis(500)).await;
        for writing in writing {
            writing.stop().await;
        }
        for line in &lines {
            assert!(line.bank.number("SELECT count(*) FROM facts").await > 0);
            line.bank.check(&line.target, 0).await;
            line.bank.run(message).await;
        }
    }
    assert_eq!(other.number(SLOTS).await, 2);
    for line in lines {
        line.relay.stop().await;
    }
}

/// Partitions come and go.
#[tokio::test]
async fn the_log_of_partitions_is_that_of_their_table() {
    let width = "1d".parse().unwrap();
    let bank = Bank::fresh_as(Layout::Partitioned { width }).await;
    let mut line = Line::start(&bank).await;
    let writing = stubborn().start(&bank);
    sleep(Duration::from_millis(300)).await;
    bank.run(
        "CREATE TABLE far PARTITION OF outbox FOR VALUES FROM ('2090-01-01') TO ('2090-01-02');
         INSERT INTO facts VALUES (900000, 90, 1);
         INSERT INTO outbox (created_at, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('2090-01-01 12:00:00Z', 'Account', '90', 'AccountChanged', '{\"event\": 900000}')",
    )
    .await;
    line.target.until_arrived(&[900_000]).await;
    line = line.stopped(async |bank| drop(bank.change_often(1, 5).await)).await;
    bank.until_settled().await;
    bank.run("ALTER TABLE outbox DETACH PARTITION far; DROP TABLE far").await;
    sleep(Duration::from_millis(300)).await;
    writing.stop().await;
    line.finish().await;
}

/// Texts are those of the database, whatever its encoding.
#[tokio::test]
async fn another_encoding_changes_nothing() {
    let bank = Bank::fresh_in("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0").await;
    let same = both_ways(
        &bank,
        BTreeMap::new(),
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, topic, headers, payload)
         VALUES ('Zürich', 'ä', 'ö', 'ü', '{\"ß\": \"é\"}', convert_to('\"ñ\"', 'UTF8'));
         SELECT outbox_publish('Zürich', 'ä', 'ö', '{\"x\": \"ñ\"}'::jsonb, headers => '{\"ß\": \"é\"}')",
    )
    .await;
    assert_eq!(same.len(), 2);
    assert!(same[0].contains("Zürich"), "{same:?}");
}

/// Columns of other names and types.
#[tokio::test]
async fn other_types_are_read_as_from_the_table() {
    let bank = Bank::fresh().await;
    bank.run(
        "DROP TABLE outbox CASCADE;
         CREATE DOMAIN short AS varchar(50) CHECK (value <> '');
         CREATE DOMAIN number AS smallint;
         CREATE TYPE kind AS ENUM ('Opened', 'Closed');
         CREATE TABLE outbox (\"Id\" integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
             type short NOT NULL, code char(10) NOT NULL, kind kind NOT NULL, body json,
             version number NOT NULL DEFAULT 3, at timestamp NOT NULL DEFAULT '2024-05-06 07:08:09',
             more text, \"Topic\" name, xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
    )
    .await;
    let columns = [
        ("seq", "Id"),
        ("id", "Id"),
        ("aggregate_type", "type"),
        ("aggregate_id", "code"),
        ("event_type", "kind"),
        ("payload", "body"),
        ("event_version", "version"),
        ("occurred_at", "at"),
        ("headers", "more"),
        ("topic", "Topic"),
    ];
    let columns = columns.map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned()));
    let same = both_ways(
        &bank,
        BTreeMap::from(columns),
        "INSERT INTO outbox (type, code, kind, body, more, \"Topic\") VALUES
             ('Account', 'a', 'Opened', '{\"a\" : 1}', '{\"b\": \"c\"}', 'topic'),
             ('Account', '12', 'Closed', '[1]', '{}', NULL),
             ('Account', '12', 'Closed', NULL, '{}', NULL),
             ('Account', '12', 'Closed', '[1]', 'x', NULL)",
    )
    .await;
    assert_eq!(same.len(), 4);
}

/// The log does not have columns that the server computes, and an event without them is another
/// one.
#[tokio::test]
async fn generated_columns_are_refused() {
    let bank = Bank::fresh().await;
    bank.run(
        "ALTER TABLE outbox ADD COLUMN unused text GENERATED ALWAYS AS ('x') STORED;
         ALTER TABLE outbox DROP COLUMN topic;
         ALTER TABLE outbox ADD COLUMN topic text
             GENERATED ALWAYS AS ('events.' || aggregate_type) STORED",
    )
    .await;
    let refused = Reader::connect(&cdc(bank.url())).await.err().expect("it is refused");
    assert_eq!(refused.kind, SourceErrorKind::Misconfigured, "{}", refused.details());
    assert!(refused.message.ends_with(": topic"), "{}", refused.details());
    // Somebody may make it one later.
    bank.run("ALTER TABLE outbox ALTER topic DROP EXPRESSION").await;
    let reader = Reader::start(&bank, &cdc(bank.url())).await;
    bank.run(
        "ALTER TABLE outbox DROP COLUMN topic;
         ALTER TABLE outbox ADD COLUMN topic text
             GENERATED ALWAYS AS ('events.' || aggregate_type) STORED;
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('Account', 'a', 'Opened', '{}')",
    )
    .await;
    let limit = BatchLimit { events: 10, bytes: 1 << 20, wait: DEADLINE };
    let lost = reader.source.next_batch(limit).await.unwrap_err();
    assert_eq!(lost.kind, SourceErrorKind::Lost, "{}", lost.details());
}

/// Events as they are read by polling, which are the same as those from the log.
async fn both_ways(
    bank: &Bank,
    columns: BTreeMap<String, String>,
    statements: &str,
) -> Vec<String> {
    let cdc = SourceSpec { columns: columns.clone(), pipeline: "log".into(), ..cdc(bank.url()) };
    let polled = SourceSpec {
        columns,
        mode: Mode::Poll,
        pipeline: "table".into(),
        ..spec(bank.url(), Progress::Cursor)
    };
    let polled = Reader::connect(&polled).await.unwrap();
    let logged = Reader::connect(&cdc).await.unwrap();
    logged.get_to_log(bank).await;
    bank.run(statements).await;
    let mut records = [Vec::new(), Vec::new()];
    for (reader, records) in [&polled, &logged].into_iter().zip(&mut records) {
        loop {
            let batch = reader.batch(1000).await;
            if batch.is_empty() && !records.is_empty() {
                break;
            }
            records.extend(batch);
        }
    }
    let shown = |records: &[Record]| -> Vec<String> {
        records.iter().map(|record| format!("{:?}", record.event)).collect()
    };
    let [polled, logged] = records.map(|records| shown(&records));
    assert_eq!(logged, polled);
    polled
}
