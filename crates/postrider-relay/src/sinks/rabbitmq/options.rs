//! What the RabbitMQ sink can be told, and whether it makes sense.

use std::time::Duration;

use super::RabbitMqSink;
use crate::sink::{FailureKind, SinkError};
use crate::sinks::broker_url::{BrokerUrl, Server};
use crate::sinks::option_reader::OptionReader;
use crate::sinks::{PipelineFacts, Problem, Secret, TlsOptions};

const PORT: u16 = 5672;
const PORT_TLS: u16 = 5671;
/// The user that every RabbitMQ has at first, and its password.
const GUEST: &str = "guest";
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
    /// Longest time without any confirmation while some are missing. Defaults to 10 s.
    pub confirm_timeout: Duration,
    /// Longest time for a connection to a server to come about. Defaults to 5 s.
    pub connect_timeout: Duration,
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

/// How the sink proves who it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// By its certificate. The server needs the plugin `rabbitmq_auth_mechanism_ssl`.
    External,
    /// By a password.
    #[default]
    Plain,
}

impl Auth {
    const ALL: [(&str, Self); 2] = [("external", Self::External), ("plain", Self::Plain)];
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
            confirm_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
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
        let mut refuse = |(name, message, hint): (&'static str, &str, &str)| {
            let is_given = reader.take(name, "left out", |_| Some(())).is_some();
            is_given.then(|| Problem::new(name, message).with_hint(hint))
        };
        Self {
            refused: REFUSED.into_iter().filter_map(&mut refuse).collect(),
            auth: reader.choice("auth", &Auth::ALL).unwrap_or_default(),
            confirm_timeout: reader.duration("confirm_timeout").unwrap_or(default.confirm_timeout),
            connect_timeout: reader.duration("connect_timeout").unwrap_or(default.connect_timeout),
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
        let checked = self.check().map_err(|problems| {
            let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
            SinkError::new(FailureKind::Misconfigured, texts.join("; "))
        })?;
        RabbitMqSink::new(checked)
    }

