//! Inline publish: the producer's own thread sends the datagram after the slot is published.
//!
//! It spares the switch to the serve worker's thread and costs the push one datagram's way through the stack (0.8 µs, or 1.8 µs over
//! the loopback, on this project's test host, `docs/design/0011-mirror-io.md`). The worker of [`super::step::Server`] does everything
//! else: handshake, repair, and heartbeats while the producer is idle.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::mirror::live::{LiveCounters, LiveSender, LiveUpdate};
use super::producer::InlineSender;
use super::raw::RawReader;
use super::sockets::Outlets;
use crate::sys::clock;

/// Datagrams that one push sends at most; what is left goes with the next one.
const DATAGRAMS_PER_PUSH: usize = 32;

/// The datagram half, its ring and its sockets.
struct Half {
    live: LiveSender,
    ring: RawReader,
    outlets: Outlets,
}

impl Half {
    fn poll(&mut self, now: i64, max: usize) -> usize {
        self.live.poll(&mut self.ring, now, &mut self.outlets, max)
    }
}

/// What producer and worker share. Neither waits for the other: who finds it taken leaves a mark, and who has it looks for
/// the mark after it has let go.
pub(super) struct InlineShared {
    half: Mutex<Half>,
    waiting: AtomicBool,
}

impl InlineShared {
    pub(super) fn new(live: LiveSender, ring: RawReader, outlets: Outlets) -> InlineShared {
        InlineShared { half: Mutex::new(Half { live, ring, outlets }), waiting: AtomicBool::new(false) }
    }

    fn try_half(&self) -> Option<MutexGuard<'_, Half>> {
        match self.half.try_lock() {
            Ok(half) => Some(half),
            Err(TryLockError::Poisoned(half)) => Some(half.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sends what is new, and a heartbeat when one is due; how many datagrams. Leaves it to the other side if that is at it.
    pub(super) fn send(&self, now: i64, max: usize) -> usize {
        let mut sent = 0;
        loop {
            let Some(mut half) = self.try_half() else {
                // Read by the swap below, on the other side: the fence orders it after the record (published before) and
                // before the second try.
                self.waiting.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                match self.try_half() {
                    None => return sent,
                    Some(half) => drop(half),
                }
                continue;
            };
            self.waiting.store(false, Ordering::Relaxed);
            sent += half.poll(now, max);
            drop(half);
            // Pairs with the fence above: either that side gets the lock at its second try, or its mark is seen here.
            fence(Ordering::SeqCst);
            if !self.waiting.swap(false, Ordering::Relaxed) {
                return sent;
            }
        }
    }

    /// Takes changes of the destinations, from the worker; it waits for a push that is under way, never a push for it.
    pub(super) fn update(&self, updates: impl Iterator<Item = LiveUpdate>, now: i64) {
        let mut half = self.half.lock().unwrap_or_else(PoisonError::into_inner);
        updates.for_each(|update| half.live.update(update));
        half.poll(now, DATAGRAMS_PER_PUSH);
        drop(half);
        fence(Ordering::SeqCst);
        if self.waiting.swap(false, Ordering::Relaxed) {
            self.send(now, DATAGRAMS_PER_PUSH);
        }
    }

    pub(super) fn counters(&self) -> Option<LiveCounters> {
        self.try_half().map(|half| *half.live.counters())
    }
}

/// Sends the datagrams of one served ring from the producer's thread: for `RingProducer::with_sender`. Made by
/// [`super::step::Server::inline`].
pub struct InlineUdp {
    shared: Arc<InlineShared>,
}

impl InlineUdp {
    pub(super) fn new(shared: Arc<InlineShared>) -> InlineUdp {
        InlineUdp { shared }
    }

    /// What was sent so far; `None` while the other thread is sending.
    pub fn counters(&self) -> Option<LiveCounters> {
        self.shared.counters()
    }
}

impl InlineSender for InlineUdp {
    #[inline]
    fn published(&mut self, _sequence: u64) {
        self.shared.send(clock::monotonic_ns(), DATAGRAMS_PER_PUSH);
    }
}
