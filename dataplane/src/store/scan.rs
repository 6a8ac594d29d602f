//! Reading a segment's structure from its blocks: what recovery, an unsealed segment and `verify` rest on.
//!
//! It trusts block headers and their checksums, never the file's size or name.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::store::StoreError;
use crate::sys::file::{next_data, read_at};
use crate::wire::block::{
    BLOCK_BYTES_MAX, BlockEntry, BlockError, BlockHeader, BlockIndex, BlockKind, Codec, HEADER_BYTES, MAGIC,
    RangeClass, Records, SECTOR_BYTES, SegmentIndex, SegmentInfo, TRAILER_BYTES, Trailer,
};

/// How much is read at once in search of the next block.
const WINDOW_BYTES: usize = 1024 * 1024;
/// Largest footer accepted: 24 million blocks or ranges, far beyond any segment size that can be configured.
const FOOTER_BYTES_MAX: u64 = 1 << 30;

/// How much of a segment is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Headers and index areas: enough to find records; a query checks the chunks that it reads.
    Index,
    /// Every byte.
    Full,
}

/// Sequences of a stream that a damage may have cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostSequences {
    /// The stream's key.
    pub stream: String,
    /// The first that may be lost.
    pub first: u64,
    /// The last; `None` when nothing after it is known.
    pub last: Option<u64>,
}

/// A part of a file that does not hold what it should.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// What is wrong.
    pub what: String,
    /// Records lost there, where known.
    pub records: Option<u64>,
    /// What each stream may have lost there.
    pub lost: Vec<LostSequences>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bytes at {}: {}", self.file.display(), self.bytes, self.offset, self.what)?;
        if let Some(records) = self.records {
            write!(f, "; {records} records")?;
        }
        for lost in &self.lost {
            match lost.last {
                Some(last) => write!(f, "; {} {}..={last}", lost.stream, lost.first)?,
                None => write!(f, "; {} from {}", lost.stream, lost.first)?,
            }
        }
        Ok(())
    }
}

/// What a segment's blocks say.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The first block.
    pub info: SegmentInfo,
    /// The blocks of records that are whole.
    pub index: SegmentIndex,
    /// Byte after the last whole block (or the footer's first).
    pub end: u64,
    /// Where a later scan has to go on: before the first hole, else at `end`.
    pub resume: u64,
    /// Holes and tears.
    pub damage: Vec<Damage>,
}

/// Reads the segment header.
pub fn read_info(file: &File, path: &Path) -> Result<SegmentInfo, StoreError> {
    let mut sector = [0; SECTOR_BYTES];
    let have = read_at(file, &mut sector, 0).map_err(|source| StoreError::io("read", path, source))?;
    SegmentInfo::parse(&sector[..have]).map_err(|source| StoreError::format(path, 0, source))
}

/// Reads the footer of a sealed segment; `Ok(None)` when there is none.
pub fn read_footer(file: &File, path: &Path, info: &SegmentInfo) -> Result<Option<SegmentIndex>, StoreError> {
    let io = |source| StoreError::io("read", path, source);
    let bytes = file.metadata().map_err(io)?.len();
    let Some(at) = bytes.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    let mut tail = [0; TRAILER_BYTES];
    let have = read_at(file, &mut tail, at).map_err(io)?;
    let trailer = match Trailer::parse(&tail[..have]) {
        Ok(trailer) if trailer.uuid == info.uuid => trailer,
        _ => return Ok(None),
    };
    let length = u64::from(trailer.footer_bytes);
    if length > FOOTER_BYTES_MAX || trailer.footer_offset.saturating_add(length) > bytes {
        return Ok(None);
    }
    let mut footer = vec![0; length as usize];
    let have = read_at(file, &mut footer, trailer.footer_offset).map_err(io)?;
    match SegmentIndex::parse_footer(&footer[..have]) {
        Ok((header, index)) if header.uuid == info.uuid && stands_before(&index, trailer.footer_offset) => {
            Ok(Some(index))
        }
        _ => Ok(None),
    }
}

/// Whether the blocks follow one another between the segment header and byte `end`.
fn stands_before(index: &SegmentIndex, end: u64) -> bool {
    let mut at = SECTOR_BYTES as u64;
    index.blocks.iter().all(|block| {
        let in_order = block.offset >= at;
        at = block.offset.saturating_add(block.padded_bytes());
        in_order && at <= end
    })
}

/// Scans all blocks of a segment. `live`: another process is writing it, so holes and a torn end are no damage yet.
pub fn scan(file: &File, path: &Path, depth: Depth, live: bool) -> Result<Scan, StoreError> {
    let info = read_info(file, path)?;
    let mut scan = Scan {
        info,
        index: SegmentIndex::default(),
        end: SECTOR_BYTES as u64,
        resume: SECTOR_BYTES as u64,
        damage: Vec::new(),
    };
    scan.go_on(file, path, depth, live)?;
    Ok(scan)
}

