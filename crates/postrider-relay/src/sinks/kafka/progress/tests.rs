use std::collections::BTreeMap;

use super::note::PLACE_BYTES;
use super::*;

fn ids(numbers: std::ops::Range<u128>) -> Vec<Uuid> {
    numbers.map(Uuid::from_u128).collect()
}

fn after(topic: &Topic, window: usize) -> (Progress, HashSet<Uuid>) {
    Progress::after(topic.found(), window).unwrap()
}

/// A topic that was compacted at once.
#[derive(Default)]
struct Topic(BTreeMap<String, Vec<u8>>);

impl Topic {
    fn found(&self) -> Vec<(String, Vec<u8>)> {
        self.0.clone().into_iter().collect()
    }

    fn publish(&mut self, progress: &mut Progress, ids: &[Uuid]) {
        let note = progress.note("p", ids);
        assert!(note.value.len() + 128 <= Note::batch_bytes_max("p", ids.len()));
        self.0.insert(note.key, note.value);
        progress.keep();
    }

    fn ids(&self) -> usize {
        self.0.values().map(|value| value.len() / 16).sum()
    }
}

#[test]
fn the_last_ids_are_kept_and_the_topic_stays_small() {
    for size in [1_u128, 3, 7, 40] {
        let window = 20;
        let mut topic = Topic::default();
        let mut progress = after(&topic, window).0;
        for call in 0..200 {
            let published = ids(call * size..(call + 1) * size);
            topic.publish(&mut progress, &published);
            let all = (call + 1) * size;
            let (again, recent) = after(&topic, window);
            let last = ids(all.saturating_sub(20)..all);
            let is_known = |id: &Uuid| recent.contains(id) || again.is_unsettled(id);
            assert!(last.iter().all(is_known), "{size} at {call}");
            let known = recent.len() + again.unsettled.len();
            assert!(known <= 2 * (window + size as usize), "{size}: {known}");
            // A relay may die at any moment, and another one goes on.
            if call % 5 == 0 {
                progress = again;
            }
            progress.settled(&published, &[]);
        }
        assert!(topic.0.len() <= 2 * window + 2, "{size}: {}", topic.0.len());
    }
}

/// A few events of many are not settled: set aside, or never mentioned again by a source that has
/// others to bring first. Relays die meanwhile.
#[test]
fn what_is_not_settled_is_kept_however_much_follows() {
    for (size, is_aside) in [(1_u128, false), (1, true), (8, false), (8, true), (20, true)] {
        let window = 20;
        let mut topic = Topic::default();
        let mut progress = after(&topic, window).0;
        let mut stuck = Vec::new();
        let mut next = 0;
        for call in 0..600 {
            let published = ids(next..next + size);
            next += size;
            topic.publish(&mut progress, &published);
            let (left, settled) = published.split_at(usize::from(call % 60 == 30));
            stuck.extend_from_slice(left);
            progress.settled(settled, if is_aside { left } else { &[] });
            if call % 90 == 89 {
                progress = after(&topic, window).0;
            }
            let all_known = stuck.iter().all(|id| progress.is_unsettled(id));
            assert!(all_known, "{size} at {call}");
        }
        assert!(stuck.len() == 10 && progress.unsettled.len() < 10 + 28 * (20 + size as usize));
        let bound = 2 * (window + progress.unsettled.len()) + CARRIED_MIN + 3 * size as usize;
        assert!(progress.written <= bound, "{size}: {} of {bound}", progress.written);
        progress.settled(&stuck, &[]);
        assert!(stuck.iter().all(|id| !progress.is_unsettled(id)));
    }
}

