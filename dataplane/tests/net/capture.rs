//! The whole capture job on veth pairs: `sluice run` from the wire to the store, with what can happen to it.
//!
//! Assertions are identities, contents and order, not zero loss and not speed: the machine may be busy.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use sluice::sys::clock;
use sluice::sys::nic::Interface;

use super::appliance::{
    CONTROL, Config, GROUP, PATIENCE, PORT, Player, Publisher, Run, check_identities, check_sent, check_store,
    detached, done, emitted, get, number, output, queues, read_rows, set, stored, streams, unhex, until, workspace,
};
use crate::common::frames::{SERVICE, Udp, VLAN, ethernet, ipv4};
use crate::common::netns::{self, Raw, Veth, command, ip};

/// A session split into a.pcap and b.pcap with loss on both sides.
fn session(directory: &Path, messages: &str) {
    let generate = ["feed", "generate", "--protocol", "deep", "--messages", messages, "--restarts", "1"];
    done(directory, &[&generate[..], &["--seed", "5", "--out", "session.pcapng"]].concat());
    let split = ["feed", "split", "session.pcapng", "--out-dir", ".", "--loss-a", "0.02", "--loss-b", "0.02"];
    done(directory, &[&split[..], &["--seed", "5"]].concat());
}

fn sides<const N: usize>(veths: [&Veth; N]) -> Vec<&str> {
    veths.into_iter().map(|veth| veth.inside.as_str()).collect()
}

#[test]
fn at_a_hundred_thousand_packets_a_second_on_two_interfaces_everything_is_accounted_for() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let (a, b) = (Veth::new("a", 2, 1500), Veth::new("b", 2, 1500));
        session(directory, "60k");
        let run = Run::start(directory, &Config { sides: sides([&a, &b]), ..Config::default() });
        let pace = ["--rate", "100k"];
        let started = Instant::now();
        let players =
            [("a.pcap", &a), ("b.pcap", &b)].map(|(file, veth)| Player::start(directory, file, &veth.outside, &pace));
        let sent = players.map(Player::sent);
        let seconds = started.elapsed().as_secs_f64();
        let report = run.stop();
        let lost: u64 = [&a, &b].map(|veth| queues(&report, &veth.inside, "rx_ring_full")).iter().sum();
        eprintln!("{} packets in {seconds:.2} s, {lost} found the receive ring full", sent[0] + sent[1]);
        check_sent(&report, &a, sent[0]);
        check_sent(&report, &b, sent[1]);
        check_store(&report, directory);
        assert!(emitted(&report) > 0, "something was captured: {report}");
        assert!(sent.iter().all(|&sent| sent > 20_000), "{sent:?}");
        for side in [&a, &b] {
            assert!(queues(&report, &side.inside, "received") > 0, "{}", side.inside);
            assert_eq!(queues(&report, &side.inside, "unstamped"), 0, "{}", side.inside);
        }
        done(directory, &["store", "verify", "store"]);
    });
}

#[test]
fn at_one_packet_a_second_each_is_stored_without_further_traffic() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 2, 1500);
        let run = Run::start(folder.path(), &Config { sides: sides([&veth]), ..Config::default() });
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 50));
        for count in 1..=3_u64 {
            sender.send(&publisher.frame(1));
            // The default flush bound is a second. What a reader of the live store finds is what is on disk.
            until("the message is in the store", || {
                let told = output(folder.path(), &["store", "query", "store", "--format", "jsonl"]);
                let found = read_rows(&String::from_utf8_lossy(&told.stdout));
                (found.values().next()?.len() as u64 == count).then_some(())
            });
        }
        let report = run.stop();
        check_sent(&report, &veth, 3);
        check_store(&report, folder.path());
    });
}

#[test]
fn tagged_frames_and_frames_with_options_are_captured() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let run = Run::start(folder.path(), &Config { sides: sides([&veth]), ..Config::default() });
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 60));
        let tags: [&[(u16, u16)]; 4] = [&[], &[(VLAN, 7)], &[(SERVICE, 7), (VLAN, 8)], &[(VLAN, 7), (VLAN, 8)]];
        let options: [&[u8]; 3] = [&[], &[0x94, 4, 0, 0], &[1; 40]];
        for tags in tags {
            for options in options {
                let payload = publisher.segment(2);
                let udp = Udp { tags: tags.to_vec(), options: options.to_vec(), ..Udp::to(GROUP, PORT, &payload) };
                sender.send(&udp.frame());
            }
        }
        run.until("all came", |status| emitted(status) == 24);
        let report = run.stop();
        check_sent(&report, &veth, 12);
        check_store(&report, folder.path());
        let found = stored(folder.path(), "store");
        let bodies = found.values().next().expect("one stream");
        assert_eq!(bodies.len(), 24);
        assert!(bodies.iter().all(|(&sequence, body)| *body == Publisher::body(sequence, 60)));
    });
}

