//! `sluice feed arbitrate`: Merge the A and B captures of one feed and report what was lost on both.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice feed arbitrate`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("feed arbitrate: this build does not have it yet"))
}
