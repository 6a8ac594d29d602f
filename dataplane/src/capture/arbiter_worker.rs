//! The arbiter worker: one feed. Takes frames from its queues, arbitrates, hands messages to the store.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::items::RxItem;
use super::queue_worker::parse_segment;
use super::stats::ArbiterCounter;
use crate::config::FeedProtocol;
use crate::feed::arbiter::{Arbiter, ArbiterReport, Arrival, Sink};
use crate::feed::handoff::{Copied, CopiedRecord, CopiedRecords, Handoff, MessageSpan};
use crate::feed::publish::{PublishedMessage, Publisher};
use crate::runtime::link::{LinkReceiver, LinkSender};
use crate::runtime::worker::{Turn, Worker};
use crate::sync::counters::CounterWriter;
use crate::sys::clock;
use crate::sys::frames::{Areas, FramePool, FrameToken};
use crate::units::{AreaId, Side, StreamId};
use crate::wire::segment::{Messages, SegmentKind, SessionKey};
use crate::wire::{iextp, moldudp64};

/// Items taken from each link per turn: as many as a queue worker passes on per turn.
const BATCH_ITEMS: usize = 64;
/// Bytes of a copy frame: the longest message fits with its header, and a window's worth of short ones shares few
/// frames.
pub const COPY_FRAME_BYTES: u32 = crate::config::COPY_FRAME_BYTES;
/// How soon an arbiter of files looks again for room behind it: short against the time in which a link empties, long
/// against the cost of a wake-up.
const ROOM_AGAIN_NS: i64 = 1_000_000;
/// How often it is told which sides are live.
const SIDES_EVERY_NS: i64 = 20_000_000;
/// How often the report is built at most while somebody asks for it: it allocates, and takes time with every gap.
const REPORT_EVERY_NS: i64 = 50_000_000;

/// What the control thread asks of an arbiter: its report, built on the arbiter's own core when asked.
#[derive(Default)]
pub struct ReportDesk {
    wanted: AtomicBool,
    /// Counts reports; the last one is final.
    generation: AtomicU64,
    done: AtomicBool,
    report: Mutex<Option<Arc<ArbiterReport>>>,
}

/// How long the control thread waits for a fresh report: a parked core looks up at least every 50 ms.
const REPORT_WAIT_NS: i64 = 200_000_000;
/// Between two looks whether the report is there.
const REPORT_PAUSE: Duration = Duration::from_millis(1);

impl ReportDesk {
    /// Asks for a report and waits for it, within a bound; the newest there is, should the arbiter not answer in time.
    /// For control threads.
    pub fn read(&self) -> Option<Arc<ArbiterReport>> {
        Self::read_all(std::iter::once(self)).pop().flatten()
    }

    /// [`ReportDesk::read`] of several at once: all are asked before any is waited for, and the bound is one for all.
    pub fn read_all<'a>(desks: impl Iterator<Item = &'a ReportDesk>) -> Vec<Option<Arc<ArbiterReport>>> {
        let asked: Vec<(&ReportDesk, u64)> = desks.map(|desk| (desk, desk.ask())).collect();
        let end = clock::monotonic_ns() + REPORT_WAIT_NS;
        let waited = asked.into_iter().map(|(desk, before)| {
            while !desk.done.load(Ordering::Acquire)
                && desk.generation.load(Ordering::Acquire) == before
                && clock::monotonic_ns() < end
            {
                clock::sleep(REPORT_PAUSE);
            }
            desk.newest()
        });
        waited.collect()
    }

    /// Asks for a report; the generation that it will replace.
    fn ask(&self) -> u64 {
        let before = self.generation.load(Ordering::Acquire);
        self.wanted.store(true, Ordering::Release);
        before
    }

    /// The newest report there is, without asking for another.
    pub fn newest(&self) -> Option<Arc<ArbiterReport>> {
        self.report.lock().expect("nobody panics with it held").clone()
    }

    /// The arbiter's side. Never waits: with the reader at the desk the report is put there next time.
    fn put(&self, report: ArbiterReport) -> bool {
        let Ok(mut desk) = self.report.try_lock() else { return false };
        *desk = Some(Arc::new(report));
        self.generation.fetch_add(1, Ordering::Release);
        true
    }

    /// The last report.
    fn put_last(&self, report: ArbiterReport) {
        *self.report.lock().expect("nobody panics with it held") = Some(Arc::new(report));
        self.done.store(true, Ordering::Release);
    }
}

