//! The seeded splitter: one source fanned out into sides A and B with independent loss, delay and jitter, and the truth
//! of what each side lost.
//!
//! The truth is JSON (`truth.json`), [`Truth`] to the letter; `format` changes when a field changes its meaning:
//!
//! ```json
//! {"format": "sluice-split-1", "seed": 1,
//!  "sides": [{"side": "A", "loss": 0.05, "duplicate": 0.0, "delay_ns": 0, "jitter_ns": 1000, "reorder": false,
//!             "packets_written": 950, "packets_dropped": 50}, …],
//!  "packets": 1000, "segments": 990,
//!  "streams": [{"protocol": "iex-tp", "protocol_id": 32772, "channel": 1, "session": "0x43810000", "run": 0,
//!               "messages": 5000, "first_sequence": 1, "last_sequence": 5000,
//!               "arrived": true, "absent": [], "dropped": [[[10, 14]], [[12, 20]]],
//!               "residual": [[12, 14]]}, …]}
//! ```
//!
//! `destinations`, where told, lists the addresses and ports of the source's segments. `run` is the run's rank by opening send time in the source; `arrived` tells whether any side got a packet of it;
//! `absent` is what the source itself lacks; `dropped` holds for each side the sequences that the source carried and no
//! packet of that side did, ascending; `residual` is what the source carried and no side did.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::intervals::{self, Range};
use super::runs::{Claim, Place, RunList};
use crate::units::{SIDES_MAX, Side};
use crate::wire::segment::{Segment, SegmentKind, SessionKey};

/// The value of [`Truth::format`].
pub const TRUTH_FORMAT: &str = "sluice-split-1";

/// How one side treats the source's packets.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct SideSplit {
    /// Probability that a packet is dropped, 0 to 1.
    pub loss: f64,
    /// Probability that a packet that is kept comes twice, 0 to 1.
    pub duplicate: f64,
    /// Added to every stamp, ns.
    pub delay_ns: i64,
    /// Up to this much more is added to a stamp, ns, evenly distributed.
    pub jitter_ns: i64,
    /// Whether jitter may change the side's order; otherwise a stamp is at least the one before.
    pub reorder: bool,
    /// From when to when the side is silent, ns since the source's first packet; every packet in between is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence_ns: Option<(i64, i64)>,
}

/// One side in a truth file.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SideTruth {
    /// The side's letter.
    pub side: char,
    /// How it was split.
    #[serde(flatten)]
    pub split: SideSplit,
    /// Packets given to the side, duplicates included.
    pub packets_written: u64,
    /// Packets of the source that the side dropped.
    pub packets_dropped: u64,
}

/// One stream in a truth file.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct StreamTruth {
    /// The protocol's name.
    pub protocol: String,
    /// IEX-TP's message protocol id, 0 elsewhere.
    pub protocol_id: u16,
    /// IEX-TP's channel, 0 elsewhere.
    pub channel: u32,
    /// The session id as text.
    pub session: String,
    /// The run's rank in the source.
    pub run: usize,
    /// Messages in the source, each once.
    pub messages: u64,
    /// First sequence in the source (a heartbeat's too).
    pub first_sequence: u64,
    /// Last sequence in the source.
    pub last_sequence: u64,
    /// Whether any packet of the run, heartbeats included, went to any side.
    pub arrived: bool,
    /// What the source itself lacks between its first and last sequence.
    pub absent: Vec<Range>,
    /// For each side, A first: what it lost.
    pub dropped: Vec<Vec<Range>>,
    /// What every side lost.
    pub residual: Vec<Range>,
}

/// A truth file.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Truth {
    /// [`TRUTH_FORMAT`].
    pub format: String,
    /// The seed.
    pub seed: u64,
    /// The sides, A first.
    pub sides: Vec<SideTruth>,
    /// Packets in the source.
    pub packets: u64,
    /// Of those, segments of a feed.
    pub segments: u64,
    /// Where the source's segments went: each address and port, as `"239.192.0.1:10378"`; empty where that is not told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<String>,
    /// The streams, in order of appearance.
    pub streams: Vec<StreamTruth>,
}

/// What one side gets of one packet: its stamps, none, one or (a duplicate) two.
pub type Copies = [Option<i64>; 2];

/// Decides for each packet what each side gets. The same seed gives the same split.
#[derive(Debug)]
pub struct Splitter {
    seed: u64,
    sides: Vec<SideSplit>,
    /// One source of chance for each side, so that changing one side's settings leaves the other as it was.
    chance: Vec<Pcg64Mcg>,
    last_ns: Vec<i64>,
    first_ns: Option<i64>,
    written: Vec<u64>,
    dropped: Vec<u64>,
    packets: u64,
    segments: u64,
    streams: Vec<SplitStream>,
    sessions: Vec<(SessionKey, RunList)>,
}

#[derive(Debug)]
struct SplitStream {
    source: Covered,
    sides: Vec<Covered>,
    first: u64,
    last: u64,
    arrived: bool,
}

