//! A client after its upgrade, fed with messages: whatever they say, memory stays bounded, no ledger comes out that its END does
//! not prove, and ledgers come in order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::ledger::assemble::{Assembler, Limits};
use sluice::ledger::query::Range;
use sluice::wire::ledger::{Message, decode};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { chunk_bytes_max: 1 << 16, ledger_bytes_max: 1 << 20 };
    let mut assembler = Assembler::new(Range::TIP, limits).expect("memory");
    let mut rest = bytes;
    let mut last = None;
    // Each message: a length of two bytes, then itself.
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let (message, after) = after.split_at(usize::from(u16::from_be_bytes(*length)).min(after.len()));
        rest = after;
        if let Ok(decoded) = decode(message) {
            let again = match decoded {
                Message::Begin(begin) => begin.encode().to_vec(),
                Message::Chunk(header, payload) => [&header.encode()[..], payload].concat(),
                Message::End(end) => end.encode().to_vec(),
            };
            assert_eq!(again, message);
        }
        match assembler.take(message) {
            Ok(None) => {}
            Ok(Some(ledger)) => {
                assert!(ledger.bytes.len() <= 1 << 20);
                assert!(last.is_none_or(|last: u32| last + 1 == ledger.sequence));
                last = Some(ledger.sequence);
            }
            Err(_) => return,
        }
    }
});
