//! What the Kafka sink can be told, and whether it makes sense.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::settings;
use super::transactions::ExactlyOnce;
use crate::routing::Template;
use crate::sinks::broker_url::BrokerUrl;
use crate::sinks::option_reader::OptionReader;
use crate::sinks::problem::zeros;
use crate::sinks::{PipelineFacts, Problem, Secret, TlsOptions};

mod access;

pub use access::Mechanism;

const PORT_DEFAULT: u16 = 9092;
/// How long a batch waits for more records. A call brings many at once, so it need not be long.
const LINGER_DEFAULT: Duration = Duration::from_millis(2);
const PROGRESS_TOPIC_DEFAULT: &str = "postrider.progress";
/// The longest that librdkafka can wait.
const LINGER_MAX: Duration = Duration::from_secs(900);

/// Where to send events, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `kafka://user:password@host:port,host:port`.
    pub url: Secret,
    /// Settings of librdkafka, by its names. Those that would break a promise are refused.
    pub client: Vec<(String, Secret)>,
    /// How batches are compressed. Defaults to not at all.
    pub compression: Compression,
    /// Whether a topic that is missing is made. Defaults to false.
    pub create_missing: bool,
    /// Whether each call is a transaction, so that readers of committed records see each event
    /// once. Defaults to false.
    pub exactly_once: bool,
    /// How long a batch waits for more records, while there are more to send. Defaults to 2 ms.
    pub linger: Duration,
    /// A template for the number of the partition. Defaults to the partition of the key.
    pub partition: Option<String>,
    /// How many partitions a topic gets that is made here. Defaults to the brokers' default.
    pub partitions: Option<usize>,
    /// The password, unless it is in the URL.
    pub password: Option<Secret>,
    /// What is known of the pipeline.
    pub pipeline: PipelineFacts,
    /// With `exactly_once`, the compacted topic in which it is noted what was published. Defaults
    /// to `postrider.progress`.
    pub progress_topic: Option<String>,
    /// How many replicas a topic gets that is made here. Defaults to the brokers' default.
    pub replication_factor: Option<usize>,
    /// How the password is used. Defaults to `SCRAM-SHA-512`.
    pub sasl_mechanism: Option<Mechanism>,
    /// Longest time until a record is confirmed. Defaults to 25 s.
    pub timeout: Duration,
    /// Whether and how the connection is encrypted.
    pub tls: Option<TlsOptions>,
    /// With `exactly_once`, the name by which a relay that takes over keeps the one before from
    /// going on; each shard adds its number. Defaults to `postrider/` and the pipeline's name.
    pub transactional_id: Option<String>,
    /// The name of the user, unless it is in the URL.
    pub username: Option<String>,
}

/// How batches are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// By gzip.
    Gzip,
    /// By LZ4.
    Lz4,
    /// By Snappy.
    Snappy,
    /// By Zstandard.
    Zstd,
}

impl Compression {
    const ALL: [(&str, Self); 5] = [
        ("none", Self::None),
        ("gzip", Self::Gzip),
        ("lz4", Self::Lz4),
        ("snappy", Self::Snappy),
        ("zstd", Self::Zstd),
    ];
}

