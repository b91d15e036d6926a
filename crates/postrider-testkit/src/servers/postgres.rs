//! PostgreSQL: a database in the shared server, or a whole server for a test that breaks it.

mod server;
mod standby;
mod tls;
mod xid;

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

pub use self::server::{Limit, Options, Server, Stop};
pub use self::tls::Tls;
pub use super::folder::can_limit_size;
use super::with_database;

/// How the names of tests' databases start.
const PREFIX: &str = "test_";
/// No test is that slow.
const LEFT_AFTER: Duration = Duration::from_secs(3600);
/// The same for slots.
const SLOTS_LEFT_AFTER: Duration = Duration::from_secs(300);

/// The URL of the shared server.
///
/// # Panics
///
/// If it does not run.
pub fn shared() -> String {
    super::shared("POSTRIDER_TEST_POSTGRES")
}

/// Connects without TLS.
pub async fn connect(url: &str) -> Client {
    let connected = tokio_postgres::connect(url, NoTls).await;
    let (client, connection) = connected.expect("the server can be reached");
    // It ends with the client. What goes wrong is the client's error, too.
    tokio::spawn(connection);
    client
}

/// A database of the shared server, for one test. It is dropped with this, whoever is connected.
#[derive(Debug)]
pub struct Database {
    name: String,
    /// The URL of the server.
    server: String,
}

impl Database {
    /// Makes one.
    pub async fn fresh() -> Self {
        let name = format!("{PREFIX}{}", Uuid::now_v7().simple());
        // Nobody can be connected to `template0`, which would keep it from being copied.
        let statement = format!("CREATE DATABASE {name} TEMPLATE template0");
        let server = shared();
        let client = connect(&server).await;
        static SWEPT: OnceCell<()> = OnceCell::const_new();
        SWEPT.get_or_init(|| sweep(&client)).await;
        client.batch_execute(&statement).await.expect("a database can be made");
        Self { name, server }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL.
    pub fn url(&self) -> String {
        with_database(&self.server, &self.name)
    }

    /// Its URL through the shared pgbouncer, in transaction mode.
    pub fn pooled_url(&self) -> String {
        with_database(&super::pgbouncer::shared(), &self.name)
    }

    /// Connects to it.
    pub async fn connect(&self) -> Client {
        connect(&self.url()).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = self.name.clone();
        let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        let server = std::mem::take(&mut self.server);
        let drop_it = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let dropping = async {
                let (client, connection) = tokio_postgres::connect(&server, NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute(LONGEST_DROP).await?;
                // A slot may be in the making.
                for _ in 0..DROPS {
                    drop_slots(&client, &name).await?;
                    if client.batch_execute(&statement).await.is_ok() {
                        break;
                    }
                }
                Ok::<_, tokio_postgres::Error>(())
            };
            let _ = runtime.expect("a runtime can be made").block_on(dropping);
        };
        // Nobody waits for it: dropping waits for all sessions of the server, also for one whose
        // client does not read. What stays is swept up later.
        drop(std::thread::spawn(drop_it));
    }
}

/// How often it is tried.
const DROPS: usize = 5;
/// How long the server tries to let a database go.
const LONGEST_DROP: &str = "SET statement_timeout = '10s'";

/// Drops the slots of a database, which could not be dropped with them.
async fn drop_slots(client: &Client, database: &str) -> Result<(), tokio_postgres::Error> {
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
         WHERE database = $1 AND active_pid IS NOT NULL";
    let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
         WHERE database = $1 AND active_pid IS NULL";
    let left = "SELECT count(*) FROM pg_replication_slots WHERE database = $1";
    for _ in 0..100 {
        client.query(end, &[&database]).await?;
        // Another one may begin to read it in between.
        let _ = client.query(drop, &[&database]).await;
        let left: i64 = client.query_one(left, &[&database]).await?.get(0);
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Drops the slots of a database in which nobody is: they keep the server from tidying up.
async fn drop_idle_slots(client: &Client, database: &str) -> Result<(), tokio_postgres::Error> {
    let idle = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = $1)";
    if client.query_one(idle, &[&database]).await?.get(0) {
        drop_slots(client, database).await?;
    }
    Ok(())
}

/// Drops the databases that killed tests have left. Their names say how old they are.
async fn sweep(client: &Client) {
    let names = client.query("SELECT datname FROM pg_database", &[]).await;
    for row in names.expect("databases can be listed") {
        let name: String = row.get(0);
        let id = name.strip_prefix(PREFIX).and_then(|id| Uuid::parse_str(id).ok());
        let Some(made_at) = id.and_then(|id| id.get_timestamp()) else { continue };
        let made_at = UNIX_EPOCH + Duration::from_secs(made_at.to_unix().0);
        let Ok(age) = made_at.elapsed() else { continue };
        if age > SLOTS_LEFT_AFTER {
            let _ = drop_idle_slots(client, &name).await;
        }
        if age > LEFT_AFTER {
            // Another process may sweep, too, or somebody looks into it.
            let _ = drop_slots(client, &name).await;
            let _ = client.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).await;
        }
    }
}

/// The programs of the shared server, if they are not those of the newest version that is
/// installed: a private server with them is of the same version.
pub async fn shared_programs() -> Option<PathBuf> {
    let client = connect(&shared()).await;
    let data = client.query_one("SHOW data_directory", &[]).await;
    let data: String = data.expect("the role may see it").get(0);
    let programs = PathBuf::from(data).parent()?.join("programs/bin");
    programs.join("initdb").exists().then_some(programs)
}

/// The programs of the newest version that is installed.
fn programs() -> PathBuf {
    let version = |entry: std::fs::DirEntry| {
        let major: u32 = entry.file_name().to_str()?.parse().ok()?;
        let programs = entry.path().join("bin");
        programs.join("initdb").exists().then_some((major, programs))
    };
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let (_, programs) = versions
        .filter_map(version)
        .max()
        .expect("PostgreSQL is installed: run `cargo xtask services up`");
    programs
}
