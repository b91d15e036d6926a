//! A PostgreSQL backlog for the benchmarks of other things.

use postrider_relay::sources::SourceSpec;

use super::backlog::{self, Published};
use super::relay;
use super::server::{Server, WalLevel};
use crate::Outcome;

/// A server, on which backlogs are made.
pub(crate) struct Backlog {
    server: Server,
}

impl Backlog {
    /// Starts the server.
    pub(crate) async fn start() -> Outcome<Self> {
        Ok(Self { server: Server::start(WalLevel::Logical).await? })
    }

    /// Version and settings, for the report.
    pub(crate) async fn describe(&self) -> Outcome<String> {
        self.server.describe().await
    }

    /// The URL of a database.
    pub(crate) fn url(&self, database: &str) -> String {
        self.server.url(database)
    }

    /// Makes a database with so many rows.
    pub(crate) async fn polled(&self, rows: u64) -> Outcome<String> {
        let client = self.server.create("polled").await?;
        backlog::fill(&client, rows, Published::No).await?;
        client.batch_execute("VACUUM (ANALYZE) outbox").await?;
        Ok("polled".to_owned())
    }

    /// Makes a database of which a relay has got to the log, with so many rows after that.
    pub(crate) async fn logged(&self, rows: u64) -> Outcome<String> {
        let client = self.server.create("logged").await?;
        relay::begin_log(&client, &self.server.url("logged")).await?;
        backlog::fill(&client, rows, Published::No).await?;
        Ok("logged".to_owned())
    }

    /// The same with events of so many keys.
    pub(crate) async fn logged_keys(&self, rows: u64, keys: usize) -> Outcome<String> {
        let client = self.server.create("logged").await?;
        relay::begin_log(&client, &self.server.url("logged")).await?;
        backlog::fill_keys(&client, rows, keys).await?;
        Ok("logged".to_owned())
    }

    /// Removes a database, and what keeps the log for it.
    pub(crate) async fn remove(&self, database: &str) -> Outcome<()> {
        let client = self.server.connect(database).await?;
        let drop_slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
            WHERE database = current_database()";
        client.batch_execute(drop_slots).await?;
        drop(client);
        self.server.remove(database).await
    }
}

/// A source that reads the server's log.
pub(crate) fn log_spec(url: &str) -> SourceSpec {
    relay::log_spec(url)
}
