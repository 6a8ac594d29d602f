//! The counters of the ledger's workers, each owned by one worker, and what the control thread shows of them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::{Value, json};

use super::retention::Bounds;
use crate::sync::counters::{CounterIndex, CounterReader, CounterWriter, counters};
use crate::sync::health::{HealthReason, Shape, Sign};
use crate::sync::latest::Latest;
use crate::sync::metrics::{Kind, Metric, Sample, Source};

/// A set of counters: a plain structure that a worker counts in, an enum that numbers its fields, and the copy. A field is
/// a `counter` or a `gauge`; one without a metric's name is only shown in the status.
macro_rules! counter_set {
    ($(#[$doc:meta])* $machine:ident, $name:ident { $($kind:ident $field:ident as $variant:ident: $metric:literal $({$label:literal: $value:literal})?, $help:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $machine {
            $(#[doc = $help] pub $field: u64,)*
        }

        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $(#[doc = $help] $variant,)*
        }

        impl $name {
            /// Every counter, and how it is shown.
            pub const ALL: &'static [Shown<$name>] = &[$(Shown {
                counter: $name::$variant,
                metric: $metric,
                help: $help,
                key: stringify!($field),
                counts: stringify!($kind).as_bytes()[0] == b'c',
                label: { let label: &[(&str, &str)] = &[$(($label, $value))?]; label },
            },)*];

            /// Shows what a worker has counted.
            pub fn write(counters: &mut CounterWriter<$name>, machine: &$machine) {
                $(counters.set($name::$variant, machine.$field);)*
            }
        }

        impl CounterIndex for $name {
            const COUNT: usize = $name::ALL.len();
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// How a counter is shown.
#[derive(Clone, Copy, Debug)]
pub struct Shown<C: 'static> {
    /// The counter.
    pub counter: C,
    /// Its metric's name without `_total`; empty: it is only in the status.
    pub metric: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Its key in the status.
    pub key: &'static str,
    /// Whether it only grows.
    pub counts: bool,
    /// A label beside those of its worker.
    pub label: &'static [(&'static str, &'static str)],
}

counter_set! {
    /// What a source worker counts.
    SourceCounters, SourceCounter {
        counter ledgers as Ledgers: "sluice_ledger_source_ledgers", "Ledgers that the source gave whole";
        counter bytes as Bytes: "sluice_ledger_source_bytes", "Bytes that the source gave";
        counter chunks as Chunks: "sluice_ledger_source_chunks", "Chunks cut";
        counter raw_chunks as RawChunks: "sluice_ledger_source_raw_chunks", "Chunks that were chosen to go out raw";
        counter raw_fallbacks as RawFallbacks: "sluice_ledger_source_raw_fallbacks", "Chunks that went out raw because the encoders were behind";
        counter hastened as Hastened: "sluice_ledger_source_hastened_chunks", "Chunks packed at a faster level than the configured one";
        counter waits as Waits: "sluice_ledger_source_waits", "Times that the source was not asked because the fan-out was behind";
        gauge emission_ns as EmissionNs: "sluice_ledger_source_emission_seconds", "From the first to the last byte of the last ledger";
        gauge open as Open: "sluice_ledger_source_open", "Whether a ledger is being emitted";
        gauge latest as Latest: "sluice_ledger_source_latest_sequence", "Last ledger that the source gave whole";
    }
}

counter_set! {
    /// What an encoder counts.
    EncodeCounters, EncodeCounter {
        counter chunks as Chunks: "sluice_ledger_encoder_chunks", "Chunks packed";
        counter raw_bytes as RawBytes: "sluice_ledger_encoder_raw_bytes", "Their bytes";
        counter packed_bytes as PackedBytes: "sluice_ledger_encoder_packed_bytes", "Bytes that they were packed into";
        counter unpacked as Unpacked: "sluice_ledger_encoder_unpacked_chunks", "Chunks that packing would not have made smaller, and that went out raw";
        counter waits as Waits: "sluice_ledger_encoder_waits", "Times that it waited because the fan-out was behind";
    }
}

