//! The same way with nobody spinning: four processes, each asleep until it has something to do. Producer and sender share
//! CPU 0, mirror and reader CPU 1. The floor does it with a futex, a datagram, `poll` and a futex again; the peer's and our
//! `serve` and `mirror` run as their commands do without `--spin`, and readers sleep on the copy's futex.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use sluice::ring::{ConsumerSettings, Received, RingConsumer, RingProducer, RingSettings, StartAt, Wait};
use sluice::sys::futex;
use sluice::sys::shm::{HalfAt, MapOptions, RingFile, Rows, WordAt};

use crate::paced::{self, Load, Record, Source, Tally};
use crate::pinned::{self, ticks};
use crate::ring_paths::{
    CAPACITY, GROUP, HEADER_BYTES, LOCAL, MTU, RECORD_BYTES, RECORDS_PER_DATAGRAM, RingfireSource, SluiceSource,
    Transport, connect, datagram, free_port,
};

/// The program whose commands our `serve` and `mirror` are.
const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");
/// How long files and first records may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two loads, so that a reader has all of one before the next begins.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest sleep of the floor: nothing is lost by it, since every sleeper is woken.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Children that do not outlive the measurement.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs one contender; a report for each load. This process is the producer.
pub fn run(contender: &str, transport: Transport, loads: &[Load], part: &str, folder: &Path) -> Vec<Value> {
    let (first, last) = pinned::two_cpus().expect("the parent looked");
    pinned::pin(first);
    let (source, copy) = (folder.join("source"), folder.join("copy"));
    let mut producer: Box<dyn Source> = match contender {
        "floor-parked" => Box::new(ParkedSource(Shelf::create(&source))),
        "ringfire-parked" => {
            Box::new(RingfireSource(ringfire::RingProducer::create(&source, CAPACITY).expect("a ring of the peer")))
        }
        _ => {
            let settings = RingSettings { capacity: CAPACITY, ..RingSettings::default() };
            Box::new(SluiceSource(RingProducer::create(&source, &settings).expect("a ring")))
        }
    };
    let (port, udp, group) = (free_port().to_string(), free_port().to_string(), free_port().to_string());
    let role = |name: &str, cpu: usize| {
        let mut command = pinned_command(&std::env::current_exe().expect("this program").display().to_string(), cpu);
        if !crate::common::is_test() {
            command.arg("--bench");
        }
        command.args(["role", name, contender, transport.name(), part]);
        command.args([&folder.display().to_string(), &port, &udp, &group]);
        command
    };
    let mut children = Children(Vec::new());
    let mut start = |command: &mut Command| children.0.push(command.spawn().expect("a child"));
    match contender {
        "sluice-parked" => {
            start(&mut serve_command(&source, transport, first, [&port, &udp, &group]));
            start(&mut mirror_command(&copy, transport, last, &port));
        }
        _ => {
            start(&mut role("mirror", last));
            start(&mut role("serve", first));
        }
    }
    let mut reader = role("reader", last).stdout(Stdio::piped()).spawn().expect("a child");
    let lines = BufReader::new(reader.stdout.take().expect("piped")).lines();
    children.0.push(reader);
    let (told, reports) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if told.send(serde_json::from_str::<Value>(&line)).is_err() {
                return;
            }
        }
    });
    produce(producer.as_mut(), loads, &reports)
}

/// Pushes all loads; what the reader said of them.
fn produce(
    producer: &mut dyn Source,
    loads: &[Load],
    reports: &std::sync::mpsc::Receiver<serde_json::Result<Value>>,
) -> Vec<Value> {
    let end = std::time::Instant::now() + PATIENCE;
    while reports.try_recv().is_err() {
        assert!(std::time::Instant::now() < end, "no record came through");
        paced::push_warm(producer);
        std::thread::sleep(Duration::from_millis(1));
    }
    for (load, index) in loads.iter().zip(0..) {
        paced::push_load(producer, load, index);
        std::thread::sleep(PAUSE);
    }
    // A record of a load that is none ends the last one.
    paced::push_load(producer, &paced::LAST, loads.len() as u64);
    let said = loads.iter().map_while(|_| reports.recv_timeout(PATIENCE).ok()?.ok());
    said.collect()
}

