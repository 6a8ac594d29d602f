//! One io_uring per core: writes of registered blocks, data syncs, multishot polls, sockets, the doorbell, and parking.
//!
//! The ring is made disabled, so that it can be made (and its blocks registered and locked) before privileges are
//! dropped, and is enabled by the thread that will use it: the kernel then lets no other thread submit.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::file::{AlignedBuffer, Arena};

mod files;
mod held;
pub mod shared;
#[cfg(test)]
mod socket_tests;
mod sockets;

pub use files::Frozen;
use held::Held;

/// Where the kernel says whether io_uring may be used.
const DISABLED_SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

/// `IORING_ENTER_GETEVENTS` (linux/io_uring.h): run deferred task work.
const ENTER_GETEVENTS: u32 = 1;

/// Why a ring cannot be made.
#[derive(thiserror::Error, Debug)]
pub enum RingError {
    /// The administrator has switched io_uring off.
    #[error("io_uring is switched off (kernel.io_uring_disabled = {0}): run \"sysctl -w kernel.io_uring_disabled=0\"")]
    Disabled(u32),
    /// The kernel is too old for what the ring needs.
    #[error("io_uring: the kernel does not know {0}; sluice needs Linux 6.1")]
    Old(&'static str),
    /// Memory for the ring or its blocks cannot be locked.
    #[error("io_uring {what}: {source}: raise RLIMIT_MEMLOCK (LimitMEMLOCK=infinity in the unit)")]
    Memory {
        /// The step.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Anything else.
    #[error("io_uring {what}: {source}")]
    Io {
        /// The step.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What the submitter gave.
    pub user_data: u64,
    /// Bytes or 0, or a negated errno.
    pub result: i32,
    /// The kernel's flags.
    pub flags: u32,
}

impl Completion {
    /// Whether a multishot request goes on; when not, it has to be made again.
    pub fn more(&self) -> bool {
        cqueue::more(self.flags)
    }

    /// The result, or the errno.
    pub fn outcome(&self) -> Result<u32, i32> {
        if self.result < 0 { Err(-self.result) } else { Ok(self.result as u32) }
    }
}

/// The ring of one core. Requests are queued by the methods below and reach the kernel at the next
/// [`CoreRing::submit`] or [`CoreRing::submit_and_wait`], or when the queue is full.
pub struct CoreRing {
    ring: IoUring,
    enabled: bool,
    blocks: Vec<(usize, usize)>,
    futex_wait: Option<bool>,
    waits: bool,
    held: Held,
    _arenas: Vec<Arc<Arena>>,
}

// SAFETY: the addresses in `blocks` belong to arenas that `_arenas` keeps alive, and what requests in flight point to is
// owned by `held`; the ring itself is Send.
unsafe impl Send for CoreRing {}

impl CoreRing {
    /// Makes a disabled ring of `entries` requests (a power of two is taken) and twice as many completions.
    pub fn new(entries: u32) -> Result<CoreRing, RingError> {
        let build = |single_issuer: bool| {
            let mut builder = IoUring::builder();
            builder.setup_r_disabled().setup_submit_all().setup_cqsize(entries.next_power_of_two() * 2).setup_clamp();
            if single_issuer {
                // Completions are posted when this core enters the kernel, not by interrupting it.
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            }
            builder.build(entries)
        };
        let ring = match build(true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => build(false),
            other => other,
        };
        let ring = ring.map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) if disabled() != 0 => RingError::Disabled(disabled()),
            Some(libc::ENOSYS) => RingError::Old("io_uring_setup"),
            Some(libc::ENOMEM) => RingError::Memory { what: "setup", source },
            _ => RingError::Io { what: "setup", source },
        })?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(RingError::Old("timed waits"));
        }
        Ok(CoreRing {
            ring,
            enabled: false,
            blocks: Vec::new(),
            futex_wait: None,
            waits: false,
            held: Held::default(),
            _arenas: Vec::new(),
        })
    }

    /// Registers block memory: block *i* of the list is `block` *i* of [`CoreRing::write_fixed`]. Once per ring. The
    /// ring keeps the memory mapped; that nobody changes a block while it is written is the writer's rule.
    pub fn register_blocks<'a>(
        &mut self,
        buffers: impl IntoIterator<Item = &'a AlignedBuffer>,
    ) -> Result<(), RingError> {
        assert!(self.blocks.is_empty(), "blocks are registered once");
        let mut arenas = Vec::new();
        let mut vectors = Vec::new();
        for buffer in buffers {
            let (base, bytes, arena) = buffer.raw();
            vectors.push(libc::iovec { iov_base: base.cast(), iov_len: bytes });
            self.blocks.push((base as usize, bytes));
            if !arenas.iter().any(|known| Arc::ptr_eq(known, &arena)) {
                arenas.push(arena);
            }
        }
        // SAFETY: each range is mapped and stays so: `_arenas` holds it until after the ring is dropped.
        unsafe { self.ring.submitter().register_buffers(&vectors) }.map_err(|source| match source.raw_os_error() {
            Some(libc::ENOMEM) => RingError::Memory { what: "register blocks", source },
            _ => RingError::Io { what: "register blocks", source },
        })?;
        self._arenas = arenas;
        Ok(())
    }

    /// Enables the ring on the calling thread, which alone may use it from now on. Kernel io workers are bound to
    /// `io_cpus` (empty: left alone) and at most `workers_max` of each kind: by default they would inherit the
    /// pinned CPU and steal from it.
    pub fn enable(&mut self, io_cpus: &[usize], workers_max: u32) -> Result<(), RingError> {
        let submitter = self.ring.submitter();
        submitter.register_enable_rings().map_err(|source| RingError::Io { what: "enable", source })?;
        self.enabled = true;
        if workers_max > 0 {
            let mut most = [workers_max, workers_max];
            let result = submitter.register_iowq_max_workers(&mut most);
            result.map_err(|source| RingError::Io { what: "bound its workers", source })?;
        }
        if !io_cpus.is_empty() {
            self.make_context()?;
            let submitter = self.ring.submitter();
            let set = cpu_set(io_cpus).map_err(|source| RingError::Io { what: "name its workers' CPUs", source })?;
            let result = submitter.register_iowq_aff(&set);
            result.map_err(|source| RingError::Io { what: "bind its workers", source })?;
        }
        Ok(())
    }

    /// One request there and back: the kernel makes the thread's io_uring context, which its io workers belong to, with
    /// the first submission, and naming the workers' CPUs before it is EINVAL (seen on 6.18).
    fn make_context(&mut self) -> Result<(), RingError> {
        let failed = |source| RingError::Io { what: "make the thread's context", source };
        self.push(opcode::Nop::new().build()).map_err(failed)?;
        self.ring.submit_and_wait(1).map_err(failed)?;
        self.ring.completion().next();
        Ok(())
    }

    /// Whether [`CoreRing::enable`] was called.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Writes `bytes` bytes of a registered block, from its byte `from`, at `file_offset`.
    pub fn write_fixed(
        &mut self,
        fd: BorrowedFd<'_>,
        block: usize,
        from: usize,
        bytes: usize,
        file_offset: u64,
        user_data: u64,
    ) -> io::Result<()> {
        let (base, length) = self.blocks[block];
        assert!(from + bytes <= length, "a write beyond its block");
        let entry = opcode::WriteFixed::new(Fd(fd.as_raw_fd()), (base + from) as *const u8, bytes as u32, block as u16);
        self.push(entry.offset(file_offset).build().user_data(user_data))
    }

    /// Makes the file's data durable (fdatasync). Not ordered with writes that are still out.
    pub fn sync_data(&mut self, fd: BorrowedFd<'_>, user_data: u64) -> io::Result<()> {
        self.push(opcode::Fsync::new(Fd(fd.as_raw_fd())).flags(FsyncFlags::DATASYNC).build().user_data(user_data))
    }

    /// Completes each time that `fd` becomes readable, until [`Completion::more`] says no.
    pub fn poll_readable(&mut self, fd: BorrowedFd<'_>, user_data: u64) -> io::Result<()> {
        self.poll(fd.as_raw_fd(), libc::POLLIN as u32, user_data)
    }

    /// Completes each time that one of `events` (POLLIN, POLLOUT, …) holds for `fd`, until [`Completion::more`] says
    /// no.
    pub fn poll_events(&mut self, fd: BorrowedFd<'_>, events: u32, user_data: u64) -> io::Result<()> {
        self.poll(fd.as_raw_fd(), events, user_data)
    }

    /// As [`CoreRing::poll_readable`], for a descriptor that its owner keeps open while the ring polls it.
    pub fn poll_raw(&mut self, fd: RawFd, user_data: u64) -> io::Result<()> {
        self.poll(fd, libc::POLLIN as u32, user_data)
    }

    fn poll(&mut self, fd: RawFd, events: u32, user_data: u64) -> io::Result<()> {
        self.push(opcode::PollAdd::new(Fd(fd), events).multi(true).build().user_data(user_data))
    }

    /// Ends the poll that was made with `poll_user_data`.
    pub fn poll_remove(&mut self, poll_user_data: u64, user_data: u64) -> io::Result<()> {
        self.push(opcode::PollRemove::new(poll_user_data).build().user_data(user_data))
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        assert!(self.enabled, "the ring is enabled before its first request");
        // SAFETY: the only memory that requests name is registered block memory (kept by `_arenas`) and what `held` owns
        // until the request's completion is taken; either outlives the ring, whose closing ends all requests. A futex
        // wait names a word that the kernel only reads, and refuses when it is gone.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit()?;
        }
        Ok(())
    }

    /// Requests that are queued and not yet with the kernel.
    pub fn queued(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Hands queued requests to the kernel without waiting, and lets it post completions; no system call when there is
    /// nothing of either.
    #[inline]
    pub fn submit(&mut self) -> io::Result<()> {
        let mut queue = self.ring.submission();
        queue.sync();
        // Completions beyond the queue's room wait in the kernel, which hands them over when it is entered.
        let (queued, deferred) = (queue.len() as u32, queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if queued == 0 && !deferred {
            return Ok(());
        }
        // SAFETY: no argument is passed, and the requests' memory is kept as `push` says.
        settle(unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None) }.map(drop))
    }

    /// Hands queued requests to the kernel and sleeps until a completion is there or `timeout` is over (`None`:
    /// without end). A signal ends the sleep as well.
    pub fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.ring.completion().is_empty() {
            return self.submit();
        }
        let Some(timeout) = timeout else {
            return settle(self.ring.submit_and_wait(1).map(drop));
        };
        let time = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
        settle(self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time)).map(drop))
    }

    /// The next completion, if one is there.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        let (result, flags) = (entry.result(), entry.flags());
        Some(Completion { user_data: self.held.settle(entry.user_data(), result, flags), result, flags })
    }

    /// Gives every completion that is there to `each(user_data, result, flags)`; returns how many.
    pub fn reap(&mut self, mut each: impl FnMut(u64, i32, u32)) -> usize {
        let mut count = 0;
        while let Some(completion) = self.next_completion() {
            each(completion.user_data, completion.result, completion.flags);
            count += 1;
        }
        count
    }
}

