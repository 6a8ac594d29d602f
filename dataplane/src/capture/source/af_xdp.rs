//! An AF_XDP queue as a source of frames for the queue worker.

use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

use crate::capture::queue_worker::FrameQueue;
use crate::sys::clock;
use crate::sys::frames::{FrameArea, FrameToken};
use crate::sys::nic::Interface;
use crate::sys::xsk::{XskQueue, XskSettings};
use crate::units::NANOS_PER_SECOND;

/// How often TAI − UTC is read again: a leap second is announced a day ahead, a fresh chrony sets it once.
const TAI_OFFSET_EVERY_NS: i64 = NANOS_PER_SECOND;

/// What the control thread needs to know of an open queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueFacts {
    /// The receive queue.
    pub queue: u32,
    /// The socket, for the program's map.
    pub socket: RawFd,
    /// Whether the socket got zero-copy.
    pub zero_copy: bool,
    /// Whether the UMEM lies in huge pages.
    pub huge_pages: bool,
}

/// An AF_XDP queue, opened on its worker's own thread.
pub struct AfXdpQueue {
    interface: Interface,
    settings: XskSettings,
    queue: Option<XskQueue>,
    facts: Arc<OnceLock<QueueFacts>>,
    tai_offset_ns: i64,
    tai_read_at: i64,
    last_losses: [u64; 4],
}

impl AfXdpQueue {
    /// A queue of `interface`, not open yet. `facts` is set by the opening.
    pub fn new(interface: Interface, settings: XskSettings, facts: Arc<OnceLock<QueueFacts>>) -> AfXdpQueue {
        AfXdpQueue { interface, settings, queue: None, facts, tai_offset_ns: 0, tai_read_at: 0, last_losses: [0; 4] }
    }

    fn read_tai_offset(&mut self) {
        let now = clock::monotonic_ns();
        if now >= self.tai_read_at {
            self.tai_read_at = now + TAI_OFFSET_EVERY_NS;
            self.tai_offset_ns = i64::from(clock::tai_offset_seconds()) * NANOS_PER_SECOND;
        }
    }
}

impl FrameQueue for AfXdpQueue {
    fn open(&mut self) -> Result<Vec<RawFd>, String> {
        self.read_tai_offset();
        let queue = XskQueue::open(&self.interface, &self.settings).map_err(|error| error.to_string())?;
        let facts = QueueFacts {
            queue: queue.queue(),
            socket: queue.fd(),
            zero_copy: queue.zero_copy(),
            huge_pages: queue.huge_pages(),
        };
        assert!(self.facts.set(facts).is_ok(), "a queue is opened once");
        let fd = queue.fd();
        self.queue = Some(queue);
        Ok(vec![fd])
    }

    fn area(&self) -> FrameArea {
        self.queue.as_ref().expect("open").area()
    }

    #[inline]
    fn receive(&mut self, out: &mut Vec<FrameToken>, max: usize) -> usize {
        let queue = self.queue.as_mut().expect("open");
        queue.receive(max, self.tai_offset_ns, |token| out.push(token))
    }

    fn recycle(&mut self, token: FrameToken) {
        self.queue.as_mut().expect("open").recycle(token);
    }

    fn refill(&mut self) {
        self.queue.as_mut().expect("open").refill();
    }

    fn losses(&mut self) -> [u64; 4] {
        self.read_tai_offset();
        let queue = self.queue.as_ref().expect("open");
        let counters = queue.counters();
        if let Ok(kernel) = queue.statistics() {
            self.last_losses = [
                kernel.rx_dropped + counters.oversize,
                kernel.rx_ring_full,
                kernel.rx_fill_ring_empty_descs,
                counters.unstamped,
            ];
        }
        self.last_losses
    }

    fn tokens_max(&self) -> u32 {
        let jumbo = if self.settings.frames.multi_buffer { self.settings.jumbo_slots } else { 0 };
        self.settings.frame_count + jumbo
    }

    fn close(&mut self) {
        // Tokens may still be out: the area keeps the memory, and nothing is received any more.
        self.queue = None;
    }
}
