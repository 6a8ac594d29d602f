//! What a stress found, in numbers.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::Load;
use super::offset::Compared;
use super::pace::Pushed;

/// Percentiles in ns, by nearest rank. Without samples all are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Percentiles {
    /// Samples.
    pub count: u64,
    /// Median.
    pub p50: i64,
    /// 90th percentile.
    pub p90: i64,
    /// 99th percentile.
    pub p99: i64,
    /// 99.9th percentile.
    pub p999: i64,
    /// Largest.
    pub max: i64,
}

impl Percentiles {
    pub(super) fn of_histogram(histogram: &Histogram<u64>) -> Percentiles {
        let at = |quantile| histogram.value_at_quantile(quantile) as i64;
        Percentiles {
            count: histogram.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as i64,
        }
    }

    /// Sorts the samples.
    pub(super) fn of_samples(samples: &mut [i64]) -> Percentiles {
        samples.sort_unstable();
        let count = samples.len();
        let at = |per_mille: usize| samples.get((count * per_mille).div_ceil(1_000).max(1) - 1).copied().unwrap_or(0);
        Percentiles { count: count as u64, p50: at(500), p90: at(900), p99: at(990), p999: at(999), max: at(1_000) }
    }

    /// As JSON, in ns.
    pub fn json(&self) -> Value {
        json!({"count": self.count, "p50": self.p50, "p90": self.p90, "p99": self.p99, "p999": self.p999, "max": self.max})
    }
}

/// What a reader counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// The first number that it read.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Records read: in order, at their own sequence, whole.
    pub received: u64,
    /// Numbers that were missing between two records.
    pub holes: u64,
    /// Records that the ring told this reader it did not get, overwritten or left out by a mirror's gap: all of the holes,
    /// or something is wrong.
    pub lapped: u64,
    /// Those of them that were counted when the reader came upon a gap of the ring (with what was overwritten there by then).
    pub skipped: u64,
    /// Records that came after a later one, or twice.
    pub reordered: u64,
    /// Records that stood at another's sequence or were not whole.
    pub wrong: u64,
    /// Records of another run.
    pub foreign: u64,
}

impl Counts {
    /// What was delivered of a run that ended with record `last`, counted from the mirror's first. `mirror`: its first
    /// sequence, and the sequences that it neither wrote nor left out by a declared gap; `None` where that is not known (there
    /// the reader's first counts).
    pub fn delivery(&self, mirror: Option<(u64, u64)>, last: u64) -> Delivery {
        let own = (self.received > 0).then_some(self.first);
        let first = mirror.map_or(own.unwrap_or(1), |(first, _)| first.clamp(1, own.unwrap_or(u64::MAX)));
        let expected = (last + 1).saturating_sub(first);
        // A reader that came after the mirror had begun was lapped before its first record.
        let before = own.map_or(0, |own| own - first);
        let undeclared = mirror.map_or(0, |(_, undeclared)| undeclared);
        let told = self.holes.min(self.lapped).saturating_add(before).saturating_sub(undeclared);
        let missing = expected.saturating_sub(self.received);
        Delivery { first, last, expected, received: self.received, lost: missing.saturating_sub(told) }
    }
}

/// What came of what had to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delivery {
    /// Where the mirror began: what was published before is history.
    pub first: u64,
    /// The run's last record.
    pub last: u64,
    /// Records from first to last.
    pub expected: u64,
    /// Records that were read.
    pub received: u64,
    /// Records that are missing though no gap and no lapped count tells of them.
    pub lost: u64,
}

impl Delivery {
    /// Records that were not read.
    pub fn missing(&self) -> u64 {
        self.expected.saturating_sub(self.received)
    }

    /// Received of expected; 1 where nothing was to come.
    pub fn ratio(&self) -> f64 {
        if self.expected == 0 { 1.0 } else { self.received as f64 / self.expected as f64 }
    }
}

/// How a run is to be judged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// All came, in order.
    Whole,
    /// Something is missing, and a gap or a lapped count says so.
    Gaps,
    /// Something is missing without a word, came out of order, or was damaged.
    Broken,
}

