//! Messages of the ledger stream, protocol 2: BEGIN, CHUNK, END. Each is one binary WebSocket message, big-endian.
//!
//! Source of the layout: docs/formats/ledger.md. A chunk's payload is borrowed from the message, never copied.

/// The protocol's version, the first byte of every message.
pub const VERSION: u8 = 2;

/// Bytes of a BEGIN message.
pub const BEGIN_BYTES: usize = 14;
/// Bytes of a CHUNK message before its payload.
pub const CHUNK_HEADER_BYTES: usize = 11;
/// Bytes of an END message.
pub const END_BYTES: usize = 34;
/// Fewest bytes of any message: version, kind, sequence.
const MESSAGE_BYTES_MIN: usize = 6;

/// Fewest bytes of a full chunk that a server may be told to cut.
pub const CHUNK_BYTES_MIN: usize = 4 << 10;
/// Most bytes of a chunk, raw; the protocol's limit.
pub const CHUNK_BYTES_MAX: usize = 8 << 20;
/// Bytes of a chunk unless told otherwise (the peer's default).
pub const CHUNK_BYTES_DEFAULT: usize = 256 << 10;
/// Most bytes of a ledger; the protocol's limit on both ends.
pub const LEDGER_BYTES_MAX: u64 = 256 << 20;
/// The last sequence that can be streamed: the protocol has no wrap, so the very last u32 is left out.
pub const SEQUENCE_MAX: u32 = u32::MAX - 1;

const KIND_BEGIN: u8 = 0x10;
const KIND_CHUNK: u8 = 0x11;
const KIND_END: u8 = 0x12;

/// How a chunk's payload is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Codec {
    /// As it is.
    Raw = 0,
    /// One zstd frame that depends on no other.
    Zstd = 1,
}

/// A ledger begins, or begins again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// The ledger's sequence.
    pub sequence: u32,
    /// The server's clock at the first byte from the source, ns since the Unix epoch; 0 for what is not followed live.
    pub emit_start_ns: i64,
}

/// What stands before a chunk's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// The ledger's sequence.
    pub sequence: u32,
    /// The chunk's place in the ledger, from 0.
    pub index: u32,
    /// How the payload is packed.
    pub codec: Codec,
}

/// A ledger is complete. Counts, bytes and checksum are of the raw ledger, however its chunks were packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The ledger's sequence.
    pub sequence: u32,
    /// Chunks sent.
    pub chunks: u32,
    /// Bytes of the ledger.
    pub bytes: u64,
    /// The server's clock at the last byte from the source, ns since the Unix epoch; 0 for what is not followed live.
    pub emit_end_ns: i64,
    /// XXH64 with seed 0 of the ledger.
    pub xxh64: u64,
}

/// One message of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A ledger begins.
    Begin(Begin),
    /// A part of it, with its payload.
    Chunk(ChunkHeader, &'a [u8]),
    /// It is complete.
    End(End),
}

/// Why bytes are no message of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// Fewer bytes than any message has.
    #[error("a message of {bytes} bytes: none has fewer than {MESSAGE_BYTES_MIN}")]
    Short {
        /// Its length.
        bytes: usize,
    },
    /// Another version of the protocol.
    #[error("a message of protocol version {found}: version {VERSION} is spoken here")]
    Version {
        /// The version byte.
        found: u8,
    },
    /// No such message.
    #[error("a message of unknown kind 0x{found:02x}")]
    Kind {
        /// The kind byte.
        found: u8,
    },
    /// BEGIN and END have exact lengths, CHUNK a least one.
    #[error("{name} of {bytes} bytes: it has {expected}")]
    Length {
        /// The message's name.
        name: &'static str,
        /// Its length.
        bytes: usize,
        /// The length that it should have (at least, for CHUNK).
        expected: usize,
    },
    /// A packing that is not in the protocol.
    #[error("chunk {index} of ledger {sequence} has unknown codec 0x{found:02x}")]
    Codec {
        /// The ledger.
        sequence: u32,
        /// The chunk.
        index: u32,
        /// The codec byte.
        found: u8,
    },
}

