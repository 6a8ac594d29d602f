//! The `.tri` format: block headers, records, the index area of a block, segment header and footer.
//!
//! Everything is little-endian and ours; `docs/formats/tri.md` describes it byte by byte. A segment file is a run of
//! blocks, each beginning on a 4 KiB boundary with the same 128-byte header. The header's checksum covers the header
//! and the block's *index area*; the index area holds a checksum of each *chunk* (about 16 KiB) of the records. So a
//! reader can trust a block's index without reading its records, and a record after reading one chunk.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

use crate::units::{SIDES_MAX, Side};

/// Blocks begin on this boundary and are padded to it: the largest logical sector of the disks in use, and what
/// O_DIRECT asks of offset, length and address.
pub const SECTOR_BYTES: usize = 4096;
/// Bytes of the header that every block begins with.
pub const HEADER_BYTES: usize = 128;
/// Bytes before each record's body.
pub const RECORD_HEADER_BYTES: usize = 32;
/// A chunk of records ends with the first record at or beyond this many bytes. Small, because a query reads and
/// checks one whole chunk; large, because each chunk costs an index entry and a hash start (measured: `docs/design`).
pub const CHUNK_BYTES: usize = 16 * 1024;
/// Largest block that a reader accepts: it bounds what a damaged length can make a reader allocate.
pub const BLOCK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Smallest block that a writer may be set to: header, one record and its index entries.
pub const BLOCK_BYTES_MIN: usize = 8 * 1024;
/// Longest stream key. The longest of ours has 40 bytes; a raw stream's key also holds a feed name.
pub const KEY_BYTES_MAX: usize = 256;
/// Most streams in one block; a block that would need more is sealed early. Bounds a reader's table.
pub const BLOCK_STREAMS_MAX: usize = 1024;
/// Largest body of a record: its length has 24 bits.
pub const BODY_BYTES_MAX: usize = (1 << 24) - 1;
/// Bytes of one entry of the chunk table.
pub const CHUNK_ENTRY_BYTES: usize = 40;
/// Bytes of one entry of the range table.
pub const RANGE_ENTRY_BYTES: usize = 24;
/// Bytes of one entry of the stream table, before the key.
pub const STREAM_ENTRY_BYTES: usize = 8;
/// The version that this code writes, and the only one that it reads.
pub const VERSION: u16 = 1;
/// `send_ns` of a record whose protocol has no send time.
pub const NO_TIME: i64 = i64::MIN;
/// First bytes of every block.
pub const MAGIC: [u8; 8] = *b"TRIBLOCK";
/// First bytes of the trailer of a sealed segment.
pub const TRAILER_MAGIC: [u8; 8] = *b"TRISEALD";
/// Bytes of the trailer: the last of a sealed segment.
pub const TRAILER_BYTES: usize = 64;
/// Record flag: the message was inside a recorded gap and came after it had been declared.
pub const FLAG_LATE_FILL: u16 = 1;
/// Record flags have twelve bits.
pub const FLAGS_MASK: u16 = 0x0fff;

const FOOTER_HEAD_BYTES: usize = 64;
const BLOCK_ENTRY_BYTES: usize = 72;
const SEGMENT_RANGE_BYTES: usize = 32;
const SEGMENT_BODY_BYTES: usize = 64;
/// The header's checksum covers what follows it in the header, then the index area.
const CHECKED_FROM: usize = 24;

/// Why bytes are not what the format says.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// No block begins here.
    #[error("no block header (magic)")]
    Magic,
    /// A version that this build does not read.
    #[error("format version {0}; this build reads {VERSION}")]
    Version(u16),
    /// A header field outside its limits.
    #[error("block header field {name} = {value} is out of range")]
    Field {
        /// The field.
        name: &'static str,
        /// What it holds.
        value: u64,
    },
    /// Header or index area changed.
    #[error("checksum of block header and index differs")]
    Checksum,
    /// A chunk of the records changed.
    #[error("checksum of chunk {0} differs")]
    Chunk(u32),
    /// The index area does not parse.
    #[error("block index does not parse: {0}")]
    Index(&'static str),
    /// A record does not parse.
    #[error("record at byte {0} of the block's records does not parse")]
    Record(u32),
    /// The compressed records do not unpack to the stated size.
    #[error("compressed records do not unpack")]
    Codec,
    /// Fewer bytes than the structure needs.
    #[error("cut short: {have} of {need} bytes")]
    Short {
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
}

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BlockKind {
    /// The first block of a file: what the segment is.
    Segment = 1,
    /// Records.
    Records = 2,
    /// The index of a sealed segment.
    Footer = 3,
}

/// How a block's records are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    #[default]
    None = 0,
    /// One zstd frame.
    Zstd = 1,
}

/// Where capture times come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum StampSource {
    /// Not said.
    #[default]
    Unknown = 0,
    /// The stamps of a capture file.
    File = 1,
    /// The kernel's clock, when the XDP program ran.
    Software = 2,
    /// The NIC's clock.
    Hardware = 3,
}

