//! Lost sequence ranges: sorted, disjoint, bounded in number, with a total that stays exact beyond the bound.

use std::collections::VecDeque;

/// Most ranges that one list remembers by default: 1 MiB of them. A feed that loses more than this in one run has a
/// broken path; the total stays exact.
pub const RANGES_MAX: usize = 65_536;

/// A closed range of sequences, `[first, last]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Range {
    /// The first sequence in the range.
    pub first: u64,
    /// The last sequence in the range.
    pub last: u64,
}

impl Range {
    /// How many sequences the range holds.
    pub fn count(self) -> u64 {
        self.last - self.first + 1
    }
}

impl From<(u64, u64)> for Range {
    fn from((first, last): (u64, u64)) -> Range {
        Range { first, last }
    }
}

impl From<Range> for (u64, u64) {
    fn from(range: Range) -> (u64, u64) {
        (range.first, range.last)
    }
}

/// What a list knows of a stretch of sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// In a remembered range.
    Inside,
    /// In no range.
    Outside,
    /// Below the ranges that were given up at the bound: it may or may not be lost.
    Forgotten,
}

/// A bounded list of lost ranges. At the bound the oldest (lowest) range is given up: late messages fill young gaps.
#[derive(Debug, Default)]
pub struct Intervals {
    ranges: VecDeque<Range>,
    ranges_max: usize,
    total: u64,
    floor: u64,
    truncated: bool,
}

impl Intervals {
    /// An empty list of at most `ranges_max` (at least 1) ranges. Reserves all of them; nothing allocates later.
    pub fn new(ranges_max: usize) -> Intervals {
        Intervals { ranges: VecDeque::with_capacity(ranges_max.max(1) + 1), ..Intervals::growing(ranges_max) }
    }

    /// As [`Intervals::new`], but memory is taken as the list fills.
    pub fn growing(ranges_max: usize) -> Intervals {
        Intervals { ranges: VecDeque::new(), ranges_max: ranges_max.max(1), total: 0, floor: 0, truncated: false }
    }

    /// Forgets everything; keeps the memory.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.total = 0;
        self.floor = 0;
        self.truncated = false;
    }

    /// Sequences in the list, those of ranges given up included. Exact.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether a range had to be given up.
    pub fn truncated(&self) -> bool {
        self.truncated
    }

    /// Remembered ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether no range is remembered.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The remembered ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().copied()
    }

    /// Adds `[first, last]`, which lies above every sequence in the list.
    pub fn push_above(&mut self, first: u64, last: u64) {
        self.total += last - first + 1;
        match self.ranges.back_mut() {
            Some(back) if back.last + 1 == first => back.last = last,
            _ => {
                self.ranges.push_back(Range { first, last });
                self.give_up_oldest();
            }
        }
    }

    /// Adds `[first, last]`, which lies below every sequence in the list.
    pub fn push_below(&mut self, first: u64, last: u64) {
        self.total += last - first + 1;
        match self.ranges.front_mut() {
            Some(front) if last + 1 == front.first => front.first = first,
            _ if first < self.floor => {}
            _ => {
                self.ranges.push_front(Range { first, last });
                self.give_up_oldest();
            }
        }
    }

    /// What is known of the sequences from `at`, and up to where (exclusive, at most `to`) the same is known.
    #[inline]
    pub fn known(&self, at: u64, to: u64) -> (Known, u64) {
        if at < self.floor {
            return (Known::Forgotten, self.floor.min(to));
        }
        if self.ranges.back().is_none_or(|back| back.last < at) {
            return (Known::Outside, to);
        }
        let range = self.ranges[self.place(at)];
        if range.first <= at { (Known::Inside, to.min(range.last + 1)) } else { (Known::Outside, to.min(range.first)) }
    }

    /// Takes `[from, to)` out, all of which lies inside one remembered range.
    pub fn remove(&mut self, from: u64, to: u64) {
        let place = self.place(from);
        let range = self.ranges[place];
        assert!(range.first <= from && to > from && to - 1 <= range.last, "{from}..{to} is not inside {range:?}");
        self.total -= to - from;
        let (before, after) = (range.first < from, to <= range.last);
        match (before, after) {
            (false, false) => {
                self.ranges.remove(place);
            }
            (true, false) => self.ranges[place].last = from - 1,
            (false, true) => self.ranges[place].first = to,
            (true, true) => {
                self.ranges[place].last = from - 1;
                self.ranges.insert(place + 1, Range { first: to, last: range.last });
                self.give_up_oldest();
            }
        }
    }

    /// The index of the first range that ends at or above `at`.
    fn place(&self, at: u64) -> usize {
        self.ranges.partition_point(|range| range.last < at)
    }

    fn give_up_oldest(&mut self) {
        if self.ranges.len() > self.ranges_max
            && let Some(oldest) = self.ranges.pop_front()
        {
            self.floor = oldest.last + 1;
            self.truncated = true;
        }
    }
}

