//! The examples in the help of every command are true.

use clap::{Command as Clap, CommandFactory as _, Parser as _};

use super::Cli;

/// Every command that does something by itself, with the words that lead to it.
fn commands(command: &Clap, path: &[&str], found: &mut Vec<(Vec<String>, Clap)>) {
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        let path = [path, &[below.get_name()]].concat();
        if !below.is_subcommand_required_set() {
            found.push((path.iter().map(|&word| word.to_owned()).collect(), below.clone()));
        }
        commands(below, &path, found);
    }
}

/// The words of a command line, up to a pipe, a redirection or a comment.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '|' | '>' | '#') => break,
            (None, ' ') => words.push(String::new()),
            (_, c) => words.last_mut().expect("there is one").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn every_command_has_examples_that_can_be_run() {
    let mut found = Vec::new();
    commands(&Cli::command(), &[], &mut found);
    assert!(found.len() > 25, "{}", found.len());
    for (path, command) in found {
        let path = path.join(" ");
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples: Vec<&str> = help
            .lines()
            .skip_while(|line| *line != "Examples:")
            .filter_map(|line| line.strip_prefix("  "))
            .collect();
        let own = format!("postrider {path}");
        assert!(examples.iter().any(|line| line.starts_with(&own)), "{own} has no example");
        for example in examples {
            let parsed = Cli::try_parse_from(words(example));
            assert!(parsed.is_ok(), "{example}\n{}", parsed.expect_err("it is not"));
        }
    }
}
