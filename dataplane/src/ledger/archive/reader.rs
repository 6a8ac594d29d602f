//! Retained ledgers read by a plain thread: for an export, and for a source that cycles through them. Reads only, so that another
//! process may be writing the directory; what it drops meanwhile stays readable here.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::directory::{Contents, DirectoryError, FileBytes, Found, Mode, Torn, Unreadable, look};
use crate::ledger::assemble::{Assembler, Ledger, Limits, StreamError};
use crate::ledger::query::Range;
use crate::ledger::retention::{self, FrameCheck, Record, Run, SegmentBytes};
use crate::wire::websocket;

/// Why a retained ledger cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not there.
    #[error("ledger {sequence} is not kept: {oldest} to {latest} are")]
    NotKept {
        /// The ledger.
        sequence: u32,
        /// The oldest one that is there; 0 where none is.
        oldest: u32,
        /// The latest.
        latest: u32,
    },
    /// The disk does not give it, or it is not what was written.
    #[error("{path}: ledger {sequence} at {at}: {what}", path = .path.display())]
    Damaged {
        /// The segment's file.
        path: PathBuf,
        /// The ledger.
        sequence: u32,
        /// Where its record begins.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// No memory for zstd.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

struct Open {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// A directory's ledgers: the longest dense run that ends with the latest one.
pub struct Reader {
    segments: BTreeMap<u64, Open>,
    records: Vec<Record>,
    run: Option<Run>,
    torn: Vec<Torn>,
    unreadable: Vec<Unreadable>,
    assembler: Option<Assembler>,
    frames: Vec<u8>,
}

impl Reader {
    /// Looks at a directory of segments. What its writer has under way looks like a torn tail.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub fn open(directory: &Path) -> Result<Reader, DirectoryError> {
        let Contents { found, torn, unreadable, .. } = look(directory, Mode::Read)?;
        let records = retention::serveable(found.iter().map(|found| &found.segment));
        let first = records.first().map(|record| record.stored.segment);
        let mut run = None;
        let mut segments = BTreeMap::new();
        for Found { path, file, bytes, segment } in found {
            let number = segment.header.number;
            if first.is_some_and(|first| number >= first) {
                run = Some(segment.header.run);
                segments.insert(number, Open { path, file, bytes });
            }
        }
        Ok(Reader { segments, records, run, torn, unreadable, assembler: None, frames: Vec::new() })
    }

    /// The oldest and the latest ledger; 0 and 0 where there is none.
    pub fn bounds(&self) -> (u32, u32) {
        let of = |record: Option<&Record>| record.map_or(0, |record| record.stored.sequence);
        (of(self.records.first()), of(self.records.last()))
    }

    /// The run of the ledgers.
    pub fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// What lies behind the last whole record of a segment.
    pub fn torn(&self) -> &[Torn] {
        &self.torn
    }

    /// Files that are no segments although their names say so.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    /// What is known of a ledger without reading it.
    pub fn record(&self, sequence: u32) -> Option<&Record> {
        let index = sequence.checked_sub(self.bounds().0)?;
        self.records.get(index as usize)
    }

    /// Reads a ledger: every frame is checked, and the whole against its length and checksum. One after the other is cheapest.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&mut self, sequence: u32) -> Result<Ledger<'_>, ReadError> {
        let (oldest, latest) = self.bounds();
        let record = *self.record(sequence).ok_or(ReadError::NotKept { sequence, oldest, latest })?;
        if let Err(what) = self.assemble(&record)? {
            self.assembler = None;
            let stored = record.stored;
            let path = self.segments.get(&stored.segment).map(|open| open.path.clone()).unwrap_or_default();
            return Err(ReadError::Damaged { path, sequence, at: stored.offset, what });
        }
        let verified = self.assembler.as_ref().and_then(Assembler::verified);
        Ok(verified.expect("assembled just now"))
    }

    /// Puts a ledger together; inside, what is wrong with it.
    fn assemble(&mut self, record: &Record) -> std::io::Result<Result<(), String>> {
        let sequence = record.stored.sequence;
        let goes_on = self.assembler.as_ref().and_then(Assembler::last).and_then(|last| last.checked_add(1));
        if goes_on != Some(sequence) {
            let range = Range::new(sequence, None).map_err(std::io::Error::other)?;
            self.assembler = Some(Assembler::new(range, Limits::default())?);
        }
        let Some(open) = self.segments.get(&record.stored.segment) else { return Ok(Err("no segment".into())) };
        let bytes = FileBytes { file: &open.file, bytes: open.bytes };
        let found = match retention::read_record(&bytes, record.stored.segment, record.stored.offset) {
            Ok(Ok(found)) => found,
            Ok(Err(what)) => return Ok(Err(what.into())),
            Err(error) => return Ok(Err(error.to_string())),
        };
        if found.0 != *record {
            return Ok(Err("another record lies there".into()));
        }
        let assembler = self.assembler.as_mut().expect("made above");
        Ok(feed(&bytes, record, &found.1, &mut self.frames, assembler))
    }
}

/// Feeds a record's frames to an assembler.
fn feed(
    bytes: &FileBytes<'_>,
    record: &Record,
    mut checks: &[FrameCheck],
    buffer: &mut Vec<u8>,
    assembler: &mut Assembler,
) -> Result<(), String> {
    let mut at = record.stored.offset + record.frames_at();
    while !checks.is_empty() {
        let (frames, run_bytes) = retention::run(checks, super::READ_BYTES);
        buffer.resize(run_bytes as usize, 0);
        bytes.read(at, buffer).map_err(|error| error.to_string())?;
        if !retention::frames_hold(&checks[..frames], buffer) {
            return Err("a frame's checksum does not hold".into());
        }
        let mut rest = buffer.as_slice();
        for check in &checks[..frames] {
            let (frame, behind) = rest.split_at(check.bytes as usize);
            let message = message(frame).ok_or("a frame that is no message")?;
            assembler.push(message).map_err(|error: StreamError| error.to_string())?;
            rest = behind;
        }
        at += run_bytes;
        checks = &checks[frames..];
    }
    match assembler.verified() {
        Some(ledger) if ledger.sequence == record.stored.sequence => Ok(()),
        _ => Err("its frames are no whole ledger".into()),
    }
}

/// The message in a server's frame.
fn message(frame: &[u8]) -> Option<&[u8]> {
    // A frame is its header and the message; the header's length follows from the whole: 2, 4 or 10 (RFC 6455, 5.2).
    let header = [2, 4, 10].into_iter().find(|&header| {
        frame.len().checked_sub(header).is_some_and(|bytes| websocket::binary_header_bytes(bytes) == header)
    })?;
    Some(&frame[header..])
}
