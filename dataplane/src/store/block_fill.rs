//! One block while it is being filled: where the next record goes, and the index area that grows with it. Pure.

use crate::store::RecordMeta;
use crate::units::StreamId;
use crate::wire::block::{
    CHUNK_BYTES, CHUNK_ENTRY_BYTES, ChunkEntry, HEADER_BYTES, KEY_BYTES_MAX, RANGE_ENTRY_BYTES, RECORD_HEADER_BYTES,
    RangeClass, RangeEntry, RecordHeader, STREAM_ENTRY_BYTES, StampSource, chunk_checksum,
};
use crate::wire::segment::Messages;

/// What one more record can add to the index area: the open chunk's entry, a range, a stream with the longest key.
const RESERVE_BYTES: usize = CHUNK_ENTRY_BYTES + RANGE_ENTRY_BYTES + STREAM_ENTRY_BYTES + KEY_BYTES_MAX;

/// Bytes of a block that can never hold records.
pub(crate) const BLOCK_OVERHEAD_BYTES: usize = HEADER_BYTES + RESERVE_BYTES;

/// What the clock was when a block's records were stamped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockState {
    /// Where capture times come from.
    pub stamp_source: StampSource,
    /// Counts steps of the clock.
    pub epoch: u8,
    /// TAI − UTC in seconds; 0 means unset.
    pub tai_offset_s: i16,
}

/// A stream inside the block: for each class the chunk (plus one) that its newest range belongs to, and that range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalStream {
    pub(crate) stream: StreamId,
    chunk_tag: [u32; 3],
    range: [u32; 3],
}

/// The messages of one segment that are still to be appended.
pub(crate) struct Run<'a> {
    pub(crate) meta: RecordMeta,
    pub(crate) messages: Messages<'a>,
    pub(crate) left: u32,
}

/// The state of a block under way. Its vectors are reused from block to block.
#[derive(Debug)]
pub(crate) struct Fill {
    at: usize,
    capacity: usize,
    index_bytes: usize,
    chunk_begin: usize,
    chunk_records: u32,
    chunk_time: (i64, i64),
    pub(crate) chunks: Vec<ChunkEntry>,
    pub(crate) ranges: Vec<RangeEntry>,
    pub(crate) locals: Vec<LocalStream>,
    pub(crate) records: u32,
    pub(crate) data_records: u32,
    pub(crate) arrival_first: u64,
    pub(crate) begun: i64,
    pub(crate) clock: ClockState,
}

impl Fill {
    /// A fill of blocks of `capacity` bytes, its tables reserved for the usual case.
    pub(crate) fn new(capacity: usize) -> Fill {
        let chunks = capacity / CHUNK_BYTES + 2;
        Fill {
            at: HEADER_BYTES,
            capacity,
            index_bytes: 0,
            chunk_begin: HEADER_BYTES,
            chunk_records: 0,
            chunk_time: (i64::MAX, i64::MIN),
            chunks: Vec::with_capacity(chunks),
            ranges: Vec::with_capacity(chunks * 8),
            locals: Vec::with_capacity(64),
            records: 0,
            data_records: 0,
            arrival_first: 0,
            begun: 0,
            clock: ClockState::default(),
        }
    }

    /// Starts over for a block whose first record has this arrival index, at `now`.
    pub(crate) fn begin(&mut self, arrival_first: u64, now: i64, clock: ClockState) {
        self.at = HEADER_BYTES;
        self.index_bytes = 0;
        self.chunk_begin = HEADER_BYTES;
        self.chunk_records = 0;
        self.chunk_time = (i64::MAX, i64::MIN);
        self.chunks.clear();
        self.ranges.clear();
        self.locals.clear();
        self.records = 0;
        self.data_records = 0;
        self.arrival_first = arrival_first;
        self.begun = now;
        self.clock = clock;
    }

    /// Bytes of the records so far.
    pub(crate) fn records_bytes(&self) -> usize {
        self.at - HEADER_BYTES
    }

    /// Whether a body of this length still fits.
    #[inline]
    pub(crate) fn fits(&self, body_bytes: usize) -> bool {
        self.at + RECORD_HEADER_BYTES + body_bytes <= self.records_end()
    }

    #[inline]
    fn records_end(&self) -> usize {
        self.capacity.saturating_sub(self.index_bytes + RESERVE_BYTES)
    }

    /// Takes a stream into the block; returns its place in the block's table.
    pub(crate) fn add_stream(&mut self, stream: StreamId, key_bytes: usize) -> u16 {
        self.index_bytes += STREAM_ENTRY_BYTES + key_bytes;
        self.locals.push(LocalStream { stream, chunk_tag: [0; 3], range: [0; 3] });
        (self.locals.len() - 1) as u16
    }

