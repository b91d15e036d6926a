//! Settings of librdkafka that a user passes on, and those that would break what the sink
//! promises.

use rdkafka::ClientConfig;

use crate::secret::Secret;
use crate::sinks::Problem;

/// Settings with one value that is right, by all their names, and why others are not.
const FIXED: [(&[&str], &[&str], &str); 11] = [
    (
        &["acks", "request.required.acks"],
        &["all", "-1"],
        "an event that was not written by all replicas in sync can be lost",
    ),
    (
        &["enable.idempotence"],
        &["true"],
        "what is sent again could be written twice, or out of order",
    ),
    (
        &["partitioner"],
        &["murmur2", "murmur2_random"],
        "the events of a key would not be where the Java client puts them",
    ),
    (
        &["enable.ssl.certificate.verification"],
        &["true"],
        "anybody could be the broker; name its authority with tls = { ca_file = \"…\" }",
    ),
    (
        &["ssl.endpoint.identification.algorithm"],
        &["https"],
        "anybody with a certificate could be the broker",
    ),
    (
        &["enable.gapless.guarantee"],
        &["false"],
        "a batch that is refused as a whole would end the producer, and leaves no gap",
    ),
    (
        &["delivery.report.only.error"],
        &["false"],
        "nobody would hear of what was delivered, and each call would wait for ever",
    ),
    (&["queuing.strategy"], &["fifo"], "later events would be sent first"),
    (
        &["api.version.request"],
        &["true"],
        "neither headers nor what is sent again once could be relied on",
    ),
    (
        &["log.queue"],
        &["false"],
        "what librdkafka logs would stay in memory, and nobody would know why a connection failed",
    ),
    (&["log.connection.close"], &["true"], "nobody would know why a connection failed"),
];

/// Settings that the sink makes by itself, with what to write instead.
const OWN: [(&str, &str); 31] = [
    ("bootstrap.servers", "write the servers into url"),
    ("metadata.broker.list", "write the servers into url"),
    ("security.protocol", "set tls, username and password"),
    ("sasl.username", "set username"),
    ("sasl.password", "set password"),
    ("sasl.mechanism", "set sasl_mechanism"),
    ("sasl.mechanisms", "set sasl_mechanism"),
    ("ssl.ca.location", "set tls = { ca_file = \"…\" }"),
    ("ssl.certificate.location", "set tls = { certificate_file = \"…\", key_file = \"…\" }"),
    ("ssl.key.location", "set tls = { certificate_file = \"…\", key_file = \"…\" }"),
    ("compression.type", "set compression"),
    ("compression.codec", "set compression"),
    ("message.timeout.ms", "set timeout"),
    ("delivery.timeout.ms", "set timeout"),
    ("message.max.bytes", "each topic's own limit is used"),
    ("transactional.id", "set exactly_once and transactional_id"),
    ("transaction.timeout.ms", "set exactly_once and timeout"),
    ("allow.auto.create.topics", "set create_missing"),
    ("retries", "leave it out: the producer sends again until timeout"),
    ("message.send.max.retries", "leave it out: the producer sends again until timeout"),
    ("queue.buffering.max.messages", "the pipeline's window bounds what is in memory"),
    ("queue.buffering.max.kbytes", "the pipeline's window bounds what is in memory"),
    ("linger.ms", "set linger"),
    ("queue.buffering.max.ms", "set linger"),
    ("enabled_events", "leave it out: the sink has to hear of deliveries and errors"),
    ("auto.offset.reset", READING),
    ("enable.auto.commit", READING),
    ("enable.partition.eof", READING),
    ("group.id", READING),
    ("group.instance.id", READING),
    ("isolation.level", READING),
];

const READING: &str = "leave it out: exactly_once reads its own notes, and nothing else is read";

const IN_FLIGHT: [&str; 2] = ["max.in.flight", "max.in.flight.requests.per.connection"];
const IN_FLIGHT_MAX: u32 = 5;

