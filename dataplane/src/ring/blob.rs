//! Rings of blobs: records of a fixed part (`M`) and bytes of any length in the ring's arena.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::consumer::{ConsumerSettings, Expected, Miss, Reader, Received, StartAt};
use super::error::RingError;
use super::flow::Blocked;
use super::liveness::Producer;
use super::producer::{Core, InlineSender, NoSender, Record, RingSettings};
use super::raw::RawReader;
use super::wait::{Wait, Waiting};
use crate::sync::gate::Barrier;
use crate::sync::slots::{self, SlotRead};
use crate::sys::shm::ReadWord;
use crate::wire::ring::{DESCRIPTOR_BYTES, Descriptor, Geometry, Placed};

/// Words of a descriptor, the last of a slot.
const DESCRIPTOR_WORDS: usize = DESCRIPTOR_BYTES / 8;

/// Writes a blob into the arena in parts.
#[derive(Debug)]
pub struct BlobWriter<'a> {
    words: &'a [AtomicU64],
    bytes: usize,
    /// Bytes written so far.
    at: usize,
    /// The word that is not full yet.
    word: [u8; 8],
}

impl BlobWriter<'_> {
    /// Bytes that are still free.
    pub fn free(&self) -> usize {
        self.bytes - self.at
    }

    /// Appends bytes, as many as are free; how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.free());
        let mut left = &bytes[..count];
        let begun = self.at % 8;
        if begun > 0 {
            let fits = left.len().min(8 - begun);
            self.word[begun..begun + fits].copy_from_slice(&left[..fits]);
            self.words[self.at / 8].store(u64::from_ne_bytes(self.word), Ordering::Relaxed);
            self.at += fits;
            left = &left[fits..];
        }
        // The last word's bytes beyond the end are 0 until more is written there.
        slots::copy_in(&self.words[self.at / 8..], left);
        let rest = left.len() % 8;
        if rest > 0 {
            self.word = [0; 8];
            self.word[..rest].copy_from_slice(&left[left.len() - rest..]);
        }
        self.at += left.len();
        count
    }

    /// What was not written is zero: nothing of an older blob shows.
    fn finish(mut self) {
        const ZEROS: [u8; 256] = [0; 256];
        while self.free() > 0 {
            self.write(&ZEROS);
        }
    }
}

/// Writes the records of a ring of blobs: the only producer, as long as it lives.
#[derive(Debug)]
pub struct BlobProducer<M, S = NoSender> {
    core: Core,
    /// Offset of the arena below which a lossless producer's slowest reader needs nothing, plus the arena's size.
    arena_limit: u64,
    sender: S,
    meta: PhantomData<fn(M)>,
}

impl<M: Record> BlobProducer<M> {
    /// Makes a ring at `path` with an arena of `arena_bytes` (a power of two).
    ///
    /// # Errors
    /// As [`super::RingProducer::create`].
    pub fn create(path: &Path, settings: &RingSettings, arena_bytes: u64) -> Result<BlobProducer<M>, RingError> {
        const { assert!(align_of::<M>() <= 8, "a slot's payload is aligned to 8") };
        let core = settings.create(path, &settings.shape::<M>(Some(arena_bytes))?)?;
        let arena_limit = if core.flow.is_some() { arena_bytes } else { u64::MAX };
        Ok(BlobProducer { core, arena_limit, sender: NoSender, meta: PhantomData })
    }

    /// The same producer, whose thread calls `sender` after each publication. A push then takes as long as the call.
    pub fn with_sender<S: InlineSender>(self, sender: S) -> BlobProducer<M, S> {
        BlobProducer { core: self.core, arena_limit: self.arena_limit, sender, meta: PhantomData }
    }
}

