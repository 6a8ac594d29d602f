//! Gap detection against real captures: untouched files have no gap, injected faults come back exactly, and the sequences
//! of other exchanges are judged as they stand.

use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::capture::source::file::FileSource;
use sluice::feed::arbiter::{Arbiter, ArbiterSettings};
use sluice::feed::gap::{GapScanner, GapSettings, StreamGaps};
use sluice::feed::intervals::{Range, joined};
use sluice::units::Side;
use sluice::wire::packet;
use sluice::wire::segment::{Framing, Protocol, SegmentKind, SessionId, SessionKey};
use sluice::wire::{iextp, moldudp64};

use crate::common;
use crate::common::feed::{Packet, Recorder};

/// A segment of a file, its capture time beside it.
#[derive(Clone)]
pub struct Captured {
    pub capture_ns: i64,
    pub packet: Packet,
}

/// The UDP payloads of a file: (capture time, destination port, payload).
pub fn payloads(path: &Path) -> Vec<(i64, u16, Vec<u8>)> {
    let mut source = FileSource::open(path.to_str().expect("a UTF-8 path")).unwrap();
    let mut out = Vec::new();
    while let Some(frame) = source.next().unwrap() {
        if let Ok(udp) = packet::udp(frame.data, frame.link) {
            out.push((frame.capture_ns, udp.dst_port, udp.payload.to_vec()));
        }
    }
    out
}

/// The IEX-TP segments of a file.
pub fn segments(path: &Path) -> Vec<Captured> {
    let parse = |(capture_ns, _, payload): (i64, u16, Vec<u8>)| {
        let segment = iextp::parse(&payload).unwrap();
        let packet = Packet {
            key: segment.session,
            run: 0,
            kind: segment.kind,
            first: segment.first,
            count: segment.count,
            offset: segment.offset,
            send_ns: segment.send_ns,
            framing: segment.framing,
            block: segment.block.to_vec(),
        };
        Captured { capture_ns, packet }
    };
    payloads(path).into_iter().map(parse).collect()
}

fn scan<'a>(captured: impl IntoIterator<Item = &'a Captured>) -> Vec<StreamGaps> {
    let mut scanner = GapScanner::new(GapSettings::default());
    captured.into_iter().for_each(|c| scanner.on_segment(&c.packet.segment(), c.capture_ns));
    scanner.finish();
    scanner.streams()
}

#[test]
fn untouched_files_have_no_gaps() {
    let Some(data) = common::data() else { return };
    let mut files = 0;
    for entry in std::fs::read_dir(data.join("iex")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_string_lossy().into_owned();
        if !name.ends_with(".pcap") && !name.ends_with(".gz") {
            continue;
        }
        files += 1;
        let streams = scan(&segments(&path));
        assert!(!streams.is_empty(), "{name}");
        for s in &streams {
            let faults = (s.gaps.len(), s.duplicates, s.reordered, s.unconfirmed, s.bytes_lost);
            assert_eq!(faults, (0, 0, 0, 0, 0), "{name} run {}", s.run);
        }
    }
    assert!(files >= 12, "{files} files");
}

#[test]
fn the_deep_capture_has_three_runs() {
    let Some(data) = common::data() else { return };
    let streams = scan(&segments(&data.join("iex/DEEP10.first-7884.pcap.gz")));
    let found: Vec<_> = streams.iter().map(|s| (s.run, s.segments, s.messages, s.first_sequence)).collect();
    assert_eq!(found, [(0, 5244, 28_140, 1), (1, 483, 23_438, 1), (2, 2157, 25_192, 1)]);
    assert_eq!(streams.iter().map(|s| s.heartbeats).sum::<u64>(), 406);
}

/// What a fault injector did.
#[derive(Default, Debug, PartialEq)]
struct Injected {
    gaps: Vec<Range>,
    bytes_lost: u64,
    duplicates: u64,
    reordered: u64,
}

/// Removes, swaps and repeats segments. Faults keep a segment's distance, so that each stands for itself; the first
/// and the last segments stay, so that what is lost shows.
fn inject(source: &[Captured], seed: u64) -> (Vec<Captured>, Injected) {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let (mut out, mut told) = (Vec::new(), Injected::default());
    let data = |c: &Captured| c.packet.kind == SegmentKind::Data;
    let mut at = 0;
    while at < source.len() {
        let safe = at > 1 && at + 4 < source.len();
        let here = &source[at];
        match random.random_range(0..100) {
            0..=3 if safe && data(here) => {
                told.gaps.push(Range { first: here.packet.first, last: here.packet.end() - 1 });
                told.bytes_lost += here.packet.block.len() as u64;
                at += 1;
                continue;
            }
            4..=6 if safe && data(here) && data(&source[at + 1]) => {
                out.extend([source[at + 1].clone(), here.clone()]);
                told.reordered += 1;
                at += 2;
            }
            7..=9 if safe => {
                out.extend([here.clone(), here.clone()]);
                told.duplicates += u64::from(here.packet.count);
                at += 1;
            }
            _ => {
                out.push(here.clone());
                at += 1;
                continue;
            }
        }
        out.push(source[at].clone());
        at += 1;
    }
    told.gaps = joined(told.gaps);
    (out, told)
}

