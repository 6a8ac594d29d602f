//! The command line: noun, then verb; one file per command.
//!
//! May use: every other module. Never does: work that a library user would want (it only parses, calls and prints).

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod appliance;
pub mod check;
pub mod config_page;
pub mod doctor;
pub mod explain;
pub mod feed;
mod fields;
pub mod findings;
pub mod here;
pub mod ledger;
mod lines;
pub mod log;
pub mod metrics;
mod output;
pub mod pages;
pub mod panics;
pub mod places;
pub mod privileges;
pub mod quality;
pub mod rates;
pub mod reference;
pub mod reload;
pub mod report;
pub mod ring;
pub mod run;
pub mod stat;
pub mod store;
pub mod sums;
pub mod tables;
pub mod top;
pub mod top_view;
pub mod topology;

/// What a command ends with (docs/runbooks/README.md tells what to do at each).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// A difference was found.
    Difference = 1,
    /// Usage or configuration.
    Usage = 2,
    /// Done, with damage reported.
    Damage = 3,
    /// Host or permission.
    Host = 4,
    /// A bug of ours.
    Internal = 5,
}

/// A failed command: one line for the user, and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// What goes to standard error.
    pub message: String,
    /// The exit code.
    pub exit: Exit,
}

impl Failure {
    /// A usage or configuration error.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), exit: Exit::Usage }
    }

    /// A host or permission error.
    pub fn host(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), exit: Exit::Host }
    }
}

/// What every command returns.
pub type Outcome = Result<Exit, Failure>;

/// sluice: capture, ring and ledger dataplane on pinned cores.
#[derive(Parser, Debug)]
#[command(name = "sluice", version, about, long_about = None)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start the appliance.
    Run(run::Args),
    /// Find everything that run would refuse in a configuration; no root needed.
    Check(check::Args),
    /// Judge whether this host, or a captured one, is fit for a configuration; changes nothing.
    Doctor(doctor::Args),
    /// Show the live counters of a running appliance.
    Stat(stat::Args),
    /// Print the data-quality report of a day, per feed.
    Report(report::Args),
    /// Watch a running appliance in this terminal: rates, books, sides, stores, rings, ledgers, health.
    Top(top::Args),
    /// Look at, cut, generate and play feeds.
    #[command(subcommand)]
    Feed(feed::Command),
    /// Look at, search, verify, export and prune a store.
    #[command(subcommand)]
    Store(store::Command),
    /// Serve, mirror, show and test shared-memory rings.
    #[command(subcommand)]
    Ring(ring::Command),
    /// Serve, follow, measure, export and import ledgers.
    #[command(subcommand)]
    Ledger(ledger::Command),
    /// Print a generated reference page.
    #[command(name = "__reference", hide = true)]
    Reference(reference::Args),
}

/// Parses the process's arguments, runs the command, prints its failure.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    panics::install();
    log::start_with(match &cli.command {
        Command::Ledger(command) => command.log_filter(),
        _ => None,
    });
    let outcome = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Report(args) => report::run(args),
        Command::Top(args) => top::run(args),
        Command::Feed(command) => feed::run(command),
        Command::Ring(command) => ring::run(command),
        Command::Store(command) => store::run(command),
        Command::Ledger(command) => ledger::run(command),
        Command::Reference(args) => reference::run(args),
    };
    log::flush();
    match outcome {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) => {
            // The exit code tells even where nobody reads.
            let _ = writeln!(std::io::stderr(), "sluice: {}", failure.message);
            ExitCode::from(failure.exit as u8)
        }
    }
}
