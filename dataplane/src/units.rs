//! Small types that every module shares: sides, queues, streams, times.
//!
//! May use: nothing. Never does: hold state or touch the kernel.

use std::fmt;

/// Most sides (copies of one feed) that a feed may have.
///
/// Exchanges publish two (A and B); four leaves room for a second site's pair. Per-side state is an array of this size.
pub const SIDES_MAX: usize = 4;

/// One copy of a feed: 0 is side A, 1 side B, and so on up to [`SIDES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Side(pub u8);

impl Side {
    /// Side A.
    pub const A: Side = Side(0);
    /// Side B.
    pub const B: Side = Side(1);

    /// The side's place in a per-side array.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The side's letter, `A` for side 0.
    pub fn letter(self) -> char {
        (b'A' + self.0) as char
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.letter())
    }
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Side({})", self.letter())
    }
}

/// A receive source of the process: one AF_XDP queue, one file, or one copy pool. Index into the frame areas.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AreaId(pub u16);

/// Creation id of a stream inside one process: dense, from 0, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamId(pub u32);

/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Nanoseconds in one millisecond.
pub const NANOS_PER_MILLI: i64 = 1_000_000;
