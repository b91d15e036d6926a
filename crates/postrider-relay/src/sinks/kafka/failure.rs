//! What librdkafka's errors mean for a message.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::topics::PROGRESS_SETTINGS;
use super::trouble::Trouble;
use crate::sink::{FailureKind, SinkError};

/// Where a message was to go.
pub(super) struct Place<'a> {
    pub(super) servers: &'a str,
    pub(super) topic: &'a str,
}

/// The error for a message, or for a question about its topic. `trouble` is what is wrong with
/// the connections.
pub(super) fn failure(
    place: &Place<'_>,
    error: &KafkaError,
    trouble: Option<&Trouble>,
) -> SinkError {
    use RDKafkaErrorCode as Code;
    let Place { servers, topic } = place;
    let code = code_of(error);
    let new = |kind, message: String| SinkError::new(kind, message);
    match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => no_topic(place),
        Code::UnknownPartition => {
            let message = format!("the topic {topic} has no such partition");
            new(FailureKind::Rejected, message)
        }
        Code::TopicAuthorizationFailed => SinkError::of_topic(format!(
            "no permission to write to the topic {topic}; run {}",
            allow(place)
        )),
        Code::ClusterAuthorizationFailed => no_producer(place),
        Code::TransactionalIdAuthorizationFailed => no_transactional_id(servers, "ID"),
        Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL => {
            refused(servers, &Trouble::new(code, &error.to_string()))
        }
        Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::InvalidTopic
        | Code::InvalidMessage
        | Code::PolicyViolation
        | Code::InvalidMessageSize => {
            let message = format!("the topic {topic} refused the record: {}", text(code));
            new(FailureKind::Rejected, message)
        }
        Code::ThrottlingQuotaExceeded => {
            new(FailureKind::Throttled, format!("{servers} asks to slow down: {}", text(code)))
        }
        Code::InvalidConfig | Code::InvalidRequest => new(FailureKind::Misconfigured, text(code)),
        // Whatever else it is, it is about the cluster: no leader, too few replicas, no answer in
        // time, a producer that has to be made anew.
        _ => match trouble {
            Some(trouble) if trouble.is_refusal() => refused(servers, trouble),
            Some(trouble) if trouble.is_forbidden() => no_producer(place),
            None if matches!(code, Code::MessageTimedOut | Code::NotEnoughReplicas) => new(
                FailureKind::Unavailable,
                format!(
                    "the topic {topic} has not confirmed: {}; too few replicas may be in sync, see \
                     kafka-topics.sh --bootstrap-server {servers} --describe --topic {topic} \
                     --under-min-isr-partitions",
                    text(code)
                ),
            ),
            trouble => {
                let message = format!("Kafka at {servers} is not available: {}", text(code));
                because(new(FailureKind::Unavailable, message), trouble)
            }
        },
    }
}

/// Nobody is an idempotent producer who may not write to any topic; older brokers have a
/// permission of its own for that.
fn no_producer(place: &Place<'_>) -> SinkError {
    let message = format!(
        "no permission to write to any topic; run {}, or with brokers older than 3.0 the same with \
         --operation IdempotentWrite --cluster",
        allow(place)
    );
    SinkError::new(FailureKind::Misconfigured, message)
}

fn no_transactional_id(servers: &str, id: &str) -> SinkError {
    let message = format!(
        "no permission for the transactional id {id}; run kafka-acls.sh --bootstrap-server \
         {servers} --add --allow-principal User:NAME --operation Describe --operation Write \
         --transactional-id {id}"
    );
    SinkError::new(FailureKind::Misconfigured, message)
}

