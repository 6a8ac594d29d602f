//! Open-loop load through a ring and its mirror: a producer that never waits, a reader that accounts for every record.
//!
//! The producer waits for each tick and pushes that tick's records; one stamp (the shared counter) is taken before the
//! push. CPU 0 carries the producer and what sends, CPU 1 what receives and the reader, in one thread. A producer that shares
//! its CPU with a sender sleeps until the tick. Sleeping costs more than the 10 µs of an evenly spaced load, so there the
//! receiving thread pushes too, between its steps, and the sender has CPU 0 for itself; a producer that sends inline is
//! alone on CPU 0 and spins.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use serde_json::{Value, json};
use sluice::sys::clock::monotonic_ns;

use crate::pinned::{self, ticks};

/// 64 bytes: stamp, number, which load, …, the number's complement.
pub type Record = [u64; 8];
const STAMP: usize = 0;
const NUMBER: usize = 1;
const LOAD: usize = 2;
const CHECK: usize = 7;
/// `LOAD` of the records that are pushed until the first arrives.
const WARM: u64 = u64::MAX;

/// The most records of one tick.
pub const BURST_MAX: usize = 64;
/// Ticks at a load's beginning whose records are counted, not timed.
const UNTIMED_TICKS: u64 = 16;
/// After the last push: what is in flight arrives, what was lost is asked for again.
const SETTLE_NS: i64 = 500_000_000;
/// How long a path may take until its first record comes through.
const WARM_LIMIT_NS: i64 = 10_000_000_000;
/// Above what sends, which is above everything else: so the producer is never late for its own sender.
pub const PRODUCER_PRIORITY: u32 = 20;
/// Of what sends on the producer's CPU, and of what receives on the other.
pub const SENDER_PRIORITY: u32 = 10;

/// Pushes records, all of them published when it returns.
pub trait Source: Send {
    fn push(&mut self, records: &[Record]);
}

/// The receiving end: a mirror that the caller steps, and a reader on its ring.
pub trait Path {
    /// Does what there is to do; bounded work.
    fn step(&mut self);
    /// The reader's next record.
    fn receive(&mut self) -> Option<Record>;
    /// What had to be asked for again, where that is told.
    fn repairs(&self) -> u64 {
        0
    }
}

/// So many records each so often, for so long.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub name: &'static str,
    pub burst: usize,
    pub tick_ns: u64,
    pub ms: u64,
    /// Single records, evenly spaced, too close for a producer that sleeps.
    pub even: bool,
}

impl Load {
    fn ticks(&self) -> u64 {
        (self.ms * 1_000_000 / self.tick_ns).max(2)
    }
}

/// What producer and reader tell each other.
#[derive(Default)]
struct Talk {
    warm: AtomicBool,
    /// Loads that may be begun, and loads that are pushed to the end.
    begun: AtomicU64,
    pushed: AtomicU64,
    failed: AtomicBool,
}

/// Where and how the loads are run.
pub struct Stage<'a> {
    pub loads: &'a [Load],
    /// The producer's CPU; the caller is pinned to the other.
    pub cpu: usize,
    pub ns_per_tick: f64,
    /// Real-time priorities for all three.
    pub realtime: bool,
    /// The producer's thread sends itself.
    pub inline: bool,
}

/// Runs all loads through one path; a report for each. The caller is the receiving end.
pub fn run(source: Box<dyn Source>, path: &mut dyn Path, stage: &Stage) -> Vec<Value> {
    let (talk, source) = (Talk::default(), Mutex::new(source));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pinned::pin(stage.cpu);
            if stage.realtime {
                pinned::realtime(PRODUCER_PRIORITY);
            }
            produce(&source, stage, &talk);
        });
        if stage.realtime {
            pinned::realtime(SENDER_PRIORITY);
        }
        if let Err(what) = warm(path, &talk) {
            talk.failed.store(true, Ordering::Release);
            return vec![json!({ "error": what })];
        }
        let loads = stage.loads.iter().zip(0..);
        loads.map(|(load, index)| read(&source, path, load, index, &talk, stage)).collect()
    })
}

/// Whether the receiving thread pushes this load too.
fn pushed_by_reader(load: &Load, stage: &Stage) -> bool {
    load.even && !stage.inline
}

fn produce(source: &Mutex<Box<dyn Source>>, stage: &Stage, talk: &Talk) {
    while !talk.warm.load(Ordering::Acquire) {
        if talk.failed.load(Ordering::Acquire) {
            return;
        }
        let mut source = source.lock().expect("nobody panics");
        push_warm(source.as_mut());
        drop(source);
        std::thread::sleep(Duration::from_millis(1));
    }
    for (load, index) in stage.loads.iter().zip(0..).filter(|(load, _)| !pushed_by_reader(load, stage)) {
        while talk.begun.load(Ordering::Acquire) <= index {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut source = source.lock().expect("nobody panics");
        let mut pusher = Pusher::new(load, index);
        while let Some(at) = pusher.next_at() {
            match load.even {
                true => spin_until(at),
                false => sleep_until(at),
            }
            pusher.push(source.as_mut());
        }
        talk.pushed.store(index + 1, Ordering::Release);
    }
}

/// Pushes one load, tick by tick.
struct Pusher<'a> {
    load: &'a Load,
    start: i64,
    tick: u64,
    number: u64,
    batch: [Record; BURST_MAX],
}

