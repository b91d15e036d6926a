//! `postrider migrate roles`: prints the SQL of roles.

use clap::Args;
use postrider::schema::postgres::RolePrefix;

use super::print;
use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  postrider migrate roles --prefix shop --from postgres://shop@localhost/shop | psql";

/// The arguments of `postrider migrate roles`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RolesArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// What the names of the roles begin with
    #[arg(long, value_name = "NAME", default_value = "postrider", value_parser = prefix)]
    prefix: RolePrefix,
}

fn prefix(text: &str) -> Result<RolePrefix, postrider::schema::postgres::InvalidPrefix> {
    RolePrefix::new(text)
}

/// Prints the SQL; the database is not looked at.
pub(crate) fn run(args: &RolesArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    print(outbox.source.table.as_str(), &outbox.role_sql(&args.prefix)?, output)
}