#[test]
fn injected_faults_come_back_exactly() {
    let Some(data) = common::data() else { return };
    for name in ["TOPS16.pcapng.gz", "20180127_IEXTP1_TOPS1.6.pcap.gz"] {
        let source = segments(&data.join("iex").join(name));
        for seed in 0..5 {
            let (copy, told) = inject(&source, seed);
            let streams = scan(&copy);
            assert_eq!(streams.len(), 1, "{name} seed {seed}");
            let s = &streams[0];
            let found = Injected {
                gaps: s.gaps.clone(),
                bytes_lost: s.bytes_lost,
                duplicates: s.duplicates,
                reordered: s.reordered,
            };
            assert!(told.gaps.len() > 100 && told.reordered > 100 && told.duplicates > 100, "{told:?}");
            assert_eq!(found, told, "{name} seed {seed}");
            assert_eq!(s.unconfirmed, 0, "{name} seed {seed}");
        }
    }
}

#[test]
fn moldudp64_file_has_one_gap() {
    let Some(data) = common::data() else { return };
    let path = data.join("feeds/Nasdaq.Nasdaq.Equities.TotalView.Itch.v5.0.Multiple.Packets.pcap");
    let mut scanner = GapScanner::new(GapSettings::default());
    for (capture_ns, _, payload) in payloads(&path) {
        scanner.on_segment(&moldudp64::parse(&payload).unwrap(), capture_ns);
    }
    scanner.finish();
    let streams = scanner.streams();
    assert_eq!(streams.len(), 1);
    let first_packet = 14_764_496;
    assert_eq!((streams[0].first_sequence, streams[0].gaps.len(), streams[0].unconfirmed), (first_packet, 1, 1));
    assert_eq!(streams[0].gaps[0].last, 19_009_116);
}

/// The adapter for exchanges whose messages this product does not speak: (first, count), and the payload as one body.
fn adapted(channel: u32, first: u64, count: u32, payload: &[u8]) -> Packet {
    let mut block = Vec::new();
    for _ in 0..count {
        block.extend_from_slice(&(payload.len() as u16).to_le_bytes());
        block.extend_from_slice(payload);
    }
    Packet {
        key: SessionKey { protocol: Protocol::MoldUdp64, protocol_id: 0, channel, session: SessionId(*b"adapted   ") },
        run: 0,
        kind: if count == 0 { SegmentKind::Heartbeat } else { SegmentKind::Data },
        first,
        count,
        offset: None,
        send_ns: None,
        framing: Framing::U16Le,
        block,
    }
}

fn captured(list: Vec<(i64, Packet)>) -> Vec<Captured> {
    list.into_iter().map(|(capture_ns, packet)| Captured { capture_ns, packet }).collect()
}

fn cme(data: &Path, name: &str) -> Vec<(i64, u16, Packet)> {
    let adapt = |(capture_ns, port, payload): (i64, u16, Vec<u8>)| {
        let sequence = u32::from_le_bytes(payload[..4].try_into().unwrap());
        (capture_ns, port, adapted(0, u64::from(sequence), 1, &payload))
    };
    payloads(&data.join("feeds").join(name)).into_iter().map(adapt).collect()
}

const CME_WHOLE: &str = "Cme.Mdp3.Sbe.v1.6.Cme.Mdp3.Sbe.v6.1.pcap";
const CME_FILTERED: &str = "Cme.Mdp3.Sbe.v1.8.MdIncrementalRefreshVolume.pcap";

#[test]
fn cme_sequences_side_by_side() {
    let Some(data) = common::data() else { return };
    for (name, gaps, messages) in [(CME_WHOLE, 0, 5000), (CME_FILTERED, 55, 56)] {
        let all = cme(&data, name);
        let mut ports: Vec<u16> = all.iter().map(|p| p.1).collect();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), 2, "{name}");
        for port in ports {
            let side = all.iter().filter(|p| p.1 == port).map(|p| (p.0, p.2.clone())).collect();
            let streams = scan(&captured(side));
            let found = (streams[0].gaps.len(), streams[0].messages, streams[0].duplicates, streams[0].reordered);
            assert_eq!(found, (gaps, messages, 0, 0), "{name} port {port}");
        }
    }
}

