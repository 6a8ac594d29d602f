//! Termination signals as something to wait for.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// SIGTERM, SIGINT and SIGHUP, taken out of normal delivery for every thread started afterwards.
pub struct Signals(SignalFd);

/// Runs `start` with SIGTERM, SIGINT and SIGHUP held off from the calling thread: a thread started in it inherits that
/// and never takes them from whoever waits for them. The caller's own mask is as before afterwards.
pub fn shielded<R>(start: impl FnOnce() -> R) -> R {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = start();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}

/// Ends the process at once: no destructor runs, and nobody waits for anybody. The kernel lets go of what the process held.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: it takes no pointer and does not come back.
    unsafe { libc::_exit(code) }
}

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// SIGTERM or SIGINT: drain and end.
    Stop,
    /// SIGHUP: read again what can be read again.
    Reload,
}

impl Signals {
    /// Blocks the signals in the calling thread (and so in all that it starts) and opens the descriptor.
    ///
    /// # Errors
    /// As `signalfd(2)`.
    pub fn take() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Waits at most `bound` for a signal.
    ///
    /// # Errors
    /// As `poll(2)`.
    pub fn wait(&self, bound: Duration) -> io::Result<Option<Asked>> {
        let timeout = PollTimeout::try_from(bound).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.0.read_signal()?.map(
            |info| {
                if info.ssi_signo == Signal::SIGHUP as u32 { Asked::Reload } else { Asked::Stop }
            },
        ))
    }
}
