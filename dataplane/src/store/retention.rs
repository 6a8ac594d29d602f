//! Retention: the oldest sealed segments go, one at a time, until every bound holds. It works from the directory
//! itself, so that a file which no index knows is counted and deleted like any other.

use std::fs;
use std::path::{Path, PathBuf};

use crate::store::StoreError;
use crate::sys::file;
use crate::units::NANOS_PER_SECOND;

/// How often a running store's retention looks at the directory when nothing else happens, and how long it waits
/// between two deletions by age while the clock is in doubt.
pub const SWEEP_EVERY_NS: i64 = 5 * NANOS_PER_SECOND;
/// A wall clock that gains this much on the monotonic one was set, not slewed: NTP slews by 0.5 ms in a second, 43 s
/// in a day.
const STEP_NS: i64 = 60 * NANOS_PER_SECOND;

/// Suffix of a sealed segment.
pub const SEALED_SUFFIX: &str = ".tri";
/// Suffix of a segment that is being written, or that a crash left.
pub const PARTIAL_SUFFIX: &str = ".tri.partial";

/// The labels of the bounds that delete segments.
pub const BOUNDS: [&str; 3] = ["bytes", "age", "free"];

/// Bounds of a store; each is optional.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retention {
    /// Most bytes that sealed segments and what a crash left take on the disk. The two segments that a running writer
    /// has open (the one it writes and the next, both preallocated) come on top: counted, they would leave a bound of
    /// two segments no sealed one at all.
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
    /// One of [`BOUNDS`].
    pub bound: &'static str,
}

/// The file name of a segment: number and the first bytes of its UUID, so that it is unique without a clock.
pub fn segment_name(number: u64, uuid: &[u8; 16]) -> String {
    format!("{number:010}-{:02x}{:02x}{:02x}{:02x}{SEALED_SUFFIX}", uuid[0], uuid[1], uuid[2], uuid[3])
}

/// Readings of a directory that changes each time, until the last one is taken as it is.
const LIST_TRIES: u32 = 32;

/// The segment files of a directory, oldest first: by number, names that are not ours before them by time.
///
/// A segment that gets its final name meanwhile can be missed: its old name is gone when it is looked at, its new one was not
/// there yet when the directory was read. So the directory is read until two readings agree.
pub fn list(directory: &Path) -> Result<Vec<SegmentFile>, StoreError> {
    let mut paths = segment_paths(directory)?;
    for _ in 0..LIST_TRIES {
        let files: Vec<SegmentFile> = paths.iter().filter_map(|path| look(path)).collect();
        let before = std::mem::replace(&mut paths, segment_paths(directory)?);
        if files.len() == before.len() && before == paths {
            return Ok(sorted(files));
        }
    }
    Ok(sorted(paths.iter().filter_map(|path| look(path)).collect()))
}

fn sorted(mut files: Vec<SegmentFile>) -> Vec<SegmentFile> {
    files.sort_by(|a, b| (a.number, a.modified_ns, &a.path).cmp(&(b.number, b.modified_ns, &b.path)));
    files
}

