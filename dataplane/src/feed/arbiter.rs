//! A/B arbitration: several lossy copies of one feed in, one ordered, duplicate-free stream out.
//!
//! A pure machine: segments and `now` go in; calls of a [`Sink`] and the next deadline come out. All memory is
//! reserved by [`Arbiter::new`]. The rules on runs, gaps, holds and liveness:
//! the message `next` is emitted from the wire by whichever side brings it first; what lies beyond a hole is copied
//! into the window; a hole is a gap once no live side can fill it, or the window or `hold` force it; what comes later
//! is a late fill, told apart and never emitted backwards.

mod report;
mod stream;

pub use report::{ArbiterReport, Residue, SideReport, StreamReport, Unattributed};
pub use stream::{Stream, StreamCounts};

use self::stream::{Context, Delivery, SideSet};
use super::intervals::RANGES_MAX;
use super::runs::{Claim, Doubt, Place, SUSPECTS_PER_SIDE_MAX, Session, Suspect, Verdict};
use super::window::{BODY_BYTES_MAX, SlotPool, Stored};
use crate::units::{NANOS_PER_MILLI, NANOS_PER_SECOND, SIDES_MAX, Side, StreamId};
use crate::wire::segment::{Segment, SegmentKind, SessionKey};

/// Default window: what two sides 65 ms apart differ by at a million messages a second.
pub const WINDOW_MESSAGES_DEFAULT: u32 = 65_536;
/// Largest window: 16 Mi messages; its slots take 2.5 GB.
pub const WINDOW_MESSAGES_MAX: u32 = 1 << 24;
/// Default hold of a live feed: beyond the skew of any two paths of one exchange, short for a reader.
pub const HOLD_NS_LIVE: i64 = 20 * NANOS_PER_MILLI;
/// Default side timeout of a live feed: three missed heartbeats.
pub const SIDE_TIMEOUT_NS_LIVE: i64 = 3 * NANOS_PER_SECOND;
/// Open runs per session: a publisher that restarts more often while sides still lag is broken.
pub const RUNS_MAX_DEFAULT: usize = 8;
/// Streams per feed: a day has one session of a few runs for each of some channels.
pub const STREAMS_MAX_DEFAULT: usize = 64;

/// Slots reserved for one suspect: a packet of 1,500 bytes.
const SUSPECT_SLOTS: usize = 12;
/// Sessions whose suspects have room at the same time; with more, a suspect may be rejected for want of a slot.
const SUSPECT_SESSIONS: usize = 8;

/// One segment as it arrived on one side.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The side that delivered it; below [`ArbiterSettings::sides`].
    pub side: Side,
    /// Capture time, UTC ns.
    pub capture_ns: i64,
    /// The segment.
    pub segment: Segment<'a>,
}

/// What an arbiter gives out, in order. Sequences of one stream only ever ascend, but for late fills.
pub trait Sink {
    /// A stream begins: run `run` (creation id inside the session) of session `key`. Nothing below `base` will come.
    /// Before anything else of the stream.
    fn stream_begin(&mut self, stream: StreamId, key: &SessionKey, run: u32, base: u64);
    /// Messages [from, to) of the arrival being processed, in order, now. `last`: nothing more of this arrival will
    /// follow. `late_fill`: they lie in a gap already declared.
    fn emit_arrival(
        &mut self,
        stream: StreamId,
        arrival: &Arrival<'_>,
        from: u64,
        to: u64,
        last: bool,
        late_fill: bool,
    );
    /// One message, in order, of which the arbiter held a copy (window, or confirmed suspect). `body` is valid during
    /// the call only. `send_ns` is `i64::MIN` where the protocol has none.
    fn emit_held(&mut self, stream: StreamId, sequence: u64, side: Side, capture_ns: i64, send_ns: i64, body: &[u8]);
    /// As [`Sink::emit_held`], for a late fill (a message of a confirmed suspect that lies in a declared gap).
    fn emit_late_copy(
        &mut self,
        stream: StreamId,
        sequence: u64,
        side: Side,
        capture_ns: i64,
        send_ns: i64,
        body: &[u8],
    );
    /// `first..=last` is lost on every side; before the message that follows it.
    fn gap(&mut self, stream: StreamId, first: u64, last: u64);
    /// The run is over; nothing of the stream follows.
    fn stream_end(&mut self, stream: StreamId);
    /// A side of a session died or came back. All sides begin live, which is not told.
    fn side_state(&mut self, session: &SessionKey, side: Side, live: bool);
}

