//! The world of the ledger simulations, all of the stream but sockets and files: servers with their retention on simulated disks,
//! fed by a source or by another server (a relay), and subscribers over one connection or several.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;
use std::rc::Rc;

use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use sluice::ledger::assemble::{AssemblyError, Limits, StreamError};
use sluice::ledger::chunker::{Chunker, Cut};
use sluice::ledger::client::{Advanced, Client, ClientError, Polled, Truncated};
use sluice::ledger::compress::Packer;
use sluice::ledger::event::Item;
use sluice::ledger::hub::{Hub, Kept, Outcome, Stored, held_bytes};
use sluice::ledger::keeper::{Fault, Keeper, KeeperSettings, Op};
use sluice::ledger::message::{Encoded, HEADROOM};
use sluice::ledger::query::Range;
use sluice::ledger::retention::{self, Depth, Facts, Run, Segment};
use sluice::ledger::session::{Connection, Door, Server, Step};
use sluice::ledger::share::Share;
use sluice::ledger::synthetic::{self, Shape};
use sluice::ledger::url::Url;
use sluice::wire::http::Refusal;
use sluice::wire::ledger::{Begin, Codec, End, Message, decode};

/// What lies in a connection at most: a server's socket buffer.
pub const PIPE_BYTES: usize = 8 << 10;
/// Bytes of memory of completed ledgers that may wait for the disk.
pub const MEMORY_BYTES: u64 = 160 << 10;
/// What a connection may hold beside the messages that it shares: its request's head and its buffers.
const CONNECTION_BYTES_MAX: usize = 48 << 10;
pub const TURN_NS: i64 = 20_000_000;

/// Each is what a wrong part would do at a seam of the machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// One of a subscriber's messages is not sent.
    MessageLost,
    /// The client asks again for the ledger that it has.
    ResumeRepeats,
    /// The client asks for the one after next.
    ResumeSkips,
    /// Another run is announced as the one before.
    RunHidden,
    /// A torn tail is taken for whole.
    TornIsWhole,
    /// Frames that were read are not checked.
    ReadUnchecked,
    /// A sync is told to be done that did nothing.
    SyncLies,
    /// A replay is read from the place of another ledger.
    WrongPlace,
    /// Half of a record is written, and told to be whole.
    ShortIsWhole,
    /// A source that does not go on, whose ledgers are written as if they were of the run before.
    ResetKeepsSegments,
    /// Further flows carry each other's chunks.
    FlowShifted,
    /// A further flow begins with another ledger than the first one.
    FlowLate,
    /// A flow that begins its ledger again does not say so.
    FlowAgainHidden,
    /// END goes on the first flow only.
    FlowEndLost,
    /// A further flow carries a chunk twice.
    FlowChunkTwice,
    /// A flow carries all chunks of what is read from the store.
    FlowStoredWhole,
    /// A relay asks its upstream again for the ledger that it has.
    RelayEarly,
    /// A relay asks for the ledger after next.
    RelayLate,
    /// A relay goes on after ledgers that its upstream does not have any more, and does not tell.
    RelayGapHidden,
    /// A relay goes on under its old name when its upstream has another run.
    RelayRunHidden,
    /// A relay passes END on before the ledger is verified.
    RelayEndEarly,
    /// A ledger that begins again at the upstream goes on behind its old part.
    RelayPartKept,
    /// What was kept stays when a relay's upstream begins anew.
    RelayResetKeeps,
    /// A source waits while an encoder's queue is full.
    WaitsForEncoder,
    /// A source waits while too much waits for the disk.
    WaitsForDisk,
    /// A source waits while a subscriber takes nothing.
    WaitsForSubscriber,
    /// Packed chunks go out as they come, not in the order's order.
    EncodersMixed,
    /// A chunk that an encoder had no room for is forgotten.
    FallbackLost,
    /// What waits for the disk is not bounded.
    MemoryUnbounded,
}

/// What a world is like.
#[derive(Clone, Copy)]
pub struct Plan {
    pub relays_max: usize,
    pub flows_max: u32,
    /// Once in so many turns, each.
    pub restart_one_in: u32,
    pub cut_one_in: u32,
    pub stall_one_in: u32,
    pub full_one_in: u32,
    /// A restarted source is another one, once in so many restarts.
    pub another_one_in: u32,
    /// A chunk on its way to a relay is not what was sent, once in so many.
    pub corrupt_one_in: u32,
    /// Longest time of an operation of the disk, in turns.
    pub disk_turns_max: u32,
    pub ledger_bytes_max: u64,
}

/// What a run came through: a simulation that meets none of it proves nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub ledgers: u64,
    pub live: u64,
    pub partials: u64,
    pub abandons: u64,
    pub unwritten: u64,
    pub stored_runs: u64,
    pub lost_reads: u64,
    pub resumed: u64,
    pub too_far_behind: u64,
    pub run_changed: u64,
    pub truncated: u64,
    pub complete: u64,
    pub torn: u64,
    pub resets: u64,
    pub full: u64,
    pub failed: u64,
    pub drained: u64,
    pub refused: u64,
    pub by_flows: u64,
    pub relayed: u64,
    pub begun_again: u64,
    pub relay_runs: u64,
    pub relay_gaps: u64,
    pub corrupted: u64,
    pub fallbacks: u64,
    pub mixed: u64,
}

impl Tally {
    pub fn fields(&mut self) -> [&mut u64; 26] {
        let Tally {
            ledgers: a,
            live: b,
            partials: c,
            abandons: d,
            unwritten: e,
            stored_runs: f,
            lost_reads: g,
            resumed: h,
            too_far_behind: i,
            run_changed: j,
            truncated: k,
            complete: l,
            torn: m,
            resets: n,
            full: o,
            failed: p,
            drained: q,
            refused: r,
            by_flows: s,
            relayed: t,
            begun_again: u,
            relay_runs: v,
            relay_gaps: w,
            corrupted: x,
            fallbacks: y,
            mixed: z,
        } = self;
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z]
    }

    pub fn add(&mut self, other: &Tally) {
        let mut other = *other;
        self.fields().into_iter().zip(other.fields()).for_each(|(sum, one)| *sum += *one);
    }
}

/// What everything here works with.
pub struct Tools {
    pub random: Pcg64Mcg,
    pub bug: Bug,
    pub now: i64,
    pub faults: bool,
    pub plan: Plan,
    pub tally: Tally,
    /// Ledgers by the first byte of their run's identity and their sequence.
    ledgers: HashMap<(u8, u32), Rc<[u8]>>,
    /// How often the source began each of them.
    emitted: HashMap<(u8, u32), u32>,
    url: Url,
}

impl Tools {
    pub fn new(random: Pcg64Mcg, bug: Bug, plan: Plan) -> Tools {
        let url = Url::parse("ws://h:8462").expect("a URL");
        let (ledgers, emitted) = (HashMap::new(), HashMap::new());
        Tools { random, bug, now: 1, faults: true, plan, tally: Tally::default(), ledgers, emitted, url }
    }

    /// Whether a client's flows of a ledger are of two emissions: its source has begun it more than once.
    fn may_be_mixed(&self, client: &Client, sequence: u32) -> bool {
        let run = id_of(client.run().expect("our servers tell it"))[0];
        self.emitted.get(&(run, sequence)).is_some_and(|times| *times > 1)
    }

