//! The source's worker: asks the source, cuts and hashes what it gives, and decides of each chunk who packs it.
//!
//! Nothing here waits for a subscriber or an encoder. A full encoder means that a chunk goes raw; only the order link can hold the
//! source up, and that holds a whole largest ledger ([`order_items`]).

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::chunker::{Chunker, Cut};
use super::codec::{self, Choice, Pace, Policy, Situation, SourceRate};
use super::event::{Item, Job};
use super::hub::Outcome;
use super::load::Load;
use super::message::RawChunk;
use super::order::Order;
use super::pool::Pool;
use super::source::{Poll, Source};
use super::stats::{EncodeCounter, SourceCounter};
use crate::runtime::link::LinkSender;
use crate::runtime::worker::{Turn, Worker};
use crate::sync::counters::{CounterReader, CounterWriter};
use crate::sys::clock;
use crate::units::NANOS_PER_MILLI;
use crate::wire::ledger::{Begin, LEDGER_BYTES_MAX, SEQUENCE_MAX};

/// Chunks that may wait for one encoder; the peer's number. 16 of 256 KiB are 2 ms of work, by when raw is faster on any link.
pub const ENCODER_QUEUE: usize = 16;
/// Bytes read in one turn, at most: a full pipe of the default size. That is some 140 µs of copying and hashing before the others on this
/// core have their turn. Where chunks are small it is what an encoder's queue holds.
pub(super) const TURN_BYTES: usize = 1 << 20;
/// Items that one answer of the source can make: the last chunk and END.
const ITEMS_AT_ONCE: usize = 2;
/// A ledger of which nothing comes for so long is not waited for with open eyes: whoever emits it has stalled, and 100 ms are 13
/// windows.
const STALL_NS: i64 = 100 * NANOS_PER_MILLI;
/// How soon a source that waits for the order link looks again: the fan-out does not ring when it takes.
const LOOK_AGAIN_NS: i64 = NANOS_PER_MILLI;

/// Items that the order link must hold so that a source never waits within a ledger: a largest ledger in chunks, its last chunk in
/// tails, BEGIN and END; and as much again for what a busy fan-out has not taken of the ledger before, where ledgers are small.
pub fn order_items(chunk_bytes: usize, tail_bytes: usize) -> usize {
    let ledger = LEDGER_BYTES_MAX as usize / chunk_bytes + chunk_bytes.div_ceil(tail_bytes) + 2;
    ledger + SMALL_LEDGER_ITEMS
}

/// Room for small ledgers that follow one another closely.
const SMALL_LEDGER_ITEMS: usize = 1024;

/// What the source's side tells its encoders: whether a ledger is open, so that they stay awake.
///
/// Written `Relaxed` by the source's worker and read `Relaxed` by [`super::encode_worker::EncodeWorker`]: it only keeps a core
/// awake, and orders nothing.
#[derive(Clone, Debug, Default)]
pub struct Emitting(Arc<AtomicBool>);

impl Emitting {
    pub(super) fn set(&self, open: bool) {
        self.0.store(open, Ordering::Relaxed);
    }

