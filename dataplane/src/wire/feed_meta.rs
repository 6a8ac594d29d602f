//! The record of a published feed: what stands before each blob of a feed ring.
//!
//! The type's name, size and alignment are the ring's signature, so that a reader of something else is refused; its
//! layout is part of the published format (docs/formats/ring.md).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a record of a feed ring is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FeedRecord {
    /// A message: `sequence` is its own, the blob its body.
    Message = 1,
    /// A gap: `sequence` is its first, the blob its last (u64, little-endian). It stands before the message that follows.
    Gap = 2,
    /// A stream begins, or is told again for readers that came later: `sequence` is its base, the blob its key as text.
    StreamBegin = 3,
    /// Nothing of the stream follows. No blob.
    StreamEnd = 4,
    /// A side died or came back: `side`, and [`FeedMeta::FLAG_LIVE`]. No blob.
    SideState = 5,
}

impl FeedRecord {
    /// The record of a `kind` byte; `None`: unknown here, to be skipped.
    pub fn of(kind: u8) -> Option<FeedRecord> {
        Some(match kind {
            1 => FeedRecord::Message,
            2 => FeedRecord::Gap,
            3 => FeedRecord::StreamBegin,
            4 => FeedRecord::StreamEnd,
            5 => FeedRecord::SideState,
            _ => return None,
        })
    }

    /// Its name in text and JSON.
    pub fn label(self) -> &'static str {
        match self {
            FeedRecord::Message => "message",
            FeedRecord::Gap => "gap",
            FeedRecord::StreamBegin => "stream_begin",
            FeedRecord::StreamEnd => "stream_end",
            FeedRecord::SideState => "side_state",
        }
    }
}

/// Where capture stamps come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum StampOrigin {
    /// A capture file's own stamps.
    File = 1,
    /// The kernel's clock, read for each frame by the XDP program.
    Software = 2,
    /// The NIC's clock.
    Hardware = 3,
}

/// One record's fixed part: 40 bytes, so that with the sequence word and the blob's descriptor a slot is one cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct FeedMeta {
    /// The stream's index in this ring: told by [`FeedRecord::StreamBegin`].
    pub stream_index: u32,
    /// A [`FeedRecord`].
    pub kind: u8,
    /// The side, 0 for A.
    pub side: u8,
    /// `FLAG_…` bits.
    pub flags: u16,
    /// See [`FeedRecord`]; the feed's own numbering, which is not the ring's.
    pub sequence: u64,
    /// When it was captured (a gap: declared), UTC ns.
    pub capture_ns: i64,
    /// When the publisher sent it, UTC ns; [`FeedMeta::NO_SEND_TIME`] where the protocol has no send time.
    pub send_ns: i64,
    /// A [`StampOrigin`].
    pub stamp_source: u8,
    /// Counts steps of the wall clock, wrapping: stamps of two epochs are not to be compared.
    pub clock_epoch: u8,
    /// Zero.
    pub pad: [u8; 6],
}

const _: () = assert!(size_of::<FeedMeta>() == 40 && align_of::<FeedMeta>() == 8);

impl FeedMeta {
    /// `send_ns` of what has no send time.
    pub const NO_SEND_TIME: i64 = i64::MIN;
    /// Of a side state: the side is live again.
    pub const FLAG_LIVE: u16 = 1;
    /// Of a stream begin: told again, the stream began earlier.
    pub const FLAG_REPEATED: u16 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_lies_where_the_format_says() {
        let meta = FeedMeta {
            stream_index: 0x0403_0201,
            kind: 5,
            side: 6,
            flags: 0x0807,
            sequence: 0x100f_0e0d_0c0b_0a09,
            capture_ns: 0x1817_1615_1413_1211,
            send_ns: 0x201f_1e1d_1c1b_1a19,
            stamp_source: 0x21,
            clock_epoch: 0x22,
            pad: [0x23, 0x24, 0x25, 0x26, 0x27, 0x28],
        };
        assert_eq!(meta.as_bytes(), (1..=40).collect::<Vec<u8>>());
        assert_eq!(FeedMeta::read_from_bytes(meta.as_bytes()), Ok(meta));
        for kind in 0..=255 {
            assert!(FeedRecord::of(kind).is_none_or(|record| record as u8 == kind));
        }
    }
}
