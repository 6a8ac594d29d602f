//! What the tasks share: where the project lies, how a command is run and shown, who runs it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The project's root: the folder that holds the workspace's Cargo.toml.
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = PathBuf::from(manifest);
    manifest.parent().map(Path::to_path_buf).unwrap_or(manifest)
}

/// Where cargo builds: a relative path in the environment is one from the project's root.
pub fn target_folder() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Where cargo keeps what it fetches.
pub fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
}

/// A command in the project's root.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The cargo that started this program.
pub fn cargo(args: &[&str]) -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` sets these for xtask itself: a child that inherits them would look for xtask's manifest, and builds anew what a cargo
    // without them has built (build scripts are run again when they change: ring's asks for the version).
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") || text == "CARGO_PRIMARY_PACKAGE" {
            cargo.env_remove(&name);
        }
    }
    cargo.args(args);
    cargo
}

/// The command as a person would type it.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut line = program.to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        let arg = arg.to_string_lossy();
        match arg.contains(char::is_whitespace) {
            true => line.push_str(&format!("'{arg}'")),
            false => line.push_str(&arg),
        }
    }
    line
}

/// Shows the command, runs it with this terminal, and fails when it fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    let line = shown(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|error| format!("cannot start \"{line}\": {error}"))?;
    status.success().then_some(()).ok_or_else(|| format!("\"{line}\" failed ({status})"))
}

/// Runs the command quietly; whether it succeeded.
pub fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs the command and returns what it printed.
pub fn output(command: &mut Command) -> Result<String, String> {
    let line = shown(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start \"{line}\": {error}"))?;
    if !output.status.success() {
        return Err(format!("\"{line}\" failed ({})", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("\"{line}\" printed something that is not UTF-8"))
}

/// The program's path, searched where root's tools lie too (a user's PATH on Debian lacks them).
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// Whether this process is root (effective uid, as the kernel tells it).
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
}

/// Whether a continuous-integration run: what is only skipped elsewhere fails there.
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// `text` with a final newline, written to `path` with its folders.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes the folder, or empties it.
pub fn empty_folder(path: &Path) -> Result<(), String> {
    remove_folder(path)?;
    std::fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Removes the folder and what is in it, if it is there.
pub fn remove_folder(path: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", path.display())),
        _ => Ok(()),
    }
}

/// The names of the files in a folder.
pub fn file_names(folder: &Path) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files = entries.flatten().filter(|entry| entry.path().is_file());
    Ok(files.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}
