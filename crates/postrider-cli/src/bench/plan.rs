//! How much is written, and how long each part may take.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// What a row takes beside its payload, with its part of the indexes and of the application's own
/// tables.
const ROW_BYTES: u64 = 450;
/// What a message takes beside its payload.
const MESSAGE_BYTES: u64 = 350;
/// Most messages that are published without a database, and most bytes of them: they are made
/// beforehand.
const ALONE_MAX: u64 = 20_000;
const ALONE_BYTES_MAX: u64 = 64 << 20;
/// Most events of a transaction that writes many, and most bytes of them.
const BATCH_MAX: u64 = 100;
const BATCH_BYTES_MAX: u64 = 4 << 20;
/// The steady load of the last part, if the database takes it.
pub(crate) const RATE_MAX: f64 = 200.0;

/// What the user allows.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Plan {
    /// Most events that are written.
    pub(crate) rows: u64,
    pub(crate) payload_bytes: usize,
    pub(crate) keys: u32,
    /// How long all measuring may take.
    #[serde(skip)]
    pub(crate) time: Duration,
}

/// How the rows are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Transactions with one event each, and as many without.
    pub(crate) transactions: u64,
    /// A backlog that is drained to nowhere.
    pub(crate) dropped: u64,
    /// A backlog that is drained to the sink.
    pub(crate) published: u64,
    /// Messages that are published without a database; no rows.
    pub(crate) alone: u64,
    /// The steady load.
    pub(crate) steady: u64,
}

/// A part of the measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// One of four rounds of transactions.
    Transactions,
    /// One of two backlogs.
    Fill,
    ReadAll,
    /// One of two drains.
    Drain,
    Alone,
    Latency,
}

impl Part {
    /// Its share of the time, in percent. With the rounds there are, it is all of it.
    fn percent(self) -> u32 {
        match self {
            Self::Transactions => 6,
            Self::Fill => 9,
            Self::ReadAll => 4,
            Self::Drain => 11,
            Self::Alone => 10,
            Self::Latency => 22,
        }
    }
}

impl Plan {
    pub(crate) fn rows(&self, has_sink: bool) -> Rows {
        let tenth = (self.rows / 10).max(1);
        let backlog = self.rows.saturating_sub(2 * tenth);
        let published = if has_sink { backlog / 2 } else { 0 };
        Rows {
            transactions: tenth,
            dropped: backlog - published,
            published,
            alone: published.min(ALONE_MAX).min(self.fitting(ALONE_BYTES_MAX)),
            steady: tenth,
        }
    }

    /// Events of a transaction that writes many.
    pub(crate) fn batch_events(&self) -> u64 {
        BATCH_MAX.min(self.fitting(BATCH_BYTES_MAX))
    }

    /// How many events have so many bytes; one at least.
    fn fitting(&self, bytes: u64) -> u64 {
        (bytes / self.payload_bytes.max(1) as u64).max(1)
    }

    /// About how much is written to the database, and to the sink.
    pub(crate) fn bytes(&self, has_sink: bool) -> (u64, u64) {
        let (payload, rows) = (self.payload_bytes as u64, self.rows(has_sink));
        let messages = if has_sink { rows.published + rows.alone + rows.steady } else { 0 };
        (self.rows * (payload + ROW_BYTES), messages * (payload + MESSAGE_BYTES))
    }

    /// Starts the clock.
    pub(crate) fn start(&self) -> Clock {
        Clock { time: self.time, end: Instant::now() + self.time }
    }
}

/// Knows when it is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    time: Duration,
    end: Instant,
}

impl Clock {
    /// When a part that begins now has to end.
    pub(crate) fn end_of(&self, part: Part) -> Instant {
        self.end.min(Instant::now() + self.time * part.percent() / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_take_all_rows_and_no_more() {
        for rows in [100, 1234, 20_000, 1_000_000] {
            let time = Duration::from_secs(30);
            let plan = Plan { rows, payload_bytes: 200, keys: 100, time };
            for has_sink in [true, false] {
                let Rows { transactions, dropped, published, alone, steady } = plan.rows(has_sink);
                assert_eq!(transactions + dropped + published + steady, rows);
                assert_eq!(published > 0, has_sink);
                assert!(alone <= ALONE_MAX && alone <= published);
                assert!(plan.bytes(has_sink).0 > rows * 200);
            }
        }
    }

    #[test]
    fn large_payloads_are_few_at_a_time() {
        let time = Duration::from_secs(30);
        let plan = |payload_bytes| Plan { rows: 1_000_000, payload_bytes, keys: 1, time };
        assert_eq!((plan(200).batch_events(), plan(200).rows(true).alone), (100, ALONE_MAX));
        assert_eq!((plan(1 << 20).batch_events(), plan(1 << 20).rows(true).alone), (4, 64));
        assert_eq!(plan(16 << 20).batch_events(), 1);
    }

    #[test]
    fn the_shares_are_all_of_the_time_and_no_more() {
        let rounds = [
            (Part::Transactions, 4),
            (Part::Fill, 2),
            (Part::ReadAll, 1),
            (Part::Drain, 2),
            (Part::Alone, 1),
            (Part::Latency, 1),
        ];
        assert_eq!(rounds.map(|(part, rounds)| part.percent() * rounds).iter().sum::<u32>(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn no_part_ends_after_the_end() {
        let time = Duration::from_secs(30);
        let clock = Plan { rows: 100, payload_bytes: 200, keys: 1, time }.start();
        let end = Instant::now() + time;
        assert!(clock.end_of(Part::Latency) < end);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(clock.end_of(Part::Latency), end);
    }
}
