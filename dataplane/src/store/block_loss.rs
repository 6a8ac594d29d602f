//! What the store had to drop: exact per cause, with sequence ranges in a bounded list. Pure.

use crate::units::StreamId;

/// Most ranges kept. A stalled disk makes one range per stream; this many need thousands of stalls. Beyond it the
/// counters stay exact and `truncated` is set.
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
}

impl LostCause {
    /// Every cause, in order of its number.
    pub const ALL: [LostCause; 5] =
        [LostCause::DiskSlow, LostCause::NoSpace, LostCause::WriteError, LostCause::TooLong, LostCause::Closed];

    /// The cause's label.
    pub fn label(self) -> &'static str {
        match self {
            LostCause::DiskSlow => "disk_slow",
            LostCause::NoSpace => "no_space",
            LostCause::WriteError => "write_error",
            LostCause::TooLong => "too_long",
            LostCause::Closed => "closed",
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
    open: Vec<u32>,
    ranges_max: usize,
    truncated: bool,
}

impl LossLog {
    /// An empty log that keeps at most `ranges_max` ranges.
    pub(crate) fn new(ranges_max: usize) -> LossLog {
        LossLog {
            counts: Default::default(),
            ranges: Vec::with_capacity(ranges_max),
            open: Vec::new(),
            ranges_max,
            truncated: false,
        }
    }

    /// Makes room for one more stream.
    pub(crate) fn add_stream(&mut self, stream: StreamId) {
        if self.open.len() <= stream.0 as usize {
            self.open.resize(stream.0 as usize + 1, u32::MAX);
        }
    }

    /// Counts the loss of data [first, last] of a stream. Joins the stream's newest range where it goes on.
    pub(crate) fn data(&mut self, cause: LostCause, stream: StreamId, first: u64, last: u64) {
        self.counts[cause as usize].data_records += last - first + 1;
        let open = self.open[stream.0 as usize] as usize;
        if let Some(range) = self.ranges.get_mut(open)
            && range.cause == cause
            && range.last.wrapping_add(1) == first
        {
            range.last = last;
            return;
        }
        if self.ranges.len() == self.ranges_max {
            self.truncated = true;
            self.open[stream.0 as usize] = u32::MAX;
            return;
        }
        self.open[stream.0 as usize] = self.ranges.len() as u32;
        self.ranges.push(LossRange { cause, stream, first, last });
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

    /// Other records lost, all causes.
    pub fn mark_records(&self) -> u64 {
        self.counts.iter().map(|count| count.mark_records).sum()
    }

    /// The ranges kept, in order of their beginning.
    pub fn ranges(&self) -> &[LossRange] {
        &self.ranges
    }

    /// Whether ranges were dropped because the list was full (the counters are exact all the same).
    pub fn truncated(&self) -> bool {
        self.truncated
    }
}
