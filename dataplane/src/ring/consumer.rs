//! Reading a ring: where to begin, what was lost on the way, who writes it, and the next one at its path.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::RingError;
use super::liveness::{Producer, Watch};
use super::producer::Record;
use super::view::{Front, Registry, View, entry_offset, is_dead};
use super::wait::{Turn, Wait, Waiting};
use crate::sync::registry::{self, lock_mark};
use crate::sync::slots::{self, SlotRead};
use crate::sys::clock::monotonic_ns;
use crate::sys::shm::WordAt;
use crate::wire::ring::{Geometry, REGISTRY_ENTRY_BYTES, Stride, padded, signature};

/// The first record that a reader gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StartAt {
    /// The last published record, if it is still the last; then what follows.
    #[default]
    Latest,
    /// What is published from now on.
    Head,
    /// The oldest that is still there.
    Oldest,
    /// That sequence; where it is gone already, the oldest, and what lies between counts as lapped.
    Sequence(u64),
}

/// How a reader attaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerSettings {
    /// Its name in the reader registry (31 bytes; longer ones are cut).
    pub name: String,
    /// Whether it enters itself into the registry, where there is one. A lossless producer waits for entered readers only.
    pub register: bool,
    /// Whether it may sleep on the ring's futex (then the header's page is mapped writable).
    pub sleeps: bool,
    /// Whether it goes on with the next ring at its path when the producer is replaced, after it said so.
    pub follow: bool,
    /// Whether every page is mapped before the first record is read.
    pub prefault: bool,
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        ConsumerSettings { name: "consumer".into(), register: true, sleeps: true, follow: false, prefault: true }
    }
}

/// What waiting for a record brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received<T> {
    /// The next record.
    Record {
        /// Its sequence.
        sequence: u64,
        /// What the producer wrote.
        record: T,
    },
    /// Nothing came in time.
    TimedOut,
    /// Nobody holds the ring any more, and all that it holds was read. Said once.
    Died,
    /// The producer holds the ring but gives no sign of life. Said once.
    Stalled,
    /// A stalled producer is back.
    Resumed,
    /// Another ring is at the path, and all that the old one holds was read. Said once. What follows is another history:
    /// sequences begin anew.
    Replaced {
        /// Whether the reader is on the new ring now, at its oldest record; else [`RingConsumer::follow`] takes it there.
        followed: bool,
        /// The life of the ring that the reader is on now; 0 where its producer gives none.
        incarnation: u64,
    },
}

/// An entry in the reader registry.
#[derive(Debug)]
struct Registration {
    index: usize,
    pid: u32,
    /// The entry's cursor.
    cursor: WordAt,
    /// Whether the entry's bytes are locked.
    locked: bool,
}

/// How often a reader goes through the registry while entries are changing hands: that takes microseconds.
const REGISTER_PASSES_MAX: usize = 8;

/// What became of entering one entry.
enum Entering {
    Entered(Registration),
    /// Another reader's.
    Taken,
    /// Changing hands.
    Busy,
}

/// What a slot was if it was not the wanted record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Miss {
    Older,
    Busy,
    Newer(u64),
}

/// Which ring a reader expects at its path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub record_bytes: usize,
    pub blobs: bool,
    pub schema_sig: u64,
    pub type_name: &'static str,
}

impl Expected {
    pub fn of<T>(blobs: bool) -> Expected {
        Expected {
            record_bytes: size_of::<T>(),
            blobs,
            schema_sig: signature::<T>(),
            type_name: std::any::type_name::<T>(),
        }
    }

    /// Whether a ring of that layout holds such records.
    fn check(&self, path: &Path, geometry: &Geometry) -> Result<(), RingError> {
        let path = || path.to_path_buf();
        if geometry.has_arena() != self.blobs {
            return Err(RingError::Kind { path: path(), blobs: geometry.has_arena() });
        }
        let descriptor = if self.blobs { crate::wire::ring::DESCRIPTOR_BYTES } else { 0 };
        let exact = slots::SEQUENCE_WORD_BYTES + padded(self.record_bytes) + descriptor;
        let line = exact.next_multiple_of(Stride::LINE_BYTES);
        // A ring of ours with line stride: the record stands at the same place, a descriptor at the slot's end.
        if ![exact, line].contains(&(geometry.element_size as usize)) {
            let (found, type_name) = (geometry.element_size, self.type_name);
            return Err(RingError::Element { path: path(), found, wanted: exact as u32, type_name });
        }
        if geometry.schema_sig != 0 && geometry.schema_sig != self.schema_sig {
            let (found, wanted) = (geometry.schema_sig, self.schema_sig);
            return Err(RingError::Schema { path: path(), found, wanted, type_name: self.type_name });
        }
        Ok(())
    }
}

