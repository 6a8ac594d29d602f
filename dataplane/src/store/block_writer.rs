//! The store writer as a machine: records and `now` go in, operations on segments come out, completions go back in.
//! Pure: it opens no file and reads no clock, so the simulator can play the disk.
//!
//! A block goes free → filling → sealed (→ packed) → writing → free. Its place in a segment is chosen when it is
//! issued, so a block that has not been issued belongs to no segment and can wait out a full disk.

use std::collections::VecDeque;
use std::ops::DerefMut;

use crate::store::RecordMeta;
use crate::store::block_fill::{BLOCK_OVERHEAD_BYTES, ClockState, Fill, Run};
use crate::store::block_loss::{LOSS_RANGES_MAX, LossLog, LostCause};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND, StreamId};
use crate::wire::block::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCK_STREAMS_MAX, BlockEntry, BlockHeader, BlockKind, CHUNK_ENTRY_BYTES, Codec,
    HEADER_BYTES, KEY_BYTES_MAX, RANGE_ENTRY_BYTES, RECORD_HEADER_BYTES, RangeClass, Records, SECTOR_BYTES,
    STREAM_ENTRY_BYTES, SegmentIndex, SegmentInfo, SegmentRange, StampSource, encode_stream, pad,
};
use crate::wire::segment::{Framing, Messages};

/// A write that makes no progress this many times in a row is an error: the kernel may answer a write with 0 bytes,
/// but a disk that keeps doing so will not stop.
const EMPTY_WRITES_MAX: u32 = 3;
/// Most tries to seal a segment on a full disk: five minutes at the usual 200 ms. Then it stays `.partial`, which is
/// read all the same, and the next start seals it.
const SEAL_TRIES_MAX: u32 = 1500;
/// Most blocks that a segment's index has room for from the start: 1 GiB of 256 KiB blocks; about 1 MB of entries.
const INDEX_BLOCKS_RESERVED_MAX: u64 = 4096;

/// When completed writes are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncPolicy {
    /// Only when a segment is sealed.
    Never,
    /// At most this many ns after a write.
    Interval(i64),
    /// After every block.
    EveryBlock,
}

/// Settings of a [`StoreWriter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriterSettings {
    /// Bytes of a block, a multiple of 4,096 between [`BLOCK_BYTES_MIN`] and [`BLOCK_BYTES_MAX`].
    pub block_bytes: usize,
    /// A block that holds a record is sealed this long after its first one, ns.
    pub flush_ns: i64,
    /// A segment ends before it would exceed this many bytes, its footer included.
    pub segment_bytes: u64,
    /// A segment ends this long after its first record, ns; `None`: only by size.
    pub segment_ns: Option<i64>,
    /// When completed writes are made durable.
    pub sync: SyncPolicy,
    /// How records are stored.
    pub codec: Codec,
    /// zstd level, when `codec` is zstd.
    pub zstd_level: i32,
    /// How long a full disk is left alone before the next try, ns.
    pub retry_ns: i64,
    /// Most loss ranges kept.
    pub loss_ranges_max: usize,
    /// Arrival index of the first record: where the store's last one left off.
    pub arrival_first: u64,
    /// One segment takes everything (a single file); no next one is asked for.
    pub single: bool,
}

impl Default for WriterSettings {
    fn default() -> WriterSettings {
        WriterSettings {
            block_bytes: 1024 * 1024,
            flush_ns: NANOS_PER_SECOND,
            segment_bytes: 1024 * 1024 * 1024,
            segment_ns: None,
            sync: SyncPolicy::Interval(NANOS_PER_SECOND),
            codec: Codec::None,
            zstd_level: 3,
            retry_ns: 200 * NANOS_PER_MILLI,
            loss_ranges_max: LOSS_RANGES_MAX,
            arrival_first: 0,
            single: false,
        }
    }
}

/// Memory of one block. It must stay in place while a write of it is out.
pub trait BlockBuffer: DerefMut<Target = [u8]> {}
impl<T: DerefMut<Target = [u8]>> BlockBuffer for T {}

/// What the machine wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Create and preallocate a segment; answer with [`StoreWriter::segment_ready`] or
    /// [`StoreWriter::segment_failed`], and go on trying after the latter.
    NextSegment,
    /// Write bytes of a block; answer with [`StoreWriter::on_write`].
    Write {
        /// Number of the segment.
        segment: u64,
        /// Block of the pool.
        slot: usize,
        /// First byte inside the block.
        buffer_offset: usize,
        /// Bytes, a multiple of 4,096.
        bytes: usize,
        /// First byte inside the file.
        file_offset: u64,
    },
    /// Make the segment's completed writes durable; answer with [`StoreWriter::on_sync`].
    Sync {
        /// Number of the segment.
        segment: u64,
    },
    /// All its writes are done: make them durable, write the footer at `end`, cut the file after it, make that
    /// durable, give it its final name; answer with [`StoreWriter::on_sealed`]. [`Fault::NoSpace`] says that the
    /// blocks are durable and the footer found no space: the operation comes again later.
    Seal {
        /// Number of the segment.
        segment: u64,
        /// The footer block.
        footer: Vec<u8>,
        /// Byte of the file where it belongs.
        end: u64,
    },
    /// A segment that was granted and never used: delete it.
    Discard {
        /// Number of the segment.
        segment: u64,
    },
}

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No space (ENOSPC, EDQUOT): worth trying again.
    NoSpace,
    /// Anything else, as an errno.
    Io(i32),
}

impl Fault {
    /// The fault behind an errno.
    pub fn from_errno(errno: i32) -> Fault {
        match errno {
            libc::ENOSPC | libc::EDQUOT => Fault::NoSpace,
            other => Fault::Io(other),
        }
    }
}

/// A created, preallocated segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentGrant {
    /// What its first block says.
    pub info: SegmentInfo,
    /// First byte for blocks, a multiple of 4,096.
    pub begin: u64,
}

