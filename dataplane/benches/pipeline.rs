//! The real workers on one core, fed from memory: CPU time per packet of queue worker, arbiter worker and store worker
//! together, and what a store worker alone brings into preallocated tmpfs.
//!
//! `pipeline/*` report CPU time of the whole process (the core's thread, the kernel's io workers for it, the files'
//! thread), so nothing that a packet costs is left out; `store_worker/*` report wall time, or (`core_cpu`) CPU
//! time of the core's thread. Packets are those of a real
//! day, each with its own number of messages; without the data, packets of that size made here.

// A measurement may read the clock; the product reads it in `sys::clock` alone.
#![allow(clippy::disallowed_methods)]

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nix::time::{ClockId, clock_gettime};
use sluice::capture::plan::{CapturePlan, PlannedQueue, QueueCounts, plan};
use sluice::capture::queue_worker::FrameQueue;
use sluice::capture::source::file::FileSource;
use sluice::capture::stats::ArbiterCounter;
use sluice::config::{self, Config, Idle};
use sluice::feed::handoff::{Handoff, MessageSpan};
use sluice::runtime::launch::{CorePlan, Launched, launch};
use sluice::runtime::link::{Doorbell, LinkReceiver, LinkSender, link};
use sluice::runtime::worker::{Turn, Worker};
use sluice::store::StampSource;
use sluice::store::plan::{StoreParts, StoreView, store_worker};
use sluice::sys::cpu;
use sluice::sys::frames::{Areas, FrameArea, FramePool, FrameToken};
use sluice::units::{AreaId, Side, StreamId};
use sluice::wire::block::RECORD_HEADER_BYTES;
use sluice::wire::iextp;
use sluice::wire::packet::{UdpHeader, VLAN_NONE, fast};
use sluice::wire::segment::{Framing, Protocol, SessionId, SessionKey};

/// Frames of the memory source: a UMEM's default ring, and enough that no stage waits for a frame.
const FRAMES: u32 = 4_096;
/// Room for the longest frame of the day, in cache lines of its own.
const FRAME_BYTES: u32 = 2_048;
/// Every so-manieth packet of the day is held as a template: the day's mixture (its first packets are a directory with
/// ten times the messages of the rest), and few enough to stay near the core, as what a NIC has just written does.
const TEMPLATE_STEP: usize = 7;
/// Templates made where the day is missing.
const TEMPLATES_MADE: usize = 8_192;
/// Nanoseconds between two packets' send times.
const SEND_STEP_NS: i64 = 1_000;
/// Where the feed's sides are sent to.
const GROUPS: [Ipv4Addr; 2] = [Ipv4Addr::new(233, 215, 21, 4), Ipv4Addr::new(233, 215, 21, 132)];
const PORT: u16 = 10_378;
/// First byte of the send time in an IEX-TP header.
const SEND_AT: usize = 32;
/// Bytes of a day's average record: its header, and 37 of a message.
const MESSAGE_RECORD_BYTES: u64 = RECORD_HEADER_BYTES as u64 + 37;
/// Longest wait for a batch that should take milliseconds: a hang is a failure, not a figure.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of records on their way that make a source wait for the store: three quarters of its blocks. A NIC would not
/// wait; a figure, though, must be of messages that are stored.
const OUTSTANDING_BYTES: u64 = 12 << 20;

/// `cargo bench` says `--bench`; anything else is a test run, which is small.
fn is_test() -> bool {
    !std::env::args().any(|arg| arg == "--bench") || std::env::args().any(|arg| arg == "--test")
}

/// Packets of one iteration.
fn packets_per_iteration() -> u64 {
    if is_test() { 2_000 } else { 100_000 }
}

/// CPU time of all threads of this process, the kernel's io workers among them.
fn process_cpu() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every kernel has it"))
}

/// CPU time of the calling thread, in user space and in the kernel.
fn thread_cpu() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every kernel has it"))
}

