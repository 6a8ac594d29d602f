//! Gap detection: what one side lost, repeated and reordered, per stream.
//!
//! [`GapDetector`] is one (side, stream); the arbiter holds one for each. [`GapScanner`] is a whole input: sessions,
//! runs, suspects and a detector for each run, as `feed gaps` prints them.

use super::intervals::{Intervals, Known, RANGES_MAX, Range};
use super::runs::{Claim, Doubt, Place, Session, Suspect, Verdict};
use crate::units::Side;
use crate::wire::segment::{Messages, Segment, SegmentKind, SessionKey};

/// Exact gap, duplicate and reorder counts of one (side, stream). Costs nothing in proportion to a jump.
#[derive(Debug)]
pub struct GapDetector {
    base: u64,
    base_offset: u64,
    /// The base is given (a run opened by a restart begins at 1); otherwise an early late-comer moves it down.
    base_fixed: bool,
    started: bool,
    expected: u64,
    expected_offset: u64,
    gaps: Intervals,
    counts: GapCounts,
}

/// What a [`GapDetector`] counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct GapCounts {
    /// Segments, heartbeats included.
    pub segments: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// Messages carried, duplicates included.
    pub messages: u64,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Segments that came after a later one of their own side.
    pub reordered: u64,
    /// Payload bytes missing by stream offset; 0 where the protocol has none.
    pub bytes_lost: u64,
}

impl GapDetector {
    /// A detector that remembers at most `gaps_max` ranges. With `base`, messages from there on are expected;
    /// without, the first segment sets it.
    pub fn new(gaps_max: usize, base: Option<u64>) -> GapDetector {
        GapDetector::with(Intervals::new(gaps_max), base)
    }

    /// As [`GapDetector::new`], but the list of ranges grows as it fills: for streams that are not known beforehand.
    pub fn growing(gaps_max: usize, base: Option<u64>) -> GapDetector {
        GapDetector::with(Intervals::growing(gaps_max), base)
    }

    /// Starts over with another base; keeps the memory.
    pub fn restart(&mut self, base: Option<u64>) {
        let mut gaps = std::mem::take(&mut self.gaps);
        gaps.clear();
        *self = GapDetector::with(gaps, base);
    }

    fn with(gaps: Intervals, base: Option<u64>) -> GapDetector {
        GapDetector {
            base: base.unwrap_or(0),
            base_offset: 0,
            base_fixed: base.is_some(),
            started: base.is_some(),
            expected: base.unwrap_or(0),
            expected_offset: 0,
            gaps,
            counts: GapCounts::default(),
        }
    }

    /// Books a segment; `claim` is its own.
    #[inline]
    pub fn observe(&mut self, segment: &Segment<'_>, claim: &Claim) {
        self.counts.segments += 1;
        match segment.kind {
            SegmentKind::EndOfSession => return,
            SegmentKind::Heartbeat => self.counts.heartbeats += 1,
            SegmentKind::Data => self.counts.messages += u64::from(segment.count),
        }
        if self.started && claim.first == self.expected {
            self.expected = claim.end;
            self.expected_offset = claim.offset_end;
        } else {
            self.out_of_order(segment, claim);
        }
    }

    /// The first sequence expected: the base.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The next sequence expected.
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// Whether anything set the base yet.
    pub fn started(&self) -> bool {
        self.started
    }

    /// The counts.
    pub fn counts(&self) -> &GapCounts {
        &self.counts
    }

    /// The lost ranges between base and expected.
    pub fn gaps(&self) -> &Intervals {
        &self.gaps
    }

    #[cold]
    fn out_of_order(&mut self, segment: &Segment<'_>, claim: &Claim) {
        let offset = claim.offset.unwrap_or(0);
        if !self.started {
            self.started = true;
            (self.base, self.base_offset) = (claim.first, offset);
            (self.expected, self.expected_offset) = (claim.end, claim.offset_end);
        } else if claim.first > self.expected {
            self.gaps.push_above(self.expected, claim.first - 1);
            self.counts.bytes_lost += offset.saturating_sub(self.expected_offset);
            (self.expected, self.expected_offset) = (claim.end, claim.offset_end);
        } else {
            self.went_back(segment, claim);
            if claim.end > self.expected {
                (self.expected, self.expected_offset) = (claim.end, claim.offset_end);
            }
        }
    }