/// Where the feed's time comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeSource {
    /// The machine's monotonic clock.
    Live,
    /// The packets' stamps.
    Packets,
}

/// Everything an arbiter worker is made of.
pub struct ArbiterParts {
    /// Its name.
    pub name: String,
    /// The feed's protocol.
    pub protocol: FeedProtocol,
    /// The machine.
    pub arbiter: Arbiter,
    /// Where time comes from.
    pub time: TimeSource,
    /// Store the messages.
    pub merged: bool,
    /// Store the frames.
    pub raw: bool,
    /// One link per source.
    pub inputs: Vec<LinkReceiver<RxItem>>,
    /// The link to the store.
    pub store: Option<LinkSender<Handoff<FrameToken>>>,
    /// The way home of each area's frames that this worker is done with; `None` for areas that are not its own.
    pub returns: Vec<Option<LinkSender<FrameToken>>>,
    /// Frames' bytes.
    pub areas: Areas,
    /// The copy pool's area.
    pub copy_area: AreaId,
    /// Frames of the copy pool.
    pub copy_frames: u32,
    /// Copy frames that the store is done with.
    pub copy_returns: LinkReceiver<FrameToken>,
    /// Its counters.
    pub counters: CounterWriter<ArbiterCounter>,
    /// Reports for the control thread.
    pub desk: Arc<ReportDesk>,
    /// Exact ranges of what could not be handed to the store.
    pub losses: LinkSender<Loss>,
    /// Where the stream is published as it is emitted.
    pub publisher: Option<Box<dyn Publisher>>,
}

/// Messages or frames that could not be handed to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// The stream.
    pub stream: StreamId,
    /// Why: `link_full` or `copy_pool`.
    pub cause: &'static str,
    /// First sequence.
    pub first: u64,
    /// Last sequence.
    pub last: u64,
}

/// The arbiter worker.
pub struct ArbiterWorker {
    name: String,
    protocol: FeedProtocol,
    time: TimeSource,
    arbiter: Arbiter,
    areas: Areas,
    inputs: Vec<LinkReceiver<RxItem>>,
    outlet: Outlet,
    desk: Arc<ReportDesk>,
    report_at: i64,
    sides_at: i64,
    /// Capture stamps of the first and the last segment with messages; 0: none came yet.
    stamps_ns: (i64, i64),
    stopped: bool,
    /// Every side's input has ended and the machine has given out all that it held.
    ended: bool,
    finished: bool,
    packet_time: i64,
    /// When to look for room again (files).
    room_at: Option<i64>,
}

/// The sink: everything between the machine and the store link.
struct Outlet {
    merged: bool,
    raw: bool,
    store: Option<LinkSender<Handoff<FrameToken>>>,
    returns: Vec<Option<LinkSender<FrameToken>>>,
    pool: Option<FramePool>,
    copy_area: AreaId,
    copy_frames: u32,
    copy_returns: LinkReceiver<FrameToken>,
    counters: CounterWriter<ArbiterCounter>,
    losses: LinkSender<Loss>,
    /// Events that found the store link full. Nothing passes them: the store must know a stream before its messages.
    unsent: VecDeque<Handoff<FrameToken>>,
    /// The range under way of each stream that is losing.
    open_losses: Vec<Option<Loss>>,
    losing: bool,
    /// The feed's time where packets make it (files): when a gap is declared.
    packet_time: Option<i64>,
    /// Where the block of the arrival that is being processed lies in its packet.
    block_offset: u32,
    /// What the machine has emitted for this arrival, in order. It leaves when the machine has returned: until then
    /// the arrival's bytes are borrowed, so its token stays here.
    staged: Vec<Staged>,
    packing: Packing,
    /// Told of every emission at once, before anything is handed to the store: a slow disk never delays it.
    publisher: Option<Box<dyn Publisher>>,
}

/// One emission of the machine, staged. Its tag stands apart, as [`RxItem`]'s does.
#[repr(C, u64)]
enum Staged {
    /// Messages of the current arrival's own frame.
    Current(MessageSpan),
    /// A frame of copied records, so many messages among them.
    Copies(FrameToken, u32),
    /// An event.
    Event(Handoff<FrameToken>),
}

