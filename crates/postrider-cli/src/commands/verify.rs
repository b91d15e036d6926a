//! `postrider verify`: reads the broker back and holds it against the outbox.

use std::time::SystemTime;

use clap::Args;
use postrider_relay::admin::OutboxStatus;
use postrider_relay::verification::{Found, NotRead, Report, Verification, VerificationError};
use serde::Serialize;

use crate::error::{CliError, Code};
use crate::output::{Output, plain};
use crate::progress::Progress;
use crate::route::RouteArgs;
use crate::time::parse_time;

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider verify --config postrider.toml --pipeline orders
  postrider verify --from \"$DATABASE_URL\" --to kafka://localhost:9092 --since 1h --json

Kafka, NATS, Redis and files can be read back. Nothing is changed, neither in the broker nor in
the outbox. Ends with 6 if events are lost, are in no outbox, or are out of order. Duplicates
are what at least once means.";

/// Most examples of each kind that are printed.
const SHOWN_MAX: usize = 10;

/// The arguments of `postrider verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    route: RouteArgs,
    /// Only events written since then: 2h for so long ago, or a time such as 2026-01-31T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
}

/// The report as JSON; people script against it.
#[derive(Serialize)]
struct ReportObject<'r> {
    clean: bool,
    expected: u64,
    kept: u64,
    lost: FoundObject<'r>,
    ghosts: FoundObject<'r>,
    duplicated: FoundObject<'r>,
    out_of_order: FoundObject<'r>,
    unreadable: Vec<UnreadableObject<'r>>,
    waiting: u64,
    discarded: u64,
    not_its_own: u64,
    beyond_retention: u64,
    older: u64,
    foreign: u64,
}

#[derive(Serialize)]
struct UnreadableObject<'r> {
    topic: &'r str,
    events: u64,
    why: &'r str,
}

#[derive(Serialize)]
struct FoundObject<'r> {
    count: u64,
    examples: Vec<ExampleObject<'r>>,
}

impl<'r> FoundObject<'r> {
    fn of(found: &'r Found) -> Self {
        let examples = found.examples.iter().map(|(event_id, place)| ExampleObject {
            event_id: event_id.to_string(),
            place: place.as_deref(),
        });
        Self { count: found.count, examples: examples.collect() }
    }
}

#[derive(Serialize)]
struct ExampleObject<'r> {
    event_id: String,
    place: Option<&'r str>,
}

/// Verifies a pipeline.
pub(crate) async fn run(args: &VerifyArgs, output: Output) -> Result<(), CliError> {
    let (outbox, pipeline) = args.route.find()?;
    let verification = Verification::of(&pipeline, args.since)?;
    let operator = outbox.operator().await?;
    check_pipeline(&operator.status().await?, &pipeline.name)?;
    let mut progress = Progress::new(output);
    let tell_progress = |listed, kept| {
        progress.show(|_| format!("{listed} events of the outbox, {kept} messages"));
    };
    let report = verification.run(&*operator, tell_progress).await?;
    drop(progress);
    match output.is_json() {
        true => output.object(&to_object(&report))?,
        false => output.data(&to_text(&report))?,
    }
    if !report.differs() {
        let unreadable = report.unreadable.into_iter().next();
        return unreadable.map_or(Ok(()), |unreadable| Err(unreadable.error.into()));
    }
    let what = format!(
        "the broker and the outbox differ: {} lost, {} in no outbox, {} out of order",
        report.lost.count, report.ghosts.count, report.out_of_order.count
    );
    let error = CliError::new(Code::BrokerDiffers, what);
    match report.lost.count {
        0 => Err(error),
        _ => Err(error.with_fix(format!(
            "look at one of the lost: postrider show ID {}; publish them again: postrider replay",
            outbox.flags
        ))),
    }
}

/// What a pipeline has yet to publish cannot be told from what is lost by looking at another one.
fn check_pipeline(status: &OutboxStatus, pipeline: &str) -> Result<(), CliError> {
    let ran = status.pipelines.iter().filter(|it| it.progress.is_some());
    let names: Vec<&str> = ran.map(|it| it.name.as_str()).collect();
    if names.is_empty() || names.contains(&pipeline) {
        return Ok(());
    }
    let (pipeline, names) = (plain(pipeline), plain(&names.join(", ")));
    let what = format!("no relay has ever run the pipeline {pipeline} here; there is: {names}");
    let fix = "name the one to verify: postrider verify --config FILE --pipeline NAME";
    Err(CliError::new(Code::Usage, what).with_fix(fix))
}

impl From<VerificationError> for CliError {
    fn from(error: VerificationError) -> Self {
        match error {
            VerificationError::Source(error) => error.into(),
            VerificationError::Sink(error) => error.into(),
            VerificationError::Deletes(_) => Self::new(Code::Configuration, error.to_string())
                .with_fix("keep rows for a while: write progress = \"mark\", and [prune] keep"),
        }
    }
}

fn to_object(report: &Report) -> ReportObject<'_> {
    ReportObject {
        clean: report.is_clean(),
        expected: report.expected,
        kept: report.kept,
        lost: FoundObject::of(&report.lost),
        ghosts: FoundObject::of(&report.ghosts),
        duplicated: FoundObject::of(&report.duplicated),
        out_of_order: FoundObject::of(&report.out_of_order),
        unreadable: report.unreadable.iter().map(unreadable_object).collect(),
        waiting: report.waiting,
        discarded: report.discarded,
        not_its_own: report.not_its_own,
        beyond_retention: report.beyond_retention,
        older: report.older,
        foreign: report.foreign,
    }
}

fn unreadable_object(it: &NotRead) -> UnreadableObject<'_> {
    UnreadableObject { topic: &it.topic, events: it.events, why: &it.error.message }
}

fn to_text(report: &Report) -> String {
    let mut text = format!(
        "{} {} of the outbox, {} {} of the broker\n",
        report.expected,
        if report.expected == 1 { "event" } else { "events" },
        report.kept,
        if report.kept == 1 { "message" } else { "messages" }
    );
    let mut line = |count: u64, what: &str| text.push_str(&format!("{count:>10}  {what}\n"));
    line(report.lost.count, "lost: published, and not there");
    line(report.ghosts.count, "ghosts: there, and in no outbox");
    line(report.out_of_order.count, "out of order: after a later event of their key");
    line(report.duplicated.count, "duplicated: there again");
    line(report.waiting, "waiting: not published yet");
    for (count, what) in [
        (report.unreadable.iter().map(|it| it.events).sum(), "in topics that cannot be read back"),
        (report.discarded, "discarded by an operator: never published"),
        (report.not_its_own, "never published by this pipeline: not its own"),
        (report.beyond_retention, "too old: no longer kept by the broker"),
        (report.older, "older than what the outbox still has"),
        (report.foreign, "not a relay's"),
    ] {
        if count > 0 {
            line(count, what);
        }
    }
    for (what, found) in [
        ("lost", &report.lost),
        ("ghost", &report.ghosts),
        ("out of order", &report.out_of_order),
        ("duplicated", &report.duplicated),
    ] {
        for (id, place) in found.examples.iter().take(SHOWN_MAX) {
            let place = place.as_ref().map(|place| format!(" at {place}")).unwrap_or_default();
            text.push_str(&format!("{what}: {id}{place}\n"));
        }
    }
    for NotRead { topic, events, error } in report.unreadable.iter().take(SHOWN_MAX) {
        let (topic, why) = (plain(topic), plain(&error.message));
        text.push_str(&format!("cannot be read back: {topic}, of {events} published: {why}\n"));
    }
    text
}
