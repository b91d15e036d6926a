//! Finds the outbox that a command is about.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use postrider::schema::postgres::{Layout, Replicated, RolePrefix};
use postrider::schema::{Difference, Migration, Status};
use postrider_relay::admin::Admin;
use postrider_relay::audit::{Audit, Watch};
use postrider_relay::config::{Config, Environment, Flags, SourceConfig};
use postrider_relay::diagnosis::Diagnose;
use postrider_relay::operator::Operator;
use postrider_relay::prune::Prune;
use postrider_relay::secret::MASK;
use postrider_relay::shutdown::Shutdown;
use postrider_relay::slots::Slots;
use postrider_relay::sources::{self, schema};

use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};

/// The largest configuration file.
const CONFIG_BYTES_MAX: u64 = 1024 * 1024;
/// Stands in for `--from`.
const URL_VARIABLE: &str = "POSTRIDER_SOURCE__URL";

/// An outbox, and how to name it in another command.
pub(crate) struct Outbox {
    pub(crate) source: SourceConfig,
    /// The flags that name the same outbox, without secrets, so that a command with them can be
    /// copied: `--from sqlite://app.db`.
    pub(crate) flags: String,
}

impl Outbox {
    /// The outbox that the arguments name.
    pub(crate) fn find(args: &OutboxArgs) -> Result<Self, CliError> {
        if let Some(path) = &args.config {
            let source = read_config(path)?.source;
            return Ok(Self { source, flags: config_flag(path) });
        }
        let (from, table) = (args.from.clone(), args.table.clone());
        let flags = Flags { from, table, ..Flags::default() };
        let source = SourceConfig::from_flags(&flags, &environment(&flags)?);
        let source = source.map_err(CliError::problems)?;
        let flags = from_flags(&source);
        Ok(Self { source, flags })
    }

    /// Opens the outbox for looking and for dealing with dead letters.
    pub(crate) async fn admin(&self) -> Result<Box<dyn Admin>, CliError> {
        let SourceConfig { url, table, columns, .. } = &self.source;
        Ok(sources::connect_admin(url.expose(), table, columns).await?)
    }

    /// Begins to audit the database.
    pub(crate) async fn audit(
        &self,
        watch: &Watch,
        shutdown: &Shutdown,
    ) -> Result<Box<dyn Audit>, CliError> {
        let SourceConfig { url, table, columns, .. } = &self.source;
        Ok(sources::connect_audit(url.expose(), table, columns, watch, shutdown).await?)
    }

    /// Opens the outbox for everything that an operator does with it.
    pub(crate) async fn operator(&self) -> Result<Box<dyn Operator>, CliError> {
        let SourceConfig { url, table, columns, .. } = &self.source;
        Ok(sources::connect_operator(url.expose(), table, columns).await?)
    }

    /// Examines the outbox and its database.
    pub(crate) fn diagnosis(&self) -> Result<Box<dyn Diagnose>, CliError> {
        let SourceConfig { url, table, columns, .. } = &self.source;
        Ok(sources::diagnosis(url.expose(), table, columns)?)
    }

    /// Opens the outbox for pruning.
    pub(crate) async fn pruner(&self) -> Result<Box<dyn Prune>, CliError> {
        let SourceConfig { url, table, columns, .. } = &self.source;
        Ok(sources::connect_prune(url.expose(), table, columns).await?)
    }

    /// Opens the outbox for looking after slots.
    pub(crate) async fn slots(&self) -> Result<Box<dyn Slots>, CliError> {
        let SourceConfig { url, table, columns, .. } = &self.source;
        Ok(sources::connect_slots(url.expose(), table, columns).await?)
    }