    pub fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    /// Whether the planted bug is this one, and shows now: once in so many.
    fn shows(&mut self, bug: Bug, one_in: u32) -> bool {
        self.bug == bug && self.chance(one_in)
    }

    /// A ledger's bytes: another length and shape in each run, so that a joined history shows.
    pub fn ledger(&mut self, run: u8, sequence: u32) -> Rc<[u8]> {
        let most = self.plan.ledger_bytes_max;
        self.ledgers.entry((run, sequence)).or_insert_with(|| ledger_bytes(run, sequence, most).into()).clone()
    }
}

fn ledger_bytes(run: u8, sequence: u32, most: u64) -> Vec<u8> {
    let mixed = u64::from(sequence).wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(run) * 7919);
    let mut bytes = vec![0; (mixed % (most + 1)) as usize];
    let shape = if mixed.is_multiple_of(3) { Shape::Noise } else { Shape::Compressible };
    synthetic::write(sequence ^ u32::from(run) << 24, shape, &mut bytes);
    bytes
}

struct SimSegment {
    bytes: Vec<u8>,
    durable: usize,
    deleted: bool,
}

/// Segments by number. What is deleted stays readable for whoever has it open.
#[derive(Default)]
pub struct Disk {
    segments: BTreeMap<u64, SimSegment>,
    /// What is under way, and the turns that it takes.
    under_way: Option<(Op, u32)>,
    pub full: bool,
}

impl Disk {
    /// An operation takes effect; of a write, its first `most` bytes.
    fn apply(&mut self, op: &Op, most: usize) {
        let place = |segment: &mut SimSegment, at: u64, bytes: &[u8]| {
            let end = at as usize + bytes.len();
            segment.bytes.resize(segment.bytes.len().max(end), 0);
            segment.bytes[at as usize..end].copy_from_slice(bytes);
        };
        match op {
            Op::Create { segment, header } => {
                let bytes = header[..most.min(header.len())].to_vec();
                let durable = bytes.len();
                self.segments.insert(*segment, SimSegment { bytes, durable, deleted: false });
            }
            Op::Write { segment, offset, head, frames } => {
                let mut bytes = head.clone();
                frames.iter().for_each(|frame| bytes.extend_from_slice(frame.frame()));
                bytes.truncate(most);
                place(self.segment(*segment), *offset, &bytes);
            }
            Op::Sync { segment } => {
                let segment = self.segment(*segment);
                segment.durable = segment.bytes.len();
            }
            Op::Seal { segment, end, table } => {
                let segment = self.segment(*segment);
                segment.bytes.truncate(*end as usize);
                segment.durable = segment.durable.min(*end as usize);
                place(segment, *end, &table[..most.min(table.len())]);
                if most >= table.len() {
                    segment.durable = segment.bytes.len();
                }
            }
            Op::Delete { segment } => {
                // One whose creation failed is not there.
                if let Some(segment) = self.segments.get_mut(segment) {
                    segment.deleted = true;
                }
            }
        }
    }

    fn segment(&mut self, number: u64) -> &mut SimSegment {
        self.segments.get_mut(&number).expect("created before")
    }

    /// What a crash leaves, opened.
    fn crash(&mut self, tools: &mut Tools) -> Vec<Segment> {
        // What was under way is there in part.
        if let Some((op, _)) = self.under_way.take() {
            let part = tools.random.random_range(0..10_000);
            if !matches!(op, Op::Sync { .. } | Op::Delete { .. }) {
                self.apply(&op, part);
            }
        }
        let mut opened = Vec::new();
        for segment in self.segments.values_mut() {
            let keep = tools.random.random_range(segment.durable..=segment.bytes.len());
            match tools.random.random::<bool>() {
                true => segment.bytes.truncate(keep),
                // The file's length came through, its bytes did not.
                false => segment.bytes[keep..].fill(0),
            }
            segment.durable = segment.bytes.len();
            if segment.deleted {
                continue;
            }
            match retention::open(&segment.bytes[..], Depth::Opening) {
                Ok(mut found) => {
                    tools.tally.torn += u64::from(found.damage.is_some());
                    if tools.bug == Bug::TornIsWhole && found.damage.is_some() {
                        // The header of a torn record is believed.
                        if let Some(mut torn) = found.records.last().copied() {
                            torn.stored.sequence += 1;
                            torn.stored.offset = found.end;
                            found.records.push(torn);
                        }
                    }
                    opened.push(found);
                }
                // Its creation was under way.
                Err(_) => segment.deleted = true,
            }
        }
        opened
    }
}

/// What a connection has taken of its server's room.
struct Entered {
    /// The subscription that ends with it: it is the first flow.
    group: Option<u64>,
}

/// A server's door: room for so many streams, and subscriptions of several flows.
struct Entrance {
    streams: usize,
    most: usize,
    flows_max: u32,
    groups: HashMap<u64, u32>,
    next_id: u64,
    entered: Option<Entered>,
    refused: u64,
}

impl Door for Entrance {
    fn flows_max(&self) -> u32 {
        self.flows_max
    }

    fn flows_of(&self, id: u64) -> Option<u32> {
        self.groups.get(&id).copied()
    }

    fn enter(&mut self, share: Share, id: Option<u64>, flows: bool) -> Result<Option<u64>, Refusal> {
        if self.streams >= self.most {
            self.refused += 1;
            return Err(Refusal::new(503, "no room: ask again later"));
        }
        self.streams += 1;
        self.next_id += 1;
        let id = id.unwrap_or(self.next_id);
        let group = (share.flow() == 0 && flows).then_some(id);
        if let Some(group) = group {
            self.groups.insert(group, share.flows());
        }
        self.entered = Some(Entered { group });
        Ok(flows.then_some(id))
    }
}

impl Entrance {
    fn leave(&mut self, entered: Option<Entered>) {
        let Some(entered) = entered else { return };
        self.streams -= 1;
        if let Some(group) = entered.group {
            self.groups.remove(&group);
        }
    }
}

/// A source of its own: emits the ledgers of a run.
pub struct Source {
    /// What is left of the open ledger.
    rest: Option<Rc<[u8]>>,
    at: usize,
    pub next: u32,
    /// The run that begins when the source does not go on.
    next_run: Option<Run>,
    chunker: Chunker,
    packer: Packer,
}

/// Where a server's ledgers come from.
pub enum Feed {
    /// Elsewhere.
    None,
    Source(Box<Source>),
    Relay(Box<Relay>),
}

/// A server.
pub struct Node {
    pub hub: Hub,
    pub keeper: Keeper,
    pub disk: Disk,
    pub settings: KeeperSettings,
    pub run: Run,
    /// The run as it is announced.
    pub announced: String,
    /// All that ever were.
    names: Vec<String>,
    pub feed: Feed,
    door: Entrance,
    floor: Floor,
    /// Turns until a server that drains is gone.
    draining: Option<u32>,
    /// The ledger of which a relay has passed on chunks that are not what was sent.
    tainted: Option<u32>,
}

impl Node {
    pub fn new(run: Run, settings: KeeperSettings, feed: Feed, streams_max: usize, flows_max: u32) -> Node {
        Node {
            hub: Hub::default(),
            keeper: Keeper::open(Vec::new(), run.clone(), settings, 0).0,
            disk: Disk::default(),
            settings,
            announced: run.to_string(),
            names: Vec::new(),
            run,
            feed,
            door: Entrance {
                streams: 0,
                most: streams_max,
                flows_max,
                groups: HashMap::new(),
                next_id: 0,
                entered: None,
                refused: 0,
            },
            floor: Floor::default(),
            draining: None,
            tainted: None,
        }
    }