/// Why the producer of this transactional id could not begin.
pub(super) fn not_begun(
    place: &Place<'_>,
    id: &str,
    error: &KafkaError,
    trouble: Option<&Trouble>,
) -> SinkError {
    match code_of(error) {
        RDKafkaErrorCode::TransactionalIdAuthorizationFailed => {
            no_transactional_id(place.servers, id)
        }
        RDKafkaErrorCode::InvalidTransactionTimeout => {
            let message = "timeout is longer than the brokers let a transaction take; set a \
                           shorter timeout, or raise transaction.max.timeout.ms of the brokers, \
                           which is 15 min by default";
            SinkError::new(FailureKind::Misconfigured, message)
        }
        _ => failure(place, error, trouble),
    }
}

/// The command that lets somebody write to a topic.
fn allow(place: &Place<'_>) -> String {
    let Place { servers, topic } = place;
    format!(
        "kafka-acls.sh --bootstrap-server {servers} --add --allow-principal User:NAME --operation \
         Describe --operation DescribeConfigs --operation Write --topic {topic}"
    )
}

/// Adds what is wrong with the connections to an error that knows nothing of it.
pub(super) fn because(error: SinkError, trouble: Option<&Trouble>) -> SinkError {
    match trouble {
        Some(trouble) if error.kind == FailureKind::Unavailable => {
            let hint = trouble.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            let message = format!("{}: {}{hint}", error.message, trouble.reason);
            SinkError { message, ..error }
        }
        _ => error,
    }
}

/// Why a topic could not be made.
pub(super) fn not_created(place: &Place<'_>, code: RDKafkaErrorCode) -> SinkError {
    use RDKafkaErrorCode as Code;
    let Place { servers, topic } = place;
    let misconfigured =
        |why: String| SinkError::of_topic(format!("cannot make the topic {topic}: {why}"));
    match code {
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            misconfigured(format!(
                "no permission; run kafka-acls.sh --bootstrap-server {servers} --add \
                 --allow-principal User:NAME --operation Create --topic {topic}"
            ))
        }
        Code::InvalidReplicationFactor
        | Code::InvalidPartitions
        | Code::InvalidConfig
        | Code::InvalidRequest
        | Code::PolicyViolation => misconfigured(format!(
            "{}; see partitions and replication_factor, or make it yourself",
            text(code)
        )),
        _ => failure(place, &KafkaError::AdminOp(code), None),
    }
}

/// A topic that is not there.
pub(super) fn no_topic(place: &Place<'_>) -> SinkError {
    let Place { servers, topic } = place;
    let message = format!(
        "there is no topic {topic}; run kafka-topics.sh --bootstrap-server {servers} --create \
         --topic {topic} --partitions 12 --replication-factor 3, or set create_missing = true"
    );
    SinkError::of_topic(message)
}

/// The topic of progress is not there.
pub(super) fn no_progress_topic(place: &Place<'_>) -> SinkError {
    let Place { servers, topic } = place;
    let settings = PROGRESS_SETTINGS.map(|(name, value)| format!(" --config {name}={value}"));
    let message = format!(
        "there is no topic {topic}, in which exactly_once notes what was published; run \
         kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 1 \
         --replication-factor 3{}, or set create_missing = true",
        settings.concat()
    );
    SinkError::new(FailureKind::Misconfigured, message)
}

/// The topic of progress would grow for ever, or forget.
pub(super) fn not_compacted(place: &Place<'_>) -> SinkError {
    let Place { servers, topic } = place;
    let settings = PROGRESS_SETTINGS.map(|(name, value)| format!("{name}={value}"));
    let message = format!(
        "the topic {topic}, in which exactly_once notes what was published, has to be compacted; \
         run kafka-configs.sh --bootstrap-server {servers} --alter --topic {topic} --add-config {}",
        settings.join(",")
    );
    SinkError::new(FailureKind::Misconfigured, message)
}

/// A record of the topic of progress cannot be a note of a relay.
pub(super) fn foreign_note(place: &Place<'_>, key: &str) -> SinkError {
    let shown: String = key.chars().take(200).collect();
    let message = format!(
        "the topic {} has a record with the key {shown:?}, whose numbers no relay writes; nothing is \
         sent, because what was published before cannot be told: delete that record (write one with \
         the same key and no value), or set another progress_topic",
        place.topic
    );
    SinkError::new(FailureKind::Misconfigured, message)
}

