//! One of the keeper's operations as requests to the kernel, one after the other.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::Segments;
use super::directory::{UNFINISHED, segment_name};
use crate::ledger::keeper::{Fault, Op};
use crate::sys::uring::{CoreRing, Frozen};

/// Times that an interrupted request is made again before that counts as a failure: nothing interrupts an io worker twice in a row,
/// so that more is a kernel that will not do it.
const AGAIN_MAX: u32 = 16;

/// What comes next of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Create the file under its unfinished name.
    Create,
    /// Write the rest of the pieces.
    Write,
    /// Make a created file durable.
    SyncFile,
    /// Give it its name.
    Rename,
    /// Make the name durable.
    SyncNames,
    /// Cut what lies behind the table.
    Cut,
    /// Make data durable.
    Sync,
    /// Remove the name.
    Unlink,
    /// All is done.
    Done,
}

/// An operation under way.
pub(super) struct Operation {
    op: Op,
    step: Step,
    segment: u64,
    file: Option<Arc<File>>,
    pieces: Vec<Arc<dyn Frozen>>,
    /// Where the pieces go, how long they are, how much of them is written.
    offset: u64,
    bytes: u64,
    written: u64,
    /// Where the file has to end.
    cut_to: Option<u64>,
    again: u32,
    failed: Option<Fault>,
}

impl Operation {
    /// Takes over an operation.
    pub(super) fn new(mut op: Op, segments: &mut Segments) -> Operation {
        let (segment, step, offset, pieces): (u64, Step, u64, Vec<Arc<dyn Frozen>>) = match &mut op {
            Op::Create { segment, header } => {
                (*segment, Step::Create, 0, vec![Arc::new(std::mem::take(header)) as Arc<dyn Frozen>])
            }
            Op::Write { segment, offset, head, frames } => {
                let head = Arc::new(std::mem::take(head)) as Arc<dyn Frozen>;
                let frames = frames.iter().map(|frame| frame.clone() as Arc<dyn Frozen>);
                (*segment, Step::Write, *offset, std::iter::once(head).chain(frames).collect())
            }
            Op::Sync { segment } => (*segment, Step::Sync, 0, Vec::new()),
            Op::Seal { segment, end, table } => {
                (*segment, Step::Write, *end, vec![Arc::new(std::mem::take(table)) as Arc<dyn Frozen>])
            }
            Op::Delete { segment } => (*segment, Step::Unlink, 0, Vec::new()),
        };
        let bytes = pieces.iter().map(|piece| piece.bytes().len() as u64).sum();
        let mut operation = Operation {
            op,
            step,
            segment,
            file: None,
            pieces,
            offset,
            bytes,
            written: 0,
            cut_to: None,
            again: 0,
            failed: None,
        };
        if matches!(operation.step, Step::Write | Step::Sync) {
            match segments.open.get_mut(&segment) {
                Some(open) => {
                    let end = offset + bytes;
                    let seals = matches!(operation.op, Op::Seal { .. });
                    operation.cut_to = (seals && open.longest > end).then_some(end);
                    open.longest = open.longest.max(end);
                    operation.file = Some(open.file.clone());
                }
                None => operation.failed = Some(Fault::Io(EBADF)),
            }
        }
        operation
    }

    /// What it is, for a log line.
    pub(super) fn describe(&self) -> String {
        let what = match &self.op {
            Op::Create { .. } => "create",
            Op::Write { .. } => "write",
            Op::Sync { .. } => "sync",
            Op::Seal { .. } => "seal",
            Op::Delete { .. } => "remove",
        };
        format!("{what} {} at {} ({:?})", segment_name(self.segment), self.offset + self.written, self.step)
    }

    /// Makes the next request, under `tag`; the result once there is none.
    pub(super) fn step(
        &mut self,
        ring: &mut CoreRing,
        directory: &File,
        segments: &mut Segments,
        tag: u64,
    ) -> Option<Result<(), Fault>> {
        if self.step == Step::Cut && !ring.knows_truncate() {
            // Before Linux 6.9 this one call blocks. It comes only after a write that a full disk cut short.
            let file = self.file.as_ref().expect("an open segment");
            match file.set_len(self.cut_to.unwrap_or(self.offset + self.bytes)) {
                Ok(()) => self.step = Step::Sync,
                Err(error) => self.failed = Some(fault(error.raw_os_error().unwrap_or(0))),
            }
        }
        if let Some(fault) = self.failed {
            return Some(Err(fault));
        }
        if self.step == Step::Done {
            self.settle(segments);
            return Some(Ok(()));
        }
        let asked = self.ask(ring, directory, tag);
        asked.err().map(|error| Err(fault(error.raw_os_error().unwrap_or(0))))
    }

