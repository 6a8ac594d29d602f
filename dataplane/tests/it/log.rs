//! The log of a real `sluice run`: its level and its form are the configuration's, and the environment stays above it.

use std::process::Command;

use crate::common::mirrors::tcp_address;

/// Standard error of a short run with these lines in `[control]`. Its store has no feed, which is no reason not to run.
fn log_of(lines: &str, variable: Option<&str>) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let shown = folder.path().display();
    let text = format!(
        "[[core]]\nname = \"all\"\ncpu = 0\n[[store]]\nname = \"main\"\npath = \"{shown}/store\"\ncore = \"all\"\n\
         segment = \"16MiB\"\ndirect = false\n[ledger.serve]\ncore = \"all\"\nlisten = \"{}\"\ndata_dir = \"{shown}/ledgers\"\n\
         segment_bytes = \"16MiB\"\n[control]\nlisten = \"127.0.0.1:0\"\n{lines}\n",
        tcp_address()
    );
    let path = folder.path().join("sluice.toml");
    std::fs::write(&path, text).expect("writes");
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
    assert!(journal.iter().any(|line| line == "<6>draining ending=Time"), "{journal:?}");
    assert!(journal.iter().all(|line| line.starts_with(['<'])), "{journal:?}");
    let text = log_of("log_format = \"text\"", None);
    assert!(text.iter().any(|line| line.contains(" INFO draining ending=Time")), "{text:?}");
    let quiet = log_of("log = \"error\"", None);
    assert!(!quiet.iter().any(|line| line.contains("draining")), "{quiet:?}");
    let loud = log_of("log = \"error\"", Some("debug"));
    assert!(loud.iter().any(|line| line.contains("\"DEBUG\"")), "the environment stays above it: {loud:?}");
}
