//! The store worker: takes frames and events from the arbiters, copies them into blocks, writes the blocks through
//! the core's io_uring. A token never stays: it is copied and sent home in the turn that took it.

use std::fs::File;
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::files::{Files, FilesReport, FilesRequest};
use super::plan::{StoreDesk, StoreParts, raw_stream, store_stream};
use super::{
    ClockState, FLAG_LATE_FILL, Fault, LostCause, NO_TIME, Op, RecordKind, RecordMeta, StampSource, StoreError,
    StoreWriter, WriterSettings,
};
use super::{raw_key, stream_key};
use crate::feed::handoff::{Copied, CopiedRecords, Handoff, MessageSpan};
use crate::runtime::link::LinkReceiver;
use crate::runtime::worker::{Turn, Worker};
use crate::sync::counters::{CounterIndex, CounterWriter};
use crate::sys::clock;
use crate::sys::file::AlignedBuffer;
use crate::sys::frames::FrameToken;
use crate::units::{SIDES_MAX, Side, StreamId};

/// Items taken from each link per turn.
const BATCH_ITEMS: usize = 128;
/// Free blocks that an item of a file may need at most: the longest datagram as messages and as raw bytes (64 KiB each)
/// behind a block that is nearly full.
const FREE_BLOCKS_FOR_FILES: usize = 2;
/// Completion tags: writes carry their block; syncs carry this bit and the segment's number.
const SYNC_TAG: u64 = 1 << 40;
/// Lines kept of what the files' thread says.
const TOLD_MAX: usize = 64;
/// How often the clock's state is read: TAI − UTC changes at most twice a year, a step can come at any time.
const CLOCK_EVERY_NS: i64 = 1_000_000_000;
/// How long a full disk may hold up the stop; then what no write is out for is counted as lost for want of space.
const GIVE_UP_NS: i64 = 3_000_000_000;
/// How often counters and loss ranges are published while records flow.
const PUBLISH_EVERY_NS: i64 = 20_000_000;
/// How long there must be room for a store to count as not full any more: a full disk that gets a little room again and
/// again (a log that is rotated, another store's retention) is one event, not one in each try.
const ROOM_AGAIN_NS: i64 = 1_000_000_000;

/// A store's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreCounter {
    /// Messages and raw frames offered.
    Appended,
    /// In completed writes.
    Stored,
    /// In blocks under way.
    InFlight,
    /// Bytes of completed writes.
    WrittenBytes,
    /// Blocks of completed writes.
    WrittenBlocks,
    /// Blocks given up.
    FailedBlocks,
    /// Writes tried again.
    Retried,
    /// Syncs.
    Syncs,
    /// Failed syncs.
    FailedSyncs,
    /// Sealed segments.
    Sealed,
    /// Failed seals.
    FailedSeals,
    /// Free blocks.
    FreeBlocks,
    /// 1 while the file system is known to be full.
    Full,
    /// Times that it became full.
    FullTimes,
    /// Segments that could not be made: tries, not segments.
    FailedSegments,
    /// The durable watermark (arrival index).
    Durable,
    /// Arrival index of the next record.
    Next,
    /// Marks of streams (gaps, beginnings, ends) in completed writes.
    StoredMarks,
    /// Marks that could not be stored.
    LostMarks,
    /// Messages and raw frames that were lost, by cause.
    Lost(LostCause),
}

impl CounterIndex for StoreCounter {
    const COUNT: usize = 19 + LostCause::ALL.len();

