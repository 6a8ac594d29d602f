//! Several flows of one subscription, by a server that says anything on each: the merge takes every chunk once, in order, and what it
//! lets through is what one flow alone would have carried. Queries and offers are read from any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::ledger::share::{self, Asked};
use sluice::ledger::merge::{Merge, Offer, Verdict};
use sluice::wire::ledger::{Begin, ChunkHeader, Codec, End, Message};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(Some(Asked::Other { share, .. })) = share::parse(text) {
            assert!(share.flow() > 0 && share.flow() < share.flows());
        }
        if let Some(offer) = Offer::parse(text) {
            assert!(offer.max > 0 && !offer.id.is_empty() && !offer.id.contains(['&', ' ']));
        }
    }
    let Some((&first, messages)) = bytes.split_first() else { return };
    let mut merge = Merge::new(1 + usize::from(first % 4));
    let (mut open, mut next) = (None, 0);
    // Each message: its kind, its ledger, its number. The flow is the one that is due.
    for message in messages.chunks_exact(3) {
        let (sequence, number) = (u32::from(message[1] % 4), u32::from(message[2] % 16));
        let message = match message[0] % 3 {
            0 => Message::Begin(Begin { sequence, emit_start_ns: 0 }),
            1 => Message::Chunk(ChunkHeader { sequence, index: number, codec: Codec::Raw }, &[]),
            _ => Message::End(End { sequence, chunks: number, bytes: 0, emit_end_ns: 0, xxh64: 0 }),
        };
        let due = merge.due();
        assert!(due < merge.flows());
        match merge.judge(due, &message) {
            Err(_) => return,
            Ok(Verdict::Drop | Verdict::Again) => {}
            Ok(Verdict::Take) => match message {
                Message::Begin(begin) => {
                    assert_eq!(open, None, "a ledger is taken to its end");
                    (open, next) = (Some(begin.sequence), 0);
                }
                Message::Chunk(header, _) => {
                    assert_eq!((open, next), (Some(header.sequence), header.index));
                    next += 1;
                }
                Message::End(end) => {
                    assert_eq!((open, next), (Some(end.sequence), end.chunks));
                    open = None;
                }
            },
        }
    }
});