impl Pusher<'_> {
    fn new(load: &Load, index: u64) -> Pusher<'_> {
        let mut batch = [[0; 8]; BURST_MAX];
        batch.iter_mut().for_each(|record| record[LOAD] = index);
        Pusher { load, start: monotonic_ns() + 1_000_000, tick: 0, number: 0, batch }
    }

    /// When the next tick is due; none after the last.
    fn next_at(&self) -> Option<i64> {
        (self.tick < self.load.ticks()).then_some(self.start + (self.tick * self.load.tick_ns) as i64)
    }

    #[inline]
    fn push(&mut self, source: &mut dyn Source) {
        let batch = &mut self.batch[..self.load.burst];
        for record in batch.iter_mut() {
            record[NUMBER] = self.number;
            record[CHECK] = !self.number;
            self.number += 1;
        }
        self.tick += 1;
        let now = ticks();
        batch.iter_mut().for_each(|record| record[STAMP] = now);
        source.push(batch);
    }
}

fn spin_until(at_ns: i64) {
    while monotonic_ns() < at_ns {
        std::hint::spin_loop();
    }
}

fn sleep_until(at_ns: i64) {
    let at = TimeSpec::new(at_ns / 1_000_000_000, at_ns % 1_000_000_000);
    // An interrupted sleep ends early: the tick is early by what was left, and stamped when it is pushed.
    let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at);
}

/// Steps until the first record has come through and what came with it is read.
fn warm(path: &mut dyn Path, talk: &Talk) -> Result<(), String> {
    let end = monotonic_ns() + WARM_LIMIT_NS;
    while monotonic_ns() < end {
        path.step();
        if path.receive().is_some() {
            talk.warm.store(true, Ordering::Release);
            return Ok(());
        }
    }
    Err("no record came through".to_string())
}

fn read(
    source: &Mutex<Box<dyn Source>>,
    path: &mut dyn Path,
    load: &Load,
    index: u64,
    talk: &Talk,
    stage: &Stage,
) -> Value {
    let mut tally = Tally::new(load, index);
    let repairs = path.repairs();
    talk.begun.store(index + 1, Ordering::Release);
    let mut own =
        pushed_by_reader(load, stage).then(|| (Pusher::new(load, index), source.lock().expect("nobody panics")));
    let mut end = i64::MAX;
    loop {
        let now_ns = monotonic_ns();
        if tally.is_whole() || now_ns > end {
            break;
        }
        if let Some((pusher, source)) = &mut own
            && pusher.next_at().is_some_and(|at| at <= now_ns)
        {
            pusher.push(source.as_mut());
        }
        path.step();
        while let Some(record) = path.receive() {
            let now = ticks();
            tally.add(&record, now);
        }
        let pushed = match &own {
            Some((pusher, _)) => pusher.next_at().is_none(),
            None => talk.pushed.load(Ordering::Acquire) > index,
        };
        if pushed && end == i64::MAX {
            end = now_ns + SETTLE_NS;
        }
    }
    tally.report(stage.ns_per_tick, path.repairs() - repairs)
}

/// What a reader knows of one load.
pub struct Tally<'a> {
    load: &'a Load,
    index: u64,
    total: u64,
    untimed: u64,
    taken: Vec<u64>,
    received: u64,
    next: u64,
    disorder: u64,
    torn: u64,
}

impl Tally<'_> {
    pub fn new(load: &Load, index: u64) -> Tally<'_> {
        let total = load.ticks() * load.burst as u64;
        let untimed = (UNTIMED_TICKS * load.burst as u64).min(total / 2);
        let taken = Vec::with_capacity(total as usize);
        Tally { load, index, total, untimed, taken, received: 0, next: 0, disorder: 0, torn: 0 }
    }

    /// A record that was read at `now` (ticks); those of other loads are not counted.
    #[inline]
    pub fn add(&mut self, record: &Record, now: u64) {
        if record[LOAD] != self.index {
            return;
        }
        self.torn += u64::from(record[CHECK] != !record[NUMBER]);
        self.disorder += u64::from(record[NUMBER] < self.next);
        self.next = record[NUMBER] + 1;
        self.received += 1;
        if record[NUMBER] >= self.untimed {
            self.taken.push(now.saturating_sub(record[STAMP]));
        }
    }

    pub fn is_whole(&self) -> bool {
        self.received == self.total
    }

    /// Whether a record is of a load that comes after this one.
    pub fn is_later(&self, record: &Record) -> bool {
        record[LOAD] > self.index && record[LOAD] != WARM
    }

    pub fn report(mut self, ns_per_tick: f64, repairs: u64) -> Value {
        self.taken.sort_unstable();
        let taken = &self.taken;
        let us = |percent: f64| {
            let at = (taken.len() as f64 * percent / 100.0).ceil() as usize;
            taken.get(at.clamp(1, taken.len().max(1)) - 1).map(|&ticks| ticks as f64 * ns_per_tick / 1_000.0)
        };
        json!({
            "load": self.load.name, "sent": self.total, "received": self.received, "disorder": self.disorder,
            "torn": self.torn, "repairs": repairs, "timed": taken.len(),
            "p50": us(50.0), "p90": us(90.0), "p99": us(99.0), "p999": us(99.9), "max": us(100.0),
        })
    }
}

/// A record behind the last load.
pub const LAST: Load = Load { name: "last", burst: 1, tick_ns: 1_000_000, ms: 2, even: false };

/// Pushes one load to its end, without a word from the reader.
pub fn push_load(source: &mut dyn Source, load: &Load, index: u64) {
    let mut pusher = Pusher::new(load, index);
    while let Some(at) = pusher.next_at() {
        sleep_until(at);
        pusher.push(source);
    }
}

/// Pushes one record that no load counts.
pub fn push_warm(source: &mut dyn Source) {
    source.push(&[[ticks(), 0, WARM, 0, 0, 0, 0, !0]]);
}
