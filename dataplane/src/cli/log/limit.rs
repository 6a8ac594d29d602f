//! How often one place in the code may speak. One event per state change is the rule; this is for what breaks it: a state that
//! flips, a peer that makes a thousand connections fail. Nothing here waits: pinned cores speak through it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Lines of one place in one window that pass: a start tells of each side of a feed, and 64 feeds have 128 to 256.
pub const LINES_MAX: u32 = 256;
/// The window, ms.
pub const WINDOW_MS: i64 = 10_000;
/// Places that are known: the project has about a hundred, its libraries that speak a few. More are not limited.
const PLACES_MAX: usize = 512;

/// A place in the code that speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// What tells it from others: its metadata's address.
    pub key: usize,
    /// Its file.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
}

#[derive(Default)]
struct Slot {
    place: OnceLock<Place>,
    begun_ms: AtomicI64,
    count: AtomicU32,
    left_out: AtomicU64,
}

/// The places that spoke, and how often.
pub struct Limiter {
    slots: Vec<Slot>,
}

impl Default for Limiter {
    fn default() -> Self {
        Limiter { slots: (0..PLACES_MAX).map(|_| Slot::default()).collect() }
    }
}

impl Limiter {
    /// Whether the place may speak now.
    pub fn admits(&self, place: Place, now_ms: i64) -> bool {
        let Some(slot) = self.slot(place) else { return true };
        let begun = slot.begun_ms.load(Ordering::Relaxed);
        let over = now_ms - begun >= WINDOW_MS || slot.count.load(Ordering::Relaxed) == 0;
        // Of two that find the window over, one begins the next; a line more or less is no matter.
        if over && slot.begun_ms.compare_exchange(begun, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            slot.count.store(0, Ordering::Relaxed);
        }
        let admitted = slot.count.fetch_add(1, Ordering::Relaxed) < LINES_MAX;
        slot.left_out.fetch_add(u64::from(!admitted), Ordering::Relaxed);
        admitted
    }

    /// What was left out in windows that are over (`all`: in any), by place; each is told once.
    pub fn left_out(&self, now_ms: i64, all: bool) -> Vec<(Place, u64)> {
        let over = |slot: &&Slot| all || now_ms - slot.begun_ms.load(Ordering::Relaxed) >= WINDOW_MS;
        let told = |slot: &Slot| {
            let lines = slot.left_out.swap(0, Ordering::Relaxed);
            (lines > 0).then(|| slot.place.get().map(|place| (*place, lines))).flatten()
        };
        self.slots.iter().filter(over).filter_map(told).collect()
    }

    fn slot(&self, place: Place) -> Option<&Slot> {
        // Static data is aligned: the low bits say nothing.
        let first = (place.key >> 4) % PLACES_MAX;
        let order = (first..PLACES_MAX).chain(0..first);
        order.map(|at| &self.slots[at]).find(|slot| slot.place.get_or_init(|| place).key == place.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(key: usize) -> Place {
        Place { key, file: "a.rs", line: key as u32 }
    }

    #[test]
    fn a_place_that_speaks_too_often_is_cut_and_counted() {
        let limiter = Limiter::default();
        let admitted = |now: i64| (0..1_000).filter(|_| limiter.admits(place(16), now)).count();
        assert_eq!(admitted(5), LINES_MAX as usize);
        assert_eq!(limiter.left_out(6, false), [], "its window goes on");
        assert!(limiter.admits(place(32), 6), "another place is not concerned");
        assert_eq!(limiter.left_out(5 + WINDOW_MS, false), [(place(16), 1_000 - u64::from(LINES_MAX))]);
        assert_eq!(limiter.left_out(5 + WINDOW_MS, false), [], "told once");
        assert_eq!(admitted(5 + WINDOW_MS), LINES_MAX as usize, "a new window");
        assert_eq!(limiter.left_out(6 + WINDOW_MS, true).len(), 1, "at the end all is told");
    }

    #[test]
    fn places_share_no_slot_and_too_many_are_not_limited() {
        let limiter = Limiter::default();
        for key in 0..PLACES_MAX {
            assert!(limiter.admits(place(key * 16), 1));
        }
        let unknown = (0..1_000).filter(|_| limiter.admits(place(1 << 40), 1)).count();
        assert_eq!(unknown, 1_000);
        let known = (0..1_000).filter(|_| limiter.admits(place(16), 1)).count();
        assert_eq!(known, LINES_MAX as usize - 1);
    }
}
