//! Queries for one (stream, sequence) in a store that is being written: warm (everything in the page cache) and cold
//! (block indexes and pages forgotten before each). `cargo bench --bench query`.

// A measurement may read the clock; the product reads it in `sys::clock` alone.
#![allow(clippy::disallowed_methods)]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use sluice::store::{Closed, Reader, RecordMeta, Select, Step, SyncSettings, SyncStore};
use sluice::units::{Side, StreamId};
use sluice::wire::block::RECORD_HEADER_BYTES;
use sluice::wire::segment::Framing;

const STORE_BYTES: u64 = 10 << 30;
const STREAMS: u64 = 4;
const BODY_BYTES: usize = 149;
const RUN_MESSAGES: u32 = 8;
/// What the writer goes on with while queries run: about a full market data feed.
const WRITE_BYTES_PER_SECOND: u64 = 50_000_000;
const WARM_QUERIES: usize = 50_000;
const COLD_QUERIES: usize = 500;
/// Queries between two looks for what was written since.
const QUERIES_PER_REFRESH: usize = 1_000;
const SEED: u64 = 1;

fn append(store: &mut SyncStore, run: &[u8], round: u64) {
    let sequence = 1 + round / STREAMS * u64::from(RUN_MESSAGES);
    let meta = RecordMeta::message(StreamId((round % STREAMS) as u32), Side::A, sequence, round as i64 * 1_000);
    store.append_run(&meta, RUN_MESSAGES, Framing::U16Le, run).expect("room");
}

/// Reads every record up to `known`, so that all that is asked for lies in the page cache; twice, since pages read once
/// are the first to be evicted. Reading files would not do: the writer goes past the cache, and a file under way ends
/// in preallocated zeros. Returns records.
fn read_all(reader: &mut Reader, known: u64) -> u64 {
    let mut records = 0;
    for pass in 0..2 * STREAMS {
        let mut query = reader.query(Select::Sequence { stream: (pass % STREAMS) as usize, first: 1, last: known });
        while query.step().expect("readable").is_some() {
            records += 1;
        }
    }
    records / 2
}

/// Microseconds of one query; the record found must be the one asked for.
fn query(reader: &mut Reader, stream: usize, sequence: u64) -> f64 {
    let started = Instant::now();
    let mut query = reader.query(Select::Sequence { stream, first: sequence, last: sequence });
    let step = query.step().expect("readable");
    let elapsed = started.elapsed();
    let Some(Step::Record(found)) = step else { panic!("{stream}/{sequence} is not there") };
    assert_eq!((found.header.sequence, found.body.len()), (sequence, BODY_BYTES));
    elapsed.as_secs_f64() * 1e6
}

fn report(name: &str, mut micros: Vec<f64>) {
    micros.sort_by(f64::total_cmp);
    for percent in [50.0, 99.0, 100.0] {
        let label = if percent == 100.0 { "max".into() } else { format!("p{percent}") };
        // One run of many queries: its percentile is one sample; `figures` runs this several times.
        common::figure(&format!("query/{name}/{label}"), "us", &[common::percentile(&micros, percent)]);
    }
}

/// Fills a store, says up to which sequence, and goes on at the feed's pace until told to stop. All on one thread: the
/// store's io_uring belongs to the thread that made it.
fn write(path: &Path, bytes: u64, segment_bytes: u64, filled: &Sender<u64>, stop: &AtomicBool) -> Closed {
    let settings = SyncSettings {
        segment_bytes,
        block_bytes: 256 << 10,
        blocks_in_flight: 64,
        direct: true,
        ..SyncSettings::default()
    };
    let mut store = SyncStore::create(path, settings).expect("a store");
    for stream in 0..STREAMS {
        store.stream_begin_key(StreamId(stream as u32), &format!("iex-tp/0x8004/1/{stream:#010x}/r0"));
    }
    let mut run = Vec::new();
    for _ in 0..RUN_MESSAGES {
        run.extend_from_slice(&(BODY_BYTES as u16).to_le_bytes());
        run.resize(run.len() + BODY_BYTES, 7);
    }
    let (mut round, started) = (0, Instant::now());
    while store.counters().written_bytes < bytes {
        append(&mut store, &run, round);
        round += 1;
    }
    store.flush().expect("written");
    println!("{} MB written in {:.1} s", store.counters().written_bytes / 1_000_000, started.elapsed().as_secs_f64());
    filled.send(round / STREAMS * u64::from(RUN_MESSAGES)).expect("the reader waits");

    let (started, first, before) = (Instant::now(), round, store.counters().written_bytes);
    let bytes_per_round = (run.len() + RECORD_HEADER_BYTES * RUN_MESSAGES as usize) as u64;
    while !stop.load(Ordering::Relaxed) {
        let due = started.elapsed().as_micros() as u64 * WRITE_BYTES_PER_SECOND / 1_000_000 / bytes_per_round;
        while round - first < due {
            append(&mut store, &run, round);
            round += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let written = store.counters().written_bytes - before;
    println!("{} MB written meanwhile, in {:.1} s", written / 1_000_000, started.elapsed().as_secs_f64());
    store.close().expect("sealed")
}

fn main() {
    let small = common::is_test();
    let (bytes, segment_bytes, warm, cold) =
        if small { (16 << 20, 4 << 20, 200, 5) } else { (STORE_BYTES, 1 << 30, WARM_QUERIES, COLD_QUERIES) };
    let folder = common::disk_folder();
    let path = folder.path().join("store");
    let (filled, known) = channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&path, bytes, segment_bytes, &filled, &stop));
        let known = known.recv().expect("the writer fills the store");
        queries(&path, known, warm, cold);
        stop.store(true, Ordering::Relaxed);
        let closed = writer.join().expect("the writer ends");
        assert!(closed.losses.is_empty(), "a figure with losses is none: {:?}", closed.losses);
    });
}

fn queries(path: &Path, known: u64, warm: usize, cold: usize) {
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    let mut pick = || (random.random_range(0..STREAMS) as usize, random.random_range(1..=known));
    let opened = Instant::now();
    let mut reader = Reader::open(path).expect("a store");
    common::figure("query/open", "us", &[opened.elapsed().as_secs_f64() * 1e6]);
    assert!(reader.is_live(), "the writer holds the store");

    let mut micros = Vec::with_capacity(cold);
    for _ in 0..cold {
        reader.drop_caches().expect("dropped");
        let (stream, sequence) = pick();
        micros.push(query(&mut reader, stream, sequence));
    }
    report("cold", micros);

    println!("{} records read into the page cache", read_all(&mut reader, known));
    let (mut micros, mut refreshes) = (Vec::with_capacity(warm), Vec::new());
    for number in 0..warm {
        if number % QUERIES_PER_REFRESH == QUERIES_PER_REFRESH - 1 {
            let started = Instant::now();
            reader.refresh().expect("readable");
            refreshes.push(started.elapsed().as_secs_f64() * 1e6);
        }
        let (stream, sequence) = pick();
        micros.push(query(&mut reader, stream, sequence));
    }
    report("warm", micros);
    if !refreshes.is_empty() {
        report("refresh", refreshes);
    }
}
