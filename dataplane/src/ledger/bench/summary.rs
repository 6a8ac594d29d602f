//! A run's summary: counts that must be clean, and the percentiles.

use std::fmt;

use serde_json::{Value, json};

use super::percentile::{Distribution, Percent};
use super::sample::Sample;
use super::text::{duration, milliseconds, rate, size};

/// The clocks of two hosts may be this far apart before their difference spoils a delivery: a fifth of what a delivery of a few
/// milliseconds is, and well above what chrony holds within one network.
pub const CLOCK_OFFSET_NS_MAX: i64 = 500_000;

/// The percentiles that are shown.
const SHOWN: [Percent; 4] = [Percent::P50, Percent::P90, Percent::P99, Percent::MAX];

/// Where the ledgers came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// A server of this run.
    Loopback,
    /// Another host's server.
    Remote,
    /// A pipe of this process, whole ledgers.
    Local,
    /// A pipe of this process, watched below the whole ledger.
    LocalTap,
}

impl Mode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Loopback => "loopback",
            Mode::Remote => "remote",
            Mode::Local => "local",
            Mode::LocalTap => "localtap",
        }
    }
}

/// CPU time of a run, over whole cadences: from the first ledger's arrival to the last one's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// Cadences in it: one less than ledgers.
    pub ledgers: u64,
    /// The server's, ns; `None` where it is on another host.
    pub server_ns: Option<i64>,
    /// The clients', ns.
    pub client_ns: i64,
    /// All that was not idle on this machine, ns.
    pub machine_ns: Option<i64>,
}

/// How far the server's clock is from ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Clock {
    /// One host, one clock.
    Same,
    /// Server's clock − ours, ns, and how far that may be wrong.
    Measured {
        /// The offset.
        offset_ns: i64,
        /// Its bound.
        bound_ns: i64,
        /// How it was found.
        by: String,
    },
    /// Nobody tells; why.
    Unknown(String),
}

impl Clock {
    /// Whether the clocks may be further apart than [`CLOCK_OFFSET_NS_MAX`]: what a run warns of.
    pub fn warning(&self) -> Option<String> {
        match self {
            Clock::Same => None,
            Clock::Unknown(why) => Some(format!("the clock offset to the server's host is unknown ({why})")),
            Clock::Measured { offset_ns, bound_ns, .. } => {
                let worst = offset_ns.saturating_abs().saturating_add(*bound_ns);
                (worst > CLOCK_OFFSET_NS_MAX).then(|| {
                    format!(
                        "the server's clock may be {} from ours (the limit is {}): delivery and pipeline are that far wrong; \
                         let chrony synchronise both hosts",
                        duration(worst),
                        duration(CLOCK_OFFSET_NS_MAX)
                    )
                })
            }
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clock::Same => f.write_str("none: one host, one clock"),
            Clock::Measured { offset_ns, bound_ns, by } => {
                write!(f, "{} at most {} off ({by})", duration(*offset_ns), duration(*bound_ns))
            }
            Clock::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// What a run measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// Where the ledgers came from.
    pub mode: Mode,
    /// The first subscriber's ledgers, in order.
    pub samples: Vec<Sample>,
    /// The others' ledgers.
    pub others: Vec<Vec<Sample>>,
    /// The window over which the source was told to emit, ns, where that is known.
    pub window_ns: Option<i64>,
    /// Ledgers whose checksum was wrong.
    pub checksum_failures: u64,
    /// Ledgers that were compared with what was sent; `None` without `--verify`.
    pub verified: Option<u64>,
    /// Chunks that the server sent raw because encoding was behind; `None` where it does not say.
    pub raw_fallbacks: Option<u64>,
    /// CPU time.
    pub cpu: Option<Cpu>,
    /// The server's clock.
    pub clock: Option<Clock>,
    /// What ended the run before its end.
    pub ended_by: Option<String>,
}

/// A run's summary. Its text is what a person reads, [`Summary::json`] what a script does.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    measured: Measured,
    /// The source's emission windows.
    pub emit: Distribution,
    /// Last byte at the source → verified.
    pub delivery: Distribution,
    /// First byte at the source → verified.
    pub pipeline: Distribution,
    /// [`Summary::pipeline`] less the window, where the window is known.
    pub over: Option<Distribution>,
    /// Between two arrivals.
    pub inter_arrival: Distribution,
    /// Last byte at the source → verified by the last of all subscribers; empty with one.
    pub last: Distribution,
    /// Ledgers that came from retention.
    pub replays: usize,
    /// Partial deliveries that were dropped.
    pub fallbacks: u64,
    bytes: u64,
    packed_bytes: u64,
}

impl From<Measured> for Summary {
    fn from(measured: Measured) -> Summary {
        let samples = &measured.samples;
        let everyone = || std::iter::once(samples).chain(&measured.others).flatten();
        let pipeline: Distribution = samples.iter().filter_map(|sample| sample.pipeline_ns).collect();
        Summary {
            emit: samples.iter().filter_map(|sample| sample.emit_ns).collect(),
            delivery: samples.iter().filter_map(|sample| sample.delivery_ns).collect(),
            over: measured.window_ns.map(|window| pipeline.less(window)),
            pipeline,
            inter_arrival: samples.iter().skip(1).map(|sample| sample.inter_arrival_ns).collect(),
            last: last(samples, &measured.others),
            replays: everyone().filter(|sample| sample.replayed).count(),
            fallbacks: everyone().map(|sample| u64::from(sample.discarded_partials)).sum(),
            bytes: samples.iter().map(|sample| sample.bytes).sum(),
            packed_bytes: samples.iter().map(|sample| sample.packed_bytes).sum(),
            measured,
        }
    }
}

/// For each ledger that every subscriber got live, how long after its last byte the last of them had verified it. Nothing when
/// there is but one.
fn last(samples: &[Sample], others: &[Vec<Sample>]) -> Distribution {
    if others.is_empty() {
        return Distribution::default();
    }
    let of = |samples: &[Sample], sequence| {
        let at = samples.binary_search_by_key(&sequence, |sample| sample.sequence).ok()?;
        samples[at].delivery_ns
    };
    let latest = |sample: &Sample| {
        others.iter().try_fold(sample.delivery_ns?, |latest, other| Some(latest.max(of(other, sample.sequence)?)))
    };
    samples.iter().filter_map(latest).collect()
}

impl Summary {
    /// Ledgers that came.
    pub fn count(&self) -> usize {
        self.measured.samples.len()
    }

