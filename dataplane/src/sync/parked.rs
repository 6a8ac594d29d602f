//! The flag by which a core says that it sleeps, so that a link's writer knows when to ring its doorbell.
//!
//! Both sides do a store, a SeqCst fence, then a load of the other's word: the sleeper stores `parked` and looks at
//! its links once more; the writer stores its item and looks at `parked`. One of the two must see the other, so an
//! item is never left for a sleeping core. `tests` runs the pair on two threads; `model` explores every interleaving
//! under `--cfg loom`.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether a core sleeps in the kernel.
#[derive(Debug)]
pub struct Parked(AtomicBool);

impl Default for Parked {
    fn default() -> Self {
        Parked(AtomicBool::new(false))
    }
}

impl Parked {
    /// The sleeper's announcement. After it the sleeper must look at every link once more before it sleeps.
    pub fn announce(&self) {
        self.0.store(true, Ordering::Relaxed);
        // Pairs with the fence in `take`.
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// The writer's question, after its items are in the link: true once per announcement, and then the writer must
    /// ring the doorbell.
    #[inline]
    pub fn take(&self) -> bool {
        // Pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    /// Two threads, many hand-offs: the sleeper only wakes by a bell, so a lost wake would stop the test.
    #[test]
    fn no_wake_is_lost() {
        const ROUNDS: u64 = 20_000;
        // Yields per wait, far beyond any scheduling delay: a lost wake fails instead of hanging.
        const YIELDS_MAX: u64 = 200_000_000;
        let parked = Arc::new(Parked::default());
        let item = Arc::new(AtomicU64::new(0));
        let bells = Arc::new(AtomicU64::new(0));
        let writer = std::thread::spawn({
            let (parked, item, bells) = (parked.clone(), item.clone(), bells.clone());
            move || {
                for round in 1..=ROUNDS {
                    item.store(round, Ordering::Release);
                    if parked.take() {
                        bells.fetch_add(1, Ordering::Release);
                    }
                    while item.load(Ordering::Acquire) != 0 {
                        std::thread::yield_now();
                    }
                }
            }
        });
        let (mut seen, mut heard) = (0, 0);
        while seen < ROUNDS {
            parked.announce();
            let mut yields = 0;
            while item.load(Ordering::Acquire) == 0 {
                let bell = bells.load(Ordering::Acquire);
                if bell != heard {
                    heard = bell;
                    parked.announce();
                }
                yields += 1;
                assert!(yields < YIELDS_MAX, "a wake was lost after round {seen}");
                std::thread::yield_now();
            }
            parked.clear();
            seen = item.load(Ordering::Acquire);
            item.store(0, Ordering::Release);
        }
        writer.join().expect("the writer ends");
        assert_eq!(seen, ROUNDS);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    /// Whatever the interleaving: the sleeper sees the item, or the writer sees the flag.
    #[test]
    fn one_of_the_two_sees_the_other() {
        loom::model(|| {
            let parked = Arc::new(Parked::default());
            let item = Arc::new(AtomicU64::new(0));
            let writer = loom::thread::spawn({
                let (parked, item) = (parked.clone(), item.clone());
                move || {
                    item.store(1, Ordering::Relaxed);
                    parked.take()
                }
            });
            parked.announce();
            let saw_item = item.load(Ordering::Relaxed) == 1;
            let rang = writer.join().expect("the writer ends");
            assert!(saw_item || rang, "an item was left for a sleeping core");
        });
    }
}
