//! A store for those who may wait: appends block until there is room, nothing is lost unless the disk gives up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::store::files::{Files, FilesReport, FilesSettings};
use crate::store::io::{Disk, StoreIo};
use crate::store::retention::{Retention, SEALED_SUFFIX};
use crate::store::scan::Damage;
use crate::store::{
    ClockState, Codec, Counters, KnownRuns, LossRange, RecordMeta, StampSource, StoreError, StoreWriter, SyncPolicy,
    WriterSettings, stream_key,
};
use crate::sys::clock;
use crate::sys::file::AlignedBuffer;
use crate::sys::uring::CoreRing;
use crate::units::StreamId;
use crate::wire::block::RECORD_HEADER_BYTES;
use crate::wire::segment::{Framing, Messages, SessionKey};

/// Appends between two looks at the clock: a look costs about 30 ns, an append 20.
const APPENDS_PER_LOOK: u32 = 256;
/// Longest sleep while waiting for the disk; completions and reports end it earlier.
const WAIT: Duration = Duration::from_millis(10);

/// Settings of a [`SyncStore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncSettings {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks of the pool.
    pub blocks_in_flight: usize,
    /// A segment ends before it would exceed this many bytes.
    pub segment_bytes: u64,
    /// Bytes to reserve for a single file; 0: none, its size being unknown.
    pub single_bytes: u64,
    /// A segment ends this long after its first record, ns.
    pub segment_ns: Option<i64>,
    /// A block that holds a record is written this long after its first one, ns (on the next call).
    pub flush_ns: i64,
    /// When writes are made durable.
    pub sync: SyncPolicy,
    /// How records are stored.
    pub codec: Codec,
    /// zstd level.
    pub zstd_level: i32,
    /// Past the page cache where the file system allows it.
    pub direct: bool,
    /// io_uring when the kernel allows it; plain calls otherwise.
    pub uring: bool,
    /// Where capture times come from.
    pub stamp_source: StampSource,
    /// Bounds of the store.
    pub retention: Retention,
    /// How long a call waits for a disk that makes no progress before records are counted as lost.
    pub patience: Duration,
}

impl Default for SyncSettings {
    fn default() -> SyncSettings {
        let writer = WriterSettings::default();
        SyncSettings {
            block_bytes: writer.block_bytes,
            blocks_in_flight: 8,
            segment_bytes: writer.segment_bytes,
            single_bytes: 0,
            segment_ns: None,
            flush_ns: writer.flush_ns,
            sync: SyncPolicy::Never,
            codec: Codec::None,
            zstd_level: writer.zstd_level,
            direct: false,
            uring: true,
            stamp_source: StampSource::File,
            retention: Retention::default(),
            patience: Duration::from_secs(10),
        }
    }
}

/// What a closed store says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closed {
    /// Totals.
    pub counters: Counters,
    /// What was lost, if anything.
    pub losses: Vec<LossRange>,
    /// The sealed files.
    pub files: Vec<PathBuf>,
    /// What an earlier crash had torn.
    pub damage: Vec<Damage>,
}

/// A blocking store writer.
pub struct SyncStore {
    path: PathBuf,
    writer: StoreWriter<AlignedBuffer>,
    io: StoreIo,
    ring: Option<CoreRing>,
    now: i64,
    until_look: u32,
    patience_ns: i64,
    zstd: bool,
    sealed: Vec<PathBuf>,
    damage: Vec<Damage>,
    trouble: Vec<String>,
    closed: bool,
}

