//! The launch in phases (threads, workers' start, armed, running) and the drain in stages.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::link::Doorbell;
use super::worker::{TAG_BITS, Turn, Worker};
use crate::config::Idle;
use crate::sys::uring::CoreRing;
use crate::sys::{clock, cpu, privilege};

/// Rounds without work before a parking core sleeps: about 20 µs of looking, the cost of one sleep and wake-up here.
const IDLE_ROUNDS_BEFORE_PARK: u32 = 200;
/// Rounds without work before a core under `backoff` yields its CPU.
const IDLE_ROUNDS_BEFORE_YIELD: u32 = 2_000;
/// Longest sleep: bounds how late a stop, a heartbeat and a timer without deadline can be.
const PARK_NS_MAX: i64 = 50_000_000;
/// Requests that a core queues before it must enter the kernel: more writes than a store has blocks by default.
const RING_ENTRIES: u32 = 256;
/// Kernel io workers of each kind per core: writes to preallocated files need none.
const IO_WORKERS_MAX: u32 = 2;
/// Completions with this worker number only wake the core.
const WAKE_WORKER: u16 = u16::MAX;
/// How often an ending core is looked at.
const JOIN_PAUSE: Duration = Duration::from_millis(2);
/// No stop has been asked for.
const NOT_STOPPING: u8 = u8::MAX;

/// One core to launch: where, how it idles, and its workers in polling order.
pub struct CorePlan {
    /// Its name in the configuration.
    pub name: String,
    /// The CPU it is pinned to; `None` leaves it to the scheduler (tests, one-off commands).
    pub cpu: Option<usize>,
    /// What it does without work.
    pub idle: Idle,
    /// Where the kernel's io workers of this core's io_uring may run: the CPUs of no core.
    pub io_cpus: Vec<usize>,
    /// What wakes it.
    pub doorbell: Arc<Doorbell>,
    /// Its workers.
    pub workers: Vec<Box<dyn Worker>>,
}

/// Why a launch failed; everything that was started has been undone.
#[derive(Debug, thiserror::Error)]
#[error("core \"{core}\": {what}")]
pub struct LaunchError {
    /// The core's name.
    pub core: String,
    /// One line for the user.
    pub what: String,
}

enum Report {
    Started { core: usize, result: Result<(), String> },
    Drained { worker: String, stage: u8 },
    Fault { worker: String, reason: String },
}

/// What the control thread shares with every core.
struct Shared {
    stop_stage: AtomicU8,
    finish: AtomicU8,
}

/// A core's pulse: rounds made, for the stall watchdog.
#[derive(Clone)]
pub struct Pulse {
    /// The core's name.
    pub name: String,
    rounds: Arc<AtomicU64>,
}

impl Pulse {
    /// Rounds since the start; a core that makes none for the configured time is stalled.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

/// Started cores, held at the gate until [`Launched::go`].
pub struct Launched {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    doorbells: Vec<Arc<Doorbell>>,
    reports: Receiver<Report>,
    gates: Vec<Sender<()>>,
    stages: Vec<u8>,
    pulses: Vec<Pulse>,
}

/// Starts one thread per core, pins it, and runs every worker's `start` on it. The cores then wait for
/// [`Launched::go`], so that the caller can attach the XDP program after every socket exists.
///
/// # Errors
/// The first worker's or core's refusal.
pub fn launch(cores: Vec<CorePlan>) -> Result<Launched, LaunchError> {
    let shared = Arc::new(Shared { stop_stage: AtomicU8::new(NOT_STOPPING), finish: AtomicU8::new(0) });
    let (report, reports) = crossbeam_channel::unbounded();
    let stages = cores.iter().flat_map(|core| core.workers.iter().map(|worker| worker.stage())).collect();
    let names: Vec<String> = cores.iter().map(|core| core.name.clone()).collect();
    let doorbells = cores.iter().map(|core| core.doorbell.clone()).collect();
    let (mut threads, mut gates, mut pulses) = (Vec::new(), Vec::new(), Vec::new());
    for (index, plan) in cores.into_iter().enumerate() {
        let (gate, opened) = crossbeam_channel::bounded(1);
        let rounds = Arc::new(AtomicU64::new(0));
        pulses.push(Pulse { name: plan.name.clone(), rounds: rounds.clone() });
        gates.push(gate);
        let (shared, report) = (shared.clone(), report.clone());
        let thread = std::thread::Builder::new()
            .name(format!("sluice-{}", plan.name))
            .spawn(move || core_main(index, plan, &shared, &report, &opened, &rounds))
            .map_err(|error| LaunchError { core: names[index].clone(), what: format!("no thread: {error}") })?;
        threads.push(thread);
    }
    let launched = Launched { shared, threads, doorbells, reports, gates, stages, pulses };
    match launched.await_started(&names) {
        Ok(()) => Ok(launched),
        Err(error) => {
            launched.abandon();
            Err(error)
        }
    }
}

impl Launched {
    fn await_started(&self, names: &[String]) -> Result<(), LaunchError> {
        for _ in 0..names.len() {
            match self.reports.recv() {
                Ok(Report::Started { result: Ok(()), .. }) => {}
                Ok(Report::Started { core, result: Err(what) }) => {
                    return Err(LaunchError { core: names[core].clone(), what });
                }
                Ok(_) | Err(_) => {
                    return Err(LaunchError { core: "?".into(), what: "a core ended before it had started".into() });
                }
            }
        }
        Ok(())
    }

