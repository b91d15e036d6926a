//! `postrider dlq export`: dead letters with everything in them, as JSON Lines.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use postrider_relay::admin::DeadLetterDetail;
use postrider_relay::private_files;
use serde::Serialize;

use super::FilterArgs;
use super::show::{DetailObject, to_object};
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::{Outbox, shell_word};
use crate::output::Output;
use crate::progress::Progress;
use crate::signals::stop_on_signal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider dlq export --output dead.jsonl --config postrider.toml
  postrider dlq export --error timeout --since 1d --config postrider.toml | jq .event_id";

/// How many dead letters are read at a time: each may have a payload of a megabyte.
const PAGE: usize = 50;

/// The arguments of `postrider dlq export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// The file to write; it must not be there yet, unless --after is given [default: stdout]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Go on after this cursor, which stands in every line; a file is appended to
    #[arg(long, value_name = "CURSOR")]
    after: Option<u64>,
}

/// A line.
#[derive(Serialize)]
struct LineObject<'l> {
    cursor: u64,
    #[serde(flatten)]
    detail: DetailObject<'l>,
}

/// What was done, as JSON, if stdout is not taken.
#[derive(Serialize)]
struct ExportedObject {
    exported: u64,
    /// Where to go on.
    cursor: Option<u64>,
}

/// Writes dead letters.
pub(crate) async fn run(args: &ExportArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let admin = outbox.admin().await?;
    let selection = args.filter.selection(Vec::new());
    let shutdown = stop_on_signal()?;
    let mut to = match &args.output {
        Some(path) => To::File(path, open(path, args.after.is_some())?),
        None => To::Stdout(output),
    };
    let (mut exported, mut after) = (0, args.after);
    let mut progress = Progress::new(output);
    loop {
        let page = admin.dead_letter_details(&selection, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        to.write(&page)?;
        exported += page.len() as u64;
        progress.show(|_| format!("{exported} dead letters"));
        after = Some(last.letter.cursor);
        if shutdown.is_requested() {
            let mut fix = format!("go on: postrider dlq export {}", outbox.flags);
            if let Some(path) = &args.output {
                fix.push_str(&format!(" --output {}", shell_word(&path.display().to_string())));
            }
            fix.push_str(&format!(" --after {} and the same filters", last.letter.cursor));
            let what = format!("stopped after {exported} dead letters");
            return Err(CliError::new(Code::Partial, what).with_fix(fix));
        }
    }
    to.finish()?;
    let letters = if exported == 1 { "dead letter" } else { "dead letters" };
    match (&args.output, output.is_json()) {
        (Some(_), true) => output.object(&ExportedObject { exported, cursor: after }),
        (Some(path), false) => {
            output.talk(&format!("wrote {exported} {letters} to {}", path.display()));
            Ok(())
        }
        (None, _) => {
            output.talk(&format!("wrote {exported} {letters}"));
            Ok(())
        }
    }
}

/// Where lines go.
enum To<'p> {
    File(&'p Path, BufWriter<File>),
    Stdout(Output),
}

impl To<'_> {
    /// Writes a page of lines; they are in the hands of the system when it answers.
    fn write(&mut self, page: &[DeadLetterDetail]) -> Result<(), CliError> {
        for letter in page {
            let line = LineObject { cursor: letter.letter.cursor, detail: to_object(letter) };
            match self {
                Self::Stdout(output) => output.object(&line)?,
                Self::File(path, file) => {
                    let written = serde_json::to_writer(&mut *file, &line)
                        .map_err(std::io::Error::from)
                        .and_then(|()| file.write_all(b"\n"));
                    written.map_err(|error| cannot_write(path, &error))?;
                }
            }
        }
        match self {
            Self::Stdout(_) => Ok(()),
            Self::File(path, file) => file.flush().map_err(|error| cannot_write(path, &error)),
        }
    }

    /// Makes what was written durable.
    fn finish(self) -> Result<(), CliError> {
        let Self::File(path, file) = self else { return Ok(()) };
        let file = file.into_inner().map_err(|error| cannot_write(path, error.error()))?;
        file.sync_all().map_err(|error| cannot_write(path, &error))
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CliError {
    CliError::file(format!("cannot write {}", path.display()), error)
}

fn open(path: &Path, append: bool) -> Result<BufWriter<File>, CliError> {
    let mut options = OpenOptions::new();
    match append {
        true => options.append(true).create(true),
        false => options.write(true).create_new(true),
    };
    // Payloads are nobody else's business.
    private_files::open(path, &mut options).map(BufWriter::new).map_err(|error| {
        let failed = cannot_write(path, &error);
        match error.kind() {
            ErrorKind::AlreadyExists => failed
                .with_fix("name another file, or add --after CURSOR to go on where its end is"),
            _ if private_files::shared_link(path).is_some() => {
                failed.with_fix("name a file in a folder that only you can write")
            }
            _ => failed,
        }
    })
}
