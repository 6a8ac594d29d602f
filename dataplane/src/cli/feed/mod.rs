//! `sluice feed`: look at, cut, generate and play feeds.
//!
//! May use: every library module. Never does: more than parse, call and print.

use super::Outcome;

pub mod arbitrate;
pub mod decode;
pub mod gaps;
pub mod generate;
pub mod live;
pub mod play;
pub mod replay;
pub(crate) mod segments;
pub mod split;

/// The verbs of `sluice feed`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Report gaps, duplicates and reordering of every stream in capture files.
    Gaps(gaps::Args),
    /// Fan one capture out into A and B with seeded loss and delay, and a truth file.
    Split(split::Args),
    /// Merge the A and B captures of one feed and report what was lost on both.
    Arbitrate(arbitrate::Args),
    /// Replay a capture from memory through the pipeline and time each stage.
    Replay(replay::Args),
    /// Decode every message of a capture, one row a message.
    Decode(decode::Args),
    /// Write a deterministic, spec-true DEEP or TOPS session as pcapng.
    Generate(generate::Args),
    /// Send a capture's frames out of an interface.
    Play(play::Args),
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Gaps(args) => gaps::run(args),
        Command::Split(args) => split::run(args),
        Command::Arbitrate(args) => arbitrate::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Decode(args) => decode::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Play(args) => play::run(args),
    }
}