impl Message<'_> {
    /// The message's name.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Begin(_) => "BEGIN",
            Message::Chunk(..) => "CHUNK",
            Message::End(_) => "END",
        }
    }

    /// The ledger it belongs to.
    pub fn sequence(&self) -> u32 {
        match self {
            Message::Begin(begin) => begin.sequence,
            Message::Chunk(header, _) => header.sequence,
            Message::End(end) => end.sequence,
        }
    }
}

/// Reads one message.
///
/// # Errors
/// What is not byte for byte a message of protocol 2; whether it may come here is not judged.
pub fn decode(message: &[u8]) -> Result<Message<'_>, MessageError> {
    let bytes = message.len();
    let short = || MessageError::Short { bytes };
    let [version, kind] = *message.first_chunk::<2>().ok_or_else(short)?;
    let sequence = u32::from_be_bytes(field(message, 2).ok_or_else(short)?);
    if version != VERSION {
        return Err(MessageError::Version { found: version });
    }
    let length = |name, expected| MessageError::Length { name, bytes, expected };
    match kind {
        KIND_BEGIN => {
            let wrong = || length("BEGIN", BEGIN_BYTES);
            let emit_start_ns = i64::from_be_bytes(field(message, 6).ok_or_else(wrong)?);
            if bytes != BEGIN_BYTES { Err(wrong()) } else { Ok(Message::Begin(Begin { sequence, emit_start_ns })) }
        }
        KIND_CHUNK => {
            let wrong = || length("CHUNK", CHUNK_HEADER_BYTES);
            let index = u32::from_be_bytes(field(message, 6).ok_or_else(wrong)?);
            let (header, payload) = message.split_first_chunk::<CHUNK_HEADER_BYTES>().ok_or_else(wrong)?;
            let codec = match header[CHUNK_HEADER_BYTES - 1] {
                0 => Codec::Raw,
                1 => Codec::Zstd,
                found => return Err(MessageError::Codec { sequence, index, found }),
            };
            Ok(Message::Chunk(ChunkHeader { sequence, index, codec }, payload))
        }
        KIND_END => match <&[u8; END_BYTES]>::try_from(message) {
            Ok(end) => Ok(Message::End(End::read(end))),
            Err(_) => Err(length("END", END_BYTES)),
        },
        found => Err(MessageError::Kind { found }),
    }
}

/// `N` bytes from `at`; `None` where the message is shorter.
fn field<const N: usize>(message: &[u8], at: usize) -> Option<[u8; N]> {
    message.get(at..)?.first_chunk().copied()
}

impl Begin {
    /// The message.
    pub fn encode(&self) -> [u8; BEGIN_BYTES] {
        let mut bytes = [0; BEGIN_BYTES];
        bytes[0] = VERSION;
        bytes[1] = KIND_BEGIN;
        bytes[2..6].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[6..14].copy_from_slice(&self.emit_start_ns.to_be_bytes());
        bytes
    }
}

impl ChunkHeader {
    /// The bytes that stand before the payload.
    pub fn encode(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[0] = VERSION;
        bytes[1] = KIND_CHUNK;
        bytes[2..6].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.index.to_be_bytes());
        bytes[10] = self.codec as u8;
        bytes
    }
}

impl End {
    fn read(bytes: &[u8; END_BYTES]) -> End {
        let long = |at: usize| {
            let mut value = [0; 8];
            value.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(value)
        };
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        End { sequence: word(2), chunks: word(6), bytes: long(10), emit_end_ns: long(18) as i64, xxh64: long(26) }
    }

    /// The message.
    pub fn encode(&self) -> [u8; END_BYTES] {
        let mut bytes = [0; END_BYTES];
        bytes[0] = VERSION;
        bytes[1] = KIND_END;
        bytes[2..6].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.chunks.to_be_bytes());
        bytes[10..18].copy_from_slice(&self.bytes.to_be_bytes());
        bytes[18..26].copy_from_slice(&self.emit_end_ns.to_be_bytes());
        bytes[26..34].copy_from_slice(&self.xxh64.to_be_bytes());
        bytes
    }
}

