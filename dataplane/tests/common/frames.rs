//! Ethernet frames for tests, built by hand so that no code of the product decides what they are.

use std::net::Ipv4Addr;

/// VLAN tag type (802.1Q).
pub const VLAN: u16 = 0x8100;
/// Service tag type (802.1ad).
pub const SERVICE: u16 = 0x88a8;

/// A UDP datagram in a frame; change the fields that the test is about.
#[derive(Clone)]
pub struct Udp {
    /// (type, tag control) outermost first.
    pub tags: Vec<(u16, u16)>,
    /// IPv4 options; a multiple of 4 bytes.
    pub options: Vec<u8>,
    /// Flags and fragment offset word of the IPv4 header.
    pub fragment: u16,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub source_port: u16,
    pub destination_port: u16,
    pub payload: Vec<u8>,
}

impl Udp {
    pub fn to(destination: Ipv4Addr, port: u16, payload: &[u8]) -> Udp {
        Udp {
            tags: Vec::new(),
            options: Vec::new(),
            fragment: 0,
            source: Ipv4Addr::new(10, 9, 0, 1),
            destination,
            source_port: 40_000,
            destination_port: port,
            payload: payload.to_vec(),
        }
    }

    /// Bytes of all headers.
    pub fn header_bytes(&self) -> usize {
        14 + self.tags.len() * 4 + 20 + self.options.len() + 8
    }

    /// The frame, both checksums right.
    pub fn frame(&self) -> Vec<u8> {
        let mut udp = Vec::new();
        udp.extend_from_slice(&self.source_port.to_be_bytes());
        udp.extend_from_slice(&self.destination_port.to_be_bytes());
        udp.extend_from_slice(&((8 + self.payload.len()) as u16).to_be_bytes());
        udp.extend_from_slice(&[0, 0]);
        udp.extend_from_slice(&self.payload);
        let mut pseudo = [self.source.octets(), self.destination.octets()].concat();
        pseudo.extend_from_slice(&[0, 17]);
        pseudo.extend_from_slice(&(udp.len() as u16).to_be_bytes());
        pseudo.extend_from_slice(&udp);
        let sum = match checksum(&pseudo) {
            0 => 0xffff,
            sum => sum,
        };
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        let ip = ipv4(17, self.source, self.destination, &self.options, self.fragment, &udp);
        ethernet(multicast_mac(self.destination), &self.tags, 0x0800, &ip)
    }
}

/// An IPv4 packet.
pub fn ipv4(
    protocol: u8,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    options: &[u8],
    fragment: u16,
    body: &[u8],
) -> Vec<u8> {
    let header_bytes = 20 + options.len();
    let mut ip = vec![0x40 | (header_bytes / 4) as u8, 0];
    ip.extend_from_slice(&((header_bytes + body.len()) as u16).to_be_bytes());
    ip.extend_from_slice(&[0x12, 0x34]);
    ip.extend_from_slice(&fragment.to_be_bytes());
    ip.extend_from_slice(&[16, protocol, 0, 0]);
    ip.extend_from_slice(&source.octets());
    ip.extend_from_slice(&destination.octets());
    ip.extend_from_slice(options);
    let sum = checksum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    ip.extend_from_slice(body);
    ip
}

/// A frame of any type.
pub fn ethernet(destination: [u8; 6], tags: &[(u16, u16)], kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = [destination, [2, 0, 0, 0, 0, 1]].concat();
    for (kind, control) in tags {
        frame.extend_from_slice(&kind.to_be_bytes());
        frame.extend_from_slice(&control.to_be_bytes());
    }
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

/// The group's hardware address; a fixed one for unicast.
pub fn multicast_mac(address: Ipv4Addr) -> [u8; 6] {
    let [_, b, c, d] = address.octets();
    if address.is_multicast() { [1, 0, 0x5e, b & 0x7f, c, d] } else { [2, 0, 0, 0, 0, 2] }
}

/// The internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
