//! IEX-TP 1.0 ("IEX Transport Protocol" specification): one segment per datagram, a 40-byte header and
//! `count` × { u16 length, body }. Little-endian throughout.

use super::segment::{Framing, Messages, Protocol, Segment, SegmentError, SegmentKind, SessionId, SessionKey};

/// Bytes of the segment header.
pub const HEADER_BYTES: usize = 40;
/// The only version there is.
pub const VERSION: u8 = 1;
/// Message protocol id of TOPS 1.5.
pub const TOPS_1_5: u16 = 0x8002;
/// Message protocol id of TOPS 1.6.
pub const TOPS_1_6: u16 = 0x8003;
/// Message protocol id of DEEP 1.0.
pub const DEEP_1_0: u16 = 0x8004;

// Where the fields stand in the header.
const PROTOCOL_ID_AT: usize = 2;
const CHANNEL_AT: usize = 4;
const SESSION_AT: usize = 8;
const PAYLOAD_LENGTH_AT: usize = 12;
const COUNT_AT: usize = 14;
const OFFSET_AT: usize = 16;
const FIRST_AT: usize = 24;
const SEND_AT: usize = 32;

/// Every field of the segment header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Version, [`VERSION`].
    pub version: u8,
    /// Reserved byte; written as 0 by the exchange, not judged.
    pub reserved: u8,
    /// Message protocol id.
    pub protocol_id: u16,
    /// Channel.
    pub channel: u32,
    /// Session.
    pub session: u32,
    /// Bytes after the header.
    pub payload_length: u16,
    /// Messages in the payload; 0 for a heartbeat.
    pub count: u16,
    /// Byte position of the payload in the session's stream.
    pub offset: u64,
    /// Sequence of the first message; for a heartbeat the next one expected.
    pub first: u64,
    /// Send time, ns since the Unix epoch.
    pub send_ns: i64,
}

impl Header {
    /// Reads the header at the start of `payload`.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER_BYTES] = payload.first_chunk()?;
        Some(Header {
            version: bytes[0],
            reserved: bytes[1],
            protocol_id: u16::from_le_bytes(field(bytes, PROTOCOL_ID_AT)),
            channel: u32::from_le_bytes(field(bytes, CHANNEL_AT)),
            session: u32::from_le_bytes(field(bytes, SESSION_AT)),
            payload_length: u16::from_le_bytes(field(bytes, PAYLOAD_LENGTH_AT)),
            count: u16::from_le_bytes(field(bytes, COUNT_AT)),
            offset: u64::from_le_bytes(field(bytes, OFFSET_AT)),
            first: u64::from_le_bytes(field(bytes, FIRST_AT)),
            send_ns: i64::from_le_bytes(field(bytes, SEND_AT)),
        })
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.version;
        bytes[1] = self.reserved;
        bytes[PROTOCOL_ID_AT..][..2].copy_from_slice(&self.protocol_id.to_le_bytes());
        bytes[CHANNEL_AT..][..4].copy_from_slice(&self.channel.to_le_bytes());
        bytes[SESSION_AT..][..4].copy_from_slice(&self.session.to_le_bytes());
        bytes[PAYLOAD_LENGTH_AT..][..2].copy_from_slice(&self.payload_length.to_le_bytes());
        bytes[COUNT_AT..][..2].copy_from_slice(&self.count.to_le_bytes());
        bytes[OFFSET_AT..][..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[FIRST_AT..][..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[SEND_AT..][..8].copy_from_slice(&self.send_ns.to_le_bytes());
        bytes
    }
}

/// `N` bytes of the header; the positions are constants, so the bounds check is gone after inlining.
#[inline(always)]
fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

/// Reads one datagram's payload. The `count` message spans are checked and fill the stated payload length exactly;
/// bytes of the datagram beyond that length are ignored.
///
/// Errors: [`SegmentError::Short`] below 40 bytes; [`SegmentError::Version`]; [`SegmentError::Length`] where the
/// payload length exceeds the datagram; [`SegmentError::Spans`] where the messages do not fill it exactly.
#[inline]
pub fn parse(payload: &[u8]) -> Result<Segment<'_>, SegmentError> {
    let header = Header::read(payload).ok_or(SegmentError::Short)?;
    if header.version != VERSION {
        return Err(SegmentError::Version);
    }
    let end = HEADER_BYTES + usize::from(header.payload_length);
    let block = payload.get(HEADER_BYTES..end).ok_or(SegmentError::Length)?;
    let mut messages = Messages::new(block, Framing::U16Le);
    for _ in 0..header.count {
        messages.next().ok_or(SegmentError::Spans)?;
    }
    if !messages.rest().is_empty() {
        return Err(SegmentError::Spans);
    }
    Ok(Segment {
        session: SessionKey {
            protocol: Protocol::IexTp,
            protocol_id: header.protocol_id,
            channel: header.channel,
            session: SessionId::from_u32(header.session),
        },
        kind: if header.count == 0 { SegmentKind::Heartbeat } else { SegmentKind::Data },
        first: header.first,
        count: u32::from(header.count),
        offset: Some(header.offset),
        send_ns: Some(header.send_ns),
        framing: Framing::U16Le,
        block,
    })
}

/// Appends one message to a segment's block: its u16 length and its body. Asserts a body of at most 65,535 bytes.
pub fn write_message(body: &[u8], block: &mut Vec<u8>) {
    let length = u16::try_from(body.len()).expect("an IEX-TP message is at most 65,535 bytes");
    block.extend_from_slice(&length.to_le_bytes());
    block.extend_from_slice(body);
}

/// Gives a segment another first sequence and stream offset, in place, so that passes of a replay join without a gap.
/// `false` (and nothing changed) where `payload` is shorter than the header.
#[inline]
pub fn rewrite(payload: &mut [u8], first: u64, offset: u64) -> bool {
    let Some(bytes) = payload.first_chunk_mut::<HEADER_BYTES>() else { return false };
    bytes[OFFSET_AT..][..8].copy_from_slice(&offset.to_le_bytes());
    bytes[FIRST_AT..][..8].copy_from_slice(&first.to_le_bytes());
    true
}
