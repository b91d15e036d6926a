//! A database with an outbox, as small as the contract of a source allows: what a real source
//! does with tables, this does with maps. It outlives the relays that read it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use postrider_relay::pipeline::breaker::OUTAGE_LANES;
use postrider_relay::pipeline::engine::Incoming;
use postrider_relay::source::{Handle, Settlement, Verdict};

/// A committed event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) seq: u64,
    pub(super) key: u64,
    pub(super) nature: Nature,
    /// Not to be delivered before.
    pub(super) not_before: Option<Duration>,
}

/// How the event behaves when it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    Good,
    /// The sink rejects it.
    Rejected,
    /// It fails each time.
    Failing,
    /// The sink refuses it each time.
    Refused,
    /// The sink seems to be away whenever it is published.
    Away,
    /// It cannot even be decoded.
    Undecodable,
    /// The process that publishes it dies.
    Deadly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Parked,
    Deferred,
    Queued,
}

#[derive(Clone, Copy, Debug)]
struct Aside {
    state: State,
    blocks: bool,
    due: Option<Duration>,
    attempts: u32,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    rows: BTreeMap<u64, Row>,
    /// Rows that left the stream: delivered or set aside.
    passed: BTreeSet<u64>,
    aside: BTreeMap<u64, Aside>,
    /// The blocking ones of each key.
    blocking: BTreeMap<u64, BTreeSet<u64>>,
    pub(super) crashes: u32,
}

/// One relay's view: what it has read and not settled.
#[derive(Debug, Default)]
pub(super) struct Session {
    position: u64,
    under_way: BTreeSet<Handle>,
}

impl Outbox {
    pub(super) fn insert(&mut self, row: Row) {
        self.rows.insert(row.seq, row);
    }

    pub(super) fn row(&self, seq: u64) -> Row {
        self.rows[&seq]
    }

    pub(super) fn nature(&mut self, seq: u64) -> &mut Nature {
        &mut self.rows.get_mut(&seq).expect("a committed event").nature
    }

    /// Mends events that fail each time, but for a few: if nothing but such events were left, that
    /// would be an outage without end.
    pub(super) fn mend_failing(&mut self) {
        let parked: BTreeSet<u64> = self.parked().into_iter().collect();
        let rows = self.rows.values_mut().filter(|row| !parked.contains(&row.seq));
        let is_failing =
            |row: &&mut Row| matches!(row.nature, Nature::Away | Nature::Failing | Nature::Refused);
        let failing = rows.filter(is_failing);
        let kept = |row: &&mut Row| row.nature != Nature::Away;
        let (failing, away): (Vec<_>, Vec<_>) = failing.partition(kept);
        let mended = failing.into_iter().skip(OUTAGE_LANES - 1).chain(away);
        mended.for_each(|row| row.nature = Nature::Good);
    }

    pub(super) fn blocked_keys(&self) -> BTreeSet<u64> {
        self.blocking.iter().filter(|(_, seqs)| !seqs.is_empty()).map(|(key, _)| *key).collect()
    }

    pub(super) fn parked(&self) -> Vec<u64> {
        let parked = self.aside.iter().filter(|(_, aside)| aside.state == State::Parked);
        parked.map(|(seq, _)| *seq).collect()
    }

    /// Events that wait behind a parked one of their key.
    pub(super) fn behind_parked(&self) -> Vec<u64> {
        let queued = self.aside.iter().filter(|(_, aside)| aside.state == State::Queued);
        queued
            .filter(|(seq, _)| {
                let first = self.first_blocking(self.rows[seq].key);
                first.is_some_and(|first| self.aside[&first].state == State::Parked)
            })
            .map(|(seq, _)| *seq)
            .collect()
    }

    /// Whether a relay still has something to do, now or later.
    pub(super) fn pending(&self) -> bool {
        self.rows.keys().any(|seq| !self.passed.contains(seq))
            || self.aside.values().any(|aside| aside.due.is_some())
    }

