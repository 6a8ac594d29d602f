//! Capture files as a source: formats, packings, sections, damage.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use sluice::capture::source::file::{Damage, FileSource};
use sluice::wire::packet::{LinkType, UdpHeader, VLAN_NONE};

/// A packet that outlives its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    pub data: Vec<u8>,
    pub original_bytes: u32,
    pub capture_ns: i64,
    pub stamped: bool,
    pub interface: u32,
    pub section: u32,
    pub link: LinkType,
}

/// Everything that a source gives.
pub fn read_all(source: &mut FileSource) -> (Vec<Packet>, Vec<Damage>) {
    let mut packets = Vec::new();
    while let Some(packet) = source.next().expect("no read error") {
        assert_eq!(packet.index, packets.len() as u64);
        packets.push(Packet {
            data: packet.data.to_vec(),
            original_bytes: packet.original_bytes,
            capture_ns: packet.capture_ns,
            stamped: packet.stamped,
            interface: packet.interface,
            section: packet.section,
            link: packet.link,
        });
    }
    assert!(source.next().expect("no read error").is_none(), "the end stays the end");
    (packets, source.damage().to_vec())
}

/// The capture files below `folder`, sorted; goldens left out.
pub fn capture_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a data folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_string();
        if path.is_dir() {
            files.extend(capture_files(&path));
        } else if !name.ends_with(".tsv") && !name.ends_with(".csv.gz") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// An Ethernet frame to 233.215.21.4:10378 around a UDP payload.
pub fn frame_of(payload: &[u8]) -> Vec<u8> {
    let header = UdpHeader {
        src_mac: [2, 0, 0, 0, 0, 1],
        vlan: VLAN_NONE,
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(233, 215, 21, 4),
        src_port: 40_000,
        dst_port: 10_378,
        identification: 7,
    };
    let mut frame = Vec::new();
    header.write_frame(payload, &mut frame);
    frame
}
