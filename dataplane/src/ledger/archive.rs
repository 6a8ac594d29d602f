//! A retention directory at work: its lock, its segments, the [`Keeper`]'s operations and stored reads on a core's io_uring.
//!
//! Nothing here waits for a disk: each request goes to the kernel's io workers, and what they did comes back as a completion. One
//! operation on segments is under way at a time; reads for replays run beside it, several at once, and read ahead. A frame is
//! checked before it goes out.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::hub::{Hub, Replay, Stored};
use super::keeper::{Keeper, KeeperCounters, KeeperSettings};
use super::message::Encoded;
use super::retention::{self, Bounds, Facts, Run, SOURCE_BYTES_MAX, Segment};
use crate::sync::latest::Latest;
use crate::sys::file::{self, Lock};
use crate::sys::uring::{CoreRing, Frozen};

mod directory;
mod operate;
mod reader;
mod reads;
mod recorder;

pub use directory::{
    Contents, DirectoryError, FileBytes, Found, Mode, Torn, Unreadable, directory_of, look, number_of, segment_name,
};
use operate::Operation;
pub use reader::{ReadError, Reader};
use reads::Reads;
pub use reads::{Lost, OUTSIDE_BYTES_MAX, READ_BYTES, ReadCounters, StoredFrames};
pub use recorder::{RecordError, Recorder};

/// Tags of completions that an archive uses: [`ArchivePort::tag`] and those after it. Its operation has the first, closing the last,
/// reads those between.
pub const ARCHIVE_TAGS: u64 = 64;
const OPERATION_TAG: u64 = 0;
const CLOSE_TAG: u64 = ARCHIVE_TAGS - 1;

/// Bytes of a ledger that are hashed in one turn before it is written: a chunk, some 15 µs.
const HASH_BYTES: u64 = 256 << 10;

/// The source of an imported directory: whatever source serves the same network may go on with it, because a network has one history.
pub const IMPORTED: &str = "import";

impl Frozen for Encoded {
    fn bytes(&self) -> &[u8] {
        self.frame()
    }
}

/// How a directory is opened.
#[derive(Clone, Debug)]
pub struct ArchiveSettings {
    /// The directory of the segments ([`directory_of`] a data directory); made where it does not exist.
    pub directory: PathBuf,
    /// How ledgers are kept.
    pub keeper: KeeperSettings,
    /// What the source is, at most [`SOURCE_BYTES_MAX`] bytes.
    pub source: String,
    /// The network; zeros where the source does not tell it.
    pub network: [u8; 8],
    /// The first ledger that the source will give; 0 where that is not known before it comes.
    pub start: u32,
    /// Drop what another source or network left, in place of refusing it.
    pub reset: bool,
}

/// Why a directory cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another process has it.
    #[error("{directory}: another process keeps ledgers there: stop it, or give another data_dir", directory = .0.display())]
    Locked(PathBuf),
    /// It belongs to another source or network.
    #[error(
        "{directory}: holds ledgers {oldest} to {latest} of {found}, and {asked} was asked for: give another data_dir, or let \
         them go with reset = true (--reset)",
        directory = .directory.display()
    )]
    Another {
        /// The directory.
        directory: PathBuf,
        /// The oldest ledger there.
        oldest: u32,
        /// The latest.
        latest: u32,
        /// Source and network found.
        found: String,
        /// Source and network asked for.
        asked: String,
    },
    /// A source's description that is too long to be kept.
    #[error("a source's description has {0} bytes: at most {SOURCE_BYTES_MAX}")]
    SourceBytes(usize),
}

/// How an archive began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Began {
    /// With nothing.
    New,
    /// With the run that was found.
    GoesOn,
    /// What was found does not go on: it is dropped.
    Reset {
        /// The run of what was found.
        found: Run,
        /// The latest ledger of it.
        latest: u32,
    },
}

/// What opening found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// How the archive began.
    pub began: Began,
    /// What can be served, for [`Hub::new`].
    pub stored: Vec<Stored>,
    /// Ledgers that are whole and are not served, because they do not join the latest ones.
    pub left_out: u64,
    /// Torn tails, which were cut.
    pub torn: Vec<Torn>,
    /// Files that are no segments although their names say so.
    pub unreadable: Vec<Unreadable>,
}

