//! What a process shows of itself, whatever its jobs: version, memory, descriptors, threads, the host's clock, its cores' rounds,
//! its log. The control loop looks, what answers a scrape reads.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::sync::metrics::{Metric, Sample, Source};
use crate::sys::clock::{self, Discipline, StepWatch};
use crate::sys::own;
use crate::units::NANOS_PER_SECOND;

/// How often the clock is looked at: a step can come at any time, and each look is two system calls.
const CLOCK_EVERY_NS: i64 = NANOS_PER_SECOND;

const INFO: Metric = Metric::gauge("sluice_process_info", &["version"], "Always 1; the label is the version that runs");
const START: Metric =
    Metric::gauge("sluice_process_start_time_seconds", &[], "When the process started, seconds since 1970");
const CPU: Metric =
    Metric::counter("sluice_process_cpu_seconds", &[], "CPU time of all threads, those of its io_urings included");
const RESIDENT: Metric = Metric::gauge("sluice_process_resident_bytes", &[], "Bytes of memory that are resident");
const THREADS: Metric = Metric::gauge("sluice_process_threads", &[], "Threads");
const DESCRIPTORS: Metric = Metric::gauge("sluice_process_open_descriptors", &[], "Open descriptors");
const DESCRIPTORS_MAX: Metric =
    Metric::gauge("sluice_process_allowed_descriptors", &[], "Most descriptors that may be open (RLIMIT_NOFILE)");
const LOOK_AGE: Metric = Metric::gauge(
    "sluice_process_control_age_seconds",
    &[],
    "Since the control loop last looked at its cores; it does so ten times a second",
);

const STEPS: Metric =
    Metric::counter("sluice_clock_steps", &[], "Times that the wall clock was set, by more than 5 ms at once");
const STEP: Metric =
    Metric::gauge("sluice_clock_last_step_seconds", &[], "How far it was set the last time; 0: it never was");
const TAI_OFFSET: Metric = Metric::gauge(
    "sluice_clock_tai_offset_seconds",
    &[],
    "TAI - UTC as it is used; 37 since 2017, 0 where nobody has set it",
);
const TAI_KNOWN: Metric =
    Metric::gauge("sluice_clock_tai_offset_known", &[], "Whether somebody has told the kernel TAI - UTC");
const READABLE: Metric = Metric::gauge(
    "sluice_clock_readable",
    &[],
    "Whether adjtimex answers: 0 under a system call filter without it, and then the four below are missing",
);
const SYNCHRONIZED: Metric =
    Metric::gauge("sluice_clock_synchronized", &[], "Whether a daemon keeps the wall clock, as the kernel knows it");
const ESTIMATED_ERROR: Metric =
    Metric::gauge("sluice_clock_estimated_error_seconds", &[], "What the daemon says that the clock is wrong by");
const MAXIMUM_ERROR: Metric = Metric::gauge(
    "sluice_clock_maximum_error_seconds",
    &[],
    "What the clock is wrong by at most; it grows while nobody sets it, up to 16 s",
);

const ROUNDS: Metric = Metric::counter("sluice_core_rounds", &["core"], "Rounds that the core has made");
const ROUND_AGE: Metric = Metric::gauge(
    "sluice_core_round_age_seconds",
    &["core"],
    "Since the core was last seen to make a round, in the control loop's waking time; at control.stall the process ends",
);

const LOG_WRITTEN: Metric = Metric::counter("sluice_log_written_lines", &[], "Log lines written to standard error");
const LOG_LOST: Metric = Metric::counter(
    "sluice_log_lost_lines",
    &["reason"],
    "Log lines that nobody can read: \"dropped\" where standard error took none, \"limited\" where one place spoke too often",
);

/// Every metric of a process.
pub fn metrics() -> Vec<Metric> {
    vec![
        INFO,
        START,
        CPU,
        RESIDENT,
        THREADS,
        DESCRIPTORS,
        DESCRIPTORS_MAX,
        LOOK_AGE,
        STEPS,
        STEP,
        TAI_OFFSET,
        READABLE,
        TAI_KNOWN,
        SYNCHRONIZED,
        ESTIMATED_ERROR,
        MAXIMUM_ERROR,
        ROUNDS,
        ROUND_AGE,
        LOG_WRITTEN,
        LOG_LOST,
    ]
}

