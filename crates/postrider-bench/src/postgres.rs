//! PostgreSQL by polling: how fast a backlog is drained, how late an event is, what rows that stay
//! in the table cost, and what writing events costs the application. The same by log tailing, as
//! far as it differs.
//!
//! Each part is measured on a server that is started for it. Whatever is compared is measured in
//! turn, several times, and the figure is the median: the machine has other work too.

mod backlog;
pub(crate) mod bench_source;
mod copy;
mod cpu;
mod drain;
mod idle;
mod kept;
mod latency;
mod load;
pub(crate) mod log;
mod relay;
mod server;
mod textbook;
mod writers;

use std::time::Duration;

use self::server::{Server, WalLevel};
use crate::Outcome;
use crate::report::Report;

/// The variable that scales all sizes: rows of a backlog.
const ROWS_VARIABLE: &str = "POSTRIDER_BENCH_ROWS";
const ROWS: u64 = 500_000;
const ROUNDS: usize = 3;

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Drain,
    Latency,
    Kept,
    Large,
    Log,
    Writers,
}

impl Part {
    const ALL: [Self; 6] =
        [Self::Drain, Self::Latency, Self::Kept, Self::Writers, Self::Log, Self::Large];

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Latency => "latency",
            Self::Kept => "kept",
            Self::Large => "large",
            Self::Log => "log",
            Self::Writers => "writers",
        }
    }

    fn wal_level(self) -> WalLevel {
        match self {
            Self::Drain | Self::Latency | Self::Kept | Self::Writers => WalLevel::Replica,
            Self::Large | Self::Log => WalLevel::Logical,
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Rows of a backlog.
    backlog: u64,
}

impl Sizes {
    fn from_environment() -> Outcome<Self> {
        let backlog = match std::env::var(ROWS_VARIABLE) {
            Err(_) => ROWS,
            Ok(text) => text.parse().map_err(|_| format!("{ROWS_VARIABLE} is not a number"))?,
        };
        // Rows are written a thousand at a time.
        Ok(Self { backlog: backlog.next_multiple_of(1000).max(10_000) })
    }

    /// Only figures of the full size can be compared, and are kept.
    fn are_full(self) -> bool {
        self.backlog == ROWS
    }

    /// Rows that the textbook's relay publishes of it: it is slow, and its rate does not depend
    /// on how many they are.
    fn textbook(self) -> u64 {
        self.backlog / 10
    }

    /// Published rows that stay in the table.
    fn kept(self) -> u64 {
        self.backlog * 20
    }

    /// Events that are read from the log.
    fn logged(self) -> u64 {
        self.backlog * 2
    }

    /// How long something is watched that takes so many seconds in full.
    fn seconds(self, full: u64) -> Duration {
        Duration::from_secs((full * self.backlog / ROWS).clamp(2, full))
    }
}

/// Runs one part, or all. True if every target was reached.
pub(crate) fn run(part: Option<Part>) -> Outcome<bool> {
    let sizes = Sizes::from_environment()?;
    // As the binary has it.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut reached = true;
        for part in Part::ALL.into_iter().filter(|one| part.is_none_or(|part| part == *one)) {
            let server = Server::start(part.wal_level()).await?;
            let on = server.describe().await?;
            let report = match part {
                Part::Drain => drain::run(&server, sizes).await?,
                Part::Latency => latency::run(&server, sizes).await?,
                Part::Kept => kept::run(&server, sizes).await?,
                Part::Large => log::run_large(&server, sizes).await?,
                Part::Log => log::run(&server, sizes).await?,
                Part::Writers => writers::run(&server, sizes).await?,
            };
            reached &= finish(report, sizes, &on)?;
        }
        Ok(reached)
    })
}

fn finish(report: Report, sizes: Sizes, on: &str) -> Outcome<bool> {
    if sizes.are_full() {
        return report.keep(Some(on));
    }
    println!("  (not kept: {ROWS_VARIABLE} is set)");
    Ok(report.forget())
}
