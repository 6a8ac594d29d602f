//! What brings a record from a ring to its copy: bare sockets in the same topology, the peer, and ours.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sluice::config;
use sluice::ring::inline::InlineUdp;
use sluice::ring::step::{Mirror, Server};
use sluice::ring::{ConsumerSettings, InlineSender, RingConsumer, RingProducer, RingSettings, StartAt};

use crate::paced::{BURST_MAX, Path, Record, SENDER_PRIORITY, Source};
use crate::pinned::{self, Line};

/// How the records travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Tcp,
    Udp,
    Multicast,
}

impl Transport {
    pub const ALL: [Transport; 3] = [Transport::Tcp, Transport::Udp, Transport::Multicast];

    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Multicast => "multicast",
        }
    }

    pub fn of(name: &str) -> Option<Transport> {
        Transport::ALL.into_iter().find(|transport| transport.name() == name)
    }
}

/// What a path is opened with.
pub struct Opening<'a> {
    pub folder: &'a FilePath,
    pub transport: Transport,
    /// Where producer and sender run.
    pub cpu: usize,
    /// Whether what sends may have a real-time priority.
    pub realtime: bool,
}

/// A producer's end and a reader's.
pub type Ends = (Box<dyn Source>, Box<dyn Path>);

/// Slots of the source ring: 65 ms at a million records a second.
pub const CAPACITY: u64 = 65_536;
pub const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Of the administratively scoped block.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 77, 1);
/// The budget of a datagram, as both the peer's and our default.
pub const MTU: usize = 1_472;
pub const HEADER_BYTES: usize = 16;
pub const RECORD_BYTES: usize = 64;
/// 22 records of 64 bytes.
pub const RECORDS_PER_DATAGRAM: usize = (MTU - HEADER_BYTES) / RECORD_BYTES;

/// A port that is free now.
pub fn free_port() -> u16 {
    let socket = UdpSocket::bind((LOCAL, 0)).expect("a socket");
    socket.local_addr().expect("bound").port()
}

/// Runs `work` for ever as what sends: on the producer's CPU, below the producer, above the rest.
fn as_sender(cpu: usize, realtime: bool, work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        pinned::pin(cpu);
        if realtime {
            pinned::realtime(SENDER_PRIORITY);
        }
        work();
    });
}

