//! Sends of bytes that many requests share: one message goes to every subscriber from where it lies.
//!
//! A [`Batch`] holds shared parts in order. The ring owns it from [`CoreRing::send_batch`] to the completion, so that no part goes
//! away under the kernel; what was not sent stays in it for the next request. Its vectors are kept, so that a batch that is used
//! again allocates nothing.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::opcode;
use io_uring::types::Fd;

use super::held::Kept;
use super::{CoreRing, Frozen};

/// Most parts of one request: a quarter of what the kernel takes (`UIO_MAXIOV`, 1,024), and more than a ledger of 14.5 MiB has
/// chunks of the default size.
pub const PARTS_MAX: usize = 256;

/// Parts to be sent on one connection, in order.
pub struct Batch {
    parts: VecDeque<Arc<dyn Frozen>>,
    /// Bytes of the first part that were sent.
    sent: usize,
    /// Bytes that were not sent, of all parts.
    bytes: usize,
    vectors: Vec<libc::iovec>,
    header: Box<libc::msghdr>,
}

// SAFETY: `vectors` and the pointers in `header` are read by the kernel alone, while the ring owns the batch, and are written anew
// before each request; they lead to bytes of `parts`, which are Send and Sync.
unsafe impl Send for Batch {}

impl Default for Batch {
    fn default() -> Batch {
        // SAFETY: an all-zero msghdr is valid: no address, no vectors, no control data.
        let header = Box::new(unsafe { std::mem::zeroed() });
        Batch { parts: VecDeque::new(), sent: 0, bytes: 0, vectors: Vec::new(), header }
    }
}

impl Batch {
    /// Appends a part; an empty one is nothing.
    pub fn push(&mut self, part: Arc<dyn Frozen>) {
        let bytes = part.bytes().len();
        if bytes > 0 {
            self.bytes += bytes;
            self.parts.push_back(part);
        }
    }

    /// Bytes that are still to be sent.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Parts that are not sent whole.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The parts' bytes; of the first also what was sent.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| part.bytes())
    }

    /// So many bytes were sent: parts that are sent whole are let go. Asserts that there were as many.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "the kernel sends no more than it was given");
        self.bytes -= bytes;
        let mut sent = self.sent + bytes;
        while let Some(first) = self.parts.front() {
            let whole = first.bytes().len();
            if sent < whole {
                break;
            }
            sent -= whole;
            self.parts.pop_front();
        }
        self.sent = sent;
    }

    /// Lets everything go.
    pub fn clear(&mut self) {
        self.parts.clear();
        (self.sent, self.bytes) = (0, 0);
    }

    /// Points the header to the first `bytes_max` bytes of the parts, and at most [`PARTS_MAX`] of them.
    fn prepare(&mut self, bytes_max: usize) {
        self.vectors.clear();
        let (mut from, mut room) = (self.sent, bytes_max);
        for part in self.parts.iter().take(PARTS_MAX) {
            let bytes = &part.bytes()[from..];
            let taken = bytes.len().min(room);
            self.vectors.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: taken });
            (from, room) = (0, room - taken);
            if room == 0 {
                break;
            }
        }
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len() as _;
    }
}

impl CoreRing {
    /// Sends from the beginning of a batch, at most `bytes_max` bytes. The ring owns the batch until the completion, whose result is
    /// how many bytes the connection took: as many as it has room for, at least one. [`CoreRing::take_batch`] gives it back; who
    /// takes it tells it with [`Batch::advance`].
    ///
    /// # Errors
    /// As the submission; the batch comes back with it.
    pub fn send_batch(
        &mut self,
        socket: BorrowedFd<'_>,
        mut batch: Box<Batch>,
        bytes_max: usize,
        user_data: u64,
    ) -> Result<(), (io::Error, Box<Batch>)> {
        assert!(!batch.is_empty() && bytes_max > 0, "a send needs bytes");
        batch.prepare(bytes_max);
        let fd = Fd(socket.as_raw_fd());
        let pushed = self.push_kept(Kept::Batch(batch), user_data, |kept| {
            let Kept::Batch(batch) = kept else { unreachable!("kept as a batch above") };
            let header: *const libc::msghdr = &raw const *batch.header;
            opcode::SendMsg::new(fd, header).flags(libc::MSG_NOSIGNAL as u32).build()
        });
        pushed.map_err(|(error, kept)| match kept {
            Some(Kept::Batch(batch)) => (error, batch),
            _ => unreachable!("kept as a batch above"),
        })
    }

    /// The batch of the send whose completion was taken last; once.
    pub fn take_batch(&mut self) -> Option<Box<Batch>> {
        self.held.take_batch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &[u8]) -> Arc<dyn Frozen> {
        Arc::new(bytes.to_vec())
    }

    fn vectors(batch: &mut Batch, bytes_max: usize) -> Vec<usize> {
        batch.prepare(bytes_max);
        batch.vectors.iter().map(|vector| vector.iov_len).collect()
    }

    #[test]
    fn what_was_sent_is_let_go_and_the_rest_stays() {
        let first = part(b"abc");
        let mut batch = Batch::default();
        batch.push(first.clone());
        batch.push(part(b""));
        batch.push(part(b"defgh"));
        assert_eq!((batch.bytes(), batch.parts()), (8, 2));
        assert_eq!(vectors(&mut batch, 100), [3, 5]);
        assert_eq!(vectors(&mut batch, 4), [3, 1]);
        assert_eq!(vectors(&mut batch, 3), [3]);
        batch.advance(2);
        assert_eq!((batch.bytes(), Arc::strong_count(&first)), (6, 2));
        assert_eq!(vectors(&mut batch, 100), [1, 5]);
        batch.advance(2);
        assert_eq!((batch.bytes(), Arc::strong_count(&first)), (4, 1), "a part that is sent is let go");
        batch.push(part(b"i"));
        assert_eq!(vectors(&mut batch, 100), [4, 1]);
        batch.advance(5);
        assert!(batch.is_empty());
        batch.push(first.clone());
        batch.clear();
        assert_eq!((batch.bytes(), Arc::strong_count(&first)), (0, 1));
    }

    #[test]
    fn a_request_has_a_bound_of_parts() {
        let mut batch = Batch::default();
        (0..1_000).for_each(|_| batch.push(part(b"x")));
        assert_eq!(vectors(&mut batch, usize::MAX).len(), PARTS_MAX);
    }
}
