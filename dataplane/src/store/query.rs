//! Queries: records of a stream by sequence, or of all streams by time, streamed in arrival order.

use std::sync::Arc;

use crate::store::StoreError;
use crate::store::reader::{Reader, Segment};
use crate::store::scan::{Damage, block_damage, unpack};
use crate::sys::file::read_at;
use crate::wire::block::{BlockError, BlockHeader, BlockIndex, Codec, HEADER_BYTES, RangeClass, RecordHeader, Records};

/// Which records a query yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Select {
    /// All of them.
    All,
    /// Those of a stream whose sequences (a gap's whole range) meet `first..=last`.
    Sequence {
        /// The stream's place in [`Reader::streams`].
        stream: usize,
        /// First sequence.
        first: u64,
        /// Last sequence.
        last: u64,
    },
    /// Those captured in `from..=to` (UTC ns), of one stream or of all.
    Time {
        /// Earliest capture time.
        from: i64,
        /// Latest capture time.
        to: i64,
        /// Only this stream.
        stream: Option<usize>,
    },
}

/// A record found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The stream's place in [`Reader::streams`].
    pub stream: usize,
    /// Arrival index.
    pub arrival: u64,
    /// Everything but the body.
    pub header: RecordHeader,
    /// The body.
    pub body: &'a [u8],
}

/// One step of a query.
#[derive(Debug)]
pub enum Step<'a> {
    /// A record.
    Record(Found<'a>),
    /// A part that could not be read; the query goes on behind it.
    Damage(Box<Damage>),
}

/// What a query has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueryCost {
    /// Blocks whose index was looked at.
    pub blocks: u64,
    /// Chunks (or whole packed blocks) read and checked.
    pub chunks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// A running query. Ask with [`Query::step`] until `None`.
pub struct Query<'r> {
    reader: &'r mut Reader,
    select: Select,
    segment: usize,
    blocks: std::vec::IntoIter<u32>,
    block: Option<OpenBlock>,
    bytes: Vec<u8>,
    stored: Vec<u8>,
    cost: QueryCost,
}

struct OpenBlock {
    segment: usize,
    index: Arc<(BlockHeader, BlockIndex)>,
    offset: u64,
    chunks: std::vec::IntoIter<u16>,
    /// The walk inside the chunk in hand: first byte and end in `bytes`, arrival index of the next record.
    at: usize,
    end: usize,
    arrival: u64,
    unpacked: bool,
}

impl Reader {
    /// Begins a query.
    pub fn query(&mut self, select: Select) -> Query<'_> {
        Query {
            reader: self,
            select,
            segment: 0,
            blocks: Vec::new().into_iter(),
            block: None,
            bytes: Vec::new(),
            stored: Vec::new(),
            cost: QueryCost::default(),
        }
    }
}

