//! What the source's worker and the encoders count, each set with one writer.

use crate::sync::counters::CounterIndex;
use crate::sync::metrics::Kind;

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
            pub const ALL: &'static [($name, &'static str, Kind, &'static str)] =
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
