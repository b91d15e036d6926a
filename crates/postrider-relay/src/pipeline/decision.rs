//! The one place where an error becomes an action.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::options::Retry;
use crate::failure::{FailureKind, SinkError};

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

/// What is known about the sink when an event fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkIs {
    /// In trouble as a whole: the failure tells nothing about the event.
    Down,
    /// Well: it took other events since this one failed before.
    Well,
    /// Anything.
    Unknown,
}

/// Decides about an event that has now failed `attempts` times, this time included. `jitter` is
/// any number; it spreads retries over time.
pub fn decide(
    error: &SinkError,
    attempts: u32,
    retry: &Retry,
    sink: SinkIs,
    jitter: u64,
) -> Action {
    let pause = |doublings| backoff(retry.initial, retry.max, doublings, jitter);
    match (error.kind, sink) {
        (FailureKind::Misconfigured, _) => Action::Stop,
        // While everybody is refused, no event is: whatever the target says about it.
        (FailureKind::Failed | FailureKind::Refused | FailureKind::Rejected, SinkIs::Down) => {
            Action::Postpone(pause(POSTPONED_DOUBLINGS))
        }
        (FailureKind::Rejected, _) => Action::Park,
        // The sink asks to be spared this event only.
        (FailureKind::Throttled, SinkIs::Well) => {
            Action::Postpone(pause(POSTPONED_DOUBLINGS).max(error.retry_after.unwrap_or_default()))
        }
        (FailureKind::Unavailable | FailureKind::Throttled, SinkIs::Down | SinkIs::Unknown) => {
            Action::Hold
        }
        // A sink that is away for one event and there for others has trouble with that event.
        (FailureKind::Failed | FailureKind::Refused | FailureKind::Unavailable, _) => {
            match attempts >= retry.attempts {
                true => Action::Park,
                false => Action::Retry(pause(attempts.saturating_sub(1))),
            }
        }
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

/// A number that no other relay comes by, for a pause that they should not spend in step.
pub fn random_jitter() -> u64 {
    RandomState::new().hash_one(())
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
        use FailureKind::{Failed, Misconfigured, Refused, Rejected, Throttled, Unavailable};
        use SinkIs::{Down, Unknown, Well};
        let decide =
            |kind, attempts, sink| decide(&SinkError::new(kind, "no"), attempts, &RETRY, sink, 7);
        for attempts in 1..100 {
            for sink in [Down, Unknown, Well] {
                assert_eq!(decide(Misconfigured, attempts, sink), Action::Stop);
            }
            for sink in [Unknown, Well] {
                assert_eq!(decide(Rejected, attempts, sink), Action::Park);
            }
            for sink in [Down, Unknown] {
                assert_eq!(decide(Unavailable, attempts, sink), Action::Hold);
                assert_eq!(decide(Throttled, attempts, sink), Action::Hold);
            }
            assert!(matches!(decide(Throttled, attempts, Well), Action::Postpone(_)));
            for kind in [Failed, Refused, Rejected] {
                assert!(matches!(decide(kind, attempts, Down), Action::Postpone(_)));
            }
        }
        let counted = [
            (Failed, Unknown),
            (Failed, Well),
            (Refused, Unknown),
            (Refused, Well),
            (Unavailable, Well),
        ];
        for (kind, sink) in counted {
            assert!(matches!(decide(kind, 1, sink), Action::Retry(_)));
            assert!(matches!(decide(kind, 2, sink), Action::Retry(_)));
            assert_eq!(decide(kind, 3, sink), Action::Park);
        }
    }

    #[test]
    fn a_pause_that_one_event_is_asked_for_is_kept() {
        let asked = Duration::from_secs(500);
        let error = SinkError::new(FailureKind::Throttled, "no").with_retry_after(Some(asked));
        assert_eq!(decide(&error, 1, &RETRY, SinkIs::Well, 7), Action::Postpone(asked));
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
