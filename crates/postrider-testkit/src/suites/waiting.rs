//! Waiting with a deadline, so that what never happens is a failure and not a hang.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Longest time for something that is to happen. On a busy machine a broker may stand still for
/// a good part of it.
const DEADLINE: Duration = Duration::from_secs(60);
/// Longest time for a whole case, unless it says otherwise.
pub(super) const CASE_DEADLINE: Duration = Duration::from_secs(300);
/// How often a condition that nobody signals is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits for something that must happen.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    within_time(DEADLINE, what, future).await
}

/// Waits this long for something that must happen.
pub(crate) async fn within_time<T>(
    longest: Duration,
    what: &str,
    future: impl Future<Output = T>,
) -> T {
    match timeout(longest, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: did not happen within {longest:?}"),
    }
}

/// Waits until a condition holds, for what gives no signal.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < DEADLINE, "{what}: did not happen within {DEADLINE:?}");
        sleep(LOOK_EVERY).await;
    }
}

/// Lets everything else run for so many turns of the runtime.
pub(crate) async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
