//! What writing events costs the application, and whether it makes commits wait for each other.
//!
//! The business transaction updates an account and writes a line of its ledger. `NOTIFY`, with
//! which others wake their relay up, is measured for comparison: it lets one transaction commit
//! at a time.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use tokio_postgres::Client;

use super::backlog;
use super::server::Server;
use super::{ROUNDS, Sizes};
use crate::Outcome;
use crate::report::{Report, Section, Target, median, number};

const DATABASE: &str = "writers";
const ACCOUNTS: u64 = 100_000;
/// Clients at the same time.
const CLIENTS: [usize; 3] = [1, 8, 32];
/// Backends that wait for a lock of another one, of those at work. An account that two want at
/// the same time is rare.
const WAITING_MAX: f64 = 0.05;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a business transaction does besides its business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    None,
    Insert,
    Function,
    InsertAndNotify,
}

impl Event {
    const ALL: [Self; 4] = [Self::None, Self::Insert, Self::Function, Self::InsertAndNotify];

    fn label(self) -> &'static str {
        match self {
            Self::None => "no event",
            Self::Insert => "INSERT INTO outbox",
            Self::Function => "outbox_publish(…)",
            Self::InsertAndNotify => "INSERT INTO outbox and NOTIFY, as others do",
        }
    }

    /// The transaction, for `pgbench`.
    fn script(self) -> String {
        let payload = backlog::payload(0, backlog::PAYLOAD_BYTES);
        let insert = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('Account', :account::text, 'AccountCharged', convert_to('{payload}', 'UTF8'));"
        );
        let event = match self {
            Self::None => String::new(),
            Self::Insert => insert,
            Self::Function => format!(
                "SELECT outbox_publish('Account', :account::text, 'AccountCharged',
                 convert_to('{payload}', 'UTF8'));"
            ),
            Self::InsertAndNotify => format!("{insert}\nNOTIFY outbox;"),
        };
        let event = event.replace('\n', " ");
        format!(
            "\\set account random(1, {ACCOUNTS})
             BEGIN;
             UPDATE accounts SET balance = balance + 1 WHERE id = :account;
             INSERT INTO ledger (account, amount) VALUES (:account, 1);
             {event}
             END;\n"
        )
    }
}

/// Transactions a second, and the part of the sessions at work that waited for a lock.
#[derive(Clone, Copy, Debug)]
struct Sample {
    rate: f64,
    waiting: f64,
}

pub(super) async fn run(server: &Server, sizes: Sizes) -> Outcome<Report> {
    let mut report = Report::new(Section::PostgresWriters);
    report.title(&format!(
        "postgres, business transactions a second with {} clients, median of {ROUNDS}",
        CLIENTS.map(|clients| clients.to_string()).join(" / ")
    ));
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut samples = Vec::new();
        for event in Event::ALL {
            let mut by_clients = Vec::new();
            for clients in CLIENTS {
                by_clients.push(measure(server, sizes, event, clients).await?);
            }
            samples.push(by_clients);
        }
        rounds.push(samples);
    }
    tell(&mut report, &rounds);
    Ok(report)
}

/// `rounds` have a sample of each event by clients, both in order.
fn tell(report: &mut Report, rounds: &[Vec<Vec<Sample>>]) {
    for (index, event) in Event::ALL.into_iter().enumerate() {
        let rates = CLIENTS.iter().enumerate().map(|(clients, _)| {
            number(median(rounds.iter().map(|round| round[index][clients].rate)).round())
        });
        let of_none = CLIENTS.iter().enumerate().map(|(clients, _)| {
            let of_none =
                |round: &Vec<Vec<Sample>>| round[index][clients].rate / round[0][clients].rate;
            format!("{:.2}", median(rounds.iter().map(of_none)))
        });
        let (rates, of_none): (Vec<_>, Vec<_>) = (rates.collect(), of_none.collect());
        let more = format!("{} of the rate without an event", of_none.join(" / "));
        report.line(event.label(), &rates.join(" / "), &more);
    }
    let last = CLIENTS.len() - 1;
    for (index, event) in Event::ALL.into_iter().enumerate() {
        let waiting = median(rounds.iter().map(|round| round[index][last].waiting));
        let what =
            format!("{}: sessions that wait for a lock, {} clients", event.label(), CLIENTS[last]);
        match event {
            Event::Insert | Event::Function => {
                report.judge(&what, waiting, "of those at work", Target::Below(WAITING_MAX));
            }
            Event::None | Event::InsertAndNotify => {
                report.line(&what, &format!("{waiting:.2} of those at work"), "");
            }
        }
    }
}

async fn measure(server: &Server, sizes: Sizes, event: Event, clients: usize) -> Outcome<Sample> {
    let client = server.create(DATABASE).await?;
    client
        .batch_execute(&format!(
            "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
             CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
               account int NOT NULL, amount bigint NOT NULL,
               at timestamptz NOT NULL DEFAULT clock_timestamp());
             INSERT INTO accounts SELECT id, 0 FROM generate_series(1, {ACCOUNTS}) AS id"
        ))
        .await?;
    client.batch_execute("VACUUM (ANALYZE) accounts").await?;
    client.batch_execute("CHECKPOINT").await?;
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("transaction.sql");
    fs::write(&script, event.script())?;
    let mut pgbench = server.pgbench(DATABASE);
    pgbench.args(["--no-vacuum", "--protocol=prepared", "--jobs=2"]);
    pgbench
        .arg(format!("--client={clients}"))
        .arg(format!("--time={}", sizes.seconds(6).as_secs()));
    pgbench.arg("--file").arg(&script).stdin(Stdio::null());
    let mut running = pgbench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut at_work, mut waiting) = (0, 0);
    while running.try_wait()?.is_none() {
        let (some, of_them) = look(&client).await?;
        at_work += some;
        waiting += of_them;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let output = running.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let rate =
        said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    let Some(rate) = rate.filter(|_| output.status.success()) else {
        return Err(format!("pgbench failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    };
    drop(client);
    server.remove(DATABASE).await?;
    Ok(Sample { rate, waiting: waiting as f64 / f64::max(at_work as f64, 1.0) })
}

/// How many sessions are at work, and how many of them wait for a lock.
async fn look(client: &Client) -> Outcome<(i64, i64)> {
    let sql = "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock')
         FROM pg_stat_activity WHERE application_name = 'pgbench' AND state = 'active'";
    let row = client.query_one(sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}
