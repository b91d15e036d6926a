//! What an operator sees of single events.

use postrider_relay::admin::Selection;
use postrider_relay::events::{EventRow, Events, Fate, InPipeline, Place, Standing, Wanted};
use postrider_relay::source::Verdict;

use super::reader::{Reader, parked};
use super::{OutboxCapabilities, PIPELINE, Subject, operated};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, event, events, id, key, number};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    let cases: Vec<Case<Subject, OutboxCapabilities>> = vec![
        case!(an_event_has_a_life),
        case!(an_event_that_was_delivered_is_settled)
            .needing(|can| can.keeps_delivered, "a delivered event is gone"),
        case!(an_event_that_was_set_aside_is_found_when_its_row_is_gone)
            .needing(|can| !can.keeps_delivered, "rows stay"),
        case!(an_event_that_was_discarded_is_known_as_such),
        case!(an_event_that_was_set_aside_is_settled_when_it_is_delivered)
            .needing(|can| can.keeps_delivered, "a delivered event is gone"),
        case!(an_event_that_is_not_there_has_no_life),
        case!(an_event_shows_its_bytes_only_when_asked),
        case!(the_newest_events_come_in_order),
        case!(what_is_written_is_followed),
        case!(an_event_that_commits_late_is_followed)
            .needing(|can| can.concurrent_transactions, "one transaction at a time"),
        case!(stored_events_are_read_again),
    ];
    cases.into_iter().map(operated).collect()
}

const NONE: [u32; 0] = [];

fn numbers(events: &[EventRow]) -> Vec<u32> {
    let number_of = |event: &EventRow| number(event.event_id.parse().expect("an id is a UUID"));
    events.iter().map(number_of).collect()
}

/// How an event stands in the only pipeline.
async fn standing(events: &dyn Events, of: u32) -> InPipeline {
    let life = events.event(&id(of).to_string(), false).await;
    let mut life = life.expect("an event can be looked for").expect("it is there");
    assert_eq!(life.pipelines.len(), 1, "{life:?}");
    life.pipelines.remove(0)
}

async fn an_event_has_a_life(outbox: Subject) {
    outbox.write(&events("a", 1..4)).await;
    let operator = outbox.operated().await;
    let life = operator.event(&id(1).to_string(), false).await;
    let life = life.expect("an event can be looked for").expect("it is there");
    let is_unread = |it: &InPipeline| it.standing == Standing::Waiting;
    assert!(life.in_outbox && life.pipelines.iter().all(is_unread), "nobody has read it: {life:?}");
    assert_eq!((life.event.event_type.as_str(), life.event.aggregate_id.as_str()), ("Event1", "a"));
    assert!(life.event.created_at.is_some());
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(3).await;
    let waiting = standing(&*operator, 2).await;
    assert_eq!((waiting.pipeline.as_str(), &waiting.standing), (PIPELINE, &Standing::Waiting));
    reader
        .settle(&[(&read[0], parked(3)), (&read[1], Verdict::Queued), (&read[2], Verdict::Queued)])
        .await;
    let first = standing(&*operator, 1).await;
    let Standing::SetAside(aside) = &first.standing else { panic!("{first:?}") };
    assert_eq!((aside.state.as_str(), aside.attempts), ("parked", 3));
    assert_eq!(aside.error.as_deref(), Some("the sink did not like it"));
    assert_eq!((first.ahead, first.behind), (0, None));
    let third = standing(&*operator, 3).await;
    let Standing::SetAside(aside) = &third.standing else { panic!("{third:?}") };
    assert_eq!((aside.state.as_str(), third.ahead), ("queued", 2));
    assert_eq!(third.behind.map(|first| first.event_id), Some(id(1).to_string()));
}

