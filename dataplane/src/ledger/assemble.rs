//! Puts ledgers together from the messages of a stream, and verifies each: what a subscriber must reject, in one machine.

use xxhash_rust::xxh64::Xxh64;

use super::query::Range;
use super::unpack::{UnpackError, Unpacker};
use crate::wire::ledger::{
    Begin, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, ChunkHeader, Codec, End, LEDGER_BYTES_MAX, Message, MessageError,
    SEQUENCE_MAX, decode,
};

/// Most chunks of a ledger: the longest in the smallest chunks, and as many again for last ones that are smaller. What empty chunks make a
/// receiver keep is so bounded as well.
pub const CHUNKS_MAX: u32 = 2 * (LEDGER_BYTES_MAX / CHUNK_BYTES_MIN as u64) as u32;

/// What a subscriber takes at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a chunk, as sent and when unpacked. What is unpacked never exceeds the protocol's 8 MiB, whatever this says.
    pub chunk_bytes_max: usize,
    /// Bytes of a ledger.
    pub ledger_bytes_max: u64,
}

impl Limits {
    /// Limits as options state them. Bytes of a ledger: negative is none, 0 the protocol's. Bytes of a chunk: negative is none, 0 the
    /// protocol's; what is larger than a length can be is that.
    pub fn of_options(ledger_bytes: i64, chunk_bytes: i64) -> Limits {
        let ledger_bytes_max = match ledger_bytes {
            0 => LEDGER_BYTES_MAX,
            bytes => u64::try_from(bytes).unwrap_or(u64::MAX),
        };
        let chunk_bytes_max = match chunk_bytes {
            0 => CHUNK_BYTES_MAX,
            ..0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        Limits { chunk_bytes_max, ledger_bytes_max }
    }
}

impl Default for Limits {
    /// The protocol's own limits.
    fn default() -> Limits {
        Limits { chunk_bytes_max: CHUNK_BYTES_MAX, ledger_bytes_max: LEDGER_BYTES_MAX }
    }
}

/// A message that does not belong where it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AssemblyError {
    /// No message at all.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// More chunks than a ledger can have, whatever is in them.
    #[error("ledger {sequence} has more than {CHUNKS_MAX} chunks")]
    TooManyChunks {
        /// The ledger.
        sequence: u32,
    },
    /// Another ledger begins before the one at hand is complete.
    #[error("ledger {found} begins before ledger {open} is complete")]
    OtherBegin {
        /// The ledger at hand.
        open: u32,
        /// The one that begins.
        found: u32,
    },
    /// A chunk or an end without its beginning.
    #[error("{name} of ledger {found}, and no ledger is open")]
    NotOpen {
        /// CHUNK or END.
        name: &'static str,
        /// Its ledger.
        found: u32,
    },
    /// A chunk or an end of another ledger.
    #[error("{name} of ledger {found} inside ledger {open}")]
    OtherLedger {
        /// CHUNK or END.
        name: &'static str,
        /// The ledger at hand.
        open: u32,
        /// The message's.
        found: u32,
    },
    /// A chunk out of its turn.
    #[error("ledger {sequence}: chunk {found} came, chunk {expected} is next")]
    ChunkIndex {
        /// The ledger.
        sequence: u32,
        /// The chunk whose turn it is.
        expected: u32,
        /// The one that came.
        found: u32,
    },
    /// A chunk that cannot be unpacked.
    #[error("ledger {sequence}, chunk {index}: {error}")]
    Unpack {
        /// The ledger.
        sequence: u32,
        /// The chunk.
        index: u32,
        /// What is wrong with it.
        error: UnpackError,
    },
    /// A ledger over the limit.
    #[error("ledger {sequence} has {bytes} bytes or more: at most {limit} are taken")]
    LedgerBytes {
        /// The ledger.
        sequence: u32,
        /// Bytes so far.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Chunks are missing, or there were too many.
    #[error("ledger {sequence} ends after {stated} chunks, {received} came")]
    ChunkCount {
        /// The ledger.
        sequence: u32,
        /// END's count.
        stated: u32,
        /// Chunks that came.
        received: u32,
    },
    /// Another length than stated.
    #[error("ledger {sequence} ends with {stated} bytes, {received} came")]
    Bytes {
        /// The ledger.
        sequence: u32,
        /// END's length.
        stated: u64,
        /// Bytes that came.
        received: u64,
    },
    /// Two flows of one subscription do not agree.
    #[error("ledger {sequence} ends otherwise on one flow than on another")]
    EndsDiffer {
        /// The ledger.
        sequence: u32,
    },
    /// Other bytes than were sent.
    #[error(
        "ledger {sequence} has checksum {found:016x}, {stated:016x} is stated: its bytes are not those that were sent"
    )]
    Checksum {
        /// The ledger.
        sequence: u32,
        /// END's checksum.
        stated: u64,
        /// That of the bytes that came.
        found: u64,
    },
}

