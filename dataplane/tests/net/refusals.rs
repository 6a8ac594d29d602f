//! What `sluice run` refuses, with its reason and the way out; and what a setting then allows.

use std::path::Path;
use std::process::Command;

use sluice::sys::bpf::{Destination, XdpProgram, XdpSettings};
use sluice::sys::nic::Interface;

use super::appliance::{Config, GROUP, PORT, Publisher, Run, check_sent, emitted, output, workspace};
use crate::common::netns::{self, Raw, Veth, ip};

/// `run` must end with `exit` and say every one of `said`; nothing stays attached.
#[track_caller]
fn refused(directory: &Path, config: &Config, exit: i32, said: &[&str]) {
    let config = config.write(directory);
    let done = output(directory, &["run", config, "--for", "5s"]);
    let told = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(exit), "{told}");
    let last = told.lines().last().unwrap_or_default();
    said.iter().for_each(|said| assert!(last.contains(said), "\"{said}\" in: {last}"));
}

fn on(interface: &str) -> Config<'_> {
    Config { sides: vec![interface], ..Config::default() }
}

/// Captures ten segments.
#[track_caller]
fn captures(directory: &Path, veth: &Veth, config: &Config) {
    let run = Run::start(directory, config);
    let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(9, 60));
    (0..10).for_each(|_| sender.send(&publisher.frame(1)));
    run.until("captured", |status| emitted(status) == 10);
    run.stop();
}

#[test]
fn a_foreign_program_is_named_and_replaced_only_when_asked() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let inside = Interface::find(&veth.inside).expect("just made");
        let destinations = vec![Destination { address: GROUP, port: PORT + 1 }];
        let settings = XdpSettings { destinations, uncovered_queues: true, ..XdpSettings::default() };
        let mut foreign = XdpProgram::load(&inside, &settings).expect("loads as root");
        foreign.attach().expect("attaches");
        let id = foreign.program_id().expect("loaded").to_string();
        let said = [&veth.inside, &id, "\"sluice\"", "replace = true"];
        refused(folder.path(), &on(&veth.inside), 4, &said);
        let still = Interface::find(&veth.inside).expect("there").xdp.expect("it is left alone");
        assert_eq!(still.1.to_string(), id);
        let interface = "ring = 1024\nframes = 8192\nzero_copy = \"off\"\nreplace = true";
        captures(folder.path(), &veth, &Config { interface, ..on(&veth.inside) });
    });
}

#[test]
fn the_default_routes_interface_is_refused_unless_forced() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        veth.address("10.9.0.2/24");
        ip(&format!("route add default via 10.9.0.1 dev {}", veth.inside));
        refused(folder.path(), &on(&veth.inside), 4, &[&veth.inside, "default route", "force = true"]);
        let interface = "ring = 1024\nframes = 8192\nzero_copy = \"off\"\nforce = true";
        captures(folder.path(), &veth, &Config { interface, ..on(&veth.inside) });
    });
}

#[test]
fn a_wrong_number_of_queues_names_the_command() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 2, 1500);
        for (queues, remedy) in [(9, "ethtool -L vi combined 9"), (1, "ethtool -L vi combined 1")] {
            let interface = format!("ring = 1024\nframes = 8192\nqueues = {queues}");
            let config = Config { interface: &interface, ..on(&veth.inside) };
            refused(folder.path(), &config, 2, &["\"vi\"", &format!("queues = {queues}"), "has 2", remedy]);
        }
        let interface = "ring = 1024\nframes = 8192\nqueues = 2";
        captures(folder.path(), &veth, &Config { interface, ..on(&veth.inside) });
    });
}

#[test]
fn an_alternative_name_works_as_the_interfaces_name() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 2, 1500);
        let name = "the-feed-of-side-a-on-port-1";
        ip(&format!("link property add dev {} altname {name}", veth.inside));
        let run = Run::start(folder.path(), &on(name));
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(9, 60));
        (0..10).for_each(|_| sender.send(&publisher.frame(1)));
        run.until("captured", |status| emitted(status) == 10);
        let report = run.stop();
        let counted = Veth { outside: veth.outside.clone(), inside: name.into() };
        check_sent(&report, &counted, 10);
    });
}

