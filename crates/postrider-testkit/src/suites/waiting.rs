//! Waiting with a deadline, so that what never happens is a failure and not a hang.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Longest time for something that is to happen.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest time for a whole case.
const CASE_DEADLINE: Duration = Duration::from_secs(300);
/// How often a condition that nobody signals is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits for something that must happen.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(DEADLINE, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: did not happen within {DEADLINE:?}"),
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

pub(super) async fn within_case(case: impl Future<Output = ()>) {
    if timeout(CASE_DEADLINE, case).await.is_err() {
        panic!("the case did not end within {CASE_DEADLINE:?}");
    }
}

/// Lets everything else run for so many turns of the runtime.
pub(crate) async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
