//! One source, several mirrors and a hub over a simulated network: loss, bursts of it, duplication, reordering, delay,
//! partition, small MTUs, restarts and freezes of producer, serve and mirror, lapping, forged datagrams.
//!
//! Every record is judged when it is written, every gap when it is declared; when the faults stop, every mirror must be
//! live and level with its source within [`LIVE_AGAIN_NS`]. `SLUICE_SEEDS` sets how many seeds run (2,000);
//! `SLUICE_SEED` replays one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use sluice::ring::mirror::Fault;

use crate::ring_world::{LIVE_AGAIN_NS, MS, Plan, Tally, World};

const SEEDS: u64 = 2_000;

#[test]
fn ring_mirrors_end_with_the_same_bytes_or_a_declared_gap() {
    if let Ok(seed) = std::env::var("SLUICE_SEED") {
        let seed = seed.parse().expect("SLUICE_SEED is a number");
        let tally = simulate(seed, Fault::None, true).unwrap_or_else(|what| panic!("SLUICE_SEED={seed}: {what}"));
        eprintln!("seed {seed}: {tally:?}");
        return;
    }
    let seeds = std::env::var("SLUICE_SEEDS").map_or(SEEDS, |n| n.parse().expect("SLUICE_SEEDS is a number"));
    let mut total = Tally::default();
    for seed in 0..seeds {
        match catch_unwind(AssertUnwindSafe(|| simulate(seed, Fault::None, false))) {
            Ok(Ok(tally)) => total.add(&tally),
            Ok(Err(what)) => panic!("SLUICE_SEED={seed}: {what}"),
            Err(_) => panic!("SLUICE_SEED={seed}: a machine panicked"),
        }
    }
    eprintln!("{seeds} seeds: {total:?}");
    if seeds >= 200 {
        let missing = total.missing();
        assert!(missing.is_empty(), "the simulator does not reach {missing:?}: {total:?}");
    }
}

#[test]
fn ring_planted_bugs_are_caught() {
    let faults = [
        Fault::EarlyIsGap,
        Fault::SpliceHistories,
        Fault::GapDropsHeld,
        Fault::OverlapFromStart,
        Fault::KeepSessions,
        Fault::AnswerShort,
        Fault::TakesForged,
    ];
    for fault in faults {
        let caught = (0..400).find(|&seed| {
            let run = catch_unwind(AssertUnwindSafe(|| simulate(seed, fault, false)));
            !matches!(run, Ok(Ok(_)))
        });
        eprintln!("{fault:?}: caught by seed {caught:?}");
        assert!(caught.is_some(), "{fault:?} is not caught by 400 seeds");
    }
}

/// Runs one seed. `Err` says what broke.
fn simulate(seed: u64, fault: Fault, tell: bool) -> Result<Tally, String> {
    let mut g = Pcg64Mcg::seed_from_u64(seed);
    let plan = Plan::random(&mut g, fault);
    if tell {
        eprintln!("{plan:#?}");
    }
    let mut world = World::new(g, plan, tell);
    let faults_end = world.plan.faults_ns;
    let steps = world.random(20..60);
    for step in 0..steps {
        let until = faults_end * (step + 1) / steps;
        world.random_event();
        world.run(until)?;
    }
    world.stop_faults();
    // The source goes on while mirrors come back.
    let until = faults_end + LIVE_AGAIN_NS;
    let mut at = faults_end;
    while at < until {
        world.produce_a_little();
        at = (at + 400 * MS).min(until);
        world.run(at)?;
        if at > faults_end + 800 * MS && world.all_level() {
            break;
        }
    }
    world.judge_end()?;
    Ok(world.tally())
}
