//! Retention's writer as a machine: completed ledgers and `now` go in, operations on segments come out, one at a time, and their
//! results go back in. It opens no file.
//!
//! Nothing waits for it. A ledger that is not written yet is served from the hub's memory. When the disk is full, the oldest segment
//! makes room for what is newer; when it is too slow, or full of what is not ours, the hub drops the oldest of the unwritten ones
//! ([`Hub::bound_memory`]) and the writer passes them over.

use std::collections::VecDeque;

use super::hub::{Hub, Kept, Replay, Stored};
use super::retention::{self, Bounds, Facts, FrameCheck, Record, Run, SEGMENT_HEADER_BYTES, Segment, SegmentHeader};
use crate::units::NANOS_PER_SECOND;

/// Most segments that a full retention by count is spread over: what retention keeps too long is at most one of them.
const SEGMENTS_WANTED: u32 = 16;

/// When written ledgers are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncPolicy {
    /// Only when a segment is sealed.
    Seal,
    /// At most this many ns after a write.
    Interval(i64),
    /// After every ledger.
    EveryLedger,
}

/// How ledgers are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeeperSettings {
    /// How much is kept.
    pub bounds: Bounds,
    /// A segment ends before a ledger that would make it longer; one that is longer by itself has its own.
    pub segment_bytes: u64,
    /// When written ledgers are made durable.
    pub sync: SyncPolicy,
    /// How long a disk that failed is left alone, ns.
    pub retry_ns: i64,
}

impl Default for KeeperSettings {
    fn default() -> KeeperSettings {
        KeeperSettings {
            // The peer's default.
            bounds: Bounds { ledgers_max: 10_000, bytes_max: None, age_ns_max: None },
            segment_bytes: 1 << 30,
            sync: SyncPolicy::Interval(1_000_000_000),
            // A full disk changes within seconds at best.
            retry_ns: 200_000_000,
        }
    }
}

/// What is to be done. Each is answered with [`Keeper::on_done`] before the next one comes.
#[derive(Clone, Debug)]
pub enum Op {
    /// Create the segment's file with these bytes, replacing one that an earlier try left, and make its name durable.
    Create {
        /// Its number.
        segment: u64,
        /// Its header.
        header: Vec<u8>,
    },
    /// Write a record at `offset`: `head`, then each frame as it is.
    Write {
        /// The segment.
        segment: u64,
        /// Where.
        offset: u64,
        /// The record's header and index.
        head: Vec<u8>,
        /// Its frames.
        frames: Replay,
    },
    /// Make what was written to the segment durable.
    Sync {
        /// The segment.
        segment: u64,
    },
    /// Write the table at `end`, cut the file behind it, make that durable.
    Seal {
        /// The segment.
        segment: u64,
        /// Where its records end.
        end: u64,
        /// The table.
        table: Vec<u8>,
    },
    /// Remove the segment's file. Who reads it still may go on.
    Delete {
        /// The segment.
        segment: u64,
    },
}

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No space: the oldest segment goes, and the same is tried again.
    NoSpace,
    /// Anything else, as an errno: the segment is not written any more.
    Io(i32),
}

/// What a keeper counts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct KeeperCounters {
    /// Ledgers written.
    pub written: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Ledgers that had left retention before their turn.
    pub passed_over: u64,
    /// Operations that failed for want of space.
    pub no_space: u64,
    /// Operations that failed otherwise.
    pub failed: u64,
    /// Segments deleted.
    pub deleted: u64,
    /// Segments that left within the bounds, because the disk was full.
    pub made_room: u64,
}

/// A segment that is there, oldest first.
#[derive(Debug)]
struct Known {
    number: u64,
    last: u32,
}

/// The segment that is being written.
#[derive(Debug)]
struct Open {
    number: u64,
    records: Vec<Record>,
    end: u64,
    /// Written since the last sync, and since when.
    dirty_since_ns: Option<i64>,
    /// Found unsealed when the directory was opened: it is sealed before anything else.
    left: bool,
}

/// A ledger that is to be written.
#[derive(Debug)]
struct Waiting {
    facts: Facts,
    frames: Replay,
    /// Of its first frames, as many as were hashed ahead.
    checks: Vec<FrameCheck>,
}

impl Waiting {
    /// Hashes frames until `bytes_max` are over; whether there was any to hash.
    fn hash(&mut self, bytes_max: u64) -> bool {
        let begun = self.checks.len();
        let mut bytes = 0;
        for frame in &self.frames[begun..] {
            if bytes >= bytes_max {
                break;
            }
            bytes += frame.frame().len() as u64;
            self.checks.push(FrameCheck::of(frame.frame()));
        }
        self.checks.len() > begun
    }
}

#[derive(Debug)]
enum InFlight {
    Create(u64),
    Write(Box<Record>),
    Sync,
    Seal,
    Delete,
}