/// A place in memory, so that the disk is not what is measured.
fn memory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.expect("a folder")
}

/// The CPU to measure on: the last one allowed, since interrupts tend to the first.
fn measured_cpu() -> usize {
    *cpu::allowed().last().expect("this process runs somewhere")
}

/// A packet's shape.
struct Template {
    frame: Vec<u8>,
    count: u64,
    block_bytes: u64,
}

fn templates() -> Vec<Template> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let data = std::env::var_os("SLUICE_DATA").map_or(root, PathBuf::from);
    let path = data.join("iex/20180127_IEXTP1_TOPS1.6.pcap.gz");
    let mut templates = Vec::new();
    if let Ok(mut source) = FileSource::open(path.to_str().expect("UTF-8")) {
        let mut seen = 0;
        while let Some(packet) = source.next().expect("readable") {
            seen += 1;
            if seen % TEMPLATE_STEP != 0 {
                continue;
            }
            let view = fast(packet.data).expect("UDP");
            templates.push(template(view.payload));
        }
    } else {
        templates.extend((0..TEMPLATES_MADE).map(|at| template(&made(1 + (at % 10 > 2) as u16))));
    }
    templates
}

fn made(count: u16) -> Vec<u8> {
    let mut block = Vec::new();
    for _ in 0..count {
        iextp::write_message(&[b'Q'; 42], &mut block);
    }
    let header = iextp::Header {
        version: iextp::VERSION,
        protocol_id: iextp::TOPS_1_6,
        payload_length: block.len() as u16,
        count,
        ..Default::default()
    };
    [&header.encode()[..], &block].concat()
}

fn template(payload: &[u8]) -> Template {
    let header = UdpHeader {
        src_mac: [2, 0, 0, 0, 0, 1],
        vlan: VLAN_NONE,
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: GROUPS[0],
        src_port: 40_000,
        dst_port: PORT,
        identification: 0,
    };
    let segment = iextp::parse(payload).expect("a segment");
    let mut frame = Vec::new();
    header.write_frame(payload, &mut frame);
    Template { frame, count: u64::from(segment.count), block_bytes: segment.block.len() as u64 }
}

/// Orders from the measuring thread to a source on the core, and its answers.
struct Orders {
    packets: Sender<u64>,
    done: Receiver<Duration>,
    doorbell: Arc<Doorbell>,
}

impl Orders {
    fn new() -> (Orders, Source) {
        let doorbell = Doorbell::new().expect("an eventfd");
        let (packets, orders) = channel();
        let (done, answers) = channel();
        let source =
            Source { orders, done, begun: Duration::ZERO, left: 0, out: 0, sent: 0, pool: None, store: Arc::default() };
        (Orders { packets, done: answers, doorbell }, source)
    }

    /// Lets `packets` packets through and waits until every frame is home again. CPU time of the core's thread.
    fn run(&self, packets: u64) -> Duration {
        self.packets.send(packets).expect("the source lives");
        self.doorbell.event.signal();
        self.done.recv_timeout(PATIENCE).expect("the frames come home")
    }
}

/// What every source from memory has: its frames, and the packets still to send.
struct Source {
    orders: Receiver<u64>,
    done: Sender<Duration>,
    begun: Duration,
    left: u64,
    out: u64,
    sent: u64,
    pool: Option<FramePool>,
    store: StoreCell,
}

/// The store behind a source, once it is known.
type StoreCell = Arc<OnceLock<Arc<StoreView>>>;

impl Source {
    fn wanted(&mut self) -> u64 {
        if self.left == 0 {
            self.left = self.orders.try_recv().unwrap_or(0);
            if self.left > 0 {
                self.begun = thread_cpu();
            }
        }
        self.left
    }

    /// Whether the store has kept up with `records` records of so many bytes each.
    fn may_go_on(&self, records: u64, record_bytes: u64) -> bool {
        let stored = self.store.get().map_or(records, |store| store.stored());
        records.saturating_sub(stored) * record_bytes < OUTSTANDING_BYTES
    }

