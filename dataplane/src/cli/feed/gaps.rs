//! `sluice feed gaps`: Report gaps, duplicates and reordering of every stream in capture files.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice feed gaps`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("feed gaps: this build does not have it yet"))
}
