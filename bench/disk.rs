//! The store's write rate on the disk beside fio's: same bytes, same disk, turn and turn about (A B, B A, A B, …), each
//! into fresh files. `cargo bench --bench disk`; needs fio.

// A measurement may read the clock; the product reads it in `sys::clock` alone.
#![allow(clippy::disallowed_methods)]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use sluice::store::{RecordMeta, SyncPolicy, SyncSettings, SyncStore};
use sluice::units::{Side, StreamId};
use sluice::wire::segment::Framing;

/// Pairs of runs: the disk of a virtual machine wanders by tens of percent from minute to minute.
const PAIRS: usize = 7;
/// Bytes of each run: several seconds, and bounded since the disk is shared.
const RUN_BYTES: u64 = 2 << 30;
/// Messages appended as one.
const RUN_MESSAGES: u32 = 8;
const BODY_BYTES: usize = 149;
/// A block and blocks in flight as `config/default.toml` has them.
const BLOCK_BYTES: usize = 256 << 10;
const BLOCKS: usize = 64;

/// Bytes a second that fio writes.
fn fio(folder: &Path, bytes: u64) -> Option<f64> {
    let file = folder.join("fio");
    let output = Command::new("fio")
        .args(["--name=store", "--rw=write", "--bs=1M", "--iodepth=8", "--ioengine=io_uring", "--direct=1"])
        .args(["--fallocate=posix", "--output-format=json"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--size={bytes}"))
        .output()
        .ok()?;
    let _ = std::fs::remove_file(&file);
    let text = String::from_utf8_lossy(&output.stdout);
    let json: serde_json::Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    json["jobs"][0]["write"]["bw_bytes"].as_f64()
}

/// Bytes a second that reach the store's files, records' bytes and headers alike.
fn store(folder: &Path, bytes: u64, direct: bool) -> f64 {
    let path = folder.join("store");
    let settings = SyncSettings {
        direct,
        block_bytes: BLOCK_BYTES,
        blocks_in_flight: BLOCKS,
        sync: SyncPolicy::Never,
        ..SyncSettings::default()
    };
    let mut store = SyncStore::create(&path, settings).expect("a store");
    store.stream_begin_key(StreamId(0), "iex-tp/0x8004/1/0x43810000/r0");
    let mut run = Vec::new();
    for _ in 0..RUN_MESSAGES {
        run.extend_from_slice(&(BODY_BYTES as u16).to_le_bytes());
        run.resize(run.len() + BODY_BYTES, 7);
    }
    let mut sequence = 1;
    let started = Instant::now();
    while store.counters().written_bytes < bytes {
        for _ in 0..256 {
            let meta = RecordMeta::message(StreamId(0), Side::A, sequence, sequence as i64);
            store.append_run(&meta, RUN_MESSAGES, Framing::U16Le, &run).expect("room");
            sequence += u64::from(RUN_MESSAGES);
        }
    }
    store.flush().expect("written");
    let rate = store.counters().written_bytes as f64 / started.elapsed().as_secs_f64();
    let closed = store.close().expect("sealed");
    assert!(closed.losses.is_empty(), "a figure with losses is none: {:?}", closed.losses);
    std::fs::remove_dir_all(&path).expect("removed");
    rate
}

fn main() {
    let small = common::is_test();
    let (pairs, bytes) = if small { (1, 8 << 20) } else { (PAIRS, RUN_BYTES) };
    let folder = common::disk_folder();
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (mut a, mut b) = (None, None);
        for first in [pair % 2 == 0, pair % 2 != 0] {
            if first {
                a = fio(folder.path(), bytes);
            } else {
                b = Some(store(folder.path(), bytes, !small));
            }
        }
        ours.extend(b);
        let (Some(a), Some(b)) = (a, b) else { continue };
        println!("pair {pair}: fio {:.0} MB/s, store {:.0} MB/s", a / 1e6, b / 1e6);
        theirs.push(a / 1e6);
        ratios.push(b / a * 100.0);
    }
    if theirs.is_empty() {
        println!("skipped the comparison: fio is not installed, or refused");
    }
    common::figure("disk/fio", "MB/s", &theirs);
    common::figure("disk/store", "MB/s", &ours.iter().map(|rate| rate / 1e6).collect::<Vec<_>>());
    common::figure("disk/store_of_fio", "%", &ratios);
}
