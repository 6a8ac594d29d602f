use std::collections::BTreeMap;

use super::*;
use crate::wire::packet;

struct Seen {
    packets: u64,
    heartbeats: u64,
    messages: u64,
    runs: u32,
    kinds: BTreeMap<char, u64>,
    longest_silence_ns: i64,
    bytes: Vec<u8>,
}

/// Generates a session on one side and checks on the way what holds for every session.
fn walk(settings: Settings) -> Seen {
    let (mut generator, protocol_id) = (Generator::new(settings.clone()).unwrap(), settings.product.protocol_id());
    let mut seen = Seen {
        packets: 0,
        heartbeats: 0,
        messages: 0,
        runs: 0,
        kinds: BTreeMap::new(),
        longest_silence_ns: 0,
        bytes: Vec::new(),
    };
    let (mut expected, mut offset, mut sent, mut captured) = (1, 0, settings.start_ns, i64::MIN);
    while let Some(packet) = generator.next_packet() {
        let view = packet::udp(packet.frame, packet::LinkType::from_value(1)).unwrap();
        let header = Header::read(view.payload).unwrap();
        assert!(packet::udp_checksum_ok(packet.frame, &view) && packet::ipv4_checksum_ok(&packet.frame[14..34]));
        let segment = iextp::parse(view.payload).unwrap();
        assert_eq!((header.protocol_id, header.session, header.channel), (protocol_id, settings.session, 1));
        if packet.run == seen.runs {
            seen.runs += 1;
            assert!(header.count == 0, "a run opens with a heartbeat");
            (expected, offset) = (1, 0);
        } else {
            seen.longest_silence_ns = seen.longest_silence_ns.max(header.send_ns - sent);
        }
        assert_eq!((header.first, header.offset, packet.first), (expected, offset, expected));
        assert!(header.send_ns >= sent && packet.capture_ns >= captured && packet.capture_ns > header.send_ns);
        (sent, captured) = (header.send_ns, packet.capture_ns);
        expected += u64::from(header.count);
        offset += u64::from(header.payload_length);
        seen.packets += 1;
        seen.heartbeats += u64::from(header.count == 0);
        for body in segment.messages() {
            seen.messages += 1;
            *seen.kinds.entry(body[0] as char).or_default() += 1;
            let time = i64::from_le_bytes(body[2..10].try_into().unwrap());
            assert!(time <= header.send_ns && time > header.send_ns - NANOS_PER_SECOND);
        }
        seen.bytes.extend_from_slice(packet.frame);
    }
    assert_eq!(seen.messages, settings.messages);
    seen
}

#[test]
fn a_session_has_every_message_type_and_the_mix_of_a_real_one() {
    for (product, kinds) in [(Product::Deep, "58ABDEHIOPSTX"), (Product::Tops, "ABDHIOPQSTX")] {
        let seen = walk(Settings::new(product, 20_000, 7));
        assert_eq!(seen.kinds.keys().collect::<String>(), kinds, "{product:?}");
        assert_eq!(seen.kinds[&'S'], 6);
        let per_packet = seen.messages as f64 / (seen.packets - seen.heartbeats) as f64;
        assert!((1.5..2.0).contains(&per_packet), "{product:?}: {per_packet} messages a packet");
        assert!(seen.longest_silence_ns < 2 * NANOS_PER_SECOND, "a heartbeat a second breaks every silence");
        assert_eq!(seen.runs, 1);
    }
}

#[test]
fn the_seed_decides_every_byte() {
    let settings = Settings::new(Product::Deep, 3_000, 11);
    let bytes = walk(settings.clone()).bytes;
    assert_eq!(bytes, walk(settings.clone()).bytes);
    assert_ne!(bytes, walk(Settings { seed: 12, ..settings }).bytes);
}

#[test]
fn restarts_begin_anew_with_heartbeats() {
    for messages in [1_000, 1_001, 1_003] {
        let seen = walk(Settings { restarts: 3, ..Settings::new(Product::Tops, messages, 5) });
        assert_eq!(seen.runs, 4);
        assert_eq!(seen.kinds[&'S'], 3 * 3 + 6, "every run opens, the last one closes");
    }
}

#[test]
fn the_smallest_session_and_slow_rates_work() {
    for product in [Product::Deep, Product::Tops] {
        for seed in 0..50 {
            walk(Settings::new(product, MESSAGES_PER_RUN_MIN, seed));
        }
    }
    let slow = walk(Settings { rate: 1, idle_every: 0, ..Settings::new(Product::Deep, 500, 3) });
    assert!(slow.heartbeats > 100, "at one packet a second heartbeats fill the longer gaps");
}

#[test]
fn every_side_carries_the_same_segments() {
    let sides = vec![Carriage::of(Side::A), Carriage::of(Side::B)];
    let both = Settings { sides, ..Settings::new(Product::Deep, 2_000, 9) };
    let mut streams = [Vec::new(), Vec::new()];
    for packet in Generator::new(both).unwrap() {
        let view = packet::udp(&packet.frame, packet::LinkType::from_value(1)).unwrap();
        assert_eq!(view.dst_v4(), Some(Carriage::of(packet.side).group));
        streams[packet.side.index()].extend_from_slice(view.payload);
    }
    assert!(!streams[0].is_empty() && streams[0] == streams[1]);
}

#[test]
fn impossible_settings_are_refused() {
    let good = Settings::new(Product::Deep, 1_000, 1);
    let refused = |settings: Settings| Generator::new(settings).unwrap_err().to_string();
    assert!(refused(Settings { messages: 99, ..good.clone() }).contains("raise it to 100"));
    assert!(refused(Settings { restarts: 10, ..good.clone() }).contains("raise it to 1100"));
    assert!(refused(Settings { restarts: 64, ..good.clone() }).contains("at most 63"));
    assert!(refused(Settings { rate: 0, ..good.clone() }).contains("rate = 0"));
    assert!(refused(Settings { sides: Vec::new(), ..good }).contains("sides = 0"));
}