/// Counters of a writer; all are totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages and raw frames offered.
    pub appended_data: u64,
    /// Other records offered.
    pub appended_marks: u64,
    /// Messages and raw frames in completed writes.
    pub stored_data: u64,
    /// Other records in completed writes.
    pub stored_marks: u64,
    /// Bytes of completed writes.
    pub written_bytes: u64,
    /// Blocks of completed writes.
    pub written_blocks: u64,
    /// Blocks whose write failed for good.
    pub failed_blocks: u64,
    /// Writes that came back short or with a full disk and were tried again.
    pub retried_writes: u64,
    /// Completed syncs.
    pub syncs: u64,
    /// Failed syncs: what was written stays counted as stored, but the durable watermark stands still from then on.
    pub failed_syncs: u64,
    /// Segments sealed.
    pub sealed_segments: u64,
    /// Segments whose seal failed for good; their blocks are readable all the same.
    pub failed_seals: u64,
    /// Seals that found no space for the footer and were tried again.
    pub retried_seals: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    Filling,
    Sealed,
    Writing,
    Retry,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    segment: u64,
    offset: u64,
    bytes: usize,
    /// Bytes before the padding: once they are in the file, the block is readable.
    filled_bytes: usize,
    ordinal: u32,
}

struct Slot<B> {
    state: SlotState,
    fill: Fill,
    buffer: B,
    /// Bytes of the records as stored; differs from the fill's once packed.
    stored_bytes: usize,
    codec: Codec,
    packed: bool,
    place: Place,
    written: usize,
    /// The furthest byte that a write has reported, also inside a sector.
    reached: usize,
    empty_writes: u32,
    order: u64,
}

/// A sealed block's way to the disk, in arrival order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Pending,
    Written { segment: u64, serial: u64 },
    Settled,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    arrival_first: u64,
    progress: Progress,
}

struct Stream {
    key: String,
    /// Data records in completed writes.
    stored: u64,
    block: u64,
    local: u16,
    segment: u64,
    segment_id: u32,
}

struct Segment {
    info: SegmentInfo,
    next_offset: u64,
    next_index: u32,
    begun: Option<i64>,
    index: SegmentIndex,
    dead: Vec<u32>,
    in_flight: u32,
    closing: bool,
    sealing: bool,
    seal_tries: u32,
    /// When a seal that found no space is tried again.
    seal_again: Option<i64>,
    sync: Option<u64>,
    unsynced: Option<i64>,
}

impl Segment {
    fn new(grant: &SegmentGrant, index: SegmentIndex) -> Segment {
        Segment {
            info: grant.info,
            next_offset: grant.begin,
            next_index: 1,
            begun: None,
            index,
            dead: Vec::new(),
            in_flight: 0,
            closing: false,
            sealing: false,
            seal_tries: 0,
            seal_again: None,
            sync: None,
            unsynced: None,
        }
    }
}

/// The machine. `B` is the memory of a block.
pub struct StoreWriter<B> {
    settings: WriterSettings,
    slots: Vec<Slot<B>>,
    free: Vec<usize>,
    filling: Option<usize>,
    sealed: VecDeque<usize>,
    ops: VecDeque<Op>,
    orders: VecDeque<Order>,
    orders_begin: u64,
    streams: Vec<Option<Stream>>,
    block_serial: u64,
    write_serial: u64,
    arrival_next: u64,
    clock: ClockState,
    active: Option<Segment>,
    next: Option<SegmentGrant>,
    closing: Vec<Segment>,
    asked: bool,
    full_until: Option<i64>,
    /// Set by the first failed sync: nothing from there on can be called durable any more.
    durable_stop: Option<u64>,
    no_space: bool,
    /// The last segment asked for could not be made because the disk is full: so it stays until one can be, although the
    /// segment in use may have its space still.
    segment_no_space: bool,
    /// The last segment asked for could not be made for another reason than a full disk.
    segment_broken: bool,
    closed: bool,
    given_up: bool,
    losses: LossLog,
    counters: Counters,
    scratch: Vec<u8>,
}

impl<B: BlockBuffer> StoreWriter<B> {
    /// A writer over a fixed pool: its length is `blocks_in_flight`, each buffer has `block_bytes`.
    ///
    /// # Panics
    /// When the settings and buffers do not fit together: `config` checks what users write.
    pub fn new(settings: WriterSettings, buffers: Vec<B>) -> StoreWriter<B> {
        assert!(
            (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&settings.block_bytes)
                && settings.block_bytes.is_multiple_of(SECTOR_BYTES),
            "block_bytes = {}",
            settings.block_bytes
        );
        assert!(buffers.len() >= 2, "a pool of {} blocks cannot fill one while another is written", buffers.len());
        let slots: Vec<_> = buffers
            .into_iter()
            .map(|buffer| {
                assert!(buffer.len() == settings.block_bytes, "block buffer of {} bytes", buffer.len());
                Slot {
                    state: SlotState::Free,
                    fill: Fill::new(settings.block_bytes),
                    buffer,
                    stored_bytes: 0,
                    codec: Codec::None,
                    packed: false,
                    place: Place { segment: 0, offset: 0, bytes: 0, filled_bytes: 0, ordinal: 0 },
                    written: 0,
                    reached: 0,
                    empty_writes: 0,
                    order: 0,
                }
            })
            .collect();
        let mut writer = StoreWriter {
            free: (0..slots.len()).rev().collect(),
            filling: None,
            sealed: VecDeque::with_capacity(slots.len()),
            ops: VecDeque::with_capacity(2 * slots.len() + 8),
            orders: VecDeque::with_capacity(1024),
            orders_begin: 0,
            streams: Vec::new(),
            block_serial: 0,
            write_serial: 0,
            arrival_next: settings.arrival_first,
            clock: ClockState::default(),
            active: None,
            next: None,
            closing: Vec::new(),
            asked: false,
            full_until: None,
            durable_stop: None,
            no_space: false,
            segment_no_space: false,
            segment_broken: false,
            closed: false,
            given_up: false,
            losses: LossLog::new(settings.loss_ranges_max),
            counters: Counters::default(),
            scratch: match settings.codec {
                Codec::None => Vec::new(),
                Codec::Zstd => Vec::with_capacity(settings.block_bytes),
            },
            slots,
            settings,
        };
        writer.ask_segment();
        writer
    }

