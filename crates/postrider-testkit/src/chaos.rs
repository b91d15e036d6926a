//! Writers that take turns, relays that run and die, and the check of what came of both, with a
//! real PostgreSQL in between.
//!
//! The application is a [`Bank`]: each change of an account is a fact, which is written in the
//! same transaction as its event. So what was committed is read from the database at the end,
//! also where a writer never learned whether its commit worked. What arrived is what the
//! [`Target`] has taken. [`Bank::check`] holds the one against the other.

mod bank;
#[cfg(feature = "pattern")]
pub mod pattern;
mod process;
mod running;
mod target;
mod writers;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::future::{FutureExt as _, TryFutureExt as _, join_all};
use postrider_relay::sources::Progress;
use tokio::time::{Instant, sleep};

pub use self::bank::Bank;
pub use self::process::RelayProcess;
pub use self::running::{Running, Setup, StandingBy, cdc, spec};
pub use self::target::{Arrival, Target};
pub use self::writers::{Writers, Writing};

/// Longest time for something that is to happen.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Long enough to see that something does not happen.
pub const A_WHILE: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until a condition holds.
///
/// # Panics
///
/// If that takes longer than [`DEADLINE`].
pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < DEADLINE, "{what}: did not happen within {DEADLINE:?}");
        sleep(LOOK_EVERY).await;
    }
}

/// Runs a case for each way of keeping progress, at the same time.
///
/// # Panics
///
/// If one of them does; it is printed which.
#[expect(clippy::print_stdout, reason = "a test shows it when it fails")]
pub async fn for_each_progress(case: impl AsyncFn(Progress)) {
    let cases = Progress::ALL.map(|progress| {
        let case = AssertUnwindSafe(case(progress)).catch_unwind();
        case.inspect_err(move |_| println!("with progress {progress}:"))
    });
    for ended in join_all(cases).await {
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

/// The seed of a random run: that of `POSTRIDER_SEED`, or a new one. It is printed, so that the
/// run can be repeated as far as the machine allows.
#[expect(clippy::print_stdout, reason = "a test shows it when it fails")]
pub fn seed() -> u64 {
    let given = std::env::var("POSTRIDER_SEED").ok();
    let seed = given.map_or_else(|| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("POSTRIDER_SEED={seed}");
    seed
}
