//! The consumer suite over every broker.

use std::process::ExitCode;

use postrider_testkit::harnesses::consumers;
use postrider_testkit::suites::{self, consumer, trials};

/// Each case has several consumers, with a dozen connections.
const CASES_AT_ONCE: usize = 4;

fn main() -> ExitCode {
    let mut all = Vec::new();
    #[cfg(feature = "kafka")]
    all.extend(trials(consumer::cases(), consumers::kafka::backend()));
    #[cfg(not(feature = "kafka"))]
    all.push(suites::not_built("kafka", "kafka"));
    #[cfg(feature = "nats")]
    all.extend(trials(consumer::cases(), consumers::nats::backend()));
    #[cfg(not(feature = "nats"))]
    all.push(suites::not_built("nats", "nats"));
    #[cfg(feature = "rabbitmq")]
    all.extend(trials(consumer::cases(), consumers::rabbitmq::backend()));
    #[cfg(not(feature = "rabbitmq"))]
    all.push(suites::not_built("rabbitmq", "rabbitmq"));
    #[cfg(feature = "redis")]
    all.extend(trials(consumer::cases(), consumers::redis::backend()));
    #[cfg(not(feature = "redis"))]
    all.push(suites::not_built("redis", "redis"));
    all.extend(trials(consumer::cases(), consumers::stored::backend()));
    suites::run_at_once(CASES_AT_ONCE, all)
}
