//! `postrider migrate`: creates or upgrades the outbox tables.

use clap::Args;
use serde::Serialize;

use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::Output;

/// The arguments of `postrider migrate`.
#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Print the SQL for an empty database, and change nothing
    #[arg(long)]
    print: bool,
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

/// Migrates.
pub(crate) async fn run(args: &MigrateArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let table = outbox.source.table.as_str();
    if args.print {
        let sql = outbox.migration_sql();
        return match output.is_json() {
            true => output.object(&PrintedObject { table, sql: &sql }),
            false => output.data(&sql),
        };
    }
    let applied = outbox.migrate().await?;
    if output.is_json() {
        let applied = applied
            .iter()
            .map(|migration| MigrationObject { version: migration.version, name: migration.name });
        return output.object(&MigratedObject { table, applied: applied.collect() });
    }
    for migration in &applied {
        output.talk(&format!("applied {} {}", migration.version, migration.name));
    }
    let state = if applied.is_empty() { "is up to date already" } else { "is ready" };
    let flags = &outbox.flags;
    let to = if args.outbox.config.is_some() { "" } else { " --to stdout:" };
    output.talk(&format!("{table} {state}\nnext: postrider relay {flags}{to}"));
    Ok(())
}
