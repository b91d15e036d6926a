//! Relays and writers behind pgbouncer in transaction mode, where each transaction may run on
//! another connection of the server.

use std::time::Duration;

use postrider_testkit::chaos::{
    Bank, RelayProcess, Setup, StandingBy, Target, Writers, for_each_progress,
};
use postrider_testkit::servers::pgbouncer::Pgbouncer;
use tokio::time::sleep;

/// G-01 to G-04.
#[tokio::test]
async fn everything_works_behind_a_pooler() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let pooler = Pgbouncer::start(bank.url()).await;
        let target = Target::start().await;
        let setup = Setup { shards: 2, window: 64, ..Setup::new(pooler.url(), &target, progress) };
        let mut first = RelayProcess::start(&setup);
        let second = StandingBy::start(&setup);
        let url = Some(pooler.url().to_owned());
        let writing = Writers { count: 10, url, ..Writers::default() }.start(&bank);
        sleep(Duration::from_millis(1500)).await;
        first.kill9();
        sleep(Duration::from_millis(500)).await;
        first.start_again();
        sleep(Duration::from_millis(500)).await;
        writing.stop().await;
        bank.check(&target, 2 * setup.window).await;
        for outcome in second.stop().await {
            outcome.result.unwrap();
        }
        assert!(first.terminate().await.success());
    })
    .await;
}
