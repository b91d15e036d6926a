//! How fast the events of few keys get to each sink: one key, ten, a hundred, ten thousand.

use postrider_relay::formats::Encoding;
use postrider_relay::sinks::file;
use postrider_relay::sources::memory::{Generated, MemoryOutbox};

use super::{Broker, Sizes, drained, endpoint, kafka, nats, rabbitmq, redis, sink, url};
use crate::Outcome;
use crate::postgres::bench_source::Backlog;
use crate::report::{Measured, Report, Section, Target, median, number};

const KEYS: [usize; 4] = [1, 10, 100, 10_000];
/// What one key is to reach, from PostgreSQL's log into Kafka.
const ONE_KEY_MIN: f64 = 20_000.0;
/// How much of the rate of many keys ten are to reach.
const OF_MANY_MIN: f64 = 0.5;
/// Events of a measurement for each million that `POSTRIDER_BENCH_EVENTS` stands for, with sinks
/// that send one event of a key at a time, and with others.
const FEWER: (u64, u64) = (100, 10);

/// Where the events go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Broker(Broker),
    File,
    Http,
}

impl To {
    const ALL: [Self; 6] = [
        Self::Broker(Broker::Kafka),
        Self::Broker(Broker::Nats),
        Self::Broker(Broker::RabbitMq),
        Self::Broker(Broker::Redis),
        Self::File,
        Self::Http,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Broker(broker) => broker.name(),
            Self::File => "a file, every line synced",
            Self::Http => "an HTTP endpoint that answers at once",
        }
    }

    /// Whether it takes several events of one key at a time.
    fn is_ordered(self) -> bool {
        matches!(self, Self::Broker(Broker::Kafka | Broker::Redis) | Self::File)
    }
}

/// Measures. True if every target was reached.
pub(crate) fn run(only_kafka: bool) -> Outcome<bool> {
    let sizes = Sizes::from_environment()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        if only_kafka {
            let mut report = Report::new(Section::Keys);
            let backlog = Backlog::start().await?;
            into_kafka(&mut report, &backlog, sizes.events / FEWER.1).await?;
            from_memory(&mut report, To::Broker(Broker::Kafka), sizes).await?;
            return Ok(report.forget());
        }
        measure(sizes).await
    })
}

/// Measures. True if every target was reached.
pub(super) async fn measure(sizes: Sizes) -> Outcome<bool> {
    let mut report = Report::new(Section::Keys);
    let backlog = Backlog::start().await?;
    into_kafka(&mut report, &backlog, sizes.events / FEWER.1).await?;
    for to in To::ALL {
        from_memory(&mut report, to, sizes).await?;
    }
    let on = format!("{} and the brokers on the same machine", backlog.describe().await?);
    if sizes.are_full() { report.keep(Some(&on)) } else { Ok(report.forget()) }
}

/// From PostgreSQL's log into Kafka.
async fn into_kafka(report: &mut Report, backlog: &Backlog, events: u64) -> Outcome<()> {
    report.title(&format!(
        "events of so many keys into Kafka, from a PostgreSQL backlog of {} events by log tailing, \
         median of {}",
        number(events as f64),
        super::ROUNDS
    ));
    let (url, servers) = kafka::place()?;
    let mut rounds = Rates::default();
    for _ in 0..super::ROUNDS {
        for (index, keys) in KEYS.into_iter().enumerate() {
            let measured = kafka::tailed_keys(backlog, &url, &servers, events, keys).await?;
            rounds.0[index].push(measured.rate());
        }
    }
    rounds.tell(report);
    report.judge("one key", rounds.of(0), "events/s", Target::AtLeast(ONE_KEY_MIN));
    let share = rounds.share(1);
    report.judge("10 keys, of the rate of 10 000", share, "times", Target::AtLeast(OF_MANY_MIN));
    Ok(())
}

/// From memory, where events are made on the fly.
async fn from_memory(report: &mut Report, to: To, sizes: Sizes) -> Outcome<()> {
    let events = sizes.events / if to.is_ordered() { FEWER.1 } else { FEWER.0 };
    report.title(&format!(
        "events of so many keys into {}, {} events from memory, median of {}",
        to.name(),
        number(events as f64),
        super::ROUNDS
    ));
    let mut rounds = Rates::default();
    for _ in 0..super::ROUNDS {
        for (index, keys) in KEYS.into_iter().enumerate() {
            rounds.0[index].push(sent_to(to, events, keys).await?.rate());
        }
    }
    rounds.tell(report);
    Ok(())
}

/// The rates for each number of keys, round by round.
#[derive(Default)]
struct Rates([Vec<f64>; KEYS.len()]);

impl Rates {
    fn of(&self, index: usize) -> f64 {
        median(self.0[index].iter().copied()).round()
    }

    /// Of the rate of most keys, in the same round.
    fn share(&self, index: usize) -> f64 {
        let most = self.0.last().into_iter().flatten();
        median(self.0[index].iter().zip(most).map(|(rate, most)| rate / most))
    }

    fn tell(&self, report: &mut Report) {
        for (index, keys) in KEYS.into_iter().enumerate() {
            let what = if keys == 1 {
                "1 key".to_owned()
            } else {
                format!("{} keys", number(keys as f64))
            };
            let rate = format!("{} events/s", number(self.of(index)));
            let share = format!("{:.2} of the rate of 10 000 keys", self.share(index));
            report.line(&what, &rate, if index + 1 < KEYS.len() { &share } else { "" });
        }
    }
}

/// Publishes events of so many keys that are made on the fly.
async fn sent_to(to: To, events: u64, keys: usize) -> Outcome<Measured> {
    let outbox = MemoryOutbox::generated(Generated { keys, ..Generated::new(events) });
    let source = Box::new(outbox.connect());
    let broker = match to {
        To::Broker(broker) => broker,
        To::File => {
            let folder = crate::beside_program()?;
            let path = folder.path().join("events");
            let sink = file::Options { path }.connect().await?;
            return drained(source, Box::new(sink), Encoding::default(), events).await;
        }
        To::Http => {
            let url = endpoint::start().await?;
            return drained(
                source,
                sink(&url, "allow_private = true").await?,
                Encoding::default(),
                events,
            )
            .await;
        }
    };
    let url = url(broker)?;
    let place = match broker {
        Broker::Kafka => kafka::fresh_place(&url).await?,
        Broker::Nats => nats::fresh_place(&url).await?,
        Broker::RabbitMq => rabbitmq::fresh_place(&url).await?,
        Broker::Redis => redis::fresh_place(&url).await?,
    };
    let encoding = super::to_topic(&place)?;
    let options = if broker == Broker::Redis { "create_missing = true" } else { "" };
    drained(source, sink(&url, options).await?, encoding, events).await
}
