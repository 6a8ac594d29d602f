//! One stream under arbitration: what is emitted next, what is held, what is lost.

use std::collections::VecDeque;

use super::{ArbiterSettings, Arrival, Fault, Sink};
use crate::feed::gap::{GapDetector, messages_from};
use crate::feed::histogram::Histogram;
use crate::feed::intervals::{Intervals, Known};
use crate::feed::runs::Claim;
use crate::feed::window::{Index, SLOT_BYTES, SlotPool, Stored};
use crate::units::{SIDES_MAX, Side, StreamId};
use crate::wire::segment::{Protocol, SegmentKind, SessionId, SessionKey};

/// Recent first arrivals remembered per stream for the lead histogram, by end sequence: at 1.7 messages a packet some
/// 2,400 packets, which is more than two sides of one exchange ever lie apart outside an outage. 64 KiB.
const RECENT: usize = 4096;

/// Where the message time lies in an IEX message body: type u8, flags u8, then i64.
const MESSAGE_TIME_OFFSET: usize = 2;

/// The key of what is not in use yet.
pub(super) const UNUSED: SessionKey =
    SessionKey { protocol: Protocol::IexTp, protocol_id: 0, channel: 0, session: SessionId([0; 10]) };

/// A set of sides, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SideSet(u8);

impl SideSet {
    pub(super) fn first(sides: usize) -> SideSet {
        SideSet((1u16.wrapping_shl(sides as u32) - 1) as u8)
    }

    #[inline]
    pub(super) fn has(self, side: Side) -> bool {
        self.0 >> side.0 & 1 == 1
    }

    pub(super) fn insert(&mut self, side: Side) {
        self.0 |= 1 << side.0;
    }

    pub(super) fn remove(&mut self, side: Side) {
        self.0 &= !(1 << side.0);
    }

    #[inline]
    pub(super) fn without(self, other: SideSet) -> SideSet {
        SideSet(self.0 & !other.0)
    }

    #[inline]
    pub(super) fn count(self) -> u32 {
        self.0.count_ones()
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(super) fn iter(self) -> impl Iterator<Item = Side> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let side = Side(rest.trailing_zeros() as u8);
            (rest != 0).then(|| {
                rest &= rest - 1;
                side
            })
        })
    }
}

/// The terms of one stream's identities (docs/reference/metrics.md), in messages unless said otherwise. Each is counted
/// where it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct StreamCounts {
    /// Sum of the message counts of all segments that came for this stream.
    pub offered: u64,
    /// Emitted in order.
    pub unique: u64,
    /// Already emitted, held or filled when they came.
    pub duplicate: u64,
    /// First arrivals inside a recorded gap of the open run.
    pub late_fill: u64,
    /// Other messages below the next one (run closed, gap list truncated, below base).
    pub late: u64,
    /// Given up as suspects that nothing confirmed.
    pub rejected_wild: u64,
    /// Whose sequence or offset does not fit an i64.
    pub rejected_overflow: u64,
    /// Beyond the limits of runs or streams.
    pub rejected_limit: u64,
    /// In the reorder window.
    pub held: u64,
    /// In a pending suspect.
    pub pending: u64,
    /// Declared lost, net of late fills.
    pub gap: u64,
    /// The highest accepted end of any side.
    pub frontier: u64,
    /// The sequence from which the stream is accounted.
    pub base: u64,
    /// The next sequence to emit.
    pub next: u64,
    /// Gaps forced because the window was full (times).
    pub forced_window: u64,
    /// Gaps forced because the slot pool was full (times).
    pub forced_slots: u64,
    /// Gaps forced because `hold` had passed (times).
    pub forced_hold: u64,
    /// Segments of a closed run.
    pub closed_segments: u64,
    /// Segments in suspects that were rejected, heartbeats included.
    pub rejected_segments: u64,
}