    fn check(&self) -> Result<CheckedOptions, Vec<Problem>> {
        let mut problems = self.refused.clone();
        let is_tls = self.url.expose().get(..6).is_some_and(|s| s.eq_ignore_ascii_case("amqps:"));
        let url = BrokerUrl::parse(self.url.expose(), if is_tls { PORT_TLS } else { PORT })
            .map_err(|problem| problems.push(problem))
            .ok();
        self.check_numbers(&mut problems);
        let tls = self.check_tls(is_tls, &mut problems);
        let Some(url) = url else { return Err(problems) };
        let (user, password) = self.check_user(&url, &mut problems);
        let servers_shown = url.servers_shown();
        let vhost = url.path.filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
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
            confirm_timeout: self.confirm_timeout,
            connect_timeout: self.connect_timeout,
            connections: self.connections,
            create_missing: self.create_missing,
            event_bytes_max: self.event_bytes_max,
            exchange_type: self.exchange_type.clone().unwrap_or_else(|| "topic".to_owned()),
            heartbeat_seconds: self.heartbeat.as_secs().try_into().unwrap_or(u16::MAX),
            pipeline: self.pipeline.clone(),
        })
    }

    fn check_numbers(&self, problems: &mut Vec<Problem>) {
        for (option, is_zero) in [
            ("confirm_timeout", self.confirm_timeout.is_zero()),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("connections", self.connections == 0),
            ("event_bytes_max", self.event_bytes_max == 0),
        ] {
            if is_zero {
                problems.push(Problem::new(option, "must be more than zero"));
            }
        }
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

    fn check_tls(&self, is_tls: bool, problems: &mut Vec<Problem>) -> Option<TlsOptions> {
        if let (false, Some(_)) = (is_tls, &self.tls) {
            let problem = Problem::new("tls", "is given, and the URL is without TLS");
            problems.push(problem.with_hint("write amqps://…"));
        }
        let tls = is_tls.then(|| self.tls.clone().unwrap_or_default())?;
        problems.extend(tls.problems());
        Some(tls)
    }

    /// Who the sink is.
    fn check_user(&self, url: &BrokerUrl, problems: &mut Vec<Problem>) -> (String, Secret) {
        for (option, in_url, in_option) in [
            ("username", url.user.is_some(), self.username.is_some()),
            ("password", url.password.is_some(), self.password.is_some()),
        ] {
            if in_url && in_option {
                let problem = Problem::new(option, "stands in the URL, too");
                problems.push(problem.with_hint("write it once"));
            }
        }
        let user = url.user.as_ref().or(self.username.as_ref());
        let password = url.password.as_ref().or(self.password.as_ref());
        if self.auth == Auth::External {
            if user.is_some() || password.is_some() {
                let message = "is by a certificate, and there is a user or a password";
                problems.push(Problem::new("auth", message).with_hint("remove them"));
            }
            if self.tls.as_ref().is_none_or(|tls| tls.certificate_file.is_none()) {
                let problem = Problem::new("auth", "is by a certificate, and there is none");
                let hint = "set tls = { certificate_file = \"…\", key_file = \"…\" }";
                problems.push(problem.with_hint(hint));
            }
            return ("the certificate's user".to_owned(), Secret::new(""));
        }
        match (user, password) {
            (Some(user), Some(password)) => (user.clone(), password.clone()),
            (None, None) => (GUEST.to_owned(), Secret::new(GUEST)),
            (Some(user), None) => {
                let problem = Problem::new("password", "is missing");
                problems.push(problem.with_hint("set it, or remove the user"));
                (user.clone(), Secret::new(""))
            }
            (None, Some(password)) => {
                let problem = Problem::new("username", "is missing");
                problems.push(problem.with_hint("set it, or remove the password"));
                (GUEST.to_owned(), password.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, text: &str) -> Options {
        let table = text.parse().unwrap();
        let mut reader = OptionReader::new(&table);
        let options = Options::read(url, &PipelineFacts::default(), &mut reader);
        let left = reader.finish("amqp");
        assert!(left.is_empty(), "{left:?}");
        options
    }

    fn problems(url: &str, text: &str) -> String {
        read(url, text).problems().iter().map(|problem| format!("{problem}\n")).collect()
    }

    fn checked(url: &str, text: &str) -> CheckedOptions {
        read(url, text).check().ok().unwrap()
    }

    #[test]
    fn a_url_is_enough() {
        let options = checked("amqp://a,b:9", "");
        let servers: Vec<_> = options.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["a:5672", "b:9"]);
        assert_eq!((options.vhost.as_str(), options.user.as_str()), ("/", "guest"));
        assert_eq!(options.password.expose(), "guest");
        assert!(options.tls.is_none());
        let options = checked("AMQPS://u:p%40@h/a%2Fb", "");
        assert_eq!(options.servers[0].port, 5671);
        assert_eq!((options.vhost.as_str(), options.user.as_str()), ("a/b", "u"));
        assert_eq!(options.password.expose(), "p@");
        assert!(options.tls.is_some());
        for url in ["amqp://h/", "amqp://h/%2F"] {
            assert_eq!(checked(url, "").vhost, "/");
        }
    }

    #[test]
    fn every_option_is_read() {
        let text = r#"
            confirm_timeout = "1s"
            connect_timeout = "2s"
            connections = 3
            create_missing = true
            event_bytes_max = 4
            exchange_type = "fanout"
            heartbeat = "5s"
            password = "p"
            username = "u"
        "#;
        let options = checked("amqp://h", text);
        let durations = (options.confirm_timeout.as_secs(), options.connect_timeout.as_secs());
        assert_eq!(durations, (1, 2));
        assert_eq!((options.connections, options.event_bytes_max), (3, 4));
        assert_eq!((options.heartbeat_seconds, options.create_missing), (5, true));
        assert_eq!((options.exchange_type.as_str(), options.user.as_str()), ("fanout", "u"));
        assert_eq!(options.password.expose(), "p");
        let text = r#"
            auth = "external"
            tls = { ca_file = "a", certificate_file = "b", key_file = "c" }
        "#;
        assert_eq!(checked("amqps://h", text).auth, Auth::External);
    }

    #[test]
    fn mistakes_are_named_without_a_secret() {
        for (url, text, expected) in [
            ("amqp:canary", "", "url: has no // after the scheme; write amqp://host:5672"),
            ("amqp://u@h", "", "password: is missing"),
            ("amqp://h", "password = \"canary\"", "username: is missing"),
            ("amqp://u:canary@h", "username = \"u\"", "username: stands in the URL, too"),
            ("amqp://u:canary@h", "password = \"canary\"", "password: stands in the URL, too"),
            ("amqp://h", "tls = true", "tls: is given, and the URL is without TLS; write amqps"),
            ("amqps://h", "tls = { key_file = \"k\" }", "tls: has key_file and no certificate"),
            ("amqp://h", "heartbeat = \"0s\"", "heartbeat: must be whole seconds"),
            ("amqp://h", "heartbeat = \"1500ms\"", "heartbeat: must be whole seconds"),
            ("amqp://h", "connections = 0", "connections: must be more than zero"),
            ("amqp://h", "event_bytes_max = 0", "event_bytes_max: must be more than zero"),
            ("amqp://h", "exchange_type = \"x\"", "exchange_type: is for exchanges that are made"),
            ("amqp://h", "auth = \"external\"", "auth: is by a certificate, and there is none"),
            ("amqp://u:canary@h", "auth = \"external\"", "auth: is by a certificate, and there is"),
        ] {
            let found = problems(url, text);
            assert!(found.contains(expected), "{url} {text}: {found}");
            assert!(!found.contains("canary"), "{found}");
        }
    }

    #[test]
    fn unsafe_settings_are_refused_with_the_reason() {
        for (text, expected) in [
            ("confirms = false", "confirms: cannot be set: without confirmations events would be"),
            ("mandatory = false", "mandatory: cannot be set: events that no queue takes would be"),
            ("delivery_mode = 1", "delivery_mode: cannot be set: a restart of the server would"),
            ("exchange = \"x\"", "exchange: is called `topic` here; write topic = \"…\""),
            ("routing_key = \"x\"", "routing_key: is called `key` here; write key = \"…\""),
            ("queue = \"x\"", "write topic = \"amq.default\" and key = \"the queue\""),
            ("vhost = \"x\"", "vhost: is the path of the URL; write amqp://host/vhost"),
        ] {
            let found = problems("amqp://h", text);
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let options = read("amqp://u:canary@h", "password = \"canary\"");
        assert!(!format!("{options:?}").contains("canary"));
    }
}
