//! MoldUDP64 (Nasdaq, "MoldUDP64 Protocol Specification" 1.00): a 20-byte header and `count` × { u16 length, body }.
//! Big-endian throughout.

use super::segment::{Framing, Messages, Protocol, Segment, SegmentError, SegmentKind, SessionId, SessionKey};

/// Bytes of the packet header.
pub const HEADER_BYTES: usize = 20;
/// The count that says "end of session"; such a packet holds no message.
pub const END_OF_SESSION: u16 = 0xffff;

const SEQUENCE_AT: usize = 10;
const COUNT_AT: usize = 18;

/// Every field of the packet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Session, ASCII, padded with spaces.
    pub session: [u8; 10],
    /// Sequence of the first message; for a heartbeat and the end of the session the next one expected.
    pub sequence: u64,
    /// Messages in the packet; 0 for a heartbeat, [`END_OF_SESSION`].
    pub count: u16,
}

impl Header {
    /// Reads the header at the start of `payload`.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER_BYTES] = payload.first_chunk()?;
        Some(Header {
            session: *bytes.first_chunk()?,
            sequence: u64::from_be_bytes(*bytes[SEQUENCE_AT..].first_chunk()?),
            count: u16::from_be_bytes(*bytes[COUNT_AT..].first_chunk()?),
        })
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..SEQUENCE_AT].copy_from_slice(&self.session);
        bytes[SEQUENCE_AT..COUNT_AT].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[COUNT_AT..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }
}

/// Reads one datagram's payload. The `count` message spans are checked; bytes behind the last message are ignored (the
/// header states no length of its own).
///
/// Errors: [`SegmentError::Short`] below 20 bytes; [`SegmentError::Spans`] where the messages do not fit.
#[inline]
pub fn parse(payload: &[u8]) -> Result<Segment<'_>, SegmentError> {
    let header = Header::read(payload).ok_or(SegmentError::Short)?;
    let (kind, count) = match header.count {
        0 => (SegmentKind::Heartbeat, 0),
        END_OF_SESSION => (SegmentKind::EndOfSession, 0),
        count => (SegmentKind::Data, count),
    };
    let rest = &payload[HEADER_BYTES..];
    let mut messages = Messages::new(rest, Framing::U16Be);
    for _ in 0..count {
        messages.next().ok_or(SegmentError::Spans)?;
    }
    let block = &rest[..rest.len() - messages.rest().len()];
    Ok(Segment {
        session: SessionKey {
            protocol: Protocol::MoldUdp64,
            protocol_id: 0,
            channel: 0,
            session: SessionId(header.session),
        },
        kind,
        first: header.sequence,
        count: u32::from(count),
        offset: None,
        send_ns: None,
        framing: Framing::U16Be,
        block,
    })
}

/// Appends one message to a packet's block: its u16 length and its body. Asserts a body of at most 65,535 bytes.
pub fn write_message(body: &[u8], block: &mut Vec<u8>) {
    let length = u16::try_from(body.len()).expect("a MoldUDP64 message is at most 65,535 bytes");
    block.extend_from_slice(&length.to_be_bytes());
    block.extend_from_slice(body);
}

/// Gives a packet another first sequence, in place. `false` (and nothing changed) where `payload` is shorter than the
/// header.
#[inline]
pub fn rewrite(payload: &mut [u8], sequence: u64) -> bool {
    let Some(bytes) = payload.first_chunk_mut::<HEADER_BYTES>() else { return false };
    bytes[SEQUENCE_AT..COUNT_AT].copy_from_slice(&sequence.to_be_bytes());
    true
}
