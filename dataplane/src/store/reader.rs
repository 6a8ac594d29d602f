//! Reading a store: a directory of segments or one file, sealed, unfinished or torn, also while it is being written.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::store::StoreError;
use crate::store::retention::{self, PARTIAL_SUFFIX, SEALED_SUFFIX, SegmentFile};
use crate::store::scan::{Damage, Depth, Scan, read_block, read_footer, read_info, scan};
use crate::sys::file;
use crate::wire::block::{BlockError, BlockHeader, BlockIndex, RangeClass, SegmentIndex, SegmentInfo};

/// Most segment files kept open: below the usual limit of 1,024 descriptors; 5 TB are 5,000 segments.
const OPEN_FILES_MAX: usize = 256;
/// Most parsed block indexes kept: about 3 KiB each, so 48 MiB; 16 GiB of blocks of 1 MiB.
const BLOCKS_CACHED_MAX: usize = 16 * 1024;
/// A segment may get its final name between listing and opening it; then the listing is done again.
const LIST_TRIES: u32 = 5;

/// What is known of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamInfo {
    /// Its key.
    pub key: String,
    /// Messages or raw frames, late fills included.
    pub data_records: u64,
    /// Late fills among them.
    pub late_fills: u64,
    /// Gaps, begins, ends, states, losses.
    pub mark_records: u64,
    /// Lowest and highest sequence of the data.
    pub sequences: Option<(u64, u64)>,
    /// Places in the reader's list of the segments that hold it.
    pub segments: Vec<usize>,
}

/// The ranges of one stream in one segment: places in the index's range list, by class.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamRanges {
    pub(super) by_class: [Vec<u32>; 3],
    /// Whether the data ranges follow one another, so that they can be searched in halves.
    pub(super) ordered: bool,
}

/// A segment of an open store.
#[derive(Debug)]
pub struct Segment {
    /// Its file.
    pub path: PathBuf,
    /// What its first block says.
    pub info: SegmentInfo,
    /// Its blocks, streams and ranges.
    pub index: SegmentIndex,
    /// Whether it is sealed.
    pub sealed: bool,
    scan: Option<Scan>,
    file: Option<File>,
    used: u64,
    pub(super) to_stream: Vec<usize>,
    pub(super) ranges: Vec<StreamRanges>,
    pub(super) time_max_so_far: Vec<i64>,
    pub(super) time_min_from_here: Vec<i64>,
}

impl Segment {
    /// The reader's stream behind a segment-local id.
    pub(super) fn stream_of(&self, id: u32) -> Option<usize> {
        self.to_stream.get(id as usize).copied().filter(|&stream| stream != usize::MAX)
    }
}

/// An open store.
pub struct Reader {
    path: PathBuf,
    single: bool,
    depth: Depth,
    live: bool,
    segments: Vec<Segment>,
    streams: Vec<StreamInfo>,
    by_key: HashMap<String, usize>,
    damage: Vec<Damage>,
    blocks: HashMap<(usize, u32), Arc<(BlockHeader, BlockIndex)>>,
    uses: u64,
}

impl Reader {
    /// Opens a store for queries: footers, and the index areas of what is not sealed. A query checks what it reads.
    pub fn open(path: &Path) -> Result<Reader, StoreError> {
        Reader::open_with(path, Depth::Index)
    }

    /// Opens a store; with [`Depth::Full`] every byte of what is not sealed is read and checked.
    pub fn open_with(path: &Path, depth: Depth) -> Result<Reader, StoreError> {
        let metadata = std::fs::metadata(path).map_err(|source| StoreError::io("open", path, source))?;
        let mut reader = Reader {
            path: path.into(),
            single: !metadata.is_dir(),
            depth,
            live: false,
            segments: Vec::new(),
            streams: Vec::new(),
            by_key: HashMap::new(),
            damage: Vec::new(),
            blocks: HashMap::new(),
            uses: 0,
        };
        reader.refresh()?;
        if reader.single && reader.segments.is_empty() {
            let first = reader.damage.first().map_or("not a .tri file".into(), ToString::to_string);
            return Err(StoreError::Unsupported(first));
        }
        if !reader.single && reader.segments.is_empty() && reader.damage.is_empty() && !reader.live {
            return Err(StoreError::NoStore(path.into()));
        }
        Ok(reader)
    }

    /// Takes in what was written since: new segments, new blocks of unfinished ones. Deleted segments leave.
    pub fn refresh(&mut self) -> Result<(), StoreError> {
        let lock_path = &self.path;
        self.live =
            file::is_locked(lock_path).map_err(|source| StoreError::io("look at the lock of", lock_path, source))?;
        for _ in 0..LIST_TRIES {
            let files = self.list()?;
            if self.load(&files)? {
                break;
            }
        }
        self.rebuild();
        Ok(())
    }

