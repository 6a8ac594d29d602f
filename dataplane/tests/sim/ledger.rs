//! The ledger stream, all of it but sockets and files: a source, the hub, retention on a simulated disk, connections that are cut
//! anywhere, subscribers that stall, drop and resume, a server that crashes and comes back, sources that begin elsewhere.
//!
//! Each subscriber must see every ledger of its range once, in order, byte for byte, all of one run; or an error that says why
//! not, and is true. A seed replays a run: `SLUICE_SEED=n`; `SLUICE_SEEDS=n` runs more.

use std::collections::{BTreeMap, HashMap, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::ledger::assemble::Limits;
use sluice::ledger::chunker::{Chunker, Cut};
use sluice::ledger::client::{Client, ClientError, Polled};
use sluice::ledger::compress::Packer;
use sluice::ledger::hub::{Hub, Outcome};
use sluice::ledger::keeper::{Fault, Keeper, KeeperSettings, Op, SyncPolicy};
use sluice::ledger::query::Range;
use sluice::ledger::retention::{self, Bounds, Depth, Facts, Run};
use sluice::ledger::session::{Connection, Server, Step};
use sluice::ledger::synthetic::{self, Shape};
use sluice::ledger::url::Url;
use sluice::wire::ledger::Begin;

const SEEDS: u64 = 2_000;
/// Turns with faults; after them everything works, and everybody must come to an end.
const TURNS: usize = 250;
/// Turns after which whoever has not ended is stuck. A turn of the calm phase moves at least one piece to each subscriber.
const CALM_TURNS: usize = 20_000;
/// What lies in a connection at most: a server's socket buffer.
const PIPE_BYTES: usize = 8 << 10;
/// Bytes of completed ledgers that may wait for the disk.
const MEMORY_BYTES: u64 = 80 << 10;
const TURN_NS: i64 = 20_000_000;

/// Each is what a wrong part would do at a seam of the machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// One of a subscriber's messages is not sent.
    MessageLost,
    /// The client asks again for the ledger that it has.
    ResumeRepeats,
    /// The client asks for the one after next.
    ResumeSkips,
    /// A torn tail is taken for whole.
    TornIsWhole,
    /// Frames that were read are not checked.
    ReadUnchecked,
    /// A sync is told to be done that did nothing.
    SyncLies,
    /// Another run is announced as the one before.
    RunHidden,
    /// A replay is read from the place of another ledger.
    WrongPlace,
    /// Half of a record is written, and told to be whole.
    ShortIsWhole,
}

struct SimSegment {
    bytes: Vec<u8>,
    durable: usize,
    deleted: bool,
}

/// Segments by number. What is deleted stays readable for whoever has it open.
#[derive(Default)]
struct Disk {
    segments: BTreeMap<u64, SimSegment>,
    /// What is under way, and the turns that it takes.
    under_way: Option<(Op, u32)>,
    full: bool,
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
}

struct Source {
    next: u32,
    /// What is left of the open ledger.
    rest: Option<Vec<u8>>,
    at: usize,
}

struct Subscriber {
    client: Client,
    range: Range,
    connection: Option<Connection>,
    /// Whether the client has a connection, as far as it knows.
    connected: bool,
    /// On the way to the client.
    down: VecDeque<u8>,
    stalled: bool,
    last: Option<u32>,
    /// The run that its ledgers are of.
    run: Option<String>,
    ended: bool,
    wait: u32,
}

/// What a run came through: a simulation that meets none of it proves nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Tally {
    ledgers: u64,
    live: u64,
    partials: u64,
    abandons: u64,
    unwritten: u64,
    stored_runs: u64,
    lost_reads: u64,
    resumed: u64,
    too_far_behind: u64,
    run_changed: u64,
    truncated: u64,
    complete: u64,
    torn: u64,
    resets: u64,
    full: u64,
    failed: u64,
}

