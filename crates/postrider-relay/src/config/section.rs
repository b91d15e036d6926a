//! Reads one section of a configuration: takes known keys by type, then complains about the rest.
//!
//! A key that is missing or wrong reads as `None`; what is wrong is in the report, so that
//! reading goes on and finds everything.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::problem::{Origin, Report};
use super::quantity;
use super::tree::{Entry, Node, Table, Text, Value};
use crate::suggestion::nearest;

/// A section that is being read.
pub(super) struct Section<'r> {
    /// What the section is called in messages, such as `[source]`.
    title: String,
    /// Where the section begins.
    pub(super) origin: Origin,
    table: Table,
    /// The keys asked for so far.
    known: RefCell<Vec<&'static str>>,
    pub(super) report: &'r Report,
}

/// A value and where it was given.
pub(super) struct Given<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

impl<'r> Section<'r> {
    pub(super) fn new(title: String, origin: Origin, table: Table, report: &'r Report) -> Self {
        Self { title, origin, table, known: RefCell::default(), report }
    }

    /// Whether the key is there, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    /// Whether a reference in the value could not be replaced, which has been reported.
    pub(super) fn is_unresolved(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(Node::is_unresolved)
    }

    /// Where a key was given, or else where the section begins.
    pub(super) fn origin_of(&self, key: &str) -> Origin {
        self.table.get(key).map_or_else(|| self.origin.clone(), |node| node.origin.clone())
    }

    /// A string.
    pub(super) fn string(&self, key: &'static str) -> Option<Given<Text>> {
        let node = self.take(key)?;
        match &node.value {
            Value::Text(text) => Some(Given { value: text.clone(), origin: node.origin.clone() }),
            _ => self.wrong_type(key, node, "a string", "\"…\""),
        }
    }

    /// A string that has to be there and not be empty.
    pub(super) fn required_string(&self, key: &'static str, example: &str) -> Option<Given<Text>> {
        if !self.has(key) {
            self.known.borrow_mut().push(key);
            let fix = format!("add {key} = \"{example}\"");
            self.report.add(&self.origin, format!("`{key}` is missing in {}", self.title), fix);
            return None;
        }
        let given = self.string(key)?;
        if given.value.value.is_empty() {
            let (what, fix) = if is_override(self.table.get(key)?) {
                ("the value is empty".to_owned(), format!("write, for example, {example}"))
            } else {
                let fix = format!("write, for example, {key} = \"{example}\"");
                (format!("`{key}` in {} is empty", self.title), fix)
            };
            self.report.add(&given.origin, what, fix);
            return None;
        }
        Some(given)
    }