    /// Writes one frame; `None` while all are out.
    fn mint(&mut self, write: impl FnOnce(&mut [u8]) -> (usize, i64)) -> Option<FrameToken> {
        let mut filling = self.pool.as_mut().expect("open").take()?;
        let (bytes, capture_ns) = write(filling.bytes());
        let token = filling.into_token(bytes, capture_ns);
        (self.left, self.out, self.sent) = (self.left - 1, self.out + 1, self.sent + 1);
        Some(token)
    }

    fn home(&mut self, token: FrameToken) {
        self.pool.as_mut().expect("open").give_back(token);
        self.out -= 1;
        if self.left == 0 && self.out == 0 {
            let _ = self.done.send(thread_cpu() - self.begun);
        }
    }
}

/// A receive queue in memory: real packets, renumbered so that the day never ends.
struct MemoryQueue {
    source: Source,
    templates: Arc<[Template]>,
    sides: u64,
    first: u64,
    offset: u64,
}

impl FrameQueue for MemoryQueue {
    fn open(&mut self) -> Result<Vec<RawFd>, String> {
        self.source.pool = Some(FramePool::new(AreaId(0), FRAMES, FRAME_BYTES));
        Ok(Vec::new())
    }

    fn area(&self) -> FrameArea {
        self.source.pool.as_ref().expect("open").area()
    }

    fn receive(&mut self, out: &mut Vec<FrameToken>, max: usize) -> usize {
        let batch = self.source.wanted().min(max as u64);
        if !self.source.may_go_on(self.first - 1, MESSAGE_RECORD_BYTES) {
            return 0;
        }
        for received in 0..batch {
            let packet = self.source.sent / self.sides;
            let side = (self.source.sent % self.sides) as usize;
            let template = &self.templates[packet as usize % self.templates.len()];
            let (first, offset) = (self.first, self.offset);
            let token = self.source.mint(|bytes| {
                let bytes = &mut bytes[..template.frame.len()];
                bytes.copy_from_slice(&template.frame);
                bytes[30..34].copy_from_slice(&GROUPS[side].octets());
                let send_ns = 1_700_000_000_000_000_000 + packet as i64 * SEND_STEP_NS;
                iextp::rewrite(&mut bytes[42..], first, offset);
                bytes[42 + SEND_AT..][..8].copy_from_slice(&send_ns.to_le_bytes());
                (bytes.len(), send_ns + 500)
            });
            let Some(token) = token else { return received as usize };
            out.push(token);
            if side as u64 == self.sides - 1 {
                self.first += template.count;
                self.offset += template.block_bytes;
            }
        }
        batch as usize
    }

    fn recycle(&mut self, token: FrameToken) {
        self.source.home(token);
    }

    fn refill(&mut self) {}

    fn losses(&mut self) -> [u64; 4] {
        [0; 4]
    }

    fn tokens_max(&self) -> u32 {
        FRAMES
    }
}

fn configuration(sides: usize, store: Option<&Path>) -> Config {
    let names = ["A", "B"];
    let mut text = format!(
        "[[core]]\nname = \"core\"\ncpu = {}\n[[interface]]\nname = \"memory\"\ncores = [\"core\"]\n\
         [[feed]]\nname = \"bench\"\nprotocol = \"iex-tp\"\ncore = \"core\"\n",
        measured_cpu()
    );
    if store.is_some() {
        text += "store = \"bench\"\n";
    }
    for side in 0..sides {
        text += &format!(
            "[[feed.side]]\nname = \"{}\"\ninterface = \"memory\"\ngroups = [\"{}:{PORT}\"]\n",
            names[side], GROUPS[side]
        );
    }
    if let Some(path) = store {
        text += &store_section(path);
    }
    config::parse(&text).expect("a configuration")
}