/// A bug that the simulator plants, to see that it is caught. Looked at on cold paths only.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fault {
    /// None: what everything but the simulator uses.
    #[default]
    None,
    /// The gap rule looks at the highest frontier of a live side instead of the lowest.
    HighestFrontier,
    /// A late fill leaves its gap as it was.
    LateFillKeepsGap,
    /// A message that is held already is not counted as a duplicate.
    HeldDuplicateUncounted,
    /// An emitted message's slots are not given back.
    SlotsLeak,
    /// A run that closes forgets the hole before its held messages.
    CloseSkipsGap,
    /// A held message is emitted from its neighbour's slot.
    WrongSlot,
}

/// An arbiter's settings.
#[derive(Clone, Copy, Debug)]
pub struct ArbiterSettings {
    /// Configured sides, 1 to [`SIDES_MAX`].
    pub sides: usize,
    /// Messages that may lie between the next one and the last one held, 1 to [`WINDOW_MESSAGES_MAX`].
    pub window_messages: u32,
    /// Slots of 128 bytes for what all streams together hold; 0 means twice the window. Suspects have their own.
    pub slots: u32,
    /// Longest wait for a missing message, ns; `None` waits for the sides, the window or the end.
    pub hold_ns: Option<i64>,
    /// Silence after which a side counts as dead, ns; `None`: only the end of its input.
    pub side_timeout_ns: Option<i64>,
    /// Most messages that a segment may jump up unconfirmed.
    pub jump_max: u64,
    /// Most ns that a send time may lie ahead of the capture time unconfirmed; `None`: any.
    pub send_skew_max_ns: Option<i64>,
    /// Account each session from sequence 1, not from the first segment seen.
    pub start_session: bool,
    /// Most open runs per session.
    pub runs_max: usize,
    /// Most streams (runs of all sessions) in the arbiter's life.
    pub streams_max: usize,
    /// Most lost ranges remembered per stream and side.
    pub gaps_max: usize,
    #[doc(hidden)]
    pub fault: Fault,
}

impl ArbiterSettings {
    /// The defaults for files: no hold and no timeout, so that a truth can be met exactly.
    pub fn files(sides: usize) -> ArbiterSettings {
        let doubt = Doubt::default();
        ArbiterSettings {
            sides,
            window_messages: WINDOW_MESSAGES_DEFAULT,
            slots: 0,
            hold_ns: None,
            side_timeout_ns: None,
            jump_max: doubt.jump_max,
            send_skew_max_ns: doubt.send_skew_max_ns,
            start_session: false,
            runs_max: RUNS_MAX_DEFAULT,
            streams_max: STREAMS_MAX_DEFAULT,
            gaps_max: RANGES_MAX,
            fault: Fault::None,
        }
    }

    /// The defaults for a live feed: hold 20 ms, side timeout 3 s.
    pub fn live(sides: usize) -> ArbiterSettings {
        ArbiterSettings {
            hold_ns: Some(HOLD_NS_LIVE),
            side_timeout_ns: Some(SIDE_TIMEOUT_NS_LIVE),
            ..ArbiterSettings::files(sides)
        }
    }

    fn slots(&self) -> u32 {
        if self.slots > 0 { self.slots } else { 2 * self.window_messages }
    }

    /// Suspects are copied into a pool of their own: a full window must not hide a restart, nor a forger fill the
    /// window.
    fn suspect_slots(&self) -> u32 {
        (self.streams_max.min(SUSPECT_SESSIONS) * self.sides * SUSPECTS_PER_SIDE_MAX * SUSPECT_SLOTS) as u32
    }

    fn doubt(&self) -> Doubt {
        Doubt { jump_max: self.jump_max, send_skew_max_ns: self.send_skew_max_ns }
    }
}

/// One session's sides and runs.
struct Live {
    session: Session,
    live: SideSet,
    /// When each side last spoke (or was first counted as live).
    heard_ns: [i64; SIDES_MAX],
    /// Sides that came back and have reached no stream's `next` yet.
    returned: SideSet,
}

impl Live {
    fn new(settings: &ArbiterSettings) -> Live {
        Live {
            session: Session::new(stream::UNUSED, settings.streams_max, settings.sides),
            live: SideSet::default(),
            heard_ns: [0; SIDES_MAX],
            returned: SideSet::default(),
        }
    }
}

