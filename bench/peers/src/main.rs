//! Rings side by side: `sluice-bench-peers ROUNDS [short]` prints a line `trial {...}` for each measurement.
//!
//! Every contender hands 64-byte records from one pinned CPU to another, between two processes where it can and between two
//! threads; one way at an even pace, and as fast as nothing is lost. Rounds are shuffled, ours stands in them twice.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use contenders::Tool;

mod contenders;
mod measure;

/// Records of a paced measurement, 100,000 a second, and of one at full speed.
const PACED: u64 = 30_000;
const FAST: u64 = 1_000_000;
/// How long an end may take to leave.
const LEAVE: std::time::Duration = std::time::Duration::from_secs(2);
/// Numbers that choose the order: the same in each session, so that a session can be repeated.
const SEED: u64 = 0x5eed;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["send", tool, name, cpu, paced, records] => end(tool, cpu, |tool| {
            measure::send(tool, name, paced == "paced", number(records));
        }),
        ["receive", tool, name, cpu, paced, records] => end(tool, cpu, |tool| {
            println!("{}", measure::receive(tool, name, paced == "paced", number(records)));
        }),
        [rounds] => all(number(rounds), false),
        [rounds, "short"] => all(number(rounds), true),
        _ => {
            eprintln!("sluice-bench-peers ROUNDS [short]");
            std::process::exit(2);
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("\"{text}\" is no number"))
}

/// One end in a process of its own, pinned.
fn end(tool: &str, cpu: &str, body: impl FnOnce(Tool)) {
    let tool = Tool::named(tool).unwrap_or_else(|| panic!("no contender is named \"{tool}\""));
    measure::pin(number(cpu) as usize);
    body(tool);
}

/// What is measured in a round.
#[derive(Clone, Copy)]
struct Cell {
    tool: Tool,
    /// As the tables name it: ours has two names.
    shown: &'static str,
    processes: bool,
    paced: bool,
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for processes in [true, false] {
        for tool in Tool::all() {
            for shown in tool.shown(processes) {
                cells.extend([true, false].map(|paced| Cell { tool, shown, processes, paced }));
            }
        }
    }
    cells
}

fn all(rounds: u64, short: bool) {
    let cpus = measure::cpus();
    let [first, .., last] = cpus[..] else {
        eprintln!("rings need two CPUs");
        std::process::exit(4);
    };
    let (mut order, mut random) = (cells(), SEED);
    let driver = contenders::Driver::start();
    for round in 0..rounds {
        shuffle(&mut order, &mut random);
        let (sender, receiver) = if round % 2 == 0 { (first, last) } else { (last, first) };
        for cell in &order {
            let records = if cell.paced { PACED } else { FAST } / if short { 20 } else { 1 };
            let before = measure::cpu_ticks();
            let name = format!("sluice-bench-{}-{}", std::process::id(), measure::next());
            let found = match cell.processes {
                true => between_processes(cell, &name, (sender, receiver), records, &driver),
                false => measure::between_threads(cell.tool, &name, (sender, receiver), cell.paced, records),
            };
            let steal = measure::steal_percent(before, measure::cpu_ticks());
            println!("trial {}", line(cell, round, (sender, receiver), found, steal));
            let _ = std::io::stdout().flush();
        }
    }
}

fn line(
    cell: &Cell,
    round: u64,
    cpus: (usize, usize),
    found: Result<serde_json::Value, String>,
    steal: f64,
) -> serde_json::Value {
    let mut out = serde_json::json!({
        "table": "ring", "tool": cell.shown, "case": if cell.processes { "processes" } else { "threads" }, "round": round,
        "measure": if cell.paced { "one way" } else { "throughput" }, "cpus": [cpus.0, cpus.1], "record_bytes": 64,
        "steal_percent": steal,
    });
    let mut reasons = Vec::new();
    match found {
        Ok(found) => {
            if found["lost"] != 0 {
                reasons.push(format!("{} records lost", found["lost"]));
            }
            if found["wrong"] != 0 {
                reasons.push(format!("{} records changed", found["wrong"]));
            }
            let waited = found["waited_percent"].as_f64().unwrap_or(0.0);
            if waited > measure::WAITED_PERCENT_MAX {
                reasons.push(format!("other programs had the receiver's CPU {waited:.0} % of the time"));
            }
            out.as_object_mut().expect("an object").extend(found.as_object().cloned().unwrap_or_default());
        }
        Err(why) => reasons.push(why),
    }
    if steal > measure::STEAL_PERCENT_MAX {
        reasons.push(format!("steal {steal:.2} %"));
    }
    out["valid"] = reasons.is_empty().into();
    out["why"] = reasons.join("; ").into();
    out
}

fn shuffle(cells: &mut [Cell], random: &mut u64) {
    for at in (1..cells.len()).rev() {
        // xorshift64 (Marsaglia, "Xorshift RNGs", 2003).
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        cells.swap(at, (*random % (at as u64 + 1)) as usize);
    }
}

/// A child that does not outlive this process.
struct End {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl End {
    fn start(
        kind: &str,
        cell: &Cell,
        name: &str,
        (cpu, records): (usize, u64),
        variables: &[(String, String)],
    ) -> Result<End, String> {
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(this);
        let paced = if cell.paced { "paced" } else { "fast" };
        command.args([kind, cell.tool.name(), name, &cpu.to_string(), paced, &records.to_string()]);
        command.envs(variables.iter().cloned());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        Ok(End { child, input, output })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) | Err(_) => Err("an end of the ring failed".into()),
            Ok(_) => Ok(line),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // With its input's end an end leaves by itself and takes its files with it; one that hangs is killed.
        drop(self.input.take());
        let began = std::time::Instant::now();
        while began.elapsed() < LEAVE && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sender makes its end, the receiver opens the other; then it is let go.
fn between_processes(
    cell: &Cell,
    name: &str,
    (from, to): (usize, usize),
    records: u64,
    driver: &contenders::Driver,
) -> Result<serde_json::Value, String> {
    let variables = driver.variables();
    let mut sender = End::start("send", cell, name, (from, records), &variables)?;
    sender.line()?;
    let mut receiver = End::start("receive", cell, name, (to, records), &variables)?;
    receiver.line()?;
    let go = sender.input.as_mut().expect("piped");
    go.write_all(b"go\n").map_err(|error| format!("the sender has gone: {error}"))?;
    serde_json::from_str(&receiver.line()?).map_err(|error| error.to_string())
}
