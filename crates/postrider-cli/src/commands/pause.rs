//! `postrider pause` and `postrider resume`: stop a pipeline or a key, and let it go on.

use clap::Args;
use postrider::Key;
use postrider_relay::pauses::Pause;
use serde::Serialize;

use super::dlq::parse_key;
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::{Outbox, shell_word};
use crate::output::{Output, plain};
use crate::time::rfc3339;

pub(crate) const PAUSE_EXAMPLES: &str = "\
Examples:
  postrider pause --pipeline orders --reason \"the warehouse is down\" --config postrider.toml
  postrider pause --key Order/42 --config postrider.toml

Relays notice within two seconds. What is under way comes to its end. A pause holds until it is
resumed, also for relays that start later.";

pub(crate) const RESUME_EXAMPLES: &str = "\
Examples:
  postrider resume --pipeline orders --config postrider.toml
  postrider resume --key Order/42 --config postrider.toml
  postrider resume --config postrider.toml    # every pipeline; keys that are paused stay so";

/// The arguments of `postrider pause`.
#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    what: What,
    /// Why, for whoever looks at the status
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// The arguments of `postrider resume`.
#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    what: What,
}

/// What is to be stopped, or to go on.
#[derive(Args, Debug)]
struct What {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Only this pipeline [default: all]
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
    /// Only this key, the type and id of an aggregate
    #[arg(long, value_name = "TYPE/ID", value_parser = parse_key)]
    key: Option<Key>,
}

impl What {
    fn text(&self) -> String {
        text(self.pipeline.as_deref(), self.key.as_ref())
    }
}

/// A pause as JSON.
#[derive(Serialize)]
pub(crate) struct PauseObject<'p> {
    /// `None` is every pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pipeline: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    since: String,
    reason: Option<&'p str>,
}

impl<'p> PauseObject<'p> {
    pub(crate) fn new(pause: &'p Pause) -> Self {
        Self {
            pipeline: pause.pipeline.as_deref(),
            key: pause.key.as_ref().map(ToString::to_string),
            since: rfc3339(pause.since),
            reason: pause.reason.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct PausedObject<'p> {
    /// It was not paused before.
    paused: bool,
    pauses: Vec<PauseObject<'p>>,
}

#[derive(Serialize)]
struct ResumedObject<'p> {
    resumed: Vec<PauseObject<'p>>,
    /// What is still paused.
    pauses: Vec<PauseObject<'p>>,
}

/// Stops a pipeline or a key.
pub(crate) async fn pause(args: &PauseArgs, output: Output) -> Result<(), CliError> {
    let PauseArgs { what, reason } = args;
    let outbox = Outbox::find(&what.outbox)?;
    let operator = outbox.operator().await?;
    if let Some(pipeline) = &what.pipeline {
        let status = operator.status().await?;
        let names: Vec<&str> = status.pipelines.iter().map(|it| it.name.as_str()).collect();
        if !names.contains(&pipeline.as_str()) && !output.is_json() {
            let known = names.join(", ");
            output.talk(&format!("no relay has run {pipeline:?} yet; known are: {known}"));
        }
    }
    let is_new =
        operator.pause(what.pipeline.as_deref(), what.key.as_ref(), reason.as_deref()).await?;
    if output.is_json() {
        let pauses = operator.pauses().await?;
        let pauses = pauses.iter().map(PauseObject::new).collect();
        return output.object(&PausedObject { paused: is_new, pauses });
    }
    let already = if is_new { "" } else { " already" };
    output.talk(&format!("{} is paused{already}; relays notice within two seconds", what.text()));
    output.talk(&format!("let it go on: postrider resume{} {}", flags_of(what), outbox.flags));
    Ok(())
}

/// Lets a pipeline or a key go on.
pub(crate) async fn resume(args: &ResumeArgs, output: Output) -> Result<(), CliError> {
    let what = &args.what;
    let outbox = Outbox::find(&what.outbox)?;
    let operator = outbox.operator().await?;
    let resumed = operator.resume(what.pipeline.as_deref(), what.key.as_ref()).await?;
    let left = operator.pauses().await?;
    if output.is_json() {
        output.object(&ResumedObject {
            resumed: resumed.iter().map(PauseObject::new).collect(),
            pauses: left.iter().map(PauseObject::new).collect(),
        })?;
    } else {
        for pause in &resumed {
            let name = text(pause.pipeline.as_deref(), pause.key.as_ref());
            output.talk(&format!("{name} goes on; it was paused since {}", rfc3339(pause.since)));
        }
        for pause in &left {
            let name = text(pause.pipeline.as_deref(), pause.key.as_ref());
            output.talk(&format!("{name} is still paused, since {}", rfc3339(pause.since)));
        }
    }
    if resumed.is_empty() {
        let what = format!("{} is not paused", what.text());
        let fix = format!("see what is: postrider status {}", outbox.flags);
        return Err(CliError::new(Code::Failure, what).with_fix(fix));
    }
    Ok(())
}

fn text(pipeline: Option<&str>, key: Option<&Key>) -> String {
    let pipeline = match pipeline {
        Some(name) => format!("the pipeline {}", plain(name)),
        None => "every pipeline".to_owned(),
    };
    match key {
        Some(key) => format!("the key {} in {pipeline}", plain(&key.to_string())),
        None => pipeline,
    }
}

fn flags_of(what: &What) -> String {
    let mut flags = String::new();
    if let Some(pipeline) = &what.pipeline {
        flags.push_str(&format!(" --pipeline {}", shell_word(pipeline)));
    }
    if let Some(key) = &what.key {
        flags.push_str(&format!(" --key {}", shell_word(&key.to_string())));
    }
    flags
}
