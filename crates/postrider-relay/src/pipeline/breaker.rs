//! The circuit breaker: knows when the sink as a whole is in trouble.
//!
//! ```text
//!            unavailable, throttled, or failures
//!            of several lanes in a row
//!   Closed ───────────────────────────────────▶ Open
//!     ▲                                        │   ▲
//!     │ a success                     time over│   │ a failure
//!     │                                        ▼   │
//!     └──────────────────────────────────── Probing
//! ```
//!
//! While it is not closed, failures say nothing about single events, so no attempt is counted.
//!
//! An endpoint that answers every event with an error, or refuses every event, looks, event by
//! event, like many bad events. So [`OUTAGE_LANES`] failures or refusals of different lanes without
//! a success between them are taken for an outage, too. To tell the two apart again, each fruitless
//! round of probing lets twice as many events through: among bad ones, a good one is soon found.
//! And if the same few lanes fail again and again, with fewer than [`OUTAGE_LANES`] of them left, it
//! is they that are bad: the others may have been parked, or discarded. A sink that could not be
//! reached, on the other hand, is back as soon as it answers anything, be it an error.

use std::time::Duration;

use super::decision::backoff;

/// Failures of so many different lanes, without a success between them, are an outage.
pub const OUTAGE_LANES: usize = 10;
/// When a lane has failed so often in an outage, and few others have, no others are left. The pauses of
/// two lanes differ by a factor of two at most, and the breaker's come on top, so a lane that fails so
/// often has given every other one its turn.
const TURNS: u32 = 10;

/// How many lanes are an outage where a pipeline has so many shards. Each shard knows its own lanes
/// alone, and all of them together are to park few events.
pub fn outage_lanes(shards: u32) -> usize {
    OUTAGE_LANES.div_ceil(usize::try_from(shards).unwrap_or(usize::MAX).max(1)).max(2)
}
/// The first pause of an outage.
const PAUSE_INITIAL: Duration = Duration::from_millis(250);
/// The longest pause of an outage: so long recovery may go unnoticed.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// The pause when the sink asks to slow down and does not say for how long.
const THROTTLE_DEFAULT: Duration = Duration::from_secs(1);
/// The longest pause that a sink can ask for.
const THROTTLE_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    /// Rounds without a success since the breaker opened.
    rounds: u32,
    probes: usize,
    /// Lanes that failed since the last success.
    streak: Vec<u64>,
    /// Lanes that failed while everything did, and how often: fewer of them than are an outage.
    again: Vec<(u64, u32)>,
    /// Failures of so many lanes are an outage.
    outage_lanes: usize,
    seed: u64,
}

/// Most events that are sent while the sink is in trouble.
pub(super) const PROBES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: Duration,
        /// The sink asked for this pause, so that no other answer shortens it.
        asked: bool,
    },
    Probing,
}

impl Breaker {
    pub(super) fn new(seed: u64, outage_lanes: usize) -> Self {
        let (state, streak, again) = (State::Closed, Vec::new(), Vec::new());
        Self { state, rounds: 0, probes: 1, streak, again, outage_lanes, seed }
    }