/// What became of the log's lines: written, dropped, limited.
pub type LogReader = fn() -> [u64; 3];

/// What is known of the host's clock. Its counts only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockView {
    /// Looks.
    pub looks: u64,
    /// Looks that found it kept by a daemon.
    pub synchronized_looks: u64,
    /// Looks that found TAI − UTC known.
    pub tai_known_looks: u64,
    /// Times that it was set.
    pub steps: u64,
    /// How far the last time, ns.
    pub last_step_ns: i64,
    /// How far in all, whichever way, ns.
    pub stepped_ns: u64,
    /// TAI − UTC as it is used, s.
    pub tai_offset_s: i32,
    /// How the kernel keeps it; `None` where it does not say.
    pub discipline: Option<Discipline>,
}

/// What is known of TAI − UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tai {
    Known,
    Unset,
    Refused,
}

struct ClockWatch {
    view: ClockView,
    steps: StepWatch,
    look_at: i64,
    told: Tai,
}

struct Core {
    name: String,
    rounds: AtomicU64,
    age_ns: AtomicI64,
}

/// The vitals of a process.
pub struct Vitals {
    started_utc_ns: i64,
    /// Stamps are made from CLOCK_TAI: what is known of TAI − UTC is worth a line in the log.
    stamps: bool,
    cores: Vec<Core>,
    looked_ns: AtomicI64,
    clock: Mutex<ClockWatch>,
    log: LogReader,
}

impl Vitals {
    /// The vitals of a process that starts now, with these cores. `stamps`: it makes stamps from CLOCK_TAI.
    pub fn new(cores: impl IntoIterator<Item = String>, stamps: bool, log: LogReader) -> Vitals {
        let core = |name| Core { name, rounds: AtomicU64::new(0), age_ns: AtomicI64::new(0) };
        let vitals = Vitals {
            started_utc_ns: clock::utc_ns(),
            stamps,
            cores: cores.into_iter().map(core).collect(),
            looked_ns: AtomicI64::new(clock::monotonic_ns()),
            clock: Mutex::new(ClockWatch {
                view: ClockView::default(),
                steps: StepWatch::default(),
                look_at: i64::MIN,
                told: Tai::Known,
            }),
            log,
        };
        vitals.look_at_clock(clock::monotonic_ns());
        vitals
    }

    /// When the process started, UTC ns.
    pub fn started_utc_ns(&self) -> i64 {
        self.started_utc_ns
    }

    /// What is known of the clock.
    pub fn clock(&self) -> ClockView {
        self.clock.lock().expect("nobody panics with it held").view
    }

    /// The control loop's look: each core's rounds, and since when it has made none, ns.
    pub fn look(&self, cores: impl Iterator<Item = (u64, i64)>, now_ns: i64) {
        for (core, (rounds, age_ns)) in self.cores.iter().zip(cores) {
            core.rounds.store(rounds, Ordering::Relaxed);
            core.age_ns.store(age_ns, Ordering::Relaxed);
        }
        self.looked_ns.store(now_ns, Ordering::Relaxed);
        self.look_at_clock(now_ns);
    }

    fn look_at_clock(&self, now_ns: i64) {
        let mut watch = self.clock.lock().expect("nobody panics with it held");
        if now_ns >= watch.look_at {
            watch.look_at = now_ns + CLOCK_EVERY_NS;
            let stepped_ns = watch.steps.look_far();
            watch.note(clock::discipline(), clock::tai_offset_seconds(), stepped_ns, self.stamps);
        }
    }
}

impl ClockWatch {
    fn note(&mut self, discipline: io::Result<Discipline>, tai_offset_s: i32, stepped_ns: i64, stamps: bool) {
        let view = &mut self.view;
        view.looks += 1;
        view.synchronized_looks += u64::from(discipline.as_ref().is_ok_and(|discipline| discipline.synchronized));
        view.tai_known_looks += u64::from(tai_offset_s != 0);
        view.tai_offset_s = tai_offset_s;
        view.discipline = discipline.as_ref().ok().copied();
        if stepped_ns != 0 {
            view.steps += 1;
            view.last_step_ns = stepped_ns;
            view.stepped_ns += stepped_ns.unsigned_abs();
            let seconds = stepped_ns as f64 / 1e9;
            tracing::warn!(
                seconds,
                steps = view.steps,
                "the wall clock was set: times on either side are not to be compared"
            );
        }
        if stamps {
            self.tell_of_tai(discipline, tai_offset_s);
        }
    }

