//! Shared memory by name: a file of a fixed size, its mappings, and what its locks tell about its owner.
//!
//! A creator holds the file's `flock` as long as it lives; the kernel frees it at any death, in any PID namespace. A
//! creator that finds a file nobody holds puts a new inode in its place, so whoever still maps the old one keeps it whole.
//! Readers hold byte-range locks (`F_OFD_SETLK`) on what is theirs, for the same reason.
//!
//! No file is ever shortened, and a mapping is never longer than its file was: only someone else's `ftruncate` makes an
//! access fail (SIGBUS), as with any shared file.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How often a creator tries again when another one replaces the file under it, or a watcher probes its lock. More than
/// any race of two needs; each attempt waits [`RETRY_AFTER_US`] if the lock was taken.
const ATTEMPTS_MAX: usize = 8;
/// A watcher's probe holds a dead creator's lock for two system calls (about 1 us); 500 us passes one that was preempted.
const RETRY_AFTER_US: u64 = 500;
/// Bytes of a small page; mappings begin and end at them.
const PAGE_BYTES: usize = 4096;
/// Bytes of a huge page of the architectures that we run on.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Why shared memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The kernel refused.
    #[error("{}: {doing}: {source}{}", path.display(), hint(source))]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Another process holds the file as its creator.
    #[error("{} has a producer already (its lock is held): stop it first, or use another path", .0.display())]
    InUse(PathBuf),
    /// Something else stands at the path.
    #[error(
        "{} is there already and is no ring: it is not replaced; take another path, or remove the file", .0.display()
    )]
    NoRing(PathBuf),
    /// Others replace the file as fast as it is created.
    #[error("{} was replaced {ATTEMPTS_MAX} times while it was created: another producer starts over and over", .0.display())]
    Contended(PathBuf),
    /// The host gave small pages.
    #[error("{}: no huge pages{why}", path.display())]
    HugePages {
        /// The file.
        path: PathBuf,
        /// What is in the way, and what helps.
        why: &'static str,
    },
    /// The memory is not on the node that was asked for.
    #[error("{}: memory on NUMA node {node}: {source}; \"numactl --hardware\" lists the nodes", path.display())]
    Numa {
        /// The file.
        path: PathBuf,
        /// The node.
        node: u32,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl ShmError {
    /// Whether nothing is at the path.
    pub fn is_absent(&self) -> bool {
        matches!(self, ShmError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the file's mode or a read-only file system is in the way.
    pub fn is_denied(&self) -> bool {
        let denied = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
        };
        matches!(self, ShmError::Io { source, .. } if denied(source))
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        // The second is what touching pages says of a full file system.
        Some(libc::ENOSPC | libc::EFAULT) => {
            "; \"df /dev/shm\" shows the room: make the ring smaller, or mount it larger"
        }
        Some(libc::EACCES | libc::EPERM) => "; the file's mode and owner decide who may open it",
        _ => "",
    }
}

/// Where a path leads now, compared with a file that was opened by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathNow {
    /// To the same file.
    Same,
    /// To another one.
    Replaced,
    /// Nowhere.
    Gone,
}

/// How a file is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapOptions {
    /// Whether memory may be written through the mapping.
    pub writable: bool,
    /// Whether every page is touched before the call returns.
    pub prefault: bool,
    /// Whether the memory must be huge pages (an error where the host gives none).
    pub huge_pages: bool,
    /// The NUMA node that the memory must come from (an error where it cannot).
    pub numa_node: Option<u32>,
}

/// An open file of shared memory.
#[derive(Debug)]
pub struct RingFile {
    file: File,
    path: PathBuf,
    inode: (u64, u64),
    bytes: u64,
}

