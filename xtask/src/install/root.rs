//! A bare Debian root: made once by debootstrap and kept in the user's cache, copied for each use.
//!
//! It holds the minimal system and what the package's own `Depends:` names: what the package forgets is not there.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

/// Lines of a failed command's output that are told.
const TAIL_LINES: usize = 40;

/// Where a root's commands begin, and where package and tarball lie.
const WORK: &str = "/var/tmp";

/// Lets systemctl do with files what it can, and pass over what only a running systemd can do.
const OFFLINE: &str = "SYSTEMD_OFFLINE=1";

/// A root in use. It is never removed from inside of its namespaces, where /proc and /sys are mounted in it: the process
/// that made the namespaces does that.
pub struct Root {
    path: PathBuf,
    /// A process in whose namespaces its commands run, once it is booted.
    init: Option<u32>,
}

/// What the package of the tests' build depends on. Only a guess, so that the bare root can be made before the package is:
/// where it is wrong, `prepare` makes the right one.
const EXPECTED: &[&str] = &["libc6", "libelf1", "libgcc-s1", "libpcap0.8", "systemd", "zlib1g"];

/// Makes the bare root that will probably be needed, if there is none yet.
pub fn bootstrap_ahead() -> Result<(), String> {
    let packages: Vec<String> = EXPECTED.iter().map(|name| name.to_string()).collect();
    made(&packages).map(drop)
}

/// Makes the bare root for this package, if there is none yet, and removes what an earlier run has left.
pub fn prepare(package: &Path) -> Result<(), String> {
    remove_copies()?;
    let bare = made(&wanted(package)?)?;
    shell::empty_folder(&copies())?;
    // For the process in the namespaces.
    shell::write(&copies().join("bare"), &bare.display().to_string())
}

/// Removes the copies. Only where none of their mounts can be seen.
pub fn remove_copies() -> Result<(), String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let copies = copies();
    match mounts.lines().any(|line| line.contains(&*copies.to_string_lossy())) {
        true => Err(format!("something is mounted below {}: unmount it", copies.display())),
        false => shell::remove_folder(&copies),
    }
}

fn copies() -> PathBuf {
    shell::root().join("target/dist/roots")
}

/// Debian's name of this release, which the package was built for.
fn suite() -> Result<String, String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(str::to_string).ok_or_else(|| "/etc/os-release has no VERSION_CODENAME: this is no Debian release".into())
}

/// The packages that it needs, versions left out, the first of each choice.
fn wanted(package: &Path) -> Result<Vec<String>, String> {
    let depends = shell::output(shell::command("dpkg-deb").arg("--field").arg(package).arg("Depends"))?;
    Ok(names(&depends))
}

fn names(depends: &str) -> Vec<String> {
    let first = |choice: &str| choice.split(['|', '(']).next().unwrap_or_default().trim().to_string();
    let mut names: Vec<String> = depends.split(',').map(first).collect();
    names.sort();
    names.dedup();
    names
}

/// The bare root of this release with these packages, made if there is none yet.
fn made(packages: &[String]) -> Result<PathBuf, String> {
    let bare = bare(packages)?;
    if !bare.is_dir() {
        bootstrap(&bare, packages)?;
    }
    Ok(bare)
}

/// Where it is kept.
fn bare(packages: &[String]) -> Result<PathBuf, String> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    let cache = cache.ok_or("neither XDG_CACHE_HOME nor HOME is set: there is no place for the bare root")?;
    let name = format!("{}-{}-{}", suite()?, std::env::consts::ARCH, packages.join("-"));
    Ok(cache.join("sluice/bare-root").join(name))
}

/// The mirror that this machine's apt is set to.
fn mirror(suite: &str) -> Result<String, String> {
    let mut apt = shell::command("apt-get");
    let told = shell::output(apt.args(["indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"]))?;
    let of_suite = |line: &str| Some(line.strip_prefix(suite)?.strip_prefix(' ')?.to_string());
    told.lines().find_map(of_suite).ok_or_else(|| format!("apt has no source for \"{suite}\""))
}

