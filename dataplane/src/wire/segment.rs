//! What gap detection and arbitration know of any sequenced protocol: (session, first sequence, count, message spans).

use std::fmt;

/// A sequenced feed protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Protocol {
    /// IEX-TP 1.0 (DEEP 1.0, TOPS 1.5 and 1.6).
    IexTp = 1,
    /// Nasdaq MoldUDP64.
    MoldUdp64 = 2,
}

impl Protocol {
    /// The protocol's name in configuration, reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::IexTp => "iex-tp",
            Protocol::MoldUdp64 => "moldudp64",
        }
    }
}

/// A session id as the protocol carries it: IEX-TP's u32 (little-endian in the first four bytes, the rest zero) or
/// MoldUDP64's ten ASCII bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionId(pub [u8; 10]);

impl SessionId {
    /// A numeric (IEX-TP) session id.
    pub fn from_u32(id: u32) -> SessionId {
        // Written as it is compared, in eight bytes and two: narrower stores would stall the comparison behind them.
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&u64::from(id).to_le_bytes());
        SessionId(bytes)
    }

    /// The numeric (IEX-TP) reading of the id.
    pub fn as_u32(self) -> u32 {
        u32::from_le_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

/// A session: (protocol, message protocol id, channel, session id). A stream is a session plus its run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionKey {
    /// The transport protocol.
    pub protocol: Protocol,
    /// IEX-TP's message protocol id (0x8002 TOPS 1.5, 0x8003 TOPS 1.6, 0x8004 DEEP 1.0); 0 where there is none.
    pub protocol_id: u16,
    /// IEX-TP's channel; 0 where there is none.
    pub channel: u32,
    /// The session id.
    pub session: SessionId,
}

impl SessionKey {
    /// The session id as text: `0x43cd0000` for IEX-TP, the trimmed ASCII (escaped where not printable) for MoldUDP64.
    pub fn session_text(&self) -> String {
        match self.protocol {
            Protocol::IexTp => format!("0x{:08x}", self.session.as_u32()),
            Protocol::MoldUdp64 => self.session.0.escape_ascii().to_string().trim().to_string(),
        }
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Protocol::IexTp => write!(f, "iex-tp/0x{:04x}/{}/{}", self.protocol_id, self.channel, self.session_text()),
            Protocol::MoldUdp64 => write!(f, "moldudp64/{}", self.session_text()),
        }
    }
}

/// How message bodies are delimited inside a segment: a u16 length before each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Framing {
    /// u16 little-endian (IEX-TP; also sluice's own copies).
    U16Le = 0,
    /// u16 big-endian (MoldUDP64).
    U16Be = 1,
}

/// What a segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentKind {
    /// One or more messages.
    Data,
    /// No message; `first` is the next sequence to expect.
    Heartbeat,
    /// The end of the session (MoldUDP64): evidence of `first` as the next sequence, never a message.
    EndOfSession,
}

/// One datagram of a sequenced feed, borrowed from the packet. The codec has checked that `block` holds exactly
/// `count` messages, so walking it cannot fail.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The session it belongs to.
    pub session: SessionKey,
    /// Data, heartbeat or end.
    pub kind: SegmentKind,
    /// Sequence of the first message; for a heartbeat the next one expected.
    pub first: u64,
    /// Messages in the segment, 0 for a heartbeat.
    pub count: u32,
    /// Byte position of this payload in the session's stream, where the protocol has one.
    pub offset: Option<u64>,
    /// The publisher's send time, ns since the Unix epoch, where the protocol has one.
    pub send_ns: Option<i64>,
    /// How `block` is cut into messages.
    pub framing: Framing,
    /// The messages: `count` × { u16 length, body }.
    pub block: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The sequence after the last message; `None` when it does not fit an i64 (such a segment is rejected).
    pub fn end(&self) -> Option<u64> {
        let end = self.first.checked_add(u64::from(self.count))?;
        (end <= i64::MAX as u64).then_some(end)
    }

    /// The message bodies in order.
    pub fn messages(&self) -> Messages<'a> {
        Messages { block: self.block, framing: self.framing }
    }
}

/// Walks `{ u16 length, body }` spans. Ends at the first span that does not fit.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a> {
    block: &'a [u8],
    framing: Framing,
}

impl<'a> Messages<'a> {
    /// A walk over `block`, cut by `framing`.
    pub fn new(block: &'a [u8], framing: Framing) -> Messages<'a> {
        Messages { block, framing }
    }

    /// The bytes not walked yet.
    pub fn rest(&self) -> &'a [u8] {
        self.block
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (prefix, rest) = self.block.split_first_chunk::<2>()?;
        let length = match self.framing {
            Framing::U16Le => u16::from_le_bytes(*prefix),
            Framing::U16Be => u16::from_be_bytes(*prefix),
        };
        let (body, rest) = rest.split_at_checked(usize::from(length))?;
        self.block = rest;
        Some(body)
    }
}

/// Why a datagram's payload is not a segment. Closed set: it is a label of counters and JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum SegmentError {
    /// Shorter than the protocol's header.
    Short = 0,
    /// A version that the codec does not know.
    Version = 1,
    /// The header's payload length exceeds the datagram's.
    Length = 2,
    /// The block does not hold the stated number of messages.
    Spans = 3,
}

impl SegmentError {
    /// Every reason, in order of its number.
    pub const ALL: [SegmentError; 4] =
        [SegmentError::Short, SegmentError::Version, SegmentError::Length, SegmentError::Spans];

    /// The reason's label.
    pub fn label(self) -> &'static str {
        match self {
            SegmentError::Short => "segment_short",
            SegmentError::Version => "segment_version",
            SegmentError::Length => "segment_length",
            SegmentError::Spans => "segment_spans",
        }
    }
}