    fn ask(&self, ring: &mut CoreRing, directory: &File, tag: u64) -> io::Result<()> {
        let name = segment_name(self.segment);
        let unfinished = text(format!("{name}{UNFINISHED}"));
        let file = || self.file.as_ref().expect("an open segment").as_fd();
        match self.step {
            Step::Create => ring.create_at(directory.as_fd(), unfinished, tag),
            Step::Write => ring.write_gathered(file(), &self.pieces, self.written, self.offset + self.written, tag),
            Step::SyncFile => ring.sync(file(), false, tag),
            Step::Rename => ring.rename_at(directory.as_fd(), unfinished, text(name), tag),
            Step::SyncNames => ring.sync(directory.as_fd(), false, tag),
            Step::Cut => ring.truncate(file(), self.cut_to.unwrap_or(self.offset + self.bytes), tag),
            Step::Sync => ring.sync(file(), true, tag),
            Step::Unlink => ring.unlink_at(directory.as_fd(), text(name), tag),
            Step::Done => unreachable!("nothing is asked for after the end"),
        }
    }

    /// The kernel's answer to the last request.
    pub(super) fn completed(&mut self, ring: &mut CoreRing, result: i32) {
        let errno = result.saturating_neg();
        if is_interrupted(errno) && self.again < AGAIN_MAX {
            self.again += 1;
            return;
        }
        // Gone already is as good as removed.
        let gone = self.step == Step::Unlink && is_missing(errno);
        if result < 0 && !gone {
            self.failed = Some(fault(errno));
            return;
        }
        let seals = matches!(self.op, Op::Seal { .. });
        self.step = match self.step {
            Step::Create => match ring.take_descriptor() {
                Some(descriptor) => {
                    self.file = Some(Arc::new(File::from(descriptor)));
                    Step::Write
                }
                None => {
                    self.failed = Some(Fault::Io(EBADF));
                    return;
                }
            },
            Step::Write => {
                self.written += result as u64;
                match () {
                    // A disk that takes nothing and gives no reason.
                    () if result == 0 => {
                        self.failed = Some(Fault::Io(EIO));
                        return;
                    }
                    () if self.written < self.bytes => Step::Write,
                    () if matches!(self.op, Op::Create { .. }) => Step::SyncFile,
                    () if seals && self.cut_to.is_some() => Step::Cut,
                    () if seals => Step::Sync,
                    () => Step::Done,
                }
            }
            Step::SyncFile => Step::Rename,
            Step::Rename => Step::SyncNames,
            Step::Cut => Step::Sync,
            Step::SyncNames | Step::Sync | Step::Unlink | Step::Done => Step::Done,
        };
    }

    /// What the operation changes of the open files.
    fn settle(&mut self, segments: &mut Segments) {
        match &self.op {
            Op::Create { segment, .. } => {
                let file = self.file.take().expect("created");
                segments.open.insert(*segment, super::SegmentFile { file, longest: self.bytes });
            }
            Op::Delete { segment } => segments.closing.extend(segments.open.remove(segment).map(|open| open.file)),
            Op::Write { .. } | Op::Sync { .. } | Op::Seal { .. } => {}
        }
    }
}

/// errno of an error of a device, and of a file that is not open (asm-generic/errno-base.h).
const EIO: i32 = 5;
const EBADF: i32 = 9;

fn fault(errno: i32) -> Fault {
    match io::Error::from_raw_os_error(errno).kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Fault::NoSpace,
        _ => Fault::Io(errno),
    }
}

/// Whether a request is to be made again.
pub(super) fn is_interrupted(errno: i32) -> bool {
    errno > 0
        && matches!(io::Error::from_raw_os_error(errno).kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn is_missing(errno: i32) -> bool {
    errno > 0 && io::Error::from_raw_os_error(errno).kind() == io::ErrorKind::NotFound
}

fn text(name: String) -> CString {
    CString::new(name).expect("a segment's name has no zero byte")
}
