//! Made-up ledgers, byte for byte those of the peer's generator: random bytes, or records that pack well.
//!
//! Source: docs/formats/ledger.md. A ledger is a function of its sequence, its size and its shape, so that a reader can make it
//! again and compare.

use crate::wire::ledger::{LEDGER_BYTES_MAX, SEQUENCE_MAX};

/// Low half of the generator's first state; the high half is the sequence.
const SEED_LOW: u128 = 0x5CE_11A8;
/// PCG-DXSM with 128 bits of state (O'Neill's PCG family; the constants of Go's `math/rand/v2`).
const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;
const INCREMENT: u128 = 0x5851_F42D_4C95_7F2D_1405_7B7E_F767_814F;
const OUTPUT_MULTIPLIER: u64 = 0xDA94_2042_E4DD_58B5;

/// Bytes of a record of the compressible shape.
const RECORD_BYTES: usize = 256;
/// Bytes at a record's end that are fresh in each.
const FRESH_BYTES: usize = 32;
/// The sequence stands in the first bytes, where the ledger has as many.
const SEQUENCE_BYTES: usize = 4;

/// What a made-up ledger holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Random bytes: nothing packs them.
    Noise,
    /// Records of 256 bytes that differ in 32: zstd packs them about seven times.
    Compressible,
}

struct Pcg(u128);

impl Pcg {
    fn new(sequence: u32) -> Pcg {
        Pcg((u128::from(sequence) << 64) | SEED_LOW)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let (mut high, low) = ((self.0 >> 64) as u64, self.0 as u64);
        high ^= high >> 32;
        high = high.wrapping_mul(OUTPUT_MULTIPLIER);
        high ^= high >> 48;
        high.wrapping_mul(low | 1)
    }

    /// Outputs, little-endian, the last one cut.
    fn fill(&mut self, out: &mut [u8]) {
        for part in out.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }
}

/// Gives ledger `sequence`, of `bytes` bytes, to `take` in parts, each at most a record long.
pub fn generate(sequence: u32, shape: Shape, bytes: usize, mut take: impl FnMut(&[u8])) {
    let mut record = [0; RECORD_BYTES];
    if bytes < SEQUENCE_BYTES {
        return take(&record[..bytes]);
    }
    let mut random = Pcg::new(sequence);
    take(&sequence.to_be_bytes());
    if shape == Shape::Compressible {
        random.fill(&mut record);
    }
    let mut left = bytes - SEQUENCE_BYTES;
    while left > 0 {
        let part = left.min(RECORD_BYTES);
        match shape {
            Shape::Noise => random.fill(&mut record[..part]),
            // One that is cut keeps the template's bytes, but for its end.
            Shape::Compressible if part >= FRESH_BYTES => random.fill(&mut record[part - FRESH_BYTES..part]),
            Shape::Compressible => {}
        }
        take(&record[..part]);
        left -= part;
    }
}

/// Writes ledger `sequence` over all of `out`.
pub fn write(sequence: u32, shape: Shape, out: &mut [u8]) {
    let mut filled = 0;
    generate(sequence, shape, out.len(), |part| {
        out[filled..filled + part.len()].copy_from_slice(part);
        filled += part.len();
    });
}

/// Why a run of made-up ledgers is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SyntheticError {
    /// Ledgers over the protocol's limit.
    #[error("synthetic ledgers of {bytes} bytes: a ledger has at most {LEDGER_BYTES_MAX}")]
    TooLong {
        /// The size asked for.
        bytes: u64,
    },
    /// A run that leaves the sequences that can be streamed.
    #[error("{count} synthetic ledgers from {start}: sequences are 1 to {SEQUENCE_MAX}")]
    Sequences {
        /// The first.
        start: u32,
        /// How many.
        count: u32,
    },
}

/// A run of made-up ledgers, written into buffers that are used again.
pub struct Synthetic {
    next: u32,
    last: u32,
    shape: Shape,
    bytes: usize,
    buffer: Vec<u8>,
    done: bool,
}

impl Synthetic {
    /// Ledgers from `start`, `count` of them; a count of 0 is without end (as far as sequences reach).
    ///
    /// # Errors
    /// See [`SyntheticError`].
    pub fn new(start: u32, count: u32, bytes: u64, shape: Shape) -> Result<Synthetic, SyntheticError> {
        if bytes > LEDGER_BYTES_MAX {
            return Err(SyntheticError::TooLong { bytes });
        }
        let last = if count == 0 { Some(SEQUENCE_MAX) } else { start.checked_add(count - 1) };
        let last = last.filter(|&last| start >= 1 && last <= SEQUENCE_MAX && start <= last);
        let last = last.ok_or(SyntheticError::Sequences { start, count })?;
        Ok(Synthetic { next: start, last, shape, bytes: bytes as usize, buffer: Vec::new(), done: false })
    }