/// The arbiter of one feed.
pub struct Arbiter {
    settings: ArbiterSettings,
    doubt: Doubt,
    /// All sessions that there can be; the first `sessions_used` are in use.
    sessions: Vec<Live>,
    sessions_used: usize,
    recent: usize,
    /// All streams that there can be; the first `streams_used` are in use.
    streams: Vec<Stream>,
    streams_used: usize,
    pool: SlotPool,
    suspects: SlotPool,
    believed: Vec<Suspect>,
    block: Vec<u8>,
    /// Sides whose input has ended.
    ended: SideSet,
    /// Lower bound of when anything is due.
    deadline: i64,
    unattributed: Unattributed,
}

impl Arbiter {
    /// An arbiter with all its memory.
    ///
    /// # Panics
    /// When a setting is out of its stated bounds: the configuration's check comes before.
    pub fn new(settings: ArbiterSettings) -> Arbiter {
        assert!((1..=SIDES_MAX).contains(&settings.sides), "sides = {}", settings.sides);
        let window = settings.window_messages;
        assert!((1..=WINDOW_MESSAGES_MAX).contains(&window), "window_messages = {window}");
        assert!(settings.streams_max > 0 && settings.runs_max > 0, "streams_max and runs_max are at least 1");
        Arbiter {
            sessions: (0..settings.streams_max).map(|_| Live::new(&settings)).collect(),
            sessions_used: 0,
            recent: 0,
            streams: (0..settings.streams_max).map(|_| Stream::new(&settings)).collect(),
            streams_used: 0,
            pool: SlotPool::new(settings.slots()),
            suspects: SlotPool::new(settings.suspect_slots()),
            believed: Vec::with_capacity(settings.sides * SUSPECTS_PER_SIDE_MAX),
            block: vec![0; BODY_BYTES_MAX],
            ended: SideSet::default(),
            deadline: i64::MAX,
            unattributed: Unattributed::default(),
            doubt: settings.doubt(),
            settings,
        }
    }

    /// The settings.
    pub fn settings(&self) -> &ArbiterSettings {
        &self.settings
    }

    /// The streams so far, by creation id: cheap counters for live export.
    pub fn streams(&self) -> &[Stream] {
        &self.streams[..self.streams_used]
    }

    /// Messages of segments that no stream could be found for.
    pub fn unattributed(&self) -> &Unattributed {
        &self.unattributed
    }

    /// When [`Arbiter::on_tick`] is next needed, in the time of `now`; may be early, never late.
    pub fn deadline(&self) -> Option<i64> {
        (self.deadline < i64::MAX).then_some(self.deadline)
    }

    /// Free and all slots, those for suspects included.
    pub fn slots(&self) -> (u32, u32) {
        let free = self.pool.free() + self.suspects.free();
        (free, self.pool.capacity() + self.suspects.capacity())
    }

    /// Whether `side` counts as live in any session.
    pub fn side_live(&self, side: Side) -> bool {
        self.sessions[..self.sessions_used].iter().any(|session| session.live.has(side))
    }

    /// Processes one segment. `now` never goes back.
    #[inline]
    pub fn on_segment<S: Sink>(&mut self, arrival: &Arrival<'_>, now: i64, sink: &mut S) {
        assert!(arrival.side.index() < self.settings.sides, "side {} is not configured", arrival.side);
        if now >= self.deadline {
            self.on_tick(now, sink);
        }
        let Some(claim) = Claim::of(&arrival.segment, arrival.capture_ns) else {
            return self.overflow(&arrival.segment);
        };
        let Some(at) = self.session(&arrival.segment.session, now) else {
            return self.unattributed.limit(&arrival.segment);
        };
        if arrival.segment.kind == SegmentKind::EndOfSession {
            // Its count of messages advances nothing; it only shows that the side is there.
            self.unattributed.ends_of_session += 1;
            return self.touch(at, arrival.side, now, sink);
        }
        match self.sessions[at].session.judge(arrival.side, &claim, &self.doubt) {
            Verdict::Believe(place) => self.book(at, place, arrival, &claim, false, now, sink),
            Verdict::Doubt => self.keep(at, &arrival.segment, arrival.side, &claim),
            Verdict::Confirm => self.confirm(at, arrival, &claim, now, sink),
        }
    }

    /// Applies holds and side timeouts that are due at `now`.
    pub fn on_tick<S: Sink>(&mut self, now: i64, sink: &mut S) {
        if now < self.deadline {
            return;
        }
        self.deadline = i64::MAX;
        for at in 0..self.sessions_used {
            self.time_out(at, now, sink);
            for rank in 0..self.sessions[at].session.runs.as_slice().len() {
                let (stream, mut cx) = self.stream(at, rank, now, sink);
                if let Some(due) = stream.expire(&mut cx) {
                    *cx.deadline = (*cx.deadline).min(due);
                }
            }
        }
    }

