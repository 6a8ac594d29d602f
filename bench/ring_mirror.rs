//! From a push on the source's ring to a read on its copy's, over sockets of this host, beside bare sockets in the same
//! topology and the peer: `cargo xtask bench ring-mirror | ring-even-rates | ring-parked | ring-hub | ring-ladder`, each a
//! part of this program.
//!
//! Each cell (what × transport) is a process of its own, since a peer's server never ends; it goes through all loads of its
//! part and reports. Cells take turns, rounds repeat, and ratios are formed within a round. As root, what sends has a
//! real-time priority (10) and the producer a higher one (20); a CPU of its own for each end is needed in any case.

// A measurement may read the clock; the product reads it in `sys::clock` alone.
#![allow(clippy::disallowed_methods)]

mod common;
mod paced;
mod pinned;
mod ring_parked;
mod ring_paths;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use paced::Load;
use ring_paths::{Ends, Opening, Transport};
use serde_json::{Value, json};

const fn load(name: &'static str, burst: usize, tick_ns: u64, ms: u64) -> Load {
    Load { name, burst, tick_ns, ms, even: false }
}

const fn even(name: &'static str, tick_ns: u64, ms: u64) -> Load {
    Load { name, burst: 1, tick_ns, ms, even: true }
}

/// What stands in the table of targets: single records up to 20,000 a second, bursts above (a producer that sleeps between
/// ticks cannot do otherwise), and single records evenly spaced.
const MIRROR: &[Load] = &[
    load("1k", 1, 1_000_000, 1_000),
    load("10k", 1, 100_000, 400),
    load("50k", 3, 60_000, 400),
    load("100k", 5, 50_000, 400),
    load("500k", 25, 50_000, 400),
    load("1m", 50, 50_000, 400),
    even("even-20k", 50_000, 400),
    even("even-100k", 10_000, 400),
];
/// Where a sender that sends each record by itself reaches the datagram rate of the kernel.
const EVEN_RATES: &[Load] = &[
    even("even-10k", 100_000, 500),
    even("even-20k", 50_000, 500),
    even("even-50k", 20_000, 500),
    even("even-100k", 10_000, 500),
    even("even-150k", 6_667, 500),
    even("even-200k", 5_000, 500),
    even("even-300k", 3_333, 500),
];
/// What wakes whom, four processes long; bursts as above.
const PARKED: &[Load] = &[load("1k", 1, 1_000_000, 1_000), load("10k", 1, 100_000, 500), load("100k", 5, 50_000, 500)];
/// A leaf behind a hub.
const HUB: &[Load] = &[load("1k", 1, 1_000_000, 1_000), load("10k", 1, 100_000, 500), load("100k", 5, 50_000, 500)];
/// All must arrive, in order.
const LADDER: &[Load] = &[
    load("1k", 1, 1_000_000, 5_000),
    load("10k", 1, 100_000, 5_000),
    load("50k", 3, 60_000, 5_000),
    load("100k", 5, 50_000, 5_000),
    load("200k", 10, 50_000, 5_000),
    load("500k", 25, 50_000, 5_000),
    load("1m", 50, 50_000, 5_000),
];
const SMALL: &[Load] = &[load("2k", 1, 500_000, 50), load("20k", 10, 500_000, 50)];
const SMALL_EVEN: &[Load] = &[even("even-2k", 500_000, 50)];