/// Emissions that one arrival can stage: the copy pool bounds the frames of copies, and streams begin and end rarely.
fn staged_max(copy_frames: u32) -> usize {
    copy_frames as usize + 64
}

/// Records that are being packed into one copy frame.
struct Packing {
    bytes: Vec<u8>,
    messages: u32,
}

impl ArbiterWorker {
    /// Assembles the worker.
    pub fn new(parts: ArbiterParts) -> ArbiterWorker {
        let outlet = Outlet {
            merged: parts.merged,
            raw: parts.raw,
            store: parts.store,
            returns: parts.returns,
            pool: None,
            copy_area: parts.copy_area,
            copy_frames: parts.copy_frames,
            copy_returns: parts.copy_returns,
            counters: parts.counters,
            losses: parts.losses,
            // A stream begins once and ends once.
            unsent: VecDeque::with_capacity(2 * parts.arbiter.settings().streams_max),
            open_losses: vec![None; parts.arbiter.settings().streams_max],
            losing: false,
            packet_time: None,
            block_offset: 0,
            staged: Vec::with_capacity(staged_max(parts.copy_frames)),
            packing: Packing { bytes: Vec::with_capacity(COPY_FRAME_BYTES as usize), messages: 0 },
            publisher: parts.publisher,
        };
        ArbiterWorker {
            name: parts.name,
            protocol: parts.protocol,
            time: parts.time,
            arbiter: parts.arbiter,
            areas: parts.areas,
            inputs: parts.inputs,
            outlet,
            desk: parts.desk,
            report_at: 0,
            sides_at: 0,
            stamps_ns: (0, 0),
            stopped: false,
            ended: false,
            finished: false,
            packet_time: 0,
            room_at: None,
        }
    }

    /// Not inlined: the item then lies in memory as a whole, and its fields are read from there; inlined into the loop it
    /// is moved three times in pieces that overlap, each waiting for the one before.
    #[inline(never)]
    fn on_item(&mut self, item: RxItem, now: i64) {
        match item {
            RxItem::Frame { token, payload_offset, payload_bytes, side, segment } => {
                if !segment {
                    return self.outlet.pass_raw(token, side);
                }
                let now = match self.time {
                    TimeSource::Live => now,
                    TimeSource::Packets => {
                        self.packet_time = self.packet_time.max(token.capture_ns);
                        self.outlet.packet_time = Some(self.packet_time);
                        self.packet_time
                    }
                };
                self.on_segment(token, payload_offset, payload_bytes, side, now);
            }
            RxItem::End { side } => {
                let now = if self.time == TimeSource::Live { now } else { self.packet_time };
                self.arbiter.end_side(side, now, &mut self.outlet);
                self.outlet.pass_on(&self.areas);
            }
        }
    }

    fn on_segment(&mut self, token: FrameToken, payload_offset: u32, payload_bytes: u32, side: Side, now: i64) {
        let packet = self.areas.packet(&token);
        let payload = &packet[payload_offset as usize..(payload_offset + payload_bytes) as usize];
        let Ok(segment) = parse_segment(self.protocol, payload) else {
            unreachable!("the source parsed these bytes");
        };
        self.outlet.counters.add(ArbiterCounter::Segments, 1);
        if segment.kind == SegmentKind::Data {
            self.outlet.counters.add(ArbiterCounter::Messages, u64::from(segment.count));
            self.stamps_ns =
                (if self.stamps_ns.0 == 0 { token.capture_ns } else { self.stamps_ns.0 }, token.capture_ns);
        }
        self.outlet.block_offset = payload_offset + header_bytes(self.protocol);
        let arrival = Arrival { side, capture_ns: token.capture_ns, segment };
        self.arbiter.on_segment(&arrival, now, &mut self.outlet);
        self.outlet.flush_packing();
        self.outlet.pass_staged(Some(token), side, &self.areas);
    }

    /// Takes a batch from one link. A file can wait, so its arbiter takes nothing for which there may be no room.
    fn take(&mut self, input: usize, now: i64) -> usize {
        for taken in 0..BATCH_ITEMS {
            if self.time == TimeSource::Packets && !self.outlet.has_room() {
                if !self.inputs[input].is_empty() {
                    self.room_at = Some(now + ROOM_AGAIN_NS);
                }
                return taken;
            }
            let Some(item) = self.inputs[input].pop() else { return taken };
            self.on_item(item, now);
        }
        BATCH_ITEMS
    }

