//! What the NATS sink can be told, and whether it makes sense.

use std::path::PathBuf;
use std::time::Duration;

use super::NatsSink;
use super::encoding::{subject_problem, topic_problem};
use crate::sink::SinkError;
use crate::sinks::broker_account::BrokerAccount;
use crate::sinks::broker_url::{BrokerUrl, Server};
use crate::sinks::call_time::CallTime;
use crate::sinks::option_reader::OptionReader;
use crate::sinks::problem::{misconfigured, zeros};
use crate::sinks::{PipelineFacts, Problem, Secret, TlsOptions};

const PORT_DEFAULT: u16 = 4222;
/// Shorter ones could not be told from a slow network.
const ACK_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// What others have as options and this sink has not, with the reason or what to write instead.
const REFUSED: [(&str, &str, &str); 8] = [
    ("ack", NOT_KEPT, "leave it out"),
    ("acks", NOT_KEPT, "leave it out"),
    ("jetstream", NOT_KEPT, "leave it out"),
    ("max_reconnects", "is not needed: the relay connects until it works", "leave it out"),
    ("msg_id", "is always the event's id, by which streams know duplicates", "leave it out"),
    ("nats_msg_id", "is always the event's id, by which streams know duplicates", "leave it out"),
    ("subject", "is called `topic` here", "write topic = \"…\""),
    ("subjects", "is called `stream_subjects` here", "write stream_subjects = [\"…\"]"),
];
const NOT_KEPT: &str = "cannot be set: without the confirmation of a stream events would be lost";

/// Where to send events, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `nats://user:password@host:4222,other:4222`. A user without a password is a token. It is
    /// never shown.
    pub url: Secret,
    /// Longest time without any confirmation while some are missing. A connection is known to be
    /// dead before that. Defaults to 10 s, or to a third of what a call has if that is less.
    pub ack_timeout: Option<Duration>,
    /// Longest time for a connection to a server to come about. Defaults to 5 s; for all servers
    /// together it is at most half of what a call has.
    pub connect_timeout: Option<Duration>,
    /// Whether `stream` is made when it is missing. Defaults to false.
    pub create_missing: bool,
    /// A file with the user's JWT and seed, as `nsc` makes them.
    pub credentials_file: Option<PathBuf>,
    /// The JetStream domain, if streams are reached through a leaf node.
    pub domain: Option<String>,
    /// What the subjects of confirmations begin with. Defaults to `_INBOX`.
    pub inbox_prefix: String,
    /// The seed of the user's NKey: `SU…`.
    pub nkey_seed: Option<Secret>,
    /// The user's password.
    pub password: Option<Secret>,
    /// The stream that must take all events. Any may, if it is not given.
    pub stream: Option<String>,
    /// How many servers keep the stream, if it is made. Defaults to 1.
    pub stream_replicas: usize,
    /// What the stream takes, if it is made. Defaults to the topic, if that names no field.
    pub stream_subjects: Vec<String>,
    /// Whether the connection must be encrypted. It is anyway if the server demands it.
    pub tls: Option<TlsOptions>,
    /// Whether encryption starts before the server has said anything. Defaults to false.
    pub tls_first: bool,
    /// A token, for servers that ask for one.
    pub token: Option<Secret>,
    /// The user's name.
    pub username: Option<String>,
    /// What is known of the pipeline.
    pub pipeline: PipelineFacts,
    /// Options that are refused.
    refused: Vec<Problem>,
}

/// Who the sink is.
#[derive(Clone, Debug)]
pub(super) enum Identity {
    /// Nobody, or whom its certificate names.
    None,
    Credentials(PathBuf),
    Nkey(Secret),
    Token(Secret),
    User(String, Secret),
}

