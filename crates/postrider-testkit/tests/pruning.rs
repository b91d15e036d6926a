//! Pruning on real databases: what goes, what stays, and what is left of it.
//!
//! What holds for every backend is one function that takes an outbox of any.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod pruning {
    pub(crate) mod matching;
    pub(crate) mod outbox;
    pub(crate) mod partitions;
    pub(crate) mod postgres;
}

use std::path::PathBuf;
use std::time::Duration;

use postrider_relay::config::{Environment, Flags, PruneConfig, SourceConfig};
use postrider_relay::prune::{self, Left, PruneOptions, Pruned};
use postrider_relay::shutdown::shutdown;
use postrider_relay::source::{BatchLimit, Settlement, SourceErrorKind, Verdict};
use postrider_relay::sources::{Progress, SourceSpec};
use pruning::matching::{
    what_is_matched_later_stays_until_it_is_delivered, what_no_pipeline_matches_stays,
};
use pruning::outbox::{Age, DAY, Outbox, lines, options};

/// Makes a test of a function for each backend.
macro_rules! on_each_backend {
    ($($case:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Outbox::postgres().await).await;
            })*
        }
        mod on_sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Outbox::sqlite()).await;
            })*
        }
    };
}

on_each_backend!(
    nothing_goes_before_a_pipeline_has_read,
    what_is_marked_goes_when_its_time_is_over,
    nothing_goes_that_is_not_published,
    what_no_pipeline_matches_stays,
    what_is_matched_later_stays_until_it_is_delivered,
    the_slowest_cursor_holds_on_to_its_rows,
    dead_letters_stay,
    that_an_event_was_discarded_is_known_while_its_row_stays,
    a_dry_run_changes_nothing,
    a_large_outbox_goes_in_batches,
    a_stop_ends_it_between_batches,
    rows_in_front_do_not_hide_those_behind,
    a_search_goes_on_where_it_left_off,
    the_archive_has_every_row_that_went,
    nothing_goes_that_cannot_be_archived,
    two_at_once_archive_every_row_once,
    what_a_relay_delivered_goes_and_nothing_else,
    a_relay_prunes_now_and_then,
);

async fn nothing_goes_before_a_pipeline_has_read(outbox: Outbox) {
    outbox.insert(3, Age::written(10)).await;
    outbox.insert(3, Age::published(10)).await;
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!(pruned, Pruned { left: vec![Left::NoPipeline], ..Pruned::default() });
    assert_eq!(outbox.count().await, 6);
}

/// The boundary is `keep`, since it was published.
async fn what_is_marked_goes_when_its_time_is_over(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    let minute = Duration::from_secs(60);
    outbox.insert(2, Age { written: 8 * DAY, published: Some(7 * DAY + minute) }).await;
    outbox.insert(3, Age { written: 8 * DAY, published: Some(7 * DAY - minute) }).await;
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!(pruned, Pruned { rows: 2, ..Pruned::default() });
    assert_eq!(outbox.count().await, 3);
    assert_eq!(outbox.prune(&options(7)).await, Pruned::default());
    assert_eq!(outbox.prune(&options(6)).await.rows, 3);
}

/// G-01.
async fn nothing_goes_that_is_not_published(outbox: Outbox) {
    outbox.pipeline("orders", Progress::Mark).await;
    outbox.insert(2, Age::written(100)).await;
    outbox.insert(1, Age::published(100)).await;
    let pruned = outbox.prune(&options(0)).await;
    assert_eq!(pruned.rows, 1);
    assert_eq!(pruned.left, [Left::Pipeline("orders".to_owned())]);
    assert_eq!(outbox.count().await, 2);
}

/// G-01, with several pipelines.
async fn the_slowest_cursor_holds_on_to_its_rows(outbox: Outbox) {
    outbox.insert(4, Age::written(10)).await;
    outbox.pipeline("audit", Progress::Cursor).await;
    outbox.insert(3, Age::written(10)).await;
    outbox.pipeline("orders", Progress::Cursor).await;
    outbox.insert(2, Age::written(1)).await;
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!(pruned.rows, 4);
    assert_eq!(pruned.left, [Left::Pipeline("audit".to_owned())]);
    assert_eq!(outbox.count().await, 5);
    outbox.pipeline("audit", Progress::Cursor).await;
    assert_eq!(outbox.prune(&options(7)).await, Pruned { rows: 3, ..Pruned::default() });
    outbox.pipeline("new", Progress::Cursor).await;
    outbox.forget_position("new").await;
    let pruned = outbox.prune(&options(0)).await;
    assert_eq!((pruned.rows, pruned.left), (0, vec![Left::Pipeline("new".to_owned())]));
}

