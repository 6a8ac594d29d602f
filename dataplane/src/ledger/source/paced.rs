//! A source that plays ledgers: each over its emission window, one after the other on a grid.

use std::os::fd::RawFd;

use super::ahead::{Ahead, Ready};
use super::{Poll, Source, SourceError};
use crate::ledger::pacing::{Cadence, Window};
use crate::units::NANOS_PER_MILLI;

/// What is given before the room can be filled, at least. A core that looks all the time has then only this much to copy and to
/// hash when a chunk's last byte is due, not 256 KiB (30 µs).
const PIECE_BYTES: usize = 32 << 10;
/// How long after a ledger's end the next but one is made, at most: those who receive the last one are left in peace until then.
const GIVE_BACK_NS_MAX: i64 = 20 * NANOS_PER_MILLI;

enum State {
    /// The next ledger begins then.
    Pause {
        due: i64,
    },
    Open {
        ledger: Vec<u8>,
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
    used: Option<(Vec<u8>, i64)>,
    deadline: Option<i64>,
}

impl Paced {
    /// Plays what `ahead` has, a ledger every `interval_ns`, each over `window_ns`.
    pub(super) fn new(description: String, ahead: Ahead, window_ns: i64, interval_ns: i64) -> Paced {
        let cadence = Cadence::new(interval_ns);
        let state = State::Pause { due: i64::MAX };
        Paced { description, ahead, window_ns, cadence, state, used: None, deadline: None }
    }

    fn begin(&mut self, due: i64, now: i64) -> Result<Poll, SourceError> {
        if self.used.as_ref().is_some_and(|(_, at)| *at <= now) {
            self.ahead.give_back(self.used.take().expect("looked at").0);
        }
        if now < due {
            self.deadline = Some(self.used.as_ref().map_or(due, |(_, at)| due.min(*at)));
            return Ok(Poll::Wait);
        }
        // Whoever is due now may be waiting for this buffer.
        if let Some((buffer, _)) = self.used.take() {
            self.ahead.give_back(buffer);
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
            Ready::Ledger(sequence, ledger) => {
                self.cadence.begun(now);
                let bytes = ledger.len() as u64;
                let window = Window::begin(self.window_ns, bytes, now);
                self.state = State::Open { ledger, given: 0, window };
                Ok(Poll::Begin { sequence, bytes: Some(bytes) })
            }
        }
    }

    fn end(&mut self, now: i64) -> Poll {
        let due = self.cadence.begin_ns(now);
        let State::Open { ledger, .. } = std::mem::replace(&mut self.state, State::Pause { due }) else {
            unreachable!("only an open ledger ends")
        };
        self.used = Some((ledger, now + ((due - now) / 4).min(GIVE_BACK_NS_MAX)));
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
        let (ledger, given, window) = match &mut self.state {
            State::Finished => return Ok(Poll::Finished),
            State::Pause { due } => {
                let due = *due;
                return self.begin(due, now);
            }
            State::Open { ledger, given, window } => (ledger, given, window),
        };
        let left = ledger.len() - *given;
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
        room[..take].copy_from_slice(&ledger[*given..*given + take]);
        *given += take;
        Ok(Poll::Bytes(take))
    }

    fn deadline(&self) -> Option<i64> {
        self.deadline
    }
}
