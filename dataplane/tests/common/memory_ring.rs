//! A ring in this process's memory, for the mirror machines: source and mirror at once, with a log of what was written.
//!
//! Records say where they come from (history and sequence), so that each write can be judged on the spot.

use std::cell::RefCell;
use std::rc::Rc;

use sluice::ring::mirror::{MirrorRing, ReadOutcome, SourceRing, WriteError};
use sluice::ring::raw::{RawReader, RawWriter};
use sluice::wire::ring::{DESCRIPTOR_BYTES, Geometry, flag};

/// Slots of fixed rings: history, sequence, 8 bytes of pattern.
pub const FIXED_PAYLOAD_BYTES: usize = 24;
/// Slots of blob rings: history, sequence, descriptor.
pub const BLOB_PAYLOAD_BYTES: usize = 16 + DESCRIPTOR_BYTES;

/// The layout of a ring of `capacity` slots, with or without an arena.
pub fn geometry(capacity: u64, arena: bool) -> Geometry {
    let payload = if arena { BLOB_PAYLOAD_BYTES } else { FIXED_PAYLOAD_BYTES };
    let element_size = payload as u32 + 8;
    let slots_end = 128 + capacity * u64::from(element_size);
    Geometry {
        capacity,
        element_size,
        flags: flag::LATEST_WINS | flag::SINGLE_PRODUCER | if arena { flag::ARENA } else { 0 },
        schema_sig: 7,
        registry_count: 0,
        slots_offset: 128,
        arena_offset: if arena { slots_end.next_multiple_of(64) } else { 0 },
        // Small: blobs are overwritten before their slots.
        arena_size: if arena { 1 << 14 } else { 0 },
    }
}

/// Record `sequence` of `history`, as DATA carries it.
pub fn record(history: u64, sequence: u64, arena: bool) -> Vec<u8> {
    let mix = (history ^ sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15)).rotate_left(29);
    let mut out = Vec::new();
    out.extend_from_slice(&history.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    if !arena {
        out.extend_from_slice(&mix.to_le_bytes());
        return out;
    }
    // Mostly short, now and then longer than a datagram.
    let length = if mix.is_multiple_of(37) { 1800 } else { (mix >> 7) % 90 };
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.extend_from_slice(&(mix as u32).to_le_bytes());
    out.resize(out.len() + length as usize, mix as u8);
    out
}

/// What was written to one ring file of a mirror.
#[derive(Debug, Default)]
pub struct FileLog {
    /// The source's incarnation that it was opened with.
    pub incarnation: u64,
    /// The history that its records tell of; 0 before the first.
    pub history: u64,
    /// Its first sequence.
    pub first: u64,
    /// Records written.
    pub records: u64,
    /// Jumps: first..end.
    pub gaps: Vec<(u64, u64)>,
    /// What should never happen.
    pub wrong: Vec<String>,
}

/// Takes out of a record's bytes where the blob lies, which differs from ring to ring.
pub fn without_place(mut bytes: Vec<u8>, arena: bool) -> Vec<u8> {
    if arena {
        bytes[BLOB_PAYLOAD_BYTES - DESCRIPTOR_BYTES..][..8].fill(0);
    }
    bytes
}

struct State {
    writer: RawWriter,
    log: FileLog,
}

/// A handle to a ring; clones are the same ring.
pub struct MemoryRing {
    state: Rc<RefCell<State>>,
    reader: RawReader,
}

impl Clone for MemoryRing {
    fn clone(&self) -> MemoryRing {
        let reader = self.state.borrow().writer.reader();
        MemoryRing { state: self.state.clone(), reader }
    }
}

impl MemoryRing {
    /// An empty ring whose first record will be `first`.
    pub fn new(geometry: Geometry, first: u64, incarnation: u64) -> MemoryRing {
        let mut writer = RawWriter::anonymous(&geometry, first, incarnation).expect("the layout holds together");
        writer.publish();
        let log = FileLog { incarnation, first, ..FileLog::default() };
        let reader = writer.reader();
        MemoryRing { state: Rc::new(RefCell::new(State { writer, log })), reader }
    }

    /// Publishes `count` records of `history`.
    pub fn produce(&self, history: u64, count: u64) {
        let mut state = self.state.borrow_mut();
        let geometry = *state.writer.geometry();
        for _ in 0..count {
            let bytes = record(history, state.writer.next(), geometry.has_arena());
            let (payload, blob) = bytes.split_at(geometry.payload_bytes());
            state.writer.write(payload, blob).expect("blobs are short");
        }
        state.writer.publish();
    }

    /// Whether both are one ring.
    pub fn is(&self, other: &MemoryRing) -> bool {
        Rc::ptr_eq(&self.state, &other.state)
    }

    /// The sequence that is written next.
    pub fn next_sequence(&self) -> u64 {
        self.state.borrow().writer.next()
    }

    /// Whether record `sequence` can be read.
    pub fn holds(&self, sequence: u64) -> bool {
        let mut out = Vec::new();
        // Where the ring jumped, older records may lie in slots that were passed over; they count as gone.
        (self.reader.oldest()..=self.reader.head()).contains(&sequence)
            && ReadOutcome::from(self.reader.read(sequence, &mut out)) == ReadOutcome::Record
    }

    /// Looks at the log.
    pub fn log<T>(&self, look: impl FnOnce(&FileLog) -> T) -> T {
        look(&self.state.borrow().log)
    }
}

impl SourceRing for MemoryRing {
    fn geometry(&self) -> &Geometry {
        self.reader.geometry()
    }

    fn incarnation(&self) -> u64 {
        self.reader.incarnation()
    }

    fn head(&self) -> u64 {
        self.reader.head()
    }

    fn read(&mut self, sequence: u64, out: &mut Vec<u8>) -> ReadOutcome {
        self.reader.read(sequence, out).into()
    }
}

impl MirrorRing for MemoryRing {
    fn next(&self) -> u64 {
        self.state.borrow().writer.next()
    }

    fn write(&mut self, payload: &[u8], blob: &[u8]) -> Result<(), WriteError> {
        let State { writer, log } = &mut *self.state.borrow_mut();
        let (sequence, arena) = (writer.next(), writer.geometry().has_arena());
        let bytes = without_place([payload, blob].concat(), arena);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (history, told) = (word(0), word(8));
        if bytes != record(history, sequence, arena) {
            log.wrong.push(format!("record {sequence} has the bytes of {told} of history {history}"));
        }
        if log.history != 0 && log.history != history {
            log.wrong.push(format!("record {sequence} is of history {history} in a file of {}", log.history));
        }
        log.history = history;
        log.records += 1;
        MirrorRing::write(writer, payload, blob)
    }

    fn publish(&mut self) {
        self.state.borrow_mut().writer.publish();
    }

    fn skip_to(&mut self, next: u64) {
        let State { writer, log } = &mut *self.state.borrow_mut();
        if next <= writer.next() {
            log.wrong.push(format!("a jump from {} to {next}", writer.next()));
        }
        log.gaps.push((writer.next(), next));
        writer.skip_to(next);
    }
}
