//! How the outbox table is laid out.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(60 * 60);
const HOURS_MAX: u32 = 366 * 24;

/// How the outbox table is laid out. Chosen when it is made; it cannot be changed afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// One table.
    #[default]
    Plain,
    /// A table in partitions by the time of writing, so that old events go with a whole
    /// partition. The database cannot refuse an id that is in use then: uniqueness would need
    /// the time as well.
    Partitioned {
        /// The stretch of time that one partition holds.
        width: PartitionWidth,
    },
    /// A table that is not of our making and stays as it is: only what stands beside it is made.
    Existing,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Partitioned { width } => write!(f, "partitioned {width}"),
            Self::Existing => f.write_str("existing"),
        }
    }
}

impl Layout {
    /// The layout of that name, as the table of migrations has it.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.split_once(' ') {
            None if name == "plain" => Some(Self::Plain),
            None if name == "existing" => Some(Self::Existing),
            Some(("partitioned", width)) => Some(Self::Partitioned { width: width.parse().ok()? }),
            _ => None,
        }
    }
}

/// The stretch of time that one partition holds: whole hours, up to 366 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionWidth {
    hours: u32,
}

impl PartitionWidth {
    /// A day, from midnight to midnight in UTC.
    pub const DAY: Self = Self { hours: 24 };

    /// The width in time.
    pub fn duration(self) -> Duration {
        HOUR * self.hours
    }

    pub(super) fn hours(self) -> u32 {
        self.hours
    }
}

impl fmt::Display for PartitionWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hours % 24 {
            0 => write!(f, "{}d", self.hours / 24),
            _ => write!(f, "{}h", self.hours),
        }
    }
}

impl FromStr for PartitionWidth {
    type Err = InvalidWidth;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let hours_each = match &text[digits.len()..] {
            "h" => 1,
            "d" => 24,
            _ => 0,
        };
        let hours = digits.parse().ok().and_then(|count: u32| count.checked_mul(hours_each));
        match hours {
            Some(hours @ 1..=HOURS_MAX) => Ok(Self { hours }),
            _ => Err(InvalidWidth { text: text.to_owned() }),
        }
    }
}

/// The text is not the width of a partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a width for partitions; write 1h to 24h, or 1d to 366d")]
pub struct InvalidWidth {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_a_name() {
        for name in ["plain", "existing", "partitioned 1d", "partitioned 6h", "partitioned 366d"] {
            assert_eq!(Layout::from_name(name).unwrap().to_string(), name);
        }
        let width: PartitionWidth = "48h".parse().unwrap();
        assert_eq!((width.to_string().as_str(), width.duration()), ("2d", HOUR * 48));
    }

    #[test]
    fn impossible_widths_are_refused() {
        for text in ["", "d", "0d", "1m", "367d", "-1d", "1.5d", "99999999999d", "4294967295d"] {
            assert!(text.parse::<PartitionWidth>().is_err(), "{text}");
        }
        for name in ["", "round", "partitioned", "partitioned 0d"] {
            assert_eq!(Layout::from_name(name), None, "{name}");
        }
    }
}
