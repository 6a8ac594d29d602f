//! Everything that could hold a source up is slow: subscribers, the disk, encoders. The source's worker and the encoders are the
//! product's own, driven by hand in simulated time. Every byte of the source must be taken in the step in which it is due, whatever
//! the others do; what they are given in the end is whole all the same, and memory stays bounded. `SLUICE_SEED=n` replays a run.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::ledger::chunker::Cut;
use sluice::ledger::codec::Policy;
use sluice::ledger::encode_worker::{EncodeParts, EncodeWorker};
use sluice::ledger::event::{Item, Job};
use sluice::ledger::message::Encoded;
use sluice::ledger::pacing::Window;
use sluice::ledger::pool::Pool;
use sluice::ledger::query::Range;
use sluice::ledger::retention::Run;
use sluice::ledger::source::{Poll, Source, SourceError};
use sluice::ledger::source_worker::{ENCODER_QUEUE, Emitting, EncoderEnd, SourceParts, SourceWorker};
use sluice::ledger::stats::{EncodeCounter, SourceCounter};
use sluice::runtime::link::{Doorbell, LinkReceiver, link};
use sluice::runtime::worker::{Turn, Worker};
use sluice::sync::counters::{CounterReader, counters};
use sluice::sys::uring::CoreRing;

use super::ledger::{all_caught, all_seeds, outcome, settings};
use super::ledger_world::{Bug, Feed, MEMORY_BYTES, Node, Plan, Subscriber, Tally, Tools};

/// One look of the core at its workers. A chunk of these ledgers comes about every 0.2 ms.
const STEP_NS: i64 = 100_000;
const WINDOW_NS: i64 = 4_000_000;
const CADENCE_NS: i64 = 10_000_000;
const LEDGERS: u32 = 12;
/// Steps after the source's end within which everybody must have come to his own.
const PATIENCE_STEPS: i64 = 200_000;
/// Items of the order link: many of these ledgers. The product's link holds the largest ledger there is and 1,024 more.
const ORDER_ITEMS: usize = 1_024;

const PLAN: Plan = Plan {
    relays_max: 0,
    flows_max: 2,
    restart_one_in: 1,
    cut_one_in: 1,
    stall_one_in: 1,
    full_one_in: 2_000,
    another_one_in: 1,
    corrupt_one_in: 1,
    // Up to 60 ms.
    disk_turns_max: 600,
    ledger_bytes_max: 100_000,
};

const SEEDS: u64 = 200;

/// A source that gives each byte when it is due, and remembers how late it was asked for it.
struct Script {
    ledgers: Vec<Arc<[u8]>>,
    first: u32,
    begin_ns: i64,
    number: usize,
    given: Option<u64>,
    late_ns: Arc<AtomicI64>,
}

impl Script {
    fn asked(&self, due: i64, now: i64) {
        self.late_ns.fetch_max(now - due, Ordering::Relaxed);
    }
}

impl Source for Script {
    fn description(&self) -> String {
        "script".into()
    }

    fn start(&mut self, _now: i64) -> Result<Vec<RawFd>, SourceError> {
        Ok(Vec::new())
    }

    fn poll(&mut self, room: &mut [u8], now: i64) -> Result<Poll, SourceError> {
        let Some(ledger) = self.ledgers.get(self.number) else { return Ok(Poll::Finished) };
        let begin = self.begin_ns + self.number as i64 * CADENCE_NS;
        let bytes = ledger.len() as u64;
        let window = Window::begin(WINDOW_NS, bytes, begin);
        let Some(given) = self.given else {
            if now < begin {
                return Ok(Poll::Wait);
            }
            self.asked(begin, now);
            self.given = Some(0);
            let declared = self.number.is_multiple_of(2).then_some(bytes);
            return Ok(Poll::Begin { sequence: self.first + self.number as u32, bytes: declared });
        };
        if given == bytes {
            self.asked(begin + WINDOW_NS, now);
            (self.number, self.given) = (self.number + 1, None);
            return Ok(Poll::End);
        }
        let due = window.due_bytes(now).min(bytes);
        if due <= given {
            return Ok(Poll::Wait);
        }
        // The first byte of what is given now has waited the longest.
        self.asked(window.due_ns(given + 1), now);
        let most = (due - given).min(room.len() as u64);
        room[..most as usize].copy_from_slice(&ledger[given as usize..(given + most) as usize]);
        self.given = Some(given + most);
        Ok(Poll::Bytes(most as usize))
    }
}

/// An encoder, the way out of it, and how slow it is: it has a turn once in so many steps.
struct Encoder {
    worker: EncodeWorker,
    out: LinkReceiver<Encoded>,
    done: CounterReader<EncodeCounter>,
    one_in: u32,
}

