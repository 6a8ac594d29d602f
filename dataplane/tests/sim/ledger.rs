//! The ledger stream, all of it but sockets and files: a source, the hub, retention on a simulated disk, connections that are cut
//! anywhere, subscribers that stall, drop and resume, a server that crashes and comes back, sources that begin elsewhere.
//!
//! Each subscriber must see every ledger of its range once, in order, byte for byte, all of one run; or an error that says why
//! not, and is true. A seed replays a run: `SLUICE_SEED=n`; `SLUICE_SEEDS=n` runs more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::ledger::assemble::Limits;
use sluice::ledger::chunker::{Chunker, Cut};
use sluice::ledger::client::{Client, ClientError, Polled};
use sluice::ledger::compress::Packer;
use sluice::ledger::hub::{Hub, Kept, Outcome, Replay};
use sluice::ledger::message::Encoded;
use sluice::ledger::query::Range;
use sluice::ledger::retention::{self, Bounds, Depth, Facts, Record, Run, SegmentHeader};
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
const PIPE_BYTES: usize = 16 << 10;
/// Bytes of completed ledgers that may wait for the disk.
const MEMORY_BYTES: u64 = 200 << 10;
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
    /// A write is told to be durable when it begins.
    DurableEarly,
    /// Another run is announced as the one before.
    RunHidden,
    /// What was pruned is given out as if it were kept, from what lies in its place now.
    WrongPlace,
}

struct Write {
    facts: Facts,
    frames: Replay,
    turns: u32,
}

struct SimSegment {
    header: SegmentHeader,
    bytes: Vec<u8>,
    durable: usize,
    records: Vec<Record>,
    sealed: bool,
    deleted: bool,
}

/// Segments by number. What is deleted stays readable for whoever has it open.
#[derive(Default)]
struct Disk {
    segments: BTreeMap<u64, SimSegment>,
    queue: VecDeque<Write>,
    full: bool,
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
}

struct Sim {
    tally: Tally,
    random: Pcg64Mcg,
    bug: Bug,
    now: i64,
    hub: Hub,
    disk: Disk,
    source: Source,
    chunker: Chunker,
    packer: Packer,
    run: Run,
    bounds: Bounds,
    subscribers: Vec<Subscriber>,
    url: Url,
    faults: bool,
    /// The run as it is announced, and each announced run's own bytes.
    announced: String,
    serial: u8,
}

/// A ledger's bytes: another length and shape in each run, so that a joined history shows.
fn ledger_bytes(run: &Run, sequence: u32) -> Vec<u8> {
    let mixed = u64::from(sequence).wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(run.id[0]) * 7919);
    let mut bytes = vec![0; (mixed % 19_001) as usize];
    let shape = if mixed % 3 == 0 { Shape::Noise } else { Shape::Compressible };
    synthetic::write(sequence ^ u32::from(run.id[0]) << 24, shape, &mut bytes);
    bytes
}

