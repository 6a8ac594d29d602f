//! Open-loop load through a ring and its mirror: a producer that never waits, a reader that accounts for every record.
//!
//! The producer sleeps until each tick and pushes that tick's records; one stamp (the shared counter) is taken before the
//! push. CPU 0 carries the producer and what sends, CPU 1 what receives and the reader, in one thread.

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
/// Of what sends on the producer's CPU.
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

/// Runs all loads through one path; a report for each. The caller is the receiving end, pinned to its CPU.
pub fn run(
    mut source: Box<dyn Source>,
    path: &mut dyn Path,
    loads: &[Load],
    cpu: usize,
    ns_per_tick: f64,
    realtime: bool,
) -> Vec<Value> {
    let talk = Talk::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pinned::pin(cpu);
            if realtime {
                pinned::realtime(PRODUCER_PRIORITY);
            }
            produce(source.as_mut(), loads, &talk);
            // A sender that shares this thread's ring may live on until the reader has all.
            while talk.begun.load(Ordering::Acquire) <= loads.len() as u64 && !talk.failed.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        if let Err(what) = warm(path, &talk) {
            talk.failed.store(true, Ordering::Release);
            return vec![json!({ "error": what })];
        }
        let reports = loads.iter().zip(0..).map(|(load, index)| read(path, load, index, &talk, ns_per_tick)).collect();
        talk.begun.store(loads.len() as u64 + 1, Ordering::Release);
        reports
    })
}

fn produce(source: &mut dyn Source, loads: &[Load], talk: &Talk) {
    while !talk.warm.load(Ordering::Acquire) {
        if talk.failed.load(Ordering::Acquire) {
            return;
        }
        source.push(&[[ticks(), 0, WARM, 0, 0, 0, 0, !0]]);
        std::thread::sleep(Duration::from_millis(1));
    }
    for (load, index) in loads.iter().zip(0..) {
        while talk.begun.load(Ordering::Acquire) <= index {
            std::thread::sleep(Duration::from_millis(1));
        }
        push_all(source, load, index);
        talk.pushed.store(index + 1, Ordering::Release);
    }
}

fn push_all(source: &mut dyn Source, load: &Load, index: u64) {
    let mut batch: [Record; BURST_MAX] = [[0; 8]; BURST_MAX];
    let batch = &mut batch[..load.burst];
    let (start, mut number) = (monotonic_ns() + 1_000_000, 0);
    for tick in 0..load.ticks() {
        for record in batch.iter_mut() {
            record[NUMBER] = number;
            record[LOAD] = index;
            record[CHECK] = !number;
            number += 1;
        }
        sleep_until(start + (tick * load.tick_ns) as i64);
        let now = ticks();
        batch.iter_mut().for_each(|record| record[STAMP] = now);
        source.push(batch);
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

fn read(path: &mut dyn Path, load: &Load, index: u64, talk: &Talk, ns_per_tick: f64) -> Value {
    let total = load.ticks() * load.burst as u64;
    let untimed = (UNTIMED_TICKS * load.burst as u64).min(total / 2);
    let mut taken: Vec<u64> = Vec::with_capacity(total as usize);
    let (mut received, mut next, mut disorder, mut torn) = (0, 0, 0_u64, 0_u64);
    let repairs = path.repairs();
    talk.begun.store(index + 1, Ordering::Release);
    let mut end = i64::MAX;
    while received < total && monotonic_ns() < end {
        path.step();
        while let Some(record) = path.receive() {
            let now = ticks();
            if record[LOAD] != index {
                continue;
            }
            torn += u64::from(record[CHECK] != !record[NUMBER]);
            disorder += u64::from(record[NUMBER] < next);
            next = record[NUMBER] + 1;
            received += 1;
            if record[NUMBER] >= untimed {
                taken.push(now.saturating_sub(record[STAMP]));
            }
        }
        if end == i64::MAX && talk.pushed.load(Ordering::Acquire) > index {
            end = monotonic_ns() + SETTLE_NS;
        }
    }
    taken.sort_unstable();
    let us = |percent: f64| {
        let at = (taken.len() as f64 * percent / 100.0).ceil() as usize;
        taken.get(at.clamp(1, taken.len().max(1)) - 1).map(|&ticks| ticks as f64 * ns_per_tick / 1_000.0)
    };
    json!({
        "load": load.name, "sent": total, "received": received, "disorder": disorder, "torn": torn,
        "repairs": path.repairs() - repairs, "timed": taken.len(),
        "p50": us(50.0), "p90": us(90.0), "p99": us(99.0), "p999": us(99.9), "max": us(100.0),
    })
}
