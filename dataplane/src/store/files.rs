//! The store's file work, off the worker's core: a helper thread that makes the next segment ahead of time, seals
//! finished ones, recovers what a crash left, and applies retention. The worker only sends it messages.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::store::retention::{self, PARTIAL_SUFFIX, Removed, Retention, SegmentFile, Sweeper};
use crate::store::scan::{Damage, Depth, scan};
use crate::store::{Fault, KnownRuns, SegmentGrant, StampSource, StoreError, known};
use crate::sync::latest::Latest;
use crate::sys::{clock, file, privilege};
use crate::wire::block::{BlockError, SECTOR_BYTES, SegmentInfo, UuidText, pad};

/// How often a full disk is tried again, and how soon a failed creation is. Writing has to resume within a second of
/// space: this leaves time for the creation itself.
const RETRY: Duration = Duration::from_millis(200);
/// How often retention looks at the directory when nothing else happens.
const RETENTION_EVERY: Duration = Duration::from_nanos(retention::SWEEP_EVERY_NS as u64);
/// How long the start waits for a reader that looks at the directory's lock.
const LOCK_TRIES: u32 = 25;
/// The step of a seal that may lack space.
const WRITE_FOOTER: &str = "write the footer of";
/// How much of a file without a readable header is looked at in one piece.
const LOOK_BYTES: usize = 1024 * 1024;

/// Where and how a store's files are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilesSettings {
    /// The directory; for a single file its parent.
    pub directory: PathBuf,
    /// Write exactly this file instead of numbered segments.
    pub single: Option<PathBuf>,
    /// Bytes to preallocate for each segment; 0: none.
    pub preallocate_bytes: u64,
    /// Block size, for the segment header.
    pub block_bytes: u32,
    /// Past the page cache where the file system allows it.
    pub direct: bool,
    /// Bounds of the store.
    pub retention: Retention,
}

/// What the thread is asked.
#[derive(Debug)]
pub enum FilesRequest {
    /// Make the next segment and go on trying.
    Next(StampSource),
    /// Write the footer at `end`, cut, sync, rename.
    Seal {
        /// Number of the segment.
        segment: u64,
        /// The footer block.
        footer: Vec<u8>,
        /// Where it belongs.
        end: u64,
    },
    /// Delete a segment that was never used.
    Discard(u64),
    /// Finish what was asked, delete what was made ahead, and end.
    Stop,
}

/// What the thread answers or tells.
#[derive(Debug)]
pub enum FilesReport {
    /// A segment is there.
    Ready {
        /// For [`crate::store::StoreWriter::segment_ready`].
        grant: SegmentGrant,
        /// The file to write to.
        file: Arc<File>,
        /// Whether writes go past the page cache.
        direct: bool,
        /// Whether its space is reserved.
        preallocated: bool,
        /// Its path while it is being written.
        path: PathBuf,
    },
    /// No segment could be made; tried again in 200 ms.
    Failed {
        /// For [`crate::store::StoreWriter::segment_failed`].
        fault: Fault,
        /// For the log.
        error: String,
    },
    /// A seal came to its end.
    Sealed {
        /// Number of the segment.
        segment: u64,
        /// For [`crate::store::StoreWriter::on_sealed`].
        result: Result<(), Fault>,
        /// Its final path, or what went wrong.
        told: String,
    },
    /// Retention deleted segments.
    Removed(Vec<Removed>),
    /// A segment that a crash had left was sealed (or deleted, when it held no record).
    Recovered {
        /// The file, under its name from now on.
        path: PathBuf,
        /// Records in it.
        records: u64,
        /// What was torn.
        damage: Vec<Damage>,
    },
    /// Something that the log should say.
    Trouble(String),
}

/// Called after each report, so that a parked worker wakes.
pub type Notify = Box<dyn Fn() + Send>;

/// What the thread saw when it last looked: the directory, its file system, and what retention has deleted so far. Each value
/// is written by the thread alone.
#[derive(Debug, Default)]
pub struct Room {
    /// Bytes that the store's segments take on the disk, those that are written and ready included.
    pub kept_bytes: AtomicU64,
    /// How many they are.
    pub kept_segments: AtomicU64,
    /// Bytes of the file system that are free to unprivileged users.
    pub free_bytes: AtomicU64,
    /// All of them.
    pub total_bytes: AtomicU64,
    /// Segments that retention deleted, by the bound that asked for it ([`retention::BOUNDS`]).
    pub deleted_segments: [AtomicU64; retention::BOUNDS.len()],
    /// The bytes that they took.
    pub deleted_bytes: AtomicU64,
}

