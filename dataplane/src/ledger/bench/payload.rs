//! `--verify`: the bytes that were sent, made or read again, beside the bytes that came.

use crate::ledger::synthetic::{self, Shape};

/// A ledger that is not what was sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    /// Another byte.
    #[error("ledger {sequence} differs from what was sent: byte {at} is {found:#04x}, {wanted:#04x} was sent")]
    Byte {
        /// The ledger.
        sequence: u32,
        /// The first byte that differs.
        at: usize,
        /// What came.
        found: u8,
        /// What was sent.
        wanted: u8,
    },
    /// Another length.
    #[error("ledger {sequence} differs from what was sent: {found} bytes came, {wanted} were sent")]
    Length {
        /// The ledger.
        sequence: u32,
        /// Bytes that came.
        found: usize,
        /// Bytes that were sent.
        wanted: usize,
    },
}

/// Compares a ledger with what was sent.
///
/// # Errors
/// Where they differ first.
pub fn compare(sequence: u32, found: &[u8], wanted: &[u8]) -> Result<(), Mismatch> {
    if found == wanted {
        return Ok(());
    }
    let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    Err(match differs {
        Some(at) => Mismatch::Byte { sequence, at, found: found[at], wanted: wanted[at] },
        None => Mismatch::Length { sequence, found: found.len(), wanted: wanted.len() },
    })
}

/// Makes made-up ledgers again, in memory of its own.
#[derive(Clone, Debug)]
pub struct Synthetic {
    shape: Shape,
    bytes: Option<usize>,
    again: Vec<u8>,
}

impl Synthetic {
    /// Of this shape and size; `None`: of any size (another host's server).
    pub fn new(shape: Shape, bytes: Option<usize>) -> Synthetic {
        Synthetic { shape, bytes, again: Vec::new() }
    }

    /// Compares a ledger with the one of its sequence.
    ///
    /// # Errors
    /// Where they differ first.
    pub fn verify(&mut self, sequence: u32, found: &[u8]) -> Result<(), Mismatch> {
        self.again.resize(self.bytes.unwrap_or(found.len()), 0);
        synthetic::write(sequence, self.shape, &mut self.again);
        compare(sequence, found, &self.again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_damage_is_found_wherever_it_is() {
        for shape in [Shape::Noise, Shape::Compressible] {
            let mut verifier = Synthetic::new(shape, Some(10_000));
            let mut ledger = vec![0; 10_000];
            synthetic::write(9, shape, &mut ledger);
            assert_eq!(verifier.verify(9, &ledger), Ok(()));
            for at in [0, 3, 4, 5_000, 9_999] {
                let mut damaged = ledger.clone();
                damaged[at] ^= 0x10;
                let wanted = ledger[at];
                let found = Mismatch::Byte { sequence: 9, at, found: wanted ^ 0x10, wanted };
                assert_eq!(verifier.verify(9, &damaged), Err(found));
            }
            let short = Mismatch::Length { sequence: 9, found: 9_999, wanted: 10_000 };
            // The generator's bytes do not depend on the size, but for the last record of the compressible shape.
            assert!(verifier.verify(9, &ledger[..9_999]).is_err());
            assert_eq!(compare(9, &ledger[..9_999], &ledger), Err(short));
            assert!(matches!(verifier.verify(10, &ledger), Err(Mismatch::Byte { at: 3, .. })), "another ledger");
            assert!(Synthetic::new(shape, None).verify(9, &ledger).is_ok(), "a size that is not known");
        }
        let text = compare(9, &[1, 2], &[1, 3]).expect_err("differs").to_string();
        assert_eq!(text, "ledger 9 differs from what was sent: byte 1 is 0x02, 0x03 was sent");
    }
}
