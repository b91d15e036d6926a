//! Versions that their authors withdrew, as far as cargo's copy of the registry's index tells.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::crates::Crate;

/// A version, as the index describes it.
#[derive(Deserialize)]
struct Entry {
    vers: String,
    yanked: bool,
}

/// The crates that were withdrawn; `None` if cargo has no index here.
pub(crate) fn yanked(crates: &[Crate]) -> Option<Vec<&Crate>> {
    let index = cargo_home()?.join("registry/index");
    let mut folders = std::fs::read_dir(index).ok()?.flatten().map(|it| it.path().join(".cache"));
    let cache = folders.find(|it| it.is_dir())?;
    let of_registry = crates.iter().filter(|it| it.source.is_some());
    Some(of_registry.filter(|it| is_yanked(&cache, it)).collect())
}

fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| std::env::home_dir().map(|it| it.join(".cargo")))
}

fn is_yanked(cache: &Path, it: &Crate) -> bool {
    let file = std::fs::read(cache.join(place(&it.name))).unwrap_or_default();
    says_yanked(&file, &it.version.to_string())
}

/// A file of cargo's has a version and what the index says of it by turns, with zeros between.
fn says_yanked(file: &[u8], version: &str) -> bool {
    let entries = file.split(|byte| *byte == 0).filter(|part| part.starts_with(b"{"));
    let mut entries = entries.filter_map(|part| serde_json::from_slice::<Entry>(part).ok());
    entries.any(|entry| entry.vers == version && entry.yanked)
}

/// Where the index has a crate.
fn place(name: &str) -> String {
    let name = name.to_lowercase();
    match name.len() {
        1 | 2 => format!("{}/{name}", name.len()),
        3 => format!("3/{}/{name}", &name[..1]),
        _ => format!("{}/{}/{name}", &name[..2], &name[2..4]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_read_as_cargo_writes_it() {
        let file = b"\x03\x02\0\0\0Unknown\x000.1.0\0{\"name\":\"it\",\"vers\":\"0.1.0\",\"yanked\":true}\x00\
            0.1.1\0{\"name\":\"it\",\"vers\":\"0.1.1\",\"yanked\":false}\0";
        assert!(says_yanked(file, "0.1.0"));
        assert!(!says_yanked(file, "0.1.1"));
        assert!(!says_yanked(b"", "0.1.1"));
    }

    #[test]
    fn a_crate_has_its_place() {
        for (name, expected) in
            [("a", "1/a"), ("cc", "2/cc"), ("url", "3/u/url"), ("Inflector", "in/fl/inflector")]
        {
            assert_eq!(place(name), expected);
        }
    }
}
