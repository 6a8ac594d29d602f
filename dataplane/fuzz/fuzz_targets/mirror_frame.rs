//! Frames of the mirror protocol: every kind is read from any bytes, and what was read is written as it came.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::wire::mirror::{
    Accept, Announce, EndReason, Ext, Gap, Greeting, HEADER_BYTES, Header, Hello, Nak, Proof, Records, file_bytes, kind,
};
use sluice::wire::ring::Geometry;

/// The bytes of a frame that carry meaning come back; those that no field has (padding) may differ.
fn same(frame: &[u8], written: &[u8], meaningful: &[core::ops::Range<usize>]) {
    for range in meaningful {
        assert_eq!(frame[range.clone()], written[range.clone()]);
    }
}

fuzz_target!(|input: &[u8]| {
    let Ok(header) = Header::decode(input) else { return };
    assert_eq!(header.encode(), input[..HEADER_BYTES]);
    let payload = &input[HEADER_BYTES..];
    if let Ok(hello) = Hello::decode(&header, payload) {
        same(input, &hello.encode(), &[0..1, 4..29]);
    }
    if let Ok(greeting) = Greeting::decode(&header, payload) {
        same(input, &greeting.encode(), &[0..2, 4..64]);
        let bytes = file_bytes(&greeting.geometry).expect("it was checked");
        assert!(bytes >= greeting.geometry.capacity * u64::from(greeting.geometry.element_size));
        assert!(greeting.first > 0 && greeting.first < 1 << 63);
    }
    if let Ok(announce) = Announce::decode(&header, payload) {
        same(input, &announce.encode(), &[0..1, 4..8, 16..30]);
    }
    if let Ok(nak) = Nak::decode(&header, payload) {
        same(input, &nak.encode(), &[0..1, 4..24]);
    }
    if header.kind == kind::GAP
        && let Ok(gap) = Gap::decode(&header, payload)
    {
        let mut written = Vec::new();
        gap.encode_into(&mut written);
        same(input, &written, &[0..1, 4..written.len()]);
    }
    if let Ok(ext) = Ext::decode(&header, payload) {
        same(input, &ext.encode(), &[0..1, 4..8, 16..60]);
    }
    if let Ok(proof) = Proof::decode(&header, payload) {
        same(input, &proof.encode(), &[0..1, 4..8, 16..64]);
    }
    if let Ok(accept) = Accept::decode(&header, payload) {
        same(input, &accept.encode(), &[0..1, 4..8, 16..80]);
    }
    let _ = EndReason::decode(&header);
    for (element_size, arena_offset) in [(8, 0), (16, 0), (72, 0), (24, 4096), (64, 4096)] {
        let geometry = Geometry { capacity: 16, element_size, arena_offset, ..Geometry::default() };
        let header = Header { kind: kind::DATA, ..header };
        let Ok(records) = Records::new(&geometry, &header, payload) else { continue };
        let mut bytes = 0;
        let mut count = 0;
        for (slot, blob) in records {
            assert_eq!(slot.len(), element_size as usize - 8);
            bytes += slot.len() + blob.len();
            count += 1;
        }
        assert_eq!((bytes, count), (payload.len(), header.count));
    }
});
