//! `cargo xtask bench figures`: every figure that has a target, measured, beside its target; the record of it.
//!
//! A record is only written from an idle machine: what a busy one says is printed and thrown away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::{machine, shell};

/// Load above which nothing is recorded: less than one process was runnable on average in the minute before.
pub const LOAD_MAX: f64 = 1.0;
/// Stolen CPU time, in percent of all, above which nothing is recorded: where reviewers of such figures draw the line.
pub const STEAL_PERCENT_MAX: f64 = 0.5;
/// How long to wait for the load of the build to fade: the one-minute average falls below 1 in about two.
const IDLE_PATIENCE: Duration = Duration::from_secs(240);
/// Runs of a program that reports one value a run.
const REPEATS: usize = 7;
/// Runs of the queries: each makes a store of 10 GB.
const QUERY_REPEATS: usize = 3;
/// Passes over the day in one replay: about a second.
const REPLAY_LOOPS: &str = "100";

/// What a figure must reach.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// Stands beside another.
    None,
}

use Target::{AtLeast, AtMost};

/// One figure of the table: its source's name, what it says, its unit, its target.
struct Row(&'static str, &'static str, &'static str, Target);

/// The table. Names: a criterion id, or what a program of `bench/` or a function here reports.
const ROWS: &[Row] = &[
    Row("wire/udp_fast_cached_per_frame", "Ethernet/IP/UDP, fast path, batch in cache", "ns/frame", AtMost(2.0)),
    Row("wire/udp_general_cached_per_frame", "  the general path beside it", "ns/frame", Target::None),
    Row("wire/udp_fast_per_frame", "Ethernet/IP/UDP, fast path, whole day", "ns/frame", AtMost(2.0)),
    Row("wire/udp_general_per_frame", "  the general path beside it", "ns/frame", Target::None),
    Row("replay/parse_gap", "parse + gap", "ns/packet", AtMost(10.0)),
    Row("replay/decoded_packet", "parse + gap + full decode", "ns/packet", AtMost(20.0)),
    Row("replay/decoded_message", "  the same by message", "ns/message", AtMost(12.0)),
    Row("replay/one_core", "replay on one core", "Mpackets/s", Target::None),
    Row("replay/two_cores", "replay on two cores", "Mpackets/s", Target::None),
    Row("arbiter/clean", "arbiter, two clean sides", "ns/packet", AtMost(25.0)),
    Row("arbiter/lag_20_packets", "arbiter, side B 20 packets behind", "ns/packet", AtMost(25.0)),
    Row("arbiter/loss_2_percent", "arbiter, 2 % lost on each side", "ns/packet", AtMost(25.0)),
    Row("pipeline/rx_arbiter_store/two_sides", "rx + arbiter + store, two sides, CPU", "ns/packet", AtMost(120.0)),
    Row("pipeline/rx_arbiter_store/one_side", "rx + arbiter + store, one side, CPU", "ns/packet", AtMost(120.0)),
    Row("pipeline/rx_arbiter/two_sides", "  of it without the store", "ns/packet", Target::None),
    Row("pipeline/source_alone", "  of it the memory source", "ns/packet", Target::None),
    Row("store_worker/message/149/core_cpu", "store worker to tmpfs, 149 B, its core's CPU time", "GB/s", AtLeast(2.5)),
    Row("store_worker/message/149/own_core", "  wall time, the kernel's workers elsewhere", "GB/s", AtLeast(2.5)),
    Row("store_worker/message/149/one_cpu", "  wall time, everything on one CPU", "GB/s", AtLeast(2.5)),
    Row("store_worker/raw/149/own_core", "  raw frames, the kernel's workers elsewhere", "GB/s", Target::None),
    Row(
        "store_worker/message/1024/core_cpu",
        "store worker to tmpfs, 1 KiB, its core's CPU time",
        "GB/s",
        AtLeast(3.5),
    ),
    Row("store_worker/message/1024/own_core", "  wall time, the kernel's workers elsewhere", "GB/s", AtLeast(3.5)),
    Row("store_worker/message/1024/one_cpu", "  wall time, everything on one CPU", "GB/s", AtLeast(3.5)),
    Row("store_worker/raw/1024/own_core", "  raw frames, the kernel's workers elsewhere", "GB/s", Target::None),
    Row("disk/store_of_fio", "store to disk, of fio's rate", "%", AtLeast(85.0)),
    Row("disk/store", "  the store's rate", "MB/s", Target::None),
    Row("disk/fio", "  fio's rate", "MB/s", Target::None),
    Row("query/warm/p99", "query in 10 GB while writing, warm, p99", "us", AtMost(100.0)),
    Row("query/warm/p50", "  p50", "us", Target::None),
    Row("query/cold/p99", "query in 10 GB while writing, cold, p99", "us", AtMost(10_000.0)),
    Row("query/cold/p50", "  p50", "us", Target::None),
    Row("query/cold/max", "  longest of 500", "us", Target::None),
    Row("query/open", "  opening the store", "us", Target::None),
    Row("query/refresh/p99", "  looking for what was written since, p99", "us", Target::None),
    Row("xdp/stamped", "XDP program with metadata", "ns/frame", AtMost(90.0)),
    Row("xdp/bare", "XDP program without", "ns/frame", AtMost(60.0)),
    Row("live/1_side/400k/lost", "whole pipeline, 400,000 frames/s for 10 s, lost", "ppm", AtMost(0.0)),
    Row("live/2_side/400k/lost", "  the same as two sides of 200,000", "ppm", AtMost(0.0)),
    Row("live/1_side/400k/reached", "  the rate that the player reached", "frames/s", Target::None),
];

/// The same for rings: a figure for each placement, size, load and transport.
fn ring_rows() -> Vec<(String, String, &'static str, Target)> {
    let mut rows = Vec::new();
    let mut row = |name: String, what: String, unit, target| rows.push((name, what, unit, target));
    for placement in ["near", "far"] {
        for bytes in [56, 64] {
            let at = format!("ring/{placement}/{bytes}/sluice");
            let what = |text: &str| format!("hand-off, {bytes} B, {placement}: {text}");
            row(format!("{at}/rtt_of_floor"), what("round trip of the floor's"), "x", AtMost(1.05));
            row(format!("{at}/paced_of_floor"), what("one way, paced, of the floor's"), "x", AtMost(1.2));
            row(format!("{at}/single_of_ringfire"), what("single records of ringfire's"), "x", AtLeast(1.0));
            row(format!("{at}/batch_of_ringfire"), what("batches of ringfire's"), "x", AtLeast(1.2));
            row(format!("{at}/rtt_p50"), "  round trip / 2".into(), "ns", Target::None);
            row(format!("{at}/paced_p50"), "  one way, paced".into(), "ns", Target::None);
            row(format!("{at}/single"), "  single records".into(), "M/s", Target::None);
        }
    }
    for load in ["1k", "10k", "50k", "100k", "500k", "1m"] {
        let slow = ["1k", "10k"].contains(&load);
        let of = |kind: &str, measure: &str| format!("ring-mirror/{load}/udp/{kind}/{measure}");
        let what = |text: &str| format!("mirror over UDP, {load}/s: {text}");
        row(of("sluice-inline", "p50"), what("inline p50"), "us", AtMost(if slow { 4.5 } else { 10.0 }));
        row(of("sluice-inline", "p99"), what("inline p99"), "us", AtMost(if slow { 8.0 } else { 14.0 }));
        match slow {
            true => row(of("sluice", "p50_of_floor"), what("separate p50 of the floor's"), "x", AtMost(1.1)),
            false => row(of("sluice", "p50"), what("separate p50"), "us", AtMost(12.0)),
        }
        row(of("sluice", "p99"), what("separate p99"), "us", AtMost(if slow { 14.0 } else { 16.0 }));
        row(of("floor-separate", "p50"), "  the floor's p50".into(), "us", Target::None);
        row(of("ringfire-linger0", "p50"), "  ringfire's p50, pacing off".into(), "us", Target::None);
        let tcp = format!("ring-mirror/{load}/tcp/sluice/p50_of_udp");
        row(tcp, format!("mirror over TCP, {load}/s: p50 of UDP's"), "x", AtMost(1.3));
        let parked = format!("ring-parked/{load}/udp/sluice-parked/p50_of_floor");
        row(parked, format!("four sleeping processes, {load}/s: p50 of the floor's"), "x", AtMost(1.4));
        let hub = format!("ring-hub/{load}/udp/sluice-hub/p50_less_two_direct");
        row(hub, format!("leaf behind a hub, {load}/s: p50 less twice the direct"), "us", AtMost(5.0));
    }
    for kind in ["sluice", "sluice-inline"] {
        let name = format!("ring-even-rates/even-100k/udp/{kind}/p50_of_20k");
        row(name, format!("{kind}, single records at 100,000/s of 20,000/s"), "x", AtMost(2.0));
    }
    for transport in ["tcp", "udp", "multicast"] {
        for load in ["1k", "10k", "50k", "100k", "200k", "500k", "1m"] {
            let name = format!("ring-ladder/{load}/{transport}/sluice/delivered");
            row(name, format!("ladder, {transport}, {load}/s for 5 s: delivered"), "%", AtLeast(100.0));
        }
    }
    rows
}

/// The same for ledgers: what is promised, then what stands beside it.
fn ledger_rows() -> Vec<(String, String, &'static str, Target)> {
    let mut rows = Vec::new();
    let mut row =
        |name: &str, what: &str, unit, target| rows.push((format!("ledger/{name}"), what.into(), unit, target));
    let over = "pipeline less the 7.5 ms window";
    for (cell, what, p50, p99, cpu) in [
        ("5gbit/zstd/open", "5 Gbit/s, zstd", AtMost(0.2), AtMost(1.0), AtMost(24.0)),
        ("5gbit/zstd/never", "5 Gbit/s, zstd, parked", AtMost(0.6), Target::None, AtMost(12.0)),
        ("5gbit/real/open", "5 Gbit/s, real metas", AtMost(0.4), Target::None, Target::None),
        ("5gbit/real/never", "5 Gbit/s, real metas, parked", Target::None, Target::None, Target::None),
        ("loopback/raw/open", "loopback, raw", AtMost(0.1), Target::None, Target::None),
    ] {
        row(&format!("targets/{cell}/over_p50"), &format!("{what}: {over}, p50"), "ms", p50);
        row(&format!("targets/{cell}/over_p99"), "  p99", "ms", p99);
        row(&format!("targets/{cell}/cpu"), "  CPU of both ends a ledger", "ms", cpu);
    }
    let raw = "targets/5gbit/raw/open";
    // The wire's limit is 25.6 ms: 25.4 ms of payload at 0.956 of the rate, the last chunk's constants; 3 % above it.
    row(&format!("{raw}/pipeline_p50"), "5 Gbit/s, raw: pipeline, p50", "ms", AtMost(25.6 * 1.03));
    row(&format!("{raw}/delivery_p50"), "  delivery, p50", "ms", Target::None);
    row(&format!("{raw}/cpu"), "  CPU of both ends a ledger", "ms", Target::None);
    row("stretch/p99", "t_emit with a server, longer than without, p99", "%", AtMost(2.0));
    row("stretch/p50", "  p50", "%", Target::None);
    for (codec, most) in [("raw", 40.0), ("zstd", 15.0)] {
        row(
            &format!("crowd/64/{codec}/last_p99"),
            &format!("64 subscribers, {codec}: the last, p99"),
            "ms",
            AtMost(most),
        );
        row(&format!("crowd/64/{codec}/last_p50"), "  p50", "ms", Target::None);
        row(&format!("crowd/64/{codec}/cpu"), "  CPU of both ends a ledger", "ms", Target::None);
    }
    for (shape, least) in [("compressible", 3.0), ("noise", 1.0)] {
        row(&format!("replay/{shape}/rate"), &format!("replay from retention, {shape}"), "GB/s", AtLeast(least));
        row(&format!("replay/{shape}/cpu"), "  CPU of both ends a ledger", "ms", Target::None);
    }
    for window in ["5ms", "7500us", "15ms"] {
        for link in ["5gbit", "loopback"] {
            for codec in ["zstd", "raw", "whole"] {
                let cell = format!("windows/{window}/{link}/{codec}");
                let what = format!("window {window}, {link}, {codec}: pipeline less the window, p50");
                row(&format!("{cell}/over_p50"), &what, "ms", Target::None);
                row(&format!("{cell}/over_p99"), "  p99", "ms", Target::None);
                row(&format!("{cell}/cpu"), "  CPU of both ends a ledger", "ms", Target::None);
            }
        }
    }
    rows
}

/// All rows.
fn rows() -> Vec<(String, String, &'static str, Target)> {
    let fixed = ROWS.iter().map(|Row(name, what, unit, target)| (name.to_string(), what.to_string(), *unit, *target));
    fixed.chain(ring_rows()).chain(ledger_rows()).collect()
}

/// Samples by name; a name's unit is the table's.
type Samples = BTreeMap<String, Vec<f64>>;

/// A part of the run: its name, and what measures it.
type Part = (&'static str, fn(&mut Run) -> Result<(), String>);

const PARTS: &[Part] = &[
    ("packet", |run| run.criterion("packet", &["wire/udp_fast", "wire/udp_general"])),
    ("arbiter", |run| run.criterion("arbiter", &["arbiter/"])),
    ("pipeline", |run| run.criterion("pipeline", &["pipeline/", "store_worker/"])),
    ("replay", Run::replay),
    ("xdp", Run::xdp),
    ("disk", |run| run.program("disk", &[], 1)),
    ("query", |run| run.program("query", &[], QUERY_REPEATS)),
    ("live", |run| run.program("live", &[], 1)),
    ("ring", |run| run.program("ring", &[], 1)),
    ("ring-mirror", |run| run.program("ring-mirror", &["mirror", "even-rates", "parked", "hub", "ladder"], 1)),
    ("ledger-targets", |run| run.program("ledger", &["targets"], 1)),
    ("ledger-windows", |run| run.program("ledger", &["windows"], 1)),
    ("ledger-crowd", |run| run.program("ledger", &["crowd"], 1)),
    ("ledger-replay", |run| run.program("ledger", &["replay"], 1)),
    ("ledger-stretch", |run| run.program("ledger", &["stretch"], 1)),
];

#[derive(Default)]
struct Run {
    samples: Samples,
    commands: Vec<String>,
    skipped: Vec<String>,
}

/// Measures; `only` keeps the parts whose name contains it.
pub fn run(only: Option<&str>) -> Result<(), String> {
    let parts: Vec<&Part> = PARTS.iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))).collect();
    if parts.is_empty() {
        let names: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
        return Err(format!("no part is named \"{}\": {}", only.unwrap_or_default(), names.join(", ")));
    }
    shell::run(&mut shell::cargo(&["bench", "-p", "sluice", "--no-run"]))?;
    shell::run(&mut shell::cargo(&["build", "--release", "-p", "sluice"]))?;
    let load = await_idle();
    let (before, mut run) = (machine::cpu_times(), Run::default());
    for (name, part) in &parts {
        eprintln!("figures: {name}");
        if let Err(what) = part(&mut run) {
            eprintln!("figures: {name}: {what}");
            run.skipped.push(format!("{name}: {what}"));
        }
    }
    let steal_percent = machine::steal_between(before, machine::cpu_times());
    print!("{}", run.table());
    for skipped in &run.skipped {
        println!("not measured: {skipped}");
    }
    println!("load before {load:.2}, steal {steal_percent:.2} %");
    if load > LOAD_MAX || steal_percent > STEAL_PERCENT_MAX {
        println!("not recorded: a record needs a load of at most {LOAD_MAX} and at most {STEAL_PERCENT_MAX} % steal");
        return Ok(());
    }
    let path = record_path(only);
    shell::write(&path, &format!("{:#}\n", run.record(load, steal_percent)))?;
    println!("recorded in {}", path.display());
    Ok(())
}

