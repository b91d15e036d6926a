//! Where events arrive: an HTTP endpoint that keeps what it has taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::until;
use crate::harnesses::sinks::http::endpoint::{Endpoint, Request};
use crate::suites::sink::Behaviour;

/// An endpoint on a port of its own. Requests arrive in the order in which it took them,
/// whichever relay they came from.
pub struct Target {
    endpoint: Endpoint,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    arrivals: Vec<Arrival>,
    /// The numbers of the events that have arrived.
    events: BTreeSet<u64>,
}

/// An event as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The event's id.
    pub id: String,
    /// The id of its aggregate.
    pub key: String,
    /// The payload.
    pub body: Vec<u8>,
}

impl Arrival {
    fn new(request: Request) -> Self {
        let header = |name: &str| {
            let value = request.headers.get(name);
            value.unwrap_or_else(|| panic!("the header {name} is missing")).clone()
        };
        Self { id: header("webhook-id"), key: header("postrider-key"), body: request.body }
    }

    /// The number of an event of a [`Bank`](super::Bank).
    pub(super) fn event(&self) -> Option<u64> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        body.get("event")?.as_u64()
    }
}

impl From<crate::suites::sink::Arrival> for Arrival {
    fn from(arrival: crate::suites::sink::Arrival) -> Self {
        Self { id: arrival.id.to_string(), key: arrival.key, body: arrival.body }
    }
}

/// Events that came again with another id or other bytes.
pub(super) fn unequal_duplicates(arrivals: &[Arrival]) -> Vec<String> {
    let mut first: BTreeMap<&str, &Arrival> = BTreeMap::new();
    let mut events: BTreeMap<u64, &str> = BTreeMap::new();
    let mut unequal = Vec::new();
    for arrival in arrivals {
        let before = *first.entry(&arrival.id).or_insert(arrival);
        if before != arrival {
            unequal.push(format!("event {} came again with other bytes", arrival.id));
        }
        if let Some(event) = arrival.event() {
            let id = *events.entry(event).or_insert(&arrival.id);
            if id != arrival.id {
                unequal.push(format!("event {event} has the ids {id} and {}", arrival.id));
            }
        }
    }
    unequal
}

impl Target {
    /// Starts one.
    pub async fn start() -> Self {
        Self { endpoint: Endpoint::start().await, kept: Mutex::default() }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}/events", self.endpoint.address())
    }

    /// From now on it behaves so.
    pub async fn behave(&self, behaviour: Behaviour) {
        self.endpoint.behave(behaviour).await;
    }

    /// Everything that it has taken, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.look().arrivals.clone()
    }

    /// The numbers of all arrivals, in order.
    pub fn events(&self) -> Vec<u64> {
        let event = |arrival: &Arrival| arrival.event().expect("an event of the bank");
        self.look().arrivals.iter().map(event).collect()
    }

    /// Whether an event has arrived.
    pub fn has(&self, event: u64) -> bool {
        self.look().events.contains(&event)
    }

    /// Of these events, those that have not arrived.
    pub(super) fn missing(&self, events: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
        let kept = self.look();
        events.filter(move |event| !kept.events.contains(event))
    }

    /// How many arrivals there were.
    pub fn count(&self) -> usize {
        self.look().arrivals.len()
    }

    /// Waits until these events have arrived.
    pub async fn until_arrived(&self, events: &[u64]) {
        let has_all = || async {
            let kept = self.look();
            events.iter().all(|event| kept.events.contains(event))
        };
        until("the events arrive", has_all).await;
    }

    /// Takes in what has come since the last look.
    fn look(&self) -> MutexGuard<'_, Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for request in self.endpoint.kept_from(kept.arrivals.len()) {
            let arrival = Arrival::new(request);
            kept.events.extend(arrival.event());
            kept.arrivals.push(arrival);
        }
        kept
    }
}
