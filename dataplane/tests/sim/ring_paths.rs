//! Named paths of the mirrors: a long lossy one with its percentiles, and one so slow that the source laps it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::ring::mirror::receiver::{
    MirrorHost, MirrorSettings, OpenFailed, OpenMode, Receiver, ResumePoint, Start, StreamStep,
};
use sluice::ring::mirror::sender::{MulticastSettings, Sender, ServeSettings, SessionId};
use sluice::ring::mirror::{Datagrams, Destination, Fault, SendOutcome, StreamPoll};
use sluice::ring::raw::{RawReader, RawSettings, RawWriter};
use sluice::ring::{ConsumerSettings, RingConsumer, RingProducer, RingSettings, StartAt};
use sluice::wire::ring::Geometry;

use crate::common::memory_ring::geometry;
use crate::common::mirrors::{Shm, Tick, tick};
use crate::ring_world::{Link, MS, Plan, US, World};

/// Pacific-like: 50 ms one way, 1 % loss in both directions, a record each millisecond for 20 s.
const WAN_DELAY_NS: i64 = 50 * MS;
const WAN_LOSS: f64 = 0.01;
const WAN_RECORDS: i64 = 20_000;

#[derive(Debug)]
struct Percentiles {
    p50: i64,
    p90: i64,
    p99: i64,
    p999: i64,
    max: i64,
}

fn wan(unicast: bool, copies: u8) -> Percentiles {
    let mut g = Pcg64Mcg::seed_from_u64(50);
    let serve = ServeSettings {
        unicast_port: unicast.then_some(7403),
        copies,
        heartbeat_datagram_ns: MS,
        ..ServeSettings::default()
    };
    let link = Link {
        delay_ns: WAN_DELAY_NS,
        jitter_ns: 100 * US,
        loss: WAN_LOSS,
        burst: 0.0,
        duplicate: 0.0,
        mtu: 1472,
        stream_bytes_per_second: 1 << 40,
        stream_loss: true,
        // Three later segments tell the sender, at one a millisecond.
        stream_repair_ns: 3 * MS,
    };
    let plan = Plan {
        geometry: geometry(1 << 14, false),
        mirrors: 1,
        hub: false,
        serve,
        mirror: vec![MirrorSettings { prefer_unicast: true, ..MirrorSettings::default() }],
        links: vec![link],
        incarnations: true,
        faults_ns: i64::MAX,
        forged: false,
        blocks: false,
    };
    plan.check();
    let seed = g.random();
    let mut world = World::new(Pcg64Mcg::seed_from_u64(seed), plan, false);
    world.produce(1);
    world.run(2_000 * MS).expect("the mirror connects");
    world.watch();
    for step in 0..WAN_RECORDS {
        world.produce(1);
        world.run(2_000 * MS + step * MS).expect("records go on");
    }
    world.run(2_000 * MS + WAN_RECORDS * MS + 2_000 * MS).expect("the rest arrives");
    world.judge_end().expect("level");
    let mut latencies = world.watched().latencies_ns;
    assert_eq!(latencies.len() as i64, WAN_RECORDS, "every record came");
    assert_eq!(world.tally().gaps, 0);
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: at(1.0) }
}

#[test]
fn ring_wan() {
    let paths = [("tcp", wan(false, 1)), ("udp", wan(true, 1)), ("udp --dup 2", wan(true, 2))];
    println!("50 ms one way, 1 % loss, 1,000 records/s, {WAN_RECORDS} records; one way, ms");
    println!("{:>12} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "p50", "p90", "p99", "p99.9", "max");
    for (name, p) in &paths {
        let [p50, p90, p99, p999, max] = [p.p50, p.p90, p.p99, p.p999, p.max].map(|ns| ns as f64 / MS as f64);
        println!("{name:>12} {p50:>8.1} {p90:>8.1} {p99:>8.1} {p999:>8.1} {max:>8.1}");
    }
    let [(_, tcp), (_, udp), (_, dup)] = paths;
    // A loss costs a stream a round trip and a half and everything behind it waits; so it does with one copy of each
    // datagram, whose hole is asked for and answered. With two copies one loss costs nothing.
    assert!(dup.p99 < WAN_DELAY_NS + MS, "two copies: p99 {} us", dup.p99 / US);
    assert!(dup.p99 < udp.p99 && dup.p99 < tcp.p99);
    assert!(udp.p50 >= WAN_DELAY_NS && tcp.p50 >= WAN_DELAY_NS && dup.p50 >= WAN_DELAY_NS);
    assert!(udp.max < 20 * WAN_DELAY_NS && tcp.max < 20 * WAN_DELAY_NS);
}

struct Files<'a>(&'a Path);

impl MirrorHost for Files<'_> {
    type Ring = RawWriter;

    fn resume_point(&mut self) -> Option<ResumePoint> {
        None
    }

    fn open(
        &mut self,
        geometry: &Geometry,
        first: u64,
        incarnation: u64,
        _: OpenMode,
    ) -> Result<RawWriter, OpenFailed> {
        RawWriter::create(self.0, geometry, first, incarnation, &RawSettings::default()).map_err(|_| OpenFailed)
    }
}