/// G-01.
async fn dead_letters_stay(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(1, Age::published(100)).await;
    outbox.park_all().await;
    assert_eq!(outbox.prune(&options(0)).await.rows, 1);
    assert_eq!(outbox.number("SELECT count(*) FROM outbox_failures").await, 1);
}

/// Else it would seem to be lost.
async fn that_an_event_was_discarded_is_known_while_its_row_stays(outbox: Outbox) {
    outbox.pipeline("audit", Progress::Cursor).await;
    outbox.insert(2, Age::written(10)).await;
    outbox.pipeline("default", Progress::Cursor).await;
    outbox.park_all().await;
    outbox.run("UPDATE outbox_failures SET state = 'discarded', blocks = false").await;
    let discarded = "SELECT count(*) FROM outbox_failures";
    let pruned = outbox.prune(&options(7)).await;
    assert_eq!((pruned.rows, pruned.left), (0, vec![Left::Pipeline("audit".to_owned())]));
    assert_eq!(outbox.number(discarded).await, 2);
    outbox.pipeline("audit", Progress::Cursor).await;
    assert_eq!(outbox.prune(&options(7)).await, Pruned { rows: 2, ..Pruned::default() });
    assert_eq!(outbox.number(discarded).await, 0);
}

async fn a_dry_run_changes_nothing(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(5, Age::published(10)).await;
    outbox.insert(5, Age::written(10)).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = Some(folder.path().to_owned());
    let dry = PruneOptions { dry_run: true, archive, ..options(7) };
    let pruned = outbox.prune(&dry).await;
    let left = vec![Left::Pipeline("default".to_owned())];
    assert_eq!(pruned, Pruned { rows: 5, left, ..Pruned::default() });
    assert_eq!(outbox.count().await, 10);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

/// G-07.
async fn a_large_outbox_goes_in_batches(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(12_001, Age::published(10)).await;
    assert_eq!(outbox.prune(&options(7)).await, Pruned { rows: 12_001, ..Pruned::default() });
    assert_eq!(outbox.count().await, 0);
}

/// In SQLite a file of the archive is a batch.
#[tokio::test]
async fn a_batch_is_bounded_in_rows() {
    let outbox = Outbox::sqlite();
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(12_001, Age::published(10)).await;
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    let pruned = outbox.prune(&archiving).await;
    assert_eq!((pruned.rows, pruned.archives.len()), (12_001, 3));
}

async fn a_stop_ends_it_between_batches(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(1, Age::published(10)).await;
    let (stop, token) = shutdown();
    stop.stop();
    let pruned = outbox.pruner().await.prune(&options(7), &token).await.unwrap();
    assert_eq!(pruned, Pruned { left: vec![Left::Stopped], ..Pruned::default() });
}

async fn rows_in_front_do_not_hide_those_behind(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(6_000, Age::written(10)).await;
    outbox.insert(100, Age::published(10)).await;
    assert_eq!(outbox.prune(&options(7)).await.rows, 100);
    assert_eq!(outbox.count().await, 6_000);
}

async fn a_search_goes_on_where_it_left_off(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(1, Age::published(10)).await;
    for _ in 0..12 {
        outbox.insert(5_000, Age::written(10)).await;
    }
    outbox.insert(100, Age::published(10)).await;
    outbox.insert(1, Age::published(1)).await;
    let first = outbox.prune(&options(7)).await;
    assert_eq!(first.rows, 1);
    assert!(first.left_off.is_some());
    let on = PruneOptions { from: first.left_off, ..options(7) };
    let second = outbox.prune(&on).await;
    assert_eq!((second.rows, second.left_off), (100, None));
    assert_eq!(outbox.count().await, 60_001);

    // A relay remembers the place by itself.
    outbox.insert(100, Age::published(10)).await;
    let (stop, token) = shutdown();
    let running = tokio::spawn(prune::run(source_config(&outbox), Some(now_and_then(None)), token));
    let look = async {
        while outbox.number("SELECT count(*) FROM outbox WHERE published_at IS NOT NULL").await > 0
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look).await.expect("everything goes in time");
    stop.stop();
    running.await.unwrap();
}

async fn the_archive_has_every_row_that_went(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(5_100, Age::published(10)).await;
    outbox.insert(1, Age::published(1)).await;
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    let pruned = outbox.prune(&archiving).await;
    assert_eq!(pruned.rows, 5_100);
    let mut files: Vec<_> =
        folder.path().read_dir().unwrap().map(|it| it.unwrap().path()).collect();
    files.sort();
    assert_eq!(files, pruned.archives);
    let archived = lines(folder.path());
    let mut numbers: Vec<u64> =
        archived.iter().map(|line| line["payload"]["n"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=5_100).collect::<Vec<_>>());
    let first = archived.iter().find(|line| line["payload"]["n"] == 7).unwrap();
    assert_eq!(first["aggregate_type"], "Order");
    assert_eq!((&first["aggregate_id"], &first["key"]), (&"7".into(), &"7".into()));
    assert_eq!((&first["event_type"], &first["event_version"]), (&"OrderPaid".into(), &1.into()));
    assert_eq!(first["headers"], serde_json::json!({ "tenant": "acme" }));
    for time in ["occurred_at", "created_at", "published_at"] {
        let text = first[time].as_str().unwrap();
        assert!(text.starts_with("20") && text.ends_with('Z'), "{time}: {text}");
    }
}

async fn nothing_goes_that_cannot_be_archived(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(3, Age::published(10)).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = Some(folder.path().join("missing"));
    let archiving = PruneOptions { archive, ..options(7) };
    let (_stop, token) = shutdown();
    let error = outbox.pruner().await.prune(&archiving, &token).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Misconfigured);
    assert!(error.details().contains("mkdir -p"), "{}", error.details());
    assert_eq!(outbox.count().await, 3);
}

