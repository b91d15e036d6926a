//! The configuration in the documents is valid, and the reference knows every key.

use std::fs;
use std::path::{Path, PathBuf};

use postrider_relay::config::{Config, Environment};

/// Documents with configuration, from the root of the repository.
const DOCUMENTS: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every document, with its name.
fn documents() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = DOCUMENTS.iter().map(|name| root().join(name)).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder can be listed");
            left.extend(entries.map(|entry| entry.expect("a folder can be listed").path()));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).expect("a document can be read");
            found.push((path.display().to_string(), text));
        }
    }
    found
}

/// The blocks of one language, with the number of their first line.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, bool, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((number + 1, info == language, String::new())),
            (Some(_), Some(_)) => {
                if let Some((start, true, block)) = open.take() {
                    blocks.push((start, block));
                }
            }
            (Some((_, _, block)), None) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The variables that references in the documents name.
fn environment() -> Environment {
    let variables = [
        ("API_TOKEN", "t0ken"),
        ("DATABASE_URL", "sqlite:shop.db"),
        ("WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        ("WEBHOOK_SECRET_OLD", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    ];
    variables.into_iter().collect()
}

#[test]
fn configuration_in_the_documents_is_valid() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        for (line, block) in blocks(&text, "toml") {
            checked += 1;
            // This build of the examples has no TLS, which is not what is checked here.
            let block = block.replace("https://", "http://");
            if let Err(problems) = Config::parse(&block, "postrider.toml", &environment()) {
                wrong.push(format!("{name}, block at line {line}:\n{problems}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(checked >= 2, "only {checked} blocks were found");
}

/// A mistake in every section: the answers name every key there is.
const MISTAKES: &str = r#"
[source]
xxxxxxxxxxxxxxxx = 1
columns = { xxxxxxxxxxxxxxxx = 1 }

[prune]
xxxxxxxxxxxxxxxx = 1

[http]
xxxxxxxxxxxxxxxx = 1

[[pipeline]]
name = "orders"
xxxxxxxxxxxxxxxx = 1
match = { xxxxxxxxxxxxxxxx = 1 }
window = { xxxxxxxxxxxxxxxx = 1 }

[pipeline.retry]
xxxxxxxxxxxxxxxx = 1

[pipeline.sink]
url = "http://example.com/"
xxxxxxxxxxxxxxxx = 1
"#;

#[test]
fn the_reference_has_every_key() {
    let problems = Config::parse(MISTAKES, "postrider.toml", &Environment::default()).unwrap_err();
    let reference = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let mut keys = Vec::new();
    for problem in problems.iter() {
        let marks = [" has ", "the options are "];
        if let Some((_, listed)) = marks.iter().find_map(|mark| problem.fix.split_once(mark)) {
            keys.extend(listed.split(", ").map(str::to_owned));
        }
    }
    assert!(keys.len() > 25, "{problems}");
    for key in keys {
        let is_there = [format!("`{key}`"), format!("{key} ="), format!(".{key}]")]
            .iter()
            .any(|form| reference.contains(form));
        assert!(is_there, "`{key}` is not in docs/configuration.md");
    }
}

/// The tests that stand behind the guarantees, and before the threats, exist.
#[test]
fn every_proof_is_a_test() {
    let mut code = String::new();
    let mut left = vec![root().join("crates")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
    for document in ["docs/guarantees.md", "SECURITY.md"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let mut proofs = 0;
        for name in text.split('`').skip(1).step_by(2) {
            let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            if is_name && name.matches('_').count() >= 3 {
                proofs += 1;
                let is_there = code.contains(&format!("fn {name}("));
                assert!(is_there, "{document}: there is no test `{name}`");
            }
        }
        assert!(proofs > 30, "only {proofs} were found in {document}");
    }
}

/// A figure that a document quotes is a link to the part of the benchmarks where it stands: a cell
/// of a table there, or a part of one between commas.
#[test]
fn figures_that_are_quoted_stand_in_the_benchmarks() {
    let benchmarks = fs::read_to_string(root().join("docs/benchmarks.md")).unwrap();
    let (mut checked, mut wrong) = (0, Vec::new());
    for (name, text) in documents() {
        for (figure, heading) in quoted_figures(&text) {
            checked += 1;
            if !figures(&benchmarks, heading).contains(&figure) {
                wrong.push(format!("{name}: {figure} is not in {heading}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 20, "only {checked} were found");
}

/// Links to the benchmarks whose text is a figure, with the heading that they lead to.
fn quoted_figures(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (before, after) in text
        .match_indices("benchmarks.md#")
        .map(|(at, mark)| (&text[..at], &text[at + mark.len()..]))
    {
        let figure = before.rsplit_once("](").and_then(|(text, _)| text.rsplit_once('['));
        let heading = after.split_once(')').map(|(heading, _)| heading);
        if let (Some((_, figure)), Some(heading)) = (figure, heading)
            && figure.starts_with(|first: char| first.is_ascii_digit())
        {
            found.push((figure, heading));
        }
    }
    found
}

/// The figures below a heading, up to the next one.
fn figures<'b>(benchmarks: &'b str, heading: &str) -> Vec<&'b str> {
    let is_heading = |line: &&str| {
        let title = line.trim_start_matches('#');
        title.len() < line.len() && title.trim().to_lowercase().replace(' ', "-") == heading
    };
    let below = benchmarks.lines().skip_while(|line| !is_heading(line)).skip(1);
    let rows = below.take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with('|'));
    let cells = rows.flat_map(|row| row.split('|')).map(str::trim);
    cells.flat_map(|cell| std::iter::once(cell).chain(cell.split(", "))).collect()
}

#[test]
fn a_figure_that_has_changed_is_noticed() {
    let benchmarks =
        "## Far\n| a | 1 267 097 events/s | 998 bytes, 1.00 rows |\n## Near\n| b | 2 ms | |";
    let quotes = "takes [67 097 events/s](../benchmarks.md#far), [2 ms](benchmarks.md#near)";
    assert_eq!(quoted_figures(quotes), [("67 097 events/s", "far"), ("2 ms", "near")]);
    assert!(!figures(benchmarks, "far").contains(&"67 097 events/s"), "it is a part of another");
    assert!(figures(benchmarks, "far").contains(&"1.00 rows"));
    assert!(figures(benchmarks, "near").contains(&"2 ms"));
    assert!(!figures(benchmarks, "far").contains(&"2 ms"), "it is in another part");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        let folder = Path::new(&name).parent().expect("a document is in a folder").to_owned();
        for link in
            text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
        {
            let path = link.split('#').next().unwrap_or_default();
            let is_local = !path.is_empty() && !path.contains(':');
            if is_local && !folder.join(path).exists() {
                wrong.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
