//! Thousands of simulated runs. `POSTRIDER_SEED=n` repeats one and prints what happens in it,
//! `POSTRIDER_SEEDS=n` runs more.

use std::time::Instant;

use postrider_testkit::simulation::{Sabotage, Summary, Trace, run};

const SEEDS_DEFAULT: u64 = 5_000;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

fn seeds() -> std::ops::Range<u64> {
    match number("POSTRIDER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("POSTRIDER_SEEDS").unwrap_or(SEEDS_DEFAULT),
    }
}

/// G-01, G-02, G-03, G-04, G-05, G-06.
#[test]
fn no_seed_loses_reorders_invents_or_needlessly_repeats_an_event() {
    let started = Instant::now();
    let mut total = Summary::default();
    let mut runs = 0;
    let trace = if number("POSTRIDER_SEED").is_some() { Trace::Print } else { Trace::Off };
    for seed in seeds() {
        match run(seed, Sabotage::No, trace) {
            Ok(summary) => {
                runs += 1;
                total.committed += summary.committed;
                total.starts += summary.starts;
                total.calls += summary.calls;
                total.parked += summary.parked;
            }
            Err(wrong) => {
                let wrong: Vec<_> = wrong.iter().take(10).map(ToString::to_string).collect();
                panic!("POSTRIDER_SEED={seed}:\n  {}", wrong.join("\n  "));
            }
        }
    }
    println!("{runs} runs in {:?}: {total:?}", started.elapsed());
    if runs > 100 {
        assert!(total.starts > 2 * runs, "the faults did not bite: {total:?}");
        assert!(total.parked > runs, "the faults did not bite: {total:?}");
    }
}

/// A simulation that cannot fail proves nothing.
#[test]
fn planted_bugs_are_found() {
    for sabotage in [Sabotage::Ordering, Sabotage::Settlement, Sabotage::Parking, Sabotage::Company]
    {
        let caught = (0..300).find(|seed| run(*seed, sabotage, Trace::Off).is_err());
        assert!(caught.is_some(), "{sabotage:?} was not noticed");
    }
}

#[test]
fn a_seed_always_gives_the_same_run() {
    for seed in 0..50 {
        let (first, second) =
            (run(seed, Sabotage::No, Trace::Off), run(seed, Sabotage::No, Trace::Off));
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}
