//! The ring between processes' mappings: start modes, batches, lapping, flow control, blobs, sleep, death and replacement.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice::ring::liveness::Producer;
use sluice::ring::raw::{RawRead, RawReader, RawSettings, RawWriter};
use sluice::ring::{
    BlobConsumer, BlobProducer, ConsumerSettings, InlineSender, Received, RingConsumer, RingError, RingProducer,
    RingSettings, StartAt, Wait,
};
use sluice::wire::ring::{Geometry, Shape, Stride};

/// A path in shared memory that is removed at the end, however the test ends.
pub struct RingPath(PathBuf);

impl RingPath {
    /// A path of this test alone.
    pub fn new(name: &str) -> RingPath {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        RingPath(PathBuf::from(format!("/dev/shm/sluice-test-{name}-{}-{number}", std::process::id())))
    }
}

impl std::ops::Deref for RingPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for RingPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A record that fills a cache line with its sequence word.
pub type Line = [u64; 7];

/// Settings of a small ring.
pub fn small(capacity: u64) -> RingSettings {
    RingSettings { capacity, ..RingSettings::default() }
}

fn settings() -> ConsumerSettings {
    ConsumerSettings::default()
}

fn open(path: &Path, start: StartAt) -> RingConsumer<Line> {
    RingConsumer::open(path, start, &settings()).expect("a ring")
}

/// Record `sequence`: every word tells it.
pub fn line(sequence: u64) -> Line {
    std::array::from_fn(|index| sequence.wrapping_mul(index as u64 + 1))
}

/// A time that a loaded machine keeps as well: each expected delay is below 250 ms.
const LONG: Duration = Duration::from_secs(20);

/// How long [`sleeper`] sleeps at most when nobody wakes it.
const SLEEP: Duration = Duration::from_secs(30);

