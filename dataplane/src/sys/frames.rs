//! Frame memory and the ownership token that moves through links in place of the bytes.

use std::any::Any;
use std::sync::{Arc, OnceLock};

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

/// Every frame area of the process, by [`AreaId`]. Each is set once, on the thread of the worker that made it.
#[derive(Clone)]
pub struct Areas(Arc<[OnceLock<FrameArea>]>);

impl Areas {
    /// Room for `count` areas.
    pub fn new(count: usize) -> Areas {
        Areas((0..count).map(|_| OnceLock::new()).collect())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Makes an area known. Each id is set once.
    pub fn set(&self, id: AreaId, area: FrameArea) {
        assert!(self.0[usize::from(id.0)].set(area).is_ok(), "area {} was set twice", id.0);
    }

    /// The packet that `token` owns. Every area is set before any token moves (workers start before the gate opens).
    #[inline]
    pub fn packet<'a>(&'a self, token: &'a FrameToken) -> &'a [u8] {
        self.0[usize::from(token.area.0)].get().expect("areas are set before the gate opens").packet(token)
    }
}

/// A pool of frames that this process fills itself: a file source's buffers, the arbiter's copies.
///
/// The pool's worker takes a free frame, writes it, and mints its token; the token comes home through return links.
pub struct FramePool {
    memory: Arc<PoolMemory>,
    area: AreaId,
    frame_bytes: u32,
    free: Vec<u32>,
    frames: u32,
}

/// Bytes of a page of memory (x86-64 and most of AArch64).
const PAGE_BYTES: usize = 4_096;

/// The pool's bytes. `UnsafeCell` because a frame is written through a shared pointer by the one who took it.
struct PoolMemory(Box<[std::cell::UnsafeCell<u8>]>);

// SAFETY: a byte is written only by the pool's owner while its frame is taken and no token is out (`Filling` holds the
// pool exclusively), and read only through the frame's token.
unsafe impl Sync for PoolMemory {}

/// A taken frame that is being written.
pub struct Filling<'a> {
    pool: &'a mut FramePool,
    frame: u32,
}

impl FramePool {
    /// A pool of `frames` frames of `frame_bytes` bytes each, touched here (so: on the worker's own thread).
    pub fn new(area: AreaId, frames: u32, frame_bytes: u32) -> FramePool {
        let bytes = frames as usize * frame_bytes as usize;
        assert!(u32::try_from(bytes).is_ok(), "{frames} frames of {frame_bytes} bytes: a token's offset is a u32");
        let mut memory: Vec<u8> = vec![0; bytes];
        // Zeroed memory may not be there yet: a write to each page is what places it.
        memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *std::hint::black_box(byte) = 0);
        let memory = memory.into_iter().map(std::cell::UnsafeCell::new).collect();
        FramePool { memory: Arc::new(PoolMemory(memory)), area, frame_bytes, free: (0..frames).rev().collect(), frames }
    }

    /// The region, for those who hold tokens.
    pub fn area(&self) -> FrameArea {
        // SAFETY: `memory` is never resized and lives as long as the Arc; a frame's bytes change only while it is
        // taken and no token for it is out.
        unsafe { FrameArea::new(self.memory.0.as_ptr().cast(), self.memory.0.len(), self.memory.clone()) }
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes as usize
    }

    /// Frames at home.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Whether every frame is at home.
    pub fn all_home(&self) -> bool {
        self.free.len() == self.frames as usize
    }

    /// Takes a frame to write; `None` when all are out.
    pub fn take(&mut self) -> Option<Filling<'_>> {
        let frame = self.free.pop()?;
        Some(Filling { pool: self, frame })
    }

    /// Takes a token home.
    pub fn give_back(&mut self, token: FrameToken) {
        assert!(token.area == self.area && token.frame < self.frames, "a foreign token came home: {token:?}");
        assert!(self.free.len() < self.frames as usize, "more tokens came home than frames exist");
        self.free.push(token.frame);
    }
}

impl Filling<'_> {
    /// The frame's bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let start = self.frame as usize * self.pool.frame_bytes as usize;
        let cells = &self.pool.memory.0[start..start + self.pool.frame_bytes as usize];
        // SAFETY: the frame is not in the free list and has no token, so nobody else reads or writes these bytes;
        // the slice borrows `self`, which holds the pool exclusively.
        unsafe { std::slice::from_raw_parts_mut(cells.as_ptr() as *mut u8, cells.len()) }
    }

    /// Mints the token for the first `bytes` bytes.
    pub fn into_token(self, bytes: usize, capture_ns: i64) -> FrameToken {
        assert!(
            bytes <= self.pool.frame_bytes as usize,
            "a packet of {bytes} bytes in a frame of {}",
            self.pool.frame_bytes
        );
        FrameToken {
            area: self.pool.area,
            frame: self.frame,
            offset: self.frame * self.pool.frame_bytes,
            bytes: bytes as u32,
            capture_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_out_and_come_home() {
        let mut pool = FramePool::new(AreaId(3), 2, 64);
        let area = pool.area();
        let mut filling = pool.take().expect("a frame");
        filling.bytes()[..3].copy_from_slice(b"abc");
        let first = filling.into_token(3, 7);
        let second = pool.take().expect("a frame").into_token(0, 8);
        assert!(pool.take().is_none());
        assert_eq!(area.packet(&first), b"abc");
        pool.give_back(first);
        pool.give_back(second);
        assert!(pool.all_home());
    }
}
