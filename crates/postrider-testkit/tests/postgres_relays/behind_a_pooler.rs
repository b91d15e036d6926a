//! Relays and writers behind pgbouncer in transaction mode, where each transaction may run on
//! another connection of the server.

use std::time::Duration;

use postrider_testkit::chaos::{
    RelayProcess, Setup, StandingBy, Target, Writers, for_each_progress,
};
use tokio::time::sleep;

/// G-01 to G-04.
#[tokio::test]
async fn everything_works_behind_a_pooler() {
    for_each_progress(async |progress| {
        let (database, bank) = crate::bank().await;
        let target = Target::start().await;
        let setup =
            Setup { shards: 2, window: 64, ..Setup::new(database.pooled_url(), &target, progress) };
        let mut first = RelayProcess::start(&setup);
        let second = StandingBy::start(&setup);
        let url = Some(database.pooled_url());
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
