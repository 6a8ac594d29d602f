//! A ledger's meta of any bytes: the walk to its sequence ends, and more bytes never change what fewer have said.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::ledger::rpc::ledger_sequence;

fuzz_target!(|bytes: &[u8]| {
    let whole = ledger_sequence(bytes);
    for cut in [bytes.len() / 2, bytes.len().saturating_sub(1)] {
        match (ledger_sequence(&bytes[..cut]), &whole) {
            (Ok(Some(early)), Ok(Some(late))) => assert_eq!(early, *late),
            (Ok(Some(_)), _) => panic!("what was found in {cut} bytes is not there in {}", bytes.len()),
            (Err(_), Ok(_)) => panic!("{cut} bytes were refused, {} are not", bytes.len()),
            _ => {}
        }
    }
});
