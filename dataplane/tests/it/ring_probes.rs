//! What hostile peers did to the mirrors of others (`docs/formats/mirror.md`), done to ours: each costs bounded memory and
//! time, and takes nothing from anybody else.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use sluice::ring::mirror::auth::PresharedKey;
use sluice::ring::mirror::live::PUNCH_NS_MAX;
use sluice::ring::mirror::receiver::{
    DATAGRAMS_PER_STEP, DEAD_NS, MirrorHost, MirrorSettings, OpenFailed, OpenMode, Receiver, ResumePoint, Start,
    StreamStep, Transport,
};
use sluice::ring::mirror::sender::{Linger, MulticastSettings, Refusal, Sender, ServeSettings, SessionId};
use sluice::ring::mirror::{CloseReason, Datagrams, Destination, MirrorRing, SendOutcome, SourceRing, StreamPoll};
use sluice::wire::mirror::{Greeting, HEADER_BYTES, Header, Hello, Nak, WANT_NEW, WANT_OLDEST, hello_flag, kind};
use sluice::wire::ring::Geometry;

use crate::common::memory_ring::{FIXED_PAYLOAD_BYTES, MemoryRing, geometry, record};

const MS: i64 = 1_000_000;
const SECOND: i64 = 1_000 * MS;
const SOURCE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 7400);
const SOURCE_UDP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 7403);
const MIRROR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 50_000);
const FOREIGN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 66)), 7403);

/// What was sent, and where.
#[derive(Default)]
struct Wire(Vec<(Destination, Vec<u8>)>);

impl Datagrams for Wire {
    fn send(&mut self, to: Destination, bytes: &[u8], segment_bytes: Option<u16>) -> SendOutcome {
        let segment = segment_bytes.map_or(bytes.len(), usize::from);
        self.0.extend(bytes.chunks(segment).map(|datagram| (to, datagram.to_vec())));
        SendOutcome::Sent
    }
}

#[derive(Default)]
struct Host {
    opened: usize,
    bytes: u64,
}

impl MirrorHost for Host {
    type Ring = MemoryRing;

    fn resume_point(&mut self) -> Option<ResumePoint> {
        None
    }

    fn open(
        &mut self,
        geometry: &Geometry,
        first: u64,
        incarnation: u64,
        _: OpenMode,
    ) -> Result<MemoryRing, OpenFailed> {
        self.opened += 1;
        self.bytes += geometry.capacity * u64::from(geometry.element_size);
        Ok(MemoryRing::new(geometry.mirrored(), first, incarnation))
    }
}

fn plain_serve() -> ServeSettings {
    ServeSettings { extension: false, ..ServeSettings::default() }
}

fn unicast_serve() -> ServeSettings {
    ServeSettings { unicast_port: Some(7403), ..ServeSettings::default() }
}

fn source(capacity: u64, records: u64) -> MemoryRing {
    let ring = MemoryRing::new(geometry(capacity, false), 1, 5);
    ring.produce(1, records);
    ring
}

fn serving(settings: ServeSettings, ring: &MemoryRing) -> Sender<MemoryRing> {
    let mut sender = Sender::new(settings, [7; 32]);
    sender.attach(ring.clone(), 0);
    sender
}

fn mirroring(settings: MirrorSettings) -> Receiver<Host> {
    Receiver::new(settings, Host::default(), [8; 32])
}

/// All that a session's stream has to say now.
fn stream(sender: &mut Sender<MemoryRing>, id: SessionId, now: i64) -> (Vec<u8>, StreamPoll) {
    let mut out = Vec::new();
    loop {
        match sender.poll_stream(id, &mut out, now) {
            StreamPoll::Data => {}
            end => return (out, end),
        }
    }
}

fn frames(mut bytes: &[u8]) -> Vec<Header> {
    let mut frames = Vec::new();
    while let Ok(header) = Header::decode(bytes) {
        frames.push(header);
        bytes = &bytes[header.frame_bytes()..];
    }
    frames
}

fn say_hello(sender: &mut Sender<MemoryRing>, peer: SocketAddr, wanted: u64, flags: u8, now: i64) -> SessionId {
    let id = sender.accept(peer, now).expect("there is room");
    sender.on_bytes(id, &Hello { wanted, flags }.encode(), now);
    id
}

/// The token and session byte that a plain mirror is told.
fn announced(greeting: &[u8]) -> (u32, u8) {
    let payload = &greeting[HEADER_BYTES + 48 + HEADER_BYTES..];
    (u32::from_le_bytes(payload[10..14].try_into().unwrap()), payload[9])
}

/// A source and a mirror with nothing between them.
struct Pair {
    sender: Sender<MemoryRing>,
    receiver: Receiver<Host>,
    id: SessionId,
    now: i64,
    /// Datagrams that the network loses: the test decides.
    lose: fn(&Header) -> bool,
    sent: Vec<Header>,
    naks: Vec<(u64, u64)>,
    /// The network loses every PUNCH.
    deaf: bool,
}

impl Pair {
    fn new(serve: ServeSettings, mirror: MirrorSettings, ring: &MemoryRing) -> Pair {
        let mut sender = serving(serve, ring);
        let mut receiver = mirroring(mirror);
        let id = sender.accept(MIRROR, 0).unwrap();
        receiver.connected(SOURCE, 0);
        let mut pair =
            Pair { sender, receiver, id, now: 0, lose: |_| false, sent: Vec::new(), naks: Vec::new(), deaf: false };
        pair.settle();
        pair
    }

    fn step(&mut self) -> Option<CloseReason> {
        let mut out = Vec::new();
        if let StreamPoll::Close(reason) = self.receiver.poll_stream(&mut out, self.now) {
            return Some(reason);
        }
        for header in frames(&out) {
            if header.kind == kind::NAK {
                let nak = Nak::decode(&header, &out[out.len() - 8..]).unwrap();
                self.naks.push((nak.first, nak.last));
            }
        }
        self.sender.on_bytes(self.id, &out, self.now);
        let mut punches = Wire::default();
        self.receiver.poll_datagrams(self.now, &mut punches);
        for (_, bytes) in punches.0.into_iter().filter(|_| !self.deaf) {
            self.sender.on_datagram(MIRROR, &bytes, self.now);
        }
        let (bytes, end) = stream(&mut self.sender, self.id, self.now);
        let mut rest = &bytes[..];
        while let StreamStep::Frame { bytes } = self.receiver.on_bytes(rest, self.now) {
            rest = &rest[bytes..];
        }
        let mut wire = Wire::default();
        self.sender.poll_datagrams(self.now, &mut wire, 64);
        for (_, bytes) in wire.0 {
            let header = Header::decode(&bytes).unwrap();
            self.sent.push(header);
            if !(self.lose)(&header) {
                self.receiver.on_datagram(SOURCE_UDP, &bytes, self.now);
            }
        }
        match end {
            StreamPoll::Close(reason) => Some(reason),
            _ => None,
        }
    }

