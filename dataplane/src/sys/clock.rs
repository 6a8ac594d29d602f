//! Clocks: the one place where time is read.

use std::time::Duration;

/// `CLOCK_MONOTONIC` in ns.
#[inline]
pub fn monotonic_ns() -> i64 {
    read(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_MONOTONIC_COARSE` in ms: as old as the last timer tick (at most 10 ms), read in a few ns.
#[inline]
pub fn monotonic_coarse_ms() -> i64 {
    read(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
}

/// `CLOCK_REALTIME` (UTC) in ns since the Unix epoch.
#[inline]
pub fn utc_ns() -> i64 {
    read(libc::CLOCK_REALTIME)
}

/// `CLOCK_TAI` in ns since the Unix epoch.
#[inline]
pub fn tai_ns() -> i64 {
    read(libc::CLOCK_TAI)
}

/// CPU time of this process so far, all its threads (those of its io_urings too), ns.
pub fn process_cpu_ns() -> i64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread so far, ns.
pub fn thread_cpu_ns() -> i64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of another process so far, ns; `None` when there is no such process.
pub fn process_cpu_of(process: u32) -> Option<i64> {
    let mut clock = 0;
    // SAFETY: `clock` is a valid, exclusive pointer for the duration of the call.
    let found = unsafe { libc::clock_getcpuclockid(libc::pid_t::try_from(process).ok()?, &mut clock) };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, exclusive pointer for the duration of the call.
    (found == 0 && unsafe { libc::clock_gettime(clock, &mut time) } == 0)
        .then_some(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

/// TAI − UTC in whole seconds as the kernel holds it (adjtimex); 0 means that nobody has set it.
pub fn tai_offset_seconds() -> i32 {
    // SAFETY: an all-zero timex is a valid value (modes = 0 only reads).
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` is a valid, exclusive pointer for the duration of the call.
    unsafe { libc::adjtimex(&mut timex) };
    timex.tai
}

/// Counts steps of the wall clock: a step is a change of UTC − monotonic that no slew makes.
#[derive(Clone, Copy, Debug)]
pub struct StepWatch {
    offset_ns: i64,
    epoch: u8,
}

/// Largest change of UTC − monotonic between two looks that counts as slewing. adjtime and NTP slew at most 500 ppm,
/// 0.5 ms in the second between two looks; chrony's fastest default, 83,333 ppm, is meant for the start.
const SLEW_NS_MAX: i64 = 5_000_000;

impl Default for StepWatch {
    fn default() -> Self {
        StepWatch { offset_ns: utc_ns() - monotonic_ns(), epoch: 0 }
    }
}

impl StepWatch {
    /// Looks again (about once a second); the number of steps so far, wrapping.
    pub fn look(&mut self) -> u8 {
        self.judge(utc_ns() - monotonic_ns())
    }

    fn judge(&mut self, offset_ns: i64) -> u8 {
        if (offset_ns - self.offset_ns).abs() > SLEW_NS_MAX {
            self.epoch = self.epoch.wrapping_add(1);
        }
        self.offset_ns = offset_ns;
        self.epoch
    }
}

/// Sleeps for `duration`; for control threads and tests, never on a pinned core.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

fn read(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, exclusive pointer for the duration of the call.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert!(result == 0, "clock_gettime({clock}) failed");
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_told_for_a_thread_its_process_and_another() {
        // In this order: what the thread takes between the two is in both.
        let (process, thread) = (process_cpu_ns(), thread_cpu_ns());
        let mut sum = 0_u64;
        while thread_cpu_ns() < thread + 2_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(process_cpu_ns() >= process + 2_000_000);
        assert!(process_cpu_of(std::process::id()).expect("this process") >= process + 2_000_000);
        // The kernel numbers processes below 2^22.
        assert_eq!(process_cpu_of((1 << 22) + 1), None, "no such process");
    }

    #[test]
    fn a_step_is_told_from_a_slew() {
        let mut watch = StepWatch { offset_ns: 1_000, epoch: 255 };
        assert_eq!(watch.judge(1_000 + SLEW_NS_MAX), 255);
        assert_eq!(watch.judge(1_000 - SLEW_NS_MAX), 0, "a step back");
        assert_eq!(watch.judge(1_000_000_000), 1, "a step forth");
        assert_eq!(watch.judge(1_000_000_001), 1);
    }
}