    /// Registers a stream; must come before its first record (else that is lost as unregistered). Allocates, like a stream's beginning everywhere.
    pub fn stream_begin(&mut self, stream: StreamId, key: &str) {
        assert!(key.len() <= KEY_BYTES_MAX && !key.is_empty(), "stream key {key:?}");
        let place = stream.0 as usize;
        if self.streams.len() <= place {
            self.streams.resize_with(place + 1, || None);
        }
        self.losses.add_stream(stream);
        self.streams[place] =
            Some(Stream { key: key.to_string(), stored: 0, block: 0, local: 0, segment: 0, segment_id: 0 });
    }

    /// The clock of all records from now on. A change begins a new block.
    pub fn set_clock(&mut self, clock: ClockState, now: i64) {
        if clock != self.clock {
            self.flush(now);
            self.clock = clock;
        }
    }

    /// Whether a record with such a body would be stored now (in the open block or a free one).
    pub fn has_room(&self, body_bytes: usize) -> bool {
        !self.free.is_empty() || self.filling.is_some_and(|slot| self.slots[slot].fill.fits(body_bytes))
    }

    /// Longest body that a block can hold.
    pub fn body_bytes_max(&self) -> usize {
        self.settings.block_bytes - BLOCK_OVERHEAD_BYTES - RECORD_HEADER_BYTES
    }

    /// Copies one record into the open block, or counts why not.
    #[inline]
    pub fn append(&mut self, meta: &RecordMeta, body: &[u8], now: i64) -> Result<(), LostCause> {
        self.count_appended(meta, 1);
        if body.len() > self.body_bytes_max() {
            return Err(self.lose(LostCause::TooLong, meta, 1, now));
        }
        let slot = match self.room(body.len(), now) {
            Ok(slot) => slot,
            Err(cause) => return Err(self.lose(cause, meta, 1, now)),
        };
        let (slot, local) =
            self.local(slot, meta.stream, now, body.len()).map_err(|cause| self.lose(cause, meta, 1, now))?;
        let slot = &mut self.slots[slot];
        slot.fill.push(&mut slot.buffer, local, meta, body);
        self.arrival_next += 1;
        Ok(())
    }

    /// Copies all messages of a segment: `count` × { u16 length, body } in `block`, the first with `meta.sequence`.
    /// What finds no room is counted exactly; the error is the last cause.
    pub fn append_run(
        &mut self,
        meta: &RecordMeta,
        count: u32,
        framing: Framing,
        block: &[u8],
        now: i64,
    ) -> Result<(), LostCause> {
        self.count_appended(meta, count);
        let mut run = Run { meta: *meta, messages: Messages::new(block, framing), left: count };
        let mut outcome = Ok(());
        while run.left > 0 {
            let Some(length) = run.messages.clone().next().map(<[u8]>::len) else {
                // The codec has checked the spans: what does not hold `count` messages is a caller's bug.
                panic!("a segment's block ends {} messages early", run.left);
            };
            if length > self.body_bytes_max() {
                outcome = Err(self.lose(LostCause::TooLong, &run.meta, 1, now));
                run.messages.next();
                run.meta.sequence += 1;
                run.left -= 1;
                continue;
            }
            let placed = self.room(length, now).and_then(|slot| self.local(slot, meta.stream, now, length));
            match placed {
                Ok((slot, local)) => {
                    let slot = &mut self.slots[slot];
                    let before = run.left;
                    slot.fill.push_run(&mut slot.buffer, local, &mut run);
                    self.arrival_next += u64::from(before - run.left);
                }
                Err(cause) => {
                    outcome = Err(self.lose(cause, &run.meta, run.left, now));
                    run.left = 0;
                }
            }
        }
        outcome
    }

    #[inline]
    fn count_appended(&mut self, meta: &RecordMeta, count: u32) {
        if meta.kind.is_data() {
            self.counters.appended_data += u64::from(count);
        } else {
            self.counters.appended_marks += u64::from(count);
        }
    }

    #[cold]
    fn lose(&mut self, cause: LostCause, meta: &RecordMeta, count: u32, now: i64) -> LostCause {
        // The open block's arrival indexes must stay dense: it ends here.
        if let Some(slot) = self.filling.take() {
            self.seal(slot);
            self.issue(now);
        }
        self.arrival_next += u64::from(count);
        if meta.kind.is_data() {
            self.losses.data(cause, meta.stream, meta.sequence, meta.sequence + u64::from(count) - 1);
        } else {
            self.losses.marks(cause, u64::from(count));
        }
        cause
    }

    /// The block that takes the next record.
    #[inline]
    fn room(&mut self, body_bytes: usize, now: i64) -> Result<usize, LostCause> {
        if let Some(slot) = self.filling {
            if self.slots[slot].fill.fits(body_bytes) {
                return Ok(slot);
            }
            self.filling = None;
            self.seal(slot);
            self.issue(now);
        }
        self.open_block(now)
    }

    fn open_block(&mut self, now: i64) -> Result<usize, LostCause> {
        if self.closed {
            return Err(LostCause::Closed);
        }
        let Some(slot) = self.free.pop() else { return Err(self.waiting_cause()) };
        self.block_serial += 1;
        self.filling = Some(slot);
        let (arrival, clock) = (self.arrival_next, self.clock);
        let slot_state = &mut self.slots[slot];
        slot_state.state = SlotState::Filling;
        slot_state.fill.begin(arrival, now, clock);
        Ok(slot)
    }