    /// The end of one side's input: it counts as dead from now on.
    pub fn end_side<S: Sink>(&mut self, side: Side, now: i64, sink: &mut S) {
        self.ended.insert(side);
        for at in 0..self.sessions_used {
            if self.sessions[at].live.has(side) {
                self.die(at, side, now, sink);
            }
        }
    }

    /// The end of all input: suspects are rejected, everything held is emitted, every stream ends.
    pub fn finish<S: Sink>(&mut self, now: i64, sink: &mut S) {
        for at in 0..self.sessions_used {
            let mut left = std::mem::take(&mut self.believed);
            self.sessions[at].session.drain(&mut left);
            left.iter().for_each(|suspect| self.reject(suspect));
            self.believed = left;
        }
        for side in 0..self.settings.sides {
            self.end_side(Side(side as u8), now, sink);
        }
        for at in 0..self.sessions_used {
            for rank in 0..self.sessions[at].session.runs.as_slice().len() {
                let (stream, mut cx) = self.stream(at, rank, now, sink);
                stream.close(&mut cx);
            }
        }
        self.deadline = i64::MAX;
    }

    /// The index of a session, made if there is room.
    #[inline]
    fn session(&mut self, key: &SessionKey, now: i64) -> Option<usize> {
        if self.recent < self.sessions_used && self.sessions[self.recent].session.key == *key {
            return Some(self.recent);
        }
        self.find_session(key, now)
    }

    fn find_session(&mut self, key: &SessionKey, now: i64) -> Option<usize> {
        let known = self.sessions[..self.sessions_used].iter().position(|live| live.session.key == *key);
        if known.is_none() {
            if self.sessions_used == self.sessions.len() || self.streams_used == self.streams.len() {
                return None;
            }
            let live = &mut self.sessions[self.sessions_used];
            live.session.key = *key;
            live.live = SideSet::first(self.settings.sides).without(self.ended);
            live.heard_ns = [now; SIDES_MAX];
            self.sessions_used += 1;
            self.due_in(self.settings.side_timeout_ns, now);
        }
        self.recent = known.unwrap_or(self.sessions_used - 1);
        Some(self.recent)
    }

    fn due_in(&mut self, after_ns: Option<i64>, now: i64) {
        if let Some(after_ns) = after_ns {
            self.deadline = self.deadline.min(now.saturating_add(after_ns));
        }
    }