/// What one side did in one stream.
#[derive(Debug)]
pub(super) struct SideState {
    /// Highest end that the side delivered; 0 before its first segment.
    pub(super) frontier: u64,
    pub(super) detector: GapDetector,
    /// Messages of which this side's copy was the first.
    pub(super) wins: u64,
    pub(super) capture_minus_send: Histogram,
}

/// One run under arbitration. Made once, reset when a run takes it.
pub struct Stream {
    pub(super) id: StreamId,
    pub(super) key: SessionKey,
    /// Creation id of the run inside its session.
    pub(super) run_id: u32,
    pub(super) in_use: bool,
    pub(super) closed: bool,
    /// The first emission still waits: `next` is the base, and the base may move down.
    starting: bool,
    started_ns: i64,
    begun: bool,
    next: u64,
    pub(super) counts: StreamCounts,
    pub(super) gaps: Intervals,
    pub(super) index: Index,
    /// When held segments and hole-revealing heartbeats were accepted, with their ends; oldest first.
    accepted: VecDeque<(i64, u64)>,
    accepted_max: usize,
    /// Sides that delivered a segment of this run.
    pub(super) entered: SideSet,
    /// Sides that delivered a segment of a newer run.
    pub(super) left: SideSet,
    /// Sides that came back from the dead and have not reached `next` yet.
    pub(super) behind: SideSet,
    pub(super) sides: Vec<SideState>,
    /// (end sequence × 4 + side, capture time) of recent first arrivals, direct-mapped by end.
    recent: Box<[(u64, i64); RECENT]>,
    pub(super) lead: Histogram,
    pub(super) send_minus_message: Histogram,
}

/// What a stream needs from its arbiter while it works.
pub(super) struct Context<'a, S: Sink> {
    pub(super) pool: &'a mut SlotPool,
    pub(super) sink: &'a mut S,
    pub(super) settings: &'a ArbiterSettings,
    pub(super) now: i64,
    /// The live sides of the session.
    pub(super) live: SideSet,
    /// Lower bound of the next time anything is due.
    pub(super) deadline: &'a mut i64,
}

impl<S: Sink> Context<'_, S> {
    fn due_in(&mut self, after_ns: Option<i64>) {
        if let Some(after_ns) = after_ns {
            *self.deadline = (*self.deadline).min(self.now.saturating_add(after_ns));
        }
    }
}

/// An arrival, and whether its bytes are the receive frame's or a copy of ours.
#[derive(Clone, Copy)]
pub(super) struct Delivery<'a> {
    pub(super) arrival: &'a Arrival<'a>,
    pub(super) claim: &'a Claim,
    pub(super) copied: bool,
}

impl Stream {
    pub(super) fn new(settings: &ArbiterSettings) -> Stream {
        let window = settings.window_messages;
        let index = Index::new(window);
        let accepted_max = (window.max(1) as usize).next_power_of_two();
        let side = |_| SideState {
            frontier: 0,
            detector: GapDetector::new(settings.gaps_max, None),
            wins: 0,
            capture_minus_send: Histogram::new(),
        };
        Stream {
            id: StreamId(0),
            key: UNUSED,
            run_id: 0,
            in_use: false,
            closed: false,
            starting: false,
            started_ns: 0,
            begun: false,
            next: 0,
            counts: StreamCounts::default(),
            gaps: Intervals::new(settings.gaps_max),
            index,
            accepted: VecDeque::with_capacity(accepted_max),
            accepted_max,
            entered: SideSet::default(),
            left: SideSet::default(),
            behind: SideSet::default(),
            sides: (0..settings.sides).map(side).collect(),
            recent: vec![(0, 0); RECENT].into_boxed_slice().try_into().expect("of this length"),
            lead: Histogram::new(),
            send_minus_message: Histogram::new(),
        }
    }