/// What is set aside is said so to the next relay, and takes nothing of what may be in doubt.
#[test]
fn what_crashes_leave_in_doubt_is_bounded_and_what_is_set_aside_is_not() {
    let window = WINDOW_MIN;
    let mut topic = Topic::default();
    let mut progress = after(&topic, window).0;
    let aside = ids(0..3);
    topic.publish(&mut progress, &aside);
    progress.settled(&[], &aside);
    let size = window as u128;
    for crash in 1..40 {
        topic.publish(&mut progress, &ids(crash * size..(crash + 1) * size));
        progress = after(&topic, window).0;
        let in_doubt = progress.unsettled.len() - progress.aside;
        assert!(in_doubt <= (IN_DOUBT_WINDOWS + 1) * window, "{in_doubt} at {crash}");
        assert!(aside.iter().all(|id| progress.is_unsettled(id)), "at {crash}");
    }
    assert_eq!(progress.aside, 3);
    let most = 3 * IN_DOUBT_WINDOWS * window;
    assert!(topic.ids() < most, "{}", topic.ids());
}

/// A window that is smaller than that of the relay that died changes nothing.
#[test]
fn what_a_larger_window_has_left_is_known() {
    let mut topic = Topic::default();
    let mut progress = after(&topic, 20_000).0;
    for call in 0..100 {
        topic.publish(&mut progress, &ids(call * 200..(call + 1) * 200));
    }
    for crash in 0..3 {
        progress = after(&topic, 10).0;
        let is_known = |id: &Uuid| progress.is_unsettled(id);
        assert!(ids(0..20_000).iter().all(is_known), "after {crash}");
        topic.publish(&mut progress, &ids(50_000 + crash..50_001 + crash));
    }
    // Until all of it is settled.
    progress.settled(&ids(0..60_000), &[]);
    topic.publish(&mut progress, &[]);
    assert_eq!(after(&topic, 10).0.largest, 10);
}

#[test]
fn after_an_orderly_end_nothing_is_in_doubt() {
    let mut topic = Topic::default();
    let mut progress = after(&topic, 10).0;
    topic.publish(&mut progress, &ids(0..5));
    assert_eq!(after(&topic, 10).0.unsettled.len(), 5);
    progress.settled(&ids(0..5), &[]);
    assert!(progress.has_news());
    topic.publish(&mut progress, &[]);
    let (again, recent) = after(&topic, 10);
    assert!(again.unsettled.is_empty());
    assert_eq!(recent, ids(0..5).into_iter().collect());
}

/// A producer that was fenced, or does not know what became of its commit, is followed by one that
/// reads the topic.
#[test]
fn a_producer_that_begins_anew_knows_what_was_settled_before() {
    let mut topic = Topic::default();
    let mut progress = after(&topic, 10).0;
    topic.publish(&mut progress, &ids(0..5));
    progress.settled(&ids(0..2), &ids(2..3));
    let note = progress.note("p", &ids(5..6));
    topic.0.insert(note.key, note.value);
    let mut again = after(&topic, 10).0;
    again.learn(&progress);
    let known: HashSet<Uuid> = again.unsettled.keys().copied().collect();
    assert_eq!((known, again.aside), (ids(2..6).into_iter().collect(), 1));
}

/// Many small transactions, then a large one, again and again: ids stay in places that are free,
/// and are none of the last.
#[test]
fn ids_of_places_that_are_free_do_not_come_back() {
    let mut topic = Topic::default();
    let mut progress = after(&topic, 20).0;
    let mut next = 0;
    for small in [15, 9, 4, 0] {
        for size in std::iter::repeat_n(1, small).chain([30]) {
            let published = ids(next..next + size);
            topic.publish(&mut progress, &published);
            progress.settled(&published, &[]);
            next += size;
        }
    }
    let (again, recent) = after(&topic, 20);
    let known: HashSet<Uuid> = recent.into_iter().chain(again.unsettled.keys().copied()).collect();
    assert_eq!(known, ids(next - 30..next).into_iter().collect());
    assert_eq!(again.held.len() + again.free.len(), topic.0.len());
}

/// Nothing is known of what is settled there.
#[test]
fn notes_of_the_first_version_are_read() {
    let mut topic = Topic::default();
    for (place, number) in [(0, 3_u64), (1, 2)] {
        let mut value = number.to_be_bytes().to_vec();
        value.extend_from_slice(Uuid::from_u128(u128::from(number)).as_bytes());
        topic.0.insert(format!("p/{place}"), value);
    }
    let mut progress = after(&topic, 1).0;
    assert!(ids(2..4).iter().all(|id| progress.is_unsettled(id)));
    let note = progress.note("p", &ids(4..5));
    assert_eq!(note.key, "p/2");
    assert_eq!(Content::read(&note.value).unwrap().number, 4);
}

