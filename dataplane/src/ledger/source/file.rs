//! Ledgers that lie on a disk, played: a dump, a retention directory of ours, or a framed meta stream.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use super::ahead::{Ahead, Laid, Maker};
use super::paced::Paced;
use super::{Poll, Source, SourceError, described, network_of};
use crate::ledger::archive::{self, Reader};
use crate::ledger::chunker::Layout;
use crate::ledger::dump;
use crate::ledger::files::is_same;
use crate::ledger::pool::Buffer;
use crate::ledger::rpc::{Part, RecordReader};

/// What is played, and how.
#[derive(Clone, Debug)]
pub struct FileSettings {
    /// A directory of `ledger-<sequence>.xdr`, a directory of segments, or a framed file.
    pub path: PathBuf,
    /// The directory in which this server keeps its own segments: it is not played.
    pub kept: Option<PathBuf>,
    /// The first ledger that is wanted, by its own sequence; `None`: the first that is there.
    pub first: Option<u32>,
    /// Ledgers in all; 0: as many as there are, or without end where it cycles.
    pub count: u32,
    /// Begin again after the last ledger. Only for who renumbers: the sequences begin again too.
    pub cycle: bool,
    /// How long the emission of one takes, ns.
    pub window_ns: i64,
    /// From the beginning of one to that of the next, ns.
    pub interval_ns: i64,
    /// The network's passphrase, where it is known.
    pub passphrase: Option<String>,
}

/// A source that plays ledgers from a disk. Looks at what is there, and begins to read on a thread.
///
/// # Errors
/// Nothing that can be played: no ledger, a gap, one that is too long; our own retention; no thread.
pub fn open(settings: &FileSettings, layout: Layout) -> Result<Box<dyn Source>, SourceError> {
    let path = &settings.path;
    if settings.kept.as_ref().is_some_and(|kept| is_same(path, kept)) {
        let what =
            "is where this server keeps its own ledgers: play another directory, or keep them elsewhere (data_dir)";
        return Err(SourceError(format!("file source: {} {what}", path.display())));
    }
    let reel = Reel::open(path, settings.first).map_err(|what| SourceError(format!("file source: {what}")))?;
    let player = Player {
        reel,
        path: path.clone(),
        given: 0,
        pass: 0,
        count: settings.count,
        cycle: settings.cycle,
        ledger: Vec::new(),
    };
    let paced =
        Paced::new(description(path), Ahead::start("file", player, layout)?, settings.window_ns, settings.interval_ns);
    Ok(Box::new(Played { paced, network: network_of(settings.passphrase.as_deref()) }))
}

/// What it calls itself.
pub fn description(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    described("file", &absolute.to_string_lossy())
}

/// What [`open`] would refuse a path for. Changes nothing, and starts nothing.
///
/// # Errors
/// As [`open`], but for threads.
pub fn look(path: &Path, first: Option<u32>) -> Result<(), String> {
    Reel::open(path, first).map(drop)
}

struct Played {
    paced: Paced,
    network: [u8; 8],
}

impl Source for Played {
    fn description(&self) -> String {
        self.paced.description()
    }

    fn network(&self) -> [u8; 8] {
        self.network
    }

    fn start(&mut self, now: i64) -> Result<Vec<std::os::fd::RawFd>, SourceError> {
        self.paced.start(now)
    }

    fn poll(&mut self, room: &mut [u8], now: i64) -> Result<Poll, SourceError> {
        self.paced.poll(room, now)
    }

    fn chunk(&mut self) -> Option<Buffer> {
        self.paced.chunk()
    }

    fn deadline(&self) -> Option<i64> {
        self.paced.deadline()
    }
}

/// Reads ledgers for as long as they are wanted.
struct Player {
    reel: Reel,
    path: PathBuf,
    given: u32,
    /// Ledgers since the beginning was last there.
    pass: u32,
    count: u32,
    cycle: bool,
    /// The last ledger that was read; its room is used again.
    ledger: Vec<u8>,
}

