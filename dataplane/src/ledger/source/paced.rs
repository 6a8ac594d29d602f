//! A source that plays ledgers: each over its emission window, one after the other on a grid.

use std::os::fd::RawFd;

use super::ahead::{Ahead, Laid, Ready};
use super::{Poll, Source, SourceError};
use crate::ledger::pacing::{Cadence, Window};
use crate::ledger::pool::Buffer;
use crate::units::NANOS_PER_MILLI;

/// What is given before the room can be filled, at least. A core that looks all the time has then only this much to
/// hash when a chunk's last byte is due, not 256 KiB (25 µs).
const PIECE_BYTES: usize = 32 << 10;
/// How long after a ledger's end the next but one is made, at most: those who receive the last one are left in peace until then. A ledger of 14.5 MiB
/// as it is takes a link of 5 Gbit/s 25 ms; making one takes 5 ms of some CPU.
const ANOTHER_NS_MAX: i64 = 60 * NANOS_PER_MILLI;

/// A ledger that begins so much after it was due begins a new grid. A core that wakes up late for it, even on a busy host, does not.
const LATE_NS: i64 = 5 * NANOS_PER_MILLI;

enum State {
    /// The next ledger begins then.
    Pause {
        due: i64,
    },
    Open {
        laid: Laid,
        given: usize,
        window: Window,
    },
    Finished,
}

/// Ledgers that are made ahead, played.
pub(super) struct Paced {
    description: String,
    ahead: Ahead,
    window_ns: i64,
    cadence: Cadence,
    state: State,
    /// When the next but one is to be made; `None`: that was said.
    another_at: Option<i64>,
    deadline: Option<i64>,
}

impl Paced {
    /// Plays what `ahead` has, a ledger every `interval_ns`, each over `window_ns`.
    pub(super) fn new(description: String, ahead: Ahead, window_ns: i64, interval_ns: i64) -> Paced {
        let cadence = Cadence::new(interval_ns);
        let state = State::Pause { due: i64::MAX };
        Paced { description, ahead, window_ns, cadence, state, another_at: None, deadline: None }
    }

    fn begin(&mut self, due: i64, now: i64) -> Result<Poll, SourceError> {
        // Who is due now may be waiting for it.
        if self.another_at.take_if(|at| *at <= now || due <= now).is_some() {
            self.ahead.make_another();
        }
        if now < due {
            self.deadline = Some(self.another_at.map_or(due, |at| due.min(at)));
            return Ok(Poll::Wait);
        }
        match self.ahead.take()? {
            Ready::NotYet => {
                self.cadence.late();
                self.deadline = None;
                Ok(Poll::Wait)
            }
            Ready::Finished => {
                self.state = State::Finished;
                self.deadline = None;
                Ok(Poll::Finished)
            }
            Ready::Ledger(laid) => {
                if now - due > LATE_NS {
                    self.cadence.late();
                }
                self.cadence.begun(now);
                let (sequence, bytes) = (laid.sequence, laid.bytes as u64);
                let window = Window::begin(self.window_ns, bytes, now);
                self.state = State::Open { laid, given: 0, window };
                Ok(Poll::Begin { sequence, bytes: Some(bytes) })
            }
        }
    }

    fn end(&mut self, now: i64) -> Poll {
        let due = self.cadence.begin_ns(now);
        self.state = State::Pause { due };
        self.another_at = Some(now + ((due - now) / 4).min(ANOTHER_NS_MAX));
        Poll::End
    }
}

impl Source for Paced {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn start(&mut self, now: i64) -> Result<Vec<RawFd>, SourceError> {
        self.state = State::Pause { due: self.cadence.begin_ns(now) };
        Ok(vec![self.ahead.fd()])
    }

    fn poll(&mut self, room: &mut [u8], now: i64) -> Result<Poll, SourceError> {
        let (laid, given, window) = match &mut self.state {
            State::Finished => return Ok(Poll::Finished),
            State::Pause { due } => {
                let due = *due;
                return self.begin(due, now);
            }
            State::Open { laid, given, window } => (laid, given, window),
        };
        let left = laid.bytes - *given;
        if left == 0 {
            return Ok(self.end(now));
        }
        let wanted = left.min(room.len());
        let due_bytes = usize::try_from(window.due_bytes(now)).unwrap_or(usize::MAX);
        let take = due_bytes.saturating_sub(*given).min(wanted);
        if take < wanted && take < PIECE_BYTES {
            self.deadline = Some(window.due_ns((*given + wanted) as u64));
            return Ok(Poll::Wait);
        }
        // They are there already: the room is the buffer that was given.
        *given += take;
        Ok(Poll::Bytes(take))
    }

