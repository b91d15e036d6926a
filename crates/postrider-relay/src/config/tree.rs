//! A configuration as a tree of values that know where they came from.
//!
//! File, environment and flags all end up in one tree, so that everything after it reads and
//! checks them the same way.

use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::environment::Environment;
use super::problem::{Origin, Problem, Report};
use super::reference;
use crate::secret::MASK;

/// Most mistakes in the syntax that are reported: after so many it is not a configuration.
const SYNTAX_MISTAKES_MAX: usize = 10;

/// A value and where it was given.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// A value; strings have their references replaced.
#[derive(Clone)]
pub(super) enum Value {
    Text(Text),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Datetime(toml::value::Datetime),
    Array(Vec<Node>),
    Table(Table),
    /// A string whose reference could not be replaced; that has been reported.
    Unresolved,
}

/// A string to use, and how it was written: with references instead of what they stand for.
#[derive(Clone)]
pub(super) struct Text {
    pub(super) value: String,
    pub(super) written: String,
}

/// Keys with their values, in the order they were given.
#[derive(Clone, Default)]
pub(super) struct Table {
    pub(super) entries: Vec<Entry>,
}

/// One `key = value`.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    /// Where the key stands.
    pub(super) origin: Origin,
    pub(super) node: Node,
}

impl Node {
    /// A string that is neither from a file nor holds references.
    pub(super) fn text(value: &str, origin: Origin) -> Self {
        let text = Text { value: value.to_owned(), written: value.to_owned() };
        Self { value: Value::Text(text), origin }
    }

    /// Whether a reference in it, or in anything below it, could not be replaced.
    pub(super) fn is_unresolved(&self) -> bool {
        match &self.value {
            Value::Unresolved => true,
            Value::Array(items) => items.iter().any(Self::is_unresolved),
            Value::Table(table) => table.entries.iter().any(|entry| entry.node.is_unresolved()),
            _ => false,
        }
    }

    /// What kind of value it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) | Value::Unresolved => "a string",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Boolean(_) => "a boolean",
            Value::Datetime(_) => "a date",
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

impl Table {
    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Takes a key out.
    pub(super) fn remove(&mut self, key: &str) -> Option<Entry> {
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.remove(index))
    }

    /// Sets a key, unless a flag already did: flags win over everything else.
    pub(super) fn set(&mut self, key: &str, node: Node) {
        if self.get(key).is_some_and(|old| matches!(old.origin, Origin::Flag(_))) {
            return;
        }
        self.remove(key);
        let origin = node.origin.clone();
        self.entries.push(Entry { key: key.to_owned(), origin, node });
    }

    /// The table below a key, made if there is none; `None` if the key holds something else.
    pub(super) fn table_mut(&mut self, key: &str, origin: &Origin) -> Option<&mut Table> {
        if self.get(key).is_none() {
            let value = Value::Table(Table::default());
            self.set(key, Node { value, origin: origin.clone() });
        }
        self.entries.iter_mut().find(|entry| entry.key == key).and_then(|entry| {
            match &mut entry.node.value {
                Value::Table(table) => Some(table),
                _ => None,
            }
        })
    }
}

/// Reads TOML; what is wrong with the syntax or with references is reported.
pub(super) fn parse(text: &str, file: &str, env: &Environment, report: &Report) -> Table {
    let reader = Reader { text, file: file.into(), env, report };
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors.iter().take(SYNTAX_MISTAKES_MAX) {
        reader.report_syntax(error);
    }
    // After a mistake in the syntax the rest is guesswork.
    if report.is_empty() { reader.table(root.get_ref()) } else { Table::default() }
}

struct Reader<'a> {
    text: &'a str,
    file: Arc<str>,
    env: &'a Environment,
    report: &'a Report,
}

impl Reader<'_> {
    fn origin(&self, span: &Range<usize>) -> Origin {
        let before = &self.text[..self.text.floor_char_boundary(span.start)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Origin::File {
            name: self.file.clone(),
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        let mut spanned: Vec<_> = table.iter().collect();
        spanned.sort_by_key(|(key, _)| key.span().start);
        let entries = spanned
            .into_iter()
            .map(|(key, value)| Entry {
                key: key.get_ref().to_string(),
                origin: self.origin(&key.span()),
                node: self.node(value),
            })
            .collect();
        Table { entries }
    }

    fn node(&self, spanned: &Spanned<DeValue<'_>>) -> Node {
        let origin = self.origin(&spanned.span());
        let value = match spanned.get_ref() {
            DeValue::String(text) => self.string(text, &origin),
            DeValue::Integer(integer) => {
                match i64::from_str_radix(integer.as_str(), integer.radix()) {
                    Ok(integer) => Value::Integer(integer),
                    Err(_) => {
                        self.report.add(&origin, "the integer is too large", "use a smaller one");
                        Value::Unresolved
                    }
                }
            }
            DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(boolean) => Value::Boolean(*boolean),
            DeValue::Datetime(datetime) => Value::Datetime(*datetime),
            DeValue::Array(array) => {
                Value::Array(array.iter().map(|item| self.node(item)).collect())
            }
            DeValue::Table(table) => Value::Table(self.table(table)),
        };
        Node { value, origin }
    }

    fn string(&self, written: &str, origin: &Origin) -> Value {
        match reference::resolve(written, self.env) {
            Ok(resolved) => {
                for secret in &resolved.secrets {
                    self.report.add_secret(secret);
                }
                Value::Text(Text { value: resolved.text, written: written.to_owned() })
            }
            Err(unresolved) => {
                for error in unresolved {
                    self.report.add(origin, error.what, error.fix);
                }
                Value::Unresolved
            }
        }
    }

    fn report_syntax(&self, error: &toml::de::Error) {
        let span = error.span().unwrap_or(0..0);
        let at = self.origin(&span);
        let Origin::File { line, column, .. } = &at else {
            return;
        };
        let content = self.text.lines().nth(line - 1).unwrap_or_default();
        let shown = without_value(content);
        // A mark beyond what is shown would stand in the wrong place.
        let excerpt = (*column <= shown.chars().count() + 1).then(|| {
            let (gutter, indent) = (" ".repeat(line.to_string().len()), " ".repeat(column - 1));
            format!("  {line} | {shown}\n  {gutter} | {indent}^")
        });
        self.report.add_problem(Problem {
            at,
            what: format!("this is not valid TOML: {}", error.message()),
            excerpt,
            fix: "correct the line; see https://toml.io for the syntax".into(),
        });
    }
}

/// The line with its value masked. As long as the file is not TOML, nobody can tell which of its
/// values is a secret.
fn without_value(line: &str) -> String {
    let value = match line.find('=') {
        Some(equals) => equals + 1,
        None if line.trim_start().starts_with('[') => line.len(),
        None => 0,
    };
    let value = line.find(['"', '\'']).map_or(value, |quote| quote.min(value));
    let (shown, value) = line.split_at(value);
    let spaces = value.len() - value.trim_start().len();
    match value.trim() {
        "" => line.to_owned(),
        _ => format!("{shown}{}{MASK}", &value[..spaces]),
    }
}