impl Player {
    /// Reads the next ledger over `ledger`; its sequence.
    fn read(&mut self, ledger: &mut Vec<u8>) -> Result<Option<u32>, String> {
        let told = |what: String| format!("file source: {what}");
        if self.count > 0 && self.given == self.count {
            return Ok(None);
        }
        loop {
            if let Some(sequence) = self.reel.next(ledger).map_err(told)? {
                self.given = self.given.saturating_add(1);
                self.pass = self.pass.saturating_add(1);
                return Ok(Some(sequence));
            }
            let path = self.path.display();
            if !self.cycle && self.count == 0 {
                return Ok(None);
            }
            if !self.cycle {
                let (given, count) = (self.given, self.count);
                let what = "and is played over again only with renumber = true";
                return Err(told(format!("{path} holds {given} ledgers, file_count asks for {count}, {what}")));
            }
            if self.pass == 0 {
                return Err(told(format!("{path} holds no ledger any more")));
            }
            self.pass = 0;
            self.reel.rewind().map_err(told)?;
        }
    }
}

impl Maker for Player {
    fn next(&mut self, layout: &Layout) -> Result<Option<Laid>, String> {
        let mut ledger = std::mem::take(&mut self.ledger);
        let read = self.read(&mut ledger);
        self.ledger = ledger;
        let laid = |sequence| Laid { sequence, bytes: self.ledger.len(), chunks: layout.lay_out(&self.ledger) };
        read.map(|sequence| sequence.map(laid))
    }
}

/// Ledgers on a disk, in order.
enum Reel {
    Dump { directory: PathBuf, first: u32, last: u32, next: Option<u32> },
    Kept { reader: Box<Reader>, first: u32, last: u32, next: Option<u32> },
    Framed(Framed),
}

impl Reel {
    fn open(path: &Path, first: Option<u32>) -> Result<Reel, String> {
        let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if !metadata.is_dir() {
            return Framed::open(path, first).map(Reel::Framed);
        }
        let (mut ledgers, mut segments) = (false, false);
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        for entry in fs::read_dir(path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str().unwrap_or_default();
            ledgers |= dump::sequence_of(name).is_some();
            segments |= archive::number_of(name).is_some();
        }
        match (ledgers, segments) {
            (true, true) => Err(format!("{} holds both ledger-<sequence>.xdr and segments: which?", path.display())),
            (true, false) => Reel::dump(path, first),
            (false, true) => Reel::kept(path, first),
            (false, false) => {
                let inner = archive::directory_of(path);
                let hint = if inner.is_dir() { format!("; is it {}?", inner.display()) } else { String::new() };
                Err(format!("{}: no file is named ledger-<sequence>.xdr, and none is a segment{hint}", path.display()))
            }
        }
    }

    fn dump(path: &Path, wanted: Option<u32>) -> Result<Reel, String> {
        let (first, last) = dump::bounds(path).map_err(|error| error.to_string())?;
        let first = from(path, wanted, first, last)?;
        // Now, not in the middle of a run.
        for sequence in first..=last {
            dump::length(path, sequence).map_err(|error| error.to_string())?;
        }
        Ok(Reel::Dump { directory: path.into(), first, last, next: Some(first) })
    }

    fn kept(path: &Path, wanted: Option<u32>) -> Result<Reel, String> {
        let reader = Reader::open(path).map_err(|error| error.to_string())?;
        let (first, last) = reader.bounds();
        if last == 0 {
            return Err(format!("{}: no whole ledger is in its segments", path.display()));
        }
        let first = from(path, wanted, first, last)?;
        Ok(Reel::Kept { reader: Box::new(reader), first, last, next: Some(first) })
    }

    /// Reads the next ledger over `ledger`; its sequence. `None` at the end.
    fn next(&mut self, ledger: &mut Vec<u8>) -> Result<Option<u32>, String> {
        match self {
            Reel::Dump { directory, last, next, .. } => {
                let Some(sequence) = *next else { return Ok(None) };
                dump::read_into(directory, sequence, ledger).map_err(|error| error.to_string())?;
                *next = (sequence < *last).then(|| sequence + 1);
                Ok(Some(sequence))
            }
            Reel::Kept { reader, last, next, .. } => {
                let Some(sequence) = *next else { return Ok(None) };
                let kept = reader.read(sequence).map_err(|error| error.to_string())?;
                ledger.clear();
                ledger.extend_from_slice(kept.bytes);
                *next = (sequence < *last).then(|| sequence + 1);
                Ok(Some(sequence))
            }
            Reel::Framed(framed) => framed.next(ledger),
        }
    }