/// Waits for the load of the build to fade; the load found.
pub fn await_idle() -> f64 {
    let started = Instant::now();
    loop {
        let load = machine::load();
        if load <= LOAD_MAX || started.elapsed() > IDLE_PATIENCE {
            return load;
        }
        std::thread::sleep(Duration::from_secs(5));
    }
}

impl Run {
    fn add(&mut self, name: impl Into<String>, samples: impl IntoIterator<Item = f64>) {
        self.samples.entry(name.into()).or_default().extend(samples);
    }

    fn command(&mut self, command: &mut Command) -> Result<String, String> {
        let shown = shell::shown(command).replace(&data_folder().display().to_string(), "$SLUICE_DATA");
        if !self.commands.contains(&shown) {
            self.commands.push(shown);
        }
        shell::output(command)
    }

    /// A criterion file, and of its measurements those with these beginnings.
    fn criterion(&mut self, file: &str, wanted: &[&str]) -> Result<(), String> {
        let filter: Vec<String> = wanted.iter().map(|name| format!("^{name}")).collect();
        self.command(&mut shell::cargo(&["bench", "-p", "sluice", "--bench", file, "--", &filter.join("|")]))?;
        for found in criterion_samples(&shell::target_folder().join("criterion")) {
            if wanted.iter().any(|name| found.0.starts_with(name)) {
                self.add(found.0, found.1);
            }
        }
        Ok(())
    }

