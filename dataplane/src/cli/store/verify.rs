//! `sluice store verify`: Check every checksum and the order of a store.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice store verify`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("store verify: this build does not have it yet"))
}