    /// What sealed blocks wait for.
    fn waiting_cause(&self) -> LostCause {
        if self.no_space {
            LostCause::NoSpace
        } else if self.segment_broken && self.active.is_none() {
            LostCause::WriteError
        } else {
            LostCause::DiskSlow
        }
    }

    /// The stream's place in the open block, which may have to be changed for a fresh one.
    #[inline]
    fn local(&mut self, slot: usize, stream: StreamId, now: i64, body_bytes: usize) -> Result<(usize, u16), LostCause> {
        let known = self.streams.get(stream.0 as usize).and_then(Option::as_ref);
        let known = known.ok_or(LostCause::Unregistered)?;
        if known.block == self.block_serial {
            return Ok((slot, known.local));
        }
        self.add_local(slot, stream, now, body_bytes)
    }

    #[cold]
    fn add_local(
        &mut self,
        mut slot: usize,
        stream: StreamId,
        now: i64,
        body_bytes: usize,
    ) -> Result<(usize, u16), LostCause> {
        if self.slots[slot].fill.locals.len() == BLOCK_STREAMS_MAX {
            self.flush(now);
            slot = self.room(body_bytes, now)?;
        }
        let serial = self.block_serial;
        let known = self.streams[stream.0 as usize].as_mut().expect("checked by the caller");
        known.block = serial;
        known.local = self.slots[slot].fill.add_stream(stream, known.key.len());
        // `fits` was asked before the stream took its place; its reserve holds one stream.
        Ok((slot, known.local))
    }

    /// Seals the open block now, if it holds a record.
    pub fn flush(&mut self, now: i64) {
        if let Some(slot) = self.filling {
            if self.slots[slot].fill.records == 0 {
                return;
            }
            self.filling = None;
            self.seal(slot);
        }
        self.issue(now);
    }

    fn seal(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if slot.fill.records == 0 {
            slot.state = SlotState::Free;
            self.free.push(at);
            return;
        }
        slot.fill.finish(&slot.buffer);
        slot.state = SlotState::Sealed;
        slot.stored_bytes = slot.fill.records_bytes();
        slot.codec = Codec::None;
        slot.packed = self.settings.codec == Codec::None;
        slot.written = 0;
        slot.reached = 0;
        slot.empty_writes = 0;
        slot.order = self.orders_begin + self.orders.len() as u64;
        self.orders.push_back(Order { arrival_first: slot.fill.arrival_first, progress: Progress::Pending });
        self.sealed.push_back(at);
    }

    /// Packs the oldest sealed block that waits for it (zstd only). Returns whether there was one. The caller chooses
    /// when, because it takes about a millisecond a MiB.
    pub fn compress_step(&mut self, now: i64) -> bool {
        let Some(&at) = self.sealed.iter().find(|&&at| !self.slots[at].packed) else {
            return false;
        };
        let slot = &mut self.slots[at];
        let span = HEADER_BYTES..HEADER_BYTES + slot.stored_bytes;
        self.scratch.resize(slot.stored_bytes, 0);
        let packed =
            zstd::bulk::compress_to_buffer(&slot.buffer[span], &mut self.scratch[..], self.settings.zstd_level);
        // An error here means that the packed form is no shorter: the block stays as it is.
        if let Ok(bytes) = packed
            && bytes < slot.stored_bytes
        {
            slot.buffer[HEADER_BYTES..HEADER_BYTES + bytes].copy_from_slice(&self.scratch[..bytes]);
            slot.stored_bytes = bytes;
            slot.codec = Codec::Zstd;
        }
        slot.packed = true;
        self.issue(now);
        true
    }

    /// Gives sealed blocks their places and asks for their writes.
    fn issue(&mut self, now: i64) {
        if self.full_until.is_some_and(|until| now < until) {
            return;
        }
        // Over: a block that now waits for a segment or for its packing has no deadline.
        self.full_until = None;
        while let Some(&at) = self.sealed.front() {
            if !self.slots[at].packed {
                return;
            }
            if self.slots[at].state == SlotState::Retry {
                self.sealed.pop_front();
                self.write_rest(at);
                continue;
            }
            if !self.ready_segment(at, now) {
                return;
            }
            self.sealed.pop_front();
            self.place(at, now);
            self.write_rest(at);
        }
    }

    /// Makes sure that the active segment takes block `at`.
    fn ready_segment(&mut self, at: usize, now: i64) -> bool {
        let bytes = self.padded_bytes(at);
        if let Some(active) = &self.active
            && !self.settings.single
            && active.next_index > 1
            && active.next_offset + (bytes + self.footer_bytes(active, at)) as u64 > self.settings.segment_bytes
        {
            self.rotate(now);
        }
        if self.active.is_none() {
            let Some(grant) = self.next.take() else {
                self.ask_segment();
                return false;
            };
            self.active = Some(Segment::new(&grant, reserved_index(&self.settings)));
            if !self.settings.single && !self.closed {
                self.ask_segment();
            }
        }
        true
    }

    fn ask_segment(&mut self) {
        if !self.asked && self.next.is_none() {
            self.asked = true;
            self.ops.push_back(Op::NextSegment);
        }
    }

    fn padded_bytes(&self, at: usize) -> usize {
        let slot = &self.slots[at];
        let keys: usize = slot.fill.locals.iter().map(|local| 8 + self.key(local.stream).len()).sum();
        let index = slot.fill.chunks.len() * CHUNK_ENTRY_BYTES + slot.fill.ranges.len() * RANGE_ENTRY_BYTES + keys;
        pad(HEADER_BYTES + slot.stored_bytes + index)
    }

