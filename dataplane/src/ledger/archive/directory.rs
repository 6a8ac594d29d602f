//! A retention directory as files: names, the lock, what is found when it is opened.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::ledger::retention::{self, Depth, Run, Segment, SegmentBytes, SegmentError};
use crate::sys::{clock, file};

const PREFIX: &str = "segment-";
const SUFFIX: &str = ".ledgers";
/// What a file that is not whole yet is called behind its name.
pub const UNFINISHED: &str = ".tmp";
/// Between two lines that tell how far opening is: often enough to see that it goes on, seldom enough for a log.
const TELL_NS: i64 = 2_000_000_000;

/// The name of a segment's file: `segment-<number, ten digits>.ledgers`.
pub fn segment_name(number: u64) -> String {
    format!("{PREFIX}{number:010}{SUFFIX}")
}

/// The number of the segment that a file of this name holds; `None` for every other name.
pub fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()?;
    (segment_name(number) == name).then_some(number)
}

/// Where a data directory keeps its ledgers.
pub fn directory_of(data_dir: &Path) -> PathBuf {
    data_dir.join("ledgers")
}

/// Why a directory of retained ledgers cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A file or the directory.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A segment of another version.
    #[error("{path}: {source}; it was written by another sluice: use that one, or another data_dir", path = .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Which version.
        source: SegmentError,
    },
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_path_buf();
    |source| DirectoryError::Io { path, source }
}

/// A segment that was found.
#[derive(Debug)]
pub struct Found {
    /// Its file's path.
    pub path: PathBuf,
    /// Its file, open for reading (and for writing where the directory is opened to be written).
    pub file: File,
    /// Its length when it was looked at.
    pub bytes: u64,
    /// What it holds.
    pub segment: Segment,
}

/// A torn tail: what lies behind the last whole record of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torn {
    /// The file.
    pub path: PathBuf,
    /// Where it begins.
    pub at: u64,
    /// How long it is.
    pub bytes: u64,
    /// What is wrong there.
    pub what: &'static str,
}

/// A file with a segment's name that holds none which can be read. It is left as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
}

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Contents {
    /// Its segments, by rising number.
    pub found: Vec<Found>,
    /// Torn tails.
    pub torn: Vec<Torn>,
    /// Files that are no segments although their names say so.
    pub unreadable: Vec<Unreadable>,
    /// No file has this number or one above.
    pub next_number: u64,
}

/// Bytes of an open file of a known length.
pub struct FileBytes<'a> {
    /// The file.
    pub file: &'a File,
    /// Its length.
    pub bytes: u64,
}

impl SegmentBytes for FileBytes<'_> {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        match file::read_at(self.file, out, at)? {
            whole if whole == out.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Whether a directory may be changed by who opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// It is only read; somebody else may be writing it.
    Read,
    /// It is ours: torn tails are cut.
    Write,
}

/// Looks at all segments of a directory, in order. Of a sealed one its table is believed; of every other each frame is checked. Other
/// names are passed over. Tells how far it is when that takes long.
///
/// # Errors
/// See [`DirectoryError`].
pub fn look(directory: &Path, mode: Mode) -> Result<Contents, DirectoryError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).map_err(at(directory))? {
        let name = entry.map_err(at(directory))?.file_name();
        numbers.extend(name.to_str().and_then(number_of));
    }
    numbers.sort_unstable();
    let next_number = numbers.last().map_or(1, |last| last.saturating_add(1));
    let mut contents = Contents { next_number, ..Contents::default() };
    let mut told_ns = clock::monotonic_ns();
    for (index, &number) in numbers.iter().enumerate() {
        look_at(directory, number, mode, &mut contents)?;
        let now = clock::monotonic_ns();
        if now >= told_ns + TELL_NS {
            told_ns = now;
            tracing::info!("{}: {} of {} segments verified", directory.display(), index + 1, numbers.len());
        }
    }
    Ok(contents)
}

/// The run of the latest ledgers: of the last segment that has one.
pub(super) fn latest_run(directory: &Path) -> Option<Run> {
    let names = fs::read_dir(directory).ok()?.filter_map(|entry| entry.ok()?.file_name().to_str().and_then(number_of));
    let mut numbers: Vec<u64> = names.collect();
    numbers.sort_unstable();
    numbers.into_iter().rev().find_map(|number| {
        let file = File::open(directory.join(segment_name(number))).ok()?;
        let bytes = file.metadata().ok()?.len();
        let segment = retention::open(&FileBytes { file: &file, bytes }, Depth::Opening).ok()?;
        (!segment.records.is_empty()).then_some(segment.header.run)
    })
}

fn look_at(directory: &Path, number: u64, mode: Mode, contents: &mut Contents) -> Result<(), DirectoryError> {
    let path = directory.join(segment_name(number));
    let opened = if mode == Mode::Write { file::open_existing(&path) } else { File::open(&path) };
    let file = match opened {
        Ok(file) => file,
        // Whoever writes the directory has dropped it since its name was read.
        Err(error) if error.kind() == io::ErrorKind::NotFound && mode == Mode::Read => return Ok(()),
        Err(error) => return Err(at(&path)(error)),
    };
    let bytes = file.metadata().map_err(at(&path))?.len();
    let segment = match retention::open(&FileBytes { file: &file, bytes }, Depth::Opening) {
        Ok(segment) if segment.header.number == number => segment,
        Ok(segment) => {
            let what = format!("it holds segment {}", segment.header.number);
            contents.unreadable.push(Unreadable { path, what });
            return Ok(());
        }
        Err(source @ SegmentError::Version(_)) => return Err(DirectoryError::Version { path, source }),
        Err(error) => {
            contents.unreadable.push(Unreadable { path, what: error.to_string() });
            return Ok(());
        }
    };
    if let Some(damage) = segment.damage {
        if mode == Mode::Write {
            file.set_len(segment.end).and_then(|()| file.sync_all()).map_err(at(&path))?;
        }
        contents.torn.push(Torn { path: path.clone(), at: damage.at, bytes: damage.bytes, what: damage.what });
    }
    let bytes = if mode == Mode::Write && segment.damage.is_some() { segment.end } else { bytes };
    contents.found.push(Found { path, file, bytes, segment });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        assert_eq!(segment_name(7), "segment-0000000007.ledgers");
        for number in [0, 1, 9_999_999_999, 10_000_000_000, u64::MAX] {
            assert_eq!(number_of(&segment_name(number)), Some(number));
        }
        for name in ["segment-7.ledgers", "segment-0000000007.ledgers.tmp", "segment-+000000007.ledgers", "x"] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }
}
