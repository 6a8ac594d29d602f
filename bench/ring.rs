//! One record from a pinned thread to another: the floor of the hardware, the peers and our ring, in turns in one run.
//! `cargo bench --bench ring [-- SECONDS]`, or `cargo xtask bench ring`.
//!
//! A virtual machine's two CPUs move: half a round trip of a cache line takes about 50 ns at one time and 250 ns a minute
//! later. Each measurement therefore stands between two looks at the placement, counts as near or far by them, and is
//! thrown away (and counted) where they differ. Ratios are formed between neighbours of one round only.

// A measurement may read the clock; the product reads it in `sys::clock` alone.
#![allow(clippy::disallowed_methods)]

mod common;
mod pinned;
mod ring_peers;

use std::collections::BTreeMap;
use std::hint::{black_box, spin_loop};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pinned::{Line, Placement, Ready, ticks};
use ring_peers::{
    Contender, Crossbeam, Floor, Receiver, Record, RingfireLossless, RingfireLossy, Rtrb, Sender, Sluice,
    SluiceLossless,
};

/// How long rounds are begun, unless the command line says otherwise.
const RUN: Duration = Duration::from_secs(150);
/// A run that takes longer than it was given by this much has hung.
const OVERDUE: Duration = Duration::from_secs(60);
/// Entries of the rings through which single records go back and forth.
const LATENCY_CAPACITY: usize = 4_096;
/// Entries of the rings that are filled as fast as can be: room for a reader that is held up for a while.
const THROUGHPUT_CAPACITY: usize = 65_536;
/// One message each 5 µs: 200,000 a second.
const PACE_NS: f64 = 5_000.0;
/// Throughput means without loss, also for contenders that may lose records: every sender stops when the receiver, which
/// says each so many records how far it is, lies this far behind.
const SAY_EACH: u64 = 4_096;
const BEHIND_MAX: u64 = THROUGHPUT_CAPACITY as u64 - 2 * SAY_EACH;
/// Records of one batch call that sends, and room of one that receives.
const BATCH_SEND: usize = 32;
const BATCH_RECEIVE: usize = 64;

/// How much is measured at a time.
struct Sizes {
    trips: usize,
    paced: usize,
    single: u64,
    batch: u64,
}

/// 10 samples lie above p99.9; a throughput run takes 30–300 ms.
const SIZES: Sizes = Sizes { trips: 20_000, paced: 10_000, single: 2_000_000, batch: 4_000_000 };
/// As a test, in a debug build.
const SMALL: Sizes = Sizes { trips: 200, paced: 200, single: 5_000, batch: 5_000 };

/// The machine that measures.
struct Bench<'a> {
    folder: &'a Path,
    cpus: (usize, usize),
    ns_per_tick: f64,
    sizes: &'a Sizes,
    found: Found,
}

/// What was found: samples by (placement, record bytes, contender, measure), one a round.
#[derive(Default)]
struct Found {
    samples: BTreeMap<(Placement, usize, &'static str, &'static str), Vec<f64>>,
    /// Measurements during which the CPUs moved.
    moved: u64,
    kept: u64,
    /// Paced measurements in which the receiver was off its CPU for a whole ring: a busy machine.
    lapped: u64,
}

