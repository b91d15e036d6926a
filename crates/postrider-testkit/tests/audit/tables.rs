//! Tables and outboxes of all kinds.

use std::collections::BTreeMap;

use postrider::schema::postgres::Layout;
use postrider::schema::{self, TableName};
use postrider_relay::audit::{Operation, Watch};
use postrider_testkit::servers::postgres::Database;

use crate::{EVENT, Shop, TABLES, begin_with, table, told, watch};

#[tokio::test]
async fn partitions_are_their_table() {
    let shop = Shop::fresh().await;
    shop.run(
        "CREATE TABLE visits (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
         CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (0) TO (10)",
    )
    .await;
    let transactions = [
        "INSERT INTO visits VALUES (1)",
        "INSERT INTO visits_1 VALUES (2)",
        "BEGIN; UPDATE visits SET id = 3 WHERE id = 2; DELETE FROM visits_1 WHERE id = 3; COMMIT",
        // One that is made later, too.
        "CREATE TABLE visits_2 PARTITION OF visits FOR VALUES FROM (10) TO (20)",
        "INSERT INTO visits_2 VALUES (12)",
        "TRUNCATE visits",
    ];
    let report = shop.found(&watch(&["visits"]), &transactions).await;
    let expected = [
        "3x no_event public.visits insert3",
        "1x no_event public.visits update1 delete1",
        "1x no_event public.visits truncate1",
    ];
    assert_eq!(told(&report), expected);
}

#[tokio::test]
async fn tables_that_inherit_are_their_parent() {
    let shop = Shop::fresh().await;
    shop.run("CREATE TABLE imports (PRIMARY KEY (id)) INHERITS (orders)").await;
    let report = shop.found(&watch(&["orders"]), &["INSERT INTO imports VALUES (1)"]).await;
    assert_eq!(told(&report), ["1x no_event public.orders insert1"]);
}

#[tokio::test]
async fn an_outbox_in_partitions_is_one() {
    let database = Database::fresh().await;
    let mut client = database.connect().await;
    let layout = Layout::Partitioned { width: "1d".parse().unwrap() };
    let outbox = TableName::default();
    schema::postgres::migrate(&mut client, &outbox, Some(layout)).await.unwrap();
    client.batch_execute(TABLES).await.unwrap();
    let shop = Shop { client, database };
    let paid = format!("BEGIN; INSERT INTO orders VALUES (1); {EVENT}; COMMIT");
    let mark = "UPDATE outbox SET published_at = now()";
    let report = shop.found(&watch(&["orders"]), &[&paid, EVENT, mark]).await;
    assert_eq!(told(&report), ["1x event_only Order/OrderPaid"]);
    assert_eq!(report.transactions, 2);
}

/// As Debezium's outbox is, with a number for an id, and without a primary key.
#[tokio::test]
async fn an_outbox_of_another_make_is_one() {
    let shop = Shop::fresh().await;
    shop.run(
        "CREATE TABLE events (id bigserial UNIQUE, aggregatetype text, aggregateid text, type text,
         payload jsonb)",
    )
    .await;
    let columns = [
        ("seq", "id"),
        ("aggregate_type", "aggregatetype"),
        ("aggregate_id", "aggregateid"),
        ("event_type", "type"),
    ];
    let columns: BTreeMap<String, String> =
        columns.map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned())).into();
    let outbox = TableName::new("events").unwrap();
    let begun = begin_with(&shop.database.url(), &outbox, &columns, &watch(&["orders"])).await;
    let begun = begun.unwrap();
    let event = "INSERT INTO events (aggregatetype, aggregateid, type, payload)
         VALUES ('Order', '7', 'OrderPaid', '\"canary\"')";
    shop.run(&format!("BEGIN; INSERT INTO orders VALUES (1); {event}; COMMIT")).await;
    shop.run(event).await;
    // An event of another outbox is none of this one.
    shop.run(&format!("BEGIN; INSERT INTO orders VALUES (2); {EVENT}; COMMIT")).await;
    // Relays go on.
    shop.run("UPDATE events SET type = 'x'; DELETE FROM events").await;
    let report = begun.finish().await;
    let expected = ["1x no_event public.orders insert1", "1x event_only Order/OrderPaid"];
    assert_eq!(told(&report), expected);
    let event = &report.groups()[1].first_events[0];
    assert_eq!((event.aggregate_id.as_str(), event.event_id.len()), ("7", 36));
}