    /// A segment that begins below what is expected: fills gaps, extends the base down, repeats.
    fn went_back(&mut self, segment: &Segment<'_>, claim: &Claim) {
        if segment.kind != SegmentKind::Data {
            return;
        }
        let to = claim.end.min(self.expected);
        let (mut at, mut came_late) = (claim.first, false);
        if at < self.base && !self.base_fixed {
            came_late = true;
            at = self.lower_base(claim);
        }
        while at < to {
            let (known, until) = self.gaps.known(at, to);
            if known == Known::Inside {
                came_late = true;
                self.gaps.remove(at, until);
                self.counts.bytes_lost = self.counts.bytes_lost.saturating_sub(span_bytes(segment, claim, at, until));
            } else {
                self.counts.duplicates += until - at;
            }
            at = until;
        }
        self.counts.reordered += u64::from(came_late);
    }

    /// The base moves down to a segment that came after a later one. Returns where its old ground begins.
    fn lower_base(&mut self, claim: &Claim) -> u64 {
        if claim.end < self.base {
            self.gaps.push_below(claim.end, self.base - 1);
            self.counts.bytes_lost += self.base_offset.saturating_sub(claim.offset_end);
        }
        let old = std::mem::replace(&mut self.base, claim.first);
        self.base_offset = claim.offset.unwrap_or(0);
        old.min(claim.end)
    }
}

/// Payload bytes of the messages [from, to) of a segment, their lengths included; 0 without offsets.
fn span_bytes(segment: &Segment<'_>, claim: &Claim, from: u64, to: u64) -> u64 {
    let Some(offset) = claim.offset else { return 0 };
    if to - from == u64::from(segment.count) {
        return claim.offset_end - offset;
    }
    messages_from(segment, from).take((to - from) as usize).map(|body| body.len() as u64 + 2).sum()
}

/// Bounds of a [`GapScanner`].
#[derive(Clone, Copy, Debug)]
pub struct GapSettings {
    /// When a segment is not believed at once.
    pub doubt: Doubt,
    /// Most ranges remembered per stream.
    pub gaps_max: usize,
    /// Most streams (runs of all sessions); segments beyond are counted in [`GapScanner::rejected_limit`].
    pub streams_max: usize,
}

impl Default for GapSettings {
    fn default() -> Self {
        // A day of every IEX channel has some dozens of runs; 4,096 lets several files be read at once.
        GapSettings { doubt: Doubt::default(), gaps_max: RANGES_MAX, streams_max: 4096 }
    }
}

/// Gap detection over one input (one side): feed it every segment in order, then [`GapScanner::finish`].
#[derive(Debug)]
pub struct GapScanner {
    settings: GapSettings,
    sessions: Vec<Session>,
    detectors: Vec<Scanned>,
    believed: Vec<Suspect>,
    recent: usize,
    rejected_wild: u64,
    rejected_overflow: u64,
    rejected_limit: u64,
}

#[derive(Debug)]
struct Scanned {
    detector: GapDetector,
    unconfirmed: u64,
}

/// One stream as `feed gaps` reports it.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct StreamGaps {
    /// The protocol's name.
    pub protocol: &'static str,
    /// IEX-TP's message protocol id, 0 elsewhere.
    pub protocol_id: u16,
    /// IEX-TP's channel, 0 elsewhere.
    pub channel: u32,
    /// The session id as text.
    pub session: String,
    /// The run's rank by opening send time, from 0.
    pub run: usize,
    /// Segments, heartbeats included.
    pub segments: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// Messages carried, duplicates included.
    pub messages: u64,
    /// First sequence of the stream's first segment.
    pub first_sequence: u64,
    /// Sequence of the last message; with heartbeats only, what they expect next.
    pub last_sequence: u64,
    /// Lost ranges, at most 65,536 (the youngest; then `truncated`).
    pub gaps: Vec<Range>,
    /// Messages lost, exact. In JSON only when `gaps` does not hold them all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Whether older ranges are left out of `gaps`. In JSON only when it is so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Segments that came after a later one.
    pub reordered: u64,
    /// Suspects that nothing confirmed before the end of the input: each is taken at its word, the gap before it
    /// included, and told here.
    pub unconfirmed: u64,
    /// Payload bytes missing by stream offset.
    pub bytes_lost: u64,
}

