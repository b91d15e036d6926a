//! Several relays over one slot: one reads it, and the others stand by.

use std::time::Duration;

use postrider::schema::TableName;
use postrider::schema::postgres::{RolePrefix, roles};
use postrider_relay::source::{SourceErrorKind, Verdict};
use postrider_relay::sources::{Mode, Progress, SourceSpec};
use postrider_testkit::chaos::{Bank, RelayProcess, Setup, Target, Writers, cdc, until};
use tokio::time::{Instant, sleep};

use crate::{Reader, events, stubborn, until_streaming};

const OVER: &str = "UPDATE outbox_leases SET expires_at = '-infinity'";
const READER: &str = "SELECT active_pid::bigint FROM pg_replication_slots
     WHERE database = current_database()";

/// G-09: whoever has the lease ends a stream that is left, and the one that is deposed settles
/// nothing.
#[tokio::test]
async fn a_stream_that_is_left_is_ended() {
    let bank = Bank::fresh().await;
    let spec = cdc(bank.url());
    let old = Reader::start(&bank, &spec).await;
    let held = SourceSpec { relay: "another".to_owned(), ..spec.clone() };
    let refused = held.connect().await.err().map(|error| error.kind);
    assert_eq!(refused, Some(SourceErrorKind::Held));
    let all = bank.change_often(1, 10).await;
    let records = old.read(10).await;
    old.deliver(&records[..4]).await;
    let before = bank.number(READER).await;
    bank.run(OVER).await;
    let new = Reader::connect(&held).await.unwrap();
    let left = new.read(6).await;
    assert_eq!(events(&left), all[4..]);
    assert_ne!(bank.number(READER).await, before, "it is another stream");
    let refused = old.settle(&records[4..], Verdict::Delivered).await;
    assert_eq!(refused.unwrap_err().kind, SourceErrorKind::Lost);
    new.deliver(&left).await;
    drop(old);
    let all = bank.change_often(1, 3).await;
    let left = new.read(3).await;
    assert_eq!(events(&left), all, "the good-bye of the old one takes nothing away");
    new.deliver(&left).await;
}

/// G-09, F37: a relay stands still and keeps its connections.
#[tokio::test]
async fn a_relay_that_stands_still_is_taken_over_in_lease_time() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let setup = Setup { mode: Mode::Cdc, ..Setup::new(bank.url(), &target, Progress::Cursor) };
    let first = RelayProcess::start(&setup);
    let events = bank.change_often(1, 10).await;
    target.until_arrived(&events).await;
    until_streaming(&bank).await;
    let second = RelayProcess::start(&setup);
    sleep(setup.lease).await;
    let before = bank.number(READER).await;
    first.pause();
    let paused = Instant::now();
    let events = bank.change_often(1, 10).await;
    target.until_arrived(&events).await;
    assert!(paused.elapsed() < setup.lease + Duration::from_secs(3), "{:?}", paused.elapsed());
    until_streaming(&bank).await;
    assert_ne!(bank.number(READER).await, before, "it is another stream");
    first.resume();
    let events = bank.change_often(1, 10).await;
    target.until_arrived(&events).await;
    bank.check(&target, 10).await;
    assert!(second.terminate().await.success(), "a stop is orderly");
    let events = bank.change_often(1, 10).await;
    target.until_arrived(&events).await;
    bank.check(&target, 10).await;
    assert!(first.terminate().await.success(), "a stop is orderly");
}

/// G-01 to G-04, G-09: relays of little rights that are killed or stand still, one after the
/// other.
#[tokio::test]
async fn relays_come_and_go() {
    const WINDOW: usize = 64;
    let bank = Bank::fresh().await;
    let role = bank.database().replace("bank", "relay");
    bank.run(&roles(&TableName::default(), &RolePrefix::new(&role).unwrap())).await;
    bank.run(&format!(
        "CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'relay'; GRANT {role}_relay TO {role}"
    ))
    .await;
    let target = Target::start().await;
    let url = bank.url().replace("postrider:postrider@", &format!("{role}:relay@"));
    // The publication is made by the owner of the table, as the refusal says.
    let refused = Reader::connect(&cdc(&url)).await.err().map(|error| error.details());
    let refused = refused.expect("a relay is not the owner of the table");
    let (_, publication) = refused.split_once("CREATE PUBLICATION").expect("it names the fix");
    bank.run(&format!("CREATE PUBLICATION{publication}")).await;
    let setup =
        Setup { mode: Mode::Cdc, window: WINDOW, ..Setup::new(url, &target, Progress::Cursor) };
    let mut relays = [RelayProcess::start(&setup), RelayProcess::start(&setup)];
    until_streaming(&bank).await;
    let writing = Writers { count: 20, ..stubborn() }.start(&bank);
    const FAULTS: usize = 8;
    for fault in 0..FAULTS {
        sleep(Duration::from_millis(fastrand::u64(500..1500))).await;
        let owner = bank.text("SELECT owner FROM outbox_leases").await.unwrap_or_default();
        let has = |relay: &&mut RelayProcess| owner.contains(&relay.name_part());
        let Some(relay) = relays.iter_mut().find(has) else { continue };
        if fault % 2 == 0 {
            relay.kill9();
            sleep(Duration::from_millis(fastrand::u64(0..1000))).await;
            relay.start_again();
        } else {
            relay.pause();
            sleep(setup.lease + Duration::from_millis(fastrand::u64(0..1000))).await;
            relay.resume();
        }
    }
    writing.stop().await;
    bank.check(&target, FAULTS * WINDOW).await;
    until("the log is read again", || async {
        bank.number("SELECT count(*) FROM outbox_checkpoints WHERE lsn IS NOT NULL").await == 1
    })
    .await;
    for relay in relays {
        assert!(relay.terminate().await.success(), "a stop is orderly");
    }
}