/// What a call works with.
pub struct ArchivePort<'a> {
    /// The core's ring.
    pub ring: &'a mut CoreRing,
    /// What is served.
    pub hub: &'a mut Hub,
    /// The `user_data` of the archive's first tag; the next [`ARCHIVE_TAGS`] are its own.
    pub tag: u64,
    /// Monotonic ns.
    pub now: i64,
    /// UTC, ns.
    pub utc_ns: i64,
}

/// A segment's open file.
struct SegmentFile {
    file: Arc<File>,
    /// No byte was ever written at or behind this.
    longest: u64,
}

/// Open segments by number.
#[derive(Default)]
struct Segments {
    open: BTreeMap<u64, SegmentFile>,
    /// Removed, and closed once nobody reads them.
    closing: Vec<Arc<File>>,
}

/// A retention directory. See the module's head.
pub struct Archive {
    directory: PathBuf,
    handle: File,
    run: Run,
    keeper: Keeper,
    bounds: Latest<Bounds>,
    segments: Segments,
    operation: Option<Operation>,
    reads: Reads,
    closes: usize,
    _lock: Lock,
}

impl Archive {
    /// Opens a directory, makes it where there is none, and decides how its run goes on. Blocks: before a core begins.
    ///
    /// # Errors
    /// See [`ArchiveError`].
    pub fn open(settings: &ArchiveSettings, utc_ns: i64) -> Result<(Archive, Opened), ArchiveError> {
        let directory = settings.directory.as_path();
        if settings.source.len() > SOURCE_BYTES_MAX {
            return Err(ArchiveError::SourceBytes(settings.source.len()));
        }
        fs::create_dir_all(directory).map_err(directory::at(directory))?;
        let lock = file::lock_exclusive(directory).map_err(directory::at(directory))?;
        let lock = lock.ok_or_else(|| ArchiveError::Locked(directory.into()))?;
        let handle = File::open(directory).map_err(directory::at(directory))?;
        let Contents { found, torn, unreadable, next_number } = look(directory, Mode::Write)?;
        let decision = decide(settings, &found)?;
        let (mut segments, mut parts) = (Segments::default(), Vec::new());
        for Found { file, bytes, segment, .. } in found {
            let open = SegmentFile { file: Arc::new(file), longest: bytes };
            segments.open.insert(segment.header.number, open);
            parts.push(segment);
        }
        let (mut keeper, kept) = Keeper::open(parts, decision.run.clone(), settings.keeper, utc_ns);
        keeper.numbers_from(next_number);
        let mut stored = kept.stored;
        if matches!(decision.began, Began::Reset { .. }) {
            keeper.reset(decision.run.clone());
            stored.clear();
        }
        let opened = Opened { began: decision.began, stored, left_out: kept.left_out, torn, unreadable };
        let archive = Archive {
            directory: directory.into(),
            handle,
            run: decision.run,
            keeper,
            bounds: Latest::new(settings.keeper.bounds),
            segments,
            operation: None,
            reads: Reads::default(),
            closes: 0,
            _lock: lock,
        };
        Ok((archive, opened))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How much is kept; what is set there holds from the next turn on.
    pub fn bounds(&self) -> Latest<Bounds> {
        self.bounds.clone()
    }

    /// The run that ledgers are kept under.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// A completed ledger: what is known of it, and what [`Hub::end`] gave back.
    pub fn offer(&mut self, facts: Facts, replay: Replay) {
        self.keeper.offer(facts, replay);
    }

    /// The source does not go on with what is kept: all of it goes, and another run begins with ledger `start`, under the identity
    /// `id` where the source has one of its own (a relay's upstream), else a new one. Before [`Hub::begin`], which drops the
    /// ledgers themselves.
    pub fn reset(&mut self, id: Option<[u8; 16]>, network: Option<[u8; 8]>, start: u32) {
        self.run.id = id.unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes());
        self.run.network = network.unwrap_or(self.run.network);
        self.run.epoch += 1;
        self.run.start = start;
        self.keeper.reset(self.run.clone());
        self.reads.forget();
    }

