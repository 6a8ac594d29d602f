//! The ring's head and its sleepers: no reader sleeps through a record.
//!
//! The producer stores the head, then looks for sleepers; a sleeper announces itself, then looks at the head once more.
//! Between the two steps both sides need a full barrier, so that one of them sees the other. The producer's is left out of
//! its hot path where the kernel can issue it for the sleeper (`membarrier(GLOBAL_EXPEDITED)`: the producer is registered,
//! the sleeper calls); else it is a `SeqCst` fence ([`Barrier`]).
//!
//! `model` explores the pair with the fence; the membarrier pair is tested with two processes (`it::ring_futex`).

use std::sync::atomic::compiler_fence;

use super::word::{Half, Load, Ordering, Word, fence};

/// Who orders the producer's store of the head before its look for sleepers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Barrier {
    /// Each sleeper, by a membarrier that reaches the producer's process.
    Sleeper,
    /// The producer itself, by a fence at each publication.
    Producer,
}

/// Publishes the head; whether someone sleeps (then [`mark`] and wake).
#[inline(always)]
pub fn publish<W: Word, H: Half>(head: &W, waiting: &H, sequence: u64, barrier: Barrier) -> bool {
    // Read by the `Acquire` loads of the head in `announce` and in every reader.
    head.store(sequence, Ordering::Release);
    match barrier {
        // The sleeper's membarrier is the processor's barrier; the compiler must not turn the two around either.
        Barrier::Sleeper => compiler_fence(std::sync::atomic::Ordering::SeqCst),
        // Pairs with the fence in `announce`.
        Barrier::Producer => fence(Ordering::SeqCst),
    }
    waiting.load(Ordering::Relaxed) > 0
}

/// Changes the futex word before the wake, so that a sleeper on its way into the kernel turns back.
pub fn mark<H: Half>(futex: &H) {
    // Read by the `Acquire` load in `announce` (and by the kernel).
    futex.fetch_add(1, Ordering::Release);
}

/// Announces a sleeper that waits for `cursor`. `Some(value)`: it may sleep as long as the futex word is `value`, and must
/// [`withdraw`] afterwards. `None`: the head has come there already; nothing is announced. `barrier` reaches the producers.
pub fn announce<W: Load, H: Half>(
    head: &W,
    futex: &H,
    waiting: &H,
    cursor: u64,
    barrier: impl FnOnce(),
) -> Option<u32> {
    if head.load(Ordering::Acquire) >= cursor {
        return None;
    }
    // Before the announcement: a wake between the two changes the word, and the kernel refuses to sleep.
    let value = futex.load(Ordering::Acquire);
    waiting.fetch_add(1, Ordering::SeqCst);
    // Pairs with the fence in `publish`.
    fence(Ordering::SeqCst);
    barrier();
    if head.load(Ordering::Acquire) >= cursor {
        withdraw(waiting);
        return None;
    }
    Some(value)
}

/// The sleeper is awake. Its announcement may be forgotten: then the count stays 0, or it takes back the announcement of one
/// that came after the forgetting and sleeps uncounted now. That is why who [`forget`]s wakes at each publication for a while.
pub fn withdraw<H: Half>(waiting: &H) {
    loop {
        let count = waiting.load(Ordering::Relaxed);
        if count == 0 || waiting.exchange(count, count - 1) {
            return;
        }
    }
}