    /// Whether a ledger is open.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The way to one encoder.
pub struct EncoderEnd {
    /// Its queue, of [`ENCODER_QUEUE`].
    pub jobs: LinkSender<Job>,
    /// Its counters: what it is done with.
    pub done: CounterReader<EncodeCounter>,
}

/// What a source worker is made of.
pub struct SourceParts {
    /// Its name.
    pub name: String,
    /// Where the ledgers come from.
    pub source: Box<dyn Source>,
    /// How they are cut.
    pub cut: Cut,
    /// Buffers for chunks, shared with the encoders.
    pub pool: Pool,
    /// Buffers that are made and touched before the first ledger.
    pub buffers_ready: usize,
    /// The order, to the fan-out: at least [`order_items`].
    pub order: LinkSender<Item>,
    /// The encoders, by their number.
    pub encoders: Vec<EncoderEnd>,
    /// Whether chunks are packed.
    pub policy: Policy,
    /// The zstd level.
    pub level: i32,
    /// How the subscribers stand, as the fan-out tells it.
    pub load: Arc<Load>,
    /// The first ledger's sequence, the others following, whatever the source says of its own.
    pub renumber: Option<u32>,
    /// Look again and again while a ledger is open, in place of sleeping.
    pub spin_while_open: bool,
    /// How long a ledger that is open at a stop may go on, ns.
    pub drain_ns: i64,
    /// Told the encoders.
    pub emitting: Emitting,
    /// What it counts.
    pub counters: CounterWriter<SourceCounter>,
}

/// An encoder as the source sees it.
struct Encoder {
    end: EncoderEnd,
    given: u64,
    /// Bytes of what it was given, by place modulo the length. Longer than what can be under way: the queue, and the one at work.
    sizes: [u32; 2 * ENCODER_QUEUE],
    /// What it is known to be done with, and the bytes of what it is not.
    done: u64,
    waiting_bytes: u64,
    /// Bytes that it was given in this turn.
    given_bytes: u64,
}

impl Encoder {
    fn new(end: EncoderEnd) -> Encoder {
        assert!(end.jobs.capacity() < 2 * ENCODER_QUEUE, "an encoder's queue is of {ENCODER_QUEUE}");
        let done = end.done.get(EncodeCounter::Chunks);
        Encoder { end, given: done, sizes: [0; 2 * ENCODER_QUEUE], done, waiting_bytes: 0, given_bytes: 0 }
    }

    /// Bytes that it still has to pack.
    fn waiting_bytes(&mut self) -> u64 {
        let done = self.end.done.get(EncodeCounter::Chunks).min(self.given);
        while self.done < done {
            self.waiting_bytes -= u64::from(self.sizes[self.done as usize % self.sizes.len()]);
            self.done += 1;
        }
        self.waiting_bytes
    }

    /// Gives it a chunk; back when its queue is full.
    fn give(&mut self, job: Job) -> Result<(), Job> {
        let bytes = job.chunk.payload().len() as u32;
        // What it has taken and not reported yet is one; more than fits into `sizes` cannot be under way, but be sure of it.
        if self.given - self.done >= self.sizes.len() as u64 {
            return Err(job);
        }
        self.end.jobs.push(job)?;
        self.sizes[self.given as usize % self.sizes.len()] = bytes;
        self.given += 1;
        self.waiting_bytes += u64::from(bytes);
        self.given_bytes += u64::from(bytes);
        self.end.jobs.flush();
        Ok(())
    }
}

/// A ledger that is being emitted.
struct Open {
    declared: Option<u64>,
    start_ns: i64,
    /// The last byte so far.
    last_ns: i64,
    slack: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// A stop was asked for; a ledger that is open may go on until then.
    Finishing(i64),
    /// The source is being stopped.
    Stopping,
    Stopped,
}

/// What a look at the source brought.
enum Step {
    /// Bytes of a ledger, or its beginning or end.
    Moved(usize),
    Wait,
    Finished,
}

/// The source's worker.
pub struct SourceWorker {
    name: String,
    source: Box<dyn Source>,
    chunker: Chunker,
    chunk_bytes: u64,
    pool: Pool,
    buffers_ready: usize,
    order: LinkSender<Item>,
    encoders: Vec<Encoder>,
    /// The encoder that is looked at first, so that equal ones take turns.
    first: usize,
    policy: Policy,
    level: i32,
    pace: Pace,
    /// Bytes that are read in a turn at most.
    turn_bytes: usize,
    /// Bytes that the source had ready in this turn, in the one before, and in the one before that.
    ready: (u64, u64, u64),
    load: Arc<Load>,
    renumber: Option<u32>,
    spin_while_open: bool,
    /// What waits for the ledger's last byte, where ledgers are given whole.
    whole: Option<Vec<Item>>,
    drain_ns: i64,
    emitting: Emitting,
    counters: CounterWriter<SourceCounter>,
    sequences: Order,
    rate: SourceRate,
    open: Option<Open>,
    /// The source gives no more; its last word waits for room in the order.
    last_word: Option<Item>,
    over: bool,
    phase: Phase,
    blocked: bool,
    look_again_at: i64,
    /// When the source last gave something.
    moved_at: i64,
    /// A ledger is open and goes on.
    lively: bool,
}

impl SourceWorker {
    /// A worker that has not begun.
    pub fn new(parts: SourceParts) -> SourceWorker {
        assert!(
            parts.policy == Policy::Never || !parts.encoders.is_empty(),
            "chunks that may be packed need an encoder"
        );
        SourceWorker {
            name: parts.name,
            source: parts.source,
            chunker: Chunker::with_pool(parts.cut, parts.pool.clone()),
            chunk_bytes: parts.cut.chunk_bytes() as u64,
            pool: parts.pool,
            buffers_ready: parts.buffers_ready,
            order: parts.order,
            encoders: parts.encoders.into_iter().map(Encoder::new).collect(),
            first: 0,
            policy: parts.policy,
            level: parts.level,
            pace: Pace::new(parts.policy, parts.level),
            turn_bytes: TURN_BYTES.min(ENCODER_QUEUE * parts.cut.chunk_bytes()),
            ready: (0, 0, 0),
            load: parts.load,
            renumber: parts.renumber,
            spin_while_open: parts.spin_while_open,
            whole: None,
            drain_ns: parts.drain_ns,
            emitting: parts.emitting,
            counters: parts.counters,
            sequences: Order::default(),
            rate: SourceRate::default(),
            open: None,
            last_word: None,
            over: false,
            phase: Phase::Running,
            blocked: false,
            look_again_at: 0,
            moved_at: 0,
            lively: false,
        }
    }

