//! WebSocket messages (RFC 6455) over bytes: headers by tungstenite's codec, and a small machine over them that knows what a
//! ledger stream may hold. No extension, no text.
//!
//! The reader owns the buffer that a socket reads into, so that the payload of an unfragmented message is lent from where
//! it arrived. Its memory is bounded by the limit on a message.

use std::io::Cursor;
use std::ops::Range;

use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// Longest header of a frame: two bytes, a length of eight, a mask of four.
pub const HEADER_BYTES_MAX: usize = 14;
/// Longest payload of a control frame (RFC 6455, 5.5).
pub const CONTROL_BYTES_MAX: usize = 125;
/// Longest reason of a close frame: what a control frame holds beside the code.
pub const REASON_BYTES_MAX: usize = CONTROL_BYTES_MAX - 2;
/// Most room that a reader offers beyond the frame at hand, so that small frames come many to a read, and a chunk of the usual
/// size in one. One for short messages offers as much as such a message needs, because a server has thousands of them.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// Who sends the frames that are read: a client masks each one, a server none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// A client.
    Client,
    /// A server.
    Server,
}

/// A message, or a control frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A binary message.
    Binary(&'a [u8]),
    /// To be answered with a pong of the same payload.
    Ping(&'a [u8]),
    /// The answer to a ping, or unasked.
    Pong,
    /// The other side closes; nothing follows.
    Close {
        /// Its code; `None` where it gave none.
        code: Option<u16>,
        /// Its reason, possibly empty.
        reason: &'a str,
    },
}

/// Why frames cannot be read on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// An extension's bits, and none was agreed on.
    #[error("a frame with reserved bits: no extension was agreed on")]
    ReservedBits,
    /// A reserved operation.
    #[error("a frame of a reserved kind")]
    Opcode,
    /// A server's frames are not masked.
    #[error("a masked frame from a server")]
    Masked,
    /// A client's frames are masked.
    #[error("an unmasked frame from a client")]
    Unmasked,
    /// Control frames are short.
    #[error("a control frame of {bytes} bytes: at most {CONTROL_BYTES_MAX}")]
    ControlBytes {
        /// Its length.
        bytes: u64,
    },
    /// Control frames are whole.
    #[error("a control frame in parts")]
    ControlInParts,
    /// A length in more bytes than it needs.
    #[error("a frame's length in more bytes than it needs")]
    LengthForm,
    /// A continuation of nothing.
    #[error("a continuation, and nothing to continue")]
    Continuation,
    /// A message inside another.
    #[error("a message before the end of the one before")]
    Interrupted,
    /// Only binary messages are spoken.
    #[error("a text message: the stream is binary")]
    Text,
    /// A message over the limit.
    #[error("a message of {bytes} bytes or more: at most {limit} are taken")]
    TooBig {
        /// Its length so far.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
    /// One byte of payload in a close frame.
    #[error("a close frame of one byte")]
    CloseBytes,
    /// A code that no endpoint may send.
    #[error("a close frame with code {code}, which nobody may send")]
    CloseCode {
        /// The code.
        code: u16,
    },
    /// A reason that is no UTF-8.
    #[error("a close frame whose reason is not UTF-8")]
    CloseReason,
}

impl FrameError {
    /// The code to close the connection with.
    pub fn close_code(self) -> u16 {
        use super::ledger::close;
        match self {
            FrameError::Text => close::UNSUPPORTED,
            FrameError::TooBig { .. } => close::TOO_BIG,
            FrameError::CloseReason => 1007,
            _ => close::PROTOCOL,
        }
    }
}

/// Reads frames from a buffer of its own.
pub struct FrameReader {
    from: Sender,
    message_bytes_max: usize,
    /// What was read and not yet given out is `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Payload of a fragmented message so far; the buffer is kept.
    parts: Vec<u8>,
    in_parts: bool,
    /// Bytes of the frame at `start` once its header is known.
    frame_bytes: usize,
    /// The message that was given out last, where it was in one frame.
    message: Range<usize>,
    message_in_parts: bool,
    failed: Option<FrameError>,
    closed: bool,
}

/// A frame whose header passed.
struct Frame {
    opcode: OpCode,
    is_final: bool,
    mask: Option<[u8; 4]>,
    header_bytes: usize,
    payload_bytes: usize,
}

impl FrameReader {
    /// A reader of what `from` sends, for messages of at most `message_bytes_max` bytes.
    pub fn new(from: Sender, message_bytes_max: usize) -> FrameReader {
        FrameReader {
            from,
            message_bytes_max,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            parts: Vec::new(),
            in_parts: false,
            frame_bytes: 0,
            message: 0..0,
            message_in_parts: false,
            failed: None,
            closed: false,
        }
    }

    /// Forgets a connection; the buffers are kept for the next one.
    pub fn reset(&mut self) {
        (self.start, self.end, self.frame_bytes) = (0, 0, 0);
        (self.message, self.message_in_parts) = (0..0, false);
        self.parts.clear();
        (self.in_parts, self.failed, self.closed) = (false, None, false);
    }

    /// Gives the memory back that nothing unread needs: after an HTTP head, which is longer than a subscriber's frames.
    pub fn shrink(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        self.buffer.truncate(self.end);
        self.buffer.shrink_to_fit();
    }

    /// Bytes of memory that its buffers hold.
    pub fn memory_bytes(&self) -> usize {
        self.buffer.capacity() + self.parts.capacity()
    }

    /// What was read and is no frame yet: the head of an HTTP answer comes before the first one.
    pub fn unread(&self) -> &[u8] {
        // Nothing while the buffer is lent.
        self.buffer.get(self.start..self.end).unwrap_or(&[])
    }

    /// The first `bytes` of [`FrameReader::unread`] were no frames. Asserts that there are as many.
    pub fn skip(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "more is skipped than was read");
        self.start += bytes;
    }

    /// Room to read into, never empty: what completes the frame at hand and some more. Take events with
    /// [`FrameReader::next`] until there is none before asking.
    pub fn space(&mut self) -> &mut [u8] {
        let wanted = self.make_room();
        if self.buffer.len() - self.end < wanted {
            self.buffer.resize(self.end + wanted, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// As [`FrameReader::space`] for whoever fills a buffer that it owns (the kernel): the buffer itself, to be filled from its end
    /// on. Until [`FrameReader::give_back`] this reader has nothing unread.
    pub fn lend(&mut self) -> Vec<u8> {
        let wanted = self.make_room();
        self.buffer.truncate(self.end);
        self.buffer.reserve(wanted);
        std::mem::take(&mut self.buffer)
    }

    /// The buffer of [`FrameReader::lend`] is back, with what was read behind what it held. Asserts that it holds as much.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        assert!(buffer.len() >= self.end, "a buffer comes back with what it held");
        self.end = buffer.len();
        self.buffer = buffer;
    }

    /// Bytes that complete the frame at hand; 0 while its header has not come.
    pub fn missing(&self) -> usize {
        self.frame_bytes.saturating_sub(self.end - self.start)
    }

    /// The message that the last [`Event::Binary`] lent; empty once there is to be more room.
    pub fn message(&self) -> &[u8] {
        if self.message_in_parts { &self.parts } else { &self.buffer[self.message.clone()] }
    }

    /// Moves what is unread to the front where the room behind it is short; how much room is wanted.
    fn make_room(&mut self) -> usize {
        (self.message, self.message_in_parts) = (0..0, false);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let missing = self.missing();
        // Large frames grow with what really arrives, never with what a header promises.
        let ahead =
            READ_AHEAD_BYTES.min(self.message_bytes_max.max(CONTROL_BYTES_MAX).saturating_add(HEADER_BYTES_MAX));
        let wanted = missing.clamp(ahead, ahead.max(self.end - self.start));
        if self.buffer.capacity() - self.end < wanted && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        wanted
    }

    /// The first `bytes` of [`FrameReader::space`] were read. Asserts that there was that much room.
    pub fn filled(&mut self, bytes: usize) {
        assert!(bytes <= self.buffer.len() - self.end, "more was read than there was room for");
        self.end += bytes;
    }

    /// Takes bytes that were read elsewhere.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.space();
            let taken = space.len().min(bytes.len());
            space[..taken].copy_from_slice(&bytes[..taken]);
            self.filled(taken);
            bytes = &bytes[taken..];
        }
    }

    /// The next message or control frame; `None` while it is not whole, and after a close.
    ///
    /// # Errors
    /// The first rule that was broken; the same again from then on.
    #[allow(clippy::should_implement_trait)] // What it gives borrows from it.
    pub fn next(&mut self) -> Result<Option<Event<'_>>, FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        match self.step() {
            Err(error) => {
                self.failed = Some(error);
                Err(error)
            }
            Ok(None) => Ok(None),
            Ok(Some(frame)) => {
                let event = self.event(&frame);
                // A close that breaks a rule fails the reader like anything else, and nothing is read after it.
                event.map(Some)
            }
        }
    }

    /// Reads frames until one completes an event.
    fn step(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            if self.closed {
                return Ok(None);
            }
            let Some(frame) = self.header()? else { return Ok(None) };
            let whole = frame.header_bytes + frame.payload_bytes;
            if self.end - self.start < whole || self.buffer.len() < self.end {
                self.frame_bytes = whole;
                return Ok(None);
            }
            self.frame_bytes = 0;
            let at = self.start + frame.header_bytes;
            self.start += whole;
            let payload = &mut self.buffer[at..at + frame.payload_bytes];
            if let Some(key) = frame.mask {
                mask(key, payload);
            }
            let OpCode::Data(_) = frame.opcode else { return Ok(Some(frame)) };
            if frame.is_final && !self.in_parts {
                return Ok(Some(frame));
            }
            if !self.in_parts {
                self.parts.clear();
            }
            self.parts.extend_from_slice(payload);
            self.in_parts = !frame.is_final;
            if frame.is_final {
                // The event lends `parts`.
                return Ok(Some(Frame { opcode: OpCode::Data(Data::Continue), ..frame }));
            }
        }
    }

    /// The header at `start`, judged.
    fn header(&self) -> Result<Option<Frame>, FrameError> {
        let mut cursor = Cursor::new(self.unread());
        let (header, bytes) = match FrameHeader::parse(&mut cursor) {
            Ok(None) => return Ok(None),
            Ok(Some(header)) => header,
            Err(_) => return Err(FrameError::Opcode),
        };
        let header_bytes = cursor.position() as usize;
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(FrameError::ReservedBits);
        }
        match (self.from, header.mask) {
            (Sender::Client, None) => return Err(FrameError::Unmasked),
            (Sender::Server, Some(_)) => return Err(FrameError::Masked),
            _ => {}
        }
        if header_bytes != header.len(bytes) {
            return Err(FrameError::LengthForm);
        }
        let limit = self.message_bytes_max;
        match header.opcode {
            OpCode::Control(_) if bytes > CONTROL_BYTES_MAX as u64 => return Err(FrameError::ControlBytes { bytes }),
            OpCode::Control(_) if !header.is_final => return Err(FrameError::ControlInParts),
            OpCode::Control(_) => {}
            OpCode::Data(Data::Continue) if !self.in_parts => return Err(FrameError::Continuation),
            OpCode::Data(Data::Binary | Data::Text) if self.in_parts => return Err(FrameError::Interrupted),
            OpCode::Data(Data::Text) => return Err(FrameError::Text),
            OpCode::Data(_) => {
                let before = if self.in_parts { self.parts.len() as u64 } else { 0 };
                let whole = before.saturating_add(bytes);
                if whole > limit as u64 {
                    return Err(FrameError::TooBig { bytes: whole, limit });
                }
            }
        }
        let frame = Frame {
            opcode: header.opcode,
            is_final: header.is_final,
            mask: header.mask,
            header_bytes,
            payload_bytes: bytes as usize,
        };
        Ok(Some(frame))
    }

    fn event(&mut self, frame: &Frame) -> Result<Event<'_>, FrameError> {
        let payload = self.start - frame.payload_bytes..self.start;
        match frame.opcode {
            OpCode::Data(Data::Continue) => {
                self.message_in_parts = true;
                Ok(Event::Binary(&self.parts))
            }
            OpCode::Data(_) => {
                (self.message, self.message_in_parts) = (payload.clone(), false);
                Ok(Event::Binary(&self.buffer[payload]))
            }
            OpCode::Control(Control::Ping) => Ok(Event::Ping(&self.buffer[payload])),
            OpCode::Control(Control::Close) => {
                self.closed = true;
                match read_close(&self.buffer[payload]) {
                    Ok(event) => Ok(event),
                    Err(error) => {
                        self.failed = Some(error);
                        Err(error)
                    }
                }
            }
            OpCode::Control(_) => Ok(Event::Pong),
        }
    }
}

