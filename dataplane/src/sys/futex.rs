//! Sleeping and waking across processes: the shared futex, and the barrier that a sleeper issues for the producers.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `value`, at most `timeout`; also returns when a signal comes. Another process may wake it.
pub fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: `word` and `timeout` are live for the duration of the call; no other memory is touched. What it returns
    // (woken, changed, timed out, interrupted) makes no difference: the caller looks at the ring again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const timeout, 0, 0) };
}

/// Wakes all that sleep on `word`, in any process; how many.
pub fn wake_all(word: &AtomicU32) -> usize {
    // SAFETY: `word` is live for the duration of the call, which touches no other memory.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    woken.max(0) as usize
}

/// Registers this process as one that other processes' [`barrier`] reaches: false where the kernel does not (before 4.16,
/// or forbidden by a seccomp filter), and then its producers fence themselves. A fork's child is not registered.
pub fn register_barrier() -> bool {
    static REGISTERED: OnceLock<(u32, bool)> = OnceLock::new();
    let pid = std::process::id();
    let register = || (pid, membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED));
    let (registered, done) = *REGISTERED.get_or_init(register);
    if registered == pid { done } else { register().1 }
}

/// A full memory barrier in every running thread of every registered process; false where the kernel does not.
pub fn barrier() -> bool {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock::monotonic_ns;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_sleeper_wakes_or_times_out() {
        let word = Arc::new(AtomicU32::new(1));
        let begin = monotonic_ns();
        wait(&word, 0, Duration::from_secs(60));
        wait(&word, 1, Duration::from_millis(5));
        let waited = monotonic_ns() - begin;
        assert!((4_000_000..30_000_000_000).contains(&waited), "{waited} ns");
        let sleeper = std::thread::spawn({
            let word = word.clone();
            move || {
                while word.load(Ordering::Acquire) == 1 {
                    wait(&word, 1, Duration::from_secs(60));
                }
            }
        });
        word.store(2, Ordering::Release);
        while !sleeper.is_finished() {
            wake_all(&word);
            std::thread::yield_now();
        }
        sleeper.join().expect("woken");
    }

    #[test]
    fn the_barrier_is_there_once_registered() {
        assert_eq!(register_barrier(), register_barrier());
        assert!(!register_barrier() || barrier());
    }
}