impl<M: Record, S: InlineSender> BlobProducer<M, S> {
    /// Publishes a record: its fixed part, flags of the application's, its bytes; its sequence. A lossless producer waits for
    /// its slowest reader first, if need be.
    ///
    /// # Errors
    /// The blob is longer than the arena; nothing was written.
    #[inline]
    pub fn push(&mut self, meta: &M, flags: u32, blob: &[u8]) -> Result<u64, RingError> {
        self.push_words(meta, flags, blob.len(), |words| slots::copy_in(words, blob))
    }

    /// Publishes a record whose `len` bytes `fill` writes straight into the arena; what it leaves out is zero.
    ///
    /// # Errors
    /// As [`BlobProducer::push`].
    #[inline]
    pub fn push_with(
        &mut self,
        meta: &M,
        flags: u32,
        len: usize,
        fill: impl FnOnce(&mut BlobWriter<'_>),
    ) -> Result<u64, RingError> {
        self.push_words(meta, flags, len, |words| {
            let mut writer = BlobWriter { words, bytes: len, at: 0, word: [0; 8] };
            fill(&mut writer);
            writer.finish();
        })
    }

    #[inline(always)]
    fn push_words(
        &mut self,
        meta: &M,
        flags: u32,
        len: usize,
        fill: impl FnOnce(&[AtomicU64]),
    ) -> Result<u64, RingError> {
        self.write(meta, flags, len, fill)?;
        Ok(self.publish())
    }

    /// Writes the next record without publishing it: part of a batch that [`BlobProducer::publish`] ends.
    ///
    /// # Errors
    /// As [`BlobProducer::push`].
    #[inline]
    pub fn write_next(&mut self, meta: &M, flags: u32, blob: &[u8]) -> Result<(), RingError> {
        self.write(meta, flags, blob.len(), |words| slots::copy_in(words, blob))
    }

    #[inline(always)]
    fn write(&mut self, meta: &M, flags: u32, len: usize, fill: impl FnOnce(&[AtomicU64])) -> Result<(), RingError> {
        let Some(placed) = self.place(len) else {
            let max = self.arena_bytes_max();
            return Err(RingError::BlobTooLong { bytes: len, max });
        };
        if !self.core.is_free() || placed.reserved > self.arena_limit {
            self.wait_for_readers(&placed);
        }
        let writer = &mut self.core.writer;
        let arena = writer.arena.as_mut().expect("made with an arena");
        arena.write(placed, len, fill);
        let descriptor = Descriptor { offset: placed.offset, len: len as u32, flags };
        let sequence = writer.next;
        slots::write_with(writer.slot(sequence), sequence, |words| {
            slots::copy_in(words, meta.as_bytes());
            slots::copy_in(&words[words.len() - DESCRIPTOR_WORDS..], &descriptor.encode());
        });
        writer.next = sequence + 1;
        Ok(())
    }

    #[inline(always)]
    fn place(&self, len: usize) -> Option<Placed> {
        let arena = self.core.writer.arena.as_ref().expect("made with an arena");
        arena.arena.place(arena.reserved, len)
    }

    fn arena_bytes_max(&self) -> u64 {
        self.core.writer.arena.as_ref().map_or(0, |arena| arena.arena.blob_bytes_max())
    }

    /// Makes what [`BlobProducer::write_next`] wrote the ring's head and wakes sleepers; the last sequence.
    #[inline]
    pub fn publish(&mut self) -> u64 {
        self.core.writer.publish();
        let sequence = self.core.writer.next - 1;
        self.sender.published(sequence);
        sequence
    }

    /// Waits until slot and room are free of what the slowest reader still needs.
    #[cold]
    #[inline(never)]
    fn wait_for_readers(&mut self, placed: &Placed) {
        let mut blocked = None;
        while !self.core.refresh() || !self.arena_is_free(placed) {
            if blocked.is_none() {
                // Sleeping readers must see all there is, or both would wait.
                self.core.writer.publish();
            }
            self.core.pause(blocked.get_or_insert_with(Blocked::default));
        }
    }

    /// Whether the room is free of what registered readers still need, as far as they have come by now.
    fn arena_is_free(&mut self, placed: &Placed) -> bool {
        let Some(flow) = &mut self.core.flow else { return true };
        let (next, capacity) = (self.core.writer.next, self.core.writer.geometry.arena_size);
        // Looked at again half an arena later at the latest, for readers that come meanwhile.
        self.arena_limit = placed.reserved.saturating_add(capacity / 2).min(placed.offset.saturating_add(capacity));
        let Some(slowest) = flow.slowest().filter(|slowest| *slowest < next) else { return true };
        // Its record stands in its slot: the slot's own limit lets nobody overwrite it.
        let slot = self.core.writer.slot(slowest.max(1));
        let offset = slot[slot.len() - DESCRIPTOR_WORDS].load(Ordering::Relaxed);
        let needed_until = offset.saturating_add(capacity);
        self.arena_limit = self.arena_limit.min(needed_until);
        placed.reserved <= needed_until
    }

    /// The sequence of the last record; 0 before the first.
    pub fn sequence(&self) -> u64 {
        self.core.writer.next - 1
    }

    /// Gives a sign of life, where the settings ask for it: for producers that are idle, at least every 50 ms.
    pub fn beat(&self) {
        self.core.writer.beat_if_asked();
    }

    /// Frees the registry entries of dead readers now; how many. A lossless producer does it when it has to wait; in other
    /// rings a new reader takes a dead one's entry over.
    pub fn prune_readers(&mut self) -> u64 {
        self.core.prune()
    }

    /// Readers that a lossless producer put out because they made no progress.
    pub fn evicted_readers(&self) -> u64 {
        self.core.flow.as_ref().map_or(0, |flow| flow.evicted)
    }

    /// The ring's layout.
    pub fn geometry(&self) -> &Geometry {
        &self.core.writer.geometry
    }

    /// Which life of the ring this is.
    pub fn incarnation(&self) -> u64 {
        self.core.writer.incarnation
    }

    /// Who orders publication before the look for sleepers.
    pub fn barrier(&self) -> Barrier {
        self.core.writer.barrier
    }

    /// The inline sender.
    pub fn sender(&mut self) -> &mut S {
        &mut self.sender
    }

    /// Reads the same memory (no file is opened): what an inline sender sends from.
    pub fn reader(&self) -> RawReader {
        RawReader::of(self.core.writer.view())
    }
}

/// The blob was overwritten while it was looked at, so what was seen of it may be torn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the blob was overwritten while it was looked at")]
pub struct Lapped;

/// A blob in the arena, where the producer may overwrite it at any time: it is read by value, and what was read counts only
/// if the view ends well.
#[derive(Clone, Copy, Debug)]
pub struct BlobView<'a> {
    words: &'a [ReadWord],
    bytes: usize,
    flags: u32,
}

