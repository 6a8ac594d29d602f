//! DEEP and TOPS bodies: every field can be read, and rows are ASCII.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::feed::messages::Message;
use sluice::feed::rows::{RowFormat, RowWriter};

fuzz_target!(|body: &[u8]| {
    let Ok(message) = Message::decode(body) else { return };
    for format in [RowFormat::Csv, RowFormat::Jsonl] {
        let mut rows = Vec::new();
        let mut writer = RowWriter::new(format);
        writer.segment(0, "0x00000000", 0);
        writer.row(1, &message, &mut rows);
        assert!(rows.is_ascii() && rows.ends_with(b"\n"));
    }
});
