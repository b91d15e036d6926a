//! `postrider migrate`: creates or upgrades the outbox tables.

mod gone;
mod roles;
mod status;
mod verify;

use clap::{Args, Subcommand};
use postrider::schema::Migration;
use postrider::schema::postgres::{Layout, PartitionWidth, Replicated};
use serde::Serialize;

use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::Output;
use crate::progress::Progress;

const EXAMPLES: &str = "\
Examples:
  postrider migrate --from postgres://shop@localhost/shop
  postrider migrate --partition 1d --config postrider.toml
  postrider migrate --print --from postgres://shop@localhost/shop > outbox.sql

A migration that was applied is not applied again, so this can be run at every deployment.";

/// The arguments of `postrider migrate`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    command: Option<MigrateCommand>,
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Print the SQL for an empty database, and change nothing
    #[arg(long)]
    print: bool,
    /// Lay a new outbox out in partitions by time, such as 1d or 6h (PostgreSQL)
    #[arg(long, value_name = "WIDTH")]
    partition: Option<PartitionWidth>,
    /// Leave the outbox table as it is, and make only what stands beside it (PostgreSQL)
    #[arg(long, conflicts_with = "partition")]
    existing: bool,
    /// What becomes of rows that logical replication brings from another server: deliver (which a
    /// new outbox does) or ignore (PostgreSQL)
    #[arg(long, value_name = "HOW", conflicts_with = "existing")]
    replicated: Option<Replicated>,
}

#[derive(Debug, Subcommand)]
enum MigrateCommand {
    /// Print the SQL of roles with no more rights than their work needs (PostgreSQL)
    Roles(roles::RolesArgs),
    /// Show which migrations were applied, and which are lacking
    Status(status::StatusArgs),
    /// Compare the tables with what the migrations make, and fail on any difference
    Verify(verify::VerifyArgs),
}

#[derive(Serialize)]
struct PrintedObject<'p> {
    table: &'p str,
    sql: &'p str,
}

#[derive(Serialize)]
struct MigratedObject<'m> {
    table: &'m str,
    applied: Vec<MigrationObject<'m>>,
}

#[derive(Serialize)]
struct MigrationObject<'m> {
    version: u32,
    name: &'m str,
}

impl From<&'static Migration> for MigrationObject<'_> {
    fn from(migration: &'static Migration) -> Self {
        Self { version: migration.version, name: migration.name }
    }
}

/// Migrates, or does what was asked for instead.
pub(crate) async fn run(args: &MigrateArgs, output: Output) -> Result<(), CliError> {
    match &args.command {
        None => migrate(args, output).await,
        Some(MigrateCommand::Roles(args)) => roles::run(args, output),
        Some(MigrateCommand::Status(args)) => status::run(args, output).await,
        Some(MigrateCommand::Verify(args)) => verify::run(args, output).await,
    }
}

async fn migrate(args: &MigrateArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let table = outbox.source.table.as_str();
    let layout = match args.partition {
        Some(width) => Some(Layout::Partitioned { width }),
        None => args.existing.then_some(Layout::Existing),
    };
    if args.print {
        let mut sql = outbox.migration_sql(layout)?;
        if let Some(replicated) = args.replicated {
            sql.push_str(&outbox.replicated_sql(replicated)?);
        }
        return print(table, &sql, output);
    }
    let migrating = outbox.migrate(layout);
    let applied = Progress::new(output).during(|| "migrating".to_owned(), migrating).await?;
    if applied.is_empty() {
        gone::check(&outbox).await?;
    }
    if let Some(replicated) = args.replicated {
        outbox.set_replicated(replicated).await?;
    }
    if output.is_json() {
        let applied = applied.into_iter().map(Into::into).collect();
        return output.object(&MigratedObject { table, applied });
    }
    for migration in &applied {
        output.talk(&format!("applied {} {}", migration.version, migration.name));
    }
    let state = if applied.is_empty() { "is up to date already" } else { "is ready" };
    output.talk(&format!("{table} {state}"));
    if args.partition.is_some() {
        output.talk("a relay adds partitions ahead, and so does `postrider prune`");
    }
    if let Some(replicated) = args.replicated {
        let becomes = match replicated {
            Replicated::Deliver => "delivered",
            Replicated::Ignore => "not kept",
        };
        output.talk(&format!("rows that are replicated from another server are {becomes}"));
    }
    let flags = &outbox.flags;
    let to = if args.outbox.config.is_some() { "" } else { " --to stdout:" };
    output.talk(&format!("next: postrider relay {flags}{to}"));
    Ok(())
}

/// Prints SQL as data.
fn print(table: &str, sql: &str, output: Output) -> Result<(), CliError> {
    match output.is_json() {
        true => output.object(&PrintedObject { table, sql }),
        false => output.data(sql),
    }
}
