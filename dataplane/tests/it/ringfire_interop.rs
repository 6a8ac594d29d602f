//! Rings shared with the public crate ringfire 0.5: its readers on our rings, ours on its, and the bytes of both compared.

use std::path::Path;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ringfire::{ConsumerStartMode, FlowControl, FutexWait, MirrorStart};
use sluice::ring::raw::{RawRead, RawReader, RawSettings, RawWriter};
use sluice::ring::{
    BlobConsumer, BlobProducer, ConsumerSettings, Received, RingConsumer, RingProducer, RingSettings, StartAt, Wait,
};
use sluice::wire::ring::Header;

use crate::ring::{Line, RingPath, line, sleeper, small, woken};

/// A meta of a size that is no whole number of words.
type Meta = [u8; 12];

fn settings() -> ConsumerSettings {
    ConsumerSettings::default()
}

fn theirs(path: &Path, start: ConsumerStartMode) -> ringfire::RingConsumer<Line> {
    ringfire::RingConsumer::builder().start_mode(start).attach(path).expect("a ring of lines")
}

fn ours(path: &Path, start: StartAt) -> RingConsumer<Line> {
    RingConsumer::open(path, start, &settings()).expect("a ring of lines")
}

const STARTS: [(StartAt, ConsumerStartMode); 6] = [
    (StartAt::Latest, ConsumerStartMode::Latest),
    (StartAt::Head, ConsumerStartMode::Head),
    (StartAt::Oldest, ConsumerStartMode::Oldest),
    (StartAt::Sequence(0), ConsumerStartMode::Sequence(0)),
    (StartAt::Sequence(7), ConsumerStartMode::Sequence(7)),
    (StartAt::Sequence(1_000), ConsumerStartMode::Sequence(1_000)),
];

/// Either producer.
enum Either {
    Ours(Box<RingProducer<Line>>),
    Theirs(ringfire::RingProducer<Line>),
}

impl Either {
    fn push(&mut self, records: &[Line], batch: bool) {
        match self {
            Either::Ours(producer) if batch => assert!(producer.push_batch(records) > 0),
            Either::Ours(producer) => records.iter().for_each(|record| assert!(producer.push(record) > 0)),
            Either::Theirs(producer) if batch => producer.push_batch(records),
            Either::Theirs(producer) => records.iter().for_each(|record| producer.push(record)),
        }
    }
}

/// The same story for both readers, on a ring of either producer: they must tell the same at each step.
fn both_read_the_same(mut producer: Either, path: &Path, seed: u64) {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut sent = 0;
    let mut push = |count: u64, batch: bool| {
        let records: Vec<Line> = (sent + 1..=sent + count).map(line).collect();
        sent += count;
        if count > 0 {
            producer.push(&records, batch);
        }
    };
    for (start, their_start) in STARTS {
        push(random.random_range(0..12), false);
        let (mut mine, mut their) = (ours(path, start), theirs(path, their_start));
        assert_eq!((mine.cursor(), mine.lapped()), (their.cursor(), their.lapped_count()), "seed {seed}, {start:?}");
        for _ in 0..40 {
            push(random.random_range(0..12), random.random());
            assert_eq!(mine.lag(), their.lag());
            for _ in 0..random.random_range(0..10) {
                assert_eq!(mine.try_recv(), their.try_recv(), "seed {seed}, {start:?}");
            }
            let (mut my_batch, mut their_batch) = ([[0; 7]; 5], [[0; 7]; 5]);
            assert_eq!(mine.recv_batch(&mut my_batch), their.recv_batch(&mut their_batch));
            assert_eq!(my_batch, their_batch);
            assert_eq!(
                (mine.cursor(), mine.lapped()),
                (their.cursor(), their.lapped_count()),
                "seed {seed}, {start:?}"
            );
        }
    }
}

#[test]
fn fixed_rings_read_the_same() {
    for seed in 0..4 {
        let path = RingPath::new("interop-ours");
        both_read_the_same(Either::Ours(Box::new(RingProducer::create(&path, &small(16)).expect("made"))), &path, seed);
        let path = RingPath::new("interop-theirs");
        both_read_the_same(Either::Theirs(ringfire::RingProducer::create(&*path, 16).expect("made")), &path, seed);
    }
}

/// What the file holds, without the bytes that are ours alone.
fn bytes_of(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).expect("there");
    bytes[112..128].fill(0);
    bytes
}