/// Such a table cannot be updated by anybody while it is published with its updates.
#[tokio::test]
async fn a_table_without_identity_is_never_made_unwritable() {
    let shop = Shop::fresh().await;
    shop.run(
        "CREATE TABLE plain (id bigint, n int);
         CREATE TABLE late (id bigint PRIMARY KEY DEFERRABLE, n int);
         CREATE TABLE silent (id bigint PRIMARY KEY, n int);
         ALTER TABLE silent REPLICA IDENTITY NOTHING",
    )
    .await;
    for name in ["plain", "late", "silent"] {
        let error = shop.refused(&watch(&["orders", name])).await;
        let what = format!("the rows of public.{name} have no identity for the log");
        assert!(error.message.contains(&what), "{error:?}");
        let hint = error.hint.unwrap();
        assert!(hint.contains(&format!("--tables public.{name}:insert")), "{hint}");
        // As it advises.
        let tables = vec![table("orders", &Operation::ALL), table(name, &[Operation::Insert])];
        let inserts = Watch { tables, ..Watch::default() };
        let begun = shop.begin(&inserts).await.unwrap();
        let note = format!("of public.{name} no update and no delete is seen");
        assert!(begun.audit.watched().notes[0].contains(&note));
        shop.run(&format!("INSERT INTO {name} VALUES (1, 1)")).await;
        shop.run(&format!("UPDATE {name} SET n = 2")).await;
        shop.run(&format!("DELETE FROM {name}; TRUNCATE {name}")).await;
        let report = begun.finish().await;
        assert_eq!(told(&report), [format!("1x no_event public.{name} insert1")]);
        assert_eq!(report.transactions, 2);
        // Or as it advises, too.
        shop.run(&format!("ALTER TABLE {name} REPLICA IDENTITY FULL")).await;
        let transactions =
            [format!("INSERT INTO {name} VALUES (1)"), format!("DELETE FROM {name}")];
        let transactions = transactions.each_ref().map(String::as_str);
        assert_eq!(shop.found(&watch(&[name]), &transactions).await.no_event, 2);
    }
}

/// From version 18 on the server refuses updates of rows whose identity is computed.
#[tokio::test]
async fn a_computed_identity_never_makes_a_table_unwritable() {
    let shop = Shop::fresh().await;
    shop.run(
        "CREATE TABLE twice (n int, id int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY);
         CREATE TABLE whole (n int, id int GENERATED ALWAYS AS (n * 2) STORED);
         ALTER TABLE whole REPLICA IDENTITY FULL",
    )
    .await;
    let is_18 = "SELECT (current_setting('server_version_num')::int4 >= 180000)::int4::int8";
    let is_18 = shop.number(is_18).await == 1;
    for name in ["twice", "whole"] {
        let begun = shop.begin(&watch(&[name])).await;
        assert_eq!(begun.is_err(), is_18, "{name}");
        shop.run(&format!("INSERT INTO {name} VALUES (1)")).await;
        shop.run(&format!("UPDATE {name} SET n = 2")).await;
        if let Ok(begun) = begun {
            assert_eq!(begun.finish().await.no_event, 2);
        }
    }
}

#[tokio::test]
async fn names_are_those_of_the_database() {
    let shop = Shop::fresh().await;
    shop.run(
        "CREATE SCHEMA \"My Sales\";
         CREATE TABLE \"My Sales\".\"Order; \"\"x\"\"\" (id bigint PRIMARY KEY)",
    )
    .await;
    let named = table("My Sales.Order; \"x\"", &Operation::ALL);
    let watch = Watch { tables: vec![named], ..Watch::default() };
    let insert = "INSERT INTO \"My Sales\".\"Order; \"\"x\"\"\" VALUES (1)";
    let report = shop.found(&watch, &[insert]).await;
    let expected = "1x no_event \"My Sales\".\"Order; \"\"x\"\"\" insert1";
    assert_eq!(told(&report), [expected]);
}