/// A cell: what brings the records over, and how.
type Cell = (&'static str, Transport);

use Transport::{Multicast, Tcp, Udp};

/// A part of this program.
struct Part {
    name: &'static str,
    cells: &'static [Cell],
    loads: &'static [Load],
    rounds: usize,
    /// Every record must arrive in order, else the program fails.
    strict: bool,
}

/// Medians that are set beside one another, in each round: whose, over what, the measure's name, beside whose (the floors
/// are UDP's).
const RATIOS: &[(&str, &[Transport], &str, Cell)] = &[
    ("sluice", &[Udp, Multicast], "p50_of_floor", ("floor-separate", Udp)),
    ("sluice-inline", &[Udp, Multicast], "p50_of_floor", ("floor-inline", Udp)),
    ("sluice-parked", &[Udp, Multicast, Tcp], "p50_of_floor", ("floor-parked", Udp)),
    ("ringfire-linger0", &[Udp, Multicast], "p50_of_floor", ("floor-separate", Udp)),
    ("ringfire-parked", &[Udp, Multicast, Tcp], "p50_of_floor", ("floor-parked", Udp)),
    ("sluice", &[Tcp], "p50_of_udp", ("sluice", Udp)),
    ("sluice-hub", &[Udp], "p50_of_direct", ("sluice", Udp)),
    ("sluice-hub", &[Multicast], "p50_of_direct", ("sluice", Multicast)),
    ("sluice-hub", &[Tcp], "p50_of_direct", ("sluice", Tcp)),
];

const PARTS: &[Part] = &[
    Part {
        name: "mirror",
        cells: &[
            ("floor-inline", Udp),
            ("sluice-inline", Udp),
            ("sluice-inline", Multicast),
            ("floor-separate", Udp),
            ("sluice", Udp),
            ("ringfire-linger0", Udp),
            ("ringfire", Udp),
            ("sluice", Multicast),
            ("ringfire-linger0", Multicast),
            ("ringfire", Multicast),
            ("sluice", Tcp),
            ("ringfire-linger0", Tcp),
            ("ringfire", Tcp),
        ],
        loads: MIRROR,
        rounds: 3,
        strict: false,
    },
    Part {
        name: "even-rates",
        cells: &[
            ("floor-inline", Udp),
            ("sluice-inline", Udp),
            ("floor-separate", Udp),
            ("sluice", Udp),
            ("ringfire-linger0", Udp),
            ("ringfire", Udp),
        ],
        loads: EVEN_RATES,
        rounds: 5,
        strict: false,
    },
    Part {
        name: "parked",
        cells: &[
            ("floor-parked", Udp),
            ("sluice-parked", Udp),
            ("ringfire-parked", Udp),
            ("sluice-parked", Multicast),
            ("ringfire-parked", Multicast),
            ("sluice-parked", Tcp),
            ("ringfire-parked", Tcp),
        ],
        loads: PARKED,
        rounds: 3,
        strict: false,
    },
    Part {
        name: "hub",
        cells: &[
            ("sluice", Udp),
            ("sluice-hub", Udp),
            ("sluice", Multicast),
            ("sluice-hub", Multicast),
            ("sluice", Tcp),
            ("sluice-hub", Tcp),
        ],
        loads: HUB,
        rounds: 5,
        strict: false,
    },
    Part {
        name: "ladder",
        cells: &[("sluice", Tcp), ("sluice", Udp), ("sluice", Multicast), ("sluice-inline", Udp)],
        loads: LADDER,
        rounds: 1,
        strict: true,
    },
];

/// Beyond what its loads take, a cell that needs longer has hung.
const OVERDUE: Duration = Duration::from_secs(10);

impl Part {
    fn named(name: &str) -> Option<&'static Part> {
        PARTS.iter().find(|part| part.name == name)
    }

    fn loads(&self) -> &'static [Load] {
        match (common::is_test(), self.loads[0].even) {
            (true, true) => SMALL_EVEN,
            (true, false) => SMALL,
            (false, _) => self.loads,
        }
    }
}

fn open(contender: &str, opening: &Opening) -> Ends {
    match contender {
        "floor-inline" => ring_paths::floor_inline(opening),
        "floor-separate" => ring_paths::floor_separate(opening),
        "sluice" => ring_paths::sluice(opening, false),
        "sluice-inline" => ring_paths::sluice(opening, true),
        "sluice-hub" => ring_paths::sluice_hub(opening),
        "ringfire" => ring_paths::ringfire(opening, None),
        "ringfire-linger0" => ring_paths::ringfire(opening, Some(Duration::ZERO)),
        other => panic!("nothing is named \"{other}\""),
    }
}

