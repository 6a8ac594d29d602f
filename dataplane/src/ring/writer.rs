//! What every writer of a ring shares: the file, its parts, the head and the wake, the last sign of life.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::error::RingError;
use super::view::{GateView, Registry, View, header_bytes};
use crate::sync::gate::{self, Barrier};
use crate::sync::slots;
use crate::sys::clock::monotonic_coarse_ms;
use crate::sys::futex;
use crate::sys::shm::{HalfAt, MapOptions, Mapping, RingFile, Rows, WordAt, Words, random_nonzero};
use crate::wire::ring::{ARENA_HEADER_BYTES, Arena, Geometry, HEADER_BYTES, Header, MAGIC, Placed, offset};

/// Where a ring's memory comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub path: &'a Path,
    /// Permission bits of the file, before the umask.
    pub mode: u32,
    /// Whether the file stays when its writer ends.
    pub keep: bool,
    pub huge_pages: bool,
    pub numa_node: Option<u32>,
}

/// A sleeper that was killed stays in the count of sleepers, and each push would call the kernel for it for ever. After so
/// many wakes in a row that woke fewer than were announced, over so long, the count is set back ([`gate::forget`]). A reader on its way into the kernel is
/// there within microseconds, or milliseconds on a busy machine.
const VAIN_WAKES_MIN: u32 = 256;
const VAIN_MS_MIN: i64 = 1_000;
/// A living sleeper that was forgotten takes its announcement back when it wakes, and with it that of another one which came
/// meanwhile. So the writer wakes whoever sleeps, counted or not, for so long after it forgot, and once more after that: two
/// of the longest sleeps of our readers.
const UNCOUNTED_MS: i64 = 100;
/// More sleepers than this are none: somebody subtracted from 0 (the peer's readers do, after the count was set back).
const SLEEPERS_MAX: u32 = i32::MAX as u32;

/// A ring's memory and its only writer's state.
#[derive(Debug)]
pub(super) struct Writer {
    pub geometry: Geometry,
    pub incarnation: u64,
    pub file: Option<RingFile>,
    keep: bool,
    mapping: Mapping,
    slots: Rows,
    /// The sequence that is written next.
    pub next: u64,
    head: WordAt,
    futex: HalfAt,
    waiting: HalfAt,
    life: WordAt,
    beats: bool,
    /// Wakes in a row that woke fewer than were announced, and when the first of them was (coarse ms).
    vain: (u32, i64),
    /// Until when (coarse ms) sleepers may be uncounted, if they may.
    uncounted_until_ms: Option<i64>,
    /// Whether each publication has to do more than it says: beats, or sleepers that are not counted.
    attentive: bool,
    pub barrier: Barrier,
    pub arena: Option<ArenaWriter>,
}

/// The arena and what it has given out.
#[derive(Debug)]
pub(super) struct ArenaWriter {
    pub arena: Arena,
    pub reserved: u64,
    reserved_word: WordAt,
    data: Words,
}

impl ArenaWriter {
    fn of(mapping: &Mapping, geometry: &Geometry) -> Option<ArenaWriter> {
        let at = usize::try_from(geometry.arena_offset).ok().filter(|at| *at != 0)?;
        let reserved_word = mapping.word(at + 16);
        let data = mapping.words(at + ARENA_HEADER_BYTES as usize, geometry.arena_size as usize / 8);
        let arena = Arena { capacity: geometry.arena_size };
        Some(ArenaWriter { arena, reserved: reserved_word.load(Ordering::Relaxed), reserved_word, data })
    }

    /// Gives out the room and lets `fill` write the blob's words (the last may have bytes beyond `len`).
    #[inline]
    pub fn write(&mut self, placed: Placed, len: usize, fill: impl FnOnce(&[AtomicU64])) {
        if len > 0 {
            self.reserved = placed.reserved;
            slots::reserve(&*self.reserved_word, placed.reserved);
        }
        let at = (placed.offset & (self.arena.capacity - 1)) as usize / 8;
        fill(&self.data[at..at + len.div_ceil(8)]);
    }
}

impl Writer {
    /// Makes a new ring, whose first record will be `first`.
    pub fn create(place: &Place<'_>, header: &Header, first: u64) -> Result<Writer, RingError> {
        let geometry = &header.geometry;
        let layout = |source| RingError::Layout { path: place.path.into(), source };
        geometry.check().map_err(layout)?;
        let bytes = geometry.file_bytes().expect("checked");
        let file = RingFile::create(place.path, bytes, place.mode, MAGIC)?;
        let (huge_pages, numa_node) = (place.huge_pages, place.numa_node);
        match file.map(&MapOptions { writable: true, prefault: true, huge_pages, numa_node }) {
            Ok(mapping) => Ok(Writer::on_zeros(mapping, Some(file), place.keep, header, first)),
            // What did not become a ring does not stay.
            Err(error) => {
                file.unlink();
                Err(error.into())
            }
        }
    }

