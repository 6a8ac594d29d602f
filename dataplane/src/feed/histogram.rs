//! A signed histogram of nanoseconds with logarithmic buckets, cheap enough for every packet.

/// log2 of the buckets per power of two: 8, so a bucket is at most 12.5 % wide.
const SUB_BITS: u32 = 3;
/// Buckets per power of two.
const SUB: usize = 1 << SUB_BITS;
/// Magnitudes from 2^42 ns (73 minutes) on share the last bucket: no A/B lead or latency of a live feed is longer.
const BITS_MAX: u32 = 42;
/// Where the last bucket begins: a percentile or an edge of this magnitude says no more than "longer". Samples count with at most
/// this much in the mean.
pub const LONGEST_NS: i64 = 1 << BITS_MAX;
/// Buckets of one sign: the values 0–7 exactly, then 8 for each power of two from 2^3 to 2^41, then the last.
const SIGN_BUCKETS: usize = SUB + (BITS_MAX - SUB_BITS) as usize * SUB + 1;

/// Counts of signed nanoseconds. Fixed size; recording is a count-leading-zeros and one increment.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Negative magnitudes first (index 0 is −1 ns's bucket family), then the others.
    counts: Box<[u64; 2 * SIGN_BUCKETS]>,
    minimum: i64,
    maximum: i64,
    /// Sum of the samples, each cut to ±2^42: two million of the longest fit.
    sum: i64,
}

/// What a histogram says, for reports. All values in ns; zero samples give zeros.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub struct Summary {
    /// Samples.
    pub samples: u64,
    /// How many were negative.
    pub negative: u64,
    /// Smallest sample, exact.
    pub min_ns: i64,
    /// Median, to the bucket's lower edge (within 12.5 %), as are the other percentiles.
    pub p50_ns: i64,
    /// 90th percentile.
    pub p90_ns: i64,
    /// 99th percentile.
    pub p99_ns: i64,
    /// 99.9th percentile.
    pub p999_ns: i64,
    /// Largest sample, exact.
    pub max_ns: i64,
    /// Mean, of samples cut to ±73 minutes.
    pub mean_ns: i64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram::new()
    }
}

impl Histogram {
    /// An empty histogram; allocates its 5 KiB here and never again.
    pub fn new() -> Histogram {
        Histogram { counts: Box::new([0; 2 * SIGN_BUCKETS]), minimum: i64::MAX, maximum: i64::MIN, sum: 0 }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.minimum, self.maximum, self.sum) = (i64::MAX, i64::MIN, 0);
    }

    /// Counts one sample.
    #[inline]
    pub fn record(&mut self, value_ns: i64) {
        let place = bucket(value_ns.unsigned_abs()) + if value_ns < 0 { 0 } else { SIGN_BUCKETS };
        self.counts[place] += 1;
        // Branches, not `min` and `max`: extremes are rare, and a predicted branch spares two stores.
        if value_ns < self.minimum {
            self.minimum = value_ns;
        }
        if value_ns > self.maximum {
            self.maximum = value_ns;
        }
        self.sum = self.sum.wrapping_add(value_ns.clamp(-LONGEST_NS, LONGEST_NS));
    }

    /// Samples counted.
    pub fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The non-empty buckets in ascending order of value: (edge nearest zero in ns, count).
    pub fn buckets(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        let negative = (0..SIGN_BUCKETS).rev().map(|place| (-edge(place), self.counts[place]));
        let positive = (0..SIGN_BUCKETS).map(|place| (edge(place), self.counts[SIGN_BUCKETS + place]));
        negative.chain(positive).filter(|&(_, count)| count > 0)
    }

    /// Percentiles and extremes.
    pub fn summary(&self) -> Summary {
        let samples = self.samples();
        if samples == 0 {
            return Summary::default();
        }
        let percentile = |permille: u64| {
            let rank = (u128::from(samples) * u128::from(permille)).div_ceil(1000).max(1) as u64;
            let mut seen = 0;
            self.buckets()
                .find_map(|(value, count)| {
                    seen += count;
                    (seen >= rank).then_some(value.clamp(self.minimum, self.maximum))
                })
                .unwrap_or(self.maximum)
        };
        Summary {
            samples,
            negative: self.counts[..SIGN_BUCKETS].iter().sum(),
            min_ns: self.minimum,
            p50_ns: percentile(500),
            p90_ns: percentile(900),
            p99_ns: percentile(990),
            p999_ns: percentile(999),
            max_ns: self.maximum,
            mean_ns: self.sum / samples as i64,
        }
    }
}

#[inline]
fn bucket(magnitude: u64) -> usize {
    if magnitude < SUB as u64 {
        return magnitude as usize;
    }
    let top = 63 - magnitude.leading_zeros();
    if top >= BITS_MAX {
        return SIGN_BUCKETS - 1;
    }
    let fraction = (magnitude >> (top - SUB_BITS)) as usize & (SUB - 1);
    SUB + (top - SUB_BITS) as usize * SUB + fraction
}

/// The smallest magnitude of a bucket.
fn edge(place: usize) -> i64 {
    if place < SUB {
        return place as i64;
    }
    let (octave, fraction) = ((place - SUB) / SUB, (place - SUB) % SUB);
    ((SUB + fraction) as i64) << octave
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_lies_in_its_own_bucket_and_buckets_ascend() {
        for place in 0..SIGN_BUCKETS {
            assert_eq!(bucket(edge(place) as u64), place);
            if place > 0 {
                assert_eq!(bucket(edge(place) as u64 - 1), place - 1);
            }
        }
        assert_eq!(bucket(u64::MAX), SIGN_BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_signed_and_close() {
        let mut histogram = Histogram::new();
        for value in -500..500i64 {
            histogram.record(value * 1000);
        }
        let summary = histogram.summary();
        assert_eq!((summary.samples, summary.negative), (1000, 500));
        assert_eq!((summary.min_ns, summary.max_ns), (-500_000, 499_000));
        assert!((340_000..=400_000).contains(&summary.p90_ns), "{summary:?}");
        histogram.record(i64::MIN);
        histogram.record(i64::MAX);
        assert_eq!((histogram.summary().min_ns, histogram.summary().max_ns), (i64::MIN, i64::MAX));
    }
}