impl StreamGaps {
    /// Messages lost, exact.
    pub fn lost(&self) -> u64 {
        self.lost.unwrap_or_else(|| super::intervals::count(&self.gaps))
    }
}

impl GapScanner {
    /// An empty scanner.
    pub fn new(settings: GapSettings) -> GapScanner {
        GapScanner {
            settings,
            sessions: Vec::new(),
            detectors: Vec::new(),
            believed: Vec::new(),
            recent: 0,
            rejected_wild: 0,
            rejected_overflow: 0,
            rejected_limit: 0,
        }
    }

    /// Segments rejected because 16 later suspects displaced them.
    pub fn rejected_wild(&self) -> u64 {
        self.rejected_wild
    }

    /// Segments whose end does not fit an i64.
    pub fn rejected_overflow(&self) -> u64 {
        self.rejected_overflow
    }

    /// Segments beyond the streams limit.
    pub fn rejected_limit(&self) -> u64 {
        self.rejected_limit
    }

    /// Books one segment.
    pub fn on_segment(&mut self, segment: &Segment<'_>, capture_ns: i64) {
        let Some(claim) = Claim::of(segment, capture_ns) else {
            self.rejected_overflow += 1;
            return;
        };
        let Some(at) = self.session(&segment.session) else {
            self.rejected_limit += 1;
            return;
        };
        let session = &mut self.sessions[at];
        if segment.kind == SegmentKind::EndOfSession {
            if let Some(run) = session.runs.as_slice().last() {
                self.detectors[run.handle as usize].detector.observe(segment, &claim);
            }
            return;
        }
        match session.judge(Side::A, &claim, &self.settings.doubt) {
            Verdict::Believe(place) => self.book(at, place, segment, &claim, 0),
            Verdict::Doubt => self.doubt(at, segment, &claim),
            Verdict::Confirm => {
                let mut believed = std::mem::take(&mut self.believed);
                self.sessions[at].believe(Side::A, &claim, &mut believed);
                let split = believed.partition_point(|suspect| suspect.claim.first <= claim.first);
                believed[..split].iter().for_each(|suspect| self.again(at, suspect));
                let place = self.sessions[at].runs.place(&claim);
                self.book(at, place, segment, &claim, 0);
                believed[split..].iter().for_each(|suspect| self.again(at, suspect));
                self.believed = believed;
            }
        }
    }

    /// The end of the input: what is still doubted is taken at its word and counted as `unconfirmed`.
    pub fn finish(&mut self) {
        for at in 0..self.sessions.len() {
            let mut left = std::mem::take(&mut self.believed);
            self.sessions[at].drain(&mut left);
            for suspect in &left {
                let segment = bare(self.sessions[at].key, suspect);
                let place = self.sessions[at].runs.place(&suspect.claim);
                self.book(at, place, &segment, &suspect.claim, 1);
            }
            self.believed = left;
        }
    }

    /// Every stream, in order of first appearance of its session, then by run.
    pub fn streams(&self) -> Vec<StreamGaps> {
        let runs = self.sessions.iter().flat_map(|session| {
            let ranked = session.runs.as_slice().iter().enumerate();
            ranked.map(|(rank, run)| (session.key, rank, &self.detectors[run.handle as usize]))
        });
        runs.map(|(key, rank, scanned)| stream_gaps(&key, rank, scanned)).collect()
    }

