//! Stream sockets on the core's ring: accept, connect, receive, send, cancel; and waiting on a futex.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{Probe, opcode};

use super::CoreRing;
use super::held::Kept;
use crate::sys::tcp::address_bytes;

/// `FUTEX2_SIZE_U32` without `FUTEX2_PRIVATE` (linux/futex.h): a shared 32-bit word.
const FUTEX2_SHARED_U32: u32 = 2;
/// `FUTEX_BITSET_MATCH_ANY`.
const FUTEX_ANY: u64 = 0xFFFF_FFFF;
/// How long the end of a ring waits for the kernel to give memory back, before it is left to the kernel for good.
const CANCEL_SECONDS: u64 = 1;

impl CoreRing {
    /// Accepts connections of `listener`, each completion one ([`CoreRing::take_descriptor`]), until
    /// [`CoreRing::more`] says no.
    ///
    /// # Errors
    /// As the submission.
    pub fn accept(&mut self, listener: BorrowedFd<'_>, user_data: u64) -> io::Result<()> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let entry = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).flags(flags).build();
        self.push_kept(Kept::Accept, user_data, |_| entry).map_err(|(error, _)| error)
    }

    /// Connects `socket` to `address`; the result is 0 or a negated errno.
    ///
    /// # Errors
    /// As the submission.
    pub fn connect(&mut self, socket: BorrowedFd<'_>, address: &SocketAddr, user_data: u64) -> io::Result<()> {
        let (storage, bytes) = address_bytes(address);
        let fd = Fd(socket.as_raw_fd());
        self.push_kept(Kept::Address(Box::new(storage)), user_data, |kept| {
            let Kept::Address(storage) = kept else { unreachable!("kept as an address above") };
            opcode::Connect::new(fd, std::ptr::from_ref(&**storage).cast(), bytes).build()
        })
        .map_err(|(error, _)| error)
    }