impl Scan {
    /// Goes on where the last scan of the same file stopped: for a segment that is still being written.
    pub fn go_on(&mut self, file: &File, path: &Path, depth: Depth, live: bool) -> Result<(), StoreError> {
        let keep = self.index.blocks.partition_point(|block| block.offset < self.resume);
        self.index.blocks.truncate(keep);
        self.index.ranges.retain(|range| (range.block as usize) < keep);
        self.damage.retain(|damage| damage.offset < self.resume);
        let mut walk = Walk { file, path, depth, live, hole: None, stale_end: 0, bytes: Vec::new() };
        let mut at = self.resume;
        loop {
            match walk.block(self, at)? {
                Step::Block(header, index) => {
                    walk.end_hole(self, at, Some((&header, &index)));
                    let next = at + header.padded_bytes() as u64;
                    match self.index.add(&header, at, &index) {
                        Ok(()) => self.end = next,
                        Err(error) => self.report(&walk, at, next - at, error.to_string()),
                    }
                    at = next;
                }
                Step::Torn(header, index, error) => {
                    walk.end_hole(self, at, Some((&header, &index)));
                    self.report_block(&walk, at, &header, &index, error);
                    at += header.padded_bytes() as u64;
                }
                Step::Footer => {
                    walk.end_hole(self, at, None);
                    self.end = at;
                    break;
                }
                Step::Nothing => match walk.next_candidate(at)? {
                    Some(next) => at = next,
                    None => {
                        walk.tail(self);
                        break;
                    }
                },
            }
        }
        self.resume = walk.hole.map_or(self.end, |hole| hole.begin.min(self.end));
        Ok(())
    }

    fn report(&mut self, walk: &Walk<'_>, offset: u64, bytes: u64, what: String) {
        let damage = Damage { file: walk.path.into(), offset, bytes, what, records: None, lost: Vec::new() };
        self.damage.push(damage);
    }

    fn report_block(&mut self, walk: &Walk<'_>, at: u64, header: &BlockHeader, index: &BlockIndex, error: BlockError) {
        if walk.live {
            return;
        }
        self.damage.push(block_damage(walk.path, at, header, index, error));
    }

    /// The highest data sequence of each stream so far.
    fn last_sequences(&self) -> Vec<(String, u64)> {
        let mut last: Vec<Option<u64>> = vec![None; self.index.streams.len()];
        for range in self.index.ranges.iter().filter(|range| range.class == RangeClass::Data) {
            let known = &mut last[range.stream as usize];
            *known = Some(known.map_or(range.max, |max| max.max(range.max)));
        }
        let named = self.index.streams.iter().zip(last);
        named.filter_map(|(key, last)| last.map(|last| (key.clone(), last))).collect()
    }
}

/// The damage of a block whose index area is whole and whose records are not.
pub fn block_damage(path: &Path, offset: u64, header: &BlockHeader, index: &BlockIndex, error: BlockError) -> Damage {
    let mut lost: Vec<LostSequences> = Vec::new();
    for range in index.ranges.iter().filter(|range| range.class != RangeClass::Mark) {
        let key = &index.streams[usize::from(range.local)].1;
        match lost.iter_mut().find(|known| &known.stream == key) {
            Some(known) => {
                known.first = known.first.min(range.min);
                known.last = known.last.max(Some(range.max));
            }
            None => lost.push(LostSequences { stream: key.clone(), first: range.min, last: Some(range.max) }),
        }
    }
    Damage {
        file: path.into(),
        offset,
        bytes: header.padded_bytes() as u64,
        what: error.to_string(),
        records: Some(header.record_count.into()),
        lost,
    }
}

enum Step {
    Block(BlockHeader, BlockIndex),
    Torn(BlockHeader, BlockIndex, BlockError),
    Footer,
    Nothing,
}

#[derive(Clone, Copy)]
struct Hole {
    begin: u64,
    dirty_end: u64,
    reason: BlockError,
}

struct Walk<'a> {
    file: &'a File,
    path: &'a Path,
    depth: Depth,
    live: bool,
    hole: Option<Hole>,
    /// What stands before this byte belongs to a stale block, and is no sign of a torn write.
    stale_end: u64,
    bytes: Vec<u8>,
}

