//! What is the same for all contenders: pins, the clock, the pace, and how loss and time are counted.

use std::hint::spin_loop;
use std::io::BufRead;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfire::CycleStamp;
use serde_json::{Value, json};

use crate::contenders::{self, Receiver, Record, Sender, Tool};

/// Time between two records of a paced measurement: 100,000 a second.
const PACE: Duration = Duration::from_micros(10);
/// The first records find cold caches and are not counted.
const WARM: u64 = 1_000;
/// A receiver that gets nothing for so long gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Empty looks between two looks at the clock.
const LOOKS: u32 = 1 << 16;
/// How long the counter is compared with the clock.
const CALIBRATION: Duration = Duration::from_millis(30);
/// Time that the receiver was kept from its CPU by other programs, in percent, above which a trial says nothing.
pub const WAITED_PERCENT_MAX: f64 = 2.0;
/// Stolen CPU time above which a trial says nothing.
pub const STEAL_PERCENT_MAX: f64 = 0.5;

/// The time stamp counter, the same on all CPUs.
#[inline(always)]
pub fn ticks() -> u64 {
    CycleStamp::now().tsc
}

fn ns_per_tick() -> f64 {
    let (clock, counter) = (Instant::now(), ticks());
    while clock.elapsed() < CALIBRATION {
        spin_loop();
    }
    clock.elapsed().as_nanos() as f64 / (ticks() - counter) as f64
}

/// The CPUs that this process may use.
pub fn cpus() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
}

/// Pins the calling thread.
pub fn pin(cpu: usize) {
    assert!(core_affinity::set_for_current(core_affinity::CoreId { id: cpu }), "CPU {cpu} cannot be had");
}

/// A number that no other call of this process gets.
pub fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// (stolen, all) ticks of all CPUs (proc(5)).
pub fn cpu_ticks() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|tick| tick.parse().ok()).collect();
    (ticks.get(7).copied().unwrap_or(0), ticks.iter().sum())
}

/// The part of the CPU time between two looks that the host took away.
pub fn steal_percent(before: (u64, u64), after: (u64, u64)) -> f64 {
    (after.0 - before.0) as f64 * 100.0 / (after.1 - before.1).max(1) as f64
}

/// How long the calling thread was ready to run and did not, in ns (schedstat: its second number).
fn waited_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// The sending end in a process of its own: made, let go by a line, kept until its input ends.
pub fn send(tool: Tool, name: &str, paced: bool, records: u64) {
    contenders::sender(
        tool,
        name,
        SendAll {
            paced,
            records,
            before: &mut || {
                println!("made");
                let mut line = String::new();
                std::io::stdin().lock().read_line(&mut line).expect("a line to go on");
            },
        },
    );
}

/// The receiving end in a process of its own: what it found.
pub fn receive(tool: Tool, name: &str, paced: bool, records: u64) -> Value {
    contenders::receiver(tool, name, ReceiveAll { paced, records, before: &mut || println!("ready") })
}

/// Both ends in this process, a thread each.
pub fn between_threads(
    tool: Tool,
    name: &str,
    (from, to): (usize, usize),
    paced: bool,
    records: u64,
) -> Result<Value, String> {
    contenders::threads(tool, name, Pair { from, to, paced, records })
}

/// Sends all records, then waits for the end of its input: a ring lives as long as its maker.
pub struct SendAll<'a> {
    paced: bool,
    records: u64,
    before: &'a mut dyn FnMut(),
}

impl SendAll<'_> {
    /// Runs on a contender's sending end.
    pub fn on(self, sender: &mut impl Sender) {
        (self.before)();
        sender.connect();
        run_sender(sender, self.paced, self.records);
        let mut line = String::new();
        while std::io::stdin().lock().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {}
    }
}

/// Receives all records.
pub struct ReceiveAll<'a> {
    paced: bool,
    records: u64,
    before: &'a mut dyn FnMut(),
}

impl ReceiveAll<'_> {
    /// Runs on a contender's receiving end.
    pub fn on(self, receiver: &mut impl Receiver) -> Value {
        let scale = ns_per_tick();
        (self.before)();
        run_receiver(receiver, self.paced, self.records, scale)
    }
}

/// Two threads of this process.
pub struct Pair {
    from: usize,
    to: usize,
    paced: bool,
    records: u64,
}

impl Pair {
    /// Runs on both ends.
    pub fn on(self, mut sender: impl Sender + Send, mut receiver: impl Receiver + Send) -> Value {
        let (scale, both) = (ns_per_tick(), Barrier::new(2));
        std::thread::scope(|scope| {
            let both = &both;
            let received = scope.spawn(move || {
                pin(self.to);
                both.wait();
                run_receiver(&mut receiver, self.paced, self.records, scale)
            });
            let sent = scope.spawn(move || {
                pin(self.from);
                both.wait();
                run_sender(&mut sender, self.paced, self.records);
                sender
            });
            let found = received.join().expect("the receiver");
            drop(sent.join().expect("the sender"));
            found
        })
    }
}

fn run_sender(sender: &mut impl Sender, paced: bool, records: u64) {
    let began = Instant::now();
    for number in 0..records {
        if paced {
            let due = PACE * number as u32;
            while began.elapsed() < due {
                spin_loop();
            }
        }
        let mut record: Record = [number; 8];
        record[0] = ticks();
        sender.send(&record);
    }
}

fn run_receiver(receiver: &mut impl Receiver, paced: bool, records: u64, scale: f64) -> Value {
    let mut times = Vec::with_capacity(if paced { records as usize } else { 0 });
    let (mut expected, mut lost, mut wrong, mut looks, mut heard) = (0, 0, 0_u64, 0, Instant::now());
    let (mut first, mut last) = (0, 0);
    let (began, waited) = (Instant::now(), waited_ns());
    while expected < records {
        let Some(record) = receiver.receive() else {
            looks += 1;
            if looks % LOOKS == 0 && heard.elapsed() > PATIENCE {
                break;
            }
            spin_loop();
            continue;
        };
        last = ticks();
        if paced {
            times.push(last.saturating_sub(record[0]));
        } else if expected % u64::from(LOOKS) == 0 {
            heard = Instant::now();
        }
        if record[1] == 0 {
            first = last;
        }
        wrong += u64::from(record[7] != record[1]);
        lost += record[1].saturating_sub(expected);
        expected = record[1] + 1;
    }
    lost += records.saturating_sub(expected);
    let waited_percent = (waited_ns() - waited) as f64 * 100.0 / began.elapsed().as_nanos() as f64;
    if !paced {
        let seconds = (last - first) as f64 * scale / 1e9;
        return json!({"records": records, "lost": lost, "wrong": wrong, "waited_percent": waited_percent, "records_per_second": records as f64 / seconds});
    }
    let mut counted = times.split_off((WARM as usize).min(times.len()));
    counted.sort_unstable();
    let at = |part: f64| {
        let index = ((counted.len() as f64 * part).ceil() as usize).clamp(1, counted.len().max(1)) - 1;
        counted.get(index).map(|ticks| *ticks as f64 * scale)
    };
    json!({"records": records, "lost": lost, "wrong": wrong, "waited_percent": waited_percent, "p50_ns": at(0.5), "p90_ns": at(0.9), "p99_ns": at(0.99),
           "p999_ns": at(0.999), "longest_ns": at(1.0)})
}
