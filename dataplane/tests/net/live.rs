//! `sluice feed gaps` and `feed decode` on an interface: the same report and rows as from a file, and nothing left behind.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sluice::sys::clock;
use sluice::sys::nic::Interface;

use super::appliance::{GROUP, PATIENCE, PORT, Player, detached, done, output, sluice, until, workspace};
use crate::common::netns::{self, Raw, Veth, ip};

/// A look under way. Dropped, it is killed.
struct Look(Child);

impl Look {
    /// Starts a command of `feed` on the inside end, and waits until it captures.
    fn start(directory: &Path, veth: &Veth, args: &[&str]) -> Look {
        let group = format!("{GROUP}:{PORT}");
        let all = [&["feed"], args, &["--interface", &veth.inside, "--group", &group]].concat();
        let mut command = sluice(directory, &all);
        let mut look = Look(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"));
        until("the program is attached", || {
            assert!(look.0.try_wait().expect("a child of ours").is_none(), "it ended: {}", look.text().1);
            Interface::find(&veth.inside).expect("there").xdp
        });
        look
    }

    fn text(&mut self) -> (String, String) {
        let (mut out, mut told) = (String::new(), String::new());
        self.0.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
        self.0.stderr.take().expect("piped").read_to_string(&mut told).expect("text");
        (out, told)
    }

    /// Ctrl-C; what it wrote, what it said, and its exit code.
    fn end(mut self) -> (String, String, Option<i32>) {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT).expect("it runs");
        // The pipes are read while it ends: its rows are more than a pipe holds. One that does not end is killed.
        let pid = self.0.id() as i32;
        let (ended, waits) = std::sync::mpsc::channel();
        let watchdog = std::thread::spawn(move || {
            if waits.recv_timeout(PATIENCE).is_err() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        });
        let (out, told) = self.text();
        let _ = ended.send(());
        watchdog.join().expect("no panic in it");
        let status = self.0.wait().expect("a child of ours");
        assert!(status.code().is_some(), "it does not end: {status}");
        (out, told, status.code())
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session with a restart, of which `a.pcap` lost some packets.
fn session(directory: &Path) {
    let generate = ["feed", "generate", "--protocol", "deep", "--messages", "4k", "--restarts", "1"];
    done(directory, &[&generate[..], &["--seed", "3", "--out", "session.pcapng"]].concat());
    let split = ["feed", "split", "session.pcapng", "--out-dir", ".", "--loss-a", "0.03", "--seed", "3"];
    done(directory, &split);
}

/// Waits until the queue has had time to be emptied: the look takes what comes at once.
fn settle() {
    clock::sleep(Duration::from_millis(200));
}

#[test]
fn gaps_on_an_interface_are_those_of_the_file_that_is_played() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        session(directory);
        let veth = Veth::new("v", 2, 1500);
        let look = Look::start(directory, &veth, &["gaps", "--json"]);
        let sent = Player::start(directory, "a.pcap", &veth.outside, &["--rate", "2k"]).sent();
        settle();
        let (out, told, exit) = look.end();
        let live: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{told}"));
        let seen = live["live"]["received"].as_u64().expect("a count");
        let lost: u64 = live["live"]["lost"].as_object().expect("counts").values().filter_map(Value::as_u64).sum();
        assert_eq!(live["live"]["xdp"]["redirected"].as_u64(), Some(seen + lost), "{live}");
        assert_eq!(live["frames"]["read"].as_u64(), Some(seen));
        let dropped = Interface::find(&veth.outside).expect("there").statistics().expect("told").tx_dropped;
        assert_eq!(sent, seen + lost + dropped);
        detached(&veth.inside);
        if lost + dropped == 0 {
            let file: Value =
                serde_json::from_str(&done(directory, &["feed", "gaps", "a.pcap", "--json"])).expect("JSON");
            assert_eq!(exit, Some(0), "{told}");
            assert_eq!(live["streams"], file["streams"]);
            assert!(file["streams"].as_array().is_some_and(|streams| streams.len() == 2), "{file}");
        } else {
            assert_eq!(exit, Some(3), "{told}");
        }
    });
}

#[test]
fn rows_of_an_interface_are_those_of_the_file_that_is_played() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        session(directory);
        let veth = Veth::new("v", 1, 1500);
        let look = Look::start(directory, &veth, &["decode", "--promiscuous"]);
        let promiscuous = std::fs::read_to_string("/proc/thread-self/net/igmp").expect("readable");
        assert!(promiscuous.contains("0100C0EF"), "the group is joined:\n{promiscuous}");
        Player::start(directory, "session.pcapng", &veth.outside, &["--rate", "2k"]).sent();
        settle();
        let (live, told, exit) = look.end();
        let file = done(directory, &["feed", "decode", "session.pcapng"]);
        if exit == Some(0) {
            assert_eq!(live.lines().count(), 4001, "{told}");
            assert!(live == file, "other rows than from the file");
        } else {
            assert!(told.contains("frames lost"), "{told}");
        }
        let left = std::fs::read_to_string("/proc/thread-self/net/igmp").expect("readable");
        assert!(!left.contains("0100C0EF"), "the group is left:\n{left}");
    });
}

