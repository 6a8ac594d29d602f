//! Another host's clock against ours, by the probes with the shortest round trips; pure.
//!
//! A probe leaves at *t1* and its answer is here at *t4*, by our clock; by the other's it came at *t2* and left at *t3*. If
//! both ways took equally long, the other clock is ahead by ((t2 − t1) + (t3 − t4)) / 2; whatever the ways took, that is
//! wrong by at most half of the round trip (t4 − t1) − (t3 − t2). The shortest round trip bounds it best. Clocks drift by some
//! tens of µs a second, so there is a comparison before and one after, and between them the offset goes in a straight line.

use serde_json::{Value, json};

/// One probe, ns: `[t1, t2, t3, t4]`.
pub type Probe = [i64; 4];

/// What the other clock shows more than ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offset {
    /// When, by our clock.
    pub at_ns: i64,
    /// How far the other is ahead.
    pub offset_ns: i64,
    /// By how much that may be wrong.
    pub bound_ns: i64,
    /// Probes that were made.
    pub probes: usize,
}

impl Offset {
    /// From the probe with the shortest round trip; `None` without a possible one (times from another host may say anything).
    pub fn of(probes: &[Probe]) -> Option<Offset> {
        let rounds = probes.iter().filter_map(|&[t1, t2, t3, t4]| {
            let away = t3.checked_sub(t2).filter(|away| *away >= 0)?;
            let round = t4.checked_sub(t1)?.checked_sub(away).filter(|round| *round >= 0)?;
            let twice = i128::from(t2) - i128::from(t1) + i128::from(t3) - i128::from(t4);
            let offset_ns = i64::try_from(twice.div_euclid(2)).ok()?;
            // Half of an odd number of ns is up to a half more.
            Some(Offset { at_ns: t1 + (t4 - t1) / 2, offset_ns, bound_ns: round - round / 2, probes: probes.len() })
        });
        rounds.min_by_key(|offset| offset.bound_ns)
    }
}

/// The comparisons before and after a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// Before.
    pub before: Offset,
    /// After.
    pub after: Offset,
}

impl Compared {
    /// By how much a time translated by [`Compared::ours`] may be wrong, if the clocks drift evenly.
    pub fn bound_ns(&self) -> i64 {
        self.before.bound_ns.max(self.after.bound_ns)
    }

    /// What the other clock gained from the first comparison to the second.
    pub fn drift_ns(&self) -> i64 {
        self.after.offset_ns.saturating_sub(self.before.offset_ns)
    }

    /// The same per time, in parts per million.
    pub fn drift_ppm(&self) -> f64 {
        let between = self.after.at_ns.saturating_sub(self.before.at_ns);
        if between <= 0 { 0.0 } else { self.drift_ns() as f64 * 1e6 / between as f64 }
    }

    /// A time of the other clock in ours, which shows about `near_ns` then.
    pub fn ours(&self, theirs_ns: i64, near_ns: i64) -> i64 {
        let gained = near_ns.saturating_sub(self.before.at_ns) as f64 * self.drift_ppm() / 1e6;
        theirs_ns.saturating_sub(self.before.offset_ns).saturating_sub(gained as i64)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let one = |offset: &Offset| json!({"offset_ns": offset.offset_ns, "bound_ns": offset.bound_ns, "probes": offset.probes});
        json!({
            "before": one(&self.before), "after": one(&self.after),
            "drift_ns": self.drift_ns(), "drift_ppm": self.drift_ppm(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is ahead by `ahead` ns at our 0 and gains `ppm`.
    fn theirs(ours: i64, ahead: i64, ppm: f64) -> i64 {
        ours + ahead + (ours as f64 * ppm / 1e6) as i64
    }

    /// Probes from `start` on whose ways take 10 µs and a varying queue; a small generator, seeded.
    fn probes(start: i64, ahead: i64, ppm: f64, seed: u64) -> Vec<Probe> {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % below) as i64
        };
        (0..64)
            .map(|index| {
                let t1 = start + index * 1_000_000;
                let there = t1 + 10_000 + random(50_000);
                let leaves = there + random(5_000);
                [t1, theirs(there, ahead, ppm), theirs(leaves, ahead, ppm), leaves + 10_000 + random(500_000)]
            })
            .collect()
    }

    #[test]
    fn the_offset_is_within_its_bound() {
        for seed in 1..200_u64 {
            let ahead = seed as i64 * 123_456_789 - 9_000_000_000;
            let found = Offset::of(&probes(5_000, ahead, 0.0, seed)).expect("probes");
            assert!((found.offset_ns - ahead).abs() <= found.bound_ns, "seed {seed}: {found:?} for {ahead}");
            assert!(found.bound_ns < 100_000, "seed {seed}: the shortest round trip is chosen: {found:?}");
        }
    }

    #[test]
    fn a_drifting_clock_is_followed() {
        let (ahead, ppm) = (-700_000_000, 40.0);
        let before = Offset::of(&probes(0, ahead, ppm, 1)).expect("probes");
        let after = Offset::of(&probes(10_000_000_000, ahead, ppm, 2)).expect("probes");
        let compared = Compared { before, after };
        assert!((compared.drift_ppm() - ppm).abs() < 10.0, "{}", compared.drift_ppm());
        assert!((compared.drift_ns() - 400_000).abs() <= before.bound_ns + after.bound_ns);
        for ours in [0, 2_500_000_000, 9_900_000_000] {
            let back = compared.ours(theirs(ours, ahead, ppm), ours);
            assert!((back - ours).abs() <= compared.bound_ns(), "{back} for {ours}, bound {}", compared.bound_ns());
        }
    }

    #[test]
    fn impossible_probes_are_left_out() {
        assert_eq!(Offset::of(&[]), None);
        let bad = [[10, 5, 4, 20], [10, 0, 100, 20], [i64::MAX, 0, 0, i64::MIN], [0, i64::MIN, i64::MAX, 10]];
        assert_eq!(Offset::of(&bad), None);
        let mut some = bad.to_vec();
        some.push([100, 1_010, 1_020, 130]);
        assert_eq!(Offset::of(&some), Some(Offset { at_ns: 115, offset_ns: 900, bound_ns: 10, probes: 5 }));
        let wild = Compared {
            before: Offset { at_ns: 0, offset_ns: i64::MIN, bound_ns: 0, probes: 1 },
            after: Offset { at_ns: 1, offset_ns: i64::MAX, bound_ns: 0, probes: 1 },
        };
        let _ = (wild.ours(i64::MAX, i64::MAX), wild.ours(i64::MIN, i64::MIN), wild.drift_ppm());
    }
}