impl SyncStore {
    /// Opens a store for writing: a directory (made when absent; what a crash left is sealed first), or exactly one
    /// file when `path` ends in `.tri`.
    pub fn create(path: &Path, settings: SyncSettings) -> Result<SyncStore, StoreError> {
        let single = path.to_str().is_some_and(|text| text.ends_with(SEALED_SUFFIX)) && !path.is_dir();
        let files_settings = FilesSettings {
            directory: if single { path.parent().unwrap_or(Path::new("")).into() } else { path.into() },
            single: single.then(|| path.into()),
            preallocate_bytes: if single { settings.single_bytes } else { settings.segment_bytes },
            block_bytes: settings.block_bytes as u32,
            direct: settings.direct,
            retention: settings.retention,
        };
        let buffers = AlignedBuffer::pool(settings.blocks_in_flight, settings.block_bytes)
            .map_err(|source| StoreError::io("reserve block memory for", path, source))?;
        let ring = if settings.uring { make_ring(&buffers) } else { None };
        let (files, arrival_first) = Files::start(files_settings, Box::new(|| ()))?;
        let writer_settings = WriterSettings {
            block_bytes: settings.block_bytes,
            flush_ns: settings.flush_ns,
            segment_bytes: if single { u64::MAX } else { settings.segment_bytes },
            segment_ns: settings.segment_ns,
            sync: settings.sync,
            codec: settings.codec,
            zstd_level: settings.zstd_level,
            arrival_first,
            single,
            ..WriterSettings::default()
        };
        let mut writer = StoreWriter::new(writer_settings, buffers);
        let now = clock::monotonic_ns();
        let tai_offset_s = clock::tai_offset_seconds() as i16;
        writer.set_clock(ClockState { stamp_source: settings.stamp_source, epoch: 0, tai_offset_s }, now);
        let mut store = SyncStore {
            path: path.into(),
            writer,
            io: StoreIo::new(files),
            ring,
            now,
            until_look: APPENDS_PER_LOOK,
            patience_ns: settings.patience.as_nanos() as i64,
            zstd: settings.codec == Codec::Zstd,
            sealed: Vec::new(),
            damage: Vec::new(),
            trouble: Vec::new(),
            closed: false,
        };
        store.first_segment()?;
        Ok(store)
    }

    /// Waits for the first segment, so that a bad path or a full disk is an error of `create`.
    fn first_segment(&mut self) -> Result<(), StoreError> {
        self.drive()?;
        loop {
            match self.io.files().report(Duration::from_secs(60)) {
                Some(FilesReport::Failed { error, .. }) => {
                    return Err(StoreError::Unsupported(error));
                }
                Some(report) => {
                    let ready = matches!(report, FilesReport::Ready { .. });
                    self.take(report);
                    if ready {
                        return Ok(());
                    }
                }
                None => return Err(StoreError::Unsupported("the store's file thread does not answer".into())),
            }
        }
    }

    /// Registers a stream under the key of its session and run.
    pub fn stream_begin(&mut self, stream: StreamId, session: &SessionKey, run: u32) {
        self.writer.stream_begin(stream, &stream_key(session, run));
    }

    /// Registers a stream under any key.
    pub fn stream_begin_key(&mut self, stream: StreamId, key: &str) {
        self.writer.stream_begin(stream, key);
    }

    /// Appends one record; waits for room.
    pub fn append(&mut self, meta: &RecordMeta, body: &[u8]) -> Result<(), StoreError> {
        if !self.writer.has_room(body.len()) {
            self.wait_for(|writer| writer.has_room(body.len()))?;
        }
        let _counted = self.writer.append(meta, body, self.now);
        self.until_look = self.until_look.saturating_sub(1);
        if self.until_look == 0 || self.writer.has_ops() {
            self.look()?;
        }
        Ok(())
    }

    /// Appends the `count` messages of a segment, the first with `meta.sequence`; waits for room.
    pub fn append_run(
        &mut self,
        meta: &RecordMeta,
        count: u32,
        framing: Framing,
        block: &[u8],
    ) -> Result<(), StoreError> {
        // Headers can make a segment of tiny messages seventeen times as large as it was.
        let bytes = block.len() + count as usize * RECORD_HEADER_BYTES;
        let blocks = 2 + bytes / (self.writer.settings().block_bytes / 2);
        if self.writer.free_blocks() < blocks {
            if blocks > self.writer.blocks() {
                return self.append_each(meta, framing, block);
            }
            self.wait_for(|writer| writer.free_blocks() >= blocks)?;
        }
        let _counted = self.writer.append_run(meta, count, framing, block, self.now);
        self.until_look = self.until_look.saturating_sub(1);
        if self.until_look == 0 || self.writer.has_ops() {
            self.look()?;
        }
        Ok(())
    }

