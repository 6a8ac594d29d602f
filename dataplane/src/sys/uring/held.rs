//! What requests in flight point to: the ring owns it until the kernel is done with it.
//!
//! A request that names memory is queued under a number of this table in place of the caller's `user_data`; when its
//! completion is taken, the caller's `user_data` is put back and the memory becomes available to the caller again.

use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::cqueue;

use super::files::Gather;
use super::shared::Batch;

/// The upper 16 bits of `user_data` that mark a number of this table. The runtime gives workers their place on the core
/// there, and 65,535 to itself: 65,534 is the last place, which no core reaches.
const MARK: u64 = 0xFFFE << 48;

/// What one request holds.
pub(super) enum Kept {
    /// A listener's connections: nothing to keep, descriptors come back.
    Accept,
    /// The address of a connect.
    Address(Box<libc::sockaddr_storage>),
    /// Bytes to be filled from their end on.
    Receive(Vec<u8>),
    /// Bytes to be sent.
    Send(Vec<u8>),
    /// Shared parts to be sent.
    Batch(Box<Batch>),
    /// The name of a file to be opened: a descriptor comes back.
    Open(CString),
    /// The name of a file to be removed.
    Name(CString),
    /// The names of a rename.
    Names(CString, CString),
    /// The pieces of a write.
    Gather(Gather),
}

struct Request {
    user_data: u64,
    kept: Kept,
}

/// The table of requests in flight, and what the last completion gave back.
#[derive(Default)]
pub(super) struct Held {
    requests: Vec<Option<Request>>,
    free: Vec<u32>,
    in_flight: usize,
    bytes: Option<Vec<u8>>,
    batch: Option<Box<Batch>>,
    descriptor: Option<OwnedFd>,
    more: bool,
}

impl Held {
    /// Keeps `kept` until its completion; the `user_data` for the kernel.
    pub(super) fn keep(&mut self, user_data: u64, kept: Kept) -> u64 {
        let request = Some(Request { user_data, kept });
        self.in_flight += 1;
        match self.free.pop() {
            Some(at) => {
                self.requests[at as usize] = request;
                MARK | u64::from(at)
            }
            None => {
                self.requests.push(request);
                MARK | (self.requests.len() - 1) as u64
            }
        }
    }

    /// What `key` keeps.
    pub(super) fn kept(&mut self, key: u64) -> &mut Kept {
        let request = self.requests[(key & !MARK) as usize].as_mut();
        &mut request.expect("a key is asked for only while its request is in flight").kept
    }

    /// Takes back what was kept for a request that the kernel never got.
    pub(super) fn take_back(&mut self, key: u64) -> Option<Kept> {
        self.remove((key & !MARK) as usize).map(|request| request.kept)
    }

    /// The kernel's key of the first request in flight with the caller's `user_data`.
    pub(super) fn key_of(&self, user_data: u64) -> Option<u64> {
        let at = self.requests.iter().position(|r| r.as_ref().is_some_and(|r| r.user_data == user_data))?;
        Some(MARK | at as u64)
    }

    /// A completion was taken: the caller's `user_data`; what it gives back waits in [`Held::take_bytes`] and
    /// [`Held::take_descriptor`] until the next completion is taken.
    pub(super) fn settle(&mut self, key: u64, result: i32, flags: u32) -> u64 {
        self.bytes = None;
        self.batch = None;
        self.descriptor = None;
        self.more = cqueue::more(flags);
        if key & MARK != MARK || key >> 48 == 0xFFFF {
            return key;
        }
        let at = (key & !MARK) as usize;
        let Some(Some(request)) = self.requests.get(at) else { return key };
        let user_data = request.user_data;
        if matches!(request.kept, Kept::Accept | Kept::Open(_)) && result >= 0 {
            // SAFETY: the kernel made this descriptor for the accept or open that completes here; nobody else knows it.
            self.descriptor = Some(unsafe { OwnedFd::from_raw_fd(result) });
        }
        if self.more {
            return user_data;
        }
        self.bytes = match self.remove(at).map(|request| request.kept) {
            Some(Kept::Receive(mut bytes)) => {
                let filled = bytes.len() + result.max(0) as usize;
                assert!(filled <= bytes.capacity(), "the kernel writes no more than it was given");
                // SAFETY: the request was for the spare capacity, of which the kernel has written `result` bytes.
                unsafe { bytes.set_len(filled) };
                Some(bytes)
            }
            Some(Kept::Send(bytes)) => Some(bytes),
            Some(Kept::Batch(batch)) => {
                self.batch = Some(batch);
                None
            }
            Some(
                Kept::Accept | Kept::Address(_) | Kept::Open(_) | Kept::Name(_) | Kept::Names(..) | Kept::Gather(_),
            )
            | None => None,
        };
        user_data
    }

    fn remove(&mut self, at: usize) -> Option<Request> {
        let request = self.requests.get_mut(at)?.take()?;
        self.free.push(at as u32);
        self.in_flight -= 1;
        Some(request)
    }

    pub(super) fn take_bytes(&mut self) -> Option<Vec<u8>> {
        self.bytes.take()
    }

    pub(super) fn take_batch(&mut self) -> Option<Box<Batch>> {
        self.batch.take()
    }

    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }

    pub(super) fn more(&self) -> bool {
        self.more
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Gives up what is still in flight without freeing it: the kernel may still write to it.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.requests));
    }
}
