//! `postrider tail`: events as they are written.

use std::time::{Duration, SystemTime};

use clap::Args;
use postrider::Key;
use postrider_relay::events::{EventRow, LOOKED_AT_MAX, Wanted};
use postrider_relay::source::SourceErrorKind;

use super::dlq::parse_key;
use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::event_object::{EventObject, key_text};
use crate::outbox::Outbox;
use crate::output::{Output, plain, to_json};
use crate::signals::stop_on_signal;
use crate::time::{parse_time, rfc3339};

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider tail -f --config postrider.toml
  postrider tail --type OrderPaid --since 10m --config postrider.toml
  postrider tail -f --key Order/42 --payload --json --config postrider.toml | jq .payload

A filter finds what is among the newest 100000 events. What --follow shows has committed: one
whose transaction took long comes late, and is not left out.";

/// How many events are shown unless it is said.
const LIMIT_DEFAULT: usize = 20;
/// The same with a time from which on.
const LIMIT_SINCE: usize = 10_000;
/// How often is looked for new ones, and how many are read at a time.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const PAGE: usize = 200;

/// The arguments of `postrider tail`.
#[derive(Args, Debug)]
pub(crate) struct TailArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Go on with those that are written from now on
    #[arg(long, short)]
    follow: bool,
    /// Only those of this event type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Only those of this key, the type and id of an aggregate
    #[arg(long, value_name = "TYPE/ID", value_parser = parse_key)]
    key: Option<Key>,
    /// Only those written since then: 10m for so long ago, or a time such as 2026-01-31T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// Most events to begin with [default: 20, with --since 10000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    limit: Option<u32>,
    /// Show payloads and the values of headers, too
    #[arg(long)]
    payload: bool,
}

/// Shows events, and follows them.
pub(crate) async fn run(args: &TailArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let operator = outbox.operator().await?;
    let default = if args.since.is_some() { LIMIT_SINCE } else { LIMIT_DEFAULT };
    let limit = args.limit.map_or(default, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let wanted = Wanted {
        event_type: args.event_type.clone(),
        key: args.key.clone(),
        since: args.since,
        payload: args.payload,
        ..Wanted::default()
    };
    let mut shutdown = stop_on_signal()?;
    let newest = operator.newest(&wanted, limit).await?;
    if newest.events.is_empty() && !args.follow {
        let all = Wanted { payload: args.payload, ..Wanted::default() };
        output.talk(&match wanted == all {
            true => "no events".to_owned(),
            false => format!("no such event among the newest {LOOKED_AT_MAX}"),
        });
    }
    let mut is_read = print(&newest.events, output)?;
    let mut place = newest.next;
    let mut away = false;
    while args.follow && is_read {
        match operator.written(&place, &wanted, PAGE).await {
            Ok(written) => {
                away = false;
                is_read = print(&written.events, output)?;
                place = written.next;
                if written.events.len() >= PAGE {
                    continue;
                }
            }
            Err(error) if error.kind == SourceErrorKind::Unavailable => {
                if !away {
                    output.talk(&format!("{error}; trying again"));
                }
                away = true;
            }
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shutdown.requested() => return Ok(()),
        }
    }
    Ok(())
}

/// Prints events; answers whether somebody still reads.
fn print(events: &[EventRow], output: Output) -> Result<bool, CliError> {
    for event in events {
        let line = match output.is_json() {
            true => to_json(&EventObject::new(event))?,
            false => to_text(event),
        };
        if !output.is_read(line.as_bytes())? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn to_text(event: &EventRow) -> String {
    let written = event.created_at.map_or_else(|| "-".to_owned(), rfc3339);
    let mut text = format!(
        "{written}  {}  {}  {}  {} bytes",
        plain(&event.event_id),
        key_text(event),
        plain(&event.event_type),
        event.payload_bytes
    );
    if let Some(payload) = &event.payload {
        text.push_str(&format!("  {}", plain(&String::from_utf8_lossy(payload))));
    }
    text
}
