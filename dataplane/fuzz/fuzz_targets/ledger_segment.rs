//! Retention segments: any bytes are opened without a panic, and what is taken for whole lies inside the file and holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::ledger::retention::{Depth, Run, SEGMENT_HEADER_BYTES, SegmentHeader, open, read_record};

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    // Half of the inputs get a good header, so that the records behind it are reached.
    let run = Run { id: [1; 16], network: [0; 8], epoch: 1, start: 1, source: String::new() };
    let header = if kind & 1 == 0 { SegmentHeader { number: 1, run }.encode() } else { Vec::new() };
    let file = [&header[..], bytes].concat();
    for depth in [Depth::Opening, Depth::Full] {
        let Ok(segment) = open(&file[..], depth) else { continue };
        assert!(segment.end >= SEGMENT_HEADER_BYTES && segment.end <= file.len() as u64);
        if depth == Depth::Full {
            for record in &segment.records {
                let again = read_record(&file[..], segment.header.number, record.stored.offset).expect("in memory");
                assert_eq!(again.expect("whole").0, *record);
            }
        }
    }
});
