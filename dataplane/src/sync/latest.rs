//! A value that is replaced now and then, and looked at often.
//!
//! Who looks loads one word, and takes the lock only when that says that there is another value than the one he has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The value's place; both ends hold it.
struct Place<T> {
    /// Counts the values. Written with the lock held.
    generation: AtomicU64,
    value: Mutex<Arc<T>>,
}

impl<T> Place<T> {
    fn lock(&self) -> MutexGuard<'_, Arc<T>> {
        // Nothing that can panic runs with the lock held.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle on a value that may be replaced. Each clone has its own cached copy.
pub struct Latest<T> {
    place: Arc<Place<T>>,
    seen: u64,
    value: Arc<T>,
}

impl<T> Clone for Latest<T> {
    fn clone(&self) -> Latest<T> {
        Latest { place: Arc::clone(&self.place), seen: self.seen, value: Arc::clone(&self.value) }
    }
}

impl<T> Latest<T> {
    /// A place with its first value.
    pub fn new(value: T) -> Latest<T> {
        let value = Arc::new(value);
        let place = Arc::new(Place { generation: AtomicU64::new(0), value: Mutex::new(Arc::clone(&value)) });
        Latest { place, seen: 0, value }
    }

    /// Replaces the value, for every handle. Whoever has the one before keeps it as long as he likes.
    pub fn set(&self, value: T) {
        let mut place = self.place.lock();
        *place = Arc::new(value);
        // Pairs with the Acquire in `look`. The lock orders the value itself; this word only says that it is worth taking.
        self.place.generation.fetch_add(1, Ordering::Release);
    }

    /// The value. Takes the lock only after it was replaced.
    pub fn look(&mut self) -> &Arc<T> {
        // Pairs with the Release in `set`.
        if self.place.generation.load(Ordering::Acquire) != self.seen {
            let value = self.place.lock();
            // With the lock held nobody counts on: this is the generation of what is taken.
            self.seen = self.place.generation.load(Ordering::Relaxed);
            self.value = Arc::clone(&value);
        }
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_value_is_seen_by_every_handle_and_the_old_one_stays_whole() {
        let mut one = Latest::new(1);
        let mut other = one.clone();
        let held = Arc::clone(one.look());
        other.set(2);
        assert_eq!((**one.look(), **other.look(), *held), (2, 2, 1));
        // A clone of a handle that has not looked sees it too.
        one.set(3);
        let mut late = other.clone();
        assert_eq!(**late.look(), 3);
    }

    #[test]
    fn values_never_go_back() {
        let latest = Latest::new(0_u64);
        let mut reader = latest.clone();
        let writer = std::thread::spawn(move || (1..=10_000).for_each(|value| latest.set(value)));
        let mut last = 0;
        while last < 10_000 {
            let value = **reader.look();
            assert!(value >= last, "{value} after {last}");
            last = value;
            if writer.is_finished() {
                assert_eq!(**reader.look(), 10_000);
                break;
            }
        }
        writer.join().expect("the writer");
    }
}