    /// Ends cores that wait at the gate.
    fn abandon(self) {
        drop(self.gates);
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// Undoes a launch that has not been let go.
    pub fn cancel(self) {
        self.abandon();
    }

    /// Opens the gate.
    pub fn go(&self) {
        for gate in &self.gates {
            let _ = gate.send(());
        }
    }

    /// The cores' pulses, for the stall watchdog.
    pub fn pulses(&self) -> &[Pulse] {
        &self.pulses
    }

    /// The first fault a worker has reported, if any: the process should stop with it.
    pub fn fault(&self) -> Option<String> {
        while let Ok(report) = self.reports.try_recv() {
            if let Report::Fault { worker, reason } = report {
                return Some(format!("worker \"{worker}\": {reason}"));
            }
        }
        if self.threads.iter().any(JoinHandle::is_finished) {
            return Some("a core's thread ended by itself (a panic): see the log above".into());
        }
        None
    }

    /// Drains stage by stage, each within `bound`, then ends the cores.
    ///
    /// # Errors
    /// The names of workers that did not drain in time; their cores are ended all the same.
    pub fn stop(self, bound: Duration) -> Result<(), Vec<String>> {
        let mut late = Vec::new();
        let mut stages = self.stages.clone();
        stages.sort_unstable();
        stages.dedup();
        for &stage in &stages {
            let expected = self.stages.iter().filter(|&&s| s == stage).count();
            self.shared.stop_stage.store(stage, Ordering::Release);
            self.wake_all();
            let drained = self.await_drained(stage, expected, bound);
            if drained < expected {
                late.push(format!(
                    "{} of {expected} workers of stage {stage} did not drain in {bound:?}",
                    expected - drained
                ));
            }
        }
        self.shared.finish.store(1, Ordering::Release);
        self.wake_all();
        let end = clock::monotonic_ns() + bound.as_nanos() as i64;
        for (thread, pulse) in self.threads.into_iter().zip(&self.pulses) {
            while !thread.is_finished() && clock::monotonic_ns() < end {
                clock::sleep(JOIN_PAUSE);
            }
            // A thread that does not come back is left to the end of the process: a join would wait for it for ever.
            if !thread.is_finished() {
                late.push(format!("core \"{}\" did not end in {bound:?}", pulse.name));
            } else if thread.join().is_err() {
                late.push(format!("core \"{}\" panicked", pulse.name));
            }
        }
        if late.is_empty() { Ok(()) } else { Err(late) }
    }

    fn wake_all(&self) {
        for doorbell in &self.doorbells {
            doorbell.event.signal();
        }
    }

    fn await_drained(&self, stage: u8, expected: usize, bound: Duration) -> usize {
        let end = clock::monotonic_ns() + bound.as_nanos() as i64;
        let mut drained = 0;
        while drained < expected {
            let left = end - clock::monotonic_ns();
            if left <= 0 || self.threads.iter().any(JoinHandle::is_finished) {
                break;
            }
            match self.reports.recv_timeout(Duration::from_nanos(left.min(PARK_NS_MAX) as u64)) {
                Ok(Report::Drained { worker, stage: s }) if s == stage => {
                    tracing::debug!(worker, stage, "drained");
                    drained += 1;
                }
                Ok(Report::Fault { worker, reason }) => tracing::error!(worker, reason, "fault while draining"),
                Ok(_) | Err(_) => {}
            }
        }
        drained
    }
}

/// One core's thread.
fn core_main(
    index: usize,
    plan: CorePlan,
    shared: &Shared,
    report: &Sender<Report>,
    opened: &Receiver<()>,
    rounds: &AtomicU64,
) {
    let started = Core::start(plan).and_then(|core| {
        privilege::renounce().map_err(|error| format!("giving up capabilities: {error}"))?;
        Ok(core)
    });
    let mut core = match started {
        Ok(core) => core,
        Err(what) => {
            let _ = report.send(Report::Started { core: index, result: Err(what) });
            return;
        }
    };
    let _ = report.send(Report::Started { core: index, result: Ok(()) });
    if opened.recv().is_ok() {
        core.run(shared, report, rounds);
    }
    for seat in &mut core.seats {
        seat.worker.finish();
    }
}

struct Seat {
    worker: Box<dyn Worker>,
    stage: u8,
    stopped: bool,
    drained: bool,
}

struct Core {
    idle: Idle,
    doorbell: Arc<Doorbell>,
    ring: CoreRing,
    seats: Vec<Seat>,
    watched: Vec<RawFd>,
    fault: Option<(u16, String)>,
}

impl Core {
    fn start(plan: CorePlan) -> Result<Core, String> {
        if let Some(cpu) = plan.cpu
            && !cpu::pin(cpu)
        {
            return Err(format!(
                "cannot pin to cpu {cpu}: there is no such CPU, or it is outside of this process's cpuset"
            ));
        }
        let mut ring = CoreRing::new(RING_ENTRIES).map_err(|error| error.to_string())?;
        ring.enable(&plan.io_cpus, IO_WORKERS_MAX).map_err(|error| error.to_string())?;
        let mut core = Core {
            idle: plan.idle,
            doorbell: plan.doorbell,
            ring,
            seats: Vec::new(),
            watched: Vec::new(),
            fault: None,
        };
        core.watched.push(core.doorbell.event.as_raw_fd());
        for (index, mut worker) in plan.workers.into_iter().enumerate() {
            let mut turn =
                Turn { now: clock::monotonic_ns(), ring: &mut core.ring, worker: index as u16, fault: &mut core.fault };
            let fds = worker.start(&mut turn).map_err(|what| format!("worker \"{}\": {what}", worker.name()))?;
            core.watched.extend(fds);
            core.seats.push(Seat { stage: worker.stage(), worker, stopped: false, drained: false });
        }
        for watch in 0..core.watched.len() {
            core.watch(watch);
        }
        Ok(core)
    }