impl Walk<'_> {
    fn read(&mut self, at: u64, bytes: usize) -> Result<usize, StoreError> {
        self.bytes.resize(bytes, 0);
        read_at(self.file, &mut self.bytes, at).map_err(|source| StoreError::io("read", self.path, source))
    }

    /// What stands at `at`. What is nothing begins a hole there, unless one is open.
    fn block(&mut self, scan: &mut Scan, at: u64) -> Result<Step, StoreError> {
        let have = self.read(at, HEADER_BYTES)?;
        let parsed = BlockHeader::parse(&self.bytes[..have]);
        let header = match parsed {
            Ok(header) if header.uuid != scan.info.uuid => {
                self.stale_end = at + header.padded_bytes() as u64;
                return Ok(self.nothing(at, BlockError::Magic, false));
            }
            Ok(header) => header,
            Err(error) => {
                let have = self.read(at, SECTOR_BYTES)?;
                let dirty = self.bytes[..have].iter().any(|&byte| byte != 0);
                return Ok(self.nothing(at, error, dirty));
            }
        };
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(&self.bytes);
        let index_at = at + (HEADER_BYTES + header.records_bytes as usize) as u64;
        if header.index_bytes as u64 > FOOTER_BYTES_MAX {
            return Ok(self.nothing(
                at,
                BlockError::Field { name: "index_bytes", value: header.index_bytes.into() },
                true,
            ));
        }
        let have = self.read_bounded(index_at, header.index_bytes as usize)?;
        let index = match BlockHeader::check(&head, &self.bytes[..have]) {
            Ok(()) if header.kind == BlockKind::Footer => return Ok(Step::Footer),
            Ok(()) if header.kind == BlockKind::Records => BlockIndex::parse(&header, &self.bytes[..have]),
            Ok(()) => return Ok(self.nothing(at, BlockError::Magic, true)),
            Err(error) => return Ok(self.nothing(at, error, true)),
        };
        let index = match index {
            Ok(index) => index,
            Err(error) => return Ok(self.nothing(at, error, true)),
        };
        if self.depth == Depth::Full
            && let Err(error) = self.records(at, &header, &index)?
        {
            return Ok(Step::Torn(header, index, error));
        }
        Ok(Step::Block(header, index))
    }

    /// Reads at most what the file has: a damaged length must not cost memory beyond it.
    fn read_bounded(&mut self, at: u64, bytes: usize) -> Result<usize, StoreError> {
        if bytes > BLOCK_BYTES_MAX {
            let length = self.file.metadata().map_err(|source| StoreError::io("stat", self.path, source))?.len();
            if at + bytes as u64 > length {
                self.bytes.clear();
                return Ok(0);
            }
        }
        self.read(at, bytes)
    }

    fn records(
        &mut self,
        at: u64,
        header: &BlockHeader,
        index: &BlockIndex,
    ) -> Result<Result<(), BlockError>, StoreError> {
        let have = self.read(at + HEADER_BYTES as u64, header.records_bytes as usize)?;
        Ok(check_records(header, index, &self.bytes[..have]))
    }

    fn nothing(&mut self, at: u64, reason: BlockError, dirty: bool) -> Step {
        let hole = self.hole.get_or_insert(Hole { begin: at, dirty_end: at, reason });
        if dirty {
            hole.dirty_end = at + SECTOR_BYTES as u64;
        }
        Step::Nothing
    }

    /// The next sector boundary after `at` where a block could begin: one that starts with the magic.
    fn next_candidate(&mut self, at: u64) -> Result<Option<u64>, StoreError> {
        let mut from = at + SECTOR_BYTES as u64;
        loop {
            let Some(data) = next_data(self.file, from).map_err(|source| StoreError::io("seek", self.path, source))?
            else {
                return Ok(None);
            };
            from = from.max(data & !(SECTOR_BYTES as u64 - 1));
            let have = self.read(from, WINDOW_BYTES)?;
            if have == 0 {
                return Ok(None);
            }
            for (place, sector) in self.bytes[..have].chunks(SECTOR_BYTES).enumerate() {
                let sector_at = from + (place * SECTOR_BYTES) as u64;
                if sector.starts_with(&MAGIC) {
                    return Ok(Some(sector_at));
                }
                if let Some(hole) = &mut self.hole
                    && sector_at >= self.stale_end
                    && sector.iter().any(|&byte| byte != 0)
                {
                    hole.dirty_end = sector_at + sector.len() as u64;
                }
            }
            from += have.next_multiple_of(SECTOR_BYTES) as u64;
        }
    }

    /// A hole ends at `at` with a block (or the footer): it is told, with what must have been in it.
    fn end_hole(&mut self, scan: &mut Scan, at: u64, next: Option<(&BlockHeader, &BlockIndex)>) {
        if self.live {
            return;
        }
        let Some(hole) = self.hole.take() else { return };
        let arrival = scan.index.blocks.last().map(|block| block.arrival_last.saturating_add(1));
        let records = next.and_then(|(header, _)| Some(header.arrival_first.saturating_sub(arrival?)));
        let mut lost = Vec::new();
        for (stream, last) in scan.last_sequences() {
            let first_after = next.and_then(|(_, index)| first_of(index, &stream));
            match first_after {
                Some(after) if after <= last.saturating_add(1) => {}
                Some(after) => lost.push(LostSequences { stream, first: last + 1, last: Some(after - 1) }),
                // The next block has nothing of it: nothing is known.
                None => {}
            }
        }
        let what = if hole.dirty_end > hole.begin {
            format!("hole before a later block that survived ({})", hole.reason)
        } else {
            "hole before a later block that survived (never written)".to_string()
        };
        scan.damage.push(Damage {
            file: self.path.into(),
            offset: hole.begin,
            bytes: at - hole.begin,
            what,
            records,
            lost,
        });
    }

    /// Nothing follows: a torn end, if bytes stand there.
    fn tail(&mut self, scan: &mut Scan) {
        let Some(hole) = self.hole else { return };
        if self.live || hole.dirty_end <= hole.begin {
            self.hole = self.hole.filter(|_| self.live);
            return;
        }
        let lost = scan.last_sequences().into_iter().map(|(stream, last)| LostSequences {
            stream,
            first: last.saturating_add(1),
            last: None,
        });
        scan.damage.push(Damage {
            file: self.path.into(),
            offset: hole.begin,
            bytes: hole.dirty_end - hole.begin,
            what: format!("torn end ({})", hole.reason),
            records: None,
            lost: lost.collect(),
        });
    }
}

