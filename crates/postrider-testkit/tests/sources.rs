//! The source suite over every source.

use std::process::ExitCode;

use postrider_testkit::harnesses::sources;
use postrider_testkit::suites::{self, source, trials};

fn main() -> ExitCode {
    let mut all = trials(source::cases(), sources::memory::backend());
    #[cfg(feature = "postgres")]
    for reading in sources::postgres::Reading::ALL {
        all.extend(trials(source::cases(), sources::postgres::backend(reading)));
    }
    #[cfg(not(feature = "postgres"))]
    all.push(suites::not_built("postgres", "postgres"));
    #[cfg(feature = "sqlite")]
    for progress in postrider_relay::sources::Progress::ALL {
        all.extend(trials(source::cases(), sources::sqlite::backend(progress)));
    }
    #[cfg(not(feature = "sqlite"))]
    all.push(suites::not_built("sqlite", "sqlite"));
    suites::run(all)
}
