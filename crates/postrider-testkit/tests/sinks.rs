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
    all.extend(trials(sink::cases(), sinks::memory::backend()));
    all.extend(trials(sink::cases(), sinks::stdout::backend()));
    suites::run(all)
}
