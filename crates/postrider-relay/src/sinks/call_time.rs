//! How the time of a call is divided between connecting and waiting for an answer.
//!
//! A call that takes longer than the pipeline's `timeout` is given up, and that is a failure of its
//! events, which counts an attempt. An outage must not count any (G-06), so a broker that is away or
//! silent has to be noticed before. What is not given is therefore cut to what a call has, and what
//! is given and does not fit is a mistake.

use std::time::Duration;

use super::Problem;

/// What a call has if nothing is known of the pipeline: the default of `timeout`.
const CALL_DEFAULT: Duration = Duration::from_secs(30);
const CONNECT_DEFAULT: Duration = Duration::from_secs(5);
const ANSWER_DEFAULT: Duration = Duration::from_secs(10);

/// What the options say about it.
pub(super) struct CallTime {
    /// The longest time of a call, if it is known.
    pub(super) call: Option<Duration>,
    /// How many servers are tried one after another.
    pub(super) servers: usize,
    /// The option `connect_timeout`, for each of them.
    pub(super) connect: Option<Duration>,
    /// The name of the option for an answer, and its value.
    pub(super) answer: (&'static str, Option<Duration>),
    /// An option whose time comes on top of that, if there is one.
    pub(super) besides: Option<(&'static str, Duration)>,
}

impl CallTime {
    /// Longest time to connect to a server: 5 s, but for all servers together never more than half
    /// of a call.
    pub(super) fn connect(&self) -> Duration {
        let servers = u32::try_from(self.servers.max(1)).unwrap_or(u32::MAX);
        self.connect.unwrap_or(CONNECT_DEFAULT.min(self.to_divide() / 2 / servers))
    }

    /// Longest time for an answer: 10 s, but never more than a third of a call.
    pub(super) fn answer(&self) -> Duration {
        self.answer.1.unwrap_or(ANSWER_DEFAULT.min(self.to_divide() / 3))
    }

    /// The mistake of options by which an outage would not be noticed before a call is over.
    pub(super) fn problem(&self) -> Option<Problem> {
        let call = self.call?;
        let servers = u32::try_from(self.servers).unwrap_or(u32::MAX);
        let connecting = self.connect().saturating_mul(servers);
        let total = connecting.saturating_add(self.answer()).saturating_add(self.besides());
        if total < call {
            return None;
        }
        let (answer, given) = self.answer;
        let mut parts = vec![match self.servers {
            1 => format!("connect_timeout ({:?})", self.connect()),
            many => format!("connect_timeout for {many} servers ({connecting:?})"),
        }];
        parts.push(format!("{answer} ({:?})", self.answer()));
        parts.extend(self.besides.map(|(option, time)| format!("{option} ({time:?})")));
        let option = match (given, self.connect, self.besides) {
            (Some(_), ..) => answer,
            (None, Some(_), _) => "connect_timeout",
            (None, None, Some((option, _))) => option,
            (None, None, None) => "timeout",
        };
        let message = format!(
            "leaves a call no time to notice an outage: {} together are {total:?}, and timeout is \
             {call:?}",
            parts.join(" and ")
        );
        let enough = total.as_secs().saturating_add(1);
        let hint = format!("make them shorter, or set timeout = \"{enough}s\" or more");
        Some(Problem::new(option, message).with_hint(hint))
    }

    /// What comes on top of the time for an answer.
    pub(super) fn besides(&self) -> Duration {
        self.besides.map_or(Duration::ZERO, |(_, time)| time)
    }

    fn to_divide(&self) -> Duration {
        self.call.unwrap_or(CALL_DEFAULT).saturating_sub(self.besides())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn time(call: Duration, servers: usize) -> CallTime {
        CallTime {
            call: Some(call),
            servers,
            connect: None,
            answer: ("ack_timeout", None),
            besides: None,
        }
    }

    #[test]
    fn what_is_not_given_always_fits() {
        for milliseconds in [1, 10, 999, 5000, 24_999, 30_000, 3_600_000] {
            for servers in [1, 2, 3, 4, 7, 100] {
                let time = time(Duration::from_millis(milliseconds), servers);
                assert_eq!(time.problem(), None, "{milliseconds} ms, {servers} servers");
                assert!(!time.connect().is_zero() && !time.answer().is_zero());
                assert!(time.connect() <= 5 * SECOND && time.answer() <= 10 * SECOND);
            }
        }
        let usual = time(30 * SECOND, 3);
        assert_eq!((usual.connect(), usual.answer()), (5 * SECOND, 10 * SECOND));
        let unknown = CallTime { call: None, ..time(SECOND, 1) };
        assert_eq!((unknown.connect(), unknown.answer()), (5 * SECOND, 10 * SECOND));
        let waiting = CallTime { besides: Some(("wait_timeout", SECOND)), ..time(2 * SECOND, 1) };
        assert_eq!(waiting.problem(), None);
    }

    #[test]
    fn what_does_not_fit_is_named_with_both_values() {
        let long = CallTime { answer: ("ack_timeout", Some(15 * SECOND)), ..time(30 * SECOND, 3) };
        assert_eq!(
            long.problem().unwrap().to_string(),
            "ack_timeout: leaves a call no time to notice an outage: connect_timeout for 3 servers \
             (15s) and ack_timeout (15s) together are 30s, and timeout is 30s; make them shorter, \
             or set timeout = \"31s\" or more"
        );
        let slow = CallTime { connect: Some(Duration::MAX), ..time(30 * SECOND, 2) };
        assert_eq!(slow.problem().unwrap().option, "connect_timeout");
        let waiting = CallTime { besides: Some(("wait_timeout", SECOND)), ..time(SECOND, 1) };
        let problem = waiting.problem().unwrap();
        assert_eq!(problem.option, "wait_timeout");
        assert!(problem.message.contains("wait_timeout (1s) together are"), "{problem}");
        // Of a pipeline that is not known nothing can be said.
        assert_eq!(CallTime { call: None, ..long }.problem(), None);
    }
}
