//! The source of a run between hosts: it produces into a ring that is served, and gathers what the readers found.
//!
//! One thread accepts, one attends to each reader, one produces; while it does, all others wait.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::offset::Compared;
use super::pace::{Parks, Pushed, Spins, produce};
use super::report::{Counts, Percentiles, Produced, RemoteReport, SourceReport};
use super::talk::{ANSWER_NS_MAX, ECHO_STAMPS, Kind, Link, MAGIC, NOT_READ, VERSION, compare};
use super::{LOOK, Load, SETTLE_NS, StressError, check_stop, new_run, pin, sized};
use crate::ring::{RingProducer, RingSettings};
use crate::sys::clock::{self, monotonic_ns};
use crate::units::NANOS_PER_SECOND;

/// Most records of a run that are timed, evenly chosen: 32 MiB of stamps here and for each reader.
pub(super) const SAMPLES_MAX: usize = 1 << 22;
/// Most readers: with their stamps half a GiB.
pub const READERS_MAX: usize = 16;
/// Most connections, those that have not said who they are included.
const CONNECTIONS_MAX: usize = 64;
/// From the word that it begins to the first record: readers are reading by then.
const START_PAUSE: Duration = Duration::from_millis(200);
/// How long a reader's stamps may take.
const ECHOES_NS_MAX: i64 = 120 * NANOS_PER_SECOND;
/// Longest wait for readers.
const WAIT_NS_MAX: i64 = 3_600 * NANOS_PER_SECOND;

/// The source's settings.
#[derive(Clone, PartialEq, Debug)]
pub struct SourceSettings {
    /// What is published.
    pub load: Load,
    /// The ring to make.
    pub ring: PathBuf,
    /// Its slots.
    pub capacity: u64,
    /// Where readers connect.
    pub listen: SocketAddr,
    /// How many there will be, 1 to [`READERS_MAX`].
    pub readers: usize,
    /// How long they may take to come.
    pub wait: Duration,
    /// The producer polls in place of sleeping.
    pub spin: bool,
    /// Its CPU.
    pub cpu: Option<usize>,
}

/// Every so many-th record is timed.
fn stride(total: u64) -> u64 {
    total.div_ceil(SAMPLES_MAX as u64).max(1)
}

/// Timed records of a run.
pub(super) fn samples(total: u64, stride: u64) -> usize {
    usize::try_from(total.div_ceil(stride)).unwrap_or(usize::MAX)
}

/// How far the run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Gathering,
    Comparing,
    Running,
    Ended,
    /// Nothing comes of it.
    Off,
}

struct State {
    phase: Phase,
    /// Readers that have said who they are and hold a place.
    entered: usize,
    /// Of these, those that are on their ring.
    ready: usize,
    /// Of these, those whose clocks are compared, or that failed.
    compared: usize,
    found: Vec<Result<RemoteReport, String>>,
}

/// Where all meet.
struct Hall<'a> {
    settings: &'a SourceSettings,
    run: u64,
    total: u64,
    stride: u64,
    stop: &'a AtomicBool,
    /// When the readers must be there.
    until_ns: i64,
    state: Mutex<State>,
    changed: Condvar,
    /// One comparison at a time: others' probes would lengthen its round trips.
    comparing: Mutex<()>,
    /// When each timed record was published. Written by the producer, read after [`Phase::Ended`], which it sets under the
    /// lock of `state`: that orders them.
    stamps: Vec<AtomicI64>,
    connections: AtomicUsize,
}

