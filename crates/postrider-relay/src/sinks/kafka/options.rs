//! What the Kafka sink can be told, and whether it makes sense.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::settings;
use super::transactions::ExactlyOnce;
use crate::routing::Template;
use crate::sinks::broker_url::BrokerUrl;
use crate::sinks::option_reader::OptionReader;
use crate::sinks::{PipelineFacts, Problem, Secret, TlsOptions};

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
    /// How long a batch waits for more records. Defaults to 2 ms.
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

/// How a password is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Sent as it is.
    Plain,
    /// By SCRAM with SHA-256.
    ScramSha256,
    /// By SCRAM with SHA-512.
    ScramSha512,
}

impl Mechanism {
    const ALL: [(&str, Self); 3] = [
        ("PLAIN", Self::Plain),
        ("SCRAM-SHA-256", Self::ScramSha256),
        ("SCRAM-SHA-512", Self::ScramSha512),
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
        if url.as_ref().is_some_and(|url| url.path.as_ref().is_some_and(|path| !path.is_empty())) {
            let problem = Problem::new("url", "has a path");
            problems.push(problem.with_hint("write the topic into `topic`"));
        }
        let partition = self.partition.as_deref().and_then(|text| {
            let parsed = Template::parse(text);
            parsed.map_err(|error| problems.push(Problem::new("partition", error.to_string()))).ok()
        });
        for (option, is_zero) in [
            ("partitions", self.partitions == Some(0)),
            ("replication_factor", self.replication_factor == Some(0)),
            ("timeout", self.timeout.is_zero()),
        ] {
            if is_zero {
                problems.push(Problem::new(option, "must be more than zero"));
            }
        }
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

    /// Who we are, and by what way. The answer is what is less safe than it could be.
    fn check_access(
        &self,
        url: &BrokerUrl,
        config: &mut ClientConfig,
        problems: &mut Vec<Problem>,
    ) -> Vec<String> {
        config.set("bootstrap.servers", url.servers_shown());
        let mut one_of = |option: &str, in_url: bool, in_option: bool| {
            if in_url && in_option {
                let problem = Problem::new(option, "stands in the URL, too");
                problems.push(problem.with_hint("write it once"));
            }
        };
        one_of("username", url.user.is_some(), self.username.is_some());
        one_of("password", url.password.is_some(), self.password.is_some());
        let user = url.user.as_ref().or(self.username.as_ref());
        let password = url.password.as_ref().or(self.password.as_ref());
        if let Some(tls) = &self.tls {
            problems.extend(tls.problems());
            for (setting, file) in [
                ("ssl.ca.location", &tls.ca_file),
                ("ssl.certificate.location", &tls.certificate_file),
                ("ssl.key.location", &tls.key_file),
            ] {
                if let Some(file) = file {
                    config.set(setting, file.display().to_string());
                }
            }
        }
        let protocol = match (user, &self.tls) {
            (None, None) => "plaintext",
            (None, Some(_)) => "ssl",
            (Some(_), None) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        let mechanism = self.sasl_mechanism.unwrap_or(Mechanism::ScramSha512);
        match (user, password) {
            (Some(user), Some(password)) => {
                config
                    .set("sasl.mechanism", name_of(&Mechanism::ALL, &mechanism))
                    .set("sasl.username", user)
                    .set("sasl.password", password.expose());
            }
            (Some(_), None) => problems.push(
                Problem::new("password", "is missing").with_hint("set it, or remove the user"),
            ),
            (None, Some(_)) => problems.push(
                Problem::new("username", "is missing").with_hint("set it, or remove the password"),
            ),
            (None, None) if self.sasl_mechanism.is_some() => problems.push(
                Problem::new("sasl_mechanism", "is given without a user")
                    .with_hint("set username and password, or remove it"),
            ),
            (None, None) => {}
        }
        if user.is_some() && self.tls.is_none() && mechanism == Mechanism::Plain {
            return vec!["the password is sent to Kafka as it is; set tls = true".to_owned()];
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(options: &Options) -> String {
        options.problems().iter().map(|problem| format!("{problem}\n")).collect()
    }

    fn read(url: &str, text: &str) -> Options {
        let table = text.parse().unwrap();
        let mut reader = OptionReader::new(&table);
        let options = Options::read(url, &PipelineFacts::default(), &mut reader);
        let left = reader.finish("kafka");
        assert!(left.is_empty(), "{left:?}");
        options
    }

    fn setting(options: &Options, name: &str) -> Option<String> {
        options.check().ok().unwrap().config.get(name).map(str::to_owned)
    }

    #[test]
    fn the_defaults_are_safe() {
        let options = Options::new("kafka://a,b:9093");
        assert_eq!(problems(&options), "");
        for (name, value) in [
            ("acks", "all"),
            ("bootstrap.servers", "a:9092,b:9093"),
            ("enable.idempotence", "true"),
            ("linger.ms", "2"),
            ("message.timeout.ms", "25000"),
            ("partitioner", "murmur2_random"),
            ("security.protocol", "plaintext"),
        ] {
            assert_eq!(setting(&options, name).as_deref(), Some(value), "{name}");
        }
    }

    #[test]
    fn access_is_by_the_url_or_by_options() {
        let in_url = read("kafka://u:p%40@h", "tls = { ca_file = \"/ca.pem\" }");
        let in_options = read("kafka://h", "username = \"u\"\npassword = \"p@\"\ntls = true");
        for options in [&in_url, &in_options] {
            assert_eq!(problems(options), "");
            for (name, value) in [
                ("security.protocol", "sasl_ssl"),
                ("sasl.mechanism", "SCRAM-SHA-512"),
                ("sasl.username", "u"),
                ("sasl.password", "p@"),
            ] {
                assert_eq!(setting(options, name).as_deref(), Some(value), "{name}");
            }
            assert!(!format!("{options:?}").contains("p@"));
        }
        assert_eq!(setting(&in_url, "ssl.ca.location").as_deref(), Some("/ca.pem"));
        let plain = read("kafka://u:p@h", "sasl_mechanism = \"PLAIN\"");
        assert_eq!(plain.check().ok().unwrap().cautions.len(), 1);
    }

    #[test]
    fn each_shard_has_a_transactional_id_of_its_own() {
        for (name, given, expected) in [
            ("orders", "", "postrider/orders"),
            ("orders/3", "", "postrider/orders/3"),
            ("orders", "transactional_id = \"shop\"", "shop"),
            ("orders/3", "transactional_id = \"shop\"", "shop/3"),
        ] {
            let facts = PipelineFacts { name: name.to_owned(), ..PipelineFacts::default() };
            let options = Options {
                pipeline: facts,
                ..read("kafka://h", &format!("exactly_once = true\n{given}"))
            };
            assert_eq!(problems(&options), "");
            assert_eq!(options.exactly_once().unwrap().transactional_id, expected);
        }
        assert_eq!(read("kafka://h", "").exactly_once(), None);
    }

    #[test]
    fn mistakes_are_named() {
        for (url, text, expected) in [
            ("kafka://", "", "url: names a server that is not host:port"),
            ("kafka://h/orders", "", "url: has a path; write the topic into `topic`"),
            ("kafka://u@h", "", "password: is missing"),
            ("kafka://u:canary@h", "password = \"canary\"", "password: stands in the URL, too"),
            ("kafka://h", "password = \"canary\"", "username: is missing"),
            ("kafka://h", "sasl_mechanism = \"PLAIN\"", "sasl_mechanism: is given without a user"),
            ("kafka://h", "partition = \"{nope}\"", "partition: unknown field `nope`"),
            ("kafka://h", "partitions = 3", "set create_missing = true, or remove it"),
            ("kafka://h", "create_missing = true\npartitions = 0", "partitions: must be more"),
            ("kafka://h", "tls = { key_file = \"/k\" }", "tls: has key_file and no certificate"),
            ("kafka://h", "transactional_id = \"x\"", "set exactly_once = true, or remove it"),
            ("kafka://h", "timeout = \"0s\"", "timeout: must be more than zero"),
            ("kafka://h", "client = { acks = 1 }", "client.acks: must be all"),
        ] {
            let found = problems(&read(url, text));
            assert!(found.contains(expected), "{url} {text}: {found}");
            assert!(!found.contains("canary"), "{found}");
        }
    }
}
