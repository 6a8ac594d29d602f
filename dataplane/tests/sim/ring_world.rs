//! The simulated hosts and network of the mirror machines: a virtual clock, an event queue, TCP as ordered streams that
//! never lose, UDP as it is.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;

use rand::RngExt;
use rand::distr::uniform::{SampleRange, SampleUniform};
use rand_pcg::Pcg64Mcg;
use sluice::ring::mirror::auth::PresharedKey;
use sluice::ring::mirror::receiver::{
    DEAD_NS, MirrorHost, MirrorSettings, OpenFailed, OpenMode, Receiver, ResumePoint, Start, StreamStep, Transport,
};
use sluice::ring::mirror::sender::{Linger, MulticastSettings, Sender, ServeSettings, SessionId};
use sluice::ring::mirror::{Datagrams, Destination, Fault, ReadOutcome, SendOutcome, SourceRing, StreamPoll};
use sluice::wire::mirror::{Header, kind};
use sluice::wire::ring::Geometry;

use crate::common::memory_ring::{MemoryRing, geometry, record, without_place};

pub const US: i64 = 1_000;
pub const MS: i64 = 1_000_000;
/// The longest a mirror may take to be live and level after the faults stop: it sees a dead source after [`DEAD_NS`],
/// connects again (twice, if it has to begin anew), behind a hub that had to do the same first.
pub const LIVE_AGAIN_NS: i64 = 2 * DEAD_NS + 4_000 * MS;
const RECONNECT_NS: i64 = 50 * MS;
const START_NS: i64 = 1_000_000_000;
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 255, 0, 1), 7401);
const TCP_PORT: u16 = 7400;
const UDP_PORT: u16 = 7403;

/// How one link behaves.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub delay_ns: i64,
    pub jitter_ns: i64,
    pub loss: f64,
    pub burst: f64,
    pub duplicate: f64,
    /// Longest datagram that arrives: beyond, silence.
    pub mtu: usize,
    /// Bytes of TCP a second.
    pub stream_bytes_per_second: i64,
    /// Whether TCP loses too: a lost segment comes a retransmission later, and what follows waits for it.
    pub stream_loss: bool,
    /// What a sender takes to learn of a lost segment, beyond the round trip.
    pub stream_repair_ns: i64,
}

/// What one seed is about.
#[derive(Clone, Debug)]
pub struct Plan {
    pub geometry: Geometry,
    pub mirrors: usize,
    /// Whether the last mirror follows the first instead of the source.
    pub hub: bool,
    pub serve: ServeSettings,
    pub mirror: Vec<MirrorSettings>,
    pub links: Vec<Link>,
    /// The producer gives its rings an incarnation.
    pub incarnations: bool,
    pub faults_ns: i64,
    pub forged: bool,
    pub blocks: bool,
}

impl Plan {
    pub fn random(g: &mut Pcg64Mcg, fault: Fault) -> Plan {
        let capacity = [16, 64, 256][g.random_range(0..3usize)];
        let geometry = geometry(capacity, g.random_bool(0.3));
        let mirrors = g.random_range(1..=3usize);
        let hub = mirrors > 1 && g.random_bool(0.4);
        let key = g.random_bool(0.25).then(|| PresharedKey::new(b"sixteen bytes or more").expect("long enough"));
        let transport = g.random_range(0..4);
        let serve = ServeSettings {
            multicast: (transport & 1 != 0).then_some(MulticastSettings { group: GROUP, ttl: 1 }),
            unicast_port: (transport & 2 != 0).then_some(UDP_PORT),
            datagram_bytes: [160, 472, 1472][g.random_range(0..3usize)],
            copies: [1, 1, 2][g.random_range(0..3usize)],
            batch_records: [2, 16, 256][g.random_range(0..3usize)],
            linger: [Linger::Auto, Linger::Auto, Linger::Fixed(0), Linger::Fixed(300)][g.random_range(0..4usize)],
            // Each beat is an event: a real millisecond would make the rest of a seed vanish between them.
            heartbeat_datagram_ns: 20 * MS,
            handshake_ns_max: 400 * MS,
            extension: key.is_some() || g.random_bool(0.8),
            key: key.clone(),
            fault,
            ..ServeSettings::default()
        };
        let mirror = (0..mirrors).map(|_| MirrorSettings {
            start: [Start::Latest, Start::Oldest, Start::Resume][g.random_range(0..3usize)],
            prefer_unicast: g.random_bool(0.5),
            extension: g.random_bool(0.85),
            key: key.clone(),
            held_datagrams_max: [4, 64, 8192][g.random_range(0..3usize)],
            held_bytes_max: [4 << 10, 1 << 20][g.random_range(0..2usize)],
            handshake_ns_max: 400 * MS,
            silent_datagrams_ns: 250 * MS,
            fault,
            ..MirrorSettings::default()
        });
        let mirror = mirror.collect();
        let links = (0..mirrors).map(|_| Link {
            delay_ns: [20 * US, 200 * US, 5 * MS, 40 * MS][g.random_range(0..4usize)],
            jitter_ns: [0, 10 * US, MS][g.random_range(0..3usize)],
            loss: [0.0, 0.01, 0.1, 0.4][g.random_range(0..4usize)],
            burst: [0.0, 0.0, 0.02][g.random_range(0..3usize)],
            duplicate: [0.0, 0.05][g.random_range(0..2usize)],
            mtu: [1472, 1472, 300][g.random_range(0..3usize)],
            stream_bytes_per_second: [100_000, 10_000_000, 1 << 40][g.random_range(0..3usize)],
            stream_loss: g.random_bool(0.3),
            // Too few segments follow for fast retransmission: the stack's shortest timeout.
            stream_repair_ns: 200 * MS,
        });
        let links = links.collect();
        Plan {
            geometry,
            mirrors,
            hub,
            serve,
            mirror,
            links,
            incarnations: g.random_bool(0.85),
            faults_ns: g.random_range(300..1500) * MS,
            forged: g.random_bool(0.3),
            blocks: g.random_bool(0.2),
        }
    }
}