    fn chunk(&mut self) -> Option<Buffer> {
        match &mut self.state {
            State::Open { laid, .. } => laid.chunks.pop_front(),
            _ => None,
        }
    }

    fn deadline(&self) -> Option<i64> {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::super::ahead::Maker;
    use super::*;
    use crate::ledger::chunker::{Cut, Layout};
    use crate::ledger::message::HEADROOM;
    use crate::ledger::pool::Pool;
    use crate::sys::clock;

    /// Ledgers of 100,000 bytes, each byte the sequence; fails after the last.
    struct Numbers {
        next: u32,
        last: u32,
        fails: bool,
    }

    impl Maker for Numbers {
        fn next(&mut self, layout: &Layout) -> Result<Option<Laid>, String> {
            if self.next > self.last {
                return if self.fails { Err("the disk is gone".into()) } else { Ok(None) };
            }
            let sequence = self.next;
            self.next += 1;
            Ok(Some(Laid { sequence, bytes: BYTES, chunks: layout.lay_out(&vec![sequence as u8; BYTES]) }))
        }
    }

    const BYTES: usize = 100_000;
    const MILLI: i64 = NANOS_PER_MILLI;

    /// Chunks of 40,000 bytes, the last one as long as it is.
    fn layout() -> Layout {
        let cut = Cut::new(40_000, None).expect("a cut");
        Layout { cut, pool: Pool::new(cut.buffer_bytes(), 9) }
    }

    fn paced(last: u32, fails: bool, window_ns: i64, interval_ns: i64) -> Paced {
        let ahead = Ahead::start("numbers", Numbers { next: 1, last, fails }, layout()).expect("a thread");
        Paced::new("numbers".into(), ahead, window_ns, interval_ns)
    }

    /// Asks until there is an answer other than "the thread is not there yet"; virtual time stands still meanwhile.
    fn ask(source: &mut Paced, room: &mut [u8], now: i64) -> Result<Poll, SourceError> {
        let end = clock::monotonic_ns() + 20_000 * MILLI;
        loop {
            let answer = source.poll(room, now);
            if !matches!(answer, Ok(Poll::Wait)) || source.deadline().is_some() {
                return answer;
            }
            assert!(clock::monotonic_ns() < end, "the thread made nothing");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_ledger_takes_its_window_and_a_core_is_woken_for_full_rooms_only() {
        let mut source = paced(2, false, 10 * MILLI, 50 * MILLI);
        source.start(1_000).expect("starts");
        let mut room = vec![0; 40_000];
        assert_eq!(
            ask(&mut source, &mut room, 1_000).expect("runs"),
            Poll::Begin { sequence: 1, bytes: Some(BYTES as u64) }
        );
        assert_eq!(ask(&mut source, &mut room, 1_000).expect("runs"), Poll::Wait);
        assert_eq!(source.deadline(), Some(1_000 + 4 * MILLI), "when the room's last byte is due");
        let looks = 1_000 + 3 * MILLI + MILLI / 2;
        assert_eq!(ask(&mut source, &mut room, looks).expect("runs"), Poll::Bytes(35_000), "who looks gets pieces");
        assert_eq!(ask(&mut source, &mut room[..5_000], looks).expect("runs"), Poll::Wait);
        assert_eq!(ask(&mut source, &mut room[..5_000], 1_000 + 4 * MILLI).expect("runs"), Poll::Bytes(5_000));
        assert_eq!(ask(&mut source, &mut room, 1_000 + 9 * MILLI).expect("runs"), Poll::Bytes(40_000));
        assert_eq!(ask(&mut source, &mut room, 1_000 + 9 * MILLI).expect("runs"), Poll::Wait, "20,000 are left");
        assert_eq!(ask(&mut source, &mut room, 1_000 + 10 * MILLI).expect("runs"), Poll::Bytes(20_000));
        let chunks: Vec<Buffer> = std::iter::from_fn(|| source.chunk()).collect();
        assert_eq!(chunks.len(), 3);
        let last = HEADROOM..HEADROOM + 20_000;
        assert!(chunks[0][HEADROOM..].iter().chain(&chunks[2][last]).all(|byte| *byte == 1), "what counts now");
        assert_eq!(ask(&mut source, &mut room, 1_000 + 10 * MILLI).expect("runs"), Poll::End);
        // The grid: the next one 50 ms after the first, and a look before that to have another made.
        assert_eq!(source.poll(&mut room, 1_000 + 11 * MILLI).expect("runs"), Poll::Wait);
        assert_eq!(source.deadline(), Some(1_000 + 20 * MILLI));
        assert_eq!(source.poll(&mut room, 1_000 + 20 * MILLI).expect("runs"), Poll::Wait);
        assert_eq!(source.deadline(), Some(1_000 + 50 * MILLI));
        let second = ask(&mut source, &mut room, 1_000 + 50 * MILLI).expect("runs");
        assert_eq!(second, Poll::Begin { sequence: 2, bytes: Some(BYTES as u64) });
        while ask(&mut source, &mut room, 2_000 * MILLI).expect("runs") != Poll::End {}
        assert_eq!(ask(&mut source, &mut room, 3_000 * MILLI).expect("runs"), Poll::Finished);
        assert_eq!(ask(&mut source, &mut room, 3_000 * MILLI).expect("runs"), Poll::Finished, "and stays so");
    }

    #[test]
    fn who_was_not_asked_in_time_does_not_make_up_for_it() {
        let mut source = paced(3, false, 0, 600 * MILLI);
        let fds = source.start(0).expect("starts");
        let mut room = vec![0; BYTES];
        let mut begin = |now: i64| {
            // Made already: it is the asking that is late, and not the thread.
            let made = crate::sys::wait::readable(&fds, std::time::Duration::from_secs(20));
            assert!(made.expect("waits"), "the thread made nothing");
            let begun = ask(&mut source, &mut room, now).expect("runs");
            assert!(matches!(begun, Poll::Begin { .. }), "{begun:?} at {now}");
            while ask(&mut source, &mut room, now).expect("runs") != Poll::End {}
            assert_eq!(source.poll(&mut room, now).expect("runs"), Poll::Wait);
            source.poll(&mut room, now + 100 * MILLI).expect("runs");
            source.deadline().expect("a next one")
        };
        assert_eq!(begin(500 * MILLI), 1_100 * MILLI, "held back for half an interval");
        assert_eq!(begin(1_101 * MILLI), 1_700 * MILLI, "a core that woke up a little late");
    }

    #[test]
    fn without_a_window_and_an_interval_nothing_is_waited_for() {
        let mut source = paced(3, false, 0, 0);
        source.start(0).expect("starts");
        let mut room = vec![0; 64 << 10];
        let mut seen = Vec::new();
        loop {
            match ask(&mut source, &mut room, 0).expect("runs") {
                Poll::Begin { sequence, .. } => seen.push((sequence, 0)),
                Poll::Bytes(bytes) => seen.last_mut().expect("begun").1 += bytes,
                Poll::End => {}
                Poll::Finished => break,
                Poll::Wait => panic!("nothing is due later"),
            }
        }
        assert_eq!(seen, [(1, BYTES), (2, BYTES), (3, BYTES)]);
    }

    #[test]
    fn an_error_of_the_maker_is_the_sources() {
        let mut source = paced(1, true, 0, 0);
        source.start(0).expect("starts");
        let mut room = vec![0; BYTES];
        let error = loop {
            match ask(&mut source, &mut room, 0) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "the disk is gone");
    }

    #[test]
    fn a_source_is_dropped_anywhere_without_leaving_its_thread() {
        for looks in 0..6 {
            let mut source = paced(u32::MAX, false, 0, 0);
            source.start(0).expect("starts");
            let mut room = vec![0; 64 << 10];
            for _ in 0..looks {
                ask(&mut source, &mut room, 0).expect("runs");
            }
            // Joins the thread.
            drop(source);
        }
    }
}
