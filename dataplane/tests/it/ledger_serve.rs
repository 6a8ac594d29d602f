//! The server of ledgers over real sockets: a fan-out worker on a core, fed by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use sluice::ledger::chunker::{Chunker, Cut};
use sluice::ledger::compress::Packer;
use sluice::ledger::event::Item;
use sluice::ledger::follow::{FollowSettings, Follower};
use sluice::ledger::hub::Outcome;
use sluice::ledger::query::Range;
use sluice::ledger::stats::FanoutCounter;
use sluice::sys::clock;
use sluice::wire::ledger::Begin;

use crate::common::fanout::{Extra, Fanout, Got, RUN, Raw, ledger_bytes, request, settings};
use crate::common::relays::wait;

const MILLI: i64 = 1_000_000;

fn range(start: u32, end: u32) -> Range {
    Range::new(start, (end != 0).then_some(end)).expect("a range")
}

/// A follower that does not come back.
fn follower(url: &str, start: u32, end: u32) -> Follower {
    let settings = FollowSettings { retry_for: Some(Duration::ZERO), ..FollowSettings::default() };
    Follower::new(url, range(start, end), settings).expect("a URL")
}

/// (sequence, live, discarded partials) of a range, whose ledgers are compared.
fn follow(url: &str, start: u32, end: u32, bytes: impl Fn(u32) -> Vec<u8>) -> Vec<(u32, bool, u32)> {
    let mut follower = follower(url, start, end);
    let mut got = Vec::new();
    while let Some(received) = follower.next().expect("a stream") {
        let ledger = received.ledger;
        assert!(ledger.bytes == bytes(ledger.sequence), "ledger {}", ledger.sequence);
        got.push((ledger.sequence, ledger.is_live(), ledger.discarded_partials));
    }
    got
}

fn is_end(sequence: u32) -> impl Fn(&Got) -> bool {
    move |got| matches!(got, Got::End(of, _) if *of == sequence)
}

fn is_close(got: &Got) -> bool {
    matches!(got, Got::Close(..))
}

fn close(code: u16, reason: &str) -> Got {
    Got::Close(Some(code), reason.into())
}

/// Sends a request and reads the whole answer.
fn ask(server: &Fanout, request: &[u8]) -> String {
    Raw::ask(server.address, request).rest()
}

#[test]
fn a_subscriber_gets_each_message_as_it_appears() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let mut raw = Raw::subscribe(server.address, "start=5");
    assert!(raw.head.contains(&format!("Sluice-Run: {RUN}\r\n")), "{}", raw.head);
    assert!(!raw.head.contains("Sluice-Flows"), "{}", raw.head);
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
    server.ledger(6, &[]);
    assert_eq!((raw.next(), raw.next()), (Got::Begin(6, true), Got::End(6, true)));
    let health = ask(&server, b"GET /healthz HTTP/1.1\r\n\r\n");
    let body = format!(
        "{{\"oldest\":5,\"latest\":6,\"subscribers\":1,\"live_abandons\":0,\"raw_fallbacks\":0,\"run\":\"{RUN}\""
    );
    assert!(health.starts_with("HTTP/1.1 200 ") && health.contains(&body), "{health}");
}

#[test]
fn who_waits_for_a_ledger_gets_it_live_however_fast_it_comes() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let mut raw = Raw::subscribe(server.address, "start=1");
    server.until_is(FanoutCounter::Subscribers, 1);
    for sequence in 1..=20 {
        // All of it may be in the link before the worker looks.
        server.ledger(sequence, &ledger_bytes(sequence, 20_000));
        let got = raw.until(is_end(sequence));
        let expected = vec![
            Got::Begin(sequence, true),
            Got::Chunk(sequence, 0),
            Got::Chunk(sequence, 1),
            Got::End(sequence, true),
        ];
        assert_eq!(got, expected);
    }
}