#[test]
fn a_look_ends_by_itself_shows_rows_at_once_and_survives_its_readers_end() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let group = format!("{GROUP}:{PORT}");
        let on = ["--interface", &veth.inside, "--group", &group];
        let table = done(folder.path(), &[&["feed", "gaps", "--for", "200ms"], &on[..]].concat());
        assert!(table.contains("0 of 0 frames"), "{table}");
        // One message, no further traffic: its row is there; then the reader goes away.
        let mut look = Look::start(folder.path(), &veth, &["decode", "--protocol", "moldudp64"]);
        let mold =
            [&b"SESSION001"[..], &1_u64.to_be_bytes(), &1_u16.to_be_bytes(), &3_u16.to_be_bytes(), b"abc"].concat();
        let sender = Raw::sender(&veth.outside);
        let frame = crate::common::frames::Udp::to(GROUP, PORT, &mold).frame();
        sender.send(&frame);
        let mut out = std::io::BufReader::new(look.0.stdout.take().expect("piped"));
        let (mut head, mut row) = (String::new(), String::new());
        std::io::BufRead::read_line(&mut out, &mut head).expect("text");
        std::io::BufRead::read_line(&mut out, &mut row).expect("text");
        assert!(row.contains("body=616263"), "{head}{row}");
        drop(out);
        sender.send(&frame);
        let status = until("it ends", || look.0.try_wait().expect("a child of ours"));
        assert_eq!(status.code(), Some(0));
        detached(&veth.inside);
    });
}

#[test]
fn a_look_says_what_it_needs() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let group = format!("{GROUP}:{PORT}");
        let refused = |args: &[&str], exit: i32, said: &str| {
            let done = output(folder.path(), &[&["feed"], args].concat());
            let told = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(done.status.code(), Some(exit), "{args:?}: {told}");
            assert!(told.contains(said), "{args:?}: {told}");
        };
        for verb in ["gaps", "decode"] {
            refused(&[verb], 2, "FILE");
            refused(&[verb, "x.pcap", "--interface", "vi"], 2, "cannot be used with");
            refused(&[verb, "x.pcap", "--for", "1s"], 2, "cannot be used with");
            refused(&[verb, "--for", "1s"], 2, "--interface");
            refused(&[verb, "--interface", "vi"], 2, "--group");
            refused(&[verb, "--interface", "vi", "--group", "239.1.2.3"], 2, "--group");
            refused(&[verb, "--interface", "none0", "--group", &group], 4, "no such interface");
        }
        if !cfg!(feature = "libpcap") {
            refused(&["gaps", "--interface", "vi", "--source", "libpcap"], 2, "--features libpcap");
        }
        let _look = Look::start(folder.path(), &veth, &["gaps"]);
        refused(&["gaps", "--interface", "vi", "--group", &group], 4, "");
        veth.address("10.9.0.2/24");
        ip("route add default via 10.9.0.1 dev vi");
        refused(&["gaps", "--interface", "vi", "--group", &group], 2, "--force");
    });
}

#[cfg(feature = "libpcap")]
#[test]
fn a_look_through_libpcap_finds_the_same_gaps_tagged_or_not() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        session(directory);
        let veth = Veth::new("v", 1, 1500);
        let group = format!("{GROUP}:{PORT}");
        let args = ["feed", "gaps", "--interface", "vi", "--source", "libpcap", "--group", &group, "--json"];
        let mut command = sluice(directory, &args);
        let look = Look(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"));
        until("it listens", || {
            let sockets = std::fs::read_to_string("/proc/thread-self/net/packet").expect("readable");
            (sockets.lines().count() > 1).then_some(())
        });
        settle();
        Player::start(directory, "a.pcap", &veth.outside, &["--rate", "2k"]).sent();
        let sender = Raw::sender(&veth.outside);
        use crate::common::frames::{SERVICE, Udp, VLAN};
        for tags in [vec![(VLAN, 7)], vec![(SERVICE, 7), (VLAN, 8)]] {
            sender.send(&Udp { tags, ..Udp::to(GROUP, PORT, b"no segment") }.frame());
        }
        sender.send(&Udp::to(GROUP, PORT + 1, b"another port").frame());
        settle();
        let (out, told, exit) = look.end();
        let live: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{told}"));
        let file: Value = serde_json::from_str(&done(directory, &["feed", "gaps", "a.pcap", "--json"])).expect("JSON");
        assert_eq!(exit, Some(0), "{told}");
        assert_eq!(live["streams"], file["streams"]);
        assert_eq!(live["frames"]["read"].as_u64(), file["frames"]["read"].as_u64().map(|read| read + 2), "{live}");
    });
}