#[test]
fn zero_copy_that_veth_has_not_is_refused_where_it_is_required() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let interface = "ring = 1024\nframes = 8192\nzero_copy = \"require\"";
        let config = Config { interface, ..on(&veth.inside) };
        refused(folder.path(), &config, 4, &["vi", "veth", "zero-copy", "zero_copy = \"prefer\""]);
        assert_eq!(Interface::find(&veth.inside).expect("there").xdp, None);
        let interface = "ring = 1024\nframes = 8192\nzero_copy = \"prefer\"";
        let config = Config { interface, ..on(&veth.inside) };
        let run = Run::start(folder.path(), &config);
        assert_eq!(run.status()["capture"]["interfaces"][0]["zero_copy"], false, "the mode really got");
        run.stop();
    });
}

#[test]
fn hardware_stamps_are_refused_by_check_and_by_run() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let interface = "ring = 1024\nframes = 8192\nstamp = \"hardware\"";
        let config = Config { interface, ..on(&veth.inside) };
        let said = ["stamp", "hardware", "bpf_xdp_metadata_rx_timestamp", "software"];
        refused(folder.path(), &config, 2, &said);
        let checked = output(folder.path(), &["check", config.write(folder.path())]);
        let told = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert_eq!(checked.status.code(), Some(2), "{told}");
        said.iter().for_each(|said| assert!(told.contains(said), "\"{said}\" in: {told}"));
    });
}

#[test]
fn a_second_capture_of_the_same_interface_is_refused_and_the_first_goes_on() {
    netns::run(|| {
        let (folder, second) = (workspace(), workspace());
        let veth = Veth::new("v", 1, 1500);
        let run = Run::start(folder.path(), &on(&veth.inside));
        let config = Config { control: "listen = \"127.0.0.1:9481\"", ..on(&veth.inside) };
        refused(second.path(), &config, 4, &["\"vi\"", "stop"]);
        // And the same store is not opened twice.
        let config = config.write(folder.path());
        let done = output(folder.path(), &["run", config, "--for", "5s"]);
        assert_eq!(done.status.code(), Some(4), "{}", String::from_utf8_lossy(&done.stderr));
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(9, 60));
        (0..10).for_each(|_| sender.send(&publisher.frame(1)));
        run.until("captured", |status| emitted(status) == 10);
        run.stop();
    });
}

#[test]
fn a_control_address_in_use_is_refused_and_nothing_stays_attached() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let _taken = std::net::TcpListener::bind(super::appliance::CONTROL).expect("free in this namespace");
        refused(folder.path(), &on(&veth.inside), 4, &["127.0.0.1:9480"]);
        super::appliance::detached(&veth.inside);
    });
}

#[test]
fn without_capabilities_the_missing_ones_are_named() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        on(&veth.inside).write(folder.path());
        open_to_all(folder.path());
        let none = ["--bounding-set", "-all", "--inh-caps", "-all"];
        let other = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        for how in [none.to_vec(), [&none[..], &other[..]].concat(), other.to_vec()] {
            let done = Command::new("setpriv")
                .args(&how)
                .args(["--", env!("CARGO_BIN_EXE_sluice"), "run", "config.toml", "--for", "5s"])
                .current_dir(folder.path())
                .output()
                .expect("setpriv (util-linux)");
            let told = String::from_utf8_lossy(&done.stderr);
            if told.contains("setpriv: failed to execute") {
                crate::common::skip("the binary is not readable for another user", false);
                continue;
            }
            assert_eq!(done.status.code(), Some(4), "{how:?}: {told}");
            for capability in ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN", "CAP_NET_RAW", "setcap"] {
                assert!(told.contains(capability), "{capability} for {how:?} in: {told}");
            }
        }
        // One alone is missing.
        let keep = ["--bounding-set", "-net_raw", "--inh-caps", "-net_raw"];
        let done = Command::new("setpriv")
            .args(keep)
            .args(["--", env!("CARGO_BIN_EXE_sluice"), "run", "config.toml", "--for", "5s"])
            .current_dir(folder.path())
            .output()
            .expect("setpriv (util-linux)");
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(4), "{told}");
        assert!(told.contains("missing CAP_NET_RAW"), "{told}");
    });
}

fn open_to_all(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777)).expect("ours");
}
