//! Rings without a record type: what serves a ring reads it by [`RawReader`], what fills a copy writes it by [`RawWriter`].
//!
//! Both also work on plain memory of this process, so that a simulator makes them in the thousands.

use std::path::Path;
use std::sync::atomic::AtomicU32;

use super::error::RingError;
use super::liveness::{Producer, Watch};
use super::view::{Front, View};
use super::writer::{Place, Writer};
use crate::sync::slots::{self, SlotRead};
use crate::sys::shm::PathNow;
use crate::wire::ring::{DESCRIPTOR_BYTES, Descriptor, Geometry, Header};

/// What became of a read of one record; the same as the replication machines' outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RawRead {
    /// The record's bytes were appended.
    Record,
    /// Not published yet.
    NotYet,
    /// Overwritten, or being overwritten: the oldest that may still be there.
    Lapped {
        /// Its sequence.
        oldest: u64,
    },
    /// A hole of a sparse ring: the next that may be there.
    Absent {
        /// Its sequence.
        next: u64,
    },
}

/// Reads a ring's bytes. Slots and arena are mapped read-only and no reader is registered; the header's page is writable
/// only for one that sleeps.
#[derive(Debug)]
pub struct RawReader {
    view: View,
    watch: Watch,
}

impl RawReader {
    /// Opens the ring at `path`; with `sleeps` its header's page is mapped writable as well (see [`RawReader::announce`]).
    ///
    /// # Errors
    /// No such file, or its header is no ring's that is spoken here.
    pub fn open(path: &Path, sleeps: bool) -> Result<RawReader, RingError> {
        let front = if sleeps { Front::Header } else { Front::ReadOnly };
        Ok(RawReader::of(View::open(path, front, true)?))
    }

    pub(super) fn of(view: View) -> RawReader {
        RawReader { watch: Watch::new(&view), view }
    }

    /// The ring's layout.
    pub fn geometry(&self) -> &Geometry {
        &self.view.geometry
    }

    /// Which life of the ring this is; 0 where its producer gives none.
    pub fn incarnation(&self) -> u64 {
        self.view.incarnation
    }

    /// The last published sequence; 0 while there is none.
    #[inline]
    pub fn head(&self) -> u64 {
        self.view.head()
    }

    /// The oldest sequence that may still be read.
    pub fn oldest(&self) -> u64 {
        self.view.oldest(0)
    }

    /// The producer's process number; 0 where it gives none.
    pub fn producer_pid(&self) -> u32 {
        self.view.life().0
    }

    /// Device and inode of the file; `None` in memory without one.
    pub fn inode(&self) -> Option<(u64, u64)> {
        self.view.file.as_ref().map(|file| file.inode())
    }

    /// Looks after the producer (two system calls, at most once per 100 ms, else the last finding): whether it lives, stalls,
    /// died, or another ring is at the path.
    pub fn producer(&mut self, now_ns: i64) -> Producer {
        self.watch.look(&self.view, now_ns)
    }

    /// Forgets that the producer died: a mirror's file may have been taken over and go on. The next look tells.
    pub fn look_again(&mut self) {
        self.watch = Watch::new(&self.view);
    }

    /// Whether the path leads to another ring by now, or nowhere (one system call).
    pub fn path_now(&self) -> Option<PathNow> {
        self.view.file.as_ref().map(|file| file.path_now())
    }

    /// Announces that this thread will sleep until `cursor` is published: the futex word's value to sleep on, and then
    /// [`RawReader::withdraw`] is owed. `None`: it is published already, or the reader was not opened to sleep.
    pub fn announce(&self, cursor: u64) -> Option<u32> {
        self.view.gate.as_ref()?.announce(&self.view, cursor)
    }

    /// Takes back an announcement, after the sleep.
    pub fn withdraw(&self) {
        if let Some(gate) = &self.view.gate {
            gate.withdraw();
        }
    }

    /// The futex word (shared, not private); `None` where the reader was not opened to sleep.
    pub fn futex(&self) -> Option<&AtomicU32> {
        self.view.gate.as_ref().map(|gate| &*gate.futex)
    }