/// Options that make sense, in the form in which they are used.
pub(super) struct CheckedOptions {
    pub(super) servers: Vec<Server>,
    /// The servers, for people.
    pub(super) servers_shown: String,
    pub(super) identity: Identity,
    pub(super) ack_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) create_missing: bool,
    pub(super) domain: Option<String>,
    pub(super) inbox_prefix: String,
    pub(super) stream: Option<String>,
    pub(super) stream_replicas: usize,
    pub(super) stream_subjects: Vec<String>,
    pub(super) tls: Option<TlsOptions>,
    pub(super) tls_first: bool,
    pub(super) pipeline: PipelineFacts,
}

impl Options {
    /// The defaults for servers.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url),
            ack_timeout: None,
            connect_timeout: None,
            create_missing: false,
            credentials_file: None,
            domain: None,
            inbox_prefix: "_INBOX".to_owned(),
            nkey_seed: None,
            password: None,
            stream: None,
            stream_replicas: 1,
            stream_subjects: Vec::new(),
            tls: None,
            tls_first: false,
            token: None,
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
            ack_timeout: reader.duration("ack_timeout"),
            connect_timeout: reader.duration("connect_timeout"),
            create_missing: reader.bool("create_missing").unwrap_or(default.create_missing),
            credentials_file: reader.path("credentials_file"),
            domain: reader.text("domain"),
            inbox_prefix: reader.text("inbox_prefix").unwrap_or(default.inbox_prefix),
            nkey_seed: reader.secret("nkey_seed"),
            password: reader.secret("password"),
            stream: reader.text("stream"),
            stream_replicas: reader.count("stream_replicas").unwrap_or(default.stream_replicas),
            stream_subjects: reader
                .take("stream_subjects", "a list of texts", texts)
                .unwrap_or_default(),
            tls: TlsOptions::read(reader),
            tls_first: reader.bool("tls_first").unwrap_or(default.tls_first),
            token: reader.secret("token"),
            username: reader.text("username"),
            pipeline: facts.clone(),
            url: default.url,
        }
    }

    /// Every mistake, without any I/O.
    pub fn problems(&self) -> Vec<Problem> {
        self.check().err().unwrap_or_default()
    }

    /// Connects to one of the servers.
    pub async fn connect(&self) -> Result<NatsSink, SinkError> {
        NatsSink::connect(self.check().map_err(misconfigured)?).await
    }

    pub(super) fn check(&self) -> Result<CheckedOptions, Vec<Problem>> {
        let mut problems = self.refused.clone();
        let url = BrokerUrl::parse(self.url.expose(), PORT_DEFAULT);
        let url = url.map_err(|problem| problems.push(problem)).ok();
        if url.as_ref().is_some_and(|url| url.path.is_some()) {
            let hint = "write nats://host:4222, and the subject as topic = \"…\"";
            problems.push(Problem::new("url", "has a path").with_hint(hint));
        }
        let identity = url.as_ref().map(|url| self.identity(url, &mut problems));
        problems.extend(self.tls.iter().flat_map(TlsOptions::problems));
        let time = CallTime {
            call: self.pipeline.call_timeout,
            servers: url.as_ref().map_or(1, |url| url.servers.len()),
            connect: self.connect_timeout,
            answer: ("ack_timeout", self.ack_timeout),
            besides: None,
        };
        problems.extend(time.problem());
        if time.answer() < ACK_TIMEOUT_MIN {
            let message = format!("must be at least {}ms", ACK_TIMEOUT_MIN.as_millis());
            problems.push(Problem::new("ack_timeout", message));
        }
        problems.extend(zeros([
            ("connect_timeout", self.connect_timeout.is_some_and(|time| time.is_zero())),
            ("stream_replicas", self.stream_replicas == 0),
        ]));
        if self.tls_first && self.tls.is_none() {
            problems.push(Problem::new("tls_first", "needs tls").with_hint("set tls = true"));
        }
        self.check_names(&mut problems);
        let stream_subjects = self.check_stream(&mut problems);
        match (url, identity) {
            (Some(url), Some(identity)) if problems.is_empty() => Ok(CheckedOptions {
                servers_shown: url.servers_shown(),
                servers: url.servers,
                identity,
                ack_timeout: time.answer(),
                connect_timeout: time.connect(),
                create_missing: self.create_missing,
                domain: self.domain.clone(),
                inbox_prefix: self.inbox_prefix.clone(),
                stream: self.stream.clone(),
                stream_replicas: self.stream_replicas,
                stream_subjects,
                tls: self.tls.clone(),
                tls_first: self.tls_first,
                pipeline: self.pipeline.clone(),
            }),
            _ => Err(problems),
        }
    }

    /// Who the sink is: at most one of the ways to say it.
    fn identity(&self, url: &BrokerUrl, problems: &mut Vec<Problem>) -> Identity {
        let account = BrokerAccount::new(url, self.username.as_deref(), self.password.as_ref());
        problems.extend(account.twice("is in the URL, too", "write it in one place only"));
        let mut add = |option: &str, message: &str, hint: &str| {
            problems.push(Problem::new(option, message).with_hint(hint));
        };
        let mut identities = Vec::new();
        match (account.user, account.password) {
            (Some(user), Some(password)) => {
                identities.push(("username", Identity::User(user.to_owned(), password.clone())));
            }
            // As every client of NATS reads such a URL.
            (Some(token), None) if url.user.is_some() => {
                identities.push(("url", Identity::Token(Secret::new(token))));
            }
            (Some(_), None) => add("username", "is given without a password", "add password"),
            (None, Some(_)) => add("password", "is given without a user name", "add username"),
            (None, None) => {}
        }
        let named = |name, identity: Option<Identity>| identity.map(|identity| (name, identity));
        identities.extend(named("token", self.token.clone().map(Identity::Token)));
        identities.extend(named("nkey_seed", self.nkey_seed.clone().map(Identity::Nkey)));
        let file = self.credentials_file.clone().map(Identity::Credentials);
        identities.extend(named("credentials_file", file));
        if let Some((option, _)) = identities.get(1) {
            let hint = "keep one of: user name and password, token, nkey_seed, credentials_file";
            add(option, "is another way to say who the relay is", hint);
        }
        identities.pop().map_or(Identity::None, |(_, identity)| identity)
    }

    fn check_names(&self, problems: &mut Vec<Problem>) {
        let is_name = |name: &str| {
            let is_allowed = |char: char| char.is_alphanumeric() || "-_".contains(char);
            !name.is_empty() && name.chars().all(is_allowed)
        };
        for (option, name) in [("domain", &self.domain), ("stream", &self.stream)] {
            if name.as_ref().is_some_and(|name| !is_name(name)) {
                problems.push(Problem::new(option, "may have letters, digits, - and _ only"));
            }
        }
        if let Some(problem) = subject_problem(&self.inbox_prefix) {
            problems.push(Problem::new("inbox_prefix", problem));
        }
        // A topic that is the same for all events would park each of them.
        let topic = self.pipeline.topic.as_deref();
        let problem = topic.and_then(|topic| topic_problem(topic, &self.inbox_prefix));
        if let Some(problem) = problem {
            problems.push(Problem::new("topic", format!("is no subject: it {problem}")));
        }
    }

    /// What the stream takes, if it has to be made.
    fn check_stream(&self, problems: &mut Vec<Problem>) -> Vec<String> {
        if !self.create_missing {
            return Vec::new();
        }
        if self.stream.is_none() {
            let hint = "set stream = \"NAME\"";
            problems.push(Problem::new("create_missing", "needs a name").with_hint(hint));
        }
        if !self.stream_subjects.is_empty() {
            return self.stream_subjects.clone();
        }
        let subjects: Vec<_> = self.pipeline.topic.iter().cloned().collect();
        if subjects.is_empty() {
            let message = "needs to know what the stream takes, as the topic names a field";
            let hint = "set stream_subjects = [\"outbox.event.>\"] or whatever covers all topics";
            problems.push(Problem::new("create_missing", message).with_hint(hint));
        }
        subjects
    }
}

fn texts(value: &toml::Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests;
