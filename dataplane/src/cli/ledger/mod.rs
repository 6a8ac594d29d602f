//! `sluice ledger`: follow a stream of ledgers.
//!
//! May use: every library module. Never does: more than parse, call and print.

use super::Outcome;

pub mod bench;
mod consumer;
pub mod follow;
pub mod serve;

/// The verbs of `sluice ledger`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Follow a ledger server: verify each ledger, then print, store or pass it on.
    Follow(follow::Args),
    /// Measure how long after its last byte a ledger is verified at a client.
    Bench(Box<bench::Args>),
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Follow(args) => follow::run(args),
        Command::Bench(args) => bench::run(*args),
    }
}