    /// Whether record `sequence` is in its slot (a look without a copy).
    #[inline]
    pub fn is_there(&self, sequence: u64) -> bool {
        slots::sequence(self.view.slot(sequence)) == sequence && sequence != 0 && sequence != slots::BUSY
    }

    /// Appends record `sequence` to `out`: the slot's payload, then a blob's bytes. Appends nothing unless the outcome is
    /// [`RawRead::Record`].
    #[inline]
    pub fn read(&self, sequence: u64, out: &mut Vec<u8>) -> RawRead {
        if sequence == 0 || sequence >= slots::BUSY - 1 {
            // No record has such a number, but an empty or a busy slot has.
            return RawRead::NotYet;
        }
        let (begin, payload) = (out.len(), self.view.geometry.payload_bytes());
        out.resize(begin + payload, 0);
        let slot = self.view.slot(sequence);
        let read = slots::read_with(slot, sequence, |words| slots::copy_bytes(words, &mut out[begin..]));
        if let SlotRead::Record(()) = read
            && self.append_blob(begin, out)
        {
            return RawRead::Record;
        }
        out.truncate(begin);
        self.missed(sequence, read)
    }

    /// Appends the blob of the payload that stands at `begin`; false if it was overwritten or its descriptor is none.
    #[inline]
    fn append_blob(&self, begin: usize, out: &mut Vec<u8>) -> bool {
        let Some(arena) = &self.view.arena else { return true };
        let Some(descriptor) = Descriptor::of_payload(&out[begin..]) else { return false };
        if descriptor.len == 0 {
            return true;
        }
        let Some(at) = arena.arena.place_of(&descriptor) else { return false };
        let blob = out.len();
        out.resize(blob + descriptor.len as usize, 0);
        slots::copy_bytes(&arena.data[at / 8..], &mut out[blob..]);
        !arena.lapped(descriptor.offset)
    }

    #[cold]
    fn missed(&self, sequence: u64, read: SlotRead<()>) -> RawRead {
        let lapped = |seen| RawRead::Lapped { oldest: self.view.oldest(seen).max(sequence.saturating_add(1)) };
        match read {
            // Its blob is gone.
            SlotRead::Record(()) => lapped(0),
            SlotRead::Newer(seen) => lapped(seen),
            SlotRead::Busy if self.view.is_overwritten(sequence) => lapped(0),
            SlotRead::Busy => RawRead::NotYet,
            SlotRead::Older if self.view.geometry.is_sparse() => {
                self.view.after_hole(sequence).map_or(RawRead::NotYet, |next| RawRead::Absent { next })
            }
            SlotRead::Older => RawRead::NotYet,
        }
    }
}

/// How a mirror's ring is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawSettings {
    /// Permission bits of the file, before the umask.
    pub mode: u32,
    /// Whether the file stays when the writer ends, so that the next one resumes.
    pub keep: bool,
    /// Whether the memory must be huge pages.
    pub huge_pages: bool,
    /// The NUMA node that the memory must come from.
    pub numa_node: Option<u32>,
    /// Whether the writer beats (see [`RawWriter::beat`]).
    pub heartbeat: bool,
}

impl Default for RawSettings {
    fn default() -> Self {
        RawSettings { mode: 0o660, keep: true, huge_pages: false, numa_node: None, heartbeat: false }
    }
}

impl RawSettings {
    fn place<'a>(&self, path: &'a Path) -> Place<'a> {
        let RawSettings { mode, keep, huge_pages, numa_node, .. } = *self;
        Place { path, mode, keep, huge_pages, numa_node }
    }
}

/// Where a mirror's ring goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumePoint {
    /// The sequence after the last published one.
    pub next: u64,
    /// The life of the source that it holds; 0 where that gave none.
    pub incarnation: u64,
    /// Its layout.
    pub geometry: Geometry,
}