fn read_close(payload: &[u8]) -> Result<Event<'_>, FrameError> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return if payload.is_empty() {
            Ok(Event::Close { code: None, reason: "" })
        } else {
            Err(FrameError::CloseBytes)
        };
    };
    let code = u16::from_be_bytes(*code);
    // RFC 6455, 7.4 with the registry's later entries; 1004 to 1006 and 1015 are never on the wire.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(FrameError::CloseCode { code });
    }
    let reason = std::str::from_utf8(reason).map_err(|_| FrameError::CloseReason)?;
    Ok(Event::Close { code: Some(code), reason })
}

/// Masks or unmasks: XOR with the key, in place.
fn mask(key: [u8; 4], payload: &mut [u8]) {
    for (index, byte) in payload.iter_mut().enumerate() {
        *byte ^= key[index & 3];
    }
}

/// A kind of control frame, to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlKind {
    /// Close.
    Close,
    /// Ping.
    Ping,
    /// Pong.
    Pong,
}

/// Writes the header of a server's unfragmented binary message of `bytes` bytes into the end of `out`, where the message follows; how
/// many bytes it has, see [`binary_header_bytes`]. It needs no memory of its own. Asserts that there is room.
pub fn put_binary_header(bytes: usize, out: &mut [u8]) -> usize {
    let header = FrameHeader { opcode: OpCode::Data(Data::Binary), ..FrameHeader::default() };
    let length = header.len(bytes as u64);
    let at = out.len().checked_sub(length).expect("room for a frame's header");
    header.format(bytes as u64, &mut &mut out[at..]).expect("a slice of its length takes a header");
    length
}

