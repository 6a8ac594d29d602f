//! The ring file, version 2 of the format that the crate ringfire (0.5) defines: header, layout, type signature.
//!
//! All integers are little-endian. Order in the file: header (128 bytes), reader registry (optional), slots, arena
//! (optional). This module computes and checks; it maps nothing. Whatever a header says is checked before it is used:
//! any process that may write the file may have written it.

/// First 8 bytes of a ring file, as a little-endian number; written last, so that a ring without it is not ready.
pub const MAGIC: u64 = 0x5249_4E47_4649_5245;
/// What a blackboard of the peer's begins with ("RINGBBOR").
pub const BLACKBOARD_MAGIC: u64 = 0x5249_4E47_4242_4F52;
/// What a file with a reader's position of the peer's begins with ("SHM_OFFS"): 64 bytes in all.
pub const OFFSET_CHECKPOINT_MAGIC: u64 = 0x5348_4D5F_4F46_4653;
/// The only version of the format that is spoken.
pub const VERSION: u32 = 2;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;
/// Bytes of one reader registry entry.
pub const REGISTRY_ENTRY_BYTES: usize = 64;
/// Bytes of the arena's own header.
pub const ARENA_HEADER_BYTES: u64 = 64;
/// Bytes of a blob's descriptor, the last of a slot's payload.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Bytes of the sequence word that begins each slot.
pub const SEQUENCE_BYTES: usize = 8;
/// A slot that is being written.
pub const BUSY: u64 = u64::MAX;
/// Blobs begin at multiples of this many bytes of the arena.
pub const BLOB_ALIGN: u64 = 64;

/// Where each header field lies, in bytes from the start of the file.
pub mod offset {
    #![allow(missing_docs)]
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const ELEMENT_SIZE: usize = 12;
    pub const CAPACITY: usize = 16;
    pub const MASK: usize = 24;
    pub const WRITE_SEQ: usize = 32;
    pub const CLAIM_SEQ: usize = 40;
    pub const FLAGS: usize = 48;
    pub const FUTEX_WORD: usize = 52;
    pub const WAITING: usize = 56;
    pub const READ_SEQ: usize = 64;
    pub const SCHEMA_SIG: usize = 72;
    pub const ARENA_OFFSET: usize = 80;
    pub const ARENA_SIZE: usize = 88;
    pub const REGISTRY_OFFSET: usize = 96;
    pub const REGISTRY_COUNT: usize = 100;
    pub const SLOTS_OFFSET: usize = 104;
    /// Ours, in bytes that the format leaves free: which life of the ring this is (0: the producer gives none).
    pub const INCARNATION: usize = 112;
    /// Ours: the producer's process id.
    pub const PRODUCER_PID: usize = 120;
    /// Ours: the producer's last sign of life, monotonic milliseconds, wrapping; 0 where it does not beat.
    pub const HEARTBEAT: usize = 124;
}

/// Bits of the header's flags.
pub mod flag {
    /// Readers follow the newest; nobody waits for them.
    pub const LATEST_WINS: u32 = 0x1;
    /// The producer waits for its slowest registered reader.
    pub const LOSSLESS: u32 = 0x2;
    /// One producer.
    pub const SINGLE_PRODUCER: u32 = 0x10;
    /// Several producers (not spoken here: refused by name).
    pub const MULTI_PRODUCER: u32 = 0x20;
    /// There is an arena.
    pub const ARENA: u32 = 0x100;
    /// There is a reader registry.
    pub const REGISTRY: u32 = 0x200;
    /// Sequences may be missing; set on every mirror's ring.
    pub const SPARSE: u32 = 0x400;
}

/// A ring's layout: what the header says, and what GEOMETRY carries to a mirror.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Geometry {
    /// Slots; a power of two.
    pub capacity: u64,
    /// Bytes from slot to slot, the sequence word included; a multiple of 8.
    pub element_size: u32,
    /// See [`flag`].
    pub flags: u32,
    /// [`signature`] of the record type; 0 is unchecked.
    pub schema_sig: u64,
    /// Entries of the reader registry.
    pub registry_count: u32,
    /// Where the slots begin.
    pub slots_offset: u32,
    /// Where the arena's header begins; 0 without an arena.
    pub arena_offset: u64,
    /// Bytes of arena data; a power of two.
    pub arena_size: u64,
}

