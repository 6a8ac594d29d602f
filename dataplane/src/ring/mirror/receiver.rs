//! One mirror: writes what the source sends into the local ring, at the next sequence only.

use core::net::{IpAddr, SocketAddr, SocketAddrV4};

use super::auth::PresharedKey;
use super::{CloseReason, Datagrams, MirrorRing, StreamPoll};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use crate::wire::ring::Geometry;

/// Datagrams that one step of a mirror handles before it looks at its stream (the peer's number): a caller that does its
/// own work between steps sees new records within a few frames.
pub const DATAGRAMS_PER_STEP: usize = 32;
/// Silence after which the connection is given up and made again: 25 heartbeats of a TCP stream.
pub const DEAD_NS: i64 = 5 * NANOS_PER_SECOND;

/// Where a mirror begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// What comes after it connected.
    #[default]
    Latest,
    /// All that the source retains.
    Oldest,
    /// After the last sequence of the local ring; all that the source retains where there is none.
    Resume,
    /// From this sequence, as far as the source retains it.
    Sequence(u64),
}

/// How a mirror behaves. The defaults are the peer's where it has one.
#[derive(Clone, Debug)]
pub struct MirrorSettings {
    /// Where the first connection begins; every later one resumes.
    pub start: Start,
    /// Whether unicast is preferred to multicast.
    pub prefer_unicast: bool,
    /// Whether the extension is asked for.
    pub extension: bool,
    /// With a key, only a source that proves it is mirrored.
    pub key: Option<PresharedKey>,
    /// Largest ring file that a source may ask for.
    pub ring_bytes_max: u64,
    /// Most datagrams held back while a hole is filled.
    pub held_datagrams_max: usize,
    /// Most bytes held back while a hole is filled.
    pub held_bytes_max: usize,
    /// Time after which a NAK is repeated if nothing of it came; doubles with each repeat, up to 32 times this.
    pub nak_repeat_ns: i64,
    /// Datagrams are taken from these addresses too, beside the one that was connected to (a source that sends its
    /// multicast from another interface; the host's own addresses when the source is on this host).
    pub datagrams_from: Vec<IpAddr>,
    /// Time from connect to a whole handshake.
    pub handshake_ns_max: i64,
    /// Silence after which the source counts as silent while datagrams deliver (heartbeats come each millisecond).
    pub silent_datagrams_ns: i64,
    /// The same while a stream delivers (heartbeats come each 200 ms).
    pub silent_stream_ns: i64,
}

impl Default for MirrorSettings {
    fn default() -> MirrorSettings {
        MirrorSettings {
            start: Start::Latest,
            prefer_unicast: false,
            extension: true,
            key: None,
            ring_bytes_max: 4 << 30,
            held_datagrams_max: 8192,
            held_bytes_max: 64 << 20,
            nak_repeat_ns: 20 * NANOS_PER_MILLI,
            datagrams_from: Vec::new(),
            handshake_ns_max: 5 * NANOS_PER_SECOND,
            silent_datagrams_ns: 250 * NANOS_PER_MILLI,
            silent_stream_ns: NANOS_PER_SECOND,
        }
    }
}

/// What the local ring already holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumePoint {
    /// The sequence it would take next.
    pub next: u64,
    /// The source's incarnation that its header carries; 0 is none.
    pub incarnation: u64,
    /// Its layout (its flags are a mirror's, not the source's).
    pub geometry: Geometry,
}

/// How the local ring is to be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// The file that [`MirrorHost::resume_point`] described, continued.
    Adopt,
    /// A new file.
    Fresh,
}

/// The local ring could not be opened; the host has logged why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the local ring could not be opened")]
pub struct OpenFailed;

/// What a mirror needs of its host.
pub trait MirrorHost {
    /// The local ring.
    type Ring: MirrorRing;

    /// What the local file holds, if it could be adopted. Asked while no ring is open.
    fn resume_point(&mut self) -> Option<ResumePoint>;

    /// Opens the local ring, touched in full: the first sequence that will be written is `first`, `incarnation` is the
    /// source's (0: none). With [`OpenMode::Adopt`] the file is taken over as it is, and `first` is its next.
    ///
    /// # Errors
    /// It could not be made; the session ends and the next one tries again.
    fn open(
        &mut self,
        geometry: &Geometry,
        first: u64,
        incarnation: u64,
        mode: OpenMode,
    ) -> Result<Self::Ring, OpenFailed>;
}

/// How a source delivers: what sockets the mirror needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// On the TCP stream.
    Stream,
    /// Join this group.
    Multicast(SocketAddrV4),
    /// Any local port: PUNCH goes to this address, datagrams come from it.
    Unicast(SocketAddr),
}

/// What became of a call of [`Receiver::on_bytes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamStep {
    /// One frame was handled: so many bytes at the front are used up.
    Frame {
        /// How many.
        bytes: usize,
    },
    /// Not a whole frame: call again when there are at least so many bytes.
    Need {
        /// How many in all.
        bytes: usize,
    },
    /// Close the connection.
    Close(CloseReason),
}

