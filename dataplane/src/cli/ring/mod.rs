//! `sluice ring`: serve rings to other hosts, keep copies of other hosts' rings, look at rings and print their records.
//!
//! May use: every library module. Never does: more than parse, call and print.

use super::{Failure, Outcome};
use crate::ring::RingError;

mod live;
pub mod mirror;
pub mod serve;
pub mod stat;
pub mod stress;
pub mod tail;

/// The verbs of `sluice ring`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Serve a ring to mirrors on other hosts: TCP, UDP multicast, UDP unicast.
    Serve(serve::Args),
    /// Keep a copy of another host's ring: same sequence numbers, same order.
    Mirror(mirror::Args),
    /// Show a ring's layout, head, producer and readers.
    Stat(stat::Args),
    /// Print a ring's records as they come; a published feed's decoded.
    Tail(tail::Args),
    /// Publish at a fixed rate for a fixed time, never wait, and say what came through a ring and its mirror, and when.
    ///
    /// Without a verb everything runs in one command on this host: a source ring, and with --mirror a server, a mirror and
    /// the reader of its ring; without, the ring alone. The producer never waits: late against its own schedule, it publishes
    /// at once, and the report says how late it was. Delivery counts from the mirror's first record: what was published before
    /// it joined is history.
    ///
    /// Exit codes: 0 all came, in order; 1 something was lost without a gap, came out of order or damaged; 3 records are
    /// missing, and a gap or a lapped count says so; 2 usage; 4 host, or stopped early, or a reader that told nothing.
    Stress(stress::Args),
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Mirror(args) => mirror::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Tail(args) => tail::run(args),
        Command::Stress(args) => stress::run(args),
    }
}

/// A ring that cannot be opened is the host's matter; its path and the reason are in the message.
fn failure(error: RingError) -> Failure {
    Failure::host(error.to_string())
}
