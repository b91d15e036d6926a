//! What the server's errors mean for a message, and the command that mends them.

use std::time::Duration;

use lapin::ErrorKind;

use super::properties::exchange;
use crate::shell;
use crate::sink::{FailureKind, Message, SinkError};

/// The codes of AMQP that are told apart.
const ACCESS_REFUSED: u16 = 403;
/// The server is shut down, or an operator has closed the connection.
const CONNECTION_FORCED: u16 = 320;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;
/// The server's texts are no longer; what they name may be cut off.
const TEXT_BYTES_MAX: usize = 255;

/// Whom and what an error is about.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) vhost: String,
    pub(super) user: String,
}

impl Place {
    /// The option of `rabbitmqadmin` that names the virtual host.
    fn vhost_option(&self) -> String {
        match self.vhost.as_str() {
            "/" => String::new(),
            vhost => format!("--vhost={} ", shell::word(vhost)),
        }
    }

    fn permissions(&self) -> String {
        let (vhost, user) = (shell::word(&self.vhost), shell::word(&self.user));
        format!("rabbitmqctl set_permissions -p {vhost} {user} '^$' '.*' '^$'")
    }
}

fn new(kind: FailureKind, message: String) -> SinkError {
    SinkError::new(kind, message)
}

/// A server that let no connection come about. `hint` says what it may be if the server hangs up
/// and does not say why.
pub(super) fn connecting(
    error: &lapin::Error,
    server: &str,
    place: &Place,
    hint: &str,
) -> SinkError {
    let misconfigured = |message| new(FailureKind::Misconfigured, message);
    match error.kind() {
        ErrorKind::IOError(error) => {
            let mut error = broken(error, server);
            if error.kind == FailureKind::Unavailable {
                error.message.push_str(hint);
            }
            error
        }
        ErrorKind::ParsingError(_) | ErrorKind::InvalidProtocolVersion(_) => {
            misconfigured(format!("{server} does not speak AMQP 0-9-1{hint}"))
        }
        ErrorKind::ProtocolError(said) => {
            let text = said.get_message().as_str();
            let (vhost, user) = (shell::word(&place.vhost), shell::word(&place.user));
            match said.get_id() {
                ACCESS_REFUSED => misconfigured(format!(
                    "RabbitMQ at {server} does not let {user} in: {text}; see username and \
                     password, and try rabbitmqctl authenticate_user {user}"
                )),
                NOT_ALLOWED if text.contains("limit") => {
                    new(FailureKind::Unavailable, format!("RabbitMQ at {server} is full: {text}"))
                }
                NOT_ALLOWED if text.contains("not found") => misconfigured(format!(
                    "RabbitMQ at {server} has no virtual host {vhost}; run rabbitmqctl add_vhost \
                     {vhost} && {}",
                    place.permissions()
                )),
                NOT_ALLOWED => misconfigured(format!(
                    "RabbitMQ at {server} refuses the connection: {text}; run {}",
                    place.permissions()
                )),
                _ => unavailable(server, text),
            }
        }
        _ => unavailable(server, &error.to_string()),
    }
}

/// A connection that broke, or did not come about, below AMQP.
pub(super) fn broken(error: &std::io::Error, server: &str) -> SinkError {
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let misconfigured = |message| new(FailureKind::Misconfigured, message);
    match found {
        Some(rustls::Error::InvalidCertificate(_)) => misconfigured(format!(
            "the certificate of {server} is not trusted: {error}; name who has signed it with tls \
             = {{ ca_file = \"…\" }}, and the server as its certificate does"
        )),
        Some(rustls::Error::AlertReceived(_)) => misconfigured(format!(
            "{server} refuses the connection by TLS: {error}; see certificate_file and key_file \
             of tls"
        )),
        Some(rustls::Error::InvalidMessage(_)) => misconfigured(format!(
            "{server} does not speak TLS: {error}; write amqp://, or the port for TLS"
        )),
        _ => unavailable(server, &error.to_string()),
    }
}

pub(super) fn unavailable(server: &str, why: &str) -> SinkError {
    new(FailureKind::Unavailable, format!("RabbitMQ at {server} is not available: {why}"))
}

