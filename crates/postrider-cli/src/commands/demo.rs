//! `postrider demo`: a shop under faults, without an outbox and with one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tokio::time::timeout;

use crate::demo::counts::Counts;
use crate::demo::progress::Progress;
use crate::demo::round;
use crate::demo::schedule::{ORDERS_MAX, ORDERS_MIN, Schedule, Troubles};
use crate::demo::shop;
use crate::demo::{DemoError, Way};
use crate::error::{CliError, Code};
use crate::output::Output;
use crate::signals::stop_on_signal;

/// How much later than its effects a signal may be noticed.
const SIGNAL_DELAY: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Examples:
  postrider demo
  postrider demo --orders 200 --seed 4711 --keep demo";

/// The arguments of `postrider demo`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Draws the schedule of faults; the same seed draws the same one [default: a random one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many orders the shop takes
    #[arg(long, value_name = "N", default_value_t = 40,
          value_parser = clap::value_parser!(u32).range(i64::from(ORDERS_MIN)..=i64::from(ORDERS_MAX)))]
    orders: u32,
    /// Keep the databases and logs in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

#[derive(Serialize)]
struct ReportObject {
    seed: u64,
    orders: u32,
    troubles: Troubles,
    naive: Counts,
    postrider: Counts,
}

/// Runs the demo.
pub(crate) async fn run(args: &DemoArgs, output: Output) -> Result<(), CliError> {
    if let Some(settings) = shop::Settings::of_process() {
        return shop::work(&settings).await.map_err(|error| failed(&error));
    }
    let mut shutdown = stop_on_signal()?;
    // Whichever ends first: what belongs to the other one is killed and removed with it.
    let played = tokio::select! {
        played = play(args, output) => Some(played),
        () = shutdown.requested() => None,
    };
    let report = match played {
        Some(Ok(report)) => report,
        // A terminal interrupts the children, too, and their end may be seen first.
        Some(Err(error)) if timeout(SIGNAL_DELAY, shutdown.requested()).await.is_err() => {
            return Err(error);
        }
        Some(Err(_)) | None => {
            return Err(CliError::new(Code::Failure, "the demo was interrupted"));
        }
    };
    match output.is_json() {
        true => output.object(&report)?,
        false => {
            output.talk("");
            output.data(&to_text(&report))?;
        }
    }
    if report.postrider.are_clean() {
        return Ok(());
    }
    let what = "the column of postrider is not clean; this is a bug in postrider";
    let fix = format!(
        "report it; look at it with: postrider demo --seed {} --orders {} --keep demo",
        report.seed, report.orders
    );
    Err(CliError::new(Code::Failure, what).with_fix(fix))
}

async fn play(args: &DemoArgs, output: Output) -> Result<ReportObject, CliError> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u32(..).into());
    let schedule = Schedule::draw(seed, args.orders);
    let troubles = schedule.troubles();
    output.talk(&introduction(seed, args.orders, &schedule, &troubles));

    let temporary = match &args.keep {
        Some(dir) => {
            prepare(dir)?;
            None
        }
        None => Some(temporary()?),
    };
    let kept = args.keep.as_deref();
    let dir = temporary.as_ref().map(tempfile::TempDir::path).or(kept).unwrap_or(Path::new("."));
    let naive = play_round(Way::Naive, &schedule, dir, output).await?;
    let postrider = play_round(Way::Postrider, &schedule, dir, output).await?;
    if let Some(dir) = kept {
        output.talk(&format!("the databases and logs are in {}", dir.display()));
    }
    Ok(ReportObject { seed, orders: args.orders, troubles, naive, postrider })
}