/// The addresses of a version 3 report's records that answer a query (mode is exclude).
fn answered(frame: &[u8]) -> Vec<Ipv4Addr> {
    let header = usize::from(frame[14] & 15) * 4;
    if frame[12..14] != [8, 0] || frame[23] != 2 || frame[14 + header] != 0x22 {
        return Vec::new();
    }
    let igmp = &frame[14 + header..];
    let (mut at, mut groups) = (8, Vec::new());
    for _ in 0..u16::from_be_bytes([igmp[6], igmp[7]]) {
        let sources = usize::from(u16::from_be_bytes([igmp[at + 2], igmp[at + 3]]));
        if igmp[at] == 2 {
            groups.push(Ipv4Addr::new(igmp[at + 4], igmp[at + 5], igmp[at + 6], igmp[at + 7]));
        }
        at += 8 + 4 * sources;
    }
    groups
}

#[test]
fn thirty_memberships_are_held_and_a_query_is_answered_while_capturing() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        veth.address("10.9.0.2/24");
        // More than one socket may join (igmp_max_memberships is 20).
        let groups: Vec<Ipv4Addr> = (1..=30).map(|last| Ipv4Addr::new(239, 192, 0, last)).collect();
        let named = groups.iter().map(|group| format!("{group}:{PORT}")).collect();
        let hears = Raw::listening(&veth.outside);
        let run = Run::start(folder.path(), &Config { sides: sides([&veth]), groups: named, ..Config::default() });
        let joined = std::fs::read_to_string("/proc/thread-self/net/igmp").expect("readable");
        for group in &groups {
            let shown = format!("{:08X}", u32::from_le_bytes(group.octets()));
            assert!(joined.contains(&shown), "{group} is not in\n{joined}");
        }
        // A general query of version 3, answers within 0.1 s.
        let mut igmp = vec![0x11, 1, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0];
        let sum = crate::common::frames::checksum(&igmp).to_be_bytes();
        igmp[2..4].copy_from_slice(&sum);
        let (querier, all) = (Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(224, 0, 0, 1));
        let query = ethernet([1, 0, 0x5e, 0, 0, 1], &[], 0x0800, &ipv4_ttl_1(&igmp, querier, all));
        let mut publisher = Publisher::new(7, 50);
        hears.send(&publisher.frame(1));
        hears.send(&query);
        let mut answers = BTreeSet::new();
        until("every group is reported", || {
            while let Some(frame) = hears.heard() {
                answers.extend(answered(&frame));
            }
            groups.iter().all(|group| answers.contains(group)).then_some(())
        });
        hears.send(&publisher.frame(1));
        run.until("the feed goes on", |status| emitted(status) == 2);
        let report = run.stop();
        check_sent(&report, &veth, 3);
        assert_eq!(report["capture"]["xdp"][0]["frames"]["passed"], 1, "the query");
        let after = std::fs::read_to_string("/proc/thread-self/net/igmp").expect("readable");
        assert!(!after.contains("1E00C0EF"), "left at the end:\n{after}");
    });
}

fn ipv4_ttl_1(body: &[u8], source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    let mut packet = ipv4(2, source, destination, &[0x94, 4, 0, 0], 0, body);
    packet[8] = 1;
    packet[10..12].fill(0);
    let sum = crate::common::frames::checksum(&packet[..24]).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet
}

/// Sends segments without a pause until it is dropped.
struct Flood {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Flood {
    /// The same frames into every interface.
    fn start(veths: &[&Veth]) -> Flood {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        // A thread starts in its parent's namespace.
        let senders: Vec<Raw> = veths.iter().map(|veth| Raw::sender(&veth.outside)).collect();
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut publisher, mut sent) = (Publisher::new(7, 60), 0);
            while !asked.load(std::sync::atomic::Ordering::Relaxed) {
                let frame = publisher.frame(1);
                senders.iter().for_each(|sender| sender.send(&frame));
                sent += 1;
            }
            sent
        });
        Flood { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Starts and stops the capture while frames come at full pace.
fn started_and_stopped_under_full_traffic(directory: &Path, veths: [&Veth; 2], mode: &str, signal: Signal) {
    let interface = format!("ring = 1024\nframes = 8192\nzero_copy = \"off\"\nmode = \"{mode}\"");
    let config = Config { sides: sides(veths), interface: &interface, ..Config::default() };
    let flood = Flood::start(&veths);
    let run = Run::start(directory, &config);
    let status = run.until("traffic", |status| emitted(status) > 500);
    assert_eq!(status["capture"]["interfaces"][0]["xdp"], mode);
    let report = run.stop_by(signal);
    drop(flood);
    veths.iter().for_each(|veth| detached(&veth.inside));
    check_store(&report, directory);
}

#[test]
fn sigterm_under_full_traffic_drains_seals_and_detaches() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let (a, b) = (Veth::new("a", 2, 1500), Veth::new("b", 1, 1500));
        started_and_stopped_under_full_traffic(directory, [&a, &b], "native", Signal::SIGTERM);
        let files: Vec<String> = std::fs::read_dir(directory.join("store"))
            .expect("readable")
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        assert!(!files.iter().any(|name| name.ends_with(".partial")), "{files:?}");
        let info: Value = serde_json::from_str(&done(directory, &["store", "info", "store", "--json"])).expect("JSON");
        let segments = info["segments"].as_array().expect("segments");
        assert!(!segments.is_empty() && segments.iter().all(|segment| segment["sealed"] == true), "{info}");
        done(directory, &["store", "verify", "store"]);
    });
}