    /// Takes the stream into use for a run. `base`: fixed, or `first`, which may still move down.
    pub(super) fn open<S: Sink>(&mut self, cx: &mut Context<'_, S>, first: u64, base: Option<u64>) {
        assert!(!self.in_use, "stream {:?} is in use", self.id);
        self.in_use = true;
        self.next = base.unwrap_or(first);
        self.counts.base = self.next;
        self.counts.next = self.next;
        self.counts.frontier = self.next;
        self.sides.iter_mut().for_each(|side| side.detector.restart(base));
        self.started_ns = cx.now;
        // With a fixed base nothing can come below it, so there is nothing to wait for.
        self.starting = base.is_none() && self.holders(cx.live).count() > 1;
        if self.starting {
            cx.due_in(cx.settings.hold_ns);
        } else {
            self.begin(cx);
        }
    }

    /// The cheap counters.
    pub fn counts(&self) -> &StreamCounts {
        &self.counts
    }

    /// The stream's creation id.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The stream's session.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// Creation id of the stream's run inside its session (the `r0` of the store's key).
    pub fn run_id(&self) -> u32 {
        self.run_id
    }

    /// Whether every live side has left the run.
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// `side`'s own (segments, duplicates, reordered, lost …) in this stream.
    pub fn side_counts(&self, side: Side) -> &crate::feed::gap::GapCounts {
        self.sides[side.index()].detector.counts()
    }

    /// Messages that `side` lost by its own sequence, as far as it has come.
    pub fn side_lost(&self, side: Side) -> u64 {
        self.sides[side.index()].detector.gaps().total()
    }

    /// Messages of which `side`'s copy was the first.
    pub fn side_wins(&self, side: Side) -> u64 {
        self.sides[side.index()].wins
    }

    /// A-to-B lead: capture time of B − capture time of A of the same segment; positive when A was first.
    pub fn lead(&self) -> &Histogram {
        &self.lead
    }

    /// Send time − message time of the first message of each new segment (IEX-TP).
    pub fn send_minus_message(&self) -> &Histogram {
        &self.send_minus_message
    }

    /// Capture time − send time of each segment of `side`.
    pub fn capture_minus_send(&self, side: Side) -> &Histogram {
        &self.sides[side.index()].capture_minus_send
    }

    /// Messages in [next, frontier) that are neither held nor declared lost, counted from the window itself.
    pub fn missing(&self) -> u64 {
        self.counts.frontier.saturating_sub(self.next).saturating_sub(self.index.recount())
    }

    /// Books a segment that belongs to this stream.
    #[inline]
    pub(super) fn deliver<S: Sink>(&mut self, cx: &mut Context<'_, S>, delivery: Delivery<'_>) {
        let (arrival, claim) = (delivery.arrival, delivery.claim);
        let segment = &arrival.segment;
        self.counts.offered += u64::from(segment.count);
        if self.closed {
            self.counts.late += u64::from(segment.count);
            self.counts.closed_segments += 1;
            return;
        }
        let side = &mut self.sides[arrival.side.index()];
        side.detector.observe(segment, claim);
        side.frontier = side.frontier.max(claim.end);
        if let Some(send_ns) = segment.send_ns {
            side.capture_minus_send.record(arrival.capture_ns.wrapping_sub(send_ns));
        }
        self.counts.frontier = self.counts.frontier.max(claim.end);
        if self.starting && claim.first < self.next {
            self.lower_base(cx, claim.first);
        }
        match segment.kind {
            SegmentKind::Data => self.data(cx, delivery),
            _ => self.heartbeat(cx, claim.first),
        }
        if !self.behind.is_empty() && self.sides[arrival.side.index()].frontier >= self.next {
            self.behind.remove(arrival.side);
        }
        if self.next < self.counts.frontier || self.starting {
            self.advance(cx, u64::MAX);
        }
        self.counts.next = self.next;
    }

    /// Sides whose frontier holds the others back.
    #[inline]
    fn holders(&self, live: SideSet) -> SideSet {
        live.without(self.left).without(self.behind)
    }

