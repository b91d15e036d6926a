//! What the RabbitMQ sink can be told, and whether it makes sense.

use std::time::Duration;

use super::RabbitMqSink;
use crate::sink::SinkError;
use crate::sinks::broker_url::{BrokerUrl, Server};
use crate::sinks::call_time::CallTime;
use crate::sinks::option_reader::OptionReader;
use crate::sinks::problem::{misconfigured, zeros};
use crate::sinks::{PipelineFacts, Problem, Secret, TlsOptions};

mod access;

pub use access::Auth;

const PORT: u16 = 5672;
const PORT_TLS: u16 = 5671;
/// Names and routing keys are short strings of AMQP.
pub(super) const SHORT_BYTES_MAX: usize = 255;

/// What others have as options and this sink has not, with the reason or what to write instead.
const REFUSED: [(&str, &str, &str); 11] = [
    ("confirm", UNCONFIRMED, "leave it out"),
    ("confirms", UNCONFIRMED, "leave it out"),
    ("delivery_mode", NOT_PERSISTENT, "leave it out"),
    ("exchange", "is called `topic` here", "write topic = \"…\""),
    ("immediate", "is nothing that RabbitMQ knows", "leave it out"),
    ("mandatory", NOT_MANDATORY, "leave it out"),
    ("persistent", NOT_PERSISTENT, "leave it out"),
    ("publisher_confirms", UNCONFIRMED, "leave it out"),
    ("queue", "cannot be written to", "write topic = \"amq.default\" and key = \"the queue\""),
    ("routing_key", "is called `key` here", "write key = \"…\""),
    ("vhost", "is the path of the URL", "write amqp://host/vhost"),
];
const NOT_MANDATORY: &str = "cannot be set: events that no queue takes would be lost";
const NOT_PERSISTENT: &str = "cannot be set: a restart of the server would lose events";
const UNCONFIRMED: &str = "cannot be set: without confirmations events would be lost";

/// Where to send events, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `amqp://user:password@host:5672,other:5672/vhost`, or `amqps://…` with TLS. It is never
    /// shown.
    pub url: Secret,
    /// How the sink proves who it is. Defaults to [`Auth::Plain`].
    pub auth: Auth,
    /// Longest time without any confirmation while some are missing, and for any other answer.
    /// Defaults to 10 s, or to a third of what a call has if that is less.
    pub confirm_timeout: Option<Duration>,
    /// Longest time for a connection to a server to come about. Defaults to 5 s; for all servers
    /// together it is at most half of what a call has.
    pub connect_timeout: Option<Duration>,
    /// Most connections, and so most calls, at the same time. Defaults to 2.
    pub connections: usize,
    /// Whether an exchange that is missing is made. Defaults to false.
    pub create_missing: bool,
    /// Largest body sent. The server does not tell its limit, so this must not be more. Defaults
    /// to 16 MiB, as RabbitMQ 4 has it.
    pub event_bytes_max: usize,
    /// The type of an exchange that is made here. Defaults to `topic`.
    pub exchange_type: Option<String>,
    /// The server and the sink each say something in half of this time; whoever is silent for
    /// twice this time is taken for dead. Defaults to 10 s.
    pub heartbeat: Duration,
    /// The password, unless it is in the URL. Defaults to `guest`.
    pub password: Option<Secret>,
    /// Whose certificates are trusted, and the sink's own one. Only with `amqps`.
    pub tls: Option<TlsOptions>,
    /// The name of the user, unless it is in the URL. Defaults to `guest`.
    pub username: Option<String>,
    /// What is known of the pipeline.
    pub pipeline: PipelineFacts,
    /// Options that are refused.
    refused: Vec<Problem>,
}

/// Options that make sense, in the form in which they are used.
pub(super) struct CheckedOptions {
    pub(super) servers: Vec<Server>,
    pub(super) servers_shown: String,
    pub(super) vhost: String,
    pub(super) user: String,
    pub(super) password: Secret,
    pub(super) auth: Auth,
    pub(super) tls: Option<TlsOptions>,
    pub(super) confirm_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) connections: usize,
    pub(super) create_missing: bool,
    pub(super) event_bytes_max: usize,
    pub(super) exchange_type: String,
    pub(super) heartbeat_seconds: u16,
    pub(super) pipeline: PipelineFacts,
}

