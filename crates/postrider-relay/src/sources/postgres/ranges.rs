//! Sets of numbers.

use std::fmt::Write as _;

/// The most ranges of numbers that are written down, and written anew with each settlement. What
/// is left out is repeated after a restart.
const RANGES_MAX: usize = 5_000;

/// Sets of numbers, as ranges in order that do not touch. Its text is that of PostgreSQL's
/// `int8multirange`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<(i64, i64)>);

impl Ranges {
    /// The numbers, in any order.
    pub(super) fn of(mut numbers: Vec<i64>) -> Self {
        numbers.sort_unstable();
        let mut ranges: Vec<(i64, i64)> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some((_, last)) if number <= last.saturating_add(1) => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        Self(ranges)
    }

    pub(super) fn contains(&self, number: i64) -> bool {
        let index = self.0.partition_point(|(_, last)| *last < number);
        self.0.get(index).is_some_and(|(first, _)| *first <= number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a number. It takes little time if most of them come in order.
    pub(super) fn insert(&mut self, number: i64) {
        let ranges = &mut self.0;
        let index = ranges.partition_point(|(_, last)| last.saturating_add(1) < number);
        let Some((first, last)) = ranges.get_mut(index) else {
            ranges.push((number, number));
            return;
        };
        if number.saturating_add(1) < *first {
            ranges.insert(index, (number, number));
            return;
        }
        (*first, *last) = (number.min(*first), number.max(*last));
        let last = *last;
        if ranges.get(index + 1).is_some_and(|(next, _)| last.saturating_add(1) == *next) {
            let (_, end) = ranges.remove(index + 1);
            ranges[index].1 = end;
        }
    }

    /// How many ranges there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Both together.
    pub(super) fn union(self, other: &Self) -> Self {
        Self::all([&self, other])
    }

    /// All of them together.
    pub(super) fn all<'r>(sets: impl IntoIterator<Item = &'r Self>) -> Self {
        let mut all: Vec<(i64, i64)> = sets.into_iter().flat_map(|set| &set.0).copied().collect();
        all.sort_unstable();
        let mut ranges: Vec<(i64, i64)> = Vec::new();
        for (first, last) in all {
            match ranges.last_mut() {
                Some((_, before)) if first <= before.saturating_add(1) => {
                    *before = last.max(*before);
                }
                _ => ranges.push((first, last)),
            }
        }
        Self(ranges)
    }

    /// As PostgreSQL writes it: `{[1,4),[7,8)}`. What is too much to be written down is left out.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::from("{");
        for (index, (first, last)) in self.0.iter().take(RANGES_MAX).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // There is no number behind the last one, so that its range has no end.
            let end = last.checked_add(1).map_or_else(String::new, |end| end.to_string());
            write!(text, "{comma}[{first},{end})").expect("a string takes everything");
        }
        text.push('}');
        text
    }

    /// Reads what PostgreSQL wrote; `None` if it is something else.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('{')?.strip_suffix('}')?;
        let mut ranges = Vec::new();
        for range in inner.split("),").filter(|range| !range.is_empty()) {
            let range = range.strip_prefix('[')?;
            let (first, end) = range.strip_suffix(')').unwrap_or(range).split_once(',')?;
            let last = match end {
                "" => i64::MAX,
                end => end.parse::<i64>().ok()?.checked_sub(1)?,
            };
            ranges.push((first.parse().ok()?, last));
        }
        Some(Self(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_can_be_added_in_any_order() {
        let numbers = [5, 3, 9, 4, 1, 7, 2, 8, 8, 20, i64::MAX, 21, i64::MIN];
        let mut ranges = Ranges::default();
        for (index, number) in numbers.iter().enumerate() {
            ranges.insert(*number);
            assert_eq!(ranges, Ranges::of(numbers[..=index].to_vec()), "after {number}");
        }
        assert_eq!(ranges.len(), 5);
        assert!(ranges.contains(20) && !ranges.contains(6));
    }

    #[test]
    fn the_first_and_the_last_number_can_be_written() {
        let ranges = Ranges::of(vec![i64::MIN, 7, i64::MAX - 1, i64::MAX]);
        let text = "{[-9223372036854775808,-9223372036854775807),[7,8),[9223372036854775806,)}";
        assert_eq!(ranges.to_text(), text);
        assert_eq!(Ranges::from_text(text), Some(ranges));
    }

    #[test]
    fn several_become_one() {
        let sets = [vec![1, 2, 9], vec![3, 7], vec![8, 20]].map(Ranges::of);
        assert_eq!(Ranges::all(&sets).to_text(), "{[1,4),[7,10),[20,21)}");
    }
}
