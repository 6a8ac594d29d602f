//! Files for the store: aligned block memory, O_DIRECT, preallocation, durable renames, locks, free space.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};

/// Alignment of block memory: a page, and the largest logical sector that O_DIRECT asks for.
pub const ALIGN_BYTES: usize = 4096;

/// One mapping that holds all blocks of a pool. Populated when made, so that no page fault comes later.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; it is written only through the `AlignedBuffer`s, which share no byte.
unsafe impl Send for Arena {}
// SAFETY: as for `Send`; the arena itself hands out no reference.
unsafe impl Sync for Arena {}

impl Arena {
    fn new(bytes: usize) -> io::Result<Arena> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped; advice changes no contents. Large pages spare the TLB where they exist.
        unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
        Ok(Arena { base: NonNull::new(base.cast()).expect("a mapping is not at 0"), bytes })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with these bounds, and every buffer holds an `Arc` to it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Page-aligned memory of fixed size, zeroed when made; one part of an [`Arena`].
#[derive(Debug)]
pub struct AlignedBuffer {
    arena: Arc<Arena>,
    offset: usize,
    bytes: usize,
}

impl AlignedBuffer {
    /// A buffer of its own; `bytes` is rounded up to [`ALIGN_BYTES`].
    pub fn new(bytes: usize) -> io::Result<AlignedBuffer> {
        Ok(AlignedBuffer::pool(1, bytes)?.pop().expect("one buffer"))
    }

    /// `count` buffers of `bytes` bytes (rounded up to [`ALIGN_BYTES`]) in one mapping.
    pub fn pool(count: usize, bytes: usize) -> io::Result<Vec<AlignedBuffer>> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN_BYTES);
        let total = bytes.checked_mul(count.max(1)).ok_or(io::ErrorKind::OutOfMemory)?;
        let arena = Arc::new(Arena::new(total)?);
        Ok((0..count).map(|at| AlignedBuffer { arena: arena.clone(), offset: at * bytes, bytes }).collect())
    }

    /// Address and length, for registration with io_uring, and what keeps the memory mapped.
    pub(super) fn raw(&self) -> (*mut u8, usize, Arc<Arena>) {
        // SAFETY: `offset..offset + bytes` lies inside the mapping (`pool` cut it so).
        let at = unsafe { self.arena.base.as_ptr().add(self.offset) };
        (at, self.bytes, self.arena.clone())
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: in bounds of a live, initialised mapping; this buffer is the only one over these bytes.
        unsafe { std::slice::from_raw_parts(self.arena.base.as_ptr().add(self.offset), self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.arena.base.as_ptr().add(self.offset), self.bytes) }
    }
}

/// A file made for block writes.
#[derive(Debug)]
pub struct BlockFile {
    /// The file, open for reading and writing.
    pub file: File,
    /// Whether writes go past the page cache (O_DIRECT).
    pub direct: bool,
    /// Bytes that are preallocated; 0 where the file system cannot.
    pub preallocated_bytes: u64,
}