    fn session(&mut self, key: &SessionKey) -> Option<usize> {
        if self.sessions.get(self.recent).is_some_and(|session| session.key == *key) {
            return Some(self.recent);
        }
        let known = self.sessions.iter().position(|session| session.key == *key);
        self.recent = match known {
            Some(at) => at,
            None if self.sessions.len() < self.settings.streams_max => {
                self.sessions.push(Session::new(*key, 1, 1));
                self.sessions.len() - 1
            }
            None => return None,
        };
        Some(self.recent)
    }

    /// Judges a former suspect again, as it is processed in its turn.
    fn again(&mut self, at: usize, suspect: &Suspect) {
        let session = &self.sessions[at];
        let segment = bare(session.key, suspect);
        let place = session.runs.place(&suspect.claim);
        if suspect.believed || !session.runs.doubted(place, &suspect.claim, &self.settings.doubt) {
            self.book(at, place, &segment, &suspect.claim, 0);
        } else {
            self.doubt(at, &segment, &suspect.claim);
        }
    }

    fn doubt(&mut self, at: usize, segment: &Segment<'_>, claim: &Claim) {
        let suspect = Suspect {
            claim: *claim,
            side: Side::A,
            count: segment.count,
            kind: segment.kind,
            framing: segment.framing,
            copy: 0,
            stream: 0,
            believed: false,
        };
        self.rejected_wild += u64::from(self.sessions[at].keep(suspect).is_some());
    }

    fn book(&mut self, at: usize, place: Place, segment: &Segment<'_>, claim: &Claim, unconfirmed: u64) {
        let runs = &mut self.sessions[at].runs;
        if let Place::Open(rank) = place {
            if self.detectors.len() >= self.settings.streams_max {
                self.rejected_limit += 1;
                return;
            }
            // Before the oldest run lies the past, of which we know no beginning; any other run began by a restart.
            let base = (rank > 0).then_some(1);
            runs.open(rank, claim, self.detectors.len() as u32);
            let detector = GapDetector::growing(self.settings.gaps_max, base);
            self.detectors.push(Scanned { detector, unconfirmed: 0 });
        } else {
            runs.accept(place, claim);
        }
        let scanned = &mut self.detectors[runs.as_slice()[place.rank()].handle as usize];
        scanned.detector.observe(segment, claim);
        scanned.unconfirmed += unconfirmed;
    }
}

/// A suspect as a segment without its bytes: gap detection needs only its numbers.
fn bare(session: SessionKey, suspect: &Suspect) -> Segment<'static> {
    let claim = &suspect.claim;
    Segment {
        session,
        kind: suspect.kind,
        first: claim.first,
        count: suspect.count,
        offset: claim.offset,
        send_ns: claim.send_ns,
        framing: suspect.framing,
        block: &[],
    }
}

fn stream_gaps(key: &SessionKey, run: usize, scanned: &Scanned) -> StreamGaps {
    let (detector, counts) = (&scanned.detector, scanned.detector.counts());
    let last = if counts.messages > 0 { detector.expected().saturating_sub(1) } else { detector.expected() };
    StreamGaps {
        protocol: key.protocol.name(),
        protocol_id: key.protocol_id,
        channel: key.channel,
        session: key.session_text(),
        run,
        segments: counts.segments,
        heartbeats: counts.heartbeats,
        messages: counts.messages,
        first_sequence: detector.base(),
        last_sequence: last,
        gaps: detector.gaps().iter().collect(),
        lost: detector.gaps().truncated().then(|| detector.gaps().total()),
        truncated: detector.gaps().truncated(),
        duplicates: counts.duplicates,
        reordered: counts.reordered,
        unconfirmed: scanned.unconfirmed,
        bytes_lost: counts.bytes_lost,
    }
}

/// The bodies of a segment from sequence `from` on, which lies in it.
pub(super) fn messages_from<'a>(segment: &Segment<'a>, from: u64) -> std::iter::Skip<Messages<'a>> {
    segment.messages().skip((from - segment.first) as usize)
}