/// Most bytes that a reader takes for one message when its chunks have at most `chunk_bytes_max`: a chunk and its header,
/// and never so few that END would not fit. No chunk limit overflows it.
pub fn message_bytes_max(chunk_bytes_max: usize) -> usize {
    chunk_bytes_max.saturating_add(CHUNK_HEADER_BYTES).clamp(END_BYTES, i64::MAX as usize)
}

/// Close codes of the stream (WebSocket, and the protocol's own).
pub mod close {
    /// The range was served, or an unbounded stream's source ended.
    pub const NORMAL: u16 = 1000;
    /// The source ended before a bounded range was complete.
    pub const GOING_AWAY: u16 = 1001;
    /// The other side broke a rule of WebSocket.
    pub const PROTOCOL: u16 = 1002;
    /// A text message where only binary ones are spoken.
    pub const UNSUPPORTED: u16 = 1003;
    /// A message over the limit.
    pub const TOO_BIG: u16 = 1009;
    /// The source failed.
    pub const INTERNAL: u16 = 1011;
    /// The server drains: come back. Beyond the peer's protocol, whose client takes it for an error.
    pub const RESTART: u16 = 1012;
    /// The subscriber's next ledger is older than what is retained.
    pub const TOO_FAR_BEHIND: u16 = 4001;

    /// Reason of [`NORMAL`] when the source ended; a complete range has none.
    pub const SOURCE_ENDED: &str = "source ended";
    /// Reason of [`GOING_AWAY`].
    pub const SOURCE_ENDED_SHORT: &str = "source ended before range complete";
    /// Reason of [`INTERNAL`].
    pub const SOURCE_FAILED: &str = "source failed";
    /// Reason of [`RESTART`].
    pub const DRAINING: &str = "server draining";
    /// Another reason of [`RESTART`]: what was kept was dropped, because the source did not go on with it.
    pub const RESET: &str = "retention reset";
    /// A client's reason when it has its range.
    pub const RANGE_COMPLETE: &str = "range complete";
    /// A client's reason when nobody wants more of it.
    pub const CONSUMER_DONE: &str = "consumer done";

    /// The reason of [`TOO_FAR_BEHIND`]: the oldest and the latest retained ledger.
    pub fn too_far_behind(oldest: u32, latest: u32) -> String {
        format!("too far behind: oldest={oldest} latest={latest}")
    }