    /// Bytes of the segment's footer, at most, if block `at` comes into it. The footer has to find its place in the
    /// preallocated space: on a full disk there is no other.
    fn footer_bytes(&self, segment: &Segment, at: usize) -> usize {
        let fill = &self.slots[at].fill;
        let streams = fill.locals.iter().filter_map(|local| self.streams[local.stream.0 as usize].as_ref());
        let fresh = streams.filter(|stream| stream.segment != segment.info.number);
        let key_bytes = fresh.map(|stream| STREAM_ENTRY_BYTES + stream.key.len()).sum();
        segment.index.footer_bytes(1, fill.ranges.len(), key_bytes)
    }

    fn key(&self, stream: StreamId) -> &str {
        &self.streams[stream.0 as usize].as_ref().expect("a stream with records is registered").key
    }

    /// Writes block `at`'s index area, header and checksum for its place in the active segment.
    fn place(&mut self, at: usize, now: i64) {
        let segment = self.active.as_mut().expect("a segment is ready");
        let slot = &mut self.slots[at];
        let mut end = HEADER_BYTES + slot.stored_bytes;
        for chunk in &slot.fill.chunks {
            chunk.encode(&mut slot.buffer[end..end + CHUNK_ENTRY_BYTES]);
            end += CHUNK_ENTRY_BYTES;
        }
        for range in &slot.fill.ranges {
            range.encode(&mut slot.buffer[end..end + RANGE_ENTRY_BYTES]);
            end += RANGE_ENTRY_BYTES;
        }
        let mut ids = [0u32; BLOCK_STREAMS_MAX];
        for (local, id) in slot.fill.locals.iter().zip(&mut ids) {
            let stream = self.streams[local.stream.0 as usize].as_mut().expect("registered");
            if stream.segment != segment.info.number {
                stream.segment = segment.info.number;
                stream.segment_id = segment.index.streams.len() as u32;
                segment.index.streams.push(stream.key.clone());
            }
            *id = stream.segment_id;
            end += encode_stream(*id, &stream.key, &mut slot.buffer[end..]);
        }
        let padded = pad(end);
        slot.buffer[end..padded].fill(0);
        let header = slot_header(slot, &segment.info, segment.next_index, end);
        header.seal(&mut slot.buffer[..end]);
        let ordinal = segment.index.blocks.len() as u32;
        segment.index.blocks.push(BlockEntry::of(&header, segment.next_offset));
        let from = segment.index.ranges.len();
        for range in &slot.fill.ranges {
            segment.index.add_range(
                from,
                SegmentRange {
                    stream: ids[usize::from(range.local)],
                    block: ordinal,
                    class: range.class,
                    count: range.count,
                    min: range.min,
                    max: range.max,
                },
            );
        }
        slot.place = Place {
            segment: segment.info.number,
            offset: segment.next_offset,
            bytes: padded,
            filled_bytes: end,
            ordinal,
        };
        segment.next_offset += padded as u64;
        segment.next_index += 1;
        segment.in_flight += 1;
        segment.begun.get_or_insert(slot.fill.begun.min(now));
    }

    fn write_rest(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.state = SlotState::Writing;
        self.ops.push_back(Op::Write {
            segment: slot.place.segment,
            slot: at,
            buffer_offset: slot.written,
            bytes: slot.place.bytes - slot.written,
            file_offset: slot.place.offset + slot.written as u64,
        });
    }

    /// The memory of a block, for the one who carries out its write.
    pub fn block(&self, slot: usize) -> &[u8] {
        &self.slots[slot].buffer
    }

    /// The next thing to do; `None` when nothing is left.
    pub fn next_op(&mut self) -> Option<Op> {
        self.ops.pop_front()
    }

    /// Whether an operation waits.
    #[inline]
    pub fn has_ops(&self) -> bool {
        !self.ops.is_empty()
    }

    /// A segment is there.
    pub fn segment_ready(&mut self, grant: SegmentGrant, now: i64) {
        assert!(grant.begin.is_multiple_of(SECTOR_BYTES as u64) && self.next.is_none(), "an unasked segment");
        self.asked = false;
        (self.no_space, self.segment_no_space, self.segment_broken) = (false, false, false);
        self.next = Some(grant);
        self.issue(now);
        self.settle_close(now);
    }

    /// No segment could be made; the other side goes on trying.
    pub fn segment_failed(&mut self, fault: Fault) {
        self.no_space = fault == Fault::NoSpace;
        self.segment_no_space = self.no_space;
        self.segment_broken = !self.no_space;
    }

    /// A write came back: the bytes written, or why not.
    pub fn on_write(&mut self, at: usize, result: Result<usize, Fault>, now: i64) {
        assert!(self.slots[at].state == SlotState::Writing, "a completion for a block that is not being written");
        let slot = &mut self.slots[at];
        match result {
            Ok(bytes) => {
                self.full_until = None;
                self.no_space = false;
                // Only whole sectors count: the rest of a short write is written again with the same bytes.
                let whole = if bytes + slot.written >= slot.place.bytes { bytes } else { bytes & !(SECTOR_BYTES - 1) };
                slot.reached = slot.reached.max(slot.written + bytes);
                slot.written += whole;
                slot.empty_writes = if whole == 0 { slot.empty_writes + 1 } else { 0 };
                if slot.written >= slot.place.bytes {
                    self.written(at, now);
                } else if slot.empty_writes >= EMPTY_WRITES_MAX {
                    self.broken(at, now);
                } else {
                    self.counters.retried_writes += 1;
                    self.write_rest(at);
                }
            }
            Err(Fault::NoSpace) => {
                self.counters.retried_writes += 1;
                slot.state = SlotState::Retry;
                self.no_space = true;
                self.full_until = Some(now + self.settings.retry_ns);
                self.sealed.push_front(at);
            }
            Err(Fault::Io(_)) => self.broken(at, now),
        }
        self.issue(now);
        self.settle(now);
    }

