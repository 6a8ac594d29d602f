//! `sluice ledger`: serve and follow a stream of ledgers, measure it, take retained ones out and put others in.
//!
//! May use: every library module. Never does: more than parse, call and print.

use super::Outcome;

pub mod bench;
mod consumer;
pub mod export;
pub mod follow;
pub mod import;
pub mod serve;
mod server;

/// The verbs of `sluice ledger`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Stream ledgers from a source to subscribers while they are emitted, and keep them.
    Serve(Box<serve::Args>),
    /// Follow a ledger server: verify each ledger, then print, store or pass it on.
    Follow(follow::Args),
    /// Measure how long after its last byte a ledger is verified at a client.
    Bench(Box<bench::Args>),
    /// Write retained ledgers to plain files or into a data lake.
    Export(export::Args),
    /// Read plain files, a data lake or a meta stream into a retention directory.
    Import(import::Args),
}

impl Command {
    /// The filter that the log begins with; none: as the environment says.
    pub fn log_filter(&self) -> Option<&'static str> {
        match self {
            Command::Serve(args) => args.log_filter(),
            _ => None,
        }
    }
}

/// Runs one verb.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Follow(args) => follow::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
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
