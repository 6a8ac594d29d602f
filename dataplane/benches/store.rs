//! The store: what a record costs to append and checksum, what reaches preallocated tmpfs, what a query takes.
//!
//! `cargo bench --bench store`; with `-- --test` each runs once, small.

use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sluice::store::{
    Op, Reader, RecordMeta, SegmentGrant, Select, StampSource, Step, StoreWriter, SyncPolicy, SyncSettings, SyncStore,
    WriterSettings,
};
use sluice::units::{Side, StreamId};
use sluice::wire::block::SegmentInfo;
use sluice::wire::segment::Framing;

const KEY: &str = "iex-tp/0x8004/1/0x43810000/r0";
/// Record bodies of the figures, and the mean message of a real capture.
const BODIES: [usize; 3] = [40, 149, 1024];
/// Messages that the benchmarks put into one segment.
const RUN: u32 = 8;

fn is_test() -> bool {
    // `cargo bench` says `--bench`; anything else is a test run, which is small.
    !std::env::args().any(|arg| arg == "--bench") || std::env::args().any(|arg| arg == "--test")
}

/// Bytes appended per iteration.
fn batch_bytes() -> usize {
    if is_test() { 1 << 20 } else { 64 << 20 }
}

/// A place in memory, so that the disk is not what is measured.
fn memory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap()
}

fn run_of(body: usize) -> Vec<u8> {
    let mut run = Vec::new();
    for _ in 0..RUN {
        run.extend_from_slice(&(body as u16).to_le_bytes());
        run.resize(run.len() + body, 7);
    }
    run
}

/// Completes every write at once: the machine alone.
fn drain(writer: &mut StoreWriter<Vec<u8>>, number: &mut u64) {
    while let Some(op) = writer.next_op() {
        match op {
            Op::NextSegment => {
                *number += 1;
                let info = SegmentInfo {
                    uuid: [1; 16],
                    number: *number,
                    created_ns: 0,
                    block_bytes: 1 << 20,
                    stamp_source: StampSource::Software,
                };
                writer.segment_ready(SegmentGrant { info, begin: 4096 }, 0);
            }
            Op::Write { slot, bytes, .. } => writer.on_write(slot, Ok(bytes), 0),
            Op::Sync { segment } => writer.on_sync(segment, Ok(()), 0),
            Op::Seal { segment, .. } => writer.on_sealed(segment, Ok(()), 0),
            Op::Discard { .. } => {}
        }
    }
}

fn machine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("store/machine");
    for body in BODIES {
        let settings = WriterSettings { sync: SyncPolicy::Never, ..WriterSettings::default() };
        let mut writer = StoreWriter::new(settings, vec![vec![0; settings.block_bytes]; 8]);
        writer.stream_begin(StreamId(0), KEY);
        let (mut sequence, mut number, run) = (1, 0, run_of(body));
        drain(&mut writer, &mut number);
        let count = batch_bytes() / body;
        group.throughput(Throughput::Bytes((count / RUN as usize * RUN as usize * body) as u64));
        group.bench_with_input(BenchmarkId::new("run", body), &body, |bencher, _| {
            bencher.iter(|| {
                for _ in 0..count / RUN as usize {
                    let meta = RecordMeta::message(StreamId(0), Side::A, sequence, sequence as i64);
                    writer.append_run(&meta, RUN, Framing::U16Le, &run, 0).unwrap();
                    sequence += u64::from(RUN);
                    if writer.has_ops() {
                        drain(&mut writer, &mut number);
                    }
                }
            });
        });
        group.bench_with_input(BenchmarkId::new("single", body), &body, |bencher, _| {
            bencher.iter(|| {
                for _ in 0..count / RUN as usize * RUN as usize {
                    let meta = RecordMeta::message(StreamId(0), Side::A, sequence, sequence as i64);
                    writer.append(&meta, &run[2..2 + body], 0).unwrap();
                    sequence += 1;
                    if writer.has_ops() {
                        drain(&mut writer, &mut number);
                    }
                }
            });
        });
    }
    group.finish();
}

fn open(path: &Path, uring: bool, block_bytes: usize, single_bytes: u64) -> SyncStore {
    let settings = SyncSettings { block_bytes, uring, single_bytes, segment_bytes: 1 << 30, ..SyncSettings::default() };
    let mut store = SyncStore::create(path, settings).unwrap();
    store.stream_begin_key(StreamId(0), KEY);
    store
}

fn append_runs(store: &mut SyncStore, sequence: &mut u64, run: &[u8], runs: usize) {
    for _ in 0..runs {
        let meta = RecordMeta::message(StreamId(0), Side::A, *sequence, *sequence as i64);
        store.append_run(&meta, RUN, Framing::U16Le, run).unwrap();
        *sequence += u64::from(RUN);
    }
}

/// CPU time of this thread: other work on the machine does not count.
fn cpu() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Into a file whose pages are there already: creating and sealing are the helper thread's, not the worker's.
fn tmpfs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("store/tmpfs_cpu");
    group.sample_size(10);
    for (name, uring) in [("uring", true), ("pwrite", false)] {
        for block in [256 << 10, 1 << 20] {
            for body in [149, 1024] {
                let run = run_of(body);
                let runs = 4 * batch_bytes() / body / RUN as usize;
                group.throughput(Throughput::Bytes((runs * RUN as usize * body) as u64));
                let id = BenchmarkId::new(format!("{name}/{}k", block >> 10), body);
                group.bench_with_input(id, &body, |bencher, _| {
                    bencher.iter_custom(|times| {
                        let mut taken = Duration::ZERO;
                        for _ in 0..times {
                            let directory = memory();
                            let path = directory.path().join("one.tri");
                            let mut store = open(&path, uring, block, 8 * batch_bytes() as u64);
                            let (mut sequence, begun) = (1, cpu());
                            append_runs(&mut store, &mut sequence, &run, runs);
                            store.flush().unwrap();
                            taken += cpu() - begun;
                            store.close().unwrap();
                        }
                        taken
                    });
                });
            }
        }
    }
    group.finish();
}

fn filled(bytes: usize) -> (tempfile::TempDir, PathBuf, u64) {
    let directory = memory();
    let path = directory.path().join("store");
    let mut store = open(&path, true, 1 << 20, 0);
    let (mut sequence, run) = (1, run_of(149));
    append_runs(&mut store, &mut sequence, &run, bytes / 149 / RUN as usize);
    store.close().unwrap();
    (directory, path, sequence - 1)
}

fn query(criterion: &mut Criterion) {
    let (_keep, path, last) = filled(if is_test() { 4 << 20 } else { 2 << 30 });
    let mut reader = Reader::open(&path).unwrap();
    let mut at = 1u64;
    criterion.bench_function("store/query/sequence_warm", |bencher| {
        bencher.iter(|| {
            at = (at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)) % last + 1;
            let mut query = reader.query(Select::Sequence { stream: 0, first: at, last: at });
            let Some(Step::Record(found)) = query.step().unwrap() else { panic!("{at} is not there") };
            assert_eq!(found.header.sequence, at);
        });
    });
}

criterion_group!(benches, machine, tmpfs, query);
criterion_main!(benches);
