//! Brokers: how fast events get there, beside the plain client or the broker's own tool, and how
//! many come again when the relay is killed.
//!
//! The plain client sends bare payloads, and then the very records that Postrider sends: what is
//! between the two is the price of the record, what is below the second is Postrider's own.
//!
//! Everything runs on the servers of `cargo xtask services up`, on the same machine. Whatever is
//! compared is measured in turn, several times, and the figure is the median.

mod endpoint;
mod kafka;
pub(crate) mod keys;
mod nats;
mod rabbitmq;
pub(crate) mod redelivery;
mod redis;
mod same;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use postrider_relay::formats::Encoding;
use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::routing::Template;
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::Sink;
use postrider_relay::sinks::SinkSpec;
use postrider_relay::source::Source;
use postrider_relay::sources::memory::{Generated, MemoryOutbox};

use crate::Outcome;
use crate::report::{Measured, Report, Target, median, number};

/// The variable that scales all sizes: events of one measurement.
const EVENTS_VARIABLE: &str = "POSTRIDER_BENCH_EVENTS";
const EVENTS: u64 = 1_000_000;
const ROUNDS: usize = 3;
/// As many as the pipeline has under way.
const IN_FLIGHT: usize = 4096;
/// How much of the plain client's rate is to be reached.
const OF_PEER_MIN: f64 = 0.8;

/// A broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broker {
    Kafka,
    Nats,
    RabbitMq,
    Redis,
}

impl Broker {
    const ALL: [Self; 4] = [Self::Kafka, Self::Nats, Self::RabbitMq, Self::Redis];

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|broker| broker.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
            Self::Redis => "redis",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    events: u64,
}

impl Sizes {
    fn from_environment() -> Outcome<Self> {
        let events = match std::env::var(EVENTS_VARIABLE) {
            Err(_) => EVENTS,
            Ok(text) => text.parse().map_err(|_| format!("{EVENTS_VARIABLE} is not a number"))?,
        };
        Ok(Self { events: events.next_multiple_of(1000).max(10_000) })
    }

    /// Only figures of the full size can be compared, and are kept.
    fn are_full(self) -> bool {
        self.events == EVENTS
    }
}

/// Runs one broker, or all. True if every target was reached.
pub(crate) fn run(broker: Option<Broker>) -> Outcome<bool> {
    let sizes = Sizes::from_environment()?;
    // As the binary has it.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut reached = true;
        for one in Broker::ALL {
            if broker.is_some_and(|broker| broker != one) {
                continue;
            }
            let (report, on) = match one {
                Broker::Kafka => kafka::run(sizes).await?,
                Broker::Nats => nats::run(sizes).await?,
                Broker::RabbitMq => rabbitmq::run(sizes).await?,
                Broker::Redis => redis::run(sizes).await?,
            };
            reached &= if sizes.are_full() { report.keep(Some(&on))? } else { report.forget() };
        }
        if broker.is_none() {
            reached &= keys::measure(sizes).await?;
            reached &= redelivery::measure(sizes).await?;
        }
        Ok(reached)
    })
}

/// Where a server of `cargo xtask services up` is.
fn url(broker: Broker) -> Outcome<String> {
    let variable = format!("POSTRIDER_TEST_{}", broker.name().to_uppercase());
    Ok(std::env::var(&variable).map_err(|_| format!("{variable} is not set: run it by cargo"))?)
}

/// What is published, for a title.
fn shape(events: u64) -> String {
    let Generated { payload_bytes, keys, .. } = Generated::new(events);
    let (events, keys) = (number(events as f64), number(keys as f64));
    format!(
        "{events} events from memory: {payload_bytes}-byte payloads, {keys} keys, ordered by key, \
         median of {ROUNDS}"
    )
}

/// What the peer publishes.
fn peer_payload() -> Bytes {
    Bytes::from(vec![b'x'; Generated::new(0).payload_bytes])
}

