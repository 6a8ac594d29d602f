//! Whether a ring's producer lives: by its lock, its path and its sign of life, looked at no more often than needed.
//!
//! Death is a free lock (any death, any PID namespace), replacement another file at the path, a stall a sign of life that
//! does not change. Looks are due often enough that each is known within 250 ms.

use super::view::View;
use crate::sys::shm::PathNow;

/// How often lock and path are looked at (system calls): well inside of the 250 ms, and seldom enough to cost nothing.
pub const LOOK_EVERY_NS: i64 = 100_000_000;

/// How often the sign of life of a producer that beats is looked at (a load): with [`STALL_AFTER_NS`] and a sleep that
/// ends late, a stall is known within 200 ms of the last beat.
pub const BEAT_LOOK_EVERY_NS: i64 = 25_000_000;

/// A producer that beats has stalled when its sign of life did not change for this long. It must beat more often than
/// this, less the 10 ms by which the clock of its beats may be late.
pub const STALL_AFTER_NS: i64 = 125_000_000;

/// What is known of a ring's producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Producer {
    /// It holds the ring.
    Alive,
    /// It holds the ring and beats, but its last sign of life is old.
    Stalled,
    /// Nobody holds the ring. (A producer that takes no lock looks like this from the beginning.)
    Died,
    /// Another ring is at the path.
    Replaced,
}

/// Looks after a producer.
#[derive(Clone, Debug)]
pub struct Watch {
    producer: Producer,
    /// What lock and path said.
    held: Producer,
    /// The sign of life and the head of the ring when it was found dead.
    dead_at: Option<((u32, u32), u64)>,
    looked_ns: Option<i64>,
    due_ns: i64,
    beat: u32,
    beat_seen_ns: i64,
}

impl Watch {
    pub(super) fn new(view: &View) -> Watch {
        let (producer, beat) = (Producer::Alive, view.life().1);
        Watch { producer, held: producer, dead_at: None, looked_ns: None, due_ns: i64::MIN, beat, beat_seen_ns: 0 }
    }

    /// What the last look found.
    pub fn producer(&self) -> Producer {
        self.producer
    }

    /// When the next look is due; at once before the first.
    pub fn due_ns(&self) -> i64 {
        self.due_ns
    }

    /// Looks, if it is time; what is known then.
    pub(super) fn look(&mut self, view: &View, now_ns: i64) -> Producer {
        if now_ns < self.due_ns {
            return self.producer;
        }
        let beat = view.life().1;
        if beat != self.beat || self.looked_ns.is_none() {
            (self.beat, self.beat_seen_ns) = (beat, now_ns);
        }
        if self.looked_ns.is_none_or(|looked| now_ns >= looked.saturating_add(LOOK_EVERY_NS)) {
            self.looked_ns = Some(now_ns);
            self.held = self.who_holds(view);
        }
        let every = if beat == 0 { LOOK_EVERY_NS } else { BEAT_LOOK_EVERY_NS };
        self.due_ns = now_ns.saturating_add(every);
        // By the reader's own clock: time namespaces have their own beginning of time.
        let stalled = beat != 0 && now_ns - self.beat_seen_ns >= STALL_AFTER_NS;
        let found = if stalled && self.held == Producer::Alive { Producer::Stalled } else { self.held };
        self.producer = found;
        found
    }

    /// The next look is due at once.
    pub(super) fn look_again(&mut self) {
        self.due_ns = i64::MIN;
    }

    fn who_holds(&mut self, view: &View) -> Producer {
        // Memory of this process alone has no other producer.
        let Some(file) = &view.file else { return Producer::Alive };
        if file.path_now() == PathNow::Replaced {
            return Producer::Replaced;
        }
        // As long as nothing stirs the dead stay dead, and their lock is left to a successor: the peer's does not try again
        // when it is busy. Who takes the file over writes another life into it (ours) or moves the head (the peer's).
        let now = (view.life(), view.head());
        if self.dead_at == Some(now) {
            return Producer::Died;
        }
        let gone = file.creator_is_gone();
        self.dead_at = gone.then_some(now);
        if gone { Producer::Died } else { Producer::Alive }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingSettings;
    use crate::sys::clock;
    use std::path::PathBuf;
    use std::time::Duration;

    /// A beat comes at 0 and 90 ms, then none until 400 ms: the looks in between, in ms.
    #[test]
    fn a_stall_is_found_within_its_time() {
        let path = PathBuf::from(format!("/dev/shm/sluice-liveness-{}", std::process::id()));
        let settings = RingSettings { capacity: 8, heartbeat: true, ..RingSettings::default() };
        let shape = settings.shape::<u64>(None).expect("sound");
        let mut writer = settings.create(&path, &shape).expect("made").writer;
        let view = View::open(&path, super::super::view::Front::ReadOnly, false).expect("a ring");
        let mut watch = Watch::new(&view);
        let mut changes = Vec::new();
        for ms in (0..700).step_by(5) {
            if matches!(ms, 0 | 90 | 400) {
                // The beat is a clock's reading: another one than the last.
                clock::sleep(Duration::from_millis(20));
                writer.beat();
            }
            if ms == 600 {
                writer.file.take().expect("on a file").release();
            }
            let before = watch.producer();
            let found = watch.look(&view, ms * 1_000_000);
            changes.extend((found != before).then_some((ms, found)));
        }
        let found: Vec<Producer> = changes.iter().map(|change| change.1).collect();
        assert_eq!(found, [Producer::Stalled, Producer::Alive, Producer::Stalled, Producer::Died], "{changes:?}");
        for ((ms, _), cause) in changes.iter().zip([90, 400, 400, 600]) {
            assert!((0..250).contains(&(ms - cause)), "{changes:?}");
        }
        std::fs::remove_file(&path).expect("left there by a writer without its file");
    }
}
