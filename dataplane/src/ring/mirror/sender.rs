//! One served ring and all its mirrors: handshakes, the TCP stream, answers to NAK, and what [`super::live`] sends.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::collections::{HashMap, VecDeque};

use super::auth::{Opener, PresharedKey, Random, SessionKeys, TagKey, Transcript, mirror_proof_holds, source_proof};
use super::live::{GroupSettings, LiveCounters, LiveSender, LiveSettings, LiveTarget, LiveUpdate, PUNCH_NS_MAX};
use super::loss::NAKS_MAX;
use super::{CloseReason, Datagrams, Fault, ReadOutcome, SourceRing, StreamPoll, head_of};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use crate::wire::mirror::{
    Accept, Announce, EndReason, Ext, Gap, Greeting, HEADER_BYTES, Header, Hello, NAK_RECORDS_MAX, Nak, PROOF_BYTES,
    Proof, SEQUENCE_END, STREAM_FRAME_BYTES, WANT_NEW, WANT_OLDEST, feature, geometry_flag, heartbeat_flag, hello_flag,
    kind,
};

/// A send of which nothing was done for this long ends the session (the peer's write timeout).
pub const WRITE_NS_MAX: i64 = 5 * NANOS_PER_SECOND;

/// How long records wait for company before they are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Linger {
    /// Not at all: what piled up while the previous send was under way goes together.
    #[default]
    Auto,
    /// Until the frame is full or the oldest has waited this many microseconds; 0 is one frame per poll without waiting.
    Fixed(u32),
}

/// Where multicast goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MulticastSettings {
    /// Group and port.
    pub group: SocketAddrV4,
    /// Time to live; told to mirrors.
    pub ttl: u8,
}

/// How a ring is served. The defaults are the peer's where it has one.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// UDP multicast.
    pub multicast: Option<MulticastSettings>,
    /// UDP unicast from this port (as mirrors reach it).
    pub unicast_port: Option<u16>,
    /// Bytes of a datagram, its 16-byte header (and the trailer of extended mirrors) included; clamped to 24 … 65,507.
    pub datagram_bytes: usize,
    /// How often each datagram is sent (`--dup`), at least 1.
    pub copies: u8,
    /// Most records of one DATA frame on TCP.
    pub batch_records: u16,
    /// Pacing.
    pub linger: Linger,
    /// Idle time after which a heartbeat datagram is sent.
    pub heartbeat_datagram_ns: i64,
    /// Idle time after which a heartbeat is sent on a TCP stream.
    pub heartbeat_stream_ns: i64,
    /// Whether the extension is offered (incarnation, 64-bit tokens, authentication). Off, bytes are the peer's own.
    pub extension: bool,
    /// With a key, only mirrors that prove it are served.
    pub key: Option<PresharedKey>,
    /// Most connections at one time, those in their handshake included.
    pub connections_max: usize,
    /// Most connections at one time from one address.
    pub connections_per_address_max: usize,
    /// Most connections in their handshake; one more ends the oldest of these.
    pub handshakes_max: usize,
    /// Time from accept to a whole handshake.
    pub handshake_ns_max: i64,
    /// Bytes per second that answers to NAK may take in one session; as many may come at once.
    pub nak_bytes_per_second: u64,
    /// PUNCH datagrams with a session's token that are looked at per second, over all sessions.
    pub punches_per_second: u32,
    /// A planted bug.
    #[doc(hidden)]
    pub fault: Fault,
}

impl Default for ServeSettings {
    fn default() -> ServeSettings {
        ServeSettings {
            multicast: None,
            unicast_port: None,
            datagram_bytes: 1472,
            copies: 1,
            batch_records: 256,
            linger: Linger::Auto,
            heartbeat_datagram_ns: NANOS_PER_MILLI,
            heartbeat_stream_ns: 200 * NANOS_PER_MILLI,
            extension: true,
            key: None,
            connections_max: 1024,
            connections_per_address_max: 256,
            handshakes_max: 64,
            handshake_ns_max: 5 * NANOS_PER_SECOND,
            nak_bytes_per_second: 128 << 20,
            punches_per_second: 10_000,
            fault: Fault::None,
        }
    }
}

/// Names one session of one [`Sender`]; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// Why a connection is not taken: close it at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// As many as are allowed in all.
    #[error("{limit} connections are open: raise connections_max")]
    Connections {
        /// The limit.
        limit: usize,
    },
    /// As many as are allowed from one address.
    #[error("{limit} connections from this address are open: raise connections_per_address_max")]
    ConnectionsPerAddress {
        /// The limit.
        limit: usize,
    },
    /// No ring is attached.
    #[error("there is no ring to serve yet")]
    NoRing,
}

/// How a session's records travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// On its TCP stream.
    Stream,
    /// To the group.
    Multicast,
    /// In datagrams of its own.
    Unicast,
}

/// What `status` shows of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionStatus {
    /// Its name.
    pub id: SessionId,
    /// Whence it connected.
    pub peer: SocketAddr,
    /// How it gets records; `None` during the handshake.
    pub delivery: Option<Delivery>,
    /// Where its datagrams go (unicast, after its PUNCH).
    pub datagrams_to: Option<SocketAddr>,
    /// The next sequence on its stream (TCP delivery).
    pub next: u64,
    /// Whether it speaks the extension.
    pub extended: bool,
    /// Whether it proved the key.
    pub authenticated: bool,
}