/// A thread that sleeps on the ring's futex until `sequence` is published. Our readers look again after 50 ms in any case:
/// this one does not, so without a wake [`woken`] fails. It sleeps, or is about to, when this returns.
pub fn sleeper(path: &Path, sequence: u64) -> std::thread::JoinHandle<Duration> {
    let announced = || std::fs::read(path).expect("there")[56];
    let (reader, before) = (RawReader::open(path, true).expect("a ring"), announced());
    let sleeper = std::thread::spawn(move || {
        let begun = Instant::now();
        while reader.head() < sequence {
            if let Some(value) = reader.announce(sequence) {
                sluice::sys::futex::wait(reader.futex().expect("opened to sleep"), value, SLEEP);
                reader.withdraw();
            }
        }
        begun.elapsed()
    });
    let begun = Instant::now();
    while announced() == before {
        assert!(begun.elapsed() < LONG, "it never slept");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    sleeper
}

/// The sleeper was woken: it did not sleep until its time was over.
pub fn woken(sleeper: std::thread::JoinHandle<Duration>) {
    let slept = sleeper.join().expect("no panic");
    assert!(slept < SLEEP / 2, "nobody woke it: it slept for {slept:?}");
}

#[test]
fn readers_begin_where_they_say() {
    let path = RingPath::new("start");
    let mut producer = RingProducer::<Line>::create(&path, &small(8)).expect("made");
    let mut early = open(&path, StartAt::Latest);
    let first = open(&path, StartAt::Head);
    assert_eq!((early.cursor(), first.cursor(), early.try_recv(), first.lag()), (1, 1, None, 0));
    for sequence in 1..=20 {
        assert_eq!(producer.push(&line(sequence)), sequence);
    }
    assert_eq!(early.lag(), 20);
    assert_eq!(early.try_recv(), Some(line(13)));
    assert_eq!((early.cursor(), early.lapped(), early.skipped()), (14, 12, 0));
    for (start, sequence, lapped) in [
        (StartAt::Latest, 20, 0),
        (StartAt::Oldest, 13, 0),
        (StartAt::Sequence(17), 17, 0),
        (StartAt::Sequence(3), 13, 10),
        (StartAt::Sequence(0), 13, 12),
    ] {
        let mut reader = open(&path, start);
        assert_eq!(reader.lapped(), lapped, "{start:?}");
        assert_eq!(reader.try_recv(), Some(line(sequence)), "{start:?}");
        assert_eq!(reader.cursor(), sequence + 1);
    }
    assert_eq!(open(&path, StartAt::Head).try_recv(), None);
    let mut ahead = open(&path, StartAt::Sequence(22));
    producer.push_batch(&[line(21), line(22)]);
    assert_eq!(ahead.try_recv(), Some(line(22)));
    ahead.seek(StartAt::Sequence(20));
    assert_eq!(ahead.try_recv(), Some(line(20)));
}

#[test]
fn batches_keep_order_and_number() {
    let path = RingPath::new("batch");
    let mut producer = RingProducer::<Line>::create(&path, &small(64)).expect("made");
    let mut reader = open(&path, StartAt::Oldest);
    assert_eq!(producer.push_batch(&[]), 0);
    let records: Vec<Line> = (1..=100).map(line).collect();
    assert_eq!(producer.push_batch(&records[..40]), 40);
    let mut out = [[0; 7]; 32];
    assert_eq!((reader.recv_batch(&mut out), out[31]), (32, line(32)));
    assert_eq!((reader.recv_batch(&mut out), out[7]), (8, line(40)));
    assert_eq!(reader.recv_batch(&mut out), 0);
    // A batch longer than the ring laps its own beginning.
    assert_eq!(producer.push_batch(&records), 140);
    assert_eq!((reader.recv_batch(&mut out), out[0]), (32, records[36]));
    assert_eq!((reader.cursor(), reader.lapped()), (109, 36));
}

#[test]
fn records_of_any_size_come_whole() {
    fn run<T: sluice::ring::Record + PartialEq + std::fmt::Debug>(value: T, element: u32) {
        for stride in [Stride::Exact, Stride::Line] {
            let path = RingPath::new("size");
            let settings = RingSettings { stride, interop: stride == Stride::Exact, ..small(4) };
            let mut producer = RingProducer::<T>::create(&path, &settings).expect("made");
            let expected = if stride == Stride::Exact { element } else { element.next_multiple_of(64) };
            assert_eq!(producer.geometry().element_size, expected);
            let mut reader =
                RingConsumer::<T>::open(&path, StartAt::Oldest, &ConsumerSettings::default()).expect("a ring");
            producer.push(&value);
            assert_eq!(reader.try_recv(), Some(value.clone_bytes()));
        }
    }
    trait CloneBytes {
        fn clone_bytes(&self) -> Self;
    }
    impl<T: sluice::ring::Record> CloneBytes for T {
        fn clone_bytes(&self) -> T {
            T::read_from_bytes(self.as_bytes()).expect("its own bytes")
        }
    }
    run([7u8; 0], 8);
    run([7u8; 3], 16);
    run([7u16; 5], 24);
    run([7u32; 3], 24);
    run([7u64; 15], 128);
    run([7u8; 61], 72);
}

#[test]
fn a_ring_has_one_producer_and_the_right_readers() {
    let path = RingPath::new("owner");
    assert!(matches!(RingConsumer::<Line>::open(&path, StartAt::Latest, &settings()), Err(RingError::Memory(_))));
    let producer = RingProducer::<Line>::create(&path, &small(8)).expect("made");
    let error = RingProducer::<Line>::create(&path, &small(8)).expect_err("held");
    assert!(error.to_string().contains("has a producer already"), "{error}");
    let error = RingConsumer::<[u64; 8]>::open(&path, StartAt::Latest, &settings()).expect_err("another size");
    assert!(matches!(error, RingError::Element { found: 64, wanted: 72, .. }), "{error}");
    let error = RingConsumer::<[u8; 56]>::open(&path, StartAt::Latest, &settings()).expect_err("another type");
    assert!(matches!(error, RingError::Schema { .. }), "{error}");
    let error = BlobConsumer::<Line>::open(&path, StartAt::Latest, &settings()).expect_err("no blobs");
    assert!(error.to_string().contains("carries no blobs"), "{error}");
    assert_ne!(producer.incarnation(), 0);
    assert_eq!(open(&path, StartAt::Latest).incarnation(), producer.incarnation());
    drop(producer);
    assert!(!path.exists(), "the producer removes its ring");
    let settings = RingSettings { stride: Stride::Line, ..small(8) };
    assert!(matches!(RingProducer::<Line>::create(&path, &settings), Err(RingError::StrideInterop)));
    let kept = RingProducer::<Line>::create(&path, &RingSettings { keep: true, ..small(8) }).expect("made");
    drop(kept);
    assert!(path.exists());
}

#[test]
fn what_is_no_ring_is_refused() {
    let path = RingPath::new("bad");
    for (bytes, part) in [(vec![], "0 bytes"), (vec![0; 127], "127 bytes"), (vec![0; 4096], "magic")] {
        std::fs::write(&*path, bytes).expect("room");
        let error = RingConsumer::<Line>::open(&path, StartAt::Latest, &settings()).expect_err("no ring");
        assert!(error.to_string().contains(part), "{error}");
        assert!(RawReader::open(&path, true).is_err() && RawWriter::resume_point(&path).is_none());
    }
    let producer = RingProducer::<Line>::create(&path, &RingSettings { keep: true, ..small(8) }).expect("replaces it");
    drop(producer);
    let file = std::fs::OpenOptions::new().write(true).open(&*path).expect("there");
    file.set_len(600).expect("cut");
    let error = RingConsumer::<Line>::open(&path, StartAt::Latest, &settings()).expect_err("cut");
    assert!(error.to_string().contains("needs 640 bytes, but its file has 600"), "{error}");
}

#[test]
fn a_reader_without_leave_to_write_reads_all_the_same() {
    let path = RingPath::new("readonly");
    let settings = RingSettings { readers_max: Some(4), mode: 0o440, ..small(8) };
    let mut producer = RingProducer::<Line>::create(&path, &settings).expect("made");
    let plain = ConsumerSettings { register: false, sleeps: false, ..ConsumerSettings::default() };
    let mut reader = RingConsumer::<Line>::open(&path, StartAt::Oldest, &plain).expect("readable");
    producer.push(&line(1));
    assert_eq!(reader.try_recv(), Some(line(1)));
    assert!(!reader.is_registered());
    let received = reader.recv(Wait::Futex { spins: 0 }, Duration::from_millis(1)).expect("no follower");
    assert_eq!(received, Received::TimedOut);
}

/// Writers and readers of raw maps: slots and arena cannot be written by whoever only reads.
#[test]
fn readers_map_slots_read_only() {
    let path = RingPath::new("maps");
    let settings = RingSettings { capacity: 4096, keep: true, ..RingSettings::default() };
    drop(BlobProducer::<u64>::create(&path, &settings, 1 << 20).expect("made"));
    let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
    let writable = || -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a /proc");
        let ours = maps.lines().filter(|line| line.contains(&name) && line.contains(" rw-s "));
        ours.map(|line| {
            let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let number = |text| usize::from_str_radix(text, 16).expect("a number");
            number(to) - number(from)
        })
        .sum()
    };
    let reader = RawReader::open(&path, false).expect("a ring");
    assert_eq!(writable(), 0, "a reader that does not sleep writes nothing");
    assert!(reader.announce(1).is_none() && reader.futex().is_none());
    drop(reader);
    let reader = RawReader::open(&path, true).expect("a ring");
    assert_eq!(writable(), 4096, "a reader that sleeps writes the header's page");
    drop(reader);
    let reader = BlobConsumer::<u64>::open(&path, StartAt::Oldest, &ConsumerSettings::default()).expect("a ring");
    assert!(reader.is_registered());
    assert_eq!(writable(), 4096, "32 entries of a registry lie in the header's page");
}