fn name_of<T: PartialEq>(all: &[(&'static str, T)], one: &T) -> &'static str {
    all.iter().find(|(_, other)| other == one).map_or("", |(name, _)| name)
}

/// Options that make sense, in the form in which they are used.
pub(super) struct CheckedOptions {
    pub(super) url: BrokerUrl,
    pub(super) config: ClientConfig,
    pub(super) batch_bytes: Option<usize>,
    pub(super) partition: Option<Template>,
    pub(super) cautions: Vec<String>,
}

impl Options {
    /// The defaults for a cluster.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url),
            client: Vec::new(),
            compression: Compression::None,
            create_missing: false,
            exactly_once: false,
            linger: LINGER_DEFAULT,
            partition: None,
            partitions: None,
            password: None,
            pipeline: PipelineFacts::default(),
            progress_topic: None,
            replication_factor: None,
            sasl_mechanism: None,
            timeout: Duration::from_secs(25),
            tls: None,
            transactional_id: None,
            username: None,
        }
    }

    pub(in crate::sinks) fn read(
        url: &str,
        facts: &PipelineFacts,
        reader: &mut OptionReader<'_>,
    ) -> Self {
        let default = Self::new(url);
        Self {
            client: reader.settings("client"),
            compression: reader.choice("compression", &Compression::ALL).unwrap_or_default(),
            create_missing: reader.bool("create_missing").unwrap_or(default.create_missing),
            exactly_once: reader.bool("exactly_once").unwrap_or(default.exactly_once),
            linger: reader.duration("linger").unwrap_or(default.linger),
            partition: reader.text("partition"),
            partitions: reader.count("partitions"),
            password: reader.secret("password"),
            pipeline: facts.clone(),
            progress_topic: reader.text("progress_topic"),
            replication_factor: reader.count("replication_factor"),
            sasl_mechanism: reader.choice("sasl_mechanism", &Mechanism::ALL),
            timeout: reader.duration("timeout").unwrap_or(default.timeout),
            tls: TlsOptions::read(reader),
            transactional_id: reader.text("transactional_id"),
            username: reader.text("username"),
            url: default.url,
        }
    }

    /// Every mistake, without any I/O.
    pub fn problems(&self) -> Vec<Problem> {
        self.check().err().unwrap_or_default()
    }

    pub(super) fn check(&self) -> Result<CheckedOptions, Vec<Problem>> {
        let mut problems = Vec::new();
        let url = BrokerUrl::parse(self.url.expose(), PORT_DEFAULT)
            .map_err(|problem| problems.push(problem))
            .ok();
        if url.as_ref().is_some_and(|url| url.path.is_some()) {
            let problem = Problem::new("url", "has a path");
            problems.push(problem.with_hint("write the topic into `topic`"));
        }
        let partition = self.partition.as_deref().and_then(|text| {
            let parsed = Template::parse(text);
            parsed.map_err(|error| problems.push(Problem::new("partition", error.to_string()))).ok()
        });
        problems.extend(zeros([
            ("partitions", self.partitions == Some(0)),
            ("replication_factor", self.replication_factor == Some(0)),
            ("timeout", self.timeout.is_zero()),
        ]));
        for (option, is_given) in [
            ("partitions", self.partitions.is_some()),
            ("replication_factor", self.replication_factor.is_some()),
        ] {
            if is_given && !self.create_missing {
                let problem = Problem::new(option, "is for topics that are made here");
                problems.push(problem.with_hint("set create_missing = true, or remove it"));
            }
        }
        for (option, is_given) in [
            ("progress_topic", self.progress_topic.is_some()),
            ("transactional_id", self.transactional_id.is_some()),
        ] {
            if is_given && !self.exactly_once {
                let problem = Problem::new(option, "is for exactly_once");
                problems.push(problem.with_hint("set exactly_once = true, or remove it"));
            }
        }
        if self.linger > LINGER_MAX {
            problems.push(Problem::new("linger", "must be at most 15m"));
        }
        let mut config = ClientConfig::new();
        let cautions = match &url {
            Some(url) => self.check_access(url, &mut config, &mut problems),
            None => Vec::new(),
        };
        self.configure(&mut config);
        problems.extend(settings::add(&self.client, &mut config));
        let batch_bytes = config.get("batch.size").and_then(|bytes| bytes.parse().ok());
        match url {
            Some(url) if problems.is_empty() => {
                Ok(CheckedOptions { url, config, batch_bytes, partition, cautions })
            }
            _ => Err(problems),
        }
    }

    /// Where relays note their progress, as far as it is known here: this one, and others that were
    /// told nothing else.
    pub(super) fn progress_topics(&self) -> Vec<String> {
        let own = self.progress_topic.iter().map(String::as_str);
        own.chain([PROGRESS_TOPIC_DEFAULT]).map(str::to_owned).collect()
    }

    /// What transactions need, if they are wanted.
    pub(super) fn exactly_once(&self) -> Option<ExactlyOnce> {
        let shard = self.pipeline.name.split_once('/').map(|(_, shard)| format!("/{shard}"));
        let transactional_id = match &self.transactional_id {
            Some(id) => format!("{id}{}", shard.unwrap_or_default()),
            None => format!("postrider/{}", self.pipeline.name),
        };
        let progress_topic = self.progress_topic.as_deref().unwrap_or(PROGRESS_TOPIC_DEFAULT);
        self.exactly_once.then(|| ExactlyOnce {
            transactional_id,
            progress_topic: progress_topic.to_owned(),
            window: self.pipeline.window_events,
            horizon: self.pipeline.retry_horizon,
        })
    }

    fn configure(&self, config: &mut ClientConfig) {
        // Room for whatever the pipeline's window allows.
        let unlimited = i32::MAX.to_string();
        config
            .set("acks", "all")
            // Neither asking nor sending may make a topic that somebody has deleted.
            .set("allow.auto.create.topics", "false")
            .set("client.id", "postrider")
            .set("compression.type", name_of(&Compression::ALL, &self.compression))
            .set("enable.idempotence", "true")
            .set("linger.ms", (self.linger.as_secs_f64() * 1000.0).to_string())
            .set("message.timeout.ms", self.timeout.as_millis().to_string())
            .set("partitioner", "murmur2_random")
            .set("queue.buffering.max.kbytes", &unlimited)
            .set("queue.buffering.max.messages", "0")
            .set("reconnect.backoff.max.ms", "1000")
            .set("socket.keepalive.enable", "true");
    }
}

#[cfg(test)]
mod tests;
