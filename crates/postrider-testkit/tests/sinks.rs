//! The sink suite over every sink.

use std::process::ExitCode;

use postrider_testkit::harnesses::sinks;
use postrider_testkit::suites::{self, sink, trials};

fn main() -> ExitCode {
    if let Some(served) = sinks::stdout::serve() {
        return served;
    }
    let mut all = trials(sink::cases(), sinks::file::backend());
    #[cfg(feature = "http")]
    all.extend(trials(sink::cases(), sinks::http::backend()));
    #[cfg(not(feature = "http"))]
    all.push(suites::not_built("http", "http"));
    #[cfg(feature = "kafka")]
    for backend in [sinks::kafka::backend(), sinks::kafka::exactly_once_backend()] {
        all.extend(trials(sink::cases(), backend));
    }
    #[cfg(not(feature = "kafka"))]
    all.push(suites::not_built("kafka", "kafka"));
    all.extend(trials(sink::cases(), sinks::memory::backend()));
    #[cfg(feature = "nats")]
    all.extend(trials(sink::cases(), sinks::nats::backend()));
    #[cfg(not(feature = "nats"))]
    all.push(suites::not_built("nats", "nats"));
    #[cfg(feature = "rabbitmq")]
    all.extend(trials(sink::cases(), sinks::rabbitmq::backend()));
    #[cfg(not(feature = "rabbitmq"))]
    all.push(suites::not_built("rabbitmq", "rabbitmq"));
    #[cfg(feature = "redis")]
    for backend in [sinks::redis::backend(), sinks::redis::plain_backend()] {
        all.extend(trials(sink::cases(), backend));
    }
    #[cfg(not(feature = "redis"))]
    all.push(suites::not_built("redis", "redis"));
    all.extend(trials(sink::cases(), sinks::stdout::backend()));
    suites::run(all)
}