/// Bytes of the payload of one record of `bytes`: rounded up to whole words, as the sequence word's alignment demands.
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(SEQUENCE_BYTES)
}

/// How far apart slots lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stride {
    /// Exactly the sequence word and the record, as every reader of the format demands.
    #[default]
    Exact,
    /// Rounded up to whole cache lines of 64 bytes; only our own readers attach.
    Line,
}

impl Stride {
    /// What [`Stride::Line`] rounds up to.
    pub const LINE_BYTES: usize = 64;
}

/// What a new ring shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Slots; a power of two.
    pub capacity: u64,
    /// Bytes of the record, or of a blob's meta.
    pub record_bytes: usize,
    /// Alignment of the record; at most 8.
    pub record_align: usize,
    /// [`signature`] of the record; 0 is unchecked.
    pub schema_sig: u64,
    /// Whether the producer waits for its registered readers.
    pub lossless: bool,
    /// Entries of the reader registry; 0 is none.
    pub readers_max: u32,
    /// Whether sequences may be missing.
    pub sparse: bool,
    /// How far apart slots lie.
    pub stride: Stride,
    /// Bytes of the arena: a power of two, at least 64; `None` is a ring of fixed records.
    pub arena_bytes: Option<u64>,
}

/// Why a ring cannot have the shape or the layout asked for, or that its header tells.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// Slots are found with a mask.
    #[error("capacity = {0}, but a ring's slots are a power of two")]
    Capacity(u64),
    /// A record that needs more than the alignment of its sequence word.
    #[error("the record is aligned to {0} bytes, but a slot's payload is aligned to 8: use fields of at most 8 bytes")]
    Alignment(usize),
    /// Arenas are addressed with a mask.
    #[error("arena = {0} bytes, but an arena is a power of two of at least 64")]
    Arena(u64),
    /// Offsets are 32 and 64 bits wide and memory is 63.
    #[error("a ring of {capacity} slots of {element_bytes} bytes is beyond what a file can be mapped as")]
    TooLarge {
        /// Slots.
        capacity: u64,
        /// Bytes from slot to slot.
        element_bytes: u64,
    },
    /// Lossless flow control is nothing without a registry.
    #[error("a lossless ring needs a reader registry, but readers_max = 0")]
    LosslessWithoutReaders,
    /// Fewer bytes than a header.
    #[error("{0} bytes are no ring: its header alone has {HEADER_BYTES}")]
    Short(u64),
    /// No ring, or one that its producer has not finished.
    #[error("magic {0:#018x} is not a ring's ({MAGIC:#018x}): another file, or a ring that is still being created")]
    Magic(u64),
    /// A table of last values, the peer's.
    #[error("a blackboard (a table of last values): not spoken here, only rings are")]
    Blackboard,
    /// A reader's position in a file of its own, the peer's.
    #[error("an offset checkpoint (a reader's position): no ring; open the ring that it lies beside")]
    OffsetCheckpoint,
    /// A version of the format that is not spoken.
    #[error("ring format version {0}, but only version {VERSION} is spoken")]
    Version(u32),
    /// A ring with several producers.
    #[error("an MPMC ring (several producers): not spoken here, only rings with one producer are")]
    MultiProducer,
    /// Flags that contradict one another or are not known.
    #[error("flags {0:#x} are no ring's that is spoken here")]
    Flags(u32),
    /// The slot is too small or not in whole words.
    #[error("slots of {0} bytes: they have at least 8 bytes, in whole words of 8")]
    Element(u32),
    /// The mask is not the capacity's.
    #[error("mask {mask:#x} is not that of {capacity} slots")]
    Mask {
        /// The header's mask.
        mask: u64,
        /// The header's capacity.
        capacity: u64,
    },
    /// A part lies outside the file, across another part, or crooked.
    #[error("the {part} at {offset} does not fit: the header or the file is damaged")]
    Misplaced {
        /// Slots, registry or arena.
        part: &'static str,
        /// Where it should begin.
        offset: u64,
    },
    /// The file ends before its last part does.
    #[error("the ring needs {needed} bytes, but its file has {file}: it was cut, or is still being created")]
    Truncated {
        /// The layout's.
        needed: u64,
        /// The file's.
        file: u64,
    },
}