    /// A program of `bench/`, which says its figures itself.
    fn program(&mut self, name: &str, args: &[&str], repeats: usize) -> Result<(), String> {
        for _ in 0..repeats {
            let mut cargo = shell::cargo(&["bench", "-p", "sluice", "--bench", name, "--"]);
            let text = self.command(cargo.args(args))?;
            for line in text.lines() {
                match line.strip_prefix("figure ") {
                    Some(figure) => self.reported(figure)?,
                    None => eprintln!("  {line}"),
                }
            }
        }
        Ok(())
    }

    fn reported(&mut self, text: &str) -> Result<(), String> {
        let figure: Value = serde_json::from_str(text).map_err(|error| format!("\"{text}\": {error}"))?;
        let samples = figure["samples"].as_array().into_iter().flatten().filter_map(Value::as_f64);
        self.add(figure["name"].as_str().unwrap_or("?"), samples);
        Ok(())
    }

    fn replay(&mut self) -> Result<(), String> {
        let day = data_folder().join("iex/20180127_IEXTP1_TOPS1.6.pcap.gz");
        if !day.is_file() {
            return Err(format!("{} is not there: set SLUICE_DATA", day.display()));
        }
        let program = shell::target_folder().join("release/sluice");
        for _ in 0..REPEATS {
            for cores in ["1", "2"] {
                let mut command = shell::command(&program);
                command.args(["feed", "replay", "--json", "--loops", REPLAY_LOOPS, "--cores", cores]).arg(&day);
                let text = self.command(&mut command)?;
                let report: Value = serde_json::from_str(&text).map_err(|error| format!("feed replay: {error}"))?;
                self.replayed(&report, cores == "1");
            }
        }
        Ok(())
    }

