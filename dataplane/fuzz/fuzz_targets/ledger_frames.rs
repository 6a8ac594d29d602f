//! WebSocket frames: what comes out does not depend on how the bytes are cut, and no message is over the limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::wire::websocket::{Event, FrameError, FrameReader, Sender};

const LIMIT: usize = 1 << 12;

fn read(from: Sender, bytes: &[u8], piece: usize) -> (Vec<String>, Option<FrameError>) {
    let mut reader = FrameReader::new(from, LIMIT);
    let mut events = Vec::new();
    for part in bytes.chunks(piece) {
        reader.feed(part);
        loop {
            match reader.next() {
                Ok(None) => break,
                Ok(Some(event)) => {
                    assert!(!matches!(event, Event::Binary(message) if message.len() > LIMIT));
                    events.push(format!("{event:?}"));
                }
                Err(error) => return (events, Some(error)),
            }
        }
    }
    (events, None)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, rest)) = bytes.split_first() else { return };
    let from = if first & 1 == 0 { Sender::Client } else { Sender::Server };
    let whole = read(from, rest, rest.len().max(1));
    assert_eq!(read(from, rest, usize::from(first >> 1).max(1)), whole);
});
