//! One mirror: writes what the source sends into the local ring, at the next sequence only.

use core::net::{IpAddr, SocketAddr, SocketAddrV4};

use super::auth::{
    Opener, PresharedKey, Random, Sealer, SessionKeys, TagKey, TrailerError, Transcript, mirror_proof,
    source_proof_holds,
};
use super::loss::{Hold, Loss, LossSettings};
use super::{CloseReason, Datagrams, Destination, Fault, MirrorRing, SendOutcome, StreamPoll};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND};
use crate::wire::mirror::{
    Accept, Announce, EndReason, Ext, FrameError, Gap, Greeting, HEADER_BYTES, Header, Hello, Nak, Proof, Records,
    SEQUENCE_END, STREAM_FRAME_BYTES, TRAILER_BYTES, WANT_NEW, WANT_OLDEST, feature, file_bytes, geometry_flag,
    heartbeat_flag, hello_flag, kind, same_layout,
};
use crate::wire::ring::Geometry;

/// Datagrams that one step of a mirror handles before it looks at its stream (the peer's number): a caller that does its
/// own work between steps sees new records within a few frames.
pub const DATAGRAMS_PER_STEP: usize = 32;
/// Silence after which the connection is given up and made again: 25 heartbeats of a TCP stream.
pub const DEAD_NS: i64 = 5 * NANOS_PER_SECOND;

/// PUNCH goes out this often until datagrams come, and again when none came for [`UNHEARD_NS`] (the peer's interval).
pub const PUNCH_NS: i64 = 200 * NANOS_PER_MILLI;
/// PUNCH goes out this often while datagrams come, so that a NAT on the way remembers (the peer's interval).
pub const PUNCH_KEEPALIVE_NS: i64 = 5 * NANOS_PER_SECOND;
/// Datagrams count as not coming when there was none for this long: a thousand heartbeats.
pub const UNHEARD_NS: i64 = NANOS_PER_SECOND;
/// Longest payload of a frame other than DATA: an ACCEPT has 64, later kinds may have more.
const SMALL_BYTES_MAX: u32 = 1024;
/// No more NAKs are written while this many bytes of them wait for the stream.
const OUTBOX_BYTES_MAX: usize = 8 << 10;

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
    /// A planted bug.
    #[doc(hidden)]
    pub fault: Fault,
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
            fault: Fault::None,
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

impl core::fmt::Display for Transport {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Transport::Stream => f.write_str("tcp"),
            Transport::Multicast(group) => write!(f, "multicast {group}"),
            Transport::Unicast(source) => write!(f, "udp {source}"),
        }
    }
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
    /// When the last datagram of the source came: with a source that is heard but by datagrams not, their path is blocked, and
    /// all comes as repair.
    pub datagram_ns: Option<i64>,
    /// Nothing was heard for longer than the settings' bound, or there is no connection.
    pub silent: bool,
    /// The source answers, but says that its ring's producer is dead or stalls (a source of ours only).
    pub producer_gone: bool,
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
    pub held_refused: u64,
    /// Datagrams that were held back and given up: for one that is nearer, or because they cannot be true.
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
    /// Datagrams whose counter was seen (a second copy's, too) or is too old.
    pub replayed: u64,
    /// Records that the local ring did not take: a gap.
    pub unwritable_records: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Down,
    Greeting,
    Announce,
    Ext,
    Accept,
    Live,
}

/// One mirror. `now` is monotonic nanoseconds everywhere.
pub struct Receiver<H: MirrorHost> {
    host: H,
    settings: MirrorSettings,
    counters: ReceiverCounters,
    random: Random,
    ring: Option<H::Ring>,
    /// The open ring's layout and incarnation.
    geometry: Geometry,
    incarnation: u64,
    first: u64,
    /// A ring was opened since this machine exists: later sessions resume.
    begun: bool,
    /// The next session asks for all that is retained and begins a new file.
    start_over: bool,
    loss: Loss,
    /// The last PUNCH.
    punch: Vec<u8>,
    session: Session,
}