/// Another ledger than the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Gap {
    /// Not the one that was asked for.
    #[error("the stream begins with ledger {found}, requested was {requested}")]
    First {
        /// The start of the range.
        requested: u32,
        /// What came.
        found: u32,
    },
    /// Not the one after the last.
    #[error("ledger {found} after {last}")]
    Next {
        /// The last ledger.
        last: u32,
        /// What came.
        found: u32,
    },
    /// One that no range has.
    #[error("ledger {found}: sequences are 1 to {SEQUENCE_MAX}, up to the end of the range")]
    Outside {
        /// What came.
        found: u32,
    },
}

/// Why a stream is not taken further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// A message that breaks the protocol.
    #[error("protocol: {0}")]
    Protocol(#[from] AssemblyError),
    /// Ledgers are missing, or come twice.
    #[error("gap: {0}")]
    Gap(#[from] Gap),
}

/// A ledger that was verified. Its bytes are lent until the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ledger<'a> {
    /// Its sequence.
    pub sequence: u32,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The server's clock at its first byte, ns since the Unix epoch; 0 for what was not followed live.
    pub emit_start_ns: i64,
    /// The server's clock at its last byte; 0 as above.
    pub emit_end_ns: i64,
    /// Its checksum, XXH64.
    pub xxh64: u64,
    /// Chunks that it came in.
    pub chunks: u32,
    /// Bytes of its chunks as they were sent.
    pub packed_bytes: u64,
    /// Times that it was begun and not completed before.
    pub discarded_partials: u32,
}

impl Ledger<'_> {
    /// Whether it was followed live, so that its stamps measure something.
    pub fn is_live(&self) -> bool {
        self.emit_start_ns != 0 && self.emit_end_ns != 0
    }
}

struct Flow {
    sequence: u32,
    emit_start_ns: i64,
    chunks: u32,
    packed_bytes: u64,
}

/// What is told of a verified ledger beside its bytes.
#[derive(Clone, Copy)]
struct Verified {
    emit_start_ns: i64,
    end: End,
    packed_bytes: u64,
    discarded_partials: u32,
}

/// Puts the ledgers of a range together.
pub struct Assembler {
    range: Range,
    limits: Limits,
    unpacker: Unpacker,
    hash: Xxh64,
    /// The ledger at hand is `buffer[..filled]`; the rest is room that was used before.
    buffer: Vec<u8>,
    filled: usize,
    flow: Option<Flow>,
    verified: Option<Verified>,
    last: Option<u32>,
    discarded: u32,
}

/// Room that a raw chunk's worth of growth adds at least, so that small chunks do not grow the buffer each.
const GROW_BYTES: usize = 64 << 10;

impl Assembler {
    /// An assembler of a range.
    ///
    /// # Errors
    /// As zstd: no memory.
    pub fn new(range: Range, limits: Limits) -> std::io::Result<Assembler> {
        Ok(Assembler {
            range,
            limits,
            unpacker: Unpacker::new()?,
            hash: Xxh64::new(0),
            buffer: Vec::new(),
            filled: 0,
            flow: None,
            verified: None,
            last: None,
            discarded: 0,
        })
    }

    /// The range that was asked for at first.
    pub fn range(&self) -> Range {
        self.range
    }

    /// The last ledger that was verified.
    pub fn last(&self) -> Option<u32> {
        self.last
    }

    /// The ledger at hand.
    pub fn open(&self) -> Option<u32> {
        self.flow.as_ref().map(|flow| flow.sequence)
    }

    /// Whether nothing more is wanted: the range's end, or the last sequence there is, was verified.
    pub fn is_complete(&self) -> bool {
        let end = self.range.end().unwrap_or(SEQUENCE_MAX);
        self.last.is_some_and(|last| last >= end)
    }

