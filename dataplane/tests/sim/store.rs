//! The store writer against a simulated disk: late and reordered completions, short, torn and failed writes, a full
//! disk, failed syncs, a crash at any point. A seed replays a run: `SLUICE_SEED=n`; `SLUICE_SEEDS=n` runs more.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::store::files::recover;
use sluice::store::scan::Depth;
use sluice::store::{
    Codec, FLAG_LATE_FILL, Fault, Op, Reader, RecordKind, RecordMeta, SegmentGrant, Select, StampSource, Step,
    StoreWriter, SyncPolicy, WriterSettings,
};
use sluice::units::{Side, StreamId};
use sluice::wire::block::{SECTOR_BYTES, SegmentInfo};
use sluice::wire::segment::Framing;

const SEEDS: u64 = 2_000;
const STREAMS: usize = 3;

/// What a planted bug makes of the seam between machine and disk: each is what a wrong machine would do there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// A failed write counts as stored.
    FailureIsSuccess,
    /// A short write counts as whole.
    ShortIsWhole,
    /// Durable is claimed at the sync's beginning.
    SyncBeforeDone,
    /// A block lands on the sector before its own.
    WrongPlace,
    /// A block is used again while it is being written.
    BlockReused,
}

/// One record as it was offered; its place in the list is its arrival index.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Offered {
    stream: usize,
    kind: RecordKind,
    flags: u16,
    sequence: u64,
    capture_ns: i64,
    body: Vec<u8>,
}

struct SimSegment {
    durable: Vec<u8>,
    /// Writes that completed since: (serial, offset, bytes).
    written: Vec<(u64, u64, Vec<u8>)>,
    sealed: bool,
}

enum Flight {
    Write { segment: u64, slot: usize, offset: u64, bytes: Vec<u8>, from: usize, early: bool },
    Sync { segment: u64, mark: u64 },
    Next,
    Seal { segment: u64, footer: Vec<u8>, end: u64 },
}

struct Sim {
    seed: u64,
    random: Pcg64Mcg,
    bug: Bug,
    writer: StoreWriter<Vec<u8>>,
    segments: HashMap<u64, SimSegment>,
    flights: Vec<Flight>,
    next_number: u64,
    serial: u64,
    now: i64,
    full: bool,
    stalled: bool,
    faults: bool,
    offered: Vec<Offered>,
    next_sequence: [u64; STREAMS],
    segment_bytes: u64,
}

fn key(stream: usize) -> String {
    format!("iex-tp/0x8004/1/0x43810000/r{stream}")
}

impl Sim {
    fn new(seed: u64, bug: Bug) -> Sim {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let block_bytes = if random.random() { 8192 } else { 16384 };
        let segment_bytes = random.random_range(12..40u64) * 4096;
        let settings = WriterSettings {
            block_bytes,
            flush_ns: 50_000_000,
            segment_bytes,
            segment_ns: random.random::<bool>().then_some(400_000_000),
            sync: match random.random_range(0..3) {
                0 => SyncPolicy::Never,
                1 => SyncPolicy::Interval(60_000_000),
                _ => SyncPolicy::EveryBlock,
            },
            codec: if random.random_range(0..5) == 0 { Codec::Zstd } else { Codec::None },
            zstd_level: 1,
            retry_ns: 20_000_000,
            ..WriterSettings::default()
        };
        let pool = random.random_range(2..7);
        let mut writer = StoreWriter::new(settings, vec![vec![0; block_bytes]; pool]);
        for stream in 0..STREAMS {
            writer.stream_begin(StreamId(stream as u32), &key(stream));
        }
        Sim {
            seed,
            random,
            bug,
            writer,
            segments: HashMap::new(),
            flights: Vec::new(),
            next_number: 1,
            serial: 0,
            now: 0,
            full: false,
            stalled: false,
            faults: true,
            offered: Vec::new(),
            next_sequence: [1; STREAMS],
            segment_bytes,
        }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    fn append(&mut self) {
        let stream = self.random.random_range(0..STREAMS);
        let capture_ns = self.now + self.random.random_range(-5..5);
        let mut meta = RecordMeta::message(StreamId(stream as u32), Side::A, self.next_sequence[stream], capture_ns);
        if self.chance(4) {
            return self.append_run(stream, meta);
        }
        let mut body = vec![self.random.random(); self.random.random_range(0..300)];
        match self.random.random_range(0..20) {
            0 => {
                meta.kind = RecordKind::Gap;
                body = (meta.sequence + 2).to_le_bytes().to_vec();
                self.next_sequence[stream] += 3;
            }
            1 if meta.sequence > 100 => meta.flags = FLAG_LATE_FILL,
            2 => body = vec![1; 20_000],
            _ => {}
        }
        if meta.kind == RecordKind::Message {
            self.next_sequence[stream] += 1;
        }
        let _told = self.writer.append(&meta, &body, self.now);
        self.offer(stream, &meta, body);
    }

    fn append_run(&mut self, stream: usize, meta: RecordMeta) {
        let count = self.random.random_range(1..12);
        let (mut block, mut bodies) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let body = vec![self.random.random(); self.random.random_range(0..200)];
            block.extend_from_slice(&(body.len() as u16).to_le_bytes());
            block.extend_from_slice(&body);
            bodies.push(body);
        }
        let _told = self.writer.append_run(&meta, count, Framing::U16Le, &block, self.now);
        for body in bodies {
            let meta = RecordMeta { sequence: self.next_sequence[stream], ..meta };
            self.next_sequence[stream] += 1;
            self.offer(stream, &meta, body);
        }
    }

