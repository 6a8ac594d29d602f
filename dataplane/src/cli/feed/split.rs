//! `sluice feed split`: Fan one capture out into A and B with seeded loss and delay, and a truth file.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice feed split`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("feed split: this build does not have it yet"))
}
