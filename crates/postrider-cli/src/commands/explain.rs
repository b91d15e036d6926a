//! `postrider explain`: what an error, an alert or a word of `status` means, and how to mend it.
//!
//! The pages are those of `docs/errors` and `docs/runbooks`, in the binary, so that they are at hand where
//! it runs.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use crate::error::CliError;
use crate::output::{Output, table};

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider explain
  postrider explain sink_unavailable
  postrider explain SlotLost

Names are codes of errors, alerts, reasons of `postrider status` and kinds of dead letters. Without a
name all of them are listed.";

/// The arguments of `postrider explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The name, as an error, an alert, `status` or `dlq` writes it
    #[arg(value_name = "NAME", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(names()))]
    name: Option<String>,
}

/// The names of pages with their texts.
macro_rules! pages {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$((
            $name,
            include_str!(concat!("../../../../docs/", $folder, "/", $name, ".md")),
        )),*]
    };
}

/// A page for each code of an error, and for what `status` says and no alert does.
const ERRORS: &[(&str, &str)] = pages!("errors":
    "broker_differs",
    "checks_failed",
    "configuration",
    "events_missed",
    "failure",
    "not_permitted",
    "partial",
    "paused",
    "schema_differs",
    "sink_failed",
    "sink_misconfigured",
    "sink_refused",
    "sink_rejected",
    "sink_throttled",
    "sink_unavailable",
    "source_held",
    "source_misconfigured",
    "source_unavailable",
    "unsafe",
    "usage",
);

/// A page for each alert.
const ALERTS: &[(&str, &str)] = pages!("runbooks":
    "BlockedKeys",
    "CircuitOpen",
    "DeadLettersGrowing",
    "DeadLettersNotEmpty",
    "EventsMissed",
    "NoLeaseOwner",
    "OutboxLagHigh",
    "OutboxStalled",
    "PausedForLong",
    "PipelineFailed",
    "PublishErrorRatio",
    "RelayDown",
    "SampleFailing",
    "SlotLost",
    "SlotRetainedWalHigh",
    "SourceDown",
    "TakeoverFlapping",
);

/// Reasons of `status` and kinds of dead letters, with the page that is theirs, too.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("blocked", "BlockedKeys"),
    ("failed", "sink_failed"),
    ("late", "OutboxLagHigh"),
    ("misconfigured", "sink_misconfigured"),
    ("never_run", "NoLeaseOwner"),
    ("no_relay", "NoLeaseOwner"),
    ("not_settling", "OutboxStalled"),
    ("parked", "DeadLettersNotEmpty"),
    ("paused_keys", "paused"),
    ("refused", "sink_refused"),
    ("rejected", "sink_rejected"),
    ("slot_inactive", "SlotRetainedWalHigh"),
    ("slot_lost", "SlotLost"),
    ("slot_wal", "SlotRetainedWalHigh"),
    ("throttled", "sink_throttled"),
    ("trouble", "CircuitOpen"),
    ("unavailable", "sink_unavailable"),
];

#[derive(Serialize)]
struct PageObject {
    name: &'static str,
    /// In Markdown.
    text: &'static str,
}

/// Prints a page, or what pages there are.
pub(crate) fn run(args: &ExplainArgs, output: Output) -> Result<(), CliError> {
    let Some(name) = &args.name else { return list(output) };
    let (name, text) = page(name).expect("clap lets only names of pages pass");
    match output.is_json() {
        true => output.object(&PageObject { name, text }),
        false => output.data(text),
    }
}

fn list(output: Output) -> Result<(), CliError> {
    if output.is_json() {
        return output.object(&names().collect::<Vec<_>>());
    }
    let mut rows = vec![vec!["NAME".to_owned(), "MEANS".to_owned()]];
    rows.extend(names().map(|name| {
        let meaning = match page(name) {
            Some((title, _)) if title != name => format!("see {title}"),
            Some((_, text)) => meaning(text),
            None => String::new(),
        };
        vec![name.to_owned(), meaning]
    }));
    output.data(&table(&rows))
}

