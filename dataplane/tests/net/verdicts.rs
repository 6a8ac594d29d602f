//! The XDP program, verdict by verdict, under `BPF_PROG_TEST_RUN`: no frame is sent.
//!
//! `SLUICE_BPF_OBJECT` names another object to judge (`cargo xtask bpf --check` compares two this way).

use std::net::Ipv4Addr;

use sluice::sys::bpf::{
    Destination, METADATA_BYTES, METADATA_MAGIC, OBJECT, QueueCounters, Reason, XDP_PASS, XDP_REDIRECT, XdpProgram,
    XdpSettings,
};
use sluice::sys::clock;
use sluice::sys::nic::{FrameChoice, Interface};
use sluice::sys::xsk::{XskQueue, XskSettings};
use sluice::units::AreaId;

use crate::common::frames::{SERVICE, Udp, VLAN, ethernet, ipv4};
use crate::common::netns::{self, Veth};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const UNICAST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PORT: u16 = 10_378;
/// Queues of the interface; the last has no socket.
const QUEUES: u32 = 4;
/// More fragments follow.
const MORE: u16 = 0x2000;

/// The program on a 4-queue interface of its own, with a socket on each queue but the last.
struct Bench {
    program: XdpProgram,
    _queues: Vec<XskQueue>,
}

impl Bench {
    fn new(settings: XdpSettings) -> Bench {
        let veth = Veth::new("v", QUEUES, 1500);
        let interface = Interface::find(&veth.inside).expect("just made");
        let destinations = [(GROUP, PORT), (GROUP, PORT + 1), (UNICAST, PORT)];
        let destinations = destinations.map(|(address, port)| Destination { address, port }).to_vec();
        let settings = XdpSettings { destinations, ..settings };
        let object = match std::env::var_os("SLUICE_BPF_OBJECT") {
            Some(path) => std::fs::read(path).expect("the object that SLUICE_BPF_OBJECT names"),
            None => OBJECT.to_vec(),
        };
        let mut program = XdpProgram::load_object(&object, &interface, &settings).expect("loads as root");
        let queues: Vec<XskQueue> =
            (0..QUEUES - 1).map(|queue| XskQueue::open(&interface, &small(queue)).expect("a free queue")).collect();
        for queue in &queues {
            program.insert_socket(queue.queue(), queue.fd()).expect("a queue of the interface");
        }
        Bench { program, _queues: queues }
    }

    /// Runs one frame; the verdict, the frame as left, and what moved on each queue.
    fn run(&mut self, frame: &[u8], queue: u32) -> (u32, Vec<u8>, Vec<QueueCounters>) {
        let before = self.program.counters().expect("readable");
        let verdict = self.program.test_run(frame, queue).expect("runs");
        let after = self.program.counters().expect("readable");
        let moved = after.iter().zip(&before).map(|(after, before)| after.since(before)).collect();
        (verdict.action, verdict.frame, moved)
    }

    /// One frame on one queue must count under exactly `reason` there, and stay as it was.
    #[track_caller]
    fn expect(&mut self, what: &str, frame: &[u8], queue: u32, reason: Reason) {
        let (action, left, moved) = self.run(frame, queue);
        let expected = if reason == Reason::Redirected { XDP_REDIRECT } else { XDP_PASS };
        let counts: Vec<Vec<u64>> =
            moved.iter().map(|queue| Reason::ALL.map(|reason| queue.get(reason)).to_vec()).collect();
        let mut wanted = vec![vec![0; Reason::ALL.len()]; QUEUES as usize];
        wanted[queue as usize][reason as usize] = 1;
        assert_eq!(counts, wanted, "{what} on queue {queue}: by queue, in the order {:?}", Reason::ALL);
        assert_eq!(action, expected, "{what}: verdict");
        let meta = if reason == Reason::Redirected { left.len() - frame.len() } else { 0 };
        assert_eq!(&left[meta..], frame, "{what}: the frame must not change");
    }
}

fn small(queue: u32) -> XskSettings {
    let frames = FrameChoice { frame_bytes: 2048, multi_buffer: false, packet_bytes_max: 1522 };
    XskSettings {
        frame_count: 64,
        fill_ring: 64,
        receive_ring: 64,
        huge_pages: false,
        ..XskSettings::new(queue, AreaId(queue as u16), frames)
    }
}

/// Both variants of the program, stamps on and off.
fn variants() -> Vec<XdpSettings> {
    let both = [false, true];
    let pairs = both.into_iter().flat_map(|multi_buffer| both.map(|stamp| (multi_buffer, stamp)));
    pairs.map(|(multi_buffer, stamp)| XdpSettings { multi_buffer, stamp, ..XdpSettings::default() }).collect()
}

fn in_each_variant(body: impl Fn(&mut Bench) + Send + Sync + Clone + 'static) {
    for settings in variants() {
        let body = body.clone();
        if netns::run(move || body(&mut Bench::new(settings))).is_none() {
            return;
        }
    }
}

