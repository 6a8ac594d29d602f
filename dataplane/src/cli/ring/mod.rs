//! `sluice ring`: look at rings, serve them to other hosts, keep copies of other hosts' rings.
//!
//! May use: every library module. Never does: more than parse, call and print.

use super::{Failure, Outcome};
use crate::ring::RingError;

pub mod stat;
pub mod tail;

/// The verbs of `sluice ring`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Show a ring's layout, head, producer and readers.
    Stat(stat::Args),
    /// Print a ring's records as they come; a published feed's decoded.
    Tail(tail::Args),
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Stat(args) => stat::run(args),
        Command::Tail(args) => tail::run(args),
    }
}

/// A ring that cannot be opened is the host's matter; its path and the reason are in the message.
fn failure(error: RingError) -> Failure {
    Failure::host(error.to_string())
}
