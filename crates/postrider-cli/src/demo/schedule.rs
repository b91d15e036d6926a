//! The schedule: what the shop is asked for, request by request, and what goes wrong at which.
//!
//! An order is placed, paid, packed, shipped and delivered, each by a request of its own; the
//! requests of a few orders are mixed. A request whose transaction does not commit is made again
//! later, by a new request. Troubles are dealt from a deck that holds some of each kind, so that
//! even a short schedule has them all.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Fewest orders in which every kind of trouble finds its place, whatever the seed.
pub(crate) const ORDERS_MIN: u32 = 8;
/// Most orders.
pub(crate) const ORDERS_MAX: u32 = 2000;

/// So many orders are under way at the same time.
const OPEN_ORDERS: usize = 4;
/// So many requests meet an outage.
const OUTAGE_REQUESTS: std::ops::RangeInclusive<u32> = 5..=8;
/// So many requests go well between two troubles.
const CALM_REQUESTS: std::ops::RangeInclusive<u32> = 1..=3;

/// What happens to an order.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Change {
    Placed,
    Paid,
    Packed,
    Shipped,
    Delivered,
}

impl Change {
    /// All changes of an order, in their order.
    pub(crate) const ALL: [Self; 5] =
        [Self::Placed, Self::Paid, Self::Packed, Self::Shipped, Self::Delivered];

    /// As it stands in the shop's database.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Paid => "paid",
            Self::Packed => "packed",
            Self::Shipped => "shipped",
            Self::Delivered => "delivered",
        }
    }

    /// The type of the event about it.
    pub(crate) fn event_type(self) -> &'static str {
        match self {
            Self::Placed => "OrderPlaced",
            Self::Paid => "OrderPaid",
            Self::Packed => "OrderPacked",
            Self::Shipped => "OrderShipped",
            Self::Delivered => "OrderDelivered",
        }
    }
}

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Fault {
    /// The shop is killed when all is done but the commit.
    CrashBeforeCommit,
    /// The shop is killed right after the commit.
    CrashAfterCommit,
    /// The database refuses the commit: a constraint is violated.
    Rollback,
    /// The broker stores the message, and its acknowledgement never arrives.
    NoAnswer,
    /// The broker answers 500 once.
    ServerError,
}

impl Fault {
    /// Whether a process is killed.
    pub(crate) fn is_crash(self) -> bool {
        matches!(self, Self::CrashBeforeCommit | Self::CrashAfterCommit)
    }

    fn prevents_commit(self) -> bool {
        matches!(self, Self::CrashBeforeCommit | Self::Rollback)
    }
}

/// One request to the shop: one business transaction.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Request {
    /// Counts from 1.
    pub(crate) number: u32,
    pub(crate) order: u32,
    pub(crate) change: Change,
    /// The price of the order.
    pub(crate) cents: i64,
    pub(crate) fault: Option<Fault>,
    /// The broker is down meanwhile.
    pub(crate) outage: bool,
}

/// All requests of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) requests: Vec<Request>,
}

/// How often each thing goes wrong in a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Troubles {
    pub(crate) crashes: u32,
    pub(crate) outages: u32,
    pub(crate) timeouts: u32,
    pub(crate) errors: u32,
    pub(crate) rollbacks: u32,
}

impl Schedule {
    /// Draws a schedule; the same seed and number of orders draw the same one.
    pub(crate) fn draw(seed: u64, orders: u32) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut deck = Deck::new();
        let prices: Vec<i64> = (0..orders).map(|_| rng.i64(500..20_000)).collect();
        let mut waiting = 1..=orders;
        let mut open: Vec<(u32, usize)> =
            waiting.by_ref().take(OPEN_ORDERS).map(|order| (order, 0)).collect();
        let mut requests = Vec::new();
        while !open.is_empty() {
            let place = rng.usize(..open.len());
            let (order, done) = open[place];
            let change = Change::ALL[done];
            let (fault, outage) = deck.deal(change, &mut rng);
            requests.push(Request {
                number: requests.len() as u32 + 1,
                order,
                change,
                cents: prices[order as usize - 1],
                fault,
                outage,
            });
            if fault.is_some_and(Fault::prevents_commit) {
                continue;
            }
            open[place].1 += 1;
            if open[place].1 == Change::ALL.len() {
                open.swap_remove(place);
                open.extend(waiting.next().map(|order| (order, 0)));
            }
        }
        Self { requests }
    }

    /// What the broker does at the first arrival of a request's event.
    pub(crate) fn broker_faults(&self) -> BTreeMap<u32, Fault> {
        let of_broker = |request: &Request| {
            let fault = match request.fault? {
                // The relay is to be killed while it waits for the answer.
                Fault::CrashAfterCommit | Fault::NoAnswer => Fault::NoAnswer,
                Fault::ServerError => Fault::ServerError,
                Fault::CrashBeforeCommit | Fault::Rollback => return None,
            };
            Some((request.number, fault))
        };
        self.requests.iter().filter_map(of_broker).collect()
    }

    /// Counts what goes wrong.
    pub(crate) fn troubles(&self) -> Troubles {
        let mut troubles = Troubles::default();
        let mut down = false;
        for request in &self.requests {
            troubles.outages += u32::from(request.outage && !down);
            down = request.outage;
            match request.fault {
                Some(fault) if fault.is_crash() => troubles.crashes += 1,
                Some(Fault::Rollback) => troubles.rollbacks += 1,
                Some(Fault::NoAnswer) => troubles.timeouts += 1,
                Some(_) => troubles.errors += 1,
                None => {}
            }
        }
        troubles
    }
}

