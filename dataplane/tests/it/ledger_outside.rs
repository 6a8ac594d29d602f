//! A program outside of the workspace that depends on the library to follow ledgers, and on nothing else of it.

use std::path::PathBuf;

use crate::common::ledger_server::LedgerServer;
use crate::ring_outside::{cargo, output, packages, write_crate};

/// Packages that such a program builds at most, itself not counted: zstd with what compiles it, the WebSocket header codec
/// with its random numbers, SHA-1, httparse, and the macros behind error types.
const PACKAGES_MAX: usize = 40;

const PROGRAM: &str = r#"
use sluice::ledger::follow::{FollowSettings, Follower};
use sluice::ledger::query::Range;

fn main() {
    let url = std::env::args().nth(1).expect("a URL");
    let range = Range::new(3, Some(4)).expect("a range");
    let mut follower = Follower::new(&url, range, FollowSettings::default()).expect("a follower");
    while let Some(received) = follower.next().expect("a verified ledger") {
        println!("{} {}", received.ledger.sequence, received.ledger.bytes.len());
    }
}
"#;

#[test]
fn an_outside_follower_builds_no_kernel_crate() {
    let library = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("room");
    write_crate(folder.path(), &library, "ledger-client", PROGRAM);
    packages(folder.path(), PACKAGES_MAX);
    let server = LedgerServer::start();
    (3..=5).for_each(|sequence| server.publisher().ledger(sequence, &vec![7; 1000 * sequence as usize]));
    let mut run = cargo(folder.path());
    run.args(["run", "--offline", "--quiet", "--", &server.url()]);
    // Its own: this test runs under a cargo that holds the workspace's.
    let program = output(run.env("CARGO_TARGET_DIR", folder.path().join("target")));
    assert_eq!(program, "3 3000\n4 4000\n");
}