    fn replayed(&mut self, report: &Value, one: bool) {
        let cores = report["cores"].as_array().map_or(&[][..], Vec::as_slice);
        let rate: f64 = cores.iter().filter_map(|core| core["packets_per_second"].as_f64()).sum();
        self.add(if one { "replay/one_core" } else { "replay/two_cores" }, [rate / 1e6]);
        let [core] = cores else { return };
        let stage = |name: &str| core["stage_ns_per_packet"][name]["mean"].as_f64().unwrap_or(f64::NAN);
        let number = |name: &str| core[name].as_f64().unwrap_or(f64::NAN);
        let parse_gap = stage("parse") + stage("gap");
        let decoded = parse_gap + stage("decode");
        self.add("replay/parse_gap", [parse_gap]);
        self.add("replay/decoded_packet", [decoded]);
        self.add("replay/decoded_message", [decoded * number("packets") / number("messages")]);
    }

    /// The kernel's own measurement of the program: the build of the tests does not matter.
    fn xdp(&mut self) -> Result<(), String> {
        if !shell::is_root() {
            return Err("needs root".into());
        }
        for _ in 0..2 {
            let mut cargo = shell::cargo(&["test", "-p", "sluice", "--all-features", "--test", "net", "--"]);
            cargo.args(["cost_of_the_program", "--ignored", "--nocapture"]);
            let text = self.command(&mut cargo)?;
            for (beginning, name) in [("stamp true: ", "xdp/stamped"), ("stamp false: ", "xdp/bare")] {
                let costs =
                    text.lines().filter_map(|line| line.split_once(beginning)?.1.split(' ').next()?.parse().ok());
                self.add(name, costs.collect::<Vec<f64>>());
            }
        }
        Ok(())
    }

