//! What happens to servers, networks and tables while relays and writers are at work: events are
//! late, and nothing else.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod postgres_faults {
    mod contents;
    mod failover;
    mod foreign;
    mod mapped;
    mod network;
    mod restore;
    mod server;
    mod settling;
    mod tables;
    mod transactions;
}

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::pipeline::{Options, Window};
use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{Bank, Running, Target, Writers, spec};

/// Some writers that go on whatever happens to their connections.
fn stubborn() -> Writers {
    let pause_max = Duration::from_millis(100);
    Writers { count: 5, pause_max, stubborn: true, ..Writers::default() }
}

/// Options with a window that is small enough to be filled.
fn options() -> Options {
    let window = Window { events_max: 64, ..Window::default() };
    Options { window, ..Options::default() }
}

/// A bank, where its events arrive, and the pipeline between them.
struct Line {
    bank: Arc<Bank>,
    target: Target,
    relay: Running,
}

impl Line {
    async fn start(bank: Arc<Bank>, url: &str, progress: Progress) -> Self {
        let target = Target::start().await;
        let relay = Running::start_lasting(&spec(url, progress), &target, options()).await;
        Self { bank, target, relay }
    }

    /// Checks that nothing is wrong and nothing came twice, and stops.
    async fn finish(self) {
        self.finish_after(0).await;
    }

    /// The same after the server was started anew so many times, each of which repeats no more
    /// than a window.
    async fn finish_after(self, restarts: usize) {
        let Self { bank, target, relay } = self;
        bank.check(&target, restarts * options().window.events_max).await;
        relay.stop().await;
    }
}
