//! What a published stream is made of: the calls by which an arbiter's emissions reach whoever publishes them.
//!
//! The publisher is told in the order of emission, before anything is handed to a store, and never waits: what it cannot
//! take it counts as refused.

use crate::units::{Side, StreamId};
use crate::wire::segment::SessionKey;

/// A message as it is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishedMessage<'a> {
    /// The stream.
    pub stream: StreamId,
    /// The side that delivered it.
    pub side: Side,
    /// Its sequence in the feed.
    pub sequence: u64,
    /// Capture time, UTC ns.
    pub capture_ns: i64,
    /// The publisher's send time; `None` where the protocol has none.
    pub send_ns: Option<i64>,
    /// Its body.
    pub body: &'a [u8],
}

/// What a publisher has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PublishCounts {
    /// Messages published.
    pub messages: u64,
    /// Other records: gaps, beginnings (repeated ones too) and ends of streams, side states.
    pub marks: u64,
    /// Messages that could not be published.
    pub refused: u64,
}

/// Takes an arbitrated stream, in order. Late fills are not published: a gap that was told stays told.
pub trait Publisher: Send {
    /// Once, on the thread that will publish, before the first record: makes the memory (by first touch).
    ///
    /// # Errors
    /// One line for the user.
    fn start(&mut self) -> Result<(), String>;

    /// A stream begins; nothing below `base` will come. Before anything else of the stream.
    fn stream_begin(&mut self, stream: StreamId, key: &SessionKey, run: u32, base: u64, capture_ns: i64);

    /// The next message of its stream.
    fn message(&mut self, message: &PublishedMessage<'_>);

    /// `first..=last` is lost on every side; before the message that follows it.
    fn gap(&mut self, stream: StreamId, first: u64, last: u64, capture_ns: i64);

    /// Nothing of the stream follows.
    fn stream_end(&mut self, stream: StreamId, capture_ns: i64);

    /// A side of a session died or came back.
    fn side_state(&mut self, key: &SessionKey, side: Side, live: bool, capture_ns: i64);

    /// Once per turn of the arbiter, after its emissions: wakes sleeping readers, and beats. `now` is monotonic ns.
    fn turn(&mut self, now: i64);

    /// What it has done.
    fn counts(&self) -> PublishCounts;
}
