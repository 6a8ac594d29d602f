//! What is known of one ledger when it has arrived.

use crate::ledger::assemble::Ledger;

/// One ledger's measurements. Times are ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Its sequence.
    pub sequence: u32,
    /// Its bytes.
    pub bytes: u64,
    /// Chunks it came in; 0 where it was not cut into any.
    pub chunks: u32,
    /// Its bytes as they came, packed chunks packed.
    pub packed_bytes: u64,
    /// From the run's start to its arrival, on one monotonic clock.
    pub since_start_ns: i64,
    /// From the arrival of the ledger before; 0 for the first.
    pub inter_arrival_ns: i64,
    /// From its first byte at the source to its last, on the server's clock.
    pub emit_ns: Option<i64>,
    /// From its last byte at the source to its verification: two clocks, where they are on two hosts.
    pub delivery_ns: Option<i64>,
    /// From its first byte at the source to its verification.
    pub pipeline_ns: Option<i64>,
    /// Partial deliveries of it that were dropped because it was sent again.
    pub discarded_partials: u32,
    /// Whether it came from retention: without stamps, and no sample of the live path.
    pub replayed: bool,
}

/// Makes samples of arrivals, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    start_ns: i64,
    last_ns: Option<i64>,
}

impl Sampler {
    /// A run that starts now (monotonic).
    pub fn new(now: i64) -> Sampler {
        Sampler { start_ns: now, last_ns: None }
    }

    /// A verified ledger of a stream: `received_ns` is this host's wall clock when it was verified, `now` the monotonic one.
    pub fn streamed(&mut self, ledger: &Ledger<'_>, received_ns: i64, now: i64) -> Sample {
        let live = ledger.is_live();
        let from = |stamp: i64| live.then(|| received_ns.saturating_sub(stamp));
        Sample {
            chunks: ledger.chunks,
            packed_bytes: ledger.packed_bytes,
            emit_ns: live.then(|| ledger.emit_end_ns.saturating_sub(ledger.emit_start_ns)),
            delivery_ns: from(ledger.emit_end_ns),
            pipeline_ns: from(ledger.emit_start_ns),
            discarded_partials: ledger.discarded_partials,
            replayed: !live,
            ..self.arrived(ledger.sequence, ledger.bytes.len() as u64, now)
        }
    }

    /// A ledger of a source in this process: it has no delivery. `emit_ns` where its window was watched.
    pub fn local(&mut self, sequence: u32, bytes: u64, emit_ns: Option<i64>, now: i64) -> Sample {
        Sample { emit_ns, packed_bytes: bytes, ..self.arrived(sequence, bytes, now) }
    }

    fn arrived(&mut self, sequence: u32, bytes: u64, now: i64) -> Sample {
        let inter_arrival_ns = self.last_ns.replace(now).map_or(0, |last| now - last);
        Sample { sequence, bytes, since_start_ns: now - self.start_ns, inter_arrival_ns, ..Sample::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_the_stamps_and_clocks_say() {
        let live = Ledger {
            sequence: 7,
            bytes: &[0; 10],
            emit_start_ns: 1_000,
            emit_end_ns: 1_500,
            xxh64: 0,
            chunks: 2,
            packed_bytes: 5,
            discarded_partials: 0,
        };
        let mut sampler = Sampler::new(50);
        let first = sampler.streamed(&live, 1_700, 80);
        let expected = Sample {
            sequence: 7,
            bytes: 10,
            chunks: 2,
            packed_bytes: 5,
            since_start_ns: 30,
            emit_ns: Some(500),
            delivery_ns: Some(200),
            pipeline_ns: Some(700),
            ..Sample::default()
        };
        assert_eq!(first, expected, "the first has no ledger before it");
        let again = Ledger { sequence: 8, emit_start_ns: 0, emit_end_ns: 0, discarded_partials: 1, ..live };
        let second = sampler.streamed(&again, 9_000, 100);
        assert_eq!((second.inter_arrival_ns, second.replayed, second.discarded_partials), (20, true, 1));
        assert_eq!((second.emit_ns, second.delivery_ns, second.pipeline_ns), (None, None, None));
        let local = sampler.local(9, 3, Some(4), 101);
        assert_eq!((local.emit_ns, local.delivery_ns, local.chunks, local.replayed), (Some(4), None, 0, false));
    }
}
