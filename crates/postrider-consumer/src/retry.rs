//! When a handler that failed is tried again.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// How often and when a handler is tried again. Defaults to 10 attempts in half a minute to a
/// minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How often a handler is tried before its event becomes a dead letter. Defaults to 10.
    pub attempts_max: u32,
    /// The first pause; each further one is twice as long. Defaults to 100 ms.
    pub pause_min: Duration,
    /// The longest pause. Defaults to 30 s.
    pub pause_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts_max: 10,
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_secs(30),
        }
    }
}

impl Retry {
    /// The pause after so many attempts, with jitter: at least half of it.
    pub(crate) fn pause(&self, attempts: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(attempts.saturating_sub(1));
        let pause = self.pause_min.saturating_mul(doubled).min(self.pause_max);
        // From 0 to 1; the keys of each hasher are random.
        let random = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        pause.mul_f64(0.5 + random / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let retry = Retry::default();
        for (attempts, millis) in [(1, 100), (2, 200), (5, 1_600), (9, 25_600), (10, 30_000)] {
            let longest = Duration::from_millis(millis);
            for pause in [retry.pause(attempts), retry.pause(attempts)] {
                assert!(pause >= longest / 2 && pause <= longest, "{attempts}: {pause:?}");
            }
        }
        assert!(retry.pause(u32::MAX) <= retry.pause_max);
    }
}