    /// What its source's side gives it.
    pub fn apply(&mut self, item: Item, tools: &mut Tools) -> Result<(), String> {
        match item {
            Item::Begin(begin) if self.hub.open_sequence() == Some(begin.sequence) => {
                tools.tally.begun_again += 1;
                if tools.bug != Bug::RelayPartKept {
                    self.hub.begin_again(&begin);
                }
            }
            Item::Begin(begin) => {
                if self.hub.would_reset(begin.sequence) {
                    let (oldest, latest) = self.hub.bounds();
                    return Err(format!("a relay begins {} after {oldest} to {latest} in silence", begin.sequence));
                }
                self.hub.begin(&begin);
            }
            Item::Fallback(_) if tools.bug == Bug::FallbackLost => {}
            Item::Fallback(message) => {
                self.hub.count_raw_fallback();
                self.hub.chunk(message);
            }
            Item::Message(message) => self.hub.chunk(message),
            Item::Packed(_) => unreachable!("no encoder is here"),
            Item::End(end) => self.end(&end, tools.now),
            Item::Run(run) => {
                let id = id_of(&run);
                self.run = Run { id, network: [0; 8], epoch: self.run.epoch + 1, start: 0, source: "relay".into() };
                if tools.bug != Bug::RelayResetKeeps {
                    self.hub.reset();
                    self.keeper.reset(self.run.clone());
                }
                if self.announced != run {
                    self.floor.leave(&self.announced);
                    self.announced = run;
                }
            }
            Item::Finished(outcome, _) => self.hub.finish(outcome),
        }
        Ok(())
    }

    pub fn end(&mut self, end: &End, now: i64) {
        let frames = self.hub.end(end);
        let facts = Facts { sequence: end.sequence, raw_bytes: end.bytes, xxh64: end.xxh64, completed_ns: now };
        self.keeper.offer(facts, frames);
    }

    /// One step of the source: a ledger begins, gives a chunk, or ends.
    fn emit(&mut self, tools: &mut Tools) {
        let Feed::Source(source) = &mut self.feed else { return };
        if self.draining.is_some() && source.rest.is_none() {
            return;
        }
        let sequence = source.next;
        let Some(bytes) = &source.rest else {
            if self.hub.would_reset(sequence) {
                self.run = source.next_run.take().expect("only another run does not go on");
                announce(&self.run, &mut self.announced, &mut self.floor, tools.bug);
                if tools.bug != Bug::ResetKeepsSegments {
                    self.keeper.reset(self.run.clone());
                }
            }
            let bytes = tools.ledger(self.run.id[0], sequence);
            let declared = tools.random.random::<bool>().then_some(bytes.len() as u64);
            source.chunker.begin(sequence, declared).expect("begins");
            self.hub.begin(&Begin { sequence, emit_start_ns: tools.now });
            *tools.emitted.entry((self.run.id[0], sequence)).or_default() += 1;
            (source.rest, source.at) = (Some(bytes), 0);
            return;
        };
        let mut input = &bytes[source.at..];
        if !input.is_empty() {
            let most = input.len().min(1 + tools.random.random_range(0..4000));
            let rest = input.len() - most;
            input = &input[..most];
            let chunk = source.chunker.push(&mut input).expect("fits");
            source.at = bytes.len() - rest - input.len();
            if let Some(chunk) = chunk {
                let item = match tools.random.random_range(0..4) {
                    0 => Item::Message(chunk.into_message()),
                    1 => Item::Fallback(chunk.into_message()),
                    _ => Item::Message(source.packer.pack(chunk, source.chunker.spare())),
                };
                self.apply(item, tools).expect("a chunk has its place");
            }
            return;
        }
        let (last, end) = source.chunker.finish(tools.now).expect("whole");
        source.rest = None;
        source.next += 1;
        if let Some(chunk) = last {
            self.hub.chunk(chunk.into_message());
        }
        self.end(&end, tools.now);
    }

    /// The disk, one operation after the other, each in its time; then memory is bounded, and it is looked at whether it is.
    pub fn store(&mut self, tools: &mut Tools) {
        if tools.bug != Bug::MemoryUnbounded {
            self.hub.bound_memory(MEMORY_BYTES);
        }
        self.write(tools);
        // The last one may be longer than the bound: it is the flow's own memory.
        let last = match self.hub.kept(self.hub.bounds().1) {
            Some(Kept::Memory(replay)) => held_bytes(replay),
            _ => 0,
        };
        let most = MEMORY_BYTES.max(last);
        assert!(self.hub.memory_bytes() <= most, "{} bytes wait for the disk", self.hub.memory_bytes());
        let (oldest, latest) = self.hub.bounds();
        // What waits for the disk is kept in memory, but for the one that it works at.
        let waiting = self.keeper.waiting();
        assert!(waiting <= (latest + 1 - oldest) as usize + 1, "{waiting} ledgers wait for the disk");
        if self.names.last() != Some(&self.announced) {
            self.names.push(self.announced.clone());
        }
        self.floor.now = self.floor.now.max(oldest).max(self.hub.open_sequence().unwrap_or(latest + 1));
    }

    fn write(&mut self, tools: &mut Tools) {
        for _ in 0..4 {
            // Asked while something is under way as well, as the archive does.
            if let Some(op) = self.keeper.poll(&self.hub, tools.now) {
                let turns = tools.random.random_range(0..tools.plan.disk_turns_max);
                self.disk.under_way = Some((op, turns));
            }
            match self.disk.under_way.take() {
                Some((op, turns)) if turns > 0 => {
                    self.disk.under_way = Some((op, turns - 1));
                    return;
                }
                Some((op, _)) => self.complete(&op, tools),
                None => return,
            }
        }
    }

    fn complete(&mut self, op: &Op, tools: &mut Tools) {
        let takes_space = matches!(op, Op::Create { .. } | Op::Write { .. } | Op::Seal { .. });
        let result = if self.disk.full && takes_space {
            Err(Fault::NoSpace)
        } else if tools.faults && tools.chance(200) {
            Err(Fault::Io(5))
        } else {
            Ok(())
        };
        let part = if result.is_err() || tools.shows(Bug::ShortIsWhole, 20) {
            tools.random.random_range(0..2_000)
        } else {
            usize::MAX
        };
        let lies = tools.bug == Bug::SyncLies && matches!(op, Op::Sync { .. });
        let failed_sync = result.is_err() && matches!(op, Op::Sync { .. } | Op::Delete { .. });
        if !lies && !failed_sync {
            self.disk.apply(op, part);
        }
        self.keeper.on_done(result, &mut self.hub, tools.now, tools.now);
    }

    /// What this server has counted goes to the tally: it ends, or the run does.
    pub fn count(&mut self, tally: &mut Tally) {
        let counters = self.hub.counters();
        tally.abandons += counters.live_abandons;
        tally.unwritten += counters.unwritten_dropped;
        tally.resets += counters.resets;
        tally.fallbacks += counters.raw_fallbacks;
        let counters = self.keeper.counters();
        tally.full += counters.no_space;
        tally.failed += counters.failed;
        tally.refused += std::mem::take(&mut self.door.refused);
    }

