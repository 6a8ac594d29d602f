//! What a reader counts: every record of a run once, in order, whole, or in a hole that the ring itself tells of.

use std::sync::atomic::{AtomicU64, Ordering};

use super::pace::is_whole;
use super::report::Counts;
use super::{NUMBER, RUN, SETTLE_NS};
use crate::ring::RingConsumer;
use crate::sys::clock::monotonic_ns;

/// The account of one reader.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    run: u64,
    /// A record that is counted as if it had not come: for tests of what is said then.
    planted: Option<u64>,
    counts: Counts,
    /// What the ring had told before the first record: history.
    before: Told,
}

/// What a ring tells its reader of records that it did not get.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Told {
    pub lapped: u64,
    pub skipped: u64,
}

impl Told {
    #[inline]
    pub fn by<const W: usize>(ring: &RingConsumer<[u64; W]>) -> Told {
        Told { lapped: ring.lapped(), skipped: ring.skipped() }
    }
}

impl Tally {
    pub fn new(run: u64, planted: Option<u64>) -> Tally {
        Tally { run, planted, counts: Counts::default(), before: Told::default() }
    }

    /// Counts a record that was read at `sequence`; whether it is one of this run, and new.
    #[inline]
    pub fn take<const W: usize>(&mut self, sequence: u64, record: &[u64; W], told: Told) -> bool {
        if record[RUN] != self.run {
            self.counts.foreign += 1;
            return false;
        }
        let number = record[NUMBER];
        if self.planted == Some(number) {
            self.counts.last = self.counts.last.max(number);
            return false;
        }
        if number != sequence || !is_whole(record) {
            self.counts.wrong += 1;
            return false;
        }
        if self.counts.received == 0 {
            (self.counts.first, self.before) = (number, told);
        } else if number <= self.counts.last {
            self.counts.reordered += 1;
            return false;
        } else if number - self.counts.last > 1 {
            self.hole(number, told);
        }
        self.counts.last = number;
        self.counts.received += 1;
        true
    }

    #[cold]
    fn hole(&mut self, number: u64, told: Told) {
        self.counts.holes += number - self.counts.last - 1;
        self.counts.lapped = told.lapped - self.before.lapped;
        self.counts.skipped = told.skipped - self.before.skipped;
    }

    /// The last number that came.
    pub fn last(&self) -> u64 {
        self.counts.last
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// When a reader is done: it has the last record, or nothing has come for a time after that was published.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Finish {
    last: u64,
    progress_ns: i64,
}

impl Finish {
    /// `last`: the last record, 0 until it is published; `read`: the last that was read; `count`: records since the last look.
    pub fn is_done(&mut self, last: &AtomicU64, read: u64, count: usize) -> bool {
        if self.last == 0 {
            // Stored by whoever knows that all is published; only the number matters.
            self.last = last.load(Ordering::Acquire);
            self.progress_ns = if self.last == 0 { 0 } else { monotonic_ns() };
        }
        if self.last == 0 {
            return false;
        }
        if count > 0 {
            self.progress_ns = monotonic_ns();
        }
        read >= self.last || monotonic_ns() - self.progress_ns > SETTLE_NS
    }
}

/// Takes what is there, each with the time at which it was read; how many.
#[inline]
pub(super) fn drain<const W: usize>(
    reader: &mut RingConsumer<[u64; W]>,
    tally: &mut Tally,
    mut note: impl FnMut(u64, &[u64; W], i64),
) -> usize {
    let mut count = 0;
    while count < DRAIN_MAX {
        let Some(record) = reader.try_recv() else { break };
        let now = monotonic_ns();
        let sequence = reader.cursor() - 1;
        if tally.take(sequence, &record, Told::by(reader)) {
            note(sequence, &record, now);
        }
        count += 1;
    }
    count
}

/// Records between two looks at anything else: some microseconds.
const DRAIN_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, run: u64) -> [u64; 5] {
        [1, 1, number, run, !number]
    }

    #[test]
    fn history_holes_disorder_and_damage_are_told_apart() {
        let mut tally = Tally::new(7, None);
        let told = |lapped, skipped| Told { lapped, skipped };
        assert!(!tally.take(1, &record(1, 6), told(0, 0)), "another run's");
        assert!(tally.take(10, &record(10, 7), told(9, 9)), "what was missed before is history");
        assert!(tally.take(11, &record(11, 7), told(9, 9)));
        assert!(tally.take(15, &record(15, 7), told(11, 10)), "of three missing the ring tells of two");
        assert!(!tally.take(14, &record(14, 7), told(11, 10)), "late");
        assert!(!tally.take(15, &record(15, 7), told(11, 10)), "twice");
        assert!(!tally.take(17, &record(16, 7), told(11, 10)), "in a place that is not its own");
        assert!(!tally.take(16, &[1, 1, 16, 7, 0], told(11, 10)), "torn");
        assert!(tally.take(16, &record(16, 7), told(11, 10)));
        let counts = *tally.counts();
        let expected = Counts {
            first: 10,
            last: 16,
            received: 4,
            holes: 3,
            lapped: 2,
            skipped: 1,
            reordered: 2,
            wrong: 2,
            foreign: 1,
        };
        assert_eq!(counts, expected);
        let delivery = counts.delivery(None, 18);
        assert_eq!(
            (delivery.expected, delivery.missing(), delivery.lost),
            (9, 5, 3),
            "17 and 18 never came, and of one nobody told"
        );
    }

    #[test]
    fn a_planted_loss_is_a_hole_that_no_ring_told_of() {
        let mut tally = Tally::new(7, Some(3));
        for number in 1..=5 {
            tally.take(number, &record(number, 7), Told::default());
        }
        assert_eq!((tally.counts().received, tally.counts().last), (4, 5));
        assert_eq!(tally.counts().delivery(None, 5).lost, 1);
    }
}
