//! Stored frames for replays: read by the kernel's io workers, checked, shared, and read ahead.
//!
//! A read is of whole frames of one ledger. The first one of a ledger brings its index along. What was read is kept for a while, so
//! that subscribers that replay the same ledgers share it, and what comes next is read before it is asked for.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_queue::ArrayQueue;

use super::operate::is_interrupted;
use super::{ArchivePort, Segments, segment_name};
use crate::ledger::hub::{Hub, Kept, Stored};
use crate::ledger::retention::{self, FrameCheck, INDEX_ENTRY_BYTES, RECORD_HEADER_BYTES};
use crate::sys::uring::Frozen;

/// Most bytes of frames in one read, unless one frame is longer: four chunks of the usual size, and long enough that what a request
/// costs (some 20 µs with an io worker's wake-up) is small beside the copy (some 100 µs).
pub const READ_BYTES: u64 = 1 << 20;
/// Room of a buffer beyond that for the index that the first read brings along: that of 5,000 frames.
const INDEX_ROOM_BYTES: usize = 64 << 10;
/// Most reads with the kernel at once: more than the io workers that a core gets can do.
const READS_IN_FLIGHT_MAX: usize = 8;
/// Most of them while a ledger is open: each is checked whole when it comes (some 60 µs), in one round with all that came with it, and
/// what is live waits for that.
const READS_IN_LEDGER_MAX: usize = 2;
/// How many reads one replay is read ahead: while one is sent and one waits to be sent, one is read.
const AHEAD: usize = 2;
/// Reads that are kept: what [`READS_IN_FLIGHT_MAX`] replays have read ahead, twice. With [`READ_BYTES`] the memory that it may take.
const KEPT_READS_MAX: usize = 32;
/// How long what was read ahead is kept for its replay, ns: a subscriber that has not come within a second sends slowly.
const AHEAD_NS_MAX: i64 = 1_000_000_000;
/// Ledgers whose indexes are kept: those of the replays that are under way, and of the next ones.
const INDEXES_MAX: usize = 64;
/// Bytes of frames outside (being sent) past which reads are of single frames, and a subscriber is given the next one when it has
/// sent the one before: slow ones should not each hold two large pieces. What is beyond is for those that hold nothing.
const OUTSIDE_SHRINK_BYTES: u64 = 128 << 20;
/// Bytes of frames outside past which nothing more is read until some come back: memory is bounded whatever the number of
/// subscribers.
pub const OUTSIDE_BYTES_MAX: u64 = 1 << 30;
/// Requests of those that still hold something that are looked at in one turn: some µs.
const HOLDING_PER_TURN: usize = 64;
/// How soon it is looked at whether some came back, ns: nothing tells of it.
const LOOK_AGAIN_NS: i64 = 1_000_000;

/// Frames of a stored ledger in one piece, checked. Each waiter that is given them has its own of these, and all share the memory,
/// which comes home when the last owner drops it.
#[derive(Clone, Debug)]
pub struct StoredFrames {
    memory: Arc<Memory>,
    start: usize,
    end: usize,
    first: u32,
    frames: u32,
}

/// A buffer that is outside.
#[derive(Debug)]
struct Memory {
    bytes: Vec<u8>,
    home: Arc<Home>,
}

#[derive(Debug)]
struct Home {
    spare: ArrayQueue<Vec<u8>>,
    /// Bytes of buffers outside. Relaxed: a bound that is looked at, which orders nothing.
    outside: AtomicU64,
}

impl StoredFrames {
    /// How many frames there are.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// The first one's place in its ledger.
    pub fn first(&self) -> u32 {
        self.first
    }
}

impl Deref for StoredFrames {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes[self.start..self.end]
    }
}

impl Frozen for StoredFrames {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.home.outside.fetch_sub(bytes.capacity() as u64, Ordering::Relaxed);
        if bytes.capacity() >= READ_BYTES as usize {
            // One too many is freed.
            let _ = self.home.spare.push(bytes);
        }
    }
}

/// A stored ledger that cannot be read: it and all before it have left retention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The ledger.
    pub sequence: u32,
}