    fn list(&self) -> Result<Vec<SegmentFile>, StoreError> {
        if !self.single {
            return retention::list(&self.path);
        }
        let text = self.path.to_string_lossy();
        let (sealed, known) = (text.ends_with(SEALED_SUFFIX), text.ends_with(PARTIAL_SUFFIX));
        let sealed = sealed || !known;
        Ok(vec![SegmentFile { path: self.path.clone(), number: None, sealed, disk_bytes: 0, modified_ns: 0 }])
    }

    /// Brings the segments in line with the files; false when one vanished meanwhile.
    fn load(&mut self, files: &[SegmentFile]) -> Result<bool, StoreError> {
        let mut old: HashMap<PathBuf, Segment> =
            self.segments.drain(..).map(|segment| (segment.path.clone(), segment)).collect();
        let mut whole = true;
        self.damage.clear();
        let mut blocks = std::mem::take(&mut self.blocks);
        for listed in files {
            let known = old.remove(&listed.path);
            if known.as_ref().is_none_or(|segment| !segment.sealed) {
                blocks.clear();
            }
            match self.load_one(listed, known) {
                Ok(Some(segment)) => self.segments.push(segment),
                Ok(None) => {}
                Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && !self.single => {
                    whole = false;
                }
                Err(StoreError::Format { path, offset, source }) => self.unreadable(listed, path, offset, source),
                Err(error) => return Err(error),
            }
        }
        if old.is_empty() {
            self.blocks = blocks;
        }
        self.segments.sort_by_key(|segment| segment.info.number);
        Ok(whole)
    }

    /// A file without a readable segment header. One that was being made when its writer died has nothing in it.
    fn unreadable(&mut self, listed: &SegmentFile, path: PathBuf, offset: u64, error: BlockError) {
        if self.live && !listed.sealed {
            return;
        }
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let what = format!("not a segment: {error}");
        self.damage.push(Damage { file: path, offset, bytes, what, records: None, lost: Vec::new() });
    }

    fn load_one(&mut self, listed: &SegmentFile, known: Option<Segment>) -> Result<Option<Segment>, StoreError> {
        let path = &listed.path;
        if let Some(mut segment) = known {
            if segment.sealed {
                self.damage.extend(segment.scan.iter().flat_map(|scan| scan.damage.clone()));
                return Ok(Some(segment));
            }
            let file = open(path)?;
            if let Some(scan) = &mut segment.scan {
                scan.go_on(&file, path, self.depth, self.live)?;
                segment.index = scan.index.clone();
                self.damage.extend(scan.damage.iter().cloned());
                return Ok(Some(segment));
            }
        }
        let file = open(path)?;
        let info = read_info(&file, path)?;
        let footer = if listed.sealed { read_footer(&file, path, &info)? } else { None };
        let (index, scanned) = match footer {
            Some(index) => (index, None),
            None => {
                let live = self.live && !listed.sealed;
                let mut scanned = scan(&file, path, self.depth, live)?;
                if listed.sealed {
                    scanned.damage.push(missing_footer(path, &scanned));
                }
                self.damage.extend(scanned.damage.iter().cloned());
                (scanned.index.clone(), Some(scanned))
            }
        };
        Ok(Some(Segment {
            path: path.clone(),
            info,
            index,
            sealed: listed.sealed,
            scan: scanned,
            file: Some(file),
            used: 0,
            to_stream: Vec::new(),
            ranges: Vec::new(),
            time_max_so_far: Vec::new(),
            time_min_from_here: Vec::new(),
        }))
    }

    /// Streams and search tables from the segments' indexes.
    fn rebuild(&mut self) {
        self.streams.clear();
        self.by_key.clear();
        for (place, segment) in self.segments.iter_mut().enumerate() {
            segment.to_stream.clear();
            for key in &segment.index.streams {
                if key.is_empty() {
                    // The only block that named it is lost; nothing refers to it.
                    segment.to_stream.push(usize::MAX);
                    continue;
                }
                let stream = *self.by_key.entry(key.clone()).or_insert_with(|| {
                    self.streams.push(StreamInfo { key: key.clone(), ..StreamInfo::default() });
                    self.streams.len() - 1
                });
                self.streams[stream].segments.push(place);
                segment.to_stream.push(stream);
            }
            tables(segment);
            for range in &segment.index.ranges {
                if let Some(stream) = segment.stream_of(range.stream) {
                    count(&mut self.streams[stream], range);
                }
            }
        }
        self.close_some();
    }