/// The paths that are segments by name, in order.
fn segment_paths(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let io = |source| StoreError::io("list", directory, source);
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.ends_with(SEALED_SUFFIX) || name.ends_with(PARTIAL_SUFFIX)) {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// `None` when it has gone, or has another name now.
fn look(path: &Path) -> Option<SegmentFile> {
    use std::os::unix::fs::MetadataExt;
    let name = path.file_name()?.to_str()?;
    let metadata = fs::metadata(path).ok()?;
    Some(SegmentFile {
        number: name.split_once('-').and_then(|(number, _)| number.parse().ok()),
        sealed: name.ends_with(SEALED_SUFFIX),
        disk_bytes: metadata.blocks() * 512,
        modified_ns: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
        path: path.into(),
    })
}

/// Deletes the oldest sealed segments, one at a time, looking at the directory and the file system again after each,
/// until every bound holds or no sealed segment is left. `utc_ns` is the present, and is believed: this is for
/// someone who looks on; a running store has a [`Sweeper`]. Unsealed files count unless a writer holds the directory.
pub fn enforce(directory: &Path, retention: &Retention, utc_ns: i64) -> Result<Vec<Removed>, StoreError> {
    let mut removed = Vec::new();
    if !retention.is_bounded() {
        return Ok(removed);
    }
    reachable(directory, retention)?;
    let live = file::is_locked(directory).map_err(|source| StoreError::io("lock", directory, source))?;
    loop {
        let files = list(directory)?;
        let Some(oldest) = files.iter().find(|file| file.sealed) else { return Ok(removed) };
        let total = files.iter().filter(|file| file.sealed || !live).map(|file| file.disk_bytes).sum();
        let bound = match over_bytes(retention, total).or(over_age(retention, oldest, utc_ns)) {
            None => under_free(directory, retention)?,
            bound => bound,
        };
        let Some(bound) = bound else { return Ok(removed) };
        removed.push(remove(directory, oldest, bound)?);
    }
}

/// What is left where a bound does not hold though there is no sealed segment to delete any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmet {
    /// One of [`BOUNDS`].
    pub bound: &'static str,
    /// Segments that are left, none of them sealed.
    pub segments: usize,
    /// Bytes that they take on the disk.
    pub disk_bytes: u64,
    /// Whether a writer holds the directory, and these open.
    pub live: bool,
}

/// The bound that [`enforce`] could not keep, if any: it deletes sealed segments alone.
///
/// # Errors
/// As the directory's and the file system's.
pub fn unmet(directory: &Path, retention: &Retention, utc_ns: i64) -> Result<Option<Unmet>, StoreError> {
    let files = list(directory)?;
    if files.iter().any(|file| file.sealed) {
        return Ok(None);
    }
    let disk_bytes = files.iter().map(|file| file.disk_bytes).sum();
    let old = || files.iter().find_map(|file| over_age(retention, file, utc_ns));
    let bound = match over_bytes(retention, disk_bytes).or_else(old) {
        None => under_free(directory, retention)?,
        bound => bound,
    };
    let live = file::is_locked(directory).map_err(|source| StoreError::io("lock", directory, source))?;
    Ok(bound.map(|bound| Unmet { bound, segments: files.len(), disk_bytes, live }))
}

/// What one sweep did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sweep {
    /// The segments deleted.
    pub removed: Vec<Removed>,
    /// What the log should say of the clock; once for each time that it comes into doubt.
    pub doubt: Option<String>,
}

/// The retention of a running store. It is [`enforce`] with care about the clock: age compares file times with the
/// wall clock, so a clock set forward would delete everything at once. Where it was set forward, or where even the
/// newest sealed segment is too old (so nobody can say whether the clock or the store is), the newest stays and
/// deletions by age go one at a time, [`SWEEP_EVERY_NS`] apart, until none is due.
#[derive(Debug)]
pub struct Sweeper {
    retention: Retention,
    /// Wall clock minus monotonic clock when age was last no matter.
    offset_ns: Option<i64>,
    doubtful: bool,
    age_again: i64,
}

impl Sweeper {
    /// A sweeper for these bounds.
    pub fn new(retention: Retention) -> Sweeper {
        Sweeper { retention, offset_ns: None, doubtful: false, age_again: i64::MIN }
    }

    /// Other bounds from the next sweep on.
    pub fn set(&mut self, retention: Retention) {
        self.retention = retention;
    }

