//! The binary `postrider`: runs relays and deals with outboxes from the command line.

#[cfg(feature = "full")]
mod bench;
mod cli;
mod commands;
#[cfg(feature = "demo")]
mod demo;
mod error;
mod event_object;
mod export;
mod logging;
mod outbox;
mod output;
mod progress;
mod route;
mod signals;
mod systemd;
mod time;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;

use cli::{Cli, Command, LogFormat};
use commands::check::CheckCommand;
use error::{CliError, Code};
use export::Export;
use output::Output;
use postrider_relay::secret::mask_url;

/// A third faster than the system's for the many small allocations of events.
#[cfg(feature = "full")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Longest time for work in the background that nobody waits for any more: a write to a file may
/// come to its end. A broker that does not answer keeps a thread waiting for much longer.
const LEFTOVERS_MAX: Duration = Duration::from_millis(200);

/// What Nagios understands as: it could not be found out.
const UNKNOWN: u8 = 3;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_understood(&error),
    };
    let output = Output::new(cli.global.json, cli.global.log_format);
    if let Command::Check(command) = cli.command {
        return check(command, output);
    }
    match logged(cli.command, cli.global.log_format, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            ExitCode::from(error.code.exit_code())
        }
    }
}

/// Runs a command with a log.
fn logged(command: Command, format: LogFormat, output: Output) -> Result<(), CliError> {
    // Whoever only looks waits for no collector.
    let publishes = matches!(command, Command::Relay(_) | Command::Replay(_));
    let export = if publishes { Export::start()? } else { Export::none() };
    let done = logging::start(format, &export).and_then(|()| run(command, output));
    if let Err(error) = &done {
        export.failed(error);
    }
    export.finish();
    done
}

fn run(command: Command, output: Output) -> Result<(), CliError> {
    match command {
        Command::Init(args) => commands::init::run(&args, output),
        Command::Completions(args) => commands::completions::run(&args, output),
        Command::Man(args) => commands::man::run(&args, output),
        Command::Migrate(args) => block_on(commands::migrate::run(&args, output)),
        Command::Relay(args) => block_on(commands::relay::run(&args, output)),
        Command::Status(args) => block_on(commands::status::run(&args, output)),
        Command::Doctor(args) => block_on(commands::doctor::run(&args, output)),
        Command::Explain(args) => commands::explain::run(&args, output),
        Command::Check(_) => unreachable!("it has gone its own way"),
        Command::Dlq(command) => block_on(commands::dlq::run(command, output)),
        Command::Tail(args) => block_on(commands::tail::run(&args, output)),
        Command::Show(args) => block_on(commands::show::run(&args, output)),
        Command::Keys(command) => block_on(commands::keys::run(command, output)),
        Command::Pause(args) => block_on(commands::pause::pause(&args, output)),
        Command::Resume(args) => block_on(commands::pause::resume(&args, output)),
        Command::Replay(args) => block_on(commands::replay::run(&args, output)),
        Command::Reconcile(args) => block_on(commands::reconcile::run(&args, output)),
        Command::Verify(args) => block_on(commands::verify::run(&args, output)),
        Command::Audit(args) => block_on(commands::audit::run(&args, output)),
        #[cfg(feature = "full")]
        Command::Bench(args) => block_on(commands::bench::run(&args, output)),
        Command::Prune(args) => block_on(commands::prune::run(&args, output)),
        Command::Slot(command) => block_on(commands::slot::run(command, output)),
        #[cfg(feature = "demo")]
        Command::Demo(args) => block_on(commands::demo::run(&args, output)),
    }
}

/// Its exit codes are those of Nagios, and it says nothing but its one line.
fn check(command: CheckCommand, output: Output) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(commands::check::run(command, output)),
        Err(_) => ExitCode::from(UNKNOWN),
    }
}

fn block_on(work: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| CliError::file("cannot start the runtime".into(), &error))?;
    let done = runtime.block_on(work);
    // Dropped, it would wait for all of it, beyond the grace time.
    runtime.shutdown_timeout(LEFTOVERS_MAX);
    done
}

/// What was not understood is quoted, and may be a URL in the wrong place.
fn without_secrets(mut text: String) -> String {
    for arg in std::env::args_os().filter_map(|arg| arg.into_string().ok()) {
        let value = arg.split_once('=').map_or(&*arg, |(_, value)| value);
        for url in [&*arg, value].into_iter().filter(|text| text.contains("://")) {
            text = text.replace(url, &mask_url(url));
        }
    }
    text
}

/// Help and version are answers; anything else is a wrong use.
fn not_understood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let printed = error.print();
        return if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let text = without_secrets(error.to_string());
    // Nagios takes 2 for critical, and 3 for unknown.
    let mut words = std::env::args_os().skip(1);
    let command = words.find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let is_check = command.is_some_and(|command| command == "check");
    let exit_code = if is_check { UNKNOWN } else { Code::Usage.exit_code() };
    if std::env::args_os().any(|arg| arg == "--json") {
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let what = first.trim_start_matches("error: ");
        let error = CliError::new(Code::Usage, what).with_fix(rest.trim());
        let mut object = error.to_object();
        object.exit_code = exit_code;
        Output::new(true, LogFormat::Text).error_object(&object);
    } else if text == error.to_string() {
        if error.print().is_err() {
            return ExitCode::FAILURE;
        }
    } else {
        Output::new(false, LogFormat::Text).talk(text.trim_end());
    }
    ExitCode::from(exit_code)
}