    /// When the next event that was set aside is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.aside.values().filter_map(|aside| aside.due).min()
    }

    pub(super) fn next_batch(
        &self,
        session: &mut Session,
        events: usize,
        now: Duration,
    ) -> Vec<Incoming<u64>> {
        let mut batch: Vec<Handle> = Vec::new();
        let due = |aside: &Aside| aside.due.filter(|due| *due <= now);
        let mut turns: Vec<(Duration, u64)> =
            self.aside.iter().filter_map(|(seq, aside)| Some((due(aside)?, *seq))).collect();
        turns.sort_unstable();
        for (_, seq) in &turns {
            let aside = self.aside[seq];
            if batch.len() >= events {
                break;
            }
            if !aside.blocks {
                batch.push(returned(*seq));
                continue;
            }
            let key = self.rows[seq].key;
            // Events of a key return together, or when those handed out before are settled.
            if self.blocking(key).any(|other| session.under_way.contains(&returned(other))) {
                continue;
            }
            let chain = self
                .blocking(key)
                .take_while(|other| other == seq || self.aside[other].state == State::Queued);
            batch.extend(chain.map(returned));
        }
        // An event whose attempt was written down is still under way by its first name.
        let under_way = |handle: &Handle| {
            session.under_way.contains(handle) || session.under_way.contains(&fresh(seq(*handle)))
        };
        batch.retain(|handle| !under_way(handle));
        batch.truncate(events);
        for seq in self.rows.range(session.position + 1..).map(|(seq, _)| *seq) {
            if batch.len() >= events {
                break;
            }
            session.position = seq;
            if !self.passed.contains(&seq) && !session.under_way.contains(&fresh(seq)) {
                batch.push(fresh(seq));
            }
        }
        session.under_way.extend(&batch);
        batch.into_iter().map(|handle| self.incoming(handle, now)).collect()
    }

    fn incoming(&self, handle: Handle, now: Duration) -> Incoming<u64> {
        let row = self.rows[&seq(handle)];
        let in_order = row.not_before.is_none();
        let message = match row.nature {
            Nature::Undecodable => Err("undecodable".to_owned()),
            _ => Ok(row.seq),
        };
        Incoming {
            handle,
            key: in_order.then_some(row.key),
            id: row.seq,
            bytes: 100,
            attempts: self.aside.get(&row.seq).map_or(0, |aside| aside.attempts),
            returned: is_returned(handle),
            delay: row.not_before.map(|at| at.saturating_sub(now)),
            message,
        }
    }

    /// Applies verdicts in one step and answers which keys are no longer blocked.
    pub(super) fn settle(
        &mut self,
        session: &mut Session,
        settlements: &[Settlement],
        now: Duration,
    ) -> BTreeSet<u64> {
        let mut freed = BTreeSet::new();
        for Settlement { handle, verdict } in settlements {
            let seq = seq(*handle);
            let key = self.rows[&seq].key;
            if let Verdict::Attempting { attempts, blocks } = *verdict {
                let (state, due) = (State::Deferred, Some(now));
                self.passed.insert(seq);
                self.put_aside(seq, Some(Aside { state, blocks, due, attempts }));
                continue;
            }
            if !session.under_way.remove(handle) {
                continue;
            }
            if *verdict == Verdict::Released {
                session.position = session.position.min(seq - 1);
                continue;
            }
            self.passed.insert(seq);
            let attempts = self.aside.get(&seq).map_or(0, |aside| aside.attempts);
            let aside = match verdict {
                Verdict::Attempting { .. } | Verdict::Delivered | Verdict::Released => None,
                Verdict::Parked { failure, blocks } => Some(Aside {
                    state: State::Parked,
                    blocks: *blocks,
                    due: None,
                    attempts: failure.attempts,
                }),
                Verdict::Deferred { delay, failure, blocks } => Some(Aside {
                    state: State::Deferred,
                    blocks: *blocks,
                    due: Some(now + *delay),
                    attempts: failure.as_ref().map_or(attempts, |failure| failure.attempts),
                }),
                Verdict::Queued => {
                    Some(Aside { state: State::Queued, blocks: true, due: None, attempts })
                }
            };
            self.put_aside(seq, aside);
            if self.wake(key, now) {
                freed.remove(&key);
            } else {
                freed.insert(key);
            }
        }
        freed
    }

    /// Keeps the invariant: the first blocking event of a key is parked or due, and none of the
    /// others is due. True if there is one.
    fn wake(&mut self, key: u64, now: Duration) -> bool {
        let Some(blocking) = self.blocking.get(&key) else { return false };
        for (position, seq) in blocking.iter().enumerate() {
            let aside = self.aside.get_mut(seq).expect("what blocks is set aside");
            match aside.state {
                State::Parked => {}
                State::Queued | State::Deferred if position > 0 => {
                    (aside.state, aside.due) = (State::Queued, None);
                }
                State::Queued | State::Deferred => {
                    aside.due.get_or_insert(now);
                }
            }
        }
        !blocking.is_empty()
    }

    /// The operator asks for a parked event to be tried again.
    pub(super) fn retry(&mut self, seq: u64, now: Duration) {
        let first = self.first_blocking(self.rows[&seq].key) == Some(seq);
        if let Some(aside) = self.aside.get_mut(&seq).filter(|aside| aside.state == State::Parked) {
            // Behind another one of its key it waits for its turn.
            let (state, due) = match first || !aside.blocks {
                true => (State::Deferred, Some(now)),
                false => (State::Queued, None),
            };
            *aside = Aside { state, due, attempts: 0, ..*aside };
        }
    }

    /// The operator gives a parked event up.
    pub(super) fn discard(&mut self, seq: u64, now: Duration) -> bool {
        let parked = self.aside.get(&seq).is_some_and(|aside| aside.state == State::Parked);
        if parked {
            self.put_aside(seq, None);
            self.wake(self.rows[&seq].key, now);
        }
        parked
    }

    fn first_blocking(&self, key: u64) -> Option<u64> {
        self.blocking(key).next()
    }

    fn blocking(&self, key: u64) -> impl Iterator<Item = u64> {
        self.blocking.get(&key).into_iter().flatten().copied()
    }

    fn put_aside(&mut self, seq: u64, aside: Option<Aside>) {
        let blocking = self.blocking.entry(self.rows[&seq].key).or_default();
        match aside {
            Some(aside) if aside.blocks => blocking.insert(seq),
            Some(_) | None => blocking.remove(&seq),
        };
        match aside {
            Some(aside) => self.aside.insert(seq, aside),
            None => self.aside.remove(&seq),
        };
    }
}

fn fresh(seq: u64) -> Handle {
    Handle(seq * 2)
}

fn returned(seq: u64) -> Handle {
    Handle(seq * 2 + 1)
}

fn is_returned(handle: Handle) -> bool {
    handle.0 % 2 == 1
}

fn seq(handle: Handle) -> u64 {
    handle.0 / 2
}
