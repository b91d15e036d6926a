//! A partitioned outbox: whole partitions go and new ones come.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::schema::TableName;
use postrider::schema::postgres::{self, Layout, PartitionWidth, RolePrefix};
use postrider_relay::prune::{Left, PruneOptions, Pruned};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sources::{self, Progress};

use super::outbox::{Age, DAY, Outbox, lines, options};

const PARTITIONS: &str = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass";

/// An outbox with a partition for each of the last days.
async fn with_days(days: u32) -> Outbox {
    let outbox = Outbox::laid_out(Layout::Partitioned { width: PartitionWidth::DAY }).await;
    outbox
        .run(
            &format!(
                "DO $$ DECLARE day timestamptz; BEGIN
               FOR back IN 1..{days} LOOP
                 day := date_trunc('day', now(), 'UTC') - make_interval(days => back);
                 EXECUTE format('CREATE TABLE %I PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
                   name(day), day, day + interval '1 day');
               END LOOP; END $$"
            )
            .replace("name(day)", "'outbox_p' || to_char(day AT TIME ZONE 'UTC', 'YYYYMMDDHH24')"),
        )
        .await;
    outbox
}

/// The name of the partition of so many days ago.
async fn partition(outbox: &Outbox, days: u32) -> String {
    let sql = "SELECT 'outbox_p' || to_char((now() AT TIME ZONE 'UTC') - make_interval(days => $1),
               'YYYYMMDD') || '00'";
    let days = i32::try_from(days).unwrap();
    outbox.client().await.query_one(sql, &[&days]).await.unwrap().get(0)
}

#[tokio::test]
async fn partitions_past_their_retention_are_dropped_whole() {
    let outbox = with_days(10).await;
    outbox.pipeline("default", Progress::Mark).await;
    for days in [9, 8, 7, 1] {
        outbox.insert(3, Age::published(days)).await;
    }
    let before = outbox.number(PARTITIONS).await;
    let pruned = outbox.prune(&options(7)).await;
    let expected = [partition(&outbox, 9).await, partition(&outbox, 8).await];
    assert_eq!(pruned, Pruned { partitions: expected.to_vec(), ..Pruned::default() });
    assert_eq!(outbox.count().await, 6);
    // The partition of ten days ago was empty and is gone as well.
    assert_eq!(outbox.number(PARTITIONS).await, before - 3);
}

/// G-01.
#[tokio::test]
async fn a_partition_stays_while_a_pipeline_needs_a_row_of_it() {
    for progress in [Progress::Mark, Progress::Cursor] {
        let outbox = with_days(9).await;
        outbox.insert(2, Age { published: None, ..Age::written(9) }).await;
        outbox.pipeline("orders", progress).await;
        outbox.insert(1, Age::written(8)).await;
        if progress == Progress::Mark {
            outbox.run("UPDATE outbox SET published_at = created_at WHERE seq < 3").await;
        }
        let pruned = outbox.prune(&options(5)).await;
        assert_eq!(pruned.partitions, [partition(&outbox, 9).await], "{progress}");
        assert_eq!(pruned.left, [Left::Pipeline("orders".to_owned())], "{progress}");
        assert_eq!(outbox.count().await, 1);
    }
}

/// What was written long ago and published lately is kept for as long as anything else.
#[tokio::test]
async fn a_partition_stays_while_a_row_of_it_was_published_lately() {
    let outbox = with_days(10).await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(1, Age { written: 9 * DAY, published: Some(DAY) }).await;
    assert_eq!(outbox.prune(&options(7)).await, Pruned::default());
    assert_eq!(outbox.count().await, 1);
    assert_eq!(outbox.prune(&options(0)).await.partitions.len(), 1);
}

/// G-01: a transaction that began long ago may commit between a look and a drop.
#[tokio::test]
async fn a_partition_in_use_is_tried_again() {
    let outbox = with_days(9).await;
    outbox.insert(1, Age::written(9)).await;
    outbox.pipeline("default", Progress::Cursor).await;
    let late = outbox.client().await;
    late.batch_execute(
        "BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
         VALUES ('Order', 'late', 'OrderPaid', '', now() - interval '9 days')",
    )
    .await
    .unwrap();
    let name = partition(&outbox, 9).await;
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!(pruned.left, [Left::Locked(name.clone())]);
    late.batch_execute("COMMIT").await.unwrap();
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!(pruned.left, [Left::Pipeline("default".to_owned())]);
    assert_eq!(outbox.count().await, 2);
    outbox.pipeline("default", Progress::Cursor).await;
    assert_eq!(outbox.prune(&options(7)).await.partitions, [name]);
}

