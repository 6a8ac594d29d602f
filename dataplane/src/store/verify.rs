//! Verifying a store: every checksum, every index entry against the records, the order of arrival.

use std::fs::File;
use std::path::Path;

use crate::store::StoreError;
use crate::store::reader::Reader;
use crate::store::scan::{Damage, Depth, scan, unpack};
use crate::sys::file::read_at;
use crate::wire::block::{
    BlockEntry, BlockError, BlockHeader, BlockIndex, HEADER_BYTES, RangeClass, RangeEntry, Records, SegmentIndex,
};

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Segments read.
    pub segments: u64,
    /// Blocks that are whole.
    pub blocks: u64,
    /// Records in them.
    pub records: u64,
    /// Messages and raw frames among them.
    pub data_records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Records that the writer counted as lost or a crash cost: holes in the arrival index.
    pub arrival_holes: u64,
    /// All that is not as it should be.
    pub damage: Vec<Damage>,
}

/// Reads the whole store. `progress` is told bytes done and in all, about once a block.
pub fn verify(path: &Path, mut progress: impl FnMut(u64, u64)) -> Result<Verified, StoreError> {
    let mut reader = Reader::open_with(path, Depth::Index)?;
    let mut out = Verified { damage: reader.damage().to_vec(), ..Verified::default() };
    let total: u64 = reader.segments().iter().map(segment_bytes).sum();
    let live = reader.is_live();
    let mut arrival_next = None;
    for place in 0..reader.segments().len() {
        let (path, sealed) = (reader.segments()[place].path.clone(), reader.segments()[place].sealed);
        let stated = reader.segments()[place].index.clone();
        let file = reader.file(place)?;
        let scanned = scan(file, &path, Depth::Full, live && !sealed)?;
        out.segments += 1;
        out.damage.retain(|known| known.file != path || known.what.contains("footer"));
        out.damage.extend(scanned.damage.iter().cloned());
        if sealed {
            out.damage.extend(compare(&path, &stated, &scanned.index, &scanned.damage));
        }
        for entry in &scanned.index.blocks {
            check_order(&mut out, &path, entry, &mut arrival_next);
            check_block(&mut out, file, &path, entry)?;
            out.bytes += entry.padded_bytes();
            progress(out.bytes, total);
        }
    }
    Ok(out)
}

fn segment_bytes(segment: &crate::store::Segment) -> u64 {
    segment.index.blocks.iter().map(BlockEntry::padded_bytes).sum()
}

fn damage(path: &Path, entry: &BlockEntry, what: String) -> Damage {
    Damage {
        file: path.into(),
        offset: entry.offset,
        bytes: entry.padded_bytes(),
        what,
        records: Some(entry.record_count.into()),
        lost: Vec::new(),
    }
}

/// Each block of the footer must have been found, unless the scan has told its damage. The other way round is no
/// damage: a block that only the scan finds was counted as lost, because its write failed yet reached the disk.
fn compare(path: &Path, stated: &SegmentIndex, found: &SegmentIndex, told: &[Damage]) -> Option<Damage> {
    let missing = stated.blocks.iter().find(|block| {
        let end = block.offset + block.padded_bytes();
        let is_told = told.iter().any(|damage| damage.offset < end && damage.offset + damage.bytes > block.offset);
        !found.blocks.contains(block) && !is_told
    });
    missing.map(|block| damage(path, block, "a block that the footer lists is not there".into()))
}

fn check_order(out: &mut Verified, path: &Path, entry: &BlockEntry, next: &mut Option<u64>) {
    match *next {
        Some(next) if entry.arrival_first < next => {
            let what = format!("arrival index {} where at least {next} was due", entry.arrival_first);
            out.damage.push(damage(path, entry, what));
        }
        Some(next) => out.arrival_holes += entry.arrival_first - next,
        None => {}
    }
    *next = Some((*next).unwrap_or(0).max(entry.arrival_last + 1));
}

/// The index area must say what the records say.
fn check_block(out: &mut Verified, file: &File, path: &Path, entry: &BlockEntry) -> Result<(), StoreError> {
    let io = |source| StoreError::io("read", path, source);
    let mut bytes = vec![0; HEADER_BYTES + entry.records_bytes as usize + entry.index_bytes as usize];
    let have = read_at(file, &mut bytes, entry.offset).map_err(io)?;
    match records_agree(&bytes[..have]) {
        Ok((records, data_records)) => {
            out.blocks += 1;
            out.records += records;
            out.data_records += data_records;
        }
        Err(error) => out.damage.push(damage(path, entry, error.to_string())),
    }
    Ok(())
}

fn records_agree(block: &[u8]) -> Result<(u64, u64), BlockError> {
    let header = BlockHeader::parse(block)?;
    let index_at = HEADER_BYTES + header.records_bytes as usize;
    let index_bytes = block.get(index_at..).ok_or(BlockError::Index("cut short"))?;
    let index = BlockIndex::parse(&header, index_bytes)?;
    let mut records = Vec::new();
    unpack(&header, &block[HEADER_BYTES..index_at], &mut records)?;
    let (mut ranges, mut data) = (Vec::<RangeEntry>::new(), 0);
    let mut times = (i64::MAX, i64::MIN);
    for (number, chunk) in index.chunks.iter().enumerate() {
        let from = ranges.len();
        let mut chunk_times = (i64::MAX, i64::MIN);
        for record in Records::new(&records[index.chunk_span(&header, number)]) {
            let (record, body) = record?;
            let class = RangeClass::of(record.kind, record.flags);
            let (min, max) = (record.sequence, record.sequence_last(body));
            data += u64::from(record.kind.is_data());
            chunk_times = (chunk_times.0.min(record.capture_ns), chunk_times.1.max(record.capture_ns));
            match ranges[from..].iter_mut().find(|range| range.local == record.local && range.class == class) {
                Some(range) => {
                    range.count += 1;
                    (range.min, range.max) = (range.min.min(min), range.max.max(max));
                }
                None => {
                    ranges.push(RangeEntry { local: record.local, chunk: number as u16, class, count: 1, min, max });
                }
            }
        }
        if chunk_times != (chunk.time_min, chunk.time_max) {
            return Err(BlockError::Index("a chunk's times differ from its records"));
        }
        times = (times.0.min(chunk.time_min), times.1.max(chunk.time_max));
    }
    if ranges != index.ranges {
        return Err(BlockError::Index("sequence ranges differ from the records"));
    }
    if times != (header.time_min, header.time_max) {
        return Err(BlockError::Index("the block's times differ from its records"));
    }
    Ok((header.record_count.into(), data))
}