    fn closed(&self) -> Self {
        Self::new(self.seed, self.outage_lanes)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// When to look again, if the breaker is open.
    pub(super) fn opens_at(&self) -> Option<Duration> {
        match self.state {
            State::Open { until, .. } => Some(until),
            State::Closed | State::Probing => None,
        }
    }

    /// How many more events may be sent now.
    pub(super) fn allowance(&mut self, now: Duration, in_flight: usize) -> usize {
        if matches!(self.state, State::Open { until, .. } if now >= until) {
            self.state = State::Probing;
        }
        match self.state {
            State::Closed => usize::MAX,
            State::Open { .. } => 0,
            State::Probing => self.probes.saturating_sub(in_flight),
        }
    }

    /// The sink took an event.
    pub(super) fn answered(&mut self, now: Duration) {
        match self.state {
            State::Open { until, asked: true } if now < until => self.streak.clear(),
            State::Open { .. } | State::Closed | State::Probing => *self = self.closed(),
        }
    }

    /// An event can never be accepted: that says nothing about others. Only a sink that could not
    /// be reached is back with it.
    pub(super) fn rejected(&mut self, now: Duration) {
        if self.state == State::Probing && self.streak.len() < self.outage_lanes {
            self.answered(now);
        }
    }

    pub(super) fn unavailable(&mut self, now: Duration) {
        if !matches!(self.state, State::Open { .. }) {
            self.open(now);
        }
    }

    pub(super) fn throttled(&mut self, now: Duration, retry_after: Option<Duration>) {
        // Never no pause at all, whatever the sink says.
        let least = self.pause();
        let pause = retry_after.unwrap_or(THROTTLE_DEFAULT).clamp(least, THROTTLE_MAX);
        let until = self.opens_at().map_or(now + pause, |until| until.max(now + pause));
        self.state = State::Open { until, asked: true };
    }

    /// An event of this lane failed or was refused. True if that is part of an outage.
    pub(super) fn failed(&mut self, lane: u64, now: Duration) -> bool {
        let everything_fails = self.streak.len() >= self.outage_lanes;
        let may_close = matches!(self.state, State::Open { asked: false, .. } | State::Probing);
        if everything_fails && may_close && self.are_few_left(lane) {
            let streak = self.again.drain(..).map(|(lane, _)| lane).collect();
            *self = Self { streak, ..self.closed() };
            return false;
        }
        match self.state {
            State::Open { .. } => return true,
            State::Probing if everything_fails => {
                self.probes = (self.probes * 2).min(PROBES_MAX);
                self.open(now);
                return true;
            }
            State::Probing => self.state = State::Closed,
            State::Closed => {}
        }
        if !self.streak.contains(&lane) {
            self.streak.push(lane);
        }
        if self.streak.len() < self.outage_lanes {
            return false;
        }
        self.open(now);
        true
    }

    /// Notes a failure while everything fails. True if that is because only a few lanes are left.
    fn are_few_left(&mut self, lane: u64) -> bool {
        let turns = match self.again.iter_mut().find(|(known, _)| *known == lane) {
            Some((_, turns)) => {
                *turns += 1;
                *turns
            }
            None => {
                self.again.push((lane, 1));
                1
            }
        };
        if self.again.len() >= self.outage_lanes {
            self.again.clear();
            return false;
        }
        turns >= TURNS
    }

    fn open(&mut self, now: Duration) {
        self.state = State::Open { until: now + self.pause(), asked: false };
    }

    /// The next pause of an outage.
    fn pause(&mut self) -> Duration {
        let jitter = self.seed.wrapping_add(self.rounds.into());
        let pause = backoff(PAUSE_INITIAL, PAUSE_MAX, self.rounds, jitter);
        self.rounds = self.rounds.saturating_add(1);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn an_outage_opens_it_probes_follow_and_a_success_closes_it() {
        let mut breaker = Breaker::new(1, OUTAGE_LANES);
        assert_eq!(breaker.allowance(ms(0), 0), usize::MAX);
        breaker.unavailable(ms(0));
        assert_eq!(breaker.allowance(ms(1), 0), 0);
        assert_eq!(breaker.allowance(ms(250), 0), 1, "one probe");
        assert_eq!(breaker.allowance(ms(250), 1), 0, "and no second one beside it");
        breaker.unavailable(ms(251));
        assert_eq!(breaker.allowance(ms(252), 0), 0);
        assert!(breaker.opens_at().unwrap() >= ms(251 + 250), "the pause has doubled");
        assert_eq!(breaker.allowance(ms(800), 0), 1);
        breaker.answered(ms(801));
        assert!(breaker.is_closed());
    }

    #[test]
    fn failures_of_one_lane_are_no_outage_but_of_many_lanes_are() {
        let mut breaker = Breaker::new(1, OUTAGE_LANES);
        for _ in 0..1000 {
            assert!(!breaker.failed(1, ms(0)));
        }
        for lane in 2..OUTAGE_LANES as u64 {
            assert!(!breaker.failed(lane, ms(0)));
        }
        assert!(breaker.failed(99, ms(0)));
        assert!(!breaker.is_closed());
    }

    #[test]
    fn an_event_that_can_never_be_accepted_neither_ends_an_outage_nor_a_streak() {
        let mut breaker = Breaker::new(1, OUTAGE_LANES);
        for lane in 0..OUTAGE_LANES as u64 {
            assert!(breaker.is_closed());
            breaker.rejected(ms(0));
            breaker.failed(lane, ms(0));
        }
        assert!(!breaker.is_closed());
        assert_eq!(breaker.allowance(PAUSE_MAX, 0), 1);
        breaker.rejected(PAUSE_MAX);
        assert!(!breaker.is_closed());
        assert_eq!(breaker.allowance(PAUSE_MAX, 0), 1, "another one is tried at once");
        let mut away = Breaker::new(1, OUTAGE_LANES);
        away.unavailable(ms(0));
        assert_eq!(away.allowance(PAUSE_MAX, 0), 1);
        away.rejected(PAUSE_MAX);
        assert!(away.is_closed(), "whoever rejects is there");
    }

    #[test]
    fn fruitless_rounds_of_failures_let_more_probes_through() {
        let mut breaker = Breaker::new(1, OUTAGE_LANES);
        for lane in 0..OUTAGE_LANES as u64 {
            breaker.failed(lane, ms(0));
        }
        let mut probes = Vec::new();
        let mut now = ms(0);
        for lane in 0..8 {
            now += PAUSE_MAX;
            probes.push(breaker.allowance(now, 0));
            breaker.failed(lane, now);
        }
        assert_eq!(probes, [1, 2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn the_few_lanes_that_are_left_are_bad_themselves() {
        let mut breaker = Breaker::new(1, OUTAGE_LANES);
        let mut now = ms(0);
        let mut fails = |breaker: &mut Breaker, lane| {
            now += PAUSE_MAX;
            breaker.allowance(now, 0);
            breaker.failed(lane, now)
        };
        for lane in 0..OUTAGE_LANES as u64 {
            fails(&mut breaker, lane);
        }
        // As long as there are many, it is an outage, however long it takes.
        for lane in 0..100 * OUTAGE_LANES as u64 {
            assert!(fails(&mut breaker, lane % OUTAGE_LANES as u64), "{lane}");
        }
        for turn in 1..TURNS {
            assert!(fails(&mut breaker, 1) && fails(&mut breaker, 2), "turn {turn}");
        }
        assert!(!fails(&mut breaker, 1));
        assert!(breaker.is_closed());
        assert!(!fails(&mut breaker, 2), "and so on");
    }

    /// Lanes come back after different pauses, so that some fail more often than others.
    #[test]
    fn ten_lanes_that_fail_at_their_own_pace_are_an_outage_for_as_long_as_it_takes() {
        const PAUSE: u64 = 16_000;
        for lanes in [10, 12, 15] {
            let mut breaker = Breaker::new(1, OUTAGE_LANES);
            let mut random = 7_u64;
            let mut due: Vec<u64> = vec![0; lanes];
            let mut now = 0;
            let mut counted = 0;
            for round in 0..20_000 {
                let allowance = breaker.allowance(ms(now), 0);
                let ready: Vec<usize> = (0..lanes).filter(|lane| due[*lane] <= now).collect();
                for lane in ready.into_iter().take(allowance) {
                    counted += u32::from(!breaker.failed(lane as u64, ms(now)));
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    due[lane] = now + PAUSE / 2 + (random >> 33) % (PAUSE / 2);
                }
                if round == 10 {
                    // The first nine lanes count before it is known that everything fails.
                    counted = 0;
                }
                now += 250;
            }
            assert_eq!(counted, 0, "{lanes} lanes");
        }
    }

    #[test]
    fn shards_know_fewer_lanes_each() {
        let lanes = [1, 2, 4, 16, 256].map(outage_lanes);
        assert_eq!(lanes, [10, 5, 3, 2, 2]);
    }

    #[test]
    fn a_sink_that_was_away_is_back_once_it_answers_even_with_an_error() {
        let mut breaker = Breaker::new(1, OUTAGE_LANES);
        breaker.unavailable(ms(0));
        assert!(breaker.failed(1, ms(1)), "an old answer tells nothing");
        assert_eq!(breaker.allowance(ms(300), 0), 1);
        assert!(!breaker.failed(1, ms(301)));
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_throttled_sink_is_left_alone_as_long_as_it_asks() {
        let mut breaker = Breaker::new(1, OUTAGE_LANES);
        breaker.throttled(ms(0), Some(ms(5000)));
        breaker.throttled(ms(10), Some(ms(20)));
        breaker.answered(ms(30));
        assert_eq!(breaker.allowance(ms(4999), 0), 0, "an older answer does not shorten it");
        assert_eq!(breaker.allowance(ms(5000), 0), 1);
        breaker.answered(ms(5001));
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_sink_that_asks_for_no_pause_gets_one_that_grows() {
        let mut breaker = Breaker::new(1, OUTAGE_LANES);
        let mut now = ms(0);
        let pauses: Vec<Duration> = (0..6)
            .map(|_| {
                breaker.throttled(now, Some(ms(0)));
                let pause = breaker.opens_at().unwrap() - now;
                now += pause;
                assert_eq!(breaker.allowance(now, 0), 1);
                pause
            })
            .collect();
        assert!(pauses[0] >= ms(125) && pauses[5] >= 8 * pauses[0], "{pauses:?}");
    }
}
