//! `sluice feed play`: Send a capture's frames out of an interface.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice feed play`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("feed play: this build does not have it yet"))
}
