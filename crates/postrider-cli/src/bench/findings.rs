//! What was found, for people and for machines.

use postrider_relay::amounts::number;
use serde::Serialize;

use super::latency::Latency;
use super::plan::Plan;
use crate::output::table;

/// The report. People script against its names.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Findings {
    /// What everything was called that was made for it, and is removed.
    pub(crate) name: String,
    pub(crate) database: String,
    pub(crate) sink: Option<String>,
    pub(crate) mode: &'static str,
    pub(crate) progress: &'static str,
    #[serde(flatten)]
    pub(crate) plan: Plan,
    /// Events that were written to the database.
    pub(crate) events_written: u64,
    /// How long measuring took.
    pub(crate) seconds: f64,
    pub(crate) writing: Writing,
    pub(crate) reading: Reading,
    pub(crate) publishing: Option<Publishing>,
    pub(crate) latency: Latency,
    pub(crate) limit: Limit,
}

/// What the database takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Writing {
    /// Sessions at the same time.
    pub(crate) writers: usize,
    pub(crate) bare_transactions_per_second: f64,
    /// With one event each.
    pub(crate) event_transactions_per_second: f64,
    /// The rate with an event, of that without.
    pub(crate) event_of_bare: f64,
    /// How much longer a transaction takes.
    pub(crate) event_adds_ms: f64,
    /// Events of a large transaction.
    pub(crate) batch_events: u64,
    pub(crate) batch_events_per_second: f64,
}

/// What the database gives.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Reading {
    /// The limit: all rows, read and dropped by a plain client.
    pub(crate) copy_events_per_second: f64,
    /// By a relay to a sink that drops them.
    pub(crate) drain_events_per_second: f64,
    pub(crate) drain_of_copy: f64,
    pub(crate) drained_events: u64,
}

/// What the sink takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Publishing {
    /// The limit: a relay without a database.
    pub(crate) alone_events_per_second: f64,
    /// By a relay from the database.
    pub(crate) drain_events_per_second: f64,
    pub(crate) drain_of_alone: f64,
    pub(crate) drained_events: u64,
}

/// What there is least of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Limit {
    /// `database` or `sink`.
    pub(crate) part: &'static str,
    /// How many times as many events a relay publishes as were written one by one.
    pub(crate) relay_of_writing: f64,
    /// The same in words.
    pub(crate) words: String,
}

impl Limit {
    /// Finds out which part of the way holds the others up.
    pub(crate) fn of(writing: &Writing, reading: &Reading, sink: Option<&Publishing>) -> Self {
        let gives = reading.drain_events_per_second;
        let (part, published, words) = match sink {
            None => {
                let words = format!(
                    "the database: a relay reads and settles {} events/s from it, {} of what COPY \
                     reads alone",
                    number(gives.round()),
                    percent(reading.drain_of_copy),
                );
                ("database", gives, words)
            }
            Some(sink) if sink.alone_events_per_second < gives => {
                let words = format!(
                    "the sink: by itself it takes {} events/s, and the database gives {}",
                    number(sink.alone_events_per_second.round()),
                    number(gives.round()),
                );
                ("sink", sink.drain_events_per_second, words)
            }
            Some(sink) => {
                let words = format!(
                    "the database: it gives {} events/s, and the sink by itself takes {}",
                    number(gives.round()),
                    number(sink.alone_events_per_second.round()),
                );
                ("database", sink.drain_events_per_second, words)
            }
        };
        let relay_of_writing = rounded(published / writing.event_transactions_per_second);
        let sessions = match writing.writers {
            1 => "one session writes".to_owned(),
            writers => format!("{writers} sessions write"),
        };
        let words = format!(
            "{words}. One relay publishes {} times what {sessions} with one event for each \
             transaction.",
            number(relay_of_writing)
        );
        Self { part, relay_of_writing, words }
    }
}

