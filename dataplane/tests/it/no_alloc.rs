//! After the start the hot path allocates nothing: a counting allocator, and the pipeline driven turn by turn on one
//! thread. Only the calling thread's allocations count, so that other tests do not disturb it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluice::capture::plan::{CapturePlan, QueueCounts, plan};
use sluice::capture::queue_worker::FrameQueue;
use sluice::config::Config;
use sluice::feed::arbiter::{Arbiter, ArbiterSettings, Arrival, Sink};
use sluice::feed::gap::{GapDetector, GapScanner, GapSettings};
use sluice::feed::generate::{Product, Settings};
use sluice::feed::runs::Claim;
use sluice::feed::split::SideSplit;
use sluice::runtime::link::Doorbell;
use sluice::runtime::worker::{TAG_BITS, Turn, Worker};
use sluice::store::StampSource;
use sluice::store::plan::{StoreParts, StoreView, store_worker};
use sluice::sys::clock;
use sluice::sys::uring::CoreRing;
use sluice::units::{Side, StreamId};
use sluice::wire::iextp;
use sluice::wire::packet::{self, LinkType};
use sluice::wire::segment::{Segment, SessionKey};

use crate::common::memory_queue::{Facts, Faults, MemoryQueue, Pace, Scripted};
use crate::common::pipeline::{Lines, PATIENT, Sides, live_config, number, sides};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts by thread; the memory is the system allocator's.
struct Counting;

fn count() {
    // A thread that is ending has no counter any more, and nobody who reads it.
    let _ = ALLOCATIONS.try_with(|counter| counter.set(counter.get() + 1));
}

// SAFETY: every call goes to `System` with the same arguments; counting touches no memory that is allocated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

#[test]
fn the_allocator_counts() {
    let before = allocations();
    let boxed = std::hint::black_box(Box::new(7_u64));
    assert_eq!(allocations() - before, 1, "{boxed}");
}

/// A session without an idle stretch, 2 % lost on each side.
fn lossy_sides(messages: u64) -> Sides {
    let settings = Settings { idle_every: 0, ..Settings::new(Product::Deep, messages, 31) };
    let split = |delay_ns| SideSplit { loss: 0.02, delay_ns, jitter_ns: 20_000, ..SideSplit::default() };
    sides(&settings, 31, &[split(0), split(15_000)])
}

/// Workers and ring of one core, driven by hand.
struct ByHand {
    workers: Vec<Box<dyn Worker>>,
    ring: CoreRing,
    fault: Option<(u16, String)>,
    store: Arc<StoreView>,
    _capture: CapturePlan,
}

impl ByHand {
    fn start(config: &Config, mut queues: Vec<MemoryQueue>) -> ByHand {
        let bells: BTreeMap<String, Arc<Doorbell>> =
            config.cores.iter().map(|core| (core.name.clone(), Doorbell::new().expect("an eventfd"))).collect();
        let counts: QueueCounts = config.interfaces.iter().map(|interface| (interface.name.clone(), 1)).collect();
        queues.reverse();
        let mut capture = plan(
            config,
            &counts,
            &bells,
            |wanted| {
                let mut queue = queues.pop().expect("a queue for each side");
                queue.set_area(wanted.area);
                Ok(Box::new(queue) as Box<dyn FrameQueue>)
            },
            |_| None,
        )
        .expect("a good plan");
        let mut workers: Vec<Box<dyn Worker>> =
            std::mem::take(&mut capture.workers).into_iter().map(|(_, worker)| worker).collect();
        let end = capture.stores.remove(0);
        let parts = StoreParts {
            settings: config.stores[0].clone(),
            inputs: end.inputs,
            feeds: end.feeds,
            streams_max: config.feeds[0].streams_max,
            returns: end.returns,
            areas: capture.areas.clone(),
            stamp_source: StampSource::Software,
            doorbell: bells["disk"].clone(),
        };
        let (worker, store) = store_worker(parts).expect("a store");
        workers.push(worker);
        let mut ring = CoreRing::new(256).expect("io_uring");
        ring.enable(&[], 0).expect("enabled");
        let mut hand = ByHand { workers, ring, fault: None, store, _capture: capture };
        for (place, worker) in hand.workers.iter_mut().enumerate() {
            let mut turn = Turn::new(clock::monotonic_ns(), &mut hand.ring, place as u16, &mut hand.fault);
            worker.start(&mut turn).expect("started");
        }
        hand
    }

    /// One turn of each worker, then submissions and completions: what a core's round is.
    fn round(&mut self) -> usize {
        let now = clock::monotonic_ns();
        let mut work = 0;
        for (place, worker) in self.workers.iter_mut().enumerate() {
            work += worker.turn(&mut Turn::new(now, &mut self.ring, place as u16, &mut self.fault));
        }
        self.ring.submit().expect("submitted");
        while let Some(completion) = self.ring.next_completion() {
            let place = (completion.user_data >> TAG_BITS) as u16;
            let tag = completion.user_data & ((1 << TAG_BITS) - 1);
            let mut turn = Turn::new(now, &mut self.ring, place, &mut self.fault);
            self.workers[usize::from(place)].complete(&mut turn, tag, completion.result);
        }
        work
    }