#[test]
fn blobs_are_read_copied_and_looked_at() {
    let path = RingPath::new("blob");
    let mut producer = BlobProducer::<[u8; 12]>::create(&path, &small(16), 1024).expect("made");
    let mut reader = BlobConsumer::<[u8; 12]>::open(&path, StartAt::Oldest, &settings()).expect("a ring");
    let mut out = Vec::new();
    assert!(reader.try_recv(&mut out).is_none());
    for (index, length) in [0, 1, 7, 8, 9, 64, 100, 0, 333].into_iter().enumerate() {
        let blob: Vec<u8> = (0..length).map(|byte| (byte * 7 + index) as u8).collect();
        let sequence = match index % 2 {
            0 => producer.push(&[index as u8; 12], index as u32, &blob).expect("short"),
            _ => producer
                .push_with(&[index as u8; 12], index as u32, length, |writer| {
                    for part in blob.chunks(5) {
                        assert_eq!(writer.write(part), part.len());
                    }
                    assert_eq!((writer.free(), writer.write(&[1])), (0, 0));
                })
                .expect("short"),
        };
        assert_eq!(sequence, index as u64 + 1);
        let seen = reader.view(|view| {
            assert_eq!((view.len(), view.flags()), (length, index as u32));
            let bytes: Vec<u8> = (0..view.len()).map(|at| view.byte(at).expect("inside")).collect();
            assert_eq!((view.byte(length), view.word(length.div_ceil(8))), (None, None));
            bytes
        });
        let (record, bytes) = seen.expect("there").expect("not lapped");
        assert_eq!((record.sequence, record.meta, record.flags), (sequence, [index as u8; 12], index as u32));
        assert_eq!(bytes, blob);
        reader.seek(StartAt::Sequence(sequence));
        reader.try_recv(&mut out).expect("there again");
        assert_eq!(out, blob);
    }
    let error = producer.push(&[0; 12], 0, &[0; 1025]).expect_err("too long");
    assert!(matches!(error, RingError::BlobTooLong { bytes: 1025, max: 1024 }), "{error}");
    producer.push_with(&[0; 12], 0, 20, |writer| assert_eq!(writer.write(&[9; 10]), 10)).expect("short");
    reader.try_recv(&mut out).expect("there");
    assert_eq!(out, [[9u8; 10], [0; 10]].concat(), "what was not written is zero");
}

#[test]
fn blobs_are_read_in_batches() {
    let path = RingPath::new("blobbatch");
    let mut producer = BlobProducer::<u64>::create(&path, &small(16), 256).expect("made");
    let mut reader = BlobConsumer::<u64>::open(&path, StartAt::Oldest, &settings()).expect("a ring");
    let empty = (sluice::ring::BlobRecord { sequence: 0, meta: 0, flags: 0 }, 0..0);
    let (mut records, mut out) = (vec![empty; 4], vec![0xee]);
    assert_eq!((reader.recv_batch(&mut records, &mut out), out.len()), (0, 0));
    // The arena holds the last four blobs only: the first two are lost on the way.
    for index in 1..=6u64 {
        producer.push(&(index * 10), index as u32, &[index as u8; 60]).expect("short");
    }
    producer.push(&70, 7, &[]).expect("short");
    let mut seen = Vec::new();
    for wanted in [4, 1, 0] {
        assert_eq!(reader.recv_batch(&mut records, &mut out), wanted);
        for (record, bytes) in &records[..wanted] {
            assert_eq!((record.meta, u64::from(record.flags)), (record.sequence * 10, record.sequence));
            assert!(out[bytes.clone()].iter().all(|byte| u64::from(*byte) == record.sequence));
            seen.push((record.sequence, bytes.len()));
        }
    }
    assert_eq!(seen, [(3, 60), (4, 60), (5, 60), (6, 60), (7, 0)]);
    assert_eq!((reader.lapped(), reader.cursor()), (2, 8));
}

#[test]
fn an_overwritten_blob_is_lapped() {
    let path = RingPath::new("bloblap");
    let mut producer = BlobProducer::<u64>::create(&path, &small(16), 256).expect("made");
    let mut reader = BlobConsumer::<u64>::open(&path, StartAt::Oldest, &settings()).expect("a ring");
    for index in 1..=6u64 {
        producer.push(&index, 0, &[index as u8; 64]).expect("short");
    }
    let mut out = Vec::new();
    assert_eq!(reader.try_recv(&mut out).expect("there").sequence, 3);
    assert_eq!((reader.lapped(), out.as_slice()), (2, &[3u8; 64][..]));
    // Overwritten under the eyes of the reader.
    let seen = reader.view(|view| {
        producer.push(&7, 0, &[7; 128]).expect("short");
        view.word(0)
    });
    assert!(seen.expect("there").is_err());
    assert_eq!((reader.lapped(), reader.cursor()), (3, 5));
    producer.push(&8, 0, &[]).expect("short");
    for index in 9..=16u64 {
        producer.push(&index, 0, &[index as u8; 64]).expect("short");
    }
    // An empty blob needs no room: its slot alone decides.
    reader.seek(StartAt::Sequence(8));
    assert_eq!(reader.try_recv(&mut out).map(|record| (record.sequence, out.len())), Some((8, 0)));
}

