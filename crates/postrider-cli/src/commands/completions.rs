//! `postrider completions`: a completion script for a shell.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use serde::Serialize;

use crate::cli::Cli;
use crate::error::CliError;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  postrider completions bash > /etc/bash_completion.d/postrider
  postrider completions zsh > ~/.zfunc/_postrider
  postrider completions fish > ~/.config/fish/completions/postrider.fish";

/// The arguments of `postrider completions`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Serialize)]
struct ScriptObject {
    shell: String,
    script: String,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs, output: Output) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "postrider", &mut script);
    if output.is_json() {
        let (shell, script) = (args.shell.to_string(), String::from_utf8_lossy(&script).into());
        return output.object(&ScriptObject { shell, script });
    }
    output.bytes(&script)
}