/// What came after the look is found under the lock.
#[tokio::test]
async fn a_drop_looks_once_more() {
    let outbox = with_days(9).await;
    outbox.insert(1, Age::published(9)).await;
    let name = partition(&outbox, 9).await;
    let client = outbox.client().await;
    let seen: String =
        client.query_one("SELECT pg_current_snapshot()::text", &[]).await.unwrap().get(0);
    let drop = format!("SELECT outbox_drop_partition('{name}', '{seen}', $1)");
    outbox.insert(1, Age::published(9)).await;
    let dropped: Option<bool> = client.query_one(&drop, &[&true]).await.unwrap().get(0);
    assert_eq!(dropped, None);
    let drop = format!("SELECT outbox_drop_partition('{name}', pg_current_snapshot(), $1)");
    outbox.run("UPDATE outbox SET published_at = NULL WHERE seq = 1").await;
    let dropped: Option<bool> = client.query_one(&drop, &[&true]).await.unwrap().get(0);
    assert_eq!((dropped, outbox.count().await), (None, 2));
    let dropped: Option<bool> = client.query_one(&drop, &[&false]).await.unwrap().get(0);
    assert_eq!((dropped, outbox.count().await), (Some(true), 0));
}

/// Writers are not kept waiting: the partition is emptied, and dropped when there is time.
#[tokio::test]
async fn a_partition_is_emptied_while_the_outbox_is_busy() {
    let outbox = with_days(9).await;
    outbox.insert(2, Age::published(9)).await;
    outbox.pipeline("default", Progress::Mark).await;
    let before = outbox.number(PARTITIONS).await;
    let writer = outbox.client().await;
    writer
        .batch_execute(
            "BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('Order', 'new', 'OrderPaid', '')",
        )
        .await
        .unwrap();
    let name = partition(&outbox, 9).await;
    assert_eq!(outbox.prune(&options(7)).await.partitions, [name]);
    assert_eq!((outbox.number(PARTITIONS).await, outbox.count().await), (before, 0));
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(outbox.prune(&options(7)).await, Pruned::default());
    assert!(outbox.number(PARTITIONS).await < before);
    assert_eq!(outbox.count().await, 1);
}

#[tokio::test]
async fn a_partition_is_archived_before_it_goes() {
    let outbox = with_days(9).await;
    outbox.insert(7_000, Age::published(9)).await;
    outbox.pipeline("default", Progress::Mark).await;
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    // Nothing is left of an archive of what stays.
    let name = partition(&outbox, 9).await;
    let other = outbox.client().await;
    other.batch_execute(&format!("BEGIN; LOCK TABLE {name} IN ACCESS SHARE MODE")).await.unwrap();
    let pruned = outbox.prune(&archiving).await;
    assert_eq!(pruned, Pruned { left: vec![Left::Locked(name.clone())], ..Pruned::default() });
    assert!(lines(folder.path()).is_empty());
    // Nor is it archived in vain.
    let nowhere = PruneOptions { archive: Some(folder.path().join("missing")), ..options(7) };
    assert_eq!(outbox.prune(&nowhere).await.left, [Left::Locked(name.clone())]);
    other.batch_execute("COMMIT").await.unwrap();
    let pruned = outbox.prune(&archiving).await;
    assert_eq!(pruned.partitions, [name]);
    assert_eq!(pruned.archives.len(), 1);
    let mut numbers: Vec<u64> =
        lines(folder.path()).iter().map(|line| line["payload"]["n"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=7_000).collect::<Vec<_>>());
}

