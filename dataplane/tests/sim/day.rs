//! A whole day: a generated session on two sides, streamed packet by packet through the splitter and the arbiter. What
//! comes out is held against what went in without keeping either; memory must stay flat.
//!
//! `SLUICE_DAY_MESSAGES` sets its size. `cargo xtask sim full-day` runs it in release mode; the small one always runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sluice::feed::arbiter::{Arbiter, ArbiterSettings, Arrival, Sink};
use sluice::feed::generate::{Generator, Product, Settings};
use sluice::feed::split::{SideSplit, Splitter};
use sluice::feed::truth::compare;
use sluice::sys::clock;
use sluice::units::{Side, StreamId};
use sluice::wire::iextp;
use sluice::wire::packet::{self, LinkType};
use sluice::wire::segment::{Segment, SessionKey};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Messages of the day: at 1.87 a packet they make about 9 million packets on two sides, as many as a full day of DEEP
/// (4.7 million messages, most of them alone in their packet) gives.
const DAY_MESSAGES: u64 = 8_500_000;
/// What the memory may grow by after a tenth of the day: the truth's and the arbiter's lists of lost ranges (about
/// 50,000 a side at 1 % loss) and the allocator's slack, far below what holding packets would take (1 GB).
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// Adds up what it is given, so that every byte counts and none is kept.
#[derive(Default)]
struct Sum {
    /// (run, next sequence) by stream.
    streams: Vec<(u32, u64)>,
    messages: u64,
    late: u64,
    gaps: u64,
    hash: u64,
}

/// A message's part of the sum: its run, its sequence, its bytes.
fn hash(run: u32, sequence: u64, body: &[u8]) -> u64 {
    xxh3_64_with_seed(body, (u64::from(run) << 48) ^ sequence)
}

impl Sum {
    fn message(&mut self, stream: StreamId, sequence: u64, body: &[u8]) {
        let (run, next) = &mut self.streams[stream.0 as usize];
        assert_eq!(sequence, *next, "run {run}: out of order");
        *next += 1;
        self.messages += 1;
        self.hash = self.hash.wrapping_add(hash(*run, sequence, body));
    }
}

impl Sink for Sum {
    fn stream_begin(&mut self, stream: StreamId, _: &SessionKey, run: u32, base: u64) {
        assert_eq!(stream.0 as usize, self.streams.len(), "streams begin in order");
        self.streams.push((run, base));
    }

    fn emit_arrival(&mut self, stream: StreamId, a: &Arrival<'_>, from: u64, to: u64, _: bool, late: bool) {
        let skip = (from - a.segment.first) as usize;
        for (sequence, body) in (from..to).zip(a.segment.messages().skip(skip)) {
            self.late += u64::from(late);
            self.message(stream, sequence, body);
        }
    }

    fn emit_held(&mut self, stream: StreamId, sequence: u64, _: Side, _: i64, _: i64, body: &[u8]) {
        self.message(stream, sequence, body);
    }

    fn emit_late_copy(&mut self, _: StreamId, _: u64, _: Side, _: i64, _: i64, _: &[u8]) {
        self.late += 1;
    }

    fn gap(&mut self, stream: StreamId, first: u64, last: u64) {
        let (run, next) = &mut self.streams[stream.0 as usize];
        assert_eq!(first, *next, "run {run}: a gap elsewhere");
        *next = last + 1;
        self.gaps += last - first + 1;
    }

    fn stream_end(&mut self, _: StreamId) {}
    fn side_state(&mut self, _: &SessionKey, _: Side, _: bool) {}
}

/// A packet on its way to a side: stamp, then side, then order of sending.
type Sent = Reverse<(i64, u8, u64, Vec<u8>)>;

fn segment(frame: &[u8]) -> Segment<'_> {
    let view = packet::udp(frame, LinkType::Ethernet).expect("a UDP frame");
    iextp::parse(view.payload).expect("a segment")
}

/// A line of `/proc/self/status`, in bytes.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let found = status.lines().find_map(|l| l.strip_prefix(line)).expect("a known line");
    let kilobytes: u64 = found.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes << 10
}

struct Day {
    splitter: Splitter,
    arbiter: Arbiter,
    out: Sum,
    on_the_way: BinaryHeap<Sent>,
    sent: u64,
    packets_in: u64,
    expected: u64,
    spare: Vec<Vec<u8>>,
}

