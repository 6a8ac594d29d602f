//! A source that is told anything on its streams and on its port: it answers within bounds and never panics.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use libfuzzer_sys::fuzz_target;
use sluice::ring::mirror::auth::PresharedKey;
use sluice::ring::mirror::sender::{MulticastSettings, Sender, ServeSettings};
use sluice::ring::mirror::{Datagrams, Destination, SendOutcome, StreamPoll};
use sluice::ring::raw::RawWriter;
use sluice::wire::mirror::{Hello, WANT_OLDEST};
use sluice::wire::ring::{Geometry, flag};

struct Nowhere(usize);

impl Datagrams for Nowhere {
    fn send(&mut self, _: Destination, bytes: &[u8], _: Option<u16>) -> SendOutcome {
        assert!(bytes.len() <= 65_507);
        self.0 += bytes.len();
        SendOutcome::Sent
    }
}

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    let geometry = Geometry {
        capacity: 64,
        element_size: 32,
        flags: flag::LATEST_WINS | flag::SINGLE_PRODUCER,
        slots_offset: 128,
        ..Geometry::default()
    };
    let mut ring = RawWriter::anonymous(&geometry, 1, 9).expect("a small ring");
    for _ in 0..100 {
        ring.write(&[3; 24], &[]).expect("no blob");
    }
    ring.publish();
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 0, 1), 7401);
    let settings = ServeSettings {
        multicast: (choice & 1 != 0).then_some(MulticastSettings { group, ttl: 1 }),
        unicast_port: (choice & 2 != 0).then_some(7403),
        key: (choice & 4 != 0).then(|| PresharedKey::new(&[1; 32]).expect("long enough")),
        extension: choice & 8 != 0,
        ..ServeSettings::default()
    };
    let mut sender = Sender::new(settings, [5; 32]);
    sender.attach(ring.reader(), 0);
    let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5);
    let id = sender.accept(peer, 0).expect("the first");
    if choice & 16 != 0 {
        // Past the handshake, as far as it goes without the key.
        sender.on_bytes(id, &Hello { wanted: WANT_OLDEST, flags: choice >> 5 | choice & 0x80 }.encode(), 0);
    }
    let mut now = 0;
    let mut out = Vec::new();
    let mut wire = Nowhere(0);
    for part in input.chunks(47) {
        now += 1_000_000;
        sender.on_datagram(peer, part, now);
        sender.on_bytes(id, part, now);
        sender.poll_datagrams(now, &mut wire, 16);
        out.clear();
        if let StreamPoll::Close(_) = sender.poll_stream(id, &mut out, now) {
            return;
        }
        assert!(out.len() <= 1 << 20);
        let _ = sender.deadline();
        while sender.next_closed(now).is_some() {}
    }
});
