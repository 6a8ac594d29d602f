//! The datagrams of one served ring: each new record once to the group and to every mirror that punched.
//!
//! Part of a [`super::sender::Sender`], or taken out of it ([`super::sender::Sender::detach_live`]) by a producer that
//! sends its own datagrams; updates then travel from the one to the other.

use core::net::SocketAddr;

use super::auth::{Sealer, TagKey};
use super::sender::{Linger, SessionId};
use super::{Datagrams, Destination, ReadOutcome, SendOutcome, SourceRing, head_of};
use crate::units::NANOS_PER_SECOND;
use crate::wire::mirror::{DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, HEADER_BYTES, Header, TRAILER_BYTES, kind};

/// A unicast destination whose PUNCH has not come for this long is dropped: three of the keep-alives that come every 5 s.
pub const PUNCH_NS_MAX: i64 = 16 * NANOS_PER_SECOND;
/// Most datagrams that one GSO send carries (the kernel's UDP_MAX_SEGMENTS is 64 before Linux 6.9, 128 after).
pub const SEGMENTS_MAX: usize = 64;
/// Records that one call passes over (gone, or too long for a datagram) before it returns.
const JUMPS_MAX: usize = 256;

/// A destination came, moved or went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveUpdate {
    /// Whose.
    pub id: SessionId,
    /// Where its datagrams go from now on; `None`: the session has ended.
    pub to: Option<LiveTarget>,
}

/// Who gets datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiveTarget {
    /// A mirror in the group that knows the trailer: the group's datagrams have one as long as such a mirror is there.
    Member,
    /// A mirror that punched.
    Address {
        /// Its address.
        address: SocketAddr,
        /// How its datagrams are sealed; `None` for a mirror without the extension.
        tag: Option<TagKey>,
    },
    /// Nowhere until it punches again. Its session goes on, and with it the counter of its trailers: no number is used
    /// twice under one key, and none that the mirror has seen comes again.
    Nowhere,
}

/// How the group's datagrams are sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupSettings {
    /// Their trailer's key; `None`: they have none.
    pub tag: Option<TagKey>,
    /// They have it whoever listens. Otherwise only while a mirror is there that knows it: a group of the peer's mirrors gets
    /// the peer's own datagrams (its mirrors pass over what follows a frame, so that both kinds may share a group).
    pub always: bool,
}

/// What a [`LiveSender`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LiveCounters {
    /// Records sent (each once, whatever the copies and destinations).
    pub records: u64,
    /// Datagrams handed to the socket, copies and destinations included.
    pub datagrams: u64,
    /// Sends that carried them (several datagrams with GSO).
    pub sends: u64,
    /// Datagrams that the socket lost.
    pub failed: u64,
    /// Records too long for a datagram: mirrors fetch them over TCP.
    pub oversized_records: u64,
    /// Heartbeats (each once).
    pub heartbeats: u64,
}

/// How a [`LiveSender`] sends.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    /// The group, if there is one.
    pub multicast: Option<GroupSettings>,
    /// The session byte.
    pub session: u8,
    /// Bytes of a datagram, trailer included.
    pub datagram_bytes: usize,
    /// How often each is sent.
    pub copies: u8,
    /// Most records of one datagram.
    pub batch_records: u16,
    /// Pacing.
    pub linger: Linger,
    /// Idle time after which a heartbeat is sent.
    pub heartbeat_ns: i64,
}

struct Target {
    /// `None` is the group.
    id: Option<SessionId>,
    /// `None`: it gets nothing now.
    to: Option<Destination>,
    sealer: Option<Sealer>,
    /// The sealer is used.
    sealed: bool,
}

impl Target {
    fn has_trailer(&self) -> bool {
        self.sealed && self.sealer.is_some()
    }
}