#[test]
fn a_lossless_producer_waits_for_its_readers() {
    let path = RingPath::new("lossless");
    let settings = RingSettings { lossless: true, readers_max: Some(2), ..small(16) };
    let mut producer = RingProducer::<Line>::create(&path, &settings).expect("made");
    // Nobody to wait for.
    for sequence in 1..=100 {
        assert_eq!(producer.try_push(&line(sequence)).expect("free"), sequence);
    }
    let mut slow = open(&path, StartAt::Head);
    let other = open(&path, StartAt::Latest);
    let error = RingConsumer::<Line>::open(&path, StartAt::Latest, &ConsumerSettings::default()).expect_err("full");
    assert!(matches!(error, RingError::ReadersFull { count: 2, .. }), "{error}");
    drop(other);
    for sequence in 101..=116 {
        assert_eq!(producer.try_push(&line(sequence)).expect("free"), sequence);
    }
    assert!(matches!(producer.try_push(&line(117)), Err(RingError::Full)));
    assert_eq!(slow.try_recv(), Some(line(101)));
    assert_eq!(producer.try_push(&line(117)).expect("free"), 117);
    let reader = std::thread::spawn(move || {
        let mut expected = 102;
        while expected <= 20_000 {
            if let Some(record) = slow.try_recv() {
                assert_eq!(record, line(expected));
                expected += 1;
            } else {
                std::thread::yield_now();
            }
        }
        slow.lapped()
    });
    for sequence in 118..=20_000 {
        assert_eq!(producer.push(&line(sequence)), sequence);
    }
    assert_eq!(reader.join().expect("all came in order"), 0);
}

