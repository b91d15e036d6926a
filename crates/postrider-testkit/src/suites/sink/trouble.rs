//! A target in trouble: the kind of error decides what the pipeline does, so it must be right.

use super::{Behaviour, Subject, TargetCapabilities, connect, ids, message, messages};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, event, spread};
use crate::suites::waiting::{turns, within};
use postrider_relay::sink::{FailureKind, SinkError};

pub(super) fn cases() -> Vec<Case<Subject, TargetCapabilities>> {
    let misbehaves = |can: &TargetCapabilities| !can.misbehaviours.is_empty();
    let can_be_away = |can: &TargetCapabilities| can.away.is_some();
    vec![
        case!(a_check_finds_nothing_wrong_and_publishes_nothing),
        case!(a_target_that_is_away_is_found_by_check_and_publish)
            .needing(can_be_away, "the target cannot be taken away"),
        case!(a_target_that_comes_back_is_used_again)
            .needing(can_be_away, "the target cannot be taken away"),
        case!(each_misbehaviour_has_its_kind).needing(misbehaves, "the target only works"),
        case!(an_unusable_topic_is_told_from_others)
            .needing(|can| can.lacks_topics, "every topic can be used"),
        case!(a_pause_that_is_asked_for_is_passed_on).needing(misbehaves, "the target only works"),
        case!(errors_show_nothing_of_the_event).needing(misbehaves, "the target only works"),
        case!(a_sink_goes_on_after_trouble).needing(misbehaves, "the target only works"),
        case!(a_call_that_is_given_up_tears_nothing),
        case!(a_sink_can_be_closed_at_once),
    ]
}

const CANARY: &str = "canary";

async fn a_check_finds_nothing_wrong_and_publishes_nothing(target: Subject) {
    let sink = connect(&target).await;
    assert!(sink.check().await.is_ok());
    assert!(target.arrivals().await.is_empty());
    assert_eq!(sink.publish(&[message(&target, event("a", 1))]).await, [Ok(())]);
    assert!(sink.check().await.is_ok());
    assert_eq!(ids(&target.arrivals().await), [1]);
}

/// G-06.
async fn a_target_that_is_away_is_found_by_check_and_publish(target: Subject) {
    let sink = connect(&target).await;
    target.behave(Behaviour::Away).await;
    let expected = target.capabilities().away;
    let checked = within("a check", sink.check()).await;
    assert_eq!(checked.err().map(|error| error.kind), expected);
    let answers = within("a call", sink.publish(&messages(&target, spread(3, 1..4)))).await;
    assert_eq!(answers.len(), 3);
    for answer in answers {
        assert_eq!(answer.err().map(|error| error.kind), expected);
    }
}

/// G-06.
async fn a_target_that_comes_back_is_used_again(target: Subject) {
    let sink = connect(&target).await;
    assert_eq!(sink.publish(&[message(&target, event("a", 1))]).await, [Ok(())]);
    target.behave(Behaviour::Away).await;
    assert!(sink.publish(&[message(&target, event("a", 2))]).await[0].is_err());
    target.behave(Behaviour::Well).await;
    assert!(sink.check().await.is_ok());
    assert_eq!(sink.publish(&[message(&target, event("a", 2))]).await, [Ok(())]);
    // What was kept before the target went may be gone with it.
    assert!(ids(&target.arrivals().await).ends_with(&[2]));
}

async fn failing(target: &Subject, behaviour: Behaviour, canary: bool) -> SinkError {
    let sink = connect(target).await;
    target.behave(behaviour).await;
    let mut sent = building("a", 1);
    if canary {
        sent = sent.payload(CANARY, "text/plain").header("x-secret", CANARY);
    }
    let sent = message(target, sent.build().expect("the event is valid"));
    let answer = within("a call", sink.publish(&[sent])).await.remove(0);
    target.behave(Behaviour::Well).await;
    answer.expect_err("a target that misbehaves is no success")
}

async fn each_misbehaviour_has_its_kind(target: Subject) {
    for (behaviour, kind) in target.capabilities().misbehaviours {
        let error = failing(&target, *behaviour, false).await;
        assert_eq!(error.kind, *kind, "{behaviour:?}: {error}");
    }
}