    /// Creates or upgrades the tables, and says what was done.
    pub(crate) async fn migrate(
        &self,
        layout: Option<Layout>,
    ) -> Result<Vec<&'static Migration>, CliError> {
        let SourceConfig { url, table, .. } = &self.source;
        Ok(schema::migrate(url.expose(), table, self.layout(layout)).await?)
    }

    /// Changes what becomes of rows that were replicated from another server.
    pub(crate) async fn set_replicated(&self, replicated: Replicated) -> Result<(), CliError> {
        let SourceConfig { url, table, .. } = &self.source;
        Ok(schema::set_replicated(url.expose(), table, replicated).await?)
    }

    /// The SQL that does it.
    pub(crate) fn replicated_sql(&self, replicated: Replicated) -> Result<String, CliError> {
        let SourceConfig { url, table, .. } = &self.source;
        Ok(schema::replicated_sql(url.expose(), table, replicated)?)
    }

    /// The SQL that makes the tables in an empty database.
    pub(crate) fn migration_sql(&self, layout: Option<Layout>) -> Result<String, CliError> {
        let SourceConfig { url, table, .. } = &self.source;
        Ok(schema::sql(url.expose(), table, self.layout(layout))?)
    }

    /// Which migrations were applied, and which are lacking.
    pub(crate) async fn migration_status(&self) -> Result<Status, CliError> {
        Ok(schema::status(self.source.url.expose(), &self.source.table).await?)
    }

    /// In what the tables differ from what the migrations make.
    pub(crate) async fn verify(&self) -> Result<Vec<Difference>, CliError> {
        Ok(schema::verify(self.source.url.expose(), &self.source.table).await?)
    }

    /// The SQL of roles for the tables.
    pub(crate) fn role_sql(&self, prefix: &RolePrefix) -> Result<String, CliError> {
        Ok(schema::roles(self.source.url.expose(), &self.source.table, prefix)?)
    }

    /// A table whose columns the configuration names is not of our making.
    fn layout(&self, wanted: Option<Layout>) -> Option<Layout> {
        wanted.or_else(|| (!self.source.columns.is_empty()).then_some(Layout::Existing))
    }
}

/// The environment, if it or the flags name a database.
pub(crate) fn environment(flags: &Flags) -> Result<Environment, CliError> {
    let env = Environment::of_process();
    if flags.from.is_some() || env.get(URL_VARIABLE).is_some() {
        return Ok(env);
    }
    let fix = format!("add --from URL or --config FILE, or set {URL_VARIABLE}");
    Err(CliError::new(Code::Usage, "no database was named").with_fix(fix))
}

/// Reads a configuration file.
pub(crate) fn read_config(path: &Path) -> Result<Config, CliError> {
    let shown = path.display().to_string();
    let text = read_text(path).map_err(|error| {
        let fix = match error.kind() {
            ErrorKind::NotFound => {
                Some(format!("write one to start from: postrider init --path {shown}"))
            }
            ErrorKind::InvalidData => Some("a configuration is text in UTF-8".to_owned()),
            _ => None,
        };
        let error = CliError::file(format!("cannot read {shown}"), &error);
        let code = match error.code {
            Code::NotPermitted => Code::NotPermitted,
            _ => Code::Configuration,
        };
        CliError { code, fix, ..error }
    })?;
    Config::parse(&text, &shown, &Environment::of_process()).map_err(CliError::problems)
}

/// The text of a configuration file.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        let what = format!("it has more than {CONFIG_BYTES_MAX} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

/// The flag that names the outbox of a configuration file.
pub(crate) fn config_flag(path: &Path) -> String {
    format!("--config {}", shell_word(&path.display().to_string()))
}

/// The flags that name an outbox.
pub(crate) fn from_flags(source: &SourceConfig) -> String {
    let url = source.url.to_string();
    let from = match url.contains(MASK) {
        // What is hidden could not be copied.
        true => format!("--from \"${URL_VARIABLE}\""),
        false => format!("--from {}", shell_word(&url)),
    };
    if source.table == Default::default() {
        from
    } else {
        format!("{from} --table {}", shell_word(source.table.as_str()))
    }
}

/// Text as a shell takes it for one word, so that a suggested command can be copied.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use postrider::schema::TableName;
    use postrider_relay::config::SourceConfig;
    use postrider_relay::secret::SecretUrl;

    use super::{from_flags, shell_word};

    #[test]
    fn a_command_that_can_be_copied_has_no_mask() {
        for (url, expected) in [
            ("sqlite:app.db", "--from sqlite:app.db --table events"),
            ("postgres://localhost/shop", "--from postgres://localhost/shop --table events"),
            ("postgres://me:canary@host/shop", "--from \"$POSTRIDER_SOURCE__URL\" --table events"),
            (
                "postgres://host/shop?passfile=canary",
                "--from \"$POSTRIDER_SOURCE__URL\" --table events",
            ),
        ] {
            let url = SecretUrl::new(url);
            let table = TableName::new("events").unwrap();
            let source = SourceConfig { url, table, columns: Default::default(), hint: None };
            assert_eq!(from_flags(&source), expected);
        }
    }

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        for (text, word) in [
            ("sqlite:///var/app.db", "sqlite:///var/app.db"),
            ("sqlite:my app.db", "'sqlite:my app.db'"),
            ("it's; rm", r"'it'\''s; rm'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }
}
