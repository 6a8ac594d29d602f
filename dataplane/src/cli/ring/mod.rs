//! `sluice ring`: serve a ring to other hosts, and keep copies of other hosts' rings.
//!
//! May use: every library module. Never does: more than parse, call and print.

use super::Outcome;

mod live;
pub mod mirror;
pub mod serve;

/// The verbs of `sluice ring`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Serve a ring to mirrors on other hosts: TCP, UDP multicast, UDP unicast.
    Serve(serve::Args),
    /// Keep a copy of another host's ring: same sequence numbers, same order.
    Mirror(mirror::Args),
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Mirror(args) => mirror::run(args),
    }
}