    fn watch(&mut self, watch: usize) {
        let user_data = u64::from(WAKE_WORKER) << TAG_BITS | watch as u64;
        if let Err(error) = self.ring.poll_raw(self.watched[watch], user_data) {
            self.fault.get_or_insert((WAKE_WORKER, format!("io_uring poll: {error}")));
        }
    }

    fn run(&mut self, shared: &Shared, report: &Sender<Report>, rounds: &AtomicU64) {
        let mut idle_rounds = 0_u32;
        let mut round = 0_u64;
        loop {
            round += 1;
            rounds.store(round, Ordering::Relaxed);
            let work = self.round();
            if self.fault.is_some() || shared.stop_stage.load(Ordering::Acquire) != NOT_STOPPING {
                self.attend(shared, report);
                if shared.finish.load(Ordering::Acquire) != 0 {
                    return;
                }
            }
            if work > 0 {
                idle_rounds = 0;
                continue;
            }
            idle_rounds = idle_rounds.saturating_add(1);
            match self.idle {
                Idle::Spin => std::hint::spin_loop(),
                Idle::Backoff if idle_rounds > IDLE_ROUNDS_BEFORE_YIELD => std::thread::yield_now(),
                Idle::Backoff => std::hint::spin_loop(),
                Idle::Park if idle_rounds > IDLE_ROUNDS_BEFORE_PARK && !self.stays_awake() => {
                    if self.park() {
                        idle_rounds = 0;
                    }
                }
                Idle::Park => std::hint::spin_loop(),
            }
        }
    }