    /// Gives a ledger's chunks only when its last byte has come: store and forward, which a measurement compares with. Asserts that
    /// nothing is packed.
    pub fn giving_whole(mut self) -> SourceWorker {
        assert!(self.policy == Policy::Never, "whole ledgers go as they are");
        self.whole = Some(Vec::new());
        self
    }

    /// One look at the source. An error is the end of the run; the text says why.
    fn step(&mut self, now: i64) -> Result<Step, String> {
        if self.open.is_some()
            && self.chunker.takes_buffer()
            && let Some(buffer) = self.source.chunk()
        {
            self.chunker.adopt(buffer);
        }
        match self.source.poll(self.chunker.space(), now).map_err(|error| error.0)? {
            Poll::Begin { sequence, bytes } => self.begin(sequence, bytes),
            Poll::Bytes(bytes) => self.bytes(bytes),
            Poll::End => self.end(),
            Poll::Wait => Ok(Step::Wait),
            Poll::Finished => Ok(Step::Finished),
        }
    }

    fn begin(&mut self, sequence: u32, bytes: Option<u64>) -> Result<Step, String> {
        assert!(self.open.is_none(), "a source ends a ledger before it begins another");
        let sequence = match &mut self.renumber {
            None => sequence,
            // No sequence is left: a run that was without end ends here.
            Some(next) if *next > SEQUENCE_MAX => return Ok(Step::Finished),
            Some(next) => std::mem::replace(next, *next + 1),
        };
        self.sequences.check(sequence).map_err(|error| format!("{error}; \"renumber\" gives them new ones"))?;
        self.chunker.begin(sequence, bytes).map_err(|error| error.to_string())?;
        let start_ns = clock::utc_ns();
        let (live, slowest) = (self.load.live_subscribers(), self.load.slowest_bytes_per_second());
        let slack = codec::has_slack(live, slowest, self.rate.bytes_per_second());
        self.open = Some(Open { declared: bytes, start_ns, last_ns: start_ns, slack });
        self.counters.set(SourceCounter::Open, 1);
        self.say(Item::Begin(Begin { sequence, emit_start_ns: start_ns }));
        Ok(Step::Moved(0))
    }

    fn bytes(&mut self, bytes: usize) -> Result<Step, String> {
        self.ready.0 += bytes as u64;
        let now = clock::utc_ns();
        self.open.as_mut().expect("a source gives bytes of an open ledger").last_ns = now;
        self.counters.add(SourceCounter::Bytes, bytes as u64);
        if let Some(chunk) = self.chunker.filled(bytes).map_err(|error| error.to_string())? {
            self.dispatch(chunk);
        }
        Ok(Step::Moved(bytes))
    }