    /// What is still wanted, to ask a server for. Asserts that the range is not complete.
    pub fn rest(&self) -> Range {
        assert!(!self.is_complete(), "nothing is wanted any more");
        match self.last {
            None => self.range,
            Some(last) => Range::new(last + 1, self.range.end()).expect("between a verified ledger and the end"),
        }
    }

    /// The connection is gone: what is not complete is dropped.
    pub fn cut(&mut self) {
        if self.flow.take().is_some() {
            self.discarded = self.discarded.saturating_add(1);
        }
    }

    /// Takes one message; the ledger, if that completed one.
    ///
    /// # Errors
    /// See [`StreamError`]. The stream is at its end then; nothing was given out that was not verified.
    pub fn take(&mut self, message: &[u8]) -> Result<Option<Ledger<'_>>, StreamError> {
        Ok(if self.push(message)? { self.verified() } else { None })
    }

    /// Takes one message; whether that completed a ledger, which [`Assembler::verified`] lends until the next message.
    ///
    /// # Errors
    /// As [`Assembler::take`].
    pub fn push(&mut self, message: &[u8]) -> Result<bool, StreamError> {
        self.verified = None;
        let message = decode(message).map_err(AssemblyError::from)?;
        self.push_decoded(&message, &mut |_| ())
    }

    /// As [`Assembler::push`], for a message that was read already. `tap` gets each message that has its place here: BEGIN and a chunk as
    /// soon as that is known, before the chunk is unpacked, so that whoever passes it on does not wait for that; END only when the
    /// ledger is verified.
    ///
    /// # Errors
    /// As [`Assembler::take`].
    pub fn push_decoded(
        &mut self,
        message: &Message<'_>,
        tap: &mut impl FnMut(&Message<'_>),
    ) -> Result<bool, StreamError> {
        self.verified = None;
        match message {
            Message::Begin(begin) => {
                self.begin(*begin)?;
                tap(message);
            }
            Message::Chunk(header, payload) => {
                self.place(header)?;
                tap(message);
                self.chunk(*header, payload)?;
            }
            Message::End(end) => {
                self.end(*end)?;
                tap(message);
            }
        }
        Ok(matches!(message, Message::End(_)))
    }

    /// A part of the ledger at hand came in vain: a flow of several begins it again.
    pub fn discarded(&mut self) {
        self.discarded = self.discarded.saturating_add(1);
    }

    /// The ledger that the last message completed.
    pub fn verified(&self) -> Option<Ledger<'_>> {
        let facts = self.verified?;
        Some(Ledger {
            sequence: facts.end.sequence,
            bytes: &self.buffer[..self.filled],
            emit_start_ns: facts.emit_start_ns,
            emit_end_ns: facts.end.emit_end_ns,
            xxh64: facts.end.xxh64,
            chunks: facts.end.chunks,
            packed_bytes: facts.packed_bytes,
            discarded_partials: facts.discarded_partials,
        })
    }

    /// Gives the buffer away whose first bytes are the ledger that the last message completed, and puts `other` in its place;
    /// [`Assembler::verified`] lends nothing from then on.
    pub fn exchange(&mut self, other: Vec<u8>) -> Vec<u8> {
        self.verified = None;
        std::mem::replace(&mut self.buffer, other)
    }

    fn begin(&mut self, begin: Begin) -> Result<(), StreamError> {
        let found = begin.sequence;
        match &self.flow {
            // The one legal beginning inside a ledger: it is sent again from its first byte.
            Some(flow) if flow.sequence == found => self.discarded = self.discarded.saturating_add(1),
            Some(flow) => return Err(AssemblyError::OtherBegin { open: flow.sequence, found }.into()),
            None => self.judge_next(found)?,
        }
        self.filled = 0;
        self.hash.reset(0);
        self.flow = Some(Flow { sequence: found, emit_start_ns: begin.emit_start_ns, chunks: 0, packed_bytes: 0 });
        Ok(())
    }

    fn judge_next(&self, found: u32) -> Result<(), Gap> {
        let requested = self.range.start();
        match self.last {
            Some(last) if last.checked_add(1) != Some(found) => return Err(Gap::Next { last, found }),
            None if requested != 0 && found != requested => return Err(Gap::First { requested, found }),
            _ => {}
        }
        let end = self.range.end().unwrap_or(SEQUENCE_MAX);
        if found == 0 || found > end { Err(Gap::Outside { found }) } else { Ok(()) }
    }

    /// Whether a chunk comes in its turn.
    fn place(&mut self, header: &ChunkHeader) -> Result<(), AssemblyError> {
        let flow = open_flow(&mut self.flow, "CHUNK", header.sequence)?;
        let (sequence, index, expected) = (header.sequence, header.index, flow.chunks);
        if index >= CHUNKS_MAX {
            return Err(AssemblyError::TooManyChunks { sequence });
        }
        if index == expected { Ok(()) } else { Err(AssemblyError::ChunkIndex { sequence, expected, found: index }) }
    }

    /// Unpacks a chunk that comes in its turn behind the others, and hashes it.
    fn chunk(&mut self, header: ChunkHeader, payload: &[u8]) -> Result<(), AssemblyError> {
        let flow = open_flow(&mut self.flow, "CHUNK", header.sequence)?;
        let (sequence, index) = (header.sequence, header.index);
        let limit = self.limits.ledger_bytes_max;
        let too_long = |bytes: usize| AssemblyError::LedgerBytes { sequence, bytes: bytes as u64, limit };
        let from = self.filled;
        let unpack = |error| AssemblyError::Unpack { sequence, index, error };
        let bytes = match header.codec {
            Codec::Raw => payload.len(),
            Codec::Zstd => {
                let most = self.limits.chunk_bytes_max.min(CHUNK_BYTES_MAX);
                // A frame says how much it holds; where it does not, or lies, there is room for the most it may.
                let stated = zstd::zstd_safe::get_frame_content_size(payload).ok().flatten();
                let room = stated.map_or(most, |stated| stated.min(most as u64) as usize);
                grow(&mut self.buffer, from + room);
                self.unpacker.unpack(payload, &mut self.buffer[from..from + room]).map_err(|error| {
                    // The limit that counts is the reader's, not the room that was made.
                    unpack(match error {
                        UnpackError::Frame { .. } => UnpackError::Frame { limit: most },
                        other => other,
                    })
                })?
            }
        };
        let end = from + bytes;
        if end as u64 > limit {
            return Err(too_long(end));
        }
        if header.codec == Codec::Raw {
            grow(&mut self.buffer, end);
            self.buffer[from..end].copy_from_slice(payload);
        }
        self.hash.update(&self.buffer[from..end]);
        self.filled = end;
        flow.chunks += 1;
        flow.packed_bytes += payload.len() as u64;
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<(), AssemblyError> {
        let flow = open_flow(&mut self.flow, "END", end.sequence)?;
        let (sequence, received) = (end.sequence, self.filled as u64);
        if end.chunks != flow.chunks {
            return Err(AssemblyError::ChunkCount { sequence, stated: end.chunks, received: flow.chunks });
        }
        if end.bytes != received {
            return Err(AssemblyError::Bytes { sequence, stated: end.bytes, received });
        }
        let found = self.hash.digest();
        if end.xxh64 != found {
            return Err(AssemblyError::Checksum { sequence, stated: end.xxh64, found });
        }
        self.verified = Some(Verified {
            emit_start_ns: flow.emit_start_ns,
            end,
            packed_bytes: flow.packed_bytes,
            discarded_partials: std::mem::take(&mut self.discarded),
        });
        self.flow = None;
        self.last = Some(sequence);
        Ok(())
    }
}