impl RingFile {
    /// Creates the file with `bytes` of zeros (reserved: a full file system is an error here, not a signal later), locked as
    /// its creator's. A ring (a file that begins with `magic`) that nobody holds is replaced by a new inode, and so is what
    /// is left of a creator that died before it wrote its magic; nothing else is.
    ///
    /// # Errors
    /// The lock is held by another ([`ShmError::InUse`]), what stands there is no ring ([`ShmError::NoRing`]), or the kernel
    /// refuses.
    pub fn create(path: &Path, bytes: u64, mode: u32, magic: u64) -> Result<RingFile, ShmError> {
        let mut in_use = false;
        for _ in 0..ATTEMPTS_MAX {
            let (file, is_new) = match open_new(path, mode) {
                Ok(file) => (file, true),
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => match open_plain(path, true) {
                    Ok(file) => (file, false),
                    // It went away in between.
                    Err(source) if source.kind() == io::ErrorKind::NotFound => continue,
                    Err(source) => return Err(error(path, "replace", source)),
                },
                Err(source) => return Err(error(path, "create", source)),
            };
            in_use = !lock(&file, libc::LOCK_EX).map_err(|source| error(path, "lock", source))?;
            if in_use {
                std::thread::sleep(std::time::Duration::from_micros(RETRY_AFTER_US));
                continue;
            }
            let mut ring = RingFile::of(file, path)?;
            // Between open and lock another creator may have replaced it.
            if ring.path_now() != PathNow::Same {
                continue;
            }
            if !is_new {
                if !ring.is_ring(magic).map_err(|source| error(path, "read", source))? {
                    return Err(ShmError::NoRing(path.into()));
                }
                // Never taken over, not even empty: who made it may shorten it under our mapping, and its mode is his.
                std::fs::remove_file(path).map_err(|source| error(path, "replace", source))?;
                continue;
            }
            if let Err(source) = ring.file.set_len(bytes) {
                ring.unlink();
                return Err(error(path, "set the size", source));
            }
            ring.bytes = bytes;
            return Ok(ring);
        }
        Err(if in_use { ShmError::InUse(path.into()) } else { ShmError::Contended(path.into()) })
    }

    /// Whether [`RingFile::create`] would refuse what stands at the path because it is no ring. What cannot be looked at is not
    /// refused here.
    pub fn is_refused(path: &Path, magic: u64) -> bool {
        match open_plain(path, false) {
            Ok(file) => RingFile::of(file, path).is_ok_and(|ring| !ring.is_ring(magic).unwrap_or(true)),
            // No plain file.
            Err(source) => source.raw_os_error().is_none() || source.kind() == io::ErrorKind::IsADirectory,
        }
    }

    /// Whether the file is a ring, or one that its creator had not finished: no magic yet, and nothing but zeros and the
    /// words of header and arena.
    fn is_ring(&self, magic: u64) -> io::Result<bool> {
        /// Words that a creator writes before the magic, at most: a header's, and the arena's two.
        const UNFINISHED_WORDS_MAX: usize = 16 + 2;
        let mut block = vec![0; 1 << 20];
        let (mut at, mut words) = (0, 0);
        loop {
            let length = self.file.read_at(&mut block, at)?;
            let read = &block[..length];
            if at == 0 && read.starts_with(&magic.to_ne_bytes()) {
                return Ok(true);
            }
            if at == 0 && read.iter().take(size_of::<u64>()).any(|byte| *byte != 0) {
                return Ok(false);
            }
            words += read.chunks(size_of::<u64>()).filter(|word| word.iter().any(|byte| *byte != 0)).count();
            if length == 0 || words > UNFINISHED_WORDS_MAX {
                return Ok(words <= UNFINISHED_WORDS_MAX);
            }
            at += length as u64;
        }
    }