/// What is counted of reading.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReadCounters {
    /// Reads that were given out, from the disk or from what was kept.
    pub given: u64,
    /// Reads that the kernel did.
    pub done: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Reads that were made again because what came was not what was written, or nothing came.
    pub again: u64,
    /// Ledgers that were lost that way.
    pub lost: u64,
}

type Index = Arc<[FrameCheck]>;

/// A place in the store: the ledger, and the first frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    stored: Stored,
    frame: u32,
}

impl Place {
    /// Bytes of the ledger's record before its frames.
    fn head_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.stored.frames as usize * INDEX_ENTRY_BYTES
    }

    /// What comes behind so many frames.
    fn after(&self, frames: u32, hub: &Hub) -> Option<Place> {
        let frame = self.frame + frames;
        if frame < self.stored.frames {
            return Some(Place { frame, ..*self });
        }
        match hub.kept(self.stored.sequence.checked_add(1)?)? {
            Kept::Stored(stored) => Some(Place { stored: *stored, frame: 0 }),
            Kept::Memory(_) => None,
        }
    }
}

/// A read with the kernel.
struct Slot {
    place: Place,
    file: Arc<File>,
    waiters: Vec<u64>,
    /// The ledger's index; without it the read begins with it.
    index: Option<Index>,
    /// Most bytes of frames, unless one is longer.
    most: u64,
    /// Where the read begins, and how many bytes it is.
    at: u64,
    wanted: usize,
    /// Whether it failed once.
    failed: bool,
}

impl Slot {
    /// Plans the read anew.
    fn plan(&mut self) {
        let place = self.place;
        (self.at, self.wanted) = match &self.index {
            Some(index) => {
                let (before, rest) = index.split_at(place.frame as usize);
                let before: u64 = before.iter().map(|check| u64::from(check.bytes)).sum();
                let (_, bytes) = retention::run(rest, self.most);
                (place.stored.offset + place.head_bytes() as u64 + before, bytes as usize)
            }
            None => {
                let frames = if place.frame == 0 { place.stored.wire_bytes.min(self.most) } else { 0 };
                (place.stored.offset, place.head_bytes() + frames as usize)
            }
        };
    }
}

/// Most reads with the kernel at once.
fn at_once(hub: &Hub) -> usize {
    if hub.open_sequence().is_some() { READS_IN_LEDGER_MAX } else { READS_IN_FLIGHT_MAX }
}

/// What each waiter was given last, and whether it still has it.
#[derive(Default)]
struct Holders(HashMap<u64, Weak<StoredFrames>>);

impl Holders {
    /// Frames for a waiter.
    fn give(&mut self, waiter: u64, frames: &StoredFrames) -> Arc<StoredFrames> {
        let given = Arc::new(frames.clone());
        self.0.insert(waiter, Arc::downgrade(&given));
        given
    }

    fn holds(&self, waiter: u64) -> bool {
        self.0.get(&waiter).is_some_and(|given| given.strong_count() > 0)
    }
}

/// A read that was done.
struct Read {
    place: Place,
    frames: StoredFrames,
    /// When it was read, as long as nobody has asked for it.
    ahead_since_ns: Option<i64>,
}

impl Read {
    fn is_awaited(&self, now: i64) -> bool {
        self.ahead_since_ns.is_some_and(|since| now < since.saturating_add(AHEAD_NS_MAX))
    }
}

/// Why a read does not begin.
enum Refused {
    /// Too much is under way.
    Full,
    /// Its segment is gone.
    Missing,
}

/// What became of a request.
enum Tried {
    Answer(Result<Arc<StoredFrames>, Lost>),
    Pending,
    Full,
    /// It is given more when it has sent what it has.
    Holds,
}