impl Day {
    /// One published packet: to the sides that get it, and what every side has received by then to the arbiter.
    fn publish(&mut self, run: u32, capture_ns: i64, frame: &[u8]) {
        let segment = segment(frame);
        let mut copies = [[None; 2]; 2];
        self.splitter.split(capture_ns, Some(&segment), &mut copies);
        if copies.iter().flatten().any(Option::is_some) {
            for (sequence, body) in (segment.first..).zip(segment.messages()) {
                self.expected = self.expected.wrapping_add(hash(run, sequence, body));
            }
        }
        for (side, copies) in (0..).zip(copies) {
            for stamp in copies.into_iter().flatten() {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(frame);
                self.sent += 1;
                self.on_the_way.push(Reverse((stamp, side, self.sent, bytes)));
            }
        }
        // No later packet is stamped before this one was captured.
        self.deliver(capture_ns);
    }

    fn deliver(&mut self, until_ns: i64) {
        while self.on_the_way.peek().is_some_and(|Reverse((stamp, ..))| *stamp < until_ns) {
            let Some(Reverse((stamp, side, _, frame))) = self.on_the_way.pop() else { return };
            let arrival = Arrival { side: Side(side), capture_ns: stamp, segment: segment(&frame) };
            self.arbiter.on_segment(&arrival, stamp, &mut self.out);
            self.packets_in += 1;
            self.spare.push(frame);
        }
    }
}

fn day(messages: u64, seed: u64) {
    let settings = Settings { restarts: 1, ..Settings::new(Product::Deep, messages, seed) };
    let side = |delay_ns| SideSplit { loss: 0.01, delay_ns, jitter_ns: 60_000, ..SideSplit::default() };
    let mut day = Day {
        splitter: Splitter::new(seed, &[side(0), side(25_000)]),
        arbiter: Arbiter::new(ArbiterSettings::files(2)),
        out: Sum::default(),
        on_the_way: BinaryHeap::new(),
        sent: 0,
        packets_in: 0,
        expected: 0,
        spare: Vec::new(),
    };
    let mut generator = Generator::new(settings).expect("good settings");
    let began = clock::monotonic_ns();
    let (mut published, mut resident) = (0, 0);
    while let Some(packet) = generator.next_packet() {
        published += u64::from(packet.count);
        day.publish(packet.run, packet.capture_ns, packet.frame);
        if resident == 0 && published >= messages / 10 {
            resident = memory("VmRSS");
        }
    }
    day.deliver(i64::MAX);
    day.arbiter.finish(i64::MAX, &mut day.out);
    let took = (clock::monotonic_ns() - began) as f64 / 1e9;
    let (at_end, most) = (memory("VmRSS"), memory("VmHWM"));

    assert_eq!(published, messages);
    assert_eq!(day.arbiter.check_conservation(), []);
    let comparison = compare(&day.splitter.truth(), &day.arbiter.report());
    assert!(comparison.equal(), "SLUICE_SEED={seed}: {comparison:?}");
    assert!(comparison.residual > 0, "nothing was lost on both sides: the test proves nothing");
    assert_eq!((day.out.late, day.out.gaps), (0, comparison.residual), "SLUICE_SEED={seed}");
    assert_eq!(day.out.messages + comparison.residual + comparison.unseen, messages, "SLUICE_SEED={seed}");
    assert_eq!(day.out.hash, day.expected, "SLUICE_SEED={seed}: the emitted bytes are not those that were published");
    assert!(at_end.saturating_sub(resident) < GROWTH_BYTES_MAX, "memory grew from {resident} to {at_end} bytes");
    eprintln!(
        "seed {seed}: {messages} messages, {} packets in, {} residual; {took:.1} s, {:.0} packets/s; resident {} MiB after a tenth, {} MiB at the end, {} MiB at most",
        day.packets_in,
        comparison.residual,
        day.packets_in as f64 / took,
        resident >> 20,
        at_end >> 20,
        most >> 20,
    );
}

#[test]
fn small_day() {
    day(30_000, 1);
}

#[test]
#[ignore = "minutes in debug mode: cargo xtask sim full-day"]
fn full_day() {
    let messages = std::env::var("SLUICE_DAY_MESSAGES").map_or(DAY_MESSAGES, |n| n.parse().expect("a number"));
    day(messages, 1);
}
