//! From frame to field, memory-resident: ns per frame, per packet and per message over a real day's capture
//! (57,719 packets, 99,871 messages; without the data, quotes made here). Throughput is in the unit that each name ends
//! with.

use std::hint::black_box;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sluice::capture::source::file::FileSource;
use sluice::feed::messages::{Message, Value};
use sluice::feed::rows::{Decoder, RowFormat};
use sluice::wire::packet::{LinkType, UdpHeader, VLAN_NONE, fast, general, udp};
use sluice::wire::pcap::PcapWriter;
use sluice::wire::segment::Protocol;
use sluice::wire::{iextp, moldudp64};

/// Frames of a batch that stays in the cache: 1,024 of about 190 bytes.
const BATCH_FRAMES: usize = 1_024;

/// Frames one behind the other in one buffer, as in a UMEM or a mapped file.
struct Frames {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Frames {
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.ends.iter().scan(0, |start, &end| {
            let frame = &self.bytes[*start..end];
            *start = end;
            Some(frame)
        })
    }

    fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
    }
}

fn load() -> Frames {
    let mut frames = Frames { bytes: Vec::new(), ends: Vec::new() };
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let data = std::env::var_os("SLUICE_DATA").map_or(root, PathBuf::from);
    let path = data.join("iex/20180127_IEXTP1_TOPS1.6.pcap.gz");
    let Ok(mut source) = FileSource::open(path.to_str().expect("UTF-8")) else {
        made(&mut frames);
        return frames;
    };
    while let Some(packet) = source.next().expect("readable") {
        frames.push(packet.data);
    }
    frames
}

/// As many packets as the real capture, of two quotes each.
fn made(frames: &mut Frames) {
    let header = UdpHeader {
        src_mac: [2, 0, 0, 0, 0, 1],
        vlan: VLAN_NONE,
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(233, 215, 21, 4),
        src_port: 40_000,
        dst_port: 10_378,
        identification: 0,
    };
    let mut block = Vec::new();
    for _ in 0..2 {
        let mut body = [b' '; 42];
        body[0] = b'Q';
        iextp::write_message(&body, &mut block);
    }
    let mut frame = Vec::new();
    for packet in 0..57_719 {
        let segment = iextp::Header {
            version: iextp::VERSION,
            protocol_id: iextp::TOPS_1_6,
            payload_length: block.len() as u16,
            count: 2,
            first: 1 + 2 * packet,
            offset: packet * block.len() as u64,
            ..Default::default()
        };
        frame.clear();
        header.write_frame(&[&segment.encode()[..], &block].concat(), &mut frame);
        frames.push(&frame);
    }
}

/// Reads every field of a message.
#[inline(always)]
fn every_field(message: &Message<'_>) -> u64 {
    let symbol = message.symbol().map_or(0, |symbol| u64::from_le_bytes(symbol.0));
    let mut sum = message.timestamp_ns() as u64 ^ u64::from(message.flags()) ^ symbol;
    message.fields(|_, value| {
        sum = sum.wrapping_add(match value {
            Value::Unsigned(number) => u64::from(number),
            Value::Signed(number) => number as u64,
            Value::Text(text) => u64::from(text[0]),
        });
    });
    sum
}

