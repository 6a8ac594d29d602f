//! What the arbiter hands to the sinks: whole frames with the span of messages to keep, and events between them.
//!
//! `T` is the frame's token; this module knows only that it is moved.

use crate::units::{Side, StreamId};
use crate::wire::segment::{Framing, SessionKey};

/// A run of messages inside a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageSpan {
    /// The stream.
    pub stream: StreamId,
    /// Sequence of the first message.
    pub first: u64,
    /// Messages.
    pub count: u32,
    /// Where the first message's length prefix lies, from the start of the packet.
    pub offset: u32,
    /// Bytes of the run, prefixes included.
    pub bytes: u32,
    /// How the run is cut into messages.
    pub framing: Framing,
    /// First arrivals inside a recorded gap.
    pub late_fill: bool,
    /// The publisher's send time; `None` where the protocol has none.
    pub send_ns: Option<i64>,
}

/// One item of the link from an arbiter to a store.
#[derive(Debug)]
pub enum Handoff<T> {
    /// A frame: its messages (merged record), its bytes (raw record), or both. The token goes home after the copy.
    Frame {
        /// The frame.
        token: T,
        /// The side that it came from.
        side: Side,
        /// The messages to keep.
        messages: Option<MessageSpan>,
        /// Keep the frame's own bytes.
        raw: bool,
    },
    /// A stream's first appearance; it precedes everything that names the stream.
    StreamBegin {
        /// The stream.
        stream: StreamId,
        /// Its session.
        key: SessionKey,
        /// The run's creation id inside the session.
        run: u32,
        /// The first sequence that counts.
        base: u64,
    },
    /// A stream's end: no more of it will be emitted.
    StreamEnd {
        /// The stream.
        stream: StreamId,
    },
    /// A residual gap, before the message that follows it.
    Gap {
        /// The stream.
        stream: StreamId,
        /// First missing sequence.
        first: u64,
        /// Last missing sequence.
        last: u64,
        /// When it was declared, UTC ns.
        capture_ns: i64,
    },
}
