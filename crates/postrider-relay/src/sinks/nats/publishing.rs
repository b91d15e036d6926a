//! One call: all messages are sent, then all confirmations are waited for.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::{PublishErrorKind, Subject, Subscriber};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep_until};

use super::answer::{self, Answer};
use super::connection::{Connection, Lane};
use super::options::CheckedOptions;
use super::said::Said;
use super::streams::Unheard;
use super::{encoding, streams, unavailable};
use crate::sink::{FailureKind, Message, SinkError};

/// Publishes messages; the answer has one result for each, in their order.
pub(super) async fn publish(
    connection: &Connection,
    options: &CheckedOptions,
    messages: &[Message],
) -> Vec<Result<(), SinkError>> {
    let mut lane = match connection.lane().await {
        Ok(lane) => lane,
        Err(error) => return vec![Err(error); messages.len()],
    };
    let mut call = Call::new(connection, options, messages);
    let end = call.run(&mut lane).await;
    if end != End::Lost {
        connection.give_back(lane);
    }
    call.finish(end).await
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Everything was answered.
    Answered,
    /// The connection has ended.
    Lost,
    /// Nothing was answered for too long, over a connection that works.
    Silent,
}

/// What has become of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Missing,
    Known(Result<(), SinkError>),
    /// Nobody listens to its subject.
    Unheard,
}

struct Call<'a> {
    connection: &'a Connection,
    options: &'a CheckedOptions,
    messages: &'a [Message],
    outcomes: Vec<Outcome>,
    /// How many are missing.
    missing: usize,
    /// Whether a stream has said anything.
    is_answered: bool,
}

impl<'a> Call<'a> {
    fn new(
        connection: &'a Connection,
        options: &'a CheckedOptions,
        messages: &'a [Message],
    ) -> Self {
        Self {
            connection,
            options,
            messages,
            outcomes: vec![Outcome::Missing; messages.len()],
            missing: messages.len(),
            is_answered: false,
        }
    }

    async fn run(&mut self, lane: &mut Lane) -> End {
        // What was denied before concerns somebody else.
        let mut said = self.connection.listen();
        let prefix = lane.next_prefix();
        if self.send(&prefix).await.is_err() {
            return End::Lost;
        }
        self.wait(&mut lane.subscriber, &prefix, &mut said, self.options.ack_timeout).await
    }

    /// Sends everything. Fails if the connection has ended.
    async fn send(&mut self, prefix: &str) -> Result<(), ()> {
        let bytes_max = self.connection.bytes_max();
        let stream = self.options.stream.as_deref();
        let mut subject: Option<Subject> = None;
        for (index, message) in self.messages.iter().enumerate() {
            // Most messages of a call go to the same few subjects.
            if subject.as_deref() != Some(&message.topic) {
                if let Err(error) = self.check(&message.topic) {
                    self.answer(index, Err(error));
                    continue;
                }
                subject = Some(message.topic.as_str().into());
            }
            let headers = match encoding::encode(message, stream, bytes_max) {
                Ok(headers) => headers,
                Err(error) => {
                    self.answer(index, Err(error));
                    continue;
                }
            };
            let to = subject.clone().expect("it was just set");
            let inbox = format!("{prefix}{index}");
            let client = &self.connection.client;
            let body = message.body.clone();
            let sent = client.publish_with_reply_and_headers(to, inbox, headers, body).await;
            if let Err(error) = sent {
                if error.kind() == PublishErrorKind::Send {
                    return Err(());
                }
                let message = format!("the client does not send it: {error}");
                self.answer(index, Err(SinkError::new(FailureKind::Rejected, message)));
            }
        }
        Ok(())
    }

    fn check(&self, topic: &str) -> Result<(), SinkError> {
        encoding::check_subject(topic, &self.options.inbox_prefix)
    }

