//! Runs other programs, and says which one failed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What went wrong, for the user.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.ancestors().nth(2).expect("xtask is in crates/xtask").to_owned()
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// Runs a command; what it prints is seen as it comes.
pub(crate) fn run(command: &mut Command) -> Result<(), Failed> {
    let text = text(command);
    let status =
        command.status().map_err(|error| Failed(format!("cannot run `{text}`: {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Failed(format!("`{text}` failed ({status})")))
}

/// The command as one would type it.
pub(crate) fn text(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_stem().unwrap_or(program.as_os_str());
    let mut text = String::new();
    for (variable, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        text.push_str(&format!("{}={value} ", variable.to_string_lossy()));
    }
    text.push_str(&name.to_string_lossy());
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