/// A message that was under way when an error ended the channel or the connection. The error may
/// be about another one, or about this one: unless the server says that it ends, they were refused
/// together.
pub(super) fn publishing(error: &lapin::Error, message: &Message, place: &Place) -> SinkError {
    let ErrorKind::ProtocolError(said) = error.kind() else {
        let message = format!("RabbitMQ did not confirm the event: {error}");
        return new(FailureKind::Unavailable, message).with_company(true);
    };
    let text = said.get_message().as_str();
    let is_named = text.contains(&format!("'{}'", message.topic)) || text.len() >= TEXT_BYTES_MAX;
    match said.get_id() {
        NOT_FOUND if is_named => no_exchange(&message.topic, place),
        ACCESS_REFUSED if is_named => refused(text, &message.topic, place),
        PRECONDITION_FAILED
            if size_in(text).is_some_and(|(size, _)| size == message.body.len()) =>
        {
            new(
                FailureKind::Rejected,
                format!(
                    "the event has {} bytes, which is more than the server takes: {text}; set \
                     event_bytes_max to what it takes, or raise its max_message_size",
                    message.body.len()
                ),
            )
        }
        _ => new(
            FailureKind::Unavailable,
            format!("RabbitMQ did not confirm the event, and has closed the channel: {text}"),
        )
        .with_company(said.get_id() != CONNECTION_FORCED),
    }
}

/// An exchange that is not there.
pub(super) fn no_exchange(topic: &str, place: &Place) -> SinkError {
    let (vhost, name) = (place.vhost_option(), shell::word(topic));
    SinkError::of_topic(format!(
        "there is no exchange {topic} in the virtual host {}; run rabbitmqadmin {vhost}declare \
         exchange name={name} type=topic durable=true, or set create_missing = true",
        place.vhost
    ))
}

/// What an exchange was asked for, in vain.
pub(super) fn declaring(error: &lapin::Error, topic: &str, place: &Place) -> SinkError {
    let ErrorKind::ProtocolError(said) = error.kind() else {
        let message = format!("RabbitMQ gave no answer about the exchange {topic}: {error}");
        return new(FailureKind::Unavailable, message).with_company(true);
    };
    let text = said.get_message().as_str();
    match said.get_id() {
        NOT_FOUND => no_exchange(topic, place),
        ACCESS_REFUSED => {
            let (vhost, user) = (shell::word(&place.vhost), shell::word(&place.user));
            let message = format!(
                "RabbitMQ does not let {user} make the exchange {topic}: {text}; run rabbitmqctl \
                 set_permissions -p {vhost} {user} '.*' '.*' '^$', or make it and remove \
                 create_missing"
            );
            SinkError::of_topic(message)
        }
        _ => {
            let message = format!("the exchange {topic} cannot be made: {text}; see exchange_type");
            SinkError::of_topic(message)
        }
    }
}

fn refused(text: &str, topic: &str, place: &Place) -> SinkError {
    let command = if text.contains("access to topic") {
        let (vhost, user, name) =
            (shell::word(&place.vhost), shell::word(&place.user), shell::word(topic));
        format!("rabbitmqctl set_topic_permissions -p {vhost} {user} {name} '.*' '.*'")
    } else {
        place.permissions()
    };
    let message = format!("no permission to write to the exchange {topic}: {text}; run {command}");
    SinkError::of_topic(message)
}

/// A message that came back: no queue takes it.
pub(super) fn unroutable(message: &Message, place: &Place) -> SinkError {
    let (vhost, topic, key) = (place.vhost_option(), &message.topic, &message.key);
    let text = if exchange(topic).is_empty() {
        format!(
            "there is no queue {key}; run rabbitmqadmin {vhost}declare queue name={} durable=true \
             queue_type=quorum",
            shell::word(key)
        )
    } else {
        format!(
            "no queue takes the routing key {key} from the exchange {topic}; bind one: \
             rabbitmqadmin {vhost}declare binding source={} destination=QUEUE routing_key={}",
            shell::word(topic),
            shell::word(key)
        )
    };
    new(FailureKind::Failed, text)
}

/// A message that a queue did not take.
pub(super) fn nacked(message: &Message) -> SinkError {
    let Message { topic, key, .. } = message;
    let text = format!(
        "a queue did not take what the exchange {topic} has for {key}: it is full (its overflow is \
         reject-publish) or has failed; the server's log may say why"
    );
    new(FailureKind::Throttled, text)
}

/// The server takes nothing from those who publish.
pub(super) fn blocked(reason: &str) -> SinkError {
    let text = format!(
        "RabbitMQ has blocked all who publish: {reason}; it takes events again when the alarm is \
         over, see rabbitmqctl status"
    );
    new(FailureKind::Throttled, text)
}

/// A message that is neither confirmed nor refused.
pub(super) fn unconfirmed(message: &Message, waited: Duration) -> SinkError {
    let Message { topic, key, .. } = message;
    let text = format!(
        "the server has not confirmed what the exchange {topic} has for {key} within {waited:?}; a \
         queue may have lost the majority of its replicas"
    );
    new(FailureKind::Throttled, text)
}

/// The size of a message, and the most that the server takes, if that is what it says.
pub(super) fn size_in(text: &str) -> Option<(usize, usize)> {
    let (_, sizes) = text.split_once("message size")?;
    let mut numbers = sizes.split(|char: char| !char.is_ascii_digit()).filter(|s| !s.is_empty());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
