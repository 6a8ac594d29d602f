//! Holds an arbiter's report against the truth of a split.

use super::arbiter::{ArbiterReport, StreamReport};
use super::intervals::{self, Range};
use super::split::{StreamTruth, Truth};

/// What a comparison found.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Comparison {
    /// Streams compared.
    pub streams: usize,
    /// Residual messages in the truth that an arbiter can know of.
    pub residual: u64,
    /// Messages that every side lost before the first or after the last sequence that any side told of: no receiver
    /// can know of them.
    pub unseen: u64,
    /// Each difference in words; empty when the report is true.
    pub differences: Vec<String>,
}

impl Comparison {
    /// Whether the report is true.
    pub fn equal(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Compares residual gaps and each side's losses, per stream, within what any side told of.
pub fn compare(truth: &Truth, report: &ArbiterReport) -> Comparison {
    let mut comparison = Comparison::default();
    let mut reported: Vec<&StreamReport> = report.streams.iter().collect();
    for group in sessions(truth) {
        // A run of which nothing arrived has no number in the report; those after it move down.
        let (arrived, silent): (Vec<&StreamTruth>, Vec<&StreamTruth>) = group.iter().partition(|s| s.arrived);
        comparison.unseen += silent.iter().map(|stream| stream.messages).sum::<u64>();
        for (run, stream) in arrived.iter().enumerate() {
            match reported.iter().position(|report| same_stream(stream, run, report)) {
                Some(place) => compare_stream(stream, reported.swap_remove(place), &mut comparison),
                None if intervals::count(&stream.residual) == stream.messages => comparison.unseen += stream.messages,
                None => comparison.differences.push(format!("{} run {run}: not in the report", stream.session)),
            }
        }
    }
    let unknown = reported.iter().map(|report| format!("{} (run {}): not in the truth", report.stream, report.run));
    comparison.differences.extend(unknown);
    comparison
}

/// The truth's streams, grouped by session, runs in order.
fn sessions(truth: &Truth) -> Vec<Vec<&StreamTruth>> {
    let mut groups: Vec<Vec<&StreamTruth>> = Vec::new();
    for stream in &truth.streams {
        let same = |group: &&mut Vec<&StreamTruth>| {
            let first = group[0];
            (&first.protocol, first.protocol_id, first.channel, &first.session)
                == (&stream.protocol, stream.protocol_id, stream.channel, &stream.session)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(stream),
            None => groups.push(vec![stream]),
        }
    }
    groups
}

fn same_stream(truth: &StreamTruth, run: usize, report: &StreamReport) -> bool {
    let key = &report.key;
    (truth.protocol.as_str(), truth.protocol_id, truth.channel, run)
        == (key.protocol.name(), key.protocol_id, key.channel, report.run)
        && truth.session == key.session_text()
}

fn compare_stream(truth: &StreamTruth, report: &StreamReport, comparison: &mut Comparison) {
    comparison.streams += 1;
    let (base, frontier) = (report.counts.base, report.counts.frontier);
    let seen = |ranges: &[Range]| intervals::clip(ranges, base, frontier);
    // What the source itself lacked is no loss of a side.
    let of_sides = |ranges: &[Range]| intervals::difference(ranges, &truth.absent);
    let residual = seen(&truth.residual);
    comparison.residual += intervals::count(&residual);
    comparison.unseen += intervals::count(&truth.residual) - intervals::count(&residual);
    let mut differ = |what: String, wanted: &[Range], got: &[Range]| {
        let (only_wanted, only_got) = (intervals::difference(wanted, got), intervals::difference(got, wanted));
        if !only_wanted.is_empty() || !only_got.is_empty() {
            let found = format!("not told: {}; told wrongly: {}", told(&only_wanted), told(&only_got));
            comparison.differences.push(format!("{} run {}: {what}: {found}", report.stream, report.run));
        }
    };
    differ("residual gaps".into(), &residual, &of_sides(&report.gaps));
    for (dropped, side) in truth.dropped.iter().zip(&report.sides) {
        let what = format!("losses of side {}", side.side);
        differ(what, &seen(dropped), &of_sides(&side.gaps));
    }
}

/// At most five ranges in words.
fn told(ranges: &[Range]) -> String {
    const TOLD_MAX: usize = 5;
    let listed: Vec<String> = ranges.iter().take(TOLD_MAX).map(|r| format!("{}..={}", r.first, r.last)).collect();
    match ranges.len() {
        0 => "nothing".to_string(),
        n if n > TOLD_MAX => format!("{} and {} more ranges", listed.join(", "), n - TOLD_MAX),
        _ => listed.join(", "),
    }
}