impl StampSource {
    /// The source's name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            StampSource::Unknown => "unknown",
            StampSource::File => "file",
            StampSource::Software => "software",
            StampSource::Hardware => "hardware",
        }
    }

    fn from_u8(value: u8) -> Option<StampSource> {
        Some(match value {
            0 => StampSource::Unknown,
            1 => StampSource::File,
            2 => StampSource::Software,
            3 => StampSource::Hardware,
            _ => return None,
        })
    }
}

/// What a record says. 1 to 5 are numbered as in the published ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// A merged message; the body is the message's.
    Message = 1,
    /// A residual gap: `sequence` is its first, the body's first eight bytes its last.
    Gap = 2,
    /// A stream begins; `sequence` is its base, the body its key.
    StreamBegin = 3,
    /// A stream ends.
    StreamEnd = 4,
    /// A side went silent or came back; the body is one byte, 1 when live.
    SideState = 5,
    /// A raw frame of one side; `sequence` counts the side's frames.
    Raw = 6,
    /// Records that the store itself had to drop: first in `sequence`, last in the body, then one byte of cause.
    Lost = 7,
}

impl RecordKind {
    /// The kind with this number.
    pub fn from_u8(value: u8) -> Option<RecordKind> {
        Some(match value {
            1 => RecordKind::Message,
            2 => RecordKind::Gap,
            3 => RecordKind::StreamBegin,
            4 => RecordKind::StreamEnd,
            5 => RecordKind::SideState,
            6 => RecordKind::Raw,
            7 => RecordKind::Lost,
            _ => return None,
        })
    }

    /// The kind's name in CSV and JSON.
    pub fn name(self) -> &'static str {
        match self {
            RecordKind::Message => "message",
            RecordKind::Gap => "gap",
            RecordKind::StreamBegin => "stream_begin",
            RecordKind::StreamEnd => "stream_end",
            RecordKind::SideState => "side_state",
            RecordKind::Raw => "raw",
            RecordKind::Lost => "lost",
        }
    }

    /// Whether the record carries data of the feed: what conservation counts as messages.
    pub fn is_data(self) -> bool {
        matches!(self, RecordKind::Message | RecordKind::Raw)
    }
}

/// Which list of ranges a record belongs to. Kept apart so that the first is in order and can be searched in halves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum RangeClass {
    /// Messages and raw frames.
    Data = 0,
    /// Late fills.
    Late = 1,
    /// All that is not data: gaps, begins, ends, states, losses.
    Mark = 2,
}

impl RangeClass {
    /// The class with this number.
    pub fn from_u8(value: u8) -> Option<RangeClass> {
        Some(match value {
            0 => RangeClass::Data,
            1 => RangeClass::Late,
            2 => RangeClass::Mark,
            _ => return None,
        })
    }

    /// The class of a record.
    #[inline]
    pub fn of(kind: RecordKind, flags: u16) -> RangeClass {
        match kind {
            RecordKind::Message | RecordKind::Raw if flags & FLAG_LATE_FILL == 0 => RangeClass::Data,
            RecordKind::Message | RecordKind::Raw => RangeClass::Late,
            _ => RangeClass::Mark,
        }
    }
}

/// The header of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// What the block holds.
    pub kind: BlockKind,
    /// How its records are stored.
    pub codec: Codec,
    /// Where capture times come from.
    pub stamp_source: StampSource,
    /// Counts steps of the clock: times are comparable only inside one epoch.
    pub clock_epoch: u8,
    /// TAI − UTC in seconds as the kernel held it; 0 means unset.
    pub tai_offset_s: i16,
    /// The segment's identity. A block whose UUID differs from the segment's is stale.
    pub uuid: [u8; 16],
    /// The segment's number in its store.
    pub segment_number: u64,
    /// The block's number in its segment; the segment header is 0.
    pub block_index: u32,
    /// Records in the block.
    pub record_count: u32,
    /// Bytes of the records as stored, directly after the header.
    pub records_bytes: u32,
    /// Bytes of the records, unpacked.
    pub records_raw_bytes: u32,
    /// Bytes of the index area, directly after the records.
    pub index_bytes: u32,
    /// Entries of the chunk table.
    pub chunk_count: u16,
    /// Entries of the stream table.
    pub stream_count: u16,
    /// Entries of the range table.
    pub range_count: u32,
    /// Arrival index of the first record. Arrival indexes count all that was offered to the store.
    pub arrival_first: u64,
    /// Arrival index of the last record.
    pub arrival_last: u64,
    /// Earliest capture time, UTC ns.
    pub time_min: i64,
    /// Latest capture time, UTC ns.
    pub time_max: i64,
}

impl BlockHeader {
    /// Header, records and index area: what the block's checksum and chunks cover, before padding.
    pub fn block_bytes(&self) -> usize {
        HEADER_BYTES + self.records_bytes as usize + self.index_bytes as usize
    }

    /// Bytes of the file that the block takes.
    pub fn padded_bytes(&self) -> usize {
        pad(self.block_bytes())
    }

