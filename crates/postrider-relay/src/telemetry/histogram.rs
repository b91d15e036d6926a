//! A histogram that is written by a pipeline and read by whoever scrapes it.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How many bounds a histogram has.
pub const BOUNDS: usize = 16;

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

/// Upper bounds in microseconds for one call of a sink.
pub const CALL_BOUNDS: [u64; BOUNDS] = [
    500,
    MS,
    2_500,
    5 * MS,
    10 * MS,
    25 * MS,
    50 * MS,
    100 * MS,
    250 * MS,
    500 * MS,
    SECOND,
    2_500 * MS,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    60 * SECOND,
];

/// Upper bounds in microseconds for the way of an event from its writing to the sink.
pub const END_TO_END_BOUNDS: [u64; BOUNDS] = [
    5 * MS,
    10 * MS,
    25 * MS,
    50 * MS,
    100 * MS,
    250 * MS,
    500 * MS,
    SECOND,
    2_500 * MS,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    60 * SECOND,
    300 * SECOND,
    1_800 * SECOND,
    3_600 * SECOND,
];

/// Counts durations by upper bound.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64; BOUNDS],
    /// The last one is for what is above all bounds.
    counts: [AtomicU64; BOUNDS + 1],
    sum_micros: AtomicU64,
}

/// What a histogram holds at one moment; several can be added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The upper bounds in microseconds.
    pub bounds: &'static [u64; BOUNDS],
    /// How many were within each bound and above the one before; the last one has no bound.
    pub counts: [u64; BOUNDS + 1],
    /// All of them together.
    pub sum_micros: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(bounds: &'static [u64; BOUNDS]) -> Self {
        Self { bounds, counts: array::from_fn(|_| AtomicU64::new(0)), sum_micros: 0.into() }
    }

    /// Counts durations, and answers how many there were. However many they are, each bound is
    /// written once.
    pub fn observe(&self, durations: impl IntoIterator<Item = Duration>) -> u64 {
        let mut counts = [0_u64; BOUNDS + 1];
        let (mut count, mut sum) = (0, 0_u64);
        for duration in durations {
            let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
            counts[self.bounds.partition_point(|bound| *bound < micros)] += 1;
            sum = sum.saturating_add(micros);
            count += 1;
        }
        for (total, count) in self.counts.iter().zip(counts).filter(|(_, count)| *count > 0) {
            total.fetch_add(count, Relaxed);
        }
        self.sum_micros.fetch_add(sum, Relaxed);
        count
    }

    /// What it holds now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            bounds: self.bounds,
            counts: array::from_fn(|index| self.counts[index].load(Relaxed)),
            sum_micros: self.sum_micros.load(Relaxed),
        }
    }
}

impl Snapshot {
    /// Adds another one with the same bounds.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_within_the_first_bound_that_it_does_not_exceed() {
        let histogram = Histogram::new(&CALL_BOUNDS);
        let durations = [0, 500, 501, 60_000_000, 60_000_001].map(Duration::from_micros);
        assert_eq!(histogram.observe(durations), 5);
        let mut snapshot = histogram.snapshot();
        let mut expected = [0; BOUNDS + 1];
        (expected[0], expected[1], expected[BOUNDS - 1], expected[BOUNDS]) = (2, 1, 1, 1);
        assert_eq!(snapshot.counts, expected);
        assert_eq!(snapshot.sum_micros, 120_001_002);
        snapshot.add(&histogram.snapshot());
        assert_eq!(snapshot.counts[0], 4);
        assert_eq!(snapshot.sum_micros, 240_002_004);
    }

    #[test]
    fn bounds_go_up() {
        for bounds in [CALL_BOUNDS, END_TO_END_BOUNDS] {
            assert!(bounds.is_sorted_by(|one, next| one < next), "{bounds:?}");
        }
    }
}