#[test]
fn many_subscribers_get_the_same_bytes_and_an_encoder_is_waited_for() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let url = server.url();
    let subscribers: Vec<_> = (0..24)
        .map(|_| {
            let url = url.clone();
            std::thread::spawn(move || {
                follow(&url, 1, 6, |sequence| ledger_bytes(sequence, 60_000 + sequence as usize))
            })
        })
        .collect();
    server.until_is(FanoutCounter::Subscribers, 24);
    let mut packer = Packer::new(1).expect("zstd");
    for sequence in 1..=6 {
        let bytes = ledger_bytes(sequence, 60_000 + sequence as usize);
        let mut chunker = Chunker::new(Cut::new(16 << 10, None).expect("a cut"));
        chunker.begin(sequence, None).expect("begins");
        server.push(Item::Begin(Begin { sequence, emit_start_ns: clock::utc_ns() }));
        let mut input = &bytes[..];
        let mut odd = false;
        while !input.is_empty() {
            let Some(chunk) = chunker.push(&mut input).expect("fits") else { continue };
            odd = !odd;
            if odd {
                // The order's word comes first, the message some time after it.
                server.push(Item::Packed(0));
                server.push_packed(packer.pack(chunk, chunker.spare()));
            } else {
                server.push(Item::Fallback(chunk.into_message()));
            }
        }
        let (last, end) = chunker.finish(clock::utc_ns()).expect("whole");
        server.push(Item::Message(last.expect("a last chunk").into_message()));
        server.push(Item::End(end));
    }
    for subscriber in subscribers {
        let got = subscriber.join().expect("the follower is well");
        assert_eq!(got.iter().map(|got| got.0).collect::<Vec<_>>(), (1..=6).collect::<Vec<_>>());
        assert!(got[0].1, "who waited has the first one live");
    }
    server.until(FanoutCounter::RawFallbacks, 6);
    server.until_is(FanoutCounter::Ledgers, 6);
}

#[test]
fn a_replay_from_disk_goes_on_live_and_over_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes = |sequence: u32| ledger_bytes(sequence, 300_000 + sequence as usize);
    let Some(mut server) = Fanout::start_keeping(settings(), directory.path(), 1_000) else { return };
    (1..=30).for_each(|sequence| server.ledger(sequence, &bytes(sequence)));
    server.until(FanoutCounter::Written, 30);
    server.until_is(FanoutCounter::MemoryBytes, 0);
    let run = server.view.run();
    let url = server.url();
    let replays: Vec<_> = (0..8)
        .map(|at| {
            let url = url.clone();
            std::thread::spawn(move || follow(&url, 1 + at, 32, bytes))
        })
        .collect();
    server.until_is(FanoutCounter::Subscribers, 8);
    // The last two are live for those who are done with the rest.
    server.ledger(31, &bytes(31));
    server.ledger(32, &bytes(32));
    for (at, replay) in replays.into_iter().enumerate() {
        let got = replay.join().expect("the follower is well");
        assert_eq!(got.iter().map(|got| got.0).collect::<Vec<_>>(), (1 + at as u32..=32).collect::<Vec<_>>());
        assert!(got[..10].iter().all(|got| !got.1), "a replay has no stamps");
    }
    server.until(FanoutCounter::ReplayReads, 1);
    server.stop(Duration::from_secs(20)).expect("drains");

    let mut server = Fanout::start_keeping(settings(), directory.path(), 1_000).expect("as before");
    assert_eq!(server.view.run(), run, "the same source goes on with its run");
    assert!(run.ends_with("; net=0707070707070707"), "{run}");
    let url = server.url();
    let replay = std::thread::spawn(move || follow(&url, 3, 33, bytes));
    server.until_is(FanoutCounter::Subscribers, 1);
    server.ledger(33, &bytes(33));
    assert_eq!(replay.join().expect("the follower is well").len(), 31);
}

