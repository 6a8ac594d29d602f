//! The ledger stream, all of it but sockets and files: a source, servers in a chain, retention on simulated disks, connections that are
//! cut anywhere, subscribers over one connection or several that stall, drop and resume, servers that crash, drain and come
//! back, sources that begin elsewhere, links that change a bit.
//!
//! Each subscriber must see every ledger of its range once, in order, byte for byte, all of one run; or an error that says why
//! not, and is true. Memory stays within its bounds. A seed replays a run: `SLUICE_SEED=n`; `SLUICE_SEEDS=n` runs more.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::ledger::keeper::{KeeperSettings, SyncPolicy};
use sluice::ledger::retention::Bounds;

use super::ledger_world::{Bug, Plan, TURN_NS, Tally, Tools, World};

const SEEDS: u64 = 2_000;

const PLAN: Plan = Plan {
    relays_max: 2,
    flows_max: 3,
    restart_one_in: 150,
    cut_one_in: 30,
    stall_one_in: 20,
    full_one_in: 60,
    another_one_in: 3,
    corrupt_one_in: 400,
    disk_turns_max: 4,
    ledger_bytes_max: 9_000,
};

/// Retention of every kind, small enough to be overrun.
pub fn settings(random: &mut Pcg64Mcg) -> KeeperSettings {
    let bounds = Bounds {
        ledgers_max: random.random_range(2..60),
        bytes_max: random.random::<bool>().then_some(60_000),
        age_ns_max: random.random::<bool>().then_some(3_000_000_000),
    };
    let sync = match random.random_range(0..3) {
        0 => SyncPolicy::Seal,
        1 => SyncPolicy::Interval(3 * TURN_NS),
        _ => SyncPolicy::EveryLedger,
    };
    KeeperSettings { bounds, segment_bytes: random.random_range(1_000..40_000), sync, retry_ns: 2 * TURN_NS }
}

/// Runs one seed; an oracle that speaks and an assertion that fails are both a catch.
pub fn outcome(run: impl FnOnce() -> Result<Tally, String>) -> Result<Tally, String> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
        }
    }
}

fn world(seed: u64, bug: Bug) -> Result<Tally, String> {
    outcome(|| World::new(Tools::new(Pcg64Mcg::seed_from_u64(seed), bug, PLAN), settings).run())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Seeds that fail in each thread before it gives up.
const FAILED_MAX: usize = 5;

/// Runs the seeds that were asked for, or so many; what they came through must be everything that is possible.
pub fn all_seeds(seeds: u64, world: impl Fn(u64) -> Result<Tally, String> + Sync, met: impl Fn(&mut Tally) -> bool) {
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_SEEDS").unwrap_or(seeds),
    };
    let many = seeds.end - seeds.start >= 100;
    // Seeds do not know of each other: each thread takes every so many-th.
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let part = |first: usize| {
        let (mut sum, mut failed) = (Tally::default(), Vec::new());
        for seed in seeds.clone().skip(first).step_by(threads) {
            match world(seed) {
                Ok(tally) => sum.add(&tally),
                Err(what) => failed.push(format!("SLUICE_SEED={seed}: {what}")),
            }
            if failed.len() == FAILED_MAX {
                break;
            }
        }
        (sum, failed)
    };
    let parts: Vec<(Tally, Vec<String>)> = std::thread::scope(|scope| {
        let part = &part;
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        running.into_iter().map(|thread| thread.join().expect("a panic inside is caught")).collect()
    });
    let (mut all, mut failed) = (Tally::default(), Vec::new());
    for (sum, mut of_part) in parts {
        all.add(&sum);
        failed.append(&mut of_part);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    println!("{all:?}");
    assert!(!many || met(&mut all), "something was never met: {all:?}");
}

/// Looks for a seed in which each planted bug shows.
pub fn all_caught(bugs: &[Bug], seeds: u64, world: impl Fn(u64, Bug) -> Result<Tally, String>) {
    // The panics of planted bugs are expected: they stay off the terminal.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let caught = |bug| (0..seeds).find_map(|seed| Some((seed, world(seed, bug).err()?)));
    let found: Vec<_> = bugs.iter().map(|&bug| (bug, caught(bug))).collect();
    std::panic::set_hook(hook);
    for (bug, caught) in &found {
        println!("{bug:?}: {caught:?}");
    }
    assert!(found.iter().all(|(_, caught)| caught.is_some()), "not caught within {seeds} seeds");
}

#[test]
fn every_subscriber_sees_every_ledger_once_in_order_or_a_true_error() {
    all_seeds(SEEDS, |seed| world(seed, Bug::None), |all| all.fields().iter().all(|count| **count > 0));
}

/// Seeds in which each planted bug must show: the rarest (a torn record taken for whole) needs a crash between two writes.
const PLANTED_SEEDS: u64 = 4_000;

#[test]
fn planted_bugs_of_server_and_client_are_caught() {
    let bugs =
        [Bug::MessageLost, Bug::ResumeRepeats, Bug::ResumeSkips, Bug::RunHidden, Bug::WrongPlace, Bug::ReadUnchecked];
    all_caught(&bugs, PLANTED_SEEDS, world);
}

#[test]
fn planted_bugs_of_retention_are_caught() {
    let bugs = [Bug::TornIsWhole, Bug::SyncLies, Bug::ShortIsWhole, Bug::ReadUnchecked, Bug::WrongPlace];
    all_caught(&bugs, PLANTED_SEEDS, world);
}

#[test]
fn planted_bugs_of_flows_are_caught() {
    let bugs = [
        Bug::FlowShifted,
        Bug::FlowLate,
        Bug::FlowAgainHidden,
        Bug::FlowEndLost,
        Bug::FlowChunkTwice,
        Bug::FlowStoredWhole,
    ];
    all_caught(&bugs, PLANTED_SEEDS, world);
}

#[test]
fn planted_bugs_of_relays_are_caught() {
    let bugs = [
        Bug::RelayEarly,
        Bug::RelayLate,
        Bug::RelayGapHidden,
        Bug::RelayRunHidden,
        Bug::RelayEndEarly,
        Bug::RelayPartKept,
        Bug::RelayResetKeeps,
    ];
    // Bytes that change on the way are what shows a relay that does not verify.
    let plan = Plan { corrupt_one_in: 50, ..PLAN };
    all_caught(&bugs, PLANTED_SEEDS, |seed, bug| {
        outcome(|| World::new(Tools::new(Pcg64Mcg::seed_from_u64(seed), bug, plan), settings).run())
    });
}
