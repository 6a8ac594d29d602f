//! AF_XDP on veth pairs: what the socket receives, what it loses and says so, attach and detach.
//!
//! Assertions are identities and contents, not zero loss: the machine may be busy.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use sluice::sys::bpf::{Destination, Reason, XdpProgram, XdpSettings};
use sluice::sys::clock;
use sluice::sys::frames::{FrameArea, FrameToken};
use sluice::sys::nic::{FrameChoice, Interface, choose_frames};
use sluice::sys::xsk::{XskQueue, XskSettings};
use sluice::units::{AreaId, NANOS_PER_SECOND};

use crate::common::frames::Udp;
use crate::common::netns::{self, Raw, Veth};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const PORT: u16 = 10_378;
/// How long a test waits for frames that must come: far above what it takes, so that only a defect runs into it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Frames that must not come are waited for this long.
const SILENCE: Duration = Duration::from_millis(50);

/// A captured interface: its program, and its queues with the areas that their tokens point into.
struct Rig {
    program: XdpProgram,
    queues: Vec<XskQueue>,
    areas: Vec<FrameArea>,
    sender: Raw,
    outside: Interface,
}

/// One received packet.
#[derive(Debug)]
struct Packet {
    queue: u32,
    capture_ns: i64,
    bytes: Vec<u8>,
}

fn program_settings() -> XdpSettings {
    let destinations = vec![Destination { address: GROUP, port: PORT }];
    XdpSettings { destinations, stamp: true, ..XdpSettings::default() }
}

fn queue_settings(queue: u32, frames: FrameChoice) -> XskSettings {
    XskSettings {
        frame_count: 4096,
        fill_ring: 1024,
        receive_ring: 1024,
        ..XskSettings::new(queue, AreaId(queue as u16), frames)
    }
}

impl Rig {
    fn new(veth: &Veth) -> Rig {
        Rig::with(veth, program_settings(), |settings| settings)
    }

    /// Opens every queue of the pair's inside end, inserts the sockets, attaches.
    fn with(veth: &Veth, settings: XdpSettings, change: impl Fn(XskSettings) -> XskSettings) -> Rig {
        let inside = Interface::find(&veth.inside).expect("just made");
        let frames = choose_frames(&inside, None, None).expect("a possible MTU");
        let settings = XdpSettings { multi_buffer: frames.multi_buffer, ..settings };
        let mut program = XdpProgram::load(&inside, &settings).expect("loads as root");
        let count = inside.rx_queues().expect("readable");
        let queues: Vec<XskQueue> = (0..count)
            .map(|queue| XskQueue::open(&inside, &change(queue_settings(queue, frames))).expect("a free queue"))
            .collect();
        for queue in &queues {
            program.insert_socket(queue.queue(), queue.fd()).expect("a queue of the interface");
        }
        program.attach().expect("attaches on veth");
        Rig {
            areas: queues.iter().map(XskQueue::area).collect(),
            outside: Interface::find(&veth.outside).expect("just made"),
            sender: Raw::sender(&veth.outside),
            program,
            queues,
        }
    }

    /// What waits on all queues now, as tokens.
    fn tokens(&mut self) -> Vec<FrameToken> {
        let offset_ns = i64::from(clock::tai_offset_seconds()) * NANOS_PER_SECOND;
        let mut tokens = Vec::new();
        for queue in &mut self.queues {
            queue.receive(usize::MAX, offset_ns, |token| tokens.push(token));
        }
        tokens
    }

    /// Copies the tokens' packets out and takes the tokens home.
    fn copy_out(&mut self, tokens: Vec<FrameToken>) -> Vec<Packet> {
        let mut packets = Vec::new();
        for token in tokens {
            let area = token.area.0 as usize;
            let bytes = self.areas[area].packet(&token).to_vec();
            packets.push(Packet { queue: area as u32, capture_ns: token.capture_ns, bytes });
            self.queues[area].recycle(token);
        }
        packets
    }

    /// Receives until `count` packets are there (or the patience ends), then makes sure that no more come.
    fn receive(&mut self, count: usize) -> Vec<Packet> {
        let mut packets = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let mut silence = Instant::now() + SILENCE;
        while Instant::now() < deadline && (packets.len() < count || Instant::now() < silence) {
            let tokens = self.tokens();
            if tokens.is_empty() {
                std::thread::yield_now();
                continue;
            }
            packets.extend(self.copy_out(tokens));
            silence = Instant::now() + SILENCE;
        }
        packets
    }

    /// The conservation of frames, per queue: redirected = received + rx_dropped + rx_ring_full.
    #[track_caller]
    fn check_identity(&self) {
        for queue in &self.queues {
            let counters = self.program.queue_counters(queue.queue()).expect("readable");
            let statistics = queue.statistics().expect("readable");
            let received = queue.counters().received;
            assert_eq!(
                counters.get(Reason::Redirected),
                received + statistics.rx_dropped + statistics.rx_ring_full,
                "queue {}: redirected = received {received} + {statistics:?}",
                queue.queue()
            );
        }
    }

    /// And over the wire: sent = what the sender's end dropped + what the program saw.
    #[track_caller]
    fn check_sent(&self, sent: u64) {
        let dropped = self.outside.statistics().expect("readable").tx_dropped;
        let seen: u64 = self.program.counters().expect("readable").iter().map(|queue| queue.seen()).sum();
        assert_eq!(sent, dropped + seen, "sent = dropped by the sending end {dropped} + seen {seen}");
    }
}

/// Frame `index`, from one of 64 source ports, so that all queues get some.
fn numbered(index: u32, bytes: usize) -> Vec<u8> {
    let mut payload = index.to_be_bytes().to_vec();
    payload.resize(bytes, index as u8);
    Udp { source_port: 40_000 + (index % 64) as u16, ..Udp::to(GROUP, PORT, &payload) }.frame()
}

/// The index in a frame of [`numbered`] without tags.
fn index_of(packet: &Packet) -> u32 {
    u32::from_be_bytes(packet.bytes[42..46].try_into().expect("4 bytes"))
}

#[test]
fn every_sent_frame_arrives_once_whole_and_stamped() {
    netns::run(|| {
        let mut rig = Rig::new(&Veth::new("v", 4, 1500));
        let before = clock::utc_ns();
        let mut packets = Vec::new();
        for index in 0..2000 {
            rig.sender.send(&numbered(index, 100));
            if index % 100 == 99 {
                packets.extend(rig.receive(0));
            }
        }
        packets.extend(rig.receive(2000 - packets.len()));
        let after = clock::utc_ns();
        let by_index: BTreeMap<u32, &Packet> = packets.iter().map(|packet| (index_of(packet), packet)).collect();
        assert_eq!((packets.len(), by_index.len()), (2000, 2000), "each once");
        for (index, packet) in by_index {
            assert_eq!(packet.bytes, numbered(index, 100), "frame {index}");
            assert!((before..=after).contains(&packet.capture_ns), "{before} <= {} <= {after}", packet.capture_ns);
        }
        for queue in 0..4 {
            let stamps: Vec<i64> = packets.iter().filter(|p| p.queue == queue).map(|p| p.capture_ns).collect();
            assert!(!stamps.is_empty(), "64 flows reach every queue");
            assert!(stamps.is_sorted(), "queue {queue}: stamps in order of arrival");
        }
        assert!(rig.queues.iter().all(|queue| queue.counters().unstamped == 0));
        rig.check_identity();
        rig.check_sent(2000);
    });
}