    /// Deletes until every bound holds. `open`: the files of the running writer, which count for nothing.
    pub fn sweep(
        &mut self,
        directory: &Path,
        open: &[&Path],
        utc_ns: i64,
        monotonic_ns: i64,
    ) -> Result<Sweep, StoreError> {
        let mut sweep = Sweep::default();
        if !self.retention.is_bounded() {
            return Ok(sweep);
        }
        loop {
            let files = list(directory)?;
            let sealed: Vec<&SegmentFile> = files.iter().filter(|file| file.sealed).collect();
            let Some(&oldest) = sealed.first() else { return Ok(sweep) };
            let counts = |file: &&SegmentFile| !open.contains(&file.path.as_path());
            let total = files.iter().filter(counts).map(|file| file.disk_bytes).sum();
            let bound = match over_bytes(&self.retention, total) {
                None => self.age(&sealed, utc_ns, monotonic_ns, &mut sweep.doubt),
                bound => bound,
            };
            let bound = match bound {
                None => under_free(directory, &self.retention)?,
                bound => bound,
            };
            let Some(bound) = bound else { return Ok(sweep) };
            sweep.removed.push(remove(directory, oldest, bound)?);
        }
    }

    fn age(
        &mut self,
        sealed: &[&SegmentFile],
        utc_ns: i64,
        monotonic_ns: i64,
        doubt: &mut Option<String>,
    ) -> Option<&'static str> {
        let offset = utc_ns.saturating_sub(monotonic_ns);
        let gained = offset.saturating_sub(*self.offset_ns.get_or_insert(offset));
        let Some(bound) = over_age(&self.retention, sealed[0], utc_ns) else {
            (self.doubtful, self.offset_ns) = (false, Some(offset));
            return None;
        };
        let newest = sealed.iter().max_by_key(|file| file.modified_ns)?;
        let all_old = over_age(&self.retention, newest, utc_ns).is_some();
        if !self.doubtful && (gained > STEP_NS || all_old) {
            self.doubtful = true;
            let why = if gained > STEP_NS {
                format!("the wall clock was set forward by {} s", gained / NANOS_PER_SECOND)
            } else {
                "even the newest sealed segment is older than retain_age".to_string()
            };
            *doubt = Some(format!(
                "{why}: the newest segment stays, and of the others one is deleted each {} s; check the clock",
                SWEEP_EVERY_NS / NANOS_PER_SECOND
            ));
        }
        if self.doubtful {
            if sealed[0].path == newest.path || monotonic_ns < self.age_again {
                return None;
            }
            self.age_again = monotonic_ns + SWEEP_EVERY_NS;
        }
        Some(bound)
    }
}

fn remove(directory: &Path, segment: &SegmentFile, bound: &'static str) -> Result<Removed, StoreError> {
    fs::remove_file(&segment.path).map_err(|source| StoreError::io("delete", &segment.path, source))?;
    file::sync_directory(directory).map_err(|source| StoreError::io("sync", directory, source))?;
    Ok(Removed { path: segment.path.clone(), disk_bytes: segment.disk_bytes, bound })
}

fn over_bytes(retention: &Retention, total: u64) -> Option<&'static str> {
    retention.bytes_max.is_some_and(|most| total > most).then_some(BOUNDS[0])
}

fn over_age(retention: &Retention, segment: &SegmentFile, utc_ns: i64) -> Option<&'static str> {
    retention.age_ns_max.is_some_and(|most| utc_ns.saturating_sub(segment.modified_ns) > most).then_some(BOUNDS[1])
}

/// A bound beyond the file system's size is none to delete for: everything would go, and it would still not hold.
fn under_free(directory: &Path, retention: &Retention) -> Result<Option<&'static str>, StoreError> {
    let Some(least) = retention.free_bytes_min else { return Ok(None) };
    let space = file::space(directory).map_err(|source| StoreError::io("stat", directory, source))?;
    Ok((space.available_bytes < least && least <= space.total_bytes).then_some(BOUNDS[2]))
}

/// Refuses a bound that the directory's file system is too small for.
///
/// # Errors
/// [`StoreError::Unreachable`]; the file system cannot be asked.
pub fn reachable(directory: &Path, retention: &Retention) -> Result<(), StoreError> {
    let Some(least) = retention.free_bytes_min else { return Ok(()) };
    let space = file::space(directory).map_err(|source| StoreError::io("stat", directory, source))?;
    match least <= space.total_bytes {
        true => Ok(()),
        false => Err(StoreError::Unreachable { path: directory.into(), least, total: space.total_bytes }),
    }
}
