//! The server of ledgers over real sockets: a fan-out worker on a core, fed by hand.

use std::time::Duration;

use sluice::ledger::chunker::{Chunker, Cut};
use sluice::ledger::compress::Packer;
use sluice::ledger::event::Item;
use sluice::ledger::follow::{FollowSettings, Follower};
use sluice::ledger::hub::Outcome;
use sluice::ledger::query::Range;
use sluice::ledger::stats::FanoutCounter;

use crate::common::fanout::{Fanout, Got, Raw, ledger_bytes, settings};

fn range(start: u32, end: u32) -> Range {
    Range::new(start, (end != 0).then_some(end)).expect("a range")
}

#[test]
fn a_subscriber_gets_each_message_as_it_appears() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let mut raw = Raw::subscribe(server.address, "start=5");
    assert!(raw.head.contains("Sluice-Run: 00112233-"), "{}", raw.head);
    let bytes = ledger_bytes(5, 100_000);
    server.begin(5);
    assert_eq!(raw.next(), Got::Begin(5, true));
    server.chunks(&bytes);
    for index in 0..6 {
        assert_eq!(raw.next(), Got::Chunk(5, index));
    }
    server.end();
    assert_eq!((raw.next(), raw.next()), (Got::Chunk(5, 6), Got::End(5, true)));
    assert!(raw.payload == bytes);
    server.ledger(6, &ledger_bytes(6, 0));
    assert_eq!((raw.next(), raw.next()), (Got::Begin(6, true), Got::End(6, true)));
}