#[derive(Default)]
struct Wire(Vec<Vec<u8>>);

impl Datagrams for Wire {
    fn send(&mut self, _: Destination, bytes: &[u8], segment_bytes: Option<u16>) -> SendOutcome {
        let segment = segment_bytes.map_or(bytes.len(), usize::from);
        self.0.extend(bytes.chunks(segment).map(<[u8]>::to_vec));
        SendOutcome::Sent
    }
}

/// A source and a mirror on files, with nothing between them but what the test withholds.
struct Slow<'a> {
    sender: Sender<RawReader>,
    receiver: Receiver<Files<'a>>,
    id: SessionId,
    input: Vec<u8>,
    now: i64,
}

impl Slow<'_> {
    /// One exchange; datagrams are lost with probability `loss`.
    fn step(&mut self, g: &mut Pcg64Mcg, loss: f64) {
        let source = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 7400);
        let mut out = Vec::new();
        self.receiver.poll_stream(&mut out, self.now);
        self.sender.on_bytes(self.id, &out, self.now);
        while self.sender.poll_stream(self.id, &mut self.input, self.now) == StreamPoll::Data {}
        let mut used = 0;
        while let StreamStep::Frame { bytes } = self.receiver.on_bytes(&self.input[used..], self.now) {
            used += bytes;
        }
        self.input.drain(..used);
        let mut wire = Wire::default();
        self.sender.poll_datagrams(self.now, &mut wire, 64);
        for bytes in wire.0 {
            if !g.random_bool(loss) {
                self.receiver.on_datagram(source, &bytes, self.now);
            }
        }
        self.now += MS;
    }
}

/// Readers of a mirror that was lapped count as lapped what an equally slow reader of the source counts.
#[test]
fn ring_lapped() {
    let mut lapped_in_all = 0;
    for seed in 0..60 {
        let mut g = Pcg64Mcg::seed_from_u64(seed);
        let capacity = [64, 256][g.random_range(0..2usize)];
        let (path, copy) = (Shm::new("sim-source"), Shm::new("sim-copy"));
        let settings = RingSettings { capacity, ..RingSettings::default() };
        let mut producer = RingProducer::<Tick>::create(&path, &settings).expect("a ring");
        let datagrams = g.random_bool(0.5);
        let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 0, 1), 7401);
        let multicast = datagrams.then_some(MulticastSettings { group, ttl: 1 });
        let mut sender = Sender::new(ServeSettings { multicast, ..ServeSettings::default() }, g.random());
        sender.attach(RawReader::open(&path, false).expect("just made"), 0);
        let settings = MirrorSettings { start: Start::Oldest, ..MirrorSettings::default() };
        let mut receiver = Receiver::new(settings, Files(&copy), g.random());
        let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 50_000);
        let id = sender.accept(peer, 0).expect("room");
        receiver.connected(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 7400), 0);
        let mut slow = Slow { sender, receiver, id, input: Vec::new(), now: 0 };
        let mut sequence = 0;
        let mut produce = |count: u64| {
            for _ in 0..count {
                sequence += 1;
                producer.push(&tick(1, sequence));
            }
            sequence
        };
        produce(10);
        for _ in 0..5 {
            slow.step(&mut g, 0.0);
        }
        let open = |path: &Path| {
            RingConsumer::<Tick>::open(path, StartAt::Oldest, &ConsumerSettings::default()).expect("a ring")
        };
        let (mut at_source, mut at_mirror) = (open(&path), open(&copy));
        for round in 0..20 {
            // The mirror stands still while the source goes on, in parts: now and then it gets a little in between.
            let mut head = 0;
            for _ in 0..g.random_range(1..6) {
                head = produce(g.random_range(1..capacity));
                if g.random_bool(0.3) {
                    slow.step(&mut g, 0.2);
                }
            }
            for _ in 0..200 {
                slow.step(&mut g, 0.0);
                if slow.receiver.status(slow.now).next == head + 1 {
                    break;
                }
            }
            let read = |reader: &mut RingConsumer<Tick>| {
                let mut records = Vec::new();
                // A hole is passed after a number of looks.
                for _ in 0..10_000 {
                    records.extend(reader.try_recv());
                    if reader.cursor() > head {
                        break;
                    }
                }
                records
            };
            let (here, there) = (read(&mut at_source), read(&mut at_mirror));
            assert_eq!(there.last(), Some(&tick(1, head)), "seed {seed} round {round}");
            assert_eq!(here, there, "seed {seed} round {round}: what is read is the same");
            assert_eq!(at_source.lapped(), at_mirror.lapped(), "seed {seed} round {round}");
        }
        lapped_in_all += at_source.lapped();
        assert!(slow.receiver.counters().gaps > 0 || at_source.lapped() == 0, "seed {seed}");
    }
    assert!(lapped_in_all > 1_000, "{lapped_in_all}");
}

impl Plan {
    /// A plan by hand has one link and one mirror's settings for each mirror, and no bug.
    fn check(&self) {
        assert_eq!((self.links.len(), self.mirror.len()), (self.mirrors, self.mirrors));
        assert_eq!(self.serve.fault, Fault::None);
    }
}
