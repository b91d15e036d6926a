//! Environment variables: what references name, and what overrides the file.
//!
//! `POSTRIDER_SOURCE__URL` overrides `url` of `[source]`, `POSTRIDER_PRUNE__KEEP` overrides
//! `keep` of `[prune]`, and so on for every section, and `POSTRIDER_PIPELINE__ORDERS__SINK__URL`
//! overrides `url` of the sink of the pipeline `orders`; `-` and `.` in a pipeline's name become
//! `_`.

use std::collections::BTreeMap;

use super::problem::{Origin, Report};
use super::tree::{Node, Table, Value};
use crate::suggestion::nearest;

const PREFIX: &str = "POSTRIDER_";

/// The keys of `[source]`, besides the names of columns.
const SOURCE_KEYS: [&str; 3] = ["HINT", "TABLE", "URL"];
/// The keys of the sections, without the pipelines'; the source first, as in a file.
const SECTIONS: [(&str, &[&str]); 5] = [
    ("SOURCE", &SOURCE_KEYS),
    ("ALARMS", &["DEAD_LETTERS", "ENABLED", "LAG", "RETAINED_WAL"]),
    ("HTTP", &["HOSTS", "LISTEN", "TOKEN"]),
    ("PRUNE", &["ARCHIVE", "EVERY", "KEEP"]),
    ("RECONCILE", &["ENABLED", "EVERY", "OLDER_THAN", "PUBLISH"]),
];
/// The keys of a pipeline, besides the sink's own options.
pub(super) const PIPELINE_KEYS: [&str; 19] = [
    "GRACE",
    "MATCH__AGGREGATE_TYPE",
    "MODE",
    "ON_DEAD",
    "ORDERING",
    "PROGRESS",
    "RETRY__ATTEMPTS",
    "RETRY__INITIAL",
    "RETRY__MAX",
    "SHARDS",
    "SINK__CLOUDEVENTS_SOURCE",
    "SINK__FORMAT",
    "SINK__KEY",
    "SINK__TIMEOUT",
    "SINK__TOPIC",
    "SINK__URL",
    "STALL_AFTER",
    "WINDOW__BYTES",
    "WINDOW__EVENTS",
];

/// The environment variables that a configuration may use.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables of this process; those that are not text are left out.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self { variables: variables.collect() }
    }
}

impl std::fmt::Debug for Environment {
    /// Names only: any value may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// Puts overriding variables into the tree and reports those that name nothing.
pub(super) fn override_values(env: &Environment, root: &mut Table, report: &Report) {
    for (name, value) in env.variables.iter().filter(|(name, _)| is_meant_for_us(name)) {
        let origin = Origin::Environment(name.clone());
        let rest = &name[PREFIX.len()..];
        let found = match rest.strip_prefix("PIPELINE__") {
            Some(path) => override_pipelines(root, path, value, &origin, report),
            None => section_keys().any(|key| key == rest) && set(root, rest, value, &origin),
        };
        if !found {
            let known = known_names(root);
            let fix = match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`? otherwise unset it"),
                None => format!("unset it, or use one of {}", known.join(", ")),
            };
            report.add(&origin, "this environment variable overrides nothing", fix);
        }
    }
}

/// Puts the variables of the source into the tree, for a command that is about nothing else.
pub(super) fn override_source(env: &Environment, root: &mut Table) {
    for key in SOURCE_KEYS {
        let name = format!("{PREFIX}SOURCE__{key}");
        if let Some(value) = env.get(&name) {
            set(root, &format!("SOURCE__{key}"), value, &Origin::Environment(name.clone()));
        }
    }
}

/// Whether a variable is shaped like an override. Others with our prefix are not ours to judge:
/// `POSTRIDER_LOG`, or `POSTRIDER_SERVICE_HOST`, which Kubernetes sets for a service of our name.
fn is_meant_for_us(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else {
        return false;
    };
    rest.contains("__") || rest.starts_with("SOURCE_") || rest.starts_with("PIPELINE_")
}

fn override_pipelines(
    root: &mut Table,
    path: &str,
    value: &str,
    origin: &Origin,
    report: &Report,
) -> bool {
    let mut found = false;
    for pipeline in pipelines_mut(root) {
        let Some(variable_name) = variable_name(pipeline) else {
            continue;
        };
        let key = path.strip_prefix(&variable_name).and_then(|rest| rest.strip_prefix("__"));
        let Some(key) = key else { continue };
        let is_sink_option = key.strip_prefix("SINK__").is_some_and(|option| !option.is_empty());
        if is_sink_option && !PIPELINE_KEYS.contains(&key) {
            // Only the sink knows which of its options are secret.
            report.add_secret(value);
        }
        if PIPELINE_KEYS.contains(&key) || is_sink_option {
            found |= set(pipeline, key, value, origin);
        }
    }
    found
}

/// Sets `A__B__C` as `a.b.c`.
fn set(table: &mut Table, path: &str, value: &str, origin: &Origin) -> bool {
    let path = path.to_lowercase();
    let mut parts: Vec<&str> = path.split("__").collect();
    let Some(key) = parts.pop().filter(|key| !key.is_empty()) else {
        return false;
    };
    let mut table = table;
    for part in parts {
        match table.table_mut(part, origin) {
            Some(inner) => table = inner,
            // The file has something else there, which is reported when it is read.
            None => return true,
        }
    }
    table.set(key, Node::text(value, origin.clone()));
    true
}

/// `SOURCE__URL`, and all others like it.
fn section_keys() -> impl Iterator<Item = String> {
    SECTIONS
        .iter()
        .flat_map(|(section, keys)| keys.iter().map(move |key| format!("{section}__{key}")))
}

fn known_names(root: &mut Table) -> Vec<String> {
    let mut names: Vec<String> = section_keys().map(|key| format!("{PREFIX}{key}")).collect();
    for pipeline in pipelines_mut(root) {
        if let Some(name) = variable_name(pipeline) {
            let keys = PIPELINE_KEYS.iter();
            names.extend(keys.map(|key| format!("{PREFIX}PIPELINE__{name}__{key}")));
        }
    }
    names
}

fn pipelines_mut(root: &mut Table) -> impl Iterator<Item = &mut Table> {
    let pipelines = root.entries.iter_mut().find(|entry| entry.key == "pipeline");
    let nodes = match pipelines.map(|entry| &mut entry.node.value) {
        Some(Value::Array(nodes)) => nodes.iter_mut(),
        _ => [].iter_mut(),
    };
    nodes.filter_map(|node| match &mut node.value {
        Value::Table(table) => Some(table),
        _ => None,
    })
}

/// The pipeline's name as it stands in variables.
fn variable_name(pipeline: &Table) -> Option<String> {
    match &pipeline.get("name")?.value {
        Value::Text(name) => Some(name.value.to_uppercase().replace(['-', '.'], "_")),
        _ => None,
    }
}
