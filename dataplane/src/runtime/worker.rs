//! What a worker is: one bounded batch per turn, no waiting, its own memory and sockets.

use std::os::fd::RawFd;

use crate::sys::uring::CoreRing;

/// The bits of a completion's `user_data` that are the worker's own; above them stands the worker's place on its core.
pub const TAG_BITS: u32 = 48;

/// One worker's place in time: what it gets for each turn.
pub struct Turn<'a> {
    /// `CLOCK_MONOTONIC` in ns, read once per round of the core.
    pub now: i64,
    /// The core's io_uring.
    pub ring: &'a mut CoreRing,
    pub(super) worker: u16,
    pub(super) fault: &'a mut Option<(u16, String)>,
}

impl<'a> Turn<'a> {
    /// A turn of worker number `worker` on a core that somebody drives by hand (tests, benchmarks); a core of
    /// [`super::launch`] makes its own.
    pub fn new(now: i64, ring: &'a mut CoreRing, worker: u16, fault: &'a mut Option<(u16, String)>) -> Turn<'a> {
        Turn { now, ring, worker, fault }
    }

    /// The `user_data` under which a completion comes back to this worker with `tag` (below 2^48).
    pub fn user_data(&self, tag: u64) -> u64 {
        debug_assert!(tag < 1 << TAG_BITS, "completion tag {tag:#x} needs more than {TAG_BITS} bits");
        u64::from(self.worker) << TAG_BITS | tag
    }

    /// Says that this worker cannot go on: the process ends with `reason` (no half-alive dataplane).
    pub fn fail(&mut self, reason: String) {
        self.fault.get_or_insert((self.worker, reason));
    }
}

/// A worker. It owns its memory and sockets; its core polls it in the order of the configuration.
pub trait Worker: Send {
    /// Its name in logs, metrics and `--explain`.
    fn name(&self) -> &str;

    /// Which part of the drain it belongs to: workers of stage 0 stop first (they take no more input from outside),
    /// a stage stops when all before it are drained.
    fn stage(&self) -> u8;

    /// Once, on the pinned thread, before the first turn: makes what must be made here (memory by first touch, sockets).
    /// The descriptors that it returns wake the core while it sleeps.
    ///
    /// # Errors
    /// One line for the user; the start fails and everything is undone.
    fn start(&mut self, turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String>;

    /// One bounded batch. Returns how many items it moved; 0 lets the core sleep.
    fn turn(&mut self, turn: &mut Turn<'_>) -> usize;

    /// A completion of the core's io_uring that was submitted under [`Turn::user_data`].
    fn complete(&mut self, _turn: &mut Turn<'_>, _tag: u64, _result: i32) {}

    /// The core is about to sleep: what is to wake it beside the descriptors of [`Worker::start`] is asked for here (a futex
    /// wait, a poll for once). One more turn follows, and the core sleeps only if that one finds nothing.
    fn before_sleep(&mut self, _turn: &mut Turn<'_>) {}

    /// The core is awake, or did not sleep after all; follows every [`Worker::before_sleep`].
    fn after_sleep(&mut self) {}

    /// Whether its core should go on looking in place of sleeping, although it has no work: work is about to come, and waking up
    /// would cost more than looking does.
    fn stays_awake(&self) -> bool {
        false
    }

    /// When it wants its next turn even if nothing arrives (monotonic ns).
    fn deadline(&self) -> Option<i64> {
        None
    }

    /// Take no more input; finish what is in hand.
    fn stop(&mut self, turn: &mut Turn<'_>);

    /// After [`Worker::stop`]: everything in hand has been passed on.
    fn drained(&self) -> bool;

    /// Once, on the pinned thread, after every stage is drained: gives back what must be given back there.
    fn finish(&mut self) {}
}