/// What readers of records and of blobs share: the cursor and what it knows.
#[derive(Debug)]
pub(super) struct Reader {
    pub view: View,
    /// The sequence that is read next.
    pub cursor: u64,
    pub lapped: u64,
    pub skipped: u64,
    is_sparse: bool,
    empty_polls: u32,
    /// Records read since the last empty poll.
    streak: u32,
    registration: Option<Registration>,
    watch: Watch,
    /// What was told of the producer: a look that was asked for beside `recv` is no telling.
    told: Producer,
    settings: ConsumerSettings,
    path: PathBuf,
    expected: Expected,
}

/// Empty polls of a sparse ring before it is searched for a hole: the search reads the producer's line.
const POLLS_PER_SEARCH: u32 = 64;
/// A reader that found so many records one after the other is behind, and asks for what comes: one that keeps up must not,
/// since it would take lines from the producer that is about to write them.
const STREAK_MIN: u32 = 32;
/// How many records ahead it asks. A core has 16 line fills under way, each of 80 to 140 ns between two cores: at most 160
/// million records of a line a second. Asked for ahead, into the second-level cache, they came at 266 (24 ahead: 250).
const AHEAD: u64 = 48;

impl Reader {
    pub fn open(
        path: &Path,
        start: StartAt,
        settings: &ConsumerSettings,
        expected: Expected,
    ) -> Result<Reader, RingError> {
        let view = open_view(path, settings, &expected)?;
        let watch = Watch::new(&view);
        let mut reader = Reader {
            is_sparse: view.geometry.is_sparse(),
            view,
            cursor: 1,
            lapped: 0,
            skipped: 0,
            empty_polls: 0,
            streak: 0,
            registration: None,
            told: watch.producer(),
            watch,
            settings: settings.clone(),
            path: path.into(),
            expected,
        };
        reader.begin(start)?;
        Ok(reader)
    }

    /// Stands at the start and enters the registry.
    fn begin(&mut self, start: StartAt) -> Result<(), RingError> {
        self.stand_at(start);
        self.register()?;
        if self.registration.is_some() {
            // Before it was entered the producer did not wait for it.
            self.catch_up(0);
        }
        Ok(())
    }

    fn register(&mut self) -> Result<(), RingError> {
        let Some(registry) = self.view.registry.as_ref().filter(|_| self.settings.register) else { return Ok(()) };
        let mut busy = true;
        for _ in 0..REGISTER_PASSES_MAX {
            if !std::mem::take(&mut busy) {
                break;
            }
            for index in 0..registry.count {
                match self.enter(registry, index) {
                    Entering::Entered(registration) => {
                        self.registration = Some(registration);
                        return Ok(());
                    }
                    Entering::Taken => {}
                    Entering::Busy => busy = true,
                }
            }
            std::thread::yield_now();
        }
        // Without an entry a lossless ring would lose records for this reader alone.
        match self.view.geometry.is_lossless() {
            true => Err(RingError::ReadersFull { path: self.path.clone(), count: self.view.geometry.registry_count }),
            false => Ok(()),
        }
    }

    /// Takes one entry of the registry, if it is free or its reader is dead.
    fn enter(&self, registry: &Registry, index: usize) -> Entering {
        let (file, pid, bytes) = (self.view.file.as_ref(), std::process::id(), REGISTRY_ENTRY_BYTES as u64);
        let entry = registry.entry(index);
        let owner = entry.owner();
        if owner != 0 && !is_dead(file, registry, index) {
            return Entering::Taken;
        }
        // The lock first: an entry that says it is locked always is, while its reader lives.
        let locked = file.is_some_and(|file| file.lock_bytes(entry_offset(index), bytes));
        if !locked && file.is_some_and(|file| file.bytes_are_locked(entry_offset(index), bytes).is_some()) {
            // Its last reader is just leaving, or another one is just coming.
            return Entering::Busy;
        }
        let mark = if locked { lock_mark(pid) } else { 0 };
        if entry.claim(owner, pid, mark, self.cursor, &self.settings.name) && entry.owner() == pid {
            return Entering::Entered(Registration { index, pid, cursor: registry.cursor(index), locked });
        }
        if let Some(file) = file.filter(|_| locked) {
            file.unlock_bytes(entry_offset(index), bytes);
        }
        Entering::Busy
    }