    /// Receives at most `max` bytes behind the end of `bytes`, in its spare capacity. The ring owns `bytes` until the
    /// completion, whose result is their number (0: the peer has closed); [`CoreRing::take_bytes`] gives them back.
    ///
    /// # Errors
    /// As the submission; `bytes` come back with it.
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: Vec<u8>,
        max: usize,
        user_data: u64,
    ) -> Result<(), (io::Error, Vec<u8>)> {
        let fd = Fd(socket.as_raw_fd());
        let max = max.min(bytes.capacity() - bytes.len());
        assert!(max > 0, "a receive needs spare capacity");
        self.push_kept(Kept::Receive(bytes), user_data, |kept| {
            let Kept::Receive(bytes) = kept else { unreachable!("kept as a receive above") };
            let room = &mut bytes.spare_capacity_mut()[..max];
            opcode::Recv::new(fd, room.as_mut_ptr().cast(), max as u32).build()
        })
        .map_err(given_back)
    }

    /// Sends `bytes[part]`. The ring owns `bytes` until the completion, whose result is how many were sent: all of the
    /// part unless the connection broke meanwhile. [`CoreRing::take_bytes`] gives them back.
    ///
    /// # Errors
    /// As the submission; `bytes` come back with it.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: Vec<u8>,
        part: Range<usize>,
        user_data: u64,
    ) -> Result<(), (io::Error, Vec<u8>)> {
        let fd = Fd(socket.as_raw_fd());
        assert!(!part.is_empty() && part.end <= bytes.len(), "a send needs bytes");
        self.push_kept(Kept::Send(bytes), user_data, |kept| {
            let Kept::Send(bytes) = kept else { unreachable!("kept as a send above") };
            let rest = &bytes[part];
            let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
            opcode::Send::new(fd, rest.as_ptr(), rest.len() as u32).flags(flags).build()
        })
        .map_err(given_back)
    }

    pub(super) fn push_kept(
        &mut self,
        kept: Kept,
        user_data: u64,
        build: impl FnOnce(&mut Kept) -> io_uring::squeue::Entry,
    ) -> Result<(), (io::Error, Option<Kept>)> {
        let key = self.held.keep(user_data, kept);
        let entry = build(self.held.kept(key)).user_data(key);
        self.push(entry).map_err(|error| (error, self.held.take_back(key)))
    }

    /// Asks the kernel to end the request of [`CoreRing::accept`], [`CoreRing::connect`], [`CoreRing::receive`] or
    /// [`CoreRing::send`] that was made with `request`; it then completes with `ECANCELED`, unless it was done already.
    /// The cancellation itself completes under `user_data`. False: there is no such request.
    ///
    /// # Errors
    /// As the submission.
    pub fn cancel(&mut self, request: u64, user_data: u64) -> io::Result<bool> {
        let Some(key) = self.held.key_of(request) else { return Ok(false) };
        self.push(opcode::AsyncCancel::new(key).build().user_data(user_data))?;
        Ok(true)
    }

    /// Completes once when `fd` is readable.
    ///
    /// # Errors
    /// As the submission.
    pub fn poll_once(&mut self, fd: BorrowedFd<'_>, user_data: u64) -> io::Result<()> {
        self.waits = true;
        let events = libc::POLLIN as u32;
        self.push(opcode::PollAdd::new(Fd(fd.as_raw_fd()), events).build().user_data(user_data))
    }

    /// As [`CoreRing::cancel`], for a request that holds nothing: [`CoreRing::poll_once`], [`CoreRing::futex_wait`].
    ///
    /// # Errors
    /// As the submission.
    pub fn cancel_wait(&mut self, request: u64, user_data: u64) -> io::Result<()> {
        self.push(opcode::AsyncCancel::new(request).build().user_data(user_data))
    }

    /// Whether this kernel waits on a futex by io_uring (6.7); where not, a parked core looks at the ring by time.
    pub fn knows_futex_wait(&mut self) -> bool {
        let submitter = self.ring.submitter();
        *self.futex_wait.get_or_insert_with(|| {
            let mut probe = Probe::new();
            submitter.register_probe(&mut probe).is_ok() && probe.is_supported(opcode::FutexWait::CODE)
        })
    }

    /// Completes when somebody wakes the shared futex `word`, or at once (EAGAIN) when it does not hold `expected`.
    /// The kernel only reads the word; that it goes away meanwhile ends the wait at worst.
    ///
    /// # Errors
    /// As the submission.
    pub fn futex_wait(&mut self, word: &AtomicU32, expected: u32, user_data: u64) -> io::Result<()> {
        let entry = opcode::FutexWait::new(word.as_ptr(), u64::from(expected), FUTEX_ANY, FUTEX2_SHARED_U32);
        self.push(entry.build().user_data(user_data))
    }

    /// The bytes of the receive or send whose completion was taken last; once.
    pub fn take_bytes(&mut self) -> Option<Vec<u8>> {
        self.held.take_bytes()
    }

    /// The connection of the accept whose completion was taken last; once. One that nobody takes is closed.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.held.take_descriptor()
    }

    /// Whether the request whose completion was taken last goes on (multishot).
    pub fn more(&self) -> bool {
        self.held.more()
    }
}

fn given_back((error, kept): (io::Error, Option<Kept>)) -> (io::Error, Vec<u8>) {
    match kept {
        Some(Kept::Receive(bytes) | Kept::Send(bytes)) => (error, bytes),
        _ => (error, Vec::new()),
    }
}

impl Drop for CoreRing {
    /// Takes back what requests in flight point to, and ends waits, which hold their sockets open; memory that the kernel
    /// does not give back in time is never freed.
    fn drop(&mut self) {
        if self.held.in_flight() == 0 && !self.waits {
            return;
        }
        let time = Timespec::new().sec(CANCEL_SECONDS);
        let _ = self.submit();
        let _ = self.ring.submitter().register_sync_cancel(Some(time), CancelBuilder::any());
        let _ = self.submit();
        while self.next_completion().is_some() {}
        if self.held.in_flight() > 0 {
            self.held.leak();
        }
    }
}
