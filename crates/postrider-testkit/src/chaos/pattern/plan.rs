//! What is done to whom, and when: all of it follows from a seed.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use postrider_relay::sources::Progress;

use super::Broker;

/// What is killed or made to stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// The producer.
    Shop,
    /// The relay that carries the shop's orders.
    ShopRelay,
    /// The consumer.
    Billing,
    /// The relay that carries billing's invoices.
    BillingRelay,
    /// The broker's server.
    Broker,
    /// The shop's server of PostgreSQL.
    ShopDatabase,
    /// Billing's server of PostgreSQL.
    BillingDatabase,
}

impl Victim {
    /// The services and the relays.
    pub const PROCESSES: [Self; 4] =
        [Self::Shop, Self::ShopRelay, Self::Billing, Self::BillingRelay];
    /// What they need.
    pub const SERVERS: [Self; 3] = [Self::Broker, Self::ShopDatabase, Self::BillingDatabase];

    /// Whether its work is done when the shop's is: it is met while orders are placed. All others
    /// are met while billing books them.
    pub(super) fn is_of_shop(self) -> bool {
        matches!(self, Self::Shop | Self::ShopDatabase)
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shop => "shop",
            Self::ShopRelay => "relay",
            Self::Billing => "billing",
            Self::BillingRelay => "billing's relay",
            Self::Broker => "broker",
            Self::ShopDatabase => "shop's database",
            Self::BillingDatabase => "billing's database",
        })
    }
}

/// What is done to a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    /// It is killed, and started again after so long.
    Kill(Duration),
    /// It stands still for so long.
    Pause(Duration),
}

/// A blow, and when it falls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// When so much of all orders has come to the victim, from 0 to 1.
    pub(super) at: f64,
    /// So long after that: anywhere in what it does then.
    pub(super) after: Duration,
    pub(super) blow: Blow,
}

/// How a round goes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The broker.
    pub broker: Broker,
    /// How many orders there are.
    pub orders: u64,
    /// Decides the rest, as far as the machine allows.
    pub seed: u64,
    /// How often each process is killed.
    pub kills: usize,
    /// How often each process stands still for a while.
    pub pauses: usize,
    /// How often the broker and each database are killed.
    pub restarts: usize,
}

impl Plan {
    /// The orders of a whole round.
    pub const ORDERS: u64 = 20_000;
    /// The orders of a short one, which is part of every test run.
    pub const ORDERS_SHORT: u64 = 1_500;

    /// A whole round.
    pub fn new(broker: Broker, seed: u64) -> Self {
        Self { broker, orders: Self::ORDERS, seed, kills: 12, pauses: 3, restarts: 3 }
    }

    /// A short round.
    pub fn short(broker: Broker, seed: u64) -> Self {
        Self { broker, orders: Self::ORDERS_SHORT, seed, kills: 3, pauses: 1, restarts: 1 }
    }

    /// How the relays keep their progress.
    pub(super) fn progress(&self) -> Progress {
        let index = self.rng(0).usize(..Progress::ALL.len());
        Progress::ALL[index]
    }

    /// What is done to a victim, in order.
    pub(super) fn faults(&self, victim: Victim) -> Vec<Fault> {
        /// Work that is about to end could end before the blow.
        const AT_MAX: f64 = 0.85;
        let mut rng = self.rng(1 + victim as u64);
        let mut millis = |max: u64| Duration::from_millis(rng.u64(..max));
        let mut blows: Vec<Blow> = if Victim::SERVERS.contains(&victim) {
            (0..self.restarts).map(|_| Blow::Kill(millis(1500))).collect()
        } else {
            let kills = (0..self.kills).map(|_| Blow::Kill(millis(300)));
            let kills: Vec<_> = kills.collect();
            let pauses = (0..self.pauses).map(|_| Blow::Pause(millis(3000)));
            kills.into_iter().chain(pauses).collect()
        };
        rng.shuffle(&mut blows);
        let mut moments: Vec<_> = blows.iter().map(|_| AT_MAX * rng.f64()).collect();
        moments.sort_by(f64::total_cmp);
        let fault = |(at, blow)| Fault { at, after: Duration::from_millis(rng.u64(..200)), blow };
        moments.into_iter().zip(blows).map(fault).collect()
    }

    /// One for each purpose, so that none depends on how often another one is asked.
    fn rng(&self, purpose: u64) -> Rng {
        Rng::with_seed(self.seed.wrapping_mul(31).wrapping_add(purpose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_its_kills_and_its_pauses_in_the_order_of_their_moments() {
        let plan = Plan::new(Broker::Kafka, 7);
        for victim in Victim::PROCESSES {
            let faults = plan.faults(victim);
            let is_kill = |fault: &&Fault| matches!(fault.blow, Blow::Kill(_));
            assert_eq!(faults.iter().filter(is_kill).count(), plan.kills);
            assert_eq!(faults.len(), plan.kills + plan.pauses);
            assert!(faults.is_sorted_by(|a, b| a.at <= b.at));
        }
        for victim in Victim::SERVERS {
            assert_eq!(plan.faults(victim).len(), plan.restarts);
        }
    }
}