    fn offer(&mut self, stream: usize, meta: &RecordMeta, body: Vec<u8>) {
        let RecordMeta { kind, flags, sequence, capture_ns, .. } = *meta;
        self.offered.push(Offered { stream, kind, flags, sequence, capture_ns, body });
    }

    /// Takes the machine's operations to the disk.
    fn issue(&mut self) {
        while let Some(op) = self.writer.next_op() {
            match op {
                Op::NextSegment => self.flights.push(Flight::Next),
                Op::Write { segment, slot, buffer_offset, bytes, file_offset } => {
                    let bytes = self.writer.block(slot)[buffer_offset..buffer_offset + bytes].to_vec();
                    let offset = if self.bug == Bug::WrongPlace && file_offset > 8192 && self.chance(4) {
                        file_offset - SECTOR_BYTES as u64
                    } else {
                        file_offset
                    };
                    let early = self.bug == Bug::BlockReused && self.chance(4);
                    let length = bytes.len();
                    self.flights.push(Flight::Write { segment, slot, offset, bytes, from: buffer_offset, early });
                    if early {
                        self.writer.on_write(slot, Ok(length), self.now);
                    }
                }
                Op::Sync { segment } => {
                    self.flights.push(Flight::Sync { segment, mark: self.serial });
                    if self.bug == Bug::SyncBeforeDone {
                        self.flights.pop();
                        self.writer.on_sync(segment, Ok(()), self.now);
                    }
                }
                Op::Seal { segment, footer, end } => self.flights.push(Flight::Seal { segment, footer, end }),
                Op::Discard { segment } => {
                    self.segments.remove(&segment).expect("a segment that exists is discarded");
                }
            }
        }
    }

    /// Lets one operation that is out come to its end; which one is chance, as on a disk with a deep queue.
    fn complete_one(&mut self) {
        if self.flights.is_empty() || (self.stalled && !self.chance(50)) {
            return;
        }
        let at = self.random.random_range(0..self.flights.len());
        match self.flights.swap_remove(at) {
            Flight::Next => self.complete_next(),
            Flight::Sync { segment, mark } => {
                let failed = self.faults && self.chance(200);
                if !failed {
                    self.segments.get_mut(&segment).expect("it lives").settle(mark);
                }
                let result = if failed { Err(Fault::Io(libc::EIO)) } else { Ok(()) };
                if self.bug != Bug::SyncBeforeDone {
                    self.writer.on_sync(segment, result, self.now);
                }
            }
            Flight::Seal { segment, footer, end } => self.complete_seal(segment, footer, end),
            Flight::Write { segment, slot, offset, mut bytes, from, early } => {
                if early {
                    // The machine has let go of the block: the disk reads what stands there by now.
                    bytes = self.writer.block(slot)[from..from + bytes.len()].to_vec();
                    return self.put(segment, offset, bytes);
                }
                let kept = &self.writer.block(slot)[from..from + bytes.len()];
                assert!(kept == bytes, "seed {}: a block changed while it was written", self.seed);
                self.complete_write(segment, slot, offset, bytes);
            }
        }
    }

