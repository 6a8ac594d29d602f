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

    /// Writes two neighbours, each by itself and relaxed. A writer of lines that another core holds gets as far ahead as its
    /// store buffer has entries, so shared memory's words are written by one.
    #[inline(always)]
    fn store_pair(pair: &[Self; 2], bytes: &[u8; 16]) {
        for (word, half) in pair.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*half), Ordering::Relaxed);
        }
    }
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
    ($u64:ty, $u32:ty, { $($store_pair:tt)* }) => {
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

            $($store_pair)*
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

atomics!(std::sync::atomic::AtomicU64, std::sync::atomic::AtomicU32, {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    #[inline(always)]
    fn store_pair(pair: &[Self; 2], bytes: &[u8; 16]) {
        use std::arch::{asm, x86_64::__m128i};
        // SAFETY: 16 bytes of this reference; any alignment.
        let both = unsafe { bytes.as_ptr().cast::<__m128i>().read_unaligned() };
        // SAFETY: writes the pair's 16 bytes, which are atomics and so may be written while they are shared. A plain store of
        // them would race with the readers' loads; this instruction does what two relaxed stores may do (x86 writes each
        // aligned word whole), and it stays between the stores and the fence that stand around it.
        unsafe {
            asm!("movdqu [{pair}], {both}", both = in(xmm_reg) both, pair = in(reg) pair.as_ptr(),
                options(nostack, preserves_flags));
        }
    }
});
#[cfg(loom)]
atomics!(loom::sync::atomic::AtomicU64, loom::sync::atomic::AtomicU32, {});
