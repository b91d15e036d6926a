//! The configuration of a relay: one source and its pipelines.
//!
//! It comes from a TOML file, over which environment variables go ([`Environment`]), or from
//! command line flags alone. All of it is put into one tree, secrets referred to by
//! `${env:NAME}` and `${file:path}` are filled in, and then everything is checked, without
//! touching a database or a network. Every mistake is reported at once, each with its place and
//! its fix ([`Problems`]), and none shows a secret.

use std::fmt;

mod environment;
mod flags;
mod pipeline;
mod problem;
mod quantity;
mod reference;
mod section;
mod sink;
#[cfg(test)]
mod tests;
mod tree;

use self::pipeline::Read;
use self::problem::Report;
use self::section::Section;
use self::tree::{Table, Value};
use crate::pipeline::Options;
use crate::secret::SecretUrl;
use crate::sinks::SinkSpec;
use crate::sources::SourceSpec;

pub use self::environment::Environment;
pub use self::flags::Flags;
pub use self::problem::{Origin, Problem, Problems};
pub use crate::sources::Progress;
pub use postrider::schema::TableName;

/// The name of the pipeline that flags describe.
pub const PIPELINE_DEFAULT: &str = "default";

/// Sections of the design that are yet to come.
const SECTIONS_TO_COME: [&str; 2] = ["http", "prune"];

/// One source and its pipelines, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database with the outbox.
    pub source: SourceConfig,
    /// What is read from it and where it goes; never empty.
    pub pipelines: Vec<PipelineConfig>,
}

/// The database with the outbox.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// The database.
    pub url: SecretUrl,
    /// The outbox table. Defaults to `outbox`.
    pub table: TableName,
}

/// One pipeline.
#[derive(Clone)]
pub struct PipelineConfig {
    /// Its name, under which it keeps its progress.
    pub name: String,
    /// How events are read. Defaults to [`Mode::Poll`].
    pub mode: Mode,
    /// How progress is kept. Defaults to [`Progress::Mark`].
    pub progress: Progress,
    /// Only events of these aggregate types; empty means all.
    pub aggregate_types: Vec<String>,
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
            .field("progress", &self.progress)
            .field("aggregate_types", &self.aggregate_types)
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

/// How events are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By asking the table for new rows.
    #[default]
    Poll,
    /// From the database's log.
    Cdc,
}

impl PipelineConfig {
    /// Whether events go to stdout, which then belongs to them alone.
    pub fn writes_to_stdout(&self) -> bool {
        let scheme = self.sink_url.expose().split(':').next();
        scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("stdout"))
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
        let source = read_source(&root);
        match (report.into_problems(), source) {
            (None, Some(source)) => Ok(source),
            (problems, _) => Err(problems.expect("whatever is missing was reported")),
        }
    }
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
    let source = read_source(&root);
    let pipelines = read_pipelines(&root, &report);
    check_together(&pipelines, source.as_ref(), &report);
    for section in SECTIONS_TO_COME {
        if root.take(section).is_some() {
            let what = format!("[{section}] is not available in this version");
            report.add(&root.origin_of(section), what, "remove the section");
        }
    }
    root.finish();

    let pipelines: Option<Vec<_>> = pipelines.into_iter().map(|read| read.config).collect();
    match (report.into_problems(), source, pipelines) {
        (None, Some(source), Some(pipelines)) => Ok(Config { source, pipelines }),
        (problems, ..) => Err(problems.expect("whatever is missing was reported")),
    }
}

fn read_source(root: &Section<'_>) -> Option<SourceConfig> {
    let example = "sqlite:///var/lib/app/app.db";
    let Some(section) = root.section("source", "[source]".into()) else {
        if !root.has("source") {
            let fix = format!("add [source] with url = \"{example}\"");
            root.report.add(&root.origin, "there is no [source]", fix);
        }
        return None;
    };
    let url = section.required_string("url", example);
    let table = match section.string("table") {
        None => Some(TableName::default()),
        Some(table) => TableName::new(&table.value.value)
            .map_err(|error| {
                let what = format!("`table` is not a table name: {error}");
                section.report.add(&table.origin, what, "write, for example, table = \"outbox\"");
            })
            .ok(),
    };
    section.finish();
    let url = url?;
    for problem in SourceSpec::new(&url.value.value).problems() {
        let (what, fix) = problem.split_once("; ").unwrap_or((&problem, "correct `url`"));
        root.report.add(&url.origin, what, fix);
    }
    let url = SecretUrl::from_reference(url.value.value, &url.value.written);
    Some(SourceConfig { url, table: table? })
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
            let what = format!("mode \"cdc\" is not available for {database}");
            report.add(&read.mode.origin, what, "write mode = \"poll\", or remove it");
        }
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