/// Large payloads do not pile up in memory, and none is left out.
#[tokio::test]
async fn pages_of_an_archive_go_by_bytes() {
    let outbox = with_days(9).await;
    outbox.insert(40, Age::published(9)).await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox
        .run(
            "UPDATE outbox SET payload = convert_to('{\"n\":' || seq || ',\"x\":\"'
             || repeat('x', 1000000) || '\"}', 'UTF8')",
        )
        .await;
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    outbox.prune(&archiving).await;
    let mut numbers: Vec<u64> =
        lines(folder.path()).iter().map(|line| line["payload"]["n"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
}

/// Rows that no partition was made for go one by one.
#[tokio::test]
async fn the_default_partition_is_pruned_by_rows() {
    let outbox = with_days(3).await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(4, Age::published(20)).await;
    outbox.insert(1, Age::written(20)).await;
    outbox.insert(2, Age::published(1)).await;
    assert_eq!(outbox.number("SELECT count(*) FROM outbox_p_default").await, 5);
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!((pruned.rows, outbox.count().await), (4, 3));
    assert_eq!(pruned.left, [Left::Pipeline("default".to_owned())]);
}

#[tokio::test]
async fn partitions_are_created_ahead() {
    let outbox = with_days(1).await;
    let ahead = format!(
        "{PARTITIONS} AND pg_get_expr((SELECT relpartbound FROM pg_class
         WHERE oid = inhrelid), inhrelid) <> 'DEFAULT'"
    );
    assert_eq!(outbox.number(&ahead).await, 5);
    let latest = "SELECT max(relname) FROM pg_class WHERE relname LIKE 'outbox_p2%' \
                  AND relkind = 'r'";
    for _ in 0..2 {
        let client = outbox.client().await;
        let name: String = client.query_one(latest, &[]).await.unwrap().get(0);
        client.batch_execute(&format!("DROP TABLE {name}")).await.unwrap();
    }
    let (one, other) = (outbox.pruner().await, outbox.pruner().await);
    let (one, other) = tokio::join!(one.upkeep(), other.upkeep());
    assert_eq!(one.unwrap() + other.unwrap(), 2);
    assert_eq!(outbox.number(&ahead).await, 5);
}

#[tokio::test]
async fn a_dry_run_names_partitions_and_keeps_them() {
    let outbox = with_days(9).await;
    outbox.insert(2, Age::published(9)).await;
    outbox.pipeline("default", Progress::Mark).await;
    let pruned = outbox.prune(&PruneOptions { dry_run: true, ..options(7) }).await;
    assert_eq!(pruned.partitions, [partition(&outbox, 9).await]);
    assert_eq!(outbox.count().await, 2);
}

/// A lock that somebody waits for is not held for long.
#[tokio::test]
async fn a_writer_waits_for_a_moment_only() {
    let outbox = with_days(9).await;
    outbox.insert(2, Age::published(9)).await;
    outbox.pipeline("default", Progress::Mark).await;
    let name = partition(&outbox, 9).await;
    let reader = outbox.client().await;
    reader.batch_execute(&format!("BEGIN; LOCK TABLE {name} IN ACCESS SHARE MODE")).await.unwrap();
    let keep_seven_days = options(7);
    let pruning = outbox.prune(&keep_seven_days);
    let writing = async {
        let writer = outbox.client().await;
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            let started = std::time::Instant::now();
            writer
                .batch_execute(
                    "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
                     VALUES ('Order', 'new', 'OrderPaid', '')",
                )
                .await
                .unwrap();
            longest = longest.max(started.elapsed());
        }
        longest
    };
    let (pruned, longest) = tokio::join!(pruning, writing);
    assert_eq!(pruned.left, [Left::Locked(name)]);
    assert!(longest < Duration::from_secs(2), "a writer waited for {longest:?}");
}

/// A relay need not own the tables, nor have rights on single partitions.
#[tokio::test]
async fn the_rights_of_a_relay_are_enough() {
    let outbox = with_days(9).await;
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(2, Age::published(9)).await;
    outbox.insert(3, Age::published(20)).await;
    let prefix = format!("prune_{}", uuid::Uuid::now_v7().simple());
    let sql = postgres::roles(&TableName::default(), &RolePrefix::new(&prefix).unwrap());
    outbox.run(&sql).await;
    let user = format!("{prefix}_user");
    outbox
        .run(&format!("CREATE ROLE {user} LOGIN PASSWORD 'x'; GRANT {prefix}_relay TO {user}"))
        .await;
    let url = outbox.url();
    let (_, address) = url.split_once('@').unwrap();
    let url = format!("postgres://{user}:x@{address}");
    let pruner = sources::connect_prune(&url, &TableName::default(), &BTreeMap::new()).await;
    let pruner = pruner.unwrap();
    let (_stop, token) = shutdown();
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    assert_eq!(pruner.upkeep().await.unwrap(), 0);
    let pruned = pruner.prune(&archiving, &token).await.unwrap();
    assert_eq!((pruned.partitions.len(), pruned.rows), (1, 3));
    assert_eq!(lines(folder.path()).len(), 5);
    let roles = ["user", "writer", "relay", "reader"].map(|role| format!("{prefix}_{role}"));
    outbox.run(&format!("DROP OWNED BY {0}; DROP ROLE {0}", roles.join(", "))).await;
}