    /// Opens an existing file, to write as well if `writable`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(path: &Path, writable: bool) -> Result<RingFile, ShmError> {
        RingFile::of(open_plain(path, writable).map_err(|source| error(path, "open", source))?, path)
    }

    /// Opens an existing file as its new creator; `None` where there is none.
    ///
    /// # Errors
    /// The lock is held by another ([`ShmError::InUse`]), or the kernel refuses.
    pub fn adopt(path: &Path) -> Result<Option<RingFile>, ShmError> {
        let file = match open_plain(path, true) {
            Ok(file) => file,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(error(path, "open", source)),
        };
        for _ in 0..ATTEMPTS_MAX {
            if lock(&file, libc::LOCK_EX).map_err(|source| error(path, "lock", source))? {
                let ring = RingFile::of(file, path)?;
                return Ok((ring.path_now() == PathNow::Same).then_some(ring));
            }
            std::thread::sleep(std::time::Duration::from_micros(RETRY_AFTER_US));
        }
        Err(ShmError::InUse(path.into()))
    }

    fn of(file: File, path: &Path) -> Result<RingFile, ShmError> {
        let metadata = file.metadata().map_err(|source| error(path, "stat", source))?;
        let inode = (metadata.dev(), metadata.ino());
        Ok(RingFile { file, path: path.into(), inode, bytes: metadata.len() })
    }

    /// Its size when it was opened, or as it was created.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// Whether the file system has given it room for all its bytes, so that no page comes by being touched. False where it
    /// does not say.
    pub fn has_all_pages(&self) -> bool {
        /// What `st_blocks` counts, whatever the file system's blocks are (stat(2)).
        const STAT_BLOCK_BYTES: u64 = 512;
        self.file.metadata().is_ok_and(|now| now.blocks().saturating_mul(STAT_BLOCK_BYTES) >= self.bytes)
    }

    /// Where the path leads now. One system call.
    pub fn path_now(&self) -> PathNow {
        match std::fs::metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) == self.inode => PathNow::Same,
            Ok(_) => PathNow::Replaced,
            Err(_) => PathNow::Gone,
        }
    }

    /// Whether nobody holds the file as its creator: it died, or it never locks. Only a handle that is no creator's asks.
    /// One system call while it lives, two after; a creator that starts in between tries again.
    pub fn creator_is_gone(&self) -> bool {
        let free = lock(&self.file, libc::LOCK_SH).unwrap_or(false);
        if free {
            unlock(&self.file);
        }
        free
    }

    /// Removes the path if it still leads here. The creator does so while it holds the lock, so that no other can have put
    /// its own file there meanwhile.
    pub fn unlink(&self) {
        if self.path_now() == PathNow::Same {
            // A path that went away in this moment is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Gives the creator's lock back. Closing the file is not enough: a mapping that outlives it holds the lock as well.
    pub fn release(&self) {
        unlock(&self.file);
    }

    /// Locks `bytes` bytes at `offset` for this handle, until it is closed or its process dies; false if another has them.
    /// The file must be open for writing.
    pub fn lock_bytes(&self, offset: u64, bytes: u64) -> bool {
        self.byte_lock(libc::F_OFD_SETLK, libc::F_WRLCK, offset, bytes).is_some()
    }

    /// Gives the bytes back.
    pub fn unlock_bytes(&self, offset: u64, bytes: u64) {
        self.byte_lock(libc::F_OFD_SETLK, libc::F_UNLCK, offset, bytes);
    }

    /// Whether another handle has locked any of the bytes; `None` where the kernel does not say.
    pub fn bytes_are_locked(&self, offset: u64, bytes: u64) -> Option<bool> {
        let found = self.byte_lock(libc::F_OFD_GETLK, libc::F_WRLCK, offset, bytes)?;
        Some(found.l_type != libc::F_UNLCK as libc::c_short)
    }

    fn byte_lock(&self, command: libc::c_int, kind: libc::c_int, offset: u64, bytes: u64) -> Option<libc::flock> {
        // SAFETY: an all-zero flock is a valid value (l_pid must be 0 for these commands).
        let mut what: libc::flock = unsafe { std::mem::zeroed() };
        what.l_type = kind as libc::c_short;
        what.l_whence = libc::SEEK_SET as libc::c_short;
        what.l_start = offset as libc::off_t;
        what.l_len = bytes as libc::off_t;
        // SAFETY: the descriptor is open and `what` is a valid, exclusive pointer for the duration of the call.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut what) };
        (result == 0).then_some(what)
    }

    /// Maps the whole file.
    ///
    /// # Errors
    /// The kernel refuses, or the host cannot give the pages asked for.
    pub fn map(&self, options: &MapOptions) -> Result<Mapping, ShmError> {
        let bytes = usize::try_from(self.bytes).expect("a file of 2^63 bytes at most");
        self.map_first(bytes, options)
    }

    /// Maps the first `bytes` of the file (rounded up to pages).
    ///
    /// # Errors
    /// As [`RingFile::map`].
    ///
    /// # Panics
    /// If `bytes` is 0 or beyond the file.
    pub fn map_first(&self, bytes: usize, options: &MapOptions) -> Result<Mapping, ShmError> {
        assert!(bytes > 0 && bytes as u64 <= self.bytes, "a mapping lies inside its file");
        let access = if options.writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let fd = self.file.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists; the descriptor is open.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(error(&self.path, "map", io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at 0");
        let mapping = Mapping(Arc::new(Memory { base, bytes, writable: options.writable, kind: Kind::Mapped }));
        self.settle(&mapping, options)?;
        Ok(mapping)
    }

    /// Chooses and fills the pages of a mapping, in this order: node and size of pages count only for pages not there yet.
    fn settle(&self, mapping: &Mapping, options: &MapOptions) -> Result<(), ShmError> {
        if let Some(node) = options.numa_node {
            mapping.bind(node).map_err(|source| ShmError::Numa { path: self.path.clone(), node, source })?;
        }
        if options.huge_pages {
            mapping.advise(libc::MADV_HUGEPAGE).map_err(|_| self.no_huge_pages(": the kernel has none"))?;
        }
        let whole = options.writable && mapping.len() as u64 == self.bytes;
        // Room reserved by the file alone is small pages: with huge ones the mapping touches it first.
        if whole && !options.huge_pages {
            self.reserve()?;
        }
        if options.prefault || options.huge_pages {
            mapping.populate().map_err(|source| error(&self.path, "touch its pages", source))?;
        }
        if options.huge_pages && !mapping.has_huge_pages() {
            return Err(self.no_huge_pages(match mapping.len() < HUGE_PAGE_BYTES {
                true => ": the ring is smaller than one of 2 MiB",
                false => {
                    ": write \"advise\" to /sys/kernel/mm/transparent_hugepage/shmem_enabled, or mount the file system \
                     with huge=advise"
                }
            }));
        }
        Ok(())
    }

    fn no_huge_pages(&self, why: &'static str) -> ShmError {
        ShmError::HugePages { path: self.path.clone(), why }
    }

    /// Takes the file's room now: on a full tmpfs a page touched later would be a SIGBUS.
    fn reserve(&self) -> Result<(), ShmError> {
        loop {
            // SAFETY: the call takes an open descriptor and numbers.
            let result = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, self.bytes as libc::off_t) };
            let source = io::Error::last_os_error();
            match source.raw_os_error() {
                _ if result == 0 => return Ok(()),
                // A timer of the application's: tmpfs keeps what it has reserved so far, so the next try has less to do.
                Some(libc::EINTR) => {}
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(()),
                _ => return Err(error(&self.path, "reserve its room", source)),
            }
        }
    }
}

/// Makes the file, which must not be there.
fn open_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path)
}