    fn index(self) -> usize {
        match self {
            StoreCounter::Appended => 0,
            StoreCounter::Stored => 1,
            StoreCounter::InFlight => 2,
            StoreCounter::WrittenBytes => 3,
            StoreCounter::WrittenBlocks => 4,
            StoreCounter::FailedBlocks => 5,
            StoreCounter::Retried => 6,
            StoreCounter::Syncs => 7,
            StoreCounter::FailedSyncs => 8,
            StoreCounter::Sealed => 9,
            StoreCounter::FailedSeals => 10,
            StoreCounter::FreeBlocks => 11,
            StoreCounter::Full => 12,
            StoreCounter::Durable => 13,
            StoreCounter::Next => 14,
            StoreCounter::FullTimes => 15,
            StoreCounter::FailedSegments => 16,
            StoreCounter::StoredMarks => 17,
            StoreCounter::LostMarks => 18,
            StoreCounter::Lost(cause) => 19 + cause as usize,
        }
    }
}

/// One stream's books: taken, stored, lost, in flight. Written by the worker, read by the control thread.
#[derive(Debug, Default)]
pub struct StreamCell([AtomicU64; 4]);

impl StreamCell {
    fn write(&self, values: [u64; 4]) {
        for (cell, value) in self.0.iter().zip(values) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// (taken, stored, lost, in flight).
    pub fn read(&self) -> [u64; 4] {
        std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed))
    }
}

/// The books of every stream, by the store's number.
pub type StreamBooks = Arc<[StreamCell]>;

/// The keys of the streams that have begun.
#[derive(Debug, Default)]
pub struct StreamNames(pub Vec<(StreamId, String)>);

/// Segments that cannot be made, and whether the disk is full: each change is one line in the log, whatever is tried between.
#[derive(Debug, Default)]
struct Shortage {
    /// Tries that failed, and when the row of them that is not over began.
    failed: u64,
    row: Option<(u64, i64)>,
    /// The last failure, for the log.
    error: String,
    /// The disk is full, since then; how often it became so.
    full_since: Option<i64>,
    full_times: u64,
    /// When it was last seen to be.
    full_seen: i64,
}

impl Shortage {
    fn failed(&mut self, error: String, now: i64) {
        self.failed += 1;
        self.error = error;
        self.row.get_or_insert((self.failed - 1, now));
    }

    /// A segment was made: (tries that had failed, for how long).
    fn made(&mut self, now: i64) -> Option<(u64, i64)> {
        self.row.take().map(|(before, since)| (self.failed - before, now - since))
    }

    /// Looks at the disk's state; `Some` when the steady state changes: full, or room again after so many ns.
    fn look(&mut self, short: bool, now: i64) -> Option<Result<(), i64>> {
        if short {
            self.full_seen = now;
            self.full_times += u64::from(self.full_since.is_none());
            let before = self.full_since.replace(self.full_since.unwrap_or(now));
            return before.is_none().then_some(Ok(()));
        }
        let since = self.full_since.filter(|_| now - self.full_seen >= ROOM_AGAIN_NS)?;
        self.full_since = None;
        Some(Err(self.full_seen - since))
    }
}

struct OpenSegment {
    number: u64,
    file: Arc<File>,
}

/// The store worker.
pub struct StoreWorker {
    name: String,
    parts: StoreParts,
    writer: StoreWriter<AlignedBuffer>,
    files: Files,
    segments: Vec<OpenSegment>,
    counters: CounterWriter<StoreCounter>,
    books: StreamBooks,
    taken: Vec<u64>,
    scratch: Vec<[u64; 3]>,
    own_names: Vec<(StreamId, String)>,
    names_told: usize,
    own_told: Vec<String>,
    names: Arc<Mutex<StreamNames>>,
    desk: Arc<Mutex<StoreDesk>>,
    /// Next sequence of each (feed, side)'s raw frames; 0: not begun.
    raw_next: Vec<[u64; SIDES_MAX]>,
    registered: bool,
    lost_told: u64,
    publish_at: i64,
    steps: clock::StepWatch,
    clock_at: i64,
    shortage: Shortage,
    stopped: bool,
    closing: bool,
    give_up_at: i64,
    closed: bool,
}