/// What a [`Sender`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SenderCounters {
    /// Connections taken.
    pub accepted: u64,
    /// Connections refused.
    pub refused: u64,
    /// Sessions ended by this side.
    pub closed: u64,
    /// Of these, for lack of the key.
    pub unauthenticated: u64,
    /// Records sent on TCP streams, answers to NAK not included.
    pub stream_records: u64,
    /// Bytes for TCP streams.
    pub stream_bytes: u64,
    /// Records sent in datagrams (each once, whatever the copies and destinations).
    pub datagram_records: u64,
    /// Datagrams handed to the socket, copies and destinations included.
    pub datagrams: u64,
    /// Datagrams that the socket lost.
    pub datagrams_failed: u64,
    /// Records too long for a datagram: mirrors fetch them over TCP.
    pub oversized_records: u64,
    /// Heartbeats on TCP streams.
    pub heartbeats: u64,
    /// Heartbeat datagrams, each once.
    pub datagram_heartbeats: u64,
    /// NAK frames.
    pub naks: u64,
    /// NAK frames dropped: for nothing that is published, or too many ranges at once.
    pub naks_dropped: u64,
    /// Records sent as answers to NAK.
    pub repaired_records: u64,
    /// Polls that had to wait because a session's answers used up its budget.
    pub naks_delayed: u64,
    /// GAP frames.
    pub gaps: u64,
    /// PUNCH datagrams that set or confirmed an address.
    pub punches: u64,
    /// PUNCH datagrams dropped: wrong session, token, address or MAC, malformed, too many.
    pub punches_dropped: u64,
    /// Unicast destinations dropped because no PUNCH came for [`super::live::PUNCH_NS_MAX`].
    pub punches_expired: u64,
    /// Rings attached after the first.
    pub restarts: u64,
}

/// Most bytes of a frame that a mirror may send: a PROOF.
const INPUT_BYTES_MAX: usize = HEADER_BYTES + PROOF_BYTES;
/// Ranges that a session may wait for at one time; overlapping ones are one. A mirror of ours has at most as many.
const NAK_RANGES_MAX: usize = NAKS_MAX;
/// Bytes of answers to NAK in one poll: a fraction of a millisecond of a 10 Gbit/s link, so that mirrors take turns.
const ANSWER_BYTES_PER_POLL: usize = 256 << 10;
/// A unicast session's destination may move this often: a NAT that changes ports does it once, a flood of PUNCH often.
const PUNCH_MOVE_NS: i64 = 100 * NANOS_PER_MILLI;
/// Records that are gone which one poll passes over.
const JUMPS_MAX: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Hello,
    Proof,
    Live,
}

/// What may be spent per second, and at once.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    per_second: u64,
    left: i64,
    at_ns: i64,
}

impl Allowance {
    fn new(per_second: u64, now: i64) -> Allowance {
        let per_second = per_second.clamp(1, 1 << 40);
        Allowance { per_second, left: per_second as i64, at_ns: now }
    }

    /// What is left at `now`.
    fn left(&mut self, now: i64) -> i64 {
        let elapsed_ns = (now - self.at_ns).clamp(0, NANOS_PER_SECOND);
        let earned = (self.per_second as i128 * i128::from(elapsed_ns) / i128::from(NANOS_PER_SECOND)) as i64;
        if earned > 0 {
            self.left = (self.left + earned).min(self.per_second as i64);
            self.at_ns = now;
        }
        self.left
    }

    /// When there will be something again.
    fn ready_ns(&self) -> i64 {
        let lacking = i128::from((1 - self.left).max(1));
        self.at_ns + (lacking * i128::from(NANOS_PER_SECOND) / i128::from(self.per_second)) as i64 + 1
    }
}

#[derive(Clone, Copy, Debug)]
struct Punched {
    address: SocketAddr,
    heard_ns: i64,
    moved_ns: i64,
}

struct Session {
    id: SessionId,
    peer: SocketAddr,
    since_ns: i64,
    phase: Phase,
    extended: bool,
    authenticated: bool,
    delivery: Delivery,
    /// The next sequence of the stream.
    cursor: u64,
    waiting_ns: Option<i64>,
    input: [u8; INPUT_BYTES_MAX],
    input_bytes: usize,
    /// What is to be sent before anything else.
    outbox: Vec<u8>,
    /// When the send that is under way began.
    sending_ns: Option<i64>,
    sent_ns: i64,
    /// The head at the last heartbeat: what it was is on the wire since long.
    head_before: u64,
    closing: Option<CloseReason>,
    /// Ranges asked for, ascending, apart.
    naks: Vec<(u64, u64)>,
    answers: Allowance,
    token: u64,
    tag: Option<TagKey>,
    punch_opener: Option<Opener>,
    punched: Option<Punched>,
    /// The datagram half knows of it.
    in_live: bool,
    transcript: Transcript,
    nonce: [u8; 16],
}

/// One served ring. `now` is monotonic nanoseconds everywhere.
pub struct Sender<R: SourceRing> {
    ring: Option<R>,
    settings: ServeSettings,
    counters: SenderCounters,
    random: Random,
    /// The ring's producer lives and beats.
    producer_alive: bool,
    /// The session byte of this attachment.
    session: u8,
    group_key: [u8; 32],
    /// The 64-bit session of the group: its byte alone repeats once in 256 restarts.
    group_number: u64,
    live: Option<LiveSender>,
    /// What datagram halves counted so far, as far as known.
    live_counters: LiveCounters,
    detached: bool,
    updates: VecDeque<LiveUpdate>,
    /// Sessions by the low half of their id.
    slots: Vec<Option<Session>>,
    free: Vec<u32>,
    opened: u32,
    tokens: HashMap<u64, SessionId>,
    punches: Allowance,
    punch_check_ns: i64,
    /// No session is to be closed before.
    close_check_ns: i64,
}