#[test]
fn what_has_left_retention_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut server) = Fanout::start_keeping(settings(), directory.path(), 5) else { return };
    for sequence in 1..=20 {
        server.ledger(sequence, &ledger_bytes(sequence, 20_000));
        server.until(FanoutCounter::Written, u64::from(sequence));
    }
    server.until_is(FanoutCounter::Oldest, 16);
    let mut raw = Raw::subscribe(server.address, "start=1");
    assert_eq!(raw.next(), close(4001, "too far behind: oldest=16 latest=20"));
    let got = Raw::subscribe(server.address, "start=16&end=20").until(is_close);
    assert_eq!(got.last(), Some(&close(1000, "")));
    assert_eq!(got.iter().filter(|got| matches!(got, Got::End(..))).count(), 5);
}

#[test]
fn a_stalled_subscriber_catches_up_and_hurts_nobody() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    server.chunk_bytes = 256 << 10;
    let bytes = |sequence: u32| ledger_bytes(sequence, if sequence == 1 { 1_000 } else { 8 << 20 });
    let url = server.url();
    let other = std::thread::spawn({
        let url = url.clone();
        move || follow(&url, 1, 8, bytes)
    });
    let mut stalled = follower(&url, 1, 8);
    let first = std::thread::spawn(move || {
        let sequence = stalled.next().expect("a stream").map(|received| received.ledger.sequence);
        assert_eq!(sequence, Some(1));
        stalled
    });
    server.until_is(FanoutCounter::Subscribers, 2);
    server.ledger(1, &bytes(1));
    let mut stalled = first.join().expect("the follower is well");
    (2..=8).for_each(|sequence| server.ledger(sequence, &bytes(sequence)));
    assert_eq!(other.join().expect("the follower is well").len(), 8, "while one reads nothing, the other has all");
    let (mut next, mut discarded) = (2, 0);
    while let Some(received) = stalled.next().expect("a stream") {
        assert!(received.ledger.sequence == next && received.ledger.bytes == bytes(next), "{next}");
        discarded += received.ledger.discarded_partials;
        next += 1;
    }
    assert_eq!((next, discarded), (9, 1), "the delivery that was given up came again, whole");
    server.until(FanoutCounter::LiveAbandons, 1);
}

#[test]
fn the_memory_for_what_is_not_written_is_bounded() {
    let Some(mut server) = Fanout::start(sluice_settings(|settings| settings.backlog_bytes = 100_000)) else { return };
    (1..=10).for_each(|sequence| server.ledger(sequence, &ledger_bytes(sequence, 40_000)));
    server.until_is(FanoutCounter::Oldest, 9);
    server.until_is(FanoutCounter::Latest, 10);
    server.until_is(FanoutCounter::UnwrittenDropped, 8);
    assert_eq!(Raw::subscribe(server.address, "start=8").next(), close(4001, "too far behind: oldest=9 latest=10"));
}

fn sluice_settings(
    change: impl FnOnce(&mut sluice::ledger::fanout_worker::FanoutSettings),
) -> sluice::ledger::fanout_worker::FanoutSettings {
    let mut settings = settings();
    change(&mut settings);
    settings
}

#[test]
fn a_drain_finishes_the_ledger_in_flight_and_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut server) = Fanout::start_keeping(settings(), directory.path(), 100) else { return };
    let mut inside = Raw::subscribe(server.address, "start=1");
    let mut future = Raw::subscribe(server.address, "start=9");
    let mut silent = TcpStream::connect(server.address).expect("connects");
    server.until_is(FanoutCounter::Connections, 3);
    let bytes = ledger_bytes(1, 50_000);
    server.begin(1);
    server.chunks(&bytes[..20_000]);
    assert_eq!((inside.next(), inside.next()), (Got::Begin(1, true), Got::Chunk(1, 0)));
    let stopped = server.stop_beside(Duration::from_secs(20));
    assert_eq!(future.next(), close(1012, "server draining"), "who is in no ledger is let go at once");
    silent.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
    let ended = silent.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "and so is who has asked for nothing: {ended:?}");
    server.chunks(&bytes[20_000..]);
    server.end();
    let got = inside.until(is_close);
    assert_eq!(got[got.len() - 2..], [Got::End(1, true), close(1012, "server draining")]);
    assert!(inside.payload == bytes);
    drop((inside, future));
    stopped.join().expect("the control thread is well").expect("drains");
    assert!(TcpStream::connect(server.address).is_err(), "nobody is let in any more");
    let server = Fanout::start_keeping(settings(), directory.path(), 100).expect("as before");
    server.until_is(FanoutCounter::Latest, 1);
}