    /// After the stop, when nothing more can come: the end of every side, and the last report.
    fn finish_if_drained(&mut self, now: i64) {
        if !self.stopped || self.finished || !self.inputs.iter().all(LinkReceiver::is_empty) {
            return;
        }
        if !self.ended {
            let now = if self.time == TimeSource::Live { now } else { self.packet_time };
            self.arbiter.finish(now, &mut self.outlet);
            self.outlet.pass_on(&self.areas);
            self.ended = true;
        }
        let sent = self.outlet.send_events();
        if let Some(store) = &mut self.outlet.store {
            store.flush();
        }
        if !sent {
            return;
        }
        self.outlet.close_loss();
        self.show_stamps();
        self.desk.put_last(self.arbiter.report());
        self.finished = true;
    }

    fn show_stamps(&mut self) {
        self.outlet.counters.set(ArbiterCounter::FirstStamp, self.stamps_ns.0 as u64);
        self.outlet.counters.set(ArbiterCounter::LastStamp, self.stamps_ns.1 as u64);
    }

    fn report_if_wanted(&mut self, now: i64) {
        if now < self.report_at || !self.desk.wanted.load(Ordering::Acquire) {
            return;
        }
        self.report_at = now + REPORT_EVERY_NS;
        self.desk.wanted.store(false, Ordering::Relaxed);
        if !self.desk.put(self.arbiter.report()) {
            self.desk.wanted.store(true, Ordering::Relaxed);
        }
    }
}

/// Bytes before a segment's block.
fn header_bytes(protocol: FeedProtocol) -> u32 {
    match protocol {
        FeedProtocol::IexTp => iextp::HEADER_BYTES as u32,
        FeedProtocol::MoldUdp64 => moldudp64::HEADER_BYTES as u32,
    }
}

impl Outlet {
    /// Passes on what the machine emitted without an arrival (a tick, an end).
    fn pass_on(&mut self, areas: &Areas) {
        self.flush_packing();
        self.pass_staged(None, Side::A, areas);
    }

    /// Passes on what the machine emitted, in its order; `token` is the arrival's own frame.
    fn pass_staged(&mut self, token: Option<FrameToken>, side: Side, areas: &Areas) {
        let mut token = token;
        let mut staged = std::mem::take(&mut self.staged);
        for emission in staged.drain(..) {
            match emission {
                Staged::Current(span) => {
                    let token = token.take().expect("the machine emits an arrival's last part once");
                    self.hand_over(token, side, span, self.raw);
                }
                Staged::Copies(token, messages) => self.hand_over_copies(token, messages, areas),
                Staged::Event(event) => self.event(event),
            }
        }
        self.staged = staged;
        if let Some(token) = token {
            self.pass_raw(token, side);
        }
    }

    /// Stages an emission. The vector has room for every emission of one arrival; a grown one would show in the
    /// allocation test.
    fn stage(&mut self, emission: Staged) {
        self.staged.push(emission);
    }

    fn take_home(&mut self) -> usize {
        let mut home = 0;
        let pool = self.pool.as_mut().expect("started");
        while let Some(token) = self.copy_returns.pop() {
            pool.give_back(token);
            home += 1;
        }
        self.counters.set(ArbiterCounter::CopyFramesHome, pool.free() as u64);
        home
    }

    /// A token's way home. The link is as large as the area has frames, so it cannot be full.
    fn release(&mut self, token: FrameToken) {
        let area = usize::from(token.area.0);
        if token.area == self.copy_area {
            return self.pool.as_mut().expect("started").give_back(token);
        }
        let link = self.returns[area].as_mut().expect("a frame of a source that feeds this arbiter");
        assert!(link.push(token).is_ok(), "a return link as large as its area was full");
    }

    /// A frame of which only the raw bytes are wanted, if they are.
    fn pass_raw(&mut self, token: FrameToken, side: Side) {
        if !self.raw {
            return self.release(token);
        }
        if self.store.is_none() {
            return self.release(token);
        }
        match self.push(Handoff::Frame { token, side, messages: None, raw: true }) {
            Ok(()) => self.counters.add(ArbiterCounter::HandedRaw, 1),
            Err(Handoff::Frame { token, .. }) => {
                self.counters.add(ArbiterCounter::LostRaw, 1);
                self.release(token);
            }
            Err(_) => unreachable!("a frame was pushed"),
        }
    }

