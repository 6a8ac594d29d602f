//! Frames to UDP payloads: the corpus of captures against what tshark gets, and the fast path against the general one.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::Path;

use proptest::prelude::*;
use sluice::capture::source::file::FileSource;
use sluice::wire::packet::{
    LinkType, PacketReason, UdpHeader, UdpView, VLAN_NONE, fast, general, ipv4_checksum_ok, udp, udp_checksum_ok,
};

use crate::common;
use crate::sources::{capture_files, frame_of, read_all};

/// Frames of which tshark gives a whole UDP payload and we do not: file, frames from 1, what we say, and why that is
/// right.
const EXCEPTIONS: &[(&str, &[RangeInclusive<u64>], PacketReason, &str)] = &[
    (
        "bad-lengths/tcpdump.ipv4_invalid_total_length.pcap",
        &[1..=1],
        PacketReason::Truncated,
        "the IP total length exceeds the frame: what is there is not the whole datagram",
    ),
    (
        "mixed/tcpdump.pim-packet-assortment.pcap",
        &[182..=185, 190..=194],
        PacketReason::NotUdp,
        "PIM registers over IPv6: the UDP header is that of the packet that they carry",
    ),
];

/// Outer IP protocols inside which tshark finds a UDP header that is not the frame's own: number and reason.
const NOT_THE_FRAMES_OWN: &[(u32, &str)] = &[
    (1, "ICMP errors quote the packet that they are about"),
    (103, "a PIM register carries the packet of another host"),
];

/// One row of a golden.
struct Golden {
    frame: u64,
    time_ns: Option<i64>,
    captured: u32,
    original: u32,
    interface: Option<u32>,
    vlan: Vec<u16>,
    fragment: bool,
    /// The outer IPv4 header's protocol.
    protocol: Option<u32>,
    src: String,
    dst: String,
    udp: Option<GoldenUdp>,
}

/// The outermost UDP header.
struct GoldenUdp {
    src_port: u16,
    dst_port: u16,
    /// As the header states it.
    length: Option<u32>,
    payload_bytes: u32,
    crc: u32,
}

fn goldens(path: &Path) -> Vec<Golden> {
    let text = std::fs::read_to_string(path).expect("a golden beside each capture");
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a header").split('\t').collect();
    let row = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        // Tunnels list several values: ours is the outermost.
        let field = |name: &str| {
            let at = names.iter().position(|known| *known == name).expect("a known column");
            fields[at].split(',').next().filter(|value| !value.is_empty())
        };
        let number = |name: &str| field(name).and_then(|value| value.parse::<u32>().ok());
        let vlan = names.iter().position(|name| *name == "vlan.id").expect("a VLAN column");
        Golden {
            frame: u64::from(number("frame.number").expect("a frame number")),
            time_ns: field("frame.time_epoch").map(nanoseconds),
            captured: number("frame.cap_len").expect("a captured length"),
            original: number("frame.len").expect("a length"),
            interface: number("frame.interface_id"),
            vlan: fields[vlan].split(',').filter_map(|id| id.parse().ok()).collect(),
            fragment: field("ip.flags.mf") == Some("1") || field("ip.frag_offset").is_some_and(|at| at != "0"),
            protocol: number("ip.proto"),
            src: field("ip.src").or(field("ipv6.src")).unwrap_or("").to_string(),
            dst: field("ip.dst").or(field("ipv6.dst")).unwrap_or("").to_string(),
            udp: number("udp.srcport").map(|src_port| GoldenUdp {
                src_port: src_port as u16,
                dst_port: number("udp.dstport").expect("both ports") as u16,
                length: number("udp.length"),
                payload_bytes: number("udp_payload_bytes").unwrap_or(0),
                crc: field("udp_payload_crc32").map_or(0, |crc| u32::from_str_radix(crc, 16).expect("hexadecimal")),
            }),
        }
    };
    lines.map(row).collect()
}

fn nanoseconds(text: &str) -> i64 {
    let (seconds, fraction) = text.split_once('.').expect("decimals");
    seconds.parse::<i64>().expect("seconds") * 1_000_000_000 + fraction.parse::<i64>().expect("nanoseconds")
}

