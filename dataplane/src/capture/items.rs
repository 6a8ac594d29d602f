//! What moves on the links between sources and arbiters.

use crate::sys::frames::FrameToken;
use crate::units::Side;

/// One item of the link from a source to an arbiter.
///
/// Small fields first, the token whole behind them in aligned words: where a field of one variant lies inside the token
/// of another, moving an item becomes copies of pieces that overlap, and each stalls on the one before.
#[derive(Debug)]
#[repr(C, u64)]
pub enum RxItem {
    /// A frame of the feed.
    Frame {
        /// Its side.
        side: Side,
        /// Its payload parsed as a segment; otherwise only its raw bytes matter.
        segment: bool,
        /// Where the UDP payload lies in the packet.
        payload_offset: u32,
        /// Bytes of the UDP payload.
        payload_bytes: u32,
        /// The frame.
        token: FrameToken,
    },
    /// The end of a side's input.
    End {
        /// The side.
        side: Side,
    },
}