    fn hand_over(&mut self, token: FrameToken, side: Side, span: MessageSpan, raw: bool) {
        if self.store.is_none() {
            self.counters.add(ArbiterCounter::NotStored, u64::from(span.count));
            return self.release(token);
        }
        if !self.merged {
            self.counters.add(ArbiterCounter::NotStored, u64::from(span.count));
            return if raw { self.pass_raw(token, side) } else { self.release(token) };
        }
        match self.push(Handoff::Frame { token, side, messages: Some(span), raw }) {
            Ok(()) => {
                self.counters.add(ArbiterCounter::Handed, u64::from(span.count));
                self.counters.add(ArbiterCounter::HandedRaw, u64::from(raw));
            }
            Err(Handoff::Frame { token, .. }) => {
                self.counters.add(ArbiterCounter::LostLinkFull, u64::from(span.count));
                self.counters.add(ArbiterCounter::LostRaw, u64::from(raw));
                self.lose(span.stream, "link_full", span.first, span.first + u64::from(span.count) - 1);
                self.release(token);
            }
            Err(_) => unreachable!("a frame was pushed"),
        }
    }

    /// An event for the store. It is never lost, or what follows it could not be read: without room it waits, and so
    /// does (is lost, as a link that is full loses) what comes behind it.
    fn event(&mut self, event: Handoff<FrameToken>) {
        if self.store.is_some() {
            self.unsent.push_back(event);
            self.send_events();
        }
    }

    /// Sends the events that wait; false when the link is full before they are all sent.
    fn send_events(&mut self) -> bool {
        let Some(store) = &mut self.store else { return true };
        while let Some(event) = self.unsent.pop_front() {
            if let Err(event) = store.push(event) {
                self.unsent.push_front(event);
                return false;
            }
        }
        true
    }

    /// Whether what one arrival usually sets free has room: half the store link and half the copy pool.
    fn has_room(&self) -> bool {
        let Some(store) = &self.store else { return true };
        let free = self.pool.as_ref().map_or(0, FramePool::free);
        2 * store.free() >= store.capacity() && 2 * free >= self.copy_frames as usize
    }

    /// Pushes an item behind the events that wait; gives it back when the link is full.
    #[inline]
    fn push(&mut self, item: Handoff<FrameToken>) -> Result<(), Handoff<FrameToken>> {
        if !self.unsent.is_empty() && !self.send_events() {
            return Err(item);
        }
        match &mut self.store {
            Some(store) => store.push(item),
            None => Err(item),
        }
    }

    fn lose(&mut self, stream: StreamId, cause: &'static str, first: u64, last: u64) {
        let open = &mut self.open_losses[stream.0 as usize];
        match open {
            Some(open) if open.cause == cause && open.last + 1 == first => open.last = last,
            open => {
                if let Some(closed) = open.replace(Loss { stream, cause, first, last }) {
                    // A range that finds no room is told as unlisted: the counters stay exact.
                    let _ = self.losses.push(closed);
                }
            }
        }
        self.losing = true;
    }

    /// Counts every record of a copy frame that goes nowhere.
    fn lose_records(&mut self, records: &[u8], cause: &'static str) {
        for record in CopiedRecords(records) {
            match record.kind {
                Copied::Message { .. } => self.lose(record.stream, cause, record.sequence, record.sequence),
                Copied::Gap { .. } => self.counters.add(ArbiterCounter::LostMarks, 1),
            }
        }
    }

    /// Tells the ranges under way.
    fn close_loss(&mut self) {
        if !std::mem::take(&mut self.losing) {
            return;
        }
        for loss in self.open_losses.iter_mut().filter_map(Option::take) {
            let _ = self.losses.push(loss);
        }
        self.losses.flush();
    }

    /// Copied records on their way to the store; what they are is read again only when they must be counted as lost.
    fn hand_over_copies(&mut self, token: FrameToken, messages: u32, areas: &Areas) {
        let wanted = self.store.is_some() && self.merged;
        if !wanted {
            self.counters.add(ArbiterCounter::NotStored, u64::from(messages));
            return self.release(token);
        }
        match self.push(Handoff::Copies { token, messages }) {
            Ok(()) => self.counters.add(ArbiterCounter::Handed, u64::from(messages)),
            Err(Handoff::Copies { token, .. }) => {
                self.counters.add(ArbiterCounter::LostLinkFull, u64::from(messages));
                self.lose_records(areas.packet(&token), "link_full");
                self.release(token);
            }
            Err(_) => unreachable!("copies were pushed"),
        }
    }

