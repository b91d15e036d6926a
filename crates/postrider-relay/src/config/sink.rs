//! Reads `[pipeline.sink]`. What is not known here belongs to the sink, which checks it.

use std::time::Duration;

use super::problem::Origin;
use super::quantity::{HOUR, MILLISECOND};
use super::section::{Given, Section};
use super::tree::{Entry, Node, Text, Value};
use crate::formats::{Encoding, Format, SourceName};
use crate::pipeline::Options;
use crate::routing::Template;
use crate::secret::SecretUrl;
use crate::sinks::{PipelineFacts, SinkSpec};

/// Sinks with a time limit of their own for each request, by an option of the same name.
const SCHEMES_WITH_TIMEOUT: [&str; 3] = ["http", "https", "kafka"];
/// How much later than such a sink the pipeline gives up.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(5);

/// Reads the section of a pipeline's sink, and what of it concerns the pipeline. Everything else of
/// the pipeline has been read.
pub(super) fn read(
    section: &Section<'_>,
    pipeline: &str,
    options: &mut Options,
) -> Option<(SecretUrl, SinkSpec)> {
    let Some(inner) = section.section("sink", format!("[pipeline.sink] of {pipeline}")) else {
        if !section.has("sink") {
            let what = format!("pipeline {pipeline} has no sink");
            let fix = "add [pipeline.sink] with url = \"stdout:\", \"file:///…\" or \"http://…\"";
            section.report.add(&section.origin, what, fix);
        }
        return None;
    };
    let url = inner.required_string("url", "stdout:");
    read_encoding(&inner, pipeline, &mut options.encoding);
    let timeout = inner.duration("timeout", MILLISECOND..=HOUR);
    let url = url?;
    let rest = inner.rest().map(|entry| (entry.key.clone(), to_toml(&entry.node)));
    let mut spec = SinkSpec { options: rest.collect(), ..SinkSpec::new(&url.value.value) };
    if let Some(timeout) = timeout {
        options.publish_timeout = timeout;
        let scheme = spec.url.split(':').next().unwrap_or_default().to_ascii_lowercase();
        if SCHEMES_WITH_TIMEOUT.contains(&scheme.as_str()) {
            let text = format!("{}ms", timeout.as_millis());
            spec.options.insert("timeout".into(), text.into());
            options.publish_timeout = timeout + TIMEOUT_MARGIN;
        }
    }
    spec.pipeline = facts(pipeline, options);
    report_problems(&inner, &spec);
    Some((SecretUrl::from_reference(url.value.value, &url.value.written), spec))
}

/// What the sink knows of its pipeline.
fn facts(name: &str, options: &Options) -> PipelineFacts {
    PipelineFacts {
        name: name.to_owned(),
        topic: options.encoding.route.topic.constant().map(str::to_owned),
        header_names: options.encoding.route.headers.iter().map(|(name, _)| name.clone()).collect(),
        retry_horizon: options.retry.horizon(),
        call_timeout: Some(options.publish_timeout),
        window_events: options.window.events_max,
    }
}

/// Puts what the sink has to say about its options into the report.
fn report_problems(section: &Section<'_>, spec: &SinkSpec) {
    for problem in spec.problems() {
        let key = problem.option.split('.').next().unwrap_or_default();
        if section.is_unresolved(key) {
            continue;
        }
        let origin = section.origin_of(key);
        let mut what = format!("`{}`: {}", problem.option, problem.message);
        let mut fix = problem.hint.unwrap_or_else(|| format!("correct `{}`", problem.option));
        if let Origin::Flag(_) = origin {
            what = problem.message;
            fix = fix.replace("set allow_private = true", "add --allow-private");
        }
        section.report.add(&origin, what, fix);
    }
}

fn read_encoding(section: &Section<'_>, pipeline: &str, encoding: &mut Encoding) {
    if let Some(Given { value: name, origin }) = section.string("format") {
        match name.value.parse::<Format>() {
            Ok(format) => encoding.format = format,
            Err(error) => {
                let names = Format::ALL.map(Format::as_str).join("\", \"");
                section.report.add(&origin, error.to_string(), format!("use one of \"{names}\""));
            }
        }
    }
    if let Some(source) = template(section, "cloudevents_source") {
        encoding.source = SourceName(source);
    }
    let route = &mut encoding.route;
    if let Some(topic) = template(section, "topic") {
        route.topic = topic;
    }
    if let Some(key) = template(section, "key") {
        route.key = key;
    }
    let title = format!("`headers` of {pipeline}");
    let Some(headers) = section.section("headers", title) else {
        return;
    };
    for Entry { key: name, node, .. } in headers.rest() {
        match &node.value {
            Value::Text(text) => {
                let template = parse_template(&headers, name, text, &node.origin);
                route.headers.extend(template.map(|template| (name.clone(), template)));
            }
            _ => drop(headers.wrong_type::<()>(name, node, "a string", "\"…\"")),
        }
    }
}

fn template(section: &Section<'_>, key: &'static str) -> Option<Template> {
    let Given { value, origin } = section.string(key)?;
    parse_template(section, key, &value, &origin)
}

fn parse_template(
    section: &Section<'_>,
    key: &str,
    text: &Text,
    origin: &Origin,
) -> Option<Template> {
    Template::parse(&text.value)
        .map_err(|error| {
            let what = format!("`{key}` is not a template: {error}");
            section.report.add(origin, what, format!("correct `{key}` = \"{}\"", text.written));
        })
        .ok()
}

/// A value as the sink gets it. Variables and flags are text: what looks like a boolean or an
/// integer becomes one.
fn to_toml(node: &Node) -> toml::Value {
    match &node.value {
        Value::Text(text) if !matches!(node.origin, Origin::File { .. }) => {
            let (text, boolean) = (&text.value, text.value.parse().map(toml::Value::Boolean));
            let integer = || text.parse().map(toml::Value::Integer);
            boolean.ok().or_else(|| integer().ok()).unwrap_or_else(|| text.clone().into())
        }
        Value::Text(text) => text.value.clone().into(),
        Value::Integer(integer) => (*integer).into(),
        Value::Float(float) => (*float).into(),
        Value::Boolean(boolean) => (*boolean).into(),
        Value::Datetime(datetime) => (*datetime).into(),
        Value::Array(items) => items.iter().map(to_toml).collect::<Vec<_>>().into(),
        Value::Table(table) => {
            let entries = table.entries.iter();
            toml::Value::Table(entries.map(|e| (e.key.clone(), to_toml(&e.node))).collect())
        }
        Value::Unresolved => String::new().into(),
    }
}
