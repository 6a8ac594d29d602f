//! What the test binaries share: where the data lies, and how a skip is said and counted.
#![allow(dead_code)]

#[cfg(feature = "appliance")]
pub mod archives;
pub mod between;
pub mod fanout;
pub mod frames;
pub mod hosts;
pub mod ledger_server;
pub mod ledger_wire;
pub mod memory_queue;
pub mod memory_ring;
#[cfg(feature = "appliance")]
pub mod mirrors;
pub mod netns;
pub mod pipeline;
#[cfg(feature = "appliance")]
pub mod relays;
#[cfg(feature = "appliance")]
pub mod rings;

use std::path::PathBuf;

pub mod feed;

/// The shared data folder (`SLUICE_DATA`, else `../shared/data` from the project's root). `None` when it is absent:
/// the caller returns and the test counts as skipped; under `CI=true` absence is a failure.
pub fn data() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let path = std::env::var_os("SLUICE_DATA").map_or(root, PathBuf::from);
    if path.join("MANIFEST.tsv").is_file() {
        return Some(path);
    }
    skip(&format!("no data at {} (set SLUICE_DATA)", path.display()), true);
    None
}

/// Says that the running test is skipped, and why. `cargo xtask test` counts these lines. With `fatal_in_ci` the
/// same lack fails the test under `CI=true`.
pub fn skip(reason: &str, fatal_in_ci: bool) {
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!(ci && fatal_in_ci), "under CI=true this may not be missing: {reason}");
    eprintln!("SKIPPED {}: {reason}", std::thread::current().name().unwrap_or("?"));
}
