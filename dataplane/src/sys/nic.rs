//! Network interfaces: look-up (alternative names too), MTU, link, queues, driver, statistics, and what follows from
//! them for frames and for the right to take the interface.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::netlink::{self, Netlink};

/// Bytes that a frame may have beyond the MTU: Ethernet header (14) and two VLAN tags (8).
pub const FRAME_OVERHEAD_BYTES: u32 = 22;
/// Bytes of an AF_XDP chunk that stand before the frame (`XDP_PACKET_HEADROOM`, linux/bpf.h).
pub const CHUNK_HEADROOM_BYTES: u32 = 256;
/// Largest MTU for which one buffer a frame is chosen. Above it drivers refuse a program that cannot see several
/// buffers: mlx5 from 3,499, veth from 3,507 (measured; attach gives ERANGE), both with 4 KiB pages.
pub const SINGLE_BUFFER_MTU_MAX: u32 = 3498;
/// Chunk sizes that a UMEM may have on 4 KiB pages (aligned mode, powers of two).
pub const CHUNK_BYTES: [u32; 2] = [2048, 4096];
/// Most buffers that one frame may span (`MAX_SKB_FRAGS` + 1, linux/skbuff.h).
pub const FRAME_BUFFERS_MAX: u32 = 18;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_STATS64: u16 = 23;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_CARRIER: u16 = 33;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
/// First of the per-mode program ids (driver, generic, hardware) told when several programs are attached.
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_BYTES: usize = 32;
/// Bound on what a driver may claim to count; mlx5 with 64 queues has about 3,000.
const STATISTICS_MAX: u32 = 65_536;

/// Why an interface cannot be used or asked.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// No interface of this name or alternative name.
    #[error("interface {name:?}: no such interface in this network namespace: see \"ip link\"")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The kernel refused a question.
    #[error("interface {name:?}: {what}: {source}")]
    Kernel {
        /// The interface.
        name: String,
        /// What was asked.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The interface carries the default route.
    #[error(
        "interface {name:?} carries the default route: capturing on it can cut this host off: \
         use another interface, or set force = true"
    )]
    DefaultRoute {
        /// The interface.
        name: String,
    },
    /// More queues asked for than the interface has.
    #[error("interface {name:?}: queue {queue} asked for, but it has {queues}: lower it, or run \"ethtool -L {name} combined {}\"", queue + 1)]
    QueueCount {
        /// The interface.
        name: String,
        /// The queue asked for.
        queue: u32,
        /// Queues that it has.
        queues: u32,
    },
    /// Frames of this MTU do not fit.
    #[error(
        "interface {name:?}: MTU {mtu} + {FRAME_OVERHEAD_BYTES} does not fit a {chunk_bytes}-byte chunk \
         (limit {limit}): {remedy}"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The chunk size asked for.
        chunk_bytes: u32,
        /// Longest frame of such a chunk.
        limit: u32,
        /// What to do.
        remedy: &'static str,
    },
    /// A chunk size that the kernel does not take.
    #[error("interface {name:?}: frame_bytes = {chunk_bytes}: only 2048 and 4096 are possible")]
    ChunkBytes {
        /// The interface.
        name: String,
        /// The chunk size asked for.
        chunk_bytes: u32,
    },
}

/// How an XDP program is attached, in the kernel's numbering (`IFLA_XDP_ATTACHED`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpAttached {
    /// In the driver.
    Native,
    /// In the kernel's generic receive path.
    Generic,
    /// In the NIC.
    Hardware,
    /// Several at once.
    Several,
}

impl XdpAttached {
    /// The mode's name in messages and exports.
    pub fn label(self) -> &'static str {
        match self {
            XdpAttached::Native => "native",
            XdpAttached::Generic => "generic",
            XdpAttached::Hardware => "hardware",
            XdpAttached::Several => "several",
        }
    }
}

/// One interface as the kernel described it at the time of the question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Index in this network namespace; what everything else uses.
    pub index: u32,
    /// The kernel's name (not an alternative one).
    pub name: String,
    /// Alternative names.
    pub alternative_names: Vec<String>,
    /// MTU in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Hardware address; empty or other than 6 bytes for links that are not Ethernet.
    pub address: Vec<u8>,
    /// Set up by the administrator.
    pub up: bool,
    /// The link is there.
    pub carrier: bool,
    /// Most receive queues that it can ever have (queue indexes stay below).
    pub rx_queues_max: u32,
    /// The attached XDP program: how, and its id.
    pub xdp: Option<(XdpAttached, u32)>,
}