/// What we must say to a frame, by its golden.
fn check(file: &str, golden: &Golden, got: Result<UdpView<'_>, PacketReason>) {
    let at = format!("{file} frame {}: {got:?}", golden.frame);
    let excepted = |frames: &[RangeInclusive<u64>]| frames.iter().any(|frames| frames.contains(&golden.frame));
    if let Some((.., want, why)) = EXCEPTIONS.iter().find(|(name, frames, ..)| *name == file && excepted(frames)) {
        assert_eq!(got.err(), Some(*want), "{at}: an exception since {why}");
        return;
    }
    if let Some((protocol, why)) = NOT_THE_FRAMES_OWN.iter().find(|(protocol, _)| golden.protocol == Some(*protocol)) {
        assert_eq!(got.err(), Some(PacketReason::NotUdp), "{at}: protocol {protocol}: {why}");
        return;
    }
    let Some(want) = &golden.udp else {
        assert!(got.is_err(), "{at}: tshark sees no UDP");
        return;
    };
    if golden.fragment {
        assert_eq!(got.err(), Some(PacketReason::Fragment), "{at}");
        return;
    }
    let whole = want.length.filter(|length| *length >= 8).map(|length| length - 8);
    if whole != Some(want.payload_bytes) {
        let reason = got.expect_err(&at);
        let cut = [PacketReason::Truncated, PacketReason::BadLength, PacketReason::Fragment].contains(&reason);
        assert!(cut, "{at}: tshark has {} bytes of {:?}", want.payload_bytes, want.length);
        return;
    }
    let view = got.unwrap_or_else(|_| panic!("{at}: tshark has a payload of {} bytes", want.payload_bytes));
    assert_eq!((view.src_port, view.dst_port), (want.src_port, want.dst_port), "{at}");
    assert_eq!((view.src.to_string(), view.dst.to_string()), (golden.src.clone(), golden.dst.clone()), "{at}");
    let vlan: Vec<u16> = view.vlan.into_iter().filter(|id| *id != VLAN_NONE).collect();
    assert_eq!(vlan, golden.vlan, "{at}");
    assert_eq!(view.payload.len(), want.payload_bytes as usize, "{at}");
    let mut sum = flate2::Crc::new();
    sum.update(view.payload);
    assert_eq!(sum.sum(), want.crc, "{at}");
}

#[test]
fn every_capture_gives_what_tshark_gets() {
    let Some(data) = common::data() else { return };
    let (mut files, mut payloads, mut bad) = (0, 0, 0);
    for path in capture_files(&data.join("capture")) {
        let file = path.strip_prefix(data.join("capture")).expect("inside").display().to_string();
        let mut name = path.clone().into_os_string();
        name.push(".frames.tsv");
        let mut goldens = goldens(Path::new(&name));
        // tshark counts pcapng custom blocks as frames; they have no interface.
        if file.contains("test202") || file.contains("test017") {
            goldens.retain(|golden| golden.interface.is_some());
        }
        let Ok(mut source) = FileSource::open(path.to_str().expect("UTF-8")) else {
            assert_eq!(file, "broken/pcap-parser.err-eof.bin", "only this one is no capture file");
            continue;
        };
        let mut rows = goldens.iter();
        while let Some(packet) = source.next().expect("readable") {
            let at = format!("{file} packet {}", packet.index);
            let Some(golden) = rows.next() else {
                assert_eq!(file, "broken/libpcap.shb-option-too-long.pcapng", "{at}: more packets than tshark gets");
                break;
            };
            assert_eq!(packet.data.len(), golden.captured as usize, "{at}");
            assert_eq!(packet.original_bytes, golden.original, "{at}");
            if !file.contains("timestamp_invalid") {
                assert_eq!(packet.stamped.then_some(packet.capture_ns), golden.time_ns, "{at}");
            }
            assert_eq!(golden.interface.unwrap_or(0), packet.interface, "{at}");
            let got = udp(packet.data, packet.link);
            payloads += u64::from(got.is_ok());
            let outcome = std::panic::catch_unwind(|| check(&file, golden, got));
            bad += u32::from(outcome.is_err());
        }
        assert!(rows.next().is_none(), "{file}: fewer packets than tshark gets; damage: {:?}", source.damage());
        files += 1;
    }
    assert_eq!(bad, 0, "frames told apart from tshark's view, each above");
    assert_eq!((files, payloads), (59, 563), "captures and UDP payloads");
}