fn bootstrap(bare: &Path, packages: &[String]) -> Result<(), String> {
    if shell::find("debootstrap").is_none() {
        return Err("there is no debootstrap: install it".into());
    }
    let suite = suite()?;
    let partial = bare.with_extension("partial");
    shell::empty_folder(&partial)?;
    println!("install: makes a bare {suite} root with {}", packages.join(", "));
    let mut debootstrap = shell::command("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={}", packages.join(",")), &suite]);
    told(debootstrap.arg(&partial).arg(mirror(&suite)?))?;
    // What was fetched is unpacked; nothing here may depend on a mirror later.
    shell::empty_folder(&partial.join("var/cache/apt/archives"))?;
    shell::empty_folder(&partial.join("var/lib/apt/lists"))?;
    // Nobody is there to answer.
    shell::write(&partial.join("etc/apt/apt.conf.d/90assume-yes"), "APT::Get::Assume-Yes \"true\";\n")?;
    std::fs::rename(&partial, bare).map_err(|error| format!("{}: {error}", bare.display()))
}

/// Runs a command quietly; its failure tells the end of what it printed.
fn told(command: &mut Command) -> Result<(), String> {
    let line = shell::shown(command);
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| format!("cannot start \"{line}\": {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    Err(format!("\"{line}\" failed ({})\n{}", output.status, tail.join("\n")))
}

impl Root {
    /// A fresh copy with the kernel's file systems. The caller's mount namespace is its own.
    pub fn new(name: &str) -> Result<Root, String> {
        let file = copies().join("bare");
        let bare = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let path = copies().join(name);
        shell::run(shell::command("cp").args(["--archive", "--reflink=auto"]).arg(bare).arg(&path))?;
        let root = Root { path, init: None };
        for (kind, place, options) in [
            ("proc", "proc", "nosuid"),
            ("sysfs", "sys", "ro"),
            ("tmpfs", "dev/shm", "mode=1777"),
            ("tmpfs", "run", "mode=755"),
        ] {
            let place = root.path(place);
            std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
            told(shell::command("mount").args(["-t", kind, "-o", options, kind]).arg(place))?;
        }
        Ok(root)
    }

    /// Where `inside` is for this process.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.path.join(inside.trim_start_matches('/'))
    }

    /// From now on its commands run where this process does.
    pub fn enter(&mut self, pid: u32) {
        self.init = Some(pid);
    }

    /// Copies the wanted files of a folder to where its commands begin.
    pub fn bring(&self, folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), String> {
        for name in shell::file_names(folder)?.into_iter().filter(|name| wanted(name)) {
            let to = self.path(WORK).join(&name);
            std::fs::copy(folder.join(&name), &to).map_err(|error| format!("{}: {error}", to.display()))?;
        }
        Ok(())
    }

    /// A command in it, with an environment of its own.
    pub fn command(&self, environment: &[String], words: &[&str]) -> Command {
        let mut command = match self.init {
            None => {
                let mut chroot = shell::command("chroot");
                chroot.arg(&self.path).args(["/usr/bin/env", "-i"]);
                chroot
            }
            Some(pid) => {
                let mut nsenter = shell::command("nsenter");
                nsenter.args([&format!("--target={pid}"), "--all", "--root", "--", "/usr/bin/env", "-i"]);
                nsenter
            }
        };
        command.arg(format!("--chdir={WORK}")).arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        if self.init.is_none() {
            command.arg(OFFLINE);
        }
        command.args(["LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]).args(environment).args(words);
        command
    }

    /// Commands as a shell takes them, as root; the first that fails ends them.
    pub fn shell(&self, commands: &str) -> Result<(), String> {
        told(&mut self.command(&[], &["/bin/sh", "-euc", commands]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packages_are_read() {
        let depends = "libc6 (>= 2.34), libgcc-s1 (>= 4.2), systemd | systemd-standalone-sysusers, systemd | x\n";
        assert_eq!(names(depends), ["libc6", "libgcc-s1", "systemd"]);
    }
}
