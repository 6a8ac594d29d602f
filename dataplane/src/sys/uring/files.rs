//! Files on the core's ring: open, create, gathered writes, reads, syncs, names. Every request is forced to the kernel's io
//! workers: a copy into or out of the page cache, or a journal that waits for its disk, never runs on the core.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{Probe, opcode};

use super::CoreRing;
use super::held::Kept;

/// `IOV_MAX` (linux/uio.h): most pieces of one gathered write.
const PIECES_MAX: usize = 1024;
/// Most bytes of one request: the kernel cuts at 2 GiB less a page (`MAX_RW_COUNT`).
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Bytes that stay where and as they are until their last owner drops them, so that the kernel may read them meanwhile.
pub trait Frozen: Send + Sync + 'static {
    /// The bytes: each time the same ones, at the same place.
    fn bytes(&self) -> &[u8];
}

impl Frozen for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A gathered write in flight: the kernel's list of pieces, and who owns them.
pub(super) struct Gather {
    vectors: Vec<libc::iovec>,
    _pieces: Vec<Arc<dyn Frozen>>,
}

fn on_a_worker(entry: Entry) -> Entry {
    entry.flags(Flags::ASYNC)
}

impl CoreRing {
    /// Opens `name` in `directory` with `flags` (`O_CREAT`: mode 0644); the descriptor comes with the completion
    /// ([`CoreRing::take_descriptor`]).
    ///
    /// # Errors
    /// As the submission.
    pub fn open_at(&mut self, directory: BorrowedFd<'_>, name: CString, flags: i32, user_data: u64) -> io::Result<()> {
        let directory = Fd(directory.as_raw_fd());
        self.push_kept(Kept::Open(name), user_data, |kept| {
            let Kept::Open(name) = kept else { unreachable!("kept as a name above") };
            let open = opcode::OpenAt::new(directory, name.as_ptr()).flags(flags | libc::O_CLOEXEC).mode(0o644);
            on_a_worker(open.build())
        })
        .map_err(|(error, _)| error)
    }

    /// Creates `name` in `directory` for reading and writing, emptying one that is there.
    ///
    /// # Errors
    /// As the submission.
    pub fn create_at(&mut self, directory: BorrowedFd<'_>, name: CString, user_data: u64) -> io::Result<()> {
        self.open_at(directory, name, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, user_data)
    }

    /// Renames `from` to `to` in `directory`, replacing one that is there.
    ///
    /// # Errors
    /// As the submission.
    pub fn rename_at(
        &mut self,
        directory: BorrowedFd<'_>,
        from: CString,
        to: CString,
        user_data: u64,
    ) -> io::Result<()> {
        let directory = Fd(directory.as_raw_fd());
        self.push_kept(Kept::Names(from, to), user_data, |kept| {
            let Kept::Names(from, to) = kept else { unreachable!("kept as names above") };
            on_a_worker(opcode::RenameAt::new(directory, from.as_ptr(), directory, to.as_ptr()).build())
        })
        .map_err(|(error, _)| error)
    }

    /// Removes `name` from `directory`.
    ///
    /// # Errors
    /// As the submission.
    pub fn unlink_at(&mut self, directory: BorrowedFd<'_>, name: CString, user_data: u64) -> io::Result<()> {
        let directory = Fd(directory.as_raw_fd());
        self.push_kept(Kept::Name(name), user_data, |kept| {
            let Kept::Name(name) = kept else { unreachable!("kept as a name above") };
            on_a_worker(opcode::UnlinkAt::new(directory, name.as_ptr()).build())
        })
        .map_err(|(error, _)| error)
    }

