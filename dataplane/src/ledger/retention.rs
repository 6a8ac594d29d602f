//! The retention ring's files as bytes: segments of records, a record for each ledger, its frames as they are sent.
//!
//! What a replay sends lies in one piece, with stamps of zero, so that it goes out without being encoded again. Each frame has its
//! checksum in the record's index, the index has its own, and a sealed segment ends with a table of its records. Layout:
//! docs/formats/ledger.md. Little-endian. No file is opened here.

use std::fmt;
use std::io;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::hub::Stored;
use crate::wire::ledger::{LEDGER_BYTES_MAX, SEQUENCE_MAX};

/// Bytes of a segment's header.
pub const SEGMENT_HEADER_BYTES: u64 = 512;
/// Bytes of a record before its index.
pub const RECORD_HEADER_BYTES: usize = 80;
/// Bytes of an index entry: the frame's length, its XXH3-64.
pub const INDEX_ENTRY_BYTES: usize = 12;
/// Bytes of an entry of a sealed segment's table.
const TABLE_ENTRY_BYTES: usize = 48;
/// Bytes before the table's entries.
const TABLE_HEADER_BYTES: usize = 40;
/// Bytes at the very end of a sealed segment: where the table begins, and the magic.
const TRAILER_BYTES: usize = 16;
/// Longest description of a source.
pub const SOURCE_BYTES_MAX: usize = 400;
/// Most frames of a record: the largest ledger in the smallest chunks, each of which may be cut once more by a fine tail, BEGIN
/// and END. It bounds what a damaged header can make a reader allocate.
const FRAMES_MAX: u32 = 1 << 18;
/// Most bytes of a record's frames: the largest ledger, raw, and a header for each frame.
const WIRE_BYTES_MAX: u64 = LEDGER_BYTES_MAX + FRAMES_MAX as u64 * 32;

const SEGMENT_MAGIC: &[u8; 8] = b"SLUILEDG";
const RECORD_MAGIC: &[u8; 8] = b"SLUIRECO";
const TABLE_MAGIC: &[u8; 8] = b"SLUITABL";
const TRAILER_MAGIC: &[u8; 8] = b"SLUISEAL";
const VERSION: u16 = 1;
/// Where the checksum of a header begins and ends; what it covers follows.
const CHECKSUM_AT: usize = 8;
const COVERED_AT: usize = 24;

/// Which run ledgers belong to: what may be joined, and what may not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// A UUID, new for each source that does not go on where the one before ended.
    pub id: [u8; 16],
    /// The first 8 bytes of the SHA-256 of the network's passphrase; zero where the source has no network.
    pub network: [u8; 8],
    /// Counts the runs of a directory, from 1.
    pub epoch: u64,
    /// The first ledger of the run.
    pub start: u32,
    /// What the source is, at most [`SOURCE_BYTES_MAX`] bytes.
    pub source: String,
}

impl fmt::Display for Run {
    /// As it is announced: the UUID, and the network where there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.id.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        if self.network != [0; 8] {
            f.write_str("; net=")?;
            self.network.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

/// The identity and the network in a run as it is announced; `None` where it is announced otherwise than [`Run`] does.
pub fn run_parts(text: &str) -> Option<([u8; 16], [u8; 8])> {
    fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
        let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits.chunks(2).filter(|two| two.len() == 2).map(|two| two[0] << 4 | two[1]).collect();
        (digits.len() == 2 * N).then(|| bytes.try_into().ok()).flatten()
    }
    let (id, network) = match text.split_once("; net=") {
        Some((id, network)) => (id, hex(network)?),
        None => (text, [0; 8]),
    };
    let run = Run { id: hex(&id.replace('-', ""))?, network, epoch: 0, start: 0, source: String::new() };
    (run.to_string() == text).then_some((run.id, run.network))
}

/// What stands before a segment's records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The segment's number: rises by one for each segment of a directory.
    pub number: u64,
    /// The run of all its ledgers.
    pub run: Run,
}

/// A ledger's record without its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Where it lies.
    pub stored: Stored,
    /// Bytes of the ledger.
    pub raw_bytes: u64,
    /// Its XXH64.
    pub xxh64: u64,
    /// When it was complete, ns since the Unix epoch: what an age is counted from.
    pub completed_ns: i64,
}

impl Record {
    /// Bytes that it takes in its segment.
    pub fn bytes(&self) -> u64 {
        self.frames_at() + self.stored.wire_bytes
    }

