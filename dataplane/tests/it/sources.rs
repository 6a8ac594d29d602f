//! Capture files as a source: formats, packings, sections, damage.

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::capture::source::file::{DAMAGE_MAX, Damage, FileSource, SourceError};
use sluice::wire::packet::{LinkType, UdpHeader, VLAN_NONE};
use sluice::wire::pcap::{ByteOrder, InterfaceName, PACKET_BYTES_MAX, PcapWriter, PcapngWriter};

/// A packet that outlives its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    pub data: Vec<u8>,
    pub original_bytes: u32,
    pub capture_ns: i64,
    pub stamped: bool,
    pub interface: u32,
    pub section: u32,
    pub link: LinkType,
}

/// Everything that a source gives.
pub fn read_all(source: &mut FileSource) -> (Vec<Packet>, Vec<Damage>) {
    let mut packets = Vec::new();
    while let Some(packet) = source.next().expect("no read error") {
        assert_eq!(packet.index, packets.len() as u64);
        packets.push(Packet {
            data: packet.data.to_vec(),
            original_bytes: packet.original_bytes,
            capture_ns: packet.capture_ns,
            stamped: packet.stamped,
            interface: packet.interface,
            section: packet.section,
            link: packet.link,
        });
    }
    assert!(source.next().expect("no read error").is_none(), "the end stays the end");
    (packets, source.damage().to_vec())
}

/// The capture files below `folder`, sorted; goldens left out.
pub fn capture_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a data folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_string();
        if path.is_dir() {
            files.extend(capture_files(&path));
        } else if !name.ends_with(".tsv") && !name.ends_with(".csv.gz") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// An Ethernet frame to 233.215.21.4:10378 around a UDP payload.
pub fn frame_of(payload: &[u8]) -> Vec<u8> {
    let header = UdpHeader {
        src_mac: [2, 0, 0, 0, 0, 1],
        vlan: VLAN_NONE,
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(233, 215, 21, 4),
        src_port: 40_000,
        dst_port: 10_378,
        identification: 7,
    };
    let mut frame = Vec::new();
    header.write_frame(payload, &mut frame);
    frame
}

/// Reads bytes as a capture file.
pub fn read_bytes(bytes: &[u8]) -> Result<(Vec<Packet>, Vec<Damage>), SourceError> {
    let reader = Box::new(io::Cursor::new(bytes.to_vec()));
    Ok(read_all(&mut FileSource::from_reader("test", reader, None)?))
}

fn whole(bytes: &[u8]) -> Vec<Packet> {
    let (packets, damage) = read_bytes(bytes).expect("a capture");
    assert_eq!(damage, []);
    packets
}

fn order_u16(order: ByteOrder, value: u16) -> [u8; 2] {
    if order == ByteOrder::Little { value.to_le_bytes() } else { value.to_be_bytes() }
}

fn order_u32(order: ByteOrder, value: u32) -> [u8; 4] {
    if order == ByteOrder::Little { value.to_le_bytes() } else { value.to_be_bytes() }
}

/// A pcapng file under construction, in the order of its current section.
struct Ng {
    order: ByteOrder,
    bytes: Vec<u8>,
}

