//! `cargo xtask sim [NAME]`: the seeded simulators in release mode, the ones too long for CI included.

use crate::shell;

/// Arguments of `cargo xtask sim`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the simulations whose name contains this (`full-day`, `store`, `arbiter`); dashes count as underscores.
    name: Option<String>,
    /// Seeds per simulation; without it the simulation's own number.
    #[arg(long)]
    seeds: Option<u64>,
    /// Replay this one seed.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the task. Simulations marked `#[ignore]` (too long for CI) run only when named.
pub fn run(args: Args) -> Result<(), String> {
    // Optimised, because a full day of packets takes minutes otherwise.
    let mut cargo = shell::cargo(&["test", "--release", "-p", "sluice", "--test", "sim", "--"]);
    cargo.args(["--nocapture", "--test-threads=2"]);
    if let Some(name) = &args.name {
        cargo.arg("--include-ignored").arg(name.replace('-', "_"));
    }
    if let Some(seeds) = args.seeds {
        cargo.env("SLUICE_SIM_SEEDS", seeds.to_string());
    }
    if let Some(seed) = args.seed {
        cargo.env("SLUICE_SIM_SEED", seed.to_string());
    }
    ran_something(&mut cargo, args.name.as_deref())
}

/// Runs a test command and fails when the name matched nothing: a typing error must not look like a pass.
pub fn ran_something(cargo: &mut std::process::Command, name: Option<&str>) -> Result<(), String> {
    let tally = crate::test::stream(cargo, true)?;
    if !tally.success {
        return Err(format!("\"{}\" failed", shell::shown(cargo)));
    }
    match (tally.passed + tally.failed, name) {
        (0, Some(name)) => Err(format!("no test has a name that contains \"{name}\"")),
        _ => Ok(()),
    }
}
