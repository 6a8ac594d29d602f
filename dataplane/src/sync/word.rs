//! Words of shared memory as the protocols see them: the machine's atomics, loads only of a read-only mapping, or loom's.

use std::mem::MaybeUninit;

#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{Ordering, fence};

/// Eight bytes that can be read.
pub trait Load: Sized {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;

    /// Reads two neighbours, each by itself and relaxed. A reader pays by the load for lines that another core has just
    /// written (measured: about 0.7 ns each), so shared memory's words are read by one.
    #[inline(always)]
    fn copy_pair(pair: &[Self; 2], to: &mut [MaybeUninit<u8>; 16]) {
        let (halves, _) = to.as_chunks_mut::<8>();
        for (word, half) in pair.iter().zip(halves) {
            *half = word.load(Ordering::Relaxed).to_ne_bytes().map(MaybeUninit::new);
        }
    }
}

/// Eight bytes that can be read and written.
pub trait Word: Load {
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
}

/// Four bytes that several may change.
pub trait Half {
    /// Reads the half.
    fn load(&self, order: Ordering) -> u32;
    /// Writes the half.
    fn store(&self, value: u32, order: Ordering);
    /// Adds, wrapping; what was there before.
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Subtracts, wrapping; what was there before.
    fn fetch_sub(&self, value: u32, order: Ordering) -> u32;
    /// Puts `new` in the place of `expected` (acquire and release); whether it was there.
    fn exchange(&self, expected: u32, new: u32) -> bool;
}

macro_rules! atomics {
    ($u64:ty, $u32:ty) => {
        impl Load for $u64 {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
        }

        impl Word for $u64 {
            #[inline(always)]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }
        }

        impl Half for $u32 {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u32 {
                self.load(order)
            }
            #[inline(always)]
            fn store(&self, value: u32, order: Ordering) {
                self.store(value, order);
            }
            fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
                self.fetch_add(value, order)
            }
            fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
                self.fetch_sub(value, order)
            }
            fn exchange(&self, expected: u32, new: u32) -> bool {
                self.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            }
        }
    };
}

atomics!(std::sync::atomic::AtomicU64, std::sync::atomic::AtomicU32);
#[cfg(loom)]
atomics!(loom::sync::atomic::AtomicU64, loom::sync::atomic::AtomicU32);
