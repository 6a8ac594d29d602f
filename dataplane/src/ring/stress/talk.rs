//! The connection between a source and a reader of a run: frames of eight bytes and a bounded payload, all waits bounded.
//!
//! A header is kind u32 and payload bytes u32, a payload little-endian words of 8 bytes. Who connects is not trusted: what does
//! not fit ends the connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::offset::{Offset, Probe};
use super::{LOOK, StressError, check_stop};
use crate::sys::clock::monotonic_ns;
use crate::units::NANOS_PER_SECOND;

/// First word of HELLO: "sluice-s", and the version of this talk.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"sluice-s");
/// The only version that is spoken.
pub(super) const VERSION: u64 = 1;
/// Stamps of one ECHO: a frame of 32 KiB.
pub(super) const ECHO_STAMPS: usize = 4_096;
/// Longest payload: ECHO's.
const PAYLOAD_WORDS_MAX: usize = 1 + ECHO_STAMPS;
const HEADER_BYTES: usize = 8;
const BUFFER_BYTES: usize = HEADER_BYTES + 8 * PAYLOAD_WORDS_MAX;
/// How long an answer may take that needs no work.
pub(super) const ANSWER_NS_MAX: i64 = 5 * NANOS_PER_SECOND;
/// How long a send may stand still.
const SEND_MAX: Duration = Duration::from_secs(5);
/// Stamp of a record that was not read.
pub(super) const NOT_READ: i64 = i64::MIN;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Kind {
    /// Reader: magic, version.
    Hello = 1,
    /// Source: run, record bytes, records, stride of timed ones.
    Welcome = 2,
    /// Source: it has all its readers.
    Busy = 3,
    /// Reader: it is on its ring.
    Ready = 4,
    /// Source: answer at once.
    Probe = 5,
    /// Reader: came at, left at.
    Answer = 6,
    /// Source: it begins.
    Start = 7,
    /// Source: the last record.
    Ended = 8,
    /// Reader: what it counted.
    Counts = 9,
    /// Source: send the stamps.
    Fetch = 10,
    /// Reader: index of the first stamp, stamps.
    Echo = 11,
    /// Both: all is said.
    Bye = 12,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Busy,
        Kind::Ready,
        Kind::Probe,
        Kind::Answer,
        Kind::Start,
        Kind::Ended,
        Kind::Counts,
        Kind::Fetch,
        Kind::Echo,
        Kind::Bye,
    ];
}

/// One end of the connection.
pub(super) struct Link<'a> {
    stream: TcpStream,
    stop: &'a AtomicBool,
    /// What has come; `begin..end` is not taken yet.
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl<'a> Link<'a> {
    pub fn new(stream: TcpStream, stop: &'a AtomicBool) -> Result<Link<'a>, StressError> {
        let told = StressError::io("the connection");
        stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_read_timeout(Some(LOOK)))
            .and_then(|()| stream.set_write_timeout(Some(SEND_MAX)))
            .map_err(told)?;
        Ok(Link { stream, stop, buffer: vec![0; BUFFER_BYTES].into(), begin: 0, end: 0 })
    }

    pub fn send(&mut self, kind: Kind, words: &[u64]) -> Result<(), StressError> {
        assert!(words.len() <= PAYLOAD_WORDS_MAX, "{kind:?}: {} words", words.len());
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 8 * words.len());
        bytes.extend_from_slice(&(kind as u32).to_le_bytes());
        bytes.extend_from_slice(&(8 * words.len() as u32).to_le_bytes());
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        self.stream.write_all(&bytes).map_err(StressError::io("sending to the other end"))
    }

    /// The next frame, by `until_ns` at the latest: its kind and words.
    pub fn receive(&mut self, until_ns: i64) -> Result<(Kind, Vec<u64>), StressError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            self.fill(until_ns)?;
        }
    }

    /// The next frame, which must be of that kind and have so many words.
    pub fn expect(&mut self, kind: Kind, words: usize, until_ns: i64) -> Result<Vec<u64>, StressError> {
        match self.receive(until_ns)? {
            (found, payload) if found == kind && payload.len() == words => Ok(payload),
            (Kind::Busy, _) => Err(StressError::Failed("the source has all the readers that it waits for".into())),
            (found, payload) => {
                Err(StressError::Failed(format!("{found:?} of {} words came in place of {kind:?}", payload.len())))
            }
        }
    }

    /// A whole frame, if it is there.
    fn take(&mut self) -> Result<Option<(Kind, Vec<u64>)>, StressError> {
        let there = &self.buffer[self.begin..self.end];
        let Some((header, rest)) = there.split_at_checked(HEADER_BYTES) else { return Ok(None) };
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let bytes = number(4) as usize;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == number(0));
        let Some(kind) = kind.filter(|_| bytes <= 8 * PAYLOAD_WORDS_MAX && bytes.is_multiple_of(8)) else {
            let what = format!("no frame of a stress: kind {}, {bytes} bytes; is it one of ours?", number(0));
            return Err(StressError::Failed(what));
        };
        let Some(payload) = rest.get(..bytes) else { return Ok(None) };
        let words = payload.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        self.begin += HEADER_BYTES + bytes;
        Ok(Some((kind, words)))
    }

    fn fill(&mut self, until_ns: i64) -> Result<(), StressError> {
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        loop {
            match self.stream.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(StressError::Failed("the other end closed the connection".into())),
                Ok(count) => {
                    self.end += count;
                    return Ok(());
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(StressError::io("receiving from the other end")(error)),
            }
            check_stop(self.stop)?;
            if monotonic_ns() > until_ns {
                return Err(StressError::Failed("the other end said nothing in time".into()));
            }
        }
    }
}