    /// Writes the header over the first [`HEADER_BYTES`] of `block`, whose index area must already be in its place,
    /// and then the checksum.
    pub fn seal(&self, block: &mut [u8]) {
        let mut put = Put { bytes: &mut block[..HEADER_BYTES], at: CHECKED_FROM };
        put.u16(VERSION);
        put.u8(self.kind as u8);
        put.u8(self.codec as u8);
        put.u8(self.stamp_source as u8);
        put.u8(self.clock_epoch);
        put.bytes(&self.tai_offset_s.to_le_bytes());
        put.u64(self.segment_number);
        put.bytes(&[0; 8]);
        put.bytes(&self.uuid);
        put.u32(self.block_index);
        put.u32(self.record_count);
        put.u32(self.records_bytes);
        put.u32(self.records_raw_bytes);
        put.u32(self.index_bytes);
        put.u16(self.chunk_count);
        put.u16(self.stream_count);
        put.u32(self.range_count);
        put.u64(self.arrival_first);
        put.u64(self.arrival_last);
        put.bytes(&self.time_min.to_le_bytes());
        put.bytes(&self.time_max.to_le_bytes());
        put.u32(0);
        assert!(put.at == HEADER_BYTES, "the header's fields fill it");
        let index_at = HEADER_BYTES + self.records_bytes as usize;
        let sum = header_checksum(&block[..HEADER_BYTES], &block[index_at..index_at + self.index_bytes as usize]);
        block[..8].copy_from_slice(&MAGIC);
        block[8..24].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads a header and checks each field's limits, not the checksum.
    pub fn parse(bytes: &[u8]) -> Result<BlockHeader, BlockError> {
        if bytes.len() < HEADER_BYTES {
            return Err(BlockError::Short { need: HEADER_BYTES as u64, have: bytes.len() as u64 });
        }
        if bytes[..8] != MAGIC {
            return Err(BlockError::Magic);
        }
        let mut get = Get { bytes: &bytes[..HEADER_BYTES], at: CHECKED_FROM };
        let version = get.u16();
        if version != VERSION {
            return Err(BlockError::Version(version));
        }
        let (kind, codec, stamp_source, clock_epoch) = (get.u8(), get.u8(), get.u8(), get.u8());
        let tai_offset_s = get.u16() as i16;
        let segment_number = get.u64();
        get.at += 8;
        let field = |name, value: u64| BlockError::Field { name, value };
        let header = BlockHeader {
            kind: match kind {
                1 => BlockKind::Segment,
                2 => BlockKind::Records,
                3 => BlockKind::Footer,
                _ => return Err(field("kind", kind.into())),
            },
            codec: match codec {
                0 => Codec::None,
                1 => Codec::Zstd,
                _ => return Err(field("codec", codec.into())),
            },
            stamp_source: StampSource::from_u8(stamp_source).ok_or(field("stamp_source", stamp_source.into()))?,
            clock_epoch,
            tai_offset_s,
            segment_number,
            uuid: get.array(),
            block_index: get.u32(),
            record_count: get.u32(),
            records_bytes: get.u32(),
            records_raw_bytes: get.u32(),
            index_bytes: get.u32(),
            chunk_count: get.u16(),
            stream_count: get.u16(),
            range_count: get.u32(),
            arrival_first: get.u64(),
            arrival_last: get.u64(),
            time_min: get.u64() as i64,
            time_max: get.u64() as i64,
        };
        header.limits()?;
        Ok(header)
    }

    fn limits(&self) -> Result<(), BlockError> {
        let field = |name, value: u64| Err(BlockError::Field { name, value });
        let most = BLOCK_BYTES_MAX as u64;
        if self.kind != BlockKind::Records {
            // A footer's size follows the segment's; the file's end bounds it.
            return if self.records_bytes != 0 { field("records_bytes", self.records_bytes.into()) } else { Ok(()) };
        }
        if self.block_bytes() as u64 > most {
            return field("records_bytes", self.records_bytes.into());
        }
        if u64::from(self.records_raw_bytes) > most
            || (self.codec == Codec::None && self.records_raw_bytes != self.records_bytes)
        {
            return field("records_raw_bytes", self.records_raw_bytes.into());
        }
        let records_most = self.records_raw_bytes as usize / RECORD_HEADER_BYTES;
        if self.record_count == 0 || self.record_count as usize > records_most {
            return field("record_count", self.record_count.into());
        }
        if self.arrival_last.wrapping_sub(self.arrival_first) != u64::from(self.record_count) - 1 {
            return field("arrival_last", self.arrival_last);
        }
        if self.tables_bytes() > self.index_bytes as usize {
            return field("index_bytes", self.index_bytes.into());
        }
        Ok(())
    }

    /// Bytes of the index area's tables, without the streams' keys.
    fn tables_bytes(&self) -> usize {
        usize::from(self.chunk_count) * CHUNK_ENTRY_BYTES
            + self.range_count as usize * RANGE_ENTRY_BYTES
            + usize::from(self.stream_count) * STREAM_ENTRY_BYTES
    }

    /// Checks `header` (its [`HEADER_BYTES`] as read) and `index` against the checksum.
    pub fn check(header: &[u8], index: &[u8]) -> Result<(), BlockError> {
        let stated: [u8; 16] = header[8..24].try_into().expect("sixteen bytes");
        if header_checksum(header, index).to_le_bytes() == stated { Ok(()) } else { Err(BlockError::Checksum) }
    }
}

fn header_checksum(header: &[u8], index: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&header[CHECKED_FROM..HEADER_BYTES]);
    hash.update(index);
    hash.digest128()
}

