//! `sluice feed decode`: Decode every message of a capture, one row a message.

use crate::cli::{Failure, Outcome};

/// Arguments of `sluice feed decode`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Failure::usage("feed decode: this build does not have it yet"))
}
