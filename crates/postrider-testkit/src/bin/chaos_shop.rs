//! The producer of the pattern's chaos test: takes orders until there are enough of them, and is
//! killed meanwhile. All that it knows of its orders it reads from its database.
//!
//! `chaos_shop <database> <orders> <seed>`
#![allow(clippy::print_stderr, reason = "its log is read when a run fails")]

use std::error::Error;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fastrand::Rng;
use postrider::{Event, Events, LostCommit, Outbox, Outcome, ToEvent as _, WriteError};
use postrider_testkit::chaos::pattern::orders::{Kind, Step};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres, Transaction};
use tokio::task::JoinSet;
use tokio::time::sleep;

type Failure = Box<dyn Error + Send + Sync>;

/// How many connections write at once. Each has orders of its own.
const WORKERS: i64 = 4;
/// Most orders of a worker that are open at once.
const OPEN_MAX: usize = 8;
/// Most steps of a transaction, each of another order.
const STEPS_MAX: usize = 3;
/// Most parts in which an order is paid.
const PARTS_MAX: i64 = 4;
/// One transaction of so many is rolled back.
const ROLLED_BACK_OF: u32 = 20;
/// One step of so many is a refund.
const REFUNDED_OF: u32 = 8;
const PRICE_MAX: i64 = 1_000_000;
/// A database that is away is left alone for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// Longer than any transaction of the shop.
const UNDECIDED_MAX: Duration = Duration::from_secs(5);

const OPEN: &str = "SELECT id, cents, paid, step FROM orders WHERE worker = $1 AND is_open
     ORDER BY id FOR UPDATE";
const LAST: &str = "SELECT max(id) FROM orders WHERE worker = $1";
const PUT_ORDER: &str = "INSERT INTO orders VALUES ($1, $2, $3, $4, $5, $6)
     ON CONFLICT (id) DO UPDATE SET paid = $4, step = $5, is_open = $6";
const PUT_STEP: &str = "INSERT INTO steps VALUES ($1, $2, $3, $4, $5)";
const KNOWN_STEPS: &str = "SELECT count(*) FROM steps WHERE event_id = ANY ($1)";

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(orders), Some(seed)) = (
        args.next(),
        args.next().and_then(|orders| orders.parse().ok()),
        args.next().and_then(|seed| seed.parse::<u64>().ok()),
    ) else {
        eprintln!("usage: chaos_shop <database> <orders> <seed>");
        return ExitCode::from(2);
    };
    // It may be away at the moment.
    let pool = PgPoolOptions::new().max_connections(WORKERS as u32 + 1).connect_lazy(&url);
    let pool = pool.expect("the database has a URL");
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        // A process that was killed does something else when it comes back.
        let rng = Rng::with_seed(seed ^ u64::from(std::process::id()) ^ number as u64);
        let worker = Worker { pool: pool.clone(), outbox: Outbox::new(), number, orders, rng };
        workers.spawn(worker.work());
    }
    eprintln!("the shop is open");
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended.map_err(Into::into).and_then(|ended| ended) {
            eprintln!("the shop is broken: {error}");
            return ExitCode::FAILURE;
        }
    }
    eprintln!("all {orders} orders are complete");
    ExitCode::SUCCESS
}

struct Worker {
    pool: PgPool,
    outbox: Outbox,
    /// Its orders are those that leave this rest.
    number: i64,
    orders: i64,
    rng: Rng,
}

/// An order as the database has it.
type Order = (i64, i64, i64, i64);

/// It was rolled back on purpose.
#[derive(Debug)]
struct RolledBack;

impl fmt::Display for RolledBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the customer has thought again")
    }
}

impl Error for RolledBack {}

impl Worker {
    /// Takes steps until all orders are complete. Fails only on what must never be.
    async fn work(mut self) -> Result<(), Failure> {
        loop {
            let error = match self.transact().await {
                Ok(true) => return Ok(()),
                Ok(false) => continue,
                Err(error) if error.is::<RolledBack>() => continue,
                Err(error) => error,
            };
            match error.downcast::<WriteError>().map(|error| *error) {
                Ok(WriteError::Unknown { commit, .. }) => self.resolve(&commit).await?,
                Ok(error) => eprintln!("{error}: {:?}", error.source()),
                Err(error) => eprintln!("{error}"),
            }
            sleep(PAUSE).await;
        }
    }