impl Plan {
    /// Some session is as the peer's are.
    fn is_plain(&self) -> bool {
        !self.serve.extension || self.mirror.iter().any(|settings| !settings.extension)
    }
}

/// What was reached, summed over seeds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub records: u64,
    pub gaps: u64,
    pub naks: u64,
    pub repaired: u64,
    pub held: u64,
    pub duplicates: u64,
    pub resumed: u64,
    pub files: u64,
    pub producer_restarts: u64,
    pub serve_restarts: u64,
    pub mirror_restarts: u64,
    pub freezes: u64,
    pub partitions: u64,
    pub forged: u64,
    pub foreign: u64,
    pub multicast: u64,
    pub unicast: u64,
    pub stream: u64,
    pub hub_records: u64,
    pub authenticated: u64,
    pub blocked: u64,
    pub events: u64,
    pub level_after_ms_max: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        let level = self.level_after_ms_max.max(other.level_after_ms_max);
        for (mine, theirs) in self.fields().into_iter().zip({ *other }.fields()) {
            *mine.1 += *theirs.1;
        }
        self.level_after_ms_max = level;
    }

    /// What no seed reached.
    pub fn missing(mut self) -> Vec<&'static str> {
        self.fields().into_iter().filter(|(_, count)| **count == 0).map(|(name, _)| name).collect()
    }

    fn fields(&mut self) -> [(&'static str, &mut u64); 23] {
        [
            ("records", &mut self.records),
            ("gaps", &mut self.gaps),
            ("naks", &mut self.naks),
            ("repaired", &mut self.repaired),
            ("held", &mut self.held),
            ("duplicates", &mut self.duplicates),
            ("resumed", &mut self.resumed),
            ("files", &mut self.files),
            ("producer restarts", &mut self.producer_restarts),
            ("serve restarts", &mut self.serve_restarts),
            ("mirror restarts", &mut self.mirror_restarts),
            ("freezes", &mut self.freezes),
            ("partitions", &mut self.partitions),
            ("forged", &mut self.forged),
            ("foreign", &mut self.foreign),
            ("multicast", &mut self.multicast),
            ("unicast", &mut self.unicast),
            ("stream", &mut self.stream),
            ("hub records", &mut self.hub_records),
            ("authenticated", &mut self.authenticated),
            ("blocked", &mut self.blocked),
            ("events", &mut self.events),
            ("level after", &mut self.level_after_ms_max),
        ]
    }
}

/// A mirror's files, which outlive the process.
#[derive(Default)]
pub struct Disk {
    pub file: Option<MemoryRing>,
    pub earlier: Vec<MemoryRing>,
    /// A new file was begun and not judged yet.
    fresh: Option<u64>,
}

pub struct Host(Rc<RefCell<Disk>>);

impl MirrorHost for Host {
    type Ring = MemoryRing;

    fn resume_point(&mut self) -> Option<ResumePoint> {
        let disk = self.0.borrow();
        let ring = disk.file.as_ref()?;
        let next = ring.head() + 1;
        Some(ResumePoint { next, incarnation: ring.incarnation(), geometry: *SourceRing::geometry(ring) })
    }

    fn open(
        &mut self,
        geometry: &Geometry,
        first: u64,
        incarnation: u64,
        mode: OpenMode,
    ) -> Result<MemoryRing, OpenFailed> {
        let mut disk = self.0.borrow_mut();
        if mode == OpenMode::Adopt {
            return disk.file.clone().ok_or(OpenFailed);
        }
        let ring = MemoryRing::new(geometry.mirrored(), first, incarnation);
        if let Some(old) = disk.file.replace(ring.clone()) {
            disk.earlier.push(old);
        }
        disk.fresh = Some(first);
        Ok(ring)
    }
}

/// What a machine sent in one poll.
struct Wire<'a> {
    sent: &'a mut Vec<(Destination, Vec<u8>)>,
    random: &'a mut Pcg64Mcg,
    blocks: bool,
    blocked: &'a mut u64,
}

impl Datagrams for Wire<'_> {
    fn send(&mut self, to: Destination, bytes: &[u8], segment_bytes: Option<u16>) -> SendOutcome {
        let segment = segment_bytes.map_or(bytes.len(), usize::from);
        assert!(bytes.len() <= 65_507 && bytes.len().div_ceil(segment) <= 64, "no GSO send takes this");
        if segment > 1472 {
            return SendOutcome::TooLong;
        }
        if self.blocks && self.random.random_bool(0.1) {
            *self.blocked += 1;
            return SendOutcome::WouldBlock;
        }
        self.sent.extend(bytes.chunks(segment).map(|datagram| (to, datagram.to_vec())));
        SendOutcome::Sent
    }
}

struct Serve {
    sender: Sender<MemoryRing>,
    ip: IpAddr,
    /// The ring that it should serve, as the path says.
    path: Rc<RefCell<Disk>>,
    attached: Option<MemoryRing>,
    frozen: bool,
    wake_ns: i64,
    conns: BTreeMap<SessionId, usize>,
}

struct Mirror {
    receiver: Receiver<Host>,
    disk: Rc<RefCell<Disk>>,
    settings: MirrorSettings,
    source: usize,
    address: SocketAddr,
    conn: Option<usize>,
    frozen: bool,
    wake_ns: i64,
    gaps_judged: usize,
    started_before: bool,
    /// UDP lost until then (a burst).
    deaf_until_ns: i64,
    authenticated: bool,
    /// What was held back in this session, and how many held datagrams were given up before it.
    early: Vec<(u64, u64)>,
    dropped_before: u64,
}

