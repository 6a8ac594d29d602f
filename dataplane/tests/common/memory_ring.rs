//! A ring in plain memory, for the mirror machines: source and mirror at once, with a log of what was written.
//!
//! Records say where they come from (history and sequence), so that each write can be judged on the spot.

use std::cell::RefCell;
use std::rc::Rc;

use sluice::ring::mirror::{MirrorRing, ReadOutcome, SourceRing, WriteError};
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
        arena_size: if arena { 1 << 20 } else { 0 },
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

struct State {
    geometry: Geometry,
    incarnation: u64,
    slots: Vec<(u64, Vec<u8>)>,
    next: u64,
    head: u64,
    log: FileLog,
}

/// A handle to a ring; clones are the same ring.
#[derive(Clone)]
pub struct MemoryRing {
    state: Rc<RefCell<State>>,
    geometry: Geometry,
}

impl MemoryRing {
    /// An empty ring whose first record will be `first`.
    pub fn new(geometry: Geometry, first: u64, incarnation: u64) -> MemoryRing {
        let slots = vec![(0, Vec::new()); geometry.capacity as usize];
        let log = FileLog { incarnation, first, ..FileLog::default() };
        let state = State { geometry, incarnation, slots, next: first, head: first - 1, log };
        MemoryRing { state: Rc::new(RefCell::new(state)), geometry }
    }

    /// Publishes `count` records of `history`.
    pub fn produce(&self, history: u64, count: u64) {
        let mut state = self.state.borrow_mut();
        for _ in 0..count {
            let sequence = state.next;
            let arena = state.geometry.has_arena();
            state.put(record(history, sequence, arena));
        }
        state.head = state.next - 1;
    }

    /// Whether both are one ring.
    pub fn is(&self, other: &MemoryRing) -> bool {
        Rc::ptr_eq(&self.state, &other.state)
    }

    /// The sequence that is written next.
    pub fn next_sequence(&self) -> u64 {
        self.state.borrow().next
    }

    /// Whether record `sequence` can be read.
    pub fn holds(&self, sequence: u64) -> bool {
        let state = self.state.borrow();
        let mask = state.geometry.capacity - 1;
        // Where the ring jumped, older records may lie in slots that were passed over; they count as gone.
        (state.head.saturating_sub(mask).max(1)..=state.head).contains(&sequence)
            && state.slots[(sequence & mask) as usize].0 == sequence
    }

    /// Looks at the log.
    pub fn log<T>(&self, look: impl FnOnce(&FileLog) -> T) -> T {
        look(&self.state.borrow().log)
    }
}

impl State {
    fn put(&mut self, bytes: Vec<u8>) {
        let at = (self.next & (self.geometry.capacity - 1)) as usize;
        self.slots[at] = (self.next, bytes);
        self.next += 1;
    }
}

impl SourceRing for MemoryRing {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn incarnation(&self) -> u64 {
        self.state.borrow().incarnation
    }

    fn head(&self) -> u64 {
        self.state.borrow().head
    }

    fn read(&mut self, sequence: u64, out: &mut Vec<u8>) -> ReadOutcome {
        let state = self.state.borrow();
        let mask = state.geometry.capacity - 1;
        let oldest = state.head.saturating_sub(mask).max(1);
        let (holds, bytes) = &state.slots[(sequence & mask) as usize];
        match () {
            () if sequence > state.head => ReadOutcome::NotYet,
            () if *holds == sequence => {
                out.extend_from_slice(bytes);
                ReadOutcome::Record
            }
            () if sequence < oldest => ReadOutcome::Lapped { oldest },
            () => {
                let present = |next: &u64| state.slots[(next & mask) as usize].0 == *next;
                ReadOutcome::Absent { next: (sequence + 1..=state.head).find(present).unwrap_or(state.head + 1) }
            }
        }
    }
}

impl MirrorRing for MemoryRing {
    fn next(&self) -> u64 {
        self.state.borrow().next
    }

    fn write(&mut self, payload: &[u8], blob: &[u8]) -> Result<(), WriteError> {
        let mut state = self.state.borrow_mut();
        let (sequence, arena) = (state.next, state.geometry.has_arena());
        let bytes = [payload, blob].concat();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (history, told) = (word(0), word(8));
        if bytes != record(history, sequence, arena) {
            state.log.wrong.push(format!("record {sequence} has the bytes of {told} of history {history}"));
        }
        if state.log.history != 0 && state.log.history != history {
            let before = state.log.history;
            state.log.wrong.push(format!("record {sequence} is of history {history} in a file of {before}"));
        }
        state.log.history = history;
        state.log.records += 1;
        state.put(bytes);
        Ok(())
    }

    fn publish(&mut self) {
        let mut state = self.state.borrow_mut();
        state.head = state.next - 1;
    }

    fn skip_to(&mut self, next: u64) {
        let mut state = self.state.borrow_mut();
        if next <= state.next {
            let here = state.next;
            state.log.wrong.push(format!("a jump from {here} to {next}"));
        }
        let from = state.next;
        state.log.gaps.push((from, next));
        state.next = next;
    }
}
