//! Which transactions are found.

use std::time::{Duration, SystemTime};

use postrider_relay::audit::{Operation, Rules, Watch};
use postrider_testkit::servers::postgres::connect;

use crate::{EVENT, Shop, table, told, watch};

#[tokio::test]
async fn a_forgotten_event_is_found_and_a_transaction_with_one_is_not() {
    let shop = Shop::fresh().await;
    let begun = shop.begin(&watch(&["orders", "public.payments"])).await.unwrap();
    shop.run(&format!("BEGIN; INSERT INTO orders VALUES (1, 'new'); {EVENT}; COMMIT")).await;
    let before = SystemTime::now();
    shop.run("BEGIN; UPDATE orders SET state = 'canary'; INSERT INTO payments VALUES (1, 9)").await;
    let xid = shop.text("SELECT pg_current_xact_id()::xid::text").await;
    shop.run("COMMIT").await;
    shop.run("BEGIN; UPDATE orders SET state = 'x'; INSERT INTO payments VALUES (2, 9); COMMIT")
        .await;
    let lsn = shop.text("SELECT pg_current_wal_lsn()::text").await;
    let report = begun.finish().await;
    assert_eq!(told(&report), ["2x no_event public.orders update2 public.payments insert2"]);
    assert_eq!((report.transactions, report.no_event, report.event_only), (3, 2, 0));
    let group = report.groups()[0];
    assert_eq!(group.first.xid.to_string(), xid);
    assert!(group.last.xid > group.first.xid);
    let age = group.first.committed_at.duration_since(before - Duration::from_secs(1)).unwrap();
    assert!(age < Duration::from_secs(60), "{age:?}");
    let is_behind = format!("SELECT ('{}'::pg_lsn < '{lsn}'::pg_lsn)::int4::int8", group.first.lsn);
    assert_eq!(shop.number(&is_behind).await, 1);
    shop.nothing_is_left().await;
}

#[tokio::test]
async fn an_event_outside_of_the_business_transaction_is_found_with_it() {
    let shop = Shop::fresh().await;
    let report = shop.found(&watch(&["orders"]), &["INSERT INTO orders VALUES (1)", EVENT]).await;
    assert_eq!(
        told(&report),
        ["1x no_event public.orders insert1", "1x event_only Order/OrderPaid"]
    );
    let id = shop.text("SELECT id::text FROM outbox").await;
    let event = &report.groups()[1].first_events[0];
    assert_eq!((event.event_id.as_str(), event.aggregate_id.as_str()), (id.as_str(), "1"));
}

/// Only the named tables are in the log's stream, so it is said just so.
#[tokio::test]
async fn an_event_with_changes_of_other_tables_is_alone_among_the_named_ones() {
    let shop = Shop::fresh().await;
    let notes = format!("BEGIN; INSERT INTO notes VALUES (1); {EVENT}; COMMIT");
    let report = shop.found(&watch(&["orders"]), &[&notes]).await;
    assert_eq!(told(&report), ["1x event_only Order/OrderPaid"]);
    let report = shop.found(&watch(&["orders", "notes"]), &[&notes.replace("(1)", "(2)")]).await;
    assert!(report.is_clean() && report.transactions == 1);
    let begun = shop.begin(&watch(&["orders"])).await.unwrap();
    shop.run(EVENT).await;
    let report = begun.finish_with(Rules { allow_event_only: true }).await;
    assert!(report.is_clean() && report.transactions == 1);
}

#[tokio::test]
async fn what_is_rolled_back_has_not_happened() {
    let shop = Shop::fresh().await;
    let change = "INSERT INTO orders VALUES (1)";
    let nothing = format!("BEGIN; {change}; {EVENT}; ROLLBACK");
    let no_event = format!("BEGIN; {change}; SAVEPOINT a; {EVENT}; ROLLBACK TO a; COMMIT");
    let event_only =
        format!("BEGIN; {EVENT}; SAVEPOINT a; DELETE FROM orders; ROLLBACK TO a; COMMIT");
    let fine = format!("BEGIN; SAVEPOINT a; DELETE FROM orders; RELEASE a; {EVENT}; COMMIT");
    let report = shop.found(&watch(&["orders"]), &[&nothing, &no_event, &event_only, &fine]).await;
    assert_eq!(
        told(&report),
        ["1x no_event public.orders insert1", "1x event_only Order/OrderPaid"]
    );
    assert_eq!(report.transactions, 3);
}

