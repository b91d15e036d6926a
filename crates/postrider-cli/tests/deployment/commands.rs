//! Commands that are written down somewhere exist, with the flags they are written with.

use crate::support::Fixture;

/// Checks the words of a command, without `postrider`, against the binary's own help.
#[track_caller]
pub(crate) fn assert_exists(words: &[&str]) {
    let fixture = Fixture::new();
    let mut command: Vec<&str> = Vec::new();
    let mut help = fixture.run(&["--help"]).assert_code(0).stdout;
    for word in words.iter().take_while(|word| !word.starts_with('-')) {
        let commands = help.split_once("Commands:\n").map(|(_, rest)| rest).unwrap_or_default();
        let is_command = commands
            .lines()
            .take_while(|line| !line.is_empty())
            .any(|line| line.split_whitespace().next() == Some(*word));
        if !is_command {
            break;
        }
        command.push(word);
        help = fixture.run(&[&command[..], &["--help"]].concat()).assert_code(0).stdout;
    }
    assert!(!command.is_empty(), "there is no command postrider {}", words.join(" "));
    let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
    assert!(!usage.ends_with("<COMMAND>"), "postrider {} is not whole", words.join(" "));
    let known: Vec<&str> = help.split_whitespace().map(|word| word.trim_matches(',')).collect();
    let mut takes_value = false;
    for word in &words[command.len()..] {
        if let Some(flag) = word.split('=').next().filter(|word| word.starts_with('-')) {
            assert!(known.contains(&flag), "postrider {} has no {flag}", command.join(" "));
            takes_value = help.contains(&format!("{flag} <"));
        } else {
            let is_argument = usage.contains('<') || usage.split("[OPTIONS]").count() > 1;
            let is_free =
                usage.trim_end().ends_with([']', '>', '.']) && !usage.ends_with("[OPTIONS]");
            assert!(takes_value || (is_argument && is_free), "{word} in {}", words.join(" "));
            takes_value = false;
        }
    }
}

#[test]
#[should_panic(expected = "has no --no-such-flag")]
fn a_flag_that_does_not_exist_is_found() {
    assert_exists(&["dlq", "retry", "--all", "--no-such-flag"]);
}

#[test]
#[should_panic(expected = "there is no command")]
fn a_command_that_does_not_exist_is_found() {
    assert_exists(&["no-such-command"]);
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let fixture = Fixture::new();
    fixture.run(&["man", "pages"]).assert_code(0).assert_talk(&["manual pages; read one: man "]);
    let page = fixture.read("pages/postrider-relay.1");
    assert!(page.contains(".TH postrider-relay 1"), "{page}");
    assert!(page.contains(r"\-\-listen"), "{page}");
    for name in ["postrider.1", "postrider-dlq-retry.1", "postrider-man.1"] {
        assert!(fixture.path("pages").join(name).exists(), "{name}");
    }
    let json = fixture.run(&["man", "pages", "--json"]).assert_code(0);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(json["pages"].as_array().unwrap().len() > 15, "{json}");
    fixture.write("taken", "");
    fixture.run(&["man", "taken"]).assert_code(1).assert_talk(&["error: cannot make taken"]);
}