    /// The server dies, the disk keeps what was durable and some of the rest, and another server opens it. Its connections are gone.
    fn restart(&mut self, tools: &mut Tools, serial: &mut u8) -> Result<(), String> {
        let mut tally = tools.tally;
        self.count(&mut tally);
        tools.tally = tally;
        let durable: Vec<u32> =
            self.keeper.durable().map(|durable| (self.hub.bounds().0..=durable).collect()).unwrap_or_default();
        let opened = self.disk.crash(tools);
        let latest_run = opened.iter().rev().find(|segment| !segment.records.is_empty());
        let run = latest_run.map(|segment| segment.header.run.clone());
        let (keeper, found) =
            Keeper::open(opened, run.clone().unwrap_or_else(|| self.run.clone()), self.settings, tools.now);
        let has = |sequence: &u32| found.stored.iter().any(|stored: &Stored| stored.sequence == *sequence);
        let found_bytes: u64 = found.stored.iter().map(|stored| stored.wire_bytes).sum();
        let bounds = self.settings.bounds;
        // What is older than everything that was found has left by a bound, which what was just written counts for as well.
        let has_left = |sequence: u32| {
            found.stored.first().is_some_and(|first| sequence < first.sequence)
                && (found.stored.len() >= bounds.ledgers_max as usize
                    || bounds.bytes_max.is_some_and(|most| found_bytes + 2 * tools.plan.ledger_bytes_max > most)
                    || bounds.age_ns_max.is_some())
        };
        if let Some(lost) = durable.iter().find(|sequence| !has(sequence) && !has_left(**sequence)) {
            return Err(format!("ledger {lost} of {durable:?} was durable and is gone: {found:?}"));
        }
        (self.keeper, self.hub) = (keeper, Hub::new(&found.stored));
        (self.draining, self.tainted) = (None, None);
        let latest = self.hub.bounds().1;
        match &mut self.feed {
            Feed::None => {}
            Feed::Source(source) => {
                source.rest = None;
                let another = tools.chance(tools.plan.another_one_in) || run.is_none();
                if another {
                    *serial += 1;
                    source.next = (latest + if tools.chance(2) { 3 } else { 0 }).max(1);
                    let (start, epoch) = (source.next, self.run.epoch + 1);
                    let id = [*serial; 16];
                    source.next_run = Some(Run { id, network: [0; 8], epoch, start, source: String::new() });
                } else {
                    (source.next, source.next_run) = (latest + 1, None);
                }
                match run {
                    Some(run) => self.run = run,
                    // Nothing is kept, so nothing has to be dropped before the run begins.
                    None => {
                        self.run = source.next_run.take().expect("made above");
                        self.keeper.reset(self.run.clone());
                    }
                }
            }
            Feed::Relay(relay) => {
                match run {
                    Some(run) => self.run = run,
                    // A name until the upstream has told its own; no ledger comes under it.
                    None => {
                        *serial += 1;
                        self.run = Run { id: [*serial; 16], epoch: self.run.epoch + 1, ..self.run.clone() };
                        self.keeper.reset(self.run.clone());
                    }
                }
                **relay = Relay::new(latest, tools);
            }
        }
        self.floor.leave(&self.announced);
        announce(&self.run, &mut self.announced, &mut self.floor, tools.bug);
        Ok(())
    }
}

/// What leaves retention in a run leaves it for good, until its server leaves the run or dies.
#[derive(Default)]
struct Floor {
    /// No ledger before this is to come any more.
    now: u32,
    /// The highest before, under each name of a run: a name can come back.
    before: HashMap<String, u32>,
}

impl Floor {
    fn leave(&mut self, run: &str) {
        let floor = std::mem::take(&mut self.now);
        let before = self.before.entry(run.into()).or_default();
        *before = floor.max(*before);
    }
}

fn announce(run: &Run, announced: &mut String, floor: &mut Floor, bug: Bug) {
    let run = run.to_string();
    if *announced != run && bug != Bug::RunHidden {
        floor.leave(announced);
        *announced = run;
    }
}

/// The identity that a run's announcement begins with.
fn id_of(announced: &str) -> [u8; 16] {
    let digits: String = announced.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    std::array::from_fn(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hexadecimal"))
}

/// One connection: the server's side, and what is on its way.
#[derive(Default)]
struct Pipe {
    connection: Option<Connection>,
    entered: Option<Entered>,
    up: Vec<u8>,
    down: VecDeque<u8>,
    /// Inside a ledger, as far as the server has sent.
    inside: bool,
}

/// A client with its connections to a server.
pub struct Peer {
    pub client: Client,
    pipes: Vec<Pipe>,
    wait: u32,
    /// A byte of a chunk that was sent to it is another one.
    corrupted: bool,
}

impl Peer {
    pub fn new(range: Range, flows: usize) -> Peer {
        let client = Client::with_flows(range, Limits::default(), flows).expect("zstd");
        Peer { client, pipes: Vec::new(), wait: 0, corrupted: false }
    }

    /// Connects, unless it waits; whether it has connections.
    pub fn connect(&mut self, tools: &mut Tools) -> bool {
        if !self.pipes.is_empty() {
            return true;
        }
        if self.wait > 0 {
            self.wait -= 1;
            return false;
        }
        self.corrupted = false;
        self.client.connect(&tools.url, None, tools.random.random());
        self.pipes.push(Pipe { connection: Some(Connection::new(tools.now)), ..Pipe::default() });
        true
    }

    /// Connects the further flows that were agreed on.
    fn open_flows(&mut self, tools: &mut Tools) {
        while !self.pipes.is_empty() && self.pipes.len() < self.client.lines() {
            let flow = self.pipes.len();
            self.client.connect_flow(flow, &tools.url, None, tools.random.random());
            let mut pipe = Pipe { connection: Some(Connection::new(tools.now)), ..Pipe::default() };
            self.client.line(flow).take_output(&mut pipe.up);
            let request = String::from_utf8(std::mem::take(&mut pipe.up)).expect("a request is text");
            pipe.up = match tools.bug {
                Bug::FlowShifted if self.client.lines() > 2 => match flow {
                    1 => request.replace("flow=1&", "flow=2&"),
                    _ => request.replace("flow=2&", "flow=1&"),
                },
                Bug::FlowLate => {
                    let (before, after) = request.split_once("start=").expect("it asks for a range");
                    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
                    let start: u32 = after[..digits].parse().expect("a number");
                    format!("{before}start={}{}", start + 1, &after[digits..])
                }
                _ => request,
            }
            .into_bytes();
            self.pipes.push(pipe);
        }
    }

    /// All connections are gone.
    pub fn hang_up(&mut self, node: &mut Node, tools: &mut Tools) {
        for pipe in self.pipes.drain(..) {
            node.door.leave(pipe.entered);
        }
        self.wait = tools.random.random_range(1..5);
    }

    /// What the server does for its connections in a turn.
    pub fn serve(&mut self, node: &mut Node, tools: &mut Tools, relay: bool) {
        for flow in 0..self.pipes.len() {
            self.client.line(flow).take_output(&mut self.pipes[flow].up);
            let corrupted = self.pipes[flow].serve(node, tools, flow, relay);
            self.corrupted |= corrupted;
        }
    }

    /// Bytes reach the client: of the flow that is due, and of those that are being answered.
    pub fn pull(&mut self, tools: &mut Tools) {
        for flow in 0..self.pipes.len() {
            if self.client.line(flow).is_streaming() && flow != self.client.due() {
                continue;
            }
            let pipe = &mut self.pipes[flow];
            let piece = tools.random.random_range(1..5_000).min(pipe.down.len());
            let bytes: Vec<u8> = pipe.down.drain(..piece).collect();
            if let Some(connection) = &mut pipe.connection
                && piece > 0
            {
                connection.progress(pipe.down.is_empty(), tools.now);
            }
            self.client.line(flow).feed(&bytes);
        }
    }

    /// Whether a connection takes no more.
    pub fn is_full(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.down.len() >= PIPE_BYTES)
    }

    /// A connection that ended, as its client sees it once it has read everything.
    pub fn ended(&mut self) -> Option<Result<(), ClientError>> {
        for flow in 0..self.pipes.len() {
            let pipe = &self.pipes[flow];
            let over = pipe.connection.is_none() && pipe.down.is_empty();
            if over && (!self.client.line(flow).is_streaming() || flow == self.client.due()) {
                return Some(self.client.flow_disconnected(flow));
            }
        }
        None
    }
}