/// The next multiple of [`SECTOR_BYTES`].
pub fn pad(bytes: usize) -> usize {
    bytes.next_multiple_of(SECTOR_BYTES)
}

/// One chunk of a block's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkEntry {
    /// First byte, from the start of the unpacked records.
    pub offset: u32,
    /// Records in the chunk.
    pub records: u32,
    /// Earliest capture time, UTC ns.
    pub time_min: i64,
    /// Latest capture time, UTC ns.
    pub time_max: i64,
    /// XXH3-128 of the chunk's unpacked bytes.
    pub checksum: u128,
}

impl ChunkEntry {
    /// Appends the entry's bytes.
    pub fn encode(&self, out: &mut [u8]) {
        let mut put = Put { bytes: out, at: 0 };
        put.u32(self.offset);
        put.u32(self.records);
        put.u64(self.time_min as u64);
        put.u64(self.time_max as u64);
        put.bytes(&self.checksum.to_le_bytes());
    }
}

/// The sequences of one stream and class in one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeEntry {
    /// Place of the stream in the block's stream table.
    pub local: u16,
    /// The chunk.
    pub chunk: u16,
    /// Which list it belongs to.
    pub class: RangeClass,
    /// Records.
    pub count: u32,
    /// Lowest sequence.
    pub min: u64,
    /// Highest sequence (a gap's last).
    pub max: u64,
}

impl RangeEntry {
    /// Writes the entry's [`RANGE_ENTRY_BYTES`].
    pub fn encode(&self, out: &mut [u8]) {
        let mut put = Put { bytes: out, at: 0 };
        put.u16(self.local);
        put.u16(self.chunk | (self.class as u16) << 14);
        put.u32(self.count);
        put.u64(self.min);
        put.u64(self.max);
    }
}

/// The parsed index area of a block of records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockIndex {
    /// The chunks, in order.
    pub chunks: Vec<ChunkEntry>,
    /// Sequence ranges per (chunk, stream, class), in order of their first record.
    pub ranges: Vec<RangeEntry>,
    /// The streams that the block uses: (segment-local id, key).
    pub streams: Vec<(u32, String)>,
}

impl BlockIndex {
    /// Parses the index area that `header` describes. Call [`BlockHeader::check`] first.
    pub fn parse(header: &BlockHeader, index: &[u8]) -> Result<BlockIndex, BlockError> {
        if index.len() != header.index_bytes as usize {
            return Err(BlockError::Short { need: header.index_bytes.into(), have: index.len() as u64 });
        }
        // A header of records has passed this already; one of another kind has not.
        if header.kind != BlockKind::Records || header.tables_bytes() > index.len() {
            return Err(BlockError::Index("not a block of records"));
        }
        let mut get = Get { bytes: index, at: 0 };
        let mut out = BlockIndex::default();
        for _ in 0..header.chunk_count {
            out.chunks.push(ChunkEntry {
                offset: get.u32(),
                records: get.u32(),
                time_min: get.u64() as i64,
                time_max: get.u64() as i64,
                checksum: u128::from_le_bytes(get.array()),
            });
        }
        for _ in 0..header.range_count {
            let (local, place) = (get.u16(), get.u16());
            let class = RangeClass::from_u8((place >> 14) as u8).ok_or(BlockError::Index("range class"))?;
            out.ranges.push(RangeEntry {
                local,
                chunk: place & 0x3fff,
                class,
                count: get.u32(),
                min: get.u64(),
                max: get.u64(),
            });
        }
        for _ in 0..header.stream_count {
            out.streams.push(stream_entry(&mut get)?);
        }
        out.consistent(header)?;
        Ok(out)
    }

    fn consistent(&self, header: &BlockHeader) -> Result<(), BlockError> {
        let mut next = 0;
        for chunk in &self.chunks {
            if chunk.offset < next || (next == 0) != (chunk.offset == 0) || chunk.offset >= header.records_raw_bytes {
                return Err(BlockError::Index("chunk offset"));
            }
            next = chunk.offset.max(1);
        }
        let records: u64 = self.chunks.iter().map(|chunk| u64::from(chunk.records)).sum();
        if records != u64::from(header.record_count) {
            return Err(BlockError::Index("chunk records"));
        }
        for range in &self.ranges {
            if usize::from(range.local) >= self.streams.len() || usize::from(range.chunk) >= self.chunks.len() {
                return Err(BlockError::Index("range place"));
            }
        }
        Ok(())
    }

    /// The bytes of chunk `number` inside the unpacked records.
    pub fn chunk_span(&self, header: &BlockHeader, number: usize) -> std::ops::Range<usize> {
        let end = self.chunks.get(number + 1).map_or(header.records_raw_bytes, |next| next.offset);
        self.chunks[number].offset as usize..end as usize
    }

    /// Checks the bytes of chunk `number`.
    pub fn check_chunk(&self, number: usize, bytes: &[u8]) -> Result<(), BlockError> {
        if chunk_checksum(bytes) == self.chunks[number].checksum {
            Ok(())
        } else {
            Err(BlockError::Chunk(number as u32))
        }
    }
}

