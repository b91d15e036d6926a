//! The pipeline suite over routes with real parts at both ends.

use std::process::ExitCode;

use postrider_testkit::harnesses::{sinks, sources};
use postrider_testkit::suites::{self, pipeline, trials};

fn main() -> ExitCode {
    let route = pipeline::backend(sources::memory::backend(), sinks::memory::backend());
    let mut all = trials(pipeline::cases(), route.clone());
    all.extend(trials(pipeline::pause_cases(), route));
    #[cfg(feature = "postgres")]
    for reading in sources::postgres::Reading::ALL {
        let route = pipeline::backend(sources::postgres::backend(reading), sinks::file::backend());
        all.extend(trials(pipeline::cases(), route.clone()));
        all.extend(trials(pipeline::pause_cases(), route));
    }
    #[cfg(not(feature = "postgres"))]
    all.push(suites::not_built("postgres", "postgres"));
    #[cfg(feature = "sqlite")]
    for progress in postrider_relay::sources::Progress::ALL {
        let outbox = || sources::sqlite::backend(progress);
        let route = pipeline::backend(outbox(), sinks::file::backend());
        all.extend(trials(pipeline::cases(), route.clone()));
        all.extend(trials(pipeline::pause_cases(), route));
        #[cfg(feature = "http")]
        {
            let route = pipeline::backend(outbox(), sinks::http::backend());
            all.extend(trials(pipeline::cases(), route));
        }
    }
    #[cfg(not(feature = "sqlite"))]
    all.push(suites::not_built("sqlite", "sqlite"));
    #[cfg(not(feature = "http"))]
    all.push(suites::not_built("http", "http"));
    #[cfg(feature = "kafka")]
    {
        all.extend(to_broker(&sinks::kafka::backend()));
        all.extend(to_broker(&sinks::kafka::exactly_once_backend()));
        let brief = pipeline::backend(sources::memory::backend(), sinks::kafka::brief_backend());
        all.extend(trials(pipeline::hang_up_cases(), brief));
    }
    #[cfg(not(feature = "kafka"))]
    all.push(suites::not_built("kafka", "kafka"));
    #[cfg(feature = "nats")]
    all.extend(to_broker(&sinks::nats::backend()));
    #[cfg(not(feature = "nats"))]
    all.push(suites::not_built("nats", "nats"));
    #[cfg(feature = "rabbitmq")]
    all.extend(to_broker(&sinks::rabbitmq::backend()));
    #[cfg(not(feature = "rabbitmq"))]
    all.push(suites::not_built("rabbitmq", "rabbitmq"));
    #[cfg(feature = "redis")]
    all.extend(to_broker(&sinks::redis::backend()));
    #[cfg(not(feature = "redis"))]
    all.push(suites::not_built("redis", "redis"));
    suites::run(all)
}

/// Every way of reading PostgreSQL, and SQLite, joined to a broker.
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn to_broker(
    target: &suites::Backend<suites::sink::Subject, suites::sink::TargetCapabilities>,
) -> Vec<libtest_mimic::Trial> {
    let mut outboxes = Vec::new();
    #[cfg(feature = "postgres")]
    {
        use sources::postgres::{Reading, backend};

        // It is the same way of reading as `Logged`, with another beginning.
        let readings = Reading::ALL.into_iter().filter(|it| *it != Reading::LoggedBefore);
        outboxes.extend(readings.map(backend));
    }
    #[cfg(feature = "sqlite")]
    outboxes.push(sources::sqlite::backend(postrider_relay::sources::Progress::Mark));
    let hang_ups = pipeline::backend(sources::memory::backend(), target.clone());
    let hang_ups = trials(pipeline::hang_up_cases(), hang_ups);
    let route = |outbox| trials(pipeline::cases(), pipeline::backend(outbox, target.clone()));
    outboxes.into_iter().flat_map(route).chain(hang_ups).collect()
}
