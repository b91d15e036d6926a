//! One answer for each message, and `Ok` only for what is kept.

use futures_util::future::join_all;
use postrider_relay::replay;
use postrider_relay::sink::Message;
use uuid::Uuid;

use super::{Behaviour, Subject, TargetCapabilities, connect, ids, message, messages};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{event, events, spread};

pub(super) fn cases() -> Vec<Case<Subject, TargetCapabilities>> {
    vec![
        case!(the_sink_declares_what_it_can_do),
        case!(there_is_one_answer_for_each_message),
        case!(ok_means_that_it_is_kept),
        case!(what_is_kept_stays_when_the_sink_is_opened_again),
        case!(messages_of_a_key_arrive_in_order)
            .needing(|can| can.ordered_by_key, "the sink takes one message of a key at a time"),
        case!(one_call_after_another_arrives_in_order),
        case!(calls_at_once_do_not_mix),
        case!(a_refused_message_says_nothing_about_others)
            .needing(|can| can.refuses, "the target takes every message"),
        case!(a_message_that_comes_twice_is_the_same),
        case!(a_replay_is_stored_although_the_id_was_seen),
    ]
}

/// The pipeline plans by it.
async fn the_sink_declares_what_it_can_do(target: Subject) {
    let sink = connect(&target).await;
    let declared = sink.capabilities();
    assert_eq!(declared.ordered_by_key, target.capabilities().ordered_by_key);
    assert!(!declared.name.is_empty());
    let bounds = [declared.batch_events_max, declared.batch_bytes_max, declared.calls_max];
    assert!(bounds.iter().all(|bound| *bound > 0), "{declared:?}");
}

async fn there_is_one_answer_for_each_message(target: Subject) {
    let sink = connect(&target).await;
    assert_eq!(sink.publish(&[]).await, []);
    let most = sink.capabilities().batch_events_max.min(200) as u32;
    for (first, count) in [(1, 1), (1001, most)] {
        let answers = sink.publish(&messages(&target, spread(5, first..first + count))).await;
        assert_eq!(answers, vec![Ok(()); count as usize]);
    }
    assert_eq!(target.arrivals().await.len(), 1 + most as usize);
}

/// G-01: at the moment of the answer.
async fn ok_means_that_it_is_kept(target: Subject) {
    let sink = connect(&target).await;
    assert!(target.arrivals().await.is_empty());
    for number in 1..=10 {
        assert_eq!(sink.publish(&[message(&target, event("a", number))]).await, [Ok(())]);
        assert_eq!(target.arrivals().await.len(), number as usize);
    }
}

/// G-01: over a close, and over an end without one.
async fn what_is_kept_stays_when_the_sink_is_opened_again(target: Subject) {
    for number in 1..=4 {
        let sink = connect(&target).await;
        assert_eq!(sink.publish(&[message(&target, event("a", number))]).await, [Ok(())]);
        match number % 2 {
            0 => sink.close().await.expect("the sink can be closed"),
            _ => drop(sink),
        }
    }
    assert_eq!(ids(&target.arrivals().await), [1, 2, 3, 4]);
}

/// G-03.
async fn messages_of_a_key_arrive_in_order(target: Subject) {
    let sink = connect(&target).await;
    let answers = sink.publish(&messages(&target, events("a", 1..101))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(ids(&target.arrivals().await), (1..=100).collect::<Vec<_>>());
}

/// G-03.
async fn one_call_after_another_arrives_in_order(target: Subject) {
    let sink = connect(&target).await;
    for number in 1..=30 {
        assert_eq!(sink.publish(&[message(&target, event("a", number))]).await, [Ok(())]);
    }
    assert_eq!(ids(&target.arrivals().await), (1..=30).collect::<Vec<_>>());
}

/// As many as the sink allows; and more, which must wait and not fail.
async fn calls_at_once_do_not_mix(target: Subject) {
    let sink = connect(&target).await;
    let calls = sink.capabilities().calls_max.min(16) as u32 * 2;
    let batches: Vec<_> = (0..calls)
        .map(|call| {
            let first = call * 10 + 1;
            messages(&target, spread(1000, first..first + 3))
        })
        .collect();
    let answers = join_all(batches.iter().map(|batch| sink.publish(batch))).await;
    assert!(answers.iter().flatten().all(Result::is_ok), "{answers:?}");
    let mut arrived = ids(&target.arrivals().await);
    arrived.sort_unstable();
    let expected = (0..calls).flat_map(|call| call * 10 + 1..call * 10 + 4);
    assert_eq!(arrived, expected.collect::<Vec<_>>());
}

/// G-05.
async fn a_refused_message_says_nothing_about_others(target: Subject) {
    let sink = connect(&target).await;
    target.behave(Behaviour::RefusesKey("bad")).await;
    let batch = [event("a", 1), event("bad", 2), event("b", 3), event("bad", 4), event("c", 5)];
    let answers = sink.publish(&messages(&target, batch.into())).await;
    let accepted: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [true, false, true, false, true]);
    assert_eq!(ids(&target.arrivals().await), [1, 3, 5]);
}

/// G-04: a consumer knows a duplicate by its id, and it has the same contents.
async fn a_message_that_comes_twice_is_the_same(target: Subject) {
    let sink = connect(&target).await;
    let message = message(&target, event("a", 1));
    for _ in 0..2 {
        assert_eq!(sink.publish(std::slice::from_ref(&message)).await, [Ok(())]);
    }
    let arrivals = target.arrivals().await;
    let expected = if sink.capabilities().deduplicates { 1 } else { 2 };
    assert_eq!(arrivals.len(), expected);
    let parts = |index: usize| (arrivals[index].id, arrivals[index].body.clone());
    assert_eq!(parts(0), parts(expected - 1));
}

/// G-04: what the sink remembers is in no replay's way, and holds within each of them.
async fn a_replay_is_stored_although_the_id_was_seen(target: Subject) {
    let sink = connect(&target).await;
    let deduplicates = sink.capabilities().deduplicates;
    let sent = messages(&target, events("a", 1..3));
    let mut expected = Vec::new();
    for run in [None, Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2))] {
        let message = |message: &Message| match run {
            Some(run) => replay::message(message.clone(), run),
            None => message.clone(),
        };
        // Each is tried again, as after an answer that was lost.
        for _ in 0..2 {
            for message in sent.iter().map(message) {
                assert_eq!(sink.publish(&[message]).await, [Ok(())]);
            }
        }
        expected.extend(if deduplicates { vec![1, 2] } else { vec![1, 2, 1, 2] });
    }
    assert_eq!(ids(&target.arrivals().await), expected);
}