fn wanted() -> Udp {
    Udp::to(GROUP, PORT, b"the payload of a datagram")
}

/// (name, frame, verdict): every kind of frame that a feed's port sees.
fn table() -> Vec<(&'static str, Vec<u8>, Reason)> {
    let tagged = |tags: &[(u16, u16)]| Udp { tags: tags.to_vec(), ..wanted() }.frame();
    let fragment = |fragment: u16| Udp { fragment, ..wanted() }.frame();
    let other = Ipv4Addr::new(239, 1, 2, 4);
    let igmp = ipv4(2, UNICAST, Ipv4Addr::new(224, 0, 0, 22), &[0x94, 4, 0, 0], 0, &[0x22, 0, 0, 0, 0, 0, 0, 1]);
    let mac = [1, 0, 0x5e, 0, 0, 22];
    vec![
        ("the group and port", wanted().frame(), Reason::Redirected),
        ("the group's other port", Udp::to(GROUP, PORT + 1, b"x").frame(), Reason::Redirected),
        ("a unicast destination", Udp::to(UNICAST, PORT, b"x").frame(), Reason::Redirected),
        ("no payload", Udp::to(GROUP, PORT, b"").frame(), Reason::Redirected),
        ("do-not-fragment", fragment(0x4000), Reason::Redirected),
        ("one VLAN tag", tagged(&[(VLAN, 7)]), Reason::Redirected),
        ("a priority tag", tagged(&[(VLAN, 0xe000)]), Reason::Redirected),
        ("two tags, 802.1ad", tagged(&[(SERVICE, 7), (VLAN, 8)]), Reason::Redirected),
        ("two tags, 802.1Q", tagged(&[(VLAN, 7), (VLAN, 8)]), Reason::Redirected),
        ("two tags, 0x9100", tagged(&[(0x9100, 7), (VLAN, 8)]), Reason::Redirected),
        ("three tags", tagged(&[(SERVICE, 7), (VLAN, 8), (VLAN, 9)]), Reason::Passed),
        ("4 bytes of options", Udp { options: vec![0x94, 4, 0, 0], ..wanted() }.frame(), Reason::Redirected),
        ("40 bytes of options", Udp { options: vec![1; 40], ..wanted() }.frame(), Reason::Redirected),
        (
            "options under two tags",
            Udp { options: vec![1; 12], tags: vec![(SERVICE, 1), (VLAN, 2)], ..wanted() }.frame(),
            Reason::Redirected,
        ),
        ("another port", Udp::to(GROUP, PORT + 2, b"x").frame(), Reason::Passed),
        ("another group", Udp::to(other, PORT, b"x").frame(), Reason::Passed),
        ("the group's port at the unicast address", Udp::to(UNICAST, PORT + 1, b"x").frame(), Reason::Passed),
        ("port 0", Udp::to(GROUP, 0, b"x").frame(), Reason::Passed),
        (
            "source and destination port swapped",
            Udp { source_port: PORT, ..Udp::to(GROUP, 40_000, b"x") }.frame(),
            Reason::Passed,
        ),
        ("first fragment", fragment(MORE), Reason::Fragment),
        ("middle fragment", fragment(MORE | 100), Reason::Fragment),
        ("last fragment", fragment(100), Reason::Fragment),
        ("tagged fragment", Udp { tags: vec![(VLAN, 3)], fragment: MORE, ..wanted() }.frame(), Reason::Fragment),
        ("fragment to another group", Udp { fragment: MORE, ..Udp::to(other, PORT, b"x") }.frame(), Reason::Passed),
        ("TCP to the group", ethernet(mac, &[], 0x0800, &ipv4(6, UNICAST, GROUP, &[], 0, &[0; 20])), Reason::Passed),
        ("IGMP report", ethernet(mac, &[], 0x0800, &igmp), Reason::Passed),
        (
            "IGMP query",
            ethernet(mac, &[], 0x0800, &ipv4(2, UNICAST, GROUP, &[0x94, 4, 0, 0], 0, &[0x11, 0, 0, 0, 0, 0, 0, 0])),
            Reason::Passed,
        ),
        ("tagged IGMP", ethernet(mac, &[(VLAN, 4)], 0x0800, &igmp), Reason::Passed),
        ("ICMP", ethernet(mac, &[], 0x0800, &ipv4(1, GROUP, UNICAST, &[], 0, &[8; 16])), Reason::Passed),
        ("ARP", ethernet([0xff; 6], &[], 0x0806, &[0; 28]), Reason::Passed),
        ("PTP over Ethernet", ethernet([1, 0x1b, 0x19, 0, 0, 0], &[], 0x88f7, &[0; 44]), Reason::Passed),
        ("PTP event over UDP", Udp::to(Ipv4Addr::new(224, 0, 1, 129), 319, &[0; 44]).frame(), Reason::Passed),
        ("PTP general over UDP", Udp::to(Ipv4Addr::new(224, 0, 1, 129), 320, &[0; 44]).frame(), Reason::Passed),
        ("LLDP", ethernet([1, 0x80, 0xc2, 0, 0, 0x0e], &[], 0x88cc, &[2, 7, 4, 1, 2, 3, 4, 5, 6]), Reason::Passed),
        ("spanning tree (length, no type)", ethernet([1, 0x80, 0xc2, 0, 0, 0], &[], 38, &[0x42; 38]), Reason::Passed),
        ("IPv6 UDP", ethernet([0x33, 0x33, 0, 0, 0, 1], &[], 0x86dd, &[0x60; 60]), Reason::Passed),
        ("MPLS", ethernet(mac, &[], 0x8847, &[0; 40]), Reason::Passed),
        ("empty frame of an unknown type", ethernet(mac, &[], 0x1234, &[]), Reason::Passed),
        ("IPv4 type, version 6 inside", with_byte(wanted().frame(), 14, 0x65), Reason::Truncated),
        ("IPv4 header of 16 bytes", with_byte(wanted().frame(), 14, 0x44), Reason::Truncated),
        (
            "IPv4 header longer than the frame",
            with_byte(Udp::to(GROUP, PORT, b"").frame(), 14, 0x4f),
            Reason::Truncated,
        ),
    ]
}

