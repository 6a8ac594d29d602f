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

/// How the kernel keeps the wall clock, as adjtimex tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discipline {
    /// TAI − UTC in whole seconds; 0: nobody has set it.
    pub tai_offset_s: i32,
    /// Whether a daemon keeps it: the kernel's "unsynchronized" flag is not set.
    pub synchronized: bool,
    /// What the daemon says that the clock is wrong by, ns.
    pub estimated_error_ns: i64,
    /// What it is wrong by at most, ns; it grows while nobody sets it.
    pub maximum_error_ns: i64,
}

/// Asks the kernel how it keeps the wall clock.
///
/// # Errors
/// As adjtimex says: `EPERM` under a system call filter that leaves it out, although it only reads.
pub fn discipline() -> std::io::Result<Discipline> {
    // SAFETY: an all-zero timex is a valid value (modes = 0 only reads).
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` is a valid, exclusive pointer for the duration of the call.
    if unsafe { libc::adjtimex(&mut timex) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(Discipline {
        tai_offset_s: timex.tai,
        synchronized: timex.status & libc::STA_UNSYNC == 0,
        // Both are told in µs.
        estimated_error_ns: timex.esterror * 1_000,
        maximum_error_ns: timex.maxerror * 1_000,
    })
}

/// TAI − UTC in whole seconds as the kernel holds it; 0 means that nobody has set it. Where adjtimex is refused, it is the
/// difference of the two clocks, which needs no leave: stamps stay right. (Who keeps the clock is not known then:
/// [`discipline`] tells that it was refused.)
pub fn tai_offset_seconds() -> i32 {
    discipline().map_or_else(|_| tai_offset_by_the_clocks(), |discipline| discipline.tai_offset_s)
}

/// Longest time between two readings of the wall clock around one of TAI for them to be believed: an offset is whole
/// seconds, so that a tenth is far from the next one.
const READINGS_APART_NS_MAX: i64 = 100_000_000;
/// Tries at such readings: a thread is put aside for longer once, not again and again.
const READINGS_TRIES: u32 = 8;

fn tai_offset_by_the_clocks() -> i32 {
    let mut offset_s = 0;
    for _ in 0..READINGS_TRIES {
        let (before, tai, after) = (utc_ns(), tai_ns(), utc_ns());
        offset_s = (tai - before + 500_000_000).div_euclid(1_000_000_000) as i32;
        if (0..READINGS_APART_NS_MAX).contains(&(after - before)) {
            break;
        }
    }
    offset_s
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

    /// As [`StepWatch::look`]; how far the wall clock was set since the last look, ns: 0 if it was only slewed.
    pub fn look_far(&mut self) -> i64 {
        let (before, epoch) = (self.offset_ns, self.epoch);
        if self.look() == epoch { 0 } else { self.offset_ns - before }
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

    /// Refuses adjtimex (by either of its system calls) to the calling thread, as a service's filter would.
    fn refuse_adjtimex() {
        let rule = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let mut rules = [
            rule(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            rule(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, libc::SYS_adjtimex as u32),
            rule(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_clock_adjtime as u32),
            rule(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
            rule(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: rules.len() as u16, filter: rules.as_mut_ptr() };
        // SAFETY: prctl with numbers only; the filter binds the calling thread alone.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        // SAFETY: `program` and the rules that it points to live until the call returns, and the kernel copies them.
        let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn a_refused_adjtimex_is_an_error_and_the_offset_is_right_all_the_same() {
        let known = discipline().expect("nobody refuses it here").tai_offset_s;
        assert_eq!(tai_offset_by_the_clocks(), known);
        let refused = std::thread::spawn(|| {
            refuse_adjtimex();
            (discipline().map_err(|error| error.raw_os_error()), tai_offset_seconds())
        });
        assert_eq!(refused.join().expect("no panic"), (Err(Some(libc::EPERM)), known));
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
