//! What an arbiter has to say, off the hot path: full reports and the conservation check.

use super::stream::StreamCounts;
use super::{Arbiter, Stream};
use crate::feed::gap::GapCounts;
use crate::feed::histogram::Summary;
use crate::feed::intervals::{self, Range};
use crate::units::Side;
use crate::wire::segment::{Segment, SessionKey};

/// Messages of segments that belong to no stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Unattributed {
    /// Segments, heartbeats included.
    pub segments: u64,
    /// Sum of their message counts.
    pub offered: u64,
    /// Messages whose sequence or offset does not fit an i64, of unknown sessions.
    pub rejected_overflow: u64,
    /// Messages beyond the limits of streams or runs.
    pub rejected_limit: u64,
    /// End-of-session segments, which carry no messages.
    pub ends_of_session: u64,
}

impl Unattributed {
    pub(super) fn limit(&mut self, segment: &Segment<'_>) {
        self.segments += 1;
        self.offered += u64::from(segment.count);
        self.rejected_limit += u64::from(segment.count);
    }
}

/// A stream whose books do not balance. Both residues are 0 in a correct arbiter, at every instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Residue {
    /// Index of the stream.
    pub stream: u32,
    /// Σ counts − (unique + duplicate + late_fill + late + rejected + held + pending).
    pub offered: i128,
    /// (frontier − base) − (unique + late_fill + gap + held + missing).
    pub frontier: i128,
}

/// Everything about one side of one stream.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SideReport {
    /// The side's letter.
    pub side: char,
    /// Its own gap detection.
    #[serde(flatten)]
    pub counts: GapCounts,
    /// Ranges in [base, frontier) that the side never delivered, before its first and after its last segment included.
    pub gaps: Vec<Range>,
    /// Messages in those ranges, exact.
    pub lost: u64,
    /// Of those, the messages that another side supplied.
    pub recovered: u64,
    /// Messages of which this side's copy was the first.
    pub wins: u64,
    /// Capture time − send time per segment; may be negative.
    pub capture_minus_send: Summary,
    /// Its non-empty buckets: (edge nearest zero in ns, segments).
    pub capture_minus_send_buckets: Vec<(i64, u64)>,
}

/// Everything about one stream.
#[derive(Clone, Debug, serde::Serialize)]
pub struct StreamReport {
    /// The session.
    #[serde(skip)]
    pub key: SessionKey,
    /// `SessionKey` as text and the creation id of the run: the stream's name in store and ring.
    pub stream: String,
    /// Rank of the run by opening send time, from 0.
    pub run: usize,
    /// Whether the run is over.
    pub closed: bool,
    /// The terms.
    #[serde(flatten)]
    pub counts: StreamCounts,
    /// Messages in [next, frontier), neither held nor declared lost.
    pub missing: u64,
    /// Residual gaps: lost on every side. At most 65,536, the youngest; then `truncated`.
    pub gaps: Vec<Range>,
    /// Whether older ranges are left out of `gaps`.
    pub truncated: bool,
    /// The sides, A first.
    pub sides: Vec<SideReport>,
    /// Capture time of B − that of A of the same segment; positive when A was first.
    pub lead_a_over_b: Summary,
    /// The lead's non-empty buckets: (edge nearest zero in ns, segments).
    pub lead_buckets: Vec<(i64, u64)>,
    /// Send time − message time of the first message of each new segment; may be negative.
    pub send_minus_message: Summary,
}

/// Everything about an arbiter.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ArbiterReport {
    /// The streams: by session in order of appearance, then by run.
    pub streams: Vec<StreamReport>,
    /// What belongs to none.
    pub unattributed: Unattributed,
}

impl Arbiter {
    /// The full report. Allocates and takes time in proportion to the gaps: not for the hot path.
    pub fn report(&self) -> ArbiterReport {
        let runs =
            self.sessions[..self.sessions_used].iter().flat_map(|live| live.session.runs.as_slice().iter().enumerate());
        let streams = runs.map(|(rank, run)| self.streams[run.handle as usize].report(rank)).collect();
        ArbiterReport { streams, unattributed: self.unattributed }
    }

    /// The streams whose books do not balance: none, unless the arbiter has a bug.
    pub fn check_conservation(&self) -> Vec<Residue> {
        self.streams().iter().map(Stream::residue).filter(|r| (r.offered, r.frontier) != (0, 0)).collect()
    }
}

impl Stream {
    /// The two identities of a stream (docs/reference/metrics.md, 6 and 9) as residues.
    pub fn residue(&self) -> Residue {
        let c = &self.counts;
        let terms = [
            c.unique,
            c.duplicate,
            c.late_fill,
            c.late,
            c.rejected_wild,
            c.rejected_overflow,
            c.rejected_limit,
            c.held,
            c.pending,
        ];
        let offered = i128::from(c.offered) - terms.iter().map(|&term| i128::from(term)).sum::<i128>();
        let terms = [c.unique, c.late_fill, c.gap, c.held, self.missing()];
        let spanned = i128::from(c.frontier) - i128::from(c.base);
        let frontier = spanned - terms.iter().map(|&term| i128::from(term)).sum::<i128>();
        Residue { stream: self.id.0, offered, frontier }
    }

    fn report(&self, run: usize) -> StreamReport {
        let gaps: Vec<Range> = self.gaps.iter().collect();
        StreamReport {
            key: self.key,
            stream: format!("{}/r{}", self.key, self.run_id),
            run,
            closed: self.closed,
            counts: self.counts,
            missing: self.missing(),
            sides: (0..self.sides.len()).map(|side| self.side_report(Side(side as u8), &gaps)).collect(),
            gaps,
            truncated: self.gaps.truncated(),
            lead_a_over_b: self.lead.summary(),
            lead_buckets: self.lead.buckets().collect(),
            send_minus_message: self.send_minus_message.summary(),
        }
    }

    fn side_report(&self, side: Side, residual: &[Range]) -> SideReport {
        let state = &self.sides[side.index()];
        let (base, frontier) = (self.counts.base, self.counts.frontier);
        let detector = &state.detector;
        let spoke = self.entered.has(side);
        let (begin, end) = if spoke { (detector.base(), detector.expected()) } else { (frontier, frontier) };
        let range = |first: u64, end: u64| (first < end).then(|| Range { first, last: end - 1 });
        let own = intervals::clip(&detector.gaps().iter().collect::<Vec<_>>(), base, frontier);
        let ends = [range(base, begin.min(frontier)), range(end.max(base), frontier)];
        let forgotten = detector.gaps().total() - intervals::count(&detector.gaps().iter().collect::<Vec<_>>());
        let gaps = intervals::joined(ends[0].into_iter().chain(own).chain(ends[1]));
        let lost = intervals::count(&gaps) + forgotten;
        // What is missing still (not declared lost) is supplied by no one yet.
        let open = range(self.counts.next, frontier).map_or(0, |_| self.missing());
        let nobody = intervals::count(&intervals::intersection(&gaps, residual));
        let nobody_forgotten = self.counts.gap - intervals::count(residual);
        SideReport {
            side: side.letter(),
            counts: *detector.counts(),
            lost,
            recovered: lost.saturating_sub(nobody + nobody_forgotten + open),
            gaps,
            wins: state.wins,
            capture_minus_send: state.capture_minus_send.summary(),
            capture_minus_send_buckets: state.capture_minus_send.buckets().collect(),
        }
    }
}
