//! The configuration of a relay: one source and its pipelines.
//!
//! It comes from a TOML file, over which environment variables go ([`Environment`]), or from
//! command line flags alone. All of it is put into one tree, secrets referred to by
//! `${env:NAME}` and `${file:path}` are filled in, and then everything is checked, without
//! touching a database or a network. Every mistake is reported at once, each with its place and
//! its fix ([`Problems`]), and none shows a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

mod alarms;
mod environment;
mod flags;
mod http;
mod pipeline;
mod problem;
mod prune;
mod quantity;
mod reconcile;
mod reference;
mod section;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod tree;

use self::pipeline::Read;
use self::problem::Report;
use self::section::Section;
use self::tree::{Table, Value};
use crate::pipeline::{Options, Ordering};
use crate::secret::{Secret, SecretUrl};
use crate::sinks::SinkSpec;

pub use self::environment::Environment;
pub use self::flags::Flags;
pub use self::problem::{Origin, Problem, Problems};
pub use self::quantity::duration as parse_duration;
pub use self::quantity::size as parse_size;
pub use crate::sources::{Mode, Progress, StartAt};
pub use postrider::schema::TableName;

/// The name of the pipeline that flags describe.
pub const PIPELINE_DEFAULT: &str = "default";

/// One source and its pipelines, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database with the outbox.
    pub source: SourceConfig,
    /// What is read from it and where it goes; never empty.
    pub pipelines: Vec<PipelineConfig>,
    /// What becomes of published events; `None` means that they stay.
    pub prune: Option<PruneConfig>,
    /// How the relay looks for missed events by itself; `None` means not at all.
    pub reconcile: Option<ReconcileConfig>,
    /// From when on the log says that something is wrong; `None` means never.
    pub alarms: Option<AlarmConfig>,
    /// Where the relay answers machines; `None` means nowhere.
    pub http: Option<HttpConfig>,
}

/// The database with the outbox.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// The database.
    pub url: SecretUrl,
    /// The outbox table. Defaults to `outbox`.
    pub table: TableName,
    /// The columns of a table that is not of our making: our name to its name.
    pub columns: BTreeMap<String, String>,
    /// Where the relay listens for [hints](crate::hint).
    pub hint: Option<SocketAddr>,
}

/// Where the relay serves `/metrics`, `/livez` and `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// An address of this host. With port 0 it is any that is free, and the log says which.
    pub listen: SocketAddr,
    /// What a request has to bring as `authorization: Bearer …`, if anything.
    pub token: Option<Secret>,
    /// Names that the relay goes by in the header `Host`, besides numeric addresses and
    /// `localhost`. None are these two on a loopback address, and any name on another one.
    pub hosts: Vec<String>,
}

/// When published events are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneConfig {
    /// How long they stay.
    pub keep: Duration,
    /// How often is looked for some to remove. Defaults to 1 min.
    pub every: Duration,
    /// The folder that what is removed is written to before it goes.
    pub archive: Option<PathBuf>,
    /// Whether events go as well that no pipeline has published, because none matches their type.
    /// Defaults to `false`.
    pub unmatched: bool,
}

/// When a relay looks for [events that were missed](crate::reconcile).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileConfig {
    /// How often. Defaults to 5 min.
    pub every: Duration,
    /// How long an event should have been published by then. Defaults to 5 min.
    pub older_than: Duration,
    /// Whether what relays would not find by themselves is given back to them. Defaults to `true`.
    pub publish: bool,
}

/// The limits of [alarms](crate::telemetry): one begins when a value is above its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlarmConfig {
    /// Of the age of the oldest event that waits. Defaults to 5 min.
    pub lag: Duration,
    /// Of the number of dead letters. Defaults to 0.
    pub dead_letters: u64,
    /// Of the log that the server keeps for a slot, in bytes. Defaults to 5 GiB; half of what the
    /// server allows is a limit as well.
    pub retained_wal: u64,
}

/// One pipeline.
#[derive(Clone)]
pub struct PipelineConfig {
    /// Its name, under which it keeps its progress.
    pub name: String,
    /// How events are read. Defaults to [`Mode::Poll`].
    pub mode: Mode,
    /// With [`Mode::Cdc`]: how much of the server's log may be kept for the pipeline, in bytes,
    /// before the table is read instead. Defaults to
    /// [`MAX_RETAINED_WAL_DEFAULT`](crate::sources::MAX_RETAINED_WAL_DEFAULT).
    pub max_retained_wal: u64,
    /// How progress is kept. Defaults to [`Progress::Mark`].
    pub progress: Progress,
    /// Where it begins if it is new. Defaults to [`StartAt::Oldest`].
    pub start: StartAt,
    /// Only events of these aggregate types; empty means all.
    pub aggregate_types: Vec<String>,
    /// Into how many shards the keys are divided, each of which one relay at a time has.
    /// Defaults to 1.
    pub shards: u32,
    /// How long another relay waits before it takes over from one that has fallen silent.
    /// Defaults to [`LEASE_DEFAULT`](crate::sources::LEASE_DEFAULT).
    pub lease: Duration,
    /// Where events go, in a form that can be printed.
    pub sink_url: SecretUrl,
    /// Where events go, and the options of that sink.
    pub sink: SinkSpec,
    /// How the pipeline behaves.
    pub options: Options,
}

