//! Relays share the shards of a pipeline, and take over from one that has gone.

use std::time::Duration;

use postrider_relay::sources::{Progress, Shard, SourceSpec};
use postrider_testkit::chaos::{
    Bank, RelayProcess, Setup, StandingBy, Target, Writers, for_each_progress, spec, until,
};
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::{Instant, sleep};

/// Notes leases that are taken over without having been given back.
const RAN_OUT: &str = "
CREATE TABLE ran_out (shard integer);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO ran_out VALUES (new.shard); RETURN NULL; END $$;
CREATE TRIGGER note AFTER UPDATE ON outbox_leases
    FOR EACH ROW WHEN (new.epoch <> old.epoch AND old.owner IS NOT NULL) EXECUTE FUNCTION note()";

/// How many shards each relay has, the most first.
async fn shares(bank: &Bank) -> Vec<i64> {
    let query = "SELECT count(*) FROM outbox_leases WHERE expires_at > clock_timestamp()
         GROUP BY owner ORDER BY 1 DESC";
    let rows = bank.connect().await.query(query, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn until_shares(bank: &Bank, expected: &[i64]) {
    let what = format!("the shards are shared as {expected:?}");
    until(&what, || async {
        sleep(Duration::from_millis(50)).await;
        shares(bank).await == expected
    })
    .await;
}

/// G-03, G-04: shards are handed over in order, so nothing comes twice.
#[tokio::test]
async fn shards_are_shared_fairly_as_relays_come_and_go() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    bank.run(RAN_OUT).await;
    // Longer than a busy machine lets anybody wait: a lease that runs out is not what is tested.
    let lease = Duration::from_secs(12);
    let setup = Setup { shards: 6, lease, ..Setup::new(bank.url(), &target, Progress::Mark) };
    let writing = Writers { count: 10, ..Writers::default() }.start(&bank);
    let mut relays = Vec::new();
    for expected in [[6].as_slice(), &[3, 3], &[2, 2, 2]] {
        relays.push(StandingBy::start(&setup));
        until_shares(&bank, expected).await;
    }
    // It stays as it is: nobody asks for what is shared fairly.
    let epochs = || bank.number("SELECT sum(epoch)::bigint FROM outbox_leases");
    let before = epochs().await;
    // Every relay asks several times meanwhile, and renews what it has.
    sleep(Duration::from_secs(6)).await;
    assert_eq!((shares(&bank).await, epochs().await), (vec![2, 2, 2], before));
    for outcome in relays.remove(0).stop().await {
        outcome.result.unwrap();
    }
    until_shares(&bank, &[3, 3]).await;
    writing.stop().await;
    assert_eq!(bank.number("SELECT count(*) FROM ran_out").await, 0, "a lease ran out");
    bank.check(&target, 0).await;
    for relay in relays {
        relay.stop().await;
    }
}

/// A shard that was given back for a relay is that relay's, even before it takes it. Otherwise it
/// would ask for one too many, and have to give it back again.
#[tokio::test]
async fn nobody_asks_for_more_than_a_fair_share() {
    let bank = Bank::fresh().await;
    let relay = |name: &str, index| SourceSpec {
        relay: name.to_owned(),
        shard: Shard { index, of: 6 },
        ..spec(bank.url(), Progress::Mark)
    };
    let wishes = || bank.number("SELECT count(*) FROM outbox_leases WHERE wanted_by = 'third'");
    let mut held = Vec::new();
    for index in 0..6 {
        let name = if index < 3 { "first" } else { "second" };
        held.push(relay(name, index).connect().await.unwrap());
    }
    for index in [0, 3] {
        relay("third", index).connect().await.map(drop).unwrap_err();
    }
    assert_eq!(wishes().await, 2);
    for index in [3, 0] {
        held.remove(index).close().await.unwrap();
    }
    for index in [1, 2, 4, 5] {
        relay("third", index).connect().await.map(drop).unwrap_err();
    }
    assert_eq!(wishes().await, 2);
    for source in held {
        source.close().await.unwrap();
    }
}

/// Between lease and takeover there is the longest pause between two tries of a relay that stands
/// by, 2 s, and what a busy machine takes for it.
#[tokio::test]
async fn a_standby_takes_over_in_time() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let lease = Duration::from_secs(10);
    let setup = Setup { lease, ..Setup::new(bank.url(), &target, Progress::Mark) };
    let mut first = RelayProcess::start(&setup);
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    let second = RelayProcess::start(&setup);
    until("the second one stands by", || async { second.log().contains("standing by") }).await;
    first.kill9();
    let killed = Instant::now();
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    let longest = lease + Duration::from_secs(2) + Duration::from_secs(8);
    assert!(killed.elapsed() < longest, "it took {:?}", killed.elapsed());
    first.start_again();
    until("the first one stands by", || async { first.log().contains("standing by") }).await;
    // After an orderly stop nobody has to wait for a lease.
    assert!(second.terminate().await.success());
    let stopped = Instant::now();
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    assert!(stopped.elapsed() < lease, "it took {:?}", stopped.elapsed());
    bank.check(&target, setup.window).await;
    assert!(first.terminate().await.success());
}

