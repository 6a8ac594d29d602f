//! Cuts a ledger into chunks as its bytes arrive, and hashes it on the way.
//!
//! The source reads straight into the chunk that is being filled; a full one leaves as a buffer that can become a message where
//! it lies. Chunks are always filled up, whatever the reads; only the last ones may be smaller.

use std::collections::VecDeque;

use xxhash_rust::xxh64::Xxh64;

use super::message::{HEADROOM, RawChunk};
use super::pool::{Buffer, Pool};
use crate::sync::prefetch::prefetch;
use crate::wire::ledger::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, End, LEDGER_BYTES_MAX};

/// Buffers that a chunker of its own keeps. An emission of 14.5 MiB makes 58 chunks of the default size; what is under way at
/// once is far less, so this is a bound and not a need.
const SPARES_MAX: usize = 64;

/// Bytes that are hashed between two looks ahead, each two of these blocks on. Longer ones overtake what they asked for.
const HASH_BLOCK_BYTES: usize = 512;

/// How a ledger is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    chunk_bytes: usize,
    tail_bytes: usize,
}

impl Cut {
    /// Chunks of `chunk_bytes`; where the ledger's length is known, its last chunk is cut into pieces of `tail_bytes`, which
    /// are sent while the rest still arrives.
    ///
    /// # Errors
    /// [`ChunkerError::ChunkBytes`], [`ChunkerError::TailBytes`].
    pub fn new(chunk_bytes: usize, tail_bytes: Option<usize>) -> Result<Cut, ChunkerError> {
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
            return Err(ChunkerError::ChunkBytes { bytes: chunk_bytes });
        }
        let tail_bytes = tail_bytes.unwrap_or(chunk_bytes);
        if !(CHUNK_BYTES_MIN..=chunk_bytes).contains(&tail_bytes) {
            return Err(ChunkerError::TailBytes { bytes: tail_bytes, chunk_bytes });
        }
        Ok(Cut { chunk_bytes, tail_bytes })
    }

    /// Bytes of a full chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Bytes of the chunk that begins where `left` bytes of the ledger are to come; `None`: nobody knows how many.
    fn next_bytes(&self, left: Option<u64>) -> usize {
        if left.is_some_and(|left| left <= self.chunk_bytes as u64) { self.tail_bytes } else { self.chunk_bytes }
    }

    /// Bytes of the buffer of a chunk: what a [`Pool`] for it has.
    pub fn buffer_bytes(&self) -> usize {
        HEADROOM + self.chunk_bytes
    }
}

/// Puts ledgers that lie in memory into the buffers of their chunks, before they are played.
#[derive(Clone, Debug)]
pub struct Layout {
    /// How they are cut.
    pub cut: Cut,
    /// Where the buffers are from: of [`Cut::buffer_bytes`].
    pub pool: Pool,
}

impl Layout {
    /// The chunks' buffers of a ledger that lies in memory, in order, as a [`Chunker`] that knows its length cuts it.
    pub fn lay_out(&self, ledger: &[u8]) -> VecDeque<Buffer> {
        let mut laying = self.begin(ledger.len());
        laying.push(ledger);
        laying.finish()
    }

    /// Begins a ledger of so many bytes, which come in parts.
    pub fn begin(&self, bytes: usize) -> Laying<'_> {
        Laying {
            layout: self,
            left: bytes,
            chunks: VecDeque::with_capacity(bytes / self.cut.chunk_bytes + 1),
            room: 0..0,
        }
    }
}

/// A ledger that is being laid out.
pub struct Laying<'a> {
    layout: &'a Layout,
    /// Bytes that are still to come.
    left: usize,
    chunks: VecDeque<Buffer>,
    /// What is free of the last chunk.
    room: std::ops::Range<usize>,
}

