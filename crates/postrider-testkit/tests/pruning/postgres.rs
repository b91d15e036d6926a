//! What only PostgreSQL has: transactions side by side, shards, tables of others.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::schema::postgres::Layout;
use postrider::schema::{self, TableName};
use postrider_relay::prune::{Left, PruneOptions, Pruned};
use postrider_relay::shutdown::shutdown;
use postrider_relay::source::SourceErrorKind;
use postrider_relay::sources::{self, Progress};
use postrider_testkit::servers::postgres::Database;

use super::outbox::{Age, Outbox, lines, options};

/// Waits until a number is what it should be.
async fn until(outbox: &Outbox, sql: &str, expected: i64) {
    let look = async {
        while outbox.number(sql).await != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let looked = tokio::time::timeout(Duration::from_secs(30), look).await;
    looked.unwrap_or_else(|_| panic!("{sql} does not become {expected}"));
}

/// G-07.
#[tokio::test]
async fn a_statement_removes_a_bounded_number_of_rows() {
    let outbox = Outbox::postgres().await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(12_001, Age::published(10)).await;
    outbox
        .run(
            "CREATE TABLE batches (rows bigint);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO batches SELECT count(*) FROM gone; RETURN NULL; END $$;
             CREATE TRIGGER note AFTER DELETE ON outbox REFERENCING OLD TABLE AS gone
             FOR EACH STATEMENT EXECUTE FUNCTION note()",
        )
        .await;
    assert_eq!(outbox.prune(&options(7)).await.rows, 12_001);
    assert_eq!(outbox.number("SELECT max(rows) FROM batches").await, 5_000);
    assert_eq!(outbox.number("SELECT count(*) FROM batches").await, 3);
}

/// G-07: it finds the oldest rows without reading the others.
#[tokio::test]
async fn the_table_is_never_read_whole() {
    let outbox = Outbox::postgres().await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(300, Age::published(10)).await;
    outbox.insert(40_000, Age::published(1)).await;
    outbox.run("VACUUM ANALYZE outbox").await;
    // What this connection did until now is counted before the count starts anew.
    outbox.run("SELECT pg_stat_force_next_flush()").await;
    outbox.run("SELECT pg_stat_reset()").await;
    assert_eq!(outbox.prune(&options(7)).await.rows, 300);
    let of_outbox = "FROM pg_stat_user_tables WHERE relname = 'outbox'";
    until(&outbox, &format!("SELECT n_tup_del {of_outbox}"), 300).await;
    assert_eq!(outbox.number(&format!("SELECT seq_scan {of_outbox}")).await, 0);
    let read = outbox.number(&format!("SELECT idx_tup_fetch {of_outbox}")).await;
    assert!(read < 12_000, "{read} rows were read");
}

/// G-01: numbers and times say nothing about what has been seen.
#[tokio::test]
async fn a_late_commit_is_not_behind_a_cursor() {
    let outbox = Outbox::postgres().await;
    let late = outbox.client().await;
    late.batch_execute(
        "BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
         VALUES ('Order', 'late', 'OrderPaid', '', now() - interval '10 days')",
    )
    .await
    .unwrap();
    outbox.insert(3, Age::written(10)).await;
    outbox.pipeline("default", Progress::Cursor).await;
    late.batch_execute("COMMIT").await.unwrap();
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!((pruned.rows, pruned.left), (3, vec![Left::Pipeline("default".to_owned())]));
    let left = "SELECT count(*) FROM outbox WHERE aggregate_id = 'late'";
    assert_eq!(outbox.number(left).await, 1);
    outbox.pipeline("default", Progress::Cursor).await;
    assert_eq!(outbox.prune(&options(7)).await.rows, 1);
}

/// G-01: within a tick only what is settled is behind a cursor.
#[tokio::test]
async fn a_tick_is_behind_a_cursor_as_far_as_it_is_settled() {
    let outbox = Outbox::postgres().await;
    outbox.insert(10, Age::written(10)).await;
    outbox
        .run(
            "INSERT INTO outbox_checkpoints (pipeline, progress, base, tick, position, seen, beyond,
               aggregate_types)
             VALUES ('default', 'cursor', '1:1:', pg_current_snapshot(), 4, pg_current_snapshot(),
               '{[6,7),[9,10)}', '{}')",
        )
        .await;
    assert_eq!(outbox.prune(&options(7)).await.rows, 6);
    let left = "SELECT count(*) FROM outbox WHERE seq IN (5, 7, 8, 10)";
    assert_eq!((outbox.number(left).await, outbox.count().await), (4, 4));
}

#[tokio::test]
async fn every_shard_has_to_have_a_row_behind_it() {
    let outbox = Outbox::postgres().await;
    outbox.insert(5, Age::written(10)).await;
    outbox.pipeline("orders", Progress::Cursor).await;
    outbox
        .run(
            "UPDATE outbox_checkpoints SET shards = 2;
             INSERT INTO outbox_checkpoints (pipeline, shard, shards, progress)
             VALUES ('orders', 1, 2, 'cursor')",
        )
        .await;
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!((pruned.rows, pruned.left), (0, vec![Left::Pipeline("orders".to_owned())]));
}

/// G-10.
#[tokio::test]
async fn a_cursor_of_another_cluster_says_nothing() {
    let outbox = Outbox::postgres().await;
    outbox.insert(5, Age::written(10)).await;
    outbox.pipeline("orders", Progress::Cursor).await;
    for foreign in ["system_id = 1", "system_id = NULL, tick = '999999999:999999999:'"] {
        outbox.run(&format!("UPDATE outbox_checkpoints SET {foreign}")).await;
        let (_stop, token) = shutdown();
        let error = outbox.pruner().await.prune(&options(7), &token).await.unwrap_err();
        assert_eq!(error.kind, SourceErrorKind::Unsafe, "{foreign}");
    }
    assert_eq!(outbox.count().await, 5);
}