async fn play_round(
    way: Way,
    schedule: &Schedule,
    dir: &Path,
    output: Output,
) -> Result<Counts, CliError> {
    output.talk(match way {
        Way::Naive => {
            "naive: the shop commits and then publishes; for payments, publishes and then commits"
        }
        Way::Postrider => {
            "postrider: the shop writes to the outbox, a relay publishes, the consumer has an inbox"
        }
    });
    let start = Instant::now();
    let progress = Progress::new(output, way, schedule.requests.len());
    let counts = round::run(way, schedule, &dir.join(way.as_str()), progress).await;
    let counts = counts.map_err(|error| failed(&error))?;
    output.talk(&format!("  done in {:.1} s", start.elapsed().as_secs_f64()));
    Ok(counts)
}

fn temporary() -> Result<tempfile::TempDir, CliError> {
    let dir = tempfile::Builder::new().prefix("postrider-demo-").tempdir();
    dir.map_err(|error| CliError::file("cannot make a temporary directory".into(), &error))
}

/// Makes the directory, and sees to it that nothing of an earlier run is counted.
fn prepare(dir: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(dir)
        .map_err(|error| CliError::file(format!("cannot make {}", dir.display()), &error))?;
    for way in Way::ALL {
        let path = dir.join(way.as_str());
        if path.exists() {
            let what = format!("{} is there already", path.display());
            let fix = "remove it, or choose another directory for --keep";
            return Err(CliError::new(Code::Failure, what).with_fix(fix));
        }
    }
    Ok(())
}

fn failed(error: &DemoError) -> CliError {
    CliError::new(Code::Failure, "the demo could not go on")
        .caused_by(&**error)
        .with_fix("try again; --keep DIR keeps the databases and logs")
}

fn introduction(seed: u64, orders: u32, schedule: &Schedule, troubles: &Troubles) -> String {
    let Troubles { crashes, outages, timeouts, errors, rollbacks } = troubles;
    let requests = schedule.requests.len();
    format!(
        "A shop takes {orders} orders, twice over the same {requests} requests (seed {seed}).\n\
         Meanwhile: {crashes} crashes (kill -9), {outages} outages of the broker, {timeouts} \
         acknowledgements that\nnever arrive, {errors} errors of the broker, {rollbacks} rollbacks \
         at commit.\n"
    )
}

fn to_text(report: &ReportObject) -> String {
    let (naive, postrider) = (&report.naive, &report.postrider);
    let row = |name: &str, of: fn(&Counts) -> u64| {
        format!("{name:18}{:>8}{:>12}\n", of(naive), of(postrider))
    };
    let mut text = format!("{:18}{:>8}{:>12}\n", "events", "naive", "postrider");
    text += &row("committed", |counts| counts.committed);
    text += &row("delivered", |counts| counts.delivered);
    text += &row("lost", |counts| counts.lost);
    text += &row("ghost", |counts| counts.ghost);
    text += &row("duplicated", |counts| counts.duplicated);
    text += &row("applied twice", |counts| counts.applied_twice);
    text += &row("out of order", |counts| counts.out_of_order);
    text + "\n" + &conclusion(naive, postrider)
}

/// Says what the numbers show, be it that they show nothing.
fn conclusion(naive: &Counts, postrider: &Counts) -> String {
    let Counts { lost, ghost, applied_twice, excess_cents, .. } = *naive;
    let off = excess_cents.unsigned_abs();
    let revenue = match excess_cents.signum() {
        0 => "right by chance".to_owned(),
        sign => {
            let direction = if sign < 0 { "too low" } else { "too high" };
            format!("{}.{:02} {direction}", off / 100, off % 100)
        }
    };
    let mut text = format!(
        "Publishing beside the transaction lost {lost} events that happened, announced {ghost} \
         that did not\nand had {applied_twice} applied twice: the revenue in the consumer's books \
         is {revenue}.\n"
    );
    if lost == 0 || ghost == 0 {
        text += "This time the faults missed a weak spot of it; another --seed will not.\n";
    }
    text += &match postrider.are_clean() {
        true => format!(
            "With outbox, relay and inbox each event arrived in order and was applied once, though \
             {} came again.\n",
            postrider.duplicated
        ),
        false => {
            "With outbox, relay and inbox it should have been clean, and was not.\n".to_owned()
        }
    };
    text
}
