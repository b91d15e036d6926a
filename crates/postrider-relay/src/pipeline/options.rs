//! What can be chosen about a pipeline, with the defaults.

use std::time::Duration;

use crate::formats::Encoding;
use crate::shutdown::GRACE_DEFAULT;

/// How a pipeline behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is kept in order. Defaults to [`Ordering::Key`].
    pub ordering: Ordering,
    /// What happens to a key once one of its events is parked. Defaults to [`OnDead::Park`].
    pub on_dead: OnDead,
    /// How failed events are tried again.
    pub retry: Retry,
    /// How much may be in memory at a time.
    pub window: Window,
    /// What is sent for an event. Defaults to its bare payload.
    pub encoding: Encoding,
    /// Longest time for one call of the sink. Defaults to 30 s.
    pub publish_timeout: Duration,
    /// Longest time to finish what is under way after a stop was asked for. Defaults to 20 s.
    pub grace: Duration,
    /// With events waiting, the time without any delivery after which the pipeline reports that
    /// it makes no progress. Defaults to 30 s.
    pub stall_after: Duration,
    /// End once nothing is pending, instead of waiting for more. Defaults to false.
    pub drain: bool,
    /// Of how many shards of a pipeline this is one. Defaults to 1.
    pub shards: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ordering: Ordering::Key,
            on_dead: OnDead::Park,
            retry: Retry::default(),
            window: Window::default(),
            encoding: Encoding::default(),
            publish_timeout: Duration::from_secs(30),
            grace: GRACE_DEFAULT,
            stall_after: Duration::from_secs(30),
            drain: false,
            shards: 1,
        }
    }
}

/// What is kept in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// Events of one key.
    Key,
    /// Nothing.
    None,
}

/// What happens to a key once one of its events is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDead {
    /// Its later events wait behind the parked one.
    Park,
    /// Its later events flow on.
    Skip,
}

/// How failed events are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How often an event is tried before it is parked. Defaults to 10.
    pub attempts: u32,
    /// The pause after the first failure; it doubles with each further one. Defaults to 1 s.
    pub initial: Duration,
    /// The longest pause. Defaults to 5 min.
    pub max: Duration,
}

impl Retry {
    /// The longest time between the first try of an event and its last one, as long as the sink
    /// is there.
    pub fn horizon(&self) -> Duration {
        let mut pause = self.initial.min(self.max);
        let mut horizon = Duration::ZERO;
        for left in (1..self.attempts).rev() {
            if pause >= self.max {
                return horizon.saturating_add(self.max.saturating_mul(left));
            }
            horizon = horizon.saturating_add(pause);
            pause = pause.saturating_mul(2).min(self.max);
        }
        horizon
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 10, initial: Duration::from_secs(1), max: Duration::from_secs(300) }
    }
}

/// How much may be in memory at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Most events read and not settled. Defaults to 4096.
    pub events_max: usize,
    /// Most bytes of them. Defaults to 16 MiB.
    pub bytes_max: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { events_max: 4096, bytes_max: 16 * 1024 * 1024 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_horizon_is_the_sum_of_all_pauses() {
        let horizon = |attempts, initial, max| {
            let (initial, max) = (Duration::from_secs(initial), Duration::from_secs(max));
            Retry { attempts, initial, max }.horizon().as_secs()
        };
        assert_eq!(horizon(1, 1, 60), 0);
        assert_eq!(horizon(2, 1, 60), 1);
        assert_eq!(horizon(4, 1, 60), 1 + 2 + 4);
        assert_eq!(horizon(6, 1, 3), 1 + 2 + 3 + 3 + 3);
        assert_eq!(horizon(3, 9, 9), 18);
        assert_eq!(Retry::default().horizon().as_secs(), 511);
        assert!(horizon(u32::MAX, 1, 86_400) > 1 << 40);
    }
}