impl<R: SourceRing> Sender<R> {
    /// A sender without a ring. `seed` must be unguessable: session numbers, tokens and the group key come from it.
    pub fn new(settings: ServeSettings, seed: [u8; 32]) -> Sender<R> {
        Sender {
            ring: None,
            counters: SenderCounters::default(),
            random: Random::new(&seed),
            producer_alive: true,
            session: 0,
            group_key: [0; 32],
            group_number: 0,
            live: None,
            live_counters: LiveCounters::default(),
            detached: false,
            updates: VecDeque::new(),
            slots: Vec::new(),
            free: Vec::new(),
            opened: 0,
            tokens: HashMap::new(),
            punches: Allowance::new(u64::from(settings.punches_per_second), 0),
            punch_check_ns: i64::MIN,
            close_check_ns: i64::MIN,
            settings,
        }
    }

    /// Serves `ring` from now on. Sessions of the ring before are told and closed: their mirrors connect again.
    pub fn attach(&mut self, ring: R, now: i64) {
        self.counters.restarts += u64::from(self.ring.is_some());
        for at in 0..self.slots.len() {
            if self.settings.fault != Fault::KeepSessions
                && self.slots[at].as_ref().is_some_and(|session| session.phase != Phase::Hello)
            {
                self.finish(at, CloseReason::SourceReplaced);
            }
        }
        // Datagrams of the ring before must not pass for those of this one.
        let before = self.session;
        while self.session == before {
            self.session = self.random.bytes::<1>()[0];
        }
        self.group_key = self.random.bytes();
        self.group_number = self.random.number();
        // One that was taken out serves the ring before: its owner takes the new one.
        self.detached = false;
        if self.settings.multicast.is_some() || self.settings.unicast_port.is_some() {
            let keyed = self.settings.key.is_some();
            let tag = if keyed { TagKey::Keyed(self.group_key) } else { TagKey::Number(self.group_number) };
            let tag = (keyed || self.settings.extension).then_some(tag);
            let settings = LiveSettings {
                multicast: self.settings.multicast.map(|_| GroupSettings { tag, always: keyed }),
                session: self.session,
                datagram_bytes: self.settings.datagram_bytes,
                copies: self.settings.copies,
                batch_records: self.settings.batch_records,
                linger: self.settings.linger,
                heartbeat_ns: self.settings.heartbeat_datagram_ns,
            };
            let mut live = LiveSender::new(settings, head_of(&ring), now);
            live.continue_counters(self.live_counters);
            self.live = Some(live);
        }
        self.updates.clear();
        self.ring = Some(ring);
    }

    /// Whether the ring's producer lives: heartbeats tell mirrors of ours when it does not.
    pub fn set_producer_alive(&mut self, alive: bool) {
        self.producer_alive = alive;
    }

    /// The ring that is served.
    pub fn ring(&self) -> Option<&R> {
        self.ring.as_ref()
    }

    /// The ring that is served, to look after it (`refresh` and the like).
    pub fn ring_mut(&mut self) -> Option<&mut R> {
        self.ring.as_mut()
    }

    /// The settings.
    pub fn settings(&self) -> &ServeSettings {
        &self.settings
    }

    /// A connection from `peer`.
    ///
    /// # Errors
    /// It is to be closed at once.
    pub fn accept(&mut self, peer: SocketAddr, now: i64) -> Result<SessionId, Refusal> {
        let refused = self.refusal(peer);
        if let Some(refusal) = refused {
            self.counters.refused += 1;
            return Err(refusal);
        }
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        if slot as usize == self.slots.len() {
            self.slots.push(None);
        }
        // The high half tells apart those that used the slot before.
        self.opened = self.opened.wrapping_add(1);
        let id = SessionId(u64::from(self.opened) << 32 | u64::from(slot));
        self.slots[slot as usize] = Some(Session {
            id,
            peer,
            since_ns: now,
            phase: Phase::Hello,
            extended: false,
            authenticated: false,
            delivery: Delivery::Stream,
            cursor: 0,
            waiting_ns: None,
            input: [0; INPUT_BYTES_MAX],
            input_bytes: 0,
            outbox: Vec::new(),
            sending_ns: None,
            sent_ns: now,
            head_before: 0,
            closing: None,
            naks: Vec::new(),
            answers: Allowance::new(self.settings.nak_bytes_per_second, now),
            token: 0,
            tag: None,
            punch_opener: None,
            punched: None,
            in_live: false,
            transcript: Transcript::default(),
            nonce: [0; 16],
        });
        self.counters.accepted += 1;
        Ok(id)
    }

    /// Bytes that came on a session's stream; all are taken. Poll the stream afterwards: it says what follows.
    pub fn on_bytes(&mut self, id: SessionId, mut bytes: &[u8], now: i64) {
        let Some(at) = self.find(id) else { return };
        while !bytes.is_empty() {
            let session = self.slots[at].as_mut().expect("found");
            if session.closing.is_some() {
                return;
            }
            // First the header, then what it says.
            let wanted = match Header::decode(&session.input[..session.input_bytes]) {
                Ok(header) => header.frame_bytes(),
                Err(_) => HEADER_BYTES,
            };
            if wanted > INPUT_BYTES_MAX {
                return self.finish(at, CloseReason::Protocol);
            }
            let taken = (wanted - session.input_bytes).min(bytes.len());
            session.input[session.input_bytes..session.input_bytes + taken].copy_from_slice(&bytes[..taken]);
            session.input_bytes += taken;
            bytes = &bytes[taken..];
            let whole = session.input_bytes >= HEADER_BYTES
                && Header::decode(&session.input).is_ok_and(|header| header.frame_bytes() == session.input_bytes);
            if whole {
                let (frame, length) = (session.input, session.input_bytes);
                session.input_bytes = 0;
                if let Err(reason) = self.on_frame(at, &frame[..length], now) {
                    return self.finish(at, reason);
                }
            }
        }
    }