/// Opens an existing plain file. In a folder that all may write anything may stand at a ring's path once its producer has
/// ended: a pipe, for example, whose open(2) would wait for somebody at its other end.
fn open_plain(path: &Path, writable: bool) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(writable).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("no plain file: another process put something else in the ring's place")),
    }
}

fn error(path: &Path, doing: &'static str, source: io::Error) -> ShmError {
    ShmError::Io { doing, path: path.into(), source }
}

/// Takes the file's lock; false if another holds it.
fn lock(file: &File, kind: libc::c_int) -> io::Result<bool> {
    // SAFETY: the call takes an open descriptor and a number.
    if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

fn unlock(file: &File) {
    // SAFETY: the call takes an open descriptor and a number.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}

/// Memory that several handles share; the last frees it. Given out as atomics only, because others write it at any time.
#[derive(Clone, Debug)]
pub struct Mapping(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Mapped,
    Heap(std::alloc::Layout),
}

// SAFETY: the memory is only ever given out as shared atomics, which any thread may use; freeing it is thread safe.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.kind {
            // SAFETY: exactly the mapping made in `map_first`; its last handle is gone, and all slices hold one.
            Kind::Mapped => unsafe {
                libc::munmap(self.base.as_ptr().cast(), self.bytes);
            },
            // SAFETY: allocated in `anonymous` with this layout; its last handle is gone.
            Kind::Heap(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) },
        }
    }
}

impl Mapping {
    /// Zeroed memory of this process alone, aligned to cache lines: for tests and simulators that make thousands.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn anonymous(bytes: usize) -> Mapping {
        assert!(bytes > 0, "memory has a size");
        let layout = std::alloc::Layout::from_size_align(bytes, 128).expect("a size that fits memory");
        // SAFETY: the layout's size is not 0.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Mapping(Arc::new(Memory { base, bytes, writable: true, kind: Kind::Heap(layout) }))
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Never: a mapping has bytes.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// Where `count` items of `size` bytes at `offset` begin.
    fn part(&self, offset: usize, count: usize, size: usize) -> NonNull<u8> {
        let end = count.checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        assert!(
            end.is_some_and(|end| end <= self.0.bytes),
            "{count} x {size} bytes at {offset} lie inside the mapping"
        );
        assert!(offset.is_multiple_of(size), "{offset} is aligned to {size}");
        // SAFETY: `offset` is inside the mapping (checked above).
        unsafe { self.0.base.add(offset) }
    }

    /// `count` words at `offset` bytes, to read and write.
    ///
    /// # Panics
    /// If they lie outside the mapping, are not aligned, or the mapping is read-only.
    pub fn words(&self, offset: usize, count: usize) -> Words {
        assert!(self.0.writable, "the mapping is writable");
        Words { at: self.part(offset, count, 8).cast(), count, memory: self.0.clone() }
    }

    /// `count` halves (of 4 bytes) at `offset` bytes, to read and write.
    ///
    /// # Panics
    /// As [`Mapping::words`].
    pub fn halves(&self, offset: usize, count: usize) -> Halves {
        assert!(self.0.writable, "the mapping is writable");
        Halves { at: self.part(offset, count, 4).cast(), count, memory: self.0.clone() }
    }

    /// `count` words at `offset` bytes, to read.
    ///
    /// # Panics
    /// If they lie outside the mapping or are not aligned.
    pub fn read_words(&self, offset: usize, count: usize) -> ReadWords {
        ReadWords { at: self.part(offset, count, 8).cast(), count, memory: self.0.clone() }
    }