impl Interface {
    /// Finds an interface by name or alternative name in the calling thread's network namespace.
    pub fn find(name: &str) -> Result<Interface, NicError> {
        let mut body = netlink::ifinfo(0);
        let mut zero_terminated = name.as_bytes().to_vec();
        zero_terminated.push(0);
        // The kernel looks an alternative name up among all names.
        netlink::push_attribute(&mut body, IFLA_ALT_IFNAME, &zero_terminated);
        Interface::ask(name, &body)
    }

    /// Reads the interface again, by index: a changed name is followed.
    pub fn refresh(&self) -> Result<Interface, NicError> {
        Interface::ask(&self.name, &netlink::ifinfo(self.index))
    }

    fn ask(name: &str, body: &[u8]) -> Result<Interface, NicError> {
        let answer = link_message(name, body)?;
        Interface::decode(&answer).ok_or_else(|| NicError::Kernel {
            name: name.to_owned(),
            what: "reading the link",
            source: io::Error::other("an answer without index, name or MTU"),
        })
    }

    fn decode(body: &[u8]) -> Option<Interface> {
        let flags = netlink::word(body.get(8..)?)?;
        let mut found = Interface {
            index: netlink::word(body.get(4..)?)?,
            name: String::new(),
            alternative_names: Vec::new(),
            mtu: 0,
            address: Vec::new(),
            up: flags & libc::IFF_UP as u32 != 0,
            carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
            rx_queues_max: 1,
            xdp: None,
        };
        for (kind, value) in netlink::attributes(body.get(netlink::IFINFO_BYTES..)?) {
            match kind {
                IFLA_ADDRESS => found.address = value.to_vec(),
                IFLA_IFNAME => found.name = netlink::text(value),
                IFLA_MTU => found.mtu = netlink::word(value)?,
                IFLA_NUM_RX_QUEUES => found.rx_queues_max = netlink::word(value)?,
                IFLA_CARRIER => found.carrier = value.first() == Some(&1),
                IFLA_XDP => found.xdp = decode_xdp(value),
                IFLA_PROP_LIST => {
                    let names = netlink::attributes(value).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
                    found.alternative_names = names.map(|(_, name)| netlink::text(name)).collect();
                }
                _ => {}
            }
        }
        (found.index != 0 && !found.name.is_empty() && found.mtu != 0).then_some(found)
    }

    /// Receive queues in use now (`ethtool -l`: combined + rx). Drivers without channels have what sysfs lists.
    pub fn rx_queues(&self) -> Result<u32, NicError> {
        let mut channels = [0_u32; 9];
        channels[0] = ETHTOOL_GCHANNELS;
        match self.ethtool(channels.as_mut_ptr().cast()) {
            // Words: cmd, max rx, max tx, max other, max combined, rx, tx, other, combined.
            Ok(()) => Ok((channels[5] + channels[8]).max(1)),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(self.rx_queues_listed()),
            Err(source) => Err(self.error("reading its channels (ethtool -l)", source)),
        }
    }

    /// Queue directories in sysfs, where that shows this namespace; else the most there can be.
    fn rx_queues_listed(&self) -> u32 {
        let base = format!("/sys/class/net/{}", self.name);
        let index = std::fs::read_to_string(format!("{base}/ifindex")).ok().and_then(|text| text.trim().parse().ok());
        if index != Some(self.index) {
            return self.rx_queues_max;
        }
        let Ok(queues) = std::fs::read_dir(format!("{base}/queues")) else { return self.rx_queues_max };
        let count = queues.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count();
        (count as u32).max(1)
    }

    /// Refuses a queue index that the interface does not have now, with the command that would add it.
    pub fn check_queue(&self, queue: u32) -> Result<(), NicError> {
        let queues = self.rx_queues()?;
        if queue < queues {
            return Ok(());
        }
        Err(NicError::QueueCount { name: self.name.clone(), queue, queues })
    }

    /// The driver's name (`ethtool -i`), `unknown` where it does not tell.
    pub fn driver(&self) -> String {
        self.driver_info().map_or_else(|| "unknown".into(), |info| netlink::text(&info[4..36]))
    }