    /// The session's connection is gone.
    pub fn on_closed(&mut self, id: SessionId) {
        if let Some(at) = self.find(id) {
            self.forget(at);
        }
    }

    /// A datagram that came to the unicast port.
    pub fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], now: i64) {
        match self.punch(from, bytes, now) {
            Some(()) => self.counters.punches += 1,
            None => self.counters.punches_dropped += 1,
        }
    }

    /// What goes out on a session's stream: call it whenever no send of the session is under way. Appends at most 1 MiB
    /// (more only if a single record is longer).
    pub fn poll_stream(&mut self, id: SessionId, out: &mut Vec<u8>, now: i64) -> StreamPoll {
        let Some(at) = self.find(id) else { return StreamPoll::Idle };
        let session = self.slots[at].as_mut().expect("found");
        session.sending_ns = None;
        let before = out.len();
        if !session.outbox.is_empty() {
            out.append(&mut session.outbox);
        } else if let Some(reason) = session.closing {
            self.forget(at);
            self.count_closed(reason);
            return StreamPoll::Close(reason);
        } else if session.phase == Phase::Live
            && let Some(ring) = self.ring.as_mut()
        {
            match session.delivery {
                Delivery::Stream => stream(session, ring, &self.settings, &mut self.counters, out, now),
                Delivery::Multicast | Delivery::Unicast => {
                    answer(session, ring, &self.settings, &mut self.counters, out, now);
                }
            }
            let flags = if session.extended && !self.producer_alive { heartbeat_flag::NO_PRODUCER } else { 0 };
            if let Some(sequence) = beat(session, ring, &self.settings, out.len() > before, now) {
                self.counters.heartbeats += 1;
                out.extend_from_slice(&Header::bare(kind::HEARTBEAT, flags, sequence).encode());
            }
        }
        let bytes = out.len() - before;
        if bytes == 0 {
            return StreamPoll::Idle;
        }
        session.sending_ns = Some(now);
        session.sent_ns = now;
        self.counters.stream_bytes += bytes as u64;
        StreamPoll::Data
    }

    /// A part of a session's send that is under way is on its way: a mirror that reads slowly is not one that does not read.
    pub fn on_sent(&mut self, id: SessionId, now: i64) {
        if let Some(at) = self.find(id)
            && let Some(session) = self.slots[at].as_mut()
            && session.sending_ns.is_some()
        {
            session.sending_ns = Some(now);
        }
    }

    /// Sends at most about `max` datagrams; says how many were handed over.
    pub fn poll_datagrams(&mut self, now: i64, out: &mut impl Datagrams, max: usize) -> usize {
        self.expire_punches(now);
        let (Some(live), Some(ring)) = (self.live.as_mut(), self.ring.as_mut()) else { return 0 };
        if let Some(update) = self.updates.pop_front() {
            live.update(update);
            while let Some(update) = self.updates.pop_front() {
                live.update(update);
            }
        }
        let handed = live.poll(ring, now, out, max);
        let counted = *live.counters();
        self.count_datagrams(counted);
        handed
    }

    fn count_datagrams(&mut self, counted: LiveCounters) {
        self.live_counters = counted;
        self.counters.datagrams = counted.datagrams;
        self.counters.datagram_records = counted.records;
        self.counters.datagrams_failed = counted.failed;
        self.counters.oversized_records = counted.oversized_records;
        self.counters.datagram_heartbeats = counted.heartbeats;
    }

    /// Takes the datagram half out, for a producer that sends its own; [`Sender::poll_datagrams`] then sends nothing, and
    /// what [`Sender::next_live_update`] says is to be carried to it, after [`Sender::look_after_detached`]. `None` without a UDP transport or when it is out already.
    pub fn detach_live(&mut self) -> Option<LiveSender> {
        let live = self.live.take()?;
        self.detached = true;
        Some(live)
    }

    /// What [`Sender::poll_datagrams`] does beside sending, for a half that was taken out: destinations that fell silent are
    /// dropped, and what the half counted (`None`: not known now) is shown.
    pub fn look_after_detached(&mut self, counted: Option<LiveCounters>, now: i64) {
        if !self.detached {
            return;
        }
        self.expire_punches(now);
        if let Some(counted) = counted {
            self.count_datagrams(counted);
        }
    }

    /// The next change for a datagram half that was taken out.
    pub fn next_live_update(&mut self) -> Option<LiveUpdate> {
        if self.detached { self.updates.pop_front() } else { None }
    }

    /// Whether datagrams wait for the socket: poll them when it is writable.
    pub fn is_datagram_blocked(&self) -> bool {
        self.live.as_ref().is_some_and(LiveSender::is_blocked)
    }

    /// Sessions to be closed although a send of theirs is under way, or without one; call it until `None` in each turn (it
    /// looks at the sessions only when one may be due).
    pub fn next_closed(&mut self, now: i64) -> Option<(SessionId, CloseReason)> {
        if now < self.close_check_ns {
            return None;
        }
        let handshake_ns = self.settings.handshake_ns_max;
        // What begins after this look is due no sooner than that.
        let mut check_ns = now + WRITE_NS_MAX.min(handshake_ns);
        let mut found = None;
        for (at, session) in self.slots.iter().enumerate().filter_map(|(at, slot)| Some((at, slot.as_ref()?))) {
            let (due_ns, reason) = close_due(session, handshake_ns);
            if due_ns <= now {
                found = Some((at, session.id, reason));
                break;
            }
            check_ns = check_ns.min(due_ns);
        }
        let Some((at, id, reason)) = found else {
            self.close_check_ns = check_ns;
            return None;
        };
        self.forget(at);
        self.count_closed(reason);
        Some((id, reason))
    }

    /// When something is due even if nothing comes in: poll everything then.
    pub fn deadline(&self) -> Option<i64> {
        let live = self.live.as_ref().and_then(LiveSender::deadline);
        let sessions = self.slots.iter().flatten().filter_map(|session| self.session_deadline(session));
        let punches = (self.punch_check_ns > i64::MIN).then_some(self.punch_check_ns);
        sessions.chain(live).chain(punches).min()
    }

    /// What stands in the flags of each datagram of the ring that is served.
    pub fn session_byte(&self) -> u8 {
        self.session
    }

    /// What happened so far.
    pub fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// The sessions, for `status`.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> + '_ {
        self.slots.iter().flatten().map(|session| SessionStatus {
            id: session.id,
            peer: session.peer,
            delivery: (session.phase == Phase::Live).then_some(session.delivery),
            datagrams_to: session.punched.map(|punched| punched.address),
            next: session.cursor,
            extended: session.extended,
            authenticated: session.authenticated,
        })
    }

    fn find(&self, id: SessionId) -> Option<usize> {
        let at = (id.0 & u64::from(u32::MAX)) as usize;
        self.slots.get(at)?.as_ref().is_some_and(|session| session.id == id).then_some(at)
    }

    fn refusal(&mut self, peer: SocketAddr) -> Option<Refusal> {
        if self.ring.is_none() {
            return Some(Refusal::NoRing);
        }
        let address = peer.ip().to_canonical();
        let (mut all, mut same, mut shaking) = (0, 0, 0);
        let mut oldest: Option<(i64, usize)> = None;
        for (at, session) in self.slots.iter().enumerate().filter_map(|(at, slot)| Some((at, slot.as_ref()?))) {
            all += 1;
            same += usize::from(session.peer.ip().to_canonical() == address);
            if session.phase != Phase::Live && session.closing.is_none() {
                shaking += 1;
                oldest = Some(oldest.map_or((session.since_ns, at), |old| old.min((session.since_ns, at))));
            }
        }
        if same >= self.settings.connections_per_address_max {
            return Some(Refusal::ConnectionsPerAddress { limit: self.settings.connections_per_address_max });
        }
        if shaking >= self.settings.handshakes_max
            && let Some((_, at)) = oldest
        {
            // Whoever means it says HELLO within milliseconds.
            self.finish(at, CloseReason::HandshakeTimeout);
        }
        (all >= self.settings.connections_max).then_some(Refusal::Connections { limit: self.settings.connections_max })
    }

    /// Marks a session for its end; one of ours is told why.
    fn finish(&mut self, at: usize, reason: CloseReason) {
        let session = self.slots[at].as_mut().expect("the caller holds its place");
        if session.closing.is_some() {
            return;
        }
        session.closing = Some(reason);
        session.outbox.clear();
        self.close_check_ns = i64::MIN;
        let told = match reason {
            CloseReason::SourceReplaced => EndReason::SourceReplaced,
            CloseReason::Unauthenticated => EndReason::KeyRequired,
            _ => EndReason::Other,
        };
        if session.extended {
            session.outbox.extend_from_slice(&told.encode());
        }
        let (id, token) = (session.id, session.token);
        session.punched = None;
        let was_told = core::mem::take(&mut session.in_live);
        self.tokens.remove(&token);
        if was_told {
            self.updates.push_back(LiveUpdate { id, to: None });
        }
    }

    /// Forgets a session altogether.
    fn forget(&mut self, at: usize) {
        let Some(session) = self.slots[at].take() else { return };
        self.free.push(at as u32);
        self.tokens.remove(&session.token);
        if session.in_live {
            self.updates.push_back(LiveUpdate { id: session.id, to: None });
        }
    }

    fn count_closed(&mut self, reason: CloseReason) {
        self.counters.closed += 1;
        self.counters.unauthenticated += u64::from(reason == CloseReason::Unauthenticated);
    }

    fn on_frame(&mut self, at: usize, frame: &[u8], now: i64) -> Result<(), CloseReason> {
        let header = Header::decode(frame).map_err(|_| CloseReason::Protocol)?;
        let payload = &frame[HEADER_BYTES..];
        let session = self.slots[at].as_mut().expect("the caller holds its place");
        match session.phase {
            Phase::Hello => self.on_hello(at, &header, payload, frame),
            Phase::Proof => self.on_proof(at, &header, payload),
            Phase::Live if session.delivery != Delivery::Stream => {
                let nak = Nak::decode(&header, payload).map_err(|_| CloseReason::Protocol)?;
                let head = self.ring.as_ref().map_or(0, head_of);
                self.counters.naks += 1;
                let taken = ask(&mut session.naks, &nak, head);
                self.counters.naks_dropped += u64::from(!taken);
                session.answers.left(now);
                Ok(())
            }
            Phase::Live => Err(CloseReason::Protocol),
        }
    }

    fn on_hello(&mut self, at: usize, header: &Header, payload: &[u8], frame: &[u8]) -> Result<(), CloseReason> {
        let hello = Hello::decode(header, payload).map_err(|_| CloseReason::Protocol)?;
        let ring = self.ring.as_ref().ok_or(CloseReason::SourceReplaced)?;
        let keyed = self.settings.key.is_some();
        let extended = hello.flags & hello_flag::EXTENDED != 0 && (self.settings.extension || keyed);
        let session = self.slots[at].as_mut().expect("the caller holds its place");
        session.extended = extended;
        if keyed && !extended {
            return Err(CloseReason::Unauthenticated);
        }
        session.delivery = select(&self.settings, hello.flags, session.peer);
        let head = head_of(ring);
        let (first, ahead) = begin_at(hello.wanted, head, ring.oldest().min(head + 1));
        session.cursor = first;
        session.head_before = first - 1;
        let mut flags = if ahead { geometry_flag::AHEAD } else { 0 };
        if session.delivery != Delivery::Stream {
            flags |= geometry_flag::DATAGRAMS;
        }
        if extended {
            flags |= geometry_flag::EXTENDED;
        }
        let greeting = Greeting { geometry: *ring.geometry(), flags, first };
        session.outbox.extend_from_slice(&greeting.encode());
        if session.delivery != Delivery::Stream {
            session.token = fresh_token(&mut self.random, &self.tokens, extended);
            let announce = announce(&self.settings, session, self.session);
            session.outbox.extend_from_slice(&announce.encode());
        }
        let multicast = session.delivery == Delivery::Multicast;
        let number = if multicast { self.group_number } else { self.random.number() };
        if extended {
            session.nonce = self.random.bytes();
            let trailer = session.delivery != Delivery::Stream;
            let ext = Ext {
                incarnation: ring.incarnation(),
                session: number,
                token: session.token,
                nonce: session.nonce,
                features: if keyed { feature::KEYED } else { 0 } | if trailer { feature::TRAILER } else { 0 },
            };
            session.outbox.extend_from_slice(&ext.encode());
            session.tag = (session.delivery == Delivery::Unicast).then_some(TagKey::Number(number));
        }
        if keyed {
            session.transcript.add(frame);
            session.transcript.add(&session.outbox);
            session.phase = Phase::Proof;
        } else {
            self.go_live(at);
        }
        Ok(())
    }

    fn on_proof(&mut self, at: usize, header: &Header, payload: &[u8]) -> Result<(), CloseReason> {
        let proof = Proof::decode(header, payload).map_err(|_| CloseReason::Protocol)?;
        let session = self.slots[at].as_mut().expect("the caller holds its place");
        let key = self.settings.key.as_ref().expect("this phase exists only with a key");
        if !mirror_proof_holds(key, &session.transcript, &proof.nonce, &proof.mac) {
            return Err(CloseReason::Unauthenticated);
        }
        let keys = SessionKeys::derive(key, &session.nonce, &proof.nonce);
        let sealed_group_key = keys.mask(&self.group_key);
        let mac = source_proof(key, &session.transcript, &proof.nonce, &sealed_group_key);
        session.outbox.extend_from_slice(&Accept { mac, sealed_group_key }.encode());
        session.authenticated = true;
        session.transcript.clear();
        if session.delivery == Delivery::Unicast {
            session.tag = Some(TagKey::Keyed(keys.to_mirror));
            session.punch_opener = Some(Opener::new(TagKey::Keyed(keys.to_source)));
        }
        self.go_live(at);
        Ok(())
    }

    fn go_live(&mut self, at: usize) {
        let session = self.slots[at].as_mut().expect("the caller holds its place");
        session.phase = Phase::Live;
        match session.delivery {
            Delivery::Unicast => {
                self.tokens.insert(session.token, session.id);
            }
            Delivery::Multicast if session.extended => {
                session.in_live = true;
                self.updates.push_back(LiveUpdate { id: session.id, to: Some(LiveTarget::Member) });
            }
            Delivery::Multicast | Delivery::Stream => {}
        }
    }

    /// `None`: the datagram is dropped.
    fn punch(&mut self, from: SocketAddr, bytes: &[u8], now: i64) -> Option<()> {
        let header = Header::decode(bytes).ok()?;
        if header.kind != kind::PUNCH || header.flags != self.session {
            return None;
        }
        let at = self.find(*self.tokens.get(&header.sequence)?)?;
        // Only what has a token costs more than receiving it, and only its holders use the allowance up.
        if self.punches.left(now) <= 0 {
            return None;
        }
        self.punches.left -= 1;
        let session = self.slots[at].as_mut().expect("found");
        match session.punch_opener.as_mut() {
            Some(opener) => {
                opener.open(bytes).ok().filter(|frame| frame.len() == HEADER_BYTES)?;
            }
            // Without a key only the host that said HELLO may aim the datagrams, and only at itself.
            None if bytes.len() != HEADER_BYTES => return None,
            None if from.ip().to_canonical() != session.peer.ip().to_canonical() => return None,
            None => {}
        }
        let moved_ns = match session.punched {
            Some(punched) if punched.address == from => punched.moved_ns,
            Some(punched) if now - punched.moved_ns < PUNCH_MOVE_NS => return None,
            _ => {
                let to = Some(LiveTarget::Address { address: from, tag: session.tag });
                self.updates.push_back(LiveUpdate { id: session.id, to });
                session.in_live = true;
                now
            }
        };
        session.punched = Some(Punched { address: from, heard_ns: now, moved_ns });
        let check_ns = now + PUNCH_NS_MAX;
        self.punch_check_ns =
            if self.punch_check_ns == i64::MIN { check_ns } else { self.punch_check_ns.min(check_ns) };
        Some(())
    }

    fn expire_punches(&mut self, now: i64) {
        if now < self.punch_check_ns {
            return;
        }
        let mut check_ns = i64::MIN;
        for session in self.slots.iter_mut().flatten() {
            let Some(punched) = session.punched else { continue };
            let until_ns = punched.heard_ns + PUNCH_NS_MAX;
            if until_ns <= now {
                session.punched = None;
                self.counters.punches_expired += 1;
                self.updates.push_back(LiveUpdate { id: session.id, to: Some(LiveTarget::Nowhere) });
            } else {
                check_ns = if check_ns == i64::MIN { until_ns } else { check_ns.min(until_ns) };
            }
        }
        self.punch_check_ns = if check_ns == i64::MIN { i64::MAX } else { check_ns };
    }

    fn session_deadline(&self, session: &Session) -> Option<i64> {
        if let Some(since) = session.sending_ns {
            return Some(since + WRITE_NS_MAX);
        }
        if session.closing.is_some() || !session.outbox.is_empty() {
            return Some(i64::MIN);
        }
        if session.phase != Phase::Live {
            return Some(session.since_ns + self.settings.handshake_ns_max);
        }
        let beat = (session.delivery == Delivery::Stream || session.extended)
            .then_some(session.sent_ns + self.settings.heartbeat_stream_ns);
        let linger = match (session.waiting_ns, self.settings.linger) {
            (Some(since), Linger::Fixed(us)) => Some(since + i64::from(us) * 1000),
            _ => None,
        };
        let answers = match () {
            () if session.naks.is_empty() => None,
            () if session.answers.left > 0 => Some(i64::MIN),
            () => Some(session.answers.ready_ns()),
        };
        beat.into_iter().chain(linger).chain(answers).min()
    }
}