impl BlobView<'_> {
    /// Bytes of the blob.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The application's flags.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The little-endian word at byte `8 * index`; bytes beyond the end are 0. `None` beyond the end.
    #[inline]
    pub fn word(&self, index: usize) -> Option<u64> {
        let word = self.words.get(index)?.load(Ordering::Relaxed);
        let inside = self.bytes.saturating_sub(index.checked_mul(8)?).min(8);
        let mask = if inside == 8 { u64::MAX } else { (1 << (8 * inside)) - 1 };
        Some(u64::from_le(word) & mask)
    }

    /// One byte; `None` beyond the end.
    #[inline]
    pub fn byte(&self, index: usize) -> Option<u8> {
        let word = self.word(index / 8).filter(|_| index < self.bytes)?;
        Some((word >> (8 * (index % 8))) as u8)
    }

    /// Copies from byte `from` (a multiple of 8) into `out`; how many bytes.
    pub fn copy_to(&self, from: usize, out: &mut [u8]) -> usize {
        let count = self.bytes.saturating_sub(from).min(out.len());
        if count > 0 && from.is_multiple_of(8) {
            slots::copy_bytes(&self.words[from / 8..], &mut out[..count]);
            return count;
        }
        0
    }

    /// Appends the whole blob to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + self.bytes, 0);
        slots::copy_bytes(self.words, &mut out[begin..]);
    }
}

