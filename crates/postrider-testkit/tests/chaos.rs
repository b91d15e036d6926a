//! The pattern from end to end, with everything killed again and again: a shop, a relay, a broker
//! and billing as processes of their own. See [`pattern`](postrider_testkit::chaos::pattern).
//!
//! The short rounds are part of every test run. `cargo xtask chaos` runs whole ones.

#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "it is all test code")]

use std::time::{Duration, Instant};

use postrider_testkit::chaos::pattern::{Broker, Plan, Programs, Victim, run};
use postrider_testkit::chaos::seed;
use tokio::sync::Mutex;

/// How long whole rounds are begun, in seconds.
const SECONDS: &str = "POSTRIDER_CHAOS_SECONDS";
/// Which broker they use: `kafka`, `nats` or `all`.
const BROKER: &str = "POSTRIDER_CHAOS_BROKER";
const SECONDS_DEFAULT: u64 = 300;

/// A round keeps two processors busy.
static ROOM: Mutex<()> = Mutex::const_new(());

fn programs() -> Programs {
    Programs {
        billing: env!("CARGO_BIN_EXE_chaos_billing").into(),
        shop: env!("CARGO_BIN_EXE_chaos_shop").into(),
    }
}

/// G-01 to G-04, and each effect once.
async fn short(broker: Broker) {
    let _room = ROOM.lock().await;
    let plan = Plan::short(broker, seed());
    let summary = run(&plan, &programs()).await.unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{summary}");
    for victim in Victim::PROCESSES {
        assert!(summary.kills[&victim] >= 3, "{victim} was not killed often enough");
    }
    for victim in Victim::SERVERS {
        assert_eq!(summary.kills[&victim], 1, "{victim}");
    }
}

#[tokio::test]
async fn kafka() {
    short(Broker::Kafka).await;
}

#[tokio::test]
async fn nats() {
    short(Broker::Nats).await;
}

/// At least one round for each broker. Each further round has the next seed.
#[tokio::test]
#[ignore = "takes minutes: run `cargo xtask chaos`"]
async fn whole_rounds() {
    let variable = |name: &str| std::env::var(name).ok();
    let seconds = variable(SECONDS).map_or(SECONDS_DEFAULT, |text| text.parse().unwrap());
    let brokers = match variable(BROKER).as_deref() {
        None | Some("all") => Broker::ALL.to_vec(),
        Some(name) => vec![name.parse().unwrap_or_else(|error| panic!("{error}"))],
    };
    let (started, first) = (Instant::now(), seed());
    let mut wrong = 0;
    for (round, broker) in brokers.iter().cycle().enumerate() {
        let is_late = started.elapsed() >= Duration::from_secs(seconds);
        if is_late && round >= brokers.len() {
            break;
        }
        let plan = Plan::new(*broker, first.wrapping_add(round as u64));
        match run(&plan, &programs()).await {
            Ok(summary) => println!("round {}: {summary}", round + 1),
            Err(error) => {
                wrong += 1;
                println!("round {}: {broker}, seed {}: FAILED: {error}", round + 1, plan.seed);
            }
        }
    }
    assert_eq!(wrong, 0, "rounds failed");
}