    /// Where its frames begin, from its own beginning.
    pub fn frames_at(&self) -> u64 {
        (RECORD_HEADER_BYTES + self.stored.frames as usize * INDEX_ENTRY_BYTES) as u64
    }
}

/// A frame's length and checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameCheck {
    /// Its length.
    pub bytes: u32,
    /// XXH3-64 of it.
    pub xxh3: u64,
}

impl FrameCheck {
    /// Of a frame.
    pub fn of(frame: &[u8]) -> FrameCheck {
        FrameCheck { bytes: frame.len() as u32, xxh3: xxh3_64(frame) }
    }
}

/// Bytes of a segment's file.
pub trait SegmentBytes {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads all of `out` from `at`.
    ///
    /// # Errors
    /// As the file's; a range beyond the end is `UnexpectedEof`.
    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()>;
}

impl SegmentBytes for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Why bytes are no segment of this version.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// They cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No header, or a damaged one.
    #[error("not a segment of retained ledgers, or its header is damaged")]
    Header,
    /// A version that is not known.
    #[error("a segment of version {0}: version {VERSION} is read here")]
    Version(u16),
}

/// Damage in a segment: what lies from there on is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Where it begins.
    pub at: u64,
    /// Bytes from there to the end of the file.
    pub bytes: u64,
    /// What is wrong.
    pub what: &'static str,
}

/// What a segment holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its header.
    pub header: SegmentHeader,
    /// Its whole records, dense and ascending.
    pub records: Vec<Record>,
    /// Where the next record would begin: a writer goes on there, and cuts what lies beyond.
    pub end: u64,
    /// Whether it was sealed.
    pub sealed: bool,
    /// Where what is whole ends before the file does.
    pub damage: Option<Damage>,
}

/// How much of a segment is looked at when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Of a sealed segment its table; of others everything, because a crash may have torn any of it.
    Opening,
    /// Every frame.
    Full,
}

fn checksum(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Xxh3::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.digest128().to_le_bytes()
}

/// Little-endian fields of a header, in order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the header's layout is constant");
        self.0 = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

impl SegmentHeader {
    /// The header's bytes. Asserts a source of at most [`SOURCE_BYTES_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let run = &self.run;
        assert!(run.source.len() <= SOURCE_BYTES_MAX, "a source's description is short");
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES as usize);
        bytes.extend_from_slice(SEGMENT_MAGIC);
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(run.source.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&run.start.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&run.epoch.to_le_bytes());
        bytes.extend_from_slice(&run.id);
        bytes.extend_from_slice(&run.network);
        bytes.extend_from_slice(run.source.as_bytes());
        bytes.resize(SEGMENT_HEADER_BYTES as usize, 0);
        let sum = checksum(&[&bytes[COVERED_AT..]]);
        bytes[CHECKSUM_AT..COVERED_AT].copy_from_slice(&sum);
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`SegmentError::Header`], [`SegmentError::Version`].
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, SegmentError> {
        let whole = bytes.len() == SEGMENT_HEADER_BYTES as usize && bytes.starts_with(SEGMENT_MAGIC);
        if !whole || checksum(&[&bytes[COVERED_AT..]]) != bytes[CHECKSUM_AT..COVERED_AT] {
            return Err(SegmentError::Header);
        }
        let mut fields = Fields(&bytes[COVERED_AT..]);
        let version = u16::from_le_bytes(fields.take());
        if version != VERSION {
            return Err(SegmentError::Version(version));
        }
        let source_bytes = usize::from(u16::from_le_bytes(fields.take()));
        let (start, number, epoch) = (fields.u32(), fields.u64(), fields.u64());
        let (id, network) = (fields.take(), fields.take());
        let source = fields.0.get(..source_bytes).and_then(|source| std::str::from_utf8(source).ok());
        let source = source.ok_or(SegmentError::Header)?.into();
        Ok(SegmentHeader { number, run: Run { id, network, epoch, start, source } })
    }
}

/// What of a ledger its record tells beside its frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Its sequence.
    pub sequence: u32,
    /// Its bytes.
    pub raw_bytes: u64,
    /// Its XXH64.
    pub xxh64: u64,
    /// When it was complete, ns since the Unix epoch.
    pub completed_ns: i64,
}