    fn begin<S: Sink>(&mut self, cx: &mut Context<'_, S>) {
        self.starting = false;
        if !self.begun {
            self.begun = true;
            cx.sink.stream_begin(self.id, &self.key, self.run_id, self.counts.base);
        }
    }

    /// While the first emission waits, the base follows what comes below it, as far as the window reaches.
    fn lower_base<S: Sink>(&mut self, cx: &mut Context<'_, S>, first: u64) {
        if self.counts.frontier - first <= u64::from(cx.settings.window_messages) {
            self.counts.base = first;
            self.next = first;
        } else {
            self.begin(cx);
        }
    }

    /// Whether the first emission need wait no longer.
    fn may_start<S: Sink>(&self, cx: &Context<'_, S>) -> bool {
        let holders = self.holders(cx.live);
        if holders.count() <= 1 {
            return true;
        }
        match cx.settings.hold_ns {
            Some(hold_ns) => cx.now.saturating_sub(self.started_ns) >= hold_ns,
            // Without a hold: until every live side has spoken, and so cannot begin lower any more.
            None => holders.without(self.entered).is_empty(),
        }
    }

    fn heartbeat<S: Sink>(&mut self, cx: &mut Context<'_, S>, first: u64) {
        if first > self.next && self.accepted.back().is_none_or(|&(_, end)| end < first) {
            self.note_accepted(cx, first);
        }
    }

    /// Remembers when something beyond `next` was accepted: `hold` counts from the oldest such time.
    fn note_accepted<S: Sink>(&mut self, cx: &mut Context<'_, S>, end: u64) {
        cx.due_in(cx.settings.hold_ns);
        // A full list cannot happen while every entry holds a message of its own; the hold would err to the short side.
        let full = self.accepted.len() >= self.accepted_max;
        match self.accepted.back_mut() {
            Some(back) if full || back.0 == cx.now => back.1 = back.1.max(end),
            _ => self.accepted.push_back((cx.now, end)),
        }
    }

    /// The oldest acceptance that still waits.
    fn oldest_accepted(&mut self) -> Option<(i64, u64)> {
        while self.accepted.front().is_some_and(|&(_, end)| end <= self.next) {
            self.accepted.pop_front();
        }
        self.accepted.front().copied()
    }

    #[inline]
    fn data<S: Sink>(&mut self, cx: &mut Context<'_, S>, delivery: Delivery<'_>) {
        let claim = delivery.claim;
        let mut at = claim.first;
        // The commonest segment by far: the next one. The other common one is a duplicate from the slower side.
        if at == self.next && self.index.held() == 0 && !self.starting {
            self.through(cx, delivery, at);
            return self.stamps(delivery, true);
        }
        let wins = self.sides[delivery.arrival.side.index()].wins;
        if at < self.next {
            let to = claim.end.min(self.next);
            self.below_next(cx, delivery, at, to);
            at = to;
        }
        if at < claim.end {
            if at > self.next || self.starting {
                self.advance(cx, at);
                self.make_room(cx, delivery, at);
                // What the window gave out just now beyond `at` was held: this copy of it comes second.
                let to = self.next.clamp(at, claim.end);
                self.counts.duplicate += to - at;
                at = to;
            }
            if at == claim.end {
                // All of it was held.
            } else if self.starting || self.next < at {
                self.hold(cx, delivery, at);
            } else {
                self.through(cx, delivery, at);
            }
        }
        let won = self.sides[delivery.arrival.side.index()].wins > wins;
        self.stamps(delivery, won);
    }