/// The reads of an archive.
pub(super) struct Reads {
    slots: [Option<Slot>; READS_IN_FLIGHT_MAX],
    /// Requests for which there was no room, in order.
    waiting: VecDeque<(Place, u64)>,
    /// Requests of waiters that hold something, while memory is short: behind all others, and in nobody's way.
    holding: VecDeque<(Place, u64)>,
    holders: Holders,
    /// Where memory is short, and where it ends: [`OUTSIDE_SHRINK_BYTES`], [`OUTSIDE_BYTES_MAX`].
    shrink_bytes: u64,
    bytes_max: u64,
    /// Reads that are kept, the oldest first.
    kept: VecDeque<Read>,
    indexes: VecDeque<(Stored, Index)>,
    done: VecDeque<(u64, Result<Arc<StoredFrames>, Lost>)>,
    /// When to look again whether there is room.
    look_ns: i64,
    home: Arc<Home>,
    counters: ReadCounters,
}

impl Default for Reads {
    fn default() -> Reads {
        Reads {
            slots: Default::default(),
            waiting: VecDeque::new(),
            holding: VecDeque::new(),
            holders: Holders::default(),
            shrink_bytes: OUTSIDE_SHRINK_BYTES,
            bytes_max: OUTSIDE_BYTES_MAX,
            kept: VecDeque::new(),
            indexes: VecDeque::new(),
            done: VecDeque::new(),
            look_ns: i64::MIN,
            home: Arc::new(Home { spare: ArrayQueue::new(KEPT_READS_MAX), outside: AtomicU64::new(0) }),
            counters: ReadCounters::default(),
        }
    }
}

impl Reads {
    /// See [`super::Archive::read`].
    pub(super) fn read(
        &mut self,
        segments: &Segments,
        port: &mut ArchivePort<'_>,
        stored: Stored,
        frame: u32,
        waiter: u64,
    ) -> Option<Result<Arc<StoredFrames>, Lost>> {
        assert!(frame < stored.frames, "a ledger's frames are counted");
        let place = Place { stored, frame };
        match self.attempt(segments, port, place, waiter, self.waiting.is_empty()) {
            Tried::Answer(answer) => Some(answer),
            Tried::Pending => None,
            Tried::Full => {
                self.waiting.push_back((place, waiter));
                None
            }
            Tried::Holds => {
                self.holding.push_back((place, waiter));
                None
            }
        }
    }

    /// Begins reads that waited for room; how many.
    pub(super) fn turn(&mut self, segments: &Segments, port: &mut ArchivePort<'_>) -> usize {
        let mut count = 0;
        for _ in 0..self.holding.len().min(HOLDING_PER_TURN) {
            let request = self.holding.pop_front().expect("counted");
            let queue = if self.must_send_first(request.1) { &mut self.holding } else { &mut self.waiting };
            queue.push_back(request);
        }
        while let Some(&(place, waiter)) = self.waiting.front() {
            match self.attempt(segments, port, place, waiter, true) {
                Tried::Full => break,
                Tried::Pending => {}
                Tried::Holds => self.holding.push_back((place, waiter)),
                Tried::Answer(answer) => self.done.push_back((waiter, answer)),
            }
            self.waiting.pop_front();
            count += 1;
        }
        self.look_ns = port.now.saturating_add(LOOK_AGAIN_NS);
        count
    }

