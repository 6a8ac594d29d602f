//! When a paced source may give its bytes: a ledger over its emission window, ledgers on a grid.

/// The emission of one ledger: byte `k` of `bytes` is due `window · k / bytes` after the first read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    started_ns: i64,
    window_ns: i64,
    bytes: u64,
}

impl Window {
    /// A ledger of `bytes` whose first read is made at `now`. Asserts a window that is not negative.
    pub fn begin(window_ns: i64, bytes: u64, now: i64) -> Window {
        assert!(window_ns >= 0, "a window lasts {window_ns} ns");
        Window { started_ns: now, window_ns, bytes }
    }

    /// When a read that ends at byte `end` is complete: it waits for its last byte.
    pub fn due_ns(&self, end: u64) -> i64 {
        if self.bytes == 0 {
            return self.started_ns;
        }
        let after = i128::from(self.window_ns) * i128::from(end.min(self.bytes)) / i128::from(self.bytes);
        // At most the window, which is an i64.
        self.started_ns.saturating_add(after as i64)
    }

    /// Bytes that are due at `now`: a read that ends there or before has waited long enough.
    pub fn due_bytes(&self, now: i64) -> u64 {
        let elapsed = now.saturating_sub(self.started_ns);
        if elapsed >= self.window_ns {
            return self.bytes;
        }
        // The window is longer than what has elapsed, so it is not 0, and the quotient is below the length.
        (i128::from(elapsed.max(0)) * i128::from(self.bytes) / i128::from(self.window_ns)) as u64
    }
}

/// When ledgers begin: the first at once, the others on a grid that begins there. One that is late begins a new grid, so that
/// what was missed is never made up for in a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cadence {
    interval_ns: i64,
    next_ns: Option<i64>,
    late: bool,
}

impl Cadence {
    /// One ledger every `interval_ns`; 0 is without a pause. Asserts an interval that is not negative.
    pub fn new(interval_ns: i64) -> Cadence {
        assert!(interval_ns >= 0, "an interval of {interval_ns} ns");
        Cadence { interval_ns, next_ns: None, late: false }
    }

    /// When the next ledger begins, asked at `now`; each call is another ledger.
    pub fn begin_ns(&mut self, now: i64) -> i64 {
        let due = self.next_ns.map_or(now, |next| next.max(now));
        self.next_ns = Some(due.saturating_add(self.interval_ns));
        due
    }

    /// The ledger that is due is not there yet: the grid will begin anew with it.
    pub fn late(&mut self) {
        self.late = true;
    }

    /// The ledger that was due begins at `now`. One that came no later than the core woke up for it leaves the grid as it is.
    pub fn begun(&mut self, now: i64) {
        if std::mem::take(&mut self.late) {
            self.next_ns = Some(now.saturating_add(self.interval_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_its_last_byte() {
        let window = Window::begin(7_500_000, 15_196_160, 1000);
        assert_eq!(window.due_ns(0), 1000);
        assert_eq!(window.due_ns(262_144), 1000 + 129_380);
        assert_eq!(window.due_ns(15_196_160), 1000 + 7_500_000);
        assert_eq!(window.due_ns(u64::MAX), 1000 + 7_500_000, "a read that goes beyond the end");
        for end in [0, 1, 2, 262_144, 7_000_001, 15_196_159, 15_196_160] {
            let due_bytes = window.due_bytes(window.due_ns(end) + 1);
            assert!((end..=end + 3).contains(&due_bytes), "{end}: {due_bytes} at the ns after");
        }
        assert_eq!((window.due_bytes(0), window.due_bytes(i64::MAX)), (0, 15_196_160));
        let instant = Window::begin(0, 100, 5);
        assert_eq!((instant.due_ns(1), instant.due_ns(100)), (5, 5), "a window of zero waits for nothing");
        assert_eq!(instant.due_bytes(5), 100);
        assert_eq!(Window::begin(9, 0, 5).due_ns(0), 5, "an empty ledger");
        let long = Window::begin(i64::MAX, u64::MAX, 0);
        assert_eq!(long.due_ns(u64::MAX), i64::MAX);
    }

    #[test]
    fn ledgers_begin_on_a_grid_and_late_ones_begin_a_new_one() {
        let mut cadence = Cadence::new(600);
        assert_eq!(cadence.begin_ns(1000), 1000, "the first at once");
        assert_eq!(cadence.begin_ns(1100), 1600);
        assert_eq!(cadence.begin_ns(2199), 2200, "the grid does not drift");
        assert_eq!(cadence.begin_ns(5000), 5000, "late: at once");
        assert_eq!(cadence.begin_ns(5000), 5600, "and nothing is made up for");
        cadence.begun(5610);
        assert_eq!(cadence.begin_ns(5700), 6200, "a core that wakes up late is no reason to move the grid");
        cadence.late();
        cadence.begun(6300);
        assert_eq!(cadence.begin_ns(6400), 6900, "a ledger that was not ready is");
        let mut free = Cadence::new(0);
        assert_eq!((free.begin_ns(1), free.begin_ns(2)), (1, 2));
    }
}