    /// Rounds until `count` packets a side have come and nothing moves any more.
    fn until(&mut self, facts: &[Arc<Facts>], count: u64) {
        facts.iter().for_each(|facts| facts.released.store(count, Relaxed));
        let mut idle = 0;
        for _ in 0..10_000_000_u64 {
            idle = if self.round() == 0 { idle + 1 } else { 0 };
            if idle > 20 && facts.iter().all(|facts| facts.get(|f| &f.redirected) >= count) {
                return;
            }
        }
        panic!("{count} packets did not pass");
    }
}

#[test]
fn a_segment_on_its_way_from_queue_to_disk_allocates_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let sides = lossy_sides(40_000);
    let least = sides.packets.iter().map(Vec::len).min().expect("two") as u64;
    let queue =
        |packets: &Vec<Scripted>| MemoryQueue::new(packets.clone(), 4_096, 1_024, Pace::Released, Faults::default());
    let queues: Vec<MemoryQueue> = sides.packets.iter().map(queue).collect();
    let facts: Vec<Arc<Facts>> = queues.iter().map(MemoryQueue::facts).collect();
    // Flushes only when a block is full; no second segment: a segment's beginning may allocate.
    let store = "segment = \"64MiB\"\nblock = \"128KiB\"\nblocks_in_flight = 32\nflush = \"1h\"\n";
    let feed = format!("{PATIENT}window = 4096\n");
    let lines = Lines { protocol: "iex-tp", feed: &feed, store };
    let config = live_config(directory.path(), &lines, 4_096, "239.192.0.1:10378");
    let mut hand = ByHand::start(&config, queues);
    // The start: streams begin, the first segment is made, one of each block's tables is filled.
    hand.until(&facts, least / 4);
    let blocks = |hand: &ByHand| number(&hand.store.status()["written_blocks"]);
    let written = blocks(&hand);
    let before = allocations();
    hand.until(&facts, least);
    let allocated = allocations() - before;
    let written = blocks(&hand) - written;
    assert!(written > 5, "{written} blocks were written meanwhile");
    assert_eq!(hand.fault, None);
    assert_eq!(allocated, 0, "{} segments and {written} blocks allocated {allocated} times", 2 * (least - least / 4));
}

/// Gives everything away.
struct Nowhere(u64);

impl Sink for Nowhere {
    fn stream_begin(&mut self, _: StreamId, _: &SessionKey, _: u32, _: u64) {}
    fn emit_arrival(&mut self, _: StreamId, _: &Arrival<'_>, from: u64, to: u64, _: bool, _: bool) {
        self.0 += to - from;
    }
    fn emit_held(&mut self, _: StreamId, _: u64, _: Side, _: i64, _: i64, _: &[u8]) {
        self.0 += 1;
    }
    fn emit_late_copy(&mut self, _: StreamId, _: u64, _: Side, _: i64, _: i64, _: &[u8]) {
        self.0 += 1;
    }
    fn gap(&mut self, _: StreamId, _: u64, _: u64) {}
    fn stream_end(&mut self, _: StreamId) {}
    fn side_state(&mut self, _: &SessionKey, _: Side, _: bool) {}
}

fn segment(frame: &[u8]) -> Segment<'_> {
    let view = packet::udp(frame, LinkType::Ethernet).expect("a UDP frame");
    iextp::parse(view.payload).expect("a segment")
}

/// Both sides' packets in the order of their stamps.
fn in_order(sides: &Sides) -> Vec<(Side, Scripted)> {
    let of = |(side, packets): (u8, &Vec<Scripted>)| {
        packets.iter().map(move |p| (Side(side), p.clone())).collect::<Vec<_>>()
    };
    let mut all: Vec<(Side, Scripted)> = (0..).zip(&sides.packets).flat_map(of).collect();
    all.sort_by_key(|(side, packet)| (packet.capture_ns, *side));
    all
}

#[test]
fn the_arbiter_allocates_nothing() {
    let arrivals = in_order(&lossy_sides(20_000));
    let mut arbiter = Arbiter::new(ArbiterSettings { window_messages: 4_096, ..ArbiterSettings::live(2) });
    let mut sink = Nowhere(0);
    let (start, rest) = arrivals.split_at(arrivals.len() / 4);
    let mut give = |(side, packet): &(Side, Scripted)| {
        let arrival = Arrival { side: *side, capture_ns: packet.capture_ns, segment: segment(&packet.frame) };
        arbiter.on_segment(&arrival, packet.capture_ns, &mut sink);
    };
    start.iter().for_each(&mut give);
    let before = allocations();
    rest.iter().for_each(&mut give);
    assert_eq!(allocations() - before, 0, "over {} segments", rest.len());
    assert!(sink.0 > 10_000, "{} messages", sink.0);
}