/// When a session is to be closed without being polled, and why.
fn close_due(session: &Session, handshake_ns: i64) -> (i64, CloseReason) {
    match (session.sending_ns, session.closing) {
        (Some(since), _) => (since + WRITE_NS_MAX, CloseReason::WriteTimeout),
        (None, Some(reason)) if session.outbox.is_empty() => (i64::MIN, reason),
        // Its last word is sent first.
        (None, Some(reason)) => (i64::MAX, reason),
        (None, None) if session.phase != Phase::Live => {
            (session.since_ns + handshake_ns, CloseReason::HandshakeTimeout)
        }
        (None, None) => (i64::MAX, CloseReason::WriteTimeout),
    }
}

/// How a mirror with these HELLO flags is served. Datagrams are IPv4 (MULTICAST has room for no other address): one that
/// came by IPv6 could neither reach their port nor know where they come from.
fn select(settings: &ServeSettings, hello_flags: u8, peer: SocketAddr) -> Delivery {
    if peer.ip().to_canonical().is_ipv6() {
        return Delivery::Stream;
    }
    let can = hello_flags & hello_flag::UNICAST != 0;
    let prefers = hello_flags & hello_flag::PREFER_UNICAST != 0;
    match (settings.unicast_port, settings.multicast) {
        (Some(_), multicast) if can && (prefers || multicast.is_none()) => Delivery::Unicast,
        (_, Some(_)) => Delivery::Multicast,
        _ => Delivery::Stream,
    }
}