    /// `struct ethtool_drvinfo`: driver at 4, statistics count at 180.
    fn driver_info(&self) -> Option<[u8; 196]> {
        let mut info = [0_u32; 49];
        info[0] = ETHTOOL_GDRVINFO;
        self.ethtool(info.as_mut_ptr().cast()).ok()?;
        let mut bytes = [0_u8; 196];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(info) {
            *to = word.to_ne_bytes();
        }
        Some(bytes)
    }

    /// Refuses the interface that carries a default route, unless `forced`.
    pub fn check_not_default_route(&self, forced: bool) -> Result<(), NicError> {
        if !forced && self.carries_default_route() {
            return Err(NicError::DefaultRoute { name: self.name.clone() });
        }
        Ok(())
    }

    /// Whether a default route (IPv4 or IPv6, main table) of this namespace leaves through the interface.
    pub fn carries_default_route(&self) -> bool {
        // /proc/net is the namespace of the process's first thread; this one may be in another.
        let v4 = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
        let v6 = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
        default_route_v4(&v4, &self.name) || default_route_v6(&v6, &self.name)
    }

    /// The kernel's counters of the interface.
    pub fn statistics(&self) -> Result<LinkStatistics, NicError> {
        let answer = link_message(&self.name, &netlink::ifinfo(self.index))?;
        let attributes = netlink::attributes(answer.get(netlink::IFINFO_BYTES..).unwrap_or_default());
        let value = attributes.into_iter().find(|(kind, _)| *kind == IFLA_STATS64).map(|(_, value)| value);
        value
            .and_then(LinkStatistics::decode)
            .ok_or_else(|| self.error("reading its statistics", io::Error::other("an answer without them")))
    }

    /// The driver's own counters by name (`ethtool -S`); empty for a driver that has none.
    pub fn driver_statistics(&self) -> Result<Vec<(String, u64)>, NicError> {
        let Some(info) = self.driver_info() else { return Ok(Vec::new()) };
        let count = netlink::word(&info[180..]).unwrap_or(0).min(STATISTICS_MAX);
        if count == 0 {
            return Ok(Vec::new());
        }
        // Room for twice as many: a driver may add queues between the two questions, and the kernel gives no bound.
        let room = count as usize * 2;
        // struct ethtool_gstrings: cmd, string_set, len, then len names; as words for their alignment.
        let mut names = vec![0_u32; 3 + room * ETH_GSTRING_BYTES / 4];
        (names[0], names[1], names[2]) = (ETHTOOL_GSTRINGS, ETH_SS_STATS, count);
        self.ethtool(names.as_mut_ptr().cast()).map_err(|e| self.error("reading its counters' names", e))?;
        // struct ethtool_stats: cmd and n_stats (one 64-bit word), then the values.
        let mut values = vec![0_u64; 1 + room];
        values[0] = u64::from(ETHTOOL_GSTATS) | u64::from(count) << 32;
        self.ethtool(values.as_mut_ptr().cast()).map_err(|e| self.error("reading its counters", e))?;
        let names: Vec<u8> = names[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let named = names.chunks(ETH_GSTRING_BYTES).map(netlink::text).zip(values[1..].iter().copied());
        Ok(named.take(count as usize).collect())
    }

    /// One `SIOCETHTOOL` call; `data` points to the structure that the command asks for.
    pub(super) fn ethtool(&self, data: *mut libc::c_char) -> io::Result<()> {
        // SAFETY: socket() takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = self.name.as_bytes();
        assert!(name.len() < libc::IFNAMSIZ, "the kernel gave an interface name of {} bytes", name.len());
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = data;
        // SAFETY: `request` is a valid ifreq whose data pointer is, by every caller (all in `sys`), to a
        // writable structure of the command's size.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn error(&self, what: &'static str, source: io::Error) -> NicError {
        NicError::Kernel { name: self.name.clone(), what, source }
    }
}

fn link_message(name: &str, body: &[u8]) -> Result<Vec<u8>, NicError> {
    let error = |source: io::Error| match source.raw_os_error() {
        // ERANGE: longer than any name may be.
        Some(libc::ENODEV | libc::ERANGE | libc::EINVAL) => NicError::Unknown { name: name.to_owned() },
        _ => NicError::Kernel { name: name.to_owned(), what: "reading the link", source },
    };
    let mut netlink = Netlink::open(0, false).map_err(error)?;
    match netlink.request(libc::RTM_GETLINK, 0, body).map_err(error)? {
        Some(message) if message.kind == libc::RTM_NEWLINK => Ok(message.body),
        _ => Err(error(io::Error::other("no link in the answer"))),
    }
}

fn decode_xdp(value: &[u8]) -> Option<(XdpAttached, u32)> {
    let attribute = |wanted: u16| netlink::attributes(value).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let mode = match attribute(IFLA_XDP_ATTACHED)?.first()? {
        1 => XdpAttached::Native,
        2 => XdpAttached::Generic,
        3 => XdpAttached::Hardware,
        4 => XdpAttached::Several,
        _ => return None,
    };
    let per_mode = (IFLA_XDP_DRV_PROG_ID..IFLA_XDP_DRV_PROG_ID + 3).find_map(attribute);
    let id = attribute(IFLA_XDP_PROG_ID).or(per_mode).and_then(netlink::word).unwrap_or(0);
    Some((mode, id))
}

/// `/proc/net/route`: interface, destination and mask (eighth column) in hex.
fn default_route_v4(table: &str, name: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() >= 8 && fields[0] == name && fields[1] == "00000000" && fields[7] == "00000000"
    })
}

