//! The capture job's counters, each owned by one worker.

use crate::sync::counters::CounterIndex;
use crate::wire::packet::PacketReason;
use crate::wire::segment::SegmentError;

/// Why a received frame was not a segment of a feed: the closed set of labels of `raw_only`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RawReason {
    /// The packet could not be read down to UDP.
    Packet(PacketReason),
    /// The UDP payload is not a segment.
    Segment(SegmentError),
    /// UDP, but to no group and port of a feed.
    Unmatched,
}

impl RawReason {
    /// How many reasons there are.
    pub const COUNT: usize = PacketReason::ALL.len() + SegmentError::ALL.len() + 1;

    /// The reason's number, below [`RawReason::COUNT`].
    pub fn index(self) -> usize {
        match self {
            RawReason::Packet(reason) => reason as usize,
            RawReason::Segment(reason) => PacketReason::ALL.len() + reason as usize,
            RawReason::Unmatched => RawReason::COUNT - 1,
        }
    }

    /// Every reason in order of its number.
    pub fn all() -> impl Iterator<Item = RawReason> {
        PacketReason::ALL
            .into_iter()
            .map(RawReason::Packet)
            .chain(SegmentError::ALL.into_iter().map(RawReason::Segment))
            .chain([RawReason::Unmatched])
    }

    /// Its label.
    pub fn label(self) -> &'static str {
        match self {
            RawReason::Packet(reason) => reason.label(),
            RawReason::Segment(reason) => reason.label(),
            RawReason::Unmatched => "unmatched",
        }
    }
}

/// Counters of one queue, in packets: terms of the identities in docs/reference/metrics.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueCounter {
    /// Packets taken from the source.
    Received,
    /// Their bytes.
    Bytes,
    /// Segments with messages, passed on.
    DataSegments,
    /// Heartbeats and ends of session, passed on.
    Heartbeats,
    /// Packets dropped because a link was full.
    LinkFull,
    /// Packets without a valid stamp in their metadata: stamped on receipt instead.
    Unstamped,
    /// The socket's own drop count (buffer, size or fill ring).
    RxDropped,
    /// Packets that found the receive ring full.
    RxRingFull,
    /// Times the fill ring was empty.
    FillRingEmpty,
    /// Frames in no other worker's hands: in the fill ring, the receive ring or the queue's free list.
    FramesHome,
    /// 1 when the source has come to its end (files).
    Ended,
    /// Packets counted as raw-only whose bytes were wanted, dropped because a link was full.
    RawLinkFull,
    /// Not a segment, by [`RawReason`].
    RawOnly(RawReason),
}

impl CounterIndex for QueueCounter {
    const COUNT: usize = 12 + RawReason::COUNT;

    fn index(self) -> usize {
        match self {
            QueueCounter::Received => 0,
            QueueCounter::Bytes => 1,
            QueueCounter::DataSegments => 2,
            QueueCounter::Heartbeats => 3,
            QueueCounter::LinkFull => 4,
            QueueCounter::Unstamped => 5,
            QueueCounter::RxDropped => 6,
            QueueCounter::RxRingFull => 7,
            QueueCounter::FillRingEmpty => 8,
            QueueCounter::FramesHome => 9,
            QueueCounter::Ended => 10,
            QueueCounter::RawLinkFull => 11,
            QueueCounter::RawOnly(reason) => 12 + reason.index(),
        }
    }
}

/// Counters of one (queue, side of a feed), at the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SideCounter {
    /// Segments passed on, heartbeats included.
    Segments,
    /// Σ of their message counts.
    Messages,
    /// Segments dropped because the link was full.
    LinkFull,
    /// Σ of the message counts of those.
    LinkFullMessages,
}

impl CounterIndex for SideCounter {
    const COUNT: usize = 4;

    fn index(self) -> usize {
        self as usize
    }
}

/// Counters of one arbiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArbiterCounter {
    /// Segments taken from the links, heartbeats included.
    Segments,
    /// Σ of their message counts.
    Messages,
    /// Messages handed to the store.
    Handed,
    /// Frames handed to the store for their raw bytes.
    HandedRaw,
    /// Messages that the store link could not take.
    LostLinkFull,
    /// Messages for which no copy frame was free.
    LostCopyPool,
    /// Raw frames that the store link could not take.
    LostRaw,
    /// Messages for which no store is configured.
    NotStored,
    /// Copy frames at home.
    CopyFramesHome,
    /// Gap records that went the way of lost messages (the gaps stay in the report).
    LostMarks,
    /// Which sides are live in any session, a bit each.
    SidesLive,
    /// Messages published in the feed's ring.
    Published,
    /// Other records published there: gaps, beginnings and ends of streams, side states.
    PublishedMarks,
    /// Messages that the ring could not take.
    PublishRefused,
    /// Capture stamp of the first segment with messages, UTC ns; 0: none came yet.
    FirstStamp,
    /// That of the last one.
    LastStamp,
}

impl CounterIndex for ArbiterCounter {
    const COUNT: usize = 16;

    fn index(self) -> usize {
        self as usize
    }
}
