//! Somebody does something to the tables while a relay reads them.

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::pipeline::PipelineError;
use postrider_relay::relay::RelayError;
use postrider_relay::source::SourceErrorKind;
use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{
    Bank, Running, Setup, StandingBy, Target, for_each_progress, spec, until,
};
use postrider_testkit::servers::postgres::{Options, Server};
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::sleep;

use crate::{Line, options, stubborn};

/// F26.
#[tokio::test]
async fn a_locked_table_is_waited_for() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let line = Line::start(Arc::clone(&bank), bank.url(), progress).await;
        let writing = stubborn().start(&bank);
        let client = bank.connect().await;
        for _ in 0..3 {
            sleep(Duration::from_millis(200)).await;
            client.batch_execute("BEGIN; LOCK TABLE outbox").await.unwrap();
            sleep(Duration::from_millis(500)).await;
            client.batch_execute("COMMIT").await.unwrap();
        }
        writing.stop().await;
        line.finish().await;
    })
    .await;
}

/// F26: longer than a lease, with another relay that waits for its turn.
#[tokio::test]
async fn a_table_that_is_locked_beyond_the_lease_loses_and_reorders_nothing() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let setup = Setup { window: 64, ..Setup::new(bank.url(), &target, Progress::Mark) };
    let relays = [StandingBy::start(&setup), StandingBy::start(&setup)];
    let writing = stubborn().start(&bank);
    sleep(Duration::from_millis(500)).await;
    let client = bank.connect().await;
    client.batch_execute("BEGIN; LOCK TABLE outbox").await.unwrap();
    sleep(2 * setup.lease).await;
    client.batch_execute("COMMIT").await.unwrap();
    sleep(Duration::from_millis(500)).await;
    writing.stop().await;
    bank.check(&target, 2 * setup.window).await;
    for relay in relays {
        relay.stop().await;
    }
}

/// F63: the pipeline ends, and its message names what is missing. Undone, it goes on.
#[tokio::test]
async fn a_column_that_is_renamed_stops_the_pipeline_by_name() {
    for (progress, column) in [
        (Progress::Mark, "payload"),
        (Progress::Mark, "published_at"),
        (Progress::Delete, "aggregate_id"),
        (Progress::Cursor, "xid"),
    ] {
        let bank = Bank::fresh().await;
        let line = Line::start(Arc::clone(&bank), bank.url(), progress).await;
        let before = bank.change_often(1, 3).await;
        line.target.until_arrived(&before).await;
        bank.until_settled().await;
        bank.run(&format!("ALTER TABLE outbox RENAME COLUMN {column} TO renamed")).await;
        let error = match line.relay.ended().await {
            Err(PipelineError::Source(error)) => error,
            other => panic!("{column}: {other:?}"),
        };
        assert_eq!(error.kind, SourceErrorKind::Misconfigured, "{}", error.details());
        assert!(error.details().contains(column), "{}", error.details());
        let spec = spec(bank.url(), progress);
        let refused = spec.connect().await.err().map(|error| error.details());
        assert!(refused.as_ref().is_some_and(|it| it.contains(column)), "{refused:?}");
        bank.run(&format!("ALTER TABLE outbox RENAME COLUMN renamed TO {column}")).await;
        bank.change_often(1, 3).await;
        let relay = Running::start(&spec, &line.target).await;
        bank.check(&line.target, 0).await;
        relay.stop().await;
    }
}

/// F63: a table that was dropped, or replaced by another one.
#[tokio::test]
async fn a_table_that_is_gone_stops_the_pipeline_by_name() {
    for table in ["outbox", "outbox_leases", "outbox_failures"] {
        let bank = Bank::fresh().await;
        let target = Target::start().await;
        let relay = StandingBy::start(&Setup::new(bank.url(), &target, Progress::Mark));
        let before = bank.change_often(1, 3).await;
        target.until_arrived(&before).await;
        bank.until_settled().await;
        bank.run(&format!("ALTER TABLE {table} RENAME TO elsewhere")).await;
        let error = match relay.ended().await.remove(0).result {
            Err(RelayError::Source(error) | RelayError::Pipeline(PipelineError::Source(error))) => {
                error
            }
            other => panic!("{table}: {other:?}"),
        };
        assert_eq!(error.kind, SourceErrorKind::Misconfigured, "{}", error.details());
        assert!(error.details().contains(table), "{}", error.details());
    }
}