/// A record to be written at `offset` of a segment: its head (header and index), which the frames follow as they are.
///
/// `checks` are those of a replay's messages.
pub fn record(facts: Facts, checks: &[FrameCheck], segment: u64, offset: u64) -> (Record, Vec<u8>) {
    let wire_bytes = checks.iter().map(|check| u64::from(check.bytes)).sum();
    let Facts { sequence, raw_bytes, xxh64, completed_ns } = facts;
    let stored = Stored { sequence, frames: checks.len() as u32, wire_bytes, segment, offset };
    let record = Record { stored, raw_bytes, xxh64, completed_ns };
    let mut head = Vec::with_capacity(record.frames_at() as usize);
    head.extend_from_slice(RECORD_MAGIC);
    head.extend_from_slice(&[0; 16]);
    head.extend_from_slice(&sequence.to_le_bytes());
    head.extend_from_slice(&stored.frames.to_le_bytes());
    for value in [wire_bytes, raw_bytes, xxh64, completed_ns as u64, segment, offset] {
        head.extend_from_slice(&value.to_le_bytes());
    }
    for check in checks {
        head.extend_from_slice(&check.bytes.to_le_bytes());
        head.extend_from_slice(&check.xxh3.to_le_bytes());
    }
    let sum = checksum(&[&head[COVERED_AT..]]);
    head[CHECKSUM_AT..COVERED_AT].copy_from_slice(&sum);
    (record, head)
}

/// Reads the record at `offset` of segment `number`, and the checks of its frames.
///
/// # Errors
/// The file's. The inner error says what is wrong with the record.
pub fn read_record(
    bytes: &(impl SegmentBytes + ?Sized),
    number: u64,
    offset: u64,
) -> io::Result<Result<(Record, Vec<FrameCheck>), &'static str>> {
    let left = bytes.len().saturating_sub(offset);
    if left < RECORD_HEADER_BYTES as u64 {
        return Ok(Err("the file ends inside a record's header"));
    }
    let mut head = vec![0; RECORD_HEADER_BYTES];
    bytes.read(offset, &mut head)?;
    if !head.starts_with(RECORD_MAGIC) {
        return Ok(Err("no record begins here"));
    }
    let (record, _) = head_fields(&head);
    // Before the checksum, so that a damaged count cannot make a reader allocate.
    if record.stored.frames > FRAMES_MAX || record.stored.wire_bytes > WIRE_BYTES_MAX || record.bytes() > left {
        return Ok(Err("the file ends inside a record"));
    }
    head.resize(record.frames_at() as usize, 0);
    bytes.read(offset + RECORD_HEADER_BYTES as u64, &mut head[RECORD_HEADER_BYTES..])?;
    Ok(parse_record(&head, number, offset))
}

/// A record header's fields as they stand there, and the rest of the bytes.
fn head_fields(head: &[u8]) -> (Record, &[u8]) {
    let mut fields = Fields(&head[COVERED_AT..]);
    let (sequence, frames) = (fields.u32(), fields.u32());
    let [wire_bytes, raw_bytes, xxh64, completed_ns, segment, offset] = [(); 6].map(|()| fields.u64());
    let stored = Stored { sequence, frames, wire_bytes, segment, offset };
    (Record { stored, raw_bytes, xxh64, completed_ns: completed_ns as i64 }, fields.0)
}

/// Reads a record's header and index, `head`, of a record at `offset` of segment `number`.
///
/// # Errors
/// What is wrong with them.
pub fn parse_record(head: &[u8], number: u64, offset: u64) -> Result<(Record, Vec<FrameCheck>), &'static str> {
    if head.len() < RECORD_HEADER_BYTES || !head.starts_with(RECORD_MAGIC) {
        return Err("no record begins here");
    }
    let (record, index) = head_fields(head);
    let Stored { sequence, frames, wire_bytes, .. } = record.stored;
    let whole = u64::from(frames) * INDEX_ENTRY_BYTES as u64 == index.len() as u64;
    if !whole || checksum(&[&head[COVERED_AT..]]) != head[CHECKSUM_AT..COVERED_AT] {
        return Err("a record's checksum does not hold");
    }
    if (record.stored.segment, record.stored.offset) != (number, offset) || !(1..=SEQUENCE_MAX).contains(&sequence) {
        return Err("a record that belongs elsewhere");
    }
    let mut index = Fields(index);
    let checks: Vec<FrameCheck> = (0..frames).map(|_| FrameCheck { bytes: index.u32(), xxh3: index.u64() }).collect();
    // BEGIN and END are always there.
    if frames < 2 || checks.iter().map(|check| u64::from(check.bytes)).sum::<u64>() != wire_bytes {
        return Err("a record's frames do not add up");
    }
    Ok((record, checks))
}