/// A store in memory. So many blocks that a write that is late costs none; a bound, or memory would fill.
fn store_section(path: &Path) -> String {
    let (segment, retain) = if is_test() { ("8MiB", "32MiB") } else { ("256MiB", "1GiB") };
    format!(
        "[[store]]\nname = \"bench\"\npath = {path:?}\ncore = \"core\"\ndirect = false\nsegment = \"{segment}\"\n\
         retain = \"{retain}\"\nblocks_in_flight = 64\n"
    )
}

/// Workers under way on one pinned core.
struct Rig {
    orders: Orders,
    launched: Option<Launched>,
    store: Option<Arc<StoreView>>,
    capture: Option<CapturePlan>,
    _folder: tempfile::TempDir,
}

impl Rig {
    /// The whole pipeline, or without its store.
    fn pipeline(templates: &Arc<[Template]>, sides: usize, with_store: bool) -> Rig {
        let folder = memory();
        let config = configuration(sides, with_store.then(|| folder.path().join("store")).as_deref());
        let (orders, source) = Orders::new();
        let behind = source.store.clone();
        let mut queue =
            Some(MemoryQueue { source, templates: templates.clone(), sides: sides as u64, first: 1, offset: 0 });
        let doorbells = [("core".to_string(), orders.doorbell.clone())].into();
        let counts: QueueCounts = [("memory".to_string(), 1)].into();
        let open = |_: &PlannedQueue| Ok(Box::new(queue.take().expect("one queue")) as Box<dyn FrameQueue>);
        let mut planned = plan(&config, &counts, &doorbells, open, |_| None).expect("a plan");
        let mut workers: Vec<Box<dyn Worker>> = planned.workers.drain(..).map(|(_, worker)| worker).collect();
        let store = planned.stores.pop().map(|end| {
            let parts = StoreParts {
                settings: config.stores[0].clone(),
                stamp_source: StampSource::Software,
                inputs: end.inputs,
                feeds: end.feeds,
                streams_max: config.feeds[0].streams_max,
                returns: end.returns,
                areas: planned.areas.clone(),
                doorbell: orders.doorbell.clone(),
            };
            let (worker, view) = store_worker(parts).expect("a store");
            workers.push(worker);
            let _ = behind.set(view.clone());
            view
        });
        let launched = Rig::launch(&orders, workers, &[]);
        Rig { orders, launched: Some(launched), store, capture: Some(planned), _folder: folder }
    }

    /// A store worker behind a source of ready frames.
    fn store(kind: Kind, body: usize, io_cpus: &[usize]) -> Rig {
        let folder = memory();
        let config = config::parse(&format!(
            "[[core]]\nname = \"core\"\ncpu = 0\n{}",
            store_section(&folder.path().join("store"))
        ))
        .expect("a configuration");
        let (orders, source) = Orders::new();
        let behind = source.store.clone();
        let (to_store, input) = link(FRAMES as usize, &orders.doorbell);
        let (home, returns) = link(FRAMES as usize, &orders.doorbell);
        let areas = Areas::new(1);
        let feeder = Feeder { source, areas: areas.clone(), to_store, returns, kind, body, begun: false };
        let parts = StoreParts {
            settings: config.stores[0].clone(),
            stamp_source: StampSource::Software,
            inputs: vec![input],
            feeds: vec!["bench".into()],
            streams_max: 4,
            returns: vec![Some(home)],
            areas,
            doorbell: orders.doorbell.clone(),
        };
        let (worker, view) = store_worker(parts).expect("a store");
        let _ = behind.set(view.clone());
        let launched = Rig::launch(&orders, vec![Box::new(feeder), worker], io_cpus);
        Rig { orders, launched: Some(launched), store: Some(view), capture: None, _folder: folder }
    }

