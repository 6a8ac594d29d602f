//! A ring as its readers map it: slots and arena read-only, the front writable only for those who register or sleep.

use std::mem::MaybeUninit;
use std::path::Path;

use super::error::RingError;
use crate::sync::gate;
use crate::sync::registry::{self, Entry};
use crate::sync::word::{Load, Ordering};
use crate::sys::futex;
use crate::sys::shm::{
    HalfAt, Halves, MapOptions, Mapping, ReadRows, ReadWord, ReadWordAt, ReadWords, RingFile, WordAt, Words,
    process_exists,
};
use crate::wire::ring::{
    ARENA_HEADER_BYTES, Arena, Geometry, HEADER_BYTES, Header, LayoutError, REGISTRY_ENTRY_BYTES, offset, oldest,
};

impl Load for ReadWord {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        // Under loom the orders have another type; only the models run there.
        #[cfg(not(loom))]
        return self.load(order);
        #[cfg(loom)]
        return self.load(match order {
            Ordering::Relaxed => std::sync::atomic::Ordering::Relaxed,
            _ => std::sync::atomic::Ordering::Acquire,
        });
    }

    #[inline(always)]
    fn copy_pair(pair: &[ReadWord; 2], to: &mut [MaybeUninit<u8>; 16]) {
        ReadWord::copy_pair(pair, to);
    }
}

/// What a reader may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Front {
    /// Nothing: the file is opened read-only.
    ReadOnly,
    /// The header's page, to sleep.
    Header,
    /// Header and registry, to register and to sleep.
    Registry,
}

/// A mapped ring.
#[derive(Debug)]
pub(super) struct View {
    pub geometry: Geometry,
    pub incarnation: u64,
    /// `None` in memory without a file.
    pub file: Option<RingFile>,
    slots: ReadRows,
    head: ReadWordAt,
    life: ReadWordAt,
    pub arena: Option<ArenaView>,
    pub gate: Option<GateView>,
    pub registry: Option<Registry>,
}

/// The arena of a mapped ring.
#[derive(Debug)]
pub(super) struct ArenaView {
    pub arena: Arena,
    pub reserved: ReadWordAt,
    pub data: ReadWords,
}

/// What a sleeper writes.
#[derive(Debug)]
pub(super) struct GateView {
    pub futex: HalfAt,
    waiting: HalfAt,
}

/// The reader registry, writable.
#[derive(Debug)]
pub(super) struct Registry {
    pub count: usize,
    mapping: Mapping,
    words: Words,
    halves: Halves,
}

impl Registry {
    /// The registry of a mapping that is writable as far as it goes.
    pub fn of(mapping: &Mapping, geometry: &Geometry) -> Option<Registry> {
        let count = geometry.registry_count as usize;
        let words = count * registry::ENTRY_WORDS;
        (count > 0).then(|| Registry {
            count,
            mapping: mapping.clone(),
            words: mapping.words(HEADER_BYTES, words),
            halves: mapping.halves(HEADER_BYTES, words * 2),
        })
    }

    /// One entry.
    #[inline(always)]
    pub fn entry(&self, index: usize) -> Entry<'_, std::sync::atomic::AtomicU64, std::sync::atomic::AtomicU32> {
        let words = &self.words[index * registry::ENTRY_WORDS..][..registry::ENTRY_WORDS];
        let halves = &self.halves[index * registry::ENTRY_WORDS * 2..][..2];
        Entry { pid: &halves[0], active: &halves[1], cursor: &words[1], mark: &words[2], name: &words[3..7] }
    }

    /// The cursor of one entry, for its reader.
    pub fn cursor(&self, index: usize) -> WordAt {
        self.mapping.word(entry_offset(index) as usize + 8)
    }

    /// All entries.
    pub fn entries(
        &self,
    ) -> impl Iterator<Item = Entry<'_, std::sync::atomic::AtomicU64, std::sync::atomic::AtomicU32>> {
        (0..self.count).map(|index| self.entry(index))
    }
}

/// Where an entry lies in the file: the bytes that its reader locks.
pub(super) fn entry_offset(index: usize) -> u64 {
    (HEADER_BYTES + index * REGISTRY_ENTRY_BYTES) as u64
}