impl Laying<'_> {
    /// The next bytes. Asserts that no more come than were said.
    pub fn push(&mut self, mut part: &[u8]) {
        assert!(part.len() <= self.left, "a ledger is as long as was said");
        while !part.is_empty() {
            if self.room.is_empty() {
                let bytes = self.layout.cut.next_bytes(Some(self.left as u64)).min(self.left);
                self.room = HEADROOM..HEADROOM + bytes;
                // A piece of the tail in a buffer of a whole chunk: of the largest in the smallest there were 2,048, each of 8 MiB.
                let is_whole = bytes == self.layout.cut.chunk_bytes;
                let piece = || Buffer::from(vec![0; HEADROOM + bytes]);
                self.chunks.push_back(if is_whole { self.layout.pool.take() } else { piece() });
            }
            let (now, later) = part.split_at(part.len().min(self.room.len()));
            let chunk = self.chunks.back_mut().expect("one with room");
            chunk[self.room.start..self.room.start + now.len()].copy_from_slice(now);
            self.room.start += now.len();
            self.left -= now.len();
            part = later;
        }
    }

    /// The chunks. Asserts that all bytes came.
    pub fn finish(self) -> VecDeque<Buffer> {
        assert!(self.left == 0, "a ledger is as long as was said");
        self.chunks
    }
}

/// Why a ledger or a setting is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChunkerError {
    /// A chunk size outside of the protocol's.
    #[error("chunks of {bytes} bytes: {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} are possible")]
    ChunkBytes {
        /// The size.
        bytes: usize,
    },
    /// A tail size outside of what fits.
    #[error("last chunks of {bytes} bytes: {CHUNK_BYTES_MIN} to {chunk_bytes}, the size of all others")]
    TailBytes {
        /// The size.
        bytes: usize,
        /// The size of all others.
        chunk_bytes: usize,
    },
    /// A ledger over the protocol's limit.
    #[error("ledger {sequence} has {bytes} bytes or more: at most {LEDGER_BYTES_MAX} can be streamed")]
    LedgerBytes {
        /// The ledger.
        sequence: u32,
        /// Bytes declared, or seen so far.
        bytes: u64,
    },
    /// More or fewer bytes than the source had declared.
    #[error("ledger {sequence}: {bytes} bytes came, {declared} were declared")]
    Declared {
        /// The ledger.
        sequence: u32,
        /// Bytes that came (so far).
        bytes: u64,
        /// Bytes declared.
        declared: u64,
    },
}

/// Cuts one ledger after the other.
pub struct Chunker {
    cut: Cut,
    sequence: u32,
    declared: Option<u64>,
    bytes: u64,
    chunks: u32,
    hash: Xxh64,
    /// Empty between two chunks.
    buffer: Buffer,
    /// The buffer came with its bytes in it.
    adopted: bool,
    filled: usize,
    pool: Pool,
}

impl Chunker {
    /// A chunker without a ledger, with buffers of its own.
    pub fn new(cut: Cut) -> Chunker {
        Chunker::with_pool(cut, Pool::new(cut.buffer_bytes(), SPARES_MAX))
    }

    /// A chunker without a ledger, which takes its buffers from `pool`. Asserts that they are of [`Cut::buffer_bytes`].
    pub fn with_pool(cut: Cut, pool: Pool) -> Chunker {
        assert_eq!(pool.buffer_bytes(), cut.buffer_bytes(), "buffers for chunks of this size");
        Chunker {
            cut,
            sequence: 0,
            declared: None,
            bytes: 0,
            chunks: 0,
            hash: Xxh64::new(0),
            buffer: Buffer::default(),
            adopted: false,
            filled: 0,
            pool,
        }
    }

    /// A ledger begins; what was left of another is dropped. `declared` is its length where the source knows it.
    ///
    /// # Errors
    /// [`ChunkerError::LedgerBytes`] for a declared length over the limit.
    pub fn begin(&mut self, sequence: u32, declared: Option<u64>) -> Result<(), ChunkerError> {
        if let Some(bytes) = declared.filter(|&bytes| bytes > LEDGER_BYTES_MAX) {
            return Err(ChunkerError::LedgerBytes { sequence, bytes });
        }
        (self.sequence, self.declared, self.bytes, self.chunks, self.filled) = (sequence, declared, 0, 0, 0);
        self.adopted = false;
        self.hash.reset(0);
        Ok(())
    }

