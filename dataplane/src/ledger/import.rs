//! Ledgers from files into a retention directory: dumps, data lakes in Galexie's layout, meta streams. Dense from the latest one that
//! is kept on, each one judged, so that an import can be ended anywhere and run again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::archive::{RecordError, Recorder};
use super::dump;
use super::galexie::{self, Batch, Layout, MANIFEST, Manifest};
use super::header;
use super::place::{Place, PlaceError};
use super::rpc::{Part, RecordReader};
use crate::wire::ledger::{LEDGER_BYTES_MAX, SEQUENCE_MAX};

/// What is imported.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ImportSettings {
    /// The first ledger, where nothing is kept yet.
    pub start: Option<u32>,
    /// The last one.
    pub end: Option<u32>,
    /// Ledgers are taken as they are: names alone give their sequences, nothing of their contents is judged.
    pub opaque: bool,
}

/// What was imported.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Imported {
    /// The first ledger; 0 where none was.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// How many.
    pub ledgers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Ledgers that were there already.
    pub present: u64,
}

/// Why an import ended early. What was imported before is kept.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A stream.
    #[error("{name}: {source}")]
    Io {
        /// Its name.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// The retention directory.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Nothing there that could be imported.
    #[error("{0}")]
    Nothing(String),
    /// Ledgers are missing.
    #[error("{name}: ledger {next} is missing: {found} comes next")]
    Gap {
        /// Where.
        name: String,
        /// The ledger that should come.
        next: u32,
        /// The one that does.
        found: u32,
    },
    /// An object that is not what its name says, or damaged.
    #[error("{name}: {what}")]
    Object {
        /// The object.
        name: String,
        /// What is wrong with it.
        what: String,
    },
}

/// Takes ledgers in order, judges each, and records it.
struct Intake<'a, T> {
    recorder: &'a mut Recorder,
    settings: ImportSettings,
    imported: Imported,
    /// The hash of the ledger taken last.
    last_hash: Option<[u8; header::HASH_BYTES]>,
    told: T,
}

impl<T: FnMut(u32, u64)> Intake<'_, T> {
    /// The ledger that has to come next; `None` while any may.
    fn next(&self) -> Option<u32> {
        match self.recorder.bounds().1 {
            0 => self.settings.start,
            latest => latest.checked_add(1),
        }
    }

    fn is_complete(&self) -> bool {
        let end = self.settings.end.unwrap_or(SEQUENCE_MAX);
        let latest = self.recorder.bounds().1;
        latest >= end || self.next().is_some_and(|next| next > end)
    }

    /// Takes a ledger; false: it was there already, or comes before the start.
    fn take(&mut self, name: &str, sequence: u32, bytes: &[u8]) -> Result<bool, ImportError> {
        let found = sequence;
        match self.next() {
            Some(next) if sequence < next => {
                self.imported.present += 1;
                return Ok(false);
            }
            Some(next) if sequence > next => return Err(ImportError::Gap { name: name.into(), next, found }),
            _ => {}
        }
        if !self.settings.opaque {
            self.judge(sequence, bytes).map_err(|what| ImportError::Object { name: name.into(), what })?;
        }
        self.recorder.put(sequence, bytes)?;
        let imported = &mut self.imported;
        if imported.ledgers == 0 {
            imported.first = sequence;
        }
        (imported.last, imported.ledgers, imported.bytes) =
            (sequence, imported.ledgers + 1, imported.bytes + bytes.len() as u64);
        (self.told)(sequence, self.imported.bytes);
        Ok(true)
    }

    /// Whether a ledger is what it should be: a meta of its sequence, with the hash that it states, that follows the one before.
    fn judge(&mut self, sequence: u32, bytes: &[u8]) -> Result<(), String> {
        let header = header::read(bytes).map_err(|error| format!("ledger {sequence}: {error}"))?;
        let header = header.ok_or_else(|| format!("ledger {sequence}: it ends inside its header"))?;
        if header.sequence != sequence {
            return Err(format!("ledger {}, where {sequence} should be", header.sequence));
        }
        if !header.holds {
            return Err(format!("ledger {sequence}: its header does not have the hash that it states"));
        }
        if self.last_hash.is_some_and(|last| last != header.previous) {
            return Err(format!("ledger {sequence} names another ledger before it than the one that was imported"));
        }
        self.last_hash = Some(header.hash);
        Ok(())
    }
}

/// Imports what is at a place: a dump or a data lake, by the names there. `told` gets each ledger's sequence and the bytes so far.
/// What was taken is in the recorder's hands, also where the second value is an error.
pub fn place(
    recorder: &mut Recorder,
    place: &Place,
    settings: ImportSettings,
    manifest: Option<&Manifest>,
    told: impl FnMut(u32, u64),
) -> (Imported, Result<(), ImportError>) {
    let mut intake = Intake { recorder, settings, imported: Imported::default(), last_hash: None, told };
    let result = from_place(&mut intake, place, manifest);
    (intake.imported, result)
}