    /// Writes `pieces` one behind the other at `offset`, without their first `skip` bytes, as many as one request takes; the
    /// result is how many were written, which may be fewer. The pieces are held until the completion. Asserts that there is
    /// something to write.
    ///
    /// # Errors
    /// As the submission.
    pub fn write_gathered(
        &mut self,
        fd: BorrowedFd<'_>,
        pieces: &[Arc<dyn Frozen>],
        mut skip: u64,
        offset: u64,
        user_data: u64,
    ) -> io::Result<()> {
        let (mut vectors, mut held, mut room) = (Vec::new(), Vec::new(), REQUEST_BYTES_MAX);
        for piece in pieces {
            let bytes = piece.bytes();
            if skip >= bytes.len() as u64 {
                skip -= bytes.len() as u64;
                continue;
            }
            let rest = &bytes[skip as usize..];
            let rest = &rest[..rest.len().min(room)];
            if vectors.len() == PIECES_MAX || rest.is_empty() {
                break;
            }
            (skip, room) = (0, room - rest.len());
            vectors.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() });
            held.push(piece.clone());
        }
        assert!(!vectors.is_empty(), "a write has bytes");
        let fd = Fd(fd.as_raw_fd());
        self.push_kept(Kept::Gather(Gather { vectors, _pieces: held }), user_data, |kept| {
            let Kept::Gather(gather) = kept else { unreachable!("kept as a write above") };
            let count = gather.vectors.len() as u32;
            on_a_worker(opcode::Writev::new(fd, gather.vectors.as_ptr(), count).offset(offset).build())
        })
        .map_err(|(error, _)| error)
    }

    /// Reads at most `max` bytes at `offset` behind the end of `bytes`, in its spare capacity. The ring owns `bytes` until the
    /// completion, whose result is their number (0: the file's end); [`CoreRing::take_bytes`] gives them back.
    ///
    /// # Errors
    /// As the submission; `bytes` come back with it.
    pub fn read_at(
        &mut self,
        fd: BorrowedFd<'_>,
        bytes: Vec<u8>,
        max: usize,
        offset: u64,
        user_data: u64,
    ) -> Result<(), (io::Error, Vec<u8>)> {
        let max = max.min(bytes.capacity() - bytes.len()).min(REQUEST_BYTES_MAX);
        assert!(max > 0, "a read needs spare capacity");
        let fd = Fd(fd.as_raw_fd());
        self.push_kept(Kept::Receive(bytes), user_data, |kept| {
            let Kept::Receive(bytes) = kept else { unreachable!("kept as a read above") };
            let room = &mut bytes.spare_capacity_mut()[..max];
            on_a_worker(opcode::Read::new(fd, room.as_mut_ptr().cast(), max as u32).offset(offset).build())
        })
        .map_err(|(error, kept)| match kept {
            Some(Kept::Receive(bytes)) => (error, bytes),
            _ => (error, Vec::new()),
        })
    }

    /// Makes a file's data and what is needed to read it (its length) durable, or a directory's names.
    ///
    /// # Errors
    /// As the submission.
    pub fn sync(&mut self, fd: BorrowedFd<'_>, data_only: bool, user_data: u64) -> io::Result<()> {
        let flags = if data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
        self.push(on_a_worker(opcode::Fsync::new(Fd(fd.as_raw_fd())).flags(flags).build()).user_data(user_data))
    }

    /// Whether this kernel cuts files by io_uring (6.9).
    pub fn knows_truncate(&mut self) -> bool {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(opcode::Ftruncate::CODE)
    }

    /// Cuts a file to `bytes`; see [`CoreRing::knows_truncate`].
    ///
    /// # Errors
    /// As the submission.
    pub fn truncate(&mut self, fd: BorrowedFd<'_>, bytes: u64, user_data: u64) -> io::Result<()> {
        self.push(on_a_worker(opcode::Ftruncate::new(Fd(fd.as_raw_fd()), bytes).build()).user_data(user_data))
    }

    /// Closes a descriptor: the last one of a removed file frees its blocks, which takes ms for a large one.
    ///
    /// # Errors
    /// As the submission; the descriptor is then closed by the caller's thread.
    pub fn close(&mut self, descriptor: OwnedFd, user_data: u64) -> io::Result<()> {
        let raw = descriptor.as_raw_fd();
        self.push(on_a_worker(opcode::Close::new(Fd(raw)).build()).user_data(user_data))?;
        // The request owns it from here on.
        let _ = descriptor.into_raw_fd();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::sys::uring::Completion;

    fn wait(ring: &mut CoreRing, user_data: u64) -> Completion {
        for _ in 0..100 {
            if let Some(completion) = ring.next_completion() {
                assert_eq!(completion.user_data, user_data);
                return completion;
            }
            ring.submit_and_wait(Some(Duration::from_millis(100))).expect("waits");
        }
        panic!("no completion of {user_data}");
    }

    fn name(text: &str) -> CString {
        CString::new(text).expect("a name")
    }

    #[test]
    fn a_file_is_made_written_in_pieces_renamed_read_cut_and_removed() {
        let mut ring = match CoreRing::new(16) {
            Ok(ring) => ring,
            Err(error) => return eprintln!("SKIPPED io_uring: {error}"),
        };
        ring.enable(&[], 0).expect("enables");
        let path = tempfile::tempdir().expect("a directory");
        let directory = std::fs::File::open(path.path()).expect("opens");
        ring.create_at(directory.as_fd(), name("a.tmp"), 1).expect("queues");
        assert!(wait(&mut ring, 1).outcome().is_ok());
        let file = ring.take_descriptor().expect("a file");
        let pieces: Vec<Arc<dyn Frozen>> =
            (0..2_000_u32).map(|at| Arc::new(vec![at as u8; 3]) as Arc<dyn Frozen>).collect();
        let (mut done, all) = (2_u64, 6_000);
        while done < all {
            ring.write_gathered(file.as_fd(), &pieces, done, done, 2).expect("queues");
            done += u64::from(wait(&mut ring, 2).outcome().expect("written"));
        }
        ring.sync(file.as_fd(), true, 3).expect("queues");
        assert_eq!(wait(&mut ring, 3).result, 0);
        ring.rename_at(directory.as_fd(), name("a.tmp"), name("a"), 4).expect("queues");
        assert_eq!(wait(&mut ring, 4).result, 0);
        ring.sync(directory.as_fd(), false, 5).expect("queues");
        assert_eq!(wait(&mut ring, 5).result, 0);
        ring.read_at(file.as_fd(), Vec::with_capacity(8_000), 8_000, 1, 6).expect("queues");
        assert_eq!(wait(&mut ring, 6).outcome(), Ok(5_999));
        let expected: Vec<u8> = (0..6_000_u32).map(|at| if at < 2 { 0 } else { (at / 3) as u8 }).collect();
        assert_eq!(ring.take_bytes().expect("the buffer"), expected[1..]);
        if ring.knows_truncate() {
            ring.truncate(file.as_fd(), 10, 7).expect("queues");
            assert_eq!(wait(&mut ring, 7).result, 0);
            assert_eq!(std::fs::metadata(path.path().join("a")).expect("there").len(), 10);
        }
        ring.unlink_at(directory.as_fd(), name("a"), 8).expect("queues");
        assert_eq!(wait(&mut ring, 8).result, 0);
        ring.unlink_at(directory.as_fd(), name("a"), 9).expect("queues");
        assert_eq!(wait(&mut ring, 9).outcome(), Err(libc::ENOENT));
        ring.close(file, 10).expect("queues");
        assert_eq!(wait(&mut ring, 10).result, 0);
    }
}
