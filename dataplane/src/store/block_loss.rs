//! What the store had to drop: exact per cause, with sequence ranges in a bounded list. Pure.

use crate::units::StreamId;

/// Most ranges kept. A stalled disk makes one range per stream; this many need thousands of stalls. Beyond it the
/// counters stay exact and `unlisted_records` says how many stand in no range.
pub const LOSS_RANGES_MAX: usize = 4096;

/// Why a record was not stored. Closed set: label of counters and JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LostCause {
    /// Every block of the pool waits for the disk.
    DiskSlow = 0,
    /// The file system is full.
    NoSpace = 1,
    /// A write failed.
    WriteError = 2,
    /// The body is longer than a block holds.
    TooLong = 3,
    /// The store is closing.
    Closed = 4,
    /// Its stream was never registered.
    Unregistered = 5,
}

impl LostCause {
    /// Every cause, in order of its number.
    pub const ALL: [LostCause; 6] = [
        LostCause::DiskSlow,
        LostCause::NoSpace,
        LostCause::WriteError,
        LostCause::TooLong,
        LostCause::Closed,
        LostCause::Unregistered,
    ];

    /// The cause's label.
    pub fn label(self) -> &'static str {
        match self {
            LostCause::DiskSlow => "disk_slow",
            LostCause::NoSpace => "no_space",
            LostCause::WriteError => "write_error",
            LostCause::TooLong => "too_long",
            LostCause::Closed => "closed",
            LostCause::Unregistered => "unregistered",
        }
    }
}

/// Sequences of one stream that were not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossRange {
    /// Why.
    pub cause: LostCause,
    /// The stream.
    pub stream: StreamId,
    /// First sequence.
    pub first: u64,
    /// Last sequence.
    pub last: u64,
}

/// Counters of one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LossCount {
    /// Messages and raw frames.
    pub data_records: u64,
    /// Other records (gaps, begins, ends, states).
    pub mark_records: u64,
}

/// The losses of a store writer.
#[derive(Debug)]
pub struct LossLog {
    counts: [LossCount; LostCause::ALL.len()],
    ranges: Vec<LossRange>,
    /// For each range the generation of its last change.
    changed: Vec<u64>,
    generation: u64,
    open: Vec<u32>,
    by_stream: Vec<u64>,
    ranges_max: usize,
    unlisted: u64,
}

impl LossLog {
    /// An empty log that keeps at most `ranges_max` ranges.
    pub(crate) fn new(ranges_max: usize) -> LossLog {
        LossLog {
            counts: Default::default(),
            ranges: Vec::with_capacity(ranges_max),
            changed: Vec::with_capacity(ranges_max),
            generation: 0,
            open: Vec::new(),
            by_stream: Vec::new(),
            ranges_max,
            unlisted: 0,
        }
    }

    /// Makes room for one more stream.
    pub(crate) fn add_stream(&mut self, stream: StreamId) {
        if self.open.len() <= stream.0 as usize {
            self.open.resize(stream.0 as usize + 1, u32::MAX);
            self.by_stream.resize(stream.0 as usize + 1, 0);
        }
    }

    /// Counts the loss of data [first, last] of a stream. Joins the stream's newest range where it goes on.
    pub(crate) fn data(&mut self, cause: LostCause, stream: StreamId, first: u64, last: u64) {
        self.counts[cause as usize].data_records += last - first + 1;
        // A stream that was never registered has no book: its loss stands in the cause's count and in the ranges.
        if let Some(lost) = self.by_stream.get_mut(stream.0 as usize) {
            *lost += last - first + 1;
        }
        self.generation += 1;
        let newest = self.ranges.len().checked_sub(1).filter(|&at| self.ranges[at].stream == stream);
        let open = match self.open.get(stream.0 as usize) {
            Some(&open) => open as usize,
            None => newest.unwrap_or(usize::MAX),
        };
        if let Some(range) = self.ranges.get_mut(open)
            && range.cause == cause
            && range.last.wrapping_add(1) == first
        {
            range.last = last;
            self.changed[open] = self.generation;
            return;
        }
        if self.ranges.len() == self.ranges_max {
            self.unlisted += last - first + 1;
            self.set_open(stream, u32::MAX);
            return;
        }
        self.set_open(stream, self.ranges.len() as u32);
        self.ranges.push(LossRange { cause, stream, first, last });
        self.changed.push(self.generation);
    }

    fn set_open(&mut self, stream: StreamId, place: u32) {
        if let Some(open) = self.open.get_mut(stream.0 as usize) {
            *open = place;
        }
    }

    /// Counts the loss of `count` records that are not data.
    pub(crate) fn marks(&mut self, cause: LostCause, count: u64) {
        self.counts[cause as usize].mark_records += count;
    }

    /// Counters of one cause.
    pub fn count(&self, cause: LostCause) -> LossCount {
        self.counts[cause as usize]
    }

    /// Messages and raw frames lost, all causes.
    pub fn data_records(&self) -> u64 {
        self.counts.iter().map(|count| count.data_records).sum()
    }

    /// Messages and raw frames of one stream lost, all causes.
    pub fn stream_data_records(&self, stream: StreamId) -> u64 {
        self.by_stream.get(stream.0 as usize).copied().unwrap_or(0)
    }

    /// Other records lost, all causes.
    pub fn mark_records(&self) -> u64 {
        self.counts.iter().map(|count| count.mark_records).sum()
    }

    /// The ranges kept, in order of their beginning.
    pub fn ranges(&self) -> &[LossRange] {
        &self.ranges
    }

    /// Counts every change of the data losses: equal to what it was, nothing is to be published.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The ranges that are new or have grown since `generation` (0: all), with their places in
    /// [`LossLog::ranges`]. A stream's range under way may stand anywhere in the list; places never change.
    pub fn changed_since(&self, generation: u64) -> impl Iterator<Item = (usize, &LossRange)> {
        let ranges = if generation == self.generation { &[][..] } else { &self.ranges[..] };
        let changed = ranges.iter().zip(&self.changed).enumerate();
        changed.filter(move |(_, (_, at))| **at > generation).map(|(place, (range, _))| (place, range))
    }

    /// Whether ranges were dropped because the list was full (the counters are exact all the same). Whoever publishes
    /// the list publishes this too.
    pub fn truncated(&self) -> bool {
        self.unlisted > 0
    }

    /// Messages and raw frames that were lost and stand in no range.
    pub fn unlisted_records(&self) -> u64 {
        self.unlisted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_wherever_it_stands_and_what_is_unlisted_is_counted() {
        let (a, b, c) = (StreamId(0), StreamId(1), StreamId(2));
        let mut log = LossLog::new(2);
        [a, b, c].iter().for_each(|&stream| log.add_stream(stream));
        log.data(LostCause::DiskSlow, a, 1, 3);
        log.data(LostCause::DiskSlow, b, 7, 7);
        assert_eq!(log.changed_since(0).count(), 2);
        let seen = log.generation();
        assert_eq!(log.changed_since(seen).count(), 0);
        log.data(LostCause::DiskSlow, a, 4, 9);
        let grown = LossRange { cause: LostCause::DiskSlow, stream: a, first: 1, last: 9 };
        assert_eq!(log.changed_since(seen).collect::<Vec<_>>(), [(0, &grown)]);
        assert!(!log.truncated());
        log.data(LostCause::NoSpace, c, 1, 4);
        log.data(LostCause::NoSpace, c, 5, 5);
        assert_eq!((log.truncated(), log.unlisted_records(), log.data_records()), (true, 5, 15));
    }
}