    fn launch(orders: &Orders, workers: Vec<Box<dyn Worker>>, io_cpus: &[usize]) -> Launched {
        let core = CorePlan {
            name: "core".into(),
            cpu: Some(measured_cpu()),
            idle: Idle::Park,
            io_cpus: io_cpus.to_vec(),
            doorbell: orders.doorbell.clone(),
            workers,
        };
        let launched = launch(vec![core]).expect("a core");
        launched.go();
        // The first segment, the first block, the streams' beginnings.
        orders.run(1_000);
        launched
    }

    /// Drains, and refuses the figure if anything was lost on the way.
    fn finish(mut self) {
        let launched = self.launched.take().expect("running");
        assert_eq!(launched.fault(), None);
        launched.stop(PATIENCE).expect("every worker drains");
        if let Some(store) = &self.store {
            let status = store.status();
            assert_eq!(status["lost"], 0, "a figure with losses is none: {status}");
            assert_eq!(status["stored"], status["appended"], "{status}");
        }
        for feed in self.capture.iter().flat_map(|planned| &planned.feeds) {
            let lost = [ArbiterCounter::LostLinkFull, ArbiterCounter::LostCopyPool, ArbiterCounter::LostRaw];
            assert_eq!(lost.map(|counter| feed.counters.get(counter)), [0; 3]);
        }
    }
}

/// What the feeder gives the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One message in a frame.
    Message,
    /// The frame's own bytes.
    Raw,
}

/// The arbiter's place, without an arbiter: frames that have been written once.
struct Feeder {
    source: Source,
    areas: Areas,
    to_store: LinkSender<Handoff<FrameToken>>,
    returns: LinkReceiver<FrameToken>,
    kind: Kind,
    body: usize,
    begun: bool,
}

impl Feeder {
    fn begin(&mut self) {
        let session = SessionId::from_u32(7);
        let key = SessionKey { protocol: Protocol::IexTp, protocol_id: iextp::TOPS_1_6, channel: 1, session };
        let begin = Handoff::StreamBegin { stream: StreamId(0), key, run: 0, base: 1 };
        assert!(self.to_store.push(begin).is_ok(), "the link is empty");
        self.begun = true;
    }

    fn item(&self, token: FrameToken) -> Handoff<FrameToken> {
        let span = MessageSpan {
            stream: StreamId(0),
            first: self.source.sent,
            count: 1,
            offset: 0,
            bytes: token.bytes,
            framing: Framing::U16Le,
            late_fill: false,
            send_ns: Some(token.capture_ns - 500),
        };
        let messages = (self.kind == Kind::Message).then_some(span);
        Handoff::Frame { token, side: Side::A, messages, raw: self.kind == Kind::Raw }
    }
}

impl Worker for Feeder {
    fn name(&self) -> &str {
        "feeder"
    }

    fn stage(&self) -> u8 {
        1
    }

    fn start(&mut self, _turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        let mut pool = FramePool::new(AreaId(0), FRAMES, FRAME_BYTES);
        let mut written = Vec::new();
        while let Some(mut filling) = pool.take() {
            filling.bytes().fill(7);
            filling.bytes()[..2].copy_from_slice(&(self.body as u16).to_le_bytes());
            written.push(filling.into_token(0, 0));
        }
        written.into_iter().for_each(|token| pool.give_back(token));
        self.areas.set(AreaId(0), pool.area());
        self.source.pool = Some(pool);
        Ok(Vec::new())
    }

    fn turn(&mut self, _turn: &mut Turn<'_>) -> usize {
        let mut work = 0;
        while let Some(token) = self.returns.pop() {
            self.source.home(token);
            work += 1;
        }
        if !self.begun {
            self.begin();
        }
        let bytes = if self.kind == Kind::Message { self.body + 2 } else { self.body };
        if !self.source.may_go_on(self.source.sent, (RECORD_HEADER_BYTES + self.body) as u64) {
            return work;
        }
        for _ in 0..self.source.wanted().min(128) {
            let capture_ns = 1_700_000_000_000_000_000 + self.source.sent as i64 * SEND_STEP_NS;
            let Some(token) = self.source.mint(|_| (bytes, capture_ns)) else { break };
            let item = self.item(token);
            assert!(self.to_store.push(item).is_ok(), "the link is as large as the pool");
            work += 1;
        }
        self.to_store.flush();
        work
    }