impl Options {
    /// The defaults for servers.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url),
            auth: Auth::Plain,
            confirm_timeout: None,
            connect_timeout: None,
            connections: 2,
            create_missing: false,
            event_bytes_max: 16 * 1024 * 1024,
            exchange_type: None,
            heartbeat: Duration::from_secs(10),
            password: None,
            tls: None,
            username: None,
            pipeline: PipelineFacts::default(),
            refused: Vec::new(),
        }
    }

    pub(in crate::sinks) fn read(
        url: &str,
        facts: &PipelineFacts,
        reader: &mut OptionReader<'_>,
    ) -> Self {
        let default = Self::new(url);
        Self {
            refused: reader.refused(&REFUSED),
            auth: reader.choice("auth", &Auth::ALL).unwrap_or_default(),
            confirm_timeout: reader.duration("confirm_timeout"),
            connect_timeout: reader.duration("connect_timeout"),
            connections: reader.count("connections").unwrap_or(default.connections),
            create_missing: reader.bool("create_missing").unwrap_or(default.create_missing),
            event_bytes_max: reader.count("event_bytes_max").unwrap_or(default.event_bytes_max),
            exchange_type: reader.text("exchange_type"),
            heartbeat: reader.duration("heartbeat").unwrap_or(default.heartbeat),
            password: reader.secret("password"),
            tls: TlsOptions::read(reader),
            username: reader.text("username"),
            pipeline: facts.clone(),
            url: default.url,
        }
    }

    /// Every mistake, without any I/O.
    pub fn problems(&self) -> Vec<Problem> {
        self.check().err().unwrap_or_default()
    }

    /// Reads the files of TLS. Whether the server can be reached shows when it is used.
    pub async fn connect(&self) -> Result<RabbitMqSink, SinkError> {
        RabbitMqSink::new(self.check().map_err(misconfigured)?)
    }

    pub(super) fn check(&self) -> Result<CheckedOptions, Vec<Problem>> {
        let mut problems = self.refused.clone();
        let is_tls = self.url.expose().get(..6).is_some_and(|s| s.eq_ignore_ascii_case("amqps:"));
        let url = BrokerUrl::parse(self.url.expose(), if is_tls { PORT_TLS } else { PORT })
            .map_err(|problem| problems.push(problem))
            .ok();
        self.check_numbers(&mut problems);
        let tls = self.check_tls(is_tls, &mut problems);
        let Some(url) = url else { return Err(problems) };
        let time = CallTime {
            call: self.pipeline.call_timeout,
            servers: url.servers.len(),
            connect: self.connect_timeout,
            answer: ("confirm_timeout", self.confirm_timeout),
            besides: None,
        };
        problems.extend(time.problem());
        let (user, password) = self.check_user(&url, &mut problems);
        let servers_shown = url.servers_shown();
        let vhost = url.path.unwrap_or_else(|| "/".to_owned());
        if vhost.len() > SHORT_BYTES_MAX {
            problems.push(Problem::new("url", "has a path of more than 255 bytes"));
        }
        if self.exchange_type.is_some() && !self.create_missing {
            let problem = Problem::new("exchange_type", "is for exchanges that are made here");
            problems.push(problem.with_hint("set create_missing = true, or remove it"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(CheckedOptions {
            servers_shown,
            servers: url.servers,
            vhost,
            user,
            password,
            auth: self.auth,
            tls,
            confirm_timeout: time.answer(),
            connect_timeout: time.connect(),
            connections: self.connections,
            create_missing: self.create_missing,
            event_bytes_max: self.event_bytes_max,
            exchange_type: self.exchange_type.clone().unwrap_or_else(|| "topic".to_owned()),
            heartbeat_seconds: self.heartbeat.as_secs().try_into().unwrap_or(u16::MAX),
            pipeline: self.pipeline.clone(),
        })
    }

    fn check_numbers(&self, problems: &mut Vec<Problem>) {
        problems.extend(zeros([
            ("confirm_timeout", self.confirm_timeout.is_some_and(|time| time.is_zero())),
            ("connect_timeout", self.connect_timeout.is_some_and(|time| time.is_zero())),
            ("connections", self.connections == 0),
            ("event_bytes_max", self.event_bytes_max == 0),
        ]));
        let seconds = self.heartbeat.as_secs();
        if seconds == 0 || seconds > u16::MAX.into() || self.heartbeat.subsec_nanos() != 0 {
            let message = "must be whole seconds, and cannot be turned off: a connection that is \
                           dead would not be noticed";
            problems.push(Problem::new("heartbeat", message).with_hint("write \"10s\""));
        }
        let kind = self.exchange_type.as_deref().unwrap_or_default();
        if kind.len() > SHORT_BYTES_MAX || self.exchange_type.as_deref() == Some("") {
            let problem = Problem::new("exchange_type", "is not the type of an exchange");
            problems.push(problem.with_hint("write \"topic\", \"direct\", \"fanout\" …"));
        }
    }
}

#[cfg(test)]
mod tests;
