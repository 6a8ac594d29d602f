//! Bytes of TLS handshakes that wait for their turn.
//!
//! A handshake's step may be a signature, up to a millisecond of the core's time, and whoever connects decides how many there are. So
//! they are not taken where they come in, but a few at a time.

use std::collections::VecDeque;

use crate::units::NANOS_PER_MILLI;

/// Steps in one turn while no ledger is open: some 15 ms where each is a signature of RSA-2048.
const STEPS_PER_TURN: usize = 16;
/// Pause between two steps while a ledger is open: they take at most a fifth of the core, and 1,000 of them are done within a request's
/// time.
const PAUSE_NS: i64 = 5 * NANOS_PER_MILLI;

/// The queue. Nothing more is received of a connection that stands in it, so it is there once and with one read.
#[derive(Default)]
pub(super) struct Handshakes {
    waiting: VecDeque<(u32, Vec<u8>)>,
    /// When the next step may be while a ledger is open.
    next_ns: i64,
    /// There is more than the last turn took, and nothing to wait for.
    due: bool,
}

impl Handshakes {
    /// These bytes came for the connection at this place.
    pub(super) fn put_aside(&mut self, at: u32, bytes: Vec<u8>) {
        self.waiting.push_back((at, bytes));
    }

    /// How many steps may be taken in this turn.
    pub(super) fn allowed(&mut self, open: bool, now: i64) -> usize {
        let most = match open {
            true => usize::from(now >= self.next_ns),
            false => STEPS_PER_TURN,
        };
        self.due = !open && self.waiting.len() > most;
        let steps = most.min(self.waiting.len());
        if steps > 0 {
            self.next_ns = now + PAUSE_NS;
        }
        steps
    }

    /// The next step's place and bytes.
    pub(super) fn take(&mut self) -> Option<(u32, Vec<u8>)> {
        self.waiting.pop_front()
    }

    /// Whether another turn at once has steps to take.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// When the next step may be taken; `None`: nothing waits.
    pub(super) fn deadline(&self) -> Option<i64> {
        (!self.waiting.is_empty()).then_some(self.next_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that a turn takes.
    fn turn(handshakes: &mut Handshakes, open: bool, now: i64) -> usize {
        let allowed = handshakes.allowed(open, now);
        (0..allowed).for_each(|_| assert!(handshakes.take().is_some()));
        allowed
    }

    #[test]
    fn a_burst_is_taken_a_few_at_a_time_and_slowly_while_a_ledger_is_open() {
        let mut handshakes = Handshakes::default();
        assert_eq!((turn(&mut handshakes, true, 1), handshakes.deadline()), (0, None));
        (0..40).for_each(|at| handshakes.put_aside(at, vec![22]));
        assert_eq!(turn(&mut handshakes, true, 1), 1, "the first one does not wait");
        assert_eq!(turn(&mut handshakes, true, 2), 0);
        assert_eq!((handshakes.deadline(), handshakes.is_due()), (Some(1 + PAUSE_NS), false), "and the core may sleep");
        assert_eq!(turn(&mut handshakes, true, 1 + PAUSE_NS), 1);
        assert_eq!((turn(&mut handshakes, false, 2 + PAUSE_NS), handshakes.is_due()), (STEPS_PER_TURN, true));
        assert_eq!((turn(&mut handshakes, false, 3 + PAUSE_NS), handshakes.is_due()), (STEPS_PER_TURN, true));
        assert_eq!((turn(&mut handshakes, false, 4 + PAUSE_NS), handshakes.is_due()), (6, false));
        assert_eq!(handshakes.deadline(), None);
    }

    #[test]
    fn who_came_first_is_first() {
        let mut handshakes = Handshakes::default();
        (0..3).for_each(|at| handshakes.put_aside(at, vec![at as u8]));
        let order: Vec<u32> = std::iter::from_fn(|| handshakes.take()).map(|(at, _)| at).collect();
        assert_eq!(order, [0, 1, 2]);
    }
}