impl fmt::Debug for PipelineConfig {
    /// Of the sink's options and headers only the names: any value may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&String> =
            self.options.encoding.route.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("PipelineConfig")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .field("max_retained_wal", &self.max_retained_wal)
            .field("progress", &self.progress)
            .field("start", &self.start)
            .field("aggregate_types", &self.aggregate_types)
            .field("shards", &self.shards)
            .field("lease", &self.lease)
            .field("sink_url", &self.sink_url)
            .field("sink_options", &self.sink.options.keys().collect::<Vec<_>>())
            .field("headers", &headers)
            .field("ordering", &self.options.ordering)
            .field("on_dead", &self.options.on_dead)
            .field("retry", &self.options.retry)
            .field("window", &self.options.window)
            .finish_non_exhaustive()
    }
}

impl PipelineConfig {
    /// Whether events go to stdout, which then belongs to them alone.
    pub fn writes_to_stdout(&self) -> bool {
        has_scheme(&self.sink_url, "stdout")
    }
}

impl Config {
    /// Reads a configuration file's text. `file` is what the file is called in messages.
    pub fn parse(text: &str, file: &str, env: &Environment) -> Result<Self, Problems> {
        let report = Report::default();
        let root = tree::parse(text, file, env, &report);
        let start = Origin::File { name: file.into(), line: 1, column: 1 };
        read(root, start, env, report)
    }

    /// Makes the configuration of one pipeline, named `default`, from flags.
    pub fn from_flags(flags: &Flags, env: &Environment) -> Result<Self, Problems> {
        read(flags.relay_tree(), Origin::Flag("--from"), env, Report::default())
    }
}

impl SourceConfig {
    /// Makes the configuration of a source alone from `--from` and `--table`.
    pub fn from_flags(flags: &Flags, env: &Environment) -> Result<Self, Problems> {
        let report = Report::default();
        let mut root = flags.source_tree();
        environment::override_source(env, &mut root);
        let root = Section::new("the flags".into(), Origin::Flag("--from"), root, &report);
        let source = source::read(&root);
        match (report.into_problems(), source) {
            (None, Some(source)) => Ok(source),
            (problems, _) => Err(problems.expect("whatever is missing was reported")),
        }
    }

    fn is_sqlite(&self) -> bool {
        has_scheme(&self.url, "sqlite")
    }
}

fn has_scheme(url: &SecretUrl, scheme: &str) -> bool {
    url.expose().split(':').next().is_some_and(|it| it.eq_ignore_ascii_case(scheme))
}

/// Reads the whole tree, or says everything that is wrong with it.
fn read(
    mut root: Table,
    start: Origin,
    env: &Environment,
    report: Report,
) -> Result<Config, Problems> {
    // A file that is not TOML has nothing else to say.
    if !report.is_empty() && root.entries.is_empty() {
        return Err(report.into_problems().expect("there is a problem"));
    }
    environment::override_values(env, &mut root, &report);
    let root = Section::new("the configuration".into(), start, root, &report);
    let source = source::read(&root);
    let prune = prune::read(&root);
    let reconcile = reconcile::read(&root);
    let alarms = alarms::read(&root);
    let http = http::read(&root);
    let pipelines = read_pipelines(&root, &report);
    check_together(&pipelines, source.as_ref(), &report);
    root.finish();

    let pipelines: Option<Vec<_>> = pipelines.into_iter().map(|read| read.config).collect();
    match (report.into_problems(), source, pipelines) {
        (None, Some(source), Some(pipelines)) => {
            Ok(Config { source, pipelines, prune, reconcile, alarms, http })
        }
        (problems, ..) => Err(problems.expect("whatever is missing was reported")),
    }
}

fn read_pipelines(root: &Section<'_>, report: &Report) -> Vec<Read> {
    let fix = "add [[pipeline]] with a name and [pipeline.sink] with a url";
    let Some(node) = root.take("pipeline") else {
        report.add(&root.origin, "there is no [[pipeline]]", fix);
        return Vec::new();
    };
    let Value::Array(items) = &node.value else {
        let what = format!("`pipeline` has to be a list of sections, and is {}", node.kind());
        report.add(&node.origin, what, "write [[pipeline]] with two brackets");
        return Vec::new();
    };
    if items.is_empty() {
        report.add(&node.origin, "there is no [[pipeline]]", fix);
    }
    let mut pipelines = Vec::new();
    for item in items {
        match &item.value {
            Value::Table(table) => pipelines.push(pipeline::read(Section::new(
                "[[pipeline]]".into(),
                item.origin.clone(),
                table.clone(),
                report,
            ))),
            _ => report.add(&item.origin, "a pipeline has to be a section", fix),
        }
    }
    pipelines
}

