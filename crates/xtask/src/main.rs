//! The project's own commands: `cargo xtask test`, `services`, `bench`, `chaos`, `deny`, `ci`. Nothing but
//! the standard library, so that it is built in a second.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a command talks to its user")]

mod bench;
mod chaos;
mod commands;
mod service;
mod services;
mod test;

use std::process::ExitCode;

use commands::Failed;

const HELP: &str = "\
The commands of the project.

usage: cargo xtask <command>

  test             all that must pass before a change is merged: format, lints, tests,
                   doctests, the lean build, each backend alone; starts the servers first
  ci               the same; what .ci/run comes to
  services WHAT    the servers that tests need (PostgreSQL, pgbouncer, Kafka, RabbitMQ, NATS,
                   Redis); WHAT is
      up           install what is missing, start what does not run
      down         stop them; their data stays
      status       say what runs
  bench [WHICH]    measure, in a release build, against the targets; WHICH is
      memory       the pipeline alone, from memory to memory
      sqlite       from SQLite to a file, against the textbook's loop
      postgres     from PostgreSQL, against the textbook's relay and COPY; with a server of
                   its own
      brokers      from memory to Kafka, NATS, RabbitMQ and Redis, against plain clients; from
                   PostgreSQL to Kafka
      consumer     a consumer with its inbox on PostgreSQL, against a loop without one
      demo         from a fresh clone of the last commit to the demo's table
      all          all of them (default)
  chaos [OPTIONS]  a shop, a relay, a broker and billing, all of them killed again and again, and
                   their books checked; in rounds; OPTIONS are
      --minutes N  how long rounds are begun (default 5); each broker has at least one
      --seed N     the seed of the first round (default: a random one)
      --broker B   kafka, nats or all (default)
  deny             licences, sources, bans and advisories of what we depend on, held against
                   deny.toml by cargo-deny, if it is installed
  help             this text";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["test" | "ci"] => test::run_steps(),
        ["bench", which @ ..] => match bench::Which::parse(which) {
            Some(which) => bench::run_benches(which),
            None => return not_understood(&args),
        },
        ["chaos", options @ ..] => match chaos::Options::parse(options) {
            Some(options) => chaos::run_rounds(&options),
            None => return not_understood(&args),
        },
        ["deny"] => test::deny(),
        ["services", "up"] => services::up(),
        ["services", "down"] => services::down(),
        ["services", "status"] => services::status(),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => return not_understood(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(message)) => {
            eprintln!("\nerror: {message}");
            ExitCode::FAILURE
        }
    }
}

fn not_understood(args: &[&str]) -> ExitCode {
    if !args.is_empty() {
        eprintln!("error: there is no command `cargo xtask {}`\n", args.join(" "));
    }
    eprintln!("{HELP}");
    ExitCode::from(2)
}
