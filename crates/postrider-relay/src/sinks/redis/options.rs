//! What the Redis sink can be told, and whether it makes sense.

use std::time::Duration;

use super::RedisSink;
use super::append::{Appending, Trim, is_of_ids};
use super::connection::Login;
use crate::sink::SinkError;
use crate::sinks::broker_account::BrokerAccount;
use crate::sinks::broker_url::BrokerUrl;
use crate::sinks::call_time::CallTime;
use crate::sinks::option_reader::OptionReader;
use crate::sinks::problem::{misconfigured, zeros};
use crate::sinks::{PipelineFacts, Problem, Secret, TlsOptions};

const PORT_DEFAULT: u16 = 6379;
/// What no server takes: the default of `proto-max-bulk-len`.
const EVENT_BYTES_LIMIT: usize = 512 * 1024 * 1024;
/// Options that other sinks have, and what says the same here.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("database", "write it at the end of the URL: redis://host:6379/0"),
    ("db", "write it at the end of the URL: redis://host:6379/0"),
    ("exchange", "the stream is the topic: set topic = \"…\""),
    ("minid", "set retention = \"7d\", or whatever age entries may have"),
    ("queue", "the stream is the topic: set topic = \"…\""),
    ("routing_key", "the key is key = \"…\""),
    ("stream", "the stream is the topic: set topic = \"…\""),
    ("subject", "the stream is the topic: set topic = \"…\""),
];

/// Where to send events, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The server. It may hold a password, so it is never shown.
    pub url: Secret,
    /// Longest time for a connection to come about. Defaults to 5 s, or to half of what a call has
    /// if that is less.
    pub connect_timeout: Option<Duration>,
    /// Whether a stream that does not exist is made. Defaults to false.
    pub create_missing: bool,
    /// How many event ids each stream remembers at least, so that none comes twice; zero turns
    /// that off. Defaults to 100 000.
    pub dedupe_events: usize,
    /// For how long a stream to which nothing is added remembers them. Defaults to 1 d.
    pub dedupe_window: Duration,
    /// Largest body sent. Defaults to 16 MiB.
    pub event_bytes_max: usize,
    /// About how many entries a stream keeps. Defaults to all.
    pub maxlen: Option<usize>,
    /// The password, if it is not in the URL.
    pub password: Option<Secret>,
    /// Longest time for an answer. Defaults to 10 s, or to a third of what a call has if that is
    /// less.
    pub response_timeout: Option<Duration>,
    /// About how long a stream keeps an entry. Defaults to for ever.
    pub retention: Option<Duration>,
    /// How the connection is encrypted. Defaults to not at all, and with `rediss:` to whom the
    /// system trusts.
    pub tls: Option<TlsOptions>,
    /// The user name, if it is not in the URL. Defaults to that of the server, `default`.
    pub username: Option<String>,
    /// How many replicas must have an event. Defaults to none.
    pub wait_replicas: usize,
    /// Longest time for that. Defaults to 1 s.
    pub wait_timeout: Duration,
    /// What is known of the pipeline.
    pub pipeline: PipelineFacts,
}

/// Options that make sense, in the form in which they are used.
#[derive(Debug)]
pub(super) struct CheckedOptions {
    pub(super) login: Login,
    pub(super) appending: Appending,
    pub(super) event_bytes_max: usize,
    pub(super) wait_replicas: usize,
    pub(super) wait_timeout: Duration,
    pub(super) pipeline: PipelineFacts,
}