impl StoreWorker {
    /// The worker over an opened directory.
    ///
    /// # Errors
    /// When the block pool cannot be had.
    pub fn new(
        parts: StoreParts,
        settings: WriterSettings,
        files: Files,
        counters: CounterWriter<StoreCounter>,
        books: StreamBooks,
        names: Arc<Mutex<StreamNames>>,
        desk: Arc<Mutex<StoreDesk>>,
    ) -> Result<StoreWorker, StoreError> {
        let blocks = parts.settings.blocks_in_flight as usize;
        let pool = AlignedBuffer::pool(blocks, settings.block_bytes)
            .map_err(|source| StoreError::io("make the block pool for", &parts.settings.path, source))?;
        Ok(StoreWorker {
            name: format!("store {}", parts.settings.name),
            writer: StoreWriter::new(settings, pool),
            files,
            segments: Vec::new(),
            counters,
            taken: vec![0; books.len()],
            scratch: vec![[0; 3]; books.len()],
            books,
            own_names: Vec::with_capacity(16),
            names_told: 0,
            own_told: Vec::new(),
            names,
            desk,
            raw_next: vec![[0; SIDES_MAX]; parts.feeds.len()],
            registered: false,
            lost_told: 0,
            publish_at: 0,
            steps: clock::StepWatch::default(),
            clock_at: 0,
            shortage: Shortage::default(),
            stopped: false,
            closing: false,
            give_up_at: i64::MAX,
            closed: false,
            parts,
        })
    }

    fn take(&mut self, feed: usize, item: Handoff<FrameToken>, now: i64) {
        match item {
            Handoff::Frame { token, side, messages, raw } => {
                if let Some(span) = messages {
                    self.messages(feed, &token, side, &span, now);
                }
                if raw {
                    self.raw(feed, &token, side, now);
                }
                self.release(token);
            }
            Handoff::StreamBegin { stream, key, run, base } => {
                let stream = store_stream(feed, self.parts.streams_max, stream);
                // Runs count from 0 in each process: in the store they go on from what it holds of the session.
                let text = stream_key(&key, self.files.known_runs().next_run(&key) + run);
                self.writer.stream_begin(stream, &text);
                self.own_names.push((stream, text));
                self.mark(RecordKind::StreamBegin, stream, base, &[], now);
            }
            Handoff::StreamEnd { stream } => {
                let stream = store_stream(feed, self.parts.streams_max, stream);
                self.mark(RecordKind::StreamEnd, stream, 0, &[], now);
            }
            Handoff::Copies { token, .. } => {
                self.copies(feed, &token, now);
                self.release(token);
            }
        }
    }

    /// A file can wait for a slow disk; nothing is lost to it. (A full disk is not waited for: it may stay full.)
    fn file_waits(&self) -> bool {
        self.parts.stamp_source == StampSource::File
            && self.writer.free_blocks() < FREE_BLOCKS_FOR_FILES
            && !self.writer.is_full()
    }

    fn mark(&mut self, kind: RecordKind, stream: StreamId, sequence: u64, body: &[u8], now: i64) {
        let meta = RecordMeta {
            kind,
            side: Side::A,
            flags: 0,
            stream,
            sequence,
            capture_ns: clock::utc_ns(),
            send_ns: NO_TIME,
        };
        // What finds no room is counted by the writer.
        let _ = self.writer.append(&meta, body, now);
    }

    fn messages(&mut self, feed: usize, token: &FrameToken, side: Side, span: &MessageSpan, now: i64) {
        let stream = store_stream(feed, self.parts.streams_max, span.stream);
        let packet = self.parts.areas.packet(token);
        let block = &packet[span.offset as usize..(span.offset + span.bytes) as usize];
        let meta = RecordMeta {
            kind: RecordKind::Message,
            side,
            flags: if span.late_fill { FLAG_LATE_FILL } else { 0 },
            stream,
            sequence: span.first,
            capture_ns: token.capture_ns,
            send_ns: span.send_ns.unwrap_or(NO_TIME),
        };
        self.taken[stream.0 as usize] += u64::from(span.count);
        let _ = self.writer.append_run(&meta, span.count, span.framing, block, now);
    }

