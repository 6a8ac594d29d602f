//! ns per input packet of the arbiter (two sides in memory) and of gap detection alone. Packets are those of a TOPS day
//! on average: 1.7 messages, 149 bytes with all headers.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::feed::arbiter::{Arbiter, ArbiterSettings, Arrival, Sink};
use sluice::feed::gap::{GapDetector, GapScanner, GapSettings};
use sluice::feed::runs::Claim;
use sluice::units::{Side, StreamId};
use sluice::wire::segment::{Framing, Protocol, Segment, SegmentKind, SessionId, SessionKey};

/// Packets per measured pass and side.
const PACKETS: usize = 8192;
/// Messages of ten packets in a row: 17.
const COUNTS: [u32; 10] = [1, 2, 2, 2, 1, 2, 2, 2, 1, 2];
/// 42 bytes of Ethernet, IP and UDP, 40 of IEX-TP, 67 of messages: 1.7 × (2 + 37.4).
const BODY_BYTES: usize = 37;
const SEND_STEP_NS: i64 = 10_000;

/// A sink that only adds up: what the arbiter itself costs.
#[derive(Default)]
struct Count {
    messages: u64,
    lost: u64,
}

impl Sink for Count {
    fn stream_begin(&mut self, _: StreamId, _: &SessionKey, _: u32, _: u64) {}
    fn emit_arrival(&mut self, _: StreamId, _: &Arrival<'_>, from: u64, to: u64, _: bool, _: bool) {
        self.messages += to - from;
    }
    fn emit_held(&mut self, _: StreamId, _: u64, _: Side, _: i64, _: i64, body: &[u8]) {
        self.messages += 1 + (body.is_empty() as u64);
    }
    fn emit_late_copy(&mut self, _: StreamId, _: u64, _: Side, _: i64, _: i64, _: &[u8]) {
        self.messages += 1;
    }
    fn gap(&mut self, _: StreamId, first: u64, last: u64) {
        self.lost += last - first + 1;
    }
    fn stream_end(&mut self, _: StreamId) {}
    fn side_state(&mut self, _: &SessionKey, _: Side, _: bool) {}
}

/// One pass of packets; each further pass goes on where the one before ended.
struct Feed {
    blocks: Vec<Vec<u8>>,
    /// (first, offset, send time) of each packet in the first pass.
    heads: Vec<(u64, u64, i64)>,
    messages: u64,
    bytes: u64,
}

impl Feed {
    fn new() -> Feed {
        let (mut first, mut offset, mut send_ns) = (1, 0, 1_700_000_000_000_000_000);
        let (mut blocks, mut heads) = (Vec::new(), Vec::new());
        for at in 0..PACKETS {
            let mut block = Vec::new();
            for _ in 0..COUNTS[at % COUNTS.len()] {
                block.extend_from_slice(&(BODY_BYTES as u16).to_le_bytes());
                block.extend_from_slice(&[0x38, 1]);
                block.extend_from_slice(&(send_ns - 700i64).to_le_bytes());
                block.extend(std::iter::repeat_n(0x55, BODY_BYTES - 10));
            }
            heads.push((first, offset, send_ns));
            first += u64::from(COUNTS[at % COUNTS.len()]);
            offset += block.len() as u64;
            send_ns += SEND_STEP_NS;
            blocks.push(block);
        }
        Feed { blocks, heads, messages: first - 1, bytes: offset }
    }

    fn segment(&self, pass: u64, at: usize) -> Segment<'_> {
        let (first, offset, send_ns) = self.heads[at];
        Segment {
            session: SessionKey {
                protocol: Protocol::IexTp,
                protocol_id: 0x8003,
                channel: 1,
                session: SessionId::from_u32(7),
            },
            kind: SegmentKind::Data,
            first: first + pass * self.messages,
            count: COUNTS[at % COUNTS.len()],
            offset: Some(offset + pass * self.bytes),
            send_ns: Some(send_ns + pass as i64 * PACKETS as i64 * SEND_STEP_NS),
            framing: Framing::U16Le,
            block: &self.blocks[at],
        }
    }
}

/// The arrivals of one pass: (packet, side, ns after its send time), in order of time.
fn arrivals(loss: f64, lag_packets: usize, seed: u64) -> Vec<(usize, Side, i64)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut order: Vec<(i64, usize, Side)> = Vec::new();
    for at in 0..PACKETS {
        for side in [Side::A, Side::B] {
            if random.random_bool(loss) {
                continue;
            }
            let lag = if side == Side::B { lag_packets as i64 * SEND_STEP_NS } else { 0 };
            let jitter = random.random_range(0..SEND_STEP_NS / 4);
            order.push((at as i64 * SEND_STEP_NS + lag + jitter, at, side));
        }
    }
    order.sort_by_key(|&(time, _, side)| (time, side));
    order.iter().map(|&(time, at, side)| (at, side, time - at as i64 * SEND_STEP_NS)).collect()
}

fn arbiter(c: &mut Criterion) {
    let feed = Feed::new();
    let mut group = c.benchmark_group("arbiter");
    for (name, loss, lag) in [("clean", 0.0, 0), ("lag_20_packets", 0.0, 20), ("loss_2_percent", 0.02, 2)] {
        let order = arrivals(loss, lag, 1);
        group.throughput(Throughput::Elements(order.len() as u64));
        let mut arbiter = Arbiter::new(ArbiterSettings { streams_max: 4, ..ArbiterSettings::live(2) });
        let (mut sink, mut pass) = (Count::default(), 0);
        group.bench_function(name, |b| {
            b.iter(|| {
                for &(at, side, after_ns) in &order {
                    let segment = feed.segment(pass, at);
                    let now = segment.send_ns.unwrap_or(0) + after_ns;
                    arbiter.on_segment(&Arrival { side, capture_ns: now, segment }, now, &mut sink);
                }
                pass += 1;
                black_box(sink.messages)
            })
        });
        assert!(arbiter.check_conservation().is_empty(), "the books balance");
        assert!(arbiter.streams()[0].counts().unique > 0);
    }
    group.finish();
}

fn gap(c: &mut Criterion) {
    let feed = Feed::new();
    let mut group = c.benchmark_group("gap");
    group.throughput(Throughput::Elements(PACKETS as u64));
    let mut detector = GapDetector::new(1024, None);
    let mut pass = 0;
    group.bench_function("detector", |b| {
        b.iter(|| {
            for at in 0..PACKETS {
                let segment = feed.segment(pass, at);
                if let Some(claim) = Claim::of(&segment, 0) {
                    detector.observe(&segment, &claim);
                }
            }
            pass += 1;
            black_box(detector.counts().messages)
        })
    });
    group.bench_function("scanner_with_runs", |b| {
        b.iter_batched_ref(
            || GapScanner::new(GapSettings::default()),
            |scanner| {
                for at in 0..PACKETS {
                    let segment = feed.segment(0, at);
                    scanner.on_segment(&segment, segment.send_ns.unwrap_or(0));
                }
            },
            BatchSize::LargeInput,
        )
    });
    // What the loop itself costs: making the segments.
    group.bench_function("nothing", |b| {
        b.iter(|| (0..PACKETS).map(|at| black_box(feed.segment(black_box(3), at)).first).sum::<u64>())
    });
    group.finish();
}

criterion_group!(benches, arbiter, gap);
criterion_main!(benches);
