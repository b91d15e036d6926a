//! A schema of PostgreSQL for one case, chosen by the URL. It is made and dropped much faster
//! than a database.

use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

use crate::servers::postgres::{connect, shared};
use crate::suites::{Backend, Clock};

/// An empty schema. It is dropped with this, whoever is connected, and so are the roles whose
/// names begin with its own.
#[derive(Debug)]
pub struct Schema {
    name: String,
}

/// PostgreSQL, for cases about its schema and its functions.
pub fn backend() -> Backend<Schema, ()> {
    Backend::new("postgres", (), Clock::Real, Schema::fresh)
}

impl Schema {
    /// Makes one.
    pub async fn fresh() -> Self {
        // Capitals and a space need quotes wherever the name stands.
        let name = format!("Test {}", Uuid::now_v7().simple());
        let statement = format!("CREATE SCHEMA \"{name}\"");
        let made = connect(&shared()).await.batch_execute(&statement).await;
        made.expect("a schema can be made");
        Self { name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of connections in it.
    pub fn url(&self) -> String {
        let (name, in_options) = (self.name.replace(' ', "%20"), self.name.replace(' ', "%5C%20"));
        let url = shared();
        format!("{url}?application_name={name}&options=-csearch_path%3D%22{in_options}%22")
    }

    /// Connects in it.
    pub async fn connect(&self) -> Client {
        connect(&self.url()).await
    }

    /// Connects in it as somebody who has a role, and nothing else.
    pub async fn connect_as(&self, role: &str) -> Client {
        let account = format!("{role} {}", Uuid::now_v7().simple());
        let made = format!("CREATE ROLE \"{account}\" LOGIN PASSWORD 'secret' IN ROLE \"{role}\"");
        let made = self.connect().await.batch_execute(&made).await;
        made.expect("an account can be made");
        let mut config: Config = self.url().parse().expect("it is a URL of PostgreSQL");
        let connected = config.user(account).password("secret").connect(NoTls).await;
        let (client, connection) = connected.expect("the account can log in");
        tokio::spawn(connection);
        client
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let statement = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{0}';
            DROP SCHEMA \"{0}\" CASCADE;
            DO $$ DECLARE made text; BEGIN
                FOR made IN SELECT rolname FROM pg_roles WHERE starts_with(rolname, '{0}') LOOP
                    EXECUTE format('DROP ROLE %I', made);
                END LOOP;
            END $$",
            self.name
        );
        // The case's own runtime may be about to end.
        let dropped = std::thread::spawn(move || {
            let runtime = Clock::Real.runtime();
            runtime.block_on(async { connect(&shared()).await.batch_execute(&statement).await })
        });
        let dropped = dropped.join();
        if !std::thread::panicking() {
            dropped.expect("the thread has not panicked").expect("the schema can be dropped");
        }
    }
}