    /// Adds one record to the copy frame that is being packed.
    fn pack(&mut self, record: CopiedRecord<'_>) {
        if self.packing.bytes.len() + record.encoded_bytes() > COPY_FRAME_BYTES as usize {
            self.flush_packing();
        }
        self.packing.messages += u32::from(matches!(record.kind, Copied::Message { .. }));
        record.encode(&mut self.packing.bytes);
    }

    /// Stages what has been packed.
    fn flush_packing(&mut self) {
        if self.packing.bytes.is_empty() {
            return;
        }
        let messages = std::mem::take(&mut self.packing.messages);
        let pool = self.pool.as_mut().expect("started");
        match pool.take() {
            Some(mut filling) => {
                let bytes = self.packing.bytes.len();
                filling.bytes()[..bytes].copy_from_slice(&self.packing.bytes);
                self.staged.push(Staged::Copies(filling.into_token(bytes, 0), messages));
            }
            None => {
                self.counters.add(ArbiterCounter::LostCopyPool, u64::from(messages));
                let bytes = std::mem::take(&mut self.packing.bytes);
                self.lose_records(&bytes, "copy_pool");
                self.packing.bytes = bytes;
            }
        }
        self.packing.bytes.clear();
    }
}

impl Outlet {
    /// Publishes a run of messages of the current arrival.
    fn publish_run(&mut self, stream: StreamId, arrival: &Arrival<'_>, from: u64, run: &[u8]) {
        let Some(publisher) = &mut self.publisher else { return };
        let segment = &arrival.segment;
        for (index, body) in Messages::new(run, segment.framing).enumerate() {
            publisher.message(&PublishedMessage {
                stream,
                side: arrival.side,
                sequence: from + index as u64,
                capture_ns: arrival.capture_ns,
                send_ns: segment.send_ns,
                body,
            });
        }
    }

    /// When something happens that is no message: the feed's time.
    fn event_ns(&self) -> i64 {
        self.packet_time.unwrap_or_else(clock::utc_ns)
    }

    /// Once per turn: wakes readers, and tells what was published.
    fn publisher_turn(&mut self, now: i64) {
        let Some(publisher) = &mut self.publisher else { return };
        publisher.turn(now);
        let counts = publisher.counts();
        self.counters.set(ArbiterCounter::Published, counts.messages);
        self.counters.set(ArbiterCounter::PublishedMarks, counts.marks);
        self.counters.set(ArbiterCounter::PublishRefused, counts.refused);
    }
}

impl Sink for Outlet {
    fn stream_begin(&mut self, stream: StreamId, key: &SessionKey, run: u32, base: u64) {
        let capture_ns = self.event_ns();
        if let Some(publisher) = &mut self.publisher {
            publisher.stream_begin(stream, key, run, base, capture_ns);
        }
        self.flush_packing();
        self.stage(Staged::Event(Handoff::StreamBegin { stream, key: *key, run, base }));
    }

    fn emit_arrival(
        &mut self,
        stream: StreamId,
        arrival: &Arrival<'_>,
        from: u64,
        to: u64,
        last: bool,
        late_fill: bool,
    ) {
        let segment = &arrival.segment;
        let mut walk = Messages::new(segment.block, segment.framing);
        for _ in segment.first..from {
            walk.next();
        }
        let skipped = segment.block.len() - walk.rest().len();
        let bytes = if to == segment.first + u64::from(segment.count) {
            walk.rest().len()
        } else {
            let rest = walk.rest().len();
            for _ in from..to {
                walk.next();
            }
            rest - walk.rest().len()
        };
        if !late_fill {
            self.publish_run(stream, arrival, from, &segment.block[skipped..skipped + bytes]);
        }
        if last {
            self.flush_packing();
            let span = MessageSpan {
                stream,
                first: from,
                count: (to - from) as u32,
                offset: self.block_offset + skipped as u32,
                bytes: bytes as u32,
                framing: segment.framing,
                late_fill,
                send_ns: segment.send_ns,
            };
            return self.stage(Staged::Current(span));
        }
        let run = &segment.block[skipped..skipped + bytes];
        for (index, body) in Messages::new(run, segment.framing).enumerate() {
            let (side, capture_ns, send_ns) = (arrival.side, arrival.capture_ns, segment.send_ns);
            let kind = Copied::Message { side, capture_ns, send_ns, late_fill, body };
            self.pack(CopiedRecord { stream, sequence: from + index as u64, kind });
        }
    }