    /// Bytes of the ledger so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Room to read into, never empty: the rest of the chunk that is being filled.
    pub fn space(&mut self) -> &mut [u8] {
        let target = self.target();
        if self.buffer.is_empty() {
            self.buffer = self.pool.take();
        }
        // The last piece of a ledger may lie in a buffer of its own length.
        let end = (HEADROOM + target).min(self.buffer.len());
        &mut self.buffer[HEADROOM + self.filled..end]
    }

    /// Whether the next chunk may come in a buffer of its own: none is begun.
    pub fn takes_buffer(&self) -> bool {
        self.filled == 0 && !self.adopted
    }

    /// The next chunk's bytes are in `buffer` already, as [`Layout`] puts them: [`Chunker::filled`] tells how many of them count so
    /// far. Asserts that no chunk is begun, and that there is something in it.
    pub fn adopt(&mut self, buffer: Buffer) {
        assert!(self.takes_buffer() && buffer.len() > HEADROOM, "a chunk where one begins");
        (self.buffer, self.adopted) = (buffer, true);
    }

    /// Bytes that the chunk being filled will have, if the ledger has them.
    fn target(&self) -> usize {
        // Judged where the chunk begins, so that its size does not change while it is filled.
        self.cut.next_bytes(self.declared.map(|declared| declared.saturating_sub(self.bytes - self.filled as u64)))
    }

    /// The first `bytes` of [`Chunker::space`] were read; the chunk, if that filled it. Asserts that there was that much room.
    ///
    /// # Errors
    /// A ledger over the limit, or over its declared length: the run fails.
    pub fn filled(&mut self, bytes: usize) -> Result<Option<RawChunk>, ChunkerError> {
        let (from, target) = (HEADROOM + self.filled, self.target());
        assert!(self.filled + bytes <= target, "more was read than there was room for");
        self.update_hash(from, bytes);
        self.filled += bytes;
        self.bytes += bytes as u64;
        let (sequence, bytes) = (self.sequence, self.bytes);
        if bytes > LEDGER_BYTES_MAX {
            return Err(ChunkerError::LedgerBytes { sequence, bytes });
        }
        if let Some(declared) = self.declared.filter(|&declared| bytes > declared) {
            return Err(ChunkerError::Declared { sequence, bytes, declared });
        }
        Ok((self.filled == target).then(|| self.take()))
    }

    /// Hashes `bytes` of the buffer. What was laid out before is cold, and a processor that fetches ahead by itself begins anew on every page:
    /// asking for what comes next halves the time (docs/design/0034-huge-pages.md).
    fn update_hash(&mut self, from: usize, bytes: usize) {
        let piece = &self.buffer[from..from + bytes];
        if !self.adopted {
            return self.hash.update(piece);
        }
        let blocks = piece.chunks(HASH_BLOCK_BYTES);
        let mut ahead = piece.chunks(HASH_BLOCK_BYTES).skip(2);
        piece.chunks(HASH_BLOCK_BYTES).take(2).for_each(prefetch);
        for block in blocks {
            ahead.next().into_iter().for_each(prefetch);
            self.hash.update(block);
        }
    }

    /// Takes bytes that were read elsewhere, up to the end of a chunk; what is left stays in `input`.
    ///
    /// # Errors
    /// As [`Chunker::filled`].
    pub fn push(&mut self, input: &mut &[u8]) -> Result<Option<RawChunk>, ChunkerError> {
        let space = self.space();
        let taken = space.len().min(input.len());
        space[..taken].copy_from_slice(&input[..taken]);
        *input = &input[taken..];
        self.filled(taken)
    }

    /// The ledger is complete: its last chunk, if one is left, and END with that stamp.
    ///
    /// # Errors
    /// [`ChunkerError::Declared`] where bytes are missing.
    pub fn finish(&mut self, emit_end_ns: i64) -> Result<(Option<RawChunk>, End), ChunkerError> {
        let (sequence, bytes) = (self.sequence, self.bytes);
        if let Some(declared) = self.declared.filter(|&declared| bytes != declared) {
            return Err(ChunkerError::Declared { sequence, bytes, declared });
        }
        let last = (self.filled > 0).then(|| self.take());
        Ok((last, End { sequence, chunks: self.chunks, bytes, emit_end_ns, xxh64: self.hash.digest() }))
    }