/// The checksum of a chunk's bytes: XXH3-128.
#[inline]
pub fn chunk_checksum(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

fn stream_entry(get: &mut Get<'_>) -> Result<(u32, String), BlockError> {
    if get.left() < STREAM_ENTRY_BYTES {
        return Err(BlockError::Index("stream table"));
    }
    let (id, length) = (get.u32(), usize::from(get.u16()));
    get.at += 2;
    if length > KEY_BYTES_MAX || get.left() < length {
        return Err(BlockError::Index("stream key"));
    }
    let key = std::str::from_utf8(&get.bytes[get.at..get.at + length]).map_err(|_| BlockError::Index("stream key"))?;
    get.at += length;
    Ok((id, key.to_string()))
}

/// Writes one entry of a stream table; returns its bytes.
pub fn encode_stream(id: u32, key: &str, out: &mut [u8]) -> usize {
    assert!(key.len() <= KEY_BYTES_MAX, "stream key of {} bytes", key.len());
    let mut put = Put { bytes: out, at: 0 };
    put.u32(id);
    put.u16(key.len() as u16);
    put.u16(0);
    put.bytes(key.as_bytes());
    put.at
}

/// The 32 bytes before a record's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// What the record says.
    pub kind: RecordKind,
    /// The side that delivered it.
    pub side: Side,
    /// Twelve bits: [`FLAG_LATE_FILL`].
    pub flags: u16,
    /// Place of the stream in the block's stream table.
    pub local: u16,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// The record's sequence in its stream.
    pub sequence: u64,
    /// Capture time, UTC ns.
    pub capture_ns: i64,
    /// The publisher's send time, UTC ns, or [`NO_TIME`].
    pub send_ns: i64,
}

impl RecordHeader {
    /// The header's bytes: length and kind u32, stream u16, side and flags u16, sequence u64, capture i64, send i64.
    #[inline]
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        let first = u64::from(self.body_bytes)
            | (self.kind as u64) << 24
            | u64::from(self.local) << 32
            | u64::from(self.flags & FLAGS_MASK | u16::from(self.side.0) << 12) << 48;
        out[..8].copy_from_slice(&first.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.capture_ns.to_le_bytes());
        out[24..].copy_from_slice(&self.send_ns.to_le_bytes());
        out
    }

    /// Reads a header; `None` for an unknown kind or side.
    #[inline]
    pub fn parse(bytes: &[u8; RECORD_HEADER_BYTES]) -> Option<RecordHeader> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let first = word(0);
        let side = (first >> 60) as u8;
        if usize::from(side) >= SIDES_MAX {
            return None;
        }
        Some(RecordHeader {
            kind: RecordKind::from_u8((first >> 24) as u8)?,
            side: Side(side),
            flags: (first >> 48) as u16 & FLAGS_MASK,
            local: (first >> 32) as u16,
            body_bytes: first as u32 & 0x00ff_ffff,
            sequence: word(8),
            capture_ns: word(16) as i64,
            send_ns: word(24) as i64,
        })
    }

    /// The highest sequence that the record speaks of: a gap's or loss's last, else its own.
    pub fn sequence_last(&self, body: &[u8]) -> u64 {
        match (self.kind, body.first_chunk::<8>()) {
            (RecordKind::Gap | RecordKind::Lost, Some(last)) => u64::from_le_bytes(*last).max(self.sequence),
            _ => self.sequence,
        }
    }
}

/// Walks the records of one chunk (or of all records of a block).
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// A walk over `bytes`, which begin with a record.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { bytes, at: 0 }
    }

    /// A walk that goes on at byte `at`.
    pub fn from(bytes: &'a [u8], at: usize) -> Records<'a> {
        Records { bytes, at }
    }

    /// Where the next record begins.
    pub fn position(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(RecordHeader, &'a [u8]), BlockError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        if rest.is_empty() {
            return None;
        }
        let broken = BlockError::Record(self.at as u32);
        let parsed = rest.split_first_chunk::<RECORD_HEADER_BYTES>().and_then(|(head, rest)| {
            let header = RecordHeader::parse(head)?;
            Some((header, rest.get(..header.body_bytes as usize)?))
        });
        match parsed {
            Some((header, body)) => {
                self.at += RECORD_HEADER_BYTES + body.len();
                Some(Ok((header, body)))
            }
            None => {
                self.at = self.bytes.len();
                Some(Err(broken))
            }
        }
    }
}

/// What the first block of a segment says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// The segment's identity.
    pub uuid: [u8; 16],
    /// The segment's number in its store, from 1.
    pub number: u64,
    /// When it was created, UTC ns.
    pub created_ns: i64,
    /// Block size that the writer was set to.
    pub block_bytes: u32,
    /// Where capture times came from when the segment was created; each block has its own word.
    pub stamp_source: StampSource,
}

