//! Which ledger each connection waits for, densely: a publish walks over all places, and most of them need no more than a look here.

use super::super::hub::Hub;
use crate::wire::ledger::SEQUENCE_MAX;

/// Waits for nothing: no ledger has this sequence.
const NOTHING: u32 = u32::MAX;

/// What each place waits for.
#[derive(Default)]
pub(super) struct Waiting {
    /// The first ledger that brings something, by place; 0: any.
    from: Vec<u32>,
    told: Told,
}

/// What concerns everybody, whatever is waited for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Told {
    epoch: u64,
    finished: bool,
    draining: bool,
    cut: bool,
}

impl Waiting {
    /// This place waits for a ledger; `None`: for nothing that is published.
    pub(super) fn set(&mut self, at: usize, from: Option<u32>) {
        if self.from.len() <= at {
            self.from.resize(at + 1, NOTHING);
        }
        // Who waits for more than the last sequence is still told what concerns everybody.
        self.from[at] = from.map_or(NOTHING, |from| from.min(SEQUENCE_MAX));
    }

    /// The hub has changed: those are polled that wait for a ledger up to this one. That is everybody who waits, where the change is not one
    /// of a ledger.
    pub(super) fn reached(&mut self, hub: &Hub) -> u32 {
        let told = Told {
            epoch: hub.epoch(),
            finished: hub.outcome().is_some(),
            draining: hub.is_draining(),
            cut: hub.is_cut(),
        };
        if std::mem::replace(&mut self.told, told) != told {
            return SEQUENCE_MAX;
        }
        hub.flow().map_or(0, |flow| flow.sequence())
    }

    /// The next place from `at` on that waits for a ledger up to `reached`.
    pub(super) fn next(&self, at: usize, reached: u32) -> Option<usize> {
        let rest = self.from.get(at..)?;
        rest.iter().position(|&from| from <= reached).map(|found| at + found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::hub::Outcome;
    use crate::wire::ledger::{Begin, End};

    fn due(waiting: &mut Waiting, hub: &Hub) -> Vec<usize> {
        let (reached, mut at, mut due) = (waiting.reached(hub), 0, Vec::new());
        while let Some(found) = waiting.next(at, reached) {
            due.push(found);
            at = found + 1;
        }
        due
    }

    #[test]
    fn only_who_can_get_something_is_polled() {
        let (mut waiting, mut hub) = (Waiting::default(), Hub::default());
        waiting.set(5, Some(4_000_000_000));
        waiting.set(0, Some(0));
        waiting.set(1, Some(7));
        waiting.set(2, Some(8));
        waiting.set(3, None);
        waiting.set(6, Some(SEQUENCE_MAX));
        hub.begin(&Begin { sequence: 7, emit_start_ns: 1 });
        assert_eq!(due(&mut waiting, &hub), [0, 1]);
        hub.end(&End { sequence: 7, chunks: 0, bytes: 0, emit_end_ns: 1, xxh64: 0 });
        assert_eq!(due(&mut waiting, &hub), [0, 1]);
        hub.begin(&Begin { sequence: 8, emit_start_ns: 1 });
        assert_eq!(due(&mut waiting, &hub), [0, 1, 2]);
        waiting.set(2, None);
        assert_eq!(due(&mut waiting, &hub), [0, 1]);
    }

    #[test]
    fn what_concerns_everybody_is_told_to_everybody_once() {
        let tells: [fn(&mut Hub); 4] = [Hub::reset, Hub::drain, Hub::cut, |hub| hub.finish(Outcome::Ended)];
        for tell in tells {
            let (mut waiting, mut hub) = (Waiting::default(), Hub::default());
            waiting.set(0, None);
            waiting.set(1, Some(u32::MAX));
            hub.begin(&Begin { sequence: 8, emit_start_ns: 1 });
            assert!(due(&mut waiting, &hub).is_empty());
            tell(&mut hub);
            assert_eq!(due(&mut waiting, &hub), [1]);
            assert!(due(&mut waiting, &hub).is_empty());
        }
    }
}