/// G-05: in one call, the topics of other keys are used.
async fn an_unusable_topic_is_told_from_others(target: Subject) {
    let sink = connect(&target).await;
    let topic = target.unusable_topic().await;
    let mut sent = messages(&target, spread(5, 1..11));
    // Of two keys the first event, of another one the second.
    for index in [0, 1, 7] {
        sent[index].topic.clone_from(&topic);
    }
    let answers = within("a call", sink.publish(&sent)).await;
    for (index, answer) in answers.iter().enumerate() {
        match (index, answer) {
            (0 | 1 | 7, Err(error)) => {
                assert_eq!(error.kind, FailureKind::Misconfigured, "{error}");
                assert!(error.about_topic && error.message.contains(&topic), "{error}");
            }
            // Behind one of its key, where that is kept in order.
            (5 | 6, answer) if sink.capabilities().ordered_by_key => assert!(answer.is_err()),
            (_, answer) => assert_eq!(answer, &Ok(()), "{index}"),
        }
    }
    let arrived = target.arrivals().await.len();
    assert_eq!(arrived, answers.iter().filter(|answer| answer.is_ok()).count());
}

async fn a_pause_that_is_asked_for_is_passed_on(target: Subject) {
    for (behaviour, kind) in target.capabilities().misbehaviours {
        let error = failing(&target, *behaviour, false).await;
        let asked = match behaviour {
            Behaviour::AnswersPause(_, seconds) if *kind == FailureKind::Throttled => {
                Some(*seconds)
            }
            _ => None,
        };
        assert_eq!(error.retry_after.map(|pause| pause.as_secs()), asked, "{behaviour:?}");
    }
}

/// G-11.
async fn errors_show_nothing_of_the_event(target: Subject) {
    for (behaviour, _) in target.capabilities().misbehaviours {
        let error = failing(&target, *behaviour, true).await;
        assert!(!format!("{error} {error:?}").contains(CANARY), "{behaviour:?}: {error:?}");
    }
}

/// G-06: the same sink, without a restart.
async fn a_sink_goes_on_after_trouble(target: Subject) {
    let sink = connect(&target).await;
    for (number, (behaviour, _)) in (1..).zip(target.capabilities().misbehaviours) {
        target.behave(*behaviour).await;
        let sent = [message(&target, event("a", number))];
        let answer = within("a call", sink.publish(&sent)).await.remove(0);
        assert!(answer.is_err(), "{behaviour:?}");
        target.behave(Behaviour::Well).await;
        let answer = within("a call", sink.publish(&sent)).await.remove(0);
        assert_eq!(answer, Ok(()), "after {behaviour:?}");
    }
}

/// G-01, G-03: neither what was kept before nor what comes after.
async fn a_call_that_is_given_up_tears_nothing(target: Subject) {
    let sink = connect(&target).await;
    let mut kept = Vec::new();
    for round in 0..40 {
        let given_up = messages(&target, spread(3, round * 10 + 1..round * 10 + 6));
        tokio::select! {
            biased;
            _ = sink.publish(&given_up) => {}
            () = turns(round as usize % 8) => {}
        }
        let number = round * 10 + 9;
        let answer = within("a call", sink.publish(&[message(&target, event("a", number))])).await;
        assert_eq!(answer, [Ok(())]);
        kept.push(number);
    }
    let arrived = ids(&target.arrivals().await);
    let of_kept: Vec<_> = arrived.iter().copied().filter(|number| number % 10 == 9).collect();
    assert_eq!(of_kept, kept);
}

async fn a_sink_can_be_closed_at_once(target: Subject) {
    for number in 1..4 {
        connect(&target).await.close().await.expect("a sink can be closed");
        let sink = connect(&target).await;
        assert_eq!(sink.publish(&[message(&target, event("a", number))]).await, [Ok(())]);
        sink.close().await.expect("a sink can be closed");
    }
    assert_eq!(ids(&target.arrivals().await), [1, 2, 3]);
}
