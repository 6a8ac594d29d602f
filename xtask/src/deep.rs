//! `cargo xtask deep [PART]`: what takes long or needs nightly. Each run is recorded in docs/deep-runs.md.
//!
//! Parts: `loom` (models of the lock-free parts), `miri` (undefined behaviour in what needs no kernel), `seeds` (the
//! simulators over 100,000 seeds), `fuzz` (each target for ten minutes), `dist` (the release package, built, installed into
//! a bare root and run), `scripts` (every script of bench/nic in its short form), `soak` (memory and descriptors of the whole
//! process over many rounds of load and faults).

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::shell;

/// Arguments of `cargo xtask deep`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the parts whose name contains this; without it all of them, one after the other.
    part: Option<String>,
    /// Minutes for each fuzz target.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Seeds for each simulation.
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
}

type Part = (&'static str, fn(&Args) -> Result<String, String>);

const PARTS: [Part; 7] = [
    ("loom", loom),
    ("miri", miri),
    ("seeds", seeds),
    ("fuzz", fuzz),
    ("dist", dist),
    ("scripts", scripts),
    ("soak", soak),
];

/// Runs the task. Every wanted part runs, whatever became of the one before.
pub fn run(args: Args) -> Result<(), String> {
    crate::setup::ensure()?;
    let wanted: Vec<&Part> =
        PARTS.iter().filter(|(name, _)| args.part.as_deref().is_none_or(|part| name.contains(part))).collect();
    if wanted.is_empty() {
        return Err("deep: the parts are loom, miri, seeds, fuzz, dist, scripts, soak".into());
    }
    let mut failed = Vec::new();
    for (name, part) in wanted {
        println!("── deep {name}");
        let started = Instant::now();
        let result = part(&args);
        let minutes = started.elapsed().as_secs_f64() / 60.0;
        let line = match &result {
            Ok(what) => format!("ok: {what}"),
            Err(why) => format!("FAILED: {why}"),
        };
        println!("deep {name}: {line}, {minutes:.1} min");
        record(name, &line, minutes)?;
        if result.is_err() {
            failed.push(*name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("deep: {} failed", failed.join(", "))) }
}

fn loom(_: &Args) -> Result<String, String> {
    let mut cargo = shell::cargo(&["test", "--release", "-p", "sluice", "--lib", "--", "::model::"]);
    // Its own folder: every crate is built again under this flag.
    cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", shell::root().join("target/loom"));
    cargo.env("LOOM_MAX_PREEMPTIONS", "3");
    tests(&mut cargo)
}

fn miri(_: &Args) -> Result<String, String> {
    need_nightly(
        "miri",
        &["miri", "--version"],
        "rustup toolchain install nightly --component miri --component rust-src",
    )?;
    // What needs no kernel: Miri runs no foreign code. The rings' own slices of memory run on the heap there.
    let mut cargo = shell::command("cargo");
    cargo.args(["+nightly", "miri", "test", "-p", "sluice", "--lib", "--", "units::", "sync::", "wire::", "feed::"]);
    cargo.args(["ring::raw::", "sys::shm::tests::rows_are_found_with_a_mask"]);
    cargo.args(["sys::shm::tests::nothing_outside_is_given_out"]);
    cargo.env_remove("RUSTUP_TOOLCHAIN").env("CARGO_TARGET_DIR", shell::root().join("target/miri"));
    cargo.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "8");
    tests(&mut cargo)
}

fn seeds(args: &Args) -> Result<String, String> {
    let mut cargo = shell::cargo(&["test", "--release", "-p", "sluice", "--test", "sim", "--", "--nocapture"]);
    cargo.env("SLUICE_SEEDS", args.seeds.to_string());
    Ok(format!("{} seeds each, {}", args.seeds, tests(&mut cargo)?))
}

fn fuzz(args: &Args) -> Result<String, String> {
    need_nightly("cargo-fuzz", &["fuzz", "--version"], "cargo install cargo-fuzz")?;
    let folder = shell::root().join("dataplane/fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut targets: Vec<String> =
        entries.flatten().filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_string())).collect();
    targets.sort();
    for target in &targets {
        let mut cargo = shell::command("cargo");
        cargo
            .current_dir(shell::root().join("dataplane"))
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO_TARGET_DIR");
        cargo.args(["+nightly", "fuzz", "run", target, "--", &format!("-max_total_time={}", args.minutes * 60)]);
        shell::run(&mut cargo)?;
    }
    Ok(format!("{} min each: {}", args.minutes, targets.join(", ")))
}

fn dist(_: &Args) -> Result<String, String> {
    let xtask = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    shell::run(shell::command(&xtask).arg("dist"))?;
    tests(shell::command(&xtask).args(["install", "--release"]))
}

fn scripts(_: &Args) -> Result<String, String> {
    let mut cargo = shell::cargo(&["test", "--all-features", "-p", "sluice", "--test", "net", "--", "bench_nic"]);
    tests(cargo.args(["--include-ignored", "--test-threads=1"]))
}

fn soak(_: &Args) -> Result<String, String> {
    let mut cargo = shell::cargo(&["test", "--all-features", "-p", "sluice", "--test", "net", "--", "soak"]);
    tests(cargo.args(["--include-ignored", "--test-threads=1", "--nocapture"]))
}

fn need_nightly(what: &str, probe: &[&str], install: &str) -> Result<(), String> {
    let has = shell::succeeds(shell::command("cargo").env_remove("RUSTUP_TOOLCHAIN").arg("+nightly").args(probe));
    has.then_some(()).ok_or_else(|| format!("{what} is not installed: \"{install}\""))
}

fn tests(cargo: &mut Command) -> Result<String, String> {
    let tally = crate::test::stream(cargo, true)?;
    let told = format!("{} passed, {} failed", tally.passed, tally.failed);
    match tally.success && tally.passed > 0 {
        true => Ok(told),
        false => Err(told),
    }
}

/// Adds a row to docs/deep-runs.md.
fn record(part: &str, result: &str, minutes: f64) -> Result<(), String> {
    let path = shell::root().join("docs/deep-runs.md");
    let head = "# Deep runs\n\nWritten by `cargo xtask deep`: what takes too long for every change.\n\n\
                | date | part | result | minutes | commit | host |\n| --- | --- | --- | --- | --- | --- |\n";
    let mut text = std::fs::read_to_string(&path).unwrap_or_else(|_| head.into());
    let one_line = |text: String| text.trim().replace(['|', '\n'], " ");
    let date = one_line(shell::output(shell::command("date").args(["-u", "+%Y-%m-%d"]))?);
    let commit =
        one_line(shell::output(shell::command("git").args(["rev-parse", "--short", "HEAD"])).unwrap_or_default());
    let result = one_line(result.to_string());
    text.push_str(&format!("| {date} | {part} | {result} | {minutes:.1} | {commit} | {} |\n", host()));
    shell::write(&path, &text)
}

/// CPUs and kernel: enough to read a time by.
fn host() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let release = std::fs::read_to_string(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    format!("{cpus} CPUs, Linux {}", release.trim())
}