#[test]
fn cme_real_a_and_b_through_the_arbiter() {
    let Some(data) = common::data() else { return };
    let all = cme(&data, CME_WHOLE);
    let mut arbiter = Arbiter::new(ArbiterSettings { streams_max: 2, ..ArbiterSettings::files(2) });
    let mut out = Recorder::default();
    let mut now = 0;
    for (capture_ns, port, packet) in &all {
        now = now.max(*capture_ns);
        let side = if *port == 14_340 { Side::A } else { Side::B };
        out.give(&mut arbiter, side, packet, now);
    }
    arbiter.finish(now, &mut out);
    assert_eq!(arbiter.check_conservation(), []);
    assert_eq!(out.sequences(0), (5615..=10_614).collect::<Vec<u64>>());
    let merged = &out.merged().unwrap()[&0];
    for (_, _, packet) in &all {
        let body = packet.segment().messages().next().unwrap();
        assert_eq!(merged.bodies[&packet.first], body, "{}", packet.first);
    }
    let report = arbiter.report();
    let stream = &report.streams[0];
    assert_eq!((stream.counts.unique, stream.counts.duplicate, stream.counts.gap), (5000, 5000, 0));
    assert_eq!((stream.sides[0].wins, stream.sides[1].wins), (750, 4250));
    // Stated: B − A from −15,400 to +6,087 ns.
    let lead = &stream.lead_a_over_b;
    assert_eq!((lead.samples, lead.negative > 2500), (5000, true), "{lead:?}");
    assert!(lead.min_ns >= -15_400 && lead.max_ns <= 6_087, "{lead:?}");
}

#[test]
fn ice_sequences_have_no_gap() {
    let Some(data) = common::data() else { return };
    let path = data.join("feeds/Ice.Mdf.iMpact.v1.1.33.Ice.Mdf.iMpact.v1.1.33.Example.pcap");
    // iMpact packet header, big-endian: session u16, sequence u32, message count u16.
    let adapt = |(capture_ns, _, payload): (i64, u16, Vec<u8>)| {
        let sequence = u32::from_be_bytes(payload[2..6].try_into().unwrap());
        let count = u16::from_be_bytes(payload[6..8].try_into().unwrap());
        let session = u32::from(u16::from_be_bytes([payload[0], payload[1]]));
        (capture_ns, adapted(session, u64::from(sequence), u32::from(count), &payload[..8]))
    };
    let packets: Vec<_> = payloads(&path).into_iter().map(adapt).collect();
    assert_eq!(packets.len(), 8680);
    let streams = scan(&captured(packets));
    assert_eq!((streams.len(), streams[0].channel, streams[0].first_sequence), (1, 1291, 253_572));
    assert_eq!((streams[0].gaps.len(), streams[0].duplicates, streams[0].reordered), (0, 0, 0));
}

#[test]
fn miax_sequences_have_no_gap() {
    let Some(data) = common::data() else { return };
    let path = data.join("feeds/Miax.Tom.Mach.v1.9.Miax.Tom.Mach.v1.9.Example.pcap");
    let mut packets = Vec::new();
    for (capture_ns, _, payload) in payloads(&path) {
        // MACH packets, several in a datagram, little-endian: sequence u64, length u16, type u8 (0 heartbeat, 3 data).
        let mut rest = &payload[..];
        while rest.len() >= 12 {
            let sequence = u64::from_le_bytes(rest[..8].try_into().unwrap());
            let length = usize::from(u16::from_le_bytes([rest[8], rest[9]]));
            let data = rest[10] == 3;
            assert!((12..=rest.len()).contains(&length), "a MACH packet of {length} bytes");
            packets.push((capture_ns, data, sequence, rest[..length].to_vec()));
            rest = &rest[length..];
        }
    }
    let heartbeats = packets.iter().filter(|p| !p.1).count();
    assert_eq!((packets.len(), heartbeats), (50_952, 60));
    let adapt = |(capture_ns, data, sequence, bytes): (i64, bool, u64, Vec<u8>)| {
        let count = u32::from(data);
        (capture_ns, adapted(0, sequence, count, &bytes))
    };
    let streams = scan(&captured(packets.into_iter().filter(|p| p.1).map(adapt).collect()));
    assert_eq!((streams[0].messages, streams[0].gaps.len(), streams[0].duplicates), (50_892, 0, 0));
}