/// The sequences that two ascending lists of disjoint ranges share.
pub fn intersection(left: &[Range], right: &[Range]) -> Vec<Range> {
    let (mut i, mut j, mut shared) = (0, 0, Vec::new());
    while let (Some(a), Some(b)) = (left.get(i), right.get(j)) {
        let (first, last) = (a.first.max(b.first), a.last.min(b.last));
        if first <= last {
            shared.push(Range { first, last });
        }
        if a.last <= b.last {
            i += 1;
        } else {
            j += 1;
        }
    }
    shared
}

/// The part of an ascending list that lies in `[from, to)`.
pub fn clip(ranges: &[Range], from: u64, to: u64) -> Vec<Range> {
    if to <= from {
        return Vec::new();
    }
    intersection(ranges, &[Range { first: from, last: to - 1 }])
}

/// What of one ascending list of disjoint ranges another does not hold.
pub fn difference(ranges: &[Range], other: &[Range]) -> Vec<Range> {
    let (mut left, mut at) = (Vec::new(), 0);
    for range in ranges {
        let mut first = range.first;
        while other.get(at).is_some_and(|cut| cut.last < first) {
            at += 1;
        }
        let cuts = other[at..].iter().take_while(|cut| cut.first <= range.last);
        for cut in cuts {
            if cut.first > first {
                left.push(Range { first, last: cut.first - 1 });
            }
            first = cut.last.saturating_add(1);
        }
        if first <= range.last {
            left.push(Range { first, last: range.last });
        }
    }
    left
}

/// Adjacent ranges of an ascending list joined.
pub fn joined(ranges: impl IntoIterator<Item = Range>) -> Vec<Range> {
    let mut out: Vec<Range> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(back) if range.first <= back.last.saturating_add(1) => back.last = back.last.max(range.last),
            _ => out.push(range),
        }
    }
    out
}

/// How many sequences a list of disjoint ranges holds.
pub fn count(ranges: &[Range]) -> u64 {
    ranges.iter().map(|range| range.count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &Intervals) -> Vec<(u64, u64)> {
        list.iter().map(Into::into).collect()
    }

    #[test]
    fn ranges_join_split_and_vanish() {
        let mut list = Intervals::new(8);
        list.push_above(10, 19);
        list.push_above(20, 29);
        list.push_above(40, 40);
        assert_eq!(pairs(&list), [(10, 29), (40, 40)]);
        list.remove(15, 17);
        list.remove(10, 11);
        list.remove(40, 41);
        assert_eq!(pairs(&list), [(11, 14), (17, 29)]);
        assert_eq!(list.total(), 4 + 13);
        list.push_below(3, 10);
        assert_eq!(pairs(&list), [(3, 14), (17, 29)]);
        assert_eq!(list.known(1, 9), (Known::Outside, 3));
        assert_eq!(list.known(3, 9), (Known::Inside, 9));
        assert_eq!(list.known(15, 99), (Known::Outside, 17));
        assert_eq!(list.known(30, 99), (Known::Outside, 99));
    }

    #[test]
    fn beyond_the_bound_the_total_is_exact_and_the_oldest_is_forgotten() {
        let mut list = Intervals::new(2);
        for i in 0..5u64 {
            list.push_above(10 * i, 10 * i + 3);
        }
        assert_eq!(pairs(&list), [(30, 33), (40, 43)]);
        assert!(list.truncated());
        assert_eq!(list.total(), 20);
        assert_eq!(list.known(21, 50), (Known::Forgotten, 24));
        assert_eq!(list.known(24, 50), (Known::Outside, 30));
        list.remove(41, 42);
        assert_eq!(pairs(&list), [(40, 40), (42, 43)]);
        assert_eq!(list.total(), 19);
    }

    #[test]
    fn set_operations() {
        let r = |first, last| Range { first, last };
        assert_eq!(intersection(&[r(1, 5), r(8, 9)], &[r(4, 8), r(9, 12)]), [r(4, 5), r(8, 8), r(9, 9)]);
        assert_eq!(joined(intersection(&[r(1, 5), r(8, 9)], &[r(4, 8), r(9, 12)])), [r(4, 5), r(8, 9)]);
        assert_eq!(clip(&[r(1, 5), r(8, 9)], 3, 9), [r(3, 5), r(8, 8)]);
        assert_eq!(count(&[r(1, 5), r(8, 9)]), 7);
        let cut = difference(&[r(1, 10), r(20, 30), r(40, 41)], &[r(0, 2), r(5, 6), r(9, 22), r(25, 45)]);
        assert_eq!(cut, [r(3, 4), r(7, 8), r(23, 24)]);
    }
}