    pub(super) fn next_done(&mut self) -> Option<(u64, Result<Arc<StoredFrames>, Lost>)> {
        self.done.pop_front()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    pub(super) fn counters(&self) -> ReadCounters {
        self.counters
    }

    /// A slot that becomes free is told by its completion; memory that comes back is not told.
    pub(super) fn deadline(&self) -> Option<i64> {
        (!self.waiting.is_empty() || !self.holding.is_empty()).then_some(self.look_ns)
    }

    /// Whether memory is short, and a waiter has some of it.
    fn must_send_first(&self, waiter: u64) -> bool {
        self.outside() >= self.shrink_bytes && self.holders.holds(waiter)
    }

    fn outside(&self) -> u64 {
        self.home.outside.load(Ordering::Relaxed)
    }

    /// What is kept is of no use any more.
    pub(super) fn forget(&mut self) {
        self.kept.clear();
        self.indexes.clear();
    }

    fn attempt(
        &mut self,
        segments: &Segments,
        port: &mut ArchivePort<'_>,
        place: Place,
        waiter: u64,
        may_begin: bool,
    ) -> Tried {
        if let Some(read) = self.kept.iter_mut().find(|read| read.place == place) {
            read.ahead_since_ns = None;
            let frames = self.holders.give(waiter, &read.frames);
            self.counters.given += 1;
            self.read_ahead(segments, port, place, frames.frames);
            return Tried::Answer(Ok(frames));
        }
        if let Some(slot) = self.slots.iter_mut().flatten().find(|slot| slot.place == place) {
            slot.waiters.push(waiter);
            return Tried::Pending;
        }
        if !may_begin {
            return Tried::Full;
        }
        if self.must_send_first(waiter) {
            return Tried::Holds;
        }
        match self.begin(segments, port, place, vec![waiter]) {
            Ok(()) => Tried::Pending,
            Err(Refused::Full) => Tried::Full,
            Err(Refused::Missing) => Tried::Answer(Err(self.lose(port.hub, place, "its segment is gone"))),
        }
    }

    fn begin(
        &mut self,
        segments: &Segments,
        port: &mut ArchivePort<'_>,
        place: Place,
        waiters: Vec<u64>,
    ) -> Result<(), Refused> {
        if self.in_flight() >= at_once(port.hub) {
            return Err(Refused::Full);
        }
        let at = self.slots.iter().position(Option::is_none).ok_or(Refused::Full)?;
        let outside = self.outside();
        if outside >= self.bytes_max {
            return Err(Refused::Full);
        }
        let file = segments.open.get(&place.stored.segment).ok_or(Refused::Missing)?.file.clone();
        let most = if outside < self.shrink_bytes { READ_BYTES } else { 1 };
        let index = self.index(&place.stored);
        let mut slot = Slot { place, file, waiters, index, most, at: 0, wanted: 0, failed: false };
        slot.plan();
        let buffer = self.buffer(slot.wanted);
        self.submit(port, at, slot, buffer).map_err(|_| Refused::Full)
    }

    /// Gives the kernel what is left of a read.
    fn submit(&mut self, port: &mut ArchivePort<'_>, at: usize, slot: Slot, buffer: Vec<u8>) -> Result<(), Slot> {
        let rest = slot.wanted - buffer.len();
        let from = slot.at + buffer.len() as u64;
        let tag = port.tag + 1 + at as u64;
        match port.ring.read_at(slot.file.as_fd(), buffer, rest, from, tag) {
            Ok(()) => {
                self.slots[at] = Some(slot);
                Ok(())
            }
            Err(_) => Err(slot),
        }
    }

    /// A completion of slot `tag − 1`.
    pub(super) fn complete(&mut self, segments: &Segments, port: &mut ArchivePort<'_>, tag: u64, result: i32) {
        let at = tag as usize - 1;
        let bytes = port.ring.take_bytes().expect("a read gives its buffer back");
        let slot = self.slots[at].take().expect("a read is under way");
        let errno = result.saturating_neg();
        if result <= 0 && !is_interrupted(errno) {
            let what = if result == 0 { "the file ends before it" } else { "the disk does not give it" };
            return self.fail(port, at, slot, bytes, what);
        }
        if bytes.len() < slot.wanted {
            return self.resubmit(port, at, slot, bytes);
        }
        self.counters.done += 1;
        self.counters.bytes += bytes.len() as u64;
        self.whole(segments, port, at, slot, bytes);
    }

    fn resubmit(&mut self, port: &mut ArchivePort<'_>, at: usize, slot: Slot, bytes: Vec<u8>) {
        if let Err(slot) = self.submit(port, at, slot, bytes) {
            self.give_up(port.hub, slot, "the ring does not take the request");
        }
    }

    /// A read has all its bytes: learns the index, checks the frames.
    fn whole(&mut self, segments: &Segments, port: &mut ArchivePort<'_>, at: usize, mut slot: Slot, bytes: Vec<u8>) {
        let place = slot.place;
        let (index, start) = match slot.index.clone() {
            Some(index) => (index, 0),
            None => {
                let head = &bytes[..place.head_bytes()];
                let found = retention::parse_record(head, place.stored.segment, place.stored.offset);
                let index: Index = match found {
                    Ok((record, checks)) if record.stored == place.stored => checks.into(),
                    Ok(_) => return self.fail(port, at, slot, bytes, "another record lies there"),
                    Err(what) => return self.fail(port, at, slot, bytes, what),
                };
                self.learn(place.stored, index.clone());
                slot.index = Some(index.clone());
                (index, place.head_bytes())
            }
        };
        let checks = &index[place.frame as usize..];
        let (frames, run_bytes) = retention::run(checks, slot.most);
        let (frames, run_bytes) = match bytes.len() - start {
            // The first read of a ledger ends anywhere; the frames that are whole are given.
            there if (there as u64) < run_bytes => retention::run(&checks[..frames], there as u64),
            _ => (frames, run_bytes),
        };
        let end = start + run_bytes as usize;
        if end > bytes.len() {
            // Not one is whole: now that it is known how long they are, they are read as they lie.
            slot.plan();
            let buffer = self.reuse(bytes, slot.wanted);
            return self.resubmit(port, at, slot, buffer);
        }
        if !retention::frames_hold(&checks[..frames], &bytes[start..end]) {
            return self.fail(port, at, slot, bytes, "a frame's checksum does not hold");
        }
        self.deliver(segments, port, slot, bytes, start..end, frames as u32);
    }

    fn deliver(
        &mut self,
        segments: &Segments,
        port: &mut ArchivePort<'_>,
        slot: Slot,
        bytes: Vec<u8>,
        part: Range<usize>,
        frames: u32,
    ) {
        self.home.outside.fetch_add(bytes.capacity() as u64, Ordering::Relaxed);
        let (place, home) = (slot.place, self.home.clone());
        let Range { start, end } = part;
        let memory = Arc::new(Memory { bytes, home });
        let read = StoredFrames { memory, start, end, first: place.frame, frames };
        let asked = !slot.waiters.is_empty();
        self.counters.given += slot.waiters.len() as u64;
        let holders = &mut self.holders;
        self.done.extend(slot.waiters.into_iter().map(|waiter| (waiter, Ok(holders.give(waiter, &read)))));
        self.keep(Read { place, frames: read, ahead_since_ns: (!asked).then_some(port.now) }, port.now);
        if asked {
            self.read_ahead(segments, port, place, frames);
        }
    }

    fn keep(&mut self, read: Read, now: i64) {
        if self.kept.len() >= KEPT_READS_MAX {
            let at = self.kept.iter().position(|read| !read.is_awaited(now)).unwrap_or(0);
            self.kept.remove(at);
        }
        self.kept.push_back(read);
    }

    /// Begins what a replay will ask for next.
    fn read_ahead(&mut self, segments: &Segments, port: &mut ArchivePort<'_>, mut place: Place, mut frames: u32) {
        for _ in 0..AHEAD {
            let Some(next) = place.after(frames, port.hub) else { return };
            place = next;
            if let Some(read) = self.kept.iter().find(|read| read.place == place) {
                frames = read.frames.frames;
                continue;
            }
            let under_way = self.slots.iter().flatten().any(|slot| slot.place == place);
            if !under_way && (!self.has_room_ahead(port) || self.begin(segments, port, place, Vec::new()).is_err()) {
                return;
            }
            // How far it goes is known only with its index.
            let Some(index) = self.index(&place.stored) else { return };
            frames = retention::run(&index[place.frame as usize..], READ_BYTES).0 as u32;
        }
    }

    /// Whether reading ahead takes nothing from those who have asked.
    fn has_room_ahead(&self, port: &ArchivePort<'_>) -> bool {
        self.waiting.is_empty()
            && self.in_flight() < (at_once(port.hub) - AHEAD).max(1)
            && self.outside() < self.shrink_bytes
            && self.kept.iter().filter(|read| read.is_awaited(port.now)).count() < KEPT_READS_MAX / 2
    }

    /// What came is not what was written, or nothing came: once more from the beginning, then it is lost.
    fn fail(&mut self, port: &mut ArchivePort<'_>, at: usize, mut slot: Slot, bytes: Vec<u8>, what: &'static str) {
        if slot.failed {
            return self.give_up(port.hub, slot, what);
        }
        self.counters.again += 1;
        self.indexes.retain(|(stored, _)| *stored != slot.place.stored);
        (slot.failed, slot.index) = (true, None);
        slot.plan();
        let buffer = self.reuse(bytes, slot.wanted);
        self.resubmit(port, at, slot, buffer);
    }

    fn give_up(&mut self, hub: &mut Hub, slot: Slot, what: &'static str) {
        let lost = self.lose(hub, slot.place, what);
        self.done.extend(slot.waiters.into_iter().map(|waiter| (waiter, Err(lost))));
    }

    /// The ledger leaves retention, and all before it, unless the place is another ledger's by now.
    fn lose(&mut self, hub: &mut Hub, place: Place, what: &'static str) -> Lost {
        let Stored { sequence, segment, offset, .. } = place.stored;
        if matches!(hub.kept(sequence), Some(Kept::Stored(stored)) if *stored == place.stored) {
            self.counters.lost += 1;
            tracing::warn!(
                "{}: ledger {sequence} at {offset} cannot be read ({what}): it leaves retention with all before it",
                segment_name(segment)
            );
            hub.prune(sequence + 1);
        }
        Lost { sequence }
    }

    fn index(&self, stored: &Stored) -> Option<Index> {
        self.indexes.iter().find(|(of, _)| of == stored).map(|(_, index)| index.clone())
    }

    fn learn(&mut self, stored: Stored, index: Index) {
        if self.indexes.len() >= INDEXES_MAX {
            self.indexes.pop_front();
        }
        self.indexes.push_back((stored, index));
    }

    /// An empty buffer with room for `wanted` bytes.
    fn buffer(&self, wanted: usize) -> Vec<u8> {
        if wanted < READ_BYTES as usize / 2 {
            return Vec::with_capacity(wanted);
        }
        let bytes = self.home.spare.pop().unwrap_or_default();
        self.reuse(bytes, wanted.max(READ_BYTES as usize + INDEX_ROOM_BYTES))
    }

    fn reuse(&self, mut bytes: Vec<u8>, wanted: usize) -> Vec<u8> {
        bytes.clear();
        bytes.reserve_exact(wanted);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::archive::{Archive, ArchiveSettings};
    use crate::ledger::keeper::{KeeperSettings, SyncPolicy};
    use crate::ledger::message::{HEADROOM, RawChunk};
    use crate::ledger::retention::Facts;
    use crate::sys::uring::CoreRing;
    use crate::wire::ledger::{Begin, End};
    use std::time::Duration;

    /// An archive with some ledgers of several frames each.
    struct Kit {
        ring: CoreRing,
        hub: Hub,
        archive: Archive,
        _directory: tempfile::TempDir,
    }

    impl Kit {
        /// `None` where there is no io_uring.
        fn new(ledgers: u32) -> Option<Kit> {
            let mut ring = CoreRing::new(64).ok()?;
            ring.enable(&[], 2).expect("enables");
            let directory = tempfile::tempdir().expect("a directory");
            let keeper = KeeperSettings { sync: SyncPolicy::Seal, ..KeeperSettings::default() };
            let (source, network) = ("test".into(), [0; 8]);
            let directory_path = directory.path().into();
            let settings =
                ArchiveSettings { directory: directory_path, keeper, source, network, start: 1, reset: false };
            let (archive, _) = Archive::open(&settings, 0).expect("opens");
            let mut kit = Kit { ring, hub: Hub::default(), archive, _directory: directory };
            for sequence in 1..=ledgers {
                kit.hub.begin(&Begin { sequence, emit_start_ns: 0 });
                for index in 0..4 {
                    let chunk = RawChunk::new(vec![7; HEADROOM + 1000], 1000, sequence, index);
                    kit.hub.chunk(chunk.into_message());
                }
                let frames = kit.hub.end(&End { sequence, chunks: 4, bytes: 4000, emit_end_ns: 0, xxh64: 0 });
                kit.archive.offer(Facts { sequence, raw_bytes: 4000, xxh64: 0, completed_ns: 0 }, frames);
            }
            kit.until(|kit| kit.hub.memory_bytes() == 0);
            Some(kit)
        }

        fn with<T>(&mut self, call: impl FnOnce(&mut Archive, &mut ArchivePort<'_>) -> T) -> T {
            let (ring, hub) = (&mut self.ring, &mut self.hub);
            call(&mut self.archive, &mut ArchivePort { ring, hub, tag: 0, now: 0, utc_ns: 0 })
        }

        fn ask(&mut self, sequence: u32, frame: u32, waiter: u64) {
            let Some(Kept::Stored(stored)) = self.hub.kept(sequence) else { panic!("{sequence} is stored") };
            let stored = *stored;
            if let Some(answer) = self.with(|archive, port| archive.read(port, stored, frame, waiter)) {
                self.archive.reads.done.push_back((waiter, answer));
            }
        }

        fn turn(&mut self) {
            self.with(|archive, port| archive.turn(port));
            self.ring.submit_and_wait(Some(Duration::from_millis(1))).expect("waits");
            while let Some(completion) = self.ring.next_completion() {
                self.with(|archive, port| archive.complete(port, completion.user_data, completion.result));
            }
        }

        /// At most some ten seconds.
        fn until(&mut self, mut done: impl FnMut(&mut Kit) -> bool) {
            for _ in 0..10_000 {
                if done(self) {
                    return;
                }
                self.turn();
            }
            panic!("it takes too long");
        }

        fn next(&mut self) -> (u64, Arc<StoredFrames>) {
            self.until(|kit| !kit.archive.reads.done.is_empty());
            let (waiter, answer) = self.archive.next_read().expect("looked at");
            (waiter, answer.expect("whole"))
        }
    }

    #[test]
    fn while_memory_is_short_those_that_hold_some_of_it_wait_and_hold_up_nobody() {
        let Some(mut kit) = Kit::new(12) else { return };
        // Short from the first byte on.
        kit.archive.reads.shrink_bytes = 1;
        kit.ask(1, 0, 1);
        let (_, first) = kit.next();
        for waiter in 1..=10 {
            kit.ask(waiter as u32 + 1, 0, waiter);
        }
        let mut others: Vec<u64> = (0..9).map(|_| kit.next().0).collect();
        others.sort_unstable();
        assert_eq!(others, (2..=10).collect::<Vec<u64>>(), "all but the one that holds something");
        (0..10).for_each(|_| kit.turn());
        assert!(kit.archive.next_read().is_none() && kit.archive.deadline().is_some());
        drop(first);
        assert_eq!(kit.next().0, 1, "when it has sent that");
        assert_eq!(kit.archive.deadline(), None);
    }

    #[test]
    fn while_a_ledger_is_open_few_reads_are_under_way() {
        let Some(mut kit) = Kit::new(12) else { return };
        for (open, most) in [(true, READS_IN_LEDGER_MAX), (false, READS_IN_FLIGHT_MAX)] {
            if open {
                kit.hub.begin(&Begin { sequence: 13, emit_start_ns: 0 });
            }
            kit.archive.reads.forget();
            (1..=10).for_each(|waiter| kit.ask(waiter as u32, 0, waiter));
            let mut seen = kit.archive.reads.in_flight();
            assert_eq!(seen, most);
            let mut told = 0;
            kit.until(|kit| {
                seen = seen.max(kit.archive.reads.in_flight());
                while kit.archive.next_read().is_some() {
                    told += 1;
                }
                told == 10
            });
            assert_eq!(seen, most, "open: {open}");
            kit.until(|kit| kit.archive.reads.in_flight() == 0);
            if open {
                kit.hub.end(&End { sequence: 13, chunks: 0, bytes: 0, emit_end_ns: 0, xxh64: 0 });
            }
        }
    }
}