#[test]
fn sigterm_under_full_traffic_loses_nothing_in_generic_mode_either() {
    netns::run(|| {
        let folder = workspace();
        let (a, b) = (Veth::new("a", 2, 1500), Veth::new("b", 1, 1500));
        started_and_stopped_under_full_traffic(folder.path(), [&a, &b], "generic", Signal::SIGTERM);
    });
}

#[test]
fn sigint_under_full_traffic_drains_and_seals_as_sigterm_does() {
    netns::run(|| {
        let folder = workspace();
        let (a, b) = (Veth::new("a", 1, 1500), Veth::new("b", 1, 1500));
        started_and_stopped_under_full_traffic(folder.path(), [&a, &b], "native", Signal::SIGINT);
        let info: Value =
            serde_json::from_str(&done(folder.path(), &["store", "info", "store", "--json"])).expect("JSON");
        let segments = info["segments"].as_array().expect("segments");
        assert!(!segments.is_empty() && segments.iter().all(|segment| segment["sealed"] == true), "{info}");
    });
}

#[test]
fn frames_of_several_buffers_are_captured_and_raw_frames_are_kept_as_they_came() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 9000);
        let config = Config { sides: sides([&veth]), feed: "link = 1024\nrecord = \"both\"", ..Config::default() };
        let run = Run::start(directory, &config);
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 1000));
        let mut frames: Vec<Vec<u8>> = (0..20).map(|index| publisher.frame(1 + index % 8)).collect();
        // No segment: kept raw all the same.
        frames.push(Udp::to(GROUP, PORT, b"this is no segment").frame());
        frames.iter().for_each(|frame| sender.send(frame));
        let end = publisher.next;
        run.until("captured", |status| emitted(status) == end - 1);
        let report = run.stop();
        check_sent(&report, &veth, 21);
        assert_eq!(report["capture"]["interfaces"][0]["multi_buffer"], true);
        let rows = done(directory, &["store", "query", "store", "--format", "jsonl"]);
        let bodies = read_rows(&rows).into_values().next().expect("one stream");
        assert!(bodies.keys().copied().eq(1..end));
        assert!(bodies.iter().all(|(&sequence, body)| *body == Publisher::body(sequence, 1000)));
        let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let raw: Vec<Vec<u8>> =
            rows.filter(|row| row["kind"] == "raw").map(|row| unhex(row["body"].as_str().expect("a body"))).collect();
        assert_eq!(raw.len(), frames.len());
        assert!(raw == frames, "the raw frames are the sent ones, in order");
    });
}

#[test]
fn an_interface_is_captured_through_libpcap_in_builds_that_have_it() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        let interface = "ring = 1024\nframes = 8192\nthrough = \"libpcap\"";
        let config = Config { sides: sides([&veth]), interface, ..Config::default() };
        if !cfg!(feature = "libpcap") {
            let refused = output(directory, &["run", config.write(directory)]);
            let told = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(refused.status.code() == Some(2) && told.contains("--features libpcap"), "{told}");
            return;
        }
        let run = Run::start(directory, &config);
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(9, 40));
        let frames: Vec<Vec<u8>> = (0..200).map(|index| publisher.frame(1 + index % 3)).collect();
        frames.iter().for_each(|frame| sender.send(frame));
        let end = publisher.next;
        run.until("captured", |status| emitted(status) == end - 1);
        let report = run.stop();
        assert_eq!(report["capture"]["interfaces"][0]["xdp"], "none (libpcap)");
        let rows = done(directory, &["store", "query", "store", "--format", "jsonl"]);
        let bodies = read_rows(&rows).into_values().next().expect("one stream");
        assert!(bodies.keys().copied().eq(1..end));
    });
}