#[test]
fn what_does_not_come_back_is_forgotten_after_a_window_and_a_while() {
    let (start, horizon) = (Instant::now(), Duration::from_secs(500));
    let (known, id) = (ids(0..3), Uuid::from_u128(1));
    let mut returning = Returning::new(known.into_iter().collect(), 10, horizon, start);
    returning.noted(9);
    returning.forget(start + horizon);
    assert!(returning.contains(&id), "one more may be under way");
    returning.noted(2);
    returning.forget(start + horizon / 2);
    assert!(returning.contains(&id), "it may be set aside");
    returning.answered(&Uuid::from_u128(2));
    assert!(!returning.contains(&Uuid::from_u128(2)));
    returning.forget(start + horizon);
    assert!(!returning.contains(&id));
}

#[test]
fn no_note_is_larger_than_was_said() {
    let mut progress = Progress::after(vec![], 10).unwrap().0;
    let note = progress.note("postrider/orders", &ids(0..4096));
    let most = Note::batch_bytes_max("postrider/orders", 4096);
    assert!(note.key.len() + note.value.len() + 61 + 41 <= most);
    assert_eq!(PLACE_BYTES, format!("/{}", u32::MAX).len());
}

#[test]
fn what_was_not_committed_takes_no_place() {
    let mut progress = Progress::after(vec![], 10).unwrap().0;
    let first = progress.note("p", &ids(0..5));
    let second = progress.note("p", &ids(0..5));
    assert_eq!(first.key, second.key);
    assert!(!progress.is_unsettled(&Uuid::from_u128(1)));
    progress.keep();
    assert!(progress.is_unsettled(&Uuid::from_u128(1)));
    assert_ne!(progress.note("p", &ids(5..6)).key, first.key);
}

#[test]
fn what_is_no_note_is_passed_over() {
    let found = vec![
        ("p/0".to_owned(), vec![0; 7]),
        ("p/x".to_owned(), vec![0; 24]),
        ("p".to_owned(), vec![0; 24]),
        ("p/1".to_owned(), vec![0; 25]),
        ("p/2".to_owned(), vec![0; 32]),
        ("p/3".to_owned(), vec![255; 48]),
    ];
    assert!(Progress::after(found, 10).unwrap().0.unsettled.is_empty());
}

/// Places up to such a number would take gigabytes, and numbers after it would overflow.
#[test]
fn a_number_that_no_relay_writes_is_refused() {
    for (key, number) in [("p/4294967294", 1_u64), ("p/7", u64::MAX)] {
        let found = vec![(key.to_owned(), number.to_be_bytes().to_vec())];
        assert_eq!(Progress::after(found, 10).unwrap_err(), ForeignNote(key.to_owned()));
    }
}

/// Whoever may write to the topic can write anything.
#[test]
fn no_record_makes_it_panic_or_take_more_than_it_has() {
    let mut topic = Topic::default();
    let mut progress = after(&topic, 8).0;
    for call in 0..6_u128 {
        topic.publish(&mut progress, &ids(call * 5..call * 5 + 5));
    }
    let samples: Vec<Vec<u8>> = topic.0.values().cloned().collect();
    for (place, value) in crate::damaged::damaged(&samples, 16, 20_000).enumerate() {
        let mut found = FoundNotes::new("p");
        for (key, value) in &topic.0 {
            found.take(key.as_bytes(), Some(value));
        }
        found.take(format!("p/{}", place % 7).as_bytes(), Some(&value));
        let Ok(notes) = found.into_notes() else { continue };
        let most = notes.iter().map(|(_, value)| value.len() / 16).sum::<usize>();
        if let Ok((_, known)) = Progress::after(notes, 8) {
            assert!(known.len() <= most, "{} ids of {most}", known.len());
        }
    }
}
