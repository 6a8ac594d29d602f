//! A reader on a mirror's host: it reads the mirror's ring, stamps each record, and tells the source when all is over.
//!
//! Its stamps go back after the run, so that they share neither CPU nor link with the records.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::report::{Counts, ReaderReport};
use super::source::{SAMPLES_MAX, samples};
use super::talk::{ANSWER_NS_MAX, ECHO_STAMPS, Kind, Link, MAGIC, NOT_READ, VERSION, answer};
use super::tally::{Finish, Tally, Told, drain};
use super::{LOOK, SECONDS_MAX, SIZES, StressError, check_stop, pin, sized};
use crate::ring::{ConsumerSettings, Received, RingConsumer, StartAt, Wait};
use crate::sys::clock::{self, monotonic_ns};

/// How long the source may take from one step to the next while it waits for others: its `--wait` and probes of many.
const STEP_NS_MAX: i64 = 600_000_000_000;
/// Longest run, twice: a producer may be late.
const RUN_NS_MAX: i64 = 2 * SECONDS_MAX as i64 * 1_000_000_000;
/// Pause between two attempts to connect or to attach.
const AGAIN: Duration = Duration::from_millis(20);

/// A reader's settings.
#[derive(Clone, PartialEq, Debug)]
pub struct ReaderSettings {
    /// The mirror's ring; it may come later.
    pub ring: PathBuf,
    /// Where the source listens.
    pub source: SocketAddr,
    /// How long source and ring may take to be there.
    pub wait: Duration,
    /// Polls in place of sleeping.
    pub spin: bool,
    /// The reading thread's CPU.
    pub cpu: Option<usize>,
    /// What this reader's clock is made to show more than it does (tests).
    pub clock_ahead_ns: i64,
    /// A record that is counted as if it had not come (tests).
    pub planted_loss: Option<u64>,
}

/// What the source said of its run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    run: u64,
    size: u32,
    total: u64,
    stride: u64,
}

impl Plan {
    /// A source that is none may say anything; what it says bounds our memory.
    fn of(words: &[u64]) -> Result<Plan, StressError> {
        let plan =
            Plan { run: words[0], size: words[1].min(u64::from(u32::MAX)) as u32, total: words[2], stride: words[3] };
        let fits = plan.stride > 0 && plan.total > 0 && samples(plan.total, plan.stride) <= SAMPLES_MAX;
        match SIZES.contains(&plan.size) && fits {
            true => Ok(plan),
            false => Err(StressError::Failed(format!("the source announces a run that cannot be: {plan:?}"))),
        }
    }
}

/// Reads one run. `stop` ends it early.
///
/// # Errors
/// No source or no ring in time, a source that says what it must not, or `stop`.
pub fn run(settings: &ReaderSettings, stop: &AtomicBool) -> Result<ReaderReport, StressError> {
    let until = monotonic_ns().saturating_add(settings.wait.as_nanos().min(STEP_NS_MAX as u128) as i64);
    let mut link = Link::new(connect(settings, until, stop)?, stop)?;
    link.send(Kind::Hello, &[MAGIC, VERSION])?;
    let plan = Plan::of(&link.expect(Kind::Welcome, 4, monotonic_ns() + ANSWER_NS_MAX)?)?;
    sized!(plan.size, read_run(settings, &plan, &mut link, until, stop))
}

fn connect(settings: &ReaderSettings, until_ns: i64, stop: &AtomicBool) -> Result<TcpStream, StressError> {
    loop {
        let error = match TcpStream::connect_timeout(&settings.source, Duration::from_secs(1)) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        check_stop(stop)?;
        if monotonic_ns() > until_ns {
            return Err(StressError::io(format!("--source {}", settings.source))(error));
        }
        clock::sleep(AGAIN);
    }
}

fn attach<const W: usize>(
    settings: &ReaderSettings,
    until_ns: i64,
    stop: &AtomicBool,
) -> Result<RingConsumer<[u64; W]>, StressError> {
    // A ring of an earlier run that still lies there is left as soon as the mirror makes the new one.
    let consumer = ConsumerSettings { follow: true, ..ConsumerSettings::default() };
    loop {
        let error = match RingConsumer::open(&settings.ring, StartAt::Oldest, &consumer) {
            Ok(ring) => return Ok(ring),
            Err(error) => error,
        };
        check_stop(stop)?;
        if monotonic_ns() > until_ns {
            return Err(error.into());
        }
        clock::sleep(AGAIN);
    }
}

