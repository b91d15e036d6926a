//! Reads a sink's options from a table and collects every mistake.
//!
//! Deserializing stops at the first mistake; an operator wants all of them at once, so options
//! are taken out one by one, and what is left over at the end is unknown.

use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use toml::{Table, Value};

use super::{Problem, Secret};
use crate::suggestion::nearest;

/// What the section of every sink has besides the sink's own options. Others read these.
const OF_EVERY_SINK: [&str; 7] =
    ["cloudevents_source", "format", "headers", "key", "timeout", "topic", "url"];

/// Takes options out of a table. What is wrong becomes a [`Problem`] and counts as not given.
pub(super) struct OptionReader<'a> {
    table: &'a Table,
    known: Vec<&'static str>,
    problems: Vec<Problem>,
}

#[allow(dead_code, reason = "not every sink has every kind of option")]
impl<'a> OptionReader<'a> {
    pub(super) fn new(table: &'a Table) -> Self {
        Self { table, known: Vec::new(), problems: Vec::new() }
    }

    pub(super) fn bool(&mut self, name: &'static str) -> Option<bool> {
        self.take(name, "true or false", Value::as_bool)
    }

    pub(super) fn count(&mut self, name: &'static str) -> Option<usize> {
        let to_count = |value: &Value| value.as_integer().and_then(|count| count.try_into().ok());
        self.take(name, "a whole number", to_count)
    }