/// Creates a file that must not exist; with O_DIRECT where the file system allows it.
pub fn create_block_file(path: &Path, direct: bool) -> io::Result<BlockFile> {
    let name = path_text(path)?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    if direct {
        match open(&name, flags | libc::O_DIRECT) {
            Ok(file) => return Ok(BlockFile { file, direct: true, preallocated_bytes: 0 }),
            // EINVAL: no O_DIRECT here. The kernel may have made the file before it found that out.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let _ = std::fs::remove_file(path);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(BlockFile { file: open(&name, flags)?, direct: false, preallocated_bytes: 0 })
}

/// Opens an existing file for writing through the page cache (sealing what a crash left).
pub fn open_existing(path: &Path) -> io::Result<File> {
    open(&path_text(path)?, libc::O_RDWR | libc::O_CLOEXEC)
}

/// Why a small file cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SmallFileError {
    /// The system's word.
    #[error("{0}; {next}", next = unread(.0))]
    Read(#[from] io::Error),
    /// A directory, a pipe, a device.
    #[error("is no regular file")]
    NoFile,
    /// Longer than was allowed, in bytes.
    #[error("is longer than {0} bytes")]
    TooLong(u64),
}

/// A small regular file, whole: at most `bytes_max` bytes. Never waits, as for the writer of a pipe: that is no file.
///
/// # Errors
/// See [`SmallFileError`].
pub fn read_small(path: &Path, bytes_max: u64) -> Result<Vec<u8>, SmallFileError> {
    use std::io::Read;
    let file = open(&path_text(path)?, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK)?;
    if !file.metadata()?.is_file() {
        return Err(SmallFileError::NoFile);
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max { Err(SmallFileError::TooLong(bytes_max)) } else { Ok(bytes) }
}

/// Whether a file has a list of rights (ACL) beside its mode.
pub fn has_access_list(path: &Path) -> bool {
    let Ok(path) = path_text(path) else { return false };
    // SAFETY: both texts are NUL-terminated and outlive the call; with a size of 0 nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), c"system.posix_acl_access".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// What to do about a file that cannot be read.
pub fn unread(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "make it, or name the file that is meant",
        io::ErrorKind::PermissionDenied => "its owner and mode decide who may read it",
        _ => "name a file that can be read",
    }
}

/// The mode of a file that every user of the host may read or write; `None` for others, and where there is none.
pub fn open_to_all(path: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o006 != 0).then_some(mode)
}

fn open(name: &CStr, flags: i32) -> io::Result<File> {
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let fd = unsafe { libc::open(name.as_ptr(), flags, 0o644) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn path_text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Reserves the file's first `bytes` bytes and extends it to them, so that later writes neither allocate nor extend
/// (both would be punted to kernel workers). Returns false where the file system cannot preallocate.
pub fn preallocate(file: &File, bytes: u64) -> io::Result<bool> {
    loop {
        return match fallocate(file, FallocateFlags::empty(), 0, bytes as i64) {
            Ok(()) => Ok(true),
            Err(nix::errno::Errno::EINTR) => continue,
            Err(nix::errno::Errno::EOPNOTSUPP | nix::errno::Errno::ENOSYS) => Ok(false),
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Makes the file's data durable.
pub fn sync_data(file: &File) -> io::Result<()> {
    file.sync_data()
}

/// Makes names in a directory durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes all of `bytes` at `offset`.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// One positioned write; may be short.
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(bytes, offset)
}

/// Fills `bytes` from `offset`, or as far as the file goes; returns the bytes read.
pub fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The next byte at or after `offset` that may hold data; `None` when only holes follow.
pub fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    // SAFETY: only the descriptor's position changes, which nothing here relies on.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, libc::SEEK_DATA) };
    if at >= 0 {
        return Ok(Some(at as u64));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        // A file system without holes: everything may be data.
        Some(libc::EINVAL) => Ok(Some(offset)),
        _ => Err(error),
    }
}

/// An advisory lock (flock) on a file or directory; freed when dropped and when the process dies.
#[derive(Debug)]
pub struct Lock {
    _held: Flock<File>,
}

/// Takes the exclusive lock of `path`; `None` when another holds it.
pub fn lock_exclusive(path: &Path) -> io::Result<Option<Lock>> {
    lock(path, FlockArg::LockExclusiveNonblock)
}

/// Whether some process holds the exclusive lock of `path`.
pub fn is_locked(path: &Path) -> io::Result<bool> {
    Ok(lock(path, FlockArg::LockSharedNonblock)?.is_none())
}

fn lock(path: &Path, how: FlockArg) -> io::Result<Option<Lock>> {
    match Flock::lock(File::open(path)?, how) {
        Ok(held) => Ok(Some(Lock { _held: held })),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Space of a file system, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Free to unprivileged users.
    pub available_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// Space of the file system that holds `path`.
pub fn space(path: &Path) -> io::Result<Space> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    let unit = stat.fragment_size();
    Ok(Space { available_bytes: stat.blocks_available() * unit, total_bytes: stat.blocks() * unit })
}

/// Drops a file's clean pages from the page cache (for measurements of cold reads).
pub fn drop_cache(file: impl AsFd) -> io::Result<()> {
    // SAFETY: advice on a valid descriptor; no memory is involved.
    let result = unsafe { libc::posix_fadvise(file.as_fd().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}
