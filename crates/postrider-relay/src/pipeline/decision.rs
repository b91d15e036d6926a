//! The one place where an error becomes an action.

use std::time::Duration;

use super::options::Retry;
use crate::failure::FailureKind;

/// What to do with an event that was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Keep it in its place and try again when the sink is back. No attempt is counted.
    Hold,
    /// Set it aside, so that others can be tried, and try again after this time. No attempt is
    /// counted.
    Postpone(Duration),
    /// Set it aside, count an attempt and try again after this time.
    Retry(Duration),
    /// Set it aside for an operator.
    Park,
    /// Stop the pipeline; an operator must act.
    Stop,
}

/// An event that is postponed waits as if it had failed this often before.
const POSTPONED_DOUBLINGS: u32 = 4;

/// Decides about an event that has now failed `attempts` times, this time included.
///
/// `outage` says that the sink is known to be in trouble as a whole, so that this failure tells
/// nothing about the event. `jitter` is any number; it spreads retries over time.
pub fn decide(
    kind: FailureKind,
    attempts: u32,
    retry: &Retry,
    outage: bool,
    jitter: u64,
) -> Action {
    match kind {
        FailureKind::Unavailable | FailureKind::Throttled => Action::Hold,
        FailureKind::Rejected => Action::Park,
        FailureKind::Failed if outage => {
            Action::Postpone(backoff(retry.initial, retry.max, POSTPONED_DOUBLINGS, jitter))
        }
        FailureKind::Failed if attempts >= retry.attempts => Action::Park,
        FailureKind::Failed => {
            Action::Retry(backoff(retry.initial, retry.max, attempts.saturating_sub(1), jitter))
        }
        FailureKind::Misconfigured => Action::Stop,
    }
}

/// The pause before try number `doublings + 2`: exponential, capped, and between half of that
/// and all of it.
pub fn backoff(initial: Duration, max: Duration, doublings: u32, jitter: u64) -> Duration {
    let factor = 1u32.checked_shl(doublings.min(31)).unwrap_or(u32::MAX);
    let full = initial.saturating_mul(factor).min(max);
    let half = full / 2;
    half + half.mul_f64(fraction(jitter))
}

/// Spreads any number over 0..1.
fn fraction(jitter: u64) -> f64 {
    // The finalizer of SplitMix64: nearby inputs, such as attempt numbers, come far apart.
    let mut z = jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry =
        Retry { attempts: 3, initial: Duration::from_secs(1), max: Duration::from_secs(60) };

    #[test]
    fn every_kind_has_its_action() {
        use FailureKind::{Failed, Misconfigured, Rejected, Throttled, Unavailable};
        let decide = |kind, attempts, outage| decide(kind, attempts, &RETRY, outage, 7);
        for attempts in 1..100 {
            assert_eq!(decide(Unavailable, attempts, false), Action::Hold);
            assert_eq!(decide(Throttled, attempts, false), Action::Hold);
            assert_eq!(decide(Rejected, attempts, true), Action::Park);
            assert_eq!(decide(Misconfigured, attempts, true), Action::Stop);
            assert!(matches!(decide(Failed, attempts, true), Action::Postpone(_)));
        }
        assert!(matches!(decide(Failed, 1, false), Action::Retry(_)));
        assert!(matches!(decide(Failed, 2, false), Action::Retry(_)));
        assert_eq!(decide(Failed, 3, false), Action::Park);
    }

    #[test]
    fn pauses_grow_to_the_cap_and_are_spread() {
        for doublings in 0..80 {
            let full = Duration::from_secs(1u64 << doublings.min(6)).min(RETRY.max);
            let pauses: Vec<_> = (0..50)
                .map(|jitter| backoff(RETRY.initial, RETRY.max, doublings, jitter))
                .collect();
            assert!(pauses.iter().all(|pause| (full / 2..=full).contains(pause)), "{pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "no spread");
        }
    }
}
