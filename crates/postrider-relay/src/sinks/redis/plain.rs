//! Commands for servers, or operators, that do not want a script: one for each message.
//!
//! They follow one another without waiting for answers, and each is on its own: the next one is
//! run whatever becomes of the one before, and nothing is remembered.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value};

use super::append::{Appending, PAYLOAD, Trim, texts};
use super::failure;
use crate::sink::{Message, SinkError};
use crate::sinks::broker_url::Server;

impl Appending {
    /// The command for one message.
    pub(super) fn plain_command(&self, message: &Message, now: SystemTime) -> Cmd {
        let mut command = redis::cmd("XADD");
        command.arg(&message.topic);
        if !self.creates {
            command.arg("NOMKSTREAM");
        }
        match self.trim {
            Trim::Nothing => &mut command,
            Trim::Maxlen(count) => command.arg("MAXLEN").arg("~").arg(count),
            Trim::OlderThan(milliseconds) => {
                let now = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis();
                let oldest = now.saturating_sub(milliseconds).to_string();
                command.arg("MINID").arg("~").arg(oldest)
            }
        };
        command.arg("*");
        for (name, value) in texts(message) {
            command.arg(name).arg(value.as_ref());
        }
        command.arg(PAYLOAD).arg(&message.body[..]);
        command
    }
}

/// What the answer to a message's command means.
pub(super) fn verdict(server: &Server, message: &Message, answer: Value) -> Result<(), SinkError> {
    match answer {
        Value::BulkString(_) => Ok(()),
        Value::Nil => Err(failure::missing(server, &message.topic)),
        Value::ServerError(error) => Err(failure::refused(server, &message.topic, &error)),
        _ => Err(failure::not_understood(server)),
    }
}

#[cfg(test)]
mod tests;