    fn end(&mut self) -> Result<Step, String> {
        let Open { start_ns, last_ns, .. } = *self.open.as_ref().expect("a source ends an open ledger");
        let (last, end) = self.chunker.finish(last_ns).map_err(|error| error.to_string())?;
        if let Some(chunk) = last {
            self.dispatch(chunk);
        }
        self.open = None;
        self.pace.ledger();
        self.rate.ledger(end.bytes, last_ns - start_ns);
        self.counters.add(SourceCounter::Ledgers, 1);
        self.counters.set(SourceCounter::Open, 0);
        self.counters.set(SourceCounter::Latest, u64::from(end.sequence));
        self.counters.set(SourceCounter::EmissionNs, (last_ns - start_ns).max(0) as u64);
        self.say(Item::End(end));
        Ok(Step::Moved(0))
    }

    /// Decides of a chunk, and puts it into the order.
    fn dispatch(&mut self, chunk: RawChunk) {
        self.counters.add(SourceCounter::Chunks, 1);
        let open = self.open.as_ref().expect("chunks are of an open ledger");
        let left_bytes = open.declared.map(|declared| declared.saturating_sub(self.chunker.bytes()));
        let (chunk_bytes, slack) = (self.chunk_bytes, open.slack);
        let (encoder, waiting_bytes) = self.least_loaded();
        let carried_bytes = waiting_bytes.saturating_sub(self.encoders.get(encoder).map_or(0, |it| it.given_bytes));
        let ready_bytes = self.ready.0.max(self.ready.1);
        // A full pipe in both of the last turns: whoever emits waits for us.
        let full = self.source.capacity().map(|bytes| bytes.min(self.turn_bytes) as u64);
        let holds_up = full.is_some_and(|full| self.ready.1.min(self.ready.2) >= full);
        let situation =
            Situation { waiting_bytes, carried_bytes, ready_bytes, chunk_bytes, left_bytes, slack, holds_up };
        let item = match self.pace.choose(&situation) {
            Choice::Raw => {
                self.counters.add(SourceCounter::RawChunks, 1);
                Item::Message(chunk.into_message())
            }
            Choice::Fallback => self.fallback(chunk),
            Choice::Level(level) => self.pack(encoder, Job { chunk, level }),
        };
        self.say(item);
    }

    fn pack(&mut self, encoder: usize, job: Job) -> Item {
        let hastened = job.level != self.level;
        match self.encoders[encoder].give(job) {
            Ok(()) => {
                self.counters.add(SourceCounter::Hastened, u64::from(hastened));
                Item::Packed(encoder)
            }
            Err(job) => self.fallback(job.chunk),
        }
    }

    /// A chunk that would have been packed if there were time.
    fn fallback(&mut self, chunk: RawChunk) -> Item {
        self.counters.add(SourceCounter::RawFallbacks, 1);
        Item::Fallback(chunk.into_message())
    }

    /// The encoder with the least to do, and how much that is.
    fn least_loaded(&mut self) -> (usize, u64) {
        let count = self.encoders.len();
        if count == 0 {
            return (0, 0);
        }
        self.first = (self.first + 1) % count;
        let first = self.first;
        let all = (0..count).map(|place| (first + place) % count);
        let loads = all.map(|index| (index, self.encoders[index].waiting_bytes()));
        loads.min_by_key(|(_, waiting)| *waiting).expect("there is one")
    }

    /// Puts an item into the order, for which there is room; or keeps it until the ledger is whole.
    fn say(&mut self, item: Item) {
        if let Some(kept) = &mut self.whole {
            let last = matches!(item, Item::End(_));
            kept.push(item);
            if last {
                let kept = std::mem::take(kept);
                kept.into_iter().for_each(|item| self.put(item));
                self.order.flush();
            }
            return;
        }
        self.put(item);
        self.order.flush();
    }

    fn put(&mut self, item: Item) {
        assert!(self.order.push(item).is_ok(), "room for a step's items was looked for");
    }

