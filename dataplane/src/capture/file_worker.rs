//! The file worker: the capture files of one feed, merged by stamp (ties: the earlier side first), as if received.
//!
//! The files' stamps are the feed's time. Unlike a NIC, a file waits: without a free frame or link slot nothing is
//! read, so a file loses nothing to its reader's speed.

use std::os::fd::RawFd;
use std::path::PathBuf;

use super::items::RxItem;
use super::queue_worker::{BATCH_FRAMES, parse_segment};
use super::source::file::FileSource;
use super::stats::{QueueCounter, RawReason, SideCounter};
use crate::config::FeedProtocol;
use crate::runtime::link::{LinkReceiver, LinkSender};
use crate::runtime::worker::{Turn, Worker};
use crate::sync::counters::CounterWriter;
use crate::sys::frames::{Areas, FramePool, FrameToken};
use crate::units::{AreaId, Side};
use crate::wire::packet::{self, LinkType};
use crate::wire::segment::SegmentKind;

/// Bytes of a file source's frame: the largest UDP datagram with its headers fits, so no packet of a file is cut.
const FRAME_BYTES: u32 = 66 << 10;
/// Frames of a file source: 17 MiB, several batches in flight on each link.
const FRAMES: u32 = 256;

/// One side's file.
pub struct FileSide {
    /// The side.
    pub side: Side,
    /// The file.
    pub path: PathBuf,
    /// Its counters.
    pub counters: CounterWriter<SideCounter>,
    /// Only datagrams to these (address, port) pairs belong to the feed; empty: every datagram.
    pub groups: Vec<std::net::SocketAddrV4>,
}

struct OpenSide {
    side: FileSide,
    source: Option<FileSource>,
    /// The packet read ahead, for the merge.
    next: Option<FrameToken>,
    /// The side's latest stamp: a packet without one gets it.
    last_ns: i64,
    link_type: LinkType,
    ended: bool,
}

/// The file worker.
pub struct FileWorker {
    name: String,
    id: AreaId,
    protocol: FeedProtocol,
    raw: bool,
    pool: Option<FramePool>,
    areas: Areas,
    sides: Vec<OpenSide>,
    link: LinkSender<RxItem>,
    returns: Vec<LinkReceiver<FrameToken>>,
    counters: CounterWriter<QueueCounter>,
    /// What could not be pushed yet.
    waiting: Option<RxItem>,
    stopped: bool,
    damage: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl FileWorker {
    /// Frames that its area holds (the capacity of its return links).
    pub const FRAMES: usize = FRAMES as usize;

    /// A worker for area `id`. Damage found in the files is appended to `damage`, a line each.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a different link or owner; a builder would only rename them"
    )]
    pub fn new(
        name: String,
        id: AreaId,
        protocol: FeedProtocol,
        raw: bool,
        areas: Areas,
        sides: Vec<FileSide>,
        link: LinkSender<RxItem>,
        returns: Vec<LinkReceiver<FrameToken>>,
        counters: CounterWriter<QueueCounter>,
        damage: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
    ) -> FileWorker {
        let sides = sides
            .into_iter()
            .map(|side| OpenSide {
                side,
                source: None,
                next: None,
                last_ns: 0,
                link_type: LinkType::Ethernet,
                ended: false,
            })
            .collect();
        FileWorker {
            name,
            id,
            protocol,
            raw,
            pool: None,
            areas,
            sides,
            link,
            returns,
            counters,
            waiting: None,
            stopped: false,
            damage,
        }
    }

    /// Reads one packet ahead of every side that has none; false when no frame is free.
    fn read_ahead(&mut self) -> bool {
        let pool = self.pool.as_mut().expect("started");
        for open in &mut self.sides {
            if open.next.is_some() || open.ended {
                continue;
            }
            let Some(mut filling) = pool.take() else { return false };
            let packet = open.source.as_mut().map_or(Ok(None), FileSource::next);
            match packet {
                Ok(Some(packet)) => {
                    let bytes = packet.data.len().min(filling.bytes().len());
                    filling.bytes()[..bytes].copy_from_slice(&packet.data[..bytes]);
                    open.link_type = packet.link;
                    if packet.stamped {
                        open.last_ns = packet.capture_ns;
                    } else {
                        self.counters.add(QueueCounter::Unstamped, 1);
                    }
                    open.next = Some(filling.into_token(bytes, open.last_ns));
                }
                Ok(None) => {
                    let token = filling.into_token(0, 0);
                    pool.give_back(token);
                    open.end(None, &self.damage);
                }
                Err(error) => {
                    let token = filling.into_token(0, 0);
                    pool.give_back(token);
                    open.end(Some(error.to_string()), &self.damage);
                }
            }
        }
        true
    }

    /// The item of the earliest packet; `None` when every side has ended or the packet is not the feed's.
    fn next_item(&mut self) -> Option<RxItem> {
        let earliest = self
            .sides
            .iter()
            .enumerate()
            .filter_map(|(index, open)| open.next.as_ref().map(|token| (token.capture_ns, index)))
            .min()?;
        let open = &mut self.sides[earliest.1];
        let token = open.next.take().expect("it was there");
        self.counters.add(QueueCounter::Received, 1);
        self.counters.add(QueueCounter::Bytes, u64::from(token.bytes));
        let (reason, token) = match classify(&self.areas, &token, open, self.protocol) {
            Ok((payload_offset, payload_bytes, messages)) => {
                let kind = if messages > 0 { QueueCounter::DataSegments } else { QueueCounter::Heartbeats };
                self.counters.add(kind, 1);
                open.side.counters.add(SideCounter::Segments, 1);
                open.side.counters.add(SideCounter::Messages, u64::from(messages));
                let side = open.side.side;
                return Some(RxItem::Frame { token, payload_offset, payload_bytes, side, segment: true });
            }
            Err(reason) => (reason, token),
        };
        self.counters.add(QueueCounter::RawOnly(reason), 1);
        if self.raw && matches!(reason, RawReason::Segment(_)) {
            let side = open.side.side;
            return Some(RxItem::Frame { token, payload_offset: 0, payload_bytes: 0, side, segment: false });
        }
        self.pool.as_mut().expect("started").give_back(token);
        None
    }

    fn take_home(&mut self) -> usize {
        let pool = self.pool.as_mut().expect("started");
        let mut home = 0;
        for link in &mut self.returns {
            while let Some(token) = link.pop() {
                pool.give_back(token);
                home += 1;
            }
        }
        home
    }

    /// What was read ahead or waits for the link is in this worker's own hands.
    fn tell_home(&mut self) {
        let ahead = self.sides.iter().filter(|open| open.next.is_some()).count();
        let waiting = usize::from(matches!(self.waiting, Some(RxItem::Frame { .. })));
        let home = self.pool.as_ref().map_or(0, FramePool::free) + ahead + waiting;
        self.counters.set(QueueCounter::FramesHome, home as u64);
    }

    fn ended(&self) -> bool {
        self.sides.iter().all(|open| open.ended && open.next.is_none())
    }
}