    fn complete_next(&mut self) {
        if self.full || (self.faults && self.chance(10)) {
            self.writer.segment_failed(Fault::NoSpace);
            self.flights.push(Flight::Next);
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        let mut uuid = [0; 16];
        self.random.fill(&mut uuid);
        let info = SegmentInfo {
            uuid,
            number,
            created_ns: self.now,
            block_bytes: self.writer.settings().block_bytes as u32,
            stamp_source: StampSource::Software,
        };
        let mut durable = vec![0; self.segment_bytes as usize];
        durable[..SECTOR_BYTES].copy_from_slice(&info.encode());
        self.segments.insert(number, SimSegment { durable, written: Vec::new(), sealed: false });
        self.writer.segment_ready(SegmentGrant { info, begin: SECTOR_BYTES as u64 }, self.now);
    }

    fn complete_seal(&mut self, number: u64, footer: Vec<u8>, end: u64) {
        if self.faults && self.chance(50) {
            return self.writer.on_sealed(number, Err(Fault::Io(libc::EIO)), self.now);
        }
        let no_room = self.faults && (self.full || self.chance(20));
        let segment = self.segments.get_mut(&number).expect("it lives");
        segment.settle(u64::MAX);
        if no_room {
            return self.writer.on_sealed(number, Err(Fault::NoSpace), self.now);
        }
        segment.durable.truncate(end as usize);
        segment.durable.extend_from_slice(&footer);
        segment.sealed = true;
        self.writer.on_sealed(number, Ok(()), self.now);
    }

    fn complete_write(&mut self, segment: u64, slot: usize, offset: u64, mut bytes: Vec<u8>) {
        let length = bytes.len();
        let roll = if self.faults { self.random.random_range(0..100) } else { 99 };
        let result = match roll {
            _ if self.full && roll < 70 => Err(Fault::NoSpace),
            0..2 => Err(Fault::Io(libc::EIO)),
            2..8 => {
                bytes.truncate(self.random.random_range(0..=length / 512) * 512);
                Ok(bytes.len())
            }
            _ => Ok(length),
        };
        let told = match (self.bug, result) {
            (Bug::FailureIsSuccess, Err(Fault::Io(_))) => Ok(length),
            (Bug::ShortIsWhole, Ok(_)) => Ok(length),
            _ => result,
        };
        if result.is_ok() {
            self.put(segment, offset, bytes);
        }
        self.writer.on_write(slot, told, self.now);
    }

    fn put(&mut self, segment: u64, offset: u64, bytes: Vec<u8>) {
        self.serial += 1;
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.written.push((self.serial, offset, bytes));
            if segment.sealed {
                segment.settle(u64::MAX);
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.writer.arrival_next(), self.offered.len() as u64, "seed {}", self.seed);
        let (counters, losses) = (self.writer.counters(), self.writer.losses());
        let out = self.writer.in_flight_data();
        assert_eq!(
            counters.stored_data + losses.data_records() + out,
            counters.appended_data,
            "seed {}: stored {} + lost {} + in flight {out} != appended",
            self.seed,
            counters.stored_data,
            losses.data_records()
        );
        let in_ranges: u64 = losses.ranges().iter().map(|range| range.last - range.first + 1).sum();
        let listed = in_ranges + losses.unlisted_records();
        assert_eq!(listed, losses.data_records(), "seed {}: loss ranges", self.seed);
    }

    fn run(&mut self) -> Result<(), String> {
        let steps = self.random.random_range(50..400);
        let mut durable = 0;
        for _ in 0..steps {
            match self.random.random_range(0..40) {
                0 => self.full = !self.full && self.faults,
                1 => self.stalled = !self.stalled,
                2..14 => (0..self.random.random_range(1..8)).for_each(|_| self.append()),
                14..18 => {
                    self.now += self.random.random_range(0..50_000_000);
                    self.writer.on_tick(self.now);
                }
                18 => {
                    self.writer.compress_step(self.now);
                }
                _ => self.complete_one(),
            }
            while self.writer.wants_compress() && self.chance(2) {
                self.writer.compress_step(self.now);
            }
            self.issue();
            self.check();
            let durable_now = self.writer.durable_arrival();
            assert!(durable_now >= durable, "seed {}: the durable watermark went back", self.seed);
            durable = durable_now;
        }
        if self.random.random() { self.crash(durable) } else { self.close() }
    }

    /// Power goes: what was synced is there; of the rest, and of what was out, any sector may be.
    fn crash(&mut self, durable: u64) -> Result<(), String> {
        let flights = std::mem::take(&mut self.flights);
        for flight in flights {
            if let Flight::Write { segment, offset, bytes, .. } = flight {
                self.put(segment, offset, bytes);
            }
        }
        let mut random = Pcg64Mcg::seed_from_u64(self.seed ^ 0xdead);
        let often = random.random_range(0..=4);
        for segment in self.segments.values_mut() {
            for (_, offset, bytes) in std::mem::take(&mut segment.written) {
                for (place, sector) in bytes.chunks(512).enumerate() {
                    if random.random_range(0..4) < often {
                        segment.place(offset + place as u64 * 512, sector);
                    }
                }
            }
        }
        let directory = self.save();
        let found = self.read(directory.path())?;
        let lost = self.lost();
        for arrival in 0..durable {
            let offered = &self.offered[arrival as usize];
            let is_lost = if offered.kind.is_data() {
                lost.contains(&(offered.stream, offered.sequence))
            } else {
                // Marks have no ranges: their losses are counted only.
                self.writer.losses().mark_records() > 0
            };
            if !found.contains(&arrival) && !is_lost {
                return Err(format!("arrival {arrival} was called durable (below {durable}) and is not there"));
            }
        }
        // Recovery seals what is there; it must hold the same afterwards.
        for (path, _) in self.paths(directory.path()).into_iter().filter(|(path, _)| path.exists()) {
            if path.extension().is_some_and(|extension| extension == "partial") {
                recover(&path).map_err(|error| format!("recovery: {error}"))?;
            }
        }
        if self.read(directory.path())? != found {
            return Err("recovery changed what is read".into());
        }
        Ok(())
    }

    /// Everything is let come to its end; then what is read plus what is counted lost is what was offered, exactly.
    fn close(&mut self) -> Result<(), String> {
        (self.full, self.stalled) = (false, false);
        self.writer.close(self.now);
        for _ in 0..10_000 {
            self.writer.compress_step(self.now);
            self.issue();
            if self.writer.is_closed() {
                break;
            }
            self.complete_one();
            self.now += 1_000_000;
            self.writer.on_tick(self.now);
            self.check();
        }
        if !self.writer.is_closed() {
            return Err("it never closes".into());
        }
        while self.flights.iter().any(|flight| matches!(flight, Flight::Write { .. })) {
            self.complete_one();
        }
        for segment in self.segments.values_mut() {
            segment.settle(u64::MAX);
        }
        let directory = self.save();
        let found = self.read(directory.path())?;
        let (counters, lost) = (self.writer.counters(), self.lost());
        let data = found.iter().filter(|&&arrival| self.offered[arrival as usize].kind.is_data()).count() as u64;
        if (data, found.len() as u64 - data) != (counters.stored_data, counters.stored_marks) {
            return Err(format!("{data} data records read, {} counted as stored", counters.stored_data));
        }
        if counters.stored_marks + self.writer.losses().mark_records() != counters.appended_marks {
            return Err("marks do not add up".into());
        }
        let missing: BTreeSet<(usize, u64)> = (0..self.offered.len() as u64)
            .filter(|arrival| !found.contains(arrival))
            .map(|arrival| &self.offered[arrival as usize])
            .filter(|offered| offered.kind.is_data())
            .map(|offered| (offered.stream, offered.sequence))
            .collect();
        if missing != lost {
            return Err(format!("{} missing, {} in the loss ranges", missing.len(), lost.len()));
        }
        Ok(())
    }

    fn lost(&self) -> BTreeSet<(usize, u64)> {
        let ranges = self.writer.losses().ranges().iter();
        ranges
            .flat_map(|range| (range.first..=range.last).map(|sequence| (range.stream.0 as usize, sequence)))
            .collect()
    }

    fn paths(&self, directory: &Path) -> Vec<(std::path::PathBuf, &SimSegment)> {
        let segments = self.segments.iter();
        let path = |number: &u64, segment: &SimSegment| {
            directory.join(format!("{number:010}-00000000.tri{}", if segment.sealed { "" } else { ".partial" }))
        };
        segments.map(|(number, segment)| (path(number, segment), segment)).collect()
    }

    fn save(&self) -> tempfile::TempDir {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let directory = directory.expect("a temporary directory");
        for (path, segment) in self.paths(directory.path()) {
            fs::write(path, &segment.durable).expect("space for a small segment");
        }
        directory
    }

    /// The arrival indexes found, each record compared with what was offered.
    fn read(&self, directory: &Path) -> Result<BTreeSet<u64>, String> {
        let mut found = BTreeSet::new();
        if self.segments.is_empty() {
            return Ok(found);
        }
        let mut reader = match Reader::open_with(directory, Depth::Full) {
            Err(sluice::store::StoreError::NoStore(_)) => return Ok(found),
            other => other.map_err(|error| format!("open: {error}"))?,
        };
        let keys: Vec<String> = reader.streams().iter().map(|stream| stream.key.clone()).collect();
        let mut query = reader.query(Select::All);
        let mut before = None;
        while let Some(step) = query.step().map_err(|error| format!("query: {error}"))? {
            let record = match step {
                Step::Record(record) => record,
                Step::Damage(damage) => return Err(format!("damage that opening did not tell: {damage}")),
            };
            let offered = &self.offered[record.arrival as usize];
            let same = key(offered.stream) == keys[record.stream]
                && (offered.kind, offered.flags) == (record.header.kind, record.header.flags)
                && (offered.sequence, offered.capture_ns) == (record.header.sequence, record.header.capture_ns)
                && offered.body == record.body;
            if !same {
                return Err(format!("arrival {} differs from what was offered", record.arrival));
            }
            if before.is_some_and(|before| before >= record.arrival) {
                return Err(format!("arrival {} is out of order", record.arrival));
            }
            before = Some(record.arrival);
            found.insert(record.arrival);
        }
        Ok(found)
    }
}

impl SimSegment {
    /// Writes up to `mark` become durable.
    fn settle(&mut self, mark: u64) {
        let (done, rest) = std::mem::take(&mut self.written).into_iter().partition(|(serial, _, _)| *serial <= mark);
        self.written = rest;
        let done: Vec<(u64, u64, Vec<u8>)> = done;
        for (_, offset, bytes) in done {
            self.place(offset, &bytes);
        }
    }

    fn place(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        self.durable[offset as usize..end].copy_from_slice(bytes);
    }
}

/// Runs one seed; an oracle that speaks and an assertion that fails are both a catch.
fn outcome(seed: u64, bug: Bug) -> Result<(), String> {
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
fn what_is_called_durable_is_read_back_and_every_record_is_accounted_for() {
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        if let Err(what) = outcome(seed, Bug::None) {
            panic!("SLUICE_SEED={seed}: {what}");
        }
    }
}

#[test]
fn planted_bugs_are_caught() {
    // The panics of planted bugs are expected: they stay off the terminal.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let bugs = [Bug::FailureIsSuccess, Bug::ShortIsWhole, Bug::SyncBeforeDone, Bug::WrongPlace, Bug::BlockReused];
    let missed: Vec<Bug> = bugs.into_iter().filter(|&bug| !(0..500).any(|seed| outcome(seed, bug).is_err())).collect();
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught within 500 seeds: {missed:?}");
}
