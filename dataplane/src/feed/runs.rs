//! Which run of its session a segment belongs to, and which segments are not believed at once.
//!
//! A publisher can go back to sequence 1 inside one session id: a new *run* begins. Nothing in a segment names its
//! run, so it is chosen by send time, sequence and offset together, in a way that survives a lost first segment, a
//! side that lags across the restart and a side that replays old data. A segment that would open a run, jump far or
//! claim the future is a *suspect*: it changes nothing until a second segment agrees with it.

use crate::units::{SIDES_MAX, Side};
use crate::wire::segment::{Framing, Segment, SegmentKind, SessionKey};

/// Suspects kept per (side, session). A true restart or jump is confirmed by the very next segment; 16 lets one be
/// confirmed through heavy loss, and bounds what a forger can make us copy.
pub const SUSPECTS_PER_SIDE_MAX: usize = 16;

/// Default of [`Doubt::jump_max`]: about a minute of the busiest IEX feed.
pub const JUMP_MAX_DEFAULT: u64 = 1_000_000;

/// Default of [`Doubt::send_skew_max_ns`]: 60 s, far more than any disciplined clock is off.
pub const SEND_SKEW_MAX_NS_DEFAULT: i64 = 60_000_000_000;

/// Fewest bytes of payload per message: its u16 length.
const MESSAGE_BYTES_MIN: u128 = 2;
/// Most bytes of payload per message: its u16 length and the longest body.
const MESSAGE_BYTES_MAX: u128 = 2 + 65_535;

/// When a segment is not believed at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// Most messages that a segment may lie above the end of its run.
    pub jump_max: u64,
    /// Most ns that a send time may lie ahead of its capture time; `None` switches the test off.
    pub send_skew_max_ns: Option<i64>,
}

impl Default for Doubt {
    fn default() -> Self {
        Doubt { jump_max: JUMP_MAX_DEFAULT, send_skew_max_ns: Some(SEND_SKEW_MAX_NS_DEFAULT) }
    }
}

/// The numbers of one segment that runs are decided by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Sequence of the first message, or the next one expected.
    pub first: u64,
    /// `first` + count.
    pub end: u64,
    /// Stream offset of the payload's first byte, where the protocol has one.
    pub offset: Option<u64>,
    /// Stream offset after the payload; 0 where the protocol has none.
    pub offset_end: u64,
    /// Send time, where the protocol has one.
    pub send_ns: Option<i64>,
    /// Capture time.
    pub capture_ns: i64,
}

impl Claim {
    /// The claim of `segment`. `None` when its end (sequence or offset) does not fit an i64: rejected as `overflow`.
    #[inline]
    pub fn of(segment: &Segment<'_>, capture_ns: i64) -> Option<Claim> {
        let end = segment.end()?;
        let offset_end = match segment.offset {
            Some(offset) => offset.checked_add(segment.block.len() as u64).filter(|&end| end <= i64::MAX as u64)?,
            None => 0,
        };
        let first = segment.first;
        Some(Claim { first, end, offset: segment.offset, offset_end, send_ns: segment.send_ns, capture_ns })
    }

    /// Send time and offset, which only some protocols have; without them the session id alone decides.
    #[inline]
    fn stamp(&self) -> Option<(i64, u64)> {
        Some((self.send_ns?, self.offset?))
    }

    /// Whether `later` can follow this claim with `later.first − self.end` messages between, judged by the offsets.
    fn offset_allows(&self, later: &Claim) -> bool {
        spans_fit(later.first, self.end, later.offset, self.offset_end)
    }
}

/// Whether the bytes between two offsets can hold the messages between two sequences. True without offsets.
fn spans_fit(first: u64, end: u64, offset: Option<u64>, offset_end: u64) -> bool {
    let (Some(messages), Some(offset)) = (first.checked_sub(end), offset) else { return first >= end };
    let Some(bytes) = offset.checked_sub(offset_end) else { return false };
    let (messages, bytes) = (u128::from(messages), u128::from(bytes));
    (MESSAGE_BYTES_MIN * messages..=MESSAGE_BYTES_MAX * messages).contains(&bytes)
}

/// One run of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The owner's handle: index of the stream or detector.
    pub handle: u32,
    /// Creation id inside the session, from 0: the run's name in store and ring.
    pub id: u32,
    /// Send time of the opening; `i64::MIN` where the protocol has none.
    pub opening_ns: i64,
    /// First sequence of the opening.
    pub opening_first: u64,
    /// Offset of the opening.
    pub opening_offset: u64,
    /// Highest end accepted from any side.
    pub end: u64,
    /// Highest end offset accepted from any side.
    pub end_offset: u64,
    /// Latest send time accepted from any side.
    pub last_ns: i64,
}

/// Where a segment belongs. Indexes are ranks by opening send time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this run.
    In(usize),
    /// In this run, whose opening moves back to it.
    Back(usize),
    /// In a new run, to be inserted at this rank.
    Open(usize),
}

