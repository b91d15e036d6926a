//! `postrider migrate status`: which migrations were applied, and which are lacking.

use clap::Args;
use postrider::schema::Status;
use serde::Serialize;

use super::MigrationObject;
use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::{Output, plain, table};
use crate::time::rfc3339;

const EXAMPLES: &str = "\
Examples:
  postrider migrate status --from postgres://shop@localhost/shop
  postrider migrate status --json --config postrider.toml";

/// The arguments of `postrider migrate status`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
}

/// The status as JSON; people script against it.
#[derive(Serialize)]
struct StatusObject<'s> {
    table: &'s str,
    layout: Option<String>,
    applied: Vec<AppliedObject<'s>>,
    pending: Vec<MigrationObject<'s>>,
}

#[derive(Serialize)]
struct AppliedObject<'s> {
    version: u32,
    name: &'s str,
    applied_at: String,
}

/// Prints how the tables stand.
pub(crate) async fn run(args: &StatusArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let name = outbox.source.table.as_str();
    let status = outbox.migration_status().await?;
    if output.is_json() {
        return output.object(&to_object(name, &status));
    }
    output.data(&to_text(name, &status))?;
    if !status.pending.is_empty() {
        output.talk(&format!("next: postrider migrate {}", outbox.flags));
    }
    Ok(())
}

fn to_object<'s>(table: &'s str, status: &'s Status) -> StatusObject<'s> {
    let applied = status.applied.iter().map(|applied| AppliedObject {
        version: applied.version,
        name: &applied.name,
        applied_at: rfc3339(applied.applied_at),
    });
    StatusObject {
        table,
        layout: status.layout.map(|layout| layout.to_string()),
        applied: applied.collect(),
        pending: status.pending.iter().map(|migration| (*migration).into()).collect(),
    }
}

fn to_text(name: &str, status: &Status) -> String {
    let mut rows = vec![["VERSION", "NAME", "APPLIED"].map(str::to_owned).to_vec()];
    rows.extend(status.applied.iter().map(|applied| {
        vec![applied.version.to_string(), plain(&applied.name), rfc3339(applied.applied_at)]
    }));
    rows.extend(status.pending.iter().map(|migration| {
        vec![migration.version.to_string(), migration.name.to_owned(), "not yet".to_owned()]
    }));
    let layout = status.layout.map_or_else(|| "not there".to_owned(), |layout| layout.to_string());
    format!("{}, {layout}\n\n{}", plain(name), table(&rows))
}