/// The flow that a message of ledger `found` belongs to.
fn open_flow<'a>(flow: &'a mut Option<Flow>, name: &'static str, found: u32) -> Result<&'a mut Flow, AssemblyError> {
    match flow {
        None => Err(AssemblyError::NotOpen { name, found }),
        Some(flow) if flow.sequence != found => Err(AssemblyError::OtherLedger { name, open: flow.sequence, found }),
        Some(flow) => Ok(flow),
    }
}

/// Makes room up to `end`; what was room once stays.
fn grow(buffer: &mut Vec<u8>, end: usize) {
    if buffer.len() < end {
        let more = end.max(buffer.len() + GROW_BYTES).max(buffer.len().saturating_mul(3) / 2);
        buffer.resize(more, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ledger::LEDGER_BYTES_MAX;
    use xxhash_rust::xxh64::xxh64;

    #[test]
    fn limits_are_read_as_the_peers_options() {
        let limits = |ledger, chunk| {
            let limits = Limits::of_options(ledger, chunk);
            (limits.ledger_bytes_max, limits.chunk_bytes_max)
        };
        assert_eq!(limits(0, 0), (LEDGER_BYTES_MAX, CHUNK_BYTES_MAX));
        assert_eq!(limits(-1, -1), (u64::MAX, usize::MAX));
        assert_eq!(limits(i64::MIN, i64::MIN), (u64::MAX, usize::MAX));
        assert_eq!(limits(7, 9), (7, 9));
        assert_eq!(crate::wire::ledger::message_bytes_max(limits(1, i64::MAX).1), i64::MAX as usize);
    }

    #[test]
    fn a_buffer_is_given_away_for_another() {
        let mut assembler = assembler(1, None);
        for sequence in 1..=2 {
            assembler.push(&begin(sequence)).expect("begins");
            assembler.push(&chunk(sequence, 0, Codec::Raw, &[sequence as u8; 100])).expect("fits");
            let end = End { sequence, chunks: 1, bytes: 100, emit_end_ns: 0, xxh64: xxh64(&[sequence as u8; 100], 0) };
            assert!(assembler.push(&end.encode()).expect("verified"));
            assert_eq!(&assembler.exchange(vec![9; 5])[..100], [sequence as u8; 100]);
            assert_eq!(assembler.verified(), None);
        }
    }

    fn assembler(start: u32, end: Option<u32>) -> Assembler {
        Assembler::new(Range::new(start, end).expect("a range"), Limits::default()).expect("zstd")
    }

    fn begin(sequence: u32) -> Vec<u8> {
        Begin { sequence, emit_start_ns: 5 }.encode().to_vec()
    }

    fn chunk(sequence: u32, index: u32, codec: Codec, payload: &[u8]) -> Vec<u8> {
        [&ChunkHeader { sequence, index, codec }.encode()[..], payload].concat()
    }

    fn end(sequence: u32, chunks: u32, ledger: &[u8]) -> Vec<u8> {
        let xxh64 = xxh64(ledger, 0);
        End { sequence, chunks, bytes: ledger.len() as u64, emit_end_ns: 6, xxh64 }.encode().to_vec()
    }

    /// A ledger of one raw chunk.
    fn whole(sequence: u32, ledger: &[u8]) -> Vec<Vec<u8>> {
        vec![begin(sequence), chunk(sequence, 0, Codec::Raw, ledger), end(sequence, 1, ledger)]
    }

    /// The ledgers that came out, and the error that ended them.
    fn run(assembler: &mut Assembler, messages: &[Vec<u8>]) -> (Vec<(u32, Vec<u8>)>, Option<StreamError>) {
        let mut ledgers = Vec::new();
        for message in messages {
            match assembler.take(message) {
                Ok(ledger) => ledgers.extend(ledger.map(|ledger| (ledger.sequence, ledger.bytes.to_vec()))),
                Err(error) => return (ledgers, Some(error)),
            }
        }
        (ledgers, None)
    }

    #[test]
    fn mixed_codecs_make_one_ledger() {
        let (one, two, three) = (vec![1; 10_000], b"raw".to_vec(), vec![2; 300_000]);
        let ledger = [&one[..], &two, b"", &three].concat();
        let messages = [
            begin(7),
            chunk(7, 0, Codec::Zstd, &zstd::bulk::compress(&one, 1).expect("packs")),
            chunk(7, 1, Codec::Raw, &two),
            chunk(7, 2, Codec::Raw, b""),
            chunk(7, 3, Codec::Zstd, &zstd::bulk::compress(&three, 1).expect("packs")),
            end(7, 4, &ledger),
        ];
        let mut assembler = assembler(7, None);
        for message in &messages[..5] {
            assert_eq!(assembler.take(message), Ok(None));
        }
        assert_eq!(assembler.open(), Some(7));
        let taken = assembler.take(&messages[5]).expect("verified").expect("whole");
        assert!(taken.bytes == ledger);
        assert_eq!((taken.sequence, taken.emit_start_ns, taken.emit_end_ns, taken.chunks), (7, 5, 6, 4));
        assert!(taken.packed_bytes < 1000 && taken.is_live() && taken.discarded_partials == 0);
        assert_eq!((assembler.last(), assembler.open()), (Some(7), None));
    }

    #[test]
    fn a_frame_that_does_not_state_its_size_is_taken_up_to_the_limit() {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("zstd");
        encoder.include_contentsize(false).expect("zstd");
        std::io::Write::write_all(&mut encoder, &[3; 100_000]).expect("packs");
        let packed = encoder.finish().expect("packs");
        assert!(matches!(zstd::zstd_safe::get_frame_content_size(&packed), Ok(None)));
        let messages = [begin(1), chunk(1, 0, Codec::Zstd, &packed), end(1, 1, &[3; 100_000])];
        assert_eq!(run(&mut assembler(1, None), &messages).0, [(1, vec![3; 100_000])]);
        let limits = Limits { chunk_bytes_max: 99_999, ..Limits::default() };
        let mut small = Assembler::new(Range::TIP, limits).expect("zstd");
        let error = AssemblyError::Unpack { sequence: 1, index: 0, error: UnpackError::Frame { limit: 99_999 } };
        assert_eq!(run(&mut small, &messages), (vec![], Some(error.into())));
    }

    #[test]
    fn many_packed_chunks_may_exceed_one_chunks_limit_together() {
        let part = vec![9; 256 << 10];
        let packed = zstd::bulk::compress(&part, 1).expect("packs");
        let mut messages = vec![begin(1)];
        messages.extend((0..80).map(|index| chunk(1, index, Codec::Zstd, &packed)));
        messages.push(end(1, 80, &part.repeat(80)));
        let (ledgers, error) = run(&mut assembler(1, None), &messages);
        assert_eq!((ledgers.len(), ledgers[0].1.len(), error), (1, 20 << 20, None));
    }

    #[test]
    fn a_ledger_that_is_begun_again_replaces_its_partial() {
        let messages =
            [vec![begin(3), chunk(3, 0, Codec::Raw, b"part")], whole(3, b"whole"), whole(4, b"next")].concat();
        let mut assembler = assembler(3, None);
        let mut partials = Vec::new();
        for message in &messages {
            if let Some(ledger) = assembler.take(message).expect("legal") {
                partials.push((ledger.bytes.to_vec(), ledger.discarded_partials));
            }
        }
        assert_eq!(partials, [(b"whole".to_vec(), 1), (b"next".to_vec(), 0)]);
    }

    #[test]
    fn every_message_out_of_its_place_ends_the_stream() {
        let ledger = b"ledger";
        let chunk0 = chunk(5, 0, Codec::Raw, ledger);
        let bad_zstd = AssemblyError::Unpack { sequence: 5, index: 0, error: UnpackError::NotOneFrame };
        let mut lying = end(5, 1, ledger);
        lying[33] ^= 1;
        let stated = xxh64(ledger, 0);
        let cases: Vec<(Vec<Vec<u8>>, AssemblyError)> = vec![
            (vec![vec![2, 0x10]], AssemblyError::Message(MessageError::Short { bytes: 2 })),
            (vec![begin(5), begin(6)], AssemblyError::OtherBegin { open: 5, found: 6 }),
            (vec![chunk0.clone()], AssemblyError::NotOpen { name: "CHUNK", found: 5 }),
            (vec![end(5, 0, b"")], AssemblyError::NotOpen { name: "END", found: 5 }),
            (
                vec![begin(5), chunk(6, 0, Codec::Raw, b"")],
                AssemblyError::OtherLedger { name: "CHUNK", open: 5, found: 6 },
            ),
            (vec![begin(5), end(6, 0, b"")], AssemblyError::OtherLedger { name: "END", open: 5, found: 6 }),
            (
                vec![begin(5), chunk(5, 1, Codec::Raw, b"")],
                AssemblyError::ChunkIndex { sequence: 5, expected: 0, found: 1 },
            ),
            (
                vec![begin(5), chunk0.clone(), chunk0.clone()],
                AssemblyError::ChunkIndex { sequence: 5, expected: 1, found: 0 },
            ),
            (vec![begin(5), chunk(5, 0, Codec::Zstd, b"not zstd")], bad_zstd),
            (
                vec![begin(5), chunk0.clone(), end(5, 2, ledger)],
                AssemblyError::ChunkCount { sequence: 5, stated: 2, received: 1 },
            ),
            (
                vec![begin(5), chunk0.clone(), end(5, 1, b"longer than that")],
                AssemblyError::Bytes { sequence: 5, stated: 16, received: 6 },
            ),
            (
                vec![begin(5), chunk0.clone(), lying],
                AssemblyError::Checksum { sequence: 5, stated: stated ^ 1, found: stated },
            ),
        ];
        for (messages, expected) in cases {
            let found = run(&mut assembler(5, None), &messages);
            assert_eq!(found, (vec![], Some(expected.into())), "nothing is given out");
        }
    }

    #[test]
    fn ledgers_come_in_order_or_not_at_all() {
        let first = |requested, found| Some(StreamError::Gap(Gap::First { requested, found }));
        let next = |last, found| Some(StreamError::Gap(Gap::Next { last, found }));
        let outside = |found| Some(StreamError::Gap(Gap::Outside { found }));
        assert_eq!(run(&mut assembler(5, None), &[begin(6)]).1, first(5, 6));
        assert_eq!(run(&mut assembler(5, None), &[begin(4)]).1, first(5, 4));
        let five = whole(5, b"x");
        for (found, error) in [(7, next(5, 7)), (5, next(5, 5)), (4, next(5, 4)), (6, None)] {
            assert_eq!(run(&mut assembler(5, None), &[five.clone(), vec![begin(found)]].concat()).1, error, "{found}");
        }
        assert_eq!(run(&mut assembler(0, None), &[begin(9)]).1, None, "the tip takes any first ledger");
        assert_eq!(run(&mut assembler(0, None), &[begin(0)]).1, outside(0));
        assert_eq!(run(&mut assembler(0, None), &[begin(u32::MAX)]).1, outside(u32::MAX));
        assert_eq!(run(&mut assembler(0, Some(4)), &[begin(5)]).1, outside(5));
        let last = [whole(SEQUENCE_MAX, b"x"), vec![begin(u32::MAX)]].concat();
        assert_eq!(run(&mut assembler(SEQUENCE_MAX, None), &last).1, outside(u32::MAX));
        assert_eq!(
            run(&mut assembler(SEQUENCE_MAX, None), &[whole(SEQUENCE_MAX, b"x"), vec![begin(0)]].concat()).1,
            next(SEQUENCE_MAX, 0)
        );
    }

    #[test]
    fn a_ledger_exactly_at_the_limit_passes_and_one_byte_more_does_not() {
        let limits = Limits { ledger_bytes_max: 10_000, ..Limits::default() };
        for codec in [Codec::Raw, Codec::Zstd] {
            for (bytes, passes) in [(10_000, true), (10_001, false)] {
                let ledger = vec![1; bytes];
                let payload = match codec {
                    Codec::Raw => ledger.clone(),
                    Codec::Zstd => zstd::bulk::compress(&ledger, 1).expect("packs"),
                };
                let mut assembler = Assembler::new(Range::TIP, limits).expect("zstd");
                let messages = [begin(1), chunk(1, 0, codec, &payload), end(1, 1, &ledger)];
                let (ledgers, error) = run(&mut assembler, &messages);
                assert_eq!((ledgers.len() == 1, error.is_none()), (passes, passes), "{codec:?} {bytes}");
            }
        }
        assert_eq!(Limits::default().ledger_bytes_max, LEDGER_BYTES_MAX);
    }

    #[test]
    fn the_rest_of_a_range_is_asked_for_after_a_cut() {
        let mut assembler = assembler(0, Some(9));
        assert_eq!(assembler.rest(), Range::new(0, Some(9)).expect("a range"), "nothing came: the tip again");
        run(&mut assembler, &[whole(8, b"x"), vec![begin(9), chunk(9, 0, Codec::Raw, b"part")]].concat());
        assembler.cut();
        assert_eq!(assembler.rest(), Range::new(9, Some(9)).expect("a range"));
        assert!(!assembler.is_complete());
        run(&mut assembler, &whole(9, b"y"));
        assert!(assembler.is_complete());
        let mut last = super::tests::assembler(SEQUENCE_MAX, None);
        run(&mut last, &whole(SEQUENCE_MAX, b"x"));
        assert!(last.is_complete(), "there is no ledger after the last");
    }

    #[test]
    fn the_buffer_is_lent_and_used_again() {
        let mut assembler = assembler(1, None);
        let mut places = Vec::new();
        for message in [whole(1, &[1; 100]), whole(2, &[2; 90])].concat() {
            places.extend(assembler.take(&message).expect("legal").map(|ledger| ledger.bytes.as_ptr()));
        }
        assert_eq!(places[0], places[1]);
    }
}