impl Place {
    /// The rank that the segment's run has, or will have.
    pub fn rank(self) -> usize {
        match self {
            Place::In(rank) | Place::Back(rank) | Place::Open(rank) => rank,
        }
    }
}

/// The runs of one session in order of their opening send time.
#[derive(Debug)]
pub struct RunList {
    runs: Vec<Run>,
    created: u32,
}

impl RunList {
    /// No runs yet; room for `runs` of them, more allocate.
    pub fn with_capacity(runs: usize) -> RunList {
        RunList { runs: Vec::with_capacity(runs), created: 0 }
    }

    /// The runs, oldest opening first: the index is the run's number in reports.
    pub fn as_slice(&self) -> &[Run] {
        &self.runs
    }

    /// Where a claim belongs. Pure.
    #[inline]
    pub fn place(&self, claim: &Claim) -> Place {
        let newest = self.runs.len().wrapping_sub(1);
        let Some((send_ns, offset)) = claim.stamp() else {
            return if self.runs.is_empty() { Place::Open(0) } else { Place::In(newest) };
        };
        let older = self.runs.iter().rposition(|run| run.opening_ns <= send_ns);
        if let Some(rank) = older {
            let run = &self.runs[rank];
            let went_back = claim.first < run.end && offset < run.end_offset && send_ns > run.last_ns;
            if !went_back {
                return Place::In(rank);
            }
        }
        let newer = older.map_or(0, |rank| rank + 1);
        match self.runs.get(newer) {
            Some(run) if claim.first <= run.opening_first && offset <= run.opening_offset => Place::Back(newer),
            _ => Place::Open(newer),
        }
    }

    /// Whether a claim that belongs at `place` is to be doubted. The session's first segment never is, nor a duplicate.
    #[inline]
    pub fn doubted(&self, place: Place, claim: &Claim, doubt: &Doubt) -> bool {
        let (Place::In(rank) | Place::Back(rank)) = place else { return !self.runs.is_empty() };
        let run = &self.runs[rank];
        if claim.first < run.end && claim.end <= run.end {
            return false;
        }
        if claim.first > run.end
            && (claim.first - run.end > doubt.jump_max
                || !spans_fit(claim.first, run.end, claim.offset, run.end_offset))
        {
            return true;
        }
        match (claim.send_ns, doubt.send_skew_max_ns) {
            (Some(send_ns), Some(skew_ns)) => send_ns.saturating_sub(claim.capture_ns) > skew_ns,
            _ => false,
        }
    }

    /// Books a claim at the existing run `place` (never [`Place::Open`]).
    #[inline]
    pub fn accept(&mut self, place: Place, claim: &Claim) {
        let run = &mut self.runs[place.rank()];
        let stamp = claim.stamp();
        if let (Place::Back(_), Some((send_ns, offset))) = (place, stamp) {
            (run.opening_ns, run.opening_first, run.opening_offset) = (send_ns, claim.first, offset);
        }
        // What lies below the end brings no news, and its other numbers are not tested: they must not move the run.
        if claim.first >= run.end || claim.end > run.end {
            run.end = run.end.max(claim.end);
            run.end_offset = run.end_offset.max(claim.offset_end);
            run.last_ns = run.last_ns.max(stamp.map_or(i64::MIN, |(send_ns, _)| send_ns));
        }
    }

    /// Inserts a run at `rank`, opened by `claim`. Returns its creation id.
    pub fn open(&mut self, rank: usize, claim: &Claim, handle: u32) -> u32 {
        let id = self.created;
        self.created += 1;
        let (send_ns, offset) = claim.stamp().unwrap_or((i64::MIN, 0));
        let run = Run {
            handle,
            id,
            opening_ns: send_ns,
            opening_first: claim.first,
            opening_offset: offset,
            end: claim.end,
            end_offset: claim.offset_end,
            last_ns: send_ns,
        };
        self.runs.insert(rank, run);
        id
    }
}

/// A segment that is not believed yet.
#[derive(Clone, Copy, Debug)]
pub struct Suspect {
    /// Its numbers.
    pub claim: Claim,
    /// The side that delivered it.
    pub side: Side,
    /// Messages in it.
    pub count: u32,
    /// Data or heartbeat.
    pub kind: SegmentKind,
    /// How its block is cut.
    pub framing: Framing,
    /// Where the owner keeps a copy of its block.
    pub copy: u32,
    /// The stream whose books it stands in meanwhile.
    pub stream: u32,
    /// Set once it is believed: it, and what lies before it, is not tested again.
    pub believed: bool,
}

/// One session: its runs and its suspects.
#[derive(Debug)]
pub struct Session {
    /// Which session it is.
    pub key: SessionKey,
    /// Its runs.
    pub runs: RunList,
    suspects: Vec<Suspect>,
}

/// What becomes of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Believed; it belongs here.
    Believe(Place),
    /// Doubted: to be kept with [`Session::keep`].
    Doubt,
    /// It confirms suspects: [`Session::believe`] says which are to be processed with it, in which order.
    Confirm,
}