#[test]
fn gap_detection_allocates_nothing() {
    // A scanner's list of lost ranges grows as it fills, because it reads files of unknown streams; a live side's
    // detector has all its memory from the start.
    let sides = lossy_sides(20_000);
    let mut detector = GapDetector::new(65_536, None);
    let (start, rest) = sides.packets[0].split_at(sides.packets[0].len() / 4);
    let mut give = |packet: &Scripted| {
        let segment = segment(&packet.frame);
        let claim = Claim::of(&segment, packet.capture_ns).expect("in bounds");
        detector.observe(&segment, &claim);
    };
    start.iter().for_each(&mut give);
    let before = allocations();
    rest.iter().for_each(&mut give);
    assert_eq!(allocations() - before, 0, "over {} segments", rest.len());
    assert!(detector.gaps().total() > 100);
}

#[test]
fn the_gap_scanner_allocates_nothing_without_a_gap() {
    let settings = Settings::new(Product::Tops, 20_000, 32);
    let sides = sides(&settings, 32, &[SideSplit::default(); 2]);
    let mut scanner = GapScanner::new(GapSettings::default());
    let (start, rest) = sides.packets[0].split_at(100);
    let mut give = |packet: &Scripted| scanner.on_segment(&segment(&packet.frame), packet.capture_ns);
    start.iter().for_each(&mut give);
    let before = allocations();
    rest.iter().for_each(&mut give);
    assert_eq!(allocations() - before, 0, "over {} segments", rest.len());
    assert_eq!(scanner.streams()[0].lost(), 0);
}

/// A served and a mirrored ring, stepped by this thread: after the start neither records, nor heartbeats, nor repair
/// allocate, in any transport.
#[test]
fn a_ring_is_served_and_mirrored_without_allocation() {
    use crate::common::mirrors::{BOUND, Shm, Source, Way, group, udp_port};
    use sluice::ring::step::{Mirror, Server};

    for way in Way::ALL {
        let (ring, copy) = (Shm::new("source"), Shm::new("copy"));
        let mut source = Source::create(&ring, 1 << 12, 40);
        let bind = "127.0.0.1:0".parse().expect("an address");
        let mut settings = sluice::config::Serve::new("s", "", ring.0.clone(), bind);
        match way {
            Way::Tcp => {}
            Way::Unicast => settings.udp = Some(udp_port()),
            Way::Multicast => settings.multicast = Some(group().parse().expect("a group")),
        }
        settings.interface = std::net::Ipv4Addr::LOCALHOST;
        let mut server = Server::new(&settings).expect("binds");
        let mut wanted = sluice::config::Mirror::new("m", "", server.address().to_string(), copy.0.clone());
        (wanted.unicast, wanted.interface) = (way == Way::Unicast, std::net::Ipv4Addr::LOCALHOST);
        let mut mirror = Mirror::new(&wanted).expect("made");
        let end = clock::monotonic_ns() + BOUND.as_nanos() as i64;
        let mut allocated = 0;
        while mirror.status().next <= 20_000 {
            assert!(clock::monotonic_ns() < end, "{way:?}: {:?}", mirror.status());
            let head = source.head();
            if mirror.status().live && mirror.status().next > head {
                source.push([1, 7, 100, 1_000][head as usize % 4], 0);
            }
            let before = allocations();
            server.step().expect("steps");
            mirror.step().expect("steps");
            // The first ones fill the buffers that are kept.
            if head > 10_000 {
                allocated += allocations() - before;
            }
        }
        assert_eq!(allocated, 0, "{way:?}");
    }
}

#[test]
fn a_feed_is_published_without_allocation() {
    use sluice::feed::publish::{PublishedMessage, Publisher};
    use sluice::ring::publish::{FeedPublisher, PublishSettings};
    use sluice::wire::feed_meta::StampOrigin;
    use sluice::wire::segment::{Protocol, SessionId};

    let path = crate::ring::RingPath::new("publish-alloc");
    let mut publisher = FeedPublisher::new(PublishSettings {
        path: path.to_path_buf(),
        capacity: 64,
        arena_bytes: 1 << 17,
        huge_pages: false,
        numa_node: None,
        stamp: StampOrigin::File,
    });
    publisher.start().expect("a ring");
    let key = SessionKey { protocol: Protocol::IexTp, protocol_id: 0x8004, channel: 1, session: SessionId::default() };
    // A stream's beginning may allocate: its key is kept.
    publisher.stream_begin(StreamId(0), &key, 0, 1, 5);
    let before = allocations();
    for sequence in 1..=1_000_u64 {
        let (capture_ns, send_ns) = (7 + sequence as i64, None);
        if sequence % 100 == 0 {
            publisher.gap(StreamId(0), sequence, sequence, capture_ns);
            publisher.side_state(&key, Side::B, sequence % 200 == 0, capture_ns);
        } else {
            let body = &[sequence as u8; 64];
            let message = PublishedMessage { stream: StreamId(0), side: Side::B, sequence, capture_ns, send_ns, body };
            publisher.message(&message);
        }
        // Beats and looks at the clock are due now and then.
        publisher.turn(sequence as i64 * 1_000_000);
    }
    publisher.stream_end(StreamId(0), 2_000);
    publisher.turn(2_000_000_000);
    let counts = publisher.counts();
    assert_eq!((counts.messages, allocations() - before), (990, 0), "{counts:?}");
    assert!(counts.marks > 1_000 / 32, "streams were told again: {counts:?}");
}