/// Checks frames that were read together: the first `checks.len()` frames of `bytes`.
pub fn frames_hold(checks: &[FrameCheck], mut bytes: &[u8]) -> bool {
    checks.iter().all(|check| match bytes.split_at_checked(check.bytes as usize) {
        Some((frame, rest)) => {
            bytes = rest;
            xxh3_64(frame) == check.xxh3
        }
        None => false,
    })
}

/// The table that seals a segment whose records end at `end`.
pub fn seal(records: &[Record], end: u64) -> Vec<u8> {
    let mut table = Vec::with_capacity(TABLE_HEADER_BYTES + records.len() * TABLE_ENTRY_BYTES + TRAILER_BYTES);
    table.extend_from_slice(TABLE_MAGIC);
    table.extend_from_slice(&[0; 16]);
    table.extend_from_slice(&(records.len() as u64).to_le_bytes());
    table.extend_from_slice(&end.to_le_bytes());
    for record in records {
        table.extend_from_slice(&record.stored.sequence.to_le_bytes());
        table.extend_from_slice(&record.stored.frames.to_le_bytes());
        let stored = &record.stored;
        for value in [stored.wire_bytes, stored.offset, record.raw_bytes, record.xxh64, record.completed_ns as u64] {
            table.extend_from_slice(&value.to_le_bytes());
        }
    }
    let sum = checksum(&[&table[COVERED_AT..]]);
    table[CHECKSUM_AT..COVERED_AT].copy_from_slice(&sum);
    table.extend_from_slice(&end.to_le_bytes());
    table.extend_from_slice(TRAILER_MAGIC);
    table
}

/// The records of a sealed segment's table; `None` where there is none, or a damaged one.
fn read_table(bytes: &(impl SegmentBytes + ?Sized), number: u64) -> io::Result<Option<(Vec<Record>, u64)>> {
    let Some(trailer_at) = bytes.len().checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    let mut trailer = [0; TRAILER_BYTES];
    bytes.read(trailer_at, &mut trailer)?;
    let table_at = Fields(&trailer).u64();
    let room = trailer_at.checked_sub(table_at).filter(|&room| room >= TABLE_HEADER_BYTES as u64);
    // A table has an entry for each record, and records are longer than entries: it is less than half of the file.
    let Some(room) = room.filter(|&room| trailer.ends_with(TRAILER_MAGIC) && room <= bytes.len() / 2 + 4096) else {
        return Ok(None);
    };
    let mut table = vec![0; room as usize];
    bytes.read(table_at, &mut table)?;
    let sum = checksum(&[&table[COVERED_AT..]]);
    let mut fields = Fields(&table[COVERED_AT..]);
    let (count, end) = (fields.u64(), fields.u64());
    let entries = (room - TABLE_HEADER_BYTES as u64) / TABLE_ENTRY_BYTES as u64;
    let whole = room == TABLE_HEADER_BYTES as u64 + entries * TABLE_ENTRY_BYTES as u64;
    if !table.starts_with(TABLE_MAGIC)
        || sum != table[CHECKSUM_AT..COVERED_AT]
        || !whole
        || (count, end) != (entries, table_at)
    {
        return Ok(None);
    }
    let records = (0..count).map(|_| {
        let (sequence, frames) = (fields.u32(), fields.u32());
        let [wire_bytes, offset, raw_bytes, xxh64, completed_ns] = [(); 5].map(|()| fields.u64());
        let stored = Stored { sequence, frames, wire_bytes, segment: number, offset };
        Record { stored, raw_bytes, xxh64, completed_ns: completed_ns as i64 }
    });
    Ok(Some((records.collect(), end)))
}

/// Reads a segment: its header, and its records up to the first damage. What is torn is told and not used.
///
/// # Errors
/// See [`SegmentError`].
pub fn open(bytes: &(impl SegmentBytes + ?Sized), depth: Depth) -> Result<Segment, SegmentError> {
    if bytes.len() < SEGMENT_HEADER_BYTES {
        return Err(SegmentError::Header);
    }
    let mut header = vec![0; SEGMENT_HEADER_BYTES as usize];
    bytes.read(0, &mut header)?;
    let header = SegmentHeader::decode(&header)?;
    let table = read_table(bytes, header.number)?;
    let (limit, sealed) = table.as_ref().map_or((bytes.len(), false), |(_, end)| (*end, true));
    if let Some((records, end)) = table
        && depth == Depth::Opening
    {
        return Ok(Segment { header, records, end, sealed: true, damage: None });
    }
    scan(bytes, header, limit, sealed)
}