/// `/proc/net/ipv6_route`: destination, prefix length, …, interface (last). `::/0` on `lo` is the unreachable entry.
fn default_route_v6(table: &str, name: &str) -> bool {
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() >= 10
            && fields[9] == name
            && name != "lo"
            && fields[0].bytes().all(|digit| digit == b'0')
            && fields[1] == "00"
    })
}

/// Counters of an interface (`struct rtnl_link_stats64`); of no use as "captured": they count what XDP drops too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStatistics {
    /// Frames received.
    pub rx_packets: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames dropped in receiving.
    pub rx_dropped: u64,
    /// Frames dropped in sending (for veth: the peer's ring was full).
    pub tx_dropped: u64,
    /// Frames missed for want of buffers.
    pub rx_missed: u64,
    /// Receive errors of every kind.
    pub rx_errors: u64,
}

impl LinkStatistics {
    fn decode(value: &[u8]) -> Option<LinkStatistics> {
        let word = |index: usize| Some(u64::from_ne_bytes(value.get(index * 8..index * 8 + 8)?.try_into().ok()?));
        Some(LinkStatistics {
            rx_packets: word(0)?,
            tx_packets: word(1)?,
            rx_bytes: word(2)?,
            tx_bytes: word(3)?,
            rx_errors: word(4)?,
            rx_dropped: word(6)?,
            tx_dropped: word(7)?,
            rx_missed: word(15)?,
        })
    }
}

/// Chunk size and multi-buffer, as they follow from an MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameChoice {
    /// UMEM chunk in bytes: 2,048 or 4,096.
    pub frame_bytes: u32,
    /// Frames may span several chunks.
    pub multi_buffer: bool,
    /// Longest frame to expect: MTU + [`FRAME_OVERHEAD_BYTES`].
    pub packet_bytes_max: u32,
}

