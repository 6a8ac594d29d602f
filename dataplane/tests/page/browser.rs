//! The status page in Debian's Chromium, driven through playwright-core (`drive.cjs` holds what is asserted).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::appliance::{Appliance, NAME};
use crate::common::skip;

/// Where `cargo xtask setup` puts the script's packages.
fn modules() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../page")
}

/// The browser and node, or a skip that says what is missing.
fn browser() -> Option<PathBuf> {
    let find = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
    };
    let chromium = std::env::var_os("SLUICE_CHROMIUM").map(PathBuf::from).or_else(|| find("chromium"));
    let packages = modules().join("node_modules/playwright-core/package.json").is_file();
    match (chromium, find("node"), packages) {
        (Some(chromium), Some(_), true) => Some(chromium),
        (None, ..) => {
            skip("no chromium: run \"cargo xtask setup\"", true);
            None
        }
        (_, None, _) => {
            skip("no node: run \"cargo xtask setup\"", true);
            None
        }
        (.., false) => {
            skip("no playwright-core: run \"cargo xtask setup\"", true);
            None
        }
    }
}

#[test]
fn the_page_shows_the_status_on_a_desk_and_on_a_phone() {
    let Some(chromium) = browser() else { return };
    let appliance = Appliance::start();
    let shots = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let output = Command::new("node")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page/drive.cjs"))
        .args([modules(), chromium])
        .args([appliance.url(), appliance.sluice.pid().to_string(), NAME.to_string()])
        .arg(shots)
        .output()
        .expect("node runs");
    let (told, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}{failed}");
    let passed = told.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(passed, 7, "the script has fewer or more parts than the test knows:\n{told}");
}
