//! One served ring and all its mirrors: handshakes, the TCP stream, answers to NAK, and what [`super::live`] sends.

use core::net::{SocketAddr, SocketAddrV4};

use super::auth::PresharedKey;
use super::live::{LiveSender, LiveUpdate};
use super::{CloseReason, Datagrams, SourceRing, StreamPoll};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND};

/// A send that is not done after this long ends the session (the peer's write timeout).
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
    /// Time from accept to a whole handshake.
    pub handshake_ns_max: i64,
    /// Bytes per second that answers to NAK may take in one session; as many may come at once.
    pub nak_bytes_per_second: u64,
    /// PUNCH datagrams looked at per second, over all sessions.
    pub punches_per_second: u32,
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
            handshake_ns_max: 5 * NANOS_PER_SECOND,
            nak_bytes_per_second: 128 << 20,
            punches_per_second: 10_000,
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
    /// Heartbeats, of either kind.
    pub heartbeats: u64,
    /// NAK frames.
    pub naks: u64,
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

/// One served ring. `now` is monotonic nanoseconds everywhere.
pub struct Sender<R: SourceRing> {
    ring: Option<R>,
    settings: ServeSettings,
    counters: SenderCounters,
}

impl<R: SourceRing> Sender<R> {
    /// A sender without a ring. `seed` must be unguessable: session numbers, tokens and the group key come from it.
    pub fn new(settings: ServeSettings, _seed: [u8; 32]) -> Sender<R> {
        Sender { ring: None, settings, counters: SenderCounters::default() }
    }

    /// Serves `ring` from now on. Sessions of the ring before are told and closed: their mirrors connect again.
    pub fn attach(&mut self, ring: R, _now: i64) {
        self.ring = Some(ring);
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
    pub fn accept(&mut self, _peer: SocketAddr, _now: i64) -> Result<SessionId, Refusal> {
        Err(Refusal::NoRing)
    }

    /// Bytes that came on a session's stream; all are taken. Poll the stream afterwards: it says what follows.
    pub fn on_bytes(&mut self, _id: SessionId, _bytes: &[u8], _now: i64) {}

    /// The session's connection is gone.
    pub fn on_closed(&mut self, _id: SessionId) {}

    /// A datagram that came to the unicast port.
    pub fn on_datagram(&mut self, _from: SocketAddr, _bytes: &[u8], _now: i64) {}

    /// What goes out on a session's stream: call it whenever no send of the session is under way. Appends at most 1 MiB
    /// (more only if a single record is longer).
    pub fn poll_stream(&mut self, _id: SessionId, _out: &mut Vec<u8>, _now: i64) -> StreamPoll {
        StreamPoll::Idle
    }

    /// Sends at most about `max` datagrams; says how many were handed over.
    pub fn poll_datagrams(&mut self, _now: i64, _out: &mut impl Datagrams, _max: usize) -> usize {
        0
    }

    /// Takes the datagram half out, for a producer that sends its own; [`Sender::poll_datagrams`] then sends nothing, and
    /// what [`Sender::next_live_update`] says is to be carried to it. `None` without a UDP transport or when it is out already.
    pub fn detach_live(&mut self) -> Option<LiveSender> {
        None
    }

    /// The next change for a datagram half that was taken out.
    pub fn next_live_update(&mut self) -> Option<LiveUpdate> {
        None
    }

    /// Sessions to be closed although a send of theirs is under way, or without one; call it until `None` at each deadline.
    pub fn next_closed(&mut self, _now: i64) -> Option<(SessionId, CloseReason)> {
        None
    }

    /// When something is due even if nothing comes in: poll everything then.
    pub fn deadline(&self) -> Option<i64> {
        None
    }

    /// What happened so far.
    pub fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// The sessions, for `status`.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> + '_ {
        core::iter::empty()
    }
}
