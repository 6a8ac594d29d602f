//! `cargo xtask bench peers`: ours beside what Debian and the crate registry offer, in one session, in shuffled order.
//!
//! Captures on a veth pair (`bench/peers/capture.py`) and rings between two processes (`bench/peers`, a workspace of its
//! own). Both print every trial as a line; here they become a record, tables with their spread, and plots.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::figures;
use super::plot::{self, Line, Range, Spread};
use super::stats::{self, Verdict};
use crate::{machine, shell};

/// Arguments of `cargo xtask bench peers`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this part: raw (captures beside one another), stages (our pipeline alone) or rings.
    #[arg(long, value_parser = PARTS)]
    only: Option<String>,
    /// Repeats of each cell. Fewer than 10 are no result to publish.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Two repeats of short trials, printed and not recorded: shows that it works.
    #[arg(long)]
    short: bool,
    /// Do not try to build Aeron (C source, cmake, libclang).
    #[arg(long)]
    without_aeron: bool,
    /// Make tables and plots anew from this record, and measure nothing.
    #[arg(long, value_name = "RECORD")]
    render: Option<PathBuf>,
}

const PARTS: [&str; 3] = ["raw", "stages", "rings"];
/// How long the C source of Aeron may build.
const AERON_PATIENCE: Duration = Duration::from_secs(600);
/// How long all trials of one program may take.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// The pairs that are one tool twice: their difference is the method's.
const CONTROLS: [(&str, &str); 1] = [("sluice", "sluice again")];

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    if let Some(path) = &args.render {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let record: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        return publish(&record, path);
    }
    let wanted = |part: &str| args.only.as_deref().is_none_or(|only| only == part);
    let mut record = figures::host_facts();
    let (mut trials, mut about) = (Vec::new(), Vec::new());
    let captures = wanted("raw") || wanted("stages");
    if captures && !shell::is_root() {
        return Err("captures need root (namespaces, XDP): run as root, or take --only rings".into());
    }
    shell::run(&mut shell::cargo(&["build", "--quiet", "--release", "-p", "sluice"]))?;
    let rings = if wanted("rings") { Some(build_rings(!args.without_aeron, &mut about)?) } else { None };
    let load = if args.short { machine::load() } else { figures::await_idle() };
    let before = machine::cpu_times();
    if captures {
        let tables = PARTS[..2].iter().filter(|part| wanted(part)).copied().collect::<Vec<_>>().join(",");
        read_trials(&mut capture_command(&args, &tables), &mut trials, &mut about)?;
    }
    if let Some(program) = rings {
        read_trials(&mut rings_command(&args, &program), &mut trials, &mut about)?;
    }
    record["load_before"] = json!(load);
    record["steal_percent"] = json!(machine::steal_between(before, machine::cpu_times()));
    record["label"] = json!("a virtual machine, veth: software paths, not a NIC");
    record["about"] = json!(about);
    record["trials"] = json!(trials);
    if args.short || args.only.is_some() {
        println!("{}", page(&record, "none: not recorded"));
        return Ok(());
    }
    let commit = figures::git(&["rev-parse", "--short", "HEAD"]);
    let path = shell::root().join(format!("bench/results/{}-{commit}-peers.json", &figures::utc_now()[..10]));
    shell::write(&path, &lines_of(&record))?;
    publish(&record, &path)
}

/// The record with a line for each trial: a difference of two records can be read.
fn lines_of(record: &Value) -> String {
    let mut head = record.clone();
    let trials = head["trials"].take();
    let rows: Vec<String> = trials.as_array().into_iter().flatten().map(Value::to_string).collect();
    format!("{head:#}\n").replace("\"trials\": null", &format!("\"trials\": [\n{}\n]", rows.join(",\n")))
}

fn capture_command(args: &Args, tables: &str) -> Command {
    let mut python = shell::command("python3");
    python.args(["bench/peers/capture.py", "--veth", "--tables", tables, "--sluice"]);
    python.arg(shell::target_folder().join("release/sluice"));
    python.arg("--out").arg(shell::target_folder().join("bench-peers"));
    match args.short {
        true => python.args(["--rates", "10k,20k", "--seconds", "0.2", "--rounds", "2", "--refutations", "1"]),
        false => python.args(["--rounds", &args.rounds.to_string()]),
    };
    python
}