    /// A run's stream, and what it works with.
    #[inline]
    fn stream<'a, S: Sink>(
        &'a mut self,
        at: usize,
        rank: usize,
        now: i64,
        sink: &'a mut S,
    ) -> (&'a mut Stream, Context<'a, S>) {
        let session = &self.sessions[at];
        let stream = &mut self.streams[session.session.runs.as_slice()[rank].handle as usize];
        let cx = Context {
            pool: &mut self.pool,
            sink,
            settings: &self.settings,
            now,
            live: session.live,
            deadline: &mut self.deadline,
        };
        (stream, cx)
    }

    /// Books a believed segment: opens its run if need be, notes the side, delivers.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn book<S: Sink>(
        &mut self,
        at: usize,
        place: Place,
        arrival: &Arrival<'_>,
        claim: &Claim,
        copied: bool,
        now: i64,
        sink: &mut S,
    ) {
        self.touch(at, arrival.side, now, sink);
        match place {
            Place::Open(rank) => {
                if !self.open(at, rank, claim, now, sink) {
                    return self.unattributed.limit(&arrival.segment);
                }
            }
            _ => self.sessions[at].session.runs.accept(place, claim),
        }
        let rank = place.rank();
        let (stream, mut cx) = self.stream(at, rank, now, sink);
        let enters = !stream.entered.has(arrival.side);
        if enters {
            stream.entered.insert(arrival.side);
        }
        stream.deliver(&mut cx, Delivery { arrival, claim, copied });
        if enters {
            self.leave_older(at, rank, arrival.side, now, sink);
        }
        if !self.sessions[at].returned.is_empty() {
            self.caught_up(at, rank, arrival.side);
        }
    }

    /// Opens a run at `rank`. False when a limit forbids it.
    fn open<S: Sink>(&mut self, at: usize, rank: usize, claim: &Claim, now: i64, sink: &mut S) -> bool {
        let session = &mut self.sessions[at];
        let runs = session.session.runs.as_slice();
        let open = runs.iter().filter(|run| !self.streams[run.handle as usize].closed).count();
        if open >= self.settings.runs_max || self.streams_used == self.streams.len() {
            return false;
        }
        let newer = runs[rank..].iter().map(|run| &self.streams[run.handle as usize]);
        let mut left = SideSet::default();
        newer.for_each(|stream| stream.entered.iter().for_each(|side| left.insert(side)));
        // What precedes the oldest run has a beginning that nobody saw; every other run began by a restart.
        let base = (rank > 0 || self.settings.start_session).then_some(1);
        let handle = self.streams_used;
        self.streams_used += 1;
        let run_id = session.session.runs.open(rank, claim, handle as u32);
        let (key, returned) = (session.session.key, session.returned);
        let (stream, mut cx) = self.stream(at, rank, now, sink);
        stream.id = StreamId(handle as u32);
        stream.key = key;
        stream.run_id = run_id;
        stream.left = left;
        stream.behind = returned;
        stream.open(&mut cx, claim.first, base);
        true
    }

    /// `side` delivered its first segment of the run at `rank`: it has left every older one.
    fn leave_older<S: Sink>(&mut self, at: usize, rank: usize, side: Side, now: i64, sink: &mut S) {
        for older in 0..rank {
            let (stream, mut cx) = self.stream(at, older, now, sink);
            if !stream.closed && !stream.left.has(side) {
                stream.left.insert(side);
                stream.reconsider(&mut cx);
            }
        }
        self.close_left(at, now, sink);
    }

    /// Closes every run, but the newest, that each live side has left.
    fn close_left<S: Sink>(&mut self, at: usize, now: i64, sink: &mut S) {
        let newest = self.sessions[at].session.runs.as_slice().len().saturating_sub(1);
        for rank in 0..newest {
            let (stream, mut cx) = self.stream(at, rank, now, sink);
            if !stream.closed && cx.live.without(stream.left).is_empty() {
                stream.close(&mut cx);
            }
        }
    }

    /// A side spoke in a session.
    #[inline]
    fn touch<S: Sink>(&mut self, at: usize, side: Side, now: i64, sink: &mut S) {
        let session = &mut self.sessions[at];
        session.heard_ns[side.index()] = now;
        if !session.live.has(side) && !self.ended.has(side) {
            self.revive(at, side, now, sink);
        }
    }

    /// A dead side speaks. With others live it must catch up before it counts; when all were dead, all count again.
    #[cold]
    fn revive<S: Sink>(&mut self, at: usize, side: Side, now: i64, sink: &mut S) {
        let ended = self.ended;
        let session = &mut self.sessions[at];
        let key = session.session.key;
        let all_dead = session.live.is_empty();
        if all_dead {
            session.live = SideSet::first(self.settings.sides).without(ended);
            session.live.iter().for_each(|side| session.heard_ns[side.index()] = now);
            session.returned = SideSet::default();
        } else {
            session.live.insert(side);
            session.returned.insert(side);
        }
        let mut told = session.live;
        if !all_dead {
            told = SideSet::default();
            told.insert(side);
        }
        told.iter().for_each(|side| sink.side_state(&key, side, true));
        for run in self.sessions[at].session.runs.as_slice() {
            let stream = &mut self.streams[run.handle as usize];
            if all_dead {
                stream.behind = SideSet::default();
            } else {
                stream.behind.insert(side);
            }
        }
        self.due_in(self.settings.side_timeout_ns, now);
    }

    /// A returned side that is no longer behind in the newest run counts fully again in runs to come.
    fn caught_up(&mut self, at: usize, rank: usize, side: Side) {
        let session = &mut self.sessions[at];
        let runs = session.session.runs.as_slice();
        if rank + 1 == runs.len() && !self.streams[runs[rank].handle as usize].behind.has(side) {
            session.returned.remove(side);
        }
    }

    fn time_out<S: Sink>(&mut self, at: usize, now: i64, sink: &mut S) {
        let Some(timeout_ns) = self.settings.side_timeout_ns else { return };
        for side in self.sessions[at].live.iter() {
            let due = self.sessions[at].heard_ns[side.index()].saturating_add(timeout_ns);
            if due <= now {
                self.die(at, side, now, sink);
            } else {
                self.deadline = self.deadline.min(due);
            }
        }
    }

    fn die<S: Sink>(&mut self, at: usize, side: Side, now: i64, sink: &mut S) {
        let session = &mut self.sessions[at];
        session.live.remove(side);
        sink.side_state(&session.session.key, side, false);
        for rank in 0..self.sessions[at].session.runs.as_slice().len() {
            let (stream, mut cx) = self.stream(at, rank, now, sink);
            stream.reconsider(&mut cx);
        }
        self.close_left(at, now, sink);
    }

    #[cold]
    fn overflow(&mut self, segment: &Segment<'_>) {
        let messages = u64::from(segment.count);
        let known = self.sessions[..self.sessions_used].iter().find(|live| live.session.key == segment.session);
        match known.and_then(|live| live.session.runs.as_slice().last()) {
            Some(run) => {
                let counts = &mut self.streams[run.handle as usize].counts;
                counts.offered += messages;
                counts.rejected_overflow += messages;
                counts.rejected_segments += 1;
            }
            None => {
                self.unattributed.segments += 1;
                self.unattributed.offered += messages;
                self.unattributed.rejected_overflow += messages;
            }
        }
    }

    /// Keeps a copy of a suspect. It stands in the books of the run that it lies in or would follow.
    #[cold]
    fn keep(&mut self, at: usize, segment: &Segment<'_>, side: Side, claim: &Claim) {
        let session = &mut self.sessions[at].session;
        let runs = session.runs.as_slice();
        let rank = session.runs.place(claim).rank().min(runs.len() - 1);
        let stream = runs[rank].handle;
        let counts = &mut self.streams[stream as usize].counts;
        counts.offered += u64::from(segment.count);
        let stored = Stored { side, capture_ns: claim.capture_ns, send_ns: 0, body: segment.block };
        let Some(copy) = self.suspects.store(stored) else {
            counts.rejected_wild += u64::from(segment.count);
            counts.rejected_segments += 1;
            return;
        };
        counts.pending += u64::from(segment.count);
        let (count, kind, framing) = (segment.count, segment.kind, segment.framing);
        let suspect = Suspect { claim: *claim, side, count, kind, framing, copy, stream, believed: false };
        if let Some(oldest) = session.keep(suspect) {
            self.reject(&oldest);
        }
    }

    fn reject(&mut self, suspect: &Suspect) {
        self.suspects.release(suspect.copy);
        let counts = &mut self.streams[suspect.stream as usize].counts;
        counts.pending -= u64::from(suspect.count);
        counts.rejected_wild += u64::from(suspect.count);
        counts.rejected_segments += 1;
    }

    /// A segment that confirms suspects: they and it are processed in sequence order.
    #[cold]
    fn confirm<S: Sink>(&mut self, at: usize, arrival: &Arrival<'_>, claim: &Claim, now: i64, sink: &mut S) {
        let mut believed = std::mem::take(&mut self.believed);
        self.sessions[at].session.believe(arrival.side, claim, &mut believed);
        let split = believed.partition_point(|suspect| suspect.claim.first <= claim.first);
        for suspect in &believed[..split] {
            self.again(at, suspect, now, sink);
        }
        let place = self.sessions[at].session.runs.place(claim);
        self.book(at, place, arrival, claim, false, now, sink);
        for suspect in &believed[split..] {
            self.again(at, suspect, now, sink);
        }
        self.believed = believed;
    }

    /// Processes a former suspect in its turn; one that is not believed is judged again.
    fn again<S: Sink>(&mut self, at: usize, suspect: &Suspect, now: i64, sink: &mut S) {
        let mut block = std::mem::take(&mut self.block);
        let bytes = self.suspects.take(suspect.copy, &mut block);
        let counts = &mut self.streams[suspect.stream as usize].counts;
        counts.pending -= u64::from(suspect.count);
        counts.offered -= u64::from(suspect.count);
        let claim = &suspect.claim;
        let session = &self.sessions[at].session;
        let segment = Segment {
            session: session.key,
            kind: suspect.kind,
            first: claim.first,
            count: suspect.count,
            offset: claim.offset,
            send_ns: claim.send_ns,
            framing: suspect.framing,
            block: &block[..bytes],
        };
        let place = session.runs.place(claim);
        if suspect.believed || !session.runs.doubted(place, claim, &self.doubt) {
            let arrival = Arrival { side: suspect.side, capture_ns: claim.capture_ns, segment };
            self.book(at, place, &arrival, claim, true, now, sink);
        } else {
            self.keep(at, &segment, suspect.side, claim);
        }
        self.block = block;
    }
}
