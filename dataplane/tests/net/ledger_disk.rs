//! Retention on a file system that is really full: a small tmpfs in a mount namespace of its own.
//!
//! Inside the namespace runs this test binary again, told by an environment variable; when it ends, the mount is gone.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common;
use crate::common::archives::{Kit, keeper, ledger, settings};

const PART: &str = "SLUICE_DISK_PART";

#[test]
fn a_full_file_system_is_written_again_when_there_is_space() {
    let path = tempfile::tempdir().expect("a directory");
    let allowed = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return common::skip("no mount namespace for this user (unshare --mount)", false);
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command
        .arg("mount -t tmpfs -o size=12m tmpfs \"$1\" && exec \"$0\" --exact ledger_disk::plays_its_part --nocapture");
    command.arg(std::env::current_exe().expect("a test binary")).arg(path.path()).env(PART, path.path());
    let output = command.output().expect("unshare runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("wrote on"), "{said}");
}

/// Not a test by itself: what runs in the namespace.
#[test]
fn plays_its_part() {
    let Some(path) = std::env::var_os(PART) else { return };
    let path = Path::new(&path);
    let ballast = path.join("ballast");
    fs::write(&ballast, vec![1; 10 << 20]).expect("there is room");
    let mut keep = settings(path, 1);
    keep.keeper = keeper(60);
    let (mut kit, _) = Kit::open(&keep);
    let mut sequence = 0;
    // 2 MiB are left, and sixty ledgers are twice as much.
    kit.until("the disk is full", |kit| {
        if kit.hub.memory_bytes() < 3 << 20 {
            sequence += 1;
            kit.put(sequence, &ledger(sequence));
        }
        kit.archive.counters().no_space >= 3
    });
    assert!(kit.hub.memory_bytes() > 0, "served from memory meanwhile");
    assert_eq!(kit.hub.bounds().1, sequence);
    fs::remove_file(&ballast).expect("removed");
    kit.settle();
    let (oldest, latest) = kit.hub.bounds();
    for sequence in oldest..=latest {
        assert_eq!(kit.replay(sequence).expect("read"), ledger(sequence));
    }
    kit.close();
    let (mut kit, opened) = Kit::open(&settings(path, latest + 1));
    assert_eq!((kit.hub.bounds(), opened.torn.len()), ((oldest, latest), 0));
    for sequence in oldest..=latest {
        assert_eq!(kit.replay(sequence).expect("read"), ledger(sequence));
    }
    kit.close();
    println!("wrote on after {sequence}");
}
