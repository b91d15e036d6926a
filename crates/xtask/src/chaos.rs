//! Runs the pattern from end to end, with everything killed again and again, for some minutes.

use crate::commands::{Failed, cargo, run};

const MINUTES_DEFAULT: u64 = 5;
/// The relay's binary is none of the test's own.
const BUILD: &str = "build --workspace --all-features --bins";
const ROUNDS: &str =
    "test --workspace --all-features --test chaos -- --ignored --nocapture --exact whole_rounds";

/// How long, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// No round begins after so long, except the first one of each broker.
    minutes: u64,
    /// Of the first round; each further one has the next seed.
    seed: Option<u64>,
    /// `kafka`, `nats` or `all`.
    broker: String,
}

impl Options {
    pub(crate) fn parse(mut args: &[&str]) -> Option<Self> {
        let mut options = Self { minutes: MINUTES_DEFAULT, seed: None, broker: "all".to_owned() };
        while let [name, value, rest @ ..] = args {
            match (*name, *value) {
                ("--broker", "all" | "kafka" | "nats") => options.broker = (*value).to_owned(),
                ("--minutes", minutes) => options.minutes = minutes.parse().ok()?,
                ("--seed", seed) => options.seed = Some(seed.parse().ok()?),
                _ => return None,
            }
            args = rest;
        }
        args.is_empty().then_some(options)
    }
}

/// Runs rounds until the time is over. A round that fails is told with its seed. The servers are the
/// rounds' own; what is not installed for them is told.
pub(crate) fn run_rounds(options: &Options) -> Result<(), Failed> {
    run(cargo().args(BUILD.split_whitespace()))?;
    let mut rounds = cargo();
    rounds.args(ROUNDS.split_whitespace());
    rounds.env("POSTRIDER_CHAOS_SECONDS", (options.minutes * 60).to_string());
    rounds.env("POSTRIDER_CHAOS_BROKER", &options.broker);
    if let Some(seed) = options.seed {
        rounds.env("POSTRIDER_SEED", seed.to_string());
    }
    run(&mut rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_in_any_order_and_mistakes_are_found() {
        let all = Options { minutes: 5, seed: None, broker: "all".to_owned() };
        assert_eq!(Options::parse(&[]), Some(all));
        let args = ["--seed", "7", "--broker", "nats", "--minutes", "60"];
        let one = Options { minutes: 60, seed: Some(7), broker: "nats".to_owned() };
        assert_eq!(Options::parse(&args), Some(one));
        for args in [&["--seed"][..], &["--seed", "x"], &["--broker", "redis"], &["nats"]] {
            assert_eq!(Options::parse(args), None, "{args:?}");
        }
    }
}
