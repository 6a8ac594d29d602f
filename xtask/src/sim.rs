//! `cargo xtask sim [NAME]`: the seeded simulators in release mode, the ones too long for CI included.

use std::process::Command;

use crate::shell;

/// Arguments of `cargo xtask sim`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the simulations whose name contains this (`full-day`, `store`, `arbiter`, `ring`, `ring-wan`, `ring-lapped`, `ledger`, `ledger-slow`, `ledger-restart`); dashes count as underscores.
    name: Option<String>,
    /// Seeds per simulation; without it the simulation's own number.
    #[arg(long)]
    seeds: Option<u64>,
    /// Replay this one seed.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    // Optimised, because a full day of packets takes minutes otherwise.
    let mut cargo = shell::cargo(&["test", "--release", "-p", "sluice", "--test", "sim", "--", "--nocapture"]);
    if let Some(seeds) = args.seeds {
        cargo.env("SLUICE_SEEDS", seeds.to_string());
    }
    if let Some(seed) = args.seed {
        cargo.env("SLUICE_SEED", seed.to_string());
    }
    named(&mut cargo, args.name.as_deref())
}

/// Runs the tests whose name contains `name`. Those marked `#[ignore]` (too long for CI) run when no other test has the
/// name; a name that nothing has is a typing error and must not look like a pass.
pub fn named(cargo: &mut Command, name: Option<&str>) -> Result<(), String> {
    // Test names have underscores; people type dashes.
    cargo.args(name.map(|name| name.replace('-', "_")));
    let mut tally = crate::test::stream(cargo, true)?;
    if tally.success && tally.passed == 0 && name.is_some() {
        tally = crate::test::stream(cargo.arg("--ignored"), true)?;
    }
    match (tally.success, tally.passed, name) {
        (false, ..) => Err(format!("\"{}\" failed", shell::shown(cargo))),
        (true, 0, Some(name)) => Err(format!("no test has a name that contains \"{name}\"")),
        _ => Ok(()),
    }
}