struct Slow {
    tools: Tools,
    node: Node,
    source: SourceWorker,
    counters: CounterReader<SourceCounter>,
    order: LinkReceiver<Item>,
    encoders: Vec<Encoder>,
    /// The encoder whose message comes next.
    awaited: Option<usize>,
    /// Subscribers, and how slow each is.
    subscribers: Vec<(Subscriber, u32)>,
    late_ns: Arc<AtomicI64>,
    over: bool,
}

thread_local! {
    /// The workers' ring, in which nothing is ever asked for.
    static RING: RefCell<CoreRing> = RefCell::new(CoreRing::new(8).expect("a ring"));
}

impl Slow {
    fn new(seed: u64, bug: Bug) -> Slow {
        let mut tools = Tools::new(Pcg64Mcg::seed_from_u64(seed ^ 1 << 41), bug, PLAN);
        tools.faults = false;
        let first = tools.random.random_range(1..100);
        let ledgers = (0..LEDGERS).map(|number| Arc::from(&*tools.ledger(1, first + number))).collect();
        let late_ns = Arc::new(AtomicI64::new(0));
        let begin_ns = tools.random.random_range(1..CADENCE_NS);
        let script = Script { ledgers, first, begin_ns, number: 0, given: None, late_ns: late_ns.clone() };
        let tail = tools.random.random::<bool>().then_some(4096);
        let cut = Cut::new(if tools.random.random() { 4096 } else { 8192 }, tail).expect("a cut");
        let policy = [Policy::Auto, Policy::Always, Policy::Never][tools.random.random_range(0..3)];
        let pool = Pool::new(cut.buffer_bytes(), 64);
        let doorbell = Doorbell::new().expect("an eventfd");
        let (order_in, order) = link(ORDER_ITEMS, &doorbell);
        let emitting = Emitting::default();
        let (mut ends, mut encoders) = (Vec::new(), Vec::new());
        for number in 0..tools.random.random_range(1..3) {
            let (jobs_in, jobs): (_, LinkReceiver<Job>) = link(ENCODER_QUEUE, &doorbell);
            let (out_in, out) = link(ORDER_ITEMS, &doorbell);
            let (writer, reader) = counters();
            ends.push(EncoderEnd { jobs: jobs_in, done: reader.clone() });
            let worker = EncodeWorker::new(EncodeParts {
                name: format!("encoder {number}"),
                jobs,
                out: out_in,
                pool: pool.clone(),
                level: 1,
                spin_while_open: false,
                emitting: emitting.clone(),
                counters: writer,
            });
            // From one chunk a step to one in 6 ms.
            let one_in = [1, 4, 20, 60][tools.random.random_range(0..4)];
            encoders.push(Encoder { worker, out, done: reader, one_in });
        }
        let (writer, source_counters) = counters();
        let source = SourceWorker::new(SourceParts {
            name: "source".into(),
            source: Box::new(script),
            cut,
            pool,
            buffers_ready: 1,
            order: order_in,
            encoders: ends,
            policy,
            level: 1,
            load: Arc::default(),
            renumber: None,
            spin_while_open: false,
            drain_ns: 0,
            emitting,
            counters: writer,
        });
        let run = Run { id: [1; 16], network: [0; 8], epoch: 1, start: first, source: "script".into() };
        // Kept for long: what is slow must be able to catch up, mostly.
        let mut kept = settings(&mut tools.random);
        kept.bounds.ledgers_max = kept.bounds.ledgers_max.max(8);
        (kept.bounds.bytes_max, kept.bounds.age_ns_max) = (None, None);
        let node = Node::new(run, kept, Feed::None, 16, PLAN.flows_max);
        let mut subscribers = Vec::new();
        for _ in 0..tools.random.random_range(1..5) {
            let start = if tools.chance(2) { 0 } else { first };
            let flows = tools.random.random_range(1..=PLAN.flows_max as usize);
            let subscriber = Subscriber::new(Range::new(start, None).expect("a range"), 0, flows);
            subscribers.push((subscriber, [1, 3, 30, 300][tools.random.random_range(0..4)]));
        }
        Slow {
            tools,
            node,
            source,
            counters: source_counters,
            order,
            encoders,
            awaited: None,
            subscribers,
            late_ns,
            over: false,
        }
    }