    /// The source gives no more.
    fn finish_source(&mut self, result: Result<(), String>) {
        let (outcome, reason) = match result {
            Ok(()) => (Outcome::Ended, None),
            Err(reason) => (Outcome::Failed, Some(reason)),
        };
        match &reason {
            None => tracing::info!(source = self.name, "the source has ended"),
            Some(reason) => tracing::error!(source = self.name, reason, "the source has failed"),
        }
        self.over = true;
        self.open = None;
        self.counters.set(SourceCounter::Open, 0);
        self.last_word = Some(Item::Finished(outcome, reason));
        if self.phase == Phase::Running {
            self.phase = Phase::Stopping;
        }
    }

    /// Whether the order has room for what a step can make; a wait that begins is counted.
    fn has_room(&mut self, now: i64) -> bool {
        let kept = self.whole.as_ref().map_or(0, Vec::len);
        if self.order.free() >= kept + ITEMS_AT_ONCE {
            self.blocked = false;
            return true;
        }
        if !self.blocked {
            self.blocked = true;
            self.counters.add(SourceCounter::Waits, 1);
        }
        self.look_again_at = now + LOOK_AGAIN_NS;
        false
    }

    /// Says whether this core and the encoders' are to look on without sleeping.
    fn keep_awake(&mut self, now: i64) {
        let asking = matches!(self.phase, Phase::Running | Phase::Finishing(_));
        let lively = asking && self.open.is_some() && now - self.moved_at < STALL_NS;
        if lively != self.lively {
            self.lively = lively;
            self.emitting.set(lively);
        }
    }

    /// Asks the source until it waits or a turn's bytes are read. Returns what it moved.
    fn read(&mut self, now: i64) -> usize {
        let (mut moved, mut bytes) = (0, 0);
        self.ready = (0, self.ready.0, self.ready.1);
        self.encoders.iter_mut().for_each(|encoder| encoder.given_bytes = 0);
        while bytes < self.turn_bytes && self.has_room(now) {
            match self.step(now) {
                Ok(Step::Moved(more)) => bytes += more,
                Ok(Step::Wait) => break,
                Ok(Step::Finished) => {
                    self.finish_source(Ok(()));
                    break;
                }
                Err(reason) => {
                    self.finish_source(Err(reason));
                    break;
                }
            }
            moved += 1;
            // Between two ledgers others have their turn: END goes out, and a stop is heard.
            if self.open.is_none() {
                break;
            }
        }
        moved
    }
}

impl Worker for SourceWorker {
    fn name(&self) -> &str {
        &self.name
    }

    fn stage(&self) -> u8 {
        0
    }

    fn start(&mut self, turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        self.pool.fill(self.buffers_ready);
        self.source.start(turn.now).map_err(|error| error.0)
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        let mut moved = 0;
        if let Some(word) = self.last_word.take() {
            match self.order.push(word) {
                Ok(()) => {
                    self.order.flush();
                    moved += 1;
                }
                Err(word) => {
                    self.last_word = Some(word);
                    self.look_again_at = turn.now + LOOK_AGAIN_NS;
                }
            }
        }
        if let Phase::Finishing(limit) = self.phase
            && (self.over || self.open.is_none() || turn.now >= limit)
        {
            self.phase = Phase::Stopping;
        }
        match self.phase {
            Phase::Running | Phase::Finishing(_) if !self.over => moved += self.read(turn.now),
            Phase::Stopping if self.source.stop(turn.now) => self.phase = Phase::Stopped,
            _ => {}
        }
        if moved > 0 {
            self.moved_at = turn.now;
        }
        self.keep_awake(turn.now);
        moved
    }

    fn stays_awake(&self) -> bool {
        self.spin_while_open && self.lively
    }

    fn deadline(&self) -> Option<i64> {
        let asking = matches!(self.phase, Phase::Running | Phase::Finishing(_));
        let waits = (self.blocked && asking) || self.last_word.is_some();
        let source = if self.phase == Phase::Stopped { None } else { self.source.deadline() };
        match (waits.then_some(self.look_again_at), source) {
            // Blocked: the source is not asked, whatever it wants.
            (Some(at), _) => Some(at),
            (None, at) => at,
        }
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        if self.phase == Phase::Running {
            self.phase = Phase::Finishing(turn.now.saturating_add(self.drain_ns));
        }
    }

    fn drained(&self) -> bool {
        self.phase == Phase::Stopped
    }
}