/// A sink as a configuration would have it.
async fn sink(url: &str, options: &str) -> Outcome<Box<dyn Sink>> {
    let window_events = Options::default().window.events_max;
    let mut spec = SinkSpec { options: options.parse()?, ..SinkSpec::new(url) };
    spec.pipeline.window_events = window_events;
    Ok(spec.connect().await?)
}

/// Everything goes to one topic.
fn to_topic(topic: &str) -> Outcome<Encoding> {
    let mut encoding = Encoding::default();
    encoding.route.topic = Template::parse(topic)?;
    Ok(encoding)
}

/// Publishes events that are made on the fly.
async fn from_memory(sink: Box<dyn Sink>, encoding: Encoding, events: u64) -> Outcome<Measured> {
    let outbox = MemoryOutbox::generated(Generated::new(events));
    drained(Box::new(outbox.connect()), sink, encoding, events).await
}

/// Publishes all that a source has, which is so many events.
async fn drained(
    source: Box<dyn Source>,
    sink: Box<dyn Sink>,
    encoding: Encoding,
    events: u64,
) -> Outcome<Measured> {
    let options = Options { drain: true, encoding, ..Options::default() };
    let (_stop, stopped) = shutdown();
    let started = Instant::now();
    let totals = Pipeline::new("bench", source, sink, options).run(stopped).await?;
    let time = started.elapsed();
    if totals.delivered != events {
        return Err(format!("{} of {events} events were delivered", totals.delivered).into());
    }
    Ok(Measured { events, time })
}

/// What is measured in turn, and how fast each was, round by round.
struct Rounds {
    labels: Vec<&'static str>,
    rates: Vec<Vec<f64>>,
}

impl Rounds {
    fn new(labels: &[&'static str]) -> Self {
        Self { labels: labels.to_vec(), rates: Vec::new() }
    }

    fn add(&mut self, round: Vec<Measured>) {
        self.rates.push(round.into_iter().map(Measured::rate).collect());
    }

    /// The median of each, and how much of another one's rate the named ones reach: within each
    /// round, so that a busy moment of the machine hits both.
    fn tell(&self, report: &mut Report, judged: &[(usize, usize, &str)]) {
        for (index, label) in self.labels.iter().enumerate() {
            let rate = median(self.rates.iter().map(|round| round[index])).round();
            report.line(label, &format!("{} events/s", number(rate)), "");
        }
        for (one, other, what) in judged {
            report.judge(what, self.ratio(*one, *other), "times", Target::AtLeast(OF_PEER_MIN));
        }
    }

    /// How much of another one's rate some reach, without a target.
    fn tell_shares(&self, report: &mut Report, shares: &[(usize, usize, &str)]) {
        for (one, other, what) in shares {
            report.line(what, &format!("{:.2} times", self.ratio(*one, *other)), "");
        }
    }

    fn ratio(&self, one: usize, other: usize) -> f64 {
        median(self.rates.iter().map(|round| round[one] / round[other]))
    }
}

/// What a peer has under way. Answers come in their order, so the oldest are waited for.
struct UnderWay<F>(VecDeque<F>);

impl<F: Future<Output = Outcome<()>>> UnderWay<F> {
    fn new() -> Self {
        Self(VecDeque::with_capacity(IN_FLIGHT))
    }

    /// Adds one, and waits for the oldest quarter if there are too many.
    async fn add(&mut self, one: F) -> Outcome<()> {
        self.0.push_back(one);
        if self.0.len() == IN_FLIGHT {
            for oldest in self.0.drain(..IN_FLIGHT / 4) {
                oldest.await?;
            }
        }
        Ok(())
    }

    async fn end(self) -> Outcome<()> {
        for one in self.0 {
            one.await?;
        }
        Ok(())
    }
}

/// The time that something took, for so many events.
async fn timed<T>(events: u64, work: impl Future<Output = Outcome<T>>) -> Outcome<Measured> {
    let started = Instant::now();
    work.await?;
    let time: Duration = started.elapsed();
    Ok(Measured { events, time })
}
