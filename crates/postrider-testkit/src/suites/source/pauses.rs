//! What an operator stops.

use std::time::Duration;

use postrider_relay::pauses::Pause;
use postrider_relay::source::Verdict;

use super::reader::Reader;
use super::{OutboxCapabilities, PIPELINE, Subject, operated};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{event, events, key};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    let cases: Vec<Case<Subject, OutboxCapabilities>> = vec![
        case!(a_pause_is_kept_until_it_is_removed),
        case!(the_status_shows_a_pause),
        case!(the_status_tells_paused_keys_from_those_in_trouble),
        case!(a_key_is_stopped_by_itself),
        case!(a_key_that_goes_on_does_so_at_once),
    ];
    cases.into_iter().map(operated).collect()
}

fn told(pauses: &[Pause]) -> Vec<(Option<&str>, Option<String>, Option<&str>)> {
    let part = |pause: &Pause| pause.key.as_ref().map(ToString::to_string);
    pauses.iter().map(|it| (it.pipeline.as_deref(), part(it), it.reason.as_deref())).collect()
}

async fn a_pause_is_kept_until_it_is_removed(outbox: Subject) {
    let operator = outbox.operated().await;
    assert_eq!(operator.pauses().await.expect("pauses can be read"), []);
    assert!(operator.pause(None, None, Some("fire")).await.expect("it can be paused"));
    assert!(!operator.pause(None, None, None).await.expect("it can be paused again"));
    assert!(operator.pause(Some("orders"), None, None).await.expect("it can be paused"));
    let pauses = outbox.operated().await.pauses().await.expect("pauses can be read");
    assert_eq!(told(&pauses), [(None, None, Some("fire")), (Some("orders"), None, None)]);
    let removed = operator.resume(Some("other"), None).await.expect("it can be asked for");
    assert_eq!(removed, []);
    let removed = operator.resume(Some("orders"), None).await.expect("it can go on");
    assert_eq!(told(&removed), [(Some("orders"), None, None)]);
    operator.pause(Some("orders"), None, None).await.expect("it can be paused");
    assert_eq!(operator.resume(None, None).await.expect("all can go on").len(), 2);
    assert_eq!(operator.pauses().await.expect("pauses can be read"), []);
}

async fn the_status_shows_a_pause(outbox: Subject) {
    let operator = outbox.operated().await;
    let paused = async || {
        let status = operator.status().await.expect("the status can be read");
        status.pipelines[0].paused.clone()
    };
    assert_eq!(paused().await, None);
    operator.pause(Some("other"), None, None).await.expect("it can be paused");
    operator.pause(None, Some(&key("a")), None).await.expect("a key can be paused");
    assert_eq!(paused().await, None);
    operator.pause(Some(PIPELINE), None, Some("fire")).await.expect("it can be paused");
    assert_eq!(paused().await.and_then(|pause| pause.reason), Some("fire".to_owned()));
    operator.resume(Some(PIPELINE), None).await.expect("it can go on");
    operator.pause(None, None, None).await.expect("all can be paused");
    assert!(paused().await.is_some());
}

async fn the_status_tells_paused_keys_from_those_in_trouble(outbox: Subject) {
    let operator = outbox.operated().await;
    operator.pause(None, Some(&key("a")), None).await.expect("a key can be paused");
    operator.pause(Some(PIPELINE), Some(&key("a")), None).await.expect("a key can be paused");
    operator.pause(Some(PIPELINE), Some(&key("c")), None).await.expect("a key can be paused");
    operator.pause(Some("other"), Some(&key("b")), None).await.expect("a key can be paused");
    outbox.write(&[event("a", 1), event("b", 2)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    let hour = Duration::from_secs(3600);
    let defer = || Verdict::Deferred { delay: hour, failure: None, blocks: true };
    reader.settle(&[(&read[0], defer()), (&read[1], defer())]).await;
    let status = operator.status().await.expect("the status can be read");
    let pipeline = &status.pipelines[0];
    let keys = &pipeline.paused_keys;
    assert_eq!((keys.count, &keys.first[..], keys.waiting), (2, &[key("a"), key("c")][..], 1));
    assert_eq!((pipeline.blocked_keys, pipeline.keys_in_trouble()), (2, 1));
}

async fn a_key_is_stopped_by_itself(outbox: Subject) {
    let operator = outbox.operated().await;
    operator.pause(None, Some(&key("a")), None).await.expect("a key can be paused");
    operator.pause(Some("orders"), Some(&key("a")), None).await.expect("a key can be paused");
    operator.pause(Some("orders"), None, None).await.expect("it can be paused");
    let removed = operator.resume(None, None).await.expect("all can go on");
    assert_eq!(told(&removed), [(Some("orders"), None, None)], "keys stay");
    let removed = operator.resume(None, Some(&key("b"))).await.expect("it can be asked for");
    assert_eq!(removed, []);
    let removed = operator.resume(None, Some(&key("a"))).await.expect("a key can go on");
    assert_eq!(removed.len(), 2);
    assert_eq!(operator.pauses().await.expect("pauses can be read"), []);
}

/// G-03: what was deferred because of the pause need not wait for its time.
async fn a_key_that_goes_on_does_so_at_once(outbox: Subject) {
    let operator = outbox.operated().await;
    operator.pause(None, Some(&key("a")), None).await.expect("a key can be paused");
    outbox.write(&events("a", [1, 2])).await;
    outbox.write(&[event("b", 3)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(3).await;
    let hour = Duration::from_secs(3600);
    let defer = || Verdict::Deferred { delay: hour, failure: None, blocks: true };
    reader.settle(&[(&read[0], defer()), (&read[1], Verdict::Queued), (&read[2], defer())]).await;
    reader.expect_nothing("all of them wait for an hour").await;
    operator.resume(None, Some(&key("a"))).await.expect("a key can go on");
    assert_eq!(reader.read(2).await.len(), 2);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    assert_eq!(crate::suites::numbered::numbers(&read), [1, 2]);
    reader.deliver(&read).await;
    reader.expect_nothing("the other key still waits").await;
}
