//! The ring file, version 2 of the format that the crate ringfire (0.5) defines: header, layout, type signature.
//!
//! All integers are little-endian. Order in the file: header (128 bytes), reader registry (optional), slots, arena
//! (optional). This module computes and checks; it maps nothing.

/// First 8 bytes of a ring file, as a little-endian number; written last, so that a ring without it is not ready.
pub const MAGIC: u64 = 0x5249_4E47_4649_5245;
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

impl Geometry {
    /// Bytes of a slot's payload.
    pub fn payload_bytes(&self) -> usize {
        self.element_size as usize - SEQUENCE_BYTES
    }

    /// Whether records carry blobs.
    pub fn has_arena(&self) -> bool {
        self.arena_offset != 0
    }
}
