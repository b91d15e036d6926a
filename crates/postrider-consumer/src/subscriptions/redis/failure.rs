//! What the server's errors mean, and what mends them.

use redis::RedisError;

use crate::subscription::SubscriptionError;

/// An error of the server, or the lack of an answer.
pub(super) fn failed(error: RedisError) -> SubscriptionError {
    let message = match error.code() {
        Some("WRONGTYPE") => "one of the keys is there and no stream; name another one",
        Some("NOPERM") => {
            "no permission; allow the user of the streams +xgroup|create +xreadgroup +xautoclaim \
             +xclaim +xpending +xack"
        }
        Some("ERR") if error.detail().is_some_and(|text| text.contains("unknown command")) => {
            "the server does not know the command; it takes Redis 6.2 or later"
        }
        _ => return SubscriptionError::new("Redis does not answer as it should", error),
    };
    SubscriptionError { message: message.to_owned(), source: Some(error.into()), is_final: true }
}