    /// The two bounds in such a reason; `None` where it does not hold them.
    pub fn parse_too_far_behind(reason: &str) -> Option<(u32, u32)> {
        let value = |name: &str| {
            let (_, rest) = reason.split_once(name)?;
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..digits].parse().ok()
        };
        Some((value("oldest=")?, value("latest=")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const STAMP: i64 = 1_234_567_890_123_456_789;

    #[test]
    fn the_golden_vectors_are_met() {
        let begin = Begin { sequence: 42, emit_start_ns: STAMP };
        assert_eq!(hex(&begin.encode()), "02100000002a112210f47de98115");
        assert_eq!(decode(&begin.encode()), Ok(Message::Begin(begin)));

        let header = ChunkHeader { sequence: 42, index: 3, codec: Codec::Raw };
        let chunk = [&header.encode()[..], b"abc"].concat();
        assert_eq!(hex(&chunk), "02110000002a0000000300616263");
        assert_eq!(decode(&chunk), Ok(Message::Chunk(header, b"abc")));

        let xxh64 = xxhash_rust::xxh64::xxh64(b"abc", 0);
        let end = End { sequence: 42, chunks: 1, bytes: 3, emit_end_ns: STAMP + 1, xxh64 };
        assert_eq!(hex(&end.encode()), "02120000002a000000010000000000000003112210f47de9811644bc2cf5ad770999");
        assert_eq!(decode(&end.encode()), Ok(Message::End(end)));
    }

    #[test]
    fn extremes_survive() {
        let begin = Begin { sequence: u32::MAX, emit_start_ns: i64::MIN };
        assert_eq!(decode(&begin.encode()), Ok(Message::Begin(begin)));
        let end = End { sequence: u32::MAX, chunks: u32::MAX, bytes: u64::MAX, emit_end_ns: -1, xxh64: u64::MAX };
        assert_eq!(decode(&end.encode()), Ok(Message::End(end)));
        let header = ChunkHeader { sequence: 0, index: u32::MAX, codec: Codec::Zstd };
        assert_eq!(decode(&header.encode()), Ok(Message::Chunk(header, b"")), "an empty payload is legal");
    }

    #[test]
    fn a_chunks_payload_is_the_messages_own_bytes() {
        let header = ChunkHeader { sequence: 1, index: 0, codec: Codec::Raw };
        let message = [&header.encode()[..], &[7; 100]].concat();
        let Ok(Message::Chunk(_, payload)) = decode(&message) else { panic!("a chunk") };
        assert_eq!(payload.as_ptr(), message[CHUNK_HEADER_BYTES..].as_ptr());
    }

    #[test]
    fn what_is_no_message_is_told_apart() {
        let begin = Begin { sequence: 1, emit_start_ns: 2 }.encode();
        let end = End { sequence: 1, chunks: 1, bytes: 1, emit_end_ns: 1, xxh64: 1 }.encode();
        let chunk = ChunkHeader { sequence: 1, index: 0, codec: Codec::Raw }.encode();
        for bytes in 0..MESSAGE_BYTES_MIN {
            assert_eq!(decode(&begin[..bytes]), Err(MessageError::Short { bytes }));
        }
        let length = |name, bytes, expected| Err(MessageError::Length { name, bytes, expected });
        for bytes in 6..BEGIN_BYTES {
            assert_eq!(decode(&begin[..bytes]), length("BEGIN", bytes, BEGIN_BYTES));
        }
        assert_eq!(decode(&[&begin[..], &[0]].concat()), length("BEGIN", 15, BEGIN_BYTES));
        for bytes in 6..CHUNK_HEADER_BYTES {
            assert_eq!(decode(&chunk[..bytes]), length("CHUNK", bytes, CHUNK_HEADER_BYTES));
        }
        for bytes in 6..END_BYTES {
            assert_eq!(decode(&end[..bytes]), length("END", bytes, END_BYTES));
        }
        assert_eq!(decode(&[&end[..], &[0]].concat()), length("END", 35, END_BYTES));
        let mut old = begin;
        old[0] = 1;
        assert_eq!(decode(&old), Err(MessageError::Version { found: 1 }));
        let mut other = begin;
        other[1] = 0x13;
        assert_eq!(decode(&other), Err(MessageError::Kind { found: 0x13 }));
        let mut lz4 = chunk;
        lz4[10] = 2;
        assert_eq!(decode(&lz4), Err(MessageError::Codec { sequence: 1, index: 0, found: 2 }));
    }

    #[test]
    fn read_limits_hold_a_chunk_and_an_end() {
        assert_eq!(message_bytes_max(CHUNK_BYTES_MAX), (8 << 20) + 11);
        assert_eq!(message_bytes_max(1), END_BYTES);
        assert_eq!(message_bytes_max(usize::MAX), i64::MAX as usize);
    }

    #[test]
    fn the_bounds_of_a_reason_go_there_and_back() {
        assert_eq!(close::too_far_behind(25, 29), "too far behind: oldest=25 latest=29");
        assert_eq!(close::parse_too_far_behind("too far behind: oldest=25 latest=29"), Some((25, 29)));
        for reason in ["", "too far behind", "oldest=x latest=1", "oldest=1", "oldest=99999999999 latest=1"] {
            assert_eq!(close::parse_too_far_behind(reason), None, "{reason:?}");
        }
    }
}
