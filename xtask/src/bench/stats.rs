//! What is said of two or more sets of measurements, purely: the middle, the spread, and whether a difference is shown.

/// Chance, at most, that any figure of a comparison shows a difference where there is none.
pub const ERROR_MAX: f64 = 0.05;

/// The middle of the samples; of two the mean. NaN without samples.
pub fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

/// The value below which `part` of the samples lie, the next sample above it.
pub fn quantile(samples: &[f64], part: f64) -> f64 {
    let sorted = sorted(samples);
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// What pairs of runs say about NEW beside OLD.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Comparison {
    /// Median over the pairs of how many times as fast NEW is.
    pub speed: f64,
    /// Where the median lies, with the asked certainty.
    pub low: f64,
    pub high: f64,
    pub verdict: Verdict,
}

/// What may be said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The interval holds 1.
    NoneShown,
    Faster,
    Slower,
    /// So few pairs cannot show anything: this many could.
    TooFew(usize),
}

/// Compares by pairs of runs that stood side by side: what drifts with time is in both. `speeds` are NEW ÷ OLD of what is
/// better when larger. `error` is the chance to see a difference where there is none.
///
/// The interval is of order statistics: whatever the samples' distribution, the true median lies outside of the k-th lowest
/// and the k-th highest of n with a probability of 2 × P(Binomial(n, ½) < k).
pub fn compare(speeds: &[f64], error: f64) -> Comparison {
    let sorted = sorted(speeds);
    let (pairs, speed) = (sorted.len(), median(speeds));
    let rank = rank(pairs, error);
    if rank == 0 {
        let (low, high) = (quantile(speeds, 0.0), quantile(speeds, 1.0));
        return Comparison { speed, low, high, verdict: Verdict::TooFew(pairs_least(error)) };
    }
    let (low, high) = (sorted[rank - 1], sorted[pairs - rank]);
    let verdict = match () {
        () if low > 1.0 => Verdict::Faster,
        () if high < 1.0 => Verdict::Slower,
        () => Verdict::NoneShown,
    };
    Comparison { speed, low, high, verdict }
}

/// The largest k whose interval errs at most so often; 0: none does.
fn rank(pairs: usize, error: f64) -> usize {
    let (mut chance, mut below) = (0.5_f64.powi(pairs as i32), 0.0);
    for k in 0..=pairs / 2 {
        below += chance;
        if 2.0 * below > error {
            return k;
        }
        chance *= (pairs - k) as f64 / (k + 1) as f64;
    }
    pairs / 2
}

/// The fewest pairs that can show anything.
pub fn pairs_least(error: f64) -> usize {
    (1..64).find(|&pairs| rank(pairs, error) > 0).unwrap_or(64)
}

impl Comparison {
    /// In words: "NEW faster by 3.1 % (2.2 … 4.0)".
    pub fn said(&self) -> String {
        let percent = |speed: f64| (speed - 1.0) * 100.0;
        let (low, high) = (percent(self.low), percent(self.high));
        match self.verdict {
            Verdict::Faster => format!("NEW faster by {:.1} % ({low:.1} … {high:.1})", percent(self.speed)),
            Verdict::Slower => {
                format!("NEW slower by {:.1} % ({:.1} … {:.1})", -percent(self.speed), -high, -low)
            }
            Verdict::NoneShown => {
                format!("no difference shown: {:+.1} % ({low:+.1} … {high:+.1})", percent(self.speed))
            }
            Verdict::TooFew(least) => {
                format!("no verdict: {:+.1} % ({low:+.1} … {high:+.1}), needs {least} pairs", percent(self.speed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_parts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&hundred, 0.0), quantile(&hundred, 0.25), quantile(&hundred, 1.0)), (1.0, 25.0, 100.0));
    }

    #[test]
    fn ranks_are_those_of_the_tables_for_the_sign_test() {
        // Two-sided, 5 %: n = 6 is the first that can; then the critical values of any table.
        assert_eq!([5, 6, 8, 9, 12, 20, 25].map(|pairs| rank(pairs, 0.05)), [0, 1, 1, 2, 3, 6, 8]);
        assert_eq!((pairs_least(0.05), pairs_least(0.01), pairs_least(0.005)), (6, 8, 9));
    }

    #[test]
    fn a_difference_is_shown_only_where_the_interval_leaves_one() {
        let near = |middle: f64| (0..10).map(move |at| middle + 0.002 * (f64::from(at) - 4.5)).collect::<Vec<_>>();
        assert_eq!(compare(&near(1.05), 0.05).verdict, Verdict::Faster);
        assert_eq!(compare(&near(0.95), 0.05).verdict, Verdict::Slower);
        assert_eq!(compare(&near(1.0), 0.05).verdict, Verdict::NoneShown);
        assert_eq!(compare(&near(1.05)[..5], 0.05).verdict, Verdict::TooFew(6));
        // One wild pair decides nothing.
        let mut wild = near(1.0);
        wild[0] = 9.0;
        assert_eq!(compare(&wild, 0.05).verdict, Verdict::NoneShown);
    }

    #[test]
    fn it_errs_as_seldom_as_it_says() {
        let (mut random, mut wrong) = (1_u64, 0);
        for _ in 0..2_000 {
            // xorshift64 (Marsaglia, "Xorshift RNGs", 2003).
            let mut speed = || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                0.9 + (random >> 11) as f64 / (1_u64 << 53) as f64 * 0.2
            };
            let speeds: Vec<f64> = (0..10).map(|_| speed()).collect();
            wrong += u32::from(compare(&speeds, 0.05).verdict != Verdict::NoneShown);
        }
        // n = 10 errs in 2 × 11 / 1024 = 2.1 %: 43 of 2,000, and four standard deviations to each side.
        assert!((17..=69).contains(&wrong), "{wrong} of 2,000");
    }

    #[test]
    fn what_is_said_names_the_interval_the_right_way_round() {
        let said = |speed, low, high, verdict| Comparison { speed, low, high, verdict }.said();
        assert_eq!(said(1.031, 1.022, 1.04, Verdict::Faster), "NEW faster by 3.1 % (2.2 … 4.0)");
        assert_eq!(said(0.969, 0.96, 0.978, Verdict::Slower), "NEW slower by 3.1 % (2.2 … 4.0)");
        assert_eq!(said(1.0, 0.99, 1.02, Verdict::NoneShown), "no difference shown: +0.0 % (-1.0 … +2.0)");
    }
}