fn rings_command(args: &Args, program: &Path) -> Command {
    let mut rings = shell::command(program);
    match args.short {
        true => rings.args(["2", "short"]),
        false => rings.arg(args.rounds.to_string()),
    };
    rings
}

/// Builds the rings' peers, with Aeron if that can be had in time; says so if not.
fn build_rings(aeron: bool, about: &mut Vec<Value>) -> Result<PathBuf, String> {
    let target = shell::target_folder().join("bench-peers-rings");
    let cargo = |features: &[&str]| {
        let mut cargo = shell::cargo(&["build", "--quiet", "--release", "--manifest-path", "bench/peers/Cargo.toml"]);
        cargo.args(features).env("CARGO_TARGET_DIR", &target);
        cargo
    };
    let program = target.join("release/sluice-bench-peers");
    if aeron {
        match within(&mut cargo(&["--features", "aeron"]), AERON_PATIENCE) {
            Ok(()) => return Ok(program),
            Err(why) => {
                eprintln!("peers: without Aeron: {why}");
                about.push(json!({"lacking": {"aeron": why}}));
            }
        }
    } else {
        about.push(json!({"lacking": {"aeron": "not asked for"}}));
    }
    shell::run(&mut cargo(&[]))?;
    Ok(program)
}

/// Runs a command that may take so long, and is ended otherwise.
fn within(command: &mut Command, patience: Duration) -> Result<(), String> {
    let line = shell::shown(command);
    eprintln!("$ {line}");
    let mut child = command.spawn().map_err(|error| format!("cannot start \"{line}\": {error}"))?;
    let started = Instant::now();
    loop {
        match child.try_wait().map_err(|error| format!("\"{line}\": {error}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("its build failed ({status})")),
            None if started.elapsed() > patience => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("its build took longer than {} s", patience.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Reads a program's `trial` and `about` lines as they come.
fn read_trials(command: &mut Command, trials: &mut Vec<Value>, about: &mut Vec<Value>) -> Result<(), String> {
    let line = shell::shown(command);
    eprintln!("$ {line}");
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("cannot start \"{line}\": {error}"))?;
    let started = Instant::now();
    for text in BufReader::new(child.stdout.take().expect("stdout is piped")).lines() {
        let text = text.map_err(|error| format!("\"{line}\": {error}"))?;
        let Some((kind, value)) = text.split_once(' ') else { continue };
        let Ok(mut value) = serde_json::from_str::<Value>(value) else { continue };
        match kind {
            "trial" => {
                // A record is of a method and a machine, not of one run's folders.
                if let Some(command) = value["command"].as_str().map(without_folders) {
                    value["command"] = json!(command);
                }
                eprintln!("  {}", brief(&value));
                trials.push(value);
            }
            "about" => about.push(value),
            _ => {}
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
        }
    }
    let status = child.wait().map_err(|error| format!("\"{line}\": {error}"))?;
    about.push(json!({"command": without_folders(&line), "seconds": started.elapsed().as_secs()}));
    status.success().then_some(()).ok_or_else(|| format!("\"{line}\" failed ({status})"))
}

fn brief(trial: &Value) -> String {
    let word = |name: &str| trial[name].as_str().unwrap_or_default().to_string();
    let figure = |name: &str| trial[name].as_f64().map(|value| format!(" {name} {}", figures::number(value)));
    let found: String = ["rate", "lost_ppm", "cpu_us_per_frame", "p50_ns", "p99_ns", "records_per_second"]
        .iter()
        .filter_map(|name| figure(name))
        .collect();
    let invalid = if trial["valid"] == true { String::new() } else { format!("; INVALID: {}", word("why")) };
    format!("{} {} {}:{found}{invalid}", word("table"), word("case"), word("tool"))
}

/// Trials of one table.
struct Table<'a> {
    trials: Vec<&'a Value>,
}

impl<'a> Table<'a> {
    fn of(record: &'a Value, name: &str) -> Table<'a> {
        let trials = record["trials"].as_array().into_iter().flatten();
        Table { trials: trials.filter(|trial| trial["table"] == name).collect() }
    }

    /// The trials in which all of these hold.
    fn with(&self, wanted: &[(&str, &Value)]) -> Table<'a> {
        let holds = |trial: &&&Value| wanted.iter().all(|(name, value)| trial[*name] == **value);
        Table { trials: self.trials.iter().filter(holds).copied().collect() }
    }

    /// Different values of a field, in the order in which they are sorted.
    fn values(&self, name: &str) -> Vec<Value> {
        let mut values: Vec<Value> =
            self.trials.iter().map(|trial| trial[name].clone()).filter(|value| !value.is_null()).collect();
        values.sort_by(|a, b| match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => text_of(a).cmp(&text_of(b)),
        });
        values.dedup();
        values
    }

    /// A figure of the valid trials.
    fn samples(&self, name: &str) -> Vec<f64> {
        self.trials.iter().filter(|trial| trial["valid"] == true).filter_map(|trial| trial[name].as_f64()).collect()
    }

    /// "12.3 (11.0 … 14.2)": median, lowest, highest; "–" without a valid trial.
    fn cell(&self, name: &str, scale: f64) -> String {
        let samples = self.samples(name);
        let number = |value: f64| figures::number(value * scale);
        match samples.is_empty() {
            true => "–".into(),
            false => format!(
                "{} ({} … {})",
                number(stats::median(&samples)),
                number(stats::quantile(&samples, 0.0)),
                number(stats::quantile(&samples, 1.0))
            ),
        }
    }

    fn spread(&self, name: &str) -> Option<Spread> {
        let samples = self.samples(name);
        (!samples.is_empty()).then(|| Spread {
            lowest: stats::quantile(&samples, 0.0),
            middle: stats::median(&samples),
            highest: stats::quantile(&samples, 1.0),
        })
    }

    fn range(&self, label: &str, name: &str) -> Option<Range> {
        let (samples, spread) = (self.samples(name), self.spread(name)?);
        let (low, high) = (stats::quantile(&samples, 0.25), stats::quantile(&samples, 0.75));
        Some(Range {
            name: label.into(),
            lowest: spread.lowest,
            low,
            middle: spread.middle,
            high,
            highest: spread.highest,
        })
    }

    /// "9 of 10".
    fn counted(&self) -> String {
        format!("{} of {}", self.trials.iter().filter(|trial| trial["valid"] == true).count(), self.trials.len())
    }
}

/// Whether one tool, measured as two, ties: by pairs of the same round.
fn control(table: &Table<'_>, figure: &str, error: f64) -> Option<String> {
    let (one, two) = CONTROLS[0];
    let speeds: Vec<f64> = table
        .values("round")
        .iter()
        .filter_map(|round| {
            let of = |tool: &str| {
                let samples = table.with(&[("round", round), ("tool", &json!(tool))]).samples(figure);
                (!samples.is_empty()).then(|| stats::median(&samples))
            };
            Some(of(two)? / of(one)?)
        })
        .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        .collect();
    if speeds.is_empty() {
        return None;
    }
    let found = stats::compare(&speeds, error);
    let tie = match found.verdict {
        Verdict::NoneShown => "ties",
        Verdict::TooFew(_) => "too few rounds to tell",
        Verdict::Faster | Verdict::Slower => "**does not tie**: differences of this size are the method's",
    };
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    Some(format!(
        "{tie}: {:+.1} % ({:+.1} … {:+.1}, {} pairs)",
        percent(found.speed),
        percent(found.low),
        percent(found.high),
        speeds.len()
    ))
}

/// The page: every table, and what makes it worth what it is.
fn page(record: &Value, source: &str) -> String {
    let word = |name: &str| record[name].as_str().unwrap_or("?").to_string();
    let mut text = format!(
        "# Side by side\n\nGenerated by `cargo xtask bench peers` from {source}. {}, {} CPUs, kernel {}; commit {}; {}. **{}**\n\
         Load before {:.2}; {:.2} % of the CPU time stolen over the whole session. A trial with more than 0.5 %, or beside other\n\
         programs' load, is not counted. \
         Cells: median (lowest … highest).\n\n",
        word("cpu"),
        record["cpus"],
        word("kernel"),
        word("commit").get(..7).unwrap_or("?"),
        word("when"),
        word("label"),
        record["load_before"].as_f64().unwrap_or(f64::NAN),
        record["steal_percent"].as_f64().unwrap_or(f64::NAN),
    );
    text += &raw_tables(record);
    text += &stage_table(record);
    text += &ring_tables(record);
    text + &lacking(record)
}

fn rows(heads: &[&str], rows: Vec<Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heads: Vec<String> = heads.iter().map(|head| head.to_string()).collect();
    let rule = vec!["---".to_string(); heads.len()];
    line(&heads) + &line(&rule) + &rows.iter().map(|row| line(row)).collect::<String>() + "\n"
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

fn raw_tables(record: &Value) -> String {
    let all = Table::of(record, "raw");
    let base = all.with(&[("case", &json!("base"))]);
    if base.trials.is_empty() {
        return String::new();
    }
    let mut text = "## Raw capture only\n\n128-byte frames through a veth pair, ours with raw records of frames that are no segment: no gap detection, no arbiter,\n\
                    no message index. One CPU sends, the other captures and writes to memory; made durable inside the time. Loss by the sequence in\n\
                    the frames, read back from the file.\n\n![Loss by rate](peers-loss.svg)\n\n![CPU time by tool](peers-cpu.svg)\n\n".to_string();
    let mut lines = Vec::new();
    for rate in base.values("rate") {
        for tool in base.values("tool") {
            let cell = base.with(&[("rate", &rate), ("tool", &tool)]);
            lines.push(vec![
                rate.to_string(),
                text_of(&tool),
                cell.cell("lost_ppm", 1.0),
                cell.cell("cpu_us_per_frame", 1.0),
                cell.cell("cpu_with_stop_us_per_frame", 1.0),
                cell.cell("busy_seconds", 1.0),
                cell.counted(),
            ]);
        }
    }
    text += &rows(
        &["frames/s", "tool", "lost, ppm", "its CPU, µs a frame", "… with its stop", "all CPUs busy, s", "valid"],
        lines,
    );
    let rates = base.values("rate");
    let error = stats::ERROR_MAX / rates.len().max(1) as f64;
    for rate in &rates {
        if let Some(found) = control(&base.with(&[("rate", rate)]), "cpu_us_per_frame", error) {
            text += &format!("A/A at {rate}/s, CPU time of \"sluice again\" beside \"sluice\": {found}.  \n");
        }
    }
    text +=
        "\nRefutations at the middle rate: the CPUs swapped, all buffers doubled, and a disk in place of memory.\n\n";
    let mut lines = Vec::new();
    for case in all.values("case").iter().filter(|case| **case != "base") {
        for tool in all.values("tool") {
            let cell = all.with(&[("case", case), ("tool", &tool)]);
            let (lost, cpu) = (cell.cell("lost_ppm", 1.0), cell.cell("cpu_us_per_frame", 1.0));
            lines.push(vec![text_of(case), text_of(&tool), lost, cpu, cell.counted()]);
        }
    }
    text + &rows(&["what", "tool", "lost, ppm", "its CPU, µs a frame", "valid"], lines)
}

fn stage_table(record: &Value) -> String {
    let all = Table::of(record, "stages");
    if all.trials.is_empty() {
        return String::new();
    }
    let line = |tool: &Value| {
        let cell = all.with(&[("tool", tool)]);
        vec![text_of(tool), cell.cell("lost_ppm", 1.0), cell.cell("cpu_us_per_frame", 1.0), cell.counted()]
    };
    let lines = all.values("tool").iter().map(line).collect();
    let rate = all.values("rate").first().map(Value::to_string).unwrap_or_default();
    format!(
        "## Our whole pipeline, alone\n\nFrames of one message each, {rate}/s; no peer does this work, so none stands beside it.\n\n"
    ) + &rows(&["what is done", "lost, ppm", "CPU, µs a frame", "valid"], lines)
}

fn ring_tables(record: &Value) -> String {
    let all = Table::of(record, "ring");
    if all.trials.is_empty() {
        return String::new();
    }
    let mut text = "## Rings\n\n64-byte records from one CPU to the other, both spinning. One way: 100,000 records/s, evenly spaced, by the time stamp\n\
                    counter that both CPUs share. Throughput: as fast as nothing is lost. The CPUs are swapped every other round. Aeron and\n\
                    iceoryx2 are given their own way to wait for room.\n\n![One way](peers-one-way.svg)\n\n![Throughput](peers-throughput.svg)\n\n".to_string();
    let mut lines = Vec::new();
    for case in all.values("case") {
        let part = all.with(&[("case", &case)]);
        for tool in part.values("tool") {
            let cell = part.with(&[("tool", &tool)]);
            lines.push(vec![
                text_of(&case),
                text_of(&tool),
                cell.cell("p50_ns", 1.0),
                cell.cell("p99_ns", 1.0),
                cell.cell("p999_ns", 1.0),
                cell.cell("longest_ns", 1.0),
                cell.cell("records_per_second", 1e-6),
                cell.counted(),
            ]);
        }
    }
    text += &rows(
        &["between", "ring", "p50, ns", "p99, ns", "p99.9, ns", "longest, ns", "million/s", "valid trials"],
        lines,
    );
    for (figure, what) in [("p50_ns", "median one way"), ("records_per_second", "throughput")] {
        for case in all.values("case") {
            if let Some(found) = control(&all.with(&[("case", &case)]), figure, stats::ERROR_MAX / 4.0) {
                text += &format!("A/A, {}, {what} of \"sluice again\" beside \"sluice\": {found}.  \n", text_of(&case));
            }
        }
    }
    text + "\n"
}

/// What was to be measured and could not be.
fn lacking(record: &Value) -> String {
    let mut text = String::new();
    for about in record["about"].as_array().into_iter().flatten() {
        for (tool, why) in about["lacking"].as_object().into_iter().flatten() {
            text += &format!("- {tool}: {}\n", text_of(why));
        }
        if let Some(ceiling) = about["ceiling"].as_f64() {
            text += &format!("- the generator reaches {} frames/s into an empty sink", figures::number(ceiling));
            text += &format!("; rates left out above 80 % of it: {}\n", about["left_out_rates"]);
        }
        if let Some(versions) = about["versions"].as_object() {
            let all: Vec<String> =
                versions.iter().map(|(tool, version)| format!("{tool} ({})", text_of(version))).collect();
            text += &format!("- measured: {}\n", all.join(", "));
        }
    }
    let trials = record["trials"].as_array().into_iter().flatten().filter(|trial| trial["case"] == "base");
    let commands = trials.filter_map(|trial| trial["command"].as_str()).filter(|command| !command.is_empty());
    let commands: std::collections::BTreeSet<String> = commands.map(without_folders).collect();
    let shown: String = commands.iter().map(|command| format!("{command}\n")).collect();
    let head = "## What was not measured, and how the rest was called\n\n";
    match shown.is_empty() {
        true => format!("{head}{text}"),
        false => format!("{head}{text}\n```\n{shown}```\n"),
    }
}

/// A command line as it can be read: programs and files without the folders of one run.
fn without_folders(command: &str) -> String {
    let name = |word: &str| word.rsplit('/').next().unwrap_or(word).to_string();
    command
        .split(' ')
        .map(|word| if word.starts_with('/') { name(word) } else { word.into() })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Writes the page and its plots.
fn publish(record: &Value, source: &Path) -> Result<(), String> {
    let folder = shell::root().join("docs/benchmarks");
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let text = page(record, &format!("[bench/results/{name}](../../bench/results/{name})"));
    shell::write(&folder.join("peers.md"), &(text.trim_end().to_string() + "\n"))?;
    for (file, svg) in plots(record) {
        shell::write(&folder.join(file), &svg)?;
    }
    println!("{text}\nrecorded in {}; tables and plots in docs/benchmarks/", source.display());
    Ok(())
}

fn plots(record: &Value) -> Vec<(&'static str, String)> {
    let raw = Table::of(record, "raw").with(&[("case", &json!("base"))]);
    let (rates, tools) = (raw.values("rate"), raw.values("tool"));
    let at = |tool: &Value, rate: &Value| raw.with(&[("tool", tool), ("rate", rate)]);
    let line = |tool: &Value| Line {
        name: text_of(tool),
        values: rates.iter().map(|rate| at(tool, rate).spread("lost_ppm")).collect(),
    };
    let categories: Vec<String> =
        rates.iter().map(|rate| format!("{}k/s", rate.as_f64().unwrap_or(0.0) / 1e3)).collect();
    let mut out = Vec::new();
    if let Some(middle) = rates.get(rates.len() / 2) {
        let lost = plot::lines(
            "Raw capture on veth: frames lost (median, lowest, highest)",
            "parts per million",
            &categories,
            &tools.iter().map(line).collect::<Vec<_>>(),
        );
        out.push(("peers-loss.svg", lost));
        let costs: Vec<Range> =
            tools.iter().filter_map(|tool| at(tool, middle).range(&text_of(tool), "cpu_us_per_frame")).collect();
        out.push((
            "peers-cpu.svg",
            plot::ranges(&format!("Raw capture on veth at {middle}/s: CPU time"), "µs a frame", &costs),
        ));
    }
    let rings = Table::of(record, "ring");
    for (file, title, unit, figure, scale) in [
        ("peers-one-way.svg", "64-byte records, one way: medians of the rounds", "ns", "p50_ns", 1.0),
        (
            "peers-throughput.svg",
            "64-byte records, as fast as nothing is lost",
            "million records/s",
            "records_per_second",
            1e-6,
        ),
    ] {
        let mut rows = Vec::new();
        for case in rings.values("case") {
            let part = rings.with(&[("case", &case)]);
            for tool in part.values("tool") {
                let label = format!("{}, {}", text_of(&tool), text_of(&case));
                rows.extend(part.with(&[("tool", &tool)]).range(&label, figure));
            }
        }
        let scaled = |row: Range| Range {
            lowest: row.lowest * scale,
            low: row.low * scale,
            middle: row.middle * scale,
            high: row.high * scale,
            highest: row.highest * scale,
            ..row
        };
        if !rows.is_empty() {
            out.push((file, plot::ranges(title, unit, &rows.into_iter().map(scaled).collect::<Vec<_>>())));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(tool: &str, round: usize, cpu: f64, lost: f64, valid: bool) -> Value {
        json!({"table": "raw", "case": "base", "tool": tool, "rate": 100_000, "round": round, "cpu_us_per_frame": cpu,
               "lost_ppm": lost, "valid": valid, "command": "/usr/bin/x -w /some/folder/out.pcap"})
    }

    fn record(again: f64) -> Value {
        let mut trials = Vec::new();
        for round in 0..10 {
            let drift = 1.0 + round as f64 * 0.01;
            trials.push(trial("sluice", round, drift, 0.0, true));
            trials.push(trial("sluice again", round, drift * again * (0.99 + 0.02 * (round % 2) as f64), 0.0, true));
            trials.push(trial("tcpdump", round, 2.0, 7.0, round > 0));
        }
        json!({"trials": trials, "about": [{"lacking": {"xdpdump": "not installed"}}], "commit": "0123456789", "load_before": 0.1})
    }

    #[test]
    fn a_control_ties_or_says_that_it_does_not() {
        let all = page(&record(1.0), "here");
        assert!(all.contains("ties: "), "{all}");
        let all = page(&record(1.3), "here");
        assert!(all.contains("**does not tie**"), "{all}");
    }

    #[test]
    fn only_valid_trials_count_and_what_lacks_is_named() {
        let all = page(&record(1.0), "here");
        assert!(
            all.contains("| 100000 | tcpdump | 7.00 (7.00 … 7.00) | 2.00 (2.00 … 2.00) | – | – | 9 of 10 |"),
            "{all}"
        );
        assert!(all.contains("- xdpdump: not installed") && all.contains("\nx -w out.pcap\n"), "{all}");
    }

    #[test]
    fn plots_are_made_of_what_there_is() {
        let made = plots(&record(1.0));
        assert_eq!(made.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["peers-loss.svg", "peers-cpu.svg"]);
        assert!(plots(&json!({"trials": []})).is_empty());
    }

    #[test]
    fn a_record_is_whole_with_a_line_for_each_trial() {
        let record = record(1.0);
        let text = lines_of(&record);
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), record);
        assert!(text.lines().count() > 30);
    }
}