    fn stays_awake(&self) -> bool {
        self.seats.iter().any(|seat| seat.worker.stays_awake())
    }

    /// One turn of every worker, then the core's submissions and completions.
    fn round(&mut self) -> usize {
        let now = clock::monotonic_ns();
        self.turns(now) + self.completions(now)
    }

    fn turns(&mut self, now: i64) -> usize {
        let mut work = 0;
        for index in 0..self.seats.len() {
            work += self.with(index, now, |worker, turn| worker.turn(turn));
        }
        work
    }

    fn with<R>(&mut self, index: usize, now: i64, call: impl FnOnce(&mut dyn Worker, &mut Turn<'_>) -> R) -> R {
        let mut turn = Turn { now, ring: &mut self.ring, worker: index as u16, fault: &mut self.fault };
        call(&mut *self.seats[index].worker, &mut turn)
    }

    fn completions(&mut self, now: i64) -> usize {
        if let Err(error) = self.ring.submit() {
            self.fault.get_or_insert((WAKE_WORKER, format!("io_uring submit: {error}")));
        }
        let mut work = 0;
        while let Some(completion) = self.ring.next_completion() {
            let worker = (completion.user_data >> TAG_BITS) as u16;
            let tag = completion.user_data & ((1 << TAG_BITS) - 1);
            if worker == WAKE_WORKER {
                if tag == 0 {
                    self.doorbell.event.clear();
                }
                if !completion.more() {
                    self.watch(tag as usize);
                }
                continue;
            }
            work += 1;
            self.with(usize::from(worker), now, |worker, turn| worker.complete(turn, tag, completion.result));
        }
        work
    }

    /// Sleeps until a descriptor, the doorbell, what a worker asked for, or a deadline; false when a last look found work.
    fn park(&mut self) -> bool {
        self.doorbell.parked.announce();
        let now = clock::monotonic_ns();
        for index in 0..self.seats.len() {
            self.with(index, now, |worker, turn| worker.before_sleep(turn));
        }
        let found = self.turns(now) > 0;
        if !found {
            self.sleep();
        }
        self.doorbell.parked.clear();
        self.seats.iter_mut().for_each(|seat| seat.worker.after_sleep());
        self.completions(clock::monotonic_ns()) > 0 || found
    }

    /// Submits what is queued and waits in the kernel; comes back at once when a completion is there already.
    fn sleep(&mut self) {
        let next = self.seats.iter().filter_map(|seat| seat.worker.deadline()).min().unwrap_or(i64::MAX);
        let wait = next.saturating_sub(clock::monotonic_ns()).min(PARK_NS_MAX);
        if wait > 0
            && let Err(error) = self.ring.submit_and_wait(Some(Duration::from_nanos(wait as u64)))
        {
            self.fault.get_or_insert((WAKE_WORKER, format!("io_uring wait: {error}")));
        }
    }

    /// Passes stop requests on, reports drained workers and faults.
    fn attend(&mut self, shared: &Shared, report: &Sender<Report>) {
        if let Some((worker, reason)) = self.fault.take() {
            let seat = self.seats.get(usize::from(worker));
            let worker = seat.map_or_else(|| "the core itself".to_string(), |seat| seat.worker.name().to_string());
            let _ = report.send(Report::Fault { worker, reason });
        }
        let stop_stage = shared.stop_stage.load(Ordering::Acquire);
        if stop_stage == NOT_STOPPING {
            return;
        }
        let now = clock::monotonic_ns();
        for index in 0..self.seats.len() {
            let seat = &mut self.seats[index];
            if seat.stage > stop_stage || seat.drained {
                continue;
            }
            if !seat.stopped {
                seat.stopped = true;
                self.with(index, now, |worker, turn| worker.stop(turn));
            }
            let seat = &mut self.seats[index];
            if seat.worker.drained() {
                seat.drained = true;
                let _ = report.send(Report::Drained { worker: seat.worker.name().to_string(), stage: seat.stage });
            }
        }
    }
}