impl Room {
    fn count(&self, removed: &[Removed]) {
        for removed in removed {
            if let Some(bound) = retention::BOUNDS.iter().position(|bound| *bound == removed.bound) {
                self.deleted_segments[bound].fetch_add(1, Ordering::Relaxed);
            }
            self.deleted_bytes.fetch_add(removed.disk_bytes, Ordering::Relaxed);
        }
    }

    /// What cannot be read stays as it was: retention says why.
    fn look(&self, directory: &Path) {
        if let Ok(files) = retention::list(directory) {
            self.kept_bytes.store(files.iter().map(|file| file.disk_bytes).sum(), Ordering::Relaxed);
            self.kept_segments.store(files.len() as u64, Ordering::Relaxed);
        }
        if let Ok(space) = file::space(directory) {
            self.free_bytes.store(space.available_bytes, Ordering::Relaxed);
            self.total_bytes.store(space.total_bytes, Ordering::Relaxed);
        }
    }
}

/// The handle of the thread.
pub struct Files {
    requests: Sender<FilesRequest>,
    reports: Receiver<FilesReport>,
    thread: Option<JoinHandle<()>>,
    known: KnownRuns,
    retention: Latest<Retention>,
    room: Arc<Room>,
}

impl Files {
    /// Locks the directory, finds where the store left off, and starts the thread, which first seals what a crash
    /// left. Returns the arrival index of the first new record.
    pub fn start(settings: FilesSettings, notify: Notify) -> Result<(Files, u64), StoreError> {
        let (lock, next_number, known, leftovers) = match &settings.single {
            Some(path) => {
                refuse_existing(path)?;
                (None, 1, KnownRuns::default(), Vec::new())
            }
            None => {
                let directory = &settings.directory;
                fs::create_dir_all(directory).map_err(|source| StoreError::io("create", directory, source))?;
                retention::reachable(directory, &settings.retention)?;
                let lock = lock_directory(directory)?;
                let files = retention::list(directory)?;
                let next = files.iter().filter_map(|file| file.number).max().unwrap_or(0) + 1;
                let known = known::of_files(&files);
                (Some(lock), next, known, files.into_iter().filter(|file| !file.sealed).collect::<Vec<_>>())
            }
        };
        let (requests, inbox) = unbounded();
        let (outbox, reports) = unbounded();
        let retention = Latest::new(settings.retention);
        let room = Arc::new(Room::default());
        let mut worker = Worker {
            room: Arc::clone(&room),
            trouble: None,
            sweeper: Sweeper::new(settings.retention),
            retention: retention.clone(),
            settings,
            next_number,
            open: Vec::new(),
            wanted: None,
            outbox,
            notify,
            leftovers,
            _lock: lock,
            retention_at: clock::monotonic_ns(),
        };
        let thread = std::thread::Builder::new()
            .name("store-files".into())
            .spawn(move || match privilege::renounce() {
                Ok(()) => worker.run(&inbox),
                Err(error) => tracing::error!("store-files: giving up capabilities: {error}"),
            })
            .map_err(|source| StoreError::io("start a thread for", Path::new("store-files"), source))?;
        let arrival_next = known.arrival_next;
        Ok((Files { requests, reports, thread: Some(thread), known, retention, room }, arrival_next))
    }

    /// The runs and raw frames that the store held when it was opened: new ones are numbered from there.
    pub fn known_runs(&self) -> &KnownRuns {
        &self.known
    }

    /// The bounds: what is set there holds from the thread's next look on, at most [`RETENTION_EVERY`] later.
    pub fn retention(&self) -> Latest<Retention> {
        self.retention.clone()
    }

    /// What the thread last saw of the disk.
    pub fn room(&self) -> Arc<Room> {
        Arc::clone(&self.room)
    }

    /// Asks the thread for something. Never waits.
    pub fn ask(&self, request: FilesRequest) {
        // The thread lives until `Stop`, which only `stop` sends: a closed channel means that it has panicked.
        let _ = self.requests.send(request);
    }

    /// The next report, if one is there. Never waits.
    pub fn try_report(&self) -> Option<FilesReport> {
        self.reports.try_recv().ok()
    }

    /// The next report, waiting at most `timeout`. For blocking users.
    pub fn report(&self, timeout: Duration) -> Option<FilesReport> {
        self.reports.recv_timeout(timeout).ok()
    }