/// A note may be larger than the topic of progress takes.
pub(super) fn small_progress_topic(place: &Place<'_>, bytes: usize) -> SinkError {
    let Place { servers, topic } = place;
    let message = format!(
        "the topic {topic}, in which exactly_once notes what was published, takes no record of \
         {bytes} bytes, which a note of the whole window may have; run kafka-configs.sh \
         --bootstrap-server {servers} --alter --topic {topic} --add-config \
         max.message.bytes={bytes}, or set a smaller window"
    );
    SinkError::new(FailureKind::Misconfigured, message)
}

/// The cluster does not let us in.
pub(super) fn refused(servers: &str, trouble: &Trouble) -> SinkError {
    let hint = trouble.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    let message = format!("Kafka at {servers} refuses the connection: {}{hint}", trouble.reason);
    SinkError::new(FailureKind::Misconfigured, message)
}

/// A topic that waits for more replicas than it has.
pub(super) fn too_few_replicas(place: &Place<'_>, replicas: usize, needed: usize) -> SinkError {
    let Place { servers, topic } = place;
    let message = format!(
        "the topic {topic} takes nothing: it has min.insync.replicas={needed} and replication \
         factor {replicas}; add replicas, or run kafka-configs.sh --bootstrap-server {servers} \
         --alter --topic {topic} --add-config min.insync.replicas={replicas}"
    );
    SinkError::of_topic(message)
}

/// A record that the topic cannot take.
pub(super) fn too_large(place: &Place<'_>, bytes: usize, most: usize) -> SinkError {
    let Place { servers, topic } = place;
    let message = format!(
        "the record has {bytes} bytes, the topic {topic} takes at most {most}; to allow more, run \
         kafka-configs.sh --bootstrap-server {servers} --alter --topic {topic} --add-config \
         max.message.bytes={bytes}"
    );
    SinkError::new(FailureKind::Rejected, message)
}

/// A record that a topic did not take, although it was a batch by itself.
pub(super) fn refused_alone(place: &Place<'_>, bytes: usize) -> SinkError {
    let Place { servers, topic } = place;
    let message = format!(
        "the record has {bytes} bytes, which is more than the topic {topic} takes; to allow more, \
         run kafka-configs.sh --bootstrap-server {servers} --alter --topic {topic} --add-config \
         max.message.bytes={bytes}"
    );
    SinkError::new(FailureKind::Rejected, message)
}

/// A partition that the topic does not have.
pub(super) fn no_partition(place: &Place<'_>, partitions: i32) -> SinkError {
    let message = format!(
        "the event names a partition that the topic {} does not have: it has {partitions}, from 0",
        place.topic
    );
    SinkError::new(FailureKind::Rejected, message)
}

/// The code of an error, also where the client library does not tell.
pub(super) fn code_of(error: &KafkaError) -> RDKafkaErrorCode {
    match error {
        KafkaError::AdminOp(code) => *code,
        _ => error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail),
    }
}