    /// One line when what is known of TAI − UTC is another than before.
    fn tell_of_tai(&mut self, discipline: io::Result<Discipline>, tai_offset_s: i32) {
        let known = match &discipline {
            Err(_) => Tai::Refused,
            Ok(_) if tai_offset_s == 0 => Tai::Unset,
            Ok(_) => Tai::Known,
        };
        if std::mem::replace(&mut self.told, known) == known {
            return;
        }
        match discipline {
            Err(error) => tracing::error!(
                %error,
                tai_offset_s,
                "adjtimex is refused: TAI - UTC is taken from the two clocks, and nobody can tell whether they are kept; let the system call filter have adjtimex and clock_adjtime"
            ),
            Ok(_) if known == Tai::Unset => tracing::warn!(
                "the kernel's TAI - UTC offset is 0, which means unset: stamps are right only while CLOCK_TAI equals UTC; let chrony (leapsectz) or ptp4l/phc2sys set it"
            ),
            Ok(_) => tracing::info!(tai_offset_s, "the kernel's TAI - UTC offset is set"),
        }
    }
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

impl Source for Vitals {
    fn samples(&self, out: &mut Vec<Sample>) {
        out.push(INFO.sample(&[env!("CARGO_PKG_VERSION")], 1.0));
        out.push(START.sample(&[], self.started_utc_ns as f64 / 1e9));
        out.push(CPU.sample(&[], clock::process_cpu_ns() as f64 / 1e9));
        if let Ok(usage) = own::usage() {
            out.push(RESIDENT.sample(&[], usage.resident_bytes as f64));
            out.push(THREADS.sample(&[], usage.threads as f64));
            out.push(DESCRIPTORS.sample(&[], usage.descriptors as f64));
            out.push(DESCRIPTORS_MAX.sample(&[], usage.descriptors_max as f64));
        }
        let age_ns = clock::monotonic_ns() - self.looked_ns.load(Ordering::Relaxed);
        out.push(LOOK_AGE.sample(&[], age_ns.max(0) as f64 / 1e9));
        clock_samples(&self.clock(), out);
        for core in &self.cores {
            out.push(ROUNDS.sample(&[&core.name], core.rounds.load(Ordering::Relaxed) as f64));
            out.push(ROUND_AGE.sample(&[&core.name], core.age_ns.load(Ordering::Relaxed) as f64 / 1e9));
        }
        let [written, dropped, limited] = (self.log)();
        out.push(LOG_WRITTEN.sample(&[], written as f64));
        out.push(LOG_LOST.sample(&["dropped"], dropped as f64));
        out.push(LOG_LOST.sample(&["limited"], limited as f64));
    }

    fn status(&self) -> (&'static str, Value) {
        let usage = own::usage();
        let user_id = usage.as_ref().ok().map(|usage| usage.user_id);
        let usage = usage.unwrap_or_default();
        let clock = self.clock();
        let cores = self.cores.iter().map(|core| {
            json!({
                "core": core.name, "rounds": core.rounds.load(Ordering::Relaxed),
                "round_age_seconds": core.age_ns.load(Ordering::Relaxed) as f64 / 1e9,
            })
        });
        let [written, dropped, limited] = (self.log)();
        let status = json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(),
            "started_seconds": self.started_utc_ns as f64 / 1e9,
            "resident_bytes": usage.resident_bytes, "threads": usage.threads, "descriptors": usage.descriptors,
            "descriptors_max": usage.descriptors_max, "user_id": user_id, "user": user_id.and_then(own::user_name),
            "cores": cores.collect::<Vec<_>>(),
            "clock": {
                "steps": clock.steps, "last_step_seconds": clock.last_step_ns as f64 / 1e9,
                "tai_offset_seconds": clock.tai_offset_s, "tai_offset_known": clock.tai_offset_s != 0,
                "readable": clock.discipline.is_some(),
                "synchronized": clock.discipline.map(|discipline| discipline.synchronized),
                "estimated_error_seconds": clock.discipline.map(|discipline| discipline.estimated_error_ns as f64 / 1e9),
                "maximum_error_seconds": clock.discipline.map(|discipline| discipline.maximum_error_ns as f64 / 1e9),
            },
            "log": {"written": written, "dropped": dropped, "limited": limited},
        });
        ("process", status)
    }
}

