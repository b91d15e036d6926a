//! What goes into the engine and comes out of it.

use std::time::Duration;

use crate::pipeline::company::Kind;
use crate::pipeline::options::{OnDead, Ordering, Retry, Window};
use crate::source::{Handle, Settlement};

/// What the engine needs to know about pipeline and sink.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// What is kept in order.
    pub ordering: Ordering,
    /// What happens to a key once one of its events is parked.
    pub on_dead: OnDead,
    /// How failed events are tried again.
    pub retry: Retry,
    /// How much may be in memory.
    pub window: Window,
    /// The sink keeps the order of one key's events within a call.
    pub ordered_by_key: bool,
    /// Most events in a call.
    pub batch_events_max: usize,
    /// Most bytes in a call.
    pub batch_bytes_max: usize,
    /// Most calls at a time.
    pub calls_max: usize,
    /// Failures of so many keys without a success between them are an outage.
    pub outage_lanes: usize,
    /// Spreads pauses; any number.
    pub seed: u64,
}

/// An event that was read.
#[derive(Debug)]
pub struct Incoming<M> {
    /// The source's name for it.
    pub handle: Handle,
    /// A hash of its key; `None` for an event that has no place in the order of its key.
    pub key: Option<u64>,
    /// A hash of its id.
    pub id: u64,
    /// Its size in memory.
    pub bytes: usize,
    /// How often it has failed.
    pub attempts: u32,
    /// It was set aside before.
    pub returned: bool,
    /// How long it is not due yet.
    pub delay: Option<Duration>,
    /// What to send, or why it can never be sent.
    pub message: Result<M, String>,
}

/// Events to hand to the sink in one call.
#[derive(Debug)]
pub struct Call<M> {
    pub(super) entries: Vec<usize>,
    pub(super) kind: Kind,
    /// The attempt was written down before.
    pub(super) written_down: bool,
    /// What to send.
    pub messages: Vec<M>,
}

/// Verdicts to hand to the source.
#[derive(Debug, Default)]
pub struct SettlementBatch {
    /// The verdicts.
    pub settlements: Vec<Settlement>,
    /// What the engine remembers about each.
    pub(super) notes: Vec<Note>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Note {
    /// The key of which it sets something aside.
    pub(super) sets_aside: Option<u64>,
    /// It is one of the first events after the start.
    pub(super) early: bool,
    /// It writes down the attempt of the event whose turn it is.
    pub(super) begins_turn: bool,
}

/// How the pipeline gets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing waits.
    Idle,
    /// Events are being delivered.
    Moving,
    /// The sink is in trouble; events wait.
    Outage,
    /// Events wait and none was delivered since then.
    Stalled {
        /// The time of the last delivery.
        since: Duration,
    },
}
