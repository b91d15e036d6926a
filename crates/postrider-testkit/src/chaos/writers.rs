//! Many writers at once, with random delays and rollbacks.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::{Client, Error, NoTls};

use super::Bank;

/// Of ten transactions so many are rolled back.
const ROLLED_BACK: u32 = 2;
/// The pause of a writer whose connection was lost.
const LOST_PAUSE: Duration = Duration::from_millis(20);

/// How writers behave.
#[derive(Clone, Debug)]
pub struct Writers {
    /// How many there are.
    pub count: usize,
    /// How many accounts they change.
    pub accounts: u64,
    /// The longest pause between two transactions of a writer.
    pub pause_max: Duration,
    /// The longest pause within a transaction.
    pub delay_max: Duration,
    /// They go on when a statement fails or a connection is lost, with a new one.
    pub stubborn: bool,
    /// Where they connect, if not to the bank's own URL.
    pub url: Option<String>,
    /// Decides what they do, as far as it is theirs to decide.
    pub seed: u64,
}

impl Default for Writers {
    fn default() -> Self {
        Self {
            count: 50,
            accounts: 20,
            pause_max: Duration::from_millis(400),
            delay_max: Duration::from_millis(20),
            stubborn: false,
            url: None,
            seed: fastrand::u64(..),
        }
    }
}

/// Writers at work, until they are stopped.
pub struct Writing {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Writing {
    /// Lets each writer finish what it is doing.
    ///
    /// # Panics
    ///
    /// If a writer that is not stubborn failed.
    pub async fn stop(self) {
        let Self { stop, mut tasks } = self;
        stop.send_replace(true);
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a writer does not fail");
        }
    }
}

impl Writers {
    /// Lets them begin.
    pub fn start(&self, bank: &Arc<Bank>) -> Writing {
        let stop = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        for index in 0..self.count {
            let rng = Rng::with_seed(self.seed.wrapping_add(index as u64));
            let writer = Writer { bank: Arc::clone(bank), habits: self.clone(), rng };
            tasks.spawn(writer.write(stop.subscribe()));
        }
        Writing { stop, tasks }
    }
}

struct Writer {
    bank: Arc<Bank>,
    habits: Writers,
    rng: Rng,
}

impl Writer {
    async fn write(mut self, stop: watch::Receiver<bool>) {
        let mut client = None;
        while !*stop.borrow() {
            let result = self.transact(&mut client).await;
            if let Err(error) = result {
                assert!(self.habits.stubborn, "a writer failed: {error:?}");
                client = None;
                sleep(LOST_PAUSE).await;
            }
            let pause = self.pause(self.habits.pause_max);
            sleep(pause).await;
        }
    }

    /// One transaction with up to three changes. The accounts are in order, so that no two
    /// writers wait for each other.
    async fn transact(&mut self, client: &mut Option<Client>) -> Result<(), Error> {
        let client = match client {
            Some(client) => client,
            None => client.insert(self.connect().await?),
        };
        client.batch_execute("BEGIN").await?;
        if self.rng.bool() {
            // The order of transactions' numbers is not that of their turns.
            client.batch_execute("SELECT pg_current_xact_id()").await?;
            sleep(self.pause(self.habits.delay_max)).await;
        }
        let mut accounts: Vec<u64> =
            (0..self.rng.usize(1..=3)).map(|_| self.rng.u64(..self.habits.accounts)).collect();
        accounts.sort_unstable();
        let mut events = Vec::new();
        for account in accounts {
            events.push(self.bank.change(client, account).await?);
        }
        sleep(self.pause(self.habits.delay_max)).await;
        if self.rng.u32(..10) < ROLLED_BACK {
            return client.batch_execute("ROLLBACK").await;
        }
        client.batch_execute("COMMIT").await?;
        self.bank.confirm(&events);
        Ok(())
    }

    async fn connect(&self) -> Result<Client, Error> {
        let url = self.habits.url.as_deref().unwrap_or(self.bank.url());
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        // It ends with the client. What goes wrong is the client's error, too.
        tokio::spawn(connection);
        Ok(client)
    }

    fn pause(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.rng.f64())
    }
}