fn pinned_command(program: &str, cpu: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), "setpriv", "--pdeathsig", "KILL", "--", program]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn serve_command(source: &Path, transport: Transport, cpu: usize, [port, udp, group]: [&str; 3]) -> Command {
    let mut command = pinned_command(SLUICE, cpu);
    command.args(["ring", "serve"]).arg(source).args(["--bind", &format!("{LOCAL}:{port}")]);
    match transport {
        Transport::Tcp => {}
        Transport::Udp => drop(command.args(["--udp", udp])),
        Transport::Multicast => {
            command.args(["--multicast", &format!("{GROUP}:{group}"), "--iface", &LOCAL.to_string()]);
        }
    }
    command.args(["--core", &cpu.to_string()]);
    command
}

fn mirror_command(copy: &Path, transport: Transport, cpu: usize, port: &str) -> Command {
    let mut command = pinned_command(SLUICE, cpu);
    command.args(["ring", "mirror", &format!("{LOCAL}:{port}")]).arg(copy).args(["--iface", &LOCAL.to_string()]);
    if transport == Transport::Udp {
        command.arg("--unicast");
    }
    command.args(["--core", &cpu.to_string()]);
    command
}

/// What a child was told to be: `role NAME CONTENDER TRANSPORT PART FOLDER PORT UDP GROUP`.
pub fn role(words: &[String], loads: &[Load]) {
    let [_, name, contender, transport, _, folder, port, udp, group] = words else { panic!("{words:?}") };
    let folder = Path::new(folder);
    let (source, copy) = (folder.join("source"), folder.join("copy"));
    let transport = Transport::of(transport).expect("a transport");
    let number = |text: &String| text.parse::<u16>().expect("a port");
    match (name.as_str(), contender.as_str()) {
        ("serve", "floor-parked") => floor_serve(&Shelf::open(&source), number(udp)),
        ("mirror", "floor-parked") => floor_mirror(&Shelf::create(&copy), number(udp)),
        ("serve", _) => ringfire_serve(&source, transport, number(port), number(udp), number(group)),
        ("mirror", _) => ringfire_mirror(&copy, transport, number(port)),
        (_, "floor-parked") => read(loads, floor_reader(&copy)),
        (_, "ringfire-parked") => read(loads, ringfire_reader(&copy)),
        (_, _) => read(loads, sluice_reader(&copy)),
    }
}

/// Waits for records and reports each load when it is whole, or when one of a later load has come.
fn read(loads: &[Load], mut next: impl FnMut() -> Record) {
    let ns_per_tick = pinned::ns_per_tick();
    next();
    println!("\"warm\"");
    let mut pending = None;
    for (load, index) in loads.iter().zip(0..) {
        let mut tally = Tally::new(load, index);
        pending.take().iter().for_each(|(record, now)| tally.add(record, *now));
        while !tally.is_whole() {
            let record = next();
            let now = ticks();
            if tally.is_later(&record) {
                pending = Some((record, now));
                break;
            }
            tally.add(&record, now);
        }
        println!("{}", tally.report(ns_per_tick, 0));
    }
    // The producer ends this process.
    loop {
        std::thread::sleep(PATIENCE);
    }
}