#[test]
fn fast_and_general_agree_on_every_frame_of_the_data() {
    let Some(data) = common::data() else { return };
    let (mut frames, mut taken) = (0, 0);
    for folder in ["capture", "feeds", "iex"] {
        for path in capture_files(&data.join(folder)) {
            let Ok(mut source) = FileSource::open(path.to_str().expect("UTF-8")) else { continue };
            while let Some(packet) = source.next().expect("readable") {
                frames += 1;
                if let Some(view) = fast(packet.data) {
                    taken += 1;
                    let at = || format!("{} packet {}", path.display(), packet.index);
                    if packet.link == LinkType::Ethernet {
                        assert_eq!(general(packet.data, packet.link), Ok(view), "{}", at());
                    }
                }
            }
        }
    }
    assert!(frames > 100_000 && taken > 90_000, "{frames} frames, {taken} on the fast path");
}

fn header() -> impl Strategy<Value = UdpHeader> {
    (any::<[u8; 4]>(), any::<[u8; 4]>(), any::<(u16, u16, u16)>(), prop_oneof![Just(VLAN_NONE), 0..4096u16]).prop_map(
        |(src, dst, (src_port, dst_port, identification), vlan)| UdpHeader {
            src_mac: [2, 0, 0, 0, 0, 1],
            vlan,
            src: Ipv4Addr::from(src),
            dst: Ipv4Addr::from(dst),
            src_port,
            dst_port,
            identification,
        },
    )
}

proptest! {
    /// A frame that we write is read back, by the fast path where it has no tag, with right checksums, whatever follows
    /// the datagram (padding, frame check sequence, trailer).
    #[test]
    fn a_written_frame_is_read_back(
        header in header(),
        payload in prop::collection::vec(any::<u8>(), 0..200),
        trailer in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut frame = Vec::new();
        header.write_frame(&payload, &mut frame);
        frame.extend_from_slice(&trailer);
        let view = udp(&frame, LinkType::Ethernet).expect("a frame of ours");
        prop_assert_eq!(fast(&frame).is_some(), header.vlan == VLAN_NONE);
        prop_assert_eq!(view.payload, &payload[..]);
        prop_assert_eq!((view.src, view.dst), (IpAddr::V4(header.src), IpAddr::V4(header.dst)));
        prop_assert_eq!((view.src_port, view.dst_port), (header.src_port, header.dst_port));
        prop_assert_eq!(view.vlan, [header.vlan, VLAN_NONE]);
        prop_assert_eq!(&frame[view.payload_offset as usize..][..payload.len()], &payload[..]);
        prop_assert!(udp_checksum_ok(&frame, &view));
        prop_assert!(ipv4_checksum_ok(&frame[view.payload_offset as usize - 28..view.payload_offset as usize - 8]));
    }

    /// The two paths agree on every input that the fast path accepts: whole frames with some bytes of the headers
    /// changed, and cut anywhere.
    #[test]
    fn fast_and_general_agree(
        header in header(),
        payload in prop::collection::vec(any::<u8>(), 0..64),
        changes in prop::collection::vec((0..42usize, any::<u8>()), 0..4),
        keep in 0..120usize,
        link in prop_oneof![
            Just(LinkType::Ethernet), Just(LinkType::Raw), Just(LinkType::Null),
            Just(LinkType::LinuxSll), Just(LinkType::LinuxSll2), Just(LinkType::Other(147)),
        ],
    ) {
        let mut frame = Vec::new();
        header.write_frame(&payload, &mut frame);
        for (at, byte) in changes {
            frame[at] = byte;
        }
        frame.truncate(keep);
        if let Some(view) = fast(&frame) {
            prop_assert_eq!(general(&frame, LinkType::Ethernet), Ok(view));
        }
        if let Ok(view) = udp(&frame, link) {
            let start = view.payload_offset as usize;
            prop_assert_eq!(view.payload, &frame[start..start + view.payload.len()]);
        }
    }
}

/// An untagged frame of ours with four payload bytes.
fn plain_frame() -> Vec<u8> {
    frame_of(b"abcd")
}

