//! A figure of an outbox against its limits.

use postrider_relay::admin::{OutboxStatus, PipelineStatus};
use serde::Serialize;

use crate::error::CliError;
use crate::output::{plain, size};

/// The states of Nagios, with their exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Ok = 0,
    Warning = 1,
    Critical = 2,
    Unknown = 3,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Lag,
    Parked,
    RetainedWal,
}

/// What is compared with which limits, in base units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub(super) unit: Unit,
    pub(super) warn: f64,
    pub(super) crit: f64,
}

/// The answer; people script against it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) state: &'static str,
    pub(super) exit_code: u8,
    /// What is printed without `--json`.
    pub(super) line: String,
    warn: f64,
    crit: f64,
    pipelines: Vec<Measured>,
}

/// The figure of one pipeline.
#[derive(Debug, Serialize)]
struct Measured {
    name: String,
    value: f64,
    state: &'static str,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

impl Unit {
    fn title(self) -> &'static str {
        match self {
            Self::Lag => "LAG",
            Self::Parked => "DLQ",
            Self::RetainedWal => "SLOT",
        }
    }

    /// The figure of a pipeline; `None` if it has none.
    fn of(self, pipeline: &PipelineStatus) -> Option<f64> {
        match self {
            Self::Lag => Some(pipeline.oldest_unpublished_age.map_or(0.0, |age| age.as_secs_f64())),
            Self::Parked => Some(pipeline.parked as f64),
            Self::RetainedWal => {
                let slot = pipeline.slot.as_ref()?;
                Some(slot.retained_bytes.unwrap_or(0) as f64)
            }
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::Lag => format!("the oldest event waits for {value:.1}s"),
            Self::Parked => match value as u64 {
                0 => "no event is parked".to_owned(),
                1 => "1 event is parked".to_owned(),
                count => format!("{count} events are parked"),
            },
            Self::RetainedWal => format!("{} of the log are kept", size(value as u64)),
        }
    }

    /// The figure with its unit as Nagios has it: seconds, bytes, or a count.
    fn data(self, value: f64) -> String {
        match self {
            Self::Lag => format!("{value:.3}s"),
            Self::Parked => format!("{value}"),
            Self::RetainedWal => format!("{value}B"),
        }
    }
}

impl Figure {
    /// The figures of the pipelines, or of one, and the worst state.
    pub(super) fn report(&self, status: &OutboxStatus, only: Option<&str>) -> Report {
        let is_meant = |pipeline: &&PipelineStatus| only.is_none_or(|only| pipeline.name == only);
        let pipelines: Vec<_> = status.pipelines.iter().filter(is_meant).collect();
        if pipelines.is_empty() {
            let only = only.unwrap_or_default();
            return self.failed(&format!("no pipeline {only:?} has read {}", status.table));
        }
        let measured: Vec<(&PipelineStatus, f64, State)> = pipelines
            .iter()
            .filter_map(|pipeline| {
                let value = self.unit.of(pipeline)?;
                Some((*pipeline, value, self.state(pipeline, value)))
            })
            .collect();
        let worst = measured
            .iter()
            .max_by(|(_, one, state), (_, other, than)| state.cmp(than).then(one.total_cmp(other)));
        let Some((worst, value, state)) = worst else {
            return self.stated(State::Ok, "no pipeline has a slot", Vec::new());
        };
        let whose = match pipelines.len() {
            1 => String::new(),
            _ => format!(" ({})", plain(&worst.name)),
        };
        let why = self.why(worst).map(|why| format!("; its slot is of no use, {why}"));
        let what = format!("{}{whose}{}", self.unit.shown(*value), why.unwrap_or_default());
        let all = measured.iter().map(|(pipeline, value, state)| Measured {
            name: pipeline.name.clone(),
            value: *value,
            state: state.as_str(),
        });
        self.stated(*state, &what, all.collect())
    }

    /// It could not be found out.
    pub(super) fn unknown(&self, error: &CliError) -> Report {
        let problems = error.problems.iter().flat_map(|problems| problems.iter());
        let whys = error.why.iter().cloned().chain(problems.map(|it| it.what.clone()));
        let whys: Vec<String> = std::iter::once(error.what.clone()).chain(whys).collect();
        self.failed(&whys.join(": "))
    }

    fn failed(&self, what: &str) -> Report {
        self.stated(State::Unknown, what, Vec::new())
    }

    fn state(&self, pipeline: &PipelineStatus, value: f64) -> State {
        if value >= self.crit || self.why(pipeline).is_some() {
            State::Critical
        } else if value >= self.warn {
            State::Warning
        } else {
            State::Ok
        }
    }

    /// Why a slot is of no use.
    fn why(&self, pipeline: &PipelineStatus) -> Option<&'static str> {
        let slot = pipeline.slot.as_ref().filter(|_| self.unit == Unit::RetainedWal)?;
        slot.state.why_of_no_use()
    }

    fn stated(&self, state: State, what: &str, pipelines: Vec<Measured>) -> Report {
        let Self { unit, warn, crit } = *self;
        // The bar parts the words from the figures, and a line is all there is.
        let what = plain(what).replace('|', "/");
        let mut line = format!("OUTBOX {} {} - {what}", unit.title(), state.as_str());
        let figures: Vec<String> = pipelines
            .iter()
            .map(|it| format!("{}={};{warn};{crit};0", label(&it.name), unit.data(it.value)))
            .collect();
        if !figures.is_empty() {
            line.push_str(&format!(" | {}", figures.join(" ")));
        }
        let (state, exit_code) = (state.as_str(), state as u8);
        Report { state, exit_code, line, warn, crit, pipelines }
    }
}

/// A name as Nagios takes it: in quotes where it has a space, and without what it cannot have.
fn label(name: &str) -> String {
    let name: String = name.chars().filter(|c| !c.is_control() && !"='|".contains(*c)).collect();
    if name.contains(' ') || name.is_empty() { format!("'{name}'") } else { name }
}

#[cfg(test)]
mod tests;