    fn table(&self) -> String {
        let mut text =
            format!("{:<58} {:>10} {:>12}  {:<22} {}\n", "figure", "target", "median", "10 % … 90 %", "unit");
        for (name, what, unit, target) in rows() {
            let Some(found) = self.samples.get(&name).and_then(|samples| Spread::of(samples)) else { continue };
            let spread = format!("{} … {}", number(found.low), number(found.high));
            let verdict = if target.is_met(found.median) { "" } else { "  MISSED" };
            text += &format!(
                "{what:<58} {:>10} {:>12}  {spread:<22} {unit}{verdict}\n",
                target.shown(),
                number(found.median)
            );
        }
        text + &self.curve()
    }

    /// Loss by rate.
    fn curve(&self) -> String {
        let mut text = String::new();
        for (name, samples) in self.samples.iter().filter(|(name, _)| name.starts_with("live/")) {
            if let Some(found) = Spread::of(samples) {
                text += &format!("{name}: {} ({} … {})\n", number(found.median), number(found.low), number(found.high));
            }
        }
        text
    }

    fn record(&self, load: f64, steal_percent: f64) -> Value {
        let rows = rows();
        let figures = self.samples.iter().filter_map(|(name, samples)| {
            let found = Spread::of(samples)?;
            let row = rows.iter().find(|row| row.0 == *name);
            Some(json!({
                "name": name, "what": row.map(|row| row.1.trim()), "unit": row.map(|row| row.2),
                "target": row.map(|row| row.3.shown()), "met": row.map(|row| row.3.is_met(found.median)),
                "median": found.median, "p10": found.low, "p90": found.high, "samples": samples,
            }))
        });
        let mut record = host_facts();
        record["load_before"] = json!(load);
        record["steal_percent"] = json!(steal_percent);
        record["commands"] = json!(self.commands);
        record["not_measured"] = json!(self.skipped);
        record["figures"] = figures.collect::<Vec<_>>().into();
        record
    }
}