/// Chooses chunk size and multi-buffer for `interface`'s MTU. `frame_bytes` and `multi_buffer` are the settings, `None`
/// to choose. Refuses what would lose every large frame in `rx_dropped`: the attach itself would succeed.
pub fn choose_frames(
    interface: &Interface,
    frame_bytes: Option<u32>,
    multi_buffer: Option<bool>,
) -> Result<FrameChoice, NicError> {
    let Interface { mtu, name, .. } = interface;
    if let Some(chunk_bytes) = frame_bytes.filter(|bytes| !CHUNK_BYTES.contains(bytes)) {
        return Err(NicError::ChunkBytes { name: name.clone(), chunk_bytes });
    }
    let packet_bytes_max = mtu + FRAME_OVERHEAD_BYTES;
    let refuse = |chunk_bytes: u32, limit: u32, remedy: &'static str| {
        Err(NicError::Mtu { name: name.clone(), mtu: *mtu, chunk_bytes, limit, remedy })
    };
    let fits = |chunk: u32| packet_bytes_max <= chunk - CHUNK_HEADROOM_BYTES && *mtu <= SINGLE_BUFFER_MTU_MAX;
    let single = CHUNK_BYTES.into_iter().find(|&chunk| frame_bytes.is_none_or(|bytes| bytes == chunk) && fits(chunk));
    match (single, multi_buffer) {
        (Some(frame_bytes), None | Some(false)) => {
            Ok(FrameChoice { frame_bytes, multi_buffer: false, packet_bytes_max })
        }
        // A chunk size that was asked for without a word on multi-buffer is taken as a wish for single buffers.
        (None, None) if frame_bytes == Some(2048) => {
            let remedy = "set frame_bytes = 4096, or multi_buffer = true, or leave both out";
            refuse(2048, 2048 - CHUNK_HEADROOM_BYTES, remedy)
        }
        (None, Some(false)) => {
            let chunk = frame_bytes.unwrap_or(4096);
            let limit = (chunk - CHUNK_HEADROOM_BYTES).min(SINGLE_BUFFER_MTU_MAX + FRAME_OVERHEAD_BYTES);
            refuse(chunk, limit, "set multi_buffer = true (kernel 6.6 or later), or lower the MTU")
        }
        (_, Some(true)) | (None, None) => {
            let chunk = frame_bytes.unwrap_or(4096);
            let limit = (chunk - CHUNK_HEADROOM_BYTES) * FRAME_BUFFERS_MAX;
            if packet_bytes_max > limit {
                return refuse(chunk, limit, "lower the MTU");
            }
            Ok(FrameChoice { frame_bytes: chunk, multi_buffer: true, packet_bytes_max })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_mtu(mtu: u32) -> Interface {
        Interface {
            index: 1,
            name: "eth1".into(),
            alternative_names: Vec::new(),
            mtu,
            address: vec![0; 6],
            up: true,
            carrier: true,
            rx_queues_max: 1,
            xdp: None,
        }
    }

    #[test]
    fn frames_follow_the_mtu() {
        let chosen = |mtu, bytes, multi| {
            choose_frames(&with_mtu(mtu), bytes, multi).map(|choice| (choice.frame_bytes, choice.multi_buffer)).ok()
        };
        for (mtu, bytes, multi, expected) in [
            (1500, None, None, Some((2048, false))),
            (1770, None, None, Some((2048, false))),
            (1771, None, None, Some((4096, false))),
            (3000, None, None, Some((4096, false))),
            (3498, None, None, Some((4096, false))),
            (3499, None, None, Some((4096, true))),
            (9000, None, None, Some((4096, true))),
            (1500, Some(4096), None, Some((4096, false))),
            (1500, Some(2048), Some(true), Some((2048, true))),
            (3000, Some(2048), None, None),
            (3000, Some(2048), Some(true), Some((2048, true))),
            (9000, None, Some(false), None),
            (9000, Some(4096), Some(false), None),
            (9000, Some(4096), None, Some((4096, true))),
            (65535, None, None, Some((4096, true))),
            (65535, Some(2048), Some(true), None),
            (1500, Some(3000), None, None),
        ] {
            assert_eq!(chosen(mtu, bytes, multi), expected, "MTU {mtu}, frame_bytes {bytes:?}, multi_buffer {multi:?}");
        }
    }

    #[test]
    fn a_refused_mtu_names_limit_and_remedy() {
        let told = choose_frames(&with_mtu(3000), Some(2048), None).expect_err("too large").to_string();
        assert_eq!(
            told,
            "interface \"eth1\": MTU 3000 + 22 does not fit a 2048-byte chunk (limit 1792): \
             set frame_bytes = 4096, or multi_buffer = true, or leave both out"
        );
    }

    #[test]
    fn a_missing_queue_names_the_command() {
        let told = NicError::QueueCount { name: "eth1".into(), queue: 8, queues: 8 }.to_string();
        assert!(told.contains("\"ethtool -L eth1 combined 9\""), "{told}");
    }

    #[test]
    fn default_routes_are_found_by_interface() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert!(default_route_v4(v4, "eth0"));
        assert!(!default_route_v4(v4, "eth1"));
        let zero = "0".repeat(32);
        let v6 = format!(
            "{zero} 00 {zero} 00 fe80{} 00000400 00000001 00000000 00000003 eth2\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n",
            "0".repeat(28)
        );
        assert!(default_route_v6(&v6, "eth2"));
        assert!(!default_route_v6(&v6, "lo"));
    }

    #[test]
    fn the_loopback_is_found_and_nonsense_is_not() {
        let lo = Interface::find("lo").expect("every namespace has lo");
        assert_eq!((lo.name.as_str(), lo.refresh().expect("still there").index), ("lo", lo.index));
        for name in ["no-such-interface", "", &"x".repeat(15), &"x".repeat(127), &"x".repeat(500)] {
            assert!(matches!(Interface::find(name), Err(NicError::Unknown { .. })), "{name:?}");
        }
    }
}
