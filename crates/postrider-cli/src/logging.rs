//! The log: on stderr, filtered by `POSTRIDER_LOG`, and wherever it is exported to.

mod fields;

use std::io::{self, IsTerminal as _, Write};

use tracing::level_filters::LevelFilter;
use tracing::{Metadata, subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use crate::cli::LogFormat;
use crate::error::{CliError, Code};
use crate::export::Export;
use crate::output::plain_json;
use crate::progress::LogWriter;

const FILTER_VARIABLE: &str = "POSTRIDER_LOG";
const FILTER_DEFAULT: &str = "info";
/// How the targets of our own crates begin.
const OWN: &str = "postrider";
/// What other libraries may say, whatever the filter asks for: in more detail they print what they
/// send, passwords and payloads too.
const OTHERS_MAX: LevelFilter = LevelFilter::WARN;
/// This one does so in warnings as well, of what a server sends back.
const SILENCED: &str = "lapin";

/// Starts the log.
pub(crate) fn start(format: LogFormat, export: &Export) -> Result<(), CliError> {
    let filter = std::env::var(FILTER_VARIABLE).unwrap_or_else(|_| FILTER_DEFAULT.to_owned());
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        CliError::new(Code::Usage, format!("{FILTER_VARIABLE} is not a log filter"))
            .caused_by(&error)
            .with_fix(format!("write, for example, {FILTER_VARIABLE}=debug"))
    })?;
    let colour = io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = fmt::layer().with_ansi(colour).with_target(false);
    let lines = match format {
        LogFormat::Text => lines.with_writer(|| LogWriter).fmt_fields(fields::Fields).boxed(),
        LogFormat::Json => {
            lines.with_writer(|| PlainJson(LogWriter)).json().flatten_event(true).boxed()
        }
    };
    let log = tracing_subscriber::registry()
        .with(filter)
        .with(filter_fn(may_be_shown))
        .with(lines)
        .with(export.layer());
    // What is said by way of the crate `log` goes nowhere: most of it is by clients of brokers.
    subscriber::set_global_default(log).map_err(|error| {
        CliError::new(Code::Failure, "the log has been started before").caused_by(&error)
    })
}

fn may_be_shown(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    target.starts_with(OWN) || (*metadata.level() <= OTHERS_MAX && !target.starts_with(SILENCED))
}

/// Writes lines of JSON without what deceives on a terminal.
struct PlainJson<W>(W);

impl<W: Write> Write for PlainJson<W> {
    /// Is given whole lines.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(json) => self.0.write_all(plain_json(json).as_bytes())?,
            Err(_) => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_turns_no_text() {
        let mut written = PlainJson(Vec::new());
        written.write_all("{\"error\":\"a\u{202e}\u{7f}b\"}\n".as_bytes()).unwrap();
        assert_eq!(written.0, b"{\"error\":\"a\\u202e\\u007fb\"}\n");
    }
}
