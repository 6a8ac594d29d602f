//! Relays: servers whose source is another server.

use sluice::ledger::follow::{FollowSettings, Follower};
use sluice::ledger::query::Range;
use sluice::ledger::stats::RelayCounter;
use sluice::ledger::synthetic::{self, Shape};
use sluice::wire::ledger::End;

use crate::common;
use crate::common::ledger_server::LedgerServer;
use crate::common::relays::{Relay, Told, wait};
use crate::ledger::{manifest, metas};

/// A run that is not the one of a server that was started.
const ANOTHER: &str = "01234567-89ab-cdef-0123-456789abcdef; net=0707070707070707";

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
    server.publisher().run = ANOTHER.into();
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
fn an_upstream_that_starts_again_is_resumed() {
    let mut server = LedgerServer::start();
    let address = server.address;
    server.publisher().ledger(7, &ledger(7));
    let Some(relay) = Relay::start(&server.url(), &from(7)) else { return };
    wait("passed on", || relay.server.publisher().hub.bounds() == (7, 7));
    server.publisher().open(8, &ledger(8));
    wait("a part is passed on", || relay.server.publisher().hub.open_sequence() == Some(8));
    let run = server.publisher().run.clone();
    drop(server);
    server = LedgerServer::start_at(address);
    server.publisher().run = run;
    (7..=9).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    follow(&relay.server.url(), 7, 9, ledger);
    assert!(relay.counters.get(RelayCounter::Disconnects) >= 1);
    assert_eq!(relay.counters.get(RelayCounter::Runs), 0);
}

#[test]
fn another_run_and_a_gap_are_never_joined_with_what_is_kept() {
    let mut server = LedgerServer::start();
    let address = server.address;
    server.publisher().ledger(7, &ledger(7));
    let Some(relay) = Relay::start(&server.url(), &from(7)) else { return };
    wait("passed on", || relay.server.publisher().hub.bounds() == (7, 7));
    server.publisher().open(8, &ledger(8));
    wait("a part is passed on", || relay.server.publisher().hub.open_sequence() == Some(8));
    drop(server);
    // Another history, which has ledgers of the same sequences.
    server = LedgerServer::start_at(address);
    server.publisher().run = ANOTHER.into();
    (7..=8).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence + 100)));
    relay.wait_for(&format!("run {ANOTHER}"));
    follow(&relay.server.url(), 7, 8, |sequence| ledger(sequence + 100));
    assert_eq!(relay.counters.get(RelayCounter::Runs), 1);
    drop(server);
    // The same run, and the relay was away for too long.
    server = LedgerServer::start_at(address);
    server.publisher().run = ANOTHER.into();
    (20..=21).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    follow(&relay.server.url(), 20, 21, ledger);
    assert_eq!(relay.server.publisher().hub.bounds(), (20, 21));
    assert_eq!(relay.counters.get(RelayCounter::Gaps), 1);
}

#[test]
fn what_a_relay_keeps_is_gone_on_with_or_let_go() {
    let server = LedgerServer::start();
    (1..=5).for_each(|sequence| server.publisher().ledger(sequence, &ledger(sequence)));
    // The relay's own run is another one than the upstream's, and ledgers of it are kept.
    server.publisher().run = ANOTHER.into();
    let kept = Told { latest: Some(3), start: 2, ..Told::default() };
    let Some(relay) = Relay::start(&server.url(), &kept) else { return };
    relay.wait_for(&format!("run {ANOTHER}"));
    follow(&relay.server.url(), 2, 5, ledger);
    // A start that the upstream does not have, asked for by the operator, is told.
    server.publisher().hub.prune(4);
    let Some(relay) = Relay::start(&server.url(), &from(2)) else { return };
    relay.wait_for("too far behind: ledger 2 was requested, the server retains 4 to 5");
    assert!(relay.server.publisher().said.iter().any(|said| said.starts_with("Failed")));
    // Nothing is kept, and the ledger in flight or the next one is asked for.
    let Some(relay) = Relay::start(&server.url(), &from(0)) else { return };
    wait("connected", || relay.counters.get(RelayCounter::Connected) == 1);
    server.publisher().ledger(6, &ledger(6));
    wait("passed on", || relay.server.publisher().hub.bounds() == (6, 6));
}

#[test]
fn a_ledger_that_does_not_verify_ends_the_relay_and_is_not_kept() {
    let server = LedgerServer::start();
    let Some(relay) = Relay::start(&server.url(), &from(1)) else { return };
    wait("connected", || relay.counters.get(RelayCounter::Connected) == 1);
    server.publisher().ledger(1, &ledger(1));
    wait("passed on", || relay.server.publisher().hub.bounds() == (1, 1));
    let url = relay.server.url();
    let subscriber = std::thread::spawn(move || {
        let settings = FollowSettings { retry_for: Some(std::time::Duration::ZERO), ..FollowSettings::default() };
        let mut follower = Follower::new(&url, range(1, None), settings).expect("a URL");
        let mut got = Vec::new();
        loop {
            match follower.next() {
                Ok(Some(received)) => got.push(received.ledger.sequence),
                other => return (got, other.map(|_| ()).map_err(|error| error.to_string())),
            }
        }
    });
    server.publisher().open(2, &ledger(2));
    let chunks = server.publisher().hub.flow().expect("a flow").messages().len() - 1;
    let end = End { sequence: 2, chunks: chunks as u32, bytes: 3 * 16_384, emit_end_ns: 1, xxh64: 5 };
    server.publisher().hub.end(&end);
    relay.wait_for("Failed");
    let said = relay.server.publisher().said.clone();
    assert!(said.iter().any(|said| said.contains("ledger 2 has checksum")), "{said:?}");
    assert_eq!(relay.server.publisher().hub.bounds(), (1, 1), "nothing of it is kept");
    let (got, ended) = subscriber.join().expect("ends");
    assert_eq!(got, [1]);
    assert!(ended.as_ref().is_err_and(|error| error.contains("1011")), "{ended:?}");
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