/// What ends a wait early is no error: time, a signal, and a completion queue that has to be emptied first.
fn settle(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {
            Ok(())
        }
        other => other,
    }
}

fn disabled() -> u32 {
    std::fs::read_to_string(DISABLED_SYSCTL).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn cpu_set(cpus: &[usize]) -> io::Result<libc::cpu_set_t> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the CPU number is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn ring() -> Option<CoreRing> {
        match CoreRing::new(16) {
            Ok(ring) => Some(ring),
            Err(error) => {
                eprintln!("SKIPPED io_uring: {error}");
                None
            }
        }
    }

    #[test]
    fn blocks_are_written_and_synced_on_another_thread_than_the_maker() {
        let Some(mut ring) = ring() else { return };
        let mut pool = AlignedBuffer::pool(2, 8192).unwrap();
        pool[1].fill(7);
        ring.register_blocks(&pool).unwrap();
        let file = tempfile::tempfile().unwrap();
        let bytes = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                ring.enable(&[0], 1).unwrap();
                ring.write_fixed(file.as_fd(), 1, 4096, 4096, 4096, 10).unwrap();
                ring.submit_and_wait(Some(Duration::from_secs(10))).unwrap();
                let done = ring.next_completion().expect("the write completes");
                ring.sync_data(file.as_fd(), 11).unwrap();
                ring.submit_and_wait(Some(Duration::from_secs(10))).unwrap();
                assert_eq!(ring.next_completion().map(|c| (c.user_data, c.result)), Some((11, 0)));
                (done.user_data, done.outcome())
            });
            worker.join().unwrap()
        });
        assert_eq!(bytes, (10, Ok(4096)));
        assert_eq!(file.metadata().unwrap().len(), 8192);
    }

    #[test]
    fn a_wait_ends_with_time_and_with_a_doorbell() {
        let Some(mut ring) = ring() else { return };
        ring.enable(&[], 0).unwrap();
        ring.submit_and_wait(Some(Duration::from_millis(5))).unwrap();
        assert!(ring.next_completion().is_none());
        let bell = nix::sys::eventfd::EventFd::new().unwrap();
        ring.poll_readable(bell.as_fd(), 1).unwrap();
        ring.submit().unwrap();
        bell.write(3).unwrap();
        let mut seen = Vec::new();
        for _ in 0..100 {
            ring.submit_and_wait(Some(Duration::from_millis(100))).unwrap();
            ring.reap(|user_data, _, _| seen.push(user_data));
            if seen.contains(&1) {
                return;
            }
        }
        panic!("no completion of the poll: {seen:?}");
    }
}
