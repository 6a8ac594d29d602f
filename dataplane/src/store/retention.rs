//! Retention: the oldest sealed segments go, one at a time, until every bound holds. It works from the directory
//! itself, so that a file which no index knows is counted and deleted like any other.

use std::fs;
use std::path::{Path, PathBuf};

use crate::store::StoreError;
use crate::sys::file;

/// Suffix of a sealed segment.
pub const SEALED_SUFFIX: &str = ".tri";
/// Suffix of a segment that is being written, or that a crash left.
pub const PARTIAL_SUFFIX: &str = ".tri.partial";

/// Bounds of a store; each is optional.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retention {
    /// Most bytes that the store's files take on the disk.
    pub bytes_max: Option<u64>,
    /// Longest time since a segment was last written, ns.
    pub age_ns_max: Option<i64>,
    /// Fewest bytes that stay free on the file system.
    pub free_bytes_min: Option<u64>,
}

impl Retention {
    /// Whether there is any bound.
    pub fn is_bounded(&self) -> bool {
        *self != Retention::default()
    }
}

/// A segment file as the directory shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentFile {
    /// Its path.
    pub path: PathBuf,
    /// The number in its name; `None` for a name that is not ours.
    pub number: Option<u64>,
    /// Whether it has its final name.
    pub sealed: bool,
    /// Bytes that it takes on the disk.
    pub disk_bytes: u64,
    /// When it was last written, UTC ns.
    pub modified_ns: i64,
}

/// A segment that retention deleted, and the bound that asked for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The file.
    pub path: PathBuf,
    /// Bytes that it took on the disk.
    pub disk_bytes: u64,
    /// `bytes`, `age` or `free`.
    pub bound: &'static str,
}

/// The file name of a segment: number and the first bytes of its UUID, so that it is unique without a clock.
pub fn segment_name(number: u64, uuid: &[u8; 16]) -> String {
    format!("{number:010}-{:02x}{:02x}{:02x}{:02x}{SEALED_SUFFIX}", uuid[0], uuid[1], uuid[2], uuid[3])
}

/// The segment files of a directory, oldest first: by number, names that are not ours before them by time.
pub fn list(directory: &Path) -> Result<Vec<SegmentFile>, StoreError> {
    use std::os::unix::fs::MetadataExt;
    let io = |source| StoreError::io("list", directory, source);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let sealed = name.ends_with(SEALED_SUFFIX);
        if !sealed && !name.ends_with(PARTIAL_SUFFIX) {
            continue;
        }
        // A file may vanish or get its final name between the listing and this.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        files.push(SegmentFile {
            number: name.split_once('-').and_then(|(number, _)| number.parse().ok()),
            sealed,
            disk_bytes: metadata.blocks() * 512,
            modified_ns: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
            path,
        });
    }
    files.sort_by(|a, b| (a.number, a.modified_ns, &a.path).cmp(&(b.number, b.modified_ns, &b.path)));
    Ok(files)
}

/// Deletes the oldest sealed segments, one at a time, looking at the directory and the file system again after each,
/// until every bound holds or no sealed segment is left. `utc_ns` is the present.
pub fn enforce(directory: &Path, retention: &Retention, utc_ns: i64) -> Result<Vec<Removed>, StoreError> {
    let mut removed = Vec::new();
    if !retention.is_bounded() {
        return Ok(removed);
    }
    loop {
        let files = list(directory)?;
        let Some(oldest) = files.iter().find(|file| file.sealed) else { return Ok(removed) };
        let Some(bound) = violated(directory, retention, &files, oldest, utc_ns)? else { return Ok(removed) };
        fs::remove_file(&oldest.path).map_err(|source| StoreError::io("delete", &oldest.path, source))?;
        file::sync_directory(directory).map_err(|source| StoreError::io("sync", directory, source))?;
        removed.push(Removed { path: oldest.path.clone(), disk_bytes: oldest.disk_bytes, bound });
    }
}

fn violated(
    directory: &Path,
    retention: &Retention,
    files: &[SegmentFile],
    oldest: &SegmentFile,
    utc_ns: i64,
) -> Result<Option<&'static str>, StoreError> {
    let total: u64 = files.iter().map(|file| file.disk_bytes).sum();
    if retention.bytes_max.is_some_and(|most| total > most) {
        return Ok(Some("bytes"));
    }
    if retention.age_ns_max.is_some_and(|most| utc_ns - oldest.modified_ns > most) {
        return Ok(Some("age"));
    }
    if let Some(least) = retention.free_bytes_min {
        let space = file::space(directory).map_err(|source| StoreError::io("stat", directory, source))?;
        if space.available_bytes < least {
            return Ok(Some("free"));
        }
    }
    Ok(None)
}