/// Probes of one comparison, and how long it may take: a path of 100 ms still gets thirty.
const PROBES: usize = 200;
const PROBES_NS_MAX: i64 = 3 * NANOS_PER_SECOND;
/// Fewest: the first is slowed by cold caches.
const PROBES_MIN: usize = 8;

/// Compares the clocks, from the source's end.
pub(super) fn compare(link: &mut Link<'_>) -> Result<Offset, StressError> {
    let mut probes: Vec<Probe> = Vec::with_capacity(PROBES);
    let began = monotonic_ns();
    while probes.len() < PROBES && (probes.len() < PROBES_MIN || monotonic_ns() - began < PROBES_NS_MAX) {
        let sent = monotonic_ns();
        link.send(Kind::Probe, &[])?;
        let answer = link.expect(Kind::Answer, 2, sent + ANSWER_NS_MAX)?;
        probes.push([sent, answer[0] as i64, answer[1] as i64, monotonic_ns()]);
    }
    Offset::of(&probes).ok_or_else(|| StressError::Failed("the reader's clock goes backwards".into()))
}

/// Answers probes until another frame comes, from the reader's end; that frame.
pub(super) fn answer(
    link: &mut Link<'_>,
    clock: impl Fn() -> i64,
    until_ns: i64,
) -> Result<(Kind, Vec<u64>), StressError> {
    loop {
        let frame = link.receive(until_ns)?;
        let came = clock();
        if frame.0 != Kind::Probe {
            return Ok(frame);
        }
        link.send(Kind::Answer, &[came as u64, clock() as u64])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback");
        let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        (one, listener.accept().expect("it is there").0)
    }

    fn soon() -> i64 {
        monotonic_ns() + ANSWER_NS_MAX
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let (mut raw, there) = pair();
        let stop = AtomicBool::new(false);
        let mut link = Link::new(there, &stop).expect("a link");
        let mut bytes = Vec::new();
        for words in [vec![], vec![7, u64::MAX], vec![1; PAYLOAD_WORDS_MAX]] {
            bytes.extend_from_slice(&(Kind::Echo as u32).to_le_bytes());
            bytes.extend_from_slice(&(8 * words.len() as u32).to_le_bytes());
            words.iter().for_each(|word: &u64| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        std::thread::scope(|scope| {
            scope.spawn(move || bytes.chunks(7).for_each(|chunk| raw.write_all(chunk).expect("writes")));
            for words in [0, 2, PAYLOAD_WORDS_MAX] {
                assert_eq!(link.receive(soon()).expect("a frame").1.len(), words);
            }
            assert!(link.receive(soon()).is_err(), "closed");
        });
    }

    #[test]
    fn what_is_no_frame_ends_the_talk() {
        for bytes in [[0; 8], *b"GET / HT", [12, 0, 0, 0, 255, 255, 255, 255], [12, 0, 0, 0, 7, 0, 0, 0]] {
            let (mut raw, there) = pair();
            let stop = AtomicBool::new(false);
            let mut link = Link::new(there, &stop).expect("a link");
            raw.write_all(&bytes).expect("writes");
            assert!(link.receive(soon()).is_err(), "{bytes:?}");
        }
        let (_raw, there) = pair();
        let stop = AtomicBool::new(true);
        let mut link = Link::new(there, &stop).expect("a link");
        assert!(matches!(link.receive(i64::MAX), Err(StressError::Stopped)));
        stop.store(false, std::sync::atomic::Ordering::Relaxed);
        assert!(link.receive(monotonic_ns()).is_err(), "nothing came in time");
    }

    #[test]
    fn clocks_are_compared_over_a_connection() {
        let (here, there) = pair();
        let stop = AtomicBool::new(false);
        let ahead = -123_456_789_012;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut link = Link::new(there, &stop).expect("a link");
                answer(&mut link, || monotonic_ns() + ahead, soon()).expect("an end").0
            });
            let mut link = Link::new(here, &stop).expect("a link");
            let offset = compare(&mut link).expect("probes");
            link.send(Kind::Start, &[]).expect("sends");
            assert_eq!(other.join().expect("it ends"), Kind::Start);
            assert!((offset.offset_ns - ahead).abs() <= offset.bound_ns, "{offset:?}");
            assert!(offset.probes >= PROBES_MIN);
        });
    }
}