#[test]
fn an_interface_that_goes_away_ends_the_process_with_a_reason() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 1, 1500);
        let mut run = Run::start(folder.path(), &Config { sides: sides([&veth]), ..Config::default() });
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 60));
        (0..10).for_each(|_| sender.send(&publisher.frame(1)));
        run.until("captured", |status| emitted(status) == 10);
        ip(&format!("link del {}", veth.outside));
        let code = until("it ends", || run.ended());
        assert_eq!(code, 4, "{}", run.log());
        assert!(
            run.log().contains("interface \\\"vi\\\" is gone") || run.log().contains("\"vi\" is gone"),
            "{}",
            run.log()
        );
        // What came before is in the store, sealed.
        assert_eq!(stored(folder.path(), "store").values().next().map(|bodies| bodies.len()), Some(10));
    });
}

#[test]
fn an_interface_that_is_down_at_the_start_is_captured_once_it_is_up() {
    netns::run(|| {
        let folder = workspace();
        let veth = Veth::new("v", 2, 1500);
        ip(&format!("link set {} down", veth.inside));
        let run = Run::start(folder.path(), &Config { sides: sides([&veth]), ..Config::default() });
        ip(&format!("link set {} up", veth.inside));
        until("the link is up", || Interface::find(&veth.outside).expect("there").carrier.then_some(()));
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 60));
        (0..10).for_each(|_| sender.send(&publisher.frame(1)));
        run.until("captured", |status| emitted(status) == 10);
        let report = run.stop();
        check_sent(&report, &veth, 10);
        check_store(&report, folder.path());
    });
}

#[test]
fn hardware_filters_are_opened_as_configured_and_closed_at_the_end() {
    netns::run(|| {
        let veth = Veth::new("v", 1, 1500);
        let counts = || {
            let told: Value = serde_json::from_str(&command("ip", "-d -j link show vi")).expect("JSON");
            (told[0]["promiscuity"].as_u64().unwrap_or(0), told[0]["allmulti"].as_u64().unwrap_or(0))
        };
        for (setting, expected) in [("off", (0, 0)), ("all_multicast", (0, 1)), ("on", (1, 0))] {
            let folder = workspace();
            let interface = format!("ring = 1024\nframes = 8192\nzero_copy = \"off\"\npromiscuous = \"{setting}\"");
            let config = Config { sides: sides([&veth]), interface: &interface, ..Config::default() };
            let run = Run::start(folder.path(), &config);
            assert_eq!(counts(), expected, "{setting}");
            run.stop();
            assert_eq!(counts(), (0, 0), "after {setting}");
        }
    });
}

#[test]
fn the_checks_of_these_tests_can_fail() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        let run = Run::start(directory, &Config { sides: sides([&veth]), ..Config::default() });
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 60));
        (0..10).for_each(|_| sender.send(&publisher.frame(1)));
        run.until("captured", |status| emitted(status) == 10);
        let report = run.stop();
        let fails = |check: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err();
        assert!(!fails(&|| check_store(&report, directory)) && !fails(&|| check_sent(&report, &veth, 10)));
        assert!(fails(&|| check_sent(&report, &veth, 11)));
        let changed = |pointer: &str, value: Value| {
            let mut report = report.clone();
            *report.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
            report
        };
        let stream = "/capture/feeds/0/report/streams/0";
        assert!(fails(&|| check_identities(&changed("/capture/conservation/0/residue", 1.into()))));
        assert!(fails(&|| check_store(&changed(&format!("{stream}/frontier"), 12.into()), directory)));
        assert!(fails(&|| check_store(&changed(&format!("{stream}/gaps"), serde_json::json!([[3, 3]])), directory)));
        assert!(fails(&|| check_store(&changed("/stores/0/stored", 9.into()), directory)));
    });
}

/// Where the last block that is not empty ends in a file (blocks are aligned to 4 KiB).
fn written_end(bytes: &[u8]) -> usize {
    let last = bytes.chunks(4096).rposition(|page| page.iter().any(|&byte| byte != 0)).expect("something was written");
    (last + 1) * 4096
}

