//! What can go wrong with a store.

use std::io;
use std::path::{Path, PathBuf};

use crate::sys::uring::RingError;
use crate::wire::block::BlockError;

/// An error of the store.
#[derive(thiserror::Error, Debug)]
pub enum StoreError {
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Bytes are not a segment.
    #[error("{}: at byte {offset}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// What is wrong.
        source: BlockError,
    },
    /// A segment that a crash left and that this build cannot read: it is not touched.
    #[error(
        "{}: its first block: {source}; the file is left as it is: read it with the version that wrote it, \
         or move it away",
        path.display()
    )]
    Kept {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: BlockError,
    },
    /// Another process writes to the store.
    #[error("store {}: another process is writing to it: stop that one first, or choose another directory", .0.display())]
    Locked(
        /// The directory or file.
        PathBuf,
    ),
    /// A bound that no deletion can reach.
    #[error(
        "store {}: {least} bytes are to stay free, but its file system has {total} in all: no deletion can reach that; lower the bound",
        path.display()
    )]
    Unreachable {
        /// The directory.
        path: PathBuf,
        /// Bytes that are to stay free.
        least: u64,
        /// Bytes of the file system.
        total: u64,
    },
    /// A file that must not be overwritten.
    #[error("{} exists: remove it, or choose another name", .0.display())]
    Exists(
        /// The file.
        PathBuf,
    ),
    /// Neither a directory nor a `.tri` file.
    #[error("{}: no .tri segment here", .0.display())]
    NoStore(
        /// The directory or file.
        PathBuf,
    ),
    /// io_uring is not to be had.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Records were lost while the store could not wait any longer.
    #[error("store {}: {records} records lost ({cause})", path.display())]
    Lost {
        /// The directory or file.
        path: PathBuf,
        /// Records lost.
        records: u64,
        /// Why.
        cause: String,
    },
    /// An export does not hold what was read from the store.
    #[error("{}: {found} records read back, {written} written", path.display())]
    Export {
        /// The file.
        path: PathBuf,
        /// Records written.
        written: u64,
        /// Records found.
        found: u64,
    },
    /// A stream that is not there, or more than one.
    #[error("stream {wanted:?}: {}", candidates_text(candidates))]
    Stream {
        /// What was asked for.
        wanted: String,
        /// The streams that it could be; all streams when none matches.
        candidates: Vec<String>,
    },
    /// What a format cannot hold.
    #[error("{0}")]
    Unsupported(
        /// The reason and the next step.
        String,
    ),
}

fn candidates_text(candidates: &[String]) -> String {
    match candidates.len() {
        0 => "the store has no streams".to_string(),
        _ => format!("give one of: {}", candidates.join(", ")),
    }
}

impl StoreError {
    /// A failed file operation.
    pub fn io(what: &'static str, path: &Path, source: io::Error) -> StoreError {
        StoreError::Io { what, path: path.into(), source }
    }

    /// Bytes that are not what they should be.
    pub fn format(path: &Path, offset: u64, source: BlockError) -> StoreError {
        StoreError::Format { path: path.into(), offset, source }
    }
}