impl Sim {
    fn new(seed: u64, bug: Bug) -> Sim {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let tail = random.random::<bool>().then_some(4096);
        let bounds = Bounds {
            ledgers_max: random.random_range(2..20),
            bytes_max: random.random::<bool>().then_some(120_000),
            age_ns_max: random.random::<bool>().then_some(3_000_000_000),
        };
        let start = random.random_range(1..50);
        let run = Run { id: [1; 16], network: [0; 8], epoch: 1, start, source: "synthetic".into() };
        let mut sim = Sim {
            tally: Tally::default(),
            bug,
            now: 1,
            hub: Hub::default(),
            disk: Disk::default(),
            source: Source { next: start, rest: None, at: 0 },
            chunker: Chunker::new(Cut::new(if random.random() { 4096 } else { 8192 }, tail).expect("a cut")),
            packer: Packer::new(1).expect("zstd"),
            announced: run.to_string(),
            run,
            bounds,
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
        self.retain();
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
            let bytes = ledger_bytes(&self.run, sequence);
            let declared = self.random.random::<bool>().then_some(bytes.len() as u64);
            self.chunker.begin(sequence, declared).expect("begins");
            self.hub.begin(&Begin { sequence, emit_start_ns: self.now });
            (self.source.rest, self.source.at) = (Some(bytes), 0);
            return;
        };
        let mut input = &bytes[self.source.at..];
        if !input.is_empty() {
            let most = input.len().min(1 + self.random.random_range(0..6000));
            let rest = input.len() - most;
            input = &input[..most];
            let chunk = self.chunker.push(&mut input).expect("fits");
            self.source.at = bytes.len() - rest - input.len();
            if let Some(chunk) = chunk {
                let message = if self.random.random::<bool>() {
                    chunk.into_message()
                } else {
                    self.packer.pack(chunk, Vec::new()).0
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
        let turns = self.random.random_range(0..5);
        self.disk.queue.push_back(Write { facts, frames, turns });
        self.source.rest = None;
        self.source.next += 1;
    }

    /// The disk: one write after the other, none while it is full.
    fn write(&mut self) {
        if self.disk.full {
            return;
        }
        while let Some(write) = self.disk.queue.front_mut() {
            if write.turns > 0 {
                write.turns -= 1;
                return;
            }
            let write = self.disk.queue.pop_front().expect("looked at");
            // What left retention while it waited is not written.
            if !matches!(self.hub.kept(write.facts.sequence), Some(Kept::Memory(_))) {
                continue;
            }
            let number = self.segment_for(write.facts.sequence);
            let early = self.bug == Bug::DurableEarly && self.random.random_range(0..4) == 0;
            let segment = self.disk.segments.get_mut(&number).expect("just made");
            let (record, head) = retention::record(write.facts, &write.frames, number, segment.bytes.len() as u64);
            segment.bytes.extend(head);
            write.frames.iter().for_each(|frame| segment.bytes.extend_from_slice(frame.frame()));
            segment.records.push(record);
            if !early {
                segment.durable = segment.bytes.len();
            }
            self.hub.stored(record.stored);
        }
    }

    /// The segment that ledger `sequence` goes to: a new one after a hole, in another run, or when the last is long.
    fn segment_for(&mut self, sequence: u32) -> u64 {
        let long = self.random.random_range(1..6);
        if let Some((&number, segment)) = self.disk.segments.iter_mut().next_back() {
            let follows = segment.records.last().is_none_or(|last| last.stored.sequence + 1 == sequence);
            if !segment.sealed
                && !segment.deleted
                && segment.header.run == self.run
                && follows
                && segment.records.len() < long
            {
                return number;
            }
            if !segment.sealed {
                let table = retention::seal(&segment.records, segment.bytes.len() as u64);
                segment.bytes.extend(table);
                (segment.sealed, segment.durable) = (true, segment.bytes.len());
            }
        }
        let number = self.disk.segments.keys().next_back().map_or(1, |last| last + 1);
        let header = SegmentHeader { number, run: self.run.clone() };
        let bytes = header.encode();
        let durable = bytes.len();
        let segment = SimSegment { header, bytes, durable, records: Vec::new(), sealed: false, deleted: false };
        self.disk.segments.insert(number, segment);
        number
    }

    /// Retention: what is over its bounds leaves, and segments that nobody needs go.
    fn retain(&mut self) {
        self.hub.bound_memory(MEMORY_BYTES);
        let (oldest, latest) = self.hub.bounds();
        let kept: Vec<Record> = (oldest..=latest)
            .filter_map(|sequence| match self.hub.kept(sequence) {
                Some(Kept::Stored(stored)) => {
                    let records = &self.disk.segments[&stored.segment].records;
                    records.iter().find(|record| record.stored == *stored).copied()
                }
                _ => None,
            })
            .collect();
        if let Some(oldest) = retention::oldest_within(&kept, &self.bounds, self.now) {
            self.hub.prune(oldest);
        }
        let oldest = self.hub.bounds().0;
        let newest = self.disk.segments.keys().next_back().copied();
        for (number, segment) in &mut self.disk.segments {
            let needed = segment.records.last().is_none_or(|last| last.stored.sequence >= oldest);
            segment.deleted |= Some(*number) != newest && !needed;
        }
    }

    /// The server dies, the disk keeps what was durable and some of the rest, and another server opens it.
    fn restart(&mut self) -> Result<(), String> {
        for index in 0..self.subscribers.len() {
            self.cut(index)?;
        }
        let in_retention = self.hub.bounds();
        let durable: Vec<u32> = (in_retention.0..=in_retention.1)
            .filter(|&sequence| matches!(self.hub.kept(sequence), Some(Kept::Stored(_))))
            .collect();
        // A record that was being written is there in part.
        if let Some(write) = self.disk.queue.pop_front()
            && let Some((&number, segment)) = self.disk.segments.iter_mut().next_back()
            && !segment.sealed
        {
            let (_, head) = retention::record(write.facts, &write.frames, number, segment.bytes.len() as u64);
            segment.bytes.extend(head);
            write.frames.iter().for_each(|frame: &Arc<Encoded>| segment.bytes.extend_from_slice(frame.frame()));
        }
        self.disk.queue.clear();
        let torn_is_whole = self.bug == Bug::TornIsWhole;
        let mut opened = Vec::new();
        let numbers: Vec<u64> = self.disk.segments.keys().copied().collect();
        for number in numbers {
            let segment = self.disk.segments.get_mut(&number).expect("listed");
            let keep = self.random.random_range(segment.durable..=segment.bytes.len());
            segment.bytes.truncate(keep);
            if segment.deleted {
                continue;
            }
            let mut found = retention::open(&segment.bytes[..], Depth::Opening).map_err(|error| error.to_string())?;
            if torn_is_whole && let Some(damage) = found.damage {
                // The header of a torn record is believed.
                let torn = retention::read_record(&segment.bytes[..], number, damage.at);
                let follows = found.records.last().map(|last| last.stored.sequence + 1);
                let stub = found.records.last().copied().filter(|_| torn.is_ok());
                if let (Some(mut stub), Some(sequence)) = (stub, follows) {
                    stub.stored.sequence = sequence;
                    found.records.push(stub);
                }
            }
            self.tally.torn += u64::from(found.damage.is_some());
            segment.bytes.truncate(found.end.max(if found.sealed { keep as u64 } else { 0 }) as usize);
            (segment.durable, segment.records, segment.sealed) =
                (segment.bytes.len(), found.records.clone(), found.sealed);
            opened.push(found);
        }
        let serveable = retention::serveable(&opened);
        let has = |sequence: &u32| serveable.iter().any(|record| record.stored.sequence == *sequence);
        if let Some(lost) = durable.iter().find(|sequence| !has(sequence)) {
            let found: Vec<_> = opened
                .iter()
                .map(|segment| {
                    (
                        segment.header.number,
                        segment.header.run.epoch,
                        segment.records.len(),
                        segment.records.first().map(|r| r.stored.sequence),
                        segment.damage,
                    )
                })
                .collect();
            return Err(format!("ledger {lost} of {durable:?} was durable and is gone: {found:?}"));
        }
        self.reopen(&serveable);
        Ok(())
    }

    /// A new server over what was found: the source goes on, or begins elsewhere as another run.
    fn reopen(&mut self, serveable: &[Record]) {
        self.count_hub();
        let stored: Vec<_> = serveable.iter().map(|record| record.stored).collect();
        self.hub = Hub::new(&stored);
        self.source.rest = None;
        let latest = self.hub.bounds().1;
        if self.chance(3) || stored.is_empty() {
            // Never where the run would go on: that would be the same run.
            self.source.next = latest + if self.chance(2) { 3 } else { 0 };
            self.source.next = self.source.next.max(1);
            self.serial += 1;
            let start = self.source.next;
            self.run = Run {
                id: [self.serial; 16],
                network: [0; 8],
                epoch: self.run.epoch + 1,
                start,
                source: self.run.source.clone(),
            };
            if self.bug != Bug::RunHidden {
                self.announced = self.run.to_string();
            }
            // The server knows where its source begins, and drops what does not go on before it serves anybody.
            self.hub = Hub::default();
            self.disk.segments.values_mut().for_each(|segment| segment.deleted = true);
        } else {
            self.source.next = latest + 1;
        }
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
                        stored = segment.records[random.random_range(0..segment.records.len())].stored;
                    }
                    let read = retention::read_record(&segment.bytes[..], stored.segment, stored.offset);
                    let Ok(Ok((record, checks))) = read else { return connection.lost() };
                    let Some(rest) = checks.get(frame as usize..) else { return connection.lost() };
                    let (frames, bytes) = retention::run(rest, random.random_range(1..30_000));
                    let skipped: u64 = checks[..frame as usize].iter().map(|check| u64::from(check.bytes)).sum();
                    let at = (stored.offset + record.frames_at() + skipped) as usize;
                    let mut run = segment.bytes[at..at + bytes as usize].to_vec();
                    if random.random_range(0..200) == 0 && !run.is_empty() {
                        let at = random.random_range(0..run.len());
                        run[at] ^= 1;
                    }
                    if !retention::frames_hold(&rest[..frames], &run) && *bug != Bug::ReadUnchecked {
                        tally.lost_reads += 1;
                        return connection.lost();
                    }
                    tally.stored_runs += 1;
                    if *bug == Bug::WrongPlace && frames as u32 > stored.frames {
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
            let piece = self.random.random_range(1..8_000).min(subscriber.down.len());
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
                    let run = self.run.to_string();
                    if *subscriber.run.get_or_insert(run.clone()) != run {
                        return Err(format!("subscriber {index}: ledger {sequence} is of another run"));
                    }
                    if bytes != ledger_bytes(&self.run, sequence) {
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
                *requested < oldest.max(self.source.next) && self.hub.kept(*requested).is_none()
            }
            ClientError::RunChanged { .. } => subscriber.run.as_ref().is_some_and(|run| *run != self.run.to_string()),
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
    fn fields(&mut self) -> [&mut u64; 13] {
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
        Bug::DurableEarly,
        Bug::RunHidden,
        Bug::WrongPlace,
    ];
    let missed: Vec<Bug> = bugs.into_iter().filter(|&bug| !(0..500).any(|seed| outcome(seed, bug).is_err())).collect();
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught within 500 seeds: {missed:?}");
}
