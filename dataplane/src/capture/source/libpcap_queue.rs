//! libpcap as a source of frames for the queue worker: for machines without AF_XDP. The kernel copies, then this does.

use std::os::fd::RawFd;

use super::live::{LiveSettings, LiveSource};
use crate::capture::queue_worker::FrameQueue;
use crate::sys::frames::{FrameArea, FramePool, FrameToken};
use crate::units::AreaId;
use crate::wire::packet::LinkType;

/// An interface through libpcap, as one queue.
pub struct LibpcapQueue {
    interface: String,
    settings: LiveSettings,
    area: AreaId,
    frames: u32,
    frame_bytes: u32,
    open: Option<(LiveSource, FramePool)>,
    oversize: u64,
    /// Packets still taken after the stop: about what the kernel's buffer holds then.
    left: Option<u32>,
    losses: [u64; 4],
}

impl LibpcapQueue {
    /// `interface` with `frames` frames of `frame_bytes` bytes; `filter` is libpcap's (empty: everything).
    pub fn new(
        interface: &str,
        area: AreaId,
        frames: u32,
        frame_bytes: u32,
        promiscuous: bool,
        filter: String,
    ) -> Self {
        LibpcapQueue {
            interface: interface.to_string(),
            // A worker's turn never waits.
            settings: LiveSettings { promiscuous, filter, wait_ms: 0, ..LiveSettings::default() },
            area,
            frames,
            frame_bytes,
            open: None,
            oversize: 0,
            left: None,
            losses: [0; 4],
        }
    }
}

impl FrameQueue for LibpcapQueue {
    fn open(&mut self) -> Result<Vec<RawFd>, String> {
        let source = LiveSource::open(&self.interface, &self.settings).map_err(|error| error.to_string())?;
        let fd = source.fd();
        self.open = Some((source, FramePool::new(self.area, self.frames, self.frame_bytes)));
        Ok(vec![fd])
    }

    fn area(&self) -> FrameArea {
        self.open.as_ref().expect("open").1.area()
    }

    fn receive(&mut self, out: &mut Vec<FrameToken>, max: usize) -> usize {
        let (source, pool) = self.open.as_mut().expect("open");
        let mut taken = 0;
        while taken < max && self.left != Some(0) {
            // Without a free frame the packets wait in the kernel's buffer.
            let Some(mut filling) = pool.take() else { break };
            // An interface that went away is seen by the control thread; here it only brings nothing more.
            let Ok(Some(packet)) = source.next() else {
                let token = filling.into_token(0, 0);
                pool.give_back(token);
                break;
            };
            if packet.data.len() > filling.bytes().len() {
                self.oversize += 1;
                let token = filling.into_token(0, 0);
                pool.give_back(token);
                continue;
            }
            filling.bytes()[..packet.data.len()].copy_from_slice(packet.data);
            out.push(filling.into_token(packet.data.len(), packet.capture_ns));
            taken += 1;
            self.left = self.left.map(|left| left - 1);
        }
        taken
    }

    fn recycle(&mut self, token: FrameToken) {
        self.open.as_mut().expect("open").1.give_back(token);
    }

    fn refill(&mut self) {}

    fn losses(&mut self) -> [u64; 4] {
        if let Some((source, _)) = &mut self.open
            && let Ok(counts) = source.counts()
        {
            self.losses = [self.oversize, u64::from(counts.dropped), 0, 0];
        }
        self.losses
    }

    fn stop(&mut self) {
        self.left = Some(self.frames);
    }

    fn tokens_max(&self) -> u32 {
        self.frames
    }

    fn link_type(&self) -> LinkType {
        self.open.as_ref().map_or(LinkType::Ethernet, |(source, _)| source.link())
    }
}