counter_set! {
    /// What a relay counts.
    RelayCounters, RelayCounter {
        counter connections as Connections: "sluice_ledger_relay_connections", "Connections to the upstream server";
        counter disconnects as Disconnects: "sluice_ledger_relay_disconnects", "Connections that were lost";
        counter ledgers as Ledgers: "sluice_ledger_relay_ledgers", "Ledgers verified and passed on";
        counter bytes as Bytes: "sluice_ledger_relay_bytes", "Bytes of their messages";
        counter restarts as Restarts: "sluice_ledger_relay_restarts", "Times that an open ledger began again";
        counter waits as Waits: "sluice_ledger_relay_waits", "Turns in which nothing was read because the fan-out was behind";
        counter gaps as Gaps: "sluice_ledger_relay_gaps", "Times that the upstream server did not have the next ledger any more";
        counter runs as Runs: "sluice_ledger_relay_other_runs", "Times that the upstream server streamed another run";
        gauge flows as Flows: "sluice_ledger_relay_flows", "Connections that each ledger's chunks are shared out to";
        gauge connected as Connected: "sluice_ledger_relay_connected", "Whether the connection to the upstream server stands";
        gauge latest as Latest: "sluice_ledger_relay_latest_sequence", "Last ledger that was passed on whole";
    }
}

