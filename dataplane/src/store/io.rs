//! Carries a writer's operations to the disk and their results back: writes and syncs through an io_uring (or
//! plain calls), file work through the helper thread.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::store::files::{Files, FilesReport, FilesRequest};
use crate::store::{BlockBuffer, Fault, KnownRuns, Op, StoreWriter};
use crate::sys::file;
use crate::sys::uring::CoreRing;

const KIND_SHIFT: u32 = 40;
const KIND_WRITE: u64 = 1;
const KIND_SYNC: u64 = 2;
const VALUE_MASK: u64 = (1 << KIND_SHIFT) - 1;

/// What carries out writes and syncs.
pub enum Disk<'a> {
    /// A ring on which the pool's blocks are registered in order.
    Ring(
        /// The ring.
        &'a mut CoreRing,
    ),
    /// Plain calls that block.
    Plain,
}

/// One store's way to its files.
pub struct StoreIo {
    files: Files,
    open: Vec<(u64, Arc<File>)>,
    outstanding: usize,
}

impl StoreIo {
    /// The way through this thread; a ring that is used with it must be this store's alone.
    pub fn new(files: Files) -> StoreIo {
        StoreIo { files, open: Vec::new(), outstanding: 0 }
    }

    /// Requests that are with the kernel.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The runs and raw frames that the store held when it was opened.
    pub fn known_runs(&self) -> &KnownRuns {
        self.files.known_runs()
    }

    /// The helper thread.
    pub fn files(&mut self) -> &mut Files {
        &mut self.files
    }

    /// Takes what the helper thread says, then carries out what the writer wants. Never waits with [`Disk::Ring`].
    /// `told` sees each report, for the log. Returns the operations carried out. Queued requests reach the kernel
    /// with the ring's next submit.
    pub fn step<B: BlockBuffer>(
        &mut self,
        writer: &mut StoreWriter<B>,
        disk: &mut Disk<'_>,
        now: i64,
        told: &mut impl FnMut(&FilesReport),
    ) -> io::Result<usize> {
        while let Some(report) = self.files.try_report() {
            self.take(writer, report, now, told);
        }
        let mut count = 0;
        while let Some(op) = writer.next_op() {
            self.carry_out(writer, disk, op, now)?;
            count += 1;
        }
        Ok(count)
    }

    /// Takes one report of the helper thread.
    pub fn take<B: BlockBuffer>(
        &mut self,
        writer: &mut StoreWriter<B>,
        report: FilesReport,
        now: i64,
        told: &mut impl FnMut(&FilesReport),
    ) {
        told(&report);
        match report {
            FilesReport::Ready { grant, file, .. } => {
                self.open.push((grant.info.number, file));
                writer.segment_ready(grant, now);
            }
            FilesReport::Failed { fault, .. } => writer.segment_failed(fault),
            FilesReport::Sealed { segment, result, .. } => writer.on_sealed(segment, result, now),
            FilesReport::Removed(_) | FilesReport::Recovered { .. } | FilesReport::Trouble(_) => {}
        }
    }

    fn carry_out<B: BlockBuffer>(
        &mut self,
        writer: &mut StoreWriter<B>,
        disk: &mut Disk<'_>,
        op: Op,
        now: i64,
    ) -> io::Result<()> {
        match op {
            Op::NextSegment => self.files.ask(FilesRequest::Next(writer.stamp_source())),
            Op::Seal { segment, footer, end } => {
                self.open.retain(|(number, _)| *number != segment);
                self.files.ask(FilesRequest::Seal { segment, footer, end });
            }
            Op::Discard { segment } => {
                self.open.retain(|(number, _)| *number != segment);
                self.files.ask(FilesRequest::Discard(segment));
            }
            Op::Write { segment, slot, buffer_offset, bytes, file_offset } => {
                let user_data = KIND_WRITE << KIND_SHIFT | slot as u64;
                let file = self.file(segment);
                match disk {
                    Disk::Ring(ring) => {
                        ring.write_fixed(file.as_fd(), slot, buffer_offset, bytes, file_offset, user_data)?;
                        self.outstanding += 1;
                    }
                    Disk::Plain => {
                        let part = &writer.block(slot)[buffer_offset..buffer_offset + bytes];
                        let result = file::write_at(file, part, file_offset).map_err(|error| fault(&error));
                        writer.on_write(slot, result, now);
                    }
                }
            }
            Op::Sync { segment } => {
                let user_data = KIND_SYNC << KIND_SHIFT | segment & VALUE_MASK;
                let file = self.file(segment);
                match disk {
                    Disk::Ring(ring) => {
                        ring.sync_data(file.as_fd(), user_data)?;
                        self.outstanding += 1;
                    }
                    Disk::Plain => {
                        let result = file::sync_data(file).map_err(|error| fault(&error));
                        writer.on_sync(segment, result, now);
                    }
                }
            }
        }
        Ok(())
    }

    fn file(&self, segment: u64) -> &File {
        let open = self.open.iter().find(|(number, _)| *number == segment);
        &open.expect("the writer names granted segments only").1
    }

    /// Takes a completion.
    pub fn complete<B: BlockBuffer>(&mut self, writer: &mut StoreWriter<B>, user_data: u64, result: i32, now: i64) {
        self.outstanding -= 1;
        let value = user_data & VALUE_MASK;
        let outcome = if result < 0 { Err(Fault::from_errno(-result)) } else { Ok(result as usize) };
        match user_data >> KIND_SHIFT {
            KIND_WRITE => writer.on_write(value as usize, outcome, now),
            KIND_SYNC => writer.on_sync(value, outcome.map(drop), now),
            kind => panic!("a completion of kind {kind}: not one of the store's"),
        }
    }
}

fn fault(error: &io::Error) -> Fault {
    Fault::from_errno(error.raw_os_error().unwrap_or(libc::EIO))
}
