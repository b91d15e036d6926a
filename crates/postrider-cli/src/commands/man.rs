//! `postrider man`: the manual pages, a file for each command.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;
use serde::Serialize;

use crate::cli::Cli;
use crate::error::CliError;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  postrider man /usr/local/share/man/man1";

/// The arguments of `postrider man`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// The folder; it is made if it is missing
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

#[derive(Serialize)]
struct Written {
    pages: Vec<String>,
}

/// Writes the pages.
pub(crate) fn run(args: &ManArgs, output: Output) -> Result<(), CliError> {
    let shown = args.folder.display();
    fs::create_dir_all(&args.folder)
        .map_err(|error| CliError::file(format!("cannot make {shown}"), &error))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    write(command, &args.folder, &mut pages)?;
    if output.is_json() {
        return output.object(&Written { pages });
    }
    output.talk(&format!(
        "wrote {} manual pages; read one: man {}",
        pages.len(),
        args.folder.join("postrider-relay.1").display()
    ));
    Ok(())
}

/// Writes the page of a command and those of the commands below it.
fn write(command: Command, folder: &Path, pages: &mut Vec<String>) -> Result<(), CliError> {
    let below: Vec<Command> = command.get_subcommands().cloned().collect();
    let man = Man::new(command);
    let path = folder.join(man.get_filename());
    let mut page = Vec::new();
    let written = man.render(&mut page).and_then(|()| fs::write(&path, page));
    written.map_err(|error| CliError::file(format!("cannot write {}", path.display()), &error))?;
    pages.push(path.display().to_string());
    below.into_iter().try_for_each(|command| write(command, folder, pages))
}