impl Hall<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until `look` gives something, at most until `until_ns` (then `None`).
    fn until<T>(&self, until_ns: i64, mut look: impl FnMut(&State) -> Option<T>) -> Result<Option<T>, StressError> {
        let mut state = self.state();
        loop {
            if let Some(found) = look(&state) {
                return Ok(Some(found));
            }
            if state.phase == Phase::Off {
                return Err(StressError::Failed("the run was called off".into()));
            }
            check_stop(self.stop)?;
            if monotonic_ns() > until_ns {
                return Ok(None);
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn reach(&self, phase: Phase) -> Result<(), StressError> {
        self.until(i64::MAX, |state| (state.phase == phase).then_some(())).map(drop)
    }

    fn is_open(&self) -> bool {
        self.state().phase == Phase::Gathering && !self.stop.load(Ordering::Relaxed)
    }
}

/// Runs it: makes the ring, waits for the readers, produces, gathers. `listening` is told where readers may connect; `stop`
/// ends it early.
///
/// # Errors
/// Settings that cannot be run, an address that cannot be had, readers that do not come, or `stop`. A reader that fails
/// later is in the report.
pub fn run(
    settings: &SourceSettings,
    stop: &AtomicBool,
    listening: impl FnOnce(SocketAddr),
) -> Result<SourceReport, StressError> {
    settings.load.check()?;
    if !(1..=READERS_MAX).contains(&settings.readers) {
        let what = format!("--readers {}: must be 1 to {READERS_MAX}", settings.readers);
        return Err(StressError::Settings(what));
    }
    if !settings.capacity.is_power_of_two() {
        return Err(StressError::Settings(format!("--capacity {}: must be a power of two", settings.capacity)));
    }
    let told = || StressError::io(format!("--listen {}", settings.listen));
    let listener = TcpListener::bind(settings.listen).map_err(told())?;
    listener.set_nonblocking(true).map_err(told())?;
    let address = listener.local_addr().map_err(told())?;
    sized!(settings.load.size, run_sized(settings, stop, &listener, || listening(address)))
}

fn run_sized<const W: usize>(
    settings: &SourceSettings,
    stop: &AtomicBool,
    listener: &TcpListener,
    listening: impl FnOnce(),
) -> Result<SourceReport, StressError> {
    let ring = RingSettings { capacity: settings.capacity, ..RingSettings::default() };
    let producer = RingProducer::<[u64; W]>::create(&settings.ring, &ring)?;
    let total = settings.load.total();
    let stride = stride(total);
    let hall = Hall {
        settings,
        run: new_run()?,
        total,
        stride,
        stop,
        until_ns: monotonic_ns() + settings.wait.as_nanos().min(WAIT_NS_MAX as u128) as i64,
        state: Mutex::new(State { phase: Phase::Gathering, entered: 0, ready: 0, compared: 0, found: Vec::new() }),
        changed: Condvar::new(),
        comparing: Mutex::new(()),
        stamps: (0..samples(total, stride)).map(|_| AtomicI64::new(NOT_READ)).collect(),
        connections: AtomicUsize::new(0),
    };
    listening();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while hall.is_open() {
                let Ok((stream, peer)) = listener.accept() else {
                    clock::sleep(LOOK);
                    continue;
                };
                if hall.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                    hall.connections.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let hall = &hall;
                scope.spawn(move || {
                    attend(hall, stream, peer);
                    hall.connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        let produced = conduct(&hall, producer);
        if produced.is_err() {
            hall.change(|state| state.phase = Phase::Off);
        }
        produced
    })
}

/// The run from its beginning to its end, with what the readers say of it.
fn conduct<const W: usize>(hall: &Hall, mut producer: RingProducer<[u64; W]>) -> Result<SourceReport, StressError> {
    let settings = hall.settings;
    let all = |count: fn(&State) -> usize| move |state: &State| (count(state) >= settings.readers).then_some(());
    if hall.until(hall.until_ns, all(|state| state.ready))?.is_none() {
        let State { ready, entered, .. } = *hall.state();
        let what = format!(
            "{ready} of {} readers were ready within {:?} ({entered} connected): each needs a mirror of {} on its host",
            settings.readers,
            settings.wait,
            settings.ring.display()
        );
        return Err(StressError::Failed(what));
    }
    hall.change(|state| state.phase = Phase::Comparing);
    hall.until(i64::MAX, all(|state| state.compared))?;
    hall.change(|state| state.phase = Phase::Running);
    let start_ns = monotonic_ns() + START_PAUSE.as_nanos() as i64;
    let pushed = std::thread::scope(|scope| {
        let thread = scope.spawn(|| publish(hall, &mut producer, start_ns));
        thread.join().expect("the producer does not panic")
    })?;
    hall.change(|state| state.phase = Phase::Ended);
    // The ring stays until all is repaired and read.
    hall.until(i64::MAX, all(|state| state.found.len()))?;
    let readers = std::mem::take(&mut hall.state().found);
    Ok(SourceReport { produced: Produced::of(&settings.load, &pushed), readers })
}

fn publish<const W: usize>(
    hall: &Hall,
    producer: &mut RingProducer<[u64; W]>,
    start_ns: i64,
) -> Result<Pushed, StressError> {
    let settings = hall.settings;
    pin(settings.cpu)?;
    let note = |number: u64, stamp| {
        let index = number - 1;
        if index.is_multiple_of(hall.stride) {
            hall.stamps[(index / hall.stride) as usize].store(stamp, Ordering::Relaxed);
        }
    };
    let what = (&settings.load, hall.run, start_ns);
    match settings.spin {
        true => produce(producer, what, &mut Spins, note, hall.stop),
        false => produce(producer, what, &mut Parks, note, hall.stop),
    }
}

/// One connection. Who is no reader is forgotten; a reader that fails once the run has all of them is reported.
fn attend(hall: &Hall, stream: TcpStream, peer: SocketAddr) {
    let link = match welcome(hall, stream) {
        Ok(link) => link,
        Err(error) => return tracing::debug!(%peer, %error, "no reader"),
    };
    let found = match compare_before(hall, link) {
        Ok((link, before)) => gather(hall, link, peer, before),
        Err(error) => {
            hall.change(|state| state.compared += 1);
            Err(error)
        }
    };
    hall.change(|state| state.found.push(found.map_err(|error| format!("{peer}: {error}"))));
}

/// Who it is, and that it is on its ring.
fn welcome<'a>(hall: &'a Hall, stream: TcpStream) -> Result<Link<'a>, StressError> {
    let mut link = Link::new(stream, hall.stop)?;
    let hello = link.expect(Kind::Hello, 2, monotonic_ns() + ANSWER_NS_MAX)?;
    if hello != [MAGIC, VERSION] {
        return Err(StressError::Failed(format!("magic {:#x}, version {}: not spoken here", hello[0], hello[1])));
    }
    let mut entered = false;
    hall.change(|state| {
        entered = state.phase == Phase::Gathering && state.entered < hall.settings.readers;
        state.entered += usize::from(entered);
    });
    if !entered {
        link.send(Kind::Busy, &[])?;
        return Err(StressError::Failed("no place left".into()));
    }
    let ready = be_ready(hall, &mut link);
    hall.change(|state| match ready {
        Ok(()) => state.ready += 1,
        // Its place is another's.
        Err(_) => state.entered -= 1,
    });
    ready.map(|()| link)
}

fn be_ready(hall: &Hall, link: &mut Link<'_>) -> Result<(), StressError> {
    link.send(Kind::Welcome, &[hall.run, u64::from(hall.settings.load.size), hall.total, hall.stride])?;
    link.expect(Kind::Ready, 0, hall.until_ns).map(drop)
}

fn compare_before<'a>(hall: &Hall, mut link: Link<'a>) -> Result<(Link<'a>, super::offset::Offset), StressError> {
    hall.reach(Phase::Comparing)?;
    let before = compare_alone(hall, &mut link)?;
    hall.change(|state| state.compared += 1);
    Ok((link, before))
}