    /// Makes a new ring in this process's memory alone.
    pub fn anonymous(header: &Header, first: u64) -> Result<Writer, RingError> {
        let layout = |source| RingError::Layout { path: "".into(), source };
        header.geometry.check().map_err(layout)?;
        let bytes = header.geometry.file_bytes().expect("checked") as usize;
        Ok(Writer::on_zeros(Mapping::anonymous(bytes), None, false, header, first))
    }

    /// Takes over a ring whose writer is gone, if its layout is `geometry`; its life goes on with the next sequence.
    pub fn adopt(place: &Place<'_>, geometry: &Geometry) -> Result<Option<Writer>, RingError> {
        let Some(file) = RingFile::adopt(place.path)? else { return Ok(None) };
        if file.bytes() < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let (huge_pages, numa_node) = (place.huge_pages, place.numa_node);
        let mapping = file.map(&MapOptions { writable: true, prefault: true, huge_pages, numa_node })?;
        let Ok(header) = Header::parse(&header_bytes(&mapping), file.bytes()) else { return Ok(None) };
        if header.geometry != *geometry || View::over(&mapping, &header).is_err() {
            return Ok(None);
        }
        // Beyond these there is no sequence and no room to go on with: what no writer leaves behind.
        let Some(next) = header.write_seq.checked_add(1).filter(|next| *next < slots::BUSY - 1) else {
            return Ok(None);
        };
        let writer = Writer::of(mapping, Some(file), place.keep, &header, next);
        let used_up = writer.arena.as_ref().is_some_and(|arena| arena.reserved > u64::MAX / 2);
        Ok((!used_up).then_some(writer))
    }

