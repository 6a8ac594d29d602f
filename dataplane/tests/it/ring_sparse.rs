//! Rings with holes: what their readers skip, count and find again.

use std::time::Duration;

use sluice::ring::raw::{RawSettings, RawWriter};
use sluice::ring::{ConsumerSettings, Received, RingConsumer, RingProducer, RingSettings, StartAt, Wait};
use sluice::wire::ring::Geometry;

use crate::ring::{Line, RingPath, line, sleeper, small, woken};

/// A copy of a ring of 16 lines that begins at `first`.
fn copy(path: &RingPath, first: u64) -> (RawWriter, Geometry) {
    let source = RingPath::new("source");
    let geometry = *RingProducer::<Line>::create(&source, &small(16)).expect("made").geometry();
    (RawWriter::create(path, &geometry, first, 1, &RawSettings::default()).expect("made"), geometry)
}

fn write(writer: &mut RawWriter, records: u64) {
    for _ in 0..records {
        let record = line(writer.next());
        writer.write(zerocopy::IntoBytes::as_bytes(&record), &[]).expect("no blob");
    }
    writer.publish();
}

fn open(path: &RingPath, start: StartAt) -> RingConsumer<Line> {
    RingConsumer::open(path, start, &ConsumerSettings::default()).expect("a ring")
}

/// Polls until something comes: a hole is looked for now and then only.
fn next(reader: &mut RingConsumer<Line>) -> Option<Line> {
    (0..64).find_map(|_| reader.try_recv())
}

#[test]
fn a_copy_that_began_late_is_read_from_its_first_record() {
    let path = RingPath::new("sparse-late");
    let (mut writer, _) = copy(&path, 1_000);
    let mut early = open(&path, StartAt::Oldest);
    assert_eq!((early.cursor(), next(&mut early)), (1, None));
    write(&mut writer, 3);
    assert_eq!(next(&mut early), Some(line(1_000)));
    assert_eq!((early.lapped(), early.skipped()), (999, 999));
    assert_eq!(next(&mut early), Some(line(1_001)));
    let mut late = open(&path, StartAt::Oldest);
    assert_eq!((late.cursor(), next(&mut late)), (987, Some(line(1_000))));
}

#[test]
fn holes_are_skipped_and_counted() {
    let path = RingPath::new("sparse-hole");
    let (mut writer, _) = copy(&path, 1);
    let mut reader = open(&path, StartAt::Oldest);
    write(&mut writer, 2);
    writer.skip_to(7);
    // A hole at the end: the head has passed it, the next record has not come.
    writer.publish();
    assert_eq!((next(&mut reader), next(&mut reader), next(&mut reader)), (Some(line(1)), Some(line(2)), None));
    assert_eq!((reader.cursor(), reader.skipped()), (7, 4));
    write(&mut writer, 1);
    assert_eq!(next(&mut reader), Some(line(7)));
    // A hole of more than a lap.
    writer.skip_to(500);
    write(&mut writer, 20);
    assert_eq!(next(&mut reader), Some(line(504)));
    assert_eq!((reader.lapped(), reader.skipped()), (4 + 496, 4));
}

/// After a hole that stands for what the source no longer held, a reader of the copy has lost as much as an equally slow
/// reader of the source.
#[test]
fn a_slow_reader_loses_the_same_on_source_and_copy() {
    let (source_path, path) = (RingPath::new("sparse-source"), RingPath::new("sparse-copy"));
    let mut source = RingProducer::<Line>::create(&source_path, &small(16)).expect("made");
    let (mut writer, _) = copy(&path, 1);
    let (mut slow, mut slow_copy) = (open(&source_path, StartAt::Oldest), open(&path, StartAt::Oldest));
    for sequence in 1..=5 {
        source.push(&line(sequence));
    }
    write(&mut writer, 5);
    for reader in [&mut slow, &mut slow_copy] {
        assert_eq!((1..=5).map(|_| next(reader).expect("there")).last(), Some(line(5)));
    }
    // The copy's link is down for 40 records; 30 to 45 are left when it is back.
    for sequence in 6..=45 {
        source.push(&line(sequence));
    }
    writer.skip_to(source.reader().oldest());
    write(&mut writer, 16);
    for reader in [&mut slow, &mut slow_copy] {
        assert_eq!(next(reader), Some(line(30)));
        assert_eq!((reader.lapped(), reader.cursor()), (24, 31));
    }
}

#[test]
fn a_sleeper_is_not_stuck_at_a_hole() {
    let path = RingPath::new("sparse-sleep");
    let (mut writer, _) = copy(&path, 1);
    let mut reader = open(&path, StartAt::Oldest);
    let asleep = sleeper(&path, 1);
    writer.skip_to(9);
    writer.publish();
    woken(asleep);
    let reading = std::thread::spawn(move || reader.recv(Wait::Futex { spins: 0 }, Duration::from_secs(20)));
    std::thread::sleep(Duration::from_millis(20));
    write(&mut writer, 1);
    let received = reading.join().expect("no panic").expect("no follower");
    assert_eq!(received, Received::Record { sequence: 9, record: line(9) });
}

#[test]
fn a_producer_s_own_sparse_ring_is_read_like_any_other() {
    let path = RingPath::new("sparse-own");
    let settings = RingSettings { sparse: true, ..small(16) };
    let mut producer = RingProducer::<Line>::create(&path, &settings).expect("made");
    let mut reader = open(&path, StartAt::Oldest);
    for sequence in 1..=40 {
        producer.push(&line(sequence));
        assert_eq!(next(&mut reader), Some(line(sequence)));
    }
    assert_eq!((reader.lapped(), reader.skipped()), (0, 0));
}