/// Forgets the announced sleepers, who seem to be dead; false if one came or went meanwhile. If true, the caller must
/// [`mark`] and wake once more, after it: a sleeper that lives all the same turns back or wakes, and announces itself anew.
/// And it must go on to mark and wake at each publication, whatever [`publish`] says, until those that lived have withdrawn:
/// each may take another one's announcement with it.
pub fn forget<H: Half>(waiting: &H) -> bool {
    let count = waiting.load(Ordering::Relaxed);
    count > 0 && waiting.exchange(count, 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicU64};

    #[test]
    fn a_sleeper_is_seen_and_turned_back() {
        let (head, futex, waiting) = (AtomicU64::new(0), AtomicU32::new(7), AtomicU32::new(0));
        assert!(!publish(&head, &waiting, 1, Barrier::Sleeper));
        assert_eq!(announce(&head, &futex, &waiting, 1, || ()), None);
        assert_eq!(announce(&head, &futex, &waiting, 2, || ()), Some(7));
        assert!(publish(&head, &waiting, 2, Barrier::Producer));
        mark(&futex);
        assert_eq!(futex.load(Ordering::Relaxed), 8);
        withdraw(&waiting);
        assert_eq!(announce(&head, &futex, &waiting, 3, || head.store(3, Ordering::Relaxed)), None);
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64};

    struct Ring {
        head: AtomicU64,
        futex: AtomicU32,
        waiting: AtomicU32,
    }

    /// A producer publishes once while a reader goes to sleep: the reader sees the record, or its sleep is refused because
    /// the futex word changed (the wake comes after the change, so a sleeper already in the kernel is woken).
    fn no_sleep_through(publish: fn(&Ring) -> bool) {
        loom::model(move || {
            let ring = Arc::new(Ring { head: AtomicU64::new(0), futex: AtomicU32::new(0), waiting: AtomicU32::new(0) });
            let producer = loom::thread::spawn({
                let ring = ring.clone();
                move || {
                    if publish(&ring) {
                        mark(&ring.futex);
                    }
                }
            });
            let sleeps = announce(&ring.head, &ring.futex, &ring.waiting, 1, || ());
            producer.join().expect("the producer ends");
            if let Some(value) = sleeps {
                assert_ne!(ring.futex.load(Ordering::Relaxed), value, "slept through a record");
                withdraw(&ring.waiting);
            }
            assert_eq!(ring.waiting.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn nobody_sleeps_through_a_record() {
        no_sleep_through(|ring| publish(&ring.head, &ring.waiting, 1, Barrier::Producer));
    }

    /// The producer forgets a dead sleeper while a living one goes to sleep: that one is turned back, or counted.
    fn no_sleep_uncounted(after: fn(&Ring)) {
        loom::model(move || {
            // The dead one is in the count.
            let ring = Arc::new(Ring { head: AtomicU64::new(0), futex: AtomicU32::new(0), waiting: AtomicU32::new(1) });
            let producer = loom::thread::spawn({
                let ring = ring.clone();
                move || {
                    if forget(&ring.waiting) {
                        after(&ring);
                    }
                }
            });
            let sleeps = announce(&ring.head, &ring.futex, &ring.waiting, 1, || ());
            producer.join().expect("the producer ends");
            let value = sleeps.expect("nothing was published");
            let turned_back = ring.futex.load(Ordering::Relaxed) != value;
            assert!(turned_back || ring.waiting.load(Ordering::Relaxed) > 0, "a sleeper that nobody wakes");
        });
    }

    #[test]
    fn a_living_sleeper_is_not_forgotten() {
        no_sleep_uncounted(|ring| mark(&ring.futex));
    }

    /// The model can fail: without the second mark.
    #[test]
    #[should_panic(expected = "a sleeper that nobody wakes")]
    fn without_the_second_mark_a_living_sleeper_is_forgotten() {
        no_sleep_uncounted(|_| ());
    }

    /// Two living sleepers: the producer forgets the one that is announced, the other announces itself, and the first wakes and
    /// takes that announcement back. Then a record comes.
    fn no_two_sleep_uncounted(wakes: fn(&Ring) -> bool) {
        loom::model(move || {
            let ring = Arc::new(Ring { head: AtomicU64::new(0), futex: AtomicU32::new(0), waiting: AtomicU32::new(1) });
            let producer = loom::thread::spawn({
                let ring = ring.clone();
                move || {
                    if forget(&ring.waiting) {
                        mark(&ring.futex);
                    }
                    if wakes(&ring) {
                        mark(&ring.futex);
                    }
                }
            });
            let sleeps = announce(&ring.head, &ring.futex, &ring.waiting, 1, || ());
            // The first one, whose own thread would only make the model large.
            withdraw(&ring.waiting);
            producer.join().expect("the producer ends");
            if let Some(value) = sleeps {
                assert_ne!(ring.futex.load(Ordering::Relaxed), value, "slept through a record");
            }
        });
    }

    #[test]
    fn nobody_sleeps_uncounted_while_the_forgotten_withdraw() {
        no_two_sleep_uncounted(|ring| {
            publish(&ring.head, &ring.waiting, 1, Barrier::Producer);
            true
        });
    }

    /// The model can fail: if the producer wakes only those that are counted.
    #[test]
    #[should_panic(expected = "slept through a record")]
    fn who_wakes_only_the_counted_leaves_one_asleep() {
        no_two_sleep_uncounted(|ring| publish(&ring.head, &ring.waiting, 1, Barrier::Producer));
    }

    /// The model can fail: without the producer's fence (in the model no membarrier stands in for it).
    #[test]
    #[should_panic(expected = "slept through a record")]
    fn without_the_fence_a_record_is_slept_through() {
        no_sleep_through(|ring| {
            ring.head.store(1, Ordering::Release);
            ring.waiting.load(Ordering::Relaxed) > 0
        });
    }
}