/// The plain frame with other bytes at a place.
fn changed(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = plain_frame();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// The plain frame with VLAN tags (type, id) before the IP header.
fn tagged(tags: &[(u16, u16)]) -> Vec<u8> {
    let plain = plain_frame();
    let mut frame = plain[..12].to_vec();
    for (ether_type, id) in tags {
        frame.extend_from_slice(&ether_type.to_be_bytes());
        frame.extend_from_slice(&id.to_be_bytes());
    }
    frame.extend_from_slice(&plain[12..]);
    frame
}

#[test]
fn every_reason_has_its_frame() {
    let cases: &[(&str, Vec<u8>, PacketReason)] = &[
        ("ARP", changed(12, &[0x08, 0x06]), PacketReason::NotIp),
        ("IEEE 802.3 length", changed(12, &[0x00, 0x26]), PacketReason::NotIp),
        ("TCP", changed(23, &[6]), PacketReason::NotUdp),
        ("more fragments", changed(20, &[0x20, 0]), PacketReason::Fragment),
        ("fragment offset", changed(20, &[0, 1]), PacketReason::Fragment),
        ("no bytes", Vec::new(), PacketReason::Truncated),
        ("cut in the Ethernet header", plain_frame()[..13].to_vec(), PacketReason::Truncated),
        ("cut in the IP header", plain_frame()[..33].to_vec(), PacketReason::Truncated),
        ("cut in the payload", plain_frame()[..45].to_vec(), PacketReason::Truncated),
        ("IP total length beyond the frame", changed(16, &[0, 33]), PacketReason::Truncated),
        ("IP total length below its header", changed(16, &[0, 19]), PacketReason::BadLength),
        ("IP total length 0", changed(16, &[0, 0]), PacketReason::BadLength),
        ("IP payload below a UDP header", changed(16, &[0, 27]), PacketReason::BadLength),
        ("UDP length 7", changed(38, &[0, 7]), PacketReason::BadLength),
        ("UDP length 0", changed(38, &[0, 0]), PacketReason::BadLength),
        ("UDP length beyond the IP payload", changed(38, &[0, 13]), PacketReason::BadLength),
        ("IP version 5", changed(14, &[0x55]), PacketReason::BadHeader),
        ("IPv4 header of 16 bytes", changed(14, &[0x44]), PacketReason::BadHeader),
        ("three VLAN tags", tagged(&[(0x88a8, 1), (0x8100, 2), (0x8100, 3)]), PacketReason::VlanTags),
    ];
    for (what, frame, reason) in cases {
        assert_eq!(udp(frame, LinkType::Ethernet).err(), Some(*reason), "{what}");
        assert_eq!(fast(frame), None, "{what}");
    }
    assert_eq!(udp(&plain_frame(), LinkType::Other(147)).err(), Some(PacketReason::LinkType));
    let mut seen: Vec<PacketReason> = cases.iter().map(|(.., reason)| *reason).collect();
    seen.push(PacketReason::LinkType);
    for (number, reason) in PacketReason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, number);
        assert!(seen.contains(&reason), "no frame for {}", reason.label());
    }
}

#[test]
fn every_shape_that_carries_udp_is_read() {
    let ip = plain_frame()[14..].to_vec();
    let behind = |header: &[u8]| [header, &ip[..]].concat();
    let mut sll = [0; 16];
    sll[14..].copy_from_slice(&[8, 0]);
    let mut sll2 = [0; 20];
    sll2[..2].copy_from_slice(&[8, 0]);
    let cases: &[(&str, Vec<u8>, LinkType, [u16; 2])] = &[
        ("one tag", tagged(&[(0x8100, 905)]), LinkType::Ethernet, [905, VLAN_NONE]),
        ("priority bits are no id", tagged(&[(0x8100, 0xe00a)]), LinkType::Ethernet, [10, VLAN_NONE]),
        ("802.1ad", tagged(&[(0x88a8, 100), (0x8100, 7)]), LinkType::Ethernet, [100, 7]),
        ("old QinQ", tagged(&[(0x9100, 100), (0x8100, 7)]), LinkType::Ethernet, [100, 7]),
        ("raw", ip.clone(), LinkType::Raw, [VLAN_NONE; 2]),
        ("BSD loopback, little-endian", behind(&[2, 0, 0, 0]), LinkType::Null, [VLAN_NONE; 2]),
        ("BSD loopback, big-endian", behind(&[0, 0, 0, 2]), LinkType::Null, [VLAN_NONE; 2]),
        ("cooked", behind(&sll), LinkType::LinuxSll, [VLAN_NONE; 2]),
        ("cooked, version 2", behind(&sll2), LinkType::LinuxSll2, [VLAN_NONE; 2]),
    ];
    for (what, frame, link, vlan) in cases {
        let view = udp(frame, *link).unwrap_or_else(|reason| panic!("{what}: {reason:?}"));
        assert_eq!((view.payload, view.vlan, view.dst_port), (&b"abcd"[..], *vlan, 10_378), "{what}");
    }
    assert_eq!(udp(&behind(&[9, 9, 9, 9]), LinkType::Null), Err(PacketReason::NotIp));
}