    fn append_each(&mut self, meta: &RecordMeta, framing: Framing, block: &[u8]) -> Result<(), StoreError> {
        for (sequence, body) in (meta.sequence..).zip(Messages::new(block, framing)) {
            self.append(&RecordMeta { sequence, ..*meta }, body)?;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), StoreError> {
        self.until_look = APPENDS_PER_LOOK;
        self.now = clock::monotonic_ns();
        self.writer.on_tick(self.now);
        self.drive()
    }

    /// Writes what is there and waits until it is in the file (not: on the disk).
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.now = clock::monotonic_ns();
        self.writer.flush(self.now);
        self.wait_for(|writer| writer.in_flight_data() == 0 && !writer.has_ops())
    }

    /// Counters so far.
    pub fn counters(&self) -> Counters {
        self.writer.counters()
    }

    /// Where it writes to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records and files until now that an earlier crash had torn.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The runs and raw frames that the store held when it was opened.
    pub fn known_runs(&self) -> &KnownRuns {
        self.io.known_runs()
    }

    /// What the file thread complained about.
    pub fn trouble(&self) -> &[String] {
        &self.trouble
    }

    /// Writes the rest, seals, and tells what became of everything.
    pub fn close(mut self) -> Result<Closed, StoreError> {
        self.now = clock::monotonic_ns();
        self.closed = true;
        self.writer.close(self.now);
        if let Err(error) = self.wait_for(StoreWriter::is_closed) {
            self.now = clock::monotonic_ns();
            self.writer.give_up(self.now);
            self.trouble.push(error.to_string());
            self.wait_for(StoreWriter::is_closed)?;
        }
        self.io.files().stop();
        while let Some(report) = self.io.files().try_report() {
            self.note(&report);
        }
        let losses = self.writer.losses();
        if losses.data_records() > 0 {
            let causes = crate::store::LostCause::ALL.iter().filter(|&&cause| losses.count(cause).data_records > 0);
            return Err(StoreError::Lost {
                path: self.path.clone(),
                records: losses.data_records(),
                cause: causes.map(|cause| cause.label()).collect::<Vec<_>>().join(", "),
            });
        }
        if self.writer.counters().failed_seals > 0 {
            return Err(StoreError::Unsupported(self.trouble.join("; ")));
        }
        Ok(Closed {
            counters: self.writer.counters(),
            losses: losses.ranges().to_vec(),
            files: std::mem::take(&mut self.sealed),
            damage: std::mem::take(&mut self.damage),
        })
    }

    /// Drives the disk until `done`, or until nothing has moved for the store's patience.
    fn wait_for(&mut self, done: impl Fn(&StoreWriter<AlignedBuffer>) -> bool) -> Result<(), StoreError> {
        let mut seen = self.progress();
        let mut since = clock::monotonic_ns();
        loop {
            self.now = clock::monotonic_ns();
            self.writer.on_tick(self.now);
            self.drive()?;
            if done(&self.writer) {
                return Ok(());
            }
            if self.progress() != seen {
                (seen, since) = (self.progress(), self.now);
            } else if self.now - since > self.patience_ns {
                let cause = if self.writer.is_full() { "the file system is full" } else { "the disk does not answer" };
                let records = self.writer.in_flight_data();
                return Err(StoreError::Lost { path: self.path.clone(), records, cause: cause.into() });
            }
            self.sleep()?;
        }
    }

    fn progress(&self) -> (Counters, u64) {
        (
            Counters { retried_writes: 0, retried_seals: 0, ..self.writer.counters() },
            self.writer.active_segment().unwrap_or(0),
        )
    }

