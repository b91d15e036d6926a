//! Times and sizes in words.

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
}