    /// Begins what there is to do; how much that was. What was queued reaches the kernel with the ring's next submit.
    pub fn turn(&mut self, port: &mut ArchivePort<'_>) -> usize {
        let mut count = 0;
        self.keeper.set_bounds(**self.bounds.look(), port.hub, port.now, port.utc_ns);
        // The keeper is asked while an operation is under way as well: it then gives none, and lets go of what has left retention.
        if self.operation.is_none() && self.keeper.prepare(port.hub, HASH_BYTES) {
            count += 1;
        } else if let Some(op) = self.keeper.poll(port.hub, port.now) {
            self.operation = Some(Operation::new(op, &mut self.segments));
            self.step(port);
            count += 1;
        }
        self.close_removed(port);
        count + self.turn_reads(port)
    }

    /// The part of [`Archive::turn`] that replays wait for: begins the reads that were asked for.
    pub fn turn_reads(&mut self, port: &mut ArchivePort<'_>) -> usize {
        self.reads.turn(&self.segments, port)
    }

    /// A completion with one of the archive's tags, told from its first one. To be called before the ring's next completion is
    /// taken, because it takes what came with this one.
    pub fn complete(&mut self, port: &mut ArchivePort<'_>, tag: u64, result: i32) {
        match tag {
            OPERATION_TAG => {
                let operation = self.operation.as_mut().expect("an operation is under way");
                operation.completed(port.ring, result);
                self.step(port);
            }
            CLOSE_TAG => self.closes -= 1,
            read => self.reads.complete(&self.segments, port, read, result),
        }
    }

    /// Gives the kernel the operation's next request, or the keeper its result.
    fn step(&mut self, port: &mut ArchivePort<'_>) {
        let Some(operation) = self.operation.as_mut() else { return };
        let tag = port.tag + OPERATION_TAG;
        if let Some(result) = operation.step(port.ring, &self.handle, &mut self.segments, tag) {
            if let Err(fault) = result {
                tracing::warn!("{}: {}: {fault:?}", self.directory.display(), operation.describe());
            }
            self.operation = None;
            let made_room = self.keeper.counters().made_room;
            self.keeper.on_done(result, port.hub, port.now, port.utc_ns);
            if self.keeper.counters().made_room > made_room {
                let (directory, oldest) = (self.directory.display(), port.hub.bounds().0);
                tracing::warn!(
                    "{directory}: the disk is full: the oldest segment goes, ledger {oldest} is the oldest now"
                );
            }
        }
    }

    fn close_removed(&mut self, port: &mut ArchivePort<'_>) {
        while let Some(at) = self.segments.closing.iter().position(|file| Arc::strong_count(file) == 1) {
            let file = Arc::into_inner(self.segments.closing.swap_remove(at)).expect("nobody else has it");
            if port.ring.close(OwnedFd::from(file), port.tag + CLOSE_TAG).is_ok() {
                self.closes += 1;
            }
        }
    }

    /// The frames of a stored ledger from `frame` on, as many as one read holds. `None`: they are being read, and come with `waiter`
    /// from [`Archive::next_read`]; a waiter has one read at a time.
    pub fn read(
        &mut self,
        port: &mut ArchivePort<'_>,
        stored: Stored,
        frame: u32,
        waiter: u64,
    ) -> Option<Result<Arc<StoredFrames>, Lost>> {
        self.reads.read(&self.segments, port, stored, frame, waiter)
    }

    /// The next read that is done, and whose it was. A waiter that is gone meanwhile is still told.
    pub fn next_read(&mut self) -> Option<(u64, Result<Arc<StoredFrames>, Lost>)> {
        self.reads.next_done()
    }

    /// When there may be something to do that neither a ledger nor a completion brings (monotonic ns).
    pub fn deadline(&self) -> Option<i64> {
        [self.keeper.deadline(), self.reads.deadline()].into_iter().flatten().min()
    }