/// Sequences seen, as joined ranges. Sources come nearly in order, so the newest range is the one that grows.
#[derive(Debug, Default, Clone)]
struct Covered {
    ranges: Vec<Range>,
}

impl Covered {
    fn add(&mut self, first: u64, end: u64) {
        if end <= first {
            return;
        }
        let new = Range { first, last: end - 1 };
        match self.ranges.last_mut() {
            Some(back) if first > back.last + 1 => self.ranges.push(new),
            Some(back) if first >= back.first => back.last = back.last.max(new.last),
            None => self.ranges.push(new),
            Some(_) => self.insert(new),
        }
    }

    fn insert(&mut self, new: Range) {
        let from = self.ranges.partition_point(|range| range.last + 1 < new.first);
        let to = self.ranges.partition_point(|range| range.first <= new.last + 1);
        let mut joined = new;
        if from < to {
            joined.first = joined.first.min(self.ranges[from].first);
            joined.last = joined.last.max(self.ranges[to - 1].last);
        }
        self.ranges.splice(from..to, [joined]);
    }
}

impl Splitter {
    /// A splitter into `sides` (1 to [`SIDES_MAX`]).
    ///
    /// # Panics
    /// When there are more sides than that, or a probability is not within 0 to 1, or a time is negative.
    pub fn new(seed: u64, sides: &[SideSplit]) -> Splitter {
        assert!((1..=SIDES_MAX).contains(&sides.len()), "{} sides", sides.len());
        for side in sides {
            assert!((0.0..=1.0).contains(&side.loss) && (0.0..=1.0).contains(&side.duplicate), "{side:?}");
            assert!(side.delay_ns >= 0 && side.jitter_ns >= 0, "{side:?}");
        }
        // Any two streams of one generator differ by their seed; the multiplier keeps neighbouring seeds apart.
        let chance = |side| Pcg64Mcg::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(side));
        Splitter {
            seed,
            sides: sides.to_vec(),
            chance: (0..sides.len() as u64).map(chance).collect(),
            last_ns: vec![i64::MIN; sides.len()],
            first_ns: None,
            written: vec![0; sides.len()],
            dropped: vec![0; sides.len()],
            packets: 0,
            segments: 0,
            streams: Vec::new(),
            sessions: Vec::new(),
        }
    }

    /// Sides.
    pub fn sides(&self) -> usize {
        self.sides.len()
    }

    /// Decides for one packet of the source, captured at `capture_ns`; `segment` is what it carries of a feed. Packets
    /// that carry none are lost and delayed like any other. Returns each side's copies in `out`, which has a place for
    /// each side.
    pub fn split(&mut self, capture_ns: i64, segment: Option<&Segment<'_>>, out: &mut [Copies]) {
        assert_eq!(out.len(), self.sides.len(), "one place for each side");
        self.packets += 1;
        let claim = segment.and_then(|segment| Some((segment, Claim::of(segment, capture_ns)?)));
        let stream = claim.and_then(|(segment, claim)| self.book(segment, &claim));
        for (side, out) in out.iter_mut().enumerate() {
            *out = self.copies(side, capture_ns);
            if let (Some(at), Some((_, claim)), [Some(_), _]) = (stream, claim, *out) {
                self.streams[at].arrived = true;
                self.streams[at].sides[side].add(claim.first, claim.end);
            }
        }
    }

    /// The truth of all that was split so far.
    pub fn truth(&self) -> Truth {
        let side = |at: usize| SideTruth {
            side: Side(at as u8).letter(),
            split: self.sides[at],
            packets_written: self.written[at],
            packets_dropped: self.dropped[at],
        };
        let runs = self.sessions.iter().flat_map(|(key, runs)| {
            let ranked = runs.as_slice().iter().enumerate();
            ranked.map(move |(rank, run)| self.streams[run.handle as usize].truth(key, rank))
        });
        Truth {
            format: TRUTH_FORMAT.to_string(),
            seed: self.seed,
            sides: (0..self.sides.len()).map(side).collect(),
            packets: self.packets,
            segments: self.segments,
            destinations: Vec::new(),
            streams: runs.collect(),
        }
    }

    fn copies(&mut self, side: usize, capture_ns: i64) -> Copies {
        let split = self.sides[side];
        // Every packet draws the same number of times, so that one setting does not shift what another decides.
        let (drop, twice) = (self.chance[side].random::<f64>(), self.chance[side].random::<f64>());
        let jitter = [self.jitter(side), self.jitter(side)];
        let since_first = capture_ns.saturating_sub(*self.first_ns.get_or_insert(capture_ns));
        let silent = split.silence_ns.is_some_and(|(from, to)| (from..to).contains(&since_first));
        if drop < split.loss || silent {
            self.dropped[side] += 1;
            return [None, None];
        }
        let mut stamp = |jitter_ns: i64| {
            let stamp_ns = capture_ns.saturating_add(split.delay_ns).saturating_add(jitter_ns);
            self.written[side] += 1;
            if split.reorder {
                return stamp_ns;
            }
            self.last_ns[side] = self.last_ns[side].max(stamp_ns);
            self.last_ns[side]
        };
        [Some(stamp(jitter[0])), (twice < split.duplicate).then(|| stamp(jitter[1]))]
    }

    fn jitter(&mut self, side: usize) -> i64 {
        self.chance[side].random_range(0..=self.sides[side].jitter_ns)
    }

    /// Books a segment as the source's. The source is trusted: nothing is doubted.
    fn book(&mut self, segment: &Segment<'_>, claim: &Claim) -> Option<usize> {
        self.segments += 1;
        if segment.kind == SegmentKind::EndOfSession {
            return None;
        }
        let at = self.sessions.iter().position(|(key, _)| *key == segment.session).unwrap_or_else(|| {
            self.sessions.push((segment.session, RunList::with_capacity(1)));
            self.sessions.len() - 1
        });
        let runs = &mut self.sessions[at].1;
        let place = runs.place(claim);
        if let Place::Open(rank) = place {
            runs.open(rank, claim, self.streams.len() as u32);
            self.streams.push(SplitStream {
                source: Covered::default(),
                sides: vec![Covered::default(); self.sides.len()],
                first: claim.first,
                last: claim.first,
                arrived: false,
            });
        } else {
            runs.accept(place, claim);
        }
        let stream = runs.as_slice()[place.rank()].handle as usize;
        let books = &mut self.streams[stream];
        books.source.add(claim.first, claim.end);
        books.first = books.first.min(claim.first);
        books.last = books.last.max(claim.end.saturating_sub(1));
        Some(stream)
    }
}

