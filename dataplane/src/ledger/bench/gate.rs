//! `--gate p99=4ms`: what a run must hold.

use std::fmt;
use std::str::FromStr;

use super::percentile::{Distribution, Percent};
use super::summary::Summary;
use super::text::{duration, milliseconds};
use crate::config::Span;

/// What a gate looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Last byte at the source → verified.
    Delivery,
    /// The source's own window.
    Emit,
    /// First byte at the source → verified.
    Pipeline,
    /// Pipeline less the window.
    Over,
    /// Last byte at the source → verified by the last of all subscribers.
    Last,
    /// Between two arrivals.
    InterArrival,
}

/// The names on the command line.
const MEASURES: [(&str, Measure); 6] = [
    ("delivery", Measure::Delivery),
    ("emit", Measure::Emit),
    ("pipeline", Measure::Pipeline),
    ("over", Measure::Over),
    ("last", Measure::Last),
    ("inter-arrival", Measure::InterArrival),
];

/// A limit: a percentile of a measure, and what it may be at most. Written `p99=4ms`, or `over:p50=200us`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    measure: Measure,
    percent: Percent,
    most_ns: i64,
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Gate, String> {
        let wrong = |why: &str| {
            format!("\"{text}\" is no gate ({why}); write for example \"p99=4ms\", \"max=10ms\" or \"over:p50=200us\"")
        };
        let (left, limit) = text.split_once('=').ok_or_else(|| wrong("it has no \"=\""))?;
        let (measure, percent) = left.split_once(':').unwrap_or(("delivery", left));
        let measure = MEASURES.iter().find(|(name, _)| *name == measure.trim()).map(|(_, measure)| *measure);
        let measure = measure
            .ok_or_else(|| wrong("before the \":\" stands delivery, emit, pipeline, over, last or inter-arrival"))?;
        let percent = match percent.trim() {
            "max" => Some(Percent::MAX),
            other => other.strip_prefix('p').and_then(|number| number.parse().ok()).and_then(Percent::new),
        };
        let percent = percent.ok_or_else(|| wrong("a percentile is p1 to p100, or max"))?;
        let most_ns = limit.trim().parse::<Span>().map_err(|_| wrong("a limit is a duration"))?.nanos();
        Ok(Gate { measure, percent, most_ns })
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = MEASURES.iter().find(|(_, measure)| *measure == self.measure).map_or("", |(name, _)| name);
        write!(f, "{name} {} at most {}", self.percent, duration(self.most_ns))
    }
}

impl Gate {
    /// Its line, and whether it is met. Without a sample nothing is met.
    pub fn judge(&self, summary: &Summary) -> (String, bool) {
        let none = Distribution::default();
        let distribution = match self.measure {
            Measure::Delivery => &summary.delivery,
            Measure::Emit => &summary.emit,
            Measure::Pipeline => &summary.pipeline,
            Measure::Over => summary.over.as_ref().unwrap_or(&none),
            Measure::Last => &summary.last,
            Measure::InterArrival => &summary.inter_arrival,
        };
        match distribution.at(self.percent) {
            Some(found) if found <= self.most_ns => (format!("gate {self}: {}, met", milliseconds(found)), true),
            Some(found) => (format!("gate {self}: {}, MISSED", milliseconds(found)), false),
            None => (format!("gate {self}: no samples, MISSED"), false),
        }
    }
}

/// All gates' lines, and whether the run passes: each gate is met, no checksum was wrong, no delivery was dropped half-way, and
/// nothing came from retention.
pub fn judge(gates: &[Gate], summary: &Summary) -> (Vec<String>, bool) {
    let (mut lines, mut passed) = (Vec::new(), true);
    for gate in gates {
        let (line, met) = gate.judge(summary);
        passed &= met;
        lines.push(line);
    }
    let clean = [
        ("checksum failures", summary.checksum_failures()),
        ("fallbacks", summary.fallbacks),
        ("replays in the window", summary.replays as u64),
    ];
    for (what, count) in clean {
        if count > 0 {
            passed = false;
            lines.push(format!("gate no {what}: {count}, MISSED"));
        }
    }
    (lines, passed)
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::super::summary::{Measured, Mode};
    use super::*;

    fn summary(deliveries_us: &[i64], change: impl FnOnce(&mut Measured)) -> Summary {
        let sample = |(sequence, delivery): (u32, &i64)| Sample {
            sequence,
            delivery_ns: Some(delivery * 1_000),
            pipeline_ns: Some(delivery * 1_000 + 5_000_000),
            emit_ns: Some(5_000_000),
            ..Sample::default()
        };
        let mut measured = Measured {
            mode: Mode::Loopback,
            samples: (1..).zip(deliveries_us).map(sample).collect(),
            others: Vec::new(),
            window_ns: Some(5_000_000),
            checksum_failures: 0,
            verified: None,
            raw_fallbacks: None,
            cpu: None,
            clock: None,
            ended_by: None,
        };
        change(&mut measured);
        Summary::from(measured)
    }

    #[test]
    fn gates_read_and_print() {
        for (text, shown) in [
            ("p99=4ms", "delivery p99 at most 4.000 ms"),
            ("max=1s", "delivery max at most 1.000 s"),
            ("p50 = 200us", "delivery p50 at most 200.0 µs"),
            ("over:p90=1ms", "over p90 at most 1.000 ms"),
            ("inter-arrival:p100=1ms", "inter-arrival max at most 1.000 ms"),
        ] {
            assert_eq!(text.parse::<Gate>().expect(text).to_string(), shown);
        }
        for bad in ["", "p99", "p0=1ms", "p101=1ms", "99=1ms", "p99=4", "p99=-4ms", "wire:p99=1ms", "p99="] {
            let error = bad.parse::<Gate>().expect_err(bad);
            assert!(error.contains("write for example \"p99=4ms\""), "{error}");
        }
    }

    #[test]
    fn a_gate_is_met_or_missed() {
        let run = summary(&[100, 200, 4_000], |_| ());
        let gates = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a gate")).collect::<Vec<Gate>>();
        let (lines, passed) = judge(&gates(&["p99=4ms", "p50=200us", "over:max=4ms", "emit:p90=5ms"]), &run);
        assert!(passed, "{lines:?}");
        assert_eq!(lines[0], "gate delivery p99 at most 4.000 ms: 4.000 ms, met");
        let (lines, passed) = judge(&gates(&["p99=3999us", "p50=200us"]), &run);
        assert!(!passed);
        assert_eq!(lines[0], "gate delivery p99 at most 3.999 ms: 4.000 ms, MISSED");
        let (lines, passed) = judge(&gates(&["last:p50=1s"]), &run);
        assert!(!passed && lines[0].ends_with("no samples, MISSED"), "{lines:?}");
        assert!(!judge(&gates(&["p99=4ms"]), &summary(&[], |_| ())).1, "an empty run passes nothing");
    }

    #[test]
    fn a_run_that_is_not_clean_misses() {
        let gates = ["p99=1s".parse().expect("a gate")];
        for (what, change) in [
            ("checksum failures", (|run| run.checksum_failures = 1) as fn(&mut Measured)),
            ("fallbacks", |run| run.samples[0].discarded_partials = 1),
            ("replays in the window", |run| run.others = vec![vec![Sample { replayed: true, ..Sample::default() }]]),
        ] {
            let (lines, passed) = judge(&gates, &summary(&[1, 2], change));
            assert!(!passed);
            assert_eq!(lines[1], format!("gate no {what}: 1, MISSED"));
        }
    }
}
