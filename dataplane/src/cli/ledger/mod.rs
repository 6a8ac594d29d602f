//! `sluice ledger`: follow a stream of ledgers, take retained ones out and put others in.
//!
//! May use: every library module. Never does: more than parse, call and print.

use super::Outcome;

<<<<<<< HEAD
pub mod bench;
mod consumer;
pub mod follow;
pub mod serve;
=======
pub mod export;
pub mod follow;
pub mod import;
>>>>>>> retain

/// The verbs of `sluice ledger`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Follow a ledger server: verify each ledger, then print, store or pass it on.
    Follow(follow::Args),
<<<<<<< HEAD
    /// Measure how long after its last byte a ledger is verified at a client.
    Bench(Box<bench::Args>),
=======
    /// Write retained ledgers to plain files or into a data lake.
    Export(export::Args),
    /// Read plain files, a data lake or a meta stream into a retention directory.
    Import(import::Args),
>>>>>>> retain
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Follow(args) => follow::run(args),
<<<<<<< HEAD
        Command::Bench(args) => bench::run(*args),
=======
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
>>>>>>> retain
    }
}

/// A bar over ledgers; it draws only on a terminal.
fn progress_bar(length: u64) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(length);
    let text = if length == 0 { "{spinner} {pos} ledgers, {msg}" } else { "{wide_bar} {pos}/{len} ledgers {eta}" };
    if let Ok(style) = indicatif::ProgressStyle::with_template(text) {
        bar.set_style(style);
    }
    bar
}