/// Where a mirror stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorStatus {
    /// A connection exists.
    pub connected: bool,
    /// The handshake is done: records are being written.
    pub live: bool,
    /// How they come; known with `live`.
    pub transport: Option<Transport>,
    /// The next sequence of the local ring; 0 without one.
    pub next: u64,
    /// The first sequence of this mirror's ring file: what lies below is history, not loss.
    pub first: u64,
    /// The highest sequence that the source is known to have sent.
    pub source_head: u64,
    /// When the source was last heard (`now` of that call).
    pub heard_ns: Option<i64>,
    /// Nothing was heard for longer than the settings' bound, or there is no connection.
    pub silent: bool,
    /// The source's incarnation; 0 is none or unknown.
    pub incarnation: u64,
    /// The session is authenticated.
    pub authenticated: bool,
    /// Datagrams held back now.
    pub held_datagrams: usize,
    /// And their bytes.
    pub held_bytes: usize,
}

/// What a [`Receiver`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiverCounters {
    /// Connections made.
    pub connections: u64,
    /// Ring files begun.
    pub rings: u64,
    /// Sessions that continued the local ring.
    pub resumed: u64,
    /// Records written.
    pub records: u64,
    /// Their bytes, blobs included.
    pub bytes: u64,
    /// Frames of the stream.
    pub frames: u64,
    /// Datagrams that were looked at.
    pub datagrams: u64,
    /// Records that came again.
    pub duplicate_records: u64,
    /// Records written from answers to NAK.
    pub repaired_records: u64,
    /// Datagrams that came early and were held back.
    pub held: u64,
    /// Datagrams that came early and were not: no room, or too far ahead.
    pub held_dropped: u64,
    /// Datagrams that contradicted one held back: both were dropped and the records asked for.
    pub held_conflicts: u64,
    /// NAK frames, repeats included.
    pub naks: u64,
    /// Of these, repeats.
    pub naks_repeated: u64,
    /// Jumps of the local ring.
    pub gaps: u64,
    /// Sequences that they left out.
    pub gap_records: u64,
    /// PUNCH datagrams.
    pub punches: u64,
    /// Heartbeats, of either kind.
    pub heartbeats: u64,
    /// Datagrams from an address that is not the source's.
    pub foreign: u64,
    /// Datagrams of another session (an earlier life of the source, another source on the group).
    pub other_session: u64,
    /// Datagrams that are no frame of this ring.
    pub malformed: u64,
    /// Datagrams whose MAC is wrong.
    pub forged: u64,
    /// Datagrams whose counter was seen or is too old.
    pub replayed: u64,
    /// Records that the local ring did not take: a gap.
    pub unwritable_records: u64,
}

/// One mirror. `now` is monotonic nanoseconds everywhere.
pub struct Receiver<H: MirrorHost> {
    host: H,
    settings: MirrorSettings,
    counters: ReceiverCounters,
    ring: Option<H::Ring>,
}

impl<H: MirrorHost> Receiver<H> {
    /// A mirror that is not connected. `seed` must be unguessable: its nonces come from it.
    pub fn new(settings: MirrorSettings, host: H, _seed: [u8; 32]) -> Receiver<H> {
        Receiver { host, settings, counters: ReceiverCounters::default(), ring: None }
    }

    /// The TCP connection to `source` is made.
    pub fn connected(&mut self, _source: SocketAddr, _now: i64) {}

    /// What the stream's buffer holds; at most one frame is handled. After [`StreamStep::Frame`] look at
    /// [`Receiver::transport`]: it may now ask for a socket.
    pub fn on_bytes(&mut self, _bytes: &[u8], _now: i64) -> StreamStep {
        StreamStep::Need { bytes: 16 }
    }

    /// One datagram; what it completes is visible to readers when this returns.
    pub fn on_datagram(&mut self, _from: SocketAddr, _bytes: &[u8], _now: i64) {}

    /// Several datagrams that came as one (UDP GRO): each has `segment_bytes`, the last may have fewer. Handles at most
    /// [`DATAGRAMS_PER_STEP`]; says how many bytes were used up.
    pub fn on_datagrams(&mut self, _from: SocketAddr, bytes: &[u8], _segment_bytes: u16, _now: i64) -> usize {
        bytes.len()
    }

    /// The connection is gone. The ring stays open and is continued if the next session allows it.
    pub fn disconnected(&mut self, _now: i64) {}

    /// What goes out on the stream (HELLO, NAK, …): call it whenever no send is under way, after each input and at each
    /// deadline.
    pub fn poll_stream(&mut self, _out: &mut Vec<u8>, _now: i64) -> StreamPoll {
        StreamPoll::Idle
    }

    /// Sends PUNCH when it is due (unicast); says how many datagrams were handed over.
    pub fn poll_datagrams(&mut self, _now: i64, _out: &mut impl Datagrams) -> usize {
        0
    }

    /// When something is due even if nothing comes in: poll stream and datagrams then.
    pub fn deadline(&self) -> Option<i64> {
        None
    }

    /// How the source delivers; `None` until the handshake says so.
    pub fn transport(&self) -> Option<Transport> {
        None
    }

    /// Where the mirror stands.
    pub fn status(&self, _now: i64) -> MirrorStatus {
        MirrorStatus {
            connected: false,
            live: false,
            transport: None,
            next: 0,
            first: 0,
            source_head: 0,
            heard_ns: None,
            silent: true,
            incarnation: 0,
            authenticated: false,
            held_datagrams: 0,
            held_bytes: 0,
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> &ReceiverCounters {
        &self.counters
    }

    /// The settings.
    pub fn settings(&self) -> &MirrorSettings {
        &self.settings
    }

    /// The local ring.
    pub fn ring(&self) -> Option<&H::Ring> {
        self.ring.as_ref()
    }

    /// The local ring, to look after it (its heartbeat).
    pub fn ring_mut(&mut self) -> Option<&mut H::Ring> {
        self.ring.as_mut()
    }

    /// The host.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }
}