/// The machine. See the module's head.
pub struct Keeper {
    settings: KeeperSettings,
    run: Run,
    queue: VecDeque<Waiting>,
    known: VecDeque<Known>,
    open: Option<Open>,
    /// More that were found unsealed, oldest first: each is opened when the one before it is closed.
    left: VecDeque<Open>,
    doomed: VecDeque<u64>,
    /// What is kept in the store, oldest first, and its bytes.
    records: VecDeque<Record>,
    record_bytes: u64,
    next_number: u64,
    in_flight: Option<InFlight>,
    not_before_ns: i64,
    /// The latest ledger that is durable; `None` before the first sync, and for good after one that failed.
    durable: Option<u32>,
    sync_failed: bool,
    draining: bool,
    clock: WallClock,
    counters: KeeperCounters,
}

/// How far the wall clock may gain on the monotonic one between two looks and still be taken for the same clock: more than the 37 s by which
/// TAI and UTC are confused, less than any age worth setting.
const CLOCK_STEP_NS: i64 = 60 * NANOS_PER_SECOND;

/// The wall clock as ages are told by it: a step forward makes nothing older.
#[derive(Clone, Copy, Default, Debug)]
struct WallClock {
    /// Wall clock less monotonic clock at the last look.
    offset_ns: Option<i64>,
    /// All that it was set forward by.
    stepped_ns: i64,
    /// Stamps below it are from before.
    before_ns: i64,
}

impl WallClock {
    fn look(&mut self, now: i64, utc_ns: i64) {
        let offset = utc_ns.saturating_sub(now);
        let gained = self.offset_ns.replace(offset).map_or(0, |before| offset.saturating_sub(before));
        let seconds = gained / NANOS_PER_SECOND;
        if gained > CLOCK_STEP_NS {
            self.stepped_ns = self.stepped_ns.saturating_add(gained);
            self.before_ns = utc_ns - gained / 2;
            tracing::warn!(seconds, "the wall clock was set forward: kept ledgers are not taken to be older for it");
        } else if gained < -CLOCK_STEP_NS {
            // Back to where it was, as far as it goes.
            self.stepped_ns = self.stepped_ns.saturating_add(gained).max(0);
            self.before_ns = if self.stepped_ns == 0 { i64::MIN } else { self.before_ns };
            tracing::warn!(seconds, "the wall clock was set back");
        }
    }

    fn age_ns(&self, completed_ns: i64, utc_ns: i64) -> i64 {
        let stepped_ns = if completed_ns < self.before_ns { self.stepped_ns } else { 0 };
        utc_ns.saturating_sub(completed_ns).saturating_sub(stepped_ns)
    }
}

/// What opening found.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Opened {
    /// What can be served, for [`Hub::new`].
    pub stored: Vec<Stored>,
    /// Ledgers that are whole and are not served, because they do not join the latest ones.
    pub left_out: u64,
    /// Bytes behind the last whole record of a segment, cut.
    pub torn_bytes: u64,
}

impl Keeper {
    /// A keeper over the segments that a directory holds, in order of their numbers, which goes on with `run` (that of the latest
    /// segment, where there is one that can be gone on with).
    ///
    /// Segments that were not sealed are sealed first; those of which nothing is kept are deleted. What is over the bounds, which
    /// may be tighter than before, is not kept.
    pub fn open(segments: Vec<Segment>, run: Run, settings: KeeperSettings, utc_ns: i64) -> (Keeper, Opened) {
        let mut serveable = retention::serveable(&segments);
        let joined = serveable.len() as u64;
        if let Some(oldest) = retention::oldest_within(&serveable, &settings.bounds, utc_ns) {
            serveable.retain(|record| record.stored.sequence >= oldest);
        }
        let first = serveable.first().map(|record| record.stored);
        let all: u64 = segments.iter().map(|segment| segment.records.len() as u64).sum();
        let mut keeper = Keeper {
            settings,
            run,
            queue: VecDeque::new(),
            known: VecDeque::new(),
            open: None,
            left: VecDeque::new(),
            doomed: VecDeque::new(),
            record_bytes: serveable.iter().map(Record::bytes).sum(),
            next_number: segments.iter().map(|segment| segment.header.number + 1).max().unwrap_or(1),
            in_flight: None,
            not_before_ns: i64::MIN,
            // What was found whole may still lie in the page cache alone; the first sync covers only its own segment.
            durable: None,
            sync_failed: false,
            draining: false,
            clock: WallClock::default(),
            counters: KeeperCounters::default(),
            records: serveable.into(),
        };
        let torn_bytes = segments.iter().filter_map(|segment| segment.damage).map(|damage| damage.bytes).sum();
        for segment in segments {
            let number = segment.header.number;
            let serves = first.is_some_and(|first| number >= first.segment) && !segment.records.is_empty();
            if !serves {
                keeper.doomed.push_back(number);
            } else if segment.sealed {
                keeper.know(number, &segment.records);
            } else {
                // Whatever is behind `end` is cut when it is sealed, which comes before the next write. A write or a seal that failed
                // leaves more than one of these, and no process may ever have synced any of them.
                let Segment { records, end, .. } = segment;
                keeper.left.push_back(Open { number, records, end, dirty_since_ns: Some(i64::MIN), left: true });
            }
        }
        keeper.open = keeper.left.pop_front();
        let stored: Vec<Stored> = keeper.records.iter().map(|record| record.stored).collect();
        let left_out = all - joined;
        (keeper, Opened { stored, left_out, torn_bytes })
    }

