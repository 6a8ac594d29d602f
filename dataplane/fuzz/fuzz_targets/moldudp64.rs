//! MoldUDP64 packets: a packet that is taken holds what it says, and its header is written as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::wire::moldudp64::{HEADER_BYTES, Header, parse};

fuzz_target!(|payload: &[u8]| {
    let Ok(segment) = parse(payload) else { return };
    assert_eq!(segment.messages().count(), segment.count as usize);
    let header = Header::read(payload).expect("a parsed header");
    assert_eq!(header.encode(), payload[..HEADER_BYTES]);
});