#[test]
fn a_drain_is_bounded() {
    let Some(mut server) = Fanout::start(sluice_settings(|settings| settings.drain_ns = 300 * MILLI)) else { return };
    let mut raw = Raw::subscribe(server.address, "start=1");
    server.begin(1);
    assert_eq!(raw.next(), Got::Begin(1, true));
    let stopped = server.stop_beside(Duration::from_secs(20));
    assert_eq!(raw.next(), close(1012, "server draining"), "inside a ledger that does not end");
    drop(raw);
    stopped.join().expect("the control thread is well").expect("drains");
}

#[test]
fn the_end_of_a_source_has_its_closes() {
    for (outcome, query, expected, ending) in [
        (Outcome::Ended, "start=1", close(1000, "source ended"), Ok(())),
        (Outcome::Ended, "start=1&end=2", close(1000, ""), Ok(())),
        (Outcome::Ended, "start=1&end=9", close(1001, "source ended before range complete"), Ok(())),
        (Outcome::Failed, "start=1", close(1011, "source failed"), Err("it gave no reason".to_string())),
    ] {
        let Some(mut server) = Fanout::start(settings()) else { return };
        let mut raw = Raw::subscribe(server.address, query);
        server.ledger(1, &ledger_bytes(1, 100));
        server.ledger(2, &ledger_bytes(2, 100));
        server.finish(outcome);
        let got = raw.until(is_close);
        assert_eq!(got.last(), Some(&expected), "{query}");
        assert_eq!(got.iter().filter(|got| matches!(got, Got::End(..))).count(), 2);
        drop(raw);
        let end = crate::common::fanout::within("the server's end", || server.view.end.get().cloned());
        assert_eq!(end, ending);
    }
}

#[test]
fn a_ledger_that_begins_again_is_given_from_its_new_beginning() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let mut raw = Raw::subscribe(server.address, "start=5");
    let mut late = Raw::subscribe(server.address, "start=0");
    let bytes = ledger_bytes(5, 40_000);
    server.begin(5);
    server.chunks(&bytes[..20_000]);
    assert_eq!((raw.next(), raw.next()), (Got::Begin(5, true), Got::Chunk(5, 0)));
    assert_eq!((late.next(), late.next()), (Got::Begin(5, true), Got::Chunk(5, 0)));
    server.begin(5);
    assert_eq!((raw.next(), late.next()), (Got::Begin(5, true), Got::Begin(5, true)));
    raw.payload.clear();
    server.chunks(&bytes);
    server.end();
    let chunks = |got: Vec<Got>| got.iter().filter(|got| matches!(got, Got::Chunk(..))).count();
    assert_eq!(chunks(raw.until(is_end(5))), 3);
    assert!(raw.payload == bytes);
    server.until_is(FanoutCounter::Restarts, 1);
    assert_eq!(chunks(late.until(is_end(5))), 3);
    let replay = Raw::subscribe(server.address, "start=5&end=5").until(is_close);
    assert_eq!(replay.len(), 6, "what is kept is the second one: {replay:?}");
}

