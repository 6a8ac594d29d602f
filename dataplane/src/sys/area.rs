//! Copy pools: plain mapped memory in frames, for bytes that do not lie in a UMEM (held messages, file sources).

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::frames::{FrameArea, FrameToken};
use crate::units::AreaId;

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[error("copy pool of {bytes} bytes: {source}: lower its frames, or free memory")]
pub struct AreaError {
    bytes: usize,
    source: io::Error,
}

/// Anonymous private memory, populated at once, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; who may touch which bytes is decided by frame tokens.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; the mapping itself is never changed until it is dropped.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> io::Result<Mapping> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave address 0"))?;
        Ok(Mapping { base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base..base + bytes` is exactly what mmap gave, and nobody can reach it any more.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        assert!(result == 0, "munmap of a copy pool failed");
    }
}

/// Equal frames of plain memory; its owner copies bytes in and mints the token.
#[derive(Debug)]
pub struct CopyPool {
    area: AreaId,
    frame_bytes: u32,
    frame_count: u32,
    mapping: Arc<Mapping>,
    free: Vec<u32>,
}

impl CopyPool {
    /// Maps `frame_count` frames of `frame_bytes` bytes each, touched on the calling thread (its memory node).
    pub fn new(area: AreaId, frame_count: u32, frame_bytes: u32) -> Result<CopyPool, AreaError> {
        assert!(frame_count > 0 && frame_bytes > 0, "an empty copy pool");
        let bytes = frame_count as usize * frame_bytes as usize;
        assert!(
            u32::try_from(bytes).is_ok(),
            "a token's offset has 32 bits: a copy pool of {bytes} bytes is too large"
        );
        let mapping = Mapping::new(bytes).map_err(|source| AreaError { bytes, source })?;
        Ok(CopyPool {
            area,
            frame_bytes,
            frame_count,
            mapping: Arc::new(mapping),
            free: (0..frame_count).rev().collect(),
        })
    }

    /// The pool's memory, for those who will hold its tokens.
    pub fn area(&self) -> FrameArea {
        // SAFETY: `keep` is the mapping itself; bytes change only in `copy`, for frames whose token is at home.
        unsafe { FrameArea::new(self.mapping.base.as_ptr(), self.mapping.bytes, self.mapping.clone()) }
    }

    /// Copies `packet` into a free frame. `None` when no frame is free or the packet is longer than a frame.
    #[inline]
    pub fn copy(&mut self, packet: &[u8], capture_ns: i64) -> Option<FrameToken> {
        if packet.len() > self.frame_bytes as usize {
            return None;
        }
        let frame = self.free.pop()?;
        let offset = frame * self.frame_bytes;
        // SAFETY: frame < frame_count, so `offset + frame_bytes` lies inside the mapping, and the packet is no longer
        // than a frame; the frame was in `free`, so no token for it is out and nobody reads it.
        unsafe {
            let to = self.mapping.base.as_ptr().add(offset as usize);
            std::ptr::copy_nonoverlapping(packet.as_ptr(), to, packet.len());
        }
        Some(FrameToken { area: self.area, frame, offset, bytes: packet.len() as u32, capture_ns })
    }

    /// Takes a token home.
    #[inline]
    pub fn recycle(&mut self, token: FrameToken) {
        assert!(token.area == self.area && token.frame < self.frame_count, "a token of another area came home");
        assert!(self.free.len() < self.frame_count as usize, "a frame came home twice");
        self.free.push(token.frame);
    }

    /// Frames at home.
    pub fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Bytes of one frame: the longest packet that [`CopyPool::copy`] takes.
    pub fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_lends_each_frame_once_and_takes_it_back() {
        let mut pool = CopyPool::new(AreaId(3), 2, 64).expect("128 bytes of memory");
        let area = pool.area();
        let first = pool.copy(b"first", 1).expect("a free frame");
        let second = pool.copy(b"second", 2).expect("a free frame");
        assert!(pool.copy(b"third", 3).is_none());
        assert_eq!((area.packet(&first), area.packet(&second)), (&b"first"[..], &b"second"[..]));
        pool.recycle(first);
        assert_eq!(pool.free_count(), 1);
        let third = pool.copy(&[7; 64], 3).expect("a free frame");
        assert_eq!(area.packet(&third), [7; 64]);
        assert_eq!(area.packet(&second), b"second");
        assert_eq!((third.area, third.capture_ns), (AreaId(3), 3));
    }

    #[test]
    fn a_packet_longer_than_a_frame_takes_no_frame() {
        let mut pool = CopyPool::new(AreaId(0), 1, 64).expect("64 bytes of memory");
        assert!(pool.copy(&[0; 65], 0).is_none());
        assert_eq!(pool.free_count(), 1);
    }

    #[test]
    fn the_memory_outlives_the_pool_while_an_area_is_held() {
        let mut pool = CopyPool::new(AreaId(0), 1, 64).expect("64 bytes of memory");
        let area = pool.area();
        let token = pool.copy(b"kept", 0).expect("a free frame");
        drop(pool);
        assert_eq!(area.packet(&token), b"kept");
    }
}