    /// Ledgers whose checksum was wrong.
    pub fn checksum_failures(&self) -> u64 {
        self.measured.checksum_failures
    }

    /// The summary for a script; times in ns.
    pub fn json(&self) -> Value {
        let measured = &self.measured;
        let percentiles = |distribution: &Distribution| {
            let each = SHOWN.map(|percent| (percent.to_string(), distribution.at(percent)));
            let mut object: serde_json::Map<String, Value> =
                each.into_iter().map(|(name, value)| (name, json!(value))).collect();
            object.insert("samples".into(), json!(distribution.count()));
            object.insert("min".into(), json!(distribution.least()));
            Value::Object(object)
        };
        let cpu = measured.cpu.map(|cpu| {
            let each = |ns: Option<i64>| ns.map(|ns| per_ledger(ns, cpu.ledgers));
            json!({
                "ledgers": cpu.ledgers, "server_ns": each(cpu.server_ns), "client_ns": each(Some(cpu.client_ns)),
                "machine_ns": each(cpu.machine_ns),
            })
        });
        json!({
            "mode": measured.mode.name(), "count": self.count(), "bytes": self.bytes, "packed_bytes": self.packed_bytes,
            "elapsed_ns": self.elapsed_ns(), "subscribers": 1 + measured.others.len(),
            "checksum_failures": measured.checksum_failures, "verified": measured.verified,
            "fallbacks": self.fallbacks, "raw_fallbacks": measured.raw_fallbacks, "replays": self.replays,
            "delivery": percentiles(&self.delivery), "t_emit": percentiles(&self.emit),
            "pipeline": percentiles(&self.pipeline), "over": self.over.as_ref().map(percentiles),
            "inter_arrival": percentiles(&self.inter_arrival), "last": percentiles(&self.last),
            "cpu_per_ledger": cpu, "ended_by": measured.ended_by,
        })
    }

    fn elapsed_ns(&self) -> i64 {
        self.measured.samples.last().map_or(0, |sample| sample.since_start_ns)
    }