impl SegmentInfo {
    /// The segment's first [`SECTOR_BYTES`] bytes.
    pub fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut out = [0; SECTOR_BYTES];
        let mut put = Put { bytes: &mut out[HEADER_BYTES..HEADER_BYTES + SEGMENT_BODY_BYTES], at: 0 };
        put.u64(self.created_ns as u64);
        put.u32(self.block_bytes);
        put.u32(CHUNK_BYTES as u32);
        let version = concat!("sluice ", env!("CARGO_PKG_VERSION")).as_bytes();
        put.bytes(&version[..version.len().min(32)]);
        let mut header = plain_header(BlockKind::Segment, self.uuid, self.number, 0, SEGMENT_BODY_BYTES as u32);
        header.stamp_source = self.stamp_source;
        header.seal(&mut out);
        out
    }

    /// Reads and checks the first block of a segment.
    pub fn parse(bytes: &[u8]) -> Result<SegmentInfo, BlockError> {
        let header = BlockHeader::parse(bytes)?;
        if header.kind != BlockKind::Segment {
            return Err(BlockError::Field { name: "kind", value: header.kind as u64 });
        }
        let index = bytes
            .get(HEADER_BYTES..header.block_bytes())
            .filter(|index| index.len() >= 16)
            .ok_or(BlockError::Short { need: header.block_bytes() as u64, have: bytes.len() as u64 })?;
        BlockHeader::check(bytes, index)?;
        let mut get = Get { bytes: index, at: 0 };
        Ok(SegmentInfo {
            uuid: header.uuid,
            number: header.segment_number,
            created_ns: get.u64() as i64,
            block_bytes: get.u32(),
            stamp_source: header.stamp_source,
        })
    }
}

fn plain_header(kind: BlockKind, uuid: [u8; 16], number: u64, block_index: u32, index_bytes: u32) -> BlockHeader {
    BlockHeader {
        kind,
        codec: Codec::None,
        stamp_source: StampSource::Unknown,
        clock_epoch: 0,
        tai_offset_s: 0,
        uuid,
        segment_number: number,
        block_index,
        record_count: 0,
        records_bytes: 0,
        records_raw_bytes: 0,
        index_bytes,
        chunk_count: 0,
        stream_count: 0,
        range_count: 0,
        arrival_first: 0,
        arrival_last: 0,
        time_min: 0,
        time_max: 0,
    }
}

/// One block of records as the footer lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockEntry {
    /// Byte of the file where the block begins.
    pub offset: u64,
    /// The block's number in its segment.
    pub block_index: u32,
    /// Records.
    pub record_count: u32,
    /// Bytes of the records as stored.
    pub records_bytes: u32,
    /// Bytes of the records, unpacked.
    pub records_raw_bytes: u32,
    /// Bytes of the index area.
    pub index_bytes: u32,
    /// How the records are stored.
    pub codec: Codec,
    /// Where capture times come from.
    pub stamp_source: StampSource,
    /// Clock epoch.
    pub clock_epoch: u8,
    /// TAI − UTC in seconds.
    pub tai_offset_s: i16,
    /// Arrival index of the first record.
    pub arrival_first: u64,
    /// Arrival index of the last record.
    pub arrival_last: u64,
    /// Earliest capture time, UTC ns.
    pub time_min: i64,
    /// Latest capture time, UTC ns.
    pub time_max: i64,
}

impl BlockEntry {
    /// The entry of a block with this header at byte `offset` of its file.
    pub fn of(header: &BlockHeader, offset: u64) -> BlockEntry {
        BlockEntry {
            offset,
            block_index: header.block_index,
            record_count: header.record_count,
            records_bytes: header.records_bytes,
            records_raw_bytes: header.records_raw_bytes,
            index_bytes: header.index_bytes,
            codec: header.codec,
            stamp_source: header.stamp_source,
            clock_epoch: header.clock_epoch,
            tai_offset_s: header.tai_offset_s,
            arrival_first: header.arrival_first,
            arrival_last: header.arrival_last,
            time_min: header.time_min,
            time_max: header.time_max,
        }
    }

    /// Bytes of the file that the block takes.
    pub fn padded_bytes(&self) -> u64 {
        pad(HEADER_BYTES + self.records_bytes as usize + self.index_bytes as usize) as u64
    }
}

/// The sequences of one stream and class in one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRange {
    /// Segment-local stream id.
    pub stream: u32,
    /// Place of the block in [`SegmentIndex::blocks`].
    pub block: u32,
    /// Which list it belongs to.
    pub class: RangeClass,
    /// Records.
    pub count: u32,
    /// Lowest sequence.
    pub min: u64,
    /// Highest sequence.
    pub max: u64,
}

/// All that a reader needs of a segment to find a record: what the footer holds, or a scan of the blocks yields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentIndex {
    /// Stream keys by segment-local id.
    pub streams: Vec<String>,
    /// The blocks of records in file order.
    pub blocks: Vec<BlockEntry>,
    /// Ranges in block order.
    pub ranges: Vec<SegmentRange>,
}

impl SegmentIndex {
    /// Adds a block and what its index area says. Streams must keep their ids through the segment.
    pub fn add(&mut self, header: &BlockHeader, offset: u64, index: &BlockIndex) -> Result<(), BlockError> {
        for (id, key) in &index.streams {
            self.name_stream(*id, key)?;
        }
        let block = self.blocks.len() as u32;
        self.blocks.push(BlockEntry::of(header, offset));
        let from = self.ranges.len();
        for range in &index.ranges {
            let stream = index.streams[usize::from(range.local)].0;
            self.add_range(
                from,
                SegmentRange { stream, block, class: range.class, count: range.count, min: range.min, max: range.max },
            );
        }
        Ok(())
    }

