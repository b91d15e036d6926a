//! `postrider show`: the life of one event.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use postrider::Key;
use postrider_relay::events::{EventLife, EventRow, Fate, InPipeline, Standing, Stored};
use postrider_relay::operator::Operator;
use postrider_relay::pauses::Pause;
use postrider_relay::readback::Kept;
use postrider_relay::verification::{self, Places};
use serde::Serialize;

use super::pause::PauseObject;
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::event_object::{EventObject, SetAsideObject, headers, key_text, set_aside_text};
use crate::outbox::Outbox;
use crate::output::{Output, is_deceptive, plain};
use crate::progress::Progress;
use crate::route;
use crate::time::rfc3339;

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider show 0197f3c2-5d1e-7000-8000-000000000002 --config postrider.toml
  postrider show 0197f3c2-5d1e-7000-8000-000000000002 --payload --json --from sqlite:app.db
  postrider show 0197f3c2-5d1e-7000-8000-000000000002 --in-broker --config postrider.toml";

/// The arguments of `postrider show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The id of an event
    #[arg(value_name = "EVENT_ID")]
    event_id: String,
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Show the payload and the values of headers, too
    #[arg(long)]
    payload: bool,
    /// Look for it in the broker, too: Kafka, NATS, Redis or a file of the configuration file
    #[arg(long)]
    in_broker: bool,
    /// The pipeline to whose broker it went, if there are several
    #[arg(long, value_name = "NAME", requires = "in_broker")]
    pipeline: Option<String>,
}

/// The life of an event as JSON.
#[derive(Serialize)]
struct LifeObject<'l> {
    event: EventObject<'l>,
    in_outbox: bool,
    pipelines: Vec<PipelineObject<'l>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<BrokerObject<'l>>,
}

#[derive(Serialize)]
struct BrokerObject<'l> {
    pipeline: &'l str,
    kept: Vec<KeptObject<'l>>,
    looked_at: u64,
    looked_at_all: bool,
}

#[derive(Serialize)]
struct KeptObject<'l> {
    topic: &'l str,
    place: &'l str,
    sent_at: Option<String>,
}

#[derive(Serialize)]
struct PipelineObject<'l> {
    pipeline: &'l str,
    /// `waiting`, `settled`, `parked`, `deferred`, `queued` or `discarded`.
    state: &'l str,
    settled_at: Option<String>,
    /// It is settled, and this pipeline has not published it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_its_own: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    set_aside: Option<SetAsideObject<'l>>,
    ahead: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    behind: Option<BlockerObject<'l>>,
    /// What an operator has stopped, so that it waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pauses: Vec<PauseObject<'l>>,
}

#[derive(Serialize)]
struct BlockerObject<'l> {
    event_id: &'l str,
    #[serde(flatten)]
    set_aside: SetAsideObject<'l>,
}

/// Shows an event.
pub(crate) async fn run(args: &ShowArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let operator = outbox.operator().await?;
    let life = operator.event(&args.event_id, args.payload).await?;
    let life = life.ok_or_else(|| not_found(&args.event_id))?;
    let pauses = operator.pauses().await?;
    let not_its_own = not_its_own(&*operator, &life).await?;
    let broker = match args.in_broker {
        true => Some(look_in_broker(args, &*operator, &life.event, output).await?),
        false => None,
    };
    if output.is_json() {
        return output.object(&to_object(&life, &not_its_own, &pauses, broker.as_ref()));
    }
    let places = broker.iter().map(|(pipeline, places)| places_text(pipeline, places));
    output.data(&[to_text(&life, &not_its_own, &pauses), places.collect()].concat())?;
    if life.pipelines.is_empty() {
        output.talk("no relay has ever read this outbox");
    }
    let is_parked = |it: &InPipeline| matches!(&it.standing, Standing::SetAside(aside) if aside.state == "parked");
    if life.pipelines.iter().any(is_parked) {
        let id = plain(&life.event.event_id);
        output.talk(&format!("publish it again: postrider dlq retry {id} {}", outbox.flags));
    }
    Ok(())
}