    /// Fills in header and arena, and says with the magic that the ring is ready.
    fn on_zeros(mapping: Mapping, file: Option<RingFile>, keep: bool, header: &Header, first: u64) -> Writer {
        let words = mapping.words(0, HEADER_BYTES / 8);
        for (word, bytes) in words.iter().zip(header.encode().as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        if header.geometry.has_arena() {
            let arena = mapping.words(header.geometry.arena_offset as usize, 2);
            arena[0].store(header.geometry.arena_size, Ordering::Relaxed);
            arena[1].store(header.geometry.arena_size - 1, Ordering::Relaxed);
        }
        let writer = Writer::of(mapping, file, keep, header, first.max(1));
        // Read by the `Acquire` loads of `header_bytes`: who sees the magic sees the header.
        fence(Ordering::Release);
        words[0].store(MAGIC, Ordering::Release);
        writer
    }

    fn of(mapping: Mapping, file: Option<RingFile>, keep: bool, header: &Header, next: u64) -> Writer {
        let geometry = header.geometry;
        let (slots_offset, stride) = (geometry.slots_offset as usize, geometry.element_size as usize / 8);
        // In this process's own memory nobody needs a barrier from another one.
        let registered = file.is_some() && futex::register_barrier();
        let writer = Writer {
            geometry,
            incarnation: header.incarnation,
            file,
            keep,
            slots: mapping.rows(slots_offset, geometry.capacity, stride),
            next,
            head: mapping.word(offset::WRITE_SEQ),
            futex: mapping.half(offset::FUTEX_WORD),
            waiting: mapping.half(offset::WAITING),
            life: mapping.word(offset::PRODUCER_PID),
            beats: header.heartbeat_ms != 0,
            vain: (0, 0),
            uncounted_until_ms: None,
            attentive: header.heartbeat_ms != 0,
            barrier: if registered { Barrier::Sleeper } else { Barrier::Producer },
            arena: ArenaWriter::of(&mapping, &geometry),
            mapping,
        };
        writer.life.store(u64::from(header.producer_pid) | u64::from(header.heartbeat_ms) << 32, Ordering::Release);
        writer
    }

    /// Which life this is, who lives it, and whether it beats: the header of a new ring.
    pub fn header(geometry: Geometry, incarnation: u64, beats: bool) -> Header {
        let heartbeat_ms = if beats { now_ms() } else { 0 };
        Header { geometry, write_seq: 0, incarnation, producer_pid: std::process::id(), heartbeat_ms }
    }

    /// The slot of `sequence`.
    #[inline(always)]
    pub fn slot(&self, sequence: u64) -> &[AtomicU64] {
        self.slots.row(sequence)
    }

    /// Makes everything below `next` the ring's head, and wakes sleepers.
    #[inline(always)]
    pub fn publish(&mut self) {
        let sleeping = gate::publish(&*self.head, &*self.waiting, self.next - 1, self.barrier);
        if sleeping || self.attentive {
            self.after_publish(sleeping);
        }
    }

    /// Out of line, so that a push that has nothing to do here needs no stack.
    #[cold]
    #[inline(never)]
    fn after_publish(&mut self, sleeping: bool) {
        if sleeping || self.uncounted_until_ms.is_some() {
            self.wake();
        }
        self.beat_if_asked();
    }

    fn wake(&mut self) {
        let announced = self.waiting.load(Ordering::Relaxed);
        if self.uncounted_until_ms.is_some_and(|until_ms| monotonic_coarse_ms() >= until_ms) {
            // This wake reaches the last of them.
            (self.uncounted_until_ms, self.attentive) = (None, self.beats);
        }
        gate::mark(&*self.futex);
        // Living sleepers beside a dead one: some are woken, but never as many as are announced.
        if futex::wake_all(&self.futex) >= announced as usize {
            self.vain.0 = 0;
            return;
        }
        let now_ms = monotonic_coarse_ms();
        if self.vain.0 == 0 {
            self.vain.1 = now_ms;
        }
        self.vain.0 = self.vain.0.saturating_add(1);
        let long_in_vain = self.vain.0 >= VAIN_WAKES_MIN && now_ms - self.vain.1 >= VAIN_MS_MIN;
        if announced > SLEEPERS_MAX || long_in_vain {
            self.forget_sleepers(now_ms);
        }
    }

    fn forget_sleepers(&mut self, now_ms: i64) {
        self.vain.0 = 0;
        if gate::forget(&*self.waiting) {
            (self.uncounted_until_ms, self.attentive) = (Some(now_ms + UNCOUNTED_MS), true);
            gate::mark(&*self.futex);
            futex::wake_all(&self.futex);
        }
    }

    /// Tells readers that this process lives.
    #[inline]
    pub fn beat(&self) {
        let pid = self.life.load(Ordering::Relaxed) as u32;
        self.life.store(u64::from(pid) | u64::from(now_ms()) << 32, Ordering::Release);
    }

    /// [`Writer::beat`] where the ring was made to.
    pub fn beat_if_asked(&self) {
        if self.beats {
            self.beat();
        }
    }

    /// The registry, where the ring has one.
    pub fn registry(&self) -> Option<Registry> {
        Registry::of(&self.mapping, &self.geometry)
    }

    /// The same memory as its readers see it, with the gate.
    pub fn view(&self) -> View {
        let header = Header { incarnation: self.incarnation, geometry: self.geometry, ..Header::default() };
        let mut view = View::over(&self.mapping, &header).expect("made or checked by this writer");
        view.gate = Some(GateView::of(&self.mapping));
        view
    }

    /// Another life, or none: for a ring that is a copy of another one.
    pub fn set_incarnation(&mut self, incarnation: u64) {
        self.incarnation = incarnation;
        self.mapping.word(offset::INCARNATION).store(incarnation, Ordering::Release);
    }

    /// Another process lives it now.
    pub fn set_life(&mut self, beats: bool) {
        self.beats = beats;
        self.attentive = beats || self.uncounted_until_ms.is_some();
        let beat = if beats { now_ms() } else { 0 };
        self.life.store(u64::from(std::process::id()) | u64::from(beat) << 32, Ordering::Release);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        if !self.keep {
            // While the lock is still held, so that no successor's file is meant.
            file.unlink();
        }
        file.release();
    }
}

/// A number that is not 0 for a new life.
pub(super) fn new_incarnation() -> Result<u64, RingError> {
    random_nonzero().map_err(RingError::Random)
}

/// Monotonic ms as the header has them: wrapping, and never 0, which says that nobody beats.
fn now_ms() -> u32 {
    (monotonic_coarse_ms() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingSettings;
    use crate::sys::clock;
    use std::time::Duration;

    /// After sleepers were forgotten, each publication wakes for a while although nobody is counted, once more after it, and
    /// then no more.
    #[test]
    fn whoever_sleeps_uncounted_is_woken() {
        let shape = RingSettings { capacity: 8, ..RingSettings::default() }.shape::<u64>(None).expect("sound");
        let header = Writer::header(Geometry::of(&shape).expect("sound"), 1, false);
        let mut writer = Writer::anonymous(&header, 1).expect("sound");
        let wakes = |writer: &mut Writer| {
            let before = writer.futex.load(Ordering::Relaxed);
            writer.publish();
            writer.futex.load(Ordering::Relaxed) != before
        };
        assert!(!wakes(&mut writer));
        // A reader that subtracted from 0.
        writer.waiting.store(u32::MAX, Ordering::Relaxed);
        assert!(wakes(&mut writer));
        assert_eq!(writer.waiting.load(Ordering::Relaxed), 0);
        assert!(wakes(&mut writer), "nobody is counted, but somebody may sleep");
        clock::sleep(Duration::from_millis(2 * UNCOUNTED_MS as u64));
        assert!(wakes(&mut writer), "the first record after the while");
        assert!(!wakes(&mut writer) && !writer.attentive);
    }
}
