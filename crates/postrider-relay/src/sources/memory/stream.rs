//! The rows of an outbox in memory, in order: stored ones, or generated ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use postrider::Event;

use super::generator::{Generated, Generator};
use crate::source::Undecodable;

/// An event as it is stored, or what is wrong with the row.
pub(super) type Row = Result<Arc<Event>, Undecodable>;

/// Rows by their sequence number, from 1.
#[derive(Debug)]
pub(super) enum Stream {
    Stored { rows: BTreeMap<u64, Row>, last: u64 },
    Generated { generator: Generator, settled: u64 },
}

impl Stream {
    pub(super) fn stored() -> Self {
        Self::Stored { rows: BTreeMap::new(), last: 0 }
    }

    pub(super) fn generated(generated: Generated) -> Self {
        Self::Generated { generator: Generator::new(generated), settled: 0 }
    }

    pub(super) fn append(&mut self, row: Row) {
        if let Self::Stored { rows, last } = self {
            *last += 1;
            rows.insert(*last, row);
        }
    }

    pub(super) fn get(&self, seq: u64) -> Option<Row> {
        match self {
            Self::Stored { rows, .. } => rows.get(&seq).cloned(),
            Self::Generated { generator, .. } => generator.event(seq).map(Ok),
        }
    }

    /// The first row after this position.
    pub(super) fn after(&self, position: u64) -> Option<(u64, Row)> {
        match self {
            Self::Stored { rows, .. } => {
                rows.range(position + 1..).next().map(|(seq, row)| (*seq, row.clone()))
            }
            Self::Generated { generator, .. } => {
                generator.event(position + 1).map(|event| (position + 1, Ok(event)))
            }
        }
    }

    /// Removes a row that is settled.
    pub(super) fn remove(&mut self, seq: u64) -> Option<Row> {
        match self {
            Self::Stored { rows, .. } => rows.remove(&seq),
            Self::Generated { generator, settled } => {
                *settled += 1;
                generator.event(seq).map(Ok)
            }
        }
    }

    /// Notes that a row was delivered.
    pub(super) fn delivered(&mut self, seq: u64) {
        match self {
            Self::Stored { rows, .. } => drop(rows.remove(&seq)),
            Self::Generated { settled, .. } => *settled += 1,
        }
    }

    /// How many rows are not settled.
    pub(super) fn unsettled(&self) -> u64 {
        match self {
            Self::Stored { rows, .. } => rows.len() as u64,
            Self::Generated { generator, settled } => generator.events() - settled,
        }
    }

    /// Whether a row is not settled and answers the question. A generated row has no field
    /// worth asking about.
    pub(super) fn any_unsettled(&self, is_meant: impl Fn(&Row) -> bool) -> bool {
        match self {
            Self::Stored { rows, .. } => rows.values().any(is_meant),
            Self::Generated { .. } => self.unsettled() > 0,
        }
    }
}