    /// Gives a segment-local id its key.
    pub fn name_stream(&mut self, id: u32, key: &str) -> Result<(), BlockError> {
        let place = id as usize;
        // Ids are dense: a jump is damage that passed the checksum, or a writer's bug.
        if place > self.streams.len() + BLOCK_STREAMS_MAX {
            return Err(BlockError::Index("stream id"));
        }
        if place >= self.streams.len() {
            self.streams.resize(place + 1, String::new());
        }
        match self.streams[place].as_str() {
            "" => self.streams[place] = key.to_string(),
            known if known == key => {}
            _ => return Err(BlockError::Index("stream id means two keys")),
        }
        Ok(())
    }

    /// Adds a range of the block whose ranges begin at `from`, joined with what is known of its stream and class.
    pub fn add_range(&mut self, from: usize, range: SegmentRange) {
        let known = self.ranges[from..].iter_mut().find(|r| r.stream == range.stream && r.class == range.class);
        match known {
            Some(known) => {
                known.count += range.count;
                known.min = known.min.min(range.min);
                known.max = known.max.max(range.max);
            }
            None => self.ranges.push(range),
        }
    }

    /// Records in the segment.
    pub fn records(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.record_count)).sum()
    }

    /// Bytes of the padded footer if so many blocks, ranges and bytes of stream entries come on top.
    pub fn footer_bytes(&self, blocks: usize, ranges: usize, stream_bytes: usize) -> usize {
        let streams: usize = self.streams.iter().map(|key| STREAM_ENTRY_BYTES + key.len()).sum();
        let body = FOOTER_HEAD_BYTES
            + (self.blocks.len() + blocks) * BLOCK_ENTRY_BYTES
            + (self.ranges.len() + ranges) * SEGMENT_RANGE_BYTES
            + streams
            + stream_bytes;
        pad(HEADER_BYTES + body + TRAILER_BYTES)
    }

    /// The footer: a block to be written at byte `offset`, padded, with the trailer as its last bytes.
    pub fn encode_footer(&self, info: &SegmentInfo, offset: u64) -> Vec<u8> {
        let keys: usize = self.streams.iter().map(|key| STREAM_ENTRY_BYTES + key.len()).sum();
        let body =
            FOOTER_HEAD_BYTES + self.blocks.len() * BLOCK_ENTRY_BYTES + self.ranges.len() * SEGMENT_RANGE_BYTES + keys;
        let mut out = vec![0; pad(HEADER_BYTES + body + TRAILER_BYTES)];
        let block_index = self.blocks.last().map_or(1, |last| last.block_index + 1);
        let header = plain_header(BlockKind::Footer, info.uuid, info.number, block_index, body as u32);
        let mut put = Put { bytes: &mut out[HEADER_BYTES..HEADER_BYTES + body], at: 0 };
        put.u64(self.records());
        put.u32(self.blocks.len() as u32);
        put.u32(self.streams.len() as u32);
        put.u32(self.ranges.len() as u32);
        put.u32(0);
        put.u64(self.blocks.first().map_or(0, |b| b.arrival_first));
        put.u64(self.blocks.last().map_or(0, |b| b.arrival_last));
        put.u64(self.blocks.iter().map(|b| b.time_min).min().unwrap_or(0) as u64);
        put.u64(self.blocks.iter().map(|b| b.time_max).max().unwrap_or(0) as u64);
        put.u64(info.created_ns as u64);
        self.blocks.iter().for_each(|block| put_block_entry(&mut put, block));
        for range in &self.ranges {
            put.u32(range.stream);
            put.u32(range.block);
            put.u32(range.count);
            put.u32(range.class as u32);
            put.u64(range.min);
            put.u64(range.max);
        }
        for (id, key) in self.streams.iter().enumerate() {
            put.at += encode_stream(id as u32, key, &mut put.bytes[put.at..]);
        }
        assert!(put.at == body, "the footer's parts fill it");
        header.seal(&mut out);
        let at = out.len() - TRAILER_BYTES;
        Trailer { uuid: info.uuid, footer_offset: offset, footer_bytes: (HEADER_BYTES + body) as u32 }
            .encode(&mut out[at..]);
        out
    }

    /// Reads and checks a footer block.
    pub fn parse_footer(bytes: &[u8]) -> Result<(BlockHeader, SegmentIndex), BlockError> {
        let header = BlockHeader::parse(bytes)?;
        if header.kind != BlockKind::Footer {
            return Err(BlockError::Field { name: "kind", value: header.kind as u64 });
        }
        let index = bytes
            .get(HEADER_BYTES..header.block_bytes())
            .filter(|index| index.len() >= FOOTER_HEAD_BYTES)
            .ok_or(BlockError::Short { need: header.block_bytes() as u64, have: bytes.len() as u64 })?;
        BlockHeader::check(bytes, index)?;
        let mut get = Get { bytes: index, at: 8 };
        let (blocks, streams, ranges) = (get.u32() as usize, get.u32() as usize, get.u32() as usize);
        get.at = FOOTER_HEAD_BYTES;
        if blocks * BLOCK_ENTRY_BYTES + ranges * SEGMENT_RANGE_BYTES + streams * STREAM_ENTRY_BYTES > get.left() {
            return Err(BlockError::Index("footer counts"));
        }
        let mut out = SegmentIndex::default();
        for _ in 0..blocks {
            out.blocks.push(get_block_entry(&mut get)?);
        }
        for _ in 0..ranges {
            let (stream, block, count, class) = (get.u32(), get.u32(), get.u32(), get.u32());
            let class = RangeClass::from_u8(class as u8).ok_or(BlockError::Index("range class"))?;
            if stream as usize >= streams || block as usize >= blocks {
                return Err(BlockError::Index("range place"));
            }
            out.ranges.push(SegmentRange { stream, block, class, count, min: get.u64(), max: get.u64() });
        }
        for _ in 0..streams {
            out.streams.push(stream_entry(&mut get)?.1);
        }
        Ok((header, out))
    }
}