    /// The counts.
    fn counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = &self.measured;
        let mut line = |name: &str, value: String| writeln!(f, "{name:<18} {value}");
        line("mode", measured.mode.name().into())?;
        line(
            "ledgers",
            match (measured.samples.first(), measured.samples.last()) {
                (Some(first), Some(last)) => format!("{} ({} to {})", self.count(), first.sequence, last.sequence),
                _ => "0".into(),
            },
        )?;
        line("bytes", format!("{} ({})", self.bytes, size(self.bytes)))?;
        let elapsed_ns = self.elapsed_ns();
        line("throughput", format!("{} over {}", rate(self.bytes, elapsed_ns), duration(elapsed_ns)))?;
        if matches!(measured.mode, Mode::Loopback | Mode::Remote) {
            line("compression", self.compression())?;
            line("checksum failures", measured.checksum_failures.to_string())?;
        }
        if let Some(verified) = measured.verified {
            line("verified", format!("{verified} ledgers are byte for byte what was sent"))?;
        }
        line("fallbacks", self.fallback_text())?;
        let excluded =
            if self.replays == 0 { "" } else { "; without stamps, so in no row of delivery, t_emit or pipeline" };
        line("replays", format!("{} ledgers came from retention{excluded}", self.replays))?;
        if !measured.others.is_empty() {
            line("subscribers", self.crowd_text())?;
        }
        if let Some(cpu) = &measured.cpu {
            line("cpu per ledger", cpu_text(cpu))?;
        }
        if let Some(clock) = &measured.clock {
            line("clock offset", clock.to_string())?;
        }
        measured.ended_by.as_ref().map_or(Ok(()), |why| line("ended early", why.clone()))
    }

    fn compression(&self) -> String {
        match self.packed_bytes {
            0 => "-".into(),
            packed => format!("{:.2}x ({packed} bytes in chunks)", self.bytes as f64 / packed as f64),
        }
    }

    fn fallback_text(&self) -> String {
        let raw = match (self.measured.mode, self.measured.raw_fallbacks) {
            (Mode::Local | Mode::LocalTap, _) => String::new(),
            (_, Some(chunks)) => format!("; {chunks} chunks sent raw because encoding was behind"),
            (_, None) => "; chunks sent raw because encoding was behind: the server does not say".into(),
        };
        format!("{} partial deliveries dropped{raw}", self.fallbacks)
    }

    fn crowd_text(&self) -> String {
        let count = 1 + self.measured.others.len();
        let missing = self.count() - self.last.count();
        match missing {
            0 => format!("{count}; each got every ledger live"),
            missing => format!("{count}; {missing} ledgers did not come live to all of them"),
        }
    }

    /// Why there are no stamps.
    fn missing(&self) -> &'static str {
        match self.measured.mode {
            _ if self.measured.samples.is_empty() => "no ledger came",
            Mode::Local => "a pipe in this process has no emission stamps: this mode shows cadence and throughput only",
            Mode::LocalTap => "nothing is delivered: this mode shows only the source's own window",
            Mode::Loopback | Mode::Remote => "every ledger came from retention, which has no stamps",
        }
    }
}

fn per_ledger(ns: i64, ledgers: u64) -> i64 {
    ns / i64::try_from(ledgers.max(1)).unwrap_or(i64::MAX)
}