impl Findings {
    /// As people read it.
    pub(crate) fn to_text(&self) -> String {
        let Self { writing, reading, latency, .. } = self;
        let sessions = match writing.writers {
            1 => "one session".to_owned(),
            writers => format!("{writers} sessions"),
        };
        let rate = |rate: f64, unit: &str| format!("{} {unit}", number(rate.round()));
        let row = |what: &str, figure: String, more: String| vec![what.to_owned(), figure, more];
        let mut rows = vec![
            row(
                "transactions without an event",
                rate(writing.bare_transactions_per_second, "/s"),
                sessions,
            ),
            row(
                "transactions with one event",
                rate(writing.event_transactions_per_second, "/s"),
                format!(
                    "{} of that; an event adds {} ms",
                    percent(writing.event_of_bare),
                    number(writing.event_adds_ms)
                ),
            ),
            row(
                &format!("events written, {} a transaction", writing.batch_events),
                rate(writing.batch_events_per_second, "events/s"),
                String::new(),
            ),
            row(
                "rows read by a plain client",
                rate(reading.copy_events_per_second, "events/s"),
                "the limit".to_owned(),
            ),
            row(
                "backlog drained to nowhere",
                rate(reading.drain_events_per_second, "events/s"),
                format!("{} of that", percent(reading.drain_of_copy)),
            ),
        ];
        if let Some(publishing) = &self.publishing {
            rows.push(row(
                "the sink by itself",
                rate(publishing.alone_events_per_second, "events/s"),
                "the limit".to_owned(),
            ));
            rows.push(row(
                "backlog drained to the sink",
                rate(publishing.drain_events_per_second, "events/s"),
                format!("{} of that", percent(publishing.drain_of_alone)),
            ));
        }
        let p999 = latency.p999_ms.map(|ms| format!(", p99.9 {} ms", number(ms)));
        rows.push(row(
            "from commit to durable, p50",
            format!("{} ms", number(latency.p50_ms)),
            format!("p99 {} ms{}", number(latency.p99_ms), p999.unwrap_or_default()),
        ));
        format!(
            "{}\nThe last at {} events/s. {} events were written in {} s.\nThe limit is {}\n",
            table(&rows),
            number(latency.events_per_second),
            number(self.events_written as f64),
            number(self.seconds),
            self.limit.words,
        )
    }
}

/// A part of one, in percent.
fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// As much as a figure is worth.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(gives: f64, takes: Option<f64>) -> Limit {
        let writing = Writing {
            writers: 8,
            bare_transactions_per_second: 2000.0,
            event_transactions_per_second: 1000.0,
            event_of_bare: 0.5,
            event_adds_ms: 4.0,
            batch_events: 100,
            batch_events_per_second: 9000.0,
        };
        let reading = Reading {
            copy_events_per_second: gives * 2.0,
            drain_events_per_second: gives,
            drain_of_copy: 0.5,
            drained_events: 1,
        };
        let publishing = takes.map(|takes| Publishing {
            alone_events_per_second: takes,
            drain_events_per_second: takes.min(gives),
            drain_of_alone: 1.0,
            drained_events: 1,
        });
        Limit::of(&writing, &reading, publishing.as_ref())
    }

    #[test]
    fn the_limit_is_the_part_that_holds_the_others_up() {
        let sink = limit(80_000.0, Some(12_000.0));
        assert_eq!((sink.part, sink.relay_of_writing), ("sink", 12.0));
        assert_eq!(
            sink.words,
            "the sink: by itself it takes 12 000 events/s, and the database gives 80 000. One relay \
             publishes 12 times what 8 sessions write with one event for each transaction."
        );
        let database = limit(10_000.0, Some(12_000.0));
        assert_eq!((database.part, database.relay_of_writing), ("database", 10.0));
        let alone = limit(10_000.0, None);
        assert_eq!(alone.part, "database");
        assert!(alone.words.contains("50 % of what COPY reads alone"), "{}", alone.words);
    }
}