    fn unregister(&mut self) {
        let Some(Registration { index, pid, locked, .. }) = self.registration.take() else { return };
        if let Some(registry) = &self.view.registry {
            registry.entry(index).release(pid);
        }
        if let Some(file) = self.view.file.as_ref().filter(|_| locked) {
            file.unlock_bytes(entry_offset(index), REGISTRY_ENTRY_BYTES as u64);
        }
    }

    /// The record at the cursor was read.
    #[inline(always)]
    pub fn pass(&mut self) {
        self.streak = self.streak.wrapping_add(1);
        if self.streak > STREAK_MIN {
            self.view.fetch_ahead(self.cursor.wrapping_add(AHEAD));
        }
        self.cursor = self.cursor.wrapping_add(1);
    }

    /// Tells the producer how far this reader has come.
    #[inline(always)]
    pub fn tell(&self) {
        if let Some(registration) = &self.registration {
            registry::advance(&*registration.cursor, self.cursor);
        }
    }

    /// The slot at the cursor was something else; whether the cursor moved on, so that another try is worth it.
    #[cold]
    #[inline(never)]
    pub fn missed(&mut self, miss: Miss) -> bool {
        self.streak = 0;
        match miss {
            Miss::Older if !self.is_sparse => false,
            Miss::Older => {
                self.empty_polls = self.empty_polls.wrapping_add(1);
                self.empty_polls.is_multiple_of(POLLS_PER_SEARCH) && self.pass_hole()
            }
            Miss::Newer(seen) => {
                // Less than a lap newer: no producer writes that, and in this slot the record will never come.
                if !self.catch_up(seen) && self.cursor < slots::BUSY - 2 {
                    self.lose_one();
                }
                self.cursor < slots::BUSY - 2
            }
            // Being overwritten, by a producer that may have died over it.
            Miss::Busy if self.view.is_overwritten(self.cursor) => {
                self.catch_up(self.cursor.saturating_add(self.view.geometry.capacity))
            }
            Miss::Busy => false,
        }
    }