    /// Records that the arbiter copied. Their order is the machine's.
    fn copies(&mut self, feed: usize, token: &FrameToken, now: i64) {
        let streams_max = self.parts.streams_max;
        for record in CopiedRecords(self.parts.areas.packet(token)) {
            let stream = store_stream(feed, streams_max, record.stream);
            let blank = RecordMeta {
                kind: RecordKind::Message,
                side: Side::A,
                flags: 0,
                stream,
                sequence: record.sequence,
                capture_ns: 0,
                send_ns: NO_TIME,
            };
            let _ = match record.kind {
                Copied::Message { side, capture_ns, send_ns, late_fill, body } => {
                    self.taken[stream.0 as usize] += 1;
                    let flags = if late_fill { FLAG_LATE_FILL } else { 0 };
                    let meta = RecordMeta { side, flags, capture_ns, send_ns: send_ns.unwrap_or(NO_TIME), ..blank };
                    self.writer.append(&meta, body, now)
                }
                Copied::Gap { last, capture_ns } => {
                    let meta = RecordMeta { kind: RecordKind::Gap, capture_ns, ..blank };
                    self.writer.append(&meta, &last.to_le_bytes(), now)
                }
            };
        }
    }

    fn raw(&mut self, feed: usize, token: &FrameToken, side: Side, now: i64) {
        let stream = raw_stream(feed, self.parts.streams_max, side);
        let next = &mut self.raw_next[feed][side.index()];
        if *next == 0 {
            let key = raw_key(&self.parts.feeds[feed], side);
            *next = self.files.known_runs().next_raw(&key);
            self.writer.stream_begin(stream, &key);
            self.own_names.push((stream, key));
        }
        let meta = RecordMeta {
            kind: RecordKind::Raw,
            side,
            flags: 0,
            stream,
            sequence: *next,
            capture_ns: token.capture_ns,
            send_ns: NO_TIME,
        };
        *next += 1;
        self.taken[stream.0 as usize] += 1;
        let _ = self.writer.append(&meta, self.parts.areas.packet(token), now);
    }

    /// A token's way home. The link is as large as the area has frames, so it cannot be full.
    fn release(&mut self, token: FrameToken) {
        let link = self.parts.returns[usize::from(token.area.0)].as_mut().expect("a frame of a feed of this store");
        assert!(link.push(token).is_ok(), "a return link as large as its area was full");
    }

    fn reports(&mut self, now: i64) -> usize {
        let mut count = 0;
        while let Some(report) = self.files.try_report() {
            count += 1;
            self.report(report, now);
        }
        count
    }

    fn report(&mut self, report: FilesReport, now: i64) {
        match report {
            FilesReport::Ready { grant, file, direct, preallocated, path } => {
                tracing::info!(store = self.parts.settings.name, segment = %path.display(), direct, preallocated, "segment");
                if let Some((tries, ns)) = self.shortage.made(now) {
                    let seconds = ns / 1_000_000_000;
                    tracing::info!(store = self.parts.settings.name, tries, seconds, "segments can be made again");
                }
                self.segments.push(OpenSegment { number: grant.info.number, file });
                self.writer.segment_ready(grant, now);
            }
            FilesReport::Failed { fault, error } => {
                let first = self.shortage.row.is_none();
                if first && fault != Fault::NoSpace {
                    tracing::error!(
                        store = self.parts.settings.name,
                        error,
                        "no segment: it is tried again 5 times a second"
                    );
                }
                self.shortage.failed(error, now);
                self.writer.segment_failed(fault);
                self.look_at_space(now);
            }
            FilesReport::Sealed { segment, result, told } => {
                tracing::info!(store = self.parts.settings.name, segment = told, ok = result.is_ok(), "sealed");
                self.writer.on_sealed(segment, result, now);
                self.segments.retain(|open| open.number != segment);
            }
            FilesReport::Removed(removed) => {
                for removed in removed {
                    self.tell(format!(
                        "removed {} ({} bytes, bound: {})",
                        removed.path.display(),
                        removed.disk_bytes,
                        removed.bound
                    ));
                }
            }
            FilesReport::Recovered { path, records, damage } => {
                let torn: Vec<String> = damage.iter().map(|damage| damage.to_string()).collect();
                self.tell(format!(
                    "recovered {}: {records} records; {}",
                    path.display(),
                    if torn.is_empty() { "nothing torn".into() } else { torn.join("; ") }
                ));
            }
            FilesReport::Trouble(what) => self.tell(what),
        }
    }

