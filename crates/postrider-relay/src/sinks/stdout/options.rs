//! What the stdout sink can be told.

use super::StdoutSink;
use crate::sink::SinkError;
use crate::sinks::Problem;
use crate::sinks::option_reader::OptionReader;

/// The stdout sink has no options of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {}

impl Options {
    pub(in crate::sinks) fn read(_reader: &mut OptionReader<'_>) -> Self {
        Self {}
    }

    /// Every mistake, without looking at the world: there can be none.
    pub fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// Takes the standard output.
    pub async fn connect(&self) -> Result<StdoutSink, SinkError> {
        Ok(StdoutSink::new(std::io::stdout()))
    }
}