fn classify(
    areas: &Areas,
    token: &FrameToken,
    open: &OpenSide,
    protocol: FeedProtocol,
) -> Result<(u32, u32, u32), RawReason> {
    let view = packet::udp(areas.packet(token), open.link_type).map_err(RawReason::Packet)?;
    let groups = &open.side.groups;
    let matches = |group: &std::net::SocketAddrV4| Some(*group.ip()) == view.dst_v4() && group.port() == view.dst_port;
    if !groups.is_empty() && !groups.iter().any(matches) {
        return Err(RawReason::Unmatched);
    }
    let segment = parse_segment(protocol, view.payload).map_err(RawReason::Segment)?;
    let messages = if segment.kind == SegmentKind::Data { segment.count } else { 0 };
    Ok((view.payload_offset, view.payload.len() as u32, messages))
}

impl OpenSide {
    fn end(&mut self, error: Option<String>, damage: &std::sync::Mutex<Vec<String>>) {
        self.ended = true;
        let path = self.side.path.display();
        let mut lines = damage.lock().expect("nobody panics with it held");
        if let Some(source) = &self.source {
            lines.extend(source.damage().iter().map(|d| format!("{path}: offset {}: {}", d.offset, d.what)));
        }
        lines.extend(error.map(|error| format!("{path}: {error}")));
    }
}

impl Worker for FileWorker {
    fn name(&self) -> &str {
        &self.name
    }

    fn stage(&self) -> u8 {
        0
    }

    fn start(&mut self, _turn: &mut Turn<'_>) -> Result<Vec<RawFd>, String> {
        let pool = FramePool::new(self.id, FRAMES, FRAME_BYTES);
        self.areas.set(self.id, pool.area());
        self.pool = Some(pool);
        for open in &mut self.sides {
            open.source = Some(FileSource::open(&open.side.path.to_string_lossy()).map_err(|error| error.to_string())?);
        }
        Ok(Vec::new())
    }

    fn turn(&mut self, _turn: &mut Turn<'_>) -> usize {
        let mut work = self.take_home();
        for _ in 0..BATCH_FRAMES {
            let item = match self.waiting.take() {
                Some(item) => item,
                None => {
                    if self.stopped || !self.read_ahead() {
                        break;
                    }
                    let before = self.ended();
                    match self.next_item() {
                        Some(item) => item,
                        None if before => break,
                        None => continue,
                    }
                }
            };
            if let Err(item) = self.link.push(item) {
                self.waiting = Some(item);
                break;
            }
            work += 1;
        }
        for index in 0..self.sides.len() {
            let open = &mut self.sides[index];
            if open.ended && open.next.is_none() && open.source.is_some() && self.waiting.is_none() {
                open.source = None;
                work += 1;
                if let Err(item) = self.link.push(RxItem::End { side: open.side.side }) {
                    self.waiting = Some(item);
                }
            }
        }
        let ended = self.waiting.is_none() && self.sides.iter().all(|open| open.ended && open.source.is_none());
        self.counters.set(QueueCounter::Ended, u64::from(ended));
        self.link.flush();
        self.tell_home();
        work
    }

    fn stop(&mut self, _turn: &mut Turn<'_>) {
        self.stopped = true;
    }

    fn drained(&self) -> bool {
        self.stopped && self.waiting.is_none()
    }

    fn finish(&mut self) {
        self.take_home();
        self.tell_home();
    }
}
