//! The whole pattern under fire: a shop, a relay, a broker and billing, each a process of its own.
//!
//! The *shop* takes orders in steps (placed, paid in parts, shipped or refunded), each with its
//! event in the same transaction. A relay carries the events to a broker. *Billing* consumes them:
//! it claims each in its inbox, books it, and for the last step of an order writes an event of its
//! own, an invoice, all in one transaction; a second relay carries the invoices. Both services have
//! a server of PostgreSQL of their own.
//!
//! Meanwhile all of them are killed (`kill -9`) and started again, or stand still for a while, by a
//! [`Plan`] that follows from a seed: the services and the relays, the broker, the databases. At
//! the end nothing may be left to do, and the books must agree: to the cent for each order, each
//! event applied once and after the one before it, one invoice for each order.
//!
//! The shop knows its orders from its database alone, and asks it what became of a commit that had
//! no answer. Nothing in billing's tables keeps an event from being applied twice or too early, so
//! whatever the inbox and the consumer let through is found.

mod broker;
mod check;
pub mod counted;
pub mod orders;
mod plan;
mod process;
mod stage;
mod standing;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

pub use self::broker::Broker;
use self::plan::Blow;
pub use self::plan::{Plan, Victim};
pub use self::stage::Programs;
use self::stage::Stage;
use self::standing::Standing;

/// Longest time without any progress: a broker may take long to come back.
const STALLED_MAX: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So many of all that is wrong are shown.
const WRONGS_MAX: usize = 10;

/// What happened in a round in which nothing was wrong.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The plan.
    pub plan: Plan,
    /// How many events the shop has written.
    pub events: i64,
    /// How often each was killed.
    pub kills: BTreeMap<Victim, usize>,
    /// How often one of them stood still.
    pub pauses: usize,
    /// How many duplicates billing's inbox has found, at least: what it counted in its last moments
    /// is lost with it.
    pub duplicates: u64,
    /// How often the shop had to ask whether a commit was written.
    pub lost_commits: usize,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, events, kills, pauses, duplicates, lost_commits, took } = self;
        let Plan { broker, orders, seed, .. } = plan;
        let kills: Vec<_> =
            kills.iter().map(|(victim, count)| format!("{victim} {count}")).collect();
        write!(f, "{broker}, seed {seed}: {orders} orders in {events} events; ")?;
        write!(f, "killed: {}; {pauses} pauses; ", kills.join(", "))?;
        write!(f, "{duplicates} duplicates, {lost_commits} lost commits; {} s", took.as_secs())
    }
}

/// Runs a round. The error says what was wrong, or what it waits for in vain.
pub async fn run(plan: &Plan, programs: &Programs) -> Result<Summary, String> {
    let started = Instant::now();
    let stage = Stage::start(plan, programs).await;
    let (told, standing) = watch::channel(Standing::default());
    let victims = Victim::PROCESSES.into_iter().chain(Victim::SERVERS);
    let harm = join_all(victims.map(|victim| harm(&stage, plan, victim, standing.clone())));
    let harm = async { Ok::<_, String>(harm.await) };
    let (harmed, ()) = tokio::try_join!(harm, until_over(&stage, plan, &told))?;
    stage.end().await?;

    let wrongs = check::wrongs(&stage, plan).await.map_err(|error| error.to_string())?;
    if !wrongs.is_empty() {
        let some = wrongs[..wrongs.len().min(WRONGS_MAX)].join("\n");
        let (count, lines) = (wrongs.len(), stage.last_lines().await);
        return Err(format!("{count} wrongs:\n{some}\n{lines}"));
    }
    let events = standing.borrow().steps();
    Ok(Summary {
        plan: plan.clone(),
        events,
        kills: harmed.iter().map(|harmed| (harmed.victim, harmed.kills)).collect(),
        pauses: harmed.iter().map(|harmed| harmed.pauses).sum(),
        duplicates: stage.duplicates().await,
        lost_commits: stage.lost_commits().await,
        took: started.elapsed(),
    })
}

/// What was done to a victim.
struct Harmed {
    victim: Victim,
    kills: usize,
    pauses: usize,
}

/// Does to a victim what is planned, whenever it is so far.
async fn harm(
    stage: &Stage,
    plan: &Plan,
    victim: Victim,
    mut standing: watch::Receiver<Standing>,
) -> Harmed {
    let mut harmed = Harmed { victim, kills: 0, pauses: 0 };
    for fault in plan.faults(victim) {
        let is_due = |standing: &Standing| standing.share(victim, plan) >= fault.at;
        standing.wait_for(is_due).await.expect("it is told as long as the round goes");
        sleep(fault.after).await;
        if stage.strike(victim, fault.blow).await {
            match fault.blow {
                Blow::Kill(_) => harmed.kills += 1,
                Blow::Pause(_) => harmed.pauses += 1,
            }
        }
    }
    harmed
}

/// Waits until there is nothing left to do, and tells how far it is meanwhile. The error says why
/// there is no use in waiting longer.
async fn until_over(
    stage: &Stage,
    plan: &Plan,
    told: &watch::Sender<Standing>,
) -> Result<(), String> {
    let mut moved = Instant::now();
    loop {
        let looked = Standing::look(stage, plan).await;
        if let Ok(standing) = looked {
            if *told.borrow() != standing {
                told.send_replace(standing);
                moved = Instant::now();
            }
            if standing.is_over() {
                return Ok(());
            }
            if standing.dead > 0 {
                let lines = stage.last_lines().await;
                return Err(format!("an event has become a dead letter: {standing}\n{lines}"));
            }
        }
        if let Some(ended) = stage.ended_by_itself().await {
            return Err(ended);
        }
        if moved.elapsed() > STALLED_MAX {
            let (standing, lines) = (*told.borrow(), stage.last_lines().await);
            let away = looked.err().map(|error| format!(" ({error})")).unwrap_or_default();
            return Err(format!("no progress in {STALLED_MAX:?}: {standing}{away}\n{lines}"));
        }
        sleep(LOOK_EVERY).await;
    }
}