impl Query<'_> {
    /// The next record or damage; `None` at the end.
    pub fn step(&mut self) -> Result<Option<Step<'_>>, StoreError> {
        loop {
            match self.advance()? {
                Advance::Found(at, header, end, arrival, stream) => {
                    let body = &self.bytes[at..end];
                    return Ok(Some(Step::Record(Found { stream, arrival, header, body })));
                }
                Advance::Damage(damage) => return Ok(Some(Step::Damage(damage))),
                Advance::Nothing => {}
                Advance::End => return Ok(None),
            }
        }
    }

    /// What it has read so far.
    pub fn cost(&self) -> QueryCost {
        self.cost
    }

    /// The reader's stream key.
    pub fn key(&self, stream: usize) -> &str {
        &self.reader.streams()[stream].key
    }

    fn advance(&mut self) -> Result<Advance, StoreError> {
        if let Some(block) = &mut self.block {
            if block.at < block.end {
                return Ok(walk(block, &self.bytes, &self.reader.segments()[block.segment], &self.select));
            }
            if let Some(chunk) = block.chunks.next() {
                return self.read_chunk(chunk);
            }
            self.block = None;
        }
        if let Some(block) = self.blocks.next() {
            return self.open_block(block);
        }
        let Some(segment) = self.reader.segments().get(self.segment) else { return Ok(Advance::End) };
        self.blocks = candidates(segment, &self.select).into_iter();
        self.segment += 1;
        Ok(Advance::Nothing)
    }

    fn open_block(&mut self, block: u32) -> Result<Advance, StoreError> {
        let place = self.segment - 1;
        self.cost.blocks += 1;
        let entry = self.reader.segments()[place].index.blocks[block as usize];
        match self.reader.block(place, block)? {
            Ok(index) => {
                let chunks = chunks(&index.1, &self.reader.segments()[place], &self.select).into_iter();
                let offset = entry.offset;
                self.block = Some(OpenBlock {
                    segment: place,
                    index,
                    offset,
                    chunks,
                    at: 0,
                    end: 0,
                    arrival: 0,
                    unpacked: false,
                });
                Ok(Advance::Nothing)
            }
            Err(error) => Ok(Advance::Damage(Box::new(Damage {
                file: self.reader.segments()[place].path.clone(),
                offset: entry.offset,
                bytes: entry.padded_bytes(),
                what: error.to_string(),
                records: Some(entry.record_count.into()),
                lost: Vec::new(),
            }))),
        }
    }

    fn read_chunk(&mut self, chunk: u16) -> Result<Advance, StoreError> {
        let block = self.block.as_mut().expect("a block is open");
        let (header, index) = &*block.index;
        let number = usize::from(chunk);
        let span = index.chunk_span(header, number);
        let records_at = block.offset + HEADER_BYTES as u64;
        let file = self.reader.file(block.segment)?;
        let read = match header.codec {
            Codec::None => {
                self.bytes.resize(span.len(), 0);
                let read = read_at(file, &mut self.bytes, records_at + span.start as u64);
                self.cost.bytes += span.len() as u64;
                (block.at, block.end) = (0, span.len());
                read.map(|_| Ok(()))
            }
            Codec::Zstd if block.unpacked => {
                (block.at, block.end) = (span.start, span.end);
                Ok(Ok(()))
            }
            Codec::Zstd => {
                self.stored.resize(header.records_bytes as usize, 0);
                let read = read_at(file, &mut self.stored, records_at);
                self.cost.bytes += u64::from(header.records_bytes);
                (block.at, block.end) = (span.start, span.end);
                read.map(|_| unpack(header, &self.stored, &mut self.bytes))
            }
        };
        self.cost.chunks += 1;
        let path = &self.reader.segments()[block.segment].path;
        let read = read.map_err(|source| StoreError::io("read", path, source))?;
        block.unpacked = header.codec == Codec::Zstd && read.is_ok();
        let checked = read.and_then(|()| index.check_chunk(number, &self.bytes[block.at..block.end]));
        if let Err(error) = checked {
            block.at = block.end;
            let damage = chunk_damage(path, block.offset, header, index, number, error);
            if error == BlockError::Codec {
                // None of its chunks can be read.
                block.chunks = Vec::new().into_iter();
            }
            return Ok(Advance::Damage(Box::new(damage)));
        }
        let before: u64 = index.chunks[..number].iter().map(|chunk| u64::from(chunk.records)).sum();
        block.arrival = header.arrival_first + before;
        Ok(Advance::Nothing)
    }
}

enum Advance {
    Found(usize, RecordHeader, usize, u64, usize),
    Damage(Box<Damage>),
    Nothing,
    End,
}

/// Walks the chunk in hand to the next record that is selected.
fn walk(block: &mut OpenBlock, bytes: &[u8], segment: &Segment, select: &Select) -> Advance {
    let (header, index) = &*block.index;
    let mut records = Records::from(&bytes[..block.end], block.at);
    while let Some(record) = records.next() {
        let Ok((record, body)) = record else {
            // The chunk's checksum is right, so a writer wrote this.
            let error = BlockError::Record(block.at as u32);
            block.at = block.end;
            return Advance::Damage(Box::new(block_damage(&segment.path, block.offset, header, index, error)));
        };
        let arrival = block.arrival;
        block.arrival += 1;
        block.at = records.position();
        let stream = index.streams.get(usize::from(record.local)).and_then(|(id, _)| segment.stream_of(*id));
        let Some(stream) = stream else { continue };
        if selected(select, stream, &record, body) {
            return Advance::Found(block.at - body.len(), record, block.at, arrival, stream);
        }
    }
    block.at = block.end;
    Advance::Nothing
}