    /// Lets both talk for a while: 200 steps of 100 µs.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.step();
            self.now += MS / 10;
        }
    }

    fn written(&self) -> u64 {
        self.receiver.ring().map_or(0, |ring| ring.head())
    }

    fn assert_true(&self) {
        let wrong = self.receiver.ring().unwrap().log(|log| log.wrong.clone());
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

#[test]
fn blind_punches_take_nothing_over() {
    let ring = source(1024, 10);
    for extended in [false, true] {
        let mut sender = serving(unicast_serve(), &ring);
        let flags = hello_flag::UNICAST | if extended { hello_flag::EXTENDED } else { 0 };
        let id = say_hello(&mut sender, MIRROR, WANT_NEW, flags, 0);
        let (greeting, _) = stream(&mut sender, id, 0);
        let session = announced(&greeting).1;
        let mut now = 0;
        // 1,024 tokens counted from 1, each under every session byte, from a foreign address and from the mirror's own host.
        for token in 1..=1024u64 {
            for from in [FOREIGN, SocketAddr::new(MIRROR.ip(), 1)] {
                let punch = Header::bare(kind::PUNCH, session, token).encode();
                sender.on_datagram(from, &punch, now);
                now += MS;
            }
        }
        let mut wire = Wire::default();
        ring.produce(1, 5);
        sender.poll_datagrams(now, &mut wire, 64);
        assert!(wire.0.is_empty(), "extended {extended}: {} datagrams went out", wire.0.len());
        assert_eq!(sender.counters().punches, 0);
        assert_eq!(sender.counters().punches_dropped, 2048);
    }
}

#[test]
fn a_punch_from_another_host_does_not_aim_the_stream_there() {
    let ring = source(1024, 10);
    let mut sender = serving(ServeSettings { extension: false, ..unicast_serve() }, &ring);
    let id = say_hello(&mut sender, MIRROR, WANT_NEW, hello_flag::UNICAST, 0);
    let (greeting, _) = stream(&mut sender, id, 0);
    let (token, session) = announced(&greeting);
    let punch = Header::bare(kind::PUNCH, session, u64::from(token)).encode();
    // Even with the right token: a victim elsewhere gets nothing.
    sender.on_datagram(FOREIGN, &punch, MS);
    assert_eq!((sender.counters().punches, sender.counters().punches_dropped), (0, 1));
    sender.on_datagram(MIRROR, &punch, 2 * MS);
    // Nor does it take the stream away from the mirror.
    sender.on_datagram(FOREIGN, &punch, 3 * MS);
    ring.produce(1, 3);
    let mut wire = Wire::default();
    sender.poll_datagrams(4 * MS, &mut wire, 64);
    assert!(wire.0.iter().all(|(to, _)| *to == Destination::Unicast(MIRROR)) && !wire.0.is_empty());
}

#[test]
fn a_punch_and_then_silence_ends() {
    let ring = source(1 << 14, 10);
    let mut sender = serving(unicast_serve(), &ring);
    let id = say_hello(&mut sender, MIRROR, WANT_NEW, hello_flag::UNICAST, 0);
    let (greeting, _) = stream(&mut sender, id, 0);
    let (token, session) = announced(&greeting);
    sender.on_datagram(MIRROR, &Header::bare(kind::PUNCH, session, u64::from(token)).encode(), 0);
    let mut now = 0;
    let mut last = 0;
    while now < PUNCH_NS_MAX + 5 * SECOND {
        ring.produce(1, 5);
        let mut wire = Wire::default();
        sender.poll_datagrams(now, &mut wire, 64);
        if !wire.0.is_empty() {
            last = now;
        }
        now += 10 * MS;
    }
    assert!(last > PUNCH_NS_MAX - 20 * MS && last <= PUNCH_NS_MAX, "the last datagram left after {} ms", last / MS);
    assert_eq!(sender.counters().punches_expired, 1);
}

#[test]
fn a_punch_and_then_silence_ends_where_the_producer_sends_too() {
    let ring = source(1 << 14, 10);
    let mut sender = serving(unicast_serve(), &ring);
    let id = say_hello(&mut sender, MIRROR, WANT_NEW, hello_flag::UNICAST, 0);
    let (greeting, _) = stream(&mut sender, id, 0);
    let (token, session) = announced(&greeting);
    let mut live = sender.detach_live().expect("a UDP transport");
    sender.on_datagram(MIRROR, &Header::bare(kind::PUNCH, session, u64::from(token)).encode(), 0);
    let (mut now, mut last) = (0, 0);
    while now < PUNCH_NS_MAX + 5 * SECOND {
        ring.produce(1, 5);
        sender.look_after_detached(Some(*live.counters()), now);
        while let Some(update) = sender.next_live_update() {
            live.update(update);
        }
        let mut wire = Wire::default();
        if live.poll(&mut ring.clone(), now, &mut wire, 64) > 0 {
            last = now;
        }
        assert!(sender.deadline().is_none_or(|due| due > now), "nothing is due in the past at {} ms", now / MS);
        now += 10 * MS;
    }
    assert!(last > PUNCH_NS_MAX - 20 * MS && last <= PUNCH_NS_MAX, "the last datagram left after {} ms", last / MS);
    let counters = *sender.counters();
    assert!(counters.punches_expired == 1 && counters.datagrams > 1_000, "{counters:?}");
    // What was counted outside is counted on with the next ring.
    sender.attach(ring.clone(), now);
    sender.poll_datagrams(now, &mut Wire::default(), 64);
    assert!(sender.counters().datagrams >= counters.datagrams, "{:?}", sender.counters());
}

#[test]
fn a_flood_of_punches_is_looked_at_up_to_a_rate() {
    let ring = source(1024, 10);
    let settings = ServeSettings { punches_per_second: 100, ..unicast_serve() };
    let mut sender = serving(settings, &ring);
    let id = say_hello(&mut sender, MIRROR, WANT_NEW, hello_flag::UNICAST, 0);
    let (greeting, _) = stream(&mut sender, id, 0);
    let (token, session) = announced(&greeting);
    let right = Header::bare(kind::PUNCH, session, u64::from(token)).encode();
    for port in 0..10_000 {
        sender.on_datagram(SocketAddr::new(MIRROR.ip(), port), &right, MS);
    }
    // One address was taken; that it moves with each datagram is not believed.
    assert_eq!(sender.counters().punches, 1);
    sender.on_datagram(MIRROR, &right, 2 * SECOND);
    assert_eq!(sender.counters().punches, 2, "a mirror whose NAT gave it another port is heard later");
}

#[test]
fn a_flood_of_blind_punches_does_not_end_an_honest_mirrors_datagrams() {
    let ring = source(1 << 12, 10);
    let settings = ServeSettings { punches_per_second: 100, ..unicast_serve() };
    let mut pair = Pair::new(settings, MirrorSettings::default(), &ring);
    let session = pair.sent.last().expect("heartbeats").flags;
    let end = pair.now + 2 * PUNCH_NS_MAX;
    let mut token = 1u64;
    while pair.now < end {
        for _ in 0..20 {
            token = token.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let address = SocketAddr::new(FOREIGN.ip(), token as u16);
            pair.sender.on_datagram(address, &Header::bare(kind::PUNCH, session, token).encode(), pair.now);
        }
        ring.produce(1, 1);
        pair.step();
        pair.now += 10 * MS;
    }
    assert_eq!(pair.sender.counters().punches_expired, 0, "{:?}", pair.sender.counters());
    assert_eq!(pair.receiver.counters().repaired_records, 0, "{:?}", pair.receiver.counters());
}

#[test]
fn two_hundred_naks_for_everything_cost_the_ring_once() {
    // 2^14 records of 24 bytes: 393 kB.
    let ring = source(1 << 14, 1 << 14);
    let settings = ServeSettings { nak_bytes_per_second: 1 << 20, ..unicast_serve() };
    let mut sender = serving(settings, &ring);
    let id = say_hello(&mut sender, MIRROR, WANT_NEW, hello_flag::UNICAST, 0);
    stream(&mut sender, id, 0);
    let nak = Nak { first: 1, last: u64::MAX }.encode();
    for _ in 0..200 {
        sender.on_bytes(id, &nak, 0);
    }
    let (bytes, _) = stream(&mut sender, id, 0);
    let ring_bytes = (1 << 14) * FIXED_PAYLOAD_BYTES;
    assert!(bytes.len() < ring_bytes + ring_bytes / 10, "{} bytes of {ring_bytes}", bytes.len());
    // Asked for again and again, the answers keep to their rate: at most two allowances in the first second.
    let mut total = bytes.len();
    for step in 0..1000 {
        for _ in 0..20 {
            sender.on_bytes(id, &nak, step * MS);
        }
        total += stream(&mut sender, id, step * MS).0.len();
    }
    assert!(total <= 2 * (1 << 20) + (1 << 18), "{total} bytes in a second");
    assert!(sender.counters().naks_delayed > 0);
}

#[test]
fn one_nak_asks_for_a_bounded_range_and_one_poll_answers_a_bounded_part() {
    let ring = source(1 << 18, 1 << 18);
    let mut sender = serving(unicast_serve(), &ring);
    let id = say_hello(&mut sender, MIRROR, WANT_NEW, hello_flag::UNICAST, 0);
    stream(&mut sender, id, 0);
    sender.on_bytes(id, &Nak { first: 1, last: u64::MAX }.encode(), 0);
    let mut records = 0;
    let mut out = Vec::new();
    while sender.poll_stream(id, &mut out, 0) == StreamPoll::Data {
        assert!(out.len() <= 1 << 20, "{} bytes in one poll", out.len());
        records += frames(&out).iter().map(|header| u64::from(header.count)).sum::<u64>();
        out.clear();
    }
    assert_eq!(records, 65_535);
}

#[test]
fn four_hundred_sockets_without_hello_hold_little_and_not_for_long() {
    let ring = source(1024, 10);
    let mut sender = serving(ServeSettings { handshakes_max: 32, ..ServeSettings::default() }, &ring);
    let honest = say_hello(&mut sender, MIRROR, WANT_NEW, 0, 0);
    stream(&mut sender, honest, 0);
    let mut open = Vec::new();
    let mut refused = 0;
    for n in 0..400u16 {
        let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, (n / 100) as u8, 9)), n);
        match sender.accept(from, MS) {
            Ok(id) => open.push(id),
            Err(_) => refused += 1,
        }
        while let Some((id, reason)) = sender.next_closed(MS) {
            assert_eq!(reason, CloseReason::HandshakeTimeout);
            open.retain(|&other| other != id);
        }
    }
    assert!(open.len() <= 32, "{} connections without HELLO at one time", open.len());
    assert_eq!(refused, 0, "an honest mirror still gets in");
    let late = 6 * SECOND;
    while let Some((id, reason)) = sender.next_closed(late) {
        assert_eq!(reason, CloseReason::HandshakeTimeout);
        open.retain(|&other| other != id);
    }
    assert!(open.is_empty(), "each is closed within {late} ns");
    assert_eq!(sender.sessions().count(), 1, "who said HELLO stays");
}

