//! Reader registry: which readers a lossless producer waits for, and how far each has come.
//!
//! An entry is owned while its `pid` is not 0, and counts while `active` is 1 as well. Ownership changes by
//! compare-and-exchange of `pid` alone, so whoever removes a dead reader can never remove the one that took its place.
//!
//! Pairs of atomics:
//! - a reader's `Release` store of its cursor is read by the producer's `Acquire` load in [`slowest`]: all its loads of the
//!   slots below are done before the producer overwrites them;
//! - `active` = 1 (`Release`) is read by `slowest` (`Acquire`): who sees the reader sees its first cursor.
//!
//! Between a new reader's announcement and the producer's next scan, the producer may pass it: a reader looks at the
//! head again after it registered (and the producer scans at least each half lap).

use super::word::{Half, Ordering, Word};

/// Words of an entry.
pub const ENTRY_WORDS: usize = 8;
/// Bytes of a reader's name.
pub const NAME_BYTES: usize = 32;

/// One entry of the registry, in shared memory.
#[derive(Debug)]
pub struct Entry<'a, W, H> {
    /// The reader's process; 0 is free.
    pub pid: &'a H,
    /// Whether the cursor counts.
    pub active: &'a H,
    /// The sequence that the reader will read next.
    pub cursor: &'a W,
    /// Never read by the peer, which writes 0 when it registers. Ours write [`lock_mark`]: the reader holds a lock.
    pub mark: &'a W,
    /// The reader's name, zeros after it.
    pub name: &'a [W],
}

impl<W, H> Clone for Entry<'_, W, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W, H> Copy for Entry<'_, W, H> {}

/// Says in an entry that process `pid` holds a lock on the entry's bytes for as long as it reads.
pub const fn lock_mark(pid: u32) -> u64 {
    // "LOCK", then the process: an entry that another reader took over does not seem to have it.
    0x4c4f_434b_0000_0000 | pid as u64
}

impl<W: Word, H: Half> Entry<'_, W, H> {
    /// The owner's process; 0 is free.
    pub fn owner(&self) -> u32 {
        self.pid.load(Ordering::Acquire)
    }

    /// Whether the owner says that it holds a lock.
    pub fn is_locked_kind(&self) -> bool {
        self.mark.load(Ordering::Acquire) == lock_mark(self.owner())
    }

    /// Takes the entry over from `from` (0, or a dead process): false if someone was faster. The reader's cursor counts
    /// from now on. `mark` is not 0 only for one that holds the lock of the entry's bytes.
    pub fn claim(&self, from: u32, pid: u32, mark: u64, cursor: u64, name: &str) -> bool {
        if mark != 0 {
            // Before the process number is to be seen, which may mean nothing in the producer's namespace: it must not look
            // dead. Who holds the lock is the only one of ours that writes here. Released by the exchange.
            self.mark.store(mark, Ordering::Relaxed);
        }
        if !self.pid.exchange(from, pid) {
            return false;
        }
        // What the last owner left must not count before the new cursor stands.
        self.active.store(0, Ordering::Relaxed);
        self.mark.store(mark, Ordering::Release);
        self.cursor.store(cursor, Ordering::Relaxed);
        let mut bytes = [0; NAME_BYTES];
        let length = name.len().min(NAME_BYTES - 1);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        super::slots::copy_in(self.name, &bytes);
        // Pairs with the load in `slowest`.
        self.active.store(1, Ordering::Release);
        true
    }

    /// Gives the entry back, unless its reader was taken for dead and it is another's by now.
    pub fn release(&self, pid: u32) {
        if self.owner() != pid {
            return;
        }
        self.active.store(0, Ordering::Release);
        self.mark.store(0, Ordering::Relaxed);
        self.pid.exchange(pid, 0);
    }

    /// Frees the entry of a dead reader; false if it is not `pid`'s any more.
    pub fn reclaim(&self, pid: u32) -> bool {
        self.pid.exchange(pid, 0)
    }

    /// How far an active reader has come.
    #[inline]
    pub fn position(&self) -> Option<u64> {
        // Pairs with the last store in `claim`; then with `advance`.
        let counts = self.active.load(Ordering::Acquire) == 1 && self.pid.load(Ordering::Acquire) != 0;
        counts.then(|| self.cursor.load(Ordering::Acquire))
    }

    /// The reader's own: everything below `cursor` may be overwritten.
    #[inline(always)]
    pub fn advance(&self, cursor: u64) {
        advance(self.cursor, cursor);
    }
}

/// A reader's own: everything below `to` may be overwritten.
#[inline(always)]
pub fn advance<W: Word>(cursor: &W, to: u64) {
    // Pairs with the load of the cursor in `Entry::position`.
    cursor.store(to, Ordering::Release);
}