fn with_byte(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[at] = byte;
    frame
}

#[test]
fn every_kind_of_frame_gets_its_verdict_on_every_queue_with_a_socket() {
    in_each_variant(|bench| {
        for (what, frame, reason) in table() {
            for queue in 0..QUEUES - 1 {
                bench.expect(what, &frame, queue, reason);
            }
        }
    });
}

#[test]
fn a_queue_without_a_socket_passes_and_counts() {
    in_each_variant(|bench| {
        for (what, frame, reason) in table() {
            let reason = if reason == Reason::Redirected { Reason::NoSocket } else { reason };
            bench.expect(what, &frame, QUEUES - 1, reason);
        }
    });
}

#[test]
fn a_frame_cut_inside_a_header_is_truncated_and_a_whole_header_is_enough() {
    in_each_variant(|bench| {
        for (what, udp) in [
            ("plain", wanted()),
            ("one tag", Udp { tags: vec![(VLAN, 1)], ..wanted() }),
            ("two tags", Udp { tags: vec![(SERVICE, 1), (VLAN, 2)], ..wanted() }),
            ("options", Udp { options: vec![1; 8], ..wanted() }),
        ] {
            let frame = udp.frame();
            // Below 14 bytes no Ethernet frame exists; the kernel refuses to run one.
            for bytes in 14..=frame.len() {
                let reason = if bytes < udp.header_bytes() { Reason::Truncated } else { Reason::Redirected };
                bench.expect(&format!("{what} cut to {bytes} bytes"), &frame[..bytes], 0, reason);
            }
        }
        let arp = ethernet([0xff; 6], &[], 0x0806, &[]);
        bench.expect("a bare Ethernet header", &arp, 1, Reason::Passed);
        let tagged = ethernet([0xff; 6], &[(VLAN, 1)], 0x0806, &[]);
        for bytes in 14..18 {
            bench.expect(&format!("a tag cut to {bytes} bytes"), &tagged[..bytes], 1, Reason::Truncated);
        }
    });
}

#[test]
fn the_stamp_is_tai_and_names_the_queue() {
    netns::run(|| {
        let mut bench = Bench::new(XdpSettings { stamp: true, ..XdpSettings::default() });
        let frame = wanted().frame();
        for queue in 0..QUEUES - 1 {
            let before = clock::tai_ns();
            let (action, left, _) = bench.run(&frame, queue);
            let after = clock::tai_ns();
            assert_eq!((action, left.len()), (XDP_REDIRECT, frame.len() + METADATA_BYTES));
            let word = |at: usize| u32::from_ne_bytes(left[at..at + 4].try_into().expect("4 bytes"));
            let tai_ns = u64::from_ne_bytes(left[..8].try_into().expect("8 bytes")) as i64;
            assert_eq!((word(8), word(12)), (queue, METADATA_MAGIC));
            assert!((before..=after).contains(&tai_ns), "{before} <= {tai_ns} <= {after}");
        }
    });
}

#[test]
fn without_stamps_no_metadata_is_written() {
    netns::run(|| {
        let mut bench = Bench::new(XdpSettings { stamp: false, ..XdpSettings::default() });
        let frame = wanted().frame();
        assert_eq!(bench.run(&frame, 0).1, frame);
    });
}

#[test]
fn what_stays_with_the_kernel_carries_no_metadata() {
    netns::run(|| {
        let mut bench = Bench::new(XdpSettings { stamp: true, ..XdpSettings::default() });
        let frame = wanted().frame();
        assert_eq!(bench.run(&frame, QUEUES - 1).1, frame, "no socket");
        let arp = ethernet([0xff; 6], &[], 0x0806, &[0; 28]);
        assert_eq!(bench.run(&arp, 0).1, arp);
    });
}