fn clock_samples(view: &ClockView, out: &mut Vec<Sample>) {
    out.push(STEPS.sample(&[], view.steps as f64));
    out.push(STEP.sample(&[], view.last_step_ns as f64 / 1e9));
    out.push(TAI_OFFSET.sample(&[], f64::from(view.tai_offset_s)));
    out.push(READABLE.sample(&[], flag(view.discipline.is_some())));
    let Some(discipline) = view.discipline else { return };
    out.push(TAI_KNOWN.sample(&[], flag(discipline.tai_offset_s != 0)));
    out.push(SYNCHRONIZED.sample(&[], flag(discipline.synchronized)));
    out.push(ESTIMATED_ERROR.sample(&[], discipline.estimated_error_ns as f64 / 1e9));
    out.push(MAXIMUM_ERROR.sample(&[], discipline.maximum_error_ns as f64 / 1e9));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(vitals: &Vitals, name: &str) -> Vec<f64> {
        let mut samples = Vec::new();
        vitals.samples(&mut samples);
        samples.iter().filter(|sample| sample.name == name).map(|sample| sample.value).collect()
    }

    #[test]
    fn a_core_that_makes_no_round_shows_before_it_is_ended() {
        let vitals = Vitals::new(["rx".to_string(), "disk".to_string()], false, || [5, 1, 2]);
        vitals.look([(100, 0), (7, 3_500_000_000)].into_iter(), clock::monotonic_ns());
        assert_eq!(values(&vitals, "sluice_core_rounds"), [100.0, 7.0]);
        assert_eq!(values(&vitals, "sluice_core_round_age_seconds"), [0.0, 3.5]);
        assert_eq!(values(&vitals, "sluice_log_lost_lines"), [1.0, 2.0]);
        assert!(values(&vitals, "sluice_process_resident_bytes")[0] > 1e6);
        assert_eq!(vitals.status().1["cores"][1]["rounds"], 7);
    }

    #[test]
    fn every_sample_has_its_line_in_the_table() {
        let vitals = Vitals::new(["rx".to_string()], false, || [0; 3]);
        let mut samples = Vec::new();
        vitals.samples(&mut samples);
        for metric in metrics() {
            assert!(samples.iter().any(|sample| sample.name == metric.name), "{} has no sample", metric.name);
        }
        assert!(samples.iter().all(|sample| metrics().iter().any(|metric| metric.name == sample.name)));
    }

    #[test]
    fn steps_and_what_is_known_of_the_clock_are_counted() {
        let vitals = Vitals::new([], true, || [0; 3]);
        let begun = vitals.clock();
        let kept =
            Discipline { tai_offset_s: 37, synchronized: true, estimated_error_ns: 1_000, maximum_error_ns: 2_000 };
        {
            let mut watch = vitals.clock.lock().expect("free");
            watch.note(Ok(kept), 37, 0, true);
            watch.note(Ok(kept), 37, -2_000_000_000, true);
            watch.note(Err(io::Error::from_raw_os_error(1)), 37, 500_000_000, true);
            assert_eq!(watch.told, Tai::Refused);
        }
        let view = vitals.clock();
        assert_eq!((view.steps, view.last_step_ns, view.stepped_ns), (2, 500_000_000, 2_500_000_000));
        assert_eq!(view.looks - begun.looks, 3);
        assert_eq!(view.synchronized_looks - begun.synchronized_looks, 2);
        assert_eq!(values(&vitals, "sluice_clock_readable"), [0.0], "refused");
        assert_eq!(values(&vitals, "sluice_clock_synchronized"), [0.0; 0], "not known");
        assert_eq!(values(&vitals, "sluice_clock_tai_offset_seconds"), [37.0], "known all the same");
    }
}
