//! Rings whose every word the tests know, and readers that judge what they read.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice::ring::consumer::{ConsumerSettings, Received, RingConsumer, StartAt};
use sluice::ring::producer::{RingProducer, RingSettings};
use sluice::ring::wait::Wait;
use sluice::sys::clock;

/// A record: its sequence, the life of its producer, and five words that follow from both. One cache line in a slot.
pub type Record = [u64; 7];

/// The record `sequence` of a producer's life `life`.
pub fn record(life: u64, sequence: u64) -> Record {
    let mut words = [sequence, life, 0, 0, 0, 0, 0];
    for index in 2..7 {
        words[index] = (words[index - 1] ^ sequence.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64;
    }
    words
}

/// A producer of known records on a thread of its own, at a steady rate, until it is told to end or has written its share.
pub struct Writer {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Makes the ring (of `capacity` records) and writes `count` records of life `life` at `per_second`; then keeps the ring.
    pub fn start(path: &Path, capacity: u64, life: u64, count: u64, per_second: u64) -> Writer {
        let settings = RingSettings { capacity, ..RingSettings::default() };
        let mut producer = RingProducer::<Record>::create(path, &settings).expect("a ring");
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = std::thread::spawn({
            let (stop, written) = (stop.clone(), written.clone());
            move || {
                let started = clock::monotonic_ns();
                let mut sequence = 0;
                while !stop.load(Ordering::Relaxed) {
                    let due =
                        ((clock::monotonic_ns() - started) as u64 / 1_000 * per_second / 1_000_000 + 1).min(count);
                    while sequence < due {
                        sequence += 1;
                        assert_eq!(producer.push(&record(life, sequence)), sequence);
                    }
                    written.store(sequence, Ordering::Relaxed);
                    producer.beat();
                    clock::sleep(Duration::from_micros(200));
                }
            }
        });
        Writer { stop, written, thread: Some(thread) }
    }

    /// Records written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Ends it: the ring's file goes, as a producer's does.
    pub fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("running").join().expect("the producer ends well");
        self.written()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a reader saw between two markers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// The producer's life; 0 before the first record.
    pub life: u64,
    /// The first sequence.
    pub first: u64,
    /// The last sequence.
    pub last: u64,
    /// Records read.
    pub count: u64,
}

/// A reader that follows replaced rings and panics on a record that is wrong, comes twice, comes back, or is of another life
/// than those before it without a marker between.
pub struct Reader {
    consumer: RingConsumer<Record>,
    /// What it saw, marker by marker; the last one is going on.
    pub runs: Vec<Seen>,
}

impl Reader {
    /// Opens the ring as soon as it is there, within `patience`.
    #[track_caller]
    pub fn open(path: &Path, start: StartAt, patience: Duration) -> Reader {
        let settings = ConsumerSettings { follow: true, ..ConsumerSettings::default() };
        let end = clock::monotonic_ns() + patience.as_nanos() as i64;
        loop {
            match RingConsumer::open(path, start, &settings) {
                Ok(consumer) => return Reader { consumer, runs: vec![Seen::default()] },
                Err(error) => assert!(clock::monotonic_ns() < end, "{}: {error}", path.display()),
            }
            clock::sleep(Duration::from_millis(5));
        }
    }

    /// Reads until `enough` says so; panics after `patience`.
    #[track_caller]
    pub fn read_until(&mut self, what: &str, patience: Duration, mut enough: impl FnMut(&Seen) -> bool) {
        let end = clock::monotonic_ns() + patience.as_nanos() as i64;
        while !enough(self.runs.last().expect("one at least")) {
            assert!(clock::monotonic_ns() < end, "not within {patience:?}: {what}; seen {:?}", self.runs);
            match self.consumer.recv(Wait::Backoff, Duration::from_millis(20)).expect("a readable ring") {
                Received::Record { sequence, record } => self.take(sequence, record),
                Received::Replaced { .. } => self.runs.push(Seen::default()),
                Received::Died | Received::Stalled | Received::Resumed | Received::TimedOut => {}
            }
        }
    }

    fn take(&mut self, sequence: u64, words: Record) {
        let run = self.runs.last_mut().expect("one at least");
        if run.count == 0 {
            (run.life, run.first) = (words[1], sequence);
        }
        assert_eq!(words, record(run.life, sequence), "record {sequence} after {run:?}");
        assert!(run.count == 0 || sequence > run.last, "record {sequence} after {run:?}");
        run.last = sequence;
        run.count += 1;
    }

    /// The run that is going on: nothing is missing between its first and its last record.
    #[track_caller]
    pub fn assert_dense(&self) {
        let run = self.runs.last().expect("one at least");
        assert_eq!(run.count, run.last + 1 - run.first, "holes in {run:?}: {} lapped", self.consumer.lapped());
    }

    /// Lapped and skipped records.
    pub fn losses(&self) -> (u64, u64) {
        (self.consumer.lapped(), self.consumer.skipped())
    }
}
