//! `sluice feed generate`: Write a deterministic, spec-true DEEP or TOPS session as pcapng.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice feed generate`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("feed generate: this build does not have it yet"))
}