/// Bytes of such a header: 2, 4 or 10.
pub fn binary_header_bytes(bytes: usize) -> usize {
    FrameHeader { opcode: OpCode::Data(Data::Binary), ..FrameHeader::default() }.len(bytes as u64)
}

/// Appends a whole binary message; a client's with its mask.
pub fn write_binary(payload: &[u8], key: Option<[u8; 4]>, out: &mut Vec<u8>) {
    write_header(OpCode::Data(Data::Binary), payload.len(), key, out);
    write_payload(payload, key, out);
}

/// Appends a control frame; a client's with its mask. Asserts a payload of at most [`CONTROL_BYTES_MAX`].
pub fn write_control(kind: ControlKind, payload: &[u8], key: Option<[u8; 4]>, out: &mut Vec<u8>) {
    assert!(payload.len() <= CONTROL_BYTES_MAX, "a control frame holds at most {CONTROL_BYTES_MAX} bytes");
    let control = match kind {
        ControlKind::Close => Control::Close,
        ControlKind::Ping => Control::Ping,
        ControlKind::Pong => Control::Pong,
    };
    write_header(OpCode::Control(control), payload.len(), key, out);
    write_payload(payload, key, out);
}

/// Appends a close frame. A reason longer than [`REASON_BYTES_MAX`] is cut at a character's border.
pub fn write_close(code: u16, reason: &str, key: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
    let mut payload = [0; CONTROL_BYTES_MAX];
    payload[..2].copy_from_slice(&code.to_be_bytes());
    payload[2..2 + reason.len()].copy_from_slice(reason.as_bytes());
    write_control(ControlKind::Close, &payload[..2 + reason.len()], key, out);
}