/// The pipelines that are past the event, and have not published it.
async fn not_its_own(operator: &dyn Operator, life: &EventLife) -> Result<Vec<String>, CliError> {
    let EventRow { position, event_id, payload_bytes, created_at, .. } = life.event.clone();
    let stored = [Stored { position, event_id, payload_bytes, created_at }];
    let mut names = Vec::new();
    let is_settled = |it: &&InPipeline| matches!(it.standing, Standing::Settled { .. });
    for InPipeline { pipeline, .. } in life.pipelines.iter().filter(is_settled) {
        // What it matches by its configuration may not be what it matched when the event came.
        let fates = operator.fates(pipeline, &[], &stored).await?;
        if fates.iter().any(|(_, fate)| *fate == Fate::NotItsOwn) {
            names.push(pipeline.clone());
        }
    }
    Ok(names)
}

/// The pipeline that was asked, and where its broker keeps the event.
async fn look_in_broker(
    args: &ShowArgs,
    operator: &dyn Operator,
    event: &EventRow,
    output: Output,
) -> Result<(String, Places), CliError> {
    let Some(path) = args.outbox.config.as_deref() else {
        let error = CliError::new(Code::Usage, "nothing says in which broker to look");
        return Err(error.with_fix("add --config FILE, with the pipeline, instead of --from"));
    };
    let (_, pipeline) = route::of_config(path, args.pipeline.as_deref())?;
    let mut progress = Progress::new(output);
    let tell = |messages| progress.show(|_| format!("{messages} messages"));
    let places = verification::places(&pipeline, operator, event, tell).await?;
    Ok((pipeline.name, places))
}

fn places_text(pipeline: &str, places: &Places) -> String {
    let mut text = format!("\nbroker of     {}\n", plain(pipeline));
    for Kept { topic, place, sent_at, .. } in &places.kept {
        let sent = sent_at.map(|sent| format!(", sent at {}", rfc3339(sent))).unwrap_or_default();
        text.push_str(&format!("kept at       {} {}{sent}\n", plain(topic), plain(place)));
    }
    if places.kept.is_empty() {
        let among = if places.is_all { "" } else { "the first " };
        let messages = places.looked_at;
        text.push_str(&format!(
            "not there     among {among}{messages} messages of its topic since it was written\n"
        ));
    }
    text
}

fn not_found(event_id: &str) -> CliError {
    let what = format!("the event {} is neither in the outbox nor set aside", plain(event_id));
    let mut error = CliError::new(Code::Failure, what);
    error.why = [
        "it was published, and then pruned, or removed at once (progress = \"delete\")",
        "its transaction was rolled back, or is still open",
        "an operator discarded it, and it was pruned",
        "it stands in another table: name it with --table",
        "it was written to the log alone (PostgreSQL), and published",
    ]
    .map(str::to_owned)
    .to_vec();
    error.with_fix("look for it in the archive of `prune`, at the broker, or in the writer's log")
}

fn state(standing: &Standing) -> &str {
    match standing {
        Standing::Waiting => "waiting",
        Standing::Settled { .. } => "settled",
        Standing::SetAside(set_aside) => &set_aside.state,
    }
}

/// What keeps an event from being published in a pipeline.
fn stopped_by<'p>(
    pauses: &'p [Pause],
    event: &EventRow,
    it: &InPipeline,
) -> impl Iterator<Item = &'p Pause> {
    let is_settled = matches!(it.standing, Standing::Settled { .. });
    pauses.iter().filter(move |pause| {
        let is_its_key = |key: &Key| {
            key.aggregate_type == event.aggregate_type && key.aggregate_id == event.aggregate_id
        };
        let is_here = pause.pipeline.as_ref().is_none_or(|name| *name == it.pipeline);
        !is_settled && is_here && pause.key.as_ref().is_none_or(is_its_key)
    })
}