impl Ng {
    fn new(order: ByteOrder) -> Ng {
        let mut ng = Ng { order, bytes: Vec::new() };
        ng.section(order);
        ng
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> usize {
        let at = self.bytes.len();
        let length = order_u32(self.order, 12 + body.len().next_multiple_of(4) as u32);
        self.bytes.extend_from_slice(&order_u32(self.order, kind));
        self.bytes.extend_from_slice(&length);
        self.bytes.extend_from_slice(body);
        self.bytes.resize(at + 8 + body.len().next_multiple_of(4), 0);
        self.bytes.extend_from_slice(&length);
        at
    }

    fn section(&mut self, order: ByteOrder) -> usize {
        self.order = order;
        let mut body = order_u32(order, 0x1a2b_3c4d).to_vec();
        body.extend_from_slice(&order_u16(order, 1));
        body.extend_from_slice(&[0; 2]);
        body.extend_from_slice(&[0xff; 8]);
        self.block(0x0a0d_0d0a, &body)
    }

    fn interface(&mut self, link: u16, snap_bytes: u32, options: &[(u16, &[u8])]) -> usize {
        let mut body = order_u16(self.order, link).to_vec();
        body.extend_from_slice(&[0; 2]);
        body.extend_from_slice(&order_u32(self.order, snap_bytes));
        for (code, value) in options {
            body.extend_from_slice(&order_u16(self.order, *code));
            body.extend_from_slice(&order_u16(self.order, value.len() as u16));
            body.extend_from_slice(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        self.block(1, &body)
    }

    fn packet(&mut self, interface: u32, ticks: u64, data: &[u8]) -> usize {
        let mut body = Vec::new();
        for field in [interface, (ticks >> 32) as u32, ticks as u32, data.len() as u32, data.len() as u32 + 4] {
            body.extend_from_slice(&order_u32(self.order, field));
        }
        body.extend_from_slice(data);
        self.block(6, &body)
    }
}

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];

#[test]
fn stamps_of_any_resolution_and_offset_are_read() {
    let second = 1_000_000_000i64;
    type Options<'a> = &'a [(u16, &'a [u8])];
    let cases: &[(Options<'_>, u64, i64)] = &[
        (&[], 1_517_058_016_623_564, 1_517_058_016_623_564_000),
        (&[(9, &[6])], 1_517_058_016_623_564, 1_517_058_016_623_564_000),
        (&[(9, &[9])], 1_517_058_016_623_564_338, 1_517_058_016_623_564_338),
        (&[(9, &[0])], 1_517_058_016, 1_517_058_016 * second),
        (&[(9, &[3])], 1_517_058_016_623, 1_517_058_016_623_000_000),
        (&[(9, &[12])], 1_517_058_016_623_564_338, 1_517_058_016_623_564),
        (&[(9, &[127])], u64::MAX, 0),
        (&[(9, &[0x80])], 1_517_058_016, 1_517_058_016 * second),
        (&[(9, &[0x8a])], 1_517_058_016 * 1024 + 512, 1_517_058_016 * second + second / 2),
        (&[(9, &[0xa0])], 3 << 31, second + second / 2),
        (&[(9, &[0xff])], u64::MAX, 0),
    ];
    for order in ORDERS {
        for (options, ticks, want) in cases {
            let mut ng = Ng::new(order);
            ng.interface(1, 0, options);
            ng.packet(0, *ticks, b"x");
            assert_eq!(whole(&ng.bytes)[0].capture_ns, *want, "{options:?}");
        }
        let mut ng = Ng::new(order);
        let hours = |hours: i64| match order {
            ByteOrder::Little => (hours * 3_600).to_le_bytes(),
            ByteOrder::Big => (hours * 3_600).to_be_bytes(),
        };
        ng.interface(1, 0, &[(14, &hours(-5))]);
        ng.interface(1, 0, &[(9, &[9]), (14, &hours(5))]);
        ng.packet(0, 18_000_000_001, b"x");
        ng.packet(1, 7, b"x");
        let stamps: Vec<i64> = whole(&ng.bytes).iter().map(|packet| packet.capture_ns).collect();
        assert_eq!(stamps, [1_000, 18_000 * second + 7]);
    }
}

#[test]
fn a_stamp_beyond_an_i64_costs_its_packet_only() {
    let mut ng = Ng::new(ByteOrder::Little);
    ng.interface(1, 0, &[]);
    let at = ng.packet(0, u64::MAX, b"x");
    ng.packet(0, 1, b"y");
    let (packets, damage) = read_bytes(&ng.bytes).expect("a capture");
    assert_eq!(packets.iter().map(|packet| &packet.data[..]).collect::<Vec<_>>(), [b"y"]);
    assert_eq!(damage.len(), 1);
    assert_eq!(damage[0].offset, at as u64);
}

#[test]
fn sections_have_their_own_interfaces_and_byte_order() {
    let mut ng = Ng::new(ByteOrder::Little);
    ng.interface(1, 0, &[(9, &[9])]);
    ng.interface(101, 0, &[]);
    ng.packet(1, 5, b"raw");
    ng.packet(0, 5, b"ethernet");
    ng.section(ByteOrder::Big);
    ng.interface(113, 0, &[(9, &[3]), (2, b"eth7")]);
    ng.packet(0, 5, b"cooked");
    let undeclared = ng.packet(1, 5, b"undeclared here");
    ng.packet(0, 6, b"after");
    let (packets, damage) = read_bytes(&ng.bytes).expect("a capture");
    let seen: Vec<(u32, u32, LinkType, i64, &[u8])> = packets
        .iter()
        .map(|packet| (packet.section, packet.interface, packet.link, packet.capture_ns, &packet.data[..]))
        .collect();
    assert_eq!(
        seen,
        [
            (0, 1, LinkType::Raw, 5_000, &b"raw"[..]),
            (0, 0, LinkType::Ethernet, 5, b"ethernet"),
            (1, 0, LinkType::LinuxSll, 5_000_000, b"cooked"),
            (1, 0, LinkType::LinuxSll, 6_000_000, b"after"),
        ]
    );
    let what = "a packet of interface 1, but the section declares 1".to_string();
    assert_eq!(damage, [Damage { offset: undeclared as u64, what }]);
}

#[test]
fn simple_and_obsolete_packets_are_read() {
    for order in ORDERS {
        let mut ng = Ng::new(order);
        ng.interface(1, 6, &[]);
        let mut simple = order_u32(order, 10).to_vec();
        simple.extend_from_slice(b"123456");
        ng.block(3, &simple);
        let mut obsolete = [order_u16(order, 0), order_u16(order, 9)].concat();
        for field in [0, 77, 3, 4] {
            obsolete.extend_from_slice(&order_u32(order, field));
        }
        obsolete.extend_from_slice(b"abc");
        ng.block(2, &obsolete);
        ng.block(0x0bad, b"custom");
        let packets = whole(&ng.bytes);
        assert_eq!((packets[0].stamped, packets[0].original_bytes, &packets[0].data[..]), (false, 10, &b"123456"[..]));
        assert_eq!((packets[1].stamped, packets[1].original_bytes, &packets[1].data[..]), (true, 4, &b"abc"[..]));
        assert_eq!((packets[1].capture_ns, packets.len()), (77_000, 2));
    }
}

/// A file of ten packets of 60 bytes each, their number in each byte; gives the places of the packet blocks too.
fn ten_packets(order: ByteOrder) -> (Vec<u8>, Vec<usize>) {
    let mut ng = Ng::new(order);
    ng.interface(1, 0, &[(9, &[9])]);
    let places = (0..10u8).map(|number| ng.packet(0, u64::from(number), &[number; 60])).collect();
    (ng.bytes, places)
}

fn numbers(packets: &[Packet]) -> Vec<u8> {
    packets.iter().map(|packet| packet.data[0]).collect()
}

#[test]
fn a_damaged_block_costs_itself_only() {
    for order in ORDERS {
        let (bytes, places) = ten_packets(order);
        let at = places[4];
        let length = 92;
        let changes: &[(&str, usize, [u8; 4])] = &[
            ("length of zero", at + 4, [0; 4]),
            ("length that is no multiple of four", at + 4, order_u32(order, 93)),
            ("length far beyond the file", at + 4, order_u32(order, 1 << 20)),
            ("length beyond the limit", at + 4, [0xff; 4]),
            ("length of two blocks", at + 4, order_u32(order, 2 * length)),
            ("length behind the body", at + length as usize - 4, order_u32(order, 88)),
            ("captured length beyond the block", at + 20, order_u32(order, 64)),
            ("captured length beyond the limit", at + 20, [0xff; 4]),
            ("interface that nobody declared", at + 8, order_u32(order, 1)),
        ];
        for (what, place, value) in changes {
            let mut damaged = bytes.clone();
            damaged[*place..place + 4].copy_from_slice(value);
            let (packets, damage) = read_bytes(&damaged).expect("a capture");
            assert_eq!(numbers(&packets), [0, 1, 2, 3, 5, 6, 7, 8, 9], "{what}: {damage:?}");
            assert_eq!(damage.iter().map(|damage| damage.offset).collect::<Vec<_>>(), [at as u64], "{what}");
        }
        // Bytes that belong to no block, and bytes that are missing.
        let mut inserted = bytes.clone();
        inserted.splice(at..at, [0xee; 40]);
        assert_eq!(numbers(&read_bytes(&inserted).expect("a capture").0), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let mut removed = bytes.clone();
        removed.drain(at + 16..at + 36);
        assert_eq!(numbers(&read_bytes(&removed).expect("a capture").0), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    }
}

#[test]
fn damaged_interfaces_never_lend_their_number() {
    let order = ByteOrder::Little;
    // A description whose options are broken keeps its number, and costs its own packets.
    let mut ng = Ng::new(order);
    let at = ng.interface(1, 0, &[(9, &[9])]);
    ng.interface(101, 0, &[]);
    ng.packet(0, 5, b"left out");
    ng.packet(1, 5, b"kept");
    ng.bytes[at + 18..at + 20].copy_from_slice(&[0xff, 0xff]);
    let (packets, damage) = read_bytes(&ng.bytes).expect("a capture");
    assert_eq!((packets.len(), packets[0].link, damage.len()), (1, LinkType::Raw, 2));

    // A lost description would move the numbers of those behind it: their packets are left out until the next section.
    let mut ng = Ng::new(order);
    ng.interface(1, 0, &[]);
    ng.packet(0, 5, b"before");
    let lost = ng.interface(101, 0, &[]);
    ng.packet(0, 5, b"still sure");
    ng.interface(113, 0, &[]);
    ng.packet(1, 5, b"whose?");
    ng.section(order);
    ng.interface(1, 0, &[]);
    ng.packet(0, 5, b"sure again");
    ng.bytes[lost + 4..lost + 8].copy_from_slice(&[0xff; 4]);
    let (packets, damage) = read_bytes(&ng.bytes).expect("a capture");
    let seen: Vec<&[u8]> = packets.iter().map(|packet| &packet.data[..]).collect();
    assert_eq!(seen, [&b"before"[..], b"still sure", b"sure again"]);
    assert_eq!(damage.len(), 3);
    assert!(damage[0].what.contains("reading goes on at offset"), "{damage:?}");
}

#[test]
fn a_file_of_damage_costs_no_memory() {
    let mut ng = Ng::new(ByteOrder::Little);
    for _ in 0..5_000 {
        ng.packet(9, 0, b"x");
    }
    let reader = Box::new(io::Cursor::new(ng.bytes));
    let mut source = FileSource::from_reader("test", reader, None).expect("a capture");
    let (packets, damage) = read_all(&mut source);
    assert_eq!((packets.len(), damage.len(), source.damage_count()), (0, DAMAGE_MAX, 5_000));
}

/// A classic pcap file: magic as written, then (seconds, fraction, data) records.
fn classic(order: ByteOrder, magic: u32, version: (u16, u16), records: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut bytes = order_u32(order, magic).to_vec();
    bytes.extend_from_slice(&order_u16(order, version.0));
    bytes.extend_from_slice(&order_u16(order, version.1));
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&order_u32(order, 65_535));
    bytes.extend_from_slice(&order_u32(order, 1));
    for (seconds, fraction, data) in records {
        for field in [*seconds, *fraction, data.len() as u32, data.len() as u32] {
            bytes.extend_from_slice(&order_u32(order, field));
        }
        bytes.extend_from_slice(data);
    }
    bytes
}

#[test]
fn classic_files_of_both_orders_and_resolutions_are_read() {
    for order in ORDERS {
        for (magic, unit) in [(0xa1b2_c3d4, 1_000), (0xa1b2_3c4d, 1)] {
            let bytes = classic(order, magic, (2, 4), &[(1_499_697_138, 433_824, b"one"), (u32::MAX, 7, b"")]);
            let packets = whole(&bytes);
            let stamps: Vec<i64> = packets.iter().map(|packet| packet.capture_ns).collect();
            assert_eq!(
                stamps,
                [1_499_697_138_000_000_000 + 433_824 * unit, i64::from(u32::MAX) * 1_000_000_000 + 7 * unit]
            );
            assert_eq!((packets[0].data.as_slice(), packets[1].data.as_slice()), (&b"one"[..], &b""[..]));
            let (packets, damage) =
                read_bytes(&classic(order, magic, (2, 4), &[(5, 2_000_000_000, b"x")])).expect("a capture");
            assert_eq!((packets[0].capture_ns, damage.len()), (5_000_000_000, 1), "the whole second");
        }
    }
}

#[test]
fn what_is_not_read_is_refused_with_its_reason() {
    let refused = |bytes: &[u8]| read_bytes(bytes).expect_err("refused").to_string();
    let cases: &[(&[u8], &str)] = &[
        (b"", "the file is empty"),
        (b"abc", "only 3 bytes"),
        (b"PK\x03\x04 and so on and so on", "not a pcap or pcapng file: it begins with 50 4b 03 04"),
        (&classic(ByteOrder::Little, 0xa1b2_cd34, (2, 4), &[]), "Kuznetzov's modified pcap is not read: convert it"),
        (&classic(ByteOrder::Big, 0xa1b2_34cd, (2, 4), &[]), "Mesquita's modified pcap"),
        (&classic(ByteOrder::Little, 0xa12b_3c4d, (2, 4), &[]), "Navtel's modified pcap"),
        (&classic(ByteOrder::Little, 0x1c00_01ac, (2, 4), &[]), "lcap"),
        (&classic(ByteOrder::Little, 0xa1b2_c3d4, (3, 0), &[]), "pcap version 3.0: only 2.x is read"),
        (&classic(ByteOrder::Little, 0xa1b2_c3d4, (2, 4), &[])[..23], "ends inside the pcap header (23 of 24 bytes)"),
        (b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x11\x22\x33\x44\x01\0\0\0", "without a byte-order magic"),
    ];
    for (bytes, what) in cases {
        let message = refused(bytes);
        assert!(message.contains(what), "{message:?} should say {what:?}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let message = FileSource::open(folder.path().to_str().expect("UTF-8")).err().expect("refused").to_string();
    assert!(message.contains("cannot open: is a directory"), "{message}");
}

#[test]
fn a_cut_classic_file_gives_every_whole_record_and_says_where_it_was_cut() {
    let records: Vec<Vec<u8>> = (0..5u8).map(|number| vec![number; 20 + usize::from(number)]).collect();
    let listed: Vec<(u32, u32, &[u8])> = records.iter().map(|data| (1, 2, &data[..])).collect();
    let bytes = classic(ByteOrder::Little, 0xa1b2_3c4d, (2, 4), &listed);
    let mut edges = vec![24];
    for record in &records {
        edges.push(edges.last().expect("one") + 16 + record.len());
    }
    for cut in 24..=bytes.len() {
        let (packets, damage) = read_bytes(&bytes[..cut]).expect("a capture");
        let wholes = edges.iter().filter(|edge| **edge <= cut).count() - 1;
        assert_eq!(packets.len(), wholes, "cut at {cut}");
        let offsets: Vec<u64> = damage.iter().map(|damage| damage.offset).collect();
        let want = if edges.contains(&cut) { vec![] } else { vec![edges[wholes] as u64] };
        assert_eq!(offsets, want, "cut at {cut}");
    }
    let mut long = bytes.clone();
    let second = edges[1];
    long[second + 8..second + 12].copy_from_slice(&(PACKET_BYTES_MAX + 1).to_le_bytes());
    let (packets, damage) = read_bytes(&long).expect("a capture");
    assert_eq!((packets.len(), damage.len(), damage[0].offset), (1, 1, second as u64));
    assert!(damage[0].what.contains("above the limit of 262144"), "{damage:?}");
}

#[test]
fn a_cut_pcapng_file_gives_every_whole_block() {
    let (bytes, places) = ten_packets(ByteOrder::Big);
    for cut in 28..=bytes.len() {
        let (packets, damage) = read_bytes(&bytes[..cut]).expect("a capture");
        let wholes = places.iter().filter(|at| **at + 92 <= cut).count();
        assert_eq!(numbers(&packets), (0..wholes as u8).collect::<Vec<_>>(), "cut at {cut}");
        let edge = cut == 28 || cut == places[0] || places.iter().any(|at| at + 92 == cut);
        assert_eq!(damage.is_empty(), edge, "cut at {cut}: {damage:?}");
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).expect("memory")
}

#[test]
fn packings_are_told_by_their_bytes_and_may_have_several_members() {
    for order in ORDERS {
        let (bytes, _) = ten_packets(order);
        let want = whole(&bytes);
        let (first, second) = bytes.split_at(300);
        let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(&bytes)].concat();
        for (what, packed) in [
            ("gzip", gzip(&bytes)),
            ("two gzip members", [gzip(first), gzip(second)].concat()),
            ("an empty gzip member between", [gzip(first), gzip(b""), gzip(second)].concat()),
            ("zstd", zstd(&bytes)),
            ("two zstd frames", [zstd(first), zstd(second)].concat()),
            ("a skippable zstd frame first", skippable),
        ] {
            assert_eq!(whole(&packed), want, "{what}");
        }
    }
}

/// Gives its bytes in pieces of one to seven, as a pipe may.
struct Dribble(io::Cursor<Vec<u8>>, usize);

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 = self.1 % 7 + 1;
        let piece = buffer.len().min(self.1);
        self.0.read(&mut buffer[..piece])
    }
}

#[test]
fn a_stream_may_come_in_small_pieces() {
    let (bytes, _) = ten_packets(ByteOrder::Little);
    let want = whole(&bytes);
    for packed in [bytes.clone(), gzip(&bytes), zstd(&bytes)] {
        let reader = Box::new(Dribble(io::Cursor::new(packed), 0));
        let mut source = FileSource::from_reader("test", reader, None).expect("a capture");
        assert_eq!(read_all(&mut source), (want.clone(), vec![]));
    }
}

#[test]
fn a_cut_packing_gives_what_was_unpacked() {
    let mut ng = Ng::new(ByteOrder::Little);
    ng.interface(1, 0, &[]);
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let bodies: Vec<[u8; 60]> = (0..10_000).map(|_| std::array::from_fn(|_| random.random())).collect();
    for body in &bodies {
        ng.packet(0, 0, body);
    }
    for (what, packed) in [("gzip", gzip(&ng.bytes)), ("zstd", zstd(&ng.bytes))] {
        let (packets, damage) = read_bytes(&packed[..packed.len() / 2]).expect("a capture");
        assert!(packets.len() > 1_000, "{what}: {} packets before the cut", packets.len());
        for (packet, body) in packets.iter().zip(&bodies) {
            assert_eq!(packet.data, body, "{what}");
        }
        assert!(damage.iter().any(|damage| damage.what.contains("packed stream is damaged or cut")), "{damage:?}");
        let mut garbage = packed.clone();
        garbage.extend_from_slice(b"garbage behind the last member");
        let (packets, damage) = read_bytes(&garbage).expect("a capture");
        assert_eq!((packets.len(), damage.len()), (10_000, 1), "{what}: {damage:?}");
        assert_eq!(damage[0].offset, ng.bytes.len() as u64);
    }
}

/// Fails in the system after its bytes.
struct Failing(io::Cursor<Vec<u8>>);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(io::Error::from_raw_os_error(5)),
            read => Ok(read),
        }
    }
}

#[test]
fn a_read_that_fails_is_an_error_with_its_offset() {
    let (bytes, places) = ten_packets(ByteOrder::Little);
    let reader = Box::new(Failing(io::Cursor::new(bytes[..places[3]].to_vec())));
    let mut source = FileSource::from_reader("test", reader, None).expect("a capture");
    let mut packets = 0;
    let error = loop {
        match source.next() {
            Ok(Some(_)) => packets += 1,
            Ok(None) => panic!("an end instead of the error"),
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(packets, 3);
    assert!(error.contains(&format!("read failed at byte {}", places[3])), "{error}");
}

#[test]
fn our_writers_are_read_by_us_and_by_others() {
    let names =
        [InterfaceName { name: "A", link: LinkType::Ethernet }, InterfaceName { name: "B", link: LinkType::Ethernet }];
    let frames: Vec<(u32, i64, Vec<u8>)> = (0..50u8)
        .map(|number| {
            let stamp = 1_517_058_016_623_564_338 + i64::from(number);
            (u32::from(number % 2), stamp, frame_of(&vec![number; usize::from(number)]))
        })
        .collect();
    let mut ng = PcapngWriter::new(Vec::new(), &names).expect("memory");
    let mut classic = PcapWriter::new(Vec::new(), LinkType::Ethernet).expect("memory");
    for (interface, stamp, frame) in &frames {
        ng.packet(*interface, *stamp, frame.len() as u32 + 4, frame).expect("memory");
        classic.packet(*stamp, frame.len() as u32 + 4, frame).expect("memory");
    }
    let (ng, classic) = (ng.finish().expect("memory"), classic.finish().expect("memory"));
    for (bytes, sides) in [(&ng, true), (&classic, false)] {
        let got = whole(bytes);
        assert_eq!(got.len(), frames.len());
        for (packet, (interface, stamp, frame)) in got.iter().zip(&frames) {
            assert_eq!(packet.interface, if sides { *interface } else { 0 });
            assert_eq!((packet.capture_ns, packet.stamped, packet.link), (*stamp, true, LinkType::Ethernet));
            assert_eq!((packet.original_bytes as usize, &packet.data), (frame.len() + 4, frame));
        }
    }
    assert_eq!(foreign(&ng), frames);
    let flat: Vec<(u32, i64, Vec<u8>)> = frames.iter().map(|(_, stamp, frame)| (0, *stamp, frame.clone())).collect();
    assert_eq!(foreign(&classic), flat);

    let mut ng = PcapngWriter::new(Vec::new(), &names).expect("memory");
    assert_eq!(ng.packet(0, -1, 1, b"x").expect_err("before 1970").kind(), io::ErrorKind::InvalidInput);
    let long = vec![0; PACKET_BYTES_MAX as usize + 1];
    assert_eq!(ng.packet(0, 1, 1, &long).expect_err("too long").kind(), io::ErrorKind::InvalidInput);
    let mut classic = PcapWriter::new(Vec::new(), LinkType::Raw).expect("memory");
    assert!(classic.packet(i64::MAX, 1, b"x").is_err(), "seconds are a u32");
}

/// What pcap-parser reads of a file with nanosecond stamps: interface, stamp, data.
fn foreign(bytes: &[u8]) -> Vec<(u32, i64, Vec<u8>)> {
    use pcap_parser::{Block, PcapBlockOwned, PcapError};
    let mut reader = pcap_parser::create_reader(1 << 20, io::Cursor::new(bytes.to_vec())).expect("a capture");
    let mut packets = Vec::new();
    loop {
        match reader.next() {
            Ok((used, block)) => {
                match block {
                    PcapBlockOwned::Legacy(record) => {
                        let stamp = i64::from(record.ts_sec) * 1_000_000_000 + i64::from(record.ts_usec);
                        packets.push((0, stamp, record.data[..record.caplen as usize].to_vec()));
                    }
                    PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                        let stamp = i64::from(packet.ts_high) << 32 | i64::from(packet.ts_low);
                        packets.push((packet.if_id, stamp, packet.data[..packet.caplen as usize].to_vec()));
                    }
                    PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                        assert_eq!(interface.ts_resolution(), Some(1_000_000_000));
                    }
                    PcapBlockOwned::NG(_) | PcapBlockOwned::LegacyHeader(_) => {}
                }
                reader.consume(used);
            }
            Err(PcapError::Eof) => return packets,
            Err(PcapError::Incomplete(_)) => reader.refill().expect("memory"),
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn names_and_progress_are_told() {
    let mut ng = Ng::new(ByteOrder::Little);
    ng.interface(1, 0, &[(2, b"A")]);
    ng.packet(0, 5, b"x");
    let total = ng.bytes.len() as u64;
    let mut source =
        FileSource::from_reader("test", Box::new(io::Cursor::new(ng.bytes)), Some(total)).expect("a capture");
    assert_eq!(source.interface_name(0), None, "nothing is read yet");
    assert!(source.next().expect("readable").is_some());
    assert_eq!((source.interface_name(0), source.interface_name(1)), (Some("A"), None));
    assert_eq!((source.progress(), source.packets(), source.name()), ((total, Some(total)), 1, "test"));
}
