//! Seeded damage through everything that reads bytes from outside: no panic, no endless loop, bounded work.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::capture::source::file::FileSource;
use sluice::feed::messages::Message;
use sluice::feed::rows::{Decoder, RowFormat};
use sluice::wire::packet::{LinkType, udp};
use sluice::wire::segment::{Protocol, Segment};
use sluice::wire::{iextp, moldudp64};

use crate::common;
use crate::sources::{capture_files, frame_of};

/// Bytes of a file that are damaged and read: enough for some hundred packets, few enough for many seeds.
const FILE_BYTES: usize = 48 * 1024;
/// Damaged copies of each file.
const SEEDS: u64 = 40;
/// Far above what one damaged copy takes (some milliseconds in a debug build).
const TIME_MAX: Duration = Duration::from_secs(20);

/// Reads everything that `bytes` give, through every decoder; returns the packets.
fn read_through(bytes: Vec<u8>) -> u64 {
    let size = bytes.len() as u64;
    let Ok(mut source) = FileSource::from_reader("damaged", Box::new(io::Cursor::new(bytes)), None) else { return 0 };
    let mut decoders = [Protocol::IexTp, Protocol::MoldUdp64].map(|protocol| Decoder::new(protocol, RowFormat::Csv));
    let mut rows = Vec::new();
    while let Ok(Some(packet)) = source.next() {
        for decoder in &mut decoders {
            decoder.frame(packet.index, packet.data, packet.link, &mut rows);
        }
        assert!(rows.is_ascii());
        rows.clear();
        if let Ok(view) = udp(packet.data, packet.link) {
            check_segment(iextp::parse(view.payload).ok());
            check_segment(moldudp64::parse(view.payload).ok());
        }
    }
    // A record header is 16 bytes, a packet block 16 and more; packings unfold, but not here.
    assert!(source.packets() <= size / 12 * 1_100, "{} packets from {size} bytes", source.packets());
    source.packets()
}

/// A segment that a codec lets through holds what it says.
fn check_segment(segment: Option<Segment<'_>>) {
    let Some(segment) = segment else { return };
    assert_eq!(segment.messages().count(), segment.count as usize);
    let bytes: usize = segment.messages().map(|body| body.len() + 2).sum();
    assert_eq!(bytes, segment.block.len());
    for body in segment.messages() {
        if let Ok(message) = Message::decode(body) {
            let mut fields = 0;
            message.fields(|_, _| fields += 1);
            assert!(fields <= 11);
        }
    }
}

/// One kind of damage at a place that the seed names.
fn damage(bytes: &mut Vec<u8>, random: &mut Pcg64Mcg) {
    if bytes.is_empty() {
        return;
    }
    let at = random.random_range(0..bytes.len());
    let span = random.random_range(1..64usize).min(bytes.len() - at);
    match random.random_range(0..7) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes.truncate(at),
        2 => {
            // A length field, most likely: where formats align them, with the values that break arithmetic.
            let at = at & !3;
            let values = [0, 1, 7, 8, 12, 16, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, u32::MAX, 65_535, 262_145];
            let value: u32 = values[random.random_range(0..values.len())];
            for (byte, value) in bytes[at..].iter_mut().zip(value.to_le_bytes()) {
                *byte = value;
            }
        }
        3 => {
            let at = at & !1;
            let value = [0u16, 1, 7, 19, 20, 0xffff, 0x7fff][random.random_range(0..7)].to_be_bytes();
            for (byte, value) in bytes[at..].iter_mut().zip(value) {
                *byte = value;
            }
        }
        4 => {
            bytes.drain(at..at + span);
        }
        5 => {
            let copy = bytes[at..at + span].to_vec();
            bytes.splice(at..at, copy);
        }
        _ => random.fill(&mut bytes[at..at + span]),
    }
}

/// The first bytes of a file, as it lies there and unpacked.
fn beginnings(path: &Path) -> Vec<Vec<u8>> {
    let packed = std::fs::read(path).expect("a file");
    let mut all = Vec::new();
    if packed.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Vec::new();
        let decoder = flate2::read::MultiGzDecoder::new(&packed[..]);
        io::Read::read_to_end(&mut io::Read::take(decoder, FILE_BYTES as u64), &mut unpacked).expect("gzip");
        all.push(unpacked);
    }
    all.push(packed[..packed.len().min(FILE_BYTES)].to_vec());
    all
}