async fn an_event_that_was_delivered_is_settled(outbox: Subject) {
    outbox.write(&[event("a", 1), event("b", 2)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    let operator = outbox.operated().await;
    let is_settled =
        async |of| matches!(standing(&*operator, of).await.standing, Standing::Settled { .. });
    assert!(!is_settled(1).await && !is_settled(2).await);
    reader.deliver(&read).await;
    // Where the log is read, a later settlement notes it.
    let mut later = 3;
    while !(is_settled(1).await && is_settled(2).await) {
        assert!(later < 100, "it is not settled");
        outbox.write(&[event("c", later)]).await;
        let read = reader.read(1).await;
        reader.deliver(&read).await;
        later += 1;
    }
}

async fn an_event_that_was_set_aside_is_found_when_its_row_is_gone(outbox: Subject) {
    outbox.write(&[event("a", 1)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(1).await;
    reader.settle(&[(&read[0], parked(1))]).await;
    let operator = outbox.operated().await;
    let life = operator.event(&id(1).to_string(), true).await;
    let life = life.expect("an event can be looked for").expect("it is there");
    assert!(!life.in_outbox);
    assert_eq!(life.event.payload.as_deref(), Some(b"1".as_slice()));
    assert!(matches!(standing(&*operator, 1).await.standing, Standing::SetAside(_)));
}

/// What became of stored events, by number.
async fn fates(events: &dyn Events) -> Vec<(u32, Fate)> {
    let stored =
        events.stored(&Wanted::default(), i64::MIN, 100).await.expect("it can be looked at");
    let fates = events.fates(PIPELINE, &[], &stored).await.expect("they can be looked for");
    let number_of = |position: i64| {
        let stored = stored.iter().find(|it| it.position == position).expect("it was asked for");
        number(stored.event_id.parse().expect("an id is a UUID"))
    };
    let mut fates: Vec<_> = fates.into_iter().map(|(at, fate)| (number_of(at), fate)).collect();
    fates.sort_by_key(|(number, _)| *number);
    fates
}

async fn an_event_that_was_discarded_is_known_as_such(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    reader.settle(&[(&read[0], parked(3)), (&read[1], Verdict::Queued)]).await;
    outbox.write(&events("b", 3..4)).await;
    let operator = outbox.operated().await;
    let discarded = operator.discard(&Selection::default()).await;
    assert_eq!(discarded.expect("it can be discarded"), 1);
    assert_eq!(operator.discard(&Selection::default()).await.expect("nothing is left"), 0);
    let is_discarded = async || match standing(&*operator, 1).await.standing {
        Standing::SetAside(aside) => aside.is_discarded(),
        Standing::Settled { .. } | Standing::Waiting => false,
    };
    assert!(is_discarded().await);
    let expected = [(1, Fate::Discarded), (2, Fate::SetAside), (3, Fate::Waiting)];
    // Where rows are deleted, those that are set aside are not stored any more.
    let known = fates(&*operator).await;
    assert!(known.iter().all(|it| expected.contains(it)) && !known.is_empty(), "{known:?}");
    let status = operator.status().await.expect("the status can be read");
    let counts = (status.pipelines[0].parked, status.pipelines[0].queued);
    assert_eq!((counts, status.pipelines[0].blocked_keys), ((0, 1), 1));
    assert_eq!(reader.drain().await, [2, 3], "what waited behind it goes on");
    assert!(is_discarded().await, "it stays known");
    let of_type = operator.fates(PIPELINE, &["Invoice".to_owned()], &[]).await;
    assert_eq!(of_type.expect("nothing was asked for"), []);
}

async fn an_event_that_was_set_aside_is_settled_when_it_is_delivered(outbox: Subject) {
    outbox.write(&[event("a", 1)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(1).await;
    reader.settle(&[(&read[0], parked(3))]).await;
    let operator = outbox.operated().await;
    let settled_at = async || {
        let status = operator.status().await.expect("the status can be read");
        status.pipelines[0].last_settled_at
    };
    assert_eq!(settled_at().await, None, "nothing was delivered");
    let parked_at = operator.now().await.expect("there is a clock");
    assert_eq!(operator.retry(&Selection::default()).await.expect("it can be retried"), 1);
    while operator.now().await.expect("there is a clock") <= parked_at {}
    assert_eq!(reader.drain().await, [1]);
    assert_eq!(fates(&*operator).await, [(1, Fate::Published)]);
    assert!(settled_at().await.is_some_and(|at| at >= parked_at), "it was delivered");
    let Standing::Settled { at } = standing(&*operator, 1).await.standing else {
        panic!("it is delivered");
    };
    // A cursor does not know when.
    assert!(at.is_none_or(|at| at >= parked_at), "settled at {at:?}, parked before {parked_at:?}");
}

async fn an_event_that_is_not_there_has_no_life(outbox: Subject) {
    outbox.write(&[event("a", 1)]).await;
    let operator = outbox.operated().await;
    for nobody in [id(2).to_string(), "nonsense".to_owned(), String::new()] {
        let life = operator.event(&nobody, false).await;
        assert_eq!(life.expect("an event can be looked for"), None, "{nobody}");
    }
}

/// G-11.
async fn an_event_shows_its_bytes_only_when_asked(outbox: Subject) {
    let payload = vec![0, 1, 254, 255];
    let building = building("a", 1).payload(payload.clone(), "application/octet-stream");
    outbox.write(&[building.build().expect("the event is valid")]).await;
    let operator = outbox.operated().await;
    for asked in [false, true] {
        let shown = asked.then(|| payload.clone());
        let life = operator.event(&id(1).to_string(), asked).await;
        let life = life.expect("an event can be looked for").expect("it is there");
        assert_eq!((life.event.payload, life.event.payload_bytes), (shown.clone(), 4));
        let wanted = Wanted { payload: asked, ..Wanted::default() };
        let newest = operator.newest(&wanted, 1).await.expect("the newest can be read");
        assert_eq!((&newest.events[0].payload, newest.events[0].payload_bytes), (&shown, 4));
    }
}

async fn the_newest_events_come_in_order(outbox: Subject) {
    for number in 1..=6 {
        let key = if number % 2 == 0 { "even" } else { "odd" };
        outbox.write(&[event(key, number)]).await;
    }
    let operator = outbox.operated().await;
    let newest = async |wanted: Wanted, limit| {
        numbers(&operator.newest(&wanted, limit).await.expect("the newest can be read").events)
    };
    assert_eq!(newest(Wanted::default(), 100).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(newest(Wanted::default(), 2).await, [5, 6]);
    let of_key = Wanted { key: Some(key("even")), ..Wanted::default() };
    assert_eq!(newest(of_key, 2).await, [4, 6]);
    let of_type = |name: &str| Wanted { event_type: Some(name.into()), ..Wanted::default() };
    assert_eq!(newest(of_type("Event3"), 9).await, [3]);
    assert_eq!(newest(of_type("Event9"), 9).await, NONE);
    let of_aggregates = Wanted { aggregate_type: Some("Order".into()), ..Wanted::default() };
    assert_eq!(newest(of_aggregates, 1).await, [6]);
    let now = std::time::SystemTime::now();
    let hour = std::time::Duration::from_secs(3600);
    let since = |since| Wanted { since: Some(since), ..Wanted::default() };
    assert_eq!(newest(since(now - hour), 9).await.len(), 6);
    assert_eq!(newest(since(now + hour), 9).await, NONE);
    let until = Wanted { until: Some(now - hour), ..Wanted::default() };
    assert_eq!(newest(until, 9).await, NONE);
}

async fn follow(events: &dyn Events, place: &mut Place, wanted: &Wanted, limit: usize) -> Vec<u32> {
    let written = events.written(place, wanted, limit).await.expect("new events can be read");
    *place = written.next;
    numbers(&written.events)
}

async fn what_is_written_is_followed(outbox: Subject) {
    outbox.write(&events("a", 1..4)).await;
    let operator = outbox.operated().await;
    let all = Wanted::default();
    let newest = operator.newest(&all, 1).await.expect("the newest can be read");
    assert_eq!(numbers(&newest.events), [3]);
    let mut place = newest.next;
    assert_eq!(follow(&*operator, &mut place, &all, 10).await, NONE);
    outbox.write(&events("a", 4..7)).await;
    outbox.write(&[event("b", 7)]).await;
    assert_eq!(follow(&*operator, &mut place, &all, 2).await, [4, 5]);
    outbox.write(&[event("b", 8)]).await;
    assert_eq!(follow(&*operator, &mut place, &all, 2).await, [6, 7]);
    assert_eq!(follow(&*operator, &mut place, &all, 2).await, [8]);
    assert_eq!(follow(&*operator, &mut place, &all, 2).await, NONE);
    let of_key = Wanted { key: Some(key("b")), ..Wanted::default() };
    outbox.write(&[event("a", 9), event("b", 10)]).await;
    assert_eq!(follow(&*operator, &mut place, &of_key, 2).await, [10]);
    assert_eq!(follow(&*operator, &mut place, &all, 2).await, NONE);
}

/// Also one that takes its number before another, and commits after it.
async fn an_event_that_commits_late_is_followed(outbox: Subject) {
    let operator = outbox.operated().await;
    let all = Wanted::default();
    let mut place = operator.newest(&all, 1).await.expect("the newest can be read").next;
    let mut late = outbox.begin().await;
    late.publish(&event("a", 1)).await;
    outbox.write(&[event("b", 2)]).await;
    assert_eq!(follow(&*operator, &mut place, &all, 10).await, [2]);
    assert_eq!(follow(&*operator, &mut place, &all, 10).await, NONE);
    late.commit().await;
    assert_eq!(follow(&*operator, &mut place, &all, 10).await, [1]);
    assert_eq!(follow(&*operator, &mut place, &all, 10).await, NONE);
}

/// G-04: the same id and the same bytes.
async fn stored_events_are_read_again(outbox: Subject) {
    let written: Vec<_> =
        (1..=5).map(|number| event(&format!("k{}", number % 2), number)).collect();
    outbox.write(&written).await;
    outbox.tamper("k1", super::Tampering::BadHeaders).await;
    let operator = outbox.operated().await;
    let all = Wanted::default();
    let first = operator.stored(&all, i64::MIN, 4).await.expect("stored events can be found");
    assert_eq!(first.len(), 4);
    let after = first[3].position;
    let rest = operator.stored(&all, after, 100).await.expect("stored events can be found");
    assert_eq!(rest.len(), 2);
    let read = operator.read(&[&first[..], &rest[..]].concat()).await;
    let read = read.expect("stored events can be read");
    assert_eq!(read.len(), 6);
    for (expected, read) in written.iter().zip(&read) {
        let event = read.event.as_ref().expect("it is an event");
        assert_eq!((event.id(), event.payload()), (expected.id(), expected.payload()));
    }
    assert!(read[5].event.is_err());
    let of_key = Wanted { key: Some(key("k0")), ..Wanted::default() };
    let found = operator.stored(&of_key, i64::MIN, 100).await.expect("stored events can be found");
    let ids: Vec<String> = found.into_iter().map(|stored| stored.event_id).collect();
    assert_eq!(ids, [id(2).to_string(), id(4).to_string()]);
}