/// Whether the reader that owns an entry is dead: by its lock where it holds one (any death, any PID namespace), else by its
/// process number, as the peer does.
pub(super) fn is_dead(file: Option<&RingFile>, registry: &Registry, index: usize) -> bool {
    let entry = registry.entry(index);
    let pid = entry.owner();
    if pid == 0 {
        return false;
    }
    let bytes = REGISTRY_ENTRY_BYTES as u64;
    let locked = match file {
        Some(file) if entry.is_locked_kind() => file.bytes_are_locked(entry_offset(index), bytes),
        _ => None,
    };
    locked.map_or_else(|| !process_exists(pid), |locked| !locked)
}

/// Frees the entries of dead readers, and of those whose process number `reused` knows to be another's by now (by the entry's
/// index and owner); how many.
pub(super) fn prune(file: Option<&RingFile>, registry: &Registry, reused: impl Fn(usize, u32) -> bool) -> u64 {
    let mut freed = 0;
    for index in 0..registry.count {
        let entry = registry.entry(index);
        let owner = entry.owner();
        let free = owner != 0 && (is_dead(file, registry, index) || reused(index, owner)) && entry.reclaim(owner);
        freed += u64::from(free);
    }
    freed
}

impl View {
    /// Opens the ring at `path`. With `prefault` its pages are mapped now, if the file has them all: touching a hole makes a
    /// page, so a reader would fill the file system with what a sparse file only says that it has.
    pub fn open(path: &Path, front: Front, prefault: bool) -> Result<View, RingError> {
        Ok(View::open_mapped(path, front, prefault)?.0)
    }

    /// [`View::open`], its header and the mapping of the whole file.
    pub fn open_mapped(path: &Path, front: Front, prefault: bool) -> Result<(View, Header, Mapping), RingError> {
        let file = RingFile::open(path, front != Front::ReadOnly)?;
        let layout = |source| RingError::Layout { path: path.into(), source };
        if file.bytes() < HEADER_BYTES as u64 {
            return Err(layout(short(&file)));
        }
        let prefault = prefault && file.has_all_pages();
        let mapping = file.map(&MapOptions { prefault, ..MapOptions::default() })?;
        let header = Header::parse(&header_bytes(&mapping), file.bytes()).map_err(layout)?;
        let mut view = View::over(&mapping, &header).map_err(layout)?;
        let front_bytes = match front {
            Front::ReadOnly => 0,
            Front::Header => HEADER_BYTES,
            Front::Registry => HEADER_BYTES + header.geometry.registry_count as usize * REGISTRY_ENTRY_BYTES,
        };
        if front_bytes > 0 {
            let front_part = file.map_first(front_bytes, &MapOptions { writable: true, ..MapOptions::default() })?;
            view.gate = Some(GateView::of(&front_part));
            if front == Front::Registry {
                view.registry = Registry::of(&front_part, &header.geometry);
            }
        }
        view.file = Some(file);
        Ok((view, header, mapping))
    }

    /// The ring in a mapping that holds it whole, without gate and registry.
    pub fn over(mapping: &Mapping, header: &Header) -> Result<View, LayoutError> {
        let geometry = header.geometry;
        let (slots_offset, stride) = (geometry.slots_offset as usize, geometry.element_size as usize / 8);
        let arena = match geometry.has_arena() {
            true => Some(ArenaView::of(mapping, &geometry)?),
            false => None,
        };
        Ok(View {
            geometry,
            incarnation: header.incarnation,
            file: None,
            slots: mapping.read_rows(slots_offset, geometry.capacity, stride),
            head: mapping.read_word(offset::WRITE_SEQ),
            life: mapping.read_word(offset::PRODUCER_PID),
            arena,
            gate: None,
            registry: None,
        })
    }

    /// The slot of `sequence`.
    #[inline(always)]
    pub fn slot(&self, sequence: u64) -> &[ReadWord] {
        self.slots.row(sequence)
    }

    /// Asks for the slot of `sequence`, to come nearer while something else is read.
    #[inline(always)]
    pub fn fetch_ahead(&self, sequence: u64) {
        if let Some(word) = self.slot(sequence).first() {
            word.prefetch();
        }
    }