impl Verdict {
    fn of(counts: &Counts, delivery: &Delivery) -> Verdict {
        if delivery.lost > 0 || counts.reordered > 0 || counts.wrong > 0 {
            Verdict::Broken
        } else if delivery.missing() > 0 {
            Verdict::Gaps
        } else {
            Verdict::Whole
        }
    }

    /// Its name in JSON.
    pub fn label(self) -> &'static str {
        match self {
            Verdict::Whole => "whole",
            Verdict::Gaps => "gaps",
            Verdict::Broken => "broken",
        }
    }
}

/// What the producer did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Produced {
    /// What it was to do.
    pub load: Load,
    /// Records published.
    pub pushed: u64,
    /// Records a second that it reached.
    pub rate: f64,
    /// How late each burst was published against the schedule: the open loop's own lateness.
    pub lateness: Percentiles,
}

impl Produced {
    pub(super) fn of(load: &Load, pushed: &Pushed) -> Produced {
        // The last burst has its time too: a run on time reaches the rate.
        let last_ns = load.due_ns(pushed.count).max(1);
        let whole_ns = pushed.count as f64 * 1e9 / load.rate as f64;
        let elapsed_ns = whole_ns + (pushed.elapsed_ns - last_ns) as f64;
        let rate = pushed.count as f64 * 1e9 / elapsed_ns;
        Produced { load: *load, pushed: pushed.count, rate, lateness: Percentiles::of_histogram(&pushed.lateness) }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "rate": self.load.rate, "seconds": self.load.seconds, "size": self.load.size, "even": self.load.even,
            "burst": self.load.burst(), "pushed": self.pushed, "achieved_rate": self.rate,
            "lateness_ns": self.lateness.json(),
        })
    }
}

/// Counters of the mirror's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copied {
    /// First sequence of the mirror's ring.
    pub first: u64,
    /// Sequences from there on that the mirror neither wrote nor left out by a declared gap.
    pub undeclared: u64,
    /// Repair requests.
    pub naks: u64,
    /// Records written from repair.
    pub repaired: u64,
    /// Jumps of the mirror's ring.
    pub gaps: u64,
    /// Records that they left out.
    pub gap_records: u64,
    /// Records that came again.
    pub duplicates: u64,
    /// Datagrams that came early and were held back.
    pub early: u64,
    /// Datagrams sent, copies included.
    pub datagrams: u64,
    /// Connections made.
    pub connections: u64,
}

/// A run on one host.
#[derive(Clone, PartialEq, Debug)]
pub struct LocalReport {
    /// tcp, udp or multicast; `None`: the ring alone.
    pub mirror: Option<&'static str>,
    /// The producer.
    pub produced: Produced,
    /// What the reader counted.
    pub counts: Counts,
    /// What came.
    pub delivery: Delivery,
    /// The mirror.
    pub copied: Option<Copied>,
    /// From push to read.
    pub latency: Percentiles,
    /// From the record's time by the schedule to the read: with what the producer was late.
    pub latency_from_schedule: Percentiles,
}

impl LocalReport {
    /// How it is to be judged.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.counts, &self.delivery)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "mirror": self.mirror, "producer": self.produced.json(),
            "delivery": delivery_json(&self.counts, &self.delivery),
            "transport": self.copied.map(|copied| json!({
                "first": copied.first, "naks": copied.naks, "repaired_records": copied.repaired, "gaps": copied.gaps,
                "gap_records": copied.gap_records, "duplicate_records": copied.duplicates,
                "early_datagrams": copied.early, "datagrams": copied.datagrams, "connections": copied.connections,
            })),
            "latency_ns": self.latency.json(), "latency_from_schedule_ns": self.latency_from_schedule.json(),
            "verdict": self.verdict().label(),
        })
    }
}

fn delivery_json(counts: &Counts, delivery: &Delivery) -> Value {
    json!({
        "first": delivery.first, "last": delivery.last, "expected": delivery.expected,
        "received": delivery.received, "ratio": delivery.ratio(), "lost": delivery.lost,
        "holes": counts.holes, "lapped": counts.lapped, "skipped": counts.skipped, "reordered": counts.reordered, "wrong": counts.wrong,
        "foreign": counts.foreign,
    })
}

