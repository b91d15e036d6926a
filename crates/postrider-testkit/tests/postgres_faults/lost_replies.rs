//! The server has settled, and the relay does not hear of it.

use std::time::Duration;

use postrider::schema::TableName;
use postrider_relay::admin::Selection;
use postrider_relay::failure::{Failure, FailureKind};
use postrider_relay::source::{
    BatchLimit, Handle, Record, Settled, Settlement, Source, SourceErrorKind, Verdict,
};
use postrider_relay::sources::{Progress, connect_admin};
use postrider_testkit::chaos::{Bank, Running, Target, spec, until};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::suites::sink::Behaviour;

const LIMIT: BatchLimit = BatchLimit { events: 100, bytes: 1 << 20, wait: Duration::from_secs(5) };

async fn until_dropped(proxy: &Proxy, replies: u64) {
    until("the reply is lost", || async { proxy.dropped_replies() == replies }).await;
}

#[tokio::test]
async fn cursor() {
    a_settlement_without_an_answer_is_repeated(Progress::Cursor, "advanced AS").await;
}

#[tokio::test]
async fn delete() {
    a_settlement_without_an_answer_is_repeated(Progress::Delete, "DELETE FROM public.outbox").await;
}

#[tokio::test]
async fn mark() {
    a_settlement_without_an_answer_is_repeated(Progress::Mark, "UPDATE public.outbox").await;
}

/// G-01, G-04.
async fn a_settlement_without_an_answer_is_repeated(progress: Progress, statement: &str) {
    let (_database, bank) = crate::bank().await;
    let target = Target::start().await;
    let proxy = Proxy::start(address(bank.url())).await;
    let relay = Running::start(&spec(&proxy.url(bank.url()), progress), &target).await;
    for round in 1..=3 {
        proxy.drop_reply_of(statement);
        let events = bank.change_often(round, 10).await;
        target.until_arrived(&events).await;
        until_dropped(&proxy, round).await;
    }
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 30);
}

#[tokio::test]
async fn parked_by_cursor() {
    events_set_aside_without_an_answer_are_in_one_place(Progress::Cursor).await;
}

#[tokio::test]
async fn parked_by_mark() {
    events_set_aside_without_an_answer_are_in_one_place(Progress::Mark).await;
}

/// G-01, G-05: once as they are parked and queued, once as they come back.
async fn events_set_aside_without_an_answer_are_in_one_place(progress: Progress) {
    let (_database, bank) = crate::bank().await;
    let target = Target::start().await;
    let proxy = Proxy::start(address(bank.url())).await;
    let mut relay = Running::start(&spec(&proxy.url(bank.url()), progress), &target).await;
    let events = bank.change_often(2, 1).await;
    target.until_arrived(&events).await;
    target.behave(Behaviour::RefusesKey("1")).await;
    proxy.drop_reply_of_commit();
    let aside = bank.change_often(1, 10).await;
    until_dropped(&proxy, 1).await;
    bank.change_often(2, 10).await;
    bank.check(&target, 0).await;
    let query = "SELECT count(*) FROM outbox_failures";
    assert_eq!(bank.number(query).await, 10);
    assert_eq!(bank.number(&format!("{query} WHERE state = 'parked'")).await, 1);
    relay.until("the key is blocked", |status| status.blocked_keys == 1).await;

    target.behave(Behaviour::Well).await;
    proxy.drop_reply_of_commit();
    let admin = connect_admin(bank.url(), &TableName::default(), &Default::default()).await;
    assert_eq!(admin.unwrap().retry(&Selection::default()).await.unwrap(), 1);
    target.until_arrived(&aside).await;
    until_dropped(&proxy, 2).await;
    relay.until("no key is blocked", |status| status.blocked_keys == 0).await;
    let more = bank.change_often(1, 3).await;
    target.until_arrived(&more).await;
    bank.check(&target, 0).await;
    assert_eq!(bank.number(query).await, 0);
    assert_eq!(relay.stop().await.delivered, 24);
}

/// Settles with the answer lost, and then once more.
async fn settle_twice(proxy: &Proxy, source: &dyn Source, settlements: &[Settlement]) -> Settled {
    let lost = proxy.dropped_replies();
    proxy.drop_reply_of_commit();
    let error = source.settle(settlements).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unavailable, "{}", error.details());
    assert_eq!(proxy.dropped_replies(), lost + 1);
    source.settle(settlements).await.unwrap()
}

async fn read(source: &dyn Source, count: usize) -> Vec<Record> {
    let mut records = Vec::new();
    while records.len() < count {
        let more = source.next_batch(LIMIT).await.unwrap();
        assert!(!more.is_empty(), "{} of {count} records", records.len());
        records.extend(more);
    }
    records
}

#[tokio::test]
async fn deferred_by_cursor() {
    events_deferred_without_an_answer_are_in_one_place(Progress::Cursor).await;
}

#[tokio::test]
async fn deferred_by_mark() {
    events_deferred_without_an_answer_are_in_one_place(Progress::Mark).await;
}

/// G-01, G-05.
async fn events_deferred_without_an_answer_are_in_one_place(progress: Progress) {
    let (_database, bank) = crate::bank().await;
    bank.change_often(1, 3).await;
    bank.change_often(2, 1).await;
    let proxy = Proxy::start(address(bank.url())).await;
    let source = spec(&proxy.url(bank.url()), progress).connect().await.unwrap();
    source.resume().await.unwrap();
    let records = read(&*source, 4).await;
    let failure = Failure { kind: FailureKind::Failed, message: "no".to_owned(), attempts: 3 };
    let delay = Duration::from_millis(500);
    let settlement = |index: usize, verdict| {
        let handle: Handle = records[index].handle;
        Settlement { handle, verdict }
    };
    let settlements = [
        settlement(0, Verdict::Deferred { delay, failure: Some(failure), blocks: true }),
        settlement(1, Verdict::Queued),
        settlement(2, Verdict::Queued),
        settlement(3, Verdict::Delivered),
    ];
    let settled = settle_twice(&proxy, &*source, &settlements).await;
    assert_eq!(settled.unblocked, []);
    assert_eq!(states(&bank).await, "deferred 3, queued 0, queued 0");

    let returned = read(&*source, 3).await;
    let ids = |records: &[Record]| -> Vec<_> {
        records.iter().map(|record| record.event.as_ref().unwrap().id()).collect()
    };
    assert_eq!(ids(&returned), ids(&records[..3]));
    assert_eq!(returned[0].attempts, 3);
    let delivered = |record: &Record| {
        assert!(record.returned);
        Settlement { handle: record.handle, verdict: Verdict::Delivered }
    };
    let settlements: Vec<_> = returned.iter().map(delivered).collect();
    let settled = settle_twice(&proxy, &*source, &settlements).await;
    assert_eq!(settled.unblocked.len(), 1, "the key is free again");
    assert_eq!(states(&bank).await, "");
    assert!(!source.pending().await.unwrap());
    source.close().await.unwrap();
}

/// What is set aside, in order.
async fn states(bank: &Bank) -> String {
    let query = "SELECT coalesce(string_agg(state || ' ' || attempts, ', ' ORDER BY seq), '')
         FROM outbox_failures";
    bank.connect().await.query_one(query, &[]).await.unwrap().get(0)
}