fn cpu_text(cpu: &Cpu) -> String {
    let each = |ns: i64| milliseconds(per_ledger(ns, cpu.ledgers));
    let ends = match cpu.server_ns {
        Some(server_ns) => format!(
            "both ends {} (server {}, client {})",
            each(server_ns.saturating_add(cpu.client_ns)),
            each(server_ns),
            each(cpu.client_ns)
        ),
        None => format!("client {}; the server's is on its own host", each(cpu.client_ns)),
    };
    let machine = cpu.machine_ns.map_or(String::new(), |ns| format!("; the whole machine {}", each(ns)));
    format!("{ends}{machine}, over {} cadences", cpu.ledgers)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts(f)?;
        writeln!(f)?;
        writeln!(f, "{:<18} {:>13} {:>13} {:>13} {:>13}", "", "p50", "p90", "p99", "max")?;
        let mut row = |name: &str, distribution: &Distribution, missing: &str| match distribution.count() {
            0 => writeln!(f, "{name:<18} not measured: {missing}"),
            _ => {
                let at = |percent| distribution.at(percent).map_or_else(String::new, milliseconds);
                let [p50, p90, p99, max] = SHOWN.map(at);
                writeln!(f, "{name:<18} {p50:>13} {p90:>13} {p99:>13} {max:>13}")
            }
        };
        row("delivery", &self.delivery, self.missing())?;
        row("t_emit", &self.emit, self.missing())?;
        row("pipeline", &self.pipeline, self.missing())?;
        if let Some(over) = &self.over {
            row("pipeline - window", over, self.missing())?;
        }
        if !self.measured.others.is_empty() {
            row("last subscriber", &self.last, "no ledger came live to all subscribers")?;
        }
        row("inter-arrival", &self.inter_arrival, "it takes two ledgers")?;
        match self.delivery.least() {
            Some(least) if least < 0 => writeln!(
                f,
                "\nA delivery of {} is before its emission's end: the two clocks differ by at least that.",
                duration(least)
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sequence: u32, delivery_us: i64) -> Sample {
        Sample {
            sequence,
            bytes: 15_196_160,
            chunks: 58,
            packed_bytes: 2_000_000,
            since_start_ns: i64::from(sequence) * 600_000_000,
            inter_arrival_ns: if sequence == 1 { 0 } else { 600_000_000 },
            emit_ns: Some(7_500_000),
            delivery_ns: Some(delivery_us * 1_000),
            pipeline_ns: Some(7_500_000 + delivery_us * 1_000),
            discarded_partials: 0,
            replayed: false,
        }
    }

    fn replay(sequence: u32) -> Sample {
        let none = None;
        Sample { emit_ns: none, delivery_ns: none, pipeline_ns: none, replayed: true, ..sample(sequence, 0) }
    }

    fn measured(mode: Mode, samples: Vec<Sample>) -> Measured {
        Measured {
            mode,
            samples,
            others: Vec::new(),
            window_ns: None,
            checksum_failures: 0,
            verified: None,
            raw_fallbacks: None,
            cpu: None,
            clock: None,
            ended_by: None,
        }
    }

    #[test]
    fn the_text_of_a_loopback_run() {
        let cpu = Cpu { ledgers: 3, server_ns: Some(21_300_000), client_ns: 9_600_000, machine_ns: Some(36_000_000) };
        let run = Measured {
            window_ns: Some(7_500_000),
            verified: Some(4),
            raw_fallbacks: Some(0),
            cpu: Some(cpu),
            clock: Some(Clock::Same),
            ..measured(Mode::Loopback, (1..=4).map(|sequence| sample(sequence, 100 + i64::from(sequence))).collect())
        };
        let expected = "\
mode               loopback
ledgers            4 (1 to 4)
bytes              60784640 (57.97 MiB)
throughput         25.3 MB/s over 2.400 s
compression        7.60x (8000000 bytes in chunks)
checksum failures  0
verified           4 ledgers are byte for byte what was sent
fallbacks          0 partial deliveries dropped; 0 chunks sent raw because encoding was behind
replays            0 ledgers came from retention
cpu per ledger     both ends 10.300 ms (server 7.100 ms, client 3.200 ms); the whole machine 12.000 ms, over 3 cadences
clock offset       none: one host, one clock

                             p50           p90           p99           max
delivery                0.102 ms      0.104 ms      0.104 ms      0.104 ms
t_emit                  7.500 ms      7.500 ms      7.500 ms      7.500 ms
pipeline                7.602 ms      7.604 ms      7.604 ms      7.604 ms
pipeline - window       0.102 ms      0.104 ms      0.104 ms      0.104 ms
inter-arrival         600.000 ms    600.000 ms    600.000 ms    600.000 ms
";
        assert_eq!(Summary::from(run).to_string(), expected);
    }

    #[test]
    fn the_text_of_a_remote_run_with_replays_and_skewed_clocks() {
        let redelivered = Sample { discarded_partials: 2, ..replay(2) };
        let clock = Clock::Measured { offset_ns: -400_000, bound_ns: 150_000, by: "16 health round trips".into() };
        assert!(clock.warning().expect("0.55 ms").contains("may be 550.0 µs from ours (the limit is 500.0 µs)"));
        let run = Measured {
            clock: Some(clock),
            checksum_failures: 1,
            ended_by: Some("ledger 4: its checksum is wrong".into()),
            ..measured(Mode::Remote, vec![sample(1, -30), redelivered, replay(3)])
        };
        let expected = "\
mode               remote
ledgers            3 (1 to 3)
bytes              45588480 (43.48 MiB)
throughput         25.3 MB/s over 1.800 s
compression        7.60x (6000000 bytes in chunks)
checksum failures  1
fallbacks          2 partial deliveries dropped; chunks sent raw because encoding was behind: the server does not say
replays            2 ledgers came from retention; without stamps, so in no row of delivery, t_emit or pipeline
clock offset       -400.0 µs at most 150.0 µs off (16 health round trips)
ended early        ledger 4: its checksum is wrong

                             p50           p90           p99           max
delivery               -0.030 ms     -0.030 ms     -0.030 ms     -0.030 ms
t_emit                  7.500 ms      7.500 ms      7.500 ms      7.500 ms
pipeline                7.470 ms      7.470 ms      7.470 ms      7.470 ms
inter-arrival         600.000 ms    600.000 ms    600.000 ms    600.000 ms

A delivery of -30.0 µs is before its emission's end: the two clocks differ by at least that.
";
        assert_eq!(Summary::from(run).to_string(), expected);
    }

    #[test]
    fn what_was_not_measured_is_explained() {
        let rows = |mode, samples| Summary::from(measured(mode, samples)).to_string();
        let all_replayed = rows(Mode::Remote, vec![replay(1), replay(2)]);
        for row in ["delivery", "t_emit", "pipeline"] {
            let line = format!("{row:<18} not measured: every ledger came from retention, which has no stamps\n");
            assert!(all_replayed.contains(&line), "{all_replayed}");
        }
        let local = Sample { delivery_ns: None, pipeline_ns: None, emit_ns: None, ..sample(1, 0) };
        let text = rows(Mode::Local, vec![local]);
        assert!(
            text.contains("delivery           not measured: a pipe in this process has no emission stamps"),
            "{text}"
        );
        assert!(text.contains("inter-arrival      not measured: it takes two ledgers\n"), "{text}");
        assert!(text.contains("fallbacks          0 partial deliveries dropped\n"), "always printed: {text}");
        assert!(!text.contains("compression") && !text.contains("checksum"), "nothing is sent: {text}");
        let text = rows(Mode::LocalTap, vec![Sample { emit_ns: Some(1), ..local }]);
        assert!(text.contains("delivery           not measured: nothing is delivered"), "{text}");
        assert!(text.contains("t_emit                  0.000 ms"), "{text}");
        let text = rows(Mode::Loopback, Vec::new());
        assert!(text.contains("ledgers            0\n") && text.contains("not measured: no ledger came"), "{text}");
        assert!(text.contains("throughput         - over 0 ns"), "{text}");
    }

    #[test]
    fn the_last_of_a_crowd_counts_where_all_of_it_got_the_ledger_live() {
        let mine = vec![sample(1, 10), sample(2, 10), sample(3, 10)];
        let others = vec![vec![sample(1, 30), sample(2, 5), sample(3, 5)], vec![sample(1, 20), replay(2)]];
        let summary = Summary::from(Measured { others, ..measured(Mode::Loopback, mine) });
        assert_eq!((summary.last.count(), summary.last.at(Percent::MAX)), (1, Some(30_000)));
        assert_eq!(summary.replays, 1, "anybody's replay");
        let text = summary.to_string();
        assert!(text.contains("subscribers        3; 2 ledgers did not come live to all of them\n"), "{text}");
        assert!(text.contains("last subscriber         0.030 ms"), "{text}");
    }

    #[test]
    fn clocks_warn_above_half_a_millisecond() {
        let clock = |offset_ns, bound_ns| Clock::Measured { offset_ns, bound_ns, by: "x".into() };
        assert_eq!(clock(300_000, 200_000).warning(), None);
        assert!(clock(-300_000, 200_001).warning().is_some());
        assert!(Clock::Unknown("no word".into()).warning().expect("unknown").contains("no word"));
        assert_eq!(Clock::Same.warning(), None);
        assert!(clock(i64::MIN, i64::MAX).warning().is_some());
    }

    #[test]
    fn a_script_gets_the_same() {
        let run = Measured { window_ns: Some(7_500_000), ..measured(Mode::Loopback, vec![sample(1, 50), replay(2)]) };
        let json = Summary::from(run).json();
        assert_eq!(json["delivery"]["p99"], 50_000);
        assert_eq!((&json["over"]["p50"], &json["count"], &json["replays"]), (&json!(50_000), &json!(2), &json!(1)));
        assert_eq!((&json["last"]["p50"], &json["cpu_per_ledger"]), (&Value::Null, &Value::Null));
    }
}
