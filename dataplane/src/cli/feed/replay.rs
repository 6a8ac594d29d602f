//! `sluice feed replay`: Replay a capture from memory through the pipeline and time each stage.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice feed replay`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("feed replay: this build does not have it yet"))
}
