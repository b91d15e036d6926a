//! `postrider prune`: removes published events that are past their retention.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use postrider_relay::config::parse_duration;
use postrider_relay::prune::{Left, PruneOptions, Pruned};
use serde::Serialize;

use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::{self, Outbox};
use crate::output::{Output, plain};
use crate::progress::Progress;
use crate::signals::stop_on_signal;

const EXAMPLES: &str = "\
Examples:
  postrider prune --keep 7d --dry-run --from postgres://shop@localhost/shop
  postrider prune --keep 7d --archive /var/lib/shop/archive --yes --config postrider.toml

An event goes only when every pipeline is past it and one has published it. A relay with [prune]
does it by itself.";

/// The arguments of `postrider prune`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// How long published events stay, such as 12h or 7d [default: `keep` in the configuration
    /// file]
    #[arg(long, value_name = "TIME", value_parser = parse_keep)]
    keep: Option<Duration>,
    /// A folder that gets them before they go, as compressed JSON Lines [default: `archive` in the
    /// configuration file]
    #[arg(long, value_name = "FOLDER")]
    archive: Option<PathBuf>,
    /// Remove events, too, that no pipeline has published because none matches their aggregate type
    #[arg(long)]
    unmatched: bool,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

fn parse_keep(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a time such as 30m, 12h or 7d".to_owned())
}

/// What was done, as JSON; people script against it.
#[derive(Serialize)]
struct PruneObject {
    dry_run: bool,
    events: u64,
    events_is_capped: bool,
    partitions: Vec<String>,
    archives: Vec<String>,
    left: Vec<String>,
}

/// Removes what may go.
pub(crate) async fn run(args: &PruneArgs, output: Output) -> Result<(), CliError> {
    let mut options = options(args)?;
    let outbox = Outbox::find(&args.outbox)?;
    let pruner = outbox.pruner().await?;
    let shutdown = stop_on_signal()?;
    if !args.dry_run && !args.yes {
        let look = PruneOptions { dry_run: true, ..options.clone() };
        let looking = pruner.prune(&look, &shutdown);
        let found = Progress::new(output).during(|| "looking".to_owned(), looking).await?;
        if found.rows == 0 && found.partitions.is_empty() && !found.at_least {
            return tell(args, &found, output);
        }
        let where_to = match &options.archive {
            Some(folder) => format!("to {}", folder.display()),
            None => "for good".to_owned(),
        };
        let question = format!("remove {} {where_to}?", count(&found));
        output.confirm(&question, "add --yes, or look first with --dry-run")?;
    }
    if !args.dry_run {
        pruner.upkeep().await?;
    }
    let verb = if args.dry_run { "looking" } else { "removing" };
    let mut pruned = Pruned::default();
    loop {
        let so_far = pruned.rows;
        let text = || format!("{verb}, {so_far} events so far");
        let pruning = pruner.prune(&options, &shutdown);
        pruned.go_on(Progress::new(output).during(text, pruning).await?);
        if pruned.left_off.is_none() || shutdown.is_requested() {
            break;
        }
        options.from = pruned.left_off.take();
    }
    tell(args, &pruned, output)?;
    if pruned.left.contains(&Left::Stopped) {
        let error = CliError::new(Code::Partial, "stopped before everything was removed");
        return Err(error.with_fix("run it again: it goes on where it was"));
    }
    Ok(())
}

fn options(args: &PruneArgs) -> Result<PruneOptions, CliError> {
    let config = match &args.outbox.config {
        Some(path) => outbox::read_config(path)?.prune,
        None => None,
    };
    let Some(keep) = args.keep.or(config.as_ref().map(|config| config.keep)) else {
        let error = CliError::new(Code::Usage, "nothing says how long published events stay");
        return Err(error.with_fix("add --keep 7d, or [prune] to the configuration file"));
    };
    let unmatched = args.unmatched || config.as_ref().is_some_and(|config| config.unmatched);
    let archive = args.archive.clone().or(config.and_then(|config| config.archive));
    Ok(PruneOptions { keep, archive, unmatched, dry_run: args.dry_run, from: None })
}

fn tell(args: &PruneArgs, pruned: &Pruned, output: Output) -> Result<(), CliError> {
    if output.is_json() {
        return output.object(&to_object(args, pruned));
    }
    if pruned.rows == 0 && pruned.partitions.is_empty() {
        output.talk("nothing to remove");
    } else if args.dry_run {
        output.talk(&format!("would remove {}; nothing was changed", count(pruned)));
    } else {
        output.talk(&format!("removed {}", count(pruned)));
    }
    for archive in &pruned.archives {
        output.data(&archive.display().to_string())?;
    }
    for left in pruned.left.iter().filter(|left| **left != Left::Stopped) {
        output.talk(&plain(&left.to_string()));
    }
    Ok(())
}

/// `3 events and partition outbox_p2026013100`.
fn count(pruned: &Pruned) -> String {
    let partitions = match pruned.partitions.as_slice() {
        [] => None,
        [one] => Some(format!("partition {}", plain(one))),
        many => Some(format!("partitions {}", plain(&many.join(", ")))),
    };
    let events = (pruned.rows > 0 || partitions.is_none()).then(|| {
        let at_least = if pruned.at_least { "at least " } else { "" };
        let events = if pruned.rows == 1 { "event" } else { "events" };
        format!("{at_least}{} {events}", pruned.rows)
    });
    [events, partitions].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

fn to_object(args: &PruneArgs, pruned: &Pruned) -> PruneObject {
    PruneObject {
        dry_run: args.dry_run,
        events: pruned.rows,
        events_is_capped: pruned.at_least,
        partitions: pruned.partitions.clone(),
        archives: pruned.archives.iter().map(|path| path.display().to_string()).collect(),
        left: pruned.left.iter().map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_told_in_words() {
        let pruned = |rows, partitions: &[&str], at_least| Pruned {
            rows,
            at_least,
            partitions: partitions.iter().map(|name| (*name).to_owned()).collect(),
            ..Pruned::default()
        };
        let cases = [
            (pruned(1, &[], false), "1 event"),
            (pruned(20, &[], true), "at least 20 events"),
            (pruned(0, &["p1"], false), "partition p1"),
            (pruned(3, &["p1", "p2"], false), "3 events and partitions p1, p2"),
        ];
        for (pruned, expected) in cases {
            assert_eq!(count(&pruned), expected);
        }
    }

    #[test]
    fn a_time_has_a_unit() {
        assert_eq!(parse_keep("7d"), Ok(Duration::from_secs(7 * 24 * 60 * 60)));
        assert!(parse_keep("7").unwrap_err().contains("7d"));
    }
}