/// One contender's figures of one round, with the placement under which each was taken.
#[derive(Default)]
struct Figures(Vec<(Placement, &'static str, f64)>);

impl Figures {
    fn of(&self, placement: Placement, measure: &str) -> Option<f64> {
        self.0.iter().find(|found| found.0 == placement && found.1 == measure).map(|found| found.2)
    }
}

impl Bench<'_> {
    /// Runs `measure` between two looks at the placement.
    fn between_looks<R>(&mut self, measure: impl FnOnce(&mut Self) -> R) -> (Option<Placement>, R) {
        let look = |bench: &Self| Placement::of(pinned::probe(bench.cpus.1, bench.ns_per_tick));
        let before = look(self);
        let result = measure(self);
        let after = look(self);
        let same = (before == after).then_some(before);
        match same {
            Some(_) => self.found.kept += 1,
            None => self.found.moved += 1,
        }
        (same, result)
    }

    /// Everything about one contender once.
    fn measure<const WORDS: usize, C: Contender<WORDS>>(&mut self) -> Figures {
        let mut figures = Figures::default();
        let mut add = |placement: Option<Placement>, named: &[(&'static str, f64)]| {
            if let Some(placement) = placement {
                figures.0.extend(named.iter().map(|(name, value)| (placement, *name, *value)));
            }
        };
        let (placement, mut trips) = self.between_looks(|bench| bench.round_trips::<WORDS, C>());
        let [p50, p99, p999] = self.percentiles(&mut trips, 0.5);
        add(placement, &[("rtt_p50", p50), ("rtt_p99", p99), ("rtt_p999", p999)]);
        let (placement, mut paced) = self.between_looks(|bench| bench.paced::<WORDS, C>());
        let lapped = C::QUEUE && paced.len() < self.sizes.paced;
        self.found.lapped += u64::from(lapped);
        let [p50, p99, p999] = self.percentiles(&mut paced, 1.0);
        add(placement.filter(|_| !lapped), &[("paced_p50", p50), ("paced_p99", p99), ("paced_p999", p999)]);
        if C::QUEUE {
            let (placement, rate) = self.between_looks(|bench| bench.throughput::<WORDS, C, false>());
            add(placement, &[("single", rate)]);
        }
        if C::BATCH {
            let (placement, rate) = self.between_looks(|bench| bench.throughput::<WORDS, C, true>());
            add(placement, &[("batch", rate)]);
        }
        for &(placement, measure, value) in &figures.0 {
            self.found.samples.entry((placement, WORDS * 8, C::NAME, measure)).or_default().push(value);
        }
        figures
    }

    fn percentiles(&self, samples: &mut [u64], part: f64) -> [f64; 3] {
        samples.sort_unstable();
        let at = |percent: f64| {
            let index = (samples.len() as f64 * percent / 100.0).ceil() as usize;
            samples[index.clamp(1, samples.len()) - 1] as f64 * self.ns_per_tick * part
        };
        [at(50.0), at(99.0), at(99.9)]
    }

    /// There and back, one record under way: ticks of each trip.
    fn round_trips<const WORDS: usize, C: Contender<WORDS>>(&self) -> Vec<u64> {
        let (mut there, mut there_end) = C::open(self.folder, LATENCY_CAPACITY);
        let (mut back, mut back_end) = C::open(self.folder, LATENCY_CAPACITY);
        let (trips, other) = (self.sizes.trips, self.cpus.1);
        // As many again beforehand: the ring's pages and the branch predictor are warm.
        let total = 2 * trips;
        let mut taken = Vec::with_capacity(total);
        let ready = Ready::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pinned::pin(other);
                ready.say();
                let (there_end, back) = (&mut there_end, &mut back);
                for _ in 0..total {
                    let record = wait_for(there_end);
                    back.send(&record);
                }
            });
            ready.wait();
            let mut record: Record<WORDS> = [0; WORDS];
            for trip in 0..total as u64 {
                record[0] = trip;
                record[WORDS - 1] = !trip;
                let sent = ticks();
                there.send(&record);
                let echo = wait_for(&mut back_end);
                taken.push(ticks() - sent);
                assert_eq!((echo[0], echo[WORDS - 1]), (trip, !trip), "{}: another record came back", C::NAME);
            }
        });
        taken.split_off(trips)
    }

    /// One way at a fixed pace; the receiver reads the same counter: ticks from before the push to after the receipt.
    fn paced<const WORDS: usize, C: Contender<WORDS>>(&self) -> Vec<u64> {
        let (mut sender, mut receiver) = C::open(self.folder, LATENCY_CAPACITY);
        let (count, other) = (self.sizes.paced, self.cpus.1);
        let pace = (PACE_NS / self.ns_per_tick) as u64;
        let ready = Ready::default();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| {
                pinned::pin(other);
                let mut taken = Vec::with_capacity(count);
                ready.say();
                let mut next = 0;
                while next < count as u64 {
                    let record = wait_for(&mut receiver);
                    taken.push(ticks().saturating_sub(record[0]));
                    // A receiver that was kept off its CPU for a whole ring is lapped.
                    assert!(!C::QUEUE || record[WORDS - 1] >= next, "{}: a record came again", C::NAME);
                    next = record[WORDS - 1] + 1;
                }
                taken
            });
            ready.wait();
            let mut record: Record<WORDS> = [0; WORDS];
            let start = ticks() + pace;
            for number in 0..count as u64 {
                while ticks() < start + number * pace {
                    spin_loop();
                }
                record[WORDS - 1] = number;
                record[0] = ticks();
                sender.send(&record);
            }
            taken.join().expect("the receiver")
        })
    }

    /// As fast as can be without a loss, every record copied out and looked at: million records a second.
    fn throughput<const WORDS: usize, C: Contender<WORDS>, const BATCH: bool>(&self) -> f64 {
        let (mut sender, mut receiver) = C::open(self.folder, THROUGHPUT_CAPACITY);
        let (count, other) = (if BATCH { self.sizes.batch } else { self.sizes.single }, self.cpus.1);
        let (ready, progress) = (Ready::default(), Line::default());
        let (start, end) = std::thread::scope(|scope| {
            let end = scope.spawn(|| {
                pinned::pin(other);
                ready.say();
                match BATCH {
                    true => drain_batches(&mut receiver, count, &progress.0[0]),
                    false => drain(&mut receiver, count, &progress.0[0]),
                }
            });
            ready.wait();
            let start = ticks();
            match BATCH {
                true => fill_batches(&mut sender, count, &progress.0[0]),
                false => fill(&mut sender, count, &progress.0[0]),
            }
            (start, end.join().expect("the receiver"))
        });
        count as f64 * 1e3 / ((end - start) as f64 * self.ns_per_tick)
    }

    /// All contenders once; ratios to the floor, which is the first.
    fn round<const WORDS: usize>(&mut self, turn: usize) {
        let contenders = contenders::<WORDS>();
        let mut all: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
        // Each begins a round in its turn: nobody always follows the same neighbour.
        for step in 0..contenders.len() {
            let which = (turn + step) % contenders.len();
            all[which] = contenders[which].1(self);
        }
        let of = |name| contenders.iter().position(|contender| contender.0 == name).expect("a contender");
        for (ours, peer) in [("sluice", "ringfire"), ("sluice-lossless", "ringfire-lossless")] {
            for (shown, measure) in [("single_of_ringfire", "single"), ("batch_of_ringfire", "batch")] {
                self.ratio(WORDS, ours, shown, measure, &all[of(ours)], &all[of(peer)]);
            }
        }
        for (which, (name, _)) in contenders.iter().enumerate().skip(1) {
            self.ratio(WORDS, name, "rtt_of_floor", "rtt_p50", &all[which], &all[0]);
            self.ratio(WORDS, name, "paced_of_floor", "paced_p50", &all[which], &all[0]);
        }
    }

    fn ratio(
        &mut self,
        words: usize,
        name: &'static str,
        shown: &'static str,
        measure: &str,
        of: &Figures,
        to: &Figures,
    ) {
        for placement in [Placement::Near, Placement::Far] {
            if let (Some(of), Some(to)) = (of.of(placement, measure), to.of(placement, measure)) {
                self.found.samples.entry((placement, words * 8, name, shown)).or_default().push(of / to);
            }
        }
    }
}

