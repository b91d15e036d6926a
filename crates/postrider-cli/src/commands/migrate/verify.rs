//! `postrider migrate verify`: fails if the tables are not as the migrations make them.

use clap::Args;
use postrider::schema::{Difference, Drift};
use serde::Serialize;

use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::Outbox;
use crate::output::{Output, plain};

const EXAMPLES: &str = "\
Examples:
  postrider migrate verify --from postgres://shop@localhost/shop
  postrider migrate verify --json --config postrider.toml";

/// The arguments of `postrider migrate verify`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
}

/// What was found as JSON; people script against it.
#[derive(Serialize)]
struct VerifiedObject<'v> {
    table: &'v str,
    differences: Vec<DifferenceObject<'v>>,
}

#[derive(Serialize)]
struct DifferenceObject<'v> {
    drift: &'static str,
    object: &'v str,
    expected: Option<&'v str>,
    found: Option<&'v str>,
}

impl<'v> From<&'v Difference> for DifferenceObject<'v> {
    fn from(difference: &'v Difference) -> Self {
        let Difference { drift, object, expected, found } = difference;
        let (expected, found) = (expected.as_deref(), found.as_deref());
        Self { drift: drift.as_str(), object, expected, found }
    }
}

/// Prints every difference, and fails if there is one.
pub(crate) async fn run(args: &VerifyArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let table = outbox.source.table.as_str();
    let differences = outbox.verify().await?;
    if output.is_json() {
        let found = differences.iter().map(Into::into).collect();
        output.object(&VerifiedObject { table, differences: found })?;
    } else if !differences.is_empty() {
        let lines: Vec<String> =
            differences.iter().map(|difference| plain(&difference.to_string())).collect();
        output.data(&lines.join("\n"))?;
    }
    if differences.is_empty() {
        output.talk(&format!("{table} is as its migrations make it"));
        return Ok(());
    }
    let count = match differences.len() {
        1 => "one difference".to_owned(),
        count => format!("{count} differences"),
    };
    let what = format!("{table} is not as its migrations make it: {count}");
    let fix = match differences.iter().all(|difference| difference.drift == Drift::Pending) {
        true => format!("run `postrider migrate {}`", outbox.flags),
        false => {
            let print = format!("postrider migrate {} --print", outbox.flags);
            format!("undo what was changed by hand; `{print}` shows how it was made")
        }
    };
    Err(CliError::new(Code::SchemaDiffers, what).with_fix(fix))
}
