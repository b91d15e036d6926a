//! References to secrets inside strings: `${env:NAME}` and `${file:path}`.
//!
//! `$${` stands for a plain `${`. A file is read whole, without the line end at its end; a
//! relative path is looked up from the directory the process runs in.

use std::fs::File;
use std::io::Read as _;

use super::environment::Environment;

/// Largest file a reference may name.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A string with its references replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    /// The string to use.
    pub(super) text: String,
    /// The values that came from references.
    pub(super) secrets: Vec<String>,
}

/// Why a reference cannot be resolved.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unresolved {
    pub(super) what: String,
    pub(super) fix: String,
}

/// Replaces the references in `written`; all that cannot be replaced are reported.
pub(super) fn resolve(written: &str, env: &Environment) -> Result<Resolved, Vec<Unresolved>> {
    let mut resolved = Resolved { text: String::with_capacity(written.len()), secrets: Vec::new() };
    let mut unresolved = Vec::new();
    let mut rest = written;
    while let Some(start) = rest.find("${") {
        let (before, reference) = rest.split_at(start);
        if let Some(before) = before.strip_suffix('$') {
            resolved.text.push_str(before);
            resolved.text.push_str("${");
            rest = &reference[2..];
            continue;
        }
        resolved.text.push_str(before);
        let Some(end) = reference.find('}') else {
            unresolved.push(Unresolved {
                what: "a reference `${…` is not closed".into(),
                fix: "close it with `}`, or write `$${` for a plain `${`".into(),
            });
            return Err(unresolved);
        };
        match look_up(&reference[2..end], env) {
            Ok(value) => {
                resolved.text.push_str(&value);
                resolved.secrets.push(value);
            }
            Err(error) => unresolved.push(error),
        }
        rest = &reference[end + 1..];
    }
    resolved.text.push_str(rest);
    if unresolved.is_empty() { Ok(resolved) } else { Err(unresolved) }
}

fn look_up(reference: &str, env: &Environment) -> Result<String, Unresolved> {
    match reference.split_once(':') {
        Some(("env", name)) => env.get(name).map(str::to_owned).ok_or_else(|| Unresolved {
            what: format!("the environment variable `{name}` is not set"),
            fix: format!("set it: export {name}=…"),
        }),
        Some(("file", path)) => read(path).map_err(|error| Unresolved {
            what: format!("the file `{path}` cannot be read: {error}"),
            fix: "create the file, or correct the path in `${file:…}`".into(),
        }),
        _ => Err(Unresolved {
            what: format!("`${{{reference}}}` is not a reference"),
            fix: format!(
                "write `${{env:{reference}}}` or `${{file:path}}`, or `$${{` for a plain `${{`"
            ),
        }),
    }
}

fn read(path: &str) -> Result<String, std::io::Error> {
    let mut text = String::new();
    let length = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)? as u64;
    if length > FILE_BYTES_MAX {
        return Err(std::io::Error::other("it is larger than 64 KiB"));
    }
    let trimmed = text.strip_suffix('\n').unwrap_or(&text);
    Ok(trimmed.strip_suffix('\r').unwrap_or(trimmed).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve_with(written: &str) -> Result<Resolved, Vec<Unresolved>> {
        resolve(written, &Environment::from_iter([("USER", "ann"), ("PASSWORD", "${env:USER}")]))
    }

    #[test]
    fn references_are_replaced_once() {
        let resolved =
            resolve_with("http://${env:USER}:${env:PASSWORD}@host $${env:USER}").unwrap();
        assert_eq!(resolved.text, "http://ann:${env:USER}@host ${env:USER}");
        assert_eq!(resolved.secrets, ["ann", "${env:USER}"]);
        let plain = resolve_with("costs 5$ {id}").unwrap();
        assert_eq!((plain.text.as_str(), plain.secrets.len()), ("costs 5$ {id}", 0));
    }

    #[test]
    fn a_file_is_read_without_its_line_end() {
        let path = std::env::temp_dir().join(format!("postrider-reference-{}", std::process::id()));
        std::fs::write(&path, "s3cret\r\n").unwrap();
        let resolved = resolve_with(&format!("${{file:{}}}", path.display())).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(resolved.text, "s3cret");
    }

    #[test]
    fn everything_that_is_missing_is_named() {
        let problems =
            resolve_with("${env:NONE} ${file:/no/such/file} ${USER} ${open").unwrap_err();
        let whats: Vec<_> = problems.iter().map(|problem| problem.what.as_str()).collect();
        assert_eq!(
            whats,
            [
                "the environment variable `NONE` is not set",
                "the file `/no/such/file` cannot be read: No such file or directory (os error 2)",
                "`${USER}` is not a reference",
                "a reference `${…` is not closed",
            ]
        );
        assert_eq!(
            problems[2].fix,
            "write `${env:USER}` or `${file:path}`, or `$${` for a plain `${`"
        );
    }
}