    fn rewind(&mut self) -> Result<(), String> {
        match self {
            Reel::Dump { first, next, .. } | Reel::Kept { first, next, .. } => {
                *next = Some(*first);
                Ok(())
            }
            Reel::Framed(framed) => framed.rewind(),
        }
    }
}

/// The first ledger to be played.
fn from(path: &Path, wanted: Option<u32>, first: u32, last: u32) -> Result<u32, String> {
    match wanted {
        None => Ok(first),
        Some(wanted) if (first..=last).contains(&wanted) => Ok(wanted),
        Some(wanted) => Err(format!("{}: ledger {wanted} is not there: {first} to {last} are", path.display())),
    }
}

/// Bytes that a framed file is read in.
const READ_BYTES: usize = 256 << 10;

/// A meta stream in a file.
struct Framed {
    path: PathBuf,
    file: File,
    reader: RecordReader,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    first: Option<u32>,
    /// The ledger that began, and was not looked at further.
    begun: Option<u32>,
}

impl Framed {
    /// Opens it, and goes to the first ledger that is wanted: what is no meta stream is refused here.
    fn open(path: &Path, first: Option<u32>) -> Result<Framed, String> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut framed = Framed {
            path: path.into(),
            file,
            reader: RecordReader::default(),
            buffer: vec![0; READ_BYTES],
            at: 0,
            end: 0,
            first,
            begun: None,
        };
        framed.find_first()?;
        Ok(framed)
    }

    fn find_first(&mut self) -> Result<(), String> {
        let mut passed_over = Vec::new();
        loop {
            self.begun = self.begin()?;
            match (self.begun, self.first) {
                (None, None) => return Err(format!("{}: no ledger is in it", self.path.display())),
                (None, Some(first)) => return Err(format!("{}: ledger {first} is not in it", self.path.display())),
                (Some(found), Some(first)) if found != first => {
                    passed_over.clear();
                    self.body(&mut passed_over)?;
                }
                _ => return Ok(()),
            }
        }
    }

    fn next(&mut self, ledger: &mut Vec<u8>) -> Result<Option<u32>, String> {
        let sequence = match self.begun.take() {
            Some(sequence) => sequence,
            None => match self.begin()? {
                Some(sequence) => sequence,
                None => return Ok(None),
            },
        };
        ledger.clear();
        self.body(ledger)?;
        Ok(Some(sequence))
    }

    fn rewind(&mut self) -> Result<(), String> {
        self.file.rewind().map_err(|error| format!("{}: {error}", self.path.display()))?;
        self.reader = RecordReader::default();
        (self.at, self.end) = (0, 0);
        self.find_first()
    }

    /// Goes to the beginning of the next ledger; its sequence. `None` at the end of the file.
    fn begin(&mut self) -> Result<Option<u32>, String> {
        loop {
            let mut input = &self.buffer[self.at..self.end];
            let part = self.reader.next(&mut input);
            let begun = match part {
                Ok(Part::Begin { sequence, .. }) => Some(sequence),
                Ok(Part::More) => None,
                Ok(Part::Body(_) | Part::End) => unreachable!("asked for only between two records"),
                Err(error) => return Err(format!("{}: {error}", self.path.display())),
            };
            self.at = self.end - input.len();
            if begun.is_some() {
                return Ok(begun);
            }
            if !self.fill()? {
                return match self.reader.finish() {
                    Ok(()) => Ok(None),
                    Err(error) => Err(format!("{}: {error}", self.path.display())),
                };
            }
        }
    }

    /// Reads the rest of the open ledger to the end of `ledger`.
    fn body(&mut self, ledger: &mut Vec<u8>) -> Result<(), String> {
        loop {
            let mut input = &self.buffer[self.at..self.end];
            let part = self.reader.next(&mut input).map_err(|error| format!("{}: {error}", self.path.display()))?;
            let more = match part {
                Part::Body(bytes) => {
                    ledger.extend_from_slice(bytes);
                    false
                }
                Part::End => {
                    self.at = self.end - input.len();
                    return Ok(());
                }
                Part::More => true,
                Part::Begin { .. } => unreachable!("asked for only inside a record"),
            };
            self.at = self.end - input.len();
            if more && !self.fill()? {
                let error = self.reader.finish().expect_err("a record is open");
                return Err(format!("{}: unexpected EOF: {error}", self.path.display()));
            }
        }
    }

    /// Reads on; false at the end of the file.
    fn fill(&mut self) -> Result<bool, String> {
        assert!(self.at == self.end, "what was read is used up");
        let bytes = self.file.read(&mut self.buffer).map_err(|error| format!("{}: {error}", self.path.display()))?;
        (self.at, self.end) = (0, bytes);
        Ok(bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::chunker::Cut;
    use crate::ledger::dump::DumpWriter;
    use crate::ledger::pool::Pool;
    use crate::wire::ledger::LEDGER_BYTES_MAX;

    fn settings(path: &Path) -> FileSettings {
        FileSettings {
            path: path.into(),
            kept: None,
            first: None,
            count: 0,
            cycle: false,
            window_ns: 0,
            interval_ns: 0,
            passphrase: None,
        }
    }

    fn open_it(settings: &FileSettings) -> Result<Box<dyn Source>, SourceError> {
        let cut = Cut::new(65_536, None).expect("a cut");
        open(settings, Layout { cut, pool: Pool::new(cut.buffer_bytes(), 1) })
    }

    fn refusal(settings: &FileSettings) -> String {
        match open_it(settings) {
            Ok(_) => panic!("{} was taken", settings.path.display()),
            Err(error) => error.to_string(),
        }
    }

    fn player(settings: &FileSettings) -> Player {
        let reel = Reel::open(&settings.path, settings.first).expect("playable");
        let (path, count, cycle) = (settings.path.clone(), settings.count, settings.cycle);
        Player { reel, path, given: 0, pass: 0, count, cycle, ledger: Vec::new() }
    }

    /// What is played, at most so many ledgers, and the end: an error where it failed.
    /// Ledgers, and how the source ended, if it did.
    type Played = (Vec<(u32, Vec<u8>)>, Option<Result<(), String>>);

    fn played(settings: &FileSettings, most: usize) -> Played {
        let (mut player, mut ledgers, mut ledger) = (player(settings), Vec::new(), Vec::new());
        while ledgers.len() < most {
            match player.read(&mut ledger) {
                Ok(Some(sequence)) => ledgers.push((sequence, ledger.clone())),
                Ok(None) => return (ledgers, Some(Ok(()))),
                Err(error) => return (ledgers, Some(Err(error))),
            }
        }
        (ledgers, None)
    }

    fn dump_of(path: &Path, sequences: std::ops::RangeInclusive<u32>) {
        let writer = DumpWriter::open(path).expect("a directory");
        sequences.for_each(|sequence| writer.put(sequence, format!("ledger {sequence}").as_bytes()).expect("written"));
    }

    #[test]
    fn a_dump_is_played_in_order_once_or_again_and_again() {
        let directory = tempfile::tempdir().expect("a directory");
        // In the order of numbers, not of names.
        dump_of(directory.path(), 8..=11);
        fs::write(directory.path().join("README"), b"foreign").expect("written");
        let settings = settings(directory.path());
        let sequences = |settings: &FileSettings, most| {
            let (ledgers, end) = played(settings, most);
            assert!(ledgers.iter().all(|(sequence, bytes)| *bytes == format!("ledger {sequence}").as_bytes()));
            (ledgers.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), end)
        };
        assert_eq!(sequences(&settings, 9), (vec![8, 9, 10, 11], Some(Ok(()))));
        assert_eq!(sequences(&FileSettings { count: 2, ..settings.clone() }, 9), (vec![8, 9], Some(Ok(()))));
        assert_eq!(sequences(&FileSettings { first: Some(10), ..settings.clone() }, 9).0, [10, 11]);
        let cycle = FileSettings { cycle: true, ..settings.clone() };
        assert_eq!(sequences(&cycle, 9), (vec![8, 9, 10, 11, 8, 9, 10, 11, 8], None), "without end");
        assert_eq!(sequences(&FileSettings { count: 6, ..cycle }, 9), (vec![8, 9, 10, 11, 8, 9], Some(Ok(()))));
        let (given, end) = sequences(&FileSettings { count: 6, ..settings }, 9);
        let error = end.expect("it ended").expect_err("too few");
        assert!(given.len() == 4 && error.contains("holds 4 ledgers, file_count asks for 6"), "{error}");
    }

    #[test]
    fn a_framed_file_is_played_from_any_ledger_and_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("stream.xdr");
        let metas: Vec<Vec<u8>> = (5..8).map(meta).collect();
        let stream: Vec<u8> =
            metas.iter().flat_map(|meta| [&crate::ledger::rpc::mark(meta.len())[..], meta].concat()).collect();
        fs::write(&path, &stream).expect("written");
        let settings = settings(&path);
        let expected: Vec<(u32, Vec<u8>)> = (5..8).zip(metas).collect();
        assert_eq!(played(&settings, 9), (expected.clone(), Some(Ok(()))));
        assert_eq!(played(&FileSettings { first: Some(7), ..settings.clone() }, 9).0, expected[2..]);
        let (ledgers, end) = played(&FileSettings { cycle: true, ..settings.clone() }, 7);
        assert_eq!((&ledgers[3..6], end), (&expected[..], None));
        assert!(refusal(&FileSettings { first: Some(9), ..settings.clone() }).contains("ledger 9 is not in it"));
        fs::write(&path, &stream[..stream.len() - 1]).expect("written");
        let (ledgers, end) = played(&settings, 9);
        assert_eq!(ledgers, expected[..2], "what is whole before the damage");
        assert!(end.expect("it ended").expect_err("cut").contains("unexpected EOF"));
        fs::write(&path, b"").expect("written");
        assert!(refusal(&settings).contains("no ledger is in it"));
        fs::write(&path, meta(5)).expect("written");
        assert!(refusal(&settings).contains("lacks its top bit"));
    }

    /// The beginning of a LedgerCloseMeta of version 0, and some bytes behind it.
    fn meta(sequence: u32) -> Vec<u8> {
        let mut bytes = vec![0; 4 + 32 + 4 + 32 + 32 + 8 + 4 + 4 + 64];
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(vec![sequence as u8; 400_000]);
        bytes
    }

    #[test]
    fn what_cannot_be_played_is_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("dump");
        assert!(refusal(&settings(&path)).contains("No such file"));
        fs::create_dir(&path).expect("made");
        assert!(refusal(&settings(&path)).contains("no file is named ledger-<sequence>.xdr"), "empty");
        fs::create_dir(path.join("ledgers")).expect("made");
        assert!(refusal(&settings(&path)).contains("dump/ledgers?"), "a hint");
        dump_of(&path, 3..=4);
        dump_of(&path, 6..=6);
        assert!(refusal(&settings(&path)).contains("non-contiguous"));
        dump_of(&path, 5..=5);
        assert!(open_it(&settings(&path)).is_ok());
        let long = File::create(path.join("ledger-7.xdr")).expect("made");
        long.set_len(LEDGER_BYTES_MAX + 1).expect("as long");
        assert!(refusal(&settings(&path)).contains("at most 268435456"));
        fs::write(path.join("segment-0000000001.ledgers"), b"x").expect("written");
        assert!(refusal(&settings(&path)).contains("holds both"));
    }

    #[test]
    fn the_servers_own_ledgers_are_not_played_under_any_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ledgers");
        dump_of(&path, 1..=2);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let relative = std::env::current_dir().expect("somewhere").join("..").join(&path);
        for other in [&path, &link, &path.join("."), &path.join("../ledgers"), &relative] {
            let settings = FileSettings { kept: Some(other.clone()), ..settings(&path) };
            assert!(refusal(&settings).contains("keeps its own ledgers"), "{}", other.display());
        }
        let settings = FileSettings { kept: Some(directory.path().join("elsewhere")), ..settings(&path) };
        assert!(open_it(&settings).is_ok(), "a directory that is not there yet is another one");
    }
}