#[test]
fn a_source_that_does_not_go_on_begins_another_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut server) = Fanout::start_keeping(settings(), directory.path(), 100) else { return };
    (1..=3).for_each(|sequence| server.ledger(sequence, &ledger_bytes(sequence, 100)));
    let before = server.view.run();
    let mut raw = Raw::subscribe(server.address, "start=1");
    raw.until(is_end(3));
    server.until(FanoutCounter::Written, 3);
    server.ledger(9, &ledger_bytes(9, 100));
    assert_eq!(raw.next(), close(1012, "retention reset"));
    let mut raw = Raw::subscribe(server.address, "start=9");
    assert_eq!(raw.until(is_end(9)).len(), 3);
    assert_ne!(server.view.run(), before);
    assert!(raw.head.contains(&server.view.run()), "{}", raw.head);
    assert_eq!(Raw::subscribe(server.address, "start=3").next(), close(4001, "too far behind: oldest=9 latest=9"));
    // A relay says itself that its upstream is another one; what that announces is announced here.
    let upstream = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee; net=0707070707070707";
    server.push(Item::Run(upstream.into()));
    assert_eq!(raw.next(), close(1012, "retention reset"));
    server.ledger(50, &ledger_bytes(50, 100));
    let mut raw = Raw::subscribe(server.address, "start=50");
    assert_eq!(raw.until(is_end(50)).len(), 3);
    assert!(raw.head.contains(upstream), "{}", raw.head);
    // The same one again: ledgers are missing, and the name stays.
    server.push(Item::Run(upstream.into()));
    assert_eq!(raw.next(), close(1012, "retention reset"));
    server.ledger(60, &ledger_bytes(60, 100));
    server.until_is(FanoutCounter::Latest, 60);
    assert_eq!(server.view.run(), upstream);
    server.stop(Duration::from_secs(20)).expect("drains");
    let server = Fanout::start_keeping(settings(), directory.path(), 100).expect("as before");
    assert_eq!(server.view.run(), upstream);
    server.until_is(FanoutCounter::Oldest, 60);
}

/// What several flows carry of a range: each chunk's place, by flow.
fn flows(server: &Fanout, start: u32, end: u32, flows: u32) -> Vec<Vec<Got>> {
    let first = Raw::subscribe(server.address, &format!("start={start}&end={end}&flows={flows}"));
    let (_, rest) = first.head.split_once("Sluice-Flows: max=8; id=").expect("an offer");
    let id = rest[..16].to_string();
    let mut raws = vec![first];
    for flow in 1..flows {
        let query = format!("start={start}&end={end}&flow={flow}&flows={flows}&id={id}");
        raws.push(Raw::subscribe(server.address, &query));
    }
    raws.iter_mut().map(|raw| raw.until(is_close)).collect()
}

fn assert_shared_out(got: &[Vec<Got>], start: u32, end: u32, chunks: u32) {
    let count = got.len() as u32;
    for (flow, got) in (0..).zip(got) {
        assert_eq!(got.last(), Some(&close(1000, "")));
        let mut at = 0;
        for sequence in start..=end {
            assert!(matches!(got[at], Got::Begin(of, _) if of == sequence), "{:?}", got[at]);
            let own: Vec<Got> =
                (flow..chunks).step_by(count as usize).map(|index| Got::Chunk(sequence, index)).collect();
            assert_eq!(got[at + 1..at + 1 + own.len()], own[..]);
            at += own.len() + 1;
            assert!(matches!(got[at], Got::End(of, _) if of == sequence), "{:?}", got[at]);
            at += 1;
        }
    }
}