/// Frames that were built and are being handed over.
#[derive(Default)]
struct Burst {
    /// The frames, one after the other.
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// The destination whose turn it is.
    target: usize,
    /// What that destination gets: sealed and copied frames, and where each ends; empty if it gets `bytes` as they are.
    sealed: Vec<u8>,
    sealed_ends: Vec<usize>,
    prepared: bool,
    /// Datagrams that it has already.
    handed: usize,
}

impl Burst {
    fn is_done(&self) -> bool {
        self.ends.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        (self.target, self.handed, self.prepared) = (0, 0, false);
    }

    fn next_target(&mut self) {
        (self.handed, self.prepared) = (0, false);
        self.target += 1;
    }
}

/// The half of a sender that makes datagrams.
pub struct LiveSender {
    settings: LiveSettings,
    targets: Vec<Target>,
    /// Mirrors in the group that know the trailer.
    members: Vec<SessionId>,
    /// Bytes of a frame, trailer not included.
    frame_bytes: usize,
    /// Longest frame of a single record that was not refused yet.
    single_bytes: usize,
    /// The next sequence to send.
    cursor: u64,
    /// The cursor is stale: nobody was listening.
    resync: bool,
    burst: Burst,
    /// When a datagram was last handed over.
    sent_ns: i64,
    /// Since when the oldest unsent record waits (fixed linger).
    waiting_ns: Option<i64>,
    counters: LiveCounters,
}

impl LiveSender {
    /// Sends what is published after `head`.
    pub fn new(settings: LiveSettings, head: u64, now: i64) -> LiveSender {
        let mut live = LiveSender {
            targets: Vec::new(),
            members: Vec::new(),
            frame_bytes: 0,
            single_bytes: DATAGRAM_BYTES_MAX - TRAILER_BYTES,
            cursor: head + 1,
            resync: false,
            burst: Burst::default(),
            sent_ns: now,
            waiting_ns: None,
            counters: LiveCounters::default(),
            settings,
        };
        if let Some(group) = live.settings.multicast {
            let sealer = group.tag.map(Sealer::new);
            live.targets.push(Target { id: None, to: Some(Destination::Multicast), sealer, sealed: group.always });
        }
        live.size_frames();
        live
    }

    /// Sends what is new in `ring`, at most about `max` datagrams, or a heartbeat when one is due; says how many were handed
    /// over.
    pub fn poll<R: SourceRing>(&mut self, ring: &mut R, now: i64, out: &mut impl Datagrams, max: usize) -> usize {
        let mut handed = self.hand_over(out);
        if !self.burst.is_done() {
            return handed;
        }
        if !self.has_listeners() {
            self.resync = true;
            return handed;
        }
        // A burst that the group had in part went to its end as it was begun.
        self.seal_group();
        if self.resync {
            self.cursor = head_of(ring) + 1;
            self.resync = false;
        }
        while handed < max && self.build(ring, now, max - handed) {
            handed += self.hand_over(out);
            self.sent_ns = now;
            if !self.burst.is_done() {
                return handed;
            }
        }
        if handed == 0 && now - self.sent_ns >= self.settings.heartbeat_ns && self.waiting_ns.is_none() {
            // What this sender has put on the wire, not the ring's head: a record published since the last look would be
            // announced before its datagram, and every mirror would ask for it.
            let beat = Header::bare(kind::HEARTBEAT, self.settings.session, self.cursor - 1);
            self.burst.bytes.extend_from_slice(&beat.encode());
            self.burst.ends.push(HEADER_BYTES);
            self.counters.heartbeats += 1;
            handed += self.hand_over(out);
            self.sent_ns = now;
        }
        handed
    }

