//! `sluice ledger bench --link`: a run across two network namespaces, and what is left of them afterwards, however it ends: nothing.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::netns::can;

const PATIENCE: Duration = Duration::from_secs(60);

fn command(folder: &Path, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["ledger", "bench", "--link"]).args(args.split_whitespace()).env("TMPDIR", folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The server's process: the one child of a run.
fn server_of(run: &Child) -> Option<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", run.id())).ok()?;
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    children.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()).next()
}

/// Whether a process has ended; one that nobody has waited for yet has.
fn is_gone(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Nothing of a run is in the namespace of whoever started it.
fn assert_nothing_left(folder: &Path) {
    for link in ["to-client", "to-server"] {
        assert!(!Path::new("/sys/class/net").join(link).exists(), "{link}");
    }
    let left: Vec<_> = std::fs::read_dir(folder).expect("readable").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_run_across_a_shaped_link_is_whole_and_leaves_nothing() {
    if !can() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // 2 MiB at 400 Mbit/s are 42 ms on the wire: raw ledgers stick out of a window of 5 ms by all that.
    let shape = "--count 5 --synthetic-size 2MiB --emit-window 5ms --synthetic-interval 200ms --verify --cpu --json";
    let output = command(folder.path(), &format!("400mbit {shape}")).output().expect("runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}", output.status);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["count"], &json["verified"], &json["replays"]), (&5.into(), &5.into(), &0.into()), "{json}");
    let delivery = json["delivery"]["p50"].as_i64().expect("stamped");
    assert!(delivery > 20_000_000, "the link is shaped: {delivery} ns");
    assert!(json["cpu_per_ledger"]["server_ns"].as_i64() > Some(0), "the other process is told apart: {json}");
    assert_nothing_left(folder.path());
}

#[test]
fn a_run_across_a_link_that_is_interrupted_or_killed_leaves_nothing() {
    if !can() {
        return;
    }
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut run = command(folder.path(), "1gbit --count 100000 --emit-window 1ms").spawn().expect("runs");
        let mut server = None;
        until("the server's process", || {
            server = server_of(&run);
            server.is_some()
        });
        std::thread::sleep(Duration::from_millis(500));
        let server = server.expect("found");
        kill(Pid::from_raw(run.id() as i32), signal).expect("it runs");
        until("the run's end", || run.try_wait().expect("waits").is_some());
        until("the server's end", || is_gone(server));
        if signal == Signal::SIGINT {
            let output = run.wait_with_output().expect("ended");
            let summary = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && summary.contains("interrupted"), "{output:?}");
        }
        until("the retained ledgers' end", || std::fs::read_dir(folder.path()).expect("readable").count() == 0);
        assert_nothing_left(folder.path());
    }
}