fn packets(criterion: &mut Criterion) {
    let frames = load();
    let payloads: Vec<&[u8]> = frames.iter().map(|frame| fast(frame).expect("UDP").payload).collect();
    let bodies: Vec<&[u8]> =
        payloads.iter().flat_map(|payload| iextp::parse(payload).expect("a segment").messages()).collect();
    let (packets, messages) = (frames.ends.len() as u64, bodies.len() as u64);

    let mut group = criterion.benchmark_group("wire");
    group.throughput(Throughput::Elements(packets));
    group.bench_function("udp_fast_per_frame", |bench| {
        bench.iter(|| {
            let views = frames.iter().filter_map(fast);
            views.map(|view| view.payload.len() + usize::from(view.dst_port)).sum::<usize>()
        });
    });
    group.bench_function("udp_general_per_frame", |bench| {
        bench.iter(|| {
            let views = frames.iter().filter_map(|frame| general(frame, LinkType::Ethernet).ok());
            views.map(|view| view.payload.len() + usize::from(view.dst_port)).sum::<usize>()
        });
    });
    // What a receive ring hands over lies in the cache: a batch of it, again and again.
    let batch: Vec<&[u8]> = frames.iter().skip(packets as usize / 2).take(BATCH_FRAMES).collect();
    group.throughput(Throughput::Elements(batch.len() as u64));
    group.bench_function("udp_fast_cached_per_frame", |bench| {
        bench.iter(|| {
            let views = batch.iter().copied().filter_map(fast);
            views.map(|view| view.payload.len() + usize::from(view.dst_port)).sum::<usize>()
        });
    });
    group.bench_function("udp_general_cached_per_frame", |bench| {
        bench.iter(|| {
            let views = batch.iter().filter_map(|frame| general(frame, LinkType::Ethernet).ok());
            views.map(|view| view.payload.len() + usize::from(view.dst_port)).sum::<usize>()
        });
    });
    group.throughput(Throughput::Elements(packets));
    group.bench_function("iextp_parse_per_packet", |bench| {
        bench.iter(|| {
            let segments = payloads.iter().filter_map(|payload| iextp::parse(payload).ok());
            segments.fold(0, |sum: u64, segment| sum.wrapping_add(segment.first + u64::from(segment.count)))
        });
    });
    let mold: Vec<Vec<u8>> = payloads.iter().map(|payload| as_moldudp64(payload)).collect();
    group.bench_function("moldudp64_parse_per_packet", |bench| {
        bench.iter(|| {
            let segments = mold.iter().filter_map(|payload| moldudp64::parse(payload).ok());
            segments.fold(0, |sum: u64, segment| sum.wrapping_add(segment.first + u64::from(segment.count)))
        });
    });
    group.bench_function("frame_to_fields_per_packet", |bench| {
        bench.iter(|| {
            frames.iter().fold(0u64, |sum, frame| {
                let Ok(view) = udp(frame, LinkType::Ethernet) else { return sum };
                let Ok(segment) = iextp::parse(view.payload) else { return sum };
                segment
                    .messages()
                    .filter_map(|body| Message::decode(body).ok())
                    .fold(sum, |sum, message| sum.wrapping_add(every_field(&message)))
            })
        });
    });
    group.throughput(Throughput::Elements(messages));
    group.bench_function("decode_fields_per_message", |bench| {
        bench.iter(|| {
            let decoded = bodies.iter().filter_map(|body| Message::decode(body).ok());
            decoded.fold(0u64, |sum, message| sum.wrapping_add(every_field(&message)))
        });
    });
    group.bench_function("frame_to_csv_per_message", |bench| {
        let mut rows = Vec::with_capacity(64 << 20);
        bench.iter(|| {
            rows.clear();
            let mut decoder = Decoder::new(Protocol::IexTp, RowFormat::Csv);
            for (index, frame) in frames.iter().enumerate() {
                decoder.frame(index as u64, frame, LinkType::Ethernet, &mut rows);
            }
            black_box(rows.len())
        });
    });
    let file = as_file(&frames);
    group.throughput(Throughput::Elements(packets));
    group.bench_function("pcap_file_per_packet", |bench| {
        bench.iter(|| {
            let reader = Box::new(io::Cursor::new(file.clone()));
            let mut source = FileSource::from_reader("memory", reader, None).expect("a capture");
            let mut bytes = 0;
            while let Some(packet) = source.next().expect("readable") {
                bytes += packet.data.len();
            }
            bytes
        });
    });
    group.finish();
}

/// The same messages under a MoldUDP64 header.
fn as_moldudp64(payload: &[u8]) -> Vec<u8> {
    let segment = iextp::parse(payload).expect("a segment");
    let header = moldudp64::Header { session: *b"SESSION   ", sequence: segment.first, count: segment.count as u16 };
    let mut packet = header.encode().to_vec();
    for body in segment.messages() {
        moldudp64::write_message(body, &mut packet);
    }
    packet
}

fn as_file(frames: &Frames) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), LinkType::Ethernet).expect("memory");
    for frame in frames.iter() {
        writer.packet(0, frame.len() as u32, frame).expect("memory");
    }
    writer.finish().expect("memory")
}

criterion_group!(benches, packets);
criterion_main!(benches);