/// A record of a ring of blobs, without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlobRecord<M> {
    /// Its sequence.
    pub sequence: u64,
    /// Its fixed part.
    pub meta: M,
    /// The application's flags.
    pub flags: u32,
}

/// Reads the records of a ring of blobs.
#[derive(Debug)]
pub struct BlobConsumer<M> {
    reader: Reader,
    meta: PhantomData<fn() -> M>,
}

impl<M: Record> BlobConsumer<M> {
    /// Attaches to the ring at `path`.
    ///
    /// # Errors
    /// As [`super::RingConsumer::open`].
    pub fn open(path: &Path, start: StartAt, settings: &ConsumerSettings) -> Result<BlobConsumer<M>, RingError> {
        const { assert!(align_of::<M>() <= 8, "a slot's payload is aligned to 8") };
        let reader = Reader::open(path, start, settings, Expected::of::<M>(true))?;
        Ok(BlobConsumer { reader, meta: PhantomData })
    }

    /// The next record, if it is there: its bytes replace what is in `out`.
    #[inline]
    pub fn try_recv(&mut self, out: &mut Vec<u8>) -> Option<BlobRecord<M>> {
        loop {
            let read = self.view_next(|_, view| {
                out.clear();
                view.append_to(out);
            })?;
            match read {
                Ok((record, ())) => return Some(record),
                // Torn bytes are nobody's.
                Err(Lapped) => out.clear(),
            }
        }
    }

    /// Reads the next records, as many as are there and `records` has places; how many. Their bytes replace what is in `out`,
    /// one blob after the other: `records[n].1` is where they lie in it. Sequences may jump between two of them, as with
    /// [`super::RingConsumer::recv_batch`].
    pub fn recv_batch(&mut self, records: &mut [(BlobRecord<M>, std::ops::Range<usize>)], out: &mut Vec<u8>) -> usize {
        out.clear();
        let mut count = 0;
        while let Some(place) = records.get_mut(count) {
            let begin = out.len();
            let read = self.view_next(|_, view| view.append_to(out));
            match read {
                Some(Ok((record, ()))) => {
                    *place = (record, begin..out.len());
                    count += 1;
                }
                Some(Err(Lapped)) => out.truncate(begin),
                None => break,
            }
        }
        count
    }

