//! The log of a real `sluice run`: its level and its form are the configuration's, and the environment stays above it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use crate::common::mirrors::{Sluice, tcp_address, until};

/// A configuration with these lines in `[control]`. Its store has no feed, which is no reason not to run.
fn configuration(folder: &Path, lines: &str) -> PathBuf {
    let shown = folder.display();
    let text = format!(
        "[[core]]\nname = \"all\"\ncpu = 0\n[[store]]\nname = \"main\"\npath = \"{shown}/store\"\ncore = \"all\"\n\
         segment = \"16MiB\"\ndirect = false\n[ledger.serve]\ncore = \"all\"\nlisten = \"{}\"\ndata_dir = \"{shown}/ledgers\"\n\
         segment_bytes = \"16MiB\"\n[control]\nlisten = \"127.0.0.1:0\"\n{lines}\n",
        tcp_address()
    );
    let path = folder.join("sluice.toml");
    std::fs::write(&path, text).expect("writes");
    path
}

/// Standard error of a short run with these lines in `[control]`.
fn log_of(lines: &str, variable: Option<&str>) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = configuration(folder.path(), lines);
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.env_remove("SLUICE_LOG").envs(variable.map(|value| ("SLUICE_LOG", value)));
    let output =
        command.args(["run", path.to_str().expect("ASCII"), "--for", "200ms", "--json"]).output().expect("starts");
    let log = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{log}");
    log.lines().map(String::from).collect()
}

#[test]
fn level_and_form_are_the_configurations() {
    let json = log_of("", None);
    let parsed: Vec<serde_json::Value> = json.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(parsed.iter().any(|line| line["fields"]["message"] == "draining" && line["level"] == "INFO"), "{json:?}");
    let journal = log_of("log_format = \"journald\"", None);
    assert!(journal.iter().any(|line| line == "<6>draining ending=the time of --for is over"), "{journal:?}");
    assert!(journal.iter().all(|line| line.starts_with(['<'])), "{journal:?}");
    let text = log_of("log_format = \"text\"", None);
    assert!(text.iter().any(|line| line.contains(" INFO draining ending=the time of --for is over")), "{text:?}");
    let quiet = log_of("log = \"error\"", None);
    assert!(!quiet.iter().any(|line| line.contains("draining")), "{quiet:?}");
    let loud = log_of("log = \"error\"", Some("debug"));
    assert!(loud.iter().any(|line| line.contains("\"DEBUG\"")), "the environment stays above it: {loud:?}");
}

/// Standard error of a short run that goes to a file, of which `stream` makes what JOURNAL_STREAM says.
fn log_with_stream(lines: &str, stream: impl Fn(&File) -> String) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = configuration(folder.path(), lines);
    let log = File::create(folder.path().join("log")).expect("a log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.env_remove("SLUICE_LOG").env("JOURNAL_STREAM", stream(&log)).stderr(log);
    let output = command.args(["run", path.to_str().expect("ASCII"), "--for", "200ms"]).output().expect("starts");
    let log = std::fs::read_to_string(folder.path().join("log")).expect("text");
    assert!(output.status.success(), "{log}");
    log.lines().map(String::from).collect()
}

#[test]
fn lines_for_the_journal_have_their_level_before_them() {
    let own = |log: &File| {
        let told = log.metadata().expect("a file");
        format!("{}:{}", told.dev(), told.ino())
    };
    let journal = log_with_stream("", own);
    for line in &journal {
        let (level, json) = line.strip_prefix('<').and_then(|line| line.split_once('>')).expect(line);
        let json: serde_json::Value = serde_json::from_str(json).expect(line);
        let wanted = if json["level"] == "WARN" { "4" } else { "6" };
        assert_eq!(level, wanted, "{line}");
    }
    assert!(journal.iter().any(|line| line.starts_with("<6>{") && line.contains("draining")), "{journal:?}");
    // Who says what form he wants gets that form, and a stream that is another's changes nothing.
    let json = log_with_stream("log_format = \"json\"", own);
    let elsewhere = log_with_stream("", |_| "1:2".into());
    assert!(json.iter().chain(&elsewhere).all(|line| line.starts_with('{')), "{json:?} {elsewhere:?}");
}

#[test]
fn a_reload_says_what_the_environment_stands_above() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = configuration(folder.path(), "log = \"info\"");
    // It is started with SLUICE_LOG = debug.
    let running = Sluice::start(&["run", path.to_str().expect("ASCII")]);
    until("it runs", || running.log().contains("running; stop with").then_some(()));
    let text = std::fs::read_to_string(&path).expect("reads").replace("log = \"info\"", "log = \"error\"");
    std::fs::write(&path, text).expect("writes");
    running.signal(Signal::SIGHUP);
    until("it is told", || running.log().contains("SLUICE_LOG is set and stays above it").then_some(()));
    assert!(!running.log().contains("holds from now on"), "{}", running.log());
    assert_eq!(running.terminate(), Some(0));
}

#[test]
fn a_reload_refuses_a_bound_that_the_disk_cannot_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = configuration(folder.path(), "");
    let running = Sluice::start(&["run", path.to_str().expect("ASCII")]);
    until("it runs", || running.log().contains("running; stop with").then_some(()));
    let text = std::fs::read_to_string(&path).expect("reads");
    let with = |bound: &str| text.replace("direct = false", &format!("direct = false\nfree_min = \"{bound}\""));
    std::fs::write(&path, with("1000TiB")).expect("writes");
    running.signal(Signal::SIGHUP);
    let refused = "no deletion can reach that; lower it; the configuration so far stays";
    until("it is refused", || running.log().contains(refused).then_some(()));
    assert!(!running.log().contains("holds from now on"), "{}", running.log());
    std::fs::write(&path, with("1MiB")).expect("writes");
    running.signal(Signal::SIGHUP);
    until("another is taken", || running.log().contains("holds from now on").then_some(()));
    assert_eq!(running.terminate(), Some(0));
}
