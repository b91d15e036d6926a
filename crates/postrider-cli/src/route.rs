//! Which outbox and which sink a command is about.

use std::path::{Path, PathBuf};

use clap::Args;
use postrider_relay::config::{Config, Flags, PipelineConfig};

use crate::error::{CliError, Code};
use crate::outbox::{self, Outbox};

/// An outbox and a sink: a pipeline of a configuration file, or both by flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct RouteArgs {
    /// The configuration file with the outbox and the pipeline
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to", "table", "topic", "format", "allow_private"])]
    pub(crate) config: Option<PathBuf>,
    /// The pipeline of the configuration file whose sink is meant
    #[arg(long, value_name = "NAME", requires = "config")]
    pub(crate) pipeline: Option<String>,
    /// The database with the outbox [env: POSTRIDER_SOURCE__URL]
    #[arg(long, value_name = "URL")]
    pub(crate) from: Option<String>,
    /// Where events go, such as stdout:, file:///path or kafka://host:9092
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    pub(crate) to: Option<String>,
    /// The outbox table [default: outbox]
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// The topic, a template over the event's fields [default: outbox.event.{aggregate_type}]
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) topic: Option<String>,
    /// How events are encoded: payload, cloudevents, cloudevents-structured or debezium
    /// [default: payload]
    #[arg(long)]
    pub(crate) format: Option<String>,
    /// Let HTTP go to private and loopback addresses
    #[arg(long)]
    pub(crate) allow_private: bool,
}

impl RouteArgs {
    /// The outbox, and the pipeline whose sink and format are used.
    pub(crate) fn find(&self) -> Result<(Outbox, PipelineConfig), CliError> {
        let Some(path) = &self.config else {
            let flags = Flags {
                from: self.from.clone(),
                to: self.to.clone(),
                table: self.table.clone(),
                topic: self.topic.clone(),
                format: self.format.clone(),
                allow_private: self.allow_private,
                ..Flags::default()
            };
            let config = Config::from_flags(&flags, &outbox::environment(&flags)?);
            let Config { source, pipelines, .. } = config.map_err(CliError::problems)?;
            let outbox = Outbox { flags: outbox::from_flags(&source), source };
            let pipeline = pipelines.into_iter().next();
            return Ok((outbox, pipeline.expect("flags describe a pipeline")));
        };
        of_config(path, self.pipeline.as_deref())
    }
}

/// The outbox of a configuration file, and one of its pipelines: that of a name, or the only one.
pub(crate) fn of_config(
    path: &Path,
    name: Option<&str>,
) -> Result<(Outbox, PipelineConfig), CliError> {
    let Config { source, pipelines, .. } = outbox::read_config(path)?;
    let outbox = Outbox { source, flags: outbox::config_flag(path) };
    let names: Vec<String> = pipelines.iter().map(|it| it.name.clone()).collect();
    let is_meant = |it: &PipelineConfig| match name {
        Some(name) => it.name == name,
        None => names.len() == 1,
    };
    let pipeline = pipelines.into_iter().find(is_meant).ok_or_else(|| {
        let what = match name {
            Some(name) => format!("the configuration has no pipeline {name:?}"),
            None => "the configuration has several pipelines".to_owned(),
        };
        let fix = format!("name one of them with --pipeline: {}", names.join(", "));
        CliError::new(Code::Usage, what).with_fix(fix)
    })?;
    Ok((outbox, pipeline))
}