fn read_run<const W: usize>(
    settings: &ReaderSettings,
    plan: &Plan,
    link: &mut Link<'_>,
    until_ns: i64,
    stop: &AtomicBool,
) -> Result<ReaderReport, StressError> {
    let ring = attach::<W>(settings, until_ns, stop)?;
    let now = || monotonic_ns().wrapping_add(settings.clock_ahead_ns);
    // Written once here, so that every page is there before the first record.
    let mut stamps = vec![NOT_READ; samples(plan.total, plan.stride)];
    link.send(Kind::Ready, &[])?;
    must_be(Kind::Start, answer(link, now, monotonic_ns() + STEP_NS_MAX)?)?;
    let (last, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (tally, last) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(settings, plan, ring, &mut stamps, (&last, &over)));
        let ended = link.expect(Kind::Ended, 1, monotonic_ns() + RUN_NS_MAX);
        match &ended {
            Ok(words) => last.store(words[0].clamp(1, plan.total), Ordering::Release),
            Err(_) => over.store(true, Ordering::Release),
        }
        let tally = reading.join().expect("the reader does not panic");
        ended.and(tally.map(|tally| (tally, last.load(Ordering::Acquire))))
    })?;
    let counts = *tally.counts();
    link.send(Kind::Counts, &words(&counts))?;
    must_be(Kind::Fetch, answer(link, now, monotonic_ns() + STEP_NS_MAX)?)?;
    for (chunk, index) in stamps.chunks(ECHO_STAMPS).zip(0..) {
        let mut echo = vec![index * ECHO_STAMPS as u64];
        echo.extend(chunk.iter().map(|stamp| *stamp as u64));
        link.send(Kind::Echo, &echo)?;
    }
    link.send(Kind::Bye, &[])?;
    link.expect(Kind::Bye, 0, monotonic_ns() + STEP_NS_MAX)?;
    Ok(ReaderReport { counts, delivery: counts.delivery(None, last) })
}

fn must_be(kind: Kind, (found, _): (Kind, Vec<u64>)) -> Result<(), StressError> {
    if found == kind {
        return Ok(());
    }
    Err(StressError::Failed(format!("{found:?} came in place of {kind:?}")))
}

/// Reads until all has come, or nothing comes any more after the end.
fn read<const W: usize>(
    settings: &ReaderSettings,
    plan: &Plan,
    mut ring: RingConsumer<[u64; W]>,
    stamps: &mut [i64],
    (last, over): (&AtomicU64, &AtomicBool),
) -> Result<Tally, StressError> {
    pin(settings.cpu)?;
    let wait = if settings.spin { Wait::Spin } else { Wait::default() };
    let (mut tally, mut finish) = (Tally::new(plan.run, settings.planted_loss), Finish::default());
    let mut note = |number: u64, now: i64| {
        let index = number - 1;
        if index.is_multiple_of(plan.stride)
            && let Some(stamp) = stamps.get_mut((index / plan.stride) as usize)
        {
            *stamp = now.wrapping_add(settings.clock_ahead_ns);
        }
    };
    while !over.load(Ordering::Acquire) {
        let mut count = drain(&mut ring, &mut tally, |number, _, now| note(number, now));
        if count == 0
            && let Received::Record { sequence, record } = ring.recv(wait, LOOK)?
        {
            let now = monotonic_ns();
            count = 1;
            if tally.take(sequence, &record, Told::by(&ring)) {
                note(sequence, now);
            }
        }
        if finish.is_done(last, tally.last(), count) {
            break;
        }
    }
    Ok(tally)
}

/// Counts as the frame has them.
fn words(counts: &Counts) -> [u64; 9] {
    [
        counts.first,
        counts.last,
        counts.received,
        counts.holes,
        counts.lapped,
        counts.skipped,
        counts.reordered,
        counts.wrong,
        counts.foreign,
    ]
}
