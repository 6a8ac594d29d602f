//! `cargo xtask test`: everything that must hold before a change lands, in the order in which it fails soonest.
//!
//! Each step is named and timed. What a test skips it says with a line `SKIPPED name: reason`; those are counted and
//! listed at the end. The last line is `N passed, N failed, N skipped` over all test binaries.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::machine::cpu_times;
use crate::{bench, shell};

/// What test binaries said of themselves.
#[derive(Default)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// The `SKIPPED …` lines, without that word.
    pub skipped: Vec<String>,
    /// Whether the command ended with 0.
    pub success: bool,
}

/// Lines of a quiet step's output that are kept to be shown should it fail. A panic with its backtrace and the list
/// of failed tests fit; the whole output lies in the log.
const TAIL_LINES: usize = 200;

struct Run {
    tally: Tally,
    times: Vec<(&'static str, Duration)>,
}

/// Runs the task.
pub fn run() -> Result<(), String> {
    let (started, before) = (Instant::now(), cpu_times());
    let mut run = Run { tally: Tally::default(), times: Vec::new() };
    let result = steps(&mut run);
    println!();
    for (name, time) in &run.times {
        println!("{name:<12} {:>7.1} s", time.as_secs_f64());
    }
    println!("{:<12} {:>7.1} s", "all", started.elapsed().as_secs_f64());
    if result.is_err() {
        // A host that took the CPUs away explains a bound that was missed.
        // In ticks of 10 ms.
        let stolen = cpu_times().0.saturating_sub(before.0) as f64 / 100.0;
        println!("CPU time stolen by the host meanwhile: {stolen:.1} s");
    }
    for line in &run.tally.skipped {
        println!("SKIPPED {line}");
    }
    let (passed, skipped) = (run.tally.passed, run.tally.skipped.len());
    // A step that failed without a failed test (format, clippy, a build) still counts as one failure.
    let failed = run.tally.failed.max(u64::from(result.is_err()));
    match skipped {
        0 => println!("{passed} passed, {failed} failed"),
        _ => println!("{passed} passed, {failed} failed, {skipped} skipped"),
    }
    std::io::stdout().flush().ok();
    result
}

fn steps(run: &mut Run) -> Result<(), String> {
    run.step("setup", |_| crate::setup::ensure())?;
    let root = crate::install::ahead();
    run.step("format", |_| shell::run(&mut shell::cargo(&["fmt", "--all", "--check"])))?;
    run.step("clippy", |_| {
        let args = ["clippy", "--quiet", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
        shell::run(&mut shell::cargo(&args))
    })?;
    run.step("features", |_| features())?;
    run.step("tidy", |_| crate::tidy::run())?;
    // Nothing else runs beside tests.
    run.step("bare root", |_| root.join().map_err(|_| "the thread that makes it panicked".into()))?;
    run.step("unit", |tally| cargo_test(tally, &["--workspace", "--lib", "--bins"], &[]))?;
    run.step("it", |tally| cargo_test(tally, &["-p", "sluice", "--test", "it"], &[]))?;
    run.step("sim", |tally| cargo_test(tally, &["-p", "sluice", "--test", "sim"], &[]))?;
    run.step("page", |tally| cargo_test(tally, &["-p", "sluice", "--test", "page"], &["--test-threads=1"]))?;
    run.step("doc", |tally| cargo_test(tally, &["--workspace", "--doc"], &[]))?;
    run.step("net", net)?;
    run.step("bpf --check", bpf_check)?;
    run.step("tune", tune)?;
    run.step("deny", crate::deny::step)?;
    run.step("install", crate::install::step)?;
    run.step("bench smoke", |_| match bench::targets()?.is_empty() {
        true => Ok(()),
        false => shell::run(&mut shell::cargo(&["test", "--quiet", "-p", "sluice", "--all-features", "--benches"])),
    })
}

/// Sets of features of the library that hold the others and are built by themselves; `ring` and `ledger-client` are by the tests of
/// outside consumers.
const FEATURES: [&str; 3] = ["capture", "mirror", "ledger"];

/// The library as a program takes it that wants one job: with all features at once a missing one does not show.
fn features() -> Result<(), String> {
    FEATURES.iter().try_for_each(|feature| {
        let args = ["clippy", "--quiet", "-p", "sluice", "--lib", "--no-default-features", "--features", feature];
        shell::run(shell::cargo(&args).args(["--", "-D", "warnings"]))
    })
}

impl Run {
    fn step(&mut self, name: &'static str, body: impl FnOnce(&mut Tally) -> Result<(), String>) -> Result<(), String> {
        println!("── {name}");
        let started = Instant::now();
        let result = body(&mut self.tally);
        let time = started.elapsed();
        self.times.push((name, time));
        match result {
            Ok(()) => {
                println!("   {name}: ok, {:.1} s", time.as_secs_f64());
                Ok(())
            }
            Err(reason) => Err(format!("step {name}: {reason}")),
        }
    }
}

/// The net tests as root; counted as skipped, by name, for anybody else, and a failure in CI.
fn net(tally: &mut Tally) -> Result<(), String> {
    if shell::is_root() {
        return cargo_test(tally, &["-p", "sluice", "--test", "net"], &["--test-threads=1"]);
    }
    if shell::is_ci() {
        return Err("under CI=true the net tests may not be skipped: run as root".into());
    }
    let mut list = shell::cargo(&["test", "--quiet", "-p", "sluice", "--all-features", "--test", "net", "--"]);
    let names = shell::output(list.args(["--list", "--format=terse"]))?;
    let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
    tally.skipped.extend(names.map(|name| format!("net {name}: needs root")));
    Ok(())
}

/// The tuning script's own test, over a root that it makes.
fn tune(tally: &mut Tally) -> Result<(), String> {
    shell::run(shell::command("sh").arg("deploy/tune/test.sh"))?;
    tally.passed += 1;
    Ok(())
}

/// As a program of its own, so that what it skips is read like any other step's.
fn bpf_check(tally: &mut Tally) -> Result<(), String> {
    let xtask = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let one = stream(shell::command(xtask).args(["bpf", "--check"]), true)?;
    tally.skipped.extend(one.skipped);
    one.success.then_some(()).ok_or_else(|| "the committed object is not proved".into())
}

/// One `cargo test`, quiet unless it fails.
fn cargo_test(tally: &mut Tally, what: &[&str], harness: &[&str]) -> Result<(), String> {
    let mut cargo = shell::cargo(&["test", "--all-features"]);
    // --show-output, because a passing test's SKIPPED line is captured otherwise.
    cargo.args(what).args(["--", "--show-output"]).args(harness);
    let one = stream(&mut cargo, false)?;
    tally.passed += one.passed;
    tally.failed += one.failed;
    tally.skipped.extend(one.skipped);
    one.success.then_some(()).ok_or_else(|| format!("\"{}\" failed", shell::shown(&cargo)))
}

/// Runs a command that runs test binaries and reads its output as it comes. `verbose` passes everything on; else only
/// the binaries' names and results are, and the tail when the command fails.
pub fn stream(cargo: &mut Command, verbose: bool) -> Result<Tally, String> {
    let line = shell::shown(cargo);
    eprintln!("$ {line}");
    let mut child = cargo
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Builds and "Running …" lines go to the terminal as they are.
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| format!("cannot start \"{line}\": {error}"))?;
    let mut tally = Tally::default();
    let mut tail = std::collections::VecDeque::new();
    for line in BufReader::new(child.stdout.take().expect("stdout is piped")).split(b'\n') {
        let line = line.map_err(|error| format!("reading a test's output: {error}"))?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let result = tally.read(&line);
        match verbose || result {
            true => println!("{line}"),
            false => {
                tail.push_back(line);
                if tail.len() > TAIL_LINES {
                    tail.pop_front();
                }
            }
        }
    }
    tally.success = child.wait().map_err(|error| format!("\"{line}\": {error}"))?.success();
    if !tally.success {
        tail.iter().for_each(|line| println!("{line}"));
    }
    Ok(tally)
}

impl Tally {
    /// Takes in one line; whether it is a binary's result.
    fn read(&mut self, line: &str) -> bool {
        // With --nocapture the line can stand behind the harness's own "test name ... ".
        if let Some((_, skipped)) = line.split_once("SKIPPED ") {
            let skipped = skipped.trim().to_string();
            if !self.skipped.contains(&skipped) {
                self.skipped.push(skipped);
            }
        }
        let Some(result) = line.strip_prefix("test result: ") else { return false };
        let count = |word: &str| {
            result
                .split(['.', ';'])
                .find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        self.passed += count("passed");
        self.failed += count("failed");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_skips_are_read() {
        let mut tally = Tally::default();
        assert!(!tally.read("running 3 tests"));
        assert!(!tally.read("test it::a ... ok"));
        assert!(
            tally.read("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0s")
        );
        assert!(tally.read("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out"));
        assert!(!tally.read("SKIPPED golden::all: no data at x"));
        assert!(!tally.read("test golden::all ... SKIPPED golden::all: no data at x"));
        assert_eq!((tally.passed, tally.failed), (4, 2));
        assert_eq!(tally.skipped, ["golden::all: no data at x"]);
    }
}
