//! All that runs in a round: two services with a database each, two relays, a broker.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use postrider::schema::TableName;
use postrider::schema::postgres::migrate;
use postrider_relay::sources::connect_admin;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::broker::{Invoices, Running};
use super::counted::duplicates_in;
use super::orders::{BILLING_TABLES, SHOP_TABLES};
use super::plan::{Blow, Plan, Victim};
use super::process::Process;
use crate::chaos::Setup;
use crate::servers::postgres::{self, Server, connect};

/// Who looks into a database that is away gives up after so long, and looks again.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// A relay that was killed is followed soon, and one that is starved keeps its lease.
const LEASE: Duration = Duration::from_secs(3);

/// The programs of the services. The relay's is beside them.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The consumer.
    pub billing: PathBuf,
    /// The producer.
    pub shop: PathBuf,
}

/// A database, seen from outside.
pub(super) struct Database {
    url: String,
    pub(super) pool: PgPool,
}

pub(super) struct Stage {
    // Dropped first: what has lost its servers complains.
    processes: BTreeMap<Victim, Mutex<Process>>,
    pub(super) billing: Database,
    pub(super) shop: Database,
    broker: Mutex<Running>,
    databases: BTreeMap<Victim, Mutex<Server>>,
}

impl Stage {
    pub(super) async fn start(plan: &Plan, programs: &Programs) -> Self {
        let (broker, shop, billing) = tokio::join!(
            Running::start(plan.broker),
            start_database(SHOP_TABLES),
            start_database(BILLING_TABLES)
        );
        let (shop_server, shop) = shop;
        let (billing_server, billing) = billing;
        let relay = |database: &Database| {
            let setup = Setup::to(broker.url(), "", &database.url, plan.progress());
            let text = Setup { lease: LEASE, ..setup }.text();
            let args = ["relay", "--config", "postrider.toml"].map(str::to_owned).to_vec();
            let program = programs.shop.with_file_name("postrider");
            Process::start(program, args, &[("postrider.toml", text)])
        };
        let shop_args = vec![shop.url.clone(), plan.orders.to_string(), plan.seed.to_string()];
        let billing_args = vec![billing.url.clone(), plan.broker.to_string(), broker.url()];
        let processes = [
            (Victim::Shop, Process::start(programs.shop.clone(), shop_args, &[])),
            (Victim::ShopRelay, relay(&shop)),
            (Victim::Billing, Process::start(programs.billing.clone(), billing_args, &[])),
            (Victim::BillingRelay, relay(&billing)),
        ];
        let processes = processes.into_iter().map(|(it, process)| (it, Mutex::new(process)));
        let databases =
            [(Victim::ShopDatabase, shop_server), (Victim::BillingDatabase, billing_server)];
        let databases = databases.into_iter().map(|(it, server)| (it, Mutex::new(server)));
        Self {
            processes: processes.collect(),
            billing,
            shop,
            broker: Mutex::new(broker),
            databases: databases.collect(),
        }
    }

    /// Does this to a victim. Answers whether it was still there.
    pub(super) async fn strike(&self, victim: Victim, blow: Blow) -> bool {
        let (Blow::Kill(time) | Blow::Pause(time)) = blow;
        if victim == Victim::Broker {
            let mut broker = self.broker.lock().await;
            broker.kill9().await;
            sleep(time).await;
            broker.start_again().await;
        } else if let Some(server) = self.databases.get(&victim) {
            let mut server = server.lock().await;
            server.kill9().await;
            sleep(time).await;
            server.start_again().await.expect("a server recovers from a crash");
        } else {
            let mut process = self.processes[&victim].lock().await;
            if process.ended().is_some() {
                return false;
            }
            match blow {
                Blow::Kill(_) => process.kill9(),
                Blow::Pause(_) => process.pause(),
            }
            sleep(time).await;
            match blow {
                Blow::Kill(_) => process.start_again(),
                Blow::Pause(_) => process.resume(),
            }
        }
        true
    }

    /// A process that has ended although nobody has done anything to it.
    pub(super) async fn ended_by_itself(&self) -> Option<String> {
        for (victim, process) in &self.processes {
            // Somebody is at it.
            let Ok(mut process) = process.try_lock() else { continue };
            let Some(status) = process.ended() else { continue };
            // The shop has an end.
            if *victim != Victim::Shop || !status.success() {
                let log = process.last_lines();
                return Some(format!("{victim} has ended by itself ({status}):\n{log}"));
            }
        }
        None
    }

    /// Ends everything in good order.
    pub(super) async fn end(&self) -> Result<(), String> {
        for (victim, process) in &self.processes {
            let mut process = process.lock().await;
            if *victim != Victim::Shop {
                process.terminate();
            }
            process.end().await.map_err(|error| format!("{victim} has not ended well: {error}"))?;
        }
        Ok(())
    }

    /// The last lines that each process has logged.
    pub(super) async fn last_lines(&self) -> String {
        let mut text = String::new();
        for (victim, process) in &self.processes {
            let lines = process.lock().await.last_lines();
            text.push_str(&format!("\n{victim}:\n{lines}\n"));
        }
        text
    }

    /// How many duplicates billing's inbox has found.
    pub(super) async fn duplicates(&self) -> u64 {
        duplicates_in(&self.processes[&Victim::Billing].lock().await.log())
    }

    /// How often the shop had to ask whether a commit was written.
    pub(super) async fn lost_commits(&self) -> usize {
        self.processes[&Victim::Shop].lock().await.log().matches("a lost commit was").count()
    }

    /// What billing has published.
    pub(super) async fn invoices(&self) -> Invoices {
        self.broker.lock().await.invoices().await
    }
}

impl Database {
    /// What is left in the outbox to do: of each pipeline what waits, and what is dead.
    pub(super) async fn left(&self) -> Result<(u64, u64), String> {
        let (table, columns) = (TableName::default(), BTreeMap::new());
        let looked = async { connect_admin(&self.url, &table, &columns).await?.status().await };
        let status = looked.await.map_err(|error| error.to_string())?;
        let waits = status.pipelines.iter().map(|it| it.unpublished + it.queued + it.deferred);
        Ok((waits.sum(), status.pipelines.iter().map(|it| it.parked).sum()))
    }
}

/// A server, with its database as a service and a relay need it.
async fn start_database(tables: &str) -> (Server, Database) {
    let server = Server::start(postgres::Options::default()).await;
    let url = server.url("postgres");
    let mut client = connect(&url).await;
    let migrated = migrate(&mut client, &TableName::default(), None).await;
    migrated.expect("an empty database can be migrated");
    client.batch_execute(tables).await.expect("tables can be made");
    let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(LOOK_MAX);
    let pool = pool.connect_lazy(&url).expect("the database has a URL");
    (server, Database { url, pool })
}
