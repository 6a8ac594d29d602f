//! The ledger stream from a source's bytes to a verified ledger: runs of `sluice ledger bench`, each a figure's sample.
//!
//! Parts: `targets` (the shape that the figures are promised for: 14.5 MiB every 600 ms over 7.5 ms), `windows` (every window on every
//! link, and store and forward), `crowd` (64 subscribers), `replay`, `stretch` (whether a server makes the source slower). Each is run
//! three times, the cells of a part in turn, so that no cell has the machine's good minutes for itself. `--ledgers N` (or `SLUICE_BENCH_LEDGERS`, for
//! `cargo xtask bench figures`) makes runs shorter or longer; without a part all are run, with few ledgers. Links need root; without it their cells are said and left out.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{figure, is_test};
use serde_json::Value;
use sluice::ledger::synthetic::{Shape, write};
use sluice::sys::{clock, cpu};

mod common;

/// The program that is measured.
const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");
/// A ledger under stress, as a ledger node wrote it (58 chunks of 256 KiB).
const LEDGER_BYTES: usize = 15_196_160;
/// Runs of each cell.
const RUNS: usize = 3;
/// Ledgers of a run whose figure is promised, and of one that stands beside it.
const LEDGERS_TARGET: u32 = 500;
const LEDGERS_BESIDE: u32 = 150;
/// Ledgers of a run that only looks whether all is as it should be.
const LEDGERS_LOOK: u32 = 20;
/// The parts.
const PARTS: [&str; 5] = ["targets", "windows", "crowd", "replay", "stretch"];
/// What a ledger node writes at a time.
const FLUSH_BYTES: usize = 256 << 10;
/// A wait shorter than this is spun: a sleep may be half of it late.
const SLEEP_NS_MIN: i64 = 2_000_000;
/// Files that real metas are joined to: enough that no two ledgers in a row are equal.
const REAL_FILES: usize = 4;

/// What a run is asked for.
struct Cell {
    name: String,
    args: Vec<String>,
    ledgers: u32,
    /// (what of the JSON, name of the figure, unit's divisor in ns).
    figures: &'static [(&'static str, &'static str)],
}

/// Percentiles of delivery's relatives in ms, and the CPU of both ends.
const LIVE: &[(&str, &str)] = &[
    ("over/p50", "over_p50"),
    ("over/p90", "over_p90"),
    ("over/p99", "over_p99"),
    ("pipeline/p50", "pipeline_p50"),
    ("delivery/p50", "delivery_p50"),
    ("cpu", "cpu"),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--bench")).collect();
    if args.first().is_some_and(|arg| arg == "write") {
        return write_metas(&args[1..]);
    }
    let ledgers = args.iter().position(|arg| arg == "--ledgers").and_then(|at| args.get(at + 1).cloned());
    let ledgers = ledgers.or_else(|| std::env::var("SLUICE_BENCH_LEDGERS").ok());
    let ledgers = ledgers.map(|ledgers| ledgers.parse().expect("a number of ledgers"));
    let words: Vec<&str> = args.iter().map(String::as_str).filter(|arg| arg.parse::<u32>().is_err()).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.starts_with("--")).collect();
    let wanted: Vec<&str> = PARTS.into_iter().filter(|part| words.is_empty() || words.contains(part)).collect();
    // A look at everything is short; the parts by name are what figures are made of.
    let ledgers = if words.is_empty() { ledgers.or(Some(LEDGERS_LOOK)) } else { ledgers };
    let folder = common::disk_folder();
    for part in wanted {
        let cells = match part {
            "targets" => targets(folder.path()),
            "windows" => windows(),
            "crowd" => crowd(),
            "replay" => replay(),
            _ => {
                stretch(folder.path(), ledgers);
                continue;
            }
        };
        run_all(part, cells, ledgers, folder.path());
    }
}

/// What the machine is like, measured beside every part: a figure is worth what its minute was.
#[derive(Default)]
struct Control {
    /// Share of its time that a spinning CPU did not have, in gaps over 20 µs; %.
    lost: Vec<f64>,
    /// Gaps over 0.5 ms, per s and CPU.
    gaps: Vec<f64>,
    /// One core's XXH64 of 256 KiB that it has at hand; GB/s.
    xxh64: Vec<f64>,
    /// zstd, level 1, of a made-up chunk; µs.
    zstd: Vec<f64>,
}

