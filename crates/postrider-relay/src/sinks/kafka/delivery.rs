//! Which messages of a call librdkafka has answered.

use std::sync::{Mutex, PoisonError};

use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::Notify;

/// A call whose messages are with librdkafka. It may be given up: the answers then come to
/// nobody.
pub(super) struct Call {
    state: Mutex<State>,
    finished: Notify,
}

struct State {
    /// For each message why it was not delivered.
    answers: Vec<Option<RDKafkaErrorCode>>,
    left: usize,
}

impl Call {
    pub(super) fn new(messages: usize) -> Self {
        let state = State { answers: vec![None; messages], left: messages };
        Self { state: Mutex::new(state), finished: Notify::new() }
    }

    /// Takes in the answer for one message; there is one for each.
    pub(super) fn answer(&self, index: usize, undelivered: Option<RDKafkaErrorCode>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.answers[index] = undelivered;
        state.left -= 1;
        if state.left == 0 {
            self.finished.notify_one();
        }
    }

    /// Waits until every message has its answer.
    pub(super) async fn finished(&self) -> Vec<Option<RDKafkaErrorCode>> {
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.left == 0 {
                    return std::mem::take(&mut state.answers);
                }
            }
            self.finished.notified().await;
        }
    }
}

/// What librdkafka carries along with a message.
pub(super) struct Delivery {
    pub(super) call: std::sync::Arc<Call>,
    pub(super) index: usize,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_call_is_finished_when_every_message_has_its_answer() {
        let call = Arc::new(Call::new(3));
        let other = Arc::clone(&call);
        let waiting = tokio::spawn(async move { other.finished().await });
        for (index, code) in [(2, None), (0, Some(RDKafkaErrorCode::MessageTimedOut)), (1, None)] {
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            call.answer(index, code);
        }
        let answers = waiting.await.unwrap();
        assert_eq!(answers, [Some(RDKafkaErrorCode::MessageTimedOut), None, None]);
        assert_eq!(Call::new(0).finished().await, []);
    }
}