impl Pipe {
    fn serve(&mut self, node: &mut Node, tools: &mut Tools, flow: usize, relay: bool) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let taken = if self.up.is_empty() { 0 } else { tools.random.random_range(1..=self.up.len()) };
        let up: Vec<u8> = self.up.drain(..taken).collect();
        let server = Server { run: &node.announced, subscribers: node.door.streams };
        connection.on_bytes_at(&up, &node.hub, server, &mut node.door, tools.now);
        if let Some(entered) = node.door.entered.take() {
            self.entered = Some(entered);
        }
        connection.on_time(tools.now);
        let memory_bytes = connection.memory_bytes();
        assert!(memory_bytes <= CONNECTION_BYTES_MAX, "a connection holds {memory_bytes} bytes");
        let mut corrupted = false;
        while self.down.len() < PIPE_BYTES {
            let Some(connection) = &mut self.connection else { break };
            match connection.poll(&mut node.hub, tools.now) {
                Step::Wait => break,
                Step::End => {
                    self.connection = None;
                    node.door.leave(self.entered.take());
                }
                Step::Bytes(bytes) => self.down.extend(bytes),
                Step::Message(message) => corrupted |= self.send(&message, node.tainted, tools, flow, relay),
                Step::Stored(stored, frame) => self.read(node, tools, stored, frame),
            }
        }
        corrupted
    }

    /// A message goes onto the connection; whether it is another one when it arrives.
    fn send(
        &mut self,
        message: &Encoded,
        node_tainted: Option<u32>,
        tools: &mut Tools,
        flow: usize,
        relay: bool,
    ) -> bool {
        let again = std::mem::replace(&mut self.inside, true);
        let (mut chunk_bytes, mut tainted) = (0, false);
        match decode(message.message()).expect("a message") {
            Message::Begin(_) if again && flow > 0 && tools.bug == Bug::FlowAgainHidden => return false,
            Message::Begin(_) => {}
            Message::End(_) => {
                self.inside = false;
                if flow > 0 && tools.bug == Bug::FlowEndLost {
                    return false;
                }
            }
            Message::Chunk(header, payload) => {
                chunk_bytes = payload.len();
                tainted = node_tainted == Some(header.sequence);
                if flow > 0 && tools.shows(Bug::FlowChunkTwice, 20) {
                    self.down.extend(message.frame());
                }
            }
        }
        if tools.shows(Bug::MessageLost, 50) {
            return false;
        }
        self.down.extend(message.frame());
        let corrupted = relay && tools.faults && chunk_bytes > 0 && tools.chance(tools.plan.corrupt_one_in);
        if corrupted && let Some(last) = self.down.back_mut() {
            *last ^= 0x10;
        }
        corrupted || tainted
    }

    /// Frames of a stored ledger are read, checked and sent.
    fn read(&mut self, node: &mut Node, tools: &mut Tools, mut stored: Stored, frame: u32) {
        let Some(connection) = &mut self.connection else { return };
        let segment = &node.disk.segments[&stored.segment];
        if tools.shows(Bug::WrongPlace, 5) {
            let other = retention::open(&segment.bytes[..], Depth::Opening).expect("a segment");
            stored = other.records[tools.random.random_range(0..other.records.len())].stored;
        }
        let read = retention::read_record(&segment.bytes[..], stored.segment, stored.offset);
        let rest = match &read {
            Ok(Ok((_, checks))) => checks.get(frame as usize..).filter(|rest| !rest.is_empty()),
            _ => None,
        };
        let (Some(rest), Ok(Ok((record, checks)))) = (rest, &read) else {
            // It is not there: it leaves retention, and who comes back is told so.
            node.hub.prune(stored.sequence + 1);
            return connection.lost();
        };
        let (frames, bytes) = retention::run(rest, tools.random.random_range(1..30_000));
        let skipped: u64 = checks[..frame as usize].iter().map(|check| u64::from(check.bytes)).sum();
        let at = (stored.offset + record.frames_at() + skipped) as usize;
        let mut run = segment.bytes[at..at + bytes as usize].to_vec();
        let misread = tools.random.random_range(0..200) == 0 && !run.is_empty();
        if misread {
            let at = tools.random.random_range(0..run.len());
            run[at] ^= 1;
        }
        if !retention::frames_hold(&rest[..frames], &run) && tools.bug != Bug::ReadUnchecked {
            tools.tally.lost_reads += 1;
            if !misread {
                node.hub.prune(stored.sequence + 1);
            }
            return connection.lost();
        }
        tools.tally.stored_runs += 1;
        if tools.bug == Bug::WrongPlace && frames as u32 > stored.frames - frame {
            return connection.lost();
        }
        // A flow carries its own chunks only, from wherever they come.
        let (share, mut rest_of_run) = (connection.share(), &run[..]);
        for (place, check) in (frame as usize..).zip(&rest[..frames]) {
            let (bytes, after) = rest_of_run.split_at(check.bytes as usize);
            rest_of_run = after;
            if share.takes(place, Some(stored.frames as usize - 1)) || tools.bug == Bug::FlowStoredWhole {
                self.down.extend(bytes);
            }
        }
        connection.took(frames as u32, tools.now);
        self.inside = false;
    }
}

/// A relay: another server is the source, and its messages are passed on as they come. What the relay's worker decides, without
/// its sockets.
pub struct Relay {
    peer: Peer,
    joined: bool,
    greeted: bool,
    begun: Option<u32>,
    pub over: bool,
}

/// What a relay's step came to.
enum Went {
    On,
    Waits,
    /// The connections are gone.
    Away,
}

impl Relay {
    /// A relay that goes on after `latest`; 0: nothing is kept, it begins with what is in flight.
    pub fn new(latest: u32, tools: &mut Tools) -> Relay {
        let start = match (latest, tools.bug) {
            (0, _) => 0,
            (latest, Bug::RelayEarly) => latest,
            (latest, Bug::RelayLate) => latest + 2,
            (latest, _) => latest + 1,
        };
        let flows = tools.random.random_range(1..=tools.plan.flows_max as usize);
        let peer = Peer::new(Range::new(start, None).expect("a range"), flows);
        Relay { peer, joined: latest > 0, greeted: false, begun: None, over: false }
    }