/// What stands beside every recorded result: when, what was measured, and where.
pub fn host_facts() -> Value {
    json!({
        "when": utc_now(), "commit": git(&["rev-parse", "HEAD"]), "changed": !git(&["status", "--porcelain"]).is_empty(),
        "host": first_line("/proc/sys/kernel/hostname"), "kernel": first_line("/proc/sys/kernel/osrelease"), "cpu": cpu_model(),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from), "kernel_settings": kernel_settings(),
        "compiler": shell::output(Command::new("rustc").arg("--version")).unwrap_or_default().trim(),
    })
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            AtMost(bound) => value <= bound,
            AtLeast(bound) => value >= bound,
            Target::None => true,
        }
    }

    fn shown(self) -> String {
        match self {
            AtMost(bound) => format!("≤ {bound}"),
            AtLeast(bound) => format!("≥ {bound}"),
            Target::None => String::new(),
        }
    }
}

/// Where the middle of the samples lies, and all but the lowest and the highest tenth.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Spread> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| sorted.get(((sorted.len() as f64 - 1.0) * part).round() as usize).copied();
        Some(Spread { low: at(0.1)?, median: at(0.5)?, high: at(0.9)? })
    }
}

/// Four digits that say something.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1_000.0 => format!("{value:.0}"),
        middle if middle >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Every measurement below criterion's folder: its id, and each sample in ns per element or GB/s.
fn criterion_samples(folder: &Path) -> Vec<(String, Vec<f64>)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()) {
        match path.file_name() == Some("new".as_ref()) {
            true => found.extend(criterion_measurement(&path)),
            false => found.extend(criterion_samples(&path)),
        }
    }
    found
}

fn criterion_measurement(folder: &Path) -> Option<(String, Vec<f64>)> {
    let read = |name: &str| serde_json::from_str::<Value>(&std::fs::read_to_string(folder.join(name)).ok()?).ok();
    let (about, sample) = (read("benchmark.json")?, read("sample.json")?);
    let each = |time: &Value, iterations: &Value| {
        let (time, iterations) = (time.as_f64()?, iterations.as_f64()?);
        let throughput = &about["throughput"];
        Some(match throughput["Bytes"].as_f64() {
            Some(bytes) => bytes * iterations / time,
            None => time / iterations / throughput["Elements"].as_f64().unwrap_or(1.0),
        })
    };
    let (times, iterations) = (sample["times"].as_array()?, sample["iters"].as_array()?);
    let samples = times.iter().zip(iterations).filter_map(|(time, iterations)| each(time, iterations)).collect();
    Some((about["full_id"].as_str()?.to_string(), samples))
}

