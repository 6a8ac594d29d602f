//! `cargo xtask WORD`: everything a developer does here beyond `cargo build` and `cargo test`, one word each.
//!
//! One enum, one file per task; each task says what it does and what it runs.
// A developer's tool may read the wall clock; the product reads it in `sys::clock` alone.
#![allow(clippy::disallowed_methods)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod bpf;
mod deep;
mod demo;
mod deny;
mod dist;
mod docs;
mod fetch;
mod golden;
mod install;
mod machine;
mod net;
mod page;
mod setup;
mod shell;
mod sim;
mod test;
mod tidy;

/// What a developer does here beyond `cargo build` and `cargo test`.
#[derive(Parser)]
#[command(name = "cargo xtask", about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Name what this machine lacks for building and testing, and install it.
    Setup,
    /// Build the XDP program; with --check, prove that the committed object is what the sources build.
    Bpf {
        /// Change nothing; fail when the committed object is not what the sources build.
        #[arg(long)]
        check: bool,
    },
    /// Run the whole pipeline once on this machine and print what came out.
    Demo(demo::Args),
    /// Everything that must hold before a change lands. Needs root for the part that makes network namespaces.
    Test,
    /// Hold the rules that no compiler holds: module borders, unsafe, heads, top level, generated pages.
    Tidy,
    /// Run the seeded simulators in release mode, all or those whose name contains NAME.
    Sim(sim::Args),
    /// Run the tests that need root, all or those whose name contains NAME.
    Net(net::Args),
    /// Run the benchmarks, all or those whose name contains NAME.
    Bench(bench::Args),
    /// Write the generated pages under docs/reference, all or those whose name contains NAME.
    Docs(docs::Args),
    /// Bring one day of IEX HIST into data/.
    Fetch(fetch::Args),
    /// Cut a fixture from a capture and make its golden with a foreign decoder.
    Golden(golden::Args),
    /// Build a release: the Debian package, the tarball, their sums.
    Dist(dist::Args),
    /// Install the package into a bare Debian root as docs/operating/install.md says, and run its unit's command there.
    Install(install::Args),
    /// Judge the dependencies: licences, sources, doubles, known vulnerabilities.
    Deny(deny::Args),
    /// What is long or needs nightly: loom, Miri, 100,000 seeds, fuzzing. Records each run in docs/.
    Deep(deep::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Setup => setup::run(),
        Task::Bpf { check } => bpf::run(check),
        Task::Demo(args) => demo::run(args),
        Task::Test => test::run(),
        Task::Tidy => tidy::run(),
        Task::Sim(args) => sim::run(args),
        Task::Net(args) => net::run(args),
        Task::Bench(args) => bench::run(args),
        Task::Docs(args) => docs::run(args),
        Task::Fetch(args) => fetch::run(args),
        Task::Golden(args) => golden::run(args),
        Task::Dist(args) => dist::run(args),
        Task::Install(args) => install::run(args),
        Task::Deny(args) => deny::run(args),
        Task::Deep(args) => deep::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