    /// Takes a change of the destinations.
    pub fn update(&mut self, update: LiveUpdate) {
        let at = self.targets.iter().position(|target| target.id == Some(update.id));
        match (at, update.to) {
            (_, Some(LiveTarget::Member)) => self.members.push(update.id),
            (Some(at), Some(LiveTarget::Address { address, .. })) => {
                self.resync |= !self.has_listeners();
                self.targets[at].to = Some(Destination::Unicast(address));
            }
            (None, Some(LiveTarget::Address { address, tag })) => {
                self.resync |= !self.has_listeners();
                let (to, sealer) = (Some(Destination::Unicast(address)), tag.map(Sealer::new));
                self.targets.push(Target { id: Some(update.id), to, sealer, sealed: true });
            }
            (Some(at), Some(LiveTarget::Nowhere)) => self.targets[at].to = None,
            (None, Some(LiveTarget::Nowhere)) => {}
            (Some(at), None) => {
                // Whoever has its turn in a burst keeps it.
                if at < self.burst.target {
                    self.burst.target -= 1;
                } else if at == self.burst.target {
                    (self.burst.handed, self.burst.prepared) = (0, false);
                }
                self.targets.remove(at);
            }
            (None, None) => self.members.retain(|&id| id != update.id),
        }
        if self.burst.is_done() || self.burst.target > 0 {
            self.seal_group();
        }
        self.size_frames();
    }

    fn has_listeners(&self) -> bool {
        self.targets.iter().any(|target| target.to.is_some())
    }

    /// The group's datagrams have a trailer if somebody there knows it.
    fn seal_group(&mut self) {
        if let (Some(group), Some(target)) = (self.settings.multicast, self.targets.first_mut()) {
            let sealed = group.always || !self.members.is_empty();
            if sealed != target.sealed {
                target.sealed = sealed;
                self.size_frames();
            }
        }
    }

    /// When a heartbeat or a lingering datagram is due.
    pub fn deadline(&self) -> Option<i64> {
        if !self.has_listeners() || !self.burst.is_done() {
            return None;
        }
        match (self.waiting_ns, self.settings.linger) {
            (Some(since), Linger::Fixed(us)) => Some(since + i64::from(us) * 1000),
            _ => Some(self.sent_ns + self.settings.heartbeat_ns),
        }
    }

    /// Datagrams that the socket did not take yet: poll when it is writable.
    pub fn is_blocked(&self) -> bool {
        !self.burst.is_done()
    }

    /// The last sequence that went out, or would have if somebody listened.
    pub fn last_sent(&self) -> u64 {
        self.cursor - 1
    }

    /// What happened so far.
    pub fn counters(&self) -> &LiveCounters {
        &self.counters
    }

    /// Counts on from what the datagram half of the ring before counted.
    pub(super) fn continue_counters(&mut self, counters: LiveCounters) {
        self.counters = counters;
    }