#[test]
fn files_are_the_same_byte_for_byte() {
    for (lossless, readers) in [(false, 0), (false, 3), (true, 32)] {
        let (mine_path, their_path) = (RingPath::new("bytes-ours"), RingPath::new("bytes-theirs"));
        let settings = RingSettings { lossless, readers_max: Some(readers as u32), ..small(8) };
        let mut mine = RingProducer::<[u32; 3]>::create(&mine_path, &settings).expect("made");
        let flow = if lossless { FlowControl::LosslessBackpressure } else { FlowControl::LossyLatestWins };
        let builder = ringfire::RingProducerBuilder::new(8).max_readers(readers).flow_control(flow);
        let mut their: ringfire::RingProducer<[u32; 3]> = builder.build(&*their_path).expect("made");
        assert_eq!(bytes_of(&mine_path), bytes_of(&their_path));
        for index in 1..=13 {
            mine.push(&[index; 3]);
            their.push(&[index; 3]);
        }
        // Twelve bytes in two words: the last four are padding, which theirs leaves as it was.
        assert_eq!(bytes_of(&mine_path), bytes_of(&their_path));
    }
    let (mine_path, their_path) = (RingPath::new("bytes-ours"), RingPath::new("bytes-theirs"));
    let mut mine = BlobProducer::<Meta>::create(&mine_path, &small(8), 512).expect("made");
    let mut their = ringfire::BlobProducer::<Meta>::create(&*their_path, 8, 512).expect("made");
    for length in [1, 64, 65, 200, 300, 512, 7] {
        let blob: Vec<u8> = (0..length).map(|byte| (byte as u8).wrapping_add(1)).collect();
        let sequence = mine.push(&[9; 12], 0, &blob).expect("short");
        assert_eq!(their.push(&[9; 12], &blob).expect("short"), sequence);
    }
    // The seven bytes lie over an old blob, of which our last word leaves no byte.
    let (mut mine, mut their) = (bytes_of(&mine_path), bytes_of(&their_path));
    let last = mine.len() - 512 + 7;
    assert_eq!((mine[last], their[last]), (0, 8));
    (mine[last], their[last]) = (0, 0);
    assert_eq!(mine, their);
}

#[test]
fn our_blobs_are_read_by_them_and_theirs_by_us() {
    let mut random = Pcg64Mcg::seed_from_u64(7);
    let (mine_path, their_path) = (RingPath::new("blob-ours"), RingPath::new("blob-theirs"));
    let mut mine = BlobProducer::<Meta>::create(&mine_path, &small(16), 2048).expect("made");
    let mut their = ringfire::BlobProducer::<Meta>::create(&*their_path, 16, 2048).expect("made");
    let mut their_reader = ringfire::BlobConsumer::<Meta>::attach(&*mine_path).expect("a ring of blobs");
    let mut reader = BlobConsumer::<Meta>::open(&their_path, StartAt::Oldest, &settings()).expect("a ring of blobs");
    assert!(reader.is_registered());
    let (mut out, mut their_out, mut their_meta) = (Vec::new(), [0; 2048], [0; 12]);
    let mut read = 0;
    for round in 0..300u32 {
        for _ in 0..random.random_range(0..8) {
            let blob: Vec<u8> = (0..random.random_range(0..400)).map(|_| random.random()).collect();
            let meta = [round as u8; 12];
            assert_eq!(mine.push(&meta, 0, &blob).expect("short"), their.push(&meta, &blob).expect("short"));
        }
        for _ in 0..random.random_range(0..8) {
            let record = reader.try_recv(&mut out);
            let length = their_reader.recv(&mut their_meta, &mut their_out).expect("room");
            assert_eq!(record.map(|_| out.len()), length);
            if let (Some(record), Some(length)) = (record, length) {
                assert_eq!((record.meta, out.as_slice()), (their_meta, &their_out[..length]));
                read += 1;
            }
        }
        assert_eq!(reader.cursor(), their_reader.cursor());
        assert_eq!(reader.lapped(), their_reader.lapped_count());
    }
    assert!(read > 100, "{read}");
}

#[test]
fn an_empty_blob_of_ours_is_not_lost_by_them() {
    let path = RingPath::new("blob-empty");
    let mut producer = BlobProducer::<u64>::create(&path, &small(16), 256).expect("made");
    let mut reader = ringfire::BlobConsumer::<u64>::attach(&*path).expect("a ring of blobs");
    let (mut meta, mut out) = (0, [0; 256]);
    for index in 1..=20 {
        producer.push(&index, 0, &vec![1; if index % 2 == 0 { 0 } else { 100 }]).expect("short");
        let length = reader.recv(&mut meta, &mut out).expect("room");
        assert_eq!((meta, length), (index, Some(if index % 2 == 0 { 0 } else { 100 })));
    }
    assert_eq!(reader.lapped_count(), 0);
}