impl Control {
    /// About two seconds on every CPU at once.
    fn look(&mut self) {
        let seconds = if is_test() { 0.05 } else { 2.0 };
        let spinning: Vec<_> =
            cpu::allowed().into_iter().map(|at| std::thread::spawn(move || gaps(at, seconds))).collect();
        for thread in spinning {
            let (lost_ns, long) = thread.join().expect("it spins");
            self.lost.push(lost_ns as f64 / (seconds * 1e9) * 100.0);
            self.gaps.push(f64::from(long) / seconds);
        }
        let mut chunk = vec![0; FLUSH_BYTES];
        write(1, Shape::Compressible, &mut chunk);
        let hash = median_ns(|| u64::from(xxhash_rust::xxh64::xxh64(&chunk, 0) == 0));
        self.xxh64.push(chunk.len() as f64 / hash);
        let (mut packer, mut packed) = (zstd::bulk::Compressor::new(1).expect("zstd"), vec![0; FLUSH_BYTES]);
        let pack = median_ns(|| packer.compress_to_buffer(&chunk, &mut packed).expect("fits") as u64);
        self.zstd.push(pack / 1e3);
    }

    fn tell(&self, part: &str) {
        for (name, unit, samples) in [
            ("lost", "%", &self.lost),
            ("gaps", "1/s", &self.gaps),
            ("xxh64", "GB/s", &self.xxh64),
            ("zstd_chunk", "us", &self.zstd),
        ] {
            figure(&format!("ledger/{part}/control/{name}"), unit, samples);
        }
    }
}

/// Time that a spinning CPU did not have: ns in gaps over 20 µs, and how many were over 0.5 ms.
fn gaps(at: usize, seconds: f64) -> (i64, u32) {
    assert!(cpu::pin(at), "CPU {at} is one of ours");
    let mut last = clock::monotonic_ns();
    let end = last + (seconds * 1e9) as i64;
    let (mut lost, mut long) = (0, 0);
    while last < end {
        let now = clock::monotonic_ns();
        if now - last > 20_000 {
            lost += now - last;
            long += u32::from(now - last > 500_000);
        }
        last = now;
    }
    (lost, long)
}