fn write_header(opcode: OpCode, bytes: usize, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let header = FrameHeader { opcode, mask, ..FrameHeader::default() };
    header.format(bytes as u64, out).expect("a Vec takes every write");
}

fn write_payload(payload: &[u8], key: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = key {
        mask(key, &mut out[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Option<[u8; 4]> = Some([1, 2, 3, 4]);

    /// Everything in `bytes`, fed in pieces of `piece`; the error at its end, if any.
    fn read(from: Sender, limit: usize, bytes: &[u8], piece: usize) -> (Vec<String>, Option<FrameError>) {
        let mut reader = FrameReader::new(from, limit);
        let mut seen = Vec::new();
        for part in bytes.chunks(piece) {
            reader.feed(part);
            loop {
                match reader.next() {
                    Ok(Some(event)) => seen.push(format!("{event:?}")),
                    Ok(None) => break,
                    Err(error) => return (seen, Some(error)),
                }
            }
        }
        (seen, None)
    }

    fn frame(first: u8, mask: bool, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first, payload.len() as u8 | if mask { 0x80 } else { 0 }];
        if mask {
            bytes.extend([9, 8, 7, 6]);
        }
        let at = bytes.len();
        bytes.extend_from_slice(payload);
        if mask {
            super::mask([9, 8, 7, 6], &mut bytes[at..]);
        }
        bytes
    }

    #[test]
    fn messages_of_all_lengths_come_however_they_are_cut() {
        for key in [None, KEY] {
            let from = if key.is_some() { Sender::Client } else { Sender::Server };
            // Miri takes minutes for a long one byte by byte.
            let longest = if cfg!(miri) { 1000 } else { 200_000 };
            for length in [0, 1, 125, 126, 127, 65_535, 65_536, 200_000].into_iter().filter(|length| *length <= longest)
            {
                let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
                let mut bytes = Vec::new();
                write_binary(&payload, key, &mut bytes);
                write_control(ControlKind::Ping, b"x", key, &mut bytes);
                write_control(ControlKind::Pong, b"", key, &mut bytes);
                write_close(4001, "why", key, &mut bytes);
                for piece in [1, 7, 4096, bytes.len()] {
                    let (seen, error) = read(from, 200_000, &bytes, piece);
                    assert_eq!(error, None);
                    assert_eq!(seen.len(), 4, "{length} {piece}");
                    assert_eq!(seen[0], format!("{:?}", Event::Binary(&payload)));
                    assert_eq!(seen[1], format!("{:?}", Event::Ping(b"x")));
                    assert_eq!(seen[3], format!("{:?}", Event::Close { code: Some(4001), reason: "why" }));
                }
            }
        }
    }

    #[test]
    fn an_unfragmented_message_is_lent_from_the_read_buffer() {
        let mut reader = FrameReader::new(Sender::Server, 1 << 20);
        let mut bytes = Vec::new();
        write_binary(&[5; 1000], None, &mut bytes);
        reader.space()[..bytes.len()].copy_from_slice(&bytes);
        reader.filled(bytes.len());
        let buffer = reader.buffer.as_ptr_range();
        let Ok(Some(Event::Binary(payload))) = reader.next() else { panic!("a message") };
        assert!(buffer.contains(&payload.as_ptr()));
    }

    #[test]
    fn parts_are_joined_and_control_frames_may_come_between() {
        let bytes = [
            frame(0x02, false, b"ab"),
            frame(0x89, false, b"p"),
            frame(0x00, false, b"cd"),
            frame(0x80, false, b"e"),
            frame(0x82, false, b"next"),
        ]
        .concat();
        for piece in [1, 100] {
            let (seen, error) = read(Sender::Server, 5, &bytes, piece);
            let expected = [Event::Ping(b"p"), Event::Binary(b"abcde"), Event::Binary(b"next")];
            assert_eq!((seen, error), (expected.map(|event| format!("{event:?}")).to_vec(), None));
        }
        let (_, error) = read(Sender::Server, 4, &bytes, 100);
        assert_eq!(error, Some(FrameError::TooBig { bytes: 5, limit: 4 }), "parts count together");
    }

    #[test]
    fn every_broken_rule_has_its_name() {
        let close = |payload: &[u8]| frame(0x88, false, payload);
        let cases: [(Vec<u8>, FrameError); 14] = [
            (frame(0xc2, false, b""), FrameError::ReservedBits),
            (frame(0x83, false, b""), FrameError::Opcode),
            (frame(0x8b, false, b""), FrameError::Opcode),
            (frame(0x82, true, b"a"), FrameError::Masked),
            (vec![0x89, 126, 0, 126], FrameError::ControlBytes { bytes: 126 }),
            (frame(0x09, false, b""), FrameError::ControlInParts),
            (vec![0x82, 126, 0, 5], FrameError::LengthForm),
            (frame(0x80, false, b"a"), FrameError::Continuation),
            ([frame(0x02, false, b"a"), frame(0x82, false, b"b")].concat(), FrameError::Interrupted),
            (frame(0x81, false, b"text"), FrameError::Text),
            (
                vec![0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255],
                FrameError::TooBig { bytes: u64::MAX, limit: 1000 },
            ),
            (close(&[3]), FrameError::CloseBytes),
            (close(&1005_u16.to_be_bytes()), FrameError::CloseCode { code: 1005 }),
            (close(&[3, 232, 0xff]), FrameError::CloseReason),
        ];
        for (bytes, error) in cases {
            let (seen, found) = read(Sender::Server, 1000, &bytes, 1);
            assert_eq!((seen.len(), found), (0, Some(error)), "{bytes:x?}");
        }
        let (_, found) = read(Sender::Client, 1000, &frame(0x82, false, b"a"), 1);
        assert_eq!(found, Some(FrameError::Unmasked));
        assert_eq!(FrameError::Text.close_code(), 1003);
    }

    #[test]
    fn nothing_is_read_after_a_close_or_an_error() {
        let bytes = [frame(0x88, false, b""), frame(0x82, false, b"late")].concat();
        let (seen, error) = read(Sender::Server, 100, &bytes, 1);
        assert_eq!((seen.len(), error), (1, None));
        let mut reader = FrameReader::new(Sender::Server, 100);
        reader.feed(&frame(0x81, false, b"text"));
        assert_eq!(reader.next(), Err(FrameError::Text));
        reader.feed(&frame(0x82, false, b"more"));
        assert_eq!(reader.next(), Err(FrameError::Text));
        reader.reset();
        reader.feed(&frame(0x82, false, b"more"));
        assert_eq!(reader.next(), Ok(Some(Event::Binary(b"more"))));
    }

    #[test]
    fn memory_follows_what_arrives_and_not_what_a_header_promises() {
        let mut reader = FrameReader::new(Sender::Server, 8 << 20);
        reader.feed(&[0x82, 127, 0, 0, 0, 0, 0, 0x80, 0, 0]);
        assert_eq!(reader.next(), Ok(None));
        reader.feed(&[0; 1000]);
        assert_eq!(reader.next(), Ok(None));
        assert!(reader.buffer.len() <= 3 * READ_AHEAD_BYTES, "{}", reader.buffer.len());
    }

    #[test]
    fn a_lent_buffer_comes_back_with_more() {
        let bytes = [frame(0x82, false, &[1; 120]), frame(0x89, false, b"p"), frame(0x82, false, b"next")].concat();
        for piece in [1, 7, 122, 1000] {
            let mut reader = FrameReader::new(Sender::Server, 1000);
            let mut seen = Vec::new();
            for part in bytes.chunks(piece) {
                let mut buffer = reader.lend();
                assert!(buffer.capacity() - buffer.len() >= part.len(), "room");
                assert_eq!(reader.next(), Ok(None), "nothing is read while the buffer is away");
                buffer.extend_from_slice(part);
                reader.give_back(buffer);
                while let Some(event) = reader.next().expect("legal") {
                    let binary = matches!(event, Event::Binary(_));
                    seen.push(if binary { reader.message().to_vec() } else { b"ping".to_vec() });
                }
            }
            assert_eq!(seen, [vec![1; 120], b"ping".to_vec(), b"next".to_vec()], "in pieces of {piece}");
        }
    }

    #[test]
    fn a_reader_of_short_messages_is_small() {
        let mut reader = FrameReader::new(Sender::Server, 1024);
        reader.feed(&[0; 16 << 10]);
        reader.skip(16 << 10);
        reader.shrink();
        assert_eq!(reader.memory_bytes(), 0);
        for _ in 0..1000 {
            reader.feed(&frame(0x89, false, &[1; 125]));
            assert!(matches!(reader.next(), Ok(Some(Event::Ping(_)))));
        }
        assert!(reader.memory_bytes() <= 4096, "{}", reader.memory_bytes());
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let mut bytes = Vec::new();
        write_close(1011, &"é".repeat(100), None, &mut bytes);
        let mut reader = FrameReader::new(Sender::Server, 100);
        reader.feed(&bytes);
        let Ok(Some(Event::Close { reason, .. })) = reader.next() else { panic!("a close") };
        assert_eq!(reason, "é".repeat(61));
    }
}
