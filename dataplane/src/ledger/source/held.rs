//! A source as a measurement wants it: it waits for its audience, and stays when it has no more.

use std::os::fd::RawFd;

use super::{Poll, Source, SourceError};
use crate::ledger::pool::Buffer;
use crate::units::NANOS_PER_MILLI;

/// How often it looks whether everybody is there.
const LOOK_EVERY_NS: i64 = NANOS_PER_MILLI;

/// Another source, held.
pub struct Held {
    source: Box<dyn Source>,
    /// Whether the audience is there; `None` once it was.
    ready: Option<Box<dyn Fn() -> bool + Send>>,
    /// Its end is not told.
    stay: bool,
    ended: bool,
    look_at: i64,
}

impl Held {
    /// `source`, not asked before `ready` says so; with `stay` it never ends by itself.
    pub fn new(source: Box<dyn Source>, ready: impl Fn() -> bool + Send + 'static, stay: bool) -> Held {
        Held { source, ready: Some(Box::new(ready)), stay, ended: false, look_at: 0 }
    }
}

impl Source for Held {
    fn description(&self) -> String {
        self.source.description()
    }

    fn network(&self) -> [u8; 8] {
        self.source.network()
    }

    fn start(&mut self, now: i64) -> Result<Vec<RawFd>, SourceError> {
        self.source.start(now)
    }

    fn poll(&mut self, room: &mut [u8], now: i64) -> Result<Poll, SourceError> {
        if let Some(ready) = &self.ready {
            if !ready() {
                self.look_at = now + LOOK_EVERY_NS;
                return Ok(Poll::Wait);
            }
            self.ready = None;
        }
        if self.ended {
            return Ok(Poll::Wait);
        }
        match self.source.poll(room, now)? {
            Poll::Finished if self.stay => {
                self.ended = true;
                Ok(Poll::Wait)
            }
            other => Ok(other),
        }
    }

    fn chunk(&mut self) -> Option<Buffer> {
        self.source.chunk()
    }

    fn capacity(&self) -> Option<usize> {
        self.source.capacity()
    }

    fn deadline(&self) -> Option<i64> {
        match self.ready {
            Some(_) => Some(self.look_at),
            None if self.ended => None,
            None => self.source.deadline(),
        }
    }

    fn stop(&mut self, now: i64) -> bool {
        self.source.stop(now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Two(u32);

    impl Source for Two {
        fn description(&self) -> String {
            "two".into()
        }

        fn start(&mut self, _now: i64) -> Result<Vec<RawFd>, SourceError> {
            Ok(Vec::new())
        }

        fn poll(&mut self, _room: &mut [u8], _now: i64) -> Result<Poll, SourceError> {
            self.0 += 1;
            Ok(if self.0 <= 2 { Poll::End } else { Poll::Finished })
        }

        fn deadline(&self) -> Option<i64> {
            Some(77)
        }
    }

    #[test]
    fn it_waits_for_its_audience_and_then_is_the_source() {
        let there = Arc::new(AtomicBool::new(false));
        let looked = there.clone();
        let mut held = Held::new(Box::new(Two(0)), move || looked.load(Ordering::Relaxed), false);
        held.start(0).expect("starts");
        let mut poll = |now| held.poll(&mut [0], now).expect("polls");
        assert_eq!([poll(5), poll(6)], [Poll::Wait, Poll::Wait]);
        assert_eq!(held.deadline(), Some(6 + LOOK_EVERY_NS));
        there.store(true, Ordering::Relaxed);
        let mut poll = |now| held.poll(&mut [0], now).expect("polls");
        assert_eq!(poll(7), Poll::End);
        // Who leaves later does not hold it again.
        there.store(false, Ordering::Relaxed);
        assert_eq!([poll(8), poll(9)], [Poll::End, Poll::Finished]);
        assert_eq!(held.deadline(), Some(77));
        assert!(held.stop(9));
    }

    #[test]
    fn one_that_stays_has_no_end() {
        let mut held = Held::new(Box::new(Two(2)), || true, true);
        assert_eq!(held.poll(&mut [0], 1).expect("polls"), Poll::Wait);
        assert_eq!(held.poll(&mut [0], 2).expect("polls"), Poll::Wait);
        assert_eq!(held.deadline(), None);
    }
}