#[test]
fn several_flows_share_each_ledgers_chunks() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut server) = Fanout::start_keeping(settings(), directory.path(), 100) else { return };
    server.chunk_bytes = 4 << 10;
    for sequence in 1..=3 {
        server.ledger(sequence, &ledger_bytes(sequence, 10 * (4 << 10)));
    }
    server.until_is(FanoutCounter::MemoryBytes, 0);
    server.until(FanoutCounter::Written, 3);
    for count in 2..=5 {
        assert_shared_out(&flows(&server, 1, 3, count), 1, 3, 10);
    }
    // Live: all wait, then it comes.
    let address = server.address;
    let live = std::thread::spawn({
        let view_address = address;
        move || {
            let first = Raw::subscribe(view_address, "start=4&end=5&flows=3");
            let id = first.head.split_once("; id=").expect("an offer").1[..16].to_string();
            let mut raws = vec![first];
            raws.extend(
                (1..3).map(|flow| Raw::subscribe(view_address, &format!("start=4&end=5&flow={flow}&flows=3&id={id}"))),
            );
            raws.iter_mut().map(|raw| raw.until(is_close)).collect::<Vec<_>>()
        }
    });
    server.until_is(FanoutCounter::Connections, 3);
    server.until_is(FanoutCounter::Subscribers, 1);
    for sequence in 4..=5 {
        server.ledger(sequence, &ledger_bytes(sequence, 10 * (4 << 10)));
    }
    assert_shared_out(&live.join().expect("the subscriber is well"), 4, 5, 10);
}

#[test]
fn flows_that_cannot_be_are_refused() {
    let Some(mut server) = Fanout::start(sluice_settings(|settings| settings.audience.gate.flows_max = 2)) else {
        return;
    };
    server.ledger(1, &ledger_bytes(1, 100));
    let status = |query: &str| {
        let answer = ask(&server, &request(&format!("/stream?{query}")));
        answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).unwrap_or(0)
    };
    for query in ["flows=0", "flows=x", "flow=1&flows=2", "flow=2&flows=2&id=0000000000000001", "flows=65"] {
        assert_eq!(status(query), 400, "{query}");
    }
    assert_eq!(status("start=1&flow=1&flows=2&id=0000000000000001"), 409);
    let first = Raw::subscribe(server.address, "start=1&flows=7");
    assert!(first.head.contains("Sluice-Flows: max=2; id="), "{}", first.head);
    let id = first.head.split_once("; id=").expect("an offer").1[..16].to_string();
    assert_eq!(status(&format!("start=1&flow=1&flows=3&id={id}")), 400, "of as many as were agreed");
    let mut second = Raw::subscribe(server.address, &format!("start=1&flow=1&flows=2&id={id}"));
    assert_eq!((second.next(), second.next()), (Got::Begin(1, false), Got::End(1, false)));
    drop((first, second));
    server.until_is(FanoutCounter::Connections, 0);
    assert_eq!(status(&format!("start=1&flow=1&flows=2&id={id}")), 409, "the subscription has ended");
}

#[test]
fn our_client_takes_several_flows() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    let bytes = |sequence: u32| ledger_bytes(sequence, 200_000);
    (1..=5).for_each(|sequence| server.ledger(sequence, &bytes(sequence)));
    let settings = FollowSettings { flows: 3, retry_for: Some(Duration::ZERO), ..FollowSettings::default() };
    let mut follower = Follower::new(&server.url(), range(1, 5), settings).expect("a URL");
    for sequence in 1..=5 {
        let received = follower.next().expect("a stream").expect("a ledger");
        assert!(received.ledger.sequence == sequence && received.ledger.bytes == bytes(sequence));
    }
    assert!(follower.next().expect("the end").is_none());
    server.until(FanoutCounter::Accepted, 3);
}