    fn run(mut self) -> Result<Tally, String> {
        RING.with_borrow_mut(|ring| {
            let mut fault = None;
            let mut turn = Turn::new(0, ring, 0, &mut fault);
            self.source.start(&mut turn)?;
            self.encoders.iter_mut().try_for_each(|encoder| encoder.worker.start(&mut turn).map(|_| ()))
        })?;
        let emission = i64::from(LEDGERS + 1) * CADENCE_NS / STEP_NS;
        for _ in 0..emission + PATIENCE_STEPS {
            self.step()?;
            let late_ns = self.late_ns.load(Ordering::Relaxed);
            // A beginning that falls into the step in which the ledger before ended has its turn in the next one.
            if late_ns > 2 * STEP_NS {
                return Err(format!("the source waited for {late_ns} ns"));
            }
            if self.over && self.subscribers.iter().all(|(subscriber, _)| subscriber.ended) {
                let waits = self.counters.get(SourceCounter::Waits);
                let mut tally = self.tools.tally;
                self.node.count(&mut tally);
                return if waits == 0 { Ok(tally) } else { Err(format!("the source waited {waits} times")) };
            }
        }
        Err("a subscriber is stuck".into())
    }

    /// Chunks that encoders have not passed on yet.
    fn packing(&self) -> u64 {
        let get = |counter| self.counters.get(counter);
        let given = get(SourceCounter::Chunks) - get(SourceCounter::RawChunks) - get(SourceCounter::RawFallbacks);
        given - self.encoders.iter().map(|encoder| encoder.done.get(EncodeCounter::Chunks)).sum::<u64>()
    }

    fn step(&mut self) -> Result<(), String> {
        self.tools.now += STEP_NS;
        let held_up = match self.tools.bug {
            Bug::WaitsForEncoder => self.packing() >= ENCODER_QUEUE as u64,
            Bug::WaitsForDisk => self.node.hub.memory_bytes() > MEMORY_BYTES / 2,
            Bug::WaitsForSubscriber => self.subscribers.iter().any(|(one, _)| one.peer.is_full()),
            _ => false,
        };
        let tools = &mut self.tools;
        RING.with_borrow_mut(|ring| {
            let mut fault = None;
            let mut turn = Turn::new(tools.now, ring, 0, &mut fault);
            if !held_up {
                self.source.turn(&mut turn);
            }
            for encoder in &mut self.encoders {
                if tools.chance(encoder.one_in) {
                    encoder.worker.turn(&mut turn);
                }
            }
        });
        self.take()?;
        if self.tools.chance(PLAN.full_one_in) {
            self.node.disk.full ^= true;
        }
        // The disk comes back when the source is done, so that everything has an end.
        self.node.disk.full &= !self.over;
        self.node.store(&mut self.tools);
        for (number, (subscriber, one_in)) in self.subscribers.iter_mut().enumerate() {
            if self.tools.chance(*one_in) {
                let turned = subscriber.turn(&mut self.node, &mut self.tools);
                turned.map_err(|what| format!("subscriber {number}: {what}"))?;
            }
        }
        Ok(())
    }

    /// What the fan-out does: takes the order, and each packed chunk from its encoder's link.
    fn take(&mut self) -> Result<(), String> {
        loop {
            if let Some(encoder) = self.awaited {
                let mixed = self.tools.bug == Bug::EncodersMixed;
                let encoder = if mixed {
                    (0..self.encoders.len()).rev().find(|&at| !self.encoders[at].out.is_empty())
                } else {
                    Some(encoder)
                };
                let Some(message) = encoder.and_then(|encoder| self.encoders[encoder].out.pop()) else { return Ok(()) };
                self.awaited = None;
                self.node.apply(Item::Message(message), &mut self.tools)?;
                continue;
            }
            match self.order.pop() {
                None => return Ok(()),
                Some(Item::Packed(encoder)) => self.awaited = Some(encoder),
                Some(item) => {
                    self.over |= matches!(item, Item::Finished(..));
                    self.node.apply(item, &mut self.tools)?;
                }
            }
        }
    }
}

fn world(seed: u64, bug: Bug) -> Result<Tally, String> {
    outcome(|| Slow::new(seed, bug).run())
}

#[test]
fn nothing_slow_delays_the_source() {
    let met = |all: &mut Tally| {
        let counts = [all.ledgers, all.live, all.abandons, all.partials, all.unwritten, all.fallbacks, all.by_flows];
        counts.iter().all(|count| *count > 0)
    };
    all_seeds(SEEDS, |seed| world(seed, Bug::None), met);
}

#[test]
fn planted_bugs_of_the_source_side_are_caught() {
    let bugs = [
        Bug::WaitsForEncoder,
        Bug::WaitsForDisk,
        Bug::WaitsForSubscriber,
        Bug::EncodersMixed,
        Bug::FallbackLost,
        Bug::MemoryUnbounded,
    ];
    all_caught(&bugs, 500, world);
}