/// Where the registry begins when there is one.
pub const REGISTRY_OFFSET: u32 = HEADER_BYTES as u32;
/// Slots of a ring of fixed records begin at a multiple of this.
const SLOTS_ALIGN_FIXED: u64 = 64;
/// Slots and arena of a blob ring begin at multiples of this.
const SLOTS_ALIGN_BLOB: u64 = 128;
/// All flags that are spoken.
const FLAGS_KNOWN: u32 = flag::LATEST_WINS
    | flag::LOSSLESS
    | flag::SINGLE_PRODUCER
    | flag::MULTI_PRODUCER
    | flag::ARENA
    | flag::REGISTRY
    | flag::SPARSE;
/// The largest file that is mapped: what a slice may span.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl Geometry {
    /// The layout of a ring of that shape.
    ///
    /// # Errors
    /// The shape has no layout.
    pub fn of(shape: &Shape) -> Result<Geometry, LayoutError> {
        if !shape.capacity.is_power_of_two() {
            return Err(LayoutError::Capacity(shape.capacity));
        }
        if shape.record_align > SEQUENCE_BYTES {
            return Err(LayoutError::Alignment(shape.record_align));
        }
        if shape.lossless && shape.readers_max == 0 {
            return Err(LayoutError::LosslessWithoutReaders);
        }
        if let Some(arena) = shape.arena_bytes
            && (!arena.is_power_of_two() || arena < BLOB_ALIGN)
        {
            return Err(LayoutError::Arena(arena));
        }
        let descriptor = if shape.arena_bytes.is_some() { DESCRIPTOR_BYTES } else { 0 };
        let exact = (SEQUENCE_BYTES + padded(shape.record_bytes) + descriptor) as u64;
        let element = match shape.stride {
            Stride::Exact => exact,
            Stride::Line => exact.next_multiple_of(Stride::LINE_BYTES as u64),
        };
        let too_large = LayoutError::TooLarge { capacity: shape.capacity, element_bytes: element };
        shape.place(element).ok_or(too_large)
    }

    /// Bytes of a slot's payload.
    pub fn payload_bytes(&self) -> usize {
        (self.element_size as usize).saturating_sub(SEQUENCE_BYTES)
    }

    /// Whether records carry blobs.
    pub fn has_arena(&self) -> bool {
        self.arena_offset != 0
    }

    /// Whether sequences may be missing.
    pub fn is_sparse(&self) -> bool {
        self.flags & flag::SPARSE != 0
    }

    /// Whether the producer waits for its registered readers.
    pub fn is_lossless(&self) -> bool {
        self.flags & flag::LOSSLESS != 0
    }

    /// The oldest sequence that a ring with that head may still hold.
    pub fn oldest(&self, head: u64) -> u64 {
        oldest(head, self.capacity)
    }

    /// The last byte of the slots, plus one; `None` where that is no number.
    fn slots_end(&self) -> Option<u64> {
        self.capacity.checked_mul(u64::from(self.element_size))?.checked_add(u64::from(self.slots_offset))
    }

    /// Bytes of the whole file; `None` where that is no number of bytes that can be mapped.
    pub fn file_bytes(&self) -> Option<u64> {
        let slots_end = self.slots_end()?;
        let end = match self.has_arena() {
            true => self.arena_offset.checked_add(ARENA_HEADER_BYTES)?.checked_add(self.arena_size)?.max(slots_end),
            false => slots_end,
        };
        (end <= FILE_BYTES_MAX).then_some(end)
    }

    /// The layout of a mirror of this ring: the same places; latest wins and sequences may be missing, whatever the source
    /// does.
    pub fn mirrored(&self) -> Geometry {
        let registry = if self.registry_count > 0 { flag::REGISTRY } else { 0 };
        let arena = if self.has_arena() { flag::ARENA } else { 0 };
        let flags = registry | arena | flag::LATEST_WINS | flag::SINGLE_PRODUCER | flag::SPARSE;
        Geometry { flags, ..*self }
    }

    /// Checks that the layout holds together: powers of two, flags, every part in its place, none across another.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), LayoutError> {
        self.check_flags()?;
        if (self.element_size as usize) < SEQUENCE_BYTES || !self.element_size.is_multiple_of(8) {
            return Err(LayoutError::Element(self.element_size));
        }
        if !self.capacity.is_power_of_two() {
            return Err(LayoutError::Capacity(self.capacity));
        }
        let registry_bytes = u64::from(self.registry_count) * REGISTRY_ENTRY_BYTES as u64;
        if u64::from(self.slots_offset) < HEADER_BYTES as u64 + registry_bytes || !self.slots_offset.is_multiple_of(8) {
            let part = if registry_bytes > 0 { "reader registry before the slots" } else { "slots" };
            return Err(LayoutError::Misplaced { part, offset: u64::from(self.slots_offset) });
        }
        let too_large = LayoutError::TooLarge { capacity: self.capacity, element_bytes: u64::from(self.element_size) };
        let Some(slots_end) = self.slots_end() else { return Err(too_large) };
        if self.has_arena() {
            if !self.arena_size.is_power_of_two() || self.arena_size < BLOB_ALIGN {
                return Err(LayoutError::Arena(self.arena_size));
            }
            if self.arena_offset < slots_end || !self.arena_offset.is_multiple_of(BLOB_ALIGN) {
                return Err(LayoutError::Misplaced { part: "arena", offset: self.arena_offset });
            }
            if self.payload_bytes() < DESCRIPTOR_BYTES {
                return Err(LayoutError::Element(self.element_size));
            }
        }
        self.file_bytes().map(|_| ()).ok_or(too_large)
    }

    fn check_flags(&self) -> Result<(), LayoutError> {
        let has = |bits: u32| self.flags & bits == bits;
        if has(flag::MULTI_PRODUCER) {
            return Err(LayoutError::MultiProducer);
        }
        let sound = self.flags & !FLAGS_KNOWN == 0
            && has(flag::SINGLE_PRODUCER)
            && !has(flag::LATEST_WINS | flag::LOSSLESS)
            && has(flag::ARENA) == self.has_arena()
            && (has(flag::REGISTRY) || self.registry_count == 0)
            && (self.registry_count > 0 || !has(flag::LOSSLESS));
        if sound { Ok(()) } else { Err(LayoutError::Flags(self.flags)) }
    }
}