/// The first sequence that a mirror gets, and whether it wanted one that does not exist yet.
fn begin_at(wanted: u64, head: u64, oldest: u64) -> (u64, bool) {
    match wanted {
        WANT_NEW => (head + 1, false),
        WANT_OLDEST => (oldest, false),
        wanted if wanted > head + 1 => (head + 1, true),
        wanted => (wanted.max(oldest), false),
    }
}

/// A token that nobody has: 64 bits for mirrors of ours, the 32 that MULTICAST has room for otherwise.
fn fresh_token(random: &mut Random, taken: &HashMap<u64, SessionId>, extended: bool) -> u64 {
    loop {
        let token = if extended { random.number() } else { random.number() & u64::from(u32::MAX) };
        if token != 0 && !taken.contains_key(&token) {
            return token;
        }
    }
}

fn announce(settings: &ServeSettings, session: &Session, session_byte: u8) -> Announce {
    let datagram_bytes = u16::try_from(settings.datagram_bytes).unwrap_or(u16::MAX);
    // A mirror of ours finds its token in EXT; half of it here would only help to guess it.
    let token = if session.extended { 0 } else { session.token as u32 };
    let unicast = (Ipv4Addr::UNSPECIFIED, settings.unicast_port.unwrap_or(0), 0);
    let multicast = settings.multicast.map(|m| (*m.group.ip(), m.group.port(), m.ttl));
    let (group, port, ttl) = match session.delivery {
        Delivery::Unicast => unicast,
        _ => multicast.unwrap_or(unicast),
    };
    let token = if session.delivery == Delivery::Unicast { token } else { 0 };
    Announce { group, port, datagram_bytes, ttl, session: session_byte, token }
}

