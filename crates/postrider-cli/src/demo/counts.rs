//! Counts what came of a round, by comparing the shop's database, the broker's log and the
//! consumer's database.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rusqlite::Connection;
use serde::Serialize;
use uuid::Uuid;

use super::DemoError;
use super::broker::Arrival;

const COMMITTED: &str = "SELECT event_id, order_id FROM changes ORDER BY seq";
const REVENUE: &str = "SELECT coalesce(sum(cents), 0) FROM changes WHERE change = 'paid'";
const BOOKED: &str = "SELECT revenue_cents FROM books";
const APPLIED_TWICE: &str = "SELECT count(*) FROM
    (SELECT 1 FROM applied GROUP BY event_id HAVING count(*) > 1)";

/// What came of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Events of transactions that the shop has committed.
    pub(crate) committed: u64,
    /// Those of them that reached the broker.
    pub(crate) delivered: u64,
    /// Those that did not.
    pub(crate) lost: u64,
    /// Events at the broker of transactions that never committed.
    pub(crate) ghost: u64,
    /// Arrivals of events that were there before.
    pub(crate) duplicated: u64,
    /// Events whose effect is more than once in the consumer's database.
    pub(crate) applied_twice: u64,
    /// Events that came for the first time after a later one of the same order.
    pub(crate) out_of_order: u64,
    /// How much more revenue the consumer has in its books than the shop has taken.
    #[serde(skip)]
    pub(crate) excess_cents: i64,
}

/// A committed event, in the order of commits.
struct Committed {
    event_id: Uuid,
    order: u32,
}

impl Counts {
    /// Compares the three.
    pub(crate) fn compare(
        shop: &Path,
        arrivals: &[Arrival],
        consumer: &Path,
    ) -> Result<Self, DemoError> {
        let (shop, consumer) = (Connection::open(shop)?, Connection::open(consumer)?);
        let number = |database: &Connection, sql: &str| -> rusqlite::Result<i64> {
            database.query_one(sql, [], |row| row.get(0))
        };
        let counts = Self::of_log(&committed(&shop)?, arrivals);
        Ok(Self {
            applied_twice: number(&consumer, APPLIED_TWICE)?.unsigned_abs(),
            excess_cents: number(&consumer, BOOKED)? - number(&shop, REVENUE)?,
            ..counts
        })
    }

    /// Whether all went as promised. A duplicate on the way is no harm.
    pub(crate) fn are_clean(&self) -> bool {
        let Self { lost, ghost, applied_twice, out_of_order, excess_cents, .. } = *self;
        [lost, ghost, applied_twice, out_of_order] == [0; 4] && excess_cents == 0
    }

    fn of_log(committed: &[Committed], arrivals: &[Arrival]) -> Self {
        let places: HashMap<Uuid, usize> =
            committed.iter().enumerate().map(|(place, event)| (event.event_id, place)).collect();
        let mut counts = Self { committed: committed.len() as u64, ..Self::default() };
        let mut seen = HashSet::new();
        let mut latest = HashMap::<u32, usize>::new();
        for arrival in arrivals {
            if !seen.insert(arrival.event_id) {
                counts.duplicated += 1;
                continue;
            }
            let Some(&place) = places.get(&arrival.event_id) else {
                counts.ghost += 1;
                continue;
            };
            counts.delivered += 1;
            let latest = latest.entry(committed[place].order).or_default();
            counts.out_of_order += u64::from(place < *latest);
            *latest = place.max(*latest);
        }
        counts.lost = counts.committed - counts.delivered;
        counts
    }
}

fn committed(shop: &Connection) -> Result<Vec<Committed>, DemoError> {
    let mut statement = shop.prepare(COMMITTED)?;
    let mut rows = statement.query([])?;
    let mut committed = Vec::new();
    while let Some(row) = rows.next()? {
        committed
            .push(Committed { event_id: row.get::<_, String>(0)?.parse()?, order: row.get(1)? });
    }
    Ok(committed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::schedule::Change;
    use crate::demo::shop::Payload;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn count(committed: &[(u128, u32)], arrivals: &[u128]) -> Counts {
        let committed: Vec<Committed> = committed
            .iter()
            .map(|&(number, order)| Committed { event_id: id(number), order })
            .collect();
        let payload = Payload { order: 1, request: 1, change: Change::Paid, cents: 1 };
        let arrivals: Vec<Arrival> = arrivals
            .iter()
            .map(|&number| Arrival { event_id: id(number), payload: payload.clone() })
            .collect();
        Counts::of_log(&committed, &arrivals)
    }

    #[test]
    fn each_event_is_counted_for_what_became_of_it() {
        // 3 is lost, 9 is a ghost that came twice, 1 came three times.
        let counts = count(&[(1, 1), (2, 1), (3, 2)], &[1, 1, 9, 2, 9, 1]);
        assert_eq!((counts.committed, counts.delivered, counts.lost), (3, 2, 1));
        assert_eq!((counts.ghost, counts.duplicated, counts.out_of_order), (1, 3, 0));
        assert!(!counts.are_clean());
    }

    #[test]
    fn only_first_arrivals_of_one_order_can_be_out_of_order() {
        let committed = [(1, 1), (2, 1), (3, 1), (4, 2)];
        assert_eq!(count(&committed, &[4, 1, 2, 1, 3]).out_of_order, 0);
        assert_eq!(count(&committed, &[3, 1, 4, 2]).out_of_order, 2);
        assert!(count(&committed, &[4, 1, 2, 1, 3]).are_clean());
    }
}