/// A contender's name, and what measures everything about it once.
type Entry = (&'static str, fn(&mut Bench) -> Figures);

fn entry<const WORDS: usize, C: Contender<WORDS>>() -> Entry {
    (C::NAME, |bench| bench.measure::<WORDS, C>())
}

/// The floor first.
fn contenders<const WORDS: usize>() -> Vec<Entry> {
    vec![
        entry::<WORDS, Floor>(),
        entry::<WORDS, Sluice>(),
        entry::<WORDS, RingfireLossy>(),
        entry::<WORDS, SluiceLossless>(),
        entry::<WORDS, RingfireLossless>(),
        entry::<WORDS, Rtrb>(),
        entry::<WORDS, Crossbeam>(),
    ]
}

#[inline(always)]
fn wait_for<const WORDS: usize>(receiver: &mut impl Receiver<WORDS>) -> Record<WORDS> {
    loop {
        if let Some(record) = receiver.receive() {
            return record;
        }
        spin_loop();
    }
}

#[inline(always)]
fn numbered<const WORDS: usize>(number: u64) -> Record<WORDS> {
    let mut record = [0; WORDS];
    record[0] = number;
    record[WORDS - 1] = !number;
    record
}

/// Waits, each so many records, until the receiver is near enough.
#[inline(always)]
fn keep_near(number: u64, progress: &AtomicU64) {
    if number.is_multiple_of(SAY_EACH) {
        while number - progress.load(Ordering::Relaxed) > BEHIND_MAX {
            spin_loop();
        }
    }
}

#[inline(never)]
fn fill<const WORDS: usize>(sender: &mut impl Sender<WORDS>, count: u64, progress: &AtomicU64) {
    for number in 0..count {
        keep_near(number, progress);
        sender.send(&numbered(number));
    }
}

#[inline(never)]
fn fill_batches<const WORDS: usize>(sender: &mut impl Sender<WORDS>, count: u64, progress: &AtomicU64) {
    let mut batch = [[0; WORDS]; BATCH_SEND];
    let mut number = 0;
    while number < count {
        keep_near(number, progress);
        let length = (count - number).min(BATCH_SEND as u64);
        for record in &mut batch[..length as usize] {
            *record = numbered(number);
            number += 1;
        }
        sender.send_batch(&batch[..length as usize]);
    }
}

/// Receives `count` records; when the last was there.
#[inline(never)]
fn drain<const WORDS: usize>(receiver: &mut impl Receiver<WORDS>, count: u64, progress: &AtomicU64) -> u64 {
    for number in 0..count {
        check(black_box(&wait_for(receiver)), number);
        if number.is_multiple_of(SAY_EACH) {
            progress.store(number, Ordering::Relaxed);
        }
    }
    ticks()
}

#[inline(never)]
fn drain_batches<const WORDS: usize>(receiver: &mut impl Receiver<WORDS>, count: u64, progress: &AtomicU64) -> u64 {
    let mut batch = [[0; WORDS]; BATCH_RECEIVE];
    let (mut next, mut said) = (0, 0);
    while next < count {
        let length = receiver.receive_batch(&mut batch);
        for record in black_box(&batch[..length]) {
            check(record, next);
            next += 1;
        }
        if next - said >= SAY_EACH {
            said = next;
            progress.store(said, Ordering::Relaxed);
        }
        if length == 0 {
            spin_loop();
        }
    }
    ticks()
}

/// None is missing, none is torn.
#[inline(always)]
fn check<const WORDS: usize>(record: &Record<WORDS>, number: u64) {
    assert!(record[0] == number && record[WORDS - 1] == !number, "record {number} is missing or torn");
}

/// What a column shows.
const COLUMNS: [(&str, &str); 11] = [
    ("rtt_p50", "RTT/2 p50"),
    ("rtt_p99", "p99"),
    ("rtt_p999", "p99.9"),
    ("rtt_of_floor", "x floor"),
    ("paced_p50", "paced p50"),
    ("paced_p99", "p99"),
    ("paced_of_floor", "x floor"),
    ("single", "M/s single"),
    ("single_of_ringfire", "x ringfire"),
    ("batch", "M/s batch"),
    ("batch_of_ringfire", "x ringfire"),
];

impl Found {
    fn print(&self) {
        for placement in [Placement::Near, Placement::Far] {
            for bytes in [56, 64] {
                self.print_table(placement, bytes);
            }
        }
        println!("{} measurements kept, {} thrown away because the CPUs moved", self.kept, self.moved);
        if self.lapped > 0 {
            println!("of them {} thrown away because a receiver was lapped: the machine is busy", self.lapped);
        }
        for ((placement, bytes, name, measure), samples) in &self.samples {
            let unit = match *measure {
                "single" | "batch" => "M/s",
                name if name.contains("_of_") => "x",
                _ => "ns",
            };
            common::figure(&format!("ring/{}/{bytes}/{name}/{measure}", placement.name()), unit, samples);
        }
    }

    fn print_table(&self, placement: Placement, bytes: usize) {
        let mut names = Vec::new();
        for key in self.samples.keys().filter(|key| (key.0, key.1) == (placement, bytes)) {
            if !names.contains(&key.2) {
                names.push(key.2);
            }
        }
        if names.is_empty() {
            return println!("{}, {bytes} B: not seen in this run", placement.name());
        }
        println!(
            "{}, {bytes} B records: ns and million records a second, median (10 %-90 % of rounds)",
            placement.name()
        );
        print!("{:<18} {:>3}", "", "n");
        COLUMNS.iter().for_each(|(_, shown)| print!(" {shown:>18}"));
        println!();
        for name in names {
            let of = |measure| self.samples.get(&(placement, bytes, name, measure)).map(Vec::as_slice);
            print!("{name:<18} {:>3}", of("rtt_p50").map_or(0, <[f64]>::len));
            for (measure, _) in COLUMNS {
                print!(" {:>18}", of(measure).map_or("-".to_string(), spread));
            }
            println!();
        }
        println!();
    }
}

/// `median (10 %-90 %)`.
fn spread(samples: &[f64]) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent| common::percentile(&sorted, percent);
    let digits = if at(50.0) < 10.0 { 2 } else { 0 };
    format!("{:.digits$} ({:.digits$}-{:.digits$})", at(50.0), at(10.0), at(90.0))
}

fn main() {
    let Some(cpus) = pinned::two_cpus() else {
        println!("skipped: needs two CPUs");
        return;
    };
    let small = common::is_test();
    let asked = std::env::args().filter_map(|arg| arg.parse().ok()).next();
    let run = if small { Duration::ZERO } else { asked.map_or(RUN, Duration::from_secs) };
    pinned::end_after(run + OVERDUE);
    pinned::pin(cpus.0);
    let folder = common::memory_folder();
    let mut bench = Bench {
        folder: folder.path(),
        cpus,
        ns_per_tick: pinned::ns_per_tick(),
        sizes: if small { &SMALL } else { &SIZES },
        found: Found::default(),
    };
    let started = Instant::now();
    let mut turn = 0;
    while turn == 0 || started.elapsed() < run {
        bench.round::<7>(turn);
        bench.round::<8>(turn);
        turn += 1;
    }
    println!("{turn} rounds in {:.0?}, CPUs {} and {}", started.elapsed(), cpus.0, cpus.1);
    bench.found.print();
}
