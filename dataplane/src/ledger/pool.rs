//! Buffers for chunks that come home by themselves: whoever drops one last gives it back.
//!
//! A chunk's buffer is filled on the source's core, may be packed on another, and is dropped by the last of the subscribers'
//! sends and retention's write. Taking and giving back are lock-free; a pool that is empty makes a new buffer, and one that is
//! full lets a buffer go, so that nobody waits.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

/// Bytes with a home.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    home: Option<Arc<ArrayQueue<Vec<u8>>>>,
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer { bytes, home: None }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            // One too many is freed.
            let _ = home.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// A pool of buffers of one size; its clones are the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    home: Arc<ArrayQueue<Vec<u8>>>,
    buffer_bytes: usize,
}

impl Pool {
    /// A pool that keeps at most `buffers_max` buffers of `buffer_bytes`, and makes none before it is asked. Asserts that neither
    /// is 0.
    pub fn new(buffer_bytes: usize, buffers_max: usize) -> Pool {
        assert!(buffer_bytes > 0 && buffers_max > 0, "a pool of buffers");
        Pool { home: Arc::new(ArrayQueue::new(buffers_max)), buffer_bytes }
    }

    /// Makes buffers and touches their pages, so that the first ledger finds them; as many as fit.
    pub fn fill(&self, buffers: usize) {
        for _ in 0..buffers {
            // Zeros that are written: untouched pages would be faulted in one by one while a ledger is being emitted.
            let mut bytes = vec![1; self.buffer_bytes];
            bytes.fill(0);
            if self.home.push(bytes).is_err() {
                return;
            }
        }
    }

    /// A buffer of the pool's size, with whatever it held before.
    pub fn take(&self) -> Buffer {
        let bytes = self.home.pop().unwrap_or_else(|| vec![0; self.buffer_bytes]);
        Buffer { bytes, home: Some(self.home.clone()) }
    }

    /// Bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Buffers that wait to be taken.
    pub fn spare(&self) -> usize {
        self.home.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_home_from_wherever_it_is_dropped() {
        let pool = Pool::new(100, 2);
        let mut buffer = pool.take();
        buffer[..3].copy_from_slice(b"abc");
        assert_eq!((buffer.len(), pool.spare()), (100, 0));
        std::thread::spawn(move || drop(buffer)).join().expect("dropped");
        assert_eq!(pool.spare(), 1);
        assert_eq!(&pool.take()[..3], b"abc", "the same one");
        let three = [pool.take(), pool.take(), pool.take()];
        drop(three);
        assert_eq!(pool.spare(), 2, "one more than it keeps is let go");
        drop(Buffer::from(vec![1]));
        assert_eq!(pool.spare(), 2, "a buffer without a home goes to none");
    }

    #[test]
    fn a_pool_is_filled_as_far_as_it_goes() {
        let pool = Pool::new(10, 3);
        pool.fill(5);
        assert_eq!(pool.spare(), 3);
        assert_eq!(&*pool.take(), [0; 10]);
    }
}
