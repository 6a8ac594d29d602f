//! CPUs: which exist, pinning, and the eventfd that wakes a sleeping core.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// The CPUs that this process may run on, ascending.
pub fn allowed() -> Vec<usize> {
    let mut cpus: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    cpus.sort_unstable();
    cpus
}

/// Pins the calling thread to `cpu`; false when the kernel refuses (no such CPU, or not allowed by the cpuset).
pub fn pin(cpu: usize) -> bool {
    // The kernel's mask has an end, and the crate below writes beyond it without asking.
    cpu < nix::sched::CpuSet::count() && core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}

/// Lets the calling thread run on any of `cpus` (control threads keep off the pinned cores).
///
/// # Errors
/// As `sched_setaffinity(2)`.
pub fn allow(cpus: &[usize]) -> io::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    for &cpu in cpus {
        set.set(cpu)?;
    }
    Ok(nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?)
}

/// An eventfd, non-blocking.
#[derive(Debug)]
pub struct Event(EventFd);

impl Event {
    /// A new one.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Event> {
        Ok(Event(EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?))
    }

    /// Makes it readable. A full counter (2^64 − 2 signals without a read) already is.
    pub fn signal(&self) {
        let _ = self.0.write(1);
    }

    /// Reads it back to 0.
    pub fn clear(&self) {
        let _ = self.0.read();
    }
}

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Stolen time of all CPUs in clock ticks (`/proc/stat`), for test failures on shared machines. 0 when unreadable.
pub fn steal_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    first.split_whitespace().nth(8).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Time that all CPUs together were not idle since the boot, ns, in steps of a clock tick (10 ms); what a hypervisor stole is not
/// in it. `None` when unreadable.
pub fn busy_ns() -> Option<i64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<i64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|tick| tick.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq; USER_HZ is 100 on every architecture of Linux that we build for.
    let busy = ticks.get(0..3)?.iter().chain(ticks.get(5..7)?).sum::<i64>();
    Some(busy.saturating_mul(10_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_cannot_be_is_refused() {
        for cpu in [1_023, 1_024, 100_000, usize::MAX] {
            assert!(!pin(cpu), "{cpu}");
        }
    }
}
