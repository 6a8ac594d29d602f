//! Replay: a capture held in memory, run through the stages at full speed or at a rate, each stage timed.

use hdrhistogram::Histogram;

use super::queue_worker::parse_segment;
use super::source::file::{FileSource, SourceError};
use crate::config::FeedProtocol;
use crate::feed::arbiter::{Arbiter, ArbiterSettings, Arrival, Sink};
use crate::feed::gap::{GapScanner, GapSettings};
use crate::feed::messages::{Message, Value};
use crate::sys::{clock, cpu};
use crate::units::{Side, StreamId};
use crate::wire::packet::{self, LinkType};
use crate::wire::segment::{Segment, SessionKey};
use crate::wire::{iextp, moldudp64};

/// Packets timed as one: two clock reads (about 50 ns) spread over them are below 0.5 ns a packet.
const BATCH_PACKETS: usize = 128;
/// Packets sent as one under `--rate`: what a busy queue's turn takes.
const PACED_BATCH_PACKETS: usize = 32;

/// A capture in memory: one allocation, packets in order.
#[derive(Clone)]
pub struct Image {
    bytes: Vec<u8>,
    packets: Vec<Packet>,
    protocol: FeedProtocol,
    /// Frames that are not segments of the protocol, left out.
    pub skipped: u64,
    /// Damage that the file had.
    pub damage: u64,
    sessions: Vec<SessionKey>,
    spans: Vec<(u64, u64)>,
}

#[derive(Clone, Copy)]
struct Packet {
    start: usize,
    bytes: u32,
    payload_offset: u32,
    payload_bytes: u32,
    capture_ns: i64,
    link: LinkType,
    session: u32,
    /// Sequence and offset in the first pass, the file's runs laid end to end.
    first: u64,
    offset: u64,
}

impl Image {
    /// Reads `path`. Frames that are no segment of `protocol` are left out and counted.
    ///
    /// # Errors
    /// As the file's reader says.
    pub fn load(path: &str, protocol: FeedProtocol) -> Result<Image, SourceError> {
        let mut source = FileSource::open(path)?;
        let mut image = Image {
            bytes: Vec::new(),
            packets: Vec::new(),
            protocol,
            skipped: 0,
            damage: 0,
            sessions: Vec::new(),
            spans: Vec::new(),
        };
        let mut runs: Vec<Laid> = Vec::new();
        while let Some(packet) = source.next()? {
            let Ok(view) = packet::udp(packet.data, packet.link) else {
                image.skipped += 1;
                continue;
            };
            let Ok(segment) = parse_segment(protocol, view.payload) else {
                image.skipped += 1;
                continue;
            };
            let session = image.session(&segment.session, &mut runs);
            let (first, offset) = runs[session].lay(&segment);
            image.packets.push(Packet {
                start: image.bytes.len(),
                bytes: packet.data.len() as u32,
                payload_offset: view.payload_offset,
                payload_bytes: view.payload.len() as u32,
                capture_ns: packet.capture_ns,
                link: packet.link,
                session: session as u32,
                first,
                offset,
            });
            image.bytes.extend_from_slice(packet.data);
        }
        image.damage = source.damage_count();
        image.spans = runs.iter().map(|laid| (laid.next - laid.start, laid.offset)).collect();
        Ok(image)
    }

    fn session(&mut self, key: &SessionKey, runs: &mut Vec<Laid>) -> usize {
        self.sessions.iter().position(|known| known == key).unwrap_or_else(|| {
            self.sessions.push(*key);
            runs.push(Laid::default());
            runs.len() - 1
        })
    }

    /// Packets.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Gives every segment the sequence and offset that pass `pass` needs so that passes join without a gap or a
    /// restart.
    fn rewrite(&mut self, pass: u64) {
        for packet in &self.packets {
            let (sequences, offsets) = self.spans[packet.session as usize];
            let start = packet.start + packet.payload_offset as usize;
            let payload = &mut self.bytes[start..start + packet.payload_bytes as usize];
            let first = packet.first + pass * sequences;
            match self.protocol {
                FeedProtocol::IexTp => iextp::rewrite(payload, first, packet.offset + pass * offsets),
                FeedProtocol::MoldUdp64 => moldudp64::rewrite(payload, first),
            };
        }
    }