/// A datagram of up to 22 records behind a header's worth of bytes.
pub fn datagram(records: &[Record], out: &mut Vec<u8>) {
    out.clear();
    out.resize(HEADER_BYTES, 0);
    out[..8].copy_from_slice(&(records.len() as u64).to_le_bytes());
    for word in records.iter().flatten() {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// Two sockets of this host, connected to one another, non-blocking at the receiving end.
fn sockets() -> (UdpSocket, UdpSocket) {
    let (sender, receiver) = (UdpSocket::bind((LOCAL, 0)), UdpSocket::bind((LOCAL, 0)));
    let (sender, receiver) = (sender.expect("a socket"), receiver.expect("a socket"));
    sender.connect(receiver.local_addr().expect("bound")).expect("connected");
    receiver.connect(sender.local_addr().expect("bound")).expect("connected");
    receiver.set_nonblocking(true).expect("non-blocking");
    (sender, receiver)
}

/// The producer's thread sends the datagram itself.
pub fn floor_inline(_: &Opening) -> Ends {
    let (sender, receiver) = sockets();
    (Box::new(InlineFloor { sender, out: Vec::new() }), Box::new(FloorPath::new(receiver)))
}

struct InlineFloor {
    sender: UdpSocket,
    out: Vec<u8>,
}

impl Source for InlineFloor {
    fn push(&mut self, records: &[Record]) {
        for records in records.chunks(RECORDS_PER_DATAGRAM) {
            datagram(records, &mut self.out);
            // A refused datagram is a lost one, and is counted as that.
            let _ = self.sender.send(&self.out);
        }
    }
}

/// The receiving end of both floors: a non-blocking receive, over and over.
struct FloorPath {
    receiver: UdpSocket,
    buffer: [u8; MTU],
    /// Records of the last datagram, and how many of them are read.
    count: usize,
    read: usize,
}

impl FloorPath {
    fn new(receiver: UdpSocket) -> FloorPath {
        FloorPath { receiver, buffer: [0; MTU], count: 0, read: 0 }
    }
}

impl Path for FloorPath {
    fn step(&mut self) {
        if let Ok(bytes) = self.receiver.recv(&mut self.buffer) {
            self.count = bytes.saturating_sub(HEADER_BYTES) / RECORD_BYTES;
            self.read = 0;
        }
    }

    fn receive(&mut self) -> Option<Record> {
        if self.read == self.count {
            return None;
        }
        let at = HEADER_BYTES + self.read * RECORD_BYTES;
        self.read += 1;
        let words = self.buffer[at..at + RECORD_BYTES].as_chunks::<8>().0;
        Some(std::array::from_fn(|index| u64::from_le_bytes(words[index])))
    }
}

/// A slot of two lines: sequence and seven words, and the eighth.
type Slot = [Line; 2];
/// Slots between producer and sender of the floor.
const SHARED_SLOTS: usize = CAPACITY as usize;

/// The producer writes shared lines, a sender on the same CPU reads them and sends.
pub fn floor_separate(opening: &Opening) -> Ends {
    let (sender, receiver) = sockets();
    let shared: Arc<[Slot]> = (0..SHARED_SLOTS).map(|_| Slot::default()).collect();
    let slots = shared.clone();
    as_sender(opening.cpu, opening.realtime, move || send_shared(&slots, &sender));
    (Box::new(SharedFloor { slots: shared, sequence: 0 }), Box::new(FloorPath::new(receiver)))
}

struct SharedFloor {
    slots: Arc<[Slot]>,
    sequence: u64,
}

fn word(slot: &Slot, index: usize) -> &AtomicU64 {
    if index < 7 { &slot[0].0[index + 1] } else { &slot[1].0[index - 7] }
}

impl Source for SharedFloor {
    fn push(&mut self, records: &[Record]) {
        for record in records {
            self.sequence += 1;
            let slot = &self.slots[self.sequence as usize % SHARED_SLOTS];
            for (index, value) in record.iter().enumerate() {
                word(slot, index).store(*value, Ordering::Relaxed);
            }
            // Read by the Acquire in `send_shared`.
            slot[0].0[0].store(self.sequence, Ordering::Release);
        }
    }
}

fn send_shared(slots: &[Slot], sender: &UdpSocket) {
    let (mut sent, mut out) = (0_u64, Vec::new());
    let mut records = Vec::with_capacity(RECORDS_PER_DATAGRAM);
    loop {
        records.clear();
        while records.len() < RECORDS_PER_DATAGRAM {
            let slot = &slots[(sent + 1) as usize % SHARED_SLOTS];
            match slot[0].0[0].load(Ordering::Acquire) {
                next if next == sent + 1 => {}
                // Lapped: what was overwritten is lost, and counted as that.
                later if later > sent + 1 => {
                    sent = later - 1;
                    break;
                }
                _ => break,
            }
            records.push(std::array::from_fn(|index| word(slot, index).load(Ordering::Relaxed)));
            sent += 1;
        }
        match records.is_empty() {
            true => std::hint::spin_loop(),
            false => {
                datagram(&records, &mut out);
                let _ = sender.send(&out);
            }
        }
    }
}

/// The peer's `serve` and `mirror`, everything spinning; `linger` as its option of that name.
pub fn ringfire(opening: &Opening, linger: Option<Duration>) -> Ends {
    let (source, copy) = (opening.folder.join("source"), opening.folder.join("copy"));
    let producer = ringfire::RingProducer::<Record>::create(&source, CAPACITY).expect("a ring of the peer");
    let (udp, group) = (free_port(), free_port());
    let server = ringfire::ReplicaServer::bind(&source, (LOCAL, 0)).expect("the peer's server");
    let at = server.local_addr().expect("bound");
    let server = server.spin(true).linger(linger);
    let server = match opening.transport {
        Transport::Tcp => server,
        Transport::Udp => server.unicast(udp, MTU),
        Transport::Multicast => {
            server.multicast(ringfire::MulticastConfig::new(GROUP, group).interface(LOCAL).mtu(MTU))
        }
    };
    // Its threads take over the CPU, and no priority: one that spins would keep its equals from ever running.
    as_sender(opening.cpu, false, move || {
        let ended = server.run();
        eprintln!("the peer's server ended: {ended:?}");
    });
    let mirror = connect(at, &copy, opening.transport, true).expect("the peer's mirror");
    let reader = ringfire::RingConsumer::<Record>::attach(&copy).expect("a reader of the copy");
    if opening.realtime {
        pinned::realtime_named("ringfire-serve", SENDER_PRIORITY + 5);
        pinned::realtime_named("ringfire-udp", SENDER_PRIORITY);
    }
    (Box::new(RingfireSource(producer)), Box::new(RingfirePath { mirror, reader }))
}

pub fn connect(
    at: SocketAddr,
    copy: &FilePath,
    transport: Transport,
    spin: bool,
) -> Result<ringfire::Mirror, ringfire::RingfireError> {
    let builder = ringfire::Mirror::builder().spin(spin).interface(LOCAL).unicast(transport == Transport::Udp);
    builder.connect(at, copy)
}

pub struct RingfireSource(pub ringfire::RingProducer<Record>);

impl Source for RingfireSource {
    fn push(&mut self, records: &[Record]) {
        self.0.push_batch(records);
    }
}

struct RingfirePath {
    mirror: ringfire::Mirror,
    reader: ringfire::RingConsumer<Record>,
}

impl Path for RingfirePath {
    fn step(&mut self) {
        assert!(self.mirror.step().expect("the peer's mirror"), "the peer's server closed the connection");
    }

    fn receive(&mut self) -> Option<Record> {
        self.reader.try_recv()
    }

    fn repairs(&self) -> u64 {
        self.mirror.naks() + self.mirror.gaps()
    }
}

const _: () = assert!(BURST_MAX >= 50 && SHARED_SLOTS > 8 * BURST_MAX);

/// Our `serve` and `mirror`, stepped. Inline: the producer's thread sends the datagrams, and the server sleeps beside it.
pub fn sluice(opening: &Opening, inline: bool) -> Ends {
    let (source, copy) = (opening.folder.join("source"), opening.folder.join("copy"));
    let settings = RingSettings { capacity: CAPACITY, ..RingSettings::default() };
    let producer = RingProducer::<Record>::create(&source, &settings).expect("a ring");
    let serve = serve_settings(&source, opening.transport);
    let (told, server) = channel();
    as_sender(opening.cpu, opening.realtime && !inline, move || serve_for_ever(&serve, inline, &told));
    let (at, sender) = server.recv().expect("a server");
    let mut mirror = Mirror::new(&mirror_settings(at, &copy, opening.transport)).expect("a mirror");
    while !mirror.status().live {
        mirror.step().expect("a mirror");
    }
    let source: Box<dyn Source> = match sender {
        Some(sender) => Box::new(SluiceSource(producer.with_sender(sender))),
        None => Box::new(SluiceSource(producer)),
    };
    (source, Box::new(SluicePath { mirror, hub: None, reader: reader_of(&copy) }))
}

/// The same, and the copy served again: the reader's ring is a leaf's. Hub and leaf are stepped in turns by one thread.
pub fn sluice_hub(opening: &Opening) -> Ends {
    let (source, path) = sluice(opening, false);
    drop(path);
    let at = SERVED_AT.get().copied().expect("served by the call before");
    let (copy, leaf) = (opening.folder.join("hub"), opening.folder.join("leaf"));
    let mut hub = Mirror::new(&mirror_settings(at, &copy, opening.transport)).expect("a mirror");
    while !hub.status().live {
        hub.step().expect("a mirror");
    }
    let mut server = Server::new(&serve_settings(&copy, opening.transport)).expect("a server");
    let mut mirror = Mirror::new(&mirror_settings(server.address(), &leaf, opening.transport)).expect("a mirror");
    while !mirror.status().live {
        hub.step().expect("a mirror");
        server.step().expect("a server");
        mirror.step().expect("a mirror");
    }
    (source, Box::new(SluicePath { mirror, hub: Some((hub, server)), reader: reader_of(&leaf) }))
}

fn serve_settings(ring: &FilePath, transport: Transport) -> config::Serve {
    let mut serve = config::Serve::new("bench", "", ring.to_path_buf(), SocketAddr::from((LOCAL, 0)));
    match transport {
        Transport::Tcp => {}
        Transport::Udp => serve.udp = Some(free_port()),
        Transport::Multicast => {
            serve.multicast = Some(SocketAddrV4::new(GROUP, free_port()));
            serve.interface = LOCAL;
        }
    }
    serve
}

fn mirror_settings(at: SocketAddr, copy: &FilePath, transport: Transport) -> config::Mirror {
    let mut mirror = config::Mirror::new("bench", "", at.to_string(), copy.to_path_buf());
    mirror.interface = LOCAL;
    mirror.unicast = transport == Transport::Udp;
    mirror
}

fn reader_of(copy: &FilePath) -> RingConsumer<Record> {
    RingConsumer::open(copy, StartAt::Oldest, &ConsumerSettings::default()).expect("a reader of the copy")
}

/// Steps a server of this thread; tells where it listens, and hands out its datagram half if that is asked for.
fn serve_for_ever(serve: &config::Serve, inline: bool, told: &Told) {
    let mut server = Server::new(serve).expect("a server");
    while !server.state().attached {
        server.step().expect("a server");
    }
    let half = inline.then(|| server.inline().expect("the ring again").expect("datagrams"));
    let _ = SERVED_AT.set(server.address());
    told.send((server.address(), half)).expect("somebody asked");
    loop {
        if inline {
            server.wait(INLINE_WAIT).expect("a server");
        }
        server.step().expect("a server");
    }
}

/// Where this process's source is served.
static SERVED_AT: OnceLock<SocketAddr> = OnceLock::new();

/// Where a server listens, and what sends inline.
type Told = std::sync::mpsc::Sender<(SocketAddr, Option<InlineUdp>)>;
/// The server of a producer that sends inline looks after heartbeats and repair.
const INLINE_WAIT: Duration = Duration::from_millis(1);

pub struct SluiceSource<S>(pub RingProducer<Record, S>);

impl<S: InlineSender + Send> Source for SluiceSource<S> {
    fn push(&mut self, records: &[Record]) {
        match records {
            [record] => self.0.push(record),
            records => self.0.push_batch(records),
        };
    }
}

struct SluicePath {
    mirror: Mirror,
    /// What is between the source and the mirror.
    hub: Option<(Mirror, Server)>,
    reader: RingConsumer<Record>,
}

impl Path for SluicePath {
    fn step(&mut self) {
        if let Some((hub, server)) = &mut self.hub {
            hub.step().expect("a mirror");
            server.step().expect("a server");
        }
        self.mirror.step().expect("a mirror");
    }

    fn receive(&mut self) -> Option<Record> {
        self.reader.try_recv()
    }

    fn repairs(&self) -> u64 {
        self.mirror.counters().naks + self.mirror.counters().gaps
    }
}