impl Shape {
    /// Where the parts of a ring with slots of `element` bytes lie; `None` beyond what numbers and memory hold.
    fn place(&self, element: u64) -> Option<Geometry> {
        let registry_bytes = u64::from(self.readers_max) * REGISTRY_ENTRY_BYTES as u64;
        let blob = self.arena_bytes.is_some();
        let align = if blob { SLOTS_ALIGN_BLOB } else { SLOTS_ALIGN_FIXED };
        let slots_offset = (HEADER_BYTES as u64 + registry_bytes).next_multiple_of(align);
        let slots_end = self.capacity.checked_mul(element)?.checked_add(slots_offset)?;
        let policy = if self.lossless { flag::LOSSLESS } else { flag::LATEST_WINS };
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let geometry = Geometry {
            capacity: self.capacity,
            element_size: u32::try_from(element).ok()?,
            flags: policy
                | flag::SINGLE_PRODUCER
                | bit(blob, flag::ARENA)
                | bit(self.readers_max > 0, flag::REGISTRY)
                | bit(self.sparse, flag::SPARSE),
            schema_sig: self.schema_sig,
            registry_count: self.readers_max,
            slots_offset: u32::try_from(slots_offset).ok()?,
            arena_offset: if blob { slots_end.checked_next_multiple_of(SLOTS_ALIGN_BLOB)? } else { 0 },
            arena_size: self.arena_bytes.unwrap_or(0),
        };
        geometry.file_bytes()?;
        Some(geometry)
    }
}

/// The oldest sequence that a ring of `capacity` slots with that head may still hold; at least 1.
pub const fn oldest(head: u64, capacity: u64) -> u64 {
    if head >= capacity { head - capacity + 1 } else { 1 }
}

/// A ring's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The layout.
    pub geometry: Geometry,
    /// The last published sequence; 0 while there is none.
    pub write_seq: u64,
    /// Which life of the ring this is; 0 where the producer gives none.
    pub incarnation: u64,
    /// The producer's process id; 0 where it gives none.
    pub producer_pid: u32,
    /// The producer's last sign of life, monotonic ms, wrapping; 0 where it does not beat.
    pub heartbeat_ms: u32,
}

impl LayoutError {
    /// Refuses the files by name that are no rings but lie where rings do, whatever their size.
    ///
    /// # Errors
    /// The magic is one of theirs.
    pub fn check_other(magic: u64) -> Result<(), LayoutError> {
        match magic {
            BLACKBOARD_MAGIC => Err(LayoutError::Blackboard),
            OFFSET_CHECKPOINT_MAGIC => Err(LayoutError::OffsetCheckpoint),
            _ => Ok(()),
        }
    }
}