#[test]
fn lossless_rings_wait_for_either_reader() {
    const RECORDS: u64 = 5_000;
    let settings = RingSettings { lossless: true, ..small(32) };
    let (mine_path, their_path) = (RingPath::new("lossless-ours"), RingPath::new("lossless-theirs"));
    let mut mine = RingProducer::<Line>::create(&mine_path, &settings).expect("made");
    let builder = ringfire::RingProducerBuilder::new(32).flow_control(FlowControl::LosslessBackpressure);
    let mut their: ringfire::RingProducer<Line> = builder.build(&*their_path).expect("made");
    let mut their_reader = theirs(&mine_path, ConsumerStartMode::Oldest);
    let mut reader = ours(&their_path, StartAt::Oldest);
    assert!(reader.is_registered());
    let registered = their.registry().expect("lossless").active_readers(0);
    assert_eq!((registered.len(), registered[0].pid), (1, std::process::id()));
    let their_side = std::thread::spawn(move || {
        for expected in 1..=RECORDS {
            let record = (0..).find_map(|_| their_reader.try_recv().or_else(yielded)).expect("endless");
            assert_eq!(record, line(expected));
        }
        their_reader.lapped_count()
    });
    let our_side = std::thread::spawn(move || {
        for expected in 1..=RECORDS {
            let record = (0..).find_map(|_| reader.try_recv().or_else(yielded)).expect("endless");
            assert_eq!(record, line(expected));
        }
        reader.lapped()
    });
    for sequence in 1..=RECORDS {
        mine.push(&line(sequence));
        their.push(&line(sequence));
    }
    assert_eq!((their_side.join().expect("in order"), our_side.join().expect("in order")), (0, 0));
    // Both readers gave their entries back.
    assert!(their.registry().expect("lossless").active_readers(0).is_empty());
    assert_eq!(mine.prune_readers(), 0);
}

fn yielded() -> Option<Line> {
    std::thread::yield_now();
    None
}

