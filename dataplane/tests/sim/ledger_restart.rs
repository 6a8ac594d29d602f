//! Servers that crash and drain all the time, over the same retention, whose source goes on or is another one, and relays of them:
//! no subscriber ever gets ledgers of two runs, whatever it was in the middle of. A seed replays a run: `SLUICE_SEED=n`.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::ledger::{all_caught, all_seeds, outcome, settings};
use super::ledger_world::{Bug, Plan, Tally, Tools, World};

/// A server lives for about a dozen ledgers.
const PLAN: Plan = Plan {
    relays_max: 2,
    flows_max: 2,
    restart_one_in: 25,
    cut_one_in: 60,
    stall_one_in: 60,
    full_one_in: 400,
    another_one_in: 2,
    corrupt_one_in: 10_000,
    disk_turns_max: 4,
    ledger_bytes_max: 9_000,
};

const SEEDS: u64 = 300;

fn world(seed: u64, bug: Bug) -> Result<Tally, String> {
    // Other worlds than those of the first simulation.
    let seed = seed ^ 1 << 40;
    outcome(|| World::new(Tools::new(Pcg64Mcg::seed_from_u64(seed), bug, PLAN), settings).run())
}

#[test]
fn ledgers_of_two_runs_are_never_joined() {
    let met = |all: &mut Tally| all.run_changed > 0 && all.resets > 0 && all.relay_runs > 0 && all.drained > 0;
    all_seeds(SEEDS, |seed| world(seed, Bug::None), met);
}

#[test]
fn planted_bugs_of_identity_are_caught() {
    let bugs =
        [Bug::RunHidden, Bug::ResetKeepsSegments, Bug::RelayRunHidden, Bug::RelayResetKeeps, Bug::RelayGapHidden];
    all_caught(&bugs, 2_000, world);
}