/// Walks over records up to `limit`, checking every frame.
fn scan(
    bytes: &(impl SegmentBytes + ?Sized),
    header: SegmentHeader,
    limit: u64,
    sealed: bool,
) -> Result<Segment, SegmentError> {
    let mut segment = Segment { header, records: Vec::new(), end: SEGMENT_HEADER_BYTES, sealed, damage: None };
    let mut frames = Vec::new();
    while segment.end < limit {
        let at = segment.end;
        let what = match read_record(bytes, segment.header.number, at)? {
            Err(what) => what,
            Ok((record, checks)) => {
                let next = segment.records.last().and_then(|last| last.stored.sequence.checked_add(1));
                let follows = segment.records.is_empty() || next == Some(record.stored.sequence);
                if follows && check_frames(bytes, &record, &checks, &mut frames)? {
                    segment.end += record.bytes();
                    segment.records.push(record);
                    continue;
                }
                if follows {
                    "a frame's checksum does not hold"
                } else {
                    "a ledger that does not follow the one before"
                }
            }
        };
        segment.damage = Some(Damage { at, bytes: bytes.len() - at, what });
        break;
    }
    Ok(segment)
}

/// Most bytes of frames that are read at once, unless one frame is longer.
const READ_BYTES: u64 = 1 << 20;

fn check_frames(
    bytes: &(impl SegmentBytes + ?Sized),
    record: &Record,
    checks: &[FrameCheck],
    buffer: &mut Vec<u8>,
) -> io::Result<bool> {
    let mut at = record.stored.offset + record.frames_at();
    let mut rest = checks;
    while !rest.is_empty() {
        let (frames, run_bytes) = run(rest, READ_BYTES);
        buffer.resize(run_bytes as usize, 0);
        bytes.read(at, buffer)?;
        if !frames_hold(&rest[..frames], buffer) {
            return Ok(false);
        }
        at += run_bytes;
        rest = &rest[frames..];
    }
    Ok(true)
}

/// How many of these frames, at least one, are together at most `bytes_max` long, and how long they are.
pub fn run(checks: &[FrameCheck], bytes_max: u64) -> (usize, u64) {
    let (mut frames, mut bytes) = (0, 0);
    for check in checks {
        let more = bytes + u64::from(check.bytes);
        if frames > 0 && more > bytes_max {
            break;
        }
        (frames, bytes) = (frames + 1, more);
    }
    (frames, bytes)
}

/// What of several segments can be served: the longest dense run of one identity that ends with the latest ledger.
pub fn serveable<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Vec<Record> {
    let mut kept: Vec<Record> = Vec::new();
    let mut run: Option<&Run> = None;
    for segment in segments {
        for record in &segment.records {
            let next = kept.last().and_then(|last| last.stored.sequence.checked_add(1));
            let joins = next == Some(record.stored.sequence) && run == Some(&segment.header.run);
            if !joins {
                kept.clear();
            }
            kept.push(*record);
            run = Some(&segment.header.run);
        }
    }
    kept
}

/// How much is retained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Most ledgers; at least 1.
    pub ledgers_max: u32,
    /// Most bytes of records.
    pub bytes_max: Option<u64>,
    /// Longest time since a ledger was complete, ns.
    pub age_ns_max: Option<i64>,
}

