//! From a captured frame to its UDP payload: a fixed-shape fast path, and a general path (etherparse) that agrees with
//! it on every frame that the fast path takes.
//!
//! Lengths come from the UDP header, never from the frame: padding, frame check sequences and trailers exist.
//! Checksums are not judged here (captures with rewritten addresses carry wrong ones); see [`ipv4_checksum_ok`] and
//! [`udp_checksum_ok`].

use core::net::{IpAddr, Ipv4Addr};

use etherparse::{
    EtherType, IpAuthHeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice,
    Ipv6RawExtHeaderSlice, SingleVlanHeaderSlice, UdpHeaderSlice,
};

/// Bytes of an Ethernet II header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Bytes of a UDP header.
pub const UDP_BYTES: usize = 8;
/// Bytes of one VLAN tag.
pub const VLAN_BYTES: usize = 4;
/// Bytes before the payload of a fast-path frame.
pub const FAST_HEADER_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// What `UdpView::vlan` holds where there is no tag (0xffff is not a 12-bit VLAN id).
pub const VLAN_NONE: u16 = 0xffff;
/// Most VLAN tags that are walked: 802.1ad allows a service tag and a customer tag.
pub const VLAN_TAGS_MAX: usize = 2;

/// Extension headers walked before an IPv6 packet is given up: RFC 8200 §4.1 recommends at most seven.
const IPV6_EXTENSIONS_MAX: usize = 8;
/// Linux cooked capture v1 header (LINKTYPE_LINUX_SLL): protocol at 14.
const SLL_BYTES: usize = 16;
/// Linux cooked capture v2 header (LINKTYPE_LINUX_SLL2): protocol at 0.
const SLL2_BYTES: usize = 20;
/// The pre-standard QinQ ether type that older switches still write.
const ETHER_TYPE_QINQ_OLD: u16 = 0x9100;

/// The link layer of a frame, from a capture file's LINKTYPE value (tcpdump.org/linktypes.html).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkType {
    /// 1: Ethernet.
    Ethernet,
    /// 101 (and the DLT values 12 and 14, 228, 229): the frame begins with an IP header.
    Raw,
    /// 0 and 108: a four-byte address family before the IP header, in either byte order.
    Null,
    /// 113: Linux cooked capture.
    LinuxSll,
    /// 276: Linux cooked capture, version 2.
    LinuxSll2,
    /// Any other value.
    Other(u16),
}

impl LinkType {
    /// The type for a capture file's LINKTYPE value.
    pub fn from_value(value: u16) -> LinkType {
        match value {
            1 => LinkType::Ethernet,
            12 | 14 | 101 | 228 | 229 => LinkType::Raw,
            0 | 108 => LinkType::Null,
            113 => LinkType::LinuxSll,
            276 => LinkType::LinuxSll2,
            other => LinkType::Other(other),
        }
    }

    /// The LINKTYPE value to write into a capture file.
    pub fn value(self) -> u16 {
        match self {
            LinkType::Ethernet => 1,
            LinkType::Raw => 101,
            LinkType::Null => 0,
            LinkType::LinuxSll => 113,
            LinkType::LinuxSll2 => 276,
            LinkType::Other(value) => value,
        }
    }
}

/// Why a frame has no UDP payload for us. Closed set: it is a label of counters and JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PacketReason {
    /// Neither IPv4 nor IPv6.
    NotIp = 0,
    /// IP, but not UDP.
    NotUdp = 1,
    /// A fragment, the first one included: its datagram is not whole.
    Fragment = 2,
    /// The frame ends before its headers or before the length that they state.
    Truncated = 3,
    /// A header states a length that contradicts itself or the header around it.
    BadLength = 4,
    /// A header is not what its place demands (IP version, IPv4 header length).
    BadHeader = 5,
    /// More than two VLAN tags.
    VlanTags = 6,
    /// A link type that is not understood.
    LinkType = 7,
}

impl PacketReason {
    /// Every reason, in order of its number.
    pub const ALL: [PacketReason; 8] = [
        PacketReason::NotIp,
        PacketReason::NotUdp,
        PacketReason::Fragment,
        PacketReason::Truncated,
        PacketReason::BadLength,
        PacketReason::BadHeader,
        PacketReason::VlanTags,
        PacketReason::LinkType,
    ];

