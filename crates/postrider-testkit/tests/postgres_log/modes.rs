//! From polling to the log and back, by configuration alone.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_relay::sources::{Mode, Progress, SourceSpec};
use postrider_testkit::chaos::{Bank, DEADLINE, Target, cdc, spec, until};
use tokio::time::{Instant, sleep};

use crate::{Line, Reader, SLOTS, again, events, stubborn, until_streaming};

/// G-01, G-03, G-04.
#[tokio::test]
async fn a_pipeline_changes_between_polling_and_the_log() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let writing = stubborn().start(&bank);
    let mut kills = 0;
    for round in 0..8 {
        let mode = if round % 2 == 0 { Mode::Poll } else { Mode::Cdc };
        let spec = SourceSpec { mode, ..spec(bank.url(), Progress::Cursor) };
        let relay = again(&bank, &spec, &target).await;
        match mode {
            Mode::Cdc => until_streaming(&bank).await,
            Mode::Poll => {
                until("no slot is left", || async { bank.number(SLOTS).await == 0 }).await
            }
        }
        let before = target.count();
        sleep(Duration::from_millis(300)).await;
        until("events arrive", || async { target.count() > before }).await;
        if round % 3 == 2 {
            kills += 1;
            relay.kill().await;
        } else {
            relay.stop().await;
        }
    }
    writing.stop().await;
    let relay = again(&bank, &cdc(bank.url()), &target).await;
    let line = Line { spec: cdc(bank.url()), bank, target, relay };
    line.finish_after(kills).await;
}

/// G-01, G-03: whatever was there before the slot comes before what is in it, and no gap is
/// between them.
#[tokio::test]
async fn old_rows_come_first() {
    const OLD: u64 = 20_000;
    let bank = Bank::fresh().await;
    let old = "SELECT change(1000000 + e, e % 20) FROM generate_series(1, 20000) AS e";
    bank.run(old).await;
    let writing = stubborn().start(&bank);
    let reader = Reader::connect(&cdc(bank.url())).await.unwrap();
    let mut writing = Some(writing);
    let mut arrived = Vec::new();
    let started = Instant::now();
    loop {
        let records = reader.batch(50).await;
        reader.deliver(&records).await;
        arrived.extend(events(&records));
        match writing.take_if(|_| started.elapsed() > Duration::from_secs(5)) {
            Some(writing) => writing.stop().await,
            None if writing.is_none() && records.is_empty() => break,
            None => {}
        }
        assert!(started.elapsed() < DEADLINE, "{} have come", arrived.len());
    }
    let facts = bank.facts().await;
    assert!(facts.len() as u64 > OLD + 20);
    assert_eq!(arrived.len(), facts.len(), "nothing is lost and nothing comes twice");
    let first_new = arrived.iter().position(|event| *event < 1_000_000);
    let last_old = arrived.iter().rposition(|event| *event > 1_000_000);
    assert!(last_old < first_new, "the old ones come first");
    let mut versions = BTreeMap::new();
    for event in &arrived {
        let place = facts[event];
        let before = versions.insert(place.key, place.number);
        assert!(before.is_none_or(|before| before < place.number), "{event} is out of order");
    }
    until_streaming(&bank).await;
}

/// G-01: the slot is kept over a restart before the table was read up to it.
#[tokio::test]
async fn a_restart_on_the_way_to_the_log_loses_nothing() {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let spec = cdc(bank.url());
    let writing = stubborn().start(&bank);
    const KILLS: usize = 15;
    for _ in 0..KILLS {
        let relay = again(&bank, &spec, &target).await;
        sleep(Duration::from_millis(fastrand::u64(0..150))).await;
        relay.kill().await;
    }
    writing.stop().await;
    let relay = again(&bank, &spec, &target).await;
    Line { bank, target, spec, relay }.finish_after(KILLS).await;
}

/// G-01, G-03, G-04: rows of the table are still under way when the log is read, and the relay dies.
#[tokio::test]
async fn a_kill_while_the_log_takes_over_loses_nothing() {
    for delivered_of_table in [0, 1, 5] {
        for delivered_of_log in [0, 2, 4] {
            let bank = Bank::fresh().await;
            let spec = cdc(bank.url());
            let reader = Reader::connect(&spec).await.unwrap();
            let made = "SELECT count(*) FROM pg_replication_slots
                 WHERE database = current_database() AND confirmed_flush_lsn IS NOT NULL";
            until("there is a slot", || async {
                bank.number(made).await == 1 || !reader.batch(1).await.is_empty()
            })
            .await;
            // The table may have them as well as the log.
            let mut table = bank.change_often(1, 5).await;
            let of_table = reader.read(table.len()).await;
            assert_eq!(events(&of_table), table);
            reader.get_to_log(&bank).await;
            let mut log = bank.change_often(2, 4).await;
            let of_log = reader.read(log.len()).await;
            assert_eq!(events(&of_log), log, "what the table had comes once");
            reader.deliver(&of_log[..delivered_of_log]).await;
            reader.deliver(&of_table[..delivered_of_table]).await;
            drop(reader);

            let left =
                [table.split_off(delivered_of_table), log.split_off(delivered_of_log)].concat();
            let reader = Reader::connect(&spec).await.unwrap();
            let records = reader.read(left.len()).await;
            assert_eq!(events(&records), left, "{delivered_of_table} and {delivered_of_log}");
            reader.deliver(&records).await;
            reader.get_to_log(&bank).await;
            drop(reader);

            let reader = Reader::connect(&spec).await.unwrap();
            assert!(reader.batch(100).await.is_empty(), "all of it is settled");
            reader.close().await;
        }
    }
}
