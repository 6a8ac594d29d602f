//! `sluice store query`: Print records by stream and sequence range, or by time range.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice store query`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("store query: this build does not have it yet"))
}
