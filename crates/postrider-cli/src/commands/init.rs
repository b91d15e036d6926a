//! `postrider init`: a commented configuration file to start from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::error::{CliError, Code};
use crate::output::Output;

const TEMPLATE: &str = include_str!("init.toml");

const EXAMPLES: &str = "\
Examples:
  postrider init
  postrider init --path /etc/postrider/orders.toml";

/// The arguments of `postrider init`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InitArgs {
    /// Where to write it
    #[arg(long, value_name = "FILE", default_value = "postrider.toml")]
    path: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Written {
    path: String,
}

/// Writes the file.
pub(crate) fn run(args: &InitArgs, output: Output) -> Result<(), CliError> {
    let path = args.path.display();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    if !args.force {
        options.create_new(true);
    }
    let written = options.open(&args.path).and_then(|mut file| file.write_all(TEMPLATE.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => CliError::new(Code::Failure, format!("{path} already exists"))
            .with_fix("choose another --path, or replace it with --force"),
        _ => CliError::file(format!("cannot write {path}"), &error),
    })?;
    if output.is_json() {
        return output.object(&Written { path: path.to_string() });
    }
    output.talk(&format!(
        "wrote {path}\nnext: set url in [source], then\n  postrider migrate --config {path}\n  postrider relay --config {path}"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use postrider_relay::config::{Config, Environment};

    #[test]
    fn the_template_is_valid_as_it_is() {
        let config = Config::parse(super::TEMPLATE, "postrider.toml", &Environment::default());
        assert!(config.is_ok(), "{}", config.unwrap_err());
    }

    /// What is commented out is the default or an example, and valid too.
    #[test]
    fn the_template_is_valid_with_every_line() {
        let uncomment = |line: &str| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with('[') => rest.to_owned(),
            Some(rest) if rest.split(' ').nth(1) == Some("=") => rest.to_owned(),
            _ => line.to_owned(),
        };
        let text: Vec<String> = super::TEMPLATE.lines().map(uncomment).collect();
        let text = text.join("\n");
        assert_ne!(text.trim(), super::TEMPLATE.trim());
        let config = Config::parse(&text, "postrider.toml", &Environment::default());
        assert!(config.is_ok(), "{}", config.unwrap_err());
    }
}
