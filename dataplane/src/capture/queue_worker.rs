//! The queue worker: one receive queue, one pinned core. Takes frames, finds their feed and side, passes them on.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;

use super::items::RxItem;
use super::stats::{QueueCounter, RawReason, SideCounter};
use crate::config::FeedProtocol;
use crate::runtime::link::{LinkReceiver, LinkSender};
use crate::runtime::worker::{Turn, Worker};
use crate::sync::counters::CounterWriter;
use crate::sys::frames::{Areas, FrameArea, FrameToken};
use crate::units::{AreaId, Side};
use crate::wire::packet::{self, LinkType};
use crate::wire::segment::{Segment, SegmentError, SegmentKind};
use crate::wire::{iextp, moldudp64};

/// Frames per turn: what AF_XDP's own examples use, enough to spread a turn's fixed cost below 1 ns a frame.
pub const BATCH_FRAMES: usize = 64;
/// Turns without a frame after which a stopped queue counts as drained: the program is detached by then, and what
/// was in the receive ring has been taken.
const DRAINED_TURNS: u32 = 3;

/// The source of a queue worker's frames: an AF_XDP queue, or memory in tests and benchmarks.
pub trait FrameQueue: Send {
    /// Makes memory and socket, on the worker's own thread. Returns the descriptors that wake the core.
    ///
    /// # Errors
    /// One line for the user.
    fn open(&mut self) -> Result<Vec<RawFd>, String>;
    /// The frames' memory, once open.
    fn area(&self) -> FrameArea;
    /// Appends at most `max` received frames to `out`; never blocks.
    fn receive(&mut self, out: &mut Vec<FrameToken>, max: usize) -> usize;
    /// Takes a frame home.
    fn recycle(&mut self, token: FrameToken);
    /// Hands what came home back to the driver, and wakes it if it asks for that.
    fn refill(&mut self);
    /// (rx_dropped, rx_ring_full, fill_ring_empty, unstamped) since the start.
    fn losses(&mut self) -> [u64; 4];
    /// Tokens that can be out at once: what a return link must hold so that a return cannot fail.
    fn tokens_max(&self) -> u32;
    /// The frames' link type.
    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }
    /// Nothing new is wanted: a source that no detach silences takes what it has and no more.
    fn stop(&mut self) {}
    /// Closes the socket; on the worker's own thread.
    fn close(&mut self) {}
}

/// Where a (destination, port) leads.
pub struct Destination {
    /// Address and UDP port.
    pub to: SocketAddrV4,
    /// Which of the worker's feeds.
    pub feed: usize,
    /// The side of the feed.
    pub side: Side,
    /// Its counters.
    pub counters: CounterWriter<SideCounter>,
}

/// One feed as a queue sees it.
pub struct FeedPort {
    /// Its protocol.
    pub protocol: FeedProtocol,
    /// Frames that are no segment are wanted for their raw bytes.
    pub raw: bool,
    /// The link to its arbiter.
    pub link: LinkSender<RxItem>,
}

/// The queue worker.
pub struct QueueWorker {
    name: String,
    id: AreaId,
    queue: Box<dyn FrameQueue>,
    area: Option<FrameArea>,
    areas: Areas,
    destinations: Vec<Destination>,
    feeds: Vec<FeedPort>,
    returns: Vec<LinkReceiver<FrameToken>>,
    counters: CounterWriter<QueueCounter>,
    batch: Vec<FrameToken>,
    /// Tokens in other workers' hands.
    tokens_out: u32,
    losses_at: i64,
    stopped: bool,
    empty_turns: u32,
}

/// How often the socket's own statistics are read: a system call, so off the per-batch path.
const LOSSES_EVERY_NS: i64 = 50_000_000;

impl QueueWorker {
    /// A worker for area `id`; `returns` brings its frames home, one link per holder.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a different link or owner; a builder would only rename them"
    )]
    pub fn new(
        name: String,
        id: AreaId,
        queue: Box<dyn FrameQueue>,
        areas: Areas,
        destinations: Vec<Destination>,
        feeds: Vec<FeedPort>,
        returns: Vec<LinkReceiver<FrameToken>>,
        counters: CounterWriter<QueueCounter>,
    ) -> QueueWorker {
        QueueWorker {
            name,
            id,
            queue,
            area: None,
            areas,
            destinations,
            feeds,
            returns,
            counters,
            batch: Vec::with_capacity(BATCH_FRAMES),
            tokens_out: 0,
            losses_at: 0,
            stopped: false,
            empty_turns: 0,
        }
    }

    /// Frames that other workers are done with.
    fn take_home(&mut self) -> usize {
        let mut home = 0;
        for link in &mut self.returns {
            while let Some(token) = link.pop() {
                self.queue.recycle(token);
                home += 1;
            }
        }
        self.tokens_out -= home;
        home as usize
    }

    fn tell_home(&mut self) {
        self.counters.set(QueueCounter::FramesHome, u64::from(self.queue.tokens_max() - self.tokens_out));
    }

    /// A segment to its arbiter; with a full link it is dropped here, counted with its messages.
    #[inline]
    fn pass_segment(&mut self, token: FrameToken, found: &Found) {
        let to = &mut self.destinations[found.destination];
        let item = RxItem::Frame {
            token,
            payload_offset: found.offset,
            payload_bytes: found.bytes,
            side: to.side,
            segment: true,
        };
        match self.feeds[to.feed].link.push(item) {
            Ok(()) => {
                let kind = if found.messages > 0 { QueueCounter::DataSegments } else { QueueCounter::Heartbeats };
                self.counters.add(kind, 1);
                to.counters.add(SideCounter::Segments, 1);
                to.counters.add(SideCounter::Messages, u64::from(found.messages));
            }
            Err(RxItem::Frame { token, .. }) => {
                self.counters.add(QueueCounter::LinkFull, 1);
                to.counters.add(SideCounter::LinkFull, 1);
                to.counters.add(SideCounter::LinkFullMessages, u64::from(found.messages));
                self.keep(token);
            }
            Err(RxItem::End { .. }) => unreachable!("a frame was pushed"),
        }
    }

    /// A frame that is no segment: to the arbiter if the feed records raw frames, else home.
    fn pass_raw(&mut self, token: FrameToken, reason: RawReason, destination: Option<usize>) {
        self.counters.add(QueueCounter::RawOnly(reason), 1);
        let to = destination.map(|at| (self.destinations[at].feed, self.destinations[at].side));
        let Some((feed, side)) = to.filter(|(feed, _)| self.feeds[*feed].raw) else { return self.keep(token) };
        let item = RxItem::Frame { token, payload_offset: 0, payload_bytes: 0, side, segment: false };
        if let Err(RxItem::Frame { token, .. }) = self.feeds[feed].link.push(item) {
            self.counters.add(QueueCounter::RawLinkFull, 1);
            self.keep(token);
        }
    }

    /// A frame that goes nowhere.
    fn keep(&mut self, token: FrameToken) {
        self.queue.recycle(token);
        self.tokens_out -= 1;
    }

    fn read_losses(&mut self) {
        let [dropped, ring_full, fill_empty, unstamped] = self.queue.losses();
        self.counters.set(QueueCounter::RxDropped, dropped);
        self.counters.set(QueueCounter::RxRingFull, ring_full);
        self.counters.set(QueueCounter::FillRingEmpty, fill_empty);
        self.counters.set(QueueCounter::Unstamped, unstamped);
    }
}

