//! `cargo xtask setup`: names what this machine lacks for building and testing, and installs it.
//!
//! On Debian and Ubuntu it installs with apt-get, as root or through a sudo that asks nothing; elsewhere, or without
//! either, it prints the one command to run. A machine that lacks nothing is told so in milliseconds: every need is
//! probed by the file that it brings, and no package manager is asked.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

/// How a need is recognised as met.
enum Probe {
    /// A program of this name.
    Program(&'static str),
    /// One of these files.
    File(&'static [&'static str]),
}

/// A Debian package that the project needs.
struct Need {
    package: &'static str,
    probe: Probe,
    why: &'static str,
    /// Nothing builds without it. The others cost only the tests that use them.
    required: bool,
}

const fn need(package: &'static str, probe: Probe, why: &'static str, required: bool) -> Need {
    Need { package, probe, why, required }
}

/// libxdp's own configure asks for gcc, clang, llc, m4, pkg-config, make and the headers of libelf, zlib and libpcap.
/// (A machine that has built it once can hide a missing one: its results stay in cargo's registry.)
const NEEDS: &[Need] = &[
    need("gcc", Probe::Program("cc"), "libxdp and the linker", true),
    need("clang", Probe::Program("clang"), "libxdp's own programs, bindings", true),
    need("llvm", Probe::Program("llc"), "libxdp's configure", true),
    need("libelf-dev", Probe::File(&["/usr/include/libelf.h"]), "libxdp", true),
    need("zlib1g-dev", Probe::File(&["/usr/include/zlib.h"]), "libxdp", true),
    need("libpcap-dev", Probe::File(&["/usr/include/pcap/pcap.h"]), "libxdp's configure; live capture", true),
    need("m4", Probe::Program("m4"), "libxdp's configure", true),
    need("pkg-config", Probe::Program("pkg-config"), "libxdp's configure", true),
    need("make", Probe::Program("make"), "libxdp", true),
    need("iproute2", Probe::Program("ip"), "network namespaces of the net tests and the demo", false),
    need("ethtool", Probe::Program("ethtool"), "net tests, benchmarks", false),
    need("tcpdump", Probe::Program("tcpdump"), "net tests", false),
    need("tshark", Probe::Program("tshark"), "the foreign reader of exported captures", false),
    need("fio", Probe::Program("fio"), "the disk that the store's figures are compared with", false),
    need("nftables", Probe::Program("nft"), "net tests", false),
    need("libcap2-bin", Probe::Program("setcap"), "tests of the privilege drop", false),
    need("dpkg-dev", Probe::Program("dpkg-shlibdeps"), "the package's dependencies", false),
    need("debootstrap", Probe::Program("debootstrap"), "the bare root of the installation test", false),
    need("curl", Probe::Program("curl"), "cargo xtask fetch", false),
    need("chromium", Probe::Program("chromium"), "the test of the status page", false),
    need("nodejs", Probe::Program("node"), "the same", false),
    need("npm", Probe::Program("npm"), "the same", false),
    need("tmux", Probe::Program("tmux"), "the test of sluice top", false),
];

/// The toolchain that rebuilds the XDP program where Debian has one. `cargo build` never needs it: the built object is
/// committed. Elsewhere rustup's nightly with rust-src does the same.
const BPF_NEEDS: &[Need] = &[
    need("rustc-web", Probe::File(&["/usr/bin/rustc"]), "rebuild of the XDP program", false),
    need("cargo-web", Probe::File(&["/usr/bin/cargo"]), "rebuild of the XDP program", false),
    need("rust-web-src", Probe::File(&["/usr/lib/rustlib/src/rust/library/Cargo.lock"]), "the same", false),
    need("llvm-22", Probe::File(&["/usr/bin/llc-22", "/usr/lib/llvm-22/bin/llc"]), "the same", false),
];

/// Runs the task.
pub fn run() -> Result<(), String> {
    ensure()?;
    println!("setup: nothing is missing");
    Ok(())
}

/// Installs what is missing. Says nothing when nothing is.
pub fn ensure() -> Result<(), String> {
    components()?;
    packages()?;
    crate::page::ensure();
    Ok(())
}

/// Debian's packages.
fn packages() -> Result<(), String> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    println!("setup: this machine lacks");
    for need in &missing {
        println!("  {:<14} {}", need.package, need.why);
    }
    let result = install(&missing);
    let left: Vec<&Need> = missing.into_iter().filter(|need| !present(&need.probe)).collect();
    if left.iter().any(|need| need.required) {
        let names: Vec<&str> = left.iter().filter(|need| need.required).map(|need| need.package).collect();
        let reason = result.err().unwrap_or_else(|| "apt-get did not bring it".into());
        return Err(format!("setup: nothing builds without {}: {reason}", names.join(" ")));
    }
    for need in left {
        println!("setup: goes on without {} ({}): what uses it is skipped", need.package, need.why);
    }
    if let Err(reason) = result {
        println!("setup: {reason}");
    }
    Ok(())
}