/// Writes a copy of a ring: raw bytes under the source's sequences.
#[derive(Debug)]
pub struct RawWriter {
    writer: Writer,
    /// Whether something was written, or passed over, that is not published.
    unpublished: bool,
}

/// A blob that is longer than the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong {
    /// The blob's bytes.
    pub bytes: u64,
    /// The arena's.
    pub arena: u64,
}

impl RawWriter {
    /// Makes a fresh ring at `path` for a copy of a source with that layout (see [`Geometry::mirrored`]), whose first record
    /// will be `first`, of the source's life `incarnation`. Every page is there before it returns.
    ///
    /// # Errors
    /// Another writer holds the file, or the host cannot give the memory.
    pub fn create(
        path: &Path,
        source: &Geometry,
        first: u64,
        incarnation: u64,
        settings: &RawSettings,
    ) -> Result<RawWriter, RingError> {
        let header = Writer::header(source.mirrored(), incarnation, settings.heartbeat);
        let writer = Writer::create(&settings.place(path), &header, first)?;
        Ok(RawWriter { writer, unpublished: first > 1 })
    }

    /// Takes over the ring at `path` if its writer is gone and it is a copy of a source with that layout; `None` where it is
    /// not there or is something else. The caller compares incarnations ([`RawWriter::resume_point`]).
    ///
    /// # Errors
    /// Another writer holds the file, or the host cannot give the memory.
    pub fn adopt(path: &Path, source: &Geometry, settings: &RawSettings) -> Result<Option<RawWriter>, RingError> {
        let adopted = Writer::adopt(&settings.place(path), &source.mirrored())?;
        Ok(adopted.map(|mut writer| {
            writer.set_life(settings.heartbeat);
            RawWriter { writer, unpublished: false }
        }))
    }

    /// A ring in this process's memory alone, with exactly that layout (a source's or a mirror's).
    ///
    /// # Errors
    /// The layout does not hold together.
    pub fn anonymous(geometry: &Geometry, first: u64, incarnation: u64) -> Result<RawWriter, RingError> {
        let header = Header { geometry: *geometry, incarnation, ..Header::default() };
        Ok(RawWriter { writer: Writer::anonymous(&header, first)?, unpublished: first > 1 })
    }

    /// What a mirror that begins at `path` has already; `None` where there is no ring. Takes no lock, changes nothing.
    pub fn resume_point(path: &Path) -> Option<ResumePoint> {
        let view = View::open(path, Front::ReadOnly, false).ok()?;
        Some(ResumePoint { next: view.head() + 1, incarnation: view.incarnation, geometry: view.geometry })
    }

    /// The ring's layout.
    pub fn geometry(&self) -> &Geometry {
        &self.writer.geometry
    }

    /// The source's life that it holds.
    pub fn incarnation(&self) -> u64 {
        self.writer.incarnation
    }

    /// Names the source's life that it holds from now on.
    pub fn set_incarnation(&mut self, incarnation: u64) {
        self.writer.set_incarnation(incarnation);
    }

    /// The sequence that will be written next.
    #[inline]
    pub fn next(&self) -> u64 {
        self.writer.next
    }

    /// Writes the next record: `payload` is the slot's, `blob` goes into this ring's own arena and the descriptor at the
    /// payload's end is replaced by one that points there (length and flags kept).
    ///
    /// # Errors
    /// The blob is longer than the arena; nothing was written.
    ///
    /// # Panics
    /// If `payload` has not the length of a slot's.
    #[inline]
    pub fn write(&mut self, payload: &[u8], blob: &[u8]) -> Result<(), TooLong> {
        assert_eq!(payload.len(), self.writer.geometry.payload_bytes(), "a payload fills its slot");
        let descriptor = self.store_blob(payload, blob)?;
        let sequence = self.writer.next;
        slots::write_with(self.writer.slot(sequence), sequence, |words| match &descriptor {
            None => slots::copy_in(words, payload),
            Some(descriptor) => {
                let meta = payload.len() - DESCRIPTOR_BYTES;
                slots::copy_in(words, &payload[..meta]);
                slots::copy_in(&words[meta / 8..], &descriptor.encode());
            }
        });
        self.writer.next = sequence + 1;
        self.unpublished = true;
        Ok(())
    }

