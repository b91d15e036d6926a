//! The pipeline suite over routes with real parts at both ends.

use std::process::ExitCode;

use postrider_testkit::harnesses::{sinks, sources};
use postrider_testkit::suites::{self, pipeline, trials};

fn main() -> ExitCode {
    let route = pipeline::backend(sources::memory::backend(), sinks::memory::backend());
    let mut all = trials(pipeline::cases(), route);
    #[cfg(feature = "postgres")]
    for reading in sources::postgres::Reading::ALL {
        let route = pipeline::backend(sources::postgres::backend(reading), sinks::file::backend());
        all.extend(trials(pipeline::cases(), route));
    }
    #[cfg(not(feature = "postgres"))]
    all.push(suites::not_built("postgres", "postgres"));
    #[cfg(feature = "sqlite")]
    for progress in postrider_relay::sources::Progress::ALL {
        let outbox = || sources::sqlite::backend(progress);
        let route = pipeline::backend(outbox(), sinks::file::backend());
        all.extend(trials(pipeline::cases(), route));
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
    suites::run(all)
}
