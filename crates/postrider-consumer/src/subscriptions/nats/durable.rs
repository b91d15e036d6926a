//! The durable consumer at the server.

use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{self, AckPolicy, PullConsumer};
use async_nats::jetstream::context::{ConsumerInfoErrorKind, GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind, RetentionPolicy};
use async_nats::jetstream::{Context, ErrorCode};

use super::unanswered;
use crate::subscription::{Redelivery, SubscriptionError};

/// How many messages may be under way, of all instances together.
const ACK_PENDING_MAX: i64 = 65_536;

/// What the consumer is to be.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) stream: String,
    pub(super) name: String,
    pub(super) filter_subjects: Vec<String>,
    pub(super) ack_wait: Duration,
}

/// What it is.
pub(super) struct Prepared {
    pub(super) consumer: PullConsumer,
    /// After which time a message comes again.
    pub(super) ack_wait: Duration,
    /// For how long the stream keeps messages, unless it does for ever.
    pub(super) redelivery: Redelivery,
}

impl Durable {
    /// Looks for the stream and for the consumer, which is made if it is missing.
    pub(super) async fn prepare(&self, context: &Context) -> Result<Prepared, SubscriptionError> {
        let stream = context.get_stream(&self.stream).await;
        let stream = stream.map_err(|error| self.no_stream(error))?;
        let consumer = match stream.consumer_info(&self.name).await {
            Ok(found) => {
                self.check(&found.config)?;
                stream.get_consumer(&self.name).await.map_err(unanswered)?
            }
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
                let made = stream.create_consumer(self.config()).await;
                made.map_err(|error| self.no_consumer(error))?
            }
            Err(error) if error.kind() == ConsumerInfoErrorKind::InvalidName => {
                let message = format!("{:?} cannot be the name of a consumer", self.name);
                return Err(SubscriptionError::mistake(message));
            }
            Err(error) => return Err(unanswered(error)),
        };
        let config = &consumer.cached_info().config;
        let wait = config.backoff.iter().copied().chain([config.ack_wait]).min();
        let ack_wait = wait.filter(|wait| !wait.is_zero()).unwrap_or(self.ack_wait);
        let stream = &stream.cached_info().config;
        let redelivery = match stream.retention {
            RetentionPolicy::Limits if stream.max_age.is_zero() => Redelivery::Unlimited,
            RetentionPolicy::Limits => Redelivery::Within(stream.max_age),
            // It is removed once it is acknowledged.
            RetentionPolicy::Interest | RetentionPolicy::WorkQueue => Redelivery::Unknown,
        };
        Ok(Prepared { consumer, ack_wait, redelivery })
    }

    fn config(&self) -> Config {
        let mut config = Config {
            durable_name: Some(self.name.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            max_ack_pending: ACK_PENDING_MAX,
            max_deliver: -1,
            ..Config::default()
        };
        match &self.filter_subjects[..] {
            [one] => config.filter_subject.clone_from(one),
            several => config.filter_subjects = several.to_vec(),
        }
        config
    }

    /// Whether a consumer that is there already can be used.
    fn check(&self, found: &consumer::Config) -> Result<(), SubscriptionError> {
        let Self { stream, name, .. } = self;
        let one = Some(&found.filter_subject).filter(|subject| !subject.is_empty());
        let mut subjects: Vec<_> = found.filter_subjects.iter().chain(one).collect();
        let mut wanted: Vec<_> = self.filter_subjects.iter().collect();
        subjects.sort();
        wanted.sort();
        let problem = if found.deliver_subject.is_some() {
            "is a push consumer"
        } else if found.ack_policy != AckPolicy::Explicit {
            "does not want each message acknowledged (its ack policy is not explicit)"
        } else if found.max_deliver > 0 {
            "gives up messages after a number of deliveries (max_deliver)"
        } else if !wanted.is_empty() && subjects != wanted {
            "has other filter subjects"
        } else {
            return Ok(());
        };
        let message = format!(
            "the consumer {name} of the stream {stream} {problem}; name another one, or remove \
             it, so that it is made anew: nats consumer rm {stream} {name}"
        );
        Err(SubscriptionError::mistake(message))
    }

    fn no_stream(&self, error: GetStreamError) -> SubscriptionError {
        let stream = &self.stream;
        match error.kind() {
            GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                SubscriptionError::mistake(format!("{stream:?} cannot be the name of a stream"))
            }
            GetStreamErrorKind::JetStream(said) => match said.error_code() {
                ErrorCode::STREAM_NOT_FOUND => {
                    let subjects = match &self.filter_subjects[..] {
                        [] => "SUBJECTS".to_owned(),
                        subjects => subjects.join(","),
                    };
                    SubscriptionError::mistake(format!(
                        "there is no stream {stream}; make it: nats stream add {stream} \
                         --subjects='{subjects}' --storage=file --defaults"
                    ))
                }
                ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                    SubscriptionError::mistake(
                        "the server has no JetStream, or the account may not use it; enable it",
                    )
                }
                _ => unanswered(said),
            },
            GetStreamErrorKind::Request => unanswered(error),
        }
    }

    fn no_consumer(&self, error: ConsumerError) -> SubscriptionError {
        match error.kind() {
            ConsumerErrorKind::JetStream(said) if said.code() < 500 => SubscriptionError {
                message: format!("the consumer {} cannot be made", self.name),
                source: Some(said.into()),
                is_final: true,
            },
            _ => unanswered(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durable(filter_subjects: &[&str]) -> Durable {
        Durable {
            stream: "ORDERS".to_owned(),
            name: "billing".to_owned(),
            filter_subjects: filter_subjects.iter().map(|text| (*text).to_owned()).collect(),
            ack_wait: Duration::from_secs(30),
        }
    }

    #[test]
    fn a_consumer_is_used_if_it_asks_for_each_acknowledgement_and_gives_up_nothing() {
        let good = consumer::Config {
            ack_policy: AckPolicy::Explicit,
            max_deliver: -1,
            filter_subjects: vec!["b".to_owned(), "a".to_owned()],
            ..consumer::Config::default()
        };
        assert!(durable(&["a", "b"]).check(&good).is_ok());
        assert!(durable(&[]).check(&good).is_ok(), "whoever names none takes what there is");
        let pushes = Some("there".to_owned());
        for (bad, why) in [
            (consumer::Config { deliver_subject: pushes, ..good.clone() }, "push consumer"),
            (consumer::Config { ack_policy: AckPolicy::None, ..good.clone() }, "explicit"),
            (consumer::Config { max_deliver: 5, ..good.clone() }, "max_deliver"),
            (consumer::Config { filter_subjects: Vec::new(), ..good }, "filter subjects"),
        ] {
            let error = durable(&["a", "b"]).check(&bad).unwrap_err();
            assert!(error.is_final && error.message.contains(why), "{}", error.message);
            assert!(error.message.ends_with("nats consumer rm ORDERS billing"));
        }
    }
}
