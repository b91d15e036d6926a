//! Two relays with `exactly_once`, each a process of its own, over the log of a real PostgreSQL:
//! one works and the other one stands by. The one that works is killed, or stands still for longer
//! than its lease, in the middle of a transaction.

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::sources::{Mode, Progress};
use postrider_testkit::chaos::{Arrival, Bank, RelayProcess, Setup, Writers, Writing, until};
use postrider_testkit::servers::kafka::{
    Read, has_open_transaction, make_topic, read, read_uncommitted,
};
use tokio::time::sleep;

use crate::Shared;

/// As many ids are kept as the window has: with a small one, few.
const WINDOW: usize = 64;
/// Long enough for a relay that is starved for a while.
const LEASE: Duration = Duration::from_secs(4);
/// A fault comes up to so long after a settlement: anywhere in the transactions after it.
const FAULT_AFTER_MS_MAX: u64 = 30;

/// How often a relay is stopped until it is amid a transaction: it is so about one time in three.
const TRIES_MAX: usize = 30;

/// Who has the lease.
const OWNER: &str = "SELECT owner FROM outbox_leases WHERE expires_at > clock_timestamp()";
/// Nobody renews the lease of a process that is dead.
const LEASE_IS_OVER: &str = "UPDATE outbox_leases SET expires_at = '-infinity'";
/// Whether the log is read, and nothing but the log.
const STREAMS: &str = "SELECT count(*) FROM outbox_checkpoints, pg_replication_slots
     WHERE lsn IS NOT NULL AND slot_snapshot IS NULL AND database = current_database() AND active";

/// Two relays, and writers at work.
struct Pair {
    shared: Shared,
    topic: String,
    bank: Arc<Bank>,
    relays: [RelayProcess; 2],
    writing: Writing,
}

impl Pair {
    async fn start() -> Self {
        let shared = Shared::broker();
        let topic = make_topic(&shared.brokers, 3, &[]).await;
        let options = format!(
            "topic = \"{topic}\"
             exactly_once = true
             create_missing = true
             replication_factor = 1
             progress_topic = \"{topic}-progress\"
             transactional_id = \"{topic}\""
        );
        let bank = Bank::fresh().await;
        let setup = Setup::to(&shared.url, options, bank.url(), Progress::Cursor);
        let setup = Setup { mode: Mode::Cdc, lease: LEASE, window: WINDOW, ..setup };
        let relays = [RelayProcess::start(&setup), RelayProcess::start(&setup)];
        let writing = Writers { count: 5, ..Writers::default() }.start(&bank);
        until("the log is read", || async { bank.number(STREAMS).await == 1 }).await;
        Self { shared, topic, bank, relays, writing }
    }

    /// Waits until one of the relays is in the middle of its work. Answers which.
    async fn until_at_work(&self) -> usize {
        self.bank.until_amid_burst().await;
        let owner = self.owner().await.expect("whoever settles has the lease");
        sleep(Duration::from_millis(fastrand::u64(0..FAULT_AFTER_MS_MAX))).await;
        owner
    }

    async fn owner(&self) -> Option<usize> {
        let owner = self.bank.text(OWNER).await?;
        self.relays.iter().position(|relay| owner.contains(&relay.name_part()))
    }

    /// Lets the relay that works stand still amid a transaction. Answers which it is.
    async fn stand_still_in_transaction(&self) -> usize {
        let Self { shared, topic, .. } = self;
        for _ in 0..TRIES_MAX {
            let owner = self.until_at_work().await;
            self.relays[owner].pause();
            if has_open_transaction(&shared.brokers, topic) {
                return owner;
            }
            self.relays[owner].resume();
        }
        panic!("no transaction was open in {TRIES_MAX} tries");
    }

    /// G-01 to G-04: a reader of committed records sees each event once, and in order. Answers how
    /// many records it does not see.
    #[expect(clippy::print_stdout, reason = "how many events it was is of interest")]
    async fn finish(self) -> usize {
        let Self { shared, topic, bank, relays, writing } = self;
        writing.stop().await;
        bank.until_settled().await;
        until("the log is read", || async { bank.number(STREAMS).await == 1 }).await;
        // What a relay that was taken over still sends, it has sent then.
        for relay in relays {
            assert!(relay.terminate().await.success(), "a stop is orderly");
        }
        let arrivals: Vec<_> = read(&shared.brokers, &topic).into_iter().map(arrival).collect();
        bank.check_arrivals(&arrivals, 0).await;
        let seen = arrivals.len();
        let given_up = read_uncommitted(&shared.brokers, &topic).len() - seen;
        println!("{seen} events are seen once each, {given_up} records were given up");
        given_up
    }
}

fn arrival(record: Read) -> Arrival {
    Arrival {
        id: record.header("postrider-id").unwrap().to_owned(),
        key: String::from_utf8(record.key.unwrap()).unwrap(),
        body: record.value.unwrap(),
    }
}

#[tokio::test]
async fn relays_killed_again_and_again_repeat_nothing() {
    let mut pair = Pair::start().await;
    for kill in 0..10 {
        let owner = pair.until_at_work().await;
        pair.relays[owner].kill9();
        // The other one waits for the end of the lease. Mostly that is now, when the broker may
        // still be at what the dead one has sent.
        if kill % 4 != 0 {
            pair.bank.run(LEASE_IS_OVER).await;
        }
        pair.relays[owner].start_again();
    }
    pair.finish().await;
}

/// G-09: the broker fences it, with a transaction that it had begun.
#[tokio::test]
async fn a_relay_that_stood_still_beyond_its_lease_repeats_nothing() {
    let pair = Pair::start().await;
    for comes_back_at_once in [false, true, false] {
        let zombie = pair.stand_still_in_transaction().await;
        let next = 1 - zombie;
        until("the other relay takes over", || async { pair.owner().await == Some(next) }).await;
        if !comes_back_at_once {
            assert_eq!(pair.until_at_work().await, next);
        }
        let told = |relay: &RelayProcess| relay.log().matches("the pipeline starts anew").count();
        let before = told(&pair.relays[zombie]);
        pair.relays[zombie].resume();
        until("it finds that it was taken over", || async { told(&pair.relays[zombie]) > before })
            .await;
    }
    let given_up = pair.finish().await;
    assert!(given_up >= 2, "transactions that were open at a takeover were given up");
}