#[test]
fn connections_are_limited_in_all_and_from_one_address() {
    let ring = source(1024, 10);
    let settings = ServeSettings { connections_max: 5, connections_per_address_max: 3, ..ServeSettings::default() };
    let mut sender = serving(settings, &ring);
    let from = |n: u8| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)), 1);
    for _ in 0..3 {
        say_hello(&mut sender, from(1), WANT_NEW, 0, 0);
    }
    assert_eq!(sender.accept(from(1), 0), Err(Refusal::ConnectionsPerAddress { limit: 3 }));
    say_hello(&mut sender, from(2), WANT_NEW, 0, 0);
    let last = say_hello(&mut sender, from(3), WANT_NEW, 0, 0);
    assert_eq!(sender.accept(from(4), 0), Err(Refusal::Connections { limit: 5 }));
    sender.on_closed(last);
    assert!(sender.accept(from(4), 0).is_ok());
}

#[test]
fn idle_mirrors_cost_a_heartbeat_each_two_hundred_milliseconds() {
    let ring = source(1024, 10);
    let mut sender = serving(ServeSettings { connections_per_address_max: 1000, ..ServeSettings::default() }, &ring);
    let ids: Vec<SessionId> = (0..400).map(|_| say_hello(&mut sender, MIRROR, WANT_NEW, 0, 0)).collect();
    for &id in &ids {
        stream(&mut sender, id, 0);
    }
    // Nothing is due before the first heartbeat: whoever waits sleeps until then.
    let due = sender.deadline().expect("a heartbeat");
    assert!(due >= 199 * MS, "{due}");
    let said: usize = ids.iter().map(|&id| stream(&mut sender, id, 100 * MS).0.len()).sum();
    assert_eq!(said, 0);
}