#[test]
fn after_kill_9_nothing_is_attached_and_the_torn_store_needs_no_operator() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 2, 1500);
        let config =
            Config { sides: sides([&veth]), store: "segment = \"8MiB\"\nflush = \"50ms\"", ..Config::default() };
        let run = Run::start(directory, &config);
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 200));
        // Some flushes apart, so that several blocks lie in the file.
        for burst in 1..=3 {
            (0..20).for_each(|_| sender.send(&publisher.frame(5)));
            run.until("stored", |status| status["stores"][0]["stored"].as_u64() == Some(burst * 100));
        }
        run.kill();
        detached(&veth.inside);
        // What a cut during the last write leaves: the last block's second half is missing.
        let entry =
            std::fs::read_dir(directory.join("store")).expect("readable").map(|entry| entry.expect("entry").path());
        let torn = entry.filter(|path| path.to_string_lossy().contains(".partial")).min().expect("an open segment");
        let mut bytes = std::fs::read(&torn).expect("readable");
        let end = written_end(&bytes);
        bytes[end - 8192..].fill(0);
        std::fs::write(&torn, &bytes).expect("writable");
        // Queries work as it is; damage is told by the exit code.
        let told = output(directory, &["store", "query", "store", "--format", "jsonl"]);
        assert!([Some(0), Some(3)].contains(&told.status.code()), "{}", String::from_utf8_lossy(&told.stderr));
        let kept = read_rows(&String::from_utf8_lossy(&told.stdout)).into_values().next().expect("one stream");
        assert!((100..300).contains(&kept.len()), "the last block is gone, the others are there: {}", kept.len());
        assert!(kept.keys().copied().eq(1..=kept.len() as u64), "whole blocks from the beginning");
        // The next start recovers by itself, says what is lost, and goes on in a new segment.
        let run = Run::start(directory, &config);
        sender.send(&publisher.frame(5));
        let status = run.until("recovered", |status| status["stores"][0]["told"].to_string().contains("recovered"));
        let said = status["stores"][0]["told"].to_string();
        let name = torn.file_name().expect("a name").to_string_lossy().replace(".partial", "");
        let first_lost = kept.len() as u64 + 1;
        assert!(said.contains(&name) && said.contains("bytes at"), "file, bytes, offset: {said}");
        assert!(said.contains(&format!("from {first_lost}")), "the first sequence lost, {first_lost}: {said}");
        assert!(run.log().contains("recovered"), "{}", run.log());
        run.until("captured", |status| emitted(status) == 5);
        run.stop();
        let all = output(directory, &["store", "query", "store", "--format", "jsonl"]);
        let all = read_rows(&String::from_utf8_lossy(&all.stdout));
        let sequences: BTreeSet<u64> = all.values().flat_map(|bodies| bodies.keys().copied()).collect();
        assert!(sequences.into_iter().eq((1..first_lost).chain(301..=305)), "old and new");
    });
}

#[test]
fn a_stopped_process_loses_what_it_counts_and_goes_on_by_itself() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 2, 1500);
        let config = Config {
            sides: sides([&veth]),
            interface: "ring = 256\nframes = 2048\nzero_copy = \"off\"",
            feed: "link = 256",
            // Shorter than the stop: a process that was stopped as a whole has no stalled core.
            control: "stall = \"1500ms\"",
            ..Config::default()
        };
        let mut run = Run::start(directory, &config);
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 60));
        let mut sent = 0;
        let mut send = |frames: u64, every: Duration| {
            for _ in 0..frames {
                sender.send(&publisher.frame(2));
                clock::sleep(every);
            }
            sent += frames;
            publisher.next
        };
        send(200, Duration::from_micros(100));
        run.until("captured", |status| emitted(status) > 100);
        run.halt();
        let stopped = Instant::now();
        while stopped.elapsed() < Duration::from_secs(2) {
            send(100, Duration::from_micros(500));
        }
        run.signal(Signal::SIGCONT);
        let resumed = send(0, Duration::ZERO);
        run.until("it answers", |_| true);
        let end = send(500, Duration::from_millis(1));
        run.until("it captures what comes now", |status| {
            streams(status).first().is_some_and(|stream| number(stream, "frontier") > resumed + (end - resumed) / 2)
        });
        assert!(run.ended().is_none(), "it must not end itself: {}", run.log());
        let report = run.stop();
        let lost = queues(&report, &veth.inside, "rx_ring_full") + queues(&report, &veth.inside, "rx_dropped");
        assert!(lost > 0, "2 s of 2,000 packets a second do not fit 256 descriptors: {report}");
        check_sent(&report, &veth, sent);
        check_store(&report, directory);
    });
}