/// One cell, in this process: a line of JSON for each load.
fn cell(part: &Part, contender: &str, transport: Transport) {
    let (first, last) = pinned::two_cpus().expect("the parent looked");
    let length: u64 = part.loads().iter().map(|load| load.ms).sum();
    pinned::end_after(Duration::from_millis(length) + OVERDUE);
    if contender.ends_with("-parked") {
        let folder = common::memory_folder();
        for report in ring_parked::run(contender, transport, part.loads(), part.name, folder.path()) {
            println!("{report}");
        }
        return;
    }
    pinned::pin(last);
    let ns_per_tick = pinned::ns_per_tick();
    println!("{}", json!({ "line_ns": pinned::probe(first, ns_per_tick) }));
    let folder = common::memory_folder();
    // Spinning at a real-time priority is for a machine that does nothing else: not for tests.
    let realtime = !common::is_test();
    let opening = Opening { folder: folder.path(), transport, cpu: first, realtime };
    let (source, mut path) = open(contender, &opening);
    // The peer's mirror over TCP waits inside a step until a frame has come: it cannot push between steps.
    let loads = part.loads().iter().filter(|load| !(load.even && transport == Transport::Tcp)).copied();
    let loads: Vec<Load> = loads.collect();
    let stage =
        paced::Stage { loads: &loads, cpu: first, ns_per_tick, realtime, inline: contender.ends_with("-inline") };
    for report in paced::run(source, path.as_mut(), &stage) {
        println!("{report}");
    }
    // A peer's server never ends, and nothing here waits for it; the folder goes now.
    drop(path);
    drop(folder);
    std::process::exit(0);
}

/// Runs a cell as a process; its reports.
fn run_cell(part: &Part, (contender, transport): Cell) -> Result<Vec<Value>, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    if !common::is_test() {
        command.arg("--bench");
    }
    command.args(["cell", part.name, contender, transport.name()]).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let reports = lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()).collect();
    let status = child.wait().map_err(|error| error.to_string())?;
    status.success().then_some(reports).ok_or_else(|| format!("{contender} over {}: {status}", transport.name()))
}

/// Samples, one a round, by (load, transport, contender, measure).
#[derive(Default)]
struct Found {
    samples: BTreeMap<(usize, &'static str, &'static str, &'static str), Vec<f64>>,
    line_ns: Vec<f64>,
    /// Loads that did not arrive whole and in order.
    broken: Vec<String>,
}

const PERCENTILES: [&str; 4] = ["p50", "p90", "p99", "p999"];

impl Found {
    fn add(&mut self, part: &Part, (contender, transport): Cell, report: &Value) {
        if let Some(ns) = report["line_ns"].as_f64() {
            return self.line_ns.push(ns);
        }
        let loads = part.loads();
        let Some(load) = loads.iter().position(|load| report["load"] == load.name) else {
            return self.broken.push(format!("{contender} over {}: {report}", transport.name()));
        };
        let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
        let delivered = number("received") * 100.0 / number("sent");
        let mut put = |measure, value| {
            self.samples.entry((load, transport.name(), contender, measure)).or_default().push(value);
        };
        put("delivered", delivered);
        put("disorder", number("disorder"));
        put("repairs", number("repairs"));
        PERCENTILES.into_iter().filter(|name| report[name].is_number()).for_each(|name| put(name, number(name)));
        if delivered < 100.0 || number("disorder") + number("torn") > 0.0 {
            let place = format!("{contender} over {}, {}", transport.name(), loads[load].name);
            self.broken.push(format!(
                "{place}: {} of {} arrived, {} out of order, {} torn",
                report["received"], report["sent"], report["disorder"], report["torn"]
            ));
        }
    }

    /// Sets the medians of a round beside one another.
    fn compare(&mut self, round: &BTreeMap<(usize, &'static str, &'static str), f64>) {
        for &(contender, transports, measure, (other, over)) in RATIOS {
            for transport in transports {
                for (load, value) in round.iter().filter(|(key, _)| key.1 == transport.name() && key.2 == contender) {
                    if let Some(beside) = round.get(&(load.0, over.name(), other)) {
                        let place = (load.0, transport.name(), contender, measure);
                        self.samples.entry(place).or_default().push(value / beside);
                    }
                }
            }
        }
    }

    fn of(&self, load: usize, transport: &'static str, contender: &'static str, measure: &'static str) -> &[f64] {
        self.samples.get(&(load, transport, contender, measure)).map_or(&[], Vec::as_slice)
    }

