//! Sets the transaction counter of a private server, for what happens when its 32 bits are used
//! up.

use std::fs;

use super::server::{Server, Stop};
use super::{connect, programs};

/// As many transactions back as the server is told it may have to look.
const OLDEST: u32 = 66_000;
/// The states of so many transactions are in one file of `pg_xact`.
const PER_SEGMENT: u32 = 1 << 20;
const SEGMENT_BYTES: usize = 256 * 1024;

impl Server {
    /// Makes `next` the lower half of the next transaction's number, in epoch 0. Data stays.
    pub async fn reset_xid(&mut self, next: u32) {
        // What is not frozen would lie in the future of the new number.
        let client = self.connect().await;
        let allow = "ALTER DATABASE template0 ALLOW_CONNECTIONS true";
        client.batch_execute(allow).await.expect("a superuser may do this");
        let databases = client.query("SELECT datname FROM pg_database", &[]).await;
        let databases = databases.expect("a superuser may do this");
        let databases: Vec<String> = databases.iter().map(|row| row.get(0)).collect();
        for database in &databases {
            self.execute(database, "VACUUM (FREEZE)").await;
        }
        self.stop(Stop::Fast).await;
        let mut reset = self.folder.command(programs().join("pg_resetwal"));
        let oldest = next.wrapping_sub(OLDEST);
        reset.args(["-f", "-e", "0", "-x", &next.to_string(), "-u", &oldest.to_string()]);
        reset.arg(self.data());
        self.folder.run(reset).await;
        let segment = format!("data/pg_xact/{:04X}", next / PER_SEGMENT);
        if !fs::exists(self.folder.path().join(&segment)).expect("a folder can be read") {
            self.folder.write(&segment, &"\0".repeat(SEGMENT_BYTES));
        }
        self.must_start().await;
        // As `pg_upgrade` does it: else the tables' frozen transactions lie in the future.
        for database in &databases {
            let of_tables = format!(
                "UPDATE pg_class SET relfrozenxid = '{next}' WHERE relfrozenxid <> '0'; \
                 UPDATE pg_database SET datfrozenxid = '{next}'"
            );
            self.execute(database, &of_tables).await;
        }
        self.execute("postgres", "ALTER DATABASE template0 ALLOW_CONNECTIONS false").await;
    }

    async fn execute(&self, database: &str, statements: &str) {
        let client = connect(&self.url(database)).await;
        client.batch_execute(statements).await.expect("a superuser may do this");
    }
}