    /// Frames are the same for every destination: they leave room for a trailer if any has one.
    fn size_frames(&mut self) {
        let sealed = self.targets.iter().any(Target::has_trailer);
        let bytes = self.settings.datagram_bytes.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX);
        let bytes = if sealed { bytes.saturating_sub(TRAILER_BYTES).max(DATAGRAM_BYTES_MIN) } else { bytes };
        self.frame_bytes = bytes.min(self.single_bytes.max(DATAGRAM_BYTES_MIN));
    }

    /// Most records of one frame; of those that all have one size, as many as fit.
    fn records_per_frame<R: SourceRing>(&self, ring: &R) -> u16 {
        let geometry = ring.geometry();
        let batch = usize::from(self.settings.batch_records.max(1));
        let fit = match geometry.payload_bytes() {
            1.. if !geometry.has_arena() => (self.frame_bytes - HEADER_BYTES) / geometry.payload_bytes(),
            _ => batch,
        };
        fit.clamp(1, batch) as u16
    }

    /// Whether a fixed linger says to wait for more.
    fn lingers<R: SourceRing>(&mut self, ring: &R, now: i64) -> bool {
        let Linger::Fixed(us @ 1..) = self.settings.linger else { return false };
        let waiting = (head_of(ring) + 1).saturating_sub(self.cursor);
        if waiting == 0 {
            return false;
        }
        let fill = u64::from(self.records_per_frame(ring));
        let since = *self.waiting_ns.get_or_insert(now);
        waiting < fill && now - since < i64::from(us) * 1000
    }

    /// Builds frames of at most `max` datagrams from what is new. `false`: there is nothing to send now.
    fn build<R: SourceRing>(&mut self, ring: &mut R, now: i64, max: usize) -> bool {
        if self.lingers(ring, now) {
            return false;
        }
        let frames_max = max.clamp(1, SEGMENTS_MAX);
        let bytes_max = DATAGRAM_BYTES_MAX - frames_max * TRAILER_BYTES;
        let records_max = self.records_per_frame(ring);
        let mut jumps = 0;
        let burst = &mut self.burst;
        let mut first = self.cursor;
        let mut start = 0;
        let mut count = 0u16;
        loop {
            if count == 0 {
                first = self.cursor;
                start = burst.bytes.len();
                burst.bytes.extend_from_slice(&[0; HEADER_BYTES]);
            }
            let before = burst.bytes.len();
            match ring.read(self.cursor, &mut burst.bytes) {
                ReadOutcome::Record => {}
                ReadOutcome::NotYet => break,
                ReadOutcome::Lapped { oldest: to } | ReadOutcome::Absent { next: to } => {
                    // Mirrors see the jump and ask; TCP tells them what is gone.
                    close_frame(burst, start, count, first, self.settings.session);
                    count = 0;
                    self.cursor = to.max(self.cursor + 1);
                    jumps += 1;
                    if !burst.ends.is_empty() || jumps >= JUMPS_MAX {
                        break;
                    }
                    continue;
                }
            }
            if count > 0 && burst.bytes.len() - start > self.frame_bytes {
                // One too many for this frame: it becomes the first of the next, if there may be one.
                let record_bytes = burst.bytes.len() - before;
                let room = burst.ends.len() + 1 < frames_max
                    && burst.bytes.len() + HEADER_BYTES <= bytes_max
                    && HEADER_BYTES + record_bytes <= self.frame_bytes;
                if !room {
                    burst.bytes.truncate(before);
                    break;
                }
                seal_header(burst, start, before, count, first, self.settings.session);
                burst.bytes.extend_from_slice(&[0; HEADER_BYTES]);
                burst.bytes.copy_within(before..before + record_bytes, before + HEADER_BYTES);
                (start, first, count) = (before, self.cursor, 0);
            } else if count == 0 && burst.bytes.len() - start > self.single_bytes {
                // Longer than any datagram.
                burst.bytes.truncate(start);
                self.counters.oversized_records += 1;
                self.cursor += 1;
                jumps += 1;
                if jumps >= JUMPS_MAX {
                    break;
                }
                continue;
            }
            count += 1;
            self.cursor += 1;
            self.counters.records += 1;
            let full = count == records_max || burst.bytes.len() - start >= self.frame_bytes;
            if full {
                close_frame(burst, start, count, first, self.settings.session);
                count = 0;
                if burst.ends.len() >= frames_max || burst.bytes.len() + self.frame_bytes > bytes_max {
                    break;
                }
            }
        }
        if burst.ends.last() != Some(&burst.bytes.len()) {
            close_frame(burst, start, count, first, self.settings.session);
        }
        self.waiting_ns = None;
        !burst.is_done()
    }

    /// Hands the burst over, destination by destination, and stops where the socket blocks.
    fn hand_over(&mut self, out: &mut impl Datagrams) -> usize {
        let mut total = 0;
        while !self.burst.is_done() {
            let Some(target) = self.targets.get_mut(self.burst.target) else {
                self.burst.clear();
                break;
            };
            let Some(to) = target.to else {
                self.burst.next_target();
                continue;
            };
            let copies = usize::from(self.settings.copies.max(1));
            let plain = !target.has_trailer() && copies == 1;
            if !plain && !self.burst.prepared {
                let sealer = target.sealer.as_mut().filter(|_| target.sealed);
                prepare(&mut self.burst, sealer, copies);
            }
            let Burst { bytes, ends, sealed, sealed_ends, handed, .. } = &mut self.burst;
            let (bytes, ends) = if plain { (&*bytes, &*ends) } else { (&*sealed, &*sealed_ends) };
            let group = next_group(bytes, ends, *handed);
            let outcome = out.send(to, group.bytes, group.segment_bytes);
            if outcome == SendOutcome::WouldBlock {
                return total;
            }
            self.counters.sends += 1;
            self.counters.datagrams += group.datagrams as u64;
            total += group.datagrams;
            *handed += group.datagrams;
            let done = *handed == ends.len();
            let (datagrams, datagram_bytes) = (group.datagrams as u64, group.datagram_bytes);
            match outcome {
                SendOutcome::TooLong => self.too_long(datagram_bytes, datagrams),
                SendOutcome::Failed => self.counters.failed += datagrams,
                SendOutcome::Sent | SendOutcome::WouldBlock => {}
            }
            if done {
                self.burst.next_target();
                if self.burst.target >= self.targets.len() {
                    self.burst.clear();
                }
            }
        }
        total
    }

    /// The path does not take datagrams of this length: shorter ones from now on.
    fn too_long(&mut self, datagram_bytes: usize, datagrams: u64) {
        self.counters.failed += datagrams;
        self.single_bytes = self.single_bytes.min(datagram_bytes.saturating_sub(1 + TRAILER_BYTES));
        self.size_frames();
    }
}