#[test]
fn damaged_files_cost_bounded_work_and_no_panic() {
    let Some(data) = common::data() else { return };
    let mut copies = 0;
    for folder in ["iex", "feeds", "capture"] {
        for path in capture_files(&data.join(folder)) {
            for (number, bytes) in beginnings(&path).into_iter().enumerate() {
                for seed in 0..SEEDS {
                    let mut random = Pcg64Mcg::seed_from_u64(seed);
                    let mut damaged = bytes.clone();
                    for _ in 0..=seed % 4 {
                        damage(&mut damaged, &mut random);
                    }
                    let began = Instant::now();
                    let outcome = std::panic::catch_unwind(|| read_through(damaged));
                    assert!(outcome.is_ok(), "{} ({number}) seed {seed}", path.display());
                    assert!(began.elapsed() < TIME_MAX, "{} ({number}) seed {seed}: slow", path.display());
                    copies += 1;
                }
            }
        }
    }
    assert!(copies > 3_000, "{copies}");
}

#[test]
fn a_search_for_blocks_takes_time_in_proportion_to_the_file() {
    // Every four bytes look like the head of a block of 16 MiB: each is tried, none is whole.
    let mut bytes = b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x4d\x3c\x2b\x1a\x01\0\0\0".to_vec();
    bytes.extend_from_slice(&[0xff; 8]);
    bytes.extend_from_slice(&[0x1c, 0, 0, 0]);
    while bytes.len() < 24 << 20 {
        bytes.extend_from_slice(&6u32.to_le_bytes());
        bytes.extend_from_slice(&(16u32 << 20).to_le_bytes());
    }
    let began = Instant::now();
    assert_eq!(read_through(bytes), 0);
    assert!(began.elapsed() < TIME_MAX, "{:?}", began.elapsed());
}

#[test]
fn a_packing_that_unfolds_without_end_is_read_piece_by_piece() {
    // 64 MiB of zeros behind a file header: records of no bytes, all alike.
    let mut file = b"\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\x04\0\x01\0\0\0".to_vec();
    file.resize(24 + (64 << 20), 0);
    let packed = zstd::stream::encode_all(&file[..], 1).expect("memory");
    assert!(packed.len() < 64 << 10);
    let mut source = FileSource::from_reader("bomb", Box::new(io::Cursor::new(packed)), None).expect("a capture");
    while let Some(packet) = source.next().expect("readable") {
        assert!(packet.data.is_empty());
    }
    assert_eq!(source.packets(), (64 << 20) / 16);
}

proptest! {
    #[test]
    fn any_payload_is_taken_or_refused(payload in prop::collection::vec(any::<u8>(), 0..200), count in 0..5u16) {
        check_segment(iextp::parse(&payload).ok());
        check_segment(moldudp64::parse(&payload).ok());
        // With a header that fits, the spans decide.
        let header = iextp::Header {
            version: iextp::VERSION,
            protocol_id: iextp::DEEP_1_0,
            payload_length: payload.len() as u16,
            count,
            ..Default::default()
        };
        let segment = [&header.encode()[..], &payload].concat();
        check_segment(iextp::parse(&segment).ok());
        let header = moldudp64::Header { session: [b' '; 10], sequence: u64::MAX, count };
        let packet = [&header.encode()[..], &payload].concat();
        check_segment(moldudp64::parse(&packet).ok());
        let mut rows = Vec::new();
        Decoder::new(Protocol::IexTp, RowFormat::Jsonl).frame(0, &frame_of(&segment), LinkType::Ethernet, &mut rows);
        prop_assert!(rows.is_ascii());
    }

    #[test]
    fn any_body_is_taken_or_refused(kind in prop::sample::select(&b"SDHIOPE85QTBXAZ\0"[..]), rest in prop::collection::vec(any::<u8>(), 0..100)) {
        let body = [&[kind], &rest[..]].concat();
        if let Ok(message) = Message::decode(&body) {
            prop_assert_eq!(message.kind(), kind);
            message.fields(|name, _| assert!(!name.is_empty()));
        }
    }

    #[test]
    fn any_frame_is_taken_or_refused(frame in prop::collection::vec(any::<u8>(), 0..120), link in 0..300u16) {
        if let Ok(view) = udp(&frame, LinkType::from_value(link)) {
            let start = view.payload_offset as usize;
            prop_assert_eq!(view.payload, &frame[start..start + view.payload.len()]);
        }
    }

    #[test]
    fn any_bytes_are_a_file_or_none(magic in prop::sample::select(vec![
        &b"\xd4\xc3\xb2\xa1\x02\0\x04\0"[..], b"\xa1\xb2\x3c\x4d\0\x02\0\x04", b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x4d\x3c\x2b\x1a",
        b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"",
    ]), rest in prop::collection::vec(any::<u8>(), 0..400)) {
        read_through([magic, &rest[..]].concat());
    }
}