#[test]
fn spoofed_records_from_another_address_are_not_written() {
    let ring = source(1024, 4);
    for extension in [false, true] {
        let serve = ServeSettings { extension, ..unicast_serve() };
        let mut pair = Pair::new(serve, MirrorSettings::default(), &ring);
        let next = ring.next_sequence();
        for session in 0..=255u8 {
            let lie = [0xEE; FIXED_PAYLOAD_BYTES];
            let bytes = FIXED_PAYLOAD_BYTES as u32;
            let header = Header { kind: kind::DATA, flags: session, count: 1, bytes, sequence: next };
            let datagram = [&header.encode()[..], &lie].concat();
            pair.receiver.on_datagram(FOREIGN, &datagram, pair.now);
            // The right host, but another port than the one that was announced.
            pair.receiver.on_datagram(SocketAddr::new(SOURCE.ip(), 9), &datagram, pair.now);
            if extension {
                // The right host and port: without the session's number it is no datagram of the source.
                pair.receiver.on_datagram(SOURCE_UDP, &datagram, pair.now);
            }
        }
        ring.produce(1, 1);
        pair.settle();
        pair.assert_true();
        assert_eq!(pair.written(), next, "the real record is there");
        assert_eq!(pair.receiver.counters().foreign, 512);
    }
}

#[test]
fn datagrams_far_ahead_fill_a_bounded_part_of_memory_and_poison_nothing() {
    let ring = source(1024, 4);
    let mirror = MirrorSettings { held_datagrams_max: 64, held_bytes_max: 1 << 12, ..MirrorSettings::default() };
    // A plain source: an attacker that fakes its address only has to guess a byte.
    let mut pair = Pair::new(ServeSettings { extension: false, ..unicast_serve() }, mirror, &ring);
    let session = pair.sent.last().expect("heartbeats").flags;
    let next = ring.next_sequence();
    for ahead in 1..2000u64 {
        let lie = [0xEE; FIXED_PAYLOAD_BYTES];
        let bytes = FIXED_PAYLOAD_BYTES as u32;
        let header = Header { kind: kind::DATA, flags: session, count: 1, bytes, sequence: next + ahead };
        pair.receiver.on_datagram(SOURCE_UDP, &[&header.encode()[..], &lie].concat(), pair.now);
        let status = pair.receiver.status(pair.now);
        assert!(status.held_datagrams <= 64 && status.held_bytes <= 1 << 12);
    }
    // The source is idle: its heartbeat says that nothing of it was ever sent.
    pair.settle();
    assert_eq!(pair.receiver.status(pair.now).held_datagrams, 0);
    for _ in 0..20 {
        ring.produce(1, 50);
        pair.settle();
    }
    pair.assert_true();
    assert_eq!(pair.written(), ring.head());
}

#[test]
fn a_poisoned_hold_back_does_not_win_over_a_busy_source() {
    let ring = source(1024, 4);
    let mut pair = Pair::new(ServeSettings { extension: false, ..unicast_serve() }, MirrorSettings::default(), &ring);
    let session = pair.sent.last().expect("heartbeats").flags;
    let target = ring.next_sequence() + 200;
    let lie = record(99, target, false);
    let header = Header { kind: kind::DATA, flags: session, count: 1, bytes: lie.len() as u32, sequence: target };
    pair.receiver.on_datagram(SOURCE_UDP, &[&header.encode()[..], &lie].concat(), pair.now);
    // Records all the time, no heartbeat that could tell.
    for _ in 0..1000 {
        ring.produce(1, 1);
        pair.step();
        pair.now += MS / 5;
    }
    pair.settle();
    pair.assert_true();
    assert_eq!(pair.written(), ring.head());
}