    /// Leads and message latency, once per segment.
    #[inline]
    fn stamps(&mut self, delivery: Delivery<'_>, won: bool) {
        let (arrival, end) = (delivery.arrival, delivery.claim.end);
        let side = arrival.side;
        let recent = &mut self.recent[end as usize % RECENT];
        // An end fits 63 bits: the top one is lost to the side, which no real feed will see.
        let tag = end << 2 | u64::from(side.0);
        if won {
            *recent = (tag, arrival.capture_ns);
            if let (Protocol::IexTp, Some(send_ns)) = (self.key.protocol, arrival.segment.send_ns)
                && let Some(message_ns) = arrival.segment.messages().next().and_then(message_time)
            {
                self.send_minus_message.record(send_ns.wrapping_sub(message_ns));
            }
        } else if recent.0 >> 2 == tag >> 2 {
            match (recent.0 as u8 & 3, side) {
                (0, Side::B) => self.lead.record(arrival.capture_ns.wrapping_sub(recent.1)),
                (1, Side::A) => self.lead.record(recent.1.wrapping_sub(arrival.capture_ns)),
                _ => return,
            }
            recent.0 = u64::MAX;
        }
    }

    /// Messages [from, to) below `next`: duplicates, late fills, late ones.
    fn below_next<S: Sink>(&mut self, cx: &mut Context<'_, S>, delivery: Delivery<'_>, from: u64, to: u64) {
        let mut at = from;
        if at < self.counts.base {
            let until = to.min(self.counts.base);
            self.counts.late += until - at;
            at = until;
        }
        if self.gaps.is_empty() && !self.gaps.truncated() {
            self.counts.duplicate += to - at;
            return;
        }
        while at < to {
            let (known, until) = self.gaps.known(at, to);
            let messages = until - at;
            match known {
                Known::Outside => self.counts.duplicate += messages,
                Known::Forgotten => self.counts.late += messages,
                Known::Inside => {
                    if cx.settings.fault != Fault::LateFillKeepsGap {
                        self.gaps.remove(at, until);
                    }
                    self.counts.gap -= messages;
                    self.counts.late_fill += messages;
                    self.sides[delivery.arrival.side.index()].wins += messages;
                    let last = !self.brings_more(delivery.claim, until, to);
                    emit_part(self.id, cx, delivery, at, until, last, true);
                }
            }
            at = until;
        }
    }

    /// Whether an arrival that ends beyond `next` or in a later gap will still give something after `from`.
    fn brings_more(&self, claim: &Claim, from: u64, below: u64) -> bool {
        let mut at = from;
        while at < below {
            let (known, until) = self.gaps.known(at, below);
            if known == Known::Inside {
                return true;
            }
            at = until;
        }
        (self.next.max(from)..claim.end).any(|sequence| !self.index.contains(sequence))
    }

    /// Emits an arrival from `at`, which is `next`, to its end; what of it is held already comes from the window.
    #[inline]
    fn through<S: Sink>(&mut self, cx: &mut Context<'_, S>, delivery: Delivery<'_>, at: u64) {
        let end = delivery.claim.end;
        if self.index.held() == 0 {
            emit_part(self.id, cx, delivery, at, end, true, false);
            self.sides[delivery.arrival.side.index()].wins += end - at;
            self.counts.unique += end - at;
            self.next = end;
            return;
        }
        self.through_held(cx, delivery);
    }

    fn through_held<S: Sink>(&mut self, cx: &mut Context<'_, S>, delivery: Delivery<'_>) {
        let end = delivery.claim.end;
        while self.next < end {
            let to = (self.next..end).find(|&sequence| self.index.contains(sequence)).unwrap_or(end);
            if to > self.next {
                let last = (to..end).all(|sequence| self.index.contains(sequence));
                emit_part(self.id, cx, delivery, self.next, to, last, false);
                self.sides[delivery.arrival.side.index()].wins += to - self.next;
                self.counts.unique += to - self.next;
                self.next = to;
            } else {
                self.counts.duplicate += 1;
                self.emit_held(cx);
            }
        }
    }

