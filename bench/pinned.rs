//! What the measurements of the ring share: two pinned CPUs, one time stamp counter, and how far apart the CPUs lie now.

use std::hint::spin_loop;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfire::CycleStamp;
use sluice::sys::cpu;

/// Half a round trip of one cache line above which the two CPUs count as far apart: a virtual machine's CPUs move between
/// places that were seen to lie 45–65 ns and 185–260 ns from one another; nothing was seen between 90 and 170.
pub const FAR_NS: f64 = 120.0;
/// Round trips of a look at the placement: at most half a millisecond.
const PROBE_TRIPS: usize = 1_000;
/// How long the counter is compared with the clock.
const CALIBRATION: Duration = Duration::from_millis(50);

/// The time stamp counter, read after everything before it (the same instruction for every contender).
#[inline(always)]
pub fn ticks() -> u64 {
    CycleStamp::now().tsc
}

/// Ns per tick of the counter, by the monotonic clock.
pub fn ns_per_tick() -> f64 {
    let (clock, counter) = (Instant::now(), ticks());
    while clock.elapsed() < CALIBRATION {
        spin_loop();
    }
    let (ns, counted) = (clock.elapsed().as_nanos() as f64, ticks() - counter);
    ns / counted as f64
}

/// The first and the last CPU that this process may use; `None` with only one.
pub fn two_cpus() -> Option<(usize, usize)> {
    let cpus = cpu::allowed();
    (cpus.len() > 1).then(|| (cpus[0], cpus[cpus.len() - 1]))
}

/// Pins the calling thread.
pub fn pin(to: usize) {
    assert!(cpu::pin(to), "CPU {to} cannot be had");
}

/// Gives the calling thread a real-time priority (FIFO); false without the right to. By `chrt` (util-linux).
#[allow(dead_code, reason = "each file of this folder is a program of its own and uses a part of this one")]
pub fn realtime(priority: u32) -> bool {
    give_priority(&nix::unistd::gettid().to_string(), priority)
}

/// Gives it to every thread of this process whose name begins so.
#[allow(dead_code, reason = "each file of this folder is a program of its own and uses a part of this one")]
pub fn realtime_named(name: &str, priority: u32) {
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let found = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if found.starts_with(name) {
            give_priority(&thread.file_name().to_string_lossy(), priority);
        }
    }
}

fn give_priority(thread: &str, priority: u32) -> bool {
    let mut chrt = std::process::Command::new("chrt");
    chrt.args(["--fifo", "--pid", &priority.to_string(), thread]).stdout(Stdio::null()).stderr(Stdio::null());
    chrt.status().is_ok_and(|status| status.success())
}

/// A watchdog: the whole program ends with an error after `limit`, so that a contender that stops cannot hang a run.
pub fn end_after(limit: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("not finished within {limit:?}: a contender has stopped, or the machine is busy");
        std::process::exit(1);
    });
}

/// How far the two CPUs lie from one another.
#[allow(dead_code, reason = "each file of this folder is a program of its own and uses a part of this one")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Placement {
    Near,
    Far,
}

#[allow(dead_code, reason = "each file of this folder is a program of its own and uses a part of this one")]
impl Placement {
    pub fn of(line_ns: f64) -> Placement {
        if line_ns < FAR_NS { Placement::Near } else { Placement::Far }
    }

    pub fn name(self) -> &'static str {
        match self {
            Placement::Near => "near",
            Placement::Far => "far",
        }
    }
}

/// A cache line of its own, and the next, which the CPU may fetch with it.
#[derive(Default)]
#[repr(align(128))]
pub struct Line(pub [AtomicU64; 8]);

/// Tells a thread that another has come to its CPU.
#[derive(Default)]
pub struct Ready(AtomicBool);

impl Ready {
    pub fn say(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Gives the CPU away while it waits: a thread begins on its maker's.
    pub fn wait(&self) {
        while !self.0.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

/// Looks at the placement: median of half a round trip of one word, in ns. The caller is pinned to one CPU.
pub fn probe(other: usize, ns_per_tick: f64) -> f64 {
    let (there, back, ready) = (Line::default(), Line::default(), Ready::default());
    let mut trips = Vec::with_capacity(PROBE_TRIPS);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(other);
            ready.say();
            for trip in 1..=PROBE_TRIPS as u64 {
                while there.0[0].load(Ordering::Acquire) != trip {
                    spin_loop();
                }
                back.0[0].store(trip, Ordering::Release);
            }
        });
        ready.wait();
        for trip in 1..=PROBE_TRIPS as u64 {
            let sent = ticks();
            there.0[0].store(trip, Ordering::Release);
            while back.0[0].load(Ordering::Acquire) != trip {
                spin_loop();
            }
            trips.push(ticks() - sent);
        }
    });
    trips.sort_unstable();
    trips[trips.len() / 2] as f64 * ns_per_tick / 2.0
}