    /// The reason's label.
    pub fn label(self) -> &'static str {
        match self {
            PacketReason::NotIp => "not_ip",
            PacketReason::NotUdp => "not_udp",
            PacketReason::Fragment => "fragment",
            PacketReason::Truncated => "truncated",
            PacketReason::BadLength => "bad_length",
            PacketReason::BadHeader => "bad_header",
            PacketReason::VlanTags => "vlan_tags",
            PacketReason::LinkType => "link_type",
        }
    }
}

/// A UDP datagram inside a frame, borrowed from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpView<'a> {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// VLAN ids, outer first; [`VLAN_NONE`] where there is no tag.
    pub vlan: [u16; VLAN_TAGS_MAX],
    /// The UDP payload, by the UDP header's length.
    pub payload: &'a [u8],
    /// Where the payload begins in the frame, in bytes.
    pub payload_offset: u32,
}

impl UdpView<'_> {
    /// The destination, where it is IPv4 (a multicast group and port name a feed's side).
    #[inline]
    pub fn dst_v4(&self) -> Option<Ipv4Addr> {
        match self.dst {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }
}

/// The fixed shape that a feed's frame has on its way through a NIC: Ethernet II without a tag, IPv4 without options,
/// not a fragment, UDP, every length consistent. `None` for all else: [`general`] decides what it is.
#[inline]
pub fn fast(frame: &[u8]) -> Option<UdpView<'_>> {
    let header: &[u8; FAST_HEADER_BYTES] = frame.first_chunk()?;
    let u16_at = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let total = usize::from(u16_at(16));
    let length = usize::from(u16_at(38));
    // Fragment field: reserved and don't-fragment may be set, more-fragments and offset may not.
    let shape = u16_at(12) == 0x0800 && header[14] == 0x45 && header[23] == 17 && u16_at(20) & 0x3fff == 0;
    let lengths = total + ETHERNET_BYTES <= frame.len() && length >= UDP_BYTES && length + IPV4_BYTES <= total;
    if !(shape && lengths) {
        return None;
    }
    let payload = frame.get(FAST_HEADER_BYTES..ETHERNET_BYTES + IPV4_BYTES + length)?;
    Some(UdpView {
        src: IpAddr::V4(Ipv4Addr::new(header[26], header[27], header[28], header[29])),
        dst: IpAddr::V4(Ipv4Addr::new(header[30], header[31], header[32], header[33])),
        src_port: u16_at(34),
        dst_port: u16_at(36),
        vlan: [VLAN_NONE; VLAN_TAGS_MAX],
        payload,
        payload_offset: FAST_HEADER_BYTES as u32,
    })
}

/// The fast path where it applies, else the general path.
#[inline]
pub fn udp(frame: &[u8], link: LinkType) -> Result<UdpView<'_>, PacketReason> {
    if link == LinkType::Ethernet
        && let Some(view) = fast(frame)
    {
        return Ok(view);
    }
    general(frame, link)
}

/// Any frame that can carry UDP: 0, 1 or 2 VLAN tags, IPv4 with options, IPv6 with extension headers, every
/// [`LinkType`] that is known.
pub fn general(frame: &[u8], link: LinkType) -> Result<UdpView<'_>, PacketReason> {
    let (kind, at) = network(frame, link)?;
    let (kind, at, vlan) = vlan_tags(frame, kind, at)?;
    let packet = frame.get(at..).ok_or(PacketReason::Truncated)?;
    let (src, dst, udp_at, ip_end) = match kind {
        Network::EtherType(EtherType::IPV4) => ipv4(packet)?,
        Network::EtherType(EtherType::IPV6) => ipv6(packet)?,
        Network::EtherType(_) => return Err(PacketReason::NotIp),
        Network::ByVersion => match packet.first().ok_or(PacketReason::Truncated)? >> 4 {
            4 => ipv4(packet)?,
            6 => ipv6(packet)?,
            _ => return Err(PacketReason::NotIp),
        },
    };
    let datagram = packet.get(udp_at..ip_end).ok_or(PacketReason::BadLength)?;
    let header = UdpHeaderSlice::from_slice(datagram).map_err(|_| PacketReason::BadLength)?;
    let payload = datagram.get(UDP_BYTES..usize::from(header.length())).ok_or(PacketReason::BadLength)?;
    Ok(UdpView {
        src,
        dst,
        src_port: header.source_port(),
        dst_port: header.destination_port(),
        vlan,
        payload,
        payload_offset: (at + udp_at + UDP_BYTES) as u32,
    })
}