counter_set! {
    /// What the fan-out counts.
    FanoutCounters, FanoutCounter {
        gauge oldest as Oldest: "sluice_ledger_oldest_sequence", "Oldest ledger that is kept; 0: none is";
        gauge latest as Latest: "sluice_ledger_latest_sequence", "Latest ledger that is kept; 0: none is";
        gauge durable as Durable: "sluice_ledger_durable_sequence", "Latest ledger that is durable on disk; 0: none is known to be";
        gauge subscribers as Subscribers: "sluice_ledger_subscribers", "Subscribers";
        gauge live as Live: "sluice_ledger_live_subscribers", "Subscribers that follow live";
        gauge connections as Connections: "sluice_ledger_connections", "Open connections, whatever they ask for";
        gauge median_lag as MedianLag: "sluice_ledger_subscriber_median_lag_ledgers", "Ledgers that the median subscriber's connection has not got yet, looked at with each ledger's end";
        gauge p99_lag as P99Lag: "sluice_ledger_subscriber_p99_lag_ledgers", "The same of the connection that 99 of 100 are not behind";
        gauge slowest_lag as SlowestLag: "sluice_ledger_subscriber_slowest_lag_ledgers", "The same of the one that is furthest behind";
        gauge memory_bytes as MemoryBytes: "sluice_ledger_unwritten_bytes", "Bytes of memory of completed ledgers whose write is not done";
        gauge sending_bytes as SendingBytes: "sluice_ledger_sending_bytes", "Bytes of messages that are on their way to subscribers";
        gauge slowest as Slowest: "sluice_ledger_slowest_bytes_per_second", "How fast the slowest live subscriber takes bytes; 0: not known";
        counter ledgers as Ledgers: "sluice_ledger_published_ledgers", "Ledgers published";
        counter chunks as Chunks: "sluice_ledger_published_chunks", "Chunks published";
        counter raw_bytes as RawBytes: "sluice_ledger_published_raw_bytes", "Their bytes before packing";
        counter packed_bytes as PackedBytes: "sluice_ledger_published_packed_bytes", "Their bytes as they are sent";
        counter sent_bytes as SentBytes: "sluice_ledger_sent_bytes", "Bytes that connections took";
        counter sends as Sends: "sluice_ledger_sends", "Sends";
        counter partial_sends as PartialSends: "sluice_ledger_partial_sends", "Sends of which a connection took only a part";
        counter live_abandons as LiveAbandons: "sluice_ledger_live_abandons", "Live deliveries given up because the source had moved on";
        counter raw_fallbacks as RawFallbacks: "sluice_ledger_raw_fallbacks", "Chunks that went out raw because encoding was behind";
        counter restarts as Restarts: "sluice_ledger_restarts", "Times that an open ledger began again";
        counter resets as Resets: "sluice_ledger_resets", "Times that retention began anew";
        counter unwritten_dropped as UnwrittenDropped: "sluice_ledger_dropped_unwritten_ledgers", "Ledgers that left retention before they were written";
        counter write_timeouts as WriteTimeouts: "sluice_ledger_write_timeouts", "Connections that took nothing for too long";
        counter request_timeouts as RequestTimeouts: "sluice_ledger_request_timeouts", "Connections that sent no whole request in time";
        counter accepted as Accepted: "sluice_ledger_accepted_connections", "Connections taken";
        counter accepts_failed as AcceptsFailed: "sluice_ledger_failed_accepts", "Accepts that the kernel refused";
        counter refused_connections as RefusedConnections: "sluice_ledger_refused_connections" {"reason": "connections"}, "Connections refused";
        counter refused_address_connections as RefusedAddressConnections: "sluice_ledger_refused_connections" {"reason": "address_connections"}, "Connections refused";
        counter refused_subscribers as RefusedSubscribers: "sluice_ledger_refused_connections" {"reason": "subscribers"}, "Connections refused";
        counter refused_early as RefusedEarly: "sluice_ledger_refused_connections" {"reason": "upstream_unknown"}, "Connections refused";
        counter refused_address as RefusedAddress: "sluice_ledger_refused_connections" {"reason": "address_subscribers"}, "Connections refused";
        counter refused_token as RefusedToken: "sluice_ledger_refused_connections" {"reason": "token"}, "Connections refused";
        counter refused_request as RefusedRequest: "sluice_ledger_refused_connections" {"reason": "request"}, "Connections refused";
        counter refused_tls as RefusedTls: "sluice_ledger_refused_connections" {"reason": "tls"}, "Connections refused";
        counter replay_reads as ReplayReads: "sluice_ledger_replay_reads", "Reads of stored ledgers";
        counter replay_bytes as ReplayBytes: "sluice_ledger_replay_bytes", "Bytes read for replays";
        counter damaged_reads as DamagedReads: "sluice_ledger_damaged_reads", "Reads of stored ledgers that failed or did not verify, and were made again";
        counter lost_ledgers as LostLedgers: "sluice_ledger_lost_ledgers", "Stored ledgers that could not be read, and left retention";
        counter written as Written: "sluice_ledger_written_ledgers", "Ledgers written to disk";
        counter written_bytes as WrittenBytes: "sluice_ledger_written_bytes", "Bytes written to disk";
        counter passed_over as PassedOver: "sluice_ledger_passed_over_ledgers", "Ledgers that had left retention before their write";
        counter no_space as NoSpace: "sluice_ledger_failed_writes" {"reason": "no_space"}, "Operations on the disk that failed";
        counter disk_failed as DiskFailed: "sluice_ledger_failed_writes" {"reason": "io"}, "Operations on the disk that failed";
        counter deleted_segments as DeletedSegments: "sluice_ledger_deleted_segments", "Segments deleted";
    }
}

/// How the server's work ended.
pub type Ending = Result<(), String>;

/// The writing end of a fan-out's counters, and what it tells once.
pub struct FanoutBooks {
    pub(super) counters: CounterWriter<FanoutCounter>,
    pub(super) address: Arc<OnceLock<SocketAddr>>,
    pub(super) end: Arc<OnceLock<Ending>>,
    pub(super) run: Arc<Mutex<String>>,
}

/// What is known of a running fan-out.
pub struct FanoutView {
    /// Its core.
    pub core: String,
    /// What the source is.
    pub source: String,
    /// Where it listens; the port, when 0 was asked for.
    pub address: Arc<OnceLock<SocketAddr>>,
    /// How it ended of itself, once the source has ended and everybody was let go: `Err` where the source failed.
    pub end: Arc<OnceLock<Ending>>,
    run: Arc<Mutex<String>>,
    counters: CounterReader<FanoutCounter>,
}

