//! What becomes of rows that logical replication brings into the outbox from another server.

use std::fmt;
use std::str::FromStr;

use crate::schema::{TableName, with_names};

const TRIGGER: &str = include_str!("../../../migrations/postgres/replicated_trigger.sql");

/// What becomes of rows that logical replication brings into the outbox from another server. What
/// is written in this database is delivered, also while changes are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicated {
    /// They are delivered from here, like rows that were written here.
    #[default]
    Deliver,
    /// They are not kept: the server where they were written delivers them.
    Ignore,
}

impl fmt::Display for Replicated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deliver => "deliver",
            Self::Ignore => "ignore",
        })
    }
}

impl FromStr for Replicated {
    type Err = InvalidReplicated;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "deliver" => Ok(Self::Deliver),
            "ignore" => Ok(Self::Ignore),
            _ => Err(InvalidReplicated { text: text.to_owned() }),
        }
    }
}

/// The text is not what becomes of replicated rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not known; write deliver or ignore")]
pub struct InvalidReplicated {
    text: String,
}

/// The statements that change what becomes of replicated rows, for an outbox that was migrated.
/// They neither begin nor end a transaction.
pub fn replicated_sql(outbox: &TableName, replicated: Replicated) -> String {
    let drop = "DROP TRIGGER IF EXISTS {outbox_replicated} ON {outbox};\n";
    with_names(&format!("{drop}{}", trigger(replicated)), outbox)
}

/// The statements that make the trigger, before names are put in.
pub(super) fn trigger(replicated: Replicated) -> String {
    TRIGGER.replace("{replicated}", &replicated.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_has_a_name() {
        for name in ["deliver", "ignore"] {
            assert_eq!(name.parse::<Replicated>().unwrap().to_string(), name);
            let sql = replicated_sql(&TableName::default(), name.parse().unwrap());
            assert!(sql.contains(&format!("('{name}')")) && !sql.contains('{'), "{sql}");
        }
        assert!("any".parse::<Replicated>().is_err());
    }
}
