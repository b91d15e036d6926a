//! Several pipelines over one outbox.

use std::time::Duration;

use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{Bank, Setup, StandingBy, Target, Writers, until};
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::sleep;

/// G-05: each has its own progress, and one that is in trouble holds no other up.
#[tokio::test]
async fn pipelines_of_one_outbox_do_not_wait_for_each_other() {
    let bank = Bank::fresh().await;
    let [well, away, failing, late] = [
        Target::start().await,
        Target::start().await,
        Target::start().await,
        Target::start().await,
    ];
    away.behave(Behaviour::Away).await;
    failing.behave(Behaviour::Answers(500)).await;
    let mut setup = Setup::new(bank.url(), &well, Progress::Cursor);
    setup.pipelines = [("well", &well), ("away", &away), ("failing", &failing)]
        .map(|(name, target)| (name.to_owned(), target.url()))
        .to_vec();
    let relay = StandingBy::start(&setup);
    let writing = Writers { count: 10, ..Writers::default() }.start(&bank);
    sleep(Duration::from_secs(1)).await;
    writing.stop().await;
    bank.until_delivered(&well).await;
    assert_eq!((away.count(), failing.count()), (0, 0));
    let moved = "SELECT count(*) FROM outbox_checkpoints WHERE base IS NOT NULL
         AND pipeline = 'well'";
    until("its progress is written", || async { bank.number(moved).await == 1 }).await;
    // A restart in between changes nothing for anyone.
    relay.stop().await;
    setup.pipelines.push(("late".to_owned(), late.url()));
    let relay = StandingBy::start(&setup);
    bank.change_often(1, 5).await;
    bank.until_delivered(&well).await;
    bank.until_delivered(&late).await;
    assert_eq!((away.count(), failing.count()), (0, 0));
    away.behave(Behaviour::Well).await;
    failing.behave(Behaviour::Well).await;
    for target in [&well, &away, &failing, &late] {
        bank.check(target, 0).await;
    }
    relay.stop().await;
}

/// An outbox gets a second pipeline, and the first one changes to a cursor with the same start.
#[tokio::test]
async fn pipelines_that_become_cursors_together_start() {
    for round in 0..5 {
        let bank = Bank::fresh().await;
        let [first, second] = [Target::start().await, Target::start().await];
        let relay = StandingBy::start(&Setup::new(bank.url(), &first, Progress::Mark));
        bank.change_often(1, 3).await;
        bank.until_delivered(&first).await;
        relay.stop().await;
        let mut setup = Setup::new(bank.url(), &first, Progress::Cursor);
        let names = if round % 2 == 0 { ["default", "later"] } else { ["default", "earlier"] };
        setup.pipelines =
            vec![(names[0].to_owned(), first.url()), (names[1].to_owned(), second.url())];
        if round % 2 == 1 {
            setup.pipelines.reverse();
        }
        let relay = StandingBy::start(&setup);
        bank.change_often(2, 3).await;
        bank.until_delivered(&first).await;
        bank.until_delivered(&second).await;
        relay.stop().await;
        for target in [&first, &second] {
            bank.check(target, 0).await;
        }
    }
}
