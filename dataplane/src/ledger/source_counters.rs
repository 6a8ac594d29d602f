//! What the source's worker, a relay and the encoders count, each set with one writer.

use serde_json::{Map, Value};

use crate::sync::counters::{CounterIndex, CounterReader};
use crate::sync::metrics::{Kind, Sample};

/// A counter with its metric (without `_total`), its kind and its help.
pub type Listed<C> = (C, &'static str, Kind, &'static str);

/// An enum of counters with their metrics.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($variant:ident: $kind:ident $metric:literal, $help:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $(#[doc = $help] $variant,)*
        }

        impl $name {
            /// Every counter with its metric (without `_total`), its kind and its help.
            pub const ALL: &'static [Listed<$name>] =
                &[$(($name::$variant, $metric, Kind::$kind, $help),)*];
        }

        impl CounterIndex for $name {
            const COUNT: usize = $name::ALL.len();
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

counters! {
    /// Counters of the source's worker. Chunks that are neither raw nor fallbacks went to an encoder.
    SourceCounter {
        Ledgers: Counter "sluice_ledger_source_ledgers", "Ledgers that the source gave whole";
        Bytes: Counter "sluice_ledger_source_bytes", "Bytes that the source gave";
        Chunks: Counter "sluice_ledger_source_chunks", "Chunks cut";
        RawChunks: Counter "sluice_ledger_source_raw_chunks", "Chunks that were chosen to go out raw";
        RawFallbacks: Counter "sluice_ledger_source_raw_fallbacks", "Chunks that went out raw because the encoders were behind";
        Hastened: Counter "sluice_ledger_source_hastened_chunks", "Chunks packed at a faster level than the configured one";
        Waits: Counter "sluice_ledger_source_waits", "Times that the source was not asked because the fan-out was behind";
        Open: Gauge "sluice_ledger_source_open", "Whether a ledger is being emitted";
        Latest: Gauge "sluice_ledger_source_latest_sequence", "Last ledger that the source gave whole";
        EmissionNs: Gauge "sluice_ledger_source_emission_nanoseconds", "From the first to the last byte of the last ledger";
    }
}

counters! {
    /// Counters of one encoder.
    EncodeCounter {
        Chunks: Counter "sluice_ledger_encoder_chunks", "Chunks packed";
        RawBytes: Counter "sluice_ledger_encoder_raw_bytes", "Bytes of those chunks";
        PackedBytes: Counter "sluice_ledger_encoder_packed_bytes", "Bytes that they go out with, headers included";
        Waits: Counter "sluice_ledger_encoder_waits", "Times that it waited because the fan-out took nothing";
    }
}

counters! {
    /// Counters of a relay.
    RelayCounter {
        Ledgers: Counter "sluice_ledger_relay_ledgers", "Ledgers that were verified and passed on whole";
        PackedBytes: Counter "sluice_ledger_relay_packed_bytes", "Bytes of their chunks as they came";
        Bytes: Counter "sluice_ledger_relay_bytes", "Bytes of the ledgers";
        Chunks: Counter "sluice_ledger_relay_chunks", "Chunks that were passed on";
        BegunAgain: Counter "sluice_ledger_relay_begun_again", "Ledgers that the upstream server began again";
        Connections: Counter "sluice_ledger_relay_connections", "Connections to the upstream server that stood";
        Failures: Counter "sluice_ledger_relay_failures", "Attempts at a connection that came to nothing, and connections that were lost";
        Gaps: Counter "sluice_ledger_relay_gaps", "Times that the upstream server had the next ledger no more, so that some are missing here";
        Runs: Counter "sluice_ledger_relay_runs", "Times that the upstream server's run was another one";
        Last: Gauge "sluice_ledger_relay_latest_sequence", "Last ledger that was passed on whole";
        Connected: Gauge "sluice_ledger_relay_connected", "Whether the upstream server streams";
        Flows: Gauge "sluice_ledger_relay_flows", "Connections that a ledger's chunks are shared out to";
    }
}

/// The samples of one worker's counters; `queue` tells apart workers of one kind.
pub fn samples<C: CounterIndex>(
    all: &[Listed<C>],
    counters: &CounterReader<C>,
    queue: Option<usize>,
    out: &mut Vec<Sample>,
) {
    for &(counter, name, kind, help) in all {
        let labels = queue.map(|queue| ("queue", queue.to_string())).into_iter().collect();
        out.push(Sample { name, help, kind, labels, value: counters.get(counter) as f64 });
    }
}

/// One worker's counters for the status, each under its metric's last words.
pub fn object<C: CounterIndex>(all: &[Listed<C>], counters: &CounterReader<C>) -> Value {
    let key = |metric: &str| metric.splitn(4, '_').last().unwrap_or(metric).to_string();
    let fields = all.iter().map(|&(counter, metric, ..)| (key(metric), counters.get(counter).into()));
    Value::Object(fields.collect::<Map<_, _>>())
}