    /// Nothing more is offered: what waits is written, made durable and sealed.
    pub fn drain(&mut self) {
        self.keeper.drain();
    }

    /// Whether a drain is done, and nothing is with the kernel.
    pub fn is_drained(&self) -> bool {
        self.keeper.is_drained() && self.operation.is_none() && self.reads.in_flight() == 0 && self.closes == 0
    }

    /// The latest ledger that is durable; see [`Keeper::durable`].
    pub fn durable(&self) -> Option<u32> {
        self.keeper.durable()
    }

    /// Ledgers kept in the store, and their bytes.
    pub fn held(&self) -> (usize, u64) {
        self.keeper.held()
    }

    /// What was counted of writing.
    pub fn counters(&self) -> KeeperCounters {
        self.keeper.counters()
    }

    /// What was counted of reading.
    pub fn read_counters(&self) -> ReadCounters {
        self.reads.counters()
    }
}

struct Decision {
    run: Run,
    began: Began,
}

/// How the run of what was found goes on.
fn decide(settings: &ArchiveSettings, found: &[Found]) -> Result<Decision, ArchiveError> {
    let segments: Vec<&Segment> = found.iter().map(|found| &found.segment).collect();
    let serveable = retention::serveable(segments.iter().copied());
    let epoch = segments.iter().map(|segment| segment.header.run.epoch).max().unwrap_or(0);
    let run_with = |epoch| Run {
        id: uuid::Uuid::new_v4().into_bytes(),
        network: settings.network,
        epoch,
        start: settings.start,
        source: settings.source.clone(),
    };
    let next_run = || run_with(epoch.saturating_add(1));
    let (Some(oldest), Some(latest)) = (serveable.first(), serveable.last()) else {
        return Ok(Decision { run: next_run(), began: Began::New });
    };
    let of_latest = segments.iter().find(|segment| segment.header.number == latest.stored.segment);
    let run = of_latest.expect("a record's segment was found").header.run.clone();
    let latest = latest.stored.sequence;
    if !is_of(&run, &settings.source, &settings.network) {
        if !settings.reset {
            return Err(ArchiveError::Another {
                directory: settings.directory.clone(),
                oldest: oldest.stored.sequence,
                latest,
                found: described(&run.source, &run.network),
                asked: described(&settings.source, &settings.network),
            });
        }
        return Ok(Decision { run: next_run(), began: Began::Reset { found: run, latest } });
    }
    if settings.start == 0 || latest.checked_add(1) == Some(settings.start) {
        return Ok(Decision { run, began: Began::GoesOn });
    }
    Ok(Decision { run: next_run(), began: Began::Reset { found: run, latest } })
}

/// Whether a source may go on with what a directory keeps: what [`Archive::open`] would say of it, from the latest segment that has
/// ledgers. Changes nothing; a directory that is not there, or cannot be read, is not judged here.
///
/// # Errors
/// One line for the user.
pub fn would_go_on(directory: &Path, source: &str, network: &[u8; 8]) -> Result<(), String> {
    let Some(run) = directory::latest_run(directory) else { return Ok(()) };
    if is_of(&run, source, network) {
        return Ok(());
    }
    Err(format!(
        "\"{}\" holds ledgers of {}, and {} was asked for: give another data_dir, or let them go with reset = true (--reset)",
        directory.display(),
        described(&run.source, &run.network),
        described(source, network)
    ))
}

/// Whether a source may go on with a run: it is the same source, or an import of the same network, and the network is not another.
fn is_of(run: &Run, source: &str, network: &[u8; 8]) -> bool {
    let told = *network != [0; 8];
    let same_network = run.network == *network;
    let imported = run.source == IMPORTED && told;
    same_network && (run.source == source || imported) || !told && run.source == source
}

fn described(source: &str, network: &[u8; 8]) -> String {
    let hex: String = network.iter().map(|byte| format!("{byte:02x}")).collect();
    match network {
        [0, 0, 0, 0, 0, 0, 0, 0] => format!("source \"{source}\" without a network"),
        _ => format!("source \"{source}\" of network {hex}"),
    }
}
