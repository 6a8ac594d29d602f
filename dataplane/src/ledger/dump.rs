//! A dump: a directory with one file for each ledger, `ledger-<sequence>.xdr`, raw (the layout of the peer's retention).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::wire::ledger::{LEDGER_BYTES_MAX, SEQUENCE_MAX};

/// Why a directory is no dump that can be read.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// A file or the directory.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No ledger in it.
    #[error("{path}: no file is named ledger-<sequence>.xdr", path = .0.display())]
    Empty(PathBuf),
    /// Ledgers are missing.
    #[error("{path}: non-contiguous: ledger {next} follows {last}", path = .path.display())]
    Gap {
        /// The directory.
        path: PathBuf,
        /// The last ledger before the gap.
        last: u32,
        /// The first one after it.
        next: u32,
    },
    /// A file over the protocol's limit.
    #[error("{path}: {bytes} bytes: a ledger has at most {LEDGER_BYTES_MAX}", path = .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DumpError {
    let path = path.to_path_buf();
    |source| DumpError::Io { path, source }
}

/// The name of a ledger's file.
pub fn file_name(sequence: u32) -> String {
    format!("ledger-{sequence}.xdr")
}

/// The ledger that a file of this name holds; `None` for every other name (also for one that is written otherwise than
/// [`file_name`] does, so that no ledger is there twice).
pub fn sequence_of(name: &str) -> Option<u32> {
    let sequence = name.strip_prefix("ledger-")?.strip_suffix(".xdr")?.parse().ok()?;
    ((1..=SEQUENCE_MAX).contains(&sequence) && file_name(sequence) == name).then_some(sequence)
}

/// The first and last ledger of a dump. Files of other names are passed over.
///
/// # Errors
/// A directory that cannot be read, holds no ledger, or lacks one in the middle.
pub fn bounds(directory: &Path) -> Result<(u32, u32), DumpError> {
    let mut sequences = Vec::new();
    for entry in fs::read_dir(directory).map_err(at(directory))? {
        let name = entry.map_err(at(directory))?.file_name();
        sequences.extend(name.to_str().and_then(sequence_of));
    }
    sequences.sort_unstable();
    if let Some(pair) = sequences.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        return Err(DumpError::Gap { path: directory.into(), last: pair[0], next: pair[1] });
    }
    sequences.first().copied().zip(sequences.last().copied()).ok_or_else(|| DumpError::Empty(directory.into()))
}

/// Reads a ledger of a dump.
///
/// # Errors
/// The file's; one over the protocol's limit.
pub fn read(directory: &Path, sequence: u32) -> Result<Vec<u8>, DumpError> {
    let mut ledger = Vec::new();
    read_into(directory, sequence, &mut ledger)?;
    Ok(ledger)
}

/// Reads a ledger of a dump over `ledger`, whose memory is used again.
///
/// # Errors
/// As [`read`].
pub fn read_into(directory: &Path, sequence: u32, ledger: &mut Vec<u8>) -> Result<(), DumpError> {
    let path = directory.join(file_name(sequence));
    let bytes = length(directory, sequence)?;
    ledger.clear();
    ledger.reserve(bytes as usize);
    // A file that grows meanwhile is read no further than what is too much.
    let mut file = File::open(&path).map_err(at(&path))?.take(LEDGER_BYTES_MAX + 1);
    let bytes = file.read_to_end(ledger).map_err(at(&path))? as u64;
    if bytes > LEDGER_BYTES_MAX { Err(DumpError::TooLong { path, bytes }) } else { Ok(()) }
}

/// The length of a ledger of a dump.
///
/// # Errors
/// The file's; one over the protocol's limit.
pub fn length(directory: &Path, sequence: u32) -> Result<u64, DumpError> {
    let path = directory.join(file_name(sequence));
    let bytes = fs::metadata(&path).map_err(at(&path))?.len();
    if bytes > LEDGER_BYTES_MAX { Err(DumpError::TooLong { path, bytes }) } else { Ok(bytes) }
}

/// Writes ledgers into a directory. A ledger is on the disk before it has its name, so that no file is ever cut short.
#[derive(Debug)]
pub struct DumpWriter {
    directory: PathBuf,
}

impl DumpWriter {
    /// A writer into `directory`, which is made where it does not exist.
    ///
    /// # Errors
    /// The directory's.
    pub fn open(directory: &Path) -> Result<DumpWriter, DumpError> {
        fs::create_dir_all(directory).map_err(at(directory))?;
        Ok(DumpWriter { directory: directory.into() })
    }

    /// Writes a ledger; one that is there already is replaced.
    ///
    /// # Errors
    /// The file's.
    pub fn put(&self, sequence: u32, ledger: &[u8]) -> Result<(), DumpError> {
        let path = self.directory.join(file_name(sequence));
        let unfinished = path.with_extension("xdr.tmp");
        let mut file = File::create(&unfinished).map_err(at(&unfinished))?;
        file.write_all(ledger).and_then(|()| file.sync_data()).map_err(at(&unfinished))?;
        fs::rename(&unfinished, &path).map_err(at(&path))
    }

    /// Makes the names of all that was written durable.
    ///
    /// # Errors
    /// The directory's.
    pub fn sync(&self) -> Result<(), DumpError> {
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(at(&self.directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        assert_eq!(sequence_of("ledger-7.xdr"), Some(7));
        assert_eq!(sequence_of(&file_name(SEQUENCE_MAX)), Some(SEQUENCE_MAX));
        for name in ["ledger-07.xdr", "ledger-0.xdr", "ledger-+7.xdr", "ledger-4294967295.xdr", "ledger-7.xdr.tmp", "x"]
        {
            assert_eq!(sequence_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_dump_goes_there_and_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("dump");
        assert!(matches!(bounds(&path), Err(DumpError::Io { .. })), "missing");
        let writer = DumpWriter::open(&path).expect("made");
        assert!(matches!(bounds(&path), Err(DumpError::Empty(_))));
        for sequence in 9..=11 {
            writer.put(sequence, &sequence.to_be_bytes()).expect("written");
        }
        writer.put(10, b"again").expect("replaced");
        writer.sync().expect("synced");
        for foreign in ["ledger-20.xdr.tmp", "ledger-020.xdr", "README"] {
            fs::write(path.join(foreign), b"x").expect("written");
        }
        assert_eq!(bounds(&path).expect("a dump"), (9, 11));
        assert_eq!(read(&path, 10).expect("read"), b"again");
        assert!(matches!(read(&path, 12), Err(DumpError::Io { .. })));
        writer.put(13, b"").expect("written");
        let gap = bounds(&path).expect_err("gapped").to_string();
        assert!(gap.ends_with("non-contiguous: ledger 13 follows 11"), "{gap}");
    }
}
