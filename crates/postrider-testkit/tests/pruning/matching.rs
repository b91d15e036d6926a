//! Events of aggregate types that no pipeline matches.

use std::time::Duration;

use postrider::schema::postgres::{Layout, PartitionWidth};
use postrider_relay::prune::{Left, PruneOptions};
use postrider_relay::source::{BatchLimit, Settlement, Source, Verdict};
use postrider_relay::sources::{Progress, SourceSpec};

use super::outbox::{Age, Outbox, options};

const INVOICES: &str = "SELECT count(*) FROM outbox WHERE aggregate_type = 'Invoice'";

/// Writes as many orders as invoices, in turn.
async fn insert_both(outbox: &Outbox, count: u32, age: Age) {
    let last = outbox.number("SELECT coalesce(max(seq), 0) FROM outbox").await;
    outbox.insert(2 * count, age).await;
    let every_other =
        format!("UPDATE outbox SET aggregate_type = 'Invoice' WHERE seq > {last} AND seq % 2 = 0");
    outbox.run(&every_other).await;
}

/// Delivers everything of these types, and stops.
async fn deliver(outbox: &Outbox, pipeline: &str, aggregate_types: &[&str]) -> usize {
    let source = connect(outbox, pipeline, aggregate_types).await;
    let limit = BatchLimit { events: 1_000, bytes: 1 << 24, wait: Duration::from_millis(300) };
    let mut delivered = 0;
    loop {
        let batch = source.next_batch(limit).await.unwrap();
        if batch.is_empty() && !source.pending().await.unwrap() {
            source.close().await.unwrap();
            return delivered;
        }
        let settlements = batch
            .iter()
            .map(|record| Settlement { handle: record.handle, verdict: Verdict::Delivered });
        source.settle(&settlements.collect::<Vec<_>>()).await.unwrap();
        delivered += batch.len();
    }
}

async fn connect(outbox: &Outbox, pipeline: &str, aggregate_types: &[&str]) -> Box<dyn Source> {
    let spec = SourceSpec {
        pipeline: pipeline.to_owned(),
        progress: Progress::Cursor,
        aggregate_types: aggregate_types.iter().map(ToString::to_string).collect(),
        ..SourceSpec::new(outbox.url())
    };
    let source = spec.connect().await.unwrap();
    source.resume().await.unwrap();
    source
}

/// G-01: a cursor that has passed an event of another type has not published it.
pub(crate) async fn what_no_pipeline_matches_stays(outbox: Outbox) {
    insert_both(&outbox, 5, Age::written(10)).await;
    assert_eq!(deliver(&outbox, "orders", &["Order"]).await, 5);
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!((pruned.rows, outbox.number(INVOICES).await), (5, 5));
    assert_eq!(pruned.left, [Left::Unmatched]);
    // Neither when there is another pipeline for other types.
    assert_eq!(deliver(&outbox, "refunds", &["Refund"]).await, 0);
    assert_eq!(outbox.prune(&options(7)).await.rows, 0);
    assert_eq!(deliver(&outbox, "invoices", &["Invoice"]).await, 5);
    assert_eq!(outbox.prune(&options(7)).await.rows, 5);
    // Unless that is what the operator wants.
    outbox.run("DELETE FROM outbox_checkpoints WHERE pipeline = 'invoices'").await;
    insert_both(&outbox, 3, Age::written(10)).await;
    assert_eq!(deliver(&outbox, "orders", &["Order"]).await, 3);
    assert_eq!(deliver(&outbox, "refunds", &["Refund"]).await, 0);
    let unmatched = PruneOptions { unmatched: true, ..options(7) };
    assert_eq!(outbox.prune(&unmatched).await.rows, 6);
    assert_eq!(outbox.count().await, 0);
}

/// G-01: a type that is added to a pipeline is not taken for published before it is.
pub(crate) async fn what_is_matched_later_stays_until_it_is_delivered(outbox: Outbox) {
    insert_both(&outbox, 5, Age::written(10)).await;
    assert_eq!(deliver(&outbox, "orders", &["Order"]).await, 5);
    assert_eq!(outbox.prune(&options(7)).await.rows, 5);
    let source = connect(&outbox, "orders", &["Order", "Invoice"]).await;
    outbox.prune(&options(7)).await;
    drop(source);
    assert_eq!(deliver(&outbox, "orders", &["Order", "Invoice"]).await, 5);
    outbox.prune(&options(7)).await;
    assert_eq!(outbox.number(INVOICES).await, 0);
    // What it published before it was left out is done with.
    insert_both(&outbox, 2, Age::written(10)).await;
    assert_eq!(deliver(&outbox, "orders", &["Order", "Invoice"]).await, 4);
    assert_eq!(deliver(&outbox, "orders", &["Order"]).await, 0);
    insert_both(&outbox, 2, Age::written(10)).await;
    assert_eq!(deliver(&outbox, "orders", &["Order"]).await, 2);
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!((pruned.rows, pruned.left), (6, vec![Left::Unmatched]));
    assert_eq!(outbox.number(INVOICES).await, 2);
}

/// G-01.
#[tokio::test]
async fn a_partition_stays_with_a_row_that_no_pipeline_matches() {
    let outbox = Outbox::laid_out(Layout::Partitioned { width: PartitionWidth::DAY }).await;
    outbox
        .run(
            "DO $$ DECLARE day timestamptz := date_trunc('day', now(), 'UTC') - interval '9 days';
             BEGIN EXECUTE format('CREATE TABLE outbox_old PARTITION OF outbox FOR VALUES FROM (%L)
               TO (%L)', day, day + interval '2 days'); END $$",
        )
        .await;
    insert_both(&outbox, 3, Age::written(8)).await;
    assert_eq!(deliver(&outbox, "orders", &["Order"]).await, 3);
    let pruned = outbox.prune(&options(5)).await;
    assert_eq!((pruned.partitions.len(), pruned.left), (0, vec![Left::Unmatched]));
    assert_eq!(outbox.number(INVOICES).await, 3);
    let unmatched = PruneOptions { unmatched: true, ..options(5) };
    assert_eq!(outbox.prune(&unmatched).await.partitions, ["outbox_old"]);
    insert_both(&outbox, 1, Age::written(1)).await;
    assert_eq!(deliver(&outbox, "all", &[]).await, 2);
    assert_eq!(deliver(&outbox, "orders", &["Order"]).await, 1);
    assert_eq!(outbox.prune(&options(0)).await.left, []);
}
