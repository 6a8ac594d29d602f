//! What every writer of a ring shares: the file, its parts, the head and the wake, the last sign of life.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::error::RingError;
use super::view::{GateView, Registry, View, header_bytes};
use crate::sync::gate::{self, Barrier};
use crate::sync::slots;
use crate::sys::clock::monotonic_coarse_ms;
use crate::sys::futex;
use crate::sys::shm::{HalfAt, MapOptions, Mapping, RingFile, WordAt, Words, random_nonzero};
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
/// many wakes for nobody, over so long, the count is set back ([`gate::forget`]). A reader on its way into the kernel is
/// there within microseconds, or milliseconds on a busy machine.
const VAIN_WAKES_MIN: u32 = 256;
const VAIN_MS_MIN: i64 = 1_000;

/// A ring's memory and its only writer's state.
#[derive(Debug)]
pub(super) struct Writer {
    pub geometry: Geometry,
    pub incarnation: u64,
    pub file: Option<RingFile>,
    keep: bool,
    mapping: Mapping,
    slots: Words,
    stride: usize,
    mask: u64,
    /// The sequence that is written next.
    pub next: u64,
    head: WordAt,
    futex: HalfAt,
    waiting: HalfAt,
    life: WordAt,
    beats: bool,
    /// Wakes in a row that woke nobody, and when the first of them was (coarse ms).
    vain: (u32, i64),
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
        let file = RingFile::create(place.path, bytes, place.mode)?;
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
        let words = geometry.capacity as usize * geometry.element_size as usize / 8;
        // In this process's own memory nobody needs a barrier from another one.
        let registered = file.is_some() && futex::register_barrier();
        let writer = Writer {
            geometry,
            incarnation: header.incarnation,
            file,
            keep,
            slots: mapping.words(geometry.slots_offset as usize, words),
            stride: geometry.element_size as usize / 8,
            mask: geometry.capacity - 1,
            next,
            head: mapping.word(offset::WRITE_SEQ),
            futex: mapping.half(offset::FUTEX_WORD),
            waiting: mapping.half(offset::WAITING),
            life: mapping.word(offset::PRODUCER_PID),
            beats: header.heartbeat_ms != 0,
            vain: (0, 0),
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
        let at = (sequence & self.mask) as usize * self.stride;
        &self.slots[at..at + self.stride]
    }

    /// Makes everything below `next` the ring's head, and wakes sleepers.
    #[inline(always)]
    pub fn publish(&mut self) {
        if gate::publish(&*self.head, &*self.waiting, self.next - 1, self.barrier) {
            self.wake();
        }
        if self.beats {
            self.beat();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&mut self) {
        gate::mark(&*self.futex);
        if futex::wake_all(&self.futex) > 0 {
            self.vain.0 = 0;
            return;
        }
        let now_ms = monotonic_coarse_ms();
        if self.vain.0 == 0 {
            self.vain.1 = now_ms;
        }
        self.vain.0 = self.vain.0.saturating_add(1);
        if self.vain.0 >= VAIN_WAKES_MIN && now_ms - self.vain.1 >= VAIN_MS_MIN {
            self.vain.0 = 0;
            if gate::forget(&*self.waiting) {
                gate::mark(&*self.futex);
                futex::wake_all(&self.futex);
            }
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