    /// One line when the disk is full, one when it is not any more.
    fn look_at_space(&mut self, now: i64) {
        let store = &self.parts.settings.name;
        let lost = self.writer.losses().count(LostCause::NoSpace).data_records;
        match self.shortage.look(self.writer.is_short_of_space(), now) {
            Some(Ok(())) => {
                let error = &self.shortage.error;
                tracing::error!(
                    store,
                    error,
                    lost,
                    "no segment: the file system is full, and is tried 5 times a second"
                );
            }
            Some(Err(ns)) => {
                let (seconds, tries) = (ns / 1_000_000_000, self.shortage.failed);
                tracing::warn!(store, seconds, tries, lost, "the file system has room again");
            }
            None => {}
        }
    }

    fn tell(&mut self, line: String) {
        tracing::warn!(store = self.parts.settings.name, "{line}");
        self.own_told.push(line);
    }

    /// Carries out what the writer wants.
    fn operations(&mut self, turn: &mut Turn<'_>) {
        while let Some(op) = self.writer.next_op() {
            match op {
                Op::NextSegment => self.files.ask(FilesRequest::Next(self.writer.stamp_source())),
                Op::Seal { segment, footer, end } => self.files.ask(FilesRequest::Seal { segment, footer, end }),
                Op::Discard { segment } => {
                    self.segments.retain(|open| open.number != segment);
                    self.files.ask(FilesRequest::Discard(segment));
                }
                Op::Write { segment, slot, buffer_offset, bytes, file_offset } => {
                    let user_data = turn.user_data(slot as u64);
                    let file = self.file(segment);
                    let result =
                        turn.ring.write_fixed(file.as_fd(), slot, buffer_offset, bytes, file_offset, user_data);
                    if let Err(error) = result {
                        turn.fail(format!("io_uring write: {error}"));
                    }
                }
                Op::Sync { segment } => {
                    let user_data = turn.user_data(SYNC_TAG | segment);
                    let file = self.file(segment);
                    if let Err(error) = turn.ring.sync_data(file.as_fd(), user_data) {
                        turn.fail(format!("io_uring fdatasync: {error}"));
                    }
                }
            }
        }
    }

    fn file(&self, segment: u64) -> Arc<File> {
        let open = self.segments.iter().find(|open| open.number == segment);
        open.expect("the writer writes to segments that it was granted").file.clone()
    }

