//! A ring as it lies in memory: its header, its readers, whether its producer lives. It maps read-only and changes nothing.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::error::RingError;
use super::liveness::{Producer, STALL_AFTER_NS};
use super::raw::RawReader;
use super::view::{Front, View};
use crate::sys::clock::monotonic_ns;
use crate::sys::shm::process_exists;
use crate::wire::ring::{HEADER_BYTES, Header, REGISTRY_ENTRY_BYTES, offset};

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
    // No page is touched that the answer does not stand on.
    let (view, header, mapping) = View::open_mapped(path, Front::ReadOnly, false)?;
    let sleepers = mapping.read_half(offset::WAITING).load(Ordering::Acquire);
    let (_, beat) = view.life();
    let now = monotonic_ns();
    let now_ms = (now / 1_000_000) as u32;
    let entries = 0..header.geometry.registry_count as usize;
    let file_bytes = view.file.as_ref().map_or(0, |file| file.bytes());
    let mut reader = RawReader::of(view);
    let heartbeat_age_ms = (beat != 0).then(|| now_ms.wrapping_sub(beat));
    Ok(Inspected {
        file_bytes,
        head: reader.head(),
        oldest: reader.oldest(),
        sleepers,
        heartbeat_age_ms,
        producer: match reader.producer(now) {
            // One look sees no beat change: its age says the same, but for a producer in another time namespace.
            Producer::Alive if heartbeat_age_ms.is_some_and(is_old) => Producer::Stalled,
            found => found,
        },
        readers: entries.filter_map(|index| entry(&mapping, index)).collect(),
        header,
    })
}

/// Whether a producer whose last beat is that old has stalled. More than half of the counter is a beat from the future.
fn is_old(age_ms: u32) -> bool {
    i64::from(age_ms) * 1_000_000 >= STALL_AFTER_NS && age_ms <= i32::MAX as u32
}

fn entry(mapping: &crate::sys::shm::Mapping, index: usize) -> Option<ReaderStatus> {
    let at = HEADER_BYTES + index * REGISTRY_ENTRY_BYTES;
    let word = |field: usize| mapping.read_word(at + field).load(Ordering::Acquire);
    let [pid, active] = [at, at + 4].map(|half| mapping.read_half(half).load(Ordering::Acquire));
    let name = [24, 32, 40, 48].map(word);
    let name: Vec<u8> = name.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    (pid != 0).then(|| ReaderStatus {
        pid,
        name: String::from_utf8_lossy(&name).into_owned(),
        active: active == 1,
        cursor: word(8),
        exists: process_exists(pid),
    })
}
