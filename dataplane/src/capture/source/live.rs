//! Live frames through libpcap, for machines without AF_XDP and for a quick look: nothing is pinned, the kernel copies.

use std::time::Duration;

use pcap::{Active, Capture, Precision};

use super::file::{FilePacket, SourceError};
use crate::sys::clock;
use crate::units::NANOS_PER_SECOND;
use crate::wire::packet::LinkType;
use crate::wire::pcap::PACKET_BYTES_MAX;

/// Sleep between two looks at an empty buffer: 16 MiB hold a hundred of them at 1 Gbit/s.
const NAP: Duration = Duration::from_millis(1);

/// How an interface is listened to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveSettings {
    /// Take frames that are not addressed to this host.
    pub promiscuous: bool,
    /// The kernel's buffer, bytes.
    pub buffer_bytes: u32,
    /// The longest wait of [`LiveSource::next`], ms: how soon a caller can look at its own stop flag.
    pub wait_ms: u16,
    /// A BPF filter in tcpdump's words; empty for none.
    pub filter: String,
}

impl Default for LiveSettings {
    /// 16 MiB hold 100 ms of 1 Gbit/s; a wait of 100 ms is soon enough for Ctrl-C.
    fn default() -> LiveSettings {
        LiveSettings { promiscuous: false, buffer_bytes: 16 << 20, wait_ms: 100, filter: String::new() }
    }
}

/// What libpcap has counted on the interface since the source was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LiveCounts {
    /// Frames that passed the filter.
    pub received: u32,
    /// Frames lost for want of buffer.
    pub dropped: u32,
    /// Frames lost in the interface or its driver.
    pub interface_dropped: u32,
}

/// An interface being listened to.
pub struct LiveSource {
    capture: Capture<Active>,
    interface: String,
    link: LinkType,
    packets: u64,
    wait: Duration,
}

impl LiveSource {
    /// Opens an interface.
    ///
    /// Errors: [`SourceError::Live`] with what libpcap says (no such interface, a missing capability, a filter that does
    /// not compile).
    pub fn open(interface: &str, settings: &LiveSettings) -> Result<LiveSource, SourceError> {
        let live = |error: pcap::Error| failed(interface, &error);
        let inactive = Capture::from_device(interface)
            .map_err(live)?
            .promisc(settings.promiscuous)
            .snaplen(PACKET_BYTES_MAX as i32)
            .buffer_size(i32::try_from(settings.buffer_bytes).unwrap_or(i32::MAX))
            .timeout(i32::from(settings.wait_ms.max(1)))
            .precision(Precision::Nano);
        let mut capture = inactive.open().map_err(live)?;
        if !settings.filter.is_empty() {
            capture.filter(&settings.filter, true).map_err(live)?;
        }
        let link = LinkType::from_value(u16::try_from(capture.get_datalink().0).unwrap_or(u16::MAX));
        // With the kernel's block-wise ring libpcap sleeps without a bound, whatever timeout it is given: a caller that
        // must look at a stop flag would never come back from a silent interface. So it never sleeps; `next` does.
        let capture = capture.setnonblock().map_err(live)?;
        let wait = Duration::from_millis(settings.wait_ms.into());
        Ok(LiveSource { capture, interface: interface.to_string(), link, packets: 0, wait })
    }

    /// The next frame; `None` when none came within the settings' wait.
    ///
    /// Errors: [`SourceError::Live`], for instance where the interface went away.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<FilePacket<'_>>, SourceError> {
        let packet = match self.capture.next_packet() {
            Ok(packet) => packet,
            Err(pcap::Error::TimeoutExpired) => {
                if !self.wait.is_zero() {
                    clock::sleep(NAP.min(self.wait));
                }
                return Ok(None);
            }
            Err(error) => return Err(failed(&self.interface, &error)),
        };
        let index = self.packets;
        self.packets += 1;
        // With nanosecond precision (the open fails where it cannot be had) libpcap writes nanoseconds into the field
        // that is named for microseconds.
        let stamp = packet.header.ts;
        Ok(Some(FilePacket {
            data: packet.data,
            original_bytes: packet.header.len,
            capture_ns: stamp.tv_sec * NANOS_PER_SECOND + stamp.tv_usec,
            stamped: true,
            interface: 0,
            section: 0,
            link: self.link,
            index,
        }))
    }

    /// The frames' link type.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// For polling: readable when frames wait.
    pub fn fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.capture)
    }

    /// The counters so far.
    ///
    /// Errors: [`SourceError::Live`].
    pub fn counts(&mut self) -> Result<LiveCounts, SourceError> {
        let stat = self.capture.stats().map_err(|error| failed(&self.interface, &error))?;
        Ok(LiveCounts { received: stat.received, dropped: stat.dropped, interface_dropped: stat.if_dropped })
    }
}

fn failed(interface: &str, error: &pcap::Error) -> SourceError {
    let mut what = format!("libpcap: {error}");
    // libpcap gives texts, no codes: "Operation not permitted", "You don't have permission to …".
    if what.contains("permitted") || what.contains("permission") {
        what.push_str(": run as root, or give the binary CAP_NET_RAW");
    }
    SourceError::Live { interface: interface.to_string(), what }
}