    fn print(&self, part: &Part) {
        for (load, named) in part.loads().iter().enumerate() {
            let each = format!("{} record(s) each {} us", named.burst, named.tick_ns as f64 / 1e3);
            println!("{} ({each}): us from push to read, median (lowest-highest) of rounds", named.name);
            print!("{:<28} {:>3}", "", "n");
            ["p50", "p90", "p99", "p99.9"].iter().for_each(|name| print!(" {name:>22}"));
            println!(" {:>10} {:>8} {:>8}  p50 beside", "delivered", "disorder", "repairs");
            for &(contender, transport) in part.cells {
                let of = |measure| self.of(load, transport.name(), contender, measure);
                print!("{:<28} {:>3}", format!("{contender}, {}", transport.name()), of("delivered").len());
                PERCENTILES.iter().for_each(|name| print!(" {:>22}", range(of(name), 1)));
                let least = of("delivered").iter().copied().fold(f64::INFINITY, f64::min);
                let sum = |measure| of(measure).iter().sum::<f64>();
                print!(" {least:>9.4}% {:>8} {:>8}", sum("disorder"), sum("repairs"));
                for measure in ["p50_of_floor", "p50_of_udp", "p50_of_direct"] {
                    if !of(measure).is_empty() {
                        print!("  {} {}", range(of(measure), 2), &measure[4..]);
                    }
                }
                println!();
            }
            println!();
        }
        println!("half a round trip of a cache line between the CPUs: {} ns", range(&self.line_ns, 0));
        self.broken.iter().for_each(|what| println!("not whole: {what}"));
        for ((load, transport, contender, measure), samples) in &self.samples {
            let unit = match *measure {
                "delivered" => "%",
                "disorder" | "repairs" => "records",
                name if name.contains("_of_") => "x",
                _ => "us",
            };
            let load = part.loads()[*load].name;
            common::figure(&format!("ring-{}/{load}/{transport}/{contender}/{measure}", part.name), unit, samples);
        }
        common::figure(&format!("ring-{}/line", part.name), "ns", &self.line_ns);
    }
}

/// `median (lowest-highest)`.
fn range(samples: &[f64], digits: usize) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(low), Some(high)) = (sorted.first(), sorted.last()) else { return "-".to_string() };
    format!("{:.digits$} ({low:.digits$}-{high:.digits$})", common::percentile(&sorted, 50.0))
}

/// All rounds of a part; whether everything arrived that had to.
fn run_part(part: &'static Part) -> bool {
    let started = Instant::now();
    let mut found = Found::default();
    let rounds = if common::is_test() { 1 } else { part.rounds };
    for round in 0..rounds {
        let mut medians = BTreeMap::new();
        for step in 0..part.cells.len() {
            let cell = part.cells[(round + step) % part.cells.len()];
            match run_cell(part, cell) {
                Ok(reports) => reports.iter().for_each(|report| {
                    found.add(part, cell, report);
                    let load = part.loads().iter().position(|load| report["load"] == load.name);
                    if let (Some(load), Some(p50)) = (load, report["p50"].as_f64()) {
                        medians.insert((load, cell.1.name(), cell.0), p50);
                    }
                }),
                Err(what) => found.broken.push(what),
            }
        }
        found.compare(&medians);
    }
    println!("ring-{}: {rounds} round(s) in {:.0?}", part.name, started.elapsed());
    found.print(part);
    found.broken.is_empty() || !part.strict
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [kind, part, contender, transport] = &words[..]
        && kind == "cell"
    {
        let part = Part::named(part).expect("a part of this program");
        return cell(part, contender, Transport::of(transport).expect("a transport"));
    }
    if words.first().is_some_and(|word| word == "role") {
        let part = words.get(4).and_then(|part| Part::named(part)).expect("a part of this program");
        return ring_parked::role(&words, part.loads());
    }
    if pinned::two_cpus().is_none() {
        println!("skipped: needs two CPUs");
        return;
    }
    let asked: Vec<&Part> = words.iter().filter_map(|word| Part::named(word)).collect();
    let parts = match (common::is_test(), asked.is_empty()) {
        (true, _) => PARTS.iter().collect(),
        (false, true) => vec![&PARTS[0]],
        (false, false) => asked,
    };
    let whole: Vec<bool> = parts.into_iter().map(run_part).collect();
    assert!(!whole.contains(&false), "records are missing or out of order");
}