/// How far the slowest active reader has come; `None` without any.
pub fn slowest<'a, W: Word + 'a, H: Half + 'a>(entries: impl Iterator<Item = Entry<'a, W, H>>) -> Option<u64> {
    entries.filter_map(|entry| entry.position()).min()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicU64};

    #[derive(Default)]
    struct Memory {
        pid: AtomicU32,
        active: AtomicU32,
        words: [AtomicU64; 6],
    }

    impl Memory {
        fn entry(&self) -> Entry<'_, AtomicU64, AtomicU32> {
            let Memory { pid, active, words } = self;
            Entry { pid, active, cursor: &words[0], mark: &words[1], name: &words[2..] }
        }
    }

    #[test]
    fn an_entry_has_one_owner() {
        let memory = [Memory::default(), Memory::default()];
        let slowest = || slowest(memory.iter().map(Memory::entry));
        assert_eq!(slowest(), None);
        assert!(memory[0].entry().claim(0, 10, lock_mark(10), 5, "strategy"));
        assert!(!memory[0].entry().claim(0, 11, 0, 6, "late"));
        assert!(memory[1].entry().claim(0, 11, 0, 3, "a name that is much longer than an entry's"));
        assert_eq!(slowest(), Some(3));
        assert!(memory[0].entry().is_locked_kind() && !memory[1].entry().is_locked_kind());
        memory[1].entry().advance(9);
        assert_eq!(slowest(), Some(5));
        assert!(!memory[0].entry().reclaim(12) && memory[0].entry().reclaim(10));
        assert_eq!(slowest(), Some(9));
        memory[1].entry().release(11);
        assert_eq!((slowest(), memory[1].entry().owner()), (None, 0));
        assert!(memory[0].entry().claim(0, 12, 0, 1, "") && !memory[0].entry().is_locked_kind());
        // One that was taken for dead gives back what is another's by now.
        memory[0].entry().release(10);
        assert_eq!((slowest(), memory[0].entry().owner()), (Some(1), 12));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64};

    struct Memory {
        pid: AtomicU32,
        active: AtomicU32,
        words: [AtomicU64; 6],
        slot: AtomicU64,
    }

    impl Memory {
        fn new(pid: u32, active: u32, cursor: u64) -> Arc<Memory> {
            let words = std::array::from_fn(|index| AtomicU64::new(if index == 0 { cursor } else { 0 }));
            Arc::new(Memory {
                pid: AtomicU32::new(pid),
                active: AtomicU32::new(active),
                words,
                slot: AtomicU64::new(1),
            })
        }

        fn entry(&self) -> Entry<'_, AtomicU64, AtomicU32> {
            let Memory { pid, active, words, .. } = self;
            Entry { pid, active, cursor: &words[0], mark: &words[1], name: &words[2..] }
        }
    }

    /// The producer overwrites what a reader has passed: never what it still reads.
    fn nothing_unread_is_overwritten(advance: fn(&Memory)) {
        loom::model(move || {
            let memory = Memory::new(7, 1, 1);
            let reader = loom::thread::spawn({
                let memory = memory.clone();
                move || {
                    let read = memory.slot.load(Ordering::Relaxed);
                    advance(&memory);
                    read
                }
            });
            if slowest([memory.entry()].into_iter()).is_none_or(|cursor| cursor > 1) {
                memory.slot.store(2, Ordering::Relaxed);
            }
            assert_eq!(reader.join().expect("the reader ends"), 1, "a record was overwritten under its reader");
        });
    }

    #[test]
    fn a_reader_s_record_stays() {
        nothing_unread_is_overwritten(|memory| memory.entry().advance(2));
    }

    /// The model can fail: a cursor that is stored without order. (Loom does not let a load see a later store, so the
    /// reader's two steps stand the other way round, as a processor might run them.)
    #[test]
    #[should_panic(expected = "a record was overwritten under its reader")]
    fn a_cursor_stored_too_early_loses_a_record() {
        loom::model(|| {
            let memory = Memory::new(7, 1, 1);
            let reader = loom::thread::spawn({
                let memory = memory.clone();
                move || {
                    memory.entry().advance(2);
                    memory.slot.load(Ordering::Relaxed)
                }
            });
            if slowest([memory.entry()].into_iter()).is_none_or(|cursor| cursor > 1) {
                memory.slot.store(2, Ordering::Relaxed);
            }
            assert_eq!(reader.join().expect("the reader ends"), 1, "a record was overwritten under its reader");
        });
    }

    /// Two readers and a producer that prunes go for the entry of a dead reader: at most one owns it afterwards, and its
    /// cursor is the owner's.
    #[test]
    fn a_dead_reader_s_entry_has_one_heir() {
        loom::model(|| {
            let memory = Memory::new(7, 1, 1);
            let claim = |pid: u32, cursor: u64| {
                let memory = memory.clone();
                move || {
                    let from = memory.entry().owner();
                    matches!(from, 0 | 7) && memory.entry().claim(from, pid, 0, cursor, "")
                }
            };
            let heir = loom::thread::spawn(claim(8, 80));
            let pruner = loom::thread::spawn({
                let memory = memory.clone();
                move || memory.entry().reclaim(7)
            });
            let mine = claim(9, 90)();
            let other = heir.join().expect("the heir ends");
            pruner.join().expect("the pruner ends");
            assert!(!(mine && other), "an entry with two owners");
            let position = memory.entry().position();
            match (mine, other) {
                (true, _) => assert_eq!((memory.entry().owner(), position), (9, Some(90))),
                (_, true) => assert_eq!((memory.entry().owner(), position), (8, Some(80))),
                // The claim failed because the pruner was between its look and its exchange.
                (false, false) => assert_eq!(position, None),
            }
        });
    }
}