/// Both ends of a fan-out's books.
pub fn fanout_books(core: String, source: String) -> (FanoutBooks, FanoutView) {
    let (writer, reader) = counters();
    let (address, end, run) = (Arc::default(), Arc::default(), Arc::<Mutex<String>>::default());
    let books =
        FanoutBooks { counters: writer, address: Arc::clone(&address), end: Arc::clone(&end), run: run.clone() };
    (books, FanoutView { core, source, address, end, run, counters: reader })
}

impl FanoutView {
    /// Its counters, to be looked at from elsewhere.
    pub fn counters(&self) -> CounterReader<FanoutCounter> {
        self.counters.clone()
    }

    /// One counter.
    pub fn get(&self, counter: FanoutCounter) -> u64 {
        self.counters.get(counter)
    }

    /// The run as it is announced.
    pub fn run(&self) -> String {
        self.run.lock().map(|run| run.clone()).unwrap_or_default()
    }
}

/// The ledger job's source of metrics and status.
pub struct LedgerStatus {
    /// The fan-out.
    pub fanout: FanoutView,
    /// The source's counters; `None` for a relay.
    pub source: Option<CounterReader<SourceCounter>>,
    /// A relay's counters.
    pub relay: Option<CounterReader<RelayCounter>>,
    /// Each encoder's counters.
    pub encoders: Vec<CounterReader<EncodeCounter>>,
    /// How much is kept; `None` where nothing is.
    pub bounds: Option<Latest<Bounds>>,
    /// After how long without a new ledger the source or the upstream counts as silent, ns.
    pub silent_ns: i64,
}

impl LedgerStatus {
    /// Bytes before packing for each byte as it is sent, of all chunks so far; `None` before the first.
    pub fn ratio(&self) -> Option<f64> {
        let packed = self.fanout.get(FanoutCounter::PackedBytes);
        (packed > 0).then(|| self.fanout.get(FanoutCounter::RawBytes) as f64 / packed as f64)
    }
}

const RATIO: Metric = Metric::gauge(
    "sluice_ledger_compression_ratio",
    &[],
    "Bytes before packing for each byte as it is sent, of all chunks so far",
);

/// Every metric of the job.
pub fn metrics() -> Vec<Metric> {
    let mut metrics: Vec<Metric> = described(FanoutCounter::ALL, &[]).chain([RATIO]).collect();
    metrics.extend(described(SourceCounter::ALL, &[]).chain(described(RelayCounter::ALL, &[])));
    metrics.extend(described(EncodeCounter::ALL, &["queue"]));
    // Counters that differ in a label only are one metric.
    metrics.dedup_by_key(|metric| metric.name);
    metrics
}

fn described<C>(all: &'static [Shown<C>], labels: &'static [&'static str]) -> impl Iterator<Item = Metric> {
    all.iter().filter(|shown| !shown.metric.is_empty()).map(move |shown| {
        // No worker of several has counters with a label of their own.
        let labels: &'static [&'static str] = if shown.label.is_empty() { labels } else { &["reason"] };
        match shown.counts {
            true => Metric::counter(shown.metric, labels, shown.help),
            false => Metric::gauge(shown.metric, labels, shown.help),
        }
    })
}

impl<C> Shown<C> {
    /// A count in its metric's unit. What is counted in ns is exported in seconds (Prometheus knows base units only); in the
    /// status it stays what its key says.
    fn exported(&self, count: u64) -> f64 {
        if self.key.ends_with("_ns") { count as f64 / 1e9 } else { count as f64 }
    }
}

