//! How results are printed: one line each, with the target and how it compares.

use std::time::Duration;

/// Events and the time they took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) events: u64,
    pub(crate) time: Duration,
}

impl Measured {
    /// Events a second.
    pub(crate) fn rate(self) -> f64 {
        self.events as f64 / self.time.as_secs_f64()
    }
}

/// What is to be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtLeast(f64),
    Below(f64),
}

impl Target {
    /// Prints a value beside its target. True if that was reached.
    pub(crate) fn judge(self, what: &str, value: f64, unit: &str) -> bool {
        let (reached, sign, target) = match self {
            Self::AtLeast(target) => (value >= target, '≥', target),
            Self::Below(target) => (value < target, '<', target),
        };
        let ratio = value / target;
        let verdict = if reached { "reached" } else { "MISSED" };
        let (value, target) = (number(value), number(target));
        println!(
            "  {what:<44} {value:>12} {unit:<9} target {sign} {target}: {verdict} ({ratio:.2} of it)"
        );
        reached
    }
}

/// Prints the title of a benchmark.
pub(crate) fn title(text: &str) {
    println!("\n{text}");
}

/// Prints a rate.
pub(crate) fn rate(what: &str, measured: Measured) {
    let Measured { events, time } = measured;
    let (rate, events) = (number(measured.rate()), number(events as f64));
    let seconds = time.as_secs_f64();
    println!("  {what:<44} {rate:>12} events/s  {events} events in {seconds:.2} s");
}

/// Prints how many times as large one rate is as another.
pub(crate) fn ratio(what: &str, rate: f64, peer: f64) {
    println!("  {what:<44} {:>12} times", number(rate / peer));
}

/// A number as people read it: thousands apart, decimals only where they say something.
pub(crate) fn number(value: f64) -> String {
    if value < 100.0 && value.fract() != 0.0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(1_234_567.8), "1 234 568");
        assert_eq!(number(123_456.0), "123 456");
        assert_eq!(number(64.0), "64");
        assert_eq!(number(12.345), "12.35");
        assert_eq!(number(0.0), "0");
    }

    #[test]
    fn a_target_is_reached_or_missed() {
        assert!(Target::AtLeast(10.0).judge("a", 10.0, "times"));
        assert!(!Target::AtLeast(10.0).judge("b", 9.9, "times"));
        assert!(!Target::Below(64.0).judge("c", 64.0, "MiB"));
    }
}