    /// Makes counters, books and loss ranges visible.
    fn publish(&mut self, now: i64) {
        self.look_at_space(now);
        let counts = self.writer.counters();
        let counters = &mut self.counters;
        counters.set(StoreCounter::Appended, counts.appended_data);
        counters.set(StoreCounter::Stored, counts.stored_data);
        counters.set(StoreCounter::InFlight, self.writer.in_flight_data());
        counters.set(StoreCounter::WrittenBytes, counts.written_bytes);
        counters.set(StoreCounter::WrittenBlocks, counts.written_blocks);
        counters.set(StoreCounter::FailedBlocks, counts.failed_blocks);
        counters.set(StoreCounter::Retried, counts.retried_writes);
        counters.set(StoreCounter::Syncs, counts.syncs);
        counters.set(StoreCounter::FailedSyncs, counts.failed_syncs);
        counters.set(StoreCounter::Sealed, counts.sealed_segments);
        counters.set(StoreCounter::FailedSeals, counts.failed_seals);
        counters.set(StoreCounter::FreeBlocks, self.writer.free_blocks() as u64);
        counters.set(StoreCounter::Full, u64::from(self.shortage.full_since.is_some()));
        counters.set(StoreCounter::FullTimes, self.shortage.full_times);
        counters.set(StoreCounter::FailedSegments, self.shortage.failed);
        counters.set(StoreCounter::Durable, self.writer.durable_arrival());
        counters.set(StoreCounter::Next, self.writer.arrival_next());
        counters.set(StoreCounter::StoredMarks, counts.stored_marks);
        counters.set(StoreCounter::LostMarks, self.writer.losses().mark_records());
        for cause in LostCause::ALL {
            counters.set(StoreCounter::Lost(cause), self.writer.losses().count(cause).data_records);
        }
        self.writer.stream_books(&mut self.scratch);
        for ((cell, &taken), &[stored, lost, in_flight]) in self.books.iter().zip(&self.taken).zip(&self.scratch) {
            if taken > 0 {
                cell.write([taken, stored, lost, in_flight]);
            }
        }
        self.publish_words();
    }

    /// Names, words and loss ranges for the control thread. It never waits for its reader: what finds the desk taken
    /// goes there the next time. One lock at a time.
    /// False when something had to stay for the next time.
    fn publish_words(&mut self) -> bool {
        if self.names_told < self.own_names.len() {
            let Ok(mut names) = self.names.try_lock() else { return false };
            names.0.extend_from_slice(&self.own_names[self.names_told..]);
            self.names_told = self.own_names.len();
        }
        let losses = self.writer.losses();
        let (lost, told) = (losses.data_records(), self.own_told.len());
        if lost == self.lost_told && told == 0 {
            return true;
        }
        let Ok(mut desk) = self.desk.try_lock() else { return false };
        let name = |stream: StreamId| {
            let known = self.own_names.iter().find(|(id, _)| *id == stream);
            known.map_or_else(|| format!("stream {}", stream.0), |(_, key)| key.clone())
        };
        if lost != self.lost_told {
            self.lost_told = lost;
            // A stream's range under way may stand anywhere in the list, so all are written again.
            desk.losses.clear();
            let ranges = losses.ranges().iter();
            desk.losses.extend(ranges.map(|r| (name(r.stream), r.cause.label(), r.first, r.last)));
            desk.losses_truncated = losses.truncated();
        }
        desk.told.append(&mut self.own_told);
        let surplus = desk.told.len().saturating_sub(TOLD_MAX);
        desk.told.drain(..surplus);
        true
    }

    /// Tells the writer the clock that stamps are made with: a change begins a new block.
    fn look_at_clock(&mut self, now: i64) {
        if now < self.clock_at {
            return;
        }
        self.clock_at = now + CLOCK_EVERY_NS;
        let tai_offset_s = clock::tai_offset_seconds();
        let state = ClockState {
            stamp_source: self.parts.stamp_source,
            epoch: self.steps.look(),
            tai_offset_s: tai_offset_s.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16,
        };
        self.writer.set_clock(state, now);
    }

    fn close_if_stopped(&mut self, now: i64) {
        if self.stopped && !self.closing && self.parts.inputs.iter().all(LinkReceiver::is_empty) {
            self.closing = true;
            self.give_up_at = now + GIVE_UP_NS;
            self.writer.close(now);
        }
        if self.closing && !self.closed && now >= self.give_up_at {
            self.writer.give_up(now);
        }
        if self.closing && !self.closed && self.writer.is_closed() {
            self.publish(now);
            // The last words must arrive: with the reader at the desk, the next turn tries again.
            self.closed = self.publish_words();
        }
    }
}