    /// Copies what is new of an arrival from `at` on into the window.
    fn hold<S: Sink>(&mut self, cx: &mut Context<'_, S>, delivery: Delivery<'_>, at: u64) {
        let arrival = delivery.arrival;
        let mut held = 0;
        for (sequence, body) in (at..delivery.claim.end).zip(messages_from(&arrival.segment, at)) {
            if self.index.contains(sequence) {
                self.counts.duplicate += u64::from(cx.settings.fault != Fault::HeldDuplicateUncounted);
                continue;
            }
            let stored = Stored {
                side: arrival.side,
                capture_ns: arrival.capture_ns,
                send_ns: arrival.segment.send_ns.unwrap_or(i64::MIN),
                body,
            };
            let slot = cx.pool.store(stored).expect("make_room counted the slots");
            self.index.insert(sequence, slot);
            held += 1;
        }
        self.counts.held += held;
        self.sides[arrival.side.index()].wins += held;
        if held > 0 {
            self.note_accepted(cx, delivery.claim.end);
        }
    }

    /// Forces gaps until the arrival's messages from `at` on fit window and pool, or are the next ones.
    fn make_room<S: Sink>(&mut self, cx: &mut Context<'_, S>, delivery: Delivery<'_>, at: u64) {
        let window = u64::from(cx.settings.window_messages);
        if delivery.claim.end.saturating_sub(self.next) > window {
            self.begin(cx);
        }
        while self.next < at && delivery.claim.end - self.next > window {
            self.counts.forced_window += 1;
            self.force(cx, at);
        }
        let segment = &delivery.arrival.segment;
        let slots_at_most = segment.count + (segment.block.len() / SLOT_BYTES) as u32;
        if slots_at_most <= cx.pool.free() || (self.next >= at && !self.starting) {
            return;
        }
        let slots: u32 = messages_from(segment, at).map(|body| SlotPool::slots_for(body.len())).sum();
        if slots > cx.pool.free() {
            self.begin(cx);
        }
        while self.next < at && slots > cx.pool.free() {
            self.counts.forced_slots += 1;
            self.force(cx, at);
        }
    }

    /// Declares the hole at `next` lost up to the first held message, a heartbeat's sequence or `ceiling`, and emits
    /// the held run after it.
    fn force<S: Sink>(&mut self, cx: &mut Context<'_, S>, ceiling: u64) {
        let held = self.index.first_held(self.next).unwrap_or(u64::MAX);
        let revealed = self.oldest_accepted().map_or(u64::MAX, |(_, end)| end);
        let target = held.min(revealed).min(ceiling);
        assert!(target < u64::MAX, "a forced advance has a target");
        if target > self.next {
            self.declare_lost(cx, target);
        }
        self.emit_held_run(cx);
    }

    /// The gap rule, again and again: what is held at `next` is emitted; what no one can deliver any more is lost.
    /// Nothing at or above `ceiling` is declared lost.
    fn advance<S: Sink>(&mut self, cx: &mut Context<'_, S>, ceiling: u64) {
        if self.starting {
            if !self.may_start(cx) {
                return;
            }
            self.begin(cx);
        }
        loop {
            self.emit_held_run(cx);
            let frontier = self.counts.frontier.min(ceiling);
            if self.next >= frontier {
                return;
            }
            let holders = self.holders(cx.live).iter();
            let frontiers = holders.map(|side| self.sides[side.index()].frontier);
            let lowest = if cx.settings.fault == Fault::HighestFrontier { frontiers.max() } else { frontiers.min() };
            let lowest = lowest.unwrap_or(u64::MAX);
            if lowest <= self.next {
                return;
            }
            let held = self.index.first_held(self.next).unwrap_or(u64::MAX);
            self.declare_lost(cx, held.min(lowest).min(frontier));
        }
    }

    fn declare_lost<S: Sink>(&mut self, cx: &mut Context<'_, S>, to: u64) {
        if cx.settings.fault == Fault::CloseSkipsGap && cx.live.is_empty() {
            self.next = to;
            return;
        }
        self.gaps.push_above(self.next, to - 1);
        self.counts.gap += to - self.next;
        cx.sink.gap(self.id, self.next, to - 1);
        self.next = to;
    }