    /// Sleeps until a completion, a report or [`WAIT`].
    fn sleep(&mut self) -> Result<(), StoreError> {
        if self.io.outstanding() > 0
            && let Some(ring) = &mut self.ring
        {
            return ring.submit_and_wait(Some(WAIT)).map_err(|source| StoreError::io("write", &self.path, source));
        }
        if let Some(report) = self.io.files().report(WAIT) {
            self.take(report);
        }
        Ok(())
    }

    fn drive(&mut self) -> Result<(), StoreError> {
        while self.zstd && self.writer.compress_step(self.now) {}
        loop {
            let mut reports = Vec::new();
            let mut disk = match &mut self.ring {
                Some(ring) => Disk::Ring(ring),
                None => Disk::Plain,
            };
            let step = self.io.step(&mut self.writer, &mut disk, self.now, &mut |report| {
                reports.push(told(report));
            });
            let mut moved = step.map_err(|source| StoreError::io("write", &self.path, source))?;
            if let Some(ring) = &mut self.ring {
                ring.submit().map_err(|source| StoreError::io("write", &self.path, source))?;
                while let Some(completion) = ring.next_completion() {
                    self.io.complete(&mut self.writer, completion.user_data, completion.result, self.now);
                    moved += 1;
                }
            }
            reports.into_iter().flatten().for_each(|told| self.keep(told));
            if moved == 0 {
                return Ok(());
            }
        }
    }

    fn take(&mut self, report: FilesReport) {
        let mut kept = None;
        self.io.take(&mut self.writer, report, self.now, &mut |report| kept = told(report));
        if let Some(told) = kept {
            self.keep(told);
        }
    }

    fn note(&mut self, report: &FilesReport) {
        if let Some(told) = told(report) {
            self.keep(told);
        }
    }

    fn keep(&mut self, told: Told) {
        match told {
            Told::Sealed(path) => self.sealed.push(path),
            Told::Damage(damage) => self.damage.extend(damage),
            // A full disk says the same five times a second.
            Told::Trouble(text) if self.trouble.last() == Some(&text) => {}
            Told::Trouble(text) => self.trouble.push(text),
        }
    }
}

impl Drop for SyncStore {
    /// Without `close`, what the kernel has is waited for (its memory and files are about to go); nothing is sealed.
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let until = clock::monotonic_ns() + self.patience_ns;
        while self.io.outstanding() > 0 && clock::monotonic_ns() < until {
            let Some(ring) = &mut self.ring else { break };
            if ring.submit_and_wait(Some(WAIT)).is_err() {
                break;
            }
            while let Some(completion) = ring.next_completion() {
                self.io.complete(&mut self.writer, completion.user_data, completion.result, self.now);
            }
        }
    }
}

enum Told {
    Sealed(PathBuf),
    Damage(Vec<Damage>),
    Trouble(String),
}

fn told(report: &FilesReport) -> Option<Told> {
    match report {
        FilesReport::Sealed { result: Ok(()), told, .. } => Some(Told::Sealed(told.into())),
        FilesReport::Sealed { told, .. } => Some(Told::Trouble(told.clone())),
        FilesReport::Recovered { damage, .. } => Some(Told::Damage(damage.clone())),
        FilesReport::Failed { error, .. } => Some(Told::Trouble(error.clone())),
        FilesReport::Trouble(text) => Some(Told::Trouble(text.clone())),
        FilesReport::Ready { .. } | FilesReport::Removed(_) => None,
    }
}

/// A ring for the pool; none where the kernel forbids it or memory cannot be locked: plain calls do as well here.
fn make_ring(buffers: &[AlignedBuffer]) -> Option<CoreRing> {
    let mut ring = CoreRing::new((buffers.len() * 2).max(8) as u32).ok()?;
    ring.register_blocks(buffers).ok()?;
    ring.enable(&[], 0).ok()?;
    Some(ring)
}