    /// The next ledger: its sequence and its bytes, in the run's own buffer.
    #[allow(clippy::should_implement_trait)] // What it gives borrows from it.
    pub fn next(&mut self) -> Option<(u32, &[u8])> {
        let sequence = self.next_sequence()?;
        self.buffer.resize(self.bytes, 0);
        write(sequence, self.shape, &mut self.buffer);
        Some((sequence, &self.buffer))
    }

    /// The next ledger's sequence; its bytes are made by [`generate`] or [`write`].
    pub fn next_sequence(&mut self) -> Option<u32> {
        if self.done {
            return None;
        }
        let sequence = self.next;
        self.done = sequence == self.last;
        self.next = sequence.wrapping_add(1);
        Some(sequence)
    }

    /// What ledgers hold, and bytes of each.
    pub fn shape(&self) -> (Shape, usize) {
        (self.shape, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh64::xxh64;

    fn ledger(sequence: u32, bytes: usize, shape: Shape) -> Vec<u8> {
        let mut out = vec![0xaa; bytes];
        write(sequence, shape, &mut out);
        out
    }

    #[test]
    fn the_published_hashes_are_met() {
        use Shape::{Compressible, Noise};
        for (sequence, bytes, shape, hash) in [
            (1, 15_196_160, Compressible, 0x4d60_738e_4d19_acaf_u64),
            (1, 15_196_160, Noise, 0x0291_aeade051d0bc),
            (7, 1024, Noise, 0x5ade_0ff6_dae2_2f90),
            (7, 1024, Compressible, 0xba9e_1115_aa4d_7006),
            (42, 4099, Noise, 0x7173_c1ea_0e26_dcb4),
            (42, 4099, Compressible, 0x9fe6_6c12_06a4_08fb),
            (4_294_967_294, 204_800, Noise, 0x6230_b032_2a45_8430),
            (3, 3, Noise, 0x3188_6f2e_7daf_8ca4),
        ] {
            assert_eq!(xxh64(&ledger(sequence, bytes, shape), 0), hash, "ledger {sequence}, {bytes} bytes, {shape:?}");
        }
        assert_eq!(ledger(3, 3, Noise), [0, 0, 0]);
    }

    #[test]
    fn a_ledger_is_a_function_of_its_sequence() {
        for shape in [Shape::Noise, Shape::Compressible] {
            assert_eq!(ledger(9, 1000, shape), ledger(9, 1000, shape));
            assert_ne!(ledger(9, 1000, shape)[4..], ledger(10, 1000, shape)[4..]);
            assert_eq!(ledger(0x0102_0304, 5, shape)[..4], [1, 2, 3, 4]);
        }
    }

    #[test]
    fn a_run_is_bounded_or_not_and_uses_one_buffer() {
        let mut run = Synthetic::new(5, 3, 100, Shape::Noise).expect("a run");
        let mut seen = Vec::new();
        while let Some((sequence, bytes)) = run.next() {
            seen.push((sequence, bytes.as_ptr()));
        }
        assert_eq!(seen.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [5, 6, 7]);
        assert!(seen.iter().all(|(_, buffer)| *buffer == seen[0].1), "the buffer is used again");
        assert_eq!(run.next(), None, "and stays at its end");
        let mut endless = Synthetic::new(1, 0, 8, Shape::Noise).expect("a run");
        assert!((0..1000).all(|_| endless.next().is_some()));
        let mut last = Synthetic::new(SEQUENCE_MAX, 0, 8, Shape::Noise).expect("a run");
        assert!(last.next().is_some() && last.next().is_none());
    }

    #[test]
    fn what_cannot_be_streamed_is_refused() {
        assert!(matches!(
            Synthetic::new(1, 0, LEDGER_BYTES_MAX + 1, Shape::Noise),
            Err(SyntheticError::TooLong { .. })
        ));
        for (start, count) in [(0, 1), (u32::MAX, 1), (SEQUENCE_MAX, 2), (2, u32::MAX)] {
            assert!(matches!(Synthetic::new(start, count, 8, Shape::Noise), Err(SyntheticError::Sequences { .. })));
        }
    }
}