#[test]
fn malformed_datagrams_are_counted_and_end_nothing() {
    for arena in [false, true] {
        let ring = MemoryRing::new(geometry(64, arena), 1, 0);
        ring.produce(1, 3);
        let mut pair =
            Pair::new(ServeSettings { extension: false, ..unicast_serve() }, MirrorSettings::default(), &ring);
        let session = pair.sent.last().expect("heartbeats").flags;
        let before = pair.receiver.counters().malformed;
        let good = record(1, 4, arena);
        let header = Header { kind: kind::DATA, flags: session, count: 1, bytes: good.len() as u32, sequence: 4 };
        let mut bad: Vec<Vec<u8>> = Vec::new();
        for cut in 16..HEADER_BYTES + good.len() {
            bad.push([&header.encode()[..], &good].concat()[..cut].to_vec());
        }
        for count in [0, 2, 65_535] {
            bad.push([&Header { count, ..header }.encode()[..], &good].concat());
        }
        for bytes in [0, 1, u32::MAX] {
            bad.push([&Header { bytes, ..header }.encode()[..], &good].concat());
        }
        for sequence in [0, 1 << 63, u64::MAX] {
            bad.push([&Header { sequence, ..header }.encode()[..], &good].concat());
        }
        for kind in [0, 1, 2, 4, 6, 7, 8, 0x40, 0x43, 255] {
            bad.push(Header { kind, ..header }.encode().to_vec());
        }
        bad.push(Header::bare(kind::HEARTBEAT, session, u64::MAX).encode().to_vec());
        if arena {
            // A blob that says it is longer than its frame.
            let mut lie = good.clone();
            lie[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
            bad.push([&header.encode()[..], &lie].concat());
        }
        for datagram in &bad {
            pair.receiver.on_datagram(SOURCE_UDP, datagram, pair.now);
        }
        let counted = pair.receiver.counters().malformed - before;
        assert_eq!(counted, bad.len() as u64);
        ring.produce(1, 10);
        pair.settle();
        pair.assert_true();
        assert!(pair.receiver.status(pair.now).live);
        assert_eq!(pair.written(), 13);
    }
}

/// Gives a mirror a source's bytes; what it did with them.
fn fed(receiver: &mut Receiver<Host>, bytes: &[u8]) -> StreamStep {
    let mut rest = bytes;
    loop {
        match receiver.on_bytes(rest, 0) {
            StreamStep::Frame { bytes } => rest = &rest[bytes..],
            end => return end,
        }
    }
}

#[test]
fn a_ring_above_the_limit_is_refused_before_a_byte_of_it_is_touched() {
    for (limit, capacity, opens) in
        [(4 << 30, 1 << 24, true), (4 << 30, 1 << 27, false), (1 << 20, 1 << 15, false), (4 << 30, 1 << 62, false)]
    {
        let mut receiver = mirroring(MirrorSettings { ring_bytes_max: limit, ..MirrorSettings::default() });
        receiver.connected(SOURCE, 0);
        let geometry = Geometry { capacity, element_size: 64, slots_offset: 128, ..Geometry::default() };
        let step = if capacity == 1 << 24 {
            // 1 GiB is within the default limit; the host is asked, and only it decides about memory.
            StreamStep::Need { bytes: HEADER_BYTES }
        } else {
            fed(&mut receiver, &Greeting { geometry, flags: 0, first: 1 }.encode())
        };
        assert_eq!(matches!(step, StreamStep::Close(_)), !opens, "{capacity}: {step:?}");
        assert_eq!(receiver.host_mut().opened, 0);
    }
}

#[test]
fn a_gap_to_the_end_of_numbers_is_refused() {
    for sequence in [0, 1 << 63, u64::MAX - 1, u64::MAX] {
        let mut receiver = mirroring(MirrorSettings::default());
        receiver.connected(SOURCE, 0);
        fed(&mut receiver, &Greeting { geometry: geometry(64, false), flags: 0, first: 1 }.encode());
        let step = fed(&mut receiver, &Header::bare(kind::GAP, 0, sequence).encode());
        assert_eq!(step, StreamStep::Close(CloseReason::SequenceLimit));
        assert_eq!(receiver.ring().map(MirrorRing::next), Some(1));
    }
    let mut receiver = mirroring(MirrorSettings::default());
    receiver.connected(SOURCE, 0);
    let greeting = Greeting { geometry: geometry(64, false), flags: 0, first: u64::MAX };
    assert_eq!(fed(&mut receiver, &greeting.encode()), StreamStep::Close(CloseReason::Protocol));
}

#[test]
fn a_frame_longer_than_any_record_is_refused_before_memory_is_taken_for_it() {
    for arena in [false, true] {
        let mut receiver = mirroring(MirrorSettings::default());
        receiver.connected(SOURCE, 0);
        fed(&mut receiver, &Greeting { geometry: geometry(64, arena), flags: 0, first: 1 }.encode());
        let header = Header { kind: kind::DATA, flags: 0, count: 1, bytes: u32::MAX, sequence: 1 };
        assert_eq!(fed(&mut receiver, &header.encode()), StreamStep::Close(CloseReason::Protocol));
    }
}

#[test]
fn a_heartbeat_that_lies_costs_a_few_naks_and_is_forgotten() {
    let ring = source(1024, 4);
    let mut pair = Pair::new(ServeSettings { extension: false, ..unicast_serve() }, MirrorSettings::default(), &ring);
    let session = pair.sent.last().expect("heartbeats").flags;
    let before = pair.receiver.counters().naks;
    for _ in 0..100 {
        let lie = Header::bare(kind::HEARTBEAT, session, 1 << 62).encode();
        pair.receiver.on_datagram(SOURCE_UDP, &lie, pair.now);
        pair.step();
    }
    assert!(pair.receiver.counters().naks - before < 20, "{} NAKs", pair.receiver.counters().naks - before);
    ring.produce(1, 5);
    pair.settle();
    pair.assert_true();
    assert_eq!(pair.written(), ring.head());
    assert_eq!(pair.receiver.status(pair.now).source_head, ring.head());
    let due_ms = (pair.receiver.deadline().expect("a keep-alive") - pair.now) / MS;
    assert!(due_ms > 50, "nothing is asked for any more, yet something is due in {due_ms} ms");
}

/// Heartbeat datagrams announce what was sent, not what is published: otherwise a record that was published since the
/// sender's last look is announced before its datagram, and every mirror asks for it.
#[test]
fn ring_heartbeat_carries_the_last_sent_sequence() {
    struct Racing<'a> {
        ring: &'a MemoryRing,
        sent: u64,
        beats: u64,
    }
    impl Datagrams for Racing<'_> {
        fn send(&mut self, _: Destination, bytes: &[u8], _: Option<u16>) -> SendOutcome {
            // The producer publishes while the sender sends.
            self.ring.produce(1, 1);
            let header = Header::decode(bytes).unwrap();
            match header.kind {
                kind::DATA => self.sent = header.sequence + u64::from(header.count) - 1,
                _ => {
                    assert_eq!(header.sequence, self.sent);
                    self.beats += 1;
                }
            }
            SendOutcome::Sent
        }
    }
    let ring = source(1024, 4);
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 0, 1), 7401);
    let multicast = Some(MulticastSettings { group, ttl: 1 });
    let mut sender = serving(ServeSettings { multicast, ..ServeSettings::default() }, &ring);
    let mut wire = Racing { ring: &ring, sent: 4, beats: 0 };
    for step in 1..200 {
        // One datagram a poll: something is always published that was not sent.
        sender.poll_datagrams(step * 2 * MS, &mut wire, 1);
    }
    assert!(wire.sent > 100);
    // Idle: beats come each millisecond and carry the last that was sent.
    let mut quiet = Wire::default();
    while sender.poll_datagrams(400 * MS, &mut quiet, 64) > 0 {}
    quiet.0.clear();
    for step in 0..10 {
        sender.poll_datagrams(401 * MS + step * MS, &mut quiet, 64);
    }
    let beats: Vec<Header> = quiet.0.iter().map(|(_, bytes)| Header::decode(bytes).unwrap()).collect();
    assert_eq!(beats.len(), 10);
    assert!(beats.iter().all(|beat| beat.kind == kind::HEARTBEAT && beat.sequence == ring.head()));
}