#[tokio::test]
async fn an_event_that_is_in_no_table_is_one() {
    let shop = Shop::fresh().await;
    let delete =
        format!("BEGIN; INSERT INTO orders VALUES (1); {EVENT}; DELETE FROM outbox; COMMIT");
    let report = shop.found(&watch(&["orders"]), &[&delete]).await;
    assert!(report.is_clean() && report.transactions == 1, "{:?}", told(&report));

    let message = EVENT.replace("outbox_publish", "outbox_publish_message");
    let begun = shop.begin(&watch(&["orders"])).await.unwrap();
    // The slot of an audit is none from which a relay would read it.
    let refused = shop.client.batch_execute(&message).await.unwrap_err();
    let refused = refused.as_db_error().unwrap().message();
    assert!(refused.contains("there is no slot that it could be read from"), "{refused}");
    let name = shop.database.name();
    shop.run(&format!("SELECT pg_create_logical_replication_slot('postrider_{name}', 'pgoutput')"))
        .await;
    shop.run(
        "INSERT INTO outbox_checkpoints (pipeline, progress, lsn) VALUES ('p', 'cursor', '0/1')",
    )
    .await;
    shop.run(&format!("BEGIN; INSERT INTO orders VALUES (2); {message}; COMMIT")).await;
    shop.run(&message).await;
    let report = begun.finish().await;
    assert_eq!(told(&report), ["1x event_only Order/OrderPaid"]);
    assert_eq!(report.transactions, 2);
    assert_eq!(report.groups()[0].first_events[0].event_id.len(), 36);
}

#[tokio::test]
async fn operations_that_need_no_event_are_changes_nevertheless() {
    let shop = Shop::fresh().await;
    let needed = [Operation::Insert, Operation::Truncate];
    let watch = Watch { tables: vec![table("orders", &needed)], ..Watch::default() };
    let paid = format!("BEGIN; UPDATE orders SET state = 'paid'; {EVENT}; COMMIT");
    let transactions = [
        "INSERT INTO orders VALUES (1)",
        "UPDATE orders SET state = 'x'",
        &paid,
        "DELETE FROM orders",
    ];
    let report = shop.found(&watch, &transactions).await;
    assert_eq!(told(&report), ["1x no_event public.orders insert1"]);
    assert_eq!(report.transactions, 4);
}

#[tokio::test]
async fn a_large_transaction_is_counted_row_by_row() {
    let shop = Shop::fresh().await;
    let insert =
        "INSERT INTO orders SELECT n, repeat('x', 100) FROM generate_series(1, 100000) AS n";
    let events =
        format!("DO $$ BEGIN FOR n IN 1..2000 LOOP PERFORM {}; END LOOP; END $$", &EVENT[7..]);
    let report = shop.found(&watch(&["orders"]), &[insert, "TRUNCATE orders", &events]).await;
    let expected = [
        "1x no_event public.orders insert100000",
        "1x no_event public.orders truncate1",
        "1x event_only Order/OrderPaid",
    ];
    assert_eq!(told(&report), expected);
    assert_eq!(report.groups()[2].events, 2000);
    assert_eq!(report.groups()[2].first_events.len(), 3);
}

#[tokio::test]
async fn what_relays_do_to_the_outbox_is_of_no_interest() {
    let shop = Shop::fresh().await;
    shop.run(EVENT).await;
    let settled =
        ["UPDATE outbox SET published_at = now()", "DELETE FROM outbox", "TRUNCATE outbox"];
    let report = shop.found(&watch(&["orders"]), &settled).await;
    assert_eq!((report.transactions, told(&report)), (0, Vec::new()));
}

#[tokio::test]
async fn what_came_from_another_server_is_counted_and_not_judged() {
    let shop = Shop::fresh().await;
    let origin = format!("audit_{}", shop.database.name());
    let begun = shop.begin(&watch(&["orders"])).await.unwrap();
    // As the worker of a subscription writes.
    let worker = connect(&shop.database.url()).await;
    let setup = format!(
        "SELECT pg_replication_origin_create('{origin}');
         SELECT pg_replication_origin_session_setup('{origin}')"
    );
    worker.batch_execute(&setup).await.unwrap();
    worker.batch_execute("INSERT INTO orders VALUES (1)").await.unwrap();
    worker.batch_execute("SELECT pg_replication_origin_session_reset()").await.unwrap();
    worker.batch_execute("INSERT INTO orders VALUES (2)").await.unwrap();
    let report = begun.finish().await;
    worker.batch_execute(&format!("SELECT pg_replication_origin_drop('{origin}')")).await.unwrap();
    assert_eq!((report.replicated, report.transactions, report.no_event), (1, 1, 1));
}
