//! The replication protocol as pure machines: what a source answers, what a mirror writes, what either does about loss.
//!
//! May use: `wire`, `units`. Never does: touch the kernel, read a clock, start a thread; time and bytes are arguments.

use core::net::SocketAddr;

use crate::wire::mirror::SEQUENCE_END;
use crate::wire::ring::Geometry;

pub mod auth;
pub mod live;
pub mod loss;
pub mod receiver;
pub mod sender;

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

/// A source's head as far as it can be true: the header is shared memory, and sequences end far below its 64 bits.
fn head_of<R: SourceRing>(ring: &R) -> u64 {
    ring.head().min(SEQUENCE_END - 2)
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

/// Where a machine wants a datagram to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// The group of the settings.
    Multicast,
    /// One address.
    Unicast(SocketAddr),
}

/// What became of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOutcome {
    /// The kernel has all of it.
    Sent,
    /// Nothing was taken: the same call is made again at the next poll.
    WouldBlock,
    /// Longer than the path takes (EMSGSIZE): the machine uses shorter datagrams from now on, and what this one held is
    /// repaired over TCP.
    TooLong,
    /// Lost on the way out (no route, refused, …): as if the network had dropped it.
    Failed,
}

/// The socket as the machines see it.
pub trait Datagrams {
    /// Sends `bytes`: one datagram or, with `segment_bytes`, several of that many bytes each (the last may be shorter), which
    /// fit one GSO send (at most [`live::SEGMENTS_MAX`] segments and 65,507 bytes). A socket without GSO sends them one by one.
    fn send(&mut self, to: Destination, bytes: &[u8], segment_bytes: Option<u16>) -> SendOutcome;
}

/// What a stream (one TCP connection) is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamPoll {
    /// Bytes were appended: send them; poll again when they are gone.
    Data,
    /// Nothing to send now.
    Idle,
    /// Close the connection; the machine has forgotten the session.
    Close(CloseReason),
}

/// Why a connection ends; each is a counter and a word in the logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum CloseReason {
    /// Bytes that are no frame of the protocol, or not one that may come here.
    #[error("the other side sent what the protocol does not allow here")]
    Protocol,
    /// No (whole) handshake within its time.
    #[error("the handshake took too long")]
    HandshakeTimeout,
    /// A send took longer than [`sender::WRITE_NS_MAX`].
    #[error("the other side does not read")]
    WriteTimeout,
    /// The source's producer began a new ring: connect again.
    #[error("the source's ring was replaced")]
    SourceReplaced,
    /// The source ended the session for a reason that is not known here.
    #[error("the source ended the session")]
    SourceEnded,
    /// A key is set here and the other side has none, or a wrong one.
    #[error("the other side did not prove the pre-shared key that is set here")]
    Unauthenticated,
    /// The other side demands a key and none (or another) is set here.
    #[error("the source demands its pre-shared key: set the same key_file here")]
    KeyRequired,
    /// The local ring holds another history than the source: the next connection asks for all that the source retains and
    /// begins a new file.
    #[error("the source has another history than the local ring: a new file begins")]
    OtherHistory,
    /// The source's ring is larger than the configured maximum.
    #[error("the source's ring is larger than the configured maximum")]
    GeometryLimit,
    /// The local ring could not be opened or made.
    #[error("the local ring could not be made")]
    RingFailed,
    /// Sequences outside of what a ring can hold.
    #[error("the source sent an impossible sequence")]
    SequenceLimit,
    /// Not a sign of life from the source for [`receiver::DEAD_NS`].
    #[error("the source is silent")]
    SourceSilent,
}

/// A bug that the simulator plants, to see that it is caught. Looked at on cold paths only.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fault {
    /// None: what everything but the simulator uses.
    #[default]
    None,
    /// A mirror jumps to a datagram that came early instead of holding it back.
    EarlyIsGap,
    /// A mirror resumes whatever history the source has.
    SpliceHistories,
    /// A mirror that is told of a gap forgets what it held before its end.
    GapDropsHeld,
    /// A mirror writes a frame that overlaps the next sequence from its first record on.
    OverlapFromStart,
    /// A source that gets a new ring keeps its sessions.
    KeepSessions,
    /// A source answers all but the last record of a NAK.
    AnswerShort,
    /// A mirror takes datagrams whatever their trailer says.
    TakesForged,
}
