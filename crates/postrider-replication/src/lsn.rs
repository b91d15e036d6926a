//! A position in the write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A position in the server's write-ahead log, written as `16/B374D848`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// No position: it is before every other one.
    pub const ZERO: Self = Self(0);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = InvalidLsn;

    fn from_str(text: &str) -> Result<Self, InvalidLsn> {
        let (high, low) = text.split_once('/').ok_or(InvalidLsn)?;
        Ok(Self(half(high)? << 32 | half(low)?))
    }
}

fn half(text: &str) -> Result<u64, InvalidLsn> {
    // A sign would be accepted otherwise.
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(InvalidLsn);
    }
    u32::from_str_radix(text, 16).map(u64::from).map_err(|_| InvalidLsn)
}

/// It is not a position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a position in the log is written as 16/B374D848")]
pub struct InvalidLsn;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_written_as_the_server_writes_them() {
        for (text, number) in [
            ("0/0", 0),
            ("16/B374D848", 0x16_B374_D848),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
            ("1/2", 0x1_0000_0002),
        ] {
            assert_eq!(Lsn(number).to_string(), text);
            assert_eq!(text.parse(), Ok(Lsn(number)));
        }
        assert_eq!("a/0b".parse(), Ok(Lsn(0xA_0000_000B)));
        assert_eq!(Lsn::default(), Lsn::ZERO);
        assert!("0/FFFFFFFF".parse::<Lsn>().unwrap() < "1/0".parse().unwrap());
    }

    #[test]
    fn what_is_not_a_position_is_refused() {
        for text in ["", "/", "1", "1/", "/1", "1/2/3", "+1/2", "1/-2", "100000000/0", "g/0"] {
            assert_eq!(text.parse::<Lsn>(), Err(InvalidLsn), "{text}");
        }
    }
}