    /// The last published sequence; 0 while there is none.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        // Pairs with the producer's `Release` store in `gate::publish`. The largest number is no sequence, but the busy mark.
        self.head.load(std::sync::atomic::Ordering::Acquire).min(u64::MAX - 2)
    }

    /// The producer's process and its last sign of life, 0 where it gives none.
    pub fn life(&self) -> (u32, u32) {
        let life = self.life.load(std::sync::atomic::Ordering::Acquire);
        (life as u32, (life >> 32) as u32)
    }

    /// The oldest sequence that may still be there once `seen` was.
    pub fn oldest(&self, seen: u64) -> u64 {
        oldest(self.head().max(seen.min(u64::MAX - 2)), self.geometry.capacity)
    }

    /// Whether the slot of a published record is being written again, after it was seen busy: looked at once more after the
    /// head, because the record itself may have been what was written.
    pub fn is_overwritten(&self, sequence: u64) -> bool {
        self.head() >= sequence && crate::sync::slots::sequence(self.slot(sequence)) == crate::sync::slots::BUSY
    }

    /// In a sparse ring whose head has passed `cursor` although its slot still holds an older lap: the next sequence that
    /// is there, or the one after the head. At most one lap is looked through.
    pub fn after_hole(&self, cursor: u64) -> Option<u64> {
        let head = self.head();
        if head < cursor {
            return None;
        }
        // It may have come between the look at the slot and the look at the head.
        let sequence_in = |sequence| crate::sync::slots::sequence(self.slot(sequence));
        if sequence_in(cursor) >= cursor {
            return None;
        }
        let first = oldest(head, self.geometry.capacity).max(cursor + 1);
        Some((first..=head).find(|next| sequence_in(*next) == *next).unwrap_or(head + 1))
    }
}

impl ArenaView {
    fn of(mapping: &Mapping, geometry: &Geometry) -> Result<ArenaView, LayoutError> {
        let at = geometry.arena_offset as usize;
        let [capacity, mask] =
            [0, 8].map(|field| mapping.read_word(at + field).load(std::sync::atomic::Ordering::Relaxed));
        if capacity != geometry.arena_size || mask != capacity.wrapping_sub(1) {
            return Err(LayoutError::Misplaced { part: "arena's header", offset: geometry.arena_offset });
        }
        let data = at + ARENA_HEADER_BYTES as usize;
        Ok(ArenaView {
            arena: Arena { capacity },
            reserved: mapping.read_word(at + 16),
            data: mapping.read_words(data, capacity as usize / 8),
        })
    }

    /// Whether what began at `offset` may have been overwritten, after it was copied.
    #[inline]
    pub fn lapped(&self, offset: u64) -> bool {
        let reserved = crate::sync::slots::reserved_after(&*self.reserved);
        self.arena.lapped(reserved, offset)
    }
}

impl GateView {
    pub fn of(mapping: &Mapping) -> GateView {
        GateView { futex: mapping.half(offset::FUTEX_WORD), waiting: mapping.half(offset::WAITING) }
    }

    /// Announces a sleeper that waits for `cursor`: the futex word's value to sleep on, then [`GateView::withdraw`].
    pub fn announce(&self, view: &View, cursor: u64) -> Option<u32> {
        let barrier = || {
            futex::barrier();
        };
        gate::announce(&*view.head, &*self.futex, &*self.waiting, cursor, barrier)
    }

    pub fn withdraw(&self) {
        gate::withdraw(&*self.waiting);
    }
}

/// What a file is that is too short for a ring.
#[cold]
fn short(file: &RingFile) -> LayoutError {
    let magic = match file.bytes() {
        0..8 => None,
        _ => file.map(&MapOptions::default()).ok().map(|mapping| mapping.read_word(0).load(Ordering::Acquire)),
    };
    let other = magic.and_then(|magic| LayoutError::check_other(magic).err());
    other.unwrap_or(LayoutError::Short(file.bytes()))
}

/// The header's bytes as they are now: the magic first, then what its store made visible.
pub(super) fn header_bytes(mapping: &Mapping) -> [u8; HEADER_BYTES] {
    // Flags and the futex word, the sleepers and padding: changed by halves.
    const BY_HALVES: [usize; 2] = [offset::FLAGS, offset::WAITING];
    let mut bytes = [0; HEADER_BYTES];
    for (index, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let at = index * 8;
        // The first pairs with the `Release` store of the magic when the ring was made.
        *bytes = match BY_HALVES.contains(&at) {
            false => mapping.read_word(at).load(Ordering::Acquire),
            true => [4, 0]
                .iter()
                .fold(0, |word, half| word << 32 | u64::from(mapping.read_half(at + half).load(Ordering::Acquire))),
        }
        .to_le_bytes();
    }
    bytes
}
