//! Finds the outbox that a command is about.

use std::path::Path;

use postrider::schema::{self, Migration};
use postrider_relay::admin::Admin;
use postrider_relay::config::{Config, Environment, Flags, SourceConfig};
use postrider_relay::sources;

use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};

/// An outbox, and how to name it in another command.
pub(crate) struct Outbox {
    pub(crate) source: SourceConfig,
    /// The flags that name the same outbox, without secrets: `--from sqlite://app.db`.
    pub(crate) flags: String,
}

impl Outbox {
    /// The outbox that the arguments name.
    pub(crate) fn find(args: &OutboxArgs) -> Result<Self, CliError> {
        match (&args.config, &args.from) {
            (Some(path), _) => {
                let source = read_config(path)?.source;
                Ok(Self {
                    source,
                    flags: config_flag(path),
                })
            }
            (None, Some(from)) => Self::at(from, args.table.as_deref()),
            (None, None) => Err(CliError::new(Code::Usage, "no database was named")
                .with_fix("add --from URL or --config FILE")),
        }
    }

    /// The outbox in a database.
    pub(crate) fn at(from: &str, table: Option<&str>) -> Result<Self, CliError> {
        let (from, table) = (Some(from.to_owned()), table.map(str::to_owned));
        let flags = Flags {
            from,
            table,
            ..Flags::default()
        };
        let source = SourceConfig::from_flags(&flags, &Environment::of_process());
        let source = source.map_err(CliError::problems)?;
        let flags = from_flags(&source);
        Ok(Self { source, flags })
    }

    /// Opens the outbox for looking and for dealing with dead letters.
    pub(crate) async fn admin(&self) -> Result<Box<dyn Admin>, CliError> {
        Ok(sources::connect_admin(self.source.url.expose(), &self.source.table).await?)
    }

    /// Creates or upgrades the tables, and says what was done.
    pub(crate) async fn migrate(&self) -> Result<Vec<&'static Migration>, CliError> {
        Ok(sources::migrate(self.source.url.expose(), &self.source.table).await?)
    }

    /// The SQL that makes the tables in an empty database.
    pub(crate) fn migration_sql(&self) -> String {
        schema::sqlite::sql(&self.source.table)
    }
}

/// Reads a configuration file.
pub(crate) fn read_config(path: &Path) -> Result<Config, CliError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let error = CliError::file(format!("cannot read {shown}"), &error);
        let code = if error.code == Code::NotPermitted {
            error.code
        } else {
            Code::Configuration
        };
        let fix = format!("write one to start from: postrider init --path {shown}");
        CliError {
            code,
            ..error.with_fix(fix)
        }
    })?;
    Config::parse(&text, &shown, &Environment::of_process()).map_err(CliError::problems)
}

/// The flag that names the outbox of a configuration file.
pub(crate) fn config_flag(path: &Path) -> String {
    format!("--config {}", path.display())
}

/// The flags that name an outbox.
pub(crate) fn from_flags(source: &SourceConfig) -> String {
    let from = format!("--from {}", source.url);
    if source.table == Default::default() {
        from
    } else {
        format!("{from} --table {}", source.table)
    }
}