fn present(probe: &Probe) -> bool {
    match probe {
        Probe::Program(name) => shell::find(name).is_some(),
        Probe::File(paths) => paths.iter().any(|path| Path::new(path).exists()),
    }
}

fn missing() -> Vec<&'static Need> {
    let mut missing: Vec<&Need> = NEEDS.iter().filter(|need| !present(&need.probe)).collect();
    let bpf: Vec<&Need> = BPF_NEEDS.iter().filter(|need| !present(&need.probe)).collect();
    if !bpf.is_empty() && !rustup_nightly() {
        missing.extend(bpf);
    }
    missing
}

/// A rustup nightly that rebuilds the XDP program as well: the library's source and a code generator.
fn rustup_nightly() -> bool {
    let home = std::env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".rustup")));
    let Some(Ok(toolchains)) = home.map(|home| std::fs::read_dir(home.join("toolchains"))) else { return false };
    toolchains.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("nightly")).any(|entry| {
        let rustlib = entry.path().join("lib/rustlib");
        let hosts = std::fs::read_dir(&rustlib).into_iter().flatten().flatten();
        rustlib.join("src/rust/library/Cargo.lock").is_file()
            && hosts.map(|host| host.path()).any(|host| host.join("bin/llc").is_file())
    })
}

/// rustfmt and clippy come with a full rustup profile, not with a minimal one.
fn components() -> Result<(), String> {
    let wanted = [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")];
    let folder = std::env::var_os("CARGO").map(PathBuf::from).and_then(|cargo| Some(cargo.parent()?.to_path_buf()));
    let has = |program: &str| {
        folder.as_ref().is_some_and(|folder| folder.join(program).exists()) || shell::find(program).is_some()
    };
    let missing: Vec<&str> = wanted.iter().filter(|(program, _)| !has(program)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("setup: this toolchain lacks {}", missing.join(" "));
    let mut rustup = shell::command("rustup");
    rustup.args(["component", "add"]).args(&missing);
    shell::run(&mut rustup)
}

/// Installs the packages and, where Debian has no compiler for the XDP program, rustup's nightly.
fn install(missing: &[&Need]) -> Result<(), String> {
    if shell::find("apt-get").is_none() {
        return Err("this is no Debian or Ubuntu machine: install the packages of these names, or what brings the \
                    same programs and headers"
            .into());
    }
    let names = |needs: &[&Need]| needs.iter().map(|need| need.package).collect::<Vec<_>>();
    let Some(elevate) = elevation() else {
        return Err(format!(
            "run this once, then start again:\n  sudo apt-get update && sudo apt-get install -y {}",
            names(missing).join(" ")
        ));
    };
    println!("setup: installs them with apt-get{}", if elevate.is_empty() { "" } else { " through sudo" });
    let update = shell::run(&mut apt(elevate, &["update"]));
    let (bpf, others): (Vec<&Need>, Vec<&Need>) =
        missing.iter().copied().partition(|need| BPF_NEEDS.iter().any(|other| other.package == need.package));
    let (required, wanted): (Vec<&Need>, Vec<&Need>) = others.into_iter().partition(|need| need.required);
    // One call each: a package that this release does not have must not cost the others.
    let mut results = vec![update];
    for group in [required, wanted] {
        if !group.is_empty() {
            results.push(shell::run(apt(elevate, &["install", "-y", "--no-install-recommends"]).args(names(&group))));
        }
    }
    if !bpf.is_empty() {
        results.push(bpf_toolchain(elevate, &names(&bpf)));
    }
    results.into_iter().collect()
}

fn bpf_toolchain(elevate: &'static [&'static str], packages: &[&str]) -> Result<(), String> {
    let known = packages.iter().all(|name| {
        let policy = shell::output(shell::command("apt-cache").args(["policy", name])).unwrap_or_default();
        policy.contains("Candidate:") && !policy.contains("Candidate: (none)")
    });
    if known {
        return shell::run(apt(elevate, &["install", "-y", "--no-install-recommends"]).args(packages));
    }
    println!("setup: this release has no rustc-web; rustup's nightly with rust-src rebuilds the XDP program instead");
    let components = ["--component", "rust-src", "--component", "llvm-tools"];
    shell::run(
        shell::command("rustup").args(["toolchain", "install", "nightly", "--profile", "minimal"]).args(components),
    )
}

/// The words before `apt-get`: none as root, sudo where it asks nothing; `None` where neither is.
fn elevation() -> Option<&'static [&'static str]> {
    if shell::is_root() {
        return Some(&[]);
    }
    let sudo = shell::find("sudo").is_some() && shell::succeeds(shell::command("sudo").args(["-n", "true"]));
    sudo.then_some(&["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive"])
}

fn apt(elevate: &[&str], args: &[&str]) -> Command {
    let words: Vec<&str> = elevate.iter().copied().chain(["apt-get", "-q"]).chain(args.iter().copied()).collect();
    let mut command = shell::command(words[0]);
    command.args(&words[1..]).env("DEBIAN_FRONTEND", "noninteractive");
    command
}
