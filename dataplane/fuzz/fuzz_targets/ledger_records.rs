//! Meta streams: what comes out does not depend on how the bytes are cut, and written again it is the same stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::ledger::rpc::{Part, RecordError, RecordReader, mark};

fn read(stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<RecordError>) {
    let mut reader = RecordReader::default();
    let mut records: Vec<Vec<u8>> = Vec::new();
    let mut whole = 0;
    for mut input in stream.chunks(piece) {
        loop {
            match reader.next(&mut input) {
                Ok(Part::Begin { .. }) => records.push(Vec::new()),
                Ok(Part::Body(bytes)) => records.last_mut().expect("begun").extend_from_slice(bytes),
                Ok(Part::End) => whole = records.len(),
                Ok(Part::More) => break,
                Err(error) => {
                    records.truncate(whole);
                    return (records, Some(error));
                }
            }
        }
    }
    records.truncate(whole);
    (records, reader.finish().err())
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, stream)) = bytes.split_first() else { return };
    let whole = read(stream, stream.len().max(1));
    let again: Vec<u8> = whole.0.iter().flat_map(|record| [&mark(record.len())[..], record].concat()).collect();
    assert!(stream.starts_with(&again));
    assert_eq!(read(stream, usize::from(first).max(1)), whole);
});
