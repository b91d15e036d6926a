//! What an operator sees and does.

use postrider_relay::admin::{Admin, DeadLetter, Selection};
use postrider_relay::failure::{Failure, FailureKind};
use postrider_relay::source::Verdict;

use super::reader::{Reader, parked};
use super::{OutboxCapabilities, PIPELINE, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, event, events, id, key, number, numbers};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(a_fresh_outbox_has_a_status),
        case!(the_status_counts_what_is_where),
        case!(dead_letters_are_listed_in_pages),
        case!(a_dead_letter_shows_why_and_what_waits),
        case!(a_dead_letter_keeps_its_bytes),
        case!(a_selection_means_all_of_its_parts),
        case!(dead_letters_are_filtered),
        case!(dead_letters_are_read_whole_in_pages),
        case!(what_is_not_parked_is_no_dead_letter),
        case!(a_letter_under_way_cannot_be_discarded),
    ]
}

async fn letters(admin: &dyn Admin, selection: &Selection) -> Vec<DeadLetter> {
    let letters = admin.dead_letters(selection, None, 100).await;
    letters.expect("dead letters can be listed")
}

fn listed(letters: &[DeadLetter]) -> Vec<u32> {
    let number_of = |letter: &DeadLetter| number(letter.event_id.parse().expect("an id is a UUID"));
    letters.iter().map(number_of).collect()
}

/// Parks events of keys `k1` to `k5`, each with one queued behind it.
async fn with_letters(outbox: &Subject) -> Reader {
    for number in 1..=5 {
        outbox.write(&events(&format!("k{number}"), [number, number + 10])).await;
    }
    let reader = Reader::start(&**outbox).await;
    let read = reader.read(10).await;
    let verdict = |index| if index % 2 == 0 { parked(3) } else { Verdict::Queued };
    let settlements: Vec<_> = (0..10).map(|index| (&read[index], verdict(index))).collect();
    reader.settle(&settlements).await;
    reader
}

async fn a_fresh_outbox_has_a_status(outbox: Subject) {
    let admin = outbox.admin().await;
    let status = admin.status().await.expect("the status can be read");
    assert_eq!(status.pipelines.len(), 1);
    let pipeline = &status.pipelines[0];
    assert_eq!((pipeline.unpublished, pipeline.oldest_unpublished_age), (0, None));
    assert_eq!(pipeline.last_settled_at, None);
    assert!(letters(&*admin, &Selection::default()).await.is_empty());
    let nothing = admin.dead_letter(&id(1).to_string()).await;
    assert_eq!(nothing.expect("a dead letter can be looked for"), None);
}

async fn the_status_counts_what_is_where(outbox: Subject) {
    let reader = with_letters(&outbox).await;
    outbox.write(&events("other", 21..24)).await;
    let admin = outbox.admin().await;
    let status = admin.status().await.expect("the status can be read");
    let pipeline = &status.pipelines[0];
    assert_eq!(pipeline.name, PIPELINE);
    assert_eq!(pipeline.unpublished, 3);
    assert!(pipeline.oldest_unpublished_age.is_some());
    assert_eq!((pipeline.parked, pipeline.queued, pipeline.deferred), (5, 5, 0));
    assert_eq!(pipeline.blocked_keys, 5);
    assert_eq!(pipeline.last_settled_at, None, "nothing was delivered");
    assert_eq!(reader.drain().await, [21, 22, 23]);
    let status = admin.status().await.expect("the status can be read");
    assert!(status.pipelines[0].last_settled_at.is_some());
    assert_eq!(status.pipelines[0].unpublished, 0);
}

/// G-07.
async fn dead_letters_are_listed_in_pages(outbox: Subject) {
    let _reader = with_letters(&outbox).await;
    let admin = outbox.admin().await;
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = admin.dead_letters(&Selection::default(), after, 2).await;
        let page = page.expect("dead letters can be listed");
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        after = Some(last.cursor);
        found.extend(listed(&page));
    }
    assert_eq!(found, [1, 2, 3, 4, 5]);
}

