//! `sluice store info`: Summarise a store: segments, streams, sequence and time ranges.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice store info`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("store info: this build does not have it yet"))
}