impl Header {
    /// The header's bytes, its magic left out (0): it is stored when the ring is ready.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let g = &self.geometry;
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(offset::VERSION, &VERSION.to_le_bytes());
        put(offset::ELEMENT_SIZE, &g.element_size.to_le_bytes());
        put(offset::CAPACITY, &g.capacity.to_le_bytes());
        put(offset::MASK, &g.capacity.wrapping_sub(1).to_le_bytes());
        put(offset::WRITE_SEQ, &self.write_seq.to_le_bytes());
        put(offset::FLAGS, &g.flags.to_le_bytes());
        put(offset::SCHEMA_SIG, &g.schema_sig.to_le_bytes());
        put(offset::ARENA_OFFSET, &g.arena_offset.to_le_bytes());
        put(offset::ARENA_SIZE, &g.arena_size.to_le_bytes());
        let registry_offset = if g.flags & flag::REGISTRY != 0 { REGISTRY_OFFSET } else { 0 };
        put(offset::REGISTRY_OFFSET, &registry_offset.to_le_bytes());
        put(offset::REGISTRY_COUNT, &g.registry_count.to_le_bytes());
        put(offset::SLOTS_OFFSET, &u64::from(g.slots_offset).to_le_bytes());
        put(offset::INCARNATION, &self.incarnation.to_le_bytes());
        put(offset::PRODUCER_PID, &self.producer_pid.to_le_bytes());
        put(offset::HEARTBEAT, &self.heartbeat_ms.to_le_bytes());
        bytes
    }

    /// Reads and checks the header of a file of `file_bytes`: what it lets through lies inside the file.
    ///
    /// # Errors
    /// The first rule that is broken; MPMC rings, blackboards and offset checkpoints are refused by name.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Header, LayoutError> {
        if let Some(magic) = bytes.first_chunk() {
            LayoutError::check_other(u64::from_le_bytes(*magic))?;
        }
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(LayoutError::Short(bytes.len() as u64));
        };
        let u64_at = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("inside the header"));
        let u32_at = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("inside the header"));
        if u64_at(offset::MAGIC) != MAGIC {
            return Err(LayoutError::Magic(u64_at(offset::MAGIC)));
        }
        if u32_at(offset::VERSION) != VERSION {
            return Err(LayoutError::Version(u32_at(offset::VERSION)));
        }
        let misplaced = |part, offset| LayoutError::Misplaced { part, offset };
        let slots_offset = u64_at(offset::SLOTS_OFFSET);
        let geometry = Geometry {
            capacity: u64_at(offset::CAPACITY),
            element_size: u32_at(offset::ELEMENT_SIZE),
            flags: u32_at(offset::FLAGS),
            schema_sig: u64_at(offset::SCHEMA_SIG),
            registry_count: u32_at(offset::REGISTRY_COUNT),
            slots_offset: u32::try_from(slots_offset).map_err(|_| misplaced("slots", slots_offset))?,
            arena_offset: u64_at(offset::ARENA_OFFSET),
            arena_size: u64_at(offset::ARENA_SIZE),
        };
        geometry.check()?;
        let mask = u64_at(offset::MASK);
        if mask != geometry.capacity - 1 {
            return Err(LayoutError::Mask { mask, capacity: geometry.capacity });
        }
        let registry_offset = u32_at(offset::REGISTRY_OFFSET);
        let wanted = if geometry.flags & flag::REGISTRY != 0 { REGISTRY_OFFSET } else { 0 };
        if registry_offset != wanted {
            return Err(misplaced("reader registry", u64::from(registry_offset)));
        }
        let needed = geometry.file_bytes().expect("checked above");
        if needed > file_bytes {
            return Err(LayoutError::Truncated { needed, file: file_bytes });
        }
        Ok(Header {
            geometry,
            write_seq: u64_at(offset::WRITE_SEQ),
            incarnation: u64_at(offset::INCARNATION),
            producer_pid: u32_at(offset::PRODUCER_PID),
            heartbeat_ms: u32_at(offset::HEARTBEAT),
        })
    }
}

