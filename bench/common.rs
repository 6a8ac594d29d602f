//! What the measurements of this folder share: whether this is a test run, where files go, how a figure is reported.

use std::path::Path;

/// `cargo bench` says `--bench`; anything else is a test run, which is small.
pub fn is_test() -> bool {
    !std::env::args().any(|arg| arg == "--bench") || std::env::args().any(|arg| arg == "--test")
}

/// A folder for large files on the disk that the build lies on, removed when dropped.
#[allow(dead_code, reason = "each file of this folder is a program of its own and uses a part of this one")]
pub fn disk_folder() -> tempfile::TempDir {
    tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder under target/")
}

/// A folder in memory where there is such a place (rings lie there), removed when dropped.
#[allow(dead_code, reason = "each file of this folder is a program of its own and uses a part of this one")]
pub fn memory_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a folder for rings")
}

/// Reports a figure's samples: one line for `cargo xtask bench figures`, readable as it stands.
#[allow(dead_code, reason = "each file of this folder is a program of its own and uses a part of this one")]
pub fn figure(name: &str, unit: &str, samples: &[f64]) {
    println!("figure {}", serde_json::json!({ "name": name, "unit": unit, "samples": samples }));
}

/// The value below which `percent` of the sorted samples lie.
#[allow(dead_code, reason = "each file of this folder is a program of its own and uses a part of this one")]
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let at = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted[at.clamp(1, sorted.len()) - 1]
}
