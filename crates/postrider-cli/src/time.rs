//! Times and ages as the commands print them.

use std::time::SystemTime;

use jiff::{Timestamp, Unit};
use postrider_relay::config::parse_duration;

pub(crate) use postrider_relay::amounts::age;

/// A time as RFC 3339 in UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let timestamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    let rounded = timestamp.round(Unit::Millisecond).unwrap_or(timestamp);
    format!("{rounded:.3}")
}

/// Reads a time: `10m` for so long ago, or one of RFC 3339, such as `2026-01-31T03:00:00Z`.
pub(crate) fn parse_time(text: &str) -> Result<SystemTime, String> {
    if let Some(ago) = parse_duration(text) {
        let time = SystemTime::now().checked_sub(ago);
        return time.ok_or_else(|| "that is too long ago".to_owned());
    }
    let time: Result<Timestamp, _> = text.parse();
    time.map(SystemTime::from).map_err(|_| {
        "write how long ago, such as 10m or 2h, or a time such as 2026-01-31T03:00:00Z".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_read_from_now_or_from_a_calendar() {
        let ago = parse_time("10m").unwrap().elapsed().unwrap().as_secs();
        assert!((600..660).contains(&ago), "{ago}");
        let time = parse_time("1970-01-01T00:01:00+00:00").unwrap();
        assert_eq!(time, SystemTime::UNIX_EPOCH + Duration::from_secs(60));
        for wrong in ["", "yesterday", "10", "99999999999999d"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_utc_to_the_millisecond() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_400);
        assert_eq!(rfc3339(time), "2023-11-14T22:13:20.123Z");
    }
}
