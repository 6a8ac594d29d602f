//! A program outside of the workspace that depends on the library for its rings alone: what it has to build.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common;

/// Packages that such a program builds at most, itself not counted.
const PACKAGES_MAX: usize = 12;

const PROGRAM: &str = r#"
use sluice::ring::{ConsumerSettings, RingConsumer, RingProducer, RingSettings, StartAt};

fn main() {
    let path = std::path::PathBuf::from(std::env::args().nth(1).expect("a path"));
    let settings = RingSettings { capacity: 8, ..RingSettings::default() };
    let mut producer = RingProducer::<[u64; 7]>::create(&path, &settings).expect("a ring");
    let mut reader = RingConsumer::<[u64; 7]>::open(&path, StartAt::Oldest, &ConsumerSettings::default()).expect("it");
    producer.push(&[5; 7]);
    println!("{:?}", reader.try_recv());
}
"#;

pub fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder).env_remove("RUSTFLAGS").env("CARGO_TERM_COLOR", "never");
    command
}

/// Standard output of a command that must succeed.
pub fn output(command: &mut Command) -> String {
    let output = command.stderr(Stdio::piped()).output().expect("cargo runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Writes the program's crate; the lock file is the workspace's, so that nothing is asked of a registry.
pub fn write_crate(folder: &Path, library: &Path, feature: &str, program: &str) {
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\nsluice = {{ path = \
         {library:?}, default-features = false, features = [{feature:?}] }}\n\n[workspace]\n"
    );
    std::fs::write(folder.join("Cargo.toml"), manifest).expect("room");
    std::fs::create_dir(folder.join("src")).expect("room");
    std::fs::write(folder.join("src/main.rs"), program).expect("room");
    std::fs::copy(library.join("../Cargo.lock"), folder.join("Cargo.lock")).expect("the workspace's");
}

#[test]
fn an_outside_consumer_builds_little() {
    let library = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("room");
    write_crate(folder.path(), &library, "ring", PROGRAM);
    let packages = packages(folder.path(), PACKAGES_MAX);
    build_scripts_are_tame(folder.path(), &packages);
    let ring = crate::ring::RingPath::new("outside");
    let program = output(cargo(folder.path()).args(["run", "--offline", "--quiet", "--"]).arg(&*ring).env(
        // Its own: this test runs under a cargo that holds the workspace's.
        "CARGO_TARGET_DIR",
        folder.path().join("target"),
    ));
    assert_eq!(program.trim(), "Some([5, 5, 5, 5, 5, 5, 5])");
}

/// What the program in `folder` has to build: at most so many packages, and none of the heavy ones.
pub fn packages(folder: &Path, most: usize) -> Vec<String> {
    // Packages that the lock names but that were never fetched cannot be built without a network.
    let tree = ["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
    let text = output(cargo(folder).args(tree));
    let mut packages: Vec<String> = text.lines().filter_map(|line| line.split(' ').next()).map(String::from).collect();
    packages.sort_unstable();
    packages.dedup();
    packages.retain(|package| *package != "outside");
    let has = |name: &str| packages.iter().any(|package| package == name);
    assert!(has("sluice") && packages.len() <= most, "{} packages: {packages:?}", packages.len());
    for heavy in ["aya", "libxdp-sys", "xsk-rs", "tokio", "io-uring", "nix", "arrow", "parquet", "libbpf-sys"] {
        assert!(!has(heavy), "{heavy} is built for a part that does without");
    }
    packages
}

/// No build script of the packages calls make or a C compiler: none names the crates and programs that do.
fn build_scripts_are_tame(folder: &Path, packages: &[String]) {
    let text = output(cargo(folder).args(["metadata", "--offline", "--format-version", "1"]));
    let metadata: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut scripts = 0;
    for package in metadata["packages"].as_array().expect("a list") {
        if !packages.iter().any(|known| package["name"] == known.as_str()) {
            continue;
        }
        for target in package["targets"].as_array().expect("a list") {
            if target["kind"][0] != "custom-build" {
                continue;
            }
            let path = target["src_path"].as_str().expect("a path");
            let script = std::fs::read_to_string(path).expect("fetched");
            for word in ["cc::", "Command::new(\"make\")", "Command::new(\"cc\")", "cmake", "pkg_config", "bindgen"] {
                assert!(!script.contains(word), "{path} names {word}");
            }
            scripts += 1;
        }
    }
    // libc and the macros' crates have such scripts: that they were found shows that this looks at the right place.
    if scripts == 0 {
        common::skip("no package of the ring has a build script", false);
    }
}