    /// `count` rows (a power of two) of `words` words each at `offset` bytes, to read and write.
    ///
    /// # Panics
    /// As [`Mapping::words`], or if `count` is no power of two or `words` is 0.
    pub fn rows(&self, offset: usize, count: u64, words: usize) -> Rows {
        assert!(self.0.writable, "the mapping is writable");
        let (at, mask) = self.row_part(offset, count, words);
        Rows { at: at.cast(), mask, words, memory: self.0.clone() }
    }

    /// [`Mapping::rows`] to read.
    ///
    /// # Panics
    /// As there.
    pub fn read_rows(&self, offset: usize, count: u64, words: usize) -> ReadRows {
        let (at, mask) = self.row_part(offset, count, words);
        ReadRows { at: at.cast(), mask, words, memory: self.0.clone() }
    }

    fn row_part(&self, offset: usize, count: u64, words: usize) -> (NonNull<u8>, u64) {
        assert!(count.is_power_of_two() && words > 0, "{count} rows of {words} words");
        let all = usize::try_from(count).ok().and_then(|count| count.checked_mul(words));
        (self.part(offset, all.expect("rows that fit memory"), 8), count - 1)
    }

    /// The word at `offset` bytes, to read and write.
    ///
    /// # Panics
    /// As [`Mapping::words`].
    pub fn word(&self, offset: usize) -> WordAt {
        assert!(self.0.writable, "the mapping is writable");
        WordAt { at: self.part(offset, 1, 8).cast(), memory: self.0.clone() }
    }

    /// The half (4 bytes) at `offset` bytes, to read and write.
    ///
    /// # Panics
    /// As [`Mapping::words`].
    pub fn half(&self, offset: usize) -> HalfAt {
        assert!(self.0.writable, "the mapping is writable");
        HalfAt { at: self.part(offset, 1, 4).cast(), memory: self.0.clone() }
    }

    /// The word at `offset` bytes, to read.
    ///
    /// # Panics
    /// As [`Mapping::read_words`].
    pub fn read_word(&self, offset: usize) -> ReadWordAt {
        ReadWordAt { at: self.part(offset, 1, 8).cast(), memory: self.0.clone() }
    }