impl Source for LedgerStatus {
    fn samples(&self, out: &mut Vec<Sample>) {
        samples(FanoutCounter::ALL, &self.fanout.counters, None, out);
        if let Some(ratio) = self.ratio() {
            out.push(RATIO.sample(&[], ratio));
        }
        if let Some(counters) = &self.source {
            samples(SourceCounter::ALL, counters, None, out);
        }
        if let Some(counters) = &self.relay {
            samples(RelayCounter::ALL, counters, None, out);
        }
        for (index, counters) in self.encoders.iter().enumerate() {
            samples(EncodeCounter::ALL, counters, Some(index), out);
        }
    }

    fn status(&self) -> (&'static str, Value) {
        let view = &self.fanout;
        let mut status = json!({
            "core": view.core,
            "source": view.source,
            "address": view.address.get().map(ToString::to_string),
            "run": view.run(),
            "ended": view.end.get().map(|end| end.clone().err().unwrap_or_else(|| "source ended".into())),
            "compression_ratio": self.ratio(),
        });
        fill(&mut status, FanoutCounter::ALL, &view.counters);
        if let Some(counters) = &self.source {
            status["from"] = object(SourceCounter::ALL, counters);
        }
        if let Some(counters) = &self.relay {
            status["relay"] = object(RelayCounter::ALL, counters);
        }
        let encoders: Vec<Value> = self.encoders.iter().map(|counters| object(EncodeCounter::ALL, counters)).collect();
        status["encoders"] = encoders.into();
        if let Some(bounds) = &self.bounds {
            let bounds = **bounds.clone().look();
            status["bounds"] = json!({
                "ledgers_max": bounds.ledgers_max, "bytes_max": bounds.bytes_max,
                "age_seconds_max": bounds.age_ns_max.map(|age| age as f64 / 1e9),
            });
        }
        ("ledger", status)
    }

    fn health(&self, _now: i64, out: &mut Vec<Sign>) {
        let get = |counter| self.fanout.get(counter);
        let sign = |reason, shape, what: &str| Sign::new(reason, shape, "ledger", format!("ledger.serve: {what}"));
        let lost = get(FanoutCounter::UnwrittenDropped)
            + get(FanoutCounter::LostLedgers)
            + get(FanoutCounter::NoSpace)
            + get(FanoutCounter::DiskFailed);
        let what = "ledgers could not be written, or left retention unwritten";
        out.push(sign(HealthReason::LedgerLosing, Shape::Grows(lost), what));
        match self.fanout.end.get() {
            Some(Err(why)) => {
                out.push(sign(HealthReason::LedgerFailed, Shape::Holds, &format!("the source failed: {why}")));
            }
            Some(Ok(())) => out.push(sign(HealthReason::LedgerEnded, Shape::Holds, "the source has come to its end")),
            None => self.progress(&sign, out),
        }
    }
}

impl LedgerStatus {
    /// What is said of a source, or a relay's upstream, that has not ended.
    fn progress(&self, sign: &dyn Fn(HealthReason, Shape, &str) -> Sign, out: &mut Vec<Sign>) {
        let (begun, latest, not_begun) = match (&self.source, &self.relay) {
            (Some(source), _) => {
                let latest = source.get(SourceCounter::Latest);
                (latest > 0 || source.get(SourceCounter::Open) == 1, latest, "the source has given nothing yet")
            }
            (None, Some(relay)) => {
                if relay.get(RelayCounter::Connected) == 0 {
                    let what = "there is no connection to the upstream server";
                    out.push(sign(HealthReason::RelayDisconnected, Shape::Holds, what));
                }
                let known = relay.get(RelayCounter::Connections) > 0 || self.fanout.get(FanoutCounter::Latest) > 0;
                (known, relay.get(RelayCounter::Latest), "the upstream server's run is not known yet")
            }
            (None, None) => return,
        };
        if !begun {
            out.push(sign(HealthReason::LedgerNotBegun, Shape::Holds, not_begun));
        } else if self.relay.as_ref().is_none_or(|relay| relay.get(RelayCounter::Connected) == 1) {
            let what = format!("no new ledger came for {} s", self.silent_ns / 1_000_000_000);
            out.push(sign(HealthReason::LedgerSilent, Shape::Still(latest), &what).after(self.silent_ns));
        }
    }
}

