//! The application: accounts that change, and an event for each change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use postrider::schema::postgres::Layout;
use postrider::schema::{self, TableName};
use postrider_relay::admin::{Admin, Selection};
use postrider_relay::sources;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, Error};

use super::target::unequal_duplicates;
use super::{Arrival, DEADLINE, LOOK_EVERY, Target, until};
use crate::history::{History, Place, Wrong};
use crate::servers::postgres::{Options, Server, connect};
use crate::servers::with_database;

/// `change` is what a service does: it locks its aggregate, changes it, and publishes the event.
/// The row lock makes writers of one account take turns, so its versions are in the order of
/// their commits.
const TABLES: &str = "
CREATE TABLE accounts (id bigint PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE facts (event bigint PRIMARY KEY, account bigint NOT NULL, version bigint NOT NULL);
CREATE FUNCTION change(event bigint, account bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE changed bigint;
BEGIN
    INSERT INTO accounts AS a VALUES (account, 1)
    ON CONFLICT (id) DO UPDATE SET version = a.version + 1 RETURNING a.version INTO changed;
    INSERT INTO facts VALUES (event, account, changed);
    PERFORM outbox_publish('Account', account::text, 'AccountChanged',
        jsonb_build_object('event', event));
END $$;
";

/// Many times what a small window holds.
const BURST_EVENTS: u64 = 1000;
/// More than a small window holds, so that it can be full of different keys.
const BURST_ACCOUNTS: u64 = 100;
/// None of those that [`Writers`](super::Writers) lock in an order of their own.
const BURST_ACCOUNT_FIRST: u64 = 1_000_000;

/// An application with an outbox, in a database of its own.
#[derive(Debug)]
pub struct Bank {
    url: String,
    next_event: AtomicU64,
    /// Events whose commit was confirmed to the writer.
    confirmed: Mutex<BTreeSet<u64>>,
}

impl Bank {
    /// One in a database of its own, in a server that only this process uses and that is gone with
    /// it: what other processes do to the shared server does not disturb it.
    pub async fn fresh() -> Arc<Self> {
        Arc::new(Self::open(database("").await).await)
    }

    /// The same with what else there is to say of the database.
    pub async fn fresh_in(options: &str) -> Arc<Self> {
        Arc::new(Self::open(database(options).await).await)
    }

    /// The same with an outbox in partitions.
    pub async fn fresh_as(layout: Layout) -> Arc<Self> {
        Arc::new(Self::open_as(database("").await, Some(layout)).await)
    }

    /// Makes its tables in an empty database.
    pub async fn open(url: impl Into<String>) -> Self {
        Self::open_as(url, None).await
    }

    async fn open_as(url: impl Into<String>, layout: Option<Layout>) -> Self {
        let bank = Self::at(url, 1);
        let mut client = bank.connect().await;
        let migrated = schema::postgres::migrate(&mut client, &TableName::default(), layout).await;
        migrated.expect("an empty database can be migrated");
        client.batch_execute(TABLES).await.expect("tables can be made");
        bank
    }

    /// One whose tables are there already. Its events are numbered from `next_event`.
    pub fn at(url: impl Into<String>, next_event: u64) -> Self {
        let next_event = AtomicU64::new(next_event);
        Self { url: url.into(), next_event, confirmed: Mutex::default() }
    }

    /// The URL of its database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name of its database.
    pub fn database(&self) -> &str {
        self.url.rsplit('/').next().expect("a text has a last part")
    }

    /// Connects to another database of the same server.
    pub async fn connect_beside(&self) -> Client {
        connect(&with_database(&self.url, "postgres")).await
    }

    /// Connects to its database.
    pub async fn connect(&self) -> Client {
        connect(&self.url).await
    }

    /// Runs statements.
    pub async fn run(&self, statements: &str) {
        let done = self.connect().await.batch_execute(statements).await;
        done.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    /// The number that a query answers.
    pub async fn number(&self, query: &str) -> i64 {
        let row = self.connect().await.query_one(query, &[]).await;
        row.unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
    }

    /// The text that a query answers, if it answers one.
    pub async fn text(&self, query: &str) -> Option<String> {
        let row = self.connect().await.query_opt(query, &[]).await;
        row.unwrap_or_else(|error| panic!("{query}: {error:?}")).and_then(|row| row.get(0))
    }

    /// Changes an account within whatever transaction the client has open, or in one of its own.
    /// Answers the number of the event. Only unnamed statements are used.
    pub async fn change(&self, client: &Client, account: u64) -> Result<u64, Error> {
        let event = self.next_event.fetch_add(1, Ordering::Relaxed);
        client.batch_execute(&format!("SELECT change({event}, {account})")).await?;
        Ok(event)
    }

    /// Changes an account many times, each in a transaction of its own. Answers the events.
    pub async fn change_often(&self, account: u64, times: usize) -> Vec<u64> {
        let client = self.connect().await;
        let mut events = Vec::with_capacity(times);
        for _ in 0..times {
            events.push(self.change(&client, account).await.expect("an account can be changed"));
        }
        self.confirm(&events);
        events
    }

    /// Changes accounts of its own in turn, in one transaction, and waits until a relay has
    /// settled some of that: so it is at work, with more to do than its window holds.
    pub async fn until_amid_burst(&self) {
        let client = self.connect().await;
        let first = self.next_event.fetch_add(BURST_EVENTS, Ordering::Relaxed);
        let events: Vec<u64> = (first..first + BURST_EVENTS).collect();
        let burst = format!(
            "SELECT change(event, {BURST_ACCOUNT_FIRST} + event % {BURST_ACCOUNTS})
             FROM generate_series({first}, {}) AS event",
            first + BURST_EVENTS - 1
        );
        client.batch_execute(&burst).await.expect("accounts can be changed");
        self.confirm(&events);
        let settlements = "SELECT string_agg(settled_at::text, ' ') FROM outbox_checkpoints";
        let settled = async || -> Option<String> {
            client.query_one(settlements, &[]).await.expect("checkpoints can be read").get(0)
        };
        // The first one may be of what was there before.
        for _ in 0..2 {
            let before = settled().await;
            until("a relay settles events", || async { settled().await != before }).await;
        }
    }

    /// Deletes rows of the outbox by hand, as if their events had never been. Answers how many.
    pub async fn delete(&self, condition: &str) -> usize {
        let client = self.connect().await;
        let statement = format!(
            "WITH gone AS (DELETE FROM outbox WHERE {condition} RETURNING payload)
             DELETE FROM facts USING gone WHERE event =
             (convert_from(gone.payload, 'UTF8')::jsonb ->> 'event')::bigint RETURNING event"
        );
        let rows = client.query(&statement, &[]).await.expect("rows can be deleted");
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        for row in &rows {
            let event: i64 = row.get(0);
            confirmed.remove(&event.unsigned_abs());
        }
        rows.len()
    }

    /// Notes that a writer was told of its commit.
    pub fn confirm(&self, events: &[u64]) {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
    }

    /// What was committed: each event with its place in the order of its account.
    pub async fn facts(&self) -> BTreeMap<u64, Place> {
        let client = self.connect().await;
        let rows = client.query("SELECT event, account, version FROM facts", &[]).await;
        let number = |number: i64| u64::try_from(number).expect("numbers are not negative");
        let fact = |row: &tokio_postgres::Row| {
            let place = Place { key: number(row.get(1)), number: Some(number(row.get(2))) };
            (number(row.get(0)), place)
        };
        rows.expect("facts can be read").iter().map(fact).collect()
    }

    /// Waits until every committed event has arrived or stands in the dead letters.
    pub async fn until_delivered(&self, target: &Target) {
        let facts = self.facts().await;
        let started = Instant::now();
        loop {
            let aside = self.with_operator().await;
            let missing = target.missing(facts.keys().copied());
            let missing: Vec<u64> = missing.filter(|event| !aside.contains(event)).collect();
            if missing.is_empty() {
                return;
            }
            let few = &missing[..missing.len().min(5)];
            let (missing, all) = (missing.len(), facts.len());
            assert!(
                started.elapsed() < DEADLINE,
                "{missing} of {all} events have not arrived, such as {few:?}"
            );
            sleep(LOOK_EVERY * 5).await;
        }
    }

    /// Retries all dead letters. Answers how many there were.
    pub async fn retry(&self) -> u64 {
        let retried = self.admin().await.retry(&Selection::default()).await;
        retried.expect("an operator can retry")
    }

    /// Connects as an operator.
    pub async fn admin(&self) -> Box<dyn Admin> {
        let columns = BTreeMap::new();
        let admin = sources::connect_admin(&self.url, &TableName::default(), &columns).await;
        admin.expect("an operator can connect")
    }

    /// Waits until nothing is left to do for any pipeline.
    pub async fn until_settled(&self) {
        let admin = self.admin().await;
        let is_settled = || async {
            sleep(LOOK_EVERY * 5).await;
            let status = admin.status().await.expect("an operator can look");
            status.pipelines.iter().all(|it| it.unpublished == 0 && it.deferred == 0)
        };
        until("everything is settled", is_settled).await;
    }

    /// Events that are parked, or wait behind one that is.
    async fn with_operator(&self) -> BTreeSet<u64> {
        let client = self.connect().await;
        let query = "SELECT (convert_from(f.payload, 'UTF8')::jsonb ->> 'event')::bigint
             FROM outbox_failures AS f WHERE f.state = 'parked' OR EXISTS (
                 SELECT FROM outbox_failures AS p WHERE p.state = 'parked' AND p.blocks
                 AND (p.pipeline, p.aggregate_type, p.aggregate_id)
                     = (f.pipeline, f.aggregate_type, f.aggregate_id) AND p.seq < f.seq)";
        let rows = client.query(query, &[]).await.expect("failures can be read");
        let number = |row: &tokio_postgres::Row| u64::try_from(row.get::<_, i64>(0));
        rows.iter().map(|row| number(row).expect("numbers are not negative")).collect()
    }

    /// What is wrong with what arrived, if so many repetitions are explained.
    pub async fn wrongs(&self, target: &Target, duplicates_allowed: usize) -> Vec<Wrong> {
        self.wrongs_of(&target.arrivals(), duplicates_allowed).await
    }

    async fn wrongs_of(&self, arrivals: &[Arrival], duplicates_allowed: usize) -> Vec<Wrong> {
        let mut history = History::default();
        history.duplicates_allowed = duplicates_allowed;
        let facts = self.facts().await;
        let confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut wrong: Vec<Wrong> = confirmed
            .iter()
            .filter(|event| !facts.contains_key(event))
            .map(|event| Wrong::Broken(format!("the commit of event {event} was taken back")))
            .collect();
        for (event, place) in facts {
            history.committed(event, place);
        }
        for event in self.with_operator().await {
            history.left_with_operator(event);
        }
        for arrival in arrivals {
            history.arrived(arrival.event().expect("an event of the bank"));
        }
        wrong.extend(history.check());
        wrong.extend(unequal_duplicates(arrivals).into_iter().map(Wrong::Broken));
        wrong
    }

    /// Waits until everything is delivered and settled, then checks the history.
    ///
    /// # Panics
    ///
    /// If anything is wrong.
    pub async fn check(&self, target: &Target, duplicates_allowed: usize) {
        self.until_delivered(target).await;
        self.until_settled().await;
        self.check_arrivals(&target.arrivals(), duplicates_allowed).await;
    }

    /// Checks the history of which these are all arrivals, in their order. Answers how many were
    /// repetitions.
    ///
    /// # Panics
    ///
    /// If anything is wrong.
    pub async fn check_arrivals(&self, arrivals: &[Arrival], duplicates_allowed: usize) -> usize {
        let wrong = self.wrongs_of(arrivals, duplicates_allowed).await;
        let few: Vec<String> = wrong.iter().take(10).map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{} wrongs: {}", wrong.len(), few.join("; "));
        let events: BTreeSet<_> = arrivals.iter().map(|arrival| &arrival.id).collect();
        arrivals.len() - events.len()
    }
}

/// A database of the server of this process.
async fn database(options: &str) -> String {
    static DATABASES: AtomicU64 = AtomicU64::new(0);
    let name = format!("bank{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    let make = format!("CREATE DATABASE {name} {options}");
    let server = server().await;
    let made = server.connect().await.batch_execute(&make).await;
    made.expect("a database can be made");
    server.url(&name)
}

/// The server of this process. Its janitor removes it when the process ends.
async fn server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    let settings = ["max_connections = 300", "max_replication_slots = 100", "max_wal_senders = 50"];
    let settings = settings.map(str::to_owned).to_vec();
    SERVER.get_or_init(|| Server::start(Options { settings, ..Options::default() })).await
}
