//! Whole ledgers into a retention directory from a plain thread: what an import does. The same keeper, files and checks as a server's.

use std::time::Duration;

use super::{ARCHIVE_TAGS, Archive, ArchiveError, ArchivePort, ArchiveSettings, Opened};
use crate::ledger::chunker::{Chunker, ChunkerError, Cut};
use crate::ledger::compress::{LEVEL_DEFAULT, Packer};
use crate::ledger::hub::Hub;
use crate::ledger::message::RawChunk;
use crate::ledger::order::{Order, OrderError};
use crate::ledger::retention::{Facts, Run};
use crate::sys::clock;
use crate::sys::uring::{CoreRing, RingError};
use crate::wire::ledger::Begin;

/// Requests of the ring: all that an archive has under way at once.
const RING_ENTRIES: u32 = ARCHIVE_TAGS as u32;
/// Kernel io workers: one writes, the other syncs.
const IO_WORKERS: u32 = 2;
/// Bytes of completed ledgers that wait for the disk before a caller does: a second of a slow disk.
const BACKLOG_BYTES: u64 = 256 << 20;
/// Longest single wait for the disk, so that a deadline of the keeper's is never far.
const WAIT_MS: u64 = 100;
/// Bytes of a chunk, as a server cuts them by default.
const CHUNK_BYTES: usize = 256 << 10;

/// Why ledgers are not recorded any more. What was written before stays.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The directory.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The kernel's queue.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A ledger that does not follow the last one.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A ledger that is too long.
    #[error(transparent)]
    Chunker(#[from] ChunkerError),
    /// The disk is full.
    #[error("{directory}: no space left: ledgers up to {durable} are kept")]
    NoSpace {
        /// The directory.
        directory: String,
        /// The latest ledger that is durable; 0 where none is.
        durable: u32,
    },
    /// The disk fails.
    #[error("{directory}: the disk fails (see the log): ledgers up to {durable} are kept")]
    Failed {
        /// The directory.
        directory: String,
        /// The latest ledger that is durable; 0 where none is.
        durable: u32,
    },
    /// No memory, or a request that the kernel does not take.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Writes ledgers into a retention directory. Dropped without [`Recorder::finish`] it leaves what a crash would.
pub struct Recorder {
    // Before what its requests point to.
    ring: CoreRing,
    archive: Archive,
    hub: Hub,
    order: Order,
    chunker: Chunker,
    packer: Packer,
}

impl Recorder {
    /// Opens or makes a directory; see [`Archive::open`].
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn open(settings: &ArchiveSettings) -> Result<(Recorder, Opened), RecordError> {
        let (archive, opened) = Archive::open(settings, clock::utc_ns())?;
        let mut ring = CoreRing::new(RING_ENTRIES)?;
        ring.enable(&[], IO_WORKERS)?;
        let hub = Hub::new(&opened.stored);
        let mut order = Order::default();
        if let (_, latest @ 1..) = hub.bounds() {
            order.check(latest)?;
        }
        let chunker = Chunker::new(Cut::new(CHUNK_BYTES, None)?);
        let packer = Packer::new(LEVEL_DEFAULT)?;
        Ok((Recorder { ring, archive, hub, order, chunker, packer }, opened))
    }

    /// The oldest and the latest ledger that is kept or on its way; 0 and 0 where there is none.
    pub fn bounds(&self) -> (u32, u32) {
        self.hub.bounds()
    }

    /// The run that ledgers are kept under.
    pub fn run(&self) -> &Run {
        self.archive.run()
    }

    /// The latest ledger that is durable since the directory was opened.
    pub fn durable(&self) -> Option<u32> {
        self.archive.durable()
    }

    /// The next ledger. Waits for the disk only where much is on its way to it.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn put(&mut self, sequence: u32, ledger: &[u8]) -> Result<(), RecordError> {
        self.order.check(sequence)?;
        self.chunker.begin(sequence, Some(ledger.len() as u64))?;
        self.hub.begin(&Begin { sequence, emit_start_ns: 0 });
        let mut rest = ledger;
        while !rest.is_empty() {
            if let Some(chunk) = self.chunker.push(&mut rest)? {
                self.pack(chunk);
            }
        }
        let (last, end) = self.chunker.finish(0)?;
        last.into_iter().for_each(|chunk| self.pack(chunk));
        let replay = self.hub.end(&end);
        let facts = Facts { sequence, raw_bytes: end.bytes, xxh64: end.xxh64, completed_ns: clock::utc_ns() };
        self.archive.offer(facts, replay);
        self.pump(false)?;
        while self.hub.memory_bytes() > BACKLOG_BYTES {
            self.pump(true)?;
        }
        Ok(())
    }

    fn pack(&mut self, chunk: RawChunk) {
        let spare = self.chunker.spare();
        self.hub.chunk(self.packer.pack(chunk, spare));
    }

    /// Lets the disk get on, for at most 100 ms.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn work(&mut self) -> Result<(), RecordError> {
        self.pump(true)
    }

    /// Writes what waits, makes it durable and seals it; the latest durable ledger.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn finish(mut self) -> Result<Option<u32>, RecordError> {
        self.archive.drain();
        while !self.archive.is_drained() {
            self.pump(true)?;
        }
        Ok(self.archive.durable())
    }

    fn pump(&mut self, wait: bool) -> Result<(), RecordError> {
        let (now, utc_ns) = (clock::monotonic_ns(), clock::utc_ns());
        let mut port = ArchivePort { ring: &mut self.ring, hub: &mut self.hub, tag: 0, now, utc_ns };
        let begun = self.archive.turn(&mut port);
        port.ring.submit()?;
        if wait && begun == 0 {
            port.ring.submit_and_wait(Some(Duration::from_millis(WAIT_MS)))?;
        }
        while let Some(completion) = port.ring.next_completion() {
            self.archive.complete(&mut port, completion.user_data, completion.result);
        }
        let counters = self.archive.counters();
        let directory = || self.archive.directory().display().to_string();
        let durable = self.archive.durable().unwrap_or(0);
        if counters.no_space > 0 {
            return Err(RecordError::NoSpace { directory: directory(), durable });
        }
        if counters.failed > 0 {
            return Err(RecordError::Failed { directory: directory(), durable });
        }
        Ok(())
    }
}