    /// The half (4 bytes) at `offset` bytes, to read.
    ///
    /// # Panics
    /// As [`Mapping::read_words`].
    pub fn read_half(&self, offset: usize) -> ReadHalfAt {
        ReadHalfAt { at: self.part(offset, 1, 4).cast(), memory: self.0.clone() }
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is exactly this mapping, and the advices used here change no content.
        match unsafe { libc::madvise(self.0.base.as_ptr().cast(), self.0.bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Touches every page; where the kernel has no call for it (before 5.14), by reading.
    fn populate(&self) -> io::Result<()> {
        let advice = if self.0.writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        match self.advise(advice) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let words = self.read_words(0, self.0.bytes / 8);
                for word in words.iter().step_by(PAGE_BYTES / 8) {
                    word.load(Ordering::Relaxed);
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Demands that pages not there yet come from `node`.
    fn bind(&self, node: u32) -> io::Result<()> {
        /// Bits of the mask, as the kernel's largest configuration (CONFIG_NODES_SHIFT = 10).
        const NODES_MAX: u32 = 1024;
        if node >= NODES_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut mask = [0u64; NODES_MAX as usize / 64];
        mask[node as usize / 64] |= 1 << (node % 64);
        // The kernel reads one bit less than it is told.
        let bits = u64::from(NODES_MAX) + 1;
        let (base, bytes) = (self.0.base.as_ptr(), self.0.bytes.next_multiple_of(PAGE_BYTES));
        // SAFETY: the range is this mapping and the mask has as many bits as said; the call reads both and keeps neither.
        let result = unsafe { libc::syscall(libc::SYS_mbind, base, bytes, libc::MPOL_BIND, mask.as_ptr(), bits, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether any of the memory is huge pages, as `/proc/self/smaps` counts them.
    fn has_huge_pages(&self) -> bool {
        let Ok(text) = std::fs::read_to_string("/proc/self/smaps") else { return false };
        let begin = format!("{:x}-", self.0.base.as_ptr() as usize);
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&begin)).skip(1);
        let counts = |line: &str| {
            let value = line.strip_prefix("ShmemPmdMapped:").or_else(|| line.strip_prefix("FilePmdMapped:"));
            value.is_some_and(|value| value.trim() != "0 kB")
        };
        lines.by_ref().take_while(|line| !line.starts_with("VmFlags")).any(counts)
    }
}

/// A word that can be read only.
#[derive(Debug)]
#[repr(transparent)]
pub struct ReadWord(AtomicU64);

impl ReadWord {
    /// Reads the word.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// Asks for the line of this word, to come to the second-level cache.
    #[inline(always)]
    pub fn prefetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: reads nothing that the program sees.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(self.0.as_ptr().cast())
        };
    }

    /// Reads two neighbours, each by itself and relaxed, with one load where the machine has such a one.
    #[inline(always)]
    pub fn copy_pair(pair: &[ReadWord; 2], to: &mut [MaybeUninit<u8>; 16]) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::{asm, x86_64::__m128i};
            let both: __m128i;
            // SAFETY: reads the pair's 16 bytes, nothing else. A plain load of them would race with the writer's stores; this
            // instruction does what two relaxed loads may do (x86 reads each aligned word whole). It is not `pure`, so it
            // stays between the load and the fence that stand around it.
            unsafe {
                asm!("movdqu {both}, [{pair}]", both = lateout(xmm_reg) both, pair = in(reg) pair.as_ptr(),
                    options(nostack, preserves_flags, readonly));
            }
            // SAFETY: 16 bytes that are this reference's; unaligned.
            unsafe { to.as_mut_ptr().cast::<__m128i>().write_unaligned(both) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        for (word, half) in pair.iter().zip(to.as_chunks_mut::<8>().0) {
            *half = word.load(Ordering::Relaxed).to_ne_bytes().map(MaybeUninit::new);
        }
    }
}

/// A half (of 4 bytes) that can be read only. What others change by halves is read by halves: an atomic access of another
/// size to the same memory is a data race by the language's rules.
#[derive(Debug)]
#[repr(transparent)]
pub struct ReadHalf(AtomicU32);

impl ReadHalf {
    /// Reads the half.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }
}

macro_rules! slices {
    ($name:ident, $item:ty, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Debug)]
        pub struct $name {
            at: NonNull<$item>,
            count: usize,
            #[allow(dead_code)]
            memory: Arc<Memory>,
        }

        // SAFETY: shared atomics in memory that the value keeps alive.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Deref for $name {
            type Target = [$item];

            #[inline(always)]
            fn deref(&self) -> &[$item] {
                // SAFETY: `Mapping` checked bounds and alignment, and access by writing; `memory` keeps the mapping alive;
                // atomics may be shared with anyone; every bit pattern is one.
                unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
            }
        }
    };
}

slices!(Words, AtomicU64, "Words of a mapping, to read and write.");
slices!(Halves, AtomicU32, "Halves (of 4 bytes) of a mapping, to read and write.");
slices!(ReadWords, ReadWord, "Words of a mapping, to read.");

macro_rules! rows {
    ($name:ident, $item:ty, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Debug)]
        pub struct $name {
            at: NonNull<$item>,
            mask: u64,
            words: usize,
            #[allow(dead_code)]
            memory: Arc<Memory>,
        }

        // SAFETY: shared atomics in memory that the value keeps alive.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// The words of row `number` modulo the number of rows. On every push's path, so without a look at bounds.
            #[inline(always)]
            pub fn row(&self, number: u64) -> &[$item] {
                let at = (number & self.mask) as usize * self.words;
                // SAFETY: `Mapping` checked that `mask + 1` rows of `words` lie inside the memory, aligned and accessible as
                // asked; `at` is the beginning of one of them; `memory` keeps the mapping alive; atomics may be shared.
                unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(at), self.words) }
            }
        }
    };
}

rows!(Rows, AtomicU64, "Rows of words of a mapping, found with a mask, to read and write.");
rows!(ReadRows, ReadWord, "Rows of words of a mapping, found with a mask, to read.");

macro_rules! places {
    ($name:ident, $item:ty, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Debug)]
        pub struct $name {
            at: NonNull<$item>,
            #[allow(dead_code)]
            memory: Arc<Memory>,
        }

        // SAFETY: a shared atomic in memory that the value keeps alive.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Deref for $name {
            type Target = $item;

            #[inline(always)]
            fn deref(&self) -> &$item {
                // SAFETY: as for the slices above.
                unsafe { self.at.as_ref() }
            }
        }
    };
}

places!(WordAt, AtomicU64, "One word of a mapping, to read and write.");
places!(HalfAt, AtomicU32, "One half (of 4 bytes) of a mapping, to read and write.");
places!(ReadWordAt, ReadWord, "One word of a mapping, to read.");
places!(ReadHalfAt, ReadHalf, "One half (of 4 bytes) of a mapping, to read.");