impl Session {
    /// A session without runs; room for `runs` runs and all suspects of `sides` sides.
    pub fn new(key: SessionKey, runs: usize, sides: usize) -> Session {
        Session {
            key,
            runs: RunList::with_capacity(runs),
            suspects: Vec::with_capacity(sides.min(SIDES_MAX) * SUSPECTS_PER_SIDE_MAX),
        }
    }

    /// The suspects, oldest first.
    pub fn suspects(&self) -> &[Suspect] {
        &self.suspects
    }

    /// Judges a segment of `side`. Changes nothing.
    #[inline]
    pub fn judge(&self, side: Side, claim: &Claim, doubt: &Doubt) -> Verdict {
        let place = self.runs.place(claim);
        if !self.suspects.is_empty() && self.suspects.iter().any(|suspect| self.confirms(suspect, side, claim)) {
            return Verdict::Confirm;
        }
        if self.runs.doubted(place, claim, doubt) { Verdict::Doubt } else { Verdict::Believe(place) }
    }

    /// Keeps a suspect. Returns the one that had to leave for it: the oldest of its side, when the side has
    /// [`SUSPECTS_PER_SIDE_MAX`].
    pub fn keep(&mut self, suspect: Suspect) -> Option<Suspect> {
        let of_side = |other: &&Suspect| other.side == suspect.side;
        let full = self.suspects.iter().filter(of_side).count() >= SUSPECTS_PER_SIDE_MAX;
        let oldest = full.then(|| self.suspects.iter().position(|other| other.side == suspect.side)).flatten();
        let left = oldest.map(|place| self.suspects.remove(place));
        self.suspects.push(suspect);
        left
    }

    /// Takes out, lowest sequence first, the suspects to be processed together with the confirming segment `claim` of
    /// `side`: those that it confirms, and those in the same run that lie below a confirmed one and fit its offset
    /// (all `believed`), then those above it (which are tested again). Appends to `out`, which is cleared first.
    pub fn believe(&mut self, side: Side, claim: &Claim, out: &mut Vec<Suspect>) {
        out.clear();
        for place in 0..self.suspects.len() {
            let suspect = self.suspects[place];
            if self.confirms(&suspect, side, claim) {
                self.suspects[place].believed = true;
            }
        }
        let Some(anchor) = self.suspects.iter().rfind(|suspect| suspect.believed).map(|suspect| suspect.claim) else {
            return;
        };
        let runs = &self.runs;
        self.suspects.retain(|suspect| {
            let below = suspect.claim.first < anchor.first;
            let (old, new) = if below { (&suspect.claim, &anchor) } else { (&anchor, &suspect.claim) };
            let goes = suspect.believed || one_run(runs, old, new);
            if goes {
                let believed = suspect.believed || (below && old.offset_allows(new));
                out.push(Suspect { believed, ..*suspect });
            }
            !goes
        });
        out.sort_unstable_by_key(|suspect| (suspect.claim.first, suspect.claim.end, suspect.claim.capture_ns));
    }

    /// Takes all suspects out, lowest sequence first.
    pub fn drain(&mut self, out: &mut Vec<Suspect>) {
        out.clear();
        out.append(&mut self.suspects);
        out.sort_unstable_by_key(|suspect| (suspect.claim.first, suspect.claim.end, suspect.claim.capture_ns));
    }

    /// Whether the segment `claim` of `side` confirms `suspect`: it begins exactly at its end, or another side
    /// repeats it.
    fn confirms(&self, suspect: &Suspect, side: Side, claim: &Claim) -> bool {
        let old = &suspect.claim;
        let repeats = suspect.side != side
            && (old.first, old.end, old.offset, old.send_ns) == (claim.first, claim.end, claim.offset, claim.send_ns);
        let follows = old.end == claim.first
            && claim.offset.is_none_or(|offset| offset == old.offset_end)
            && self.one_run(old, claim);
        repeats || follows
    }

    fn one_run(&self, suspect: &Claim, later: &Claim) -> bool {
        one_run(&self.runs, suspect, later)
    }
}

/// Whether `later` would lie in the run that `suspect` lies in or would open. A lagging segment of the old run that
/// happens to fit a wild one's end must not confirm it.
fn one_run(runs: &RunList, suspect: &Claim, later: &Claim) -> bool {
    let (old, new) = (runs.place(suspect), runs.place(later));
    match old {
        Place::In(rank) | Place::Back(rank) => matches!(new, Place::In(r) | Place::Back(r) if r == rank),
        Place::Open(rank) => {
            let in_time = later.send_ns >= suspect.send_ns;
            let opens = new == Place::Open(rank);
            // A run shorter than what follows the restart: the follower alone would pass for the old run's.
            let passes_for_old = rank > 0 && new == Place::In(rank - 1) && later.first >= suspect.end;
            in_time && (opens || passes_for_old)
        }
    }
}