/// What lasts as long as one connection.
struct Session {
    phase: Phase,
    source: Option<SocketAddr>,
    connected_ns: i64,
    outbox: Vec<u8>,
    resume: Option<ResumePoint>,
    greeting: Option<Greeting>,
    announce: Option<Announce>,
    ext: Option<Ext>,
    transcript: Transcript,
    nonce: [u8; 16],
    group_key: [u8; 32],
    keys: Option<SessionKeys>,
    transport: Option<Transport>,
    session: u8,
    opener: Option<Opener>,
    token: u64,
    punch_sealer: Option<Sealer>,
    punched_ns: Option<i64>,
    datagram_ns: Option<i64>,
    heard_ns: Option<i64>,
    /// When nothing was missing, or some of it came, or the stream said something.
    progress_ns: i64,
    /// Time went by unseen (a ring was made): hearing begins with the next look.
    settle: bool,
    /// The source says that its ring's producer is dead or stalls.
    producer_gone: bool,
    source_head: u64,
}

impl Session {
    fn new(phase: Phase) -> Session {
        Session {
            phase,
            source: None,
            connected_ns: 0,
            outbox: Vec::new(),
            resume: None,
            greeting: None,
            announce: None,
            ext: None,
            transcript: Transcript::default(),
            nonce: [0; 16],
            group_key: [0; 32],
            keys: None,
            transport: None,
            session: 0,
            opener: None,
            token: 0,
            punch_sealer: None,
            punched_ns: None,
            datagram_ns: None,
            heard_ns: None,
            progress_ns: 0,
            settle: false,
            producer_gone: false,
            source_head: 0,
        }
    }
}

impl<H: MirrorHost> Receiver<H> {
    /// A mirror that is not connected. `seed` must be unguessable: its nonces come from it.
    pub fn new(settings: MirrorSettings, host: H, seed: [u8; 32]) -> Receiver<H> {
        let loss = Loss::new(LossSettings {
            datagrams_max: settings.held_datagrams_max,
            bytes_max: settings.held_bytes_max,
            repeat_ns: settings.nak_repeat_ns,
            trusted: false,
        });
        Receiver {
            host,
            settings,
            counters: ReceiverCounters::default(),
            random: Random::new(&seed),
            ring: None,
            geometry: Geometry::default(),
            incarnation: 0,
            first: 0,
            begun: false,
            start_over: false,
            loss,
            punch: Vec::with_capacity(HEADER_BYTES + TRAILER_BYTES),
            session: Session::new(Phase::Down),
        }
    }

    /// The TCP connection to `source` is made.
    pub fn connected(&mut self, source: SocketAddr, now: i64) {
        let start = match self.settings.start {
            _ if self.start_over => Start::Oldest,
            _ if self.begun => Start::Resume,
            start => start,
        };
        let mut session = Session::new(Phase::Greeting);
        session.source = Some(source);
        session.connected_ns = now;
        if start == Start::Resume {
            let open = self.ring.as_ref().map(|ring| ResumePoint {
                next: ring.next(),
                incarnation: self.incarnation,
                geometry: self.geometry,
            });
            let point = open.or_else(|| self.host.resume_point());
            // A file that ends at an impossible sequence is not continued.
            session.resume = point.filter(|point| (1..SEQUENCE_END).contains(&point.next));
        }
        let wanted = match start {
            Start::Latest => WANT_NEW,
            Start::Oldest => WANT_OLDEST,
            Start::Sequence(sequence) => sequence.max(1),
            Start::Resume => session.resume.map_or(WANT_OLDEST, |point| point.next),
        };
        let mut flags = hello_flag::UNICAST;
        if self.settings.prefer_unicast {
            flags |= hello_flag::PREFER_UNICAST;
        }
        if self.settings.extension || self.settings.key.is_some() {
            flags |= hello_flag::EXTENDED;
        }
        let hello = Hello { wanted, flags }.encode();
        session.transcript.add(&hello);
        session.outbox.extend_from_slice(&hello);
        self.session = session;
        self.loss.reset(false);
        self.counters.connections += 1;
    }

    /// Bytes came on the stream, a whole frame or not: however long a frame takes, its source is no silent one.
    pub fn heard(&mut self, now: i64) {
        if self.session.phase == Phase::Live {
            self.session.heard_ns = Some(now);
            self.session.progress_ns = now;
        }
    }