    /// Ends the thread and waits for it.
    pub fn stop(&mut self) {
        let _ = self.requests.send(FilesRequest::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.stop();
    }
}

fn refuse_existing(path: &Path) -> Result<(), StoreError> {
    for path in [path.to_path_buf(), partial_path(path)] {
        if path.exists() {
            return Err(StoreError::Exists(path));
        }
    }
    Ok(())
}

/// The name of a segment while it is written.
pub fn partial_path(sealed: &Path) -> PathBuf {
    let mut name = sealed.as_os_str().to_os_string();
    name.push(&PARTIAL_SUFFIX[retention::SEALED_SUFFIX.len()..]);
    name.into()
}

fn lock_directory(directory: &Path) -> Result<file::Lock, StoreError> {
    for _ in 0..LOCK_TRIES {
        match file::lock_exclusive(directory) {
            Ok(Some(lock)) => return Ok(lock),
            Ok(None) => clock::sleep(Duration::from_millis(10)),
            Err(source) => return Err(StoreError::io("lock", directory, source)),
        }
    }
    Err(StoreError::Locked(directory.into()))
}

struct OpenSegment {
    info: SegmentInfo,
    file: Arc<File>,
    path: PathBuf,
    sealed_path: PathBuf,
    _lock: Option<file::Lock>,
}

struct Worker {
    settings: FilesSettings,
    next_number: u64,
    open: Vec<OpenSegment>,
    wanted: Option<StampSource>,
    outbox: Sender<FilesReport>,
    notify: Notify,
    /// Segments that a crash left, newest last; sealed when nothing else is asked.
    leftovers: Vec<SegmentFile>,
    _lock: Option<file::Lock>,
    sweeper: Sweeper,
    retention: Latest<Retention>,
    retention_at: i64,
    /// Why retention could not do its work the last time: it tries each 5 s, and says it once.
    trouble: Option<String>,
    room: Arc<Room>,
}

impl Worker {
    fn run(&mut self, inbox: &Receiver<FilesRequest>) {
        self.look();
        // The first segment comes before recovery: the capture waits for it.
        let mut first = true;
        loop {
            let idle = if self.leftovers.is_empty() { RETENTION_EVERY } else { Duration::ZERO };
            let wait = if self.wanted.is_some() || first { RETRY } else { idle };
            first = false;
            match inbox.recv_timeout(wait) {
                Ok(FilesRequest::Next(source)) => {
                    self.wanted = Some(source);
                    self.make_wanted();
                }
                Ok(FilesRequest::Seal { segment, footer, end }) => self.seal(segment, &footer, end),
                Ok(FilesRequest::Discard(segment)) => self.discard(segment),
                Ok(FilesRequest::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if !self.leftovers.is_empty() && self.wanted.is_none() => {
                    self.recover_one();
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.retain();
                    self.make_wanted();
                }
            }
            if clock::monotonic_ns() - self.retention_at >= RETENTION_EVERY.as_nanos() as i64 {
                self.retain();
            }
        }
        while !self.leftovers.is_empty() {
            self.recover_one();
        }
        self.drop_unused();
    }

    /// What was made ahead and never written to goes; what holds a block stays for the next start to seal.
    fn drop_unused(&mut self) {
        for segment in self.open.drain(..) {
            // Through a second descriptor: the segment's own may be O_DIRECT, which refuses unaligned reads.
            let used = File::open(&segment.path)
                .map_err(|source| StoreError::io("open", &segment.path, source))
                .and_then(|file| holds_bytes(&file, &segment.path));
            if let Ok(false) = used {
                let _ = fs::remove_file(&segment.path);
            }
        }
    }

    fn tell(&self, report: FilesReport) {
        // The other end may be gone at the very end; there is nobody left to tell then.
        let _ = self.outbox.send(report);
        (self.notify)();
    }

    fn make_wanted(&mut self) {
        let Some(source) = self.wanted else { return };
        match self.create(source) {
            Ok(report) => {
                self.wanted = None;
                self.tell(report);
            }
            Err(error) => {
                let fault = match &error {
                    StoreError::Io { source, .. } => fault_of(source),
                    _ => Fault::Io(libc::EIO),
                };
                self.tell(FilesReport::Failed { fault, error: error.to_string() });
            }
        }
    }

    fn create(&mut self, stamp_source: StampSource) -> Result<FilesReport, StoreError> {
        let info = SegmentInfo {
            uuid: uuid::Uuid::new_v4().into_bytes(),
            number: self.next_number,
            created_ns: clock::utc_ns(),
            block_bytes: self.settings.block_bytes,
            stamp_source,
        };
        let sealed_path = match &self.settings.single {
            Some(path) => path.clone(),
            None => self.settings.directory.join(retention::segment_name(info.number, &info.uuid)),
        };
        let path = partial_path(&sealed_path);
        let mut made = file::create_block_file(&path, self.settings.direct)
            .map_err(|source| StoreError::io("create", &path, source))?;
        if let Err(error) = self.begin(&mut made, &path, &info) {
            // A segment that could not be begun must not take up the space that it lacked.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let lock = match self.settings.single {
            Some(_) => file::lock_exclusive(&path).map_err(|source| StoreError::io("lock", &path, source))?,
            None => None,
        };
        self.next_number += 1;
        let file = Arc::new(made.file);
        let (direct, preallocated) = (made.direct, made.preallocated_bytes > 0);
        self.open.push(OpenSegment { info, file: file.clone(), path: path.clone(), sealed_path, _lock: lock });
        let grant = SegmentGrant { info, begin: SECTOR_BYTES as u64 };
        Ok(FilesReport::Ready { grant, file, direct, preallocated, path })
    }

    fn begin(&self, made: &mut file::BlockFile, path: &Path, info: &SegmentInfo) -> Result<(), StoreError> {
        let bytes = self.settings.preallocate_bytes;
        let reserve = |source| StoreError::io("reserve space for", path, source);
        if bytes > 0 && file::preallocate(&made.file, bytes).map_err(reserve)? {
            made.preallocated_bytes = bytes;
        }
        write_aligned(&made.file, &info.encode(), 0)
            .and_then(|()| file::sync_data(&made.file))
            .map_err(|source| StoreError::io("write", path, source))?;
        sync_parent(path)
    }

    fn seal(&mut self, number: u64, footer: &[u8], end: u64) {
        let Some(at) = self.open.iter().position(|segment| segment.info.number == number) else {
            return self.tell(FilesReport::Trouble(format!("segment {number} is not open")));
        };
        let segment = self.open.swap_remove(at);
        let result = finish(&segment.file, &segment.path, &segment.sealed_path, footer, end);
        let (result, told) = match result {
            Ok(()) => (Ok(()), segment.sealed_path.display().to_string()),
            // The writer asks again.
            Err(error) => {
                let fault = seal_fault(&error);
                if fault == Fault::NoSpace {
                    self.open.push(segment);
                }
                (Err(fault), error.to_string())
            }
        };
        self.tell(FilesReport::Sealed { segment: number, result, told });
        self.retain();
    }

    fn discard(&mut self, number: u64) {
        if let Some(at) = self.open.iter().position(|segment| segment.info.number == number) {
            let segment = self.open.swap_remove(at);
            if let Err(error) = fs::remove_file(&segment.path) {
                self.tell(FilesReport::Trouble(format!("cannot delete {}: {error}", segment.path.display())));
            }
        }
    }

    fn retain(&mut self) {
        self.retention_at = clock::monotonic_ns();
        if self.settings.single.is_some() {
            return;
        }
        self.sweeper.set(**self.retention.look());
        let open: Vec<&Path> = self.open.iter().map(|segment| segment.path.as_path()).collect();
        match self.sweeper.sweep(&self.settings.directory, &open, clock::utc_ns(), self.retention_at) {
            Ok(sweep) => {
                self.trouble = None;
                if let Some(doubt) = sweep.doubt {
                    self.tell(FilesReport::Trouble(doubt));
                }
                self.room.count(&sweep.removed);
                if !sweep.removed.is_empty() {
                    self.tell(FilesReport::Removed(sweep.removed));
                }
            }
            Err(error) => {
                let what = Some(error.to_string());
                if self.trouble != what {
                    self.tell(FilesReport::Trouble(error.to_string()));
                }
                self.trouble = what;
            }
        }
        self.look();
    }

    fn look(&self) {
        if self.settings.single.is_none() {
            self.room.look(&self.settings.directory);
        }
    }

    fn recover_one(&mut self) {
        let segment = self.leftovers.remove(0);
        match recover(&segment.path) {
            Ok((path, records, damage)) => self.tell(FilesReport::Recovered { path, records, damage }),
            Err(error) => self.tell(FilesReport::Trouble(error.to_string())),
        }
    }
}

/// Seals a segment that a crash left: reads every block, writes a footer over the whole ones, gives the final name.
/// One that holds nothing is deleted; one whose every block is torn is sealed too, so that its bytes stay for whoever
/// wants to look, and age like the rest. Returns its path, its records and what was torn.
///
/// # Errors
/// [`StoreError::Kept`] when its first block cannot be read (damaged, or of another version) although something
/// follows it: the file is left as it is.
pub fn recover(path: &Path) -> Result<(PathBuf, u64, Vec<Damage>), StoreError> {
    let file = file::open_existing(path).map_err(|source| StoreError::io("open", path, source))?;
    let scanned = match scan(&file, path, Depth::Full, false) {
        Ok(scanned) => scanned,
        Err(StoreError::Format { source, .. }) => {
            // Killed while it was being made: not even the header is there, and nothing behind it.
            if !matches!(source, BlockError::Version(_)) && !holds_bytes(&file, path)? {
                return delete_empty(path);
            }
            return Err(StoreError::Kept { path: path.into(), source });
        }
        Err(error) => return Err(error),
    };
    if scanned.index.blocks.is_empty() && scanned.damage.is_empty() {
        return delete_empty(path);
    }
    let text = path.as_os_str().to_str().ok_or_else(|| {
        StoreError::io("rename", path, io::Error::new(io::ErrorKind::InvalidInput, "its name is not UTF-8"))
    })?;
    let sealed = PathBuf::from(text.strip_suffix(".partial").unwrap_or(text));
    let torn = scanned.damage.iter().map(|damage| damage.offset + damage.bytes).max().unwrap_or(0);
    // The footer never stands where bytes of a torn block are: they stay for whoever wants to look.
    let end = scanned.end.max(pad(torn as usize) as u64);
    let footer = scanned.index.encode_footer(&scanned.info, end);
    finish(&file, path, &sealed, &footer, end)?;
    Ok((sealed, scanned.index.records(), scanned.damage))
}

fn delete_empty(path: &Path) -> Result<(PathBuf, u64, Vec<Damage>), StoreError> {
    fs::remove_file(path).map_err(|source| StoreError::io("delete", path, source))?;
    Ok((path.into(), 0, Vec::new()))
}

/// Whether any byte behind the first sector is not zero: where nothing was written, preallocated space reads as zeros.
fn holds_bytes(file: &File, path: &Path) -> Result<bool, StoreError> {
    let io = |source| StoreError::io("read", path, source);
    let mut window = vec![0; LOOK_BYTES];
    let mut at = SECTOR_BYTES as u64;
    while let Some(data) = file::next_data(file, at).map_err(io)? {
        at = at.max(data);
        let have = file::read_at(file, &mut window, at).map_err(io)?;
        if window[..have].iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
        if have == 0 {
            break;
        }
        at += have as u64;
    }
    Ok(false)
}

fn finish(file: &File, path: &Path, sealed: &Path, footer: &[u8], end: u64) -> Result<(), StoreError> {
    let io = |what| move |source| StoreError::io(what, path, source);
    // First the blocks: without space for the footer they are durable all the same.
    file::sync_data(file).map_err(io("sync"))?;
    write_aligned(file, footer, end).map_err(io(WRITE_FOOTER))?;
    file.set_len(end + footer.len() as u64).map_err(io("cut"))?;
    file.sync_all().map_err(io("sync"))?;
    if sealed.exists() {
        return Err(StoreError::Exists(sealed.into()));
    }
    fs::rename(path, sealed).map_err(io("rename"))?;
    sync_parent(sealed)
}

fn sync_parent(path: &Path) -> Result<(), StoreError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    file::sync_directory(parent).map_err(|source| StoreError::io("sync", parent, source))
}

fn write_aligned(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut aligned = file::AlignedBuffer::new(bytes.len())?;
    aligned[..bytes.len()].copy_from_slice(bytes);
    file::write_all_at(file, &aligned, offset)
}

/// Only the footer's ENOSPC is worth another try: one of a sync speaks of blocks that never got their space.
fn seal_fault(error: &StoreError) -> Fault {
    match error {
        StoreError::Io { what: WRITE_FOOTER, source, .. } => fault_of(source),
        StoreError::Io { source, .. } => Fault::Io(source.raw_os_error().unwrap_or(libc::EIO)),
        _ => Fault::Io(libc::EIO),
    }
}

fn fault_of(error: &io::Error) -> Fault {
    Fault::from_errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// A segment's UUID as text.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    UuidText(*uuid).to_string()
}