impl SplitStream {
    fn truth(&self, key: &SessionKey, run: usize) -> StreamTruth {
        let dropped: Vec<Vec<Range>> =
            self.sides.iter().map(|side| intervals::difference(&self.source.ranges, &side.ranges)).collect();
        let all =
            dropped.iter().skip(1).fold(dropped[0].clone(), |shared, side| intervals::intersection(&shared, side));
        let whole = [Range { first: self.first, last: self.last }];
        let absent =
            if self.source.ranges.is_empty() { Vec::new() } else { intervals::difference(&whole, &self.source.ranges) };
        StreamTruth {
            protocol: key.protocol.name().to_string(),
            protocol_id: key.protocol_id,
            channel: key.channel,
            session: key.session_text(),
            run,
            messages: intervals::count(&self.source.ranges),
            first_sequence: self.first,
            last_sequence: self.last,
            arrived: self.arrived,
            absent,
            residual: intervals::joined(all),
            dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_side_drops_all_and_nothing_else_changes() {
        let lossy = SideSplit { loss: 0.3, ..SideSplit::default() };
        let silent = SideSplit { silence_ns: Some((10, 20)), ..lossy };
        let (mut plain, mut quiet) = (Splitter::new(5, &[lossy]), Splitter::new(5, &[silent]));
        let mut out = [[None, None]];
        for packet in 0..100 {
            plain.split(1_000 + packet, None, &mut out);
            let before = out;
            quiet.split(1_000 + packet, None, &mut out);
            assert_eq!(out, if (10..20).contains(&packet) { [[None, None]] } else { before }, "packet {packet}");
        }
    }

    #[test]
    fn covered_ranges_join_in_any_order() {
        let mut covered = Covered::default();
        for (first, end) in [(10, 12), (20, 25), (12, 15), (30, 31), (1, 2), (15, 20), (40, 40), (2, 10), (31, 32)] {
            covered.add(first, end);
        }
        assert_eq!(covered.ranges, [(1, 24).into(), (30, 31).into()]);
        let mut other = Covered::default();
        other.add(5, 7);
        other.add(24, 31);
        assert_eq!(
            intervals::difference(&covered.ranges, &other.ranges),
            [(1, 4).into(), (7, 23).into(), (31, 31).into()]
        );
    }

    #[test]
    fn the_same_seed_splits_the_same_and_sides_are_independent() {
        let lossy = SideSplit { loss: 0.3, duplicate: 0.1, jitter_ns: 50, ..SideSplit::default() };
        let run = |seed, a, b| {
            let mut splitter = Splitter::new(seed, &[a, b]);
            let mut all = Vec::new();
            for at in 0..500 {
                let mut out = [[None; 2]; 2];
                splitter.split(at * 10, None, &mut out);
                all.push(out);
            }
            all
        };
        let first = run(7, lossy, lossy);
        assert_eq!(first, run(7, lossy, lossy));
        assert_ne!(first, run(8, lossy, lossy));
        let other_b = run(7, lossy, SideSplit { loss: 0.9, ..lossy });
        assert!(first.iter().zip(&other_b).all(|(x, y)| x[0] == y[0]), "A does not depend on B");
        let both = first.iter().filter(|out| out[0][0].is_none() && out[1][0].is_none()).count();
        assert!((25..=70).contains(&both), "{both} of 500 lost on both at 0.3 × 0.3");
        let stamps: Vec<i64> = first.iter().flat_map(|out| out[0]).flatten().collect();
        assert!(stamps.is_sorted());
    }
}