/// How the bytes after the link header name themselves.
#[derive(Clone, Copy)]
enum Network {
    EtherType(EtherType),
    ByVersion,
}

/// The network protocol and where its header begins.
fn network(frame: &[u8], link: LinkType) -> Result<(Network, usize), PacketReason> {
    let ether_type = |at: usize, header_bytes: usize| match frame.get(at..at + 2) {
        Some(bytes) if frame.len() >= header_bytes => {
            Ok((Network::EtherType(EtherType(u16::from_be_bytes([bytes[0], bytes[1]]))), header_bytes))
        }
        _ => Err(PacketReason::Truncated),
    };
    match link {
        LinkType::Ethernet => ether_type(12, ETHERNET_BYTES),
        LinkType::LinuxSll => ether_type(14, SLL_BYTES),
        LinkType::LinuxSll2 => ether_type(0, SLL2_BYTES),
        LinkType::Raw => Ok((Network::ByVersion, 0)),
        LinkType::Null => {
            let family = frame.first_chunk::<4>().ok_or(PacketReason::Truncated)?;
            // AF_INET is 2 everywhere; AF_INET6 is 10 (Linux), 24, 28 or 30 (the BSDs). The writer's byte order is
            // unknown.
            let known = [u32::from_le_bytes(*family), u32::from_be_bytes(*family)]
                .into_iter()
                .any(|family| matches!(family, 2 | 10 | 24 | 28 | 30));
            if known { Ok((Network::ByVersion, 4)) } else { Err(PacketReason::NotIp) }
        }
        LinkType::Other(_) => Err(PacketReason::LinkType),
    }
}

/// Walks at most [`VLAN_TAGS_MAX`] tags: the protocol behind them, where it begins, and the VLAN ids.
fn vlan_tags(
    frame: &[u8],
    mut kind: Network,
    mut at: usize,
) -> Result<(Network, usize, [u16; VLAN_TAGS_MAX]), PacketReason> {
    let mut vlan = [VLAN_NONE; VLAN_TAGS_MAX];
    let tagged = |kind: Network| match kind {
        Network::EtherType(
            EtherType::VLAN_TAGGED_FRAME | EtherType::PROVIDER_BRIDGING | EtherType(ETHER_TYPE_QINQ_OLD),
        ) => true,
        Network::EtherType(_) | Network::ByVersion => false,
    };
    for id in &mut vlan {
        if !tagged(kind) {
            return Ok((kind, at, vlan));
        }
        let rest = frame.get(at..).ok_or(PacketReason::Truncated)?;
        let tag = SingleVlanHeaderSlice::from_slice(rest).map_err(|_| PacketReason::Truncated)?;
        *id = tag.vlan_identifier().value();
        kind = Network::EtherType(tag.ether_type());
        at += VLAN_BYTES;
    }
    if tagged(kind) { Err(PacketReason::VlanTags) } else { Ok((kind, at, vlan)) }
}

/// Source, destination, where the UDP header begins, where the IP payload ends: both counted from the IP header.
type Located = (IpAddr, IpAddr, usize, usize);

