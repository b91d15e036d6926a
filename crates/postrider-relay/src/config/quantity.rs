//! Durations such as `500ms` and sizes such as `16MiB`, as people write them.

use std::time::Duration;

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(60 * 60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const DURATION_UNITS_MS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: [(&str, u64); 4] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Reads `500ms`, `5s`, `2m`, `1h` or `7d`.
pub fn duration(text: &str) -> Option<Duration> {
    quantity(text, &DURATION_UNITS_MS).map(Duration::from_millis)
}

/// Reads `512`, `64KiB`, `16MiB` or `1GiB`.
pub fn size(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| quantity(text, &SIZE_UNITS))
}

/// Writes a duration in the largest unit that divides it.
pub(super) fn show_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    show(ms, &DURATION_UNITS_MS)
}

/// Writes a size in the largest unit that divides it.
pub(super) fn show_size(bytes: u64) -> String {
    show(bytes, &SIZE_UNITS)
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn show(value: u64, units: &[(&str, u64)]) -> String {
    let largest = units.iter().rev().find(|(_, factor)| value > 0 && value.is_multiple_of(*factor));
    let (unit, factor) = largest.unwrap_or(&units[0]);
    format!("{}{unit}", value / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, ms) in [
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "1.5s",
            "-1s",
            "5 weeks",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
        assert_eq!(show_duration(Duration::from_millis(1_500)), "1500ms");
        assert_eq!(show_duration(Duration::from_secs(120)), "2m");
        assert_eq!(show_duration(Duration::ZERO), "0ms");
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("512", 512),
            ("512B", 512),
            ("64KiB", 65_536),
            ("16 MiB", 16_777_216),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "16MB", "-1", "99999999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(show_size(16 << 20), "16MiB");
        assert_eq!(show_size(1_000), "1000B");
    }
}
