//! Times and ages as the commands print them.

use std::time::SystemTime;

use jiff::{Timestamp, Unit};

pub(crate) use postrider_relay::amounts::age;

/// A time as RFC 3339 in UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let timestamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    let rounded = timestamp.round(Unit::Millisecond).unwrap_or(timestamp);
    format!("{rounded:.3}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_utc_to_the_millisecond() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_400);
        assert_eq!(rfc3339(time), "2023-11-14T22:13:20.123Z");
    }
}
