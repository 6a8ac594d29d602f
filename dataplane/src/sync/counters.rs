//! Counters: one writer, any number of readers, no read-modify-write, whole cache lines per owner.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters in one 128-byte line: two 64-byte lines, because adjacent-line prefetch makes neighbours share.
const COUNTERS_PER_LINE: usize = 16;

#[repr(align(128))]
struct Line([AtomicU64; COUNTERS_PER_LINE]);

/// A closed set of counters: an enum whose numbers index the cells and whose names are labels.
pub trait CounterIndex: Copy + 'static {
    /// How many there are.
    const COUNT: usize;
    /// The cell's number, below [`CounterIndex::COUNT`].
    fn index(self) -> usize;
}

/// The writing end. One per owner; it is not `Clone`, so a cell has one writer.
pub struct CounterWriter<I> {
    lines: Arc<[Line]>,
    _index: PhantomData<fn(I)>,
}

/// The reading end.
pub struct CounterReader<I> {
    lines: Arc<[Line]>,
    _index: PhantomData<fn(I)>,
}

impl<I> Clone for CounterReader<I> {
    fn clone(&self) -> Self {
        CounterReader { lines: self.lines.clone(), _index: PhantomData }
    }
}

/// A fresh set of counters, all 0.
pub fn counters<I: CounterIndex>() -> (CounterWriter<I>, CounterReader<I>) {
    let lines: Arc<[Line]> = (0..I::COUNT.div_ceil(COUNTERS_PER_LINE).max(1))
        .map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0))))
        .collect();
    (CounterWriter { lines: lines.clone(), _index: PhantomData }, CounterReader { lines, _index: PhantomData })
}

fn cell(lines: &[Line], index: usize) -> &AtomicU64 {
    &lines[index / COUNTERS_PER_LINE].0[index % COUNTERS_PER_LINE]
}

impl<I: CounterIndex> CounterWriter<I> {
    /// Adds `amount`. A plain load and store: `&mut self` makes this the only writer.
    #[inline]
    pub fn add(&mut self, index: I, amount: u64) {
        let cell = cell(&self.lines, index.index());
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&mut self, index: I, value: u64) {
        cell(&self.lines, index.index()).store(value, Ordering::Relaxed);
    }

    /// Reads one's own counter.
    #[inline]
    pub fn get(&self, index: I) -> u64 {
        cell(&self.lines, index.index()).load(Ordering::Relaxed)
    }

    /// A reading end.
    pub fn reader(&self) -> CounterReader<I> {
        CounterReader { lines: self.lines.clone(), _index: PhantomData }
    }
}

impl<I: CounterIndex> CounterReader<I> {
    /// The counter's value; counters of one set are not read as one instant.
    pub fn get(&self, index: I) -> u64 {
        cell(&self.lines, index.index()).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Number(usize);
    impl CounterIndex for Number {
        const COUNT: usize = 40;
        fn index(self) -> usize {
            self.0
        }
    }

    #[test]
    fn each_index_is_its_own_cell() {
        let (mut writer, reader) = counters::<Number>();
        for index in 0..40 {
            writer.add(Number(index), index as u64);
            writer.add(Number(index), 1);
        }
        for index in 0..40 {
            assert_eq!(reader.get(Number(index)), index as u64 + 1);
        }
    }
}