    fn emit_held(&mut self, stream: StreamId, sequence: u64, side: Side, capture_ns: i64, send_ns: i64, body: &[u8]) {
        let send_ns = (send_ns != i64::MIN).then_some(send_ns);
        if let Some(publisher) = &mut self.publisher {
            publisher.message(&PublishedMessage { stream, side, sequence, capture_ns, send_ns, body });
        }
        self.pack(CopiedRecord {
            stream,
            sequence,
            kind: Copied::Message { side, capture_ns, send_ns, late_fill: false, body },
        });
    }

    fn emit_late_copy(
        &mut self,
        stream: StreamId,
        sequence: u64,
        side: Side,
        capture_ns: i64,
        send_ns: i64,
        body: &[u8],
    ) {
        let send_ns = (send_ns != i64::MIN).then_some(send_ns);
        self.pack(CopiedRecord {
            stream,
            sequence,
            kind: Copied::Message { side, capture_ns, send_ns, late_fill: true, body },
        });
    }

    fn gap(&mut self, stream: StreamId, first: u64, last: u64) {
        let capture_ns = self.event_ns();
        if let Some(publisher) = &mut self.publisher {
            publisher.gap(stream, first, last, capture_ns);
        }
        self.pack(CopiedRecord { stream, sequence: first, kind: Copied::Gap { last, capture_ns } });
    }

    fn stream_end(&mut self, stream: StreamId) {
        let capture_ns = self.event_ns();
        if let Some(publisher) = &mut self.publisher {
            publisher.stream_end(stream, capture_ns);
        }
        self.flush_packing();
        self.stage(Staged::Event(Handoff::StreamEnd { stream }));
    }

    fn side_state(&mut self, session: &SessionKey, side: Side, live: bool) {
        let capture_ns = self.event_ns();
        if let Some(publisher) = &mut self.publisher {
            publisher.side_state(session, side, live, capture_ns);
        }
    }
}

impl Worker for ArbiterWorker {
    fn name(&self) -> &str {
        &self.name
    }

    fn stage(&self) -> u8 {
        1
    }

    fn start(&mut self, _turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        let pool = FramePool::new(self.outlet.copy_area, self.outlet.copy_frames, COPY_FRAME_BYTES);
        self.areas.set(self.outlet.copy_area, pool.area());
        self.outlet.pool = Some(pool);
        if let Some(publisher) = &mut self.outlet.publisher {
            publisher.start()?;
        }
        Ok(Vec::new())
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        let mut work = self.outlet.take_home();
        self.room_at = None;
        for input in 0..self.inputs.len() {
            work += self.take(input, turn.now);
        }
        if self.time == TimeSource::Live && self.arbiter.deadline().is_some_and(|deadline| deadline <= turn.now) {
            self.arbiter.on_tick(turn.now, &mut self.outlet);
            self.outlet.pass_on(&self.areas);
            work += 1;
        }
        if work > 0 {
            if let Some(store) = &mut self.outlet.store {
                store.flush();
            }
            for link in self.outlet.returns.iter_mut().flatten() {
                link.flush();
            }
        } else {
            self.outlet.close_loss();
            self.outlet.send_events();
            self.finish_if_drained(turn.now);
        }
        self.outlet.publisher_turn(turn.now);
        if turn.now >= self.sides_at {
            self.sides_at = turn.now + SIDES_EVERY_NS;
            let live = (0..self.arbiter.settings().sides).filter(|&side| self.arbiter.side_live(Side(side as u8)));
            self.outlet.counters.set(ArbiterCounter::SidesLive, live.map(|side| 1 << side).sum());
            self.show_stamps();
        }
        self.report_if_wanted(turn.now);
        work
    }

    fn deadline(&self) -> Option<i64> {
        if self.time == TimeSource::Live { self.arbiter.deadline() } else { self.room_at }
    }

    fn stop(&mut self, _turn: &mut Turn<'_>) {
        self.stopped = true;
    }

    fn drained(&self) -> bool {
        self.stopped && self.finished
    }
}
