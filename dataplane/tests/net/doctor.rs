//! `sluice doctor` on a live veth pair: it says what is there, and afterwards everything is as it was.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use sluice::sys::bpf::{Destination, XdpMode, XdpProgram, XdpSettings};
use sluice::sys::nic::Interface;

use crate::common::netns::{self, Veth, command, ip};

/// Everything of the interfaces and of the host that a tool could have changed.
fn state(veth: &Veth) -> String {
    let mut text = command("ip", "-d link show");
    text += &command("ip", "address show");
    text += &command("ip", "maddress show");
    for link in [&veth.inside, &veth.outside] {
        // What veth has not is an answer too, and so is a host without ethtool.
        for question in ["-k", "-l", "-c", "-g"] {
            let told = Command::new("ethtool").args([question, link]).output().map(|told| told.stdout);
            let _ = writeln!(text, "{:?}", told.map(|told| String::from_utf8_lossy(&told).into_owned()).ok());
        }
        let _ = writeln!(text, "{:?}", std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{link}/rp_filter")));
    }
    for file in [
        "/proc/sys/kernel/io_uring_disabled",
        "/proc/sys/fs/pipe-max-size",
        "/proc/swaps",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    ] {
        let _ = writeln!(text, "{file}: {:?}", std::fs::read_to_string(file));
    }
    text + &affinities()
}

/// Where each interrupt may go.
fn affinities() -> String {
    let mut lines: Vec<String> = std::fs::read_dir("/proc/irq")
        .expect("readable")
        .flatten()
        .map(|entry| {
            format!("{:?} {:?}", entry.file_name(), std::fs::read_to_string(entry.path().join("smp_affinity_list")))
        })
        .collect();
    lines.sort();
    lines.join("\n")
}

fn configuration(directory: &Path, veth: &Veth, more: &str) -> String {
    let store = directory.join("store");
    let text = format!(
        "[[core]]\nname = \"a\"\ncpu = 0\n\
         [[interface]]\nname = \"{}\"\ncores = [\"a\"]\n{more}\n\
         [[feed]]\nname = \"deep\"\nprotocol = \"iex-tp\"\ncore = \"a\"\nstore = \"main\"\n\
         [[feed.side]]\nname = \"A\"\ninterface = \"{}\"\ngroups = [\"239.192.0.1:10378\"]\n\
         [[store]]\nname = \"main\"\npath = {store:?}\ncore = \"a\"\nsegment = \"1MiB\"\nretain = \"8MiB\"\n",
        veth.inside, veth.inside
    );
    let path = directory.join("sluice.toml");
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

fn judged(command: &mut Command) -> Value {
    let output = command.arg("--json").stdin(Stdio::null()).output().expect("runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}: {told}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn doctor(args: &[&str]) -> Value {
    judged(Command::new(env!("CARGO_BIN_EXE_sluice")).arg("doctor").args(args))
}

/// The finding of a rule: its level, and what was seen.
fn finding(found: &Value, id: &str) -> (String, String) {
    let findings = found["findings"].as_array().expect("findings");
    let one = findings.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("no {id}: {found:#}"));
    (one["level"].as_str().expect("a level").into(), one["seen"].as_str().expect("text").into())
}

#[test]
fn the_doctor_changes_nothing() {
    netns::run(|| {
        let directory = tempfile::tempdir().expect("a folder");
        let veth = Veth::new("dc", 2, 1500);
        veth.address("10.77.0.1/24");
        let path = configuration(directory.path(), &veth, "queues = 1\nzero_copy = \"require\"");
        let before = state(&veth);
        let found = doctor(&[&path]);
        assert_eq!(before, state(&veth));
        assert_eq!(finding(&found, "queue.count").0, "fail", "{found:#}");
        assert_eq!(finding(&found, "xdp.foreign_program"), ("ok".into(), "no program is attached".into()));
        let (_, seen) = finding(&found, "nic.address");
        assert_eq!(seen, "1 groups, address 10.77.0.1");

        let found = doctor(&[&path, "--trial-bind"]);
        assert_eq!(before, state(&veth), "a trial bind leaves nothing");
        let (level, seen) = finding(&found, "xdp.zero_copy");
        assert_eq!(level, "fail");
        assert!(seen.contains("driver veth gives no zero-copy"), "{seen}");
    });
}

#[test]
fn a_foreign_program_is_named_and_left_alone() {
    netns::run(|| {
        let directory = tempfile::tempdir().expect("a folder");
        let veth = Veth::new("df", 1, 3000);
        let path = configuration(directory.path(), &veth, "");
        let interface = Interface::find(&veth.inside).expect("there");
        let settings = XdpSettings {
            destinations: vec![Destination { address: Ipv4Addr::new(239, 192, 0, 1), port: 10_378 }],
            mode: XdpMode::Native,
            multi_buffer: false,
            stamp: false,
            replace: false,
            uncovered_queues: true,
        };
        let mut program = XdpProgram::load(&interface, &settings).expect("loads");
        program.attach().expect("attaches");
        let id = program.program_id().expect("has a number");
        let before = state(&veth);
        let found = doctor(&[&path, "--trial-bind"]);
        assert_eq!(before, state(&veth));
        let (level, seen) = finding(&found, "xdp.foreign_program");
        assert!(level != "ok" && seen.starts_with(&format!("program {id} is attached (native)")), "{level} {seen}");
        let (_, seen) = finding(&found, "xdp.zero_copy");
        assert!(!seen.starts_with("a trial bind"), "an interface in use is left alone: {seen}");
        assert_eq!(finding(&found, "nic.address").0, "warn", "no address, and a group to join");
    });
}

#[test]
fn without_root_the_same_is_said_but_for_what_cannot_be_read() {
    netns::run(|| {
        let directory = tempfile::tempdir().expect("a folder");
        let veth = Veth::new("du", 1, 9000);
        ip(&format!("link property add dev {} altname the-captured-wire", veth.inside));
        let path = configuration(directory.path(), &veth, "");
        let text = std::fs::read_to_string(&path).expect("readable").replace(&veth.inside, "the-captured-wire");
        let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .expect("open to all");
        let file = file.path().to_str().expect("UTF-8");
        let before = state(&veth);
        let rooted = doctor(&[file]);
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_sluice"), "doctor"]);
        let tried =
            Command::new("setpriv").args(["--reuid", "65534", env!("CARGO_BIN_EXE_sluice"), "--version"]).output();
        if !tried.is_ok_and(|tried| tried.status.success()) {
            return crate::common::skip("the binary lies where only root can run it", false);
        }
        let plain = judged(nobody.args([file, "--trial-bind"]).current_dir("/"));
        assert_eq!(before, state(&veth));
        for id in
            ["nic.present", "nic.address", "queue.count", "xdp.foreign_program", "xdp.mtu", "frame.lro", "cpu.allowed"]
        {
            assert_eq!(finding(&rooted, id), finding(&plain, id));
        }
        let (_, seen) = finding(&rooted, "nic.present");
        assert!(seen.starts_with(&format!("the kernel's name is {}", veth.inside)), "{seen}");
        let (level, seen) = finding(&plain, "xdp.zero_copy");
        assert_eq!(level, "warn");
        assert!(seen.contains("has no zero-copy") || seen.contains("not possible without root"), "{seen}");
    });
}
