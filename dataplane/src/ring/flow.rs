//! Lossless flow control: how far a producer may go before its slowest registered reader.
//!
//! The answer is cached as one number, so that a push costs one comparison; only at the limit is the registry looked at
//! again, and at least once per half lap, so that a new reader is waited for.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::view::{Registry, prune};
use crate::sync::registry;
use crate::sys::clock::{self, monotonic_ns};
use crate::sys::shm::{RingFile, process_started, ticks_since_boot};

/// Polls without pause, then with yields, then with sleeps: some 10 µs, some 200 µs, for ever.
const SPINS: u32 = 100;
const YIELDS: u32 = 900;
/// The pause of a blocked producer.
const PAUSE: Duration = Duration::from_micros(10);
/// Looks for dead readers by the start of their process (a file each) once per so many pauses: about 10 ms.
const PAUSES_PER_START_LOOK: u32 = 128;

/// What a lossless producer knows of its readers.
#[derive(Debug)]
pub(super) struct Flow {
    registry: Registry,
    capacity: u64,
    /// Sequences below it may be written without another look.
    pub limit: u64,
    /// A reader that makes no progress for this long while the producer waits for it is put out.
    stall_ns_max: Option<i64>,
    /// Per entry: the process that was first seen in it, and when (ticks since boot).
    owners: Vec<(u32, u64)>,
    /// Readers that were put out because they made no progress.
    pub evicted: u64,
    /// Entries freed because their reader was dead.
    pub pruned: u64,
}

/// The wait of a blocked producer.
#[derive(Debug, Default)]
pub(super) struct Blocked {
    turns: u32,
    slowest: Option<(u64, i64)>,
}

impl Flow {
    pub fn new(registry: Registry, capacity: u64, stall_max: Option<Duration>) -> Flow {
        let owners = vec![(0, 0); registry.count];
        let stall_ns_max = stall_max.map(|stall| i64::try_from(stall.as_nanos()).unwrap_or(i64::MAX));
        Flow { registry, capacity, limit: 0, stall_ns_max, owners, evicted: 0, pruned: 0 }
    }

    /// How far the slowest reader has come; notes who is there.
    pub fn slowest(&mut self) -> Option<u64> {
        for (entry, seen) in self.registry.entries().zip(&mut self.owners) {
            let owner = entry.owner();
            if owner != seen.0 {
                *seen = (owner, ticks_since_boot());
            }
        }
        registry::slowest(self.registry.entries())
    }

    /// Looks at the registry again; whether `next` may be written.
    pub fn refresh(&mut self, next: u64) -> bool {
        let window = next.saturating_add((self.capacity / 2).max(1));
        let limit = self.slowest().map_or(u64::MAX, |slowest| slowest.saturating_add(self.capacity));
        self.limit = limit.min(window);
        next < self.limit
    }

    /// Frees the entries of dead readers; how many. With `by_start` also those whose process number another process has by
    /// now: it started after the reader was first seen.
    pub fn prune(&mut self, file: Option<&RingFile>, by_start: bool) -> u64 {
        let reused = |index: usize, owner| {
            let seen = self.owners[index];
            let known = owner == seen.0 && !self.registry.entry(index).is_locked_kind();
            // One tick of doubt: the two are rounded on their own.
            known && process_started(owner).is_some_and(|started| started > seen.1 + 1)
        };
        let freed = prune(file, &self.registry, |index, owner| by_start && reused(index, owner));
        self.pruned += freed;
        freed
    }