/// One direction of a connection.
#[derive(Clone, Copy, Default)]
struct Flow {
    sending: bool,
    busy_until_ns: i64,
    arrives_ns: i64,
}

struct Conn {
    mirror: usize,
    serve: usize,
    session: Option<SessionId>,
    up: bool,
    to_mirror: Flow,
    to_serve: Flow,
    mirror_input: Vec<u8>,
    serve_input: Vec<u8>,
    /// The ring that the session began with.
    ring: Option<MemoryRing>,
}

#[derive(Debug)]
enum Event {
    WakeServe(usize),
    WakeMirror(usize),
    Connect(usize),
    Accept(usize),
    Stream { conn: usize, to_serve: bool, bytes: Vec<u8> },
    Sent { conn: usize, to_serve: bool },
    Closed { conn: usize, at_serve: bool },
    Datagram { mirror: usize, from: SocketAddr, bytes: Vec<u8> },
    Punch { serve: usize, from: SocketAddr, bytes: Vec<u8> },
    Thaw { serve: Option<usize>, mirror: Option<usize> },
    Heal(usize),
    Refresh(usize),
}

struct Timed(i64, u64, Event);

impl PartialEq for Timed {
    fn eq(&self, other: &Timed) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Timed) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Timed) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// All hosts of one seed.
pub struct World {
    pub plan: Plan,
    g: Pcg64Mcg,
    now: i64,
    events: BinaryHeap<Reverse<Timed>>,
    order: u64,
    /// The source's path: its ring and those before.
    source: Rc<RefCell<Disk>>,
    history: u64,
    serves: Vec<Serve>,
    mirrors: Vec<Mirror>,
    conns: Vec<Conn>,
    /// Until when a mirror's link carries nothing.
    partitioned: Vec<i64>,
    faults: bool,
    tell: bool,
    tally: Tally,
    faults_ended_ns: i64,
    /// When each record was produced, and how long it took to mirror 0, if that is watched.
    watch: Option<Watch>,
    bytes_used: Vec<u8>,
}

#[derive(Default)]
pub struct Watch {
    produced_ns: Vec<i64>,
    seen: u64,
    pub latencies_ns: Vec<i64>,
}