#[test]
fn a_lossless_blob_ring_keeps_what_is_unread() {
    let path = RingPath::new("blobless");
    let settings = RingSettings { lossless: true, ..small(64) };
    let mut producer = BlobProducer::<u64>::create(&path, &settings, 4096).expect("made");
    let mut reader = BlobConsumer::<u64>::open(&path, StartAt::Oldest, &self::settings()).expect("a ring");
    let blob = |sequence: u64| vec![sequence as u8; (sequence * 131 % 1500) as usize];
    let reading = std::thread::spawn(move || {
        let mut out = Vec::new();
        for expected in 1..=3_000 {
            let record = loop {
                match reader.try_recv(&mut out) {
                    Some(record) => break record,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!((record.sequence, record.meta), (expected, expected));
            assert!(out == blob(expected), "blob {expected} is not its own");
        }
        reader.lapped()
    });
    for sequence in 1..=3_000 {
        producer.push(&sequence, 0, &blob(sequence)).expect("short");
    }
    assert_eq!(reading.join().expect("all came whole"), 0);
}

#[test]
fn a_stopped_reader_is_put_out_by_setting() {
    let path = RingPath::new("evict");
    let reader_stall_max = Some(Duration::from_millis(20));
    let settings = RingSettings { lossless: true, reader_stall_max, ..small(8) };
    let mut producer = RingProducer::<Line>::create(&path, &settings).expect("made");
    let mut stopped = open(&path, StartAt::Head);
    for sequence in 1..=30 {
        producer.push(&line(sequence));
    }
    assert_eq!(producer.evicted_readers(), 1);
    assert_eq!(stopped.try_recv(), Some(line(23)));
    assert_eq!(stopped.lapped(), 22);
}

/// What was sent, by an inline sender that reads the ring.
struct Sent(RawReader, VecDeque<(u64, Vec<u8>)>, u64);

impl InlineSender for Sent {
    fn published(&mut self, sequence: u64) {
        while self.2 < sequence {
            self.2 += 1;
            let mut record = Vec::new();
            assert_eq!(self.0.read(self.2, &mut record), RawRead::Record);
            self.1.push_back((self.2, record));
        }
    }
}

#[test]
fn an_inline_sender_sees_what_was_published() {
    let path = RingPath::new("inline");
    let producer = RingProducer::<[u32; 3]>::create(&path, &small(8)).expect("made");
    let reader = producer.reader();
    let mut producer = producer.with_sender(Sent(reader, VecDeque::new(), 0));
    producer.push(&[1, 2, 3]);
    producer.push_batch(&[[4, 5, 6], [7, 8, 9]]);
    let sent = &mut producer.sender().1;
    assert_eq!(sent.pop_front(), Some((1, [1u8, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0].to_vec())));
    assert_eq!(sent.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [2, 3]);
    let path = RingPath::new("inlineblob");
    let producer = BlobProducer::<u64>::create(&path, &small(8), 256).expect("made");
    let reader = producer.reader();
    let mut producer = producer.with_sender(Sent(reader, VecDeque::new(), 0));
    producer.push(&5, 0, b"blob").expect("short");
    let (_, record) = producer.sender().1.pop_front().expect("sent");
    assert_eq!((record[..8].to_vec(), &record[24..]), (vec![5, 0, 0, 0, 0, 0, 0, 0], &b"blob"[..]));
}

#[test]
fn sleepers_wake() {
    let path = RingPath::new("sleep");
    let mut producer = RingProducer::<Line>::create(&path, &small(8)).expect("made");
    for wait in [Wait::Futex { spins: 0 }, Wait::Backoff, Wait::Spin] {
        let mut reader = open(&path, StartAt::Head);
        let sequence = producer.sequence() + 1;
        let begun = Instant::now();
        let received = reader.recv(wait, Duration::from_millis(20)).expect("no follower");
        assert_eq!(received, Received::TimedOut);
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let sleeper = std::thread::spawn(move || reader.recv(wait, LONG));
        std::thread::sleep(Duration::from_millis(20));
        producer.push(&line(sequence));
        let received = sleeper.join().expect("no panic").expect("no follower");
        assert_eq!(received, Received::Record { sequence, record: line(sequence) });
    }
}

#[test]
fn each_kind_of_publication_wakes() {
    let (path, blobs) = (RingPath::new("wake"), RingPath::new("wakeblob"));
    let mut producer = RingProducer::<Line>::create(&path, &small(8)).expect("made");
    let asleep = sleeper(&path, 1);
    producer.push(&line(1));
    woken(asleep);
    let (asleep, another) = (sleeper(&path, 3), sleeper(&path, 2));
    producer.push_batch(&[line(2), line(3)]);
    woken(asleep);
    woken(another);
    let mut producer = BlobProducer::<u64>::create(&blobs, &small(8), 256).expect("made");
    let asleep = sleeper(&blobs, 1);
    producer.write_next(&1, 0, &[1]).expect("short");
    producer.publish();
    woken(asleep);
}

/// What a reader is told while nothing else comes, and how long it took.
fn told(reader: &mut RingConsumer<Line>, wait: Wait) -> (Received<Line>, Duration) {
    let begun = Instant::now();
    (reader.recv(wait, LONG).expect("readable"), begun.elapsed())
}

#[test]
fn death_and_replacement_are_told_after_the_last_record() {
    for wait in [Wait::Futex { spins: 0 }, Wait::Backoff, Wait::Spin] {
        let path = RingPath::new("death");
        let keep = RingSettings { keep: true, ..small(8) };
        let mut producer = RingProducer::<Line>::create(&path, &keep).expect("made");
        let follow = ConsumerSettings { follow: true, ..settings() };
        let mut follower = RingConsumer::<Line>::open(&path, StartAt::Oldest, &follow).expect("a ring");
        let mut stayer = open(&path, StartAt::Oldest);
        assert_eq!(stayer.producer(), Producer::Alive);
        producer.push(&line(1));
        drop(producer);
        for reader in [&mut follower, &mut stayer] {
            assert_eq!(told(reader, wait).0, Received::Record { sequence: 1, record: line(1) });
            let (event, took) = told(reader, wait);
            assert_eq!(event, Received::Died);
            assert!(took < Duration::from_secs(5), "{took:?}");
            assert_eq!(reader.recv(wait, Duration::from_millis(5)).expect("once"), Received::TimedOut);
            assert_eq!(reader.producer(), Producer::Died);
        }
        // The stayer comes to a ring that has overwritten 3 of its records.
        let mut producer = RingProducer::<Line>::create(&path, &small(16)).expect("made anew");
        producer.push(&line(9));
        let incarnation = producer.incarnation();
        let old = stayer.incarnation();
        assert_eq!(told(&mut follower, wait).0, Received::Replaced { followed: true, incarnation });
        assert_eq!(told(&mut follower, wait).0, Received::Record { sequence: 1, record: line(9) });
        assert_eq!((follower.geometry().capacity, follower.producer()), (16, Producer::Alive));
        assert_eq!(told(&mut stayer, wait).0, Received::Replaced { followed: false, incarnation: old });
        assert_eq!(stayer.try_recv(), None, "histories are never spliced");
        (2..=19).for_each(|sequence| assert_eq!(producer.push(&line(sequence)), sequence));
        assert_eq!(stayer.follow().expect("a ring"), incarnation);
        assert_eq!((stayer.try_recv(), stayer.lapped()), (Some(line(4)), 3));
    }
}

/// A successor that is not there yet, or gives up again, ends no follower.
#[test]
fn a_follower_waits_for_a_ring_that_is_being_made() {
    let path = RingPath::new("half-made");
    // Where a producer beats its path is known for 100 ms, but looked after each 25: it may be gone in between.
    let beats = RingSettings { heartbeat: true, ..small(8) };
    let producer = RingProducer::<Line>::create(&path, &beats).expect("made");
    let follow = ConsumerSettings { follow: true, ..settings() };
    let mut follower = RingConsumer::<Line>::open(&path, StartAt::Oldest, &follow).expect("a ring");
    let mut wait = |until: &dyn Fn(&Received<Line>) -> bool, timeout: Duration| {
        let begun = Instant::now();
        loop {
            let received = follower.recv(Wait::Backoff, Duration::from_millis(10)).expect("it goes on waiting");
            if until(&received) {
                return received;
            }
            assert!(begun.elapsed() < LONG, "never came");
            if begun.elapsed() > timeout {
                return received;
            }
        }
    };
    drop(producer);
    wait(&|received| *received == Received::Died, LONG);
    for bytes in [0, 4096] {
        std::fs::write(&*path, vec![0; bytes]).expect("room");
        // Long enough for it to have seen the path, and then the file is gone while it still thinks that it is there.
        assert_eq!(wait(&|_| false, Duration::from_millis(150)), Received::TimedOut);
        std::fs::remove_file(&*path).expect("there");
        assert_eq!(wait(&|_| false, Duration::from_millis(150)), Received::TimedOut, "its death was told once");
    }
    let producer = RingProducer::<Line>::create(&path, &small(8)).expect("made");
    let incarnation = producer.incarnation();
    let received = wait(&|received| *received != Received::TimedOut, LONG);
    assert_eq!(received, Received::Replaced { followed: true, incarnation });
}

#[test]
fn what_is_asked_about_a_producer_is_told_all_the_same() {
    let path = RingPath::new("asked");
    let producer = RingProducer::<Line>::create(&path, &small(8)).expect("made");
    let mut reader = open(&path, StartAt::Oldest);
    drop(producer);
    let begun = Instant::now();
    while reader.producer() != Producer::Died {
        assert!(begun.elapsed() < LONG, "its death was not found");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(told(&mut reader, Wait::Backoff).0, Received::Died);
    assert_eq!(reader.recv(Wait::Backoff, Duration::from_millis(5)).expect("readable"), Received::TimedOut, "once");
}

#[test]
fn a_follower_of_another_type_says_so() {
    let path = RingPath::new("othertype");
    let producer = RingProducer::<Line>::create(&path, &small(8)).expect("made");
    let follow = ConsumerSettings { follow: true, ..settings() };
    let mut follower = RingConsumer::<Line>::open(&path, StartAt::Oldest, &follow).expect("a ring");
    drop(producer);
    let _other = RingProducer::<[u64; 2]>::create(&path, &small(8)).expect("made");
    let error = follower.recv(Wait::Backoff, LONG).expect_err("other records");
    assert!(matches!(error, RingError::Element { .. }), "{error}");
}

#[test]
fn a_stall_is_told_and_its_end() {
    let path = RingPath::new("stall");
    let settings = RingSettings { heartbeat: true, ..small(8) };
    let mut producer = RingProducer::<Line>::create(&path, &settings).expect("made");
    let mut reader = open(&path, StartAt::Oldest);
    let beating = Arc::new(AtomicBool::new(true));
    let stopped = beating.clone();
    let (send, receive) = std::sync::mpsc::channel();
    let beats = std::thread::spawn(move || {
        while beating.load(Ordering::Relaxed) {
            producer.beat();
            std::thread::sleep(Duration::from_millis(10));
        }
        // Silent until the reader has noticed.
        receive.recv().expect("the reader lives");
        producer.push(&line(1));
        producer.beat();
        receive.recv().expect("the reader lives");
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(reader.recv(Wait::Backoff, Duration::from_millis(100)).expect("readable"), Received::TimedOut);
    assert_eq!(reader.producer(), Producer::Alive);
    let inspected = || sluice::ring::inspect::inspect(&path).expect("a ring").producer;
    assert_eq!(inspected(), Producer::Alive);
    stopped.store(false, Ordering::Relaxed);
    let (event, took) = told(&mut reader, Wait::Backoff);
    assert_eq!(event, Received::Stalled);
    assert_eq!(inspected(), Producer::Stalled, "by a single look");
    assert!(took < Duration::from_secs(5), "{took:?}");
    send.send(()).expect("the producer lives");
    assert_eq!(told(&mut reader, Wait::Backoff).0, Received::Record { sequence: 1, record: line(1) });
    assert_eq!(told(&mut reader, Wait::Backoff).0, Received::Resumed);
    send.send(()).expect("the producer lives");
    beats.join().expect("no panic");
}

/// A producer laps its readers without pause; every word of a record that is accepted tells the same sequence.
#[test]
fn no_record_is_torn_under_continuous_lapping() {
    let path = RingPath::new("torn");
    let mut producer = RingProducer::<Line>::create(&path, &small(2)).expect("made");
    let blobs = RingPath::new("tornblob");
    let mut blob_producer = BlobProducer::<u64>::create(&blobs, &small(4), 512).expect("made");
    let done = Arc::new(AtomicBool::new(false));
    let mut reader = open(&path, StartAt::Oldest);
    let mut blob_reader = BlobConsumer::<u64>::open(&blobs, StartAt::Oldest, &settings()).expect("a ring");
    let stop = done.clone();
    let reading = std::thread::spawn(move || {
        let (mut records, mut views, mut last) = (0u64, 0u64, 0);
        while !stop.load(Ordering::Relaxed) {
            while let Some(record) = reader.try_recv() {
                let sequence = reader.cursor() - 1;
                assert_eq!(record, line(sequence), "record {sequence} is torn");
                assert!(sequence > last, "{sequence} after {last}");
                last = sequence;
                records += 1;
                if records % 64 == 0 {
                    break;
                }
            }
            let words =
                |view: &sluice::ring::BlobView<'_>| (0..view.len() / 8).map(|at| view.word(at)).collect::<Vec<_>>();
            if let Some(Ok((record, words))) = blob_reader.view(words) {
                let all = words.iter().all(|word| *word == Some(record.sequence));
                assert!(all && record.meta == record.sequence, "blob {} is torn: {words:?}", record.sequence);
                views += 1;
            }
        }
        assert_eq!(records + reader.lapped() + 1, reader.cursor());
        assert_eq!(views + blob_reader.lapped() + 1, blob_reader.cursor());
        (records, views)
    });
    let begun = Instant::now();
    let mut sequence = 0u64;
    while begun.elapsed() < Duration::from_secs(2) {
        for _ in 0..100 {
            sequence += 1;
            producer.push(&line(sequence));
            let words = [sequence; 24];
            let length = 8 * (1 + sequence as usize % 24);
            blob_producer.push(&sequence, 0, &zerocopy::IntoBytes::as_bytes(&words)[..length]).expect("short");
        }
    }
    done.store(true, Ordering::Relaxed);
    let (records, views) = reading.join().expect("nothing torn");
    assert!(records > 0 && views > 0, "{records} records and {views} blobs were read");
}

/// The raw writer goes on where the last one ended, and only on a ring of the same layout.
#[test]
fn a_copy_is_adopted_only_if_it_is_the_same_ring() {
    let shape = Shape {
        capacity: 16,
        record_bytes: 8,
        record_align: 8,
        schema_sig: 3,
        lossless: true,
        readers_max: 4,
        sparse: false,
        stride: Stride::Exact,
        arena_bytes: Some(4096),
    };
    let source = Geometry::of(&shape).expect("sound");
    let path = RingPath::new("adopt");
    let settings = RawSettings::default();
    assert!(RawWriter::adopt(&path, &source, &settings).expect("nothing there").is_none());
    let mut writer = RawWriter::create(&path, &source, 5, 77, &settings).expect("made");
    assert!(writer.geometry().is_sparse() && !writer.geometry().is_lossless());
    let reader = RawReader::open(&path, false).expect("a ring");
    assert_eq!((reader.head(), writer.next()), (0, 5));
    writer.write(&[1; 24], &[9; 100]).expect("short");
    writer.publish();
    assert_eq!((reader.head(), reader.incarnation()), (5, 77));
    assert!(RawWriter::adopt(&path, &source, &settings).is_err(), "its writer lives");
    drop(writer);
    let resume = RawWriter::resume_point(&path).expect("a ring");
    assert_eq!((resume.next, resume.incarnation, resume.geometry), (6, 77, source.mirrored()));
    let other = Geometry { schema_sig: 4, ..source };
    assert!(RawWriter::adopt(&path, &other, &settings).expect("free").is_none());
    let mut writer = RawWriter::adopt(&path, &source, &settings).expect("free").expect("the same");
    assert_eq!((writer.next(), writer.incarnation()), (6, 77));
    writer.write(&[2; 24], &[8; 100]).expect("short");
    writer.publish();
    let mut out = Vec::new();
    assert_eq!((reader.read(5, &mut out), reader.read(6, &mut out)), (RawRead::Record, RawRead::Record));
    assert_eq!((&out[24..124], &out[148..]), (&[9; 100][..], &[8; 100][..]));
    drop(writer);
    drop(RawWriter::create(&path, &source, 1, 78, &settings).expect("a fresh one"));
    assert_eq!(reader.path_now(), Some(sluice::sys::shm::PathNow::Replaced));
    assert_eq!(RawWriter::resume_point(&path).map(|resume| (resume.next, resume.incarnation)), Some((1, 78)));
}

/// A mirror that was killed takes its own file over again: whoever reads it hears of its death, its return and its next death.
#[test]
fn a_writer_that_adopts_its_ring_is_back() {
    let path = RingPath::new("back");
    let geometry = *RingProducer::<Line>::create(&path, &small(8)).expect("made").geometry();
    let settings = RawSettings::default();
    let mut writer = RawWriter::create(&path, &geometry, 1, 7, &settings).expect("made");
    let mut reader = open(&path, StartAt::Oldest);
    for life in 1..=3 {
        let record = line(writer.next());
        writer.write(zerocopy::IntoBytes::as_bytes(&record), &[]).expect("no blob");
        writer.publish();
        assert_eq!(told(&mut reader, Wait::Backoff).0, Received::Record { sequence: life, record });
        if life > 1 {
            assert_eq!(told(&mut reader, Wait::Backoff).0, Received::Resumed, "life {life}");
        }
        drop(writer);
        assert_eq!(told(&mut reader, Wait::Backoff).0, Received::Died, "life {life}");
        writer = RawWriter::adopt(&path, &geometry, &settings).expect("free").expect("the same");
    }
}

/// The same without a record: its sign of life is enough.
#[test]
fn a_writer_that_only_beats_is_back() {
    let path = RingPath::new("beats");
    let geometry = *RingProducer::<Line>::create(&path, &small(8)).expect("made").geometry();
    let settings = RawSettings { heartbeat: true, ..RawSettings::default() };
    let mut writer = Some(RawWriter::create(&path, &geometry, 1, 7, &settings).expect("made"));
    let mut reader = RawReader::open(&path, false).expect("a ring");
    for _ in 0..3 {
        for dead in [false, true] {
            let begun = Instant::now();
            while (reader.producer(sluice::sys::clock::monotonic_ns()) == Producer::Died) != dead {
                assert!(begun.elapsed() < LONG, "dead {dead} was never found");
                writer.iter().for_each(RawWriter::beat);
                std::thread::sleep(Duration::from_millis(5));
            }
            writer = match writer.take() {
                None => RawWriter::adopt(&path, &geometry, &settings).expect("free"),
                Some(alive) => {
                    drop(alive);
                    None
                }
            };
        }
    }
}

/// Three kinds of ring, as their files hold them.
fn ring_files() -> Vec<Vec<u8>> {
    let (fixed, lossless, blobs) = (RingPath::new("bytes"), RingPath::new("bytes"), RingPath::new("bytes"));
    let mut producer = RingProducer::<[u64; 2]>::create(&fixed, &small(8)).expect("made");
    (1..=11).for_each(|word| assert_eq!(producer.push(&[word; 2]), word));
    let settings = RingSettings { lossless: true, readers_max: Some(2), ..small(4) };
    let mut waiting = RingProducer::<[u64; 2]>::create(&lossless, &settings).expect("made");
    waiting.push(&[1; 2]);
    let settings = RingSettings { readers_max: Some(1), ..small(8) };
    let mut blob = BlobProducer::<[u8; 12]>::create(&blobs, &settings, 512).expect("made");
    (1..=11).for_each(|byte| assert_eq!(blob.push(&[byte; 12], 0, &[byte; 70]).expect("short"), u64::from(byte)));
    [&fixed, &lossless, &blobs].map(|path| std::fs::read(&**path).expect("there")).into()
}

/// A file of holes that says it is a large ring: whoever looks at it fills no memory with it.
#[test]
fn readers_make_no_pages() {
    use std::os::unix::fs::MetadataExt;
    let (small_path, path) = (RingPath::new("pages"), RingPath::new("holes"));
    let mut header = {
        drop(RingProducer::<Line>::create(&small_path, &RingSettings { keep: true, ..small(8) }).expect("made"));
        std::fs::read(&*small_path).expect("there")[..128].to_vec()
    };
    const CAPACITY: u64 = 1 << 20;
    header[16..24].copy_from_slice(&CAPACITY.to_le_bytes());
    header[24..32].copy_from_slice(&(CAPACITY - 1).to_le_bytes());
    std::fs::write(&*path, &header).expect("room");
    let file = std::fs::OpenOptions::new().write(true).open(&*path).expect("there");
    file.set_len(128 + CAPACITY * 64).expect("holes need no room");
    let pages = || std::fs::metadata(&*path).expect("there").blocks() * 512 / 4096;
    assert_eq!(pages(), 1);
    let seen = sluice::ring::inspect::inspect(&path).expect("a ring");
    assert_eq!((seen.header.geometry.capacity, seen.head, seen.producer), (CAPACITY, 0, Producer::Died));
    assert_eq!(pages(), 1, "inspected");
    let reader = RawReader::open(&path, true).expect("a ring");
    assert!(pages() <= 2, "opened: {} pages", pages());
    assert!(!reader.is_there(1));
    let mut reader = open(&path, StartAt::Oldest);
    assert_eq!(reader.try_recv(), None);
    assert!(pages() <= 4, "read: {} pages", pages());
}

/// A slot that holds what no producer writes there: less than a lap newer than the record that belongs into it.
#[test]
fn a_damaged_slot_does_not_hold_a_reader_up() {
    let path = RingPath::new("newer");
    let mut producer = RingProducer::<Line>::create(&path, &RingSettings { keep: true, ..small(8) }).expect("made");
    (1..=5).for_each(|sequence| assert_eq!(producer.push(&line(sequence)), sequence));
    let slots_offset = producer.geometry().slots_offset as usize;
    drop(producer);
    let mut bytes = std::fs::read(&*path).expect("there");
    // Slot of record 3.
    bytes[slots_offset + 3 * 64..][..8].copy_from_slice(&6u64.to_le_bytes());
    std::fs::write(&*path, bytes).expect("room");
    let (send, receive) = std::sync::mpsc::channel();
    let mut reader = open(&path, StartAt::Sequence(2));
    // By itself: where this fails, it never returns.
    std::thread::spawn(move || {
        let received: Vec<_> = (0..5).map(|_| reader.recv(Wait::Backoff, Duration::from_millis(1))).collect();
        let sequences = received.into_iter().filter_map(|received| match received.expect("no follower") {
            Received::Record { sequence, .. } => Some(sequence),
            _ => None,
        });
        let _ = send.send((sequences.collect::<Vec<_>>(), reader.lapped()));
    });
    let (read, lapped) = receive.recv_timeout(LONG).expect("a reader that is held up");
    assert_eq!((read, lapped), (vec![2, 4, 5], 1));
}

/// Everything that reads a ring, on a damaged one: bounded work, no panic.
fn read_through(path: &Path) -> usize {
    const READS: u64 = 200;
    let mut read = 0;
    let _ = sluice::ring::inspect::inspect(path);
    if let Ok(mut reader) = RawReader::open(path, true) {
        let (first, mut out) = (reader.oldest(), Vec::new());
        for sequence in first..first.saturating_add(READS) {
            read += usize::from(reader.read(sequence, &mut out) == RawRead::Record);
        }
        if reader.announce(reader.head() + 1).is_some() {
            reader.withdraw();
        }
        reader.producer(0);
    }
    if let Ok(mut reader) = RingConsumer::<[u64; 2]>::open(path, StartAt::Oldest, &settings()) {
        read += (0..READS).filter_map(|_| reader.try_recv()).count() + reader.recv_batch(&mut [[0; 2]; 64]);
        let received = reader.recv(Wait::Backoff, Duration::from_millis(1)).expect("no follower");
        read += usize::from(matches!(received, Received::Record { .. }));
        reader.seek(StartAt::Latest);
        let _ = (reader.lag(), reader.try_recv());
    }
    if let Ok(mut reader) = BlobConsumer::<[u8; 12]>::open(path, StartAt::Oldest, &settings()) {
        let mut out = Vec::new();
        read += (0..READS).filter_map(|_| reader.try_recv(&mut out)).count();
        let _ = reader.view(|view| view.byte(view.len()));
        reader.recv(Wait::Backoff, Duration::from_millis(1), &mut out).expect("no follower");
        assert!(out.len() <= 1 << 16, "no blob is longer than its arena");
    }
    if let Some(resume) = RawWriter::resume_point(path)
        && let Ok(Some(mut writer)) = RawWriter::adopt(path, &resume.geometry, &RawSettings::default())
    {
        let _ = writer.write(&vec![1; resume.geometry.payload_bytes()], &[2; 100]);
        writer.publish();
    }
    read
}

/// The same as the fuzz target `ring`, with seeds: header, slots and descriptors damaged in every way.
#[test]
fn damaged_rings_cost_bounded_work() {
    use rand::{RngExt, SeedableRng};
    let values = [0, 1, 7, 8, 16, 63, 64, 128, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX - 1, u64::MAX];
    let path = RingPath::new("damaged");
    let mut read = 0;
    for (kind, file) in ring_files().into_iter().enumerate() {
        std::fs::write(&*path, &file).expect("room");
        assert!(read_through(&path) > 0, "kind {kind} is whole");
        for seed in 0..1_500 {
            let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let mut bytes = file.clone();
            for _ in 0..random.random_range(1..4) {
                let limit = if random.random() { 128 } else { bytes.len() };
                let at = random.random_range(0..limit / 4) * 4;
                let value = match random.random_range(0..3) {
                    0 => values[random.random_range(0..values.len())],
                    1 => random.random_range(0..2_000),
                    _ => random.random(),
                };
                let width = if random.random() { 4 } else { 8 };
                for (byte, value) in bytes[at..].iter_mut().zip(value.to_le_bytes()).take(width) {
                    *byte = value;
                }
            }
            if random.random_range(0..8) == 0 {
                bytes.truncate(random.random_range(0..bytes.len()));
            }
            // A new file: a shorter one under a mapping would be a signal.
            std::fs::remove_file(&*path).expect("there");
            std::fs::write(&*path, &bytes).expect("room");
            let found = std::panic::catch_unwind(|| read_through(&path));
            read += found.unwrap_or_else(|_| panic!("kind {kind}, seed {seed}"));
        }
    }
    assert!(read > 10_000, "{read} records were read");
}