    fn written(&mut self, at: usize, now: i64) {
        let slot = &mut self.slots[at];
        let (place, order) = (slot.place, slot.order);
        slot.state = SlotState::Free;
        let (data, all) = (u64::from(slot.fill.data_records), u64::from(slot.fill.records));
        for range in slot.fill.ranges.iter().filter(|range| range.class != RangeClass::Mark) {
            let stream = slot.fill.locals[usize::from(range.local)].stream;
            if let Some(stream) = &mut self.streams[stream.0 as usize] {
                stream.stored += u64::from(range.count);
            }
        }
        self.counters.stored_data += data;
        self.counters.stored_marks += all - data;
        self.counters.written_bytes += place.bytes as u64;
        self.counters.written_blocks += 1;
        self.free.push(at);
        self.write_serial += 1;
        self.orders[(order - self.orders_begin) as usize].progress =
            Progress::Written { segment: place.segment, serial: self.write_serial };
        let segment = self.segment_mut(place.segment);
        segment.in_flight -= 1;
        segment.unsynced.get_or_insert(now);
    }

    /// A write that failed for good. What only lacks padding is stored: a reader will find it.
    fn broken(&mut self, at: usize, now: i64) {
        let slot = &self.slots[at];
        if slot.reached >= slot.place.filled_bytes {
            self.written(at, now);
        } else {
            self.failed(at, LostCause::WriteError);
        }
    }

    fn failed(&mut self, at: usize, cause: LostCause) {
        let slot = &mut self.slots[at];
        let (place, order, placed) = (slot.place, slot.order, slot.state != SlotState::Sealed);
        slot.state = SlotState::Free;
        self.free.push(at);
        self.counters.failed_blocks += 1;
        let slot = &self.slots[at];
        self.losses.marks(cause, u64::from(slot.fill.records - slot.fill.data_records));
        lose_data(&mut self.losses, cause, slot);
        self.orders[(order - self.orders_begin) as usize].progress = Progress::Settled;
        if placed {
            let segment = self.segment_mut(place.segment);
            segment.in_flight -= 1;
            segment.dead.push(place.ordinal);
        }
    }

    fn segment_mut(&mut self, number: u64) -> &mut Segment {
        self.active
            .iter_mut()
            .chain(&mut self.closing)
            .find(|segment| segment.info.number == number)
            .expect("a segment lives until its blocks are settled")
    }

    /// A sync came back.
    pub fn on_sync(&mut self, number: u64, result: Result<(), Fault>, now: i64) {
        let failed = result.is_err();
        let segment = self.segment_mut(number);
        let serial = segment.sync.take().expect("one sync was out");
        if failed {
            self.counters.failed_syncs += 1;
            self.stop_durable();
        } else {
            self.counters.syncs += 1;
        }
        self.settle_orders(number, serial);
        self.settle(now);
    }

    /// A sync that failed once may succeed later without the data: the kernel has forgotten the dirty pages.
    fn stop_durable(&mut self) {
        let durable = self.durable_arrival();
        self.durable_stop.get_or_insert(durable);
    }

    /// Everything of the segment that was written no later than `serial` is durable (or told to be unsure).
    fn settle_orders(&mut self, number: u64, serial: u64) {
        for order in &mut self.orders {
            if matches!(order.progress, Progress::Written { segment, serial: s } if segment == number && s <= serial) {
                order.progress = Progress::Settled;
            }
        }
        while self.orders.front().is_some_and(|order| order.progress == Progress::Settled) {
            self.orders.pop_front();
            self.orders_begin += 1;
        }
    }

    /// A seal came back. Without space for the footer the segment stays open and the seal is tried again; its blocks
    /// are durable. After any other failure nobody knows what is.
    pub fn on_sealed(&mut self, number: u64, result: Result<(), Fault>, now: i64) {
        let again = result == Err(Fault::NoSpace) && self.seal_later(number, now);
        match result {
            Ok(()) => self.counters.sealed_segments += 1,
            Err(Fault::NoSpace) if again => self.counters.retried_seals += 1,
            Err(fault) => {
                self.counters.failed_seals += 1;
                if fault != Fault::NoSpace {
                    self.stop_durable();
                }
            }
        }
        self.settle_orders(number, u64::MAX);
        if !again {
            self.closing.retain(|segment| segment.info.number != number);
        }
        self.settle(now);
    }

    fn seal_later(&mut self, number: u64, now: i64) -> bool {
        let (given_up, retry_ns) = (self.given_up, self.settings.retry_ns);
        let segment = self.segment_mut(number);
        segment.seal_tries += 1;
        if given_up || segment.seal_tries >= SEAL_TRIES_MAX {
            return false;
        }
        segment.sealing = false;
        segment.seal_again = Some(now + retry_ns);
        true
    }

    fn rotate(&mut self, now: i64) {
        if let Some(mut segment) = self.active.take() {
            segment.closing = true;
            self.closing.push(segment);
            self.settle(now);
        }
    }

    /// Syncs and seals that have become due; the end of closing.
    fn settle(&mut self, now: i64) {
        let policy = self.settings.sync;
        let serial = self.write_serial;
        for segment in self.active.iter_mut().chain(&mut self.closing) {
            if segment.sync.is_none() && !segment.closing && sync_due(policy, segment.unsynced, now) {
                segment.sync = Some(serial);
                segment.unsynced = None;
                self.ops.push_back(Op::Sync { segment: segment.info.number });
            }
            let due = segment.seal_again.is_none_or(|at| now >= at);
            if segment.closing && !segment.sealing && segment.in_flight == 0 && segment.sync.is_none() && due {
                segment.sealing = true;
                drop_dead(segment);
                let footer = segment.index.encode_footer(&segment.info, segment.next_offset);
                self.ops.push_back(Op::Seal { segment: segment.info.number, footer, end: segment.next_offset });
            }
        }
        while self.orders.front().is_some_and(|order| order.progress == Progress::Settled) {
            self.orders.pop_front();
            self.orders_begin += 1;
        }
        self.settle_close(now);
    }