/// Checks what no pipeline can know on its own.
fn check_together(pipelines: &[Read], source: Option<&SourceConfig>, report: &Report) {
    let database = source.and_then(|source| source.url.expose().split(':').next());
    for (index, read) in pipelines.iter().enumerate() {
        let names = pipelines[..index].iter().filter_map(|earlier| earlier.name.as_ref());
        if let Some(name) = &read.name
            && names.clone().any(|earlier| earlier.value == name.value)
        {
            let what = format!("there is another pipeline named \"{}\"", name.value);
            report.add(&name.origin, what, "give each pipeline a name of its own");
        }
        if let (Mode::Cdc, Some(database)) = (read.mode.value, database) {
            if !matches!(database, "postgres" | "postgresql") {
                let what = format!("mode \"cdc\" is not available for {database}");
                report.add(&read.mode.origin, what, "write mode = \"poll\", or remove it");
            }
            check_cdc(read, report);
        }
        if read.shards.value > 1 {
            check_shards(read, source, report);
        }
        check_exactly_once(read, &pipelines[..index], report);
        if pipelines.len() > 1 && read.progress.value != Progress::Cursor {
            let what = format!(
                "progress \"{}\" belongs to one pipeline, and this outbox has {}",
                read.progress.value.as_str(),
                pipelines.len()
            );
            report.add(&read.progress.origin, what, "write progress = \"cursor\" in each of them");
        }
    }
}

/// Says what does not go with reading the log.
fn check_cdc(read: &Read, report: &Report) {
    if read.progress.value != Progress::Cursor {
        let what = format!(
            "mode \"cdc\" keeps its progress by cursor, not by {}",
            read.progress.value.as_str()
        );
        report.add(&read.progress.origin, what, "write progress = \"cursor\", or remove it");
    }
    if read.shards.value > 1 {
        let what = "shards are for polling: with mode \"cdc\" one relay reads the whole log";
        report.add(&read.shards.origin, what, "write shards = 1, or remove it");
    }
}

/// Says why a pipeline cannot be the only one that publishes under its transactional id.
fn check_exactly_once(read: &Read, earlier: &[Read], report: &Report) {
    let Some((config, name)) = read.config.as_ref().zip(read.name.as_ref()) else { return };
    let Some(id) = transactional_id(config) else { return };
    if config.options.ordering == Ordering::None {
        let what = "exactly_once is for one relay at a time, and with ordering \"none\" several \
                    work side by side, of which each would end the transactions of the others";
        let fix = "write ordering = \"key\", or exactly_once = false";
        report.add(&name.origin, what, fix);
    }
    let mut earlier = earlier.iter().filter_map(|read| read.config.as_ref());
    if let Some(other) = earlier
        .find(|other| other.name != config.name && transactional_id(other).as_ref() == Some(&id))
    {
        let what = format!("pipeline {} has the same transactional_id", other.name);
        report.add(&name.origin, what, "give each one of its own, or leave it out");
    }
}

/// The name under which a pipeline with exactly once is the only one.
fn transactional_id(config: &PipelineConfig) -> Option<String> {
    let option = |name| config.sink.options.get(name);
    option("exactly_once").and_then(toml::Value::as_bool).filter(|is_on| *is_on)?;
    let id = option("transactional_id").and_then(toml::Value::as_str);
    Some(id.map_or_else(|| format!("postrider/{}", config.name), str::to_owned))
}

/// Says why a pipeline cannot be divided into shards.
fn check_shards(read: &Read, source: Option<&SourceConfig>, report: &Report) {
    let at = &read.shards.origin;
    let one = "write shards = 1, or remove it";
    if source.is_some_and(SourceConfig::is_sqlite) {
        let what = "more than one shard is not available for sqlite: one relay has the whole file";
        report.add(at, what, one);
    }
    let Some(config) = &read.config else { return };
    if config.options.ordering == Ordering::None {
        let what =
            "shards keep keys in order, and with ordering \"none\" there is no order to keep";
        let fix = match read.progress.value {
            Progress::Cursor => "write ordering = \"key\", or shards = 1".to_owned(),
            Progress::Delete | Progress::Mark => {
                format!("{one}: any number of relays read side by side without them")
            }
        };
        report.add(at, what, fix);
    }
    if has_scheme(&config.sink_url, "file") {
        let what = "shards write side by side, and a file has one writer at a time";
        report.add(at, what, format!("{one}; or use another sink"));
    }
}
