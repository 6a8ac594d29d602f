//! `--mode local` and `localtap`: a pipe in this process, with nothing sent: how fast a source gives ledgers at all, and over how
//! long it gives each.

use std::time::Duration;

use super::settings::Settings;
use crate::cli::{Exit, Failure};
use crate::ledger::bench::sample::{Sample, Sampler};
use crate::ledger::bench::summary::{Measured, Mode};
use crate::ledger::source::{Poll, Source};
use crate::sys::signal::{Asked, Signals};
use crate::sys::{clock, wait};

/// Pause before a source whose descriptors are readable without anything to read is asked again.
const PAUSE: Duration = Duration::from_millis(1);
/// How much is read of a pipe at a time: what the kernel is asked to hold.
const ROOM_BYTES: usize = 1 << 20;
/// Longest wait without a look at the signals.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the end of the source's process is waited for: its own patience is 5 s, then it is killed.
const STOP_NS_MAX: i64 = 15_000_000_000;

/// Runs until the source has no more, the range or the count is reached, or it is interrupted.
pub fn run(settings: &Settings) -> Result<(Measured, Option<Failure>), Failure> {
    let signals = Signals::take().map_err(|error| Failure::host(format!("signalfd: {error}")))?;
    let storage = tempfile_dir(settings)?;
    let mut source = super::server::source(settings, storage.path())?;
    let mut watch = Watch::new(settings);
    let ended = watch.follow(source.as_mut(), &signals);
    let mut failed = ended.err().map(|message| Failure { message, exit: Exit::Difference });
    if let Some(late) = stop(source.as_mut()) {
        failed.get_or_insert(late);
    }
    let measured = Measured {
        mode: settings.mode,
        samples: watch.samples,
        others: Vec::new(),
        window_ns: None,
        checksum_failures: 0,
        verified: None,
        raw_fallbacks: None,
        cpu: None,
        clock: None,
        ended_by: failed
            .as_ref()
            .map(|failure| failure.message.clone())
            .or(watch.interrupted.then(|| "interrupted".into())),
    };
    Ok((measured, failed))
}

/// Looks at each ledger as it comes.
struct Watch {
    tap: bool,
    count: Option<u32>,
    end: Option<u32>,
    sampler: Sampler,
    samples: Vec<Sample>,
    /// The whole ledger in `local`; in `localtap` only the room that is read into.
    ledger: Vec<u8>,
    interrupted: bool,
}

/// The ledger at hand.
#[derive(Clone, Copy)]
struct Open {
    sequence: u32,
    bytes: usize,
    first_ns: i64,
    last_ns: i64,
}

impl Watch {
    fn new(settings: &Settings) -> Watch {
        Watch {
            tap: settings.mode == Mode::LocalTap,
            count: settings.count,
            end: settings.range.end(),
            sampler: Sampler::new(clock::monotonic_ns()),
            samples: Vec::new(),
            ledger: vec![0; ROOM_BYTES],
            interrupted: false,
        }
    }

    /// The error is the source's own word.
    fn follow(&mut self, source: &mut dyn Source, signals: &Signals) -> Result<(), String> {
        let fds = source.start(clock::monotonic_ns()).map_err(|error| error.to_string())?;
        let mut open: Option<Open> = None;
        let mut waited = false;
        loop {
            let at = if self.tap { 0 } else { open.map_or(0, |open| open.bytes) };
            if self.ledger.len() < at + ROOM_BYTES {
                self.ledger.resize(at + ROOM_BYTES, 0);
            }
            match source.poll(&mut self.ledger[at..], clock::monotonic_ns()).map_err(|error| error.to_string())? {
                Poll::Begin { sequence, .. } => {
                    // Its first bytes are there: they are what told its sequence.
                    let now = clock::monotonic_ns();
                    open = Some(Open { sequence, bytes: 0, first_ns: now, last_ns: now });
                }
                Poll::Bytes(bytes) => {
                    if let Some(open) = &mut open {
                        open.bytes += bytes;
                        open.last_ns = clock::monotonic_ns();
                    }
                }
                Poll::End => {
                    if let Some(open) = open.take()
                        && self.ended(open)
                    {
                        return Ok(());
                    }
                    if self.is_interrupted(signals, Duration::ZERO)? {
                        return Ok(());
                    }
                }
                Poll::Wait => {
                    let now = clock::monotonic_ns();
                    let until = source.deadline().map_or(LOOK_EVERY, |at| {
                        Duration::from_nanos(u64::try_from(at - now).unwrap_or(0)).min(LOOK_EVERY)
                    });
                    let ready =
                        wait::readable(&fds, until).map_err(|error| format!("waiting for the source: {error}"))?;
                    if self.is_interrupted(signals, Duration::ZERO)? {
                        return Ok(());
                    }
                    // What is readable for ever, as a pipe at its end, is no reason to look without pause.
                    if ready && std::mem::replace(&mut waited, true) {
                        clock::sleep(PAUSE);
                    }
                    continue;
                }
                Poll::Finished => return Ok(()),
            }
            waited = false;
        }
    }

    /// Takes a sample; whether it was the last.
    fn ended(&mut self, open: Open) -> bool {
        let emit_ns = self.tap.then_some(open.last_ns - open.first_ns);
        let sample = self.sampler.local(open.sequence, open.bytes as u64, emit_ns, clock::monotonic_ns());
        self.samples.push(sample);
        self.count.is_some_and(|count| self.samples.len() >= count as usize)
            || self.end.is_some_and(|end| open.sequence >= end)
    }

    fn is_interrupted(&mut self, signals: &Signals, bound: Duration) -> Result<bool, String> {
        let asked = signals.wait(bound).map_err(|error| format!("waiting for signals: {error}"))?;
        self.interrupted |= asked == Some(Asked::Stop);
        Ok(self.interrupted)
    }
}

/// Ends the source; what to say when it does not end.
fn stop(source: &mut dyn Source) -> Option<Failure> {
    let end = clock::monotonic_ns() + STOP_NS_MAX;
    while !source.stop(clock::monotonic_ns()) {
        if clock::monotonic_ns() > end {
            return Some(Failure::host("the source's process did not end within 15 s"));
        }
        clock::sleep(Duration::from_millis(2));
    }
    None
}

/// Where stellar-core keeps its own files when it was told nothing.
fn tempfile_dir(settings: &Settings) -> Result<super::server::Folder, Failure> {
    super::server::Folder::new(settings.args.storage_dir.as_deref())
}