    fn settle_close(&mut self, now: i64) {
        if !self.closed || !self.sealed.is_empty() {
            return;
        }
        if let Some(mut segment) = self.active.take() {
            segment.closing = true;
            self.closing.push(segment);
            return self.settle(now);
        }
        if let Some(grant) = self.next.take() {
            if self.settings.single && self.closing.is_empty() && self.counters.sealed_segments == 0 {
                // A file was asked for: it exists even without a record.
                let footer = SegmentIndex::default().encode_footer(&grant.info, grant.begin);
                let segment = Segment::new(&grant, SegmentIndex::default());
                self.closing.push(Segment { closing: true, sealing: true, ..segment });
                self.ops.push_back(Op::Seal { segment: grant.info.number, footer, end: grant.begin });
            } else {
                self.ops.push_back(Op::Discard { segment: grant.info.number });
            }
        }
    }

    /// What time has made due: the flush bound, rotation, a sync, another try at a full disk.
    pub fn on_tick(&mut self, now: i64) {
        if let Some(slot) = self.filling
            && self.slots[slot].fill.records > 0
            && now - self.slots[slot].fill.begun >= self.settings.flush_ns
        {
            self.flush(now);
        }
        if let (Some(age), Some(begun)) = (self.settings.segment_ns, self.active.as_ref().and_then(|s| s.begun))
            && !self.settings.single
            && now - begun >= age
        {
            self.flush(now);
            self.rotate(now);
        }
        self.issue(now);
        self.settle(now);
    }

    /// When [`StoreWriter::on_tick`] has something to do at the latest; `None`: only completions can matter.
    pub fn deadline(&self) -> Option<i64> {
        let flush = self.filling.map(|slot| &self.slots[slot].fill).filter(|fill| fill.records > 0);
        let flush = flush.map(|fill| fill.begun + self.settings.flush_ns);
        let begun = self.active.as_ref().and_then(|segment| segment.begun);
        let rotate = self.settings.segment_ns.filter(|_| !self.settings.single);
        let rotate = rotate.and_then(|age| begun.map(|begun| begun + age));
        let sync = match self.settings.sync {
            SyncPolicy::Interval(interval) => {
                self.active.as_ref().and_then(|s| s.unsynced.filter(|_| s.sync.is_none())).map(|at| at + interval)
            }
            _ => None,
        };
        let retry = self.full_until.filter(|_| !self.sealed.is_empty());
        let seal =
            self.closing.iter().filter(|segment| !segment.sealing).filter_map(|segment| segment.seal_again).min();
        [flush, rotate, sync, retry, seal].into_iter().flatten().min()
    }

    /// No more records: seals the open block, then the segments. Go on with operations, completions and
    /// [`StoreWriter::compress_step`] until [`StoreWriter::is_closed`].
    pub fn close(&mut self, now: i64) {
        self.flush(now);
        if let Some(slot) = self.filling.take() {
            self.seal(slot);
        }
        self.closed = true;
        self.issue(now);
        self.settle(now);
    }

    /// Gives up what no write is out for (a full disk while closing): counted as lost by what it waits for. Blocks
    /// that are not packed yet wait for this side, not for the disk: they are left for the next call. A segment whose
    /// footer finds no space is left unsealed.
    pub fn give_up(&mut self, now: i64) {
        let cause = self.waiting_cause();
        while let Some(at) = self.sealed.pop_front_if(|at| self.slots[*at].packed) {
            let slot = &self.slots[at];
            if slot.state == SlotState::Retry && slot.reached >= slot.place.filled_bytes {
                self.written(at, now);
            } else {
                self.failed(at, if slot.state == SlotState::Retry { LostCause::NoSpace } else { cause });
            }
        }
        self.asked = false;
        self.given_up = true;
        let closing = self.closing.len();
        self.closing.retain(|segment| segment.sealing || segment.seal_again.is_none());
        self.counters.failed_seals += (closing - self.closing.len()) as u64;
        self.settle(now);
    }

    /// Whether everything has reached its end after [`StoreWriter::close`].
    pub fn is_closed(&self) -> bool {
        self.closed
            && self.sealed.is_empty()
            && self.active.is_none()
            && self.closing.is_empty()
            && self.ops.is_empty()
            && self.next.is_none()
            && !(self.settings.single && self.asked)
    }

    /// Counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What was lost.
    pub fn losses(&self) -> &LossLog {
        &self.losses
    }

    /// Messages and raw frames in blocks that are neither written nor lost, counted block by block.
    pub fn in_flight_data(&self) -> u64 {
        let out = self.slots.iter().filter(|slot| slot.state != SlotState::Free);
        out.map(|slot| u64::from(slot.fill.data_records)).sum()
    }

    /// Each stream's (stored, lost, in flight) data records, by stream number; `out` has one place per number in use.
    pub fn stream_books(&self, out: &mut [[u64; 3]]) {
        for (place, book) in out.iter_mut().enumerate() {
            let stored = self.streams.get(place).and_then(Option::as_ref).map_or(0, |stream| stream.stored);
            *book = [stored, self.losses.stream_data_records(StreamId(place as u32)), 0];
        }
        for slot in self.slots.iter().filter(|slot| slot.state != SlotState::Free) {
            for range in slot.fill.ranges.iter().filter(|range| range.class != RangeClass::Mark) {
                let stream = slot.fill.locals[usize::from(range.local)].stream;
                if let Some(book) = out.get_mut(stream.0 as usize) {
                    book[2] += u64::from(range.count);
                }
            }
        }
    }

    /// The blocks' memory, to be registered where they are written from.
    pub fn buffers(&self) -> impl Iterator<Item = &B> {
        self.slots.iter().map(|slot| &slot.buffer)
    }

