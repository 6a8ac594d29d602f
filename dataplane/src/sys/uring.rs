//! One io_uring per core: the store's writes, the descriptors that wake the core, and its sleep.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

/// Submission entries. A core has at most one write per block in flight and one poll per descriptor; a full queue is
/// submitted at once, so this bounds batching, not work.
const SUBMISSION_ENTRIES: u32 = 256;
/// Completion entries: room for every poll to fire while a batch of writes completes.
const COMPLETION_ENTRIES: u32 = 4_096;
/// Kernel io workers per ring, bounded and unbounded: by default there may be as many as the memlock limit lets.
const IO_WORKERS_MAX: [u32; 2] = [2, 2];
/// `IORING_ENTER_GETEVENTS` (linux/io_uring.h): run deferred task work.
const ENTER_GETEVENTS: u32 = 1;

/// Why a ring could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The kernel forbids io_uring.
    #[error(
        "io_uring is forbidden here ({0}): run \"sysctl kernel.io_uring_disabled=0\" (1 allows it to CAP_SYS_ADMIN and the io_uring_group only)"
    )]
    Forbidden(io::Error),
    /// Anything else, the kernel's age above all.
    #[error("io_uring: {0}; sluice needs kernel 6.1 or newer")]
    Setup(io::Error),
}

/// A finished operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// What it was submitted under.
    pub user_data: u64,
    /// Bytes or events; negative: an errno.
    pub result: i32,
    /// A multishot operation that stays armed.
    pub more: bool,
}

/// A core's io_uring: made by whoever prepares the start, enabled and used by the core's own thread only.
pub struct CoreRing {
    ring: IoUring,
    waiting: bool,
}

impl CoreRing {
    /// A ring that takes submissions only after [`CoreRing::enable`], from the thread that enabled it.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn new() -> Result<CoreRing, RingError> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETION_ENTRIES)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .dontfork()
            .build(SUBMISSION_ENTRIES)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => RingError::Forbidden(error),
                _ => RingError::Setup(error),
            })?;
        let mut workers = IO_WORKERS_MAX;
        ring.submitter().register_iowq_max_workers(&mut workers).map_err(RingError::Setup)?;
        Ok(CoreRing { ring, waiting: false })
    }

    /// Binds the kernel's io workers of this ring to `cpus`; by default they would inherit the pinned CPU.
    ///
    /// # Errors
    /// As `io_uring_register(2)`.
    pub fn bind_io_workers(&mut self, cpus: &[usize]) -> io::Result<()> {
        // SAFETY: an all-zero cpu_set_t is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
            // SAFETY: `cpu` is below CPU_SETSIZE.
            unsafe { libc::CPU_SET(cpu, &mut set) };
        }
        self.ring.submitter().register_iowq_aff(&set)
    }

    /// Opens the ring for the calling thread.
    ///
    /// # Errors
    /// As `io_uring_register(2)`.
    pub fn enable(&mut self) -> Result<(), RingError> {
        self.ring.submitter().register_enable_rings().map_err(RingError::Setup)
    }

    /// Registers buffers for [`CoreRing::write_fixed`], in order.
    ///
    /// # Safety
    /// The memory must stay mapped until the ring is dropped.
    ///
    /// # Errors
    /// As `io_uring_register(2)`; ENOMEM is the memlock limit.
    pub unsafe fn register_buffers(&mut self, buffers: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the caller keeps the memory.
        unsafe { self.ring.submitter().register_buffers(buffers) }
    }

    /// Completes with `more` each time `fd` becomes readable.
    pub fn poll_multishot(&mut self, fd: RawFd, user_data: u64) {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).multi(true).build().user_data(user_data);
        // SAFETY: a poll refers to no memory.
        unsafe { self.push(&entry) };
    }

    /// Writes from registered buffer `buffer`.
    ///
    /// # Safety
    /// `start..start + bytes` must lie in that buffer and stay unchanged until the completion.
    pub unsafe fn write_fixed(
        &mut self,
        fd: RawFd,
        buffer: u16,
        start: *const u8,
        bytes: u32,
        offset: u64,
        user_data: u64,
    ) {
        let entry = opcode::WriteFixed::new(Fd(fd), start, bytes, buffer).offset(offset).build().user_data(user_data);
        // SAFETY: the caller keeps the memory.
        unsafe { self.push(&entry) };
    }

    /// Writes from memory that is not registered.
    ///
    /// # Safety
    /// `start..start + bytes` must stay valid and unchanged until the completion.
    pub unsafe fn write(&mut self, fd: RawFd, start: *const u8, bytes: u32, offset: u64, user_data: u64) {
        let entry = opcode::Write::new(Fd(fd), start, bytes).offset(offset).build().user_data(user_data);
        // SAFETY: the caller keeps the memory.
        unsafe { self.push(&entry) };
    }

    /// fdatasync.
    pub fn fdatasync(&mut self, fd: RawFd, user_data: u64) {
        let entry = opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build().user_data(user_data);
        // SAFETY: an fsync refers to no memory.
        unsafe { self.push(&entry) };
    }

    /// # Safety
    /// What the entry refers to must live until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the caller keeps what the entry refers to.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.waiting = true;
                return;
            }
            let submitted = self.ring.submit();
            assert!(submitted.is_ok(), "io_uring submit failed with a full queue: {submitted:?}");
        }
    }

    /// Hands submissions to the kernel and lets it post completions; no system call when there is nothing of either.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    #[inline]
    pub fn submit(&mut self) -> io::Result<()> {
        let taskrun = self.ring.submission().taskrun();
        if !self.waiting && !taskrun {
            return Ok(());
        }
        let count = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed; the entries' memory is kept by their submitters.
        let result = unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, 0, ENTER_GETEVENTS, None) };
        match result {
            Ok(submitted) => {
                self.waiting = submitted < count as usize;
                Ok(())
            }
            Err(error) if transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sleeps until a completion or for `bound`.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn wait(&mut self, bound: Duration) -> io::Result<()> {
        let time = Timespec::from(bound);
        let args = SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => {
                self.waiting = false;
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                self.waiting = false;
                Ok(())
            }
            Err(error) if transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next finished operation.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        Some(Completion { user_data: entry.user_data(), result: entry.result(), more: cqueue::more(entry.flags()) })
    }
}

