//! How a transaction ends, by a deadline.

use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::time::Instant;

use super::super::producer::Producer;

/// How a transaction ended that was not committed.
pub(super) enum Ended {
    Aborted(KafkaError),
    Fenced,
    /// Only a new producer finds out.
    Unknown(KafkaError),
}

/// Commits, as often as it takes. Blocks.
pub(super) fn commit(producer: &Producer, deadline: Instant) -> Result<(), Ended> {
    loop {
        let error = match producer.commit_transaction(left_until(deadline)) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if is_fenced(&error) {
            return Err(Ended::Fenced);
        }
        let KafkaError::Transaction(details) = &error else { return Err(Ended::Unknown(error)) };
        if details.txn_requires_abort() {
            return match abort(producer, deadline) {
                Ok(()) => Err(Ended::Aborted(error)),
                Err(ended) => Err(ended),
            };
        }
        if !details.is_retriable() || left_until(deadline).is_zero() {
            return Err(Ended::Unknown(error));
        }
    }
}

/// Aborts, if there is time for it: the next producer does it otherwise. Blocks.
pub(super) fn abort(producer: &Producer, deadline: Instant) -> Result<(), Ended> {
    match producer.abort_transaction(left_until(deadline)) {
        Ok(()) => Ok(()),
        Err(error) if is_fenced(&error) => Err(Ended::Fenced),
        Err(error) => Err(Ended::Unknown(error)),
    }
}

/// The time that is left.
pub(super) fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn is_fenced(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{Fenced, InvalidProducerEpoch, ProducerFenced};
    matches!(error.rdkafka_error_code(), Some(Fenced | InvalidProducerEpoch | ProducerFenced))
}
