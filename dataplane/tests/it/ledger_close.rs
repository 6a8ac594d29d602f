//! Every close of the ledger stream, over sockets: its code, its reason, what came before it, and what our client makes of it.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use sluice::ledger::client::{ClientError, Truncated};
use sluice::ledger::event::Item;
use sluice::ledger::fanout_worker::FanoutSettings;
use sluice::ledger::follow::{FollowError, FollowSettings, Follower};
use sluice::ledger::hub::Outcome;
use sluice::ledger::query::Range;
use sluice::ledger::stats::FanoutCounter;
use sluice::wire::ledger::{Begin, Message, decode};

use crate::common::fanout::{Fanout, ledger_bytes, settings};
use crate::common::ledger_wire::{Frame, Wire};

/// Bytes of the ledgers here.
const BYTES: usize = 9_000;

/// A server that keeps ledgers; five at most where `few`.
fn kept(first: u32, last: u32, few: bool) -> Option<Fanout> {
    let backlog_bytes = if few { 5 * BYTES as u64 } else { 1 << 30 };
    let mut server = Fanout::start(FanoutSettings { backlog_bytes, ..settings() })?;
    (first..=last).for_each(|sequence| server.ledger(sequence, &ledger_bytes(sequence, BYTES)));
    server.until_is(FanoutCounter::Latest, u64::from(last));
    Some(server)
}

/// The ledgers that END came of.
fn ended(frames: &[Frame]) -> Vec<u32> {
    let sequence = |frame: &Frame| match decode(&frame.payload).expect("a message") {
        Message::End(end) => Some(end.sequence),
        _ => None,
    };
    frames.iter().filter_map(sequence).collect()
}

/// A close's code and reason; `None`: the connection ended without one.
type Close = Option<(u16, String)>;

/// What comes for a target: the ledgers, the close, and what our client says of the same stream.
fn both(server: &Fanout, start: u32, end: Option<u32>) -> (Vec<u32>, Close, Result<(), ClientError>) {
    let mut target = format!("/stream?start={start}");
    if let Some(end) = end {
        target.push_str(&format!("&end={end}"));
    }
    let (mut wire, head) = Wire::ask(server.address, &target);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let (frames, close) = wire.frames();
    (ended(&frames), close, followed(&server.url(), start, end))
}

/// Follows without a second connection.
fn followed(url: &str, start: u32, end: Option<u32>) -> Result<(), ClientError> {
    let settings = FollowSettings { retry_for: Some(Duration::ZERO), ..FollowSettings::default() };
    let mut follower = Follower::new(url, Range::new(start, end).expect("a range"), settings).expect("a URL");
    loop {
        match follower.next() {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(FollowError::Stream { source, .. }) => return Err(source),
            Err(other) => panic!("{other}"),
        }
    }
}

fn close(code: u16, reason: &str) -> Close {
    Some((code, reason.into()))
}

#[test]
fn a_range_that_was_served_ends_with_1000_and_no_reason() {
    let Some(server) = kept(3, 9, false) else { return };
    assert_eq!(both(&server, 4, Some(6)), (vec![4, 5, 6], close(1000, ""), Ok(())));
    // A tip that is past the end: at once, without a ledger.
    assert_eq!(both(&server, 0, Some(2)), (vec![], close(1000, ""), Ok(())));
}

#[test]
fn a_source_that_ends_is_told_by_what_was_asked_for() {
    let Some(mut server) = kept(3, 6, false) else { return };
    server.finish(Outcome::Ended);
    server.until(FanoutCounter::Ledgers, 4);
    assert_eq!(both(&server, 4, None), (vec![4, 5, 6], close(1000, "source ended"), Ok(())));
    assert_eq!(both(&server, 4, Some(6)), (vec![4, 5, 6], close(1000, ""), Ok(())));
    let short = ClientError::Truncated(Truncated::Short { last: 6, end: 8 });
    assert_eq!(both(&server, 5, Some(8)), (vec![5, 6], close(1001, "source ended before range complete"), Err(short)));
    let nothing = ClientError::Truncated(Truncated::Nothing { start: 9, end: 9 });
    assert_eq!(both(&server, 9, Some(9)), (vec![], close(1001, "source ended before range complete"), Err(nothing)));
}

#[test]
fn a_source_that_fails_ends_with_1011() {
    let Some(mut server) = kept(3, 4, false) else { return };
    server.begin(5);
    server.chunks(&[1; 40_000]);
    server.finish(Outcome::Failed);
    let (ledgers, told, followed) = both(&server, 4, None);
    assert_eq!((ledgers, told), (vec![4], close(1011, "source failed")));
    assert!(matches!(followed, Err(ClientError::Closed { code: Some(1011), .. })), "{followed:?}");
}

#[test]
fn who_is_older_than_retention_gets_4001_and_the_bounds() {
    let Some(server) = kept(20, 29, true) else { return };
    let oldest = server.view.get(FanoutCounter::Oldest) as u32;
    assert!((25..=29).contains(&oldest), "{oldest}");
    let (requested, reason) = (oldest - 1, format!("too far behind: oldest={oldest} latest=29"));
    let behind = ClientError::TooFarBehind { requested, bounds: Some((oldest, 29)) };
    assert_eq!(both(&server, requested, None), (vec![], close(4001, &reason), Err(behind)));
}