fn compare_alone(hall: &Hall, link: &mut Link<'_>) -> Result<super::offset::Offset, StressError> {
    let _alone = hall.comparing.lock().unwrap_or_else(PoisonError::into_inner);
    compare(link)
}

/// The run, as this reader tells it.
fn gather(
    hall: &Hall,
    mut link: Link<'_>,
    peer: SocketAddr,
    before: super::offset::Offset,
) -> Result<RemoteReport, StressError> {
    hall.until(i64::MAX, |state| matches!(state.phase, Phase::Running | Phase::Ended).then_some(()))?;
    link.send(Kind::Start, &[])?;
    hall.reach(Phase::Ended)?;
    link.send(Kind::Ended, &[hall.total])?;
    // It may still have a whole ring to read, and then waits for what does not come.
    let counts = link.expect(Kind::Counts, 9, monotonic_ns() + 10 * SETTLE_NS + ANSWER_NS_MAX)?;
    let after = compare_alone(hall, &mut link)?;
    let clock = Compared { before, after };
    let mut one_way = echoes(hall, &mut link, &clock)?;
    link.send(Kind::Bye, &[])?;
    let counts = checked(hall, &counts)?;
    let delivery = counts.delivery(None, hall.total);
    let one_way = Percentiles::of_samples(&mut one_way);
    Ok(RemoteReport { peer: peer.to_string(), counts, delivery, clock, stride: hall.stride, one_way })
}

/// A reader's counts, as far as they can be true.
fn checked(hall: &Hall, words: &[u64]) -> Result<Counts, StressError> {
    let counts = Counts {
        first: words[0],
        last: words[1],
        received: words[2],
        holes: words[3],
        lapped: words[4],
        skipped: words[5],
        reordered: words[6],
        wrong: words[7],
        foreign: words[8],
    };
    let spans = counts.last.checked_sub(counts.first).is_some_and(|span| span < hall.total);
    let fits = counts.last <= hall.total && counts.received <= hall.total && counts.holes <= hall.total;
    let begins = counts.first > 0 || counts.received == 0;
    match spans && fits && begins {
        true => Ok(counts),
        false => Err(StressError::Failed(format!("its counts cannot be: {counts:?} of {} records", hall.total))),
    }
}

/// The reader's stamps, matched with ours by sequence: what each record took, ns.
fn echoes(hall: &Hall, link: &mut Link<'_>, clock: &Compared) -> Result<Vec<i64>, StressError> {
    link.send(Kind::Fetch, &[])?;
    let until = monotonic_ns() + ECHOES_NS_MAX;
    let mut taken = Vec::with_capacity(hall.stamps.len());
    let mut next = 0;
    loop {
        let (kind, words) = link.receive(until)?;
        match (kind, words.split_first()) {
            (Kind::Bye, None) => return Ok(taken),
            (Kind::Echo, Some((&first, echoed))) if first == next && echoed.len() <= ECHO_STAMPS => {
                next += echoed.len() as u64;
                let Some(published) = hall.stamps.get(first as usize..next as usize) else {
                    return Err(StressError::Failed(format!("it has stamps of records beyond {}", hall.total)));
                };
                let pairs = published.iter().zip(echoed).filter(|(_, echo)| **echo as i64 != NOT_READ);
                taken.extend(pairs.map(|(published, &echo)| {
                    let published = published.load(Ordering::Relaxed);
                    clock.ours(echo as i64, published).saturating_sub(published)
                }));
            }
            (kind, _) => return Err(StressError::Failed(format!("{kind:?} came in place of stamps"))),
        }
    }
}
