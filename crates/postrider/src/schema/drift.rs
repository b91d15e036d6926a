//! Ways in which tables are not as the migrations make them.

use std::fmt;

/// One way in which the tables are not as the migrations make them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// In which way.
    pub drift: Drift,
    /// What differs, such as `column outbox.topic`.
    pub object: String,
    /// Its definition by the migrations, if it should be there and can be said in a line.
    pub expected: Option<String>,
    /// Its definition in the database, if it is there and can be said in a line.
    pub found: Option<String>,
}

/// The ways to differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// It is defined otherwise.
    Changed,
    /// It should not be there.
    Extra,
    /// It should be there.
    Missing,
    /// A migration that was not applied.
    Pending,
}

impl Drift {
    /// The name in data.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Extra => "extra",
            Self::Missing => "missing",
            Self::Pending => "pending",
        }
    }
}

impl Difference {
    /// A table or a column is missing: nothing works without.
    pub fn is_fatal(&self) -> bool {
        let is_needed = ["table ", "column "].iter().any(|kind| self.object.starts_with(kind));
        self.drift == Drift::Missing && is_needed
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { drift, object, expected, found } = self;
        match (drift, expected, found) {
            (Drift::Changed, Some(expected), Some(found)) => {
                write!(f, "{object} is changed: {found}; it should be: {expected}")
            }
            (Drift::Changed, ..) => write!(f, "{object} is changed"),
            (Drift::Extra, ..) => write!(f, "{object} should not be there"),
            (Drift::Missing, ..) => write!(f, "{object} is missing"),
            (Drift::Pending, ..) => write!(f, "{object} was not applied"),
        }
    }
}