    /// Segments to come have this number or higher ones: names below are taken, by files that could not be read.
    pub fn numbers_from(&mut self, number: u64) {
        self.next_number = self.next_number.max(number);
    }

    /// A completed ledger: what [`Hub::end`] gave back, and what is known of it.
    pub fn offer(&mut self, facts: Facts, frames: Replay) {
        let checks = Vec::with_capacity(frames.len());
        self.queue.push_back(Waiting { facts, frames, checks });
    }

    /// Hashes some frames of the ledger that is written next, so that no single call hashes all of it: 15 MB are most of a
    /// millisecond. Whether there was something to do; [`Keeper::poll`] does what is left.
    pub fn prepare(&mut self, hub: &Hub, bytes_max: u64) -> bool {
        if self.in_flight.is_some() {
            return false;
        }
        self.pass_over(hub);
        self.queue.front_mut().is_some_and(|waiting| waiting.hash(bytes_max))
    }

    /// The source did not go on with what was kept ([`Hub::begin`] says so): all of it goes, and another run begins.
    pub fn reset(&mut self, run: Run) {
        self.run = run;
        self.queue.clear();
        let open = self.open.take().into_iter().chain(self.left.drain(..)).map(|open| open.number);
        self.doomed.extend(self.known.drain(..).map(|known| known.number).chain(open));
        // What is on its way goes to a segment that is doomed.
        if let Some(InFlight::Create(number)) = self.in_flight {
            self.doomed.push_back(number);
        }
        self.records.clear();
        self.record_bytes = 0;
        self.durable = None;
    }

