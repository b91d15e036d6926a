//! The consumer of the pattern's chaos test: books the steps of orders as they come, in a database
//! of its own, and closes the invoice of each order that is complete. It is killed meanwhile.
//!
//! `chaos_billing <database> <kafka or nats> <broker>`
#![allow(clippy::print_stderr, reason = "its log is read when a run fails")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream;
use postrider::{Event, EventType, Outbox};
use postrider_consumer::subscriptions::{Kafka, Nats};
use postrider_consumer::{Consumer, HandlerError, Metrics, Retry, Subscription};
use postrider_testkit::chaos::pattern::counted::counted;
use postrider_testkit::chaos::pattern::orders::{
    CONSUMER, InvoiceClosed, Kind, ORDERS_STREAM, ORDERS_TOPIC, OrderPaid, OrderPlaced,
    OrderRefunded, OrderShipped, Step,
};
use postrider_testkit::servers::address;
use rdkafka::ClientConfig;
use serde::de::DeserializeOwned;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres, Transaction};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use uuid::Uuid;

type Failure = Box<dyn Error + Send + Sync>;

/// More than there are transactions at once.
const CONNECTIONS_MAX: u32 = 12;
/// Soon enough for what a killed process has left to come to the next one.
const ACK_WAIT: Duration = Duration::from_secs(2);
/// The same of a group of Kafka.
const SESSION: [(&str, &str); 2] =
    [("session.timeout.ms", "3000"), ("heartbeat.interval.ms", "500")];
/// Far more attempts than a missing step takes to come.
const RETRY: Retry = Retry {
    attempts_max: 200,
    pause_min: Duration::from_millis(50),
    pause_max: Duration::from_secs(1),
};
/// What it counts is lost with it.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Answers where the account stood before.
const STAND: &str = "SELECT step FROM accounts WHERE order_id = $1 FOR UPDATE";
const PUT_ACCOUNT: &str = "INSERT INTO accounts AS a VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT (order_id) DO UPDATE SET cents = a.cents + excluded.cents,
     paid = a.paid + excluded.paid, step = excluded.step, is_open = excluded.is_open
     RETURNING paid";
const BOOK: &str = "INSERT INTO book (event_id, order_id, step, step_before, kind, cents)
     VALUES ($1, $2, $3, $4, $5, $6)";

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args.as_slice() {
        [database, "kafka", broker] => kafka(database, broker).await,
        [database, "nats", broker] => nats(database, broker).await,
        _ => Err("usage: chaos_billing <database> <kafka or nats> <broker>".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("billing cannot go on: {error}: {:?}", error.source());
            ExitCode::FAILURE
        }
    }
}

async fn kafka(database: &str, broker: &str) -> Result<(), Failure> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address(broker)).set("group.id", CONSUMER);
    for (name, value) in SESSION {
        config.set(name, value);
    }
    let orders = Kafka::with_config(config, &[ORDERS_TOPIC])?;
    run(Consumer::new(CONSUMER, pool(database), orders)).await
}

/// A message that was under way to a killed process comes after later ones: they are refused until
/// then.
async fn nats(database: &str, broker: &str) -> Result<(), Failure> {
    let account = broker.split_once("://").and_then(|(_, rest)| rest.split_once('@'));
    let account = account.and_then(|(account, _)| account.split_once(':'));
    let (user, password) = account.ok_or("the broker's URL has no user and password")?;
    let options = ConnectOptions::new().user_and_password(user.to_owned(), password.to_owned());
    let client = options.retry_on_initial_connect().connect(address(broker)).await?;
    let orders = Nats::subscribe(jetstream::new(client), ORDERS_STREAM, CONSUMER);
    let orders = orders.filter_subjects(&[ORDERS_TOPIC]).ack_wait(ACK_WAIT);
    let consumer = Consumer::new(CONSUMER, pool(database), orders);
    run(consumer.versions_by(version).refuse_gaps(Duration::from_secs(120))).await
}

fn version(event: &Event) -> Option<u64> {
    let payload: serde_json::Value = serde_json::from_slice(event.payload()).ok()?;
    payload.get("step")?.as_u64()
}

/// It may be away at the moment.
fn pool(database: &str) -> PgPool {
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS_MAX).connect_lazy(database);
    pool.expect("the database has a URL")
}

async fn run<S: Subscription>(consumer: Consumer<PgPool, S>) -> Result<(), Failure> {
    let metrics = consumer.metrics();
    let telling = tokio::spawn(tell(Arc::clone(&metrics)));
    let mut terminated = signal(SignalKind::terminate())?;
    // The stream keeps events for ever.
    let consumer = consumer.retry(RETRY).retention(Duration::MAX);
    let consumer = on::<OrderPlaced, _>(consumer);
    let consumer = on::<OrderRefunded, _>(on::<OrderPaid, _>(consumer));
    let consumer = on::<OrderShipped, _>(consumer);
    let ended = consumer.run(async { terminated.recv().await.unwrap_or_default() }).await;
    telling.abort();
    eprintln!("{}", counted(&metrics));
    Ok(ended?)
}

fn on<E, S>(consumer: Consumer<PgPool, S>) -> Consumer<PgPool, S>
where
    E: EventType + DeserializeOwned + Copy + Into<Step> + Send + 'static,
{
    consumer.on::<E>(|tx, it| {
        let (id, step) = (it.event.id(), it.payload.into());
        Box::pin(apply(tx, id, step))
    })
}

/// Applies a step as it comes, and notes what it came after.
async fn apply(
    tx: &mut Transaction<'static, Postgres>,
    event_id: Uuid,
    Step { order, step, kind, cents }: Step,
) -> Result<(), HandlerError> {
    let before: Option<i64> =
        sqlx::query_scalar(STAND).bind(order).fetch_optional(&mut **tx).await?;
    let price = if kind == Kind::Placed { cents } else { 0 };
    let put = sqlx::query_scalar(PUT_ACCOUNT).bind(order).bind(price).bind(kind.paid(cents));
    let paid = put.bind(step).bind(!kind.is_last()).fetch_one(&mut **tx).await?;
    let book = sqlx::query(BOOK).bind(event_id).bind(order).bind(step);
    let book = book.bind(before.unwrap_or(0)).bind(kind.as_str()).bind(cents);
    book.execute(&mut **tx).await?;
    if kind.is_last() {
        Outbox::new().publish(tx, &InvoiceClosed { order, cents: paid }).await?;
    }
    Ok(())
}

/// Tells what it has counted, as soon as there is something new.
async fn tell(metrics: Arc<Metrics>) {
    let mut told = String::new();
    loop {
        let counted = counted(&metrics);
        if counted != told {
            eprintln!("{counted}");
            told = counted;
        }
        sleep(TELL_EVERY).await;
    }
}