    /// Goes on with the oldest record that is there, after a newer one was seen in its place.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self, seen: u64) -> bool {
        let oldest = self.view.oldest(seen);
        let moved = oldest > self.cursor;
        if moved {
            self.lapped = self.lapped.wrapping_add(oldest - self.cursor);
            self.cursor = oldest;
            self.tell();
        }
        moved
    }

    #[cold]
    #[inline(never)]
    fn pass_hole(&mut self) -> bool {
        let Some(next) = self.view.after_hole(self.cursor) else { return false };
        let hole = next - self.cursor;
        self.lapped = self.lapped.wrapping_add(hole);
        self.skipped = self.skipped.wrapping_add(hole);
        self.cursor = next;
        self.tell();
        true
    }

    /// The record at the cursor is gone, though its slot is not.
    #[cold]
    pub fn lose_one(&mut self) {
        self.lapped = self.lapped.wrapping_add(1);
        self.pass();
        self.tell();
    }

    /// Waits a moment after an empty poll; `Some` ends the wait.
    pub fn idle<T>(&mut self, waiting: &mut Waiting) -> Result<Option<Received<T>>, RingError> {
        match waiting.turn(&self.view, self.cursor, self.watch.due_ns()) {
            Turn::Poll => Ok(None),
            Turn::TimedOut => Ok(Some(Received::TimedOut)),
            Turn::Look(now_ns) => self.look(now_ns),
        }
    }

    /// Looks after the producer, if it is time; what is to be told.
    fn look<T>(&mut self, now_ns: i64) -> Result<Option<Received<T>>, RingError> {
        let found = self.watch.look(&self.view, now_ns);
        if found == self.told {
            return Ok(None);
        }
        if self.has_more() {
            // What the ring holds comes first. The finding is told when it was read.
            self.watch.look_again();
            return Ok(None);
        }
        if found == Producer::Replaced && self.settings.follow {
            return self.try_follow();
        }
        self.told = found;
        Ok(Some(match found {
            Producer::Died => Received::Died,
            Producer::Stalled => Received::Stalled,
            Producer::Alive => Received::Resumed,
            Producer::Replaced => Received::Replaced { followed: false, incarnation: self.view.incarnation },
        }))
    }

    /// Whether something was published that this reader has not passed.
    fn has_more(&self) -> bool {
        let sequence = slots::sequence(self.view.slot(self.cursor));
        sequence != slots::BUSY && sequence >= self.cursor || self.is_sparse && self.view.head() >= self.cursor
    }

    /// Goes to the new ring, unless that is still being made, or is gone again.
    fn try_follow<T>(&mut self) -> Result<Option<Received<T>>, RingError> {
        match self.follow() {
            Ok(incarnation) => Ok(Some(Received::Replaced { followed: true, incarnation })),
            Err(error) if error.is_not_yet() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Leaves this ring for the one that is at the path now, at its oldest record.
    pub fn follow(&mut self) -> Result<u64, RingError> {
        let view = open_view(&self.path, &self.settings, &self.expected)?;
        self.unregister();
        self.watch = Watch::new(&view);
        self.told = self.watch.producer();
        self.is_sparse = view.geometry.is_sparse();
        self.view = view;
        // A producer's ring begins with 1: what was overwritten before this reader came counts as lapped. A copy's begins
        // where its source was.
        self.begin(if self.is_sparse { StartAt::Oldest } else { StartAt::Sequence(1) })?;
        Ok(self.view.incarnation)
    }

    pub fn producer(&mut self) -> Producer {
        self.watch.look(&self.view, monotonic_ns())
    }

    pub fn is_registered(&self) -> bool {
        self.registration.is_some()
    }

    pub fn lag(&self) -> u64 {
        (self.view.head() + 1).saturating_sub(self.cursor)
    }

    pub fn seek(&mut self, start: StartAt) {
        self.stand_at(start);
        self.tell();
    }

    /// Puts the cursor where reading shall begin, or to the oldest that is there; what lies between counts as lapped.
    fn stand_at(&mut self, start: StartAt) {
        let head = self.view.head();
        let oldest = self.view.geometry.oldest(head);
        let wanted = match start {
            StartAt::Latest => head.max(1),
            StartAt::Head => head + 1,
            StartAt::Oldest => oldest,
            StartAt::Sequence(wanted) => wanted.clamp(1, slots::BUSY - 2),
        };
        self.lapped = self.lapped.wrapping_add(oldest.saturating_sub(wanted));
        self.cursor = wanted.max(oldest);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.unregister();
    }
}

/// Opens the ring with what the reader may write; read-only where the file allows no more, unless the ring is lossless.
fn open_view(path: &Path, settings: &ConsumerSettings, expected: &Expected) -> Result<View, RingError> {
    let front = match (settings.register, settings.sleeps) {
        (true, _) => Front::Registry,
        (false, true) => Front::Header,
        (false, false) => Front::ReadOnly,
    };
    let view = match View::open(path, front, settings.prefault) {
        Err(RingError::Memory(error)) if front != Front::ReadOnly && error.is_denied() => {
            let view = View::open(path, Front::ReadOnly, settings.prefault)?;
            if view.geometry.is_lossless() && settings.register {
                return Err(error.into());
            }
            view
        }
        result => result?,
    };
    expected.check(path, &view.geometry)?;
    Ok(view)
}

/// Reads the records of a ring. Any number of readers; none slows another, and only a lossless producer waits for those
/// that are entered in its registry.
#[derive(Debug)]
pub struct RingConsumer<T> {
    reader: Reader,
    record: PhantomData<fn() -> T>,
}

impl<T: Record> RingConsumer<T> {
    /// Attaches to the ring at `path`.
    ///
    /// # Errors
    /// No such file, no ring that is spoken here, a ring of other records, or (lossless) no free entry in its registry.
    pub fn open(path: &Path, start: StartAt, settings: &ConsumerSettings) -> Result<RingConsumer<T>, RingError> {
        const { assert!(align_of::<T>() <= 8, "a slot's payload is aligned to 8") };
        let reader = Reader::open(path, start, settings, Expected::of::<T>(false))?;
        Ok(RingConsumer { reader, record: PhantomData })
    }

    /// The next record, if it is there. Its sequence is [`RingConsumer::cursor`] − 1 afterwards.
    #[inline(always)]
    pub fn try_recv(&mut self) -> Option<T> {
        let record = self.take()?;
        self.reader.tell();
        Some(record)
    }

    #[inline(always)]
    fn take(&mut self) -> Option<T> {
        loop {
            let cursor = self.reader.cursor;
            // The cold path returns no record: one that came by memory would cost the fast path its registers.
            let miss = match slots::read(self.reader.view.slot(cursor), cursor) {
                SlotRead::Record(record) => {
                    self.reader.pass();
                    return Some(record);
                }
                SlotRead::Older if !self.reader.is_sparse => {
                    self.reader.streak = 0;
                    return None;
                }
                SlotRead::Older => Miss::Older,
                SlotRead::Busy => Miss::Busy,
                SlotRead::Newer(seen) => Miss::Newer(seen),
            };
            if !self.reader.missed(miss) {
                return None;
            }
        }
    }

    /// Fills `out` with the next records, as many as are there; how many. Sequences may jump between two of them (where the
    /// producer lapped this reader, or over a hole): [`RingConsumer::lapped`] tells.
    #[inline]
    pub fn recv_batch(&mut self, out: &mut [T]) -> usize {
        let mut count = 0;
        for place in out.iter_mut() {
            let Some(record) = self.take() else { break };
            *place = record;
            count += 1;
        }
        if count > 0 {
            self.reader.tell();
        }
        count
    }

    /// Waits for the next record, at most `timeout`. Looks after the producer meanwhile, and tells each change once.
    ///
    /// # Errors
    /// Only of a reader that follows: the ring that took this one's place cannot be read by it.
    pub fn recv(&mut self, wait: Wait, timeout: Duration) -> Result<Received<T>, RingError> {
        let mut waiting = Waiting::new(wait, timeout);
        loop {
            if let Some(record) = self.try_recv() {
                return Ok(Received::Record { sequence: self.cursor().wrapping_sub(1), record });
            }
            if let Some(end) = self.reader.idle(&mut waiting)? {
                return Ok(end);
            }
        }
    }

    /// Looks after the producer, if it is time (every 100 ms two system calls; 25 ms between looks at a sign of life); what is
    /// known of it. For readers that poll; [`RingConsumer::recv`] does it while it waits, and tells what it finds all the same.
    pub fn producer(&mut self) -> Producer {
        self.reader.producer()
    }

    /// Leaves this ring for the one that is at the path now, at its oldest record; its incarnation. Sequences begin anew;
    /// the counts go on, and what the new ring has overwritten already counts as lapped (not in a sparse ring, which may
    /// have begun anywhere).
    ///
    /// # Errors
    /// As [`RingConsumer::open`]; the reader stays where it is. With a full registry of a lossless ring it is on the new ring,
    /// but not entered.
    pub fn follow(&mut self) -> Result<u64, RingError> {
        self.reader.follow()
    }

    /// Goes to another place of this ring; what is gone already counts as lapped.
    pub fn seek(&mut self, start: StartAt) {
        self.reader.seek(start);
    }

    /// The sequence that is read next.
    pub fn cursor(&self) -> u64 {
        self.reader.cursor
    }

    /// Records that this reader did not get: overwritten before it came to them, or in holes of a sparse ring.
    pub fn lapped(&self) -> u64 {
        self.reader.lapped
    }

    /// Those of [`RingConsumer::lapped`] that a sparse ring did not hold when the reader came to them.
    pub fn skipped(&self) -> u64 {
        self.reader.skipped
    }

    /// Published records that were not read yet (with those that are lost already).
    pub fn lag(&self) -> u64 {
        self.reader.lag()
    }

    /// The ring's layout.
    pub fn geometry(&self) -> &Geometry {
        &self.reader.view.geometry
    }

    /// Which life of the ring this is; 0 where its producer gives none.
    pub fn incarnation(&self) -> u64 {
        self.reader.view.incarnation
    }

    /// Whether the reader is entered in the ring's registry.
    pub fn is_registered(&self) -> bool {
        self.reader.is_registered()
    }
}