async fn two_at_once_archive_every_row_once(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(11_000, Age::published(10)).await;
    let folder = tempfile::tempdir().unwrap();
    let archiving = PruneOptions { archive: Some(folder.path().to_owned()), ..options(7) };
    let (one, other) = tokio::join!(outbox.prune(&archiving), outbox.prune(&archiving));
    assert_eq!(one.rows + other.rows, 11_000);
    assert_eq!(outbox.count().await, 0);
    let archived = lines(folder.path());
    let mut ids: Vec<&str> = archived.iter().map(|line| line["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 11_000);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 11_000);
}

/// G-01, with a real relay's progress.
async fn what_a_relay_delivered_goes_and_nothing_else(outbox: Outbox) {
    for progress in [Progress::Mark, Progress::Cursor] {
        outbox.run("DELETE FROM outbox").await;
        outbox.run("DELETE FROM outbox_checkpoints").await;
        outbox.insert(10, Age::written(0)).await;
        let spec = SourceSpec { progress, ..SourceSpec::new(outbox.url()) };
        let source = spec.connect().await.unwrap();
        source.resume().await.unwrap();
        let limit = BatchLimit { events: 6, bytes: 1 << 20, wait: Duration::from_secs(10) };
        let read = source.next_batch(limit).await.unwrap();
        assert_eq!(read.len(), 6);
        let verdict = |index| if index < 4 { Verdict::Delivered } else { Verdict::Released };
        let settlements: Vec<Settlement> = (0..)
            .zip(&read)
            .map(|(index, record)| Settlement { handle: record.handle, verdict: verdict(index) })
            .collect();
        source.settle(&settlements).await.unwrap();
        let pruned = outbox.prune(&options(0)).await;
        assert_eq!((pruned.rows, outbox.count().await), (4, 6), "{progress}");
        assert_eq!(pruned.left, [Left::Pipeline("default".to_owned())], "{progress}");
        source.close().await.unwrap();
    }
}

fn source_config(outbox: &Outbox) -> SourceConfig {
    let flags = Flags { from: Some(outbox.url()), ..Flags::default() };
    SourceConfig::from_flags(&flags, &Environment::default()).unwrap()
}

fn now_and_then(archive: Option<PathBuf>) -> PruneConfig {
    PruneConfig { keep: DAY, every: Duration::from_millis(20), archive, unmatched: false }
}

/// Waits until an outbox has no row left.
async fn until_empty(outbox: &Outbox) {
    let look = async {
        while outbox.count().await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), look).await.expect("everything goes in time");
}

async fn a_relay_prunes_now_and_then(outbox: Outbox) {
    outbox.pipeline("default", Progress::Mark).await;
    let (stop, token) = shutdown();
    let running = tokio::spawn(prune::run(source_config(&outbox), Some(now_and_then(None)), token));
    for _ in 0..2 {
        outbox.insert(3, Age::published(10)).await;
        until_empty(&outbox).await;
    }
    stop.stop();
    tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
}

/// What an operator mends is mended for a relay that runs.
#[tokio::test]
async fn an_error_does_not_end_it() {
    let outbox = Outbox::sqlite();
    outbox.pipeline("default", Progress::Mark).await;
    outbox.insert(3, Age::published(10)).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("missing");
    let (stop, token) = shutdown();
    let config = now_and_then(Some(archive.clone()));
    let running = tokio::spawn(prune::run(source_config(&outbox), Some(config), token));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(outbox.count().await, 3);
    std::fs::create_dir(&archive).unwrap();
    until_empty(&outbox).await;
    assert_eq!(lines(&archive).len(), 3);
    stop.stop();
    running.await.unwrap();
}
