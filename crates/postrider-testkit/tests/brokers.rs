//! The broker suite over every broker.

use std::process::ExitCode;

use postrider_testkit::harnesses::brokers;
use postrider_testkit::suites::{self, broker, trials};

/// Each case has a server of its own, and most of them work hard.
const CASES_AT_ONCE: usize = 2;

fn main() -> ExitCode {
    let mut all = Vec::new();
    #[cfg(feature = "kafka")]
    for backend in [brokers::kafka::backend(), brokers::kafka::exactly_once_backend()] {
        all.extend(trials(broker::cases(), backend));
    }
    #[cfg(not(feature = "kafka"))]
    all.push(suites::not_built("kafka", "kafka"));
    #[cfg(feature = "nats")]
    all.extend(trials(broker::cases(), brokers::nats::backend()));
    #[cfg(not(feature = "nats"))]
    all.push(suites::not_built("nats", "nats"));
    #[cfg(feature = "rabbitmq")]
    all.extend(trials(broker::cases(), brokers::rabbitmq::backend()));
    #[cfg(not(feature = "rabbitmq"))]
    all.push(suites::not_built("rabbitmq", "rabbitmq"));
    #[cfg(feature = "redis")]
    all.extend(trials(broker::cases(), brokers::redis::backend()));
    #[cfg(not(feature = "redis"))]
    all.push(suites::not_built("redis", "redis"));
    suites::run_at_once(CASES_AT_ONCE, all)
}