/// The same by iteration: its id, and the ns of an iteration in each sample. Less is always better.
pub fn criterion_times(folder: &Path) -> Vec<(String, Vec<f64>)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()) {
        match path.file_name() == Some("new".as_ref()) {
            true => found.extend(iteration_times(&path)),
            false => found.extend(criterion_times(&path)),
        }
    }
    found
}

fn iteration_times(folder: &Path) -> Option<(String, Vec<f64>)> {
    let read = |name: &str| serde_json::from_str::<Value>(&std::fs::read_to_string(folder.join(name)).ok()?).ok();
    let (about, sample) = (read("benchmark.json")?, read("sample.json")?);
    let pairs = sample["times"].as_array()?.iter().zip(sample["iters"].as_array()?);
    let times = pairs.filter_map(|(time, iterations)| Some(time.as_f64()? / iterations.as_f64()?)).collect();
    Some((about["full_id"].as_str()?.to_string(), times))
}

fn data_folder() -> PathBuf {
    std::env::var_os("SLUICE_DATA").map_or_else(|| shell::root().join("../shared/data"), PathBuf::from)
}

/// A part's record stands beside that of the whole.
fn record_path(only: Option<&str>) -> PathBuf {
    let commit = git(&["rev-parse", "--short", "HEAD"]);
    let part = only.map(|only| format!("-{only}")).unwrap_or_default();
    shell::root().join(format!("bench/results/{}-{commit}{part}.json", &utc_now()[..10]))
}

pub fn git(args: &[&str]) -> String {
    shell::output(shell::command("git").args(args)).unwrap_or_default().trim().to_string()
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_string()
}

/// What of the kernel's command line bears on speed.
fn kernel_settings() -> String {
    const NAMES: [&str; 9] = [
        "mitigations",
        "isolcpus",
        "nohz",
        "rcu",
        "cpuidle",
        "idle",
        "intel_idle",
        "transparent_hugepage",
        "hugepages",
    ];
    let line = first_line("/proc/cmdline");
    let known = |word: &&str| NAMES.iter().any(|name| word.starts_with(name));
    line.split_whitespace().take_while(|&word| word != "--").filter(known).collect::<Vec<_>>().join(" ")
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let number = |name: &str| field(name).unwrap_or_default();
    format!("{}, family {} model {}", number("model name"), number("cpu family"), number("model"))
}

/// `2026-11-30T04:05:06Z`.
pub fn utc_now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days as i64);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

/// The date of a day since 1970-01-01, in the Gregorian calendar: eras of 400 years, years from March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_leaves_the_outer_tenths_out() {
        let samples: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&samples).expect("not empty");
        assert_eq!((spread.low, spread.median, spread.high), (10.0, 50.0, 90.0));
        assert!(Spread::of(&[]).is_none());
    }

    #[test]
    fn targets_are_met_at_their_bound() {
        assert!(AtMost(2.0).is_met(2.0) && !AtMost(2.0).is_met(2.01));
        assert!(AtLeast(2.5).is_met(2.5) && !AtLeast(2.5).is_met(2.49));
    }

    #[test]
    fn days_have_dates() {
        assert_eq!([0, 59, 11_016, 20_787].map(civil), [(1970, 1, 1), (1970, 3, 1), (2000, 2, 29), (2026, 11, 30)]);
    }

    #[test]
    fn a_replay_is_read() {
        let mut run = Run::default();
        let stages = json!({"parse": {"mean": 3.0}, "gap": {"mean": 4.0}, "decode": {"mean": 10.0}});
        let core = json!({"packets_per_second": 5e7, "packets": 10, "messages": 17, "stage_ns_per_packet": stages});
        run.replayed(&json!({"cores": [core]}), true);
        assert_eq!(run.samples["replay/parse_gap"], [7.0]);
        assert_eq!(run.samples["replay/decoded_message"], [10.0]);
        assert_eq!(run.samples["replay/one_core"], [50.0]);
    }
}
