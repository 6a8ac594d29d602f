//! Frames: two bytes name the link type. The two paths agree, and a payload lies where it is said to lie.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::wire::packet::{LinkType, fast, general, udp, udp_checksum_ok};

fuzz_target!(|data: &[u8]| {
    let Some((link, frame)) = data.split_first_chunk::<2>() else { return };
    let link = LinkType::from_value(u16::from_le_bytes(*link));
    if let Some(view) = fast(frame) {
        assert_eq!(general(frame, LinkType::Ethernet), Ok(view));
    }
    if let Ok(view) = udp(frame, link) {
        let start = view.payload_offset as usize;
        assert_eq!(view.payload, &frame[start..start + view.payload.len()]);
        let _ = udp_checksum_ok(frame, &view);
    }
});