#[test]
fn ipv4_options_and_ipv6_extensions_are_stepped_over() {
    let udp_bytes = &plain_frame()[34..];
    let mut options = plain_frame()[14..34].to_vec();
    options[0] = 0x46;
    options[3] += 4;
    options.extend_from_slice(&[0x94, 4, 0, 0]);
    options.extend_from_slice(udp_bytes);
    assert_eq!(udp(&options, LinkType::Raw).expect("options").payload, b"abcd");

    let ipv6 = |next: u8, extensions: &[u8]| {
        let length = (extensions.len() + udp_bytes.len()) as u16;
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(&[next, 64]);
        packet.extend_from_slice(&[0xfe; 32]);
        packet.extend_from_slice(extensions);
        packet.extend_from_slice(udp_bytes);
        packet
    };
    let hop_by_hop = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let fragment = |offset_and_more: u16| {
        let [a, b] = offset_and_more.to_be_bytes();
        [17, 0, a, b, 0, 0, 0, 1]
    };
    for (what, packet) in [
        ("none", ipv6(17, &[])),
        ("hop by hop", ipv6(0, &hop_by_hop(17))),
        ("destination options behind hop by hop", ipv6(0, &[hop_by_hop(60), hop_by_hop(17)].concat())),
        ("an atomic fragment", ipv6(44, &fragment(0))),
        ("authentication", ipv6(51, &[17, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1])),
    ] {
        let view = udp(&packet, LinkType::Raw).unwrap_or_else(|reason| panic!("{what}: {reason:?}"));
        assert_eq!((view.payload, view.dst_v4()), (&b"abcd"[..], None), "{what}");
        for keep in 0..packet.len() {
            assert!(udp(&packet[..keep], LinkType::Raw).is_err(), "{what} cut at {keep}");
        }
    }
    assert_eq!(udp(&ipv6(44, &fragment(1)), LinkType::Raw), Err(PacketReason::Fragment));
    assert_eq!(udp(&ipv6(44, &fragment(8)), LinkType::Raw), Err(PacketReason::Fragment));
    assert_eq!(udp(&ipv6(58, &[]), LinkType::Raw), Err(PacketReason::NotUdp));
    let endless: Vec<u8> = (0..16).flat_map(|_| hop_by_hop(60)).collect();
    assert_eq!(udp(&ipv6(0, &endless), LinkType::Raw), Err(PacketReason::BadHeader));
}

#[test]
fn checksums_are_told_and_not_demanded() {
    let Some(data) = common::data() else { return };
    for (file, ip_ok, udp_ok) in
        [("checksums/zeek.ip4-bad-chksum.pcap", false, true), ("checksums/zeek.ip4-udp-bad-chksum.pcap", true, false)]
    {
        let path = data.join("capture").join(file);
        let mut source = FileSource::open(path.to_str().expect("UTF-8")).expect("a capture");
        let (packets, _) = read_all(&mut source);
        let view = udp(&packets[0].data, packets[0].link).expect("a wrong checksum costs nothing");
        let ip_at = view.payload_offset as usize - 28;
        assert_eq!(ipv4_checksum_ok(&packets[0].data[ip_at..ip_at + 20]), ip_ok, "{file}");
        assert_eq!(udp_checksum_ok(&packets[0].data, &view), udp_ok, "{file}");
    }
}
