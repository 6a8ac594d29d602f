//! A mirror that is told anything by its source, on the stream and in datagrams: it takes bounded memory and never panics.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use sluice::ring::mirror::auth::PresharedKey;
use sluice::ring::mirror::receiver::{
    MirrorHost, MirrorSettings, OpenFailed, OpenMode, Receiver, ResumePoint, StreamStep,
};
use sluice::ring::raw::RawWriter;
use sluice::wire::mirror::{Announce, Greeting, Header, geometry_flag, kind};
use sluice::wire::ring::{Geometry, flag};

struct Host;

impl MirrorHost for Host {
    type Ring = RawWriter;

    fn resume_point(&mut self) -> Option<ResumePoint> {
        None
    }

    fn open(&mut self, geometry: &Geometry, first: u64, incarnation: u64, _: OpenMode) -> Result<RawWriter, OpenFailed> {
        RawWriter::anonymous(&geometry.mirrored(), first, incarnation).map_err(|_| OpenFailed)
    }
}

/// The greeting of a plain source, so that the input reaches what comes after it.
fn greeting(choice: u8) -> Vec<u8> {
    let arena = choice & 1 != 0;
    let geometry = Geometry {
        capacity: 64,
        element_size: 32,
        flags: flag::LATEST_WINS | flag::SINGLE_PRODUCER | if arena { flag::ARENA } else { 0 },
        slots_offset: 128,
        arena_offset: if arena { 2176 } else { 0 },
        arena_size: if arena { 4096 } else { 0 },
        ..Geometry::default()
    };
    let datagrams = choice & 2 != 0;
    let flags = if datagrams { geometry_flag::DATAGRAMS } else { 0 };
    let mut out = Greeting { geometry, flags, first: 5 }.encode().to_vec();
    if datagrams {
        let group = Ipv4Addr::UNSPECIFIED;
        let announce = Announce { group, port: 7403, datagram_bytes: 1472, ttl: 0, session: 0, token: 1 };
        out.extend_from_slice(&announce.encode());
    }
    out
}

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    let settings = MirrorSettings {
        ring_bytes_max: 1 << 20,
        held_bytes_max: 1 << 14,
        key: (choice & 4 != 0).then(|| PresharedKey::new(&[1; 32]).expect("long enough")),
        ..MirrorSettings::default()
    };
    let mut receiver = Receiver::new(settings, Host, [5; 32]);
    let source = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7400);
    receiver.connected(source, 0);
    let mut stream = if choice & 8 != 0 { greeting(*choice) } else { Vec::new() };
    let from = SocketAddr::new(source.ip(), 7403);
    let mut now = 0;
    for part in input.chunks(61) {
        now += 1_000_000;
        // Datagrams that pass the first looks: the right session, a kind that may come, a sequence near the next.
        let mut datagram = part.to_vec();
        if choice & 16 != 0 && datagram.len() >= 16 {
            datagram[0] = if part[0] & 1 == 0 { kind::DATA } else { kind::HEARTBEAT };
            datagram[1] = 0;
            let header = Header::decode(&datagram).expect("16 bytes");
            let near = Header { sequence: header.sequence % 100, bytes: part.len() as u32 - 16, ..header };
            datagram[..16].copy_from_slice(&near.encode());
        }
        receiver.on_datagram(from, &datagram, now);
        stream.extend_from_slice(part);
        let mut used = 0;
        loop {
            match receiver.on_bytes(&stream[used..], now) {
                StreamStep::Frame { bytes } => used += bytes,
                // A frame is at most a megabyte, or a record of this ring.
                StreamStep::Need { bytes } => {
                    assert!(bytes <= (1 << 20) + (1 << 20) + 16);
                    break;
                }
                StreamStep::Close(_) => return,
            }
        }
        stream.drain(..used);
        let mut out = Vec::new();
        receiver.poll_stream(&mut out, now);
        assert!(out.len() < 1 << 16);
        let status = receiver.status(now);
        assert!(status.held_bytes <= 1 << 14 && status.next <= 1 << 63);
        let _ = receiver.deadline();
    }
});
