//! What the server's errors mean, and what mends them.

use lapin::ErrorKind;

use crate::subscription::SubscriptionError;

/// The codes of AMQP that are told apart.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const NOT_ALLOWED: u16 = 530;

/// Nothing can be received from a queue.
pub(super) fn failed(error: lapin::Error, queue: &str) -> SubscriptionError {
    let said = match error.kind() {
        ErrorKind::ProtocolError(said) => {
            mistake(said.get_id(), said.get_message().as_str(), queue)
        }
        _ => None,
    };
    match said {
        Some(message) => SubscriptionError { message, source: Some(error.into()), is_final: true },
        None => SubscriptionError::new("nothing can be received from RabbitMQ", error),
    }
}

/// An answer that is not one, or none at all.
pub(super) fn unanswered(
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SubscriptionError {
    SubscriptionError::new("RabbitMQ does not answer as it should", error)
}

/// What somebody has to mend, by the server's own words.
fn mistake(code: u16, text: &str, queue: &str) -> Option<String> {
    match code {
        // A queue whose node is down is not found either.
        NOT_FOUND if text.contains("no queue") => Some(format!(
            "there is no queue {queue}; declare it and bind it to an exchange: rabbitmqadmin \
             declare queue name={queue} durable=true queue_type=quorum"
        )),
        ACCESS_REFUSED if text.contains("to queue") => Some(format!(
            "no permission to read the queue {queue}; give it: rabbitmqctl set_permissions USER \
             '^$' '^$' '^{queue}$'"
        )),
        ACCESS_REFUSED => {
            Some("RabbitMQ does not let the user in; see the user name and the password".to_owned())
        }
        // There may be too many connections, for now.
        NOT_ALLOWED if text.contains("vhost") && !text.contains("limit") => Some(
            "RabbitMQ refuses the virtual host; see whether it is there and who may use it"
                .to_owned(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_somebody_has_to_mend_is_a_mistake() {
        for (code, text, expected) in [
            (404, "NOT_FOUND - no queue 'billing' in vhost '/'", Some("there is no queue billing")),
            (404, "NOT_FOUND - home node 'r@n' of durable queue 'billing' is down", None),
            (403, "ACCESS_REFUSED - read access to queue 'billing' in vhost", Some("permission")),
            (403, "ACCESS_REFUSED - Login was refused", Some("the password")),
            (530, "NOT_ALLOWED - vhost v not found", Some("virtual host")),
            (530, "NOT_ALLOWED - access to vhost 'v' refused: connection limit (2)", None),
            (530, "NOT_ALLOWED - attempt to reuse consumer tag", None),
            (320, "CONNECTION_FORCED - broker forced connection closure", None),
        ] {
            let found = mistake(code, text, "billing");
            assert_eq!(found.is_some(), expected.is_some(), "{text}");
            let found = found.unwrap_or_default();
            assert!(found.contains(expected.unwrap_or_default()), "{text}: {found}");
        }
    }
}