    /// Every record with a lower arrival index is durable or counted as lost. Stands still for good after a failed
    /// sync, or a seal that failed for another reason than a full disk.
    pub fn durable_arrival(&self) -> u64 {
        if let Some(stop) = self.durable_stop {
            return stop;
        }
        let filling = self.filling.map(|slot| self.slots[slot].fill.arrival_first);
        self.orders.front().map(|order| order.arrival_first).or(filling).unwrap_or(self.arrival_next)
    }

    /// Arrival index of the next record.
    pub fn arrival_next(&self) -> u64 {
        self.arrival_next
    }

    /// Whether the disk is known to be full.
    pub fn is_full(&self) -> bool {
        self.no_space
    }

    /// As [`StoreWriter::is_full`], but steady: a write into the space that the segment in use has reserved says nothing of
    /// the next segment's.
    pub fn is_short_of_space(&self) -> bool {
        self.no_space || self.segment_no_space
    }

    /// Blocks of the pool.
    pub fn blocks(&self) -> usize {
        self.slots.len()
    }

    /// Free blocks of the pool.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Whether a sealed block waits for [`StoreWriter::compress_step`].
    pub fn wants_compress(&self) -> bool {
        self.sealed.iter().any(|&at| !self.slots[at].packed)
    }

    /// Number of the segment that new blocks go to.
    pub fn active_segment(&self) -> Option<u64> {
        self.active.as_ref().map(|segment| segment.info.number)
    }

    /// The settings.
    pub fn settings(&self) -> &WriterSettings {
        &self.settings
    }

    /// The stamp source that a new segment's header should name.
    pub fn stamp_source(&self) -> StampSource {
        self.clock.stamp_source
    }
}

fn slot_header<B>(slot: &Slot<B>, info: &SegmentInfo, block_index: u32, end: usize) -> BlockHeader {
    let fill = &slot.fill;
    let (time_min, time_max) = fill.times();
    BlockHeader {
        kind: BlockKind::Records,
        codec: slot.codec,
        stamp_source: fill.clock.stamp_source,
        clock_epoch: fill.clock.epoch,
        tai_offset_s: fill.clock.tai_offset_s,
        uuid: info.uuid,
        segment_number: info.number,
        block_index,
        record_count: fill.records,
        records_bytes: slot.stored_bytes as u32,
        records_raw_bytes: fill.records_bytes() as u32,
        index_bytes: (end - HEADER_BYTES - slot.stored_bytes) as u32,
        chunk_count: fill.chunks.len() as u16,
        stream_count: fill.locals.len() as u16,
        range_count: fill.ranges.len() as u32,
        arrival_first: fill.arrival_first,
        arrival_last: fill.arrival_first + u64::from(fill.records) - 1,
        time_min,
        time_max,
    }
}

fn sync_due(policy: SyncPolicy, unsynced: Option<i64>, now: i64) -> bool {
    match (policy, unsynced) {
        (SyncPolicy::EveryBlock, Some(_)) => true,
        (SyncPolicy::Interval(interval), Some(at)) => now - at >= interval,
        _ => false,
    }
}

/// Counts the data of a block that will not be written, with exact ranges: from its range table where that is
/// contiguous, else from the records.
fn lose_data<B: BlockBuffer>(losses: &mut LossLog, cause: LostCause, slot: &Slot<B>) {
    let fill = &slot.fill;
    let data = fill.ranges.iter().filter(|range| range.class != RangeClass::Mark);
    if data.clone().all(|range| range.max - range.min + 1 == u64::from(range.count)) {
        for range in data {
            losses.data(cause, fill.locals[usize::from(range.local)].stream, range.min, range.max);
        }
        return;
    }
    let stored = &slot.buffer[HEADER_BYTES..HEADER_BYTES + slot.stored_bytes];
    let unpacked;
    let records = match slot.codec {
        Codec::None => stored,
        Codec::Zstd => {
            unpacked = zstd::bulk::decompress(stored, fill.records_bytes()).expect("we packed it");
            &unpacked
        }
    };
    for record in Records::new(records) {
        let (header, _) = record.expect("we wrote it");
        if header.kind.is_data() {
            let stream = fill.locals[usize::from(header.local)].stream;
            losses.data(cause, stream, header.sequence, header.sequence);
        }
    }
}

/// A segment's index with room for its blocks when they are full, so that only a segment's beginning allocates; each
/// has data, late fills and marks of one stream in the usual case. What partial flushes need beyond that grows.
fn reserved_index(settings: &WriterSettings) -> SegmentIndex {
    let blocks = (settings.segment_bytes / settings.block_bytes as u64 + 1).min(INDEX_BLOCKS_RESERVED_MAX) as usize;
    SegmentIndex {
        streams: Vec::with_capacity(BLOCK_STREAMS_MAX),
        blocks: Vec::with_capacity(blocks),
        ranges: Vec::with_capacity(3 * blocks),
    }
}

/// Takes blocks whose write failed out of the index before it becomes a footer.
fn drop_dead(segment: &mut Segment) {
    if segment.dead.is_empty() {
        return;
    }
    let dead = |ordinal: u32| segment.dead.contains(&ordinal);
    let mut index = SegmentIndex { streams: std::mem::take(&mut segment.index.streams), ..SegmentIndex::default() };
    let mut place = vec![u32::MAX; segment.index.blocks.len()];
    for (ordinal, block) in segment.index.blocks.iter().enumerate() {
        if !dead(ordinal as u32) {
            place[ordinal] = index.blocks.len() as u32;
            index.blocks.push(*block);
        }
    }
    for range in &segment.index.ranges {
        if place[range.block as usize] != u32::MAX {
            index.ranges.push(SegmentRange { block: place[range.block as usize], ..*range });
        }
    }
    segment.index = index;
    segment.dead.clear();
}
