//! Every command that a document shows is understood by the real parser.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use clap::error::ErrorKind;

use super::Cli;

/// Documents and folders of documents, from the root of the repository.
const DOCUMENTS: [&str; 6] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs"];
/// What stands for something of the reader's.
const STAND_INS: [(&str, &str); 3] = [
    ("EVENT_ID", "0197f3c2-5d1e-7000-8000-000000000001"),
    ("ID", "0197f3c2-5d1e-7000-8000-000000000001"),
    ("POSITION", "17"),
];

/// A command in a document.
#[derive(Debug)]
struct Shown {
    at: String,
    words: Vec<String>,
    /// To be run as it stands; in running text it may be the name of a command alone.
    whole: bool,
}

fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut left: Vec<PathBuf> = DOCUMENTS.iter().map(|name| root.join(name)).collect();
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

/// The commands in blocks, of which one may go over several lines, and in running text.
fn commands(name: &str, text: &str) -> Vec<Shown> {
    let (mut shown, mut prose, mut command) = (Vec::new(), String::new(), String::new());
    let mut in_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        if line.starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.push_str(line);
            prose.push('\n');
        } else if !command.is_empty() || is_command(line) {
            match line.strip_suffix('\\') {
                Some(part) => command.push_str(part),
                None => {
                    command.push_str(line);
                    let words = words(&std::mem::take(&mut command));
                    shown.push(Shown { at: format!("{name}:{number}"), words, whole: true });
                }
            }
        }
    }
    let code = prose.split('`').skip(1).step_by(2).filter(|code| is_command(code));
    shown.extend(code.map(|code| Shown { at: name.to_owned(), words: words(code), whole: false }));
    // Something was left out, or is for the reader to fill in.
    shown.retain(|it| !it.words.iter().any(|word| word.contains(['…', '<'])));
    shown
}

/// Not a line of a manifest, which begins with the same word.
fn is_command(line: &str) -> bool {
    line.strip_prefix("postrider ").is_some_and(|rest| !rest.starts_with('='))
}

/// The words that a shell would give to the command: up to a comment, a pipe or the like.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ' | '\n') => words.extend(word.take()),
            (None, '#' | '|' | '>' | '&' | ';') if word.is_none() => break,
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    let stand_in = |word: &String| STAND_INS.iter().find(|(name, _)| name == word);
    words.into_iter().map(|word| stand_in(&word).map_or(word, |(_, it)| (*it).to_owned())).collect()
}

/// What the parser has against it.
fn mistake(shown: &Shown) -> Option<String> {
    let error = Cli::try_parse_from(&shown.words).err()?;
    let is_fine = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand => !shown.whole,
        _ => false,
    };
    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
    (!is_fine).then(|| format!("{}: {}\n  {first}", shown.at, shown.words.join(" ")))
}

#[test]
fn commands_in_the_documents_are_understood() {
    let documents = documents();
    let shown: Vec<Shown> =
        documents.iter().flat_map(|(name, text)| commands(name, text)).collect();
    assert!(shown.len() > 200, "only {} commands were found", shown.len());
    let mistakes: Vec<String> = shown.iter().filter_map(mistake).collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn a_command_that_is_not_understood_is_found() {
    let text = "`postrider dlq` is fine, and `postrider slot drop orders`, but not `postrider dql`.\n\
        ```sh\nFOO=1 true\npostrider status --from 'sqlite:my app.db' --jsn | jq '.x'\n\
        postrider dlq retry --all \\\n    --dry-run   # look first\npostrider dlq\n```\n\
        `postrider relay --from …`\n";
    let shown = commands("it.md", text);
    assert_eq!(shown.len(), 6, "{shown:?}");
    assert_eq!(shown[0].words, ["postrider", "status", "--from", "sqlite:my app.db", "--jsn"]);
    assert_eq!(shown[1].words, ["postrider", "dlq", "retry", "--all", "--dry-run"]);
    let found: Vec<String> = shown.iter().filter_map(mistake).collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].starts_with("it.md:4: postrider status"), "{}", found[0]);
    assert!(found[1].starts_with("it.md:7: postrider dlq"), "{}", found[1]);
    assert!(found[2].contains("'dql'"), "{}", found[2]);
}
