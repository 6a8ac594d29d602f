//! The whole pipeline in one process, without root: memory queues or files, arbiter, store, on threads of their own;
//! and what is read again from the store that it wrote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use sluice::capture::arbiter_worker::{ArbiterParts, ArbiterWorker, ReportDesk, TimeSource};
use sluice::capture::conservation::residue;
use sluice::capture::items::RxItem;
use sluice::capture::plan::{CapturePlan, FeedView, QueueCounts, QueueView, SideView, plan};
use sluice::capture::queue_worker::{Destination, FeedPort, FrameQueue, QueueWorker};
use sluice::capture::status::{CaptureStatus, StoreBook, XdpQueue, XdpReader};
use sluice::config::{self, Config, FeedProtocol, Idle, SourceKind};
use sluice::feed::arbiter::{Arbiter, ArbiterReport, ArbiterSettings};
use sluice::feed::generate::{Generator, Settings};
use sluice::feed::handoff::Handoff;
use sluice::feed::split::{SideSplit, Splitter, Truth};
use sluice::runtime::launch::{CorePlan, Launched, launch};
use sluice::runtime::link::{Doorbell, LinkReceiver, LinkSender, link};
use sluice::runtime::worker::{Turn, Worker};
use sluice::store::plan::{StoreParts, StoreView, store_books, store_worker};
use sluice::store::{FLAG_LATE_FILL, Reader, RecordKind, Select, StampSource, Step, verify};
use sluice::sync::counters::counters;
use sluice::sync::metrics::Source;
use sluice::sys::clock;
use sluice::sys::frames::{Areas, FrameToken};
use sluice::units::{AreaId, Side};
use sluice::wire::packet::{self, LinkType};
use sluice::wire::pcap::PcapWriter;
use sluice::wire::{iextp, moldudp64};

use super::memory_queue::{Facts, Faults, MemoryQueue, Scripted};

/// Bound of every wait: far beyond what any of them takes on a busy machine.
const WAIT_NS_MAX: i64 = 60_000_000_000;

/// A message's place: run (in order of appearance), sequence.
pub type Place = (u32, u64);

/// Two sides of one generated session, and what is true of them.
pub struct Sides {
    /// A, B.
    pub packets: [Vec<Scripted>; 2],
    pub truth: Truth,
    /// Every message that was published.
    pub bodies: BTreeMap<Place, Vec<u8>>,
}

/// Generates a session and splits it.
pub fn sides(settings: &Settings, seed: u64, split: &[SideSplit; 2]) -> Sides {
    let mut generator = Generator::new(settings.clone()).expect("good settings");
    let mut out = Splitting::new(seed, split);
    while let Some(packet) = generator.next_packet() {
        let view = packet::udp(packet.frame, LinkType::Ethernet).expect("a UDP frame");
        let segment = iextp::parse(view.payload).expect("a segment");
        out.add(packet.run, packet.capture_ns, packet.frame, &segment);
    }
    out.done()
}

/// The same for ready-made MoldUDP64 frames.
pub fn mold_sides(frames: &[(i64, Vec<u8>)], seed: u64, split: &[SideSplit; 2]) -> Sides {
    let mut out = Splitting::new(seed, split);
    for (capture_ns, frame) in frames {
        let view = packet::udp(frame, LinkType::Ethernet).expect("a UDP frame");
        let segment = moldudp64::parse(view.payload).expect("a segment");
        out.add(0, *capture_ns, frame, &segment);
    }
    out.done()
}

struct Splitting {
    splitter: Splitter,
    packets: [Vec<Scripted>; 2],
    bodies: BTreeMap<Place, Vec<u8>>,
}

impl Splitting {
    fn new(seed: u64, split: &[SideSplit; 2]) -> Splitting {
        eprintln!("seed {seed}");
        Splitting { splitter: Splitter::new(seed, split), packets: [Vec::new(), Vec::new()], bodies: BTreeMap::new() }
    }

    fn add(&mut self, run: u32, capture_ns: i64, frame: &[u8], segment: &sluice::wire::segment::Segment<'_>) {
        let places = (segment.first..).map(|sequence| (run, sequence));
        self.bodies.extend(places.zip(segment.messages().map(<[u8]>::to_vec)));
        let mut copies = [[None; 2]; 2];
        self.splitter.split(capture_ns, Some(segment), &mut copies);
        let frame: Arc<[u8]> = frame.into();
        for (packets, copies) in self.packets.iter_mut().zip(copies) {
            let stamps = copies.into_iter().flatten();
            packets.extend(stamps.map(|capture_ns| Scripted { capture_ns, frame: frame.clone() }));
        }
    }