#[test]
fn a_link_that_goes_down_and_up_costs_its_side_only() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let (a, b) = (Veth::new("a", 2, 1500), Veth::new("b", 2, 1500));
        let config = Config { sides: sides([&a, &b]), feed: "link = 1024\nhold = \"5s\"", ..Config::default() };
        let run = Run::start(directory, &config);
        let senders = [&a, &b].map(|veth| Raw::sender(&veth.outside));
        let mut publisher = Publisher::new(7, 60);
        let mut send = |frames: u64| {
            for _ in 0..frames {
                let frame = publisher.frame(2);
                senders[0].try_send(&frame);
                senders[1].send(&frame);
                clock::sleep(Duration::from_micros(200));
            }
        };
        send(500);
        ip(&format!("link set {} down", a.inside));
        send(500);
        ip(&format!("link set {} up", a.inside));
        until("the link is back", || Interface::find(&a.outside).expect("there").carrier.then_some(()));
        let before = queues(&run.status(), &a.inside, "received");
        send(500);
        run.until("A receives again", |status| queues(status, &a.inside, "received") > before);
        let told = |what: &str| run.log().lines().filter(|line| line.contains(what)).count();
        until("down and up are logged", || (told("link is down") == 1 && told("link is up") == 1).then_some(()));
        let metrics = get("/metrics").expect("answers");
        let inside = &a.inside;
        for line in [
            format!("sluice_capture_link_up{{interface=\"{inside}\"}} 1.0"),
            format!("sluice_capture_link_changes_total{{interface=\"{inside}\"}} 2.0"),
        ] {
            assert!(metrics.lines().any(|other| other == line), "{line:?} is not in\n{metrics}");
        }
        let report = run.stop();
        check_store(&report, directory);
        let stream = &streams(&report)[0];
        assert!(number(&stream["sides"][0], "lost") > 0, "A missed some: {stream:#}");
        assert!(number(&stream["sides"][0], "recovered") > 0, "B supplied them: {stream:#}");
        // B's own loss (a full ring on a busy machine) is counted; without it nothing is missing.
        let b_lost = set(&stream["sides"][1]["gaps"]).len() as u64;
        assert!(number(stream, "unique") + number(stream, "late_fill") + b_lost >= 3000, "{stream:#}");
    });
}

#[test]
fn a_silent_side_times_out_and_returns() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let (a, b) = (Veth::new("a", 1, 1500), Veth::new("b", 1, 1500));
        // The hold is so long that only the side timeout can end the wait.
        let feed = "link = 1024\nhold = \"10m\"\nside_timeout = \"300ms\"";
        let run = Run::start(directory, &Config { sides: sides([&a, &b]), feed, ..Config::default() });
        let senders = [&a, &b].map(|veth| Raw::sender(&veth.outside));
        let mut publisher = Publisher::new(7, 60);
        let mut send = |to: &[usize]| {
            let frame = publisher.frame(1);
            to.iter().for_each(|&side| senders[side].send(&frame));
        };
        (0..10).for_each(|_| send(&[0, 1]));
        run.until("both", |status| emitted(status) == 10);
        // 11 to A, 12 to nobody, 13 to 15 to A: held, until B is dead.
        send(&[0]);
        send(&[]);
        (0..3).for_each(|_| send(&[0]));
        let status = run.until("B's death ends the wait", |status| emitted(status) == 14);
        assert_eq!(streams(&status)[0]["gaps"], serde_json::json!([[12, 12]]));
        // B returns: 16 reaches B alone, 17 both.
        send(&[1]);
        send(&[0, 1]);
        run.until("B supplies what A lacks", |status| emitted(status) == 16);
        let report = run.stop();
        check_store(&report, directory);
        let stream = &streams(&report)[0];
        assert_eq!(stream["gaps"], serde_json::json!([[12, 12]]), "{stream:#}");
        assert_eq!(number(&stream["sides"][0], "recovered"), 1, "16 on A: {stream:#}");
        assert_eq!(number(&stream["sides"][1], "recovered"), 4, "11, 13 to 15 on B: {stream:#}");
    });
}

/// A file system of its own, seen by this thread and what it starts alone. Dropped, it is gone, so that its directory can go too.
pub struct SmallDisk(Vec<PathBuf>);

impl SmallDisk {
    pub fn new(at: &Path, mib: u32) -> SmallDisk {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("a mount namespace for this thread");
        command("mount", "--make-rprivate /");
        command("mount", &format!("-t tmpfs -o size={mib}m tmpfs {}", at.display()));
        SmallDisk(vec![at.into()])
    }

    /// Shows a directory of this file system, which is made, at another place too.
    pub fn also_at(&mut self, name: &str, at: &Path) {
        let inside = self.0[0].join(name);
        std::fs::create_dir(&inside).expect("room");
        command("mount", &format!("--bind {} {}", inside.display(), at.display()));
        self.0.push(at.into());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            let _ = std::process::Command::new("umount").arg("--lazy").arg(at).status();
        }
    }
}

