//! Frame memory and the ownership token that moves through links in place of the bytes.

use std::any::Any;
use std::sync::Arc;

use crate::units::AreaId;

/// Exclusive right to read (and later recycle) one frame of one [`FrameArea`].
///
/// Not `Clone`, not `Copy`: whoever holds it owns the bytes; moving it moves them. It is minted by the area's owner
/// and must go home through a return link; dropping it loses the frame, which the owner's accounting shows.
#[derive(Debug)]
#[must_use = "a dropped token loses its frame"]
pub struct FrameToken {
    /// Which area the frame lies in.
    pub area: AreaId,
    /// Frame number inside the area.
    pub frame: u32,
    /// First byte of the packet, from the start of the area.
    pub offset: u32,
    /// Packet bytes.
    pub bytes: u32,
    /// Capture time, UTC ns since the Unix epoch.
    pub capture_ns: i64,
}

/// One contiguous region of frame memory (an AF_XDP UMEM, a copy pool, a file source's buffers), shared by the
/// workers that hold its tokens.
#[derive(Clone)]
pub struct FrameArea {
    base: *const u8,
    bytes: usize,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `base` points into memory that `_keep` owns and that is neither moved nor unmapped while it lives; the
// bytes are only reached through tokens, each of which is the exclusive right to one frame.
unsafe impl Send for FrameArea {}
// SAFETY: as for `Send`: two threads never hold a token for the same frame.
unsafe impl Sync for FrameArea {}

impl FrameArea {
    /// Wraps memory of `bytes` bytes at `base`.
    ///
    /// # Safety
    /// `base..base + bytes` must be readable for as long as `keep` lives, and a frame's bytes must not change while
    /// a token for it is out.
    pub unsafe fn new(base: *const u8, bytes: usize, keep: Arc<dyn Any + Send + Sync>) -> FrameArea {
        FrameArea { base, bytes, _keep: keep }
    }

    /// Bytes of the region.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The packet that `token` owns.
    #[inline]
    pub fn packet<'a>(&'a self, token: &'a FrameToken) -> &'a [u8] {
        let (offset, bytes) = (token.offset as usize, token.bytes as usize);
        assert!(offset + bytes <= self.bytes, "frame token outside its area");
        // SAFETY: in bounds by the assertion; `_keep` keeps the memory; the token is the exclusive right to the frame.
        unsafe { std::slice::from_raw_parts(self.base.add(offset), bytes) }
    }
}