    pub(super) fn duration(&mut self, name: &'static str) -> Option<Duration> {
        self.take(name, "a duration such as \"15s\" or \"500ms\"", |value| {
            let text = value.as_str()?;
            if let Some(days) = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok()) {
                return days.checked_mul(24 * 3600).map(Duration::from_secs);
            }
            Duration::try_from(text.parse::<SignedDuration>().ok()?).ok()
        })
    }

    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        self.take(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn secret(&mut self, name: &'static str) -> Option<Secret> {
        self.take(name, "a text", |value| value.as_str().map(Secret::new))
    }

    pub(super) fn path(&mut self, name: &'static str) -> Option<PathBuf> {
        self.take(name, "the path of a file", |value| value.as_str().map(PathBuf::from))
    }

    /// One of several names.
    pub(super) fn choice<T: Clone>(
        &mut self,
        name: &'static str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let names = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>();
        self.take(name, &format!("one of {}", names.join(", ")), |value| {
            let chosen = value.as_str()?;
            let found = choices.iter().find(|(name, _)| *name == chosen);
            found.map(|(_, choice)| choice.clone())
        })
    }

    /// Settings of a client library, as it names them; numbers and booleans become texts.
    pub(super) fn settings(&mut self, name: &'static str) -> Vec<(String, Secret)> {
        let settings = self.take(name, "a table of texts, numbers or booleans", |value| {
            let text = |value: &Value| match value {
                Value::String(text) => Some(Secret::new(text)),
                Value::Integer(number) => Some(Secret::new(number.to_string())),
                Value::Boolean(is) => Some(Secret::new(is.to_string())),
                _ => None,
            };
            let entries = value.as_table()?.iter();
            entries.map(|(key, value)| Some((key.clone(), text(value)?))).collect()
        });
        settings.unwrap_or_default()
    }

    /// A list of texts.
    pub(super) fn texts(&mut self, name: &'static str) -> Vec<String> {
        let texts = self.take(name, "a list of texts", |value| {
            value.as_array()?.iter().map(|value| value.as_str().map(str::to_owned)).collect()
        });
        texts.unwrap_or_default()
    }

    /// A list of secrets; one secret may stand alone.
    pub(super) fn secrets(&mut self, name: &'static str) -> Vec<Secret> {
        let secrets = self.take(name, "a text or a list of texts", |value| match value {
            Value::Array(values) => {
                values.iter().map(|value| value.as_str().map(Secret::new)).collect()
            }
            value => value.as_str().map(|text| vec![Secret::new(text)]),
        });
        secrets.unwrap_or_default()
    }

    /// A table of secrets.
    pub(super) fn secret_table(&mut self, name: &'static str) -> Vec<(String, Secret)> {
        let secrets = self.take(name, "a table of texts", |value| {
            let entries = value.as_table()?.iter();
            entries.map(|(key, value)| Some((key.clone(), Secret::new(value.as_str()?)))).collect()
        });
        secrets.unwrap_or_default()
    }

    /// A problem for each option that the sink has not: its name, the reason, and what to write
    /// instead.
    pub(super) fn refused(&mut self, options: &[(&'static str, &str, &str)]) -> Vec<Problem> {
        let mut refuse = |(name, message, hint): &(&'static str, &str, &str)| {
            self.take(name, "left out", |_| Some(Problem::new(*name, *message).with_hint(*hint)))
        };
        options.iter().filter_map(&mut refuse).collect()
    }

    /// Every mistake so far, and one for each option that nobody asked for.
    pub(super) fn finish(mut self, sink: &str) -> Vec<Problem> {
        for name in self.table.keys() {
            if self.known.contains(&name.as_str()) {
                continue;
            }
            let problem = Problem::new(name, format!("unknown option of the {sink} sink"));
            let mut known = [self.known.as_slice(), &OF_EVERY_SINK].concat();
            known.sort_unstable();
            known.dedup();
            self.problems.push(match nearest(name, known.iter().copied()) {
                Some(near) => problem.with_hint(format!("did you mean `{near}`?")),
                None => problem.with_hint(format!("the options are {}", known.join(", "))),
            });
        }
        self.problems
    }

    pub(super) fn take<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        self.known.push(name);
        let value = self.table.get(name)?;
        let converted = convert(value);
        if converted.is_none() {
            // The value is not shown: it may be a secret.
            self.problems.push(Problem::new(name, format!("must be {expected}")));
        }
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_are_collected() {
        let table: Table = r#"
            alow_private = true
            concurrency = -1
            headers = { a = 1 }
            signing = [1]
            timeout = "soon"
            zzz = 1
        "#
        .parse()
        .unwrap();
        let mut reader = OptionReader::new(&table);
        assert_eq!(reader.bool("allow_private"), None);
        assert_eq!(reader.count("concurrency"), None);
        assert_eq!(reader.duration("timeout"), None);
        assert!(reader.secret_table("headers").is_empty());
        assert!(reader.secrets("signing").is_empty());
        let problems = reader.finish("http");
        let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
        let expected = [
            "concurrency: must be a whole number",
            "timeout: must be a duration",
            "headers: must be a table of texts",
            "signing: must be a text or a list of texts",
            "alow_private: unknown option of the http sink; did you mean `allow_private`?",
            "zzz: unknown option of the http sink; the options are allow_private, cloudevents_source, ",
        ];
        assert_eq!(texts.len(), expected.len(), "{texts:#?}");
        for (text, expected) in texts.iter().zip(expected) {
            assert!(text.starts_with(expected), "{text:?} should start with {expected:?}");
        }
    }

    #[test]
    fn what_a_sink_has_not_is_refused_with_the_reason() {
        let table: Table = "subject = 1".parse().unwrap();
        let mut reader = OptionReader::new(&table);
        let refused =
            reader.refused(&[("queue", "is not", "add it"), ("subject", "is a topic", "write it")]);
        let texts: Vec<_> = refused.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["subject: is a topic; write it"]);
        assert!(reader.finish("x").is_empty());
    }

    #[test]
    fn values_are_read() {
        let table: Table = r#"timeout = "1m 30s"
            days = "7d"
            list = ["a", "b"]
            one = "c"
            keys = { x = "y" }"#
            .parse()
            .unwrap();
        let mut reader = OptionReader::new(&table);
        assert_eq!(reader.duration("timeout"), Some(Duration::from_secs(90)));
        assert_eq!(reader.duration("days"), Some(Duration::from_secs(7 * 24 * 3600)));
        assert_eq!(reader.secrets("list"), [Secret::new("a"), Secret::new("b")]);
        assert_eq!(reader.secrets("one"), [Secret::new("c")]);
        assert_eq!(reader.secret_table("keys"), [("x".to_owned(), Secret::new("y"))]);
        assert!(reader.finish("http").is_empty());
    }
}