/// Whether there is a process of that number (in this PID namespace), dead or alive as others may be.
pub fn process_exists(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    if pid == 0 {
        return false;
    }
    // SAFETY: signal 0 is none; the call takes numbers.
    let result = unsafe { libc::kill(pid, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// When the process of that number started, in clock ticks since boot; `None` where there is none, or no `/proc`.
pub fn process_started(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name (field 2) stands in parentheses and may hold anything; field 22 is the 20th after it.
    let after = &text[text.rfind(')')? + 1..];
    after.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Clock ticks since boot, as [`process_started`] counts them.
pub fn ticks_since_boot() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, exclusive pointer for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    // SAFETY: the call takes a number.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    time.tv_sec as u64 * per_second + time.tv_nsec as u64 * per_second / 1_000_000_000
}

/// A random number that is not 0, from the kernel.
///
/// # Errors
/// The kernel gives none.
pub fn random_nonzero() -> io::Result<u64> {
    loop {
        let mut bytes = [0u8; 8];
        // SAFETY: the buffer is valid for its 8 bytes for the duration of the call.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match (got, u64::from_ne_bytes(bytes)) {
            (8, number @ 1..) => return Ok(number),
            (8, 0) => {}
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("sluice-shm-{name}-{}", std::process::id()))
    }

    struct Removed(PathBuf);

    impl Drop for Removed {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    const MAGIC: u64 = 0x1234_5678_9abc_def0;
    const WRITABLE: MapOptions = MapOptions { writable: true, prefault: true, huge_pages: false, numa_node: None };

    #[test]
    fn a_file_has_one_creator_and_a_new_one_a_new_inode() {
        let path = Removed(path("creator"));
        let first = RingFile::create(&path.0, 8192, 0o600, MAGIC).expect("created");
        assert!(matches!(RingFile::create(&path.0, 8192, 0o600, MAGIC), Err(ShmError::InUse(_))));
        let watcher = RingFile::open(&path.0, false).expect("opened");
        assert!(!watcher.creator_is_gone());
        assert_eq!(watcher.path_now(), PathNow::Same);
        let mapping = watcher.map(&MapOptions { prefault: true, ..MapOptions::default() }).expect("mapped");
        first.map(&WRITABLE).expect("mapped").words(8, 1)[0].store(7, Ordering::Relaxed);
        assert_eq!(mapping.read_words(0, 1024)[1].load(Ordering::Relaxed), 7);
        let outlives = first.map(&WRITABLE).expect("mapped");
        first.release();
        assert!(watcher.creator_is_gone());
        drop((first, outlives));
        assert!(watcher.creator_is_gone());
        let second = RingFile::create(&path.0, 4096, 0o600, MAGIC).expect("created in its place");
        assert_ne!(second.inode(), watcher.inode());
        assert_eq!(watcher.path_now(), PathNow::Replaced);
        assert_eq!(mapping.read_words(8, 1)[0].load(Ordering::Relaxed), 7, "the old one stays whole");
        second.unlink();
        assert_eq!(second.path_now(), PathNow::Gone);
        assert!(RingFile::adopt(&path.0).expect("nothing there").is_none());
    }

    #[test]
    fn what_is_no_ring_is_left_alone() {
        let path = Removed(path("foreign"));
        let mut image = vec![0; 1 << 20];
        image[40_000..].fill(7);
        for bytes in
            [&b"a text"[..], &b"a longer text than a header has"[..], &image, &[0, 0, 0, 0, 0, 0, 0, 0, 1].repeat(99)]
        {
            std::fs::write(&path.0, bytes).expect("a writable folder");
            assert!(RingFile::is_refused(&path.0, MAGIC));
            let error = RingFile::create(&path.0, 4096, 0o600, MAGIC).expect_err("no ring");
            assert!(matches!(error, ShmError::NoRing(_)), "{error}");
            assert_eq!(std::fs::read(&path.0).expect("there"), bytes);
        }
        let mut unfinished = vec![0; 8 << 10];
        unfinished[8..128].fill(3);
        unfinished[4096..4112].fill(3);
        for bytes in [Vec::new(), vec![0; 5], unfinished, [&MAGIC.to_ne_bytes()[..], b"anything"].concat()] {
            std::fs::write(&path.0, &bytes).expect("a writable folder");
            assert!(!RingFile::is_refused(&path.0, MAGIC));
            RingFile::create(&path.0, 4096, 0o600, MAGIC).expect("replaced").unlink();
        }
        assert!(RingFile::is_refused(Path::new("/dev/shm"), MAGIC));
        assert!(RingFile::is_refused(Path::new("/dev/null"), MAGIC));
        assert!(!RingFile::is_refused(&path.0, MAGIC), "nothing is there");
    }

    #[test]
    fn what_stands_there_is_replaced_even_if_it_is_empty() {
        use std::os::unix::fs::PermissionsExt;
        let path = Removed(path("stray"));
        let stray = File::create(&path.0).expect("a writable folder");
        std::fs::set_permissions(&path.0, std::fs::Permissions::from_mode(0o666)).expect("ours");
        let ring = RingFile::create(&path.0, 4096, 0o600, MAGIC).expect("replaces it");
        let mode = std::fs::metadata(&path.0).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600, "not the stray one's");
        assert_ne!(stray.metadata().expect("open").ino(), ring.inode().1);
        drop(ring);
        RingFile::create(&path.0, u64::MAX, 0o600, MAGIC).expect_err("no file is that long");
        assert!(!path.0.exists(), "what did not become a ring does not stay");
    }

    #[test]
    fn nobody_waits_at_a_pipe() {
        let path = Removed(path("pipe"));
        let name = std::ffi::CString::new(path.0.to_str().expect("text")).expect("no zero");
        // SAFETY: `name` ends with a zero and lives for the duration of the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for error in [
            RingFile::open(&path.0, false).expect_err("no file"),
            RingFile::open(&path.0, true).expect_err("no file"),
            RingFile::adopt(&path.0).expect_err("no file"),
            RingFile::create(&path.0, 4096, 0o600, MAGIC).expect_err("no file"),
        ] {
            assert!(error.to_string().contains("no plain file"), "{error}");
        }
    }

    #[test]
    fn a_file_is_adopted_as_it_is() {
        let path = Removed(path("adopt"));
        let first = RingFile::create(&path.0, 4096, 0o600, MAGIC).expect("created");
        assert!(matches!(RingFile::adopt(&path.0), Err(ShmError::InUse(_))));
        let inode = first.inode();
        drop(first);
        let adopted = RingFile::adopt(&path.0).expect("free").expect("there");
        assert_eq!((adopted.inode(), adopted.bytes()), (inode, 4096));
    }

    #[test]
    fn byte_locks_tell_who_lives() {
        let path = Removed(path("bytes"));
        let creator = RingFile::create(&path.0, 4096, 0o600, MAGIC).expect("created");
        let reader = RingFile::open(&path.0, true).expect("opened");
        assert!(reader.lock_bytes(128, 64));
        assert_eq!(creator.bytes_are_locked(128, 64), Some(true));
        assert_eq!(creator.bytes_are_locked(192, 64), Some(false));
        assert!(!creator.lock_bytes(128, 64));
        drop(reader);
        assert_eq!(creator.bytes_are_locked(128, 64), Some(false));
    }

    #[test]
    fn what_the_host_cannot_give_is_said() {
        let path = Removed(path("numa"));
        let file = RingFile::create(&path.0, 4096, 0o600, MAGIC).expect("created");
        let error = file.map(&MapOptions { numa_node: Some(1000), ..WRITABLE }).expect_err("no host has it");
        assert!(error.to_string().contains("NUMA node 1000"), "{error}");
        let error = file.map(&MapOptions { huge_pages: true, ..WRITABLE }).expect_err("too small");
        assert!(error.to_string().contains("no huge pages"), "{error}");
        assert!(
            RingFile::open(Path::new("/nowhere/x"), false).expect_err("missing").to_string().contains("/nowhere/x")
        );
    }

    #[test]
    fn processes_are_known_by_number_and_start() {
        let own = std::process::id();
        assert!(process_exists(own) && !process_exists(0) && !process_exists(u32::MAX));
        let started = process_started(own).expect("there is a /proc");
        assert!(started > 0 && started <= ticks_since_boot() + 1);
        assert_ne!(random_nonzero().expect("random"), random_nonzero().expect("random"));
    }

    #[test]
    fn rows_are_found_with_a_mask() {
        let memory = Mapping::anonymous(16 + 4 * 24);
        let (rows, words) = (memory.rows(16, 4, 3), memory.words(16, 12));
        (0..12u32).for_each(|index| words[index as usize].store(u64::from(index), Ordering::Relaxed));
        for (number, first) in [(0, 0), (3, 9), (4, 0), (6, 6), (u64::MAX, 9)] {
            assert_eq!((rows.row(number)[0].load(Ordering::Relaxed), rows.row(number).len()), (first, 3));
            assert_eq!(memory.read_rows(16, 4, 3).row(number)[0].load(Ordering::Relaxed), first);
        }
        assert!(std::panic::catch_unwind(|| memory.rows(24, 4, 3)).is_err());
    }

    #[test]
    #[should_panic(expected = "inside the mapping")]
    fn nothing_outside_is_given_out() {
        Mapping::anonymous(64).words(0, 9);
    }
}