#[test]
fn a_full_disk_costs_exactly_what_is_told_and_writing_resumes() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        std::fs::create_dir(directory.join("store")).expect("writable");
        let _disk = SmallDisk::new(&directory.join("store"), 12);
        let filler = directory.join("store/filler");
        std::fs::write(&filler, vec![1; 7 << 20]).expect("room");
        let veth = Veth::new("v", 1, 1500);
        let store = "segment = \"4MiB\"\nblock = \"128KiB\"\nblocks_in_flight = 8\nflush = \"50ms\"";
        let run = Run::start(directory, &Config { sides: sides([&veth]), store, ..Config::default() });
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 1300));
        let mut send = |frames: u64| {
            for _ in 0..frames {
                sender.send(&publisher.frame(1));
                clock::sleep(Duration::from_micros(50));
            }
        };
        let lost = |status: &Value| status["stores"][0]["lost_by_cause"]["no_space"].as_u64().expect("a count");
        let started = Instant::now();
        while lost(&run.status()) < 500 {
            send(500);
            assert!(started.elapsed() < PATIENCE, "the disk does not fill: {:#}", run.status()["stores"]);
        }
        assert!(get("/readyz").is_ok(), "the capture goes on");
        for _ in 0..20 {
            assert_eq!(run.status()["stores"][0]["full"], true, "steady while it is full");
            clock::sleep(Duration::from_millis(50));
        }
        std::fs::remove_file(&filler).expect("there");
        let (freed, before) = (Instant::now(), run.status()["stores"][0]["stored"].as_u64().expect("a count"));
        while run.status()["stores"][0]["stored"].as_u64().expect("a count") == before {
            send(20);
            assert!(freed.elapsed() < PATIENCE, "writing does not resume: {:#}", run.status()["stores"]);
        }
        let resumed = freed.elapsed();
        send(50);
        run.until("it is not full any more", |status| status["stores"][0]["full"] == false);
        let told = |what: &str| run.log().lines().filter(|line| line.contains(what)).count();
        assert_eq!((told("no segment"), told("has room again")), (1, 1), "{}", run.log());
        let store = &run.status()["stores"][0];
        assert_eq!(number(store, "full_times"), 1);
        assert!(number(store, "failed_segments") > 3, "tried all the while: {store:#}");
        let report = run.stop();
        check_store(&report, directory);
        let losses = report["stores"][0]["losses"].as_array().expect("ranges");
        assert!(losses.iter().any(|loss| loss["cause"] == "no_space"), "{losses:?}");
        let ranges: u64 = losses.iter().map(|loss| number(loss, "last") - number(loss, "first") + 1).sum();
        assert_eq!(report["stores"][0]["lost"].as_u64(), Some(ranges), "the ranges hold every loss: {losses:?}");
        // The holes that a re-read finds are these and the marks that were lost beside them.
        let verified = output(directory, &["store", "verify", "store", "--json"]);
        let verified: Value = serde_json::from_slice(&verified.stdout).expect("JSON");
        let store = &report["stores"][0];
        assert_eq!(number(&verified, "arrival_holes"), ranges + number(store, "lost_marks"), "{store:#}");
        assert_eq!(number(&verified, "records"), number(store, "stored") + number(store, "stored_marks"), "{store:#}");
        eprintln!("writing resumed {resumed:?} after space was freed");
        // The product's word is a second; a busy machine gets its share of patience.
        assert!(resumed < PATIENCE, "{resumed:?}");
    });
}

#[test]
fn retention_by_size_deletes_the_oldest_only() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        let store = "segment = \"1MiB\"\nblock = \"128KiB\"\nflush = \"50ms\"\nretain = \"4MiB\"";
        let run = Run::start(directory, &Config { sides: sides([&veth]), store, ..Config::default() });
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 1300));
        for burst in 1..=8_u64 {
            for _ in 0..1000 {
                sender.send(&publisher.frame(1));
                clock::sleep(Duration::from_micros(50));
            }
            run.until("captured", |status| {
                streams(status).first().is_some_and(|s| number(s, "frontier") > burst * 900)
            });
        }
        run.until("removed", |status| status["stores"][0]["told"].to_string().contains("removed"));
        let report = run.stop();
        let stream = &streams(&report)[0];
        let found = stored(directory, "store");
        let kept: BTreeSet<u64> = found.values().flat_map(|bodies| bodies.keys().copied()).collect();
        let first = *kept.first().expect("something is kept");
        assert!(first > 1, "the oldest are gone");
        let mut expected: BTreeSet<u64> = (first..number(stream, "frontier")).collect();
        expected.retain(|sequence| !set(&stream["gaps"]).contains(sequence));
        assert_eq!(report["stores"][0]["lost"], 0);
        let missing: Vec<u64> = expected.symmetric_difference(&kept).copied().take(20).collect();
        assert!(missing.is_empty(), "from {first} on everything is there, but for {missing:?}");
        let size: u64 = std::fs::read_dir(directory.join("store"))
            .expect("readable")
            .map(|entry| entry.expect("entry").metadata().expect("readable").len())
            .sum();
        assert!((2 << 20..=6 << 20).contains(&size), "{size} bytes are kept of 4 MiB and what is being written");
    });
}

