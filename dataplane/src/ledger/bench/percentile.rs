//! Percentiles by nearest rank: always a value that was measured.

/// A place in a sorted list of samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Percent(u8);

impl Percent {
    /// The median.
    pub const P50: Percent = Percent(50);
    /// Nine tenths lie at or below.
    pub const P90: Percent = Percent(90);
    /// One in a hundred lies above.
    pub const P99: Percent = Percent(99);
    /// The greatest.
    pub const MAX: Percent = Percent(100);

    /// 1 to 100; `None` for another number.
    pub fn new(percent: u8) -> Option<Percent> {
        (1..=100).contains(&percent).then_some(Percent(percent))
    }

    /// The index in `count` sorted samples: ceil(percent · count / 100) − 1. Asserts that there are samples.
    pub fn index(self, count: usize) -> usize {
        assert!(count > 0, "a percentile of no samples");
        // 128 bits: no count overflows.
        (u128::from(self.0) * count as u128).div_ceil(100) as usize - 1
    }
}

impl std::fmt::Display for Percent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            100 => f.write_str("max"),
            percent => write!(f, "p{percent}"),
        }
    }
}

/// Samples, sorted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Distribution(Vec<i64>);

impl FromIterator<i64> for Distribution {
    fn from_iter<I: IntoIterator<Item = i64>>(samples: I) -> Distribution {
        let mut sorted: Vec<i64> = samples.into_iter().collect();
        sorted.sort_unstable();
        Distribution(sorted)
    }
}

impl Distribution {
    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The sample at a percentile; `None` without samples.
    pub fn at(&self, percent: Percent) -> Option<i64> {
        (!self.0.is_empty()).then(|| self.0[percent.index(self.0.len())])
    }

    /// The least sample.
    pub fn least(&self) -> Option<i64> {
        self.0.first().copied()
    }

    /// The same with `by` taken from each.
    pub fn less(&self, by: i64) -> Distribution {
        Distribution(self.0.iter().map(|sample| sample.saturating_sub(by)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_rank_is_taken() {
        // count, percent, index
        for (count, percent, index) in [
            (1, 1, 0),
            (1, 50, 0),
            (1, 100, 0),
            (2, 50, 0),
            (2, 51, 1),
            (3, 50, 1),
            (4, 50, 1),
            (10, 90, 8),
            (10, 91, 9),
            (10, 99, 9),
            (99, 99, 98),
            (100, 1, 0),
            (100, 50, 49),
            (100, 99, 98),
            (100, 100, 99),
            (101, 99, 99),
            (1_000, 99, 989),
            (1_001, 99, 990),
        ] {
            let rank = Percent::new(percent).expect("a percentage");
            assert_eq!(rank.index(count), index, "p{percent} of {count}");
        }
        assert_eq!(Percent::new(0), None);
        assert_eq!(Percent::new(101), None);
        assert_eq!(Percent::MAX.index(usize::MAX), usize::MAX - 1);
    }

    #[test]
    fn a_percentile_is_a_sample() {
        let distribution: Distribution = [30, -10, 20].into_iter().collect();
        let at = |percent| distribution.at(percent).expect("samples");
        assert_eq!([Percent::P50, Percent::P90, Percent::P99, Percent::MAX].map(at), [20, 30, 30, 30]);
        assert_eq!(distribution.least(), Some(-10));
        assert_eq!(distribution.less(20).at(Percent::P50), Some(0));
        assert_eq!(Distribution::default().at(Percent::P50), None);
        assert_eq!(format!("{} {}", Percent::P99, Percent::MAX), "p99 max");
    }
}