    /// One of several words.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let Given { value: text, origin } = self.string(key)?;
        let found = choices.iter().find(|(name, _)| *name == text.value);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let fix = match nearest(&text.value, names.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("use one of \"{}\"", names.join("\", \"")),
            };
            self.report.add(&origin, format!("`{key}` cannot be \"{}\"", text.written), fix);
        }
        found.map(|(_, choice)| *choice)
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, key: &'static str) -> Option<bool> {
        let node = self.take(key)?;
        match &node.value {
            Value::Boolean(boolean) => Some(*boolean),
            Value::Text(text) if is_override(node) && text.value.parse::<bool>().is_ok() => {
                text.value.parse().ok()
            }
            _ => self.wrong_type(key, node, "true or false", "true"),
        }
    }

    /// An integer within a range.
    pub(super) fn integer(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.take(key)?;
        let integer = match &node.value {
            Value::Integer(integer) => Some(*integer),
            Value::Text(text) if is_override(node) => text.value.parse().ok(),
            _ => None,
        };
        let Some(integer) = integer else {
            return self.wrong_type(key, node, "an integer", &range.start().to_string());
        };
        let value = u64::try_from(integer).ok().filter(|value| range.contains(value));
        if value.is_none() {
            let what = format!("`{key}` cannot be {integer}");
            self.out_of_range(node, what, range.start(), range.end());
        }
        value
    }

    /// A duration such as `5s` within a range.
    pub(super) fn duration(
        &self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let node = self.take(key)?;
        let Value::Text(text) = &node.value else {
            return self.wrong_type(key, node, "a duration", "\"5s\"");
        };
        let Some(duration) = quantity::duration(&text.value) else {
            let what = format!("`{key}` cannot be \"{}\"", text.written);
            self.report.add(&node.origin, what, "write a number and ms, s, m, h or d: \"5s\"");
            return None;
        };
        if !range.contains(&duration) {
            let what = format!("`{key}` cannot be \"{}\"", text.written);
            let least = quantity::show_duration(*range.start());
            self.out_of_range(node, what, least, quantity::show_duration(*range.end()));
            return None;
        }
        Some(duration)
    }

    /// A size in bytes, as an integer or such as `16MiB`, within a range.
    pub(super) fn size(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.take(key)?;
        let (size, shown) = match &node.value {
            Value::Integer(integer) => (u64::try_from(*integer).ok(), integer.to_string()),
            Value::Text(text) => (quantity::size(&text.value), format!("\"{}\"", text.written)),
            _ => return self.wrong_type(key, node, "a size", "\"16MiB\""),
        };
        let value = size.filter(|size| range.contains(size));
        if value.is_none() {
            let least = quantity::show_size(*range.start());
            let what = format!("`{key}` cannot be {shown}");
            self.out_of_range(node, what, least, quantity::show_size(*range.end()));
        }
        value
    }

    /// A list of strings, not empty.
    pub(super) fn strings(&self, key: &'static str) -> Option<Vec<String>> {
        let node = self.take(key)?;
        let strings: Option<Vec<String>> = match &node.value {
            Value::Array(items) => items
                .iter()
                .map(|item| match &item.value {
                    Value::Text(text) => Some(text.value.clone()),
                    Value::Unresolved => Some(String::new()),
                    _ => None,
                })
                .collect(),
            Value::Text(text) if is_override(node) => {
                Some(text.value.split(',').map(|item| item.trim().to_owned()).collect())
            }
            _ => None,
        };
        match strings {
            None => self.wrong_type(key, node, "a list of strings", "[\"Order\"]"),
            Some(strings) if strings.is_empty() => {
                let fix = "name at least one, or remove the key";
                self.report.add(&node.origin, format!("`{key}` is empty"), fix);
                None
            }
            Some(strings) => Some(strings),
        }
    }

    /// A section inside this one.
    pub(super) fn section(&self, key: &'static str, title: String) -> Option<Section<'r>> {
        let node = self.take(key)?;
        match &node.value {
            Value::Table(table) => {
                Some(Section::new(title, node.origin.clone(), table.clone(), self.report))
            }
            _ => self.wrong_type(key, node, "a section", "{ … }"),
        }
    }

    /// The entries that nobody asked for.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Entry> {
        let known = self.known.borrow().clone();
        self.table.entries.iter().filter(move |entry| !known.contains(&entry.key.as_str()))
    }

    /// Reports every key that nobody asked for.
    pub(super) fn finish(self) {
        let mut known = self.known.borrow().clone();
        known.sort_unstable();
        for entry in self.rest() {
            let fix = match nearest(&entry.key, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("remove it; {} has {}", self.title, known.join(", ")),
            };
            let what = format!("unknown key `{}` in {}", entry.key, self.title);
            self.report.add(&entry.origin, what, fix);
        }
    }

    /// The value of a key, which is known from now on.
    pub(super) fn take(&self, key: &'static str) -> Option<&Node> {
        self.known.borrow_mut().push(key);
        self.table.get(key)
    }

    pub(super) fn wrong_type<T>(
        &self,
        key: &str,
        node: &Node,
        expected: &str,
        example: &str,
    ) -> Option<T> {
        if !matches!(node.value, Value::Unresolved) {
            let what = format!("`{key}` has to be {expected}, and is {}", node.kind());
            self.report.add(&node.origin, what, format!("write {key} = {example}"));
        }
        None
    }

    fn out_of_range(
        &self,
        node: &Node,
        what: String,
        least: impl std::fmt::Display,
        most: impl std::fmt::Display,
    ) {
        self.report.add(&node.origin, what, format!("use {least} to {most}"));
    }
}

/// Variables and flags are always text, whatever they mean.
fn is_override(node: &Node) -> bool {
    matches!(node.origin, Origin::Environment(_) | Origin::Flag(_))
}
