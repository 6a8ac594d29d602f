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

/// One item of the link from an arbiter to a store. Its fields are ordered so that no field of one variant lies inside a
/// word of another's token: then moving an item is copying aligned words.
#[derive(Debug)]
#[repr(C, u64)]
pub enum Handoff<T> {
    /// A frame: its messages (merged record), its bytes (raw record), or both. The token goes home after the copy.
    Frame {
        /// The side that it came from.
        side: Side,
        /// Keep the frame's own bytes.
        raw: bool,
        /// The frame.
        token: T,
        /// The messages to keep.
        messages: Option<MessageSpan>,
    },
    /// Records that the arbiter copied (see [`CopiedRecord`]): what the reorder window gave back, and the gaps between.
    Copies {
        /// Messages among the records.
        messages: u32,
        /// A frame of the copy pool.
        token: T,
    },
    /// A stream's first appearance; it precedes everything that names the stream.
    StreamBegin {
        /// The stream.
        stream: StreamId,
        /// The run's creation id inside the session.
        run: u32,
        /// The first sequence that counts.
        base: u64,
        /// Its session.
        key: SessionKey,
    },
    /// A stream's end: no more of it will be emitted.
    StreamEnd {
        /// The stream.
        stream: StreamId,
    },
}

/// Bytes before a copied record's body.
pub const COPIED_HEADER_BYTES: usize = 32;
/// Longest body: a UDP payload's.
pub const COPIED_BODY_BYTES_MAX: usize = u16::MAX as usize;

/// One record of a copy frame. Many share a frame, so that a full window travels in few frames whatever its gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiedRecord<'a> {
    /// The stream.
    pub stream: StreamId,
    /// Its sequence; for a gap the first missing one.
    pub sequence: u64,
    /// What it is.
    pub kind: Copied<'a>,
}

/// What a copied record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied<'a> {
    /// A message.
    Message {
        /// The side that delivered it.
        side: Side,
        /// Capture time, UTC ns.
        capture_ns: i64,
        /// The publisher's send time; `None` where the protocol has none.
        send_ns: Option<i64>,
        /// A first arrival inside a recorded gap.
        late_fill: bool,
        /// Its body.
        body: &'a [u8],
    },
    /// A residual gap, before the message that follows it.
    Gap {
        /// Last missing sequence.
        last: u64,
        /// When it was declared, UTC ns.
        capture_ns: i64,
    },
}

const FLAG_GAP: u8 = 1;
const FLAG_LATE: u8 = 2;
const FLAG_SEND: u8 = 4;

impl CopiedRecord<'_> {
    /// Bytes that [`CopiedRecord::encode`] appends.
    pub fn encoded_bytes(&self) -> usize {
        COPIED_HEADER_BYTES
            + match self.kind {
                Copied::Message { body, .. } => body.len(),
                Copied::Gap { .. } => 8,
            }
    }

    /// Appends the record: body length u16, side u8, flags u8, stream u32, sequence u64, capture i64, send i64, body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let last_bytes;
        let (side, flags, capture_ns, send_ns, body): (u8, u8, i64, i64, &[u8]) = match self.kind {
            Copied::Message { side, capture_ns, send_ns, late_fill, body } => {
                let flags = if late_fill { FLAG_LATE } else { 0 } | if send_ns.is_some() { FLAG_SEND } else { 0 };
                (side.0, flags, capture_ns, send_ns.unwrap_or(0), body)
            }
            Copied::Gap { last, capture_ns } => {
                last_bytes = last.to_le_bytes();
                (0, FLAG_GAP, capture_ns, 0, &last_bytes)
            }
        };
        assert!(body.len() <= COPIED_BODY_BYTES_MAX, "a body of {} bytes", body.len());
        out.extend_from_slice(&(body.len() as u16).to_le_bytes());
        out.extend_from_slice(&[side, flags]);
        out.extend_from_slice(&self.stream.0.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&capture_ns.to_le_bytes());
        out.extend_from_slice(&send_ns.to_le_bytes());
        out.extend_from_slice(body);
    }
}

/// Walks the records of a copy frame; ends at the first that does not fit (the frame is our own: none).
#[derive(Clone, Copy, Debug)]
pub struct CopiedRecords<'a>(pub &'a [u8]);

impl<'a> Iterator for CopiedRecords<'a> {
    type Item = CopiedRecord<'a>;

    #[inline]
    fn next(&mut self) -> Option<CopiedRecord<'a>> {
        let (header, rest) = self.0.split_first_chunk::<COPIED_HEADER_BYTES>()?;
        let u64_at = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (body, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([header[0], header[1]])))?;
        self.0 = rest;
        let capture_ns = u64_at(16) as i64;
        let kind = if header[3] & FLAG_GAP != 0 {
            Copied::Gap { last: u64::from_le_bytes(*body.first_chunk()?), capture_ns }
        } else {
            Copied::Message {
                side: Side(header[2]),
                capture_ns,
                send_ns: (header[3] & FLAG_SEND != 0).then(|| u64_at(24) as i64),
                late_fill: header[3] & FLAG_LATE != 0,
                body,
            }
        };
        let stream = StreamId(u32::from_le_bytes([header[4], header[5], header[6], header[7]]));
        Some(CopiedRecord { stream, sequence: u64_at(8), kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_records_come_back_as_they_went_in() {
        let message = |sequence, body, send_ns, late_fill| CopiedRecord {
            stream: StreamId(7),
            sequence,
            kind: Copied::Message { side: Side::B, capture_ns: -5, send_ns, late_fill, body },
        };
        let records = [
            message(1, &b""[..], None, false),
            CopiedRecord { stream: StreamId(8), sequence: 2, kind: Copied::Gap { last: u64::MAX, capture_ns: 9 } },
            message(u64::MAX, &[9; 65_535][..], Some(i64::MIN), true),
        ];
        let mut bytes = Vec::new();
        for record in &records {
            let before = bytes.len();
            record.encode(&mut bytes);
            assert_eq!(bytes.len() - before, record.encoded_bytes());
        }
        assert_eq!(CopiedRecords(&bytes).collect::<Vec<_>>(), records);
        for cut in 0..80 {
            assert!(CopiedRecords(&bytes[..cut]).count() <= 2, "cut at {cut}");
        }
    }
}
