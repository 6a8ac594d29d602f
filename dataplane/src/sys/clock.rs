//! Clocks: the one place where time is read.

use std::time::Duration;

/// `CLOCK_MONOTONIC` in ns.
#[inline]
pub fn monotonic_ns() -> i64 {
    read(libc::CLOCK_MONOTONIC)
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

/// TAI − UTC in whole seconds as the kernel holds it (adjtimex); 0 means that nobody has set it.
pub fn tai_offset_seconds() -> i32 {
    // SAFETY: an all-zero timex is a valid value (modes = 0 only reads).
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` is a valid, exclusive pointer for the duration of the call.
    unsafe { libc::adjtimex(&mut timex) };
    timex.tai
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