/// Imports a meta stream, which may be packed as a whole (zstd); `-` is standard input.
pub fn stream(
    recorder: &mut Recorder,
    path: &Path,
    settings: ImportSettings,
    told: impl FnMut(u32, u64),
) -> (Imported, Result<(), ImportError>) {
    let mut intake = Intake { recorder, settings, imported: Imported::default(), last_hash: None, told };
    let name = path.display().to_string();
    let opened = match path.to_str() {
        Some("-") => Ok(Box::new(io::stdin()) as Box<dyn Read>),
        _ => File::open(path).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let result = opened.map_err(|source| ImportError::Io { name: name.clone(), source });
    let result = result.and_then(|input| from_stream(&mut intake, &name, input));
    (intake.imported, result)
}

/// The manifest of a place, where it has one.
///
/// # Errors
/// The place's; one that cannot be read.
pub fn manifest(place: &Place) -> Result<Option<Manifest>, ImportError> {
    let Some(bytes) = place.get(MANIFEST)? else { return Ok(None) };
    let manifest = Manifest::parse(&bytes);
    manifest.map(Some).map_err(|what| ImportError::Object { name: place.name(MANIFEST), what })
}

fn from_place<T: FnMut(u32, u64)>(
    intake: &mut Intake<'_, T>,
    place: &Place,
    manifest: Option<&Manifest>,
) -> Result<(), ImportError> {
    // With a manifest and a beginning the keys are known: a lake of millions of objects need not be listed.
    if let (Some(manifest), Some(next)) = (manifest, intake.next())
        && from_known_keys(intake, place, manifest.layout(), next)?
    {
        return Ok(());
    }
    let (mut plain, mut batches) = (Vec::new(), BTreeMap::new());
    for key in place.list()? {
        if let Some(batch) = galexie::parse_key(&key) {
            batches.insert(batch, key);
        } else {
            plain.extend(dump::sequence_of(&key));
        }
    }
    plain.sort_unstable();
    match (plain.is_empty(), batches.is_empty()) {
        (false, true) => from_dump(intake, place, &plain),
        (true, false) => from_batches(intake, place, batches),
        (false, false) => Err(ImportError::Nothing(format!(
            "{} holds both ledger-<sequence>.xdr files and batches: which are meant?",
            place.name("")
        ))),
        (true, true) => {
            let hint = match manifest.and_then(|manifest| manifest.ledgers_path.as_deref()) {
                Some(path) => format!("; its manifest says that they lie in {path}"),
                None => String::new(),
            };
            let what = "no ledger-<sequence>.xdr and no batch (XXXXXXXX--<sequence>.xdr.zst) is there";
            Err(ImportError::Nothing(format!("{}: {what}{hint}", place.name(""))))
        }
    }
}

fn from_dump<T: FnMut(u32, u64)>(
    intake: &mut Intake<'_, T>,
    place: &Place,
    sequences: &[u32],
) -> Result<(), ImportError> {
    for &sequence in sequences {
        if intake.is_complete() {
            break;
        }
        if intake.next().is_some_and(|next| sequence < next) {
            intake.imported.present += 1;
            continue;
        }
        let key = dump::file_name(sequence);
        let bytes = gotten(place, &key)?;
        let name = place.name(&key);
        if bytes.len() as u64 > LEDGER_BYTES_MAX {
            let what = format!("{} bytes: a ledger has at most {LEDGER_BYTES_MAX}", bytes.len());
            return Err(ImportError::Object { name, what });
        }
        intake.take(&name, sequence, &bytes)?;
    }
    Ok(())
}

fn gotten(place: &Place, key: &str) -> Result<Vec<u8>, ImportError> {
    let gone = || ImportError::Object { name: place.name(key), what: "it was there a moment ago and is gone".into() };
    place.get(key)?.ok_or_else(gone)
}

/// How many keys are told to be fetched ahead of the one at hand, and how many batches behind a missing one are looked for: a longer hole is
/// taken for the end.
const AHEAD: usize = 16;

/// Batches from the one that holds `next` on, to the end of what is there; whether the first one was. One that is not there and has
/// another behind it, among the next [`AHEAD`], is a hole.
fn from_known_keys<T: FnMut(u32, u64)>(
    intake: &mut Intake<'_, T>,
    place: &Place,
    layout: Layout,
    next: u32,
) -> Result<bool, ImportError> {
    let after = |batch: Batch| batch.last.checked_add(1).filter(|&next| next <= SEQUENCE_MAX);
    let end = intake.settings.end.unwrap_or(SEQUENCE_MAX);
    let batches = |from: Batch| {
        let all = std::iter::successors(Some(from), move |&batch| Some(layout.batch(after(batch)?)));
        all.take_while(move |batch| batch.first <= end)
    };
    // Lakes that were written over years change from one suffix to the other; what the last one had is tried first.
    let keys = |batch: Batch, older: bool| {
        let key = layout.key(batch);
        let mut keys = [key.clone(), galexie::older_key(&key)];
        keys.rotate_left(usize::from(older));
        keys
    };
    let get = |batch: Batch, older: &mut bool| -> Result<Option<(String, Vec<u8>)>, ImportError> {
        for (at, key) in keys(batch, *older).into_iter().enumerate() {
            if let Some(object) = place.get(&key)? {
                *older ^= at == 1;
                return Ok(Some((key, object)));
            }
        }
        Ok(None)
    };
    let mut older = false;
    let first = layout.batch(next);
    for batch in batches(first) {
        if intake.is_complete() {
            break;
        }
        let ahead = batches(batch).take(AHEAD).map(|batch| keys(batch, older)[0].clone());
        place.fetch_ahead(&ahead.collect::<Vec<_>>());
        let Some((key, object)) = get(batch, &mut older)? else {
            if batch == first {
                return Ok(false);
            }
            for later in batches(batch).skip(1).take(AHEAD) {
                if let Some((key, _)) = get(later, &mut older)? {
                    return Err(ImportError::Gap { name: place.name(&key), next: batch.first, found: later.first });
                }
            }
            break;
        };
        take_batch(intake, &place.name(&key), batch, &object)?;
    }
    Ok(true)
}

fn from_batches<T: FnMut(u32, u64)>(
    intake: &mut Intake<'_, T>,
    place: &Place,
    batches: BTreeMap<Batch, String>,
) -> Result<(), ImportError> {
    let end = intake.settings.end.unwrap_or(SEQUENCE_MAX);
    let next = intake.next().unwrap_or(0);
    let wanted: Vec<(Batch, String)> =
        batches.into_iter().filter(|(batch, _)| batch.last >= next && batch.first <= end).collect();
    for (at, (batch, key)) in wanted.iter().enumerate() {
        if intake.is_complete() {
            break;
        }
        place.fetch_ahead(&wanted[at..].iter().take(AHEAD).map(|(_, key)| key.clone()).collect::<Vec<_>>());
        take_batch(intake, &place.name(key), *batch, &gotten(place, key)?)?;
    }
    Ok(())
}

fn take_batch<T: FnMut(u32, u64)>(
    intake: &mut Intake<'_, T>,
    name: &str,
    batch: Batch,
    object: &[u8],
) -> Result<(), ImportError> {
    let bad = |what: String| ImportError::Object { name: name.into(), what };
    let bytes = galexie::unpack(object).map_err(|error| bad(error.to_string()))?;
    let ledgers = galexie::split(&bytes).map_err(|error| bad(error.to_string()))?;
    let (first, last) = (ledgers[0].0, ledgers[ledgers.len() - 1].0);
    if first < batch.first || last > batch.last {
        return Err(bad(format!("it holds ledgers {first} to {last}, not those of its name")));
    }
    for (sequence, bytes) in ledgers {
        if intake.is_complete() {
            break;
        }
        intake.take(name, sequence, bytes)?;
    }
    Ok(())
}

/// `ZSTD_MAGICNUMBER` (RFC 8878, 3.1.1), little-endian: no record mark, because its top bit is not set.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// Bytes of a stream that are read at once.
const STREAM_BYTES: usize = 1 << 20;

fn from_stream<T: FnMut(u32, u64)>(
    intake: &mut Intake<'_, T>,
    name: &str,
    input: Box<dyn Read>,
) -> Result<(), ImportError> {
    let failed = |source| ImportError::Io { name: name.into(), source };
    let bad = |what: String| ImportError::Object { name: name.into(), what };
    let mut input = BufReader::with_capacity(STREAM_BYTES, input);
    let mut begin = Vec::new();
    input.by_ref().take(4).read_to_end(&mut begin).map_err(failed)?;
    let packed = begin == ZSTD_MAGIC;
    let whole = io::Cursor::new(begin).chain(input);
    let mut input: Box<dyn Read> = match packed {
        true => Box::new(zstd::stream::read::Decoder::new(whole).map_err(failed)?),
        false => Box::new(whole),
    };
    let (mut records, mut ledger, mut open) = (RecordReader::default(), Vec::new(), 0);
    let mut buffer = vec![0; STREAM_BYTES];
    loop {
        let read = match input.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        if read == 0 {
            return records.finish().map_err(|error| bad(error.to_string()));
        }
        let mut rest = &buffer[..read];
        loop {
            match records.next(&mut rest).map_err(|error| bad(error.to_string()))? {
                Part::Begin { sequence, .. } => open = sequence,
                Part::Body(bytes) => ledger.extend_from_slice(bytes),
                Part::End => {
                    if intake.is_complete() {
                        return Ok(());
                    }
                    intake.take(name, open, &ledger)?;
                    ledger.clear();
                }
                Part::More => break,
            }
        }
    }
}