/// F64: what is truncated is gone. What comes after it is delivered, also with numbers that were
/// there before.
#[tokio::test]
async fn a_truncated_table_stalls_nothing() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let target = Target::start().await;
        let spec = spec(bank.url(), progress);
        let relay = Running::start_with(&spec, &target, options()).await;
        let before = bank.change_often(1, 20).await;
        target.until_arrived(&before).await;
        bank.until_settled().await;
        for truncate in ["TRUNCATE outbox", "TRUNCATE outbox RESTART IDENTITY"] {
            bank.run(truncate).await;
            bank.change_often(1, 20).await;
            bank.check(&target, 0).await;
        }
        relay.stop().await;
        bank.run("TRUNCATE outbox RESTART IDENTITY").await;
        bank.change_often(1, 20).await;
        let relay = Running::start_with(&spec, &target, options()).await;
        bank.check(&target, 0).await;
        relay.stop().await;
    })
    .await;
}

/// F64, G-10: numbers that are given again while events before them wait. The cursor has settled
/// those numbers beyond a gap, so it must not take the new events for the old ones.
#[tokio::test]
async fn numbers_that_are_given_again_hide_nothing() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let spec = spec(bank.url(), Progress::Cursor);
    target.behave(Behaviour::Hangs).await;
    let relay = Running::start_with(&spec, &target, options()).await;
    bank.change_often(1, 1).await;
    sleep(Duration::from_millis(300)).await;
    // From now on only the first event hangs.
    target.behave(Behaviour::Well).await;
    let beyond = bank.change_often(2, 5).await;
    target.until_arrived(&beyond).await;
    let is_written = "SELECT count(*) FROM outbox_checkpoints WHERE NOT isempty(beyond)";
    until("a gap is written", || async { bank.number(is_written).await == 1 }).await;
    relay.kill().await;
    bank.delete("aggregate_id = '1'").await;
    bank.run("TRUNCATE outbox RESTART IDENTITY").await;
    bank.change_often(3, 6).await;
    let relay = Running::start_with(&spec, &target, options()).await;
    bank.until_delivered(&target).await;
    relay.stop().await;
}

/// F64: rows that an operator deletes are not waited for.
#[tokio::test]
async fn rows_deleted_by_hand_are_not_waited_for() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let target = Target::start().await;
        target.behave(Behaviour::Away).await;
        let spec = spec(bank.url(), progress);
        let relay = Running::start_with(&spec, &target, options()).await;
        bank.change_often(1, 200).await;
        sleep(Duration::from_millis(500)).await;
        // Some are in memory by now, and some are not.
        assert_eq!(bank.delete("seq % 2 = 0").await, 100);
        relay.stop().await;
        let relay = Running::start_with(&spec, &target, options()).await;
        target.behave(Behaviour::Well).await;
        bank.change_often(1, 10).await;
        bank.check(&target, 0).await;
        relay.stop().await;
    })
    .await;
}

/// F65: policies could hide events. A role that none of them concerns sees everything.
#[tokio::test]
async fn row_level_security_is_refused_where_it_could_hide_events() {
    let server = Server::start(Options::default()).await;
    let bank = Bank::open(server.url("postgres")).await;
    bank.run(
        "CREATE ROLE reader LOGIN PASSWORD 'reader';
         GRANT ALL ON ALL TABLES IN SCHEMA public TO reader;
         ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
         CREATE POLICY half ON outbox TO reader USING (seq % 2 = 0)",
    )
    .await;
    bank.change_often(1, 10).await;
    let url = bank.url().replace("postrider:postrider@", "reader:reader@");
    let target = Target::start().await;
    let refused = StandingBy::start(&Setup::new(&url, &target, Progress::Mark)).ended().await;
    let refused = refused[0].result.as_ref().unwrap_err().to_string();
    assert!(refused.contains("row-level security"), "{refused}");
    bank.run("ALTER ROLE reader BYPASSRLS").await;
    let relay = Running::start(&spec(&url, Progress::Mark), &target).await;
    bank.check(&target, 0).await;
    relay.stop().await;
}

/// F65: two tenants in one database, with pipelines of the same name.
#[tokio::test]
async fn two_schemas_have_nothing_to_do_with_each_other() {
    let other = Bank::fresh().await;
    other.run("CREATE SCHEMA one; CREATE SCHEMA two").await;
    let mut lines = Vec::new();
    for schema in ["one", "two"] {
        let url = format!("{}?options=-csearch_path%3D{schema}", other.url());
        let bank = Arc::new(Bank::open(url.clone()).await);
        lines.push(Line::start(bank, &url, Progress::Mark).await);
    }
    let writing: Vec<_> = lines.iter().map(|line| stubborn().start(&line.bank)).collect();
    sleep(Duration::from_millis(500)).await;
    for writing in writing {
        writing.stop().await;
    }
    assert_eq!(other.number("SELECT count(*) FROM public.outbox").await, 0);
    for line in lines {
        assert!(line.bank.number("SELECT count(*) FROM facts").await > 0);
        line.finish().await;
    }
}
