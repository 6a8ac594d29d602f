//! `cargo xtask net [NAME]`: the tests that need root. Each makes network namespaces of its own and removes them.

use crate::{shell, sim};

/// Arguments of `cargo xtask net`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the tests whose name contains this; dashes count as underscores.
    name: Option<String>,
}

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    if !shell::is_root() {
        return Err("the net tests make network namespaces and load XDP programs: run this as root".into());
    }
    // All features: what "cargo xtask test" has built already.
    let mut cargo = shell::cargo(&["test", "-p", "sluice", "--all-features", "--test", "net", "--"]);
    // One at a time: they measure packet counts on two cores.
    cargo.args(["--nocapture", "--test-threads=1"]);
    sim::named(&mut cargo, args.name.as_deref())
}