fn to_object<'l>(
    life: &'l EventLife,
    not_its_own: &[String],
    pauses: &'l [Pause],
    broker: Option<&'l (String, Places)>,
) -> LifeObject<'l> {
    let pipelines = life.pipelines.iter().map(|it| PipelineObject {
        pipeline: &it.pipeline,
        state: state(&it.standing),
        settled_at: match &it.standing {
            Standing::Settled { at } => at.map(rfc3339),
            Standing::SetAside(_) | Standing::Waiting => None,
        },
        not_its_own: not_its_own.contains(&it.pipeline),
        set_aside: match &it.standing {
            Standing::SetAside(set_aside) => Some(SetAsideObject::new(set_aside)),
            Standing::Settled { .. } | Standing::Waiting => None,
        },
        ahead: it.ahead,
        behind: it.behind.as_ref().map(|behind| BlockerObject {
            event_id: &behind.event_id,
            set_aside: SetAsideObject::new(&behind.set_aside),
        }),
        pauses: stopped_by(pauses, &life.event, it).map(PauseObject::new).collect(),
    });
    LifeObject {
        event: EventObject::new(&life.event),
        in_outbox: life.in_outbox,
        pipelines: pipelines.collect(),
        broker: broker.map(|(pipeline, places)| BrokerObject {
            pipeline,
            kept: places
                .kept
                .iter()
                .map(|Kept { topic, place, sent_at, .. }| KeptObject {
                    topic,
                    place,
                    sent_at: sent_at.map(rfc3339),
                })
                .collect(),
            looked_at: places.looked_at,
            looked_at_all: places.is_all,
        }),
    }
}

fn to_text(life: &EventLife, not_its_own: &[String], pauses: &[Pause]) -> String {
    let EventLife { event, in_outbox, pipelines } = life;
    let time = |time: Option<std::time::SystemTime>| time.map_or_else(|| "-".into(), rfc3339);
    let stands = if *in_outbox { "in the outbox" } else { "only set aside, not in the outbox" };
    let mut lines = vec![
        ("event id", plain(&event.event_id)),
        ("stands", stands.to_owned()),
        ("position", event.position.to_string()),
        ("key", key_text(event)),
        ("event type", plain(&event.event_type)),
        ("occurred at", time(event.occurred_at)),
        ("written at", time(event.created_at)),
    ];
    lines.extend(event.transaction.as_ref().map(|xid| ("transaction", plain(xid))));
    lines.extend(event.deliver_after.map(|after| ("not before", rfc3339(after))));
    lines.extend(event.topic.as_ref().map(|topic| ("topic", plain(topic))));
    lines.push(("content type", plain(&event.content_type)));
    lines.push(("headers", plain(&headers(event))));
    let mut text = String::new();
    for (name, value) in lines {
        text.push_str(format!("{name:<14}{value}").trim_end());
        text.push('\n');
    }
    text.push_str(&payload_text(event));
    for it in pipelines {
        text.push_str(&format!("\npipeline      {}\n", plain(&it.pipeline)));
        let by_another = match not_its_own.contains(&it.pipeline) {
            true => "; this pipeline did not publish it",
            false => "",
        };
        let standing = standing_text(&it.standing);
        text.push_str(&format!("state         {standing}{by_another}\n"));
        if let Some(behind) = &it.behind {
            let (id, ahead) = (plain(&behind.event_id), it.ahead);
            let why = set_aside_text(&behind.set_aside);
            text.push_str(&format!("waits behind  {ahead} of its key, first {id}: {why}\n"));
        }
        for pause in stopped_by(pauses, event, it) {
            let what = if pause.key.is_some() { "its key" } else { "the pipeline" };
            let why = pause.reason.as_ref().map(|why| format!(": {}", plain(why)));
            let since = rfc3339(pause.since);
            text.push_str(&format!(
                "paused        {what}, since {since}{}\n",
                why.unwrap_or_default()
            ));
        }
    }
    text
}

fn standing_text(standing: &Standing) -> String {
    match standing {
        Standing::Waiting => "waiting: yet to be read, or under way".to_owned(),
        Standing::Settled { at: Some(at) } => format!("settled at {}", rfc3339(*at)),
        Standing::Settled { at: None } => "settled: the cursor is past it".to_owned(),
        Standing::SetAside(set_aside) => set_aside_text(set_aside),
    }
}

fn payload_text(event: &EventRow) -> String {
    let bytes = event.payload_bytes;
    let Some(payload) = &event.payload else { return format!("payload       {bytes} bytes\n") };
    // Anything that a terminal could take for a command is shown as base64.
    let is_printable = |c: char| !is_deceptive(c) || c == '\n' || c == '\t';
    match std::str::from_utf8(payload) {
        Ok(text) if text.chars().all(is_printable) => {
            format!("payload       {bytes} bytes: {}\n", text.trim_end())
        }
        _ => format!("payload       {bytes} bytes, as base64: {}\n", STANDARD.encode(payload)),
    }
}
