//! Rows of a CSV: the columns that the peer's harness writes, in its order.

use super::sample::Sample;

/// The first line.
pub const HEADER: &str =
    "sequence,bytes,chunks,since_start_ns,inter_arrival_ns,emit_ns,delivery_ns,pipeline_ns,discarded_partials";

/// A ledger's line, without its end. What was not measured is empty.
pub fn row(sample: &Sample) -> String {
    let optional = |value: Option<i64>| value.map_or(String::new(), |value| value.to_string());
    format!(
        "{},{},{},{},{},{},{},{},{}",
        sample.sequence,
        sample.bytes,
        sample.chunks,
        sample.since_start_ns,
        sample.inter_arrival_ns,
        optional(sample.emit_ns),
        optional(sample.delivery_ns),
        optional(sample.pipeline_ns),
        sample.discarded_partials
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_peers_columns() {
        let live = Sample {
            sequence: 3,
            bytes: 204_800,
            chunks: 1,
            packed_bytes: 9,
            since_start_ns: 20_000_000,
            inter_arrival_ns: 10_000_000,
            emit_ns: Some(5_000_000),
            delivery_ns: Some(-7),
            pipeline_ns: Some(4_999_993),
            discarded_partials: 0,
            replayed: false,
        };
        assert_eq!(row(&live), "3,204800,1,20000000,10000000,5000000,-7,4999993,0");
        let replayed = Sample { sequence: 1, bytes: 5, chunks: 1, discarded_partials: 2, ..Sample::default() };
        assert_eq!(row(&replayed), "1,5,1,0,0,,,,2");
        assert_eq!(HEADER.split(',').count(), row(&live).split(',').count());
    }
}