    /// Ledgers that wait to be written, the one that is being written among them.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Nothing more is offered: what waits is written, made durable and sealed.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether a drain is done.
    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.open.is_none() && self.in_flight.is_none() && self.doomed.is_empty()
    }

    /// The latest ledger that is durable and kept, and with it all before it that are kept. `None` before the first sync of this
    /// process, while none of those is kept any more, and for good after a sync that failed (what the kernel then forgets it tells
    /// only once).
    pub fn durable(&self) -> Option<u32> {
        let first = self.records.front()?.stored.sequence;
        self.durable.filter(|durable| first <= *durable && !self.sync_failed)
    }

    /// What was counted.
    pub fn counters(&self) -> KeeperCounters {
        self.counters
    }

    /// What is kept in the store, and how many bytes that is.
    pub fn held(&self) -> (usize, u64) {
        (self.records.len(), self.record_bytes)
    }

    /// When there may be something to do that no ledger or completion brings.
    pub fn deadline(&self) -> Option<i64> {
        if self.in_flight.is_some() {
            return None;
        }
        let closes = self.open.as_ref().is_some_and(|open| open.left || self.draining);
        let retry = match self.doomed.is_empty() {
            false => Some(i64::MIN),
            true => (closes || !self.queue.is_empty()).then_some(self.not_before_ns),
        };
        let sync = match (self.settings.sync, &self.open) {
            (SyncPolicy::Interval(interval), Some(Open { dirty_since_ns: Some(since), .. })) => {
                Some(since.saturating_add(interval).max(self.not_before_ns))
            }
            _ => None,
        };
        [retry, sync].into_iter().flatten().min()
    }

    /// What is to be done now; `None` while something is under way, and while there is nothing.
    pub fn poll(&mut self, hub: &Hub, now: i64) -> Option<Op> {
        // Whatever the disk does: what it cannot take any more is not held for it.
        self.pass_over(hub);
        if self.in_flight.is_some() {
            return None;
        }
        // Not put off by a fault: a full disk has room only after this.
        if let Some(segment) = self.doomed.pop_front() {
            self.in_flight = Some(InFlight::Delete);
            return Some(Op::Delete { segment });
        }
        if now < self.not_before_ns {
            return None;
        }
        if let Some(open) = &self.open {
            let full = self.queue.front().is_some_and(|next| self.is_full(open, &next.facts, &next.frames));
            let ends = full || open.left || self.draining && self.queue.is_empty();
            let due = open.dirty_since_ns.is_some_and(|since| match self.settings.sync {
                SyncPolicy::EveryLedger => true,
                SyncPolicy::Interval(interval) => now >= since.saturating_add(interval),
                SyncPolicy::Seal => false,
            });
            if due || ends && open.dirty_since_ns.is_some() {
                self.in_flight = Some(InFlight::Sync);
                return Some(Op::Sync { segment: open.number });
            }
            if ends {
                return Some(self.seal());
            }
        }
        let waiting = self.queue.front_mut()?;
        let Some(open) = &self.open else {
            let segment = self.next_number;
            self.next_number += 1;
            self.in_flight = Some(InFlight::Create(segment));
            let header = SegmentHeader { number: segment, run: self.run.clone() }.encode();
            return Some(Op::Create { segment, header });
        };
        waiting.hash(u64::MAX);
        let (record, head) = retention::record(waiting.facts, &waiting.checks, open.number, open.end);
        let op = Op::Write { segment: open.number, offset: open.end, head, frames: waiting.frames.clone() };
        self.in_flight = Some(InFlight::Write(Box::new(record)));
        Some(op)
    }

    /// The operation that was given last ended.
    pub fn on_done(&mut self, result: Result<(), Fault>, hub: &mut Hub, now: i64, utc_ns: i64) {
        let done = self.in_flight.take().expect("an operation is under way");
        if let Err(fault) = result {
            self.on_fault(&done, fault, now);
            // A disk that takes nothing is freed of what has left all the same.
            self.enforce(hub, now, utc_ns);
            if fault == Fault::NoSpace && !matches!(done, InFlight::Delete) {
                self.make_room(hub);
            }
            return;
        }
        match done {
            InFlight::Create(number) => {
                if !self.doomed.contains(&number) {
                    let (records, end) = (Vec::new(), SEGMENT_HEADER_BYTES);
                    self.open = Some(Open { number, records, end, dirty_since_ns: None, left: false });
                }
            }
            InFlight::Write(record) => self.on_written(*record, hub, now),
            InFlight::Sync => {
                if let Some(open) = &mut self.open {
                    open.dirty_since_ns = None;
                    self.durable = open.records.last().map(|record| record.stored.sequence).or(self.durable);
                }
            }
            InFlight::Seal => self.close(),
            InFlight::Delete => self.counters.deleted += 1,
        }
        self.enforce(hub, now, utc_ns);
    }

    fn on_written(&mut self, record: Record, hub: &mut Hub, now: i64) {
        // A reset meanwhile: nothing is open, or another segment is.
        let Some(open) = self.open.as_mut().filter(|open| open.number == record.stored.segment) else { return };
        open.dirty_since_ns.get_or_insert(now);
        open.end += record.bytes();
        open.records.push(record);
        self.counters.written += 1;
        self.counters.bytes += record.bytes();
        self.queue.pop_front();
        self.record_bytes += record.bytes();
        self.records.push_back(record);
        hub.stored(record.stored);
    }

    fn on_fault(&mut self, done: &InFlight, fault: Fault, now: i64) {
        self.not_before_ns = now.saturating_add(self.settings.retry_ns);
        match fault {
            Fault::NoSpace => self.counters.no_space += 1,
            Fault::Io(_) => self.counters.failed += 1,
        }
        match (done, fault) {
            // The same bytes at the same place again.
            (InFlight::Write(_), Fault::NoSpace) => {}
            (InFlight::Write(_), Fault::Io(_)) => {
                // What the segment holds beside it is not made durable any more.
                self.sync_failed |= self.open.as_ref().is_some_and(|open| open.dirty_since_ns.is_some());
                self.close();
            }
            (InFlight::Sync, _) => {
                self.sync_failed = true;
                self.close();
            }
            // An unsealed segment is read all the same.
            (InFlight::Seal, _) => self.close(),
            // The next try replaces what this one left, so that a full disk does not fill up with names.
            (InFlight::Create(number), _) if !self.doomed.contains(number) => self.next_number = *number,
            // What is left is deleted when the directory is opened again.
            (InFlight::Create(_) | InFlight::Delete, _) => {}
        }
    }

    /// The disk is full: the oldest segment leaves retention, unless one is to be deleted anyway. One for each failure, which come
    /// [`KeeperSettings::retry_ns`] apart: its space comes back only when nobody reads it any more.
    fn make_room(&mut self, hub: &mut Hub) {
        if !self.doomed.is_empty() {
            return;
        }
        let Some(oldest) = self.known.pop_front() else { return };
        self.doomed.push_back(oldest.number);
        self.counters.made_room += 1;
        while let Some(record) = self.records.front().copied()
            && record.stored.sequence <= oldest.last
        {
            self.records.pop_front();
            self.record_bytes -= record.bytes();
        }
        hub.prune(oldest.last + 1);
    }

    /// The open segment takes nothing more.
    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            match open.records.is_empty() {
                true => self.doomed.push_back(open.number),
                false => self.know(open.number, &open.records),
            }
        }
        self.open = self.left.pop_front();
    }

    fn know(&mut self, number: u64, records: &[Record]) {
        let last = records.last().map_or(0, |record| record.stored.sequence);
        // One that was left by a crash is sealed after later ones were found.
        let at = self.known.partition_point(|known| known.number < number);
        self.known.insert(at, Known { number, last });
    }

    /// Ledgers that have left retention before they were written are not written.
    fn pass_over(&mut self, hub: &Hub) {
        // The one that is being written leaves when that is done.
        let first = usize::from(matches!(self.in_flight, Some(InFlight::Write(_)))).min(self.queue.len());
        while let Some(waiting) = self.queue.get(first)
            && !matches!(hub.kept(waiting.facts.sequence), Some(Kept::Memory(_)))
        {
            self.queue.remove(first);
            self.counters.passed_over += 1;
        }
    }

    /// Whether the open segment does not take this ledger: a hole before it, or full.
    fn is_full(&self, open: &Open, facts: &Facts, frames: &Replay) -> bool {
        let Some(last) = open.records.last() else { return false };
        let most = (self.settings.bounds.ledgers_max / SEGMENTS_WANTED).max(1) as usize;
        let head = (retention::RECORD_HEADER_BYTES + frames.len() * retention::INDEX_ENTRY_BYTES) as u64;
        let end = open.end + head + super::hub::wire_bytes(frames);
        last.stored.sequence.checked_add(1) != Some(facts.sequence)
            || open.records.len() >= most
            || end > self.settings.segment_bytes
    }

    fn seal(&mut self) -> Op {
        let open = self.open.as_ref().expect("looked at");
        self.in_flight = Some(InFlight::Seal);
        Op::Seal { segment: open.number, end: open.end, table: retention::seal(&open.records, open.end) }
    }

    /// The age of the oldest ledger. One that a clock stamped which has been set back since is as old as the next that is not from the future.
    fn oldest_age_ns(&self, utc_ns: i64) -> i64 {
        let mut ages = self.records.iter().map(|record| self.clock.age_ns(record.completed_ns, utc_ns));
        ages.find(|age| *age >= 0).unwrap_or(0)
    }

    /// Other bounds from now on; what is over them leaves at once.
    pub fn set_bounds(&mut self, bounds: Bounds, hub: &mut Hub, now: i64, utc_ns: i64) {
        if bounds != self.settings.bounds {
            self.settings.bounds = bounds;
            self.enforce(hub, now, utc_ns);
        }
    }

    /// What is over the bounds leaves retention; segments of which nothing is left are deleted.
    fn enforce(&mut self, hub: &mut Hub, now: i64, utc_ns: i64) {
        self.clock.look(now, utc_ns);
        let bounds = self.settings.bounds;
        let waiting = self.queue.len();
        while let Some(oldest) = self.records.front().copied()
            && self.records.len() > 1
        {
            let over = self.records.len() + waiting > bounds.ledgers_max as usize
                || bounds.bytes_max.is_some_and(|most| self.record_bytes > most)
                || bounds.age_ns_max.is_some_and(|most| self.oldest_age_ns(utc_ns) > most);
            // What the hub dropped by itself has left as well.
            if !over && oldest.stored.sequence >= hub.bounds().0 {
                break;
            }
            self.records.pop_front();
            self.record_bytes -= oldest.bytes();
            hub.prune(oldest.stored.sequence + 1);
        }
        let oldest = self.records.front().map_or(0, |record| record.stored.sequence);
        while self.known.front().is_some_and(|known| known.last < oldest) {
            let known = self.known.pop_front().expect("looked at");
            self.doomed.push_back(known.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::message::{HEADROOM, RawChunk};
    use crate::wire::ledger::{Begin, End};

    const SETTINGS: KeeperSettings = KeeperSettings {
        bounds: Bounds { ledgers_max: 32, bytes_max: None, age_ns_max: None },
        segment_bytes: 1 << 20,
        sync: SyncPolicy::EveryLedger,
        retry_ns: 50,
    };

    fn run(epoch: u64) -> Run {
        Run { id: [epoch as u8; 16], network: [0; 8], epoch, start: 1, source: String::new() }
    }

    /// A hub, a keeper, and the names of what it asked for.
    struct Kit {
        hub: Hub,
        keeper: Keeper,
        now: i64,
        utc_ns: i64,
    }

    impl Kit {
        fn new(settings: KeeperSettings) -> Kit {
            let (keeper, opened) = Keeper::open(Vec::new(), run(1), settings, 0);
            assert_eq!(opened, Opened::default());
            Kit { hub: Hub::default(), keeper, now: 0, utc_ns: 0 }
        }

        fn ledger(&mut self, sequence: u32) {
            self.hub.begin(&Begin { sequence, emit_start_ns: 0 });
            self.hub.chunk(RawChunk::new(vec![1; HEADROOM + 100], 100, sequence, 0).into_message());
            let end = End { sequence, chunks: 1, bytes: 100, emit_end_ns: 0, xxh64: 0 };
            let frames = self.hub.end(&end);
            self.keeper.offer(Facts { sequence, raw_bytes: 100, xxh64: 0, completed_ns: self.utc_ns }, frames);
        }

        fn step(&mut self, result: Result<(), Fault>) -> Option<String> {
            let op = self.keeper.poll(&self.hub, self.now)?;
            assert!(self.keeper.poll(&self.hub, self.now).is_none(), "one at a time");
            self.keeper.on_done(result, &mut self.hub, self.now, self.utc_ns);
            Some(match op {
                Op::Create { segment, .. } => format!("create {segment}"),
                Op::Write { segment, offset, .. } => format!("write {segment} at {offset}"),
                Op::Sync { segment } => format!("sync {segment}"),
                Op::Seal { segment, .. } => format!("seal {segment}"),
                Op::Delete { segment } => format!("delete {segment}"),
            })
        }

        fn all(&mut self) -> Vec<String> {
            std::iter::from_fn(|| self.step(Ok(()))).collect()
        }
    }

    #[test]
    fn other_bounds_hold_at_once() {
        let mut kit = Kit::new(SETTINGS);
        for sequence in 1..=20 {
            kit.ledger(sequence);
            kit.all();
        }
        assert_eq!(kit.hub.bounds(), (1, 20));
        let bounds = Bounds { ledgers_max: 5, ..SETTINGS.bounds };
        kit.keeper.set_bounds(bounds, &mut kit.hub, 0, 0);
        assert_eq!(kit.hub.bounds(), (16, 20), "fewer");
        kit.keeper.set_bounds(SETTINGS.bounds, &mut kit.hub, 0, 0);
        for sequence in 21..=60 {
            kit.ledger(sequence);
            kit.all();
        }
        assert_eq!(kit.hub.bounds(), (29, 60), "more");
    }

    #[test]
    fn a_clock_that_is_set_forward_makes_nothing_older() {
        const DAY_NS: i64 = 86_400 * NANOS_PER_SECOND;
        let mut clock = WallClock::default();
        clock.look(0, DAY_NS);
        clock.look(10 * NANOS_PER_SECOND, DAY_NS + 69 * NANOS_PER_SECOND);
        assert_eq!(clock.age_ns(DAY_NS, DAY_NS + 69 * NANOS_PER_SECOND), 69 * NANOS_PER_SECOND, "a minute is none");
        let utc_ns = 3 * DAY_NS;
        clock.look(20 * NANOS_PER_SECOND, utc_ns);
        assert_eq!(clock.age_ns(DAY_NS, utc_ns), 79 * NANOS_PER_SECOND);
        assert_eq!(clock.age_ns(utc_ns, utc_ns + 5), 5, "what came after it has the new clock's stamp");
        clock.look(30 * NANOS_PER_SECOND, DAY_NS + 89 * NANOS_PER_SECOND);
        let later = DAY_NS + 189 * NANOS_PER_SECOND;
        clock.look(130 * NANOS_PER_SECOND, later);
        assert_eq!(clock.age_ns(DAY_NS, later), 189 * NANOS_PER_SECOND, "set right again: time passes as before");
    }

    #[test]
    fn ages_end_what_is_kept_and_a_step_of_the_clock_does_not() {
        const HOUR_NS: i64 = 3_600 * NANOS_PER_SECOND;
        let bounds = Bounds { age_ns_max: Some(HOUR_NS), ..SETTINGS.bounds };
        let mut kit = Kit::new(KeeperSettings { bounds, ..SETTINGS });
        let at = |kit: &mut Kit, sequence: u32, now: i64, utc_ns: i64| {
            (kit.now, kit.utc_ns) = (now, utc_ns);
            kit.ledger(sequence);
            kit.all();
            kit.hub.bounds()
        };
        assert_eq!(at(&mut kit, 1, 0, 1_000 * HOUR_NS), (1, 1));
        assert_eq!(at(&mut kit, 2, HOUR_NS / 2, 1_000 * HOUR_NS + HOUR_NS / 2), (1, 2));
        assert_eq!(at(&mut kit, 3, HOUR_NS / 2 + 1, 2_000 * HOUR_NS), (1, 3), "a step");
        let later = HOUR_NS + 2;
        assert_eq!(
            at(&mut kit, 4, later, 2_000 * HOUR_NS + later - HOUR_NS / 2),
            (2, 4),
            "an hour of this clock later"
        );
        // Back again: what was stamped meanwhile does not stay for a thousand hours.
        let right = |now: i64| 1_000 * HOUR_NS + now;
        assert_eq!(at(&mut kit, 5, later + 1, right(later + 1)), (2, 5));
        let much = 4 * HOUR_NS;
        assert_eq!(at(&mut kit, 6, much, right(much)).1, 6);
        assert!(at(&mut kit, 7, much + 1, right(much + 1)).0 >= 5, "{:?}", kit.hub.bounds());
    }

    #[test]
    fn ledgers_go_to_segments_that_are_sealed_and_deleted() {
        let mut kit = Kit::new(SETTINGS);
        kit.ledger(5);
        assert!(kit.keeper.deadline().is_some_and(|deadline| deadline <= 0));
        assert_eq!(kit.all(), ["create 1", "write 1 at 512", "sync 1"]);
        assert_eq!((kit.keeper.durable(), kit.keeper.deadline()), (Some(5), None));
        assert!(matches!(kit.hub.kept(5), Some(Kept::Stored(_))));
        kit.ledger(6);
        kit.ledger(7);
        let ops = kit.all();
        assert_eq!(ops[1..], ["sync 1", "seal 1", "create 2", "write 2 at 512", "sync 2"], "two ledgers a segment");
        for sequence in 8..=60 {
            kit.ledger(sequence);
            kit.all();
        }
        assert_eq!(kit.hub.bounds(), (29, 60));
        assert_eq!((kit.keeper.held().0, kit.keeper.counters().deleted), (32, 12), "whole segments only");
        kit.keeper.drain();
        assert_eq!(kit.all(), ["seal 28"]);
        assert!(kit.keeper.is_drained());
    }

    #[test]
    fn a_full_disk_is_tried_again_and_what_left_meanwhile_is_passed_over() {
        let mut kit = Kit::new(SETTINGS);
        kit.ledger(5);
        assert_eq!(kit.step(Err(Fault::NoSpace)).as_deref(), Some("create 1"));
        assert_eq!((kit.step(Ok(())), kit.keeper.deadline()), (None, Some(50)));
        kit.now = 50;
        assert_eq!(kit.step(Ok(())).as_deref(), Some("create 1"), "the same name");
        assert_eq!(kit.step(Err(Fault::NoSpace)).as_deref(), Some("write 1 at 512"));
        (6..=8).for_each(|sequence| kit.ledger(sequence));
        kit.hub.prune(7);
        kit.now = 100;
        assert_eq!(kit.step(Ok(())).as_deref(), Some("write 1 at 512"), "at the same place");
        assert_eq!(kit.keeper.counters().passed_over, 2);
        kit.all();
        assert_eq!((kit.hub.bounds(), kit.keeper.durable(), kit.hub.memory_bytes()), ((7, 8), Some(8), 0));
    }

    #[test]
    fn a_disk_that_our_own_segments_fill_has_room_for_what_is_new() {
        let mut kit = Kit::new(SETTINGS);
        for sequence in 1..=20 {
            kit.ledger(sequence);
            kit.all();
        }
        for (round, full) in ["write", "sync", "seal", "create"].into_iter().enumerate() {
            let (held, deleted) = (kit.keeper.held().0, kit.keeper.counters().deleted);
            // Full until something was deleted, whatever is tried first.
            for sequence in 21 + 4 * round as u32..25 + 4 * round as u32 {
                kit.ledger(sequence);
            }
            let mut refused = 0;
            while let Some(op) = kit.keeper.poll(&kit.hub, kit.now) {
                let name = match &op {
                    Op::Create { .. } => "create",
                    Op::Write { .. } => "write",
                    Op::Sync { .. } => "sync",
                    Op::Seal { .. } => "seal",
                    Op::Delete { .. } => "delete",
                };
                let fails = name == full && kit.keeper.counters().deleted == deleted;
                refused += u32::from(fails);
                let result = if fails { Err(Fault::NoSpace) } else { Ok(()) };
                kit.keeper.on_done(result, &mut kit.hub, kit.now, 0);
                kit.now += SETTINGS.retry_ns;
            }
            assert_eq!((refused, kit.keeper.waiting()), (1, 0), "{full}");
            assert_eq!((kit.keeper.held().0, kit.keeper.counters().deleted), (held + 2, deleted + 1), "{full}");
            assert_eq!(kit.hub.bounds(), (3 + 2 * round as u32, 24 + 4 * round as u32), "only the oldest segment went");
        }
        assert_eq!(kit.keeper.counters().made_room, 4);
    }

    #[test]
    fn what_the_hub_dropped_is_deleted_although_no_operation_succeeds() {
        let mut kit = Kit::new(SETTINGS);
        for sequence in 1..=8 {
            kit.ledger(sequence);
            kit.all();
        }
        kit.ledger(9);
        kit.ledger(10);
        kit.hub.prune(10);
        let mut deleted = Vec::new();
        for _ in 0..20 {
            let Some(op) = kit.keeper.poll(&kit.hub, kit.now) else { break };
            let result = match op {
                Op::Delete { segment } => {
                    deleted.push(segment);
                    Ok(())
                }
                _ => Err(Fault::Io(5)),
            };
            kit.keeper.on_done(result, &mut kit.hub, kit.now, 0);
            kit.now += SETTINGS.retry_ns;
        }
        assert_eq!(deleted, [1, 2, 3], "the last one waits for another");
    }

    #[test]
    fn a_disk_that_does_not_answer_holds_no_ledgers_that_have_left() {
        let mut kit = Kit::new(SETTINGS);
        kit.ledger(5);
        kit.step(Ok(()));
        assert!(matches!(kit.keeper.poll(&kit.hub, 0), Some(Op::Write { .. })));
        (6..=40).for_each(|sequence| kit.ledger(sequence));
        kit.hub.prune(39);
        assert!(kit.keeper.poll(&kit.hub, 0).is_none(), "the write is under way");
        assert_eq!((kit.keeper.waiting(), kit.keeper.counters().passed_over), (3, 33), "that one, 39 and 40");
        kit.keeper.on_done(Ok(()), &mut kit.hub, 0, 0);
        kit.all();
        assert_eq!((kit.hub.bounds(), kit.keeper.waiting(), kit.hub.memory_bytes()), ((39, 40), 0, 0));
    }

    #[test]
    fn a_segment_that_fails_is_left_and_no_more_is_called_durable() {
        let mut kit = Kit::new(SETTINGS);
        kit.ledger(5);
        kit.all();
        kit.ledger(6);
        assert_eq!(kit.step(Err(Fault::Io(5))).as_deref(), Some("write 1 at 793"));
        kit.now = 100;
        assert_eq!(kit.all(), ["create 2", "write 2 at 512", "sync 2"]);
        assert_eq!(kit.keeper.durable(), Some(6), "nothing was left unsynced");
        kit.ledger(7);
        kit.step(Ok(()));
        assert_eq!(kit.step(Err(Fault::Io(5))).as_deref(), Some("sync 2"));
        kit.now = 200;
        kit.ledger(8);
        kit.all();
        assert_eq!((kit.keeper.durable(), kit.hub.bounds()), (None, (5, 8)), "served, and not called durable");
    }

    /// A sealed segment of ledgers, as opening finds it.
    fn found(number: u64, first: u32, last: u32, sealed: bool) -> Segment {
        let record = |sequence: u32| {
            let stored = Stored { sequence, frames: 3, wire_bytes: 100, segment: number, offset: 0 };
            Record { stored, raw_bytes: 1, xxh64: 0, completed_ns: i64::from(sequence) }
        };
        let header = SegmentHeader { number, run: run(1) };
        Segment { header, records: (first..=last).map(record).collect(), end: 999, sealed, damage: None }
    }

    #[test]
    fn a_directory_is_gone_on_with_within_the_bounds() {
        let segments = || vec![found(3, 1, 4, true), found(4, 9, 12, true), found(5, 13, 14, false)];
        let bounds = Bounds { ledgers_max: 3, ..SETTINGS.bounds };
        for (bounds, oldest, left_out) in [(SETTINGS.bounds, 9, 4), (bounds, 12, 4)] {
            let (keeper, opened) = Keeper::open(segments(), run(1), KeeperSettings { bounds, ..SETTINGS }, 0);
            let mut kit = Kit { hub: Hub::new(&opened.stored), keeper, now: 0, utc_ns: 0 };
            assert_eq!((kit.hub.bounds(), opened.left_out), ((oldest, 14), left_out));
            assert_eq!(kit.all(), ["delete 3", "sync 5", "seal 5"], "what a crash left is sealed first");
            kit.ledger(15);
            assert!(kit.all().contains(&"write 6 at 512".to_string()), "a new segment");
        }
        let bounds = Bounds { ledgers_max: 2, ..SETTINGS.bounds };
        let (keeper, opened) = Keeper::open(segments(), run(1), KeeperSettings { bounds, ..SETTINGS }, 0);
        let mut kit = Kit { hub: Hub::new(&opened.stored), keeper, now: 0, utc_ns: 0 };
        assert_eq!(kit.all()[..2], ["delete 3", "delete 4"]);
    }

    #[test]
    fn all_that_was_left_unsealed_is_synced_before_anything_later_is_called_durable() {
        let segments =
            || vec![found(3, 1, 2, false), found(4, 3, 4, true), found(5, 5, 6, false), found(6, 7, 8, false)];
        let open = || {
            let (keeper, opened) = Keeper::open(segments(), run(1), SETTINGS, 0);
            Kit { hub: Hub::new(&opened.stored), keeper, now: 0, utc_ns: 0 }
        };
        let mut kit = open();
        kit.ledger(9);
        let sealed = ["sync 3", "seal 3", "sync 5", "seal 5", "sync 6", "seal 6"];
        for (op, durable) in sealed.into_iter().zip([2, 2, 6, 6, 8, 8]) {
            assert_eq!(kit.step(Ok(())).as_deref(), Some(op));
            assert_eq!(kit.keeper.durable(), Some(durable), "{op}");
        }
        assert_eq!(kit.all(), ["create 7", "write 7 at 512", "sync 7"]);
        assert_eq!((kit.keeper.durable(), kit.hub.bounds()), (Some(9), (1, 9)));

        let mut kit = open();
        kit.keeper.reset(run(2));
        assert_eq!(kit.all(), ["delete 4", "delete 3", "delete 5", "delete 6"], "none is forgotten");
        let mut kit = open();
        kit.keeper.drain();
        assert_eq!(kit.all(), sealed);
        assert!(kit.keeper.is_drained());
    }

    #[test]
    fn a_reset_drops_all_and_begins_another_run() {
        let mut kit = Kit::new(SETTINGS);
        (5..=7).for_each(|sequence| kit.ledger(sequence));
        kit.all();
        kit.ledger(8);
        let op = kit.keeper.poll(&kit.hub, 0);
        assert!(matches!(op, Some(Op::Write { segment: 2, .. })));
        kit.keeper.reset(run(2));
        kit.ledger(100);
        kit.keeper.on_done(Ok(()), &mut kit.hub, 0, 0);
        assert_eq!(kit.all(), ["delete 1", "delete 2", "create 3", "write 3 at 512", "sync 3"]);
        assert_eq!((kit.hub.bounds(), kit.keeper.held().0, kit.keeper.durable()), ((100, 100), 1, Some(100)));
    }
}
