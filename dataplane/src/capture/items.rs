//! What moves on the links between sources and arbiters.

use crate::sys::frames::FrameToken;
use crate::units::Side;

/// One item of the link from a source to an arbiter.
#[derive(Debug)]
pub enum RxItem {
    /// A frame of the feed.
    Frame {
        /// The frame.
        token: FrameToken,
        /// Where the UDP payload lies in the packet.
        payload_offset: u32,
        /// Bytes of the UDP payload.
        payload_bytes: u32,
        /// Its side.
        side: Side,
        /// Its payload parsed as a segment; otherwise only its raw bytes matter.
        segment: bool,
    },
    /// The end of a side's input.
    End {
        /// The side.
        side: Side,
    },
}