fn put_block_entry(put: &mut Put<'_>, block: &BlockEntry) {
    put.u64(block.offset);
    put.u32(block.block_index);
    put.u32(block.record_count);
    put.u32(block.records_bytes);
    put.u32(block.records_raw_bytes);
    put.u32(block.index_bytes);
    put.u8(block.codec as u8);
    put.u8(block.stamp_source as u8);
    put.u8(block.clock_epoch);
    put.u8(0);
    put.bytes(&block.tai_offset_s.to_le_bytes());
    put.bytes(&[0; 6]);
    put.u64(block.arrival_first);
    put.u64(block.arrival_last);
    put.u64(block.time_min as u64);
    put.u64(block.time_max as u64);
}

fn get_block_entry(get: &mut Get<'_>) -> Result<BlockEntry, BlockError> {
    let offset = get.u64();
    let (block_index, record_count, records_bytes) = (get.u32(), get.u32(), get.u32());
    let (records_raw_bytes, index_bytes) = (get.u32(), get.u32());
    let (codec, source, clock_epoch) = (get.u8(), get.u8(), get.u8());
    get.at += 1;
    let tai_offset_s = get.u16() as i16;
    get.at += 6;
    let most = BLOCK_BYTES_MAX as u32;
    if records_bytes > most
        || records_raw_bytes > most
        || index_bytes > most
        || !offset.is_multiple_of(SECTOR_BYTES as u64)
    {
        return Err(BlockError::Index("footer block entry"));
    }
    Ok(BlockEntry {
        offset,
        block_index,
        record_count,
        records_bytes,
        records_raw_bytes,
        index_bytes,
        codec: match codec {
            0 => Codec::None,
            1 => Codec::Zstd,
            _ => return Err(BlockError::Index("footer codec")),
        },
        stamp_source: StampSource::from_u8(source).ok_or(BlockError::Index("footer stamp source"))?,
        clock_epoch,
        tai_offset_s,
        arrival_first: get.u64(),
        arrival_last: get.u64(),
        time_min: get.u64() as i64,
        time_max: get.u64() as i64,
    })
}

/// The last bytes of a sealed segment: where its footer begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// The segment's identity.
    pub uuid: [u8; 16],
    /// Byte of the file where the footer block begins.
    pub footer_offset: u64,
    /// Bytes of the footer block before padding.
    pub footer_bytes: u32,
}

impl Trailer {
    /// Writes the trailer's [`TRAILER_BYTES`].
    pub fn encode(&self, out: &mut [u8]) {
        let mut put = Put { bytes: out, at: 0 };
        put.bytes(&TRAILER_MAGIC);
        put.bytes(&self.uuid);
        put.u64(self.footer_offset);
        put.u32(self.footer_bytes);
        put.u32(VERSION.into());
        put.bytes(&[0; 16]);
        let sum = xxh3_64(&put.bytes[..put.at]);
        put.u64(sum);
    }

    /// Reads and checks a trailer.
    pub fn parse(bytes: &[u8]) -> Result<Trailer, BlockError> {
        if bytes.len() != TRAILER_BYTES {
            return Err(BlockError::Short { need: TRAILER_BYTES as u64, have: bytes.len() as u64 });
        }
        if bytes[..8] != TRAILER_MAGIC {
            return Err(BlockError::Magic);
        }
        let mut get = Get { bytes, at: TRAILER_BYTES - 8 };
        if get.u64() != xxh3_64(&bytes[..TRAILER_BYTES - 8]) {
            return Err(BlockError::Checksum);
        }
        get.at = 8;
        Ok(Trailer { uuid: get.array(), footer_offset: get.u64(), footer_bytes: get.u32() })
    }
}

/// A UUID as text.
pub struct UuidText(
    /// The UUID's bytes.
    pub [u8; 16],
);

impl fmt::Display for UuidText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Writes fields one after another; panics beyond the end (the caller has sized the bytes).
struct Put<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Put<'_> {
    fn bytes(&mut self, value: &[u8]) {
        self.bytes[self.at..self.at + value.len()].copy_from_slice(value);
        self.at += value.len();
    }
    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }
    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
}

/// Reads fields one after another; the caller has checked that they are there.
struct Get<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Get<'_> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let out = self.bytes[self.at..self.at + N].try_into().expect("N bytes");
        self.at += N;
        out
    }
    fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}
