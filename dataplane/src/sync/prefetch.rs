//! Asking for memory before it is needed, where the processor does not see by itself what comes next.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Asks for every line of `bytes`; reads nothing. Does nothing where the processor has no such instruction.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: the instruction is part of every x86-64, takes any address, and reads nothing that the program sees.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (bytes, LINE_BYTES);
}
