//! Times, sizes and numbers in words.

use std::time::Duration;

/// A time in its two largest units: `3d 4h`, `12s`.
pub fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// A number of bytes in the largest unit that fits: `512 B`, `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (bytes as f64, None);
    for larger in units {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, Some(larger));
    }
    match unit {
        None => format!("{bytes} B"),
        Some(unit) => format!("{size:.1} {unit}"),
    }
}

/// A number as people read it: thousands apart, decimals only where they say something.
pub fn number(value: f64) -> String {
    if value.abs() < 100.0 && value.fract() != 0.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// The value below which this part of all values lies, which are sorted; `None` of no values.
pub fn percentile<T: Copy>(sorted: &[T], part: f64) -> Option<T> {
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        let ages = [0, 59, 61, 3_600, 90_061].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0s", "59s", "1m 1s", "1h 0m", "1d 1h"]);
    }

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        let sizes = [0, 1023, 1536, 16 << 20, 10 << 30, 5000 << 40].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.5 KiB", "16.0 MiB", "10.0 GiB", "5000.0 TiB"]);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(1_234_567.8), "1 234 568");
        assert_eq!(number(123_456.0), "123 456");
        assert_eq!(number(64.0), "64");
        assert_eq!(number(12.345), "12.35");
        assert_eq!(number(0.0), "0");
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<u64> = (1..=1000).collect();
        let found = [0.5, 0.99, 0.999, 1.0].map(|part| percentile(&values, part));
        assert_eq!(found, [Some(500), Some(990), Some(999), Some(1000)]);
        assert_eq!(percentile(&[7], 0.5), Some(7));
        assert_eq!(percentile::<u64>(&[], 0.5), None);
    }
}
