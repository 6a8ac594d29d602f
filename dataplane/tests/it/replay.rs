//! `sluice feed replay`: passes join, both sides of the arbiter agree, bad arguments are refused.

use std::process::{Command, Output};

use serde_json::Value;

use crate::common;

fn replay(file: &std::path::Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["feed", "replay"]).arg(file).args(args).output().expect("it runs")
}

fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Three passes over a file are one stream without a gap: every message of every pass comes out of the arbiter once.
fn joins(file: &std::path::Path, packets: u64, messages: u64) {
    let output = replay(file, &["--loops", "3", "--arbiter", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let core = &report["cores"][0];
    assert_eq!(core["packets"], 3 * packets, "{report}");
    assert_eq!(core["messages"], 3 * messages, "{report}");
    assert_eq!(core["gaps"], 0, "{report}");
    assert_eq!(core["emitted"], 3 * messages, "{report}");
}

#[test]
fn passes_over_the_fixtures_join() {
    for name in ["deep-2000.pcapng.gz", "tops-2000.pcapng.gz"] {
        let decoded = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["feed", "decode"])
            .arg(fixture(name))
            .output()
            .expect("it runs");
        let messages = decoded.stdout.iter().filter(|&&byte| byte == b'\n').count() as u64 - 1;
        joins(&fixture(name), 2_000, messages);
    }
}

/// Its two restarts inside the session are laid end to end.
#[test]
fn passes_over_a_capture_with_restarts_join() {
    let Some(data) = common::data() else { return };
    joins(&data.join("iex/DEEP10.first-7884.pcap.gz"), 7_884, 76_770);
}

#[test]
fn a_rate_is_kept_and_told_with_percentiles() {
    let output = replay(&fixture("deep-2000.pcapng.gz"), &["--rate", "20k", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let core = &report["cores"][0];
    assert!(
        core["seconds"].as_f64().is_some_and(|seconds| seconds > 0.09),
        "2,000 packets at 20k/s take 0.1 s: {report}"
    );
    assert!(core["latency_ns"]["p99"].as_f64().is_some_and(|p99| p99 > 0.0), "{report}");
}

#[test]
fn what_cannot_be_replayed_is_refused_with_a_reason() {
    for (args, part) in [
        (&["--cores", "0"][..], "--cores 0"),
        (&["--loops", "0"][..], "--loops 0"),
        (&["--protocol", "moldudp64"][..], "--protocol"),
        (&["--rate", "fast"][..], "rate"),
    ] {
        let file = if args[0] == "--protocol" { fixture("no-such-file") } else { fixture("deep-2000.pcapng.gz") };
        let output = replay(&file, args);
        assert!(!output.status.success(), "{args:?}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(part) || told.contains("no-such-file"), "{args:?}: {told}");
    }
}
