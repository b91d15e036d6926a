//! A schema of PostgreSQL beside the directory in which commands run.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use super::{Fixture, Ran};

/// A directory to run commands in, and a schema of PostgreSQL. The schema goes with it, and so do
/// the roles, slots and publications whose names begin with its own.
pub(crate) struct Postgres {
    pub(crate) fixture: Fixture,
    pub(crate) schema: String,
    pub(crate) url: String,
}

impl Postgres {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let schema = format!("cli_{}_{count}", process::id());
        Session::new(&server()).execute(&format!("CREATE SCHEMA {schema}"));
        let url = format!("{}?options=-csearch_path%3D{schema}", server());
        Self { fixture: Fixture::new(), schema, url }
    }

    pub(crate) fn migrate(&self, args: &[&str]) -> Ran {
        self.fixture.run(&[&["migrate"], args, &["--from", &self.url]].concat())
    }

    pub(crate) fn execute(&self, sql: &str) {
        self.session().execute(sql);
    }

    /// A connection that stays.
    pub(crate) fn session(&self) -> Session {
        Session::new(&self.url)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let schema = &self.schema;
        // A slot is in use until the server has noticed that its reader is gone.
        let sql = format!(
            "DROP SCHEMA {schema} CASCADE;
            DO $$ DECLARE made text; BEGIN
                FOR made IN SELECT pubname FROM pg_publication
                    WHERE starts_with(pubname, 'postrider_{schema}_')
                LOOP EXECUTE format('DROP PUBLICATION %I', made); END LOOP;
                FOR made IN SELECT rolname FROM pg_roles WHERE starts_with(rolname, '{schema}_')
                LOOP EXECUTE format('DROP ROLE %I', made); END LOOP;
                FOR made IN SELECT slot_name FROM pg_replication_slots
                    WHERE starts_with(slot_name, 'postrider_{schema}_')
                LOOP
                    WHILE EXISTS (SELECT FROM pg_replication_slots
                        WHERE slot_name = made AND active)
                    LOOP PERFORM pg_sleep(0.01); END LOOP;
                    BEGIN
                        PERFORM pg_drop_replication_slot(made);
                    -- One that was still being made went by itself.
                    EXCEPTION WHEN undefined_object THEN NULL;
                    END;
                END LOOP;
            END $$"
        );
        Session::new(&server()).execute(&sql);
    }
}

/// A connection to the server.
pub(crate) struct Session {
    runtime: Runtime,
    client: Client,
}

impl Session {
    pub(crate) fn new(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let connected = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            tokio::spawn(connection);
            Ok::<_, tokio_postgres::Error>(client)
        });
        let client =
            connected.unwrap_or_else(|error| panic!("{error:?}: run `cargo xtask services up`"));
        Self { runtime, client }
    }

    pub(crate) fn execute(&self, sql: &str) {
        self.try_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    pub(crate) fn try_execute(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.runtime.block_on(self.client.batch_execute(sql))
    }

    /// The first column of what a statement answers, as text.
    pub(crate) fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.runtime.block_on(self.client.query(sql, &[]));
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    }
}

/// The server of `cargo xtask services up`.
pub(crate) fn server() -> String {
    std::env::var("POSTRIDER_TEST_POSTGRES").expect("tests are run with cargo")
}