/// Adds a range to those that are asked for. `false`: nothing of it is published, or there are too many.
fn ask(naks: &mut Vec<(u64, u64)>, nak: &Nak, head: u64) -> bool {
    let mut first = nak.first.max(1);
    let mut last = nak.last.min(head);
    if first > last {
        return false;
    }
    last = last.min(first + NAK_RECORDS_MAX - 1);
    // What touches it becomes one with it.
    naks.retain(|&(from, to)| {
        let apart = to + 1 < first || from > last + 1;
        if !apart {
            (first, last) = (first.min(from), last.max(to));
        }
        apart
    });
    if naks.len() >= NAK_RANGES_MAX {
        return false;
    }
    let at = naks.partition_point(|&(from, _)| from < first);
    naks.insert(at, (first, last));
    true
}

/// What one DATA frame took from a ring.
struct Filled {
    records: u64,
    /// The record after them is gone: where it goes on.
    jump: Option<u64>,
}

/// Appends one DATA frame from `cursor` on, or nothing if there is no record.
fn fill<R: SourceRing>(ring: &mut R, out: &mut Vec<u8>, cursor: u64, records_max: u64, bytes_max: usize) -> Filled {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let mut records = 0u64;
    let mut jump = None;
    while records < records_max {
        let before = out.len();
        match ring.read(cursor + records, out) {
            ReadOutcome::Record if records > 0 && out.len() - start > bytes_max => {
                out.truncate(before);
                break;
            }
            ReadOutcome::Record => records += 1,
            ReadOutcome::NotYet => break,
            ReadOutcome::Lapped { oldest: to } | ReadOutcome::Absent { next: to } => {
                jump = Some(to.max(cursor + records + 1));
                break;
            }
        }
    }
    let bytes = out.len() - start - HEADER_BYTES;
    if records == 0 || u32::try_from(bytes).is_err() {
        out.truncate(start);
        return Filled { records: 0, jump };
    }
    let header = Header { kind: kind::DATA, flags: 0, count: records as u16, bytes: bytes as u32, sequence: cursor };
    out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    Filled { records, jump }
}