    /// A buffer as long as a chunk's, to be packed into.
    pub fn spare(&self) -> Buffer {
        self.pool.take()
    }

    fn take(&mut self) -> RawChunk {
        let index = self.chunks;
        self.chunks += 1;
        self.adopted = false;
        RawChunk::new(std::mem::take(&mut self.buffer), std::mem::take(&mut self.filled), self.sequence, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::synthetic::{self, Shape};
    use xxhash_rust::xxh64::xxh64;

    const CHUNK: usize = 8192;

    fn chunker(tail_bytes: Option<usize>) -> Chunker {
        Chunker::new(Cut::new(CHUNK, tail_bytes).expect("a cut"))
    }

    /// The chunks' lengths, their bytes joined, and END.
    fn cut(
        chunker: &mut Chunker,
        sequence: u32,
        ledger: &[u8],
        declared: bool,
        reads: usize,
    ) -> (Vec<usize>, Vec<u8>, End) {
        chunker.begin(sequence, declared.then_some(ledger.len() as u64)).expect("begins");
        let mut chunks = Vec::new();
        for mut input in ledger.chunks(reads) {
            while !input.is_empty() {
                chunks.extend(chunker.push(&mut input).expect("fits"));
            }
        }
        let (last, end) = chunker.finish(77).expect("whole");
        chunks.extend(last);
        let mut joined = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            assert_eq!((chunk.sequence, chunk.index), (sequence, index as u32));
            joined.extend_from_slice(chunk.payload());
        }
        let lengths = chunks.iter().map(|chunk| chunk.payload().len()).collect();
        (lengths, joined, end)
    }

    #[test]
    fn chunks_are_full_whatever_the_reads() {
        let mut ledger = vec![0; 5 * CHUNK + 100];
        synthetic::write(1, Shape::Noise, &mut ledger);
        let mut chunker = chunker(None);
        for reads in [1, 7, 4096, CHUNK, 65_536] {
            for declared in [false, true] {
                let (lengths, joined, end) = cut(&mut chunker, 9, &ledger, declared, reads);
                assert_eq!(lengths, [CHUNK, CHUNK, CHUNK, CHUNK, CHUNK, 100]);
                assert!(joined == ledger);
                let xxh64 = xxh64(&ledger, 0);
                assert_eq!(end, End { sequence: 9, chunks: 6, bytes: ledger.len() as u64, emit_end_ns: 77, xxh64 });
            }
        }
    }

    #[test]
    fn the_running_hash_is_that_of_each_ledger_alone() {
        let mut chunker = chunker(None);
        for sequence in 1..=3 {
            let mut ledger = vec![0; 3 * CHUNK];
            synthetic::write(sequence, Shape::Noise, &mut ledger);
            let (_, _, end) = cut(&mut chunker, sequence, &ledger, false, 1000);
            assert_eq!(end.xxh64, xxh64(&ledger, 0));
            ledger.swap(10, 20_000);
            assert_ne!(end.xxh64, xxh64(&ledger, 0), "the order counts");
        }
    }

    #[test]
    fn a_known_length_gets_a_fine_tail() {
        let mut chunker = chunker(Some(4096));
        let ledger = vec![3; 2 * CHUNK + 5000];
        assert_eq!(cut(&mut chunker, 1, &ledger, true, 1000).0, [CHUNK, CHUNK, 4096, 904]);
        assert_eq!(cut(&mut chunker, 1, &ledger, false, 1000).0, [CHUNK, CHUNK, 5000]);
        assert_eq!(cut(&mut chunker, 1, &ledger[..2 * CHUNK], true, 1).0, [CHUNK, 4096, 4096]);
        assert_eq!(cut(&mut chunker, 1, &ledger[..10], true, 1).0, [10]);
        assert_eq!(cut(&mut chunker, 1, &[], true, 1).0, [0; 0]);
    }

    #[test]
    fn a_ledger_laid_out_before_is_cut_as_one_that_is_read() {
        let cut_so = Cut::new(CHUNK, Some(4096)).expect("a cut");
        let layout = Layout { cut: cut_so, pool: Pool::new(cut_so.buffer_bytes(), 9) };
        for bytes in [0, 1, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5000] {
            let mut ledger = vec![0; bytes];
            synthetic::write(1, Shape::Noise, &mut ledger);
            let read = cut(&mut chunker(Some(4096)), 1, &ledger, true, 1000);
            let (mut chunker, mut chunks) = (chunker(Some(4096)), Vec::new());
            chunker.begin(1, Some(bytes as u64)).expect("begins");
            let mut laid = layout.lay_out(&ledger);
            while chunker.bytes() < bytes as u64 {
                if chunker.takes_buffer() {
                    chunker.adopt(laid.pop_front().expect("a buffer for each chunk"));
                }
                let left = bytes - chunker.bytes() as usize;
                let piece = chunker.space().len().min(left).min(1500);
                chunks.extend(chunker.filled(piece).expect("fits"));
            }
            assert!(laid.is_empty());
            let (last, end) = chunker.finish(77).expect("whole");
            chunks.extend(last);
            let lengths: Vec<usize> = chunks.iter().map(|chunk| chunk.payload().len()).collect();
            let joined: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.payload().to_vec()).collect();
            assert_eq!((lengths, joined, end), read, "{bytes} bytes");
        }
    }

