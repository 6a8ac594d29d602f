//! `sluice store prune`: Delete the oldest segments down to a bound.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice store prune`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("store prune: this build does not have it yet"))
}
