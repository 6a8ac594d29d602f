//! Relays: servers whose source is another server.

use sluice::ledger::follow::{FollowSettings, Follower};
use sluice::ledger::query::Range;
use sluice::ledger::relay_worker::RelayCounter;
use sluice::ledger::synthetic::{self, Shape};

use crate::common;
use crate::common::ledger_server::LedgerServer;
use crate::common::relays::{Relay, Told, wait};
use crate::ledger::{manifest, metas};

fn range(start: u32, end: Option<u32>) -> Range {
    Range::new(start, end).expect("a range")
}

fn ledger(sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0; 50_000 + sequence as usize];
    synthetic::write(sequence, if sequence.is_multiple_of(2) { Shape::Noise } else { Shape::Compressible }, &mut bytes);
    bytes
}

fn from(start: u32) -> Told {
    Told { start, ..Told::default() }
}

/// Follows from `start` to `end`; every ledger must be byte for byte what `expected` says.
fn follow(url: &str, start: u32, end: u32, expected: impl Fn(u32) -> Vec<u8>) {
    let mut follower = Follower::new(url, range(start, Some(end)), FollowSettings::default()).expect("a URL");
    let mut next = start;
    while let Some(received) = follower.next().expect("verified") {
        assert_eq!(received.ledger.sequence, next);
        assert!(received.ledger.bytes == expected(next), "ledger {next}");
        next += 1;
    }
    assert_eq!(next, end + 1);
}

#[test]
fn real_metas_go_through_two_relays_byte_for_byte() {
    let Some(data) = common::data() else { return };
    let server = LedgerServer::start();
    let Some(first) = Relay::start(&server.url(), &from(1)) else { return };
    let Some(second) = Relay::start(&first.server.url(), &from(1)) else { return };
    // Renumbered, because the files are not one history.
    let mut all: Vec<Vec<u8>> = Vec::new();
    for (path, _) in manifest(&data) {
        all.extend(metas(&path).into_iter().map(|(_, meta)| meta));
    }
    for (index, meta) in all.iter().enumerate() {
        server.publisher().ledger(index as u32 + 1, meta);
    }
    follow(&second.server.url(), 1, all.len() as u32, |sequence| all[sequence as usize - 1].clone());
    server.publisher().finish();
    second.wait_for("Ended");
    assert_eq!(first.counters.get(RelayCounter::Ledgers), all.len() as u64);
    assert_eq!(second.server.publisher().run, server.publisher().run, "the identity passes through");
}

#[test]
fn stamps_codecs_and_borders_pass_through() {
    let server = LedgerServer::start();
    let Some(relay) = Relay::start(&server.url(), &from(3)) else { return };
    wait("connected", || relay.counters.get(RelayCounter::Connected) == 1);
    server.publisher().open(3, &ledger(3));
    // The relay does not wait for the ledger to be whole.
    wait("the first chunks are passed on", || {
        relay.server.publisher().hub.flow().is_some_and(|flow| flow.messages().len() >= 4 && !flow.is_ended())
    });
    server.publisher().close();
    wait("passed on", || relay.server.publisher().hub.bounds() == (3, 3));
    let frames = |server: &LedgerServer| -> Vec<Vec<u8>> {
        let publisher = server.publisher();
        publisher.hub.flow().expect("a flow").messages().iter().map(|message| message.frame().to_vec()).collect()
    };
    let (ours, theirs) = (frames(&server), frames(&relay.server));
    assert!(ours == theirs, "the same frames, stamps included: {} and {}", ours.len(), theirs.len());
}

#[test]
fn connections_that_are_cut_anywhere_are_resumed() {
    let server = LedgerServer::start();
    (1..=12).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    server.publisher().cut_after = Some(90_000);
    let Some(relay) = Relay::start(&server.url(), &from(2)) else { return };
    follow(&relay.server.url(), 2, 12, ledger);
    assert!(relay.counters.get(RelayCounter::Connections) >= 5);
    assert!(relay.server.publisher().said.iter().any(|said| said.starts_with("again")), "a ledger began again");
}
