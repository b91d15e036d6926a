//! `postrider pause` and `postrider resume`: stop a pipeline or a key, and let it go on.

use clap::Args;
use postrider::Key;
use postrider_relay::pauses::Pause;
use serde::Serialize;

use super::dlq::parse_key;
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::{Outbox, read_config, shell_word};
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
    #[arg(long, value_name = "NAME", value_parser = parse_pipeline)]
    pipeline: Option<String>,
    /// Only this key, the type and id of an aggregate
    #[arg(long, value_name = "TYPE/ID", value_parser = parse_key)]
    key: Option<Key>,
}

impl What {
    fn text(&self) -> String {
        text(self.pipeline.as_deref(), self.key.as_ref())
    }

    /// Refuses a pipeline that the configuration does not have.
    fn check_pipeline(&self) -> Result<(), CliError> {
        let (Some(name), Some(path)) = (&self.pipeline, &self.outbox.config) else { return Ok(()) };
        let config = read_config(path)?;
        let names: Vec<&str> = config.pipelines.iter().map(|it| it.name.as_str()).collect();
        if names.contains(&name.as_str()) {
            return Ok(());
        }
        let what = format!("{} has no pipeline {}", path.display(), plain(name));
        let fix = format!("name one that it has: {}", names.join(", "));
        Err(CliError::new(Code::Usage, what).with_fix(fix))
    }
}

/// Reads the name of a pipeline; every one is meant without the flag.
fn parse_pipeline(name: &str) -> Result<String, String> {
    match name {
        "" | "*" => Err("leave it out to mean every pipeline".into()),
        name => Ok(name.to_owned()),
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
    /// What is odd about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'p str>,
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
    what.check_pipeline()?;
    let outbox = Outbox::find(&what.outbox)?;
    let operator = outbox.operator().await?;
    let mut warning = None;
    if let Some(pipeline) = &what.pipeline {
        let status = operator.status().await?;
        let names: Vec<&str> = status.pipelines.iter().map(|it| it.name.as_str()).collect();
        if !names.contains(&pipeline.as_str()) {
            let known = names.join(", ");
            warning = Some(format!("no relay has run {pipeline:?} yet; known are: {known}"));
        }
    }
    let is_new =
        operator.pause(what.pipeline.as_deref(), what.key.as_ref(), reason.as_deref()).await?;
    if output.is_json() {
        let pauses = operator.pauses().await?;
        let pauses = pauses.iter().map(PauseObject::new).collect();
        let warning = warning.as_deref();
        return output.object(&PausedObject { paused: is_new, pauses, warning });
    }
    if let Some(warning) = warning {
        output.talk(&warning);
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
    match resumed.is_empty() {
        true => Err(nothing_resumed(what, &left, &outbox.flags)),
        false => Ok(()),
    }
}

/// Nothing went on: it is not paused, or not by itself.
fn nothing_resumed(what: &What, left: &[Pause], flags: &str) -> CliError {
    let with_all = |pause: &&Pause| pause.pipeline.is_none() && pause.key == what.key;
    let (said, fix) = match (&what.pipeline, &what.key, left.iter().find(with_all)) {
        (Some(pipeline), key, Some(all)) => {
            let key_flag =
                key.as_ref().map(|key| format!(" --key {}", shell_word(&key.to_string())));
            let said = format!(
                "{} is paused, and not the pipeline {} alone",
                text(None, all.key.as_ref()),
                plain(pipeline)
            );
            let resume = format!("postrider resume{} {flags}", key_flag.unwrap_or_default());
            (said, format!("let all of them go on: {resume}"))
        }
        (pipeline, key, _) => {
            let said = match (pipeline, key) {
                (None, None) => "no pipeline is paused".to_owned(),
                (None, Some(key)) => {
                    format!("the key {} is paused in no pipeline", plain(&key.to_string()))
                }
                (Some(_), _) => format!("{} is not paused", what.text()),
            };
            (said, format!("see what is: postrider status {flags}"))
        }
    };
    CliError::new(Code::Failure, said).with_fix(fix)
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