/// The oldest ledger that stays within the bounds; `None` where nothing is retained. The latest always stays: who comes now
/// must find something to join.
pub fn oldest_within(records: &[Record], bounds: &Bounds, now_utc_ns: i64) -> Option<u32> {
    assert!(bounds.ledgers_max >= 1, "at least one ledger is retained");
    let (latest, _) = records.split_last()?;
    let mut bytes = 0_u64;
    let stays = |(index, record): &(usize, &Record)| {
        bytes = bytes.saturating_add(record.bytes());
        let age_ns = now_utc_ns.saturating_sub(record.completed_ns);
        *index == 0
            || (*index < bounds.ledgers_max as usize
                && bounds.bytes_max.is_none_or(|most| bytes <= most)
                && bounds.age_ns_max.is_none_or(|most| age_ns <= most))
    };
    let oldest = records.iter().rev().enumerate().take_while(stays).last();
    Some(oldest.map_or(latest.stored.sequence, |(_, record)| record.stored.sequence))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ledger::message::{Encoded, HEADROOM, RawChunk};
    use crate::wire::ledger::{Begin, End};

    fn run_of(epoch: u64) -> Run {
        Run { id: [epoch as u8; 16], network: [9; 8], epoch, start: 5, source: "synthetic".into() }
    }

    fn frames(sequence: u32, chunks: u32) -> Vec<Arc<Encoded>> {
        let mut frames = vec![Arc::new(Encoded::begin(&Begin { sequence, emit_start_ns: 0 }))];
        frames.extend((0..chunks).map(|index| {
            let bytes = 100 + index as usize * 1000;
            let buffer = vec![sequence as u8; HEADROOM + bytes];
            Arc::new(RawChunk::new(buffer, bytes, sequence, index).into_message())
        }));
        frames.push(Arc::new(Encoded::end(&End { sequence, chunks, bytes: 1, emit_end_ns: 0, xxh64: 2 })));
        frames
    }

    /// A segment's bytes and records: ledgers `first` to `last`.
    fn segment(number: u64, epoch: u64, first: u32, last: u32, sealed: bool) -> (Vec<u8>, Vec<Record>) {
        let mut bytes = SegmentHeader { number, run: run_of(epoch) }.encode();
        let mut records = Vec::new();
        for sequence in first..=last {
            let frames = frames(sequence, sequence % 4);
            let facts = Facts { sequence, raw_bytes: 3, xxh64: 4, completed_ns: i64::from(sequence) * 100 };
            let checks: Vec<FrameCheck> = frames.iter().map(|frame| FrameCheck::of(frame.frame())).collect();
            let (record, head) = super::record(facts, &checks, number, bytes.len() as u64);
            bytes.extend(head);
            frames.iter().for_each(|frame| bytes.extend_from_slice(frame.frame()));
            assert_eq!(record.stored.offset + record.bytes(), bytes.len() as u64);
            records.push(record);
        }
        if sealed {
            bytes.extend(seal(&records, bytes.len() as u64));
        }
        (bytes, records)
    }

    #[test]
    fn a_segment_goes_there_and_back() {
        for sealed in [false, true] {
            let (bytes, records) = segment(7, 1, 10, 20, sealed);
            for depth in [Depth::Opening, Depth::Full] {
                let found = open(&bytes[..], depth).expect("a segment");
                assert_eq!(found.header, SegmentHeader { number: 7, run: run_of(1) });
                assert_eq!((&found.records, found.sealed, found.damage), (&records, sealed, None));
            }
            let (record, checks) = read_record(&bytes[..], 7, records[3].stored.offset).expect("reads").expect("whole");
            assert_eq!(record, records[3]);
            let expected = frames(13, 1);
            let at = (record.stored.offset + record.frames_at()) as usize;
            let wire: Vec<u8> = expected.iter().flat_map(|frame| frame.frame().to_vec()).collect();
            assert_eq!(&bytes[at..at + wire.len()], wire, "what is sent lies in one piece");
            assert!(frames_hold(&checks, &wire));
        }
    }

    #[test]
    fn a_tail_torn_anywhere_is_cut_and_told() {
        let (bytes, records) = segment(7, 1, 10, 14, false);
        for cut in SEGMENT_HEADER_BYTES as usize..bytes.len() {
            let found = open(&bytes[..cut], Depth::Opening).expect("a segment");
            let whole = records.iter().filter(|r| r.stored.offset + r.bytes() <= cut as u64).count();
            assert_eq!(found.records, records[..whole], "{cut}");
            assert_eq!(found.damage.is_some(), found.end != cut as u64, "{cut}");
            assert_eq!(found.damage.map_or(0, |damage| damage.bytes), cut as u64 - found.end);
        }
        for cut in 0..SEGMENT_HEADER_BYTES as usize {
            assert!(matches!(open(&bytes[..cut], Depth::Opening), Err(SegmentError::Header)), "{cut}");
        }
    }

    #[test]
    fn a_flipped_bit_is_never_served() {
        for sealed in [false, true] {
            let (bytes, records) = segment(7, 1, 10, 13, sealed);
            for at in 0..bytes.len() {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << (at % 8);
                let Ok(found) = open(&bad[..], Depth::Full) else {
                    assert!(at < SEGMENT_HEADER_BYTES as usize, "{at}");
                    continue;
                };
                assert!(records.starts_with(&found.records), "{at}");
                let hit = records.iter().any(|r| (r.stored.offset..r.stored.offset + r.bytes()).contains(&(at as u64)));
                assert!(!hit || found.damage.is_some(), "{at}");
            }
        }
    }

    #[test]
    fn a_record_in_another_place_is_not_taken() {
        let (mut bytes, records) = segment(7, 1, 10, 12, false);
        let (from, to) = (records[0].stored.offset as usize, records[1].stored.offset as usize);
        bytes.extend_from_within(from..to);
        let found = open(&bytes[..], Depth::Opening).expect("a segment");
        assert_eq!((found.records.len(), found.damage.map(|d| d.what)), (3, Some("a record that belongs elsewhere")));
        bytes.truncate(found.end as usize);
        assert!(read_record(&bytes[..], 8, records[0].stored.offset).expect("reads").is_err());
    }

    #[test]
    fn only_what_joins_up_to_the_latest_is_served() {
        let open_all = |parts: &[(u64, u64, u32, u32)]| {
            let segments: Vec<Segment> = parts
                .iter()
                .map(|&(number, epoch, first, last)| {
                    open(&segment(number, epoch, first, last, true).0[..], Depth::Opening).expect("a segment")
                })
                .collect();
            let kept = serveable(&segments);
            kept.first().zip(kept.last()).map(|(first, last)| (first.stored.sequence, last.stored.sequence))
        };
        assert_eq!(open_all(&[]), None);
        assert_eq!(open_all(&[(1, 1, 5, 9), (2, 1, 10, 12)]), Some((5, 12)));
        assert_eq!(open_all(&[(1, 1, 5, 9), (2, 1, 11, 12)]), Some((11, 12)), "a hole");
        assert_eq!(open_all(&[(1, 1, 5, 9), (2, 2, 10, 12)]), Some((10, 12)), "another run that would join");
        assert_eq!(open_all(&[(1, 1, 5, 9), (2, 2, 3, 4)]), Some((3, 4)));
    }

    #[test]
    fn bounds_hold_by_count_bytes_and_age() {
        let (_, records) = segment(1, 1, 10, 19, false);
        let oldest = |ledgers_max, bytes_max, age_ns_max| {
            oldest_within(&records, &Bounds { ledgers_max, bytes_max, age_ns_max }, 2_000)
        };
        assert_eq!(oldest(100, None, None), Some(10));
        assert_eq!(oldest(3, None, None), Some(17));
        assert_eq!(oldest(1, None, None), Some(19));
        let last_two: u64 = records[8..].iter().map(Record::bytes).sum();
        assert_eq!(oldest(100, Some(last_two), None), Some(18));
        assert_eq!(oldest(100, Some(last_two - 1), None), Some(19));
        assert_eq!(oldest(100, Some(0), None), Some(19), "the latest stays");
        assert_eq!(oldest(100, None, Some(300)), Some(17));
        assert_eq!(oldest_within(&[], &Bounds { ledgers_max: 1, bytes_max: None, age_ns_max: None }, 0), None);
    }

    #[test]
    fn frames_are_read_in_runs() {
        let checks: Vec<FrameCheck> = [5, 5, 100, 1].map(|bytes| FrameCheck { bytes, xxh3: 0 }).to_vec();
        assert_eq!(run(&checks, 10), (2, 10));
        assert_eq!(run(&checks, 9), (1, 5));
        assert_eq!(run(&checks[2..], 10), (1, 100), "at least one");
        assert_eq!(run(&[], 10), (0, 0));
    }

    #[test]
    fn a_run_is_announced_as_agreed() {
        let mut run = run_of(1);
        run.id = *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";
        assert_eq!(run.to_string(), "00112233-4455-6677-8899-aabbccddeeff; net=0909090909090909");
        assert_eq!(run_parts(&run.to_string()), Some((run.id, run.network)));
        run.network = [0; 8];
        assert_eq!(run.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(run_parts(&run.to_string()), Some((run.id, run.network)));
        for other in ["", "x", "00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff; net=09", "é"]
        {
            assert_eq!(run_parts(other), None, "{other}");
        }
    }
}