    /// Passes a moment of a blocked producer.
    pub fn pause(&mut self, blocked: &mut Blocked, file: Option<&RingFile>) {
        blocked.turns = blocked.turns.saturating_add(1);
        if blocked.turns < SPINS {
            std::hint::spin_loop();
        } else if blocked.turns < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            self.prune(file, blocked.turns.is_multiple_of(PAUSES_PER_START_LOOK));
            self.evict(blocked);
            clock::sleep(PAUSE);
            // Sleeping goes on.
            blocked.turns = blocked.turns.min(u32::MAX / 2);
        }
    }

    /// Puts out the readers that hold the producer up for longer than the setting allows.
    fn evict(&mut self, blocked: &mut Blocked) {
        let Some(stall_ns_max) = self.stall_ns_max else { return };
        let (now_ns, slowest) = (monotonic_ns(), registry::slowest(self.registry.entries()));
        let Some(slowest) = slowest else { return };
        let (at, since_ns) = *blocked.slowest.get_or_insert((slowest, now_ns));
        if at != slowest {
            blocked.slowest = Some((slowest, now_ns));
        } else if now_ns - since_ns >= stall_ns_max {
            for entry in self.registry.entries() {
                let owner = entry.owner();
                if entry.position() != Some(slowest) {
                    continue;
                }
                entry.active.store(0, Ordering::Release);
                let heir = entry.owner();
                if heir != owner {
                    if heir != 0 {
                        // It went by itself, and the entry is another's, which counts. (If that one is still coming, the old
                        // cursor counts for a moment: the producer waits in vain, and loses nothing.)
                        entry.active.store(1, Ordering::Release);
                    }
                    continue;
                }
                self.evicted += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingSettings;
    use crate::ring::writer::Writer;
    use crate::sync::registry::lock_mark;
    use std::path::PathBuf;

    /// A lossless ring's writer on a file, removed at the end.
    fn ring(name: &str) -> Writer {
        let path = PathBuf::from(format!("/dev/shm/sluice-flow-{name}-{}", std::process::id()));
        let settings = RingSettings { capacity: 8, lossless: true, readers_max: Some(3), ..RingSettings::default() };
        let shape = settings.shape::<u64>(None).expect("sound");
        settings.create(&path, &shape).expect("made").writer
    }

    fn claim(writer: &Writer, index: usize, pid: u32, mark: u64) {
        assert!(writer.registry().expect("lossless").entry(index).claim(0, pid, mark, 1, "reader"));
    }

    #[test]
    fn the_dead_are_freed_even_if_their_number_lives() {
        let writer = ring("dead");
        let file = writer.file.as_ref();
        let own = std::process::id();
        let mut flow = Flow::new(writer.registry().expect("lossless"), 8, None);
        // Holds no lock although it says so: dead, whoever has its number now.
        claim(&writer, 0, own, lock_mark(own));
        // A peer's reader whose number belongs to a living process (this one).
        claim(&writer, 1, own, 0);
        // No such process: numbers end at 2^22.
        claim(&writer, 2, 1 << 23, 0);
        assert!(flow.refresh(8) && !flow.refresh(9));
        assert_eq!(flow.prune(file, false), 2);
        assert_eq!(flow.prune(file, true), 0, "it was there before it was seen");
        // As if it had been seen before this process began: the number is another process's now.
        flow.owners[1].1 = 1;
        assert_eq!(flow.prune(file, true), 1);
        assert!(flow.refresh(9));
        assert_eq!((flow.slowest(), flow.pruned), (None, 3));
    }

    #[test]
    fn a_reader_that_holds_its_lock_lives() {
        let writer = ring("lives");
        let path = writer.file.as_ref().expect("on a file").path().to_path_buf();
        let reader = RingFile::open(&path, true).expect("there");
        assert!(reader.lock_bytes(super::super::view::entry_offset(1), 64));
        // The number is of no process here: a reader in another PID namespace.
        claim(&writer, 1, 1 << 23, lock_mark(1 << 23));
        let mut flow = Flow::new(writer.registry().expect("lossless"), 8, None);
        assert_eq!(flow.prune(writer.file.as_ref(), true), 0);
        drop(reader);
        assert_eq!(flow.prune(writer.file.as_ref(), true), 1);
    }

    #[test]
    fn the_limit_is_the_slowest_s_and_half_a_lap() {
        let writer = ring("limit");
        let registry = writer.registry().expect("lossless");
        let mut flow = Flow::new(writer.registry().expect("lossless"), 8, None);
        assert!(flow.refresh(1));
        assert_eq!(flow.limit, 5, "a new reader is seen after half a lap");
        assert!(registry.entry(0).claim(0, 1, 0, 3, "") && registry.entry(2).claim(0, 1, 0, 2, ""));
        assert!(flow.refresh(9));
        assert_eq!(flow.limit, 10);
        assert!(!flow.refresh(10));
        registry.entry(2).advance(u64::MAX);
        assert!(flow.refresh(10) && !flow.refresh(11));
    }
}
