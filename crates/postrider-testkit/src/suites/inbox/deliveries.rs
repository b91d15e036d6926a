//! Several deliveries of an event at the same time.

use std::collections::VecDeque;
use std::time::Duration;

use postrider::Claim;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Connector, applied, apply, claim_count, on_thread};
use crate::case;
use crate::suites::Case;
use crate::suites::waiting::{until, within, within_time};
use crate::suites::writer::{Capabilities, End, Subject};

const WORKERS: usize = 5;
const EVENTS: u32 = 1_000;
const DELIVERIES_EACH: usize = 3;
const LONGEST: Duration = Duration::from_secs(600);

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(a_second_delivery_waits_and_is_a_duplicate),
        case!(a_second_delivery_is_first_if_the_first_fails),
        case!(a_second_delivery_is_first_if_the_first_is_lost),
        case!(the_ledger_sums_up).lasting(LONGEST),
    ]
}

/// G-08.
async fn a_second_delivery_waits_and_is_a_duplicate(database: Subject) {
    assert_eq!(second_delivery(&database, Some(End::Commit)).await, Claim::Duplicate);
}

/// G-08.
async fn a_second_delivery_is_first_if_the_first_fails(database: Subject) {
    assert_eq!(second_delivery(&database, Some(End::Rollback)).await, Claim::First);
}

/// G-08: as when the consumer's process is killed.
async fn a_second_delivery_is_first_if_the_first_is_lost(database: Subject) {
    assert_eq!(second_delivery(&database, None).await, Claim::First);
}

/// Delivers an event while its first delivery is under way, which then ends so or is lost.
async fn second_delivery(database: &Subject, end: Option<End>) -> Claim {
    let id = Uuid::now_v7();
    let mut client = database.client().await;
    let mut first = client.begin().await;
    let claim = first.once("billing", id).await.expect("the claim can be made");
    assert_eq!(claim, Claim::First);
    apply(&mut *first, "billing", 7).await;
    let (begun, has_begun) = oneshot::channel();
    let mut second = on_thread(database, async move |connect| {
        let mut client = connect().await;
        let mut inbox = client.begin().await;
        begun.send(()).expect("the case waits for it");
        let claim = inbox.once("billing", id).await.expect("the claim can be made");
        if claim == Claim::First {
            apply(&mut *inbox, "billing", 7).await;
        }
        inbox.end(End::Commit).await;
        claim
    });
    within("the second has begun", has_begun).await.expect("it has not failed");
    until("the second waits", || database.someone_waits()).await;
    assert!(second.try_recv().is_err(), "the second has not waited");
    match end {
        Some(end) => first.end(end).await,
        None => first.lose().await,
    }
    drop(client);
    let claim = within("the second is done", second).await.expect("it has not failed");
    assert_eq!(applied(database, "billing").await, (1, 7));
    assert_eq!(claim_count(database).await, 1);
    claim
}

/// What becomes of a delivery.
#[derive(Clone, Copy)]
enum Fate {
    Handled,
    Failed,
    Lost,
}

#[derive(Clone, Copy)]
struct Delivery {
    id: Uuid,
    amount: u32,
    fate: Fate,
}

/// G-08: every event counts once, though each is delivered three times, and again after what went
/// wrong.
async fn the_ledger_sums_up(database: Subject) {
    let mut random = fastrand::Rng::with_seed(8);
    let mut deliveries: Vec<Delivery> = (1..=EVENTS)
        .flat_map(|amount| {
            let id = Uuid::now_v7();
            std::iter::repeat_n((id, amount), DELIVERIES_EACH)
        })
        .map(|(id, amount)| {
            let fate = match random.u8(..40) {
                0 => Fate::Lost,
                1..8 => Fate::Failed,
                _ => Fate::Handled,
            };
            Delivery { id, amount, fate }
        })
        .collect();
    random.shuffle(&mut deliveries);
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let mine = deliveries.iter().skip(worker).step_by(WORKERS).copied().collect();
            on_thread(&database, async move |connect| consume(&connect, mine).await)
        })
        .collect();
    for worker in workers {
        let done = within_time(LONGEST, "a worker is done", worker).await;
        done.expect("no worker has failed");
    }
    let sum = i64::from(EVENTS) * i64::from(EVENTS + 1) / 2;
    assert_eq!(applied(&database, "billing").await, (i64::from(EVENTS), sum));
    assert_eq!(claim_count(&database).await, i64::from(EVENTS));
}

/// Handles deliveries until all of them are acknowledged.
async fn consume(connect: &Connector, mut deliveries: VecDeque<Delivery>) {
    let mut client = connect().await;
    while let Some(delivery) = deliveries.pop_front() {
        let mut inbox = client.begin().await;
        let claim = inbox.once("billing", delivery.id).await.expect("the claim can be made");
        if claim == Claim::First {
            apply(&mut *inbox, "billing", delivery.amount).await;
        }
        let again = Delivery { fate: Fate::Handled, ..delivery };
        match delivery.fate {
            Fate::Handled => inbox.end(End::Commit).await,
            Fate::Failed => {
                inbox.end(End::Rollback).await;
                deliveries.push_back(again);
            }
            Fate::Lost => {
                inbox.lose().await;
                drop(client);
                client = connect().await;
                deliveries.push_back(again);
            }
        }
    }
}
