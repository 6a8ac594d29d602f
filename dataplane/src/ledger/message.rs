//! A message as it goes onto every connection: its WebSocket frame header and itself, immutable, shared by all subscribers.

use super::pool::Buffer;
use crate::wire::ledger::{Begin, CHUNK_HEADER_BYTES, ChunkHeader, Codec, End};
use crate::wire::websocket;

/// Longest frame header of a server's message: two bytes and a length of eight.
const FRAME_HEADER_BYTES_MAX: usize = 10;
/// What a chunk's buffer keeps free before the payload, so that it becomes a message where it lies.
pub const HEADROOM: usize = FRAME_HEADER_BYTES_MAX + CHUNK_HEADER_BYTES;

/// A chunk as the source gave it: a buffer whose first [`HEADROOM`] bytes are free.
#[derive(Debug)]
pub struct RawChunk {
    buffer: Buffer,
    bytes: usize,
    /// The ledger.
    pub sequence: u32,
    /// The chunk's place in it.
    pub index: u32,
}

impl RawChunk {
    /// A chunk whose payload is `bytes` long from [`HEADROOM`] on. Asserts that the buffer holds it.
    pub fn new(buffer: impl Into<Buffer>, bytes: usize, sequence: u32, index: u32) -> RawChunk {
        let buffer = buffer.into();
        assert!(buffer.len() >= HEADROOM + bytes, "a chunk's buffer holds its payload");
        RawChunk { buffer, bytes, sequence, index }
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.buffer[HEADROOM..HEADROOM + self.bytes]
    }

    /// The message with the payload as it is, made where it lies.
    pub fn into_message(self) -> Encoded {
        let header = ChunkHeader { sequence: self.sequence, index: self.index, codec: Codec::Raw };
        Encoded::in_place(self.buffer, header, self.bytes, self.bytes)
    }
}

/// A message with its frame header.
#[derive(Debug)]
pub struct Encoded {
    buffer: Buffer,
    start: usize,
    end: usize,
    raw_bytes: usize,
}

impl Encoded {
    /// BEGIN.
    pub fn begin(begin: &Begin) -> Encoded {
        Encoded::framed(&begin.encode())
    }

    /// END.
    pub fn end(end: &End) -> Encoded {
        Encoded::framed(&end.encode())
    }

    fn framed(message: &[u8]) -> Encoded {
        let mut buffer = Vec::with_capacity(message.len() + FRAME_HEADER_BYTES_MAX);
        websocket::write_binary(message, None, &mut buffer);
        let end = buffer.len();
        Encoded { buffer: buffer.into(), start: 0, end, raw_bytes: 0 }
    }

    /// A chunk whose payload of `bytes` lies at [`HEADROOM`] already and stands for `raw_bytes`, with the codec that the header names:
    /// a relay passes on what was packed elsewhere. A buffer that is shorter panics.
    pub fn in_place(mut buffer: Buffer, header: ChunkHeader, bytes: usize, raw_bytes: usize) -> Encoded {
        let message_at = HEADROOM - CHUNK_HEADER_BYTES;
        buffer[message_at..HEADROOM].copy_from_slice(&header.encode());
        let start = message_at - websocket::put_binary_header(CHUNK_HEADER_BYTES + bytes, &mut buffer[..message_at]);
        Encoded { buffer, start, end: HEADROOM + bytes, raw_bytes }
    }

    /// What goes onto a connection.
    pub fn frame(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The message in it.
    pub fn message(&self) -> &[u8] {
        let frame = self.frame();
        // A frame is its header and the message; the header's length follows from the whole.
        let header = [2, 4, FRAME_HEADER_BYTES_MAX].into_iter().find(|&header| {
            frame.len().checked_sub(header).is_some_and(|bytes| websocket::binary_header_bytes(bytes) == header)
        });
        &frame[header.expect("a frame that was written here")..]
    }

    /// Bytes of memory that it keeps: the whole buffer, of which a packed chunk's frame may be a tenth.
    pub fn held_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes of the ledger that it stands for; 0 for BEGIN and END.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ledger::{Message, decode};

    #[test]
    fn a_chunk_becomes_a_message_where_it_lies() {
        for bytes in [0, 100, 114, 115, 65_000, 65_524, 65_525, 70_000] {
            let mut buffer = vec![0; HEADROOM];
            buffer.resize(HEADROOM + bytes, 5);
            buffer.extend([1, 2, 3]);
            let at = buffer[HEADROOM..].as_ptr();
            let message = RawChunk::new(buffer, bytes, 9, 4).into_message();
            let header = ChunkHeader { sequence: 9, index: 4, codec: Codec::Raw };
            let payload = vec![5; bytes];
            assert_eq!(decode(message.message()), Ok(Message::Chunk(header, &payload)));
            let mut appended = Vec::new();
            websocket::write_binary(&[&header.encode()[..], &payload].concat(), None, &mut appended);
            assert_eq!(message.frame(), appended, "as if it had been appended");
            assert_eq!(message.message()[CHUNK_HEADER_BYTES..].as_ptr(), at, "and not moved");
            assert_eq!(message.raw_bytes(), bytes);
        }
    }

    #[test]
    fn begin_and_end_are_framed() {
        let begin = Begin { sequence: 1, emit_start_ns: 2 };
        assert_eq!(Encoded::begin(&begin).message(), begin.encode());
        assert_eq!(Encoded::begin(&begin).frame().len(), 16);
        let end = End { sequence: 1, chunks: 2, bytes: 3, emit_end_ns: 4, xxh64: 5 };
        assert_eq!(Encoded::end(&end).message(), end.encode());
    }
}