struct Sim {
    tally: Tally,
    random: Pcg64Mcg,
    bug: Bug,
    now: i64,
    hub: Hub,
    keeper: Keeper,
    disk: Disk,
    source: Source,
    chunker: Chunker,
    packer: Packer,
    run: Run,
    /// The run that begins when the source does not go on.
    next_run: Option<Run>,
    settings: KeeperSettings,
    subscribers: Vec<Subscriber>,
    url: Url,
    faults: bool,
    /// The run as it is announced.
    announced: String,
    runs: HashMap<String, Run>,
    serial: u8,
}

/// A ledger's bytes: another length and shape in each run, so that a joined history shows.
fn ledger_bytes(run: &Run, sequence: u32) -> Vec<u8> {
    let mixed = u64::from(sequence).wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(run.id[0]) * 7919);
    let mut bytes = vec![0; (mixed % 9_001) as usize];
    let shape = if mixed % 3 == 0 { Shape::Noise } else { Shape::Compressible };
    synthetic::write(sequence ^ u32::from(run.id[0]) << 24, shape, &mut bytes);
    bytes
}

impl Sim {
    fn new(seed: u64, bug: Bug) -> Sim {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let tail = random.random::<bool>().then_some(4096);
        let bounds = Bounds {
            ledgers_max: random.random_range(2..60),
            bytes_max: random.random::<bool>().then_some(60_000),
            age_ns_max: random.random::<bool>().then_some(3_000_000_000),
        };
        let start = random.random_range(1..50);
        let run = Run { id: [1; 16], network: [0; 8], epoch: 1, start, source: "synthetic".into() };
        let sync = match random.random_range(0..3) {
            0 => SyncPolicy::Seal,
            1 => SyncPolicy::Interval(3 * TURN_NS),
            _ => SyncPolicy::EveryLedger,
        };
        let segment_bytes = random.random_range(1_000..40_000);
        let settings = KeeperSettings { bounds, segment_bytes, sync, retry_ns: 2 * TURN_NS };
        let mut sim = Sim {
            tally: Tally::default(),
            bug,
            now: 1,
            hub: Hub::default(),
            keeper: Keeper::open(Vec::new(), run.clone(), settings, 0).0,
            disk: Disk::default(),
            source: Source { next: start, rest: None, at: 0 },
            chunker: Chunker::new(Cut::new(if random.random() { 4096 } else { 8192 }, tail).expect("a cut")),
            packer: Packer::new(1).expect("zstd"),
            announced: run.to_string(),
            runs: HashMap::from([(run.to_string(), run.clone())]),
            run,
            next_run: None,
            settings,
            subscribers: Vec::new(),
            url: Url::parse("ws://h:8462").expect("a URL"),
            faults: true,
            serial: 1,
            random,
        };
        for _ in 0..sim.random.random_range(1..5) {
            sim.subscribe();
        }
        sim
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    fn subscribe(&mut self) {
        let start = if self.chance(3) { 0 } else { self.source.next + self.random.random_range(0..6) };
        let end =
            if self.chance(2) { None } else { Some(start.max(self.source.next) + self.random.random_range(0..30)) };
        let range = Range::new(start, end).expect("a range");
        self.subscribers.push(Subscriber {
            client: Client::new(range, Limits::default()).expect("zstd"),
            range,
            connection: None,
            connected: false,
            down: VecDeque::new(),
            stalled: false,
            last: None,
            run: None,
            ended: false,
            wait: 0,
        });
    }

    fn run(mut self) -> Result<Tally, String> {
        for _ in 0..TURNS {
            self.turn()?;
        }
        // Calm: the disk works, nothing is cut, the source gives one more ledger and ends.
        self.faults = false;
        self.disk.full = false;
        self.subscribers.iter_mut().for_each(|subscriber| subscriber.stalled = false);
        let last = self.source.next;
        for _ in 0..CALM_TURNS {
            if self.source.next <= last || self.source.rest.is_some() {
                self.emit();
            } else {
                self.hub.finish(Outcome::Ended);
            }
            self.turn()?;
            if self.subscribers.iter().all(|subscriber| subscriber.ended) {
                self.count_hub();
                return Ok(self.tally);
            }
        }
        Err("a subscriber is stuck".into())
    }

    fn count_hub(&mut self) {
        let counters = self.hub.counters();
        self.tally.abandons += counters.live_abandons;
        self.tally.unwritten += counters.unwritten_dropped;
        self.tally.resets += counters.resets;
        let counters = self.keeper.counters();
        self.tally.full += counters.no_space;
        self.tally.failed += counters.failed;
    }

    fn turn(&mut self) -> Result<(), String> {
        self.now += TURN_NS;
        if self.faults {
            for _ in 0..self.random.random_range(0..4) {
                self.emit();
            }
            self.fault()?;
        }
        self.write();
        self.hub.bound_memory(MEMORY_BYTES);
        for index in 0..self.subscribers.len() {
            self.connect(index);
            self.serve(index);
            self.receive(index)?;
        }
        Ok(())
    }

    fn fault(&mut self) -> Result<(), String> {
        if self.chance(60) {
            self.disk.full = !self.disk.full;
        }
        if self.chance(150) {
            self.restart()?;
        }
        let index = self.random.random_range(0..self.subscribers.len());
        if self.chance(20) {
            self.subscribers[index].stalled ^= true;
        }
        if self.chance(30) {
            self.cut(index)?;
        }
        Ok(())
    }

    /// One step of the source: a ledger begins, gives a chunk, or ends.
    fn emit(&mut self) {
        let sequence = self.source.next;
        let Some(bytes) = &self.source.rest else {
            if self.hub.would_reset(sequence) {
                let run = self.next_run.take().expect("only another run does not go on");
                self.run = run.clone();
                self.announce();
                self.keeper.reset(run);
            }
            let bytes = ledger_bytes(&self.run, sequence);
            let declared = self.random.random::<bool>().then_some(bytes.len() as u64);
            self.chunker.begin(sequence, declared).expect("begins");
            self.hub.begin(&Begin { sequence, emit_start_ns: self.now });
            (self.source.rest, self.source.at) = (Some(bytes), 0);
            return;
        };
        let mut input = &bytes[self.source.at..];
        if !input.is_empty() {
            let most = input.len().min(1 + self.random.random_range(0..4000));
            let rest = input.len() - most;
            input = &input[..most];
            let chunk = self.chunker.push(&mut input).expect("fits");
            self.source.at = bytes.len() - rest - input.len();
            if let Some(chunk) = chunk {
                let message = if self.random.random::<bool>() {
                    chunk.into_message()
                } else {
                    self.packer.pack(chunk, self.chunker.spare())
                };
                self.hub.chunk(message);
            }
            return;
        }
        let (last, end) = self.chunker.finish(self.now).expect("whole");
        if let Some(chunk) = last {
            self.hub.chunk(chunk.into_message());
        }
        let frames = self.hub.end(&end);
        let facts = Facts { sequence, raw_bytes: end.bytes, xxh64: end.xxh64, completed_ns: self.now };
        self.keeper.offer(facts, frames);
        self.source.rest = None;
        self.source.next += 1;
    }

    fn announce(&mut self) {
        self.runs.insert(self.run.to_string(), self.run.clone());
        if self.bug != Bug::RunHidden {
            self.announced = self.run.to_string();
        }
    }

    /// The disk: one operation after the other, each in its time.
    fn write(&mut self) {
        for _ in 0..4 {
            if self.disk.under_way.is_none() {
                let Some(op) = self.keeper.poll(&self.hub, self.now) else { return };
                let turns = self.random.random_range(0..4);
                self.disk.under_way = Some((op, turns));
            }
            match self.disk.under_way.take() {
                Some((op, turns)) if turns > 0 => {
                    self.disk.under_way = Some((op, turns - 1));
                    return;
                }
                Some((op, _)) => self.complete(&op),
                None => return,
            }
        }
    }

    fn complete(&mut self, op: &Op) {
        let takes_space = matches!(op, Op::Create { .. } | Op::Write { .. } | Op::Seal { .. });
        let result = if self.disk.full && takes_space {
            Err(Fault::NoSpace)
        } else if self.faults && self.chance(200) {
            Err(Fault::Io(5))
        } else {
            Ok(())
        };
        let part = if result.is_err() || self.bug == Bug::ShortIsWhole && self.chance(20) {
            self.random.random_range(0..2_000)
        } else {
            usize::MAX
        };
        let lies = self.bug == Bug::SyncLies && matches!(op, Op::Sync { .. });
        let failed_sync = result.is_err() && matches!(op, Op::Sync { .. } | Op::Delete { .. });
        if !lies && !failed_sync {
            self.disk.apply(op, part);
        }
        self.keeper.on_done(result, &mut self.hub, self.now, self.now);
    }

    /// The server dies, the disk keeps what was durable and some of the rest, and another server opens it.
    fn restart(&mut self) -> Result<(), String> {
        for index in 0..self.subscribers.len() {
            self.cut(index)?;
        }
        self.count_hub();
        let durable: Vec<u32> = match self.keeper.durable() {
            Some(durable) => (self.hub.bounds().0..=durable).collect(),
            None => Vec::new(),
        };
        // What is too old by now need not be there.
        let durable: Vec<u32> = match self.settings.bounds.age_ns_max {
            Some(_) => durable.last().copied().into_iter().collect(),
            None => durable,
        };
        // What was under way is there in part.
        if let Some((op, _)) = self.disk.under_way.take() {
            let part = self.random.random_range(0..10_000);
            if !matches!(op, Op::Sync { .. } | Op::Delete { .. }) {
                self.disk.apply(&op, part);
            }
        }
        let mut opened = Vec::new();
        for segment in self.disk.segments.values_mut() {
            let keep = self.random.random_range(segment.durable..=segment.bytes.len());
            match self.random.random::<bool>() {
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
                    self.tally.torn += u64::from(found.damage.is_some());
                    if self.bug == Bug::TornIsWhole && found.damage.is_some() {
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
        let latest_run = opened.iter().rev().find(|segment| !segment.records.is_empty());
        let run = latest_run.map(|segment| segment.header.run.clone());
        let (keeper, found) =
            Keeper::open(opened, run.clone().unwrap_or_else(|| self.run.clone()), self.settings, self.now);
        let has = |sequence: &u32| found.stored.iter().any(|stored| stored.sequence == *sequence);
        if let Some(lost) = durable.iter().find(|sequence| !has(sequence)) {
            return Err(format!("ledger {lost} of {durable:?} was durable and is gone: {found:?}"));
        }
        (self.keeper, self.hub) = (keeper, Hub::new(&found.stored));
        self.reopen(run);
        Ok(())
    }

    /// A new server over what was found: the source goes on, or begins elsewhere as another run.
    fn reopen(&mut self, found: Option<Run>) {
        self.source.rest = None;
        let latest = self.hub.bounds().1;
        let another = self.chance(3) || found.is_none();
        if another {
            self.serial += 1;
            self.source.next = (latest + if self.chance(2) { 3 } else { 0 }).max(1);
            let (start, epoch) = (self.source.next, self.run.epoch + 1);
            self.next_run = Some(Run { id: [self.serial; 16], network: [0; 8], epoch, start, source: String::new() });
        } else {
            (self.source.next, self.next_run) = (latest + 1, None);
        }
        match found {
            Some(run) => self.run = run,
            // Nothing is kept, so nothing has to be dropped before the run begins.
            None => {
                self.run = self.next_run.take().expect("made above");
                self.keeper.reset(self.run.clone());
            }
        }
        self.announce();
    }

    /// The network, or the client's side, ends a connection.
    fn cut(&mut self, index: usize) -> Result<(), String> {
        let subscriber = &mut self.subscribers[index];
        subscriber.connection = None;
        if subscriber.ended || !std::mem::take(&mut subscriber.connected) {
            return Ok(());
        }
        subscriber.down.clear();
        if let Err(error) = subscriber.client.disconnected() {
            self.judge(index, error)?;
        } else {
            self.subscribers[index].ended = true;
        }
        Ok(())
    }

    fn connect(&mut self, index: usize) {
        let subscriber = &mut self.subscribers[index];
        if subscriber.ended || subscriber.connected {
            return;
        }
        if subscriber.wait > 0 {
            subscriber.wait -= 1;
            return;
        }
        if subscriber.client.is_complete() {
            subscriber.ended = true;
            return;
        }
        let resumed = match (self.bug, subscriber.last) {
            (Bug::ResumeRepeats, Some(last)) => Some(last),
            (Bug::ResumeSkips, Some(last)) => Some(last + 2),
            _ => None,
        };
        if let Some(range) = resumed.and_then(|start| Range::new(start, subscriber.range.end()).ok()) {
            subscriber.client = Client::new(range, Limits::default()).expect("zstd");
        }
        subscriber.client.connect(&self.url, None, [index as u8; 24]);
        (subscriber.connection, subscriber.connected) = (Some(Connection::new(self.now)), true);
    }

    /// What a server does for one connection in a turn.
    fn serve(&mut self, index: usize) {
        let Sim { subscribers, hub, random, bug, now, disk, announced, tally, .. } = self;
        let subscriber = &mut subscribers[index];
        let Some(connection) = &mut subscriber.connection else { return };
        let up = subscriber.client.output().to_vec();
        let taken = if up.is_empty() { 0 } else { random.random_range(1..=up.len()) };
        subscriber.client.sent(taken);
        connection.on_bytes(&up[..taken], hub, Server { run: announced, subscribers: 1 }, *now);
        connection.on_time(*now);
        while subscriber.down.len() < PIPE_BYTES {
            match connection.poll(hub, *now) {
                Step::Wait => return,
                Step::End => {
                    subscriber.connection = None;
                    return;
                }
                Step::Bytes(bytes) => subscriber.down.extend(bytes),
                Step::Message(_) if *bug == Bug::MessageLost && random.random_range(0..50) == 0 => {}
                Step::Message(message) => subscriber.down.extend(message.frame()),
                Step::Stored(mut stored, frame) => {
                    let segment = &disk.segments[&stored.segment];
                    if *bug == Bug::WrongPlace && random.random_range(0..5) == 0 {
                        let other = retention::open(&segment.bytes[..], Depth::Opening).expect("a segment");
                        stored = other.records[random.random_range(0..other.records.len())].stored;
                    }
                    let read = retention::read_record(&segment.bytes[..], stored.segment, stored.offset);
                    let rest = match &read {
                        Ok(Ok((_, checks))) => checks.get(frame as usize..).filter(|rest| !rest.is_empty()),
                        _ => None,
                    };
                    let (Some(rest), Ok(Ok((record, checks)))) = (rest, &read) else {
                        // It is not there: it leaves retention, and who comes back is told so.
                        hub.prune(stored.sequence + 1);
                        return connection.lost();
                    };
                    let (frames, bytes) = retention::run(rest, random.random_range(1..30_000));
                    let skipped: u64 = checks[..frame as usize].iter().map(|check| u64::from(check.bytes)).sum();
                    let at = (stored.offset + record.frames_at() + skipped) as usize;
                    let mut run = segment.bytes[at..at + bytes as usize].to_vec();
                    let misread = random.random_range(0..200) == 0 && !run.is_empty();
                    if misread {
                        let at = random.random_range(0..run.len());
                        run[at] ^= 1;
                    }
                    if !retention::frames_hold(&rest[..frames], &run) && *bug != Bug::ReadUnchecked {
                        tally.lost_reads += 1;
                        if !misread {
                            hub.prune(stored.sequence + 1);
                        }
                        return connection.lost();
                    }
                    tally.stored_runs += 1;
                    if *bug == Bug::WrongPlace && frames as u32 > stored.frames - frame {
                        return connection.lost();
                    }
                    connection.took(frames as u32, *now);
                    subscriber.down.extend(run);
                }
            }
        }
    }

    /// What one subscriber does in a turn.
    fn receive(&mut self, index: usize) -> Result<(), String> {
        let subscriber = &mut self.subscribers[index];
        if subscriber.ended || subscriber.stalled || !subscriber.connected {
            return Ok(());
        }
        for _ in 0..self.random.random_range(1..4) {
            let subscriber = &mut self.subscribers[index];
            let piece = self.random.random_range(1..5_000).min(subscriber.down.len());
            let bytes: Vec<u8> = subscriber.down.drain(..piece).collect();
            if let Some(connection) = &mut subscriber.connection
                && piece > 0
            {
                connection.progress(subscriber.down.is_empty(), self.now);
            }
            subscriber.client.feed(&bytes);
            if !self.poll(index)? {
                return Ok(());
            }
        }
        let subscriber = &mut self.subscribers[index];
        if subscriber.connection.is_none() && subscriber.down.is_empty() {
            subscriber.connected = false;
            match subscriber.client.disconnected() {
                Ok(()) => subscriber.ended = true,
                Err(error) => self.judge(index, error)?,
            }
        }
        Ok(())
    }

    /// Takes what the client has; whether its connection still stands.
    fn poll(&mut self, index: usize) -> Result<bool, String> {
        loop {
            let subscriber = &mut self.subscribers[index];
            let error = match subscriber.client.poll() {
                Ok(Polled::Wait) => return Ok(true),
                Ok(Polled::Ledger(ledger)) => {
                    let (sequence, bytes) = (ledger.sequence, ledger.bytes.to_vec());
                    let next = match subscriber.last {
                        Some(last) => sequence == last + 1,
                        None => subscriber.range.is_tip() || sequence == subscriber.range.start(),
                    };
                    if !next || subscriber.range.end().is_some_and(|end| sequence > end) {
                        return Err(format!("subscriber {index}: ledger {sequence} after {:?}", subscriber.last));
                    }
                    self.tally.ledgers += 1;
                    self.tally.live += u64::from(ledger.is_live());
                    self.tally.partials += u64::from(ledger.discarded_partials);
                    subscriber.last = Some(sequence);
                    let run = subscriber.client.run().expect("announced").to_string();
                    if *subscriber.run.get_or_insert(run.clone()) != run {
                        return Err(format!("subscriber {index}: ledger {sequence} is of another run"));
                    }
                    if bytes != ledger_bytes(&self.runs[&run], sequence) {
                        return Err(format!("subscriber {index}: ledger {sequence} has other bytes"));
                    }
                    continue;
                }
                Ok(Polled::Done) => {
                    self.tally.complete += 1;
                    subscriber.ended = true;
                    let (end, latest) = (subscriber.range.end(), self.hub.bounds().1);
                    let all = end.unwrap_or(latest).min(latest);
                    let past = subscriber.range.is_tip() && subscriber.last.is_none();
                    return match subscriber.last {
                        Some(last) if last < all => Err(format!("subscriber {index} ended at {last} of {all}")),
                        None if !past && subscriber.range.start() <= all => {
                            Err(format!("subscriber {index} got nothing"))
                        }
                        _ => Ok(false),
                    };
                }
                Err(error) => error,
            };
            let subscriber = &mut self.subscribers[index];
            (subscriber.connection, subscriber.connected) = (None, false);
            subscriber.down.clear();
            self.judge(index, error)?;
            return Ok(false);
        }
    }

    /// Whether an error is true. Those that can be resumed are.
    fn judge(&mut self, index: usize, error: ClientError) -> Result<(), String> {
        let retry = error.is_retryable();
        let (oldest, latest) = self.hub.bounds();
        let ended = self.hub.outcome().is_some();
        let subscriber = &mut self.subscribers[index];
        let is_true = match &error {
            _ if retry => true,
            // Retention only moves on; another run has its own bounds.
            ClientError::TooFarBehind { requested, .. } => {
                let told_by_another = subscriber.client.run() != Some(&self.announced);
                told_by_another || *requested < oldest.max(self.source.next) && self.hub.kept(*requested).is_none()
            }
            ClientError::RunChanged { .. } => subscriber.run.as_ref().is_some_and(|run| *run != self.announced),
            ClientError::Truncated(_) => ended && subscriber.range.end().is_some_and(|end| end > latest),
            _ => false,
        };
        if !is_true {
            return Err(format!("subscriber {index}: {error} (kept {oldest} to {latest}, run {})", self.run));
        }
        subscriber.ended = !retry;
        subscriber.wait = 2;
        let counted = match &error {
            ClientError::TooFarBehind { .. } => &mut self.tally.too_far_behind,
            ClientError::RunChanged { .. } => &mut self.tally.run_changed,
            ClientError::Truncated(_) => &mut self.tally.truncated,
            _ => &mut self.tally.resumed,
        };
        *counted += 1;
        Ok(())
    }
}

impl Tally {
    fn fields(&mut self) -> [&mut u64; 16] {
        let Tally {
            ledgers,
            live,
            partials,
            abandons,
            unwritten,
            stored_runs,
            lost_reads,
            resumed,
            too_far_behind,
            run_changed,
            truncated,
            complete,
            torn,
            resets,
            full,
            failed,
        } = self;
        [
            ledgers,
            live,
            partials,
            abandons,
            unwritten,
            stored_runs,
            lost_reads,
            resumed,
            too_far_behind,
            run_changed,
            truncated,
            complete,
            torn,
            resets,
            full,
            failed,
        ]
    }

    fn add(&mut self, other: &Tally) {
        let mut other = *other;
        self.fields().into_iter().zip(other.fields()).for_each(|(sum, one)| *sum += *one);
    }
}

/// Runs one seed; an oracle that speaks and an assertion that fails are both a catch.
fn outcome(seed: u64, bug: Bug) -> Result<Tally, String> {
    let run = std::panic::AssertUnwindSafe(|| Sim::new(seed, bug).run());
    match std::panic::catch_unwind(run) {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_subscriber_sees_every_ledger_once_in_order_or_a_true_error() {
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_SEEDS").unwrap_or(SEEDS),
    };
    let many = seeds.end - seeds.start >= 100;
    let mut all = Tally::default();
    for seed in seeds {
        match outcome(seed, Bug::None) {
            Err(what) => panic!("SLUICE_SEED={seed}: {what}"),
            Ok(tally) => all.add(&tally),
        }
    }
    println!("{all:?}");
    assert!(!many || all.fields().iter().all(|count| **count > 0), "something was never met: {all:?}");
}

/// Seeds in which each planted bug must show: the rarest (a torn record taken for whole) needs a crash between two writes.
const PLANTED_SEEDS: u64 = 4_000;

#[test]
fn planted_ledger_bugs_are_caught() {
    // The panics of planted bugs are expected: they stay off the terminal.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let bugs = [
        Bug::MessageLost,
        Bug::ResumeRepeats,
        Bug::ResumeSkips,
        Bug::TornIsWhole,
        Bug::ReadUnchecked,
        Bug::SyncLies,
        Bug::RunHidden,
        Bug::WrongPlace,
        Bug::ShortIsWhole,
    ];
    let caught = |bug| (0..PLANTED_SEEDS).find_map(|seed| Some((seed, outcome(seed, bug).err()?)));
    let found: Vec<_> = bugs.into_iter().map(|bug| (bug, caught(bug))).collect();
    std::panic::set_hook(hook);
    for (bug, caught) in &found {
        println!("{bug:?}: {caught:?}");
    }
    assert!(found.iter().all(|(_, caught)| caught.is_some()), "not caught within {PLANTED_SEEDS} seeds");
}
