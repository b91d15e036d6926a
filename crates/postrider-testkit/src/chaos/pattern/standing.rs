//! How far a round is, and what it waits for if it goes no further.

use std::fmt;

use super::plan::{Plan, Victim};
use super::stage::Stage;

const SHOP: &str = "SELECT (SELECT count(*) FROM orders), \
     (SELECT count(*) FROM orders WHERE NOT is_open), (SELECT count(*) FROM steps)";
const BILLING: &str = "SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM book), \
     (SELECT count(*) FROM inbox_messages WHERE dead)";

/// How far a round is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Orders in the shop.
    placed: i64,
    /// Those that are complete there.
    complete: i64,
    /// What has happened to them.
    steps: i64,
    /// Orders that billing knows.
    known: i64,
    /// What it has booked.
    booked: i64,
    /// Its dead letters.
    pub(super) dead: i64,
    /// Events that wait in both outboxes, and dead ones. Looked for once all else is done.
    left: Option<[(u64, u64); 2]>,
}

impl Standing {
    /// Looks. Fails if a database is away.
    pub(super) async fn look(stage: &Stage, plan: &Plan) -> Result<Self, String> {
        let told = |error: sqlx::Error| error.to_string();
        let shop = sqlx::query_as(SHOP).fetch_one(&stage.shop.pool).await;
        let (placed, complete, steps) = shop.map_err(told)?;
        let billing = sqlx::query_as(BILLING).fetch_one(&stage.billing.pool).await;
        let (known, booked, dead) = billing.map_err(told)?;
        let is_booked = complete >= plan.orders as i64 && booked >= steps;
        let left = match is_booked {
            true => Some([stage.shop.left().await?, stage.billing.left().await?]),
            false => None,
        };
        Ok(Self { placed, complete, steps, known, booked, dead, left })
    }

    /// Whether there is nothing left to wait for. What is dead is not waited for.
    pub(super) fn is_over(&self) -> bool {
        self.left.is_some_and(|left| left.iter().all(|(waits, _)| *waits == 0))
    }

    /// How much of all orders has come to a victim, from 0 to 1.
    pub(super) fn share(&self, victim: Victim, plan: &Plan) -> f64 {
        let orders = if victim.is_of_shop() { self.placed } else { self.known };
        orders as f64 / plan.orders as f64
    }

    /// What has happened to all orders.
    pub(super) fn steps(&self) -> i64 {
        self.steps
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { placed, complete, steps, known, booked, dead, left } = self;
        write!(f, "{placed} orders are placed and {complete} complete in {steps} steps; ")?;
        write!(f, "billing knows {known} and has booked {booked} steps, {dead} are dead; ")?;
        match left {
            None => write!(f, "the outboxes were not looked at"),
            Some(left) => {
                let [shop, billing] = left.map(|(waits, dead)| format!("{waits} and {dead} dead"));
                write!(f, "in the shop's outbox are {shop}, in billing's {billing}")
            }
        }
    }
}
