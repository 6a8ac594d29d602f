//! `sluice store`: look at, search, verify, export and prune a store.
//!
//! May use: every library module. Never does: more than parse, call and print.

use super::Outcome;

pub mod export;
pub mod info;
pub mod prune;
pub mod query;
pub mod verify;

/// The verbs of `sluice store`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Summarise a store: segments, streams, sequence and time ranges.
    Info(info::Args),
    /// Print records by stream and sequence range, or by time range.
    Query(query::Args),
    /// Check every checksum and the order of a store.
    Verify(verify::Args),
    /// Write a store as pcapng, pcap, CSV or Parquet.
    Export(export::Args),
    /// Delete the oldest segments down to a bound.
    Prune(prune::Args),
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Info(args) => info::run(args),
        Command::Query(args) => query::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Export(args) => export::run(args),
        Command::Prune(args) => prune::run(args),
    }
}