/// Reads `payload` as a segment of `protocol`.
#[inline]
pub fn parse_segment(protocol: FeedProtocol, payload: &[u8]) -> Result<Segment<'_>, SegmentError> {
    match protocol {
        FeedProtocol::IexTp => iextp::parse(payload),
        FeedProtocol::MoldUdp64 => moldudp64::parse(payload),
    }
}

/// What one frame is, found without moving it.
enum Verdict {
    Segment(Found),
    Raw { reason: RawReason, destination: Option<usize> },
}

/// A segment of a feed: where it leads, where its payload lies, how many messages it brings.
struct Found {
    destination: usize,
    offset: u32,
    bytes: u32,
    messages: u32,
}

#[inline]
fn classify(frame: &[u8], link: LinkType, destinations: &[Destination], feeds: &[FeedPort]) -> Verdict {
    let view = match packet::udp(frame, link) {
        Ok(view) => view,
        Err(reason) => return Verdict::Raw { reason: RawReason::Packet(reason), destination: None },
    };
    let address = view.dst_v4().unwrap_or(Ipv4Addr::UNSPECIFIED);
    // A queue serves a handful of groups: a scan beats a hash below about 16.
    let found = destinations.iter().position(|d| d.to.port() == view.dst_port && *d.to.ip() == address);
    let Some(destination) = found else {
        return Verdict::Raw { reason: RawReason::Unmatched, destination: None };
    };
    match parse_segment(feeds[destinations[destination].feed].protocol, view.payload) {
        Ok(segment) => Verdict::Segment(Found {
            destination,
            offset: view.payload_offset,
            bytes: view.payload.len() as u32,
            messages: if segment.kind == SegmentKind::Data { segment.count } else { 0 },
        }),
        Err(reason) => Verdict::Raw { reason: RawReason::Segment(reason), destination: Some(destination) },
    }
}

impl Worker for QueueWorker {
    fn name(&self) -> &str {
        &self.name
    }

    fn stage(&self) -> u8 {
        0
    }

    fn start(&mut self, _turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        let fds = self.queue.open()?;
        let area = self.queue.area();
        self.areas.set(self.id, area.clone());
        self.area = Some(area);
        Ok(fds)
    }

    fn turn(&mut self, turn: &mut Turn<'_>) -> usize {
        let home = self.take_home();
        let mut batch = std::mem::take(&mut self.batch);
        let received = self.queue.receive(&mut batch, BATCH_FRAMES);
        let link_type = self.queue.link_type();
        let mut bytes = 0;
        self.tokens_out += received as u32;
        for token in batch.drain(..) {
            bytes += u64::from(token.bytes);
            let packet = self.area.as_ref().expect("started").packet(&token);
            match classify(packet, link_type, &self.destinations, &self.feeds) {
                Verdict::Segment(segment) => self.pass_segment(token, &segment),
                Verdict::Raw { reason, destination } => self.pass_raw(token, reason, destination),
            }
        }
        self.batch = batch;
        if received > 0 {
            self.counters.add(QueueCounter::Received, received as u64);
            self.counters.add(QueueCounter::Bytes, bytes);
            for feed in &mut self.feeds {
                feed.link.flush();
            }
        }
        self.queue.refill();
        self.tell_home();
        if turn.now >= self.losses_at {
            self.losses_at = turn.now + LOSSES_EVERY_NS;
            self.read_losses();
        }
        self.empty_turns = if received > 0 { 0 } else { self.empty_turns.saturating_add(1) };
        received + home
    }

    fn stop(&mut self, _turn: &mut Turn<'_>) {
        self.stopped = true;
        self.empty_turns = 0;
        self.queue.stop();
    }

    fn drained(&self) -> bool {
        self.stopped && self.empty_turns >= DRAINED_TURNS
    }

    fn finish(&mut self) {
        self.take_home();
        self.tell_home();
        self.read_losses();
        self.queue.close();
    }
}