/// A card of the deck.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Of(Fault),
    Outage,
}

const FULL_DECK: [Trouble; 7] = [
    Trouble::Of(Fault::CrashAfterCommit),
    Trouble::Of(Fault::CrashBeforeCommit),
    Trouble::Of(Fault::NoAnswer),
    Trouble::Outage,
    Trouble::Of(Fault::Rollback),
    Trouble::Of(Fault::ServerError),
    Trouble::Of(Fault::NoAnswer),
];

impl Trouble {
    /// Payments publish before they commit in the naive shop, all others after it. Each crash is
    /// put where it comes between the two; a rollback needs a voucher, hence a payment.
    fn fits(self, change: Change) -> bool {
        match self {
            Self::Of(fault) if fault.prevents_commit() => change == Change::Paid,
            Self::Of(Fault::CrashAfterCommit) => change != Change::Paid,
            Self::Of(_) | Self::Outage => true,
        }
    }
}

struct Deck {
    troubles: Vec<Trouble>,
    is_first: bool,
    calm_left: u32,
    outage_left: u32,
}

impl Deck {
    /// The first deck is not shuffled: what a short schedule must have lies on top.
    fn new() -> Self {
        Self {
            troubles: FULL_DECK.to_vec(),
            is_first: true,
            calm_left: *CALM_REQUESTS.end(),
            outage_left: 0,
        }
    }

    /// What happens to the next request: its fault, and whether the broker is down.
    fn deal(&mut self, change: Change, rng: &mut Rng) -> (Option<Fault>, bool) {
        if self.outage_left > 0 {
            self.outage_left -= 1;
            return (None, true);
        }
        // Payments are few, and some troubles fit no other change: the first ones cannot wait.
        let rare = self.is_first && change == Change::Paid;
        if self.calm_left > 0 && !rare {
            self.calm_left -= 1;
            return (None, false);
        }
        if self.troubles.is_empty() {
            self.is_first = false;
            self.troubles = FULL_DECK.to_vec();
            rng.shuffle(&mut self.troubles);
        }
        let Some(found) = self.troubles.iter().position(|trouble| trouble.fits(change)) else {
            return (None, false);
        };
        self.calm_left = rng.u32(CALM_REQUESTS);
        match self.troubles.remove(found) {
            Trouble::Of(fault) => (Some(fault), false),
            Trouble::Outage => {
                self.outage_left = rng.u32(OUTAGE_REQUESTS) - 1;
                (None, true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_schedule() {
        assert_eq!(Schedule::draw(7, 40), Schedule::draw(7, 40));
        assert_ne!(Schedule::draw(7, 40), Schedule::draw(8, 40));
    }

    #[test]
    fn every_order_goes_through_all_changes_in_their_order() {
        for seed in 0..200 {
            let mut done = BTreeMap::<u32, Vec<Change>>::new();
            for request in Schedule::draw(seed, 20).requests {
                if !request.fault.is_some_and(Fault::prevents_commit) {
                    done.entry(request.order).or_default().push(request.change);
                }
            }
            assert_eq!(done.len(), 20);
            assert!(done.values().all(|changes| changes == &Change::ALL), "{done:?}");
        }
    }

    #[test]
    fn whatever_the_seed_all_that_matters_goes_wrong() {
        for seed in 0..20_000 {
            let schedule = Schedule::draw(seed, ORDERS_MIN);
            let has = |fault| schedule.requests.iter().any(|request| request.fault == Some(fault));
            assert!(has(Fault::CrashAfterCommit), "seed {seed}");
            assert!(has(Fault::CrashBeforeCommit), "seed {seed}");
            assert!(has(Fault::NoAnswer), "seed {seed}");
            assert!(schedule.troubles().outages > 0, "seed {seed}");
        }
    }
}