/// Ends the frame that begins at `start` (with nothing in it, takes it back).
fn close_frame(burst: &mut Burst, start: usize, count: u16, first: u64, session: u8) {
    if count == 0 {
        burst.bytes.truncate(start);
        return;
    }
    let end = burst.bytes.len();
    seal_header(burst, start, end, count, first, session);
}

fn seal_header(burst: &mut Burst, start: usize, end: usize, count: u16, first: u64, session: u8) {
    let bytes = (end - start - HEADER_BYTES) as u32;
    let header = Header { kind: kind::DATA, flags: session, count, bytes, sequence: first };
    burst.bytes[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    burst.ends.push(end);
}

/// Makes what one destination gets: each frame with its trailer, as often as copies are asked for, one after the other so
/// that a mirror has the copy before the next frame makes it miss the first.
fn prepare(burst: &mut Burst, mut sealer: Option<&mut Sealer>, copies: usize) {
    burst.sealed.clear();
    burst.sealed_ends.clear();
    let mut start = 0;
    for &end in &burst.ends {
        let at = burst.sealed.len();
        burst.sealed.extend_from_slice(&burst.bytes[start..end]);
        if let Some(sealer) = sealer.as_deref_mut() {
            sealer.seal(&mut burst.sealed, at);
        }
        let once = burst.sealed.len();
        burst.sealed_ends.push(once);
        for _ in 1..copies {
            burst.sealed.extend_from_within(at..once);
            burst.sealed_ends.push(burst.sealed.len());
        }
        start = end;
    }
    burst.prepared = true;
}

struct Group<'a> {
    bytes: &'a [u8],
    datagrams: usize,
    datagram_bytes: usize,
    segment_bytes: Option<u16>,
}

/// The datagrams from number `from` on that one send can carry: equal lengths, the last may be shorter.
fn next_group<'a>(bytes: &'a [u8], ends: &[usize], from: usize) -> Group<'a> {
    let start = if from == 0 { 0 } else { ends[from - 1] };
    let segment = ends[from] - start;
    let mut to = from + 1;
    let mut end = ends[from];
    while to < ends.len() && to - from < SEGMENTS_MAX {
        let length = ends[to] - end;
        if length > segment || ends[to] - start > DATAGRAM_BYTES_MAX {
            break;
        }
        end = ends[to];
        to += 1;
        if length < segment {
            break;
        }
    }
    let datagrams = to - from;
    let segment_bytes = if datagrams > 1 { u16::try_from(segment).ok() } else { None };
    Group { bytes: &bytes[start..end], datagrams, datagram_bytes: segment, segment_bytes }
}