fn ipv4(packet: &[u8]) -> Result<Located, PacketReason> {
    use etherparse::err::ipv4::{HeaderError, HeaderSliceError};
    let header = Ipv4HeaderSlice::from_slice(packet).map_err(|error| match error {
        HeaderSliceError::Len(_) => PacketReason::Truncated,
        HeaderSliceError::Content(
            HeaderError::UnexpectedVersion { .. } | HeaderError::HeaderLengthSmallerThanHeader { .. },
        ) => PacketReason::BadHeader,
    })?;
    let mut next = header.protocol();
    if !matches!(next, IpNumber::UDP | IpNumber::AUTHENTICATION_HEADER) {
        return Err(PacketReason::NotUdp);
    }
    if header.is_fragmenting_payload() {
        return Err(PacketReason::Fragment);
    }
    let end = usize::from(header.total_len());
    let mut at = header.slice().len();
    if end < at {
        return Err(PacketReason::BadLength);
    }
    if end > packet.len() {
        return Err(PacketReason::Truncated);
    }
    if next == IpNumber::AUTHENTICATION_HEADER {
        (next, at) = authentication(&packet[..end], at)?;
    }
    if next != IpNumber::UDP {
        return Err(PacketReason::NotUdp);
    }
    Ok((IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()), at, end))
}

fn ipv6(packet: &[u8]) -> Result<Located, PacketReason> {
    use etherparse::err::ipv6::HeaderSliceError;
    let header = Ipv6HeaderSlice::from_slice(packet).map_err(|error| match error {
        HeaderSliceError::Len(_) => PacketReason::Truncated,
        HeaderSliceError::Content(_) => PacketReason::BadHeader,
    })?;
    let mut at = header.slice().len();
    let end = at + usize::from(header.payload_length());
    let whole = packet.get(..end);
    // Extension headers are walked in what is there, so that the reason names the layer that it should.
    let bytes = whole.unwrap_or(packet);
    let mut next = header.next_header();
    for _ in 0..IPV6_EXTENSIONS_MAX {
        match next {
            IpNumber::UDP if whole.is_none() => return Err(PacketReason::Truncated),
            IpNumber::UDP => {
                return Ok((IpAddr::V6(header.source_addr()), IpAddr::V6(header.destination_addr()), at, end));
            }
            IpNumber::AUTHENTICATION_HEADER => (next, at) = authentication(bytes, at)?,
            IpNumber::IPV6_FRAGMENTATION_HEADER => (next, at) = fragmentation(bytes, at)?,
            other if Ipv6RawExtHeaderSlice::header_type_supported(other) => {
                let rest = bytes.get(at..).ok_or(PacketReason::BadLength)?;
                let extension = Ipv6RawExtHeaderSlice::from_slice(rest).map_err(|_| PacketReason::BadLength)?;
                at += extension.slice().len();
                next = extension.next_header();
            }
            _ => return Err(PacketReason::NotUdp),
        }
    }
    Err(PacketReason::BadHeader)
}

/// Steps over an authentication header (RFC 4302).
fn authentication(bytes: &[u8], at: usize) -> Result<(IpNumber, usize), PacketReason> {
    let rest = bytes.get(at..).ok_or(PacketReason::BadLength)?;
    let header = IpAuthHeaderSlice::from_slice(rest).map_err(|_| PacketReason::BadLength)?;
    Ok((header.next_header(), at + header.slice().len()))
}

/// Steps over an IPv6 fragment header that says "whole" (an atomic fragment, RFC 6946).
fn fragmentation(bytes: &[u8], at: usize) -> Result<(IpNumber, usize), PacketReason> {
    let rest = bytes.get(at..).ok_or(PacketReason::BadLength)?;
    let header = Ipv6FragmentHeaderSlice::from_slice(rest).map_err(|_| PacketReason::BadLength)?;
    if header.is_fragmenting_payload() {
        return Err(PacketReason::Fragment);
    }
    Ok((header.next_header(), at + header.slice().len()))
}

/// The Internet checksum's running sum (RFC 1071) over `bytes`, an odd last byte padded with zero.
fn checksum_sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks_exact(2);
    let odd = pairs.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    pairs.map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u64>() + odd
}

fn checksum_fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether an IPv4 header (with its options, without its payload) carries the checksum that belongs to it.
pub fn ipv4_checksum_ok(header: &[u8]) -> bool {
    header.len() >= IPV4_BYTES && checksum_fold(checksum_sum(header)) == 0xffff
}

