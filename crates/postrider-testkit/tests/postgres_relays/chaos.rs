//! Three relays, of which one is killed or stopped beyond its lease every second or two, under
//! fifty writers.
//!
//! Each relay logs in as a role of its own, with no more rights than a relay needs. Triggers note
//! who took a lease and who settled, so that at the end it is known that nobody settled without
//! the lease.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use postrider::schema::TableName;
use postrider::schema::postgres::{RolePrefix, roles};
use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{Bank, RelayProcess, Setup, Target, Writers, seed};
use postrider_testkit::servers::postgres::{Options, Server};
use tokio::time::{Instant, sleep};

const RELAYS: usize = 3;
const SHARDS: u32 = 4;
/// Most events that a shard has under way.
const WINDOW: usize = 64;
const LEASE: Duration = Duration::from_secs(2);

/// What triggers note. A settlement holds the lease against a takeover, so the epoch that it sees
/// is the one under which it happens.
const AUDIT: &str = "
CREATE TABLE taken (shard integer, epoch bigint, by name);
CREATE FUNCTION note_taken() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN INSERT INTO taken VALUES (new.shard, new.epoch, session_user); RETURN NULL; END $$;
CREATE TRIGGER note_taken AFTER UPDATE ON outbox_leases
    FOR EACH ROW WHEN (new.epoch <> old.epoch) EXECUTE FUNCTION note_taken();

CREATE TABLE settled (shard integer, epoch bigint, by name);
CREATE FUNCTION note_settled() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE settled_shard integer;
BEGIN
    settled_shard := coalesce((to_jsonb(old) ->> 'shard')::integer,
        (hashtextextended(to_jsonb(old) ->> 'aggregate_id',
            hashtextextended(to_jsonb(old) ->> 'aggregate_type', 0)) & 9223372036854775807) % 4);
    INSERT INTO settled SELECT shard, epoch, session_user FROM outbox_leases
    WHERE shard = settled_shard;
    RETURN NULL;
END $$;
";

fn audit(progress: Progress) -> String {
    let trigger = match progress {
        Progress::Cursor => "AFTER UPDATE OF base, tick, position, beyond ON outbox_checkpoints",
        Progress::Delete => "AFTER DELETE ON outbox",
        Progress::Mark => "AFTER UPDATE OF published_at ON outbox",
    };
    format!(
        "{AUDIT} CREATE TRIGGER note_settled {trigger} FOR EACH ROW EXECUTE FUNCTION note_settled()"
    )
}

#[tokio::test]
async fn cursor() {
    relays_that_come_and_go(Progress::Cursor).await;
}

#[tokio::test]
async fn delete() {
    relays_that_come_and_go(Progress::Delete).await;
}

#[tokio::test]
async fn mark() {
    relays_that_come_and_go(Progress::Mark).await;
}

/// G-01 to G-04, G-09. `POSTRIDER_CHAOS_SECONDS` makes it longer.
async fn relays_that_come_and_go(progress: Progress) {
    let seconds = std::env::var("POSTRIDER_CHAOS_SECONDS").ok();
    let seconds = seconds.map_or(20, |seconds| seconds.parse().expect("a number"));
    let seed = seed();
    let settings = vec!["max_connections = 200".to_owned()];
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    bank.run(&roles(&TableName::default(), &RolePrefix::default())).await;
    bank.run(&audit(progress)).await;
    let target = Target::start().await;
    let mut relays = Vec::new();
    for index in 0..RELAYS {
        bank.run(&format!(
            "CREATE ROLE relay{index} LOGIN PASSWORD 'relay'; GRANT postrider_relay TO relay{index}"
        ))
        .await;
        let url = bank.url().replace("postrider:postrider@", &format!("relay{index}:relay@"));
        let setup = Setup {
            shards: SHARDS,
            lease: LEASE,
            window: WINDOW,
            ..Setup::new(url, &target, progress)
        };
        relays.push(Victim { process: RelayProcess::start(&setup), back_at: None });
    }
    let writing = Writers { seed, ..Writers::default() }.start(&bank);
    let faults = harm(&mut relays, Duration::from_secs(seconds), Rng::with_seed(seed)).await;
    writing.stop().await;
    bank.check(&target, faults * WINDOW * SHARDS as usize).await;
    assert!(faults > 3, "only {faults} faults");
    assert!(target.count() > 500, "only {} arrivals", target.count());
    for Victim { process, .. } in relays {
        assert!(process.terminate().await.success(), "a stop is orderly");
    }
    check_audit(&bank).await;
}

struct Victim {
    process: RelayProcess,
    /// When it comes back, if it is away.
    back_at: Option<Instant>,
}

impl Victim {
    fn come_back(&mut self) {
        self.back_at = None;
        if self.process.has_ended() {
            self.process.start_again();
        } else {
            self.process.resume();
        }
    }
}

/// Kills or stops one after the other; all of them are back at the end. Answers how often.
async fn harm(relays: &mut [Victim], time: Duration, mut rng: Rng) -> usize {
    let end = Instant::now() + time;
    let mut next = Instant::now() + Duration::from_secs(2);
    let mut faults = 0;
    while Instant::now() < end {
        sleep(Duration::from_millis(20)).await;
        for relay in relays.iter_mut() {
            if relay.back_at.is_some_and(|back_at| back_at <= Instant::now()) {
                relay.come_back();
            }
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + Duration::from_millis(rng.u64(1000..2000));
        let victim = &mut relays[rng.usize(..RELAYS)];
        if victim.back_at.is_some() {
            continue;
        }
        assert!(!victim.process.has_ended(), "a relay has ended by itself");
        let away = if rng.bool() {
            victim.process.kill9();
            rng.u64(0..1000)
        } else {
            victim.process.pause();
            // Longer than its lease.
            rng.u64(2100..4000)
        };
        victim.back_at = Some(Instant::now() + Duration::from_millis(away));
        faults += 1;
    }
    for relay in relays.iter_mut().filter(|relay| relay.back_at.is_some()) {
        relay.come_back();
    }
    faults
}

async fn check_audit(bank: &Bank) {
    let others = "SELECT count(*) FROM settled AS s WHERE NOT EXISTS (SELECT FROM taken AS t
         WHERE (t.shard, t.epoch, t.by) = (s.shard, s.epoch, s.by))";
    assert_eq!(bank.number(others).await, 0, "somebody settled without the lease");
    assert!(bank.number("SELECT count(*) FROM settled").await > 0);
    let by_several = "SELECT count(*) FROM (SELECT shard FROM settled GROUP BY shard
         HAVING count(DISTINCT by) > 1) AS s";
    assert!(bank.number(by_several).await > 0, "no shard has passed on");
    let held = "SELECT count(*) FROM outbox_leases WHERE owner IS NOT NULL";
    assert_eq!(bank.number(held).await, 0, "a stop gives leases back");
}