#[test]
fn stat_metrics_and_health_tell_of_a_running_appliance() {
    netns::run(|| {
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 2, 1500);
        let run = Run::start(directory, &Config { sides: sides([&veth]), ..Config::default() });
        let (sender, mut publisher) = (Raw::sender(&veth.outside), Publisher::new(7, 60));
        (0..100).for_each(|_| sender.send(&publisher.frame(2)));
        run.until("captured", |status| emitted(status) > 0 && status["capture"]["residue"] == 0);
        for how in [&["stat", "config.toml"][..], &["stat", "--control", CONTROL], &["stat"]] {
            let text = done(directory, how);
            assert!(text.contains(&veth.inside) && text.contains("iex-tp/0x8004/1"), "{how:?}: {text}");
            let json = done(directory, &[how, &["--json"]].concat());
            let json: Value = serde_json::from_str(&json).expect("JSON");
            assert!(emitted(&json) > 0 && json["stores"][0]["store"] == "main", "{json}");
        }
        assert_eq!(get("/readyz").expect("answers"), "ok\n");
        let metrics = get("/metrics").expect("answers");
        let mut names = BTreeSet::new();
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
            assert!(value.parse::<f64>().is_ok(), "the value of {line}");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            assert!(name.starts_with("sluice_") && labels.ends_with('}'), "{line}");
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
                "{line}"
            );
            names.insert(name.to_owned());
        }
        for name in ["capture_frames_total", "capture_xdp_frames_total", "store_stored_records_total"] {
            assert!(names.contains(&format!("sluice_{name}")), "{name} in {names:?}");
        }
        assert!(metrics.trim_end().ends_with("# EOF"));
        run.stop();
        let gone = output(directory, &["stat"]);
        assert_eq!(gone.status.code(), Some(4));
    });
}

/// UDP payloads of a capture as tshark reads them.
fn payloads(directory: &Path, file: &str) -> Vec<Vec<u8>> {
    let told = std::process::Command::new("tshark")
        .current_dir(directory)
        .args(["-n", "-r", file, "-T", "fields", "-e", "udp.payload"])
        .output()
        .expect("tshark runs");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let text = String::from_utf8(told.stdout).expect("text");
    text.lines().map(|line| unhex(&line.trim().replace(':', ""))).collect()
}

/// (session, sequence, body) of every message in IEX-TP payloads.
fn messages(payloads: &[Vec<u8>]) -> Vec<(u32, u64, Vec<u8>)> {
    let mut messages = Vec::new();
    for payload in payloads {
        let session = u32::from_le_bytes(payload[8..12].try_into().expect("4 bytes"));
        let count = u16::from_le_bytes([payload[14], payload[15]]);
        let first = u64::from_le_bytes(payload[24..32].try_into().expect("8 bytes"));
        let mut at = 40;
        for sequence in first..first + u64::from(count) {
            let bytes = usize::from(u16::from_le_bytes([payload[at], payload[at + 1]]));
            messages.push((session, sequence, payload[at + 2..at + 2 + bytes].to_vec()));
            at += 2 + bytes;
        }
        assert_eq!(at, payload.len(), "the messages fill the payload");
    }
    messages
}

#[test]
fn what_was_sent_is_what_a_foreign_reader_finds_in_an_export() {
    netns::run(|| {
        if std::process::Command::new("tshark").arg("-v").output().is_err() {
            return crate::common::skip("no tshark", false);
        }
        let folder = workspace();
        let directory = folder.path();
        let veth = Veth::new("v", 1, 1500);
        let generate = ["feed", "generate", "--protocol", "deep", "--messages", "3000", "--out", "session.pcapng"];
        done(directory, &generate);
        let run = Run::start(directory, &Config { sides: sides([&veth]), ..Config::default() });
        let sent = Player::start(directory, "session.pcapng", &veth.outside, &["--rate", "2k"]).sent();
        let report = run.stop();
        check_sent(&report, &veth, sent);
        check_store(&report, directory);
        done(directory, &["store", "export", "store", "--format", "pcapng", "--out", "export.pcapng"]);
        let wanted = messages(&payloads(directory, "session.pcapng"));
        let found = messages(&payloads(directory, "export.pcapng"));
        assert_eq!(wanted.len(), 3000);
        let lost = queues(&report, &veth.inside, "rx_ring_full") + queues(&report, &veth.inside, "rx_dropped");
        if lost == 0 && Interface::find(&veth.outside).expect("there").statistics().expect("told").tx_dropped == 0 {
            assert_eq!(found, wanted);
        } else {
            let wanted: BTreeSet<_> = wanted.into_iter().collect();
            assert!(!found.is_empty() && found.iter().all(|message| wanted.contains(message)));
        }
    });
}