    #[inline]
    fn emit_held_run<S: Sink>(&mut self, cx: &mut Context<'_, S>) {
        while self.index.contains(self.next) {
            self.emit_held(cx);
        }
    }

    /// Emits the held message `next`.
    fn emit_held<S: Sink>(&mut self, cx: &mut Context<'_, S>) {
        let slot = self.index.take(self.next).expect("the caller saw it held");
        let neighbour = cx.settings.fault == Fault::WrongSlot && slot > 0;
        let stored = cx.pool.view(slot - u32::from(neighbour));
        cx.sink.emit_held(self.id, self.next, stored.side, stored.capture_ns, stored.send_ns, stored.body);
        if cx.settings.fault != Fault::SlotsLeak {
            cx.pool.release(slot);
        }
        self.counts.held -= 1;
        self.counts.unique += 1;
        self.next += 1;
    }

    /// Applies the gap rule after a side died, left or came back.
    pub(super) fn reconsider<S: Sink>(&mut self, cx: &mut Context<'_, S>) {
        if !self.closed {
            self.advance(cx, u64::MAX);
            self.counts.next = self.next;
        }
    }

    /// Applies `hold`. Returns when it next applies, if it does.
    pub(super) fn expire<S: Sink>(&mut self, cx: &mut Context<'_, S>) -> Option<i64> {
        let hold_ns = cx.settings.hold_ns?;
        if self.closed {
            return None;
        }
        if self.starting {
            let due = self.started_ns.saturating_add(hold_ns);
            if due > cx.now {
                return Some(due);
            }
            self.begin(cx);
        }
        self.advance(cx, u64::MAX);
        while let Some((accepted_ns, _)) = self.oldest_accepted() {
            let due = accepted_ns.saturating_add(hold_ns);
            if due > cx.now {
                self.counts.next = self.next;
                return Some(due);
            }
            self.counts.forced_hold += 1;
            self.force(cx, u64::MAX);
            self.advance(cx, u64::MAX);
        }
        self.counts.next = self.next;
        None
    }

    /// Every live side has left: emits what is held, declares the rest lost, ends the stream.
    pub(super) fn close<S: Sink>(&mut self, cx: &mut Context<'_, S>) {
        if self.closed {
            return;
        }
        self.begin(cx);
        let live = std::mem::take(&mut cx.live);
        self.advance(cx, u64::MAX);
        cx.live = live;
        self.counts.next = self.next;
        self.closed = true;
        cx.sink.stream_end(self.id);
    }
}

/// Hands messages [from, to) of an arrival to the sink: as the arrival, or one by one when its bytes are our copy.
fn emit_part<S: Sink>(
    id: StreamId,
    cx: &mut Context<'_, S>,
    delivery: Delivery<'_>,
    from: u64,
    to: u64,
    last: bool,
    late_fill: bool,
) {
    let arrival = delivery.arrival;
    if !delivery.copied {
        cx.sink.emit_arrival(id, arrival, from, to, last, late_fill);
        return;
    }
    let send_ns = arrival.segment.send_ns.unwrap_or(i64::MIN);
    for (sequence, body) in (from..to).zip(messages_from(&arrival.segment, from)) {
        if late_fill {
            cx.sink.emit_late_copy(id, sequence, arrival.side, arrival.capture_ns, send_ns, body);
        } else {
            cx.sink.emit_held(id, sequence, arrival.side, arrival.capture_ns, send_ns, body);
        }
    }
}

#[inline]
fn message_time(body: &[u8]) -> Option<i64> {
    Some(i64::from_le_bytes(*body.get(MESSAGE_TIME_OFFSET..)?.first_chunk()?))
}

const _: () = assert!(SIDES_MAX <= 4, "two bits of a recent entry name the side");
