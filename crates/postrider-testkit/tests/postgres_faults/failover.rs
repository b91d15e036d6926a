//! A replica that lagged behind becomes the primary: commits are gone, and their numbers are given
//! again, of transactions and of rows.

use std::time::Duration;

use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{Bank, Setup, StandingBy, Target, until};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::servers::pgbouncer::Pgbouncer;
use postrider_testkit::servers::postgres::{Options, Server};
use tokio_postgres::Client;

/// How the relays get to the server that is the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// They know both servers.
    Straight,
    /// They know a pooler, which is told: their own connections outlast the failover.
    Pooled,
}

/// A bank of which a replica has only the first events, and a relay that runs all the time.
struct Line {
    progress: Progress,
    bank: Bank,
    client: Client,
    target: Target,
    relay: StandingBy,
    pooler: Option<Pgbouncer>,
    way_to_standby: Proxy,
    /// Events that only the old primary has.
    lost: Vec<u64>,
}

impl Line {
    /// Begins with some events that come to the replica, too.
    async fn start(progress: Progress, way: Way, primary: &Server, standby: &Server) -> Self {
        let make = format!("CREATE DATABASE {progress}");
        primary.connect().await.batch_execute(&make).await.unwrap();
        let bank = Bank::open(primary.url(progress.as_str())).await;
        let pooler = match way {
            Way::Straight => None,
            Way::Pooled => Some(Pgbouncer::start(bank.url()).await),
        };
        let other = standby.url(progress.as_str());
        let way_to_standby = Proxy::start(address(&other)).await;
        way_to_standby.refuse(true).await;
        let both = format!("{},{}", address(bank.url()), way_to_standby.address());
        let both = bank.url().replace(address(bank.url()), &both);
        let url = pooler.as_ref().map_or(both, |pooler| pooler.url().to_owned());
        let target = Target::start().await;
        // What is wrong must not be mended by a lease that runs out.
        let lease = Duration::from_secs(120);
        let relay = StandingBy::start(&Setup { lease, ..Setup::new(url, &target, progress) });
        let events = bank.change_often(1, 10).await;
        target.until_arrived(&events).await;
        bank.until_settled().await;
        let client = bank.connect().await;
        Self { progress, bank, client, target, relay, pooler, way_to_standby, lost: Vec::new() }
    }

    /// Goes on without the replica: events are published and settled, then some are published and
    /// cannot be settled.
    async fn go_on(&mut self) {
        let Self { bank, target, .. } = self;
        let mut lost = bank.change_often(1, 100).await;
        target.until_arrived(&lost).await;
        bank.until_settled().await;
        match &self.pooler {
            Some(pooler) => pooler.pause().await,
            None => {
                let lock = "BEGIN; SELECT FROM outbox_leases FOR UPDATE";
                self.client.batch_execute(lock).await.unwrap();
                let unsettled = bank.change_often(1, 50).await;
                target.until_arrived(&unsettled).await;
                lost.extend(unsettled);
            }
        }
        self.lost = lost;
    }

    /// Writers use the new primary before the relay does. Everything that they commit is
    /// delivered, in order.
    async fn check(self, standby: &Server) {
        let Self { progress, target, relay, .. } = self;
        let new = Bank::at(standby.url(progress.as_str()), 1000);
        let last = new.number("SELECT last_value FROM outbox_seq_seq").await;
        assert!(last < 60, "hardly any number is given again: {last}");
        let written = new.change_often(2, 200).await;
        match &self.pooler {
            Some(pooler) => pooler.go_on_before(new.url()).await,
            None => self.way_to_standby.refuse(false).await,
        }
        new.until_delivered(&target).await;
        new.until_settled().await;
        let mut arrived = target.events();
        arrived.retain(|event| written.contains(event));
        let mut first = Vec::new();
        for event in arrived {
            if !first.contains(&event) {
                first.push(event);
            }
        }
        assert_eq!(first, written, "{progress}: the order is that of commits");
        assert!(self.lost.iter().all(|event| target.has(*event)));
        relay.stop().await;
    }
}

async fn nothing_is_hidden_after_a_failover(way: Way) {
    let mut primary = Server::start(Options::default()).await;
    let standby = primary.standby().await;
    let mut lines = Vec::new();
    for progress in Progress::ALL {
        lines.push(Line::start(progress, way, &primary, &standby).await);
    }
    let at = "SELECT pg_current_wal_flush_lsn()::text";
    let at: String = primary.connect().await.query_one(at, &[]).await.unwrap().get(0);
    let replica = standby.connect().await;
    let is_there = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
    until("the replica follows", || async {
        replica.query_one(&is_there, &[]).await.unwrap().get(0)
    })
    .await;
    let alone = ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"];
    for statement in alone {
        replica.batch_execute(statement).await.unwrap();
    }
    let is_alone = "SELECT count(*) = 0 FROM pg_stat_wal_receiver";
    until("the replica is cut off", || async {
        replica.query_one(is_alone, &[]).await.unwrap().get(0)
    })
    .await;
    for line in &mut lines {
        line.go_on().await;
    }
    primary.kill9().await;
    replica.batch_execute("SELECT pg_promote()").await.unwrap();
    for line in lines {
        line.check(&standby).await;
    }
}

/// G-01, G-03.
#[tokio::test]
async fn a_failover_that_loses_commits_hides_nothing() {
    nothing_is_hidden_after_a_failover(Way::Straight).await;
}

/// G-01, G-03: a session outlasts the server that it was with.
#[tokio::test]
async fn a_failover_behind_a_pooler_hides_nothing() {
    nothing_is_hidden_after_a_failover(Way::Pooled).await;
}
