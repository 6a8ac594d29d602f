//! The client as a `Stream` of verified ledgers, for programs on any async runtime.
//!
//! A thread drives the blocking front and hands ledgers over; the stream itself does no work but take them. At most [`AHEAD_MAX`]
//! wait there: a consumer that is slower than the source holds back its own connection, and memory is bounded by as many ledgers. The
//! buffer of a ledger that is dropped is used again. Dropping the stream ends the connection; the thread ends soon after, and is not waited
//! for.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::follow::{Cancel, FollowError, FollowSettings, Follower, Notice, Received};
use super::query::Range;

/// Ledgers that wait for the consumer at most: one that it is about to take, and one that is being received meanwhile.
pub const AHEAD_MAX: usize = 2;
/// Buffers that wait to be used again: as many as ledgers can be on their way, and the consumer's own.
const SPARE_MAX: usize = AHEAD_MAX + 1;

/// A verified ledger.
pub struct OwnedLedger {
    /// Its sequence.
    pub sequence: u32,
    /// The server's clock at its first byte, ns since the Unix epoch; 0 for what was not followed live.
    pub emit_start_ns: i64,
    /// The server's clock at its last byte; 0 as above.
    pub emit_end_ns: i64,
    /// This host's clock when it was verified, ns since the Unix epoch.
    pub received_ns: i64,
    /// Its checksum, XXH64.
    pub xxh64: u64,
    /// Chunks that it came in.
    pub chunks: u32,
    /// Bytes of its chunks as they were sent.
    pub packed_bytes: u64,
    /// Times that it was begun and not completed before.
    pub discarded_partials: u32,
    buffer: Vec<u8>,
    length: usize,
    home: Weak<Shared>,
}

impl OwnedLedger {
    fn new(received: &Received<'_>, home: Weak<Shared>) -> OwnedLedger {
        let ledger = &received.ledger;
        OwnedLedger {
            sequence: ledger.sequence,
            emit_start_ns: ledger.emit_start_ns,
            emit_end_ns: ledger.emit_end_ns,
            received_ns: received.received_ns,
            xxh64: ledger.xxh64,
            chunks: ledger.chunks,
            packed_bytes: ledger.packed_bytes,
            discarded_partials: ledger.discarded_partials,
            buffer: Vec::new(),
            length: ledger.bytes.len(),
            home,
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Its bytes, for good: the buffer is not used again.
    pub fn into_bytes(mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.truncate(self.length);
        self.length = 0;
        bytes
    }
}

impl fmt::Debug for OwnedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedLedger")
            .field("sequence", &self.sequence)
            .field("bytes", &self.length)
            .finish_non_exhaustive()
    }
}

impl Drop for OwnedLedger {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            let mut inner = home.lock();
            if inner.spare.len() < SPARE_MAX && self.buffer.capacity() > 0 {
                inner.spare.push(std::mem::take(&mut self.buffer));
            }
        }
    }
}

#[derive(Default)]
struct Inner {
    ready: VecDeque<Result<OwnedLedger, FollowError>>,
    spare: Vec<Vec<u8>>,
    waker: Option<Waker>,
    /// The thread gives nothing more.
    ended: bool,
    /// The stream takes nothing more.
    dropped: bool,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    room: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a ledger more may be received; a buffer for it, or `None` where nobody takes it.
    fn room(&self) -> Option<Vec<u8>> {
        let waits = |inner: &mut Inner| inner.ready.len() >= AHEAD_MAX && !inner.dropped;
        let mut inner = self.room.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        (!inner.dropped).then(|| inner.spare.pop().unwrap_or_default())
    }

    fn give(&self, item: Result<OwnedLedger, FollowError>) {
        let mut inner = self.lock();
        inner.ready.push_back(item);
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Says that the thread is gone, however it went.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.ended = true;
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Verified ledgers, one after the other. See the module's head.
pub struct LedgerStream {
    shared: Arc<Shared>,
    cancel: Cancel,
}

impl LedgerStream {
    /// A stream that says nothing of connections. Its thread connects at once.
    ///
    /// # Errors
    /// The address; no memory; no thread.
    pub fn new(url: &str, range: Range, settings: FollowSettings) -> Result<LedgerStream, FollowError> {
        LedgerStream::with_notice(url, range, settings, |_: Notice<'_>| ())
    }

    /// A stream that tells `notice` what happens, on its thread.
    ///
    /// # Errors
    /// As [`LedgerStream::new`].
    pub fn with_notice<F>(
        url: &str,
        range: Range,
        settings: FollowSettings,
        notice: F,
    ) -> Result<LedgerStream, FollowError>
    where
        F: FnMut(Notice<'_>) + Send + 'static,
    {
        let follower = Follower::with_notice(url, range, settings, notice)?;
        let (shared, cancel) = (Arc::<Shared>::default(), follower.canceller());
        let theirs = Ends(shared.clone());
        let thread = std::thread::Builder::new().name("sluice-ledgers".into());
        thread.spawn(move || drive(follower, &theirs.0)).map_err(FollowError::Host)?;
        Ok(LedgerStream { shared, cancel })
    }
}

fn drive<F: FnMut(Notice<'_>)>(mut follower: Follower<F>, shared: &Arc<Shared>) {
    while let Some(spare) = shared.room() {
        let mut ledger = match follower.next() {
            Ok(Some(received)) => OwnedLedger::new(&received, Arc::downgrade(shared)),
            Ok(None) => return,
            Err(error) => return shared.give(Err(error)),
        };
        ledger.buffer = follower.exchange(spare);
        shared.give(Ok(ledger));
    }
    follower.stop();
}

impl Stream for LedgerStream {
    type Item = Result<OwnedLedger, FollowError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut inner = self.shared.lock();
        if let Some(item) = inner.ready.pop_front() {
            self.shared.room.notify_one();
            return Poll::Ready(Some(item));
        }
        if inner.ended {
            return Poll::Ready(None);
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for LedgerStream {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.dropped = true;
        // Ledgers give their buffers back when they are dropped, which takes the lock.
        let (ready, waker) = (std::mem::take(&mut inner.ready), inner.waker.take());
        drop(inner);
        drop((ready, waker));
        self.shared.room.notify_one();
        self.cancel.cancel();
    }
}