    #[test]
    fn a_fine_tail_of_a_large_chunk_takes_no_more_memory_than_it_has_bytes() {
        let cut = Cut::new(CHUNK_BYTES_MAX, Some(CHUNK_BYTES_MIN)).expect("a cut");
        let laid = Layout { cut, pool: Pool::new(cut.buffer_bytes(), 1) }.lay_out(&vec![1; CHUNK_BYTES_MAX + 100]);
        assert_eq!(laid.len(), 2, "one whole, and its rest");
        let laid = Layout { cut, pool: Pool::new(cut.buffer_bytes(), 1) }.lay_out(&vec![1; CHUNK_BYTES_MAX]);
        assert_eq!(laid.len(), CHUNK_BYTES_MAX / CHUNK_BYTES_MIN);
        let bytes: usize = laid.iter().map(|buffer| buffer.len()).sum();
        assert_eq!(bytes, CHUNK_BYTES_MAX + laid.len() * HEADROOM);
    }

    #[test]
    fn sizes_and_lengths_are_judged() {
        for bytes in [0, CHUNK_BYTES_MIN - 1, CHUNK_BYTES_MAX + 1] {
            assert_eq!(Cut::new(bytes, None), Err(ChunkerError::ChunkBytes { bytes }));
        }
        assert!(Cut::new(CHUNK, Some(CHUNK + 1)).is_err() && Cut::new(CHUNK, Some(1)).is_err());
        let mut chunker = chunker(None);
        let bytes = LEDGER_BYTES_MAX + 1;
        assert_eq!(chunker.begin(5, Some(bytes)), Err(ChunkerError::LedgerBytes { sequence: 5, bytes }));
        chunker.begin(5, Some(10)).expect("begins");
        assert!(chunker.push(&mut &[0; 9][..]).expect("fits").is_none());
        let declared = |bytes| ChunkerError::Declared { sequence: 5, bytes, declared: 10 };
        assert_eq!(chunker.finish(0).expect_err("short"), declared(9));
        assert_eq!(chunker.push(&mut &[0; 2][..]).expect_err("long"), declared(11));
    }

    #[test]
    fn a_ledger_without_a_length_is_cut_off_at_the_limit() {
        let mut chunker = Chunker::new(Cut::new(CHUNK_BYTES_MAX, None).expect("a cut"));
        chunker.begin(5, None).expect("begins");
        let mut took = 0;
        let error = loop {
            let bytes = chunker.space().len();
            match chunker.filled(bytes) {
                Ok(chunk) => drop(chunk.expect("full")),
                Err(error) => break error,
            }
            took += bytes as u64;
        };
        assert_eq!(took, LEDGER_BYTES_MAX, "exactly at the limit passes");
        assert_eq!(error.to_string(), "ledger 5 has 276824064 bytes or more: at most 268435456 can be streamed");
    }
}
