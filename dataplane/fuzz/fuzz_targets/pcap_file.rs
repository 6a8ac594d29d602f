//! Capture files of any kind and packing: the reader ends, and lists its damage in order within its bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::capture::source::file::{DAMAGE_MAX, FileSource};

fuzz_target!(|data: &[u8]| {
    let reader = Box::new(std::io::Cursor::new(data.to_vec()));
    let Ok(mut source) = FileSource::from_reader("fuzz", reader, None) else { return };
    while let Ok(Some(packet)) = source.next() {
        assert!(packet.stamped || packet.capture_ns == 0);
    }
    assert!(source.damage().len() <= DAMAGE_MAX);
    assert!(source.damage().is_sorted_by_key(|damage| damage.offset));
});