/// TCP delivery: all that piled up, as far as one poll takes it.
fn stream<R: SourceRing>(
    session: &mut Session,
    ring: &mut R,
    settings: &ServeSettings,
    counters: &mut SenderCounters,
    out: &mut Vec<u8>,
    now: i64,
) {
    let batch = u64::from(settings.batch_records.max(1));
    if let Linger::Fixed(us @ 1..) = settings.linger {
        let waiting = (head_of(ring) + 1).saturating_sub(session.cursor);
        if waiting > 0 && waiting < batch && now - *session.waiting_ns.get_or_insert(now) < i64::from(us) * 1000 {
            return;
        }
        session.waiting_ns = None;
    }
    let start = out.len();
    for _ in 0..JUMPS_MAX {
        let room = STREAM_FRAME_BYTES.saturating_sub(out.len() - start);
        if out.len() > start && room < HEADER_BYTES + ring.geometry().payload_bytes() {
            return;
        }
        let filled = fill(ring, out, session.cursor, batch, room);
        session.cursor += filled.records;
        counters.stream_records += filled.records;
        match filled.jump {
            Some(to) => {
                session.cursor = to;
                counters.gaps += 1;
                Gap { from: None, to }.encode_into(out);
            }
            None if filled.records < batch => return,
            None => {}
        }
    }
}

/// Answers to NAK, lowest first, as far as the session's allowance and one poll take it.
fn answer<R: SourceRing>(
    session: &mut Session,
    ring: &mut R,
    settings: &ServeSettings,
    counters: &mut SenderCounters,
    out: &mut Vec<u8>,
    now: i64,
) {
    if session.naks.is_empty() {
        return;
    }
    let batch = u64::from(settings.batch_records.max(1));
    let start = out.len();
    let allowed = session.answers.left(now);
    if allowed <= 0 {
        counters.naks_delayed += 1;
        return;
    }
    let limit = ANSWER_BYTES_PER_POLL.min(usize::try_from(allowed).unwrap_or(usize::MAX));
    let mut steps = 0;
    while let Some(&(first, last)) = session.naks.first()
        && out.len() - start < limit
        && steps < JUMPS_MAX
    {
        steps += 1;
        let frame = out.len();
        let oldest = ring.oldest().min(SEQUENCE_END - 1);
        let filled = if first < oldest {
            Filled { records: 0, jump: Some(oldest) }
        } else {
            fill(ring, out, first, batch.min(last - first + 1), STREAM_FRAME_BYTES)
        };
        counters.repaired_records += filled.records;
        let short = settings.fault == Fault::AnswerShort && first + filled.records > last;
        let mut next = first + filled.records;
        if short && filled.records > 0 {
            // Without its last record the frame is another one: it is taken back.
            let header = Header::decode(&out[frame..]).expect("just written");
            out.truncate(frame);
            fill(ring, out, first, u64::from(header.count) - 1, STREAM_FRAME_BYTES);
        }
        if let Some(to) = filled.jump {
            counters.gaps += 1;
            // A mirror of ours may still miss records below this range, and is told where the gap begins.
            let from = (session.extended && first >= oldest).then_some(next);
            Gap { from, to }.encode_into(out);
            next = to;
        }
        // Nothing there although it was published when it was asked for: the mirror asks again.
        if next > last || next == first {
            session.naks.remove(0);
        } else {
            session.naks[0].0 = next;
        }
        // A jump may pass whole ranges.
        if filled.jump.is_some() {
            session.naks.retain(|&(_, last)| last >= next);
            if let Some(range) = session.naks.first_mut() {
                range.0 = range.0.max(next);
            }
        }
    }
    session.answers.left -= (out.len() - start) as i64;
}

/// What a heartbeat tells, when nothing else went out for its interval.
fn beat<R: SourceRing>(
    session: &mut Session,
    ring: &R,
    settings: &ServeSettings,
    something_goes: bool,
    now: i64,
) -> Option<u64> {
    if something_goes || now - session.sent_ns < settings.heartbeat_stream_ns || session.waiting_ns.is_some() {
        return None;
    }
    match session.delivery {
        Delivery::Stream => Some(session.cursor - 1),
        // Beside datagrams only for mirrors of ours, with what was published one heartbeat ago: whatever of that has not
        // come is lost, and a mirror that no datagram reaches still gets everything by NAK.
        _ if session.extended => Some(core::mem::replace(&mut session.head_before, head_of(ring))),
        _ => None,
    }
}