/// The checksum of a UDP header and payload (`datagram`, its checksum field counted as it stands) under the pseudo
/// header of the two addresses.
fn udp_sum(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> u64 {
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => checksum_sum(&address.octets()),
        IpAddr::V6(address) => checksum_sum(&address.octets()),
    };
    address(src) + address(dst) + 17 + datagram.len() as u64 + checksum_sum(datagram)
}

/// Whether the datagram's UDP checksum is right; over IPv4 a zero field means that there is none, which is allowed.
/// `frame` is the frame that `view` was taken from.
pub fn udp_checksum_ok(frame: &[u8], view: &UdpView<'_>) -> bool {
    let end = view.payload_offset as usize + view.payload.len();
    let Some(datagram) = frame.get(view.payload_offset as usize - UDP_BYTES..end) else { return false };
    if datagram[6] == 0 && datagram[7] == 0 {
        return view.dst.is_ipv4();
    }
    checksum_fold(udp_sum(view.src, view.dst, datagram)) == 0xffff
}

/// The headers of a UDP frame that we write ourselves: Ethernet II, at most one VLAN tag, IPv4 without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpHeader {
    /// Source MAC address.
    pub src_mac: [u8; 6],
    /// VLAN id of an 802.1Q tag; [`VLAN_NONE`] for none.
    pub vlan: u16,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address; a multicast one also gives the destination MAC (RFC 1112 §6.4).
    pub dst: Ipv4Addr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// IPv4 identification.
    pub identification: u16,
}

impl UdpHeader {
    /// The largest payload that an IPv4 total length can state.
    pub const PAYLOAD_BYTES_MAX: usize = u16::MAX as usize - IPV4_BYTES - UDP_BYTES;

    /// Appends the whole frame with right checksums to `out`. Asserts that the payload is at most
    /// [`Self::PAYLOAD_BYTES_MAX`].
    pub fn write_frame(&self, payload: &[u8], out: &mut Vec<u8>) {
        assert!(payload.len() <= Self::PAYLOAD_BYTES_MAX, "UDP payload of {} bytes", payload.len());
        out.extend_from_slice(&multicast_mac(self.dst));
        out.extend_from_slice(&self.src_mac);
        if self.vlan != VLAN_NONE {
            out.extend_from_slice(&EtherType::VLAN_TAGGED_FRAME.0.to_be_bytes());
            out.extend_from_slice(&self.vlan.to_be_bytes());
        }
        out.extend_from_slice(&EtherType::IPV4.0.to_be_bytes());
        let udp_bytes = (UDP_BYTES + payload.len()) as u16;
        let ip_at = out.len();
        out.extend_from_slice(&[0x45, 0]);
        out.extend_from_slice(&(udp_bytes + IPV4_BYTES as u16).to_be_bytes());
        out.extend_from_slice(&self.identification.to_be_bytes());
        // Don't fragment; time to live 64; UDP; checksum to come.
        out.extend_from_slice(&[0x40, 0, 64, 17, 0, 0]);
        out.extend_from_slice(&self.src.octets());
        out.extend_from_slice(&self.dst.octets());
        let checksum = !checksum_fold(checksum_sum(&out[ip_at..]));
        out[ip_at + 10..ip_at + 12].copy_from_slice(&checksum.to_be_bytes());
        let udp_at = out.len();
        out.extend_from_slice(&self.src_port.to_be_bytes());
        out.extend_from_slice(&self.dst_port.to_be_bytes());
        out.extend_from_slice(&udp_bytes.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(payload);
        let checksum = !checksum_fold(udp_sum(IpAddr::V4(self.src), IpAddr::V4(self.dst), &out[udp_at..]));
        // A computed zero is sent as all ones: zero means "no checksum" (RFC 768).
        let checksum = if checksum == 0 { 0xffff } else { checksum };
        out[udp_at + 6..udp_at + 8].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The MAC address of an IPv4 multicast group (RFC 1112 §6.4); a locally administered one made from a unicast address.
pub fn multicast_mac(group: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = group.octets();
    if group.is_multicast() { [0x01, 0x00, 0x5e, b & 0x7f, c, d] } else { [0x02, 0x00, a, b, c, d] }
}