/// G-09: nobody has to wait for the lease of a process that ended because it could not go on. An
/// end that the relay has reported is no crash.
#[tokio::test]
async fn a_relay_that_cannot_go_on_gives_its_lease_back() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let lease = Duration::from_secs(120);
    let setup = Setup { lease, ..Setup::new(bank.url(), &target, Progress::Cursor) };
    let crashes = || bank.number("SELECT max(crashes)::bigint FROM outbox_checkpoints");
    let relay = RelayProcess::start(&setup);
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    assert!(relay.terminate().await.success());

    bank.run("UPDATE outbox_checkpoints SET system_id = system_id + 1").await;
    let mut relay = RelayProcess::start(&setup);
    relay.ended().await;
    assert!(relay.log().contains("another database cluster"), "{}", relay.log());
    assert_eq!((shares(&bank).await, crashes().await), (Vec::new(), 0));

    bank.run("UPDATE outbox_checkpoints SET system_id = NULL").await;
    target.behave(Behaviour::Hangs).await;
    let mut relay = RelayProcess::start(&setup);
    bank.change_often(1, 5).await;
    until("it has begun", || async { crashes().await == 1 }).await;
    bank.run("ALTER TABLE outbox RENAME COLUMN payload TO renamed").await;
    relay.ended().await;
    assert!(relay.log().contains("payload"), "{}", relay.log());
    assert_eq!((shares(&bank).await, crashes().await), (Vec::new(), 0));
}

/// G-03: a stopped process does not know that time has passed.
#[tokio::test]
async fn a_relay_that_stood_still_beyond_its_lease_stands_by() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let setup = Setup::new(bank.url(), &target, Progress::Cursor);
    let first = RelayProcess::start(&setup);
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    bank.until_settled().await;
    first.pause();
    let second = RelayProcess::start(&setup);
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    first.resume();
    let stands_by = || async { first.log().contains("standing by") };
    until("the first one notices", stands_by).await;
    bank.change_often(1, 5).await;
    bank.check(&target, 0).await;
    assert_eq!(target.count(), 15);
    assert!(first.terminate().await.success());
    assert!(second.terminate().await.success());
}

/// G-01, G-03: the keys are divided anew, also while some events wait behind others.
#[tokio::test]
async fn the_number_of_shards_can_be_changed() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let target = Target::start().await;
        let setup =
            |shards| Setup { shards, window: 64, ..Setup::new(bank.url(), &target, progress) };
        let relay = StandingBy::start(&setup(4));
        let writing = Writers { count: 5, ..Writers::default() }.start(&bank);
        sleep(Duration::from_secs(1)).await;
        writing.stop().await;
        bank.check(&target, 0).await;
        let other = StandingBy::start(&setup(3));
        sleep(Duration::from_millis(500)).await;
        assert!(!other.has_ended(), "it waits until nobody has four");
        relay.stop().await;
        bank.change_often(1, 5).await;
        bank.check(&target, 0).await;
        other.stop().await;
        // One key hangs when the relay is killed; what is behind it is settled.
        let mut relay = RelayProcess::start(&setup(3));
        target.behave(Behaviour::RefusesKey("7")).await;
        bank.change_often(7, 5).await;
        for account in 0..10 {
            bank.change_often(account, 5).await;
        }
        sleep(Duration::from_millis(500)).await;
        relay.kill9();
        target.behave(Behaviour::Well).await;
        bank.retry().await;
        let relay = StandingBy::start(&setup(6));
        let is_mended = || async { bank.number("SELECT count(*) FROM outbox_failures").await == 0 };
        until("nothing is set aside any more", is_mended).await;
        bank.check(&target, 3 * 64).await;
        relay.stop().await;
    })
    .await;
}
