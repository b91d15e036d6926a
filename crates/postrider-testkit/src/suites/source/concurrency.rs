//! Writers, reading and settling at the same time.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_relay::source::Verdict;

use super::reader::{Reader, deferred};
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::history::{History, Place};
use crate::suites::Case;
use crate::suites::numbered::{event, numbers};
use crate::suites::waiting::turns;

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(writers_at_once_lose_and_reorder_nothing),
        case!(reading_and_settling_go_on_at_the_same_time),
    ]
}

const WRITERS: u32 = 4;
const TRANSACTIONS: u32 = 25;

/// The numbers of one writer's transaction. Every third one is rolled back.
fn written(writer: u32, transaction: u32) -> (Vec<u32>, bool) {
    let first = (writer * TRANSACTIONS + transaction) * 2 + 1;
    (vec![first, first + 1], transaction % 3 != 2)
}

/// G-01, G-02, G-03, G-04: each writer has a key of its own.
async fn writers_at_once_lose_and_reorder_nothing(outbox: Subject) {
    let mut history = History::default();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        for transaction in 0..TRANSACTIONS {
            let (events, commits) = written(writer, transaction);
            for number in events.into_iter().filter(|_| commits) {
                let place = Place { key: writer.into(), number: Some(number.into()) };
                history.committed(number.into(), place);
            }
        }
        let outbox = outbox.clone();
        writers.push(tokio::spawn(async move {
            for transaction in 0..TRANSACTIONS {
                let (events, commits) = written(writer, transaction);
                let mut open = outbox.begin().await;
                for number in events {
                    open.publish(&event(&format!("w{writer}"), number)).await;
                    turns(1).await;
                }
                match commits {
                    true => open.commit().await,
                    false => open.rollback().await,
                }
            }
        }));
    }
    let reader = Reader::start(&*outbox).await;
    let mut busy = true;
    while busy {
        busy = writers.iter().any(|writer| !writer.is_finished());
        for number in reader.drain().await {
            history.arrived(number.into());
        }
    }
    for writer in writers {
        writer.await.expect("a writer does not fail");
    }
    assert_eq!(history.check(), []);
}

/// What the contract allows: one read and one settlement at a time, beside each other.
async fn reading_and_settling_go_on_at_the_same_time(outbox: Subject) {
    let written: Vec<_> =
        (1..=90).map(|number| event(&format!("k{}", number % 9), number)).collect();
    outbox.write(&written).await;
    let reader = Reader::start(&*outbox).await;
    let (sender, mut receiver) = tokio::sync::mpsc::channel(4);
    let reading = async {
        let mut left = 90;
        while left > 0 {
            let batch = reader.batch(7, Duration::from_secs(5)).await;
            left -= batch.iter().filter(|record| !is_third(record)).count();
            left -= batch.iter().filter(|record| is_third(record) && record.returned).count();
            sender.send(batch).await.expect("somebody settles");
        }
        drop(sender);
    };
    let settling = async {
        let mut delivered: BTreeMap<u32, u32> = BTreeMap::new();
        while let Some(batch) = receiver.recv().await {
            // Every third event is deferred the first time.
            let verdict = |record: &postrider_relay::source::Record| match record.returned {
                false if is_third(record) => deferred(Duration::ZERO, 1),
                _ => Verdict::Delivered,
            };
            let settlements: Vec<_> =
                batch.iter().map(|record| (record, verdict(record))).collect();
            for (record, verdict) in &settlements {
                if *verdict == Verdict::Delivered {
                    *delivered.entry(numbers([*record])[0]).or_default() += 1;
                }
            }
            reader.settle(&settlements).await;
        }
        delivered
    };
    let ((), delivered) = tokio::join!(reading, settling);
    assert_eq!(delivered, (1..=90).map(|number| (number, 1)).collect());
    assert!(!reader.pending().await);
}

fn is_third(record: &postrider_relay::source::Record) -> bool {
    numbers([record])[0].is_multiple_of(3)
}