#[test]
fn a_lost_last_datagram_is_noticed_by_the_heartbeat() {
    let ring = source(1024, 4);
    let mut pair = Pair::new(unicast_serve(), MirrorSettings::default(), &ring);
    pair.lose = |header| header.kind == kind::DATA;
    ring.produce(1, 3);
    pair.settle();
    pair.assert_true();
    assert_eq!(pair.written(), 7);
    assert_eq!(pair.naks, [(5, 7)]);
}

/// One call handles at most 32 datagrams, or one frame: a caller that does other work gets control back however much waits.
#[test]
fn mirror_step_bound() {
    let ring = source(4096, 4);
    let mut pair = Pair::new(ServeSettings { extension: false, ..unicast_serve() }, MirrorSettings::default(), &ring);
    let session = pair.sent.last().expect("heartbeats").flags;
    let mut many = Vec::new();
    for sequence in 5..105 {
        let bytes = FIXED_PAYLOAD_BYTES as u32;
        many.extend_from_slice(&Header { kind: kind::DATA, flags: session, count: 1, bytes, sequence }.encode());
        many.extend_from_slice(&record(1, sequence, false));
    }
    let segment = HEADER_BYTES + FIXED_PAYLOAD_BYTES;
    let used = pair.receiver.on_datagrams(SOURCE_UDP, &many, segment as u16, pair.now);
    assert_eq!(used, DATAGRAMS_PER_STEP * segment);
    assert_eq!(pair.written(), 4 + DATAGRAMS_PER_STEP as u64);
    // Two frames in the buffer: one is handled.
    let mut receiver = mirroring(MirrorSettings::default());
    receiver.connected(SOURCE, 0);
    fed(&mut receiver, &Greeting { geometry: geometry(64, false), flags: 0, first: 1 }.encode());
    let mut two = Vec::new();
    for sequence in [1, 2] {
        let bytes = FIXED_PAYLOAD_BYTES as u32;
        two.extend_from_slice(&Header { kind: kind::DATA, flags: 0, count: 1, bytes, sequence }.encode());
        two.extend_from_slice(&record(1, sequence, false));
    }
    assert_eq!(receiver.on_bytes(&two, 0), StreamStep::Frame { bytes: segment });
    assert_eq!(receiver.ring().map(MirrorRing::next), Some(2));
}

#[test]
fn a_silent_source_is_noticed_and_given_up() {
    for (serve, bound_ms) in [(unicast_serve(), 250), (ServeSettings::default(), 1000)] {
        let ring = source(1024, 4);
        let mut pair = Pair::new(serve, MirrorSettings::default(), &ring);
        let heard = pair.receiver.status(pair.now).heard_ns.unwrap();
        assert!(!pair.receiver.status(heard + bound_ms * MS).silent);
        assert!(pair.receiver.status(heard + (bound_ms + 1) * MS).silent);
        let mut out = Vec::new();
        assert_eq!(pair.receiver.poll_stream(&mut out, heard + DEAD_NS - MS), StreamPoll::Idle);
        let end = pair.receiver.poll_stream(&mut out, heard + DEAD_NS);
        assert_eq!(end, StreamPoll::Close(CloseReason::SourceSilent));
    }
    // A source that takes the connection and says nothing.
    let mut receiver = mirroring(MirrorSettings::default());
    receiver.connected(SOURCE, 0);
    let mut out = Vec::new();
    assert_eq!(receiver.poll_stream(&mut out, 0), StreamPoll::Data);
    assert_eq!(receiver.poll_stream(&mut out, 5 * SECOND), StreamPoll::Close(CloseReason::HandshakeTimeout));
}

#[test]
fn frames_that_take_longer_than_the_limits_of_silence_come_through() {
    let ring = source(1 << 12, 4);
    for (serve, mirror) in [(plain_serve(), MirrorSettings::default()), (unicast_serve(), MirrorSettings::default())] {
        let mut pair = Pair::new(serve, mirror, &ring);
        // A frame of which a little comes each second, and nothing else.
        let mut out = Vec::new();
        for _ in 0..20 {
            pair.now += SECOND;
            pair.receiver.heard(pair.now);
            assert_ne!(pair.receiver.poll_stream(&mut out, pair.now), StreamPoll::Close(CloseReason::SourceSilent));
        }
        // And a send that is done little by little.
        let id = say_hello(&mut pair.sender, MIRROR, WANT_OLDEST, 0, pair.now);
        assert_eq!(pair.sender.poll_stream(id, &mut Vec::new(), pair.now), StreamPoll::Data);
        for _ in 0..20 {
            pair.now += SECOND;
            pair.sender.on_sent(id, pair.now);
            assert!(pair.sender.next_closed(pair.now).is_none_or(|(closed, _)| closed != id));
        }
        pair.now += 5 * SECOND;
        assert_eq!(pair.sender.next_closed(pair.now), Some((id, CloseReason::WriteTimeout)));
    }
}

#[test]
fn a_stream_that_answers_nothing_is_given_up_although_datagrams_come() {
    let ring = source(1024, 4);
    let mut pair = Pair::new(unicast_serve(), MirrorSettings::default(), &ring);
    pair.lose = |header| header.kind == kind::DATA;
    ring.produce(1, 3);
    let begun = pair.now;
    // Heartbeats arrive, and tell of records that the dead stream never brings.
    loop {
        let mut wire = Wire::default();
        pair.sender.poll_datagrams(pair.now, &mut wire, 64);
        for (_, bytes) in wire.0.into_iter().filter(|(_, bytes)| !(pair.lose)(&Header::decode(bytes).unwrap())) {
            pair.receiver.on_datagram(SOURCE_UDP, &bytes, pair.now);
        }
        let mut out = Vec::new();
        if let StreamPoll::Close(reason) = pair.receiver.poll_stream(&mut out, pair.now) {
            assert_eq!(reason, CloseReason::SourceSilent);
            break;
        }
        pair.now += 10 * MS;
        assert!(pair.now < begun + DEAD_NS + SECOND);
    }
    assert!(pair.now >= begun + DEAD_NS - 100 * MS, "after {} ms", (pair.now - begun) / MS);
}

