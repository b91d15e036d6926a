//! However an audit ends, nothing of it stays behind, and it never holds on to the server's log.

use postrider_relay::audit::{self, Rules};
use postrider_relay::shutdown::shutdown;
use postrider_relay::source::SourceErrorKind;
use postrider_relay::sources;
use postrider_testkit::chaos::until;
use postrider_testkit::servers::postgres::connect;

use crate::{Shop, told, watch};

const PUBLICATIONS: &str = "SELECT count(*) FROM pg_publication";
const SLOTS: &str = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";

#[tokio::test]
async fn what_a_killed_one_leaves_is_removed_by_the_next_and_nothing_else_is() {
    let shop = Shop::fresh().await;
    let orders = watch(&["orders"]);
    let running = shop.begin(&orders).await.unwrap();
    let killed = shop.begin(&orders).await.unwrap();
    assert_eq!((shop.number(SLOTS).await, shop.number(PUBLICATIONS).await), (2, 4));
    // As if the process were killed: nothing is said to the server any more.
    drop(killed);
    until("its slot is gone", || async { shop.number(SLOTS).await == 1 }).await;
    assert_eq!(shop.number(PUBLICATIONS).await, 4);
    shop.run("CREATE PUBLICATION audit_postrider_of_somebody_else").await;
    shop.begin(&orders).await.unwrap().finish().await;
    assert_eq!(shop.number(PUBLICATIONS).await, 3);
    // The one that runs has lost nothing.
    shop.run("INSERT INTO orders VALUES (1)").await;
    assert_eq!(told(&running.finish().await), ["1x no_event public.orders insert1"]);
    assert_eq!(shop.number(PUBLICATIONS).await, 1);
    until("no slot is left", || async { shop.number(SLOTS).await == 0 }).await;
}

#[tokio::test]
async fn the_log_is_not_kept_while_only_other_tables_are_busy() {
    let shop = Shop::fresh().await;
    let mut begun = shop.begin(&watch(&["orders"])).await.unwrap();
    let reading = tokio::spawn(async move {
        let rules = Rules::default();
        let (report, ended) =
            audit::run(&mut *begun.audit, rules, None, &mut begun.shutdown, |_, _| true).await;
        ended.unwrap();
        begun.audit.close().await.unwrap();
        report
    });
    let end = shop.text("SELECT pg_current_wal_lsn()::text").await;
    shop.run("INSERT INTO notes SELECT generate_series(1, 20000); INSERT INTO orders VALUES (1)")
        .await;
    let has_moved = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()
         AND confirmed_flush_lsn > '{end}'::pg_lsn + 1000000"
    );
    until("what was read is confirmed", || async { shop.number(&has_moved).await == 1 }).await;
    begun.handle.stop();
    assert_eq!(reading.await.unwrap().no_event, 1);
}

#[tokio::test]
async fn a_connection_that_is_lost_ends_it_with_what_was_found() {
    let shop = Shop::fresh().await;
    let mut begun = shop.begin(&watch(&["orders"])).await.unwrap();
    let (found, finding) = tokio::sync::oneshot::channel();
    let mut found = Some(found);
    let reading = tokio::spawn(async move {
        let tell = |_: &audit::Finding, _| found.take().map(|found| found.send(())).is_some();
        let (report, ended) =
            audit::run(&mut *begun.audit, Rules::default(), None, &mut begun.shutdown, tell).await;
        (report, ended, begun.audit.close().await)
    });
    shop.run("INSERT INTO orders VALUES (1)").await;
    finding.await.unwrap();
    shop.run(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
         WHERE database = current_database()",
    )
    .await;
    let (report, ended, closed) = reading.await.unwrap();
    assert_eq!(ended.unwrap_err().kind, SourceErrorKind::Unavailable);
    assert!(!report.is_complete && report.no_event == 1);
    closed.unwrap();
    shop.nothing_is_left().await;
}

#[tokio::test]
async fn whoever_stops_before_it_begins_leaves_nothing() {
    let shop = Shop::fresh().await;
    let writer = connect(&shop.database.url()).await;
    writer.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let (handle, token) = shutdown();
    let url = shop.database.url();
    let beginning = tokio::spawn(async move {
        let (outbox, columns) = Default::default();
        sources::connect_audit(&url, &outbox, &columns, &watch(&["orders"]), &token).await.err()
    });
    until("the slot is being made", || async { shop.number(SLOTS).await == 1 }).await;
    handle.stop();
    let error = beginning.await.unwrap().unwrap();
    assert!(error.message.contains("stopped before the audit began"), "{error:?}");
    // Although that transaction is still open.
    shop.nothing_is_left().await;
    writer.batch_execute("ROLLBACK").await.unwrap();
}
