//! The table is changed while its log is read.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_relay::pipeline::PipelineError;
use postrider_relay::source::SourceErrorKind;
use postrider_relay::sources::SourceSpec;
use postrider_testkit::chaos::{Bank, Running};
use tokio::time::sleep;

use crate::{Line, again, options, stubborn, until_streaming};

/// Changes an account by a plain insert, with other names for some columns.
fn changing(payload: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION change(event bigint, account bigint) RETURNS void
         LANGUAGE plpgsql AS $$
         DECLARE changed bigint;
         BEGIN
             INSERT INTO accounts AS a VALUES (account, 1)
             ON CONFLICT (id) DO UPDATE SET version = a.version + 1 RETURNING a.version INTO changed;
             INSERT INTO facts VALUES (event, account, changed);
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, {payload})
             VALUES ('Account', account::text, 'AccountChanged',
                 convert_to(jsonb_build_object('event', event)::text, 'UTF8'));
         END $$;"
    )
}

/// F63: columns that come, and those that nobody needs.
#[tokio::test]
async fn columns_come_and_go() {
    let bank = Bank::fresh().await;
    bank.run(&changing("payload")).await;
    let mut line = Line::start(&bank).await;
    let writing = stubborn().start(&bank);
    let changes = [
        "ALTER TABLE outbox ADD COLUMN note text",
        "ALTER TABLE outbox ADD COLUMN counted bigint NOT NULL DEFAULT 7",
        "ALTER TABLE outbox DROP COLUMN note",
        "ALTER TABLE outbox ALTER aggregate_id TYPE varchar(100)",
        "ALTER TABLE outbox DROP COLUMN topic",
    ];
    for change in changes {
        sleep(Duration::from_millis(200)).await;
        bank.run(change).await;
    }
    sleep(Duration::from_millis(200)).await;
    until_streaming(&bank).await;
    line = line.stopped(async |bank| drop(bank.change_often(1, 10).await)).await;
    writing.stop().await;
    line.finish_after(2).await;
}

/// F63: the pipeline ends and names the column. Told the new name, it goes on.
#[tokio::test]
async fn a_column_that_is_renamed_is_named() {
    let bank = Bank::fresh().await;
    bank.run(&changing("payload")).await;
    let Line { target, spec, relay, .. } = Line::start(&bank).await;
    bank.change_often(1, 10).await;
    bank.check(&target, 0).await;
    let rename = "ALTER TABLE outbox RENAME COLUMN payload TO body";
    bank.run(&format!("BEGIN; {rename}; {} COMMIT", changing("body"))).await;
    let unnoticed = bank.change_often(1, 10).await;
    let error = match relay.ended().await {
        Err(PipelineError::Source(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(error.kind, SourceErrorKind::Misconfigured, "{}", error.details());
    assert!(error.details().contains("payload"), "{}", error.details());
    assert!(unnoticed.iter().all(|event| !target.has(*event)));
    let columns = BTreeMap::from([("payload".to_owned(), "body".to_owned())]);
    let spec = SourceSpec { columns, ..spec };
    let relay = again(&bank, &spec, &target).await;
    target.until_arrived(&unnoticed).await;
    until_streaming(&bank).await;
    let events = bank.change_often(1, 10).await;
    target.until_arrived(&events).await;
    assert_eq!(target.count(), 30, "nothing came twice");
    relay.stop().await;
}

/// F63: renamed while nobody reads. The log has rows of before; the table has them all.
#[tokio::test]
async fn a_column_that_is_renamed_between_two_runs_is_read_from_the_table() {
    let bank = Bank::fresh().await;
    bank.run(&changing("payload")).await;
    let Line { target, spec, relay, .. } = Line::start(&bank).await;
    bank.change_often(1, 10).await;
    bank.check(&target, 0).await;
    relay.stop().await;
    let before = bank.change_often(1, 10).await;
    let rename = "ALTER TABLE outbox RENAME COLUMN payload TO body";
    bank.run(&format!("BEGIN; {rename}; {} COMMIT", changing("body"))).await;
    let after = bank.change_often(1, 10).await;
    let columns = BTreeMap::from([("payload".to_owned(), "body".to_owned())]);
    let spec = SourceSpec { columns, ..spec };
    let relay = Running::start_lasting(&spec, &target, options()).await;
    target.until_arrived(&before).await;
    target.until_arrived(&after).await;
    until_streaming(&bank).await;
    assert_eq!(target.count(), 30, "nothing came twice");
    relay.stop().await;
}