fn names() -> impl Iterator<Item = &'static str> {
    ERRORS.iter().chain(ALERTS).chain(OTHER_NAMES).map(|(name, _)| *name)
}

/// The page of a name, with its own name.
fn page(name: &str) -> Option<(&'static str, &'static str)> {
    let other = OTHER_NAMES.iter().find(|(it, _)| *it == name).map(|(_, page)| *page);
    let name = other.unwrap_or(name);
    ERRORS.iter().chain(ALERTS).find(|(it, _)| *it == name).copied()
}

/// The first sentence below "What it means", up to its details, on one line.
fn meaning(text: &str) -> String {
    let rest = text.split_once("## What it means\n\n").map_or("", |(_, rest)| rest);
    let paragraph = rest.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let end = [". ", ": "].iter().filter_map(|end| paragraph.find(end)).min();
    paragraph[..end.unwrap_or(paragraph.len())].trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use postrider_relay::failure::FailureKind;
    use postrider_relay::health::REASONS;
    use postrider_relay::reconcile::MissedKind;

    use super::*;
    use crate::error::Code;

    const HEADINGS: [&str; 4] =
        ["What it means", "How to look", "How to mend it", "How to know that it is over"];

    fn files(folder: &str) -> BTreeSet<String> {
        let folder = format!("{}/../../docs/{folder}", env!("CARGO_MANIFEST_DIR"));
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "README.md").collect()
    }

    fn files_of(pages: &[(&str, &str)]) -> BTreeSet<String> {
        pages.iter().map(|(name, _)| format!("{name}.md")).collect()
    }

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let mut codes: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), Code::ALL.len());
        codes.insert("paused");
        let pages: BTreeSet<&str> = ERRORS.iter().map(|(name, _)| *name).collect();
        assert_eq!(pages, codes);
        assert_eq!(files_of(ERRORS), files("errors"));
        assert_eq!(files_of(ALERTS), files("runbooks"));
    }

    #[test]
    fn what_status_and_dlq_say_has_a_page() {
        let kinds = FailureKind::ALL.map(FailureKind::as_str);
        for name in REASONS.into_iter().chain(kinds) {
            assert!(page(name).is_some(), "{name}");
        }
        for (name, target) in OTHER_NAMES {
            assert!(page(target).is_some(), "{name} names the page {target}");
            assert!(REASONS.contains(name) || kinds.contains(name), "nothing says {name}");
        }
        let (_, missed) = page("events_missed").unwrap();
        for kind in MissedKind::ALL {
            assert!(missed.contains(&format!("`{kind}`")), "{kind} is not explained");
        }
    }

    #[test]
    fn a_page_says_what_it_means_and_how_to_mend_it() {
        for (name, text) in ERRORS {
            let headings: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
            assert_eq!(headings, HEADINGS, "{name}");
            let code = Code::ALL.into_iter().find(|code| code.as_str() == *name);
            let answers = code.map_or_else(
                || "Reason of `postrider status`.".to_owned(),
                |code| format!("Exit code {}.", code.exit_code()),
            );
            assert!(text.starts_with(&format!("# {name}\n\n{answers}")), "{name}: {answers}");
            assert!(meaning(text).len() > 20, "{name}: {}", meaning(text));
        }
        let index = include_str!("../../../../docs/errors/README.md");
        for code in Code::ALL {
            let (name, exit_code) = (code.as_str(), code.exit_code());
            let row = format!("| [{name}]({name}.md) | {exit_code} |");
            assert!(index.contains(&row), "docs/errors/README.md has no row {row}");
        }
        for (name, page) in OTHER_NAMES.iter().filter(|(name, _)| REASONS.contains(name)) {
            let row = index.lines().find(|line| line.contains(&format!("[{page}]")));
            assert!(row.is_some_and(|row| row.contains(&format!("`{name}`"))), "{name}");
        }
    }
}