/// Interrupted, or the completion queue must be read first: the next round tries again.
fn transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cpu::Event;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_descriptor_wakes_a_waiting_ring() {
        let mut ring = CoreRing::new().expect("a ring");
        ring.enable().expect("enabled");
        let event = Event::new().expect("an eventfd");
        ring.poll_multishot(event.as_raw_fd(), 7);
        ring.submit().expect("submits");
        assert!(ring.next_completion().is_none());
        for _ in 0..3 {
            event.signal();
            ring.wait(Duration::from_secs(5)).expect("waits");
            let completion = ring.next_completion().expect("the event");
            assert_eq!(completion.user_data, 7);
            assert!(completion.more, "the poll stays armed");
            event.clear();
        }
        ring.wait(Duration::from_millis(1)).expect("times out");
        assert!(ring.next_completion().is_none());
    }

    #[test]
    fn it_writes_and_syncs() {
        let mut ring = CoreRing::new().expect("a ring");
        ring.enable().expect("enabled");
        let file = tempfile::tempfile().expect("a file");
        let bytes = [7_u8; 512];
        // SAFETY: `bytes` outlives the completion that is awaited below.
        unsafe { ring.write(file.as_raw_fd(), bytes.as_ptr(), 512, 512, 1) };
        ring.wait(Duration::from_secs(5)).expect("waits");
        assert_eq!(ring.next_completion().map(|c| (c.user_data, c.result)), Some((1, 512)));
        ring.fdatasync(file.as_raw_fd(), 2);
        ring.wait(Duration::from_secs(5)).expect("waits");
        assert_eq!(ring.next_completion().map(|c| (c.user_data, c.result)), Some((2, 0)));
        assert_eq!(file.metadata().expect("metadata").len(), 1_024);
    }
}
