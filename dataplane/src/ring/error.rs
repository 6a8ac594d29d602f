//! Why a ring could not be made, opened or written.

use std::path::PathBuf;

use crate::sys::shm::ShmError;
use crate::wire::ring::LayoutError;

impl RingError {
    /// Whether there is no ring at the path, but may be one soon: no file, or one that its producer is making.
    pub fn is_not_yet(&self) -> bool {
        match self {
            RingError::Memory(error) => error.is_absent(),
            RingError::Layout { source, .. } => matches!(source, LayoutError::Short(_) | LayoutError::Magic(0)),
            _ => false,
        }
    }
}

/// Why a ring could not be made, opened or written.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The file could not be had.
    #[error("ring {0}")]
    Memory(#[from] ShmError),
    /// Its layout is none, or not the format's.
    #[error("ring {}: {source}", path.display())]
    Layout {
        /// The ring.
        path: PathBuf,
        /// What is wrong.
        source: LayoutError,
    },
    /// The records have another size.
    #[error("ring {}: its slots have {found} bytes, but {type_name} needs {wanted}: another record type", path.display())]
    Element {
        /// The ring.
        path: PathBuf,
        /// Bytes of a slot in the ring.
        found: u32,
        /// Bytes of a slot of the type.
        wanted: u32,
        /// The type.
        type_name: &'static str,
    },
    /// The records have another type.
    #[error("ring {}: signature {found:#018x} is not that of {type_name} ({wanted:#018x}): another record type, or another \
             version of it", path.display())]
    Schema {
        /// The ring.
        path: PathBuf,
        /// The ring's signature.
        found: u64,
        /// The type's.
        wanted: u64,
        /// The type.
        type_name: &'static str,
    },
    /// A ring of blobs where one of records was meant, or the other way round.
    #[error("ring {} {}", path.display(), if *.blobs {
        "carries blobs: open it with BlobConsumer"
    } else {
        "carries no blobs: open it with RingConsumer"
    })]
    Kind {
        /// The ring.
        path: PathBuf,
        /// Whether it carries blobs.
        blobs: bool,
    },
    /// The stride that the peer's readers do not understand.
    #[error(
        "stride = \"line\" cannot be read by ringfire's readers: set interop = false, or use records of 56 or 120 bytes, \
             which fill whole cache lines as they are"
    )]
    StrideInterop,
    /// No entry is free.
    #[error("ring {}: all {count} entries of its reader registry are taken: raise readers_max where the ring is made", path.display())]
    ReadersFull {
        /// The ring.
        path: PathBuf,
        /// Entries.
        count: u32,
    },
    /// The blob is longer than the arena.
    #[error("a blob of {bytes} bytes, but the arena holds at most {max}: make the arena larger")]
    BlobTooLong {
        /// Its length.
        bytes: usize,
        /// The longest.
        max: u64,
    },
    /// A lossless ring whose slowest reader has not come far enough.
    #[error("the ring is full: its slowest reader has not read what would be overwritten")]
    Full,
    /// The kernel gave no random number.
    #[error("no random number for the ring's incarnation: {0}")]
    Random(std::io::Error),
}