    fn turn(&mut self, upstream: &mut Node, node: &mut Node, tools: &mut Tools) -> Result<(), String> {
        if self.over || node.draining.is_some() && node.hub.open_sequence().is_none() {
            return Ok(());
        }
        if !self.peer.connect(tools) {
            return Ok(());
        }
        self.peer.serve(upstream, tools, true);
        for _ in 0..tools.random.random_range(1..6) {
            self.peer.pull(tools);
            loop {
                match self.step(node, tools) {
                    Ok(Went::On) => {}
                    Ok(Went::Waits) => break,
                    Ok(Went::Away) => {
                        self.hang_up(upstream, tools);
                        return Ok(());
                    }
                    Err(what) => return Err(format!("relay: {what}")),
                }
            }
            if self.greeted {
                self.peer.open_flows(tools);
            }
            if let Some(ended) = self.peer.ended() {
                let done = ended.map_or_else(|error| self.failed(node, error, tools), |()| Ok(()));
                self.hang_up(upstream, tools);
                return done;
            }
        }
        Ok(())
    }

    /// The connections are gone. One to the tip that broke inside its first ledger goes on with that one.
    fn hang_up(&mut self, upstream: &mut Node, tools: &mut Tools) {
        self.peer.hang_up(upstream, tools);
        self.greeted = false;
        let client = &self.peer.client;
        if client.range().is_tip()
            && client.last().is_none()
            && let Some(begun) = self.begun
        {
            self.from(begun, tools);
        }
    }

    fn from(&mut self, start: u32, tools: &mut Tools) {
        let flows = tools.random.random_range(1..=tools.plan.flows_max as usize);
        let range = Range::new(start, None).expect("a range");
        self.peer.client = Client::with_flows(range, Limits::default(), flows).expect("zstd");
    }

    fn step(&mut self, node: &mut Node, tools: &mut Tools) -> Result<Went, String> {
        let client = &mut self.peer.client;
        let mut items = Vec::new();
        let step = match client.answered() {
            Err(error) => Err(error),
            Ok(_) if client.is_streaming() && !self.greeted => return self.greet(node, tools),
            Ok(_) => client.message(&mut |message| items.push(passed_on(message))),
        };
        for item in items {
            if self.peer.corrupted && matches!(item, Item::Message(_)) {
                node.tainted = node.hub.open_sequence();
            }
            node.apply(item, tools)?;
        }
        match step {
            Ok(Advanced::Wait) => Ok(Went::Waits),
            Ok(Advanced::Message) => {
                if client.last().is_none() {
                    self.begun = client.open();
                }
                Ok(Went::On)
            }
            Ok(Advanced::Ledger) => {
                self.joined = true;
                tools.tally.relayed += 1;
                Ok(Went::On)
            }
            Ok(Advanced::Done) => {
                self.over = true;
                node.apply(Item::Finished(Outcome::Ended, None), tools)?;
                Ok(Went::Away)
            }
            Err(error) => self.failed(node, error, tools).map(|()| Went::Away),
        }
    }

    fn greet(&mut self, node: &mut Node, tools: &mut Tools) -> Result<Went, String> {
        self.greeted = true;
        let run = self.peer.client.run().expect("our servers tell it").to_string();
        if run == node.announced || tools.bug == Bug::RelayRunHidden {
            return Ok(Went::On);
        }
        if self.joined {
            self.begin_anew(0, run, node, tools)?;
            tools.tally.relay_runs += 1;
            return Ok(Went::Away);
        }
        node.apply(Item::Run(run), tools)?;
        Ok(Went::On)
    }

    fn begin_anew(&mut self, start: u32, run: String, node: &mut Node, tools: &mut Tools) -> Result<(), String> {
        self.from(start, tools);
        (self.joined, self.begun) = (false, None);
        node.apply(Item::Run(run), tools)
    }

    fn failed(&mut self, node: &mut Node, error: ClientError, tools: &mut Tools) -> Result<(), String> {
        if self.peer.corrupted
            && tools.bug == Bug::RelayEndEarly
            && let ClientError::Stream(StreamError::Protocol(AssemblyError::Checksum { sequence, stated, .. })) = error
            && let Some(flow) = node.hub.flow()
        {
            let chunks = flow.messages().len() as u32 - 1;
            let bytes = flow.messages().iter().map(|message| message.raw_bytes() as u64).sum();
            node.end(&End { sequence, chunks, bytes, emit_end_ns: tools.now, xxh64: stated }, tools.now);
        }
        match error {
            ClientError::RunChanged { now: Some(run), .. } => {
                tools.tally.relay_runs += 1;
                self.begin_anew(0, run, node, tools)
            }
            // Nothing is kept there yet: the ledger that is in flight will be.
            ClientError::TooFarBehind { bounds: Some((0, _)), .. } => Ok(()),
            ClientError::TooFarBehind { bounds: Some((oldest, _)), .. } => {
                tools.tally.relay_gaps += 1;
                if tools.bug == Bug::RelayGapHidden {
                    self.from(oldest, tools);
                    return Ok(());
                }
                self.begin_anew(oldest, node.announced.clone(), node, tools)
            }
            ClientError::Mixed { sequence, .. } => {
                tools.tally.mixed += 1;
                let may_be = self.peer.corrupted || tools.may_be_mixed(&self.peer.client, sequence);
                if may_be { Ok(()) } else { Err(error.to_string()) }
            }
            error if error.is_retryable() => Ok(()),
            error if self.peer.corrupted => {
                self.over = true;
                tools.tally.corrupted += 1;
                node.apply(Item::Finished(Outcome::Failed, Some(error.to_string())), tools)
            }
            error => Err(error.to_string()),
        }
    }
}

/// A message as a relay passes it on.
fn passed_on(message: &Message<'_>) -> Item {
    match message {
        Message::Begin(begin) => Item::Begin(*begin),
        Message::End(end) => Item::End(*end),
        Message::Chunk(header, payload) => {
            let mut buffer = vec![0; HEADROOM];
            buffer.extend_from_slice(payload);
            let raw_bytes = match header.codec {
                Codec::Raw => payload.len(),
                Codec::Zstd => zstd::stream::decode_all(*payload).map_or(0, |raw| raw.len()),
            };
            Item::Message(Encoded::in_place(buffer.into(), *header, payload.len(), raw_bytes))
        }
    }
}

/// A subscriber, and what it must see.
pub struct Subscriber {
    pub peer: Peer,
    pub range: Range,
    /// The server that it is of.
    pub node: usize,
    flows: usize,
    pub stalled: bool,
    pub last: Option<u32>,
    /// The run that its ledgers are of.
    run: Option<String>,
    pub ended: bool,
}

impl Subscriber {
    pub fn new(range: Range, node: usize, flows: usize) -> Subscriber {
        let peer = Peer::new(range, flows);
        Subscriber { peer, range, node, flows, stalled: false, last: None, run: None, ended: false }
    }

