//! `postrider dlq list`.

use clap::{Args, ValueEnum};
use postrider_relay::admin::{DeadLetter, Selection};
use serde::Serialize;

use super::{FilterArgs, groups};
use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::{Output, plain, table};
use crate::time::rfc3339;

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider dlq list --by error --config postrider.toml
  postrider dlq list --type OrderPaid --kind failed --since 2h --config postrider.toml";

/// Longest error in a row of the table, in characters.
const ERROR_CHARS_MAX: usize = 80;
/// The most of a key or an event type.
const NAME_CHARS_MAX: usize = 40;

/// The arguments of `postrider dlq list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Put together what has the same cause, instead of listing each
    #[arg(long, value_enum, conflicts_with = "after")]
    by: Option<By>,
    /// Most dead letters, or groups of them, to list
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Go on after this cursor, which an earlier list printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<u64>,
}

/// What dead letters are put together by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// The last error, without the ids, numbers and quoted values in it.
    Error,
}

/// A dead letter as JSON, without its contents.
#[derive(Serialize)]
pub(crate) struct LetterObject<'l> {
    pipeline: &'l str,
    event_id: &'l str,
    aggregate_type: &'l str,
    aggregate_id: &'l str,
    event_type: &'l str,
    kind: &'l str,
    error: &'l str,
    attempts: u32,
    parked_at: String,
    queued_behind: u64,
}

impl<'l> LetterObject<'l> {
    pub(crate) fn new(letter: &'l DeadLetter) -> Self {
        Self {
            pipeline: &letter.pipeline,
            event_id: &letter.event_id,
            aggregate_type: &letter.key.aggregate_type,
            aggregate_id: &letter.key.aggregate_id,
            event_type: &letter.event_type,
            kind: &letter.kind,
            error: &letter.error,
            attempts: letter.attempts,
            parked_at: rfc3339(letter.parked_at),
            queued_behind: letter.queued_behind,
        }
    }
}

#[derive(Serialize)]
struct ListObject<'l> {
    dead_letters: Vec<LetterObject<'l>>,
    /// Where to go on; `None` at the end.
    next: Option<u64>,
}

/// Lists dead letters.
pub(crate) async fn run(args: &ListArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let selection: Selection = args.filter.selection(Vec::new());
    let admin = outbox.admin().await?;
    if args.by == Some(By::Error) {
        return groups::list(&*admin, &selection, limit, &outbox.flags, output).await;
    }
    // One more than is shown tells whether there are more.
    let mut letters = admin.dead_letters(&selection, args.after, limit + 1).await?;
    let is_more = letters.len() > limit;
    letters.truncate(limit);
    let next = letters.last().filter(|_| is_more).map(|letter| letter.cursor);
    if output.is_json() {
        let dead_letters = letters.iter().map(LetterObject::new).collect();
        return output.object(&ListObject { dead_letters, next });
    }
    if letters.is_empty() {
        output.talk("no dead letters");
        return Ok(());
    }
    output.data(&to_text(&letters))?;
    let flags = &outbox.flags;
    if let Some(next) = next {
        output.talk(&format!("there are more: postrider dlq list {flags} --after {next}"));
    }
    output.talk(&format!("look at one: postrider dlq show EVENT_ID {flags}"));
    Ok(())
}

/// Dead letters as a table.
pub(crate) fn to_text(letters: &[DeadLetter]) -> String {
    let heading =
        ["EVENT ID", "PIPELINE", "KEY", "EVENT TYPE", "PARKED AT", "ATTEMPTS", "BEHIND", "ERROR"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(letters.iter().map(|letter| {
        vec![
            plain(&letter.event_id),
            plain(&letter.pipeline),
            short(&letter.key.to_string(), NAME_CHARS_MAX),
            short(&letter.event_type, NAME_CHARS_MAX),
            rfc3339(letter.parked_at),
            letter.attempts.to_string(),
            letter.queued_behind.to_string(),
            format!("{}: {}", plain(&letter.kind), short(&letter.error, ERROR_CHARS_MAX)),
        ]
    }));
    table(&rows)
}

/// The text on one line, cut off where it would widen the table.
pub(crate) fn short(text: &str, chars_max: usize) -> String {
    let text = plain(text);
    let mut short: String = text.chars().take(chars_max).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