    fn stop(&mut self, _turn: &mut Turn<'_>) {}

    fn drained(&self) -> bool {
        true
    }
}

fn pipeline(criterion: &mut Criterion) {
    let templates: Arc<[Template]> = templates().into();
    let packets = packets_per_iteration();
    let (messages, bytes) = templates.iter().fold((0, 0), |sum, t| (sum.0 + t.count, sum.1 + t.frame.len()));
    let number = templates.len() as f64;
    println!("packets of {:.2} messages and {:.0} bytes", messages as f64 / number, bytes as f64 / number);
    let mut group = criterion.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(packets)).sample_size(20).measurement_time(Duration::from_secs(6));
    // What the stand-in for the kernel costs: it is contained in the others.
    let (orders, source) = Orders::new();
    let mut queue = MemoryQueue { source, templates: templates.clone(), sides: 2, first: 1, offset: 0 };
    queue.open().expect("memory");
    let mut batch = Vec::with_capacity(64);
    group.bench_function("source_alone", |bencher| {
        bencher.iter_custom(|iterations| {
            let before = process_cpu();
            orders.packets.send(packets * iterations).expect("open");
            while queue.receive(&mut batch, 64) > 0 {
                batch.drain(..).for_each(|token| queue.recycle(token));
            }
            process_cpu() - before
        });
    });
    for (name, sides, store) in [
        ("rx_arbiter/two_sides", 2, false),
        ("rx_arbiter_store/one_side", 1, true),
        ("rx_arbiter_store/two_sides", 2, true),
    ] {
        let mut rig = None;
        group.bench_function(name, |bencher| {
            let rig = rig.get_or_insert_with(|| Rig::pipeline(&templates, sides, store));
            bencher.iter_custom(|iterations| {
                let before = process_cpu();
                rig.orders.run(packets * iterations);
                process_cpu() - before
            });
        });
        rig.into_iter().for_each(Rig::finish);
    }
    group.finish();
}

fn store(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("store_worker");
    group.sample_size(20).measurement_time(Duration::from_secs(4));
    let everywhere = cpu::allowed();
    let others: Vec<usize> = everywhere.iter().copied().filter(|&cpu| cpu != measured_cpu()).collect();
    for (kind, kind_name) in [(Kind::Message, "message"), (Kind::Raw, "raw")] {
        for body in [149, 1024] {
            // On one CPU: the core, the files' thread and the kernel's workers share it. Else the latter two have others;
            // then also by the CPU time of the core's thread alone.
            for (one_cpu, by_core, cpu_name) in
                [(true, false, "one_cpu"), (false, false, "own_core"), (false, true, "core_cpu")]
            {
                if kind == Kind::Raw && cpu_name != "own_core" {
                    continue;
                }
                let mut rig = None;
                let records = if is_test() { 1_000 } else { (64 << 20) / body as u64 };
                group.throughput(Throughput::Bytes(records * body as u64));
                group.bench_function(format!("{kind_name}/{body}/{cpu_name}"), |bencher| {
                    let rig = rig.get_or_insert_with(|| {
                        cpu::allow(&if one_cpu { vec![measured_cpu()] } else { everywhere.clone() }).expect("allowed");
                        Rig::store(kind, body, if one_cpu { &[] } else { &others })
                    });
                    bencher.iter_custom(|iterations| {
                        let started = Instant::now();
                        let core = rig.orders.run(records * iterations);
                        if by_core { core } else { started.elapsed() }
                    });
                });
                rig.into_iter().for_each(Rig::finish);
                cpu::allow(&everywhere).expect("as before");
            }
        }
    }
    group.finish();
}

criterion_group!(benches, pipeline, store);
criterion_main!(benches);