    /// Puts the blob into the arena; its descriptor, where the ring has an arena.
    fn store_blob(&mut self, payload: &[u8], blob: &[u8]) -> Result<Option<Descriptor>, TooLong> {
        let Some(arena) = &mut self.writer.arena else { return Ok(None) };
        let too_long = TooLong { bytes: blob.len() as u64, arena: arena.arena.capacity };
        let placed = arena.arena.place(arena.reserved, blob.len()).ok_or(too_long)?;
        arena.write(placed, blob.len(), |words| slots::copy_in(words, blob));
        let flags = Descriptor::of_payload(payload).map_or(0, |source| source.flags);
        Ok(Some(Descriptor { offset: placed.offset, len: blob.len() as u32, flags }))
    }

    /// Makes what was written since the last call visible as the ring's head, and wakes sleepers.
    #[inline]
    pub fn publish(&mut self) {
        if self.unpublished {
            self.unpublished = false;
            self.writer.publish();
        }
    }

    /// Records up to `next − 1` will not come: the ring goes on at `next`. Never goes back.
    pub fn skip_to(&mut self, next: u64) {
        // The largest number is no sequence, but the busy mark.
        let next = next.min(slots::BUSY - 2);
        if next > self.writer.next {
            self.writer.next = next;
            self.unpublished = true;
        }
    }

    /// Tells readers that this process lives, where the ring beats; every publication does as well.
    pub fn beat(&self) {
        self.writer.beat_if_asked();
    }

    /// Reads the same memory (no file is opened).
    pub fn reader(&self) -> RawReader {
        RawReader::of(self.writer.view())
    }
}

#[cfg(feature = "mirror")]
mod machines {
    //! The rings as the replication machines see them.

    use super::*;
    use crate::ring::mirror::{MirrorRing, ReadOutcome, SourceRing, WriteError};

    impl From<RawRead> for ReadOutcome {
        #[inline]
        fn from(read: RawRead) -> ReadOutcome {
            match read {
                RawRead::Record => ReadOutcome::Record,
                RawRead::NotYet => ReadOutcome::NotYet,
                RawRead::Lapped { oldest } => ReadOutcome::Lapped { oldest },
                RawRead::Absent { next } => ReadOutcome::Absent { next },
            }
        }
    }

    impl SourceRing for RawReader {
        fn geometry(&self) -> &Geometry {
            self.geometry()
        }

        fn incarnation(&self) -> u64 {
            self.incarnation()
        }

        #[inline]
        fn head(&self) -> u64 {
            self.head()
        }

        #[inline]
        fn read(&mut self, sequence: u64, out: &mut Vec<u8>) -> ReadOutcome {
            RawReader::read(self, sequence, out).into()
        }
    }

    impl MirrorRing for RawWriter {
        fn next(&self) -> u64 {
            self.next()
        }

        #[inline]
        fn write(&mut self, payload: &[u8], blob: &[u8]) -> Result<(), WriteError> {
            let too_long = |error: TooLong| WriteError::BlobTooLong { bytes: error.bytes, arena: error.arena };
            RawWriter::write(self, payload, blob).map_err(too_long)
        }

        #[inline]
        fn publish(&mut self) {
            self.publish();
        }