    async fn wait(
        &mut self,
        answers: &mut Subscriber,
        prefix: &str,
        said: &mut tokio::sync::watch::Receiver<Said>,
        longest: Duration,
    ) -> End {
        let mut deadline = Instant::now() + longest;
        // Moved only when it is over: setting a timer for each answer would cost more than
        // reading it.
        let timer = sleep_until(deadline);
        tokio::pin!(timer);
        while self.missing > 0 {
            tokio::select! {
                biased;
                answer = answers.next() => {
                    let Some(answer) = answer else { return End::Lost };
                    if self.take(&answer, prefix) {
                        deadline = Instant::now() + longest;
                    }
                }
                Ok(()) = said.changed() => self.deny(&said.borrow_and_update()),
                () = &mut timer => {
                    if Instant::now() >= deadline {
                        return End::Silent;
                    }
                    timer.as_mut().reset(deadline);
                }
            }
        }
        End::Answered
    }

    /// Takes an answer. Those to other calls, and second ones, are none.
    fn take(&mut self, message: &async_nats::Message, prefix: &str) -> bool {
        let index = message.subject.strip_prefix(prefix).and_then(|index| index.parse().ok());
        let Some(index) = index.filter(|index: &usize| *index < self.messages.len()) else {
            return false;
        };
        if self.outcomes[index] != Outcome::Missing {
            return false;
        }
        match Answer::read(message) {
            Answer::Kept => {
                self.is_answered = true;
                self.answer(index, Ok(()));
            }
            Answer::NoResponders => {
                self.outcomes[index] = Outcome::Unheard;
                self.missing -= 1;
            }
            Answer::Refused { stream, error } => {
                self.is_answered = true;
                let Message { topic, body, .. } = &self.messages[index];
                let expected = self.options.stream.as_deref();
                let stream = stream.as_deref();
                let refusal = answer::refusal(&error, stream, expected, topic, body.len());
                self.answer(index, Err(refusal));
            }
            Answer::Unrelated => return false,
        }
        true
    }

    /// Answers for what will not be answered, because it was not allowed.
    fn deny(&mut self, said: &Said) {
        for (index, message) in self.messages.iter().enumerate() {
            if self.outcomes[index] == Outcome::Missing
                && let Some(error) = said.denial_of(&message.topic)
            {
                self.answer(index, Err(error));
            }
        }
    }

    fn answer(&mut self, index: usize, result: Result<(), SinkError>) {
        self.outcomes[index] = Outcome::Known(result);
        self.missing -= 1;
    }

    async fn finish(self, end: End) -> Vec<Result<(), SinkError>> {
        let unheard = self.why_unheard().await;
        let unanswered = match end {
            End::Answered | End::Lost => self.connection.lost(),
            End::Silent => self.silence(),
        };
        let (connection, options) = (self.connection, self.options);
        let result = |(outcome, message): (Outcome, &Message)| match (
            outcome,
            unheard.get(message.topic.as_str()),
        ) {
            (Outcome::Known(result), _) => result,
            (Outcome::Unheard, Some(why)) => Err(why.about(&message.topic, connection, options)),
            (Outcome::Missing | Outcome::Unheard, _) => Err(unanswered.clone()),
        };
        self.outcomes.into_iter().zip(self.messages).map(result).collect()
    }

    /// Why nobody listens to subjects, each by itself: one may be of no stream, and the stream of
    /// another without a leader for a moment.
    async fn why_unheard(&self) -> HashMap<&'a str, Unheard> {
        let mut unheard = HashMap::new();
        let mut other = None;
        for (outcome, message) in self.outcomes.iter().zip(self.messages) {
            let subject = message.topic.as_str();
            if *outcome != Outcome::Unheard || unheard.contains_key(subject) {
                continue;
            }
            let why = match &other {
                // Whoever cannot tell of one subject cannot tell of the next.
                Some(other) => Unheard::Other(SinkError::clone(other)),
                None => streams::why_unheard(self.connection, self.options, subject).await,
            };
            if let Unheard::Other(error) = &why {
                other = Some(error.clone());
            }
            unheard.insert(subject, why);
        }
        unheard
    }

    /// Nothing was answered. If that is so for all messages, it is not because of this one: a
    /// stream whose replicas have no leader says nothing.
    fn silence(&self) -> SinkError {
        let (server, longest) = (&self.connection.server, self.options.ack_timeout);
        let message = format!(
            "no stream has confirmed it within {longest:?}, though {server} is there; see whether \
             the stream has a leader (`nats stream info`) and confirms (no_ack must be off)"
        );
        if self.is_answered {
            SinkError::new(FailureKind::Failed, message)
        } else {
            unavailable(message)
        }
    }
}
