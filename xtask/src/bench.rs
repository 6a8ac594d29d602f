//! `cargo xtask bench [NAME]`: the benchmarks, optimised, on an otherwise idle machine.

use std::path::Path;

use crate::shell;

mod ab;
mod figures;
mod peers;
mod plot;
mod stats;

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    between: Option<Between>,
    /// Only the benchmarks whose name contains this: a whole file (`packet`, `store`, `ring`, `ring-mirror`), a part of
    /// ring-mirror (`ring-even-rates`, `ring-parked`, `ring-hub`, `ring-ladder`), or a part of a criterion file. "figures": every figure
    /// that has a target, beside its target, recorded in bench/results when the machine is idle.
    name: Option<String>,
    /// Of the figures only this part: packet, arbiter, pipeline, replay, xdp, disk, query, live, ring, ring-mirror, ledger-targets,
    /// ledger-windows, ledger-crowd, ledger-replay, ledger-stretch.
    part: Option<String>,
    /// Run each once, small, to see that it still works; measures nothing.
    #[arg(long)]
    smoke: bool,
}

/// Comparisons.
#[derive(clap::Subcommand)]
enum Between {
    /// Compare two commits in one session: built in worktrees of their own, run in turns.
    Ab(ab::Args),
    /// Compare with what Debian and the crate registry offer: side by side, shuffled, with an A/A control. Needs root.
    Peers(peers::Args),
}

/// Runs the task. A name that is a benchmark file's name runs that file; any other name filters in all files.
pub fn run(args: Args) -> Result<(), String> {
    match args.between {
        Some(Between::Ab(args)) => return ab::run(args),
        Some(Between::Peers(args)) => return peers::run(args),
        None => {}
    }
    if args.name.as_deref() == Some("figures") {
        return figures::run(args.part.as_deref());
    }
    let targets = targets()?;
    let mut cargo = match args.smoke {
        // In the test profile: what the tests have built already.
        true => shell::cargo(&["test", "-p", "sluice", "--all-features"]),
        false => shell::cargo(&["bench", "-p", "sluice"]),
    };
    let name = args.name.as_deref();
    if let Some(part) = name.and_then(part_of_ring_mirror) {
        return shell::run(cargo.args(["--bench", RING_MIRROR, "--", part]));
    }
    match name {
        Some(name) if targets.iter().any(|target| target == name) => cargo.args(["--bench", name]),
        _ => cargo.arg("--benches"),
    };
    if let Some(name) = name.filter(|name| !targets.iter().any(|target| target == name)) {
        cargo.arg("--").arg(name);
    }
    shell::run(&mut cargo)
}

/// The file that measures mirrors, and its parts that have a name of their own.
const RING_MIRROR: &str = "ring-mirror";
const RING_PARTS: [&str; 4] = ["even-rates", "parked", "hub", "ladder"];

/// `ring-ladder` is the part `ladder`.
fn part_of_ring_mirror(name: &str) -> Option<&str> {
    name.strip_prefix("ring-").filter(|part| RING_PARTS.contains(part))
}

/// The benchmark files that the package names.
pub fn targets() -> Result<Vec<String>, String> {
    let benches = benches(&shell::root())?;
    Ok(benches.iter().filter_map(|bench| Some(bench.get("name")?.as_str()?.to_string())).collect())
}

/// What the package of a tree says of its benchmarks.
fn benches(tree: &Path) -> Result<Vec<toml::Value>, String> {
    let path = tree.join("dataplane/Cargo.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let manifest: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(manifest.get("bench").and_then(toml::Value::as_array).cloned().unwrap_or_default())
}

/// One benchmark file.
struct Bench {
    features: Vec<String>,
    /// Measures with criterion; else it is a program that says its figures itself.
    criterion: bool,
}

/// The benchmark `name` of a tree.
fn bench_of(tree: &Path, name: &str) -> Result<Bench, String> {
    let benches = benches(tree)?;
    let found = benches.iter().find(|bench| bench.get("name").and_then(toml::Value::as_str) == Some(name));
    let Some(found) = found else {
        let names: Vec<&str> = benches.iter().filter_map(|bench| bench.get("name")?.as_str()).collect();
        return Err(format!("no benchmark is named \"{name}\": {}", names.join(", ")));
    };
    let features = found.get("required-features").and_then(toml::Value::as_array).into_iter().flatten();
    let features = features.filter_map(|feature| Some(feature.as_str()?.to_string())).collect();
    Ok(Bench { features, criterion: found.get("path").is_none() })
}