fn await_file(path: &Path) {
    let end = std::time::Instant::now() + PATIENCE;
    while std::fs::metadata(path).map_or(0, |about| about.len()) == 0 {
        assert!(std::time::Instant::now() < end, "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn sluice_reader(copy: &Path) -> impl FnMut() -> Record {
    let mut reader = retried(|| RingConsumer::<Record>::open(copy, StartAt::Latest, &ConsumerSettings::default()).ok());
    move || loop {
        let received = reader.recv(Wait::default(), Duration::from_secs(1)).expect("the copy");
        if let Received::Record { record, .. } = received {
            return record;
        }
    }
}

fn ringfire_reader(copy: &Path) -> impl FnMut() -> Record {
    let mut reader = retried(|| ringfire::RingConsumer::<Record>::attach(copy).ok());
    let mut wait = ringfire::FutexWait::default();
    move || reader.recv_blocking(&mut wait)
}

/// Until a file is there and is a ring.
fn retried<R>(mut open: impl FnMut() -> Option<R>) -> R {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(opened) = open() {
            return opened;
        }
        assert!(std::time::Instant::now() < end, "the copy does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ringfire_serve(source: &Path, transport: Transport, port: u16, udp: u16, group: u16) {
    let server = ringfire::ReplicaServer::bind(source, (LOCAL, port)).expect("the peer's server");
    let server = match transport {
        Transport::Tcp => server,
        Transport::Udp => server.unicast(udp, MTU),
        Transport::Multicast => {
            server.multicast(ringfire::MulticastConfig::new(GROUP, group).interface(LOCAL).mtu(MTU))
        }
    };
    server.run().expect("the peer's server");
}

fn ringfire_mirror(copy: &Path, transport: Transport, port: u16) {
    let mut mirror = retried(|| connect((LOCAL, port).into(), copy, transport, false).ok());
    mirror.run().expect("the peer's mirror");
}

/// The floor's ring: head, futex word, sleepers, slots of nine words.
struct Shelf {
    head: WordAt,
    futex: HalfAt,
    sleepers: HalfAt,
    slots: Rows,
}

/// Head, futex word and sleepers each have a line of their own.
const SHELF_HEADER_BYTES: usize = 192;
const SHELF_SLOT_WORDS: usize = 16;
const SHELF_BYTES: u64 = SHELF_HEADER_BYTES as u64 + CAPACITY * SHELF_SLOT_WORDS as u64 * 8;
/// Never written: a shelf lies in the run's own folder, where nothing is to be replaced.
const SHELF_MAGIC: u64 = 0x5348_454c_4621_0001;

impl Shelf {
    fn create(path: &Path) -> Shelf {
        Shelf::of(RingFile::create(path, SHELF_BYTES, 0o600, SHELF_MAGIC).expect("a file"))
    }

    fn open(path: &Path) -> Shelf {
        await_file(path);
        Shelf::of(RingFile::open(path, true).expect("a file"))
    }

    fn of(file: RingFile) -> Shelf {
        let mapping = file.map(&MapOptions { writable: true, prefault: true, ..MapOptions::default() });
        let mapping = mapping.expect("memory");
        // The lock is held as long as the process lives.
        std::mem::forget(file);
        Shelf {
            head: mapping.word(0),
            futex: mapping.half(64),
            sleepers: mapping.half(128),
            slots: mapping.rows(SHELF_HEADER_BYTES, CAPACITY, SHELF_SLOT_WORDS),
        }
    }

    fn put(&self, records: &[Record]) {
        let mut sequence = self.head.load(Ordering::Relaxed);
        for record in records {
            sequence += 1;
            for (word, value) in self.slots.row(sequence).iter().zip(record) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        // Read by the loads in `take`; ordered against `sleepers` for the sleeper's sake.
        self.head.store(sequence, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.futex.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&self.futex);
        }
    }

    /// Sleeps until the head has passed `taken`; the head.
    fn wait(&self, taken: u64) -> u64 {
        loop {
            let head = self.head.load(Ordering::Acquire);
            if head > taken {
                return head;
            }
            let value = self.futex.load(Ordering::SeqCst);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if self.head.load(Ordering::SeqCst) <= taken {
                futex::wait(&self.futex, value, SLEEP_MAX);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn record(&self, sequence: u64) -> Record {
        let row = self.slots.row(sequence);
        std::array::from_fn(|index| row[index].load(Ordering::Relaxed))
    }
}

struct ParkedSource(Shelf);

impl Source for ParkedSource {
    fn push(&mut self, records: &[Record]) {
        self.0.put(records);
    }
}

fn floor_serve(shelf: &Shelf, port: u16) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    socket.connect((LOCAL, port)).expect("connected");
    let (mut taken, mut out) = (shelf.head.load(Ordering::Acquire), Vec::new());
    loop {
        let head = shelf.wait(taken);
        while taken < head {
            let count = (head - taken).min(RECORDS_PER_DATAGRAM as u64);
            let records: Vec<Record> = (1..=count).map(|offset| shelf.record(taken + offset)).collect();
            datagram(&records, &mut out);
            // Refused while nobody listens yet.
            let _ = socket.send(&out);
            taken += count;
        }
    }
}

fn floor_mirror(shelf: &Shelf, port: u16) {
    let socket = UdpSocket::bind((LOCAL, port)).expect("a socket");
    socket.set_nonblocking(true).expect("non-blocking");
    let mut buffer = [0; MTU];
    let mut records = Vec::new();
    loop {
        let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        while let Ok(bytes) = socket.recv(&mut buffer) {
            records.clear();
            for record in buffer[HEADER_BYTES.min(bytes)..bytes].as_chunks::<RECORD_BYTES>().0 {
                let words = record.as_chunks::<8>().0;
                records.push(std::array::from_fn(|index| u64::from_le_bytes(words[index])));
            }
            shelf.put(&records);
        }
    }
}

fn floor_reader(copy: &Path) -> impl FnMut() -> Record {
    let shelf = Shelf::open(copy);
    let (mut taken, mut head) = (0, 0);
    move || {
        if taken == head {
            head = shelf.wait(taken);
        }
        taken += 1;
        shelf.record(taken)
    }
}