fn first_of(index: &BlockIndex, stream: &str) -> Option<u64> {
    let local = index.streams.iter().position(|(_, key)| key == stream)?;
    let ranges = index.ranges.iter().filter(|r| usize::from(r.local) == local && r.class == RangeClass::Data);
    ranges.map(|range| range.min).min()
}

/// Unpacks the records of a block into `out` (uncompressed ones are copied).
pub fn unpack(header: &BlockHeader, stored: &[u8], out: &mut Vec<u8>) -> Result<(), BlockError> {
    if stored.len() != header.records_bytes as usize {
        return Err(BlockError::Short { need: header.records_bytes.into(), have: stored.len() as u64 });
    }
    out.clear();
    match header.codec {
        Codec::None => out.extend_from_slice(stored),
        Codec::Zstd => {
            out.resize(header.records_raw_bytes as usize, 0);
            match zstd::bulk::decompress_to_buffer(stored, &mut out[..]) {
                Ok(bytes) if bytes == out.len() => {}
                _ => return Err(BlockError::Codec),
            }
        }
    }
    Ok(())
}

/// Checks all records of a block: chunk checksums, that they parse, that their number is right.
pub fn check_records(header: &BlockHeader, index: &BlockIndex, stored: &[u8]) -> Result<(), BlockError> {
    let mut unpacked = Vec::new();
    let records = match header.codec {
        Codec::None if stored.len() == header.records_bytes as usize => stored,
        _ => {
            unpack(header, stored, &mut unpacked)?;
            &unpacked
        }
    };
    for number in 0..index.chunks.len() {
        let span = index.chunk_span(header, number);
        index.check_chunk(number, &records[span.clone()])?;
        let mut count = 0;
        for record in Records::new(&records[span.clone()]) {
            let (record, _) = record?;
            if usize::from(record.local) >= index.streams.len() {
                return Err(BlockError::Record(span.start as u32));
            }
            count += 1;
        }
        if count != index.chunks[number].records {
            return Err(BlockError::Record(span.start as u32));
        }
    }
    Ok(())
}

/// Reads header and index area of a block that the index names.
pub fn read_block(
    file: &File,
    entry: &BlockEntry,
    uuid: &[u8; 16],
) -> io::Result<Result<(BlockHeader, BlockIndex), BlockError>> {
    let mut head = [0; HEADER_BYTES];
    let have = read_at(file, &mut head, entry.offset)?;
    let header = match BlockHeader::parse(&head[..have]) {
        Ok(header) => header,
        Err(error) => return Ok(Err(error)),
    };
    if header.uuid != *uuid || BlockEntry::of(&header, entry.offset) != *entry {
        return Ok(Err(BlockError::Index("block and footer differ")));
    }
    let mut index = vec![0; header.index_bytes as usize];
    let at = entry.offset + (HEADER_BYTES + header.records_bytes as usize) as u64;
    let have = read_at(file, &mut index, at)?;
    if let Err(error) = BlockHeader::check(&head, &index[..have]) {
        return Ok(Err(error));
    }
    Ok(BlockIndex::parse(&header, &index[..have]).map(|index| (header, index)))
}
