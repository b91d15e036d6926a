//! The log: on stderr, filtered by `POSTRIDER_LOG`.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;
use crate::error::{CliError, Code};
use crate::progress::LogWriter;

const FILTER_VARIABLE: &str = "POSTRIDER_LOG";
/// The clients of brokers say more than an operator wants to read.
const FILTER_DEFAULT: &str = "info,async_nats=warn,lapin=off";

/// Starts the log.
pub(crate) fn start(format: LogFormat) -> Result<(), CliError> {
    let filter = std::env::var(FILTER_VARIABLE).unwrap_or_else(|_| FILTER_DEFAULT.to_owned());
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        CliError::new(Code::Usage, format!("{FILTER_VARIABLE} is not a log filter"))
            .caused_by(&error)
            .with_fix(format!("write, for example, {FILTER_VARIABLE}=debug"))
    })?;
    let colour = io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogWriter)
        .with_ansi(colour)
        .with_target(false);
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