fn selected(select: &Select, stream: usize, record: &RecordHeader, body: &[u8]) -> bool {
    match *select {
        Select::All => true,
        Select::Sequence { stream: wanted, first, last } => {
            stream == wanted && record.sequence <= last && record.sequence_last(body) >= first
        }
        Select::Time { from, to, stream: wanted } => {
            (from..=to).contains(&record.capture_ns) && wanted.is_none_or(|wanted| wanted == stream)
        }
    }
}

/// The blocks of a segment that can hold what is selected, in file order.
fn candidates(segment: &Segment, select: &Select) -> Vec<u32> {
    match *select {
        Select::All => (0..segment.index.blocks.len() as u32).collect(),
        Select::Sequence { stream, first, last } => by_sequence(segment, stream, first, last),
        Select::Time { from, to, .. } => {
            let begin = segment.time_max_so_far.partition_point(|&max| max < from);
            let end = segment.time_min_from_here.partition_point(|&min| min <= to);
            let blocks = segment.index.blocks.iter().enumerate().take(end).skip(begin);
            let meets = blocks.filter(|(_, block)| block.time_max >= from && block.time_min <= to);
            meets.map(|(place, _)| place as u32).collect()
        }
    }
}

fn by_sequence(segment: &Segment, stream: usize, first: u64, last: u64) -> Vec<u32> {
    let Some(local) = segment.to_stream.iter().position(|&known| known == stream) else { return Vec::new() };
    let ranges = &segment.ranges[local];
    let range = |place: &u32| &segment.index.ranges[*place as usize];
    let meets = |place: &&u32| range(place).max >= first && range(place).min <= last;
    let data = &ranges.by_class[RangeClass::Data as usize];
    let mut blocks: Vec<u32> = if ranges.ordered {
        let begin = data.partition_point(|place| range(place).max < first);
        data[begin..].iter().take_while(|place| range(place).min <= last).map(|place| range(place).block).collect()
    } else {
        data.iter().filter(meets).map(|place| range(place).block).collect()
    };
    let others = [RangeClass::Late, RangeClass::Mark];
    let others = others.iter().flat_map(|&class| &ranges.by_class[class as usize]).filter(meets);
    blocks.extend(others.map(|place| range(place).block));
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// The chunks of a block that can hold what is selected, in order.
fn chunks(index: &BlockIndex, segment: &Segment, select: &Select) -> Vec<u16> {
    match *select {
        Select::All => (0..index.chunks.len() as u16).collect(),
        Select::Sequence { stream, first, last } => {
            let wanted = |local: u16| segment.stream_of(index.streams[usize::from(local)].0) == Some(stream);
            let meets = index.ranges.iter().filter(|r| r.max >= first && r.min <= last && wanted(r.local));
            let mut chunks: Vec<u16> = meets.map(|range| range.chunk).collect();
            chunks.sort_unstable();
            chunks.dedup();
            chunks
        }
        Select::Time { from, to, .. } => {
            let chunks = index.chunks.iter().enumerate();
            let meets = chunks.filter(|(_, chunk)| chunk.time_max >= from && chunk.time_min <= to);
            meets.map(|(place, _)| place as u16).collect()
        }
    }
}

/// The damage of one chunk: its records and sequences only.
fn chunk_damage(
    path: &std::path::Path,
    offset: u64,
    header: &BlockHeader,
    index: &BlockIndex,
    number: usize,
    error: BlockError,
) -> Damage {
    if error == BlockError::Codec {
        return block_damage(path, offset, header, index, error);
    }
    let of_chunk = index.ranges.iter().filter(|range| usize::from(range.chunk) == number).copied().collect();
    let index_of_chunk = BlockIndex { ranges: of_chunk, ..index.clone() };
    let mut damage = block_damage(path, offset, header, &index_of_chunk, error);
    damage.records = Some(index.chunks[number].records.into());
    if header.codec == Codec::None {
        let span = index.chunk_span(header, number);
        damage.offset = offset + (HEADER_BYTES + span.start) as u64;
        damage.bytes = span.len() as u64;
    }
    damage
}