impl World {
    pub fn new(mut g: Pcg64Mcg, plan: Plan, tell: bool) -> World {
        let source = Rc::new(RefCell::new(Disk::default()));
        let mut serves = vec![(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), source.clone())];
        let mut mirrors = Vec::new();
        for at in 0..plan.mirrors {
            let disk = Rc::new(RefCell::new(Disk::default()));
            let ip = IpAddr::V4(Ipv4Addr::new(10, 1, at as u8, 1));
            let follows_hub = plan.hub && at + 1 == plan.mirrors;
            if plan.hub && at == 0 {
                serves.push((ip, disk.clone()));
            }
            let settings = plan.mirror[at].clone();
            mirrors.push(Mirror {
                receiver: Receiver::new(settings.clone(), Host(disk.clone()), g.random()),
                disk,
                settings,
                source: usize::from(follows_hub),
                address: SocketAddr::new(ip, 40_000),
                conn: None,
                frozen: false,
                wake_ns: i64::MAX,
                gaps_judged: 0,
                started_before: false,
                deaf_until_ns: 0,
                authenticated: false,
                early: Vec::new(),
                dropped_before: 0,
            });
        }
        let serves = serves.into_iter().map(|(ip, path)| Serve {
            sender: Sender::new(plan.serve.clone(), g.random()),
            ip,
            path,
            attached: None,
            frozen: false,
            wake_ns: i64::MAX,
            conns: BTreeMap::new(),
        });
        let mut world = World {
            now: START_NS,
            events: BinaryHeap::new(),
            order: 0,
            history: 0,
            serves: serves.collect(),
            partitioned: vec![0; mirrors.len()],
            mirrors,
            conns: Vec::new(),
            faults: true,
            tell,
            tally: Tally::default(),
            faults_ended_ns: 0,
            watch: None,
            bytes_used: Vec::new(),
            source,
            plan,
            g,
        };
        world.restart_producer();
        for mirror in 0..world.mirrors.len() {
            let delay = world.random(0..20) * MS;
            world.at(delay, Event::Connect(mirror));
        }
        world
    }

    pub fn random<T: SampleUniform>(&mut self, range: impl SampleRange<T>) -> T {
        self.g.random_range(range)
    }

    pub fn now(&self) -> i64 {
        self.now - START_NS
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.tell {
            eprintln!("{:>12} {}", self.now() / US, what());
        }
    }

    fn at(&mut self, delay_ns: i64, event: Event) {
        self.order += 1;
        self.events.push(Reverse(Timed(self.now + delay_ns.max(0), self.order, event)));
    }

    /// Runs all that happens before `until` (since the beginning).
    pub fn run(&mut self, until: i64) -> Result<(), String> {
        let until = START_NS + until;
        while let Some(Reverse(next)) = self.events.peek()
            && next.0 < until
        {
            let Some(Reverse(Timed(at, _, event))) = self.events.pop() else { break };
            self.now = at;
            self.tally.events += 1;
            if self.tally.events > 400_000 {
                return Err("400,000 events: something turns in circles".into());
            }
            self.handle(event);
            self.measure();
            self.judge()?;
        }
        self.now = until;
        Ok(())
    }

    /// One thing that goes wrong, or records that are produced.
    pub fn random_event(&mut self) {
        let mirror = self.random(0..self.mirrors.len());
        match self.random(0..100) {
            0..55 => self.produce_a_little(),
            55..60 => {
                // More than the ring holds: whoever is not level is lapped.
                let capacity = self.plan.geometry.capacity;
                let count = self.random(capacity / 2..capacity * 2);
                self.produce(count);
            }
            60..66 => {
                let length = [1, 30, 300][self.random(0..3usize)] * MS;
                self.say(|| format!("mirror {mirror} is cut off for {} ms", length / MS));
                self.partitioned[mirror] = self.now + length;
                self.tally.partitions += 1;
                self.at(length, Event::Heal(mirror));
            }
            66..71 => {
                let length = self.random(1..40) * MS;
                self.mirrors[mirror].deaf_until_ns = self.now + length;
            }
            71..75 => {
                let conn = self.mirrors[mirror].conn;
                if let Some(conn) = conn {
                    self.say(|| format!("mirror {mirror}'s connection is reset"));
                    self.at(0, Event::Closed { conn, at_serve: true });
                    self.at(0, Event::Closed { conn, at_serve: false });
                }
            }
            75..80 => {
                self.tally.producer_restarts += 1;
                self.restart_producer();
                let count = self.random(0..30);
                self.produce(count);
            }
            80..85 => {
                let serve = self.random(0..self.serves.len());
                self.restart_serve(serve);
            }
            85..90 => self.restart_mirror(mirror),
            90..94 => {
                let length = [20, 300, 700][self.random(0..3usize)] * MS;
                self.tally.freezes += 1;
                if self.random(0..2) == 0 {
                    let serve = self.random(0..self.serves.len());
                    self.say(|| format!("serve {serve} is frozen for {} ms", length / MS));
                    self.serves[serve].frozen = true;
                    self.at(length, Event::Thaw { serve: Some(serve), mirror: None });
                } else {
                    self.say(|| format!("mirror {mirror} is frozen for {} ms", length / MS));
                    self.mirrors[mirror].frozen = true;
                    self.at(length, Event::Thaw { serve: None, mirror: Some(mirror) });
                }
            }
            94..97 => {
                // The NAT forgot: another port.
                let port = self.random(40_000..60_000);
                self.mirrors[mirror].address.set_port(port);
            }
            _ => self.forge(mirror),
        }
    }

    pub fn stop_faults(&mut self) {
        self.faults = false;
        self.faults_ended_ns = self.now;
        for (mirror, link) in self.plan.links.iter_mut().enumerate() {
            (link.loss, link.burst, link.duplicate, link.stream_loss) = (0.0, 0.0, 0.0, false);
            link.stream_bytes_per_second = 1 << 40;
            self.partitioned[mirror] = 0;
        }
        self.say(|| "faults end".into());
        for serve in 0..self.serves.len() {
            self.at(0, Event::Thaw { serve: Some(serve), mirror: None });
        }
        for mirror in 0..self.mirrors.len() {
            self.mirrors[mirror].deaf_until_ns = 0;
            self.at(0, Event::Thaw { serve: None, mirror: Some(mirror) });
            self.at(0, Event::Heal(mirror));
        }
    }

    pub fn produce_a_little(&mut self) {
        let count = self.random(1..=12);
        self.produce(count);
    }

    pub fn produce(&mut self, count: u64) {
        let ring = self.source.borrow().file.clone().expect("the producer made it");
        ring.produce(self.history, count);
        if let Some(watch) = &mut self.watch {
            watch.produced_ns.resize(ring.head() as usize + 1, self.now);
        }
        self.say(|| format!("produced {count}, head {}", ring.head()));
        self.service_serve(0);
    }

    fn restart_producer(&mut self) {
        self.history += 1;
        let incarnation = if self.plan.incarnations { 1000 + self.history } else { 0 };
        let ring = MemoryRing::new(self.plan.geometry, 1, incarnation);
        self.say(|| format!("the producer begins history {}", self.history));
        let old = self.source.borrow_mut().file.replace(ring);
        self.source.borrow_mut().earlier.extend(old);
        let delay = self.random(0..100) * MS;
        self.at(delay, Event::Refresh(0));
    }

    fn restart_serve(&mut self, serve: usize) {
        self.say(|| format!("serve {serve} is restarted"));
        self.tally.serve_restarts += 1;
        let seed = self.g.random();
        let gone = &mut self.serves[serve];
        let conns: Vec<usize> = std::mem::take(&mut gone.conns).into_values().collect();
        gone.sender = Sender::new(self.plan.serve.clone(), seed);
        gone.attached = None;
        // A host that vanished sends no reset: the mirror has to notice by itself.
        let silent = self.random(0..4) == 0;
        for conn in conns {
            self.conns[conn].session = None;
            if !silent {
                self.conns[conn].up = false;
                self.at(0, Event::Closed { conn, at_serve: false });
            }
        }
        let delay = self.random(0..60) * MS;
        self.at(delay, Event::Refresh(serve));
    }

    fn restart_mirror(&mut self, mirror: usize) {
        self.say(|| format!("mirror {mirror} is restarted"));
        self.tally.mirror_restarts += 1;
        let seed = self.g.random();
        self.note_counters(mirror);
        let this = &mut self.mirrors[mirror];
        this.settings.start = Start::Resume;
        this.receiver = Receiver::new(this.settings.clone(), Host(this.disk.clone()), seed);
        (this.wake_ns, this.frozen) = (i64::MAX, false);
        if let Some(conn) = this.conn.take() {
            self.conns[conn].up = false;
            self.at(0, Event::Closed { conn, at_serve: true });
        }
        let delay = self.random(1..60) * MS;
        self.at(delay, Event::Connect(mirror));
    }

    /// Datagrams that nobody of ours sent.
    fn forge(&mut self, mirror: usize) {
        if !self.plan.forged || !self.faults {
            return;
        }
        let (serve, source_ip) = (self.mirrors[mirror].source, self.serves[self.mirrors[mirror].source].ip);
        let next = self.mirrors[mirror].disk.borrow().file.as_ref().map_or(1, MemoryRing::next_sequence);
        let arena = self.plan.geometry.has_arena();
        let lie = record(99, next, arena);
        let header =
            Header { kind: kind::DATA, flags: self.g.random(), count: 1, bytes: lie.len() as u32, sequence: next };
        let foreign = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9)), UDP_PORT);
        for session in 0..=255u8 {
            let mut bytes = Header { flags: session, ..header }.encode().to_vec();
            bytes.extend_from_slice(&lie);
            self.at(0, Event::Datagram { mirror, from: foreign, bytes: bytes.clone() });
            let this = &self.mirrors[mirror];
            let extended = this.settings.extension && self.plan.serve.extension;
            if self.plan.serve.key.is_some() || extended {
                // With a key, or in a session with a 64-bit number, even the right address proves nothing.
                bytes.extend_from_slice(&[1; 16]);
                let from = SocketAddr::new(source_ip, UDP_PORT);
                self.at(0, Event::Datagram { mirror, from, bytes });
            }
        }
        let token: u64 = self.g.random_range(0..1 << 16);
        let punch = Header::bare(kind::PUNCH, self.g.random(), token).encode().to_vec();
        self.at(0, Event::Punch { serve, from: foreign, bytes: punch });
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::WakeServe(serve) => {
                if self.serves[serve].wake_ns <= self.now {
                    self.serves[serve].wake_ns = i64::MAX;
                    self.service_serve(serve);
                }
            }
            Event::WakeMirror(mirror) => {
                if self.mirrors[mirror].wake_ns <= self.now {
                    self.mirrors[mirror].wake_ns = i64::MAX;
                    self.service_mirror(mirror);
                }
            }
            Event::Connect(mirror) => self.connect(mirror),
            Event::Accept(conn) => self.accept(conn),
            Event::Stream { conn, to_serve, bytes } => self.stream(conn, to_serve, &bytes),
            Event::Sent { conn, to_serve } => {
                let (mirror, serve) = (self.conns[conn].mirror, self.conns[conn].serve);
                if to_serve {
                    self.conns[conn].to_serve.sending = false;
                    self.service_mirror(mirror);
                } else {
                    self.conns[conn].to_mirror.sending = false;
                    self.service_serve(serve);
                }
            }
            Event::Closed { conn, at_serve } => self.closed(conn, at_serve),
            Event::Datagram { mirror, from, bytes } => {
                let this = &mut self.mirrors[mirror];
                if !this.frozen {
                    let held = this.receiver.counters().held;
                    this.receiver.on_datagram(from, &bytes, self.now);
                    if this.receiver.counters().held > held {
                        let header = Header::decode(&bytes).expect("it was held");
                        this.early.push((header.sequence, header.sequence + u64::from(header.count)));
                    }
                    self.service_mirror(mirror);
                }
            }
            Event::Punch { serve, from, bytes } => {
                if !self.serves[serve].frozen {
                    self.serves[serve].sender.on_datagram(from, &bytes, self.now);
                    self.service_serve(serve);
                }
            }
            Event::Thaw { serve, mirror } => {
                if let Some(serve) = serve {
                    self.serves[serve].frozen = false;
                    self.refresh(serve);
                    let conns: Vec<usize> = self.serves[serve].conns.values().copied().collect();
                    for conn in conns {
                        self.read_at_serve(conn);
                    }
                }
                if let Some(mirror) = mirror {
                    self.mirrors[mirror].frozen = false;
                    if let Some(conn) = self.mirrors[mirror].conn {
                        self.read_at_mirror(conn);
                    }
                    self.service_mirror(mirror);
                }
            }
            Event::Heal(mirror) => {
                if let Some(conn) = self.mirrors[mirror].conn {
                    self.service_serve(self.conns[conn].serve);
                }
                self.service_mirror(mirror);
            }
            Event::Refresh(serve) => self.refresh(serve),
        }
    }

    /// A serve looks whether its path has another ring.
    fn refresh(&mut self, serve: usize) {
        let now = self.now;
        let this = &mut self.serves[serve];
        if this.frozen {
            return;
        }
        let ring = this.path.borrow().file.clone();
        if let Some(ring) = ring
            && !this.attached.as_ref().is_some_and(|old| old.is(&ring))
        {
            this.sender.attach(ring.clone(), now);
            // Plain sessions are told apart by one byte, which repeats once in 256: that is the protocol's own flaw.
            while self.plan.is_plain() && self.bytes_used.contains(&this.sender.session_byte()) {
                this.sender.attach(ring.clone(), now);
            }
            self.bytes_used.push(this.sender.session_byte());
            this.attached = Some(ring);
            self.say(|| format!("serve {serve} attaches its ring"));
        }
        self.service_serve(serve);
    }

    fn connect(&mut self, mirror: usize) {
        let now = self.now;
        if self.mirrors[mirror].conn.is_some() {
            return;
        }
        if self.mirrors[mirror].frozen || self.partitioned[mirror] > now {
            return self.at(RECONNECT_NS, Event::Connect(mirror));
        }
        let conn = self.conns.len();
        let serve = self.mirrors[mirror].source;
        let (to_mirror, to_serve) = (Flow::default(), Flow::default());
        self.conns.push(Conn {
            mirror,
            serve,
            session: None,
            up: true,
            to_mirror,
            to_serve,
            mirror_input: Vec::new(),
            serve_input: Vec::new(),
            ring: None,
        });
        let source = SocketAddr::new(self.serves[serve].ip, TCP_PORT);
        let this = &mut self.mirrors[mirror];
        this.conn = Some(conn);
        this.early.clear();
        this.dropped_before = this.receiver.counters().held_dropped;
        this.receiver.connected(source, now);
        let delay = self.plan.links[mirror].delay_ns;
        self.conns[conn].to_serve.arrives_ns = now + delay;
        self.at(delay, Event::Accept(conn));
        self.service_mirror(mirror);
    }

    fn accept(&mut self, conn: usize) {
        let (mirror, serve) = (self.conns[conn].mirror, self.conns[conn].serve);
        if !self.conns[conn].up {
            return;
        }
        if self.serves[serve].frozen {
            // The kernel has accepted; the process looks later.
            return self.at(10 * MS, Event::Accept(conn));
        }
        let this = &mut self.serves[serve];
        match this.sender.accept(self.mirrors[mirror].address, self.now) {
            Ok(session) => {
                this.conns.insert(session, conn);
                self.conns[conn].session = Some(session);
                self.service_serve(serve);
                self.read_at_serve(conn);
            }
            Err(_) => self.at(0, Event::Closed { conn, at_serve: false }),
        }
    }

    fn closed(&mut self, conn: usize, at_serve: bool) {
        let (mirror, serve) = (self.conns[conn].mirror, self.conns[conn].serve);
        self.conns[conn].up = false;
        if at_serve {
            if let Some(session) = self.conns[conn].session.take()
                && self.serves[serve].conns.remove(&session).is_some()
            {
                self.serves[serve].sender.on_closed(session);
                self.service_serve(serve);
            }
            return;
        }
        if self.mirrors[mirror].conn == Some(conn) {
            self.mirrors[mirror].conn = None;
            self.mirrors[mirror].receiver.disconnected(self.now);
            self.at(RECONNECT_NS, Event::Connect(mirror));
        }
    }

    /// Stream bytes arrived in a socket's buffer.
    fn stream(&mut self, conn: usize, to_serve: bool, bytes: &[u8]) {
        let this = &mut self.conns[conn];
        if !this.up {
            return;
        }
        if to_serve {
            this.serve_input.extend_from_slice(bytes)
        } else {
            this.mirror_input.extend_from_slice(bytes)
        }
        match to_serve {
            true => self.read_at_serve(conn),
            false => self.read_at_mirror(conn),
        }
    }

    fn read_at_serve(&mut self, conn: usize) {
        let serve = self.conns[conn].serve;
        let Some(session) = self.conns[conn].session else { return };
        if self.serves[serve].frozen || self.conns[conn].serve_input.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.conns[conn].serve_input);
        // The session is about the ring that was there when HELLO was read.
        if self.conns[conn].ring.is_none() {
            self.conns[conn].ring = self.serves[serve].attached.clone();
        }
        self.serves[serve].sender.on_bytes(session, &bytes, self.now);
        self.service_serve(serve);
    }

    fn read_at_mirror(&mut self, conn: usize) {
        let (mirror, now) = (self.conns[conn].mirror, self.now);
        if self.mirrors[mirror].conn != Some(conn) || self.mirrors[mirror].frozen {
            return;
        }
        let input = std::mem::take(&mut self.conns[conn].mirror_input);
        let mut used = 0;
        loop {
            match self.mirrors[mirror].receiver.on_bytes(&input[used..], now) {
                StreamStep::Frame { bytes } => used += bytes,
                StreamStep::Need { .. } => break,
                StreamStep::Close(reason) => {
                    self.say(|| format!("mirror {mirror} closes: {reason}"));
                    return self.hang_up(conn);
                }
            }
        }
        self.conns[conn].mirror_input = input[used..].to_vec();
        self.service_mirror(mirror);
    }

    /// A mirror closes its connection.
    fn hang_up(&mut self, conn: usize) {
        let delay = self.plan.links[self.conns[conn].mirror].delay_ns;
        self.closed(conn, false);
        self.at(delay, Event::Closed { conn, at_serve: true });
    }

    /// Polls all that a serve has, and carries it away.
    fn service_serve(&mut self, serve: usize) {
        let now = self.now;
        if self.serves[serve].frozen {
            return;
        }
        while let Some((session, reason)) = self.serves[serve].sender.next_closed(now) {
            self.end_session(serve, session, &reason.to_string());
        }
        let conns: Vec<(SessionId, usize)> = self.serves[serve].conns.iter().map(|(&id, &conn)| (id, conn)).collect();
        for (session, conn) in conns {
            while !self.conns[conn].to_mirror.sending {
                let mut out = Vec::new();
                match self.serves[serve].sender.poll_stream(session, &mut out, now) {
                    StreamPoll::Data => self.carry(conn, false, out),
                    StreamPoll::Idle => break,
                    StreamPoll::Close(reason) => {
                        self.end_session(serve, session, &reason.to_string());
                        break;
                    }
                }
            }
        }
        let mut sent = Vec::new();
        let mut wire = Wire {
            sent: &mut sent,
            random: &mut self.g,
            blocks: self.plan.blocks && self.faults,
            blocked: &mut self.tally.blocked,
        };
        self.serves[serve].sender.poll_datagrams(now, &mut wire, 64);
        for (to, bytes) in sent {
            self.scatter(serve, to, bytes);
        }
        let this = &mut self.serves[serve];
        let blocked = this.sender.is_datagram_blocked();
        let deadline = if blocked { Some(now + 50 * US) } else { this.sender.deadline() };
        if let Some(at) = deadline.map(|at| at.max(now + 10 * US))
            && at < this.wake_ns
        {
            this.wake_ns = at;
            self.at(at - now, Event::WakeServe(serve));
        }
    }

    fn end_session(&mut self, serve: usize, session: SessionId, reason: &str) {
        if let Some(conn) = self.serves[serve].conns.remove(&session) {
            self.say(|| format!("serve {serve} ends mirror {}'s session: {reason}", self.conns[conn].mirror));
            self.conns[conn].session = None;
            // What is on its way arrives first.
            let arrives_ns = self.conns[conn].to_mirror.arrives_ns;
            let delay = self.plan.links[self.conns[conn].mirror].delay_ns;
            self.at((arrives_ns - self.now).max(delay) + 1, Event::Closed { conn, at_serve: false });
        }
    }

    fn service_mirror(&mut self, mirror: usize) {
        let now = self.now;
        if self.mirrors[mirror].frozen {
            return;
        }
        if let Some(conn) = self.mirrors[mirror].conn {
            while !self.conns[conn].to_serve.sending {
                let mut out = Vec::new();
                match self.mirrors[mirror].receiver.poll_stream(&mut out, now) {
                    StreamPoll::Data => self.carry(conn, true, out),
                    StreamPoll::Idle => break,
                    StreamPoll::Close(reason) => {
                        self.say(|| format!("mirror {mirror} closes: {reason}"));
                        self.hang_up(conn);
                        break;
                    }
                }
            }
        }
        let mut sent = Vec::new();
        let mut wire = Wire { sent: &mut sent, random: &mut self.g, blocks: false, blocked: &mut self.tally.blocked };
        self.mirrors[mirror].receiver.poll_datagrams(now, &mut wire);
        for (_, bytes) in sent {
            let (serve, from) = (self.mirrors[mirror].source, self.mirrors[mirror].address);
            if let Some(delay) = self.udp_delay(mirror, bytes.len()) {
                self.at(delay, Event::Punch { serve, from, bytes });
            }
        }
        self.feed_hub(mirror);
        let this = &mut self.mirrors[mirror];
        this.authenticated |= this.receiver.status(now).authenticated;
        if let Some(at) = this.receiver.deadline().map(|at| at.max(now + 10 * US))
            && at < this.wake_ns
        {
            this.wake_ns = at;
            self.at(at - now, Event::WakeMirror(mirror));
        }
    }

    /// A mirror's ring is a hub's source.
    fn feed_hub(&mut self, mirror: usize) {
        let Some(hub) = self.serves.get(1) else { return };
        if !Rc::ptr_eq(&hub.path, &self.mirrors[mirror].disk) {
            return;
        }
        let file = hub.path.borrow().file.clone();
        let replaced = file.is_some_and(|file| !hub.attached.as_ref().is_some_and(|old| old.is(&file)));
        if replaced {
            let delay = self.random(0..100) * MS;
            return self.at(delay, Event::Refresh(1));
        }
        self.service_serve(1);
    }

    /// Puts stream bytes on their way.
    fn carry(&mut self, conn: usize, to_serve: bool, bytes: Vec<u8>) {
        let mirror = self.conns[conn].mirror;
        let link = self.plan.links[mirror];
        let now = self.now;
        let mut lost = 0;
        while link.stream_loss && self.g.random_bool(link.loss.min(0.5)) {
            lost += 1;
        }
        let jitter = self.random(0..=link.jitter_ns);
        let flow = if to_serve { &mut self.conns[conn].to_serve } else { &mut self.conns[conn].to_mirror };
        let took = bytes.len() as i64 * 1_000_000_000 / link.stream_bytes_per_second;
        let begins = flow.busy_until_ns.max(now).max(self.partitioned[mirror]);
        flow.busy_until_ns = begins + took;
        // Each loss costs the way of the acknowledgement that tells of it, and the way of the repair.
        let repair = lost * (2 * link.delay_ns + link.stream_repair_ns);
        flow.arrives_ns = flow.arrives_ns.max(flow.busy_until_ns + link.delay_ns + jitter + repair);
        flow.sending = true;
        let (sent, arrives) = (flow.busy_until_ns - now, flow.arrives_ns - now);
        self.at(arrives, Event::Stream { conn, to_serve, bytes });
        self.at(sent, Event::Sent { conn, to_serve });
    }

    /// `None`: lost.
    fn udp_delay(&mut self, mirror: usize, bytes: usize) -> Option<i64> {
        let link = self.plan.links[mirror];
        if self.partitioned[mirror] > self.now || self.mirrors[mirror].deaf_until_ns > self.now || bytes > link.mtu {
            return None;
        }
        if link.burst > 0.0 && self.g.random_bool(link.burst) {
            self.mirrors[mirror].deaf_until_ns = self.now + self.random(1..8) * MS;
            return None;
        }
        if self.g.random_bool(link.loss) {
            return None;
        }
        Some(link.delay_ns + self.random(0..=link.jitter_ns))
    }

    /// Carries a serve's datagram to whom it reaches.
    fn scatter(&mut self, serve: usize, to: Destination, bytes: Vec<u8>) {
        let from = SocketAddr::new(self.serves[serve].ip, UDP_PORT);
        for mirror in 0..self.mirrors.len() {
            let this = &self.mirrors[mirror];
            let reached = match to {
                // One group for hub and source alike: mirrors of the other hear it too, and must not believe it.
                Destination::Multicast => {
                    this.receiver.transport() == Some(Transport::Multicast(GROUP)) && this.address.ip() != from.ip()
                }
                Destination::Unicast(address) => address == this.address,
            };
            if !reached {
                continue;
            }
            let copies = 1 + usize::from(self.g.random_bool(self.plan.links[mirror].duplicate));
            for _ in 0..copies {
                if let Some(delay) = self.udp_delay(mirror, bytes.len()) {
                    self.at(delay, Event::Datagram { mirror, from, bytes: bytes.clone() });
                }
            }
        }
    }

    /// Measures from now on how long records take to mirror 0.
    pub fn watch(&mut self) {
        let head = self.source.borrow().file.as_ref().map_or(0, MemoryRing::head);
        let produced_ns = vec![self.now; head as usize + 1];
        self.watch = Some(Watch { produced_ns, seen: head, latencies_ns: Vec::new() });
    }

    /// What was measured.
    pub fn watched(&mut self) -> Watch {
        self.watch.take().expect("watched")
    }

    fn measure(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let head = self.mirrors[0].disk.borrow().file.as_ref().map_or(0, MemoryRing::head);
        while watch.seen < head {
            watch.seen += 1;
            watch.latencies_ns.push(self.now - watch.produced_ns[watch.seen as usize]);
        }
    }

    /// What each mirror did since the last event.
    fn judge(&mut self) -> Result<(), String> {
        for at in 0..self.mirrors.len() {
            let this = &mut self.mirrors[at];
            let mut disk = this.disk.borrow_mut();
            let upstream = this.conn.and_then(|conn| self.conns[conn].ring.clone());
            if let Some(first) = disk.fresh.take() {
                // A new file that is not the first begins with all that is retained, or where the last one ended.
                let asked_new = !this.started_before && !matches!(this.settings.start, Start::Oldest | Start::Resume);
                let oldest = upstream.as_ref().map_or(u64::MAX, MemoryRing::oldest);
                let before = disk.earlier.last().map_or(1, MemoryRing::next_sequence);
                if !asked_new && first > oldest.max(before) {
                    return Err(format!("mirror {at}: a file begins at {first}, {oldest} was there, {before} next"));
                }
                (this.started_before, this.gaps_judged) = (true, 0);
            }
            let Some(file) = disk.file.as_ref() else { continue };
            let judged = this.gaps_judged;
            let upstream_holds = |from: u64, to: u64| {
                let ring = upstream.as_ref()?;
                (from..to).take(4096).find(|&sequence| ring.holds(sequence))
            };
            let extended = this.settings.extension && self.plan.serve.extension;
            let lumps = !extended && this.receiver.transport() != Some(Transport::Stream);
            let verdict = file.log(|log| {
                if let Some(wrong) = log.wrong.first() {
                    return Err(format!("mirror {at}: {wrong}"));
                }
                for &(from, to) in &log.gaps[judged..] {
                    let kept = this.receiver.counters().held_dropped == this.dropped_before;
                    if kept && let Some(had) = this.early.iter().find(|(first, _)| (from..to).contains(first)) {
                        return Err(format!("mirror {at}: gap {from}..{to} although it held {had:?}"));
                    }
                    // The peer's GAP says "all below", also where a hole below was not asked for yet.
                    if !lumps && let Some(there) = upstream_holds(from, to) {
                        let up = upstream.as_ref().expect("it has it");
                        let kept = (up.oldest(), up.head());
                        return Err(format!(
                            "mirror {at}: gap {from}..{to} although the source, {kept:?}, has {there}"
                        ));
                    }
                }
                if log.incarnation != 0 && log.history != 0 && log.incarnation != 1000 + log.history {
                    return Err(format!("mirror {at}: history {} under incarnation {}", log.history, log.incarnation));
                }
                Ok(log.gaps.len())
            });
            this.gaps_judged = verdict?;
        }
        Ok(())
    }

    fn level(&self, mirror: usize) -> Result<(), String> {
        let this = &self.mirrors[mirror];
        let serve = &self.serves[this.source];
        let status = this.receiver.status(self.now);
        let path = serve.path.borrow();
        let source = path.file.as_ref().ok_or("its source has no ring")?;
        let disk = this.disk.borrow();
        let file = disk.file.as_ref().ok_or("no ring")?;
        let (have, want) = (file.head(), source.head());
        if !status.live || status.silent {
            return Err(format!("not live: {status:?}"));
        }
        if have != want || file.log(|log| log.history != 0 && log.history != self.history) {
            return Err(format!("at {have} of {want}: {status:?}, {:?}", this.receiver.counters()));
        }
        // The bytes that readers of the mirror find are those that the source holds.
        let mut mine = file.clone();
        let mut theirs = source.clone();
        for sequence in theirs.oldest().max(file.log(|log| log.first))..=want {
            let (mut one, mut two) = (Vec::new(), Vec::new());
            let outcomes = (mine.read(sequence, &mut one), theirs.read(sequence, &mut two));
            let arena = self.plan.geometry.has_arena();
            let both = outcomes == (ReadOutcome::Record, ReadOutcome::Record);
            if both && without_place(one, arena) != without_place(two, arena) {
                return Err(format!("record {sequence} differs"));
            }
        }
        Ok(())
    }

    pub fn all_level(&mut self) -> bool {
        let all = (0..self.mirrors.len()).all(|mirror| self.level(mirror).is_ok());
        if all {
            self.tally.level_after_ms_max = ((self.now - self.faults_ended_ns) / MS) as u64;
        }
        all
    }

    /// Every mirror is live and level, and its bytes are the source's.
    pub fn judge_end(&mut self) -> Result<(), String> {
        for mirror in 0..self.mirrors.len() {
            self.level(mirror).map_err(|what| {
                format!("mirror {mirror} {} ms after the faults: {what}", { (self.now - self.faults_ended_ns) / MS })
            })?;
        }
        Ok(())
    }

    fn note_counters(&mut self, mirror: usize) {
        let this = &self.mirrors[mirror];
        let counters = this.receiver.counters();
        let tally = &mut self.tally;
        tally.records += counters.records;
        tally.gaps += counters.gaps;
        tally.naks += counters.naks;
        tally.repaired += counters.repaired_records;
        tally.held += counters.held;
        tally.duplicates += counters.duplicate_records;
        tally.resumed += counters.resumed;
        tally.files += counters.rings;
        tally.forged += counters.forged;
        tally.foreign += counters.foreign;
        tally.hub_records += if this.source == 1 { counters.records } else { 0 };
        tally.authenticated += u64::from(this.authenticated);
        match this.receiver.transport() {
            Some(Transport::Stream) => tally.stream += 1,
            Some(Transport::Multicast(_)) => tally.multicast += 1,
            Some(Transport::Unicast(_)) => tally.unicast += 1,
            None => {}
        }
    }

    pub fn tally(mut self) -> Tally {
        for mirror in 0..self.mirrors.len() {
            self.note_counters(mirror);
        }
        self.tally
    }
}