#[test]
fn a_server_that_drains_gives_the_ledger_in_flight_and_ends_with_1012() {
    let Some(mut server) = kept(3, 4, false) else { return };
    server.begin(5);
    server.chunks(&[5; 40_000]);
    let (mut wire, _) = Wire::ask(server.address, "/stream?start=5");
    let begin = wire.frame().expect("BEGIN");
    assert!(matches!(decode(&begin.payload), Ok(Message::Begin(Begin { sequence: 5, .. }))));
    // Who is between two ledgers goes at once.
    let (mut waits, _) = Wire::ask(server.address, "/stream?start=6");
    server.until_is(FanoutCounter::Subscribers, 2);
    let stopped = server.stop_beside(Duration::from_secs(30));
    assert_eq!(waits.frames(), (vec![], close(1012, "server draining")));
    server.end();
    let (frames, told) = wire.frames();
    assert_eq!((ended(&frames), told), (vec![5], close(1012, "server draining")));
    drop((wire, waits));
    assert_eq!(stopped.join().expect("it stops"), Ok(()));
}

#[test]
fn a_reset_of_retention_ends_with_1012() {
    let Some(mut server) = kept(3, 4, false) else { return };
    let (mut wire, _) = Wire::ask(server.address, "/stream?start=3");
    while ended(&[wire.frame().expect("ledger 4 comes")]) != [4] {}
    server.ledger(100, b"another");
    assert_eq!(wire.frames(), (vec![], close(1012, "retention reset")));
}

#[test]
fn ledgers_that_are_missing_end_what_is_kept_and_the_run_keeps_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut server) = Fanout::start_keeping(settings(), directory.path(), 100) else { return };
    let name = |head: &str| head.lines().find_map(|line| line.strip_prefix("Sluice-Run: ")).expect("a run").to_string();
    (3..=4).for_each(|sequence| server.ledger(sequence, &ledger_bytes(sequence, BYTES)));
    let (mut wire, head) = Wire::ask(server.address, "/stream?start=5");
    let run = name(&head);
    // What a relay says whose upstream does not have the next ledger any more.
    server.push(Item::Run(run.clone()));
    assert_eq!(wire.frames(), (vec![], close(1012, "retention reset")));
    server.ledger(9, &ledger_bytes(9, BYTES));
    server.until_is(FanoutCounter::Oldest, 9);
    let (mut wire, head) = Wire::ask(server.address, "/stream?start=5");
    assert_eq!(name(&head), run);
    assert_eq!(wire.frames(), (vec![], close(4001, "too far behind: oldest=9 latest=9")));
}

#[test]
fn a_subscriber_that_speaks_is_cut_off_without_a_close() {
    let Some(server) = kept(3, 3, false) else { return };
    for (first, payload) in [(0x82, &b"hello"[..]), (0x81, b"text"), (0x82, &[0; 1025]), (0xc2, b"rsv")] {
        let (mut wire, _) = Wire::ask(server.address, "/stream?start=4");
        wire.say(first, payload);
        assert_eq!(wire.frames(), (vec![], None), "{first:x}");
    }
}

#[test]
fn a_subscribers_close_is_echoed_with_its_code() {
    let Some(server) = kept(3, 3, false) else { return };
    for code in [1000, 1001, 3000, 4999] {
        let (mut wire, _) = Wire::ask(server.address, "/stream?start=4");
        wire.say(0x88, &[&u16::to_be_bytes(code)[..], b"consumer done"].concat());
        assert_eq!(wire.frames(), (vec![], close(code, "")));
        assert!(wire.rest().is_empty());
    }
}

#[test]
fn our_client_closes_with_the_peers_own_reasons() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("bound"));
    // A server that goes on although the range is complete; one whose subscriber has had enough; one that closes itself.
    let server = std::thread::spawn(move || {
        let empty = |sequence: u32| {
            let end = sluice::wire::ledger::End {
                sequence,
                chunks: 0,
                bytes: 0,
                emit_end_ns: 0,
                xxh64: xxhash_rust::xxh64::xxh64(b"", 0),
            };
            let begin = Begin { sequence, emit_start_ns: 0 };
            [&[0x82, 14][..], &begin.encode(), &[0x82, 34], &end.encode()].concat()
        };
        let mut closes = Vec::new();
        for own in [None, Some([0x88, 0x02, 0x03, 0xe9])] {
            let (mut wire, _) = Wire::accept(&listener);
            wire.stream.write_all(&empty(7)).expect("sent");
            match own {
                None => wire.stream.write_all(&empty(8)).expect("sent"),
                Some(own) => wire.stream.write_all(&own).expect("sent"),
            }
            closes.push(wire.heard().expect("a close"));
        }
        closes
    });
    assert_eq!(followed(&url, 7, Some(7)), Ok(()));
    assert_eq!(followed(&url, 7, None), Ok(()), "1001 without a range's end");
    let closes = server.join().expect("the server ends");
    assert_eq!(closes[0].payload, [&1000_u16.to_be_bytes()[..], b"range complete"].concat());
    assert_eq!(closes[1].payload, 1001_u16.to_be_bytes(), "the server's own code comes back");
}

#[test]
fn a_consumer_that_has_had_enough_says_so() {
    let mut client = sluice::ledger::client::Client::new(Range::TIP, Default::default()).expect("zstd");
    let url = sluice::ledger::url::Url::parse("ws://h").expect("a URL");
    client.connect(&url, None, [7; 24]);
    let key = sluice::wire::http::base64(&[7; 16]);
    let accept = sluice::wire::http::accept_of(&key);
    client.sent(client.output().len());
    client.feed(&sluice::wire::http::upgrade_response(&accept, &[]));
    assert!(client.poll().is_ok() && client.is_streaming());
    client.stop();
    let frame = client.output().to_vec();
    let mask: [u8; 4] = frame[2..6].try_into().expect("a mask");
    let said: Vec<u8> = frame[6..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
    assert_eq!((frame[0], said), (0x88, [&1000_u16.to_be_bytes()[..], b"consumer done"].concat()));
}