/// The samples of one worker's counters; `queue` tells apart workers of one kind.
fn samples<C: CounterIndex>(
    all: &[Shown<C>],
    counters: &CounterReader<C>,
    queue: Option<usize>,
    out: &mut Vec<Sample>,
) {
    for shown in all.iter().filter(|shown| !shown.metric.is_empty()) {
        let mut labels: Vec<(&'static str, String)> =
            queue.map(|queue| ("queue", queue.to_string())).into_iter().collect();
        labels.extend(shown.label.iter().map(|(name, value)| (*name, (*value).to_string())));
        let kind = if shown.counts { Kind::Counter } else { Kind::Gauge };
        let value = shown.exported(counters.get(shown.counter));
        out.push(Sample { name: shown.metric, help: shown.help, kind, labels, value });
    }
}

fn fill<C: CounterIndex>(status: &mut Value, all: &[Shown<C>], counters: &CounterReader<C>) {
    for shown in all {
        status[shown.key] = counters.get(shown.counter).into();
    }
}

fn object<C: CounterIndex>(all: &[Shown<C>], counters: &CounterReader<C>) -> Value {
    let mut object = json!({});
    fill(&mut object, all, counters);
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown_with_its_labels() {
        let (mut books, fanout) = fanout_books("main".into(), "synthetic".into());
        let counted =
            FanoutCounters { refused_token: 3, raw_bytes: 100, packed_bytes: 50, ..FanoutCounters::default() };
        FanoutCounter::write(&mut books.counters, &counted);
        let (mut encoder, reader) = counters();
        EncodeCounter::write(&mut encoder, &EncodeCounters { chunks: 7, ..EncodeCounters::default() });
        let status =
            LedgerStatus { fanout, source: None, relay: None, encoders: vec![reader], bounds: None, silent_ns: 0 };
        let bounds = Bounds { ledgers_max: 40, bytes_max: None, age_ns_max: Some(90_000_000_000) };
        let status = LedgerStatus { bounds: Some(Latest::new(bounds)), ..status };
        let mut samples = Vec::new();
        status.samples(&mut samples);
        let sample = |name: &str, label: (&str, &str)| {
            let named = samples.iter().filter(|sample| sample.name == name);
            named.filter(|sample| sample.labels.iter().any(|(n, v)| (*n, v.as_str()) == label)).map(|s| s.value).next()
        };
        assert_eq!(sample("sluice_ledger_refused_connections", ("reason", "token")), Some(3.0));
        assert_eq!(sample("sluice_ledger_refused_connections", ("reason", "tls")), Some(0.0));
        assert_eq!(sample("sluice_ledger_encoder_chunks", ("queue", "0")), Some(7.0));
        let shown = SourceCounter::ALL.iter().find(|shown| shown.key == "emission_ns").expect("it is there");
        assert_eq!((shown.metric, shown.exported(1_500_000_000)), ("sluice_ledger_source_emission_seconds", 1.5));
        assert!(samples.iter().all(|sample| sample.name.starts_with("sluice_ledger_")));
        let (key, value) = status.status();
        assert_eq!(
            (key, value["refused_token"].as_u64(), value["compression_ratio"].as_f64()),
            ("ledger", Some(3), Some(2.0))
        );
        assert_eq!(value["encoders"][0]["chunks"].as_u64(), Some(7));
        assert_eq!(value["bounds"], json!({"ledgers_max": 40, "bytes_max": null, "age_seconds_max": 90.0}));
        status.bounds.as_ref().expect("given").set(Bounds { bytes_max: Some(5), ..bounds });
        assert_eq!(status.status().1["bounds"]["bytes_max"], 5, "as a reload sets it");
    }
}
