//! The scripts of `bench/nic`, each in its shortest form on a veth pair: they run, their books balance, their result is whole.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::netns;

const LABEL: &str = "veth: software path, not a NIC";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/nic")
}

/// Whether there is a Python to run them with; says the skip otherwise.
fn python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|told| told.status.success());
    if !found {
        crate::common::skip("needs python3", true);
    }
    found
}

/// Runs a script; its result file, after everything that all results share was checked.
fn result_of(script: &str, args: &[&str]) -> Option<Value> {
    if !netns::can() || !python() {
        return None;
    }
    let out = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("python3");
    command.arg(folder().join(script)).args(["--veth", "--short", "--sluice", env!("CARGO_BIN_EXE_sluice"), "--out"]);
    let done = command.arg(out.path()).args(args).env("PYTHONDONTWRITEBYTECODE", "1").output().expect("python3 starts");
    let (told, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    // The generator check ends with 1 where the machine is too busy for one.
    let busy = script == "generator_check.py" && done.status.code() == Some(1);
    assert!(done.status.success() || busy, "{script}: {}\n{told}{error}", done.status);
    let files: Vec<PathBuf> =
        std::fs::read_dir(out.path()).expect("readable").map(|entry| entry.expect("an entry").path()).collect();
    let json = files.iter().find(|path| path.extension().is_some_and(|kind| kind == "json"));
    let json = json.unwrap_or_else(|| panic!("{script}: no result file: {files:?}\n{told}{error}"));
    assert_eq!(files.len(), 2, "the result, its hash, and nothing left behind: {files:?}");
    let result: Value = serde_json::from_str(&std::fs::read_to_string(json).expect("readable")).expect("JSON");
    whole(script, &result);
    Some(result)
}

/// What a reader needs to judge a result.
fn whole(script: &str, result: &Value) {
    assert_eq!(result["label"], LABEL, "{script}");
    for name in ["seed", "commit", "sluice", "began", "ended", "command_line", "steal_percent", "arguments"] {
        assert!(!result[name].is_null(), "{script}: no {name}");
    }
    for name in ["kernel", "cmdline", "mitigations", "microcode", "governor", "cpu"] {
        assert!(!result["host"][name].is_null(), "{script}: no host.{name}");
    }
    assert_eq!(result["interfaces"].as_array().expect("both ends").len(), 2, "{script}");
    let trials = result["trials"].as_array().expect("trials");
    assert!(!trials.is_empty(), "{script}: no trial");
    for trial in trials.iter().filter(|trial| !trial["found"].is_null()) {
        assert_eq!(trial["residue"], 0, "{script}: {}", trial["line"]);
        assert_eq!(trial["sound"], true, "{script}: {}", trial["line"]);
        assert!(!trial["books"].as_array().expect("books").is_empty(), "{script}");
        assert!(trial["interfaces"][0]["xdp"].is_string(), "{script}: the mode is not read back");
        let found = &trial["found"];
        let count = |name: &str| found[name].as_u64().expect("a count");
        assert_eq!(count("found") + count("missing"), count("sent"), "{script}: {found}");
        assert_eq!(count("wrong") + count("foreign") + count("duplicate"), 0, "{script}: {found}");
    }
}

#[test]
fn the_generator_is_checked_against_a_sink() {
    let Some(result) = result_of("generator_check.py", &[]) else { return };
    let check = &result["trials"][0];
    assert_eq!(check["asked"], 11_000, "110 % of the target");
    assert_eq!(check["arrived"], check["generator"]["sent"], "{}", check["line"]);
    assert!(check["ceiling"].as_f64().expect("a rate") > 11_000.0, "{}", check["line"]);
}

#[test]
#[ignore = "half a minute: cargo xtask deep scripts"]
fn the_rate_without_loss_is_searched() {
    let Some(result) = result_of("no_drop_rate.py", &[]) else { return };
    let summary = &result["summary"]["128"];
    assert!(summary["ndr"].is_object() && summary["pdr"].is_object(), "{summary}");
    let trials = result["trials"].as_array().expect("trials");
    // Where no trial was spoilt by the machine there is a figure, and it was soaked.
    if trials.iter().all(|trial| trial["valid"] == true) {
        assert_eq!(summary["ndr"]["runs"], 1, "{summary}");
        assert!(result["repeats"]["128"][0]["soak"].is_object() || summary["ndr"]["lowest"] == 0, "{result:#}");
    }
}

#[test]
fn bursts_climb_the_ladder() {
    let Some(result) = result_of("burst_ladder.py", &[]) else { return };
    let rungs = result["summary"]["128"]["rungs"].as_array().expect("rungs");
    assert_eq!(rungs.iter().map(|rung| rung["burst"].as_u64()).collect::<Vec<_>>(), [Some(100), Some(1_000)]);
}

#[test]
#[ignore = "half a minute: cargo xtask deep scripts"]
fn one_flow_and_many_are_measured() {
    let Some(result) = result_of("flows.py", &[]) else { return };
    let summary = result["summary"].as_object().expect("cells");
    assert_eq!(summary.len(), 3, "one flow, four flows, four flows with 80 % in one: {summary:?}");
    for (cell, found) in summary {
        let queues = found["frames_by_queue"].as_array().expect("queues");
        assert_eq!(queues.len(), 2, "{cell}");
    }
}

#[test]
#[ignore = "half a minute: cargo xtask deep scripts"]
fn queries_and_an_export_run_past_a_wrap() {
    let Some(result) = result_of("queries.py", &[]) else { return };
    assert_eq!(result["summary"]["wrapped"], true, "{}", result["trials"][0]["line"]);
    let latency = &result["summary"]["query_latency_us"]["first_record"];
    assert!(latency["count"].as_u64().expect("a count") > 2 && latency["p50"].is_number(), "{latency}");
}

#[test]
#[ignore = "half a minute: cargo xtask deep scripts"]
fn faults_leave_the_books_that_are_expected() {
    let Some(result) = result_of("faults.py", &[]) else { return };
    let summary = result["summary"].as_object().expect("faults");
    for fault in ["kill -9", "disk full", "one side dead", "SIGSTOP", "noisy neighbour"] {
        assert_eq!(summary[fault], "as expected", "{fault}: {summary:?}");
    }
    assert_eq!(summary.len(), 5, "the clock is stepped only if asked: {summary:?}");
}

#[test]
fn frames_are_judged_by_value() {
    if !python() {
        return;
    }
    python_test("test_frames.py");
}

#[test]
fn trex_profiles_build_the_frames_that_are_looked_for() {
    if !python() {
        return;
    }
    python_test("test_trex.py");
}

/// Runs a test file of the scripts' own.
fn python_test(name: &str) {
    let mut command = Command::new("python3");
    let done = command.arg(folder().join("tests").join(name)).env("PYTHONDONTWRITEBYTECODE", "1").output();
    let done = done.expect("python3 starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The captures of `cargo xtask bench peers`, small: ours twice, our stages, and what of Debian's tools is here.
#[test]
#[ignore = "half a minute: cargo xtask deep scripts"]
fn captures_stand_beside_one_another() {
    if !netns::can() || !python() {
        return;
    }
    let out = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("python3");
    command.arg(folder().join("../peers/capture.py")).args([
        "--veth",
        "--sluice",
        env!("CARGO_BIN_EXE_sluice"),
        "--out",
    ]);
    command.arg(out.path()).args(["--rates", "5k", "--seconds", "0.1", "--rounds", "1", "--refutations", "0"]);
    let done = command.env("PYTHONDONTWRITEBYTECODE", "1").output().expect("python3 starts");
    let (told, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{told}{error}");
    let trials: Vec<Value> =
        told.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("trial ")?).ok()).collect();
    for tool in ["sluice", "sluice again", "raw frames", "arbiter and index", "arbiter, index, published ring"] {
        let trial = trials.iter().find(|trial| trial["tool"] == tool).unwrap_or_else(|| panic!("no {tool}: {told}"));
        // A busy machine spoils a trial, by its pace or by steal; a tool that does not start is another thing.
        assert!(trial["found"].as_u64().is_some_and(|found| found > 0), "{tool}: {trial}");
    }
}
