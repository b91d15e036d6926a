//! A snapshot of the database: which transactions it sees.

use std::fmt;
use std::str::FromStr;

/// Which transactions are seen: all before `xmin`, and those before `xmax` that were not under
/// way. Its text is that of PostgreSQL's `pg_snapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    xmin: u64,
    xmax: u64,
    /// Transactions that were under way, in order.
    under_way: Vec<u64>,
}

/// Transactions count from here, in each epoch.
const FIRST_XID: u64 = 3;

impl Snapshot {
    /// Sees nothing: transactions count from 3.
    pub(super) fn nothing() -> Self {
        Self { xmin: 1, xmax: 1, under_way: Vec::new() }
    }

    /// Whether it sees nothing at all.
    pub(super) fn is_nothing(&self) -> bool {
        self.xmax <= 1
    }

    /// The first transaction that had not begun.
    pub(super) fn xmax(&self) -> u64 {
        self.xmax
    }

    /// The same without what it says of a transaction and those after it.
    pub(super) fn up_to(mut self, xid: u64) -> Self {
        // The first numbers of an epoch are given to nobody, and PostgreSQL takes none of them.
        let xid = if xid.trailing_zeros() >= 32 { xid + FIRST_XID } else { xid };
        self.xmax = self.xmax.min(xid);
        self.xmin = self.xmin.min(xid);
        self.under_way.retain(|under_way| *under_way < xid);
        self
    }

    /// The transactions that were under way.
    pub(super) fn under_way(&self) -> &[u64] {
        &self.under_way
    }

    pub(super) fn sees(&self, xid: u64) -> bool {
        xid < self.xmax && self.under_way.binary_search(&xid).is_err()
    }

    /// Whether it sees everything that the other one does.
    pub(super) fn sees_all_of(&self, other: &Self) -> bool {
        self.xmax >= other.xmax && !self.under_way.iter().any(|xid| other.sees(*xid))
    }

    /// Sees what both see.
    pub(super) fn intersection(self, other: &Self) -> Self {
        let mut both = self.up_to(other.xmax);
        both.xmin = both.xmin.min(other.xmin);
        both.under_way.extend(&other.under_way);
        both.under_way.retain(|under_way| *under_way < both.xmax);
        both.under_way.sort_unstable();
        both.under_way.dedup();
        both
    }

    /// Sees what one of them sees.
    pub(super) fn union(self, other: &Self) -> Self {
        let (mut more, less) =
            if self.xmax < other.xmax { (other.clone(), &self) } else { (self, other) };
        more.under_way.retain(|under_way| !less.sees(*under_way));
        more.xmin = more.under_way.first().copied().unwrap_or(more.xmax);
        more
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { xmin, xmax, under_way } = self;
        write!(f, "{xmin}:{xmax}:")?;
        for (index, xid) in under_way.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{xid}")?;
        }
        Ok(())
    }
}

/// The text is not that of a snapshot.
#[derive(Debug, thiserror::Error)]
#[error("a snapshot could not be read")]
pub(super) struct NotASnapshot;

impl FromStr for Snapshot {
    type Err = NotASnapshot;

    fn from_str(text: &str) -> Result<Self, NotASnapshot> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| NotASnapshot);
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or(NotASnapshot);
        let (xmin, xmax, list) = (number(part()?)?, number(part()?)?, part()?);
        let under_way: Result<Vec<u64>, _> =
            list.split(',').filter(|xid| !xid.is_empty()).map(number).collect();
        let under_way = under_way?;
        // The snapshot of a slot that was made just now can have them the other way around, which
        // the server itself would not read.
        let xmin = xmin.min(xmax).min(under_way.first().copied().unwrap_or(xmax));
        Ok(Self { xmin, xmax, under_way })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_postgresqls() {
        for text in ["1:1:", "735:735:", "735:740:735,738", "4294967290:4294967310:4294967299"] {
            assert_eq!(text.parse::<Snapshot>().unwrap().to_string(), text);
        }
        assert_eq!("741:740:738".parse::<Snapshot>().unwrap().to_string(), "738:740:738");
        for text in ["", "1:2", "a:b:", "1:2:x", "-1:2:"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text}");
        }
    }

    #[test]
    fn it_can_say_less() {
        let up_to = |xid| {
            let snapshot: Snapshot = "735:740:735,738".parse().unwrap();
            snapshot.up_to(xid).to_string()
        };
        assert_eq!(up_to(741), "735:740:735,738");
        assert_eq!(up_to(739), "735:739:735,738");
        assert_eq!(up_to(738), "735:738:735");
        assert_eq!(up_to(700), "700:700:");
        let end_of_epoch: Snapshot = "4294967290:4294967310:".parse().unwrap();
        assert_eq!(end_of_epoch.up_to(1 << 32).to_string(), "4294967290:4294967299:");
    }

    #[test]
    fn one_can_see_all_of_another() {
        let sees_all = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| text.parse::<Snapshot>().unwrap());
            one.sees_all_of(&other)
        };
        assert!(sees_all("5:9:5,7", "5:9:5,7") && sees_all("5:9:5", "5:9:5,7"));
        assert!(!sees_all("5:9:5,7", "5:9:5") && !sees_all("8:8:", "9:9:"));
        assert!(sees_all("10:12:10", "1:1:") && sees_all("10:12:10", "10:10:"));
    }

    #[test]
    fn two_can_be_put_together() {
        for (one, other, both, either) in [
            ("5:9:5,7", "5:9:5", "5:9:5,7", "5:9:5"),
            ("5:9:5,7", "8:8:", "5:8:5,7", "9:9:"),
            ("3:8:3", "6:12:6,9", "3:8:3,6", "9:12:9"),
            ("1:1:", "6:12:6,9", "1:1:", "6:12:6,9"),
        ] {
            let [one, other] = [one, other].map(|text| text.parse::<Snapshot>().unwrap());
            assert_eq!(one.clone().intersection(&other).to_string(), both);
            assert_eq!(other.clone().intersection(&one).to_string(), both);
            assert_eq!(one.clone().union(&other).to_string(), either);
            assert_eq!(other.union(&one).to_string(), either);
        }
    }

    #[test]
    fn nothing_is_nothing() {
        assert!(Snapshot::nothing().is_nothing());
        let some: Snapshot = "735:740:735,738".parse().unwrap();
        assert!(!some.is_nothing());
        assert_eq!((some.xmax(), some.under_way()), (740, [735, 738].as_slice()));
    }
}
