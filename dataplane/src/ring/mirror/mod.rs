//! The replication protocol as pure machines: what a source answers, what a mirror writes, what either does about loss.
//!
//! May use: `wire`, `units`. Never does: touch the kernel, read a clock, start a thread; time and bytes are arguments.

use crate::wire::ring::Geometry;

/// What became of a read of one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadOutcome {
    /// The record's bytes were appended.
    Record,
    /// Not published yet.
    NotYet,
    /// Overwritten, or being overwritten: the oldest record that may still be there.
    Lapped {
        /// Its sequence.
        oldest: u64,
    },
    /// It will never be there (a hole of a sparse ring): the next record that may be there.
    Absent {
        /// Its sequence.
        next: u64,
    },
}

/// A ring as the machines that serve it see it: raw bytes, no types, no registration.
pub trait SourceRing {
    /// The ring's layout.
    fn geometry(&self) -> &Geometry;

    /// Identifies this life of the ring; 0 when its producer gives none (a peer's ring).
    fn incarnation(&self) -> u64;

    /// The last published sequence; 0 while there is none.
    fn head(&self) -> u64;

    /// The oldest sequence that may still be read: `head − capacity + 1`, at least 1.
    fn oldest(&self) -> u64 {
        self.head().saturating_sub(self.geometry().capacity - 1).max(1)
    }

    /// Appends record `sequence` to `out` as DATA carries it: the slot's payload (`element_size − 8` bytes) and, for a blob
    /// ring, the blob's bytes after it. Nothing is appended unless the outcome is [`ReadOutcome::Record`].
    fn read(&mut self, sequence: u64, out: &mut Vec<u8>) -> ReadOutcome;
}

/// Why a mirror's ring did not take a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteError {
    /// The blob is longer than the arena can hold.
    #[error("a blob of {bytes} bytes is longer than the arena of {arena} bytes")]
    BlobTooLong {
        /// Its length.
        bytes: u64,
        /// The arena's.
        arena: u64,
    },
}

/// A ring as the machine that fills it sees it. Sequences only grow.
pub trait MirrorRing {
    /// The sequence that will be written next.
    fn next(&self) -> u64;

    /// Writes the record at [`MirrorRing::next`]: `payload` is the slot's (`element_size − 8` bytes); for a blob ring `blob` is
    /// stored in this ring's own arena and the descriptor in `payload` (its last 16 bytes) replaced by one that points there
    /// (length and application flags kept).
    ///
    /// # Errors
    /// Nothing was written.
    fn write(&mut self, payload: &[u8], blob: &[u8]) -> Result<(), WriteError>;

    /// Makes what was written since the last call visible as the ring's head, and wakes sleepers.
    fn publish(&mut self);

    /// Records up to `next − 1` will not come: the ring goes on at `next`, and readers see what an equally slow reader of
    /// the source sees.
    fn skip_to(&mut self, next: u64);
}
