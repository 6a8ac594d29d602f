//! A receive queue in memory: scripted packets, a bounded pool of frames, a receive ring, and what goes wrong with them.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice::capture::queue_worker::FrameQueue;
use sluice::sys::clock;
use sluice::sys::frames::{FrameArea, FramePool, FrameToken};
use sluice::units::{AreaId, NANOS_PER_SECOND};

/// Bytes of a frame, as of an AF_XDP chunk.
const FRAME_BYTES: u32 = 2_048;

/// One packet of a script.
#[derive(Clone)]
pub struct Scripted {
    pub capture_ns: i64,
    pub frame: Arc<[u8]>,
}

/// When the packets come.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// As fast as there is room for them.
    Free,
    /// So many a second.
    PerSecond(u64),
    /// As many as [`Facts::released`] says, from none on.
    Released,
}

/// What goes wrong. A count n hits every n-th packet; 0: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Found the receive ring full, and counted so.
    pub ring_full_every: u64,
    /// Found no frame in the fill ring, and counted as dropped.
    pub starved_every: u64,
    /// Redirected, and then gone without a count: what the books must show.
    pub swallow_every: u64,
    /// At this packet nothing comes for so many looks.
    pub stall: Option<(u64, u32)>,
    /// Packets do not wait for room: they are dropped and counted, as a NIC does it.
    pub lossy: bool,
}

/// What the queue tells, and what it is told, while it runs.
#[derive(Default)]
pub struct Facts {
    /// Packets that the (pretended) XDP program redirected.
    pub redirected: AtomicU64,
    pub ring_full: AtomicU64,
    pub dropped: AtomicU64,
    /// Looks at which a packet waited, or was dropped, because every frame was out.
    pub starved: AtomicU64,
    /// Frames in the pool or in the receive ring.
    pub home: AtomicU64,
    /// The fewest of them so far.
    pub home_min: AtomicU64,
    /// Packets of the script that have not come yet.
    pub left: AtomicU64,
    /// Packets that may come, at any pace.
    pub released: AtomicU64,
}

impl Facts {
    pub fn get(&self, counter: impl Fn(&Facts) -> &AtomicU64) -> u64 {
        counter(self).load(Ordering::Relaxed)
    }
}

pub struct MemoryQueue {
    area: AreaId,
    frames: u32,
    ring_capacity: usize,
    packets: Vec<Scripted>,
    pace: Pace,
    faults: Faults,
    at: usize,
    opened_ns: i64,
    pool: Option<FramePool>,
    ring: VecDeque<FrameToken>,
    facts: Arc<Facts>,
}

impl MemoryQueue {
    pub fn new(packets: Vec<Scripted>, frames: u32, ring_capacity: usize, pace: Pace, faults: Faults) -> MemoryQueue {
        let facts = Facts::default();
        facts.left.store(packets.len() as u64, Ordering::Relaxed);
        let released = if matches!(pace, Pace::Released) { 0 } else { u64::MAX };
        facts.released.store(released, Ordering::Relaxed);
        facts.home.store(u64::from(frames), Ordering::Relaxed);
        facts.home_min.store(u64::from(frames), Ordering::Relaxed);
        MemoryQueue {
            area: AreaId(0),
            frames,
            ring_capacity,
            packets,
            pace,
            faults,
            at: 0,
            opened_ns: 0,
            pool: None,
            ring: VecDeque::with_capacity(ring_capacity),
            facts: Arc::new(facts),
        }
    }

    /// The area that the plan has chosen.
    pub fn set_area(&mut self, area: AreaId) {
        self.area = area;
    }

    pub fn facts(&self) -> Arc<Facts> {
        self.facts.clone()
    }

    fn due(&self) -> usize {
        let released = self.facts.get(|f| &f.released) as usize;
        let due = match self.pace {
            Pace::Free | Pace::Released => usize::MAX,
            Pace::PerSecond(rate) => {
                let since = clock::monotonic_ns() - self.opened_ns;
                (i128::from(since) * i128::from(rate) / i128::from(NANOS_PER_SECOND)) as usize
            }
        };
        due.min(released)
    }

    /// What the NIC would do now: packets into the receive ring.
    fn arrive(&mut self) {
        let due = self.due().min(self.packets.len());
        while self.at < due {
            if let Some((at, looks)) = &mut self.faults.stall
                && *at == self.at as u64
                && *looks > 0
            {
                *looks -= 1;
                break;
            }
            if !self.arrive_one() {
                break;
            }
            self.at += 1;
            self.facts.redirected.fetch_add(1, Ordering::Relaxed);
        }
        self.facts.left.store((self.packets.len() - self.at) as u64, Ordering::Relaxed);
    }

    /// One packet; false where it waits for room.
    fn arrive_one(&mut self) -> bool {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let number = self.at as u64 + 1;
        let hits = |every: u64| every > 0 && number.is_multiple_of(every);
        if hits(self.faults.swallow_every) {
            return true;
        }
        if hits(self.faults.ring_full_every) {
            count(&self.facts.ring_full);
            return true;
        }
        if hits(self.faults.starved_every) {
            count(&self.facts.dropped);
            return true;
        }
        if self.ring.len() == self.ring_capacity {
            if self.faults.lossy {
                count(&self.facts.ring_full);
            }
            return self.faults.lossy;
        }
        let Some(mut filling) = self.pool.as_mut().expect("open").take() else {
            count(&self.facts.starved);
            if self.faults.lossy {
                count(&self.facts.dropped);
            }
            return self.faults.lossy;
        };
        let packet = &self.packets[self.at];
        filling.bytes()[..packet.frame.len()].copy_from_slice(&packet.frame);
        self.ring.push_back(filling.into_token(packet.frame.len(), packet.capture_ns));
        true
    }

    fn tell_home(&self) {
        let home = self.pool.as_ref().map_or(0, FramePool::free) + self.ring.len();
        self.facts.home.store(home as u64, Ordering::Relaxed);
        self.facts.home_min.fetch_min(home as u64, Ordering::Relaxed);
    }
}

impl FrameQueue for MemoryQueue {
    fn open(&mut self) -> Result<Vec<RawFd>, String> {
        self.pool = Some(FramePool::new(self.area, self.frames, FRAME_BYTES));
        self.opened_ns = clock::monotonic_ns();
        Ok(Vec::new())
    }

    fn area(&self) -> FrameArea {
        self.pool.as_ref().expect("open").area()
    }

    fn receive(&mut self, out: &mut Vec<FrameToken>, max: usize) -> usize {
        self.arrive();
        let count = self.ring.len().min(max);
        out.extend(self.ring.drain(..count));
        self.tell_home();
        count
    }

    fn recycle(&mut self, token: FrameToken) {
        self.pool.as_mut().expect("open").give_back(token);
        self.tell_home();
    }

    fn refill(&mut self) {}

    fn losses(&mut self) -> [u64; 4] {
        [self.facts.get(|f| &f.dropped), self.facts.get(|f| &f.ring_full), self.facts.get(|f| &f.starved), 0]
    }

    fn tokens_max(&self) -> u32 {
        self.frames
    }
}