async fn a_dead_letter_shows_why_and_what_waits(outbox: Subject) {
    let _reader = with_letters(&outbox).await;
    let letters = letters(&*outbox.admin().await, &Selection::default()).await;
    let letter = &letters[0];
    assert_eq!(letter.pipeline, PIPELINE);
    assert_eq!(letter.key, key("k1"));
    assert_eq!(letter.event_type, "Event1");
    assert_eq!(letter.kind, "failed");
    assert_eq!(letter.error, "the sink did not like it");
    assert_eq!((letter.attempts, letter.queued_behind), (3, 1));
}

/// G-01, G-04: original bytes and headers.
async fn a_dead_letter_keeps_its_bytes(outbox: Subject) {
    let payload = vec![0, 1, 254, 255, b'\n'];
    let event = building("a", 1)
        .payload(payload.clone(), "application/octet-stream")
        .header("tenant", "acme ✓")
        .build()
        .expect("the event is valid");
    outbox.write(std::slice::from_ref(&event)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(1).await;
    reader.settle(&[(&read[0], parked(1))]).await;
    let admin = outbox.admin().await;
    let detail = admin.dead_letter(&id(1).to_string()).await;
    let detail = detail.expect("a dead letter can be read").expect("it is there");
    assert_eq!(detail.payload, payload);
    assert_eq!(detail.content_type, "application/octet-stream");
    assert!(detail.headers.contains("acme ✓"), "{}", detail.headers);
    admin.retry(&Selection::default()).await.expect("a retry works");
    let back = reader.read(1).await;
    let back = back[0].event.as_ref().expect("the event can be decoded");
    assert_eq!(
        (back.id(), back.payload(), back.headers()),
        (event.id(), event.payload(), event.headers())
    );
}

async fn a_selection_means_all_of_its_parts(outbox: Subject) {
    let reader = with_letters(&outbox).await;
    let admin = outbox.admin().await;
    let by_id = |numbers: &[u32]| Selection {
        event_ids: numbers.iter().map(|number| id(*number).to_string()).collect(),
        ..Selection::default()
    };
    let of_pipeline =
        |name: &str| Selection { pipeline: Some(name.to_owned()), ..Selection::default() };
    let of_key = |name: &str| Selection { key: Some(key(name)), ..Selection::default() };
    let cases = [
        (Selection::default(), vec![1, 2, 3, 4, 5]),
        (by_id(&[2, 4, 99]), vec![2, 4]),
        (of_key("k3"), vec![3]),
        (of_pipeline(PIPELINE), vec![1, 2, 3, 4, 5]),
        (of_pipeline("another"), vec![]),
        (Selection { key: Some(key("k3")), ..by_id(&[2]) }, vec![]),
    ];
    for (selection, expected) in cases {
        assert_eq!(listed(&letters(&*admin, &selection).await), expected, "{selection:?}");
    }
    assert_eq!(admin.retry(&of_pipeline("another")).await.expect("a retry works"), 0);
    assert_eq!(admin.discard(&by_id(&[99])).await.expect("a discard works"), 0);
    assert_eq!(admin.retry(&by_id(&[2, 4])).await.expect("a retry works"), 2);
    let mut drained = reader.drain().await;
    drained.sort_unstable();
    assert_eq!(drained, [2, 4, 12, 14]);
    assert_eq!(admin.discard(&of_key("k1")).await.expect("a discard works"), 1);
    assert_eq!(reader.drain().await, [11]);
    assert_eq!(listed(&letters(&*admin, &Selection::default()).await), [3, 5]);
}

async fn dead_letters_are_filtered(outbox: Subject) {
    outbox.write(&[event("a", 1), event("b", 2), event("c", 3)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(3).await;
    let parked = |kind, message: &str| Verdict::Parked {
        failure: Failure { kind, message: message.to_owned(), attempts: 1 },
        blocks: true,
    };
    let verdicts = [
        parked(FailureKind::Failed, "answered 503 Überlast"),
        parked(FailureKind::Rejected, "it is 50% TOO_large"),
        parked(FailureKind::Failed, "no answer"),
    ];
    for (record, verdict) in read.iter().zip(verdicts) {
        reader.settle(&[(record, verdict)]).await;
    }
    let admin = outbox.admin().await;
    let all = letters(&*admin, &Selection::default()).await;
    let kind = |kind: &str| Selection { kind: Some(kind.into()), ..Selection::default() };
    let error = |part: &str| Selection { error: Some(part.into()), ..Selection::default() };
    let of_type = |name: &str| Selection { event_type: Some(name.into()), ..Selection::default() };
    let hour = std::time::Duration::from_secs(3600);
    let (first, last) = (all[0].parked_at, all[2].parked_at);
    let since = |time| Selection { since: Some(time), ..Selection::default() };
    let until = |time| Selection { until: Some(time), ..Selection::default() };
    let cases = [
        (kind("failed"), vec![1, 3]),
        (kind("fail"), vec![]),
        (error("ANSWER"), vec![1, 3]),
        (error("Überlast"), vec![1]),
        (error("50%"), vec![2]),
        (error("5_%"), vec![]),
        (error("too_large"), vec![2]),
        (of_type("Event2"), vec![2]),
        (of_type("event2"), vec![]),
        (since(first), vec![1, 2, 3]),
        (since(last + hour), vec![]),
        (until(last + hour), vec![1, 2, 3]),
        (until(first), vec![]),
        (Selection { kind: Some("failed".into()), ..error("503") }, vec![1]),
        (Selection { kind: Some("rejected".into()), ..error("503") }, vec![]),
    ];
    for (selection, expected) in cases {
        assert_eq!(listed(&letters(&*admin, &selection).await), expected, "{selection:?}");
    }
    assert_eq!(admin.retry(&kind("rejected")).await.expect("a retry works"), 1);
    assert_eq!(reader.drain().await, [2]);
    assert_eq!(admin.discard(&error("503")).await.expect("a discard works"), 1);
    assert_eq!(listed(&letters(&*admin, &Selection::default()).await), [3]);
}

/// G-07.
async fn dead_letters_are_read_whole_in_pages(outbox: Subject) {
    let _reader = with_letters(&outbox).await;
    let admin = outbox.admin().await;
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = admin.dead_letter_details(&Selection::default(), after, 2).await;
        let page = page.expect("dead letters can be read");
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        after = Some(last.letter.cursor);
        found.extend(page);
    }
    let payloads: Vec<&[u8]> = found.iter().map(|detail| detail.payload.as_slice()).collect();
    assert_eq!(payloads, [b"1", b"2", b"3", b"4", b"5"]);
}

async fn what_is_not_parked_is_no_dead_letter(outbox: Subject) {
    outbox.write(&[event("a", 1), event("b", 2)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    let hour = std::time::Duration::from_secs(3600);
    reader
        .settle(&[(&read[0], super::reader::deferred(hour, 1)), (&read[1], Verdict::Queued)])
        .await;
    let admin = outbox.admin().await;
    assert!(letters(&*admin, &Selection::default()).await.is_empty());
    assert_eq!(admin.retry(&Selection::default()).await.expect("a retry works"), 0);
    assert_eq!(admin.discard(&Selection::default()).await.expect("a discard works"), 0);
    let nothing = admin.dead_letter(&id(1).to_string()).await;
    assert_eq!(nothing.expect("a dead letter can be looked for"), None);
}

/// G-01: a retry that is under way is no dead letter any more.
async fn a_letter_under_way_cannot_be_discarded(outbox: Subject) {
    let reader = with_letters(&outbox).await;
    let admin = outbox.admin().await;
    let of_key = Selection { key: Some(key("k1")), ..Selection::default() };
    admin.retry(&of_key).await.expect("a retry works");
    let back = reader.batch(1, std::time::Duration::from_secs(5)).await;
    assert_eq!(numbers(&back), [1]);
    assert_eq!(admin.discard(&of_key).await.expect("a discard works"), 0);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.drain().await, [1, 11]);
}