    /// One transaction with a few steps. Answers whether there is nothing left to do.
    async fn transact(&mut self) -> Result<bool, Failure> {
        let Self { pool, outbox, number, orders, rng } = self;
        let work = async |tx: &mut Transaction<'_, Postgres>| {
            let open: Vec<Order> = sqlx::query_as(OPEN).bind(*number).fetch_all(&mut **tx).await?;
            let last = sqlx::query_scalar(LAST).bind(*number).fetch_one(&mut **tx).await?;
            let steps = next_steps(&open, last, (*number, *orders), rng);
            let mut events = Events::none();
            for (order, step) in &steps {
                let event = put(tx, *number, *order, *step).await?;
                events = events.and(&event);
            }
            if rng.u32(..ROLLED_BACK_OF) == 0 {
                return Err(RolledBack.into());
            }
            Ok::<_, Failure>((steps.is_empty(), events))
        };
        outbox.transact_async(&*pool, work).await
    }

    /// Finds out what became of a transaction. The shop's own tables must say the same.
    async fn resolve(&self, commit: &LostCommit) -> Result<(), Failure> {
        let started = Instant::now();
        loop {
            let known = sqlx::query_scalar(KNOWN_STEPS).bind(commit.event_ids());
            let asked = match self.outbox.was_written(&self.pool, commit).await {
                Ok(outcome) => Some(outcome).zip(known.fetch_one(&self.pool).await.ok()),
                Err(_) => None,
            };
            let ids = commit.event_ids();
            match asked {
                Some((Outcome::Written, known)) if known == ids.len() as i64 => {
                    eprintln!("a lost commit was written");
                    return Ok(());
                }
                Some((Outcome::NotWritten, 0)) => {
                    eprintln!("a lost commit was not written");
                    return Ok(());
                }
                Some((outcome @ (Outcome::Written | Outcome::NotWritten), known)) => {
                    let said = format!("{ids:?}: {outcome:?}, but {known} steps are there");
                    return Err(said.into());
                }
                // Its own tables decide, after any transaction of that time has ended.
                Some((Outcome::Undecided, 0)) if started.elapsed() > UNDECIDED_MAX => {
                    eprintln!("a lost commit was lost with the server");
                    return Ok(());
                }
                Some((Outcome::Undecided, _)) | None => sleep(PAUSE).await,
            }
        }
    }
}

/// What happens next, to a few orders: each as it is afterwards, with its step.
fn next_steps(
    open: &[Order],
    last: Option<i64>,
    (worker, orders): (i64, i64),
    rng: &mut Rng,
) -> Vec<(Order, Step)> {
    let next = last.map_or(worker, |last| last + WORKERS);
    let fresh = (next < orders && open.len() < OPEN_MAX).then_some((next, 0, 0, 0));
    let mut choice: Vec<Order> = open.iter().copied().chain(fresh).collect();
    rng.shuffle(&mut choice);
    choice.truncate(rng.usize(1..=STEPS_MAX));
    choice.into_iter().map(|order| next_step(order, rng)).collect()
}

fn next_step((order, price, paid, last): Order, rng: &mut Rng) -> (Order, Step) {
    let due = price - paid;
    let (kind, cents) = match last {
        0 => (Kind::Placed, rng.i64(1..=PRICE_MAX)),
        _ if rng.u32(..REFUNDED_OF) == 0 && paid > 0 => (Kind::Refunded, paid),
        _ if due == 0 => (Kind::Shipped, 0),
        PARTS_MAX => (Kind::Paid, due),
        _ => (Kind::Paid, rng.i64(1..=due)),
    };
    let step = Step { order, step: last + 1, kind, cents };
    let price = if kind == Kind::Placed { cents } else { price };
    ((order, price, paid + kind.paid(cents), step.step), step)
}

/// Writes a step, and makes its event.
async fn put(
    tx: &mut Transaction<'_, Postgres>,
    worker: i64,
    (id, price, paid, _): Order,
    step: Step,
) -> Result<Event, Failure> {
    let event = step.to_event()?;
    let put_order = sqlx::query(PUT_ORDER).bind(id).bind(worker).bind(price).bind(paid);
    put_order.bind(step.step).bind(!step.kind.is_last()).execute(&mut **tx).await?;
    let put_step = sqlx::query(PUT_STEP).bind(event.id()).bind(id).bind(step.step);
    put_step.bind(step.kind.as_str()).bind(step.cents).execute(&mut **tx).await?;
    Ok(event)
}
