//! How a reader waits for the next record: spinning, backing off, or asleep on the ring's futex.

use std::time::Duration;

use super::view::View;
use crate::sys::clock::{self, monotonic_ns};
use crate::sys::futex;

/// How a reader waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Polls without pause: the lowest latency, a whole core.
    Spin,
    /// Polls, then yields the core, then sleeps 50 µs between polls.
    Backoff,
    /// Polls `spins` times, then sleeps in the kernel until the producer wakes it. Where the ring may only be read, it backs
    /// off instead.
    Futex {
        /// Polls before the sleep.
        spins: u32,
    },
}

impl Default for Wait {
    fn default() -> Self {
        // As the peer's; more only helps where records come closer together than a sleep and a wake take (about 5 us).
        Wait::Futex { spins: 32 }
    }
}

/// Polls between two looks at the clock, where polling does not stop: about 1 us.
const POLLS_PER_CLOCK: u32 = 64;
/// Polls before a backing-off reader yields, and turns before it sleeps: together some 100 us.
const SPINS_BEFORE_YIELD: u32 = 64;
const TURNS_BEFORE_SLEEP: u32 = 1_000;
/// The pause of a backing-off reader.
const PAUSE: Duration = Duration::from_micros(50);
/// The longest sleep on the futex: a producer that never wakes (Python's) or that no membarrier reaches delays no more.
const SLEEP_NS_MAX: i64 = 50_000_000;

/// One wait: from the first empty poll to the record, the end of the time, or a look at the producer.
#[derive(Debug)]
pub(super) struct Waiting {
    wait: Wait,
    timeout: Duration,
    turns: u32,
    until_ns: Option<i64>,
    /// Whether the producer was looked after: a wait that is over ends then, whatever is due.
    looked: bool,
}

/// What a turn of waiting brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Poll again.
    Poll,
    /// Look after the producer, then poll again.
    Look(i64),
    /// The time is over.
    TimedOut,
}

impl Waiting {
    pub fn new(wait: Wait, timeout: Duration) -> Waiting {
        Waiting { wait, timeout, turns: 0, until_ns: None, looked: false }
    }

    /// Passes a moment after an empty poll for `cursor`; `look_ns` is when a look at the producer is due.
    pub fn turn(&mut self, view: &View, cursor: u64, look_ns: i64) -> Turn {
        self.turns = self.turns.saturating_add(1);
        if self.turns == u32::MAX {
            // Minutes of polling: it goes on, and so do its looks at the clock.
            self.turns = SPINS_BEFORE_YIELD;
        }
        let spins = match self.wait {
            Wait::Spin => u32::MAX,
            Wait::Backoff => SPINS_BEFORE_YIELD,
            Wait::Futex { spins } => spins,
        };
        let polls = self.turns <= spins;
        if polls && !self.turns.is_multiple_of(POLLS_PER_CLOCK) && !self.timeout.is_zero() {
            std::hint::spin_loop();
            return Turn::Poll;
        }
        let now_ns = monotonic_ns();
        let timeout_ns = i64::try_from(self.timeout.as_nanos()).unwrap_or(i64::MAX);
        let until_ns = *self.until_ns.get_or_insert(now_ns.saturating_add(timeout_ns));
        if now_ns >= until_ns && (self.looked || now_ns < look_ns) {
            return Turn::TimedOut;
        }
        if now_ns >= look_ns {
            self.looked = true;
            return Turn::Look(now_ns);
        }
        if !polls {
            self.pause(view, cursor, (until_ns.min(look_ns) - now_ns).min(SLEEP_NS_MAX));
        }
        Turn::Poll
    }

    /// Sleeps or yields, at most about `ns`.
    fn pause(&self, view: &View, cursor: u64, ns: i64) {
        let length = Duration::from_nanos(ns.max(0) as u64);
        match (&view.gate, self.wait) {
            (Some(gate), Wait::Futex { .. }) => {
                if let Some(value) = gate.announce(view, cursor) {
                    futex::wait(&gate.futex, value, length);
                    gate.withdraw();
                }
            }
            _ if self.turns < TURNS_BEFORE_SLEEP => std::thread::yield_now(),
            _ => clock::sleep(length.min(PAUSE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingSettings;
    use crate::ring::writer::Writer;
    use crate::wire::ring::Geometry;

    fn view() -> View {
        let shape = RingSettings { capacity: 8, ..RingSettings::default() }.shape::<u64>(None).expect("sound");
        let header = Writer::header(Geometry::of(&shape).expect("sound"), 1, false);
        Writer::anonymous(&header, 1).expect("sound").view()
    }

    #[test]
    fn looks_that_are_always_due_do_not_hold_a_wait_up() {
        let view = view();
        for timeout in [Duration::ZERO, Duration::from_millis(1)] {
            let mut waiting = Waiting::new(Wait::Backoff, timeout);
            let turns: Vec<Turn> = (0..20_000_000)
                .map(|_| waiting.turn(&view, 1, i64::MIN))
                .take_while(|turn| *turn != Turn::TimedOut)
                .collect();
            let looks = turns.iter().filter(|turn| matches!(turn, Turn::Look(_))).count();
            assert!((1..20_000_000).contains(&looks), "{looks} looks in {timeout:?}");
        }
    }

    /// The number of polls is counted in 32 bits: a spinner has counted them after some minutes.
    #[test]
    fn a_spinner_keeps_its_time_however_long_it_spins() {
        let view = view();
        for wait in [Wait::Spin, Wait::Futex { spins: u32::MAX }] {
            let mut waiting = Waiting::new(wait, Duration::from_millis(1));
            waiting.turns = u32::MAX - 100;
            let ended = (0..20_000_000).any(|_| waiting.turn(&view, 1, i64::MAX) == Turn::TimedOut);
            assert!(ended, "{wait:?} is deaf");
        }
    }
}
