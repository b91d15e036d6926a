//! Times as databases keep them: RFC 3339 text in UTC.
//!
//! What is written here has six fractional digits and `Z`, so that text sorts as time does.
//! What is read may come from a writer in any language, with any offset and precision.

use std::time::SystemTime;

use jiff::Timestamp;

/// 0000-01-01T00:00:00Z: RFC 3339 has no earlier year.
const MIN: Timestamp = Timestamp::constant(-62_167_219_200, 0);

/// The text is not a time that RFC 3339 can say.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text:?} is not an RFC 3339 time such as 2026-01-31T23:59:59.123456Z")]
pub struct InvalidTimestamp {
    text: String,
    #[source]
    source: jiff::Error,
}

/// Writes a time with six fractional digits; finer ones are cut off. A time that is not
/// [`representable`] becomes the nearest one that is.
pub fn to_text(time: SystemTime) -> String {
    let nearest = if time < SystemTime::UNIX_EPOCH { MIN } else { Timestamp::MAX };
    format!("{:.6}", from_system_time(time).unwrap_or(nearest))
}

/// Reads a time, to the nanosecond.
pub fn from_text(text: &str) -> Result<SystemTime, InvalidTimestamp> {
    match text.parse::<Timestamp>() {
        Ok(timestamp) => Ok(timestamp.into()),
        Err(source) => Err(InvalidTimestamp { text: text.chars().take(64).collect(), source }),
    }
}

/// Whether a time lies in the years 0 to 9999, which is what the text can say.
pub fn representable(time: SystemTime) -> bool {
    from_system_time(time).is_some()
}

fn from_system_time(time: SystemTime) -> Option<Timestamp> {
    Timestamp::try_from(time).ok().filter(|timestamp| *timestamp >= MIN)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn text_has_six_digits_and_sorts_as_time_does() {
        let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let later = whole + Duration::from_nanos(1_999);
        assert_eq!(to_text(whole), "2001-09-09T01:46:40.000000Z");
        assert_eq!(to_text(later), "2001-09-09T01:46:40.000001Z");
        assert_eq!(to_text(SystemTime::UNIX_EPOCH - DAY), "1969-12-31T00:00:00.000000Z");
    }

    #[test]
    fn any_rfc_3339_is_read_without_loss() {
        let expected = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        for text in ["2001-09-09T01:46:40.123456789Z", "2001-09-09T03:46:40.123456789+02:00"] {
            assert_eq!(from_text(text).unwrap(), expected, "{text}");
        }
        let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert_eq!(from_text("2001-09-09T01:46:40Z").unwrap(), whole);
        assert_eq!(from_text(&to_text(whole)).unwrap(), whole);
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "yesterday", "2001-09-09", "2001-09-09T01:46:40", "2001-13-09T01:46:40Z"] {
            let message = from_text(text).unwrap_err().to_string();
            assert!(message.contains("is not an RFC 3339 time"), "{message}");
        }
    }

    #[test]
    fn a_time_beyond_all_calendars_becomes_the_nearest() {
        let far = SystemTime::UNIX_EPOCH + DAY * 365 * 100_000;
        let old = SystemTime::UNIX_EPOCH - DAY * 365 * 5_000;
        assert!(!representable(far) && !representable(old));
        assert!(to_text(far).starts_with("9999-12-30"));
        assert_eq!(to_text(old), "0000-01-01T00:00:00.000000Z");
        assert!(representable(SystemTime::now()));
    }
}