impl Options {
    /// The defaults for a server.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url),
            connect_timeout: None,
            create_missing: false,
            dedupe_events: 100_000,
            dedupe_window: Duration::from_secs(24 * 3600),
            event_bytes_max: 16 * 1024 * 1024,
            maxlen: None,
            password: None,
            response_timeout: None,
            retention: None,
            tls: None,
            username: None,
            wait_replicas: 0,
            wait_timeout: Duration::from_secs(1),
            pipeline: PipelineFacts::default(),
        }
    }

    pub(in crate::sinks) fn read(
        url: &str,
        facts: &PipelineFacts,
        reader: &mut OptionReader<'_>,
    ) -> Self {
        let default = Self::new(url);
        for (name, instead) in OTHER_NAMES {
            let _: Option<()> = reader.take(name, &format!("left out; {instead}"), |_| None);
        }
        Self {
            connect_timeout: reader.duration("connect_timeout"),
            create_missing: reader.bool("create_missing").unwrap_or(default.create_missing),
            dedupe_events: reader.count("dedupe_events").unwrap_or(default.dedupe_events),
            dedupe_window: reader.duration("dedupe_window").unwrap_or(default.dedupe_window),
            event_bytes_max: reader.count("event_bytes_max").unwrap_or(default.event_bytes_max),
            maxlen: reader.count("maxlen"),
            password: reader.secret("password"),
            response_timeout: reader.duration("response_timeout"),
            retention: reader.duration("retention"),
            tls: TlsOptions::read(reader),
            username: reader.text("username"),
            wait_replicas: reader.count("wait_replicas").unwrap_or(default.wait_replicas),
            wait_timeout: reader.duration("wait_timeout").unwrap_or(default.wait_timeout),
            pipeline: facts.clone(),
            url: default.url,
        }
    }

    /// Every mistake, without any I/O.
    pub fn problems(&self) -> Vec<Problem> {
        self.check().err().unwrap_or_default()
    }

    /// Makes a client. Whether the server can be reached shows when it is used.
    pub async fn connect(&self) -> Result<RedisSink, SinkError> {
        RedisSink::new(self.check().map_err(misconfigured)?)
    }

    pub(super) fn check(&self) -> Result<CheckedOptions, Vec<Problem>> {
        let mut problems = Vec::new();
        let login = self.login(&mut problems);
        problems.extend(self.tls.iter().flat_map(TlsOptions::problems));
        problems.extend(zeros([
            ("connect_timeout", self.connect_timeout.is_some_and(|time| time.is_zero())),
            ("dedupe_window", self.dedupe_window.as_secs() == 0),
            ("event_bytes_max", self.event_bytes_max == 0),
            ("maxlen", self.maxlen == Some(0)),
            ("response_timeout", self.response_timeout.is_some_and(|time| time.is_zero())),
            ("retention", self.retention.is_some_and(|age| age.as_millis() == 0)),
            // For WAIT, that is for ever.
            ("wait_timeout", self.wait_timeout.as_millis() == 0),
        ]));
        problems.extend(self.call_time().problem());
        if self.event_bytes_max > EVENT_BYTES_LIMIT {
            let message = format!("is more than Redis takes, {EVENT_BYTES_LIMIT}");
            problems.push(Problem::new("event_bytes_max", message));
        }
        if self.maxlen.is_some() && self.retention.is_some() {
            let problem = Problem::new("retention", "cannot be had together with maxlen");
            problems.push(problem.with_hint("keep one of them: Redis trims by one"));
        }
        // A topic that is the same for all events would park each of them.
        if self.pipeline.topic.as_deref().is_some_and(is_of_ids) {
            let problem = Problem::new("topic", "is for the ids that a relay remembers");
            problems.push(problem.with_hint("name the stream itself"));
        }
        match login {
            Some(login) if problems.is_empty() => Ok(CheckedOptions {
                login,
                appending: self.appending(),
                event_bytes_max: self.event_bytes_max,
                wait_replicas: self.wait_replicas,
                wait_timeout: self.wait_timeout,
                pipeline: self.pipeline.clone(),
            }),
            _ => Err(problems),
        }
    }

    fn call_time(&self) -> CallTime {
        CallTime {
            call: self.pipeline.call_timeout,
            servers: 1,
            connect: self.connect_timeout,
            answer: ("response_timeout", self.response_timeout),
            besides: (self.wait_replicas > 0).then_some(("wait_timeout", self.wait_timeout)),
        }
    }

    fn appending(&self) -> Appending {
        Appending {
            creates: self.create_missing,
            ids_max: self.dedupe_events,
            ids_seconds: self.dedupe_window.as_secs(),
            trim: match (self.maxlen, self.retention) {
                (Some(count), _) => Trim::Maxlen(count),
                (None, Some(age)) => Trim::OlderThan(age.as_millis()),
                (None, None) => Trim::Nothing,
            },
        }
    }

    fn login(&self, problems: &mut Vec<Problem>) -> Option<Login> {
        let url = BrokerUrl::parse(self.url.expose(), PORT_DEFAULT);
        let url = url.map_err(|problem| problems.push(problem)).ok()?;
        let mut add = |option: &str, message: &str, hint: &str| {
            problems.push(Problem::new(option, message).with_hint(hint));
        };
        if url.servers.len() > 1 {
            let message = format!("names several servers, {}", url.servers_shown());
            add("url", &message, "name one: clusters and Sentinel are not supported");
        }
        let database = url.path.as_deref().unwrap_or("0");
        let database = database.parse().ok();
        if database.is_none() {
            let hint = "write redis://host:6379/0, and the stream as topic = \"…\"";
            add("url", "has a path that is not the number of a database", hint);
        }
        let account = BrokerAccount::new(&url, self.username.as_deref(), self.password.as_ref());
        problems.extend(account.twice("is in the URL, too", "write it in one place only"));
        if account.user.is_some() && account.password.is_none() {
            let problem = Problem::new("username", "is given without a password");
            problems.push(problem.with_hint("add password"));
        }
        let system = || (url.scheme == "rediss").then(TlsOptions::default);
        let time = self.call_time();
        Some(Login {
            server: url.servers.first()?.clone(),
            database: database?,
            user: account.user.map(str::to_owned),
            password: account.password.cloned(),
            tls: self.tls.clone().or_else(system),
            name: client_name(&self.pipeline.name),
            connect_timeout: time.connect(),
            response_timeout: time.answer().saturating_add(time.besides()),
        })
    }
}

/// What operators see in `CLIENT LIST`.
fn client_name(pipeline: &str) -> String {
    if pipeline.is_empty() { "postrider".to_owned() } else { format!("postrider/{pipeline}") }
}

#[cfg(test)]
mod tests;