/// The file is on disk before the rows are gone: what cannot be committed is archived again.
#[tokio::test]
async fn the_archive_comes_before_the_commit() {
    let outbox = Outbox::postgres().await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(3, Age::published(10)).await;
    outbox
        .run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'not now'; END $$;
             CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON outbox
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    let (_stop, token) = shutdown();
    outbox.pruner().await.prune(&archiving, &token).await.unwrap_err();
    assert_eq!((outbox.count().await, lines(folder.path()).len()), (3, 3));
    outbox.run("DROP TRIGGER refuse ON outbox").await;
    assert_eq!(outbox.prune(&archiving).await.rows, 3);
    let mut archived: Vec<String> = lines(folder.path()).iter().map(ToString::to_string).collect();
    archived.sort();
    assert_eq!(archived.len(), 6);
    assert!(archived.chunks(2).all(|pair| pair[0] == pair[1]), "{archived:?}");
}

#[tokio::test]
async fn only_one_prunes_at_a_time() {
    let outbox = Outbox::postgres().await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(3, Age::published(10)).await;
    let other = outbox.client().await;
    other
        .batch_execute(
            "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('postrider prune',
             'outbox'::regclass::oid::bigint))",
        )
        .await
        .unwrap();
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!(pruned, Pruned { left: vec![Left::Busy], ..Pruned::default() });
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(outbox.prune(&options(7)).await.rows, 3);
}

/// What somebody keeps from being removed does not keep the search going for ever.
#[tokio::test]
async fn rows_that_do_not_go_end_the_search() {
    let outbox = Outbox::postgres().await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(5_500, Age::published(10)).await;
    outbox
        .run(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RETURN NULL; END $$;
             CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()",
        )
        .await;
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    for options in [options(7), archiving] {
        let first = outbox.prune(&options).await;
        assert_eq!(first, Pruned { left_off: first.left_off.clone(), ..Pruned::default() });
        let second = outbox.prune(&PruneOptions { from: first.left_off, ..options.clone() }).await;
        let third = outbox.prune(&PruneOptions { from: second.left_off, ..options }).await;
        assert_eq!(third, Pruned::default());
    }
    assert_eq!(outbox.count().await, 5_500);
    assert!(lines(folder.path()).is_empty());
}

/// It works behind a pooler in transaction mode.
#[tokio::test]
async fn a_pooler_does_not_disturb_it() {
    let database = Database::fresh().await;
    let mut client = database.connect().await;
    schema::postgres::migrate(&mut client, &TableName::default(), None).await.unwrap();
    client
        .batch_execute(
            "INSERT INTO outbox_checkpoints (pipeline, progress) VALUES ('default', 'mark');
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, published_at)
             VALUES ('Order', '1', 'OrderPaid', '', now())",
        )
        .await
        .unwrap();
    let (table, columns) = (TableName::default(), BTreeMap::new());
    let pruner = sources::connect_prune(&database.pooled_url(), &table, &columns).await.unwrap();
    let (_stop, token) = shutdown();
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(0) };
    assert_eq!(pruner.prune(&archiving, &token).await.unwrap().rows, 1);
    assert_eq!(lines(folder.path()).len(), 1);
}

/// A table that is not of our making.
#[tokio::test]
async fn a_mapped_table_is_pruned_by_an_index_or_not_at_all() {
    let database = Database::fresh().await;
    let mut client = database.connect().await;
    client
        .batch_execute(
            "CREATE TABLE events (number bigint GENERATED BY DEFAULT AS IDENTITY, aggregatetype text NOT NULL,
               aggregateid text NOT NULL, type text NOT NULL, payload jsonb NOT NULL,
               sent timestamp);
             INSERT INTO events SELECT n, 'Order', n, 'OrderPaid', '{\"n\": 1}',
               (now() AT TIME ZONE 'UTC') - CASE WHEN n < 4 THEN interval '10 days'
               ELSE interval '1 day' END
             FROM generate_series(1, 5) AS n",
        )
        .await
        .unwrap();
    let table = TableName::new("events").unwrap();
    schema::postgres::migrate(&mut client, &table, Some(Layout::Existing)).await.unwrap();
    client
        .batch_execute(
            "INSERT INTO events_checkpoints (pipeline, progress) VALUES ('default', 'mark')",
        )
        .await
        .unwrap();
    let columns: BTreeMap<String, String> = [
        ("seq", "number"),
        ("id", "number"),
        ("aggregate_type", "aggregatetype"),
        ("aggregate_id", "aggregateid"),
        ("event_type", "type"),
        ("published_at", "sent"),
    ]
    .into_iter()
    .map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned()))
    .collect();
    let pruner = sources::connect_prune(&database.url(), &table, &columns).await.unwrap();
    let (_stop, token) = shutdown();
    let error = pruner.prune(&options(7), &token).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Misconfigured);
    assert!(error.details().contains("CREATE INDEX CONCURRENTLY"), "{}", error.details());
    client.batch_execute("CREATE INDEX ON events (number)").await.unwrap();
    let pruner = sources::connect_prune(&database.url(), &table, &columns).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    assert_eq!(pruner.prune(&archiving, &token).await.unwrap().rows, 3);
    let archived = lines(folder.path());
    assert_eq!(archived[0]["payload"], serde_json::json!({ "n": 1 }));
    assert_eq!(archived[0]["id"], "1");
    assert_eq!(archived[0]["created_at"], serde_json::Value::Null);
}