#[test]
fn a_mirror_that_does_not_read_is_given_up_after_five_seconds_and_slows_nobody() {
    let ring = source(64, 4);
    let mut sender = serving(plain_serve(), &ring);
    let stuck = say_hello(&mut sender, MIRROR, WANT_OLDEST, 0, 0);
    let other = say_hello(&mut sender, FOREIGN, WANT_OLDEST, 0, 0);
    let mut out = Vec::new();
    assert_eq!(sender.poll_stream(stuck, &mut out, 0), StreamPoll::Data);
    // Its send is never done; the other goes on.
    for step in 1..50 {
        ring.produce(1, 10);
        let (bytes, _) = stream(&mut sender, other, step * 100 * MS);
        assert!(frames(&bytes).iter().all(|header| header.kind != kind::GAP));
    }
    assert_eq!(sender.next_closed(5 * SECOND - 1), None);
    assert_eq!(sender.next_closed(5 * SECOND), Some((stuck, CloseReason::WriteTimeout)));
}

#[test]
fn a_slow_stream_gets_a_gap_when_it_is_lapped() {
    let ring = source(64, 4);
    let mut sender = serving(plain_serve(), &ring);
    let id = say_hello(&mut sender, MIRROR, WANT_OLDEST, 0, 0);
    stream(&mut sender, id, 0);
    ring.produce(1, 100);
    let (bytes, _) = stream(&mut sender, id, MS);
    let seen: Vec<(u8, u64)> = frames(&bytes).iter().map(|header| (header.kind, header.sequence)).collect();
    assert_eq!(seen, [(kind::GAP, 41), (kind::DATA, 41)]);
}

#[test]
fn mirrors_without_the_key_are_refused_plainly_and_so_are_sources() {
    let key = |byte: u8| Some(PresharedKey::new(&[byte; 32]).unwrap());
    let ring = source(64, 4);
    let cases = [
        // Source's key, mirror's key, mirror speaks the extension, what the mirror sees.
        (key(1), None, true, Some(CloseReason::KeyRequired)),
        (key(1), key(2), true, Some(CloseReason::KeyRequired)),
        (None, key(1), true, Some(CloseReason::Unauthenticated)),
        (key(1), key(1), true, None),
        (None, None, true, None),
    ];
    for transport in [ServeSettings::default(), unicast_serve()] {
        for (source_key, mirror_key, extension, want) in cases.clone() {
            let mut sender = serving(ServeSettings { key: source_key.clone(), ..transport.clone() }, &ring);
            let mut receiver = mirroring(MirrorSettings {
                key: mirror_key.clone(),
                extension,
                start: Start::Oldest,
                ..MirrorSettings::default()
            });
            let id = sender.accept(MIRROR, 0).unwrap();
            receiver.connected(SOURCE, 0);
            let mut closed = None;
            for _ in 0..6 {
                let mut out = Vec::new();
                receiver.poll_stream(&mut out, 0);
                sender.on_bytes(id, &out, 0);
                let (bytes, _) = stream(&mut sender, id, 0);
                if let StreamStep::Close(reason) = fed(&mut receiver, &bytes) {
                    closed = Some(reason);
                    break;
                }
            }
            let told = format!("{source_key:?}, {mirror_key:?}");
            assert_eq!(closed, want, "{told}");
            let status = receiver.status(0);
            assert_eq!(status.live, want.is_none(), "{told}");
            assert_eq!(status.authenticated, want.is_none() && source_key.is_some(), "{told}");
            assert_eq!(receiver.host_mut().opened, usize::from(want.is_none()), "no file without proof: {told}");
        }
    }
    // The peer's own mirror: the connection ends without a word, and it gets no GEOMETRY.
    let mut sender = serving(ServeSettings { key: key(1), ..ServeSettings::default() }, &ring);
    let id = say_hello(&mut sender, MIRROR, WANT_OLDEST, hello_flag::UNICAST, 0);
    assert_eq!(stream(&mut sender, id, 0), (Vec::new(), StreamPoll::Close(CloseReason::Unauthenticated)));
    assert_eq!(sender.counters().unauthenticated, 1);
}

#[test]
fn with_a_key_a_copied_punch_moves_nothing_and_a_forged_record_is_dropped() {
    let key = Some(PresharedKey::new(&[1; 32]).unwrap());
    let ring = source(1024, 4);
    let serve = ServeSettings { key: key.clone(), ..unicast_serve() };
    let mirror = MirrorSettings { key, ..MirrorSettings::default() };
    let mut pair = Pair::new(serve, mirror, &ring);
    assert_eq!(pair.receiver.transport(), Some(Transport::Unicast(SOURCE_UDP)));
    // The next PUNCH is seen on the way and sent again from elsewhere.
    pair.now += 2 * SECOND;
    let mut punches = Wire::default();
    pair.receiver.poll_datagrams(pair.now, &mut punches);
    let punch = punches.0.pop().expect("a keep-alive").1;
    pair.sender.on_datagram(MIRROR, &punch, pair.now);
    let taken = pair.sender.counters().punches;
    pair.sender.on_datagram(FOREIGN, &punch, pair.now + SECOND);
    assert_eq!(pair.sender.counters().punches, taken);
    // A record with a good header and a guessed tag.
    let session = pair.sent.last().expect("heartbeats").flags;
    let lie = record(99, 5, false);
    let header = Header { kind: kind::DATA, flags: session, count: 1, bytes: lie.len() as u32, sequence: 5 };
    let forged = [&header.encode()[..], &lie, &[0; 16]].concat();
    pair.receiver.on_datagram(SOURCE_UDP, &forged, pair.now);
    assert_eq!(pair.receiver.counters().forged, 1);
    ring.produce(1, 5);
    pair.settle();
    pair.assert_true();
    assert_eq!(pair.written(), 9);
}

