//! `cargo xtask bench [NAME]`: the benchmarks, optimised, on an otherwise idle machine.

use crate::shell;

mod figures;

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Args {
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

/// Runs the task. A name that is a benchmark file's name runs that file; any other name filters in all files.
pub fn run(args: Args) -> Result<(), String> {
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
    let path = shell::root().join("dataplane/Cargo.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let manifest: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let benches = manifest.get("bench").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    Ok(benches.iter().filter_map(|bench| Some(bench.get("name")?.as_str()?.to_string())).collect())
}