/// What librdkafka says to people, without the name that it has in programs.
fn text(code: RDKafkaErrorCode) -> String {
    let both = code.to_string();
    let text = both.split_once(" (").and_then(|(_, text)| text.strip_suffix(')'));
    text.unwrap_or(&both).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place<'_> = Place { servers: "b:9092", topic: "orders" };

    fn kind(code: RDKafkaErrorCode, trouble: Option<&Trouble>) -> FailureKind {
        failure(&PLACE, &KafkaError::MessageProduction(code), trouble).kind
    }

    #[test]
    fn every_kind_of_trouble_has_its_kind() {
        use RDKafkaErrorCode as Code;
        for (code, expected) in [
            (Code::UnknownTopicOrPartition, FailureKind::Misconfigured),
            (Code::TopicAuthorizationFailed, FailureKind::Misconfigured),
            (Code::ClusterAuthorizationFailed, FailureKind::Misconfigured),
            (Code::TransactionalIdAuthorizationFailed, FailureKind::Misconfigured),
            (Code::SaslAuthenticationFailed, FailureKind::Misconfigured),
            (Code::InvalidRecord, FailureKind::Rejected),
            (Code::InvalidTopic, FailureKind::Rejected),
            (Code::PolicyViolation, FailureKind::Rejected),
            (Code::ThrottlingQuotaExceeded, FailureKind::Throttled),
            (Code::MessageTimedOut, FailureKind::Unavailable),
            (Code::NotEnoughReplicas, FailureKind::Unavailable),
            (Code::NotLeaderForPartition, FailureKind::Unavailable),
            (Code::AllBrokersDown, FailureKind::Unavailable),
            (Code::OutOfOrderSequenceNumber, FailureKind::Unavailable),
        ] {
            assert_eq!(kind(code, None), expected, "{code:?}");
        }
    }

    #[test]
    fn a_producer_that_cannot_begin_says_what_to_mend() {
        use RDKafkaErrorCode as Code;
        let told = |code, kind| {
            let error = not_begun(&PLACE, "shop/3", &KafkaError::MessageProduction(code), None);
            assert_eq!(error.kind, kind, "{error}");
            error.message
        };
        let forbidden = told(Code::TransactionalIdAuthorizationFailed, FailureKind::Misconfigured);
        assert!(forbidden.ends_with(" --transactional-id shop/3"), "{forbidden}");
        let long = told(Code::InvalidTransactionTimeout, FailureKind::Misconfigured);
        assert!(long.contains("set a shorter timeout, or raise"), "{long}");
        told(Code::OperationTimedOut, FailureKind::Unavailable);
    }

    #[test]
    fn a_refused_connection_is_why_nothing_was_confirmed() {
        let timed_out = RDKafkaErrorCode::MessageTimedOut;
        for (code, expected) in [
            (RDKafkaErrorCode::Authentication, FailureKind::Misconfigured),
            (RDKafkaErrorCode::ClusterAuthorizationFailed, FailureKind::Misconfigured),
            (RDKafkaErrorCode::BrokerTransportFailure, FailureKind::Unavailable),
        ] {
            assert_eq!(kind(timed_out, Some(&Trouble::new(code, "because"))), expected);
        }
    }

    #[test]
    fn errors_name_the_command_that_mends_them() {
        let missing = no_topic(&PLACE).message;
        let command = "kafka-topics.sh --bootstrap-server b:9092 --create --topic orders";
        assert!(missing.contains(command), "{missing}");
        let large = too_large(&PLACE, 2_000_000, 1_048_588).message;
        assert!(large.starts_with("the record has 2000000 bytes"), "{large}");
        assert!(large.ends_with("--add-config max.message.bytes=2000000"), "{large}");
        let timed_out = KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut);
        let waiting = failure(&PLACE, &timed_out, None).message;
        assert!(waiting.ends_with("--topic orders --under-min-isr-partitions"), "{waiting}");
        let missing = no_progress_topic(&PLACE).message;
        assert!(missing.contains(" --config cleanup.policy=compact --config "), "{missing}");
        let kept = not_compacted(&PLACE).message;
        assert!(kept.contains("--topic orders --add-config cleanup.policy=compact,"), "{kept}");
        let small = small_progress_topic(&PLACE, 70_000).message;
        assert!(small.contains("--add-config max.message.bytes=70000, or"), "{small}");
        let cannot = not_created(&PLACE, RDKafkaErrorCode::RequestTimedOut);
        assert_eq!(cannot.kind, FailureKind::Unavailable);
        assert!(cannot.message.contains("Broker: Request timed out"), "{cannot}");
    }
}
