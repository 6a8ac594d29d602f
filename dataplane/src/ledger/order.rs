//! What a source promises: sequences that are dense and ascending.

use crate::wire::ledger::SEQUENCE_MAX;

/// A source that broke its promise; the run fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrderError {
    /// Another ledger than the one after the last.
    #[error("the source gave ledger {found} after {last}: its sequences must be dense and ascending")]
    NotNext {
        /// The last ledger.
        last: u32,
        /// The one that came.
        found: u32,
    },
    /// A sequence that cannot be streamed.
    #[error("the source gave ledger {found}: sequences are 1 to {SEQUENCE_MAX}")]
    Outside {
        /// The one that came.
        found: u32,
    },
}

/// Watches a source.
#[derive(Clone, Copy, Default, Debug)]
pub struct Order {
    last: Option<u32>,
}

impl Order {
    /// Takes the next ledger's sequence.
    ///
    /// # Errors
    /// A gap, a step back, a repetition, or a sequence outside of 1 to [`SEQUENCE_MAX`].
    pub fn check(&mut self, found: u32) -> Result<(), OrderError> {
        if found == 0 || found > SEQUENCE_MAX {
            return Err(OrderError::Outside { found });
        }
        if let Some(last) = self.last
            && last.checked_add(1) != Some(found)
        {
            return Err(OrderError::NotNext { last, found });
        }
        self.last = Some(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dense_ascending_runs_pass() {
        let run = |sequences: &[u32]| {
            let mut order = Order::default();
            sequences.iter().try_for_each(|&sequence| order.check(sequence))
        };
        assert_eq!(run(&[7, 8, 9]), Ok(()));
        assert_eq!(run(&[7, 6]), Err(OrderError::NotNext { last: 7, found: 6 }), "a step back");
        assert_eq!(run(&[7, 9]), Err(OrderError::NotNext { last: 7, found: 9 }), "a gap");
        assert_eq!(run(&[7, 7]), Err(OrderError::NotNext { last: 7, found: 7 }), "a repetition");
        assert_eq!(run(&[0]), Err(OrderError::Outside { found: 0 }));
        assert_eq!(run(&[SEQUENCE_MAX, u32::MAX]), Err(OrderError::Outside { found: u32::MAX }));
    }
}
