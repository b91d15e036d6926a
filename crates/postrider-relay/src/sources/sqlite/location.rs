//! Where a SQLite database is: the part of its URL after `sqlite:`.

use std::fmt;
use std::path::{Path, PathBuf};

/// A database file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    path: PathBuf,
}

impl Location {
    /// The file at this path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads `sqlite:path`, `sqlite://path` or `sqlite:///absolute/path`. The path is taken as
    /// it is written, without any escapes.
    pub fn parse(url: &str) -> Result<Self, InvalidLocation> {
        let path = url.strip_prefix("sqlite:").ok_or(InvalidLocation::Scheme)?;
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.contains('?') {
            return Err(InvalidLocation::Parameters);
        }
        match path {
            "" => Err(InvalidLocation::Empty),
            ":memory:" => Err(InvalidLocation::Memory),
            _ => Ok(Self::new(path)),
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slashes = if self.path.is_absolute() { "//" } else { "" };
        write!(f, "sqlite:{slashes}{}", self.path.display())
    }
}

/// Why a URL does not say where a database is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLocation {
    /// It is not a URL of SQLite.
    #[error("the URL does not begin with sqlite:; write sqlite:path/to/file.db")]
    Scheme,
    /// There is a `?` in it.
    #[error("the URL of a SQLite database takes no parameters; remove everything from the ? on")]
    Parameters,
    /// There is no path in it.
    #[error("the URL names no file; write sqlite:path/to/file.db")]
    Empty,
    /// It means a database that no other program can see.
    #[error("a database in memory cannot be shared with a relay; write sqlite:path/to/file.db")]
    Memory,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_url_names_a_path() {
        let cases = [
            ("sqlite:app.db", "app.db", "sqlite:app.db"),
            ("sqlite:./data/app.db", "./data/app.db", "sqlite:./data/app.db"),
            ("sqlite:/var/app.db", "/var/app.db", "sqlite:///var/app.db"),
            ("sqlite://app.db", "app.db", "sqlite:app.db"),
            ("sqlite:///var/my app%20.db", "/var/my app%20.db", "sqlite:///var/my app%20.db"),
        ];
        for (url, path, shown) in cases {
            let location = Location::parse(url).unwrap();
            assert_eq!(location.path(), Path::new(path), "{url}");
            assert_eq!(location.to_string(), shown);
            assert_eq!(Location::parse(shown).unwrap(), location);
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let cases = [
            ("postgres://x", InvalidLocation::Scheme),
            ("sqlite:", InvalidLocation::Empty),
            ("sqlite://", InvalidLocation::Empty),
            ("sqlite::memory:", InvalidLocation::Memory),
            ("sqlite://app.db?mode=rwc", InvalidLocation::Parameters),
        ];
        for (url, expected) in cases {
            assert_eq!(Location::parse(url), Err(expected), "{url}");
        }
    }
}