#[test]
fn either_producer_wakes_either_sleeper() {
    let (mine_path, their_path) = (RingPath::new("wake-ours"), RingPath::new("wake-theirs"));
    let mut mine = RingProducer::<Line>::create(&mine_path, &small(8)).expect("made");
    let mut their = ringfire::RingProducer::<Line>::create(&*their_path, 8).expect("made");
    let mut their_reader = theirs(&mine_path, ConsumerStartMode::Head);
    // Theirs looks again after this long by itself.
    let long = Duration::from_secs(20);
    let begun = Instant::now();
    let their_side = std::thread::spawn(move || their_reader.recv_blocking(&mut FutexWait::new(0, Some(long))));
    while std::fs::read(&*mine_path).expect("there")[56] == 0 {
        assert!(begun.elapsed() < long, "it never slept");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    let asleep = sleeper(&their_path, 1);
    let begun = Instant::now();
    mine.push(&line(1));
    their.push(&line(1));
    assert_eq!(their_side.join().expect("woken"), line(1));
    assert!(begun.elapsed() < long / 2, "our producer did not wake it");
    woken(asleep);
}

#[test]
fn a_sparse_ring_of_ours_is_read_the_same_by_them() {
    let (source, path) = (RingPath::new("sparse-source"), RingPath::new("sparse-ours"));
    let geometry = *RingProducer::<Line>::create(&source, &small(16)).expect("made").geometry();
    let mut writer = RawWriter::create(&path, &geometry, 100, 1, &RawSettings::default()).expect("made");
    let (mut mine, mut their) = (ours(&path, StartAt::Oldest), theirs(&path, ConsumerStartMode::Oldest));
    let mut random = Pcg64Mcg::seed_from_u64(3);
    for _ in 0..200 {
        if random.random_range(0..4) == 0 {
            writer.skip_to(writer.next() + random.random_range(0..30));
        }
        for _ in 0..random.random_range(0..9) {
            writer.write(zerocopy::IntoBytes::as_bytes(&line(writer.next())), &[]).expect("no blob");
        }
        writer.publish();
        // Both look for a hole at each 64th empty poll.
        for _ in 0..random.random_range(0..200) {
            assert_eq!(mine.try_recv(), their.try_recv());
        }
        assert_eq!((mine.cursor(), mine.lapped()), (their.cursor(), their.lapped_count()));
    }
    assert!(mine.skipped() > 0 && mine.lapped() > mine.skipped());
}

#[test]
fn a_mirror_s_sparse_ring_is_read_by_us() {
    let (source, path) = (RingPath::new("mirror-source"), RingPath::new("mirror-theirs"));
    let mut producer = RingProducer::<Line>::create(&source, &small(64)).expect("made");
    for sequence in 1..=40 {
        producer.push(&line(sequence));
    }
    let server = ringfire::ReplicaServer::bind(&*source, "127.0.0.1:0").expect("a free port");
    let address = server.local_addr().expect("bound");
    let serving = std::thread::spawn(move || server.serve_one());
    let builder = ringfire::Mirror::builder().start(MirrorStart::Sequence(31));
    let mut mirror = builder.connect(address, &*path).expect("connected");
    let mut reader = ours(&path, StartAt::Oldest);
    while mirror.sequence() < 40 {
        mirror.step().expect("served");
    }
    let record = (0..64).find_map(|_| reader.try_recv());
    assert_eq!((record, reader.skipped(), reader.cursor()), (Some(line(31)), 30, 32));
    for sequence in 32..=40 {
        assert_eq!(reader.try_recv(), Some(line(sequence)));
    }
    let raw = RawReader::open(&path, false).expect("a ring");
    assert!(raw.geometry().is_sparse() && raw.incarnation() == 0);
    let mut out = Vec::new();
    assert_eq!((raw.read(3, &mut out), raw.read(35, &mut out)), (RawRead::Absent { next: 31 }, RawRead::Record));
    let header = std::fs::read(&*path).expect("there");
    let header = Header::parse(&header, header.len() as u64).expect("a ring");
    assert_eq!(header.geometry, producer.geometry().mirrored());
    drop(mirror);
    // The server ends when it next writes to the mirror that is gone.
    while !serving.is_finished() {
        producer.push(&line(producer.sequence() + 1));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn several_producers_are_refused_by_name() {
    let path = RingPath::new("mpmc");
    let _producer = ringfire::MpmcProducer::<Line>::create(&*path, 16).expect("made");
    let error = RingConsumer::<Line>::open(&path, StartAt::Latest, &settings()).expect_err("not spoken");
    assert!(error.to_string().contains("MPMC"), "{error}");
    assert!(RawReader::open(&path, false).is_err());
}

#[test]
fn what_is_no_ring_of_theirs_is_refused_by_name() {
    let (board_path, offset_path) = (RingPath::new("blackboard"), RingPath::new("offset"));
    let _board = ringfire::BlackboardProducer::<u64>::create(&*board_path, 4).expect("made");
    let _offset = ringfire::OffsetCheckpoint::open_or_create(&*offset_path, "strategy").expect("made");
    assert_eq!(std::fs::metadata(&*offset_path).expect("there").len(), 64);
    for (path, name) in [(&board_path, "a blackboard"), (&offset_path, "an offset checkpoint")] {
        let errors = [
            RingConsumer::<Line>::open(path, StartAt::Latest, &settings()).expect_err("no ring").to_string(),
            BlobConsumer::<Line>::open(path, StartAt::Latest, &settings()).expect_err("no ring").to_string(),
            RawReader::open(path, true).expect_err("no ring").to_string(),
            sluice::ring::inspect::inspect(path).expect_err("no ring").to_string(),
        ];
        for error in errors {
            assert!(error.contains(name), "{error}");
        }
        assert!(RawWriter::resume_point(path).is_none());
    }
}

#[test]
fn their_producer_s_death_and_successor_are_seen() {
    let path = RingPath::new("interop-death");
    let producer = ringfire::RingProducer::<Line>::create(&*path, 16).expect("made");
    let follow = ConsumerSettings { follow: true, ..settings() };
    let mut reader = RingConsumer::<Line>::open(&path, StartAt::Oldest, &follow).expect("a ring");
    assert_eq!(reader.incarnation(), 0);
    let wait = Duration::from_secs(20);
    drop(producer);
    assert_eq!(reader.recv(Wait::Backoff, wait).expect("readable"), Received::Died);
    let mut producer = ringfire::RingProducer::<Line>::create(&*path, 16).expect("made anew");
    producer.push(&line(1));
    let replaced = Received::Replaced { followed: true, incarnation: 0 };
    assert_eq!(reader.recv(Wait::Backoff, wait).expect("readable"), replaced);
    assert_eq!(reader.try_recv(), Some(line(1)));
}
