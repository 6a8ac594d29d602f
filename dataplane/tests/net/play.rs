//! `sluice feed play` on veth pairs: what it says it sent is what arrived, at the pace that was asked for.

use std::path::Path;
use std::process::{Command, Output};

use sluice::sys::nic::Interface;
use sluice::sys::packet_tx::{Frames, Pace, PacketSender, play};

use crate::common::netns::{self, Veth};

/// Packets of a generated session whose pace is looked at: 0.2 s at 10,000 packets a second.
const PACKETS: u64 = 2_000;
/// A virtual machine's scheduler may take this many times the expected time.
const PATIENCE: f64 = 20.0;

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().unwrap()
}

fn fixture() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/deep-2000.pcapng.gz");
    path.to_str().unwrap().to_owned()
}

fn received(veth: &Veth) -> (u64, u64) {
    let statistics = Interface::find(&veth.inside).unwrap().statistics().unwrap();
    (statistics.rx_packets, statistics.rx_bytes)
}

#[test]
fn what_is_said_to_be_sent_arrives() {
    netns::run(|| {
        let veth = Veth::new("p", 1, 1500);
        let before = received(&veth);
        let (file, outside) = (fixture(), veth.outside.as_str());
        let done = sluice(&["feed", "play", &file, "--interface", outside, "--rate", "10k", "--json"]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let after = received(&veth);
        let told = |name: &str| report[name].as_u64().unwrap();
        assert_eq!((told("frames"), told("sent")), (PACKETS, PACKETS));
        assert_eq!(after.0 - before.0 + told("dropped"), told("sent"), "{report}");
        assert_eq!((told("dropped"), after.1 - before.1), (0, told("bytes")), "{report}");
        let seconds = report["seconds"].as_f64().unwrap();
        assert!((0.19..0.2 * PATIENCE).contains(&seconds), "2,000 at 10k/s took {seconds} s");
    });
}

#[test]
fn two_interfaces_get_their_own_frames() {
    netns::run(|| {
        let (a, b) = (Veth::new("a", 1, 1500), Veth::new("b", 1, 1500));
        let mut frames = Frames::new();
        for index in 0..900_i64 {
            // Every third frame belongs to B and is longer.
            let lane = u16::from(index % 3 == 2);
            frames.push(lane, index * 1_000, &vec![0; 60 + 40 * usize::from(lane)]);
        }
        let before = (received(&a), received(&b));
        let open = |veth: &Veth| {
            let interface = Interface::find(&veth.outside).unwrap();
            PacketSender::open(&interface.name, interface.index).unwrap()
        };
        let mut lanes = [open(&a), open(&b)];
        let played = play(&frames, &mut lanes, Pace::Rate(50_000.0), &mut |_| true).unwrap();
        let after = (received(&a), received(&b));
        assert_eq!((played.sent, played.too_long), (vec![600, 300], 0));
        assert_eq!(played.bytes, [600 * 60, 300 * 100]);
        assert_eq!((after.0.0 - before.0.0, after.1.0 - before.1.0), (600, 300));
        assert_eq!((after.0.1 - before.0.1, after.1.1 - before.1.1), (600 * 60, 300 * 100));
    });
}

#[test]
fn two_files_are_played_as_one() {
    netns::run(|| {
        let (a, b) = (Veth::new("a", 1, 1500), Veth::new("b", 1, 1500));
        let before = (received(&a).0, received(&b).0);
        let deep = fixture();
        let tops = deep.replace("deep", "tops");
        // A capture of two minutes; its silences would take most of them.
        let args = ["feed", "play", &deep, &tops, "--interface", &a.outside, "--interface", &b.outside];
        let done = sluice(&[&args[..], &["--silence-max", "1ms", "--json"]].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!((received(&a).0 - before.0, received(&b).0 - before.1), (PACKETS, PACKETS), "{report}");
        assert!(report["seconds"].as_f64().unwrap() < PATIENCE, "{report}");
    });
}

#[test]
fn frames_beyond_the_mtu_are_counted_and_the_rest_is_sent() {
    netns::run(|| {
        let veth = Veth::new("m", 1, 1300);
        let (file, outside) = (fixture(), veth.outside.as_str());
        let done = sluice(&["feed", "play", &file, "--interface", outside, "--flat-out", "--json"]);
        // Done, with damage reported: the opening's full segments do not fit.
        assert_eq!(done.status.code(), Some(3), "{}", String::from_utf8_lossy(&done.stderr));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let (sent, too_long) = (report["sent"].as_u64().unwrap(), report["too_long"].as_u64().unwrap());
        assert!(too_long > 0 && sent + too_long == PACKETS, "{report}");
    });
}

#[test]
fn refusals_name_the_remedy() {
    netns::run(|| {
        let veth = Veth::new("r", 1, 1500);
        veth.address("10.99.0.1/24");
        netns::ip(&format!("route add default dev {}", veth.inside));
        let file = fixture();
        let refused = |args: &[&str], exit: i32, said: &str| {
            let done = sluice(&[&["feed", "play", &file, "--interface"], args].concat());
            let told = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(done.status.code(), Some(exit), "{args:?}: {told}");
            assert!(told.contains(said), "{args:?}: {told}");
        };
        refused(&[&veth.inside], 2, "--force");
        refused(&["none0"], 4, "no such interface");
        refused(&[&veth.outside, "--speed", "0"], 2, "above 0");
        refused(&[&veth.outside, "--interface", "lo", &file, &file], 2, "one for each file");
        netns::ip(&format!("link set {} down", veth.outside));
        refused(&[&veth.outside, "--flat-out"], 4, "link set");
        // Without the capability.
        let unprivileged = Command::new("setpriv")
            .args(["--bounding-set", "-all", "--inh-caps", "-all", "--", env!("CARGO_BIN_EXE_sluice")])
            .args(["feed", "play", &file, "--interface", &veth.outside])
            .output();
        let Ok(done) = unprivileged else {
            return crate::common::skip("no setpriv", false);
        };
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(4), "{told}");
        assert!(told.contains("CAP_NET_RAW"), "{told}");
    });
}
