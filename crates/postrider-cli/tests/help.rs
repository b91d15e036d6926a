//! The help of every command, compared with `help.txt`. `POSTRIDER_UPDATE_HELP=1` writes it anew.

mod support;

use support::{Fixture, stored};

const COMMANDS: &[&[&str]] = &[
    &[],
    &["demo"],
    &["init"],
    &["migrate"],
    &["migrate", "roles"],
    &["migrate", "status"],
    &["migrate", "verify"],
    &["relay"],
    &["status"],
    &["doctor"],
    &["explain"],
    &["check"],
    &["check", "lag"],
    &["check", "dlq"],
    &["check", "slot"],
    &["dlq"],
    &["dlq", "list"],
    &["dlq", "show"],
    &["dlq", "retry"],
    &["dlq", "discard"],
    &["dlq", "export"],
    &["tail"],
    &["show"],
    &["keys"],
    &["keys", "blocked"],
    &["keys", "release"],
    &["pause"],
    &["resume"],
    &["replay"],
    &["reconcile"],
    &["verify"],
    &["audit"],
    &["bench"],
    &["prune"],
    &["slot"],
    &["slot", "show"],
    &["slot", "create"],
    &["slot", "drop"],
    &["completions"],
    &["man"],
];

#[test]
fn help_is_as_stored() {
    let fixture = Fixture::new();
    let mut help = String::new();
    for command in COMMANDS {
        let ran = fixture.run(&[*command, &["--help"]].concat()).assert_code(0);
        let title = [&["$ postrider"], *command, &["--help"]].concat().join(" ");
        let text: Vec<&str> = ran.stdout.lines().map(str::trim_end).collect();
        help.push_str(&format!("{title}\n{}\n\n", text.join("\n").trim_end()));
    }
    let path = stored("help.txt");
    if std::env::var_os("POSTRIDER_UPDATE_HELP").is_some() {
        std::fs::write(&path, &help).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(help == expected, "the help has changed; run with POSTRIDER_UPDATE_HELP=1:\n{help}");
}

#[test]
fn every_command_is_in_the_list() {
    let fixture = Fixture::new();
    let help = fixture.run(&["--help"]).assert_code(0).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        let name = line.split_whitespace().next().unwrap_or_default();
        let known = name == "help" || COMMANDS.contains(&[name].as_slice());
        assert!(known, "{name} is not in COMMANDS");
    }
}