/// The median of some runs, ns.
fn median_ns(mut run: impl FnMut() -> u64) -> f64 {
    let mut times: Vec<f64> = (0..51)
        .map(|_| {
            let begin = clock::monotonic_ns();
            std::hint::black_box(run());
            (clock::monotonic_ns() - begin) as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

/// The shape of a ledger: bytes, window and interval.
fn shape(window: &str, interval: &str) -> String {
    match is_test() {
        // The same way, in a fraction of a second.
        true => "--synthetic-size 300000 --emit-window 2ms --synthetic-interval 20ms".into(),
        false => format!("--synthetic-size {LEDGER_BYTES} --emit-window {window} --synthetic-interval {interval}"),
    }
}

fn cell(name: &str, args: String, ledgers: u32, figures: &'static [(&'static str, &'static str)]) -> Cell {
    Cell { name: name.into(), args: words(&args), ledgers, figures }
}

/// What has a promise.
fn targets(folder: &Path) -> Vec<Cell> {
    let live =
        |name: &str, args: &str| cell(name, format!("{} --cpu {args}", shape("7500us", "600ms")), LEDGERS_TARGET, LIVE);
    let mut cells = vec![
        live("5gbit/zstd/open", "--link 5gbit --compress"),
        live("5gbit/zstd/never", "--link 5gbit --compress --spin never"),
        live("5gbit/raw/open", "--link 5gbit"),
        live("loopback/raw/open", ""),
    ];
    match real_metas(folder) {
        Some(directory) => {
            let directory = directory.display();
            cells.push(live("5gbit/real/open", &format!("--link 5gbit --compress --file-dir {directory}")));
        }
        None => eprintln!("ledger: real metas: not measured: set SLUICE_DATA"),
    }
    cells
}

/// Every window on every link.
fn windows() -> Vec<Cell> {
    let mut cells = Vec::new();
    for window in ["5ms", "7500us", "15ms"] {
        for (link, flag) in [("5gbit", "--link 5gbit"), ("loopback", "")] {
            for (codec, packed) in [("zstd", "--compress"), ("raw", ""), ("whole", "--baseline whole")] {
                let args = format!("{} --cpu {flag} {packed}", shape(window, "200ms"));
                cells.push(cell(&format!("{window}/{link}/{codec}"), args, LEDGERS_BESIDE, LIVE));
            }
        }
    }
    cells
}

/// 64 subscribers on loopback.
fn crowd() -> Vec<Cell> {
    let (subscribers, bytes) = if is_test() { (4, 100_000) } else { (64, 1 << 20) };
    let each = |codec: &str, packed: &str| {
        let args = format!(
            "--synthetic-size {bytes} --emit-window 7500us --synthetic-interval 200ms --subscribers {subscribers} --cpu {packed}"
        );
        cell(
            &format!("{subscribers}/{codec}"),
            args,
            LEDGERS_BESIDE,
            &[("last/p50", "last_p50"), ("last/p99", "last_p99"), ("cpu", "cpu")],
        )
    };
    vec![each("raw", ""), each("zstd", "--compress")]
}

/// From retention, as fast as it goes.
fn replay() -> Vec<Cell> {
    let bytes = if is_test() { 300_000 } else { LEDGER_BYTES };
    let each = |shape: &str, packed: &str| {
        let args =
            format!("--synthetic-size {bytes} --emit-window 0ms --synthetic-interval 20ms --replay --cpu {packed}");
        cell(shape, args, 100, &[("rate", "rate"), ("cpu", "cpu")])
    };
    vec![each("compressible", "--compress"), each("noise", "")]
}

/// Runs the cells in turn, and reports each figure's samples.
fn run_all(part: &str, cells: Vec<Cell>, ledgers: Option<u32>, folder: &Path) {
    let mut control = Control::default();
    let mut samples: Vec<Vec<Vec<f64>>> = cells.iter().map(|cell| vec![Vec::new(); cell.figures.len()]).collect();
    for _ in 0..if is_test() { 1 } else { RUNS } {
        for (cell, samples) in cells.iter().zip(&mut samples) {
            let count = if is_test() { 5 } else { ledgers.unwrap_or(cell.ledgers) };
            control.look();
            let Some(json) = run(&cell.name, &cell.args, count, folder) else { continue };
            for ((what, _), samples) in cell.figures.iter().zip(samples) {
                samples.extend(value(&json, what));
            }
        }
    }
    control.tell(part);
    for (cell, samples) in cells.iter().zip(&samples) {
        for ((what, name), samples) in cell.figures.iter().zip(samples).filter(|(_, samples)| !samples.is_empty()) {
            let unit = if *what == "rate" { "GB/s" } else { "ms" };
            figure(&format!("ledger/{part}/{}/{name}", cell.name), unit, samples);
        }
    }
}

/// One run's JSON; `None`, having said why, when it was not clean.
fn run(name: &str, args: &[String], count: u32, folder: &Path) -> Option<Value> {
    if args.iter().any(|arg| arg == "--link") && !nix::unistd::geteuid().is_root() {
        eprintln!("ledger: {name}: not measured: a link takes root");
        return None;
    }
    let mut command = Command::new(SLUICE);
    command.args(["ledger", "bench", "--json", "--count", &count.to_string()]).args(args).env("TMPDIR", folder);
    let output = command.output().expect("the program runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {told}", output.status);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    eprintln!("ledger: {name}: {json}");
    assert_eq!((&json["count"], &json["checksum_failures"]), (&count.into(), &0.into()), "{command:?}");
    Some(json)
}

/// A figure of a run: ms, or GB/s.
fn value(json: &Value, what: &str) -> Option<f64> {
    let ns = |value: &Value| value.as_f64();
    match what {
        "cpu" => {
            let cpu = &json["cpu_per_ledger"];
            Some((ns(&cpu["server_ns"])? + ns(&cpu["client_ns"])?) / 1e6)
        }
        "rate" => Some(ns(&json["bytes"])? / ns(&json["elapsed_ns"])?),
        path => {
            let (of, percent) = path.split_once('/')?;
            Some(ns(&json[of][percent])? / 1e6)
        }
    }
}

/// Whether a server makes its source slower: a command writes ledgers on a schedule to a pipe that nobody but the harness reads
/// (`localtap`), and to one that a server serves; in turn. What it writes is the same; the figure is the ratio of the windows.
fn stretch(folder: &Path, ledgers: Option<u32>) {
    let (bytes, interval, count) = if is_test() { (300_000, 20, 5) } else { (LEDGER_BYTES, 200, 300) };
    let count = if is_test() { count } else { ledgers.unwrap_or(count) };
    let program = std::env::current_exe().expect("this program");
    // A few more than are looked at, so that no run ends with the pipe.
    let writer = format!("{} write {bytes} 7500 {interval} {}", program.display(), count + 5);
    let tap = words("--mode localtap --pipe-cmd");
    let serve = words(&format!("--emit-window 7500us --synthetic-interval {interval}ms --compress --pipe-cmd"));
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    let mut control = Control::default();
    for _ in 0..if is_test() { 1 } else { RUNS } {
        control.look();
        let mut windows = [&tap, &serve].map(|args| {
            let args = [args.clone(), vec![writer.clone()]].concat();
            let json = run("stretch", &args, count, folder).expect("needs no root");
            ["t_emit/p50", "t_emit/p99"].map(|what| value(&json, what).expect("windows"))
        });
        let [[bare_p50, bare_p99], [served_p50, served_p99]] = &mut windows;
        p50.push((*served_p50 / *bare_p50 - 1.0) * 100.0);
        p99.push((*served_p99 / *bare_p99 - 1.0) * 100.0);
    }
    control.tell("stretch");
    figure("ledger/stretch/p50", "%", &p50);
    figure("ledger/stretch/p99", "%", &p99);
}

/// `write BYTES WINDOW_US INTERVAL_MS COUNT`: what a ledger node writes to descriptor 3: framed metas, each in flushes of 256 KiB
/// over a window, on a grid.
fn write_metas(args: &[String]) {
    let number = |at: usize| args[at].parse::<i64>().expect("a number");
    let (bytes, window_ns, interval_ns, count) =
        (number(0) as usize, number(1) * 1_000, number(2) * 1_000_000, number(3) as u32);
    let mut pipe = file_of_descriptor_3();
    let start = clock::monotonic_ns();
    for sequence in 1..=count {
        let record = framed_meta(sequence, bytes);
        let begin = start + interval_ns * i64::from(sequence);
        for (index, flush) in record.chunks(FLUSH_BYTES).enumerate() {
            let due = begin + window_ns * (index * FLUSH_BYTES) as i64 / record.len() as i64;
            // The pause between two ledgers is slept, the window is not.
            while let left @ 1.. = due - clock::monotonic_ns() {
                match left > SLEEP_NS_MIN {
                    true => clock::sleep(Duration::from_nanos((left - SLEEP_NS_MIN / 2) as u64)),
                    false => std::hint::spin_loop(),
                }
            }
            if pipe.write_all(flush).is_err() {
                // Whoever measured has seen enough.
                return;
            }
        }
    }
}

fn file_of_descriptor_3() -> std::fs::File {
    // The descriptor's own path needs no unsafe code.
    std::fs::OpenOptions::new().write(true).open("/proc/self/fd/3").expect("descriptor 3 is a pipe")
}

/// A record mark, a header of version 0, and bytes that compress about as metas do.
fn framed_meta(sequence: u32, bytes: usize) -> Vec<u8> {
    let header: Vec<u32> = [vec![0], vec![7; 27], vec![0, 0], vec![8; 16], vec![sequence]].concat();
    let header: Vec<u8> = header.into_iter().flat_map(u32::to_be_bytes).collect();
    let mut record = sluice::ledger::rpc::mark(bytes).to_vec();
    record.resize(4 + bytes, 0);
    write(sequence, Shape::Compressible, &mut record[4..]);
    record[4..4 + header.len()].copy_from_slice(&header);
    record
}

/// A directory of ledgers of the measured size that are made of real metas, one after the other.
fn real_metas(folder: &Path) -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let data = std::env::var_os("SLUICE_DATA").map_or(root, PathBuf::from).join("stellar");
    let mut files: Vec<PathBuf> = ["lcm", "framed"]
        .iter()
        .filter_map(|name| std::fs::read_dir(data.join(name)).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        // It holds the others once more.
        .filter(|path| !path.ends_with("all-kept-lcm.framed.xdr"))
        .collect();
    files.sort();
    let mut pool = Vec::new();
    for path in &files {
        let bytes = std::fs::read(path).ok()?;
        match path.extension().is_some_and(|extension| extension == "zstd") {
            true => pool.extend(zstd::stream::decode_all(&bytes[..]).ok()?),
            false => pool.extend(bytes),
        }
    }
    if pool.is_empty() {
        return None;
    }
    let bytes = if is_test() { 300_000 } else { LEDGER_BYTES };
    let directory = folder.join("real");
    std::fs::create_dir_all(&directory).expect("a folder");
    for file in 0..REAL_FILES {
        let from = pool.len() / REAL_FILES * file;
        let ledger: Vec<u8> = pool[from..].iter().chain(pool.iter().cycle()).take(bytes).copied().collect();
        std::fs::write(directory.join(format!("ledger-{}.xdr", file + 1)), ledger).expect("written");
    }
    Some(directory)
}