    /// Appends one record that [`Fill::fits`].
    #[inline]
    pub(crate) fn push(&mut self, buffer: &mut [u8], local: u16, meta: &RecordMeta, body: &[u8]) {
        let header = record_header(local, meta, body.len());
        let last = header.sequence_last(body);
        self.at = put_record(buffer, self.at, &header, body);
        self.note(local, meta, meta.sequence, last, 1);
        if self.at - self.chunk_begin >= CHUNK_BYTES {
            self.close_chunk(buffer);
        }
    }

    /// Appends messages of `run` until it is done (true) or the block is full (false).
    pub(crate) fn push_run(&mut self, buffer: &mut [u8], local: u16, run: &mut Run<'_>) -> bool {
        loop {
            let (records_end, chunk_end) = (self.records_end(), self.chunk_begin + CHUNK_BYTES);
            let first = run.meta.sequence;
            let (mut at, mut full) = (self.at, false);
            while run.left > 0 && at < chunk_end {
                let mut after = run.messages;
                let Some(body) = after.next() else {
                    run.left = 0;
                    break;
                };
                if at + RECORD_HEADER_BYTES + body.len() > records_end {
                    full = true;
                    break;
                }
                at = put_record(buffer, at, &record_header(local, &run.meta, body.len()), body);
                run.messages = after;
                run.meta.sequence += 1;
                run.left -= 1;
            }
            self.at = at;
            let count = (run.meta.sequence - first) as u32;
            if count > 0 {
                self.note(local, &run.meta, first, run.meta.sequence - 1, count);
            }
            if at >= chunk_end {
                self.close_chunk(buffer);
            }
            if run.left == 0 || full {
                return run.left == 0;
            }
        }
    }

    /// Accounts `count` records of one stream, kind and time in the open chunk.
    #[inline]
    fn note(&mut self, local: u16, meta: &RecordMeta, first: u64, last: u64, count: u32) {
        self.records += count;
        self.data_records += if meta.kind.is_data() { count } else { 0 };
        self.chunk_records += count;
        self.chunk_time = (self.chunk_time.0.min(meta.capture_ns), self.chunk_time.1.max(meta.capture_ns));
        let class = RangeClass::of(meta.kind, meta.flags);
        let tag = self.chunks.len() as u32 + 1;
        let stream = &mut self.locals[usize::from(local)];
        if stream.chunk_tag[class as usize] == tag {
            let range = &mut self.ranges[stream.range[class as usize] as usize];
            range.count += count;
            range.min = range.min.min(first);
            range.max = range.max.max(last);
        } else {
            stream.chunk_tag[class as usize] = tag;
            stream.range[class as usize] = self.ranges.len() as u32;
            let chunk = self.chunks.len() as u16;
            self.ranges.push(RangeEntry { local, chunk, class, count, min: first, max: last });
            self.index_bytes += RANGE_ENTRY_BYTES;
        }
    }

    fn close_chunk(&mut self, buffer: &[u8]) {
        self.chunks.push(ChunkEntry {
            offset: (self.chunk_begin - HEADER_BYTES) as u32,
            records: self.chunk_records,
            time_min: self.chunk_time.0,
            time_max: self.chunk_time.1,
            checksum: chunk_checksum(&buffer[self.chunk_begin..self.at]),
        });
        self.index_bytes += CHUNK_ENTRY_BYTES;
        self.chunk_begin = self.at;
        self.chunk_records = 0;
        self.chunk_time = (i64::MAX, i64::MIN);
    }

    /// Closes the last chunk: no more records.
    pub(crate) fn finish(&mut self, buffer: &[u8]) {
        if self.chunk_records > 0 {
            self.close_chunk(buffer);
        }
    }

    /// Earliest and latest capture time of the finished block.
    pub(crate) fn times(&self) -> (i64, i64) {
        self.chunks.iter().fold((i64::MAX, i64::MIN), |(min, max), c| (min.min(c.time_min), max.max(c.time_max)))
    }
}

#[inline]
fn record_header(local: u16, meta: &RecordMeta, body_bytes: usize) -> RecordHeader {
    RecordHeader {
        kind: meta.kind,
        side: meta.side,
        flags: meta.flags,
        local,
        body_bytes: body_bytes as u32,
        sequence: meta.sequence,
        capture_ns: meta.capture_ns,
        send_ns: meta.send_ns,
    }
}

/// Copies header and body to byte `at`; returns the byte after.
#[inline]
fn put_record(buffer: &mut [u8], at: usize, header: &RecordHeader, body: &[u8]) -> usize {
    let end = at + RECORD_HEADER_BYTES + body.len();
    let (head, place) = buffer[at..end].split_at_mut(RECORD_HEADER_BYTES);
    head.copy_from_slice(&header.encode());
    place.copy_from_slice(body);
    end
}