    fn parse(&self, packet: &Packet) -> Segment<'_> {
        let frame = &self.bytes[packet.start..packet.start + packet.bytes as usize];
        let Ok(view) = packet::udp(frame, packet.link) else { unreachable!("parsed at the load") };
        let Ok(segment) = parse_segment(self.protocol, view.payload) else { unreachable!("parsed at the load") };
        segment
    }
}

/// A session's runs laid end to end, so that a restart in the file is none in the replay.
#[derive(Default)]
struct Laid {
    started: bool,
    start: u64,
    /// Added to the current run's own numbers.
    shift: i128,
    offset_shift: i128,
    next: u64,
    offset: u64,
}

impl Laid {
    fn lay(&mut self, segment: &Segment<'_>) -> (u64, u64) {
        let offset = segment.offset.unwrap_or(0);
        if !self.started {
            self.started = true;
            (self.start, self.next) = (segment.first, segment.first);
            self.offset_shift = -i128::from(offset);
        } else if segment.first == 1 && offset == 0 && self.next > 1 {
            self.shift = i128::from(self.next) - 1;
            self.offset_shift = i128::from(self.offset);
        }
        let first = (i128::from(segment.first) + self.shift) as u64;
        let laid_offset = (i128::from(offset) + self.offset_shift) as u64;
        self.next = self.next.max(first + u64::from(segment.count));
        self.offset = self.offset.max(laid_offset + segment.block.len() as u64);
        (first, laid_offset)
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct ReplaySettings {
    /// Passes over the capture.
    pub loops: u64,
    /// Packets per second; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// Arbitrate two sides (each packet comes on A, then on B).
    pub arbiter: bool,
}

/// A stage's time per packet.
pub type StageTimes = Histogram<u64>;

/// What one core did.
pub struct CoreReplay {
    /// The CPU; `None`: it could not be pinned.
    pub cpu: Option<usize>,
    /// Packets.
    pub packets: u64,
    /// Messages decoded.
    pub messages: u64,
    /// Gaps found (0 unless the file has some).
    pub gaps: u64,
    /// Messages emitted by the arbiter.
    pub emitted: u64,
    /// Wall time without the rewriting between passes.
    pub wall_ns: i64,
    /// (stage, picoseconds per packet, one value a batch).
    pub stages: Vec<(&'static str, StageTimes)>,
    /// Under a rate: ns from a packet's scheduled time to the end of its processing.
    pub latency: Option<Histogram<u64>>,
    /// A sum over decoded fields, so that no decoding can be optimised away.
    pub checksum: u64,
}

/// Runs `image` on the calling thread, pinned to `cpu`.
pub fn replay(mut image: Image, cpu: Option<usize>, settings: &ReplaySettings) -> CoreReplay {
    let cpu = cpu.filter(|&cpu| cpu::pin(cpu));
    let mut run = Run::new(&image, settings);
    let mut wall_ns = 0;
    for pass in 0..settings.loops {
        image.rewrite(pass);
        let started = clock::monotonic_ns();
        run.pass(&image, settings.rate);
        wall_ns += clock::monotonic_ns() - started;
    }
    run.finish(cpu, wall_ns)
}

struct Counting {
    emitted: u64,
}

impl Sink for Counting {
    fn stream_begin(&mut self, _: StreamId, _: &SessionKey, _: u32, _: u64) {}
    fn emit_arrival(&mut self, _: StreamId, _: &Arrival<'_>, from: u64, to: u64, _: bool, _: bool) {
        self.emitted += to - from;
    }
    fn emit_held(&mut self, _: StreamId, _: u64, _: Side, _: i64, _: i64, _: &[u8]) {
        self.emitted += 1;
    }
    fn emit_late_copy(&mut self, _: StreamId, _: u64, _: Side, _: i64, _: i64, _: &[u8]) {
        self.emitted += 1;
    }
    fn gap(&mut self, _: StreamId, _: u64, _: u64) {}
    fn stream_end(&mut self, _: StreamId) {}
    fn side_state(&mut self, _: &SessionKey, _: Side, _: bool) {}
}

struct Run {
    scanner: GapScanner,
    arbiter: Option<Arbiter>,
    sink: Counting,
    parse: StageTimes,
    gap: StageTimes,
    decode: StageTimes,
    arbitrate: StageTimes,
    latency: Option<Histogram<u64>>,
    packets: u64,
    messages: u64,
    checksum: u64,
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are in range")
}

impl Run {
    fn new(image: &Image, settings: &ReplaySettings) -> Run {
        let arbiter = settings.arbiter.then(|| {
            Arbiter::new(ArbiterSettings {
                streams_max: image.sessions.len().max(1) + 8,
                send_skew_max_ns: None,
                ..ArbiterSettings::files(2)
            })
        });
        Run {
            scanner: GapScanner::new(GapSettings::default()),
            arbiter,
            sink: Counting { emitted: 0 },
            parse: histogram(),
            gap: histogram(),
            decode: histogram(),
            arbitrate: histogram(),
            latency: settings.rate.map(|_| histogram()),
            packets: 0,
            messages: 0,
            checksum: 0,
        }
    }

    fn pass(&mut self, image: &Image, rate: Option<f64>) {
        let batch = if rate.is_some() { PACED_BATCH_PACKETS } else { BATCH_PACKETS };
        let mut segments: Vec<Segment<'_>> = Vec::with_capacity(batch);
        let started = clock::monotonic_ns();
        let mut done = 0_u64;
        for packets in image.packets.chunks(batch) {
            if let Some(rate) = rate {
                let due = started + (done as f64 / rate * 1e9) as i64;
                while clock::monotonic_ns() < due {
                    std::hint::spin_loop();
                }
            }
            self.batch(image, packets, &mut segments);
            if let (Some(rate), Some(latency)) = (rate, &mut self.latency) {
                let now = clock::monotonic_ns();
                for index in 0..packets.len() as u64 {
                    let due = started + ((done + index) as f64 / rate * 1e9) as i64;
                    let _ = latency.record((now - due).max(0) as u64);
                }
            }
            done += packets.len() as u64;
        }
        self.packets += done;
    }

    fn batch<'a>(&mut self, image: &'a Image, packets: &[Packet], segments: &mut Vec<Segment<'a>>) {
        segments.clear();
        let start = clock::monotonic_ns();
        for packet in packets {
            segments.push(image.parse(packet));
        }
        let parsed = clock::monotonic_ns();
        for (segment, packet) in segments.iter().zip(packets) {
            self.scanner.on_segment(segment, packet.capture_ns);
        }
        let scanned = clock::monotonic_ns();
        for segment in segments.iter() {
            for body in segment.messages() {
                self.messages += 1;
                if let Ok(message) = Message::decode(body) {
                    let mut sum = message.timestamp_ns() as u64 ^ u64::from(message.flags());
                    message.fields(|_, value| {
                        sum = sum.wrapping_add(match value {
                            Value::Unsigned(number) => u64::from(number),
                            Value::Signed(number) => number as u64,
                            Value::Text(text) => text.len() as u64,
                        });
                    });
                    self.checksum = self.checksum.wrapping_add(sum);
                }
            }
        }
        let decoded = clock::monotonic_ns();
        if let Some(arbiter) = &mut self.arbiter {
            for (segment, packet) in segments.iter().zip(packets) {
                for side in [Side::A, Side::B] {
                    let arrival = Arrival { side, capture_ns: packet.capture_ns, segment: *segment };
                    arbiter.on_segment(&arrival, packet.capture_ns, &mut self.sink);
                }
            }
        }
        let arbitrated = clock::monotonic_ns();
        let per_packet = |from: i64, to: i64, packets: usize| (to - from).max(0) as u64 * 1_000 / packets as u64;
        let _ = self.parse.record(per_packet(start, parsed, packets.len()));
        let _ = self.gap.record(per_packet(parsed, scanned, packets.len()));
        let _ = self.decode.record(per_packet(scanned, decoded, packets.len()));
        if self.arbiter.is_some() {
            let _ = self.arbitrate.record(per_packet(decoded, arbitrated, 2 * packets.len()));
        }
    }

    fn finish(mut self, cpu: Option<usize>, wall_ns: i64) -> CoreReplay {
        self.scanner.finish();
        let gaps = self.scanner.streams().iter().map(|stream| stream.gaps.len() as u64).sum();
        let mut stages = vec![("parse", self.parse), ("gap", self.gap), ("decode", self.decode)];
        if self.arbiter.is_some() {
            stages.push(("arbiter (per side)", self.arbitrate));
        }
        CoreReplay {
            cpu,
            packets: self.packets,
            messages: self.messages,
            gaps,
            emitted: self.sink.emitted,
            wall_ns,
            stages,
            latency: self.latency,
            checksum: self.checksum,
        }
    }
}
