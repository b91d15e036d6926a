//! `postrider dlq retry` and `postrider dlq discard`.

use std::collections::HashSet;

use clap::Args;
use postrider_relay::admin::{Admin, DeadLetter, Selection};
use serde::Serialize;

use super::FilterArgs;
use super::list::{LetterObject, to_text};
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::Outbox;
use crate::output::Output;
use crate::progress::Progress;

pub(crate) const RETRY_EXAMPLES: &str = "\
Examples:
  postrider dlq retry 0197f3c2-5d1e-7000-8000-000000000002 --from \"$DATABASE_URL\"
  postrider dlq retry --all --error \"503\" --since 2h --dry-run --config postrider.toml
  postrider dlq retry --all --type OrderPaid --yes --config postrider.toml";

pub(crate) const DISCARD_EXAMPLES: &str = "\
Examples:
  postrider dlq discard 0197f3c2-5d1e-7000-8000-000000000002 --from \"$DATABASE_URL\"
  postrider dlq discard --all --type OrderPaid --until 30d --dry-run --config postrider.toml

To have them elsewhere first: postrider dlq export";

/// How many dead letters are read at a time when they are counted.
const PAGE: usize = 1_000;
/// Most dead letters that a dry run lists.
const SHOWN_MAX: usize = 100;

/// What to do with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Retry,
    Discard,
}

impl Change {
    fn verb(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Discard => "discard",
        }
    }
}

/// The arguments of both commands.
#[derive(Args, Debug)]
pub(crate) struct ChangeArgs {
    /// The ids of events
    #[arg(value_name = "EVENT_ID")]
    event_ids: Vec<String>,
    /// All dead letters that match the other options
    #[arg(long, conflicts_with = "event_ids")]
    all: bool,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

#[derive(Serialize)]
struct ChangeObject<'c> {
    action: &'static str,
    dry_run: bool,
    count: u64,
    not_found: Vec<&'c str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dead_letters: Vec<LetterObject<'c>>,
}

/// What a selection matches.
struct Matches {
    count: u64,
    /// The first of them.
    letters: Vec<DeadLetter>,
    event_ids: HashSet<String>,
}

/// Retries or discards dead letters.
pub(crate) async fn run(change: Change, args: &ChangeArgs, output: Output) -> Result<(), CliError> {
    let selection = args.filter.selection(args.event_ids.clone());
    if !args.all && selection == Selection::default() {
        let what = format!("nothing says which dead letters to {}", change.verb());
        let fix = "name event ids, or add --all or a filter such as --key TYPE/ID or --error TEXT";
        return Err(CliError::new(Code::Usage, what).with_fix(fix));
    }
    let outbox = Outbox::find(&args.outbox)?;
    let admin = outbox.admin().await?;
    let looking = find(&*admin, &selection);
    let matches = Progress::new(output).during(|| "looking".to_owned(), looking).await?;
    let not_found: Vec<&str> = args
        .event_ids
        .iter()
        .map(String::as_str)
        .filter(|event_id| !matches.event_ids.contains(*event_id))
        .collect();

    let mut count = matches.count;
    if !args.dry_run && count > 0 {
        let is_bulk = args.event_ids.is_empty();
        if !args.yes && (change == Change::Discard || is_bulk) {
            let instead = "add --yes, or look first with --dry-run";
            output.confirm(&question(change, count), instead)?;
        }
        let (verb, all) = (change.verb(), matches.count);
        let text = || format!("{verb}: {all} {}", letters(all));
        let progress = Progress::new(output);
        count = match change {
            Change::Retry => progress.during(text, admin.retry(&selection)).await?,
            Change::Discard => progress.during(text, admin.discard(&selection)).await?,
        };
    }
    if output.is_json() || count > 0 || not_found.is_empty() {
        tell(change, args, &matches, count, &not_found, output)?;
    }
    if not_found.is_empty() {
        return Ok(());
    }
    let code = if matches.count == 0 { Code::Failure } else { Code::Partial };
    let what = format!("no dead letter has the id {}", not_found.join(", "));
    Err(CliError::new(code, what)
        .with_fix(format!("list them: postrider dlq list {}", outbox.flags)))
}

fn question(change: Change, count: u64) -> String {
    let letters = letters(count);
    match change {
        Change::Retry => format!("retry {count} {letters}?"),
        Change::Discard => format!("discard {count} {letters} for good?"),
    }
}

fn letters(count: u64) -> &'static str {
    if count == 1 { "dead letter" } else { "dead letters" }
}

fn tell(
    change: Change,
    args: &ChangeArgs,
    matches: &Matches,
    count: u64,
    not_found: &[&str],
    output: Output,
) -> Result<(), CliError> {
    if output.is_json() {
        let shown: &[DeadLetter] = if args.dry_run { &matches.letters } else { &[] };
        return output.object(&ChangeObject {
            action: change.verb(),
            dry_run: args.dry_run,
            count,
            not_found: not_found.to_vec(),
            dead_letters: shown.iter().map(LetterObject::new).collect(),
        });
    }
    let letters = letters(count);
    if count == 0 {
        output.talk("no dead letters");
    } else if args.dry_run {
        output.data(&to_text(&matches.letters))?;
        if count > matches.letters.len() as u64 {
            output.talk(&format!("these are the first {} of them", matches.letters.len()));
        }
        output.talk(&format!("would {} {count} {letters}; nothing was changed", change.verb()));
    } else {
        match change {
            Change::Retry => output.talk(&format!(
                "{count} {letters} will be published again by the relay, in order per key"
            )),
            Change::Discard => output.talk(&format!("discarded {count} {letters}")),
        }
    }
    Ok(())
}

async fn find(admin: &dyn Admin, selection: &Selection) -> Result<Matches, CliError> {
    let mut matches = Matches { count: 0, letters: Vec::new(), event_ids: HashSet::new() };
    let mut after = None;
    loop {
        let page = admin.dead_letters(selection, after, PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(matches);
        };
        after = Some(last.cursor);
        matches.count += page.len() as u64;
        let is_last = page.len() < PAGE;
        for letter in page {
            if !selection.event_ids.is_empty() {
                matches.event_ids.insert(letter.event_id.clone());
            }
            if matches.letters.len() < SHOWN_MAX {
                matches.letters.push(letter);
            }
        }
        if is_last {
            return Ok(matches);
        }
    }
}
