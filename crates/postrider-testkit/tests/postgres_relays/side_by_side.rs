//! Relays that keep no order read side by side.

use std::time::Duration;

use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{Bank, RelayProcess, Setup, StandingBy, Target, Writers, until};
use postrider_testkit::history::Wrong;
use tokio::time::sleep;

/// Checks the history of a run without order.
async fn check(bank: &Bank, target: &Target, duplicates_allowed: usize) {
    bank.until_delivered(target).await;
    bank.until_settled().await;
    let mut wrong = bank.wrongs(target, duplicates_allowed).await;
    wrong.retain(|wrong| !matches!(wrong, Wrong::OutOfOrder { .. }));
    assert_eq!(wrong, []);
    let claims = || async { bank.number("SELECT count(*) FROM outbox_claims").await == 0 };
    until("no claim is left", claims).await;
}

fn setup(bank: &Bank, target: &Target, progress: Progress) -> Setup {
    Setup { ordering: "none", window: 64, ..Setup::new(bank.url(), target, progress) }
}

/// G-01, G-04.
#[tokio::test]
async fn relays_without_order_share_the_work_and_repeat_nothing() {
    for progress in [Progress::Mark, Progress::Delete] {
        let bank = Bank::fresh().await;
        let target = Target::start().await;
        let setup = setup(&bank, &target, progress);
        // Enough that each of them finds some when it comes.
        bank.run("SELECT change(e, e % 50) FROM generate_series(1000001, 1002000) AS e").await;
        let relays: Vec<_> = (0..3).map(|_| StandingBy::start(&setup)).collect();
        let writing = Writers { count: 20, ..Writers::default() }.start(&bank);
        sleep(Duration::from_secs(2)).await;
        writing.stop().await;
        check(&bank, &target, 0).await;
        let mut delivered = 0;
        for relay in relays {
            for outcome in relay.stop().await {
                let totals = outcome.result.unwrap();
                assert!(totals.delivered > 0, "{progress}: a relay had nothing to do");
                delivered += totals.delivered;
            }
        }
        assert_eq!(delivered, target.count() as u64, "{progress}");
    }
}

/// G-01: what a killed relay had claimed is delivered by another one.
#[tokio::test]
async fn relays_without_order_lose_nothing_when_they_are_killed() {
    for progress in [Progress::Mark, Progress::Delete] {
        let bank = Bank::fresh().await;
        let target = Target::start().await;
        let setup = setup(&bank, &target, progress);
        let mut relays: Vec<_> = (0..3).map(|_| RelayProcess::start(&setup)).collect();
        let writing = Writers { count: 20, ..Writers::default() }.start(&bank);
        let kills = 6;
        for kill in 0..kills {
            sleep(Duration::from_millis(700)).await;
            let victim = &mut relays[kill % 3];
            victim.kill9();
            victim.start_again();
        }
        writing.stop().await;
        check(&bank, &target, kills * setup.window).await;
        for relay in relays {
            assert!(relay.terminate().await.success());
        }
    }
}
