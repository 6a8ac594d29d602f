//! What was said of attempts that came to nothing, so that each reason is said once and not every two seconds for a night.

/// Reasons that are remembered. A source has a handful of them (nothing listens, a wrong key, a ring that is too large);
/// should one make up more, they are counted and not said.
const REASONS_MAX: usize = 8;

/// The reasons that were said since all was well, and how often one came that was not said.
#[derive(Default)]
pub(super) struct Told {
    reasons: Vec<String>,
    unsaid: u64,
}

impl Told {
    /// Whether to say `reason` now; if so, how many attempts came to nothing unsaid since the last line.
    pub(super) fn take(&mut self, reason: &str) -> Option<u64> {
        if self.reasons.len() >= REASONS_MAX || self.reasons.iter().any(|told| told == reason) {
            self.unsaid += 1;
            return None;
        }
        self.reasons.push(reason.to_string());
        Some(std::mem::take(&mut self.unsaid))
    }

    /// All is well again: every reason is news from now on. How many attempts came to nothing unsaid.
    pub(super) fn clear(&mut self) -> u64 {
        self.reasons.clear();
        std::mem::take(&mut self.unsaid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_said_once_and_the_rest_is_counted() {
        let mut told = Told::default();
        assert_eq!(told.take("refused"), Some(0));
        assert_eq!((0..1_000).filter_map(|_| told.take("refused")).count(), 0);
        assert_eq!(told.take("wrong key"), Some(1_000), "the next change says how often it was so");
        assert_eq!((told.take("refused"), told.take("wrong key")), (None, None), "taking turns is no change");
        assert_eq!(told.clear(), 2);
        assert_eq!((told.take("refused"), told.clear()), (Some(0), 0), "news again");
    }

    #[test]
    fn reasons_without_end_are_bounded() {
        let mut told = Told::default();
        assert_eq!((0..1_000).filter(|n| told.take(&format!("reason {n}")).is_some()).count(), REASONS_MAX);
        assert_eq!(told.clear(), 1_000 - REASONS_MAX as u64);
    }
}
