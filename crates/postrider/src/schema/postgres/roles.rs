//! Roles with no more rights than their work needs.

use super::dollar_quote;
use crate::schema::{TABLE_NAME_BYTES_MAX, TableName, postgres_literal, with_names};

const ROLES: &str = include_str!("../../../migrations/postgres/roles.sql");

/// The SQL that makes five roles for an outbox and the inbox, if they do not exist, and gives them
/// their rights: `<prefix>_writer`, `<prefix>_log_writer`, `<prefix>_consumer`, `<prefix>_relay` and
/// `<prefix>_reader`.
/// For tables of our making.
pub fn roles(outbox: &TableName, prefix: &RolePrefix) -> String {
    // A name may hold what looks like a placeholder, so that it is filled in last, and in one go
    // with the others.
    let tag = dollar_quote(&TableName(format!("{outbox} {}", prefix.0)));
    let mut sql = ROLES.replace("$$", &tag);
    for role in ["writer", "log_writer", "consumer", "relay", "reader"] {
        let name = prefix.0.with_suffix(&format!("_{role}"));
        sql = sql.replace(&format!("{{{role}}}"), &guarded(&name.quoted()));
        sql = sql.replace(&format!("{{'{role}'}}"), &guarded(&postgres_literal(name.as_str())));
    }
    with_names(&sql, outbox).replace(GUARD, "")
}

/// Stands behind each brace of a name while placeholders are filled in. No name can hold it.
const GUARD: char = '\u{1}';

fn guarded(name: &str) -> String {
    name.replace('{', &format!("{{{GUARD}"))
}

/// What the names of roles begin with. Defaults to `postrider`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolePrefix(TableName);

impl RolePrefix {
    /// Checks a prefix. It may have any characters that a quoted name may have.
    pub fn new(prefix: impl Into<String>) -> Result<Self, InvalidPrefix> {
        let prefix = prefix.into();
        let problem = if prefix.is_empty() {
            "is empty; give it a name"
        } else if prefix.len() > TABLE_NAME_BYTES_MAX {
            "has more than 40 bytes; shorten it"
        } else if prefix.contains(|c: char| c.is_control()) {
            "contains a control character; remove it"
        } else if prefix.starts_with("pg_") {
            "begins with pg_, as only the server's own roles do; choose another"
        } else {
            return Ok(Self(TableName(prefix)));
        };
        Err(InvalidPrefix { prefix, problem })
    }
}

impl Default for RolePrefix {
    fn default() -> Self {
        Self(TableName("postrider".to_owned()))
    }
}

/// Why roles cannot have that prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prefix {prefix:?} {problem}")]
pub struct InvalidPrefix {
    prefix: String,
    problem: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_wherever_they_stand() {
        let outbox = TableName::new("a\"b {writer}").unwrap();
        let prefix = RolePrefix::new("it's {outbox} $$").unwrap();
        let sql = roles(&outbox, &prefix);
        for expected in [
            "ON \"a\"\"b {writer}\" TO \"it's {outbox} $$_writer\";",
            "ARRAY['it''s {outbox} $$_writer', 'it''s {outbox} $$_log_writer', ",
            "('a\"b {writer}_publish', 'it''s {outbox} $$_writer')",
            "DO $x$",
        ] {
            assert!(sql.contains(expected), "{expected} is not in:\n{sql}");
        }
        assert!(!sql.contains(GUARD));
    }

    #[test]
    fn impossible_prefixes_are_refused() {
        let long = "x".repeat(TABLE_NAME_BYTES_MAX + 1);
        for prefix in ["", "pg_app", "a\nb", &long] {
            assert!(RolePrefix::new(prefix).is_err(), "{prefix}");
        }
    }
}
