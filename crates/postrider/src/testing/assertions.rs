//! Assertions about what was published.

mod expectation;

use std::fmt::Write as _;

pub use expectation::{Expectation, Expected};

use super::listing::described;
use crate::event::Event;

/// Most events that a message lists.
const LISTED_MAX: usize = 50;

/// Asserts that an event was published, and gives it back: the first one that matches.
///
/// An event is named by its type, and by as many fields of its JSON payload as matter; objects in
/// it match by the fields that are named, too. Or it is a value of a type that can be published,
/// whose key, version and whole payload count.
///
/// ```
/// # use postrider::testing::{MemoryDatabase, assert_published};
/// # use postrider::{Event, Outbox};
/// #[derive(serde::Serialize, Event)]
/// #[event(aggregate = "Order", id = order_id)]
/// struct OrderPaid { order_id: u64, cents: u64 }
///
/// let database = MemoryDatabase::new();
/// let mut tx = database.begin();
/// Outbox::new().publish(&mut tx, &OrderPaid { order_id: 42, cents: 999 })?;
/// tx.commit()?;
///
/// assert_published!(database, "OrderPaid");
/// assert_published!(database, "OrderPaid", { "cents": 999 });
/// assert_published!(database, OrderPaid { order_id: 42, cents: 999 });
/// let paid = assert_published!(database, "OrderPaid", { "order_id": 42 }, times = 1);
/// assert_eq!(paid[0].aggregate_id(), "42");
/// # Ok::<_, postrider::WriteError>(())
/// ```
///
/// With `times = n` exactly so many have to match, and all of them are given back. The events are
/// those of anything that is [`Published`](crate::testing::Published).
///
/// # Panics
///
/// If none matches, with a list of what was published, and what differs.
#[macro_export]
macro_rules! assert_published {
    ($published:expr, $event:expr, { $($fields:tt)* }, times = $times:expr $(,)?) => {
        $crate::testing::__private::assert_count(
            &$published,
            $crate::testing::__private::Expectation::of(&$event)
                .with($crate::testing::__private::json!({ $($fields)* })),
            $times,
        )
    };
    ($published:expr, $event:expr, { $($fields:tt)* } $(,)?) => {
        $crate::testing::__private::assert_present(
            &$published,
            $crate::testing::__private::Expectation::of(&$event)
                .with($crate::testing::__private::json!({ $($fields)* })),
        )
    };
    ($published:expr, $event:expr, times = $times:expr $(,)?) => {
        $crate::testing::__private::assert_count(
            &$published,
            $crate::testing::__private::Expectation::of(&$event),
            $times,
        )
    };
    ($published:expr, $event:expr $(,)?) => {
        $crate::testing::__private::assert_present(
            &$published,
            $crate::testing::__private::Expectation::of(&$event),
        )
    };
}

/// Asserts that no such event was published. Events are named as in
/// [`assert_published!`](crate::assert_published!).
///
/// ```
/// # use postrider::testing::{MemoryDatabase, assert_not_published};
/// # let database = MemoryDatabase::new();
/// assert_not_published!(database, "OrderPaid");
/// assert_not_published!(database, "OrderPlaced", { "order_id": 42 });
/// ```
///
/// # Panics
///
/// If one matches, with a list of what was published.
#[macro_export]
macro_rules! assert_not_published {
    ($published:expr, $event:expr, { $($fields:tt)* } $(,)?) => {
        $crate::testing::__private::assert_absent(
            &$published,
            $crate::testing::__private::Expectation::of(&$event)
                .with($crate::testing::__private::json!({ $($fields)* })),
        )
    };
    ($published:expr, $event:expr $(,)?) => {
        $crate::testing::__private::assert_absent(
            &$published,
            $crate::testing::__private::Expectation::of(&$event),
        )
    };
}

/// Some event is as expected; gives back the first.
#[track_caller]
pub fn assert_present(published: &impl super::Published, expected: Expectation) -> Event {
    let events = published.published();
    match events.iter().find(|event| expected.is_met_by(event)) {
        Some(event) => event.clone(),
        None => panic!("no {expected} was published\n{}", listed(&events, &expected)),
    }
}

/// So many events are as expected; gives them back.
#[track_caller]
pub fn assert_count(
    published: &impl super::Published,
    expected: Expectation,
    times: usize,
) -> Vec<Event> {
    let events = published.published();
    let met: Vec<Event> =
        events.iter().filter(|event| expected.is_met_by(event)).cloned().collect();
    assert!(
        met.len() == times,
        "{expected} was published {}, expected {}\n{}",
        counted(met.len()),
        counted(times),
        listed(&events, &expected),
    );
    met
}

/// No event is as expected.
#[track_caller]
pub fn assert_absent(published: &impl super::Published, expected: Expectation) {
    let events = published.published();
    assert!(
        !events.iter().any(|event| expected.is_met_by(event)),
        "{expected} was published, and should not have been\n{}",
        listed(&events, &expected),
    );
}

fn counted(times: usize) -> String {
    match times {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        _ => format!("{times} times"),
    }
}

/// What was published, with what differs in events of the expected type.
fn listed(events: &[Event], expected: &Expectation) -> String {
    if events.is_empty() {
        return "nothing was published; an event is, once its transaction has committed".to_owned();
    }
    let mut list = "published, in order:".to_owned();
    for (number, event) in (1..).zip(events.iter().take(LISTED_MAX)) {
        // Writing to a text cannot fail.
        let _ = write!(list, "\n  {number}. {}", described(event));
        match expected.differences(event) {
            Some(differences) if differences.is_empty() => list.push_str("\n       matches"),
            Some(differences) => {
                for difference in differences {
                    let _ = write!(list, "\n       {difference}");
                }
            }
            None => {}
        }
    }
    if let Some(more @ 1..) = events.len().checked_sub(LISTED_MAX) {
        let _ = write!(list, "\n  … and {more} more");
    }
    list
}