    /// What it does in a turn, and what its server does for it.
    pub fn turn(&mut self, node: &mut Node, tools: &mut Tools) -> Result<(), String> {
        if self.ended {
            return Ok(());
        }
        if self.peer.pipes.is_empty() && self.peer.wait == 0 && !self.resume(tools) {
            return Ok(());
        }
        if !self.peer.connect(tools) {
            return Ok(());
        }
        self.peer.serve(node, tools, false);
        if self.stalled {
            return Ok(());
        }
        for _ in 0..tools.random.random_range(1..4) * self.flows {
            self.peer.pull(tools);
            if !self.poll(node, tools)? {
                return Ok(());
            }
            self.peer.open_flows(tools);
            if let Some(ended) = self.peer.ended() {
                self.peer.hang_up(node, tools);
                match ended {
                    Ok(()) => self.ended = true,
                    Err(error) => self.judge(error, node, tools)?,
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Looks at what is still wanted; whether anything is.
    fn resume(&mut self, tools: &Tools) -> bool {
        self.ended = self.peer.client.is_complete();
        let resumed = match (tools.bug, self.last) {
            _ if self.ended => None,
            (Bug::ResumeRepeats, Some(last)) => Some(last),
            (Bug::ResumeSkips, Some(last)) => Some(last + 2),
            _ => None,
        };
        if let Some(range) = resumed.and_then(|start| Range::new(start, self.range.end()).ok()) {
            self.peer.client = Client::with_flows(range, Limits::default(), self.flows).expect("zstd");
        }
        !self.ended
    }

    /// The network, or the client's side, ends its connections.
    pub fn cut(&mut self, node: &mut Node, tools: &mut Tools) -> Result<(), String> {
        let connected = !self.peer.pipes.is_empty();
        self.peer.hang_up(node, tools);
        if self.ended || !connected {
            return Ok(());
        }
        match self.peer.client.disconnected() {
            Ok(()) => self.ended = true,
            Err(error) => self.judge(error, node, tools)?,
        }
        Ok(())
    }

    /// Takes what the client has; whether its connections still stand.
    fn poll(&mut self, node: &mut Node, tools: &mut Tools) -> Result<bool, String> {
        loop {
            let flows = self.peer.client.lines() > 1;
            match self.peer.client.poll() {
                Ok(Polled::Wait) => return Ok(true),
                Ok(Polled::Ledger(ledger)) => {
                    tools.tally.ledgers += 1;
                    tools.tally.live += u64::from(ledger.is_live());
                    tools.tally.partials += u64::from(ledger.discarded_partials);
                    tools.tally.by_flows += u64::from(flows);
                    let (sequence, bytes) = (ledger.sequence, ledger.bytes.to_vec());
                    self.check(sequence, &bytes, tools)?;
                }
                Ok(Polled::Done) => {
                    tools.tally.complete += 1;
                    self.ended = true;
                    self.peer.hang_up(node, tools);
                    return self.check_end(node).map(|()| false);
                }
                Err(error) => {
                    self.peer.hang_up(node, tools);
                    self.judge(error, node, tools)?;
                    return Ok(false);
                }
            }
        }
    }

    /// A ledger must be the next one, of the run of those before, and what the source gave.
    fn check(&mut self, sequence: u32, bytes: &[u8], tools: &mut Tools) -> Result<(), String> {
        let next = match self.last {
            Some(last) => sequence == last + 1,
            None => self.range.is_tip() || sequence == self.range.start(),
        };
        if !next || self.range.end().is_some_and(|end| sequence > end) {
            return Err(format!("ledger {sequence} after {:?}", self.last));
        }
        self.last = Some(sequence);
        let run = self.peer.client.run().expect("announced").to_string();
        let id = id_of(&run)[0];
        if *self.run.get_or_insert(run.clone()) != run {
            return Err(format!("ledger {sequence} is of another run"));
        }
        match bytes == &*tools.ledger(id, sequence) {
            true => Ok(()),
            false => Err(format!("ledger {sequence} has other bytes")),
        }
    }

    /// An end without an error: nothing may be missing.
    fn check_end(&self, node: &Node) -> Result<(), String> {
        let (end, latest) = (self.range.end(), node.hub.bounds().1);
        let all = end.unwrap_or(latest).min(latest);
        match self.last {
            Some(last) if last < all => Err(format!("it ended at {last} of {all}")),
            None if !self.range.is_tip() && self.range.start() <= all => Err("it got nothing".into()),
            _ => Ok(()),
        }
    }

    /// Whether an error is true. Those that can be resumed are.
    fn judge(&mut self, error: ClientError, node: &Node, tools: &mut Tools) -> Result<(), String> {
        let (oldest, latest) = node.hub.bounds();
        let retry = error.is_retryable();
        let is_true = match &error {
            // A relay passes chunks on before it knows them to be good; where it begins the ledger again because of it, another flow may give
            // the good END first.
            ClientError::Mixed { sequence, .. } => {
                self.peer.corrupted || tools.may_be_mixed(&self.peer.client, *sequence)
            }
            _ if retry => true,
            // Retention only moves on; another run has its own bounds.
            ClientError::TooFarBehind { requested, .. } => {
                let run = self.peer.client.run();
                let told_by_another = run != Some(&node.announced);
                let told_before = run.and_then(|run| node.floor.before.get(run)).is_some_and(|floor| requested < floor);
                told_by_another
                    || told_before
                    || *requested < node.floor.now.max(oldest) && node.hub.kept(*requested).is_none()
            }
            ClientError::RunChanged { now: Some(now), .. } => {
                self.run.as_ref().is_some_and(|run| run != now) && node.names.contains(now)
            }
            // It never says that they were good.
            ClientError::Stream(StreamError::Protocol(AssemblyError::Unpack { .. })) => self.peer.corrupted,
            ClientError::Truncated(why) => {
                // What the ledger at hand came of was dropped for another run, or for want of space.
                let is_gone = matches!(why, Truncated::Inside { sequence } if node.hub.kept(*sequence).is_none());
                node.hub.outcome().is_some() && (is_gone || self.range.end().is_some_and(|end| end > latest))
            }
            _ => false,
        };
        if !is_true {
            return Err(format!("{error} (kept {oldest} to {latest}, run {})", node.run));
        }
        self.ended = !retry;
        let tally = &mut tools.tally;
        *match &error {
            ClientError::TooFarBehind { .. } => &mut tally.too_far_behind,
            ClientError::RunChanged { .. } => &mut tally.run_changed,
            ClientError::Truncated(_) => &mut tally.truncated,
            ClientError::Stream(_) => &mut tally.corrupted,
            ClientError::Mixed { .. } => &mut tally.mixed,
            ClientError::Closed { code: Some(1012), reason } if reason == "server draining" => &mut tally.drained,
            _ => &mut tally.resumed,
        } += 1;
        Ok(())
    }
}

/// Turns with faults; after them everything works, and everybody must come to an end.
const TURNS: usize = 200;
/// Turns after which whoever has not ended is stuck. A turn of the calm phase moves at least one piece to each subscriber.
const CALM_TURNS: usize = 20_000;

/// Servers in a chain: the first has a source, each other relays the one before.
pub struct World {
    pub tools: Tools,
    pub nodes: Vec<Node>,
    pub subscribers: Vec<Subscriber>,
    /// Runs get their identities from it.
    serial: u8,
}

impl World {
    pub fn new(mut tools: Tools, settings: impl Fn(&mut Pcg64Mcg) -> KeeperSettings) -> World {
        let random = &mut tools.random;
        let tail = random.random::<bool>().then_some(4096);
        let cut = Cut::new(if random.random() { 4096 } else { 8192 }, tail).expect("a cut");
        let start = random.random_range(1..50);
        let relays = random.random_range(0..=tools.plan.relays_max);
        let flows_max = tools.plan.flows_max;
        let mut world = World { nodes: Vec::new(), subscribers: Vec::new(), serial: 0, tools };
        for number in 0..=relays {
            world.serial += 1;
            let id = [world.serial; 16];
            let run = Run { id, network: [0; 8], epoch: 1, start, source: "synthetic".into() };
            let feed = match number {
                0 => Feed::Source(Box::new(Source {
                    rest: None,
                    at: 0,
                    next: start,
                    next_run: None,
                    chunker: Chunker::new(cut),
                    packer: Packer::new(1).expect("zstd"),
                })),
                _ => Feed::Relay(Box::new(Relay::new(0, &mut world.tools))),
            };
            // Room for a few, so that some are refused; a subscription of all flows and a relay always fit.
            let streams = world.tools.random.random_range(2 * flows_max as usize..12);
            let settings = settings(&mut world.tools.random);
            world.nodes.push(Node::new(run, settings, feed, streams, flows_max));
        }
        for _ in 0..world.tools.random.random_range(1..6) {
            world.subscribe(start);
        }
        world
    }

    fn subscribe(&mut self, next: u32) {
        let tools = &mut self.tools;
        let start = if tools.chance(3) { 0 } else { next + tools.random.random_range(0..6) };
        let end = match tools.chance(2) {
            true => None,
            false => Some(start.max(next) + tools.random.random_range(0..30)),
        };
        let range = Range::new(start, end).expect("a range");
        let node = tools.random.random_range(0..self.nodes.len());
        let flows = tools.random.random_range(1..=tools.plan.flows_max as usize);
        self.subscribers.push(Subscriber::new(range, node, flows));
    }

    fn source(&mut self) -> &mut Source {
        match &mut self.nodes[0].feed {
            Feed::Source(source) => source,
            _ => unreachable!("the first server has a source"),
        }
    }

    pub fn run(mut self) -> Result<Tally, String> {
        for _ in 0..TURNS {
            self.turn()?;
        }
        // Calm: the disk works, nothing is cut, the source gives one more ledger and ends.
        self.tools.faults = false;
        self.nodes.iter_mut().for_each(|node| node.disk.full = false);
        self.subscribers.iter_mut().for_each(|subscriber| subscriber.stalled = false);
        let last = self.source().next;
        for _ in 0..CALM_TURNS {
            let emits = self.source().next <= last || self.source().rest.is_some();
            if emits {
                self.nodes[0].emit(&mut self.tools);
            } else if self.nodes[0].draining.is_none() {
                self.nodes[0].hub.finish(Outcome::Ended);
            }
            self.turn()?;
            if self.subscribers.iter().all(|subscriber| subscriber.ended) {
                let tally = &mut self.tools.tally;
                self.nodes.iter_mut().for_each(|node| node.count(tally));
                return Ok(*tally);
            }
        }
        Err(self.stuck())
    }

    /// Who has not come to an end, and what the servers have.
    fn stuck(&self) -> String {
        let mut text = "stuck:".to_string();
        for (number, one) in self.subscribers.iter().enumerate().filter(|(_, one)| !one.ended) {
            let (start, end, last) = (one.range.start(), one.range.end(), one.last);
            let lines = (one.peer.pipes.len(), one.peer.client.lines(), one.peer.client.due());
            let _ =
                write!(text, " subscriber {number} of server {} ({start} to {end:?}) at {last:?} {lines:?};", one.node);
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let (bounds, open, outcome) = (node.hub.bounds(), node.hub.open_sequence(), node.hub.outcome());
            let relay = match &node.feed {
                Feed::Relay(relay) => {
                    format!("{:?}", (relay.over, relay.begun, relay.peer.client.last(), relay.peer.pipes.len()))
                }
                _ => String::new(),
            };
            let streams = (node.door.streams, node.door.most);
            let _ = write!(text, " server {number}: {bounds:?} {open:?} {outcome:?} {streams:?} {relay};");
        }
        text
    }

    fn turn(&mut self) -> Result<(), String> {
        self.tools.now += TURN_NS;
        if self.tools.faults {
            for _ in 0..self.tools.random.random_range(0..4) {
                self.nodes[0].emit(&mut self.tools);
            }
            self.fault()?;
        }
        for number in 0..self.nodes.len() {
            self.relay(number)?;
            self.nodes[number].store(&mut self.tools);
            self.drain(number)?;
        }
        for (number, subscriber) in self.subscribers.iter_mut().enumerate() {
            let node = &mut self.nodes[subscriber.node];
            subscriber.turn(node, &mut self.tools).map_err(|what| format!("subscriber {number}: {what}"))?;
        }
        Ok(())
    }

    /// A relay's turn. One that ended because of its upstream's bytes is started again.
    fn relay(&mut self, number: usize) -> Result<(), String> {
        if !matches!(self.nodes[number].feed, Feed::Relay(_)) {
            return Ok(());
        }
        let Feed::Relay(mut relay) = std::mem::replace(&mut self.nodes[number].feed, Feed::None) else {
            unreachable!("looked at")
        };
        let (above, below) = self.nodes.split_at_mut(number);
        let done = relay.turn(&mut above[number - 1], &mut below[0], &mut self.tools);
        // As good as failed: its upstream ended, and never completes the ledger that is open here.
        let hub = &below[0].hub;
        let failed = relay.over && (hub.outcome() == Some(Outcome::Failed) || hub.open_sequence().is_some());
        below[0].feed = Feed::Relay(relay);
        done?;
        match failed && self.tools.chance(3) {
            true => self.restart(number),
            false => Ok(()),
        }
    }

    fn fault(&mut self) -> Result<(), String> {
        let plan = self.tools.plan;
        let number = self.tools.random.random_range(0..self.nodes.len());
        if self.tools.chance(plan.full_one_in) {
            self.nodes[number].disk.full ^= true;
        }
        if self.tools.chance(plan.restart_one_in) {
            self.restart(number)?;
        }
        if self.tools.chance(2 * plan.restart_one_in) {
            let turns = self.tools.random.random_range(1..12);
            self.nodes[number].draining.get_or_insert(turns);
            self.nodes[number].hub.drain();
        }
        let index = self.tools.random.random_range(0..self.subscribers.len());
        if self.tools.chance(plan.stall_one_in) {
            self.subscribers[index].stalled ^= true;
        }
        if self.tools.chance(plan.cut_one_in) {
            let subscriber = &mut self.subscribers[index];
            subscriber.cut(&mut self.nodes[subscriber.node], &mut self.tools)?;
        }
        if self.tools.chance(plan.cut_one_in) && number > 0 {
            self.cut_relay(number);
        }
        Ok(())
    }

    /// A server that drains: nothing begins any more, then whoever is left is cut, and it starts again.
    fn drain(&mut self, number: usize) -> Result<(), String> {
        let node = &mut self.nodes[number];
        match node.draining {
            None => Ok(()),
            Some(0) => self.restart(number),
            Some(left) => {
                node.draining = Some(left - 1);
                if left == 1 {
                    node.hub.cut();
                    node.keeper.drain();
                }
                Ok(())
            }
        }
    }

    fn cut_relay(&mut self, number: usize) {
        let (above, below) = self.nodes.split_at_mut(number);
        if let Feed::Relay(relay) = &mut below[0].feed
            && !relay.peer.pipes.is_empty()
        {
            let _ = relay.peer.client.disconnected();
            relay.hang_up(&mut above[number - 1], &mut self.tools);
        }
    }

    fn restart(&mut self, number: usize) -> Result<(), String> {
        for subscriber in self.subscribers.iter_mut().filter(|subscriber| subscriber.node == number) {
            subscriber.cut(&mut self.nodes[number], &mut self.tools)?;
        }
        if number > 0 {
            self.cut_relay(number);
        }
        if number + 1 < self.nodes.len() {
            self.cut_relay(number + 1);
        }
        self.nodes[number].restart(&mut self.tools, &mut self.serial)
    }
}
