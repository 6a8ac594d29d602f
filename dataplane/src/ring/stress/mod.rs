//! The open-loop stress of rings and mirrors: publish at a fixed rate for a fixed time, never wait, account for every record.
//!
//! May use: the ring's own types, `config`, `sys`. Never does: let a reader, a mirror or a network slow the producer; or
//! allocate, log or send while a record is measured.
//!
//! [`local`] runs source, serve, mirror and reader in one process; [`source`] and [`reader`] are the two ends between hosts,
//! whose clocks [`offset`] compares.

use std::sync::atomic::{AtomicBool, Ordering};

pub mod local;
pub mod offset;
pub mod reader;
pub mod report;
pub mod source;

mod pace;
mod talk;
mod tally;

/// Sizes of a record, bytes: with its sequence whole cache lines (56, 120, 248, 504, 1016), and the round numbers.
pub const SIZES: [u32; 11] = [32, 56, 64, 120, 128, 248, 256, 504, 512, 1016, 1024];
/// Highest rate: beyond what one producer pushes, so that a schedule that cannot be kept can be asked for and told.
pub const RATE_MAX: u64 = 100_000_000;
/// Longest run, seconds.
pub const SECONDS_MAX: f64 = 3_600.0;
/// Without progress for so long after the last push, what is missing counts as lost: a hundred repair requests fit in.
const SETTLE_NS: i64 = 2_000_000_000;
/// How often a wait looks whether it is to end.
const LOOK: std::time::Duration = std::time::Duration::from_millis(20);

// The words of a record; what follows them is its number, and the last word its complement.
const STAMP: usize = 0;
const DUE: usize = 1;
const NUMBER: usize = 2;
const RUN: usize = 3;

/// Calls a function for the number of words that a record of so many bytes has.
macro_rules! sized {
    ($bytes:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $bytes {
            32 => $function::<4>($($argument),*),
            56 => $function::<7>($($argument),*),
            64 => $function::<8>($($argument),*),
            120 => $function::<15>($($argument),*),
            128 => $function::<16>($($argument),*),
            248 => $function::<31>($($argument),*),
            256 => $function::<32>($($argument),*),
            504 => $function::<63>($($argument),*),
            512 => $function::<64>($($argument),*),
            1016 => $function::<127>($($argument),*),
            1024 => $function::<128>($($argument),*),
            other => Err($crate::ring::stress::StressError::Size(other)),
        }
    };
}
use sized;

/// What is published.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// Records a second, 1 to [`RATE_MAX`].
    pub rate: u64,
    /// Length, seconds, up to [`SECONDS_MAX`].
    pub seconds: f64,
    /// Bytes of a record, one of [`SIZES`].
    pub size: u32,
    /// Each record alone at its time; otherwise what falls into 50 µs comes at once.
    pub even: bool,
}

/// What tells a record's time apart from the next one's, where they do not come evenly: a producer that reads packets gets
/// them in such bursts.
const TICK_NS: u64 = 50_000;

impl Load {
    /// Records of the whole run.
    pub fn total(&self) -> u64 {
        ((self.rate as f64 * self.seconds).round() as u64).max(1)
    }

    /// Records that come at once.
    pub fn burst(&self) -> u64 {
        if self.even { 1 } else { (self.rate * TICK_NS).div_ceil(1_000_000_000).max(1) }
    }

    /// ns from the start to record `number`'s time (from 1).
    fn due_ns(&self, number: u64) -> i64 {
        let tick = (number - 1) / self.burst() * self.burst();
        (tick / self.rate * 1_000_000_000 + tick % self.rate * 1_000_000_000 / self.rate) as i64
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// The value that is out of its limits, and the limits.
    pub fn check(&self) -> Result<(), StressError> {
        if !(1..=RATE_MAX).contains(&self.rate) {
            return Err(StressError::Settings(format!("--rate {}: must be 1 to {RATE_MAX}", self.rate)));
        }
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX) {
            return Err(StressError::Settings(format!(
                "--seconds {}: must be above 0, at most {SECONDS_MAX}",
                self.seconds
            )));
        }
        if !SIZES.contains(&self.size) {
            return Err(StressError::Size(self.size));
        }
        Ok(())
    }
}

/// Why a stress could not be run.
#[derive(Debug, thiserror::Error)]
pub enum StressError {
    /// A setting.
    #[error("{0}")]
    Settings(String),
    /// No record has that size.
    #[error("--size {0}: records have one of the sizes {SIZES:?}")]
    Size(u32),
    /// A ring.
    #[error(transparent)]
    Ring(#[from] super::RingError),
    /// The server or the mirror.
    #[error(transparent)]
    Step(#[from] super::step::StepError),
    /// The kernel.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        error: std::io::Error,
    },
    /// The other end, or time.
    #[error("{0}")]
    Failed(String),
    /// Told to end before it was over.
    #[error("stopped before its end")]
    Stopped,
}

impl StressError {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> StressError {
        let what = what.into();
        |error| StressError::Io { what, error }
    }

    /// Whether it is a matter of what was asked for.
    pub fn is_usage(&self) -> bool {
        matches!(self, StressError::Settings(_) | StressError::Size(_))
    }
}

/// Whether the caller wants an end.
fn check_stop(stop: &AtomicBool) -> Result<(), StressError> {
    if stop.load(Ordering::Relaxed) { Err(StressError::Stopped) } else { Ok(()) }
}

fn pin(cpu: Option<usize>) -> Result<(), StressError> {
    match cpu {
        Some(cpu) if !crate::sys::cpu::pin(cpu) => Err(StressError::Settings(format!(
            "--cpus {cpu}: cannot pin to it; this process may use {:?}",
            crate::sys::cpu::allowed()
        ))),
        _ => Ok(()),
    }
}

/// Which run a record is of: records of others in the same ring are not counted.
fn new_run() -> Result<u64, StressError> {
    let bytes: [u8; 8] = crate::sys::random::bytes().map_err(StressError::io("getrandom"))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: u64, seconds: f64, even: bool) -> Load {
        Load { rate, seconds, size: 56, even }
    }

    #[test]
    fn the_schedule_is_the_rate() {
        let even = load(3, 2.0, true);
        assert_eq!((even.total(), even.burst()), (6, 1));
        let due: Vec<i64> = (1..=6).map(|number| even.due_ns(number)).collect();
        assert_eq!(due, [0, 333_333_333, 666_666_666, 1_000_000_000, 1_333_333_333, 1_666_666_666]);
        let bursts = load(100_000, 5.0, false);
        assert_eq!((bursts.total(), bursts.burst()), (500_000, 5));
        assert_eq!([1, 5, 6, 500_000].map(|number| bursts.due_ns(number)), [0, 0, 50_000, 4_999_950_000]);
        // No product wraps at the limits.
        let most = load(RATE_MAX, SECONDS_MAX, true);
        assert_eq!(most.due_ns(most.total()), 3_600_000_000_000 - 10);
    }

    #[test]
    fn limits_are_told() {
        for (bad, part) in [
            (load(0, 1.0, false), "--rate 0"),
            (load(RATE_MAX + 1, 1.0, false), "must be 1 to"),
            (load(1, 0.0, false), "--seconds 0"),
            (load(1, f64::NAN, false), "--seconds"),
            (load(1, 1e9, false), "at most 3600"),
            (Load { size: 57, ..load(1, 1.0, false) }, "--size 57"),
        ] {
            let told = bad.check().expect_err(part);
            assert!(told.is_usage() && told.to_string().contains(part), "{told}");
        }
        assert!(load(1, 1.0, false).check().is_ok());
    }
}
