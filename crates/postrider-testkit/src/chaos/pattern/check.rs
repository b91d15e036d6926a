//! Holds the books of both services, and what was published, against each other.

use std::collections::{BTreeMap, HashMap};

use sqlx::PgPool;
use uuid::Uuid;

use super::broker::Invoices;
use super::orders::CONSUMER;
use super::plan::Plan;
use super::stage::Stage;

/// An order or an account: its price, what was paid, its last step, whether more is to come.
type Account = (i64, i64, i64, bool);
/// What happened to an order: the order, which step, what, how much.
type Row = (i64, i64, String, i64);

const ORDERS: &str = "SELECT id, cents, paid, step, is_open FROM orders ORDER BY id";
const STEPS: &str = "SELECT event_id, order_id, step, kind, cents FROM steps";
const ACCOUNTS: &str =
    "SELECT order_id, cents, paid, step, is_open FROM accounts ORDER BY order_id";
const BOOK: &str =
    "SELECT event_id, order_id, step, kind, cents, step_before FROM book ORDER BY number";
const KEPT: &str = "SELECT count(*) FROM inbox_messages";
const CLAIMS: &str = "SELECT count(*) FROM inbox WHERE consumer = $1";
/// What the shop says of an order that its own ledger does not.
const SHOP_SUMS: &str = "SELECT count(*) FROM orders AS o WHERE paid <> (
     SELECT coalesce(sum(CASE kind WHEN 'paid' THEN cents WHEN 'refunded' THEN -cents ELSE 0 END), 0)
     FROM steps WHERE order_id = o.id)";

/// All that is wrong at the end of a round.
pub(super) async fn wrongs(stage: &Stage, plan: &Plan) -> Result<Vec<String>, sqlx::Error> {
    let (shop, billing) = (&stage.shop.pool, &stage.billing.pool);
    let orders = accounts(shop, ORDERS).await?;
    let accounts = accounts(billing, ACCOUNTS).await?;
    let steps = sqlx::query_as(STEPS).fetch_all(shop).await?.into_iter();
    let steps: HashMap<Uuid, Row> =
        steps.map(|(id, order, step, kind, cents)| (id, (order, step, kind, cents))).collect();

    let mut wrongs = Vec::new();
    if orders.len() as u64 != plan.orders {
        wrongs.push(format!("{} orders instead of {}", orders.len(), plan.orders));
    }
    let unequal: i64 = sqlx::query_scalar(SHOP_SUMS).fetch_one(shop).await?;
    if unequal > 0 {
        wrongs.push(format!("the shop's own ledger has other sums for {unequal} orders"));
    }
    compare_accounts(&orders, &accounts, &mut wrongs);
    compare_book(&steps, billing, &mut wrongs).await?;
    compare_invoices(&orders, &stage.invoices().await, &mut wrongs);

    let kept: i64 = sqlx::query_scalar(KEPT).fetch_one(billing).await?;
    let claims: i64 = sqlx::query_scalar(CLAIMS).bind(CONSUMER).fetch_one(billing).await?;
    if kept > 0 || claims as usize != steps.len() {
        let steps = steps.len();
        wrongs.push(format!("the inbox has {claims} claims of {steps} events, and keeps {kept}"));
    }
    for (of, database) in [("shop", &stage.shop), ("billing", &stage.billing)] {
        let left = database.left().await;
        if left != Ok((0, 0)) {
            wrongs.push(format!("in the outbox of {of} are, waiting and dead, {left:?}"));
        }
    }
    Ok(wrongs)
}

async fn accounts(
    pool: &PgPool,
    query: &'static str,
) -> Result<BTreeMap<i64, Account>, sqlx::Error> {
    let rows = sqlx::query_as(query).fetch_all(pool).await?.into_iter();
    let account = |(id, cents, paid, step, is_open)| (id, (cents, paid, step, is_open));
    Ok(rows.map(account).collect())
}

/// To the cent, for each order and in total.
fn compare_accounts(
    orders: &BTreeMap<i64, Account>,
    accounts: &BTreeMap<i64, Account>,
    wrongs: &mut Vec<String>,
) {
    let total = |of: &BTreeMap<i64, Account>| of.values().map(|(_, paid, ..)| paid).sum::<i64>();
    let (paid, booked) = (total(orders), total(accounts));
    if paid != booked {
        wrongs.push(format!("{paid} cents were paid and {booked} booked"));
    }
    for (id, order @ (_, paid, _, is_open)) in orders {
        if *is_open || *paid < 0 {
            wrongs.push(format!("order {id} is not complete: {order:?}"));
        }
        if accounts.get(id) != Some(order) {
            let account = accounts.get(id);
            wrongs.push(format!("order {id} is {order:?} in the shop and {account:?} in billing"));
        }
    }
    let ghosts = accounts.keys().filter(|id| !orders.contains_key(id));
    wrongs.extend(ghosts.map(|id| format!("billing has order {id}, which nobody has placed")));
}

/// Each event once, as it was written, after the one before it.
async fn compare_book(
    steps: &HashMap<Uuid, Row>,
    billing: &PgPool,
    wrongs: &mut Vec<String>,
) -> Result<(), sqlx::Error> {
    let mut times: HashMap<Uuid, usize> = HashMap::new();
    for (id, order, step, kind, cents, before) in
        sqlx::query_as::<_, (Uuid, i64, i64, String, i64, i64)>(BOOK).fetch_all(billing).await?
    {
        *times.entry(id).or_default() += 1;
        if before != step - 1 {
            wrongs.push(format!("order {order}: step {step} ({kind}) came after step {before}"));
        }
        match steps.get(&id) {
            None => wrongs.push(format!("event {id} was booked and never committed")),
            Some(written) if *written != (order, step, kind, cents) => {
                wrongs.push(format!("event {id} was booked otherwise than {written:?}"));
            }
            Some(_) => {}
        }
    }
    for (id, (order, step, kind, _)) in steps {
        match times.get(id).copied().unwrap_or(0) {
            1 => {}
            times => {
                wrongs
                    .push(format!("order {order}: step {step} ({kind}) was applied {times} times"));
            }
        }
    }
    Ok(())
}

/// One event for each order, however often it was published.
fn compare_invoices(
    orders: &BTreeMap<i64, Account>,
    invoices: &Invoices,
    wrongs: &mut Vec<String>,
) {
    let mut by_order: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for invoice in invoices.values() {
        by_order.entry(invoice.order).or_default().push(invoice.cents);
    }
    for (id, (_, paid, ..)) in orders {
        let invoices = by_order.remove(id).unwrap_or_default();
        if invoices != [*paid] {
            wrongs.push(format!("order {id} of {paid} cents has the invoices {invoices:?}"));
        }
    }
    wrongs.extend(by_order.keys().map(|id| format!("order {id} has an invoice and is not there")));
}
