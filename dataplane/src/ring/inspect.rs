//! A ring as it lies in memory: its header, its readers, whether its producer lives. It maps read-only and changes nothing.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::error::RingError;
use super::liveness::Producer;
use super::raw::RawReader;
use crate::sys::clock::monotonic_ns;
use crate::sys::shm::{MapOptions, RingFile, process_exists};
use crate::wire::ring::{HEADER_BYTES, Header, LayoutError, REGISTRY_ENTRY_BYTES, offset};

/// One entry of the reader registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReaderStatus {
    /// Its process.
    pub pid: u32,
    /// The name it gave.
    pub name: String,
    /// Whether its cursor counts.
    pub active: bool,
    /// The sequence that it reads next.
    pub cursor: u64,
    /// Whether a process of that number exists (in this PID namespace).
    pub exists: bool,
}

/// What a ring shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// Its header.
    pub header: Header,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// The last published sequence; 0 while there is none.
    pub head: u64,
    /// The oldest sequence that may still be read.
    pub oldest: u64,
    /// Readers that sleep.
    pub sleepers: u32,
    /// Age of the producer's last sign of life, ms; `None` where it gives none.
    pub heartbeat_age_ms: Option<u32>,
    /// What is known of the producer.
    pub producer: Producer,
    /// Readers that registered.
    pub readers: Vec<ReaderStatus>,
}

impl Inspected {
    /// Whether a slot can lie across two cache lines although it would fit one: every read then moves two.
    pub fn slots_straddle_lines(&self) -> bool {
        let bytes = self.header.geometry.element_size;
        !bytes.is_multiple_of(64) && !64_u32.is_multiple_of(bytes)
    }
}

/// Looks at the ring at `path` once.
///
/// # Errors
/// No such file, or no ring's that is spoken here.
pub fn inspect(path: &Path) -> Result<Inspected, RingError> {
    let file = RingFile::open(path, false)?;
    let layout = |source| RingError::Layout { path: path.into(), source };
    if file.bytes() < HEADER_BYTES as u64 {
        return Err(layout(LayoutError::Short(file.bytes())));
    }
    let mapping = file.map(&MapOptions::default())?;
    let mut bytes = [0; HEADER_BYTES];
    for (at, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&mapping.read_word(at * 8).load(Ordering::Acquire).to_le_bytes());
    }
    let header = Header::parse(&bytes, file.bytes()).map_err(layout)?;
    let mut reader = RawReader::open(path, false)?;
    let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let beat = u32_at(offset::HEARTBEAT);
    let now = monotonic_ns();
    let now_ms = (now / 1_000_000) as u32;
    let entries = 0..header.geometry.registry_count as usize;
    Ok(Inspected {
        file_bytes: file.bytes(),
        head: reader.head(),
        oldest: reader.oldest(),
        sleepers: u32_at(offset::WAITING),
        heartbeat_age_ms: (beat != 0).then(|| now_ms.wrapping_sub(beat)),
        producer: reader.producer(now),
        readers: entries.filter_map(|index| entry(&mapping, index)).collect(),
        header,
    })
}

fn entry(mapping: &crate::sys::shm::Mapping, index: usize) -> Option<ReaderStatus> {
    let at = HEADER_BYTES + index * REGISTRY_ENTRY_BYTES;
    let word = |field: usize| mapping.read_word(at + field).load(Ordering::Acquire);
    let (owner, name) = (word(0), [24, 32, 40, 48].map(word));
    let (pid, active) = (owner as u32, (owner >> 32) as u32);
    let name: Vec<u8> = name.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    (pid != 0).then(|| ReaderStatus {
        pid,
        name: String::from_utf8_lossy(&name).into_owned(),
        active: active == 1,
        cursor: word(8),
        exists: process_exists(pid),
    })
}