/// Where a blob lies: the last bytes of a slot's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Descriptor {
    /// Bytes that the arena had given out before it; masked, the place.
    pub offset: u64,
    /// Bytes of the blob.
    pub len: u32,
    /// The application's.
    pub flags: u32,
}

impl Descriptor {
    /// Its bytes.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }

    /// The descriptor at the end of a slot's payload; `None` where the payload is shorter.
    pub fn of_payload(payload: &[u8]) -> Option<Descriptor> {
        let bytes = payload.last_chunk::<DESCRIPTOR_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let offset = u64::from(word(0)) | u64::from(word(4)) << 32;
        Some(Descriptor { offset, len: word(8), flags: word(12) })
    }
}

/// Arithmetic of the arena, whose bytes are counted from the ring's beginning and never reused: a place is `offset & mask`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arena {
    /// Bytes of data; a power of two.
    pub capacity: u64,
}

/// Room for one blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Where it begins, counted from the ring's beginning.
    pub offset: u64,
    /// Bytes given out after it.
    pub reserved: u64,
}

impl Arena {
    /// The longest blob.
    pub fn blob_bytes_max(&self) -> u64 {
        self.capacity.min(u64::from(u32::MAX))
    }

    /// Room for `len` bytes after `reserved`: rounded up to 64 and never across the arena's end (it begins at the next
    /// lap's 0 instead). An empty blob takes no room, but has the current offset, so that readers who judge it by its offset
    /// see it as young. `None`: longer than the arena, or beyond 2^64.
    #[inline]
    pub fn place(&self, reserved: u64, len: usize) -> Option<Placed> {
        let len = len as u64;
        if len > self.blob_bytes_max() {
            return None;
        }
        let mask = self.capacity - 1;
        let fits = (reserved & mask) + len <= self.capacity;
        let offset = if fits { reserved } else { (reserved | mask).checked_add(1)? };
        let reserved = offset.checked_add(len.next_multiple_of(BLOB_ALIGN))?;
        Some(Placed { offset, reserved })
    }

    /// Whether bytes that begin at `offset` may have been overwritten once `reserved` bytes were given out.
    #[inline]
    pub fn lapped(&self, reserved: u64, offset: u64) -> bool {
        reserved.saturating_sub(offset) > self.capacity
    }

    /// Where in the arena's data the blob lies; `None` for a descriptor that no producer writes (across the end, crooked).
    #[inline]
    pub fn place_of(&self, descriptor: &Descriptor) -> Option<usize> {
        let at = descriptor.offset & (self.capacity - 1);
        let inside = at + u64::from(descriptor.len) <= self.capacity && at.is_multiple_of(8);
        inside.then_some(at as usize)
    }
}

/// The record type's signature in the header: FNV-1a over its name without module paths, its size and its alignment.
/// Names and types of fields are not in it.
pub fn signature<T>() -> u64 {
    signature_of(std::any::type_name::<T>(), size_of::<T>(), align_of::<T>())
}

fn signature_of(name: &str, size: usize, align: usize) -> u64 {
    let mut hash = Fnv::default();
    hash.add(without_paths(name).as_bytes());
    hash.add(&(size as u64).to_le_bytes());
    hash.add(&(align as u64).to_le_bytes());
    hash.0
}