#[test]
fn a_token_is_asked_for_before_anything_else() {
    let check = |authorization: Option<&str>, token: Option<&str>| {
        authorization == Some("Bearer open sesame") || token == Some("open sesame")
    };
    let Some(mut server) = Fanout::start_with(settings(), Extra { tokens: Some(Box::new(check)), ..Extra::default() })
    else {
        return;
    };
    server.ledger(1, &ledger_bytes(1, 100));
    for target in ["/stream", "/stream?start=abc", "/stream?token=wrong"] {
        let answer = ask(&server, &request(target));
        assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{answer}");
        assert!(answer.contains("\r\nWWW-Authenticate: Bearer\r\n"), "{answer}");
    }
    assert!(ask(&server, b"GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    let mut raw = Raw::subscribe(server.address, "start=1&token=open%20sesame");
    assert_eq!(raw.next(), Got::Begin(1, false));
    server.until_is(FanoutCounter::RefusedToken, 3);
}

#[test]
fn a_run_that_is_not_known_yet_is_announced_to_nobody() {
    let extra = Extra { awaits_run: true, ..Extra::default() };
    let Some(mut server) = Fanout::start_with(settings(), extra) else { return };
    let answer = ask(&server, &request("/stream"));
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("upstream has not answered"), "{answer}");
    assert!(ask(&server, b"GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    let upstream = "01234567-89ab-cdef-0123-456789abcdef; net=0707070707070707";
    server.push(Item::Run(upstream.into()));
    wait("the upstream's run", || server.view.run() == upstream);
    let raw = Raw::subscribe(server.address, "");
    assert!(raw.head.contains(upstream), "{}", raw.head);
}

#[test]
fn limits_hold_in_all_and_for_each_address() {
    for (all, one, status, counter) in
        [(2, 9, 503, FanoutCounter::RefusedSubscribers), (9, 2, 429, FanoutCounter::RefusedAddress)]
    {
        let started = Fanout::start(sluice_settings(|settings| {
            settings.audience.gate.subscribers_max = all;
            settings.audience.gate.per_address_max = one;
        }));
        let Some(server) = started else { return };
        let first = Raw::subscribe(server.address, "");
        let _second = Raw::subscribe(server.address, "");
        let answer = ask(&server, &request("/stream"));
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains("\r\nRetry-After: 1\r\n"),
            "{answer}"
        );
        assert!(ask(&server, b"GET /healthz HTTP/1.1\r\n\r\n").contains("\"subscribers\":2"));
        server.until_is(counter, 1);
        drop(first);
        server.until_is(FanoutCounter::Subscribers, 1);
        Raw::subscribe(server.address, "");
    }
}

#[test]
fn ledger_write_timeout_drops_a_frozen_peer_and_no_slow_one() {
    let Some(mut server) = Fanout::start(sluice_settings(|settings| settings.audience.time.write_ns = 2_000 * MILLI))
    else {
        return;
    };
    server.chunk_bytes = 256 << 10;
    let bytes = ledger_bytes(1, 24 << 20);
    let frozen = Raw::subscribe(server.address, "start=1");
    let mut slow = Raw::subscribe(server.address, "start=1&end=1");
    server.until_is(FanoutCounter::Subscribers, 2);
    server.ledger(1, &bytes);
    // A quarter of a MiB every 100 ms, for longer than the time-out: the server's sends come rarely, and what is acknowledged counts.
    let mut taken = Vec::new();
    let mut buffer = vec![0; 256 << 10];
    while taken.len() < bytes.len() {
        let read = match slow.stream.read(&mut buffer) {
            Ok(read @ 1..) => read,
            other => panic!(
                "a slow reader is not dropped: {other:?} after {} bytes, {} time-outs",
                taken.len(),
                server.view.get(FanoutCounter::WriteTimeouts)
            ),
        };
        taken.extend_from_slice(&buffer[..read]);
        clock::sleep(Duration::from_millis(if taken.len() < 12 << 20 { 100 } else { 0 }));
    }
    server.until_is(FanoutCounter::WriteTimeouts, 1);
    drop(frozen);
    server.until_is(FanoutCounter::WriteTimeouts, 1);
}

#[test]
fn who_ends_his_half_at_once_still_gets_his_answer() {
    let Some(server) = Fanout::start(settings()) else { return };
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").expect("writes");
    stream.shutdown(Shutdown::Write).expect("ends its half");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("reads");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("}\n"), "{answer}");
    server.until_is(FanoutCounter::Connections, 0);
}

#[test]
fn the_source_is_told_who_follows() {
    let Some(mut server) = Fanout::start(settings()) else { return };
    assert_eq!((server.load.live_subscribers(), server.load.slowest_bytes_per_second()), (0, None));
    let mut raw = Raw::subscribe(server.address, "start=1");
    server.ledger(1, &ledger_bytes(1, 10_000));
    raw.until(is_end(1));
    assert_eq!(server.load.live_subscribers(), 1);
    assert_eq!(
        server.load.slowest_bytes_per_second(),
        None,
        "what every buffer takes at once says nothing of the link"
    );
    // More than the buffers hold, while nobody reads: then the other side's pace is what counts.
    let known = (2..20).any(|sequence| {
        server.ledger(sequence, &ledger_bytes(sequence, 24 << 20));
        clock::sleep(Duration::from_millis(50));
        raw.until(is_end(sequence));
        server.load.slowest_bytes_per_second().is_some()
    });
    assert!(known, "24 MiB were delivered many times");
}

#[test]
fn nothing_is_left_of_a_server_that_was_stopped() {
    let Some(mut server) = Fanout::start(sluice_settings(|settings| settings.drain_ns = 0)) else { return };
    let mut raws: Vec<Raw> = (0..10).map(|_| Raw::subscribe(server.address, "")).collect();
    let silent = TcpStream::connect(server.address).expect("connects");
    server.until_is(FanoutCounter::Connections, 11);
    server.begin(1);
    server.stop(Duration::from_secs(20)).expect("ends");
    for raw in &mut raws {
        assert_eq!(raw.until(|got| *got == Got::Eof).last(), Some(&Got::Eof));
    }
    assert!(matches!((&silent).read(&mut [0]), Ok(0) | Err(_)));
    assert!(TcpStream::connect(server.address).is_err());
}

#[cfg(feature = "ledger-tls")]
mod secure {
    use super::*;
    use sluice::ledger::tls::TlsServer;

    fn certificate(directory: &std::path::Path) -> TlsServer {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
        let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).expect("writes");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("writes");
        TlsServer::load(&cert, &key).expect("a pair")
    }

    #[test]
    fn a_stream_over_tls_is_the_same() {
        let directory = tempfile::tempdir().expect("a directory");
        let tls = certificate(directory.path());
        let Some(mut server) = Fanout::start_with(settings(), Extra { tls: Some(tls), ..Extra::default() }) else {
            return;
        };
        server.chunk_bytes = 256 << 10;
        let bytes = |sequence: u32| ledger_bytes(sequence, 3 << 20);
        (1..=3).for_each(|sequence| server.ledger(sequence, &bytes(sequence)));
        let url = format!("wss://localhost:{}", server.address.port());
        let settings = FollowSettings {
            retry_for: Some(Duration::ZERO),
            authorities: Some(directory.path().join("cert.pem")),
            ..FollowSettings::default()
        };
        let mut follower = Follower::new(&url, range(1, 6), settings).expect("a URL");
        for sequence in 1..=6 {
            if sequence > 3 {
                server.ledger(sequence, &bytes(sequence));
            }
            let received = follower.next().expect("a stream").expect("a ledger");
            assert!(received.ledger.sequence == sequence && received.ledger.bytes == bytes(sequence));
        }
        assert!(follower.next().expect("an orderly end").is_none());
        drop(follower);
        server.until_is(FanoutCounter::Connections, 0);
        // Who speaks no TLS is told so, or at least let go.
        let mut plain = Raw::ask(server.address, b"GET /healthz HTTP/1.1\r\n\r\n");
        assert!(!plain.rest().contains("200 OK"));
        server.until_is(FanoutCounter::RefusedTls, 1);
        server.until_is(FanoutCounter::Connections, 0);
    }
}
