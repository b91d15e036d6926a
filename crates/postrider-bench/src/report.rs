//! What a benchmark found: printed line by line, and kept in `docs/benchmarks.md`.
//!
//! Each benchmark has a section of its own there, between two comments. Running it again replaces
//! what stands between them, so that the figures and the machine always belong together.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use postrider_relay::amounts::number;

use crate::Outcome;

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
    AtMost(f64),
    Below(f64),
}

/// The parts of `docs/benchmarks.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Consumer,
    Kafka,
    Keys,
    Memory,
    Nats,
    PostgresDrain,
    PostgresKept,
    PostgresLatency,
    PostgresLarge,
    PostgresLog,
    PostgresWriters,
    RabbitMq,
    Redelivery,
    Redis,
    Sqlite,
}

impl Section {
    #[cfg(test)]
    const ALL: [Self; 15] = [
        Self::Consumer,
        Self::Kafka,
        Self::Keys,
        Self::Memory,
        Self::Nats,
        Self::PostgresDrain,
        Self::PostgresKept,
        Self::PostgresLatency,
        Self::PostgresLarge,
        Self::PostgresLog,
        Self::PostgresWriters,
        Self::RabbitMq,
        Self::Redelivery,
        Self::Redis,
        Self::Sqlite,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Kafka => "kafka",
            Self::Keys => "keys",
            Self::Memory => "memory",
            Self::Nats => "nats",
            Self::PostgresDrain => "postgres drain",
            Self::PostgresKept => "postgres kept",
            Self::PostgresLatency => "postgres latency",
            Self::PostgresLarge => "postgres large",
            Self::PostgresLog => "postgres log",
            Self::PostgresWriters => "postgres writers",
            Self::RabbitMq => "rabbitmq",
            Self::Redelivery => "redelivery",
            Self::Redis => "redis",
            Self::Sqlite => "sqlite",
        }
    }
}

/// What a benchmark found.
#[derive(Debug)]
pub(crate) struct Report {
    section: Section,
    /// As it is kept.
    text: String,
    missed: bool,
}

impl Report {
    /// Begins the report of a section.
    pub(crate) fn new(section: Section) -> Self {
        Self { section, text: String::new(), missed: false }
    }

    /// Says what the following lines are about.
    pub(crate) fn title(&mut self, text: &str) {
        println!("\n{text}");
        let mut chars = text.chars();
        let first = chars.next().map(char::to_uppercase).into_iter().flatten();
        let text: String = first.chain(chars).collect();
        let _ = write!(self.text, "\n{text}.\n\n| | figure | |\n|---|---:|---|\n");
    }

    /// A figure, and what there is to say about it.
    pub(crate) fn line(&mut self, what: &str, figure: &str, more: &str) {
        println!("  {what:<48} {figure:>22}  {more}");
        let _ = writeln!(self.text, "| {what} | {figure} | {more} |");
    }

    /// A rate.
    pub(crate) fn rate(&mut self, what: &str, measured: Measured) {
        let Measured { events, time } = measured;
        let more = format!("{} events in {:.2} s", number(events as f64), time.as_secs_f64());
        self.line(what, &format!("{} events/s", number(measured.rate())), &more);
    }

    /// How many times as large one rate is as another.
    pub(crate) fn ratio(&mut self, what: &str, rate: f64, peer: f64) {
        self.line(what, &format!("{} times", number(rate / peer)), "");
    }

    /// A value beside its target.
    pub(crate) fn judge(&mut self, what: &str, value: f64, unit: &str, target: Target) {
        let (reached, sign, target) = match target {
            Target::AtLeast(target) => (value >= target, '≥', target),
            Target::AtMost(target) => (value <= target, '≤', target),
            Target::Below(target) => (value < target, '<', target),
        };
        self.missed |= !reached;
        let verdict = if reached { "reached" } else { "MISSED" };
        let more = format!("target {sign} {}: {verdict}", number(target));
        self.line(what, &format!("{} {unit}", number(value)), &more);
    }

    /// Keeps the report, with the machine and what else it was measured on. True if every target
    /// was reached.
    pub(crate) fn keep(self, on: Option<&str>) -> Outcome<bool> {
        let path = document();
        let document = fs::read_to_string(&path)?;
        let on = on.map(|on| format!(", {on}")).unwrap_or_default();
        let text = format!("Measured on {}, {}{on}.\n{}", today(), machine(), self.text);
        let document = with_section(&document, self.section, &text)
            .ok_or_else(|| format!("{} has no place for {:?}", path.display(), self.section))?;
        fs::write(&path, document)?;
        Ok(!self.missed)
    }

    /// Ends the report without keeping it. True if every target was reached.
    pub(crate) fn forget(self) -> bool {
        !self.missed
    }
}

fn document() -> PathBuf {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = bench.ancestors().nth(2).expect("the crate is in crates/postrider-bench");
    root.join("docs/benchmarks.md")
}

/// The document with another text in a section; `None` if it has no such section.
fn with_section(document: &str, section: Section, text: &str) -> Option<String> {
    let name = section.name();
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{text}{end}{after}"))
}

/// The date, in UTC.
fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// The machine, as far as this system tells.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let value = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
        value.map(|(_, value)| value.trim().to_owned())
    };
    let processor = value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let kib = value("/proc/meminfo", "MemTotal");
    let kib = kib.and_then(|kib| kib.split(' ').next()?.parse::<f64>().ok());
    let memory = kib.map(|kib| format!(", {:.0} GiB of memory", kib / 1024.0 / 1024.0));
    format!("{cores} cores ({processor}){}", memory.unwrap_or_default())
}

/// The value in the middle; of two, the mean.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        even if even.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn a_target_is_reached_or_missed() {
        let reached = |value, target| {
            let mut report = Report::new(Section::Memory);
            report.judge("it", value, "times", target);
            report.forget()
        };
        assert!(reached(10.0, Target::AtLeast(10.0)));
        assert!(!reached(9.9, Target::AtLeast(10.0)));
        assert!(reached(0.0, Target::AtMost(0.0)));
        assert!(!reached(1.0, Target::AtMost(0.0)));
        assert!(!reached(64.0, Target::Below(64.0)));
    }

    #[test]
    fn a_section_is_replaced_and_nothing_else() {
        let document = "a\n<!-- begin sqlite -->\nold\n<!-- end sqlite -->\nb\n";
        let replaced = with_section(document, Section::Sqlite, "new\n").unwrap();
        assert_eq!(replaced, "a\n<!-- begin sqlite -->\nnew\n<!-- end sqlite -->\nb\n");
        assert_eq!(with_section(document, Section::Memory, "new\n"), None);
    }

    #[test]
    fn every_section_has_its_place() {
        let document = fs::read_to_string(document()).unwrap();
        for section in Section::ALL {
            assert!(with_section(&document, section, "").is_some(), "no place for {section:?}");
        }
    }
}