    fn done(self) -> Sides {
        Sides { packets: self.packets, truth: self.splitter.truth(), bodies: self.bodies }
    }
}

/// Writes one side as a capture file.
pub fn write_pcap(path: &Path, packets: &[Scripted]) {
    let file = std::io::BufWriter::new(std::fs::File::create(path).expect("a file"));
    let mut writer = PcapWriter::new(file, LinkType::Ethernet).expect("a header");
    for packet in packets {
        writer.packet(packet.capture_ns, packet.frame.len() as u32, &packet.frame).expect("written");
    }
    writer.finish().expect("flushed");
}

/// Deals a side's packets out to two queues, as a NIC's hash does with several flows.
pub fn two_queues(packets: &[Scripted]) -> [Vec<Scripted>; 2] {
    let mut queues = [Vec::new(), Vec::new()];
    for (at, packet) in packets.iter().enumerate() {
        queues[at / 3 % 2].push(packet.clone());
    }
    queues
}

/// What a configuration says beyond the defaults: lines for `[[feed]]` and for `[[store]]`.
pub struct Lines<'a> {
    pub protocol: &'a str,
    pub feed: &'a str,
    pub store: &'a str,
}

/// No side is given up because its thread was not run for a while; what `hold` forces is filled late.
pub const PATIENT: &str = "hold = \"20ms\"\nside_timeout = \"1h\"\n";
/// Nothing is emitted but by the window and the end.
pub const HOLDING: &str = "hold = \"1h\"\nside_timeout = \"1h\"\n";
/// A small segment and a flush that is not waited for.
pub const SMALL_STORE: &str = "segment = \"16MiB\"\nblock = \"128KiB\"\nblocks_in_flight = 32\nflush = \"50ms\"\n";

/// Cores and store of every test: each job on a core of its own.
fn common(directory: &Path, store: &str) -> String {
    let cores = ["rx-a", "rx-b", "arbiter", "disk"];
    let cores: String =
        cores.iter().enumerate().map(|(cpu, name)| format!("[[core]]\nname = \"{name}\"\ncpu = {cpu}\n")).collect();
    let path = directory.display();
    format!("{cores}[[store]]\nname = \"main\"\npath = \"{path}\"\ncore = \"disk\"\n{store}")
}