/// A mirror that was stopped, or whose path was, for longer than a PUNCH is good for: datagrams go on where they ended.
#[test]
fn with_a_key_datagrams_come_again_after_a_pause() {
    let key = || Some(PresharedKey::new(&[3; 32]).unwrap());
    for keyed in [true, false] {
        let ring = source(1 << 12, 4);
        let serve = ServeSettings { key: key().filter(|_| keyed), ..unicast_serve() };
        let mirror = MirrorSettings { key: key().filter(|_| keyed), ..MirrorSettings::default() };
        let mut pair = Pair::new(serve, mirror, &ring);
        for _ in 0..100 {
            ring.produce(1, 1);
            pair.step();
            pair.now += MS;
        }
        let before = *pair.receiver.counters();
        assert!(before.records - before.repaired_records >= 100 && before.replayed == 0, "{before:?}");
        pair.deaf = true;
        let end = pair.now + PUNCH_NS_MAX + SECOND;
        while pair.now < end {
            pair.step();
            pair.now += 10 * MS;
        }
        assert_eq!(pair.sender.counters().punches_expired, 1);
        pair.deaf = false;
        pair.now += SECOND;
        pair.settle();
        let (start, repaired) = (pair.receiver.counters().records, pair.receiver.counters().repaired_records);
        for _ in 0..100 {
            ring.produce(1, 1);
            pair.step();
            pair.now += MS;
        }
        let after = *pair.receiver.counters();
        assert_eq!((after.records - start, after.repaired_records - repaired), (100, 0), "keyed {keyed}: {after:?}");
        assert_eq!((after.replayed, after.forged), (0, 0));
        pair.assert_true();
    }
}

#[test]
fn a_new_ring_ends_every_session_and_a_token_of_the_old_one_opens_nothing() {
    let ring = source(1024, 4);
    let mut pair = Pair::new(ServeSettings { extension: false, ..unicast_serve() }, MirrorSettings::default(), &ring);
    let session = pair.sent.last().expect("heartbeats").flags;
    let new = MemoryRing::new(geometry(1024, false), 1, 6);
    new.produce(2, 9);
    pair.sender.attach(new.clone(), pair.now);
    let mut wire = Wire::default();
    new.produce(2, 1);
    pair.sender.poll_datagrams(pair.now + MS, &mut wire, 64);
    assert!(wire.0.is_empty(), "the old session's datagrams have ended");
    assert_eq!(pair.step(), Some(CloseReason::SourceReplaced));
    // And a mirror that comes afterwards gets the new ring in datagrams (the peer's serve gave it nothing).
    let next = Pair::new(unicast_serve(), MirrorSettings { start: Start::Oldest, ..MirrorSettings::default() }, &new);
    let mut next = next;
    assert!(next.sent.iter().all(|header| header.flags != session) || session == next.sent[0].flags);
    new.produce(2, 5);
    next.settle();
    next.assert_true();
    assert_eq!(next.written(), 15);
}

#[test]
fn a_fixed_linger_waits_for_company_and_auto_does_not() {
    let ring = source(1024, 4);
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 0, 1), 7401);
    for (linger, sent_at_once) in [(Linger::Auto, 1), (Linger::Fixed(0), 1), (Linger::Fixed(50), 0)] {
        let multicast = Some(MulticastSettings { group, ttl: 1 });
        let mut sender = serving(ServeSettings { multicast, linger, ..ServeSettings::default() }, &ring);
        ring.produce(1, 1);
        let mut wire = Wire::default();
        sender.poll_datagrams(1000, &mut wire, 64);
        assert_eq!(wire.0.len(), sent_at_once, "{linger:?}");
        if sent_at_once == 0 {
            assert_eq!(sender.deadline(), Some(1000 + 50_000));
            ring.produce(1, 2);
            sender.poll_datagrams(51_000, &mut wire, 64);
            assert_eq!(wire.0.len(), 1);
            assert_eq!(Header::decode(&wire.0[0].1).unwrap().count, 3);
        }
    }
}

#[test]
fn a_group_of_the_peers_mirrors_gets_the_peers_datagrams_and_one_of_ours_a_trailer() {
    let ring = source(1024, 4);
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 0, 1), 7401);
    let multicast = Some(MulticastSettings { group, ttl: 1 });
    let mut sender = serving(ServeSettings { multicast, ..ServeSettings::default() }, &ring);
    let sent = |sender: &mut Sender<MemoryRing>, now: i64| {
        ring.produce(1, 1);
        let mut wire = Wire::default();
        sender.poll_datagrams(now, &mut wire, 64);
        wire.0.iter().map(|(_, bytes)| bytes.len() - HEADER_BYTES - FIXED_PAYLOAD_BYTES).sum::<usize>()
    };
    say_hello(&mut sender, MIRROR, WANT_NEW, hello_flag::UNICAST, 0);
    assert_eq!(sent(&mut sender, 1), 0);
    let ours = say_hello(&mut sender, FOREIGN, WANT_NEW, hello_flag::UNICAST | hello_flag::EXTENDED, 0);
    assert_eq!(sent(&mut sender, 2), 16);
    sender.on_closed(ours);
    assert_eq!(sent(&mut sender, 3), 0);
}

#[test]
fn a_burst_leaves_in_one_send_of_equal_datagrams() {
    struct Segments(Vec<(usize, Option<u16>)>);
    impl Datagrams for Segments {
        fn send(&mut self, _: Destination, bytes: &[u8], segment_bytes: Option<u16>) -> SendOutcome {
            self.0.push((bytes.len(), segment_bytes));
            SendOutcome::Sent
        }
    }
    let ring = source(1024, 4);
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 0, 1), 7401);
    let multicast = Some(MulticastSettings { group, ttl: 1 });
    let mut sender = serving(ServeSettings { multicast, ..ServeSettings::default() }, &ring);
    // 60 records of 24 bytes fit 1,456 bytes: 200 are three full datagrams and one of 20.
    ring.produce(1, 200);
    let mut wire = Segments(Vec::new());
    assert_eq!(sender.poll_datagrams(MS, &mut wire, 64), 4);
    assert_eq!(wire.0, [(3 * 1456 + 16 + 20 * 24, Some(1456))]);
}