/// FNV-1a, 64 bits.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A type's name with every `module::` before it removed, inside of generics and arrays too.
fn without_paths(name: &str) -> String {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut short = String::new();
    let mut left = name;
    while let Some(first) = left.chars().next() {
        let word = left.find(|c| !part_of_word(c)).unwrap_or(left.len());
        let (kept, rest) = left.split_at(if word == 0 { first.len_utf8() } else { word });
        match (word, rest.strip_prefix("::")) {
            // A module's name, or the root's empty one.
            (1.., Some(rest)) => left = rest,
            _ if left.starts_with("::") => left = &left[2..],
            _ => {
                short.push_str(kept);
                left = rest;
            }
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        capacity: 1024,
        record_bytes: 56,
        record_align: 8,
        schema_sig: 7,
        lossless: false,
        readers_max: 0,
        sparse: false,
        stride: Stride::Exact,
        arena_bytes: None,
    };

    fn ready(header: &Header) -> Vec<u8> {
        let mut bytes = header.encode().to_vec();
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes
    }

    #[test]
    fn parts_lie_where_the_format_says() {
        let fixed = Geometry::of(&SHAPE).expect("sound");
        assert_eq!((fixed.element_size, fixed.slots_offset, fixed.flags), (64, 128, 0x11));
        assert_eq!(fixed.file_bytes(), Some(128 + 1024 * 64));
        let lossless =
            Geometry::of(&Shape { lossless: true, readers_max: 33, record_bytes: 61, ..SHAPE }).expect("sound");
        assert_eq!((lossless.element_size, lossless.slots_offset, lossless.flags), (72, 128 + 33 * 64, 0x212));
        let blob = Shape { arena_bytes: Some(4096), readers_max: 1, record_bytes: 3, capacity: 2, ..SHAPE };
        let blob = Geometry::of(&blob).expect("sound");
        assert_eq!((blob.element_size, blob.slots_offset, blob.arena_offset), (32, 256, 384));
        assert_eq!(blob.file_bytes(), Some(384 + 64 + 4096));
        let line = Geometry::of(&Shape { stride: Stride::Line, record_bytes: 64, ..SHAPE }).expect("sound");
        assert_eq!(line.element_size, 128);
        for geometry in [fixed, lossless, blob, line, lossless.mirrored()] {
            assert_eq!(geometry.check(), Ok(()));
        }
        assert_eq!(lossless.mirrored().flags, 0x611);
    }

    #[test]
    fn shapes_without_a_layout_are_refused() {
        let refused = |shape: Shape| Geometry::of(&shape).expect_err("no layout");
        assert_eq!(refused(Shape { capacity: 1000, ..SHAPE }), LayoutError::Capacity(1000));
        assert_eq!(refused(Shape { capacity: 0, ..SHAPE }), LayoutError::Capacity(0));
        assert_eq!(refused(Shape { record_align: 16, ..SHAPE }), LayoutError::Alignment(16));
        assert_eq!(refused(Shape { lossless: true, ..SHAPE }), LayoutError::LosslessWithoutReaders);
        assert_eq!(refused(Shape { arena_bytes: Some(32), ..SHAPE }), LayoutError::Arena(32));
        assert!(matches!(refused(Shape { capacity: 1 << 62, ..SHAPE }), LayoutError::TooLarge { .. }));
        assert!(matches!(refused(Shape { readers_max: u32::MAX, ..SHAPE }), LayoutError::TooLarge { .. }));
    }

    #[test]
    fn a_header_comes_back() {
        let geometry = Geometry::of(&Shape { arena_bytes: Some(1 << 20), readers_max: 32, ..SHAPE }).expect("sound");
        let header =
            Header { geometry, write_seq: 9, incarnation: u64::MAX - 5, producer_pid: 77, heartbeat_ms: 0xfedc_ba98 };
        let bytes = ready(&header);
        assert_eq!(&bytes[..8], b"ERIFGNIR");
        let file = geometry.file_bytes().expect("small");
        assert_eq!(Header::parse(&bytes, file), Ok(header));
        assert_eq!(Header::parse(&bytes, file - 1), Err(LayoutError::Truncated { needed: file, file: file - 1 }));
        assert_eq!(Header::parse(&bytes[..127], file), Err(LayoutError::Short(127)));
        assert_eq!(Header::parse(&header.encode(), file), Err(LayoutError::Magic(0)));
    }

    /// One field is damaged; the header must be refused (or hold together all the same).
    #[test]
    fn every_damaged_field_is_noticed() {
        let geometry = Geometry::of(&Shape { arena_bytes: Some(4096), readers_max: 2, ..SHAPE }).expect("sound");
        let good = ready(&Header { geometry, ..Header::default() });
        let file = geometry.file_bytes().expect("small");
        let with = |at: usize, value: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + value.len()].copy_from_slice(value);
            Header::parse(&bytes, file)
        };
        let with32 = |at, value: u32| with(at, &value.to_le_bytes());
        let with64 = |at, value: u64| with(at, &value.to_le_bytes());
        assert_eq!(with32(offset::VERSION, 1), Err(LayoutError::Version(1)));
        assert_eq!(with32(offset::FLAGS, 0x321), Err(LayoutError::MultiProducer));
        for flags in [0x301, 0x313, 0x211, 0x111, 0x1311, 0] {
            assert_eq!(with32(offset::FLAGS, flags), Err(LayoutError::Flags(flags)));
        }
        for element in [0, 7, 16, 68, 4] {
            assert_eq!(with32(offset::ELEMENT_SIZE, element), Err(LayoutError::Element(element)));
        }
        for capacity in [0, 3, u64::MAX] {
            assert_eq!(with64(offset::CAPACITY, capacity), Err(LayoutError::Capacity(capacity)));
        }
        assert!(matches!(with64(offset::CAPACITY, 1 << 63), Err(LayoutError::TooLarge { .. })));
        assert!(matches!(with64(offset::MASK, 1024), Err(LayoutError::Mask { mask: 1024, .. })));
        for slots in [0, 127, 128, 257, 1 << 32, u64::MAX] {
            assert!(matches!(with64(offset::SLOTS_OFFSET, slots), Err(LayoutError::Misplaced { .. })), "{slots}");
        }
        for arena in [64, geometry.arena_offset - 64, geometry.arena_offset + 1, u64::MAX] {
            assert!(matches!(with64(offset::ARENA_OFFSET, arena), Err(LayoutError::Misplaced { .. })), "{arena}");
        }
        assert!(matches!(with64(offset::ARENA_OFFSET, !63), Err(LayoutError::TooLarge { .. })));
        assert_eq!(with64(offset::ARENA_SIZE, 63), Err(LayoutError::Arena(63)));
        assert!(matches!(with64(offset::ARENA_SIZE, 1 << 40), Err(LayoutError::Truncated { .. })));
        assert!(matches!(with32(offset::REGISTRY_OFFSET, 192), Err(LayoutError::Misplaced { .. })));
        assert!(matches!(with32(offset::REGISTRY_COUNT, u32::MAX), Err(LayoutError::Misplaced { .. })));
    }

    #[test]
    fn an_arena_never_gives_out_what_wraps() {
        let arena = Arena { capacity: 256 };
        assert_eq!(arena.place(0, 65), Some(Placed { offset: 0, reserved: 128 }));
        assert_eq!(arena.place(128, 128), Some(Placed { offset: 128, reserved: 256 }));
        assert_eq!(arena.place(128, 129), Some(Placed { offset: 256, reserved: 256 + 192 }));
        assert_eq!(arena.place(192, 256), Some(Placed { offset: 256, reserved: 512 }));
        assert_eq!(arena.place(64, 0), Some(Placed { offset: 64, reserved: 64 }));
        assert_eq!(arena.place(0, 257), None);
        assert_eq!(arena.place(u64::MAX - 10, 64), None);
        assert!(!arena.lapped(256, 0) && arena.lapped(257, 0) && !arena.lapped(0, 64));
        assert_eq!(arena.place_of(&Descriptor { offset: 256 + 192, len: 64, flags: 0 }), Some(192));
        assert_eq!(arena.place_of(&Descriptor { offset: 192, len: 65, flags: 0 }), None);
        assert_eq!(arena.place_of(&Descriptor { offset: u64::MAX, len: u32::MAX, flags: 0 }), None);
    }

    #[test]
    fn a_descriptor_is_the_payload_s_end() {
        let descriptor = Descriptor { offset: 0x0102_0304_0506_0708, len: 9, flags: u32::MAX };
        let mut payload = vec![0xaa; 8];
        payload.extend_from_slice(&descriptor.encode());
        assert_eq!(Descriptor::of_payload(&payload), Some(descriptor));
        assert_eq!(Descriptor::of_payload(&payload[9..]), None);
    }

    #[repr(C)]
    struct Wrapped<T>(T);

    #[test]
    fn a_signature_is_that_of_the_peer() {
        assert_eq!(without_paths("a::b::Foo<c::Bar, [d::e::F; 8]>"), "Foo<Bar, [F; 8]>");
        assert_eq!(without_paths("[u64; 8]"), "[u64; 8]");
        assert_eq!(without_paths("::core::X"), "X");
        assert_eq!(signature::<[u64; 8]>(), ringfire::compute_layout_signature::<[u64; 8]>());
        assert_eq!(signature::<Wrapped<Geometry>>(), ringfire::compute_layout_signature::<Wrapped<Geometry>>());
        assert_eq!(signature::<()>(), ringfire::compute_layout_signature::<()>());
        type Tuple = (u8, [Wrapped<std::num::NonZeroU32>; 3]);
        assert_eq!(signature::<Tuple>(), ringfire::compute_layout_signature::<Tuple>());
    }
}