/// Two interfaces, two sides.
pub fn live_config(directory: &Path, lines: &Lines<'_>, frames: u32, group: &str) -> Config {
    let mut text = common(directory, lines.store);
    for side in ["a", "b"] {
        text += &format!("[[interface]]\nname = \"{side}\"\ncores = [\"rx-{side}\"]\nframes = {frames}\nring = 64\n");
    }
    let (protocol, feed) = (lines.protocol, lines.feed);
    text += &format!("[[feed]]\nname = \"f\"\nprotocol = \"{protocol}\"\ncore = \"arbiter\"\nstore = \"main\"\n{feed}");
    for side in ["a", "b"] {
        text += &format!(
            "[[feed.side]]\nname = \"{side}\"\nsource = \"af_xdp\"\ninterface = \"{side}\"\ngroups = [\"{group}\"]\n"
        );
    }
    config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Two files, two sides.
pub fn file_config(directory: &Path, lines: &Lines<'_>, files: [&Path; 2]) -> Config {
    let mut text = common(directory, lines.store);
    let (protocol, feed) = (lines.protocol, lines.feed);
    text += &format!("[[feed]]\nname = \"f\"\nprotocol = \"{protocol}\"\ncore = \"arbiter\"\nstore = \"main\"\n{feed}");
    for (side, file) in ["a", "b"].iter().zip(files) {
        let file = file.display();
        text += &format!("[[feed.side]]\nname = \"{side}\"\nsource = \"file\"\nfile = \"{file}\"\ncore = \"rx-a\"\n");
    }
    config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// What is done to the pipeline.
#[derive(Default)]
pub struct Tampering {
    /// A thief in the link between arbiter and store takes every n-th item.
    pub steal_every: u64,
    /// While set, the disk completes nothing.
    pub disk_stalls: Arc<AtomicBool>,
    /// While set, the store's core makes no turn.
    pub core_blocks: Arc<AtomicBool>,
    /// While set, the arbiter's core makes no turn.
    pub arbiter_blocks: Arc<AtomicBool>,
}

pub struct Running {
    launched: Launched,
    pub capture: Arc<CaptureStatus>,
    pub stores: Vec<Arc<StoreView>>,
}

/// The end of a run: its last status, and what its own books say.
pub struct Finished {
    pub capture: Value,
    pub store: Value,
    pub residue: u64,
    pub report: ArbiterReport,
}

/// Plans and starts the pipeline. `queues`: for each interface its queues.
pub fn start(config: &Config, mut queues: BTreeMap<&str, Vec<MemoryQueue>>, tampering: &Tampering) -> Running {
    let bells: BTreeMap<String, Arc<Doorbell>> =
        config.cores.iter().map(|core| (core.name.clone(), Doorbell::new().expect("an eventfd"))).collect();
    let counts: QueueCounts = queues.iter().map(|(name, of)| (name.to_string(), of.len() as u32)).collect();
    let facts: Vec<(String, u32, Arc<Facts>)> = queues
        .iter()
        .flat_map(|(name, of)| of.iter().enumerate().map(|(n, queue)| (name.to_string(), n as u32, queue.facts())))
        .collect();
    for of in queues.values_mut() {
        of.reverse();
    }
    let mut planned = plan(
        config,
        &counts,
        &bells,
        |wanted| {
            let mut queue = queues.get_mut(wanted.interface.name.as_str()).and_then(Vec::pop).expect("a planned queue");
            queue.set_area(wanted.area);
            Ok(Box::new(queue) as Box<dyn FrameQueue>)
        },
        sluice::ring::publish::publisher,
    )
    .expect("a good plan");
    let mut workers = std::mem::take(&mut planned.workers);
    let stores = plan_stores(config, &bells, &mut planned, &mut workers, tampering);
    workers.push(("arbiter".into(), Box::new(Blocker(tampering.arbiter_blocks.clone()))));
    let launched = launch(cores(config, &bells, workers)).expect("started");
    let views = stores.clone();
    let books = move || {
        let book = |b: sluice::store::plan::FeedBook| StoreBook {
            feed: b.feed,
            taken: b.taken,
            stored: b.stored,
            lost: b.lost,
            in_flight: b.in_flight,
        };
        store_books(&views).into_iter().map(book).collect()
    };
    let xdp: XdpReader = Box::new(move || {
        let queue = |(interface, queue, facts): &(String, u32, Arc<Facts>)| XdpQueue {
            interface: interface.clone(),
            queue: *queue,
            counts: vec![("redirected", facts.get(|f| &f.redirected))],
        };
        facts.iter().map(queue).collect()
    });
    let capture = CaptureStatus::new(
        planned.queues,
        planned.sides,
        planned.feeds,
        planned.damage,
        xdp,
        Vec::new(),
        Box::new(books),
    );
    launched.go();
    Running { launched, capture: Arc::new(capture), stores }
}

fn plan_stores(
    config: &Config,
    bells: &BTreeMap<String, Arc<Doorbell>>,
    planned: &mut CapturePlan,
    workers: &mut Vec<(String, Box<dyn Worker>)>,
    tampering: &Tampering,
) -> Vec<Arc<StoreView>> {
    let files = config.feeds.iter().flat_map(|f| &f.sides).any(|side| side.source == SourceKind::File);
    let mut views = Vec::new();
    for end in planned.stores.drain(..) {
        let settings = config.stores.iter().find(|store| store.name == end.name).expect("named").clone();
        let mut inputs = end.inputs;
        if tampering.steal_every > 0 {
            inputs = inputs.into_iter().map(|from| rob(from, tampering.steal_every, bells, workers)).collect();
        }
        let parts = StoreParts {
            stamp_source: if files { StampSource::File } else { StampSource::Software },
            inputs,
            feeds: end.feeds,
            streams_max: config.feeds.iter().map(|feed| feed.streams_max).max().unwrap_or(1),
            returns: end.returns,
            areas: planned.areas.clone(),
            doorbell: bells[&settings.core].clone(),
            settings: settings.clone(),
        };
        let (worker, view) = store_worker(parts).expect("a store");
        workers.push((settings.core.clone(), Box::new(Blocker(tampering.core_blocks.clone()))));
        let disk = SlowDisk { inner: worker, stalls: tampering.disk_stalls.clone(), held: Vec::new() };
        workers.push((settings.core, Box::new(disk)));
        views.push(view);
    }
    views
}

fn cores(
    config: &Config,
    bells: &BTreeMap<String, Arc<Doorbell>>,
    workers: Vec<(String, Box<dyn Worker>)>,
) -> Vec<CorePlan> {
    let mut plans: BTreeMap<String, CorePlan> = BTreeMap::new();
    for (core, worker) in workers {
        let plan = plans.entry(core.clone()).or_insert_with(|| CorePlan {
            doorbell: bells[&core].clone(),
            name: core,
            cpu: None,
            idle: Idle::Park,
            io_cpus: Vec::new(),
            workers: Vec::new(),
        });
        plan.workers.push(worker);
    }
    assert!(plans.keys().all(|core| config.cores.iter().any(|c| &c.name == core)));
    plans.into_values().collect()
}

impl Running {
    /// Waits until `done`; a bound that is reached fails the test.
    pub fn wait(&self, what: &str, mut done: impl FnMut(&Running) -> bool) {
        let end = clock::monotonic_ns() + WAIT_NS_MAX;
        while !done(self) {
            assert!(clock::monotonic_ns() < end, "no end of waiting for {what}: {}", self.capture.glance());
            assert_eq!(self.launched.fault(), None, "while waiting for {what}");
            clock::sleep(Duration::from_micros(500));
        }
    }

    /// Waits until every file has ended.
    pub fn wait_for_files(&self) {
        self.wait("the end of the files", |running| running.capture.ended());
    }

    /// Waits until every packet of these queues has come.
    pub fn wait_for(&self, facts: &[Arc<Facts>]) {
        self.wait("the last packet", |_| facts.iter().all(|facts| facts.get(|f| &f.left) == 0));
    }

    /// Drains, and tells the books.
    pub fn stop(self) -> Finished {
        self.launched.stop(Duration::from_secs(30)).expect("drained in time");
        let (_, capture) = self.capture.status();
        let report = self.capture.reports().remove(0).1.expect("a last report");
        let report = ArbiterReport::clone(&report);
        let residue = residue(&self.capture.conservation());
        Finished { capture, store: self.stores[0].status(), residue, report }
    }
}

impl Finished {
    /// Fails unless every identity holds and every frame is at home.
    pub fn balanced(&self) {
        assert_eq!(self.residue, 0, "{:#}", self.capture["conservation"]);
        for queue in self.capture["queues"].as_array().expect("queues") {
            assert_eq!(queue["frames"], queue["frames_home"], "frames of {}", queue["source"]);
        }
    }

    /// Σ of a term over all queues.
    pub fn queues(&self, term: &str) -> u64 {
        self.capture["queues"].as_array().expect("queues").iter().map(|queue| number(&queue[term])).sum()
    }

    /// A term of the feed.
    pub fn feed(&self, term: &str) -> u64 {
        number(&self.capture["feeds"][0][term])
    }
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Takes every n-th item that it may take out of a link, and its token out of the world.
struct Thief<T> {
    from: LinkReceiver<T>,
    to: LinkSender<T>,
    may: fn(&T) -> bool,
    every: u64,
    seen: u64,
    stage: u8,
    stopped: bool,
}

impl<T: Send> Worker for Thief<T> {
    fn name(&self) -> &str {
        "thief"
    }

    fn stage(&self) -> u8 {
        self.stage
    }

    fn start(&mut self, _: &mut Turn<'_>) -> Result<Vec<i32>, String> {
        Ok(Vec::new())
    }

    fn turn(&mut self, _: &mut Turn<'_>) -> usize {
        let mut work = 0;
        while let Some(item) = self.from.pop() {
            work += 1;
            self.seen += u64::from((self.may)(&item));
            if !(self.may)(&item) || !self.seen.is_multiple_of(self.every) {
                assert!(self.to.push(item).is_ok(), "the robbed link is full");
            }
        }
        self.to.flush();
        work
    }

    fn stop(&mut self, _: &mut Turn<'_>) {
        self.stopped = true;
    }

    fn drained(&self) -> bool {
        // It goes on taking turns, before those of the one behind it.
        self.stopped && self.from.is_empty()
    }
}

fn rob(
    from: LinkReceiver<Handoff<FrameToken>>,
    every: u64,
    bells: &BTreeMap<String, Arc<Doorbell>>,
    workers: &mut Vec<(String, Box<dyn Worker>)>,
) -> LinkReceiver<Handoff<FrameToken>> {
    let (to, robbed) = link(1 << 16, &bells["disk"]);
    let may = |item: &Handoff<FrameToken>| matches!(item, Handoff::Frame { .. } | Handoff::Copies { .. });
    workers.push(("disk".into(), Box::new(Thief { from, to, may, every, seen: 0, stage: 1, stopped: false })));
    robbed
}

/// One queue and an arbiter without a store, on one core; a thief between the two takes every n-th frame. Returns the
/// conservation table, its residue and the frames that did not come home.
pub fn robbed_before_the_arbiter(packets: Vec<Scripted>, frames: u32, every: u64) -> (Value, u64, u64) {
    let (id, copy_area) = (AreaId(0), AreaId(1));
    let queue =
        MemoryQueue::new(packets, frames, frames as usize / 2, super::memory_queue::Pace::Free, Faults::default());
    let facts = queue.facts();
    let bell = Doorbell::new().expect("an eventfd");
    let areas = Areas::new(2);
    let (to_thief, from_queue) = link(frames as usize, &bell);
    let (to_arbiter, from_thief) = link(frames as usize, &bell);
    let (home, at_home) = link(frames as usize, &bell);
    let (_store_copies, copy_returns) = link(1, &bell);
    let (losses, told) = link(64, &bell);
    let ((queue_books, queue_counters), (side_books, side_counters), (arbiter_books, arbiter_counters)) =
        (counters(), counters(), counters());
    let destination = Destination {
        to: "239.192.0.1:10378".parse().expect("an address"),
        feed: 0,
        side: Side::A,
        counters: side_books,
    };
    let port = FeedPort { protocol: FeedProtocol::IexTp, raw: false, link: to_thief };
    let rx = QueueWorker::new(
        "rx".into(),
        id,
        Box::new(queue),
        areas.clone(),
        vec![destination],
        vec![port],
        vec![at_home],
        queue_books,
    );
    let may = |item: &RxItem| matches!(item, RxItem::Frame { .. });
    let thief = Thief { from: from_queue, to: to_arbiter, may, every, seen: 0, stage: 0, stopped: false };
    let desk = Arc::new(ReportDesk::default());
    let arbiter = ArbiterWorker::new(ArbiterParts {
        publisher: None,
        name: "arbiter".into(),
        protocol: FeedProtocol::IexTp,
        arbiter: Arbiter::new(ArbiterSettings { window_messages: 1_024, ..ArbiterSettings::live(1) }),
        time: TimeSource::Live,
        merged: true,
        raw: false,
        inputs: vec![from_thief],
        store: None,
        returns: vec![Some(home), None],
        areas,
        copy_area,
        copy_frames: 8,
        copy_returns,
        counters: arbiter_books,
        desk: desk.clone(),
        losses,
    });
    let source = |name: &str| name.to_string();
    let queues =
        vec![QueueView { source: source("a"), queue: 0, core: source("one"), frames, counters: queue_counters }];
    let sides = vec![SideView { feed: source("f"), side: Side::A, queue: 0, counters: side_counters }];
    let feeds = vec![FeedView {
        publish: None,
        from_files: false,
        name: source("f"),
        sides: vec![source("A")],
        core: source("one"),
        store: None,
        counters: arbiter_counters,
        desk,
        losses: Mutex::new(told),
        copy_frames: 8,
    }];
    let workers: Vec<Box<dyn Worker>> = vec![Box::new(rx), Box::new(thief), Box::new(arbiter)];
    let core =
        CorePlan { name: source("one"), cpu: None, idle: Idle::Park, io_cpus: Vec::new(), doorbell: bell, workers };
    let launched = launch(vec![core]).expect("started");
    let no_books = Box::new(Vec::new);
    let capture = CaptureStatus::new(queues, sides, feeds, Arc::default(), Box::new(Vec::new), Vec::new(), no_books);
    launched.go();
    let running = Running { launched, capture: Arc::new(capture), stores: Vec::new() };
    running.wait_for(&[facts]);
    running.launched.stop(Duration::from_secs(30)).expect("drained in time");
    let status = running.capture.status().1;
    let missing = u64::from(frames) - number(&status["queues"][0]["frames_home"]);
    (status["conservation"].clone(), residue(&running.capture.conservation()), missing)
}

/// A disk that completes nothing while it stalls: what it has written is told afterwards.
struct SlowDisk {
    inner: Box<dyn Worker>,
    stalls: Arc<AtomicBool>,
    held: Vec<(u64, i32)>,
}

impl Worker for SlowDisk {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn stage(&self) -> u8 {
        self.inner.stage()
    }

    fn start(&mut self, turn: &mut Turn<'_>) -> Result<Vec<i32>, String> {
        self.inner.start(turn)
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        if !self.stalls.load(Ordering::Relaxed) {
            for (tag, result) in self.held.drain(..) {
                self.inner.complete(turn, tag, result);
            }
        }
        self.inner.turn(turn)
    }

    fn complete(&mut self, turn: &mut Turn<'_>, tag: u64, result: i32) {
        if self.stalls.load(Ordering::Relaxed) {
            self.held.push((tag, result));
        } else {
            self.inner.complete(turn, tag, result);
        }
    }

    fn deadline(&self) -> Option<i64> {
        self.inner.deadline()
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        self.inner.stop(turn);
    }

    fn drained(&self) -> bool {
        self.inner.drained()
    }

    fn finish(&mut self) {
        self.inner.finish();
    }
}

/// Keeps its core from making a turn.
struct Blocker(Arc<AtomicBool>);

impl Worker for Blocker {
    fn name(&self) -> &str {
        "blocker"
    }

    fn stage(&self) -> u8 {
        0
    }

    fn start(&mut self, _: &mut Turn<'_>) -> Result<Vec<i32>, String> {
        Ok(Vec::new())
    }

    fn turn(&mut self, _: &mut Turn<'_>) -> usize {
        while self.0.load(Ordering::Relaxed) {
            clock::sleep(Duration::from_millis(1));
        }
        0
    }

    fn stop(&mut self, _: &mut Turn<'_>) {}

    fn drained(&self) -> bool {
        true
    }
}

/// What a store holds of one stream, in arrival order.
#[derive(Default, Debug)]
pub struct Stored {
    pub messages: Vec<(u64, bool, Vec<u8>)>,
    pub gaps: Vec<(u64, u64)>,
    /// When each gap was declared.
    pub gap_times: Vec<i64>,
    pub raw: Vec<(u64, i64, Vec<u8>)>,
    pub begins: usize,
}

/// Reads a sealed store again, by key, after every checksum has been verified.
pub fn reread(directory: &Path) -> BTreeMap<String, Stored> {
    let (streams, damage) = reread_torn(directory);
    assert_eq!(damage, Vec::<String>::new(), "a store without damage");
    streams
}

/// The same for a store that a crash has torn; its damage, a line each.
pub fn reread_torn(directory: &Path) -> (BTreeMap<String, Stored>, Vec<String>) {
    let verified = verify(directory, |_, _| ()).expect("a readable store");
    let mut reader = Reader::open(directory).expect("opens");
    let keys: Vec<String> = reader.streams().iter().map(|stream| stream.key.clone()).collect();
    let mut streams: BTreeMap<String, Stored> = keys.iter().map(|key| (key.clone(), Stored::default())).collect();
    let mut query = reader.query(Select::All);
    let mut arrival_next = 0;
    while let Some(step) = query.step().expect("readable") {
        let found = match step {
            Step::Record(found) => found,
            Step::Damage(damage) => panic!("a record that is listed and cannot be read: {damage}"),
        };
        assert!(found.arrival >= arrival_next, "arrival {} after {arrival_next}", found.arrival);
        arrival_next = found.arrival + 1;
        let stored = streams.get_mut(&keys[found.stream]).expect("listed");
        let (sequence, body) = (found.header.sequence, found.body);
        match found.header.kind {
            RecordKind::Message => {
                let late = found.header.flags & FLAG_LATE_FILL != 0;
                stored.messages.push((sequence, late, body.to_vec()));
            }
            RecordKind::Raw => stored.raw.push((sequence, found.header.capture_ns, body.to_vec())),
            RecordKind::Gap => {
                stored.gaps.push((sequence, found.header.sequence_last(body)));
                stored.gap_times.push(found.header.capture_ns);
            }
            RecordKind::StreamBegin => stored.begins += 1,
            _ => {}
        }
    }
    (streams, verified.damage.iter().map(ToString::to_string).collect())
}

/// The merged streams of a store in order of their runs.
pub fn merged(streams: &BTreeMap<String, Stored>) -> Vec<&Stored> {
    let mut merged: Vec<(u32, &Stored)> =
        streams.iter().filter_map(|(key, stored)| Some((sluice::store::parse_key(key)?.1, stored))).collect();
    merged.sort_by_key(|(run, _)| *run);
    merged.into_iter().map(|(_, stored)| stored).collect()
}

/// Files of the store's directory, by the end of their name.
pub fn files(directory: &Path, end: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().ends_with(end))
        .collect();
    files.sort();
    files
}