        fn skip_to(&mut self, next: u64) {
            self.skip_to(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ring::{Shape, Stride};

    const SHAPE: Shape = Shape {
        capacity: 8,
        record_bytes: 16,
        record_align: 8,
        schema_sig: 0,
        lossless: false,
        readers_max: 0,
        sparse: false,
        stride: Stride::Exact,
        arena_bytes: None,
    };

    fn read(reader: &RawReader, sequence: u64) -> (RawRead, Vec<u8>) {
        let mut out = vec![0xee];
        let read = reader.read(sequence, &mut out);
        assert_eq!(out.remove(0), 0xee);
        (read, out)
    }

    #[test]
    fn records_are_read_until_they_are_lapped() {
        let geometry = Geometry::of(&SHAPE).expect("sound");
        let mut ring = RawWriter::anonymous(&geometry, 1, 9).expect("sound");
        let reader = ring.reader();
        assert_eq!((reader.incarnation(), reader.head(), read(&reader, 1).0), (9, 0, RawRead::NotYet));
        for sequence in 1..=20u8 {
            assert_eq!(ring.next(), u64::from(sequence));
            ring.write(&[sequence; 16], &[]).expect("no blob");
            ring.publish();
        }
        assert_eq!((reader.head(), reader.oldest()), (20, 13));
        assert_eq!(read(&reader, 12), (RawRead::Lapped { oldest: 13 }, vec![]));
        assert_eq!(read(&reader, 13), (RawRead::Record, vec![13; 16]));
        assert_eq!(read(&reader, 20), (RawRead::Record, vec![20; 16]));
        assert_eq!(read(&reader, 21).0, RawRead::NotYet);
    }

    #[test]
    fn a_hole_is_absent_in_a_sparse_ring() {
        let geometry = Geometry::of(&SHAPE).expect("sound").mirrored();
        let mut ring = RawWriter::anonymous(&geometry, 5, 9).expect("sound");
        let reader = ring.reader();
        ring.write(&[5; 16], &[]).expect("no blob");
        ring.publish();
        assert_eq!(read(&reader, 1).0, RawRead::Absent { next: 5 });
        ring.skip_to(9);
        ring.skip_to(7);
        ring.publish();
        assert_eq!(reader.head(), 8);
        assert_eq!(read(&reader, 6).0, RawRead::Absent { next: 9 });
        ring.write(&[9; 16], &[]).expect("no blob");
        ring.publish();
        assert_eq!(read(&reader, 6).0, RawRead::Absent { next: 9 });
        assert_eq!(read(&reader, 9).0, RawRead::Record);
        ring.skip_to(u64::MAX);
        ring.publish();
        assert_eq!(read(&reader, 9).0, RawRead::Record);
        assert_eq!(read(&reader, 10).0, RawRead::Absent { next: u64::MAX - 2 });
    }

    #[test]
    fn blobs_are_copied_with_their_length_and_flags() {
        let shape = Shape { arena_bytes: Some(256), record_bytes: 8, ..SHAPE };
        let geometry = Geometry::of(&shape).expect("sound");
        let mut source = RawWriter::anonymous(&geometry, 1, 0).expect("sound");
        let mut mirror = RawWriter::anonymous(&geometry.mirrored(), 1, 0).expect("sound");
        let (from, to) = (source.reader(), mirror.reader());
        for (sequence, length) in [(1, 100), (2, 0), (3, 65), (4, 256)] {
            let blob: Vec<u8> = (0..length).map(|index| index as u8 ^ sequence).collect();
            let mut payload = vec![sequence; 8];
            payload.extend_from_slice(&Descriptor { offset: 999, len: 0, flags: u32::from(sequence) }.encode());
            source.write(&payload, &blob).expect("short enough");
            source.publish();
            let (outcome, record) = read(&from, u64::from(sequence));
            assert_eq!(outcome, RawRead::Record);
            let (payload, carried) = record.split_at(24);
            assert_eq!(carried, blob);
            let descriptor = Descriptor::of_payload(payload).expect("there");
            assert_eq!((descriptor.len as usize, descriptor.flags), (length as usize, u32::from(sequence)));
            mirror.write(payload, carried).expect("short enough");
            mirror.publish();
            assert_eq!(read(&to, u64::from(sequence)).1[24..], blob);
        }
        assert_eq!(read(&from, 1).0, RawRead::Lapped { oldest: 2 });
        let error = source.write(&[0; 24], &[0; 257]).expect_err("too long");
        assert_eq!((error, source.next()), (TooLong { bytes: 257, arena: 256 }, 5));
    }
}