    /// What the stream's buffer holds; at most one frame is handled. After [`StreamStep::Frame`] look at
    /// [`Receiver::transport`]: it may now ask for a socket.
    pub fn on_bytes(&mut self, bytes: &[u8], now: i64) -> StreamStep {
        let Ok(header) = Header::decode(bytes) else { return StreamStep::Need { bytes: HEADER_BYTES } };
        if self.session.phase == Phase::Down {
            return StreamStep::Close(CloseReason::Protocol);
        }
        if header.bytes > self.payload_bytes_max(header.kind) {
            return self.close(CloseReason::Protocol);
        }
        let Some(frame) = bytes.get(..header.frame_bytes()) else {
            return StreamStep::Need { bytes: header.frame_bytes() };
        };
        self.counters.frames += 1;
        self.session.heard_ns = Some(now);
        self.session.progress_ns = now;
        match self.on_frame(&header, frame, now) {
            Ok(()) => StreamStep::Frame { bytes: frame.len() },
            Err(reason) => self.close(reason),
        }
    }

    /// One datagram; what it completes is visible to readers when this returns.
    pub fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], now: i64) {
        let written = self.datagram(from, bytes, now);
        self.after_datagrams(written, now);
    }

    /// Several datagrams that came as one (UDP GRO): each has `segment_bytes`, the last may have fewer. Handles at most
    /// [`DATAGRAMS_PER_STEP`]; says how many bytes were used up.
    pub fn on_datagrams(&mut self, from: SocketAddr, bytes: &[u8], segment_bytes: u16, now: i64) -> usize {
        let mut written = false;
        let mut used = 0;
        for datagram in bytes.chunks(usize::from(segment_bytes.max(1))).take(DATAGRAMS_PER_STEP) {
            written |= self.datagram(from, datagram, now);
            used += datagram.len();
        }
        self.after_datagrams(written, now);
        used
    }

    #[inline]
    fn after_datagrams(&mut self, written: bool, now: i64) {
        if written {
            self.publish();
            self.session.progress_ns = now;
        }
        self.ask(now);
    }

    /// The connection is gone. The ring stays open and is continued if the next session allows it.
    pub fn disconnected(&mut self, _now: i64) {
        let heard_ns = self.session.heard_ns;
        self.session = Session::new(Phase::Down);
        self.session.heard_ns = heard_ns;
        self.loss.reset(false);
    }

    /// What goes out on the stream (HELLO, NAK, …): call it whenever no send is under way, after each input and at each
    /// deadline.
    pub fn poll_stream(&mut self, out: &mut Vec<u8>, now: i64) -> StreamPoll {
        match self.session.phase {
            Phase::Down => return StreamPoll::Idle,
            Phase::Live => {
                if core::mem::take(&mut self.session.settle) {
                    self.session.heard_ns = Some(now);
                    self.session.progress_ns = now;
                }
                self.ask(now);
                // Datagrams alone prove nothing about the stream: with a hole that nothing fills it is as dead.
                if self.silence_ns(now) >= DEAD_NS || now - self.session.progress_ns >= DEAD_NS {
                    self.close(CloseReason::SourceSilent);
                    return StreamPoll::Close(CloseReason::SourceSilent);
                }
            }
            _ if now - self.session.connected_ns >= self.settings.handshake_ns_max => {
                self.close(CloseReason::HandshakeTimeout);
                return StreamPoll::Close(CloseReason::HandshakeTimeout);
            }
            _ => {}
        }
        if self.session.outbox.is_empty() {
            return StreamPoll::Idle;
        }
        out.append(&mut self.session.outbox);
        StreamPoll::Data
    }

    /// Sends PUNCH when it is due (unicast); says how many datagrams were handed over.
    pub fn poll_datagrams(&mut self, now: i64, out: &mut impl Datagrams) -> usize {
        let Some(Transport::Unicast(to)) = self.session.transport else { return 0 };
        if self.punch_due_ns().is_none_or(|due| due > now) {
            return 0;
        }
        let header = Header::bare(kind::PUNCH, self.session.session, self.session.token);
        self.punch.clear();
        self.punch.extend_from_slice(&header.encode());
        if let Some(sealer) = self.session.punch_sealer.as_mut() {
            sealer.seal(&mut self.punch, 0);
        }
        if out.send(Destination::Unicast(to), &self.punch, None) == SendOutcome::WouldBlock {
            return 0;
        }
        self.session.punched_ns = Some(now);
        self.counters.punches += 1;
        1
    }

    /// When something is due even if nothing comes in: poll stream and datagrams then.
    pub fn deadline(&self) -> Option<i64> {
        let session = &self.session;
        match session.phase {
            Phase::Down => None,
            _ if !session.outbox.is_empty() => Some(i64::MIN),
            Phase::Live => {
                let heard_ns = session.heard_ns.unwrap_or(session.connected_ns);
                let dead_ns = Some(heard_ns.min(session.progress_ns) + DEAD_NS);
                [dead_ns, self.loss.deadline(), self.punch_due_ns()].into_iter().flatten().min()
            }
            _ => Some(session.connected_ns + self.settings.handshake_ns_max),
        }
    }

    /// How the source delivers; `None` until the handshake says so.
    pub fn transport(&self) -> Option<Transport> {
        self.session.transport
    }

    /// Where the mirror stands.
    pub fn status(&self, now: i64) -> MirrorStatus {
        let live = self.session.phase == Phase::Live;
        let bound_ns = match self.session.transport {
            Some(Transport::Multicast(_) | Transport::Unicast(_)) => self.settings.silent_datagrams_ns,
            _ => self.settings.silent_stream_ns,
        };
        let next = self.ring.as_ref().map_or(0, MirrorRing::next);
        let (held_datagrams, held_bytes) = self.loss.held();
        MirrorStatus {
            connected: self.session.phase != Phase::Down,
            live,
            transport: self.session.transport,
            next,
            first: self.first,
            source_head: self.session.source_head.max(next.saturating_sub(1)),
            heard_ns: self.session.heard_ns,
            producer_gone: self.session.producer_gone,
            datagram_ns: self.session.datagram_ns,
            silent: !live || (!self.session.settle && self.silence_ns(now) > bound_ns),
            incarnation: self.incarnation,
            authenticated: self.session.keys.is_some(),
            held_datagrams,
            held_bytes,
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

    /// Datagrams are taken from this address too, from now on.
    pub fn also_from(&mut self, address: IpAddr) {
        self.settings.datagrams_from.push(address);
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

    fn close(&mut self, reason: CloseReason) -> StreamStep {
        self.session.phase = Phase::Down;
        self.session.transport = None;
        self.session.outbox.clear();
        StreamStep::Close(reason)
    }

    fn silence_ns(&self, now: i64) -> i64 {
        now - self.session.heard_ns.unwrap_or(self.session.connected_ns)
    }

    /// When the next PUNCH is due.
    fn punch_due_ns(&self) -> Option<i64> {
        let Some(Transport::Unicast(_)) = self.session.transport else { return None };
        let Some(punched_ns) = self.session.punched_ns else { return Some(i64::MIN) };
        let unheard_ns = self.session.datagram_ns.map_or(i64::MIN, |heard_ns| heard_ns + UNHEARD_NS);
        Some((punched_ns + PUNCH_NS).max(unheard_ns).min(punched_ns + PUNCH_KEEPALIVE_NS))
    }

    /// What a frame of this kind may be long: memory is never taken for more.
    fn payload_bytes_max(&self, kind: u8) -> u32 {
        if kind != kind::DATA || self.session.phase != Phase::Live {
            return SMALL_BYTES_MAX;
        }
        // A single record may be longer than a frame otherwise is; it is never longer than the ring that holds it.
        let record = self.geometry.payload_bytes() as u64 + self.geometry.arena_size;
        u32::try_from(record.max(STREAM_FRAME_BYTES as u64)).unwrap_or(u32::MAX)
    }

    fn on_frame(&mut self, header: &Header, frame: &[u8], now: i64) -> Result<(), CloseReason> {
        let payload = &frame[HEADER_BYTES..];
        if header.kind == kind::END {
            return Err(match EndReason::decode(header) {
                EndReason::SourceReplaced => CloseReason::SourceReplaced,
                EndReason::KeyRequired => CloseReason::KeyRequired,
                EndReason::Other => CloseReason::SourceEnded,
            });
        }
        match self.session.phase {
            Phase::Greeting => {
                let greeting = Greeting::decode(header, payload).map_err(|_| CloseReason::Protocol)?;
                let bytes = file_bytes(&greeting.geometry).map_err(|_| CloseReason::Protocol)?;
                if bytes > self.settings.ring_bytes_max {
                    return Err(CloseReason::GeometryLimit);
                }
                let extended = greeting.flags & geometry_flag::EXTENDED != 0;
                if self.settings.key.is_some() && !extended {
                    return Err(CloseReason::Unauthenticated);
                }
                self.session.transcript.add(frame);
                self.session.greeting = Some(greeting);
                match greeting.flags & geometry_flag::DATAGRAMS != 0 {
                    true => self.session.phase = Phase::Announce,
                    false if extended => self.session.phase = Phase::Ext,
                    false => self.begin(now)?,
                }
            }
            Phase::Announce => {
                self.session.announce = Some(Announce::decode(header, payload).map_err(|_| CloseReason::Protocol)?);
                self.session.transcript.add(frame);
                let extended = self.session.greeting.is_some_and(|g| g.flags & geometry_flag::EXTENDED != 0);
                match extended {
                    true => self.session.phase = Phase::Ext,
                    false => self.begin(now)?,
                }
            }
            Phase::Ext => {
                let ext = Ext::decode(header, payload).map_err(|_| CloseReason::Protocol)?;
                self.session.transcript.add(frame);
                self.session.ext = Some(ext);
                match (&self.settings.key, ext.features & feature::KEYED != 0) {
                    (None, false) => self.begin(now)?,
                    (None, true) => return Err(CloseReason::KeyRequired),
                    (Some(_), false) => return Err(CloseReason::Unauthenticated),
                    (Some(key), true) => {
                        self.session.nonce = self.random.bytes();
                        let mac = mirror_proof(key, &self.session.transcript, &self.session.nonce);
                        let proof = Proof { nonce: self.session.nonce, mac };
                        self.session.outbox.extend_from_slice(&proof.encode());
                        self.session.phase = Phase::Accept;
                    }
                }
            }
            Phase::Accept => {
                self.on_accept(header, payload)?;
                self.begin(now)?;
            }
            Phase::Live => self.on_live_frame(header, payload, now)?,
            Phase::Down => return Err(CloseReason::Protocol),
        }
        Ok(())
    }

    fn on_accept(&mut self, header: &Header, payload: &[u8]) -> Result<(), CloseReason> {
        let accept = Accept::decode(header, payload).map_err(|_| CloseReason::Protocol)?;
        let session = &mut self.session;
        let (Some(key), Some(ext)) = (&self.settings.key, &session.ext) else { return Err(CloseReason::Protocol) };
        let sealed = &accept.sealed_group_key;
        if !source_proof_holds(key, &session.transcript, &session.nonce, sealed, &accept.mac) {
            return Err(CloseReason::Unauthenticated);
        }
        let keys = SessionKeys::derive(key, &ext.nonce, &session.nonce);
        session.group_key = keys.mask(sealed);
        session.keys = Some(keys);
        Ok(())
    }

    /// The handshake is done: opens the ring, or finds that it holds another history.
    fn begin(&mut self, now: i64) -> Result<(), CloseReason> {
        let greeting = self.session.greeting.expect("begins after GEOMETRY");
        let Greeting { geometry, first, .. } = greeting;
        self.choose_transport()?;
        let incarnation = self.session.ext.map_or(0, |ext| ext.incarnation);
        let same_history = |point: &ResumePoint| {
            let same = incarnation != 0 && incarnation == point.incarnation;
            same || self.settings.fault == Fault::SpliceHistories
        };
        match self.session.resume {
            Some(point) if same_history(&point) && same_layout(&point.geometry, &geometry) => {
                self.adopt(&geometry, &point, incarnation)?;
                self.skip_to(first);
                // Readers see the gap although the source may be idle.
                self.publish();
                self.counters.resumed += 1;
            }
            Some(point)
                if incarnation != 0
                    || greeting.flags & geometry_flag::AHEAD != 0
                    || !same_layout(&point.geometry, &geometry) =>
            {
                // `first` belongs to a question about another history: ask again, for all that there is.
                self.start_over = true;
                return Err(CloseReason::OtherHistory);
            }
            // Nothing tells which history this is. A new file is the marker that it may be another.
            _ => {
                self.ring = None;
                let ring = self.host.open(&geometry, first, incarnation, OpenMode::Fresh);
                self.ring = Some(ring.map_err(|OpenFailed| CloseReason::RingFailed)?);
                self.first = first;
                self.counters.rings += 1;
            }
        }
        (self.geometry, self.incarnation) = (geometry, incarnation);
        (self.begun, self.start_over) = (true, false);
        // With a trailer nobody beside the source (and its group) makes datagrams: what is held needs no doubt.
        self.loss.reset(self.session.opener.is_some());
        self.session.source_head = first - 1;
        self.session.settle = true;
        self.session.heard_ns = Some(now);
        self.session.phase = Phase::Live;
        Ok(())
    }

    fn adopt(&mut self, geometry: &Geometry, point: &ResumePoint, incarnation: u64) -> Result<(), CloseReason> {
        if self.ring.is_none() {
            let ring = self.host.open(geometry, point.next, incarnation, OpenMode::Adopt);
            self.ring = Some(ring.map_err(|OpenFailed| CloseReason::RingFailed)?);
            self.first = point.next;
        }
        Ok(())
    }

    fn choose_transport(&mut self) -> Result<(), CloseReason> {
        let session = &mut self.session;
        let source = session.source.ok_or(CloseReason::Protocol)?;
        let Some(announce) = session.announce else {
            session.transport = Some(Transport::Stream);
            return Ok(());
        };
        session.session = announce.session;
        session.token = session.ext.map_or(u64::from(announce.token), |ext| ext.token);
        let unicast = announce.group.is_unspecified();
        session.transport = Some(match unicast {
            true => Transport::Unicast(SocketAddr::new(source.ip(), announce.port)),
            false => Transport::Multicast(SocketAddrV4::new(announce.group, announce.port)),
        });
        let trailer = session.ext.is_some_and(|ext| ext.features & feature::TRAILER != 0);
        let tag = match (&session.keys, session.ext) {
            (Some(_), _) if !trailer => return Err(CloseReason::Unauthenticated),
            (Some(keys), _) if unicast => Some(TagKey::Keyed(keys.to_mirror)),
            (Some(_), _) => Some(TagKey::Keyed(session.group_key)),
            (None, Some(ext)) if trailer => Some(TagKey::Number(ext.session)),
            _ => None,
        };
        session.opener = tag.map(Opener::new);
        session.punch_sealer = session.keys.as_ref().map(|keys| Sealer::new(TagKey::Keyed(keys.to_source)));
        Ok(())
    }

    fn on_live_frame(&mut self, header: &Header, payload: &[u8], now: i64) -> Result<(), CloseReason> {
        let streams = self.session.transport == Some(Transport::Stream);
        match header.kind {
            kind::DATA => {
                let records = Records::new(&self.geometry, header, payload).map_err(|_| CloseReason::Protocol)?;
                let end = header.sequence + u64::from(header.count);
                if streams {
                    let next = self.next();
                    if header.sequence < next && self.incarnation == 0 {
                        // The source's numbering began again.
                        self.start_over = true;
                        return Err(CloseReason::OtherHistory);
                    }
                    self.session.producer_gone = false;
                    self.skip_to(header.sequence);
                    self.write(records, header.sequence);
                } else {
                    self.loss.answered(header.sequence, end, now);
                    let before = self.next();
                    self.apply(header, payload, records, true, now);
                    let repaired = self.next().min(end).saturating_sub(before.max(header.sequence));
                    self.counters.repaired_records += repaired;
                }
                self.session.source_head = self.session.source_head.max(end - 1);
                self.publish();
                self.ask(now);
            }
            kind::GAP => {
                let gap = Gap::decode(header, payload).map_err(|error| match error {
                    FrameError::Sequence { .. } => CloseReason::SequenceLimit,
                    _ => CloseReason::Protocol,
                })?;
                self.loss.answered(0, gap.to, now);
                match gap.from {
                    Some(from) if from > self.next() && from < gap.to && !streams => self.loss.gone(from, gap.to),
                    _ => self.pass_gap(gap.to, now),
                }
                self.publish();
                self.ask(now);
            }
            kind::HEARTBEAT => {
                if header.sequence >= SEQUENCE_END {
                    return Err(CloseReason::SequenceLimit);
                }
                self.counters.heartbeats += 1;
                let gone = header.flags & heartbeat_flag::NO_PRODUCER != 0;
                self.session.producer_gone = gone && self.session.ext.is_some();
                self.session.source_head = self.session.source_head.max(header.sequence);
                if !streams {
                    self.loss.announced_at_least(header.sequence);
                    self.ask(now);
                }
            }
            kind::MULTICAST => {}
            // A later source of ours may know more.
            kind if kind > kind::END && self.session.ext.is_some() => {}
            _ => return Err(CloseReason::Protocol),
        }
        Ok(())
    }

    fn next(&self) -> u64 {
        self.ring.as_ref().map_or(1, MirrorRing::next)
    }

    fn publish(&mut self) {
        if let Some(ring) = self.ring.as_mut() {
            ring.publish();
        }
    }

    /// The ring goes on at `to`, if that lies ahead: a gap.
    fn skip_to(&mut self, to: u64) {
        let next = self.next();
        if to > next
            && let Some(ring) = self.ring.as_mut()
        {
            ring.skip_to(to);
            self.counters.gaps += 1;
            self.counters.gap_records += to - next;
        }
    }

    /// Writes those of `records` (the first is `first`) that are at or beyond the next sequence.
    fn write(&mut self, records: Records<'_>, first: u64) {
        let Some(ring) = self.ring.as_mut() else { return };
        let next = ring.next();
        let mut sequence = if self.settings.fault == Fault::OverlapFromStart { first.max(next) } else { first };
        let mut bytes = 0;
        let mut written = 0;
        for (slot, blob) in records {
            if sequence >= next {
                match ring.write(slot, blob) {
                    Ok(()) => {
                        written += 1;
                        bytes += slot.len() + blob.len();
                    }
                    Err(_) => {
                        ring.skip_to(sequence + 1);
                        self.counters.unwritable_records += 1;
                        self.counters.gaps += 1;
                        self.counters.gap_records += 1;
                    }
                }
            }
            sequence += 1;
        }
        self.counters.records += written;
        self.counters.bytes += bytes as u64;
        self.counters.duplicate_records += next.min(sequence).saturating_sub(first);
    }

    /// What datagram or repair brought: written if it continues the ring, held back if it is early.
    fn apply(&mut self, header: &Header, payload: &[u8], records: Records<'_>, authoritative: bool, now: i64) -> bool {
        let first = header.sequence;
        let end = first + u64::from(header.count);
        let next = self.next();
        if end <= next {
            self.counters.duplicate_records += u64::from(header.count);
            return false;
        }
        if first <= next {
            self.write(records, first);
            if !self.loss.is_quiet(end) {
                self.drain(!authoritative, now);
            }
            return true;
        }
        // So far ahead the source retains nothing of the hole any more: it will say so when asked.
        if !authoritative && first - next > self.geometry.capacity {
            self.loss.announced_at_least(end - 1);
            self.counters.held_refused += 1;
            return false;
        }
        if self.settings.fault == Fault::EarlyIsGap {
            self.skip_to(first);
            self.write(records, first);
            return true;
        }
        match self.loss.hold(first, header.count, payload, authoritative, now) {
            Hold::Held => self.counters.held += 1,
            Hold::Duplicate => self.counters.duplicate_records += u64::from(header.count),
            Hold::Conflict => self.counters.held_conflicts += 1,
            Hold::NoRoom => {
                self.loss.announced_at_least(end - 1);
                self.counters.held_refused += 1;
            }
        }
        false
    }

    /// Writes what is held and continues the ring, and passes what is gone.
    fn drain(&mut self, live: bool, now: i64) {
        loop {
            self.drain_held(live, now);
            let Some(to) = self.loss.take_gone(self.next()) else { return };
            self.pass_held(to, now);
            self.skip_to(to);
        }
    }

    fn drain_held(&mut self, live: bool, now: i64) {
        while let Some(ready) = self.loss.take(self.next(), live, now) {
            let header =
                Header { count: ready.count, sequence: ready.first, ..Header::bare(kind::DATA, 0, ready.first) };
            if let Ok(records) = Records::new(&self.geometry, &header, &ready.bytes) {
                let before = self.next();
                self.write(records, ready.first);
                if ready.authoritative {
                    self.counters.repaired_records += self.next() - before;
                }
            }
            self.loss.recycle(ready.bytes);
        }
    }

    /// Nothing below `to` comes any more, but what is held of it is written.
    fn pass_gap(&mut self, to: u64, now: i64) {
        self.pass_held(to, now);
        self.skip_to(to);
        self.drain(false, now);
    }

    fn pass_held(&mut self, to: u64, now: i64) {
        while let Some(held) = self.loss.first_held()
            && held < to
            && self.settings.fault != Fault::GapDropsHeld
        {
            self.skip_to(held);
            self.drain_held(false, now);
        }
    }

    /// Writes NAKs that are due.
    fn ask(&mut self, now: i64) {
        let next = self.next();
        self.counters.held_dropped = self.loss.dropped();
        if self.session.phase != Phase::Live || self.loss.is_quiet(next) {
            self.session.progress_ns = now;
            return;
        }
        while self.session.outbox.len() < OUTBOX_BYTES_MAX
            && let Some(ask) = self.loss.next_ask(next, now)
        {
            self.session.outbox.extend_from_slice(&Nak { first: ask.first, last: ask.last }.encode());
            self.counters.naks += 1;
            self.counters.naks_repeated += u64::from(ask.repeat);
        }
    }

    /// Whether an address is one that this source's datagrams come from.
    fn is_source(&self, from: SocketAddr) -> bool {
        let Some(source) = self.session.source else { return false };
        if let Some(Transport::Unicast(to)) = self.session.transport
            && from.port() != to.port()
        {
            return false;
        }
        let from = from.ip().to_canonical();
        from == source.ip().to_canonical()
            || self.settings.datagrams_from.iter().any(|address| address.to_canonical() == from)
    }

    /// Whether records were written, which are then to be published.
    fn datagram(&mut self, from: SocketAddr, bytes: &[u8], now: i64) -> bool {
        let datagrams = matches!(self.session.transport, Some(Transport::Multicast(_) | Transport::Unicast(_)));
        if self.session.phase != Phase::Live || !datagrams {
            return false;
        }
        self.counters.datagrams += 1;
        if !self.is_source(from) {
            self.counters.foreign += 1;
            return false;
        }
        let Ok(header) = Header::decode(bytes) else {
            self.counters.malformed += 1;
            return false;
        };
        if header.flags != self.session.session {
            self.counters.other_session += 1;
            return false;
        }
        let frame = match self.session.opener.as_mut().map(|opener| opener.open(bytes)) {
            None => bytes,
            Some(Ok(frame)) => frame,
            Some(Err(_)) if self.settings.fault == Fault::TakesForged => bytes,
            Some(Err(error)) => {
                match error {
                    TrailerError::Replayed => self.counters.replayed += 1,
                    TrailerError::Forged | TrailerError::Missing => self.counters.forged += 1,
                }
                return false;
            }
        };
        self.session.heard_ns = Some(now);
        self.session.datagram_ns = Some(now);
        match header.kind {
            kind::DATA => {
                let payload = frame.get(HEADER_BYTES..header.frame_bytes());
                let records = payload.map(|payload| (payload, Records::new(&self.geometry, &header, payload)));
                let Some((payload, Ok(records))) = records else {
                    self.counters.malformed += 1;
                    return false;
                };
                self.apply(&header, payload, records, false, now)
            }
            kind::HEARTBEAT if header.sequence < SEQUENCE_END => {
                self.counters.heartbeats += 1;
                // The last word counts: a lie is gone with the next heartbeat.
                self.session.source_head = header.sequence;
                self.loss.announced(header.sequence);
                false
            }
            _ => {
                self.counters.malformed += 1;
                false
            }
        }
    }
}