impl Worker for StoreWorker {
    fn name(&self) -> &str {
        &self.name
    }

    fn stage(&self) -> u8 {
        2
    }

    fn start(&mut self, turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        turn.ring.register_blocks(self.writer.buffers()).map_err(|error| {
            format!("registering {} blocks with io_uring: {error}; raise the memlock limit, or give each store a core of its own", self.parts.settings.blocks_in_flight)
        })?;
        self.registered = true;
        Ok(Vec::new())
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        self.look_at_clock(turn.now);
        let mut work = self.reports(turn.now);
        for feed in 0..self.parts.inputs.len() {
            for _ in 0..BATCH_ITEMS {
                if self.file_waits() {
                    break;
                }
                let Some(item) = self.parts.inputs[feed].pop() else { break };
                self.take(feed, item, turn.now);
                work += 1;
            }
        }
        if self.writer.deadline().is_some_and(|deadline| deadline <= turn.now) {
            self.writer.on_tick(turn.now);
        }
        if self.writer.compress_step(turn.now) {
            work += 1;
        }
        self.close_if_stopped(turn.now);
        self.operations(turn);
        if work > 0 {
            for link in self.parts.returns.iter_mut().flatten() {
                link.flush();
            }
        }
        if turn.now >= self.publish_at {
            self.publish_at = turn.now + PUBLISH_EVERY_NS;
            self.publish(turn.now);
        }
        work
    }

    fn complete(&mut self, turn: &mut Turn<'_>, tag: u64, result: i32) {
        let fault = (result < 0).then(|| Fault::from_errno(-result));
        if tag & SYNC_TAG != 0 {
            self.writer.on_sync(tag & !SYNC_TAG, fault.map_or(Ok(()), Err), turn.now);
        } else {
            self.writer.on_write(tag as usize, fault.map_or(Ok(result as usize), Err), turn.now);
            // At once, not with the rest: who paces a source by the store needs it fresh.
            self.counters.set(StoreCounter::Stored, self.writer.counters().stored_data);
        }
        self.operations(turn);
    }

    fn deadline(&self) -> Option<i64> {
        let give_up = (self.closing && !self.closed).then_some(self.give_up_at);
        self.writer.deadline().into_iter().chain(give_up).min()
    }

    fn stop(&mut self, _turn: &mut Turn<'_>) {
        self.stopped = true;
    }

    fn drained(&self) -> bool {
        self.closed
    }

    fn finish(&mut self) {
        self.files.stop();
        // What the files' thread did last: a short run recovers what a crash left only now.
        while let Some(report) = self.files.try_report() {
            match report {
                FilesReport::Recovered { .. } | FilesReport::Removed(_) | FilesReport::Trouble(_) => {
                    self.report(report, 0);
                }
                FilesReport::Ready { .. } | FilesReport::Failed { .. } | FilesReport::Sealed { .. } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_one_event_however_often_it_is_tried() {
        let mut shortage = Shortage::default();
        let (second, mut told) = (1_000_000_000, Vec::new());
        // Full from 10 s to 20 s but for a moment in each second, tried 5 times a second; then room.
        for fifth in 0..150_i64 {
            let now = fifth * second / 5;
            let short = (50..100).contains(&fifth) && fifth % 5 != 4;
            if short {
                shortage.failed("no space".into(), now);
            }
            told.extend(shortage.look(short, now).map(|event| (now / second, event)));
        }
        assert_eq!(told, [(10, Ok(())), (20, Err(9_600_000_000))]);
        assert_eq!((shortage.full_times, shortage.failed), (1, 40));
        assert_eq!(shortage.made(31 * second), Some((40, 21 * second)), "from the first failed try on");
        assert_eq!(shortage.made(31 * second), None);
    }
}