    fn close_some(&mut self) {
        let open = self.segments.iter().filter(|segment| segment.file.is_some()).count();
        if open > OPEN_FILES_MAX {
            let mut used: Vec<u64> = self.segments.iter().map(|segment| segment.used).collect();
            used.sort_unstable();
            let limit = used[used.len() - OPEN_FILES_MAX / 2];
            self.segments.iter_mut().filter(|segment| segment.used <= limit).for_each(|segment| segment.file = None);
        }
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The segments in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The streams in order of their first appearance.
    pub fn streams(&self) -> &[StreamInfo] {
        &self.streams
    }

    /// Damage found while opening (and by refreshes).
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Whether another process was writing to the store at the last refresh.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// The stream with this key, or the only one whose key contains the text.
    pub fn find_stream(&self, wanted: &str) -> Result<usize, StoreError> {
        if let Some(&stream) = self.by_key.get(wanted) {
            return Ok(stream);
        }
        let matches: Vec<usize> =
            (0..self.streams.len()).filter(|&stream| self.streams[stream].key.contains(wanted)).collect();
        if let [stream] = matches[..] {
            return Ok(stream);
        }
        let listed: Box<dyn Iterator<Item = usize>> =
            if matches.is_empty() { Box::new(0..self.streams.len()) } else { Box::new(matches.into_iter()) };
        let candidates = listed.map(|stream| self.streams[stream].key.clone()).collect();
        Err(StoreError::Stream { wanted: wanted.into(), candidates })
    }

    /// The file of a segment, opened again when it was closed meanwhile.
    pub(crate) fn file(&mut self, segment: usize) -> Result<&File, StoreError> {
        self.uses += 1;
        let uses = self.uses;
        if self.segments[segment].file.is_none() {
            let file = open(&self.segments[segment].path)?;
            self.segments[segment].file = Some(file);
            self.segments[segment].used = uses;
            self.close_some();
        }
        let segment = &mut self.segments[segment];
        segment.used = uses;
        Ok(segment.file.as_ref().expect("just opened"))
    }

    /// Header and index of a block, checked; from the cache when it was read before.
    pub(super) fn block(
        &mut self,
        segment: usize,
        block: u32,
    ) -> Result<Result<Arc<(BlockHeader, BlockIndex)>, BlockError>, StoreError> {
        if let Some(known) = self.blocks.get(&(segment, block)) {
            return Ok(Ok(known.clone()));
        }
        let (entry, uuid) = (self.segments[segment].index.blocks[block as usize], self.segments[segment].info.uuid);
        let read = read_block(self.file(segment)?, &entry, &uuid);
        let read = read.map_err(|source| StoreError::io("read", &self.segments[segment].path, source))?;
        Ok(read.map(|read| {
            if self.blocks.len() >= BLOCKS_CACHED_MAX {
                self.blocks.clear();
            }
            let read = Arc::new(read);
            self.blocks.insert((segment, block), read.clone());
            read
        }))
    }

    /// Forgets cached block indexes and lets the kernel forget the files' clean pages: for measuring cold reads.
    pub fn drop_caches(&mut self) -> Result<(), StoreError> {
        self.blocks.clear();
        for segment in 0..self.segments.len() {
            let dropped = file::drop_cache(self.file(segment)?);
            dropped.map_err(|source| StoreError::io("drop the cache of", &self.segments[segment].path, source))?;
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<File, StoreError> {
    File::open(path).map_err(|source| StoreError::io("open", path, source))
}

fn missing_footer(path: &Path, scan: &Scan) -> Damage {
    Damage {
        file: path.into(),
        offset: scan.end,
        bytes: 0,
        what: "the footer of a sealed segment is missing or damaged; its blocks were read instead".into(),
        records: Some(0),
        lost: Vec::new(),
    }
}

fn count(stream: &mut StreamInfo, range: &crate::wire::block::SegmentRange) {
    let records = u64::from(range.count);
    match range.class {
        RangeClass::Mark => stream.mark_records += records,
        class => {
            stream.data_records += records;
            stream.late_fills += if class == RangeClass::Late { records } else { 0 };
            let (min, max) = stream.sequences.unwrap_or((range.min, range.max));
            stream.sequences = Some((min.min(range.min), max.max(range.max)));
        }
    }
}

fn tables(segment: &mut Segment) {
    segment.ranges = vec![StreamRanges { ordered: true, ..StreamRanges::default() }; segment.index.streams.len()];
    for (place, range) in segment.index.ranges.iter().enumerate() {
        let stream = &mut segment.ranges[range.stream as usize];
        if range.class == RangeClass::Data
            && let Some(&before) = stream.by_class[0].last()
        {
            stream.ordered &= segment.index.ranges[before as usize].max < range.min;
        }
        stream.by_class[range.class as usize].push(place as u32);
    }
    let blocks = &segment.index.blocks;
    let mut so_far = i64::MIN;
    segment.time_max_so_far = blocks
        .iter()
        .map(|block| {
            so_far = so_far.max(block.time_max);
            so_far
        })
        .collect();
    let mut from_here = i64::MAX;
    let mut reversed: Vec<i64> = blocks
        .iter()
        .rev()
        .map(|block| {
            from_here = from_here.min(block.time_min);
            from_here
        })
        .collect();
    reversed.reverse();
    segment.time_min_from_here = reversed;
}