    /// Lets `look` read the next record's bytes where they lie, if it is there: what it returns counts, and the reader goes
    /// on, only if the producer did not overwrite them meanwhile. `look` must be able to see torn bytes.
    ///
    /// # Errors
    /// [`Lapped`]: it was overwritten; the reader goes on with the next, and it counts as lapped.
    #[inline]
    pub fn view<R>(&mut self, look: impl FnOnce(&BlobView<'_>) -> R) -> Option<Result<(BlobRecord<M>, R), Lapped>> {
        self.view_next(|_, view| look(view))
    }

    /// [`BlobConsumer::view`] with the fixed part at hand.
    ///
    /// # Errors
    /// As [`BlobConsumer::view`].
    #[inline]
    pub fn view_next<R>(
        &mut self,
        look: impl FnOnce(&BlobRecord<M>, &BlobView<'_>) -> R,
    ) -> Option<Result<(BlobRecord<M>, R), Lapped>> {
        let (record, descriptor) = self.take_slot()?;
        let arena = self.reader.view.arena.as_ref().expect("opened as a ring of blobs");
        let mut seen = None;
        if descriptor.len == 0 {
            let empty = BlobView { words: &[], bytes: 0, flags: descriptor.flags };
            seen = Some(look(&record, &empty));
        } else if let Some(at) = arena.arena.place_of(&descriptor).filter(|_| !arena.lapped(descriptor.offset)) {
            let bytes = descriptor.len as usize;
            let words = &arena.data[at / 8..at / 8 + bytes.div_ceil(8)];
            let result = look(&record, &BlobView { words, bytes, flags: descriptor.flags });
            seen = (!arena.lapped(descriptor.offset)).then_some(result);
        }
        let Some(result) = seen else {
            self.reader.lose_one();
            return Some(Err(Lapped));
        };
        self.reader.pass();
        self.reader.tell();
        Some(Ok((record, result)))
    }

    /// The record at the cursor, which does not move past it, and where its blob lies.
    #[inline(always)]
    fn take_slot(&mut self) -> Option<(BlobRecord<M>, Descriptor)> {
        loop {
            let sequence = self.reader.cursor;
            let slot = self.reader.view.slot(sequence);
            let read = slots::read_with(slot, sequence, |words| {
                let mut end = [0; DESCRIPTOR_BYTES];
                slots::copy_bytes(&words[words.len() - DESCRIPTOR_WORDS..], &mut end);
                (slots::copy_out::<_, M>(words), end)
            });
            let miss = match read {
                SlotRead::Record((meta, end)) => {
                    let descriptor = Descriptor::of_payload(&end)?;
                    let record = BlobRecord { sequence, meta: meta.whole(), flags: descriptor.flags };
                    return Some((record, descriptor));
                }
                SlotRead::Older => Miss::Older,
                SlotRead::Busy => Miss::Busy,
                SlotRead::Newer(seen) => Miss::Newer(seen),
            };
            if !self.reader.missed(miss) {
                return None;
            }
        }
    }

    /// Waits for the next record, at most `timeout`: its bytes replace what is in `out`. Looks after the producer meanwhile,
    /// and tells each change once.
    ///
    /// # Errors
    /// As [`super::RingConsumer::recv`].
    pub fn recv(
        &mut self,
        wait: Wait,
        timeout: Duration,
        out: &mut Vec<u8>,
    ) -> Result<Received<BlobRecord<M>>, RingError> {
        let mut waiting = Waiting::new(wait, timeout);
        loop {
            if let Some(record) = self.try_recv(out) {
                return Ok(Received::Record { sequence: record.sequence, record });
            }
            if let Some(end) = self.reader.idle(&mut waiting)? {
                return Ok(end);
            }
        }
    }

    /// Looks after the producer, if it is time; what is known of it.
    pub fn producer(&mut self) -> Producer {
        self.reader.producer()
    }

    /// Leaves this ring for the one that is at the path now; see [`super::RingConsumer::follow`].
    ///
    /// # Errors
    /// As there.
    pub fn follow(&mut self) -> Result<u64, RingError> {
        self.reader.follow()
    }

    /// Goes to another place of this ring; what is gone already counts as lapped.
    pub fn seek(&mut self, start: StartAt) {
        self.reader.seek(start);
    }

    /// The sequence that is read next.
    pub fn cursor(&self) -> u64 {
        self.reader.cursor
    }

    /// Records that this reader did not get: overwritten before or while it read them (slot or blob), or in holes.
    pub fn lapped(&self) -> u64 {
        self.reader.lapped
    }

    /// Those of [`BlobConsumer::lapped`] that a sparse ring did not hold when the reader came to them.
    pub fn skipped(&self) -> u64 {
        self.reader.skipped
    }

    /// Published records that were not read yet.
    pub fn lag(&self) -> u64 {
        self.reader.lag()
    }

    /// The ring's layout.
    pub fn geometry(&self) -> &Geometry {
        &self.reader.view.geometry
    }

    /// Which life of the ring this is; 0 where its producer gives none.
    pub fn incarnation(&self) -> u64 {
        self.reader.view.incarnation
    }

    /// Whether the reader is entered in the ring's registry.
    pub fn is_registered(&self) -> bool {
        self.reader.is_registered()
    }
}
