//! Relays as processes of their own, the real binary, between a real PostgreSQL and the broker.

use std::time::Duration;

use postrider_relay::sources::Progress;
use tokio::time::sleep;

use super::Subject;
use crate::chaos::{Bank, RelayProcess, Setup, Writers};

const KILLS: usize = 10;
/// Small, so that the limit of what comes again is one that could be passed.
const WINDOW: usize = 64;
/// A relay that is starved for a while keeps it.
const LEASE: Duration = Duration::from_secs(15);
/// A kill comes up to so long after a settlement: anywhere in the calls after it.
const KILL_AFTER_MS_MAX: u64 = 30;
/// Nobody renews the lease of a process that is dead: the rest of it would only be waited for.
const LEASE_IS_OVER: &str = "UPDATE outbox_leases SET expires_at = '-infinity'";

/// G-01 to G-04.
#[expect(clippy::print_stdout, reason = "how often events came again is of interest")]
pub(super) async fn a_process_killed_again_and_again_repeats_at_most_its_window(broker: Subject) {
    let bank = Bank::fresh().await;
    let (url, options) = broker.configured().await;
    let setup = Setup::to(url, options, bank.url(), Progress::Cursor);
    let setup = Setup { lease: LEASE, window: WINDOW, ..setup };
    let mut relay = RelayProcess::start(&setup);
    let writing = Writers { count: 5, ..Writers::default() }.start(&bank);
    for _ in 0..KILLS {
        bank.until_amid_burst().await;
        sleep(Duration::from_millis(fastrand::u64(0..KILL_AFTER_MS_MAX))).await;
        relay.kill9();
        bank.run(LEASE_IS_OVER).await;
        relay.start_again();
    }
    writing.stop().await;
    bank.until_settled().await;
    assert!(relay.terminate().await.success(), "a stop is orderly");
    let arrivals: Vec<_> = broker.arrivals().await.into_iter().map(Into::into).collect();
    let allowed = if broker.capabilities().exactly_once { 0 } else { KILLS * WINDOW };
    let repeated = bank.check_arrivals(&arrivals, allowed).await;
    let arrived = arrivals.len();
    println!("{repeated} of {arrived} arrivals were repetitions, allowed are {allowed}");
}