/// What a reader on another host found.
#[derive(Clone, PartialEq, Debug)]
pub struct RemoteReport {
    /// Where it is.
    pub peer: String,
    /// What it counted.
    pub counts: Counts,
    /// What came.
    pub delivery: Delivery,
    /// Its clock against the source's.
    pub clock: Compared,
    /// Every so many-th record was timed.
    pub stride: u64,
    /// From push to read, in the source's clock. Negative where the error of the clocks is larger.
    pub one_way: Percentiles,
}

impl RemoteReport {
    /// How it is to be judged.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.counts, &self.delivery)
    }

    /// The figures say less than the network allows: the bound of their error is larger than their median.
    pub fn is_blurred(&self) -> bool {
        self.clock.bound_ns() > self.one_way.p50
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "peer": self.peer, "delivery": delivery_json(&self.counts, &self.delivery), "clock": self.clock.json(),
            "timed_every": self.stride, "one_way_ns": self.one_way.json(), "error_bound_ns": self.clock.bound_ns(),
            "bound_exceeds_p50": self.is_blurred(), "verdict": self.verdict().label(),
        })
    }
}

/// A run between hosts, as the source tells it.
#[derive(Clone, PartialEq, Debug)]
pub struct SourceReport {
    /// The producer.
    pub produced: Produced,
    /// Each reader, or why it told nothing.
    pub readers: Vec<Result<RemoteReport, String>>,
}

impl SourceReport {
    /// The worst of the readers that told anything.
    pub fn verdict(&self) -> Verdict {
        self.readers.iter().flatten().map(RemoteReport::verdict).max().unwrap_or(Verdict::Whole)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let reader = |reader: &Result<RemoteReport, String>| match reader {
            Ok(report) => report.json(),
            Err(what) => json!({"error": what}),
        };
        json!({
            "producer": self.produced.json(), "readers": self.readers.iter().map(reader).collect::<Vec<_>>(),
            "verdict": self.verdict().label(),
        })
    }
}

/// A run between hosts, as one reader tells it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReaderReport {
    /// What it counted.
    pub counts: Counts,
    /// What came.
    pub delivery: Delivery,
}

impl ReaderReport {
    /// How it is to be judged.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.counts, &self.delivery)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({"delivery": delivery_json(&self.counts, &self.delivery), "verdict": self.verdict().label()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut samples: Vec<i64> = (1..=1_000).rev().collect();
        let of = Percentiles::of_samples(&mut samples);
        assert_eq!([of.p50, of.p90, of.p99, of.p999, of.max], [500, 900, 990, 999, 1_000]);
        assert_eq!(Percentiles::of_samples(&mut []), Percentiles::default());
        assert_eq!(Percentiles::of_samples(&mut [-3]).max, -3);
    }

    #[test]
    fn history_is_no_loss_and_gaps_are_no_silent_one() {
        let counts = Counts { first: 250, last: 1_000, received: 751, ..Counts::default() };
        let all = counts.delivery(Some((250, 0)), 1_000);
        assert_eq!((all.expected, all.lost, Verdict::of(&counts, &all)), (751, 0, Verdict::Whole));
        // The reader came after the mirror had begun, and was lapped.
        let late = counts.delivery(Some((200, 0)), 1_000);
        assert_eq!((late.first, late.missing(), late.lost), (200, 50, 0));
        assert_eq!(Verdict::of(&counts, &late), Verdict::Gaps);
        // A hole in the mirror's ring that the mirror declared, and one that it did not.
        let holes = Counts { received: 741, holes: 10, lapped: 10, skipped: 10, ..counts };
        assert_eq!(holes.delivery(Some((250, 0)), 1_000).lost, 0);
        assert_eq!(holes.delivery(Some((250, 6)), 1_000).lost, 6);
        // One of which the ring told its reader nothing.
        assert_eq!(Counts { lapped: 9, ..holes }.delivery(Some((250, 0)), 1_000).lost, 1);
        let nothing = Counts::default();
        assert_eq!(nothing.delivery(Some((250, 0)), 1_000).lost, 751);
        assert_eq!(nothing.delivery(None, 1_000).lost, 1_000);
    }
}