/// Adds a user's settings; the answer is what is wrong with them.
pub(super) fn add(settings: &[(String, Secret)], config: &mut ClientConfig) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, value) in settings {
        match mistake(name, value.expose()) {
            Some(problem) => problems.push(problem),
            None => {
                let mut alone = ClientConfig::new();
                alone.set(name, value.expose());
                match alone.create_native_config() {
                    Ok(_) => drop(config.set(name, value.expose())),
                    // Not the error of librdkafka: it shows the value, which may be a secret.
                    Err(_) => problems.push(
                        Problem::new(option(name), "librdkafka does not know it, or not the value")
                            .with_hint("see the list of its settings, CONFIGURATION.md"),
                    ),
                }
            }
        }
    }
    problems
}

fn option(name: &str) -> String {
    format!("client.{name}")
}

fn mistake(name: &str, value: &str) -> Option<Problem> {
    if let Some((_, instead)) = OWN.iter().find(|(own, _)| *own == name) {
        return Some(Problem::new(option(name), "is set by the sink").with_hint(*instead));
    }
    if let Some((_, right, why)) = FIXED.iter().find(|(names, ..)| names.contains(&name)) {
        if right.iter().any(|right| right.eq_ignore_ascii_case(value)) {
            return None;
        }
        let message = format!("must be {}: otherwise {why}", right[0]);
        return Some(Problem::new(option(name), message).with_hint("leave it out"));
    }
    if IN_FLIGHT.contains(&name) && !value.parse().is_ok_and(|count: u32| count <= IN_FLIGHT_MAX) {
        let message = "must be at most 5: with more, what is sent again could change places";
        return Some(Problem::new(option(name), message).with_hint("leave it out"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, value: &str) -> String {
        let settings = [(name.to_owned(), Secret::new(value))];
        let problems = add(&settings, &mut ClientConfig::new());
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unsafe_settings_are_refused_with_the_reason() {
        for (name, value, expected) in [
            ("acks", "1", "client.acks: must be all: otherwise an event that was not written by"),
            ("request.required.acks", "0", "must be all"),
            ("enable.idempotence", "false", "could be written twice, or out of order"),
            ("max.in.flight", "6", "must be at most 5"),
            ("max.in.flight.requests.per.connection", "100", "must be at most 5"),
            ("partitioner", "consistent_random", "where the Java client puts them"),
            ("enable.ssl.certificate.verification", "false", "anybody could be the broker"),
            ("sasl.password", "canary", "is set by the sink; set password"),
            ("message.timeout.ms", "1", "is set by the sink; set timeout"),
            ("delivery.report.only.error", "true", "each call would wait for ever"),
            ("enable.gapless.guarantee", "true", "must be false"),
            ("queuing.strategy", "lifo", "must be fifo: otherwise later events"),
            ("api.version.request", "false", "must be true"),
            ("log.queue", "true", "must be false"),
            ("log.connection.close", "false", "why a connection failed"),
            ("linger.ms", "20", "is set by the sink; set linger"),
            ("queue.buffering.max.kbytes", "1", "the pipeline's window bounds"),
            ("transactional.id", "canary", "set exactly_once and transactional_id"),
            ("isolation.level", "read_uncommitted", "nothing else is read"),
            ("enabled_events", "0", "has to hear of deliveries"),
            ("linger.msec", "canary", "librdkafka does not know it"),
            ("socket.timeout.ms", "canary", "librdkafka does not know it, or not the value"),
            // What only a program can set.
            ("dr_msg_cb", "1", "librdkafka does not know it, or not the value"),
            ("opaque", "1", "librdkafka does not know it, or not the value"),
            ("background_event_cb", "1", "librdkafka does not know it, or not the value"),
        ] {
            let found = problems(name, value);
            assert!(found.contains(expected), "{name}: {found}");
            assert!(!found.contains("canary"), "{found}");
        }
    }

    #[test]
    fn other_settings_are_passed_on() {
        for (name, value) in [
            ("acks", "all"),
            ("acks", "-1"),
            ("enable.idempotence", "TRUE"),
            ("max.in.flight", "1"),
            ("retry.backoff.ms", "20"),
            ("delivery.report.only.error", "false"),
            ("socket.keepalive.enable", "true"),
            ("client.rack", "a"),
        ] {
            assert_eq!(problems(name, value), "", "{name}");
            let mut config = ClientConfig::new();
            add(&[(name.to_owned(), Secret::new(value))], &mut config);
            assert_eq!(config.get(name), Some(value));
        }
    }
}
