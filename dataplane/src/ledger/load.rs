//! What the fan-out tells the source's side, so that it can choose how to send a chunk: whether somebody follows live, and how much
//! room the slowest of them has.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The subscribers' load. One writer, the fan-out; figures of one instant need not fit together, and each is good by itself, so
/// every access is relaxed.
#[derive(Default, Debug)]
pub struct Load {
    live: AtomicU32,
    slowest: AtomicU64,
}

impl Load {
    /// Subscribers that follow live or wait to.
    pub fn live_subscribers(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    /// How fast the slowest live subscriber's connection takes bytes when it is given enough, bytes/s, measured once a ledger;
    /// `None`: not known.
    pub fn slowest_bytes_per_second(&self) -> Option<u64> {
        match self.slowest.load(Ordering::Relaxed) {
            0 => None,
            rate => Some(rate),
        }
    }

    /// Tells how many there are.
    pub(super) fn set_live_subscribers(&self, live: usize) {
        self.live.store(u32::try_from(live).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Tells the slowest's rate; `None`: not known.
    pub(super) fn set_slowest(&self, rate: Option<u64>) {
        self.slowest.store(rate.unwrap_or(0), Ordering::Relaxed);
    }
}
