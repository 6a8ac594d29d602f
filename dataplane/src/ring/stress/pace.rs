//! The producer: each record at its time, or as soon as possible after it, and how late that was.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::{DUE, LOOK, Load, NUMBER, RUN, STAMP};
use crate::ring::{InlineSender, RingProducer};
use crate::sys::clock::{self, monotonic_ns};

/// Records that are pushed with one publication at most; each such batch has its own stamp.
const BATCH: usize = 64;
/// Shortest wait that sleeps: the kernel's timers may be 50 µs late by default, and a wake takes some more.
const SLEEP_NS_MIN: i64 = 150_000;
/// By so much a sleep ends early.
const SLEEP_SLACK_NS: i64 = 100_000;

/// Values from 1 ns to a minute, to three digits; longer ones count as a minute.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// What was published.
#[derive(Clone, Debug)]
pub(super) struct Pushed {
    /// Records.
    pub count: u64,
    /// From the first record's time to the end of the last push.
    pub elapsed_ns: i64,
    /// How late each burst was pushed against the schedule.
    pub lateness: Histogram<u64>,
}

/// How a producer waits for a record's time.
pub(super) trait Idle {
    /// Called again and again until `left_ns` are over.
    fn idle(&mut self, left_ns: i64) -> Result<(), super::StressError>;
}

/// Sleeps, and gives the CPU away shortly before the time.
pub(super) struct Parks;

impl Idle for Parks {
    fn idle(&mut self, left_ns: i64) -> Result<(), super::StressError> {
        match left_ns {
            SLEEP_NS_MIN.. => clock::sleep(Duration::from_nanos((left_ns - SLEEP_SLACK_NS) as u64).min(LOOK)),
            _ => std::thread::yield_now(),
        }
        Ok(())
    }
}

/// Polls.
pub(super) struct Spins;

impl Idle for Spins {
    fn idle(&mut self, _: i64) -> Result<(), super::StressError> {
        std::hint::spin_loop();
        Ok(())
    }
}

impl Idle for super::super::step::Server {
    fn idle(&mut self, _: i64) -> Result<(), super::StressError> {
        self.step()?;
        Ok(())
    }
}

/// Publishes the whole load, beginning at `start_ns` with record 1 of a fresh ring; `note` is told each record's number and
/// stamp before it is published. Never waits for anything but time.
pub(super) fn produce<const W: usize, S: InlineSender>(
    producer: &mut RingProducer<[u64; W], S>,
    (load, run, start_ns): (&Load, u64, i64),
    idle: &mut impl Idle,
    mut note: impl FnMut(u64, i64),
    stop: &AtomicBool,
) -> Result<Pushed, super::StressError> {
    let (total, burst) = (load.total(), load.burst());
    let mut lateness = histogram();
    let mut batch = vec![[0; W]; BATCH.min(burst as usize)];
    let mut number = 1;
    while number <= total {
        let due = start_ns + load.due_ns(number);
        let mut now = monotonic_ns();
        while now < due {
            idle.idle(due - now)?;
            super::check_stop(stop)?;
            now = monotonic_ns();
        }
        super::check_stop(stop)?;
        lateness.saturating_record((now - due) as u64);
        let end = (number + burst).min(total + 1);
        while number < end {
            let count = ((end - number) as usize).min(batch.len());
            let now = monotonic_ns();
            for record in &mut batch[..count] {
                fill(record, number, [now as u64, due as u64, number, run]);
                note(number, now);
                number += 1;
            }
            producer.push_batch(&batch[..count]);
        }
    }
    Ok(Pushed { count: total, elapsed_ns: monotonic_ns() - start_ns, lateness })
}

#[inline]
fn fill<const W: usize>(record: &mut [u64; W], number: u64, head: [u64; 4]) {
    (record[STAMP], record[DUE], record[NUMBER], record[RUN]) = (head[0], head[1], head[2], head[3]);
    record[RUN + 1..].fill(number);
    if let Some(last) = record[RUN + 1..].last_mut() {
        *last = !number;
    }
}

/// Whether a record is as it was published.
#[inline]
pub(super) fn is_whole<const W: usize>(record: &[u64; W]) -> bool {
    let number = record[NUMBER];
    match record[RUN + 1..].split_last() {
        Some((last, filling)) => *last == !number && filling.iter().all(|word| *word == number),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{ConsumerSettings, RingConsumer, RingSettings, StartAt};

    #[test]
    fn every_record_is_published_in_order_at_its_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ring");
        let load = Load { rate: 1_000_000, seconds: 0.005, size: 56, even: false };
        let settings = RingSettings { capacity: 8_192, ..RingSettings::default() };
        let mut producer = RingProducer::<[u64; 7]>::create(&path, &settings).expect("a ring");
        let mut reader =
            RingConsumer::<[u64; 7]>::open(&path, StartAt::Oldest, &ConsumerSettings::default()).expect("it");
        let (start, mut noted) = (monotonic_ns(), 0);
        let note = |number, _| noted = number;
        let stop = AtomicBool::new(false);
        let pushed = produce(&mut producer, (&load, 9, start), &mut Spins, note, &stop).expect("no end is asked for");
        assert_eq!((pushed.count, noted, pushed.lateness.len()), (5_000, 5_000, 100));
        assert!(pushed.elapsed_ns >= 4_950_000, "{}", pushed.elapsed_ns);
        for number in 1..=5_000 {
            let record = reader.try_recv().expect("it was published");
            assert!(is_whole(&record) && record[NUMBER] == number && record[RUN] == 9, "{record:?}");
            assert!(record[DUE] as i64 == start + load.due_ns(number) && record[STAMP] >= record[DUE], "{record:?}");
        }
        assert!(reader.try_recv().is_none());
        for word in 4..7 {
            let mut torn = [0; 7];
            fill(&mut torn, 5, [1, 1, 5, 1]);
            torn[word] ^= 1;
            assert!(!is_whole(&torn));
        }
    }

    #[test]
    fn a_late_producer_does_not_wait_and_says_how_late() {
        let folder = tempfile::tempdir().expect("a folder");
        let load = Load { rate: 1_000, seconds: 0.1, size: 32, even: true };
        let mut producer =
            RingProducer::<[u64; 4]>::create(&folder.path().join("ring"), &RingSettings::default()).expect("a ring");
        let start = monotonic_ns() - 1_000_000_000;
        let stop = AtomicBool::new(false);
        let pushed = produce(&mut producer, (&load, 1, start), &mut Parks, |_, _| {}, &stop).expect("runs");
        assert_eq!(pushed.count, 100);
        assert!(pushed.lateness.min() >= 850_000_000, "the last one was due 100 ms after the start");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let more = Load { rate: 10_000, ..load };
        let told = produce(&mut producer, (&more, 1, start), &mut Parks, |_, _| {}, &stop);
        assert!(matches!(told, Err(super::super::StressError::Stopped)), "{told:?}");
    }
}
